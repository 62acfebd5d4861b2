//! Start, reload, upgrade, drain and stop of the server, and the supervisor.
//!
//! Modules, from low to high; a module uses only those above it.

mod container_sites;
pub(crate) mod metrics_push;
pub(crate) mod supervisor_requests;
pub(crate) mod supervisor;
pub(crate) mod lifecycle;
pub(crate) mod staged_files;
pub(crate) mod config_edits;
pub(crate) mod start;
