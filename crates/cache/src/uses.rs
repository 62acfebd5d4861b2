//! How often URLs were asked for that are not stored yet: some are stored only once that was often enough.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// URLs that are counted at one time; another one with the same place takes it. A power of two.
const PLACES: usize = 16 * 1024;
/// Bits of a place that are the count; the others say whose it is.
const COUNT_BITS: u32 = 16;

/// Counts of uses, approximate and of a fixed size: 128 KiB, once one is asked for.
#[derive(Debug, Default)]
pub struct UseCounts {
    places: OnceLock<(RandomState, Box<[AtomicU64]>)>,
}

impl UseCounts {
    /// Counts a use, and returns how many there were with it.
    pub fn count(&self, key: &[u8]) -> u32 {
        let (hasher, places) = self
            .places
            .get_or_init(|| (RandomState::new(), (0..PLACES).map(|_| AtomicU64::new(0)).collect()));
        let hash = hasher.hash_one(key);
        let whose = hash >> COUNT_BITS;
        let place = &places[hash as usize % PLACES];
        let before = place.load(Ordering::Relaxed);
        let most = (1 << COUNT_BITS) - 1;
        let count = if before >> COUNT_BITS == whose { (before & most) + 1 } else { 1 }.min(most);
        // Two cores may count one use together: the response is stored one use later.
        place.store(whose << COUNT_BITS | count, Ordering::Relaxed);
        u32::try_from(count).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_url_is_counted_by_itself() {
        let uses = UseCounts::default();
        assert_eq!([uses.count(b"a"), uses.count(b"a"), uses.count(b"a")], [1, 2, 3]);
        assert!(uses.count(b"b") == 1);
        for n in 0..70_000u32 {
            assert_eq!(uses.count(b"many"), (n + 1).min(0xffff));
        }
    }
}
