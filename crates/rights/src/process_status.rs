//! What `/proc` says of another process.

use std::fs;
use std::os::fd::{AsFd, AsRawFd};

/// The process id of a pidfd; `None` where the process was reaped, or is in another process namespace.
pub fn pid_of(process: impl AsFd) -> Option<u32> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_fd().as_raw_fd())).ok()?;
    // -1 of a process that was reaped.
    info.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok()).filter(|pid| *pid > 0)
}

/// The status of a process at one moment, as proc_pid_status(5) has it.
pub struct ProcessStatus(String);

impl ProcessStatus {
    /// `None` where there is no such process, or no `/proc`.
    pub fn of(pid: u32) -> Option<ProcessStatus> {
        fs::read_to_string(format!("/proc/{pid}/status")).ok().map(ProcessStatus)
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim))
    }

    /// The process id of its parent; 0 where that is in another process namespace.
    pub fn parent(&self) -> Option<u32> {
        self.field("PPid")?.parse().ok()
    }

    /// The user, if all user ids of the process (real, effective, saved, of files) are the same.
    pub fn user(&self) -> Option<u32> {
        let mut ids = self.field("Uid")?.split_ascii_whitespace().map(|id| id.parse::<u32>().ok());
        let first = ids.next()??;
        ids.all(|id| id == Some(first)).then_some(first)
    }

    /// Seccomp filters; the mode (2) where the kernel does not count them (before 5.9).
    pub fn filters(&self) -> u32 {
        let count = self.field("Seccomp_filters").or_else(|| self.field("Seccomp"));
        count.and_then(|count| count.parse().ok()).unwrap_or_default()
    }

    /// Whether the process is stopped by a signal; not by a debugger.
    pub fn is_stopped(&self) -> bool {
        self.field("State").is_some_and(|state| state.starts_with('T'))
    }
}
