//! Orphaned processes that an application's processes have started.
//!
//! The server is a subreaper, so that forked workers become its children. Other orphans become its children too, and it
//! has to reap them: until then they stay zombies and keep their process ids.

use rustix::process::{Pid, WaitOptions, WaitStatus, waitpgid};

/// The process groups of an application's processes; what leaves its group is not found.
#[derive(Default)]
pub(crate) struct Orphans(Vec<Pid>);

impl Orphans {
    /// A process was started that leads a group.
    pub(crate) fn add(&mut self, leader: Pid) {
        self.0.push(leader);
    }

    /// Reaps processes that have ended; calls `each` for all of them, as one may be a worker.
    pub(crate) fn bury(&mut self, mut each: impl FnMut(Pid, WaitStatus)) {
        self.0.retain(|group| {
            loop {
                match waitpgid(*group, WaitOptions::NOHANG) {
                    Ok(Some((pid, status))) => each(pid, status),
                    Ok(None) => return true,
                    // Nobody is left in it.
                    Err(_) => return false,
                }
            }
        });
    }
}
