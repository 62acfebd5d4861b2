//! Descriptors of worker processes, copied on a dedicated thread, because a server thread that has restricted
//! itself (Landlock) may not access other processes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::sync::{Mutex, OnceLock};

use rustix::io::Errno;
use rustix::process::{PidfdGetfdFlags, pidfd_getfd};

use crate::queues::lock;

/// A process, its descriptor number, and the channel for the copy.
type CopyRequest = (OwnedFd, i32, SyncSender<io::Result<OwnedFd>>);

static THREAD: OnceLock<Mutex<Sender<CopyRequest>>> = OnceLock::new();

/// Starts the thread, once for the process; must be called by a thread without restrictions.
///
/// # Errors
/// Fails if the thread cannot be created.
pub(crate) fn start() -> io::Result<()> {
    if THREAD.get().is_some() {
        return Ok(());
    }
    let (sender, wanted) = channel::<CopyRequest>();
    std::thread::Builder::new().name("descriptors".into()).spawn(move || {
        for (process, number, asker) in wanted {
            // The receiver is blocked until this is sent.
            let _ = asker.send(pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).map_err(Into::into));
        }
    })?;
    // Another caller may have set its thread at the same time; either one serves.
    let _ = THREAD.set(Mutex::new(sender));
    Ok(())
}

/// Copies a descriptor of a process of the same user.
///
/// # Errors
/// The errors of `pidfd_getfd(2)`.
pub(crate) fn copy(process: BorrowedFd<'_>, number: i32) -> io::Result<OwnedFd> {
    match (pidfd_getfd(process, number, PidfdGetfdFlags::empty()), THREAD.get()) {
        (Err(Errno::PERM), Some(thread)) => {
            let (asker, copied) = sync_channel(1);
            let gone = || io::Error::other("the thread that copies descriptors has ended");
            lock(thread).send((process.as_fd().try_clone_to_owned()?, number, asker)).map_err(|_| gone())?;
            copied.recv().map_err(|_| gone())?
        }
        (copied, _) => Ok(copied?),
    }
}
