//! The client of a request: its address behind trusted proxies, and whether it is admitted.
//!
//! Modules, from low to high; a module uses only those above it.

pub(crate) mod proxies;
pub(crate) mod access;
