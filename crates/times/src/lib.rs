//! Points in time and lengths of time as types of 8 bytes.
//!
//! This crate owns the units: a [`Moment`] of an engine's clock, [`UnixSeconds`] of the machine's, and lengths in [`Millis`]. It never reads a
//! clock: the current time is an argument. [`Moment::NEVER`] is a deadline that is not set, and
//! [`Millis::MAX`] a length without a limit. Arithmetic saturates, so that a moment after an unlimited length
//! is [`Moment::NEVER`].

use std::fmt;
use std::ops::{Add, AddAssign, Div, Mul, Sub};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Returns whole nanoseconds of `duration`; `u64::MAX`, which is five centuries, if there are more.
#[must_use]
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns whole microseconds of `duration`; `u64::MAX` if there are more.
#[must_use]
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A length of time in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

impl Millis {
    /// No time.
    pub const ZERO: Millis = Millis(0);

    /// A length without a limit.
    pub const MAX: Millis = Millis(u64::MAX);

    /// Returns whole milliseconds of `duration`; [`Millis::MAX`] if there are too many.
    #[must_use]
    pub const fn of(duration: Duration) -> Millis {
        let millis = duration.as_millis();
        if millis < u64::MAX as u128 { Millis(millis as u64) } else { Millis::MAX }
    }

    /// Returns the length as a [`Duration`].
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.0)
    }

    /// Whether the length is zero.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Returns the seconds, rounded up.
    #[must_use]
    pub const fn seconds_rounded_up(self) -> u64 {
        self.0.div_ceil(1_000)
    }

    /// Returns the seconds with their fraction.
    #[must_use]
    pub const fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1_000.0
    }
}

impl Add for Millis {
    type Output = Millis;

    fn add(self, other: Millis) -> Millis {
        Millis(self.0.saturating_add(other.0))
    }
}

impl Sub for Millis {
    type Output = Millis;

    fn sub(self, other: Millis) -> Millis {
        Millis(self.0.saturating_sub(other.0))
    }
}

impl Mul<u64> for Millis {
    type Output = Millis;

    fn mul(self, factor: u64) -> Millis {
        Millis(self.0.saturating_mul(factor))
    }
}

impl Div<u64> for Millis {
    type Output = Millis;

    fn div(self, divisor: u64) -> Millis {
        Millis(self.0 / divisor)
    }
}

impl From<Duration> for Millis {
    fn from(duration: Duration) -> Millis {
        Millis::of(duration)
    }
}

/// A point in time of the machine's clock: whole seconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixSeconds(pub u64);

impl Add<Duration> for UnixSeconds {
    type Output = UnixSeconds;

    fn add(self, length: Duration) -> UnixSeconds {
        UnixSeconds(self.0.saturating_add(length.as_secs()))
    }
}

impl fmt::Display for UnixSeconds {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// A point in time: milliseconds of the clock of an engine, whose zero is arbitrary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub u64);

impl Moment {
    /// The zero of the clock, before every moment that the clock shows.
    pub const ZERO: Moment = Moment(0);

    /// The end of time: a deadline that is not set.
    pub const NEVER: Moment = Moment(u64::MAX);

    /// The last moment before [`Moment::NEVER`].
    pub const LAST: Moment = Moment(u64::MAX - 1);

    /// Whether the moment is [`Moment::NEVER`].
    #[must_use]
    pub const fn is_never(self) -> bool {
        self.0 == Moment::NEVER.0
    }
}

impl Add<Millis> for Moment {
    type Output = Moment;

    fn add(self, length: Millis) -> Moment {
        Moment(self.0.saturating_add(length.0))
    }
}

impl AddAssign<Millis> for Moment {
    fn add_assign(&mut self, length: Millis) {
        *self = *self + length;
    }
}

impl Sub<Millis> for Moment {
    type Output = Moment;

    fn sub(self, length: Millis) -> Moment {
        Moment(self.0.saturating_sub(length.0))
    }
}

/// The time from `earlier` to this moment; zero if `earlier` is later.
impl Sub for Moment {
    type Output = Millis;

    fn sub(self, earlier: Moment) -> Millis {
        Millis(self.0.saturating_sub(earlier.0))
    }
}

/// A [`Moment`] that threads share.
#[derive(Default)]
pub struct AtomicMoment(AtomicU64);

impl AtomicMoment {
    /// Creates a shared moment.
    #[must_use]
    pub const fn new(moment: Moment) -> AtomicMoment {
        AtomicMoment(AtomicU64::new(moment.0))
    }

    /// Returns the moment.
    #[must_use]
    pub fn load(&self, order: Ordering) -> Moment {
        Moment(self.0.load(order))
    }

    /// Sets the moment.
    pub fn store(&self, moment: Moment, order: Ordering) {
        self.0.store(moment.0, order);
    }

    /// Sets the moment and returns the previous one.
    pub fn swap(&self, moment: Moment, order: Ordering) -> Moment {
        Moment(self.0.swap(moment.0, order))
    }

    /// Sets the moment if it still is `before`. Returns whether it was set.
    #[must_use]
    pub fn advance(&self, before: Moment, after: Moment, order: Ordering) -> bool {
        self.0.compare_exchange(before.0, after.0, order, Ordering::Relaxed).is_ok()
    }
}

impl fmt::Debug for AtomicMoment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.load(Ordering::Relaxed).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Moment(5) + Millis::MAX, Moment::NEVER);
        assert_eq!(Moment(5) - Moment(7), Millis::ZERO);
        assert_eq!(Millis(5) - Millis(7), Millis::ZERO);
        assert_eq!(Millis::MAX * 2, Millis::MAX);
        assert_eq!(Millis::of(Duration::MAX), Millis::MAX);
        assert_eq!(Millis::of(Duration::from_micros(1_999)), Millis(1));
    }

    #[test]
    fn types_are_as_large_as_numbers() {
        assert_eq!((size_of::<Moment>(), size_of::<Millis>(), size_of::<AtomicMoment>()), (8, 8, 8));
    }
}
