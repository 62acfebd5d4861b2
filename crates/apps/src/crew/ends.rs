//! How processes end: by themselves, because they are asked to, or because their time is over.

use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process_group};

use super::{Crew, Event, Place, State, Who, Worker};
use crate::child::{Child, End};
use crate::log::Urgency;
use crate::mail::{Why, lock};

/// Asks a process where it is before it is killed: `KOMAINU_SIGNAL_WHERE`.
const WHERE: Signal = Signal::STKFLT;
/// How long it has for the answer.
pub(crate) const WHERE_MAX: Duration = Duration::from_secs(2);

impl Crew {
    /// A process has ended.
    pub(super) fn bury(&mut self, who: Who, now: Instant, events: &mut Vec<Event>) {
        self.pass_output(who, now);
        match who {
            Who::Prototype => {
                let Some(prototype) = self.prototype.take() else { return };
                let how = prototype.child.end().how;
                if self.leaving {
                    return;
                }
                if !prototype.loaded {
                    self.failed(now);
                    events.push(Event::NotLoaded(obituary(&prototype.child, &how)));
                } else if self.retry_at.is_none_or(|at| at <= now) {
                    self.teller.tell(Urgency::Warn, &format!("the prototype {how}; the workers go on"));
                    self.failed(now);
                }
            }
            Who::Place(at) => {
                let Place::Held(worker) = std::mem::replace(&mut self.places[at], Place::Burying(0)) else {
                    return;
                };
                *lock(&self.shared.processes[at]) = None;
                let end = worker.child.end();
                events.push(Event::Died { place: at, by_itself: end.by_itself });
                self.judge(at, &worker, end, now, events);
            }
        }
    }

    /// Whether a worker's death is anything to worry about.
    fn judge(&mut self, at: usize, worker: &Worker, end: End, now: Instant, events: &mut Vec<Event>) {
        let End { well, how, .. } = end;
        let answered: u64 = self.requests(at);
        match worker.state {
            State::Leaving | State::Killed => {}
            State::Starting => {
                self.failed(now);
                events.push(Event::NotLoaded(obituary(&worker.child, &how)));
            }
            State::Ready | State::Recycling | State::Ending if well && answered > 0 => self.failures = 0,
            State::Ready | State::Recycling | State::Ending => {
                let pid = worker.child.pid.map_or(0, |pid| pid.as_raw_pid());
                self.teller.tell(Urgency::Warn, &format!("worker {pid} {how}"));
                // One that has answered something may be replaced at once; one after the other that has not is a loop.
                match answered {
                    0 => self.failed(now),
                    _ => self.failures = 0,
                }
            }
        }
    }

    /// An event loop holds so many requests more, or fewer, that took too long. Meanwhile another worker is in its place.
    pub(crate) fn clings(&mut self, seat: usize, more: isize) {
        if let Place::Held(worker) = &mut self.places[self.shared.place_of(seat)] {
            worker.clings = worker.clings.saturating_add_signed(more);
        }
    }

    /// Nobody but this crew will see whether an event loop lets go: it has until then to end.
    pub(crate) fn clings_until(&mut self, seat: usize, due: Instant) {
        if let Place::Held(worker) = &mut self.places[self.shared.place_of(seat)] {
            worker.clings_due = Some(worker.clings_due.map_or(due, |other| other.min(due)));
        }
    }

    fn kill_clinging(&mut self, now: Instant) {
        for at in 0..self.places.len() {
            let Place::Held(worker) = &mut self.places[at] else { continue };
            if worker.clings_due.take_if(|due| *due <= now).is_some() && worker.state != State::Killed {
                let pid = worker.child.pid.map_or(0, |pid| pid.as_raw_pid());
                let text = format!("worker {pid} is killed: {}", Why::Clings.text());
                self.teller.tell(Urgency::Warn, &text);
                self.ask_where(at, now);
            }
        }
    }

    /// Ends what has had its time.
    pub(super) fn enforce(&mut self, now: Instant, events: &mut Vec<Event>) {
        self.kill_clinging(now);
        self.enforce_on_prototype(now, events);
        let start_s = self.options.start_ms_max.div_ceil(1000);
        let stop_s = self.options.stop_ms_max as f64 / 1000.0;
        let mut unborn = false;
        for at in 0..self.places.len() {
            let Place::Held(worker) = &mut self.places[at] else { continue };
            if worker.due.is_none_or(|due| now < due) {
                continue;
            }
            match worker.state {
                State::Starting => {
                    unborn |= worker.child.pid.is_none();
                    events.push(Event::NotLoaded(format!("a worker was not ready within {start_s} s")));
                    self.failed(now);
                    self.ask_where(at, now);
                }
                State::Leaving | State::Ending => {
                    let pid = worker.child.pid.map_or(0, |pid| pid.as_raw_pid());
                    let text =
                        format!("worker {pid} is killed: it did not leave within {stop_s} s (timeouts.stop)");
                    self.teller.tell(Urgency::Warn, &text);
                    self.ask_where(at, now);
                }
                State::Killed | State::Ready | State::Recycling => self.kill(at),
            }
        }
        // With its end the orders end that it did not take, and the places are free that they were for.
        if let Some(prototype) = self.prototype.as_ref().filter(|_| unborn) {
            self.teller.tell(Urgency::Warn, "the prototype is killed: it does not fork");
            prototype.child.signal(Signal::KILL);
        }
    }

    fn enforce_on_prototype(&mut self, now: Instant, events: &mut Vec<Event>) {
        let start_max = self.start_max();
        let Some(prototype) = &mut self.prototype else { return };
        match prototype.due {
            Some(due) if now >= due && !prototype.asked => {
                self.teller
                    .tell(Urgency::Warn, "the prototype is killed: it did not leave in time (timeouts.stop)");
                prototype.child.signal(WHERE);
                (prototype.asked, prototype.due) = (true, Some(now + WHERE_MAX));
            }
            Some(due) if now >= due => {
                prototype.child.signal(Signal::KILL);
                prototype.due = Some(now + start_max);
            }
            None if !prototype.loaded && now >= prototype.since + start_max => {
                prototype.child.signal(WHERE);
                (prototype.loaded, prototype.asked, prototype.due) = (true, true, Some(now + WHERE_MAX));
                let start_s = start_max.as_millis().div_ceil(1000);
                events.push(Event::NotLoaded(format!("it did not load within {start_s} s")));
                self.failed(now);
            }
            _ => {}
        }
    }

    /// Ends a worker at once.
    pub(crate) fn kill(&mut self, at: usize) {
        if let Place::Held(worker) = &mut self.places[at] {
            worker.child.signal(Signal::KILL);
            (worker.state, worker.due) = (State::Killed, None);
        }
    }

    /// Ends a worker that takes too long: first it may say where it is.
    fn ask_where(&mut self, at: usize, now: Instant) {
        if let Place::Held(worker) = &mut self.places[at]
            && worker.state != State::Killed
        {
            worker.child.signal(WHERE);
            (worker.state, worker.due) = (State::Killed, Some(now + WHERE_MAX));
        }
    }

    /// Kills the holder of a seat, who is asked first where it is if it took too long; tells its process id.
    pub(crate) fn kill_seat(&mut self, seat: usize, took_long: bool, now: Instant) -> Option<i32> {
        let at = self.shared.place_of(seat);
        let Place::Held(worker) = &self.places[at] else { return None };
        let (pid, killed) = (worker.child.pid?.as_raw_pid(), worker.state == State::Killed);
        match took_long {
            true => self.ask_where(at, now),
            false => self.kill(at),
        }
        (!killed).then_some(pid)
    }

    pub(super) fn retire_where(&mut self, which: impl Fn(&Worker) -> bool, most: usize, now: Instant) {
        let stop_max = self.stop_max();
        let mut left = most;
        for (at, place) in self.places.iter_mut().enumerate().rev() {
            let Place::Held(worker) = place else { continue };
            if left == 0 || !which(worker) {
                continue;
            }
            left -= 1;
            (worker.state, worker.due) = (State::Leaving, Some(now + stop_max));
            for seat in self.shared.seats_of(at) {
                self.shared.channel.retire(ring::Seat(seat));
            }
        }
    }

    /// Sends everybody away. What is still loading has nothing to finish.
    pub(crate) fn dismiss(&mut self, now: Instant) {
        self.leaving = true;
        self.retry_at = None;
        let stop_max = self.stop_max();
        if let Some(prototype) = &mut self.prototype {
            match prototype.is_of_use() {
                true => {
                    prototype.child.tell_to_leave();
                    prototype.due = Some(now + stop_max);
                }
                false => prototype.child.signal(Signal::KILL),
            }
        }
        for at in 0..self.places.len() {
            if matches!(&self.places[at], Place::Held(worker) if worker.state == State::Starting) {
                self.kill(at);
            }
        }
        self.retire_where(|worker| !matches!(worker.state, State::Leaving | State::Killed), usize::MAX, now);
    }

    /// Kills everybody, with whatever they have started and left behind in their groups.
    pub(crate) fn kill_all(&mut self) {
        self.leaving = true;
        self.watch(|_, child| {
            child.signal(Signal::KILL);
            if let Some(pid) = child.pid {
                // A forked worker is in the prototype's group.
                let _ = kill_process_group(pid, Signal::KILL);
            }
        });
    }
}

/// What to show of an application that ended before it was loaded.
fn obituary(child: &Child, how: &str) -> String {
    match child.last_output() {
        output if output.is_empty() => format!("it {how} before it was loaded"),
        output => output,
    }
}
