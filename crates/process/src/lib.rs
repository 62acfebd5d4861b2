//! Processes of the server: supervisor link, sandbox, systemd, listening sockets, upgrade, crash reports.
//!
//! This crate owns the communication between processes. It never reads a request.
//!
//! Modules, from low to high; a module uses only those above it.

pub mod confine_arguments;
pub mod crashes;
pub mod granted_paths;
pub mod refused_calls;
pub mod temporary_folder;
pub mod sandbox;
pub mod sockets;
pub mod systemd;
pub mod link;
pub mod config_files;
pub mod control_file;
pub mod log_target;
pub mod logs;
pub mod inherited;
pub mod stop_signals;
pub mod upgrade;
