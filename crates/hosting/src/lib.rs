//! Applications: languages, worker processes, CGI programs and environments.
//!
//! This crate owns the list of running applications. It never talks to a worker: `apps` does.
//!
//! Modules, from low to high; a module uses only those above it.

pub mod env_file;
pub mod cgi_programs;
pub mod virtualenv;
pub mod language;
pub mod workers;
pub mod watch;
