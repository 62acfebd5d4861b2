//! The dictionaries that clients may have, and contents compressed with them: each result is made once for
//! all threads.
//!
//! ```text
//! a response that clients keep ──▶ remember ──▶ HashedContent by its SHA-256, for an origin
//! Available-Dictionary         ──▶ find     ──▶ the dictionary, if it is known for that origin
//! dictionary and content       ──▶ delta    ──▶ an earlier result, or a job that makes it
//! ```
//!
//! An unknown hash costs one look-up and stores nothing.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::dictionary::{self, DictionaryCoding, DictionaryHash, compress_with};
use crate::effort::Effort;

/// Memory charged for an entry in addition to its bytes.
const ENTRY_BYTES: u64 = 256;
/// Maximum number of entries of each kind.
const ENTRIES_MAX: usize = 4096;
/// Maximum number of URLs stored for one content: another one replaces the oldest.
const URLS_MAX: usize = 16;
/// Maximum number of concurrent compressions in all threads; further requests get another coding.
const JOBS_MAX: usize = 2;
/// Upper bound of an encoder's memory: a multiple of dictionary and content, plus its tables.
const WORK_FACTOR: u64 = 6;
const WORK_BYTES: u64 = 8 << 20;

/// Limits of the stored dictionaries and results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DictionaryLimits {
    /// Maximum total size of dictionaries and results in bytes. Default 64 MiB.
    pub bytes_max: u64,
    /// Maximum number of versions of one URL. Default 4.
    pub versions_max: usize,
}

impl Default for DictionaryLimits {
    fn default() -> DictionaryLimits {
        DictionaryLimits { bytes_max: 64 << 20, versions_max: 4 }
    }
}

/// Bytes of a dictionary and their SHA-256. Clones share it.
#[derive(Clone, Debug)]
pub struct HashedContent {
    /// SHA-256 of the bytes.
    pub hash: DictionaryHash,
    pieces: Arc<[Arc<[u8]>]>,
}

impl HashedContent {
    /// Hashes a content. Takes some milliseconds for 8 MiB.
    #[must_use]
    pub fn new(pieces: Arc<[Arc<[u8]>]>) -> HashedContent {
        let hash = dictionary::hash(pieces.iter().map(|piece| &piece[..]));
        HashedContent { hash, pieces }
    }

    /// The length of the content in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pieces.iter().map(|piece| piece.len()).sum()
    }

    /// Whether the content is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The whole content in one piece.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        self.pieces.concat()
    }
}

/// The URL of a dictionary: clients use it for requests to the same origin.
#[derive(Clone, Copy, Debug)]
pub struct DictionaryUrl<'p> {
    /// The origin; a dictionary is never used for another one.
    pub origin: &'p [u8],
    /// The path at that origin; several versions of one path are stored.
    pub path: &'p [u8],
}

/// The key of a result, which is determined by dictionary, content and coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct DeltaKey {
    dictionary: DictionaryHash,
    content: DictionaryHash,
    coding: DictionaryCoding,
}

/// A content compressed with a dictionary.
#[derive(Debug)]
pub enum Delta {
    /// Available from an earlier request.
    Ready(Arc<[u8]>),
    /// Not available: no result is smaller, or too many compressions are running.
    None,
    /// To be made by the caller, where blocking is allowed.
    Job(DeltaJob),
}

/// The dictionaries of a server.
pub struct Dictionaries {
    limits: DictionaryLimits,
    account_memory: Box<dyn Fn(u64, u64) + Send + Sync>,
    state: Mutex<DictionaryState>,
}

#[derive(Default)]
struct DictionaryState {
    dictionaries: HashMap<DictionaryHash, StoredDictionary>,
    deltas: HashMap<DeltaKey, DeltaEntry>,
    bytes: u64,
    jobs: usize,
    /// Counts uses, for eviction of the least recently used entry.
    clock: u64,
}

/// An owned [`DictionaryUrl`].
struct StoredUrl {
    origin: Box<[u8]>,
    path: Box<[u8]>,
}

impl StoredUrl {
    fn new(place: DictionaryUrl<'_>) -> StoredUrl {
        StoredUrl { origin: place.origin.into(), path: place.path.into() }
    }
}

struct StoredDictionary {
    content: HashedContent,
    urls: Vec<StoredUrl>,
    /// End of the time in which clients may use the dictionary, in seconds since 1970.
    until_s: u64,
    last_use: u64,
}

struct DeltaEntry {
    /// `None` while the result is being made, or if it was not smaller.
    result: Option<Arc<[u8]>>,
    is_running: bool,
    last_use: u64,
}

impl Dictionaries {
    /// Creates an empty store. `account` is called with the bytes held before and after each change.
    #[must_use]
    pub fn new(
        limits: DictionaryLimits,
        account_memory: Box<dyn Fn(u64, u64) + Send + Sync>,
    ) -> Dictionaries {
        Dictionaries { limits, account_memory, state: Mutex::default() }
    }

    /// The limits.
    #[must_use]
    pub fn limits(&self) -> DictionaryLimits {
        self.limits
    }

    /// Bytes held.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.state().bytes
    }

    /// Records that a response allowed its client to store its content as a dictionary until `until_s`, in
    /// seconds since 1970. Returns false if the content is unknown: see [`Dictionaries::remember`].
    pub fn touch(&self, url: DictionaryUrl<'_>, hash: &DictionaryHash, until_s: u64) -> bool {
        let mut state = self.state();
        state.clock += 1;
        let used = state.clock;
        let Some(known) = state.dictionaries.get_mut(hash) else { return false };
        known.last_use = used;
        known.until_s = known.until_s.max(until_s);
        if !known.has_url(url) {
            known.urls.truncate(URLS_MAX - 1);
            known.urls.insert(0, StoredUrl::new(url));
        }
        true
    }

    /// Like [`Dictionaries::touch`], and stores the content if it is unknown. A content that is too long is
    /// not stored.
    pub fn remember(&self, url: DictionaryUrl<'_>, content: &HashedContent, until_s: u64) {
        if self.touch(url, &content.hash, until_s)
            || content.len() > dictionary::DICTIONARY_BYTES_MAX
            || self.limits.versions_max == 0
        {
            return;
        }
        let mut state = self.state();
        let used = state.clock;
        // Another thread may have been faster.
        self.remove_dictionary(&mut state, &content.hash);
        let places = vec![StoredUrl::new(url)];
        let known = StoredDictionary { content: content.clone(), urls: places, until_s, last_use: used };
        self.add(&mut state, known.bytes());
        state.dictionaries.insert(content.hash, known);
        self.drop_old_versions(&mut state, url);
        self.make_room(&mut state);
    }

    /// Returns the dictionary with that hash, if it is stored for this origin and valid at `now_s`, in
    /// seconds since 1970.
    #[must_use]
    pub fn find(&self, origin: &[u8], hash: &DictionaryHash, now_s: u64) -> Option<HashedContent> {
        let mut state = self.state();
        state.clock += 1;
        let used = state.clock;
        let known = state.dictionaries.get_mut(hash)?;
        if now_s >= known.until_s || known.urls.iter().all(|of| *of.origin != *origin) {
            return None;
        }
        known.last_use = used;
        Some(known.content.clone())
    }

    /// Returns the content of that hash and length, compressed with a dictionary from [`Dictionaries::find`].
    pub fn delta(
        self: &Arc<Self>,
        dictionary: &HashedContent,
        content: &DictionaryHash,
        length: u64,
        coding: DictionaryCoding,
    ) -> Delta {
        let key = DeltaKey { dictionary: dictionary.hash, content: *content, coding };
        let mut state = self.state();
        state.clock += 1;
        let used = state.clock;
        if let Some(entry) = state.deltas.get_mut(&key) {
            entry.last_use = used;
            return entry.result.clone().map_or(Delta::None, Delta::Ready);
        }
        if state.jobs >= JOBS_MAX || length > dictionary::DICTIONARY_BYTES_MAX as u64 {
            return Delta::None;
        }
        state.jobs += 1;
        self.add(&mut state, ENTRY_BYTES);
        state.deltas.insert(key, DeltaEntry { result: None, is_running: true, last_use: used });
        self.make_room(&mut state);
        let work_bytes = WORK_BYTES + (dictionary.len() as u64 + length) * WORK_FACTOR;
        (self.account_memory)(0, work_bytes);
        let dictionary = dictionary.clone();
        Delta::Job(DeltaJob { store: self.clone(), key, dictionary, work_bytes, result: None })
    }

    fn drop_old_versions(&self, state: &mut DictionaryState, place: DictionaryUrl<'_>) {
        let mut versions: Vec<(u64, DictionaryHash)> = state
            .dictionaries
            .iter()
            .filter(|(_, known)| known.has_url(place))
            .map(|(hash, known)| (known.last_use, *hash))
            .collect();
        versions.sort_unstable();
        let surplus = versions.len().saturating_sub(self.limits.versions_max);
        versions.iter().take(surplus).for_each(|(_, hash)| self.remove_dictionary(state, hash));
    }

    /// Evicts the least recently used entries, and with a dictionary the results made with it.
    fn make_room(&self, state: &mut DictionaryState) {
        while state.bytes > self.limits.bytes_max
            || state.dictionaries.len() > ENTRIES_MAX
            || state.deltas.len() > ENTRIES_MAX
        {
            let known = state.dictionaries.iter().map(|(hash, known)| (known.last_use, *hash)).min();
            let deltas = state.deltas.iter().filter(|(_, entry)| !entry.is_running);
            let delta = deltas.map(|(key, entry)| (entry.last_use, *key)).min_by_key(|(used, _)| *used);
            match (known, delta) {
                (Some((known, _)), Some((delta, key))) if delta < known => self.remove_delta(state, &key),
                (None, Some((_, key))) => self.remove_delta(state, &key),
                (Some((_, hash)), _) => self.remove_dictionary(state, &hash),
                (None, None) => return,
            }
        }
    }

    fn remove_dictionary(&self, state: &mut DictionaryState, hash: &DictionaryHash) {
        if let Some(known) = state.dictionaries.remove(hash) {
            self.subtract(state, known.bytes());
        }
        let of = state.deltas.iter().filter(|(key, entry)| key.dictionary == *hash && !entry.is_running);
        let keys: Vec<DeltaKey> = of.map(|(key, _)| *key).collect();
        keys.iter().for_each(|key| self.remove_delta(state, key));
    }

    fn remove_delta(&self, state: &mut DictionaryState, key: &DeltaKey) {
        if let Some(entry) = state.deltas.remove(key) {
            self.subtract(state, entry.bytes());
        }
    }

    fn add(&self, state: &mut DictionaryState, bytes: u64) {
        state.bytes += bytes;
        (self.account_memory)(0, bytes);
    }

    fn subtract(&self, state: &mut DictionaryState, bytes: u64) {
        state.bytes -= bytes;
        (self.account_memory)(bytes, 0);
    }

    fn state(&self) -> MutexGuard<'_, DictionaryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Dictionaries {
    fn drop(&mut self) {
        let held = self.state().bytes;
        (self.account_memory)(held, 0);
    }
}

impl fmt::Debug for Dictionaries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dictionaries").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl StoredDictionary {
    fn bytes(&self) -> u64 {
        ENTRY_BYTES + self.content.len() as u64
    }

    fn has_url(&self, place: DictionaryUrl<'_>) -> bool {
        self.urls.iter().any(|of| *of.origin == *place.origin && *of.path == *place.path)
    }
}

impl DeltaEntry {
    fn bytes(&self) -> u64 {
        ENTRY_BYTES + self.result.as_ref().map_or(0, |made| made.len() as u64)
    }
}

/// A result to be made. If it is dropped without a result, another request may make it.
pub struct DeltaJob {
    store: Arc<Dictionaries>,
    key: DeltaKey,
    dictionary: HashedContent,
    work_bytes: u64,
    /// `Some` once the job has run; the inner value is `None` if the result was not smaller.
    result: Option<Option<Arc<[u8]>>>,
}

impl DeltaJob {
    /// Compresses the content and stores the result for other requests. Takes time: call it where blocking is
    /// allowed. Returns `None` if the result is not smaller, or the content does not match the hash.
    #[must_use]
    pub fn run(mut self, effort: Effort, content: &[u8]) -> Option<Arc<[u8]>> {
        if dictionary::hash([content].into_iter()) != self.key.content {
            return None;
        }
        let dictionary = self.dictionary.bytes();
        let made = compress_with(self.key.coding, effort, &self.key.dictionary, &dictionary, content);
        // Out of memory: a later request may try again.
        let made = made.ok()?.filter(|made| made.len() < content.len()).map(Arc::from);
        self.result = Some(made.clone());
        made
    }
}

impl Drop for DeltaJob {
    fn drop(&mut self) {
        (self.store.account_memory)(self.work_bytes, 0);
        let mut state = self.store.state();
        state.jobs -= 1;
        self.store.remove_delta(&mut state, &self.key);
        // The result is discarded if its dictionary was removed meanwhile.
        if let Some(made) =
            self.result.take().filter(|_| state.dictionaries.contains_key(&self.key.dictionary))
        {
            let entry = DeltaEntry { result: made, is_running: false, last_use: state.clock };
            self.store.add(&mut state, entry.bytes());
            state.deltas.insert(self.key, entry);
            self.store.make_room(&mut state);
        }
    }
}

impl fmt::Debug for DeltaJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeltaJob").field("coding", &self.key.coding).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;
    use crate::dictionary::tests::{decompress, versions};

    fn content(bytes: &[u8]) -> HashedContent {
        HashedContent::new([Arc::from(bytes)].into())
    }

    fn delta(all: &Arc<Dictionaries>, old: &HashedContent, new: &HashedContent) -> Delta {
        all.delta(old, &new.hash, new.len() as u64, DictionaryCoding::Brotli)
    }

    fn dictionaries(limits: DictionaryLimits) -> (Arc<Dictionaries>, Arc<AtomicI64>) {
        let held: Arc<AtomicI64> = Arc::default();
        let account = held.clone();
        let count = move |before: u64, after: u64| {
            account.fetch_add(after as i64 - before as i64, Ordering::Relaxed);
        };
        (Arc::new(Dictionaries::new(limits, Box::new(count))), held)
    }

    const URL: DictionaryUrl<'_> = DictionaryUrl { origin: b"https://a", path: b"/app.js" };

    #[test]
    fn delta_is_computed_once_for_an_origin_with_the_dictionary() {
        let (all, held) = dictionaries(DictionaryLimits::default());
        let (old, new) = versions(200);
        let old = content(&old);
        let new = content(&new);
        all.remember(URL, &old, 100);
        assert!(all.find(b"https://b", &old.hash, 50).is_none(), "another origin");
        assert!(all.find(URL.origin, &new.hash, 50).is_none());
        assert!(all.find(URL.origin, &old.hash, 100).is_none(), "clients do not use it any more");
        let found = all.find(URL.origin, &old.hash, 99).unwrap();
        let Delta::Job(job) = delta(&all, &found, &new) else { panic!() };
        assert!(matches!(delta(&all, &found, &new), Delta::None), "under way");
        let made = job.run(Effort::Fast, &new.bytes()).unwrap();
        assert_eq!(decompress(DictionaryCoding::Brotli, &old.bytes(), &made), new.bytes());
        let Delta::Ready(again) = delta(&all, &found, &new) else { panic!() };
        assert!(Arc::ptr_eq(&again, &made));
        assert_eq!(held.load(Ordering::Relaxed) as u64, all.held_bytes());
        drop(all);
        assert_eq!(held.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn delta_jobs_are_limited_and_dropped_ones_are_restarted() {
        let (all, held) = dictionaries(DictionaryLimits::default());
        let contents: Vec<_> = (0..4u8).map(|n| content(&[n; 100])).collect();
        all.remember(URL, &contents[0], 100);
        let begin = |n: usize| delta(&all, &contents[0], &contents[n]);
        let jobs = [begin(1), begin(2)];
        assert!(jobs.iter().all(|job| matches!(job, Delta::Job(_))));
        assert!(matches!(begin(3), Delta::None));
        drop(jobs);
        let Delta::Job(job) = begin(1) else { panic!() };
        assert!(job.run(Effort::Fast, b"another content").is_none());
        assert!(matches!(begin(1), Delta::Job(_)));
        assert_eq!(held.load(Ordering::Relaxed) as u64, all.held_bytes());
    }

    #[test]
    fn incompressible_delta_is_not_attempted_again() {
        let (all, _) = dictionaries(DictionaryLimits::default());
        let old = content(b"abc");
        let new = content(b"xyz");
        all.remember(URL, &old, 100);
        let Delta::Job(job) = delta(&all, &old, &new) else { panic!() };
        assert!(job.run(Effort::Fast, &new.bytes()).is_none());
        assert!(matches!(delta(&all, &old, &new), Delta::None));
        assert_eq!(all.state().jobs, 0);
    }

    #[test]
    fn kept_versions_and_bytes_are_limited() {
        let limits = DictionaryLimits { bytes_max: 10_000, versions_max: 2 };
        let (all, held) = dictionaries(limits);
        let kept = |n: u64| all.find(URL.origin, &content(&n.to_le_bytes()).hash, 0).is_some();
        for n in 0..3u64 {
            all.remember(URL, &content(&n.to_le_bytes()), 100);
        }
        assert_eq!((kept(0), kept(1), kept(2)), (false, true, true));
        for n in 0..1000u64 {
            let path = n.to_le_bytes();
            let place = DictionaryUrl { path: &path, ..URL };
            all.remember(place, &content(&[n as u8; 500]), 100);
            all.remember(place, &content(format!("{n}").as_bytes()), 100);
            assert!(all.held_bytes() <= limits.bytes_max);
            assert_eq!(held.load(Ordering::Relaxed) as u64, all.held_bytes());
        }
        assert!(all.find(URL.origin, &content(b"0").hash, 0).is_none());
        assert!(all.find(URL.origin, &content(b"999").hash, 0).is_some());
        let state = all.state();
        assert!(state.dictionaries.values().all(|known| known.urls.len() <= URLS_MAX));
    }

    #[test]
    fn unknown_hashes_leave_no_state() {
        let (all, _) = dictionaries(DictionaryLimits::default());
        for n in 0..10_000u64 {
            let mut hash = [0; 32];
            hash[..8].copy_from_slice(&n.to_le_bytes());
            assert!(all.find(URL.origin, &hash, 0).is_none());
        }
        let state = all.state();
        assert_eq!((state.bytes, state.dictionaries.len(), state.deltas.len()), (0, 0, 0));
    }
}
