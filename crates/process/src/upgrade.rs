//! Upgrade of a running server: a new process of the program receives the listening sockets and takes over
//! once it serves.
//!
//! The successor is started with the arguments of this process, from the same path, at which another version
//! may be installed, and loads the configuration. Its standard input is a packet socket: it requests the
//! listening sockets, and reports that it serves, or why it cannot. Until it serves nothing changes. Then
//! both processes accept from the same sockets for a moment, so that no connection is refused.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use std::{env, io};

use apps::AppSettings;
use failure::Failure;
use link::DESCRIPTORS_MAX;
use net::{BindAddress, Listener, trusted_path};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::link::{self, Packet};
use crate::sockets::InheritedSockets;
use crate::systemd;

/// The environment variable that marks a process as a successor; its value is the process id of its
/// predecessor.
pub const ENVIRONMENT: &str = "KOMAINU_PREDECESSOR";
/// Time limit for a successor's start, without loading applications.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for the exit of a process that has closed its end of the link.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum length of a reported reason, in characters.
const REASON_CHARS_MAX: usize = 2_000;

/// Time limit for a successor to serve, and to load these applications before.
pub fn start_timeout(apps: &[(String, AppSettings)]) -> Duration {
    START_TIMEOUT + apps.iter().map(|(_, app)| app.timeouts.start).max().unwrap_or_default()
}

/// The program to start for an upgrade: the file that this process was started from. Call this at the start,
/// before the file is replaced; later calls return the same path.
pub fn program() -> io::Result<PathBuf> {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    if let Some(program) = PROGRAM.get() {
        return Ok(program.clone());
    }
    let current = env::current_exe()?;
    // Prefer the name in argv[0] if it refers to this program: a symbolic link may be switched to the next
    // version.
    let name = env::args_os().next().map(PathBuf::from).unwrap_or_default();
    let folders = env::var_os("PATH").unwrap_or_default();
    let named = match name.components().count() {
        0 => None,
        1 if !name.has_root() => {
            env::split_paths(&folders).map(|folder| folder.join(&name)).find(|path| path.exists())
        }
        _ => Some(name),
    };
    let named = named.and_then(|path| std::path::absolute(path).ok());
    let is_this = |path: &PathBuf| path.canonicalize().is_ok_and(|path| path == current);
    let program = named.filter(is_this).unwrap_or_else(|| current.clone());
    Ok(PROGRAM.get_or_init(|| program).clone())
}

/// Message about a successful upgrade.
pub fn success_message(pid: u32) -> String {
    format!("upgrade: process {pid} has taken over; process {} finishes what runs", std::process::id())
}

/// Message about a failed upgrade.
pub fn failure_message(reason: &str) -> String {
    format!("the upgrade failed, and the old server continues: {reason}")
}

/// Duplicated sockets of a listener, to be passed to a successor.
pub struct HandedSockets {
    sockets: Vec<OwnedFd>,
    owns_file: bool,
    /// The path of a Unix socket, if the socket was bound by a different one.
    path: Option<PathBuf>,
}

impl HandedSockets {
    /// Duplicates the sockets of `listener`.
    ///
    /// # Errors
    /// The process has no free descriptors.
    pub fn of(listener: &Listener) -> io::Result<HandedSockets> {
        let sockets = listener.descriptors().into_iter().map(|fd| fd.try_clone_to_owned());
        let sockets = sockets.collect::<io::Result<Vec<_>>>()?;
        let path = match listener.address() {
            BindAddress::Unix(path) => Some(path.clone())
                .filter(|path| sockets.first().is_some_and(|first| !is_bound_to(first, path))),
            _ => None,
        };
        Ok(HandedSockets { sockets, owns_file: listener.owns_file(), path })
    }
}

/// Whether a socket is bound to this path.
fn is_bound_to(socket: &OwnedFd, path: &Path) -> bool {
    net::bound_address(socket).is_ok_and(|bound| bound == BindAddress::Unix(path.to_owned()))
}

/// A started successor.
pub struct Successor {
    process: Child,
    pidfd: OwnedFd,
    link: OwnedFd,
    handed: Vec<HandedSockets>,
}

impl Successor {
    /// Starts a successor.
    ///
    /// # Errors
    /// The program cannot be started; the message contains its path.
    pub fn start(handed: Vec<HandedSockets>) -> io::Result<Successor> {
        if rustix::process::getpid() == Pid::INIT {
            return Err(io::Error::other(
                "this server is process 1 (of a container), which ends with it: replace the container",
            ));
        }
        let program = program()?;
        let doubt = trusted_path::replaceable_by_others(&program);
        // A missing program is reported below.
        if let Some(why) = doubt
            .or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(None) } else { Err(error) })?
        {
            return Err(io::Error::other(format!(
                "{} is not started: {why}, so that others could have put another program there; \
                 `chown root` and `chmod go-w` it",
                program.display()
            )));
        }
        let (ours, theirs) = link::pair()?;
        let mut arguments = env::args_os();
        let mut command = Command::new(&program);
        command.arg0(arguments.next().unwrap_or_else(|| "komainu".into())).args(arguments);
        systemd::PROCESS_VARIABLES.iter().for_each(|name| _ = command.env_remove(name));
        command.env(ENVIRONMENT, std::process::id().to_string()).stdin(Stdio::from(theirs));
        let process = apps::spawn_unrelated(&mut command);
        let process = process.map_err(|error| {
            io::Error::new(error.kind(), format!("cannot start {}: {error}", program.display()))
        })?;
        let pidfd = pidfd_open(Pid::from_child(&process), PidfdFlags::empty())?;
        Ok(Successor { process, pidfd, link: ours, handed })
    }

    /// Process id of the successor.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Duplicates the process's pidfd, by which it can be killed.
    ///
    /// # Errors
    /// The process has no free descriptors.
    pub fn pidfd(&self) -> io::Result<OwnedFd> {
        self.pidfd.try_clone()
    }

    /// Passes the sockets, and waits until the successor serves; otherwise kills it.
    ///
    /// # Errors
    /// The reason for the failure, for the log.
    pub fn wait_until_ready(mut self, limit: Duration) -> Result<(), Failure> {
        let until = Instant::now() + limit;
        let mut reason = None;
        let outcome = loop {
            match self.receive(until) {
                Ok(Some(packet)) if packet.text == "ready" => return Ok(()),
                Ok(Some(packet)) => match packet.first_word_and_rest() {
                    ("start", "") => {
                        if let Err(error) = self.send_sockets() {
                            break format!("it does not take the sockets: {error}");
                        }
                    }
                    ("failed", text) => {
                        reason = Some(text.chars().take(REASON_CHARS_MAX).collect::<String>())
                    }
                    _ => break "it speaks another version of the protocol".to_owned(),
                },
                Ok(None) => match reason {
                    Some(reason) => break reason,
                    None => break format!("it ended: {}", self.describe_exit()),
                },
                Err(error) => break error.to_string(),
            }
        };
        // Fails only if the process has already ended.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        // Reaps the process.
        let _ = self.process.wait();
        Err(outcome.into())
    }

    fn receive(&self, until: Instant) -> io::Result<Option<Packet>> {
        let late =
            || io::Error::other("it does not serve in time (30 s and `timeouts.start` of its applications)");
        if is_readable(&self.link, until)? { link::receive(&self.link) } else { Err(late()) }
    }

    fn send_sockets(&self) -> io::Result<()> {
        for HandedSockets { sockets, owns_file, path } in &self.handed {
            let owned = if *owns_file { "owned" } else { "lent" };
            // Servers of earlier versions accept the line without a path.
            let path = path.as_deref().map(link::path_text).transpose()?;
            let line =
                path.map_or_else(|| format!("listener {owned}"), |path| format!("listener {owned} {path}"));
            link::send(&self.link, &line, &[])?;
            let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
            for some in sockets.chunks(DESCRIPTORS_MAX) {
                link::send(&self.link, "sockets", some)?;
            }
        }
        link::send(&self.link, "end", &[])
    }

    /// Exit status, or a note that it still runs.
    fn describe_exit(&mut self) -> String {
        match is_readable(&self.pidfd, Instant::now() + EXIT_TIMEOUT) {
            Ok(true) => {
                self.process.wait().map_or_else(|_| "see the error log".into(), |status| status.to_string())
            }
            _ => "it has closed its standard input".into(),
        }
    }
}

fn is_readable(fd: &OwnedFd, until: Instant) -> io::Result<bool> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&timeout)) {
            Ok(count) => return Ok(count > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The process that this one replaces.
#[derive(Clone, Debug)]
pub struct Predecessor {
    link: Arc<OwnedFd>,
}

impl Predecessor {
    /// Receives the listening sockets of the predecessor; `None` in a process that was not started for an
    /// upgrade.
    ///
    /// # Errors
    /// The predecessor has ended, or speaks another version of the protocol.
    pub fn receive() -> io::Result<Option<(Predecessor, InheritedSockets)>> {
        let Some(link) = link::inherited(ENVIRONMENT)? else { return Ok(None) };
        let mut given = InheritedSockets::default();
        link::send(&link, "start", &[])?;
        let ended = || io::Error::other("the server that is to be replaced has ended");
        let mut listeners: Vec<(bool, Option<PathBuf>, Vec<OwnedFd>)> = Vec::new();
        loop {
            let packet = link::receive(&link)?.ok_or_else(ended)?;
            match (packet.first_word_and_rest(), listeners.last_mut()) {
                (("end", _), _) => break,
                (("listener", line), _) => {
                    let (owned, path) =
                        line.split_once(' ').map_or((line, None), |(owned, path)| (owned, Some(path)));
                    listeners.push((owned == "owned", path.map(PathBuf::from), Vec::new()));
                }
                (("sockets", _), Some((_, _, sockets))) => sockets.extend(packet.descriptors),
                _ => {
                    return Err(io::Error::other("the server that is to be replaced speaks another version"));
                }
            }
        }
        for (owns_file, path, sockets) in listeners {
            given.add(sockets, owns_file, path)?;
        }
        Ok(Some((Predecessor { link: Arc::new(link) }, given)))
    }

    /// Reports that this process serves: the predecessor finishes running requests and exits.
    pub fn report_ready(&self) {
        // A predecessor that has ended needs no report.
        let _ = link::send(&*self.link, "ready", &[]);
    }

    /// Reports that this process cannot serve.
    pub fn report_failure(&self, reason: &str) {
        let _ = link::send(&*self.link, &format!("failed {reason}"), &[]);
    }
}
