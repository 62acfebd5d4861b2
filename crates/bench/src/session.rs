//! A single measurement: puts load on a server, observes its processes and shows the progress.

use std::sync::atomic::AtomicBool;

use http::Version;

use crate::load::{self, Observer, Progress};
use crate::outcome::{Outcome, Setup, unix_s};
use crate::plan::Plan;
use crate::procfs;
use crate::server::{self, Watch};

/// Load and server to be measured.
#[derive(Clone, Debug)]
pub struct LoadSubject {
    /// Plan of the load.
    pub plan: Plan,
    /// First URL, for display.
    pub url: String,
    /// HTTP version of the requests, for display.
    pub version: Version,
    /// Process IDs of the server; empty to find them by their listening sockets.
    pub server_pids: Vec<u32>,
    /// Root processes of services that the server needs: their CPU time counts neither for the server nor as
    /// noise.
    pub beside_pids: Vec<u32>,
}

/// Combination of two observers.
struct Both<'o>(&'o mut Watch, &'o mut dyn Observer);

impl Observer for Both<'_> {
    fn count_begins(&mut self) {
        self.0.count_begins();
        self.1.count_begins();
    }

    fn progress(&mut self, progress: &Progress<'_>) {
        self.0.progress(progress);
        self.1.progress(progress);
    }

    fn count_ends(&mut self) {
        self.0.count_ends();
        self.1.count_ends();
    }
}

/// Runs one measurement.
///
/// # Errors
/// Returns the reason why the load could not be started.
pub fn measure(subject: &LoadSubject, stop: &AtomicBool, live: &mut dyn Observer) -> Result<Outcome, String> {
    let roots = match subject.server_pids.as_slice() {
        [] => server::find(&subject.plan),
        given => given.to_vec(),
    };
    let mut watch = Watch::new(roots, subject.beside_pids.clone());
    let measured = load::run(&subject.plan, stop, &mut Both(&mut watch, live))?;
    let (server, around) = watch.finish();
    let setup = Setup::of(&subject.plan, &subject.url, subject.version);
    Ok(Outcome { setup, measured, server, around, unix_s: unix_s() })
}

/// Returns a suitable number of engine threads: one for each 64 connections, up to the number of cores. If
/// the server is on the same machine, at most a quarter of the cores, because each thread takes CPU time from
/// the server, and one thread drives a quarter of a million requests per second.
#[must_use]
pub fn threads(connections: usize, server_is_here: bool) -> usize {
    let cores = procfs::cores();
    let most = if server_is_here { (cores / 4).max(1) } else { cores };
    connections.div_ceil(64).clamp(1, most)
}
