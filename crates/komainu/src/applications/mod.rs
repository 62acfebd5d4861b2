//! Applications: their languages, worker processes, CGI programs and environments.
//!
//! The `apps` crate talks to the workers.
//!
//! Modules, from low to high; a module uses only those above it.

pub(crate) mod env_file;
pub(crate) mod cgi_programs;
pub(crate) mod virtualenv;
pub(crate) mod language;
pub(crate) mod hosting;
pub(crate) mod watch;
