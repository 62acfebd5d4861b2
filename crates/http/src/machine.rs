//! State machines for both ends of an HTTP/1 connection: bytes in, steps out.
//!
//! ```text
//!            feed                feed…              next
//!   Head ───────────▶ Body ───────────────▶ End ───────────▶ Head
//!     └── reject ─────────┴── reject ──▶ (the connection is closed)
//! ```

use crate::body::{Body, NO_LIMIT};
use crate::line::Limits;
use crate::method::Method;
use crate::reject::Reject;
use crate::request::RequestHead;
use crate::response::ResponseHead;
use crate::span::Span;

/// The result of feeding bytes to the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// More bytes are needed. Bytes of an unfinished head are not consumed: feed them again together with
    /// those that follow.
    NeedMore,
    /// The head is complete and consumed; its spans point into the bytes just fed.
    Head,
    /// A range of content bytes in the slice just fed.
    Data(Span),
    /// The message is complete.
    End,
}

/// A step and the number of bytes it consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedResult {
    /// Bytes consumed; feed from the next one.
    pub consumed: usize,
    /// The step.
    pub step: Step,
}

#[derive(Debug, Default)]
enum MessagePhase {
    #[default]
    Head,
    Body(Body),
}

impl MessagePhase {
    fn feed_body(body: &mut Body, bytes: &[u8], limits: &Limits) -> Result<FeedResult, Reject> {
        // A span has 32 bits: any further bytes are left for the next step.
        let bytes = &bytes[..bytes.len().min(u32::MAX as usize)];
        let piece = body.feed(bytes, limits)?;
        let step = match (piece.data_start < piece.data_end, body.is_end()) {
            (true, _) => Step::Data(Span::new(piece.data_start, piece.data_end)),
            (false, true) => Step::End,
            (false, false) => Step::NeedMore,
        };
        Ok(FeedResult { consumed: piece.consumed, step })
    }
}

/// The server side: reads requests.
#[derive(Debug, Default)]
pub struct ServerMachine {
    /// The request being read or served.
    pub head: RequestHead,
    phase: MessagePhase,
}

impl ServerMachine {
    /// Processes bytes. In the head phase `bytes` begins with the head's first byte.
    ///
    /// # Errors
    /// A [`Reject`]: the caller answers with its status and closes the connection.
    pub fn feed(&mut self, bytes: &[u8], limits: &Limits) -> Result<FeedResult, Reject> {
        match &mut self.phase {
            MessagePhase::Body(body) => {
                MessagePhase::feed_body(body, bytes, &Limits { lenient_heads: false, ..*limits })
            }
            MessagePhase::Head if !self.head.parse(bytes, limits)? => {
                Ok(FeedResult { consumed: 0, step: Step::NeedMore })
            }
            MessagePhase::Head => {
                self.phase = MessagePhase::Body(Body::new(self.head.framing, NO_LIMIT)?);
                Ok(FeedResult { consumed: self.head.len, step: Step::Head })
            }
        }
    }

    /// Sets the maximum length of the body; must be called before the body is read.
    ///
    /// # Errors
    /// 413 if the announced length exceeds it.
    pub fn limit_body(&mut self, bytes_max: u64) -> Result<(), Reject> {
        if let MessagePhase::Body(body) = &mut self.phase {
            body.limit(bytes_max)?;
        }
        Ok(())
    }

    /// The body decoder; `None` until the head is complete.
    #[must_use]
    pub fn body(&self) -> Option<&Body> {
        match &self.phase {
            MessagePhase::Head => None,
            MessagePhase::Body(body) => Some(body),
        }
    }

    /// Whether the body has been read completely (or there is none).
    #[must_use]
    pub fn body_ended(&self) -> bool {
        self.body().is_some_and(Body::is_end)
    }

    /// Starts the next request.
    ///
    /// # Panics
    /// If the body has not ended: its remaining bytes would be parsed as a request.
    pub fn next(&mut self) {
        assert!(self.body_ended(), "the next request begins after the body");
        self.restart();
    }

    /// Resets the machine for another connection; keeps the memory.
    pub fn restart(&mut self) {
        if !(matches!(self.phase, MessagePhase::Head) && self.head.is_untouched()) {
            self.head.reset();
            self.phase = MessagePhase::Head;
        }
    }
}

/// The client side: reads responses.
#[derive(Debug, Default)]
pub struct ClientMachine {
    /// The response being read.
    pub head: ResponseHead,
    phase: MessagePhase,
}

impl ClientMachine {
    /// Processes bytes of the response to a request of that method. A 1xx head (except 101) is a separate
    /// message: call [`ClientMachine::next`] and continue.
    ///
    /// # Errors
    /// A [`Reject`]: the connection must not be reused.
    pub fn feed(&mut self, bytes: &[u8], method: Method, limits: &Limits) -> Result<FeedResult, Reject> {
        match &mut self.phase {
            MessagePhase::Body(body) => MessagePhase::feed_body(body, bytes, limits),
            MessagePhase::Head if !self.head.parse(bytes, method, limits)? => {
                Ok(FeedResult { consumed: 0, step: Step::NeedMore })
            }
            MessagePhase::Head => {
                self.phase = MessagePhase::Body(Body::new(self.head.framing, NO_LIMIT)?);
                Ok(FeedResult { consumed: self.head.len, step: Step::Head })
            }
        }
    }

    /// Notifies the machine that the sender closed its side, which may complete the response.
    ///
    /// # Errors
    /// If bytes are missing.
    pub fn eof(&mut self) -> Result<(), Reject> {
        match &mut self.phase {
            MessagePhase::Head => Err(Reject::bad_request("closed before a whole head")),
            MessagePhase::Body(body) => body.eof(),
        }
    }

    /// The body decoder; `None` until the head is complete.
    #[must_use]
    pub fn body(&self) -> Option<&Body> {
        match &self.phase {
            MessagePhase::Head => None,
            MessagePhase::Body(body) => Some(body),
        }
    }

    /// Whether the connection can carry another request now. After a 1xx it cannot: the final response is
    /// still to come.
    #[must_use]
    pub fn is_reusable(&self) -> bool {
        self.head.keep_alive && !self.head.status.is_informational() && self.body().is_some_and(Body::is_end)
    }

    /// Starts the next response.
    pub fn next(&mut self) {
        if !(matches!(self.phase, MessagePhase::Head) && self.head.is_untouched()) {
            self.head.reset();
            self.phase = MessagePhase::Head;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "the next request begins after the body")]
    fn next_request_before_the_end_of_the_body_panics() {
        let mut server = ServerMachine::default();
        let head = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\n";
        assert_eq!(server.feed(head, &Limits::default()).map(|fed| fed.step), Ok(Step::Head));
        server.next();
    }

    #[test]
    fn client_connection_is_reusable_only_after_the_response() {
        for (bytes, reusable) in [
            ("HTTP/1.1 100 Continue\r\n\r\n", false),
            ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", true),
            ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n", false),
            ("HTTP/1.1 200 OK\r\n\r\n", false),
        ] {
            let mut client = ClientMachine::default();
            assert!(!client.is_reusable());
            let fed = client.feed(bytes.as_bytes(), Method::Get, &Limits::default());
            assert_eq!(fed.map(|fed| fed.step), Ok(Step::Head));
            assert_eq!(client.is_reusable(), reusable, "{bytes:?}");
        }
    }
}
