//! Relays one request and its response between a client and an upstream connection, in both directions at
//! once.

use http::{BodySize, Method, Name, Status, scan};
use std::sync::Arc;

use net::{
    BodyPiece, Exchange, Fault, NamedFile, PIECE_WEIGHT_BYTES, Pressure, SPILL_BLOCK_BYTES, SpillError,
    SpillQuota, websocket,
};

use crate::failure::AttemptFailure;
use crate::kept::ReplayBuffer;
use crate::options::RouteOptions;
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
const TURN_BYTES: usize = 1024 * 1024;

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
    Dry,
    /// The client must read buffered bytes first.
    Full,
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
    pub(crate) options: &'p RouteOptions,
    pub(crate) request: &'p RequestRules,
    pub(crate) response: &'p ResponseRules,
    /// `host[:port]` of the server.
    pub(crate) upstream: &'p str,
    /// Deadline of the whole request; `u64::MAX` for none.
    pub(crate) deadline_ms: u64,
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
    pub(crate) refused: &'p dyn Fn(&SpillError),
    /// Called once, on the upstream's response head; returns the time it took, in microseconds.
    pub(crate) answered: &'p dyn Fn(Status) -> u64,
}

/// The relay of one attempt.
pub(crate) struct Relay<'r, 'c> {
    x: &'r mut Exchange<'c>,
    side: &'r mut UpstreamSide,
    plan: &'r RelayOptions<'r>,
    /// Request body read so far, kept for a retry.
    kept: &'r mut ReplayBuffer,
    method: Method,
    sent: SentHead,
    up: RequestProgress,
    interims: u32,
    /// Time at which bytes were last sent to the upstream, read from the client and sent to the client.
    up_ms: u64,
    client_read_ms: u64,
    client_write_ms: u64,
    /// Time at which the client was found to have closed its sending side.
    half_closed_ms: Option<u64>,
    unsent: u64,
    /// Bytes moved since other tasks last ran.
    moved: usize,
    /// Whether the response names a file of this server, so that its own content is dropped.
    names_file: bool,
}

impl<'r, 'c> Relay<'r, 'c> {
    /// Creates a relay for a request whose head has been written.
    pub(crate) fn new(
        x: &'r mut Exchange<'c>,
        side: &'r mut UpstreamSide,
        plan: &'r RelayOptions<'r>,
        kept: &'r mut ReplayBuffer,
        sent: SentHead,
    ) -> Relay<'r, 'c> {
        let now_ms = x.core().now_ms();
        let request = x.request();
        let (method, body) = (request.method(), request.body());
        let up = match body {
            BodySize::None => RequestProgress::Done,
            _ if sent.expects => RequestProgress::Continue,
            _ => RequestProgress::Body,
        };
        Relay {
            x,
            side,
            plan,
            kept,
            method,
            sent,
            up,
            interims: 0,
            up_ms: now_ms,
            client_read_ms: now_ms,
            client_write_ms: now_ms,
            half_closed_ms: None,
            unsent: 0,
            moved: 0,
            names_file: false,
        }
    }

    /// Relays bytes until the response is complete.
    pub(crate) async fn run(&mut self) -> Result<RelayOutcome, AttemptFailure> {
        self.send_kept();
        loop {
            // The client may send its body without waiting for `100 Continue`.
            match self.up {
                RequestProgress::Continue if !self.x.awaits_continue()? => self.begin_body(),
                // Boxed because it is rare.
                RequestProgress::Stored => Box::pin(self.send_stored()).await?,
                _ => {}
            }
            self.push_up()?;
            let waited = self.up == RequestProgress::Continue;
            let down = self.pull_down()?;
            match down {
                ResponseProgress::Done => return self.finish(),
                ResponseProgress::Upgraded => return Ok(RelayOutcome::Upgraded),
                ResponseProgress::Dry | ResponseProgress::Full
                    if waited && self.up == RequestProgress::Body =>
                {
                    continue;
                }
                ResponseProgress::Dry | ResponseProgress::Full => {}
            }
            if self.moved >= TURN_BYTES {
                self.moved = 0;
                self.settle();
                self.x.core().yield_now().await;
                self.check_deadline(down)?;
                continue;
            }
            if down == ResponseProgress::Full && self.spill().await? {
                continue;
            }
            if self.up == RequestProgress::Stored && self.side.backlog() < GATHERED_BYTES {
                continue;
            }
            self.wait(down).await?;
        }
    }

    // ---- the request ----

    /// Sends the part of the body that was read ahead or by an earlier attempt.
    fn send_kept(&mut self) {
        if self.up != RequestProgress::Body {
            return;
        }
        let bytes = std::mem::take(&mut self.kept.bytes);
        self.side.add(&bytes);
        // A body that was read ahead may exceed the limit for retries.
        match bytes.len() > self.kept.bytes_max {
            true => self.kept.lost = true,
            false => self.kept.bytes = bytes,
        }
        match &mut self.kept.stored {
            Some(file) => {
                file.rewind();
                self.up = RequestProgress::Stored;
            }
            None if self.kept.ended => self.end_body(),
            None => {}
        }
    }

    /// Sends as much of a stored body as the upstream accepts.
    async fn send_stored(&mut self) -> Result<(), AttemptFailure> {
        let mut block = Vec::new();
        while self.side.backlog() < GATHERED_BYTES && self.moved < TURN_BYTES {
            let Some(file) = self.kept.stored.as_mut().filter(|file| file.unread() > 0) else {
                self.end_body();
                return Ok(());
            };
            block = file.read(self.x.core(), block, STORED_BLOCK_BYTES).await.map_err(Fault::Io)?;
            self.moved += block.len().max(PIECE_WEIGHT_BYTES);
            self.up_ms = self.x.core().now_ms();
            if self.side.offer(&block).is_err() {
                self.abandon();
                return Ok(());
            }
        }
        Ok(())
    }

    /// Asks the client for the body, because the upstream accepts it.
    fn begin_body(&mut self) {
        if self.up == RequestProgress::Continue {
            self.up = RequestProgress::Body;
            self.client_read_ms = self.x.core().now_ms();
        }
    }

    fn end_body(&mut self) {
        self.kept.ended = true;
        self.up = RequestProgress::Done;
        let (x, plan) = (&*self.x, self.plan);
        self.side.finish(|| {
            let ask = TemplateContext::of(&x.request(), plan.upstream);
            x.trailers().map(|trailers| plan.request.trailers(&trailers, &ask)).unwrap_or_default()
        });
    }

    /// Sends as much of the body as possible.
    fn push_up(&mut self) -> Result<(), AttemptFailure> {
        loop {
            let gathered = self.gather()?;
            let (backlog, behind) =
                (self.side.backlog(), self.up != RequestProgress::Abandoned && self.side.is_behind());
            if behind {
                // The upstream may have responded before it closed, so its response is read next.
                if self.side.try_flush().is_err() {
                    self.abandon();
                    return Ok(());
                }
            }
            if backlog != self.side.backlog() || (behind && !self.side.is_behind()) || gathered {
                self.up_ms = self.x.core().now_ms();
            }
            if !gathered || self.side.backlog() > 0 || self.moved >= TURN_BYTES {
                return Ok(());
            }
        }
    }

    /// Reads the part of the body that the client has sent; true if there was any.
    fn gather(&mut self) -> Result<bool, AttemptFailure> {
        let mut gathered = false;
        // Bounded, so that other tasks run even if both peers are fast.
        while self.up == RequestProgress::Body
            && self.side.backlog() < GATHERED_BYTES
            && self.moved < TURN_BYTES
        {
            match self.x.try_read()? {
                BodyPiece::Pending => break,
                BodyPiece::End => {
                    self.end_body();
                    return Ok(true);
                }
                BodyPiece::Data(bytes) => {
                    gathered = true;
                    self.moved += bytes.len().max(PIECE_WEIGHT_BYTES);
                    self.kept.keep(bytes);
                    if self.side.offer(bytes).is_err() {
                        self.abandon();
                        return Ok(false);
                    }
                }
            }
        }
        if gathered {
            self.client_read_ms = self.x.core().now_ms();
        }
        Ok(gathered)
    }

    fn abandon(&mut self) {
        self.up = RequestProgress::Abandoned;
        self.side.abandon();
    }

    // ---- the response ----

    /// Reads from the upstream and sends to the client.
    fn pull_down(&mut self) -> Result<ResponseProgress, AttemptFailure> {
        // Reads no more while the client has not taken what it was sent, whatever woke the task.
        if self.is_full()? {
            return Ok(ResponseProgress::Full);
        }
        if !self.side.has_news() {
            return Ok(ResponseProgress::Dry);
        }
        loop {
            match self.side.step(self.method, &self.plan.options.head)? {
                UpstreamStep::Pending => return Ok(self.paused()),
                UpstreamStep::Head => {
                    if self.on_head()? {
                        return Ok(ResponseProgress::Upgraded);
                    }
                }
                UpstreamStep::Data => {
                    let data = self.side.data();
                    self.moved += data.len().max(PIECE_WEIGHT_BYTES);
                    self.x.offer(data)?;
                    if self.is_full()? {
                        return Ok(ResponseProgress::Full);
                    }
                    if self.moved >= TURN_BYTES {
                        return Ok(self.paused());
                    }
                    if self.side.ends() {
                        return Ok(ResponseProgress::Done);
                    }
                }
                UpstreamStep::End => return Ok(ResponseProgress::Done),
                UpstreamStep::Noise => {
                    self.moved = TURN_BYTES;
                    return Ok(ResponseProgress::Dry);
                }
            }
        }
    }

    /// Returns the progress when the server has sent nothing more so far. A response that names a file is
    /// done, because its own content is dropped and the connection closed; so is one whose announced content
    /// is complete.
    fn paused(&self) -> ResponseProgress {
        let has_all = self.plan.lingers && self.up == RequestProgress::Done && self.side.is_unended();
        if self.names_file || has_all { ResponseProgress::Done } else { ResponseProgress::Dry }
    }

    /// Whether the client is so far behind that reading for it must pause.
    fn is_full(&mut self) -> Result<bool, AttemptFailure> {
        if self.x.backlog() == 0 {
            return Ok(false);
        }
        let ahead = self.x.ahead_bytes_max(self.plan.options.read_ahead_bytes);
        // Gathers large blocks for the file unless memory is short.
        let is_block = self.x.is_spilling() && !self.is_short();
        let max = if is_block { ahead.max(SPILL_BLOCK_BYTES) } else { ahead };
        if self.x.backlog() < max {
            return Ok(false);
        }
        self.x.try_flush()?;
        Ok(self.x.backlog() >= max)
    }

    /// Moves bytes that the client has not read to a file, so that the upstream need not wait; true if there
    /// is room again.
    async fn spill(&mut self) -> Result<bool, AttemptFailure> {
        let Some(quota) = self.plan.spill else { return Ok(false) };
        self.settle();
        // Boxed, because this is rare.
        match Box::pin(self.x.spill(quota)).await? {
            Ok(()) => {
                self.x.try_flush()?;
                self.x.take_turns().await;
                Ok(true)
            }
            Err(why) => {
                if quota.is_to_report() {
                    (self.plan.refused)(&why);
                }
                Ok(false)
            }
        }
    }

    fn is_short(&self) -> bool {
        self.x.core().memory().pressure() >= Pressure::High
    }

    /// Handles a complete response head. True if it switches protocols.
    fn on_head(&mut self) -> Result<bool, AttemptFailure> {
        let (head, bytes) = self.side.head();
        let status = head.status;
        let named = response::named(head, bytes).map_err(|reject| AttemptFailure::Invalid(reject.reason))?;
        if self.side.switches(self.sent.upgrade) {
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
                let prepared = response::Prepared::default();
                let rules = self.plan.response;
                self.x.inform(status, |lines| _ = rules.write(lines, head, bytes, &named, &prepared));
            }
            self.side.next_head();
            return Ok(false);
        }
        if self.side.is_idle_timeout() && self.kept.is_whole() {
            let harmless = self.method.is_idempotent() || self.plan.options.retry.non_idempotent;
            if harmless {
                return Err(AttemptFailure::Stale);
            }
        }
        if self.plan.may_retry && self.kept.is_whole() && self.plan.options.retry.statuses.contains(&status) {
            return Err(AttemptFailure::Refused(status));
        }
        let length = head.body_length(self.method);
        self.x.notes().upstream_us = Some((self.plan.answered)(status));
        let named_file = match self.x.may_name_file() {
            true => {
                NamedFile::find(head.fields.iter().map(|field| (field.name.of(bytes), field.value.of(bytes))))
            }
            false => None,
        };
        let rules = self.plan.response;
        let prepared = match rules.depends_on_request(head) {
            true => rules.prepare(head, bytes, &TemplateContext::of(&self.x.request(), self.plan.upstream)),
            false => response::Prepared::default(),
        };
        let reason = head.reason.of(bytes);
        if !reason.is_empty() && reason != status.reason().as_bytes() && named_file.is_none() {
            self.x.set_reason(status, reason);
        }
        let (cookie, mut ignores_file) = (self.plan.cookie, false);
        match named_file {
            Some(file) => {
                self.x.name_file(file);
                self.names_file = true;
            }
            None => self.x.begin_lines(status, length, rules.own(head), |lines| {
                ignores_file = rules.write(lines, head, bytes, &named, &prepared);
                if let Some(cookie) = cookie {
                    lines.line(b"Set-Cookie", cookie);
                }
            }),
        }
        self.x.notes().ignores_file = ignores_file;
        self.side.note_final_head();
        if self.up == RequestProgress::Continue {
            // A final response without `100 Continue`: the upstream does not want the body.
            self.up = RequestProgress::Abandoned;
        }
        Ok(false)
    }

    fn on_upgrade(&mut self) -> Result<(), AttemptFailure> {
        if !self.sent.upgrade {
            return Err(AttemptFailure::Invalid("the upstream switches protocols without being asked"));
        }
        let (head, bytes) = self.side.head();
        let status = head.status;
        let request = self.x.request();
        let ask = TemplateContext::of(&request, self.plan.upstream);
        let asked = ask.head.upgrade(ask.bytes).unwrap_or_default();
        let mut named =
            response::named(head, bytes).map_err(|reject| AttemptFailure::Invalid(reject.reason))?;
        // Over HTTP/2, CONNECT named the first protocol offered, and this proxy computes the answer to the
        // client's key.
        let is_stream = matches!(self.side, UpstreamSide::Stream(_));
        let accept = client_key(&ask).filter(|_| is_stream && ask.head.protocol.is_empty());
        let accept = accept.map(websocket::accept);
        let protocol = match is_stream {
            true => scan::list(asked).next().unwrap_or_default().to_vec(),
            false => head.field(bytes, Name::Upgrade).unwrap_or_default().to_vec(),
        };
        // The server may only switch to a protocol that the request offered (RFC 9110 section 7.8).
        if !scan::list(asked).any(|asked| asked.eq_ignore_ascii_case(&protocol)) {
            return Err(AttemptFailure::Invalid(
                "the upstream switches to a protocol that was not asked for",
            ));
        }
        if let Some(key) = &self.sent.key
            && response::value(head, bytes, SEC_WEBSOCKET_ACCEPT) != Some(&websocket::accept(key)[..])
        {
            return Err(AttemptFailure::Invalid(
                "the upstream's Sec-WebSocket-Accept is not that of the key",
            ));
        }
        if is_stream {
            named.push(SEC_WEBSOCKET_ACCEPT);
        }
        let rules = self.plan.response;
        let prepared = response::Prepared::default();
        self.x.upgrade(|lines| {
            lines.line(b"Connection", b"Upgrade");
            lines.line(b"Upgrade", &protocol);
            if let Some(accept) = &accept {
                lines.line(b"Sec-WebSocket-Accept", accept);
            }
            rules.write(lines, head, bytes, &named, &prepared);
        });
        self.x.notes().upstream_us = Some((self.plan.answered)(status));
        Ok(())
    }

    fn finish(&mut self) -> Result<RelayOutcome, AttemptFailure> {
        if let Some(trailers) = self.side.trailers().filter(|trailers| !trailers.is_empty()) {
            self.x.end(&self.plan.response.trailers(&trailers))?;
        }
        Ok(RelayOutcome::Complete(self.up == RequestProgress::Done))
    }
}
