//! The cached time of one core, updated once each tick.

use std::cell::Cell;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use times::Moment;

/// A core's clock. Reading it makes no system call; the engine updates it at each wake-up of its thread.
#[derive(Debug)]
pub struct Clock {
    now: Cell<Moment>,
    now_us: Cell<u64>,
    unix_s: Cell<u64>,
}

impl Clock {
    /// Creates a clock that shows the current time.
    #[must_use]
    pub fn new() -> Clock {
        let clock = Clock { now: Cell::new(Moment::ZERO), now_us: Cell::new(0), unix_s: Cell::new(0) };
        clock.tick();
        clock
    }

    /// Returns the time of the monotonic clock; its zero is arbitrary.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.now.get()
    }

    /// Returns microseconds of the monotonic clock.
    #[must_use]
    pub fn now_us(&self) -> u64 {
        self.now_us.get()
    }

    /// Returns seconds since 1970.
    #[must_use]
    pub fn unix_s(&self) -> u64 {
        self.unix_s.get()
    }

    /// Reads the machine's clocks; the wall clock, which costs as much, at most once a millisecond.
    pub(crate) fn tick(&self) {
        let time = clock_gettime(ClockId::Monotonic);
        let now = Moment(time.tv_sec as u64 * 1_000 + time.tv_nsec as u64 / 1_000_000);
        if now != self.now.get() || self.unix_s.get() == 0 {
            // Through the C library, so that tests can change it.
            let unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
            self.set(now, unix_s);
        }
        self.now_us.set(time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000);
    }

    /// Sets the time; used by tests instead of [`Clock::tick`].
    pub(crate) fn set(&self, now: Moment, unix_s: u64) {
        self.now.set(now);
        self.now_us.set(now.0 * 1_000);
        self.unix_s.set(unix_s);
    }
}

impl Default for Clock {
    fn default() -> Clock {
        Clock::new()
    }
}
