//! What attacks came to, as a table and as JSON.

use serde_json::{Value, json};

use super::ends::Ends;
use crate::load::Measured;
use crate::quantity::{bytes, thousands, time};
use crate::table::TextTable;

/// A median that is this many times that without the attack, and above [`SLOW_NS`], is a degraded service.
const SLOWER: u64 = 10;
const SLOW_NS: u64 = 50_000_000;
/// A p99 above this is one too, where it was not before.
const STALL_NS: u64 = 1_000_000_000;
/// So much more memory of the server is one too.
const MEMORY_BYTES: u64 = 512 * 1024 * 1024;

/// What an ordinary client got: two connections, a request every 5 ms on each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientFigures {
    /// Responses of a status below 400.
    pub responses: u64,
    /// Requests that failed, and responses of a status from 400 on.
    pub failed: u64,
    /// An example of what failed; empty where nothing did.
    pub failure: String,
    /// The median of the latency in nanoseconds.
    pub p50_ns: u64,
    /// Its p99.
    pub p99_ns: u64,
}

impl ClientFigures {
    /// From the figures of a load.
    #[must_use]
    pub fn of(measured: &Measured) -> ClientFigures {
        let tally = &measured.tally;
        let failure =
            tally.errors.iter().find(|(_, count, _)| *count > 0).map(|(_, _, example)| example.to_string());
        let refused = tally.statuses().into_iter().find(|(code, _)| *code >= 400);
        ClientFigures {
            responses: tally.responses.saturating_sub(tally.refusals()),
            failed: tally.errors.total() + tally.refusals(),
            failure: failure.or(refused.map(|(code, _)| format!("status {code}"))).unwrap_or_default(),
            p50_ns: tally.latency.percentile(50.0),
            p99_ns: tally.latency.percentile(99.0),
        }
    }
}

/// How the server bore an attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttackVerdict {
    /// The ordinary client noticed little.
    Survived,
    /// It was served, but requests failed or were much slower, or the server's memory grew by 512 MiB or more.
    Degraded,
    /// It got no response.
    DidNotAnswer,
}

impl AttackVerdict {
    /// In words.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            AttackVerdict::Survived => "survived",
            AttackVerdict::Degraded => "degraded",
            AttackVerdict::DidNotAnswer => "did not answer",
        }
    }
}

/// What one attack came to.
#[derive(Clone, Debug)]
pub struct AttackReport {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    /// Bytes that were sent for it, in all.
    pub sent_bytes: u64,
    /// Connections that were made for it.
    pub connections: u64,
    /// How the server ended them.
    pub ends: Ends,
    /// The ordinary client alone.
    pub before: ClientFigures,
    /// The ordinary client beside the attack.
    pub during: ClientFigures,
    /// Whether the server's processes were found: else the next two are 0.
    pub is_watched: bool,
    /// How much more memory the server had at most.
    pub memory_bytes: u64,
    /// CPU time that the server used, in nanoseconds.
    pub cpu_ns: u64,
}

impl AttackReport {
    /// How the server bore it.
    #[must_use]
    pub fn verdict(&self) -> AttackVerdict {
        let (before, during) = (&self.before, &self.during);
        if during.responses == 0 {
            return AttackVerdict::DidNotAnswer;
        }
        let is_slow = during.p50_ns > (before.p50_ns * SLOWER).max(SLOW_NS)
            || during.p99_ns > STALL_NS && before.p99_ns <= STALL_NS;
        let is_degraded = is_slow || during.failed > 0 || self.memory_bytes >= MEMORY_BYTES;
        if is_degraded { AttackVerdict::Degraded } else { AttackVerdict::Survived }
    }

    fn cells(&self) -> Vec<String> {
        let latency = |client: &ClientFigures| match client.responses {
            0 => "-".to_string(),
            _ => format!("{} / {}", time(client.p50_ns as f64), time(client.p99_ns as f64)),
        };
        let watched = |text: String| if self.is_watched { text } else { "?".into() };
        vec![
            self.name.to_string(),
            bytes(self.sent_bytes as f64),
            thousands(self.connections as f64),
            watched(bytes(self.memory_bytes as f64)),
            watched(time(self.cpu_ns as f64)),
            latency(&self.before),
            latency(&self.during),
            thousands(self.during.failed as f64),
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
            "goaway": self.ends.goaway, "rst_stream": self.ends.reset, "status": self.ends.status.iter()
                .map(|(code, count)| (code.to_string(), *count)).collect::<std::collections::BTreeMap<_, _>>(),
            "closed": self.ends.closed, "open": self.ends.open, "not_accepted": self.ends.refused,
            "memory_bytes": self.is_watched.then_some(self.memory_bytes),
            "cpu_ns": self.is_watched.then_some(self.cpu_ns),
            "before": client(&self.before), "during": client(&self.during), "verdict": self.verdict().text(),
        })
    }
}

/// What all attacks came to.
#[derive(Clone, Debug)]
pub struct Selftest {
    /// What was attacked.
    pub url: String,
    /// In the order in which they were made.
    pub reports: Vec<AttackReport>,
}

impl Selftest {
    /// Whether the server survived all of them.
    #[must_use]
    pub fn is_survived(&self) -> bool {
        self.reports.iter().all(|report| report.verdict() == AttackVerdict::Survived)
    }

    /// As a table with a line that sums it up.
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
        self.reports.iter().for_each(|report| table.row(report.cells()));
        let count = |verdict| self.reports.iter().filter(|report| report.verdict() == verdict).count();
        let mut text = format!("Attacks on {}\n\n", self.url);
        // The last column is long, and reads better from the left.
        let ends = self.reports.iter().map(|report| report.ends.text());
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
            count(AttackVerdict::DidNotAnswer)
        )
    }

    /// As JSON.
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
            ends: Ends { closed: 4, ..Ends::default() },
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
    fn a_server_is_judged_by_what_an_ordinary_client_gets() {
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
        assert_eq!(report(none.clone(), 0).verdict(), AttackVerdict::DidNotAnswer);
        let selftest = Selftest { url: "http://a/".into(), reports: vec![report(good, 0), report(none, 0)] };
        let text = selftest.text();
        assert!(
            text.contains("4 closed") && text.contains("1 survived, 0 degraded, 1 did not answer"),
            "{text}"
        );
        assert!(text.contains("ping-flood: the client beside it: no connection in time"), "{text}");
        assert!(!selftest.is_survived());
        assert_eq!(selftest.json()["attacks"][1]["verdict"], "did not answer");
    }
}
