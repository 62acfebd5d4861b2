//! An engine without a server, for programs that only connect, and its timers.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::Poll;

use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

use crate::clock::Clock;
use crate::core::Core;
use crate::fault::Fault;
use crate::h3::Http3Client;
use crate::offload::OffloadPools;
use crate::source::{READ, Source};
use crate::stream::Stream;
use crate::wait::{self, Interest};
use times::Moment;

impl Core {
    /// Creates an engine for this thread that serves nothing. Blocking calls run on at most
    /// `blocking_threads_max` threads (at least one), which are started on demand.
    ///
    /// # Errors
    /// Fails if the kernel provides no descriptor.
    pub fn for_client(blocking_threads_max: usize) -> io::Result<Core> {
        Core::new(Clock::new(), OffloadPools::new(blocking_threads_max))
    }

    /// Runs `main` and every task of this core until `main` ends; remaining tasks are dropped. Must be called
    /// only once on a core.
    ///
    /// # Errors
    /// Fails if waiting for events fails, or if `main` panicked.
    pub fn run_until_end<T: 'static>(&self, main: impl Future<Output = T> + 'static) -> io::Result<T> {
        let result: Rc<RefCell<Option<T>>> = Rc::default();
        let theirs = result.clone();
        self.spawn(async move {
            let ended = main.await;
            *theirs.borrow_mut() = Some(ended);
        });
        let panics = self.panics();
        self.run_until(|| {
            // The only other owner is the task that runs `main`.
            result.borrow().is_some() || (self.panics() > panics && Rc::strong_count(&result) == 1)
        })?;
        self.drop_tasks();
        let ended = result.borrow_mut().take();
        ended.ok_or_else(|| io::Error::other("the engine's main task panicked"))
    }
}

/// Notifies a waiting task of the same core.
pub struct LocalNotify {
    core: Core,
    source: Rc<Source>,
}

impl LocalNotify {
    /// Creates a bell that was not rung.
    #[must_use]
    pub fn new(core: &Core) -> LocalNotify {
        LocalNotify { core: core.clone(), source: core.add_source() }
    }

    /// Wakes the waiting task; if none waits, the next wait returns at once.
    pub fn notify(&self) {
        self.core.mark_readable(&self.source);
    }

    /// Waits for a ring. Rings since the last wait count as one.
    pub async fn notified(&self) {
        wait_readable(&self.core, &self.source).await;
        self.source.clear(READ);
    }

    /// Returns whether it was rung since the last wait.
    pub fn take(&self) -> bool {
        let is_rung = self.source.ready() & READ != 0;
        self.source.clear(READ);
        is_rung
    }

    /// Waits for a ring, or until the stream meets the interest. Call [`LocalNotify::take`] afterwards.
    ///
    /// # Errors
    /// [`Fault::Timeout`] at the deadline.
    pub async fn or_ready(&self, stream: &Stream, interest: Interest, deadline: Moment) -> Result<(), Fault> {
        let sources = [(&*self.source, Interest::READ), (stream.source(), interest)];
        wait::any_ready(&self.core, sources, deadline, || false).await
    }

    /// Waits for a ring, for packets or a timer of the connection, at most until `deadline`. Call
    /// [`LocalNotify::take`] afterwards.
    pub async fn or_packets(&self, client: &mut Http3Client, deadline: Moment) {
        client.wait_with(Some(&self.source), deadline).await;
    }
}

impl Drop for LocalNotify {
    fn drop(&mut self) {
        self.core.deregister(&self.source);
    }
}

/// A timer with the precision of the kernel's high-resolution timers; [`Core::sleep`] has a resolution of one
/// millisecond.
pub struct PreciseTimer {
    core: Core,
    timer: OwnedFd,
    source: Rc<Source>,
}

impl PreciseTimer {
    /// Creates an alarm that is not set.
    ///
    /// # Errors
    /// Fails if the kernel provides no timer.
    pub fn new(core: &Core) -> io::Result<PreciseTimer> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let source = core.register(&timer)?;
        Ok(PreciseTimer { core: core.clone(), timer, source })
    }

    /// Waits until the monotonic clock has reached `at_ns` nanoseconds.
    ///
    /// # Errors
    /// Fails if the kernel rejects the time.
    pub async fn wait_until_ns(&self, at_ns: u64) -> io::Result<()> {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        // All zero would disarm it.
        let at_ns = at_ns.max(1);
        let value =
            Timespec { tv_sec: (at_ns / 1_000_000_000) as i64, tv_nsec: (at_ns % 1_000_000_000) as i64 };
        timerfd_settime(
            &self.timer,
            TimerfdTimerFlags::ABSTIME,
            &Itimerspec { it_interval: zero, it_value: value },
        )?;
        // Edge-triggered: each expiry is reported anew, so the timer's count need not be read. An expiry left
        // over from a cancelled wait may come first.
        while clock_gettime(ClockId::Monotonic) < value {
            self.source.clear(READ);
            wait_readable(&self.core, &self.source).await;
        }
        Ok(())
    }
}

impl Drop for PreciseTimer {
    fn drop(&mut self) {
        self.core.deregister(&self.source);
    }
}

async fn wait_readable(core: &Core, source: &Source) {
    poll_fn(|cx| {
        if source.ready() & READ != 0 {
            return Poll::Ready(());
        }
        core.wait_read(source, cx);
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn now_ns() -> u64 {
        let now = clock_gettime(ClockId::Monotonic);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }

    #[test]
    fn bell_wakes_its_waiter_and_coalesces_rings() {
        let core = Core::for_client(1).unwrap();
        let heard = Rc::new(Cell::new(0));
        let bell = Rc::new(LocalNotify::new(&core));
        let done = Rc::new(LocalNotify::new(&core));
        let inner = core.clone();
        let count = heard.clone();
        core.run_until_end(async move {
            let theirs = bell.clone();
            let report = done.clone();
            inner.spawn(async move {
                while count.get() < 2 {
                    theirs.notified().await;
                    count.set(count.get() + 1);
                    report.notify();
                }
            });
            bell.notify();
            bell.notify();
            done.notified().await;
            bell.notify();
            done.notified().await;
        })
        .unwrap();
        assert_eq!(heard.get(), 2);
    }

    #[test]
    fn alarm_never_fires_early() {
        let core = Core::for_client(1).unwrap();
        let inner = core.clone();
        let late_ns = core.run_until_end(async move {
            let alarm = PreciseTimer::new(&inner).unwrap();
            let mut late_ns = Vec::new();
            for ahead_ns in [300_000, 0, 1_700_000] {
                let at_ns = now_ns() + ahead_ns;
                alarm.wait_until_ns(at_ns).await.unwrap();
                late_ns.push(now_ns() as i64 - at_ns as i64);
            }
            alarm.wait_until_ns(0).await.unwrap();
            late_ns
        });
        let late_ns = late_ns.unwrap();
        assert!(late_ns.iter().all(|&ns| ns >= 0), "{late_ns:?}");
    }

    #[test]
    fn panic_of_the_main_task_is_returned_as_an_error() {
        let core = Core::for_client(1).unwrap();
        let ended = core.run_until_end(async { std::hint::black_box(None::<u8>).unwrap() });
        assert!(ended.is_err());
    }
}
