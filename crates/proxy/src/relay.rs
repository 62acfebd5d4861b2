//! Relays one request and its response between a client and an upstream connection, in both directions at
//! once.

use http::{BodySize, Method, Name, Status, scan};
use std::sync::Arc;
use times::Moment;

use net::{
    BodyPiece, Exchange, Fault, NamedFile, PIECE_WEIGHT_BYTES, Pressure, SPILL_BLOCK_BYTES, SpillError,
    SpillQuota, websocket,
};

use crate::failure::AttemptFailure;
use crate::options::RouteOptions;
use crate::replay_buffer::ReplayBuffer;
use crate::request::{RequestRules, SEC_WEBSOCKET_ACCEPT, SentHead, client_key};
use crate::response::{self, INTERIM_MAX, ResponseRules};
use crate::template::TemplateContext;
use crate::upstream_side::{UpstreamSide, UpstreamStep};

mod deadlines;

/// Bytes of a request body gathered before they are sent.
const GATHERED_BYTES: usize = 16 * 1024;
/// Size of the blocks that are read from a stored body.
const STORED_BLOCK_BYTES: usize = 128 * 1024;
/// Bytes that one request moves before it yields to other tasks on the core.
const BYTES_PER_TURN: usize = 1024 * 1024;

/// Progress of the request body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestProgress {
    /// The client waits for `100 Continue`, which the upstream may send.
    Continue,
    /// The client is sending the body.
    Body,
    /// The body is in a file.
    Stored,
    /// The client has sent the whole body.
    Done,
    /// The upstream no longer reads the body.
    Abandoned,
}

/// Reason for which the relay stopped reading the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResponseProgress {
    /// The upstream has sent nothing more so far.
    NoInput,
    /// The client must read buffered bytes first.
    ClientFull,
    /// The response is complete.
    Done,
    /// The upstream has switched protocols.
    Upgraded,
}

/// Result of a successful relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RelayOutcome {
    /// The response is complete; true if the request is complete too.
    Complete(bool),
    /// The connection has become a tunnel.
    Upgraded,
}

/// Settings and callbacks of a relay.
pub(crate) struct RelayOptions<'p> {
    pub(crate) route: &'p RouteOptions,
    pub(crate) request: &'p RequestRules,
    pub(crate) response: &'p ResponseRules,
    /// `host[:port]` of the server.
    pub(crate) upstream: &'p str,
    /// Deadline of the whole request; [`Moment::NEVER`] for none.
    pub(crate) deadline: Moment,
    /// Value of a `Set-Cookie` field to add to the response.
    pub(crate) cookie: Option<&'p [u8]>,
    /// Whether a response whose status counts as a failure may still be retried on another server.
    pub(crate) may_retry: bool,
    /// Whether the relay ends when all announced content is sent although the server has not ended the
    /// response.
    pub(crate) lingers: bool,
    /// Limit of temporary files for responses; `None`: no such files.
    pub(crate) spill: Option<&'p Arc<SpillQuota>>,
    /// Called, at most once a minute, when a response cannot be written to a temporary file.
    pub(crate) on_spill_error: &'p dyn Fn(&SpillError),
    /// Called once, on the upstream's response head; returns the time it took, in microseconds.
    pub(crate) on_response_head: &'p dyn Fn(Status) -> u64,
}

/// The relay of one attempt.
pub(crate) struct Relay<'r, 'c> {
    exchange: &'r mut Exchange<'c>,
    side: &'r mut UpstreamSide,
    options: &'r RelayOptions<'r>,
    /// Request body read so far, kept for a retry.
    replay: &'r mut ReplayBuffer,
    method: Method,
    sent: SentHead,
    request_progress: RequestProgress,
    interims: u32,
    /// Time at which bytes were last sent to the upstream, read from the client and sent to the client.
    upstream_write_at: Moment,
    client_read_at: Moment,
    client_write_at: Moment,
    /// Time at which the client was found to have closed its sending side.
    half_closed_at: Option<Moment>,
    unsent: u64,
    /// Bytes moved since other tasks last ran.
    moved_bytes: usize,
    /// Whether the response names a file of this server, so that its own content is dropped.
    names_file: bool,
}

impl<'r, 'c> Relay<'r, 'c> {
    /// Creates a relay for a request whose head has been written.
    pub(crate) fn new(
        exchange: &'r mut Exchange<'c>,
        side: &'r mut UpstreamSide,
        plan: &'r RelayOptions<'r>,
        kept: &'r mut ReplayBuffer,
        sent: SentHead,
    ) -> Relay<'r, 'c> {
        let now = exchange.core().now();
        let request = exchange.request();
        let method = request.method();
        let body = request.body();
        let up = match body {
            BodySize::None => RequestProgress::Done,
            _ if sent.expects => RequestProgress::Continue,
            _ => RequestProgress::Body,
        };
        Relay {
            exchange,
            side,
            options: plan,
            replay: kept,
            method,
            sent,
            request_progress: up,
            interims: 0,
            upstream_write_at: now,
            client_read_at: now,
            client_write_at: now,
            half_closed_at: None,
            unsent: 0,
            moved_bytes: 0,
            names_file: false,
        }
    }

    /// Relays bytes until the response is complete.
    pub(crate) async fn run(&mut self) -> Result<RelayOutcome, AttemptFailure> {
        self.send_replay();
        loop {
            // The client may send its body without waiting for `100 Continue`.
            match self.request_progress {
                RequestProgress::Continue if !self.exchange.awaits_continue()? => self.begin_body(),
                // Boxed because it is rare.
                RequestProgress::Stored => Box::pin(self.send_stored()).await?,
                _ => {}
            }
            self.send_body()?;
            let waited = self.request_progress == RequestProgress::Continue;
            let down = self.receive_response().map_err(|failure| self.attribute(failure))?;
            match down {
                ResponseProgress::Done => return self.finish(),
                ResponseProgress::Upgraded => return Ok(RelayOutcome::Upgraded),
                ResponseProgress::NoInput | ResponseProgress::ClientFull
                    if waited && self.request_progress == RequestProgress::Body =>
                {
                    continue;
                }
                ResponseProgress::NoInput | ResponseProgress::ClientFull => {}
            }
            if self.moved_bytes >= BYTES_PER_TURN {
                self.moved_bytes = 0;
                self.release_memory();
                self.exchange.core().yield_now().await;
                self.check_deadline(down)?;
                continue;
            }
            if down == ResponseProgress::ClientFull && self.spill().await? {
                continue;
            }
            if self.request_progress == RequestProgress::Stored && self.side.backlog() < GATHERED_BYTES {
                continue;
            }
            self.wait(down).await?;
        }
    }

    // ---- the request ----

    /// Sends the part of the body that was read ahead or by an earlier attempt.
    fn send_replay(&mut self) {
        if self.request_progress != RequestProgress::Body {
            return;
        }
        let bytes = std::mem::take(&mut self.replay.bytes);
        self.side.add(&bytes);
        // A body that was read ahead may exceed the limit for retries.
        if bytes.len() > self.replay.bytes_max {
            self.replay.has_overflowed = true
        } else {
            self.replay.bytes = bytes
        }
        match &mut self.replay.file {
            Some(file) => {
                file.rewind();
                self.request_progress = RequestProgress::Stored;
            }
            None if self.replay.ended => self.end_body(),
            None => {}
        }
    }

    /// Sends as much of a stored body as the upstream accepts.
    async fn send_stored(&mut self) -> Result<(), AttemptFailure> {
        let mut block = Vec::new();
        while self.side.backlog() < GATHERED_BYTES && self.moved_bytes < BYTES_PER_TURN {
            let Some(file) = self.replay.file.as_mut().filter(|file| file.unread() > 0) else {
                self.end_body();
                return Ok(());
            };
            block = file.read(self.exchange.core(), block, STORED_BLOCK_BYTES).await.map_err(Fault::Io)?;
            self.moved_bytes += block.len().max(PIECE_WEIGHT_BYTES);
            self.upstream_write_at = self.exchange.core().now();
            if self.side.offer(&block).is_err() {
                self.abandon_body();
                return Ok(());
            }
        }
        Ok(())
    }

    /// Asks the client for the body, because the upstream accepts it.
    fn begin_body(&mut self) {
        if self.request_progress == RequestProgress::Continue {
            self.request_progress = RequestProgress::Body;
            self.client_read_at = self.exchange.core().now();
        }
    }

    fn end_body(&mut self) {
        self.replay.ended = true;
        self.request_progress = RequestProgress::Done;
        let x = &*self.exchange;
        let plan = self.options;
        self.side.finish(|| {
            let ask = TemplateContext::of(&x.request(), plan.upstream);
            x.trailers().map(|trailers| plan.request.trailers(&trailers, &ask)).unwrap_or_default()
        });
    }

    /// Sends as much of the body as possible.
    fn send_body(&mut self) -> Result<(), AttemptFailure> {
        loop {
            let gathered = self.read_body()?;
            let backlog = self.side.backlog();
            let behind =
                self.request_progress != RequestProgress::Abandoned && self.side.has_pending_output();
            if behind {
                // The upstream may have responded before it closed, so its response is read next.
                if self.side.try_flush().is_err() {
                    self.abandon_body();
                    return Ok(());
                }
            }
            if backlog != self.side.backlog() || (behind && !self.side.has_pending_output()) || gathered {
                self.upstream_write_at = self.exchange.core().now();
            }
            if !gathered || self.side.backlog() > 0 || self.moved_bytes >= BYTES_PER_TURN {
                return Ok(());
            }
        }
    }

    /// Reads the part of the body that the client has sent; true if there was any.
    fn read_body(&mut self) -> Result<bool, AttemptFailure> {
        let mut gathered = false;
        // Bounded, so that other tasks run even if both peers are fast.
        while self.request_progress == RequestProgress::Body
            && self.side.backlog() < GATHERED_BYTES
            && self.moved_bytes < BYTES_PER_TURN
        {
            match self.exchange.try_read()? {
                BodyPiece::Pending => break,
                BodyPiece::End => {
                    self.end_body();
                    return Ok(true);
                }
                BodyPiece::Data(bytes) => {
                    gathered = true;
                    self.moved_bytes += bytes.len().max(PIECE_WEIGHT_BYTES);
                    self.replay.append(bytes);
                    if self.side.offer(bytes).is_err() {
                        self.abandon_body();
                        return Ok(false);
                    }
                }
            }
        }
        if gathered {
            self.client_read_at = self.exchange.core().now();
        }
        Ok(gathered)
    }

    /// Returns the failure with the part that the client has in it.
    #[cold]
    fn attribute(&self, failure: AttemptFailure) -> AttemptFailure {
        let owes_body = !self.replay.ended
            && matches!(self.request_progress, RequestProgress::Body | RequestProgress::Abandoned);
        if owes_body { failure.with_body_owed() } else { failure }
    }

    fn abandon_body(&mut self) {
        self.request_progress = RequestProgress::Abandoned;
        self.side.abandon();
    }

    // ---- the response ----

    /// Reads from the upstream and sends to the client.
    fn receive_response(&mut self) -> Result<ResponseProgress, AttemptFailure> {
        // Reads no more while the client has not taken what it was sent, whatever woke the task.
        if self.is_client_full()? {
            return Ok(ResponseProgress::ClientFull);
        }
        if !self.side.may_have_input() {
            return Ok(ResponseProgress::NoInput);
        }
        loop {
            match self.side.step(self.method, &self.options.route.head_limits)? {
                UpstreamStep::Pending => return Ok(self.paused_progress()),
                UpstreamStep::Head => {
                    if self.on_head()? {
                        return Ok(ResponseProgress::Upgraded);
                    }
                }
                UpstreamStep::Data => {
                    let data = self.side.data();
                    self.moved_bytes += data.len().max(PIECE_WEIGHT_BYTES);
                    self.exchange.offer(data)?;
                    if self.is_client_full()? {
                        return Ok(ResponseProgress::ClientFull);
                    }
                    if self.moved_bytes >= BYTES_PER_TURN {
                        return Ok(self.paused_progress());
                    }
                    if self.side.consume_if_last() {
                        return Ok(ResponseProgress::Done);
                    }
                }
                UpstreamStep::End => return Ok(ResponseProgress::Done),
                UpstreamStep::NonContent => {
                    self.moved_bytes = BYTES_PER_TURN;
                    return Ok(ResponseProgress::NoInput);
                }
            }
        }
    }

    /// Returns the progress when the server has sent nothing more so far. A response that names a file is
    /// done, because its own content is dropped and the connection closed; so is one whose announced content
    /// is complete.
    fn paused_progress(&self) -> ResponseProgress {
        let has_all =
            self.options.lingers && self.request_progress == RequestProgress::Done && self.side.awaits_end();
        if self.names_file || has_all { ResponseProgress::Done } else { ResponseProgress::NoInput }
    }

    /// Whether the client is so far behind that reading for it must pause.
    fn is_client_full(&mut self) -> Result<bool, AttemptFailure> {
        if self.exchange.backlog() == 0 {
            return Ok(false);
        }
        let ahead = self.exchange.buffered_bytes_max(self.options.route.read_ahead_bytes);
        // Gathers large blocks for the file unless memory is short.
        let is_block = self.exchange.is_spilling() && !self.is_memory_short();
        let max = if is_block { ahead.max(SPILL_BLOCK_BYTES) } else { ahead };
        if self.exchange.backlog() < max {
            return Ok(false);
        }
        self.exchange.try_flush()?;
        Ok(self.exchange.backlog() >= max)
    }

    /// Moves bytes that the client has not read to a file, so that the upstream need not wait; true if there
    /// is room again.
    async fn spill(&mut self) -> Result<bool, AttemptFailure> {
        let Some(quota) = self.options.spill else { return Ok(false) };
        self.release_memory();
        // Boxed, because this is rare.
        match Box::pin(self.exchange.spill(quota)).await? {
            Ok(()) => {
                self.exchange.try_flush()?;
                self.exchange.yield_after_spill().await;
                Ok(true)
            }
            Err(why) => {
                if quota.should_report() {
                    (self.options.on_spill_error)(&why);
                }
                Ok(false)
            }
        }
    }

    fn is_memory_short(&self) -> bool {
        self.exchange.core().memory().pressure() >= Pressure::High
    }

    /// Handles a complete response head. True if it switches protocols.
    fn on_head(&mut self) -> Result<bool, AttemptFailure> {
        let (head, bytes) = self.side.head();
        let status = head.status;
        let named = response::named_by_connection(head, bytes)
            .map_err(|reject| AttemptFailure::Invalid(reject.reason))?;
        if self.side.switches_protocol(self.sent.upgrade) {
            return self.on_upgrade().map(|()| true);
        }
        if status.is_informational() {
            self.interims += 1;
            if self.interims > INTERIM_MAX {
                return Err(AttemptFailure::Invalid("the upstream sends interim responses without end"));
            }
            if status == Status::CONTINUE {
                // The client is sent `100 Continue` when its body is read.
                self.begin_body();
            } else {
                let prepared = response::PreparedLines::default();
                let rules = self.options.response;
                self.exchange
                    .send_interim(status, |lines| _ = rules.write(lines, head, bytes, &named, &prepared));
            }
            self.side.next_head();
            return Ok(false);
        }
        if self.side.is_idle_timeout() && self.replay.is_whole() {
            let harmless = self.method.is_idempotent() || self.options.route.retry.non_idempotent;
            if harmless {
                return Err(AttemptFailure::Stale);
            }
        }
        if self.options.may_retry
            && self.replay.is_whole()
            && self.options.route.retry.statuses.contains(&status)
        {
            return Err(AttemptFailure::RetryableStatus(status));
        }
        let length = head.body_length(self.method);
        self.exchange.notes().upstream_us = Some((self.options.on_response_head)(status));
        let named_file = if self.exchange.may_name_file() {
            NamedFile::find(head.fields.iter().map(|field| (field.name.of(bytes), field.value.of(bytes))))
        } else {
            None
        };
        let rules = self.options.response;
        let prepared = if rules.depends_on_request(head) {
            rules.prepare(head, bytes, &TemplateContext::of(&self.exchange.request(), self.options.upstream))
        } else {
            response::PreparedLines::default()
        };
        let reason = head.reason.of(bytes);
        if !reason.is_empty() && reason != status.reason().as_bytes() && named_file.is_none() {
            self.exchange.set_reason(status, reason);
        }
        let cookie = self.options.cookie;
        let mut ignores_file = false;
        match named_file {
            Some(file) => {
                self.exchange.name_file(file);
                self.names_file = true;
            }
            None => self.exchange.begin_lines(status, length, rules.provided_defaults(head), |lines| {
                ignores_file = rules.write(lines, head, bytes, &named, &prepared);
                if let Some(cookie) = cookie {
                    lines.line(b"Set-Cookie", cookie);
                }
            }),
        }
        self.exchange.notes().ignores_file = ignores_file;
        self.side.record_final_head();
        if self.request_progress == RequestProgress::Continue {
            // A final response without `100 Continue`: the upstream does not want the body.
            self.request_progress = RequestProgress::Abandoned;
        }
        Ok(false)
    }

    fn on_upgrade(&mut self) -> Result<(), AttemptFailure> {
        if !self.sent.upgrade {
            return Err(AttemptFailure::Invalid("the upstream switches protocols without being asked"));
        }
        let (head, bytes) = self.side.head();
        let status = head.status;
        let request = self.exchange.request();
        let ask = TemplateContext::of(&request, self.options.upstream);
        let asked = ask.head.upgrade(ask.bytes).unwrap_or_default();
        let mut named = response::named_by_connection(head, bytes)
            .map_err(|reject| AttemptFailure::Invalid(reject.reason))?;
        // Over HTTP/2, CONNECT named the first protocol offered, and this proxy computes the answer to the
        // client's key.
        let is_stream = matches!(self.side, UpstreamSide::Stream(_));
        let accept = client_key(&ask).filter(|_| is_stream && ask.head.protocol.is_empty());
        let accept = accept.map(websocket::accept);
        let protocol = if is_stream {
            scan::list(asked).next().unwrap_or_default().to_vec()
        } else {
            head.field(bytes, Name::Upgrade).unwrap_or_default().to_vec()
        };
        // The server may only switch to a protocol that the request offered (RFC 9110 section 7.8).
        if !scan::list(asked).any(|asked| asked.eq_ignore_ascii_case(&protocol)) {
            return Err(AttemptFailure::Invalid(
                "the upstream switches to a protocol that was not asked for",
            ));
        }
        if let Some(key) = &self.sent.websocket_key
            && response::first_value(head, bytes, SEC_WEBSOCKET_ACCEPT) != Some(&websocket::accept(key)[..])
        {
            return Err(AttemptFailure::Invalid(
                "the upstream's Sec-WebSocket-Accept is not that of the key",
            ));
        }
        if is_stream {
            named.push(SEC_WEBSOCKET_ACCEPT);
        }
        let rules = self.options.response;
        let prepared = response::PreparedLines::default();
        self.exchange.upgrade(|lines| {
            lines.line(b"Connection", b"Upgrade");
            lines.line(b"Upgrade", &protocol);
            if let Some(accept) = &accept {
                lines.line(b"Sec-WebSocket-Accept", accept);
            }
            rules.write(lines, head, bytes, &named, &prepared);
        });
        self.exchange.notes().upstream_us = Some((self.options.on_response_head)(status));
        Ok(())
    }

    fn finish(&mut self) -> Result<RelayOutcome, AttemptFailure> {
        if let Some(trailers) = self.side.trailers().filter(|trailers| !trailers.is_empty()) {
            self.exchange.end(&self.options.response.trailers(&trailers))?;
        }
        Ok(RelayOutcome::Complete(self.request_progress == RequestProgress::Done))
    }
}
