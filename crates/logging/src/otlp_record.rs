//! Log lines as records for an OpenTelemetry collector: one object of OTLP's JSON encoding per line.

use std::time::SystemTime;

use serde_json::json;

use crate::directives::Level;

/// Current time in nanoseconds since 1970.
pub fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    times::nanos(since)
}

/// Severity number and text of a level in OpenTelemetry's log data model.
pub(crate) fn severity(level: Level) -> (u8, &'static str) {
    match level {
        Level::Error => (17, "ERROR"),
        Level::Warn => (13, "WARN"),
        Level::Info => (9, "INFO"),
        Level::Debug => (5, "DEBUG"),
    }
}

/// The record of an error log line; `name` is the level, or `app` for an application's output.
pub(crate) fn error_record(level: Level, name: &str, text: &str) -> Vec<u8> {
    let ((number, severity), now) = (severity(level), now_ns().to_string());
    let log = if name == "app" { "app" } else { "error" };
    let record = json!({
        "timeUnixNano": now,
        "observedTimeUnixNano": now,
        "severityNumber": number,
        "severityText": severity,
        "body": { "stringValue": text.trim_end() },
        "attributes": [{ "key": "komainu.log", "value": { "stringValue": log } }],
    });
    format!("{record}\n").into_bytes()
}
