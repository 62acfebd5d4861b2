//! Handlers' view of a request head.

use std::borrow::Cow;
use std::rc::Rc;

use http::path::{self, EmptySegments};
use http::template::CustomVariables;
use http::{BodySize, HeadRef, Method, Name, Reject, RequestIds, Version};
use times::Millis;

use crate::address::{Client, Peer};
use crate::grpc;
use crate::request_state::{RequestState, VerifiedUser};
use crate::tls::TlsSession;

/// A view of the request head.
#[derive(Clone, Copy)]
pub struct Request<'x> {
    head: HeadRef<'x>,
    state: &'x RequestState,
}

impl<'x> Request<'x> {
    pub(crate) fn of(state: &'x RequestState, head: HeadRef<'x>) -> Request<'x> {
        Request { head: state.amended.as_ref().map_or(head, |amended| amended.as_head()), state }
    }

    /// Returns the client's TLS session with this server, if there is one.
    #[must_use]
    pub fn tls(&self) -> Option<&'x TlsSession> {
        self.state.tls.as_deref()
    }

    /// Returns the key of the listener that accepted the connection ([`crate::ListenOptions::key`]).
    #[must_use]
    pub fn listener_key(&self) -> u64 {
        self.state.listener_key
    }

    /// Returns the method.
    #[must_use]
    pub fn method(&self) -> Method {
        self.head.method
    }

    /// Returns the method as sent.
    #[must_use]
    pub fn method_name(&self) -> &'x [u8] {
        self.head.method_name.of(self.head.bytes)
    }

    /// Returns the HTTP version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.head.version
    }

    /// Returns the target: as sent, or as rewritten by [`crate::Exchange::rewrite_target`].
    #[must_use]
    pub fn target(&self) -> &'x [u8] {
        self.head.target.whole.of(self.head.bytes)
    }

    /// Returns the target as the client sent it.
    #[must_use]
    pub fn sent_target(&self) -> &'x [u8] {
        self.head.sent_target(self.head.bytes)
    }

    /// Returns the variables that the configuration defines.
    #[must_use]
    pub fn custom_variables(&self) -> Option<&'x dyn CustomVariables> {
        self.state.custom_variables.as_deref()
    }

    /// Returns the path as sent, not decoded; `*` for `OPTIONS *`.
    #[must_use]
    pub fn path(&self) -> &'x [u8] {
        self.head.target.path(self.head.bytes)
    }

    /// Returns the decoded path, for files. See [`http::path`].
    ///
    /// # Errors
    /// 400 for an ambiguous path.
    pub fn normal_path(&self) -> Result<Cow<'x, [u8]>, Reject> {
        path::normal_path(self.path(), self.state.empty_segments)
    }

    /// Returns the decoded path with encoded slashes preserved ([`path::matched_path`]), for routes.
    ///
    /// # Errors
    /// See [`Request::normal_path`].
    pub fn matched_path(&self, empty_segments: EmptySegments) -> Result<Cow<'x, [u8]>, Reject> {
        path::matched_path(self.path(), empty_segments)
    }

    /// Returns the path that routes match, for rules that select by it.
    ///
    /// # Errors
    /// See [`Request::normal_path`].
    pub fn route_path(&self) -> Result<Cow<'x, [u8]>, Reject> {
        self.matched_path(self.state.empty_segments)
    }

    /// Returns the normalized path, percent-encoded for request targets and header fields.
    ///
    /// # Errors
    /// See [`Request::normal_path`].
    pub fn encoded_path(&self) -> Result<Cow<'x, [u8]>, Reject> {
        path::encoded_path(self.path(), self.empty_segments())
    }

    /// Returns the treatment of empty segments in the path that handlers get.
    #[must_use]
    pub fn empty_segments(&self) -> EmptySegments {
        if self.state.preserves_empty_segments { EmptySegments::AsSent } else { self.state.empty_segments }
    }

    /// Returns the query, with bytes beyond ASCII percent-encoded.
    #[must_use]
    pub fn encoded_query(&self) -> Option<Cow<'x, [u8]>> {
        self.query().map(path::encode_beyond_ascii)
    }

    /// Returns the query as sent.
    #[must_use]
    pub fn query(&self) -> Option<&'x [u8]> {
        self.head.target.query.map(|query| query.of(self.head.bytes))
    }

    /// Returns `host[:port]` of the request; empty if an HTTP/1.0 client sent none.
    #[must_use]
    pub fn authority(&self) -> &'x [u8] {
        self.head.authority.of(self.head.bytes)
    }

    /// Whether the request is a gRPC call: over HTTP/2, with the content type `application/grpc` or a variant
    /// of it. Errors are reported to it as `grpc-status`.
    #[must_use]
    pub fn is_grpc_call(&self) -> bool {
        grpc::is_call(self.version(), self.field(Name::ContentType))
    }

    /// Returns the timeout of a gRPC call in milliseconds; `None` if it has none, and for other requests.
    #[must_use]
    pub fn grpc_timeout(&self) -> Option<Millis> {
        // `grpc-timeout` has no [`Name`] of its own.
        if !self.head.fields.has(Name::Other) || !self.is_grpc_call() {
            return None;
        }
        let mut fields = self.fields().filter(|(id, _, _)| *id == Name::Other);
        let (_, _, value) = fields.find(|(_, name, _)| name.eq_ignore_ascii_case(b"grpc-timeout"))?;
        grpc::timeout(value)
    }

    /// Returns the first field with that name.
    #[must_use]
    pub fn field(&self, id: Name) -> Option<&'x [u8]> {
        self.head.value(id)
    }

    /// Returns all fields in order: known name, name as sent, value.
    pub fn fields(&self) -> impl Iterator<Item = (Name, &'x [u8], &'x [u8])> {
        let HeadRef { head, bytes } = self.head;
        head.fields.iter().map(move |field| (field.id, field.name.of(bytes), field.value.of(bytes)))
    }

    /// Returns the parsed head and the bytes that its spans refer to.
    #[must_use]
    pub fn head(&self) -> HeadRef<'x> {
        self.head
    }

    /// Returns the authenticated user: see [`Exchange::set_user`].
    #[must_use]
    pub fn user(&self) -> Option<&'x VerifiedUser> {
        self.state.user.as_deref()
    }

    /// Returns a shared reference to the user, which may outlive the request.
    #[must_use]
    pub fn shared_user(&self) -> Option<Rc<VerifiedUser>> {
        self.state.user.clone()
    }

    /// Returns the IDs that [`Exchange::set_ids`] has set.
    #[must_use]
    pub fn ids(&self) -> RequestIds {
        self.state.ids
    }

    /// Returns the size of the request body.
    #[must_use]
    pub fn body(&self) -> BodySize {
        self.head.body
    }

    /// Returns the peer of the connection: the client, or the nearest HTTP proxy in front of this server.
    /// Behind a proxy with the PROXY protocol, it is the client that the proxy reports.
    #[must_use]
    pub fn peer(&self) -> Peer {
        self.state.peer
    }

    /// Whether the response may be specific to one client: the request has `Authorization` or a client
    /// certificate, or was authorized in another way. A cache stores the response only if it explicitly
    /// permits sharing (RFC 9111 section 3.5).
    #[must_use]
    pub fn is_authorized(&self) -> bool {
        self.state.is_authorized
            || self.field(Name::Authorization).is_some()
            || self.tls().is_some_and(|session| session.client.is_some())
    }

    /// Returns the client that sent the request: the peer, or the one set by [`Exchange::set_client`].
    #[must_use]
    pub fn client(&self) -> Client {
        self.state.client
    }
}
