//! The thread that starts, replaces and ends an application's processes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::generation::Generation;
use crate::load_results::{LoadError, LoadResults};
use crate::log::{AppLog, AppLogLevel};
use crate::options::Options;
use crate::orphans::Orphans;
use crate::process::{AppSnapshot, WorkerExit};
use crate::queues::{CommandQueue, CoreEvent, EventQueue, KillReason, SupervisorCommand, lock};
use crate::worker_pool::{PoolEvent, ProcessRole, STACK_DUMP_MAX, WorkerPool};

/// Interval of regular checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Number of rounds between memory checks, which are expensive because the kernel has to walk the process's
/// pages.
const MEMORY_CHECK_ROUNDS: u32 = 5;
/// Number of rounds after which workers that wait for requests are woken to handle their signals.
const SIGNAL_ROUNDS: u32 = 4;
/// Longest pause before a damaged channel is replaced, and the time after which an intact one counts as
/// reliable again.
const RENEWAL_PAUSE_MAX: Duration = Duration::from_secs(60);

/// State of the supervisor that is shared with the status.
#[derive(Default)]
pub(crate) struct SupervisorStatus {
    /// Held during a snapshot request, so that there is only one at a time.
    pub(crate) snapshot_lock: Mutex<()>,
    /// Receiver of the requested snapshot, and whether it includes the processes.
    pub(crate) snapshot_request: Mutex<Option<(std::sync::mpsc::SyncSender<AppSnapshot>, bool)>>,
    /// Number of workers that have ended, indexed by [`WorkerExit`].
    pub(crate) exits: [AtomicU64; WorkerExit::ALL.len()],
}

/// The role of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GenerationRole {
    /// Serves as soon as it is ready.
    Loading,
    Serving,
    /// Replaced; this number of cores still has requests in it.
    Leaving(usize),
    Dismissed,
}

/// Supervisor of one application.
pub(crate) struct Supervisor {
    options: Arc<Options>,
    app_log: AppLog,
    commands: Arc<CommandQueue>,
    inboxes: Vec<Arc<EventQueue>>,
    status: Arc<SupervisorStatus>,
    worker_pools: Vec<(GenerationRole, WorkerPool)>,
    orphans: Orphans,
    load_results: LoadResults,
    /// The generation that was sent to the cores, and how many of them do not use it yet.
    switching: Option<(u64, usize)>,
    /// The new generation that the cores begin to serve, until it is logged.
    taking_over: Option<u64>,
    last_generation: u64,
    /// Whether the cores were told that the application cannot be loaded.
    has_sent_load_failure: bool,
    /// The last load failure: its generation, its error text (at most 32 KiB), and how often it has occurred.
    load_failure: Option<(u64, String, u64)>,
    /// Time since which there are more workers than needed.
    slack_since: Option<Instant>,
    stopping: Option<Instant>,
    /// Number of damaged channels replaced in short succession, and the time of the next possible
    /// replacement.
    renewals: u32,
    renew_at: Instant,
    round: u32,
}

impl Supervisor {
    pub(crate) fn new(
        options: Arc<Options>,
        app_log: AppLog,
        commands: Arc<CommandQueue>,
        inboxes: Vec<Arc<EventQueue>>,
        board: Arc<SupervisorStatus>,
    ) -> io::Result<Supervisor> {
        let mut supervisor = Supervisor {
            options,
            app_log,
            commands,
            inboxes,
            status: board,
            worker_pools: Vec::new(),
            orphans: Orphans::default(),
            load_results: LoadResults::default(),
            switching: None,
            taking_over: None,
            last_generation: 0,
            has_sent_load_failure: false,
            load_failure: None,
            slack_since: None,
            stopping: None,
            renewals: 0,
            renew_at: Instant::now(),
            round: 0,
        };
        // Requests that arrive before the first worker is ready wait in the channel.
        let worker_pool = supervisor.worker_pool()?;
        supervisor.broadcast(&CoreEvent::Serve(worker_pool.shared.clone()));
        supervisor.worker_pools.push((GenerationRole::Serving, worker_pool));
        Ok(supervisor)
    }

    fn worker_pool(&mut self) -> io::Result<WorkerPool> {
        self.last_generation += 1;
        let shared =
            Arc::new(Generation::new(self.last_generation, self.options.clone(), self.inboxes.len())?);
        Ok(WorkerPool::new(shared, self.app_log.clone()))
    }

    /// Sends the event to the cores; returns how many handle it.
    fn broadcast(&self, notice: &CoreEvent) -> usize {
        self.inboxes.iter().filter(|inbox| inbox.send(notice.clone())).count()
    }

    /// Runs until it receives `Stop` and no process is left.
    pub(crate) fn run(mut self) {
        let mut next_round = Instant::now();
        loop {
            let now = Instant::now();
            if now >= next_round {
                next_round = now + CHECK_INTERVAL;
                self.adjust_workers(now);
            }
            for at in 0..self.worker_pools.len() {
                let mut events = Vec::new();
                self.worker_pools[at].1.balance(now, &mut events);
                self.handle_pool_events(at, events);
            }
            self.remove_ended(now);
            if let (Some(until), true) = (self.stopping, self.worker_pools.is_empty()) {
                // Processes that workers have forked, and that did not end with them.
                return self.orphans.end(until, &self.app_log);
            }
            if let Err(error) = self.wait(next_round) {
                self.app_log.report(AppLogLevel::Error, &format!("the supervisor cannot wait: {error}"));
                std::thread::sleep(CHECK_INTERVAL);
            }
            for command in self.commands.take() {
                self.handle_command(command);
            }
            if let Some((asker, has_processes)) = lock(&self.status.snapshot_request).take() {
                // The receiver may have been dropped.
                let _ = asker.try_send(self.snapshot(has_processes));
            }
        }
    }

    fn snapshot(&self, has_processes: bool) -> AppSnapshot {
        let now = Instant::now();
        let pools = || self.worker_pools.iter().map(|(_, worker_pool)| worker_pool);
        let shown = pools().filter(|_| has_processes);
        AppSnapshot {
            processes: shown.flat_map(|worker_pool| worker_pool.processes(now)).collect(),
            waiting: pools().map(|worker_pool| worker_pool.load().0).sum(),
            claimed: pools().map(|worker_pool| worker_pool.load().1).sum(),
            waiting_max: self.options.settings.queue_max as usize,
        }
    }

    /// Sleeps until an event or a deadline, and handles the input from the processes.
    fn wait(&mut self, next_round: Instant) -> io::Result<()> {
        #[derive(Clone, Copy)]
        enum PolledDescriptor {
            Commands,
            ProcessOutput(usize, ProcessRole),
            ProcessExit(usize, ProcessRole),
        }
        let mut due = next_round;
        let mut whose = vec![PolledDescriptor::Commands];
        let mut fds: Vec<BorrowedFd<'_>> = vec![self.commands.eventfd()];
        for (at, (_, worker_pool)) in self.worker_pools.iter().enumerate() {
            due = due.min(worker_pool.next_deadline().unwrap_or(due));
            worker_pool.for_each_watched(|who, child| {
                for voice in child.poll_descriptors() {
                    whose.push(PolledDescriptor::ProcessOutput(at, who));
                    fds.push(voice);
                }
                if let Some(pidfd) = &child.pidfd {
                    whose.push(PolledDescriptor::ProcessExit(at, who));
                    fds.push(pidfd.as_fd());
                }
            });
        }
        let mut polled: Vec<PollFd<'_>> =
            fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        let left = due.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut polled, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let happened: Vec<PolledDescriptor> = whose
            .iter()
            .zip(&polled)
            .filter(|(_, fd)| !fd.revents().is_empty())
            .map(|(what, _)| *what)
            .collect();
        let now = Instant::now();
        for what in happened {
            let mut events = Vec::new();
            let at = match what {
                PolledDescriptor::Commands => continue,
                PolledDescriptor::ProcessOutput(at, who) => {
                    self.worker_pools[at].1.handle_process(who, false, now, &mut events);
                    at
                }
                PolledDescriptor::ProcessExit(at, who) => {
                    self.worker_pools[at].1.handle_process(who, true, now, &mut events);
                    at
                }
            };
            self.handle_pool_events(at, events);
        }
        Ok(())
    }

    fn handle_pool_events(&mut self, at: usize, events: Vec<PoolEvent>) {
        for event in events {
            match event {
                PoolEvent::Ready => self.on_ready(at),
                PoolEvent::NotLoaded(text) => self.on_load_failure(at, &text),
                PoolEvent::Started(pid) => self.orphans.add(pid),
                PoolEvent::Died { place, by_itself, exit } => {
                    self.status.exits[exit as usize].fetch_add(1, Ordering::Relaxed);
                    let shared = &self.worker_pools[at].1.shared;
                    let generation = shared.number;
                    let worker_slots = shared.worker_slots_of(place);
                    let notice =
                        CoreEvent::WorkerDied { generation, place, worker_slots, called_exit: by_itself };
                    let cores = self.broadcast(&notice);
                    self.worker_pools[at].1.wait_for_release(place, cores);
                }
            }
        }
    }

    fn on_ready(&mut self, at: usize) {
        let (role, worker_pool) = &self.worker_pools[at];
        let (role, shared) = (*role, worker_pool.shared.clone());
        let is_complete = worker_pool.ready() >= worker_pool.target;
        match role {
            GenerationRole::Serving if self.has_sent_load_failure => {
                self.has_sent_load_failure = false;
                self.load_failure = None;
                self.app_log.report(AppLogLevel::Info, "the application loads again");
                self.switch_to(shared);
            }
            GenerationRole::Serving if !self.is_loading() && self.switching.is_none() => {
                self.load_results.finish(Ok(()));
            }
            GenerationRole::Loading if is_complete => {
                self.has_sent_load_failure = false;
                self.taking_over = Some(shared.number);
                let cores = self.switch_to(shared);
                for (role, _) in &mut self.worker_pools {
                    match role {
                        GenerationRole::Serving => *role = GenerationRole::Leaving(cores),
                        GenerationRole::Loading | GenerationRole::Leaving(_) | GenerationRole::Dismissed => {}
                    }
                }
                self.worker_pools[at].0 = GenerationRole::Serving;
                for (_, worker_pool) in
                    self.worker_pools.iter().filter(|(_, worker_pool)| worker_pool.damaged)
                {
                    self.broadcast(&CoreEvent::Damaged { generation: worker_pool.shared.number });
                }
            }
            _ => {}
        }
    }

    /// Has the cores serve a generation; returns how many of them there are. The load ends when all of them do, so that
    /// a request after a reload is answered by the new code.
    fn switch_to(&mut self, shared: Arc<Generation>) -> usize {
        let generation = shared.number;
        let cores = self.broadcast(&CoreEvent::Serve(shared));
        self.switching = Some((generation, cores));
        self.finish_switch();
        cores
    }

    fn finish_switch(&mut self) {
        if self.switching.is_some_and(|(_, cores)| cores == 0) {
            self.switching = None;
            self.log_taking_over();
            self.load_results.finish(Ok(()));
        }
    }

    fn log_taking_over(&mut self) {
        if let Some(number) = self.taking_over.take() {
            self.app_log.report(AppLogLevel::Info, &format!("generation {number} takes over"));
        }
    }

    fn on_load_failure(&mut self, at: usize, text: &str) {
        if self.stopping.is_some() {
            return;
        }
        self.log_not_loaded(self.worker_pools[at].1.shared.number, text);
        match self.worker_pools[at].0 {
            GenerationRole::Loading => {
                if self.is_serving() {
                    self.app_log.report(AppLogLevel::Error, "the previous generation continues to serve");
                }
                self.dismiss(at);
                self.load_results
                    .finish(Err(LoadError { error_text: text.into(), old_code_serves: self.is_serving() }));
            }
            GenerationRole::Serving if self.worker_pools[at].1.ready() == 0 => {
                if !self.is_loading() {
                    self.load_results
                        .finish(Err(LoadError { error_text: text.into(), old_code_serves: false }));
                }
                self.has_sent_load_failure = true;
                self.broadcast(&CoreEvent::LoadFailed {
                    error_text: text.into(),
                    is_shown: self.options.settings.show_errors,
                });
            }
            _ => {}
        }
    }

    /// Logs a load failure in full once; if the same generation fails in the same way again, logs a short
    /// line at the 2nd, 4th, 8th … time.
    fn log_not_loaded(&mut self, generation: u64, text: &str) {
        match &mut self.load_failure {
            Some((failed, known, times)) if *failed == generation && differ_in_digits_alone(known, text) => {
                *times += 1;
                if times.is_power_of_two() {
                    let line = format!(
                        "the application still does not load, for the same reason ({times} attempts)"
                    );
                    self.app_log.report(AppLogLevel::Error, &line);
                }
            }
            failure => {
                *failure = Some((generation, text.to_owned(), 1));
                self.app_log.report(AppLogLevel::Error, &format!("the application does not load: {text}"));
            }
        }
    }

    fn is_loading(&self) -> bool {
        self.worker_pools.iter().any(|(role, _)| *role == GenerationRole::Loading)
    }

    /// Whether a worker of the current generation can serve requests.
    fn is_serving(&self) -> bool {
        self.worker_pools
            .iter()
            .any(|(role, worker_pool)| *role == GenerationRole::Serving && worker_pool.ready() > 0)
    }

    fn dismiss(&mut self, at: usize) {
        let (role, worker_pool) = &mut self.worker_pools[at];
        *role = GenerationRole::Dismissed;
        worker_pool.dismiss(Instant::now());
    }

    /// Removes generations that have ended.
    fn remove_ended(&mut self, now: Instant) {
        for at in (0..self.worker_pools.len()).rev() {
            if self.worker_pools[at].0 == GenerationRole::Leaving(0) {
                self.dismiss(at);
            }
            if self.worker_pools[at].0 == GenerationRole::Dismissed
                && self.worker_pools[at].1.has_no_processes()
            {
                self.worker_pools.remove(at);
            }
        }
        if self.stopping.is_some_and(|due| now >= due) {
            self.worker_pools.iter_mut().for_each(|(_, worker_pool)| worker_pool.kill_all());
        }
    }

    fn handle_command(&mut self, command: SupervisorCommand) {
        let now = Instant::now();
        match command {
            SupervisorCommand::Reload(options) if self.stopping.is_none() => self.reload(options),
            SupervisorCommand::Reload(_) | SupervisorCommand::Snapshot => {}
            SupervisorCommand::AwaitLoad(asker) if self.stopping.is_none() => {
                let under_way = self.is_loading() || self.switching.is_some() || !self.is_serving();
                self.load_results.add_waiter(asker, under_way);
            }
            // The sender is dropped, so the receiver gets an error.
            SupervisorCommand::AwaitLoad(_) => {}
            SupervisorCommand::Stop => {
                self.load_results.close();
                let stop_max = self.options.settings.timeouts.stop;
                self.stopping = Some(now + stop_max + STACK_DUMP_MAX + CHECK_INTERVAL);
                // Requests that wait for a worker will not get one.
                self.broadcast(&CoreEvent::LoadFailed {
                    error_text: "the application is stopped".into(),
                    is_shown: false,
                });
                (0..self.worker_pools.len()).for_each(|at| self.dismiss(at));
            }
            SupervisorCommand::RequestsWaiting => self.start_worker(),
            SupervisorCommand::Kill { generation, worker_slot, reason: why } => {
                let took_long = why != KillReason::ProtocolViolation;
                if let Some((_, worker_pool)) = self.find(generation)
                    && let Some(pid) = worker_pool.kill_slot(worker_slot, took_long, now)
                {
                    self.app_log
                        .report(AppLogLevel::Warn, &format!("worker {pid} is killed: {}", why.text()));
                }
            }
            SupervisorCommand::Overdue { generation, worker_slot, change: more } => {
                if let Some((_, worker_pool)) = self.find(generation) {
                    worker_pool.change_overdue(worker_slot, more);
                }
            }
            SupervisorCommand::OverdueUntil { generation, worker_slot, left } => {
                if let Some((_, worker_pool)) = self.find(generation) {
                    worker_pool.set_overdue_deadline(worker_slot, now + left.duration());
                }
            }
            SupervisorCommand::Recycle { generation, worker_slot } => {
                if let Some((_, worker_pool)) = self.find(generation) {
                    worker_pool.recycle_slot(worker_slot);
                }
            }
            SupervisorCommand::Damaged { generation } => {
                if let Some((_, worker_pool)) = self.find(generation) {
                    worker_pool.damaged = true;
                }
            }
            SupervisorCommand::Released { generation, place } => {
                if let Some((_, worker_pool)) = self.find(generation) {
                    worker_pool.core_released(place);
                }
            }
            SupervisorCommand::Switched { generation } => {
                if let Some((number, cores)) = &mut self.switching
                    && *number == generation
                {
                    *cores = cores.saturating_sub(1);
                }
                self.finish_switch();
            }
            SupervisorCommand::Drained { generation } => {
                if let Some((GenerationRole::Leaving(left), _)) = self.find(generation) {
                    *left -= 1;
                }
            }
        }
    }

    fn find(&mut self, generation: u64) -> Option<&mut (GenerationRole, WorkerPool)> {
        self.worker_pools.iter_mut().find(|(_, worker_pool)| worker_pool.shared.number == generation)
    }

    fn reload(&mut self, options: Option<Box<Options>>) {
        if let Some(options) = options {
            self.options = Arc::new(*options);
        }
        // Generations that are not ready yet will not be started.
        for at in 0..self.worker_pools.len() {
            if self.worker_pools[at].0 == GenerationRole::Loading {
                self.dismiss(at);
            }
        }
        self.load_results.begin();
        self.switching = None;
        self.log_taking_over();
        match self.worker_pool() {
            Ok(worker_pool) => self.worker_pools.push((GenerationRole::Loading, worker_pool)),
            Err(error) => {
                let why = format!("it cannot be loaded again: {error}");
                self.app_log.report(AppLogLevel::Error, &why);
                self.load_results
                    .finish(Err(LoadError { error_text: why, old_code_serves: self.is_serving() }));
            }
        }
    }

    /// Replaces the channel of the current generation if it is damaged, with increasing pauses if that
    /// happens repeatedly.
    fn renew_channel(&mut self, now: Instant) {
        let mut current = self
            .worker_pools
            .iter_mut()
            .filter(|(role, _)| matches!(role, GenerationRole::Serving | GenerationRole::Loading));
        let damaged = current
            .find_map(|(_, worker_pool)| worker_pool.is_damaged().then_some(worker_pool.shared.number));
        let Some(number) = damaged else {
            if now >= self.renew_at + RENEWAL_PAUSE_MAX {
                self.renewals = 0;
            }
            return;
        };
        let is_coming = |(role, worker_pool): &(GenerationRole, WorkerPool)| {
            *role == GenerationRole::Loading && !worker_pool.damaged
        };
        if now < self.renew_at || self.stopping.is_some() || self.worker_pools.iter().any(is_coming) {
            return;
        }
        self.renew_at = now + (CHECK_INTERVAL * (1 << self.renewals.min(16))).min(RENEWAL_PAUSE_MAX);
        self.renewals += 1;
        let text =
            format!("a worker has damaged the channel of generation {number}: the next one gets its own");
        self.app_log.report(AppLogLevel::Error, &text);
        self.reload(None);
    }

    /// Starts one more worker for waiting requests, unless one is starting already.
    fn start_worker(&mut self) {
        let max = self.options.workers.max as usize;
        self.slack_since = None;
        for (role, worker_pool) in &mut self.worker_pools {
            if *role == GenerationRole::Serving
                && worker_pool.target < max
                && !worker_pool.is_growing()
                && worker_pool.ready() > 0
            {
                worker_pool.target += 1;
            }
        }
    }

    /// Recycles worn workers and stops workers that are not needed.
    fn adjust_workers(&mut self, now: Instant) {
        let worker_pools = &mut self.worker_pools;
        let mut ended = |pid, status| {
            worker_pools.iter_mut().for_each(|(_, worker_pool)| worker_pool.record_exit(pid, status));
        };
        self.orphans.reap(&mut ended);
        Orphans::reap_strays(&mut ended);
        self.renew_channel(now);
        self.round += 1;
        let worn = self.round.is_multiple_of(MEMORY_CHECK_ROUNDS);
        let wakes = self.round.is_multiple_of(SIGNAL_ROUNDS);
        let min = self.options.workers.min.max(1) as usize;
        let threads = self.options.settings.threads.max(1) as usize;
        for (role, worker_pool) in &mut self.worker_pools {
            if worn {
                worker_pool.recycle_worn(now);
            }
            worker_pool.kill_hanging(now);
            if wakes {
                worker_pool.shared.channel.wake_for_signals();
            }
            if *role != GenerationRole::Serving || worker_pool.target <= min {
                continue;
            }
            let sum = |load: &crate::generation::CoreLoad| {
                load.waiting.load(Ordering::Relaxed) + load.claimed.load(Ordering::Relaxed)
            };
            let busy: usize = worker_pool.shared.core_loads.iter().map(sum).sum();
            if busy > (worker_pool.target - 1) * threads {
                self.slack_since = None;
                continue;
            }
            let since = *self.slack_since.get_or_insert(now);
            if now.duration_since(since) >= self.options.settings.timeouts.idle {
                worker_pool.target -= 1;
                self.slack_since = None;
            }
        }
    }
}

/// Whether two reports differ only in digits, as in times and process ids.
fn differ_in_digits_alone(one: &str, other: &str) -> bool {
    let without = |text: &str| text.split(|c: char| c.is_ascii_digit()).collect::<String>();
    without(one) == without(other)
}
