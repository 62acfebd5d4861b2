//! The state of the controller, as `komainu status` and the metrics show it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use telemetry::gauges::KubernetesStatus;

/// State that the controller changes and others read. Clones share it.
#[derive(Clone, Default)]
pub struct SharedStatus(Arc<Mutex<KubernetesStatus>>);

impl SharedStatus {
    /// Returns the present state.
    #[must_use]
    pub fn get(&self) -> KubernetesStatus {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut KubernetesStatus)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Notes that the API server does not answer, for this reason.
    pub(crate) fn note_away(&self, fault: &str) {
        self.change(|status| {
            if status.away_since_unix_s.is_none() {
                status.failures += 1;
                status.away_since_unix_s = Some(now_unix_ms() / 1_000);
            }
            status.fault = Some(fault.to_owned());
        });
    }

    /// Notes that the API server answers.
    pub(crate) fn note_back(&self) {
        self.change(|status| (status.fault, status.away_since_unix_s) = (None, None));
    }
}

/// Returns the milliseconds since 1970.
pub(crate) fn now_unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
