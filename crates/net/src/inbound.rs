//! Input of an HTTP/1 connection: request heads and bodies.

use http::Reject;
use http::machine::Step;

use crate::buffer_pool::ConnectionBuffers;
use crate::conn::Conn;
use crate::fault::Fault;
use crate::memory::Pressure;

/// Maximum size of an unread request body that is discarded to keep the connection.
const DISCARD_BYTES_MAX: u64 = 64 * 1024;
/// Minimum cost of a piece of a body: framing the smallest chunks costs more than their content.
pub const PIECE_WEIGHT_BYTES: usize = 64;

/// Available data of a request body.
pub(crate) enum BodyChunk {
    /// Content: start and end in the input.
    Data(usize, usize),
    /// The end of the body.
    End,
    /// No data until the client sends more.
    Pending,
}

/// Outcome of a read from the client.
pub(crate) enum ReadOutcome {
    /// Bytes were received.
    Bytes,
    /// No bytes are available.
    Nothing,
    /// The client sends no more.
    End,
}

impl Conn {
    /// Reads bytes of a head into the input.
    pub(crate) fn fill_head(&mut self) -> Result<ReadOutcome, Fault> {
        let head_bytes_max = self.context().limits.get().head.head_bytes_max;
        let read = self.link.try_read(self.buffers.input.room_for_head(head_bytes_max))?;
        Ok(match read {
            Some(0) => ReadOutcome::End,
            Some(len) => {
                self.buffers.input.filled(len);
                self.update_memory();
                ReadOutcome::Bytes
            }
            None => ReadOutcome::Nothing,
        })
    }

    /// Returns start and end of the next piece of the request body in the input; `None` at its end.
    /// `100 Continue` is not sent once the response has begun.
    pub(crate) async fn body_piece(&mut self, has_begun: bool) -> Result<Option<(usize, usize)>, Fault> {
        loop {
            match self.try_body_piece(has_begun)? {
                BodyChunk::Data(start, end) => {
                    self.consume_budget((end - start).max(PIECE_WEIGHT_BYTES)).await;
                    return Ok(Some((start, end)));
                }
                BodyChunk::End => return Ok(None),
                BodyChunk::Pending => {
                    self.flush().await?;
                    self.trim_buffers();
                    self.link.readable(self.after(self.body_timeout)).await?;
                }
            }
        }
    }

    /// Sets the maximum body size. Has no effect once the body is being read.
    pub(crate) fn limit_body(&mut self, bytes_max: u64) -> Result<(), Reject> {
        if self.body_limit.is_some() {
            self.body_limit = Some(bytes_max);
            self.buffers.machine.limit_body(bytes_max)?;
        }
        Ok(())
    }

    /// Like [`Conn::body_piece`], without waiting. Output must be flushed before a wait: it may contain the
    /// `100 Continue` that the client waits for.
    pub(crate) fn try_body_piece(&mut self, has_begun: bool) -> Result<BodyChunk, Fault> {
        if let Some(bytes_max) = self.body_limit {
            self.buffers.machine.limit_body(bytes_max)?;
            self.body_limit = None;
        }
        loop {
            let base = self.buffers.input.at;
            let limits = self.context().limits.get().head;
            let ConnectionBuffers { machine, input, .. } = &mut *self.buffers;
            let fed = machine.feed(input.unconsumed(), &limits)?;
            input.at += fed.consumed;
            let piece = match fed.step {
                Step::Data(span) => Some(BodyChunk::Data(base + span.start(), base + span.end())),
                Step::End => Some(BodyChunk::End),
                Step::Head | Step::NeedMore => None,
            };
            if let Some(piece) = piece {
                self.must_send_continue = false;
                return Ok(piece);
            }
            if !self.fill_body()? {
                if std::mem::take(&mut self.must_send_continue) && !has_begun {
                    self.buffers.out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
                }
                return Ok(BodyChunk::Pending);
            }
        }
    }

    /// Reads body bytes into the input. Returns false if none are available.
    fn fill_body(&mut self) -> Result<bool, Fault> {
        let is_short = self.pressure() >= Pressure::High;
        let read = self.link.try_read(self.buffers.room_for_body(is_short))?;
        self.update_memory();
        match read {
            Some(0) => Err(Fault::Reject(Reject::bad_request("body cut short"))),
            Some(len) => {
                self.buffers.input.filled(len);
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Whether the client still waits for `100 Continue` and has not begun to send the body.
    pub(crate) fn awaits_continue(&mut self) -> Result<bool, Fault> {
        self.must_send_continue = self.must_send_continue && !self.fill_body()?;
        Ok(self.must_send_continue)
    }

    /// Reads and discards the rest of the body. Returns false if it is too long for that.
    pub(crate) async fn discard_body(&mut self) -> Result<bool, Fault> {
        let mut discarded = 0;
        while !self.buffers.machine.body_ended() {
            let remaining = self.buffers.machine.body().and_then(http::body::Body::remaining).unwrap_or(0);
            if self.awaits_continue()? || discarded + remaining > DISCARD_BYTES_MAX {
                return Ok(false);
            }
            if let Some((start, end)) = self.body_piece(true).await? {
                discarded += (end - start) as u64;
            }
        }
        Ok(true)
    }
}
