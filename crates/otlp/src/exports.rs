//! Export to an OpenTelemetry collector: metrics and log lines. Spans are in `tracing`.

use failure::Failure;
use settings::checker::InvalidValue;
use settings::directives;
use settings::shape::{Map, Maybe, PathShape, Text, Time, Word};
use shapes::header;
use std::path::PathBuf;
use std::time::Duration;

/// Fields that each request to a collector has anyway.
const OWN_HEADERS: [&str; 4] = ["content-type", "content-encoding", "host", "user-agent"];
/// The most fields that a file may hold.
const HEADERS_MAX: usize = 32;

/// The URL of a collector.
pub(crate) const COLLECTOR: Text<String> =
    Text { what: "a URL such as \"http://127.0.0.1:4318\"", parse: parse_collector };
/// The name of a service.
pub(crate) const SERVICE: Text<String> = Text { what: "a name", parse: parse_service };
/// Fields of requests to a collector.
pub(crate) const HEADERS: Map<String, Text<String>> = Map {
    what: "header names",
    key: parse_header_name,
    value: Text { what: "a header value", parse: header::parse_value },
};
/// The file of such fields.
pub(crate) const HEADERS_FILE: PathShape = PathShape("a file");

/// Histogram format of exported durations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HistogramForm {
    /// Explicit bucket bounds, those of the Prometheus text format.
    Explicit,
    /// Exponential buckets, each 9 % wider than the one before.
    Exponential,
}

directives! {
    /// Metrics for a collector of OpenTelemetry, by OTLP over HTTP in its JSON encoding. The metrics of `GET
    /// /metrics` of `[control]` are sent at an interval, from a separate thread; neither needs the other.
    ///
    /// ```toml
    /// [metrics]
    /// to = "http://127.0.0.1:4318"
    /// every = "15s"
    /// ```
    ///
    /// Values are cumulative since the start of the server, so that nothing is lost while the collector is
    /// unavailable. Sending is retried with growing pauses, or when the collector asks for it, with the
    /// values of that time.
    CollectedMetrics in "`[metrics]`" {
        /// The collector: a URL such as `"http://127.0.0.1:4318"`, to which `/v1/metrics` is appended.
        "to" to: Option<String> = absent("none"), Maybe(COLLECTOR);
        /// The interval.
        "every" every: Duration = "15s", Time { min: Duration::from_secs(1), max: Duration::from_secs(3_600) };
        /// The `service.name` of the metrics.
        "service" service: String = "komainu", SERVICE;
        /// Value of `service.instance.id`, which distinguishes the servers of one service.
        "instance" instance: Option<String> = absent("the name of the machine"), Maybe(SERVICE);
        /// Histogram format of durations. `"explicit"`: the 16 buckets of the Prometheus text format, which
        /// every receiver can read. `"exponential"`: buckets that are each 9 % wider than the one before.
        "histograms" histograms: HistogramForm = "explicit",
            Word(&[("explicit", HistogramForm::Explicit), ("exponential", HistogramForm::Exponential)]);
        /// Fields of each request to the collector, such as the key of a service: names and values.
        "headers" headers: Vec<(String, String)> = {}, HEADERS;
        /// A file of such fields, which may be secret: a line `NAME: VALUE` for each, at most 32.
        "headers_file" headers_file: Option<PathBuf> = absent("none"), Maybe(HEADERS_FILE);
    }
}

directives! {
    /// A collector of OpenTelemetry, which gets each line as a log record by OTLP over HTTP in its JSON encoding. The body of a record is the
    /// line; its attributes have the names of OpenTelemetry's conventions for HTTP, and it names the trace and the span of the
    /// request where `[tracing]` is on.
    ///
    /// ```toml
    /// [[logs]]
    /// access = '$method $target $status'
    /// file = { otlp = "http://127.0.0.1:4318", service = "shop" }
    /// ```
    ///
    /// Records are sent in batches, within about a second. While the collector cannot be reached, they are
    /// buffered (8 MiB), and stderr reports it.
    OtlpLogs in "a log's destination (otlp)" {
        /// The collector: a URL such as `"http://127.0.0.1:4318"`, to which `/v1/logs` is appended.
        "otlp" to: String = required(""), COLLECTOR;
        /// The `service.name` of the records.
        "service" service: String = "komainu", SERVICE;
        /// Fields of each request to the collector, as in `[metrics]`.
        "headers" headers: Vec<(String, String)> = {}, HEADERS;
        /// A file of such fields, as in `[metrics]`.
        "headers_file" headers_file: Option<PathBuf> = absent("none"), Maybe(HEADERS_FILE);
    }
}

/// A URL of a collector, without a slash at its end.
fn parse_collector(text: &str) -> Result<String, InvalidValue> {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://")).unwrap_or_default();
    let host = rest.split('/').next().unwrap_or_default();
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic()) && !text.contains(['?', '#', '"']);
    let own = ["/v1/traces", "/v1/metrics", "/v1/logs"];
    if let Some(base) = own.iter().find_map(|path| text.trim_end_matches('/').strip_suffix(path)) {
        return Err(InvalidValue::new("the path is appended to this URL", format!("write \"{base}\"")));
    }
    if !host.is_empty() && !host.contains('@') && is_plain {
        Ok(text.trim_end_matches('/').to_owned())
    } else {
        Err(InvalidValue::new(
            "this is not a URL of a collector",
            "write the address of its OTLP receiver for HTTP, such as \"http://127.0.0.1:4318\"",
        ))
    }
}

fn parse_service(text: &str) -> Result<String, InvalidValue> {
    if (1..=255).contains(&text.len()) && !text.contains(char::is_control) {
        Ok(text.to_owned())
    } else {
        Err(InvalidValue::new("this is not a name", "write 1 to 255 bytes without control characters"))
    }
}

fn parse_header_name(text: &str) -> Result<String, InvalidValue> {
    let name = header::parse_rule_name(text)?;
    if OWN_HEADERS.contains(&name.as_str()) {
        Err(InvalidValue::new("the server sets this field itself", "remove it"))
    } else {
        Ok(name)
    }
}

/// Reads the text of a `headers_file`: a line `NAME: VALUE` for each field; empty lines, and those that begin with `#`, are ignored.
///
/// # Errors
/// The fault, with the number of its line, but without the text of the line, which may be a secret.
pub fn parse_header_lines(text: &str) -> Result<Vec<(String, String)>, Failure> {
    let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
    let mut fields = Vec::new();
    for (at, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
        let (name, value) = line.split_once(':').ok_or(format!("line {at}: write NAME: VALUE"))?;
        let wrong = |what: &str, fault: InvalidValue| format!("line {at}: the {what}: {}", fault.message);
        let name = parse_header_name(name.trim_end()).map_err(|fault| wrong("name", fault))?;
        let value = header::parse_value(value.trim()).map_err(|fault| wrong("value", fault))?;
        fields.push((name, value));
    }
    if fields.len() > HEADERS_MAX {
        Err(Failure::new(format!("{} fields: at most {HEADERS_MAX} may be there", fields.len())))
    } else {
        Ok(fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_files_are_parsed_without_revealing_secrets() {
        let text = "# keys\n\nAPI-Key: a:b \r\nauthorization:Bearer x\n";
        let want = vec![("api-key".into(), "a:b".into()), ("authorization".into(), "Bearer x".into())];
        assert_eq!(parse_header_lines(text), Ok(want));
        for (text, part) in [
            ("a: b\nSECRET", "line 2: write NAME: VALUE"),
            ("a b: SECRET", "line 1: the name"),
            ("Host: SECRET", "sets this field itself"),
            ("a: SECRET\u{1}", "line 1: the value"),
            (&"a: b\n".repeat(33), "33 fields"),
        ] {
            let said = parse_header_lines(text).unwrap_err().to_string();
            assert!(said.contains(part) && !said.contains("SECRET"), "{said}");
        }
    }
}
