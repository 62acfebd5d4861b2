//! The last lines of the error log, kept in memory for the control API.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use serde_json::{Value, json};

/// Number of lines kept.
pub const EVENTS_MAX: usize = 256;
/// Maximum bytes of a line; longer ones are truncated.
const EVENT_BYTES_MAX: usize = 1024;

/// A line of the error log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEvent {
    /// Sequence number, from 1.
    pub number: u64,
    /// Milliseconds since 1970.
    pub(crate) unix_ms: u64,
    /// `error`, `warn`, `info`, or `app` for an application's output.
    pub(crate) level: &'static str,
    /// Text of the line. May contain data sent by clients: escape it for display.
    pub(crate) text: String,
}

impl LogEvent {
    /// The event as an object for the control API.
    pub fn json(&self) -> Value {
        json!({ "number": self.number, "unix_ms": self.unix_ms, "level": self.level, "text": self.text })
    }
}

/// The last [`EVENTS_MAX`] lines. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct EventRing(Arc<RingState>);

#[derive(Debug, Default)]
struct RingState {
    /// Number of the last line.
    last: AtomicU64,
    events: Mutex<VecDeque<LogEvent>>,
}

impl EventRing {
    /// Adds a line; drops the oldest one if the ring is full.
    pub(crate) fn add(&self, level: &'static str, text: &str) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let unix_ms = times::Millis::of(now).0;
        let end = (0..=EVENT_BYTES_MAX.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
        let text = text[..end.unwrap_or(0)].to_owned();
        let mut events = self.0.events.lock().unwrap_or_else(PoisonError::into_inner);
        let number = self.0.last.load(Ordering::Relaxed) + 1;
        if events.len() == EVENTS_MAX {
            events.pop_front();
        }
        events.push_back(LogEvent { number, unix_ms, level, text });
        // A reader that sees this number also finds the line.
        self.0.last.store(number, Ordering::Release);
    }

    /// The number of the last line; 0 for none.
    pub fn last(&self) -> u64 {
        self.0.last.load(Ordering::Acquire)
    }

    /// Returns the kept lines after `number`: the last `count_max` of them, oldest first.
    pub fn after(&self, number: u64, count_max: usize) -> Vec<LogEvent> {
        let events = self.0.events.lock().unwrap_or_else(PoisonError::into_inner);
        let newer = events.iter().filter(|event| event.number > number).count().min(count_max);
        events.iter().skip(events.len() - newer).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latest_events_are_kept_and_numbered() {
        let ring = EventRing::default();
        assert_eq!((ring.last(), ring.after(0, 9)), (0, Vec::new()));
        (0..EVENTS_MAX + 10).for_each(|at| ring.add("warn", &at.to_string()));
        let all = ring.after(0, usize::MAX);
        assert_eq!((all.len(), all[0].number, ring.last()), (EVENTS_MAX, 11, EVENTS_MAX as u64 + 10));
        let last = ring.after(ring.last() - 3, 2);
        assert_eq!(last.iter().map(|event| &*event.text).collect::<Vec<_>>(), ["264", "265"]);
        assert!(ring.after(ring.last(), 9).is_empty());
    }

    #[test]
    fn long_event_is_truncated_at_a_character_boundary() {
        let ring = EventRing::default();
        ring.add("error", &"é".repeat(EVENT_BYTES_MAX));
        ring.add("error", &format!("x{}", "é".repeat(EVENT_BYTES_MAX)));
        let lengths: Vec<usize> = ring.after(0, 2).iter().map(|event| event.text.len()).collect();
        assert_eq!(lengths, [EVENT_BYTES_MAX, EVENT_BYTES_MAX - 1]);
    }
}
