//! Bounded table of keys, shared by all cores. Each key has one number: the time until which it matters.
//!
//! A key is a hash with a secret of the process. It belongs to a group of 15 slots with a lock of its own. An
//! expired key is equivalent to an absent one, so its slot is free. If all slots of a group hold unexpired
//! keys, the one that expires first is evicted: the key that has spent least.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Number of slots of a group.
const SLOTS: usize = 15;
/// Number of groups allocated together.
const GROUPS: usize = 8;

/// Callback with the bytes that a part of the table occupies, before and after a change.
pub type TableAccount = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// A group of slots. Four cache lines, so that no two groups share one.
#[repr(align(64))]
struct KeyGroup(Mutex<KeySlots>);

struct KeySlots {
    /// Key of each slot; 0 if it was never used.
    keys: [u64; SLOTS],
    until_ns: [u64; SLOTS],
}

type Block = [KeyGroup; GROUPS];

/// A bounded table. Memory is allocated on demand.
pub struct KeyTable {
    blocks: Box<[OnceLock<Box<Block>>]>,
    account: TableAccount,
}

/// Result of [`KeyTable::update`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UpdateResult<T> {
    pub(crate) result: T,
    /// Whether an unexpired key was evicted.
    pub(crate) has_evicted: bool,
}

impl KeyTable {
    /// Creates a table for this number of keys. It has at least twice as many slots, so that groups are
    /// rarely full before the table is.
    #[must_use]
    pub fn new(keys: usize, account: TableAccount) -> KeyTable {
        let blocks = keys.saturating_mul(2).div_ceil(SLOTS * GROUPS).next_power_of_two();
        let blocks: Box<[OnceLock<Box<Block>>]> = (0..blocks).map(|_| OnceLock::new()).collect();
        account(0, size_of_val(&*blocks) as u64);
        KeyTable { blocks, account }
    }

    /// Returns the maximum size in bytes.
    #[must_use]
    pub fn bytes_max(&self) -> usize {
        size_of_val(&*self.blocks) + self.blocks.len() * size_of::<Block>()
    }

    /// Returns the current size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let used = self.blocks.iter().filter(|block| block.get().is_some()).count();
        size_of_val(&*self.blocks) + used * size_of::<Block>()
    }

    fn group(&self, key: u64) -> &KeyGroup {
        // The number of blocks is a power of two.
        let at = key as usize & (self.blocks.len() - 1);
        let block = self.blocks[at].get_or_init(|| {
            (self.account)(0, size_of::<Block>() as u64);
            Box::new(std::array::from_fn(|_| {
                KeyGroup(Mutex::new(KeySlots { keys: [0; SLOTS], until_ns: [0; SLOTS] }))
            }))
        });
        &block[(key >> 61) as usize]
    }

    /// Changes the time of a key atomically. `change` gets the time, 0 for an absent key, and returns the new
    /// time and a result. A new time in the past is not stored for an absent key.
    pub(crate) fn update<T>(
        &self,
        key: u64,
        now_ns: u64,
        change: impl FnOnce(u64) -> (u64, T),
    ) -> UpdateResult<T> {
        let key = key.max(1);
        let mut places = self.group(key).0.lock().unwrap_or_else(PoisonError::into_inner);
        let KeySlots { keys, until_ns } = &mut *places;
        if let Some(at) = keys.iter().position(|other| *other == key) {
            let (after_ns, result) = change(until_ns[at]);
            until_ns[at] = after_ns;
            return UpdateResult { result, has_evicted: false };
        }
        let (after_ns, result) = change(0);
        if after_ns <= now_ns {
            return UpdateResult { result, has_evicted: false };
        }
        let first = (0..SLOTS).min_by_key(|at| until_ns[*at]).unwrap_or(0);
        let has_forgotten = until_ns[first] > now_ns;
        (keys[first], until_ns[first]) = (key, after_ns);
        UpdateResult { result, has_evicted: has_forgotten }
    }
}

impl Drop for KeyTable {
    fn drop(&mut self) {
        (self.account)(self.bytes() as u64, 0);
    }
}

impl fmt::Debug for KeyTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyTable").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher, RandomState};
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;

    fn table(keys: usize) -> (KeyTable, Arc<AtomicI64>) {
        let held = Arc::new(AtomicI64::new(0));
        let theirs = held.clone();
        let account = move |before: u64, after: u64| {
            theirs.fetch_add(after.cast_signed() - before.cast_signed(), Ordering::Relaxed);
        };
        (KeyTable::new(keys, Arc::new(account)), held)
    }

    fn set(table: &KeyTable, key: u64, now_ns: u64, until_ns: u64) -> bool {
        table.update(key, now_ns, |_| (until_ns, ())).has_evicted
    }

    fn get(table: &KeyTable, key: u64) -> u64 {
        table.update(key, u64::MAX, |until_ns| (until_ns, until_ns)).result
    }

    #[test]
    fn table_remembers_100000_keys_in_a_few_megabytes() {
        let (table, held) = table(100_000);
        assert!(table.bytes_max() < 5 << 20, "{}", table.bytes_max());
        assert_eq!(held.load(Ordering::Relaxed), table.bytes() as i64);
        let hasher = RandomState::new();
        let keys: Vec<u64> = (0..100_000_u64).map(|key| hasher.hash_one(key)).collect();
        let forgotten = keys.iter().filter(|key| set(&table, **key, 10, 20 + **key % 100)).count();
        // Hashes are not distributed evenly, so a few groups are full.
        assert!(forgotten < 500, "{forgotten}");
        let known = keys.iter().filter(|key| get(&table, **key) == 20 + **key % 100).count();
        assert!(known >= keys.len() - forgotten, "{known} and {forgotten}");
        assert_eq!(held.load(Ordering::Relaxed), table.bytes() as i64);
        drop(table);
        assert_eq!(held.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn new_keys_do_not_evict_limited_keys_from_a_full_table() {
        let (table, held) = table(10_000);
        let hasher = RandomState::new();
        // Ten clients that have spent their bursts, and a million that send one request each meanwhile.
        let limited: Vec<u64> = (0..10_u64).map(|key| hasher.hash_one(key)).collect();
        limited.iter().for_each(|key| assert!(!set(&table, *key, 0, 1_000)));
        let mut forgotten = 0;
        for key in 10..1_000_010_u64 {
            forgotten += usize::from(set(&table, hasher.hash_one(key), 5, 15));
        }
        assert!(forgotten > 900_000, "{forgotten}");
        assert!(table.bytes() <= table.bytes_max() && table.bytes_max() < 1 << 20);
        assert_eq!(held.load(Ordering::Relaxed), table.bytes() as i64);
        assert!(limited.iter().all(|key| get(&table, *key) == 1_000));
        // Once the old keys have expired, no unexpired key is evicted.
        assert!((0..1_000_u64).all(|key| !set(&table, hasher.hash_one(key), 2_000, 2_010)));
    }

    #[test]
    fn few_keys_take_little_memory() {
        let (table, _) = table(100_000);
        let before = table.bytes();
        (1..=10).for_each(|key: u64| assert!(!set(&table, key << 32 | key, 0, 1)));
        assert!(table.bytes() - before <= 10 * size_of::<Block>(), "{}", table.bytes());
        // A time in the past occupies no slot.
        assert!(!set(&table, 77, 10, 10));
        assert_eq!(get(&table, 77), 0);
    }

    #[test]
    fn table_accepts_the_key_zero() {
        let (table, _) = table(1);
        set(&table, 0, 0, 5);
        assert_eq!(get(&table, 0), 5);
    }
}
