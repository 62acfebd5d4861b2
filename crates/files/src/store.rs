//! Bounded cache from paths to values.

use std::collections::HashMap;
use std::rc::Rc;

use times::Moment;

/// Map from paths to values, bounded in number and bytes. If full, the least recently used of a few
/// neighbouring slots is evicted: nearly as good as exact LRU, and a hit only stores the time.
#[derive(Debug)]
pub struct Store<V> {
    entries_max: usize,
    bytes_max: u64,
    bytes: u64,
    slot_by_path: HashMap<Rc<[u8]>, usize>,
    slots: Vec<CacheSlot<V>>,
    /// Slot at which the next search for an eviction candidate begins.
    next_slot: usize,
}

#[derive(Debug)]
struct CacheSlot<V> {
    path: Rc<[u8]>,
    value: Rc<V>,
    bytes: u64,
    used_at: Moment,
}

/// Number of neighbouring slots that are compared for an eviction.
const COMPARED_SLOTS: usize = 8;

impl<V> Store<V> {
    /// Creates an empty store. With `entries_max` 0 it stays empty.
    #[must_use]
    pub fn new(entries_max: usize, bytes_max: u64) -> Store<V> {
        Store {
            entries_max,
            bytes_max,
            bytes: 0,
            slot_by_path: HashMap::new(),
            slots: Vec::new(),
            next_slot: 0,
        }
    }

    /// Returns the value at `path` and marks it as used.
    pub fn find(&mut self, path: &[u8], now: Moment) -> Option<Rc<V>> {
        let slot = &mut self.slots[*self.slot_by_path.get(path)?];
        slot.used_at = now;
        Some(slot.value.clone())
    }

    /// Stores a value at `path`, replacing the old one, and evicts others if necessary. A value larger than
    /// the entire store is not stored.
    pub fn insert(&mut self, path: &[u8], value: Rc<V>, bytes: u64, now: Moment) {
        self.remove(path);
        if self.entries_max == 0 || bytes > self.bytes_max {
            return;
        }
        while self.slots.len() >= self.entries_max {
            self.evict(None);
        }
        let path: Rc<[u8]> = path.into();
        self.slot_by_path.insert(path.clone(), self.slots.len());
        self.slots.push(CacheSlot { path, value, bytes: 0, used_at: now });
        let at = self.slots.len() - 1;
        self.charge(at, bytes);
    }

    /// Records that the value at `path` has grown by `bytes`. Evicts other values, or this one if it no
    /// longer fits.
    pub fn grow(&mut self, path: &[u8], bytes: u64) {
        if let Some(&at) = self.slot_by_path.get(path) {
            self.charge(at, bytes);
        }
    }

    /// Removes the value at `path`.
    pub fn remove(&mut self, path: &[u8]) {
        if let Some(&at) = self.slot_by_path.get(path) {
            self.drop_slot(at);
        }
    }

    /// Removes values that have not been used since `before`. Each call checks only a few slots; repeated
    /// calls check all of them.
    pub fn drop_unused(&mut self, before: Moment) {
        for _ in 0..COMPARED_SLOTS.min(self.slots.len()) {
            self.next_slot = (self.next_slot + 1) % self.slots.len();
            if self.slots[self.next_slot].used_at < before {
                self.drop_slot(self.next_slot);
                if self.slots.is_empty() {
                    return;
                }
            }
        }
    }

    /// Removes all values.
    pub fn clear(&mut self) {
        self.slot_by_path.clear();
        self.slots.clear();
        (self.bytes, self.next_slot) = (0, 0);
    }

    fn charge(&mut self, at: usize, bytes: u64) {
        let slot = &mut self.slots[at];
        if slot.bytes + bytes > self.bytes_max {
            self.drop_slot(at);
            return;
        }
        slot.bytes += bytes;
        self.bytes += bytes;
        let path = slot.path.clone();
        // Terminates at the latest when this slot is the only one left, because its value fits.
        while self.bytes > self.bytes_max {
            self.evict(Some(&path));
        }
    }

    /// Evicts the least recently used of some neighbouring slots, but not `spared`.
    fn evict(&mut self, spared: Option<&Rc<[u8]>>) {
        let len = self.slots.len();
        let oldest = (self.next_slot..self.next_slot + COMPARED_SLOTS.min(len) + 1)
            .map(|at| at % len)
            .filter(|&at| spared.is_none_or(|spared| !Rc::ptr_eq(spared, &self.slots[at].path)))
            .min_by_key(|&at| self.slots[at].used_at)
            .expect("two neighbours, one of them not spared; or none is");
        self.next_slot = (self.next_slot + COMPARED_SLOTS) % len;
        self.drop_slot(oldest);
    }

    fn drop_slot(&mut self, at: usize) {
        let slot = self.slots.swap_remove(at);
        self.slot_by_path.remove(&slot.path);
        self.bytes -= slot.bytes;
        if let Some(moved) = self.slots.get(at) {
            self.slot_by_path.insert(moved.path.clone(), at);
        }
        if self.next_slot >= self.slots.len() {
            self.next_slot = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use times::Millis;

    use super::*;

    fn check<V>(store: &Store<V>) {
        assert!(store.bytes <= store.bytes_max && store.slots.len() <= store.entries_max);
        assert_eq!(store.bytes, store.slots.iter().map(|slot| slot.bytes).sum::<u64>());
        assert_eq!(store.slot_by_path.len(), store.slots.len());
        for (at, slot) in store.slots.iter().enumerate() {
            assert_eq!(store.slot_by_path[&slot.path], at);
        }
    }

    #[test]
    fn least_recently_used_entry_is_evicted() {
        let mut store = Store::new(3, 100);
        for (step, path) in ["a", "b", "c"].into_iter().enumerate() {
            store.insert(path.as_bytes(), Rc::new(path), 10, Moment(step as u64));
        }
        assert_eq!(store.find(b"a", Moment(10)).as_deref(), Some(&"a"));
        store.insert(b"d", Rc::new("d"), 10, Moment(11));
        assert!(store.find(b"b", Moment(12)).is_none());
        // Too large for the remaining space: `c` and `a` are evicted, in the order of their use.
        store.insert(b"e", Rc::new("e"), 85, Moment(13));
        assert!(store.find(b"c", Moment(14)).is_none() && store.find(b"a", Moment(14)).is_none());
        assert!(store.find(b"d", Moment(14)).is_some() && store.find(b"e", Moment(14)).is_some());
        store.insert(b"f", Rc::new("f"), 101, Moment(15));
        assert!(store.find(b"f", Moment(16)).is_none() && store.find(b"e", Moment(16)).is_some());
        check(&store);
    }

    #[test]
    fn growing_entry_evicts_others() {
        let mut store = Store::new(3, 100);
        store.insert(b"a", Rc::new(()), 40, Moment::ZERO);
        store.insert(b"b", Rc::new(()), 40, Moment(1));
        store.insert(b"c", Rc::new(()), 5, Moment(2));
        store.grow(b"b", 50);
        assert!(store.find(b"a", Moment(3)).is_none() && store.find(b"b", Moment(3)).is_some());
        store.grow(b"b", 50);
        assert!(store.find(b"b", Moment(4)).is_none() && store.find(b"c", Moment(4)).is_some());
        store.grow(b"b", 50);
        check(&store);
    }

    #[test]
    fn unused_entries_are_dropped_over_time() {
        let mut store = Store::new(100, 1000);
        for at in 0..50u64 {
            store.insert(format!("{at}").as_bytes(), Rc::new(at), 1, Moment(at));
        }
        for _ in 0..50 {
            store.drop_unused(Moment(40));
        }
        assert_eq!(store.slots.len(), 10);
        check(&store);
        for _ in 0..10 {
            store.drop_unused(Moment::NEVER);
        }
        assert!(store.slots.is_empty());
        store.drop_unused(Moment::NEVER);
    }

    #[test]
    fn store_without_capacity_keeps_nothing() {
        let mut store = Store::new(0, 100);
        store.insert(b"a", Rc::new(()), 1, Moment::ZERO);
        assert!(store.find(b"a", Moment::ZERO).is_none());
    }

    /// Invariant: after every operation the bounds hold and the counts are correct.
    #[test]
    fn store_limits_hold_after_every_operation() {
        let mut store = Store::new(20, 500);
        let mut rng = fastrand::Rng::with_seed(3);
        for now in (0..20_000).map(Moment) {
            let mut random = |below: u64| rng.u64(..below);
            let path = format!("{}", random(60));
            match random(10) {
                0..4 => store.insert(path.as_bytes(), Rc::new(()), random(60), now),
                4..8 => _ = store.find(path.as_bytes(), now),
                8 => store.grow(path.as_bytes(), random(100)),
                _ => match random(3) {
                    0 => store.remove(path.as_bytes()),
                    1 => store.drop_unused(now - Millis(40)),
                    _ => {}
                },
            }
            check(&store);
        }
    }
}
