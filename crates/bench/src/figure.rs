//! The figures of a run: one list, from which tables, files, comparisons and expectations are generated.

use crate::outcome::BenchOutcome;
use crate::quantity;

/// Unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Requests per second.
    Rate,
    /// Bytes per second.
    BytesRate,
    /// Microseconds.
    Us,
    /// Bytes.
    Bytes,
    /// A plain count.
    Count,
    /// A share, 0 to 1.
    Share,
}

impl Unit {
    /// Formats a value.
    pub(crate) fn format(self, value: f64) -> String {
        match self {
            Unit::Rate => quantity::format_digits(value),
            Unit::Count => quantity::format_thousands(value),
            Unit::BytesRate => format!("{}/s", quantity::format_bytes(value)),
            Unit::Us => quantity::format_time(value * 1e3),
            Unit::Bytes => quantity::format_bytes(value),
            Unit::Share => format!("{:.1} %", value * 100.0),
        }
    }
}

/// Direction in which a figure improves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Higher is better.
    Higher,
    /// Lower is better.
    Lower,
}

/// Definition of a figure.
#[derive(Debug)]
pub struct Figure {
    /// Short name, as in `--expect`.
    pub name: &'static str,
    /// Name in JSON and CSV, with the unit.
    pub key: &'static str,
    /// Display name.
    pub title: &'static str,
    /// Unit of the value.
    pub unit: Unit,
    /// Direction in which the figure improves.
    pub better: Better,
    extract: fn(&BenchOutcome) -> Option<f64>,
}

impl Figure {
    /// Returns the value in an outcome, if it was measured.
    #[must_use]
    pub fn value_in(&self, outcome: &BenchOutcome) -> Option<f64> {
        (self.extract)(outcome)
    }

    /// Formats a value of this figure.
    #[must_use]
    pub fn format_value(&self, value: f64) -> String {
        self.unit.format(value)
    }

    /// Finds a figure by its short name or key.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Figure> {
        ALL_FIGURES.iter().find(|figure| figure.name == name || figure.key == name)
    }
}

macro_rules! figures {
    ($(($name:literal, $key:literal, $title:literal, $unit:ident, $better:ident, $of:expr),)*) => {
        &[$(Figure { name: $name, key: $key, title: $title, unit: Unit::$unit, better: Better::$better, extract: $of },)*]
    };
}

/// All figures, in display order.
pub const ALL_FIGURES: &[Figure] = figures![
    ("rate", "requests_per_s", "requests/s", Rate, Higher, |o| Some(o.measured.rate())),
    ("bytes", "bytes_per_s", "received", BytesRate, Higher, |o| Some(
        o.measured.bytes_in_time as f64 / o.measured.seconds.max(1e-9)
    )),
    ("p50", "p50_us", "p50", Us, Lower, |o| percentile(o, 50.0)),
    ("p75", "p75_us", "p75", Us, Lower, |o| percentile(o, 75.0)),
    ("p90", "p90_us", "p90", Us, Lower, |o| percentile(o, 90.0)),
    ("p95", "p95_us", "p95", Us, Lower, |o| percentile(o, 95.0)),
    ("p99", "p99_us", "p99", Us, Lower, |o| percentile(o, 99.0)),
    ("p99.9", "p999_us", "p99.9", Us, Lower, |o| percentile(o, 99.9)),
    ("p99.99", "p9999_us", "p99.99", Us, Lower, |o| percentile(o, 99.99)),
    ("max", "max_us", "max", Us, Lower, |o| percentile(o, 100.0)),
    ("mean", "mean_us", "mean", Us, Lower, |o| {
        let latency = &o.measured.tally.latency;
        (latency.count() > 0).then(|| latency.mean() / 1e3)
    }),
    ("first-byte", "first_byte_p50_us", "first byte p50", Us, Lower, |o| {
        let times = &o.measured.tally.first_byte;
        (times.count() > 0).then(|| times.percentile(50.0) as f64 / 1e3)
    }),
    ("connect", "connect_p50_us", "connect p50", Us, Lower, |o| {
        let times = &o.measured.tally.connect;
        (times.count() > 0).then(|| times.percentile(50.0) as f64 / 1e3)
    }),
    ("tls", "tls_p50_us", "TLS p50", Us, Lower, |o| {
        let times = &o.measured.tally.tls;
        (times.count() > 0).then(|| times.percentile(50.0) as f64 / 1e3)
    }),
    ("tls-p99", "tls_p99_us", "TLS p99", Us, Lower, |o| {
        let times = &o.measured.tally.tls;
        (times.count() > 0).then(|| times.percentile(99.0) as f64 / 1e3)
    }),
    ("handshakes", "tls_handshakes", "TLS handshakes", Count, Lower, |o| {
        let handshakes = &o.measured.tally.handshakes;
        (handshakes.total() > 0).then(|| handshakes.total() as f64)
    }),
    ("resumed", "tls_resumed_share", "TLS handshakes resumed", Share, Higher, |o| {
        let handshakes = &o.measured.tally.handshakes;
        (handshakes.total() > 0).then(|| handshakes.resumed() as f64 / handshakes.total() as f64)
    }),
    ("responses", "responses", "responses", Count, Higher, |o| Some(o.measured.tally.responses as f64)),
    ("errors", "errors", "errors", Count, Lower, |o| Some(o.errors() as f64)),
    ("differ", "responses_differ", "responses unlike the first", Count, Lower, |o| {
        let tally = &o.measured.tally;
        Some(tally.different_lengths.max(tally.different_contents) as f64)
    }),
    ("reuse", "reused_share", "on a kept connection", Share, Higher, |o| {
        let tally = &o.measured.tally;
        (tally.responses > 0).then(|| tally.reused_responses as f64 / tally.responses as f64)
    }),
    ("cpu", "cpu_us_per_request", "CPU per request", Us, Lower, BenchOutcome::cpu_us),
    ("per-cpu", "requests_per_s_per_cpu_percent", "requests/s per 1 % CPU", Rate, Higher, |o| {
        let cores = o.server_cores().filter(|cores| *cores > 0.0)?;
        Some(o.measured.rate() / (cores * 100.0))
    }),
    ("cores", "server_cores", "cores used", Rate, Lower, BenchOutcome::server_cores),
    ("rss", "rss_bytes", "RSS", Bytes, Lower, |o| memory(o, |m| m.rss)),
    ("pss", "pss_bytes", "PSS", Bytes, Lower, |o| memory(o, |m| m.pss)),
    ("dirty", "private_dirty_bytes", "private dirty", Bytes, Lower, |o| memory(o, |m| m.private_dirty)),
    ("generator", "generator_us_per_request", "generator's CPU per request", Us, Lower, |o| {
        let responses = o.measured.responses_in_time;
        (responses > 0).then(|| o.measured.generator_cpu_s * 1e6 / responses as f64)
    }),
    ("noise", "noise_share", "machine time gone elsewhere", Share, Lower, |o| o.machine.noise),
];

fn percentile(outcome: &BenchOutcome, percent: f64) -> Option<f64> {
    let latency = &outcome.measured.tally.latency;
    (latency.count() > 0).then(|| latency.percentile(percent) as f64 / 1e3)
}

/// Returns the memory of the whole process tree after the run.
fn memory(outcome: &BenchOutcome, of: fn(&crate::procfs::ProcessMemory) -> u64) -> Option<f64> {
    let after = &outcome.server.as_ref()?.after;
    (!after.is_empty()).then(|| after.iter().map(of).sum::<u64>() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figure_names_and_keys_are_unique() {
        for (at, figure) in ALL_FIGURES.iter().enumerate() {
            assert!(
                ALL_FIGURES[at + 1..].iter().all(|f| f.name != figure.name && f.key != figure.key),
                "{}",
                figure.name
            );
            assert_eq!(Figure::find(figure.key).map(|f| f.name), Some(figure.name));
        }
        assert!(Figure::find("p98").is_none());
    }

    #[test]
    fn values_are_shown_with_their_unit() {
        for (name, value, shown) in [
            ("rate", 12_345.6, "12,346"),
            ("p99", 1_234.0, "1.23 ms"),
            ("pss", 3.0 * 1024.0 * 1024.0, "3.00 MiB"),
            ("reuse", 0.5, "50.0 %"),
            ("bytes", 2048.0, "2.00 KiB/s"),
        ] {
            assert_eq!(Figure::find(name).unwrap().format_value(value), shown);
        }
    }
}
