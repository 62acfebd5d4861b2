//! Export of metrics, spans and logs to a collector (OTLP over HTTP).
//!
//! This crate owns the protocol, the directives of collectors and traces, and the queues of its exporters,
//! which run on threads of their own. It never decides what is recorded: `telemetry` and `logging` do.
//!
//! Modules, from low to high; a module uses only those above it.

mod exports;
pub mod tracing;
mod collector;

mod spans;

pub use collector::{
    OtlpClient, OtlpLog, OtlpOptions, OtlpReport, OtlpSendError, OtlpSignal, RefusedItems, attribute,
    attribute_number,
};
pub use exports::{CollectedMetrics, HistogramForm, OtlpLogs, parse_header_lines};
pub use spans::{EndedSpan, SpanExporter, SpanKind, SpanValue};
