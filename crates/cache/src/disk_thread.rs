//! Thread that writes stored responses to disk, removes them, and applies purges to them.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
    /// The list of purges on disk. Locked while it is written, so never by threads that serve requests.
    purges: Mutex<PurgeList>,
    pub(crate) recorder: PurgeRecorder,
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
        bytes_max: u64,
        files_max: usize,
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
            recorder: PurgeRecorder::default(),
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

    pub(crate) fn purges(&self) -> MutexGuard<'_, PurgeList> {
        self.purges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes down all purges that are not on disk yet. Returns the number below which all are; `None` if that is
    /// known only once the directory has been read.
    ///
    /// # Errors
    /// The list cannot be written, and the contents of the directory cannot be made void either.
    fn record_purges(&self, list: &mut PurgeList) -> io::Result<Option<u64>> {
        let index = self.index();
        let (all, to) = (index.purges().clone(), index.number());
        drop(index);
        let recorded_to = list.recorded_to;
        let Some(file) = &mut list.file else {
            let is_known = list.is_void || *self.is_tried.0.lock().unwrap_or_else(PoisonError::into_inner);
            return Ok(is_known.then_some(to));
        };
        let new: Vec<&PendingPurge> = all.iter().filter(|purge| purge.number >= recorded_to).collect();
        let written = if list.entries + new.len() > LISTED_MAX {
            self.rewrite_purges(list)
        } else {
            let appended = new.iter().try_for_each(|purge| append_purge(file, purge));
            appended.map(|()| (list.entries, list.recorded_to) = (list.entries + new.len(), to))
        };
        if let Err(error) = written {
            self.report_failure(&error);
            list.file = None;
            // Removing the list needs no room.
            self.folder.make_void().map_err(|_| error)?;
            list.is_void = true;
        }
        Ok(Some(to))
    }

    /// Rewrites the list on disk without completed purges.
    fn rewrite_purges(&self, list: &mut PurgeList) -> io::Result<()> {
        let index = self.index();
        let (waiting, to) = (index.purges().clone(), index.number());
        drop(index);
        let file = Some(self.folder.rewrite_purges(&waiting)?);
        *list = PurgeList { file, entries: waiting.len(), recorded_to: to, is_void: false };
        Ok(())
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

/// The list of purges on disk.
#[derive(Debug, Default)]
pub(crate) struct PurgeList {
    /// `None` until the directory is open, and after a failure.
    pub(crate) file: Option<File>,
    /// Number of entries in the file.
    entries: usize,
    /// All purges with a number below this one are in the file, or completed.
    recorded_to: u64,
    /// Whether the file was removed: what is in the directory does not count any more.
    is_void: bool,
}

/// Writes purges down on a thread of its own, so that no other thread waits for the disk.
#[derive(Debug, Default)]
pub(crate) struct PurgeRecorder {
    state: Mutex<RecorderState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct RecorderState {
    is_due: bool,
    is_over: bool,
    recorded_to: u64,
    /// A failure, and the number below which purges are not all on disk.
    failure: Option<(u64, io::ErrorKind)>,
}

impl PurgeRecorder {
    fn state(&self) -> MutexGuard<'_, RecorderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has all purges written down soon.
    pub(crate) fn request(&self) {
        self.state().is_due = true;
        self.changed.notify_all();
    }

    /// Ends the thread when it has written down what was requested.
    pub(crate) fn end(&self) {
        self.state().is_over = true;
        self.changed.notify_all();
    }

    /// Waits until purges with a number below `to` are on disk.
    ///
    /// # Errors
    /// They cannot be written; `TimedOut` if the disk does not answer in time.
    pub(crate) fn wait(&self, to: u64, timeout: Duration) -> io::Result<()> {
        self.request();
        let is_open = |state: &mut RecorderState| {
            state.recorded_to < to && state.failure.is_none_or(|(below, _)| below < to)
        };
        let (state, _) = self
            .changed
            .wait_timeout_while(self.state(), timeout, is_open)
            .unwrap_or_else(PoisonError::into_inner);
        match state.failure {
            _ if state.recorded_to >= to => Ok(()),
            Some((below, kind)) if below >= to => Err(kind.into()),
            _ => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Writes purges down whenever they are requested, until [`PurgeRecorder::end`].
    pub(crate) fn run(shared: &DiskShared) {
        let recorder = &shared.recorder;
        loop {
            let is_idle = |state: &mut RecorderState| !state.is_due && !state.is_over;
            let waited = recorder.changed.wait_while(recorder.state(), is_idle);
            let mut state = waited.unwrap_or_else(PoisonError::into_inner);
            if !std::mem::take(&mut state.is_due) {
                return;
            }
            drop(state);
            let requested = shared.index().number();
            let recorded = shared.record_purges(&mut shared.purges());
            let mut state = recorder.state();
            match recorded {
                Ok(to) => state.recorded_to = state.recorded_to.max(to.unwrap_or(0)),
                Err(error) => state.failure = Some((requested, error.kind())),
            }
            drop(state);
            recorder.changed.notify_all();
        }
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
            DiskCommand::Remove => {
                // A full disk has files removed.
                if self.lock.is_some() {
                    self.remove_some();
                }
                return;
            }
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
        let mut list = self.shared.purges();
        let mut index = self.shared.index();
        index.load(contents.files, contents.purges, contents.number);
        // Later purges wait for their orders, because responses stored before them may still be queued.
        self.last_purge = index.next_number();
        let files = index.len();
        let bytes = index.bytes();
        drop(index);
        self.shared.rewrite_purges(&mut list)?;
        drop(list);
        self.lock = Some(lock);
        self.shared.is_writable.store(true, Ordering::Release);
        self.shared.recorder.request();
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
        // Purged files are removed first, so that nothing depends on the list any more. Where one could not be removed,
        // its purge is remembered until the directory is opened again.
        if !self.remove_all() || !self.shared.is_writable.load(Ordering::Acquire) {
            return;
        }
        let mut list = self.shared.purges();
        // The list may not be rewritten below.
        if self.shared.record_purges(&mut list).is_err() {
            return;
        }
        let swept = self.sweep.take().map(|sweep| sweep.purges).unwrap_or_default();
        self.shared.index().end_sweep(&swept);
        if let Err(error) = self.shared.rewrite_purges(&mut list) {
            self.shared.report_failure(&error);
        }
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
