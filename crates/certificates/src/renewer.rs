//! The control thread, which obtains and renews the certificate of each name.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::Notify;
use tokio::sync::mpsc::{Receiver, Sender, UnboundedReceiver, UnboundedSender, channel, unbounded_channel};
use tokio::task::{AbortHandle, LocalSet};

use crate::local::LocalAuthority;
use crate::on_demand::{AskAnswer, NAMES_MAX, OnDemandNames, allows_on_demand};
use crate::order::Options;
use crate::orders::{LoadedCertificate, Orders, RenewerEnvironment, RenewerState, open_folder};
use crate::schedule;
use crate::sink::{CertificateSink, HttpChallenges};
use crate::state_folder::StateFolder;
use crate::status::CertificateStatus;
use crate::subject::{Issuer, Subject};

/// Capacity of the queue of reported names without a certificate.
const MISSING_MAX: usize = 64;
/// Minimum interval between two log lines about names that get no certificate.
const LOG_INTERVAL_MIN: Duration = Duration::from_secs(1);

enum RenewerCommand {
    Serve(Box<Options>, Vec<Subject>),
    Renew(Subject),
}

/// Handle of the control thread, which ends when this is dropped.
pub struct CertificateRenewer {
    commands: Option<UnboundedSender<RenewerCommand>>,
    missing: MissingNames,
    state: Arc<RenewerState>,
    thread: Option<JoinHandle<()>>,
}

impl CertificateRenewer {
    /// Installs the stored certificates, and starts the thread that obtains missing ones and renews all of
    /// them. Failures are logged and retried; they never prevent the server from starting.
    ///
    /// # Errors
    /// Fails if no thread can be created.
    pub fn start(
        options: Options,
        subjects: Vec<Subject>,
        environment: RenewerEnvironment,
        sink: Arc<dyn CertificateSink>,
        challenges: HttpChallenges,
    ) -> io::Result<CertificateRenewer> {
        let state = Arc::new(RenewerState::new(environment, sink, challenges));
        // Before the first connection, so that clients do not notice a restart.
        if let Ok(store) = open_folder(&options) {
            // Certificates that the other servers have need not be obtained.
            options.cluster.iter().for_each(|cluster| _ = cluster.exchange_blocking());
            let public = subjects.iter().filter(|subject| subject.issuer() == Issuer::Public);
            public.for_each(|subject| _ = LoadedCertificate::default().load(&state, &store, subject));
            if options.ask.is_some() {
                let demanded = stored_on_demand_names(&store);
                demanded
                    .iter()
                    .for_each(|subject| _ = LoadedCertificate::default().load(&state, &store, subject));
            }
            serve_private(&state, &store, &subjects);
        }
        let (commands, received) = unbounded_channel();
        let (missing, reported) = channel(MISSING_MAX);
        let theirs = state.clone();
        let thread = std::thread::Builder::new().name("certificates".into()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => {
                    runtime.block_on(LocalSet::new().run_until(run(theirs, received, reported)));
                    // A name lookup may take long, and its result is not needed.
                    runtime.shutdown_background();
                }
                Err(error) => theirs.sink.error(&format!("certificates are not renewed: {error}")),
            }
        })?;
        let missing = MissingNames(missing);
        let manager = CertificateRenewer { commands: Some(commands), missing, state, thread: Some(thread) };
        manager.serve(options, subjects);
        Ok(manager)
    }

    /// Replaces the set of names with certificates. Names that remain keep theirs.
    pub fn serve(&self, options: Options, subjects: Vec<Subject>) {
        self.send(RenewerCommand::Serve(Box::new(options), subjects));
    }

    /// Renews the certificate of a name immediately; returns whether the name is known.
    pub fn renew(&self, subject: &Subject) -> bool {
        let is_there = self.state.statuses().contains_key(subject);
        if is_there {
            self.send(RenewerCommand::Renew(subject.clone()));
        }
        is_there
    }

    /// Returns the handle for reporting requested names without a certificate.
    pub fn missing_names(&self) -> MissingNames {
        self.missing.clone()
    }

    /// Returns the status of each certificate, sorted by name.
    pub fn statuses(&self) -> Vec<CertificateStatus> {
        self.state.statuses().values().cloned().collect()
    }

    fn send(&self, command: RenewerCommand) {
        // If the thread has ended, it has logged the reason.
        let _ = self.commands.as_ref().map(|commands| commands.send(command));
    }
}

impl Drop for CertificateRenewer {
    fn drop(&mut self) {
        self.commands = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Handle for serving threads to report names without a certificate. All clones share one queue.
#[derive(Clone)]
pub struct MissingNames(Sender<(String, Option<IpAddr>)>);

impl MissingNames {
    /// Reports that a client with this address requested a name without a certificate. Never blocks; if the
    /// queue is full, the report is dropped.
    pub fn report(&self, name: &str, client: Option<IpAddr>) {
        // The queue is full: the report is dropped.
        let _ = self.0.try_send((name.to_owned(), client));
    }
}

/// A name whose certificate is maintained by a task.
struct MaintainedName {
    task: AbortHandle,
    renew: Rc<Notify>,
}

/// Event for the control thread.
enum RenewerEvent {
    Command(RenewerCommand),
    /// A client requested a name without a certificate.
    Missing(String, Option<IpAddr>),
    /// A query of the `ask` URL was completed, possibly without an answer.
    Answered(Subject, AskAnswer, String),
    /// Time to try the state folder again.
    Retry,
}

/// Runs the tasks until the handle is dropped.
async fn run(
    state: Arc<RenewerState>,
    mut commands: UnboundedReceiver<RenewerCommand>,
    mut missing: Receiver<(String, Option<IpAddr>)>,
) {
    let (answers, mut answered) = unbounded_channel();
    let mut keeper = CertificateTasks {
        state,
        maintained: HashMap::new(),
        served: None,
        configured: BTreeSet::new(),
        demand: OnDemandNames::default(),
        logged: None,
        answers,
    };
    loop {
        let again = tokio::time::sleep(keeper.state.environment.intervals.check_interval);
        let event = tokio::select! {
            // Missing names can be handled only once it is known which names are served.
            biased;
            command = commands.recv() => match command {
                Some(command) => RenewerEvent::Command(command),
                None => break,
            },
            Some((subject, answer, text)) = answered.recv() => RenewerEvent::Answered(subject, answer, text),
            Some((name, client)) = missing.recv() => RenewerEvent::Missing(name, client),
            () = again, if keeper.is_waiting() => RenewerEvent::Retry,
        };
        match event {
            RenewerEvent::Command(RenewerCommand::Renew(subject)) => {
                keeper.maintained.get(&subject).into_iter().for_each(|kept| kept.renew.notify_one());
            }
            RenewerEvent::Command(RenewerCommand::Serve(options, subjects)) => {
                keeper.serve(options, subjects)
            }
            RenewerEvent::Missing(name, client) => keeper.on_missing(&name, client),
            RenewerEvent::Answered(subject, answer, text) => keeper.on_answer(&subject, answer, &text),
            RenewerEvent::Retry => keeper.start_missing_tasks(),
        }
    }
}

/// Tasks of the control thread, and the names that they maintain.
struct CertificateTasks {
    state: Arc<RenewerState>,
    maintained: HashMap<Subject, MaintainedName>,
    served: Option<(Box<Options>, Option<Rc<Orders>>)>,
    /// Names from the configuration.
    configured: BTreeSet<Subject>,
    /// Names requested by clients.
    demand: OnDemandNames,
    /// Time at which an answer was last logged.
    logged: Option<Instant>,
    answers: UnboundedSender<(Subject, AskAnswer, String)>,
}

impl CertificateTasks {
    /// Whether the state folder could not be opened yet.
    fn is_waiting(&self) -> bool {
        self.served.as_ref().is_some_and(|(_, orders)| orders.is_none())
    }

    fn serve(&mut self, options: Box<Options>, subjects: Vec<Subject>) {
        let ask = |options: &Options| options.ask.clone();
        let is_same = self.served.as_ref().is_some_and(|(old, orders)| *old == options && orders.is_some());
        let old: Vec<Subject> = self.configured.iter().chain(self.demand.names()).cloned().collect();
        if self.served.as_ref().is_some_and(|(before, _)| ask(before) != ask(&options)) {
            self.demand.clear();
        }
        if !is_same {
            self.maintained.drain().for_each(|(_, kept)| kept.task.abort());
            self.served = Some((options, None));
        }
        self.configured = subjects.into_iter().collect();
        let new: BTreeSet<Subject> = self.configured.iter().chain(self.demand.names()).cloned().collect();
        remove_unserved(&self.state, &old, &new);
        self.start_missing_tasks();
    }

    /// Starts the tasks that are not running, if the state folder is available.
    fn start_missing_tasks(&mut self) {
        let Some((options, orders)) = &mut self.served else { return };
        let configured: Vec<Subject> = self.configured.iter().cloned().collect();
        if orders.is_none() {
            *orders = open(&self.state, options, &configured).map(Rc::new);
        }
        let Some(orders) = orders.clone() else { return };
        serve_private(&self.state, &orders.store, &configured);
        if orders.confirmer.is_some() {
            // Names confirmed before a restart are served immediately, and confirmed again at their renewal.
            let stored = stored_on_demand_names(&orders.store);
            let stored = stored.iter().filter(|subject| !self.configured.contains(subject));
            stored.for_each(|subject| _ = self.demand.confirm(subject));
        }
        self.maintained.retain(|subject, kept| {
            let stays = *subject == SHARED_TOKENS
                || self.configured.contains(subject)
                || self.demand.contains(subject);
            if !stays {
                kept.task.abort();
            }
            stays
        });
        let demanded = self.demand.names().filter(|subject| !self.configured.contains(subject)).cloned();
        let usable = configured.into_iter().filter(|subject| subject.issuer() != Issuer::Unavailable);
        let all: Vec<(Subject, bool)> =
            usable.map(|subject| (subject, false)).chain(demanded.map(|subject| (subject, true))).collect();
        for (subject, is_demanded) in all {
            self.start_task(&orders, &subject, is_demanded);
        }
        self.maintained.entry(SHARED_TOKENS).or_insert_with(|| MaintainedName {
            task: tokio::task::spawn_local(share_tokens(orders)).abort_handle(),
            renew: Rc::default(),
        });
    }

    /// Starts the task for a name that has none.
    fn start_task(&mut self, orders: &Rc<Orders>, subject: &Subject, is_demanded: bool) {
        if self.maintained.contains_key(subject) {
            return;
        }
        let renew = Rc::new(Notify::new());
        let theirs = orders.clone();
        let notified = renew.clone();
        let name = subject.clone();
        let answers = is_demanded.then(|| self.answers.clone());
        let task = match subject.issuer() {
            Issuer::Local => tokio::task::spawn_local(keep_private(theirs, name, notified)),
            _ => tokio::task::spawn_local(keep_public(theirs, name, notified, answers)),
        };
        self.maintained.insert(subject.clone(), MaintainedName { task: task.abort_handle(), renew });
    }

    /// Queries whether a name that a client requested is to have a certificate.
    fn on_missing(&mut self, name: &str, client: Option<IpAddr>) {
        let Some((_, Some(orders))) = &self.served else { return };
        let Ok(subject) = Subject::parse(name) else { return };
        let is_to_be_asked = orders.confirmer.is_some()
            && !self.configured.contains(&subject)
            && self.demand.begin_query(&subject, client, Instant::now());
        if !is_to_be_asked {
            return;
        }
        let orders = orders.clone();
        let answers = self.answers.clone();
        tokio::task::spawn_local(async move {
            let Some(confirmer) = &orders.confirmer else { return };
            let (answer, text) = confirmer.query(&subject).await;
            // The receiver is gone when the thread ends.
            let _ = answers.send((subject, answer, text));
        });
    }

    fn on_answer(&mut self, subject: &Subject, answer: AskAnswer, text: &str) {
        let now = Instant::now();
        let is_new = self.demand.record_answer(subject, answer, now);
        let line = || format!("certificates: {subject}: {text}");
        // Rate-limited, because clients choose the names.
        let is_due = self.logged.is_none_or(|at| now.duration_since(at) >= LOG_INTERVAL_MIN);
        match answer {
            AskAnswer::Yes => self.state.sink.info(&line()),
            AskAnswer::No if is_due => self.state.sink.info(&line()),
            AskAnswer::Unanswered if is_due => self.state.sink.warn(&line()),
            _ => {}
        }
        if is_due && answer != AskAnswer::Yes {
            self.logged = Some(now);
        }
        if answer == AskAnswer::No && !self.configured.contains(subject) {
            self.maintained.remove(subject).into_iter().for_each(|kept| kept.task.abort());
            remove_unserved(&self.state, std::slice::from_ref(subject), &BTreeSet::new());
        }
        let Some((_, Some(orders))) = &self.served else { return };
        if is_new && orders.confirmer.is_some() && !self.configured.contains(subject) {
            let orders = orders.clone();
            let status = CertificateStatus::unknown(subject);
            self.state.statuses().entry(subject.clone()).or_insert(status);
            self.start_task(&orders, subject, true);
        }
    }
}

/// Key of the task that reads the tokens of other servers; no real subject is empty.
const SHARED_TOKENS: Subject = Subject::Dns(String::new());

/// Returns the names with a stored certificate that clients may have requested.
fn stored_on_demand_names(store: &StateFolder) -> Vec<Subject> {
    let mut stored = store.subjects().unwrap_or_default();
    stored.retain(|subject| allows_on_demand(subject) && store.certificate_time(subject).is_some());
    stored.truncate(NAMES_MAX);
    stored
}

/// Removes certificates that are no longer served, and adds the statuses of new ones.
fn remove_unserved(state: &RenewerState, old: &[Subject], new: &BTreeSet<Subject>) {
    let gone = old.iter().filter(|subject| !new.contains(subject));
    gone.for_each(|subject| {
        state.sink.remove(&subject.to_string());
        state.statuses().remove(subject);
    });
    for subject in new {
        state.statuses().entry(subject.clone()).or_insert_with(|| CertificateStatus::unknown(subject));
        if subject.issuer() == Issuer::Unavailable && !old.contains(subject) {
            let text = "no authority issues for this name: give its site a certificate, or a name below `internal`, \
                        `local`, `test` or `localhost`";
            state.set_error(subject, text);
            state.sink.warn(&format!("certificates: {subject}: {text}"));
        }
    }
}

/// Opens the state folder and the client; a failure is recorded in the status of every name.
fn open(state: &Arc<RenewerState>, options: &Options, subjects: &[Subject]) -> Option<Orders> {
    match Orders::open(state, options) {
        Ok(orders) => Some(orders),
        Err(failure) => {
            let is_new = |subject: &Subject| {
                let statuses = state.statuses();
                let error = statuses.get(subject).and_then(|status| status.last_error.as_ref());
                error.is_none_or(|(_, known)| *known != failure.to_string())
            };
            if subjects.iter().any(is_new) {
                state.sink.error(&format!("no certificate can be obtained: {failure}"));
            }
            subjects.iter().for_each(|subject| state.set_error(subject, &failure));
            None
        }
    }
}

/// Issues certificates of the local authority for private names that have none.
fn serve_private(state: &RenewerState, store: &StateFolder, subjects: &[Subject]) {
    let private = subjects.iter().filter(|subject| subject.issuer() == Issuer::Local);
    let missing =
        |subject: &&Subject| state.statuses().get(*subject).is_none_or(|status| status.info.is_none());
    private.filter(missing).for_each(|subject| _ = issue(state, store, subject));
}

/// Issues a certificate of the local authority; returns its renewal time.
fn issue(state: &RenewerState, store: &StateFolder, subject: &Subject) -> Option<SystemTime> {
    let now = state.now();
    let issued = LocalAuthority::open(store, &state.environment.host, now)
        .and_then(|authority| authority.issue(subject, now))
        .and_then(|issued| {
            state.sink.install(&subject.to_string(), &issued.pem)?;
            Ok(issued.info)
        });
    match issued {
        Ok(info) => {
            let renew_at = schedule::renew_at(info.not_before, info.not_after, state.random());
            let status = CertificateStatus::unknown(subject);
            state.set_status(
                subject,
                CertificateStatus { info: Some(info), renew_at: Some(renew_at), ..status },
            );
            Some(renew_at)
        }
        Err(text) => {
            state.set_error(subject, &text);
            state.sink.error(&format!("certificates: {subject}: {text}"));
            None
        }
    }
}

/// Renews a certificate of the local authority.
async fn keep_private(orders: Rc<Orders>, subject: Subject, renew: Rc<Notify>) {
    let state = &orders.state;
    let mut due = state.statuses().get(&subject).and_then(|status| status.renew_at);
    loop {
        let now = state.now();
        let wait = due
            .map_or(state.environment.intervals.retry_max, |due| due.duration_since(now).unwrap_or_default());
        let is_asked = orders.wait(wait, &renew).await;
        if is_asked || due.is_none_or(|due| due <= state.now()) {
            due = issue(state, &orders.store, &subject);
        }
    }
}

/// Reads the tokens that other servers write to the state folder, because the authority may connect to any of
/// the servers.
async fn share_tokens(orders: Rc<Orders>) {
    let intervals = &orders.state.environment.intervals;
    let (mut seen, mut known): (_, Vec<String>) = (None, Vec::new());
    loop {
        let is_shared = orders.store.is_shared();
        let changed = orders.store.tokens_time();
        if is_shared && changed != seen {
            seen = changed;
            let tokens = orders.store.tokens(orders.state.now());
            let gone = known.iter().filter(|token| tokens.iter().all(|(other, _)| other != *token));
            gone.for_each(|token| orders.state.challenges.remove(token));
            known = tokens.iter().map(|(token, _)| token.clone()).collect();
            tokens.into_iter().for_each(|(token, response)| orders.state.challenges.insert(token, response));
        }
        let look = if is_shared { intervals.token_read_time / 3 } else { intervals.check_interval };
        tokio::time::sleep(look).await;
    }
}

/// Obtains and renews the certificate of a public name. An on-demand name is confirmed again before each
/// renewal; the answer is sent to `answers`.
async fn keep_public(
    orders: Rc<Orders>,
    subject: Subject,
    renew: Rc<Notify>,
    answers: Option<UnboundedSender<(Subject, AskAnswer, String)>>,
) {
    let state = orders.state.clone();
    let mut loaded = LoadedCertificate::default();
    // Already served if it existed at the start.
    let mut blocked = HashMap::new();
    let mut ask_window_at = state.now();
    let mut is_asked = false;
    loop {
        let record = loaded.load(&state, &orders.store, &subject);
        let now = state.now();
        let due = orders.next_order_at(&record, &loaded);
        if is_asked || due.is_none_or(|due| due <= now) {
            if let (Some(answers), Some(confirmer), true) =
                (&answers, &orders.confirmer, loaded.chain.is_some())
            {
                let (answer, text) = confirmer.query(&subject).await;
                if answer != AskAnswer::Yes {
                    // After a negative answer this task is aborted.
                    let _ = answers.send((subject.clone(), answer, text));
                    let pause = state.environment.intervals.retry_max;
                    is_asked = tokio::time::timeout(pause, renew.notified()).await.is_ok();
                    continue;
                }
            }
            let before = loaded.modified;
            // Boxed, because it is large and thousands of tasks may be idle.
            Box::pin(orders.attempt(&subject, &mut loaded, &mut blocked, is_asked)).await;
            is_asked = false;
            if loaded.modified != before {
                ask_window_at = state.now();
            }
            // Locked by another server: wait before the next attempt.
            is_asked |= orders.wait(state.environment.intervals.poll, &renew).await;
            continue;
        }
        if ask_window_at <= now {
            ask_window_at = now + orders.query_window(&subject, &loaded, record).await;
            continue;
        }
        let next = due.unwrap_or(now).min(ask_window_at);
        is_asked = orders.wait(next.duration_since(now).unwrap_or_default(), &renew).await;
    }
}
