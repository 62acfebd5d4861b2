//! The thread that starts, replaces and ends an application's processes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::crew::{Crew, Event, WHERE_MAX, Who};
use crate::generation::Generation;
use crate::log::{Teller, Urgency};
use crate::mail::{Inbox, Mailbox, Notice, Order, Why, lock};
use crate::options::Options;
use crate::orphans::Orphans;
use crate::outcome::{Failure, Outcome};
use crate::process::Process;

/// How often everything is looked at without a reason.
const ROUND: Duration = Duration::from_secs(1);
/// Memory is looked at less often: the system has to walk a process's pages to tell.
const WORN_ROUNDS: u32 = 5;
/// How often workers that wait for requests look at their signals.
const STIR_ROUNDS: u32 = 4;
/// The longest pause before a damaged channel is replaced, and how long one has to be sound to be trusted again.
const RENEWAL_PAUSE_MAX: Duration = Duration::from_secs(60);

/// What supervisor and status share.
pub(crate) struct Board {
    /// The processes as of the last request to look.
    pub(crate) look: Mutex<Option<std::sync::mpsc::SyncSender<Vec<Process>>>>,
}

/// A crew's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// It will serve when it is ready.
    Coming,
    Serving,
    /// Replaced; so many cores still have requests in it.
    Leaving(usize),
    Dismissed,
}

/// One application's supervisor.
pub(crate) struct Supervisor {
    options: Arc<Options>,
    teller: Teller,
    mailbox: Arc<Mailbox>,
    inboxes: Vec<Arc<Inbox>>,
    board: Arc<Board>,
    crews: Vec<(Role, Crew)>,
    orphans: Orphans,
    outcome: Outcome,
    number: u64,
    /// The application does not load, and the cores know.
    down: bool,
    /// Since when fewer workers would have done.
    slack_since: Option<Instant>,
    stopping: Option<Instant>,
    /// Channels made for damaged ones, one soon after the other; and when the next may be.
    renewals: u32,
    renew_at: Instant,
    round: u32,
}

impl Supervisor {
    pub(crate) fn new(
        options: Arc<Options>,
        teller: Teller,
        mailbox: Arc<Mailbox>,
        inboxes: Vec<Arc<Inbox>>,
        board: Arc<Board>,
    ) -> io::Result<Supervisor> {
        let mut supervisor = Supervisor {
            options,
            teller,
            mailbox,
            inboxes,
            board,
            crews: Vec::new(),
            orphans: Orphans::default(),
            outcome: Outcome::default(),
            number: 0,
            down: false,
            slack_since: None,
            stopping: None,
            renewals: 0,
            renew_at: Instant::now(),
            round: 0,
        };
        // Requests may come before the first worker is ready: they wait in the channel.
        let crew = supervisor.crew()?;
        supervisor.broadcast(&Notice::Serve(crew.shared.clone()));
        supervisor.crews.push((Role::Serving, crew));
        Ok(supervisor)
    }

    fn crew(&mut self) -> io::Result<Crew> {
        self.number += 1;
        let shared = Arc::new(Generation::new(self.number, self.options.clone(), self.inboxes.len())?);
        Ok(Crew::new(shared, self.teller.clone()))
    }

    /// Tells the cores; how many will heed it.
    fn broadcast(&self, notice: &Notice) -> usize {
        self.inboxes.iter().filter(|inbox| inbox.send(notice.clone())).count()
    }

    /// Runs until it was told to stop and no process is left.
    pub(crate) fn run(mut self) {
        let mut next_round = Instant::now();
        loop {
            let now = Instant::now();
            if now >= next_round {
                next_round = now + ROUND;
                self.look_around(now);
            }
            for at in 0..self.crews.len() {
                let mut events = Vec::new();
                self.crews[at].1.balance(now, &mut events);
                self.heed_all(at, events);
            }
            self.settle(now);
            if self.stopping.is_some() && self.crews.is_empty() {
                return;
            }
            if let Err(error) = self.wait(next_round) {
                self.teller.tell(Urgency::Error, &format!("the supervisor cannot wait: {error}"));
                std::thread::sleep(ROUND);
            }
            for order in self.mailbox.take() {
                self.obey(order);
            }
            if let Some(asker) = lock(&self.board.look).take() {
                let now = Instant::now();
                // Whoever asked may have lost patience.
                let _ = asker.try_send(self.crews.iter().flat_map(|(_, crew)| crew.processes(now)).collect());
            }
        }
    }

    /// Sleeps until something happens or is due, and deals with what comes from the processes.
    fn wait(&mut self, next_round: Instant) -> io::Result<()> {
        #[derive(Clone, Copy)]
        enum What {
            Bell,
            Said(usize, Who),
            Ended(usize, Who),
        }
        let mut due = next_round;
        let mut whose = vec![What::Bell];
        let mut fds: Vec<BorrowedFd<'_>> = vec![self.mailbox.bell()];
        for (at, (_, crew)) in self.crews.iter().enumerate() {
            due = due.min(crew.next_due().unwrap_or(due));
            crew.watch(|who, child| {
                for voice in child.voices() {
                    whose.push(What::Said(at, who));
                    fds.push(voice);
                }
                if let Some(pidfd) = &child.pidfd {
                    whose.push(What::Ended(at, who));
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
        let happened: Vec<What> = whose
            .iter()
            .zip(&polled)
            .filter(|(_, fd)| !fd.revents().is_empty())
            .map(|(what, _)| *what)
            .collect();
        let now = Instant::now();
        for what in happened {
            let mut events = Vec::new();
            let at = match what {
                What::Bell => continue,
                What::Said(at, who) => {
                    self.crews[at].1.look(who, false, now, &mut events);
                    at
                }
                What::Ended(at, who) => {
                    self.crews[at].1.look(who, true, now, &mut events);
                    at
                }
            };
            self.heed_all(at, events);
        }
        Ok(())
    }

    fn heed_all(&mut self, at: usize, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Ready => self.came_up(at),
                Event::NotLoaded(text) => self.not_loaded(at, &text),
                Event::Started(pid) => self.orphans.add(pid),
                Event::Died { place, by_itself } => {
                    let shared = &self.crews[at].1.shared;
                    let (generation, seats) = (shared.number, shared.seats_of(place));
                    let notice = Notice::Died { generation, place, seats, by_itself };
                    let cores = self.broadcast(&notice);
                    self.crews[at].1.wait_for_burial(place, cores);
                }
            }
        }
    }

    fn came_up(&mut self, at: usize) {
        let (role, crew) = &self.crews[at];
        match role {
            Role::Serving if self.down => {
                self.down = false;
                self.teller.tell(Urgency::Info, "the application loads again");
                self.broadcast(&Notice::Serve(crew.shared.clone()));
                self.outcome.settle(Ok(()));
            }
            Role::Serving if !self.is_coming() => self.outcome.settle(Ok(())),
            Role::Coming if crew.ready() >= crew.want => {
                self.down = false;
                self.teller.tell(Urgency::Info, &format!("generation {} takes over", crew.shared.number));
                let cores = self.broadcast(&Notice::Serve(crew.shared.clone()));
                for (role, _) in &mut self.crews {
                    match role {
                        Role::Serving => *role = Role::Leaving(cores),
                        Role::Coming | Role::Leaving(_) | Role::Dismissed => {}
                    }
                }
                self.crews[at].0 = Role::Serving;
                for (_, crew) in self.crews.iter().filter(|(_, crew)| crew.damaged) {
                    self.broadcast(&Notice::Damaged { generation: crew.shared.number });
                }
                self.outcome.settle(Ok(()));
            }
            _ => {}
        }
    }

    fn not_loaded(&mut self, at: usize, text: &str) {
        if self.stopping.is_some() {
            return;
        }
        self.teller.tell(Urgency::Error, &format!("the application does not load: {text}"));
        match self.crews[at].0 {
            Role::Coming => {
                self.teller.tell(Urgency::Error, "the generation before it goes on");
                self.dismiss(at);
                self.outcome.settle(Err(Failure { why: text.into(), serves: self.serves() }));
            }
            Role::Serving if self.crews[at].1.ready() == 0 => {
                if !self.is_coming() {
                    self.outcome.settle(Err(Failure { why: text.into(), serves: false }));
                }
                self.down = true;
                self.broadcast(&Notice::Down { why: text.into(), show: self.options.show_errors });
            }
            _ => {}
        }
    }

    fn is_coming(&self) -> bool {
        self.crews.iter().any(|(role, _)| *role == Role::Coming)
    }

    /// Whether a worker of the generation that serves can answer.
    fn serves(&self) -> bool {
        self.crews.iter().any(|(role, crew)| *role == Role::Serving && crew.ready() > 0)
    }

    fn dismiss(&mut self, at: usize) {
        let (role, crew) = &mut self.crews[at];
        *role = Role::Dismissed;
        crew.dismiss(Instant::now());
    }

    /// Lets go of generations that are done.
    fn settle(&mut self, now: Instant) {
        for at in (0..self.crews.len()).rev() {
            if self.crews[at].0 == Role::Leaving(0) {
                self.dismiss(at);
            }
            if self.crews[at].0 == Role::Dismissed && self.crews[at].1.is_gone() {
                self.crews.remove(at);
            }
        }
        if self.stopping.is_some_and(|due| now >= due) {
            self.crews.iter_mut().for_each(|(_, crew)| crew.kill_all());
        }
    }

    fn obey(&mut self, order: Order) {
        let now = Instant::now();
        match order {
            Order::Reload(options) if self.stopping.is_none() => self.reload(options),
            Order::Reload(_) | Order::Look => {}
            Order::Tell(asker) if self.stopping.is_none() => {
                let under_way = self.is_coming() || !self.serves();
                self.outcome.ask(asker, under_way);
            }
            // It is told by the end of the channel.
            Order::Tell(_) => {}
            Order::Stop => {
                self.outcome.close();
                let stop_max = Duration::from_millis(self.options.stop_ms_max);
                self.stopping = Some(now + stop_max + WHERE_MAX + ROUND);
                // Whoever waits for a worker will get none.
                self.broadcast(&Notice::Down { why: "the application is stopped".into(), show: false });
                (0..self.crews.len()).for_each(|at| self.dismiss(at));
            }
            Order::Need => self.grow(),
            Order::Kill { generation, seat, why } => {
                let took_long = why != Why::Breach;
                if let Some((_, crew)) = self.find(generation)
                    && let Some(pid) = crew.kill_seat(seat, took_long, now)
                {
                    self.teller.tell(Urgency::Warn, &format!("worker {pid} is killed: {}", why.text()));
                }
            }
            Order::Clings { generation, seat, more } => {
                if let Some((_, crew)) = self.find(generation) {
                    crew.clings(seat, more);
                }
            }
            Order::ClingsUntil { generation, seat, left_ms } => {
                if let Some((_, crew)) = self.find(generation) {
                    crew.clings_until(seat, now + Duration::from_millis(left_ms));
                }
            }
            Order::Recycle { generation, seat } => {
                if let Some((_, crew)) = self.find(generation) {
                    crew.recycle_seat(seat);
                }
            }
            Order::Damaged { generation } => {
                if let Some((_, crew)) = self.find(generation) {
                    crew.damaged = true;
                }
            }
            Order::Buried { generation, place } => {
                if let Some((_, crew)) = self.find(generation) {
                    crew.buried(place);
                }
            }
            Order::Drained { generation } => {
                if let Some((Role::Leaving(left), _)) = self.find(generation) {
                    *left -= 1;
                }
            }
        }
    }

    fn find(&mut self, generation: u64) -> Option<&mut (Role, Crew)> {
        self.crews.iter_mut().find(|(_, crew)| crew.shared.number == generation)
    }

    fn reload(&mut self, options: Option<Box<Options>>) {
        if let Some(options) = options {
            self.options = Arc::new(*options);
        }
        // One that has not come up by now never will serve.
        for at in 0..self.crews.len() {
            if self.crews[at].0 == Role::Coming {
                self.dismiss(at);
            }
        }
        self.outcome.begin();
        match self.crew() {
            Ok(crew) => self.crews.push((Role::Coming, crew)),
            Err(error) => {
                let why = format!("it cannot be loaded anew: {error}");
                self.teller.tell(Urgency::Error, &why);
                self.outcome.settle(Err(Failure { why, serves: self.serves() }));
            }
        }
    }

    /// Gives the application another channel where the one that serves is damaged; one that always damages it gets
    /// another one ever later.
    fn renew(&mut self, now: Instant) {
        let mut current =
            self.crews.iter_mut().filter(|(role, _)| matches!(role, Role::Serving | Role::Coming));
        let damaged = current.find_map(|(_, crew)| crew.is_damaged().then_some(crew.shared.number));
        let Some(number) = damaged else {
            if now >= self.renew_at + RENEWAL_PAUSE_MAX {
                self.renewals = 0;
            }
            return;
        };
        let is_coming = |(role, crew): &(Role, Crew)| *role == Role::Coming && !crew.damaged;
        if now < self.renew_at || self.stopping.is_some() || self.crews.iter().any(is_coming) {
            return;
        }
        self.renew_at = now + (ROUND * (1 << self.renewals.min(16))).min(RENEWAL_PAUSE_MAX);
        self.renewals += 1;
        let text =
            format!("a worker has damaged the channel of generation {number}: the next one gets its own");
        self.teller.tell(Urgency::Error, &text);
        self.reload(None);
    }

    /// Requests wait: one more worker, unless one is coming already.
    fn grow(&mut self) {
        let max = self.options.workers.max;
        self.slack_since = None;
        for (role, crew) in &mut self.crews {
            if *role == Role::Serving && crew.want < max && !crew.is_growing() && crew.ready() > 0 {
                crew.want += 1;
            }
        }
    }

    /// Looks for workers that are worn, and for more of them than are needed.
    fn look_around(&mut self, now: Instant) {
        let crews = &mut self.crews;
        self.orphans.bury(|pid, status| crews.iter_mut().for_each(|(_, crew)| crew.ended(pid, status)));
        self.renew(now);
        self.round += 1;
        let (worn, stir) = (self.round.is_multiple_of(WORN_ROUNDS), self.round.is_multiple_of(STIR_ROUNDS));
        let (min, threads) = (self.options.workers.min.max(1), self.options.threads.max(1));
        for (role, crew) in &mut self.crews {
            if worn {
                crew.recycle_worn(now);
            }
            if stir {
                crew.shared.channel.stir();
            }
            if *role != Role::Serving || crew.want <= min {
                continue;
            }
            let sum = |load: &crate::generation::Load| {
                load.waiting.load(Ordering::Relaxed) + load.claimed.load(Ordering::Relaxed)
            };
            let busy: usize = crew.shared.loads.iter().map(sum).sum();
            if busy > (crew.want - 1) * threads {
                self.slack_since = None;
                continue;
            }
            let since = *self.slack_since.get_or_insert(now);
            if now.duration_since(since) >= Duration::from_millis(self.options.idle_ms) {
                crew.want -= 1;
                self.slack_since = None;
            }
        }
    }
}
