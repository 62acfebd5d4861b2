//! How a configuration is verified.

use std::path::PathBuf;
use std::time::Duration;

/// How a configuration is verified.
#[derive(Debug, Clone)]
pub struct Options {
    /// This program, which is started as the new server.
    pub komainu: PathBuf,
    /// The program of the old server.
    pub old: PathBuf,
    /// The most requests.
    pub requests_max: usize,
    /// Whether many paths are asked for, and little else: for many configurations in a short time.
    pub paths_alone: bool,
    /// The most time for all requests together.
    pub time_max: Duration,
}
