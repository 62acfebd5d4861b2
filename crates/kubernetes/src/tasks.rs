//! Tasks beside the controller: the Lease, Events, and statuses that wait to be written.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hyper::Method;
use logging::notice::ErrorLog;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::sleep;

use crate::client::{ApiClient, ApiError};
use crate::events::{EventLedger, event_json};
use crate::gateway_services::WantedObject;
use crate::ingress::ObjectEvent;
use crate::lease::{LeaseHolder, RENEW_INTERVAL, now_text};
use crate::objects::{Kind, ObjectKey};

/// Statuses that are written at the same time.
const WRITES_MAX: usize = 8;
/// Time after which objects that could not be written are written again.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Time between two looks at Events that wait for their turn, and at those that last.
const EVENTS_PAUSE: Duration = Duration::from_secs(1);
const EVENTS_PAUSE_MAX: Duration = Duration::from_secs(60);
/// Time in which changes of warnings are gathered.
const EVENTS_GAP: Duration = Duration::from_millis(200);

pub(crate) async fn hold_lease(
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
pub(crate) async fn write_events(
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
pub(crate) async fn write_objects(
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

/// A status to write: the object's version, and its whole new status.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StatusWrite {
    pub(crate) api_version: &'static str,
    pub(crate) version: String,
    pub(crate) status: Value,
}

/// Kind and name of an object.
pub(crate) type StatusName = (Kind, ObjectKey);

/// Statuses that wait to be written, the newest of each object.
#[derive(Default)]
pub(crate) struct WaitingStatuses {
    waiting: Mutex<BTreeMap<StatusName, StatusWrite>>,
    news: Notify,
}

impl WaitingStatuses {
    /// Replaces what waits for an object.
    pub(crate) fn set(&self, name: &StatusName, write: Option<StatusWrite>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        match write {
            Some(write) => {
                waiting.insert(name.clone(), write);
                self.news.notify_one();
            }
            None => _ = waiting.remove(name),
        }
    }

    /// Returns a few statuses; none if none waits.
    fn take(&self) -> Vec<(StatusName, StatusWrite)> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        std::iter::from_fn(|| waiting.pop_first()).take(WRITES_MAX).collect()
    }
}

/// Writes statuses that wait, a few at a time, while this replica holds the Lease.
pub(crate) async fn write_statuses(
    client: ApiClient,
    waiting: Arc<WaitingStatuses>,
    mut is_leader: watch::Receiver<bool>,
    unwritten: mpsc::Sender<StatusName>,
    log: ErrorLog,
) {
    let mut is_reported = false;
    loop {
        if is_leader.wait_for(|leads| *leads).await.is_err() {
            return;
        }
        let mut tasks = tokio::task::JoinSet::new();
        for (name, write) in waiting.take() {
            let client = client.clone();
            tasks.spawn(async move {
                let path = name.0.path(write.api_version, &name.1.namespace, &name.1.name) + "/status";
                // The version makes the API server refuse it if the object has changed.
                let patch =
                    json!({ "metadata": { "resourceVersion": write.version }, "status": write.status });
                let body = Some(("application/merge-patch+json", &patch));
                let outcome = client.request(Method::PATCH, &path, body).await;
                (name, outcome)
            });
        }
        if tasks.is_empty() {
            waiting.news.notified().await;
            continue;
        }
        while let Some(done) = tasks.join_next().await {
            let Ok((name, outcome)) = done else { continue };
            match outcome {
                // The watch brings the object; the response may be older than what it has brought. An object that is gone
                // needs no status.
                Ok(_) | Err(ApiError::Status(404, _)) => continue,
                Err(ApiError::Status(409, _)) => {}
                Err(error) => {
                    if !std::mem::replace(&mut is_reported, true) {
                        let (kind, key) = (name.0.name(), &name.1);
                        log.warn(&format!("the status of the {kind} {key} cannot be written: {error}"));
                    }
                }
            }
            if unwritten.send(name).await.is_err() {
                return;
            }
        }
    }
}
