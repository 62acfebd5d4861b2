//! Index of the responses on disk. File names contain all of its data: it is rebuilt from them at each start
//! without opening any file.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use twox_hash::XxHash3_128;

use crate::key::url;
use crate::object::Object;
use crate::purge::Purge;

/// Block size of the file system.
pub(crate) const BLOCK_BYTES: u64 = 4096;
/// Bytes of memory accounted for one file.
pub(crate) const FILE_BYTES: u64 = 112;
/// Maximum purges not yet applied to every file. If there are more, everything is purged instead.
pub(crate) const PURGES_MAX: usize = 1024;

/// Name of a file, which identifies the response and the order of storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FileName {
    /// Hash of the URL.
    pub(crate) url: u128,
    /// Hash of the key and of the selecting request fields.
    pub(crate) variant: u64,
    /// Sequence number among all stored responses and purges.
    pub(crate) number: u64,
    /// Size of the file in bytes.
    pub(crate) bytes: u64,
}

impl FileName {
    /// Creates the name for a response.
    pub(crate) fn new(key: &[u8], object: &Object, number: u64, bytes: u64) -> FileName {
        let mut selected = key.to_vec();
        for (name, value) in object.variant.selectors() {
            selected
                .extend_from_slice(&[b"\0", &name[..], b"\0", value.as_deref().unwrap_or(b"\0")].concat());
        }
        let variant = XxHash3_128::oneshot(&selected) as u64;
        FileName { url: url_hash(url(key)), variant, number, bytes }
    }

    /// Returns the subdirectory of the file.
    pub(crate) fn folder(&self) -> String {
        format!("{:02x}", self.url >> 120)
    }

    /// Returns the path relative to the directory of the cache.
    pub(crate) fn path(&self) -> PathBuf {
        let FileName { url, variant, number, bytes } = self;
        PathBuf::from(self.folder()).join(format!("{url:032x}{variant:016x}{number:016x}.{bytes:x}"))
    }

    /// Parses a file name written by [`FileName::path`].
    pub(crate) fn parse(text: &str) -> Option<FileName> {
        let (digits, bytes) = text.split_once('.')?;
        let is_hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if digits.len() != 64 || !is_hex(digits) || !is_hex(bytes) {
            return None;
        }
        let part = |from: usize| u64::from_str_radix(&digits[from..from + 16], 16).ok();
        Some(FileName {
            url: u128::from_str_radix(&digits[..32], 16).ok()?,
            variant: part(32)?,
            number: part(48)?,
            bytes: u64::from_str_radix(bytes, 16).ok()?,
        })
    }

    /// Returns the disk space of the file in bytes.
    pub(crate) fn disk_bytes(&self) -> u64 {
        // A quarter of a block is added for the directory entry and the inode.
        self.bytes.next_multiple_of(BLOCK_BYTES) + BLOCK_BYTES / 4
    }
}

/// Returns the hash of a URL. URLs with equal hashes are distinguished by the key in the file.
pub(crate) fn url_hash(url: &[u8]) -> u128 {
    XxHash3_128::oneshot(url)
}

/// A purge that may not have been applied to every file yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PendingPurge {
    /// Number of the purge, which applies to responses with smaller numbers.
    pub(crate) number: u64,
    pub(crate) purge: Purge,
    /// Time of a soft purge, in seconds since 1970; `None` for a purge that removes.
    pub(crate) soft_at_s: Option<u64>,
}

/// A file under a hash of URL and variant.
#[derive(Clone, Copy, Debug)]
struct StoredFile {
    number: u64,
    bytes: u64,
    /// Whether the file was read since eviction last passed over it.
    is_used: bool,
}

/// Effect of the purges on a stored response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PurgeEffect {
    /// Not purged.
    Valid,
    /// Stale since this time, in seconds since 1970, by a soft purge.
    Expired(u64),
    /// Removed by a purge.
    Purged,
}

/// Files in order of eviction.
#[derive(Debug, Default)]
pub(crate) struct DiskIndex {
    slots: BTreeMap<(u128, u64), StoredFile>,
    /// Eviction order. Entries that no longer match `slots` are skipped.
    order: VecDeque<(u128, u64, u64)>,
    /// Files to be removed.
    to_remove: VecDeque<FileName>,
    to_remove_bytes: u64,
    /// Number of files being removed.
    removing: usize,
    /// Disk space of all files, in bytes.
    bytes: u64,
    /// Pending purges, shared with concurrent readers of files.
    purges: Arc<Vec<PendingPurge>>,
    number: u64,
    /// Number of responses queued for writing, by the hash of their URL.
    queued: HashMap<u128, u32>,
    /// The last sweep order, if no other order was sent after it; a later purge joins it instead of sending
    /// another.
    pub(crate) open_sweep: Option<SweepOrder>,
}

/// Number of the last purge that a sweep order covers.
pub(crate) type SweepOrder = Arc<AtomicU64>;

impl DiskIndex {
    /// Loads the files of the directory; `number` is larger than that of any file. Purged files are marked
    /// for removal.
    pub(crate) fn load(&mut self, mut files: Vec<FileName>, purges: Vec<PendingPurge>, number: u64) {
        // Sorted like the map, which is built in one pass.
        files.sort_unstable_by_key(|file| (file.url, file.variant, file.number));
        *self = DiskIndex {
            purges: std::mem::take(&mut self.purges),
            queued: std::mem::take(&mut self.queued),
            open_sweep: self.open_sweep.take(),
            number,
            ..DiskIndex::default()
        };
        let mut all = purges;
        for purge in self.purges.iter() {
            // Made before the files were known, so they apply to all of them.
            let number = self.number + all.len() as u64;
            all.push(PendingPurge { number, ..purge.clone() });
        }
        self.number += all.len() as u64;
        self.bytes = files.iter().map(FileName::disk_bytes).sum();
        let is_replaced = |at: usize, file: &FileName| {
            files.get(at + 1).is_some_and(|next| (next.url, next.variant) == (file.url, file.variant))
        };
        let (older, mut newest): (Vec<_>, Vec<_>) =
            files.iter().enumerate().partition(|(at, file)| is_replaced(*at, file));
        older.into_iter().for_each(|(_, file)| self.mark_for_removal(*file));
        let slots = newest.iter().map(|(_, file)| {
            let slot = StoredFile { number: file.number, bytes: file.bytes, is_used: false };
            ((file.url, file.variant), slot)
        });
        self.slots = slots.collect();
        newest.sort_unstable_by_key(|(_, file)| file.number);
        self.order = newest.iter().map(|(_, file)| (file.url, file.variant, file.number)).collect();
        all.iter().for_each(|purge| _ = self.apply_at_once(purge));
        self.purges = Arc::new(all);
    }

    /// Returns the sequence number that follows, without using it.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the next sequence number.
    pub(crate) fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number - 1
    }

    /// Adds a file and marks the one that it replaces for removal.
    pub(crate) fn insert(&mut self, file: FileName) {
        let slot = StoredFile { number: file.number, bytes: file.bytes, is_used: false };
        let before = self.slots.insert((file.url, file.variant), slot);
        self.bytes += file.disk_bytes();
        self.order.push_back((file.url, file.variant, file.number));
        if let Some(before) = before {
            self.mark_for_removal(name((file.url, file.variant), &before));
        }
        // Replaced entries stay in the order until eviction reaches them; compacted when there are too many.
        if self.order.len() > 2 * self.slots.len() + 64 {
            let slots = &self.slots;
            self.order.retain(|(url, variant, number)| {
                slots.get(&(*url, *variant)).is_some_and(|slot| slot.number == *number)
            });
        }
    }

    /// Returns the files of a URL, the newest first.
    pub(crate) fn files(&self, url: u128) -> Vec<FileName> {
        let mut files: Vec<FileName> = self.files_of_url(url).collect();
        files.sort_unstable_by_key(|file| std::cmp::Reverse(file.number));
        files
    }

    fn files_of_url(&self, url: u128) -> impl Iterator<Item = FileName> + '_ {
        self.slots.range((url, 0)..=(url, u64::MAX)).map(|(id, slot)| name(*id, slot))
    }

    /// Whether there may be a response for this URL.
    pub(crate) fn has_url(&self, url: u128) -> bool {
        self.files_of_url(url).next().is_some()
    }

    /// Records that a file was read, so that the next eviction passes over it.
    pub(crate) fn mark_used(&mut self, file: &FileName) {
        if let Some(slot) = self.slots.get_mut(&(file.url, file.variant)) {
            slot.is_used = true;
        }
    }

    /// Removes a file from the index and marks it for removal from disk.
    pub(crate) fn remove(&mut self, file: &FileName) {
        let id = (file.url, file.variant);
        if self.slots.get(&id).is_some_and(|slot| slot.number == file.number) {
            self.slots.remove(&id);
            self.mark_for_removal(*file);
        }
    }

    fn mark_for_removal(&mut self, file: FileName) {
        self.to_remove_bytes += file.disk_bytes();
        self.to_remove.push_back(file);
    }

    /// Records that a file has been removed from disk.
    pub(crate) fn confirm_removed(&mut self, file: &FileName) {
        self.bytes -= file.disk_bytes();
        self.removing -= 1;
    }

    /// Takes the next files to remove, at most `most`.
    pub(crate) fn take_files_to_remove(&mut self, count_max: usize) -> Vec<FileName> {
        let most = count_max.min(self.to_remove.len());
        let taken: Vec<FileName> = self.to_remove.drain(..most).collect();
        self.to_remove_bytes -= taken.iter().map(FileName::disk_bytes).sum::<u64>();
        self.removing += taken.len();
        taken
    }

    /// Makes room: marks the files for removal that were stored first and not read since. Returns whether
    /// there will be enough room once they are removed.
    pub(crate) fn make_room(&mut self, bytes_max: u64, files_max: usize) -> bool {
        while self.bytes - self.to_remove_bytes > bytes_max || self.slots.len() > files_max {
            let Some((url, variant, number)) = self.order.pop_front() else { return false };
            let Some(slot) = self.slots.get_mut(&(url, variant)).filter(|slot| slot.number == number) else {
                continue;
            };
            if std::mem::take(&mut slot.is_used) {
                self.order.push_back((url, variant, number));
                continue;
            }
            let file = name((url, variant), slot);
            self.remove(&file);
        }
        true
    }

    /// Counts a response that is queued for writing.
    pub(crate) fn enqueue(&mut self, url: u128) {
        *self.queued.entry(url).or_default() += 1;
    }

    /// Uncounts a response that was written or abandoned.
    pub(crate) fn dequeue(&mut self, url: u128) {
        if let Some(count) = self.queued.get_mut(&url) {
            *count -= 1;
            if *count == 0 {
                self.queued.remove(&url);
            }
        }
    }

    /// Whether a purge of a URL has no effect: nothing is stored or queued for it, and no removal is pending.
    pub(crate) fn has_nothing_for(&self, purge: &Purge) -> bool {
        let is_unknown = |url: &Vec<u8>| {
            let hash = url_hash(url);
            !self.has_url(hash) && !self.queued.contains_key(&hash)
        };
        matches!(purge, Purge::Exact(_)) && self.to_remove_count() == 0 && purge.urls().iter().all(is_unknown)
    }

    /// Returns the order to send for a purge; `None` if the last one sent covers it.
    pub(crate) fn sweep_order(&mut self, number: u64) -> Option<SweepOrder> {
        if let Some(order) = &self.open_sweep {
            order.store(number, Ordering::Relaxed);
            return None;
        }
        let order: SweepOrder = Arc::new(AtomicU64::new(number));
        self.open_sweep = Some(order.clone());
        Some(order)
    }

    /// Closes a sweep order that the thread has received, so that later purges send their own. Returns the
    /// purge number to sweep up to.
    pub(crate) fn take_sweep(&mut self, order: &SweepOrder) -> u64 {
        if self.open_sweep.as_ref().is_some_and(|open| Arc::ptr_eq(open, order)) {
            self.open_sweep = None;
        }
        order.load(Ordering::Relaxed)
    }

    /// Remembers a purge, and applies it as far as file names suffice. Returns its sequence number, and the number
    /// of files it matches by URL.
    pub(crate) fn purge(&mut self, purge: &Purge, soft_at_s: Option<u64>) -> (u64, u64) {
        let mut purge = purge.clone();
        let mut soft_at_s = soft_at_s;
        if soft_at_s.is_none() && self.purges.iter().any(|pending| pending.purge == purge) {
            // Replaces an earlier identical purge.
            Arc::make_mut(&mut self.purges).retain(|pending| pending.purge != purge);
        }
        if self.purges.len() >= PURGES_MAX {
            self.purges = Arc::default();
            (purge, soft_at_s) = (Purge::All, None);
        }
        let pending = PendingPurge { number: self.next_number(), purge, soft_at_s };
        let number = pending.number;
        let count = self.apply_at_once(&pending);
        Arc::make_mut(&mut self.purges).push(pending);
        (number, count)
    }

    fn apply_at_once(&mut self, pending: &PendingPurge) -> u64 {
        let files: Vec<FileName> = match &pending.purge {
            Purge::Exact(_) => self.purged_files(&pending.purge),
            Purge::All => self.slots.iter().map(|(id, slot)| name(*id, slot)).collect(),
            _ => return 0,
        };
        let files: Vec<FileName> = files.into_iter().filter(|file| file.number < pending.number).collect();
        if pending.soft_at_s.is_none() {
            files.iter().for_each(|file| self.remove(file));
        }
        files.len() as u64
    }

    fn purged_files(&self, purge: &Purge) -> Vec<FileName> {
        purge.urls().iter().flat_map(|url| self.files_of_url(url_hash(url))).collect()
    }

    /// Returns the pending purges up to number `to`, and the files that have to be opened for them.
    pub(crate) fn begin_sweep(&self, to: u64) -> (Vec<PendingPurge>, Vec<FileName>) {
        let purges: Vec<PendingPurge> =
            self.purges.iter().filter(|pending| pending.number <= to).cloned().collect();
        let needs_all = |pending: &PendingPurge| match &pending.purge {
            Purge::Exact(_) => false,
            Purge::All => pending.soft_at_s.is_some(),
            _ => true,
        };
        let files = if purges.iter().any(needs_all) {
            self.slots.iter().map(|(id, slot)| name(*id, slot)).collect()
        } else {
            let soft = purges.iter().filter(|pending| pending.soft_at_s.is_some());
            soft.flat_map(|pending| self.purged_files(&pending.purge)).collect()
        };
        (purges, files)
    }

    /// Forgets purges that have been applied to every file.
    pub(crate) fn end_sweep(&mut self, swept: &[PendingPurge]) {
        Arc::make_mut(&mut self.purges).retain(|pending| !swept.contains(pending));
    }

    /// Returns the pending purges.
    pub(crate) fn purges(&self) -> &Arc<Vec<PendingPurge>> {
        &self.purges
    }

    /// Returns the number of files.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns the disk space of all files in bytes, including those to be removed.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the memory accounted for the index, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.slots.len() as u64) * FILE_BYTES
    }

    /// Returns the number of files to be removed.
    pub(crate) fn to_remove_count(&self) -> usize {
        self.to_remove.len() + self.removing
    }
}

/// Returns the effect of these purges on a stored response.
pub(crate) fn purge_effect(purges: &[PendingPurge], key: &[u8], object: &Object, number: u64) -> PurgeEffect {
    let later = purges.iter().filter(|pending| pending.number > number);
    let mut standing = PurgeEffect::Valid;
    for pending in later.filter(|pending| pending.purge.applies_to(key, object)) {
        standing = match (pending.soft_at_s, standing) {
            (None, _) => return PurgeEffect::Purged,
            (Some(at_s), PurgeEffect::Expired(before_s)) => PurgeEffect::Expired(at_s.min(before_s)),
            (Some(at_s), _) => PurgeEffect::Expired(at_s),
        };
    }
    standing
}

fn name((url, variant): (u128, u64), slot: &StoredFile) -> FileName {
    FileName { url, variant, number: slot.number, bytes: slot.bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::tests::object;

    fn file(key: &str, number: u64, bytes: u64) -> FileName {
        FileName::new(key.as_bytes(), &object(&[], ""), number, bytes)
    }

    fn tag(tag: &str) -> Purge {
        Purge::Tag { tag: tag.into(), host: None }
    }

    fn loaded(files: &[FileName], number: u64) -> DiskIndex {
        let mut index = DiskIndex::default();
        index.load(files.to_vec(), Vec::new(), number);
        index
    }

    #[test]
    fn file_names_contain_the_data_of_the_index() {
        let file = file("http://a/x", 77, 4097);
        let path = file.path();
        assert_eq!(FileName::parse(path.file_name().unwrap().to_str().unwrap()), Some(file));
        assert!(path.starts_with(file.folder()));
        assert!(file.disk_bytes() >= 8192);
        for wrong in
            ["", "x", "README.md", &format!("{}.tmp", "0".repeat(64)), &format!("{}.1", "g".repeat(64))]
        {
            assert_eq!(FileName::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn oldest_unread_files_are_evicted_first() {
        let files: Vec<FileName> = (0..10).map(|n| file(&format!("http://a/{n}"), n, 4096)).collect();
        let mut index = loaded(&files, 10);
        let each = files[0].disk_bytes();
        index.mark_used(&files[0]);
        assert!(index.make_room(8 * each, 100));
        let doomed = index.take_files_to_remove(100);
        assert_eq!(doomed, [files[1], files[2]]);
        doomed.iter().for_each(|file| index.confirm_removed(file));
        assert_eq!((index.len(), index.bytes()), (8, 8 * each));
        assert!(index.make_room(u64::MAX, 3));
        assert_eq!((index.len(), index.to_remove_count()), (3, 5));
        // The newer of two files replaces the older, also at the start.
        let newer = file("http://a/9", 20, 1);
        let mut index = loaded(&[newer, files[9]], 21);
        assert_eq!((index.files(newer.url), index.take_files_to_remove(9)), (vec![newer], vec![files[9]]));
    }

    #[test]
    fn purge_applies_only_to_files_stored_before_it() {
        let (one, two) = (file("http://a/1", 1, 9), file("https://a/1", 2, 9));
        let mut index = loaded(&[one, two, file("http://a/2", 3, 9)], 4);
        let tagged = object(&[("xkey", "t")], "");
        let (number, count) = index.purge(&Purge::of_url("//a/1").unwrap(), None);
        assert_eq!((number, count, index.len()), (4, 2, 1));
        index.purge(&tag("t"), None);
        index.purge(&Purge::of_url("http://a/s*").unwrap(), Some(50));
        assert_eq!(purge_effect(index.purges(), b"http://a/2", &tagged, 3), PurgeEffect::Purged);
        assert_eq!(purge_effect(index.purges(), b"http://a/2", &object(&[], ""), 3), PurgeEffect::Valid);
        assert_eq!(
            purge_effect(index.purges(), b"http://a/2", &tagged, 7),
            PurgeEffect::Valid,
            "it was stored later"
        );
        assert_eq!(
            purge_effect(index.purges(), b"http://a/s2", &object(&[], ""), 3),
            PurgeEffect::Expired(50)
        );
        let (purges, files) = index.begin_sweep(u64::MAX);
        assert_eq!((purges.len(), files.len()), (3, 1));
        index.purge(&tag("u"), None);
        index.end_sweep(&purges);
        assert_eq!(index.purges().len(), 1);
    }

    #[test]
    fn purges_before_loading_apply_to_all_loaded_files() {
        let mut index = DiskIndex::default();
        index.purge(&Purge::of_url("http://a/1").unwrap(), None);
        index.purge(&tag("t"), None);
        index.load(vec![file("http://a/1", 900, 9), file("http://a/2", 901, 9)], Vec::new(), 1000);
        assert_eq!((index.len(), index.to_remove_count()), (1, 1));
        assert_eq!(
            purge_effect(index.purges(), b"http://a/2", &object(&[("xkey", "t")], ""), 901),
            PurgeEffect::Purged
        );
        assert!(index.next_number() > 1001);
    }

    #[test]
    fn too_many_purges_are_a_purge_of_everything() {
        let mut index = loaded(&[file("http://a/1", 1, 9)], 4);
        for n in 0..=PURGES_MAX {
            index.purge(&tag(&n.to_string()), None);
        }
        assert_eq!((index.len(), index.to_remove_count(), index.purges().len()), (0, 1, 1));
    }
}
