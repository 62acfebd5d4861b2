//! Which processes may use a control socket: those of applications may not, whatever their user is.
//!
//! An application may run as the user that the server runs as, who may control the server. So the permissions of a socket are not enough:
//! an application with a `sandbox` could remove it. A process is refused
//! - that descends from the server or its supervisor: the server is a subreaper, so orphans of applications do too;
//! - that runs as the user of a sandboxed application and has more seccomp filters than the server: a sandboxed process cannot lose them,
//!   wherever it is in the tree of processes. Tools of other users, which may have filters of their own, are not concerned.

use std::os::fd::{AsFd, OwnedFd};

use nix::sys::socket::{getsockopt, sockopt};
use rustix::net::sockopt::socket_peercred;

use rights::process_status::{ProcessStatus, pid_of};

/// The longest way from a process to the first one that is looked at.
const ANCESTORS_MAX: usize = 256;

/// Why a process may not use a control socket.
pub(crate) struct PeerRefusal {
    /// For people.
    pub(crate) text: String,
    /// Whether the process is known to be one that may not. One that has ended may have been a command that asked nothing.
    pub(crate) is_known: bool,
}

/// Why the process that has connected to a Unix socket may not use it; `None` if it may. `supervisor` is the id of the server's supervisor,
/// and `may_be_sandboxed` says whether processes of a user may be in a sandbox.
pub(crate) fn refusal(
    socket: impl AsFd,
    supervisor: Option<u32>,
    may_be_sandboxed: impl Fn(u32) -> bool,
) -> Option<PeerRefusal> {
    let unknown = || {
        let text = "the process that has connected has ended, or is in another process namespace".to_owned();
        Some(PeerRefusal { text, is_known: false })
    };
    let known = |text| Some(PeerRefusal { text, is_known: true });
    let Ok(peer) = socket_peercred(&socket) else { return unknown() };
    // Names the process even if another one has its id by now. Kernels before 6.5 have none.
    let handle: Option<OwnedFd> = getsockopt(&socket.as_fd(), sockopt::PeerPidfd).ok();
    let pid = peer.pid.as_raw_pid().cast_unsigned();
    let found = ProcessStatus::of(pid);
    if handle.is_some_and(|handle| pid_of(handle) != Some(pid)) {
        return unknown();
    }
    let Some(found) = found else { return unknown() };
    let own_filters = || ProcessStatus::of(std::process::id()).map_or(0, |own| own.filters());
    if may_be_sandboxed(peer.uid.as_raw()) && found.filters() > own_filters() {
        return known(format!("process {pid} is in a sandbox: it may not control this server"));
    }
    let servers = [Some(std::process::id()), supervisor];
    match descends_from(found, &servers) {
        true => known(format!("process {pid} belongs to an application: it may not control this server")),
        false => None,
    }
}

/// Whether one of these processes is an ancestor of the process.
fn descends_from(process: ProcessStatus, ancestors: &[Option<u32>]) -> bool {
    let mut at = Some(process);
    for _ in 0..ANCESTORS_MAX {
        let Some(parent) = at.and_then(|process| process.parent()) else { return false };
        if ancestors.contains(&Some(parent)) {
            return true;
        }
        if parent <= 1 {
            return false;
        }
        at = ProcessStatus::of(parent);
    }
    // So many ancestors are made on purpose.
    true
}
