//! Limit on concurrent requests or connections of each key.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::limiter::KeyHasher;
use crate::table::TableAccount;

/// Number of parts of the table, each with its own lock.
const SHARDS: usize = 64;
/// Bytes of a key with its count, including one control byte of the map.
const ENTRY_BYTES: usize = size_of::<(u64, u32)>() + 1;

/// Concurrency limit, shared by all cores. Only keys in use are stored, so memory follows their number.
#[derive(Debug)]
pub struct ConcurrencyLimiter {
    max: AtomicU32,
    /// Maximum keys of each part.
    keys_max: usize,
    shards: Box<[Mutex<CountedKeys>]>,
    secret: RandomState,
    account: ConcurrencyAccount,
    /// Number of refused requests, including those that a dry run would have refused.
    pub refused: AtomicU64,
    /// Number of uncounted requests, because the table was full.
    pub uncounted: AtomicU64,
}

/// A place under the limit; dropping it releases the place.
#[derive(Debug)]
pub struct ConcurrencyPermit {
    limiter: Arc<ConcurrencyLimiter>,
    key: u64,
}

/// Error: the key has reached its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitReached;

/// Keys of one part.
#[derive(Debug, Default)]
struct CountedKeys {
    counts: HashMap<u64, u32>,
    /// Accounted bytes.
    bytes: usize,
}

struct ConcurrencyAccount(TableAccount);

impl std::fmt::Debug for ConcurrencyAccount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ConcurrencyAccount")
    }
}

impl ConcurrencyLimiter {
    /// Creates a limit of `max` for each key (0: none) that counts about `keys_max` keys at most; further
    /// ones pass uncounted. `account` is called with the memory of the table.
    #[must_use]
    pub fn new(max: u32, keys_max: usize, account: TableAccount) -> ConcurrencyLimiter {
        ConcurrencyLimiter {
            max: AtomicU32::new(max),
            // Extra room, because keys are not distributed evenly.
            keys_max: (keys_max + keys_max / 4).div_ceil(SHARDS),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            secret: RandomState::new(),
            account: ConcurrencyAccount(account),
            refused: AtomicU64::new(0),
            uncounted: AtomicU64::new(0),
        }
    }

    /// Returns the limit of each key; 0: none, which the caller checks before [`ConcurrencyLimiter::acquire`].
    #[must_use]
    pub fn max(&self) -> u32 {
        self.max.load(Ordering::Relaxed)
    }

    /// Sets the limit. Places in use remain, even if they exceed it.
    pub fn set_max(&self, max: u32) {
        self.max.store(max, Ordering::Relaxed);
    }

    /// Starts hashing a key.
    #[must_use]
    pub fn hasher(&self) -> KeyHasher {
        KeyHasher::of(self.secret.build_hasher())
    }

    /// Takes a place; `None` if there is no room to count the key. With `is_dry` a refusal is only counted
    /// and a place is returned.
    ///
    /// # Errors
    /// [`LimitReached`]; the refusal is counted.
    pub fn acquire(
        self: &Arc<Self>,
        key: u64,
        is_dry: bool,
    ) -> Result<Option<ConcurrencyPermit>, LimitReached> {
        let max = self.max();
        let mut part = self.shard(key);
        if let Some(count) = part.counts.get_mut(&key) {
            if *count >= max {
                self.refused.fetch_add(1, Ordering::Relaxed);
                if !is_dry {
                    return Err(LimitReached);
                }
            }
            *count += 1;
        } else if part.counts.len() >= self.keys_max {
            self.uncounted.fetch_add(1, Ordering::Relaxed);
            return Ok(None);
        } else {
            part.counts.insert(key, 1);
            // Slots of removed keys may not be part of the reported capacity.
            let bytes = part.bytes_now().max(part.bytes);
            self.account(&mut part, bytes);
        }
        Ok(Some(ConcurrencyPermit { limiter: self.clone(), key }))
    }

    /// Whether a key has reached its limit.
    #[must_use]
    pub fn is_full(&self, key: u64) -> bool {
        self.count(key) >= self.max()
    }

    /// Returns the number of places that a key uses.
    #[must_use]
    pub fn count(&self, key: u64) -> u32 {
        self.shard(key).counts.get(&key).copied().unwrap_or(0)
    }

    /// Returns the bytes of the table.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.shards.iter().map(|part| lock(part).bytes).sum()
    }

    fn shard(&self, key: u64) -> MutexGuard<'_, CountedKeys> {
        lock(&self.shards[(key >> 58) as usize])
    }

    fn account(&self, part: &mut CountedKeys, bytes: usize) {
        if part.bytes != bytes {
            (self.account.0)(part.bytes as u64, bytes as u64);
            part.bytes = bytes;
        }
    }
}

/// Ignores poisoning, because no thread panics while it holds the lock.
fn lock(part: &Mutex<CountedKeys>) -> MutexGuard<'_, CountedKeys> {
    part.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CountedKeys {
    /// Returns the memory of the map, which keeps an eighth of its slots free.
    fn bytes_now(&self) -> usize {
        (self.counts.capacity() + self.counts.capacity() / 7) * ENTRY_BYTES
    }
}

impl Drop for ConcurrencyPermit {
    fn drop(&mut self) {
        let mut part = self.limiter.shard(self.key);
        let Some(count) = part.counts.get_mut(&self.key) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        part.counts.remove(&self.key);
        // Releases memory after a peak.
        let len = part.counts.len();
        if part.bytes > 128 * ENTRY_BYTES && len * ENTRY_BYTES < part.bytes / 8 {
            part.counts.shrink_to(len * 2);
            let bytes = part.bytes_now();
            self.limiter.account(&mut part, bytes);
        }
    }
}

impl Drop for ConcurrencyLimiter {
    fn drop(&mut self) {
        (self.account.0)(self.bytes() as u64, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicI64;

    use super::*;

    fn limiter(max: u32, keys_max: usize) -> (Arc<ConcurrencyLimiter>, Arc<AtomicI64>) {
        let held = Arc::new(AtomicI64::new(0));
        let theirs = held.clone();
        let account = move |before: u64, after: u64| {
            theirs.fetch_add(after.cast_signed() - before.cast_signed(), Ordering::Relaxed);
        };
        (Arc::new(ConcurrencyLimiter::new(max, keys_max, Arc::new(account))), held)
    }

    #[test]
    fn limiter_bounds_requests_per_key_and_releases_slots() {
        let (limiter, _) = limiter(2, 1_000);
        let places: Vec<_> = (0..2).map(|_| limiter.acquire(7, false).unwrap()).collect();
        assert_eq!(limiter.acquire(7, false).unwrap_err(), LimitReached);
        assert!(limiter.acquire(8, false).is_ok());
        assert_eq!((limiter.count(7), limiter.count(8)), (2, 0));
        // A dry run counts refusals but does not refuse.
        let dry = limiter.acquire(7, true).unwrap();
        assert_eq!((limiter.count(7), limiter.refused.load(Ordering::Relaxed)), (3, 2));
        drop((places, dry));
        assert_eq!(limiter.count(7), 0);
        assert!(limiter.acquire(7, false).is_ok());
    }

    #[test]
    fn concurrency_limit_is_exact_across_threads() {
        let (limiter, _) = limiter(100, 1_000);
        let most = AtomicU32::new(0);
        let under_way = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut places = Vec::new();
                    for round in 0..10_000 {
                        match limiter.acquire(5, false) {
                            Ok(place) => {
                                most.fetch_max(
                                    under_way.fetch_add(1, Ordering::SeqCst) + 1,
                                    Ordering::SeqCst,
                                );
                                places.push(place);
                            }
                            Err(LimitReached) => {
                                under_way.fetch_sub(places.len() as u32, Ordering::SeqCst);
                                places.clear();
                            }
                        }
                        if round % 97 == 0 {
                            under_way.fetch_sub(places.len() as u32, Ordering::SeqCst);
                            places.clear();
                        }
                    }
                    under_way.fetch_sub(places.len() as u32, Ordering::SeqCst);
                });
            }
        });
        assert!((50..=100).contains(&most.load(Ordering::SeqCst)), "{most:?}");
        assert_eq!(limiter.count(5), 0);
    }

    #[test]
    fn concurrency_limiter_memory_is_bounded_for_a_million_keys() {
        let (limiter, held) = limiter(10, 100_000);
        let key = |key: u64| RandomState::hash_one(&limiter.secret, key);
        let places: Vec<_> = (0..100_000).map(|at| limiter.acquire(key(at), false).unwrap()).collect();
        assert_eq!(limiter.uncounted.load(Ordering::Relaxed), 0);
        assert!(limiter.bytes() < 16 << 20, "{}", limiter.bytes());
        assert_eq!(held.load(Ordering::Relaxed), limiter.bytes() as i64);
        let more: Vec<_> = (100_000..1_100_000).map(|at| limiter.acquire(key(at), false).unwrap()).collect();
        assert!(limiter.bytes() < 16 << 20, "{}", limiter.bytes());
        assert!(limiter.uncounted.load(Ordering::Relaxed) > 900_000);
        drop((places, more));
        assert!(limiter.bytes() < 200 << 10, "{}", limiter.bytes());
        assert_eq!(held.load(Ordering::Relaxed), limiter.bytes() as i64);
        drop(limiter);
        assert_eq!(held.load(Ordering::Relaxed), 0);
    }
}
