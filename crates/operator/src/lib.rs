//! The control socket and listener, the control API and the dashboard.
//!
//! This crate owns the operations of a running server. It never changes the server itself: commands are sent
//! to the thread that runs it.
//!
//! Modules, from low to high; a module uses only those above it.

pub mod access;
pub mod overview;
pub mod config_text;
pub mod pending_command;
pub mod peer;
pub mod server_info;
pub mod socket;
pub mod history;
pub mod api;
pub mod endpoint;
pub mod listener;
