//! Connections that are relayed as they are, without HTTP: what is known of them, and who decides about them.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;

use crate::address::Peer;
use crate::core::Core;
use crate::link::Link;
use crate::permit::ConnectionPermit;
use crate::preface::{Endpoints, ProxyHeader};
use crate::relay::{RelayEnd, RelaySide, relay};
use crate::wait::Interest;

/// What is known of a connection when it is decided what becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamStart<'x> {
    /// [`crate::StreamListener::key`].
    pub listener: &'x str,
    /// The client.
    pub client: Peer,
    /// Its first bytes.
    pub opening: StreamOpening<'x>,
}

/// The first bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamOpening<'x> {
    /// They were not read.
    Unread,
    /// TLS, with the name that the client asks for, in lower case.
    Tls(Option<&'x str>),
    /// Something else.
    Other,
    /// It did not come to that: the connection is closed, for this reason.
    Failed(&'static str),
}

/// What serves a connection until its end.
pub type StreamFuture = Pin<Box<dyn Future<Output = ()>>>;

/// What becomes of a connection.
pub enum StreamChoice {
    /// This serves it, as a task.
    Serve(Box<dyn FnOnce(StreamClient) -> StreamFuture>),
    /// The sites of the listener serve it.
    Sites,
    /// It is closed.
    Close,
}

/// The connection of a client that is relayed. It counts as a connection of the server until it is dropped.
pub struct StreamClient {
    link: Link,
    permit: ConnectionPermit,
    peer: Peer,
    reported: Option<Box<ProxyHeader>>,
    /// What the client has sent already.
    early: Vec<u8>,
}

impl StreamClient {
    pub(crate) fn new(
        link: Link,
        permit: ConnectionPermit,
        peer: Peer,
        reported: Option<Box<ProxyHeader>>,
        early: Vec<u8>,
    ) -> StreamClient {
        permit.hold(early.len());
        link.stream().source().set_deadline(u64::MAX);
        StreamClient { link, permit, peer, reported, early }
    }

    /// The core that it lives on.
    #[must_use]
    pub fn core(&self) -> &Core {
        self.link.core()
    }

    /// The client, which a trusted proxy may have named.
    #[must_use]
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Both ends of the client's connection, where it has addresses.
    #[must_use]
    pub fn endpoints(&self) -> Option<Endpoints> {
        if let Some(ends) = self.reported.as_ref().and_then(|reported| reported.ends) {
            return Some(ends);
        }
        let destination: SocketAddr = self.link.stream().local_address()?;
        match self.peer {
            Peer::Tcp(source) => Some(Endpoints { source, destination }),
            Peer::Unix => None,
        }
    }

    /// Whether the client is gone in both directions; if not, whoever polls with `cx` is woken when it is.
    #[must_use]
    pub fn poll_gone(&self, cx: &std::task::Context<'_>) -> bool {
        let source = self.link.stream().source();
        crate::wait::is_met_or_waits(self.core(), source, Interest::default().or_gone(true), cx)
    }

    /// Carries bytes both ways until both sides have closed, one of them is gone, or nothing has moved for `idle_ms`.
    /// `moved` is called with the side that has taken bytes, and how many.
    pub async fn relay(
        &mut self,
        upstream: &mut Link,
        idle_ms: u64,
        moved: impl Fn(RelaySide, usize),
    ) -> RelayEnd {
        let early = std::mem::take(&mut self.early);
        let permit = &self.permit;
        relay(&mut self.link, upstream, &early, idle_ms, |bytes| permit.hold(bytes), moved).await
    }

    /// Closes the connection so that the client does not take that for the end of what it asked for.
    pub fn reset(self) {
        self.link.stream().reset_on_close(true);
    }
}
