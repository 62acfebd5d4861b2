//! What handlers report of a request, for logs and metrics.

use std::fmt::Write as _;
use std::rc::Rc;

use crate::cost::CpuMeter;

/// What a cache has done for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CacheOutcome {
    /// Answered with a fresh stored response.
    Hit,
    /// Answered with a stale one, while it is validated.
    Stale,
    /// Answered with one that the origin has just found valid, or that is used because the origin failed.
    Validated,
    /// Answered with the response that another request has asked for.
    Collapsed,
    /// The origin was asked.
    Miss,
    /// The cache had no part in it.
    Bypass,
}

impl CacheOutcome {
    /// All of them, in the order of their numbers.
    pub const ALL: [CacheOutcome; 6] = [
        CacheOutcome::Hit,
        CacheOutcome::Stale,
        CacheOutcome::Validated,
        CacheOutcome::Collapsed,
        CacheOutcome::Miss,
        CacheOutcome::Bypass,
    ];

    /// Its name in logs and metrics.
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

/// Which costs of a request are measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum MeasuredCosts {
    /// None.
    #[default]
    None,
    /// CPU time, of the server and of the worker.
    Cpu,
    /// And by how much the memory of the worker grows.
    All,
}

/// An attempt at an upstream server that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedAttempt {
    /// The URL of the server.
    pub upstream: Rc<str>,
    /// How long it took, in microseconds.
    pub us: u64,
    /// Why it failed: one of a fixed list of texts.
    pub reason: &'static str,
}

/// The attempts of a request that failed, in their order: few requests have any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailedAttempts(pub Vec<FailedAttempt>);

/// What handlers report of a request. Durations are in microseconds of the core's clock; `None` where there was nothing of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestNotes {
    /// In queues: for an upstream server at its limit, for a worker of an application.
    pub queue_us: Option<u64>,
    /// To make connections to upstream servers. None was made where one was kept.
    pub connect_us: Option<u64>,
    /// From the request to the head of the response of the last upstream server that was asked.
    pub upstream_us: Option<u64>,
    /// The URL of that server.
    pub upstream: Option<Rc<str>>,
    /// How often upstream servers were asked.
    pub attempts: u32,
    /// Those that failed.
    pub failed_attempts: Option<Box<FailedAttempts>>,
    /// What is to be measured of it.
    pub measured: MeasuredCosts,
    /// Counts the CPU time of the serving thread, if that is measured.
    pub cpu_meter: Option<Rc<CpuMeter>>,
    /// How many requests like it this one stands for among those whose CPU time is counted; 0 for none.
    pub cpu_weight: u32,
    /// The number of the worker that has answered.
    pub worker: Option<u32>,
    /// CPU time of that worker's thread, in microseconds, if measured and if it had no other request meanwhile.
    pub worker_cpu_us: Option<u32>,
    /// By how much the resident memory of the worker's process has grown (or shrunk), in KiB; under the same conditions.
    pub worker_memory_kib: Option<i32>,
    /// The branch of a split that has served it.
    pub branch: Option<Rc<str>>,
    /// What the cache has done.
    pub cache: Option<CacheOutcome>,
    /// Why this server has answered by itself with an error: one of a fixed list of texts.
    pub refusal: Option<&'static str>,
    /// The response names a file of this server (`X-Accel-Redirect`, `X-Sendfile`), which no internal route serves: it went out without.
    pub ignores_file: bool,
}

impl RequestNotes {
    /// CPU time of the serving thread in its handler so far, in microseconds, if measured.
    #[must_use]
    pub fn server_cpu_us(&self) -> Option<u64> {
        self.cpu_meter.as_ref().map(|meter| meter.spent_us())
    }

    /// The value of `Server-Timing` (W3C Server Timing): what is known when the head of the response is sent, in milliseconds.
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
    fn server_timing_names_what_is_known() {
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
