//! A command that waits for the thread which does one after the other. Whoever waits too long takes it back, and knows that it is not done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// How long a command may wait until it is begun.
pub const BEGIN_MAX: Duration = Duration::from_secs(10);

/// Where the outcome of a command is sent to.
pub struct PendingReply<T> {
    outcome: SyncSender<T>,
    /// Set once, by whoever begins the command or takes it back.
    is_claimed: Arc<AtomicBool>,
}

/// Where the outcome of a command arrives.
pub struct PendingOutcome<T> {
    outcome: Receiver<T>,
    is_claimed: Arc<AtomicBool>,
}

/// Why there is no outcome.
#[derive(Debug, PartialEq, Eq)]
pub enum NoOutcome {
    /// It was not begun in time, and never will be.
    Busy,
    /// The thread has ended.
    Ended,
}

impl NoOutcome {
    /// For whoever asked.
    pub fn text(&self) -> String {
        match self {
            NoOutcome::Busy => {
                format!(
                    "the server is busy with other commands since {} s, and has not begun this one: try again",
                    BEGIN_MAX.as_secs()
                )
            }
            NoOutcome::Ended => "the server ended".to_owned(),
        }
    }
}

/// Both ends of a command.
pub fn pending<T>() -> (PendingReply<T>, PendingOutcome<T>) {
    let (sender, outcome) = sync_channel(1);
    let is_claimed = Arc::new(AtomicBool::new(false));
    (PendingReply { outcome: sender, is_claimed: is_claimed.clone() }, PendingOutcome { outcome, is_claimed })
}

impl<T> PendingReply<T> {
    /// Whether the command is to be done: it was not taken back.
    pub fn begin(&self) -> bool {
        !self.is_claimed.swap(true, Ordering::AcqRel)
    }

    /// Sends the outcome.
    pub fn send(self, outcome: T) {
        // Whoever asked may have left.
        let _ = self.outcome.send(outcome);
    }
}

impl<T> PendingOutcome<T> {
    /// Waits until the command is done, but not longer than `begin_max` until it is begun.
    ///
    /// # Errors
    /// It is not done.
    pub fn wait(self, begin_max: Duration) -> Result<T, NoOutcome> {
        match self.outcome.recv_timeout(begin_max) {
            Ok(outcome) => Ok(outcome),
            Err(RecvTimeoutError::Timeout) if !self.is_claimed.swap(true, Ordering::AcqRel) => {
                Err(NoOutcome::Busy)
            }
            Err(RecvTimeoutError::Timeout) => self.outcome.recv().map_err(|_| NoOutcome::Ended),
            Err(RecvTimeoutError::Disconnected) => Err(NoOutcome::Ended),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_either_begun_or_taken_back() {
        let (reply, outcome) = pending::<u8>();
        assert_eq!(outcome.wait(Duration::ZERO), Err(NoOutcome::Busy));
        assert!(!reply.begin());
        // Once it is begun its end is waited for, however long that takes.
        let (reply, outcome) = pending();
        assert!(reply.begin());
        let thread = std::thread::spawn(move || outcome.wait(Duration::ZERO));
        std::thread::sleep(Duration::from_millis(20));
        reply.send(7);
        assert_eq!(thread.join().unwrap(), Ok(7));
        let (reply, outcome) = pending::<u8>();
        drop(reply);
        assert_eq!(outcome.wait(BEGIN_MAX), Err(NoOutcome::Ended));
    }
}
