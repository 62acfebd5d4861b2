//! A request, as the rules of the proxy see it.

use std::borrow::Cow;
use std::net::SocketAddr;

use http::path::{EmptySegments, encoded_path};
use http::template::{OwnValues, TlsValues, Values};
use http::{Head, Reject, RequestIds};
use net::{Client, Peer, Request, TlsSession, VerifiedUser};

/// One request, as the rules for heads see it.
#[derive(Clone, Copy)]
pub struct TemplateContext<'x> {
    /// Its parsed head.
    pub head: &'x Head,
    /// The bytes that the head's spans refer to.
    pub bytes: &'x [u8],
    /// Who sent it to us.
    pub peer: Peer,
    /// Who asks.
    pub client: Client,
    /// The client's TLS connection with this server, if it has one.
    pub tls: Option<&'x TlsSession>,
    /// What becomes of empty segments in its path.
    pub empty_segments: EmptySegments,
    /// Its ids.
    pub ids: RequestIds,
    /// The user that this server has verified.
    pub user: Option<&'x VerifiedUser>,
    /// `host:port` of the chosen upstream.
    pub upstream: &'x str,
    /// The variables that the configuration defines.
    pub own: Option<&'x dyn OwnValues>,
}

impl<'x> TemplateContext<'x> {
    /// A request for an upstream.
    #[must_use]
    pub fn of(request: &Request<'x>, upstream: &'x str) -> TemplateContext<'x> {
        let (head, bytes) = request.head();
        let empty_segments = request.empty_segments();
        TemplateContext {
            head,
            bytes,
            peer: request.peer(),
            client: request.client(),
            tls: request.tls(),
            empty_segments,
            ids: request.ids(),
            user: request.user(),
            upstream,
            own: request.own_values(),
        }
    }

    /// The path that routes match, percent-encoded.
    ///
    /// # Errors
    /// 400 for a path that servers read in two ways.
    pub fn path(&self) -> Result<Cow<'x, [u8]>, Reject> {
        encoded_path(self.head.target.path(self.bytes), self.empty_segments)
    }

    /// The sender's address; none over a Unix socket.
    #[must_use]
    pub fn sender(&self) -> Option<SocketAddr> {
        address_of(self.peer)
    }

    /// The client's address; none over a Unix socket.
    #[must_use]
    pub fn client_address(&self) -> Option<SocketAddr> {
        address_of(self.client.address)
    }

    /// `https` or `http`.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        if self.client.secure { "https" } else { "http" }
    }

    /// `host[:port]` that the request is for.
    #[must_use]
    pub fn authority(&self) -> &'x [u8] {
        self.head.authority.of(self.bytes)
    }

    /// What variables of header values stand for.
    #[must_use]
    pub fn values(&self) -> Values<'x> {
        Values {
            head: self.head,
            bytes: self.bytes,
            empty_segments: self.empty_segments,
            client: self.client_address(),
            is_secure: self.client.secure,
            tls: self.tls.map(|session| session as &dyn TlsValues),
            ids: self.ids,
            user: self.user.map_or(b"", |user| &user.name),
            prefix: b"",
            upstream: self.upstream,
            own: self.own,
        }
    }
}

fn address_of(peer: Peer) -> Option<SocketAddr> {
    match peer {
        Peer::Tcp(address) => Some(SocketAddr::new(address.ip().to_canonical(), address.port())),
        Peer::Unix => None,
    }
}
