//! The progress timeout of everything that is sent: how long a peer has taken nothing.
//!
//! A peer takes what its kernel acknowledges. The size of the socket's send queue shows this to the byte, in the clear and through TLS;
//! epoll reports room only when a third of the send buffer is free, which may be megabytes.

use crate::fault::Fault;
use crate::memory::Pressure;
use crate::stream::Stream;

/// How often a wait for room asks the kernel whether the peer takes anything, and whether memory is short by now.
const LOOK_MS: u64 = 2_000;
/// The most that a client may go without taking a byte of a response while memory is critically short.
const WRITE_MS_SHORT: u64 = 5_000;

/// Milliseconds that a client may take nothing, where its route allows `write_ms`.
pub(crate) fn patience_ms(write_ms: u64, pressure: Pressure) -> u64 {
    if pressure >= Pressure::Critical { write_ms.min(WRITE_MS_SHORT) } else { write_ms }
}

/// What the peer of a stream was seen to take.
#[derive(Debug, Default)]
pub struct SendProgress {
    /// [`Stream::sent`] at the last look.
    sent: u32,
    /// Bytes in the send queue at the last look.
    queued: u32,
    /// Since when nothing was taken; `None` while nothing is waited for.
    since_ms: Option<u64>,
}

impl SendProgress {
    /// Since when the peer has taken nothing, as far as is known without a system call. The first call starts the clock.
    pub fn since_ms(&mut self, stream: &Stream) -> u64 {
        if std::mem::replace(&mut self.sent, stream.sent()) != stream.sent() {
            self.since_ms = None;
        }
        *self.since_ms.get_or_insert_with(|| stream.core().now_ms())
    }

    /// Asks the kernel: true where the peer has taken something since the last call, and has not taken everything. Since when it has
    /// everything is not known, so that starts no clock again.
    pub fn look(&mut self, stream: &Stream) -> bool {
        let before = (self.sent, self.queued);
        (self.sent, self.queued) = (stream.sent(), stream.queued());
        let is_taking = self.queued > 0 && before != (self.sent, self.queued);
        if is_taking {
            self.since_ms = Some(stream.core().now_ms());
        }
        is_taking
    }

    /// Bytes that the peer had not acknowledged at the last look.
    #[must_use]
    pub fn queued(&self) -> u32 {
        self.queued
    }

    /// Nothing is waited for: the clock stops.
    pub fn stop(&mut self) {
        self.since_ms = None;
    }

    /// Waits for room, or until it is worth looking again whether the peer takes anything.
    ///
    /// # Errors
    /// [`Fault::Timeout`] where it has taken nothing for `patience_ms`.
    pub async fn room(&mut self, stream: &Stream, patience_ms: u64) -> Result<(), Fault> {
        let now_ms = stream.core().now_ms();
        let until_ms = self.since_ms(stream).saturating_add(patience_ms);
        if now_ms >= until_ms {
            return Err(Fault::Timeout);
        }
        let look_ms = now_ms + LOOK_MS.min(patience_ms / 2).max(1);
        match stream.writable(until_ms.min(look_ms)).await {
            Err(Fault::Timeout) => {
                self.look(stream);
                Ok(())
            }
            done => done,
        }
    }
}
