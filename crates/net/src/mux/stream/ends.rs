//! The end of a response: what the client has received, and the unread rest of the request.

use super::StreamLane;
use crate::inbound::BodyChunk;
use crate::source::{GONE, READ};
use crate::wait::{self, Interest};

impl StreamLane {
    /// Whether the client has received any data of this stream since the last call.
    pub(crate) fn has_progressed(&mut self) -> bool {
        let taken_bytes = self.conn.acknowledged_bytes.get();
        let framed_at = self.conn.position(&self.shared);
        let seen_bytes = std::mem::replace(&mut self.reported_bytes, taken_bytes);
        seen_bytes < taken_bytes.min(framed_at)
    }

    /// Reads and discards the rest of the request, within the protocol's limits.
    pub(crate) async fn discard_input(&mut self) {
        if self.must_send_continue || self.shared.is_tunnel.get() {
            return;
        }
        let (time, mut left_bytes) = self.conn.machine.borrow().discard_limits();
        let until = self.conn.core.now() + time;
        (self.allowed_bytes, self.has_body_begun) = (http::body::NO_LIMIT, true);
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
