//! Waking a core from other threads.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Wake;

use rustix::event::{EventfdFlags, epoll, eventfd};

/// The mailbox of one core: tasks woken and sources released by other threads.
#[derive(Debug)]
pub(crate) struct Remote {
    woken: Mutex<Vec<u32>>,
    /// Whether the eventfd was written since the core last checked.
    is_signaled: AtomicBool,
    eventfd: OwnedFd,
    /// The core's epoll instance; another core that takes over a connection removes it from there.
    epoll: OwnedFd,
    /// Tokens of sources whose connections other cores took over or closed; freed in the next sweep.
    released: Mutex<Vec<u64>>,
}

impl Remote {
    pub(crate) fn new() -> std::io::Result<Remote> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Remote {
            woken: Mutex::default(),
            is_signaled: AtomicBool::new(false),
            eventfd: bell,
            epoll,
            released: Mutex::default(),
        })
    }

    /// Wakes a task. Callable from any thread.
    pub(crate) fn wake(&self, task: u32) {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner).push(task);
        self.wake_core();
    }

    /// Makes the core run a turn. Callable from any thread.
    pub(crate) fn wake_core(&self) {
        if !self.is_signaled.swap(true, Ordering::AcqRel) {
            // Written at most once between two checks, so it can neither overflow nor block.
            let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
        }
    }

    pub(crate) fn eventfd(&self) -> &OwnedFd {
        &self.eventfd
    }

    pub(crate) fn epoll(&self) -> &OwnedFd {
        &self.epoll
    }

    /// Releases an unused source. Callable from any thread.
    pub(crate) fn release(&self, token: u64) {
        self.released.lock().unwrap_or_else(PoisonError::into_inner).push(token);
    }

    /// Returns the tokens released since the last call.
    pub(crate) fn take_released(&self) -> Vec<u64> {
        std::mem::take(&mut self.released.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Appends the woken tasks to `into`. The eventfd is edge-triggered and need not be read.
    pub(crate) fn take(&self, into: &mut Vec<u32>) {
        // A load before the swap, because each turn of the core calls this.
        if self.is_signaled.load(Ordering::Relaxed) && self.is_signaled.swap(false, Ordering::AcqRel) {
            into.append(&mut self.woken.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

/// The waker of a task slot, for futures of other crates. If the slot belongs to another task meanwhile, that
/// task gets a spurious wake-up, which every future must tolerate.
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
