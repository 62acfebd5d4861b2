//! Temporary files for data that one side sends faster than the other accepts.
//!
//! A [`SpillStore`] defines the directory and the total size of the files. A [`SpillQuota`] is the share of
//! one owner (an application, a route with `proxy`) on all cores. A [`SpillFile`] has no name, belongs to one
//! request and charges each byte to both; dropping it frees its space. Calls that may wait for a disk run on
//! the threads of [`crate::offload`].

use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSliceMut};
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Instant;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, open, openat, unlinkat};
use rustix::io::{Errno, ReadWriteFlags, pread, preadv2, pwrite};
use times::{AtomicMoment, Millis, Moment};

use crate::core::Core;
use crate::offload::{BlockingKind, OffloadPool};

/// Bytes loaded from a disk in one job.
const WINDOW_BYTES: u64 = 256 * 1024;
/// Size of the buffer used for loading.
const LOAD_BYTES: u64 = 16 * 1024;
/// Time for which no file is created or extended after a failure of the file system.
const RETRY_AFTER_FAILURE: Millis = Millis(1_000);
/// Minimum interval between log messages about refused bytes.
const REPORT_INTERVAL: Millis = Millis(60_000);
/// Attempts to find a free name in a file system without O_TMPFILE.
const NAMES_MAX: u32 = 64;

/// The directory of temporary files and their total size.
#[derive(Debug)]
pub struct SpillStore {
    folder: PathBuf,
    bytes_max: AtomicU64,
    used: AtomicU64,
    since: Instant,
    /// Time of the last failure of the file system, in milliseconds after `since`; 0 if there was none.
    failed_at: AtomicMoment,
}

/// The share of a store that one owner may use.
#[derive(Debug)]
pub struct SpillQuota {
    store: Arc<SpillStore>,
    bytes_max: u64,
    used: AtomicU64,
    was_full: AtomicBool,
    /// Time of the last log message about refused bytes, like `failed_at` of the store.
    reported_at: AtomicMoment,
}

/// Reason why bytes were not written to a file.
#[derive(Debug)]
pub enum SpillError {
    /// The files of the owner have reached the limit `spill`.
    QuotaFull(u64),
    /// All files together have reached the limit `limits.spill`.
    StoreFull(u64),
    /// The file system is full or has failed.
    Io(PathBuf, io::Error),
    /// The file system has failed recently, so it was not tried again.
    Failing,
}

impl fmt::Display for SpillError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpillError::QuotaFull(bytes) => write!(f, "its temporary files hold `spill` = {bytes} bytes"),
            SpillError::StoreFull(bytes) => {
                write!(f, "all temporary files together hold `limits.spill` = {bytes} bytes")
            }
            SpillError::Io(folder, error) => write!(f, "no temporary file in {}: {error}", folder.display()),
            SpillError::Failing => f.write_str("no temporary file: the file system failed a moment ago"),
        }
    }
}

impl SpillStore {
    /// Creates a store for files in `folder` with a total size of at most `bytes_max`. Opens nothing.
    #[must_use]
    pub fn new(folder: &Path, bytes_max: u64) -> Arc<SpillStore> {
        Arc::new(SpillStore {
            folder: folder.to_owned(),
            bytes_max: AtomicU64::new(bytes_max),
            used: AtomicU64::new(0),
            since: Instant::now(),
            failed_at: AtomicMoment::default(),
        })
    }

    /// Returns the total size of the files, in bytes.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns the maximum total size of the files, in bytes.
    #[must_use]
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max.load(Ordering::Relaxed)
    }

    /// Sets the maximum total size of the files, in bytes.
    pub fn set_bytes_max(&self, bytes_max: u64) {
        self.bytes_max.store(bytes_max, Ordering::Relaxed);
    }

    /// Creates a file without a name, which no other process can open. Deleted with its last descriptor.
    ///
    /// # Errors
    /// System errors.
    pub fn create(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        match open(&self.folder, flags | OFlags::TMPFILE, mode) {
            // Errors of file systems and kernels without O_TMPFILE.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => self.create_and_unlink(flags, mode),
            opened => Ok(opened?),
        }
    }

    fn create_and_unlink(&self, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let salt = self.since.elapsed().as_nanos();
        for turn in 0..NAMES_MAX {
            let path = self.folder.join(format!("komainu-{}-{salt}-{turn}", std::process::id()));
            match openat(CWD, &path, flags, mode) {
                Err(Errno::EXIST) => {}
                opened => {
                    let file = opened?;
                    unlinkat(CWD, &path, AtFlags::empty())?;
                    return Ok(file);
                }
            }
        }
        Err(Errno::EXIST.into())
    }

    fn now(&self) -> Moment {
        Moment(1) + Millis::of(self.since.elapsed())
    }

    fn record_failure(&self, error: io::Error) -> SpillError {
        self.failed_at.store(self.now(), Ordering::Relaxed);
        SpillError::Io(self.folder.clone(), error)
    }

    fn check(&self) -> Result<(), SpillError> {
        match self.failed_at.load(Ordering::Relaxed) {
            Moment::ZERO => Ok(()),
            failed_at if self.now() >= failed_at + RETRY_AFTER_FAILURE => Ok(()),
            _ => Err(SpillError::Failing),
        }
    }
}

impl SpillQuota {
    /// Creates a share of at most `bytes_max` bytes of the store, on all cores; `None` if that is 0.
    #[must_use]
    pub fn new(store: &Arc<SpillStore>, bytes_max: u64) -> Option<Arc<SpillQuota>> {
        (bytes_max.min(store.bytes_max()) > 0).then(|| {
            let used = AtomicU64::new(0);
            let reported_at = AtomicMoment::default();
            let was_full = AtomicBool::new(false);
            Arc::new(SpillQuota { store: store.clone(), bytes_max, used, was_full, reported_at })
        })
    }

    /// Returns the total size of the owner's files, in bytes.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether to log that bytes were refused; true at most once a minute.
    #[must_use]
    pub fn should_report(&self) -> bool {
        let now = self.store.now();
        let last_at = self.reported_at.load(Ordering::Relaxed);
        let is_due = last_at == Moment::ZERO || now >= last_at + REPORT_INTERVAL;
        is_due && self.reported_at.advance(last_at, now, Ordering::Relaxed)
    }

    /// Checks whether a file of this size may be created. After the quota was exhausted, a quarter of it must
    /// be free again, so that freed space is not filled by files that do not fit in the end.
    fn check(&self, bytes: u64) -> Result<(), SpillError> {
        if self.was_full.load(Ordering::Relaxed) {
            if self.used() > self.bytes_max - self.bytes_max / 4 {
                return Err(SpillError::QuotaFull(self.bytes_max));
            }
            self.was_full.store(false, Ordering::Relaxed);
        }
        // Nothing is charged for a moment: other files could not be extended meanwhile.
        let has_room = |used: &AtomicU64, max: u64| {
            used.load(Ordering::Relaxed).checked_add(bytes).is_some_and(|sum| sum <= max)
        };
        if !has_room(&self.used, self.bytes_max) {
            self.was_full.store(true, Ordering::Relaxed);
            return Err(SpillError::QuotaFull(self.bytes_max));
        }
        let store_max = self.store.bytes_max();
        if has_room(&self.store.used, store_max) { Ok(()) } else { Err(SpillError::StoreFull(store_max)) }
    }

    fn charge(&self, bytes: u64) -> Result<(), SpillError> {
        add(&self.used, bytes, self.bytes_max).map_err(|bytes_max| {
            self.was_full.store(true, Ordering::Relaxed);
            SpillError::QuotaFull(bytes_max)
        })?;
        add(&self.store.used, bytes, self.store.bytes_max()).map_err(|bytes_max| {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
            SpillError::StoreFull(bytes_max)
        })
    }

    fn release(&self, bytes: u64) {
        self.store.used.fetch_sub(bytes, Ordering::Relaxed);
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Adds `bytes` to `sum`, or returns `max` as an error if that would exceed it.
fn add(sum: &AtomicU64, bytes: u64, max: u64) -> Result<(), u64> {
    let more = |sum: u64| sum.checked_add(bytes).filter(|sum| *sum <= max);
    sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).map(|_| ()).map_err(|_| max)
}

/// A file and its charge, shared with the threads that work on it.
#[derive(Debug)]
struct ChargedFile {
    quota: Arc<SpillQuota>,
    file: Option<OwnedFd>,
    bytes: AtomicU64,
}

impl ChargedFile {
    fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_ref().expect("closed only when it is dropped").as_fd()
    }
}

impl Drop for ChargedFile {
    fn drop(&mut self) {
        // Close the file before its space is released to others.
        drop(self.file.take());
        self.quota.release(*self.bytes.get_mut());
    }
}

/// A temporary file of one request: written at the end, read from the beginning.
pub struct SpillFile {
    charged: Option<Arc<ChargedFile>>,
    pool: OffloadPool,
    /// Offset of the first byte that was not read back.
    at: u64,
    /// End of the written bytes.
    end: u64,
    /// Offset up to which the content is known to be in memory.
    loaded_to: u64,
    /// Set while a window is being loaded from the disk, until it is sent; true when it has been loaded.
    loading: Option<Arc<AtomicBool>>,
}

/// State of loading the next bytes to send from the disk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WindowLoad {
    NotNeeded,
    Running,
    Done,
}

impl fmt::Debug for SpillFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpillFile").field("at", &self.at).field("end", &self.end).finish_non_exhaustive()
    }
}

impl SpillFile {
    /// Creates an empty file for an expected size of `bytes`.
    ///
    /// # Errors
    /// Fails if that size exceeds a limit, or on an error of the file system.
    pub async fn create(core: &Core, quota: &Arc<SpillQuota>, bytes: u64) -> Result<SpillFile, SpillError> {
        quota.store.check()?;
        // A partially spilled response would be of no use.
        quota.check(bytes.max(1))?;
        let store = quota.store.clone();
        let file = core
            .offload_as(BlockingKind::Spill, move || store.create())
            .await
            .map_err(|error| quota.store.record_failure(error))?;
        let charged = ChargedFile { quota: quota.clone(), file: Some(file), bytes: AtomicU64::new(0) };
        Ok(SpillFile {
            charged: Some(Arc::new(charged)),
            pool: core.pool(BlockingKind::Spill).clone(),
            at: 0,
            end: 0,
            loaded_to: 0,
            loading: None,
        })
    }

    fn charged(&self) -> &Arc<ChargedFile> {
        self.charged.as_ref().expect("taken only when it is dropped")
    }

    /// Returns the quota that the file is charged to.
    #[must_use]
    pub fn quota(&self) -> &Arc<SpillQuota> {
        &self.charged().quota
    }

    /// Returns the number of bytes that were not read back.
    #[must_use]
    pub fn unread(&self) -> u64 {
        self.end - self.at
    }

    /// Returns the number of bytes written.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.end
    }

    /// Whether nothing was written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.end == 0
    }

    /// Restarts reading at the first byte.
    pub fn rewind(&mut self) {
        self.at = 0;
        self.loaded_to = 0;
    }

    /// Appends `bytes[from..]`. Returns the bytes and the number of them, counted from the first, that are
    /// written or precede `from`; all unless there is an error.
    pub async fn append(
        &mut self,
        core: &Core,
        bytes: Vec<u8>,
        from: usize,
    ) -> (Vec<u8>, usize, Result<(), SpillError>) {
        let charged = self.charged().clone();
        let len = (bytes.len() - from) as u64;
        if let Err(error) = charged.quota.store.check().and_then(|()| charged.quota.charge(len)) {
            return (bytes, from, Err(error));
        }
        charged.bytes.fetch_add(len, Ordering::Relaxed);
        let theirs = charged.clone();
        let end = self.end;
        let (bytes, written, result) = core
            .offload_as(BlockingKind::Spill, move || {
                let (written, result) = write(theirs.fd(), &bytes[from..], end);
                (bytes, written, result)
            })
            .await;
        self.end += written as u64;
        let unwritten = len - written as u64;
        charged.bytes.fetch_sub(unwritten, Ordering::Relaxed);
        charged.quota.release(unwritten);
        (bytes, from + written, result.map_err(|error| charged.quota.store.record_failure(error)))
    }

    /// Reads the next bytes, at most `bytes_max`; returns none at the end.
    ///
    /// # Errors
    /// Errors of the file system.
    pub async fn read(&mut self, core: &Core, mut into: Vec<u8>, bytes_max: usize) -> io::Result<Vec<u8>> {
        let len = bytes_max.min(usize::try_from(self.unread()).unwrap_or(usize::MAX));
        into.resize(len, 0);
        let charged = self.charged().clone();
        let at = self.at;
        let cached = preadv2(charged.fd(), &mut [IoSliceMut::new(&mut into)], at, ReadWriteFlags::NOWAIT);
        let into = match cached {
            Ok(count) if count == len => into,
            _ => core.offload_as(BlockingKind::Spill, move || read(charged.fd(), into, at)).await?,
        };
        self.at += len as u64;
        Ok(into)
    }

    // ---- for `sendfile`, which must not wait for a disk ----

    /// Returns a descriptor, offset and length that can be sent without waiting for a disk. `None` while the
    /// content is being loaded; the current task is woken when that is done.
    pub(crate) fn window(&mut self, core: &Core) -> Option<(BorrowedFd<'_>, u64, usize)> {
        if self.window_load() == WindowLoad::Running {
            return None;
        }
        let end = self.end.min(self.at + WINDOW_BYTES);
        if self.loading.take().is_some() {
            self.loaded_to = end;
        }
        if self.at >= self.loaded_to {
            if !self.is_cached(self.at) || !self.is_cached(end - 1) {
                self.load(core, end);
                return None;
            }
            self.loaded_to = end;
        }
        let len = self.loaded_to.min(self.end) - self.at;
        Some((self.charged().fd(), self.at, len as usize))
    }

    /// Advances the window by sent bytes.
    pub(crate) fn sent(&mut self, bytes: u64) {
        self.at += bytes;
    }

    pub(crate) fn window_load(&self) -> WindowLoad {
        match &self.loading {
            None => WindowLoad::NotNeeded,
            Some(done) if done.load(Ordering::Acquire) => WindowLoad::Done,
            Some(_) => WindowLoad::Running,
        }
    }

    fn is_cached(&self, at: u64) -> bool {
        let mut byte = [0];
        preadv2(self.charged().fd(), &mut [IoSliceMut::new(&mut byte)], at, ReadWriteFlags::NOWAIT).is_ok()
    }

    fn load(&mut self, core: &Core, end: u64) {
        let done = Arc::new(AtomicBool::new(false));
        let charged = self.charged().clone();
        let at = self.at;
        let theirs = done.clone();
        let wake = core.remote_waker();
        self.pool.run(move || {
            // On failure, the following `sendfile` fails too.
            let _ = load(charged.fd(), at, end);
            theirs.store(true, Ordering::Release);
            wake();
        });
        self.loading = Some(done);
    }
}

impl Drop for SpillFile {
    fn drop(&mut self) {
        // Freeing a large file takes time, so do it on another thread.
        let charged = self.charged.take();
        self.pool.run(move || drop(charged));
    }
}

/// The temporary file of a connection's output.
pub(crate) struct Overflow {
    pub(crate) file: SpillFile,
    /// Set while bytes are being written to the file. If that is cancelled, these bytes are lost, and the
    /// connection must be closed.
    pub(crate) is_writing: bool,
}

/// Output of a connection or stream in a temporary file, if there is any.
#[derive(Default)]
pub(crate) struct SpilledOutput(Option<Box<Overflow>>);

impl SpilledOutput {
    /// Returns the number of unsent bytes in the file.
    pub(crate) fn unread_bytes(&self) -> u64 {
        self.0.as_ref().map_or(0, |overflow| overflow.file.unread())
    }

    /// Whether the next bytes to send are being loaded from a disk.
    pub(crate) fn is_loading(&self) -> bool {
        self.0.as_ref().is_some_and(|overflow| overflow.file.window_load() != WindowLoad::NotNeeded)
    }

    /// Whether the next bytes to send have been loaded.
    pub(crate) fn has_loaded(&self) -> bool {
        self.0.as_ref().is_some_and(|overflow| overflow.file.window_load() == WindowLoad::Done)
    }

    /// Waits until the bytes have been loaded; the loading thread wakes the task.
    pub(crate) async fn wait_loaded(&self) {
        poll_fn(|_| if self.has_loaded() { Poll::Ready(()) } else { Poll::Pending }).await;
    }
}

impl Deref for SpilledOutput {
    type Target = Option<Box<Overflow>>;

    fn deref(&self) -> &Option<Box<Overflow>> {
        &self.0
    }
}

impl DerefMut for SpilledOutput {
    fn deref_mut(&mut self) -> &mut Option<Box<Overflow>> {
        &mut self.0
    }
}

fn write(file: BorrowedFd<'_>, bytes: &[u8], at: u64) -> (usize, io::Result<()>) {
    let mut written = 0;
    while written < bytes.len() {
        match pwrite(file, &bytes[written..], at + written as u64) {
            Ok(0) => return (written, Err(Errno::NOSPC.into())),
            Ok(count) => written += count,
            Err(Errno::INTR) => {}
            Err(errno) => return (written, Err(errno.into())),
        }
    }
    (written, Ok(()))
}

/// Brings a part of the file into the page cache by reading it with a small buffer.
fn load(file: BorrowedFd<'_>, mut at: u64, end: u64) -> io::Result<()> {
    let mut piece = Vec::new();
    while at < end {
        piece.resize((end - at).min(LOAD_BYTES) as usize, 0);
        piece = read(file, piece, at)?;
        at += piece.len() as u64;
    }
    Ok(())
}

fn read(file: BorrowedFd<'_>, mut into: Vec<u8>, at: u64) -> io::Result<Vec<u8>> {
    let mut filled = 0;
    while filled < into.len() {
        match pread(file, &mut into[filled..], at + filled as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(into)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Advice, fadvise, fdatasync};

    use super::*;

    #[test]
    fn spill_file_evicted_from_the_page_cache_is_read_back() {
        const BYTES: usize = 1024 * 1024;
        let core = Core::for_client(1).unwrap();
        let theirs = core.clone();
        let run = core.run_until_end(async move {
            let quota = SpillQuota::new(&SpillStore::new(&std::env::temp_dir(), u64::MAX), u64::MAX).unwrap();
            let mut file = SpillFile::create(&theirs, &quota, 0).await.unwrap();
            let (_, written, result) = file.append(&theirs, vec![b'x'; BYTES], 0).await;
            assert!(result.is_ok() && written == BYTES && quota.used() == BYTES as u64);
            fdatasync(file.charged().fd()).unwrap();
            fadvise(file.charged().fd(), 0, None, Advice::DontNeed).unwrap();
            let mut sent = 0;
            while file.unread() > 0 {
                let window = file.window(&theirs).map(|(_, at, len)| (at, len));
                match window {
                    Some((at, len)) => {
                        assert_eq!(at, sent);
                        sent += len as u64;
                        file.sent(len as u64);
                    }
                    None => {
                        std::future::poll_fn(|_| match file.window_load() {
                            WindowLoad::Done => std::task::Poll::Ready(()),
                            _ => std::task::Poll::Pending,
                        })
                        .await
                    }
                }
            }
            assert_eq!(sent, BYTES as u64);
            file.rewind();
            let bytes = file.read(&theirs, Vec::new(), 2 * BYTES).await.unwrap();
            assert!(bytes.len() == BYTES && bytes.iter().all(|byte| *byte == b'x'));
            drop(file);
            while quota.used() > 0 {
                theirs.sleep(Millis(1)).await;
            }
        });
        run.unwrap();
    }

    #[test]
    fn fallback_spill_file_is_unlinked_at_once() {
        let folder = std::env::temp_dir().join(format!("komainu-spill-test-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let store = SpillStore::new(&folder, 1);
        let file = store.create_and_unlink(OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
        assert_eq!(rustix::io::write(file.unwrap(), b"bytes").unwrap(), 5);
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
        std::fs::remove_dir(&folder).unwrap();
    }

    #[test]
    fn spill_quotas_share_the_limit_of_the_store() {
        let store = SpillStore::new(Path::new("/nowhere"), 10);
        let quotas = [SpillQuota::new(&store, 8).unwrap(), SpillQuota::new(&store, 8).unwrap()];
        assert!(quotas[0].charge(6).is_ok());
        assert!(matches!(quotas[0].charge(3), Err(SpillError::QuotaFull(8))));
        assert!(matches!(quotas[1].charge(5), Err(SpillError::StoreFull(10))));
        assert_eq!((quotas[1].used(), store.used()), (0, 6));
        quotas[0].release(6);
        assert!(quotas[1].charge(5).is_ok());
    }
}
