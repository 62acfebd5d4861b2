//! How fast a response may leave: a token bucket of bytes for each limited response.
//!
//! Whatever sends bytes asks for [`ResponseBucket::room`] first. Where there is none, it behaves as if the client took nothing now, and
//! [`ResponseBucket::pause`] has the core report room again when the bucket has refilled. So a handler waits as it does for a slow client.

use std::cell::{Cell, RefCell};

use crate::core::{Core, SourceTimer};
use crate::source::Source;

/// Bytes that leave together at least, unless that is more than the rate gives in a second.
const PIECE_BYTES_MIN: u64 = 16 * 1024;
/// Pieces in a second, at rates that make them larger than that.
const PIECES_A_SECOND: u64 = 10;
/// The bucket holds thousandths of bytes: what a byte a second gives in a millisecond.
const THOUSANDTHS: u64 = 1_000;
/// A longer silence refills no more. It keeps the numbers small.
const REFILL_MS_MAX: u64 = 2_000;
/// No rate is higher: a tebibyte a second.
const RATE_MAX: u64 = 1 << 40;

/// How fast a response may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bandwidth {
    /// Bytes a second.
    pub bytes_per_s: u64,
    /// Bytes at the beginning of the response that are not limited.
    pub after_bytes: u64,
}

/// The bytes that one response may send.
#[derive(Debug)]
pub(crate) struct ResponseBucket {
    bytes_per_s: u64,
    /// Bytes that the bucket holds at most, and that leave together at most.
    piece_bytes: u64,
    /// Bytes that are not limited and were not sent yet.
    unlimited_bytes: Cell<u64>,
    /// Thousandths of bytes in the bucket, at that time.
    held: Cell<u64>,
    at_ms: Cell<u64>,
    /// Until then nothing is sent: the bucket was empty, and refills.
    paused_until_ms: Cell<u64>,
    timer: RefCell<Option<SourceTimer>>,
    /// Whether the connection keeps its stream among those that are paused.
    pub(crate) is_listed: Cell<bool>,
}

impl ResponseBucket {
    /// For a response that begins now. Its first bytes leave at once.
    pub(crate) fn new(bandwidth: Bandwidth, now_ms: u64) -> ResponseBucket {
        let bytes_per_s = bandwidth.bytes_per_s.clamp(1, RATE_MAX);
        let piece_bytes = (bytes_per_s / PIECES_A_SECOND).max(PIECE_BYTES_MIN.min(bytes_per_s));
        ResponseBucket {
            bytes_per_s,
            piece_bytes,
            unlimited_bytes: Cell::new(bandwidth.after_bytes),
            held: Cell::new(piece_bytes.min(PIECE_BYTES_MIN) * THOUSANDTHS),
            at_ms: Cell::new(now_ms),
            paused_until_ms: Cell::new(0),
            timer: RefCell::default(),
            is_listed: Cell::new(false),
        }
    }

    /// The longest that the limit itself keeps a response from being sent, in milliseconds: at most a second.
    pub(crate) fn pause_ms(&self) -> u64 {
        (self.piece_bytes * 1_000).div_ceil(self.bytes_per_s)
    }

    /// Bytes that may be sent now. With none, [`ResponseBucket::pause`] waits for more.
    pub(crate) fn room(&self, now_ms: u64) -> usize {
        let unlimited_bytes = self.unlimited_bytes.get();
        if unlimited_bytes > 0 {
            // What is limited is counted from the end of that.
            self.at_ms.set(now_ms);
            return usize::try_from(unlimited_bytes).unwrap_or(usize::MAX);
        }
        if now_ms < self.paused_until_ms.get() {
            return 0;
        }
        let passed_ms = now_ms.saturating_sub(self.at_ms.replace(now_ms)).min(REFILL_MS_MAX);
        let refilled = self.held.get() + passed_ms * self.bytes_per_s;
        self.held.set(refilled.min(self.piece_bytes * THOUSANDTHS));
        (self.held.get() / THOUSANDTHS) as usize
    }

    /// So many bytes were sent, no more than there was room for.
    pub(crate) fn spend(&self, bytes: usize) {
        let (bytes, unlimited_bytes) = (bytes as u64, self.unlimited_bytes.get());
        if unlimited_bytes > 0 {
            return self.unlimited_bytes.set(unlimited_bytes.saturating_sub(bytes));
        }
        self.held.set(self.held.get().saturating_sub(bytes * THOUSANDTHS));
    }

    /// Whether it has been empty and waits to be full.
    pub(crate) fn is_paused(&self) -> bool {
        self.timer.borrow().is_some()
    }

    /// Has `source` made ready again when the bucket is full.
    pub(crate) fn pause(&self, core: &Core, source: &Source, bits: u8) {
        let now_ms = core.now_ms();
        if now_ms >= self.paused_until_ms.get() {
            self.paused_until_ms.set(now_ms + self.pause_ms());
        }
        let mut timer = self.timer.borrow_mut();
        if timer.as_ref().is_none_or(|timer| timer.at_ms() < self.paused_until_ms.get()) {
            *timer = Some(core.raise_at(source, bits, self.paused_until_ms.get()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(bytes_per_s: u64, after_bytes: u64) -> ResponseBucket {
        ResponseBucket::new(Bandwidth { bytes_per_s, after_bytes }, 0)
    }

    /// Sends what a bucket allows, asking each `step_ms`, for so long. Returns how much, and the largest piece.
    fn sent(bucket: &ResponseBucket, step_ms: u64, until_ms: u64) -> (u64, u64) {
        let (mut sent, mut largest) = (0, 0);
        for now_ms in (0..=until_ms).step_by(step_ms as usize) {
            let room = bucket.room(now_ms);
            bucket.spend(room);
            (sent, largest) = (sent + room as u64, largest.max(room as u64));
        }
        (sent, largest)
    }

    #[test]
    fn what_leaves_is_the_rate_in_small_pieces_however_often_it_is_asked() {
        for rate in [1, 1_000, 16 * 1024, 100_000, 1_000_000, 1 << 30, 1 << 40] {
            for step_ms in [1, 7, 100, 250] {
                let bucket = bucket(rate, 0);
                let (sent, largest) = sent(&bucket, step_ms, 60_000);
                let first = PIECE_BYTES_MIN.min(rate);
                assert!(sent <= 60 * rate + first, "{rate}: {sent}");
                assert!(largest <= (rate / 10).max(PIECE_BYTES_MIN), "{rate}: {largest}");
                // A bucket that is asked less often than it is full gives less.
                if step_ms <= bucket.pause_ms() {
                    assert!(sent >= 60 * rate - rate.min(largest), "{rate}: {sent}");
                }
            }
        }
    }

    #[test]
    fn the_beginning_is_not_limited_and_fills_nothing() {
        let bucket = bucket(1_000_000, 5_000_000);
        assert_eq!(bucket.room(0), 5_000_000);
        bucket.spend(4_000_000);
        assert_eq!(bucket.room(10_000), 1_000_000);
        bucket.spend(1_000_000);
        assert_eq!(bucket.room(10_000), PIECE_BYTES_MIN as usize);
    }

    #[test]
    fn a_pause_is_at_most_a_second() {
        for rate in [0, 1, 1_023, 16 * 1024, 1 << 20, u64::MAX] {
            assert!(bucket(rate, 0).pause_ms() <= 1_000, "{rate}");
        }
    }

    #[test]
    fn a_client_that_read_nothing_for_long_gets_no_more_at_once_than_others() {
        let bucket = bucket(100_000, 0);
        assert_eq!(bucket.room(86_400_000), PIECE_BYTES_MIN as usize);
    }
}
