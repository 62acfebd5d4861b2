//! Ends of processes: by themselves, on request, or after a timeout.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process_group};
use times::Millis;

use super::{PoolEvent, ProcessRole, ThreadProgress, WorkerPlace, WorkerPool, WorkerProcess, WorkerState};
use crate::child::{ChildProcess, ProcessEnd};
use crate::log::AppLogLevel;
use crate::process::WorkerExit;
use crate::queues::{KillReason, lock};

/// Signal that asks a process to dump its stack before it is killed: `KOMAINU_SIGNAL_WHERE`.
const STACK_DUMP_SIGNAL: Signal = Signal::STKFLT;
/// Time within which the stack must be written.
pub(crate) const STACK_DUMP_MAX: Duration = Duration::from_secs(2);

impl WorkerPool {
    /// Handles the end of a process.
    pub(super) fn process_ended(&mut self, process: ProcessRole, now: Instant, events: &mut Vec<PoolEvent>) {
        self.log_output(process, now);
        match process {
            ProcessRole::Prototype => {
                let Some(prototype) = self.prototype.take() else { return };
                let how = prototype.child.process_end().description;
                if self.is_dismissed {
                    return;
                }
                if !prototype.loaded {
                    self.record_failure(now);
                    events.push(PoolEvent::NotLoaded(start_error(&prototype.child, &how)));
                } else if self.retry_at.is_none_or(|at| at <= now) {
                    self.app_log
                        .report(AppLogLevel::Warn, &format!("the prototype {how}; the workers continue"));
                    self.record_failure(now);
                }
            }
            ProcessRole::WorkerPlace(at) => {
                let WorkerPlace::Occupied(worker) =
                    std::mem::replace(&mut self.places[at], WorkerPlace::Releasing(0))
                else {
                    return;
                };
                *lock(&self.shared.processes[at]) = None;
                let end = worker.child.process_end();
                let exit = self.exit(at, &worker, end.is_success);
                events.push(PoolEvent::Died { place: at, by_itself: end.called_exit, exit });
                self.evaluate_exit(at, &worker, end, now, events);
            }
        }
    }

    fn exit(&self, at: usize, worker: &WorkerProcess, well: bool) -> WorkerExit {
        match worker.state {
            WorkerState::Leaving => WorkerExit::Retired,
            WorkerState::Killed => WorkerExit::Killed,
            WorkerState::Starting => WorkerExit::NotStarted,
            _ if well && self.requests(at) > 0 => WorkerExit::Retired,
            WorkerState::Ready | WorkerState::Recycling | WorkerState::Exiting => WorkerExit::Crashed,
        }
    }

    /// Determines whether a worker's end is an error.
    fn evaluate_exit(
        &mut self,
        at: usize,
        worker: &WorkerProcess,
        end: ProcessEnd,
        now: Instant,
        events: &mut Vec<PoolEvent>,
    ) {
        let ProcessEnd { is_success: well, description: how, .. } = end;
        let answered: u64 = self.requests(at);
        match worker.state {
            WorkerState::Leaving | WorkerState::Killed => {}
            WorkerState::Starting => {
                self.record_failure(now);
                events.push(PoolEvent::NotLoaded(start_error(&worker.child, &how)));
            }
            WorkerState::Ready | WorkerState::Recycling | WorkerState::Exiting if well && answered > 0 => {
                self.failures = 0
            }
            WorkerState::Ready | WorkerState::Recycling | WorkerState::Exiting => {
                let pid = worker.child.pid.map_or(0, |pid| pid.as_raw_pid());
                self.app_log.report(AppLogLevel::Warn, &format!("worker {pid} {how}"));
                // A worker that has answered requests is replaced at once. Workers that end without answering
                // any would be restarted in a tight loop.
                match answered {
                    0 => self.record_failure(now),
                    _ => self.failures = 0,
                }
            }
        }
    }

    /// Changes the number of overdue requests of an event loop. While there are any, another worker is
    /// started in its place.
    pub(crate) fn change_overdue(&mut self, worker_slot: usize, change: isize) {
        if let WorkerPlace::Occupied(worker) = &mut self.places[self.shared.place_of(worker_slot)] {
            worker.overdue = worker.overdue.saturating_add_signed(change);
        }
    }

    /// Schedules the event loop to be killed at `due` unless it releases the request, because the core that
    /// watched it ends.
    pub(crate) fn set_overdue_deadline(&mut self, worker_slot: usize, due: Instant) {
        if let WorkerPlace::Occupied(worker) = &mut self.places[self.shared.place_of(worker_slot)] {
            worker.overdue_until = Some(worker.overdue_until.map_or(due, |other| other.min(due)));
        }
    }

    fn kill_overdue(&mut self, now: Instant) {
        for at in 0..self.places.len() {
            let WorkerPlace::Occupied(worker) = &mut self.places[at] else { continue };
            if worker.overdue_until.take_if(|due| *due <= now).is_some()
                && worker.state != WorkerState::Killed
            {
                let pid = worker.child.pid.map_or(0, |pid| pid.as_raw_pid());
                let text = format!("worker {pid} is killed: {}", KillReason::Unreleased.text());
                self.app_log.report(AppLogLevel::Warn, &text);
                self.request_stack_dump(at, now);
            }
        }
    }

    /// Kills workers that hang outside of requests: none of their requests has a deadline, because the
    /// response is complete or the client is gone, and they neither sleep nor poll for requests.
    pub(crate) fn kill_hanging(&mut self, now: Instant) {
        let request_max = self.options.settings.timeouts.request;
        for at in 0..self.places.len() {
            let WorkerPlace::Occupied(worker) = &mut self.places[at] else { continue };
            // `kill_overdue` has a deadline for it, and knows the reason.
            let is_overdue = worker.overdue_until.is_some();
            let worker_slots = self.shared.worker_slots_of(at);
            for (worker_slot, progress) in worker_slots.zip(&mut worker.progress) {
                let is_watched =
                    self.shared.has_seen_deadline[worker_slot].swap(false, Ordering::Relaxed) || is_overdue;
                let (sleeps, looks) = self.shared.channel.progress(ring::WorkerSlot(worker_slot));
                if sleeps || is_watched || looks != progress.polls {
                    *progress = ThreadProgress { polls: looks, at: now };
                }
            }
            let hangs = worker.progress.iter().any(|progress| now >= progress.at + request_max);
            if hangs && matches!(worker.state, WorkerState::Ready | WorkerState::Recycling) {
                let pid = worker.child.pid.map_or(0, |pid| pid.as_raw_pid());
                let text = format!(
                    "worker {pid} is killed: it did not ask for another request within {} s (timeouts.request)",
                    request_max.as_secs_f64()
                );
                self.app_log.report(AppLogLevel::Warn, &text);
                self.request_stack_dump(at, now);
            }
        }
    }

    /// Ends the processes whose deadlines have expired.
    pub(super) fn enforce(&mut self, now: Instant, events: &mut Vec<PoolEvent>) {
        self.kill_overdue(now);
        self.enforce_on_prototype(now, events);
        let start_s = Millis::of(self.options.settings.timeouts.start).seconds_rounded_up();
        let stop_s = self.options.settings.timeouts.stop.as_secs_f64();
        let mut unborn = false;
        for at in 0..self.places.len() {
            let WorkerPlace::Occupied(worker) = &mut self.places[at] else { continue };
            if worker.deadline.is_none_or(|due| now < due) {
                continue;
            }
            match worker.state {
                WorkerState::Starting => {
                    unborn |= worker.child.pid.is_none();
                    events.push(PoolEvent::NotLoaded(format!("a worker was not ready within {start_s} s")));
                    self.record_failure(now);
                    self.request_stack_dump(at, now);
                }
                WorkerState::Leaving | WorkerState::Exiting => {
                    let pid = worker.child.pid.map_or(0, |pid| pid.as_raw_pid());
                    let text =
                        format!("worker {pid} is killed: it did not leave within {stop_s} s (timeouts.stop)");
                    self.app_log.report(AppLogLevel::Warn, &text);
                    self.request_stack_dump(at, now);
                }
                WorkerState::Killed | WorkerState::Ready | WorkerState::Recycling => self.kill(at),
            }
        }
        // The fork commands that the prototype has not handled are lost, and the places for their workers are
        // free.
        if let Some(prototype) = self.prototype.as_ref().filter(|_| unborn) {
            self.app_log.report(AppLogLevel::Warn, "the prototype is killed: it does not fork");
            prototype.child.signal(Signal::KILL);
        }
    }

    fn enforce_on_prototype(&mut self, now: Instant, events: &mut Vec<PoolEvent>) {
        let start_max = self.start_max();
        let Some(prototype) = &mut self.prototype else { return };
        match prototype.deadline {
            Some(due) if now >= due && !prototype.is_dump_requested => {
                self.app_log.report(
                    AppLogLevel::Warn,
                    "the prototype is killed: it did not leave in time (timeouts.stop)",
                );
                prototype.child.signal(STACK_DUMP_SIGNAL);
                (prototype.is_dump_requested, prototype.deadline) = (true, Some(now + STACK_DUMP_MAX));
            }
            Some(due) if now >= due => {
                prototype.child.signal(Signal::KILL);
                prototype.deadline = Some(now + start_max);
            }
            None if !prototype.loaded && now >= prototype.since + start_max => {
                prototype.child.signal(STACK_DUMP_SIGNAL);
                (prototype.loaded, prototype.is_dump_requested, prototype.deadline) =
                    (true, true, Some(now + STACK_DUMP_MAX));
                let start_s = start_max.as_millis().div_ceil(1000);
                events.push(PoolEvent::NotLoaded(format!("it did not load within {start_s} s")));
                self.record_failure(now);
            }
            _ => {}
        }
    }

    /// Kills a worker.
    pub(crate) fn kill(&mut self, at: usize) {
        if let WorkerPlace::Occupied(worker) = &mut self.places[at] {
            worker.child.signal(Signal::KILL);
            (worker.state, worker.deadline) = (WorkerState::Killed, None);
        }
    }

    /// Asks a worker that takes too long to dump its stack before it is killed.
    fn request_stack_dump(&mut self, at: usize, now: Instant) {
        if let WorkerPlace::Occupied(worker) = &mut self.places[at]
            && worker.state != WorkerState::Killed
        {
            worker.child.signal(STACK_DUMP_SIGNAL);
            (worker.state, worker.deadline) = (WorkerState::Killed, Some(now + STACK_DUMP_MAX));
        }
    }

    /// Kills the worker of a slot, after a stack dump if it took too long; returns its process id.
    pub(crate) fn kill_slot(&mut self, worker_slot: usize, took_long: bool, now: Instant) -> Option<i32> {
        let at = self.shared.place_of(worker_slot);
        let WorkerPlace::Occupied(worker) = &self.places[at] else { return None };
        let pid = worker.child.pid?.as_raw_pid();
        let killed = worker.state == WorkerState::Killed;
        if took_long {
            self.request_stack_dump(at, now)
        } else {
            self.kill(at)
        }
        (!killed).then_some(pid)
    }

    pub(super) fn retire_where(
        &mut self,
        which: impl Fn(&WorkerProcess) -> bool,
        count_max: usize,
        now: Instant,
    ) {
        let stop_max = self.stop_max();
        let mut left = count_max;
        for (at, place) in self.places.iter_mut().enumerate().rev() {
            let WorkerPlace::Occupied(worker) = place else { continue };
            if left == 0 || !which(worker) {
                continue;
            }
            left -= 1;
            (worker.state, worker.deadline) = (WorkerState::Leaving, Some(now + stop_max));
            for worker_slot in self.shared.worker_slots_of(at) {
                self.shared.channel.retire(ring::WorkerSlot(worker_slot));
            }
        }
    }

    /// Asks all processes to leave. A worker that is still loading has nothing to finish, so it is ended at
    /// once.
    pub(crate) fn dismiss(&mut self, now: Instant) {
        self.is_dismissed = true;
        self.retry_at = None;
        let stop_max = self.stop_max();
        if let Some(prototype) = &mut self.prototype {
            if prototype.can_fork() {
                prototype.child.ask_to_leave();
                prototype.deadline = Some(now + stop_max);
            } else {
                prototype.child.signal(Signal::KILL)
            }
        }
        for at in 0..self.places.len() {
            if matches!(&self.places[at], WorkerPlace::Occupied(worker) if worker.state == WorkerState::Starting)
            {
                self.kill(at);
            }
        }
        self.retire_where(
            |worker| !matches!(worker.state, WorkerState::Leaving | WorkerState::Killed),
            usize::MAX,
            now,
        );
    }

    /// Kills all processes and their process groups.
    pub(crate) fn kill_all(&mut self) {
        self.is_dismissed = true;
        self.for_each_watched(|_, child| {
            child.signal(Signal::KILL);
            if let Some(pid) = child.pid {
                // A forked worker is in the prototype's group.
                let _ = kill_process_group(pid, Signal::KILL);
            }
        });
    }
}

/// The error text of an application that ended before it was loaded.
fn start_error(child: &ChildProcess, how: &str) -> String {
    match child.last_output() {
        output if output.is_empty() => format!("it {how} before it was loaded"),
        output => output,
    }
}
