//! The memory with its geometry and the eventfds: named words, and the doorbells.

use crate::doorbell::{self, Doorbell};
use crate::layout::{Geometry, slot};
use crate::region::Region;
use crate::sync::{AcqRel, Acquire, AtomicU32, Relaxed};
use crate::words::SlotState;

/// Value of a worker slot's sleep word: the worker is awake.
pub(crate) const AWAKE: u32 = 0;
/// The worker sleeps on the word itself.
pub(crate) const ON_WORD: u32 = 1;
/// The worker sleeps on its eventfd.
pub(crate) const ON_FD: u32 = 2;
/// The worker slept on the word, and was woken to check its signals.
pub(crate) const FOR_SIGNALS: u32 = 3;

pub(crate) struct SharedMemory {
    pub(crate) region: Region,
    pub(crate) geometry: Geometry,
    pub(crate) thread_doorbells: Vec<Doorbell>,
    /// Eventfds of the worker slots: empty, or one for each.
    pub(crate) slot_doorbells: Vec<Doorbell>,
}

impl SharedMemory {
    pub(crate) fn word(&self, index: usize) -> &AtomicU32 {
        &self.region.words()[index]
    }

    pub(crate) fn slot(&self, thread: usize, slot: usize) -> Slot<'_> {
        let at = self.geometry.slot(thread, slot);
        let words = self.region.words()[at..].first_chunk().expect("a slot's words are inside the region");
        let (request, response) = self.geometry.areas(thread, slot);
        Slot { region: &self.region, words, request, response, geometry: &self.geometry }
    }

    /// The sleep word of `worker_slot`. Its holder swaps rather than stores, so that its writes and a ring
    /// have a single order.
    pub(crate) fn sleep_word(&self, worker_slot: usize) -> &AtomicU32 {
        self.word(self.geometry.worker_slot(worker_slot))
    }

    pub(crate) fn retired_flag(&self, worker_slot: usize) -> &AtomicU32 {
        self.word(self.geometry.worker_slot(worker_slot) + 1)
    }

    /// The number of times the holder of `worker_slot` has looked for requests (wrapping). Only the holder
    /// writes it.
    #[cfg(not(loom))]
    pub(crate) fn claim_attempts(&self, worker_slot: usize) -> &AtomicU32 {
        self.word(self.geometry.worker_slot(worker_slot) + 2)
    }

    /// The sleep flag of `thread`; swapped by its owner for the same reason as [`SharedMemory::sleep_word`].
    pub(crate) fn thread_sleep_flag(&self, thread: usize) -> &AtomicU32 {
        self.word(self.geometry.sleep_flag(thread))
    }

    pub(crate) fn set_idle(&self, worker_slot: usize) {
        self.word(self.geometry.idle(worker_slot)).fetch_or(1 << (worker_slot % 32), AcqRel);
    }

    /// Clears the idle bit and returns whether it was still set: if not, another side has woken this worker
    /// slot.
    pub(crate) fn clear_idle(&self, worker_slot: usize) -> bool {
        let bit = 1 << (worker_slot % 32);
        self.word(self.geometry.idle(worker_slot)).fetch_and(!bit, AcqRel) & bit != 0
    }

    /// Wakes `worker_slot` if it sleeps. Must follow a fence after the data to be seen was published.
    pub(crate) fn ring_slot(&self, worker_slot: usize) {
        let sleep = self.sleep_word(worker_slot);
        if sleep.load(Relaxed) == AWAKE {
            return;
        }
        match sleep.swap(AWAKE, AcqRel) {
            AWAKE => {}
            ON_FD => {
                if let Some(signal) = self.slot_doorbells.get(worker_slot) {
                    signal.ring();
                }
            }
            _ => doorbell::wake(sleep),
        }
    }

    /// Wakes `worker_slot` to check its signals, if it sleeps on its word.
    pub(crate) fn wake_for_signals(&self, worker_slot: usize) {
        let sleep = self.sleep_word(worker_slot);
        if sleep.load(Relaxed) == ON_WORD
            && sleep.compare_exchange(ON_WORD, FOR_SIGNALS, AcqRel, Relaxed).is_ok()
        {
            doorbell::wake(sleep);
        }
    }

    /// Wakes one idle worker slot; returns `false` if there is none. Must follow a fence after the data to be
    /// seen was published.
    pub(crate) fn wake_one(&self) -> bool {
        while let Some(worker_slot) = self.most_idle_slot() {
            // The side that clears the bit rings; a worker that finds its bit cleared checks the queue once
            // more.
            if self.clear_idle(worker_slot) {
                self.ring_slot(worker_slot);
                return true;
            }
        }
        false
    }

    /// The first idle worker slot of the process with the most idle slots; of equal processes the first, so
    /// that as few processes as possible are kept warm.
    fn most_idle_slot(&self) -> Option<usize> {
        let Geometry { worker_slots, process_slots, .. } = self.geometry;
        let is_idle = |worker_slot: &usize| {
            self.word(self.geometry.idle(*worker_slot)).load(Acquire) & 1 << (worker_slot % 32) != 0
        };
        let mut idlest = None;
        let mut most = 0;
        for first in (0..worker_slots).step_by(process_slots) {
            // Each bit is read once: a second read may find it cleared, and miss others.
            let mut idle = (first..worker_slots.min(first + process_slots)).filter(is_idle);
            if let Some(lowest) = idle.next() {
                let count = 1 + idle.count();
                if count > most {
                    (idlest, most) = (Some(lowest), count);
                }
            }
            if most == process_slots {
                break;
            }
        }
        idlest
    }

    /// Wakes `thread` if it sleeps. Must follow a fence after the data to be seen was published.
    pub(crate) fn ring_thread(&self, thread: usize) {
        let asleep = self.thread_sleep_flag(thread);
        if asleep.load(Relaxed) != 0 && asleep.swap(0, AcqRel) != 0 {
            self.thread_doorbells[thread].ring();
        }
    }
}

/// One slot's words and areas.
#[derive(Clone, Copy)]
pub(crate) struct Slot<'a> {
    region: &'a Region,
    geometry: &'a Geometry,
    words: &'a [AtomicU32; slot::WORDS],
    request: usize,
    response: usize,
}

impl<'a> Slot<'a> {
    pub(crate) fn state(self) -> &'a AtomicU32 {
        &self.words[slot::STATE]
    }

    pub(crate) fn load_state(self) -> SlotState {
        SlotState(self.state().load(Acquire))
    }

    pub(crate) fn notice_flag(self) -> &'a AtomicU32 {
        &self.words[slot::NOTICED]
    }

    pub(crate) fn cancelled(self) -> &'a AtomicU32 {
        &self.words[slot::CANCELLED]
    }

    pub(crate) fn reason(self) -> &'a AtomicU32 {
        &self.words[slot::REASON]
    }

    /// The requested measurements.
    pub(crate) fn measure(self) -> &'a AtomicU32 {
        &self.words[slot::MEASURE]
    }

    /// The time of the claim, the CPU time and the memory growth.
    pub(crate) fn cost(self) -> [&'a AtomicU32; 3] {
        [&self.words[slot::CLAIMED_US], &self.words[slot::CPU_US], &self.words[slot::MEMORY_KIB]]
    }

    pub(crate) fn request(self) -> Pipe<'a> {
        Pipe {
            region: self.region,
            base: self.request,
            bytes: self.geometry.request_bytes as u32,
            head: &self.words[slot::REQUEST_HEAD],
            tail: &self.words[slot::REQUEST_TAIL],
        }
    }

    pub(crate) fn response(self) -> Pipe<'a> {
        Pipe {
            region: self.region,
            base: self.response,
            bytes: self.geometry.response_bytes as u32,
            head: &self.words[slot::RESPONSE_HEAD],
            tail: &self.words[slot::RESPONSE_TAIL],
        }
    }
}

/// One direction of one slot: an area of the region and the two words with the position of each side.
#[derive(Clone, Copy)]
pub(crate) struct Pipe<'a> {
    pub(crate) region: &'a Region,
    /// Offset of the area in bytes.
    pub(crate) base: usize,
    /// Size of the area, a power of two.
    pub(crate) bytes: u32,
    /// The producer's position; bit 0 means that no more will follow.
    pub(crate) head: &'a AtomicU32,
    /// The consumer's position.
    pub(crate) tail: &'a AtomicU32,
}
