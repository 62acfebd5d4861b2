//! The progress timeout of all sending: how long a peer has accepted nothing.
//!
//! Progress is what the peer's kernel acknowledges. The length of the socket's send queue shows this to the
//! byte, with and without TLS; epoll reports room only when a third of the send buffer, which may be
//! megabytes, is free.

use crate::fault::Fault;
use crate::memory::Pressure;
use crate::stream::Stream;

/// Interval at which a wait for room checks the peer's progress and the memory pressure.
const CHECK_INTERVAL_MS: u64 = 2_000;
/// Maximum time without progress while memory is critically short.
const WRITE_MS_LOW_MEMORY: u64 = 5_000;

/// Returns the time in milliseconds for which a client may accept nothing, if its route allows `write_ms`.
pub(crate) fn stall_timeout_ms(write_ms: u64, pressure: Pressure) -> u64 {
    if pressure >= Pressure::Critical { write_ms.min(WRITE_MS_LOW_MEMORY) } else { write_ms }
}

/// Observed progress of a stream's peer.
#[derive(Debug, Default)]
pub struct SendProgress {
    /// [`Stream::sent`] at the last check.
    sent: u32,
    /// Length of the send queue at the last check.
    queued: u32,
    /// Time since which nothing was accepted; `None` if nothing is being sent.
    since_ms: Option<u64>,
}

impl SendProgress {
    /// Returns the time since which the peer has accepted nothing, as far as is known without a system call.
    /// The first call starts the clock.
    pub fn since_ms(&mut self, stream: &Stream) -> u64 {
        if std::mem::replace(&mut self.sent, stream.sent()) != stream.sent() {
            self.since_ms = None;
        }
        *self.since_ms.get_or_insert_with(|| stream.core().now_ms())
    }

    /// Asks the kernel. Returns true if the peer has accepted data since the last call, but not everything.
    /// The time at which a peer accepted the last byte is unknown, so an empty queue does not restart the
    /// clock.
    pub fn check(&mut self, stream: &Stream) -> bool {
        let before = (self.sent, self.queued);
        (self.sent, self.queued) = (stream.sent(), stream.queued());
        let is_taking = self.queued > 0 && before != (self.sent, self.queued);
        if is_taking {
            self.since_ms = Some(stream.core().now_ms());
        }
        is_taking
    }

    /// Returns the number of bytes that the peer had not acknowledged at the last check.
    #[must_use]
    pub fn queued(&self) -> u32 {
        self.queued
    }

    /// Stops the clock, because nothing is being sent.
    pub fn stop(&mut self) {
        self.since_ms = None;
    }

    /// Waits for room, at most until progress should be checked again.
    ///
    /// # Errors
    /// [`Fault::Timeout`] if the peer has accepted nothing for `patience_ms`.
    pub async fn wait_for_room(&mut self, stream: &Stream, stall_timeout_ms: u64) -> Result<(), Fault> {
        let now_ms = stream.core().now_ms();
        let until_ms = self.since_ms(stream).saturating_add(stall_timeout_ms);
        if now_ms >= until_ms {
            return Err(Fault::Timeout);
        }
        let look_ms = now_ms + CHECK_INTERVAL_MS.min(stall_timeout_ms / 2).max(1);
        match stream.writable(until_ms.min(look_ms)).await {
            Err(Fault::Timeout) => {
                self.check(stream);
                Ok(())
            }
            done => done,
        }
    }
}
