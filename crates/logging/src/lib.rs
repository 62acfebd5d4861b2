//! Access log, error log, and the destinations of their lines: files, syslog, the journal, collectors.
//!
//! This crate owns the format of log lines and the threads that write them. It never blocks a thread that
//! serves requests.
//!
//! Modules, from low to high; a module uses only those above it.

pub mod remote;
pub mod otlp_record;
pub mod sink;
pub mod masks;
pub mod access;
pub mod throttle;
pub mod events;
pub mod notice;
