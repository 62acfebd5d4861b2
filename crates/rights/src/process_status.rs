//! Status of other processes, from `/proc`.

use std::fs;
use std::os::fd::{AsFd, AsRawFd};

/// The process id of a pidfd; `None` if the process was reaped or is in another PID namespace.
pub fn pid_of(process: impl AsFd) -> Option<u32> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_fd().as_raw_fd())).ok()?;
    // The kernel reports -1 for a reaped process.
    info.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok()).filter(|pid| *pid > 0)
}

/// Snapshot of a process's status (proc_pid_status(5)).
pub struct ProcessStatus(String);

impl ProcessStatus {
    /// Reads the status of a process; `None` if there is no such process, or no `/proc`.
    pub fn of(pid: u32) -> Option<ProcessStatus> {
        fs::read_to_string(format!("/proc/{pid}/status")).ok().map(ProcessStatus)
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim))
    }

    /// The parent's process id; 0 if the parent is in another PID namespace.
    pub fn parent(&self) -> Option<u32> {
        self.field("PPid")?.parse().ok()
    }

    /// The user id; `None` if the process's user ids (real, effective, saved, file system) differ.
    pub fn user(&self) -> Option<u32> {
        let mut ids = self.field("Uid")?.split_ascii_whitespace().map(|id| id.parse::<u32>().ok());
        let first = ids.next()??;
        ids.all(|id| id == Some(first)).then_some(first)
    }

    /// Number of seccomp filters; kernels before 5.9 report the mode (2) instead.
    pub fn filters(&self) -> u32 {
        let count = self.field("Seccomp_filters").or_else(|| self.field("Seccomp"));
        count.and_then(|count| count.parse().ok()).unwrap_or_default()
    }

    /// Whether the process is stopped by a signal (not by a debugger).
    pub fn is_stopped(&self) -> bool {
        self.field("State").is_some_and(|state| state.starts_with('T'))
    }
}
