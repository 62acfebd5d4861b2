//! Thread that writes stored responses to disk, removes them, and applies purges to them.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::disk_folder::{DiskFolder, append_purge};
use crate::disk_index::{
    DiskIndex, FileName, PURGES_MAX, PendingPurge, PurgeEffect, SweepOrder, purge_effect, url_hash,
};
use crate::file_format;
use crate::key::url;
use crate::object::Object;

/// Number of files removed or swept between two orders.
const STEP_FILES: usize = 32;
/// Maximum entries of the purge list on disk before it is rewritten without completed ones.
const LISTED_MAX: usize = 2 * PURGES_MAX;
/// Interval of attempts to lock the directory while another process uses it.
const LOCK_RETRY: Duration = Duration::from_millis(100);
/// Minimum interval between reports of dropped files.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// An event to be reported.
#[derive(Debug)]
pub enum DiskEvent<'e> {
    /// The directory was read: number of files and their bytes.
    Opened(usize, u64),
    /// Another process uses the directory.
    InUse,
    /// The directory is not writable; only memory is used.
    Failed(&'e io::Error),
    /// The directory is writable again.
    Recovered,
    /// A damaged or unreadable file was dropped: path, error, and number of dropped files since the start.
    Dropped(&'e Path, &'e io::Error, u64),
}

/// Callback that receives events.
pub type DiskReport = Arc<dyn Fn(DiskEvent<'_>) + Send + Sync>;

/// An order to the thread.
pub(crate) enum DiskCommand {
    Store {
        key: Arc<[u8]>,
        object: Arc<Object>,
        number: u64,
    },
    /// Apply purges up to this number to every file.
    Sweep(SweepOrder),
    /// Remove files that are marked for removal.
    Remove,
}

/// State shared by the thread and its users.
pub(crate) struct DiskShared {
    pub(crate) folder: DiskFolder,
    pub(crate) bytes_max: u64,
    pub(crate) files_max: usize,
    pub(crate) retry: Duration,
    pub(crate) index: Mutex<DiskIndex>,
    /// The list of purges on disk; `None` until the directory is open.
    pub(crate) purges: Mutex<Option<File>>,
    /// Number of entries in the list on disk.
    listed_purges: AtomicUsize,
    /// Whether the directory has been read and is writable.
    pub(crate) is_writable: AtomicBool,
    /// Whether a failure was reported and nothing has been written since.
    pub(crate) has_failed: AtomicBool,
    /// Whether the first attempt to read the directory has ended, successfully or not.
    pub(crate) is_tried: (Mutex<bool>, Condvar),
    pub(crate) queued_bytes: AtomicU64,
    /// Number of pending orders.
    pub(crate) queued: AtomicU64,
    pub(crate) counted_bytes: AtomicU64,
    pub(crate) account: Arc<dyn Fn(u64, u64) + Send + Sync>,
    pub(crate) report: DiskReport,
    pub(crate) written: AtomicU64,
    pub(crate) read: AtomicU64,
    pub(crate) skipped: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) reported: Mutex<Option<Instant>>,
}

impl fmt::Debug for DiskShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskShared").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl DiskShared {
    pub(crate) fn new(
        folder: DiskFolder,
        (bytes_max, files_max): (u64, usize),
        retry: Duration,
        account: Arc<dyn Fn(u64, u64) + Send + Sync>,
        report: DiskReport,
    ) -> DiskShared {
        DiskShared {
            folder,
            bytes_max,
            files_max,
            retry,
            index: Mutex::default(),
            purges: Mutex::default(),
            listed_purges: AtomicUsize::new(0),
            is_writable: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            is_tried: Default::default(),
            queued_bytes: AtomicU64::new(0),
            queued: AtomicU64::new(0),
            counted_bytes: AtomicU64::new(0),
            account,
            report,
            written: AtomicU64::new(0),
            read: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            reported: Mutex::default(),
        }
    }

    pub(crate) fn index(&self) -> MutexGuard<'_, DiskIndex> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn purges(&self) -> MutexGuard<'_, Option<File>> {
        self.purges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a purge to the list on disk: a short write to the page cache.
    pub(crate) fn record_purge(&self, pending: &PendingPurge) {
        let mut list = self.purges();
        let Some(file) = list.as_mut() else { return };
        if self.listed_purges.fetch_add(1, Ordering::Relaxed) >= LISTED_MAX {
            return self.rewrite_purges(&mut list);
        }
        if let Err(error) = append_purge(file, pending) {
            self.report_failure(&error);
        }
    }

    /// Rewrites the list on disk without completed purges.
    pub(crate) fn rewrite_purges(&self, list: &mut Option<File>) {
        let waiting = self.index().purges().clone();
        match self.folder.rewrite_purges(&waiting) {
            Ok(file) => {
                *list = Some(file);
                self.listed_purges.store(waiting.len(), Ordering::Relaxed);
            }
            Err(error) => self.report_failure(&error),
        }
    }

    pub(crate) fn report_failure(&self, error: &io::Error) {
        self.is_writable.store(false, Ordering::Release);
        if !self.has_failed.swap(true, Ordering::AcqRel) {
            (self.report)(DiskEvent::Failed(error));
        }
    }

    /// Drops a damaged or unreadable file and reports it.
    pub(crate) fn drop_file(&self, file: &FileName, error: &io::Error) {
        self.index().remove(file);
        if error.kind() == io::ErrorKind::NotFound {
            // Replaced or purged meanwhile, or removed from outside.
            return;
        }
        let count = self.dropped.fetch_add(1, Ordering::Relaxed) + 1;
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        if reported.is_none_or(|at| at.elapsed() >= REPORT_EVERY) {
            *reported = Some(Instant::now());
            (self.report)(DiskEvent::Dropped(&self.folder.path().join(file.path()), error, count));
        }
    }

    pub(crate) fn account_memory(&self) {
        let now = self.index().memory_bytes();
        let before = self.counted_bytes.swap(now, Ordering::Relaxed);
        if now != before {
            (self.account)(before, now);
        }
    }

    pub(crate) fn set_tried(&self) {
        let (tried, changed) = &self.is_tried;
        *tried.lock().unwrap_or_else(PoisonError::into_inner) = true;
        changed.notify_all();
    }
}

/// A sweep: files to check against purges.
struct DiskSweep {
    purges: Vec<PendingPurge>,
    files: VecDeque<FileName>,
}

/// The thread that writes, removes and sweeps.
pub(crate) struct DiskThread {
    shared: Arc<DiskShared>,
    /// Lock that keeps other processes out of the directory.
    lock: Option<File>,
    sweep: Option<DiskSweep>,
    /// Number of the last purge whose order has been received: responses stored before it are in the index.
    last_purge: u64,
}

impl DiskThread {
    /// Creates a thread state; the directory is not open yet.
    pub(crate) fn new(shared: Arc<DiskShared>) -> DiskThread {
        DiskThread { shared, lock: None, sweep: None, last_purge: 0 }
    }

    /// Carries out orders until all senders are dropped.
    pub(crate) fn run(mut self, orders: &Receiver<DiskCommand>) {
        while self.open(orders) {
            if !self.run_commands(orders) {
                break;
            }
        }
        let before = self.shared.counted_bytes.swap(0, Ordering::Relaxed);
        (self.shared.account)(before, 0);
    }

    /// Opens the directory, retrying until it succeeds. False if all senders are dropped.
    fn open(&mut self, orders: &Receiver<DiskCommand>) -> bool {
        let mut is_reported = false;
        let mut is_again = self.shared.has_failed.load(Ordering::Acquire);
        loop {
            // After a failure the first attempt is delayed.
            let opened = if std::mem::take(&mut is_again) { None } else { Some(self.try_open()) };
            let pause = match opened {
                Some(Ok(true)) => return true,
                Some(Ok(false)) => {
                    if !std::mem::replace(&mut is_reported, true) {
                        (self.shared.report)(DiskEvent::InUse);
                    }
                    LOCK_RETRY
                }
                Some(Err(error)) => {
                    self.shared.report_failure(&error);
                    self.shared.retry
                }
                None => self.shared.retry,
            };
            self.shared.set_tried();
            let until = Instant::now() + pause;
            loop {
                match orders.recv_timeout(until.saturating_duration_since(Instant::now())) {
                    Ok(order) => self.discard(&order),
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => return false,
                }
            }
        }
    }

    /// Discards an order that cannot be carried out.
    fn discard(&mut self, order: &DiskCommand) {
        match order {
            DiskCommand::Store { key, object, .. } => self.dequeue(key, object),
            // The purge is remembered in the index.
            DiskCommand::Sweep(order) => self.last_purge = self.shared.index().take_sweep(order),
            DiskCommand::Remove => return,
        }
        self.shared.queued.fetch_sub(1, Ordering::AcqRel);
    }

    fn dequeue(&self, key: &[u8], object: &Object) {
        let bytes = object.weight_bytes() + key.len() as u64;
        self.shared.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.shared.index().dequeue(url_hash(url(key)));
    }

    fn try_open(&mut self) -> io::Result<bool> {
        (self.lock, self.sweep) = (None, None);
        let Some(lock) = self.shared.folder.lock()? else { return Ok(false) };
        let contents = self.shared.folder.open()?;
        let mut purges = self.shared.purges();
        let mut index = self.shared.index();
        index.load(contents.files, contents.purges, contents.number);
        // Later purges wait for their orders, because responses stored before them may still be queued.
        self.last_purge = index.next_number();
        let files = index.len();
        let bytes = index.bytes();
        let waiting = index.purges().clone();
        drop(index);
        *purges = Some(self.shared.folder.rewrite_purges(&waiting)?);
        drop(purges);
        self.lock = Some(lock);
        self.shared.is_writable.store(true, Ordering::Release);
        self.shared.account_memory();
        if !self.shared.has_failed.load(Ordering::Acquire) {
            (self.shared.report)(DiskEvent::Opened(files, bytes));
        }
        self.shared.set_tried();
        self.begin_sweep();
        Ok(true)
    }

    /// Carries out orders; returns true when the directory fails, false when all senders are dropped.
    fn run_commands(&mut self, orders: &Receiver<DiskCommand>) -> bool {
        while self.shared.is_writable.load(Ordering::Acquire) {
            let is_idle = self.sweep.is_none() && self.shared.index().to_remove_count() == 0;
            let order = if is_idle {
                orders.recv().map_err(|_| TryRecvError::Disconnected)
            } else {
                orders.try_recv()
            };
            match order {
                Ok(DiskCommand::Store { key, object, number }) => {
                    self.store(&key, &object, number);
                    self.dequeue(&key, &object);
                    self.finish_order();
                }
                Ok(DiskCommand::Sweep(order)) => {
                    self.last_purge = self.shared.index().take_sweep(&order);
                    if self.sweep.is_none() {
                        self.begin_sweep();
                    }
                    self.finish_order();
                }
                Ok(DiskCommand::Remove) | Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return false,
            }
            self.remove_some();
            self.sweep_some();
            self.shared.account_memory();
        }
        true
    }

    fn finish_order(&self) {
        self.shared.queued.fetch_sub(1, Ordering::AcqRel);
    }

    fn store(&self, key: &[u8], object: &Object, number: u64) {
        let shared = &self.shared;
        let head = file_format::encode_head(key, object);
        let name = FileName::new(key, object, number, head.len() as u64 + object.body.len());
        let mut index = shared.index();
        let bytes_max = shared.bytes_max.saturating_sub(name.disk_bytes());
        let is_purged = purge_effect(index.purges(), key, object, number) == PurgeEffect::Purged;
        if is_purged || !index.make_room(bytes_max, shared.files_max.saturating_sub(1)) {
            return;
        }
        drop(index);
        // Evicted files are removed before the new one is written, to stay within the limit.
        if !self.remove_all() {
            return;
        }
        if let Err(error) = shared.folder.write(&name, &head, &object.body) {
            return shared.report_failure(&error);
        }
        let mut index = shared.index();
        index.insert(name);
        if purge_effect(index.purges(), key, object, number) == PurgeEffect::Purged {
            index.remove(&name);
        }
        drop(index);
        shared.written.fetch_add(1, Ordering::Relaxed);
        if shared.has_failed.swap(false, Ordering::AcqRel) {
            (self.shared.report)(DiskEvent::Recovered);
        }
    }

    /// Removes some files. False if the directory fails; the files and purges are found again when it is
    /// reopened.
    fn remove_some(&self) -> bool {
        let files = self.shared.index().take_files_to_remove(STEP_FILES);
        let removed = files.iter().try_for_each(|file| self.shared.folder.remove(file));
        // Marks the failure first, so that purges are remembered: files that could not be removed are found
        // again.
        let removed = removed.map_err(|error| self.shared.report_failure(&error)).is_ok();
        let mut index = self.shared.index();
        files.iter().for_each(|file| index.confirm_removed(file));
        removed
    }

    fn remove_all(&self) -> bool {
        while self.shared.index().to_remove_count() > 0 {
            if !self.remove_some() {
                return false;
            }
        }
        true
    }

    fn begin_sweep(&mut self) {
        let (purges, files) = self.shared.index().begin_sweep(self.last_purge);
        if !purges.is_empty() {
            self.sweep = Some(DiskSweep { purges, files: files.into() });
        }
    }

    /// Checks some more files against the pending purges.
    fn sweep_some(&mut self) {
        let Some(sweep) = &mut self.sweep else { return };
        for _ in 0..STEP_FILES {
            let Some(file) = sweep.files.pop_front() else { return self.end_sweep() };
            match self.shared.folder.read_head(&file) {
                Ok((head, _)) => {
                    let purges = self.shared.index().purges().clone();
                    match purge_effect(&purges, &head.key, &head.object, file.number) {
                        PurgeEffect::Valid => {}
                        PurgeEffect::Purged => self.shared.index().remove(&file),
                        PurgeEffect::Expired(at_s) => {
                            if let Err(error) = expire(&self.shared.folder, &file, at_s) {
                                self.shared.drop_file(&file, &error);
                            }
                        }
                    }
                }
                Err(error) => self.shared.drop_file(&file, &error),
            }
        }
    }

    fn end_sweep(&mut self) {
        // Purged files are removed first, so that nothing depends on the list any more.
        if !self.remove_all() {
            return;
        }
        let swept = self.sweep.take().map(|sweep| sweep.purges).unwrap_or_default();
        let mut list = self.shared.purges();
        self.shared.index().end_sweep(&swept);
        self.shared.rewrite_purges(&mut list);
        drop(list);
        self.begin_sweep();
    }
}

/// Rewrites a response that has become stale at `at_s`.
fn expire(folder: &DiskFolder, file: &FileName, at_s: u64) -> io::Result<()> {
    let (key, object) = folder.read(file)?;
    object.expire(at_s);
    folder.write(file, &file_format::encode_head(&key, &object), &object.body)
}
