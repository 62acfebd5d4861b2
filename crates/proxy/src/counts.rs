//! Counters of each upstream server: one set per core, summed when read.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use net::{Counter, DurationHistogram};

use crate::failure::AttemptFailure;

/// Reasons of failed attempts, in the order of their counters.
pub const FAILURE_REASONS: [&str; 7] =
    ["connect", "timeout", "closed", "invalid", "status", "refused", "resources"];

/// Counters of one upstream server on one core.
#[derive(Debug, Default)]
pub struct UpstreamCounters {
    /// Requests sent to the server; each attempt counts.
    pub requests: Counter,
    /// Requests that have ended, successfully or not.
    pub ended: Counter,
    /// Responses by the first digit of the status, 1 to 5; any other at index 0.
    pub statuses: [Counter; 6],
    /// Failed attempts, by [`FAILURE_REASONS`].
    pub failures: [Counter; FAILURE_REASONS.len()],
    /// Failed attempts that were followed by another one.
    pub retries: Counter,
    /// Ejections of the server.
    pub ejections: Counter,
    /// Time to connect, TLS handshake included. The histogram's count is the number of connections.
    pub connect: DurationHistogram,
    /// Time from the end of connecting to the response head.
    pub head: DurationHistogram,
}

impl UpstreamCounters {
    pub(crate) fn count_failure(&self, failure: &AttemptFailure) {
        let reason = match failure {
            AttemptFailure::Connect(_) => 0,
            AttemptFailure::ConnectTimeout | AttemptFailure::HeadTimeout => 1,
            AttemptFailure::ConnectionLost | AttemptFailure::Body(_) | AttemptFailure::BodyOwed(_) => 2,
            AttemptFailure::Invalid(_) | AttemptFailure::Repairable(..) => 3,
            AttemptFailure::RetryableStatus(_) => 4,
            AttemptFailure::Unprocessed => 5,
            AttemptFailure::ResourcesExhausted => 6,
            // A closed kept connection, or a failure that is not the server's, is not counted.
            AttemptFailure::Stale | AttemptFailure::NotUpstream(_) => return,
        };
        self.failures[reason].add(1);
    }
}

/// The counters of one upstream server on all cores.
#[derive(Debug, Default)]
pub(crate) struct UpstreamCounterSets(Mutex<CounterSets>);

#[derive(Debug, Default)]
struct CounterSets {
    all: Vec<Arc<UpstreamCounters>>,
    /// Counters that no core uses at present. They are reused, so that no count is lost and there are never
    /// more sets than cores at a time.
    free: Vec<Arc<UpstreamCounters>>,
}

impl UpstreamCounterSets {
    fn all_cores(&self) -> MutexGuard<'_, CounterSets> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the counters for one core, which returns them with [`UpstreamCounterSets::release`].
    pub(crate) fn take(&self) -> Arc<UpstreamCounters> {
        let mut cores = self.all_cores();
        cores.free.pop().unwrap_or_else(|| {
            let counters = Arc::new(UpstreamCounters::default());
            cores.all.push(counters.clone());
            counters
        })
    }

    pub(crate) fn release(&self, counters: Arc<UpstreamCounters>) {
        self.all_cores().free.push(counters);
    }

    /// The counters of all cores.
    pub(crate) fn all(&self) -> Vec<Arc<UpstreamCounters>> {
        self.all_cores().all.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_counters_are_reused_and_keep_their_counts() {
        let counts = UpstreamCounterSets::default();
        let first = counts.take();
        let second = counts.take();
        first.requests.add(2);
        second.requests.add(3);
        counts.release(first);
        for _ in 0..100 {
            let again = counts.take();
            again.requests.add(1);
            counts.release(again);
        }
        let all = counts.all();
        assert_eq!((all.len(), all.iter().map(|one| one.requests.value()).sum::<u64>()), (2, 105));
    }

    #[test]
    fn failures_are_counted_by_reason() {
        let counters = UpstreamCounters::default();
        for failure in [
            AttemptFailure::HeadTimeout,
            AttemptFailure::ConnectTimeout,
            AttemptFailure::ConnectionLost,
            AttemptFailure::Stale,
        ] {
            counters.count_failure(&failure);
        }
        let counted: Vec<u64> = counters.failures.iter().map(Counter::value).collect();
        assert_eq!(counted, [0, 2, 1, 0, 0, 0, 0]);
    }
}
