//! Starts an application's processes as another user, if this process lacks the rights for that.

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::process::{Pid, Signal};

use crate::process::Usage;

/// Another process, which starts and ends those of an application whose user this process may not change to. They are its children.
pub trait Launcher: Send + Sync + fmt::Debug {
    /// Starts a process of the application, as [`spawn`](crate::spawn) would: its id, and its pidfd.
    ///
    /// # Errors
    /// Why it cannot be started.
    fn start(&self, launch: &Launch<'_>) -> io::Result<(Pid, OwnedFd)>;

    /// Sends a signal to a process that it has started, or that was forked from one.
    fn signal(&self, process: BorrowedFd<'_>, signal: Signal);

    /// The exit status or the signal by which such a process has ended; `None` where it is not known.
    fn end(&self, pid: Pid) -> Option<Result<i32, i32>>;

    /// What such a process costs; `None` where it has ended.
    fn usage(&self, process: BorrowedFd<'_>) -> Option<Usage>;

    /// A regular file that such a process has open, for reading.
    ///
    /// # Errors
    /// The system's.
    fn file(&self, process: BorrowedFd<'_>, number: u32) -> io::Result<OwnedFd>;
}

/// What a process is started with, beside the application's options.
#[derive(Debug)]
pub struct Launch<'a> {
    /// The slots of a worker; none for a prototype.
    pub worker_slots: Option<Range<usize>>,
    /// The server's threads, each of which has a descriptor in the channel.
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
        let (threads, channel) = (channel.threads(), channel.descriptors().collect());
        Launch { worker_slots, threads, control, output, errors, channel }
    }

    /// One whose descriptors came from another process, in the order of [`Launch::descriptors`]; `None` where some are
    /// missing.
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

    /// Every descriptor that the process inherits.
    #[must_use]
    pub fn descriptors(&self) -> Vec<BorrowedFd<'a>> {
        [self.control, self.output, self.errors].into_iter().chain(self.channel.iter().copied()).collect()
    }
}
