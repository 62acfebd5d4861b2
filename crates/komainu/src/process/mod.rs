//! Processes of the server: supervisor link, privileges, sandbox, systemd, listening sockets, upgrade, crashes.
//!
//! It never reads a request.
//!
//! Modules, from low to high; a module uses only those above it.

pub(crate) mod confine_arguments;
pub(crate) mod crashes;
pub(crate) mod granted_paths;
pub(crate) mod refused_calls;
pub(crate) mod temporary_folder;
pub(crate) mod sandbox;
pub(crate) mod sockets;
pub(crate) mod systemd;
pub(crate) mod link;
pub(crate) mod config_files;
pub(crate) mod control_file;
pub(crate) mod log_target;
pub(crate) mod logs;
pub(crate) mod inherited;
pub(crate) mod stop_signals;
pub(crate) mod upgrade;
