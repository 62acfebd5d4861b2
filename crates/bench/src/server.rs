//! CPU time and memory of a server on this machine during a run.

use std::time::Instant;

use net::Dial;

use crate::load::{Observer, Progress};
use crate::moment::process_cpu_ns;
use crate::plan::Plan;
use crate::procfs::{self, Cpu, ProcessMemory, Reading};

/// Interval in seconds between two samples of the series.
const SAMPLE_S: f64 = 1.0;

/// Resources that a server used during a run.
#[derive(Clone, Debug, Default)]
pub struct Spent {
    /// CPU time and context switches of the whole process tree in the measured part.
    pub cpu: Cpu,
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
pub fn find(plan: &Plan) -> Vec<u32> {
    let mut found = Vec::new();
    for origin in &plan.origins {
        found.extend(match &origin.dial {
            Dial::Tcp(address) => procfs::listeners(*address),
            Dial::Unix(path) => procfs::unix_listeners(path),
        });
    }
    found.sort_unstable();
    found.dedup();
    // A server inside this process (in tests) cannot be measured apart from the load generator.
    found.retain(|&pid| pid != std::process::id());
    found
}

/// Observes a server's process tree during a run.
pub struct Watch {
    roots: Vec<u32>,
    beside: Vec<u32>,
    /// Processes of the tree at the latest reading.
    pids: Vec<u32>,
    begin: Option<Begin>,
    last: (f64, Reading),
    spent: Spent,
    noise: Option<f64>,
}

struct Begin {
    at: Instant,
    cpu: Reading,
    beside_ns: u64,
    busy_ns: u64,
}

impl Watch {
    /// Observes the process trees below `roots`; nothing if there are none. The trees below `beside` also
    /// belong to the measurement: their CPU time does not count as noise.
    #[must_use]
    pub fn new(roots: Vec<u32>, beside: Vec<u32>) -> Watch {
        let pids = if roots.is_empty() { Vec::new() } else { procfs::tree(&roots) };
        let before = procfs::memory(&pids);
        let spent = Spent { before, ..Spent::default() };
        Watch { roots, beside, pids, begin: None, last: (0.0, Reading::default()), spent, noise: None }
    }

    /// Returns the result; `None` if there was no server to observe.
    #[must_use]
    pub fn finish(mut self) -> (Option<Spent>, MachineState) {
        let around = MachineState { noise: self.noise };
        if self.pids.is_empty() {
            return (None, around);
        }
        self.spent.after = procfs::memory(&procfs::tree(&self.roots));
        (Some(self.spent), around)
    }

    fn look(&mut self) -> Reading {
        // Searching for new processes takes time, so the known ones are read first.
        let mut cpu = procfs::cpu(&self.pids);
        let known = std::mem::replace(&mut self.pids, procfs::tree(&self.roots));
        let further: Vec<u32> = self.pids.iter().copied().filter(|pid| !known.contains(pid)).collect();
        if !further.is_empty() {
            cpu.add(procfs::cpu(&further));
        }
        cpu
    }

    /// Returns the CPU time of the measurement apart from the server: this process and the processes that the
    /// server needs.
    fn beside_ns(&self) -> u64 {
        match self.beside.as_slice() {
            [] => process_cpu_ns(),
            beside => process_cpu_ns() + procfs::cpu(&procfs::tree(beside)).whole().total_ns,
        }
    }
}

impl Observer for Watch {
    fn count_begins(&mut self) {
        if self.roots.is_empty() {
            return;
        }
        let cpu = self.look();
        self.last = (0.0, cpu.clone());
        self.begin = Some(Begin {
            at: Instant::now(),
            cpu,
            beside_ns: self.beside_ns(),
            busy_ns: procfs::machine_busy_ns(),
        });
    }

    fn progress(&mut self, progress: &Progress<'_>) {
        let at_s = self.last.0;
        if self.begin.is_none() || progress.elapsed_s < at_s + SAMPLE_S {
            return;
        }
        let cpu = self.look();
        let cores = cpu.since(&self.last.1).total_ns as f64 / 1e9 / (progress.elapsed_s - at_s);
        self.spent.series.push(ServerSample {
            at_s: progress.elapsed_s,
            cores,
            rss: procfs::rss(&self.pids),
        });
        self.last = (progress.elapsed_s, cpu);
    }

    fn count_ends(&mut self) {
        if self.begin.is_none() {
            return;
        }
        let cpu = self.look();
        let Some(begin) = &self.begin else { return };
        self.spent.cpu = cpu.since(&begin.cpu);
        let busy_ns = procfs::machine_busy_ns().saturating_sub(begin.busy_ns);
        let ours_ns = self.spent.cpu.total_ns + self.beside_ns().saturating_sub(begin.beside_ns);
        let all_ns = begin.at.elapsed().as_nanos() as f64 * procfs::cores() as f64;
        self.noise = Some((busy_ns.saturating_sub(ours_ns) as f64 / all_ns).min(1.0));
    }
}
