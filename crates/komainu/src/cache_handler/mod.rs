//! The cache in front of a handler: requests, rules, fills and responses.
//!
//! The `cache` crate decides what is stored.
//!
//! Modules, from low to high; a module uses only those above it.

pub(crate) mod request;
pub(crate) mod rules;
pub(crate) mod urls;
pub(crate) mod commands;
pub(crate) mod fill;
pub(crate) mod purge_method;
pub(crate) mod coded;
pub(crate) mod responses;
pub(crate) mod handler;
