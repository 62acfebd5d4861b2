//! The thread that follows names and containers, and its handle.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio::time::sleep;

use crate::directives::DiscoverTable;
use crate::dns::{DiscoveredName, DiscoveredServer, DnsClient, system_servers};
use crate::docker::DockerClient;
use crate::labels::{LabelledSites, labelled_sites};

/// Number of names that are looked up at the same time.
const LOOKUPS_MAX: usize = 16;
/// Limits of the pause after a failure.
const RETRY_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Time to wait for further changes, and the least time between two that are told.
const DEBOUNCE: Duration = Duration::from_millis(50);
const CHANGE_INTERVAL: Duration = Duration::from_millis(500);
/// Interval at which containers are listed although no event tells of a change.
const LIST_INTERVAL: Duration = Duration::from_secs(30);
/// The same without events, which proxies of the socket may forbid.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Least time between two lists.
const LIST_PAUSE: Duration = Duration::from_millis(200);

/// An event for operators. The text names a DNS name, or Docker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiscoveryEvent {
    /// A source does not answer, for this reason; what it has said before stays in force.
    Away(String, String),
    /// A source answers again.
    Back(String),
    /// A name has other servers from now on: how many.
    Servers(String, usize),
    /// Containers have other sites from now on: how many.
    Sites(String, usize),
    /// A remark.
    Problem(String),
}

/// What was found at a time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Found {
    /// Servers of the names for which there was an answer.
    pub servers: BTreeMap<DiscoveredName, Arc<Vec<DiscoveredServer>>>,
    /// Sites of containers, as tables of `[[site]]`.
    pub sites: Arc<Vec<Value>>,
}

type OnDiscovery = Box<dyn Fn(DiscoveryEvent) + Send + Sync>;

/// What was found so far.
#[derive(Default)]
struct FoundState {
    /// Servers by name; `None` until there is a first answer.
    names: BTreeMap<DiscoveredName, Option<Arc<Vec<DiscoveredServer>>>>,
    /// Names whose first lookup has ended, whatever came of it.
    asked: BTreeSet<DiscoveredName>,
    sites: Arc<Vec<Value>>,
    has_listed: bool,
}

struct DiscoveryState {
    options: DiscoverTable,
    found: Mutex<FoundState>,
    /// Signalled when a first answer has come, or failed to.
    first: Condvar,
    changed: Notify,
    listener: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl DiscoveryState {
    fn found(&self) -> MutexGuard<'_, FoundState> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is found by DNS and Docker. Clones share one thread, which ends when all are dropped.
#[derive(Clone)]
pub struct Discovery {
    state: Arc<DiscoveryState>,
    names: mpsc::UnboundedSender<BTreeSet<DiscoveredName>>,
}

impl fmt::Debug for Discovery {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Discovery")
    }
}

impl Discovery {
    /// Starts the thread. `report` is called on it.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(options: DiscoverTable, report: OnDiscovery) -> io::Result<Discovery> {
        let state = Arc::new(DiscoveryState {
            options,
            found: Mutex::default(),
            first: Condvar::new(),
            changed: Notify::new(),
            listener: Mutex::default(),
        });
        let (names, received) = mpsc::unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let theirs = state.clone();
        std::thread::Builder::new().name("discovery".into()).spawn(move || {
            runtime.block_on(run(theirs, received, report.into()));
            runtime.shutdown_background();
        })?;
        Ok(Discovery { state, names })
    }

    /// Whether the thread has these options.
    #[must_use]
    pub fn has_options(&self, options: &DiscoverTable) -> bool {
        self.state.options == *options
    }

    /// Sets what is called, on the thread, after something has changed; also once soon, for what has changed before.
    pub fn on_change(&self, listener: Box<dyn Fn() + Send>) {
        *self.state.listener.lock().unwrap_or_else(PoisonError::into_inner) = Some(listener);
        self.state.changed.notify_one();
    }

    /// Follows these names from now on, and no others. Waits for the first answers of those that are new, and for the
    /// first list of containers, as long as the options say.
    pub fn follow(&self, names: BTreeSet<DiscoveredName>) {
        let mut found = self.state.found();
        found.names.retain(|name, _| names.contains(name));
        found.asked.retain(|name| names.contains(name));
        for name in &names {
            found.names.entry(name.clone()).or_default();
        }
        // If the thread has ended, nothing is found any more.
        let _ = self.names.send(names.clone());
        let until = Instant::now() + self.state.options.timeout;
        let is_complete = |found: &FoundState| {
            names.iter().all(|name| found.asked.contains(name))
                && (found.has_listed || self.state.options.docker.is_none())
        };
        while !is_complete(&found) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            found = self.state.first.wait_timeout(found, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns what was found so far.
    #[must_use]
    pub fn found(&self) -> Found {
        let found = self.state.found();
        let answered =
            found.names.iter().filter_map(|(name, servers)| Some((name.clone(), servers.clone()?)));
        Found { servers: answered.collect(), sites: found.sites.clone() }
    }
}

async fn run(
    state: Arc<DiscoveryState>,
    mut received: mpsc::UnboundedReceiver<BTreeSet<DiscoveredName>>,
    report: Arc<OnDiscovery>,
) {
    if let Some(address) = state.options.docker.clone() {
        let client = DockerClient { address, timeout: state.options.timeout };
        tokio::spawn(follow_docker(state.clone(), client, report.clone()));
    }
    tokio::spawn(tell_changes(state.clone()));
    let lookups = Arc::new(Semaphore::new(LOOKUPS_MAX));
    let mut followed: BTreeMap<DiscoveredName, AbortHandle> = BTreeMap::new();
    while let Some(names) = received.recv().await {
        followed.retain(|name, task| {
            let is_wanted = names.contains(name);
            if !is_wanted {
                task.abort();
            }
            is_wanted
        });
        for name in names {
            let task = follow_name(state.clone(), name.clone(), lookups.clone(), report.clone());
            followed.entry(name).or_insert_with(|| tokio::spawn(task).abort_handle());
        }
    }
}

/// Calls the listener after changes.
async fn tell_changes(state: Arc<DiscoveryState>) {
    loop {
        state.changed.notified().await;
        sleep(DEBOUNCE).await;
        if let Some(listener) = &*state.listener.lock().unwrap_or_else(PoisonError::into_inner) {
            listener();
        }
        sleep(CHANGE_INTERVAL).await;
    }
}

/// Whether a source answers, as reported.
struct SourceReports {
    source: String,
    is_away: bool,
    pause: Duration,
    report: Arc<OnDiscovery>,
}

impl SourceReports {
    fn new(source: String, report: Arc<OnDiscovery>) -> SourceReports {
        SourceReports { source, is_away: false, pause: RETRY_PAUSES.0, report }
    }

    fn answered(&mut self) {
        self.pause = RETRY_PAUSES.0;
        if std::mem::take(&mut self.is_away) {
            (self.report)(DiscoveryEvent::Back(self.source.clone()));
        }
    }

    /// Reports a failure once, and returns the pause before the next attempt.
    fn failed(&mut self, why: String) -> Duration {
        if !std::mem::replace(&mut self.is_away, true) {
            (self.report)(DiscoveryEvent::Away(self.source.clone(), why));
        }
        let pause = self.pause.mul_f64(0.75 + fastrand::f64() / 2.0);
        self.pause = (self.pause * 2).min(RETRY_PAUSES.1);
        pause
    }
}

/// Looks a name up again whenever its records have expired.
async fn follow_name(
    state: Arc<DiscoveryState>,
    name: DiscoveredName,
    lookups: Arc<Semaphore>,
    report: Arc<OnDiscovery>,
) {
    let mut reports = SourceReports::new(name.to_string(), report);
    loop {
        let looked_up = {
            let _permit = lookups.acquire().await;
            let client = DnsClient { servers: dns_servers(&state.options), timeout: state.options.timeout };
            client.look_up(&name).await
        };
        let pause = match looked_up {
            Ok((servers, ttl)) => {
                reports.answered();
                set_servers(&state, &name, servers, &reports);
                ttl
            }
            Err(why) => reports.failed(why),
        };
        state.found().asked.insert(name.clone());
        state.first.notify_all();
        sleep(pause).await;
    }
}

/// Returns the configured DNS servers, or those of the system at present.
fn dns_servers(options: &DiscoverTable) -> Vec<std::net::SocketAddr> {
    if !options.dns.is_empty() {
        return options.dns.clone();
    }
    fs::read_to_string("/etc/resolv.conf").map(|text| system_servers(&text)).unwrap_or_default()
}

fn set_servers(
    state: &DiscoveryState,
    name: &DiscoveredName,
    servers: Vec<DiscoveredServer>,
    reports: &SourceReports,
) {
    let mut found = state.found();
    // No longer followed.
    let Some(known) = found.names.get_mut(name) else { return };
    if known.as_ref().is_some_and(|known| **known == servers) {
        return;
    }
    let count = servers.len();
    *known = Some(Arc::new(servers));
    drop(found);
    (reports.report)(DiscoveryEvent::Servers(reports.source.clone(), count));
    state.changed.notify_one();
}

/// Lists the containers whenever an event tells that they may have changed.
async fn follow_docker(state: Arc<DiscoveryState>, client: DockerClient, report: Arc<OnDiscovery>) {
    let mut reports = SourceReports::new(format!("Docker ({})", client.address), report);
    let mut said = BTreeSet::new();
    loop {
        // Before the list, so that no change falls between the two.
        let mut events = client.events().await;
        let mut interval = if events.is_ok() { LIST_INTERVAL } else { POLL_INTERVAL };
        let pause = loop {
            match client.containers().await {
                Ok(list) => {
                    reports.answered();
                    set_sites(&state, &list, &mut said, &reports);
                }
                Err(why) => break reports.failed(why),
            }
            sleep(LIST_PAUSE).await;
            let has_ended = match &mut events {
                Ok(events) => tokio::time::timeout(interval, events.next()).await == Ok(false),
                Err(_) => {
                    sleep(interval).await;
                    true
                }
            };
            if has_ended {
                break Duration::ZERO;
            }
            interval = LIST_INTERVAL;
        };
        state.found().has_listed = true;
        state.first.notify_all();
        sleep(pause).await;
    }
}

fn set_sites(state: &DiscoveryState, list: &Value, said: &mut BTreeSet<String>, reports: &SourceReports) {
    let LabelledSites { sites, problems } = labelled_sites(list, &state.options.hosts);
    // Each problem is reported when it comes up.
    let problems: BTreeSet<String> = problems.into_iter().collect();
    for problem in problems.difference(said) {
        (reports.report)(DiscoveryEvent::Problem(problem.clone()));
    }
    *said = problems;
    let mut found = state.found();
    found.has_listed = true;
    state.first.notify_all();
    if *found.sites == sites {
        return;
    }
    let count = sites.len();
    found.sites = Arc::new(sites);
    drop(found);
    (reports.report)(DiscoveryEvent::Sites(reports.source.clone(), count));
    state.changed.notify_one();
}
