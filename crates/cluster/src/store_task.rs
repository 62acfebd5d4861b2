//! The thread's task: keeps the connections to the store, and does what the handles ask for.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;

use crate::connection::StoreConnection;
use crate::files::FileExchange;
use crate::members::{StreamId, exchange_members};
use crate::peers::{PEERS_MAX, SetPeer};
use crate::purges::{self, PurgeListener, PurgeNews, PurgeReport};
use crate::reply::StoreError;
use crate::store_state::{ClusterState, LeaseAnswer, StoreEvent, StoreRequest, lock};
use crate::tickets;

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
/// The tasks of one use of the connection.
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
pub(crate) async fn run(
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
    let mut listener = PurgeListener {
        options: options.clone(),
        instance,
        cursor: None,
        refused: None,
        epoch: String::new(),
        applied: 0,
    };
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
                others.partition(|member| member.purges.has_applied(waiting.id));
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
        let live: Vec<_> = members.into_iter().filter(|member| member.is_live).collect();
        let peers = live
            .iter()
            .filter_map(|member| Some(SetPeer { name: member.name.clone(), address: member.address? }));
        self.set_peers(peers.collect());
        *lock(&self.shared.servers) = live.into_iter().map(|member| member.name).collect();
        let time = LEASE_TIME.as_millis().to_string();
        for (name, token) in &self.held {
            let key = self.shared.options.key(&format!("lease:{name}"));
            // One that was lost stays so: the store refuses what is made under it.
            store.script(EXTEND, &[key], &[token.as_bytes(), time.as_bytes()]).await?;
        }
        Ok(())
    }

    /// Sets the servers that can be asked for responses.
    fn set_peers(&self, mut peers: Vec<SetPeer>) {
        if self.shared.options.peers.is_none() {
            return;
        }
        peers.sort();
        peers.truncate(PEERS_MAX);
        let before = std::mem::replace(&mut *lock(&self.shared.peers), Arc::new(peers.clone()));
        if *before != peers
            && let Some(listener) = &*lock(&self.shared.peers_listener)
        {
            listener();
        }
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
