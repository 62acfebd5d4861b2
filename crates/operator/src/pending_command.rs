//! Commands queued for a thread that executes them one at a time. A caller that waits too long withdraws its
//! command, which is then never executed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// Maximum time that a command waits in the queue.
pub const BEGIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Sending end of a command's outcome.
pub struct PendingReply<T> {
    outcome: SyncSender<T>,
    /// Set once: when the command begins, or when the caller withdraws it.
    is_claimed: Arc<AtomicBool>,
}

/// Receiving end of a command's outcome.
pub struct PendingOutcome<T> {
    outcome: Receiver<T>,
    is_claimed: Arc<AtomicBool>,
}

/// Reason that a command has no outcome.
#[derive(Debug, PartialEq, Eq)]
pub enum OutcomeError {
    /// The command was not begun in time and is withdrawn.
    NotBegun,
    /// The thread has ended.
    ThreadEnded,
}

impl OutcomeError {
    /// Returns the message for the caller.
    pub fn text(&self) -> String {
        match self {
            OutcomeError::NotBegun => {
                format!(
                    "the server is busy with other commands since {} s, and has not begun this one: try again",
                    BEGIN_TIMEOUT.as_secs()
                )
            }
            OutcomeError::ThreadEnded => "the server ended".to_owned(),
        }
    }
}

/// Creates both ends of a command.
pub fn pending_command<T>() -> (PendingReply<T>, PendingOutcome<T>) {
    let (sender, outcome) = sync_channel(1);
    let is_claimed = Arc::new(AtomicBool::new(false));
    (PendingReply { outcome: sender, is_claimed: is_claimed.clone() }, PendingOutcome { outcome, is_claimed })
}

impl<T> PendingReply<T> {
    /// Claims the command for execution. Returns false if the caller has withdrawn it.
    pub fn try_begin(&self) -> bool {
        !self.is_claimed.swap(true, Ordering::AcqRel)
    }

    /// Sends the outcome.
    pub fn send(self, outcome: T) {
        // The receiver may have been dropped.
        let _ = self.outcome.send(outcome);
    }
}

impl<T> PendingOutcome<T> {
    /// Waits at most `begin_max` for the command to begin, and without limit for its outcome.
    ///
    /// # Errors
    /// The command was withdrawn, or the thread ended.
    pub fn wait(self, begin_max: Duration) -> Result<T, OutcomeError> {
        match self.outcome.recv_timeout(begin_max) {
            Ok(outcome) => Ok(outcome),
            Err(RecvTimeoutError::Timeout) if !self.is_claimed.swap(true, Ordering::AcqRel) => {
                Err(OutcomeError::NotBegun)
            }
            Err(RecvTimeoutError::Timeout) => self.outcome.recv().map_err(|_| OutcomeError::ThreadEnded),
            Err(RecvTimeoutError::Disconnected) => Err(OutcomeError::ThreadEnded),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pending_command_is_either_begun_or_withdrawn() {
        let (reply, outcome) = pending_command::<u8>();
        assert_eq!(outcome.wait(Duration::ZERO), Err(OutcomeError::NotBegun));
        assert!(!reply.try_begin());
        // A command that has begun is awaited without limit.
        let (reply, outcome) = pending_command();
        assert!(reply.try_begin());
        let thread = std::thread::spawn(move || outcome.wait(Duration::ZERO));
        std::thread::sleep(Duration::from_millis(20));
        reply.send(7);
        assert_eq!(thread.join().unwrap(), Ok(7));
        let (reply, outcome) = pending_command::<u8>();
        drop(reply);
        assert_eq!(outcome.wait(BEGIN_TIMEOUT), Err(OutcomeError::ThreadEnded));
    }
}
