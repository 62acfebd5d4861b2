//! The supervisor: the process that keeps root's rights while another process, without them, serves.
//!
//! The supervisor binds the addresses, opens the logs and the control socket, and starts the server. If the
//! server dies it is restarted; until then connections wait in the listening sockets, which remain open here.
//! The supervisor reads nothing from the network. From the server it accepts only the requests of
//! [`process::link`], and answers them from the configuration that it has read itself.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ::link::{LinkRequest, LinkSession};
use certificates::managed;
use config::Config;
use engine::options;
use failure::Failure;
use logging::notice::ErrorLog;
use logging::sink::{LogSink, LogTarget};
use net::sys::set_process_group;
use operator::socket::ControlSocket;
use process::crashes;
use process::link::{self, SupervisorOrder};
use process::sockets::InheritedSockets;
use process::stop_signals::{self, StopSignals};
use process::systemd::{self, Notifier};
use process::upgrade::{self, HandedSockets, Predecessor, Successor};
use rights::privilege::{self, Identity};
use rights::process_status::ProcessStatus;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, wait};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;

use crate::run::supervisor_requests::{
    EXIT_CHECK_INTERVAL, EXIT_STATUSES_MAX, LoadedConfig, SupervisorState, check_apps_launchable,
    kill_orphans, lock,
};

/// First and maximum pause before a server that dies repeatedly is restarted.
const RESTART_PAUSE_MIN: Duration = Duration::from_millis(100);
const RESTART_PAUSE_MAX: Duration = Duration::from_secs(10);
/// A server that has run for this long is restarted without a pause.
const STABLE_AFTER: Duration = Duration::from_secs(60);
/// Maximum number of successors that are remembered, as many as exit statuses.
const SUCCESSORS_MAX: usize = EXIT_STATUSES_MAX;
/// Time to read the last messages of a server that has ended.
const LAST_MESSAGES_TIMEOUT: Duration = Duration::from_secs(1);
/// Time after the second signal to stop until the server is killed.
const KILL_AFTER: Duration = Duration::from_secs(2);

/// Time that a replaced server has to end after its connections and applications had theirs, before it is killed.
const REPLACED_MARGIN: Duration = Duration::from_secs(15);

/// Interval of checks whether the server is stopped (SIGSTOP), and the maximum duration of this.
const STOPPED_CHECK_INTERVAL: Duration = Duration::from_secs(1);
const STOPPED_TIME_MAX: Duration = Duration::from_secs(5);

/// Maximum length of a reported start failure, in characters.
const REASON_CHARS_MAX: usize = 2_000;

enum SupervisorEvent {
    Signal(i32),
    /// The server has begun to serve.
    Ready,
    /// The server requests an upgrade.
    Upgrade,
    /// Outcome of an upgrade: the process that has taken over, or the reason that it failed.
    Upgraded(Result<u32, Failure>),
    Ended(ExitStatus),
}

/// A running server process.
struct ServerProcess {
    pid: u32,
    pidfd: Arc<OwnedFd>,
    link: Arc<OwnedFd>,
    started_at: Instant,
    /// Thread that reads the server's messages; ends after the last one.
    message_reader: JoinHandle<()>,
}

/// Waits until the last messages of a server that has ended are read from the link.
fn wait_for_last_messages(child: &ServerProcess) {
    let until = Instant::now() + LAST_MESSAGES_TIMEOUT;
    while !child.message_reader.is_finished() && Instant::now() < until {
        std::thread::sleep(EXIT_CHECK_INTERVAL);
    }
}

/// Binds the addresses, opens the logs, starts the server and runs until a signal stops it. Returns the
/// server's exit status.
///
/// # Errors
/// The server cannot be started.
pub(crate) fn supervise(
    config: Config,
    file: Option<(PathBuf, String)>,
    identity: Identity,
    predecessor: Option<Predecessor>,
    mut given: InheritedSockets,
) -> io::Result<u8> {
    let mut signals = SignalsInfo::<WithOrigin>::new([SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2])?;
    check_apps_launchable(&config)?;
    let threads = options::thread_count(&config);
    options::check_descriptors(&config)?;
    let listeners = options::open(&config, &mut given, threads)?;
    let notices = ErrorLog::new(LogSink::open(LogTarget::from(&config.log.errors))?, config.log.level);
    if let Err(error) = managed::create_state_folder(&config.certificate_settings(), &identity) {
        notices.error(&error.to_string());
    }
    if let Some(disk) = &config.cache.disk
        && let Err(error) = identity.create_folder(&disk.path)
    {
        notices.error(&format!("cache.disk {}: {error}", disk.path.display()));
    }
    let control = ControlSocket::bind();
    if let Err(error) = &control {
        notices.warn(&format!("`komainu status`, `reload` and `upgrade` will not work: {error}"));
    }
    let (file, text) = file.unzip();
    let state = Arc::new(SupervisorState {
        notices: notices.clone(),
        identity,
        file,
        current: Mutex::new(LoadedConfig { config, text }),
        offered_config: Mutex::default(),
        listeners: Mutex::new(listeners),
        offered_listeners: Mutex::default(),
        notifier: Notifier::of_environment(),
        watchdog: systemd::watchdog_interval(),
        predecessor: Mutex::new(predecessor),
        control: control.ok(),
        app_processes: Mutex::default(),
        has_served: AtomicBool::new(false),
        start_failure: Mutex::default(),
    });
    // Orphaned workers become children of this process.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let (sender, events) = channel();
    std::thread::Builder::new().name("signals".into()).spawn({
        let sender = sender.clone();
        let notices = notices.clone();
        let mut stops = StopSignals::default();
        move || {
            signals.forever().try_for_each(|origin| {
                if matches!(origin.signal, SIGTERM | SIGINT | SIGQUIT) {
                    if !stops.is_request(Instant::now()) {
                        return Ok(());
                    }
                    notices.info(&stop_signals::describe(&origin));
                }
                sender.send(SupervisorEvent::Signal(origin.signal))
            })
        }
    })?;
    let mut supervisor = SupervisorLoop {
        state,
        sender,
        notices,
        stop_requests: 0,
        successor: None,
        is_replaced: false,
        inherited_sockets: Some(given),
    };
    let outcome = supervisor.run_until_stopped(&events);
    supervisor.notices.sink().close();
    outcome
}

/// State of the supervisor's main thread.
struct SupervisorLoop {
    state: Arc<SupervisorState>,
    sender: Sender<SupervisorEvent>,
    notices: ErrorLog,
    /// Number of requests to stop.
    stop_requests: u32,
    /// The successor, until its start has succeeded or failed.
    successor: Option<OwnedFd>,
    /// Whether another process has taken over.
    is_replaced: bool,
    /// Given sockets, discarded with a warning about unused ones once the server is ready.
    inherited_sockets: Option<InheritedSockets>,
}

impl SupervisorLoop {
    /// Restarts the server whenever it dies, until it ends after a request to stop.
    fn run_until_stopped(&mut self, events: &Receiver<SupervisorEvent>) -> io::Result<u8> {
        let mut failures = 0;
        loop {
            let mut child = start_server(&self.state, &self.sender)?;
            let status = self.watch_server(&mut child, events)?;
            self.state.kill_app_processes();
            let successors = lock(&self.state.app_processes).other_children.clone();
            kill_orphans(&successors);
            if self.stop_requests > 0 || self.is_replaced || !self.state.has_served.load(Ordering::Relaxed) {
                // A server that could not start has reported the reason.
                self.report_failure(&child, status);
                return Ok(status.code().map_or(1, |code| u8::try_from(code).unwrap_or(1)));
            }
            if child.started_at.elapsed() >= STABLE_AFTER {
                failures = 0;
            }
            let pause = match failures {
                0 => Duration::ZERO,
                _ => (RESTART_PAUSE_MIN * (1 << (failures - 1).min(16))).min(RESTART_PAUSE_MAX),
            };
            failures += 1;
            wait_for_last_messages(&child);
            let reason = lock(&self.state.start_failure)
                .take()
                .map_or_else(String::new, |reason| format!(": {reason}"));
            let core = crashes::describe_core_dump(status);
            let text = format!(
                "the server (process {}) died: {status}{core}{reason}; it is started again",
                child.pid
            );
            let when = if pause.is_zero() { String::new() } else { format!(" in {} ms", pause.as_millis()) };
            self.notices.error(&format!("{text}{when}"));
            for listener in lock(&self.state.listeners).iter_mut() {
                if let Err(error) = listener.renew_channels() {
                    self.notices.error(&format!("HTTP/3 at {}: {error}", listener.url()));
                }
            }
            self.state.notifier.reset_watchdog();
            let until = Instant::now() + pause;
            while let Ok(event) = events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                match event {
                    SupervisorEvent::Signal(SIGTERM | SIGINT | SIGQUIT) => return Ok(0),
                    SupervisorEvent::Signal(SIGUSR1) => _ = self.notices.sink().reopen(),
                    SupervisorEvent::Upgraded(Ok(pid)) => {
                        self.hand_over_to(pid);
                        return Ok(0);
                    }
                    SupervisorEvent::Upgraded(Err(_)) => self.successor = None,
                    _ => {}
                }
            }
        }
    }

    /// Reports to the predecessor why this server does not serve.
    fn report_failure(&self, child: &ServerProcess, status: ExitStatus) {
        let Some(predecessor) = lock(&self.state.predecessor).take() else { return };
        wait_for_last_messages(child);
        let reason = lock(&self.state.start_failure).take();
        predecessor.report_failure(&reason.unwrap_or_else(|| format!("the server ended: {status}")));
    }

    /// Passes signals on as orders until the server ends; counts those to stop.
    fn watch_server(
        &mut self,
        child: &mut ServerProcess,
        events: &Receiver<SupervisorEvent>,
    ) -> io::Result<ExitStatus> {
        let mut kill_at = None;
        let mut stopped_since = None;
        loop {
            let wait = kill_at
                .map_or(STOPPED_CHECK_INTERVAL, |at: Instant| at.saturating_duration_since(Instant::now()));
            let event = events.recv_timeout(wait.min(STOPPED_CHECK_INTERVAL));
            self.continue_if_stopped(child, &mut stopped_since);
            let order = match event {
                Ok(SupervisorEvent::Ended(status)) => return Ok(status),
                Ok(SupervisorEvent::Ready) => {
                    self.handle_ready();
                    continue;
                }
                Ok(SupervisorEvent::Signal(SIGUSR1)) => {
                    _ = self.notices.sink().reopen();
                    SupervisorOrder::Reopen
                }
                Ok(SupervisorEvent::Signal(SIGHUP)) => {
                    self.state.notifier.reloading();
                    SupervisorOrder::Reload
                }
                Ok(SupervisorEvent::Upgrade | SupervisorEvent::Signal(SIGUSR2)) => match self.begin_upgrade()
                {
                    Ok(()) => continue,
                    Err(error) => self.handle_upgrade_failure(&Failure::from(error)),
                },
                Ok(SupervisorEvent::Upgraded(Err(error))) => self.handle_upgrade_failure(&error),
                Ok(SupervisorEvent::Upgraded(Ok(pid))) => {
                    let text = self.hand_over_to(pid);
                    // Fails if the server has ended; then there is no client to answer.
                    let _ = link::send(&*child.link, &SupervisorOrder::Upgraded(text).text(), &[]);
                    // The server still has the sockets; it could ignore the order and continue to accept.
                    kill_at = Some(Instant::now() + self.replaced_server_time());
                    SupervisorOrder::Stop
                }
                Ok(SupervisorEvent::Signal(_)) => match self.handle_stop(&mut kill_at) {
                    Some(order) => order,
                    None => continue,
                },
                Err(RecvTimeoutError::Timeout) if kill_at.is_some_and(|at| at <= Instant::now()) => {
                    if self.is_replaced && self.stop_requests < 2 {
                        let pid = child.pid;
                        self.notices.error(&format!(
                            "the replaced server (process {pid}) has not ended in time: it is killed"
                        ));
                    }
                    kill_server(child);
                    kill_at = None;
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return Err(io::Error::other("no signals any more")),
            };
            if let Err(error) = link::send(&*child.link, &order.text(), &[]) {
                let text = format!("the server (process {}) takes no orders: {error}: killing it", child.pid);
                self.notices.error(&text);
                kill_server(child);
            }
        }
    }

    /// Time after which a replaced server that obeys has ended.
    fn replaced_server_time(&self) -> Duration {
        let current = lock(&self.state.current);
        let apps = current.config.apps.iter().map(|(_, app)| app.timeouts.stop).max().unwrap_or_default();
        current.config.timeouts.drain + apps + REPLACED_MARGIN
    }

    /// Continues a server that was stopped by a signal, as another process of the same user could do.
    fn continue_if_stopped(&self, child: &ServerProcess, stopped_since: &mut Option<Instant>) {
        if !ProcessStatus::of(child.pid).is_some_and(|status| status.is_stopped()) {
            *stopped_since = None;
            return;
        }
        if stopped_since.get_or_insert_with(Instant::now).elapsed() < STOPPED_TIME_MAX {
            return;
        }
        *stopped_since = None;
        let pid = child.pid;
        let seconds = STOPPED_TIME_MAX.as_secs();
        self.notices.error(&format!(
            "the server (process {pid}) was stopped by a signal for {seconds} s: it is continued"
        ));
        // Fails only if the process has ended already.
        let _ = pidfd_send_signal(&*child.pidfd, Signal::CONT);
    }

    /// Handles the server's message that it is ready.
    fn handle_ready(&mut self) {
        let is_first = !self.state.has_served.swap(true, Ordering::Relaxed);
        if let Some(predecessor) = lock(&self.state.predecessor).take() {
            predecessor.report_ready();
            lock(&self.state.listeners).iter_mut().for_each(|listener| _ = listener.own_file(true));
        }
        if let Some(given) = self.inherited_sockets.take() {
            given.warn_of_unused(&self.notices);
            given.discard();
        }
        if is_first {
            let addresses: Vec<String> =
                lock(&self.state.listeners).iter().map(|open| open.address().to_string()).collect();
            self.state.notifier.ready(&format!("serving on {}", addresses.join(", ")));
        }
    }

    /// Handles a signal to stop; returns the order for the server, if any.
    fn handle_stop(&mut self, kill_at: &mut Option<Instant>) -> Option<SupervisorOrder> {
        self.stop_requests += 1;
        if self.stop_requests == 2 {
            *kill_at = Some(Instant::now() + KILL_AFTER);
        }
        if let Some(successor) = &self.successor {
            // Fails only if the process has ended already.
            let _ = pidfd_send_signal(successor, Signal::KILL);
        }
        if self.is_replaced && self.stop_requests == 1 {
            // A replaced server is already draining.
            return None;
        }
        if !self.is_replaced {
            self.state.notifier.stopping();
        }
        // Refuse new connections: once the server has closed its copies as well, these sockets are closed.
        lock(&self.state.listeners).clear();
        Some(SupervisorOrder::Stop)
    }

    /// Starts a new process of the program with copies of the sockets.
    fn begin_upgrade(&mut self) -> io::Result<()> {
        if self.stop_requests > 0 || self.is_replaced {
            return Err(io::Error::other("the server is stopping"));
        }
        if self.successor.is_some() {
            return Ok(());
        }
        let handed = lock(&self.state.listeners).iter().map(HandedSockets::of).collect::<io::Result<_>>()?;
        let successor = Successor::start(handed)?;
        let pid = successor.pid();
        self.notices.info(&format!("upgrade: process {pid} is started"));
        {
            let processes = &mut *lock(&self.state.app_processes);
            processes.other_children.push(pid);
            processes.successors.push_back(pid);
            if processes.successors.len() > SUCCESSORS_MAX {
                processes.successors.pop_front();
            }
        }
        self.successor = Some(successor.pidfd()?);
        let limit = upgrade::start_timeout(&lock(&self.state.current).config.apps);
        let sender = self.sender.clone();
        let state = self.state.clone();
        std::thread::Builder::new().name("upgrade".into()).spawn(move || {
            let outcome = successor.wait_until_ready(limit);
            if outcome.is_err() {
                // The process was reaped, so its id may be reused.
                lock(&state.app_processes).other_children.retain(|reserved| *reserved != pid);
            }
            let _ = sender.send(SupervisorEvent::Upgraded(outcome.map(|()| pid)));
        })?;
        Ok(())
    }

    /// Records a failed upgrade; returns the order for the server, which continues.
    fn handle_upgrade_failure(&mut self, failure: &Failure) -> SupervisorOrder {
        self.successor = None;
        let reason = failure.with_remedy();
        if self.stop_requests == 0 {
            self.notices.error(&upgrade::failure_message(&reason));
        }
        SupervisorOrder::UpgradeFailed(reason)
    }

    /// Hands over to a successor: sockets and their files belong to it. Returns the message for the log.
    fn hand_over_to(&mut self, pid: u32) -> String {
        if self.stop_requests > 0
            && let Some(successor) = &self.successor
        {
            // The successor began to serve before it could be killed.
            let _ = pidfd_send_signal(successor, Signal::TERM);
        }
        self.successor = None;
        self.is_replaced = true;
        let text = upgrade::success_message(pid);
        self.notices.info(&text);
        self.state.notifier.main_process(pid);
        let mut listeners = lock(&self.state.listeners);
        for listener in listeners.iter_mut() {
            // The socket file belongs to the successor and must not be examined.
            let _ = listener.own_file(false);
        }
        listeners.clear();
        text
    }
}

fn kill_server(child: &ServerProcess) {
    // Fails only if the process has ended already.
    let _ = pidfd_send_signal(&*child.pidfd, Signal::KILL);
}

/// Starts the server: this program with the same arguments and the link as its standard input.
fn start_server(state: &Arc<SupervisorState>, sender: &Sender<SupervisorEvent>) -> io::Result<ServerProcess> {
    let (ours, theirs) = link::pair()?;
    let mut arguments = std::env::args_os();
    let mut command = Command::new("/proc/self/exe");
    command.arg0(arguments.next().unwrap_or_else(|| "komainu".into())).args(arguments);
    command
        .env(link::ENVIRONMENT, std::process::id().to_string())
        .env(link::IDENTITY, state.identity.text())
        .env_remove(upgrade::ENVIRONMENT)
        .stdin(Stdio::from(theirs));
    // The terminal and its signals belong to the supervisor, which passes on orders instead.
    set_process_group(&mut command, true);
    systemd::PROCESS_VARIABLES
        .iter()
        .chain(&systemd::SERVICE_VARIABLES)
        .for_each(|name| _ = command.env_remove(name));
    let process = apps::spawn_unrelated(&mut command)?;
    // The server's end of the link must not remain open here.
    drop(command);
    let pid = Pid::from_child(&process);
    lock(&state.app_processes).other_children.push(process.id());
    let pidfd = Arc::new(pidfd_open(pid, PidfdFlags::empty())?);
    let link = Arc::new(ours);
    let asked = state.clone();
    let theirs = link.clone();
    let events = sender.clone();
    let server = pidfd.clone();
    // Workers have the kernel kill them when the thread that started them ends, which is this one.
    let hearer = std::thread::Builder::new().name("server-link".into()).spawn(move || {
        match privilege::restrict_children() {
            Ok(()) => answer_requests(&asked, &theirs, &events),
            Err(error) => asked.notices.error(&format!("cannot restrict what the server starts: {error}")),
        }
        // The server has ended, does not read its answers, or has violated the protocol.
        let _ = pidfd_send_signal(&*server, Signal::KILL);
    })?;
    let events = sender.clone();
    let launched = state.clone();
    std::thread::Builder::new().name("server-end".into()).spawn(move || {
        // Reaps all children until the server has ended; the next such thread continues with the rest.
        while let Ok(Some((ended, status))) = wait(WaitOptions::empty()) {
            lock(&launched.app_processes)
                .other_children
                .retain(|reserved| *reserved != ended.as_raw_pid().cast_unsigned());
            if ended == pid {
                let _ = events.send(SupervisorEvent::Ended(ExitStatus::from_raw(status.as_raw())));
                return;
            }
            let ends = &mut lock(&launched.app_processes).exit_statuses;
            ends.push_back((ended, status));
            if ends.len() > EXIT_STATUSES_MAX {
                ends.pop_front();
            }
        }
    })?;
    Ok(ServerProcess { pid: process.id(), pidfd, link, started_at: Instant::now(), message_reader: hearer })
}

/// Handles the server's requests until it ends or violates the protocol.
fn answer_requests(state: &SupervisorState, link: &OwnedFd, events: &Sender<SupervisorEvent>) {
    let mut session = LinkSession::default();
    let mut descriptors = Vec::new();
    while let Ok(Some(packet)) = link::receive(link) {
        let request = match session.accept(&packet.text, packet.descriptors.len()) {
            Ok(request) => request,
            Err(violation) => {
                let text = format!(
                    "the server sent its supervisor {violation}: it is killed, as it may be under an attacker's control"
                );
                return state.notices.error(&text);
            }
        };
        descriptors.extend(packet.descriptors);
        match request {
            LinkRequest::More => continue,
            LinkRequest::Ready => _ = events.send(SupervisorEvent::Ready),
            LinkRequest::Upgrade => _ = events.send(SupervisorEvent::Upgrade),
            LinkRequest::Alive => state.notifier.reset_watchdog(),
            LinkRequest::Reloaded(status) => state.notifier.ready(status),
            LinkRequest::Failed(reason) => {
                *lock(&state.start_failure) = Some(reason.chars().take(REASON_CHARS_MAX).collect())
            }
            _ => {}
        }
        if state.answer_request(link, &mut session, request, std::mem::take(&mut descriptors)).is_err() {
            return;
        }
    }
}
