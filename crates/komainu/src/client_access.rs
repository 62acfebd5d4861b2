//! Which clients a route answers.

use std::net::IpAddr;

use net::{Peer, Sources};

/// The address of a client; none over a Unix socket.
pub(crate) fn address(client: Peer) -> Option<IpAddr> {
    match client {
        Peer::Tcp(address) => Some(address.ip()),
        Peer::Unix => None,
    }
}

/// Which clients a route answers, by address.
#[derive(Debug, Default)]
pub(crate) struct ClientAccess {
    /// A client must be in each of them.
    pub(crate) allow: Vec<Sources>,
    /// And in none of these.
    pub(crate) deny: Vec<Sources>,
}

impl ClientAccess {
    /// Whether it answers a client.
    pub(crate) fn admits(&self, client: Peer) -> bool {
        self.allow.iter().all(|allowed| allowed.contains(client))
            && !self.deny.iter().any(|denied| denied.contains(client))
    }
}
