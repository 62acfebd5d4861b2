//! Times at which this server has removed responses, by which it judges copies of other servers: one that is older than a
//! purge or an unsafe request is not used.

use std::sync::atomic::{AtomicU64, Ordering};

use aws_lc_rs::digest::{SHA256, digest};

/// Number of keys that are told apart. Two keys in one place cost a request to the origin.
const PLACES: usize = 4096;

static REMOVALS: Removals = Removals::new();

/// Times of removals, in seconds since 1970.
struct Removals {
    /// Time of the last removal of responses of any keys.
    all_s: AtomicU64,
    by_key_s: [AtomicU64; PLACES],
}

impl Removals {
    const fn new() -> Removals {
        Removals { all_s: AtomicU64::new(0), by_key_s: [const { AtomicU64::new(0) }; PLACES] }
    }

    fn place(&self, hash: u64) -> &AtomicU64 {
        &self.by_key_s[hash as usize % PLACES]
    }

    fn note_all(&self, now_s: u64) {
        self.all_s.fetch_max(now_s, Ordering::Relaxed);
    }

    fn note_key(&self, hash: u64, now_s: u64) {
        self.place(hash).fetch_max(now_s, Ordering::Relaxed);
    }

    fn is_removed(&self, hash: u64, stored_s: u64) -> bool {
        stored_s <= self.all_s.load(Ordering::Relaxed).max(self.place(hash).load(Ordering::Relaxed))
    }
}

/// Returns the number of a key, which is the same on all servers.
pub(crate) fn key_hash(bytes: &[u8]) -> u64 {
    let digest = digest(&SHA256, bytes);
    digest.as_ref().first_chunk().map_or(0, |first| u64::from_be_bytes(*first))
}

/// Notes that responses of any keys were removed, in seconds since 1970.
pub(crate) fn note_all(now_s: u64) {
    REMOVALS.note_all(now_s);
}

/// Notes that the responses of a key were removed.
pub(crate) fn note_key(key: &[u8], now_s: u64) {
    REMOVALS.note_key(key_hash(key), now_s);
}

/// Whether a response that was stored at this time may have been removed here since.
pub(crate) fn is_removed(hash: u64, stored_s: u64) -> bool {
    REMOVALS.is_removed(hash, stored_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_not_older_than_removals() {
        let removals = Removals::new();
        let (one, two) = (key_hash(b"one"), key_hash(b"two"));
        assert!(!removals.is_removed(one, 100));
        removals.note_key(one, 100);
        assert!(removals.is_removed(one, 100) && removals.is_removed(one, 99));
        assert!(!removals.is_removed(one, 101) && !removals.is_removed(two, 100));
        removals.note_all(200);
        removals.note_all(150);
        assert!(
            removals.is_removed(two, 200) && removals.is_removed(one, 150) && !removals.is_removed(one, 201)
        );
    }
}
