//! What is counted of each upstream server: on each core in counters of its own, summed when they are read.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use net::{Counter, DurationHistogram};

use crate::failure::AttemptFailure;

/// Why attempts fail, in the order of their counters.
pub const FAILURE_REASONS: [&str; 7] =
    ["connect", "timeout", "closed", "invalid", "status", "refused", "resources"];

/// What one core has counted of one upstream server.
#[derive(Debug, Default)]
pub struct UpstreamCounters {
    /// Requests sent to it, each attempt by itself.
    pub requests: Counter,
    /// Those that are over, in whatever way.
    pub ended: Counter,
    /// Its responses by the first digit of their statuses, from 1 to 5; others at 0.
    pub statuses: [Counter; 6],
    /// Attempts that failed, by [`FAILURE_REASONS`].
    pub failures: [Counter; FAILURE_REASONS.len()],
    /// Failed attempts that were followed by another one.
    pub retries: Counter,
    /// How often it was ejected.
    pub ejections: Counter,
    /// How long it took to connect, TLS handshake included. Its count is that of the connections.
    pub connect: DurationHistogram,
    /// From the end of connecting to the head of the response.
    pub head: DurationHistogram,
}

impl UpstreamCounters {
    pub(crate) fn failed(&self, failure: &AttemptFailure) {
        let reason = match failure {
            AttemptFailure::Connect(_) => 0,
            AttemptFailure::ConnectSlow | AttemptFailure::Slow => 1,
            AttemptFailure::Cut | AttemptFailure::Body(_) => 2,
            AttemptFailure::Invalid(_) | AttemptFailure::Repairable(..) => 3,
            AttemptFailure::Refused(_) => 4,
            AttemptFailure::Unprocessed => 5,
            AttemptFailure::Starved => 6,
            // A closed kept connection, and what is not the server's.
            AttemptFailure::Stale | AttemptFailure::Ours(_) => return,
        };
        self.failures[reason].add(1);
    }
}

/// The counters of one upstream server on all cores.
#[derive(Debug, Default)]
pub(crate) struct UpstreamCounts(Mutex<AllCores>);

#[derive(Debug, Default)]
struct AllCores {
    all: Vec<Arc<UpstreamCounters>>,
    /// Those that no core writes now: the next one continues them, so that nothing is lost and there are never more than cores
    /// at once.
    free: Vec<Arc<UpstreamCounters>>,
}

impl UpstreamCounts {
    fn all_cores(&self) -> MutexGuard<'_, AllCores> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counters for one core, which returns them by [`UpstreamCounts::release`].
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
    fn a_core_that_ends_leaves_its_counters_to_the_next_one() {
        let counts = UpstreamCounts::default();
        let (first, second) = (counts.take(), counts.take());
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
        for failure in
            [AttemptFailure::Slow, AttemptFailure::ConnectSlow, AttemptFailure::Cut, AttemptFailure::Stale]
        {
            counters.failed(&failure);
        }
        let counted: Vec<u64> = counters.failures.iter().map(Counter::value).collect();
        assert_eq!(counted, [0, 2, 1, 0, 0, 0, 0]);
    }
}
