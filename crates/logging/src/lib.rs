//! Access log, error log, and the destinations of their lines: files, syslog, the journal, collectors.
//!
//! This crate owns the directives of logs, the format of their lines and the threads that write them. It never blocks a thread that
//! serves requests.
//!
//! Modules, from low to high; a module uses only those above it.

mod destination;
mod directives;
pub mod remote;
pub mod otlp_record;
pub mod sink;
pub mod masks;
pub mod access;
pub mod throttle;
pub mod events;
pub mod notice;

pub use destination::{Journal, Sink, Syslog, SyslogAddress};
pub use directives::{AccessLog, Level, Log, LogCondition, LogField, RequestLog, RequestLogs};
