//! State of one load of an application's code: its channel, and what the cores and the supervisor share.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use ring::Channel;
use shapes::client_abort::ClientAbort;
use times::Millis;

use crate::log::{AppLog, AppLogLevel};
use crate::options::Options;
use crate::process::CURRENT_BYTES_MAX;

/// Request counts of the worker at one place. Aligned to a cache line, because every core counts here.
#[repr(align(64))]
#[derive(Default)]
pub(crate) struct WorkerCounts {
    /// Requests answered by all of its threads.
    pub(crate) requests: AtomicU64,
    /// Number of requests after which the worker is replaced; 0 for never.
    pub(crate) requests_max: AtomicU64,
}

/// Request counts of one core, as of its last sweep.
#[repr(align(64))]
#[derive(Default)]
pub(crate) struct CoreLoad {
    /// Requests that wait for a worker.
    pub(crate) waiting: AtomicUsize,
    /// Requests that workers have claimed.
    pub(crate) claimed: AtomicUsize,
    /// The first claimed requests, at most [`SHOWN_MAX`].
    pub(crate) current: Mutex<Vec<ClaimedHead>>,
}

/// Claimed requests of a core that are shown in the status.
pub(crate) const SHOWN_MAX: usize = 64;

/// The beginning of the head of a claimed request.
#[derive(Clone, Copy)]
pub(crate) struct ClaimedHead {
    pub(crate) worker_slot: usize,
    /// Milliseconds since the request was claimed.
    pub(crate) age: Millis,
    pub(crate) head: HeadStart,
}

/// The beginning of a request head, encoded as by [`ring::wire`].
#[derive(Clone, Copy)]
pub(crate) struct HeadStart {
    bytes: [u8; CURRENT_BYTES_MAX],
    len: u8,
}

impl HeadStart {
    pub(crate) fn of(head: &[u8]) -> HeadStart {
        let mut bytes = [0; CURRENT_BYTES_MAX];
        let len = head.len().min(CURRENT_BYTES_MAX);
        bytes[..len].copy_from_slice(&head[..len]);
        HeadStart { bytes, len: len as u8 }
    }

    /// Returns method and target, which come first in a head ([`crate::request::encode`]); the target may be
    /// truncated.
    pub(crate) fn texts(&self) -> (String, String) {
        let mut rest = &self.bytes[..usize::from(self.len)];
        let mut text = || {
            let Some((start, bytes)) = rest.split_first_chunk::<4>() else { return String::new() };
            let len = (u32::from_le_bytes(*start) >> 8) as usize;
            let (value, left) = bytes.split_at(len.min(bytes.len()));
            rest = left;
            String::from_utf8_lossy(value).into_owned()
        };
        (text(), text())
    }
}

/// Guard that counts a worker thread as waiting for a client to read a response.
pub(crate) struct HeldWorker<'g>(&'g Generation);

impl<'g> HeldWorker<'g> {
    pub(crate) fn new(generation: &'g Generation) -> HeldWorker<'g> {
        generation.held_workers.fetch_add(1, Ordering::Relaxed);
        HeldWorker(generation)
    }
}

impl Drop for HeldWorker<'_> {
    fn drop(&mut self) {
        self.0.held_workers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Maximum number of request slots of one core.
const SLOTS_MAX: usize = 16 * 1024;
/// Channel words available for slots and their streams; the rest is for everything else.
const CHANNEL_WORDS: usize = 7 << 29;
const SLOT_WORDS: usize = 64;

/// Generation: one load of the application's code.
pub(crate) struct Generation {
    pub(crate) number: u64,
    pub(crate) options: Arc<Options>,
    pub(crate) channel: Channel,
    /// Requests of each worker, indexed by place.
    pub(crate) counts: Vec<WorkerCounts>,
    /// Whether a core has seen a request with a deadline since the supervisor last looked; indexed by worker slot.
    pub(crate) has_seen_deadline: Vec<AtomicBool>,
    pub(crate) core_loads: Vec<CoreLoad>,
    /// Process of each place, from which descriptors are copied.
    pub(crate) processes: Vec<Mutex<Option<Arc<OwnedFd>>>>,
    /// Process id of each place, for the log; 0 if not known.
    pub(crate) pids: Vec<AtomicI32>,
    /// Number of worker slots per place.
    threads: usize,
    /// Number of worker threads that wait for a client to read a response.
    pub(crate) held_workers: AtomicUsize,
    /// Whether any worker has been ready.
    pub(crate) has_been_ready: AtomicBool,
    /// Whether a worker has reported that each of its threads runs one request at a time.
    pub(crate) has_reported_single: AtomicBool,
    /// Whether a body that is not framed as its head states was logged.
    unframed_reported: AtomicBool,
}

impl Generation {
    pub(crate) fn new(number: u64, options: Arc<Options>, cores: usize) -> io::Result<Generation> {
        let places = options.place_count();
        let threads = options.settings.threads.max(1) as usize;
        let channel = Channel::create(&ring::Options {
            threads: cores,
            worker_slots: places * threads,
            process_slots: threads,
            slots: slots(&options, cores),
            request_bytes: options.request_bytes,
            response_bytes: options.settings.response_head_bytes as usize,
            slot_fds: options.settings.runs_event_loop(),
        })?;
        Ok(Generation {
            number,
            options,
            channel,
            counts: (0..places).map(|_| WorkerCounts::default()).collect(),
            has_seen_deadline: (0..places * threads).map(|_| AtomicBool::default()).collect(),
            core_loads: (0..cores).map(|_| CoreLoad::default()).collect(),
            processes: (0..places).map(|_| Mutex::default()).collect(),
            pids: (0..places).map(|_| AtomicI32::new(0)).collect(),
            threads,
            held_workers: AtomicUsize::new(0),
            has_been_ready: AtomicBool::new(false),
            has_reported_single: AtomicBool::new(false),
            unframed_reported: AtomicBool::new(false),
        })
    }

    /// Whether each worker thread runs one request at a time (is not an event loop).
    pub(crate) fn is_one_request_per_thread(&self) -> bool {
        self.options.settings.concurrency_max() == 1 || self.has_reported_single.load(Ordering::Relaxed)
    }

    /// Whether a woken worker may be unable to claim a request while another one is idle: an event loop that
    /// computes, or a thread that waits for others of its process.
    pub(crate) fn may_claim_late(&self) -> bool {
        self.options.place_count() > 1 && (self.threads > 1 || !self.is_one_request_per_thread())
    }

    /// Whether `Transfer-Encoding: chunked` in a response head may mean that the application has chunked its
    /// body. ASGI applications never do; others may.
    pub(crate) fn may_chunk(&self) -> bool {
        !self.is_asgi()
    }

    /// Whether requests run in an event loop. A Python application may turn out to be WSGI when it is loaded.
    fn is_asgi(&self) -> bool {
        self.options.settings.runs_event_loop() && !self.has_reported_single.load(Ordering::Relaxed)
    }

    /// Whether a client that closes its sending side cancels its request.
    pub(crate) fn cancels_on_client_close(&self) -> bool {
        match self.options.settings.client_abort {
            Some(abort) => abort == ClientAbort::Cancel,
            None => self.is_asgi(),
        }
    }

    /// Whether slow clients occupy more than half of the worker threads, and more than one, while requests wait.
    pub(crate) fn is_blocked_by_clients(&self) -> bool {
        let held_max = (self.options.workers.max as usize * self.threads / 2).max(1);
        self.is_one_request_per_thread()
            && self.held_workers.load(Ordering::Relaxed) > held_max
            && self.core_loads.iter().any(|load| load.waiting.load(Ordering::Relaxed) > 0)
    }

    /// Logs once that a body is not framed as its head states.
    pub(crate) fn report_unframed(&self, app_log: &AppLog) {
        if !self.unframed_reported.swap(true, Ordering::Relaxed) {
            let text = "a response has Transfer-Encoding: chunked, but its body is not chunked: the field is removed (logged once)";
            app_log.report(AppLogLevel::Warn, text);
        }
    }

    /// Returns the worker slots of the worker at `place`.
    pub(crate) fn worker_slots_of(&self, place: usize) -> Range<usize> {
        place * self.threads..(place + 1) * self.threads
    }

    /// Returns the place of a worker slot.
    pub(crate) fn place_of(&self, worker_slot: usize) -> usize {
        worker_slot / self.threads
    }
}

/// Slots for requests that were dropped for newer ones and whose tasks have not run yet.
const DROPPED_SLOTS: usize = 32;

/// Returns the maximum number of concurrent requests of one core.
fn slots(options: &Options, cores: usize) -> usize {
    // Queued and claimed requests: a single core may have all of them.
    let worker_slots = options.place_count() * options.settings.threads.max(1) as usize;
    let wanted = options.settings.queue_max as usize
        + worker_slots * options.settings.concurrency_max()
        + DROPPED_SLOTS;
    // The slots of all cores must fit into one channel, whose words are counted in 32 bits; a slot has two
    // cells in the lane of each worker slot. With more cores, each has fewer slots.
    let bytes = options.request_bytes.next_power_of_two()
        + (options.settings.response_head_bytes as usize).next_power_of_two();
    let words = bytes / 4 + SLOT_WORDS + 2 * (worker_slots + 1);
    let fitting = (CHANNEL_WORDS / cores / words).max(1);
    wanted.min(1 << fitting.ilog2()).min(SLOTS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directives::{AppKind, PythonInterface, Workers};

    #[test]
    fn head_start_has_method_and_target() {
        use ring::wire::{self, FieldId};
        let mut head = Vec::new();
        wire::put(&mut head, FieldId::METHOD, b"GET").unwrap();
        wire::put(&mut head, FieldId::TARGET, b"/a?b").unwrap();
        assert_eq!(HeadStart::of(&head).texts(), ("GET".to_owned(), "/a?b".to_owned()));
        head.truncate(7);
        wire::put(&mut head, FieldId::TARGET, &[b'x'; 1000]).unwrap();
        let (method, target) = HeadStart::of(&head).texts();
        assert_eq!((method.as_str(), target.len()), ("GET", CURRENT_BYTES_MAX - 11));
        assert_eq!(HeadStart::of(b"").texts(), (String::new(), String::new()));
    }

    #[test]
    fn event_loop_channel_has_slots_for_any_number_of_cores() {
        for cores in [1, 2, 11, 16, 64, 256] {
            let mut options = Options::new("api", Vec::new());
            options.settings.kind =
                Some(AppKind::Python { interface: PythonInterface::Asgi, callable: "api".into() });
            let count = u32::try_from(cores).unwrap();
            options.workers = Workers { min: count, max: count };
            let queue_max = options.settings.queue_max as usize;
            let places = options.place_count();
            let slots = slots(&options, cores);
            assert!(slots <= queue_max + places * options.settings.concurrency_max() + DROPPED_SLOTS);
            assert!(slots * cores >= queue_max + places, "{slots} slots on each of {cores}");
            // Memory is committed only when it is touched. Descriptors would be opened immediately, and this
            // test does not need them.
            options.settings.kind = None;
            Generation::new(1, Arc::new(options), cores).unwrap();
        }
    }
}
