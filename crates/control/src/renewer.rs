//! The control thread: it keeps a certificate for each name.

use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::SystemTime;

use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{AbortHandle, LocalSet};

use crate::local::LocalAuthority;
use crate::order::Options;
use crate::orders::{Environment, Loaded, Orders, RenewerState};
use crate::schedule;
use crate::sink::{CertificateSink, HttpChallenges};
use crate::status::CertificateStatus;
use crate::store::StateFolder;
use crate::subject::{Issuer, Subject};

enum RenewerCommand {
    Serve(Box<Options>, Vec<Subject>),
    Renew(Subject),
}

/// The handle of the control thread, which ends when this is dropped.
pub struct CertificateRenewer {
    commands: Option<UnboundedSender<RenewerCommand>>,
    state: Arc<RenewerState>,
    thread: Option<JoinHandle<()>>,
}

impl CertificateRenewer {
    /// Installs the certificates that are stored, and starts the thread that obtains the others and renews them. What keeps
    /// it from doing so is logged and tried again: it never keeps the server from starting.
    ///
    /// # Errors
    /// Where there can be no thread.
    pub fn start(
        options: Options,
        subjects: Vec<Subject>,
        environment: Environment,
        sink: Arc<dyn CertificateSink>,
        challenges: HttpChallenges,
    ) -> io::Result<CertificateRenewer> {
        let state = Arc::new(RenewerState::new(environment, sink, challenges));
        // Before the first connection, so that a restart is not seen.
        if let Ok(store) = StateFolder::open(&options.state) {
            let public = subjects.iter().filter(|subject| subject.issuer() == Issuer::Public);
            public.for_each(|subject| _ = Loaded::default().load(&state, &store, subject));
            serve_private(&state, &store, &subjects);
        }
        let (commands, received) = unbounded_channel();
        let theirs = state.clone();
        let thread = std::thread::Builder::new().name("certificates".into()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => {
                    runtime.block_on(LocalSet::new().run_until(run(theirs, received)));
                    // A look-up of a name may take long, and nobody waits for it.
                    runtime.shutdown_background();
                }
                Err(error) => theirs.sink.error(&format!("certificates are not renewed: {error}")),
            }
        })?;
        let manager = CertificateRenewer { commands: Some(commands), state, thread: Some(thread) };
        manager.serve(options, subjects);
        Ok(manager)
    }

    /// Keeps certificates for these names from now on, and no others. Names that stay keep theirs.
    pub fn serve(&self, options: Options, subjects: Vec<Subject>) {
        self.send(RenewerCommand::Serve(Box::new(options), subjects));
    }

    /// Renews the certificate of a name now; returns whether there is such a name.
    pub fn renew(&self, subject: &Subject) -> bool {
        let is_there = self.state.statuses().contains_key(subject);
        if is_there {
            self.send(RenewerCommand::Renew(subject.clone()));
        }
        is_there
    }

    /// What is known of each certificate, in the order of names.
    pub fn statuses(&self) -> Vec<CertificateStatus> {
        self.state.statuses().values().cloned().collect()
    }

    fn send(&self, command: RenewerCommand) {
        // A thread that has ended has logged why.
        let _ = self.commands.as_ref().map(|commands| commands.send(command));
    }
}

impl Drop for CertificateRenewer {
    fn drop(&mut self) {
        self.commands = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A name that a task keeps a certificate for.
struct Kept {
    task: AbortHandle,
    renew: Rc<Notify>,
}

/// Runs the tasks until the handle is dropped.
async fn run(state: Arc<RenewerState>, mut commands: UnboundedReceiver<RenewerCommand>) {
    let mut kept: HashMap<Subject, Kept> = HashMap::new();
    let mut served: Option<(Box<Options>, Option<Rc<Orders>>)> = None;
    let mut subjects = Vec::new();
    loop {
        let is_waiting = served.as_ref().is_some_and(|(_, orders)| orders.is_none());
        let again = tokio::time::sleep(state.environment.intervals.look);
        let command = tokio::select! {
            command = commands.recv() => match command {
                None => break,
                command => command,
            },
            () = again, if is_waiting => None,
        };
        match command {
            Some(RenewerCommand::Renew(subject)) => {
                kept.get(&subject).into_iter().for_each(|kept| kept.renew.notify_one());
                continue;
            }
            Some(RenewerCommand::Serve(options, new)) => {
                let is_same =
                    served.as_ref().is_some_and(|(old, orders)| *old == options && orders.is_some());
                if !is_same {
                    kept.drain().for_each(|(_, kept)| kept.task.abort());
                    served = Some((options, None));
                }
                forget(&state, &subjects, &new);
                subjects = new;
            }
            // The state folder may be of use by now.
            None => {}
        }
        let Some((options, orders)) = &mut served else { continue };
        if orders.is_none() {
            *orders = open(&state, options, &subjects).map(Rc::new);
        }
        let Some(orders) = orders else { continue };
        serve_private(&state, &orders.store, &subjects);
        kept.retain(|subject, kept| {
            let stays = *subject == SHARED || subjects.contains(subject);
            if !stays {
                kept.task.abort();
            }
            stays
        });
        for subject in subjects.iter().filter(|subject| subject.issuer() != Issuer::Nobody) {
            if !kept.contains_key(subject) {
                kept.insert(subject.clone(), keep(orders, subject));
            }
        }
        kept.entry(SHARED).or_insert_with(|| Kept {
            task: tokio::task::spawn_local(share_tokens(orders.clone())).abort_handle(),
            renew: Rc::default(),
        });
    }
}

/// The key of the task that reads the tokens of other servers: no subject is empty.
const SHARED: Subject = Subject::Dns(String::new());

fn keep(orders: &Rc<Orders>, subject: &Subject) -> Kept {
    let renew = Rc::new(Notify::new());
    let (theirs, notified, name) = (orders.clone(), renew.clone(), subject.clone());
    let task = match subject.issuer() {
        Issuer::Local => tokio::task::spawn_local(keep_private(theirs, name, notified)),
        _ => tokio::task::spawn_local(keep_public(theirs, name, notified)),
    };
    Kept { task: task.abort_handle(), renew }
}

/// Removes what is not served any more, and takes note of what is.
fn forget(state: &RenewerState, old: &[Subject], new: &[Subject]) {
    let gone = old.iter().filter(|subject| !new.contains(subject));
    gone.for_each(|subject| {
        state.sink.remove(&subject.to_string());
        state.statuses().remove(subject);
    });
    for subject in new {
        state.statuses().entry(subject.clone()).or_insert_with(|| CertificateStatus::unknown(subject));
        if subject.issuer() == Issuer::Nobody && !old.contains(subject) {
            let text = "no authority issues for this name: give its site a certificate, or a name below `internal`, \
                        `local`, `test` or `localhost`";
            state.set_error(subject, text);
            state.sink.warn(&format!("certificates: {subject}: {text}"));
        }
    }
}

/// Opens the state folder and the client; where that fails, it is said of every name.
fn open(state: &Arc<RenewerState>, options: &Options, subjects: &[Subject]) -> Option<Orders> {
    match Orders::open(state, options) {
        Ok(orders) => Some(orders),
        Err(text) => {
            let is_new = |subject: &Subject| {
                let statuses = state.statuses();
                let error = statuses.get(subject).and_then(|status| status.last_error.as_ref());
                error.is_none_or(|(_, known)| *known != text)
            };
            if subjects.iter().any(is_new) {
                state.sink.error(&format!("no certificate can be obtained: {text}"));
            }
            subjects.iter().for_each(|subject| state.set_error(subject, &text));
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

/// Issues a certificate of the local authority, and returns when it is to be renewed.
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

/// Reads the tokens that other servers wrote to the state folder: the authority may ask any of them.
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
        let look = if is_shared { intervals.settle / 3 } else { intervals.look };
        tokio::time::sleep(look).await;
    }
}

/// Obtains and renews the certificate of a public name.
async fn keep_public(orders: Rc<Orders>, subject: Subject, renew: Rc<Notify>) {
    let state = orders.state.clone();
    let mut loaded = Loaded::default();
    // Already served by now, if it was there at the start.
    let mut blocked = HashMap::new();
    let mut ask_window_at = state.now();
    let mut is_asked = false;
    loop {
        let record = loaded.load(&state, &orders.store, &subject);
        let now = state.now();
        let due = orders.due(&record, &loaded);
        if is_asked || due.is_none_or(|due| due <= now) {
            let before = loaded.written;
            orders.attempt(&subject, &mut loaded, &mut blocked, is_asked).await;
            is_asked = false;
            if loaded.written != before {
                ask_window_at = state.now();
            }
            // Held by another server: no busy waiting.
            is_asked |= orders.wait(state.environment.intervals.poll, &renew).await;
            continue;
        }
        if ask_window_at <= now {
            ask_window_at = now + orders.ask_window(&subject, &loaded, record).await;
            continue;
        }
        let next = due.unwrap_or(now).min(ask_window_at);
        is_asked = orders.wait(next.duration_since(now).unwrap_or_default(), &renew).await;
    }
}
