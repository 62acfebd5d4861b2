//! Bandwidth limits of responses: a token bucket of bytes for each limited response.
//!
//! Senders ask for [`ResponseBucket::available_bytes`] first. If there is none, they behave as if the socket's buffer
//! were full, and [`ResponseBucket::pause`] has the core report the source as ready when the bucket has
//! refilled. A handler therefore waits as it does for a slow client.

use std::cell::{Cell, RefCell};

use settings::checker::InvalidValue;
use settings::directive_table::brief;
use settings::directives;
use settings::shape::{Maybe, Shape, Size, Text, Toggle};
use settings::units::{self, GIB, KIB};
use times::{Millis, Moment};

use crate::core::{Core, SourceTimer};
use crate::source::Source;

/// Smallest piece that is sent at once, unless the rate is less than this a second.
const PIECE_BYTES_MIN: u64 = 16 * 1024;
/// Number of pieces a second, at rates at which these are larger than [`PIECE_BYTES_MIN`].
const PIECES_PER_SECOND: u64 = 10;
/// Units of the bucket in a byte: one byte a second adds one unit a millisecond.
const UNITS_PER_BYTE: u64 = 1_000;
/// Longest period that refills the bucket; prevents overflow.
const REFILL_MAX: Millis = Millis(2_000);
/// Highest rate, in bytes a second: one tebibyte.
const RATE_MAX: u64 = 1 << 40;

const BYTE_RATE: Text<u64> = Text { what: "bytes a second such as \"1MiB/s\"", parse: parse_rate };

/// `bandwidth` of a site or a route; if absent, the level above applies.
pub fn policy() -> impl Shape<Out = Option<Option<BandwidthLimit>>> {
    Maybe(Toggle { on: None, off: || None, shape: Maybe(brief::<BandwidthLimit>("rate")) })
}

directives! {
    /// Rate at which a response is sent. A rate alone is shorthand for `rate`. `false` exempts a route of a site
    /// that has a limit.
    ///
    /// ```toml
    /// [[route]]
    /// path      = "/downloads/*"
    /// files     = "/srv/downloads"
    /// bandwidth = { rate = "1MiB/s", after = "10MiB" }
    /// ```
    ///
    /// The rate applies to each response: a client that sends two requests at once gets twice as much. Use
    /// `concurrent` of `limit` to bound that. The limit covers files, upstream servers, applications and the
    /// cache, over HTTP/1 and HTTP/2. Upgraded connections (WebSocket) are not limited.
    BandwidthLimit in "`bandwidth` of a site or route" {
        /// Bytes a second, from `"1KiB/s"` to `"1TiB/s"`.
        "rate" bytes_per_s: u64 = required(""), BYTE_RATE;
        /// Bytes at the beginning of each response that are not limited.
        "after" after_bytes: u64 = "0B", Size { min: 0, max: 1024 * GIB };
    }
}

fn parse_rate(text: &str) -> Result<u64, InvalidValue> {
    let remedy = "write a size and `/s`, such as \"1MiB/s\" or \"500KiB/s\"";
    let Some(size) = text.strip_suffix("/s") else {
        return Err(InvalidValue::new("this is not a rate of bytes", remedy));
    };
    // The remedy is one for a whole rate.
    let in_rate =
        |fault: InvalidValue| match fault.remedy.split_once('"').and_then(|(_, rest)| rest.split_once('"')) {
            Some((size, _)) => InvalidValue { remedy: format!("write \"{size}/s\""), ..fault },
            None => fault,
        };
    let bytes = units::parse_size(size).map_err(|fault| in_rate(fault).within(0..size.len()))?;
    if (KIB..=RATE_MAX).contains(&bytes) {
        Ok(bytes)
    } else {
        Err(InvalidValue::new("too slow or too fast", "write a rate from \"1KiB/s\" to \"1TiB/s\""))
    }
}

/// Token bucket of one response.
#[derive(Debug)]
pub(crate) struct ResponseBucket {
    bytes_per_s: u64,
    /// Capacity of the bucket and size of the largest piece.
    piece_bytes: u64,
    /// Bytes not yet sent that are exempt from the limit.
    unlimited_bytes: Cell<u64>,
    /// Thousandths of bytes in the bucket at `refilled_at`.
    held_units: Cell<u64>,
    refilled_at: Cell<Moment>,
    /// Nothing is sent before this time, because the bucket was empty and refills.
    paused_until: Cell<Moment>,
    timer: RefCell<Option<SourceTimer>>,
    /// Whether the stream is in the connection's list of paused streams.
    pub(crate) is_listed: Cell<bool>,
}

impl ResponseBucket {
    /// A bucket for a response that begins now; its first bytes may be sent at once.
    pub(crate) fn new(bandwidth: &BandwidthLimit, now: Moment) -> ResponseBucket {
        let bytes_per_s = bandwidth.bytes_per_s.clamp(1, RATE_MAX);
        let piece_bytes = (bytes_per_s / PIECES_PER_SECOND).max(PIECE_BYTES_MIN.min(bytes_per_s));
        ResponseBucket {
            bytes_per_s,
            piece_bytes,
            unlimited_bytes: Cell::new(bandwidth.after_bytes),
            held_units: Cell::new(piece_bytes.min(PIECE_BYTES_MIN) * UNITS_PER_BYTE),
            refilled_at: Cell::new(now),
            paused_until: Cell::new(Moment::ZERO),
            timer: RefCell::default(),
            is_listed: Cell::new(false),
        }
    }

    /// Longest pause that the limit itself causes: at most a second.
    pub(crate) fn pause_max(&self) -> Millis {
        Millis((self.piece_bytes * 1_000).div_ceil(self.bytes_per_s))
    }

    /// Bytes that may be sent now. If 0, [`ResponseBucket::pause`] waits for more.
    pub(crate) fn available_bytes(&self, now: Moment) -> usize {
        let unlimited_bytes = self.unlimited_bytes.get();
        if unlimited_bytes > 0 {
            // The limit starts at the end of the exempt bytes.
            self.refilled_at.set(now);
            return usize::try_from(unlimited_bytes).unwrap_or(usize::MAX);
        }
        if now < self.paused_until.get() {
            return 0;
        }
        let passed = (now - self.refilled_at.replace(now)).min(REFILL_MAX);
        let refilled = self.held_units.get() + passed.0 * self.bytes_per_s;
        self.held_units.set(refilled.min(self.piece_bytes * UNITS_PER_BYTE));
        (self.held_units.get() / UNITS_PER_BYTE) as usize
    }

    /// Takes bytes that were sent from the bucket; at most [`ResponseBucket::available_bytes`].
    pub(crate) fn spend(&self, bytes: usize) {
        let bytes = bytes as u64;
        let unlimited_bytes = self.unlimited_bytes.get();
        if unlimited_bytes > 0 {
            return self.unlimited_bytes.set(unlimited_bytes.saturating_sub(bytes));
        }
        self.held_units.set(self.held_units.get().saturating_sub(bytes * UNITS_PER_BYTE));
    }

    /// Whether the bucket was empty and is refilling.
    pub(crate) fn is_paused(&self) -> bool {
        self.timer.borrow().is_some()
    }

    /// Makes `source` ready again when the bucket is full.
    pub(crate) fn pause(&self, core: &Core, source: &Source, bits: u8) {
        let now = core.now();
        if now >= self.paused_until.get() {
            self.paused_until.set(now + self.pause_max());
        }
        let mut timer = self.timer.borrow_mut();
        if timer.as_ref().is_none_or(|timer| timer.at() < self.paused_until.get()) {
            *timer = Some(core.set_ready_at(source, bits, self.paused_until.get()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(bytes_per_s: u64, after_bytes: u64) -> ResponseBucket {
        ResponseBucket::new(&BandwidthLimit { bytes_per_s, after_bytes }, Moment::ZERO)
    }

    /// Sends all that a bucket allows, asking every `step_ms`. Returns the sum and the largest piece.
    fn sent(bucket: &ResponseBucket, step_ms: u64, until_ms: u64) -> (u64, u64) {
        let mut sent = 0;
        let mut largest = 0;
        for now_ms in (0..=until_ms).step_by(step_ms as usize) {
            let room = bucket.available_bytes(Moment(now_ms));
            bucket.spend(room);
            (sent, largest) = (sent + room as u64, largest.max(room as u64));
        }
        (sent, largest)
    }

    #[test]
    fn bucket_sends_at_its_rate_in_small_pieces() {
        for rate in [1, 1_000, 16 * 1024, 100_000, 1_000_000, 1 << 30, 1 << 40] {
            for step_ms in [1, 7, 100, 250] {
                let bucket = bucket(rate, 0);
                let (sent, largest) = sent(&bucket, step_ms, 60_000);
                let first = PIECE_BYTES_MIN.min(rate);
                assert!(sent <= 60 * rate + first, "{rate}: {sent}");
                assert!(largest <= (rate / 10).max(PIECE_BYTES_MIN), "{rate}: {largest}");
                // A bucket that is asked less often than it takes to fill delivers less.
                if step_ms <= bucket.pause_max().0 {
                    assert!(sent >= 60 * rate - rate.min(largest), "{rate}: {sent}");
                }
            }
        }
    }

    #[test]
    fn unlimited_first_bytes_are_not_refilled() {
        let bucket = bucket(1_000_000, 5_000_000);
        assert_eq!(bucket.available_bytes(Moment::ZERO), 5_000_000);
        bucket.spend(4_000_000);
        assert_eq!(bucket.available_bytes(Moment(10_000)), 1_000_000);
        bucket.spend(1_000_000);
        assert_eq!(bucket.available_bytes(Moment(10_000)), PIECE_BYTES_MIN as usize);
    }

    #[test]
    fn a_pause_is_at_most_a_second() {
        for rate in [0, 1, 1_023, 16 * 1024, 1 << 20, u64::MAX] {
            assert!(bucket(rate, 0).pause_max() <= Millis(1_000), "{rate}");
        }
    }

    #[test]
    fn idle_bucket_accumulates_no_more_than_one_piece() {
        let bucket = bucket(100_000, 0);
        assert_eq!(bucket.available_bytes(Moment(86_400_000)), PIECE_BYTES_MIN as usize);
    }

    #[test]
    fn byte_rates_are_parsed() {
        assert_eq!(parse_rate("1KiB/s"), Ok(1024));
        assert_eq!(parse_rate("2000B/s"), Ok(2000));
        assert_eq!(parse_rate("10 MiB/s"), Ok(10 << 20));
        for wrong in
            ["", "/s", "1MiB", "1MiB/m", "1MB/s", "100k", "1023B/s", "2048TiB/s", "1MiB/s ", "-1KiB/s"]
        {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
        }
    }
}
