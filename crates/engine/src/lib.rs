//! Options of the serving engine: addresses, threads, limits, memory, trusted proxies, generations of the
//! configuration.
//!
//! This crate owns the translation of these settings for `net`. It never serves a request.
//!
//! Modules, from low to high; a module uses only those above it.

pub mod clients;
pub mod memory;
pub mod stream_listen;
pub mod options;
pub mod generations;
