//! Starts the server and handles its events: signals, reload, drain.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::unix::net::UnixListener;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use config::{AccessLog, Config};
use proxy::Group;
use rustix::process::{Resource, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use crate::access::{Access, FLUSH_MS};
use crate::assemble::{self, CoreContext, ServerPlan};
use crate::control::{self, Reloaded, ServerInfo, Socket};
use crate::engine::{self, Descriptors};
use crate::hosting::{AppHandles, Hosting};
use crate::inherited::Inherited;
use crate::link::{self, SupervisorLink, SupervisorOrder};
use crate::notice::ErrorLog;
use crate::parent;
use crate::privilege;
use crate::router::{RouteTable, Router, SharedRouter};
use crate::sink::{LogSink, LogTarget};
use crate::watch;

/// How long a stop may take before the log has the number of requests that it waits for; idle connections are closed by
/// then.
const DRAIN_REPORT: Duration = Duration::from_millis(1_200);
/// The longest wait for an event.
const QUIET: Duration = Duration::from_secs(3_600);

/// Reads the configuration again from its source.
pub(crate) type Reread = Box<dyn Fn() -> Result<Config, String>>;

/// The configuration in use, for all cores: they switch to it at their next request.
struct Current {
    generation: AtomicU64,
    plan: Mutex<Arc<ServerPlan>>,
    hosting: Arc<Hosting>,
    cores: usize,
}

impl Current {
    fn plan(&self) -> Arc<ServerPlan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// All logs of the server.
#[derive(Clone)]
struct Logs {
    access: Option<LogSink>,
    notices: ErrorLog,
}

impl Logs {
    /// Opens them, or asks the supervisor to open them, if there is one.
    fn open(config: &Config, link: Option<&SupervisorLink>, again: bool) -> io::Result<Logs> {
        // A server that is started again serves even if a log cannot be opened.
        let open = if again { LogSink::open_or_stderr } else { LogSink::open };
        let target = |number: usize, sink: &config::Sink| match (link.cloned(), sink) {
            (Some(link), config::Sink::File(path)) => LogTarget::Given {
                path: path.clone(),
                open: Arc::new(move || link::opened_log(&link, number)),
            },
            _ => LogTarget::from(sink),
        };
        let access = match config.log.access {
            AccessLog::Off => None,
            _ => Some(open(target(0, &config.log.file))?),
        };
        let errors = open(target(1, &config.log.errors))?;
        Ok(Logs { access, notices: ErrorLog::new(errors, config.log.level) })
    }

    /// Opens the log files again; lines from before go to the old files. Takes a moment.
    fn reopen(&self) {
        self.notices.sink().reopen();
        self.access.iter().for_each(LogSink::reopen);
    }

    fn close(&self) {
        // As if the second were over: counts that are not written now are lost.
        self.notices.log_counts(Instant::now() + Duration::from_secs(1));
        self.access.iter().for_each(LogSink::close);
        self.notices.sink().close();
    }
}

/// The configuration to serve, and its source.
pub(crate) struct Start {
    pub(crate) config: Config,
    /// Reads the configuration again; `None` if it comes from the command line.
    pub(crate) reread: Option<Reread>,
    /// Whether applications are loaded again when their files change.
    pub(crate) watch: bool,
    /// What the supervisor has passed on, if there is one.
    pub(crate) inherited: Option<Inherited>,
    /// A warning for the log.
    pub(crate) warning: Option<String>,
}

/// Events while the server runs.
enum ServerEvent {
    Stop,
    /// Read the configuration again; the result is sent to the client of the control socket, if one asked.
    Reload(Option<SyncSender<Reloaded>>),
    Reopen,
    /// A signal that is ignored.
    Unknown,
    /// The engines have ended.
    Ended(io::Result<bool>),
}

/// Serves until it is asked to stop. `ready` is called with the addresses once connections are accepted.
///
/// # Errors
/// What keeps the server from starting.
pub(crate) fn serve(start: Start, ready: impl FnOnce(&[net::Bind])) -> io::Result<()> {
    let Start { config, reread, watch, mut inherited, warning } = start;
    let (events, happened) = channel();
    // Before anything is started, so that no signal is missed.
    let signals = Signals::new([SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2])?;
    let descriptors = Descriptors::new(&config, raise_descriptor_limit());
    descriptors.suffice()?;
    let options = engine::options(&config, &descriptors);
    let listeners = listeners(&config, inherited.as_mut(), options.threads)?;
    let control = control_socket(inherited.as_mut());
    if inherited.is_none() && !rustix::process::geteuid().is_root() {
        // The capability was needed to bind; no worker may inherit it.
        privilege::drop_capabilities()?;
    }
    // From here on there are several threads.
    pass_signals(signals, inherited.is_some(), events.clone())?;
    let link = inherited.as_ref().map(|inherited| inherited.link.clone());
    if let Some(link) = &link {
        let events = events.clone();
        link.listen(move |order| _ = events.send(event(order)))?;
    }
    let logs = Logs::open(&config, link.as_ref(), inherited.as_ref().is_some_and(|given| given.again))?;
    warning.iter().for_each(|text| logs.notices.warn(text));
    let (level, notice) = descriptors.notice(&config);
    logs.notices.at(level, &notice);
    let cores = options.threads;
    let spill = assemble::spill_store(&config)?;
    let hosting = Arc::new(Hosting::new(cores, &logs.notices, &spill, link.clone()));
    let plan = ServerPlan::new(config, None, cores, Some(&hosting))?;
    hosting.apply(&plan.config.apps)?;
    let current = Arc::new(Current {
        generation: AtomicU64::new(0),
        plan: Mutex::new(Arc::new(plan)),
        hosting: hosting.clone(),
        cores,
    });
    let (theirs, their_logs, next) = (current.clone(), logs.clone(), AtomicUsize::new(0));
    let server = net::Server::serve(&options, listeners, move |core| {
        router(core, next.fetch_add(1, Ordering::Relaxed), &theirs, &their_logs)
    })?;
    hook_panics(&logs.notices);
    // Its file is removed at the end.
    let memory = options.memory.clone();
    let _control =
        serve_control(control, &hosting, &server, inherited.as_ref(), memory, &events, &logs.notices);
    if watch {
        watch::watch(hosting.folders(), hosting.clone(), logs.notices.clone())?;
    }
    ready(server.addresses());
    link.iter().for_each(|link| link.report("ready"));
    let identity = inherited.map(|given| format!(" as {} (uid {})", given.identity.name, given.identity.uid));
    let addresses = addresses(server.addresses());
    match identity {
        Some(identity) => logs.notices.info(&format!("serving on {addresses}{identity}")),
        None => logs.notices.debug(&format!("serving on {addresses}")),
    }
    let (stop, counters) = (server.stop(), server.counters().to_vec());
    std::thread::Builder::new()
        .name("server".into())
        .spawn(move || events.send(ServerEvent::Ended(server.join())))?;
    let drained = attend(&happened, &current, reread.as_ref(), link.as_ref(), &logs, &stop, &counters)?;
    if !drained {
        logs.notices.warn("stopped with requests unfinished: `timeouts.drain` ran out");
    }
    attend_to_the_end(happened, logs.clone())?;
    hosting.stop();
    logs.notices.info("stopped");
    logs.close();
    Ok(())
}

/// Handles signals, and commands of the supervisor and the control socket, until the engines have ended.
fn attend(
    happened: &Receiver<ServerEvent>,
    current: &Current,
    reread: Option<&Reread>,
    link: Option<&SupervisorLink>,
    logs: &Logs,
    stop: &net::Stop,
    counters: &[Arc<net::Counters>],
) -> io::Result<bool> {
    let mut stopping = false;
    let mut tell_at = None;
    loop {
        let wait = tell_at.map_or(QUIET, |at: Instant| at.saturating_duration_since(Instant::now()));
        let event = match happened.recv_timeout(wait) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) => {
                if tell_at.take().is_some() {
                    report_draining(current, counters, &logs.notices);
                }
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(io::Error::other("the engines ended unexpectedly"));
            }
        };
        match event {
            ServerEvent::Ended(drained) => return drained,
            ServerEvent::Reopen => logs.reopen(),
            ServerEvent::Unknown => logs.notices.warn(parent::UPGRADE_UNKNOWN),
            ServerEvent::Reload(asker) => {
                let outcome = match stopping {
                    true => refused("the server is stopping"),
                    false => reload(current, reread, link, &logs.notices),
                };
                // The client may have disconnected.
                let _ = asker.map(|asker| asker.send(outcome));
            }
            ServerEvent::Stop if std::mem::replace(&mut stopping, true) => end_at_once(logs),
            ServerEvent::Stop => {
                logs.notices.info("stopping: finishing running requests");
                stop.drain();
                tell_at = Some(Instant::now() + DRAIN_REPORT);
            }
        }
    }
}

/// Logs what a stop waits for, because without that it seems to hang.
fn report_draining(current: &Current, counters: &[Arc<net::Counters>], notices: &ErrorLog) {
    let drain = current.plan().config.timeouts.drain;
    // Idle connections are closed by now, or about to be: each open connection has a request.
    let requests: u64 = counters.iter().map(|core| core.connections_open.value()).sum();
    if requests > 0 && drain > DRAIN_REPORT {
        notices.warn(&format!(
            "stopping: waiting for {requests} requests to end, at most {} s (timeouts.drain); \
             a second signal ends them at once",
            drain.as_secs()
        ));
    }
}

/// A reload that has changed nothing.
fn refused(text: &str) -> Reloaded {
    Reloaded { reported: Err(text.to_owned()), is_in_force: false }
}

/// How long writing the last lines may take when the server ends at once.
const LAST_LINES_MAX: Duration = Duration::from_secs(1);

/// A second request to stop: ends the process, whatever its threads do. The logs get a moment.
fn end_at_once(logs: &Logs) -> ! {
    logs.notices.warn("second request to stop: not waiting for running requests");
    let (done, closed) = sync_channel(1);
    let logs = logs.clone();
    let closer = std::thread::Builder::new().spawn(move || {
        logs.close();
        let _ = done.send(());
    });
    if closer.is_ok() {
        let _ = closed.recv_timeout(LAST_LINES_MAX);
    }
    std::process::exit(1);
}

/// While workers are waited for, a second request to stop still ends the process.
fn attend_to_the_end(happened: Receiver<ServerEvent>, logs: Logs) -> io::Result<()> {
    std::thread::Builder::new().name("stop".into()).spawn(move || {
        if happened.into_iter().any(|event| matches!(event, ServerEvent::Stop)) {
            end_at_once(&logs);
        }
    })?;
    Ok(())
}

fn event(order: SupervisorOrder) -> ServerEvent {
    match order {
        SupervisorOrder::Stop => ServerEvent::Stop,
        SupervisorOrder::Reload => ServerEvent::Reload(None),
        SupervisorOrder::Reopen => ServerEvent::Reopen,
    }
}

/// Turns signals into events, on a thread of its own. A server with a supervisor ignores signals, because systemd sends
/// them to both, and the second SIGTERM would end it at once.
fn pass_signals(mut signals: Signals, supervised: bool, events: Sender<ServerEvent>) -> io::Result<()> {
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        signals.forever().try_for_each(|signal| match signal {
            SIGUSR2 => events.send(ServerEvent::Unknown),
            _ if supervised => Ok(()),
            SIGUSR1 => events.send(ServerEvent::Reopen),
            SIGHUP => events.send(ServerEvent::Reload(None)),
            _ => events.send(ServerEvent::Stop),
        })
    })?;
    Ok(())
}

/// The bound sockets: the supervisor's, or bound here.
fn listeners(
    config: &Config,
    inherited: Option<&mut Inherited>,
    threads: usize,
) -> io::Result<Vec<net::Listener>> {
    let listens = engine::listens(config);
    let Some(inherited) = inherited else {
        return listens.into_iter().map(|listen| engine::bind(listen, threads)).collect();
    };
    let sockets = std::mem::take(&mut inherited.sockets);
    if sockets.len() != listens.len() {
        return Err(io::Error::other("the supervisor listens on other addresses"));
    }
    let each = listens.into_iter().zip(sockets);
    each.map(|(listen, sockets)| net::Listener::adopt(listen, sockets, threads)).collect()
}

/// The control socket, and its file if this process created it.
type Control = io::Result<(UnixListener, Option<Socket>)>;

fn control_socket(inherited: Option<&mut Inherited>) -> Control {
    match inherited {
        Some(inherited) => {
            let listener = inherited.control.take();
            Ok((listener.ok_or_else(|| io::Error::other("the supervisor has none"))?, None))
        }
        None => Socket::bind().and_then(|socket| Ok((socket.listener.try_clone()?, Some(socket)))),
    }
}

/// Without a control socket the server still serves.
fn serve_control(
    control: Control,
    hosting: &Arc<Hosting>,
    server: &net::Server,
    inherited: Option<&Inherited>,
    memory: net::MemoryBudget,
    events: &Sender<ServerEvent>,
    notices: &ErrorLog,
) -> Option<Socket> {
    let events = events.clone();
    let reload = move || {
        let (asker, outcome) = sync_channel(1);
        let sent = events.send(ServerEvent::Reload(Some(asker)));
        sent.ok().and_then(|()| outcome.recv().ok()).unwrap_or_else(|| refused("the server ended"))
    };
    let info = ServerInfo {
        hosting: hosting.clone(),
        addresses: server.addresses().iter().map(ToString::to_string).collect(),
        since: Instant::now(),
        supervisor: inherited.map(|inherited| (inherited.supervisor, inherited.link.clone())),
        reload: Box::new(reload),
        memory,
    };
    let user = if inherited.is_some() { 0 } else { rustix::process::getuid().as_raw() };
    let served = control.and_then(|(listener, socket)| {
        control::serve(listener, user, info, notices.clone())?;
        Ok(socket)
    });
    match served {
        Ok(socket) => socket,
        // The supervisor has logged it.
        Err(_) if inherited.is_some() => None,
        Err(error) => {
            notices.warn(&format!("`komainu status` and `komainu reload` will not work: {error}"));
            None
        }
    }
}

fn addresses(binds: &[net::Bind]) -> String {
    binds.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// One core's router.
fn router(core: &net::Core, index: usize, current: &Arc<Current>, logs: &Logs) -> io::Result<SharedRouter> {
    let plan = current.plan();
    let handles = AppHandles::new(core, index, &current.hosting);
    let groups = RefCell::default();
    let core_context = CoreContext { core, handles: &handles, notices: &logs.notices, groups: &groups };
    let table = Rc::new(assemble::table(&plan, Some(core_context), current.cores)?);
    let access = logs.access.clone().map(|sink| Access::new(plan.config.log.access, sink));
    let router = Rc::new(Router::new(
        table,
        renewer(core.clone(), handles, groups, current.clone(), logs.notices.clone()),
        access,
        logs.notices.clone(),
    ));
    if logs.access.is_some() {
        let (flushed, clock) = (router.clone(), core.clone());
        core.spawn(async move {
            loop {
                clock.sleep(FLUSH_MS).await;
                flushed.flush();
            }
        });
    }
    let (flushed, clock, notices) = (router.clone(), core.clone(), logs.notices.clone());
    core.spawn(async move {
        loop {
            clock.sleep(1_000).await;
            // A core without requests must switch to a new configuration too: removed applications and upstream servers
            // end only when no core holds them any more.
            flushed.renew();
            log_memory(&clock, &notices);
            notices.log_counts(Instant::now());
        }
    });
    Ok(SharedRouter(router))
}

/// Logs that requests are refused for lack of memory: one line a second for all cores.
fn log_memory(core: &net::Core, notices: &ErrorLog) {
    let memory = core.memory();
    if memory.pressure() < net::Pressure::Critical {
        return;
    }
    let kind = "`limits.memory` is nearly used up: requests are answered 503".to_owned();
    notices.once_a_second(config::Level::Error, kind.clone(), || {
        let budget = memory.budget();
        format!(
            "{kind} ({} of {} bytes held, {} requests refused)",
            budget.held_bytes(),
            budget.bytes_max(),
            budget.refused()
        )
    });
}

/// Returns a new table if the configuration has changed.
fn renewer(
    core: net::Core,
    handles: AppHandles,
    groups: RefCell<Vec<Group>>,
    current: Arc<Current>,
    notices: ErrorLog,
) -> Box<dyn Fn() -> Option<Rc<RouteTable>>> {
    let seen = Cell::new(current.generation.load(Ordering::Acquire));
    Box::new(move || {
        let generation = current.generation.load(Ordering::Acquire);
        if seen.replace(generation) == generation {
            return None;
        }
        let core_context = CoreContext { core: &core, handles: &handles, notices: &notices, groups: &groups };
        match assemble::table(&current.plan(), Some(core_context), current.cores) {
            Ok(table) => Some(Rc::new(table)),
            Err(error) => {
                notices.error(&format!("the new configuration is not used on this core: {error}"));
                None
            }
        }
    })
}

/// Reads the configuration again and switches to it; the result is returned and logged.
fn reload(
    current: &Current,
    reread: Option<&Reread>,
    link: Option<&SupervisorLink>,
    notices: &ErrorLog,
) -> Reloaded {
    let Some(reread) = reread else {
        // Applications can be loaded again without a configuration file.
        let applied = current.hosting.apply(&current.plan().config.apps);
        let text = "there is no configuration file to read: applications are loaded again";
        notices.info(text);
        let reported = applied.map_err(|error| error.to_string()).map(|()| text.to_owned());
        return Reloaded { reported, is_in_force: true };
    };
    // Assembled once here as a check: missing folders and pages are found before it is used.
    let before = current.plan();
    let plan = |config| {
        let plan = ServerPlan::new(config, Some(&before), current.cores, Some(&current.hosting));
        plan.map_err(|error| error.to_string())
    };
    let plan = match reread().and_then(plan) {
        Ok(plan) => plan,
        Err(error) => {
            let text = format!("the configuration was not changed:\n{error}");
            notices.error(&text);
            return refused(&text);
        }
    };
    // Before applications are started from it.
    link.iter().for_each(|link| link.report("adopted"));
    let (new, old) = (&plan.config, &before.config);
    let mut failures = Vec::new();
    let late = late_changes(old, new);
    if !late.is_empty() {
        let verb = if late.len() == 1 { "changes" } else { "change" };
        failures.push(format!("{} {verb} only at a restart", late.join(", ")));
        failures.iter().for_each(|text| notices.warn(text));
    }
    if let Err(error) = current.hosting.apply(&plan.config.apps) {
        notices.error(&error.to_string());
        failures.push(error.to_string());
    }
    *current.plan.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(plan);
    current.generation.fetch_add(1, Ordering::Release);
    notices.info("the configuration was read again");
    let reported = match failures.is_empty() {
        true => Ok("the new configuration is in use".into()),
        false => Err(format!("the new configuration is in use, except for this:\n{}", failures.join("\n"))),
    };
    Reloaded { reported, is_in_force: true }
}

/// The changes that need a restart. Limits and timeouts that routes can set do not.
fn late_changes(old: &Config, new: &Config) -> Vec<&'static str> {
    let limits = config::Limits { body_bytes_max: old.limits.body_bytes_max, ..new.limits.clone() };
    let (body, write) = (old.timeouts.body, old.timeouts.write);
    let timeouts = config::Timeouts { body, write, ..new.timeouts.clone() };
    let changes = [
        ("`user`", (&new.user, &new.group) != (&old.user, &old.group)),
        ("`listen`", new.listen != old.listen),
        ("`threads`", new.threads != old.threads),
        ("`lenient_bare_lf`", new.lenient_bare_lf != old.lenient_bare_lf),
        ("`[limits]`", limits != old.limits),
        ("`temp_path`", new.temp_path != old.temp_path),
        ("`[timeouts]`", timeouts != old.timeouts),
        ("`[log]`", new.log != old.log),
    ];
    changes.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
}

/// A panic is a bug of Komainu: it is logged with its place.
fn hook_panics(notices: &ErrorLog) {
    let notices = notices.clone();
    std::panic::set_hook(Box::new(move |info| notices.error(&format!("a handler panicked: {info}"))));
}

/// Raises the limit on open files as far as allowed; returns it.
fn raise_descriptor_limit() -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    let hard = limit.maximum.unwrap_or(1 << 20);
    if limit.current.is_some_and(|current| current < hard) {
        limit.current = Some(hard);
        // If this fails the limit stays as it was.
        let _ = setrlimit(Resource::Nofile, limit);
    }
    getrlimit(Resource::Nofile).current.unwrap_or(1 << 20)
}
