//! The cache in front of a handler: requests, rules, fills and responses.
//!
//! This crate owns the path of a request through the cache. It never decides itself which responses may be
//! stored: `cache` does.
//!
//! Modules are ordered from low to high; a module uses only those above it.

pub mod request;
pub mod rules;
pub mod urls;
pub mod commands;
pub mod fill;
pub mod purge_method;
pub mod coded;
pub mod responses;
pub mod handler;
