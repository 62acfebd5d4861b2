//! Start of the server.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::unix::net::UnixListener;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use ::link::LinkRequest;
use cache_handler::commands;
use certificates::managed::{AutomaticCertificates, is_system};
use certificates::tls::TlsPlan;
use cluster::ClusterStore;
use config::Config;
use engine::generations::Generations;
use engine::memory;
use engine::options::{self, Descriptors};
use hosting::watch;
use hosting::workers::{AppHandles, Hosting};
use logging::access::FLUSH_INTERVAL;
use logging::notice::ErrorLog;
use operator::api::{self, Api, AuditLog};
use operator::config_text::{ConfigText, EditError};
use operator::endpoint::ControlSources;
use operator::listener::ControlListener;
use operator::pending_command::{BEGIN_TIMEOUT, OutcomeError, pending_command};
use operator::server_info::{CounterSources, ReloadOutcome, ServerInfo};
use operator::socket::{self, ApiLine, ControlClientCount, ControlSocket};
use process::crashes;
use process::inherited::SupervisorHandover;
use process::link::SupervisorLink;
use process::logs::Logs;
use process::sandbox::Sandbox;
use process::sockets::InheritedSockets;
use process::systemd::{self, Notifier};
use process::upgrade::Predecessor;
use rights::privilege;
use routing::router::{GenerationTable, RouteTable, Router, SharedRouter};
use rustix::process::{Resource, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use steps::shaping::connections::ClientConnections;
use telemetry::gauges::KubernetesStatus;
use telemetry::metrics::{CoreMetrics, Metrics};
use times::Millis;

use crate::assemble::routes::{self, CoreContext, ServerPlan};
use crate::assemble::upstreams::CoreGroups;
use crate::check::reading::RereadConfig;
use crate::run::container_sites::join_sites;
use crate::run::lifecycle::{
    ActiveConfig, PartChange, RunningServer, ServerEvent, forward_signals, handle_second_stop,
    order_to_event, unstarted_reload,
};
use crate::run::metrics_push::MetricsPush;

/// The configuration to serve, and its source.
pub(crate) struct ServerStart {
    pub(crate) config: Config,
    /// Reads the configuration again; `None` if it comes from the command line.
    pub(crate) reread: Option<RereadConfig>,
    /// Text of the configuration; `None` if it does not come from a file.
    pub(crate) text: Option<ConfigText>,
    /// Whether applications are loaded again when their files change.
    pub(crate) watch: bool,
    /// State passed on by the supervisor, if there is one.
    pub(crate) inherited: Option<SupervisorHandover>,
    /// The server to replace, if there is one.
    pub(crate) predecessor: Option<Predecessor>,
    /// Sockets bound by other processes.
    pub(crate) inherited_sockets: InheritedSockets,
    /// A warning for the log.
    pub(crate) warning: Option<String>,
    /// Whatever else makes configurations, if there is such.
    pub(crate) source: Option<ConfigSource>,
    /// Returns the state of that.
    pub(crate) source_status: Option<SourceStatus>,
}

/// Starts what makes configurations while the server runs. It gets a function that has the server read its configuration
/// again ([`ServerStart::reread`]) or change a part of it, and the log.
pub(crate) type ConfigSource = Box<dyn FnOnce(ServerChanges, ErrorLog) -> io::Result<()>>;

/// Returns the state of what makes configurations.
pub(crate) type SourceStatus = Box<dyn Fn() -> KubernetesStatus + Send + Sync>;

/// Changes of the configuration of a running server. Each returns when its outcome is known.
pub(crate) struct ServerChanges {
    /// Has the server read its configuration again.
    pub(crate) reload: Box<dyn Fn() -> ReloadOutcome + Send>,
    /// Changes a part of the configuration in force.
    pub(crate) change_part: Box<dyn Fn(PartChange) -> ReloadOutcome + Send>,
}

/// Serves until a stop is requested. `ready` is called with the addresses once connections are accepted.
///
/// # Errors
/// Any reason that prevents the start.
pub(crate) fn run_server(
    start: ServerStart,
    ready: impl FnOnce(&[net::ListenUrl], &[net::ListenUrl]),
) -> io::Result<()> {
    let ServerStart {
        config,
        reread,
        text,
        watch,
        mut inherited,
        predecessor,
        inherited_sockets: mut given,
        warning,
        source,
        source_status,
    } = start;
    let (events, happened) = channel();
    // Registered before anything is started, so that no signal is missed.
    let signals = SignalsInfo::<WithOrigin>::new([SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2])?;
    let descriptors = Descriptors::new(&config, raise_descriptor_limit());
    descriptors.check_sufficient()?;
    let mut options = options::engine_options(&config, &descriptors);
    let listeners = bind_listeners(&config, inherited.as_mut(), &mut given, options.threads)?;
    let control = open_control_socket(inherited.as_mut());
    let is_fed = source.is_some();
    // Listeners of later configurations need the capability.
    if inherited.is_none() && !is_fed && !rustix::process::geteuid().is_root() {
        // The capability was needed for binding only and must not be inherited by workers.
        privilege::drop_capabilities()?;
    }
    // From here on the process has several threads.
    forward_signals(signals, inherited.is_some(), events.clone())?;
    let link = inherited.as_ref().map(|inherited| inherited.link.clone());
    if let Some(link) = &link {
        let events = events.clone();
        link.listen(move |order| _ = events.send(order_to_event(order)))?;
    }
    let logs = Logs::open(
        &config.log,
        config.log_destinations(),
        link.as_ref(),
        inherited.as_ref().is_some_and(|given| given.is_restart),
    )?;
    warning.iter().for_each(|text| logs.notices.warn(text));
    let (level, notice) = descriptors.startup_message(&config);
    logs.notices.log(level, &notice);
    let cores = options.threads;
    let spill = routes::spill_store(&config)?;
    let hosting = Arc::new(Hosting::new(cores, &logs.notices, &spill, &options.memory, link.clone()));
    let sandbox = Sandbox::new(config.sandbox, routes::temporary_folder(&config))?;
    let sandboxed = sandbox.description();
    logs.notices.debug(&format!("sandbox of the serving threads: {sandboxed}"));
    let replaces =
        predecessor.is_some() || inherited.as_ref().is_some_and(|inherited| inherited.replaces_server);
    let current = build_first_plan(config, text, &hosting, &listeners, &logs, cores, replaces)?;
    (options.tls, options.gate) = (Some(current.tls.clone()), Some(current.gate()));
    load_stored_certificates(&current, is_system(link.as_ref()), &logs.notices)?;
    let server = start_threads(&options, listeners, sandbox, &current, &logs)?;
    let memory = options.memory.clone();
    let info =
        build_server_info(&current, &server, inherited.as_ref(), memory, sandboxed, &events, source_status);
    let api = Arc::new(control_api(info, &current, &logs));
    let control = serve_control_socket(control, &api, inherited.as_ref(), &logs.notices);
    let (control_listener, push) =
        start_control_listener(&current, &server, api, replaces, link.clone(), &logs)?;
    if watch {
        watch::watch(hosting.folders(), hosting.clone(), logs.notices.clone())?;
    }
    current.follow_discovery(&events);
    ready(&server.listeners().urls(), &control_listener.urls());
    memory::unmap_start_code();
    if let Some(source) = source {
        let changes = ServerChanges {
            reload: Box::new(reload_command(&events)),
            change_part: Box::new(change_command(&events)),
        };
        source(changes, logs.notices.clone())?;
    }
    let listeners = server.listeners();
    let notifier = report_start(&listeners, predecessor, inherited.as_ref(), &logs.notices);
    given.warn_of_unused(&logs.notices);
    given.discard();
    let watchdog = inherited.as_ref().map_or_else(systemd::watchdog_interval, |inherited| inherited.watchdog);
    let stop = server.stop_handle();
    let ended = events.clone();
    std::thread::Builder::new()
        .name("server".into())
        .spawn(move || ended.send(ServerEvent::Ended(server.join())))?;
    let running = RunningServer {
        current,
        reread,
        link,
        logs,
        stop_handle: stop,
        listeners,
        notifier,
        watchdog,
        control_listener,
        push,
        events,
        logged_warnings: is_fed.then(Mutex::default),
    };
    let drained = running.run_event_loop(&happened)?;
    running.push.finish();
    shut_down(drained, happened, &running.logs, &hosting, &control.1)
}

/// Loads stored certificates before connections are accepted, so that a restart serves them from the first
/// connection on. `system` is whether the server was started as root.
fn load_stored_certificates(
    active_config: &ActiveConfig,
    system: bool,
    notices: &ErrorLog,
) -> io::Result<()> {
    let plan = active_config.active_plan();
    let tls = plan.tls();
    tls.iter().flat_map(|tls| tls.warnings()).for_each(|text| notices.warn(text));
    plan.control_access.warnings().iter().for_each(|text| notices.warn(text));
    active_config.certificates.apply(
        &plan.config.certificate_settings(),
        &active_config.hosting.files(),
        system,
        plan.cluster.as_ref(),
        notices,
    )?;
    TlsPlan::watch_staples(tls.as_deref(), &active_config.certificates.staples, notices);
    Ok(())
}

/// Creates the control API, which follows the configuration in force.
fn control_api(info: Arc<ServerInfo>, active_config: &Arc<ActiveConfig>, logs: &Logs) -> Api {
    let audited = active_config.clone();
    let sinks = logs.clone();
    let admitted = active_config.clone();
    let file = move || {
        let path = audited.active_plan().config.control.audit.clone()?;
        sinks.access().of(&logging::Sink::File(path))
    };
    let audit = AuditLog::new(Box::new(file), logs.notices.clone());
    Api::new(info, audit, Box::new(move || admitted.active_plan().control_access.clone()))
}

/// Starts the control listener and the push of metrics, as far as configured.
fn start_control_listener(
    active_config: &ActiveConfig,
    server: &net::Server,
    api: Arc<Api>,
    replaces: bool,
    link: Option<SupervisorLink>,
    logs: &Logs,
) -> io::Result<(ControlListener, MetricsPush)> {
    let metrics = active_config.metrics.clone();
    let counters = server.counters().to_vec();
    let operated = ControlSources { api, metrics, counters, failures: Arc::default() };
    let push = MetricsPush::new(operated.clone(), logs.notices.clone());
    push.apply(active_config.active_plan().push.clone())?;
    let listener = ControlListener::new(operated, link, logs.notices.clone());
    listener.open(
        &active_config.start_config.control,
        &active_config.active_plan().control_access,
        replaces,
    )?;
    Ok((listener, push))
}

/// Starts the serving threads.
fn start_threads(
    options: &net::Options,
    listeners: Vec<net::Listener>,
    sandbox: Sandbox,
    active_config: &Arc<ActiveConfig>,
    logs: &Logs,
) -> io::Result<net::Server> {
    let theirs = active_config.clone();
    let their_logs = logs.clone();
    let next = AtomicUsize::new(0);
    let server = net::Server::serve(options, listeners, move |core| {
        sandbox.restrict_thread()?;
        build_router(core, next.fetch_add(1, Ordering::Relaxed), &theirs, &their_logs)
    })?;
    crashes::install_panic_hook(&logs.notices);
    Ok(server)
}

/// Shuts down the remaining parts after the serving threads have ended; `drained` is whether all requests
/// were completed.
fn shut_down(
    drained: bool,
    events: Receiver<ServerEvent>,
    logs: &Logs,
    hosting: &Hosting,
    control: &ControlClientCount,
) -> io::Result<()> {
    if !drained {
        logs.notices.warn("stopped with requests unfinished: `timeouts.drain` ran out");
    }
    handle_second_stop(events, logs.clone())?;
    hosting.stop();
    // Clients waiting for the outcome of an upgrade receive it.
    control.wait();
    logs.notices.info("stopped");
    logs.close();
    Ok(())
}

/// Assembles the first configuration and starts its applications. If `replaces` is set, waits for them,
/// because the predecessor continues if they fail.
fn build_first_plan(
    config: Config,
    text: Option<ConfigText>,
    hosting: &Arc<Hosting>,
    listeners: &[net::Listener],
    logs: &Logs,
    cores: usize,
    replaces: bool,
) -> io::Result<Arc<ActiveConfig>> {
    let mut plan = ServerPlan::new(config, None, cores, Some(hosting))?;
    if plan.config.discover.as_ref().is_some_and(|discover| discover.docker.is_some()) {
        // The containers are known only now.
        let config = plan.config.clone();
        let (config, sites) = join_sites(&plan.discovery, config, text.as_ref(), &logs.notices);
        plan = ServerPlan::new(config, Some(&plan), cores, Some(hosting))?;
        plan.discovery.found.sites = sites;
    }
    if options::https_port(plan.config.listen.iter()) == Some(0) {
        plan.https_port = first_tls_port(listeners);
    }
    plan.sinks = logs.access();
    let certificates = AutomaticCertificates::default();
    let tls = net::TlsAcceptor::new(certificates.store.clone());
    plan.activate_tls(plan.tls().as_deref(), &tls)?;
    hosting.apply(&plan.config.apps, true)?;
    if replaces {
        hosting.wait_until_loaded()?;
    }
    let started = plan.config.clone();
    let gate = Arc::new(ClientConnections::new(&started, hosting.memory(), hosting.notices()));
    let generation = AtomicU64::new(0);
    let plan = Mutex::new(Arc::new(plan));
    let hosting = hosting.clone();
    let metrics = Metrics::default();
    let text = Mutex::new(text);
    Ok(Arc::new(ActiveConfig {
        generation,
        generations: Arc::new(Generations::new(cores)),
        plan,
        text,
        start_config: started,
        hosting,
        cores,
        tls,
        certificates,
        metrics,
        gate,
    }))
}

/// Reports that the server is ready: to systemd, the supervisor and the predecessor, and in the log.
fn report_start(
    listeners: &net::Listeners,
    predecessor: Option<Predecessor>,
    inherited: Option<&SupervisorHandover>,
    notices: &ErrorLog,
) -> Notifier {
    let notifier = Notifier::of_environment();
    let addresses = format_addresses(&listeners.urls());
    options::http3_warnings(listeners).iter().for_each(|text| notices.warn(text));
    options::receive_buffer_warning(listeners).into_iter().for_each(|text| notices.warn(text));
    // Nothing fails from here on.
    listeners.receive_datagrams();
    notifier.ready(&format!("serving on {addresses}"));
    if let Some(predecessor) = predecessor {
        predecessor.report_ready();
        listeners.visit(|listener| _ = listener.own_file(true));
    }
    match inherited {
        Some(SupervisorHandover { identity, link, .. }) => {
            link.send_without_reply(&LinkRequest::Ready);
            notices.info(&format!("serving on {addresses} as {} (uid {})", identity.name, identity.uid));
        }
        None => notices.debug(&format!("serving on {addresses}")),
    }
    notifier
}

/// Returns the listening sockets: inherited from the supervisor or given by another process, otherwise bound
/// here.
fn bind_listeners(
    config: &Config,
    inherited: Option<&mut SupervisorHandover>,
    inherited_sockets: &mut InheritedSockets,
    threads: usize,
) -> io::Result<Vec<net::Listener>> {
    let Some(inherited) = inherited else { return options::open(config, inherited_sockets, threads) };
    let listens = options::listen_options(config);
    let sockets = std::mem::take(&mut inherited.sockets);
    if sockets.len() != listens.len() {
        return Err(io::Error::other("the supervisor listens on other addresses"));
    }
    let each = listens.into_iter().zip(sockets);
    each.map(|(listen, sockets)| net::Listener::adopt_from_supervisor(listen, sockets)).collect()
}

/// The control socket, and its file if this process created it.
type ControlSocketResult = io::Result<(UnixListener, Option<ControlSocket>)>;

fn open_control_socket(inherited: Option<&mut SupervisorHandover>) -> ControlSocketResult {
    match inherited {
        Some(inherited) => {
            let listener = inherited.control.take();
            Ok((listener.ok_or_else(|| io::Error::other("the supervisor has none"))?, None))
        }
        None => ControlSocket::bind().and_then(|socket| Ok((socket.listener.try_clone()?, Some(socket)))),
    }
}

/// Returns a function that has the server read its configuration again, and waits for the outcome.
fn reload_command(events: &Sender<ServerEvent>) -> impl Fn() -> ReloadOutcome + Send + Sync + use<> {
    let events = events.clone();
    move || {
        let (asker, outcome) = pending_command();
        let sent = events.send(ServerEvent::Reload(Some(asker))).map_err(|_| OutcomeError::ThreadEnded);
        sent.and_then(|()| outcome.wait(BEGIN_TIMEOUT)).unwrap_or_else(|why| unstarted_reload(&why.text()))
    }
}

/// Returns a function that has the server change a part of its configuration, and waits for the outcome.
fn change_command(events: &Sender<ServerEvent>) -> impl Fn(PartChange) -> ReloadOutcome + Send + use<> {
    let events = events.clone();
    move |change| {
        let (asker, outcome) = pending_command();
        let sent = events.send(ServerEvent::Change(change, asker)).map_err(|_| OutcomeError::ThreadEnded);
        sent.and_then(|()| outcome.wait(BEGIN_TIMEOUT)).unwrap_or_else(|why| unstarted_reload(&why.text()))
    }
}

/// Creates the interface of the control socket and API to the server.
fn build_server_info(
    active_config: &Arc<ActiveConfig>,
    server: &net::Server,
    inherited: Option<&SupervisorHandover>,
    memory: net::MemoryBudget,
    sandbox: String,
    events: &Sender<ServerEvent>,
    source_status: Option<SourceStatus>,
) -> Arc<ServerInfo> {
    let upgrades = events.clone();
    let reopens = events.clone();
    let edits = events.clone();
    let reload = reload_command(events);
    let edit = move |edit| {
        let (asker, outcome) = pending_command();
        let sent = edits.send(ServerEvent::Edit(edit, asker)).map_err(|_| OutcomeError::ThreadEnded);
        let outcome = sent.and_then(|()| outcome.wait(BEGIN_TIMEOUT));
        outcome.unwrap_or_else(|why| Err(EditError::new(503, why.text())))
    };
    let upgrade = move || {
        let (asker, outcome) = sync_channel(1);
        let sent = upgrades.send(ServerEvent::Upgrade(Some(asker)));
        let outcome = sent.ok().and_then(|()| outcome.recv().ok());
        outcome.unwrap_or_else(|| Err("the server ended".into()))
    };
    let theirs = active_config.clone();
    let texts = active_config.clone();
    let of_restarts = active_config.clone();
    let file_certificates =
        move || theirs.active_plan().tls().map(|tls| tls.files().to_vec()).unwrap_or_default();
    let theirs = active_config.clone();
    let groups = active_config.clone();
    let named = active_config.clone();
    let of_limits = active_config.clone();
    let of_rules = active_config.clone();
    let of_queues = active_config.clone();
    let of_cluster = active_config.clone();
    Arc::new(ServerInfo {
        upstreams: Box::new(move || groups.active_plan().groups.states()),
        groups: Box::new(move || named.active_plan().groups.named_groups()),
        reopen_logs: Box::new(move || {
            let (asker, outcome) = channel();
            let sent = reopens.send(ServerEvent::Reopen(Some(asker)));
            let faults = sent.ok().and_then(|()| outcome.recv_timeout(BEGIN_TIMEOUT).ok());
            faults.unwrap_or_else(|| {
                vec!["the logs are still being written: they are opened again afterwards".into()]
            })
        }),
        run_cache_command: Box::new(move |line| {
            let plan = theirs.active_plan();
            commands::execute(line, plan.cache.as_ref(), &plan.config, plan.cluster.as_ref())
        }),
        limit_metrics: Box::new(move || {
            let limits = of_limits.active_plan().limits.metrics().into_iter();
            limits.chain(of_limits.gate.metrics()).collect()
        }),
        cluster_status: Box::new(move || of_cluster.active_plan().cluster.as_ref().map(ClusterStore::status)),
        kubernetes_status: Box::new(move || source_status.as_ref().map(|status| status())),
        queue_metrics: Box::new(move || of_queues.active_plan().queues.metrics()),
        rule_counts: Box::new(move || of_rules.active_plan().releases.counters.counts()),
        hosting: active_config.hosting.clone(),
        file_certificates: Box::new(file_certificates),
        certificates: active_config.certificates.running.clone(),
        stop_handle: server.stop_handle(),
        listeners: server.listeners(),
        sandbox,
        started_at: Instant::now(),
        counters: CounterSources {
            metrics: active_config.metrics.clone(),
            cores: server.counters().to_vec(),
            events: active_config.hosting.notices().events(),
        },
        supervisor: inherited.map(|inherited| (inherited.supervisor, inherited.link.clone())),
        reload_config: Box::new(reload),
        edit_config: Box::new(edit),
        active_text: Box::new(move || texts.active_text()),
        awaiting_restart: Box::new(move || of_restarts.awaiting_restart()),
        generations: active_config.generations.clone(),
        upgrade_server: Box::new(upgrade),
        memory,
    })
}

/// Serves the control socket. Failures are logged; the server runs without it.
fn serve_control_socket(
    control: ControlSocketResult,
    api: &Arc<Api>,
    inherited: Option<&SupervisorHandover>,
    notices: &ErrorLog,
) -> (Option<ControlSocket>, ControlClientCount) {
    let clients = ControlClientCount::default();
    let user = if inherited.is_some() { 0 } else { rustix::process::getuid().as_raw() };
    let served = control.and_then(|(listener, socket)| {
        let info = api.info.clone();
        let theirs = api.clone();
        let line: ApiLine = Arc::new(move |line, uid| api::answer_line(&theirs, line, uid));
        socket::serve(listener, user, info, line, clients.clone(), notices.clone())?;
        Ok(socket)
    });
    let socket = match served {
        Ok(socket) => socket,
        // The supervisor has logged the error.
        Err(_) if inherited.is_some() => None,
        Err(error) => {
            notices.warn(&format!("`komainu status`, `reload` and `upgrade` will not work: {error}"));
            None
        }
    };
    (socket, clients)
}

/// Returns the port of the first address with TLS.
fn first_tls_port(listeners: &[net::Listener]) -> Option<u16> {
    listeners.iter().map(net::Listener::url).find(|url| url.is_tls).and_then(|url| url.address.port())
}

fn format_addresses(urls: &[net::ListenUrl]) -> String {
    urls.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Creates the router of one core.
fn build_router(
    core: &net::Core,
    index: usize,
    active_config: &Arc<ActiveConfig>,
    logs: &Logs,
) -> io::Result<SharedRouter> {
    let plan = active_config.active_plan();
    let handles = AppHandles::new(core, index, &active_config.hosting);
    let groups = Rc::new(RefCell::default());
    let metrics = Rc::new(active_config.metrics.core());
    let core_context =
        CoreContext { core, handles: &handles, notices: &logs.notices, groups: &groups, metrics: &metrics };
    let followed: Rc<RefCell<Rc<CoreGroups>>> = groups.clone();
    let table = Rc::new(routes::build_route_table(&plan, Some(core_context), active_config.cores, None)?);
    let in_force = RefCell::new(TableInForce { plan, table: table.clone() });
    let router = Rc::new(Router::new(
        (table, active_config.generations.current(index)),
        table_renewer(
            (core.clone(), index),
            handles,
            groups,
            active_config.clone(),
            logs.notices.clone(),
            metrics.clone(),
            in_force,
        ),
        logs.notices.clone(),
        active_config.certificates.challenges.clone(),
        metrics,
    ));
    let flushed = router.clone();
    let clock = core.clone();
    let notices = logs.notices.clone();
    let generations = active_config.generations.clone();
    core.spawn(async move {
        let mut flushes = false;
        let mut closes = 0;
        loop {
            if !flushes && flushed.logs_requests() {
                flushes = true;
                clock.spawn(flush_access_logs(flushed.clone(), clock.clone()));
            }
            clock.sleep(Millis(1_000)).await;
            // An idle core must switch to a new configuration too: removed applications and upstream servers
            // end only when no core holds them.
            flushed.renew();
            let groups = followed.borrow().clone();
            groups.follow();
            // Sessions of streams over UDP follow the configuration.
            let has_sessions = flushed.take_datagrams_changed();
            if std::mem::replace(&mut closes, generations.closed_count()) != closes || has_sessions {
                clock.wake_all();
            }
            log_memory(&clock, &notices);
            notices.log_suppressed(Instant::now());
        }
    });
    Ok(SharedRouter(router))
}

/// Flushes the lines of access logs periodically; started with the first log.
async fn flush_access_logs(router: Rc<Router>, core: net::Core) {
    loop {
        core.sleep(FLUSH_INTERVAL).await;
        router.flush();
    }
}

/// Logs that requests are refused for lack of memory, at most once per second for all cores.
fn log_memory(core: &net::Core, notices: &ErrorLog) {
    let memory = core.memory();
    if memory.pressure() < net::Pressure::Critical {
        return;
    }
    let kind = "`limits.memory` is nearly used up: requests are answered 503".to_owned();
    notices.throttled(logging::Level::Error, kind.clone(), || {
        let budget = memory.budget();
        format!(
            "{kind} ({} of {} bytes held, {} requests refused)",
            budget.held_bytes(),
            budget.bytes_max(),
            budget.refused()
        )
    });
}

/// The plan in force on a core, and the table that was built of it.
struct TableInForce {
    plan: Arc<ServerPlan>,
    table: Rc<RouteTable>,
}

/// Returns a function that builds a new table if the configuration has changed.
fn table_renewer(
    (core, index): (net::Core, usize),
    handles: AppHandles,
    groups: Rc<RefCell<Rc<CoreGroups>>>,
    active_config: Arc<ActiveConfig>,
    notices: ErrorLog,
    metrics: Rc<CoreMetrics>,
    in_force: RefCell<TableInForce>,
) -> Box<dyn Fn() -> Option<GenerationTable>> {
    let seen = Cell::new(active_config.generation.load(Ordering::Acquire));
    Box::new(move || {
        let generation = active_config.generation.load(Ordering::Acquire);
        if seen.replace(generation) == generation {
            return None;
        }
        let core_context = CoreContext {
            core: &core,
            handles: &handles,
            notices: &notices,
            groups: &groups,
            metrics: &metrics,
        };
        let plan = active_config.active_plan();
        let before = in_force.borrow();
        let before_table = Some((&*before.plan, Some(&*before.table)));
        let built = routes::build_route_table(&plan, Some(core_context), active_config.cores, before_table);
        drop(before);
        match built {
            Ok(table) => {
                let table = Rc::new(table);
                in_force.replace(TableInForce { plan, table: table.clone() });
                Some((table, active_config.generations.current(index)))
            }
            Err(error) => {
                notices.error(&format!("the new configuration is not used on this core: {error}"));
                None
            }
        }
    })
}

/// Raises the limit on open files as far as allowed; returns it.
fn raise_descriptor_limit() -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    let hard = limit.maximum.unwrap_or(1 << 20);
    if limit.current.is_some_and(|current| current < hard) {
        limit.current = Some(hard);
        // If this fails, the limit remains unchanged.
        let _ = setrlimit(Resource::Nofile, limit);
    }
    getrlimit(Resource::Nofile).current.unwrap_or(1 << 20)
}
