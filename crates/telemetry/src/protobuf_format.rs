//! Prometheus protobuf exposition, which supports native histograms: length-delimited messages of
//! `io.prometheus.client`.

use net::durations::{DURATION_BOUNDS_US, NATIVE_SCHEMA, NATIVE_ZERO_MAX_S};
use prost::Message;

use crate::families::{DurationSample, Family, FamilyKind, MetricRow, Sample};
use crate::metrics::TracedRequest;

/// Values of `io.prometheus.client.MetricType`.
const COUNTER: i32 = 0;
const GAUGE: i32 = 1;
const HISTOGRAM: i32 = 4;

#[derive(Clone, PartialEq, Message)]
struct MetricFamily {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    help: String,
    #[prost(int32, optional, tag = "3")]
    kind: Option<i32>,
    #[prost(message, repeated, tag = "4")]
    metrics: Vec<Metric>,
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<LabelPair>,
    #[prost(message, optional, tag = "2")]
    gauge: Option<PlainValue>,
    #[prost(message, optional, tag = "3")]
    counter: Option<PlainValue>,
    #[prost(message, optional, tag = "7")]
    histogram: Option<NativeHistogram>,
}

#[derive(Clone, PartialEq, Message)]
struct LabelPair {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "2")]
    value: Option<String>,
}

/// `Gauge` or `Counter`.
#[derive(Clone, PartialEq, Message)]
struct PlainValue {
    #[prost(double, optional, tag = "1")]
    value: Option<f64>,
}

/// `Histogram`, with classic and native buckets.
#[derive(Clone, PartialEq, Message)]
struct NativeHistogram {
    #[prost(uint64, optional, tag = "1")]
    count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    sum: Option<f64>,
    #[prost(message, repeated, tag = "3")]
    buckets: Vec<ClassicBucket>,
    #[prost(sint32, optional, tag = "5")]
    schema: Option<i32>,
    #[prost(double, optional, tag = "6")]
    zero_threshold: Option<f64>,
    #[prost(uint64, optional, tag = "7")]
    zero_count: Option<u64>,
    #[prost(message, repeated, tag = "12")]
    spans: Vec<BucketSpan>,
    #[prost(sint64, repeated, packed = "false", tag = "13")]
    deltas: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct ClassicBucket {
    #[prost(uint64, optional, tag = "1")]
    cumulative_count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    upper_bound: Option<f64>,
    #[prost(message, optional, tag = "3")]
    exemplar: Option<TraceExemplar>,
}

#[derive(Clone, PartialEq, Message)]
struct BucketSpan {
    #[prost(sint32, optional, tag = "1")]
    offset: Option<i32>,
    #[prost(uint32, optional, tag = "2")]
    length: Option<u32>,
}

/// `Exemplar`.
#[derive(Clone, PartialEq, Message)]
struct TraceExemplar {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<LabelPair>,
    #[prost(double, optional, tag = "2")]
    value: Option<f64>,
    #[prost(message, optional, tag = "3")]
    time: Option<Timestamp>,
}

/// `google.protobuf.Timestamp`.
#[derive(Clone, PartialEq, Message)]
struct Timestamp {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

/// Encodes the families as length-delimited messages.
pub fn exposition(families: &[Family]) -> Vec<u8> {
    let mut out = Vec::new();
    for family in families.iter().filter(|family| !family.rows.is_empty()) {
        // Writing to a `Vec` does not fail.
        let _ = message(family).encode_length_delimited(&mut out);
    }
    out
}

fn message(family: &Family) -> MetricFamily {
    let (name, kind) = match family.kind {
        FamilyKind::Counter => (format!("{}_total", family.name), COUNTER),
        FamilyKind::Gauge => (family.name.to_owned(), GAUGE),
        FamilyKind::Histogram => (family.name.to_owned(), HISTOGRAM),
    };
    let metrics = family.rows.iter().map(|row| metric(row, family.kind)).collect();
    MetricFamily { name, help: family.help.to_owned(), kind: Some(kind), metrics }
}

fn pair(name: &str, value: String) -> LabelPair {
    LabelPair { name: Some(name.to_owned()), value: Some(value) }
}

fn metric((labels, sample): &MetricRow, kind: FamilyKind) -> Metric {
    let labels = labels.iter().map(|(name, value)| pair(name, value.clone())).collect();
    let metric = Metric { labels, ..Metric::default() };
    let plain = |value: f64| {
        let value = Some(PlainValue { value: Some(value) });
        match kind {
            FamilyKind::Counter => Metric { counter: value, ..metric.clone() },
            FamilyKind::Gauge | FamilyKind::Histogram => Metric { gauge: value, ..metric.clone() },
        }
    };
    match sample {
        Sample::Count(count) => plain(*count as f64),
        Sample::Seconds(number) | Sample::Number(number) => plain(*number),
        Sample::Durations(durations) => Metric { histogram: Some(histogram(durations)), ..metric },
    }
}

fn histogram(durations: &DurationSample) -> NativeHistogram {
    let counts = &durations.counts;
    let bounds = DURATION_BOUNDS_US.iter().map(|us| *us as f64 / 1e6).chain([f64::INFINITY]);
    let mut cumulative = 0;
    let buckets = bounds.zip(counts.classic()).zip(&durations.traced).map(|((bound, count), traced)| {
        cumulative += count;
        ClassicBucket {
            cumulative_count: Some(cumulative),
            upper_bound: Some(bound),
            exemplar: traced.as_ref().map(exemplar),
        }
    });
    let buckets = buckets.collect();
    let (spans, deltas) = spans_and_deltas(&counts.native());
    NativeHistogram {
        count: Some(counts.count()),
        sum: Some(counts.total_us() as f64 / 1e6),
        buckets,
        schema: Some(NATIVE_SCHEMA),
        zero_threshold: Some(NATIVE_ZERO_MAX_S),
        zero_count: Some(counts.native_zero()),
        spans,
        deltas,
    }
}

/// Encodes native buckets: consecutive buckets form a span, whose offset is relative to the end of the
/// previous one; each count is stored as the difference to the preceding count.
fn spans_and_deltas(classes: &[(i32, u64)]) -> (Vec<BucketSpan>, Vec<i64>) {
    let mut spans = Vec::<BucketSpan>::new();
    let mut deltas = Vec::new();
    let mut next = 0;
    let mut before = 0;
    for (class, count) in classes {
        match spans.last_mut().filter(|_| *class == next) {
            Some(span) => span.length = span.length.map(|length| length + 1),
            None => spans.push(BucketSpan { offset: Some(class - next), length: Some(1) }),
        }
        let count = i64::try_from(*count).unwrap_or(i64::MAX);
        deltas.push(count - before);
        (next, before) = (class + 1, count);
    }
    (spans, deltas)
}

fn exemplar(request: &TracedRequest) -> TraceExemplar {
    let seconds = i64::try_from(request.unix_s).unwrap_or(i64::MAX);
    TraceExemplar {
        labels: vec![pair("trace_id", format!("{:032x}", request.trace.trace))],
        value: Some(request.duration_us as f64 / 1e6),
        time: Some(Timestamp { seconds, nanos: 0 }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_buckets_are_encoded_as_spans_and_deltas() {
        let (spans, deltas) = spans_and_deltas(&[(-3, 5), (-2, 2), (4, 2), (5, 9)]);
        let spans: Vec<(i32, u32)> =
            spans.iter().map(|span| (span.offset.unwrap(), span.length.unwrap())).collect();
        assert_eq!((spans, deltas), (vec![(-3, 2), (5, 2)], vec![5, -3, 0, 7]));
        assert_eq!(spans_and_deltas(&[]), (Vec::new(), Vec::new()));
    }
}
