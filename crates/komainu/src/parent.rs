//! The supervisor: the process that keeps root's rights while another one, without them, serves.
//!
//! It binds the addresses, opens the logs and the control socket, starts the server, and starts it again when it dies:
//! until then connections wait in the listening sockets, which stay open here. It reads nothing from the network. From the
//! server it accepts only the requests of [`crate::link`], and answers them from the configuration that it has read itself.

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

use config::Config;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, wait};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use crate::answers::{ENDED_LOOK, ENDS_MAX, LoadedConfig, ParentState, can_be_launched, lock};
use crate::control::Socket;
use crate::engine;
use crate::link::{self, SupervisorOrder};
use crate::notice::ErrorLog;
use crate::privilege::{self, Identity};
use crate::sink::{self, LogSink, LogTarget};

/// The pause before a server that dies again and again is started: the first, and the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// A server that has served for so long is started again without a pause.
const PROVEN: Duration = Duration::from_secs(60);
/// Time to read the last messages of a server that has ended.
const LAST_WORDS_MAX: Duration = Duration::from_secs(1);
/// After the second signal to stop, the server is killed if it has not ended.
const KILL_AFTER: Duration = Duration::from_secs(2);

/// Longest reason why a server could not start, in bytes.
const REASON_CHARS_MAX: usize = 2_000;
/// Descriptors that come with one question.
const QUESTION_DESCRIPTORS_MAX: usize = 4096;

enum ParentEvent {
    Signal(i32),
    /// The server has begun to serve.
    Ready,
    Ended(ExitStatus),
}

/// A server that runs.
struct ServerProcess {
    pid: u32,
    pidfd: Arc<OwnedFd>,
    link: Arc<OwnedFd>,
    since: Instant,
    /// The thread that reads the server's messages; it ends after the last one.
    hearer: JoinHandle<()>,
}

/// Waits until the last messages of a server that has ended are read from the link.
fn hear_out(child: &ServerProcess) {
    let until = Instant::now() + LAST_WORDS_MAX;
    while !child.hearer.is_finished() && Instant::now() < until {
        std::thread::sleep(ENDED_LOOK);
    }
}

/// Binds, opens and starts what the configuration says, and runs until a signal stops it; returns the exit status of the server.
///
/// # Errors
/// Why the server cannot start.
pub(crate) fn supervise(
    config: Config,
    file: Option<(PathBuf, String)>,
    identity: Identity,
) -> io::Result<u8> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2])?;
    can_be_launched(&config)?;
    let threads = engine::threads(&config);
    let listens = engine::listens(&config);
    engine::enough_descriptors(&config)?;
    let listeners = listens.into_iter().map(|listen| engine::bind(listen, threads));
    let listeners = listeners.collect::<io::Result<Vec<_>>>()?;
    let notices = ErrorLog::new(LogSink::open(LogTarget::from(&config.log.errors))?, config.log.level);
    let control = Socket::bind();
    if let Err(error) = &control {
        notices.warn(&format!("`komainu status` and `komainu reload` will not work: {error}"));
    }
    let (file, text) = file.unzip();
    let state = Arc::new(ParentState {
        logs: sink::files(&config),
        identity,
        file,
        current: Mutex::new(LoadedConfig { config, text }),
        offered: Mutex::default(),
        listeners: Mutex::new(listeners),
        control: control.ok(),
        launched: Mutex::default(),
        served: AtomicBool::new(false),
        reason: Mutex::default(),
    });
    // Workers that lose their parent on purpose become children of this process.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let (sender, events) = channel();
    std::thread::Builder::new().name("signals".into()).spawn({
        let sender = sender.clone();
        move || signals.forever().try_for_each(|signal| sender.send(ParentEvent::Signal(signal)))
    })?;
    let outcome = keep_serving(&state, &sender, &events, &notices);
    notices.sink().close();
    outcome
}

/// Starts the server, again and again, until it ends after an order to stop.
fn keep_serving(
    state: &Arc<ParentState>,
    sender: &Sender<ParentEvent>,
    events: &Receiver<ParentEvent>,
    notices: &ErrorLog,
) -> io::Result<u8> {
    let mut failures = 0;
    loop {
        let mut child = start(state, sender)?;
        let mut stops = 0;
        let status = watch(state, &mut child, events, notices, &mut stops)?;
        state.kill_launched();
        if stops > 0 || !state.served.load(Ordering::Relaxed) {
            // If it could not start, it has reported why.
            return Ok(status.code().map_or(1, |code| u8::try_from(code).unwrap_or(1)));
        }
        if child.since.elapsed() >= PROVEN {
            failures = 0;
        }
        let pause = match failures {
            0 => Duration::ZERO,
            _ => (PAUSE_FIRST * (1 << (failures - 1).min(16))).min(PAUSE_MAX),
        };
        failures += 1;
        hear_out(&child);
        let reason = lock(&state.reason).take().map_or_else(String::new, |reason| format!(": {reason}"));
        let text = format!("the server (process {}) died: {status}{reason}; it is started again", child.pid);
        let when = if pause.is_zero() { String::new() } else { format!(" in {} ms", pause.as_millis()) };
        notices.error(&format!("{text}{when}"));
        let until = Instant::now() + pause;
        while let Ok(event) = events.recv_timeout(until.saturating_duration_since(Instant::now())) {
            match event {
                ParentEvent::Signal(SIGTERM | SIGINT | SIGQUIT) => return Ok(0),
                ParentEvent::Signal(SIGUSR1) => notices.sink().reopen(),
                _ => {}
            }
        }
    }
}

/// Passes signals on as orders until the server ends; counts those to stop.
fn watch(
    state: &ParentState,
    child: &mut ServerProcess,
    events: &Receiver<ParentEvent>,
    notices: &ErrorLog,
    stops: &mut u32,
) -> io::Result<ExitStatus> {
    let mut kill_at = None;
    loop {
        let wait = kill_at.map_or(PAUSE_MAX, |at: Instant| at.saturating_duration_since(Instant::now()));
        let order = match events.recv_timeout(wait) {
            Ok(ParentEvent::Ended(status)) => return Ok(status),
            Ok(ParentEvent::Ready) => {
                state.served.store(true, Ordering::Relaxed);
                continue;
            }
            Ok(ParentEvent::Signal(SIGUSR1)) => {
                notices.sink().reopen();
                SupervisorOrder::Reopen
            }
            Ok(ParentEvent::Signal(SIGHUP)) => SupervisorOrder::Reload,
            Ok(ParentEvent::Signal(SIGUSR2)) => {
                notices.warn(UPGRADE_UNKNOWN);
                continue;
            }
            Ok(ParentEvent::Signal(_)) => {
                *stops += 1;
                if *stops == 2 {
                    kill_at = Some(Instant::now() + KILL_AFTER);
                }
                // Nobody new is let in: the server closes its descriptors of these sockets, and they are the last.
                lock(&state.listeners).clear();
                SupervisorOrder::Stop
            }
            Err(RecvTimeoutError::Timeout) if kill_at.is_some_and(|at| at <= Instant::now()) => {
                kill(child);
                kill_at = None;
                continue;
            }
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return Err(io::Error::other("no signals any more")),
        };
        if let Err(error) = link::send(&*child.link, order.word(), &[]) {
            notices
                .error(&format!("the server (process {}) takes no orders: {error}: killing it", child.pid));
            kill(child);
        }
    }
}

/// Logged for SIGUSR2, which is reserved.
pub(crate) const UPGRADE_UNKNOWN: &str =
    "SIGUSR2 is ignored: an upgrade of a running server is not supported; restart it";

fn kill(child: &ServerProcess) {
    // It fails only where the process has ended already.
    let _ = pidfd_send_signal(&*child.pidfd, Signal::KILL);
}

/// Starts the server: this program with these arguments again, whose standard input is the link.
fn start(state: &Arc<ParentState>, sender: &Sender<ParentEvent>) -> io::Result<ServerProcess> {
    let (ours, theirs) = link::pair()?;
    let mut arguments = std::env::args_os();
    let mut command = Command::new("/proc/self/exe");
    command.arg0(arguments.next().unwrap_or_else(|| "komainu".into())).args(arguments);
    command
        .env(link::ENVIRONMENT, std::process::id().to_string())
        .stdin(Stdio::from(theirs))
        // Signals from a terminal are for the supervisor, which passes on what they mean.
        .process_group(0);
    let process = command.spawn()?;
    // The end of the link that is the server's must not stay open here.
    drop(command);
    let pid = Pid::from_child(&process);
    let pidfd = Arc::new(pidfd_open(pid, PidfdFlags::empty())?);
    let link = Arc::new(ours);
    let (asked, theirs, events, server) = (state.clone(), link.clone(), sender.clone(), pidfd.clone());
    // Processes that it starts end with it: the kernel kills them then.
    let hearer = std::thread::Builder::new().name("server-link".into()).spawn(move || {
        let restricted = privilege::restrict_children();
        let mut descriptors = Vec::new();
        while let (Ok(()), Ok(Some(packet))) = (&restricted, link::receive(&*theirs)) {
            if packet.text == "ready" {
                let _ = events.send(ParentEvent::Ready);
            } else if let Some(reason) = packet.text.strip_prefix("failed ") {
                *lock(&asked.reason) = Some(reason.chars().take(REASON_CHARS_MAX).collect());
            } else if packet.text == "more" && descriptors.len() < QUESTION_DESCRIPTORS_MAX {
                descriptors.extend(packet.descriptors);
            } else {
                descriptors.extend(packet.descriptors);
                let answered = asked.answer(&theirs, &packet.text, std::mem::take(&mut descriptors));
                if answered.is_err() {
                    break;
                }
            }
        }
        // It has ended, or does not take its answers.
        let _ = pidfd_send_signal(&*server, Signal::KILL);
    })?;
    let (events, launched) = (sender.clone(), state.clone());
    std::thread::Builder::new().name("server-end".into()).spawn(move || {
        // Reaps every child that ends; the next such thread continues with those left.
        while let Ok(Some((ended, status))) = wait(WaitOptions::empty()) {
            if ended == pid {
                let _ = events.send(ParentEvent::Ended(ExitStatus::from_raw(status.as_raw())));
                return;
            }
            let ends = &mut lock(&launched.launched).ended;
            ends.push_back((ended, status));
            if ends.len() > ENDS_MAX {
                ends.pop_front();
            }
        }
    })?;
    Ok(ServerProcess { pid: process.id(), pidfd, link, since: Instant::now(), hearer })
}
