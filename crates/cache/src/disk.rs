//! Stored responses on disk, so that they survive a restart: one file each, written by a thread of its own.
//!
//! What is stored in memory is written here too, as long as the thread keeps up. A file is written under another name and
//! renamed, and has checksums: one that is not whole, for whatever reason, is dropped. While the folder cannot be written to,
//! memory alone is used.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use http::Head;

use crate::disk_folder::DiskFolder;
use crate::disk_index::{FILE_BYTES, FileName, PendingPurge, Standing, standing, url_hash};
use crate::disk_thread::{DiskReport, DiskShared, DiskThread, Order};
use crate::key::url;
use crate::object::Object;
use crate::purge::Purge;
use crate::record;

/// Bytes of responses that wait to be written; further ones are not.
const QUEUE_BYTES_MAX: u64 = 32 << 20;
/// The part of the disk's bytes that one response may take.
const OBJECT_SHARE: u64 = 8;
/// What is fresh for less time than this is not written, in seconds: it would be written again at once.
const LIFETIME_S_MIN: u64 = 10;

/// Where responses are stored, and how many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskOptions {
    /// The folder; it is made where it is not there.
    pub path: PathBuf,
    /// Bytes of the disk that it may take, in whole blocks.
    pub bytes_max: u64,
    /// Bytes of memory that the index may take; each file counts as 112 bytes.
    pub index_bytes_max: u64,
    /// How long [`Disk::open`] waits until what is there is known.
    pub wait: Duration,
    /// How long after a failure the folder is tried again.
    pub retry: Duration,
}

/// What is on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Responses.
    pub files: u64,
    /// Bytes of the disk that they take.
    pub bytes: u64,
    /// The most bytes.
    pub bytes_max: u64,
    /// Responses written since the start.
    pub written: u64,
    /// Responses read since the start.
    pub read: u64,
    /// Responses that were not written because the disk is too slow.
    pub skipped: u64,
    /// Files that were dropped because they were not what was written.
    pub dropped: u64,
    /// Whether it is in use: the folder is known, and can be written to.
    pub is_used: bool,
}

/// Responses on disk. Dropping it ends its thread, once that has written what waits.
pub struct Disk {
    options: DiskOptions,
    shared: Arc<DiskShared>,
    orders: Sender<Order>,
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk").field("options", &self.options).finish_non_exhaustive()
    }
}

/// A response that may be on disk.
#[derive(Debug)]
pub struct DiskLookup {
    shared: Arc<DiskShared>,
    orders: Sender<Order>,
    key: Vec<u8>,
    files: Vec<FileName>,
    /// Those that had not reached every file when it was looked for.
    purges: Arc<Vec<PendingPurge>>,
    /// Purges before it was looked for.
    pub(crate) began_after: u64,
}

/// A response that was read, before it is compared with the purges since.
#[derive(Debug)]
pub struct FromDisk {
    pub(crate) object: Object,
    pub(crate) began_after: u64,
}

impl Disk {
    /// Opens the folder, on a thread of its own; waits for that for a moment, so that a restart finds what is there.
    /// `account` is called with the bytes of memory held before and after each change.
    ///
    /// # Errors
    /// The thread cannot be started. What is wrong with the folder is reported.
    pub fn open(
        options: DiskOptions,
        account: Arc<dyn Fn(u64, u64) + Send + Sync>,
        report: DiskReport,
    ) -> io::Result<Disk> {
        let folder = DiskFolder::new(options.path.clone());
        Disk::open_folder(options, folder, account, report)
    }

    fn open_folder(
        options: DiskOptions,
        folder: DiskFolder,
        account: Arc<dyn Fn(u64, u64) + Send + Sync>,
        report: DiskReport,
    ) -> io::Result<Disk> {
        let files_max = usize::try_from(options.index_bytes_max / FILE_BYTES).unwrap_or(usize::MAX);
        let shared = DiskShared::new(folder, (options.bytes_max, files_max), options.retry, account, report);
        let shared = Arc::new(shared);
        let (orders, received) = channel();
        let theirs = shared.clone();
        std::thread::Builder::new()
            .name("komainu-cache".into())
            .spawn(move || DiskThread::new(theirs).run(&received))?;
        let disk = Disk { options, shared, orders };
        let (tried, changed) = &disk.shared.is_tried;
        let waits = tried.lock().unwrap_or_else(PoisonError::into_inner);
        drop(changed.wait_timeout_while(waits, disk.options.wait, |tried| !*tried));
        Ok(disk)
    }

    /// What it was opened with.
    #[must_use]
    pub fn options(&self) -> &DiskOptions {
        &self.options
    }

    /// What is there.
    #[must_use]
    pub fn stats(&self) -> DiskStats {
        let index = self.shared.index();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DiskStats {
            files: index.len() as u64,
            bytes: index.bytes(),
            bytes_max: self.options.bytes_max,
            written: count(&self.shared.written),
            read: count(&self.shared.read),
            skipped: count(&self.shared.skipped),
            dropped: count(&self.shared.dropped),
            is_used: self.shared.is_writable.load(Ordering::Relaxed),
        }
    }

    /// Whether everything that was ordered is done.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.shared.queued.load(Ordering::Acquire) == 0 && self.shared.index().doomed() == 0
    }

    /// Has a response written, if the disk keeps up.
    pub(crate) fn store(&self, key: &Arc<[u8]>, object: &Arc<Object>) {
        let freshness = object.freshness_when_stored();
        let is_kept = freshness.lifetime_s.saturating_sub(freshness.initial_age_s) >= LIFETIME_S_MIN;
        let bytes = object.weight_bytes() + key.len() as u64;
        if !is_kept || bytes > self.options.bytes_max / OBJECT_SHARE {
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
        // Sent before the lock is released: orders have the order of their numbers.
        self.send(Order::Store { key: key.clone(), object: object.clone(), number });
        drop(index);
    }

    /// Once this returns, nothing that was stored before is found, nor after a restart, although the process is killed at once.
    /// Returns how many responses of a URL it has removed; what a prefix or a tag removes is not known at once.
    pub(crate) fn purge(&self, purge: &Purge, soft_at_s: Option<u64>) -> u64 {
        let mut index = self.shared.index();
        // While the folder is not known, every purge is about what may be there.
        if self.shared.is_writable.load(Ordering::Acquire) && index.has_nothing_for(purge) {
            return 0;
        }
        let (pending, count) = index.purge(purge, soft_at_s);
        if let Some(order) = index.sweep_order(pending.number) {
            self.send(Order::Sweep(order));
        }
        drop(index);
        self.shared.keep_purge(&pending);
        count
    }

    fn send(&self, order: Order) {
        self.shared.queued.fetch_add(1, Ordering::AcqRel);
        // The thread ends after this is dropped.
        let _ = self.orders.send(order);
    }

    /// Whether there may be a response for this key, without reading anything.
    pub(crate) fn find(&self, key: &[u8], began_after: u64) -> Option<DiskLookup> {
        let hash = url_hash(url(key));
        let index = self.shared.index();
        if !index.has_url(hash) {
            return None;
        }
        let (files, purges) = (index.files(hash), index.purges().clone());
        drop(index);
        let (shared, orders) = (self.shared.clone(), self.orders.clone());
        Some(DiskLookup { shared, orders, key: key.to_vec(), files, purges, began_after })
    }
}

impl DiskLookup {
    /// Reads the response that answers this request, if there is one. This blocks.
    #[must_use]
    pub fn read(self, request: (&Head, &[u8])) -> Option<FromDisk> {
        let DiskLookup { shared, orders, key, files, purges, began_after } = self;
        for file in files {
            let read = || -> io::Result<Option<Object>> {
                let (head, mut rest) = shared.folder.read_head(&file)?;
                if head.key != key || !head.object.variant.answers(request) {
                    return Ok(None);
                }
                match standing(&purges, &key, &head.object, file.number) {
                    Standing::Purged => return Ok(None),
                    Standing::Expired(at_s) => _ = head.object.expire(at_s),
                    Standing::Valid => {}
                }
                record::read_body(&mut rest, head).map(Some)
            };
            match read() {
                Ok(Some(object)) => {
                    shared.index().mark_used(&file);
                    shared.read.fetch_add(1, Ordering::Relaxed);
                    return Some(FromDisk { object, began_after });
                }
                Ok(None) => {}
                Err(error) => {
                    shared.drop_file(&file, &error);
                    let _ = orders.send(Order::Remove);
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
