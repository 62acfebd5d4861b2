//! Export of request spans to a collector.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::collector::{
    OtlpClient, OtlpLog, OtlpOptions, OtlpReport, OtlpSendError, OtlpSignal, attribute, attribute_number,
};

/// Maximum number of requests whose spans wait for the collector; the spans of further ones are dropped and
/// counted.
const WAITING_MAX: usize = 4_096;
/// Maximum number of requests per batch, and the maximum time that a batch is held open.
const BATCH_MAX: usize = 256;
const BATCH_TIME: Duration = Duration::from_secs(1);
/// Interval at which a wait for the collector checks whether the spans are still to be sent.
const STOP_CHECK: Duration = Duration::from_millis(100);

/// Kind of a span, numbered as in OTLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SpanKind {
    /// Work inside this server.
    Internal = 1,
    /// A request that this server handles.
    Server = 2,
    /// A request that this server sends.
    Client = 3,
}

/// Value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum SpanValue {
    /// String.
    Text(String),
    /// Unsigned integer.
    Number(u64),
    /// Signed integer, such as a change of memory.
    SignedNumber(i64),
}

/// A completed span.
#[derive(Clone, Debug, PartialEq)]
pub struct EndedSpan {
    /// Trace id.
    pub trace: u128,
    /// Id of the parent span; 0 for none.
    pub parent: u64,
    /// Span id.
    pub span: u64,
    /// Span name.
    pub name: String,
    /// Span kind.
    pub kind: SpanKind,
    /// Start time in nanoseconds since 1970.
    pub start_ns: u64,
    /// End time in nanoseconds since 1970.
    pub end_ns: u64,
    /// Attributes, named by OpenTelemetry's semantic conventions.
    pub attributes: Vec<(&'static str, SpanValue)>,
    /// Whether the span ended with an error of this server.
    pub is_error: bool,
}

/// Sends spans from a dedicated thread, which ends when the last clone is dropped. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SpanExporter {
    sender: SyncSender<Vec<EndedSpan>>,
    dropped: Arc<AtomicU64>,
    options: Arc<OtlpOptions>,
}

impl SpanExporter {
    /// Starts the thread; sends nothing yet.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(options: OtlpOptions, log: OtlpLog) -> io::Result<SpanExporter> {
        let (sender, spans) = sync_channel(WAITING_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        let mut collector = OtlpClient::new(options.clone(), OtlpSignal::Traces)?;
        let report = OtlpReport::new("requests", dropped.clone(), log);
        let options = Arc::new(options);
        let mut sent = SpanSender { report, dropped: dropped.clone(), exporters: Arc::downgrade(&options) };
        std::thread::Builder::new().name("spans".into()).spawn(move || {
            while let Some(batch) = next_batch(&spans) {
                sent.send(&mut collector, &batch);
            }
        })?;
        Ok(SpanExporter { sender, dropped, options })
    }

    /// Returns the options of the collector.
    #[must_use]
    pub fn options(&self) -> &OtlpOptions {
        &self.options
    }

    /// Enqueues the spans of a request. Never blocks: if the queue is full, they are dropped and counted.
    pub fn send(&self, spans: Vec<EndedSpan>) {
        if self.sender.try_send(spans).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Progress of the export.
struct SpanSender {
    report: OtlpReport,
    /// Requests whose spans were dropped since the last report.
    dropped: Arc<AtomicU64>,
    /// Owned by the exporters; if none is left, retries stop.
    exporters: Weak<OtlpOptions>,
}

impl SpanSender {
    /// Sends the spans of these requests, with retries while the collector is unavailable. Other spans wait
    /// meanwhile.
    fn send(&mut self, collector: &mut OtlpClient, batch: &[Vec<EndedSpan>]) {
        let place = format!("traces: {}", collector.url());
        loop {
            match collector.send(document(collector, batch)) {
                Ok(refused) => return self.report.record_success(&place, &refused),
                Err(error @ OtlpSendError { retry_after: None, .. }) => {
                    self.dropped.fetch_add(batch.len() as u64, Ordering::Relaxed);
                    return self.report.record_failure(&place, &error, "spans that it refuses are dropped");
                }
                Err(error @ OtlpSendError { retry_after: Some(pause), .. }) => {
                    let then = format!("the spans of {WAITING_MAX} requests wait for it, others are dropped");
                    self.report.record_failure(&place, &error, &then);
                    let until = Instant::now() + pause;
                    while Instant::now() < until {
                        if self.exporters.strong_count() == 0 {
                            return;
                        }
                        std::thread::sleep(STOP_CHECK);
                    }
                }
            }
        }
    }
}

/// Returns the next batch; `None` once all exporters were dropped.
fn next_batch(spans: &Receiver<Vec<EndedSpan>>) -> Option<Vec<Vec<EndedSpan>>> {
    let mut batch = vec![spans.recv().ok()?];
    let until = Instant::now() + BATCH_TIME;
    while batch.len() < BATCH_MAX {
        match spans.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(more) => batch.push(more),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    Some(batch)
}

/// Returns an `ExportTraceServiceRequest` in OTLP's JSON encoding: hexadecimal ids, 64-bit numbers as
/// strings.
fn document(collector: &OtlpClient, batch: &[Vec<EndedSpan>]) -> Vec<u8> {
    let (start, end) = collector.frame();
    let spans: Vec<String> = batch.iter().flatten().map(|ended| span(ended).to_string()).collect();
    format!("{start}{}{end}", spans.join(",")).into_bytes()
}

fn span(span: &EndedSpan) -> Value {
    let attributes: Vec<Value> = span
        .attributes
        .iter()
        .map(|(name, value)| match value {
            SpanValue::Text(text) => attribute(name, text),
            SpanValue::Number(number) => attribute_number(name, *number),
            SpanValue::SignedNumber(change) => attribute_number(name, *change),
        })
        .collect();
    let mut document = json!({
        "traceId": format!("{:032x}", span.trace),
        "spanId": format!("{:016x}", span.span),
        "name": span.name,
        "kind": span.kind as u8,
        "startTimeUnixNano": span.start_ns.to_string(),
        "endTimeUnixNano": span.end_ns.to_string(),
        "attributes": attributes,
        "status": if span.is_error { json!({ "code": 2 }) } else { json!({}) },
    });
    if span.parent != 0 {
        document["parentSpanId"] = format!("{:016x}", span.parent).into();
    }
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_encoded_as_otlp() {
        let ended = EndedSpan {
            trace: 0x1f,
            parent: 0,
            span: 2,
            name: "GET /a".into(),
            kind: SpanKind::Server,
            start_ns: 1,
            end_ns: 2,
            attributes: vec![("http.response.status_code", SpanValue::Number(200))],
            is_error: true,
        };
        let child = EndedSpan { parent: 2, span: 3, is_error: false, ..ended.clone() };
        let options = OtlpOptions { service: "shop".into(), ..OtlpOptions::default() };
        let collector = OtlpClient::new(options, OtlpSignal::Traces).unwrap();
        let document: Value = serde_json::from_slice(&document(&collector, &[vec![ended, child]])).unwrap();
        let spans = &document["resourceSpans"][0]["scopeSpans"][0]["spans"];
        assert_eq!(spans[0]["traceId"], "0000000000000000000000000000001f");
        assert_eq!((&spans[0]["parentSpanId"], &spans[0]["status"]["code"]), (&Value::Null, &2.into()));
        assert_eq!(
            (&spans[1]["parentSpanId"], &spans[1]["spanId"]),
            (&"0000000000000002".into(), &"0000000000000003".into())
        );
        assert_eq!(spans[0]["attributes"][0]["value"]["intValue"], "200");
        let service = &document["resourceSpans"][0]["resource"]["attributes"][0];
        assert_eq!(
            (&service["key"], &service["value"]["stringValue"]),
            (&"service.name".into(), &"shop".into())
        );
    }
}
