//! Counters of rules that few routes have. They survive a reload, because they are identified by their
//! labels, which come from the configuration only.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Metric families and their help texts.
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

/// Label names and values.
pub(crate) type RuleLabels = Vec<(&'static str, String)>;

/// Counters by family and labels.
type RegisteredCounters = BTreeMap<(&'static str, RuleLabels), Arc<RuleCounter>>;

/// A counter shared by all cores.
#[derive(Debug, Default)]
pub struct RuleCounter(AtomicU64);

impl RuleCounter {
    /// Adds to the counter.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }
}

/// The registry of rule counters. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct RuleCounters(Arc<Mutex<RegisteredCounters>>);

/// Current value of a counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleCount {
    /// Family name, from [`FAMILIES`].
    pub(crate) family: &'static str,
    pub(crate) labels: RuleLabels,
    pub(crate) count: u64,
}

impl RuleCounters {
    /// Returns the counter of a family with these labels, created if necessary.
    pub fn counter(&self, family: &'static str, labels: RuleLabels) -> Arc<RuleCounter> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry((family, labels)).or_default().clone()
    }

    /// Current values of all counters.
    pub fn counts(&self) -> Vec<RuleCount> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = |((family, labels), counter): (&(&'static str, RuleLabels), &Arc<RuleCounter>)| {
            RuleCount { family, labels: labels.clone(), count: counter.0.load(Ordering::Relaxed) }
        };
        all.iter().map(count).collect()
    }
}
