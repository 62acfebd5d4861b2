//! Metrics, costs and spans of requests, and their export formats.
//!
//! This crate owns the metrics. It never decides anything about a request.
//!
//! Modules, from low to high; a module uses only those above it.

pub mod metrics;
pub mod traces;
pub mod rule_counters;
pub mod gauges;
pub mod families;
pub mod text_format;
pub mod protobuf_format;
pub mod format;
pub mod otlp;
pub mod costs;
