//! What a sink and its thread share: what waits, what was lost, and buffers that are used again.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// How many buffers that were written out are kept for the next lines, and of which room: small ones cost little, and large ones are rare.
const SPARE_BUFFERS_MAX: usize = 4;
const SPARE_BYTES_MIN: usize = 16 * 1024;
const SPARE_BYTES_MAX: usize = 256 * 1024;

#[derive(Default)]
pub(super) struct Counts {
    /// Bytes of lines on their way to the thread.
    pub(super) waiting_bytes: AtomicUsize,
    /// Buffers that were written out. What one thread allocates and another frees would take memory many times over.
    pub(super) spare: Mutex<Vec<Vec<u8>>>,
    /// Lines dropped because the queue was full.
    pub(super) dropped_lines: AtomicU64,
    /// Collectors of lines ([`Collector`]).
    pub(super) collectors: AtomicUsize,
    /// Rotations asked for.
    pub(super) rotations: AtomicU64,
    /// Collectors that have handed over their lines since the latest one.
    pub(super) handed_over: AtomicUsize,
    /// The process ends: a receiver that is away is not waited for.
    pub(super) is_closing: AtomicBool,
}

impl Counts {
    /// Keeps a buffer that was written out, where it is large and there are few.
    pub(super) fn keep(&self, mut buffer: Vec<u8>) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        // What was gathered for a collector may be much larger than what is handed over.
        if spare.len() < SPARE_BUFFERS_MAX && (SPARE_BYTES_MIN..=SPARE_BYTES_MAX).contains(&buffer.capacity())
        {
            buffer.clear();
            spare.push(buffer);
        }
    }
}

/// A collector of lines that hands them over in batches, and has to do so before a rotation.
pub(crate) struct Collector {
    counts: Arc<Counts>,
    rotations: u64,
}

impl Collector {
    pub(super) fn new(counts: &Arc<Counts>) -> Collector {
        counts.collectors.fetch_add(1, Ordering::AcqRel);
        Collector { counts: counts.clone(), rotations: counts.rotations.load(Ordering::Acquire) }
    }

    /// All lines collected so far have been handed over.
    pub(crate) fn handed_over(&mut self) {
        let rotations = self.counts.rotations.load(Ordering::Acquire);
        if std::mem::replace(&mut self.rotations, rotations) != rotations {
            self.counts.handed_over.fetch_add(1, Ordering::AcqRel);
        }
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.counts.collectors.fetch_sub(1, Ordering::AcqRel);
    }
}
