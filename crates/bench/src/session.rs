//! A single measurement: puts load on a server, observes its processes and shows the progress.

use std::sync::atomic::AtomicBool;

use failure::Failure;
use http::Version;

use crate::load::{self, LoadObserver, LoadProgress};
use crate::outcome::{BenchOutcome, RunSetup, unix_s};
use crate::plan::LoadPlan;
use crate::procfs;
use crate::server_usage::{self, ServerWatch};

/// Load and server to be measured.
#[derive(Clone, Debug)]
pub struct LoadSubject {
    /// Plan of the load.
    pub plan: LoadPlan,
    /// First URL, for display.
    pub url: String,
    /// HTTP version of the requests, for display.
    pub version: Version,
    /// Process IDs of the server; empty to find them by their listening sockets.
    pub server_pids: Vec<u32>,
    /// Root processes of services that the server needs: their CPU time counts neither for the server nor as
    /// noise.
    pub excluded_pids: Vec<u32>,
}

/// Combination of two observers.
struct ObserverPair<'o>(&'o mut ServerWatch, &'o mut dyn LoadObserver);

impl LoadObserver for ObserverPair<'_> {
    fn measurement_begins(&mut self) {
        self.0.measurement_begins();
        self.1.measurement_begins();
    }

    fn progress(&mut self, progress: &LoadProgress<'_>) {
        self.0.progress(progress);
        self.1.progress(progress);
    }

    fn measurement_ends(&mut self) {
        self.0.measurement_ends();
        self.1.measurement_ends();
    }
}

/// Runs one measurement.
///
/// # Errors
/// Returns the reason why the load could not be started.
pub fn measure(
    subject: &LoadSubject,
    stop: &AtomicBool,
    live: &mut dyn LoadObserver,
) -> Result<BenchOutcome, Failure> {
    let roots = match subject.server_pids.as_slice() {
        [] => server_usage::find_server(&subject.plan),
        given => given.to_vec(),
    };
    let mut watch = ServerWatch::new(roots, subject.excluded_pids.clone());
    let measured = load::run_load(&subject.plan, stop, &mut ObserverPair(&mut watch, live))?;
    let (server, around) = watch.finish();
    let setup = RunSetup::from_plan(&subject.plan, &subject.url, subject.version);
    Ok(BenchOutcome { setup, measured, server, machine: around, unix_s: unix_s() })
}

/// Returns a suitable number of engine threads: one for each 64 connections, up to the number of cores. If
/// the server is on the same machine, at most a quarter of the cores, because each thread takes CPU time from
/// the server, and one thread drives a quarter of a million requests per second.
#[must_use]
pub fn suggested_threads(connections: usize, server_is_here: bool) -> usize {
    let cores = procfs::core_count();
    let most = if server_is_here { (cores / 4).max(1) } else { cores };
    connections.div_ceil(64).clamp(1, most)
}
