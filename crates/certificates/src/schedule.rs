//! Times of renewals and of retries after failed orders. The clock and the random numbers are provided by the
//! caller.

use std::time::{Duration, SystemTime};

/// Durations of waits and timeouts.
#[derive(Debug, Clone)]
pub struct Intervals {
    /// Interval at which the clock and the state folder are checked.
    pub check_interval: Duration,
    /// Pause after the first order that failed because a directory was unreachable; doubles up to
    /// `retry_max`.
    pub retry_first: Duration,
    /// Maximum pause after unreachable directories.
    pub retry_max: Duration,
    /// Pause after the first order that a directory refused; multiplied by four after each further one, up to
    /// `refused_max`. Let's Encrypt allows five failed validations per name and hour.
    pub refused_first: Duration,
    /// Maximum pause after refused orders.
    pub refused_max: Duration,
    /// Pause before the first poll of an order's state; grows by half with each poll.
    pub poll: Duration,
    /// Timeout of the validation, and of the issuance after it.
    pub order_max: Duration,
    /// Timeout of one request to a directory.
    pub request_max: Duration,
    /// Timeout of the DNS hook.
    pub hook_max: Duration,
    /// Time that other servers that share the state folder get to read a token.
    pub token_read_time: Duration,
    /// Minimum and maximum interval between two queries for the renewal window.
    pub renewal_info: std::ops::RangeInclusive<Duration>,
}

impl Default for Intervals {
    fn default() -> Intervals {
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        Intervals {
            check_interval: Duration::from_secs(1),
            retry_first: Duration::from_secs(5),
            retry_max: minutes(10),
            refused_first: minutes(1),
            refused_max: minutes(6 * 60),
            poll: Duration::from_millis(500),
            order_max: minutes(5),
            request_max: Duration::from_secs(30),
            hook_max: minutes(10),
            token_read_time: Duration::from_millis(2_500),
            renewal_info: minutes(10)..=minutes(24 * 60),
        }
    }
}

/// Kind of a failure, which determines the pause before the next order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// The directory was unreachable, or reported an internal problem.
    Unreachable,
    /// The directory refused the order.
    Refused,
}

/// Returns a random part of `whole`, uniformly distributed.
fn random_part(whole: Duration, random: u64) -> Duration {
    whole.mul_f64(f64::from((random >> 32) as u32) / f64::from(u32::MAX))
}

/// Returns the renewal time: two thirds of the lifetime, minus up to a fiftieth of it, so that certificates
/// issued together are not renewed together.
pub(crate) fn renew_at(not_before: SystemTime, not_after: SystemTime, random: u64) -> SystemTime {
    let lifetime = not_after.duration_since(not_before).unwrap_or_default();
    not_before + lifetime * 2 / 3 - random_part(lifetime / 50, random)
}

/// Minimum time between the receipt of a certificate and its renewal, or a third of the time that it was still
/// valid if that is shorter, whatever window the authority suggests. Otherwise an authority that always suggests
/// the past would be asked endlessly.
const AGE_MIN: Duration = Duration::from_secs(3_600);

/// Returns the renewal time of a certificate that was received at this time. The time before does not count,
/// because authorities may date certificates back as far as they like.
pub(crate) fn renew_at_since(
    obtained_at: SystemTime,
    (not_before, not_after): (SystemTime, SystemTime),
    random: u64,
) -> SystemTime {
    renew_at(obtained_at.min(not_after).max(not_before), not_after, random)
}

/// Returns the renewal time of a certificate that was received at this time, at a random time in the window that
/// the authority suggests, if that is neither too early nor so late that the certificate might end before.
pub(crate) fn renew_at_in(
    window: (SystemTime, SystemTime),
    obtained_at: SystemTime,
    (not_before, not_after): (SystemTime, SystemTime),
    random: u64,
) -> SystemTime {
    let start = obtained_at.min(not_after).max(not_before);
    let remaining = not_after.duration_since(start).unwrap_or_default();
    let earliest = start + AGE_MIN.min(remaining / 3);
    let latest = start + remaining * 9 / 10;
    random_time_in(window.0, window.1, random).max(earliest).min(latest)
}

/// Returns a random time in the window that the authority suggests (RFC 9773 section 4.2).
pub(crate) fn random_time_in(start: SystemTime, end: SystemTime, random: u64) -> SystemTime {
    start + random_part(end.duration_since(start).unwrap_or_default(), random)
}

/// Returns the pause after the `failures`th consecutive failure, extended by up to a quarter.
pub(crate) fn pause(intervals: &Intervals, kind: FailureKind, failures: u32, random: u64) -> Duration {
    let (first, factor, longest) = match kind {
        FailureKind::Unreachable => (intervals.retry_first, 2u32, intervals.retry_max),
        FailureKind::Refused => (intervals.refused_first, 4, intervals.refused_max),
    };
    let factor = factor.saturating_pow(failures.saturating_sub(1).min(12));
    let pause = first.saturating_mul(factor).min(longest);
    pause + random_part(pause / 4, random)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn certificate_is_renewed_at_two_thirds_of_its_lifetime() {
        let start = SystemTime::UNIX_EPOCH + 20_000 * DAY;
        for days in [6, 90] {
            let end = start + days * DAY;
            assert_eq!(renew_at(start, end, 0), start + days * DAY * 2 / 3);
            assert_eq!(renew_at(start, end, u64::MAX), start + days * DAY * 2 / 3 - days * DAY / 50);
        }
        // A certificate that ends before it begins is renewed immediately.
        assert_eq!(renew_at(start, start - DAY, u64::MAX), start);
        assert_eq!(random_time_in(start, start + DAY, 0), start);
        assert_eq!(random_time_in(start, start + DAY, u64::MAX), start + DAY);
        assert_eq!(random_time_in(start, start - DAY, u64::MAX), start);
    }

    #[test]
    fn age_at_the_renewal_counts_from_the_receipt() {
        let now = SystemTime::UNIX_EPOCH + 20_000 * DAY;
        let hour = DAY / 24;
        let past = (now - 1_000 * DAY, now - 999 * DAY);
        let future = (now + 1_000 * DAY, now + 1_001 * DAY);
        // Days that the certificate is dated back, and hours that it is still valid.
        for (backdated, hours) in [(0, 2_160), (1, 2_160), (89, 24), (89, 6), (1_000, 1), (0, 1)] {
            let validity = (now - backdated * DAY, now + hours * hour);
            let age = |at: SystemTime| at.duration_since(now).unwrap();
            assert_eq!(age(renew_at_since(now, validity, 0)), hours * hour * 2 / 3);
            assert_eq!(age(renew_at_in(past, now, validity, 0)), hour.min(hours * hour / 3));
            assert_eq!(age(renew_at_in(future, now, validity, 0)), hours * hour * 9 / 10);
        }
        // The clock was wrong at the receipt.
        let validity = (now, now + 90 * DAY);
        assert_eq!(renew_at_since(now + 900 * DAY, validity, 0), now + 90 * DAY);
        assert_eq!(renew_at_since(now - 900 * DAY, validity, 0), now + 60 * DAY);
    }

    #[test]
    fn retry_pauses_grow_to_a_limit() {
        let intervals = Intervals::default();
        let pauses = |kind| [1, 2, 3, 4, 40, u32::MAX].map(|n| pause(&intervals, kind, n, 0).as_secs());
        assert_eq!(pauses(FailureKind::Unreachable), [5, 10, 20, 40, 600, 600]);
        assert_eq!(pauses(FailureKind::Refused), [60, 240, 960, 3_840, 21_600, 21_600]);
        assert_eq!(pause(&intervals, FailureKind::Refused, 1, u64::MAX).as_secs(), 75);
        // The first five failed validations take longer than an hour.
        let hour: u64 = pauses(FailureKind::Refused)[..4].iter().sum();
        assert!(hour > 3_600);
    }
}
