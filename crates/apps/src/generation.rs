//! One load of an application's code: its channel, and what cores and supervisor both look at.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use ring::Channel;

use crate::log::{AppLog, AppLogLevel};
use crate::options::Options;

/// What is known of one seat. On a line of its own: every core counts here.
#[repr(align(64))]
#[derive(Default)]
pub(crate) struct WorkerSlotState {
    /// Requests answered by its holder.
    pub(crate) requests: AtomicU64,
    /// At how many of them the holder is to be replaced; 0 for never.
    pub(crate) requests_max: AtomicU64,
}

/// What one core has under way, as of its last look.
#[repr(align(64))]
#[derive(Default)]
pub(crate) struct CoreLoad {
    /// Requests that wait for a worker.
    pub(crate) waiting: AtomicUsize,
    /// Requests in workers' hands.
    pub(crate) claimed: AtomicUsize,
}

/// A worker's thread waits for a client to take an answer, as long as this lives.
pub(crate) struct HeldWorker<'g>(&'g Generation);

impl<'g> HeldWorker<'g> {
    pub(crate) fn new(generation: &'g Generation) -> HeldWorker<'g> {
        generation.held.fetch_add(1, Ordering::Relaxed);
        HeldWorker(generation)
    }
}

impl Drop for HeldWorker<'_> {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The most slots of one core.
const SLOTS_MAX: usize = 16 * 1024;
/// Words of a channel that slots may take, and of a slot beside its streams; a little is left for everything else.
const CHANNEL_WORDS: usize = 7 << 29;
const SLOT_WORDS: usize = 64;

/// A generation.
pub(crate) struct Generation {
    pub(crate) number: u64,
    pub(crate) options: Arc<Options>,
    pub(crate) channel: Channel,
    pub(crate) worker_slots: Vec<WorkerSlotState>,
    pub(crate) loads: Vec<CoreLoad>,
    /// By place: the process, for taking descriptors out of it.
    pub(crate) processes: Vec<Mutex<Option<Arc<OwnedFd>>>>,
    /// By place: the process's id, for people; 0 where none is known.
    pub(crate) pids: Vec<AtomicI32>,
    /// Seats of one place.
    threads: usize,
    /// Workers' threads that wait for a client to take an answer.
    pub(crate) held: AtomicUsize,
    /// Whether a worker was ever ready.
    pub(crate) is_up: AtomicBool,
    /// A worker has said that its threads have one request at a time each.
    pub(crate) said_single: AtomicBool,
    /// Whether the log has heard of a body that is not framed as its head says.
    unframed_reported: AtomicBool,
}

impl Generation {
    pub(crate) fn new(number: u64, options: Arc<Options>, cores: usize) -> io::Result<Generation> {
        let (places, threads) = (options.places(), options.threads.max(1));
        let channel = Channel::create(&ring::Options {
            threads: cores,
            worker_slots: places * threads,
            slots: slots(&options, cores),
            request_bytes: options.request_bytes,
            response_bytes: options.response_bytes,
            slot_fds: options.event_loop,
        })?;
        Ok(Generation {
            number,
            options,
            channel,
            worker_slots: (0..places * threads).map(|_| WorkerSlotState::default()).collect(),
            loads: (0..cores).map(|_| CoreLoad::default()).collect(),
            processes: (0..places).map(|_| Mutex::default()).collect(),
            pids: (0..places).map(|_| AtomicI32::new(0)).collect(),
            threads,
            held: AtomicUsize::new(0),
            is_up: AtomicBool::new(false),
            said_single: AtomicBool::new(false),
            unframed_reported: AtomicBool::new(false),
        })
    }

    /// Whether a worker's thread has one request at a time: no event loop.
    pub(crate) fn is_single(&self) -> bool {
        self.options.concurrency == 1 || self.said_single.load(Ordering::Relaxed)
    }

    /// Whether slow clients hold more than half of the threads of workers, though not the only one, while requests wait.
    pub(crate) fn is_held_up(&self) -> bool {
        let held_max = (self.options.workers.max * self.threads / 2).max(1);
        self.is_single()
            && self.held.load(Ordering::Relaxed) > held_max
            && self.loads.iter().any(|load| load.waiting.load(Ordering::Relaxed) > 0)
    }

    /// Says, once, that a body is not framed as its head says.
    pub(crate) fn tell_unframed(&self, app_log: &AppLog) {
        if !self.unframed_reported.swap(true, Ordering::Relaxed) {
            let text = "it says Transfer-Encoding: chunked of a body that is not in chunks: the field is left out (told once)";
            app_log.report(AppLogLevel::Warn, text);
        }
    }

    /// The seats of the worker at `place`.
    pub(crate) fn worker_slots_of(&self, place: usize) -> Range<usize> {
        place * self.threads..(place + 1) * self.threads
    }

    /// The place that a seat belongs to.
    pub(crate) fn place_of(&self, worker_slot: usize) -> usize {
        worker_slot / self.threads
    }
}

/// Requests that one core may have under way.
fn slots(options: &Options, cores: usize) -> usize {
    // What is queued, and what is in workers' hands: on one core it may be all of it.
    let worker_slots = options.places() * options.threads.max(1);
    let wanted = options.queue_max.div_ceil(cores) + worker_slots * options.concurrency.max(1);
    // Of all cores they must fit into one channel, whose words are counted in 32 bits; a slot has two cells in each seat's
    // lane. The more cores there are, the smaller is each one's share of what is under way.
    let bytes = options.request_bytes.next_power_of_two() + options.response_bytes.next_power_of_two();
    let words = bytes / 4 + SLOT_WORDS + 2 * (worker_slots + 1);
    let fitting = (CHANNEL_WORDS / cores / words).max(1);
    wanted.min(1 << fitting.ilog2()).min(SLOTS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_loop_on_many_cores_has_room_in_a_channel() {
        for cores in [1, 2, 11, 16, 64, 256] {
            let mut options = Options::new("api", Vec::new());
            (options.event_loop, options.concurrency) = (true, 1000);
            options.workers = crate::options::Workers { min: cores, max: cores };
            let (queue_max, places) = (options.queue_max, options.places());
            let slots = slots(&options, cores);
            assert!(slots <= queue_max.div_ceil(cores) + places * options.concurrency);
            assert!(slots * cores >= queue_max + places, "{slots} slots on each of {cores}");
            // Memory is used only once it is touched; descriptors are, but are not what this is about.
            options.event_loop = false;
            Generation::new(1, Arc::new(options), cores).unwrap();
        }
    }
}
