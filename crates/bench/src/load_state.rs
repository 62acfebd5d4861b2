//! State that the connections of one engine thread share.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use fastrand::Rng;
use http::{Limits, Method};
use net::Core;
use net::client::LocalNotify;

use crate::clock::now_ns;
use crate::plan::LoadPlan;
use crate::tally::{ErrorKind, LoadTally};

/// Read buffer size; also the maximum size of a response head.
pub(crate) const SCRATCH_BYTES: usize = 128 * 1024;
/// Maximum number of waiting requests per thread in an open loop; above it, further requests are dropped.
const QUEUE_MAX: usize = 4_000_000;

/// Maximum time in milliseconds that connections are opened in one turn of the engine.
const TURN_MS_MAX: u64 = 20;

/// A request to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestJob {
    /// Index in the plan.
    pub(crate) request: u32,
    /// Time from which its latency counts, in nanoseconds.
    pub(crate) due_ns: u64,
}

/// State that all threads of a run share.
#[derive(Debug, Default)]
pub(crate) struct RunState {
    /// Set to end the run early.
    pub(crate) stop: AtomicBool,
    /// Set when the server's CPU time for the run has been read. No connection is closed before that: closing
    /// would add work to the run, and servers with a thread per connection would end threads, whose CPU time
    /// would be lost.
    pub(crate) is_usage_read: AtomicBool,
    /// Facts about the server, from its first response.
    pub(crate) facts: OnceLock<ServerFacts>,
    /// Length and hash of the first response to each request.
    pub(crate) expected: Vec<OnceLock<(u64, u64)>>,
}

/// Facts read from the first response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerFacts {
    /// Value of the `Server` field.
    pub server: String,
    /// Content length in bytes.
    pub content_bytes: u64,
    /// Response status.
    pub status: u16,
}

/// A parsed response head. Identical bytes need not be parsed again, because their meaning depends only on
/// them and on the request's method.
#[derive(Debug, Default)]
pub(crate) struct KnownHead {
    pub(crate) bytes: Vec<u8>,
    pub(crate) method: Method,
    pub(crate) status: u16,
    pub(crate) length: usize,
}

/// Requests of one origin, in order.
struct RequestSequence {
    requests: Vec<u32>,
    position: usize,
}

pub(crate) struct LoadState {
    pub(crate) core: Core,
    pub(crate) plan: Arc<LoadPlan>,
    pub(crate) run_state: Arc<RunState>,
    pub(crate) tally: RefCell<LoadTally>,
    pub(crate) scratch: RefCell<Vec<u8>>,
    pub(crate) limits: Limits,
    pub(crate) known_head: RefCell<KnownHead>,
    /// Time at which the latest request was answered or failed.
    pub(crate) last_end_ns: Cell<u64>,
    /// The longest latency of a response, in nanoseconds.
    pub(crate) longest_ns: Cell<u64>,
    sequences: RefCell<Vec<RequestSequence>>,
    random: RefCell<Rng>,
    /// Requests that may still be started.
    quota: Cell<u64>,
    is_quota_used: Cell<bool>,
    /// Number of requests in progress.
    in_flight: Cell<usize>,
    /// Open loop: due requests that wait for a connection.
    queue: RefCell<VecDeque<RequestJob>>,
    /// Open loop: connections that wait for a request.
    idle: RefCell<Vec<Rc<LocalNotify>>>,
}

impl LoadState {
    pub(crate) fn new(core: &Core, plan: Arc<LoadPlan>, shared: Arc<RunState>, seed: u64) -> LoadState {
        let walks = (0..plan.origins.len())
            .map(|origin| RequestSequence { requests: plan.request_order_to(origin), position: 0 });
        LoadState {
            core: core.clone(),
            sequences: RefCell::new(walks.collect()),
            plan,
            run_state: shared,
            tally: RefCell::default(),
            scratch: RefCell::new(vec![0; SCRATCH_BYTES]),
            limits: Limits {
                head_bytes_max: SCRATCH_BYTES / 2,
                start_line_bytes_max: 16 * 1024,
                fields_max: 500,
                bare_lf: false,
                lenient_heads: false,
            },
            known_head: RefCell::default(),
            last_end_ns: Cell::new(0),
            longest_ns: Cell::new(0),
            random: RefCell::new(Rng::with_seed(seed)),
            quota: Cell::new(u64::MAX),
            is_quota_used: Cell::new(false),
            in_flight: Cell::new(0),
            queue: RefCell::default(),
            idle: RefCell::default(),
        }
    }

    /// Records facts about the server from its first response.
    pub(crate) fn record_facts(&self, server: &[u8], length: Option<u64>, status: u16) {
        // Another thread may have set them first.
        self.run_state.facts.get_or_init(|| ServerFacts {
            server: String::from_utf8_lossy(server).into_owned(),
            content_bytes: length.unwrap_or(0),
            status,
        });
    }

    /// Sets the number of requests that may still be started, including those in progress.
    pub(crate) fn set_quota(&self, requests: u64) {
        let begun = self.in_flight.get() + self.queue.borrow().len();
        self.quota.set(requests.saturating_sub(begun as u64));
    }

    /// Ends the run: no further requests are started.
    pub(crate) fn end_run(&self) {
        self.is_quota_used.set(true);
    }

    /// Whether the run has ended, even if requests are still in progress.
    pub(crate) fn has_ended(&self) -> bool {
        self.is_quota_used.get()
    }

    /// Whether no further requests are to be started.
    pub(crate) fn is_over(&self) -> bool {
        self.is_quota_used.get() || self.quota.get() == 0
    }

    /// Whether this turn of the engine has taken so long that other tasks should run first.
    pub(crate) fn should_yield(&self) -> bool {
        now_ns() / 1_000_000 > self.core.now().0 + TURN_MS_MAX
    }

    /// Whether no request is in progress or waiting.
    pub(crate) fn is_drained(&self) -> bool {
        self.in_flight.get() == 0 && self.queue.borrow().is_empty()
    }

    /// Returns the next request for `origin`.
    fn next_request(&self, origin: usize) -> u32 {
        let walk = &mut self.sequences.borrow_mut()[origin];
        if let &[only] = walk.requests.as_slice() {
            return only;
        }
        let at = if self.plan.is_random {
            self.random.borrow_mut().usize(..walk.requests.len())
        } else {
            let at = walk.position;
            walk.position = (at + 1) % walk.requests.len();
            at
        };
        walk.requests[at]
    }

    /// Takes a request to send now: in an open loop one that is due; in a closed loop the next one, unless
    /// the run has ended.
    pub(crate) fn take_request(&self, origin: usize, now_ns: u64) -> Option<RequestJob> {
        let job = if self.plan.is_open() {
            self.queue.borrow_mut().pop_front()?
        } else if self.is_over() {
            return None;
        } else {
            self.quota.set(self.quota.get() - 1);
            RequestJob { request: self.next_request(origin), due_ns: now_ns }
        };
        self.in_flight.set(self.in_flight.get() + 1);
        Some(job)
    }

    /// Records that a request has been answered or has failed.
    pub(crate) fn finish_request(&self) {
        self.in_flight.set(self.in_flight.get() - 1);
    }

    /// Counts a failed request. A timed-out request is recorded with the time it waited.
    pub(crate) fn fail_request(&self, job: RequestJob, kind: ErrorKind, example: &str, now_ns: u64) {
        let mut tally = self.tally.borrow_mut();
        tally.errors.add(kind, 1, example);
        if matches!(kind, ErrorKind::Timeout | ErrorKind::Unanswered | ErrorKind::Unsent) {
            tally.latency.record(now_ns.saturating_sub(job.due_ns));
        }
        self.last_end_ns.set(now_ns);
        self.finish_request();
    }

    // ---- open loop ----

    /// Makes another request due; returns false if the quota is used up.
    pub(crate) fn add_due_request(&self, due_ns: u64) -> bool {
        if self.is_over() {
            return false;
        }
        self.quota.set(self.quota.get() - 1);
        let job = RequestJob { request: self.next_request(0), due_ns };
        let mut queue = self.queue.borrow_mut();
        if queue.len() == QUEUE_MAX {
            self.tally.borrow_mut().errors.add(
                ErrorKind::Unsent,
                1,
                "too many requests were waiting to be sent",
            );
        } else {
            queue.push_back(job);
        }
        self.notify_idle();
        true
    }

    /// Returns a due request that was taken but not sent.
    pub(crate) fn return_request(&self, job: RequestJob) {
        self.in_flight.set(self.in_flight.get() - 1);
        self.queue.borrow_mut().push_front(job);
        self.notify_idle();
    }

    /// Wakes an idle connection for a due request.
    pub(crate) fn notify_idle(&self) {
        if let Some(bell) = self.idle.borrow_mut().pop() {
            bell.notify();
        }
    }

    /// Registers an idle connection; `bell` notifies it of a request.
    pub(crate) fn register_idle(&self, bell: Rc<LocalNotify>) {
        self.idle.borrow_mut().push(bell);
    }

    /// Counts requests that are still waiting to be sent as errors, with the time they have waited.
    pub(crate) fn fail_waiting(&self, now_ns: u64) {
        while let Some(job) = self.queue.borrow_mut().pop_front() {
            self.in_flight.set(self.in_flight.get() + 1);
            self.fail_request(job, ErrorKind::Unsent, "no connection was free for it", now_ns);
        }
    }
}
