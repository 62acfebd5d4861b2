//! Options of the serving engine: addresses, threads, limits, memory, and the generation of the configuration.
//!
//! Modules, from low to high; a module uses only those above it.

pub(crate) mod memory;
pub(crate) mod stream_listen;
pub(crate) mod options;
pub(crate) mod generations;
