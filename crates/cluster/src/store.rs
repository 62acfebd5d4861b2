//! The handle of the store, and the thread that keeps the connections to it.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, oneshot};

use crate::connection::StoreConnection;
use crate::files::{FileExchange, SharedFiles};
use crate::members::{StreamId, exchange_members};
use crate::options::StoreOptions;
use crate::purges::{self, PurgeListener, PurgeNews, PurgeReceiver, PurgeReport};
use crate::reply::StoreError;
use crate::tickets::{self, SecretReceiver};

/// Interval at which changes of other servers are looked for.
const EXCHANGE_INTERVAL: Duration = Duration::from_millis(250);
/// Interval at which acknowledgements of purges are looked for.
const ACKNOWLEDGE_INTERVAL: Duration = Duration::from_millis(5);
/// Interval at which the secrets of tickets are looked for.
const TICKETS_INTERVAL: Duration = Duration::from_secs(5);
/// First and longest pause before the store is tried again.
const RETRY_PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));
/// Time after which a lease ends if it is not extended.
const LEASE_TIME: Duration = Duration::from_secs(30);
/// Maximum number of purges that wait for the store.
const UNSENT_MAX: usize = 10_000;
/// Time for which purges are sent again to a store that has lost its contents.
const RECENT_TIME: Duration = Duration::from_secs(60);
/// Maximum number of purges that wait for acknowledgements.
const WAITING_MAX: usize = 1_000;

const LEASE: &str = "
if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 0 end
local fence = redis.call('INCR', KEYS[3])
redis.call('HSET', KEYS[2], ARGV[3], fence)
return fence
";
const EXTEND: &str = "
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
";
const RELEASE: &str = "
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
";

/// An event for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreEvent {
    /// The store cannot be used, for this reason.
    Away(String),
    /// The store can be used again.
    Back,
    /// A problem of a single value, or another remark.
    Problem(String),
}

/// State of the store for status and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreStatus {
    /// Address as configured.
    pub store: String,
    /// Name of this server.
    pub name: String,
    /// Whether the last exchange succeeded.
    pub is_up: bool,
    /// Reason of the last failure.
    pub last_error: Option<String>,
    /// Names of the servers that gave a sign of life lately.
    pub servers: Vec<String>,
    /// Files received from other servers.
    pub files_received: u64,
    /// Files sent.
    pub files_sent: u64,
    /// Values of the store that were not used.
    pub refused: u64,
    /// Purges of other servers that were applied.
    pub purges_applied: u64,
    /// Purges that wait for the store.
    pub purges_unsent: u64,
    /// Times that the store went away.
    pub failures: u64,
}

enum StoreRequest {
    Files(Arc<dyn SharedFiles>),
    Written(String, Option<(String, u64)>),
    Removed(String),
    /// Answered when all changes of this server are sent and those of others received; `false` if the store is away.
    Exchange(oneshot::Sender<bool>),
    Lease(String, oneshot::Sender<LeaseAnswer>),
    Release(String, String),
    Purge(Vec<u8>, oneshot::Sender<PurgeReport>),
    Tickets,
}

/// State that the handles share with the thread.
struct ClusterState {
    options: Arc<StoreOptions>,
    is_up: AtomicBool,
    last_error: Mutex<Option<String>>,
    servers: Mutex<Vec<String>>,
    files_received: AtomicU64,
    files_sent: AtomicU64,
    refused: AtomicU64,
    purges_applied: AtomicU64,
    purges_unsent: AtomicU64,
    failures: AtomicU64,
    /// Numbers of the leases that this server holds, by name.
    fences: Mutex<HashMap<String, u64>>,
    receiver: Mutex<Option<Arc<dyn PurgeReceiver>>>,
    receiver_set: Notify,
    tickets: Mutex<Option<(u64, Arc<SecretReceiver>)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The store of a set of servers. Clones share one thread, which ends when all are dropped.
#[derive(Clone)]
pub struct ClusterStore {
    shared: Arc<ClusterState>,
    requests: UnboundedSender<StoreRequest>,
}

impl fmt::Debug for ClusterStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterStore").field("store", &self.shared.options.describe()).finish_non_exhaustive()
    }
}

impl PartialEq for ClusterStore {
    fn eq(&self, other: &ClusterStore) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

/// A lease of this server: no other server of the set has it. Ends when it is dropped.
#[derive(Debug)]
pub struct Lease {
    store: ClusterStore,
    name: String,
    token: String,
}

impl Drop for Lease {
    fn drop(&mut self) {
        lock(&self.store.shared.fences).remove(&self.name);
        self.store.send(StoreRequest::Release(self.name.clone(), self.token.clone()));
    }
}

/// Outcome of asking for a lease.
#[derive(Debug)]
pub enum LeaseOutcome {
    /// This server has it.
    Held(Lease),
    /// Another server has it.
    Elsewhere,
    /// The store is away.
    Away,
}

impl ClusterStore {
    /// Starts the thread. `report` is called on it.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        options: StoreOptions,
        report: Box<dyn Fn(StoreEvent) + Send + Sync>,
    ) -> io::Result<ClusterStore> {
        let options = Arc::new(options);
        let shared = Arc::new(ClusterState {
            options: options.clone(),
            // Until it is known otherwise, so that a failure at the start is reported.
            is_up: AtomicBool::new(true),
            last_error: Mutex::default(),
            servers: Mutex::default(),
            files_received: AtomicU64::new(0),
            files_sent: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            purges_applied: AtomicU64::new(0),
            purges_unsent: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            fences: Mutex::default(),
            receiver: Mutex::default(),
            receiver_set: Notify::new(),
            tickets: Mutex::default(),
        });
        let (requests, received) = unbounded_channel();
        let theirs = shared.clone();
        std::thread::Builder::new().name("cluster".into()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => {
                    runtime.block_on(run(theirs, received, &*report));
                    // A name lookup may take long, and its result is not needed.
                    runtime.shutdown_background();
                }
                Err(error) => report(StoreEvent::Away(error.to_string())),
            }
        })?;
        Ok(ClusterStore { shared, requests })
    }

    /// The name of this server in the set.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.options.name
    }

    /// How a connection to the store is opened.
    #[must_use]
    pub fn options(&self) -> &StoreOptions {
        &self.shared.options
    }

    /// Begins to exchange these files with the other servers, in place of those before.
    pub fn share_files(&self, files: Arc<dyn SharedFiles>) {
        self.send(StoreRequest::Files(files));
    }

    /// Notes that a file of this server has changed; `lease` is the name of the lease under which it was made.
    pub fn note_written(&self, file: &str, lease: Option<&str>) {
        let fence = lease.and_then(|name| Some((name.to_owned(), *lock(&self.shared.fences).get(name)?)));
        self.send(StoreRequest::Written(file.to_owned(), fence));
    }

    /// Notes that a file of this server was removed.
    pub fn note_removed(&self, file: &str) {
        self.send(StoreRequest::Removed(file.to_owned()));
    }

    /// Sends all changes of this server and receives those of others; returns whether the store was there.
    pub async fn exchange(&self) -> bool {
        let (reply, answer) = oneshot::channel();
        self.send(StoreRequest::Exchange(reply));
        answer.await.unwrap_or(false)
    }

    /// The same, for threads that may block. Takes at most twice the timeout of the store.
    pub fn exchange_blocking(&self) -> bool {
        let (reply, answer) = oneshot::channel();
        self.send(StoreRequest::Exchange(reply));
        wait(answer, Instant::now() + 2 * self.shared.options.timeout).unwrap_or(false)
    }

    /// Asks for a lease.
    pub async fn lease(&self, name: &str) -> LeaseOutcome {
        let (reply, answer) = oneshot::channel();
        self.send(StoreRequest::Lease(name.to_owned(), reply));
        match answer.await {
            Ok(LeaseAnswer::Held(token)) => {
                LeaseOutcome::Held(Lease { store: self.clone(), name: name.to_owned(), token })
            }
            Ok(LeaseAnswer::Elsewhere) => LeaseOutcome::Elsewhere,
            Ok(LeaseAnswer::Away) | Err(_) => LeaseOutcome::Away,
        }
    }

    /// Sends a purge to the other servers. The report is there when they have applied it, or after the time that the
    /// configuration sets.
    pub fn begin_purge(&self, order: Vec<u8>) -> SentPurge {
        let (reply, answer) = oneshot::channel();
        self.send(StoreRequest::Purge(order, reply));
        let time = self.shared.options.purge_timeout + 2 * self.shared.options.timeout;
        SentPurge { answer, until: Instant::now() + time }
    }

    /// Sets what applies the purges of other servers.
    pub fn receive_purges(&self, receiver: Arc<dyn PurgeReceiver>) {
        *lock(&self.shared.receiver) = Some(receiver);
        self.shared.receiver_set.notify_one();
    }

    /// Sets what receives the secret of each period of `period_s` seconds for session tickets.
    pub fn receive_ticket_secrets(&self, period_s: u64, receive: SecretReceiver) {
        *lock(&self.shared.tickets) = Some((period_s, Arc::new(receive)));
        self.send(StoreRequest::Tickets);
    }

    /// Returns the state of the store.
    #[must_use]
    pub fn status(&self) -> StoreStatus {
        let shared = &self.shared;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let is_up = shared.is_up.load(Ordering::Relaxed);
        StoreStatus {
            store: shared.options.describe(),
            name: shared.options.name.clone(),
            is_up,
            last_error: lock(&shared.last_error).clone().filter(|_| !is_up),
            servers: lock(&shared.servers).clone(),
            files_received: count(&shared.files_received),
            files_sent: count(&shared.files_sent),
            refused: count(&shared.refused),
            purges_applied: count(&shared.purges_applied),
            purges_unsent: count(&shared.purges_unsent),
            failures: count(&shared.failures),
        }
    }

    fn send(&self, request: StoreRequest) {
        // If the thread has ended, it has reported the reason.
        let _ = self.requests.send(request);
    }
}

/// A purge that was sent to the other servers.
#[derive(Debug)]
pub struct SentPurge {
    answer: oneshot::Receiver<PurgeReport>,
    until: Instant,
}

impl SentPurge {
    /// Returns the report if it is there. Never blocks.
    pub fn report(&mut self) -> Option<PurgeReport> {
        match self.answer.try_recv() {
            Ok(report) => Some(report),
            Err(oneshot::error::TryRecvError::Empty) => {
                (Instant::now() >= self.until).then(SentPurge::unanswered)
            }
            Err(oneshot::error::TryRecvError::Closed) => Some(SentPurge::unanswered()),
        }
    }

    /// Waits for the report. Blocks.
    pub fn wait(self) -> PurgeReport {
        wait(self.answer, self.until).unwrap_or_else(SentPurge::unanswered)
    }

    fn unanswered() -> PurgeReport {
        PurgeReport { error: Some("the store does not answer".to_owned()), ..PurgeReport::default() }
    }
}

/// Waits for an answer on a thread that may block, until this time.
fn wait<T>(mut answer: oneshot::Receiver<T>, until: Instant) -> Option<T> {
    loop {
        match answer.try_recv() {
            Ok(answer) => return Some(answer),
            Err(oneshot::error::TryRecvError::Closed) => return None,
            Err(oneshot::error::TryRecvError::Empty) if Instant::now() >= until => return None,
            Err(oneshot::error::TryRecvError::Empty) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Answer of the thread, which has no handle of itself: that would keep it from ending.
#[derive(Debug)]
enum LeaseAnswer {
    /// Granted, with this token.
    Held(String),
    Elsewhere,
    Away,
}

/// What is to be done with the connection.
enum Work<'f> {
    /// All that is due regularly.
    All,
    Purges,
    Acknowledgements,
    /// Asks for a lease by its name and a token; receives its number, or 0.
    Lease(String, String, &'f mut u64),
    /// Sends what was made under a lease, and ends it.
    Release(String, String),
}

/// A purge whose acknowledgements are waited for.
struct WaitingPurge {
    id: StreamId,
    until: Instant,
    reply: oneshot::Sender<PurgeReport>,
}

/// Runs until all handles are dropped.
async fn run(
    shared: Arc<ClusterState>,
    requests: UnboundedReceiver<StoreRequest>,
    report: &(dyn Fn(StoreEvent) + Send + Sync),
) {
    let instance = format!("{:016x}", fastrand::u64(..));
    let task = StoreTask {
        shared: shared.clone(),
        instance: instance.clone(),
        connection: None,
        retry_at: None,
        pause: RETRY_PAUSES.0,
        exchange: FileExchange::default(),
        held: HashMap::new(),
        unsent: VecDeque::new(),
        recent: VecDeque::new(),
        waiting: Vec::new(),
        tickets_at: None,
        extend_at: Instant::now(),
        report,
    };
    tokio::select! {
        () = task.run(requests) => {}
        () = listen(shared, instance, report) => {}
    }
}

/// Applies the purges of other servers, on a connection of its own.
async fn listen(shared: Arc<ClusterState>, instance: String, report: &(dyn Fn(StoreEvent) + Send + Sync)) {
    let options = shared.options.clone();
    let mut listener =
        PurgeListener { options: options.clone(), instance, cursor: None, epoch: String::new(), applied: 0 };
    let refused = shared.clone();
    let name = options.name.clone();
    let tell = move |news| {
        report(StoreEvent::Problem(match news {
            PurgeNews::PurgedAll => {
                "it is not known which purges this server has missed: everything in its cache is purged"
                    .to_owned()
            }
            PurgeNews::Refused(text) => {
                refused.refused.fetch_add(1, Ordering::Relaxed);
                format!("a purge of another server is not applied: {text}")
            }
            PurgeNews::SameName => format!(
                "another server has the name {name:?}, or this one was restarted: each needs another `name` in `[cluster]`"
            ),
        }));
    };
    let mut pause = RETRY_PAUSES.0;
    loop {
        let read = async {
            let mut store = StoreConnection::open(&options).await?;
            let receiver = || lock(&shared.receiver).clone();
            let first = loop {
                match receiver() {
                    Some(receiver) => break receiver,
                    None => shared.receiver_set.notified().await,
                }
            };
            listener.resume(&mut store, &first, &tell).await?;
            pause = RETRY_PAUSES.0;
            loop {
                let receiver = receiver().unwrap_or_else(|| first.clone());
                listener.read(&mut store, &receiver, &tell).await?;
                shared.purges_applied.store(listener.applied, Ordering::Relaxed);
            }
        };
        let outcome: Result<std::convert::Infallible, StoreError> = read.await;
        // The other connection reports that the store is away; what is only invalid is reported here.
        if let Err(StoreError::Invalid(text)) = outcome {
            report(StoreEvent::Problem(format!("purges: {text}")));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_PAUSES.1);
    }
}

/// The connection for all but the reading of purges.
struct StoreTask<'r> {
    shared: Arc<ClusterState>,
    instance: String,
    connection: Option<StoreConnection>,
    /// Time of the next attempt while the store is away.
    retry_at: Option<Instant>,
    pause: Duration,
    exchange: FileExchange,
    /// Leases that are held, with their tokens.
    held: HashMap<String, String>,
    unsent: VecDeque<(Vec<u8>, Option<oneshot::Sender<PurgeReport>>)>,
    recent: VecDeque<(Instant, Vec<u8>)>,
    waiting: Vec<WaitingPurge>,
    tickets_at: Option<Instant>,
    extend_at: Instant,
    report: &'r (dyn Fn(StoreEvent) + Send + Sync),
}

impl StoreTask<'_> {
    async fn run(mut self, mut requests: UnboundedReceiver<StoreRequest>) {
        let mut exchange_at = Instant::now();
        loop {
            let now = Instant::now();
            if exchange_at <= now {
                exchange_at = now + EXCHANGE_INTERVAL;
                self.attempt(Work::All).await;
            }
            let until = if self.waiting.is_empty() { exchange_at } else { now + ACKNOWLEDGE_INTERVAL };
            match tokio::time::timeout_at(until.into(), requests.recv()).await {
                Ok(None) => return,
                Ok(Some(request)) => self.handle(request).await,
                Err(_) if self.waiting.is_empty() => {}
                Err(_) => _ = self.attempt(Work::Acknowledgements).await,
            }
        }
    }

    async fn handle(&mut self, request: StoreRequest) {
        match request {
            StoreRequest::Files(files) => self.exchange.set_files(files),
            StoreRequest::Written(name, lease) => self.exchange.note_written(&name, lease),
            StoreRequest::Removed(name) => self.exchange.note_removed(&name),
            StoreRequest::Exchange(reply) => {
                let done = self.attempt(Work::All).await;
                // Whoever asked may be gone.
                let _ = reply.send(done);
            }
            StoreRequest::Lease(name, reply) => {
                let answer = self.lease(&name).await;
                // If whoever asked is gone, the lease ends by itself.
                if let Err(LeaseAnswer::Held(_)) = reply.send(answer) {
                    self.held.remove(&name);
                    lock(&self.shared.fences).remove(&name);
                }
            }
            StoreRequest::Release(name, token) => {
                if self.held.get(&name).is_some_and(|held| *held == token) {
                    self.held.remove(&name);
                }
                // Other servers find what was made under the lease.
                let _ = self.attempt(Work::Release(name, token)).await;
            }
            StoreRequest::Purge(order, reply) => {
                if self.unsent.len() >= UNSENT_MAX {
                    let error = Some(format!("more than {UNSENT_MAX} purges wait for the store"));
                    let _ = reply.send(PurgeReport { error, ..PurgeReport::default() });
                    return;
                }
                self.unsent.push_back((order, Some(reply)));
                if !self.attempt(Work::Purges).await {
                    let error = lock(&self.shared.last_error).clone();
                    for (_, reply) in &mut self.unsent {
                        if let Some(reply) = reply.take() {
                            let _ =
                                reply.send(PurgeReport { error: error.clone(), ..PurgeReport::default() });
                        }
                    }
                }
                self.count_unsent();
            }
            StoreRequest::Tickets => {
                self.tickets_at = None;
                let _ = self.attempt(Work::All).await;
            }
        }
    }

    fn count_unsent(&self) {
        self.shared.purges_unsent.store(self.unsent.len() as u64, Ordering::Relaxed);
    }

    /// Does this work, after connecting if necessary; returns whether it succeeded.
    async fn attempt(&mut self, work: Work<'_>) -> bool {
        let now = Instant::now();
        if self.connection.is_none() && self.retry_at.is_some_and(|at| at > now) {
            self.end_waiting();
            return false;
        }
        let done = self.try_work(work).await;
        match done {
            Ok(()) => {
                if !self.shared.is_up.swap(true, Ordering::Relaxed) {
                    (self.report)(StoreEvent::Back);
                }
                self.pause = RETRY_PAUSES.0;
                true
            }
            Err(error) => {
                // A later reply on this connection could belong to this command; and after a failover this
                // server may have become a replica.
                self.connection = None;
                self.retry_at = Some(Instant::now() + self.pause.mul_f64(0.75 + fastrand::f64() / 2.0));
                self.pause = (self.pause * 2).min(RETRY_PAUSES.1);
                let text = error.to_string();
                *lock(&self.shared.last_error) = Some(text.clone());
                if self.shared.is_up.swap(false, Ordering::Relaxed) {
                    self.shared.failures.fetch_add(1, Ordering::Relaxed);
                    (self.report)(StoreEvent::Away(text));
                }
                self.end_waiting();
                false
            }
        }
    }

    /// Answers those that wait for acknowledgements, if the store is away.
    fn end_waiting(&mut self) {
        let error = lock(&self.shared.last_error).clone();
        for waiting in self.waiting.drain(..) {
            let _ = waiting.reply.send(PurgeReport { error: error.clone(), ..PurgeReport::default() });
        }
    }

    async fn try_work(&mut self, work: Work<'_>) -> Result<(), StoreError> {
        let options = self.shared.options.clone();
        let mut store = match self.connection.take() {
            Some(store) => store,
            None => StoreConnection::open(&options).await?,
        };
        match work {
            Work::Purges => self.send_purges(&mut store).await?,
            Work::Acknowledgements => self.check_acknowledgements(&mut store).await?,
            Work::Release(name, token) => {
                self.exchange_files(&mut store).await?;
                let key = options.key(&format!("lease:{name}"));
                store.script(RELEASE, &[key], &[token.as_bytes()]).await?;
            }
            Work::Lease(name, token, fence) => {
                let keys =
                    [options.key(&format!("lease:{name}")), options.key("fences"), options.key("fence")];
                let time = LEASE_TIME.as_millis().to_string();
                let arguments = [token.as_bytes(), time.as_bytes(), name.as_bytes()];
                *fence = store.script(LEASE, &keys, &arguments).await?.number()?;
            }
            Work::All => {
                self.exchange_files(&mut store).await?;
                self.send_purges(&mut store).await?;
                self.extend_leases(&mut store).await?;
                self.rotate_tickets(&mut store).await?;
            }
        }
        self.connection = Some(store);
        Ok(())
    }

    async fn exchange_files(&mut self, store: &mut StoreConnection) -> Result<(), StoreError> {
        let news = self.exchange.exchange(store, &self.shared.options).await?;
        let shared = &self.shared;
        shared.files_received.store(self.exchange.received, Ordering::Relaxed);
        shared.files_sent.store(self.exchange.sent, Ordering::Relaxed);
        for problem in news.problems {
            shared.refused.fetch_add(1, Ordering::Relaxed);
            (self.report)(StoreEvent::Problem(problem));
        }
        if news.is_new_epoch {
            let now = Instant::now();
            self.recent.retain(|(at, _)| now.duration_since(*at) < RECENT_TIME);
            let again = self.recent.drain(..).map(|(_, order)| (order, None));
            self.unsent.extend(again);
        }
        Ok(())
    }

    async fn send_purges(&mut self, store: &mut StoreConnection) -> Result<(), StoreError> {
        let options = self.shared.options.clone();
        while let Some((order, _)) = self.unsent.front() {
            let id = purges::publish(store, &options, &self.instance, order).await?;
            let Some((order, reply)) = self.unsent.pop_front() else { break };
            let now = Instant::now();
            self.recent.retain(|(at, _)| now.duration_since(*at) < RECENT_TIME);
            if self.recent.len() < UNSENT_MAX {
                self.recent.push_back((now, order));
            }
            let Some(reply) = reply else { continue };
            if self.waiting.len() >= WAITING_MAX {
                let error = Some(format!("more than {WAITING_MAX} purges wait for acknowledgements"));
                let _ = reply.send(PurgeReport { error, ..PurgeReport::default() });
            } else {
                self.waiting.push(WaitingPurge { id, until: now + options.purge_timeout, reply });
            }
        }
        self.count_unsent();
        Ok(())
    }

    async fn check_acknowledgements(&mut self, store: &mut StoreConnection) -> Result<(), StoreError> {
        let members = exchange_members(store, &self.shared.options, None).await?;
        let now = Instant::now();
        for waiting in std::mem::take(&mut self.waiting) {
            let others = members.iter().filter(|member| member.is_live && member.instance != self.instance);
            let (applied, missing): (Vec<_>, Vec<_>) =
                others.partition(|member| member.applied >= waiting.id);
            if !missing.is_empty() && now < waiting.until {
                self.waiting.push(waiting);
                continue;
            }
            let names = |members: Vec<&crate::members::SetMember>| {
                let mut names: Vec<String> = members.iter().map(|member| member.name.clone()).collect();
                names.sort();
                names
            };
            let mut applied = names(applied);
            applied.push(self.shared.options.name.clone());
            applied.sort();
            let report = PurgeReport { applied, missing: names(missing), error: None };
            // Whoever asked may be gone.
            let _ = waiting.reply.send(report);
        }
        Ok(())
    }

    async fn lease(&mut self, name: &str) -> LeaseAnswer {
        let token = format!("{}:{:016x}", self.instance, fastrand::u64(..));
        let mut fence = 0;
        if !self.attempt(Work::Lease(name.to_owned(), token.clone(), &mut fence)).await {
            return LeaseAnswer::Away;
        }
        if fence == 0 {
            return LeaseAnswer::Elsewhere;
        }
        self.held.insert(name.to_owned(), token.clone());
        lock(&self.shared.fences).insert(name.to_owned(), fence);
        LeaseAnswer::Held(token)
    }

    async fn extend_leases(&mut self, store: &mut StoreConnection) -> Result<(), StoreError> {
        let now = Instant::now();
        if now < self.extend_at {
            return Ok(());
        }
        self.extend_at = now + LEASE_TIME / 6;
        let members = exchange_members(store, &self.shared.options, None).await?;
        let live = members.into_iter().filter(|member| member.is_live).map(|member| member.name);
        *lock(&self.shared.servers) = live.collect();
        let time = LEASE_TIME.as_millis().to_string();
        for (name, token) in &self.held {
            let key = self.shared.options.key(&format!("lease:{name}"));
            // One that was lost stays so: the store refuses what is made under it.
            store.script(EXTEND, &[key], &[token.as_bytes(), time.as_bytes()]).await?;
        }
        Ok(())
    }

    async fn rotate_tickets(&mut self, store: &mut StoreConnection) -> Result<(), StoreError> {
        let now = Instant::now();
        let Some((period_s, receive)) = lock(&self.shared.tickets).clone() else { return Ok(()) };
        if self.tickets_at.is_some_and(|at| now < at) {
            return Ok(());
        }
        self.tickets_at = Some(now + TICKETS_INTERVAL);
        let unix_s =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let period = unix_s / period_s.max(1);
        for problem in tickets::rotate(store, &self.shared.options, (period_s, period), &receive).await? {
            self.shared.refused.fetch_add(1, Ordering::Relaxed);
            (self.report)(StoreEvent::Problem(problem));
        }
        Ok(())
    }
}
