//! What is stored, in memory, for all cores, and what is on its way.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::RandomState;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::Head;
use quick_cache::sync::{Cache as Table, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};

use crate::disk::{Disk, DiskLookup, FromDisk};
use crate::fill::{Fill, FillReader};
use crate::freshness::NotStored;
use crate::key::url;
use crate::loads::{DiskLoad, Loads};
use crate::object::Object;
use crate::purge::Purge;
use crate::search::SearchRules;
use crate::uses::UseCounts;

/// Variants of one URL.
const VARIANTS_MAX: usize = 16;
/// What an entry counts beside its key and its objects, in bytes.
const ENTRY_BYTES: u64 = 256;
/// Parts of the store, each with a lock of its own.
const SHARDS: usize = 8;
/// Purges that a response on its way is compared with; one that began before them is not stored.
const PURGES_MAX: usize = 256;
/// How long requests for a URL whose response was not stored do not wait for one another, in seconds.
const UNCACHEABLE_S: u64 = 5;
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
}

impl CacheEntry {
    fn new(key: &[u8], objects: Vec<Arc<Object>>, refused: Option<(NotStored, u64)>) -> Arc<CacheEntry> {
        let objects_weight: u64 = objects.iter().map(|object| object.weight_bytes()).sum();
        Arc::new(CacheEntry { weight: ENTRY_BYTES + key.len() as u64 + objects_weight, objects, refused })
    }

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
struct EntryWeight;

impl Weighter<Arc<[u8]>, Arc<CacheEntry>> for EntryWeight {
    fn weight(&self, _: &Arc<[u8]>, entry: &Arc<CacheEntry>) -> u64 {
        entry.weight
    }
}

type Entries =
    Table<Arc<[u8]>, Arc<CacheEntry>, EntryWeight, RandomState, DefaultLifecycle<Arc<[u8]>, Arc<CacheEntry>>>;

/// What only one thread changes at a time.
#[derive(Debug, Default)]
struct Purges {
    /// How many there were.
    count: u64,
    /// The latest.
    latest: VecDeque<Purge>,
}

impl Purges {
    /// Whether a purge after so many others was about this.
    fn was_purged(&self, began_after: u64, key: &[u8], object: &Object) -> bool {
        let missed = usize::try_from(self.count - began_after).unwrap_or(usize::MAX);
        missed > self.latest.len()
            || self.latest.iter().rev().take(missed).any(|purge| purge.is_of(key, object))
    }
}

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
    entries: Entries,
    purges: Mutex<Purges>,
    disk: Option<Arc<Disk>>,
    loads: Arc<Loads>,
    fills: Mutex<HashMap<Arc<[u8]>, Arc<Fill>>>,
    fill_count: Arc<AtomicUsize>,
    counted_bytes: AtomicU64,
    account: Arc<dyn Fn(u64, u64) + Send + Sync>,
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
    pub fn new(limits: StoreLimits, account: Arc<dyn Fn(u64, u64) + Send + Sync>) -> Cache {
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
            purges: Mutex::default(),
            disk: None,
            loads: Arc::default(),
            fills: Mutex::default(),
            fill_count: Arc::default(),
            counted_bytes: AtomicU64::new(0),
            account,
            counters: CacheCounters::default(),
            search_rules: SearchRules::default(),
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
        if self.fill_count.load(Ordering::Relaxed) >= self.limits.fills_max {
            return FillStart::Full;
        }
        let (fill, reader) = Fill::new(
            key.into(),
            shared_key.clone(),
            began_after,
            self.limits.object_bytes_max,
            &self.fill_count,
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

    /// Stores what a fill has brought.
    ///
    /// # Errors
    /// It was purged meanwhile.
    pub fn store(&self, fill: &Fill, object: Arc<Object>) -> Result<(), NotStored> {
        let purges = self.purges();
        if purges.was_purged(fill.began_after, &fill.key, &object) {
            return Err(NotStored::Purged);
        }
        self.insert(&fill.key, &object);
        if let Some(disk) = &self.disk {
            disk.store(&fill.key, &object);
        }
        drop(purges);
        self.counters.stored.fetch_add(1, Ordering::Relaxed);
        self.settle();
        Ok(())
    }

    /// Adds a response to those of its key.
    fn insert(&self, key: &Arc<[u8]>, object: &Arc<Object>) {
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
        self.entries.insert(key.clone(), CacheEntry::new(key, objects, None));
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
        if purges.was_purged(read.began_after, key, &object) {
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
        self.settle();
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
        let entry = CacheEntry::new(key, objects, Some((why, now_s + UNCACHEABLE_S)));
        self.entries.insert(key.into(), entry);
        drop(purges);
        self.settle();
    }

    /// Releases a response on its way: nobody joins it from now on.
    pub fn leave(&self, fill: &Arc<Fill>) {
        let Some(key) = &fill.shared_key else { return };
        let mut fills = self.fills();
        if fills.get(key).is_some_and(|other| Arc::ptr_eq(other, fill)) {
            fills.remove(key);
        }
    }

    /// Removes responses; a soft purge makes them stale instead. Once this returns, no core serves them as fresh. Returns how
    /// many there were.
    pub fn purge(&self, purge: &Purge, soft_at_s: Option<u64>) -> u64 {
        self.purge_where(purge, None, soft_at_s)
    }

    /// Removes what is stored for a URL that an unsafe request has changed (RFC 9111 section 4.4).
    pub fn invalidate(&self, key: &[u8]) {
        self.purge_where(&Purge::Exact(url(key).to_vec()), Some(key), None);
    }

    /// The same, under one key where that is given.
    fn purge_where(&self, purge: &Purge, of_key: Option<&[u8]>, soft_at_s: Option<u64>) -> u64 {
        let mut purges = self.purges();
        purges.count += 1;
        purges.latest.push_back(purge.clone());
        if purges.latest.len() > PURGES_MAX {
            purges.latest.pop_front();
        }
        self.fills().retain(|_, fill| match purge {
            // What tags it will have is not known.
            Purge::Tag(_) => false,
            purge => !purge.is_of_key(&fill.key),
        });
        // An invalidation need not outlive the process for the moment that its files need to be removed.
        let on_disk = self.disk.as_ref().map_or(0, |disk| disk.purge(purge, soft_at_s, of_key.is_none()));
        let purged = AtomicU64::new(0);
        let mut changed: Vec<(Arc<[u8]>, Arc<CacheEntry>)> = Vec::new();
        let mut look = |key: &Arc<[u8]>, entry: &Arc<CacheEntry>| {
            let count = entry.objects.iter().filter(|object| purge.is_of(key, object)).count();
            purged.fetch_add(count as u64, Ordering::Relaxed);
            if count == 0 {
                return;
            }
            match soft_at_s {
                Some(now_s) => {
                    let objects = entry.objects.iter().filter(|object| purge.is_of(key, object));
                    objects.for_each(|object| object.expire(now_s));
                }
                None => changed.push((key.clone(), entry.clone())),
            }
        };
        match of_key {
            Some(key) => self.entries.peek(key).iter().for_each(|entry| look(&key.into(), entry)),
            None => self.entries.iter().for_each(|(key, entry)| look(&key, &entry)),
        }
        for (key, entry) in changed {
            let left: Vec<Arc<Object>> =
                entry.objects.iter().filter(|object| !purge.is_of(&key, object)).cloned().collect();
            match left.is_empty() {
                true => _ = self.entries.remove(&key[..]),
                false => self.entries.insert(key.clone(), CacheEntry::new(&key, left, None)),
            }
        }
        drop(purges);
        self.settle();
        on_disk.max(purged.into_inner())
    }

    /// What it holds.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        CacheStats {
            entries: self.entries.len() as u64,
            bytes: self.entries.weight(),
            bytes_max: self.limits.bytes_max,
            fills: self.fill_count.load(Ordering::Relaxed) as u64,
        }
    }

    fn purges(&self) -> MutexGuard<'_, Purges> {
        self.purges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fills(&self) -> MutexGuard<'_, HashMap<Arc<[u8]>, Arc<Fill>>> {
        self.fills.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts what is held now beside objects.
    fn settle(&self) {
        // Objects count themselves.
        let now = self.entries.len() as u64 * ENTRY_BYTES;
        let before = self.counted_bytes.swap(now, Ordering::Relaxed);
        if now != before {
            (self.account)(before, now);
        }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        (self.account)(self.counted_bytes.load(Ordering::Relaxed), 0);
    }
}

#[cfg(test)]
mod tests;
