//! Values that tables of several crates have: header fields, networks, patterns of paths and values, texts with
//! variables, rates, shares, names, hosts.
//!
//! This crate owns the notation of these values: their parsers, the errors with remedies, and the types that match
//! requests. It never declares a directive: a table belongs to the crate that acts on it. It is apart from `settings`,
//! which knows nothing of HTTP, and from `http`, which reads no configuration.
//!
//! Modules, from low to high; a module uses only those above it.

mod glob;
pub mod host;

pub mod template;
pub mod header;
pub mod names;
pub mod media;
pub mod network;
pub mod expression;
pub mod pattern;
pub mod prefix;
pub mod rate;
pub mod share;
pub mod client_abort;
pub mod status;
