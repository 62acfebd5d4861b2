//! Lifecycle of a running server, driven by signals, supervisor orders and commands: reload, log rotation,
//! upgrade, stop.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ::link::LinkRequest;
use certificates::managed::{AutomaticCertificates, is_system};
use certificates::tls::TlsPlan;
use config::Config;
use engine::generations::Generations;
use engine::options;
use failure::Failure;
use hosting::workers::Hosting;
use logging::Level;
use logging::notice::ErrorLog;
use net::{ListenOptions, Listeners, NewListeners};
use operator::config_text::{ConfigEdit, ConfigText, EditError};
use operator::listener::{ControlListener, ListenerChange};
use operator::pending_command::PendingReply;
use operator::server_info::{ReloadEffect, ReloadOutcome};
use process::config_files::MemoryFiles;
use process::link::{self, SupervisorLink, SupervisorOrder};
use process::logs::{Logs, OpenedLogs};
use process::stop_signals::{self, StopSignals};
use process::systemd::Notifier;
use process::upgrade::{self, HandedSockets, Successor};
use proxy::health::UpstreamOrder;
use proxy::options::ProxyOptions;
use rustix::process::{Resource, Signal, getrlimit, pidfd_send_signal};
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use steps::shaping::connections::ClientConnections;
use telemetry::metrics::Metrics;

use crate::assemble::routes::ServerPlan;
use crate::assemble::upstreams::GroupSources;
use crate::check::reading::{self, ReadConfig, RereadConfig};
use crate::run::container_sites::join_sites;
use crate::run::metrics_push::MetricsPush;

/// Time after which a stop logs the requests that it waits for; idle connections are closed by then.
const DRAIN_REPORT_DELAY: Duration = Duration::from_millis(1_200);
/// Maximum time to wait for an event.
const EVENT_WAIT_MAX: Duration = Duration::from_secs(3_600);

/// A configuration that has been checked and can be put in force.
pub(crate) struct PreparedConfig {
    plan: ServerPlan,
    /// `None` if they stay as they are.
    listeners: Option<NewListeners>,
    listener_change: ListenerChange,
    opened_logs: OpenedLogs,
    warnings: Vec<String>,
    text: Option<ConfigText>,
}

/// The configuration in force, for all cores; each switches to it at its next request.
pub(crate) struct ActiveConfig {
    pub(crate) generation: AtomicU64,
    /// Generations of the configuration, with the requests that use them.
    pub(crate) generations: Arc<Generations>,
    pub(crate) plan: Mutex<Arc<ServerPlan>>,
    /// Text of the configuration; `None` if it does not come from a file.
    pub(crate) text: Mutex<Option<ConfigText>>,
    /// The configuration at the start, still in force for settings that require a restart.
    pub(crate) start_config: Config,
    pub(crate) hosting: Arc<Hosting>,
    pub(crate) cores: usize,
    /// TLS settings of new connections.
    pub(crate) tls: net::TlsAcceptor,
    pub(crate) certificates: AutomaticCertificates,
    pub(crate) metrics: Metrics,
    /// Limits on the number of connections per client.
    pub(crate) gate: Arc<ClientConnections>,
}

impl ActiveConfig {
    /// Returns the gate that limits the number of connections per client.
    pub(crate) fn gate(&self) -> net::SharedGate {
        net::SharedGate(self.gate.clone())
    }

    pub(crate) fn active_plan(&self) -> Arc<ServerPlan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the directives that have other values than at the start, and that only a restart applies.
    pub(crate) fn awaiting_restart(&self) -> Vec<&'static str> {
        changes_requiring_restart(&self.start_config, &self.active_plan().config)
    }

    /// Has the server put in force what is found from now on.
    pub(crate) fn follow_discovery(&self, events: &Sender<ServerEvent>) {
        let plan = self.active_plan();
        let listener = || {
            let events = events.clone();
            Box::new(move || _ = events.send(ServerEvent::Found))
        };
        plan.discovery.discovery.iter().for_each(|discovery| discovery.on_change(listener()));
        plan.cluster.iter().for_each(|cluster| cluster.on_peers_change(listener()));
        if !plan.is_current() {
            // Changed before the listeners were set.
            listener()();
        }
    }

    /// Returns the text of the configuration in force.
    pub(crate) fn active_text(&self) -> Option<ConfigText> {
        self.text.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Receiver of a command's outcome.
pub(crate) type OutcomeSender = SyncSender<Result<String, Failure>>;

/// A change of a part of the configuration in force, for which no router is built.
pub(crate) enum PartChange {
    /// Servers of groups, by the names of these.
    Servers(Vec<(String, Arc<ProxyOptions>)>),
    /// Contents of the files in memory that are certificates and keys of sites.
    Certificates(MemoryFiles),
}

/// Events of a running server.
pub(crate) enum ServerEvent {
    /// Description of a received stop signal.
    Signal(String),
    Stop,
    /// Reload the configuration; the result is sent to the client of the control socket, if there is one.
    Reload(Option<PendingReply<ReloadOutcome>>),
    /// Change a part of the configuration in force.
    Change(PartChange, PendingReply<ReloadOutcome>),
    /// Change the configuration.
    Edit(ConfigEdit, PendingReply<Result<Value, EditError>>),
    /// Other upstream servers, containers or servers of the set were found.
    Found,
    Reopen(Option<Sender<Vec<String>>>),
    /// Start a new process of the program, which takes over.
    Upgrade(Option<OutcomeSender>),
    /// Outcome of an upgrade: another process has taken over, or the reason that it failed.
    Upgraded(Result<String, Failure>),
    /// The server's threads have ended.
    Ended(io::Result<bool>),
}

/// A running server and its control.
pub(crate) struct RunningServer {
    pub(crate) current: Arc<ActiveConfig>,
    pub(crate) reread: Option<RereadConfig>,
    pub(crate) link: Option<SupervisorLink>,
    pub(crate) logs: Logs,
    pub(crate) stop_handle: net::StopHandle,
    pub(crate) listeners: Listeners,
    pub(crate) notifier: Notifier,
    /// Interval of the watchdog notifications.
    pub(crate) watchdog: Option<Duration>,
    pub(crate) control_listener: ControlListener,
    pub(crate) push: MetricsPush,
    pub(crate) events: Sender<ServerEvent>,
    /// Warnings of the configuration in force, which are logged already; `None` if configurations are put in force by
    /// somebody's command alone.
    pub(crate) logged_warnings: Option<Mutex<BTreeSet<String>>>,
}

/// Progress of a stop or an upgrade.
#[derive(Default)]
struct StopProgress {
    is_stopping: bool,
    /// Time to log the requests that a stop waits for.
    report_at: Option<Instant>,
    /// Time of the next watchdog notification.
    watchdog_at: Option<Instant>,
    upgrade: Option<UpgradeProgress>,
}

struct UpgradeProgress {
    waiters: Vec<OutcomeSender>,
    /// The successor; `None` if the supervisor starts it.
    successor: Option<(u32, OwnedFd)>,
}

impl RunningServer {
    /// Logs warnings. Where configurations follow each other by themselves, those that the one before has caused too are not
    /// repeated.
    fn log_warnings(&self, warnings: &[String]) {
        let Some(logged) = &self.logged_warnings else {
            warnings.iter().for_each(|text| self.logs.notices.warn(text));
            return;
        };
        let now: BTreeSet<String> = warnings.iter().cloned().collect();
        let mut logged = logged.lock().unwrap_or_else(PoisonError::into_inner);
        now.difference(&logged).for_each(|text| self.logs.notices.warn(text));
        *logged = now;
    }

    /// Handles signals, orders and commands of the control socket until the server's threads have ended.
    /// Returns whether all requests were completed.
    ///
    /// # Errors
    /// A failure of a serving thread.
    pub(crate) fn run_event_loop(&self, events: &Receiver<ServerEvent>) -> io::Result<bool> {
        let mut progress = StopProgress {
            watchdog_at: self.watchdog.map(|interval| Instant::now() + interval),
            ..StopProgress::default()
        };
        loop {
            let due = progress.report_at.into_iter().chain(progress.watchdog_at).min();
            let wait = due.map_or(EVENT_WAIT_MAX, |at| at.saturating_duration_since(Instant::now()));
            match events.recv_timeout(wait) {
                Ok(ServerEvent::Ended(drained)) => return drained,
                Ok(event) => self.handle_event(event, &mut progress),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(io::Error::other("the engines ended unexpectedly"));
                }
            }
            let now = Instant::now();
            if progress.report_at.is_some_and(|at| at <= now) {
                progress.report_at = None;
                report_draining(&self.current, &self.listeners, &self.logs.notices);
            }
            if let (Some(at), Some(interval)) = (progress.watchdog_at, self.watchdog)
                && at <= now
            {
                progress.watchdog_at = Some(now + interval);
                self.notify_watchdog();
            }
        }
    }

    fn handle_event(&self, event: ServerEvent, progress: &mut StopProgress) {
        match event {
            ServerEvent::Ended(_) => {}
            ServerEvent::Signal(description) => self.logs.notices.info(&description),
            ServerEvent::Reopen(asker) => self.logs.reopen_soon(asker),
            // The client was told that the command has been withdrawn.
            ServerEvent::Reload(Some(asker)) if !asker.try_begin() => {}
            ServerEvent::Edit(_, asker) if !asker.try_begin() => {}
            ServerEvent::Change(_, asker) if !asker.try_begin() => {}
            ServerEvent::Change(change, asker) => {
                let outcome = match progress.is_stopping || progress.upgrade.is_some() {
                    true => unstarted_reload("the server is stopping, or is being replaced"),
                    false => self.change_part(change),
                };
                asker.send(outcome);
            }
            ServerEvent::Reload(asker) => {
                let outcome = match (progress.is_stopping, &progress.upgrade) {
                    (true, _) => unstarted_reload("the server is stopping"),
                    (_, Some(_)) => {
                        unstarted_reload("an upgrade is under way: the new server reads the configuration")
                    }
                    _ => self.reload(asker.is_none()),
                };
                if let Some(asker) = asker {
                    asker.send(outcome);
                }
            }
            ServerEvent::Edit(edit, asker) => {
                let outcome = if progress.is_stopping || progress.upgrade.is_some() {
                    Err(EditError::new(503, "the server is stopping, or is being replaced"))
                } else {
                    self.edit(&edit)
                };
                asker.send(outcome);
            }
            ServerEvent::Found if progress.is_stopping || progress.upgrade.is_some() => {}
            ServerEvent::Found => self.use_found(),
            ServerEvent::Upgrade(asker) => self.begin_upgrade(asker, progress),
            ServerEvent::Upgraded(outcome) => self.finish_upgrade(outcome, progress),
            ServerEvent::Stop if std::mem::replace(&mut progress.is_stopping, true) => {
                exit_immediately(&self.logs)
            }
            ServerEvent::Stop => {
                self.logs.notices.info("stopping: finishing running requests");
                if let Some((_, pidfd)) =
                    progress.upgrade.as_ref().and_then(|upgrade| upgrade.successor.as_ref())
                {
                    // Fails only if the process has ended already.
                    let _ = pidfd_send_signal(pidfd, Signal::KILL);
                }
                self.notifier.stopping();
                self.begin_drain(progress);
            }
        }
    }

    fn begin_drain(&self, progress: &mut StopProgress) {
        progress.is_stopping = true;
        self.stop_handle.drain();
        self.control_listener.close();
        progress.report_at = Some(Instant::now() + DRAIN_REPORT_DELAY);
    }

    /// Notifies the watchdog, unless a core is stuck.
    fn notify_watchdog(&self) {
        if self.listeners.are_cores_responsive() {
            self.notifier.reset_watchdog();
            self.link.iter().for_each(|link| link.send_without_reply(&LinkRequest::Alive));
        }
    }

    /// Starts an upgrade, itself or through the supervisor.
    fn begin_upgrade(&self, waiter: Option<OutcomeSender>, progress: &mut StopProgress) {
        if progress.is_stopping {
            // The receiver may have been dropped.
            let _ = waiter.map(|asker| asker.send(Err(Failure::new("the server is stopping"))));
            return;
        }
        if let Some(upgrade) = &mut progress.upgrade {
            upgrade.waiters.extend(waiter);
            return;
        }
        let mut upgrade = UpgradeProgress { waiters: waiter.into_iter().collect(), successor: None };
        let started = match &self.link {
            Some(link) => {
                link.send_without_reply(&LinkRequest::Upgrade);
                Ok(())
            }
            None => self.start_successor(&mut upgrade),
        };
        progress.upgrade = Some(upgrade);
        if let Err(error) = started {
            self.finish_upgrade(Err(error.into()), progress);
        }
    }

    fn start_successor(&self, upgrade: &mut UpgradeProgress) -> io::Result<()> {
        let mut handed = Vec::new();
        self.listeners.visit(|listener| handed.push(HandedSockets::of(listener)));
        let successor = Successor::start(handed.into_iter().collect::<io::Result<_>>()?)?;
        let pid = successor.pid();
        self.logs.notices.info(&format!("upgrade: process {pid} is started"));
        upgrade.successor = Some((pid, successor.pidfd()?));
        let events = self.events.clone();
        let limit = upgrade::start_timeout(&self.current.active_plan().config.apps);
        std::thread::Builder::new().name("upgrade".into()).spawn(move || {
            let outcome = successor.wait_until_ready(limit);
            let _ = events.send(ServerEvent::Upgraded(outcome.map(|()| upgrade::success_message(pid))));
        })?;
        Ok(())
    }

    /// Logs the upstream servers whose state or weight was changed at run time, because the successor does
    /// not inherit these changes.
    fn warn_of_runtime_changes(&self) {
        for (name, group) in self.current.active_plan().groups.named_groups() {
            for server in 0..group.server_count() {
                let order = group.order(server);
                let weight = group.weight(server);
                let mut lost = Vec::new();
                if order != UpstreamOrder::Ready {
                    lost.push(format!("its state `{}`", order.text()));
                }
                if weight != group.options().servers[server].weight {
                    lost.push(format!("its weight {weight}"));
                }
                if !lost.is_empty() {
                    self.logs.notices.warn(&format!(
                        "upgrade: {} of the group {name} has lost {}: the new server begins with the configuration; \
                         give the order again (`komainu ctl upstream`)",
                        group.display_name(server),
                        lost.join(" and ")
                    ));
                }
            }
        }
    }

    /// Hands the service over to the successor that serves, or continues without one.
    fn finish_upgrade(&self, outcome: Result<String, Failure>, progress: &mut StopProgress) {
        if outcome.is_ok() && !progress.is_stopping {
            self.warn_of_runtime_changes();
        }
        if outcome.is_err() {
            // The successor may have taken over before it failed.
            self.listeners.receive_datagrams();
        }
        let Some(UpgradeProgress { waiters: askers, successor }) = progress.upgrade.take() else { return };
        let outcome = match outcome {
            Ok(text) => Ok(text),
            Err(failure) => Err(Failure::new(upgrade::failure_message(&failure.with_remedy()))),
        };
        if outcome.is_ok() {
            // The successor pushes metrics from here on.
            self.push.stop();
        }
        if self.link.is_none() {
            match (&outcome, successor) {
                (Ok(_), Some((_, pidfd))) if progress.is_stopping => {
                    // The successor began to serve before it could be killed.
                    let _ = pidfd_send_signal(&pidfd, Signal::TERM);
                }
                (Ok(text), Some((pid, _))) => {
                    self.logs.notices.info(text);
                    self.notifier.main_process(pid);
                    self.listeners.visit(|listener| {
                        // The socket file belongs to the successor and must not be examined.
                        let _ = listener.own_file(false);
                    });
                    self.begin_drain(progress);
                }
                (Err(failure), _) => self.logs.notices.error(&failure.to_string()),
                (Ok(_), None) => {}
            }
        }
        // The receivers may have been dropped.
        askers.into_iter().for_each(|asker| _ = asker.send(outcome.clone()));
    }

    /// Reloads the configuration. The result is returned and logged. `notifies` is whether the service
    /// manager is notified.
    fn reload(&self, notifies: bool) -> ReloadOutcome {
        if notifies {
            self.notifier.reloading();
        }
        let outcome = self.reload_config();
        if notifies {
            self.notifier.ready(&outcome.message);
            let reloaded = LinkRequest::Reloaded(&outcome.message);
            self.link.iter().for_each(|link| link.send_without_reply(&reloaded));
        }
        outcome
    }

    fn reload_config(&self) -> ReloadOutcome {
        let current = &self.current;
        let notices = &self.logs.notices;
        let Some(reread) = &self.reread else {
            // Applications can be reloaded without a configuration file.
            let applied = current.hosting.apply(&current.active_plan().config.apps, true);
            let text = "there is no configuration file to read: applications are loaded again";
            notices.info(text);
            let (effect, message) = match applied {
                Ok(()) => (ReloadEffect::Active, text.to_owned()),
                Err(error) => (ReloadEffect::PartlyActive, error.to_string()),
            };
            return ReloadOutcome { effect, message, warnings: Vec::new() };
        };
        match reread().and_then(|read| self.prepare_config(read)) {
            Ok(prepared) => {
                // Before applications are started from the new configuration.
                self.link.iter().for_each(|link| link.send_without_reply(&LinkRequest::Adopted));
                self.activate_config(prepared, true)
            }
            Err(failure) => {
                self.link.iter().for_each(|link| link.send_without_reply(&LinkRequest::Rejected));
                let text = format!("the configuration was not changed:\n{}", failure.with_remedy());
                notices.report(Level::Error, &text);
                failed_reload(ReloadEffect::Unchanged, text)
            }
        }
    }

    /// Changes a part of the configuration in force. An error leaves it as it was.
    fn change_part(&self, change: PartChange) -> ReloadOutcome {
        let changed = match change {
            PartChange::Servers(groups) => self.change_servers(&groups),
            PartChange::Certificates(files) => self.change_certificates(files),
        };
        match changed {
            Ok(warnings) => ReloadOutcome {
                effect: ReloadEffect::Active,
                message: "the change is in use".to_owned(),
                warnings,
            },
            Err(error) => failed_reload(ReloadEffect::Unchanged, error.to_string()),
        }
    }

    fn change_servers(&self, groups: &[(String, Arc<ProxyOptions>)]) -> io::Result<Vec<String>> {
        let plan = self.current.active_plan();
        let files = self.current.hosting.files();
        let sources = GroupSources { files: &files, found: &plan.discovery.found };
        for (name, proxy) in groups {
            if !plan.groups.replace_servers(name, proxy, sources)? {
                return Err(io::Error::other(format!("there is no group {name}")));
            }
        }
        Ok(Vec::new())
    }

    fn change_certificates(&self, files: MemoryFiles) -> io::Result<Vec<String>> {
        let (current, plan) = (&self.current, self.current.active_plan());
        let access = current.hosting.files();
        access.set_memory(files);
        let tls = plan.reread_tls(&access)?;
        plan.activate_tls(tls.as_deref(), &current.tls)?;
        TlsPlan::watch_staples(tls.as_deref(), &current.certificates.staples, &self.logs.notices);
        let warnings: Vec<String> = tls.iter().flat_map(|tls| tls.warnings()).cloned().collect();
        self.log_warnings(&warnings);
        plan.replace_tls(tls);
        Ok(warnings)
    }

    /// Puts the configuration in force again with what was found since.
    fn use_found(&self) {
        let plan = self.current.active_plan();
        if plan.is_current() {
            return;
        }
        let read = match self.current.active_text() {
            Some(text) => reading::reparse_text(&text.path, text.joined.to_string()),
            // Without a text there are no sites of containers.
            None => {
                let config = plan.groups.with_changes(plan.config.clone());
                Ok(ReadConfig { config, warnings: Vec::new(), text: None, files: None })
            }
        };
        // Warnings of the text have been logged.
        let read = read.map(|read| ReadConfig { warnings: Vec::new(), ..read });
        match read.and_then(|read| self.prepare_config(read)) {
            Ok(prepared) => _ = self.activate_config(prepared, false),
            Err(failure) => {
                let text = format!(
                    "what was found is not used (`[discover]`, `[cluster] peers`):\n{}",
                    failure.with_remedy()
                );
                self.logs.notices.report(Level::Error, &text);
            }
        }
    }

    /// Assembles a configuration without using it, so that missing directories and pages are found first.
    pub(crate) fn prepare_config(&self, read: ReadConfig) -> Result<PreparedConfig, Failure> {
        let (current, before) = (&self.current, self.current.active_plan());
        let ReadConfig { config, warnings, text, files } = read;
        if let Some(files) = files {
            current.hosting.files().set_memory(files);
        }
        let (config, sites) = join_sites(&before.discovery, config, text.as_ref(), &self.logs.notices);
        let plan = ServerPlan::new(config, Some(&before), current.cores, Some(&current.hosting));
        let mut plan = plan?;
        plan.discovery.found.sites = sites;
        // Bound before anything changes, because an address may be in use.
        let listeners = self.prepare_listeners(&before.config, &plan.config)?;
        let control = self.control_listener.prepare_change(&plan.config.control)?;
        let opened =
            self.logs.prepare(&before.config.log, &plan.config.log, plan.config.log_destinations())?;
        plan.sinks = opened.0.clone();
        Ok(PreparedConfig { plan, listeners, listener_change: control, opened_logs: opened, warnings, text })
    }

    /// Puts a configuration in force. `reloads` is whether unchanged applications are loaded again.
    pub(crate) fn activate_config(&self, prepared: PreparedConfig, reloads: bool) -> ReloadOutcome {
        let current = &self.current;
        let notices = &self.logs.notices;
        let PreparedConfig {
            plan,
            listeners,
            listener_change: control,
            opened_logs: (sinks, errors),
            mut warnings,
            text,
        } = prepared;
        self.logs.replace(sinks, errors, plan.config.log.level);
        let late = changes_requiring_restart(&current.start_config, &plan.config);
        let mut failures = Vec::new();
        if !late.is_empty() {
            let verb = if late.len() == 1 { "changes" } else { "change" };
            failures.push(format!("{} {verb} only at a restart", late.join(", ")));
            failures.iter().for_each(|text| notices.warn(text));
        }
        current.gate.apply(&plan.config);
        if let Err(error) = current.hosting.apply(&plan.config.apps, reloads) {
            notices.error(&error.to_string());
            failures.push(error.to_string());
        }
        let tls = plan.tls();
        warnings.extend(tls.iter().flat_map(|tls| tls.warnings()).cloned());
        warnings.extend(plan.control_access.warnings().iter().cloned());
        if let Err(error) = plan.activate_tls(tls.as_deref(), &current.tls) {
            notices.error(&error.to_string());
            failures.push(error.to_string());
        }
        let files = current.hosting.files();
        let system = is_system(self.link.as_ref());
        let (settings, cluster) = (plan.config.certificate_settings(), plan.cluster.as_ref());
        if let Err(error) = current.certificates.apply(&settings, &files, system, cluster, notices) {
            notices.error(&error.to_string());
            failures.push(error.to_string());
        }
        if let Err(error) = self.control_listener.apply_change(control, &plan.control_access) {
            notices.error(&error.to_string());
            failures.push(error.to_string());
        }
        TlsPlan::watch_staples(tls.as_deref(), &current.certificates.staples, notices);
        plan.groups.apply();
        *current.plan.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(plan);
        *current.text.lock().unwrap_or_else(PoisonError::into_inner) = text;
        current.follow_discovery(&self.events);
        current.generations.begin();
        current.generation.fetch_add(1, Ordering::Release);
        if let Some(listeners) = listeners {
            self.listeners.replace(listeners);
        }
        warnings.splice(0..0, options::http3_warnings(&self.listeners));
        self.log_warnings(&warnings);
        self.set_limits(&current.active_plan().config);
        if let Err(error) = self.push.apply(current.active_plan().push.clone()) {
            notices.error(&error.to_string());
            failures.push(error.to_string());
        }
        let level = if self.logged_warnings.is_some() { Level::Debug } else { Level::Info };
        let text = if reloads { "the configuration was read again" } else { "the configuration was changed" };
        notices.log(level, text);
        if failures.is_empty() {
            let message = "the new configuration is in use".to_owned();
            return ReloadOutcome { effect: ReloadEffect::Active, message, warnings };
        }
        let message = format!("the new configuration is in use, except for this:\n{}", failures.join("\n"));
        ReloadOutcome { effect: ReloadEffect::PartlyActive, message, warnings }
    }

    /// Applies the limits and timeouts of a new configuration.
    fn set_limits(&self, config: &Config) {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let options = options::engine_options(config, &options::Descriptors::new(config, limit));
        self.current.hosting.memory().set_bytes_max(options.memory.bytes_max());
        self.current.hosting.spill().set_bytes_max(config.limits.spill_bytes_max);
        let net::Options { limits, timeouts, hints_over_http1, .. } = options;
        self.listeners.set_limits(net::ServingLimits { limits, timeouts, hints_over_http1 });
    }

    /// Prepares the listeners of a new configuration: open ones are kept, others are bound here or by the
    /// supervisor. `None` if all of them stay as they are: where configurations follow each other by themselves, few of them concern
    /// one of hundreds of addresses. UDP sockets for HTTP/3 that could not be bound are tried again each time.
    fn prepare_listeners(&self, before: &Config, config: &Config) -> io::Result<Option<NewListeners>> {
        let cores = self.current.cores;
        let listens = options::listen_options(config);
        if self.logged_warnings.is_some()
            && listens.iter().all(|listen| !listen.allows_http3)
            && listens == options::listen_options(before)
        {
            return Ok(None);
        }
        let link = self.link.as_ref();
        let new =
            self.listeners.prepare(
                listens,
                link.is_some(),
                |place, listen: ListenOptions, open| match link {
                    Some(link) => {
                        net::Listener::adopt_from_supervisor(listen, link::request_sockets(link, place)?)
                    }
                    None => options::bind(listen, cores, open),
                },
            )?;
        Ok(Some(new))
    }
}

/// Logs the number of requests that a stop waits for, since it would otherwise appear to hang.
fn report_draining(active_config: &ActiveConfig, listeners: &net::Listeners, notices: &ErrorLog) {
    let drain = active_config.active_plan().config.timeouts.drain;
    if drain <= DRAIN_REPORT_DELAY {
        return;
    }
    // Idle connections are closed by now, or about to be.
    let open = listeners.connections();
    let listed: usize = open.listed.iter().map(|connection| connection.requests as usize).sum();
    let requests = listed + open.count.saturating_sub(open.listed.len());
    if requests > 0 {
        let noun = if requests == 1 { "request" } else { "requests" };
        notices.warn(&format!(
            "stopping: waiting for {requests} {noun} to end, at most {} s (timeouts.drain); \
             a second signal ends them at once",
            drain.as_secs()
        ));
    }
}

/// Result of a reload that has changed nothing.
fn failed_reload(effect: ReloadEffect, message: String) -> ReloadOutcome {
    ReloadOutcome { effect, message, warnings: Vec::new() }
}

/// Result of a reload that was not begun.
pub(crate) fn unstarted_reload(text: &str) -> ReloadOutcome {
    failed_reload(ReloadEffect::NotBegun, text.to_owned())
}

/// Maximum time to write the last log lines when the server ends at once.
const LAST_LINES_TIMEOUT: Duration = Duration::from_secs(1);

/// Ends the process on a second request to stop, regardless of its threads; the logs are given a moment to be
/// written.
fn exit_immediately(logs: &Logs) -> ! {
    logs.notices.warn("second request to stop: not waiting for running requests");
    let (done, closed) = sync_channel(1);
    let logs = logs.clone();
    let closer = std::thread::Builder::new().spawn(move || {
        logs.close();
        let _ = done.send(());
    });
    if closer.is_ok() {
        let _ = closed.recv_timeout(LAST_LINES_TIMEOUT);
    }
    std::process::exit(1);
}

/// Handles a second request to stop while the process waits for workers.
pub(crate) fn handle_second_stop(events: Receiver<ServerEvent>, logs: Logs) -> io::Result<()> {
    std::thread::Builder::new().name("stop".into()).spawn(move || {
        if events.into_iter().any(|event| matches!(event, ServerEvent::Stop)) {
            exit_immediately(&logs);
        }
    })?;
    Ok(())
}

pub(crate) fn order_to_event(order: SupervisorOrder) -> ServerEvent {
    match order {
        SupervisorOrder::Stop => ServerEvent::Stop,
        SupervisorOrder::Reload => ServerEvent::Reload(None),
        SupervisorOrder::Reopen => ServerEvent::Reopen(None),
        SupervisorOrder::Upgraded(message) => ServerEvent::Upgraded(Ok(message)),
        SupervisorOrder::UpgradeFailed(reason) => ServerEvent::Upgraded(Err(Failure::from(reason))),
    }
}

/// Converts signals to events, on a separate thread. A supervised server takes orders from its supervisor
/// only: systemd sends signals to both processes, and the second SIGTERM would end the server at once. Also,
/// applications that run as the server's user could send it signals.
pub(crate) fn forward_signals(
    mut signals: SignalsInfo<WithOrigin>,
    supervised: bool,
    events: Sender<ServerEvent>,
) -> io::Result<()> {
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        let mut stops = StopSignals::default();
        signals.forever().try_for_each(|origin| match origin.signal {
            _ if supervised => Ok(()),
            SIGUSR2 => events.send(ServerEvent::Upgrade(None)),
            SIGUSR1 => events.send(ServerEvent::Reopen(None)),
            SIGHUP => events.send(ServerEvent::Reload(None)),
            _ if !stops.is_request(Instant::now()) => Ok(()),
            _ => {
                events.send(ServerEvent::Signal(stop_signals::describe(&origin)))?;
                events.send(ServerEvent::Stop)
            }
        })
    })?;
    Ok(())
}

/// Returns the changed settings that require a restart.
pub(crate) fn changes_requiring_restart(old: &Config, new: &Config) -> Vec<&'static str> {
    // Applications and groups created without temporary files get none until they are created again.
    let spills = |config: &Config| config.limits.spill_bytes_max > 0;
    let changes = [
        ("`user`", (&new.user, &new.group) != (&old.user, &old.group)),
        ("`threads`", new.threads != old.threads),
        ("`sandbox`", new.sandbox != old.sandbox),
        ("`limits.spill`", spills(new) != spills(old)),
        ("`temp_path`", new.temp_path != old.temp_path),
    ];
    changes.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
}
