//! CPU time and memory of a server on this machine during a run.

use std::time::Instant;

use net::ConnectAddress;

use crate::clock::process_cpu_ns;
use crate::load::{LoadObserver, LoadProgress};
use crate::plan::LoadPlan;
use crate::procfs::{self, CpuUsage, ProcessMemory, UsageReading};

/// Interval in seconds between two samples of the series.
const SAMPLE_INTERVAL_S: f64 = 1.0;

/// Resources that a server used during a run.
#[derive(Clone, Debug, Default)]
pub struct ServerUsage {
    /// CPU time and context switches of the whole process tree in the measured part.
    pub cpu: CpuUsage,
    /// Memory of each process before the load.
    pub before: Vec<ProcessMemory>,
    /// Memory of each process after the load.
    pub after: Vec<ProcessMemory>,
    /// Resource usage over time.
    pub series: Vec<ServerSample>,
}

/// Sample of a server's resource usage.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ServerSample {
    /// Seconds since the measured part began.
    pub at_s: f64,
    /// CPU time since the previous sample, in cores: 1 is the full time of one core.
    pub cores: f64,
    /// Resident memory of the tree, in bytes.
    pub rss: u64,
}

/// State of the machine during a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MachineState {
    /// Share of all cores' time that was used neither by the server nor by the generator; `None` if the
    /// server was not found.
    pub noise: Option<f64>,
}

/// Finds the server of a plan: the processes that listen on its addresses.
#[must_use]
pub fn find_server(plan: &LoadPlan) -> Vec<u32> {
    let mut found = Vec::new();
    for origin in &plan.origins {
        found.extend(match &origin.address {
            ConnectAddress::Tcp(address) => {
                procfs::listening_processes(*address, plan.version == http::Version::Http3)
            }
            ConnectAddress::Unix(path) => procfs::unix_listening_processes(path),
        });
    }
    found.sort_unstable();
    found.dedup();
    // A server inside this process (in tests) cannot be measured apart from the load generator.
    found.retain(|&pid| pid != std::process::id());
    found
}

/// Observes a server's process tree during a run.
pub struct ServerWatch {
    roots: Vec<u32>,
    excluded_roots: Vec<u32>,
    /// Processes of the tree at the latest reading.
    pids: Vec<u32>,
    usage_start: Option<UsageStart>,
    last: (f64, UsageReading),
    usage: ServerUsage,
    noise: Option<f64>,
}

struct UsageStart {
    at: Instant,
    cpu: UsageReading,
    excluded_ns: u64,
    busy_ns: u64,
}

impl ServerWatch {
    /// Observes the process trees below `roots`; nothing if there are none. The trees below `beside` also
    /// belong to the measurement: their CPU time does not count as noise.
    #[must_use]
    pub fn new(roots: Vec<u32>, excluded_roots: Vec<u32>) -> ServerWatch {
        let pids = if roots.is_empty() { Vec::new() } else { procfs::process_tree(&roots) };
        let before = procfs::process_memory(&pids);
        let spent = ServerUsage { before, ..ServerUsage::default() };
        ServerWatch {
            roots,
            excluded_roots,
            pids,
            usage_start: None,
            last: (0.0, UsageReading::default()),
            usage: spent,
            noise: None,
        }
    }

    /// Returns the result; `None` if there was no server to observe.
    #[must_use]
    pub fn finish(mut self) -> (Option<ServerUsage>, MachineState) {
        let around = MachineState { noise: self.noise };
        if self.pids.is_empty() {
            return (None, around);
        }
        self.usage.after = procfs::process_memory(&procfs::process_tree(&self.roots));
        (Some(self.usage), around)
    }

    fn read_usage(&mut self) -> UsageReading {
        // Searching for new processes takes time, so the known ones are read first.
        let mut cpu = procfs::read_usage(&self.pids);
        let known = std::mem::replace(&mut self.pids, procfs::process_tree(&self.roots));
        let further: Vec<u32> = self.pids.iter().copied().filter(|pid| !known.contains(pid)).collect();
        if !further.is_empty() {
            cpu.merge(procfs::read_usage(&further));
        }
        cpu
    }

    /// Returns the CPU time of the measurement apart from the server: this process and the processes that the
    /// server needs.
    fn excluded_ns(&self) -> u64 {
        match self.excluded_roots.as_slice() {
            [] => process_cpu_ns(),
            beside => {
                process_cpu_ns() + procfs::read_usage(&procfs::process_tree(beside)).since_start().total_ns
            }
        }
    }
}

impl LoadObserver for ServerWatch {
    fn measurement_begins(&mut self) {
        if self.roots.is_empty() {
            return;
        }
        let cpu = self.read_usage();
        self.last = (0.0, cpu.clone());
        self.usage_start = Some(UsageStart {
            at: Instant::now(),
            cpu,
            excluded_ns: self.excluded_ns(),
            busy_ns: procfs::machine_busy_ns(),
        });
    }

    fn progress(&mut self, progress: &LoadProgress<'_>) {
        let at_s = self.last.0;
        if self.usage_start.is_none() || progress.elapsed_s < at_s + SAMPLE_INTERVAL_S {
            return;
        }
        let cpu = self.read_usage();
        let cores = cpu.since(&self.last.1).total_ns as f64 / 1e9 / (progress.elapsed_s - at_s);
        self.usage.series.push(ServerSample {
            at_s: progress.elapsed_s,
            cores,
            rss: procfs::total_rss(&self.pids),
        });
        self.last = (progress.elapsed_s, cpu);
    }

    fn measurement_ends(&mut self) {
        if self.usage_start.is_none() {
            return;
        }
        let cpu = self.read_usage();
        let Some(begin) = &self.usage_start else { return };
        self.usage.cpu = cpu.since(&begin.cpu);
        let busy_ns = procfs::machine_busy_ns().saturating_sub(begin.busy_ns);
        let ours_ns = self.usage.cpu.total_ns + self.excluded_ns().saturating_sub(begin.excluded_ns);
        let all_ns = begin.at.elapsed().as_nanos() as f64 * procfs::core_count() as f64;
        self.noise = Some((busy_ns.saturating_sub(ours_ns) as f64 / all_ns).min(1.0));
    }
}
