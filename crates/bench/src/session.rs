//! One measurement: puts load on a server, watches its processes and shows the progress.

use std::sync::atomic::AtomicBool;

use http::Version;

use crate::load::{self, Observer, Progress};
use crate::outcome::{Outcome, Setup, unix_s};
use crate::plan::Plan;
use crate::procfs;
use crate::server::{self, Watch};

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct LoadSubject {
    /// The load.
    pub plan: Plan,
    /// Its first URL, for people.
    pub url: String,
    /// What the requests speak, for people.
    pub version: Version,
    /// The server's processes; empty to find them by where they listen.
    pub server_pids: Vec<u32>,
    /// First processes of what the server needs beside it: their CPU time is neither the server's nor a stranger's.
    pub beside_pids: Vec<u32>,
}

/// Two observers as one.
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

/// Measures once.
///
/// # Errors
/// What keeps the load from being put on at all.
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

/// How many engine threads suit a load: one where the server shares the machine and has few cores to give, because each
/// thread more takes from the server and one drives a quarter of a million requests a second; else one for each 64
/// connections, up to the cores there are.
#[must_use]
pub fn threads(connections: usize, server_is_here: bool) -> usize {
    let cores = procfs::cores();
    let most = if server_is_here { (cores / 4).max(1) } else { cores };
    connections.div_ceil(64).clamp(1, most)
}
