//! Requests on a connection to another server.

use std::rc::Rc;

use http::{Fields, ResponseHead};
use times::Moment;

use super::options::{StreamFailure, StreamStep};
use super::shared::{ClientConn, ClientStream, ReceivedHead, head_bytes};
use crate::core::Core;
use crate::fault::Fault;
use crate::mux::MuxRequest;
use crate::source::{READ, Source, WRITE};
use crate::wait::{self, Interest};

/// A request and its response. Dropping it resets the stream if the exchange is incomplete.
pub struct MuxRequestStream {
    conn: Rc<ClientConn>,
    stream: Rc<ClientStream>,
    head: ReceivedHead,
    piece: Vec<u8>,
    /// Bytes of `piece` for which no window update was sent.
    ungranted_bytes: usize,
    is_reused: bool,
    has_begun: bool,
    /// Bytes that the server had received at the last call of [`MuxRequestStream::has_progressed`].
    reported_bytes: u64,
}

impl MuxRequestStream {
    pub(crate) fn open(conn: &Rc<ClientConn>, request: &MuxRequest<'_>) -> Option<MuxRequestStream> {
        if !conn.can_begin() {
            return None;
        }
        let id = conn.protocol.borrow_mut().request(request)?;
        let is_reused = conn.requests_begun() > 0;
        let stream = conn.add(id, request.method);
        stream.shared.output.borrow_mut().ended = request.has_no_body;
        let stream = MuxRequestStream {
            conn: conn.clone(),
            stream,
            head: (ResponseHead::default(), Vec::new()),
            piece: Vec::new(),
            ungranted_bytes: 0,
            is_reused,
            has_begun: false,
            reported_bytes: 0,
        };
        Some(stream)
    }

    /// Whether the connection has carried other requests before.
    #[must_use]
    pub fn is_reused(&self) -> bool {
        self.is_reused
    }

    /// Returns the time at which a part of the response was last received, in milliseconds of the core's
    /// clock; 0 if none was.
    #[must_use]
    pub fn received_at(&self) -> Moment {
        self.stream.received_at.get()
    }

    /// Whether [`MuxRequestStream::step`] has returned the head of the final response.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Returns the core that owns the stream.
    #[must_use]
    pub fn core(&self) -> &Core {
        &self.conn.core
    }

    /// Returns the source that is readable when the response has more, and writable when the request has room.
    pub(crate) fn source(&self) -> &Source {
        &self.stream.shared.source
    }

    /// Waits until the stream meets the interest, at most until `deadline` of the core's clock.
    ///
    /// # Errors
    /// [`Fault::Timeout`] at the deadline.
    pub async fn ready_for(&self, interest: Interest, deadline: Moment) -> Result<(), Fault> {
        wait::ready(&self.conn.core, self.source(), interest, deadline).await
    }

    fn update_memory(&self) {
        let own = self.piece.capacity() + head_bytes(&self.head);
        self.conn.set_stream_bytes(&self.stream, self.stream.weight_bytes() + own);
    }

    // ---- the response ----

    /// Returns the next part of the response. The part returned before counts as read, so the server's window
    /// is updated.
    ///
    /// # Errors
    /// Returns the reason if the response has failed.
    pub fn step(&mut self) -> Result<StreamStep, StreamFailure> {
        let granted = std::mem::take(&mut self.ungranted_bytes);
        if granted > 0 {
            self.conn.protocol.borrow_mut().grant(self.stream.shared.id, granted);
            self.conn.notify();
        }
        self.piece.clear();
        if let Some(head) = self.stream.heads.borrow_mut().pop_front() {
            self.head = head;
            self.has_begun = !self.head.0.status.is_informational();
            return Ok(StreamStep::Head);
        }
        let mut input = self.stream.shared.input.borrow_mut();
        if !input.bytes.is_empty() {
            std::mem::swap(&mut self.piece, &mut input.bytes);
            self.ungranted_bytes = self.piece.len();
            return Ok(StreamStep::Data);
        }
        if input.ended {
            return Ok(StreamStep::End);
        }
        drop(input);
        if let Some(failure) = self.stream.failure.get() {
            return Err(failure);
        }
        self.stream.shared.source.clear(READ);
        // Release the buffers while nothing is received.
        self.piece = Vec::new();
        self.stream.shared.input.borrow_mut().bytes = Vec::new();
        self.update_memory();
        Ok(StreamStep::Pending)
    }

    /// Returns the head of the last [`StreamStep::Head`] and the bytes that its spans refer to.
    #[must_use]
    pub fn head(&self) -> (&ResponseHead, &[u8]) {
        (&self.head.0, &self.head.1)
    }

    /// Returns the content of the last [`StreamStep::Data`].
    #[must_use]
    pub fn data(&self) -> &[u8] {
        &self.piece
    }

    /// Returns the trailers of the response.
    #[must_use]
    pub fn trailers(&self) -> Fields {
        self.stream.shared.input.borrow().trailers.clone()
    }

    // ---- the request's body ----

    /// Appends content, which the connection sends as its windows permit.
    pub fn offer(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() && !self.stream.shared.is_reset() {
            self.stream.shared.output.borrow_mut().push(bytes);
            self.update_memory();
            self.conn.enqueue(&self.stream);
        }
    }

    /// Completes the request with these trailers.
    pub fn finish(&mut self, trailers: Fields) {
        let mut output = self.stream.shared.output.borrow_mut();
        if !output.ended && !self.stream.shared.is_reset() {
            output.end = Some(trailers);
            drop(output);
            self.conn.enqueue(&self.stream);
        }
    }

    /// Returns the number of unsent bytes of the request.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.stream.shared.output.borrow().len()
    }

    /// Whether a part of the request is unsent. If so, the stream is writable again after progress.
    #[must_use]
    pub fn has_pending_output(&self) -> bool {
        let is_behind = self.stream.shared.output.borrow().is_waiting();
        if is_behind {
            self.stream.shared.source.clear(WRITE);
        }
        is_behind
    }

    /// Whether the server is known to have received any of this request since the last call.
    pub fn has_progressed(&mut self) -> bool {
        let taken_bytes = self.conn.acknowledged_bytes.get();
        let framed_at = self.conn.position(&self.stream.shared);
        let seen_bytes = std::mem::replace(&mut self.reported_bytes, taken_bytes);
        seen_bytes < taken_bytes.min(framed_at)
    }

    /// Whether the request cannot be sent: the server has reset the stream, or the connection has ended.
    #[must_use]
    pub fn is_send_closed(&self) -> bool {
        self.stream.shared.is_reset()
    }

    /// Discards the unsent part of the request.
    pub fn discard_output(&mut self) {
        let mut output = self.stream.shared.output.borrow_mut();
        (output.bytes, output.at, output.end) = (Vec::new(), 0, None);
    }
}

impl Drop for MuxRequestStream {
    fn drop(&mut self) {
        self.conn.remove(&self.stream);
    }
}
