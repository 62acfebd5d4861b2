//! The cache in front of a handler: requests, rules, fills and responses.
//!
//! It owns the way of a request through the cache. It never decides what may be stored: `cache` does.
//!
//! Modules, from low to high; a module uses only those above it.

pub mod request;
pub mod rules;
pub mod urls;
pub mod commands;
pub mod fill;
pub mod purge_method;
pub mod coded;
pub mod responses;
pub mod handler;
