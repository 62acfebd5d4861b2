//! The way from a request to its handler: sites, routes, paths, rewrites, edits, error pages.
//!
//! It owns the order of the steps of a request. It never reads configuration files.
//!
//! Modules, from low to high; a module uses only those above it.

pub mod pages;
pub mod ids;
pub mod edits;
pub mod geo;
pub mod streams;
pub mod php;
pub mod request_path;
pub mod conditions;
pub mod path_rules;
pub mod templates;
pub mod replace;
pub mod internal;
pub mod router;
pub mod fixed;
