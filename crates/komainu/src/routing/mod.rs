//! The way from a request to its handler: sites, routes, paths, rewrites, edits, error pages.
//!
//! Modules, from low to high; a module uses only those above it.

pub(crate) mod pages;
pub(crate) mod ids;
pub(crate) mod edits;
pub(crate) mod geo;
pub(crate) mod streams;
pub(crate) mod php;
pub(crate) mod request_path;
pub(crate) mod conditions;
pub(crate) mod path_rules;
pub(crate) mod templates;
pub(crate) mod replace;
pub(crate) mod internal;
pub(crate) mod router;
pub(crate) mod fixed;
