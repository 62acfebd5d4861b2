//! Options of a verification.

use std::path::PathBuf;
use std::time::Duration;

/// Options of a verification.
#[derive(Debug, Clone)]
pub struct VerifyOptions {
    /// Path of this program, which is started as the new server.
    pub komainu_path: PathBuf,
    /// Path of the old server's program.
    pub old_server_path: PathBuf,
    /// Maximum number of requests.
    pub requests_max: usize,
    /// Whether to request many paths with few variations, to verify many configurations in a short time.
    pub only_paths: bool,
    /// Maximum time for all requests together.
    pub total_timeout: Duration,
}
