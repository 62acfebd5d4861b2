//! The arguments of `komainu confine`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

/// How a program of an application is started.
#[derive(Debug, Args)]
pub struct Confine {
    /// A path beneath which it may read, and start programs; everything unless given
    #[arg(long, value_name = "PATH")]
    pub(crate) read: Vec<PathBuf>,
    /// A program whose folder, with the one above it, it may read
    #[arg(long, value_name = "PATH")]
    pub(crate) interpreter: Option<PathBuf>,
    /// A path beneath which it may write
    #[arg(long, value_name = "PATH")]
    pub(crate) write: Vec<PathBuf>,
    /// A path beneath which other applications may write
    #[arg(long, value_name = "PATH")]
    pub(crate) written_by_others: Vec<PathBuf>,
    /// Unix sockets alone
    #[arg(long)]
    pub(crate) no_network: bool,
    /// It may change modes, owners, times and extended attributes of files
    #[arg(long)]
    pub(crate) attributes: bool,
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}
