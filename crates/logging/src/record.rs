//! Lines of logs as records for a collector of OpenTelemetry: an object of OTLP's JSON encoding on each line.

use std::time::SystemTime;

use config::Level;
use serde_json::json;

/// Now, in nanoseconds since 1970.
pub fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// A level's number and name in OpenTelemetry's model of logs.
pub(crate) fn severity(level: Level) -> (u8, &'static str) {
    match level {
        Level::Error => (17, "ERROR"),
        Level::Warn => (13, "WARN"),
        Level::Info => (9, "INFO"),
        Level::Debug => (5, "DEBUG"),
    }
}

/// The record of a line of the error log; `name` is the level, or `app` for the output of an application.
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
