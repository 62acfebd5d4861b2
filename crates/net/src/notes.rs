//! Per-request information from handlers, for logs and metrics.

use std::fmt::Write as _;
use std::rc::Rc;

use crate::cost::CpuMeter;

/// Result of the cache for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CacheOutcome {
    /// Served from a fresh stored response.
    Hit,
    /// Served from a stale stored response, while it is revalidated.
    Stale,
    /// Served from a stored response that the origin has just validated, or because the origin failed.
    Validated,
    /// Served with the response to another, concurrent request.
    Collapsed,
    /// Fetched from the origin.
    Miss,
    /// Not handled by the cache.
    Bypass,
}

impl CacheOutcome {
    /// All outcomes, in order of their discriminants.
    pub const ALL: [CacheOutcome; 6] = [
        CacheOutcome::Hit,
        CacheOutcome::Stale,
        CacheOutcome::Validated,
        CacheOutcome::Collapsed,
        CacheOutcome::Miss,
        CacheOutcome::Bypass,
    ];

    /// Returns the name used in logs and metrics.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            CacheOutcome::Hit => "hit",
            CacheOutcome::Stale => "stale",
            CacheOutcome::Validated => "validated",
            CacheOutcome::Collapsed => "collapsed",
            CacheOutcome::Miss => "miss",
            CacheOutcome::Bypass => "bypass",
        }
    }
}

/// Costs of a request that are measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum MeasuredCosts {
    /// No costs.
    #[default]
    None,
    /// CPU time of the server and of the worker.
    Cpu,
    /// CPU time, and the memory growth of the worker.
    All,
}

/// A failed attempt to use an upstream server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedAttempt {
    /// The URL of the upstream server.
    pub upstream: Rc<str>,
    /// Duration of the attempt, in microseconds.
    pub duration_us: u64,
    /// Reason of the failure: one of a fixed list of texts.
    pub reason: &'static str,
}

/// The failed attempts of a request, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailedAttempts(pub Vec<FailedAttempt>);

/// Information about a request from its handlers. Durations are in microseconds of the core's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestNotes {
    /// Time in queues: for an upstream server at its limit, or for a worker of an application.
    pub queue_us: Option<u64>,
    /// Time to connect to upstream servers; `None` if a kept connection was used.
    pub connect_us: Option<u64>,
    /// Time from the request to the response head of the last upstream server used.
    pub upstream_us: Option<u64>,
    /// The URL of the last upstream server used.
    pub upstream: Option<Rc<str>>,
    /// Number of attempts to use an upstream server.
    pub attempts: u32,
    /// The failed attempts.
    pub failed_attempts: Option<Box<FailedAttempts>>,
    /// Costs to measure for the request.
    pub measured: MeasuredCosts,
    /// Measures the CPU time of the serving thread, if enabled.
    pub cpu_meter: Option<Rc<CpuMeter>>,
    /// Sampling weight of the CPU measurement: number of similar requests that this one represents; 0 if not
    /// sampled.
    pub cpu_weight: u32,
    /// Number of the worker that produced the response.
    pub worker: Option<u32>,
    /// CPU time of the worker's thread, in microseconds, if it was measured and the worker had no other
    /// request meanwhile.
    pub worker_cpu_us: Option<u32>,
    /// Growth of the resident memory of the worker's process, in KiB (may be negative), under the same
    /// conditions.
    pub worker_memory_kib: Option<i32>,
    /// The branch of a split that served the request.
    pub branch: Option<Rc<str>>,
    /// Result of the cache.
    pub cache: Option<CacheOutcome>,
    /// Reason of an error response by this server: one of a fixed list of texts.
    pub refusal: Option<&'static str>,
    /// Whether the response named a file (`X-Accel-Redirect`, `X-Sendfile`) that no internal route serves, so
    /// that it was sent without it.
    pub ignores_file: bool,
    /// Whether access logs leave the request out.
    pub is_unlogged: bool,
}

impl RequestNotes {
    /// Returns the CPU time of the serving thread in the handler so far, in microseconds, if measured.
    #[must_use]
    pub fn server_cpu_us(&self) -> Option<u64> {
        self.cpu_meter.as_ref().map(|meter| meter.spent_us())
    }

    /// Returns the value of `Server-Timing` (W3C Server Timing) with the durations known when the response
    /// head is sent, in milliseconds.
    pub(crate) fn server_timing(&self, total_us: u64) -> String {
        let mut value = String::new();
        let mut metric = |name: &str, us: Option<u64>| {
            if let Some(us) = us {
                let _ = write!(value, "{name};dur={}.{:03}, ", us / 1_000, us % 1_000);
            }
        };
        metric("queue", self.queue_us);
        metric("connect", self.connect_us);
        metric("upstream", self.upstream_us);
        metric("server-cpu", self.server_cpu_us());
        metric("worker-cpu", self.worker_cpu_us.map(u64::from));
        metric("total", Some(total_us));
        if let Some(kib) = self.worker_memory_kib {
            let _ = write!(value, "worker-memory;desc=\"{kib:+} KiB\", ");
        }
        if let Some(outcome) = self.cache {
            let _ = write!(value, "cache;desc={}, ", outcome.text());
        }
        value.truncate(value.len() - 2);
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_timing_lists_only_known_values() {
        let mut notes = RequestNotes::default();
        assert_eq!(notes.server_timing(1_500), "total;dur=1.500");
        notes.queue_us = Some(20);
        notes.worker_cpu_us = Some(1_234_567);
        notes.worker_memory_kib = Some(-4);
        notes.cache = Some(CacheOutcome::Miss);
        let want = "queue;dur=0.020, worker-cpu;dur=1234.567, total;dur=0.000, worker-memory;desc=\"-4 KiB\", cache;desc=miss";
        assert_eq!(notes.server_timing(0), want);
    }
}
