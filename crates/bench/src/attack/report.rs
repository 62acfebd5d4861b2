//! Results of attacks, as a table and as JSON.

use serde_json::{Value, json};

use super::outcomes::ConnectionOutcomes;
use crate::load::LoadResult;
use crate::quantity::{format_bytes, format_thousands, format_time};
use crate::table::TextTable;

/// Service counts as degraded if the median latency is this multiple of that without the attack and above
/// [`DEGRADED_NS`].
const DEGRADED_FACTOR: u64 = 10;
const DEGRADED_NS: u64 = 50_000_000;
/// Service also counts as degraded if the p99 exceeds this value only during the attack.
const STALLED_P99_NS: u64 = 1_000_000_000;
/// Service also counts as degraded if the server's memory grows by this number of bytes.
const MEMORY_GROWTH_BYTES_MAX: u64 = 512 * 1024 * 1024;

/// Results of an ordinary client: two connections, a request every 5 ms on each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientFigures {
    /// Responses with a status below 400.
    pub responses: u64,
    /// Requests that failed, and responses with status 400 and above.
    pub failed: u64,
    /// Example of a failure; empty if there was none.
    pub failure: String,
    /// Median latency in nanoseconds.
    pub p50_ns: u64,
    /// 99th percentile of the latency in nanoseconds.
    pub p99_ns: u64,
}

impl ClientFigures {
    /// Extracts the results from the figures of a load.
    #[must_use]
    pub fn from_measured(measured: &LoadResult) -> ClientFigures {
        let tally = &measured.tally;
        let failure =
            tally.errors.iter().find(|(_, count, _)| *count > 0).map(|(_, _, example)| example.to_string());
        let refused = tally.statuses().into_iter().find(|(code, _)| *code >= 400);
        ClientFigures {
            responses: tally.responses.saturating_sub(tally.error_statuses()),
            failed: tally.errors.total() + tally.error_statuses(),
            failure: failure.or(refused.map(|(code, _)| format!("status {code}"))).unwrap_or_default(),
            p50_ns: tally.latency.percentile(50.0),
            p99_ns: tally.latency.percentile(99.0),
        }
    }
}

/// Effect of an attack on the ordinary client and the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttackVerdict {
    /// The ordinary client was hardly affected.
    Survived,
    /// The ordinary client was served, but requests failed or were much slower, or the server's memory grew
    /// by 512 MiB or more.
    Degraded,
    /// The ordinary client received no response.
    Unresponsive,
}

impl AttackVerdict {
    /// Describes the verdict in words.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            AttackVerdict::Survived => "survived",
            AttackVerdict::Degraded => "degraded",
            AttackVerdict::Unresponsive => "did not answer",
        }
    }
}

/// Results of one attack.
#[derive(Clone, Debug)]
pub struct AttackReport {
    /// Name of the attack.
    pub name: &'static str,
    /// Description of the attack.
    pub about: &'static str,
    /// Total bytes sent by the attack.
    pub sent_bytes: u64,
    /// Connections made by the attack.
    pub connections: u64,
    /// Ways in which the server ended the connections.
    pub outcomes: ConnectionOutcomes,
    /// Results of the ordinary client without the attack.
    pub before: ClientFigures,
    /// Results of the ordinary client during the attack.
    pub during: ClientFigures,
    /// Whether the server's processes were found; otherwise the next two values are 0.
    pub is_watched: bool,
    /// Maximum increase of the server's memory in bytes.
    pub memory_bytes: u64,
    /// CPU time that the server used, in nanoseconds.
    pub cpu_ns: u64,
}

impl AttackReport {
    /// Judges the effect of the attack.
    #[must_use]
    pub fn verdict(&self) -> AttackVerdict {
        let before = &self.before;
        let during = &self.during;
        if during.responses == 0 {
            return AttackVerdict::Unresponsive;
        }
        let is_slow = during.p50_ns > (before.p50_ns * DEGRADED_FACTOR).max(DEGRADED_NS)
            || during.p99_ns > STALLED_P99_NS && before.p99_ns <= STALLED_P99_NS;
        let is_degraded = is_slow || during.failed > 0 || self.memory_bytes >= MEMORY_GROWTH_BYTES_MAX;
        if is_degraded { AttackVerdict::Degraded } else { AttackVerdict::Survived }
    }

    fn cells(&self) -> Vec<String> {
        let latency = |client: &ClientFigures| match client.responses {
            0 => "-".to_string(),
            _ => format!("{} / {}", format_time(client.p50_ns as f64), format_time(client.p99_ns as f64)),
        };
        let watched = |text: String| if self.is_watched { text } else { "?".into() };
        vec![
            self.name.to_string(),
            format_bytes(self.sent_bytes as f64),
            format_thousands(self.connections as f64),
            watched(format_bytes(self.memory_bytes as f64)),
            watched(format_time(self.cpu_ns as f64)),
            latency(&self.before),
            latency(&self.during),
            format_thousands(self.during.failed as f64),
            self.verdict().text().to_string(),
        ]
    }

    fn json(&self) -> Value {
        let client = |client: &ClientFigures| {
            json!({ "responses": client.responses, "failed": client.failed, "p50_ns": client.p50_ns,
                "p99_ns": client.p99_ns })
        };
        json!({
            "attack": self.name, "about": self.about, "sent_bytes": self.sent_bytes, "connections": self.connections,
            "goaway": self.outcomes.goaway, "rst_stream": self.outcomes.reset, "status": self.outcomes.status.iter()
                .map(|(code, count)| (code.to_string(), *count)).collect::<std::collections::BTreeMap<_, _>>(),
            "connection_close": self.outcomes.quic_close, "stream_ends": self.outcomes.stream_ends,
            "replies": self.outcomes.replies, "timed_out": self.outcomes.timed_out, "left": self.outcomes.left,
            "closed": self.outcomes.closed, "open": self.outcomes.open, "not_accepted": self.outcomes.refused,
            "memory_bytes": self.is_watched.then_some(self.memory_bytes),
            "cpu_ns": self.is_watched.then_some(self.cpu_ns),
            "before": client(&self.before), "during": client(&self.during), "verdict": self.verdict().text(),
        })
    }
}

/// Results of all attacks.
#[derive(Clone, Debug)]
pub struct AttackSuiteReport {
    /// URL that was attacked.
    pub url: String,
    /// Results in the order of the attacks.
    pub reports: Vec<AttackReport>,
}

impl AttackSuiteReport {
    /// Whether the server survived all of them.
    #[must_use]
    pub fn has_survived_all(&self) -> bool {
        self.reports.iter().all(|report| report.verdict() == AttackVerdict::Survived)
    }

    /// Formats the results as a table with a summary line.
    #[must_use]
    pub fn text(&self) -> String {
        let head = [
            "attack",
            "sent",
            "conns",
            "memory",
            "CPU",
            "before p50/p99",
            "during p50/p99",
            "failed",
            "verdict",
        ];
        let mut table = TextTable::new(&head);
        self.reports.iter().for_each(|report| table.add_row(report.cells()));
        let count = |verdict| self.reports.iter().filter(|report| report.verdict() == verdict).count();
        let mut text = format!("Attacks on {}\n\n", self.url);
        // The last column is long and therefore left-aligned.
        let ends = self.reports.iter().map(|report| report.outcomes.text());
        for (line, end) in
            table.plain("  ").lines().zip(std::iter::once("how the server ended it".into()).chain(ends))
        {
            text += &format!("{line}  {end}\n");
        }
        text.push('\n');
        for report in &self.reports {
            if report.verdict() != AttackVerdict::Survived && !report.during.failure.is_empty() {
                text += &format!("  {}: the client beside it: {}\n", report.name, report.during.failure);
            }
        }
        text + &format!(
            "  {} survived, {} degraded, {} did not answer\n",
            count(AttackVerdict::Survived),
            count(AttackVerdict::Degraded),
            count(AttackVerdict::Unresponsive)
        )
    }

    /// Converts the results to JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({ "url": self.url, "attacks": self.reports.iter().map(AttackReport::json).collect::<Vec<_>>() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(during: ClientFigures, memory_bytes: u64) -> AttackReport {
        AttackReport {
            name: "ping-flood",
            about: "",
            sent_bytes: 2_000_000,
            connections: 4,
            outcomes: ConnectionOutcomes { closed: 4, ..ConnectionOutcomes::default() },
            before: ClientFigures {
                responses: 100,
                p50_ns: 100_000,
                p99_ns: 900_000,
                ..ClientFigures::default()
            },
            during,
            is_watched: true,
            memory_bytes,
            cpu_ns: 1_000_000,
        }
    }

    #[test]
    fn verdict_depends_on_what_an_ordinary_client_gets() {
        let good =
            ClientFigures { responses: 90, p50_ns: 900_000, p99_ns: 9_000_000, ..ClientFigures::default() };
        assert_eq!(report(good.clone(), 0).verdict(), AttackVerdict::Survived);
        assert_eq!(report(good.clone(), 1 << 30).verdict(), AttackVerdict::Degraded);
        assert_eq!(report(ClientFigures { failed: 1, ..good.clone() }, 0).verdict(), AttackVerdict::Degraded);
        assert_eq!(
            report(ClientFigures { p50_ns: 60_000_000, ..good.clone() }, 0).verdict(),
            AttackVerdict::Degraded
        );
        assert_eq!(
            report(ClientFigures { p99_ns: 2_000_000_000, ..good.clone() }, 0).verdict(),
            AttackVerdict::Degraded
        );
        let none =
            ClientFigures { failed: 1, failure: "no connection in time".into(), ..ClientFigures::default() };
        assert_eq!(report(none.clone(), 0).verdict(), AttackVerdict::Unresponsive);
        let selftest =
            AttackSuiteReport { url: "http://a/".into(), reports: vec![report(good, 0), report(none, 0)] };
        let text = selftest.text();
        assert!(
            text.contains("4 closed") && text.contains("1 survived, 0 degraded, 1 did not answer"),
            "{text}"
        );
        assert!(text.contains("ping-flood: the client beside it: no connection in time"), "{text}");
        assert!(!selftest.has_survived_all());
        assert_eq!(selftest.json()["attacks"][1]["verdict"], "did not answer");
    }
}
