//! A checked configuration becomes handlers, subject by subject.
//!
//! It is the only room that knows both.
//!
//! Modules, from low to high; a module uses only those above it.

pub(crate) mod upstreams;
pub(crate) mod dictionaries;
pub(crate) mod releases;
pub(crate) mod guards;
pub(crate) mod content;
pub(crate) mod routes;
