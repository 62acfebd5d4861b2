//! A run's outcome in machine-readable formats: JSON and CSV.

use serde_json::{Map, Value, json};

use crate::handshakes::Handshakes;
use crate::outcome::BenchOutcome;
use crate::procfs::{self, ProcessMemory};
use crate::server_usage::ServerUsage;
use crate::{advice, figure};

/// Converts the whole outcome to JSON.
#[must_use]
pub fn outcome_json(outcome: &BenchOutcome) -> Value {
    let tally = &outcome.measured.tally;
    let figures: Map<String, Value> = figure::ALL_FIGURES
        .iter()
        .filter_map(|figure| Some((figure.key.to_string(), json!(figure.value_in(outcome)?))))
        .collect();
    let statuses: Map<String, Value> =
        tally.statuses().iter().map(|(code, count)| (code.to_string(), json!(count))).collect();
    let errors: Vec<Value> = tally
        .errors
        .iter()
        .map(|(kind, count, example)| json!({ "kind": kind.name(), "count": count, "example": example }))
        .collect();
    let points: Vec<Value> = outcome
        .measured
        .points
        .iter()
        .map(|p| {
            json!({ "from_s": p.from_s, "to_s": p.to_s, "responses": p.responses, "bytes_in": p.bytes_in,
                "errors": p.errors, "p50_us": p.p50_ns as f64 / 1e3, "p99_us": p.p99_ns as f64 / 1e3,
                "max_us": p.max_ns as f64 / 1e3 })
        })
        .collect();
    let buckets: Vec<Value> =
        tally.latency.buckets().map(|(ns, count)| json!([ns as f64 / 1e3, count])).collect();
    json!({
        "komainu": env!("CARGO_PKG_VERSION"),
        "unix_s": outcome.unix_s,
        "machine": procfs::describe_machine(),
        "what": outcome.setup.url_summary,
        "how": outcome.setup.load_description,
        "open_loop": outcome.setup.is_open,
        "seconds": outcome.measured.seconds,
        "interrupted": outcome.measured.interrupted,
        "figures": figures,
        "server_field": outcome.measured.facts.server,
        "statuses": statuses,
        "errors": errors,
        "warnings": advice::warnings(outcome),
        "points": points,
        "latency_buckets_us": buckets,
        "tls": (tally.handshakes.total() > 0).then(|| tls_json(&tally.handshakes)),
        "server": outcome.server.as_ref().map(server_json),
    })
}

fn tls_json(handshakes: &Handshakes) -> Value {
    let agreed: Vec<Value> = handshakes
        .kind_counts()
        .iter()
        .map(|([version, cipher, group], count)| {
            json!({ "version": version, "cipher": cipher, "group": group, "handshakes": count })
        })
        .collect();
    json!({ "full": handshakes.total() - handshakes.resumed(), "resumed": handshakes.resumed(),
        "retried": handshakes.retried(), "agreed": agreed })
}

fn server_json(usage: &ServerUsage) -> Value {
    let memory = |processes: &[ProcessMemory]| -> Vec<Value> {
        processes
            .iter()
            .map(|m| {
                json!({ "pid": m.pid, "name": m.name, "rss_bytes": m.rss, "pss_bytes": m.pss,
                    "private_dirty_bytes": m.private_dirty })
            })
            .collect()
    };
    let series: Vec<Value> = usage
        .series
        .iter()
        .map(|s| json!({ "at_s": s.at_s, "cores": s.cores, "rss_bytes": s.rss }))
        .collect();
    json!({ "cpu_user_s": usage.cpu.user_ns() as f64 / 1e9, "cpu_system_s": usage.cpu.system_ns as f64 / 1e9,
        "switches_voluntary": usage.cpu.switches_voluntary,
        "switches_involuntary": usage.cpu.switches_involuntary,
        "before": memory(&usage.before), "after": memory(&usage.after), "series": series })
}

/// Formats the runs as CSV, one per line, after its name.
#[must_use]
pub fn outcome_csv(runs: &[(String, &BenchOutcome)]) -> String {
    let mut text = String::from("run,what,unix_s,seconds");
    for figure in figure::ALL_FIGURES {
        text += ",";
        text += figure.key;
    }
    text += "\n";
    for (name, outcome) in runs {
        let seconds = outcome.measured.seconds;
        text += &format!(
            "{},{},{},{seconds:.3}",
            quote_csv(name),
            quote_csv(&outcome.setup.url_summary),
            outcome.unix_s
        );
        for figure in figure::ALL_FIGURES {
            text += &figure.value_in(outcome).map_or(",".to_string(), |value| format!(",{value:.3}"));
        }
        text += "\n";
    }
    text
}

/// Quotes a field as in RFC 4180 if necessary.
fn quote_csv(text: &str) -> String {
    if text.contains(['"', ',', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome() -> BenchOutcome {
        let mut outcome = BenchOutcome::default();
        outcome.setup.url_summary = "http://h/?a=1,2".into();
        outcome.measured.seconds = 2.0;
        outcome.measured.responses_in_time = 1_000;
        outcome.measured.tally.responses = 1_000;
        (1..=1_000).for_each(|at| outcome.measured.tally.latency.record(at * 1_000));
        outcome
    }

    #[test]
    fn json_contains_only_measured_figures() {
        let json = outcome_json(&outcome());
        assert_eq!(json["figures"]["requests_per_s"], 500.0);
        assert!((json["figures"]["p99_us"].as_f64().unwrap() - 990.0).abs() < 1.0);
        assert!(json["figures"].get("cpu_us_per_request").is_none() && json["server"].is_null());
        let counted: u64 =
            json["latency_buckets_us"].as_array().unwrap().iter().map(|b| b[1].as_u64().unwrap()).sum();
        assert_eq!(counted, 1_000);
    }

    #[test]
    fn csv_has_one_column_per_figure_and_quotes_values() {
        let outcome = outcome();
        let text = outcome_csv(&[("a".into(), &outcome), ("b".into(), &outcome)]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[1].starts_with("a,\"http://h/?a=1,2\",0,2.000,500.000,"), "{text}");
        // The quoted name contains one more comma.
        assert_eq!(lines[0].matches(',').count() + 1, lines[2].matches(',').count());
    }
}
