//! Starting an application's processes as another user, through a privileged process.

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::process::{Pid, Signal};

use crate::process::Usage;

/// A process with more rights, which starts and ends the processes of an application whose user this process
/// cannot change to. They are its children.
pub trait Launcher: Send + Sync + fmt::Debug {
    /// Starts a process of the application, like [`spawn`](crate::spawn); returns its id and its pidfd.
    ///
    /// # Errors
    /// Reason why the process cannot be started.
    fn start(&self, launch: &Launch<'_>) -> io::Result<(Pid, OwnedFd)>;

    /// Sends a signal to a process that was started by the launcher, or forked from one.
    fn signal(&self, process: BorrowedFd<'_>, signal: Signal);

    /// Returns the exit status or the signal with which a process of the launcher has ended; `None` if not
    /// known.
    fn exit_status(&self, pid: Pid) -> Option<Result<i32, i32>>;

    /// Returns the resource usage of a process of the launcher; `None` if it has ended.
    fn usage(&self, process: BorrowedFd<'_>) -> Option<Usage>;

    /// Opens a regular file that a process of the launcher has open, for reading.
    ///
    /// # Errors
    /// Errors of the operating system.
    fn open_file(&self, process: BorrowedFd<'_>, number: u32) -> io::Result<OwnedFd>;
}

/// Parameters of a process's start, in addition to the application's options.
#[derive(Debug)]
pub struct Launch<'a> {
    /// Slots of a worker; `None` for a prototype.
    pub worker_slots: Option<Range<usize>>,
    /// Number of server threads, each of which has a descriptor in the channel.
    pub threads: usize,
    pub(crate) control: BorrowedFd<'a>,
    pub(crate) output: BorrowedFd<'a>,
    pub(crate) errors: BorrowedFd<'a>,
    pub(crate) channel: Vec<BorrowedFd<'a>>,
}

impl<'a> Launch<'a> {
    pub(crate) fn new(
        worker_slots: Option<Range<usize>>,
        channel: &'a ring::Channel,
        control: BorrowedFd<'a>,
        output: BorrowedFd<'a>,
        errors: BorrowedFd<'a>,
    ) -> Launch<'a> {
        let threads = channel.threads();
        let channel = channel.descriptors().collect();
        Launch { worker_slots, threads, control, output, errors, channel }
    }

    /// Creates a `Launch` from descriptors received from another process, in the order of
    /// [`Launch::descriptors`]; `None` if some are missing.
    #[must_use]
    pub fn of(
        worker_slots: Option<Range<usize>>,
        threads: usize,
        fds: &[BorrowedFd<'a>],
    ) -> Option<Launch<'a>> {
        let (&[control, output, errors], channel) = fds.split_first_chunk()?;
        let complete = channel.len() > threads;
        complete.then(|| Launch { worker_slots, threads, control, output, errors, channel: channel.to_vec() })
    }

    /// All descriptors that the process inherits.
    #[must_use]
    pub fn descriptors(&self) -> Vec<BorrowedFd<'a>> {
        [self.control, self.output, self.errors].into_iter().chain(self.channel.iter().copied()).collect()
    }
}
