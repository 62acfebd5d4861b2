//! Spans of requests for the trace collector.

use std::io;
use std::time::SystemTime;

use http::path::redact_target;
use http::{Name, TraceSpan};
use logging::notice::ErrorLog;
use net::{Peer, RequestNotes, RequestRecord};
use otlp::tracing::Tracing;
use otlp::{EndedSpan, OtlpOptions, SpanExporter, SpanKind, SpanValue};
use reload::KeptState;

use crate::metrics::RouteLabels;

/// Exporter of request spans, and the selection of requests. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TraceExport {
    exporter: SpanExporter,
    /// Threshold in microseconds above which requests are exported even if their trace is not sampled.
    slower_than_us: Option<u64>,
}

impl TraceExport {
    /// Creates the export; `None` if no collector is configured. `headers` are the header fields of export
    /// requests. The exporter's thread is kept if its options are equal.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn new(
        tracing: &Tracing,
        headers: Vec<(String, String)>,
        kept: &mut KeptState,
        notices: &ErrorLog,
    ) -> io::Result<Option<TraceExport>> {
        let Some(url) = tracing.to.clone().filter(|_| tracing.enabled) else { return Ok(None) };
        let options =
            OtlpOptions { url, service: tracing.service.clone(), headers, ..OtlpOptions::default() };
        let exporter = kept.try_share(options.clone(), || {
            let notices = notices.clone();
            SpanExporter::start(options, Box::new(move |text| notices.warn(text)))
        })?;
        let slower_than_us = tracing.slower_than.map(times::micros);
        Ok(Some(TraceExport { exporter, slower_than_us }))
    }

    /// Exports the spans of a completed request if its trace is sampled or it was slow.
    pub fn report(
        &self,
        record: &RequestRecord<'_>,
        labels: impl FnOnce() -> RouteLabels,
        next_id: impl Fn() -> u64,
    ) {
        let trace = record.request.as_ref().and_then(|request| request.ids().trace);
        let is_slow = self.slower_than_us.is_some_and(|min| record.duration_us > min);
        let Some(trace) = trace.filter(|trace| trace.is_sampled || is_slow) else { return };
        self.exporter.send(spans(record, &trace, labels(), next_id));
    }
}

/// The span of the request, and the spans of its waits and of each upstream attempt.
fn spans(
    record: &RequestRecord<'_>,
    trace: &TraceSpan,
    labels: RouteLabels,
    next_id: impl Fn() -> u64,
) -> Vec<EndedSpan> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let end_ns = times::nanos(now);
    let start_ns = end_ns.saturating_sub(record.duration_us.saturating_mul(1_000));
    let (attributes, name) = attributes(record, labels);
    let notes = record.notes;
    let server = EndedSpan {
        trace: trace.trace,
        parent: trace.parent,
        span: trace.span,
        name,
        kind: SpanKind::Server,
        start_ns,
        end_ns,
        attributes,
        is_error: record.status.code() >= 500,
    };
    let mut all = vec![server];
    let mut begun_ns = start_ns;
    for SpanStep { name, kind, us, attributes } in steps(notes, record.duration_us) {
        // The cache span covers the whole request; the others are consecutive.
        let from_ns = if name == "cache" { start_ns } else { begun_ns };
        let until_ns = from_ns.saturating_add(us.saturating_mul(1_000)).min(end_ns);
        if name != "cache" {
            begun_ns = until_ns;
        }
        all.push(EndedSpan {
            trace: trace.trace,
            parent: trace.span,
            span: next_id().max(1),
            name: name.to_owned(),
            kind,
            start_ns: from_ns,
            end_ns: until_ns,
            is_error: attributes.iter().any(|(name, _)| *name == "error.type"),
            attributes,
        });
    }
    all
}

/// A phase of a request.
struct SpanStep {
    name: &'static str,
    kind: SpanKind,
    us: u64,
    attributes: Vec<(&'static str, SpanValue)>,
}

/// Phases of a request, in order.
fn steps(notes: &RequestNotes, duration_us: u64) -> Vec<SpanStep> {
    let mut all = Vec::new();
    let mut step = |name, kind, us, attributes| all.push(SpanStep { name, kind, us, attributes });
    if let Some(outcome) = notes.cache {
        let attributes = vec![("komainu.cache", SpanValue::Text(outcome.text().to_owned()))];
        step("cache", SpanKind::Internal, duration_us, attributes);
    }
    if let Some(us) = notes.queue_us.filter(|us| *us > 0) {
        step("queue", SpanKind::Internal, us, Vec::new());
    }
    let attempt = |upstream: &str, before: usize| {
        let mut attributes = vec![("komainu.upstream", SpanValue::Text(upstream.to_owned()))];
        let authority = upstream.split_once("://").map_or(upstream, |(_, authority)| authority);
        attributes.extend(server_address(authority.as_bytes()));
        attributes.push(("http.request.resend_count", SpanValue::Number(before as u64)));
        attributes
    };
    let failed = notes.failed_attempts.as_ref().map_or(&[][..], |failed| &failed.0);
    for (before, one) in failed.iter().enumerate() {
        let mut attributes = attempt(&one.upstream, before);
        attributes.push(("error.type", SpanValue::Text(one.reason.to_owned())));
        step("upstream", SpanKind::Client, one.duration_us, attributes);
    }
    if let Some(us) = notes.connect_us {
        step("connect", SpanKind::Internal, us, Vec::new());
    }
    let attempts = notes.attempts as usize;
    // The last attempt, unless it is among the failed ones.
    if let (Some(us), Some(upstream), true) = (notes.upstream_us, &notes.upstream, failed.len() < attempts) {
        step("upstream", SpanKind::Client, us, attempt(upstream, attempts - 1));
    }
    if let Some(worker) = notes.worker {
        let mut attributes = vec![("komainu.worker", SpanValue::Number(worker.into()))];
        attributes.extend(notes.worker_cpu_us.map(|us| ("komainu.cpu_us", SpanValue::Number(us.into()))));
        let memory = notes.worker_memory_kib;
        attributes.extend(memory.map(|kib| ("komainu.memory_kib", SpanValue::SignedNumber(kib.into()))));
        step("worker", SpanKind::Internal, duration_us, attributes);
    }
    all
}

/// Maximum bytes of each client-supplied value kept in waiting spans.
const VALUE_BYTES_MAX: usize = 256;

/// Converts to text, truncated to [`VALUE_BYTES_MAX`].
fn truncate_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(VALUE_BYTES_MAX)]).into_owned()
}

/// Host and port of an authority as attributes of OpenTelemetry's conventions, where `server.address` has no
/// port.
fn server_address(authority: &[u8]) -> impl Iterator<Item = (&'static str, SpanValue)> {
    let (host, port) = http::target::split_port(authority).unwrap_or((authority, None));
    let host = host.strip_prefix(b"[").and_then(|host| host.strip_suffix(b"]")).unwrap_or(host);
    let port = port.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    let address = (!host.is_empty()).then(|| ("server.address", SpanValue::Text(truncate_text(host))));
    address.into_iter().chain(port.map(|port| ("server.port", SpanValue::Number(port))))
}

/// Attributes of the request, and the span's name. Queries are omitted because they may contain secrets.
fn attributes(record: &RequestRecord<'_>, labels: RouteLabels) -> (Vec<(&'static str, SpanValue)>, String) {
    let text = |bytes: &[u8]| SpanValue::Text(truncate_text(bytes));
    let mut all = vec![
        ("http.response.status_code", SpanValue::Number(record.status.code().into())),
        ("http.response.body.size", SpanValue::Number(record.body_bytes)),
        ("http.request.body.size", SpanValue::Number(record.request_bytes)),
    ];
    let mut name = "invalid request".to_owned();
    if let Some(request) = &record.request {
        let method = truncate_text(request.method_name());
        name = format!("{method} {}", labels.route_name());
        all.push(("http.request.method", SpanValue::Text(method)));
        all.push(("url.path", text(redact_target(request.path()).as_bytes())));
        all.push(("url.scheme", text(if request.client().is_secure { b"https" } else { b"http" })));
        all.extend(server_address(request.authority()));
        let agent = request.field(Name::UserAgent);
        all.extend(agent.map(|agent| ("user_agent.original", text(agent))));
    }
    if let Peer::Tcp(address) = record.client.address {
        all.push(("client.address", SpanValue::Text(address.ip().to_canonical().to_string())));
    }
    if !labels.handler.is_empty() {
        all.push(("http.route", SpanValue::Text(labels.route)));
        all.push(("komainu.site", SpanValue::Text(labels.site)));
        all.push(("komainu.handler", SpanValue::Text(labels.handler)));
    }
    let notes = record.notes;
    all.extend(notes.server_cpu_us().map(|us| ("komainu.cpu_us", SpanValue::Number(us))));
    all.extend(notes.cache.map(|outcome| ("komainu.cache", text(outcome.text().as_bytes()))));
    let fault = record.fault.map(ToString::to_string);
    let reason = notes.refusal.map(str::to_owned).or(fault);
    all.extend(reason.map(|reason| ("komainu.reason", SpanValue::Text(reason))));
    let is_failed = record.status.code() >= 500;
    all.extend(is_failed.then(|| ("error.type", SpanValue::Text(record.status.code().to_string()))));
    (all, name)
}
