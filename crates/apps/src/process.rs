//! Resource usage of a process, read from `/proc`.

use std::fs;

/// One process of an application, for people and machines to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Process id.
    pub pid: u32,
    /// Which of the application's workers it is, counted from 1; 0 for the prototype.
    pub worker: usize,
    /// What it is: `prototype`, `starting`, `ready`, `recycling`, `leaving`, `killed`.
    pub state: &'static str,
    /// Which load of the application it belongs to, counted from 1.
    pub generation: u64,
    /// Requests it has answered.
    pub requests: u64,
    /// Milliseconds since it was started.
    pub age_ms: u64,
    /// Its resource usage; `None` if the system does not report it.
    pub usage: Option<Usage>,
    /// Requests that it works on, as of the last tenth of a second: the first [`CURRENT_MAX`] of them.
    pub current: Vec<CurrentRequest>,
}

/// Requests of one process that are shown.
pub const CURRENT_MAX: usize = 4;
/// Bytes of a method and a target that are shown; what is longer is cut off.
pub const CURRENT_BYTES_MAX: usize = 128;

/// A request in a worker's hands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CurrentRequest {
    /// As the client sent it.
    pub method: String,
    /// Path and query, percent-encoded; both together with the method at most [`CURRENT_BYTES_MAX`] bytes.
    pub target: String,
    /// Milliseconds since a worker has it.
    pub age_ms: u64,
}

/// An application at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppSnapshot {
    /// Its processes.
    pub processes: Vec<ProcessInfo>,
    /// Requests that wait for a worker.
    pub waiting: usize,
    /// Requests that workers have.
    pub claimed: usize,
    /// Requests that may wait; more drop the oldest.
    pub waiting_max: usize,
}

/// How a worker has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerExit {
    /// It was asked to leave, or left by itself after it had answered requests, and ended well.
    Retired,
    /// It was killed: it took too long, or violated the protocol.
    Killed,
    /// It ended by itself, and not well.
    Crashed,
    /// It ended before it could answer a request.
    NotStarted,
}

impl WorkerExit {
    /// All of them, in the order of their numbers.
    pub const ALL: [WorkerExit; 4] =
        [WorkerExit::Retired, WorkerExit::Killed, WorkerExit::Crashed, WorkerExit::NotStarted];

    /// Its name in metrics.
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

/// Time and memory of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Milliseconds of processor time so far, user and system.
    pub cpu_ms: u64,
    /// Resident memory, bytes.
    pub rss_bytes: u64,
    /// Resident memory, what is shared divided by those who share it.
    pub pss_bytes: u64,
    /// Resident memory that it has written and shares with nobody.
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

/// Processor time from a `stat` line, whose second field may hold anything, spaces and brackets too.
fn cpu_ms(stat: &str) -> Option<u64> {
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
    let user: u64 = fields.nth(11)?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    // In hundredths of a second on every Linux that reports to user space.
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
    fn a_stat_line_with_a_strange_name() {
        let line = "12 (a) b) R 1 12 12 0 -1 4194304 90 0 0 0 150 25 0 0 20 0 1 0 100 1000 10";
        assert_eq!(cpu_ms(line), Some(1750));
        assert_eq!(cpu_ms("12 (a"), None);
    }

    #[test]
    fn memory_by_name() {
        let rollup =
            "00-ff ---p 0 00:00 0 [rollup]\nRss:  10 kB\nPss:   4 kB\nPss_Dirty: 9 kB\nPrivate_Dirty: 2 kB\n";
        let usage = memory(rollup);
        assert_eq!((usage.rss_bytes, usage.pss_bytes, usage.private_dirty_bytes), (10240, 4096, 2048));
    }

    #[test]
    fn this_process_has_memory() {
        let usage = Usage::of(std::process::id()).unwrap();
        assert!(usage.rss_bytes > 0 && usage.pss_bytes <= usage.rss_bytes);
    }
}
