//! Options of a verification.

use std::path::PathBuf;
use std::time::Duration;

/// Options of a verification.
#[derive(Debug, Clone)]
pub struct Options {
    /// Path of this program, which is started as the new server.
    pub komainu: PathBuf,
    /// Path of the old server's program.
    pub old: PathBuf,
    /// Maximum number of requests.
    pub requests_max: usize,
    /// Whether to request many paths with few variations, to verify many configurations in a short time.
    pub paths_alone: bool,
    /// Maximum time for all requests together.
    pub time_max: Duration,
}
