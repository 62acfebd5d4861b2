//! Acknowledgements of a client, which QUIC reports to its congestion controller alone.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics, CubicConfig};

/// Acknowledgements of one connection.
#[derive(Debug, Default)]
pub(crate) struct Acknowledgements {
    bytes: AtomicU64,
    /// Number of times at which nothing was left unacknowledged.
    complete: AtomicU64,
    /// Whether the congestion window no longer limits what is sent.
    is_unlimited: AtomicBool,
}

/// Congestion window of a connection that closes, in bytes.
const UNLIMITED_WINDOW_BYTES: u64 = u64::MAX / 2;

impl Acknowledgements {
    /// Returns the number of acknowledged bytes of packets.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns how often an acknowledgement has left no packet on its way.
    pub(crate) fn complete(&self) -> u64 {
        self.complete.load(Ordering::Relaxed)
    }

    /// Lets the last packet of a connection that closes leave although the window is full: QUIC would keep it.
    pub(crate) fn lift_window(&self) {
        self.is_unlimited.store(true, Ordering::Relaxed);
    }
}

/// Makes controllers that count acknowledgements.
pub(crate) struct CountingFactory(pub(crate) Arc<Acknowledgements>);

impl ControllerFactory for CountingFactory {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        let inner = Arc::new(CubicConfig::default()).build(now, mtu);
        Box::new(CountingController { inner, counted: self.0.clone() })
    }
}

/// CUBIC (RFC 9438), and the count.
struct CountingController {
    inner: Box<dyn Controller>,
    counted: Arc<Acknowledgements>,
}

impl Controller for CountingController {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.inner.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        // Only this connection's thread writes.
        self.counted.bytes.store(self.counted.bytes() + bytes, Ordering::Relaxed);
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        if in_flight == 0 {
            self.counted.complete.store(self.counted.complete() + 1, Ordering::Relaxed);
        }
        self.inner.on_end_acks(now, in_flight, app_limited, largest);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent: bool, lost_bytes: u64) {
        self.inner.on_congestion_event(now, sent, is_persistent, lost_bytes);
    }

    fn on_mtu_update(&mut self, mtu: u16) {
        self.inner.on_mtu_update(mtu);
    }

    fn window(&self) -> u64 {
        let is_unlimited = self.counted.is_unlimited.load(Ordering::Relaxed);
        if is_unlimited { UNLIMITED_WINDOW_BYTES } else { self.inner.window() }
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(CountingController { inner: self.inner.clone_box(), counted: self.counted.clone() })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
