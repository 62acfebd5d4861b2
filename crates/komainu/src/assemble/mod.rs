//! Assembly of a checked configuration into handlers, by subject.
//!
//! This is the only module that knows both configuration and handlers.
//!
//! Modules, from low to high; a module uses only those above it.

pub(crate) mod site_places;
pub(crate) mod discovery;
pub(crate) mod cluster;
pub(crate) mod upstreams;
pub(crate) mod dictionaries;
pub(crate) mod releases;
pub(crate) mod guards;
pub(crate) mod content;
pub(crate) mod response_cache;
pub(crate) mod routes;
