//! The two ways of sleeping: on a word of the shared memory (futex), or on a file descriptor (eventfd).

#[cfg(loom)]
pub(crate) use loom_model::{Doorbell, wait, wake};
#[cfg(not(loom))]
pub(crate) use native::{Doorbell, wait, wake};

#[cfg(not(loom))]
mod native {
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
    use std::time::Duration;

    use rustix::event::{EventfdFlags, eventfd};
    use rustix::io;
    use rustix::thread::{Timespec, futex};

    use crate::sync::AtomicU32;

    /// Sleeps while `word` holds `value`, at most for `limit`. May return early. Returns whether a signal
    /// interrupted the sleep.
    pub(crate) fn wait(word: &AtomicU32, value: u32, limit: Option<Duration>) -> bool {
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        // Every other error (changed word, timeout) means the same: check the condition again.
        futex::wait(word, futex::Flags::empty(), value, limit.as_ref()) == Err(io::Errno::INTR)
    }

    /// Wakes a sleeper on `word`, in any process.
    pub(crate) fn wake(word: &AtomicU32) {
        // Waking a mapped, aligned word cannot fail.
        let _ = futex::wake(word, futex::Flags::empty(), 1);
    }

    /// An eventfd: each ring causes one edge for an edge-triggered epoll.
    pub(crate) struct Doorbell(OwnedFd);

    impl Doorbell {
        pub(crate) fn new() -> io::Result<Doorbell> {
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Doorbell)
        }

        pub(crate) fn adopt(fd: OwnedFd) -> Doorbell {
            Doorbell(fd)
        }

        pub(crate) fn ring(&self) {
            // An eventfd with a full counter (never read) is already readable.
            let _ = io::write(&self.0, &1u64.to_ne_bytes());
        }

        pub(crate) fn fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }
}

#[cfg(loom)]
mod loom_model {
    use std::time::Duration;

    use loom::lazy_static;
    use loom::sync::{Condvar, Mutex};

    use crate::sync::{AtomicU32, Relaxed};

    lazy_static! {
        // A single hash bucket of the kernel's futex table, used for all words.
        static ref BUCKET: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
    }

    pub(crate) fn wait(word: &AtomicU32, value: u32, limit: Option<Duration>) -> bool {
        assert!(limit.is_none(), "no clock under loom");
        let held = BUCKET.0.lock().unwrap();
        if word.load(Relaxed) == value {
            drop(BUCKET.1.wait(held).unwrap());
        }
        false
    }

    pub(crate) fn wake(_word: &AtomicU32) {
        drop(BUCKET.0.lock().unwrap());
        BUCKET.1.notify_all();
    }

    pub(crate) struct Doorbell(Mutex<bool>, Condvar);

    impl Doorbell {
        pub(crate) fn new() -> std::io::Result<Doorbell> {
            Ok(Doorbell(Mutex::new(false), Condvar::new()))
        }

        pub(crate) fn ring(&self) {
            *self.0.lock().unwrap() = true;
            self.1.notify_one();
        }

        /// Sleeps until an edge that was not yet seen.
        pub(crate) fn wait(&self) {
            let mut rung = self.0.lock().unwrap();
            while !*rung {
                rung = self.1.wait(rung).unwrap();
            }
            *rung = false;
        }
    }
}
