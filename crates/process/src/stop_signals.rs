//! Grouping of stop signals into requests.

use std::time::{Duration, Instant};

use signal_hook::low_level::siginfo::Origin;
use signal_hook::low_level::signal_name;

/// Period in which further signals belong to the same request: systemd signals every process of a service,
/// and shells and process managers send INT and TERM together, or to the process and its group.
const SAME_REQUEST: Duration = Duration::from_secs(1);

/// Returns the log message for a received signal, with the process that sent it if the kernel reports one.
pub fn describe(origin: &Origin) -> String {
    let name = signal_name(origin.signal).unwrap_or("a signal");
    match &origin.process {
        Some(sender) => format!("{name} received from process {} of user {}", sender.pid, sender.uid),
        None => format!("{name} received"),
    }
}

/// Stop signals received so far.
#[derive(Debug, Default)]
pub struct StopSignals {
    /// Time of the last request.
    since: Option<Instant>,
}

impl StopSignals {
    /// Whether a signal that arrives at `now` begins a new request; the second request ends the server at
    /// once.
    pub fn is_request(&mut self, now: Instant) -> bool {
        let is_same = self.since.is_some_and(|since| now.saturating_duration_since(since) < SAME_REQUEST);
        if !is_same {
            self.since = Some(now);
        }
        !is_same
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_within_a_second_are_one_request() {
        let mut signals = StopSignals::default();
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        assert!(signals.is_request(at(0)));
        assert!(!signals.is_request(at(0)) && !signals.is_request(at(999)));
        assert!(signals.is_request(at(1_000)), "those that were ignored do not prolong it");
        assert!(!signals.is_request(at(1_999)) && signals.is_request(at(2_000)));
    }
}
