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
