//! Waking a core from another thread: the only way in.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Wake;

use rustix::event::{EventfdFlags, epoll, eventfd};

/// The mailbox of one core: which of its tasks others have woken.
#[derive(Debug)]
pub(crate) struct Remote {
    woken: Mutex<Vec<u32>>,
    /// Whether the eventfd was written since the core last looked.
    rung: AtomicBool,
    bell: OwnedFd,
    /// The core's epoll: a core that takes over a connection of this one removes it from there.
    epoll: OwnedFd,
    /// Tokens of sources whose connections others have taken over or closed; the core frees them when it next sweeps.
    released: Mutex<Vec<u64>>,
}

impl Remote {
    pub(crate) fn new() -> std::io::Result<Remote> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Remote {
            woken: Mutex::default(),
            rung: AtomicBool::new(false),
            bell,
            epoll,
            released: Mutex::default(),
        })
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

    pub(crate) fn epoll(&self) -> &OwnedFd {
        &self.epoll
    }

    /// Releases the source of that token, which is no longer used; from any thread.
    pub(crate) fn release(&self, token: u64) {
        self.released.lock().unwrap_or_else(PoisonError::into_inner).push(token);
    }

    /// The tokens released since the last call.
    pub(crate) fn take_released(&self) -> Vec<u64> {
        std::mem::take(&mut self.released.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes what was woken. The bell is edge-triggered and need not be read.
    pub(crate) fn take(&self, into: &mut Vec<u32>) {
        // Read before it is written: each turn of the core asks.
        if self.rung.load(Ordering::Relaxed) && self.rung.swap(false, Ordering::AcqRel) {
            into.append(&mut self.woken.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

/// The waker of one task slot, for futures of other crates. If the slot belongs to another task by then, that task gets
/// a spurious wake-up, which every future must tolerate.
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
