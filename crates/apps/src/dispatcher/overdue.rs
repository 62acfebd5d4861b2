//! Timed-out requests of event loops: each has to be released within a time limit, or its loop counts as
//! hanging.

use std::cell::RefCell;

use ring::{Ticket, WorkerSlot};
use times::{Millis, Moment};

/// Time within which an event loop must release a timed-out request, or any other of its timed-out requests.
const RELEASE_TIME: Millis = Millis(1_000);
/// Time within which an event loop must release all requests that timed out at the same time.
const RELEASE_TIME_MAX: Millis = Millis(10_000);
/// Time after which another worker is started: a responsive loop reacts at once.
const UNRESPONSIVE_AFTER: Millis = Millis(100);

/// An observation about an event loop with late requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OverdueEvent {
    /// The loop has released nothing for too long.
    Hangs,
    /// The loop does not react to another late request.
    Unresponsive,
    /// The loop has released a request after having been doubted.
    Responsive,
}

/// A timed-out request that its event loop must release.
struct OverdueRequest {
    ticket: Ticket,
    worker_slot: WorkerSlot,
    deadline: Moment,
    deadline_max: Moment,
    is_unresponsive: bool,
}

/// Timed-out requests of a core.
#[derive(Default)]
pub(super) struct OverdueRequests(RefCell<Vec<OverdueRequest>>);

impl OverdueRequests {
    pub(super) fn add(&self, ticket: Ticket, worker_slot: WorkerSlot, now: Moment) {
        let due = now + RELEASE_TIME;
        let due_max = now + RELEASE_TIME_MAX;
        self.0.borrow_mut().push(OverdueRequest {
            ticket,
            worker_slot,
            deadline: due,
            deadline_max: due_max,
            is_unresponsive: false,
        });
    }

    /// Checks which requests are still held, and calls `report` for each finding. A loop that has released a
    /// request since the last check is responsive and gets more time for the others.
    pub(super) fn check(
        &self,
        now: Moment,
        is_held: impl Fn(Ticket) -> bool,
        report: impl Fn(WorkerSlot, OverdueEvent),
    ) {
        let mut all = self.0.borrow_mut();
        let released = all.iter().filter(|late| !is_held(late.ticket));
        let works: Vec<WorkerSlot> = released.map(|late| late.worker_slot).collect();
        all.retain_mut(|late| {
            let is_held = is_held(late.ticket);
            if is_held && works.contains(&late.worker_slot) {
                late.deadline = (now + RELEASE_TIME).min(late.deadline_max);
            }
            if is_held && now >= late.deadline {
                report(late.worker_slot, OverdueEvent::Hangs);
            } else if is_held
                && !late.is_unresponsive
                && now + RELEASE_TIME >= late.deadline + UNRESPONSIVE_AFTER
            {
                late.is_unresponsive = true;
                report(late.worker_slot, OverdueEvent::Unresponsive);
            } else if !is_held && late.is_unresponsive {
                report(late.worker_slot, OverdueEvent::Responsive);
            }
            is_held && now < late.deadline
        });
    }

    /// Calls `visit` for all requests that are still held, with the remaining time.
    pub(super) fn for_each_held(
        &self,
        now: Moment,
        is_held: impl Fn(Ticket) -> bool,
        visit: impl Fn(WorkerSlot, Millis),
    ) {
        for late in self.0.borrow().iter().filter(|late| is_held(late.ticket)) {
            visit(late.worker_slot, late.deadline - now);
        }
    }
}
