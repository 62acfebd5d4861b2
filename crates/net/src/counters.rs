//! Numbers that a core writes and anybody reads.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that one core writes and anybody reads.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to it. Only the one core that writes it may.
    pub fn add(&self, count: u64) {
        // One writer: no read-modify-write needed.
        self.0.store(self.0.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, count: u64) {
        self.0.store(count, Ordering::Relaxed);
    }

    /// The number.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What one core counts. On cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    /// Connections accepted.
    pub connections: Counter,
    /// Connections open now.
    pub connections_open: Counter,
    /// Requests answered.
    pub requests: Counter,
    /// Messages refused that were no requests.
    pub rejected: Counter,
    /// Handlers that panicked.
    pub panics: Counter,
    /// TLS handshakes with clients that began a session.
    pub tls_full: Counter,
    /// Those that continue an earlier session.
    pub tls_resumed: Counter,
    /// TLS handshakes with clients that failed.
    pub tls_failed: Counter,
}

/// Upper bounds of the classes of durations, in microseconds. The last class has none.
pub const DURATION_BOUNDS_US: [u64; 15] = [
    250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    5_000_000, 10_000_000,
];
/// The classes of durations.
pub const DURATION_CLASSES: usize = DURATION_BOUNDS_US.len() + 1;

/// A histogram of durations that one core writes and anybody reads.
#[derive(Debug, Default)]
pub struct DurationHistogram {
    classes: [Counter; DURATION_CLASSES],
    total_us: Counter,
}

impl DurationHistogram {
    /// The class of a duration.
    #[must_use]
    pub fn class_of(us: u64) -> usize {
        // Most of what a turn of the engine answers has taken no time by its clock.
        if us <= DURATION_BOUNDS_US[0] { 0 } else { DURATION_BOUNDS_US.partition_point(|bound| *bound < us) }
    }

    /// Counts a duration. Only the one core that writes it may.
    pub fn observe(&self, us: u64) {
        self.classes[DurationHistogram::class_of(us)].add(1);
        self.total_us.add(us);
    }

    /// The number of durations in a class.
    #[must_use]
    pub fn in_class(&self, class: usize) -> u64 {
        self.classes[class].value()
    }

    /// The sum of all durations.
    #[must_use]
    pub fn total_us(&self) -> u64 {
        self.total_us.value()
    }
}
