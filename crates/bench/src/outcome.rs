//! The outcome of one run: results of the client, resource usage of the server, and the figures computed from
//! both.

use std::time::{SystemTime, UNIX_EPOCH};

use http::Version;

use crate::load::Measured;
use crate::plan::{Arrivals, Pace, Plan};
use crate::quantity;
use crate::server::{MachineState, Spent};

/// Description of a run, for reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setup {
    /// First URL, and the number of further ones.
    pub what: String,
    /// Load: connections, keep-alive, pace, duration.
    pub how: String,
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
pub struct Outcome {
    /// Description of the run.
    pub setup: Setup,
    /// Results of the client.
    pub measured: Measured,
    /// Resource usage of the server, if its processes could be observed.
    pub server: Option<Spent>,
    /// State of the machine during the run.
    pub around: MachineState,
    /// End time in seconds since 1970.
    pub unix_s: u64,
}

impl Setup {
    /// Describes `plan`, whose first request is `first` (a URL or a substitute for it).
    #[must_use]
    pub fn of(plan: &Plan, first: &str, version: Version) -> Setup {
        let more = match plan.requests.len() {
            1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        let target = match first.split_once("://").and_then(|(_, rest)| rest.find('/').map(|at| &rest[at..]))
        {
            Some(target) => target.to_string(),
            None => "/".to_string(),
        };
        Setup {
            what: format!("{first}{more}"),
            how: how(plan, version),
            host: plan.origins.first().map(|origin| origin.name.clone()).unwrap_or_default(),
            target,
            connections: plan.connections,
            is_open: plan.is_open(),
        }
    }
}

fn how(plan: &Plan, version: Version) -> String {
    let mut parts = vec![format!("{} connections", quantity::thousands(plan.connections as f64))];
    match version {
        Version::Http10 => parts.push("HTTP/1.0".into()),
        Version::Http11 => {}
        Version::Http2 => parts.push(format!("HTTP/2, {} streams each", plan.pipeline)),
    }
    parts.push(if plan.keep_alive { "keep-alive".into() } else { "a connection a request".into() });
    if plan.pipeline > 1 && version != Version::Http2 {
        parts.push(format!("{} requests in a pipeline", plan.pipeline));
    }
    parts.push(match plan.pace {
        Pace::Closed { think } if think.is_zero() => "closed loop".into(),
        Pace::Closed { think } => format!("closed loop, {} of thinking", seconds(think.as_secs_f64())),
        Pace::Open { rate, arrivals } => {
            let arrivals = if arrivals == Arrivals::Poisson { "Poisson" } else { "constant" };
            format!("open loop, {} requests/s ({arrivals})", quantity::digits(rate))
        }
    });
    match (plan.duration, plan.requests_max) {
        (Some(length), Some(max)) => {
            parts.push(format!(
                "{} or {} requests",
                seconds(length.as_secs_f64()),
                quantity::thousands(max as f64)
            ));
        }
        (Some(length), None) => parts.push(seconds(length.as_secs_f64())),
        (None, Some(max)) => parts.push(format!("{} requests", quantity::thousands(max as f64))),
        (None, None) => {}
    }
    if !plan.warm_up.is_zero() {
        parts.push(format!("after {} of warm-up", seconds(plan.warm_up.as_secs_f64())));
    }
    if !plan.ramp.is_zero() {
        parts.push(format!("opened over {}", seconds(plan.ramp.as_secs_f64())));
    }
    let threads = if plan.threads() == 1 { "thread" } else { "threads" };
    parts.push(format!("{} {threads}", plan.threads()));
    parts.join(", ")
}

fn seconds(s: f64) -> String {
    quantity::time(s * 1e9)
}

/// Returns the current time in seconds since 1970.
#[must_use]
pub fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl Outcome {
    /// Returns the server's CPU time per request in microseconds.
    #[must_use]
    pub fn cpu_us(&self) -> Option<f64> {
        let spent = self.server.as_ref()?;
        let responses = self.measured.responses_in_time;
        (responses > 0).then(|| spent.cpu.total_ns as f64 / 1e3 / responses as f64)
    }

    /// Returns the average number of cores that the server used.
    #[must_use]
    pub fn server_cores(&self) -> Option<f64> {
        let spent = self.server.as_ref()?;
        Some(spent.cpu.total_ns as f64 / 1e9 / self.measured.seconds.max(1e-9))
    }

    /// Returns the number of requests that failed plus responses with status 400 and above.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.measured.tally.errors.total() + self.measured.tally.refusals()
    }
}
