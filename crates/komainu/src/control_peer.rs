//! Which processes may use a control socket: those of applications may not, whatever their user is.
//!
//! An application may run as the user that the server runs as, who may control the server. So the permissions of a socket are not enough:
//! an application with a `sandbox` could remove it. A process is refused
//! - that descends from the server or its supervisor: the server is a subreaper, so orphans of applications do too;
//! - that runs as the user of a sandboxed application and has more seccomp filters than the server: a sandboxed process cannot lose them,
//!   wherever it is in the tree of processes. Tools of other users, which may have filters of their own, are not concerned.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::sys::socket::{getsockopt, sockopt};
use rustix::net::sockopt::socket_peercred;

/// The longest way from a process to the first one that is looked at.
const ANCESTORS_MAX: usize = 256;

/// Why the process that has connected to a Unix socket may not use it; `None` if it may. `supervisor` is the id of the server's supervisor,
/// and `may_be_sandboxed` says whether processes of a user may be in a sandbox.
pub(crate) fn refusal(
    socket: impl AsFd,
    supervisor: Option<u32>,
    may_be_sandboxed: impl Fn(u32) -> bool,
) -> Option<String> {
    let unknown =
        || Some("the process that has connected has ended, or is in another process namespace".to_owned());
    let Ok(peer) = socket_peercred(&socket) else { return unknown() };
    // Names the process even if another one has its id by now. Kernels before 6.5 have none.
    let handle: Option<OwnedFd> = getsockopt(&socket.as_fd(), sockopt::PeerPidfd).ok();
    let pid = peer.pid.as_raw_pid();
    let found = PeerStatus::of(pid);
    let is_it = |handle: &OwnedFd| pid_of(handle) == Some(pid);
    if !handle.as_ref().is_none_or(is_it) {
        return unknown();
    }
    let Some(found) = found else { return unknown() };
    let own = PeerStatus::of(std::process::id().cast_signed()).unwrap_or_default();
    if may_be_sandboxed(peer.uid.as_raw()) && found.filters > own.filters {
        return Some(format!("process {pid} is in a sandbox: it may not control this server"));
    }
    let servers = [Some(std::process::id()), supervisor].map(|pid| pid.map(u32::cast_signed));
    is_descendant(pid, &servers)
        .then(|| format!("process {pid} belongs to an application: it may not control this server"))
}

/// What `/proc` says of a process.
#[derive(Debug, Default, PartialEq, Eq)]
struct PeerStatus {
    parent: i32,
    /// Seccomp filters; the mode (2) where the kernel does not count them (before 5.9).
    filters: u32,
}

impl PeerStatus {
    /// `None` where there is no such process, or no `/proc`.
    fn of(pid: i32) -> Option<PeerStatus> {
        let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let value = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse::<u32>().ok())
        };
        let filters = value("Seccomp_filters").or_else(|| value("Seccomp")).unwrap_or_default();
        Some(PeerStatus { parent: value("PPid")?.cast_signed(), filters })
    }
}

/// The process id of a pidfd; `None` where the process has ended.
fn pid_of(handle: &OwnedFd) -> Option<i32> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", handle.as_raw_fd())).ok()?;
    info.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok()).filter(|pid| *pid > 0)
}

fn is_descendant(pid: i32, of: &[Option<i32>]) -> bool {
    let mut at = pid;
    for _ in 0..ANCESTORS_MAX {
        let Some(found) = PeerStatus::of(at) else { return false };
        if of.contains(&Some(found.parent)) {
            return true;
        }
        if found.parent <= 1 {
            return false;
        }
        at = found.parent;
    }
    // So many ancestors are made on purpose.
    true
}
