//! Recent outcomes of responses, for `komainu cache why`: a table of fixed size with one slot per URL hash.

use std::sync::{Mutex, PoisonError};

use crate::key::url;
use crate::not_stored::NotStored;
use crate::tags::{LabelKind, label};

/// Number of slots; a newer URL replaces an older one in the same slot.
const SLOTS: usize = 4096;

/// Outcome of the last response of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The response was stored.
    Stored,
    /// The response was not stored.
    Refused(NotStored),
    /// The response was incomplete or missing.
    Incomplete,
    /// The stored response was purged.
    Purged,
    /// The stored response was invalidated by an unsafe request to its URL.
    Invalidated,
}

#[derive(Clone, Copy, Debug)]
struct OutcomeSlot {
    url: u64,
    outcome: Outcome,
    at_s: u64,
}

/// Last outcomes of recent URLs.
#[derive(Debug)]
pub(crate) struct Outcomes(Mutex<Box<[Option<OutcomeSlot>]>>);

impl Outcomes {
    pub(crate) fn new() -> Outcomes {
        Outcomes(Mutex::new(vec![None; SLOTS].into()))
    }

    /// Records the outcome of a response with this key, at `at_s` in seconds since 1970.
    pub(crate) fn record(&self, key: &[u8], outcome: Outcome, at_s: u64) {
        let url = label(LabelKind::Url, url(key));
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        slots[url as usize % SLOTS] = Some(OutcomeSlot { url, outcome, at_s });
    }

    /// Returns the last outcome for the key and its time.
    pub(crate) fn last(&self, key: &[u8]) -> Option<(Outcome, u64)> {
        let url = label(LabelKind::Url, url(key));
        let slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        slots[url as usize % SLOTS].filter(|slot| slot.url == url).map(|slot| (slot.outcome, slot.at_s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latest_outcome_is_found_and_memory_is_bounded() {
        let outcomes = Outcomes::new();
        let refused = Outcome::Refused(NotStored::Private);
        outcomes.record(b"http://a/", Outcome::Stored, 1);
        outcomes.record(b"http://a/ variation", refused, 2);
        assert_eq!(outcomes.last(b"http://a/"), Some((refused, 2)));
        assert_eq!(outcomes.last(b"http://a/x"), None);
        for n in 0..10 * SLOTS {
            outcomes.record(format!("http://b/{n}").as_bytes(), Outcome::Stored, 3);
        }
        let remembered =
            (0..10 * SLOTS).filter(|n| outcomes.last(format!("http://b/{n}").as_bytes()).is_some());
        assert!(remembered.count() <= SLOTS);
        assert_eq!(outcomes.last(b"http://a/"), None, "a newer one has taken its place");
    }
}
