//! A request, as seen by the proxy's rules and templates.

use std::borrow::Cow;
use std::net::SocketAddr;

use http::path::{EmptySegments, encoded_path};
use http::template::{CustomVariables, TlsValues, VariableValues};
use http::{Head, HeadRef, Reject, RequestIds};
use net::{Client, Peer, Request, TlsSession, VerifiedUser};

/// Values of one request for the proxy's rules and templates.
#[derive(Clone, Copy)]
pub struct TemplateContext<'x> {
    /// Parsed request head.
    pub head: &'x Head,
    /// Bytes that the head's spans refer to.
    pub bytes: &'x [u8],
    /// Immediate sender of the request.
    pub peer: Peer,
    /// The client, possibly as named by a trusted proxy.
    pub client: Client,
    /// The client's TLS connection with this server, if it has one.
    pub tls: Option<&'x TlsSession>,
    /// Treatment of empty path segments.
    pub empty_segments: EmptySegments,
    /// Request and trace ids.
    pub ids: RequestIds,
    /// User that this server has authenticated.
    pub user: Option<&'x VerifiedUser>,
    /// `host[:port]` of the chosen upstream.
    pub upstream: &'x str,
    /// Variables that the configuration defines.
    pub custom_variables: Option<&'x dyn CustomVariables>,
}

impl<'x> TemplateContext<'x> {
    /// Returns the context of a request for an upstream.
    #[must_use]
    pub fn of(request: &Request<'x>, upstream: &'x str) -> TemplateContext<'x> {
        let HeadRef { head, bytes } = request.head();
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
            custom_variables: request.custom_variables(),
        }
    }

    /// Returns the path that routes match, percent-encoded.
    ///
    /// # Errors
    /// 400 for an ambiguous path.
    pub fn path(&self) -> Result<Cow<'x, [u8]>, Reject> {
        encoded_path(self.head.target.path(self.bytes), self.empty_segments)
    }

    /// Returns the sender's address; `None` for a Unix socket.
    #[must_use]
    pub fn sender(&self) -> Option<SocketAddr> {
        address_of(self.peer)
    }

    /// Returns the client's address; `None` for a Unix socket.
    #[must_use]
    pub fn client_address(&self) -> Option<SocketAddr> {
        address_of(self.client.address)
    }

    /// Returns `https` or `http`.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        if self.client.is_secure { "https" } else { "http" }
    }

    /// Returns the `host[:port]` of the request.
    #[must_use]
    pub fn authority(&self) -> &'x [u8] {
        self.head.authority.of(self.bytes)
    }

    /// Returns the values of variables in header templates.
    #[must_use]
    pub fn values(&self) -> VariableValues<'x> {
        VariableValues {
            head: self.head,
            bytes: self.bytes,
            empty_segments: self.empty_segments,
            client: self.client_address(),
            is_secure: self.client.is_secure,
            tls: self.tls.map(|session| session as &dyn TlsValues),
            ids: self.ids,
            user: self.user.map_or(b"", |user| &user.name),
            prefix: b"",
            upstream: self.upstream,
            custom: self.custom_variables,
        }
    }
}

fn address_of(peer: Peer) -> Option<SocketAddr> {
    match peer {
        Peer::Tcp(address) => Some(SocketAddr::new(address.ip().to_canonical(), address.port())),
        Peer::Unix => None,
    }
}
