//! Cache of recent results, limited in entries and bytes.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::table::TableAccount;

/// Digest that identifies a result.
pub type ExpiringCacheKey = [u8; 32];

/// Overhead of an entry in bytes: the key twice, and its slots in the tables.
const ENTRY_BYTES: usize = 128;

/// Results that are kept until they expire, by a clock whose points are `T`. Without room, the oldest are evicted.
pub struct ExpiringCache<V, T> {
    state: Mutex<ExpiringCacheState<V, T>>,
    entries_max: usize,
    bytes_max: usize,
    account: TableAccount,
}

struct ExpiringCacheState<V, T> {
    entries: HashMap<ExpiringCacheKey, ExpiringCacheEntry<V, T>>,
    /// Keys in order of insertion.
    order: VecDeque<ExpiringCacheKey>,
    bytes: usize,
}

struct ExpiringCacheEntry<V, T> {
    value: V,
    bytes: usize,
    until: T,
}

impl<V: Clone, T: Copy + Ord> ExpiringCache<V, T> {
    /// Creates an empty cache with these limits. `account` is called on each change of the bytes held.
    #[must_use]
    pub fn new(entries_max: usize, bytes_max: usize, account: TableAccount) -> ExpiringCache<V, T> {
        let state = ExpiringCacheState { entries: HashMap::new(), order: VecDeque::new(), bytes: 0 };
        ExpiringCache { state: Mutex::new(state), entries_max, bytes_max, account }
    }

    /// Returns the value of a key unless it has expired.
    #[must_use]
    pub fn find(&self, key: &ExpiringCacheKey, now: T) -> Option<V> {
        let state = self.lock();
        let entry = state.entries.get(key).filter(|entry| entry.until > now)?;
        Some(entry.value.clone())
    }

    /// Stores a value of this size until `until`, replacing that of the key.
    pub fn insert(&self, key: ExpiringCacheKey, value: V, bytes: usize, until: T) {
        let bytes = bytes + ENTRY_BYTES;
        if bytes > self.bytes_max {
            return;
        }
        let mut state = self.lock();
        let before = state.bytes;
        match state.entries.insert(key, ExpiringCacheEntry { value, bytes, until }) {
            Some(old) => state.bytes -= old.bytes,
            None => state.order.push_back(key),
        }
        state.bytes += bytes;
        while state.entries.len() > self.entries_max || state.bytes > self.bytes_max {
            let Some(oldest) = state.order.pop_front() else { break };
            if let Some(left) = state.entries.remove(&oldest) {
                state.bytes -= left.bytes;
            }
        }
        (self.account)(before as u64, state.bytes as u64);
    }

    /// Removes all entries.
    pub fn clear(&self) {
        let mut state = self.lock();
        (self.account)(state.bytes as u64, 0);
        *state = ExpiringCacheState { entries: HashMap::new(), order: VecDeque::new(), bytes: 0 };
    }

    /// Returns the bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.lock().bytes
    }

    fn lock(&self) -> MutexGuard<'_, ExpiringCacheState<V, T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<V, T> fmt::Debug for ExpiringCache<V, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remembered").field("entries_max", &self.entries_max).finish_non_exhaustive()
    }
}

impl<V, T> Drop for ExpiringCache<V, T> {
    fn drop(&mut self) {
        let bytes = self.state.get_mut().unwrap_or_else(PoisonError::into_inner).bytes;
        (self.account)(bytes as u64, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;

    fn key(number: u32) -> ExpiringCacheKey {
        let mut key = [0; 32];
        key[..4].copy_from_slice(&number.to_le_bytes());
        key
    }

    #[test]
    fn cached_results_are_found_until_they_expire() {
        let known = ExpiringCache::new(10, 10_000, Arc::new(|_, _| {}));
        known.insert(key(1), "a", 1, 20);
        assert_eq!(
            (known.find(&key(1), 19), known.find(&key(1), 20), known.find(&key(2), 0)),
            (Some("a"), None, None)
        );
        known.insert(key(1), "b", 1, 40);
        assert_eq!(known.find(&key(1), 39), Some("b"));
        known.clear();
        assert_eq!((known.find(&key(1), 0), known.bytes()), (None, 0));
    }

    #[test]
    fn result_cache_stays_within_its_limits() {
        let held = Arc::new(AtomicI64::new(0));
        let counted = held.clone();
        let count = move |before: u64, after: u64| {
            counted.fetch_add(after as i64 - before as i64, Ordering::Relaxed);
        };
        let known = ExpiringCache::new(1_000, 1_000_000, Arc::new(count));
        for number in 0..1_000_000 {
            known.insert(key(number), number, if number % 2 == 0 { 10 } else { 5_000 }, 10);
            if number % 100_000 == 0 {
                assert!(known.bytes() <= 1_000_000 && held.load(Ordering::Relaxed) == known.bytes() as i64);
            }
        }
        assert!(known.bytes() <= 1_000_000 && known.bytes() > 900_000);
        assert_eq!((known.find(&key(999_999), 0), known.find(&key(0), 0)), (Some(999_999), None));
        known.insert(key(0), 0, 2_000_000, 10);
        assert_eq!(known.find(&key(0), 0), None);
        drop(known);
        assert_eq!(held.load(Ordering::Relaxed), 0);
    }
}
