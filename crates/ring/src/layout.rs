//! The memory layout: the geometry of one generation, computed once, validated, and never read back from the
//! memory.

use std::fmt;

use crate::words::{SLOTS_MAX, WORKER_SLOTS_MAX};

/// The parameters of one generation of an application.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Server threads that submit requests: 1 to 256.
    pub threads: usize,
    /// Worker slots (one per claimant, so one per thread of a threaded worker process): 1 to 4096.
    pub worker_slots: usize,
    /// Worker slots of one process, which are adjacent: 1 to 4096. Idle processes are woken before idle
    /// threads of busy ones.
    pub process_slots: usize,
    /// Maximum number of requests of one server thread, queued and held by workers: 1 to 16384, rounded up to
    /// a power of two.
    pub slots: usize,
    /// Size of a slot's request area in bytes: 64 to 16 MiB, rounded up to a power of two. A request head
    /// must fit completely; a body is streamed through the remaining space.
    pub request_bytes: usize,
    /// Size of a slot's response area in bytes: 64 to 16 MiB, rounded up to a power of two.
    pub response_bytes: usize,
    /// Whether every worker slot has an eventfd, for workers that sleep in an event loop. Costs a descriptor
    /// per worker slot.
    pub slot_fds: bool,
}

impl Default for Options {
    /// One thread, 16 worker slots, 1024 slots with 32 KiB for the request and 64 KiB for the response, no
    /// eventfds of worker slots. Memory is allocated only when touched, and the most recently used slots are
    /// reused first.
    fn default() -> Options {
        Options {
            threads: 1,
            worker_slots: 16,
            process_slots: 1,
            slots: 1024,
            request_bytes: 32 * 1024,
            response_bytes: 64 * 1024,
            slot_fds: false,
        }
    }
}

impl Options {
    /// Maximum number of worker slots.
    pub const WORKER_SLOTS_MAX: usize = WORKER_SLOTS_MAX;
}

/// An option out of its range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OutOfRange(pub(crate) &'static str);

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the channel's `{}` is out of range", self.0)
    }
}

impl std::error::Error for OutOfRange {}

/// Words of a cache line; words that one side writes often share no line with words of the other side.
#[cfg(not(loom))]
pub(crate) const CACHE_LINE_WORDS: usize = 16;
/// There are no caches under loom, and every word costs it time.
#[cfg(loom)]
pub(crate) const CACHE_LINE_WORDS: usize = 8;

/// Number of words of the header, at the start of the memory.
pub(crate) const HEADER_WORDS: usize = 9;
/// "KOMA", little-endian.
const MAGIC: u32 = u32::from_le_bytes(*b"KOMA");
/// Version of the layout; increased with every change of it or of the words' meaning.
pub(crate) const ABI: u32 = 3;

/// The control words of a slot; reset by the server before each use.
pub(crate) mod slot {
    /// Packed [`SlotState`](crate::words::SlotState): the only word that both sides update by
    /// compare-and-swap.
    pub(crate) const STATE: usize = 0;
    /// Request stream: bytes produced by the server; bit 0 means that no more will follow.
    pub(crate) const REQUEST_HEAD: usize = 1;
    /// Request stream: bytes consumed by the worker.
    pub(crate) const REQUEST_TAIL: usize = 2;
    /// Response stream: bytes produced by the worker.
    pub(crate) const RESPONSE_HEAD: usize = 3;
    /// Response stream: bytes consumed by the server.
    pub(crate) const RESPONSE_TAIL: usize = 4;
    /// 1 while an unread notice about this slot is in the lane.
    pub(crate) const NOTICED: usize = 5;
    /// The server's reason for cancelling the request, otherwise 0.
    pub(crate) const CANCELLED: usize = 6;
    /// The worker's reason in [`SlotPhase::Aborted`](crate::words::SlotPhase::Aborted).
    pub(crate) const REASON: usize = 7;
    /// The requested measurements: a [`Measure`](crate::Measure).
    pub(crate) const MEASURE: usize = 8;
    /// Time of the claim: the low bits of the clock in microseconds, or 0.
    pub(crate) const CLAIMED_US: usize = 9;
    /// CPU time in microseconds plus 1, or 0.
    pub(crate) const CPU_US: usize = 10;
    /// Growth of the worker's memory in KiB plus 1 (wrapping), or 0.
    pub(crate) const MEMORY_KIB: usize = 11;
    /// Number of control words.
    pub(crate) const WORDS: usize = 12;
}

/// Offsets and strides of the memory, in words unless bytes are mentioned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Geometry {
    pub(crate) threads: usize,
    pub(crate) worker_slots: usize,
    pub(crate) process_slots: usize,
    pub(crate) slots: usize,
    pub(crate) request_bytes: usize,
    pub(crate) response_bytes: usize,
    /// Cells of a queue and of a lane: twice the slots, so that neither can overflow between valid peers.
    pub(crate) cells: usize,
    idle: usize,
    worker_slots_at: usize,
    threads_at: usize,
    thread_stride: usize,
    lane_stride: usize,
    slots_at: usize,
    slot_stride: usize,
    pub(crate) words: usize,
}

impl Geometry {
    pub(crate) fn new(options: &Options) -> Result<Geometry, OutOfRange> {
        let within = |value: usize, least: usize, most: usize, name: &'static str| {
            if (least..=most).contains(&value) { Ok(value) } else { Err(OutOfRange(name)) }
        };
        let bytes_min = if cfg!(loom) { 16 } else { 64 };
        let threads = within(options.threads, 1, 256, "threads")?;
        let worker_slots = within(options.worker_slots, 1, WORKER_SLOTS_MAX, "worker slots")?;
        let process_slots = within(options.process_slots, 1, WORKER_SLOTS_MAX, "process slots")?;
        let slots = within(options.slots, 1, SLOTS_MAX, "slots")?.next_power_of_two();
        let request_bytes =
            within(options.request_bytes, bytes_min, 16 << 20, "request_bytes")?.next_power_of_two();
        let response_bytes =
            within(options.response_bytes, bytes_min, 16 << 20, "response_bytes")?.next_power_of_two();

        let lines = |words: usize| words.next_multiple_of(CACHE_LINE_WORDS);
        // An odd number of lines, so that the words checked in every lane and slot fall into different cache
        // sets.
        let odd = |words: usize| (words.div_ceil(CACHE_LINE_WORDS) | 1) * CACHE_LINE_WORDS;
        let cells = slots * 2;
        let idle = lines(HEADER_WORDS);
        let worker_slots_at = idle + lines(worker_slots.div_ceil(32));
        let threads_at = worker_slots_at + worker_slots * CACHE_LINE_WORDS;
        // Sleep flag, queue head, queue tail, cells of the queue, one lane for each worker slot.
        let lane_stride = odd(cells);
        let thread_stride = 3 * CACHE_LINE_WORDS + lines(cells) + worker_slots * lane_stride;
        let slots_at = threads_at + threads * thread_stride;
        let slot_stride = odd(lines(slot::WORDS) + (request_bytes + response_bytes) / 4);
        let words = slots_at + threads * slots * slot_stride;
        within(words, 1, u32::MAX as usize, "slots")?;
        Ok(Geometry {
            threads,
            worker_slots,
            process_slots,
            slots,
            request_bytes,
            response_bytes,
            cells,
            idle,
            worker_slots_at,
            threads_at,
            thread_stride,
            lane_stride,
            slots_at,
            slot_stride,
            words,
        })
    }

    /// The header that a worker expects.
    pub(crate) fn header(&self) -> [u32; HEADER_WORDS] {
        let small = |value: usize| u32::try_from(value).expect("checked by `new`");
        [
            MAGIC,
            ABI,
            small(self.threads),
            small(self.worker_slots),
            small(self.process_slots),
            small(self.slots),
            small(self.request_bytes),
            small(self.response_bytes),
            small(self.words),
        ]
    }

    #[cfg(not(loom))]
    /// Reads the geometry from a header; `None` if the header is invalid or of another version.
    pub(crate) fn read(header: [u32; HEADER_WORDS]) -> Option<Geometry> {
        let [_, _, threads, worker_slots, process_slots, slots, request_bytes, response_bytes, _] =
            header.map(|word| word as usize);
        let options = Options {
            threads,
            worker_slots,
            process_slots,
            slots,
            request_bytes,
            response_bytes,
            slot_fds: false,
        };
        Geometry::new(&options).ok().filter(|geometry| geometry.header() == header)
    }

    /// The word of the idle bitmap that holds `worker_slot`'s bit.
    pub(crate) fn idle(&self, worker_slot: usize) -> usize {
        self.idle + worker_slot / 32
    }

    /// Offset of the words of `worker_slot`: its sleep state, its retirement flag, and the number of times it
    /// looked for requests.
    pub(crate) fn worker_slot(&self, worker_slot: usize) -> usize {
        self.worker_slots_at + worker_slot * CACHE_LINE_WORDS
    }

    /// Offset of the sleep flag of `thread`.
    pub(crate) fn sleep_flag(&self, thread: usize) -> usize {
        self.threads_at + thread * self.thread_stride
    }

    /// Offsets of the queue of `thread`: head, tail and cells.
    pub(crate) fn queue(&self, thread: usize) -> (usize, usize, usize) {
        let at = self.sleep_flag(thread);
        (at + CACHE_LINE_WORDS, at + 2 * CACHE_LINE_WORDS, at + 3 * CACHE_LINE_WORDS)
    }

    /// Offset of the cells of the lane from `worker_slot` to `thread`.
    pub(crate) fn lane(&self, thread: usize, worker_slot: usize) -> usize {
        let lanes =
            self.sleep_flag(thread) + 3 * CACHE_LINE_WORDS + self.cells.next_multiple_of(CACHE_LINE_WORDS);
        lanes + worker_slot * self.lane_stride
    }

    /// Offset of the control words of a slot.
    pub(crate) fn slot(&self, thread: usize, slot: usize) -> usize {
        debug_assert!(thread < self.threads && slot < self.slots);
        self.slots_at + (thread * self.slots + slot) * self.slot_stride
    }

    /// Offsets of a slot's request and response areas, in bytes.
    pub(crate) fn areas(&self, thread: usize, slot: usize) -> (usize, usize) {
        let request = (self.slot(thread, slot) + slot::WORDS.next_multiple_of(CACHE_LINE_WORDS)) * 4;
        (request, request + self.request_bytes)
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_do_not_overlap_and_fit_the_region() {
        let options = Options {
            threads: 3,
            worker_slots: 40,
            process_slots: 2,
            slots: 5,
            request_bytes: 100,
            response_bytes: 64,
            slot_fds: false,
        };
        let g = Geometry::new(&options).unwrap();
        assert_eq!((g.slots, g.request_bytes, g.response_bytes), (8, 128, 64));
        let mut areas = vec![(0, HEADER_WORDS), (g.idle(0), 2)];
        areas.extend((0..g.worker_slots).map(|worker_slot| (g.worker_slot(worker_slot), 2)));
        for thread in 0..g.threads {
            let (head, tail, cells) = g.queue(thread);
            areas.extend([(g.sleep_flag(thread), 1), (head, 1), (tail, 1), (cells, g.cells)]);
            areas.extend((0..g.worker_slots).map(|worker_slot| (g.lane(thread, worker_slot), g.cells)));
            for slot in 0..g.slots {
                let (request, response) = g.areas(thread, slot);
                areas.push((g.slot(thread, slot), slot::WORDS));
                areas.extend([(request / 4, g.request_bytes / 4), (response / 4, g.response_bytes / 4)]);
            }
        }
        areas.sort_unstable();
        for pair in areas.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
        }
        let last = areas[areas.len() - 1];
        assert!(last.0 + last.1 <= g.words);
    }

    #[test]
    fn damaged_header_does_not_yield_its_geometry() {
        let g = Geometry::new(&Options::default()).unwrap();
        assert_eq!(Geometry::read(g.header()), Some(g));
        for word in 0..HEADER_WORDS {
            let mut header = g.header();
            header[word] ^= 0x40;
            assert_ne!(Geometry::read(header), Some(g), "word {word}");
        }
        let mut wild = g.header();
        wild[2..7].fill(u32::MAX);
        assert_eq!(Geometry::read(wild), None);
    }

    #[test]
    fn options_out_of_range_are_named() {
        let none = Options { slots: 0, ..Options::default() };
        assert_eq!(Geometry::new(&none), Err(OutOfRange("slots")));
        let many = Options { worker_slots: 4097, ..Options::default() };
        assert_eq!(Geometry::new(&many), Err(OutOfRange("worker slots")));
        // 256 threads with 16384 slots of 32 MiB: more words than the header can express.
        let huge = Options {
            threads: 256,
            slots: 16384,
            request_bytes: 16 << 20,
            response_bytes: 16 << 20,
            ..Options::default()
        };
        assert_eq!(Geometry::new(&huge), Err(OutOfRange("slots")));
    }
}
