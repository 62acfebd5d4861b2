//! Sizes, the clock of QUIC, and splitting of packets that the kernel has joined: shared by the sockets of both ends.

use std::time::{Duration, Instant};

use bytes::BytesMut;
use times::{Millis, Moment};

use crate::core::Core;

/// Number of receive buffers for one system call.
pub(crate) const RECEIVE_BUFFERS: usize = 4;
/// Bytes moved before other tasks run.
pub(crate) const TURN_BYTES_MAX: usize = 256 * 1024;
/// Maximum number of packets in one system call.
pub(crate) const SEGMENTS_MAX: usize = 44;
/// Maximum number of requests of a client at once. RFC 9114 section 6.1 wants at least 100.
pub(crate) const REQUESTS_MAX: usize = 100;
/// Number of requests at once that a client may have until it has had half of them. QUIC keeps entries of 40 bytes for
/// each stream that a peer may open, and most connections need few. The first requests of most pages leave at once.
pub(crate) const REQUESTS_FIRST: usize = 32;
/// Unidirectional streams of a peer: control, QPACK encoder and decoder, and some of unknown types. With
/// [`REQUESTS_FIRST`], QUIC's tables have 64 places, which suffice for 56 entries.
pub(crate) const UNIDIRECTIONAL_STREAMS_MAX: u32 = 8;

/// The core's clock, as QUIC reads it.
pub(crate) struct QuicClock {
    core: Core,
    /// The same time on both clocks; on the core's in microseconds.
    epoch: (Instant, u64),
}

impl QuicClock {
    pub(crate) fn new(core: &Core) -> QuicClock {
        QuicClock { core: core.clone(), epoch: (Instant::now(), core.now_us()) }
    }

    /// Returns the time of this turn.
    pub(crate) fn now(&self) -> Instant {
        self.epoch.0 + Duration::from_micros(self.core.now_us().saturating_sub(self.epoch.1))
    }

    /// Returns the time on the core's clock, rounded up to the next millisecond.
    pub(crate) fn moment(&self, at: Instant) -> Moment {
        let left = at.saturating_duration_since(self.now());
        self.core.now() + Millis(u64::try_from(left.as_micros().div_ceil(1000)).unwrap_or(u64::MAX / 4))
    }
}

/// Calls `each` with the packets of `stride` bytes in a receive buffer, of which the last may be shorter.
pub(crate) fn for_each_packet(joined: &[u8], stride: usize, mut each: impl FnMut(BytesMut)) {
    let mut packets = BytesMut::from(joined);
    while !packets.is_empty() {
        each(packets.split_to(stride.max(1).min(packets.len())));
    }
}
