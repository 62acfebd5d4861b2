//! The control socket and listener, the control API, the dashboard.
//!
//! It changes the running server only through commands of `run`.
//!
//! Modules, from low to high; a module uses only those above it.

pub(crate) mod access;
pub(crate) mod overview;
pub(crate) mod config_text;
pub(crate) mod pending;
pub(crate) mod peer;
pub(crate) mod socket;
pub(crate) mod history;
pub(crate) mod api;
pub(crate) mod endpoint;
pub(crate) mod listener;
