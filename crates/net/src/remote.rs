//! Waking a core from another thread: the only way in.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Wake;

use rustix::event::{EventfdFlags, eventfd};

/// The mailbox of one core: which of its tasks others have woken.
#[derive(Debug)]
pub(crate) struct Remote {
    woken: Mutex<Vec<u32>>,
    /// Whether the eventfd was written since the core last looked.
    rung: AtomicBool,
    bell: OwnedFd,
}

impl Remote {
    pub(crate) fn new() -> std::io::Result<Remote> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Remote { woken: Mutex::default(), rung: AtomicBool::new(false), bell })
    }

    /// Wakes a task; from any thread.
    pub(crate) fn wake(&self, task: u32) {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner).push(task);
        self.ring();
    }

    /// Makes the core turn once; from any thread.
    pub(crate) fn ring(&self) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            // The counter cannot overflow and the write cannot block: it is written once a look.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    pub(crate) fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    /// Takes what was woken. The bell is edge-triggered and need not be read.
    pub(crate) fn take(&self, into: &mut Vec<u32>) {
        // Read before it is written: each turn of the core asks.
        if self.rung.load(Ordering::Relaxed) && self.rung.swap(false, Ordering::AcqRel) {
            into.append(&mut self.woken.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

/// The waker of one task slot, for futures that this crate did not write. A wake that comes after the slot
/// changed hands is a spurious one, which every future bears.
pub(crate) struct SlotWaker {
    pub(crate) remote: Arc<Remote>,
    pub(crate) task: u32,
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.remote.wake(self.task);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.remote.wake(self.task);
    }
}
