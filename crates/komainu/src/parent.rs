//! The supervisor: the process that keeps root's rights while another one, without them, serves.
//!
//! It binds the addresses, opens the logs and the control socket, starts the server, and starts it again when it dies:
//! until then connections wait in the listening sockets, which stay open here. It reads nothing from the network. From the
//! server it accepts only the requests of [`crate::link`], and answers them from the configuration that it has read itself.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use apps::{Launch, Usage};
use config::Config;
use net::Listener;
use rustix::fs::MemfdFlags;
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus,
    kill_process_group, pidfd_getfd, pidfd_open, pidfd_send_signal, test_kill_process_group, wait, waitid,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use crate::check;
use crate::control::Socket;
use crate::engine;
use crate::hosting;
use crate::link::{self, DESCRIPTORS_MAX, Packet, SupervisorLink, SupervisorOrder};
use crate::notice::ErrorLog;
use crate::privilege::{self, Identity};
use crate::sink::{self, LogSink, LogTarget, open_file};

/// The pause before a server that dies again and again is started: the first, and the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// A server that has served for so long is started again without a pause.
const PROVEN: Duration = Duration::from_secs(60);
/// Time to read the last messages of a server that has ended.
const LAST_WORDS_MAX: Duration = Duration::from_secs(1);
/// After the second signal to stop, the server is killed if it has not ended.
const KILL_AFTER: Duration = Duration::from_secs(2);

/// A configuration and the text it was read from; no text if it comes from the command line.
struct LoadedConfig {
    config: Config,
    text: Option<String>,
}

/// The state from which the supervisor answers the server's questions.
struct ParentState {
    identity: Identity,
    file: Option<PathBuf>,
    current: Mutex<LoadedConfig>,
    /// The configuration last sent to the server, which it has not put into force yet.
    offered: Mutex<Option<LoadedConfig>>,
    listeners: Mutex<Vec<Listener>>,
    control: Option<Socket>,
    /// The files of the logs, in the order of [`sink::files`].
    logs: [Option<PathBuf>; 2],
    launched: Mutex<Launched>,
    /// A server has served before: the next one starts even if its logs cannot be opened.
    served: AtomicBool,
    /// Why the last server could not start, as it reported it.
    reason: Mutex<Option<String>>,
}

/// Processes of applications with a `user` of their own.
#[derive(Default)]
struct Launched {
    /// Those that were started here; each leads a group, in which the workers are that it forks.
    groups: Vec<Pid>,
    /// How the last ones ended.
    ended: VecDeque<(Pid, WaitStatus)>,
}

/// Number of exit statuses kept until the server asks for them.
const ENDS_MAX: usize = 4096;
/// Processes that were started here and run.
const GROUPS_MAX: usize = 4096;
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

/// Whether the files and users are there of applications that this process will start.
fn can_be_launched(config: &Config) -> io::Result<()> {
    let launched = config.apps.iter().filter(|(_, app)| app.user.is_some());
    launched.into_iter().try_for_each(|(name, app)| hosting::options(name, app).map(drop))
}

/// Refuses a process that is no child of this one.
fn is_ours(process: &OwnedFd) -> io::Result<()> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    Ok(waitid(WaitId::PidFd(process.as_fd()), options).map(drop)?)
}

impl ParentState {
    /// Answers one question. It names what this process knows from its own configuration, and processes that are its
    /// own children.
    fn answer(&self, link: &OwnedFd, question: &str, descriptors: Vec<OwnedFd>) -> io::Result<()> {
        let answered = match question.split_once(' ').unwrap_or((question, "")) {
            ("start", "") => self.hand_over(link),
            ("config", "") => self.offer(link),
            ("adopted", "") => {
                if let Some(offered) = lock(&self.offered).take() {
                    *lock(&self.current) = offered;
                }
                return Ok(());
            }
            ("open", number) => self.open(link, number),
            ("launch", words) => self.launch(link, words, &descriptors),
            // No answer: the process may have ended.
            ("signal", number) => {
                signal(number, &descriptors);
                return Ok(());
            }
            ("usage", pid) => usage(link, pid),
            ("ended", pid) => self.ended(link, pid),
            ("descriptor", number) => descriptor(link, number, &descriptors),
            _ => Err(io::Error::other("unknown question")),
        };
        answered.or_else(|error| link::send(link, &format!("error {error}"), &[]))
    }

    /// Everything that a server needs to start.
    fn hand_over(&self, link: &OwnedFd) -> io::Result<()> {
        let Identity { name, uid, gid, groups } = &self.identity;
        let groups: Vec<String> = groups.iter().map(u32::to_string).collect();
        if self.served.load(Ordering::Relaxed) {
            link::send(link, "again", &[])?;
        }
        link::send(link, &format!("identity {uid} {gid} {} {name}", groups.join(",")), &[])?;
        if let Some(text) = &lock(&self.current).text {
            link::send(link, "config", &[memory(text)?.as_fd()])?;
        }
        if let Some(control) = &self.control {
            link::send(link, "control", &[control.listener.as_fd()])?;
        }
        for listener in lock(&self.listeners).iter() {
            link::send(link, "listener", &[])?;
            for some in listener.descriptors().chunks(DESCRIPTORS_MAX) {
                link::send(link, "sockets", some)?;
            }
        }
        link::send(link, "end", &[])
    }

    /// The configuration in the file now, if it is valid.
    fn offer(&self, link: &OwnedFd) -> io::Result<()> {
        let Some(file) = &self.file else { return Err(io::Error::other("there is no configuration file")) };
        let text = check::read_text(file).map_err(io::Error::other)?;
        let config = check::parse(file, &text).map_err(io::Error::other)?;
        can_be_launched(&config)?;
        let memory = memory(&text)?;
        *lock(&self.offered) = Some(LoadedConfig { config, text: Some(text) });
        link::send(link, "config", &[memory.as_fd()])
    }

    /// One of the logs, opened now.
    fn open(&self, link: &OwnedFd, number: &str) -> io::Result<()> {
        let index = number.parse::<usize>().ok();
        let path = index.and_then(|index| self.logs.get(index)?.as_deref());
        let path = path.ok_or_else(|| io::Error::other("there is no such log"))?;
        match open_file(path)? {
            Some(file) => link::send(link, "log", &[file.as_fd()]),
            // A FIFO without a reader: the server asks again.
            None => link::send(link, "log", &[]),
        }
    }
}

impl ParentState {
    /// Starts a process of an application, as its configuration here says.
    fn launch(&self, link: &OwnedFd, words: &str, descriptors: &[OwnedFd]) -> io::Result<()> {
        let (name, numbers) = words.split_once(' ').unwrap_or((words, ""));
        let numbers: Vec<usize> = numbers.split(' ').filter_map(|number| number.parse().ok()).collect();
        let options = {
            let current = lock(&self.current);
            let app = current.config.apps.iter().find(|(other, app)| other == name && app.user.is_some());
            let (_, app) = app.ok_or_else(|| io::Error::other("there is no such application"))?;
            hosting::options(name, app)?
        };
        let fds: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let launch = match *numbers.as_slice() {
            [_, 0, threads] => Launch::of(None, threads, &fds),
            [worker_slot, worker_slots, threads] => {
                Launch::of(Some(worker_slot..worker_slot.saturating_add(worker_slots)), threads, &fds)
            }
            _ => None,
        };
        let launch = launch.ok_or_else(|| io::Error::other("an incomplete question"))?;
        let mut launched = lock(&self.launched);
        launched.groups.retain(|group| test_kill_process_group(*group).is_ok());
        if launched.groups.len() >= GROUPS_MAX {
            return Err(io::Error::other("too many processes"));
        }
        let pid = apps::spawn(&options, &launch)?;
        launched.groups.push(pid);
        drop(launched);
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        link::send(link, &format!("pid {}", pid.as_raw_pid()), &[pidfd.as_fd()])
    }

    /// How a process has ended.
    fn ended(&self, link: &OwnedFd, pid: &str) -> io::Result<()> {
        let pid = pid.parse().ok().and_then(Pid::from_raw);
        for _ in 0..ENDED_LOOKS {
            let found =
                lock(&self.launched).ended.iter().rev().find(|(ended, _)| Some(*ended) == pid).copied();
            if let Some((_, status)) = found {
                let text = match (status.exit_status(), status.terminating_signal()) {
                    (Some(code), _) => format!("exited {code}"),
                    (_, signal) => format!("killed {}", signal.unwrap_or_default()),
                };
                return link::send(link, &text, &[]);
            }
            // The thread that waits is about to see it.
            std::thread::sleep(ENDED_LOOK);
        }
        Err(io::Error::other("no such process has ended"))
    }

    /// Kills what the server that has ended had started.
    fn kill_launched(&self) {
        for group in std::mem::take(&mut lock(&self.launched).groups) {
            // It fails only if no process is left in the group.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

const ENDED_LOOKS: u32 = 100;
const ENDED_LOOK: Duration = Duration::from_millis(2);

/// Signals a process that was started here.
fn signal(number: &str, descriptors: &[OwnedFd]) -> Option<()> {
    let (process, signal) = (descriptors.first()?, Signal::from_named_raw(number.parse().ok()?)?);
    is_ours(process).ok()?;
    pidfd_send_signal(process, signal).ok()
}

/// CPU time and memory of a process that the server has no permission to inspect.
fn usage(link: &OwnedFd, pid: &str) -> io::Result<()> {
    let invalid = || io::Error::other("an incomplete question");
    let pid = pid.parse().ok().and_then(Pid::from_raw).ok_or_else(invalid)?;
    if pid != rustix::process::getpid() {
        is_ours(&pidfd_open(pid, PidfdFlags::empty())?)?;
    }
    let found =
        Usage::of(pid.as_raw_pid() as u32).ok_or_else(|| io::Error::other("the process has ended"))?;
    let Usage { cpu_ms, rss_bytes, pss_bytes, private_dirty_bytes } = found;
    link::send(link, &format!("usage {cpu_ms} {rss_bytes} {pss_bytes} {private_dirty_bytes}"), &[])
}

/// Hands over a copy of a descriptor of a process that was started here.
fn descriptor(link: &OwnedFd, number: &str, descriptors: &[OwnedFd]) -> io::Result<()> {
    let invalid = || io::Error::other("an incomplete question");
    let process = descriptors.first().ok_or_else(invalid)?;
    is_ours(process)?;
    let number = number.parse().map_err(|_| invalid())?;
    let copy = pidfd_getfd(process, number, PidfdGetfdFlags::empty())?;
    link::send(link, "descriptor", &[copy.as_fd()])
}

/// A file in memory with this text.
fn memory(text: &str) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("komainu-config", MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

/// No thread panics while it holds one of these.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// ---- the server's side ----

/// What the supervisor passes to the server.
pub(crate) struct Inherited {
    pub(crate) link: SupervisorLink,
    pub(crate) identity: Identity,
    /// The text of the configuration file, where there is one.
    pub(crate) text: Option<String>,
    pub(crate) control: Option<UnixListener>,
    /// For each listener of the configuration, its sockets.
    pub(crate) sockets: Vec<Vec<OwnedFd>>,
    pub(crate) supervisor: u32,
    /// Another server has served before this one.
    pub(crate) again: bool,
}

impl Inherited {
    /// In a process that a supervisor has started: receives what it passes, and drops root's privileges. `None` in all
    /// others. To be called while the process has one thread.
    ///
    /// # Errors
    /// Where that fails; the process must end then.
    pub(crate) fn take() -> io::Result<Option<Inherited>> {
        let Some(link) = SupervisorLink::inherited()? else { return Ok(None) };
        let supervisor = rustix::process::getppid().map_or(0, |pid| pid.as_raw_pid() as u32);
        let packets = link.ask_first("start")?;
        let invalid = || io::Error::other("the supervisor hands over what this version does not know");
        let mut given = Inherited {
            link,
            identity: Identity { name: String::new(), uid: 0, gid: 0, groups: Vec::new() },
            text: None,
            control: None,
            sockets: Vec::new(),
            supervisor,
            again: false,
        };
        for packet in packets {
            match packet.words() {
                ("identity", words) => given.identity = parse_identity(words).ok_or_else(invalid)?,
                ("config", "") => given.text = Some(text_of(packet)?),
                ("again", "") => given.again = true,
                ("control", "") => {
                    given.control = packet.descriptors.into_iter().next().map(UnixListener::from)
                }
                ("listener", "") => given.sockets.push(Vec::new()),
                ("sockets", "") => given.sockets.last_mut().ok_or_else(invalid)?.extend(packet.descriptors),
                _ => return Err(invalid()),
            }
        }
        let Identity { name, uid, .. } = &given.identity;
        if *uid == 0 {
            return Err(invalid());
        }
        privilege::become_user(&given.identity)
            .map_err(|error| io::Error::other(format!("cannot become {name} (uid {uid}): {error}")))?;
        Ok(Some(given))
    }
}

fn parse_identity(words: &str) -> Option<Identity> {
    let mut words = words.splitn(4, ' ');
    let mut word = || words.next();
    let (uid, gid) = (word()?.parse().ok()?, word()?.parse().ok()?);
    let groups = word()?.split(',').map(|group| group.parse().ok()).collect::<Option<_>>()?;
    Some(Identity { name: word()?.to_owned(), uid, gid, groups })
}

/// The text that a packet brings in a descriptor.
///
/// # Errors
/// Where it brings none, or it is too long.
pub(crate) fn text_of(packet: Packet) -> io::Result<String> {
    let file = packet.descriptors.into_iter().next().map(File::from);
    let mut text = String::new();
    let limit = config::TEXT_BYTES_MAX as u64 + 1;
    file.ok_or_else(|| io::Error::other("no text came"))?.take(limit).read_to_string(&mut text)?;
    Ok(text)
}
