//! A request that this server sends for itself: no client waits for its response, so it needs nothing but a connection.

use http::machine::{Fed, Step};
use http::{Limits, Method, ResponseHead, Span, Status};
use net::{Core, Fault, MemoryHeld, PIECE_WEIGHT_BYTES, Pressure};

use crate::failure::AttemptFailure;
use crate::response::INTERIM_MAX;
use crate::upstream_connection::{UpstreamConnection, announced_idle_ms};

/// Bytes that one response moves before other tasks on the core run.
const TURN_BYTES: usize = 1024 * 1024;

/// What bounds such a request. The caller bounds the content of the response.
pub(crate) struct RequestBounds {
    /// Sizes of the response head.
    pub(crate) limits: Limits,
    /// From the request's last byte to the response's whole head, in milliseconds.
    pub(crate) head_ms: u64,
    /// Between two pieces of a body, either way, in milliseconds.
    pub(crate) between_ms: u64,
    /// When all of it must be over, by the core's clock.
    pub(crate) deadline_ms: u64,
}

/// One request on an upstream connection. Dropping it closes the connection.
pub(crate) struct UpstreamRequest {
    connection: UpstreamConnection,
    method: Method,
    bounds: RequestBounds,
    /// A part of the request is not sent yet, and the upstream still reads.
    is_sending: bool,
    was_sent: bool,
    /// Bytes of the input that the last step was about: consumed before the next one.
    given_bytes: usize,
    /// Bytes received since other tasks last ran.
    moved_bytes: usize,
    held: MemoryHeld,
}

impl UpstreamRequest {
    /// A request whose head and body are in the output buffer of `connection`.
    pub(crate) fn new(
        connection: UpstreamConnection,
        method: Method,
        bounds: RequestBounds,
    ) -> UpstreamRequest {
        let held = connection.link.core().memory().hold(connection.buffers.weight_bytes());
        UpstreamRequest {
            connection,
            method,
            bounds,
            is_sending: true,
            was_sent: false,
            given_bytes: 0,
            moved_bytes: 0,
            held,
        }
    }

    fn core(&self) -> &Core {
        self.connection.link.core()
    }

    /// Sends the request, and reads the head of the final response.
    pub(crate) async fn read_head(&mut self) -> Result<(), AttemptFailure> {
        for _ in 0..=INTERIM_MAX {
            self.step().await?;
            let (head, bytes) = self.connection.buffers.head();
            let status = head.status;
            if status == Status::SWITCHING_PROTOCOLS {
                return Err(AttemptFailure::Invalid("the upstream switches protocols without being asked"));
            }
            if !status.is_informational() {
                self.connection.idle_ms = announced_idle_ms(head, bytes).unwrap_or(u64::MAX);
                return Ok(());
            }
            self.connection.buffers.machine.next();
        }
        Err(AttemptFailure::Invalid("the upstream sends interim responses without end"))
    }

    /// The response head, with the bytes that its spans refer to; only between [`UpstreamRequest::read_head`] and the
    /// first piece of content.
    pub(crate) fn head(&self) -> (&ResponseHead, &[u8]) {
        self.connection.buffers.head()
    }

    /// The connection that carries it.
    pub(crate) fn connection(&self) -> &UpstreamConnection {
        &self.connection
    }

    /// Waits for the next piece of content: where it is in [`UpstreamRequest::input`]. `None` at the end.
    pub(crate) async fn read_piece(&mut self) -> Result<Option<Span>, AttemptFailure> {
        let Step::Data(span) = self.step().await?.step else { return Ok(None) };
        self.moved_bytes += span.len().max(PIECE_WEIGHT_BYTES);
        Ok(Some(span))
    }

    /// The bytes that the span of the last piece refers to.
    pub(crate) fn input(&self) -> &[u8] {
        self.connection.buffers.input.rest()
    }

    /// The connection, after the end of the response; and whether the whole request was sent.
    pub(crate) fn into_connection(mut self) -> (UpstreamConnection, bool) {
        self.consume();
        (self.connection, self.was_sent)
    }

    fn consume(&mut self) {
        let given = std::mem::take(&mut self.given_bytes);
        self.connection.buffers.input.consume(given);
    }

    /// Waits for the next step of the response, and sends what is left of the request meanwhile.
    async fn step(&mut self) -> Result<Fed, AttemptFailure> {
        self.consume();
        // Even if the upstream is fast, other tasks must run.
        if self.moved_bytes >= TURN_BYTES {
            self.moved_bytes = 0;
            self.core().yield_now().await;
        }
        let mut since_ms = self.core().now_ms();
        loop {
            if self.is_sending && self.send() {
                since_ms = self.core().now_ms();
            }
            let fed = self.connection.receive(self.method, &self.bounds.limits)?;
            if fed.step != Step::NeedMore {
                self.given_bytes = fed.consumed;
                return Ok(fed);
            }
            let has_begun = self.connection.has_begun();
            if has_begun {
                since_ms = since_ms.max(self.connection.received_ms);
            }
            let patience_ms = match has_begun || self.is_sending {
                true => self.bounds.between_ms,
                false => self.bounds.head_ms,
            };
            self.wait(since_ms.saturating_add(patience_ms)).await.map_err(|_| match has_begun {
                true => AttemptFailure::Body("the upstream took too long in the middle of a response"),
                false => AttemptFailure::Slow,
            })?;
        }
    }

    /// Sends what the upstream takes now; true if it took something.
    fn send(&mut self) -> bool {
        let backlog = self.connection.backlog();
        match self.connection.try_flush() {
            Ok(flushed) => {
                (self.is_sending, self.was_sent) = (!flushed, flushed);
                flushed || self.connection.backlog() != backlog
            }
            // The upstream may have answered before it closed: its response is read next.
            Err(_) => {
                self.is_sending = false;
                self.connection.buffers.out.clear();
                false
            }
        }
    }

    /// Waits until either direction can continue, at most until `until_ms` or the end of the whole request's time.
    async fn wait(&mut self, until_ms: u64) -> Result<(), Fault> {
        let interest = self.connection.link.interest(true, self.is_sending);
        let is_short = self.core().memory().pressure() >= Pressure::High;
        self.connection.release();
        self.held.set(self.connection.weigh(is_short));
        let until_ms = until_ms.min(self.bounds.deadline_ms);
        let waited = self.connection.link.stream().ready_for(interest, until_ms).await;
        self.connection.hold();
        waited
    }
}
