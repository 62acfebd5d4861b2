//! Export of metrics, spans and logs to a collector (OTLP over HTTP).
//!
//! This crate owns the protocol and the queues of its exporters, which run on threads of their own. It never
//! decides what is recorded: `telemetry` and `logging` do.
//!
//! Modules, from low to high; a module uses only those above it.

mod collector;

mod spans;

pub use collector::{
    OtlpClient, OtlpLog, OtlpOptions, OtlpReport, OtlpSendError, OtlpSignal, RefusedItems, attribute,
    attribute_number,
};
pub use spans::{EndedSpan, SpanExporter, SpanKind, SpanValue};
