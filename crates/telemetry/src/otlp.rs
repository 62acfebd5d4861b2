//! Metrics for an OpenTelemetry collector, in OTLP's JSON encoding, cumulative since the start of the server.

use std::time::Duration;

use logging::remote::host_name;
use net::durations::{DURATION_BOUNDS_US, NATIVE_SCHEMA, NATIVE_ZERO_MAX_S};
use otlp::{CollectedMetrics, HistogramForm, OtlpOptions, attribute, attribute_number};
use serde_json::{Map, Value, json};

use crate::families::{DurationSample, Family, FamilyKind, Sample};

/// `AGGREGATION_TEMPORALITY_CUMULATIVE`.
const CUMULATIVE: u8 = 2;

/// Options of the export of metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushOptions {
    /// The collector.
    pub otlp: OtlpOptions,
    /// Interval of the exports.
    pub interval: Duration,
    /// Form of the histograms.
    pub histograms: HistogramForm,
}

impl PushOptions {
    /// Options from `[metrics]` and the header fields of requests; `None` if no collector is configured.
    pub fn new(metrics: &CollectedMetrics, headers: Vec<(String, String)>) -> Option<PushOptions> {
        let url = metrics.to.clone()?;
        let instance = metrics.instance.clone().unwrap_or_else(host_name);
        let otlp = OtlpOptions { url, service: metrics.service.clone(), instance, headers };
        Some(PushOptions { otlp, interval: metrics.every, histograms: metrics.histograms })
    }
}

/// Names of OpenTelemetry's semantic conventions for these metrics.
const CONVENTIONS: [(&str, &str); 4] = [
    ("komainu_http_request_duration_seconds", "http.server.request.duration"),
    ("komainu_cpu_seconds", "process.cpu.time"),
    ("komainu_resident_bytes", "process.memory.usage"),
    ("komainu_uptime_seconds", "process.uptime"),
];

/// Name and unit of a family: from the conventions, or `komainu.http.queue` for `komainu_http_queue_seconds`.
fn name_and_unit(name: &str) -> (String, &'static str) {
    let (stem, unit) = match (name.strip_suffix("_seconds"), name.strip_suffix("_bytes")) {
        (Some(stem), _) => (stem, "s"),
        (_, Some(stem)) => (stem, "By"),
        _ => (name, "1"),
    };
    let known = CONVENTIONS.iter().find(|(own, _)| *own == name).map(|(_, name)| (*name).to_owned());
    (known.unwrap_or_else(|| stem.replacen('_', ".", 2)), unit)
}

/// Converts a label to an attribute, named by OpenTelemetry's conventions if possible; `None` if it is empty.
fn label((name, value): &(&'static str, String)) -> Option<Value> {
    if value.is_empty() {
        return None;
    }
    Some(match (*name, value.parse::<u64>()) {
        ("code", Ok(status)) => attribute_number("http.response.status_code", status),
        ("route", _) => attribute("http.route", value),
        ("server", _) => attribute("komainu.upstream", value),
        _ => attribute(&format!("komainu.{name}"), value),
    })
}

/// Period covered by the values.
#[derive(Clone, Copy, Debug)]
pub struct CountedTime {
    /// Start of counting, in nanoseconds since 1970.
    pub start_ns: u64,
    /// Time of the export, in nanoseconds since 1970.
    pub now_ns: u64,
}

/// The metrics of an `ExportMetricsServiceRequest`, without the enclosing brackets.
pub fn items(families: &[Family], span: CountedTime, form: HistogramForm) -> String {
    let with_rows = families.iter().filter(|family| !family.rows.is_empty());
    let items: Vec<String> = with_rows.map(|family| item(family, span, form).to_string()).collect();
    items.join(",")
}

fn item(family: &Family, span: CountedTime, form: HistogramForm) -> Value {
    let (name, unit) = name_and_unit(family.name);
    let points: Vec<Value> = family
        .rows
        .iter()
        .map(|(labels, sample)| {
            let mut point = value(sample, form);
            let attributes: Vec<Value> = labels.iter().filter_map(label).collect();
            if !attributes.is_empty() {
                point.insert("attributes".into(), attributes.into());
            }
            if family.kind != FamilyKind::Gauge {
                point.insert("startTimeUnixNano".into(), span.start_ns.to_string().into());
            }
            point.insert("timeUnixNano".into(), span.now_ns.to_string().into());
            Value::Object(point)
        })
        .collect();
    let (kind, data) = match (family.kind, form) {
        (FamilyKind::Gauge, _) => ("gauge", json!({ "dataPoints": points })),
        (FamilyKind::Counter, _) => (
            "sum",
            json!({ "dataPoints": points, "aggregationTemporality": CUMULATIVE, "isMonotonic": true }),
        ),
        (FamilyKind::Histogram, HistogramForm::Explicit) => {
            ("histogram", json!({ "dataPoints": points, "aggregationTemporality": CUMULATIVE }))
        }
        (FamilyKind::Histogram, HistogramForm::Exponential) => {
            ("exponentialHistogram", json!({ "dataPoints": points, "aggregationTemporality": CUMULATIVE }))
        }
    };
    json!({ "name": name, "description": family.help, "unit": unit, kind: data })
}

/// Value fields of a data point.
fn value(sample: &Sample, form: HistogramForm) -> Map<String, Value> {
    let value = match sample {
        Sample::Count(count) => json!({ "asInt": count.to_string() }),
        Sample::Seconds(number) | Sample::Number(number) => json!({ "asDouble": number }),
        Sample::Durations(durations) => match form {
            HistogramForm::Explicit => explicit(durations),
            HistogramForm::Exponential => exponential(durations),
        },
    };
    match value {
        Value::Object(value) => value,
        _ => Map::new(),
    }
}

fn explicit(durations: &DurationSample) -> Value {
    let counts: Vec<String> = durations.counts.classic().iter().map(u64::to_string).collect();
    let bounds: Vec<f64> = DURATION_BOUNDS_US.iter().map(|us| *us as f64 / 1e6).collect();
    json!({
        "count": durations.counts.count().to_string(),
        "sum": durations.counts.total_us() as f64 / 1e6,
        "bucketCounts": counts,
        "explicitBounds": bounds,
        "exemplars": exemplars(durations),
    })
}

fn exponential(durations: &DurationSample) -> Value {
    let native = durations.counts.native();
    // Bucket `n` of OTLP begins above 2^(n/8); bucket `n` of Prometheus ends there.
    let offset = native.first().map_or(0, |(first, _)| first - 1);
    let mut counts: Vec<String> = Vec::new();
    for (class, count) in native {
        counts.resize(usize::try_from(class - 1 - offset).unwrap_or_default(), "0".to_owned());
        counts.push(count.to_string());
    }
    json!({
        "count": durations.counts.count().to_string(),
        "sum": durations.counts.total_us() as f64 / 1e6,
        "scale": NATIVE_SCHEMA,
        "zeroCount": durations.counts.native_zero().to_string(),
        "zeroThreshold": NATIVE_ZERO_MAX_S,
        "positive": { "offset": offset, "bucketCounts": counts },
        "exemplars": exemplars(durations),
    })
}

/// Exemplars: the latest request of each bucket whose trace is recorded.
fn exemplars(durations: &DurationSample) -> Vec<Value> {
    let exemplar = |request: &crate::metrics::TracedRequest| {
        json!({
            "timeUnixNano": request.unix_s.saturating_mul(1_000_000_000).to_string(),
            "asDouble": request.duration_us as f64 / 1e6,
            "traceId": format!("{:032x}", request.trace.trace),
            "spanId": format!("{:016x}", request.trace.span),
        })
    };
    durations.traced.iter().flatten().map(exemplar).collect()
}

#[cfg(test)]
mod tests {
    use net::{DurationCounts, DurationHistogram};

    use super::*;

    fn point(durations_us: &[u64], form: HistogramForm) -> Value {
        let histogram = DurationHistogram::default();
        durations_us.iter().for_each(|us| histogram.observe(*us));
        let counts = DurationCounts::of([&histogram].into_iter());
        let sample = Sample::Durations(Box::new(DurationSample { counts, traced: Default::default() }));
        Value::Object(value(&sample, form))
    }

    #[test]
    fn metric_names_follow_otel_conventions_or_start_with_komainu() {
        for (name, want) in [
            ("komainu_http_request_duration_seconds", ("http.server.request.duration", "s")),
            ("komainu_http_queue_seconds", ("komainu.http.queue", "s")),
            ("komainu_upstream_requests_active", ("komainu.upstream.requests_active", "1")),
            ("komainu_memory_held_bytes", ("komainu.memory.held", "By")),
            ("komainu_connections", ("komainu.connections", "1")),
        ] {
            let (name, unit) = name_and_unit(name);
            assert_eq!((name.as_str(), unit), want);
        }
        assert_eq!(label(&("code", "200".into())).unwrap()["value"]["intValue"], "200");
        assert_eq!(label(&("site", String::new())), None);
    }

    #[test]
    fn histograms_have_every_duration_once() {
        let durations = [0, 3, 100, 100, 999_999, 1_000_000, 1_000_001, 5_000_000_000];
        let explicit = point(&durations, HistogramForm::Explicit);
        let counts = explicit["bucketCounts"].as_array().unwrap();
        assert_eq!((counts.len(), explicit["explicitBounds"].as_array().unwrap().len()), (16, 15));
        let sum = |counts: &[Value]| {
            counts.iter().map(|count| count.as_str().unwrap().parse::<u64>().unwrap()).sum::<u64>()
        };
        assert_eq!((sum(counts), &explicit["count"]), (8, &"8".into()));
        let exponential = point(&durations, HistogramForm::Exponential);
        assert_eq!((&exponential["scale"], &exponential["zeroCount"]), (&3.into(), &"2".into()));
        let positive = &exponential["positive"];
        let offset = positive["offset"].as_i64().unwrap();
        let counts = positive["bucketCounts"].as_array().unwrap();
        assert_eq!(sum(counts), 6);
        // Bucket -1 ends at one second, inclusive, and bucket 0 begins there.
        let at = |bucket: i64| counts[usize::try_from(bucket - offset).unwrap()].as_str().unwrap();
        assert_eq!((at(-1), at(0), at(80)), ("2", "1", "1"));
        let first = f64::exp2(offset as f64 / 8.0);
        assert!(first < 100e-6 && 100e-6 <= first * f64::exp2(0.125), "{first}");
        assert_eq!(point(&[], HistogramForm::Exponential)["positive"]["bucketCounts"], json!([]));
    }
}
