//! OTLP over HTTP in its JSON encoding, for spans, metrics and logs.
//!
//! An [`OtlpClient`] sends one document at a time and reports whether and when it may be sent again. Queueing
//! is up to the caller.

use std::fmt;
use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use web_client::WebClient;

/// Timeout for the collector's response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after the first failure; doubles with each further one.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Upper limit for a collector's `Retry-After`.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);
/// Maximum number of characters of a collector's message that are logged.
const REMARK_MAX: usize = 200;

/// Destination and resource attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct OtlpOptions {
    /// URL of the collector, to which `/v1/traces`, `/v1/metrics` or `/v1/logs` is appended.
    pub url: String,
    /// Value of `service.name`.
    pub service: String,
    /// Value of `service.instance.id`; empty for none.
    pub instance: String,
    /// Names and values of additional header fields, for example API keys.
    pub headers: Vec<(String, String)>,
}

/// Kind of telemetry data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtlpSignal {
    /// Traces (spans).
    Traces,
    /// Metrics.
    Metrics,
    /// Log records.
    Logs,
}

impl OtlpSignal {
    /// Returns the name for the log and the URL.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            OtlpSignal::Traces => "traces",
            OtlpSignal::Metrics => "metrics",
            OtlpSignal::Logs => "logs",
        }
    }
}

/// Reason why a document was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpSendError {
    /// The cause.
    pub text: String,
    /// Pause after which it may be sent again; `None` if the collector has rejected it permanently.
    pub retry_after: Option<Duration>,
}

impl fmt::Display for OtlpSendError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

/// Items that a collector has rejected from an accepted document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusedItems {
    /// Number of spans, data points or records.
    pub count: u64,
    /// Message of the collector.
    pub remark: String,
}

/// Client of a collector for one signal. Sending blocks, so it belongs to a dedicated thread.
pub struct OtlpClient {
    client: WebClient,
    runtime: tokio::runtime::Runtime,
    options: OtlpOptions,
    signal: OtlpSignal,
    url: String,
    /// Number of failures since the last success.
    failures: u32,
}

impl OtlpClient {
    /// Creates a client; sends nothing yet.
    ///
    /// # Errors
    /// Fails if TLS or the runtime cannot be set up.
    pub fn new(options: OtlpOptions, signal: OtlpSignal) -> io::Result<OtlpClient> {
        let client = WebClient::new(b"", RESPONSE_TIMEOUT).map_err(io::Error::other)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let url = format!("{}/v1/{}", options.url, signal.name());
        Ok(OtlpClient { client, runtime, options, signal, url, failures: 0 })
    }

    /// Returns the URL that documents are sent to.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Sends a JSON document; returns the items that the collector has rejected.
    ///
    /// # Errors
    /// Reason why it was not accepted.
    pub fn send(&mut self, document: Vec<u8>) -> Result<RefusedItems, OtlpSendError> {
        let headers = &self.options.headers;
        let sent = self.client.post_with(&self.url, "application/json", headers, document);
        let outcome = match self.runtime.block_on(sent) {
            Ok((200..=299, body)) => Ok(refused(&body)),
            // Status codes that OTLP defines as retryable.
            Ok((status @ (429 | 502 | 503 | 504), _)) => {
                let asked = self.client.take_retry_after().map(|pause| pause.min(RETRY_AFTER_MAX));
                let again = Some(asked.unwrap_or_default().max(self.pause()));
                Err(OtlpSendError { text: format!("a response with status {status}"), retry_after: again })
            }
            Ok((status, body)) => {
                let remark = remark(&String::from_utf8_lossy(&body));
                let remark = if remark.is_empty() { remark } else { format!(": {remark}") };
                Err(OtlpSendError {
                    text: format!("a response with status {status}{remark}"),
                    retry_after: None,
                })
            }
            Err(error) => Err(OtlpSendError { text: error.to_string(), retry_after: Some(self.pause()) }),
        };
        self.failures = if outcome.is_ok() { 0 } else { self.failures.saturating_add(1) };
        outcome
    }

    /// Returns the pause after the current number of failures.
    fn pause(&self) -> Duration {
        PAUSE_MIN.saturating_mul(1 << self.failures.min(16)).min(PAUSE_MAX)
    }

    /// Returns the beginning of a document, up to its items, and its end.
    #[must_use]
    pub fn frame(&self) -> (String, String) {
        frame(&self.options, self.signal)
    }
}

/// See [`OtlpClient::frame`].
fn frame(options: &OtlpOptions, signal: OtlpSignal) -> (String, String) {
    let version = env!("CARGO_PKG_VERSION");
    let mut resource =
        vec![attribute("service.name", &options.service), attribute("service.version", version)];
    if !options.instance.is_empty() {
        resource.push(attribute("service.instance.id", &options.instance));
    }
    let (resources, scopes, items) = match signal {
        OtlpSignal::Traces => ("resourceSpans", "scopeSpans", "spans"),
        OtlpSignal::Metrics => ("resourceMetrics", "scopeMetrics", "metrics"),
        OtlpSignal::Logs => ("resourceLogs", "scopeLogs", "logRecords"),
    };
    let resource = json!({ "attributes": resource });
    let scope = json!({ "name": "komainu", "version": version });
    let start = format!(
        "{{\"{resources}\":[{{\"resource\":{resource},\"{scopes}\":[{{\"scope\":{scope},\"{items}\":["
    );
    (start, "]}]}]}".to_owned())
}

/// Returns a string attribute.
#[must_use]
pub fn attribute(name: &str, value: &str) -> Value {
    json!({ "key": name, "value": { "stringValue": value } })
}

/// Returns an integer attribute.
#[must_use]
pub fn attribute_number(name: &str, value: impl Display) -> Value {
    json!({ "key": name, "value": { "intValue": value.to_string() } })
}

/// Parses the rejected items of a response (`partialSuccess`); none if it is absent.
fn refused(body: &[u8]) -> RefusedItems {
    let document: Value = serde_json::from_slice(body).unwrap_or_default();
    let partial = &document["partialSuccess"];
    let count = ["rejectedSpans", "rejectedDataPoints", "rejectedLogRecords"].iter().find_map(|name| {
        let value = &partial[*name];
        value.as_u64().or_else(|| value.as_str()?.parse().ok())
    });
    let text = partial["errorMessage"].as_str().unwrap_or_default();
    RefusedItems { count: count.unwrap_or(0), remark: remark(text) }
}

/// Returns the beginning of a text, as a single line.
fn remark(text: &str) -> String {
    text.trim().chars().take(REMARK_MAX).map(|char| if char.is_control() { ' ' } else { char }).collect()
}

/// Log function for messages about a collector, one line each.
pub type OtlpLog = Box<dyn Fn(&str) + Send>;

/// Logs once that a collector is unavailable, and once that it is available again and how much was lost.
pub struct OtlpReport {
    /// Name of the counted items, such as `requests whose spans`.
    items: &'static str,
    log: OtlpLog,
    is_failing: bool,
    dropped: Arc<AtomicU64>,
}

impl OtlpReport {
    /// Creates a report to `log`; `dropped` counts the losses since the last report.
    #[must_use]
    pub fn new(items: &'static str, dropped: Arc<AtomicU64>, log: OtlpLog) -> OtlpReport {
        OtlpReport { items, log, is_failing: false, dropped }
    }

    /// Records that a document was not accepted; `then` describes the consequence for the data.
    pub fn record_failure(&mut self, url: &str, error: &OtlpSendError, then: &str) {
        if !std::mem::replace(&mut self.is_failing, true) {
            (self.log)(&format!("{url}: {error}; {then}"));
        }
    }

    /// Records that a document was accepted.
    pub fn record_success(&mut self, url: &str, refused: &RefusedItems) {
        let was_failing = std::mem::take(&mut self.is_failing);
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        let what = self.items;
        match (was_failing, dropped) {
            (true, 0) => (self.log)(&format!("{url}: data are taken again; nothing was dropped")),
            (true, count) => (self.log)(&format!("{url}: data are taken again; dropped: {count} {what}")),
            (false, 0) => {}
            (false, count) => (self.log)(&format!("{url}: dropped: {count} {what}")),
        }
        if refused.count > 0 {
            (self.log)(&format!("{url}: the collector has refused {}: {}", refused.count, refused.remark));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// Returns a collector that sends these responses, one per connection, and a receiver of the requests.
    fn collector(responses: Vec<&'static str>) -> (OtlpClient, std::sync::mpsc::Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (sender, taken) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for response in responses {
                let (mut client, _) = listener.accept().unwrap();
                let mut request = String::new();
                while !request.contains("{end}") {
                    let mut bytes = [0; 4096];
                    let count = client.read(&mut bytes).unwrap();
                    request.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
                }
                client.write_all(response.as_bytes()).unwrap();
                sender.send(request).unwrap();
            }
        });
        let headers = vec![("Api-Key".to_owned(), "k".to_owned())];
        let options = OtlpOptions { url, headers, ..OtlpOptions::default() };
        (OtlpClient::new(options, OtlpSignal::Logs).unwrap(), taken)
    }

    #[test]
    fn retryable_errors_have_a_pause() {
        let (mut collector, taken) = collector(vec![
            "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 429 Slow\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 429 Slow\r\nRetry-After: 99999\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 400 Bad\r\nContent-Length: 4\r\n\r\nno\nt",
            "HTTP/1.1 200 OK\r\nContent-Length: 66\r\n\r\n{\"partialSuccess\":{\"rejectedLogRecords\":\"3\",\"errorMessage\":\"old\"}}",
            "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n",
        ]);
        let mut send = || collector.send(b"{end}".to_vec());
        let again = |sent: Result<RefusedItems, OtlpSendError>| sent.unwrap_err().retry_after;
        assert_eq!(again(send()), Some(PAUSE_MIN));
        assert_eq!(again(send()), Some(Duration::from_secs(7)));
        assert_eq!(again(send()), Some(RETRY_AFTER_MAX));
        let for_good = send().unwrap_err();
        assert_eq!(
            (for_good.text.as_str(), for_good.retry_after),
            ("a response with status 400: no t", None)
        );
        assert_eq!(send(), Ok(RefusedItems { count: 3, remark: "old".into() }));
        // A success resets the pause.
        assert_eq!(again(send()), Some(PAUSE_MIN));
        let request = taken.recv().unwrap().to_lowercase();
        assert!(request.starts_with("post /v1/logs http/1.1\r\n") && request.contains("\r\napi-key: k\r\n"));
    }

    #[test]
    fn retry_pauses_grow_to_a_limit() {
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let options = OtlpOptions { url: format!("http://{nobody}"), ..OtlpOptions::default() };
        let mut collector = OtlpClient::new(options, OtlpSignal::Traces).unwrap();
        let pauses: Vec<Duration> =
            (0..9).map(|_| collector.send(Vec::new()).unwrap_err().retry_after.unwrap()).collect();
        assert_eq!(pauses[..3], [500, 1_000, 2_000].map(Duration::from_millis));
        assert_eq!(pauses[8], PAUSE_MAX);
    }

    #[test]
    fn otlp_document_is_a_frame_around_items() {
        let options = OtlpOptions { service: "a\"b".into(), instance: "i".into(), ..OtlpOptions::default() };
        for (signal, path) in [
            (OtlpSignal::Traces, "/resourceSpans/0/scopeSpans/0/spans/0/a"),
            (OtlpSignal::Metrics, "/resourceMetrics/0/scopeMetrics/0/metrics/0/a"),
            (OtlpSignal::Logs, "/resourceLogs/0/scopeLogs/0/logRecords/0/a"),
        ] {
            let (start, end) = frame(&options, signal);
            let document: Value = serde_json::from_str(&format!("{start}{{\"a\":1}}{end}")).unwrap();
            assert_eq!(document.pointer(path), Some(&Value::from(1)), "{document}");
        }
    }

    #[test]
    fn collector_failure_and_recovery_are_logged_once() {
        let lines = Arc::new(std::sync::Mutex::new(Vec::new()));
        let theirs = lines.clone();
        let dropped = Arc::new(AtomicU64::new(0));
        let log: OtlpLog = Box::new(move |line| theirs.lock().unwrap().push(line.to_owned()));
        let mut report = OtlpReport::new("lines", dropped.clone(), log);
        let error = OtlpSendError { text: "away".into(), retry_after: None };
        report.record_success("x", &RefusedItems::default());
        (0..3).for_each(|_| report.record_failure("x", &error, "they wait"));
        dropped.store(7, Ordering::Relaxed);
        (0..3).for_each(|_| report.record_success("x", &RefusedItems::default()));
        let said = ["x: away; they wait", "x: data are taken again; dropped: 7 lines"];
        assert_eq!(*lines.lock().unwrap(), said);
    }
}
