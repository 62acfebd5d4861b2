//! Steps that run before the handler of a route: limits, queues, authentication, cross-origin requests,
//! releases, maintenance and crawler rules.
//!
//! This crate owns each step and its tables of clients. It never routes a request or produces the content of
//! a route: a step passes the request on, delays it or answers it. A route without such directives, of its
//! own or of its site, has no steps.
//!
//! Modules are ordered from low to high; a module uses only those above it.

pub mod flow;
pub mod access;
pub mod header_limit;
pub mod shaping;
pub mod limit;
pub mod auth;
pub mod cors;
pub mod site_https;
pub mod release;
pub mod guard;
