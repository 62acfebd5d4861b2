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
/// Rounds of ready tasks in a turn. A request over HTTP/3 takes four: the socket, its connection, its own task, and the
/// connection again, which sends the response. Each turn asks the kernel for events.
const ROUNDS_MAX: usize = 8;
/// Tasks up to which there is another round. More are a load under which what they send together costs less.
const ROUND_TASKS_MAX: usize = 2;

impl Core {
    /// Runs until `stop` returns true; it is called once each tick.
    pub(crate) fn run_until(&self, mut stop: impl FnMut() -> bool) -> io::Result<()> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(256);
        loop {
            self.0.turn_hooks.drain();
            self.run_turn();
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

    /// Runs the tasks of a turn: those that are ready, in a few rounds those that they wake, and one with long work.
    fn run_turn(&self) {
        for _ in 0..ROUNDS_MAX {
            self.run_round();
            if !(1..=ROUND_TASKS_MAX).contains(&self.0.ready.borrow().len()) {
                break;
            }
        }
        self.0.ready.borrow_mut().append(&mut self.0.yielding.borrow_mut());
        self.run_long_task();
    }

    /// Runs the tasks that are ready now, without those that they wake.
    pub(super) fn run_round(&self) {
        let count = self.0.ready.borrow().len();
        for _ in 0..count {
            let Some(task) = self.0.ready.borrow_mut().pop_front() else { break };
            self.poll_task(task);
        }
    }

    /// Runs one task of [`Core::wait_for_long_turn`].
    pub(super) fn run_long_task(&self) {
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
