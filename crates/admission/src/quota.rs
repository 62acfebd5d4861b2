//! Rate and burst by the generic cell rate algorithm: a token bucket whose state is a single time.

use std::time::Duration;

/// Rate and burst of a key: one request per `interval_ns`, and `burst` more at once.
///
/// The state of a key is the time at which its bucket is full again; 0 for a new key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    interval_ns: u64,
    burst: u32,
}

/// Decision about one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Admitted after `wait_ns` nanoseconds; 0: immediately.
    Admit {
        /// State of the key after the request.
        full_at_ns: u64,
        /// Delay in nanoseconds.
        wait_ns: u64,
    },
    /// Refused. The key's state does not change.
    Refuse {
        /// Time after which the request would be admitted, in nanoseconds.
        retry_ns: u64,
    },
}

impl Quota {
    /// Creates a quota of `count` requests (at least 1) per `period`, and `burst` more at once.
    #[must_use]
    pub fn new(count: u32, period: Duration, burst: u32) -> Quota {
        let period_ns = times::nanos(period);
        Quota { interval_ns: (period_ns / u64::from(count.max(1))).max(1), burst }
    }

    /// Returns the number of requests that an idle key may send at once.
    #[must_use]
    pub fn size(&self) -> u64 {
        u64::from(self.burst) + 1
    }

    /// Returns the time in which an empty bucket becomes full, in nanoseconds.
    #[must_use]
    pub fn window_ns(&self) -> u64 {
        self.interval_ns.saturating_mul(self.size())
    }

    /// Decides about one request of a key, which may be delayed by at most `wait_ns_max`.
    #[must_use]
    pub fn decide(&self, full_at_ns: u64, now_ns: u64, wait_ns_max: u64) -> Decision {
        let base_ns = full_at_ns.max(now_ns);
        let tolerance_ns = self.interval_ns.saturating_mul(u64::from(self.burst));
        let wait_ns = base_ns.saturating_sub(tolerance_ns).saturating_sub(now_ns);
        if wait_ns <= wait_ns_max {
            Decision::Admit { full_at_ns: base_ns.saturating_add(self.interval_ns), wait_ns }
        } else {
            Decision::Refuse { retry_ns: wait_ns }
        }
    }

    /// Returns the state before a request that was admitted but not served.
    #[must_use]
    pub fn refund(&self, full_at_ns: u64) -> u64 {
        full_at_ns.saturating_sub(self.interval_ns)
    }

    /// Returns the number of further requests admitted at once.
    #[must_use]
    pub fn remaining(&self, full_at_ns: u64, now_ns: u64) -> u64 {
        self.window_ns().saturating_sub(full_at_ns.saturating_sub(now_ns)) / self.interval_ns
    }

    /// Returns the time in nanoseconds until one request more than now is admitted.
    #[must_use]
    pub fn next_ns(&self, full_at_ns: u64, now_ns: u64) -> u64 {
        let owed_ns = full_at_ns.saturating_sub(now_ns);
        // Beyond the bucket size, the key has delayed requests.
        match owed_ns.checked_sub(self.window_ns()) {
            Some(over_ns) => over_ns.saturating_add(self.interval_ns),
            None if owed_ns == 0 => 0,
            None => (owed_ns - 1) % self.interval_ns + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    /// Returns which of these requests, given by time in milliseconds, are admitted immediately.
    fn admitted(quota: Quota, times_ms: impl Iterator<Item = u64>) -> Vec<bool> {
        let mut full_at_ns = 0;
        let one = |time_ms: u64| match quota.decide(full_at_ns, time_ms * 1_000_000, 0) {
            Decision::Admit { full_at_ns: after_ns, .. } => {
                full_at_ns = after_ns;
                true
            }
            Decision::Refuse { .. } => false,
        };
        times_ms.map(one).collect()
    }

    #[test]
    fn quota_admits_a_burst_and_then_one_request_per_interval() {
        let quota = Quota::new(10, Duration::from_secs(1), 5);
        let start_ms = 5_000;
        let at_once = admitted(quota, std::iter::repeat_n(start_ms, 20));
        assert_eq!(at_once.iter().filter(|admitted| **admitted).count(), 6);
        assert!(at_once[..6].iter().all(|admitted| *admitted));
        // After the burst, one request per 100 ms.
        let times_ms =
            std::iter::repeat_n(start_ms, 6).chain([start_ms + 99, start_ms + 100, start_ms + 101]);
        assert_eq!(admitted(quota, times_ms)[6..], [false, true, false]);
        // A minute of requests every millisecond: the burst, and ten per second.
        let count = admitted(quota, start_ms..start_ms + 60_000).iter().filter(|admitted| **admitted).count();
        assert_eq!(count, 6 + 599);
        // An idle time fills the bucket, but not beyond its size.
        let times_ms = std::iter::repeat_n(0, 6).chain(std::iter::repeat_n(3_600_000, 20));
        assert_eq!(admitted(quota, times_ms).iter().filter(|admitted| **admitted).count(), 12);
    }

    #[test]
    fn quota_without_burst_spaces_requests_evenly() {
        let quota = Quota::new(60, Duration::from_secs(60), 0);
        assert_eq!(
            admitted(quota, [0, 1, 999, 1_000, 1_500, 2_000].into_iter()),
            [true, false, false, true, false, true]
        );
    }

    #[test]
    fn delayed_requests_are_spaced_up_to_the_longest_wait() {
        let quota = Quota::new(10, Duration::from_secs(1), 1);
        let mut full_at_ns = 0;
        let mut waits_ms = Vec::new();
        loop {
            match quota.decide(full_at_ns, SECOND_NS, SECOND_NS / 4) {
                Decision::Admit { full_at_ns: after_ns, wait_ns } => {
                    full_at_ns = after_ns;
                    waits_ms.push(wait_ns / 1_000_000);
                }
                Decision::Refuse { retry_ns } => {
                    assert_eq!(retry_ns / 1_000_000, 300);
                    break;
                }
            }
        }
        assert_eq!(waits_ms, [0, 0, 100, 200]);
        assert_eq!(
            (quota.remaining(full_at_ns, SECOND_NS), quota.next_ns(full_at_ns, SECOND_NS) / 1_000_000),
            (0, 300)
        );
    }

    #[test]
    fn quota_reports_remaining_requests_and_time_to_the_next() {
        let quota = Quota::new(10, Duration::from_secs(1), 9);
        assert_eq!((quota.size(), quota.window_ns()), (10, SECOND_NS));
        let mut full_at_ns = 0;
        let now_ns = 7 * SECOND_NS;
        assert_eq!((quota.remaining(0, now_ns), quota.next_ns(0, now_ns)), (10, 0));
        for left in (0..10).rev() {
            let Decision::Admit { full_at_ns: after_ns, wait_ns: 0 } = quota.decide(full_at_ns, now_ns, 0)
            else {
                panic!("refused with {left} left");
            };
            full_at_ns = after_ns;
            assert_eq!(quota.remaining(full_at_ns, now_ns), left);
            assert_eq!(quota.next_ns(full_at_ns, now_ns), SECOND_NS / 10);
        }
        assert_eq!(quota.decide(full_at_ns, now_ns, 0), Decision::Refuse { retry_ns: SECOND_NS / 10 });
        assert_eq!(quota.next_ns(full_at_ns, now_ns + SECOND_NS / 25), SECOND_NS / 10 - SECOND_NS / 25);
        assert_eq!(quota.remaining(quota.refund(full_at_ns), now_ns), 1);
    }

    #[test]
    fn extreme_numbers_neither_overflow_nor_divide_by_zero() {
        for quota in [
            Quota::new(0, Duration::ZERO, 0),
            Quota::new(u32::MAX, Duration::from_nanos(1), u32::MAX),
            Quota::new(1, Duration::MAX, u32::MAX),
        ] {
            for (full_at_ns, now_ns) in [(0, 0), (u64::MAX, 0), (0, u64::MAX), (u64::MAX, u64::MAX)] {
                let _ = quota.decide(full_at_ns, now_ns, u64::MAX);
                let _ = quota.decide(full_at_ns, now_ns, 0);
                let _ = (quota.remaining(full_at_ns, now_ns), quota.next_ns(full_at_ns, now_ns));
                let _ = (quota.refund(full_at_ns), quota.size());
            }
        }
    }
}
