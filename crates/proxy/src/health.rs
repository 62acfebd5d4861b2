//! Health of a server, derived from responses and health checks, shared by all cores. The time is an
//! argument.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering::Relaxed};

use times::{AtomicMoment, Millis, Moment};

use crate::options::{Eject, HealthCheck};

/// Percentage of its weight that a server gets on its return to service (`slow_start`).
const FIRST_SHARE_PERCENT: u64 = 10;

/// The health of one server.
#[derive(Debug, Default)]
pub struct Health {
    /// Consecutive failures.
    failures: AtomicU32,
    /// Consecutive ejections without a successful response between them.
    ejections: AtomicU32,
    /// Time at which the ejection ends; [`Moment::ZERO`] if the server is not ejected.
    ejected_until: AtomicMoment,
    /// Whether a request that probes the server after its ejection is under way.
    is_probing: AtomicBool,
    /// Whether health checks have taken the server out of service.
    is_unhealthy: AtomicBool,
    /// Consecutive check results that contradict `ill`.
    contrary_checks: AtomicU32,
    /// The operator's [`UpstreamOrder`], as an index into [`UpstreamOrder::ALL`].
    order: AtomicU8,
    /// Time at which the server returned to service; [`Moment::ZERO`] if it was never out of service.
    back_since: AtomicMoment,
}

/// Availability of a server for requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// In service.
    Up,
    /// The ejection has ended: one request probes the server.
    Probe,
    /// Ejected until this time, in milliseconds.
    Ejected(Moment),
    /// Out of service: health checks fail, or an operator has ordered it.
    Down,
}

/// An operator's order for a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpstreamOrder {
    /// The server gets requests as its health allows.
    #[default]
    Ready,
    /// The server gets only requests of clients whose sticky cookie names it.
    Drain,
    /// The server gets no requests.
    Down,
}

impl UpstreamOrder {
    /// All orders.
    pub const ALL: [UpstreamOrder; 3] = [UpstreamOrder::Ready, UpstreamOrder::Drain, UpstreamOrder::Down];

    /// Returns the order as a word: `ready`, `drain` or `down`.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            UpstreamOrder::Ready => "ready",
            UpstreamOrder::Drain => "drain",
            UpstreamOrder::Down => "down",
        }
    }
}

impl Health {
    /// Returns the state at `now`.
    #[must_use]
    pub fn state(&self, now: Moment) -> ServerState {
        match self.order() {
            UpstreamOrder::Ready => self.observed_state(now),
            UpstreamOrder::Drain | UpstreamOrder::Down => ServerState::Down,
        }
    }

    /// Returns the state at `now` according to responses and health checks, regardless of the operator's
    /// order.
    #[must_use]
    pub fn observed_state(&self, now: Moment) -> ServerState {
        if self.is_unhealthy.load(Relaxed) {
            return ServerState::Down;
        }
        match self.ejected_until.load(Relaxed) {
            Moment::ZERO => ServerState::Up,
            until if now < until => ServerState::Ejected(until),
            until if self.is_probing.load(Relaxed) => ServerState::Ejected(until),
            _ => ServerState::Probe,
        }
    }

    /// Copies the failures and the ejection of the same server from before a reload. A probe under way reports
    /// only to `previous`.
    pub fn copy_ejection(&self, previous: &Health) {
        self.failures.store(previous.failures.load(Relaxed), Relaxed);
        self.ejections.store(previous.ejections.load(Relaxed), Relaxed);
        self.ejected_until.store(previous.ejected_until.load(Relaxed), Relaxed);
    }

    /// Copies the results of health checks of the same server from before a reload.
    pub fn copy_checks(&self, previous: &Health) {
        self.is_unhealthy.store(previous.is_unhealthy.load(Relaxed), Relaxed);
        self.contrary_checks.store(previous.contrary_checks.load(Relaxed), Relaxed);
    }

    /// Copies the operator's order for the same server from before a reload.
    pub fn copy_order(&self, previous: &Health) {
        self.order.store(previous.order.load(Relaxed), Relaxed);
        self.back_since.store(previous.back_since.load(Relaxed), Relaxed);
    }

    /// Claims the probe; true for exactly one caller.
    #[must_use]
    pub fn claim_probe(&self) -> bool {
        self.is_probing.compare_exchange(false, true, Relaxed, Relaxed).is_ok()
    }

    /// Releases a probe that ended without a result, so that another request may probe.
    pub fn release_probe(&self) {
        self.is_probing.store(false, Relaxed);
    }

    /// Records a successful response. True if that ends an ejection.
    pub fn record_success(&self, now: Moment) -> bool {
        if self.failures.load(Relaxed) != 0 {
            self.failures.store(0, Relaxed);
        }
        if self.ejected_until.load(Relaxed) == Moment::ZERO {
            return false;
        }
        self.ejections.store(0, Relaxed);
        self.is_probing.store(false, Relaxed);
        self.back_since.store(now.max(Moment(1)), Relaxed);
        self.ejected_until.swap(Moment::ZERO, Relaxed) != Moment::ZERO
    }

    /// Records a failure. True if that ejects the server.
    pub fn record_failure(&self, now: Moment, ejection: &Eject) -> bool {
        let failures = self.failures.fetch_add(1, Relaxed).saturating_add(1);
        let until = self.ejected_until.load(Relaxed);
        let probe_failed = until != Moment::ZERO && now >= until;
        if !probe_failed && (until != Moment::ZERO || failures < ejection.failures_max) {
            return false;
        }
        let times = self.ejections.fetch_add(1, Relaxed).min(30);
        let length = (ejection.first * (1 << times)).min(ejection.max);
        self.ejected_until.store((now + length).max(Moment(1)), Relaxed);
        self.is_probing.store(false, Relaxed);
        true
    }

    /// Records the result of a health check. True if the server goes out of service or returns to it.
    pub fn record_check(&self, is_healthy: bool, now: Moment, check: &HealthCheck) -> bool {
        let ill = self.is_unhealthy.load(Relaxed);
        if is_healthy != ill {
            self.contrary_checks.store(0, Relaxed);
            return false;
        }
        let turning = self.contrary_checks.load(Relaxed) + 1;
        self.contrary_checks.store(turning, Relaxed);
        if turning < if is_healthy { check.rise } else { check.fall } {
            return false;
        }
        self.contrary_checks.store(0, Relaxed);
        self.is_unhealthy.store(!is_healthy, Relaxed);
        if is_healthy {
            self.back_since.store(now.max(Moment(1)), Relaxed);
        }
        true
    }

    /// Returns the operator's order.
    #[must_use]
    pub fn order(&self) -> UpstreamOrder {
        UpstreamOrder::ALL.get(usize::from(self.order.load(Relaxed))).copied().unwrap_or_default()
    }

    /// Sets the operator's order. Requests under way continue.
    pub fn set_order(&self, order: UpstreamOrder, now: Moment) {
        let before = self.order.swap(order as u8, Relaxed);
        if before != UpstreamOrder::Ready as u8 && order == UpstreamOrder::Ready {
            self.back_since.store(now.max(Moment(1)), Relaxed);
        }
    }

    /// Whether clients with a sticky cookie for this server may still use it: it is draining and healthy.
    #[must_use]
    pub fn serves_sticky_clients(&self) -> bool {
        self.order() == UpstreamOrder::Drain
            && !self.is_unhealthy.load(Relaxed)
            && self.ejected_until.load(Relaxed) == Moment::ZERO
    }

    /// Returns the weight in hundredths, so that a weight of 1 can grow too. During the slow start it grows
    /// from a tenth of `weight` to all of it over `slow_start`; at least 1 unless `weight` is 0.
    #[must_use]
    pub fn weight_hundredths(&self, weight: u32, now: Moment, slow_start: Millis) -> u32 {
        let full = weight.saturating_mul(100);
        let since = self.back_since.load(Relaxed);
        let back_for = now - since;
        if since == Moment::ZERO || back_for >= slow_start {
            return full;
        }
        let percent = FIRST_SHARE_PERCENT + (100 - FIRST_SHARE_PERCENT) * back_for.0 / slow_start.0;
        u32::try_from(u64::from(weight) * percent).unwrap_or(full).min(full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EJECTION: Eject = Eject { failures_max: 3, first: Millis(1_000), max: Millis(3_000) };

    #[test]
    fn consecutive_failures_eject_a_server_with_backoff() {
        let health = Health::default();
        assert!(!health.record_failure(Moment(10), &EJECTION));
        assert!(!health.record_success(Moment(11)));
        assert!(!health.record_failure(Moment(12), &EJECTION));
        assert!(!health.record_failure(Moment(12), &EJECTION));
        assert_eq!(health.state(Moment(12)), ServerState::Up);
        assert!(health.record_failure(Moment(12), &EJECTION));
        assert_eq!(health.state(Moment(12)), ServerState::Ejected(Moment(1_012)));
        // Requests that were under way fail too; they do not lengthen the ejection.
        assert!(!health.record_failure(Moment(13), &EJECTION));
        assert_eq!(health.state(Moment(1_011)), ServerState::Ejected(Moment(1_012)));
        assert_eq!(health.state(Moment(1_012)), ServerState::Probe);
        for (at_ms, until) in [(1_012, 3_012), (3_012, 6_012), (6_012, 9_012)] {
            assert!(health.claim_probe() && !health.claim_probe());
            assert_eq!(health.state(Moment(at_ms)), ServerState::Ejected(Moment(at_ms)));
            assert!(health.record_failure(Moment(at_ms), &EJECTION));
            assert_eq!(health.state(Moment(at_ms)), ServerState::Ejected(Moment(until)));
        }
        assert!(health.claim_probe());
        health.release_probe();
        assert_eq!(health.state(Moment(9_012)), ServerState::Probe);
        assert!(health.record_success(Moment(9_013)));
        assert_eq!(health.state(Moment(9_013)), ServerState::Up);
        // After a success the ejection time starts at `first` again.
        for _ in 0..3 {
            health.record_failure(Moment(20_000), &EJECTION);
        }
        assert_eq!(health.state(Moment(20_000)), ServerState::Ejected(Moment(21_000)));
    }

    #[test]
    fn health_checks_need_consecutive_results() {
        let check = HealthCheck { rise: 2, fall: 3, ..HealthCheck::default() };
        let health = Health::default();
        let report = |well| health.record_check(well, Moment(5), &check);
        assert_eq!([report(false), report(false), report(true)], [false; 3]);
        assert_eq!([report(false), report(false), report(false)], [false, false, true]);
        assert_eq!(health.state(Moment(5)), ServerState::Down);
        assert_eq!([report(true), report(false), report(true), report(true)], [false, false, false, true]);
        assert_eq!(health.state(Moment(5)), ServerState::Up);
    }

    #[test]
    fn recovered_server_regains_its_share_slowly() {
        let health = Health::default();
        assert_eq!(health.weight_hundredths(3, Moment::ZERO, Millis(1_000)), 300);
        health.set_order(UpstreamOrder::Drain, Moment(100));
        assert!(health.state(Moment(100)) == ServerState::Down && health.serves_sticky_clients());
        assert_eq!(health.observed_state(Moment(100)), ServerState::Up);
        health.set_order(UpstreamOrder::Down, Moment(100));
        assert!(health.state(Moment(100)) == ServerState::Down && !health.serves_sticky_clients());
        health.set_order(UpstreamOrder::Ready, Moment(5_000));
        assert_eq!(health.state(Moment(5_000)), ServerState::Up);
        assert_eq!(health.weight_hundredths(2, Moment(5_000), Millis(1_000)), 20);
        assert_eq!(health.weight_hundredths(2, Moment(5_500), Millis(1_000)), 110);
        assert_eq!(health.weight_hundredths(2, Moment(6_000), Millis(1_000)), 200);
        assert_eq!(health.weight_hundredths(0, Moment(5_500), Millis(1_000)), 0);
        assert_eq!(health.weight_hundredths(2, Moment(5_000), Millis::ZERO), 200);
    }
}
