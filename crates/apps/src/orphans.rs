//! Orphaned processes that an application's processes have started.
//!
//! The server is a subreaper, so that forked workers become its children. Other orphans become its children too, and it
//! has to reap them: until then they stay zombies and keep their process ids.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process_group, waitpgid};

/// Time for processes that were killed to end.
const KILL_MAX: Duration = Duration::from_secs(1);
/// How often it is looked whether they have.
const LOOK: Duration = Duration::from_millis(10);

/// Process groups of processes that were started here; what leaves its group is not found.
#[derive(Default)]
pub struct Orphans(Vec<Pid>);

impl Orphans {
    /// A process was started that leads a group.
    pub fn add(&mut self, leader: Pid) {
        self.0.push(leader);
    }

    /// Waits until all have ended; from `until` on they are killed.
    pub(crate) fn end(&mut self, until: Instant) {
        loop {
            self.reap(|_, _| {});
            if self.0.is_empty() || Instant::now() >= until + KILL_MAX {
                return;
            }
            if Instant::now() >= until {
                // A group of another user's processes is its launcher's to end.
                self.0.iter().for_each(|group| _ = kill_process_group(*group, Signal::KILL));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Reaps processes that have ended; calls `each` for all of them, as one may be a worker.
    pub fn reap(&mut self, mut each: impl FnMut(Pid, WaitStatus)) {
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
