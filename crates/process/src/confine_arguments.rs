//! Arguments of `komainu confine`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

/// Restrictions under which an application's program is started.
#[derive(Debug, Args)]
pub struct Confine {
    /// Path below which the program may read, and execute files; everything unless given
    #[arg(long, value_name = "PATH")]
    pub(crate) read: Vec<PathBuf>,
    /// Interpreter whose directory and parent directory the program may read
    #[arg(long, value_name = "PATH")]
    pub(crate) interpreter: Option<PathBuf>,
    /// Path below which the program may write
    #[arg(long, value_name = "PATH")]
    pub(crate) write: Vec<PathBuf>,
    /// Path below which other applications may write
    #[arg(long, value_name = "PATH")]
    pub(crate) written_by_others: Vec<PathBuf>,
    /// Allow Unix sockets only
    #[arg(long)]
    pub(crate) no_network: bool,
    /// Allow changing modes, owners, times and extended attributes of files
    #[arg(long)]
    pub(crate) attributes: bool,
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}
