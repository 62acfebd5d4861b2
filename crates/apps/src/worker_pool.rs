//! The processes of one generation.

mod exits;

pub(crate) use exits::STACK_DUMP_MAX;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, WaitStatus};
use times::Millis;

use crate::child::{ChildProcess, ControlMessage};
use crate::generation::{CoreLoad, Generation};
use crate::log::{AppLog, AppLogLevel};
use crate::options::Options;
use crate::process::{CURRENT_MAX, CurrentRequest, ProcessInfo, WorkerExit};
use crate::queues::lock;

/// The process that a watched descriptor belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessRole {
    Prototype,
    WorkerPlace(usize),
}

/// An event of a worker pool, for the supervisor.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PoolEvent {
    /// A worker is ready to serve.
    Ready,
    /// The application cannot be loaded; its error text.
    NotLoaded(String),
    /// The worker at this place died: the cores have to release its requests.
    Died { place: usize, by_itself: bool, exit: WorkerExit },
    /// A process was started, in a process group of its own.
    Started(Pid),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkerState {
    Starting,
    Ready,
    /// Serves until its replacement is ready.
    Recycling,
    /// Asked to leave.
    Leaving,
    /// Ends by itself.
    Exiting,
    /// Was asked to end.
    Killed,
}

struct WorkerProcess {
    child: ChildProcess,
    state: WorkerState,
    since: Instant,
    /// Deadline of the current state.
    deadline: Option<Instant>,
    age_max: Option<Duration>,
    memory_max: Option<u64>,
    /// Number of timed-out requests that the worker's event loop has not ended yet.
    overdue: usize,
    /// Time at which the worker is killed for overdue requests, if the core that watched them has ended.
    overdue_until: Option<Instant>,
    /// Last observed progress of each thread.
    progress: Vec<ThreadProgress>,
}

/// Last observed progress of a worker's thread.
#[derive(Clone, Copy)]
struct ThreadProgress {
    /// Number of polls for requests at that time.
    polls: u32,
    at: Instant,
}

impl WorkerProcess {
    /// Whether the worker accepts requests.
    fn accepts_requests(&self) -> bool {
        self.state == WorkerState::Ready && self.overdue == 0
    }
}

enum WorkerPlace {
    Free,
    Occupied(WorkerProcess),
    /// The worker died; this number of cores has not released its requests yet.
    Releasing(usize),
}

struct Prototype {
    child: ChildProcess,
    loaded: bool,
    since: Instant,
    /// Deadline at which the prototype is killed, if it was asked to end.
    deadline: Option<Instant>,
    /// Timed out: a stack dump was requested, SIGKILL follows.
    is_dump_requested: bool,
}

impl Prototype {
    /// Whether workers can be forked from it.
    fn can_fork(&self) -> bool {
        self.loaded && self.deadline.is_none()
    }
}

/// Longest pause between two attempts after failures.
const PAUSE_MAX: Millis = Millis(10_000);
const PAUSE_FIRST: Millis = Millis(100);

/// The processes of one generation.
pub(crate) struct WorkerPool {
    pub(crate) shared: Arc<Generation>,
    options: Arc<Options>,
    app_log: AppLog,
    prototype: Option<Prototype>,
    places: Vec<WorkerPlace>,
    /// Target number of workers.
    pub(crate) target: usize,
    /// Whether the pool is dismissed: all workers leave, and none are started.
    is_dismissed: bool,
    failures: u32,
    retry_at: Option<Instant>,
    /// Whether the channel is damaged.
    pub(crate) damaged: bool,
    random: RandomState,
}

impl WorkerPool {
    pub(crate) fn new(shared: Arc<Generation>, app_log: AppLog) -> WorkerPool {
        let options = shared.options.clone();
        WorkerPool {
            places: (0..options.place_count()).map(|_| WorkerPlace::Free).collect(),
            target: options.workers.min.max(1) as usize,
            shared,
            options,
            app_log,
            prototype: None,
            is_dismissed: false,
            failures: 0,
            retry_at: None,
            damaged: false,
            random: RandomState::new(),
        }
    }

    fn workers(&self) -> impl Iterator<Item = &WorkerProcess> {
        self.places.iter().filter_map(|place| match place {
            WorkerPlace::Occupied(worker) => Some(worker),
            _ => None,
        })
    }

    fn count(&self, states: &[WorkerState]) -> usize {
        self.workers().filter(|worker| states.contains(&worker.state)).count()
    }

    /// Number of workers that serve requests.
    pub(crate) fn ready(&self) -> usize {
        self.count(&[WorkerState::Ready, WorkerState::Recycling])
    }

    /// Whether workers are starting.
    pub(crate) fn is_growing(&self) -> bool {
        self.count(&[WorkerState::Starting]) > 0
    }

    /// Whether the channel is damaged, so that no worker could join it.
    pub(crate) fn is_damaged(&mut self) -> bool {
        self.damaged |= !self.shared.channel.is_sound();
        self.damaged
    }

    /// Whether no process is left.
    pub(crate) fn has_no_processes(&self) -> bool {
        self.prototype.is_none() && self.workers().next().is_none()
    }

    /// Calls `visit` with each process whose descriptors the supervisor watches, and its role.
    pub(crate) fn for_each_watched<'c>(&'c self, mut visit: impl FnMut(ProcessRole, &'c ChildProcess)) {
        if let Some(prototype) = &self.prototype {
            visit(ProcessRole::Prototype, &prototype.child);
        }
        for (at, place) in self.places.iter().enumerate() {
            if let WorkerPlace::Occupied(worker) = place {
                visit(ProcessRole::WorkerPlace(at), &worker.child);
            }
        }
    }

    /// Time of the next deadline, if there is one.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let prototype = self.prototype.as_ref();
        let loading =
            prototype.filter(|p| !p.loaded && p.deadline.is_none()).map(|p| p.since + self.start_max());
        let children = self.workers().map(|worker| &worker.child).chain(prototype.map(|p| &p.child));
        let lines = children.filter_map(ChildProcess::next_deadline);
        let ends = self
            .workers()
            .flat_map(|worker| worker.deadline.into_iter().chain(worker.overdue_until))
            .chain(prototype.and_then(|p| p.deadline));
        ends.chain(lines).chain(loading).chain(self.retry_at).min()
    }

    fn stop_max(&self) -> Duration {
        self.options.settings.timeouts.stop
    }

    fn start_max(&self) -> Duration {
        self.options.settings.timeouts.start
    }

    // ---- input from the processes ----

    /// Handles a process's messages, output and exit.
    pub(crate) fn handle_process(
        &mut self,
        process: ProcessRole,
        exited: bool,
        now: Instant,
        events: &mut Vec<PoolEvent>,
    ) {
        let mut unborn = false;
        loop {
            let Some(child) = self.child(process) else { return };
            match child.next_message() {
                None => break,
                // The end of a started worker is noticed through its pidfd. A worker that has no id yet will
                // not start any more.
                Some(ControlMessage::Closed) => {
                    unborn = child.pid.is_none();
                    break;
                }
                Some(word) => self.handle_message(process, word, now, events),
            }
        }
        self.log_output(process, now);
        if exited || unborn {
            self.process_ended(process, now, events);
        }
    }

    /// Records that a process was reaped before its end was noticed.
    pub(crate) fn record_exit(&mut self, pid: Pid, status: WaitStatus) {
        let places = self.places.iter_mut().filter_map(|place| match place {
            WorkerPlace::Occupied(worker) => Some(&mut worker.child),
            _ => None,
        });
        let children = places.chain(self.prototype.as_mut().map(|prototype| &mut prototype.child));
        children.filter(|child| child.pid == Some(pid)).for_each(|child| child.status = Some(status));
    }

    fn child(&mut self, who: ProcessRole) -> Option<&mut ChildProcess> {
        match who {
            ProcessRole::Prototype => self.prototype.as_mut().map(|prototype| &mut prototype.child),
            ProcessRole::WorkerPlace(at) => match &mut self.places[at] {
                WorkerPlace::Occupied(worker) => Some(&mut worker.child),
                _ => None,
            },
        }
    }

    fn log_output(&mut self, who: ProcessRole, now: Instant) {
        let app_log = self.app_log.clone();
        if let Some(child) = self.child(who) {
            let pid = child.pid.map(|pid| pid.as_raw_pid() as u32);
            child.read_output(now, |line| app_log.output(pid, line));
        }
    }

    /// Logs incomplete lines that have been held back long enough.
    fn log_incomplete_lines(&mut self, now: Instant) {
        for who in (0..self.places.len()).map(ProcessRole::WorkerPlace).chain([ProcessRole::Prototype]) {
            if self.child(who).is_some_and(|child| child.next_deadline().is_some_and(|due| due <= now)) {
                self.log_output(who, now);
            }
        }
    }

    fn handle_message(
        &mut self,
        who: ProcessRole,
        word: ControlMessage,
        now: Instant,
        events: &mut Vec<PoolEvent>,
    ) {
        match (word, who) {
            (ControlMessage::Created(pid), _) => {
                let adopted = self.child(who).map(|child| child.set_pid(pid));
                if let Some(Err(error)) = adopted {
                    self.app_log
                        .report(AppLogLevel::Error, &format!("worker {pid:?} cannot be watched: {error}"));
                }
                self.publish(who);
                if let ProcessRole::WorkerPlace(at) = who
                    && matches!(&self.places[at], WorkerPlace::Occupied(worker) if worker.state == WorkerState::Killed)
                {
                    // The worker was to be ended before it had an id.
                    self.kill(at);
                }
            }
            (ControlMessage::Ready, ProcessRole::Prototype) => {
                if let Some(prototype) = &mut self.prototype {
                    prototype.loaded = true;
                }
            }
            (ControlMessage::Ready, ProcessRole::WorkerPlace(at)) => {
                if let WorkerPlace::Occupied(worker) = &mut self.places[at]
                    && worker.state == WorkerState::Starting
                {
                    (worker.state, worker.deadline) = (WorkerState::Ready, None);
                    worker.progress = vec![
                        ThreadProgress { polls: 0, at: now };
                        self.options.settings.threads.max(1) as usize
                    ];
                    self.shared.has_been_ready.store(true, Ordering::Relaxed);
                    events.push(PoolEvent::Ready);
                }
            }
            (ControlMessage::Leaving, ProcessRole::WorkerPlace(at)) => {
                let stop_max = self.stop_max();
                if let WorkerPlace::Occupied(worker) = &mut self.places[at]
                    && matches!(
                        worker.state,
                        WorkerState::Starting | WorkerState::Ready | WorkerState::Recycling
                    )
                {
                    (worker.state, worker.deadline) = (WorkerState::Exiting, Some(now + stop_max));
                }
            }
            (ControlMessage::NotLoaded(text), _) => {
                self.record_failure(now);
                events.push(PoolEvent::NotLoaded(text));
                // The end of the process, which follows, does not count as a second failure.
                match who {
                    ProcessRole::Prototype => {
                        let due = Some(now + STACK_DUMP_MAX);
                        self.prototype.iter_mut().for_each(|it| {
                            (it.loaded, it.is_dump_requested, it.deadline) = (true, true, due)
                        });
                    }
                    ProcessRole::WorkerPlace(at) => self.kill(at),
                }
            }
            (ControlMessage::NotForked(text), _) => {
                self.record_failure(now);
                self.app_log.report(AppLogLevel::Error, &format!("the prototype could not fork: {text}"));
            }
            (ControlMessage::OneRequestPerThread, _) => {
                self.shared.has_reported_single.store(true, Ordering::Relaxed)
            }
            (ControlMessage::Closed, _) | (ControlMessage::Leaving, ProcessRole::Prototype) => {}
        }
    }

    /// Makes the process available to the cores, which copy descriptors from it.
    fn publish(&mut self, who: ProcessRole) {
        if let ProcessRole::WorkerPlace(at) = who {
            let pidfd = self.child(who).and_then(|child| child.pidfd.clone());
            *lock(&self.shared.processes[at]) = pidfd;
            let pid = self.child(who).and_then(|child| child.pid).map_or(0, |pid| pid.as_raw_pid());
            self.shared.pids[at].store(pid, Ordering::Relaxed);
        }
    }

    fn record_failure(&mut self, now: Instant) {
        let pause = (PAUSE_FIRST * (1 << self.failures.min(16))).min(PAUSE_MAX);
        self.failures += 1;
        self.retry_at = Some(now + pause.duration());
    }

    fn requests(&self, at: usize) -> u64 {
        self.shared.counts[at].requests.load(Ordering::Relaxed)
    }

    /// Keeps a dead worker's place occupied until `cores` cores have released its requests.
    pub(crate) fn wait_for_release(&mut self, at: usize, cores: usize) {
        self.places[at] = if cores > 0 { WorkerPlace::Releasing(cores) } else { WorkerPlace::Free };
    }

    /// Records that a core has released a dead worker's requests.
    pub(crate) fn core_released(&mut self, at: usize) {
        if let Some(place @ WorkerPlace::Releasing(_)) = self.places.get_mut(at) {
            *place = match place {
                WorkerPlace::Releasing(left) if *left > 1 => WorkerPlace::Releasing(*left - 1),
                _ => WorkerPlace::Free,
            };
        }
    }

    // ---- timers ----

    /// Handles expired deadlines, and starts or stops workers to reach the target number.
    pub(crate) fn balance(&mut self, now: Instant, events: &mut Vec<PoolEvent>) {
        self.log_incomplete_lines(now);
        self.enforce(now, events);
        if self.is_dismissed {
            return;
        }
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
        }
        let sound = self.workers().filter(|worker| worker.accepts_requests()).count();
        if sound >= self.target {
            self.retire_where(|worker| worker.state == WorkerState::Recycling, usize::MAX, now);
        }
        let there = self.count(&[WorkerState::Starting]) + sound;
        if there > self.target {
            self.retire_where(|worker| worker.state == WorkerState::Ready, there - self.target, now);
        }
        for _ in there..self.target {
            if self.retry_at.is_some() || !self.prepare_start(now, events) {
                return;
            }
            let free = self.places.iter().position(|place| matches!(place, WorkerPlace::Free));
            let Some(at) = free else {
                // No place is free for a replacement: an old worker has to leave first.
                return self.retire_where(|worker| worker.state == WorkerState::Recycling, 1, now);
            };
            if let Err(error) = self.start(at, now, events) {
                self.record_failure(now);
                return events.push(PoolEvent::NotLoaded(error.to_string()));
            }
        }
    }

    /// Whether workers can be started; starts the prototype if needed.
    fn prepare_start(&mut self, now: Instant, events: &mut Vec<PoolEvent>) -> bool {
        if !self.options.settings.preload {
            return true;
        }
        match &self.prototype {
            Some(prototype) => prototype.can_fork(),
            None => {
                match ChildProcess::start(&self.options, &self.shared, None) {
                    Ok(child) => {
                        events.extend(child.pid.map(PoolEvent::Started));
                        self.prototype = Some(Prototype {
                            child,
                            loaded: false,
                            since: now,
                            deadline: None,
                            is_dump_requested: false,
                        });
                    }
                    Err(error) => {
                        self.record_failure(now);
                        events.push(PoolEvent::NotLoaded(error.to_string()));
                    }
                }
                false
            }
        }
    }

    fn start(&mut self, at: usize, now: Instant, events: &mut Vec<PoolEvent>) -> io::Result<()> {
        let worker_slots = self.shared.worker_slots_of(at);
        let recycle = self.options.settings.recycle.clone();
        let requests_max = recycle.requests.map_or(0, |max| self.vary(max).max(1));
        let counts = &self.shared.counts[at];
        counts.requests.store(0, Ordering::Relaxed);
        counts.requests_max.store(requests_max, Ordering::Relaxed);
        let child = match &self.prototype {
            Some(prototype) => {
                let (mut child, theirs) = ChildProcess::prepare()?;
                child.launcher = self.options.launcher.clone();
                prototype.child.ask_to_fork(worker_slots, &theirs)?;
                child
            }
            None => {
                let child = ChildProcess::start(&self.options, &self.shared, Some(worker_slots))?;
                events.extend(child.pid.map(PoolEvent::Started));
                child
            }
        };
        self.places[at] = WorkerPlace::Occupied(WorkerProcess {
            child,
            state: WorkerState::Starting,
            since: now,
            deadline: Some(now + self.start_max()),
            age_max: recycle.age.map(|age| Duration::from_millis(self.vary(Millis::of(age).0))),
            memory_max: recycle.memory_bytes.map(|bytes| self.vary(bytes)),
            overdue: 0,
            overdue_until: None,
            progress: Vec::new(),
        });
        self.publish(ProcessRole::WorkerPlace(at));
        Ok(())
    }

    /// Returns `value` minus a random part of up to a tenth.
    fn vary(&self, value: u64) -> u64 {
        value - self.random.hash_one((Instant::now(), value)) % (value / 10).max(1)
    }

    /// Recycles the worker of this slot.
    pub(crate) fn recycle_slot(&mut self, worker_slot: usize) {
        if let WorkerPlace::Occupied(worker) = &mut self.places[self.shared.place_of(worker_slot)]
            && worker.state == WorkerState::Ready
        {
            worker.state = WorkerState::Recycling;
        }
    }

    /// Recycles workers that exceed `recycle.age` or `recycle.memory`.
    pub(crate) fn recycle_worn(&mut self, now: Instant) {
        for place in &mut self.places {
            let WorkerPlace::Occupied(worker) = place else { continue };
            let too_old = worker.age_max.is_some_and(|max| now.duration_since(worker.since) >= max);
            let memory = || worker.child.usage().map_or(0, |usage| usage.private_dirty_bytes);
            let too_fat = worker.memory_max.is_some_and(|max| memory() > max);
            if worker.state == WorkerState::Ready && (too_old || too_fat) {
                worker.state = WorkerState::Recycling;
            }
        }
    }

    /// Returns the processes of this pool, for the status.
    pub(crate) fn processes(&self, now: Instant) -> Vec<ProcessInfo> {
        let mut processes = Vec::new();
        let mut add = |child: &ChildProcess, worker, state, requests, since: Instant| {
            if let Some(pid) = child.pid.map(|pid| pid.as_raw_pid() as u32) {
                processes.push(ProcessInfo {
                    pid,
                    worker,
                    state,
                    generation: self.shared.number,
                    requests,
                    age: now.duration_since(since).into(),
                    usage: child.usage(),
                    current: Vec::new(),
                });
            }
        };
        if let Some(prototype) = &self.prototype {
            add(&prototype.child, 0, "prototype", 0, prototype.since);
        }
        for (at, place) in self.places.iter().enumerate() {
            let WorkerPlace::Occupied(worker) = place else { continue };
            let state = match worker.state {
                WorkerState::Starting => "starting",
                WorkerState::Ready => "ready",
                WorkerState::Recycling => "recycling",
                WorkerState::Leaving | WorkerState::Exiting => "leaving",
                WorkerState::Killed => "killed",
            };
            add(&worker.child, at + 1, state, self.requests(at), worker.since);
        }
        self.add_current(&mut processes);
        processes
    }

    /// Adds the current requests of each worker.
    fn add_current(&self, processes: &mut [ProcessInfo]) {
        for load in &self.shared.core_loads {
            for claimed in lock(&load.current).iter() {
                let number = self.shared.place_of(claimed.worker_slot) + 1;
                let worker = processes.iter_mut().find(|process| process.worker == number);
                let Some(worker) = worker.filter(|worker| worker.current.len() < CURRENT_MAX) else {
                    continue;
                };
                let (method, target) = claimed.head.texts();
                worker.current.push(CurrentRequest { method, target, age: claimed.age });
            }
        }
    }

    /// Returns the numbers of waiting and of claimed requests, summed over all cores.
    pub(crate) fn load(&self) -> (usize, usize) {
        let sum = |of: fn(&CoreLoad) -> &AtomicUsize| {
            self.shared.core_loads.iter().map(|load| of(load).load(Ordering::Relaxed)).sum()
        };
        (sum(|load| &load.waiting), sum(|load| &load.claimed))
    }
}
