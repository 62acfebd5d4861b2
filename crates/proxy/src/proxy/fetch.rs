//! Requests that this server sends on its own behalf, by the rules of a route; no client receives the
//! response.

use http::framing::Length;
use http::{
    BodySize, Dialect, EmptySegments, Fields, Head, HeadRef, Method, Name, Reject, RequestHead, RequestIds,
    Span, Status,
};
use net::proxy_protocol::Endpoints;
use net::{Client, Peer, Request, VerifiedUser};
use std::pin::pin;
use std::rc::Rc;
use std::task::Context;
use times::Millis;

use super::{Attempts, BoundProxy, CgiRequest, LOOP_REASON, OpenedUpstream, UpstreamAttempt};
use crate::dial::run_concurrently;
use crate::failure::AttemptFailure;
use crate::replay_buffer::ReplayBuffer;
use crate::request::is_named;
use crate::response;
use crate::retry;
use crate::selection::{Requester, SelectError, Selection};
use crate::template::TemplateContext;
use crate::upstream_request::{RequestBounds, UpstreamRequest};

/// A request for [`BoundProxy::fetch`]: a head and a body of known length.
#[derive(Clone, Debug)]
pub struct FetchRequest {
    head: Head,
    bytes: Vec<u8>,
    peer: Peer,
    client: Client,
    empty_segments: EmptySegments,
    ids: RequestIds,
    user: Option<Rc<VerifiedUser>>,
    body: Vec<u8>,
}

/// Limits of a fetch, in addition to the timeouts and limits of the route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchLimits {
    /// Maximum bytes of content. Default 1 MiB.
    pub body_bytes_max: u64,
    /// Timeout of the whole fetch, including retries and content, in milliseconds. Default 60,000.
    pub total: Millis,
}

/// Reason for a missing or incomplete response, with the status that a client would get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchError {
    /// Status that a client would get.
    pub status: Status,
    /// Reason of the failure.
    pub reason: &'static str,
}

/// A response whose head has been received. The content is read piece by piece; dropping the response before
/// the end closes the connection.
pub struct FetchResponse<'p> {
    proxy: &'p BoundProxy,
    selection: Selection<'p>,
    status: Status,
    fields: Fields,
    length: Option<u64>,
    /// The request; `None` after the end or a failure.
    request: Option<UpstreamRequest>,
    /// Remaining bytes of content that may be read.
    left_bytes: u64,
}

impl Default for FetchLimits {
    fn default() -> FetchLimits {
        FetchLimits { body_bytes_max: 1024 * 1024, total: Millis(60_000) }
    }
}

impl FetchRequest {
    /// Creates a request with these fields and this body, from a sender without an address. `fields` must not
    /// contain framing fields.
    ///
    /// # Errors
    /// The method, target, authority or a field is not valid in a request.
    pub fn new(
        method: &str,
        authority: &str,
        target: &str,
        fields: &Fields,
        body: Vec<u8>,
    ) -> Result<FetchRequest, Reject> {
        let mut bytes = format!("{method} {target} HTTP/1.1\r\nHost: {authority}\r\n").into_bytes();
        bytes.extend_from_slice(fields.as_bytes());
        bytes.extend_from_slice(b"\r\n");
        let mut head = RequestHead::default();
        let is_whole = head.parse(&bytes, &http::Limits::default())? && head.len == bytes.len();
        if !is_whole || head.body != BodySize::None {
            return Err(Reject::bad_request("the request is not a head alone"));
        }
        let no_one = Peer::Unix;
        let client = Client::direct(no_one, false);
        Ok(FetchRequest::build(
            &head,
            bytes,
            no_one,
            client,
            EmptySegments::default(),
            RequestIds::default(),
            body,
        ))
    }

    /// Copies a client's request, with this body instead of its own. Data about the client's TLS connection
    /// is not copied; variables for it are empty.
    #[must_use]
    pub fn of(request: &Request<'_>, body: Vec<u8>) -> FetchRequest {
        let HeadRef { head, bytes } = request.head();
        let spans = head.fields.iter().flat_map(|field| [field.name, field.value]);
        let lines = [head.method_name, head.target.whole, head.sent_target, head.authority];
        let end = spans.chain(lines).map(Span::end).max();
        let bytes = bytes[..end.unwrap_or(0)].to_vec();
        let (empty_segments, ids) = (request.empty_segments(), request.ids());
        let (peer, client) = (request.peer(), request.client());
        let asked = FetchRequest::build(head, bytes, peer, client, empty_segments, ids, body);
        FetchRequest { user: request.shared_user(), ..asked }
    }

    /// Replaces the body.
    pub fn set_body(&mut self, body: Vec<u8>) {
        self.head.body = body_size(&body);
        self.body = body;
    }

    /// Attributes the request to a client's request: takes over its address and ids, and trusts the fields of
    /// this request that name a client (`X-Forwarded-For` and the like).
    #[must_use]
    pub fn on_behalf_of(mut self, request: &Request<'_>) -> FetchRequest {
        self.peer = request.peer();
        self.client = Client { trusted_dialect: Some(Dialect::XForwarded), ..request.client() };
        self.ids = request.ids();
        self
    }

    /// Passes a client's request on in its place, to a server that knows so: with the same address, trust and ids.
    #[must_use]
    pub fn in_place_of(mut self, request: &Request<'_>) -> FetchRequest {
        (self.peer, self.client, self.ids) = (request.peer(), request.client(), request.ids());
        self
    }

    /// Marks the last field as one of this server, which clients may not send.
    #[must_use]
    pub fn with_own_last_field(mut self) -> FetchRequest {
        self.head.own_fields_at = self.head.fields.iter().next_back().map_or(0, |field| field.name.start());
        self
    }

    fn build(
        head: &Head,
        bytes: Vec<u8>,
        peer: Peer,
        client: Client,
        empty_segments: EmptySegments,
        ids: RequestIds,
        body: Vec<u8>,
    ) -> FetchRequest {
        let mut head = head.clone();
        head.body = body_size(&body);
        head.expects_continue = false;
        // A fetch cannot use a connection that has switched protocols.
        head.fields.retain(|field| field.id != Name::Upgrade);
        head.protocol = Span::EMPTY;
        FetchRequest { head, bytes, peer, client, empty_segments, ids, user: None, body }
    }
}

fn body_size(body: &[u8]) -> BodySize {
    if body.is_empty() { BodySize::None } else { BodySize::Known(body.len() as u64) }
}

impl Requester for FetchRequest {
    fn context<'x>(&'x self, upstream: &'x str) -> TemplateContext<'x> {
        TemplateContext {
            head: &self.head,
            bytes: &self.bytes,
            peer: self.peer,
            client: self.client,
            tls: None,
            empty_segments: self.empty_segments,
            ids: self.ids,
            user: self.user.as_deref(),
            upstream,
            custom_variables: None,
        }
    }

    fn method(&self) -> Method {
        self.head.method
    }

    fn has_response_begun(&self) -> bool {
        false
    }

    fn poll_disconnected(&self, _: &Context<'_>) -> bool {
        false
    }

    fn endpoints(&self) -> Option<Endpoints> {
        None
    }
}

impl BoundProxy {
    /// Sends a request to a server of the group like a client's request: with the route's rules for request
    /// heads, timeouts and retries. The response is returned as the server sent it, without hop-by-hop
    /// fields. May be dropped at any time.
    ///
    /// # Errors
    /// No server answered with a valid response head.
    pub async fn fetch(
        &self,
        request: &FetchRequest,
        limits: &FetchLimits,
    ) -> Result<FetchResponse<'_>, FetchError> {
        if matches!(request.method(), Method::Connect | Method::Trace) {
            let reason = "this method is not passed on";
            return Err(FetchError { status: Status::METHOD_NOT_ALLOWED, reason });
        }
        let context = request.context("");
        if self.has_no_forwards_left(HeadRef::new(context.head, context.bytes)) {
            let reason = "Max-Forwards allows no further server";
            return Err(FetchError { status: Status::NO_CONTENT, reason });
        }
        if self.rules.request.is_loop(&context) {
            return Err(FetchError { status: Status::LOOP_DETECTED, reason: LOOP_REASON });
        }
        let mut attempts = self.new_attempts(ReplayBuffer::default(), None);
        let total_by = self.group.core.now() + limits.total;
        attempts.deadline = attempts.deadline.min(total_by);
        loop {
            let (selection, is_new) = self.select(request, &mut attempts).await?;
            let failure = match self.send(request, &selection, &mut attempts, is_new).await {
                Ok(sent) => {
                    let response = FetchResponse::new(self, selection, sent, request, limits);
                    return response
                        .map_err(|reject| FetchError::of(&AttemptFailure::Invalid(reject.reason)));
                }
                Err(failure) => failure,
            };
            if !self.record_and_decide(request, selection, &failure, &mut attempts) {
                return Err(FetchError::of(&failure));
            }
            if self.has_to_wait(&attempts) {
                self.wait_for_retry(request, &attempts).await;
            }
        }
    }

    /// Makes one attempt, up to the response head.
    async fn send(
        &self,
        request: &FetchRequest,
        selection: &Selection<'_>,
        attempts: &mut Attempts<'_>,
        is_new: bool,
    ) -> Result<UpstreamRequest, AttemptFailure> {
        let group = &self.group;
        let options = &self.rules.options;
        attempts.count += u32::from(!is_new);
        let connect_by = self.connect_deadline(attempts);
        let _in_use = group.track_request(selection.server);
        let (server, cgi) = (selection.server, CgiRequest::default());
        let attempt = UpstreamAttempt { server, awaits_continue: false, is_new, cgi };
        let reached = self.open_upstream(request, &attempt, connect_by).await?;
        let OpenedUpstream { mut side, concurrent_task: room, .. } = reached;
        let asked_us = group.core.now_us();
        let reused = side.is_reused();
        if !request.body.is_empty() {
            side.add(&request.body);
            side.finish(Fields::new);
        }
        let bounds = RequestBounds {
            limits: options.head_limits,
            head_timeout: options.timeouts.head,
            between: options.timeouts.between,
            deadline: attempts.deadline,
        };
        let mut sent = UpstreamRequest::new(side, request.method(), bounds);
        run_concurrently(&room, pin!(sent.read_head())).await?;
        if self.may_repeat(request) && sent.side().is_idle_timeout() {
            return Err(AttemptFailure::Stale);
        }
        let status = sent.head().0.status;
        if options.retry.statuses.contains(&status) && self.may_retry(request, attempts) {
            return Err(AttemptFailure::RetryableStatus(status));
        }
        drop(room);
        group.record_response_head(selection, status, group.core.now_us() - asked_us, reused);
        Ok(sent)
    }
}

impl<'p> FetchResponse<'p> {
    fn new(
        proxy: &'p BoundProxy,
        selection: Selection<'p>,
        sent: UpstreamRequest,
        request: &FetchRequest,
        limits: &FetchLimits,
    ) -> Result<FetchResponse<'p>, Reject> {
        let (head, bytes) = sent.head();
        let named = response::named_by_connection(head, bytes)?;
        let mut fields = Fields::new();
        for field in head.fields.iter().filter(|field| !field.id.is_framing()) {
            let name = field.name.of(bytes);
            if !is_named(&named, name) {
                fields.try_push(name, field.value.of(bytes)).expect("a field that was read is valid");
            }
        }
        let length = match head.body_length(request.method()) {
            Length::Known(length) => Some(length),
            Length::Unknown => None,
        };
        let status = head.status;
        let left_bytes = limits.body_bytes_max;
        Ok(FetchResponse { proxy, selection, status, fields, length, request: Some(sent), left_bytes })
    }

    /// Returns the status.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status
    }

    /// Returns the fields, without hop-by-hop fields.
    #[must_use]
    pub fn fields(&self) -> &Fields {
        &self.fields
    }

    /// Returns the length of the content in bytes, if the head announces it; for HEAD, the length that GET
    /// would have.
    #[must_use]
    pub fn length(&self) -> Option<u64> {
        self.length
    }

    /// Waits for the next piece of content; `None` at the end. Cancel-safe: may be dropped at any time and
    /// called again.
    ///
    /// # Errors
    /// The content exceeds the limit or is incomplete. Further calls return `None`.
    pub async fn read(&mut self) -> Result<Option<&[u8]>, FetchError> {
        let Some(request) = &mut self.request else { return Ok(None) };
        match request.read_piece().await {
            Ok(true) => {}
            Ok(false) => {
                self.finish();
                return Ok(None);
            }
            Err(failure) => {
                self.request = None;
                self.proxy.group.record_failure(&self.selection, &failure);
                return Err(FetchError::of(&failure));
            }
        }
        let Some(left_bytes) = self.left_bytes.checked_sub(request.data().len() as u64) else {
            self.request = None;
            let reason = "the response is longer than may be read";
            return Err(FetchError { status: Status::BAD_GATEWAY, reason });
        };
        self.left_bytes = left_bytes;
        Ok(self.request.as_ref().map(UpstreamRequest::data))
    }

    /// Ends a complete response and keeps its connection.
    fn finish(&mut self) {
        let Some(request) = self.request.take() else { return };
        let (side, sent_whole) = request.into_side();
        self.proxy.group.record_success(&self.selection);
        self.proxy.group.put_back(side, self.selection.server, sent_whole);
    }
}

impl FetchError {
    fn of(failure: &AttemptFailure) -> FetchError {
        let (status, reason) = match failure {
            AttemptFailure::NotUpstream(net::Fault::Reject(reject)) => (reject.status, reject.reason),
            failure => retry::error_response(failure),
        };
        FetchError { status, reason }
    }
}

impl From<SelectError> for FetchError {
    fn from(error: SelectError) -> FetchError {
        match error {
            SelectError::NoServer(no_server) => {
                FetchError { status: no_server.status, reason: no_server.reason }
            }
            // Not reached: a fetch has no client that can leave.
            SelectError::ClientDisconnected => {
                FetchError::of(&AttemptFailure::NotUpstream(net::Fault::Disconnected))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fetch_request_with_injected_bytes_is_rejected() {
        let fields = |name: &[u8], value: &[u8]| {
            let mut fields = Fields::new();
            fields.try_push(name, value).map(|()| fields)
        };
        let none = Fields::new();
        assert!(FetchRequest::new("GET", "a.test", "/x?y", &none, Vec::new()).is_ok());
        for (method, authority, target) in [
            ("GET", "a.test", "/ HTTP/1.1\r\nX: y\r\n\r\nGET /evil"),
            ("GET", "a.test\r\nX: y", "/ HTTP/1.0"),
            ("GET", "a.test\r\n\r\nGET / HTTP/1.1", "/"),
            ("GET /evil HTTP/1.1\r\n", "a.test", "/"),
            ("GET", "a.test", "no path"),
            ("GET", "a b", "/"),
        ] {
            let request = FetchRequest::new(method, authority, target, &none, Vec::new());
            assert!(request.is_err(), "{method:?} {authority:?} {target:?}");
        }
        let framed = fields(b"Content-Length", b"5").expect("a valid field");
        assert!(FetchRequest::new("POST", "a.test", "/", &framed, b"hello".to_vec()).is_err());
        assert!(fields(b"X", b"a\r\nb").is_err());
    }
}
