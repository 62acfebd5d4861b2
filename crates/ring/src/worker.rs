//! The worker's side: a worker slot that claims requests, and the requests it holds.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::doorbell;
use crate::error::WorkerSlot;
use crate::queue::Queue;
use crate::request::ClaimedRequest;
use crate::shared::{AWAKE, ON_FD, ON_WORD, STIRRED, SharedMemory};
use crate::side::Side;
use crate::sync::{AcqRel, Relaxed, SeqCst, fence};

/// The result of [`Worker::next`].
#[derive(Debug)]
pub enum Next {
    /// A request, claimed by this worker.
    ClaimedRequest(ClaimedRequest),
    /// No request in time, or the caller should check for signals.
    TimedOut,
    /// The server asks the worker to leave; there will be no more requests.
    Retired,
}

/// One claimant of requests. A threaded worker process has one per thread, each in a worker slot of its own; an event loop has
/// one that holds many requests at once.
pub struct Worker {
    side: Rc<Side>,
    /// The thread whose queue is checked first next time.
    turn: Cell<usize>,
}

impl Worker {
    pub(crate) fn new(shared: Arc<SharedMemory>, WorkerSlot(worker_slot): WorkerSlot) -> Worker {
        assert!(worker_slot < shared.geometry.worker_slots, "a worker slot of the channel");
        Worker { side: Rc::new(Side::new(shared, worker_slot)), turn: Cell::new(0) }
    }

    /// Claims the oldest waiting request, without waiting. The queues of the server threads are read in turn.
    pub fn try_next(&self) -> Option<ClaimedRequest> {
        let threads = self.side.shared.geometry.threads;
        let first = self.turn.get();
        for thread in (first..threads).chain(0..first) {
            while let Some(tag) = self.queue(thread).claim(self.side.worker_slot) {
                self.turn.set((thread + 1) % threads);
                self.hand_on();
                // A request that cannot be read was aborted: try the next.
                if let Some(request) = ClaimedRequest::begin(&self.side, thread, tag) {
                    return Some(request);
                }
            }
        }
        None
    }

    /// Claims the oldest waiting request, sleeping until there is one: for ever, or until `limit` is over. A signal ends
    /// the sleep too, and so does [`Channel::stir`](crate::Channel::stir), so that a language can run its handlers.
    pub fn next(&self, limit: Option<Duration>) -> Next {
        // The clock is read only before a sleep, because reading it costs time.
        let (mut deadline, mut is_over) = (None, false);
        loop {
            if self.is_retired() {
                self.hand_on();
                return Next::Retired;
            }
            if let Some(request) = self.try_next() {
                return Next::ClaimedRequest(request);
            }
            if is_over {
                return Next::TimedOut;
            }
            let left = limit.and_then(|limit| {
                let now = Instant::now();
                let deadline = *deadline.get_or_insert_with(|| now.checked_add(limit));
                deadline.map(|deadline| deadline.saturating_duration_since(now))
            });
            let (signal, alone) = self.sleep_idle(left);
            is_over = signal || left == Some(Duration::ZERO);
            if alone && is_over {
                return Next::TimedOut;
            }
        }
    }

    /// Sleeps until a request is queued. Returns whether the caller should check for signals, and whether nobody woke
    /// this worker; if someone did, the worker must check the queues again.
    fn sleep_idle(&self, limit: Option<Duration>) -> (bool, bool) {
        let Side { shared, worker_slot, .. } = &*self.side;
        let sleep = shared.sleep(*worker_slot);
        sleep.swap(ON_WORD, AcqRel);
        shared.set_idle(*worker_slot);
        // Announce the sleep, fence, check again; a thread that queues a request publishes, fences, and checks who
        // sleeps.
        fence(SeqCst);
        let sleeps = limit != Some(Duration::ZERO) && !self.has_waiting() && !self.is_retired();
        let signal = sleeps && doorbell::wait(sleep, ON_WORD, limit);
        let stirred = sleep.swap(AWAKE, AcqRel) == STIRRED;
        (signal || stirred, shared.clear_idle(*worker_slot))
    }

    /// Whether the server asked this worker to leave.
    pub fn is_retired(&self) -> bool {
        self.side.shared.retired(self.side.worker_slot).load(Relaxed) != 0
    }

    /// The eventfd that is notified after [`Worker::arm`]; `None` if the channel has no eventfds for workers.
    #[cfg(not(loom))]
    pub fn fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.side.shared.slot_signals.get(self.side.worker_slot).map(doorbell::Signal::fd)
    }

    /// To be called before an event loop sleeps: from now on changes notify the eventfd, new requests too if `wanted`.
    /// `false`, and not armed, if there is a request to claim. After that check the claimed requests once more, and
    /// sleep only if none can continue.
    #[must_use]
    pub fn arm(&self, wanted: bool) -> bool {
        let Side { shared, worker_slot, .. } = &*self.side;
        shared.sleep(*worker_slot).swap(ON_FD, AcqRel);
        if wanted {
            shared.set_idle(*worker_slot);
        }
        fence(SeqCst);
        if wanted && self.has_waiting() || self.is_retired() {
            self.disarm();
            return false;
        }
        true
    }

    /// To be called after an event loop has slept. If requests were wanted, [`Worker::try_next`] must be called next:
    /// this worker may have been the only one that was woken for a request.
    pub fn disarm(&self) {
        self.side.shared.sleep(self.side.worker_slot).swap(AWAKE, AcqRel);
        self.side.shared.clear_idle(self.side.worker_slot);
    }

    /// Resets the eventfd, for event loops that are not edge-triggered.
    #[cfg(not(loom))]
    pub fn quiet(&self) {
        if let Some(fd) = self.fd() {
            // That it was not notified is no error.
            let _ = rustix::io::read(fd, &mut [0; 8]);
        }
    }

    fn queue(&self, thread: usize) -> Queue<'_> {
        Queue::new(&self.side.shared, thread)
    }

    fn has_waiting(&self) -> bool {
        (0..self.side.shared.geometry.threads).any(|thread| !self.queue(thread).is_empty())
    }

    /// Wakes one more worker if requests are left, so that no request waits while a worker is idle.
    fn hand_on(&self) {
        if self.has_waiting() {
            self.side.shared.wake_one();
        }
    }
}
