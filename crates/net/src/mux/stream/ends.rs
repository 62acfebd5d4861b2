//! The end of a response: what the client has received, and the unread rest of the request.

use times::Millis;

use super::StreamLane;
use crate::inbound::BodyChunk;
use crate::source::{GONE, READ};
use crate::wait::{self, Interest};

/// Time for which the rest of a request is read and discarded after its response.
const DISCARD_TIME: Millis = Millis(1_000);
/// Maximum number of discarded bytes.
const DISCARD_BYTES_MAX: usize = 256 * 1024;

impl StreamLane {
    /// Whether the client has received any data of this stream since the last call.
    pub(crate) fn has_progressed(&mut self) -> bool {
        let taken_bytes = self.conn.acknowledged_bytes.get();
        let framed_at = self.conn.position(&self.shared);
        let seen_bytes = std::mem::replace(&mut self.reported_bytes, taken_bytes);
        seen_bytes < taken_bytes.min(framed_at)
    }

    /// Reads and discards the rest of the request for a short time. Clients that are still sending discard
    /// the response if their stream is reset at once.
    pub(crate) async fn discard_input(&mut self) {
        if self.must_send_continue || self.shared.is_tunnel.get() {
            return;
        }
        let until = self.conn.core.now() + DISCARD_TIME;
        (self.allowed_bytes, self.has_body_begun) = (http::body::NO_LIMIT, true);
        let mut left_bytes = DISCARD_BYTES_MAX;
        loop {
            let interest = match left_bytes {
                // The client may use up its window, which is no longer updated.
                0 => Interest(GONE),
                _ => match self.try_body_piece(true) {
                    Ok(BodyChunk::Data(start, end)) => {
                        left_bytes = left_bytes.saturating_sub(end - start);
                        continue;
                    }
                    Ok(BodyChunk::Pending) => Interest(READ),
                    Ok(BodyChunk::End) | Err(_) => return,
                },
            };
            self.update_memory();
            let waited = wait::ready(&self.conn.core, &self.shared.source, interest, until).await;
            if waited.is_err() || self.shared.is_reset() || self.shared.input.borrow().ended {
                return;
            }
        }
    }
}
