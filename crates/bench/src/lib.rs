//! The load generator, and the statistics and reports of its results.
//!
//! This crate owns measurements: the load on a server, the CPU time and memory that the server uses, whether a
//! difference is significant, and the reports. It is never needed by the server, and serves nothing but what `calibration`
//! measures.
//!
//! Modules, from low to high; a module uses only those above it.

pub mod random;
pub mod stats;
pub mod quantity;
mod clock;
pub mod url;
pub mod request;
pub mod url_list;
pub mod plan;
pub mod handshakes;
pub mod tally;
mod request_failure;
mod connect;
mod load_state;
mod connection_loop;
mod active_requests;
mod http1_connection;
mod http2_connection;
mod http3_connection;
mod load_thread;
pub mod load;
pub mod procfs;
pub mod server_usage;
pub mod outcome;
pub mod figure;
pub mod advice;
pub mod outcome_export;
pub mod session;
pub mod table;
pub mod text;
pub mod progress_display;
pub mod expectation;
pub mod comparison;
pub mod ab;
pub mod chart;
pub mod html;
pub mod child_processes;
pub mod job;
pub mod lab;
pub mod attack;
pub mod calibration;

pub use load_state::ServerFacts;
