//! Counters with a single writing core and any number of readers.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter that one core writes and any thread may read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `count`. Must only be called by the core that owns the counter.
    pub fn add(&self, count: u64) {
        // Single writer, so no atomic read-modify-write is needed.
        self.0.store(self.0.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, count: u64) {
        self.0.store(count, Ordering::Relaxed);
    }

    /// Returns the current value.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters of one core, aligned to avoid false sharing.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    /// Connections accepted.
    pub connections: Counter,
    /// Connections open now.
    pub connections_open: Counter,
    /// Requests answered.
    pub requests: Counter,
    /// Requests answered over HTTP/2.
    pub http2_requests: Counter,
    /// Requests answered over HTTP/3.
    pub http3_requests: Counter,
    /// Malformed requests that were refused.
    pub rejected: Counter,
    /// Handlers that panicked.
    pub panics: Counter,
    /// Full TLS handshakes with clients.
    pub tls_full: Counter,
    /// TLS handshakes with clients that resumed a session.
    pub tls_resumed: Counter,
    /// Failed TLS handshakes with clients.
    pub tls_failed: Counter,
    /// New QUIC connections whose clients were asked to prove their address first.
    pub quic_retries: Counter,
    /// New QUIC connections that were ignored or refused, because there are too many.
    pub quic_refused: Counter,
    /// QUIC packets of no connection that were dropped, because there were too many.
    pub quic_dropped: Counter,
}

impl Counters {
    /// Returns the number of requests answered over HTTP/1.
    #[must_use]
    pub fn http1_requests(&self) -> u64 {
        // Others are counted twice, one after the other.
        let others = self.http2_requests.value() + self.http3_requests.value();
        self.requests.value().saturating_sub(others)
    }
}
