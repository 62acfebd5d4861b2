//! Processes that an application's processes have started and left behind.
//!
//! ProcessRole takes in the workers that lose their parent takes those in too, and has to bury them: nobody else can, and what is
//! dead and not buried keeps its process id.

use rustix::process::{Pid, WaitOptions, WaitStatus, waitpgid};

/// The process groups of an application's processes; what leaves its group is not found.
#[derive(Default)]
pub(crate) struct Orphans(Vec<Pid>);

impl Orphans {
    /// A process was started that leads a group.
    pub(crate) fn add(&mut self, leader: Pid) {
        self.0.push(leader);
    }

    /// Buries the dead; `each` is told of all of them, as one may be a worker.
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
