//! What is stored, in memory, for all cores, and what is on its way.

use std::collections::HashMap;
use std::fmt;
use std::hash::RandomState;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::{Coding, Head};
use quick_cache::sync::{Cache as Table, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};

use crate::coded::{CodedLookup, CodingJob};
use crate::content_file::ContentFile;
use crate::disk::{Disk, DiskLookup, FromDisk};
use crate::fill::{Fill, FillCounts, FillReader};
use crate::held::{Account, HeldBytes};
use crate::key::url;
use crate::loads::{DiskLoad, Loads};
use crate::not_stored::NotStored;
use crate::object::{Object, StoredBody};
use crate::outcomes::{Outcome, Outcomes};
use crate::purge::PurgeLog;
use crate::search::SearchRules;
use crate::tags::{LabelKind, TagIndex, label};
use crate::uses::UseCounts;

/// Variants of one URL.
const VARIANTS_MAX: usize = 16;
/// What an entry counts beside its key and its objects, in bytes.
const ENTRY_BYTES: u64 = 256;
/// Parts of the store, each with a lock of its own.
const SHARDS: usize = 8;
/// How long requests for a URL whose response was not stored do not wait for one another, in seconds.
const UNCACHEABLE_S: u64 = 5;
/// The same for a response that is too large, in seconds.
const TOO_LARGE_S: u64 = 60;
/// Contents that are compressed at one time.
const CODING_JOBS_MAX: usize = 8;
/// The average object that the table is laid out for, in bytes.
const OBJECT_BYTES_USUAL: u64 = 8 * 1024;

/// What a cache may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreLimits {
    /// Bytes of stored responses, with their keys and fields. Default 64 MiB.
    pub bytes_max: u64,
    /// Bytes of one response's content. No more than an eighth of the bytes of one shard can be stored. Default 4 MiB.
    pub object_bytes_max: u64,
    /// Responses on their way at one time; further requests are passed on as if there were no cache. Default 1,024.
    pub fills_max: usize,
}

impl Default for StoreLimits {
    fn default() -> StoreLimits {
        StoreLimits { bytes_max: 64 << 20, object_bytes_max: 4 << 20, fills_max: 1024 }
    }
}

/// The responses that are stored for one URL.
#[derive(Debug, Default)]
pub struct CacheEntry {
    /// The newest first.
    objects: Vec<Arc<Object>>,
    /// Why the last response was not stored, and until when requests do not wait for one another, in seconds since 1970.
    refused: Option<(NotStored, u64)>,
    weight: u64,
    /// What it counts as beside its objects, which count themselves.
    _held: Option<HeldBytes>,
}

impl CacheEntry {
    /// The response that answers this request.
    #[must_use]
    pub fn select(&self, request: (&Head, &[u8])) -> Option<&Arc<Object>> {
        self.objects.iter().find(|object| object.variant.answers(request))
    }

    /// All responses, the newest first.
    #[must_use]
    pub fn objects(&self) -> &[Arc<Object>] {
        &self.objects
    }

    /// Why the last response was not stored, as long as that is remembered.
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

/// What became of requests. Sums since the start.
#[derive(Debug, Default)]
pub struct CacheCounters {
    /// Answered from the cache.
    pub hits: AtomicU64,
    /// Answered from the cache with a stale response.
    pub stale: AtomicU64,
    /// Asked of the origin.
    pub misses: AtomicU64,
    /// Stored responses that the origin was asked to validate.
    pub validations: AtomicU64,
    /// Requests that waited for another one's response.
    pub collapsed: AtomicU64,
    /// Passed on because the cache has no part in them.
    pub bypassed: AtomicU64,
    /// Responses stored.
    pub stored: AtomicU64,
    /// Stored responses that newer ones took the place of.
    pub replaced: AtomicU64,
    /// Responses not stored, by the reason, in the order of [`NotStored::ALL`].
    pub refused: [AtomicU64; NotStored::ALL.len()],
    /// Responses that purges and unsafe requests removed.
    pub removed: AtomicU64,
    /// Purges that were asked for.
    pub purges: AtomicU64,
    /// Responses that purges removed or made stale.
    pub purged: AtomicU64,
}

/// What a cache holds and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// URLs.
    pub entries: u64,
    /// Bytes.
    pub bytes: u64,
    /// The most bytes.
    pub bytes_max: u64,
    /// Responses on their way.
    pub fills: u64,
}

/// A cache, shared by all cores.
pub struct Cache {
    /// As they were given.
    wanted: StoreLimits,
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
    /// Where large contents are.
    contents: Option<ContentFile>,
    outcomes: Outcomes,
    /// What became of requests.
    pub counters: CacheCounters,
    /// What responses have said of queries that answer alike.
    pub search_rules: SearchRules,
    /// How often URLs were asked for, where a rule wants to know.
    pub uses: UseCounts,
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// What a request that finds nothing does.
#[derive(Debug)]
pub enum FillStart {
    /// It asks the origin, for all who come after it.
    Lead(Arc<Fill>, FillReader),
    /// It waits for a response that is on its way.
    Follow(FillReader),
    /// Too many are on their way: it is passed on.
    Full,
}

impl Cache {
    /// An empty cache. `account` is called with the bytes held before and after each change.
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
            wanted,
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

    /// What it may hold.
    #[must_use]
    pub fn limits(&self) -> StoreLimits {
        self.limits
    }

    /// The limits that it was made with.
    #[must_use]
    pub fn wanted_limits(&self) -> StoreLimits {
        self.wanted
    }

    /// What is stored under a key.
    #[must_use]
    pub fn find(&self, key: &[u8]) -> Option<Arc<CacheEntry>> {
        self.entries.get(key)
    }

    /// What is stored under a key, without counting as a use.
    #[must_use]
    pub fn look(&self, key: &[u8]) -> Option<Arc<CacheEntry>> {
        self.entries.peek(key)
    }

    /// Joins the response that is on its way for this key, or begins one. `others` are what else such requests must have in
    /// common (the codings that they accept); `None` for one that nobody waits for.
    pub fn begin(&self, key: &[u8], others: Option<&[u8]>) -> FillStart {
        let shared_key: Option<Arc<[u8]>> = others.map(|others| [key, b"\0", others].concat().into());
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

    /// Whether a response to such a request is on its way.
    #[must_use]
    pub fn is_filling(&self, key: &[u8], others: &[u8]) -> bool {
        self.fills().contains_key(&[key, b"\0", others].concat()[..])
    }

    /// An object whose bytes count as held for as long as it lives, in the store or elsewhere.
    #[must_use]
    pub fn counted(&self, object: Object) -> Arc<Object> {
        object.counted(&self.account)
    }

    /// The same content in a file, from which it can be sent without a copy, where it is large. Blocks for as long as copying it
    /// takes.
    #[must_use]
    pub fn filed(&self, body: StoredBody) -> StoredBody {
        match &self.contents {
            Some(contents) => body.filed_in(contents),
            None => body,
        }
    }

    /// The same for what was read from disk.
    #[must_use]
    pub fn filed_from_disk(&self, read: FromDisk) -> FromDisk {
        let body = self.filed(read.object.body.clone());
        FromDisk { object: read.object.with_body(body), ..read }
    }

    /// What was in a fill is stored elsewhere: until its readers have left, it counts beside that.
    pub fn count_pieces(&self, fill: &Fill, body: &StoredBody) {
        fill.hold(HeldBytes::new(&self.account, body.len()));
    }

    /// Stores what a fill has brought.
    ///
    /// # Errors
    /// It was purged meanwhile.
    pub fn store(&self, fill: &Fill, object: Arc<Object>) -> Result<(), NotStored> {
        let purges = self.purges();
        if purges.reaches(fill.began_after, &fill.key, object.tags()) {
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

    /// Adds a response to those of its key. Returns how many it has taken the place of.
    fn insert(&self, key: &Arc<[u8]>, object: &Arc<Object>) -> usize {
        // A URL has several keys where what a trusted proxy reports is a part of them.
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
        // Variants share the room of one object, so that a URL cannot take a shard.
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

    /// A stored content in a coding.
    #[must_use]
    pub fn coded(&self, object: &Object, coding: Coding) -> CodedLookup {
        object.body.forms.find(coding, &self.coding_jobs, CODING_JOBS_MAX)
    }

    /// Keeps a content in a coding beside it, and as long as it; `None` where that is not smaller.
    pub fn add_coded(&self, key: &[u8], job: &CodingJob, made: Option<Arc<[u8]>>) {
        job.keep(made, &self.account);
        // It weighs more now.
        let purges = self.purges();
        let entry = self.entries.peek(key);
        let is_stored = |entry: &Arc<CacheEntry>| entry.objects.iter().any(|one| job.is_of(&one.body.forms));
        if let Some(entry) = entry.filter(is_stored) {
            let entry = self.entry(key, entry.objects.clone(), entry.refused);
            self.entries.insert(key.into(), entry);
        }
        drop(purges);
    }

    /// The same with a store on disk.
    #[must_use]
    pub fn with_disk(mut self, disk: Option<Arc<Disk>>) -> Cache {
        self.disk = disk;
        self
    }

    /// The store on disk, if there is one.
    #[must_use]
    pub fn disk(&self) -> Option<&Arc<Disk>> {
        self.disk.as_ref()
    }

    /// Where on disk there may be a response for this key, found without reading anything.
    #[must_use]
    pub fn find_on_disk(&self, key: &[u8]) -> Option<DiskLookup> {
        let disk = self.disk.as_ref()?;
        let began_after = self.purges().count;
        disk.find(key, began_after)
    }

    /// Takes what was read from disk into memory, where it `keeps` it; `None` where it was purged meanwhile.
    pub fn admit(&self, key: &[u8], read: FromDisk, keeps: bool) -> Option<Arc<Object>> {
        let object = self.counted(read.object);
        let purges = self.purges();
        if purges.reaches(read.began_after, key, object.tags()) {
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

    /// Has the response to this request read from disk, or waits until another request has done so. `None` where there is none.
    #[must_use]
    pub fn begin_load(&self, key: &[u8]) -> Option<DiskLoad> {
        self.find_on_disk(key).map(|lookup| self.loads.begin(key, lookup))
    }

    /// Remembers for a moment that a response was not stored. What is stored stays.
    pub fn refuse(&self, key: &[u8], why: NotStored, now_s: u64) {
        let purges = self.purges();
        let objects = self.entries.peek(key).map(|entry| entry.objects.clone()).unwrap_or_default();
        let for_s = if why == NotStored::TooLarge { TOO_LARGE_S } else { UNCACHEABLE_S };
        let entry = self.entry(key, objects, Some((why, now_s + for_s)));
        self.entries.insert(key.into(), entry);
        drop(purges);
    }

    /// Releases a response on its way: nobody joins it from now on.
    pub fn leave(&self, fill: &Arc<Fill>) {
        let Some(key) = &fill.shared_key else { return };
        let mut fills = self.fills();
        if fills.get(key).is_some_and(|other| Arc::ptr_eq(other, fill)) {
            fills.remove(key);
        }
    }

    /// Remembers for people what has become of a response of this key, at that second since 1970, and counts a refusal.
    pub fn note_outcome(&self, key: &[u8], outcome: Outcome, now_s: u64) {
        if let Outcome::Refused(why) = outcome {
            self.counters.refused[why as usize].fetch_add(1, Ordering::Relaxed);
        }
        self.outcomes.note(key, outcome, now_s);
    }

    /// What has become of the last response of this key, and when, in seconds since 1970; some thousand URLs are remembered.
    #[must_use]
    pub fn last_outcome(&self, key: &[u8]) -> Option<(Outcome, u64)> {
        self.outcomes.of(key)
    }

    /// The responses that are stored now. It looks at all: not for serving threads.
    #[must_use]
    pub fn count_objects(&self) -> u64 {
        self.entries.iter().map(|(_, entry)| entry.objects.len() as u64).sum()
    }

    /// The keys of a URL under which something may be stored: it has several where what a trusted proxy reports is part of a key.
    #[must_use]
    pub fn keys_of(&self, url: &[u8]) -> Vec<Arc<[u8]>> {
        let (mut keys, _) = self.index.keys(label(LabelKind::Url, url), 0, VARIANTS_MAX);
        keys.insert(0, url.into());
        keys.dedup();
        keys
    }

    /// What it holds.
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

    /// What is stored under a key. Its bytes count as held for as long as it lives.
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
