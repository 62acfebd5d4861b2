//! Event sources other than sockets, checked before and after each wait of the event loop.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

/// A source of events with its own wake-up, such as the workers of an application.
///
/// Order of calls in each turn of the engine: [`TurnHook::drain`], the ready tasks, [`TurnHook::prepare_wait`], the
/// wait, and [`TurnHook::finish_wait`].
pub trait TurnHook {
    /// Reads the pending events and wakes the tasks that wait for them ([`crate::Core::wake_task`]).
    fn drain(&self);
    /// Called before a piece of long work, such as a TLS handshake: sends what the turn has collected.
    fn flush(&self) {}
    /// Called before the event loop waits: sends what the turn has collected, and enables wake-ups. Returns
    /// false if events are already pending; the event loop then polls its sockets without sleeping.
    fn prepare_wait(&self) -> bool;
    /// Called after the event loop has waited: disables wake-ups.
    fn finish_wait(&self);
}

/// Identifies a task of a core, to wake it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskId(pub(crate) u32);

/// The hooks of a core.
#[derive(Default)]
pub(crate) struct TurnHooks(RefCell<Vec<Weak<dyn TurnHook>>>);

impl TurnHooks {
    pub(crate) fn add(&self, hook: &Rc<dyn TurnHook>) {
        let mut ticks = self.0.borrow_mut();
        ticks.retain(|tick| tick.strong_count() > 0);
        ticks.push(Rc::downgrade(hook));
    }

    pub(crate) fn drain(&self) {
        self.each(|tick| tick.drain());
    }

    pub(crate) fn flush(&self) {
        self.each(|tick| tick.flush());
    }

    /// Whether all hooks rest. Wake-ups of the others may be enabled too; the wait is short in that case.
    pub(crate) fn prepare_wait(&self) -> bool {
        let mut rests = true;
        self.each(|tick| rests &= tick.prepare_wait());
        rests
    }

    pub(crate) fn finish_wait(&self) {
        self.each(|tick| tick.finish_wait());
    }

    fn each(&self, mut call: impl FnMut(&dyn TurnHook)) {
        for tick in self.0.borrow().iter() {
            if let Some(tick) = tick.upgrade() {
                call(&*tick);
            }
        }
    }
}
