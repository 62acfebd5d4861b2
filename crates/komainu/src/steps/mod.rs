//! Steps before the handler of a route, in the order in which they run: access, limits, authentication, releases.
//!
//! A route without such directives has none of them.
//!
//! Modules, from low to high; a module uses only those above it.

pub(crate) mod shaping;
pub(crate) mod limit;
pub(crate) mod auth;
pub(crate) mod cors;
pub(crate) mod site_https;
pub(crate) mod release;
pub(crate) mod guard;
