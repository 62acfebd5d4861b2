//! Stored responses on disk, which survive a restart: one file each, written by a separate thread.
//!
//! Responses that are stored in memory are also written here, as long as the thread keeps up. A file is
//! written under a temporary name, then renamed, and has checksums; a file that is incomplete for any reason
//! is dropped. While the directory is not writable, only memory is used.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use http::HeadRef;

use crate::disk_folder::DiskFolder;
use crate::disk_index::{FILE_BYTES, FileName, PendingPurge, PurgeEffect, purge_effect, url_hash};
use crate::disk_thread::{DiskCommand, DiskReport, DiskShared, DiskThread, PurgeRecorder};
use crate::file_format;
use crate::key::url;
use crate::object::Object;
use crate::purge::Purge;
use crate::stores::CacheDisk;

/// Maximum bytes of responses queued for writing; further ones are skipped.
const QUEUE_BYTES_MAX: u64 = 32 << 20;
/// Reciprocal of the maximum share of the disk space for one response.
const OBJECT_SHARE: u64 = 8;
/// Minimum remaining freshness of a response to be written, in seconds; a shorter-lived one would soon be
/// written again.
const LIFETIME_S_MIN: u64 = 10;
/// Maximum time to wait until purges are written down.
const RECORD_TIMEOUT: Duration = Duration::from_secs(5);

/// Directory and limits of the cache on disk.
#[derive(Clone, Debug, PartialEq)]
pub struct DiskOptions {
    /// The directory, which is created if it does not exist, and its size.
    pub disk: CacheDisk,
    /// Maximum memory for the index in bytes; each file counts as 112 bytes.
    pub index_bytes_max: u64,
    /// Maximum time for which [`Disk::open`] waits until the directory has been read.
    pub open_wait: Duration,
    /// Pause after a failure before the directory is tried again.
    pub retry_pause: Duration,
}

/// Statistics of the cache on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Number of stored responses.
    pub files: u64,
    /// Disk space in use, in bytes.
    pub bytes: u64,
    /// Maximum disk space, in bytes.
    pub bytes_max: u64,
    /// Responses written since the start.
    pub written: u64,
    /// Responses read since the start.
    pub read: u64,
    /// Responses that were not written because the disk is too slow.
    pub skipped: u64,
    /// Files dropped because they were damaged or unreadable.
    pub dropped: u64,
    /// Whether the cache is in use: the directory has been read and is writable.
    pub is_used: bool,
}

/// A cache on disk. Dropping it ends its thread, after all queued responses are written.
pub struct Disk {
    options: DiskOptions,
    shared: Arc<DiskShared>,
    orders: Sender<DiskCommand>,
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Candidate files for a key that may have been stored on disk.
#[derive(Debug)]
pub struct DiskLookup {
    shared: Arc<DiskShared>,
    orders: Sender<DiskCommand>,
    key: Vec<u8>,
    files: Vec<FileName>,
    /// Purges that were not yet applied to all files at the time of the lookup.
    purges: Arc<Vec<PendingPurge>>,
    /// Number of purges before the lookup.
    pub(crate) purges_before: u64,
}

/// A response read from disk, not yet checked against purges since the lookup.
#[derive(Debug)]
pub struct DiskResponse {
    pub(crate) object: Object,
    pub(crate) purges_before: u64,
}

impl Disk {
    /// Opens the directory on a new thread, and waits for up to `options.wait`, so that a restart finds the
    /// stored responses. `account` is called with the bytes of memory held before and after each change.
    ///
    /// # Errors
    /// The thread cannot be started. Errors of the directory are reported to `report` instead.
    pub fn open(
        options: DiskOptions,
        account: Arc<dyn Fn(u64, u64) + Send + Sync>,
        report: DiskReport,
    ) -> io::Result<Disk> {
        let folder = DiskFolder::new(options.disk.path.clone());
        Disk::open_folder(options, folder, account, report)
    }

    fn open_folder(
        options: DiskOptions,
        folder: DiskFolder,
        account: Arc<dyn Fn(u64, u64) + Send + Sync>,
        report: DiskReport,
    ) -> io::Result<Disk> {
        let files_max = usize::try_from(options.index_bytes_max / FILE_BYTES).unwrap_or(usize::MAX);
        let shared =
            DiskShared::new(folder, options.disk.bytes_max, files_max, options.retry_pause, account, report);
        let shared = Arc::new(shared);
        let (orders, received) = channel();
        let theirs = shared.clone();
        std::thread::Builder::new()
            .name("komainu-cache".into())
            .spawn(move || DiskThread::new(theirs).run(&received))?;
        let theirs = shared.clone();
        std::thread::Builder::new()
            .name("komainu-purges".into())
            .spawn(move || PurgeRecorder::run(&theirs))?;
        let disk = Disk { options, shared, orders };
        let (tried, changed) = &disk.shared.is_tried;
        let waits = tried.lock().unwrap_or_else(PoisonError::into_inner);
        drop(changed.wait_timeout_while(waits, disk.options.open_wait, |tried| !*tried));
        Ok(disk)
    }

    /// Returns the options.
    #[must_use]
    pub fn options(&self) -> &DiskOptions {
        &self.options
    }

    /// Returns the current statistics.
    #[must_use]
    pub fn stats(&self) -> DiskStats {
        let index = self.shared.index();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DiskStats {
            files: index.len() as u64,
            bytes: index.bytes(),
            bytes_max: self.options.disk.bytes_max,
            written: count(&self.shared.written),
            read: count(&self.shared.read),
            skipped: count(&self.shared.skipped),
            dropped: count(&self.shared.dropped),
            is_used: self.shared.is_writable.load(Ordering::Relaxed),
        }
    }

    /// Whether all orders have been carried out.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.shared.queued.load(Ordering::Acquire) == 0 && self.shared.index().to_remove_count() == 0
    }

    /// Queues a response for writing, if the disk keeps up.
    pub(crate) fn store(&self, key: &Arc<[u8]>, object: &Arc<Object>) {
        let freshness = object.freshness_when_stored();
        let is_kept = freshness.lifetime_s.saturating_sub(freshness.initial_age_s) >= LIFETIME_S_MIN;
        let bytes = object.weight_bytes() + key.len() as u64;
        if !is_kept || bytes > self.options.disk.bytes_max / OBJECT_SHARE {
            return;
        }
        if !self.shared.is_writable.load(Ordering::Relaxed)
            || self.shared.queued_bytes.load(Ordering::Relaxed) + bytes > QUEUE_BYTES_MAX
        {
            self.shared.skipped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.shared.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        let mut index = self.shared.index();
        let number = index.next_number();
        index.enqueue(url_hash(url(key)));
        index.open_sweep = None;
        // Sent before the lock is released, so that orders are in the sequence of their numbers.
        self.send(DiskCommand::Store { key: key.clone(), object: object.clone(), number });
        drop(index);
    }

    /// Purges responses. Once this returns, a response stored before is no longer found. Another thread writes the
    /// purge down; see [`Disk::wait_recorded`]. Returns the number of responses removed by a purge of a URL; for a
    /// prefix or tag the number is not known yet.
    pub(crate) fn purge(&self, purge: &Purge, soft_at_s: Option<u64>) -> u64 {
        let mut index = self.shared.index();
        // Until the directory has been read, any purge may concern files in it.
        if self.shared.is_writable.load(Ordering::Acquire) && index.has_nothing_for(purge) {
            return 0;
        }
        let (number, count) = index.purge(purge, soft_at_s);
        if let Some(order) = index.sweep_order(number) {
            self.send(DiskCommand::Sweep(order));
        }
        drop(index);
        self.shared.recorder.request();
        count
    }

    /// Waits until all purges made so far hold even after a restart, and even if the process is killed immediately.
    /// Blocks, for at most five seconds.
    ///
    /// # Errors
    /// They cannot be written; `TimedOut` if the disk does not answer.
    pub(crate) fn wait_recorded(&self) -> io::Result<()> {
        let to = self.shared.index().number();
        self.shared.recorder.wait(to, RECORD_TIMEOUT)
    }

    fn send(&self, order: DiskCommand) {
        self.shared.queued.fetch_add(1, Ordering::AcqRel);
        // The thread outlives this sender.
        let _ = self.orders.send(order);
    }

    /// Returns the files that may hold a response for this key, without reading any.
    pub(crate) fn find(&self, key: &[u8], began_after: u64) -> Option<DiskLookup> {
        let hash = url_hash(url(key));
        let index = self.shared.index();
        if !index.has_url(hash) {
            return None;
        }
        let files = index.files(hash);
        let purges = index.purges().clone();
        drop(index);
        let shared = self.shared.clone();
        let orders = self.orders.clone();
        Some(DiskLookup { shared, orders, key: key.to_vec(), files, purges, purges_before: began_after })
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.shared.recorder.end();
    }
}

impl DiskLookup {
    /// Reads the response that answers this request, if there is one. Blocks.
    #[must_use]
    pub fn read(self, request: HeadRef<'_>) -> Option<DiskResponse> {
        let DiskLookup { shared, orders, key, files, purges, purges_before: began_after } = self;
        for file in files {
            let read = || -> io::Result<Option<Object>> {
                let (head, mut rest) = shared.folder.read_head(&file)?;
                if head.key != key || !head.object.variant.answers(request) {
                    return Ok(None);
                }
                match purge_effect(&purges, &key, &head.object, file.number) {
                    PurgeEffect::Purged => return Ok(None),
                    PurgeEffect::Expired(at_s) => _ = head.object.expire(at_s),
                    PurgeEffect::Valid => {}
                }
                file_format::read_body(&mut rest, head).map(Some)
            };
            match read() {
                Ok(Some(object)) => {
                    shared.index().mark_used(&file);
                    shared.read.fetch_add(1, Ordering::Relaxed);
                    return Some(DiskResponse { object, purges_before: began_after });
                }
                Ok(None) => {}
                Err(error) => {
                    shared.drop_file(&file, &error);
                    let _ = orders.send(DiskCommand::Remove);
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
