//! Access control of Unix control sockets: processes of applications are refused, whatever their user.
//!
//! An application may run as the server's user, who may control the server. Socket permissions are therefore
//! not sufficient: an application with a `sandbox` could remove it. A process is refused
//! - if it descends from the server or its supervisor. The server is a subreaper, so this includes orphans;
//! - if it runs as the user of a sandboxed application and has more seccomp filters than the server. Filters
//!   cannot be removed, so this also holds for processes outside the server's tree. Processes of other users,
//!   which may have filters of their own, are not affected.

use std::os::fd::{AsFd, OwnedFd};

use nix::sys::socket::{getsockopt, sockopt};
use rights::process_status::{ProcessStatus, pid_of};
use rustix::net::sockopt::socket_peercred;

/// Maximum number of ancestors that are examined.
const ANCESTORS_MAX: usize = 256;

/// Reason that a process may not use a control socket.
pub(crate) struct PeerRefusal {
    /// Message for the client and the log.
    pub(crate) text: String,
    /// Whether the process was identified. If not, it has ended or is in another PID namespace, and may be
    /// harmless.
    pub(crate) is_identified: bool,
}

/// Returns why the peer of a Unix socket may not use it; `None` if it may. `supervisor` is the process id of
/// the server's supervisor; `may_be_sandboxed` returns whether processes of a user may be sandboxed.
pub(crate) fn peer_refusal(
    socket: impl AsFd,
    supervisor: Option<u32>,
    may_be_sandboxed: impl Fn(u32) -> bool,
) -> Option<PeerRefusal> {
    let unknown = || {
        let text = "the process that has connected has ended, or is in another process namespace".to_owned();
        Some(PeerRefusal { text, is_identified: false })
    };
    let known = |text| Some(PeerRefusal { text, is_identified: true });
    let Ok(peer) = socket_peercred(&socket) else { return unknown() };
    // A pidfd refers to the peer even if its process id was reused. Not available before Linux 6.5.
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
    if descends_from(found, &servers) {
        known(format!("process {pid} belongs to an application: it may not control this server"))
    } else {
        None
    }
}

/// Whether one of `ancestors` is an ancestor of the process.
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
    // A longer chain is assumed to be an attempt to evade the check.
    true
}
