//! Prometheus and OpenMetrics text exposition.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use net::durations::DURATION_BOUNDS_US;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::families::{Family, FamilyKind, MetricRow, Sample};
use crate::metrics::TracedRequest;

/// Encodes the families as OpenMetrics 1.0 if `is_open`, else as Prometheus text 0.0.4.
pub fn exposition(families: Vec<Family>, is_open: bool) -> String {
    let families = Arc::new(families);
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape(families.clone())));
    let mut text = String::new();
    // Writing to a `String` does not fail.
    let _ = text::encode(&mut text, &registry);
    if is_open { with_exemplars(&text, &families) } else { classic(&text) }
}

/// Name of the histogram that has exemplars.
const EXEMPLAR_FAMILY: &str = "komainu_http_request_duration_seconds";

/// Adds an exemplar to each bucket that has a request with a sampled trace: its latest one.
fn with_exemplars(text: &str, families: &[Family]) -> String {
    // Exemplars in the order of the bucket lines.
    let of_row = |(_, sample): &MetricRow| match sample {
        Sample::Durations(durations) => durations.traced.to_vec(),
        _ => Vec::new(),
    };
    let exemplars: Vec<Option<TracedRequest>> = families
        .iter()
        .filter(|family| family.name == EXEMPLAR_FAMILY)
        .flat_map(|family| family.rows.iter().flat_map(of_row))
        .collect();
    if exemplars.iter().all(Option::is_none) {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len() + exemplars.len() * 64);
    let mut each = exemplars.iter();
    for line in text.lines() {
        out.push_str(line);
        if line.strip_prefix(EXEMPLAR_FAMILY).is_some_and(|rest| rest.starts_with("_bucket{"))
            && let Some(Some(TracedRequest { trace, duration_us, unix_s })) = each.next()
        {
            let mut id = Vec::new();
            let value = *duration_us as f64 / 1e6;
            trace.write_trace(&mut id);
            let id = String::from_utf8_lossy(&id);
            // Writing to a `String` does not fail.
            let _ = write!(out, " # {{trace_id=\"{id}\"}} {value} {unix_s}");
        }
        out.push('\n');
    }
    out
}

/// Converts to the older format, which names counter families with `_total` and has no `# EOF`.
fn classic(text: &str) -> String {
    let counter = |line: &'_ str| line.strip_prefix("# TYPE ")?.strip_suffix(" counter").map(str::to_owned);
    let counters: Vec<String> = text.lines().filter_map(counter).collect();
    let mut out = String::with_capacity(text.len());
    for line in text.lines().filter(|line| *line != "# EOF") {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next()) {
            (Some("#"), Some(kind), Some(name)) if counters.iter().any(|counter| counter == name) => {
                out.push_str(&format!("# {kind} {name}_total {}\n", words.next().unwrap_or_default()));
            }
            _ => out.extend([line, "\n"]),
        }
    }
    out
}

impl Sample {
    fn encode(&self, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
        match self {
            Sample::Count(count) => encoder.encode_counter::<NoLabelSet, u64, u64>(count, None),
            Sample::Seconds(seconds) => encoder.encode_counter::<NoLabelSet, f64, f64>(seconds, None),
            Sample::Number(number) => encoder.encode_gauge(number),
            Sample::Durations(durations) => {
                let bounds = DURATION_BOUNDS_US.iter().map(|us| *us as f64 / 1e6).chain([f64::INFINITY]);
                let counts = &durations.counts;
                let buckets: Vec<(f64, u64)> = bounds.zip(counts.classic()).collect();
                let total_s = counts.total_us() as f64 / 1e6;
                encoder.encode_histogram::<NoLabelSet>(total_s, counts.count(), &buckets, None)
            }
        }
    }
}

/// Families of one scrape.
#[derive(Debug)]
struct Scrape(Arc<Vec<Family>>);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for Family { name, help, kind, rows } in self.0.iter() {
            let kind = match kind {
                FamilyKind::Counter => MetricType::Counter,
                FamilyKind::Gauge => MetricType::Gauge,
                FamilyKind::Histogram => MetricType::Histogram,
            };
            let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
            for (labels, sample) in rows {
                if labels.is_empty() {
                    sample.encode(&mut metric)?
                } else {
                    sample.encode(&mut metric.encode_family(labels)?)?
                }
            }
        }
        Ok(())
    }
}
