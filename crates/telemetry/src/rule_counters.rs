//! Counters of rules that few routes have. They outlive a reload: one is found again by its labels, which come from the configuration
//! alone.

use std::collections::BTreeMap;
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

/// Counters by family and labels.
type RegisteredCounters = BTreeMap<(&'static str, RuleLabels), Arc<RuleCounter>>;

/// A counter that all cores share.
#[derive(Debug, Default)]
pub struct RuleCounter(AtomicU64);

impl RuleCounter {
    /// Adds to the counter.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }
}

/// All of them. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct RuleCounters(Arc<Mutex<RegisteredCounters>>);

/// A counter as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleCount {
    /// One of [`FAMILIES`].
    pub(crate) family: &'static str,
    pub(crate) labels: RuleLabels,
    pub(crate) count: u64,
}

impl RuleCounters {
    /// The counter of a family with these labels.
    pub fn counter(&self, family: &'static str, labels: RuleLabels) -> Arc<RuleCounter> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry((family, labels)).or_default().clone()
    }

    /// What they have counted.
    pub fn counts(&self) -> Vec<RuleCount> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = |((family, labels), counter): (&(&'static str, RuleLabels), &Arc<RuleCounter>)| {
            RuleCount { family, labels: labels.clone(), count: counter.0.load(Ordering::Relaxed) }
        };
        all.iter().map(count).collect()
    }
}
