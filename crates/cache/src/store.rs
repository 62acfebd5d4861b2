//! The store in memory, shared by all cores, and the fills in progress.

use std::collections::HashMap;
use std::fmt;
use std::hash::RandomState;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::{Coding, HeadRef};
use quick_cache::sync::{Cache as Table, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};

use crate::coded::{CodedLookup, CodingJob};
use crate::content_file::ContentFile;
use crate::counter::SplitCounter;
use crate::disk::{Disk, DiskLookup, DiskResponse};
use crate::fill::{Fill, FillCounts, FillReader};
use crate::held::{Account, HeldBytes};
use crate::key::url;
use crate::loads::{DiskLoad, Loads};
use crate::no_vary_search::SearchRules;
use crate::not_stored::NotStored;
use crate::object::{Object, StoredBody};
use crate::outcomes::{Outcome, Outcomes};
use crate::purge::PurgeLog;
use crate::stores::CacheStore;
use crate::tags::{LabelKind, TagIndex, label};
use crate::uses::UseCounts;

/// Maximum variants of one URL.
const VARIANTS_MAX: usize = 16;
/// Accounted bytes of an entry, in addition to its key and objects.
const ENTRY_BYTES: u64 = 256;
/// Number of shards of the store, each with its own lock.
const SHARDS: usize = 8;
/// Time in seconds for which requests for a URL do not wait for one another after a response was not stored.
const UNCACHEABLE_S: u64 = 5;
/// Like [`UNCACHEABLE_S`], for a response that is too large.
const TOO_LARGE_S: u64 = 60;
/// Maximum contents being compressed at a time.
const CODING_JOBS_MAX: usize = 8;
/// Expected average size of an object in bytes, for sizing the table.
const OBJECT_BYTES_USUAL: u64 = 8 * 1024;

/// Limits of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StoreLimits {
    /// Maximum bytes of stored responses, including keys and fields. Default 64 MiB.
    pub bytes_max: u64,
    /// Maximum bytes of a response's content, limited to half of a shard (a sixteenth of `bytes_max`).
    /// Default 4 MiB.
    pub object_bytes_max: u64,
    /// Maximum fills in progress; further requests are forwarded as if there were no cache. Default 1,024.
    pub fills_max: usize,
}

impl StoreLimits {
    /// Limits of the store that the configuration declares, with at most this memory.
    #[must_use]
    pub fn of(store: &CacheStore, memory_bytes_max: u64) -> StoreLimits {
        StoreLimits {
            bytes_max: store.memory_bytes_max.min(memory_bytes_max),
            object_bytes_max: store.object_bytes_max,
            ..StoreLimits::default()
        }
    }
}

impl Default for StoreLimits {
    fn default() -> StoreLimits {
        StoreLimits { bytes_max: 64 << 20, object_bytes_max: 4 << 20, fills_max: 1024 }
    }
}

/// Responses stored under one key.
#[derive(Debug, Default)]
pub struct CacheEntry {
    /// Objects, the newest first.
    objects: Vec<Arc<Object>>,
    /// Reason for which the last response was not stored, and until when requests do not wait for one
    /// another, in seconds since 1970.
    refused: Option<(NotStored, u64)>,
    weight: u64,
    /// Accounted bytes, without the objects, which are accounted separately.
    _held: Option<HeldBytes>,
}

impl CacheEntry {
    /// Returns the response that answers this request.
    #[must_use]
    pub fn select(&self, request: HeadRef<'_>) -> Option<&Arc<Object>> {
        self.objects.iter().find(|object| object.variant.answers(request))
    }

    /// Returns all responses, the newest first.
    #[must_use]
    pub fn objects(&self) -> &[Arc<Object>] {
        &self.objects
    }

    /// Returns the reason for which the last response was not stored, for as long as it is remembered.
    #[must_use]
    pub fn refusal(&self, now_s: u64) -> Option<NotStored> {
        self.refused.filter(|(_, until_s)| now_s < *until_s).map(|(why, _)| why)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct EntryWeight;

impl Weighter<Arc<[u8]>, Arc<CacheEntry>> for EntryWeight {
    fn weight(&self, _: &Arc<[u8]>, entry: &Arc<CacheEntry>) -> u64 {
        entry.weight
    }
}

pub(crate) type Entries =
    Table<Arc<[u8]>, Arc<CacheEntry>, EntryWeight, RandomState, DefaultLifecycle<Arc<[u8]>, Arc<CacheEntry>>>;

/// Counters of requests and responses since the start.
#[derive(Debug, Default)]
pub struct CacheCounters {
    /// Requests answered from the cache with a fresh response; split, because it is the only count of such a request here.
    pub hits: SplitCounter,
    /// Requests answered from the cache with a stale response.
    pub stale: AtomicU64,
    /// Requests forwarded to the origin.
    pub misses: AtomicU64,
    /// Requests for the validation of a stored response.
    pub validations: AtomicU64,
    /// Requests that waited for another one's response.
    pub collapsed: AtomicU64,
    /// Requests that the cache does not handle.
    pub bypassed: AtomicU64,
    /// Responses stored.
    pub stored: AtomicU64,
    /// Stored responses replaced by newer ones.
    pub replaced: AtomicU64,
    /// Responses not stored, by the reason, in the order of [`NotStored::ALL`].
    pub refused: [AtomicU64; NotStored::ALL.len()],
    /// Responses removed by purges and unsafe requests.
    pub removed: AtomicU64,
    /// Purges requested.
    pub purges: AtomicU64,
    /// Responses removed or made stale by purges.
    pub purged: AtomicU64,
}

/// Statistics of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Number of entries.
    pub entries: u64,
    /// Accounted bytes.
    pub bytes: u64,
    /// Maximum bytes.
    pub bytes_max: u64,
    /// Number of fills in progress.
    pub fills: u64,
}

/// A cache, shared by all cores.
pub struct Cache {
    /// Limits as given by the caller.
    configured_limits: StoreLimits,
    limits: StoreLimits,
    pub(crate) entries: Entries,
    pub(crate) index: Arc<TagIndex>,
    purges: Mutex<PurgeLog>,
    pub(crate) disk: Option<Arc<Disk>>,
    loads: Arc<Loads>,
    fills: Mutex<HashMap<Arc<[u8]>, Arc<Fill>>>,
    fill_counts: Arc<FillCounts>,
    coding_jobs: Arc<AtomicUsize>,
    account: Account,
    /// Memory file for large contents.
    contents: Option<ContentFile>,
    outcomes: Outcomes,
    /// Counters of requests and responses.
    pub counters: CacheCounters,
    /// Rules of responses for equivalent queries.
    pub search_rules: SearchRules,
    /// Request counts of URLs, for rules that need them.
    pub uses: UseCounts,
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// Action for a cache miss.
#[derive(Debug)]
pub enum FillStart {
    /// The request fetches the response, also for later requests.
    Lead(Arc<Fill>, FillReader),
    /// The request waits for a response that is being received.
    Follow(FillReader),
    /// Too many fills are in progress: the request is forwarded without the cache.
    Full,
}

impl Cache {
    /// Creates an empty cache. `account` is called with the bytes held before and after each change.
    ///
    /// # Panics
    /// Never: the options of its table are within their ranges.
    #[must_use]
    pub fn new(limits: StoreLimits, account: Account) -> Cache {
        let usual = (limits.bytes_max / OBJECT_BYTES_USUAL).max(SHARDS as u64 * 32);
        let options = OptionsBuilder::new()
            .estimated_items_capacity(usize::try_from(usual).unwrap_or(usize::MAX))
            .weight_capacity(limits.bytes_max)
            .shards(SHARDS)
            .build()
            .expect("capacity and weight are given");
        let entries =
            Table::with_options(options, EntryWeight, RandomState::new(), DefaultLifecycle::default());
        let shard_max = limits.bytes_max / SHARDS as u64 / 2;
        let wanted = limits;
        let limits = StoreLimits { object_bytes_max: limits.object_bytes_max.min(shard_max), ..limits };
        Cache {
            configured_limits: wanted,
            limits,
            entries,
            index: TagIndex::new(),
            purges: Mutex::default(),
            disk: None,
            loads: Arc::default(),
            fills: Mutex::default(),
            fill_counts: Arc::default(),
            coding_jobs: Arc::default(),
            search_rules: SearchRules::new(account.clone()),
            account,
            contents: ContentFile::new(),
            outcomes: Outcomes::new(),
            counters: CacheCounters::default(),
            uses: UseCounts::default(),
        }
    }

    /// Returns the effective limits.
    #[must_use]
    pub fn limits(&self) -> StoreLimits {
        self.limits
    }

    /// Returns the limits that were given to [`Cache::new`].
    #[must_use]
    pub fn configured_limits(&self) -> StoreLimits {
        self.configured_limits
    }

    /// Returns the entry of a key.
    #[must_use]
    pub fn find(&self, key: &[u8]) -> Option<Arc<CacheEntry>> {
        self.entries.get(key)
    }

    /// Returns the entry of a key without counting this as a use.
    #[must_use]
    pub fn peek(&self, key: &[u8]) -> Option<Arc<CacheEntry>> {
        self.entries.peek(key)
    }

    /// Joins the fill in progress for this key, or begins one. `others` are further properties that waiting
    /// requests must share (accepted codings); `None`: no other request can join.
    pub fn begin_fill(&self, key: &[u8], shared_properties: Option<&[u8]>) -> FillStart {
        let shared_key: Option<Arc<[u8]>> =
            shared_properties.map(|others| [key, b"\0", others].concat().into());
        let began_after = self.purges().count;
        let mut fills = self.fills();
        if let Some(reader) = shared_key.as_ref().and_then(|key| fills.get(key)).and_then(Fill::join) {
            return FillStart::Follow(reader);
        }
        if self.fill_counts.all.load(Ordering::Relaxed) >= self.limits.fills_max {
            return FillStart::Full;
        }
        let (fill, reader) = Fill::new(
            key.into(),
            shared_key.clone(),
            began_after,
            self.limits.object_bytes_max,
            &self.fill_counts,
        );
        if let Some(shared_key) = shared_key {
            fills.insert(shared_key, fill.clone());
        }
        FillStart::Lead(fill, reader)
    }

    /// Whether a response to such a request is being received.
    #[must_use]
    pub fn is_filling(&self, key: &[u8], shared_properties: &[u8]) -> bool {
        self.fills().contains_key(&[key, b"\0", shared_properties].concat()[..])
    }

    /// Wraps an object so that its bytes are accounted for as long as it lives, in the store or elsewhere.
    #[must_use]
    pub fn accounted(&self, object: Object) -> Arc<Object> {
        object.accounted(&self.account)
    }

    /// Copies a large content to the memory file, from which it can be sent without copying. Blocks while
    /// copying.
    #[must_use]
    pub fn filed(&self, body: StoredBody) -> StoredBody {
        match &self.contents {
            Some(contents) => body.filed_in(contents),
            None => body,
        }
    }

    /// Like [`Cache::filed`], for a response read from disk.
    #[must_use]
    pub fn filed_from_disk(&self, read: DiskResponse) -> DiskResponse {
        let body = self.filed(read.object.body.clone());
        DiskResponse { object: read.object.with_body(body), ..read }
    }

    /// Accounts for the pieces of a fill whose content was copied elsewhere, until its readers have left.
    pub fn count_pieces(&self, fill: &Fill, body: &StoredBody) {
        fill.charge(HeldBytes::new(&self.account, body.len()));
    }

    /// Stores the response of a fill.
    ///
    /// # Errors
    /// [`NotStored::Purged`]: it was purged meanwhile.
    pub fn store(&self, fill: &Fill, object: Arc<Object>) -> Result<(), NotStored> {
        let purges = self.purges();
        if purges.has_purged(fill.purges_before, &fill.key, object.tags()) {
            return Err(NotStored::Purged);
        }
        let replaced = self.insert(&fill.key, &object);
        if let Some(disk) = &self.disk {
            disk.store(&fill.key, &object);
        }
        drop(purges);
        self.counters.replaced.fetch_add(replaced as u64, Ordering::Relaxed);
        self.counters.stored.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Adds a response to the entry of its key. Returns the number of responses removed from the entry.
    fn insert(&self, key: &Arc<[u8]>, object: &Arc<Object>) -> usize {
        // A URL has several keys if a variation reported by a trusted proxy is a part of them.
        let url = Some(url(key)).filter(|url| url.len() < key.len());
        let url = url.map(|url| label(LabelKind::Url, url));
        if url.is_some() || !object.tags().labels().is_empty() {
            object.index(self.index.add(object.tags(), url, key));
        }
        let before = self.entries.peek(&key[..]);
        let mut objects = vec![object.clone()];
        let others = before.iter().flat_map(|entry| &entry.objects);
        objects.extend(others.filter(|other| other.variant != object.variant).cloned());
        objects.truncate(VARIANTS_MAX);
        // Variants share the space of one object, so that one URL cannot occupy a whole shard.
        let most = self.limits.object_bytes_max.saturating_mul(3) / 2;
        let mut sum = 0;
        objects.retain(|other| {
            sum += other.weight_bytes();
            sum <= most || Arc::ptr_eq(other, object)
        });
        let replaced = before.map_or(0, |before| before.objects.len() + 1 - objects.len());
        self.entries.insert(key.clone(), self.entry(key, objects, None));
        replaced
    }

    /// Returns a stored content in a coding, or starts a job that compresses it.
    #[must_use]
    pub fn coded(&self, object: &Object, coding: Coding) -> CodedLookup {
        object.body.forms.find(coding, &self.coding_jobs, CODING_JOBS_MAX)
    }

    /// Stores a compressed form with its content; `None` if it is not smaller.
    pub fn add_coded(&self, key: &[u8], job: &CodingJob, bytes: Option<Arc<[u8]>>) {
        job.store(bytes, &self.account);
        // Updates the weight of the entry.
        let purges = self.purges();
        let entry = self.entries.peek(key);
        let is_stored = |entry: &Arc<CacheEntry>| entry.objects.iter().any(|one| job.is_of(&one.body.forms));
        if let Some(entry) = entry.filter(is_stored) {
            let entry = self.entry(key, entry.objects.clone(), entry.refused);
            self.entries.insert(key.into(), entry);
        }
        drop(purges);
    }

    /// Adds a store on disk.
    #[must_use]
    pub fn with_disk(mut self, disk: Option<Arc<Disk>>) -> Cache {
        self.disk = disk;
        self
    }

    /// Returns the store on disk, if there is one.
    #[must_use]
    pub fn disk(&self) -> Option<&Arc<Disk>> {
        self.disk.as_ref()
    }

    /// Returns the files on disk that may hold a response for this key, without reading any.
    #[must_use]
    pub fn find_on_disk(&self, key: &[u8]) -> Option<DiskLookup> {
        let disk = self.disk.as_ref()?;
        let began_after = self.purges().count;
        disk.find(key, began_after)
    }

    /// Adds a response read from disk to memory if `keeps` is set. Returns `None` if it was purged meanwhile.
    pub fn add_from_disk(&self, key: &[u8], read: DiskResponse, keeps: bool) -> Option<Arc<Object>> {
        let object = self.accounted(read.object);
        let purges = self.purges();
        if purges.has_purged(read.purges_before, key, object.tags()) {
            return None;
        }
        let entry = self.entries.peek(key);
        let mut newer = entry.iter().flat_map(|entry| entry.objects());
        if let Some(newer) = newer.find(|other| other.variant == object.variant) {
            return Some(newer.clone());
        }
        if keeps && object.body.len() <= self.limits.object_bytes_max {
            self.insert(&key.into(), &object);
        }
        drop(purges);
        Some(object)
    }

    /// Starts reading the response for this key from disk, or waits for another request that does. `None` if
    /// there is none.
    #[must_use]
    pub fn begin_load(&self, key: &[u8]) -> Option<DiskLoad> {
        self.find_on_disk(key).map(|lookup| self.loads.begin(key, lookup))
    }

    /// Remembers for a short time that a response was not stored. Stored responses are kept.
    pub fn record_refusal(&self, key: &[u8], reason: NotStored, now_s: u64) {
        let purges = self.purges();
        let objects = self.entries.peek(key).map(|entry| entry.objects.clone()).unwrap_or_default();
        let for_s = if reason == NotStored::TooLarge { TOO_LARGE_S } else { UNCACHEABLE_S };
        let entry = self.entry(key, objects, Some((reason, now_s + for_s)));
        self.entries.insert(key.into(), entry);
        drop(purges);
    }

    /// Removes a fill, so that no further request joins it.
    pub fn remove_fill(&self, fill: &Arc<Fill>) {
        let Some(key) = &fill.shared_key else { return };
        let mut fills = self.fills();
        if fills.get(key).is_some_and(|other| Arc::ptr_eq(other, fill)) {
            fills.remove(key);
        }
    }

    /// Records the outcome of a response with this key at `now_s`, in seconds since 1970, and counts a
    /// refusal.
    pub fn record_outcome(&self, key: &[u8], outcome: Outcome, now_s: u64) {
        if let Outcome::Refused(why) = outcome {
            self.counters.refused[why as usize].fetch_add(1, Ordering::Relaxed);
        }
        self.outcomes.record(key, outcome, now_s);
    }

    /// Returns the last outcome for a key and its time in seconds since 1970. Only recent URLs are
    /// remembered.
    #[must_use]
    pub fn last_outcome(&self, key: &[u8]) -> Option<(Outcome, u64)> {
        self.outcomes.last(key)
    }

    /// Counts the stored responses. Visits all entries, so do not call it on serving threads.
    #[must_use]
    pub fn count_objects(&self) -> u64 {
        self.entries.iter().map(|(_, entry)| entry.objects.len() as u64).sum()
    }

    /// Returns the keys of a URL under which responses may be stored. A URL has several if a variation
    /// reported by a trusted proxy is a part of them.
    #[must_use]
    pub fn keys_of(&self, url: &[u8]) -> Vec<Arc<[u8]>> {
        let (mut keys, _) = self.index.keys(label(LabelKind::Url, url), 0, VARIANTS_MAX);
        keys.insert(0, url.into());
        keys.dedup();
        keys
    }

    /// Returns the current statistics.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        CacheStats {
            entries: self.entries.len() as u64,
            bytes: self.entries.weight(),
            bytes_max: self.limits.bytes_max,
            fills: self.fill_counts.all.load(Ordering::Relaxed) as u64,
        }
    }

    pub(crate) fn purges(&self) -> MutexGuard<'_, PurgeLog> {
        self.purges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn fills(&self) -> MutexGuard<'_, HashMap<Arc<[u8]>, Arc<Fill>>> {
        self.fills.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates an entry for a key. Its bytes are accounted for as long as it lives.
    pub(crate) fn entry(
        &self,
        key: &[u8],
        objects: Vec<Arc<Object>>,
        refused: Option<(NotStored, u64)>,
    ) -> Arc<CacheEntry> {
        let bytes = ENTRY_BYTES + key.len() as u64;
        let weight = bytes + objects.iter().map(|object| object.weight_bytes()).sum::<u64>();
        let held = HeldBytes::new(&self.account, bytes);
        Arc::new(CacheEntry { objects, refused, weight, _held: Some(held) })
    }
}

#[cfg(test)]
pub(crate) mod tests;
