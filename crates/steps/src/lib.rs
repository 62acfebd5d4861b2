//! Steps before the handler of a route: limits, authentication, cross-origin requests, releases, maintenance.
//!
//! It owns each step and its tables of clients. It never answers for a handler; a route without such directives has no steps.
//!
//! Modules, from low to high; a module uses only those above it.

pub mod shaping;
pub mod limit;
pub mod auth;
pub mod cors;
pub mod site_https;
pub mod release;
pub mod guard;
