//! The event loop: runs ready tasks, waits for events, and handles timers.

use std::io;
use std::rc::Rc;

use rustix::event::{Timespec, epoll};
use times::{Millis, Moment};

use super::{Core, TURN_HOOK_TOKEN, Task, TimerWaiter};
use crate::memory::Pressure;
use crate::source::{GONE, Source, readiness};

/// Interval of checks of the sources' deadlines, and so their precision.
const SWEEP_INTERVAL: Millis = Millis(100);

impl Core {
    /// Runs until `stop` returns true; it is called once each tick.
    pub(crate) fn run_until(&self, mut stop: impl FnMut() -> bool) -> io::Result<()> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(256);
        loop {
            self.0.turn_hooks.drain();
            self.run_ready();
            if stop() {
                return Ok(());
            }
            let rests = self.0.turn_hooks.prepare_wait();
            let timeout = (if rests { self.timeout() } else { Some(Millis::ZERO) }).map(|Millis(ms)| {
                Timespec { tv_sec: (ms / 1000) as i64, tv_nsec: (ms % 1000 * 1_000_000) as i64 }
            });
            events.clear();
            match epoll::wait(
                self.0.remote.epoll(),
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            ) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            self.0.clock.tick();
            self.0.turn_hooks.finish_wait();
            for event in &events {
                let token = event.data.u64();
                let flags = event.flags;
                if token < TURN_HOOK_TOKEN {
                    self.deliver(token, readiness(flags));
                }
            }
            self.run_remote();
            self.run_timers();
        }
    }

    /// Runs every task with a future once, because state that they check has changed without an event.
    pub fn wake_all(&self) {
        let is_busy = |task: &Task| matches!(task, Task::Future(_));
        let busy = self
            .0
            .tasks
            .borrow()
            .iter()
            .enumerate()
            .filter(|(_, task)| is_busy(task))
            .map(|(at, _)| at as u32)
            .collect::<Vec<_>>();
        busy.into_iter().for_each(|task| self.wake(task));
    }

    /// Runs ready tasks, without waiting.
    pub(crate) fn run_ready(&self) {
        // Only tasks that are ready now: a task that wakes itself runs again in the next tick.
        let count = self.0.ready.borrow().len();
        for _ in 0..count {
            let Some(task) = self.0.ready.borrow_mut().pop_front() else { break };
            self.poll_task(task);
        }
        self.run_long_task();
    }

    /// Runs one task of [`Core::wait_for_long_turn`].
    fn run_long_task(&self) {
        let Some(task) = self.0.long_turn_queue.borrow_mut().pop_front() else { return };
        self.0.long_turns.set(self.0.long_turns.get() + 1);
        // What others send does not wait for it.
        self.0.turn_hooks.flush();
        self.poll_task(task);
    }

    /// Runs tasks woken by other threads.
    pub(crate) fn run_remote(&self) {
        let mut woken = Vec::new();
        self.0.remote.take(&mut woken);
        for task in woken {
            self.poll_task(task);
        }
    }

    /// Returns the time until the next timer or sweep; `None` for never.
    fn timeout(&self) -> Option<Millis> {
        if !self.0.ready.borrow().is_empty() || !self.0.long_turn_queue.borrow().is_empty() {
            return Some(Millis::ZERO);
        }
        let now = self.now();
        let timer = self.0.timers.borrow().first_key_value().map(|((at, _), _)| *at - now);
        let any_source = self.0.sources.borrow().len() > self.0.free_sources.borrow().len();
        let sweep = any_source.then(|| (self.0.swept_at.get() + SWEEP_INTERVAL) - now);
        [timer, sweep].into_iter().flatten().min()
    }

    /// Runs expired timers and deadlines.
    pub(crate) fn run_timers(&self) {
        let now = self.now();
        while let Some(sleeper) = self.pop_timer(now) {
            match sleeper {
                TimerWaiter::Task(task) => self.poll_task(task),
                TimerWaiter::External(waker) => waker.wake(),
                TimerWaiter::Source(token, bits) => self.deliver(token, bits),
            }
        }
        if now >= self.0.swept_at.get() + SWEEP_INTERVAL {
            self.0.swept_at.set(now);
            self.0.memory.publish_changes();
            self.close_heaviest(now);
            self.sweep(now);
        }
    }

    /// Closes the connection that holds the most memory, if memory has been critically short for some time.
    fn close_heaviest(&self, now: Moment) {
        if let Some(source) =
            self.0.memory.heavy.connection_to_close(self.0.memory.pressure() >= Pressure::Critical, now)
        {
            source.abort();
            self.run_waiters(source.waiters(), GONE);
        }
    }

    fn pop_timer(&self, now: Moment) -> Option<TimerWaiter> {
        let mut timers = self.0.timers.borrow_mut();
        let first = timers.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    /// Checks the deadline of every source. One pass over a flat table ten times a second costs less than
    /// keeping a sorted timer for each connection up to date at each request.
    fn sweep(&self, now: Moment) {
        for token in self.0.remote.take_released() {
            self.free_source(token);
        }
        let mut due: Vec<Rc<Source>> = Vec::new();
        for slot in self.0.sources.borrow().iter() {
            if let Some(source) = &slot.source
                && source.deadline.get() <= now
            {
                due.push(source.clone());
            }
        }
        for source in due {
            source.deadline.set(Moment::NEVER);
            source.expired.set(true);
            self.run_waiters(source.waiters(), GONE);
        }
    }
}
