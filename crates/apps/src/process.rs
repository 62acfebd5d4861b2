//! Resource usage of a process, read from `/proc`.

use std::fs;

use times::Millis;

/// Process of an application, for the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Process id.
    pub pid: u32,
    /// Number of the worker within the application, counted from 1; 0 for the prototype.
    pub worker: usize,
    /// State: `prototype`, `starting`, `ready`, `recycling`, `leaving`, `killed`.
    pub state: &'static str,
    /// Generation (load of the application) that the process belongs to, counted from 1.
    pub generation: u64,
    /// Requests that it has answered.
    pub requests: u64,
    /// Milliseconds since it was started.
    pub age: Millis,
    /// Resource usage; `None` if the system does not report it.
    pub usage: Option<Usage>,
    /// The first [`CURRENT_MAX`] requests that it works on, as of the last tenth of a second.
    pub current: Vec<CurrentRequest>,
}

/// Maximum number of current requests shown per process.
pub const CURRENT_MAX: usize = 4;
/// Maximum number of bytes shown of a method and a target; longer ones are truncated.
pub const CURRENT_BYTES_MAX: usize = 128;

/// A request that a worker has claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CurrentRequest {
    /// Method as sent by the client.
    pub method: String,
    /// Path and query, percent-encoded; truncated to [`CURRENT_BYTES_MAX`] bytes together with the method.
    pub target: String,
    /// Milliseconds since the request was claimed.
    pub age: Millis,
}

/// Snapshot of an application's state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppSnapshot {
    /// Processes of the application.
    pub processes: Vec<ProcessInfo>,
    /// Requests that wait for a worker.
    pub waiting: usize,
    /// Requests that workers have claimed.
    pub claimed: usize,
    /// Capacity of the queue; if exceeded, the oldest request is dropped.
    pub waiting_max: usize,
}

/// The way in which a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerExit {
    /// Asked to leave, or ended by itself with success after it had answered requests.
    Retired,
    /// Killed because it took too long or violated the protocol.
    Killed,
    /// Ended by itself with an error.
    Crashed,
    /// Ended before it could answer a request.
    NotStarted,
}

impl WorkerExit {
    /// All variants, in the order of their numbers.
    pub const ALL: [WorkerExit; 4] =
        [WorkerExit::Retired, WorkerExit::Killed, WorkerExit::Crashed, WorkerExit::NotStarted];

    /// Label in metrics.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            WorkerExit::Retired => "retired",
            WorkerExit::Killed => "killed",
            WorkerExit::Crashed => "crashed",
            WorkerExit::NotStarted => "not_started",
        }
    }
}

/// CPU time and memory of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time so far, user and system, in milliseconds.
    pub cpu_ms: u64,
    /// Resident memory in bytes.
    pub rss_bytes: u64,
    /// Proportional set size: resident memory, with shared pages divided by the number of their users.
    pub pss_bytes: u64,
    /// Private resident memory that it has written.
    pub private_dirty_bytes: u64,
}

impl Usage {
    /// Reads `/proc` for a process; `None` if it has ended or permission is denied.
    #[must_use]
    pub fn of(pid: u32) -> Option<Usage> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        Some(Usage { cpu_ms: cpu_ms(&stat)?, ..memory(&rollup) })
    }
}

/// Parses the CPU time of a `stat` line, whose second field may contain spaces and brackets.
fn cpu_ms(stat: &str) -> Option<u64> {
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
    let user: u64 = fields.nth(11)?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    // The unit is 1/100 s on all Linux architectures (USER_HZ).
    Some((user + system) * 10)
}

fn memory(rollup: &str) -> Usage {
    let kib = |name: &str| {
        let line = rollup.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    Usage {
        cpu_ms: 0,
        rss_bytes: kib("Rss") * 1024,
        pss_bytes: kib("Pss") * 1024,
        private_dirty_bytes: kib("Private_Dirty") * 1024,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_name_with_parentheses_is_parsed() {
        let line = "12 (a) b) R 1 12 12 0 -1 4194304 90 0 0 0 150 25 0 0 20 0 1 0 100 1000 10";
        assert_eq!(cpu_ms(line), Some(1750));
        assert_eq!(cpu_ms("12 (a"), None);
    }

    #[test]
    fn memory_fields_are_parsed_by_name() {
        let rollup =
            "00-ff ---p 0 00:00 0 [rollup]\nRss:  10 kB\nPss:   4 kB\nPss_Dirty: 9 kB\nPrivate_Dirty: 2 kB\n";
        let usage = memory(rollup);
        assert_eq!((usage.rss_bytes, usage.pss_bytes, usage.private_dirty_bytes), (10240, 4096, 2048));
    }

    #[test]
    fn usage_of_own_process_is_plausible() {
        let usage = Usage::of(std::process::id()).unwrap();
        assert!(usage.rss_bytes > 0 && usage.pss_bytes <= usage.rss_bytes);
    }
}
