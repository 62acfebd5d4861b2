//! The processes of one generation.

mod ends;

pub(crate) use ends::WHERE_MAX;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::process::{Pid, WaitStatus};

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
    Died { place: usize, by_itself: bool },
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
    /// Leaves without having been asked.
    Ending,
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
    /// Requests that took too long and that its event loop has not let go of yet.
    clings: usize,
    /// When it is killed for that, where no core looks after it any more.
    clings_due: Option<Instant>,
}

impl Worker {
    /// Whether it answers, and is to.
    fn is_sound(&self) -> bool {
        self.state == State::Ready && self.clings == 0
    }
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
    /// It was told to end: when it has to have ended.
    due: Option<Instant>,
    /// It has no more time, and was asked where it is.
    asked: bool,
}

impl Prototype {
    /// Whether workers can be forked from it.
    fn is_of_use(&self) -> bool {
        self.loaded && self.due.is_none()
    }
}

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
    /// Its channel is damaged.
    pub(crate) damaged: bool,
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
            damaged: false,
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

    /// Whether its channel is damaged: no worker could join it any more.
    pub(crate) fn is_damaged(&mut self) -> bool {
        self.damaged |= !self.shared.channel.is_sound();
        self.damaged
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
        let prototype = self.prototype.as_ref();
        let loading = prototype.filter(|p| !p.loaded && p.due.is_none()).map(|p| p.since + self.start_max());
        let children = self.workers().map(|worker| &worker.child).chain(prototype.map(|p| &p.child));
        let lines = children.filter_map(Child::next_due);
        let ends = self
            .workers()
            .flat_map(|worker| worker.due.into_iter().chain(worker.clings_due))
            .chain(prototype.and_then(|p| p.due));
        ends.chain(lines).chain(loading).chain(self.retry_at).min()
    }

    fn stop_max(&self) -> Duration {
        Duration::from_millis(self.options.stop_ms_max)
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
        self.pass_output(who, now);
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

    fn pass_output(&mut self, who: Who, now: Instant) {
        let teller = self.teller.clone();
        if let Some(child) = self.child(who) {
            let pid = child.pid.map(|pid| pid.as_raw_pid() as u32);
            child.read_output(now, |line| teller.output(pid, line));
        }
    }

    /// Lines that wait for their ends do not wait for ever.
    fn pass_unended(&mut self, now: Instant) {
        for who in (0..self.places.len()).map(Who::Place).chain([Who::Prototype]) {
            if self.child(who).is_some_and(|child| child.next_due().is_some_and(|due| due <= now)) {
                self.pass_output(who, now);
            }
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
                if let Who::Place(at) = who
                    && matches!(&self.places[at], Place::Held(worker) if worker.state == State::Killed)
                {
                    // It was to end before it had an id.
                    self.kill(at);
                }
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
            (Word::Leaving, Who::Place(at)) => {
                let stop_max = self.stop_max();
                if let Place::Held(worker) = &mut self.places[at]
                    && matches!(worker.state, State::Starting | State::Ready | State::Recycling)
                {
                    (worker.state, worker.due) = (State::Ending, Some(now + stop_max));
                }
            }
            (Word::NotLoaded(text), _) => {
                self.failed(now);
                events.push(Event::NotLoaded(text));
                // Its end, which follows, is no second failure.
                match who {
                    Who::Prototype => {
                        let due = Some(now + WHERE_MAX);
                        self.prototype
                            .iter_mut()
                            .for_each(|it| (it.loaded, it.asked, it.due) = (true, true, due));
                    }
                    Who::Place(at) => self.kill(at),
                }
            }
            (Word::NotForked(text), _) => {
                self.failed(now);
                self.teller.tell(Urgency::Error, &format!("the prototype could not fork: {text}"));
            }
            (Word::Single, _) => self.shared.said_single.store(true, Ordering::Relaxed),
            (Word::Gone, _) | (Word::Leaving, Who::Prototype) => {}
        }
    }

    /// Lets the cores take descriptors out of the process.
    fn publish(&mut self, who: Who) {
        if let Who::Place(at) = who {
            let pidfd = self.child(who).and_then(|child| child.pidfd.clone());
            *lock(&self.shared.processes[at]) = pidfd;
            let pid = self.child(who).and_then(|child| child.pid).map_or(0, |pid| pid.as_raw_pid());
            self.shared.pids[at].store(pid, Ordering::Relaxed);
        }
    }

    fn failed(&mut self, now: Instant) {
        let pause_ms = (PAUSE_MS_FIRST << self.failures.min(16)).min(PAUSE_MS_MAX);
        self.failures += 1;
        self.retry_at = Some(now + Duration::from_millis(pause_ms));
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
        self.pass_unended(now);
        self.enforce(now, events);
        if self.leaving {
            return;
        }
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
        }
        let sound = self.workers().filter(|worker| worker.is_sound()).count();
        if sound >= self.want {
            self.retire_where(|worker| worker.state == State::Recycling, usize::MAX, now);
        }
        let there = self.count(&[State::Starting]) + sound;
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
            Some(prototype) => prototype.is_of_use(),
            None => {
                match Child::start(&self.options, &self.shared, None) {
                    Ok(child) => {
                        events.extend(child.pid.map(Event::Started));
                        self.prototype =
                            Some(Prototype { child, loaded: false, since: now, due: None, asked: false });
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
            clings: 0,
            clings_due: None,
        });
        self.publish(Who::Place(at));
        Ok(())
    }

    /// Up to a tenth less.
    fn vary(&self, value: u64) -> u64 {
        value - self.random.hash_one((Instant::now(), value)) % (value / 10).max(1)
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
                State::Leaving | State::Ending => "leaving",
                State::Killed => "killed",
            };
            add(&worker.child, state, self.requests(at), worker.since);
        }
        processes
    }
}
