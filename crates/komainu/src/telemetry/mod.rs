//! Counts, costs and spans of requests, and the formats in which they are exported.
//!
//! It never decides anything about a request.
//!
//! Modules, from low to high; a module uses only those above it.

pub(crate) mod metrics;
pub(crate) mod traces;
pub(crate) mod rule_counters;
pub(crate) mod families;
pub(crate) mod text_format;
pub(crate) mod protobuf_format;
pub(crate) mod format;
pub(crate) mod otlp;
pub(crate) mod costs;
