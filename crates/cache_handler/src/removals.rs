//! Times at which this server has removed responses, by which it judges copies of other servers: one that is older than a
//! purge or an unsafe request is not used.

use std::sync::atomic::{AtomicU64, Ordering};

use aws_lc_rs::digest::{SHA256, digest};

/// Number of keys that are told apart. Two keys in one place cost a request to the origin.
const PLACES: usize = 4096;

static ALL_S: AtomicU64 = AtomicU64::new(0);
static BY_KEY_S: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];

/// Returns the number of a key, which is the same on all servers.
pub(crate) fn key_hash(bytes: &[u8]) -> u64 {
    let digest = digest(&SHA256, bytes);
    digest.as_ref().first_chunk().map_or(0, |first| u64::from_be_bytes(*first))
}

fn place(hash: u64) -> &'static AtomicU64 {
    &BY_KEY_S[hash as usize % PLACES]
}

/// Notes that responses of any keys were removed, in seconds since 1970.
pub(crate) fn note_all(now_s: u64) {
    ALL_S.fetch_max(now_s, Ordering::Relaxed);
}

/// Notes that the responses of a key were removed.
pub(crate) fn note_key(key: &[u8], now_s: u64) {
    place(key_hash(key)).fetch_max(now_s, Ordering::Relaxed);
}

/// Whether a response that was stored at this time may have been removed here since.
pub(crate) fn is_removed(hash: u64, stored_s: u64) -> bool {
    stored_s <= ALL_S.load(Ordering::Relaxed).max(place(hash).load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_not_older_than_removals() {
        let (one, two) = (key_hash(b"one"), key_hash(b"two"));
        assert!(!is_removed(one, 100));
        note_key(b"one", 100);
        assert!(
            is_removed(one, 100) && is_removed(one, 99) && !is_removed(one, 101) && !is_removed(two, 100)
        );
        note_all(200);
        note_all(150);
        assert!(is_removed(two, 200) && is_removed(one, 150) && !is_removed(one, 201));
    }
}
