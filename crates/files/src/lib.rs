//! Static file serving.
//!
//! This crate owns the steps from a path to a response: finding and opening the file (never outside the
//! root), its media type and validators, ranges and preconditions, siblings in other codings and live
//! compression, folder listings, and a small cache of open files and contents per core. It never parses
//! requests, touches sockets or blocks a core on a disk: blocking calls run on other threads
//! ([`net::Core::offload`]).
//!
//! Modules, from low to high; a module uses only those above it.

#[cfg(test)]
mod scratch;
pub mod media;
pub mod options;
pub mod open_folder;
pub mod open;
pub mod store;
pub mod tree;
pub mod request_fields;
pub mod multipart;
pub mod entry;
pub mod send;
pub mod folder;
pub mod listing;
pub mod script;
pub mod finder;
mod dictionary;
pub mod files;

pub use files::{FileOutcome, Files};
pub use options::{
    CacheLimits, Compress, FileOptions, FileSelector, Options, RootReport, RootState, Symlinks,
};
pub use script::{FoundScript, scripts_within};
