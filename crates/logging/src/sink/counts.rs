//! State shared by a sink and its thread: queued bytes, dropped lines, and recycled buffers.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Limits for recycled buffers: their number and their capacity. Small ones cost little, large ones are rare.
const SPARE_BUFFERS_MAX: usize = 4;
const SPARE_BYTES_MIN: usize = 16 * 1024;
const SPARE_BYTES_MAX: usize = 256 * 1024;

#[derive(Default)]
pub(super) struct SinkCounts {
    /// Bytes of lines queued for the thread.
    pub(super) waiting_bytes: AtomicUsize,
    /// Recycled buffers: memory allocated by one thread and freed by another would accumulate.
    pub(super) spare_buffers: Mutex<Vec<Vec<u8>>>,
    /// Lines dropped because the queue was full.
    pub(super) dropped_lines: AtomicU64,
    /// Collectors of lines ([`Collector`]).
    pub(super) collectors: AtomicUsize,
    /// Number of rotations requested.
    pub(super) rotations: AtomicU64,
    /// Collectors that have handed over their lines since the latest rotation.
    pub(super) handed_over: AtomicUsize,
    /// The process is exiting: do not wait for an unreachable receiver.
    pub(super) is_closing: AtomicBool,
}

impl SinkCounts {
    /// Recycles a written buffer if its capacity is suitable and few are kept.
    pub(super) fn recycle(&self, mut buffer: Vec<u8>) {
        let mut spare = self.spare_buffers.lock().unwrap_or_else(PoisonError::into_inner);
        // A buffer gathered for a collector may be much larger than the batches handed over.
        if spare.len() < SPARE_BUFFERS_MAX && (SPARE_BYTES_MIN..=SPARE_BYTES_MAX).contains(&buffer.capacity())
        {
            buffer.clear();
            spare.push(buffer);
        }
    }
}

/// A collector of lines that hands them over in batches, and must do so before a rotation.
pub(crate) struct Collector {
    counts: Arc<SinkCounts>,
    rotations: u64,
}

impl Collector {
    pub(super) fn new(counts: &Arc<SinkCounts>) -> Collector {
        counts.collectors.fetch_add(1, Ordering::AcqRel);
        Collector { counts: counts.clone(), rotations: counts.rotations.load(Ordering::Acquire) }
    }

    /// Reports that all lines collected so far have been handed over.
    pub(crate) fn record_hand_over(&mut self) {
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
