//! OCSP responses that the server presents with its certificates (stapling, RFC 6066 section 8): fetched from the responder
//! that a certificate names, and renewed before they expire.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::{AbortHandle, LocalSet};

use crate::client::WebClient;
use crate::ocsp::{CertificateId, Staple};

/// Requests under way at a time.
const REQUESTS_MAX: usize = 4;

/// What stapling takes from its surroundings.
#[derive(Clone)]
pub struct StapleEnvironment {
    /// The clock.
    pub now: Arc<dyn Fn() -> SystemTime + Send + Sync>,
    /// The longest time of a request to a responder.
    pub request_max: Duration,
    /// The pause after a request that failed; it doubles up to `retry_max`.
    pub retry_first: Duration,
    /// The longest such pause.
    pub retry_max: Duration,
    /// How often the clock is looked at.
    pub look: Duration,
    /// Logs what failed and is tried again.
    pub warn: Arc<dyn Fn(&str) + Send + Sync>,
    /// Logs what happened.
    pub info: Arc<dyn Fn(&str) + Send + Sync>,
}

/// A certificate that names a responder, and who presents it.
pub struct StapledCertificate {
    /// What it is called in the log: its file, or its name.
    pub name: String,
    /// Its chain in DER: its issuer's certificate is the second.
    pub chain: Vec<Vec<u8>>,
    /// The responder's URL.
    pub responder: String,
    /// Whether clients refuse it without a response (must-staple, RFC 7633).
    pub is_required: bool,
    /// Presents it with this response, or with none, from now on.
    pub staple: Box<dyn Fn(Option<Vec<u8>>) + Send>,
}

/// Whose certificates are replaced together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum StapleOwner {
    /// Those of the configuration's files.
    Files,
    /// The certificate that the server has obtained for a name.
    Name(String),
}

type WatchCommand = (StapleOwner, Vec<StapledCertificate>);

/// The handle of the thread, which ends when this is dropped.
pub struct OcspStapler {
    watches: Option<UnboundedSender<WatchCommand>>,
    thread: Option<JoinHandle<()>>,
}

impl OcspStapler {
    /// Starts the thread.
    ///
    /// # Errors
    /// Where there can be no thread, or TLS cannot be set up.
    pub fn start(environment: StapleEnvironment) -> io::Result<OcspStapler> {
        let (watches, received) = unbounded_channel();
        let client = WebClient::new(b"", environment.request_max).map_err(io::Error::other)?;
        let thread = std::thread::Builder::new().name("ocsp".into()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => {
                    runtime.block_on(LocalSet::new().run_until(run(environment, client, received)));
                    // A look-up of a name may take long, and nobody waits for it.
                    runtime.shutdown_background();
                }
                Err(error) => (environment.warn)(&format!("OCSP: no response is fetched: {error}")),
            }
        })?;
        Ok(OcspStapler { watches: Some(watches), thread: Some(thread) })
    }

    /// Keeps responses for these certificates from now on, and no others of this owner.
    pub fn watch(&self, owner: StapleOwner, certificates: Vec<StapledCertificate>) {
        // A thread that has ended has logged why.
        let _ = self.watches.as_ref().map(|watches| watches.send((owner, certificates)));
    }
}

impl Drop for OcspStapler {
    fn drop(&mut self) {
        self.watches = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// What the tasks share.
struct StaplerState {
    environment: StapleEnvironment,
    client: WebClient,
    permits: Semaphore,
    /// Responses by certificate: a certificate that is read again keeps its response.
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
            (key, tokio::task::spawn_local(keep(state.clone(), certificate)).abort_handle())
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

/// When a response is replaced: half-way to its end.
fn renew_at(staple: &Staple) -> SystemTime {
    let lifetime = staple.next_update.duration_since(staple.this_update).unwrap_or_default();
    staple.this_update + lifetime / 2
}

/// Keeps a response for a certificate.
async fn keep(state: Arc<StaplerState>, certificate: StapledCertificate) {
    let environment = &state.environment;
    let key = certificate.chain.first().cloned().unwrap_or_default();
    let id = match certificate.chain.as_slice() {
        [own, issuer, ..] => CertificateId::new(own, issuer),
        _ => Err("the chain lacks the certificate of its issuer: append it to the file".to_owned()),
    };
    let id = match id {
        Ok(id) => id,
        Err(text) => return (environment.warn)(&unstapled(&certificate, &text)),
    };
    let mut current = state.fetched.lock().await.get(&key).cloned();
    if let Some(staple) = &current {
        (certificate.staple)(Some(staple.der.clone()));
    }
    let (mut failures, mut retry_at, mut logged) = (0u32, None, None);
    loop {
        let now = (environment.now)();
        if current.as_ref().is_some_and(|staple| staple.next_update <= now) {
            current = None;
            (certificate.staple)(None);
            (environment.warn)(&unstapled(&certificate, "the last response has expired"));
        }
        // A pause that is longer than any was begun before the clock was set back.
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
                Err(text) => {
                    failures = failures.saturating_add(1);
                    if logged.as_ref() != Some(&text) {
                        (environment.warn)(&unstapled(&certificate, &text));
                        logged = Some(text);
                    }
                }
            }
            // After a success too: a responder whose responses are always half over is not asked without end.
            let pause = environment.retry_first.saturating_mul(1 << failures.saturating_sub(1).min(12));
            retry_at = Some((environment.now)() + pause.min(environment.retry_max));
            continue;
        }
        let wait = due.and_then(|due| due.duration_since(now).ok()).unwrap_or_default();
        tokio::time::sleep(wait.min(environment.look)).await;
    }
}

/// A line of the log about a certificate without a new response.
fn unstapled(certificate: &StapledCertificate, text: &str) -> String {
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
) -> Result<Staple, String> {
    let _permit = state.permits.acquire().await;
    let response =
        state.client.post(&certificate.responder, "application/ocsp-request", id.request()).await?;
    id.staple(&response, (state.environment.now)())
}
