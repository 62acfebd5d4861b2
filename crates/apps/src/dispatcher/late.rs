//! Timed-out requests of event loops: each has to be released within a time limit, or its loop counts as
//! hanging.

use std::cell::RefCell;

use ring::{Ticket, WorkerSlot};

/// Time within which an event loop must release a timed-out request, or any other of its timed-out requests.
const RELEASE_MS: u64 = 1_000;
/// Time within which an event loop must release all requests that timed out at the same time.
const RELEASE_MS_MAX: u64 = 10_000;
/// Time after which another worker is started: a responsive loop reacts at once.
const DOUBT_MS: u64 = 100;

/// An observation about an event loop with late requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LateEvent {
    /// The loop has released nothing for too long.
    Hangs,
    /// The loop does not react to another late request.
    Doubted,
    /// The loop has released a request after having been doubted.
    Released,
}

/// A timed-out request that its event loop must release.
struct LateRequest {
    ticket: Ticket,
    worker_slot: WorkerSlot,
    due_ms: u64,
    due_ms_max: u64,
    is_doubted: bool,
}

/// Timed-out requests of a core.
#[derive(Default)]
pub(super) struct LateRequests(RefCell<Vec<LateRequest>>);

impl LateRequests {
    pub(super) fn add(&self, ticket: Ticket, worker_slot: WorkerSlot, now_ms: u64) {
        let (due_ms, due_ms_max) = (now_ms + RELEASE_MS, now_ms + RELEASE_MS_MAX);
        self.0.borrow_mut().push(LateRequest { ticket, worker_slot, due_ms, due_ms_max, is_doubted: false });
    }

    /// Checks which requests are still held, and calls `report` for each finding. A loop that has released a
    /// request since the last check is responsive and gets more time for the others.
    pub(super) fn look(
        &self,
        now_ms: u64,
        is_held: impl Fn(Ticket) -> bool,
        report: impl Fn(WorkerSlot, LateEvent),
    ) {
        let mut all = self.0.borrow_mut();
        let released = all.iter().filter(|late| !is_held(late.ticket));
        let works: Vec<WorkerSlot> = released.map(|late| late.worker_slot).collect();
        all.retain_mut(|late| {
            let is_held = is_held(late.ticket);
            if is_held && works.contains(&late.worker_slot) {
                late.due_ms = (now_ms + RELEASE_MS).min(late.due_ms_max);
            }
            if is_held && now_ms >= late.due_ms {
                report(late.worker_slot, LateEvent::Hangs);
            } else if is_held && !late.is_doubted && now_ms + RELEASE_MS >= late.due_ms + DOUBT_MS {
                late.is_doubted = true;
                report(late.worker_slot, LateEvent::Doubted);
            } else if !is_held && late.is_doubted {
                report(late.worker_slot, LateEvent::Released);
            }
            is_held && now_ms < late.due_ms
        });
    }

    /// Calls `each` for all requests that are still held, with the remaining time.
    pub(super) fn held(&self, now_ms: u64, is_held: impl Fn(Ticket) -> bool, each: impl Fn(WorkerSlot, u64)) {
        for late in self.0.borrow().iter().filter(|late| is_held(late.ticket)) {
            each(late.worker_slot, late.due_ms.saturating_sub(now_ms));
        }
    }
}
