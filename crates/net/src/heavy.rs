//! Connections of one core that hold much memory. While memory stays critically short, the largest is closed.
//!
//! The progress timeout disconnects clients that read nothing, but a client that sends slowly restarts its
//! timeouts with each byte. Without this limit, a few such clients could hold the memory that other requests
//! need for an unlimited time.

use std::cell::Cell;
use std::rc::Rc;

use times::{Millis, Moment};

use crate::slab::ConnectionSlab;
use crate::source::Source;

/// Connections that hold less are not listed.
pub(crate) const HEAVY_BYTES: usize = 64 * 1024;
/// Time for which memory must be critically short before a connection is closed.
const CRITICAL_TIME_MAX: Millis = Millis(5_000);
/// [`CRITICAL_TIME_MAX`] if another connection was closed within [`RECENT_TIME`].
const CRITICAL_TIME_MAX_RECENT: Millis = Millis(300);
/// Time after a close during which [`CRITICAL_TIME_MAX_RECENT`] applies.
const RECENT_TIME: Millis = Millis(60_000);

/// The connections of one core that hold at least [`HEAVY_BYTES`].
#[derive(Debug, Default)]
pub(crate) struct HeavyConnections {
    connections: ConnectionSlab<HeavyConnection>,
    /// Time since which memory is critically short.
    critical_since: Cell<Option<Moment>>,
    closed_at: Cell<Option<Moment>>,
}

#[derive(Debug)]
struct HeavyConnection {
    bytes: usize,
    source: Rc<Source>,
}

impl HeavyConnections {
    /// Updates the memory of a connection; `place` is its index in the list.
    pub(crate) fn update(&self, place: &Cell<Option<u32>>, source: &Rc<Source>, bytes: usize) {
        match place.get() {
            Some(at) if bytes < HEAVY_BYTES => {
                self.connections.remove(at);
                place.set(None);
            }
            Some(at) => self.connections.change(at, |one| one.bytes = bytes),
            None if bytes < HEAVY_BYTES => {}
            None => place.set(Some(self.connections.add(HeavyConnection { bytes, source: source.clone() }))),
        }
    }

    /// Returns the connection to close, if memory has been critically short for long enough.
    pub(crate) fn connection_to_close(&self, is_critical: bool, now: Moment) -> Option<Rc<Source>> {
        if !is_critical {
            self.critical_since.set(None);
            return None;
        }
        let since = self.critical_since.get().unwrap_or(now);
        self.critical_since.set(Some(since));
        let is_recent = self.closed_at.get().is_some_and(|at_ms| now < at_ms + RECENT_TIME);
        let patience = if is_recent { CRITICAL_TIME_MAX_RECENT } else { CRITICAL_TIME_MAX };
        if now < since + patience {
            return None;
        }
        let places = self.connections.0.borrow();
        let still_open = places.entries.iter().flatten().filter(|one| !one.source.is_aborted());
        let heaviest = still_open.max_by_key(|one| one.bytes)?.source.clone();
        self.closed_at.set(Some(now));
        Some(heaviest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heaviest_connection_is_closed_under_lasting_memory_pressure() {
        let heavy = HeavyConnections::default();
        let sources: Vec<_> = (0..3).map(|token| Rc::new(Source::new(token))).collect();
        let places: Vec<_> = sources.iter().map(|_| Cell::new(None)).collect();
        let weigh = |at: usize, bytes: usize| heavy.update(&places[at], &sources[at], bytes);
        weigh(0, HEAVY_BYTES);
        weigh(1, 3 * HEAVY_BYTES);
        weigh(2, 2 * HEAVY_BYTES);
        let due = |is_critical, now| heavy.connection_to_close(is_critical, now).map(|source| source.token);
        assert_eq!(due(false, Moment::ZERO), None);
        assert_eq!(due(true, Moment(1_000)), None);
        assert_eq!(due(true, Moment(5_999)), None);
        assert_eq!(due(true, Moment(6_000)), Some(1));
        // An aborted connection releases its memory when its task runs.
        sources[1].abort();
        assert_eq!(due(true, Moment(6_100)), Some(2));
        weigh(1, 0);
        weigh(2, 0);
        // Memory is short again soon afterwards.
        assert_eq!(due(false, Moment(6_200)), None);
        assert_eq!((due(true, Moment(7_000)), due(true, Moment(7_300))), (None, Some(0)));
        assert_eq!(due(false, Moment(100_000)), None);
        assert_eq!((due(true, Moment(100_100)), due(true, Moment(100_500))), (None, None));
    }

    #[test]
    fn freed_slots_are_reused_and_released() {
        let heavy = HeavyConnections::default();
        let sources: Vec<_> = (0..1_000).map(|token| Rc::new(Source::new(token))).collect();
        let places: Vec<_> = sources.iter().map(|_| Cell::new(None)).collect();
        for _ in 0..3 {
            for (source, place) in sources.iter().zip(&places) {
                heavy.update(place, source, HEAVY_BYTES);
                heavy.update(place, source, HEAVY_BYTES + 1);
            }
            assert_eq!(heavy.connections.0.borrow().entries.len(), 1_000);
            for (source, place) in sources.iter().zip(&places) {
                heavy.update(place, source, 100);
                heavy.update(place, source, 0);
            }
            assert!(heavy.connections.0.borrow().entries.is_empty());
            assert!(places.iter().all(|place| place.get().is_none()));
        }
    }
}
