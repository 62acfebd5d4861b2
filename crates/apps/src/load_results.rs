//! Results of loading an application, and the receivers that wait for them.

use std::sync::mpsc::SyncSender;

/// Maximum number of receivers that wait at the same time; above that, the first one gets no result.
const WAITERS_MAX: usize = 256;

/// The reason why an application cannot be loaded.
#[derive(Clone, Debug)]
pub struct LoadError {
    /// The application's error text.
    pub error_text: String,
    /// Whether the previously loaded code still serves.
    pub old_code_serves: bool,
}

/// The last result, and the receivers of the next one.
#[derive(Default)]
pub(crate) struct LoadResults {
    failure: Option<LoadError>,
    waiters: Vec<SyncSender<Result<(), LoadError>>>,
}

impl LoadResults {
    /// Marks the beginning of a load.
    pub(crate) fn begin(&mut self) {
        self.failure = None;
    }

    /// Records the result of the load and sends it to all receivers.
    pub(crate) fn finish(&mut self, outcome: Result<(), LoadError>) {
        self.failure = outcome.as_ref().err().cloned();
        for asker in self.waiters.drain(..) {
            // The receiver may have been dropped.
            let _ = asker.try_send(outcome.clone());
        }
    }

    /// Sends the result: immediately if no load is in progress, else when it ends.
    pub(crate) fn add_waiter(&mut self, waiter: SyncSender<Result<(), LoadError>>, under_way: bool) {
        match (&self.failure, under_way) {
            (None, true) => {
                if self.waiters.len() >= WAITERS_MAX {
                    self.waiters.remove(0);
                }
                self.waiters.push(waiter);
            }
            (failure, _) => _ = waiter.try_send(failure.clone().map_or(Ok(()), Err)),
        }
    }

    /// Drops all waiting senders; there are no more results.
    pub(crate) fn close(&mut self) {
        self.waiters.clear();
    }
}
