//! The processes of one generation.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitStatus, kill_process_group};

use crate::child::{Child, Word};
use crate::generation::Generation;
use crate::log::{Teller, Urgency};
use crate::mail::lock;
use crate::options::Options;
use crate::process::Process;

/// Whom a watched descriptor belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Prototype,
    Place(usize),
}

/// What the supervisor has to know of a crew.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A worker can answer.
    Ready,
    /// The application does not load; in its own words.
    NotLoaded(String),
    /// The worker at this place is dead: the cores have to settle that.
    Died(usize),
    /// A process was started, in a group of its own.
    Started(Pid),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Starting,
    Ready,
    /// Answers until a fresh one does.
    Recycling,
    /// Asked to leave.
    Leaving,
    /// Told to end.
    Killed,
}

struct Worker {
    child: Child,
    state: State,
    since: Instant,
    /// When its time for the state is over.
    due: Option<Instant>,
    age_max: Option<Duration>,
    memory_max: Option<u64>,
}

enum Place {
    Free,
    Held(Worker),
    /// Its holder is dead; so many cores have not settled that yet.
    Burying(usize),
}

struct Prototype {
    child: Child,
    loaded: bool,
    since: Instant,
}

/// A worker that is killed gets this long to end by itself.
const KILL_MS: u64 = 1_000;
/// The longest pause between two attempts to start something that fails.
const PAUSE_MS_MAX: u64 = 10_000;
const PAUSE_MS_FIRST: u64 = 100;

/// The processes of one generation.
pub(crate) struct Crew {
    pub(crate) shared: Arc<Generation>,
    options: Arc<Options>,
    teller: Teller,
    prototype: Option<Prototype>,
    places: Vec<Place>,
    /// How many workers there shall be.
    pub(crate) want: usize,
    /// No more workers: all that are left leave.
    leaving: bool,
    failures: u32,
    retry_at: Option<Instant>,
    random: RandomState,
}

impl Crew {
    pub(crate) fn new(shared: Arc<Generation>, teller: Teller) -> Crew {
        let options = shared.options.clone();
        Crew {
            places: (0..options.places()).map(|_| Place::Free).collect(),
            want: options.workers.min.max(1),
            shared,
            options,
            teller,
            prototype: None,
            leaving: false,
            failures: 0,
            retry_at: None,
            random: RandomState::new(),
        }
    }

    fn workers(&self) -> impl Iterator<Item = &Worker> {
        self.places.iter().filter_map(|place| match place {
            Place::Held(worker) => Some(worker),
            _ => None,
        })
    }

    fn count(&self, states: &[State]) -> usize {
        self.workers().filter(|worker| states.contains(&worker.state)).count()
    }

    /// Workers that answer.
    pub(crate) fn ready(&self) -> usize {
        self.count(&[State::Ready, State::Recycling])
    }

    /// Whether workers are on their way.
    pub(crate) fn is_growing(&self) -> bool {
        self.count(&[State::Starting]) > 0
    }

    /// Whether no process is left.
    pub(crate) fn is_gone(&self) -> bool {
        self.prototype.is_none() && self.workers().next().is_none()
    }

    /// Every descriptor to watch, as `each(whose, control, output, exit)`.
    pub(crate) fn watch<'c>(&'c self, mut each: impl FnMut(Who, &'c Child)) {
        if let Some(prototype) = &self.prototype {
            each(Who::Prototype, &prototype.child);
        }
        for (at, place) in self.places.iter().enumerate() {
            if let Place::Held(worker) = place {
                each(Who::Place(at), &worker.child);
            }
        }
    }

    /// When something is due; `None` for nothing.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let loading = self.prototype.as_ref().filter(|p| !p.loaded).map(|p| p.since + self.start_max());
        self.workers().filter_map(|worker| worker.due).chain(loading).chain(self.retry_at).min()
    }

    fn start_max(&self) -> Duration {
        Duration::from_millis(self.options.start_ms_max)
    }

    // ---- what comes from the processes ----

    /// Something may have happened to a process.
    pub(crate) fn look(&mut self, who: Who, exited: bool, now: Instant, events: &mut Vec<Event>) {
        let mut unborn = false;
        loop {
            let Some(child) = self.child(who) else { return };
            match child.hear() {
                None => break,
                // The death of one that was born is seen by other means; whoever was not by now never will be.
                Some(Word::Gone) => {
                    unborn = child.pid.is_none();
                    break;
                }
                Some(word) => self.heed(who, word, now, events),
            }
        }
        self.pass_output(who);
        if exited || unborn {
            self.bury(who, now, events);
        }
    }

    /// A process was buried before its end was seen.
    pub(crate) fn ended(&mut self, pid: Pid, status: WaitStatus) {
        let places = self.places.iter_mut().filter_map(|place| match place {
            Place::Held(worker) => Some(&mut worker.child),
            _ => None,
        });
        let children = places.chain(self.prototype.as_mut().map(|prototype| &mut prototype.child));
        children.filter(|child| child.pid == Some(pid)).for_each(|child| child.status = Some(status));
    }

    fn child(&mut self, who: Who) -> Option<&mut Child> {
        match who {
            Who::Prototype => self.prototype.as_mut().map(|prototype| &mut prototype.child),
            Who::Place(at) => match &mut self.places[at] {
                Place::Held(worker) => Some(&mut worker.child),
                _ => None,
            },
        }
    }

    fn pass_output(&mut self, who: Who) {
        let teller = self.teller.clone();
        if let Some(child) = self.child(who) {
            let pid = child.pid.map(|pid| pid.as_raw_pid() as u32);
            child.read_output(|line| teller.output(pid, line));
        }
    }

    fn heed(&mut self, who: Who, word: Word, now: Instant, events: &mut Vec<Event>) {
        match (word, who) {
            (Word::Born(pid), _) => {
                let adopted = self.child(who).map(|child| child.adopt(pid));
                if let Some(Err(error)) = adopted {
                    self.teller.tell(Urgency::Error, &format!("worker {pid:?} cannot be watched: {error}"));
                }
                self.publish(who);
            }
            (Word::Ready, Who::Prototype) => {
                if let Some(prototype) = &mut self.prototype {
                    prototype.loaded = true;
                }
            }
            (Word::Ready, Who::Place(at)) => {
                if let Place::Held(worker) = &mut self.places[at]
                    && worker.state == State::Starting
                {
                    (worker.state, worker.due) = (State::Ready, None);
                    self.shared.is_up.store(true, Ordering::Relaxed);
                    events.push(Event::Ready);
                }
            }
            (Word::NotLoaded(text), _) => {
                self.failed(now);
                events.push(Event::NotLoaded(text));
                // Its end, which follows, is no second failure.
                match who {
                    Who::Prototype => self.prototype.iter_mut().for_each(|prototype| prototype.loaded = true),
                    Who::Place(at) => self.kill(at, now),
                }
            }
            (Word::NotForked(text), _) => {
                self.failed(now);
                self.teller.tell(Urgency::Error, &format!("the prototype could not fork: {text}"));
            }
            (Word::Gone, _) => {}
        }
    }

    /// Lets the cores take descriptors out of the process.
    fn publish(&mut self, who: Who) {
        if let Who::Place(at) = who {
            let pidfd = self.child(who).and_then(|child| child.pidfd.clone());
            *lock(&self.shared.processes[at]) = pidfd;
        }
    }

    fn failed(&mut self, now: Instant) {
        let pause_ms = (PAUSE_MS_FIRST << self.failures.min(16)).min(PAUSE_MS_MAX);
        self.failures += 1;
        self.retry_at = Some(now + Duration::from_millis(pause_ms));
    }

    /// A process has ended.
    fn bury(&mut self, who: Who, now: Instant, events: &mut Vec<Event>) {
        self.pass_output(who);
        match who {
            Who::Prototype => {
                let Some(prototype) = self.prototype.take() else { return };
                let (_, how) = prototype.child.end();
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
                events.push(Event::Died(at));
                self.judge(at, &worker, now, events);
            }
        }
    }

    /// Whether a worker's death is anything to worry about.
    fn judge(&mut self, at: usize, worker: &Worker, now: Instant, events: &mut Vec<Event>) {
        let (well, how) = worker.child.end();
        let answered: u64 = self.requests(at);
        match worker.state {
            State::Leaving | State::Killed => {}
            State::Starting => {
                self.failed(now);
                events.push(Event::NotLoaded(obituary(&worker.child, &how)));
            }
            State::Ready | State::Recycling if well && answered > 0 => self.failures = 0,
            State::Ready | State::Recycling => {
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

    fn requests(&self, at: usize) -> u64 {
        let seats = self.shared.seats_of(at);
        self.shared.seats[seats].iter().map(|seat| seat.requests.load(Ordering::Relaxed)).sum()
    }

    /// So many cores have a death to settle before another can take the place.
    pub(crate) fn wait_for_burial(&mut self, at: usize, cores: usize) {
        self.places[at] = if cores > 0 { Place::Burying(cores) } else { Place::Free };
    }

    /// A core has settled a death.
    pub(crate) fn buried(&mut self, at: usize) {
        if let Some(place @ Place::Burying(_)) = self.places.get_mut(at) {
            *place = match place {
                Place::Burying(left) if *left > 1 => Place::Burying(*left - 1),
                _ => Place::Free,
            };
        }
    }

    // ---- what comes from time ----

    /// Deals with what is due, and starts or sends away workers until there are as many as there shall be.
    pub(crate) fn balance(&mut self, now: Instant, events: &mut Vec<Event>) {
        self.enforce(now, events);
        if self.leaving {
            return;
        }
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
        }
        if self.count(&[State::Ready]) >= self.want {
            self.retire_where(|worker| worker.state == State::Recycling, usize::MAX, now);
        }
        let there = self.count(&[State::Starting, State::Ready]);
        if there > self.want {
            self.retire_where(|worker| worker.state == State::Ready, there - self.want, now);
        }
        for _ in there..self.want {
            if self.retry_at.is_some() || !self.is_prepared(now, events) {
                return;
            }
            let free = self.places.iter().position(|place| matches!(place, Place::Free));
            let Some(at) = free else {
                // No place beside those to be replaced: one of them has to leave first.
                return self.retire_where(|worker| worker.state == State::Recycling, 1, now);
            };
            if let Err(error) = self.start(at, now, events) {
                self.failed(now);
                return events.push(Event::NotLoaded(error.to_string()));
            }
        }
    }

    /// Whether workers can be started.
    fn is_prepared(&mut self, now: Instant, events: &mut Vec<Event>) -> bool {
        if !self.options.preload {
            return true;
        }
        match &self.prototype {
            Some(prototype) => prototype.loaded,
            None => {
                match Child::start(&self.options, &self.shared, None) {
                    Ok(child) => {
                        events.extend(child.pid.map(Event::Started));
                        self.prototype = Some(Prototype { child, loaded: false, since: now });
                    }
                    Err(error) => {
                        self.failed(now);
                        events.push(Event::NotLoaded(error.to_string()));
                    }
                }
                false
            }
        }
    }

    fn start(&mut self, at: usize, now: Instant, events: &mut Vec<Event>) -> io::Result<()> {
        let seats = self.shared.seats_of(at);
        let recycle = self.options.recycle;
        for seat in &self.shared.seats[seats.clone()] {
            seat.requests.store(0, Ordering::Relaxed);
            let requests_max = recycle.requests.map_or(0, |max| (self.vary(max) / seats.len() as u64).max(1));
            seat.requests_max.store(requests_max, Ordering::Relaxed);
        }
        let child = match &self.prototype {
            Some(prototype) => {
                let (mut child, theirs) = Child::conceive()?;
                child.launcher = self.options.launcher.clone();
                prototype.child.ask_to_fork(seats, &theirs)?;
                child
            }
            None => {
                let child = Child::start(&self.options, &self.shared, Some(seats))?;
                events.extend(child.pid.map(Event::Started));
                child
            }
        };
        self.places[at] = Place::Held(Worker {
            child,
            state: State::Starting,
            since: now,
            due: Some(now + self.start_max()),
            age_max: recycle.age_ms.map(|ms| Duration::from_millis(self.vary(ms))),
            memory_max: recycle.memory_bytes.map(|bytes| self.vary(bytes)),
        });
        self.publish(Who::Place(at));
        Ok(())
    }

    /// Up to a tenth less.
    fn vary(&self, value: u64) -> u64 {
        value - self.random.hash_one((Instant::now(), value)) % (value / 10).max(1)
    }

    /// Ends what has had its time.
    fn enforce(&mut self, now: Instant, events: &mut Vec<Event>) {
        let start_s = self.options.start_ms_max.div_ceil(1000);
        if let Some(prototype) = &mut self.prototype
            && !prototype.loaded
            && now >= prototype.since + Duration::from_millis(self.options.start_ms_max)
        {
            prototype.child.signal(Signal::KILL);
            prototype.loaded = true;
            events.push(Event::NotLoaded(format!("it did not load within {start_s} s")));
            self.failed(now);
        }
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
                    self.kill(at, now);
                }
                State::Leaving | State::Killed | State::Ready | State::Recycling => {
                    worker.child.signal(Signal::KILL);
                    (worker.state, worker.due) = (State::Killed, None);
                }
            }
        }
        // With its end the orders end that it did not take, and the places are free that they were for.
        if let Some(prototype) = self.prototype.as_ref().filter(|_| unborn) {
            self.teller.tell(Urgency::Warn, "the prototype is killed: it does not fork");
            prototype.child.signal(Signal::KILL);
        }
    }

    /// Ends a worker: asks first, then does not ask.
    pub(crate) fn kill(&mut self, at: usize, now: Instant) {
        if let Place::Held(worker) = &mut self.places[at]
            && worker.state != State::Killed
        {
            worker.child.signal(Signal::TERM);
            (worker.state, worker.due) = (State::Killed, Some(now + Duration::from_millis(KILL_MS)));
        }
    }

    /// Kills the holder of a seat; tells its process id.
    pub(crate) fn kill_seat(&mut self, seat: usize, now: Instant) -> Option<i32> {
        let at = self.shared.place_of(seat);
        let Place::Held(worker) = &self.places[at] else { return None };
        let (pid, killed) = (worker.child.pid?.as_raw_pid(), worker.state == State::Killed);
        self.kill(at, now);
        (!killed).then_some(pid)
    }

    /// Lets a fresh worker take the place of this seat's.
    pub(crate) fn recycle_seat(&mut self, seat: usize) {
        if let Place::Held(worker) = &mut self.places[self.shared.place_of(seat)]
            && worker.state == State::Ready
        {
            worker.state = State::Recycling;
        }
    }

    /// Lets fresh workers take the places of the old and the fat ones.
    pub(crate) fn recycle_worn(&mut self, now: Instant) {
        for place in &mut self.places {
            let Place::Held(worker) = place else { continue };
            let too_old = worker.age_max.is_some_and(|max| now.duration_since(worker.since) >= max);
            let memory = || worker.child.usage().map_or(0, |usage| usage.private_dirty_bytes);
            let too_fat = worker.memory_max.is_some_and(|max| memory() > max);
            if worker.state == State::Ready && (too_old || too_fat) {
                worker.state = State::Recycling;
            }
        }
    }

    fn retire_where(&mut self, which: impl Fn(&Worker) -> bool, most: usize, now: Instant) {
        let stop_max = Duration::from_millis(self.options.stop_ms_max);
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

    /// Sends everybody away, the prototype first.
    pub(crate) fn dismiss(&mut self, now: Instant) {
        self.leaving = true;
        self.retry_at = None;
        if let Some(prototype) = &self.prototype {
            prototype.child.signal(Signal::KILL);
        }
        for at in 0..self.places.len() {
            if matches!(&self.places[at], Place::Held(worker) if worker.state == State::Starting) {
                self.kill(at, now);
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

    /// What there is to see.
    pub(crate) fn processes(&self, now: Instant) -> Vec<Process> {
        let mut processes = Vec::new();
        let mut add = |child: &Child, state, requests, since: Instant| {
            if let Some(pid) = child.pid.map(|pid| pid.as_raw_pid() as u32) {
                processes.push(Process {
                    pid,
                    state,
                    generation: self.shared.number,
                    requests,
                    age_ms: now.duration_since(since).as_millis() as u64,
                    usage: child.usage(),
                });
            }
        };
        if let Some(prototype) = &self.prototype {
            add(&prototype.child, "prototype", 0, prototype.since);
        }
        for (at, place) in self.places.iter().enumerate() {
            let Place::Held(worker) = place else { continue };
            let state = match worker.state {
                State::Starting => "starting",
                State::Ready => "ready",
                State::Recycling => "recycling",
                State::Leaving => "leaving",
                State::Killed => "killed",
            };
            add(&worker.child, state, self.requests(at), worker.since);
        }
        processes
    }
}

/// What to show of an application that ended before it was loaded.
fn obituary(child: &Child, how: &str) -> String {
    match child.last_output() {
        output if output.is_empty() => format!("it {how} before it was loaded"),
        output => output,
    }
}
