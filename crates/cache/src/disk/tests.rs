//! The cache on disk behind a small memory cache: stored responses, purges, failures and restarts.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::AtomicI64;
use std::time::Instant;

use http::{HeadRef, RequestHead};

use super::*;
use crate::disk_thread::DiskEvent;
use crate::object::tests::object;
use crate::store::{Cache, FillStart, StoreLimits};

const MIB: u64 = 1 << 20;

mod killed;

/// A directory that is removed with its test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("komainu-disk-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        Folder(path)
    }

    /// Returns a copy of the directory as it would be if the process were killed at this moment.
    fn killed(&self) -> Folder {
        let copy = Folder::new();
        // Copied first: a purge leaves this list only after its files have been removed.
        fs::create_dir_all(&copy.0).unwrap();
        let purges = fs::read(self.0.join("purges"));
        copy_folder(&self.0, &copy.0);
        // Without the list, the directory is void.
        let _ = purges.map(|purges| fs::write(copy.0.join("purges"), purges).unwrap());
        copy
    }

    fn files(&self) -> Vec<PathBuf> {
        let folders = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path());
        let folders = folders.filter(|path| path.is_dir());
        folders.flat_map(|path| fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path())).collect()
    }
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.as_ref().unwrap().path();
        let to = to.join(entry.unwrap().file_name());
        if path.is_dir() {
            copy_folder(&path, &to);
        } else if let Err(error) = fs::copy(&path, &to) {
            // Removed meanwhile.
            assert_eq!(error.kind(), io::ErrorKind::NotFound);
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A cache on disk with almost no memory, and its reports.
struct Rig {
    cache: Cache,
    reports: Arc<Mutex<Vec<String>>>,
    held: Arc<AtomicI64>,
    folder: DiskFolder,
}

fn options(folder: &Folder, bytes_max: u64) -> DiskOptions {
    let wait = Duration::from_secs(30);
    let retry = Duration::from_millis(20);
    DiskOptions {
        disk: CacheDisk { path: folder.0.clone(), bytes_max },
        index_bytes_max: 64 * MIB,
        open_wait: wait,
        retry_pause: retry,
    }
}

fn rig_with(options: DiskOptions) -> Rig {
    let reports: Arc<Mutex<Vec<String>>> = Arc::default();
    let held: Arc<AtomicI64> = Arc::default();
    let theirs = reports.clone();
    let account = held.clone();
    let folder = DiskFolder::new(options.disk.path.clone());
    let account: Arc<dyn Fn(u64, u64) + Send + Sync> =
        Arc::new(move |before, after| _ = account.fetch_add(after as i64 - before as i64, Ordering::Relaxed));
    let report = move |event: DiskEvent<'_>| {
        let text = format!("{event:?}");
        theirs.lock().unwrap().push(text.split(['(', ' ']).next().unwrap().to_owned());
    };
    let disk = Disk::open_folder(options, folder.clone(), account.clone(), Arc::new(report)).unwrap();
    let limits = StoreLimits { bytes_max: MIB, object_bytes_max: MIB, ..StoreLimits::default() };
    Rig { cache: Cache::new(limits, account).with_disk(Some(Arc::new(disk))), reports, held, folder }
}

fn rig(folder: &Folder) -> Rig {
    rig_with(options(folder, 1024 * MIB))
}

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < until, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

impl Rig {
    fn disk(&self) -> &Disk {
        self.cache.disk().unwrap()
    }

    fn put(&self, key: &str, lines: &[(&str, &str)], body: &str) {
        let FillStart::Lead(fill, _reader) = self.cache.begin_fill(key.as_bytes(), None) else { panic!() };
        self.cache.store(&fill, self.cache.accounted(object(lines, body))).unwrap();
    }

    fn settle(&self) {
        eventually("everything is written", || self.disk().is_idle());
    }

    /// Reads the response for a GET from disk.
    fn read(&self, key: &str) -> Option<(Arc<Object>, String)> {
        let bytes = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let mut head = RequestHead::default();
        assert!(head.parse(bytes, &http::Limits::default()).unwrap());
        let read = self.cache.find_on_disk(key.as_bytes())?.read(HeadRef::new(&head, bytes))?;
        let object = self.cache.add_from_disk(key.as_bytes(), read, true)?;
        let body: Vec<u8> = object.body.slices(0..u64::MAX).flatten().copied().collect();
        Some((object, String::from_utf8(body).unwrap()))
    }

    fn body(&self, key: &str) -> Option<String> {
        self.read(key).map(|(_, body)| body)
    }

    fn reported(&self) -> Vec<String> {
        self.reports.lock().unwrap().clone()
    }
}

/// Returns the content of number `n`, with a length of up to several pieces.
fn content(n: usize) -> String {
    let len = n * 7919 % if n.is_multiple_of(50) { 200_000 } else { 5_000 };
    let mut text = format!("{n}:");
    text.extend((0..len).map(|at| char::from(b'a' + ((at * 31 + n) % 26) as u8)));
    text
}

/// Stores `count` responses, simulates a kill, reopens and compares every byte.
fn survives(count: usize) {
    let folder = Folder::new();
    let first = rig(&folder);
    for n in 0..count {
        first.put(&format!("http://a/{n}"), &[("X-N", &n.to_string())], &content(n));
        while first.disk().shared.queued_bytes.load(Ordering::Relaxed) > 16 * MIB {
            std::thread::yield_now();
        }
    }
    first.settle();
    assert_eq!(first.disk().stats().written, count as u64);
    let killed = folder.killed();
    let second = rig(&killed);
    assert_eq!(second.reported(), ["Opened"]);
    assert_eq!(second.disk().stats().files, count as u64);
    for n in 0..count {
        let (object, body) = second.read(&format!("http://a/{n}")).unwrap();
        assert!(body == content(n), "{n}");
        assert_eq!(object.fields.first(b"x-n"), Some(n.to_string().as_bytes()));
    }
    assert_eq!((second.disk().stats().dropped, second.body("http://a/other")), (0, None));
    let held = second.held.clone();
    drop(second);
    eventually("its memory is released", || held.load(Ordering::Relaxed) == 0);
}

#[test]
fn stored_responses_survive_a_restart() {
    survives(400);
}

#[test]
#[ignore = "100,000 files"]
fn a_hundred_thousand_responses_survive_a_restart() {
    survives(100_000);
}

#[test]
fn incomplete_and_damaged_files_are_dropped() {
    let folder = Folder::new();
    let first = rig(&folder);
    for n in 0..40 {
        first.put(&format!("http://a/{n}"), &[], &content(n));
    }
    first.settle();
    let killed = folder.killed();
    fs::write(killed.0.join("new"), "half of somethi").unwrap();
    for (at, path) in killed.files().into_iter().enumerate() {
        let mut bytes = fs::read(&path).unwrap();
        match at % 4 {
            // Damage as after a power loss.
            0 => bytes.truncate(bytes.len() / 2),
            1 => bytes.fill(0),
            2 => bytes[40] ^= 1,
            _ => continue,
        }
        fs::write(&path, bytes).unwrap();
    }
    let second = rig(&killed);
    let found: Vec<usize> = (0..40)
        .filter(|n| match second.body(&format!("http://a/{n}")) {
            Some(body) => body == content(*n) || panic!("{n} is wrong"),
            None => false,
        })
        .collect();
    second.settle();
    assert_eq!((found.len(), second.disk().stats().dropped, killed.files().len()), (10, 30, 10));
    // A single report instead of thirty.
    assert_eq!(second.reported(), ["Opened", "Dropped"]);
}

#[test]
fn purge_applies_immediately_and_after_a_restart() {
    let folder = Folder::new();
    let first = rig(&folder);
    let put_all = |rig: &Rig| {
        for (key, tag) in [
            ("http://a/1", "x"),
            ("https://a/1", "y"),
            ("http://a/p/1", "y"),
            ("http://a/2", "y x"),
            ("http://a/3", "z"),
        ] {
            rig.put(key, &[("xkey", tag)], key);
        }
        for n in 0..20 {
            rig.put(&format!("http://b/{n}"), &[], "other");
        }
    };
    let found = |rig: &Rig| {
        let keys = ["http://a/1", "https://a/1", "http://a/p/1", "http://a/2", "http://a/3"];
        keys.into_iter().filter(|key| rig.body(key).is_some()).collect::<Vec<_>>()
    };
    let purge = |text: &str| Purge::of_url(text).unwrap();
    for (purge, left) in [
        (purge("http://a/1"), &["https://a/1", "http://a/p/1", "http://a/2", "http://a/3"][..]),
        (purge("//a/1"), &["http://a/p/1", "http://a/2", "http://a/3"]),
        (purge("//a/p*"), &["http://a/1", "https://a/1", "http://a/2", "http://a/3"]),
        (Purge::Tag { tag: b"x".to_vec(), host: None }, &["https://a/1", "http://a/p/1", "http://a/3"]),
        (Purge::All, &[]),
    ] {
        // Some of the responses are not written yet when the purge is made.
        put_all(&first);
        first.cache.purge(&purge, false, 104);
        first.cache.wait_recorded().unwrap();
        let at_once = folder.killed();
        assert!(found(&first).iter().all(|key| left.contains(key)), "{purge:?}");
        first.settle();
        assert_eq!(found(&first), left, "{purge:?}");
        eventually("no purge waits", || first.disk().shared.index().purges().is_empty());
        first.settle();
        for killed in [at_once, folder.killed()] {
            let second = rig(&killed);
            let again = found(&second);
            assert!(again.iter().all(|key| left.contains(key)), "{purge:?} {again:?}");
            second.settle();
            assert!(found(&second).iter().all(|key| left.contains(key)), "{purge:?}");
        }
    }
    put_all(&first);
    first.settle();
    assert_eq!(found(&first).len(), 5, "what is stored later is there");
}

#[test]
fn invalidation_survives_kill_9() {
    let folder = Folder::new();
    let first = rig(&folder);
    first.put("http://a/1", &[("Cache-Groups", "\"g\"")], "one");
    first.put("http://a/2", &[("Cache-Groups", "\"g\"")], "two");
    first.settle();
    // Removing fails from here on, so that the files remain for the next start.
    *first.folder.fault.lock().unwrap() = Some(io::ErrorKind::Other);
    first.cache.invalidate(b"http://a/1", 104);
    first.cache.wait_recorded().unwrap();
    let killed = folder.killed();
    assert_eq!(killed.files().len(), 2);
    let second = rig(&killed);
    assert_eq!((second.body("http://a/1"), second.body("http://a/2").is_some()), (None, true));
    let _ = first.cache.invalidate_group(b"http://a/3", b"g", 105);
    first.cache.wait_recorded().unwrap();
    assert_eq!(rig(&folder.killed()).body("http://a/2"), None);
}

/// A disk that takes no writes: what was purged may not come back after a restart, so nothing does.
#[test]
fn unrecorded_purge_makes_the_directory_void() {
    let folder = Folder::new();
    let rig = rig(&folder);
    for n in 0..3 {
        rig.put(&format!("http://a/{n}"), &[], "old");
    }
    rig.settle();
    *rig.folder.fault.lock().unwrap() = Some(io::ErrorKind::ReadOnlyFilesystem);
    // A descriptor for reading only: appending fails.
    rig.disk().shared.purges().file = Some(fs::File::open(folder.0.join("purges")).unwrap());
    rig.cache.purge(&Purge::of_url("http://a/1").unwrap(), false, 104);
    rig.cache.wait_recorded().unwrap();
    let killed = folder.killed();
    assert_eq!(killed.files().len(), 3, "they could not be removed");
    let second = super::tests::rig(&killed);
    let found = |rig: &Rig| (0..3).filter(|n| rig.body(&format!("http://a/{n}")).is_some()).count();
    assert_eq!(found(&second), 0);
    second.settle();
    second.put("http://a/1", &[], "new");
    second.settle();
    assert_eq!(super::tests::rig(&killed.killed()).body("http://a/1").as_deref(), Some("new"));
    // The first one continues when there is room.
    *rig.folder.fault.lock().unwrap() = None;
    eventually("it is in use again", || rig.disk().stats().is_used);
    assert!(rig.body("http://a/1").is_none());
    rig.put("http://a/3", &[], "new");
    rig.settle();
    assert!(super::tests::rig(&folder.killed()).body("http://a/3").is_some());
}

#[test]
fn slow_list_of_purges_delays_only_who_waits_for_it() {
    let folder = Folder::new();
    let rig = rig(&folder);
    rig.put("http://a/1", &[], "one");
    rig.settle();
    let slow = rig.disk().shared.purges();
    // Far more than are remembered.
    for n in 0..10_000 {
        rig.cache.invalidate(b"http://a/1", 104);
        rig.cache.purge(&Purge::Tag { tag: format!("{n}").into_bytes(), host: None }, false, 104);
    }
    assert_eq!(rig.body("http://a/1"), None);
    let error = rig.disk().shared.recorder.wait(u64::MAX, Duration::from_millis(20)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    drop(slow);
    rig.cache.wait_recorded().unwrap();
}

#[test]
fn a_million_purges_use_no_memory_or_disk_space() {
    let folder = Folder::new();
    let rig = rig(&folder);
    rig.put("http://a/stays", &[], "stays");
    rig.settle();
    let url = |n: usize| Purge::Exact(format!("http://a/{n}").into_bytes());
    let held = rig.held.load(Ordering::Relaxed);
    for n in 0..1_000_000 {
        rig.cache.purge(&url(n), n % 2 == 0, 104);
    }
    // A purge of URLs that are not stored is not remembered, in memory or on disk.
    assert!(rig.disk().shared.index().purges().is_empty() && rig.disk().is_idle());
    assert_eq!(rig.held.load(Ordering::Relaxed), held);
    assert_eq!(fs::metadata(folder.0.join("purges")).unwrap().len(), 0);
    assert!(rig.body("http://a/stays").is_some());
    // Purges that require reading every file are remembered, up to a limit, while the thread is slow.
    let slow = rig.disk().shared.purges();
    for n in 0..10_000 {
        rig.disk().shared.index().purge(&Purge::Tag { tag: format!("{n}").into_bytes(), host: None }, None);
    }
    assert!(rig.disk().shared.index().purges().len() <= 1024);
    drop(slow);
    for n in 0..10_000 {
        rig.cache.purge(&Purge::Tag { tag: format!("{n}").into_bytes(), host: None }, false, 104);
        assert!(rig.disk().shared.queued.load(Ordering::Relaxed) <= 2, "one waits, and one is carried out");
        assert!(fs::metadata(folder.0.join("purges")).unwrap().len() < 4096 * 64);
    }
    rig.settle();
    assert_eq!(rig.body("http://a/stays"), None, "too many purges are a purge of everything");
}

#[test]
fn purge_of_a_queued_response_is_remembered() {
    let folder = Folder::new();
    let rig = rig(&folder);
    for n in 0..200 {
        // Each time the response is queued, written, or both.
        rig.put("http://a/1", &[], &content(n));
        rig.cache.purge(&Purge::of_url("http://a/1").unwrap(), false, 104);
        assert_eq!(rig.body("http://a/1"), None);
    }
    rig.cache.wait_recorded().unwrap();
    let killed = folder.killed();
    assert_eq!(super::tests::rig(&killed).body("http://a/1"), None);
    rig.settle();
    assert_eq!((rig.body("http://a/1"), folder.files().len()), (None, 0));
}

#[test]
fn soft_purge_leaves_the_response_stale() {
    let folder = Folder::new();
    let first = rig(&folder);
    first.put("http://a/1", &[("xkey", "x")], "one");
    first.put("http://a/2", &[], "two");
    first.settle();
    first.cache.purge(&Purge::Tag { tag: b"x".to_vec(), host: None }, true, 104);
    first.cache.wait_recorded().unwrap();
    let at_once = folder.killed();
    eventually("no purge waits", || first.disk().shared.index().purges().is_empty());
    first.settle();
    for killed in [at_once, folder.killed()] {
        let second = rig(&killed);
        let fresh = |key: &str| second.read(key).unwrap().0.freshness().is_fresh(105);
        assert_eq!((fresh("http://a/1"), fresh("http://a/2")), (false, true));
    }
}

#[test]
fn response_purged_while_it_is_read_is_not_served() {
    let folder = Folder::new();
    let rig = rig(&folder);
    rig.put("http://a/1", &[], "one");
    rig.settle();
    let bytes = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut head = RequestHead::default();
    assert!(head.parse(bytes, &http::Limits::default()).unwrap());
    let looked_up = rig.cache.find_on_disk(b"http://a/1").unwrap();
    let read = looked_up.read(HeadRef::new(&head, bytes)).unwrap();
    rig.cache.invalidate(b"http://a/1", 104);
    assert!(rig.cache.add_from_disk(b"http://a/1", read, true).is_none());
    assert!(rig.cache.find_on_disk(b"http://a/1").is_none());
}

/// Returns the disk space of all files according to the file system.
fn disk_bytes(folder: &Folder) -> u64 {
    use std::os::unix::fs::MetadataExt;
    folder.files().iter().filter_map(|path| fs::metadata(path).ok()).map(|file| file.blocks() * 512).sum()
}

#[test]
fn disk_cache_stays_within_its_size() {
    let folder = Folder::new();
    let rig = rig_with(options(&folder, MIB));
    for n in 0..600 {
        rig.put(&format!("http://a/{n}"), &[], &content(n % 49 + 1));
        if n % 100 == 0 {
            assert!(disk_bytes(&folder) <= MIB);
        }
        if n == 100 {
            rig.settle();
            assert!(rig.body("http://a/50").is_some());
        }
    }
    rig.settle();
    let used = disk_bytes(&folder);
    assert!((MIB / 2..=MIB).contains(&used) && rig.disk().stats().bytes <= MIB, "{used}");
    assert!(rig.body("http://a/599").is_some() && rig.body("http://a/1").is_none());
    // A response larger than an eighth of the space is not stored.
    rig.put("http://a/large", &[], &"x".repeat(150_000));
    rig.settle();
    assert!(rig.body("http://a/large").is_none());
    drop(rig);
    // A smaller limit applies after a restart, with the next stored response.
    let smaller = rig_with_lock(options(&folder, MIB / 4));
    smaller.put("http://a/new", &[], "new");
    smaller.settle();
    assert!(disk_bytes(&folder) <= MIB / 4 && smaller.body("http://a/new").is_some());
}

/// Creates a rig once the previous one has released the directory.
fn rig_with_lock(options: DiskOptions) -> Rig {
    let rig = rig_with(options);
    eventually("the folder is free", || rig.disk().stats().is_used);
    rig
}

#[test]
fn recently_read_responses_are_kept_longer() {
    let folder = Folder::new();
    let rig = rig_with(options(&folder, MIB));
    for n in 0..100 {
        rig.put(&format!("http://a/{n}"), &[], "x");
    }
    rig.settle();
    assert!(rig.body("http://a/0").is_some());
    for n in 100..250 {
        rig.put(&format!("http://a/{n}"), &[], "x");
    }
    rig.settle();
    assert!(rig.cache.find_on_disk(b"http://a/0").is_some());
    assert!(rig.cache.find_on_disk(b"http://a/1").is_none());
}

#[test]
fn disk_failure_is_reported_once_and_recovered_from() {
    for kind in [io::ErrorKind::StorageFull, io::ErrorKind::ReadOnlyFilesystem, io::ErrorKind::Other] {
        let folder = Folder::new();
        let rig = rig(&folder);
        rig.put("http://a/1", &[], "one");
        rig.settle();
        *rig.folder.fault.lock().unwrap() = Some(kind);
        rig.put("http://a/2", &[], "two");
        eventually("it fails", || !rig.disk().stats().is_used);
        for n in 0..50 {
            rig.put(&format!("http://b/{n}"), &[], "x");
        }
        assert!(rig.cache.find(b"http://a/2").is_some(), "it is in memory");
        assert_eq!(rig.body("http://a/1").as_deref(), Some("one"), "what is there is read");
        rig.cache.purge(&Purge::of_url("http://a/1").unwrap(), false, 104);
        assert_eq!(rig.body("http://a/1"), None);
        assert_eq!(rig.reported(), ["Opened", "Failed"]);
        *rig.folder.fault.lock().unwrap() = None;
        eventually("it is in use again", || rig.disk().stats().is_used);
        assert_eq!(rig.body("http://a/1"), None, "what was purged meanwhile is gone");
        // An earlier write may still fail after that, so this is repeated until one succeeds.
        eventually("it is written", || {
            rig.put("http://a/3", &[], "three");
            rig.settle();
            rig.reported().last().is_some_and(|last| last == "Recovered")
        });
        assert_eq!(rig.body("http://a/3").as_deref(), Some("three"));
        let killed = folder.killed();
        let second = super::tests::rig(&killed);
        assert_eq!((second.body("http://a/1"), second.body("http://a/3").is_some()), (None, true));
    }
}

#[test]
fn damaged_files_are_removed_from_a_full_disk() {
    let folder = Folder::new();
    let rig = rig(&folder);
    for n in 0..10 {
        rig.put(&format!("http://a/{n}"), &[], &content(n));
    }
    rig.settle();
    *rig.folder.fault.lock().unwrap() = Some(io::ErrorKind::StorageFull);
    rig.put("http://a/more", &[], "two");
    eventually("it fails", || !rig.disk().stats().is_used);
    for path in folder.files() {
        let mut bytes = fs::read(&path).unwrap();
        bytes[40] ^= 1;
        fs::write(&path, bytes).unwrap();
    }
    for n in 0..10 {
        assert_eq!(rig.body(&format!("http://a/{n}")), None);
    }
    eventually("they are gone", || folder.files().is_empty());
}

#[test]
fn removed_directory_is_created_again() {
    let folder = Folder::new();
    let rig = rig(&folder);
    rig.put("http://a/1", &[], "one");
    rig.settle();
    fs::remove_dir_all(&folder.0).unwrap();
    assert_eq!(rig.body("http://a/1"), None);
    rig.put("http://a/2", &[], "two");
    eventually("it is written again", || {
        rig.put("http://a/3", &[], "three");
        rig.settle();
        rig.body("http://a/3").is_some()
    });
    assert_eq!(rig.reported(), ["Opened", "Failed", "Recovered"]);
}

#[test]
fn memory_cache_works_if_the_directory_cannot_be_created() {
    let rig = rig(&Folder(PathBuf::from("/proc/komainu")));
    rig.put("http://a/1", &[], "one");
    assert!(rig.cache.find(b"http://a/1").is_some() && rig.cache.find_on_disk(b"http://a/1").is_none());
    assert_eq!(rig.cache.purge(&Purge::All, false, 104).objects, 1);
    assert_eq!(rig.reported(), ["Failed"]);
}

#[test]
fn directory_is_used_by_one_process_at_a_time() {
    let folder = Folder::new();
    let first = rig(&folder);
    first.put("http://a/1", &[], "one");
    first.put("http://a/2", &[], "two");
    first.settle();
    let second = rig(&folder);
    assert_eq!((second.reported(), second.body("http://a/1")), (vec!["InUse".to_owned()], None));
    second.put("http://a/3", &[], "three");
    second.cache.purge(&Purge::of_url("http://a/2").unwrap(), false, 104);
    assert_eq!(second.disk().stats().skipped, 1);
    drop(first);
    eventually("it is free", || second.disk().stats().is_used);
    assert_eq!(second.body("http://a/1").as_deref(), Some("one"));
    assert_eq!(second.body("http://a/2"), None, "it was purged before it was known");
}

#[test]
fn briefly_fresh_response_is_not_written_to_disk() {
    let folder = Folder::new();
    let rig = rig(&folder);
    let short = Object::new(
        http::Status::OK,
        http::Fields::new(),
        crate::StoredBody::default(),
        crate::RequestVariant::default(),
        crate::object::tests::freshness(0, 9),
    );
    let FillStart::Lead(fill, _reader) = rig.cache.begin_fill(b"http://a/1", None) else { panic!() };
    rig.cache.store(&fill, Arc::new(short)).unwrap();
    rig.settle();
    assert_eq!(rig.disk().stats().files, 0);
}

/// Measures the time of a restart with `KOMAINU_DISK_FILES` files of 36,907 bytes (290,000 are 10 GiB).
#[test]
#[ignore = "10 GiB"]
#[allow(clippy::print_stderr)]
fn restart_with_ten_gibibytes_takes_less_than_a_second() {
    let files: usize =
        std::env::var("KOMAINU_DISK_FILES").ok().and_then(|n| n.parse().ok()).unwrap_or(290_000);
    let folder = Folder(
        std::env::var_os("KOMAINU_DISK_FOLDER").map_or_else(|| Folder::new().0.clone(), PathBuf::from),
    );
    // The content does not affect the time: `KOMAINU_DISK_CONTENT=1` needs less disk space.
    let content = std::env::var("KOMAINU_DISK_CONTENT").ok().and_then(|n| n.parse().ok()).unwrap_or(36_500);
    let body = "x".repeat(content);
    let first = rig_with(options(&folder, 16 << 30));
    for n in 0..files {
        first.put(&format!("http://a/{n}"), &[], &body);
        while first.disk().shared.queued_bytes.load(Ordering::Relaxed) > 16 * MIB {
            std::thread::yield_now();
        }
    }
    first.settle();
    let stored = first.disk().stats();
    drop(first);
    eventually("the folder is free", || DiskFolder::new(folder.0.clone()).lock().unwrap().is_some());
    let began = Instant::now();
    let second = rig_with(options(&folder, 16 << 30));
    let opened = began.elapsed();
    assert_eq!(second.disk().stats().files, files as u64);
    assert!(second.body("http://a/7").is_some());
    eprintln!(
        "{} files, {} MiB: opened in {opened:?}, first response in {:?}",
        files,
        stored.bytes >> 20,
        began.elapsed()
    );
    assert!(began.elapsed() < Duration::from_secs(1));
}
