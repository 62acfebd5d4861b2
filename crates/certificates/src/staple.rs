//! OCSP stapling (RFC 6066 section 8): responses are fetched from the responder that a certificate names,
//! presented with the certificate, and renewed before they expire.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use failure::Failure;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::{AbortHandle, LocalSet};

use crate::ocsp::{CertificateId, Staple};
use web_client::WebClient;

/// Maximum number of concurrent requests.
const REQUESTS_MAX: usize = 4;

/// Environment of the stapler.
#[derive(Clone)]
pub struct StapleEnvironment {
    /// Clock.
    pub now: Arc<dyn Fn() -> SystemTime + Send + Sync>,
    /// Timeout of a request to a responder.
    pub request_max: Duration,
    /// Pause after a failed request; doubles up to `retry_max`.
    pub retry_first: Duration,
    /// Maximum pause after failed requests.
    pub retry_max: Duration,
    /// Interval at which the clock is checked.
    pub check_interval: Duration,
    /// Logs a failure that is retried.
    pub warn: Arc<dyn Fn(&str) + Send + Sync>,
    /// Logs a normal event.
    pub info: Arc<dyn Fn(&str) + Send + Sync>,
}

/// A certificate that names an OCSP responder, and the callback that staples a response to it.
pub struct StapledCertificate {
    /// Name for the log: the file, or the subject.
    pub name: String,
    /// Chain in DER; the issuer's certificate is the second.
    pub chain: Vec<Vec<u8>>,
    /// URL of the responder.
    pub responder: String,
    /// Whether clients reject the certificate without a response (must-staple, RFC 7633).
    pub is_required: bool,
    /// Sets the stapled response, or none.
    pub staple: Box<dyn Fn(Option<Vec<u8>>) + Send>,
}

/// Owner of a set of certificates, which are replaced together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum StapleOwner {
    /// The configuration, for certificates in files.
    Files,
    /// The server itself, for the certificate that it has obtained for a name.
    Name(String),
}

type WatchCommand = (StapleOwner, Vec<StapledCertificate>);

/// Handle of the OCSP thread, which ends when this is dropped.
pub struct OcspStapler {
    watches: Option<UnboundedSender<WatchCommand>>,
    thread: Option<JoinHandle<()>>,
}

impl OcspStapler {
    /// Starts the thread.
    ///
    /// # Errors
    /// Fails if no thread can be created, or TLS cannot be set up.
    pub fn start(environment: StapleEnvironment) -> io::Result<OcspStapler> {
        let (watches, received) = unbounded_channel();
        let client = WebClient::new(b"", environment.request_max).map_err(io::Error::other)?;
        let thread = std::thread::Builder::new().name("ocsp".into()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => {
                    runtime.block_on(LocalSet::new().run_until(run(environment, client, received)));
                    // A name lookup may take long, and its result is not needed.
                    runtime.shutdown_background();
                }
                Err(error) => (environment.warn)(&format!("OCSP: no response is fetched: {error}")),
            }
        })?;
        Ok(OcspStapler { watches: Some(watches), thread: Some(thread) })
    }

    /// Replaces the certificates of this owner for which responses are fetched.
    pub fn watch(&self, owner: StapleOwner, certificates: Vec<StapledCertificate>) {
        // If the thread has ended, it has logged the reason.
        let _ = self.watches.as_ref().map(|watches| watches.send((owner, certificates)));
    }
}

impl Drop for OcspStapler {
    fn drop(&mut self) {
        self.watches = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// State shared by the tasks.
struct StaplerState {
    environment: StapleEnvironment,
    client: WebClient,
    permits: Semaphore,
    /// Responses by certificate, so that a certificate that is loaded again keeps its response.
    fetched: Mutex<HashMap<Vec<u8>, Staple>>,
}

async fn run(
    environment: StapleEnvironment,
    client: WebClient,
    mut watches: UnboundedReceiver<WatchCommand>,
) {
    let permits = Semaphore::new(REQUESTS_MAX);
    let state = Arc::new(StaplerState { environment, client, permits, fetched: Mutex::default() });
    let mut tasks: HashMap<StapleOwner, Vec<(Vec<u8>, AbortHandle)>> = HashMap::new();
    while let Some((owner, certificates)) = watches.recv().await {
        let old = tasks.remove(&owner).unwrap_or_default();
        old.iter().for_each(|(_, task)| task.abort());
        let new = certificates.into_iter().map(|certificate| {
            let key = certificate.chain.first().cloned().unwrap_or_default();
            (key, tokio::task::spawn_local(maintain_staple(state.clone(), certificate)).abort_handle())
        });
        let new: Vec<_> = new.collect();
        if !new.is_empty() {
            tasks.insert(owner, new);
        }
        let is_kept = |key: &Vec<u8>| tasks.values().flatten().any(|(kept, _)| kept == key);
        if !old.is_empty() {
            state.fetched.lock().await.retain(|key, _| is_kept(key));
        }
    }
}

/// Returns the time at which a response is replaced: half of its lifetime.
fn renew_at(staple: &Staple) -> SystemTime {
    let lifetime = staple.next_update.duration_since(staple.this_update).unwrap_or_default();
    staple.this_update + lifetime / 2
}

/// Keeps a certificate's response up to date.
async fn maintain_staple(state: Arc<StaplerState>, certificate: StapledCertificate) {
    let environment = &state.environment;
    let key = certificate.chain.first().cloned().unwrap_or_default();
    let id = match certificate.chain.as_slice() {
        [own, issuer, ..] => CertificateId::new(own, issuer),
        _ => Err("the chain lacks the certificate of its issuer: append it to the file".into()),
    };
    let id = match id {
        Ok(id) => id,
        Err(error) => return (environment.warn)(&failure_text(&certificate, &error.to_string())),
    };
    let mut current = state.fetched.lock().await.get(&key).cloned();
    if let Some(staple) = &current {
        (certificate.staple)(Some(staple.der.clone()));
    }
    let mut failures = 0u32;
    let mut retry_at = None;
    let mut logged = None;
    loop {
        let now = (environment.now)();
        if current.as_ref().is_some_and(|staple| staple.next_update <= now) {
            current = None;
            (certificate.staple)(None);
            (environment.warn)(&failure_text(&certificate, "the last response has expired"));
        }
        // A pause longer than the maximum dates from before the clock was set back.
        let pause_end = retry_at.filter(|at| *at <= now + environment.retry_max);
        let due = current.as_ref().map(renew_at).into_iter().chain(pause_end).max();
        if due.is_none_or(|due| due <= now) {
            match fetch(&state, &certificate, &id).await {
                Ok(staple) => {
                    if current.is_none() {
                        (environment.info)(&format!(
                            "OCSP: {}: a response is presented with it",
                            certificate.name
                        ));
                    }
                    (certificate.staple)(Some(staple.der.clone()));
                    state.fetched.lock().await.insert(key.clone(), staple.clone());
                    (current, failures, logged) = (Some(staple), 0, None);
                }
                Err(error) => {
                    failures = failures.saturating_add(1);
                    if logged.as_ref() != Some(&error) {
                        (environment.warn)(&failure_text(&certificate, &error.to_string()));
                        logged = Some(error);
                    }
                }
            }
            // Also after a success, so that a responder whose responses are always past half of their
            // lifetime is not queried in a tight loop.
            let pause = environment.retry_first.saturating_mul(1 << failures.saturating_sub(1).min(12));
            retry_at = Some((environment.now)() + pause.min(environment.retry_max));
            continue;
        }
        let wait = due.and_then(|due| due.duration_since(now).ok()).unwrap_or_default();
        tokio::time::sleep(wait.min(environment.check_interval)).await;
    }
}

/// Returns a log line about a certificate without a new response.
fn failure_text(certificate: &StapledCertificate, text: &str) -> String {
    let consequence = if certificate.is_required {
        "; the certificate demands one (must-staple), and clients refuse it without"
    } else {
        ""
    };
    format!("OCSP: {}: no new response from {}: {text}{consequence}", certificate.name, certificate.responder)
}

async fn fetch(
    state: &StaplerState,
    certificate: &StapledCertificate,
    id: &CertificateId,
) -> Result<Staple, Failure> {
    let _permit = state.permits.acquire().await;
    let response = state
        .client
        .post(&certificate.responder, "application/ocsp-request", id.request())
        .await
        .map_err(Failure::new)?;
    id.validate(&response, (state.environment.now)())
}
