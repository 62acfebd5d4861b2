//! Rate limit for repeated log lines: the first of a second is written, the others are counted.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::directives::Level;

/// Period for which further lines of a kind are suppressed.
const PERIOD: Duration = Duration::from_secs(1);

/// Kinds of lines that were written within the last second.
#[derive(Default)]
pub(crate) struct LogThrottles(BTreeMap<(Level, String), LogThrottle>);

struct LogThrottle {
    since: Instant,
    suppressed: u64,
}

impl LogThrottles {
    /// Whether a line of this kind is written now; otherwise it is counted.
    pub(crate) fn admit(&mut self, level: Level, kind: String, now: Instant) -> bool {
        let burst = self.0.entry((level, kind));
        let mut first = false;
        let burst = burst.or_insert_with(|| {
            first = true;
            LogThrottle { since: now, suppressed: 0 }
        });
        burst.suppressed += u64::from(!first);
        first
    }

    /// Removes the kinds whose second is over; returns those with suppressed lines, and their number. Call
    /// this before `admit`.
    pub(crate) fn take_expired(&mut self, now: Instant) -> Vec<(Level, String, u64)> {
        let mut over = Vec::new();
        self.0.retain(|(level, kind), burst| {
            let continues = now.duration_since(burst.since) < PERIOD;
            if !continues && burst.suppressed > 0 {
                over.push((*level, kind.clone(), burst.suppressed));
            }
            continues
        });
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_lines_are_limited_to_one_per_second() {
        let mut bursts = LogThrottles::default();
        let began = Instant::now();
        let at = |ms| began + Duration::from_millis(ms);
        let mut admit = |kind: &str, ms| {
            let over = bursts.take_expired(at(ms));
            (
                bursts.admit(Level::Warn, kind.into(), at(ms)),
                over.into_iter().map(|(_, kind, held)| (kind, held)).collect(),
            )
        };
        let none = Vec::<(String, u64)>::new();
        assert_eq!(admit("a", 0), (true, none.clone()));
        for ms in 1..1_000 {
            assert_eq!(admit("a", ms), (false, none.clone()));
        }
        assert_eq!(admit("b", 999), (true, none.clone()), "another kind");
        assert_eq!(admit("a", 1_000), (true, vec![("a".to_owned(), 999)]));
        assert_eq!(admit("b", 5_000), (true, none.clone()), "no line of it was suppressed");
    }

    #[test]
    fn lines_of_different_levels_are_limited_separately() {
        let mut bursts = LogThrottles::default();
        let now = Instant::now();
        assert!(bursts.admit(Level::Warn, "a".into(), now) && bursts.admit(Level::Error, "a".into(), now));
    }
}
