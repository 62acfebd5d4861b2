//! A request's head, as handlers see it.

use std::borrow::Cow;
use std::rc::Rc;

use http::path::{self, EmptySegments};
use http::template::OwnValues;
use http::{BodySize, Head, Method, Name, Reject, RequestIds, Version};

use crate::address::{Client, Peer};
use crate::grpc;
use crate::state::{RequestState, VerifiedUser};
use crate::tls::TlsSession;

/// A view of the request's head.
#[derive(Clone, Copy)]
pub struct Request<'x> {
    head: &'x Head,
    bytes: &'x [u8],
    state: &'x RequestState,
}

impl<'x> Request<'x> {
    pub(crate) fn of(state: &'x RequestState, (head, bytes): (&'x Head, &'x [u8])) -> Request<'x> {
        match &state.amended {
            None => Request { head, bytes, state },
            Some(amended) => Request { head: &amended.head, bytes: &amended.bytes, state },
        }
    }

    /// The client's TLS connection with this server, if it has one.
    #[must_use]
    pub fn tls(&self) -> Option<&'x TlsSession> {
        self.state.tls.as_deref()
    }

    /// The key of the listener that has accepted its connection ([`crate::Listen::key`]).
    #[must_use]
    pub fn listener_key(&self) -> u64 {
        self.state.listener_key
    }

    /// The method.
    #[must_use]
    pub fn method(&self) -> Method {
        self.head.method
    }

    /// The method as sent.
    #[must_use]
    pub fn method_name(&self) -> &'x [u8] {
        self.head.method_name.of(self.bytes)
    }

    /// The version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.head.version
    }

    /// The target: as sent, or what this server has put in its place ([`crate::Exchange::rewrite_target`]).
    #[must_use]
    pub fn target(&self) -> &'x [u8] {
        self.head.target.whole.of(self.bytes)
    }

    /// The target as the client sent it.
    #[must_use]
    pub fn sent_target(&self) -> &'x [u8] {
        self.head.sent_target(self.bytes)
    }

    /// The variables that the configuration defines.
    #[must_use]
    pub fn own_values(&self) -> Option<&'x dyn OwnValues> {
        self.state.own_values.as_deref()
    }

    /// The path as sent, not decoded; `*` for `OPTIONS *`.
    #[must_use]
    pub fn path(&self) -> &'x [u8] {
        self.head.target.path(self.bytes)
    }

    /// The path decoded, for files. See [`http::path`].
    ///
    /// # Errors
    /// 400 for a path that servers read in two ways.
    pub fn normal_path(&self) -> Result<Cow<'x, [u8]>, Reject> {
        path::normal_path(self.path(), self.state.empty_segments)
    }

    /// The same where encoded slashes are kept ([`path::matched_path`]): what routes match.
    ///
    /// # Errors
    /// Those of [`Request::normal_path`].
    pub fn matched_path(&self, empty_segments: EmptySegments) -> Result<Cow<'x, [u8]>, Reject> {
        path::matched_path(self.path(), empty_segments)
    }

    /// The path that routes match, for rules that choose by it.
    ///
    /// # Errors
    /// Those of [`Request::normal_path`].
    pub fn route_path(&self) -> Result<Cow<'x, [u8]>, Reject> {
        self.matched_path(self.state.empty_segments)
    }

    /// The same path percent-encoded, for request targets and header fields.
    ///
    /// # Errors
    /// Those of [`Request::normal_path`].
    pub fn encoded_path(&self) -> Result<Cow<'x, [u8]>, Reject> {
        path::encoded_path(self.path(), self.empty_segments())
    }

    /// What becomes of empty segments in the path that handlers get.
    #[must_use]
    pub fn empty_segments(&self) -> EmptySegments {
        if self.state.passes_as_sent { EmptySegments::AsSent } else { self.state.empty_segments }
    }

    /// What follows the `?`, with bytes beyond ASCII percent-encoded.
    #[must_use]
    pub fn encoded_query(&self) -> Option<Cow<'x, [u8]>> {
        self.query().map(path::encode_beyond_ascii)
    }

    /// What follows the `?`, as sent.
    #[must_use]
    pub fn query(&self) -> Option<&'x [u8]> {
        self.head.target.query.map(|query| query.of(self.bytes))
    }

    /// `host[:port]` that the request is for; empty where a 1.0 client named none.
    #[must_use]
    pub fn authority(&self) -> &'x [u8] {
        self.head.authority.of(self.bytes)
    }

    /// Whether it is a gRPC call: over HTTP/2, with the content type `application/grpc` or a kind of it. Errors are reported to it
    /// as `grpc-status`.
    #[must_use]
    pub fn is_grpc_call(&self) -> bool {
        grpc::is_call(self.version(), self.field(Name::ContentType))
    }

    /// The time that the client gives a gRPC call, in milliseconds; `None` where it says nothing, and for other requests.
    #[must_use]
    pub fn grpc_timeout_ms(&self) -> Option<u64> {
        // Its name has no number of its own.
        if !self.head.fields.has(Name::Other) || !self.is_grpc_call() {
            return None;
        }
        let mut fields = self.fields().filter(|(id, _, _)| *id == Name::Other);
        let (_, _, value) = fields.find(|(_, name, _)| name.eq_ignore_ascii_case(b"grpc-timeout"))?;
        grpc::timeout_ms(value)
    }

    /// The first field of that name.
    #[must_use]
    pub fn field(&self, id: Name) -> Option<&'x [u8]> {
        self.head.field(self.bytes, id)
    }

    /// All fields in order: known name, name as sent, value.
    pub fn fields(&self) -> impl Iterator<Item = (Name, &'x [u8], &'x [u8])> {
        let bytes = self.bytes;
        self.head.fields.iter().map(move |field| (field.id, field.name.of(bytes), field.value.of(bytes)))
    }

    /// The parsed head and the bytes that its spans refer to.
    #[must_use]
    pub fn head(&self) -> (&'x Head, &'x [u8]) {
        (self.head, self.bytes)
    }

    /// The user that the server has verified: see [`Exchange::set_user`].
    #[must_use]
    pub fn user(&self) -> Option<&'x VerifiedUser> {
        self.state.user.as_deref()
    }

    /// The same, for what lives longer than the request.
    #[must_use]
    pub fn shared_user(&self) -> Option<Rc<VerifiedUser>> {
        self.state.user.clone()
    }

    /// Its ids: none but those that [`Exchange::set_ids`] has set.
    #[must_use]
    pub fn ids(&self) -> RequestIds {
        self.state.ids
    }

    /// How much body the request has.
    #[must_use]
    pub fn body(&self) -> BodySize {
        self.head.body
    }

    /// The peer of the connection: the client, or the nearest HTTP proxy in front of this server. Behind a proxy that
    /// speaks the PROXY protocol, it is the peer that the proxy reports, not the proxy itself.
    #[must_use]
    pub fn peer(&self) -> Peer {
        self.state.peer
    }

    /// Whether its response is for one client: it has `Authorization`, or a certificate, or was let in otherwise because of who sends
    /// it. A cache shares only what says that it may (RFC 9111 section 3.5).
    #[must_use]
    pub fn is_authorized(&self) -> bool {
        self.state.is_authorized
            || self.field(Name::Authorization).is_some()
            || self.tls().is_some_and(|session| session.client.is_some())
    }

    /// The client that sent the request: the peer, or the client that [`Exchange::set_client`] has set.
    #[must_use]
    pub fn client(&self) -> Client {
        self.state.client
    }
}
