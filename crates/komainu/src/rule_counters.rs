//! Counters of rules that few routes have. They outlive a reload: one is found again by its labels, which come from the configuration
//! alone.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The families, each with its help.
pub(crate) const FAMILIES: [(&str, &str); 5] = [
    (
        "komainu_mirror_requests",
        "Copies of requests that `mirror` has sent, that failed or were dropped, and requests too long for one.",
    ),
    ("komainu_faults_injected", "Requests to which `fault` did something."),
    ("komainu_maintenance_responses", "Requests that `maintenance` has answered."),
    ("komainu_crawlers_refused", "Requests that `crawlers` has refused, by reason."),
    ("komainu_queue_shed", "Requests that the `queue` of a route has refused, by reason."),
];

/// Labels with their values.
pub(crate) type RuleLabels = Vec<(&'static str, String)>;

/// A counter, with its family and its labels.
type RegisteredCounter = (&'static str, RuleLabels, Arc<RuleCounter>);

/// A counter that all cores share.
#[derive(Debug, Default)]
pub(crate) struct RuleCounter(AtomicU64);

impl RuleCounter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }
}

/// All of them. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct RuleCounters(Arc<Mutex<Vec<RegisteredCounter>>>);

/// A counter as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RuleCount {
    /// One of [`FAMILIES`].
    pub(crate) family: &'static str,
    pub(crate) labels: RuleLabels,
    pub(crate) count: u64,
}

impl RuleCounters {
    /// The counter of a family with these labels.
    pub(crate) fn counter(&self, family: &'static str, labels: RuleLabels) -> Arc<RuleCounter> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((.., counter)) = all.iter().find(|(name, own, _)| *name == family && *own == labels) {
            return counter.clone();
        }
        let counter = Arc::new(RuleCounter::default());
        all.push((family, labels, counter.clone()));
        counter
    }

    /// What they have counted.
    pub(crate) fn counts(&self) -> Vec<RuleCount> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = |(family, labels, counter): &RegisteredCounter| RuleCount {
            family,
            labels: labels.clone(),
            count: counter.0.load(Ordering::Relaxed),
        };
        all.iter().map(count).collect()
    }
}
