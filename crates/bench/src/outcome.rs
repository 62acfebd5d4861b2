//! The outcome of one run: results of the client, resource usage of the server, and the figures computed from
//! both.

use std::time::{SystemTime, UNIX_EPOCH};

use http::Version;

use crate::load::LoadResult;
use crate::plan::{Arrivals, LoadPlan, Pace};
use crate::quantity;
use crate::server_usage::{MachineState, ServerUsage};
use crate::tally::ErrorKind;

/// Description of a run, for reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunSetup {
    /// First URL, and the number of further ones.
    pub url_summary: String,
    /// Load: connections, keep-alive, pace, duration.
    pub load_description: String,
    /// Host and port, for display.
    pub host: String,
    /// Request target of the first request.
    pub target: String,
    /// Concurrent connections.
    pub connections: usize,
    /// Whether the load was an open loop.
    pub is_open: bool,
}

/// Outcome of one run.
#[derive(Clone, Debug, Default)]
pub struct BenchOutcome {
    /// Description of the run.
    pub setup: RunSetup,
    /// Results of the client.
    pub measured: LoadResult,
    /// Resource usage of the server, if its processes could be observed.
    pub server: Option<ServerUsage>,
    /// State of the machine during the run.
    pub machine: MachineState,
    /// End time in seconds since 1970.
    pub unix_s: u64,
}

impl RunSetup {
    /// Describes `plan`, whose first request is `first` (a URL or a substitute for it).
    #[must_use]
    pub fn from_plan(plan: &LoadPlan, first: &str, version: Version) -> RunSetup {
        let more = match plan.requests.len() {
            1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        let target = match first.split_once("://").and_then(|(_, rest)| rest.find('/').map(|at| &rest[at..]))
        {
            Some(target) => target.to_string(),
            None => "/".to_string(),
        };
        RunSetup {
            url_summary: format!("{first}{more}"),
            load_description: describe_load(plan, version),
            host: plan.origins.first().map(|origin| origin.name.clone()).unwrap_or_default(),
            target,
            connections: plan.connections,
            is_open: plan.is_open(),
        }
    }
}

fn describe_load(plan: &LoadPlan, version: Version) -> String {
    let mut parts = vec![format!("{} connections", quantity::format_thousands(plan.connections as f64))];
    match version {
        Version::Http10 => parts.push("HTTP/1.0".into()),
        Version::Http11 => {}
        Version::Http2 => parts.push(format!("HTTP/2, {} streams each", plan.pipeline)),
        Version::Http3 => parts.push(format!("HTTP/3, {} streams each", plan.pipeline)),
    }
    parts.push(if plan.keep_alive { "keep-alive".into() } else { "a connection a request".into() });
    if plan.pipeline > 1 && !plan.is_multiplexed() {
        parts.push(format!("{} requests in a pipeline", plan.pipeline));
    }
    parts.push(match plan.pace {
        Pace::Closed { think } if think.is_zero() => "closed loop".into(),
        Pace::Closed { think } => format!("closed loop, {} of thinking", format_seconds(think.as_secs_f64())),
        Pace::Open { rate, arrivals } => {
            let arrivals = if arrivals == Arrivals::Poisson { "Poisson" } else { "constant" };
            format!("open loop, {} requests/s ({arrivals})", quantity::format_digits(rate))
        }
    });
    match (plan.duration, plan.requests_max) {
        (Some(length), Some(max)) => {
            parts.push(format!(
                "{} or {} requests",
                format_seconds(length.as_secs_f64()),
                quantity::format_thousands(max as f64)
            ));
        }
        (Some(length), None) => parts.push(format_seconds(length.as_secs_f64())),
        (None, Some(max)) => parts.push(format!("{} requests", quantity::format_thousands(max as f64))),
        (None, None) => {}
    }
    if !plan.warm_up.is_zero() {
        parts.push(format!("after {} of warm-up", format_seconds(plan.warm_up.as_secs_f64())));
    }
    if !plan.ramp.is_zero() {
        parts.push(format!("opened over {}", format_seconds(plan.ramp.as_secs_f64())));
    }
    let threads = if plan.threads() == 1 { "thread" } else { "threads" };
    parts.push(format!("{} {threads}", plan.threads()));
    parts.join(", ")
}

fn format_seconds(s: f64) -> String {
    quantity::format_time(s * 1e9)
}

/// Returns the current time in seconds since 1970.
#[must_use]
pub fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl BenchOutcome {
    /// Returns the server's CPU time per request in microseconds.
    #[must_use]
    pub fn cpu_us(&self) -> Option<f64> {
        let spent = self.server.as_ref()?;
        let responses = self.measured.responses_in_time;
        (responses > 0).then(|| spent.cpu.total_ns as f64 / 1e3 / responses as f64)
    }

    /// Returns all runs of a subject as one: sums, and distributions of all requests. Memory is that of the last run.
    #[must_use]
    pub fn pooled<'o>(runs: impl IntoIterator<Item = &'o BenchOutcome>) -> BenchOutcome {
        let mut pooled = BenchOutcome::default();
        for run in runs {
            pooled.measured.add(&run.measured);
            let before = pooled.server.take();
            pooled.server = run.server.clone();
            if let (Some(server), Some(before)) = (&mut pooled.server, before) {
                server.cpu.add(before.cpu);
            }
            (pooled.setup, pooled.machine, pooled.unix_s) = (run.setup.clone(), run.machine, run.unix_s);
        }
        pooled
    }

    /// Returns the average number of cores that the server used.
    #[must_use]
    pub fn server_cores(&self) -> Option<f64> {
        let spent = self.server.as_ref()?;
        Some(spent.cpu.total_ns as f64 / 1e9 / self.measured.seconds.max(1e-9))
    }

    /// Returns the number of requests that never got an answer, however long they waited.
    #[must_use]
    pub fn never_answered(&self) -> u64 {
        let kinds = [ErrorKind::Timeout, ErrorKind::Unanswered, ErrorKind::Unsent];
        kinds.iter().map(|kind| self.measured.tally.errors.count_and_example(*kind).0).sum()
    }

    /// Returns the number of requests that failed plus responses with status 400 and above.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.measured.tally.errors.total() + self.measured.tally.error_statuses()
    }
}
