//! Connections that are relayed without HTTP, and the decision about them.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;

use times::{Millis, Moment};

use crate::address::Peer;
use crate::core::Core;
use crate::link::Link;
use crate::permit::ConnectionPermit;
use crate::proxy_protocol::{Endpoints, ProxyHeader};
use crate::relay::{RelayEnd, RelaySide, relay};
use crate::tls::TlsAcceptor;
use crate::wait::Interest;

/// Properties of a connection for the decision how to handle it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamStart<'x> {
    /// [`crate::StreamListener::key`].
    pub listener: &'x str,
    /// The client.
    pub client: Peer,
    /// The first bytes of the connection.
    pub opening: StreamOpening<'x>,
}

/// Classification of the first bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamOpening<'x> {
    /// Not read.
    Unread,
    /// A TLS ClientHello, with its server name in lower case.
    Tls(Option<&'x str>),
    /// Any other bytes.
    Other,
    /// Not received for this reason; the connection is closed.
    Failed(&'static str),
}

/// A task that serves a connection until its end.
pub type StreamFuture = Pin<Box<dyn Future<Output = ()>>>;

/// Starts the task of a connection.
pub type ServeStream = Box<dyn FnOnce(StreamClient) -> StreamFuture>;

/// Decision about a connection.
pub enum StreamChoice {
    /// Handle the connection in this task.
    Serve(ServeStream),
    /// Decrypt TLS with these certificates, then handle the connection in this task.
    Decrypt(TlsAcceptor, ServeStream),
    /// Serve HTTP with the listener's sites.
    Http,
    /// Close the connection.
    Close,
    /// Close the connection. A client that uses TLS is told that its name is unknown.
    Unrecognized,
}

/// A client connection to relay. Counts as a connection of the server until it is dropped.
pub struct StreamClient {
    link: Link,
    permit: ConnectionPermit,
    peer: Peer,
    proxy_header: Option<Box<ProxyHeader>>,
    /// Bytes that the client has already sent.
    early_bytes: Vec<u8>,
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
        link.stream().source().set_deadline(Moment::NEVER);
        StreamClient { link, permit, peer, proxy_header: reported, early_bytes: early }
    }

    /// Returns the core that owns the connection.
    #[must_use]
    pub fn core(&self) -> &Core {
        self.link.core()
    }

    /// Returns the client, which a trusted proxy may have named.
    #[must_use]
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Returns the addresses of the client's connection, if it has any.
    #[must_use]
    pub fn endpoints(&self) -> Option<Endpoints> {
        if let Some(ends) = self.proxy_header.as_ref().and_then(|reported| reported.endpoints) {
            return Some(ends);
        }
        let destination: SocketAddr = self.link.stream().local_address()?;
        match self.peer {
            Peer::Tcp(source) => Some(Endpoints { source, destination }),
            Peer::Unix => None,
        }
    }

    /// Whether the client has closed both directions. If not, registers the waker of `cx` for that event.
    #[must_use]
    pub fn poll_gone(&self, cx: &std::task::Context<'_>) -> bool {
        let source = self.link.stream().source();
        crate::wait::check_or_register(self.core(), source, Interest::default().or_gone(true), cx)
    }

    /// Transfers data in both directions until both sides have closed, one of them is gone, or nothing was
    /// transferred for `idle_timeout`. `moved` is called with the receiving side and the number of bytes.
    pub async fn relay(
        &mut self,
        upstream: &mut Link,
        idle_timeout: Millis,
        on_moved: impl Fn(RelaySide, usize),
    ) -> RelayEnd {
        let early = std::mem::take(&mut self.early_bytes);
        let permit = &self.permit;
        relay(&mut self.link, upstream, &early, idle_timeout, |bytes| permit.hold(bytes), on_moved).await
    }

    /// Resets the connection, so that the client does not mistake its end for the end of the data.
    pub fn reset(self) {
        self.link.stream().reset_on_close(true);
    }
}
