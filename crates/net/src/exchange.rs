//! A request and its response, as seen by a handler.

use std::any::Any;
use std::borrow::Cow;
use std::fs::File;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use http::encode::FieldWriter;
use http::template::CustomVariables;
use http::{BodySize, Dialect, Fields, HeadRef, Length, Name, Reject, Status};
use times::Millis;

use crate::address::{Client, Peer};
use crate::amended_request::AmendedHead;
use crate::bandwidth::BandwidthLimit;
use crate::compress::{COMPRESSED_BYTES, COMPRESSED_WEIGHT, CompressionInput};
use crate::core::Core;
use crate::detached::{self, DetachedRequest};
use crate::fault::Fault;
use crate::file::{FileSpan, FileStorage};
use crate::filters::{DefaultFields, FieldEdits, HeadTap, UpgradeTap};
use crate::grpc;
use crate::lane::Lane;
use crate::memory::Pressure;
use crate::named_file::NamedFile;
use crate::notes::RequestNotes;
use crate::page::ErrorPages;
use crate::replace::{REPLACED_BYTES, REPLACED_WEIGHT};
use crate::request::Request;
use crate::request_state::{self, Interception, ReplyState, RequestState, VerifiedUser};
use crate::routed::{RequestContext, RouteLimits};

/// Status logged for a client that disconnected before its response began, as in nginx. Never sent.
const CLIENT_GONE: Status = Status::of(499).expect("three digits");
/// Bytes read from a file at once when its content is filtered.
const FILE_BYTES: usize = 64 * 1024;
/// The port of URLs without one.
const HTTPS_PORT: u16 = 443;
/// End of `Alt-Svc` after the port: how long, in seconds, clients may use HTTP/3 without asking over TCP.
const ALTERNATIVE_PARAMETERS: &[u8] = b"\"; ma=86400";

/// A request and its response. The handler pulls the body with [`Exchange::read`], responds with
/// [`Exchange::begin`] and [`Exchange::write`] (or [`Exchange::reply`]), and returns. The server is
/// responsible for framing, connection handling and the fields `Date`, `Server`, `Content-Length`,
/// `Transfer-Encoding` and `Connection`. Handlers need not know the HTTP version.
pub struct Exchange<'c> {
    pub(crate) state: &'c mut RequestState,
    pub(crate) lane: Lane<'c>,
}

impl<'c> Exchange<'c> {
    pub(crate) fn new(state: &'c mut RequestState, lane: Lane<'c>) -> Exchange<'c> {
        Exchange { state, lane }
    }

    /// Returns the request head.
    #[must_use]
    pub fn request(&self) -> Request<'_> {
        Request::of(self.state, self.lane.head())
    }

    /// Returns the engine that runs this exchange: its clock, timers and blocking threads.
    #[must_use]
    pub fn core(&self) -> &Core {
        self.lane.core()
    }

    /// Sets the memory that the handler itself holds for this request, in bytes, until the next call or until
    /// the handler returns. Call it before a wait.
    pub fn hold(&mut self, bytes: usize) {
        self.state.handler_bytes = bytes;
        self.update_memory();
    }

    /// Updates the memory accounting of the request.
    pub(crate) fn update_memory(&mut self) {
        let amended = self.state.amended.as_ref().map_or(0, |amended| amended.weight_bytes());
        let copied = self.state.body_copy.as_ref().map_or(0, |copy| copy.bytes_max());
        let held = self.state.handler_bytes + self.state.filters.weight_bytes() + amended + copied;
        self.lane.hold(held);
    }

    /// Sets the client as reported by a trusted peer's fields.
    pub fn set_client(&mut self, address: Peer, is_secure: bool, dialect: Dialect) {
        self.state.client = Client { address, is_secure, trusted_dialect: Some(dialect) };
    }

    /// Treats the request as one that another server of the set has got from this peer and client. The TLS session of the
    /// connection is not the client's.
    pub fn stand_in(&mut self, peer: Peer, client: Client) {
        (self.state.peer, self.state.client) = (peer, client);
        self.state.tls = None;
    }

    /// Removes fields of the request, in any spelling that applications may treat as equivalent, and adds
    /// others, as seen by upstream servers, applications, the cache and the log. Trailers lose them too.
    pub fn amend(&mut self, removed: &[Vec<u8>], own: &Fields) {
        let amended = AmendedHead::new(self.request().head(), removed, own);
        let amended = amended.inherit_removed(self.state.amended.as_deref());
        self.state.amended = Some(Box::new(amended));
        self.update_memory();
    }

    /// Replaces the path and query of the request by a target in origin-form, percent-encoded.
    /// [`Head::sent_target`](http::Head::sent_target) remains the client's.
    ///
    /// # Panics
    /// Panics if `target` is not valid in a request line.
    pub fn rewrite_target(&mut self, target: &[u8]) {
        assert!(
            target.starts_with(b"/") && http::scan::target_len(target) == target.len(),
            "a target's bytes"
        );
        let amended = AmendedHead::with_target(self.request().head(), target);
        let amended = amended.inherit_removed(self.state.amended.as_deref());
        self.state.amended = Some(Box::new(amended));
        self.update_memory();
    }

    /// Sets the variables that the configuration defines, for templates expanded after this call.
    pub fn set_custom_variables(&mut self, values: Rc<dyn CustomVariables>) {
        self.state.custom_variables = Some(values);
    }

    /// Marks the request as authorized by its sender's identity: see [`Request::is_authorized`].
    pub fn set_authorized(&mut self) {
        self.state.is_authorized = true;
    }

    /// Sets the authenticated user, unless the name is not a valid field value (RFC 9110 section 5.5).
    pub fn set_user(&mut self, name: &[u8], scheme: &'static str) {
        let is_text = |byte: &u8| *byte >= b' ' && *byte != 0x7f;
        if !name.is_empty() && name.iter().all(is_text) {
            self.state.user = Some(Rc::new(VerifiedUser { name: name.to_vec(), scheme }));
        }
    }

    /// Sets what the site of the request determines for all of its routes.
    pub fn set_context(&mut self, context: RequestContext) {
        let RequestContext { error_pages: pages, empty_segments, ids, custom_variables: own_values } =
            context;
        self.state.error_pages = Some(pages);
        self.state.empty_segments = empty_segments;
        self.state.ids = ids;
        self.state.custom_variables = own_values;
    }

    /// Applies the limits of the request's route.
    ///
    /// # Errors
    /// Fails with 413 if the announced length of the body exceeds the limit.
    pub fn apply_limits(&mut self, limits: &RouteLimits) -> Result<(), Fault> {
        self.set_compression(limits.compression.clone());
        self.limit_body(limits.body_bytes_max)?;
        self.set_timeouts(limits.body_timeout, limits.write_timeout);
        Ok(())
    }

    /// Keeps a value (a permit of a limit) alive until the response was sent or the client is gone.
    pub fn keep_until_sent(&mut self, value: Rc<dyn Any>) {
        self.state.kept_until_sent = Some(Rc::new((self.state.kept_until_sent.take(), value)));
    }

    /// Keeps a value alive until the handler is done; `None` releases it earlier.
    pub fn set_handler_permit(&mut self, permit: Option<Rc<dyn Any>>) {
        self.state.handler_permit = permit;
    }

    /// Returns the values kept for this request, for a worker that continues without the client.
    #[must_use]
    pub fn permits(&self) -> [Option<Rc<dyn Any>>; 2] {
        [self.state.kept_until_sent.clone(), self.state.handler_permit.clone()]
    }

    /// Adds fields to the response, in addition to those that the edits add.
    pub fn add_fields(&mut self, fields: &Fields) {
        let edits = self.state.filters.edits.get_or_insert_default();
        Rc::make_mut(edits).add.extend(fields);
    }

    /// Adds fields to the response and removes all others named in `replaced`.
    pub fn replace_fields(&mut self, replaced: &[&str], fields: &Fields) {
        let edits = Rc::make_mut(self.state.filters.edits.get_or_insert_default());
        replaced.iter().for_each(|name| edits.replace(name.as_bytes()));
        edits.add.extend(fields);
    }

    /// Sets the edits to the response's fields.
    pub fn set_edits(&mut self, edits: Option<Rc<FieldEdits>>) {
        self.state.filters.edits = edits;
    }

    /// Returns the fields of a response after the edits.
    #[must_use]
    pub fn edited<'f>(&self, fields: &'f Fields) -> Cow<'f, Fields> {
        match &self.state.filters.edits {
            Some(edits) => Cow::Owned(edits.apply(fields)),
            None => Cow::Borrowed(fields),
        }
    }

    /// Adds `Server-Timing` to the response, with the durations known when its head is sent.
    pub fn add_server_timing(&mut self) {
        self.state.filters.shows_timing = true;
    }

    /// Sets the observer of a protocol switch ([`Exchange::upgrade`], [`Exchange::take_over`]).
    pub fn set_upgrade_tap(&mut self, tap: Rc<dyn UpgradeTap>) {
        self.state.upgrade_tap = Some(tap);
    }

    /// Appends an observer of the response head.
    pub fn set_tap(&mut self, tap: Box<dyn HeadTap>) {
        self.state.filters.add_tap(tap);
    }

    /// Copies the request without its connection, its body and any `Upgrade` field.
    #[must_use]
    pub fn detach(&self) -> DetachedRequest {
        let (head, bytes) = detached::copy_head(self.request().head());
        DetachedRequest {
            head,
            bytes,
            peer: self.state.peer,
            client: self.state.client,
            tls: self.state.tls.clone(),
            empty_segments: self.state.empty_segments,
            preserves_empty_segments: self.state.preserves_empty_segments,
            ids: self.state.ids,
            user: self.state.user.clone(),
            custom_variables: self.state.custom_variables.clone(),
            error_pages: self.state.error_pages.clone(),
            local_address: self.lane.local_address(),
            body_timeout: self.lane.body_timeout(),
            write_timeout: self.lane.stall_timeout(),
            context: self.lane.context().clone(),
        }
    }

    /// Sets the label under which the request is counted: [`crate::RequestRecord::label`].
    pub fn set_label(&mut self, label: usize) {
        self.state.label = label;
    }

    /// Returns the notes that are reported with the request: [`crate::RequestRecord::notes`].
    pub fn notes(&mut self) -> &mut RequestNotes {
        &mut self.state.notes
    }

    /// Permits the handler to name a file instead of sending a response.
    pub fn permit_named_file(&mut self) {
        self.state.may_name_file = true;
    }

    /// Whether the handler may name a file instead of sending a response: [`Exchange::name_file`].
    #[must_use]
    pub fn may_name_file(&self) -> bool {
        self.state.may_name_file && self.state.reply == ReplyState::Unsent
    }

    /// Names a file to send as the response. Anything that the handler writes afterwards is dropped.
    ///
    /// # Panics
    /// Panics if [`Exchange::may_name_file`] is false.
    pub fn name_file(&mut self, file: NamedFile) {
        assert!(self.may_name_file(), "a file is named in place of a response");
        self.state.named_file = Some(Box::new(file));
        self.state.reply = ReplyState::Suppressed;
    }

    /// Takes the file that the handler has named. The handler must have ended; a response can then be sent.
    pub fn take_named_file(&mut self) -> Option<NamedFile> {
        let file = self.state.named_file.take()?;
        if let Lane::Detached(lane) = &self.lane {
            lane.sink.note_named_file();
        }
        (self.state.reply, self.state.may_name_file) = (ReplyState::Unsent, false);
        Some(*file)
    }

    /// Forbids caches to store the response, because other clients might not get it.
    pub fn forbid_storing(&self) {
        if let Lane::Detached(lane) = &self.lane {
            lane.sink.forbid_storing();
        }
    }

    /// Sets the generator of error pages for [`Exchange::refuse`], in place of
    /// [`crate::Service::error_pages`].
    pub fn set_error_pages(&mut self, error_pages: Rc<dyn ErrorPages>) {
        self.state.error_pages = Some(error_pages);
    }

    /// Sets this request's progress timeouts, in milliseconds: between two pieces of the body, and for
    /// sending while the client accepts no bytes of the response.
    pub fn set_timeouts(&mut self, body_timeout: Millis, write_timeout: Millis) {
        self.lane.set_timeouts(body_timeout, write_timeout);
    }

    /// Limits the rate of the response until its end. An upgrade ends the limit: tunnels have none.
    pub fn limit_bandwidth(&mut self, bandwidth: &BandwidthLimit) {
        self.lane.limit_bandwidth(bandwidth);
    }

    /// Sets the maximum body size, in place of [`crate::Limits::body_bytes_max`]. No effect after the first
    /// read.
    ///
    /// # Errors
    /// Fails with 413 if the announced length exceeds the limit.
    pub fn limit_body(&mut self, bytes_max: u64) -> Result<(), Fault> {
        Ok(self.lane.limit_body(bytes_max)?)
    }

    /// Returns the next piece of the request body; `None` at its end. The first call sends `100 Continue` if
    /// the client waits for it.
    ///
    /// # Errors
    /// Invalid framing, a body above the limit, a timeout, a disconnect. The handler must return it.
    pub async fn read(&mut self) -> Result<Option<&[u8]>, Fault> {
        match self.lane.body_piece(self.state.reply != ReplyState::Unsent).await? {
            Some((start, end)) => {
                let piece = self.lane.slice(start, end);
                self.state.count_read(piece);
                Ok(Some(piece))
            }
            None => {
                self.state.finish_body_copy();
                Ok(None)
            }
        }
    }

    /// Returns the trailer fields of the request, after [`Exchange::read`] has returned `None`.
    #[must_use]
    pub fn trailers(&self) -> Option<Cow<'_, Fields>> {
        let trailers = self.lane.trailers()?;
        Some(match &self.state.amended {
            None => Cow::Borrowed(trailers),
            Some(amended) => amended.trailers(trailers),
        })
    }

    /// Whether the response head was sent, so that only its body can follow.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.state.reply != ReplyState::Unsent
    }

    /// Begins the response. `fields` must not contain framing fields; `length` is the length of the body that
    /// follows (for HEAD: would follow).
    ///
    /// # Panics
    /// Panics if a response has already begun.
    pub fn begin(&mut self, status: Status, fields: &Fields, length: Length) {
        self.begin_filtered(status, fields, length, DefaultFields::default());
    }

    /// Begins the response after applying the filters to its fields.
    pub(crate) fn begin_filtered(
        &mut self,
        status: Status,
        fields: &Fields,
        mut length: Length,
        mut own: DefaultFields,
    ) {
        if self.intercepts(status) {
            return self.intercept(status, fields);
        }
        if !self.state.filters.may_change_head() {
            return self.send_head(status, length, own, |lines| lines.push_encoded(fields.as_bytes()));
        }
        let encoders = (self.core().memory().pressure() < Pressure::High).then(|| self.lane.encoders());
        let HeadRef { head, bytes } = self.lane.head();
        let request = CompressionInput { head, bytes, secure: self.state.client.is_secure };
        let mut fields =
            self.state.filters.filter_head(&request, status, fields, &mut length, &mut own, encoders);
        if self.state.filters.changes_body() {
            self.update_memory();
        }
        if self.state.filters.shows_timing {
            let total_us = self.core().now_us().saturating_sub(self.state.started_us);
            let value = self.state.notes.server_timing(total_us);
            fields.to_mut().try_push(b"Server-Timing", value.as_bytes()).expect("digits and names");
        }
        self.send_head(status, length, own, |lines| lines.push_encoded(fields.as_bytes()));
    }

    /// Sends the head.
    pub(crate) fn send_head(
        &mut self,
        status: Status,
        length: Length,
        own: DefaultFields,
        lines: impl FnOnce(&mut FieldWriter<'_>),
    ) {
        assert!(self.state.reply == ReplyState::Unsent, "a response begins once");
        let status = self.lane.final_status(status);
        let body = match self.http3_port() {
            None => self.lane.begin(status, length, own, lines),
            Some(port) => self.lane.begin(status, length, own, |writer| {
                lines(writer);
                writer.begin(b"Alt-Svc");
                writer.part(b"h3=\":");
                writer.number(u64::from(port));
                writer.part(ALTERNATIVE_PARAMETERS);
                writer.end();
            }),
        };
        let now_us = self.core().now_us();
        self.state.record_head(now_us, status, body);
    }

    /// Returns the port at which the client is told to use HTTP/3 (RFC 7838): the one of the request, which is
    /// the public one where packets are forwarded.
    fn http3_port(&self) -> Option<u16> {
        if self.state.tls.is_none() || !self.lane.may_switch_to_http3(self.state.listener_key) {
            return None;
        }
        if self.state.filters.edits.as_ref().is_some_and(|edits| edits.changes(b"alt-svc")) {
            return None;
        }
        let head = self.lane.head();
        let authority = head.authority.of(head.bytes);
        let port = authority.rsplit(|&byte| byte == b':').next().filter(|port| port.len() < authority.len());
        let port = port.and_then(|port| std::str::from_utf8(port).ok()?.parse().ok());
        Some(port.unwrap_or(HTTPS_PORT))
    }

    /// Whether the response has content that the client gets: not for HEAD, 204 and 304.
    #[must_use]
    pub fn wants_content(&self) -> bool {
        !matches!(
            self.state.reply,
            ReplyState::Body(BodySize::None) | ReplyState::Done | ReplyState::Suppressed
        )
    }

    /// Writes a piece of the response body. Content that the client does not get (HEAD) is dropped.
    ///
    /// # Errors
    /// The client has disconnected or has read nothing for too long; more was written than announced.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        if self.state.filters.replacing.is_none() {
            return self.write_replaced(bytes).await;
        }
        // Boxed, because few routes replace anything.
        Box::pin(self.write_replacing(bytes)).await
    }

    async fn write_replacing(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        for piece in bytes.chunks(REPLACED_BYTES) {
            let Some(replacing) = &mut self.state.filters.replacing else { break };
            let replaced = replacing.write(piece)?;
            self.lane.count_moved(piece.len() * REPLACED_WEIGHT);
            self.write_replaced(&replaced).await?;
            self.lane.consume_budget(0).await;
        }
        Ok(())
    }

    /// Writes body bytes that have passed the replacement filter.
    async fn write_replaced(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        if self.state.filters.compressing.is_none() {
            return self.send_filtered(bytes).await;
        }
        for piece in bytes.chunks(COMPRESSED_BYTES) {
            self.lane.count_moved(piece.len() * COMPRESSED_WEIGHT);
            let compressed = self.state.filters.compress_piece(piece)?;
            self.send_filtered(compressed.as_deref().unwrap_or(piece)).await?;
            self.lane.consume_budget(0).await;
        }
        Ok(())
    }

    /// Writes body bytes that have passed all filters.
    async fn send_filtered(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        if let Some(after) = self.state.count_body(bytes.len() as u64)? {
            self.lane.send(bytes).await?;
            self.state.reply = ReplyState::Body(after);
        }
        Ok(())
    }

    /// Like [`Exchange::write`], for bytes in shared memory: a large piece is sent without copying it.
    ///
    /// # Errors
    /// See [`Exchange::write`].
    pub async fn write_shared(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        if self.state.filters.changes_body() {
            return self.write(bytes).await;
        }
        if let Some(after) = self.state.count_body(bytes.len() as u64)? {
            self.lane.send_in_place(bytes).await?;
            self.state.reply = ReplyState::Body(after);
        }
        Ok(())
    }

    /// Sends everything written so far. For handlers that wait before they write more.
    ///
    /// # Errors
    /// See [`Exchange::write`].
    pub async fn flush(&mut self) -> Result<(), Fault> {
        self.flush_filters()?;
        self.lane.flush().await
    }

    /// Writes a range of a file to the response body; over cleartext HTTP/1, the kernel sends it without
    /// copying. The length of the body must have been announced. Trailers cannot follow a file.
    ///
    /// # Errors
    /// See [`Exchange::write`]; [`Fault::Failed`] if the file is shorter than the range.
    pub async fn write_file(&mut self, file: &Arc<File>, range: Range<u64>) -> Result<(), Fault> {
        self.write_span(FileSpan::new(file, range, FileStorage::Disk)).await
    }

    /// Like [`Exchange::write_file`], for a file in memory (memfd), which is read without another thread.
    ///
    /// # Errors
    /// See [`Exchange::write_file`].
    pub async fn write_memory(&mut self, file: &Arc<File>, range: Range<u64>) -> Result<(), Fault> {
        self.write_span(FileSpan::new(file, range, FileStorage::Memory)).await
    }

    async fn write_span(&mut self, span: FileSpan<'_>) -> Result<(), Fault> {
        let after = match self.state.reply {
            ReplyState::Body(BodySize::None) | ReplyState::Suppressed => return Ok(()),
            _ if self.state.filters.changes_body() => return self.filter_file(span).await,
            ReplyState::Body(size @ BodySize::Known(_)) => request_state::remaining_after(size, span.len)?,
            _ => return Err(Fault::Failed("a file needs an announced length")),
        };
        // Counted while it is sent, because the client may disconnect in the middle.
        let is_last = after == BodySize::None;
        self.lane.send_file(span, is_last, &mut self.state.body_sent).await?;
        self.state.reply = ReplyState::Body(after);
        Ok(())
    }

    /// Writes a range of a file through the filters. Uncached parts are read on a blocking thread.
    async fn filter_file(&mut self, mut span: FileSpan<'_>) -> Result<(), Fault> {
        let own_bytes = self.state.handler_bytes + self.state.filters.weight_bytes();
        self.lane.hold(own_bytes + span.len.min(FILE_BYTES as u64) as usize);
        while let Some(bytes) = span.next(self.lane.core(), FILE_BYTES).await? {
            self.write(&bytes).await?;
        }
        self.update_memory();
        Ok(())
    }

    /// Sends a complete response.
    ///
    /// # Errors
    /// See [`Exchange::write`].
    pub async fn reply(&mut self, status: Status, fields: &Fields, body: &[u8]) -> Result<(), Fault> {
        self.begin(status, fields, Length::Known(body.len() as u64));
        if self.wants_content() {
            self.write(body).await?;
        }
        Ok(())
    }

    /// Sends the site's error page for this status and reason.
    ///
    /// # Errors
    /// See [`Exchange::write`].
    pub async fn refuse(&mut self, status: Status, reason: &'static str) -> Result<(), Fault> {
        self.refuse_with(status, reason, &Fields::new()).await
    }

    /// Sends an error page with additional fields (`Allow`, `Retry-After`).
    ///
    /// # Errors
    /// See [`Exchange::write`].
    pub async fn refuse_with(
        &mut self,
        status: Status,
        reason: &'static str,
        more: &Fields,
    ) -> Result<(), Fault> {
        self.state.notes.refusal = Some(reason);
        if self.intercepts_page(status) {
            self.intercept(status, more);
            return Ok(());
        }
        self.lane.mark_own_error();
        self.state.interception = Interception::Off;
        if self.request().is_grpc_call() {
            // gRPC clients expect the error in `grpc-status`, not in the HTTP status.
            let mut fields = grpc::error(status, reason);
            fields.extend(more);
            return self.reply(Status::OK, &fields, b"").await;
        }
        let pages = self.state.error_pages.as_ref().unwrap_or(self.lane.error_pages()).clone();
        let page = pages.page(status, reason, self.request().field(Name::Accept));
        let mut fields = Fields::new();
        fields.push(Name::ContentType, page.content_type.as_bytes());
        fields.extend(more);
        self.reply(status, &fields, &page.body).await
    }

    /// Ends the response with trailer fields, which only the chunked coding can carry in HTTP/1. Without this
    /// call, the response ends when the handler returns.
    ///
    /// # Errors
    /// [`Fault::Failed`] if less was written than announced.
    pub fn end(&mut self, trailers: &Fields) -> Result<(), Fault> {
        self.finish_filters()?;
        let is_under_way = matches!(self.state.reply, ReplyState::Body(_));
        self.state.end()?;
        if is_under_way {
            self.lane.finish(trailers);
        }
        Ok(())
    }

    /// Answers a request for which no memory is available, then closes the connection.
    pub(crate) async fn refuse_for_memory(&mut self) -> Result<(), Fault> {
        self.core().memory().count_refused();
        self.end_interception();
        self.lane.close_after_response();
        let mut later = Fields::new();
        later.push(Name::RetryAfter, b"2");
        self.refuse_with(Status::SERVICE_UNAVAILABLE, "the server is short of memory", &later).await
    }

    /// Answers a request whose handler failed before its response. Returns false if nothing can be sent.
    pub(crate) async fn answer_fault(&mut self, fault: &Fault) -> bool {
        let reject = match fault {
            Fault::Disconnected | Fault::MuxError { .. } => {
                self.state.status = CLIENT_GONE;
                return false;
            }
            Fault::Reject(reject) => *reject,
            Fault::Timeout => Reject::new(Status::REQUEST_TIMEOUT, "the request body took too long"),
            Fault::Failed(_) | Fault::Io(_) => {
                Reject::new(Status::INTERNAL_SERVER_ERROR, "the server could not answer")
            }
        };
        self.refuse_and_close(reject).await.and_then(|()| self.end(&Fields::new())).is_ok()
    }

    /// Answers a faulty request with the status and reason of `reject`, then closes the connection.
    pub(crate) async fn refuse_and_close(&mut self, reject: Reject) -> Result<(), Fault> {
        self.end_interception();
        self.lane.close_after_response();
        self.refuse(reject.status, reject.reason).await
    }
}
