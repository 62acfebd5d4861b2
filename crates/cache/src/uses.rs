//! Request counts of URLs that are not stored yet, for rules that store a URL only after several requests.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of slots; a URL replaces another one in the same slot. A power of two.
const SLOTS: usize = 16 * 1024;
/// Bits of a slot used for the count; the others identify the URL.
const COUNT_BITS: u32 = 16;

/// Approximate request counts with a fixed size of 128 KiB, allocated on first use.
#[derive(Debug, Default)]
pub struct UseCounts {
    slots: OnceLock<(RandomState, Box<[AtomicU64]>)>,
}

impl UseCounts {
    /// Counts a request and returns the count including it.
    pub fn count(&self, key: &[u8]) -> u32 {
        let (hasher, places) =
            self.slots.get_or_init(|| (RandomState::new(), (0..SLOTS).map(|_| AtomicU64::new(0)).collect()));
        let hash = hasher.hash_one(key);
        let whose = hash >> COUNT_BITS;
        let place = &places[hash as usize % SLOTS];
        let before = place.load(Ordering::Relaxed);
        let most = (1 << COUNT_BITS) - 1;
        let count = if before >> COUNT_BITS == whose { (before & most) + 1 } else { 1 }.min(most);
        // Cores may overwrite each other's counts, so that the response is stored one request later.
        place.store(whose << COUNT_BITS | count, Ordering::Relaxed);
        u32::try_from(count).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_per_url_and_saturate() {
        let uses = UseCounts::default();
        assert_eq!([uses.count(b"a"), uses.count(b"a"), uses.count(b"a")], [1, 2, 3]);
        assert!(uses.count(b"b") == 1);
        for n in 0..70_000u32 {
            assert_eq!(uses.count(b"many"), (n + 1).min(0xffff));
        }
    }
}
