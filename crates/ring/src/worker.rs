//! The worker's side: a worker slot that claims requests.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::doorbell;
use crate::error::WorkerSlot;
use crate::queue::Queue;
use crate::request::ClaimedRequest;
use crate::shared::{AWAKE, FOR_SIGNALS, ON_FD, ON_WORD, SharedMemory};
use crate::sync::{AcqRel, Relaxed, SeqCst, fence};
use crate::worker_side::WorkerSide;

/// The result of [`Worker::next`].
#[derive(Debug)]
pub enum NextRequest {
    /// A request, claimed by this worker.
    ClaimedRequest(ClaimedRequest),
    /// No request arrived in time, or the worker should check its signals.
    TimedOut,
    /// The server asks the worker to exit; no more requests follow.
    Retired,
}

/// End of the sleep of an idle worker.
struct Wakeup {
    /// Whether the worker should check its signals.
    checks_signals: bool,
    /// Whether another side has woken this worker, which must check the queues again.
    was_rung: bool,
}

/// A claimant of requests. A threaded worker process has one per thread, each in its own worker slot; an
/// event loop has one that holds many requests at once.
pub struct Worker {
    side: Rc<WorkerSide>,
    /// The thread whose queue is checked first next time.
    next_thread: Cell<usize>,
}

impl Worker {
    pub(crate) fn new(shared: Arc<SharedMemory>, WorkerSlot(worker_slot): WorkerSlot) -> Worker {
        assert!(worker_slot < shared.geometry.worker_slots, "a worker slot of the channel");
        Worker { side: Rc::new(WorkerSide::new(shared, worker_slot)), next_thread: Cell::new(0) }
    }

    /// Claims the oldest waiting request, without waiting. The queues of the server threads are checked in
    /// turn.
    pub fn try_next(&self) -> Option<ClaimedRequest> {
        let threads = self.side.shared.geometry.threads;
        let first = self.next_thread.get();
        for thread in (first..threads).chain(0..first) {
            while let Some(tag) = self.queue(thread).claim(self.side.worker_slot) {
                self.next_thread.set((thread + 1) % threads);
                self.wake_another();
                // A request with an invalid head was aborted: continue with the next one.
                if let Some(request) = ClaimedRequest::begin(&self.side, thread, tag) {
                    return Some(request);
                }
            }
        }
        None
    }

    /// Claims the oldest waiting request, sleeping until there is one or until `limit` has elapsed. A signal
    /// also ends the sleep, and so does [`Channel::wake_for_signals`](crate::Channel::wake_for_signals), so
    /// that a language can run its signal handlers.
    pub fn next(&self, limit: Option<Duration>) -> NextRequest {
        // The clock is read only before sleeping, because reading it is unnecessary while there is work.
        let mut deadline = None;
        let mut is_over = false;
        #[cfg(not(loom))]
        self.count_claim_attempt();
        loop {
            if self.is_retired() {
                self.wake_another();
                return NextRequest::Retired;
            }
            if let Some(request) = self.try_next() {
                return NextRequest::ClaimedRequest(request);
            }
            // Without a wait, no side rings this worker, so it need not sleep to check again.
            if is_over || limit == Some(Duration::ZERO) {
                return NextRequest::TimedOut;
            }
            let left = limit.and_then(|limit| {
                let now = Instant::now();
                let deadline = *deadline.get_or_insert_with(|| now.checked_add(limit));
                deadline.map(|deadline| deadline.saturating_duration_since(now))
            });
            let wakeup = self.sleep_idle(left);
            is_over = wakeup.checks_signals || left == Some(Duration::ZERO);
            if !wakeup.was_rung && is_over {
                return NextRequest::TimedOut;
            }
        }
    }

    /// Sleeps as an idle worker.
    fn sleep_idle(&self, limit: Option<Duration>) -> Wakeup {
        let WorkerSide { shared, worker_slot, .. } = &*self.side;
        let sleep = shared.sleep_word(*worker_slot);
        sleep.swap(ON_WORD, AcqRel);
        shared.set_idle(*worker_slot);
        // Announce the sleep, fence, check again; a side that queues publishes, fences, and checks for
        // sleepers.
        fence(SeqCst);
        let sleeps = limit != Some(Duration::ZERO) && !self.has_waiting() && !self.is_retired();
        let signal = sleeps && doorbell::wait(sleep, ON_WORD, limit);
        let for_signals = sleep.swap(AWAKE, AcqRel) == FOR_SIGNALS;
        Wakeup { checks_signals: signal || for_signals, was_rung: !shared.clear_idle(*worker_slot) }
    }

    /// Counts an attempt to claim, by which hangs are detected: see
    /// [`Channel::progress`](crate::Channel::progress).
    #[cfg(not(loom))]
    fn count_claim_attempt(&self) {
        let looks = self.side.shared.claim_attempts(self.side.worker_slot);
        looks.store(looks.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Whether the server asked this worker to exit.
    pub fn is_retired(&self) -> bool {
        self.side.shared.retired_flag(self.side.worker_slot).load(Relaxed) != 0
    }

    /// The eventfd that is rung after [`Worker::arm`]; `None` if the channel was created without eventfds.
    #[cfg(not(loom))]
    pub fn fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.side.shared.slot_doorbells.get(self.side.worker_slot).map(doorbell::Doorbell::fd)
    }

    /// Sleeps until the eventfd is rung.
    #[cfg(loom)]
    pub fn sleep(&self) {
        self.side.shared.slot_doorbells[self.side.worker_slot].wait();
    }

    /// Prepares an event loop for sleeping: from now on news ring the eventfd, including new requests if
    /// `wants_requests`. Returns `false`, without preparing, if there is a request to claim. Then check the held
    /// requests once more, and sleep only if none has news.
    #[must_use]
    pub fn arm(&self, wants_requests: bool) -> bool {
        let WorkerSide { shared, worker_slot, .. } = &*self.side;
        #[cfg(not(loom))]
        self.count_claim_attempt();
        shared.sleep_word(*worker_slot).swap(ON_FD, AcqRel);
        if wants_requests {
            shared.set_idle(*worker_slot);
        }
        fence(SeqCst);
        if wants_requests && self.has_waiting() || self.is_retired() {
            self.disarm();
            return false;
        }
        true
    }

    /// Ends the preparation after an event loop slept. If requests were wanted, [`Worker::try_next`] must
    /// follow, because this worker may have been chosen for a new one.
    pub fn disarm(&self) {
        self.side.shared.sleep_word(self.side.worker_slot).swap(AWAKE, AcqRel);
        self.side.shared.clear_idle(self.side.worker_slot);
    }

    /// Makes the eventfd unreadable again, for event loops that are not edge-triggered.
    #[cfg(not(loom))]
    pub fn clear_eventfd(&self) {
        if let Some(fd) = self.fd() {
            // An eventfd that was not rung is unreadable already.
            let _ = rustix::io::read(fd, &mut [0; 8]);
        }
    }

    fn queue(&self, thread: usize) -> Queue<'_> {
        Queue::new(&self.side.shared, thread)
    }

    fn has_waiting(&self) -> bool {
        (0..self.side.shared.geometry.threads).any(|thread| !self.queue(thread).is_empty())
    }

    /// Wakes another worker if requests are left, so that none waits while a worker is idle.
    fn wake_another(&self) {
        if self.has_waiting() {
            self.side.shared.wake_one();
        }
    }
}
