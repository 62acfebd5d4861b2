//! What the connections of one core share, and the seat that each of them holds.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use crate::core::Core;
use crate::counters::Counters;
use crate::options::{Limits, Timeouts};
use crate::work::Works;

/// What a connection holds while nothing happens on it.
const PARKED_BYTES: usize = 512;

/// What all connections of one core share.
pub(crate) struct Context {
    pub(crate) core: Core,
    pub(crate) limits: Limits,
    pub(crate) timeouts: Timeouts,
    pub(crate) works: Works,
    pub(crate) counters: Arc<Counters>,
    /// The server is stopping: answers say `Connection: close`.
    pub(crate) draining: Cell<bool>,
    pub(crate) seats: Seats,
    /// How many responses are being compressed.
    pub(crate) encoders: Rc<Cell<usize>>,
}

/// How many connections a core may hold, and who waits for one to end.
pub(crate) struct Seats {
    pub(crate) max: usize,
    pub(crate) taken: Cell<usize>,
    pub(crate) waiting: RefCell<Vec<Rc<crate::source::Source>>>,
}

impl Seats {
    pub(crate) fn new(max: usize) -> Seats {
        Seats { max, taken: Cell::new(0), waiting: RefCell::default() }
    }

    /// Whether newcomers wait for a seat: then nobody keeps one between two requests.
    pub(crate) fn crowded(&self) -> bool {
        !self.waiting.borrow().is_empty()
    }
}

/// A connection's seat, and what it holds of memory: given back when it is dropped.
pub(crate) struct Seat {
    context: Rc<Context>,
    held_bytes: Cell<usize>,
}

impl Seat {
    pub(crate) fn take(context: &Rc<Context>) -> Seat {
        let seats = &context.seats;
        seats.taken.set(seats.taken.get() + 1);
        context.counters.connections_open.set(seats.taken.get() as u64);
        let seat = Seat { context: context.clone(), held_bytes: Cell::new(0) };
        seat.hold(0);
        seat
    }

    pub(crate) fn context(&self) -> &Rc<Context> {
        &self.context
    }

    /// From now on the connection holds so many bytes, beside what every one does.
    pub(crate) fn hold(&self, bytes: usize) {
        let after = bytes + PARKED_BYTES;
        let before = self.held_bytes.replace(after);
        if before != after {
            self.context.core.memory().change(before, after);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.context.core.memory().change(self.held_bytes.get(), 0);
        let seats = &self.context.seats;
        seats.taken.set(seats.taken.get() - 1);
        self.context.counters.connections_open.set(seats.taken.get() as u64);
        if seats.taken.get() < seats.max && !seats.waiting.borrow().is_empty() {
            for source in seats.waiting.borrow_mut().drain(..) {
                self.context.core.nudge(&source);
            }
        }
    }
}
