//! The thread that watches the API server, hands finished configurations to the server, and writes statuses.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use config::Config;
use hyper::Method;
use logging::notice::ErrorLog;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, sleep_until};

use crate::account::ApiAccount;
use crate::changes::{ClusterChange, ClusterFiles, change};
use crate::client::{ApiClient, ApiError, WatchEvent};
use crate::config_reader::ConfigReader;
use crate::controller_status::{SharedStatus, now_unix_ms};
use crate::events::{EventLedger, event_json};
use crate::gateway_services::WantedObject;
use crate::ingress::ObjectEvent;
use crate::lease::{LeaseHolder, RENEW_INTERVAL, now_text};
use crate::objects::{Kind, ObjectKey, Objects, object_key};
use crate::options::TranslateOptions;
use crate::status::merged_status;
use crate::translate::{ClusterConfig, DesiredStatus, translate_with};

/// Time to wait for further changes before the objects are translated.
const DEBOUNCE: Duration = Duration::from_millis(5);
/// Time to wait for further changes of statuses before they are compared with those that they should be.
const STATUS_DEBOUNCE: Duration = Duration::from_millis(100);
/// Time between two attempts to bind an address that could not be bound, or to apply what could not be applied.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Time after which a kind that the API server does not have is asked for again.
const ABSENT_INTERVAL: Duration = Duration::from_secs(30);
/// Limits of the time between two attempts to reach the API server.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(20));
/// Events that wait.
const EVENTS_MAX: usize = 1024;
/// Statuses that are written at the same time.
const WRITES_MAX: usize = 8;

/// Time between two looks at Events that wait for their turn, and at those that last.
const EVENTS_PAUSE: Duration = Duration::from_secs(1);
const EVENTS_PAUSE_MAX: Duration = Duration::from_secs(60);
/// Time in which changes of warnings are gathered.
const EVENTS_GAP: Duration = Duration::from_millis(200);

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
    /// A status could not be written.
    Unwritten,
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
    let (objects, to_apply) = watch::channel(Arc::new(Vec::new()));
    tokio::spawn(write_objects(client.clone(), to_apply, is_leader.clone(), log.clone()));
    let (wanted, to_write) = watch::channel(Arc::new(Vec::new()));
    tokio::spawn(write_statuses(client, to_write, is_leader.clone(), events.clone(), log.clone()));
    let mut controller = Controller {
        objects: Objects::default(),
        seen: BTreeSet::new(),
        api_versions: BTreeMap::new(),
        failing: BTreeMap::new(),
        options: options.translate,
        reader: Arc::default(),
        applied: None,
        applied_addresses: BTreeSet::new(),
        apply,
        wanted,
        wanted_objects: objects,
        warnings,
        statuses: Vec::new(),
        settled: HashMap::new(),
        hash_key: RandomState::new(),
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
            changed = is_leader.changed() => {
                if changed.is_err() {
                    return;
                }
                let leads = *is_leader.borrow();
                controller.status.change(|status| status.is_leader = leads);
                controller.offer_statuses();
            }
        }
    }
}

/// Lists a kind and watches it, for ever.
async fn follow(client: ApiClient, kind: Kind, namespace: String, events: mpsc::Sender<ControllerEvent>) {
    let mut pause = BACKOFF.0;
    let namespace = if kind.is_namespaced() { namespace } else { String::new() };
    loop {
        let outcome = follow_once(&client, kind, &namespace, &events, &mut pause).await;
        let wait = match outcome {
            // Not installed, or not permitted: nothing of this kind is served.
            Err(error @ ApiError::Status(code @ (403 | 404), _)) if code == 404 || !kind.guards() => {
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

async fn hold_lease(
    client: ApiClient,
    namespace: String,
    identity: String,
    leader: watch::Sender<bool>,
    log: ErrorLog,
) {
    let mut lease = LeaseHolder::new(client, &namespace, &identity);
    let mut is_reported = false;
    let mut renewed_at = Instant::now();
    loop {
        match lease.acquire().await {
            Ok(holds) => {
                is_reported = false;
                renewed_at = Instant::now();
                leader.send_if_modified(|now| std::mem::replace(now, holds) != holds);
            }
            Err(error) => {
                if renewed_at.elapsed() > crate::lease::LEASE_DURATION {
                    leader.send_if_modified(|now| std::mem::replace(now, false));
                }
                if !std::mem::replace(&mut is_reported, true) {
                    log.warn(&format!("the Lease in the namespace {namespace} cannot be had, and no status is written: {error}"));
                }
            }
        }
        sleep(RENEW_INTERVAL).await;
    }
}

/// Writes Events of the present warnings, as far as their rates allow, while this replica holds the Lease.
async fn write_events(
    client: ApiClient,
    mut present: watch::Receiver<Arc<Vec<ObjectEvent>>>,
    mut is_leader: watch::Receiver<bool>,
    identity: String,
    log: ErrorLog,
) {
    let mut ledger = EventLedger::new(Instant::now());
    let mut is_reported = false;
    loop {
        // Also without changes, for those that wait and those that last.
        let pause = if ledger.has_waiting() { EVENTS_PAUSE } else { EVENTS_PAUSE_MAX };
        tokio::select! {
            changed = present.changed() => if changed.is_err() { return },
            // Warnings may be older than the Lease.
            changed = is_leader.changed() => if changed.is_err() { return },
            () = sleep(pause) => {}
        }
        if !*is_leader.borrow_and_update() {
            continue;
        }
        let warnings = present.borrow_and_update().clone();
        for event in ledger.take_due(&warnings, Instant::now()) {
            let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events", event.key.namespace);
            let object = event_json(&event, &identity, &now_text());
            let sent = client.request(Method::POST, &path, Some(("application/json", &object))).await;
            match sent {
                // Another replica, or this one before a restart, has written it; or the namespace is going.
                Ok(_) | Err(ApiError::Status(409 | 404, _)) => {}
                Err(error) => {
                    if !std::mem::replace(&mut is_reported, true) {
                        log.warn(&format!("Events cannot be written: {error}"));
                    }
                }
            }
        }
        sleep(EVENTS_GAP).await;
    }
}

/// Creates and changes objects while this replica holds the Lease. The watch brings them back, so that none is written twice.
async fn write_objects(
    client: ApiClient,
    mut wanted: watch::Receiver<Arc<Vec<WantedObject>>>,
    mut is_leader: watch::Receiver<bool>,
    log: ErrorLog,
) {
    let mut is_reported = false;
    let mut has_failed = false;
    loop {
        tokio::select! {
            changed = wanted.changed() => if changed.is_err() { return },
            changed = is_leader.changed() => if changed.is_err() { return },
            () = sleep(RETRY_INTERVAL), if has_failed => {}
        }
        if !*is_leader.borrow_and_update() {
            continue;
        }
        has_failed = false;
        let objects = wanted.borrow_and_update().clone();
        for WantedObject { kind, key, object } in objects.iter() {
            let path = kind.path(kind.resource().1[0], &key.namespace, &key.name);
            let path = format!("{path}?fieldManager=komainu&force=true");
            let media_type = "application/apply-patch+yaml";
            match client.request(Method::PATCH, &path, Some((media_type, object))).await {
                Ok(_) => {}
                // The namespace, or the Gateway, is going.
                Err(ApiError::Status(404, _)) => {}
                Err(error) => {
                    has_failed = true;
                    if !std::mem::replace(&mut is_reported, true) {
                        log.warn(&format!("the {} {key} cannot be written: {error}", kind.name()));
                    }
                }
            }
        }
    }
}

/// A status to write: the object's kind, name and version, and its whole new status.
#[derive(Clone, Debug, PartialEq)]
struct StatusWrite {
    kind: Kind,
    api_version: &'static str,
    key: ObjectKey,
    version: String,
    status: Value,
}

/// Writes the newest statuses, a few at a time.
async fn write_statuses(
    client: ApiClient,
    mut wanted: watch::Receiver<Arc<Vec<StatusWrite>>>,
    is_leader: watch::Receiver<bool>,
    events: mpsc::Sender<ControllerEvent>,
    log: ErrorLog,
) {
    let mut is_reported = false;
    while wanted.changed().await.is_ok() {
        let writes = wanted.borrow_and_update().clone();
        for some in writes.chunks(WRITES_MAX) {
            if !*is_leader.borrow() || wanted.has_changed().unwrap_or(true) {
                break;
            }
            let mut tasks = tokio::task::JoinSet::new();
            for write in some.iter().cloned() {
                let client = client.clone();
                tasks.spawn(async move {
                    let path =
                        write.kind.path(write.api_version, &write.key.namespace, &write.key.name) + "/status";
                    // The version makes the API server refuse it if the object has changed.
                    let patch =
                        json!({ "metadata": { "resourceVersion": write.version }, "status": write.status });
                    let outcome = client
                        .request(Method::PATCH, &path, Some(("application/merge-patch+json", &patch)))
                        .await;
                    (write, outcome)
                });
            }
            while let Some(done) = tasks.join_next().await {
                let Ok((write, outcome)) = done else { continue };
                match outcome {
                    // The watch brings the object; the response may be older than what it has brought. An object that is gone
                    // needs no status.
                    Ok(_) | Err(ApiError::Status(404, _)) => continue,
                    Err(ApiError::Status(409, _)) => {}
                    Err(error) => {
                        if !std::mem::replace(&mut is_reported, true) {
                            log.warn(&format!(
                                "the status of the {} {} cannot be written: {error}",
                                write.kind.name(),
                                write.key
                            ));
                        }
                    }
                }
                if events.send(ControllerEvent::Unwritten).await.is_err() {
                    return;
                }
            }
        }
    }
}

struct Controller {
    objects: Objects,
    /// Kinds that were listed, or that the API server does not have.
    seen: BTreeSet<Kind>,
    /// Versions of the API in which kinds were listed.
    api_versions: BTreeMap<Kind, &'static str>,
    /// Kinds whose requests fail.
    failing: BTreeMap<Kind, String>,
    options: TranslateOptions,
    /// The parts of configurations that are known.
    reader: Arc<Mutex<ConfigReader>>,
    /// The configuration in force, with its files.
    applied: Option<(Config, ClusterFiles)>,
    applied_addresses: BTreeSet<String>,
    apply: SharedApply,
    wanted: watch::Sender<Arc<Vec<StatusWrite>>>,
    /// Objects that are absent or have another content.
    wanted_objects: watch::Sender<Arc<Vec<WantedObject>>>,
    statuses: Vec<DesiredStatus>,
    /// Objects whose status is as it should be: their version, and a hash of that status.
    settled: HashMap<(Kind, ObjectKey), (String, u64)>,
    hash_key: RandomState,
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
                let mut is_changed = self.objects.retain(kind, &keys);
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
                object_key(&object).is_some_and(|key| self.objects.remove(kind, &key))
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
            ControllerEvent::Unwritten => {
                self.retry_at.get_or_insert_with(|| Instant::now() + Duration::from_millis(500));
                false
            }
        }
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
        let name = object_key(&object).map(|key| key.to_string()).unwrap_or_default();
        match self.objects.put(kind, object) {
            Ok(is_changed) => {
                if !is_changed {
                    // Its status may have changed, by others too.
                    self.compare_at.get_or_insert_with(|| Instant::now() + STATUS_DEBOUNCE);
                }
                is_changed
            }
            Err(refused) => {
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
        self.retry_at = None;
        let was_unusable = !self.options.unusable.is_empty();
        self.options.unusable.clear();
        let mut translated = self.translate().await;
        if let Ok(translation) = &translated {
            self.options.assigned.clone_from(&translation.assigned);
            self.options.unusable = self.unusable_addresses(&translation.addresses);
            if !self.options.unusable.is_empty() {
                if !was_unusable {
                    let texts: Vec<String> = self
                        .options
                        .unusable
                        .iter()
                        .map(|(address, why)| format!("{address}: {why}"))
                        .collect();
                    self.log.warn(&format!("addresses of Gateways cannot be used: {}", texts.join("; ")));
                }
                self.retry_at = Some(Instant::now() + RETRY_INTERVAL);
                translated = self.translate().await;
            }
        }
        let translation = match translated {
            Ok(translation) => translation,
            Err(error) => {
                self.log.error(&format!(
                    "the objects cannot be translated, the last configuration stays in force: {error}"
                ));
                self.retry_at = Some(Instant::now() + RETRY_INTERVAL);
                return;
            }
        };
        let ClusterConfig { config, files, statuses, addresses, events, wanted, .. } = translation;
        let wanted = Arc::new(wanted);
        self.wanted_objects.send_if_modified(|known| {
            *known != wanted && {
                *known = wanted;
                true
            }
        });
        let warnings = Arc::new(events);
        self.warnings.send_if_modified(|known| {
            *known != warnings && {
                *known = warnings;
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
        self.statuses = statuses;
        self.offer_statuses();
    }

    fn note_applied(&mut self, kind: AppliedKind, config: &Config) {
        let counts = self.reader.lock().unwrap_or_else(PoisonError::into_inner).counts();
        let objects = self.objects.count() as u64;
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

    async fn translate(&self) -> Result<ClusterConfig, String> {
        let objects = self.objects.clone();
        let options = self.options.clone();
        let reader = self.reader.clone();
        let done = tokio::task::spawn_blocking(move || {
            let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
            translate_with(&objects, &options, &mut reader)
        });
        let done = done.await;
        done.unwrap_or_else(|_| Err("the translation has failed".to_owned()))
    }

    /// Tries to bind the addresses that are not open yet.
    fn unusable_addresses(&self, addresses: &BTreeSet<String>) -> BTreeMap<String, String> {
        let new = addresses.iter().filter(|address| !self.applied_addresses.contains(*address));
        new.filter_map(|address| Some((address.clone(), bind_fault(address)?))).collect()
    }

    /// Offers the statuses that differ from those of the objects.
    fn offer_statuses(&mut self) {
        let now = now_text();
        let (mut writes, mut settled) = (Vec::new(), HashMap::new());
        for desired in &self.statuses {
            let Some((version, present)) = self.present_status(desired) else { continue };
            let Some(api_version) = self.api_versions.get(&desired.kind).copied() else { continue };
            let name = (desired.kind, desired.key.clone());
            // Of thousands of objects, few have changed since they were compared.
            let compared = (version, self.hash_key.hash_one(&desired.status));
            if self.settled.get(&name) != Some(&compared)
                && let Some(status) = merged_status(desired.kind, present, &desired.status, &now)
            {
                writes.push(StatusWrite {
                    kind: desired.kind,
                    api_version,
                    key: desired.key.clone(),
                    version: compared.0,
                    status,
                });
                continue;
            }
            settled.insert(name, compared);
        }
        self.settled = settled;
        if !writes.is_empty() {
            self.wanted.send_replace(Arc::new(writes));
        }
    }

    fn present_status(&self, desired: &DesiredStatus) -> Option<(String, &Value)> {
        self.objects.status(desired.kind, &desired.key)
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
