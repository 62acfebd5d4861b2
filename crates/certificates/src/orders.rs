//! Orders of each name: their times, the directory, and the stored results.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use cluster::LeaseOutcome;
use failure::Failure;
use tokio::sync::{Notify, Semaphore};

use crate::certificate::KeyedChain;
use crate::directives::AcmeDirectory;
use crate::on_demand::Confirmer;
use crate::order::{AccountLocks, Options, OrderContext, OrderFailure};
use crate::schedule::{self, FailureKind, Intervals};
use crate::shared_files::FolderFiles;
use crate::sink::{CertificateSink, HttpChallenges};
use crate::state_folder::{CertificateRecord, StateFolder};
use crate::status::CertificateStatus;
use crate::subject::Subject;
use web_client::WebClient;

/// Maximum number of concurrent orders.
const ORDERS_MAX: usize = 4;
/// Timeout of the `ask` URL.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);

/// Environment of the renewer.
#[derive(Clone)]
pub struct RenewerEnvironment {
    /// Clock.
    pub now: Arc<dyn Fn() -> SystemTime + Send + Sync>,
    /// Random numbers, used only for jitter.
    pub random: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// Durations of waits and timeouts.
    pub intervals: Intervals,
    /// Name of this machine, used in the name of its local authority.
    pub host: String,
}

/// State shared by the control thread and its handle.
pub(crate) struct RenewerState {
    pub(crate) environment: RenewerEnvironment,
    pub(crate) sink: Arc<dyn CertificateSink>,
    pub(crate) challenges: HttpChallenges,
    statuses: Mutex<BTreeMap<Subject, CertificateStatus>>,
}

impl RenewerState {
    pub(crate) fn new(
        environment: RenewerEnvironment,
        sink: Arc<dyn CertificateSink>,
        challenges: HttpChallenges,
    ) -> RenewerState {
        RenewerState { environment, sink, challenges, statuses: Mutex::default() }
    }

    pub(crate) fn now(&self) -> SystemTime {
        (self.environment.now)()
    }

    pub(crate) fn random(&self) -> u64 {
        (self.environment.random)()
    }

    pub(crate) fn statuses(&self) -> MutexGuard<'_, BTreeMap<Subject, CertificateStatus>> {
        self.statuses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_status(&self, subject: &Subject, status: CertificateStatus) {
        self.statuses().insert(subject.clone(), status);
    }

    /// Records the reason why a name has no certificate.
    pub(crate) fn set_error(&self, subject: &Subject, error: impl fmt::Display) {
        let now = self.now();
        let mut statuses = self.statuses();
        let status = statuses.entry(subject.clone()).or_insert_with(|| CertificateStatus::unknown(subject));
        status.last_error = Some((now, error.to_string()));
    }
}

/// The stored certificate of a name, as last read.
#[derive(Default)]
pub(crate) struct LoadedCertificate {
    pub(crate) chain: Option<KeyedChain>,
    /// Modification time of the file.
    pub(crate) modified: Option<SystemTime>,
    /// Time at which the certificate was received, as far as the file tells.
    obtained_at: Option<SystemTime>,
    /// Time before which nothing is ordered, because the state folder cannot store the result.
    suspended_until: Option<SystemTime>,
}

impl LoadedCertificate {
    /// Reads and installs the certificate if its file has changed; returns the record, with a renewal time
    /// for the current certificate.
    pub(crate) fn load(
        &mut self,
        state: &RenewerState,
        store: &StateFolder,
        subject: &Subject,
    ) -> CertificateRecord {
        let written = store.certificate_time(subject);
        if written != self.modified {
            self.modified = written;
            self.obtained_at = written;
            let read = store.certificate(subject).map_err(Failure::new);
            let read = read.and_then(|found| found.map(|(pem, _)| KeyedChain::parse(pem)).transpose());
            let installed = read.and_then(|chain| {
                if let Some(chain) = &chain {
                    state.sink.install(&subject.to_string(), &chain.pem)?;
                }
                Ok(chain)
            });
            self.chain = installed.unwrap_or_else(|text| {
                state
                    .sink
                    .error(&format!("certificates: {subject}: the stored certificate is not used: {text}"));
                None
            });
        }
        let mut record = store.record(subject);
        if let Some(info) = self.chain.as_ref().map(|chain| &chain.info) {
            if record.serial.as_ref() != Some(&info.serial) {
                record.serial = Some(info.serial.clone());
                (record.obtained_at, record.renew_at) = (None, None);
            }
            let obtained_at = *record.obtained_at.get_or_insert(self.obtained_at.unwrap_or(info.not_before));
            if record.renew_at.is_none() {
                record.window = None;
                let validity = (info.not_before, info.not_after);
                record.renew_at = Some(schedule::renew_at_since(obtained_at, validity, state.random()));
                write_record(state, store, subject, &record);
            }
        } else {
            (record.serial, record.obtained_at) = (None, None);
            (record.renew_at, record.window) = (None, None);
        }
        let info = self.chain.as_ref().map(|chain| chain.info.clone());
        state.set_status(subject, CertificateStatus::of_record(subject, info, &record));
        record
    }
}

/// Opens the state folder, and exchanges its files with the other servers of the set.
pub(crate) fn open_folder(options: &Options) -> io::Result<StateFolder> {
    let folder = StateFolder::open(&options.state_folder)?.of_cluster(options.cluster.clone());
    if let Some(cluster) = &options.cluster {
        cluster.share_files(Arc::new(FolderFiles::new(&folder)));
    }
    Ok(folder)
}

fn write_record(state: &RenewerState, store: &StateFolder, subject: &Subject, record: &CertificateRecord) {
    if let Err(error) = store.write_record(subject, record) {
        state.sink.error(&format!("certificates: {subject}: the state folder: {error}"));
    }
}

/// Context shared by orders while the options stay the same.
pub(crate) struct Orders {
    pub(crate) state: Arc<RenewerState>,
    options: Options,
    pub(crate) store: StateFolder,
    client: WebClient,
    accounts: AccountLocks,
    /// Client of the `ask` URL, which confirms names that are not configured.
    pub(crate) confirmer: Option<Confirmer>,
    /// Limits the number of concurrent orders.
    permits: Semaphore,
}

impl Orders {
    /// Opens the state folder and creates the client.
    ///
    /// # Errors
    /// Names the one that failed, with the reason.
    pub(crate) fn open(state: &Arc<RenewerState>, options: &Options) -> Result<Orders, Failure> {
        let store = open_folder(options).map_err(Failure::new)?;
        let client = WebClient::new(&options.roots_pem, state.environment.intervals.request_max)
            .map_err(Failure::new)?;
        let permits = Semaphore::new(ORDERS_MAX);
        // A separate client, so that its `Retry-After` is not mistaken for that of a directory.
        let ask_max = ASK_TIMEOUT.min(state.environment.intervals.request_max);
        let confirmer = options
            .ask
            .as_ref()
            .map(|url| WebClient::new(&options.roots_pem, ask_max).map(|client| Confirmer::new(url, client)));
        let confirmer = confirmer.transpose().map_err(Failure::new)?;
        let accounts = options.directories.iter().map(|one| (one.url.clone(), Default::default())).collect();
        let state = state.clone();
        let options = options.clone();
        Ok(Orders { state, options, store, client, accounts, confirmer, permits })
    }

    /// Waits, at most until the next check of the clock and the folder; returns whether a renewal was
    /// requested.
    pub(crate) async fn wait(&self, wait: Duration, renew: &Notify) -> bool {
        tokio::select! {
            () = renew.notified() => true,
            () = tokio::time::sleep(wait.min(self.state.environment.intervals.check_interval)) => false,
        }
    }

    fn context(&self) -> OrderContext<'_> {
        OrderContext {
            options: &self.options,
            intervals: &self.state.environment.intervals,
            client: &self.client,
            accounts: &self.accounts,
            store: &self.store,
            sink: &*self.state.sink,
            challenges: &self.state.challenges,
            is_shared: self.store.is_shared(),
            now: &*self.state.environment.now,
        }
    }

    fn directory(&self, url: &str) -> Option<&AcmeDirectory> {
        self.options.directories.iter().find(|directory| directory.url == url)
    }

    /// Returns the time of the next order; `None` for immediately.
    pub(crate) fn next_order_at(
        &self,
        record: &CertificateRecord,
        loaded: &LoadedCertificate,
    ) -> Option<SystemTime> {
        // A certificate from a directory that is no longer configured, such as one for tests, is replaced.
        let is_foreign = record.directory.as_deref().is_some_and(|url| self.directory(url).is_none());
        let renew_at = record.renew_at.filter(|_| loaded.chain.is_some() && !is_foreign);
        [renew_at, record.retry_at, loaded.suspended_until].into_iter().flatten().max()
    }

    /// Orders a certificate from the directories in turn, unless another server is doing so.
    pub(crate) async fn attempt(
        &self,
        subject: &Subject,
        loaded: &mut LoadedCertificate,
        blocked: &mut HashMap<String, SystemTime>,
        is_asked: bool,
    ) {
        let state = &self.state;
        let lock = match self.store.lock(subject) {
            Ok(Some(lock)) => lock,
            Ok(None) => return,
            Err(error) => {
                state.set_error(subject, error.to_string());
                return state.sink.error(&format!("certificates: {subject}: the state folder: {error}"));
            }
        };
        let lease = match &self.options.cluster {
            None => None,
            Some(cluster) => match cluster.lease(&subject.file_stem()).await {
                LeaseOutcome::Held(lease) => {
                    cluster.exchange().await;
                    Some(lease)
                }
                LeaseOutcome::Elsewhere => return,
                // The other servers cannot be asked. A renewal waits for the store as long as it can.
                LeaseOutcome::Away if !is_asked && self.may_wait(loaded) => return,
                LeaseOutcome::Away => None,
            },
        };
        // Another server may have obtained it meanwhile.
        let mut record = loaded.load(state, &self.store, subject);
        let is_due = self.next_order_at(&record, loaded).is_none_or(|due| due <= state.now());
        if !is_due && !is_asked {
            return;
        }
        if let Err(error) = self.store.write_record(subject, &record) {
            // The result could not be stored and would be ordered again and again.
            return self.suspend(subject, loaded, &error);
        }
        let _permit = self.permits.acquire().await;
        let mut failures = Vec::new();
        let context = self.context();
        let kind = self.options.challenge(subject, record.failures, context.is_shared);
        let directories = if kind.is_ok() { self.options.directories.as_slice() } else { &[] };
        for directory in directories {
            if blocked.get(&directory.url).is_some_and(|until| *until > state.now()) {
                continue;
            }
            let Ok(kind) = kind else { continue };
            let replaces =
                loaded.chain.as_ref().filter(|_| record.directory.as_ref() == Some(&directory.url));
            // Before the one that is stored is replaced.
            let obtained = context.obtain(directory, subject, kind, replaces).await.and_then(|new| {
                let installed = state.sink.install(&subject.to_string(), &new.pem);
                let failed =
                    |text| OrderFailure::refused(format!("the issued certificate cannot be served: {text}"));
                installed.map(|()| new).map_err(failed)
            });
            match obtained {
                Ok(new) => return self.record_success(subject, loaded, directory, new),
                Err(failure) => {
                    state.sink.warn(&format!("certificates: {subject}: {}: {}", directory.url, failure.text));
                    if let Some(wait) = failure.wait {
                        blocked.insert(directory.url.clone(), state.now() + wait);
                    }
                    failures.push((directory, failure));
                }
            }
        }
        if let Err(text) = kind {
            state.sink.error(&format!("certificates: {subject}: {text}"));
            failures.extend(self.options.directories.first().map(|one| (one, OrderFailure::refused(text))));
        }
        self.record_failure(subject, loaded, &mut record, &failures, blocked);
        drop((lease, lock));
    }

    /// Whether the certificate is still valid for more than a sixth of its lifetime.
    fn may_wait(&self, loaded: &LoadedCertificate) -> bool {
        loaded.chain.as_ref().is_some_and(|chain| {
            let lifetime = chain.info.not_after.duration_since(chain.info.not_before).unwrap_or_default();
            self.state.now() + lifetime / 6 < chain.info.not_after
        })
    }

    /// Suspends orders of the name, because the state folder cannot be written.
    fn suspend(&self, subject: &Subject, loaded: &mut LoadedCertificate, error: &io::Error) {
        let state = &self.state;
        let text = format!("the state folder {}: {error}", self.store.path().display());
        loaded.suspended_until = Some(state.now() + state.environment.intervals.retry_max);
        state.set_error(subject, &text);
        state.sink.error(&format!("certificates: {subject}: {text}"));
    }

    fn record_success(
        &self,
        subject: &Subject,
        loaded: &mut LoadedCertificate,
        directory: &AcmeDirectory,
        new: KeyedChain,
    ) {
        let state = &self.state;
        if let Err(error) = self.store.write_certificate(subject, &new.pem) {
            self.suspend(subject, loaded, &error);
            (loaded.chain, loaded.obtained_at) = (Some(new), Some(state.now()));
            return;
        }
        let record = CertificateRecord {
            directory: Some(directory.url.clone()),
            serial: Some(new.info.serial.clone()),
            obtained_at: Some(state.now()),
            ..CertificateRecord::default()
        };
        write_record(state, &self.store, subject, &record);
        // The certificate is in use already.
        loaded.modified = self.store.certificate_time(subject);
        (loaded.chain, loaded.obtained_at) = (Some(new), record.obtained_at);
        loaded.load(state, &self.store, subject);
        let until = loaded.chain.as_ref().map(|chain| time::OffsetDateTime::from(chain.info.not_after));
        let until = until.map_or_else(String::new, |until| format!(", valid until {until}"));
        state.sink.info(&format!("certificates: {subject}: obtained from {}{until}", directory.url));
    }

    fn record_failure(
        &self,
        subject: &Subject,
        loaded: &LoadedCertificate,
        record: &mut CertificateRecord,
        failures: &[(&AcmeDirectory, OrderFailure)],
        blocked: &HashMap<String, SystemTime>,
    ) {
        let (state, now) = (&self.state, self.state.now());
        let is_refused = failures.iter().any(|(_, failure)| failure.kind == FailureKind::Refused);
        let kind = if is_refused { FailureKind::Refused } else { FailureKind::Unreachable };
        record.failures = record.failures.saturating_add(1);
        let pause = schedule::pause(&state.environment.intervals, kind, record.failures, state.random());
        // Every directory may have requested a wait.
        let open =
            self.options.directories.iter().map(|one| blocked.get(&one.url).copied().unwrap_or(now)).min();
        record.retry_at = Some((now + pause).max(open.unwrap_or(now)));
        if !failures.is_empty() {
            let texts: Vec<String> = failures
                .iter()
                .map(|(directory, failure)| format!("{}: {}", directory.url, failure.text))
                .collect();
            record.last_error = Some((now, texts.join("; ")));
        }
        write_record(state, &self.store, subject, record);
        let info = loaded.chain.as_ref().map(|chain| chain.info.clone());
        state.set_status(subject, CertificateStatus::of_record(subject, info, record));
    }

    /// Queries the authority for the renewal window (RFC 9773); returns the time until the next query.
    pub(crate) async fn query_window(
        &self,
        subject: &Subject,
        loaded: &LoadedCertificate,
        mut record: CertificateRecord,
    ) -> Duration {
        let (soon, late) = self.state.environment.intervals.renewal_info.clone().into_inner();
        let Some(chain) = &loaded.chain else { return soon };
        let Some(directory) = record.directory.as_deref().and_then(|url| self.directory(url)) else {
            return late;
        };
        match self.context().renewal_info(directory, chain).await {
            Ok(Some((window, again))) => {
                if record.window != Some(window) {
                    record.window = Some(window);
                    let validity = (chain.info.not_before, chain.info.not_after);
                    let obtained_at = record.obtained_at.unwrap_or(validity.0);
                    let random = self.state.random();
                    record.renew_at = Some(schedule::renew_at_in(window, obtained_at, validity, random));
                    write_record(&self.state, &self.store, subject, &record);
                }
                again.clamp(soon, late)
            }
            Ok(None) => late,
            Err(failure) => {
                let text = format!("certificates: {subject}: the renewal window: {}", failure.text);
                self.state.sink.info(&text);
                soon
            }
        }
    }
}
