//! Time, as one core sees it: it moves once a tick.

use std::cell::{Cell, RefCell};
use std::time::{Duration, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// A core's clock. Reading it costs nothing; the engine moves it once for each wake-up of its thread.
#[derive(Debug)]
pub struct Clock {
    now_ms: Cell<u64>,
    unix_s: Cell<u64>,
    /// `Server` and `Date` lines, rebuilt each second.
    common: RefCell<Vec<u8>>,
    server: &'static str,
}

impl Clock {
    /// A clock at the time of the machine. `server` is the value of the `Server` field; empty leaves it out.
    #[must_use]
    pub fn new(server: &'static str) -> Clock {
        let clock = Clock { now_ms: Cell::new(0), unix_s: Cell::new(0), common: RefCell::default(), server };
        clock.tick();
        clock
    }

    /// Milliseconds of a clock that never steps back; its zero is arbitrary.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.now_ms.get()
    }

    /// Seconds since 1970.
    #[must_use]
    pub fn unix_s(&self) -> u64 {
        self.unix_s.get()
    }

    /// Reads the machine's clocks.
    pub(crate) fn tick(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let wall = clock_gettime(ClockId::RealtimeCoarse);
        self.set(now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000, wall.tv_sec.max(0) as u64);
    }

    /// Sets the time: what tests do instead of [`Clock::tick`].
    pub(crate) fn set(&self, now_ms: u64, unix_s: u64) {
        self.now_ms.set(now_ms);
        if self.unix_s.replace(unix_s) == unix_s && !self.common.borrow().is_empty() {
            return;
        }
        let mut common = self.common.borrow_mut();
        common.clear();
        if !self.server.is_empty() {
            common.extend_from_slice(b"Server: ");
            common.extend_from_slice(self.server.as_bytes());
            common.extend_from_slice(b"\r\n");
        }
        common.extend_from_slice(b"Date: ");
        common
            .extend_from_slice(httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(unix_s)).as_bytes());
        common.extend_from_slice(b"\r\n");
    }

    /// The field lines that every response carries.
    pub(crate) fn with_common<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        f(&self.common.borrow())
    }
}
