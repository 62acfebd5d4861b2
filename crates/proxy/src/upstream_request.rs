//! A request that this server sends on its own behalf: it has only an upstream side, and no client.

use http::{Limits, Method, ResponseHead, Status};
use net::{Core, Fault, Interest, MemoryCharge, PIECE_WEIGHT_BYTES, Pressure};
use times::{Millis, Moment};

use crate::failure::AttemptFailure;
use crate::response::INTERIM_MAX;
use crate::upstream_side::{UpstreamSide, UpstreamStep};

/// Bytes that one response moves before it yields to other tasks on the core.
const BYTES_PER_TURN: usize = 1024 * 1024;

/// Limits of a request. The caller limits the content of the response.
pub(crate) struct RequestBounds {
    /// Limits of the response head.
    pub(crate) limits: Limits,
    /// Timeout from the last byte of the request to the complete response head, in milliseconds.
    pub(crate) head_timeout: Millis,
    /// Timeout between two pieces of a body, in either direction, in milliseconds.
    pub(crate) between: Millis,
    /// Deadline of the whole request, by the core's clock.
    pub(crate) deadline: Moment,
}

/// A request to an upstream server. Dropping it closes its connection or resets its stream.
pub(crate) struct UpstreamRequest {
    side: UpstreamSide,
    method: Method,
    bounds: RequestBounds,
    /// Whether a part of the request is unsent and the upstream still reads.
    is_sending: bool,
    was_sent: bool,
    /// Bytes received since the task last yielded.
    moved_bytes: usize,
    held: MemoryCharge,
}

impl UpstreamRequest {
    /// Creates a request whose head and body were given to `side`.
    pub(crate) fn new(mut side: UpstreamSide, method: Method, bounds: RequestBounds) -> UpstreamRequest {
        let weight = side.update_memory(false);
        let held = side.core().memory().charge(weight);
        UpstreamRequest { side, method, bounds, is_sending: true, was_sent: false, moved_bytes: 0, held }
    }

    fn core(&self) -> &Core {
        self.side.core()
    }

    /// Sends the request and reads the head of the final response.
    pub(crate) async fn read_head(&mut self) -> Result<(), AttemptFailure> {
        for _ in 0..=INTERIM_MAX {
            self.step().await?;
            let status = self.side.head().0.status;
            if status == Status::SWITCHING_PROTOCOLS {
                return Err(AttemptFailure::Invalid("the upstream switches protocols without being asked"));
            }
            if !status.is_informational() {
                self.side.record_final_head();
                return Ok(());
            }
            self.side.next_head();
        }
        Err(AttemptFailure::Invalid("the upstream sends interim responses without end"))
    }

    /// Returns the response head and the bytes that its spans refer to; only valid between
    /// [`UpstreamRequest::read_head`] and the first piece of content.
    pub(crate) fn head(&self) -> (&ResponseHead, &[u8]) {
        self.side.head()
    }

    /// Returns the upstream side.
    pub(crate) fn side(&self) -> &UpstreamSide {
        &self.side
    }

    /// Waits for the next piece of content: true if there is one in [`UpstreamRequest::data`], false at the
    /// end.
    pub(crate) async fn read_piece(&mut self) -> Result<bool, AttemptFailure> {
        let is_data = self.step().await? == UpstreamStep::Data;
        if is_data {
            self.moved_bytes += self.side.data().len().max(PIECE_WEIGHT_BYTES);
        }
        Ok(is_data)
    }

    /// Returns the last piece of content.
    pub(crate) fn data(&self) -> &[u8] {
        self.side.data()
    }

    /// Returns the upstream side after the end of the response, and whether the whole request was sent.
    pub(crate) fn into_side(self) -> (UpstreamSide, bool) {
        (self.side, self.was_sent)
    }

    /// Waits for the next step of the response, while sending the rest of the request.
    async fn step(&mut self) -> Result<UpstreamStep, AttemptFailure> {
        // Yields even if the upstream is always ready.
        if self.moved_bytes >= BYTES_PER_TURN {
            self.moved_bytes = 0;
            self.core().yield_now().await;
        }
        let mut since = self.core().now();
        loop {
            if self.is_sending && self.send() {
                since = self.core().now();
            }
            let step = self.side.step(self.method, &self.bounds.limits)?;
            match step {
                UpstreamStep::Pending => {}
                UpstreamStep::NonContent => {
                    self.core().yield_now().await;
                    continue;
                }
                UpstreamStep::Head | UpstreamStep::Data | UpstreamStep::End => return Ok(step),
            }
            let has_begun = self.side.has_response_begun();
            if has_begun {
                since = since.max(self.side.received_at());
            }
            let patience =
                if has_begun || self.is_sending { self.bounds.between } else { self.bounds.head_timeout };
            match self.wait(since + patience).await {
                Ok(()) => {}
                // The upstream still accepts bytes that were sent before, so the timeout starts again.
                Err(_) if self.is_sending && self.is_in_time() && self.side.has_progressed() => {
                    since = self.core().now();
                }
                Err(_) if has_begun => {
                    return Err(AttemptFailure::Body(
                        "the upstream took too long in the middle of a response",
                    ));
                }
                Err(_) => return Err(AttemptFailure::HeadTimeout),
            }
        }
    }

    fn is_in_time(&self) -> bool {
        self.core().now() < self.bounds.deadline
    }

    /// Sends as much as the upstream accepts; true if it accepted anything.
    fn send(&mut self) -> bool {
        let backlog = self.side.backlog();
        match self.side.try_flush() {
            Ok(flushed) => {
                (self.is_sending, self.was_sent) = (!flushed, flushed);
                flushed || self.side.backlog() != backlog
            }
            // The upstream may have responded before it closed, so its response is read next.
            Err(_) => {
                self.is_sending = false;
                self.side.abandon();
                false
            }
        }
    }

    /// Waits until either direction can continue, at most until `until` or the deadline of the whole
    /// request.
    async fn wait(&mut self, until: Moment) -> Result<(), Fault> {
        let is_short = self.core().memory().pressure() >= Pressure::High;
        self.side.release_buffers();
        self.held.set(self.side.update_memory(is_short));
        let until = until.min(self.bounds.deadline);
        let interest = if self.is_sending { self.side.interest(true) } else { Interest::READ };
        self.side.wait_alone(interest, until).await
    }
}
