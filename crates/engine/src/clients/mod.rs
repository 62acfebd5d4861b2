//! The client of a request: its address behind trusted proxies, and whether it is admitted.
//!
//! Modules, from low to high; a module uses only those above it.

pub mod proxies;
pub mod access;
