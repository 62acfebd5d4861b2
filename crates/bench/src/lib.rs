//! The load generator, and the statistics and reports of its results.
//!
//! This crate owns measurements: the load on a server, the CPU time and memory that the server uses, whether a
//! difference is significant, and the reports. It is never needed by the server, and it never serves anything itself.
//!
//! Modules, from low to high; a module uses only those above it.

pub mod random;
pub mod stats;
pub mod quantity;
mod moment;
pub mod url;
pub mod request;
pub mod list;
pub mod plan;
pub mod handshakes;
pub mod tally;
mod failure;
mod dial;
mod world;
mod jobs;
mod lane;
mod streams;
mod thread;
pub mod load;
pub mod procfs;
pub mod server;
pub mod outcome;
pub mod figure;
pub mod advice;
pub mod record;
pub mod session;
pub mod table;
pub mod text;
pub mod live;
pub mod expect;
pub mod versus;
pub mod ab;
pub mod chart;
pub mod html;
pub mod children;
pub mod job;
pub mod lab;
pub mod attack;

pub use world::ServerFacts;
