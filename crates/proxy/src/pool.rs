//! Kept connections to one server, on one core: the one used last is used next, so that those not needed grow old
//! and go.

use std::cell::RefCell;
use std::collections::VecDeque;

use crate::leg::Rested;

/// A pool. Idle connections in it hold no buffers.
#[derive(Default)]
pub(crate) struct Pool {
    /// The one used last stands last.
    idle: RefCell<VecDeque<Rested>>,
}

impl Pool {
    /// A connection on which nothing has happened since it was put here. `certain` asks the kernel too, for requests
    /// that must not be sent twice: a system call, against the moment between an event and its delivery.
    pub(crate) fn take(&self, now_ms: u64, certain: bool, fits: impl Fn(&Rested) -> bool) -> Option<Rested> {
        loop {
            let mut rested = self.idle.borrow_mut().pop_back()?;
            let quiet = !certain || rested.link.stream().is_quiet();
            if now_ms < rested.until_ms && rested.link.is_fresh() && quiet && fits(&rested) {
                return Some(rested);
            }
        }
    }

    /// Puts one in; the oldest goes where there are more than `idle_max`.
    pub(crate) fn put(&self, rested: Rested, idle_max: usize) {
        let mut idle = self.idle.borrow_mut();
        idle.push_back(rested);
        let oldest = if idle.len() > idle_max { idle.pop_front() } else { None };
        drop(idle);
        drop(oldest);
    }

    /// Closes those that are of no more use.
    pub(crate) fn sweep(&self, now_ms: u64, fits: impl Fn(&Rested) -> bool) {
        let mut idle = self.idle.take();
        idle.retain_mut(|rested| now_ms < rested.until_ms && rested.link.is_fresh() && fits(rested));
        self.idle.replace(idle);
    }

    /// Connections that lie here.
    pub(crate) fn len(&self) -> usize {
        self.idle.borrow().len()
    }
}
