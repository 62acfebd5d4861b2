//! Options of an application.

use failure::Failure;
use net::SpillQuota;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use crate::directives::{AppSettings, Workers};
use crate::launcher::Launcher;

/// One application: its settings, and what they amount to on this machine.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name for the log and the status.
    pub name: String,
    /// Settings of the application.
    pub settings: AppSettings,
    /// Program and arguments; the program speaks the protocol of `workers/README.md`.
    pub command: Vec<OsString>,
    /// Environment variables that are set in addition to those of the server.
    pub env: Vec<(OsString, OsString)>,
    /// Working directory; `None` for that of the server.
    pub folder: Option<PathBuf>,
    /// User and group ids to run as, without supplementary groups; `None` for those of the server.
    pub user: Option<(u32, u32)>,
    /// Launcher that starts the processes, if this process lacks the rights.
    pub launcher: Option<Arc<dyn Launcher>>,
    /// Number of workers.
    pub workers: Workers,
    /// Bytes of a slot for the request; the entire head must fit.
    pub request_bytes: usize,
    /// Quota of temporary files for responses beyond `answer_ahead_bytes` and for request bodies beyond
    /// `body_ahead_bytes`; `None` for no temporary files.
    pub spill: Option<Arc<SpillQuota>>,
}

impl Options {
    /// Returns the options of an application of no kind with default settings and 2 workers.
    #[must_use]
    pub fn new(name: &str, command: Vec<OsString>) -> Options {
        Options {
            name: name.to_owned(),
            settings: AppSettings::default(),
            command,
            env: Vec::new(),
            folder: None,
            user: None,
            launcher: None,
            workers: Workers { min: 2, max: 2 },
            request_bytes: 64 * 1024,
            spill: None,
        }
    }

    /// Checks that the number of worker slots is supported.
    ///
    /// # Errors
    /// The number of worker slots needed, and the maximum.
    pub fn check(&self) -> Result<(), Failure> {
        const WORKER_SLOTS_MAX: usize = ring::Options::WORKER_SLOTS_MAX;
        let places = self.place_count();
        let threads = self.settings.threads.max(1) as usize;
        match places.saturating_mul(threads) {
            worker_slots if worker_slots > WORKER_SLOTS_MAX => Err(Failure::new(format!(
                "{} workers, and {} to take over from them, of {threads} threads each are {worker_slots}: there may be {WORKER_SLOTS_MAX}",
                self.workers.max,
                places - self.workers.max as usize,
            ))),
            _ => Ok(()),
        }
    }

    /// Returns the number of places for worker processes: the maximum, and some for replacements of workers
    /// that are leaving.
    pub(crate) fn place_count(&self) -> usize {
        let workers_max = self.workers.max as usize;
        workers_max + workers_max.div_ceil(4) + 1
    }
}
