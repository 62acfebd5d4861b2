//! Open connections, for operators. Each core keeps its own list, updated when a connection begins, completes
//! its handshake or ends, and read only by the core itself.

use times::{Millis, Moment};

use crate::address::{ListenUrl, Peer};
use crate::slab::ConnectionSlab;

/// Maximum number of connections that a core lists; further ones are only counted.
pub const LISTED_MAX: usize = 10_000;

/// The protocol of a client connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectionProtocol {
    /// HTTP/1, or a protocol to which a connection has switched.
    #[default]
    Http1,
    /// HTTP/2.
    Http2,
    /// HTTP/3.
    Http3,
}

/// Attributes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionEntry {
    /// Number of the listener that accepted it.
    pub(crate) listener: u64,
    /// The client of the connection; a trusted proxy may name another one in a request.
    pub(crate) client: Peer,
    /// Start time on the core's clock.
    pub(crate) since: Moment,
    pub(crate) protocol: ConnectionProtocol,
    /// Requests in progress, maintained only while the server stops; 1 before that.
    pub(crate) requests: u32,
}

impl ConnectionEntry {
    pub(crate) fn new(listener: u64, client: Peer, since: Moment) -> ConnectionEntry {
        ConnectionEntry { listener, client, since, protocol: ConnectionProtocol::Http1, requests: 1 }
    }
}

/// The connections of one core.
pub(crate) type ConnectionList = ConnectionSlab<ConnectionEntry>;

impl ConnectionList {
    /// Returns the number of connections and the first [`LISTED_MAX`] of them.
    pub(crate) fn read(&self) -> (usize, Vec<ConnectionEntry>) {
        let places = self.0.borrow();
        let open = places.entries.len() - places.free.len();
        (open, places.entries.iter().flatten().take(LISTED_MAX).copied().collect())
    }
}

/// An open client connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenConnection {
    /// The listener that accepted it; `None` if that has been closed.
    pub listener: Option<ListenUrl>,
    /// The peer, or the client that a PROXY protocol header names.
    pub client: Peer,
    /// Time since the connection was accepted, in milliseconds.
    pub age: Millis,
    /// The protocol.
    pub protocol: ConnectionProtocol,
    /// Requests in progress if the server is stopping; otherwise 1.
    pub requests: u32,
}

/// The open connections of a server.
#[derive(Clone, Debug, Default)]
pub struct OpenConnections {
    /// Total number of connections.
    pub count: usize,
    /// At most [`LISTED_MAX`] connections of each core.
    pub listed: Vec<OpenConnection>,
    /// Cores that did not answer in time.
    pub unresponsive_cores: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_slots_are_reused_and_released() {
        let list = ConnectionList::default();
        let entry = |since| ConnectionEntry::new(0, Peer::Unix, since);
        let first = list.add(entry(Moment(1)));
        let second = list.add(entry(Moment(2)));
        list.change(second, |entry| entry.protocol = ConnectionProtocol::Http2);
        list.remove(first);
        assert_eq!(
            list.read(),
            (1, vec![ConnectionEntry { protocol: ConnectionProtocol::Http2, ..entry(Moment(2)) }])
        );
        assert_eq!(list.add(entry(Moment(3))), first);
        assert_eq!(list.read().0, 2);
        list.remove(first);
        list.remove(second);
        assert_eq!((list.read(), list.0.borrow().entries.capacity()), ((0, vec![]), 0));
    }

    #[test]
    fn listed_connections_are_bounded() {
        let list = ConnectionList::default();
        for at in 0..LISTED_MAX as u64 + 5 {
            list.add(ConnectionEntry::new(0, Peer::Unix, Moment(at)));
        }
        let (count, listed) = list.read();
        assert_eq!((count, listed.len()), (LISTED_MAX + 5, LISTED_MAX));
    }
}
