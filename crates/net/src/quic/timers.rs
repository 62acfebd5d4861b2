//! Timers of connections: one entry for each, kept as long as it is not later than what the connection needs.
//!
//! A connection's next timer usually moves away with each packet. Its entry stays where it is, and the
//! connection is asked again when that time comes, so most packets change no entry.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use times::Moment;

use crate::core::{Core, SourceTimer};
use crate::source::{Source, WRITE};

/// The timers of the connections of one socket.
pub(super) struct ConnectionTimers {
    core: Core,
    /// The source of the endpoint's task, made writable when a timer is due.
    source: Rc<Source>,
    entries: RefCell<BTreeSet<(Moment, usize)>>,
    armed: RefCell<Option<SourceTimer>>,
}

impl ConnectionTimers {
    pub(super) fn new(core: &Core, source: Rc<Source>) -> ConnectionTimers {
        ConnectionTimers {
            core: core.clone(),
            source,
            entries: RefCell::default(),
            armed: RefCell::default(),
        }
    }

    /// Wakes connection `number` at a time, or before. `entry` is the time of its entry, [`Moment::NEVER`] if
    /// it has none.
    pub(super) fn schedule(&self, number: usize, entry: &Cell<Moment>, at: Moment) {
        if at >= entry.get() {
            return;
        }
        let mut entries = self.entries.borrow_mut();
        entries.remove(&(entry.replace(at), number));
        entries.insert((at, number));
        drop(entries);
        self.arm();
    }

    /// Removes the entry of a connection that ends.
    pub(super) fn remove(&self, number: usize, entry: &Cell<Moment>) {
        self.entries.borrow_mut().remove(&(entry.replace(Moment::NEVER), number));
    }

    /// Removes and returns the next connection whose time has come.
    pub(super) fn take_due(&self) -> Option<usize> {
        let mut entries = self.entries.borrow_mut();
        let first = *entries.first()?;
        (first.0 <= self.core.now() && entries.remove(&first)).then_some(first.1)
    }

    /// Arms the core's timer for the first entry.
    pub(super) fn arm(&self) {
        let Some(&(first, _)) = self.entries.borrow().first() else { return };
        let mut armed = self.armed.borrow_mut();
        let now = self.core.now();
        if armed.as_ref().is_none_or(|timer| timer.at() > first || timer.at() <= now) {
            *armed = Some(self.core.set_ready_at(&self.source, WRITE, first));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_times_keep_the_entry_and_earlier_ones_replace_it() {
        let core = Core::for_client(1).unwrap();
        let timers = ConnectionTimers::new(&core, core.add_source());
        let now = core.now();
        let entry = Cell::new(Moment::NEVER);
        timers.schedule(3, &entry, Moment(now.0 + 500));
        timers.schedule(3, &entry, Moment(now.0 + 900));
        assert_eq!(entry.get(), Moment(now.0 + 500));
        assert_eq!(timers.take_due(), None);
        timers.schedule(3, &entry, now);
        assert_eq!(timers.entries.borrow().len(), 1);
        assert_eq!(timers.take_due(), Some(3));
        assert_eq!(timers.take_due(), None);
        timers.schedule(4, &Cell::new(Moment::NEVER), now);
        timers.remove(4, &Cell::new(now));
        assert_eq!(timers.take_due(), None);
    }
}
