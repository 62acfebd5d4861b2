//! Resources of the server that all methods of authentication share.

use logging::notice::ErrorLog;
use net::MemoryBudget;
use process::config_files::ConfigFiles;

/// Resources of the server that authentication uses.
#[derive(Clone, Copy)]
pub struct AuthResources<'r> {
    /// Reads files of passwords and keys.
    pub files: &'r ConfigFiles,
    /// Pays for caches.
    pub memory: &'r MemoryBudget,
    /// Gets reports; `None` if the configuration is only checked.
    pub notices: Option<&'r ErrorLog>,
}
