//! Connections of one core that hold much memory. While memory stays critically short, the largest is closed.
//!
//! The progress timeout disconnects clients that read nothing, but a client that sends slowly restarts its
//! timeouts with each byte. Without this limit, a few such clients could hold the memory that other requests
//! need for an unlimited time.

use std::cell::Cell;
use std::rc::Rc;

use crate::slab::ConnectionSlab;
use crate::source::Source;

/// Connections that hold less are not listed.
pub(crate) const HEAVY_BYTES: usize = 64 * 1024;
/// Time for which memory must be critically short before a connection is closed.
const CRITICAL_MS_MAX: u64 = 5_000;
/// [`CRITICAL_MS_MAX`] if another connection was closed within [`RECENT_MS`].
const CRITICAL_MS_MAX_RECENT: u64 = 300;
/// Time after a close during which the shorter patience applies.
const RECENT_MS: u64 = 60_000;

/// The connections of one core that hold at least [`HEAVY_BYTES`].
#[derive(Debug, Default)]
pub(crate) struct HeavyConnections {
    connections: ConnectionSlab<HeavyConnection>,
    /// Time since which memory is critically short.
    critical_since_ms: Cell<Option<u64>>,
    closed_at_ms: Cell<Option<u64>>,
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
    pub(crate) fn connection_to_close(&self, is_critical: bool, now_ms: u64) -> Option<Rc<Source>> {
        if !is_critical {
            self.critical_since_ms.set(None);
            return None;
        }
        let since_ms = self.critical_since_ms.get().unwrap_or(now_ms);
        self.critical_since_ms.set(Some(since_ms));
        let is_recent = self.closed_at_ms.get().is_some_and(|at_ms| now_ms < at_ms + RECENT_MS);
        let patience_ms = if is_recent { CRITICAL_MS_MAX_RECENT } else { CRITICAL_MS_MAX };
        if now_ms < since_ms + patience_ms {
            return None;
        }
        let places = self.connections.0.borrow();
        let still_open = places.entries.iter().flatten().filter(|one| !one.source.is_aborted());
        let heaviest = still_open.max_by_key(|one| one.bytes)?.source.clone();
        self.closed_at_ms.set(Some(now_ms));
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
        let due =
            |is_critical, now_ms| heavy.connection_to_close(is_critical, now_ms).map(|source| source.token);
        assert_eq!(due(false, 0), None);
        assert_eq!(due(true, 1_000), None);
        assert_eq!(due(true, 5_999), None);
        assert_eq!(due(true, 6_000), Some(1));
        // An aborted connection releases its memory when its task runs.
        sources[1].abort();
        assert_eq!(due(true, 6_100), Some(2));
        weigh(1, 0);
        weigh(2, 0);
        // Memory is short again soon afterwards.
        assert_eq!(due(false, 6_200), None);
        assert_eq!((due(true, 7_000), due(true, 7_300)), (None, Some(0)));
        assert_eq!(due(false, 100_000), None);
        assert_eq!((due(true, 100_100), due(true, 100_500)), (None, None));
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
