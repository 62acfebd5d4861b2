//! The channel of one generation of an application: its memory, and the descriptors that a worker inherits.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::doorbell::Doorbell;
use crate::error::WorkerSlot;
use crate::layout::{Geometry, Options};
use crate::region::Region;
use crate::server::ServerSide;
use crate::shared::SharedMemory;
use crate::sync::{Relaxed, SeqCst, fence};
use crate::worker::Worker;

#[cfg(not(loom))]
pub use descriptors::{Attachment, NotAttached, environment};

/// The environment variable with a worker process's channel: the value of [`Channel::environment`].
pub const ENVIRONMENT: &str = "KOMAINU_RING";

/// The channel between the server's threads and the workers of one generation of one application. Dropping it
/// closes the server's descriptors; the memory lives until the last [`ServerSide`] and the last worker
/// process are gone.
pub struct Channel {
    shared: Arc<SharedMemory>,
    taken_threads: Vec<AtomicBool>,
    #[cfg(not(loom))]
    memory: std::os::fd::OwnedFd,
}

impl Channel {
    /// Creates the memory and the eventfds.
    ///
    /// # Errors
    /// `InvalidInput` for an option out of range; otherwise the operating system's error.
    pub fn create(options: &Options) -> io::Result<Channel> {
        let geometry = Geometry::new(options).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        #[cfg(not(loom))]
        let memory = descriptors::memory(geometry.words)?;
        #[cfg(not(loom))]
        let region = Region::map(std::os::fd::AsFd::as_fd(&memory), geometry.words)?;
        #[cfg(loom)]
        let region = Region::heap(geometry.words);
        for (word, value) in region.words().iter().zip(geometry.header()) {
            word.store(value, Relaxed);
        }
        let signals = |count: usize| (0..count).map(|_| Doorbell::new()).collect::<Result<Vec<_>, _>>();
        let shared = SharedMemory {
            region,
            geometry,
            thread_doorbells: signals(geometry.threads)?,
            slot_doorbells: signals(if options.slot_fds { geometry.worker_slots } else { 0 })?,
        };
        Ok(Channel {
            shared: Arc::new(shared),
            taken_threads: (0..geometry.threads).map(|_| AtomicBool::new(false)).collect(),
            #[cfg(not(loom))]
            memory,
        })
    }

    /// Returns the side of server thread `thread`, counted from 0. Must be called once, on that thread.
    ///
    /// # Panics
    /// If there is no such thread, or its side was taken before.
    pub fn server(&self, thread: usize) -> ServerSide {
        assert!(!self.taken_threads[thread].swap(true, Ordering::AcqRel), "a thread's side is taken once");
        ServerSide::new(Arc::clone(&self.shared), thread)
    }

    /// Returns a worker inside this process, in an unused worker slot.
    ///
    /// # Panics
    /// If there is no such worker slot.
    pub fn worker(&self, worker_slot: WorkerSlot) -> Worker {
        Worker::new(Arc::clone(&self.shared), worker_slot)
    }

    /// The memory itself, for tests that write invalid values.
    #[cfg(any(test, feature = "hostile"))]
    pub(crate) fn shared(&self) -> &Arc<SharedMemory> {
        &self.shared
    }

    /// Size of the memory mapped by each side, in bytes. Physical memory is allocated only for the used
    /// parts.
    #[must_use]
    pub fn mapped_bytes(&self) -> usize {
        self.shared.region.words().len() * 4
    }

    /// Whether the header is intact; otherwise no worker can attach any more.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let header = self.shared.geometry.header();
        self.shared.region.words().iter().zip(header).all(|(word, value)| word.load(Relaxed) == value)
    }

    /// Asks the holder of `worker_slot` to exit once it has finished its requests: its next attempt to claim
    /// a request returns [`NextRequest::Retired`](crate::NextRequest::Retired).
    pub fn retire(&self, worker_slot: WorkerSlot) {
        self.shared.retired_flag(worker_slot.0).store(1, Relaxed);
        fence(SeqCst);
        self.shared.ring_slot(worker_slot.0);
    }

    /// Returns whether the holder of `worker_slot` sleeps, and how often it has looked for requests
    /// (wrapping). A holder without a request that is awake but does not look hangs.
    #[cfg(not(loom))]
    #[must_use]
    pub fn progress(&self, WorkerSlot(worker_slot): WorkerSlot) -> (bool, u32) {
        let looks = self.shared.claim_attempts(worker_slot).load(Relaxed);
        (self.shared.sleep_word(worker_slot).load(Relaxed) != crate::shared::AWAKE, looks)
    }

    /// Lets all workers that wait for requests check their signals, because one may have arrived just before
    /// they fell asleep. Called periodically, so that workers need no timer for each wait.
    pub fn wake_for_signals(&self) {
        (0..self.shared.geometry.worker_slots)
            .for_each(|worker_slot| self.shared.wake_for_signals(worker_slot));
    }
}

#[cfg(not(loom))]
mod descriptors {
    use std::fmt;
    use std::io;
    use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
    use std::sync::Arc;

    use rustix::fs::fstat;
    #[cfg(not(miri))]
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    use rustix::io::{FdFlags, fcntl_setfd};

    use super::Channel;
    use crate::doorbell::Doorbell;
    use crate::error::WorkerSlot;
    use crate::layout::{Geometry, HEADER_WORDS};
    use crate::region::Region;
    use crate::shared::SharedMemory;
    use crate::sync::Relaxed;
    use crate::worker::Worker;

    /// Creates memory that no worker can shrink: truncation would raise SIGBUS in the server.
    #[cfg(not(miri))]
    pub(super) fn memory(words: usize) -> io::Result<OwnedFd> {
        let memory = memfd_create("komainu", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&memory, words as u64 * 4)?;
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(memory)
    }

    /// Miri does not support memfd: the region is on its heap, and this descriptor is a placeholder.
    #[cfg(miri)]
    pub(super) fn memory(_: usize) -> io::Result<OwnedFd> {
        Ok(rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?)
    }

    impl Channel {
        /// The descriptors that a worker process must inherit, under the same numbers. They are close-on-exec
        /// here: clear the flag in the child, between fork and exec.
        pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
            let signals = self.shared.thread_doorbells.iter().chain(&self.shared.slot_doorbells);
            std::iter::once(self.memory.as_fd()).chain(signals.map(Doorbell::fd))
        }

        /// The value of [`ENVIRONMENT`](crate::ENVIRONMENT) for worker processes: the descriptor numbers.
        pub fn environment(&self) -> String {
            environment(&self.descriptors().collect::<Vec<_>>(), self.threads())
        }

        /// Number of server threads.
        #[must_use]
        pub fn threads(&self) -> usize {
            self.shared.thread_doorbells.len()
        }
    }

    /// The value of [`ENVIRONMENT`](crate::ENVIRONMENT) for the descriptors of [`Channel::descriptors`] (one
    /// for the memory, at least one for each of `threads`) under their numbers in this process.
    #[must_use]
    pub fn environment(descriptors: &[BorrowedFd<'_>], threads: usize) -> String {
        let list = |fds: &[BorrowedFd<'_>]| {
            fds.iter().map(|fd| fd.as_raw_fd().to_string()).collect::<Vec<_>>().join(",")
        };
        let (memory, signals) = descriptors.split_at(descriptors.len().min(1));
        let (threads, worker_slots) = signals.split_at(threads.min(signals.len()));
        format!("{};{};{}", list(memory), list(threads), list(worker_slots))
    }

    /// The reason that a worker process could not attach to a channel.
    #[derive(Debug)]
    pub enum NotAttached {
        /// The environment variable's value is invalid.
        Environment,
        /// The memory has another version, or is not a channel.
        Version,
        /// There is no such worker slot.
        WorkerSlot,
        /// An error of the operating system.
        System(io::Error),
    }

    impl fmt::Display for NotAttached {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self {
                NotAttached::Environment => f.write_str("KOMAINU_RING does not name a channel"),
                NotAttached::Version => f.write_str("the server speaks another version of the channel"),
                NotAttached::WorkerSlot => f.write_str("the channel has no such worker slot"),
                NotAttached::System(error) => error.fmt(f),
            }
        }
    }

    impl std::error::Error for NotAttached {}

    impl From<rustix::io::Errno> for NotAttached {
        fn from(error: rustix::io::Errno) -> NotAttached {
            NotAttached::System(error.into())
        }
    }

    /// A worker process's mapping of the channel, from which each claimant takes a worker slot. It survives a
    /// fork.
    #[derive(Clone)]
    pub struct Attachment(Arc<SharedMemory>);

    impl Attachment {
        /// Maps the channel named by the value of [`ENVIRONMENT`](crate::ENVIRONMENT). The descriptors stay
        /// open for the life of the process and are close-on-exec.
        ///
        /// # Errors
        /// See [`NotAttached`].
        pub fn new(environment: &str) -> Result<Attachment, NotAttached> {
            let mut lists = environment.split(';').map(|list| {
                let numbers = list.split(',').filter(|number| !number.is_empty());
                numbers
                    .map(|number| number.parse().ok().filter(|fd| *fd >= 0))
                    .collect::<Option<Vec<RawFd>>>()
            });
            let (Some(Some(memory)), Some(Some(threads)), Some(Some(worker_slots)), None) =
                (lists.next(), lists.next(), lists.next(), lists.next())
            else {
                return Err(NotAttached::Environment);
            };
            let &[memory] = memory.as_slice() else { return Err(NotAttached::Environment) };
            // SAFETY: only borrowed for this call; the calls below fail if the number is not open.
            let memory = unsafe { BorrowedFd::borrow_raw(memory) };
            let (region, geometry) = map(memory)?;
            fcntl_setfd(memory, FdFlags::CLOEXEC)?;
            if threads.len() != geometry.threads
                || !(worker_slots.is_empty() || worker_slots.len() == geometry.worker_slots)
            {
                return Err(NotAttached::Environment);
            }
            let thread_signals = adopt(&threads)?;
            let slot_signals = adopt(&worker_slots)?;
            let shared = Arc::new(SharedMemory {
                region,
                geometry,
                thread_doorbells: thread_signals,
                slot_doorbells: slot_signals,
            });
            // The descriptors belong to the process, not to this value: a second attachment may use them
            // again.
            std::mem::forget(Arc::clone(&shared));
            Ok(Attachment(shared))
        }

        /// Takes `worker_slot`, which must not be held by another claimant.
        ///
        /// # Errors
        /// [`NotAttached::WorkerSlot`].
        pub fn worker(&self, worker_slot: WorkerSlot) -> Result<Worker, NotAttached> {
            if worker_slot.0 >= self.0.geometry.worker_slots {
                return Err(NotAttached::WorkerSlot);
            }
            Ok(Worker::new(Arc::clone(&self.0), worker_slot))
        }
    }

    fn map(memory: BorrowedFd<'_>) -> Result<(Region, Geometry), NotAttached> {
        let words = usize::try_from(fstat(memory)?.st_size / 4).map_err(|_| NotAttached::Version)?;
        if words < HEADER_WORDS {
            return Err(NotAttached::Version);
        }
        let region = Region::map(memory, words)?;
        let mut header = [0; HEADER_WORDS];
        for (value, word) in header.iter_mut().zip(region.words()) {
            *value = word.load(Relaxed);
        }
        let geometry = Geometry::read(header).filter(|geometry| geometry.words == words);
        geometry.map(|geometry| (region, geometry)).ok_or(NotAttached::Version)
    }

    fn adopt(numbers: &[RawFd]) -> Result<Vec<Doorbell>, NotAttached> {
        for &number in numbers {
            // SAFETY: only borrowed for this call, which fails if the number is not open.
            fcntl_setfd(unsafe { BorrowedFd::borrow_raw(number) }, FdFlags::CLOEXEC)?;
        }
        // SAFETY: open, because the calls above succeeded, and never closed, because `Attachment::new` leaks
        // them.
        Ok(numbers.iter().map(|&number| Doorbell::adopt(unsafe { OwnedFd::from_raw_fd(number) })).collect())
    }
}
