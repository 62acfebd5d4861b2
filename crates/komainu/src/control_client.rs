//! The other end of the control socket: how `komainu status` and others find servers, and ask them.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::process::getuid;
use serde_json::Value;

use crate::control::{CLIENT_MAX, DRAINING, folder, folders, remove_if_stale, sockets};

/// How long `komainu status`, `reload` and `upgrade` wait for a sign of life: a server that has died, or is stuck, gives none.
const ALIVE_MAX: Duration = Duration::from_secs(5);
/// A document larger than this is no server's.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Another user's server may say anything: nothing of it reaches the terminal but text.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '?' } else { c }).collect()
}

/// Asks the server of this process id.
///
/// # Errors
/// Where there is no such server, where it does not answer, or its own error.
pub(crate) fn ask(pid: u32, line: &str) -> Result<Value, String> {
    let name = format!("{pid}.sock");
    let path = folders().into_iter().map(|folder| folder.join(&name)).find(|path| path.exists());
    let path = path.unwrap_or_else(|| folder().join(&name));
    ask_at(&path, line).map_err(|error| format!("process {pid}: {error}"))
}

fn ask_at(path: &Path, line: &str) -> io::Result<Value> {
    let text = exchange(path, line)?;
    if text.trim().is_empty() {
        return Err(io::Error::other("the server ended before it answered"));
    }
    let answer: Value = serde_json::from_str(&text)?;
    match answer["error"].as_str() {
        Some(error) => Err(io::Error::other(error)),
        None => Ok(answer),
    }
}

/// Sends a line, and reads what comes back.
fn exchange(path: &Path, line: &str) -> io::Result<String> {
    let mut server = UnixStream::connect(path).map_err(|error| {
        io::Error::new(error.kind(), format!("no server answers at {}: {error}", path.display()))
    })?;
    // For each read: the server sends something every second until it is done.
    server.set_read_timeout(Some(ALIVE_MAX))?;
    server.set_write_timeout(Some(CLIENT_MAX))?;
    server.write_all(format!("{line}\n").as_bytes())?;
    let mut text = String::new();
    match (&server).take(ANSWER_BYTES_MAX).read_to_string(&mut text) {
        Ok(_) => Ok(text),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the server does not answer on its control socket: it is starting, or stuck",
        )),
        Err(error) => Err(error),
    }
}

/// The process ids of the servers that this user may ask, in order. Sockets that killed servers of this user have left
/// behind are removed.
pub(crate) fn running() -> Vec<u32> {
    let mut pids: Vec<u32> = folders()
        .iter()
        .flat_map(|folder| {
            // Another user's folder is read, and nothing in it is removed: it may be a link to elsewhere.
            let is_ours = fs::symlink_metadata(folder).is_ok_and(|found| found.uid() == getuid().as_raw());
            sockets(folder).into_iter().filter(move |(_, path)| match UnixStream::connect(path) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    if is_ours {
                        remove_if_stale(path);
                    }
                    false
                }
                Err(error) => error.kind() != io::ErrorKind::PermissionDenied,
                Ok(_) => true,
            })
        })
        .map(|(pid, _)| pid)
        .collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

/// Those of them that serve: a server that was replaced by an upgrade finishes what runs.
pub(crate) fn serving() -> Vec<u32> {
    let mut pids = running();
    if pids.len() > 1 {
        pids.retain(|pid| ask(*pid, "ping").is_ok_and(|answer| answer["state"] != DRAINING));
    }
    pids
}
