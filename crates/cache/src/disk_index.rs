//! Which responses are on disk. The names of the files are the index: it is made again from them at each start, and no file is
//! opened for it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use twox_hash::XxHash3_128;

use crate::key::url;
use crate::object::Object;
use crate::purge::Purge;

/// What a file counts as beside its bytes: file systems keep whole blocks.
pub(crate) const BLOCK_BYTES: u64 = 4096;
/// Bytes of memory that one file counts as.
pub(crate) const FILE_BYTES: u64 = 112;
/// Purges that are not applied to every file yet. With more, everything is purged: they cannot all be remembered.
pub(crate) const PURGES_MAX: usize = 1024;

/// The name of a file: what it holds, and when it was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FileName {
    /// The hash of the URL.
    pub(crate) url: u128,
    /// The hash of the key and of the requests that it answers.
    pub(crate) variant: u64,
    /// Its number among all stored responses and purges, in their order.
    pub(crate) number: u64,
    /// Bytes of the file.
    pub(crate) bytes: u64,
}

impl FileName {
    /// That of a response.
    pub(crate) fn new(key: &[u8], object: &Object, number: u64, bytes: u64) -> FileName {
        let mut selected = key.to_vec();
        for (name, value) in object.variant.selectors() {
            selected
                .extend_from_slice(&[b"\0", &name[..], b"\0", value.as_deref().unwrap_or(b"\0")].concat());
        }
        let variant = XxHash3_128::oneshot(&selected) as u64;
        FileName { url: url_hash(url(key)), variant, number, bytes }
    }

    /// The folder that it is in, below that of the cache.
    pub(crate) fn folder(&self) -> String {
        format!("{:02x}", self.url >> 120)
    }

    /// Its path below the folder of the cache.
    pub(crate) fn path(&self) -> PathBuf {
        let FileName { url, variant, number, bytes } = self;
        PathBuf::from(self.folder()).join(format!("{url:032x}{variant:016x}{number:016x}.{bytes:x}"))
    }

    /// The name of a file, as [`FileName::path`] has written it.
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

    /// Bytes of the disk that it takes.
    pub(crate) fn disk_bytes(&self) -> u64 {
        // One block more for its entry in the folder and in the file system's table.
        self.bytes.next_multiple_of(BLOCK_BYTES) + BLOCK_BYTES / 4
    }
}

/// The hash of a URL. Two URLs with the same are distinguished by the key in the file.
pub(crate) fn url_hash(url: &[u8]) -> u128 {
    XxHash3_128::oneshot(url)
}

/// A purge that may not have reached every file yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PendingPurge {
    /// It is about responses with smaller numbers.
    pub(crate) number: u64,
    pub(crate) purge: Purge,
    /// When it was, in seconds since 1970, where it makes stale instead of removing.
    pub(crate) soft_at_s: Option<u64>,
}

/// What is stored under a hash of a URL and of a variant.
#[derive(Clone, Copy, Debug)]
struct StoredFile {
    number: u64,
    bytes: u64,
    /// It was read since it was last passed over.
    is_used: bool,
}

/// What becomes of a stored response after the purges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is as it was.
    Valid,
    /// A soft purge made it stale at this time, in seconds since 1970.
    Expired(u64),
    /// It was purged.
    Purged,
}

/// The files, in the order in which they leave.
#[derive(Debug, Default)]
pub(crate) struct DiskIndex {
    slots: BTreeMap<(u128, u64), StoredFile>,
    /// Names that are no longer in `slots` are passed over.
    order: VecDeque<(u128, u64, u64)>,
    /// Files that are to be removed.
    doomed: VecDeque<FileName>,
    doomed_bytes: u64,
    /// Files that are being removed.
    leaving: usize,
    /// Bytes of the disk that all of them take.
    bytes: u64,
    /// Shared with those who read a file meanwhile.
    purges: Arc<Vec<PendingPurge>>,
    number: u64,
    /// How many responses of a URL wait to be written, by its hash.
    queued: HashMap<u128, u32>,
    /// The order to sweep that was sent last, where nothing was sent after it: a later purge needs no other one.
    pub(crate) open_sweep: Option<SweepOrder>,
}

/// The number of the last purge that an order to sweep is about.
pub(crate) type SweepOrder = Arc<AtomicU64>;

impl DiskIndex {
    /// Takes over what is there; `number` is larger than that of any file. What was purged is to be removed.
    pub(crate) fn load(&mut self, mut files: Vec<FileName>, purges: Vec<PendingPurge>, number: u64) {
        // In the order of the map, which is built at once.
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
            // They came before anything was known of the files, and are about all of them.
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
        older.into_iter().for_each(|(_, file)| self.doom(*file));
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

    /// The number of what comes next.
    pub(crate) fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number - 1
    }

    /// Adds a file; the one that it replaces is to be removed.
    pub(crate) fn insert(&mut self, file: FileName) {
        let slot = StoredFile { number: file.number, bytes: file.bytes, is_used: false };
        let before = self.slots.insert((file.url, file.variant), slot);
        self.bytes += file.disk_bytes();
        self.order.push_back((file.url, file.variant, file.number));
        if let Some(before) = before {
            self.doom(name((file.url, file.variant), &before));
        }
        // What was replaced stays in the order until it is reached: not too often.
        if self.order.len() > 2 * self.slots.len() + 64 {
            let slots = &self.slots;
            self.order.retain(|(url, variant, number)| {
                slots.get(&(*url, *variant)).is_some_and(|slot| slot.number == *number)
            });
        }
    }

    /// The files of a URL, the newest first.
    pub(crate) fn files(&self, url: u128) -> Vec<FileName> {
        let mut files: Vec<FileName> = self.of_url(url).collect();
        files.sort_unstable_by_key(|file| std::cmp::Reverse(file.number));
        files
    }

    fn of_url(&self, url: u128) -> impl Iterator<Item = FileName> + '_ {
        self.slots.range((url, 0)..=(url, u64::MAX)).map(|(id, slot)| name(*id, slot))
    }

    /// Whether there may be a response for this URL.
    pub(crate) fn has_url(&self, url: u128) -> bool {
        self.of_url(url).next().is_some()
    }

    /// It was read: it stays when the next ones leave.
    pub(crate) fn mark_used(&mut self, file: &FileName) {
        if let Some(slot) = self.slots.get_mut(&(file.url, file.variant)) {
            slot.is_used = true;
        }
    }

    /// It is not to be found any more, and its file is to be removed.
    pub(crate) fn remove(&mut self, file: &FileName) {
        let id = (file.url, file.variant);
        if self.slots.get(&id).is_some_and(|slot| slot.number == file.number) {
            self.slots.remove(&id);
            self.doom(*file);
        }
    }

    fn doom(&mut self, file: FileName) {
        self.doomed_bytes += file.disk_bytes();
        self.doomed.push_back(file);
    }

    /// Its file is removed.
    pub(crate) fn forget(&mut self, file: &FileName) {
        self.bytes -= file.disk_bytes();
        self.leaving -= 1;
    }

    /// The next files to remove.
    pub(crate) fn take_doomed(&mut self, most: usize) -> Vec<FileName> {
        let most = most.min(self.doomed.len());
        let taken: Vec<FileName> = self.doomed.drain(..most).collect();
        self.doomed_bytes -= taken.iter().map(FileName::disk_bytes).sum::<u64>();
        self.leaving += taken.len();
        taken
    }

    /// Makes room: has the files removed that were stored first and not read since. Returns whether there is room, once they
    /// are removed.
    pub(crate) fn make_room(&mut self, bytes_max: u64, files_max: usize) -> bool {
        while self.bytes - self.doomed_bytes > bytes_max || self.slots.len() > files_max {
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

    /// A response waits to be written.
    pub(crate) fn enqueue(&mut self, url: u128) {
        *self.queued.entry(url).or_default() += 1;
    }

    /// It is written, or never will be.
    pub(crate) fn dequeue(&mut self, url: u128) {
        if let Some(count) = self.queued.get_mut(&url) {
            *count -= 1;
            if *count == 0 {
                self.queued.remove(&url);
            }
        }
    }

    /// Whether a purge of a URL is about nothing: no file, and none that is to be written or removed.
    pub(crate) fn has_nothing_for(&self, purge: &Purge) -> bool {
        let is_unknown = |url: &Vec<u8>| {
            let hash = url_hash(url);
            !self.has_url(hash) && !self.queued.contains_key(&hash)
        };
        matches!(purge, Purge::Exact(_)) && self.doomed() == 0 && purge.urls().iter().all(is_unknown)
    }

    /// The order to send for a purge; `None` where the one that was sent last will do.
    pub(crate) fn sweep_order(&mut self, number: u64) -> Option<SweepOrder> {
        if let Some(order) = &self.open_sweep {
            order.store(number, Ordering::Relaxed);
            return None;
        }
        let order: SweepOrder = Arc::new(AtomicU64::new(number));
        self.open_sweep = Some(order.clone());
        Some(order)
    }

    /// An order to sweep has arrived: no later purge relies on it. Returns its number.
    pub(crate) fn take_sweep(&mut self, order: &SweepOrder) -> u64 {
        if self.open_sweep.as_ref().is_some_and(|open| Arc::ptr_eq(open, order)) {
            self.open_sweep = None;
        }
        order.load(Ordering::Relaxed)
    }

    /// Remembers a purge, and applies it where the names of files suffice. Returns it with its number, and how many files of
    /// a URL it is about.
    pub(crate) fn purge(&mut self, purge: &Purge, soft_at_s: Option<u64>) -> (PendingPurge, u64) {
        let (mut purge, mut soft_at_s) = (purge.clone(), soft_at_s);
        if soft_at_s.is_none() && self.purges.iter().any(|pending| pending.purge == purge) {
            // The later one takes the place of the earlier.
            Arc::make_mut(&mut self.purges).retain(|pending| pending.purge != purge);
        }
        if self.purges.len() >= PURGES_MAX {
            self.purges = Arc::default();
            (purge, soft_at_s) = (Purge::All, None);
        }
        let pending = PendingPurge { number: self.next_number(), purge, soft_at_s };
        let count = self.apply_at_once(&pending);
        Arc::make_mut(&mut self.purges).push(pending.clone());
        (pending, count)
    }

    fn apply_at_once(&mut self, pending: &PendingPurge) -> u64 {
        let files: Vec<FileName> = match &pending.purge {
            Purge::Exact(_) => self.of_purged_urls(&pending.purge),
            Purge::All => self.slots.iter().map(|(id, slot)| name(*id, slot)).collect(),
            _ => return 0,
        };
        let files: Vec<FileName> = files.into_iter().filter(|file| file.number < pending.number).collect();
        if pending.soft_at_s.is_none() {
            files.iter().for_each(|file| self.remove(file));
        }
        files.len() as u64
    }

    fn of_purged_urls(&self, purge: &Purge) -> Vec<FileName> {
        purge.urls().iter().flat_map(|url| self.of_url(url_hash(url))).collect()
    }

    /// The purges that wait, up to that number, and the files that have to be looked into for them.
    pub(crate) fn begin_sweep(&self, to: u64) -> (Vec<PendingPurge>, Vec<FileName>) {
        let purges: Vec<PendingPurge> =
            self.purges.iter().filter(|pending| pending.number <= to).cloned().collect();
        let needs_all = |pending: &PendingPurge| match &pending.purge {
            Purge::Exact(_) => false,
            Purge::All => pending.soft_at_s.is_some(),
            _ => true,
        };
        let files = match purges.iter().any(needs_all) {
            true => self.slots.iter().map(|(id, slot)| name(*id, slot)).collect(),
            false => {
                let soft = purges.iter().filter(|pending| pending.soft_at_s.is_some());
                soft.flat_map(|pending| self.of_purged_urls(&pending.purge)).collect()
            }
        };
        (purges, files)
    }

    /// They have reached every file.
    pub(crate) fn end_sweep(&mut self, swept: &[PendingPurge]) {
        Arc::make_mut(&mut self.purges).retain(|pending| !swept.contains(pending));
    }

    /// The purges that wait.
    pub(crate) fn purges(&self) -> &Arc<Vec<PendingPurge>> {
        &self.purges
    }

    /// Files.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Bytes of the disk that they take, and those that are to be removed.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of memory that it counts as.
    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.slots.len() as u64) * FILE_BYTES
    }

    /// How many files are to be removed.
    pub(crate) fn doomed(&self) -> usize {
        self.doomed.len() + self.leaving
    }
}

/// What became of a stored response after these purges.
pub(crate) fn standing(purges: &[PendingPurge], key: &[u8], object: &Object, number: u64) -> Standing {
    let later = purges.iter().filter(|pending| pending.number > number);
    let mut standing = Standing::Valid;
    for pending in later.filter(|pending| pending.purge.is_of(key, object)) {
        standing = match (pending.soft_at_s, standing) {
            (None, _) => return Standing::Purged,
            (Some(at_s), Standing::Expired(before_s)) => Standing::Expired(at_s.min(before_s)),
            (Some(at_s), _) => Standing::Expired(at_s),
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
    fn names_hold_what_the_index_needs() {
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
    fn what_was_stored_first_and_not_read_leaves_first() {
        let files: Vec<FileName> = (0..10).map(|n| file(&format!("http://a/{n}"), n, 4096)).collect();
        let mut index = loaded(&files, 10);
        let each = files[0].disk_bytes();
        index.mark_used(&files[0]);
        assert!(index.make_room(8 * each, 100));
        let doomed = index.take_doomed(100);
        assert_eq!(doomed, [files[1], files[2]]);
        doomed.iter().for_each(|file| index.forget(file));
        assert_eq!((index.len(), index.bytes()), (8, 8 * each));
        assert!(index.make_room(u64::MAX, 3));
        assert_eq!((index.len(), index.doomed()), (3, 5));
        // The newer of two takes the place of the older, also at the start.
        let newer = file("http://a/9", 20, 1);
        let mut index = loaded(&[newer, files[9]], 21);
        assert_eq!((index.files(newer.url), index.take_doomed(9)), (vec![newer], vec![files[9]]));
    }

    #[test]
    fn a_purge_is_about_what_was_stored_before_it() {
        let (one, two) = (file("http://a/1", 1, 9), file("https://a/1", 2, 9));
        let mut index = loaded(&[one, two, file("http://a/2", 3, 9)], 4);
        let tagged = object(&[("xkey", "t")], "");
        let (pending, count) = index.purge(&Purge::of_url("//a/1").unwrap(), None);
        assert_eq!((pending.number, count, index.len()), (4, 2, 1));
        index.purge(&tag("t"), None);
        index.purge(&Purge::of_url("http://a/s*").unwrap(), Some(50));
        assert_eq!(standing(index.purges(), b"http://a/2", &tagged, 3), Standing::Purged);
        assert_eq!(standing(index.purges(), b"http://a/2", &object(&[], ""), 3), Standing::Valid);
        assert_eq!(
            standing(index.purges(), b"http://a/2", &tagged, 7),
            Standing::Valid,
            "it was stored later"
        );
        assert_eq!(standing(index.purges(), b"http://a/s2", &object(&[], ""), 3), Standing::Expired(50));
        let (purges, files) = index.begin_sweep(u64::MAX);
        assert_eq!((purges.len(), files.len()), (3, 1));
        index.purge(&tag("u"), None);
        index.end_sweep(&purges);
        assert_eq!(index.purges().len(), 1);
    }

    #[test]
    fn purges_that_came_before_the_files_were_known_are_about_all_of_them() {
        let mut index = DiskIndex::default();
        index.purge(&Purge::of_url("http://a/1").unwrap(), None);
        index.purge(&tag("t"), None);
        index.load(vec![file("http://a/1", 900, 9), file("http://a/2", 901, 9)], Vec::new(), 1000);
        assert_eq!((index.len(), index.doomed()), (1, 1));
        assert_eq!(
            standing(index.purges(), b"http://a/2", &object(&[("xkey", "t")], ""), 901),
            Standing::Purged
        );
        assert!(index.next_number() > 1001);
    }

    #[test]
    fn too_many_purges_are_a_purge_of_everything() {
        let mut index = loaded(&[file("http://a/1", 1, 9)], 4);
        for n in 0..=PURGES_MAX {
            index.purge(&tag(&n.to_string()), None);
        }
        assert_eq!((index.len(), index.doomed(), index.purges().len()), (0, 1, 1));
    }
}
