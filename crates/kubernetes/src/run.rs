//! The thread that watches the API server, hands finished configurations to the server, and writes statuses.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use config::Config;
use logging::notice::ErrorLog;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, sleep_until};

use crate::account::ApiAccount;
use crate::changes::{ClusterChange, ClusterFiles, change};
use crate::client::{ApiClient, ApiError, WatchEvent};
use crate::controller_status::{SharedStatus, now_unix_ms};
use crate::gateway_services::WantedObject;
use crate::ingress::ObjectEvent;
use crate::lease::now_text;
use crate::objects::{ChangedObjects, Kind, Objects, object_key};
use crate::options::TranslateOptions;
use crate::packed::PackedJson;
use crate::status::{merged_status, unrelated_status};
use crate::tasks::{
    StatusName, StatusWrite, WaitingStatuses, hold_lease, write_events, write_objects, write_statuses,
};
use crate::translate::{TranslatedChange, Translator};

/// Time to wait for further changes before the objects are translated.
const DEBOUNCE: Duration = Duration::from_millis(5);
/// Time after which a status that could not be written is compared again.
const UNWRITTEN_INTERVAL: Duration = Duration::from_millis(500);
/// Time to wait for further changes of statuses before they are compared with those that they should be.
const STATUS_DEBOUNCE: Duration = Duration::from_millis(100);
/// Time between two attempts to bind an address that could not be bound, or to apply what could not be applied.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Time after which a kind that the API server does not have is asked for again.
const ABSENT_INTERVAL: Duration = Duration::from_secs(30);
/// Time for which a refusal (403) is taken for that of an API server that starts, and has not read its rules yet.
const REFUSAL_GRACE: Duration = Duration::from_secs(5);
/// Limits of the time between two attempts to reach the API server.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(20));
/// Events that wait.
const EVENTS_MAX: usize = 1024;

/// Puts a change in force. The error is a text for the log.
pub type ApplyConfig = Box<dyn FnMut(ClusterChange) -> Result<(), String> + Send>;

/// Settings of the controller.
pub struct ControllerOptions {
    /// The API server and the credentials.
    pub account: ApiAccount,
    /// The only namespace to watch; empty for all.
    pub namespace: String,
    /// Name of this replica.
    pub identity: String,
    /// Settings of the translation.
    pub translate: TranslateOptions,
    /// Gets the state of the controller.
    pub status: SharedStatus,
}

/// Starts the thread.
///
/// # Errors
/// The client cannot be set up, or the thread cannot be started.
pub fn start(options: ControllerOptions, apply: ApplyConfig, log: ErrorLog) -> io::Result<()> {
    let client = ApiClient::new(options.account.clone()).map_err(io::Error::other)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("kubernetes".into()).spawn(move || {
        runtime.block_on(run(options, client, Arc::new(Mutex::new(apply)), log));
    })?;
    Ok(())
}

/// News for the controller.
enum ControllerEvent {
    /// All objects of a kind, in this version of the API.
    Listed(Kind, &'static str, Vec<Value>),
    /// The API server does not have the kind, or refuses it.
    Absent(Kind, String),
    Changed(Kind, Value),
    Deleted(Kind, Value),
    /// A request has failed.
    Failed(Kind, String),
}

type SharedApply = Arc<Mutex<ApplyConfig>>;

async fn run(options: ControllerOptions, client: ApiClient, apply: SharedApply, log: ErrorLog) {
    let (events, mut received) = mpsc::channel(EVENTS_MAX);
    for kind in Kind::ALL {
        tokio::spawn(follow(client.clone(), kind, options.namespace.clone(), events.clone()));
    }
    let (leader, is_leader) = watch::channel(false);
    tokio::spawn(hold_lease(
        client.clone(),
        options.account.namespace.clone(),
        options.identity.clone(),
        leader,
        log.clone(),
    ));
    let (warnings, to_report) = watch::channel(Arc::new(Vec::new()));
    tokio::spawn(write_events(
        client.clone(),
        to_report,
        is_leader.clone(),
        options.identity.clone(),
        log.clone(),
    ));
    let (wanted, to_apply) = watch::channel(Arc::new(Vec::new()));
    tokio::spawn(write_objects(client.clone(), to_apply, is_leader.clone(), log.clone()));
    let waiting = Arc::new(WaitingStatuses::default());
    let (unwritten, mut not_written) = mpsc::channel(EVENTS_MAX);
    tokio::spawn(write_statuses(client, waiting.clone(), is_leader.clone(), unwritten, log.clone()));
    let mut controller = Controller {
        objects: Arc::default(),
        seen: BTreeSet::new(),
        api_versions: BTreeMap::new(),
        failing: BTreeMap::new(),
        options: options.translate,
        translator: Arc::default(),
        changed: ChangedObjects::new(),
        applied: None,
        applied_addresses: Arc::default(),
        apply,
        waiting,
        wanted,
        warnings,
        statuses: HashMap::new(),
        unsettled: BTreeSet::new(),
        retry_at: None,
        log,
        logged: BTreeSet::new(),
        status: options.status,
        compare_at: None,
    };
    controller.status.change(|status| status.fault = Some("it has not answered yet".to_owned()));
    let mut is_leader = is_leader;
    let mut dirty_at: Option<Instant> = None;
    loop {
        let update_at = [dirty_at.map(|at| at + DEBOUNCE), controller.retry_at].into_iter().flatten().min();
        let due = update_at.into_iter().chain(controller.compare_at).min();
        let is_complete = controller.seen.len() == Kind::ALL.len();
        tokio::select! {
            biased;
            () = async { sleep_until(due.unwrap_or_else(Instant::now).into()).await }, if due.is_some() && is_complete => {
                if update_at.is_some_and(|at| at <= Instant::now()) {
                    dirty_at = None;
                    controller.update().await;
                } else {
                    controller.compare_at = None;
                    controller.offer_statuses();
                }
            }
            event = received.recv() => {
                let Some(event) = event else { return };
                if controller.take(event) {
                    dirty_at.get_or_insert_with(Instant::now);
                }
            }
            Some(name) = not_written.recv() => controller.note_unwritten(name),
            changed = is_leader.changed() => {
                if changed.is_err() {
                    return;
                }
                let leads = *is_leader.borrow();
                controller.status.change(|status| status.is_leader = leads);
                if leads {
                    controller.offer_all_statuses();
                }
            }
        }
    }
}

/// Lists a kind and watches it, for ever.
async fn follow(client: ApiClient, kind: Kind, namespace: String, events: mpsc::Sender<ControllerEvent>) {
    let mut pause = BACKOFF.0;
    let mut refused_since = None;
    let namespace = if kind.is_namespaced() { namespace } else { String::new() };
    loop {
        let outcome = follow_once(&client, kind, &namespace, &events, &mut pause).await;
        let is_refused = matches!(outcome, Err(ApiError::Status(403, _)));
        refused_since = is_refused.then(|| refused_since.unwrap_or_else(Instant::now));
        let is_starting = refused_since.is_some_and(|since: Instant| since.elapsed() < REFUSAL_GRACE);
        let wait = match outcome {
            // Not installed, or not permitted: nothing of this kind is served.
            Err(error @ ApiError::Status(code @ (403 | 404), _))
                if code == 404 || !kind.guards() && !is_starting =>
            {
                let _ = events.send(ControllerEvent::Absent(kind, error.to_string())).await;
                ABSENT_INTERVAL
            }
            Err(ApiError::Status(410, _)) => BACKOFF.0,
            Err(error) => {
                if events.send(ControllerEvent::Failed(kind, error.to_string())).await.is_err() {
                    return;
                }
                let wait = pause;
                pause = (pause * 2).min(BACKOFF.1);
                wait
            }
            Ok(()) => BACKOFF.0,
        };
        // With jitter, so that replicas do not ask together.
        sleep(wait.mul_f64(0.5 + fastrand::f64())).await;
    }
}

async fn follow_once(
    client: &ApiClient,
    kind: Kind,
    namespace: &str,
    events: &mpsc::Sender<ControllerEvent>,
    pause: &mut Duration,
) -> Result<(), ApiError> {
    let (objects, mut since, version) = client.list(kind, namespace).await?;
    let _ = events.send(ControllerEvent::Listed(kind, version, objects)).await;
    loop {
        let started = Instant::now();
        let before = since.clone();
        let mut watch = client.watch(kind, version, namespace, &since).await?;
        loop {
            let event = match watch.next().await {
                Ok(Some(event)) => event,
                Ok(None) | Err(ApiError::Broken) => break,
                Err(error) => return Err(error),
            };
            let object = match &event {
                WatchEvent::Changed(object) | WatchEvent::Deleted(object) => object,
                WatchEvent::Bookmark(version) => {
                    since.clone_from(version);
                    continue;
                }
            };
            let version = object.pointer("/metadata/resourceVersion").and_then(Value::as_str);
            since = version.unwrap_or_default().to_owned();
            let event = match event {
                WatchEvent::Deleted(object) => ControllerEvent::Deleted(kind, object),
                WatchEvent::Changed(object) => ControllerEvent::Changed(kind, object),
                WatchEvent::Bookmark(_) => continue,
            };
            if events.send(event).await.is_err() {
                return Ok(());
            }
        }
        if since == before && started.elapsed() < Duration::from_secs(1) {
            // A watch that ends at once would be asked for without a pause.
            sleep(*pause).await;
            *pause = (*pause * 2).min(BACKOFF.1);
        } else {
            *pause = BACKOFF.0;
        }
    }
}

struct Controller {
    /// Shared with a translation while it runs.
    objects: Arc<Objects>,
    /// Kinds that were listed, or that the API server does not have.
    seen: BTreeSet<Kind>,
    /// Versions of the API in which kinds were listed.
    api_versions: BTreeMap<Kind, &'static str>,
    /// Kinds whose requests fail.
    failing: BTreeMap<Kind, String>,
    options: TranslateOptions,
    translator: Arc<Mutex<Translator>>,
    /// Objects that have changed since the last translation.
    changed: ChangedObjects,
    /// The configuration in force, with its files.
    applied: Option<(Config, Arc<ClusterFiles>)>,
    applied_addresses: Arc<BTreeSet<String>>,
    apply: SharedApply,
    waiting: Arc<WaitingStatuses>,
    /// Objects that are absent or have another content.
    wanted: watch::Sender<Arc<Vec<WantedObject>>>,
    /// Statuses as they should be.
    statuses: HashMap<StatusName, PackedJson>,
    /// Objects whose status has to be compared with the one that it should be.
    unsettled: BTreeSet<StatusName>,
    /// The present warnings about objects, for Events.
    warnings: watch::Sender<Arc<Vec<ObjectEvent>>>,
    /// Time to try again what failed.
    retry_at: Option<Instant>,
    log: ErrorLog,
    /// Messages about objects that were logged.
    logged: BTreeSet<String>,
    status: SharedStatus,
    /// Time to compare statuses that others may have changed.
    compare_at: Option<Instant>,
}

impl Controller {
    /// Takes an event. Returns whether the objects have to be translated.
    fn take(&mut self, event: ControllerEvent) -> bool {
        match event {
            ControllerEvent::Listed(kind, version, objects) => {
                self.recover(kind);
                self.api_versions.insert(kind, version);
                let keys = objects.iter().filter_map(object_key).collect();
                let mut is_changed = Arc::make_mut(&mut self.objects).retain(kind, &keys);
                for object in objects {
                    is_changed |= self.put(kind, object);
                }
                self.seen.insert(kind) || is_changed
            }
            ControllerEvent::Absent(kind, error) => {
                let text = format!("objects of the kind {} are not served: {error}", kind.name());
                self.log_once(text);
                self.seen.insert(kind)
            }
            ControllerEvent::Changed(kind, object) => {
                self.recover(kind);
                self.put(kind, object)
            }
            ControllerEvent::Deleted(kind, object) => {
                object_key(&object).is_some_and(|key| Arc::make_mut(&mut self.objects).remove(kind, &key))
            }
            ControllerEvent::Failed(kind, error) => {
                // All kinds fail together, mostly for the same reason.
                if !self.failing.values().any(|known| *known == error) {
                    let state = if self.applied.is_some() {
                        "the last configuration stays in force"
                    } else {
                        "there is no configuration yet"
                    };
                    self.log
                        .warn(&format!("the API server does not answer, {state}: {}: {error}", kind.name()));
                }
                self.status.note_away(&format!("{}: {error}", kind.name()));
                self.failing.insert(kind, error);
                false
            }
        }
    }

    /// Has a status compared again that could not be written.
    fn note_unwritten(&mut self, name: StatusName) {
        self.unsettled.insert(name);
        self.compare_at.get_or_insert_with(|| Instant::now() + UNWRITTEN_INTERVAL);
    }

    fn recover(&mut self, kind: Kind) {
        if self.failing.remove(&kind).is_some() && self.failing.is_empty() {
            self.log.info("the API server answers again");
        }
        if self.failing.is_empty() {
            self.status.note_back();
        }
    }

    fn put(&mut self, kind: Kind, object: Value) -> bool {
        let key = object_key(&object).unwrap_or_default();
        match Arc::make_mut(&mut self.objects).put(kind, object) {
            Ok(is_changed) => {
                // Its status may have changed, by others too.
                let name = (kind, key);
                if self.statuses.contains_key(&name) {
                    self.unsettled.insert(name);
                    self.compare_at.get_or_insert_with(|| Instant::now() + STATUS_DEBOUNCE);
                }
                is_changed
            }
            Err(refused) => {
                let name = key.to_string();
                self.log_once(format!("the {} {name} is ignored: {refused:?}", kind.name()));
                true
            }
        }
    }

    fn log_once(&mut self, text: String) {
        // Bounded: names of objects are a tenant's to choose.
        if self.logged.len() < 1_000 && self.logged.insert(text.clone()) {
            self.log.warn(&text);
        }
    }

    /// Translates the objects, puts the configuration in force if it has changed, and offers the statuses.
    async fn update(&mut self) {
        if self.retry_at.take_if(|at| *at <= Instant::now()).is_some() {
            self.options.unusable.clear();
        }
        let mut translated = self.translate().await;
        if let Ok(translation) = &translated {
            self.options.assigned.clone_from(&translation.assigned);
            let unusable = self.unusable_addresses(&translation.addresses);
            if !unusable.is_empty() {
                self.report_unusable(&unusable);
                self.options.unusable.extend(unusable);
                translated = self.translate().await;
            }
        }
        if !self.options.unusable.is_empty() {
            self.retry_at.get_or_insert_with(|| Instant::now() + RETRY_INTERVAL);
        }
        let translation = match translated {
            Ok(translation) => translation,
            Err(error) => {
                self.status.change(|status| status.failed_changes += 1);
                self.log.error(&format!(
                    "the objects cannot be translated, the last configuration stays in force: {error}"
                ));
                self.retry_at = Some(Instant::now() + RETRY_INTERVAL);
                return;
            }
        };
        let TranslatedChange { config, files, addresses, events, wanted, .. } = translation;
        self.wanted.send_if_modified(|known| {
            *known != wanted && {
                *known = wanted;
                true
            }
        });
        self.warnings.send_if_modified(|known| {
            *known != events && {
                *known = events;
                true
            }
        });
        let change = match &self.applied {
            None => Some(ClusterChange::Whole(Box::new(config.clone()), files.clone())),
            Some((known, known_files)) => change((known, known_files), (&config, &files)),
        };
        if let Some(change) = change {
            let of_change = AppliedKind::of(&change);
            let apply = self.apply.clone();
            let applied = tokio::task::spawn_blocking(move || {
                let mut apply = apply.lock().unwrap_or_else(PoisonError::into_inner);
                apply(change)
            });
            match applied.await {
                Ok(Ok(())) => {
                    self.note_applied(of_change, &config);
                    self.applied = Some((config, files));
                    self.applied_addresses = addresses;
                }
                Ok(Err(error)) => {
                    self.status.change(|status| status.failed_changes += 1);
                    self.log_once(format!("the configuration cannot be put in force: {error}"));
                    self.retry_at = Some(Instant::now() + RETRY_INTERVAL);
                    return;
                }
                Err(_) => return,
            }
        }
        self.take_statuses();
        self.offer_statuses();
    }

    fn note_applied(&mut self, kind: AppliedKind, config: &Config) {
        let counts = self.translator().counts();
        let objects = Arc::make_mut(&mut self.objects).count() as u64;
        self.status.change(|status| {
            *match kind {
                AppliedKind::Whole => &mut status.whole_changes,
                AppliedKind::Servers => &mut status.server_changes,
                AppliedKind::Certificates => &mut status.certificate_changes,
            } += 1;
            status.applied_unix_ms = Some(now_unix_ms());
            status.sites_read = counts.sites;
            status.sites = config.sites.len() as u64;
            status.objects = objects;
        });
    }

    fn translator(&self) -> MutexGuard<'_, Translator> {
        self.translator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn translate(&mut self) -> Result<TranslatedChange, String> {
        self.changed.append(&mut Arc::make_mut(&mut self.objects).take_changed());
        let changed = std::mem::take(&mut self.changed);
        let (objects, options) = (self.objects.clone(), self.options.clone());
        let translator = self.translator.clone();
        let done = tokio::task::spawn_blocking(move || {
            let mut translator = translator.lock().unwrap_or_else(PoisonError::into_inner);
            translator.translate(&objects, &changed, &options)
        });
        done.await.unwrap_or_else(|_| Err("the translation has failed".to_owned()))
    }

    /// Takes the statuses over that have changed.
    fn take_statuses(&mut self) {
        let changed = self.translator().take_statuses();
        for (kind, key, status) in changed {
            let name = (kind, key);
            match status {
                Some(status) => _ = self.statuses.insert(name.clone(), status),
                None => {
                    self.statuses.remove(&name);
                    self.waiting.set(&name, None);
                }
            }
            self.unsettled.insert(name);
        }
    }

    /// Logs the addresses that cannot be bound, once.
    fn report_unusable(&mut self, unusable: &BTreeMap<String, String>) {
        let texts: Vec<String> = unusable.iter().map(|(address, why)| format!("{address}: {why}")).collect();
        self.log_once(format!("addresses of Gateways cannot be used: {}", texts.join("; ")));
    }

    /// Tries to bind the addresses that are not open yet.
    fn unusable_addresses(&self, addresses: &BTreeSet<String>) -> BTreeMap<String, String> {
        let new = addresses.iter().filter(|address| !self.applied_addresses.contains(*address));
        new.filter_map(|address| Some((address.clone(), bind_fault(address)?))).collect()
    }

    /// Offers all statuses again, after another replica may have written them.
    fn offer_all_statuses(&mut self) {
        self.unsettled.extend(self.statuses.keys().cloned());
        self.offer_statuses();
    }

    /// Offers the statuses that differ from those of the objects.
    fn offer_statuses(&mut self) {
        let now = now_text();
        for name in std::mem::take(&mut self.unsettled) {
            let write = self.status_write(&name, &now);
            self.waiting.set(&name, write);
        }
    }

    /// Returns what to write to an object, if its status is not as it should be.
    fn status_write(&self, name: &StatusName, now: &str) -> Option<StatusWrite> {
        let desired = match self.statuses.get(name) {
            Some(desired) => desired.value(),
            // It has no parent of ours any more.
            None => unrelated_status(name.0)?,
        };
        let (version, present) = self.objects.status(name.0, &name.1)?;
        let api_version = self.api_versions.get(&name.0).copied()?;
        let status = merged_status(name.0, &present, &desired, now)?;
        Some(StatusWrite { api_version, version, status })
    }
}

/// The kind of a change that was applied.
#[derive(Clone, Copy)]
enum AppliedKind {
    Whole,
    Servers,
    Certificates,
}

impl AppliedKind {
    fn of(change: &ClusterChange) -> AppliedKind {
        match change {
            ClusterChange::Whole(..) => AppliedKind::Whole,
            ClusterChange::Servers(_) => AppliedKind::Servers,
            ClusterChange::Certificates(_) => AppliedKind::Certificates,
        }
    }
}

/// Returns why an address cannot be bound.
fn bind_fault(address: &str) -> Option<String> {
    if let Some(address) = address.strip_prefix("udp:") {
        let bound = match address.strip_prefix(':').and_then(|port| port.parse::<u16>().ok()) {
            Some(port) => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port))
                .or_else(|_| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))),
            None => UdpSocket::bind(address),
        };
        return bound.err().map(|error| error.to_string());
    }
    if let Some(port) = address.strip_prefix(':').and_then(|port| port.parse::<u16>().ok()) {
        let v6 = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port));
        let v4 = v6.or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)));
        return v4.err().map(|error| error.to_string());
    }
    match address.parse::<SocketAddr>() {
        Ok(address) => TcpListener::bind(address).err().map(|error| error.to_string()),
        Err(_) => Some("it is not an address".to_owned()),
    }
}
