//! Access log, error log and where their lines go: files, syslog, the journal, collectors.
//!
//! It never blocks a thread that serves.
//!
//! Modules, from low to high; a module uses only those above it.

pub(crate) mod remote;
pub(crate) mod record;
pub(crate) mod sink;
pub(crate) mod masks;
pub(crate) mod access;
pub(crate) mod burst;
pub(crate) mod events;
pub(crate) mod notice;
