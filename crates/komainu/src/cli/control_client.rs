//! Client of the control socket: finds servers and sends commands to them.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use failure::{Failure, FailureContext};
use operator::socket::{
    CLIENT_TIMEOUT, DRAINING, list_sockets, remove_if_stale, socket_folder, user_socket_folders,
};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::process::getuid;
use serde_json::Value;

use crate::terminal;

/// Maximum time without data from the server, which sends an empty line every second unless it is dead or
/// stuck.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time for an answer: to queries, and to commands that load applications.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const COMMAND_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Maximum size of an answer in bytes.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Socket directory of root's servers and of units with `RuntimeDirectory=komainu`, created by root.
const SYSTEM_FOLDER: &str = "/run/komainu";

/// A directory of sockets and the user whose servers create them.
struct ServerFolder {
    path: PathBuf,
    owner: u32,
}

impl ServerFolder {
    /// Returns the directory if only root and `owner` (by default the directory's owner) can create sockets
    /// in it.
    fn verify(path: PathBuf, owner: Option<u32>) -> Option<ServerFolder> {
        let found = fs::symlink_metadata(&path).ok()?;
        let is_safe = found.is_dir() && found.mode() & 0o022 == 0;
        let is_owners = owner.is_none_or(|owner| owner == found.uid());
        (is_safe && is_owners).then(|| ServerFolder { path, owner: found.uid() })
    }

    /// Connects to a server's socket. The peer must run as the owner of the directory.
    fn connect(&self, path: &Path) -> io::Result<UnixStream> {
        if !fs::symlink_metadata(path)?.file_type().is_socket() {
            return Err(io::Error::other("this is not a socket"));
        }
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // A server that does not accept must not block the client.
        set_socket_timeout(&socket, Timeout::Send, Some(CLIENT_TIMEOUT))?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        let peer = socket_peercred(socket.as_fd())?;
        if peer.uid.as_raw() == self.owner {
            Ok(UnixStream::from(socket))
        } else {
            Err(io::Error::other(format!(
                "a process of user {} listens at a socket of user {}: it is not asked",
                peer.uid.as_raw(),
                self.owner
            )))
        }
    }
}

/// Returns the directories searched by commands without `--pid`: this user's and the system's. Those of other
/// users are not searched, not even for root, because any user could impersonate a server there.
fn own_folders() -> Vec<ServerFolder> {
    let own = ServerFolder::verify(socket_folder(), None);
    let system = ServerFolder::verify(SYSTEM_FOLDER.into(), None)
        .filter(|system| own.as_ref().is_none_or(|own| own.path != system.path));
    own.into_iter().chain(system).collect()
}

/// Returns the directories for the server with this process id. For root they include those of the user who
/// started it.
fn folders_for_pid(pid: u32) -> Vec<ServerFolder> {
    let mut folders = own_folders();
    let user = fs::metadata(format!("/proc/{pid}")).ok().map(|found| found.uid());
    if let Some(user) = user.filter(|_| getuid().is_root()) {
        let theirs =
            user_socket_folders(user).into_iter().filter_map(|path| ServerFolder::verify(path, Some(user)));
        folders.extend(theirs);
    }
    folders
}

/// Sends a command to the server with this process id.
///
/// # Errors
/// The server does not exist or does not answer, or the error that it returns.
pub(crate) fn send_command(pid: u32, line: &str) -> Result<Value, Failure> {
    let name = format!("{pid}.sock");
    let folders = folders_for_pid(pid);
    let found = folders.iter().map(|folder| (folder, folder.path.join(&name)));
    let found = found.into_iter().find(|(_, path)| fs::symlink_metadata(path).is_ok());
    let answer = match found {
        Some((folder, path)) => send_command_at(folder, &path, line),
        None => Err(io::Error::new(io::ErrorKind::NotFound, "no server of this process id is found")),
    };
    answer.with_context(|| format!("process {pid}"))
}

fn send_command_at(folder: &ServerFolder, path: &Path, line: &str) -> io::Result<Value> {
    let text = send_line(folder, path, line)?;
    if text.trim().is_empty() {
        return Err(io::Error::other("the server ended before it answered"));
    }
    let answer: Value = serde_json::from_str(&text)?;
    match answer["error"].as_str() {
        Some(error) => Err(io::Error::other(terminal::indent_rest(error))),
        None => Ok(answer),
    }
}

/// Sends a line and reads the answer.
fn send_line(folder: &ServerFolder, path: &Path, line: &str) -> io::Result<String> {
    let mut server = folder.connect(path).map_err(|error| {
        io::Error::new(error.kind(), format!("no server answers at {}: {error}", path.display()))
    })?;
    // Commands that start applications take as long as the applications do.
    let is_long = ["reload", "upgrade", "api ", "renew "].iter().any(|word| line.starts_with(word));
    let until = Instant::now() + if is_long { COMMAND_TIMEOUT } else { ANSWER_TIMEOUT };
    server.set_write_timeout(Some(CLIENT_TIMEOUT))?;
    // A server that refuses the client may already have answered and closed the connection.
    let written = server.write_all(format!("{line}\n").as_bytes());
    let late = |text| io::Error::new(io::ErrorKind::TimedOut, text);
    let mut bytes = Vec::new();
    let mut piece = vec![0; 64 * 1024];
    loop {
        let left = until.saturating_duration_since(Instant::now()).min(SILENCE_TIMEOUT);
        if left.is_zero() {
            return Err(late("the server has not answered in time"));
        }
        // Applies to each read: the server sends an empty line every second until the command has finished.
        server.set_read_timeout(Some(left))?;
        match server.read(&mut piece) {
            Ok(0) if bytes.is_empty() => {
                written?;
                break;
            }
            Ok(0) => break,
            Ok(count) => bytes.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(late(
                    "the server does not answer on its control socket: it is starting, or stuck",
                ));
            }
            Err(error) => return Err(error),
        }
        if bytes.len() as u64 > ANSWER_BYTES_MAX {
            return Err(io::Error::other("the answer is too long for one of a server"));
        }
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("the answer is not text"))
}

/// Returns the process ids of the servers that this user may control, in ascending order. Stale sockets of
/// this user's killed servers are removed.
pub(crate) fn running_servers() -> Vec<u32> {
    let mut pids = Vec::new();
    for folder in own_folders() {
        let is_ours = folder.owner == getuid().as_raw();
        for (pid, path) in list_sockets(&folder.path) {
            match folder.connect(&path) {
                Ok(_) => pids.push(pid),
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && is_ours => {
                    remove_if_stale(&path)
                }
                Err(_) => {}
            }
        }
    }
    pids.sort_unstable();
    pids.dedup();
    pids
}

/// Sends a command to several servers at once, so that one that does not answer delays the others by its
/// timeout only. Returns the answers in the order of `pids`.
pub(crate) fn send_command_to_all(pids: &[u32], line: &str) -> Vec<Result<Value, Failure>> {
    std::thread::scope(|scope| {
        let asked: Vec<_> = pids.iter().map(|pid| scope.spawn(|| send_command(*pid, line))).collect();
        let answers = asked.into_iter().map(|one| one.join());
        answers.map(|answer| answer.unwrap_or_else(|_| Err(Failure::new("the command failed")))).collect()
    })
}

/// Returns the ids of the running servers without draining ones, which an upgrade has replaced.
pub(crate) fn serving_servers() -> Vec<u32> {
    let pids = running_servers();
    if pids.len() <= 1 {
        return pids;
    }
    let answers = send_command_to_all(&pids, "ping");
    let serves =
        |answer: &Result<Value, Failure>| answer.as_ref().is_ok_and(|answer| answer["state"] != DRAINING);
    pids.into_iter().zip(answers).filter(|(_, answer)| serves(answer)).map(|(pid, _)| pid).collect()
}
