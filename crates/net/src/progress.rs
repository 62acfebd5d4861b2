//! The progress timeout of all sending: how long a peer has accepted nothing.
//!
//! Progress is what the peer's kernel acknowledges. The length of the socket's send queue shows this to the
//! byte, with and without TLS; epoll reports room only when a third of the send buffer, which may be
//! megabytes, is free.

use times::{Millis, Moment};

use crate::fault::Fault;
use crate::memory::Pressure;
use crate::stream::Stream;

/// Interval at which a wait for room checks the peer's progress and the memory pressure.
const CHECK_INTERVAL: Millis = Millis(2_000);
/// Maximum time without progress while memory is critically short.
const WRITE_TIMEOUT_LOW_MEMORY: Millis = Millis(5_000);

/// Returns the time in milliseconds for which a client may accept nothing, if its route allows `write_timeout`.
pub(crate) fn stall_timeout(write_timeout: Millis, pressure: Pressure) -> Millis {
    if pressure >= Pressure::Critical { write_timeout.min(WRITE_TIMEOUT_LOW_MEMORY) } else { write_timeout }
}

/// Observed progress of a stream's peer.
#[derive(Debug, Default)]
pub struct SendProgress {
    /// [`Stream::sent`] at the last check.
    sent: u32,
    /// Length of the send queue at the last check.
    queued: u32,
    /// Time since which nothing was accepted; `None` if nothing is being sent.
    since: Option<Moment>,
}

impl SendProgress {
    /// Returns the time since which the peer has accepted nothing, as far as is known without a system call.
    /// The first call starts the clock.
    pub fn since(&mut self, stream: &Stream) -> Moment {
        if std::mem::replace(&mut self.sent, stream.sent()) != stream.sent() {
            self.since = None;
        }
        *self.since.get_or_insert_with(|| stream.core().now())
    }

    /// Asks the kernel. Returns true if the peer has accepted data since the last call, but not everything.
    /// The time at which a peer accepted the last byte is unknown, so an empty queue does not restart the
    /// clock.
    pub fn check(&mut self, stream: &Stream) -> bool {
        let before = (self.sent, self.queued);
        (self.sent, self.queued) = (stream.sent(), stream.queued());
        let is_taking = self.queued > 0 && before != (self.sent, self.queued);
        if is_taking {
            self.since = Some(stream.core().now());
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
        self.since = None;
    }

    /// Waits for room, at most until progress should be checked again.
    ///
    /// # Errors
    /// [`Fault::Timeout`] if the peer has accepted nothing for `stall_timeout`.
    pub async fn wait_for_room(&mut self, stream: &Stream, stall_timeout: Millis) -> Result<(), Fault> {
        let now = stream.core().now();
        let until = self.since(stream) + stall_timeout;
        if now >= until {
            return Err(Fault::Timeout);
        }
        let look = now + CHECK_INTERVAL.min(stall_timeout / 2).max(Millis(1));
        match stream.writable(until.min(look)).await {
            Err(Fault::Timeout) => {
                self.check(stream);
                Ok(())
            }
            done => done,
        }
    }
}
