//! Routing of requests to handlers: sites, routes, paths, rewrites, response edits, error pages, and streams.
//!
//! This crate owns the order of the steps that a request passes through. It never reads the configuration
//! file, and implements only the steps that need the route: rewrites, replaced texts and named files.
//!
//! Modules are ordered from low to high; a module uses only those above it.

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
pub mod error_server;
pub mod route;
pub mod router;
pub mod fixed;
