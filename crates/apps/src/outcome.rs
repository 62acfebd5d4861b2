//! The result of loading an application, for those who asked for it.

use std::sync::mpsc::SyncSender;

/// Receivers that wait at the same time; if there are more, the first one gets no result.
const ASKERS_MAX: usize = 256;

/// Why an application does not load.
#[derive(Clone, Debug)]
pub struct LoadError {
    /// The application's error text.
    pub why: String,
    /// Whether the previously loaded code still serves.
    pub serves: bool,
}

/// The last result, and those who wait for the next one.
#[derive(Default)]
pub(crate) struct LoadResults {
    failure: Option<LoadError>,
    askers: Vec<SyncSender<Result<(), LoadError>>>,
}

impl LoadResults {
    /// A load begins.
    pub(crate) fn begin(&mut self) {
        self.failure = None;
    }

    /// It has ended.
    pub(crate) fn settle(&mut self, outcome: Result<(), LoadError>) {
        self.failure = outcome.as_ref().err().cloned();
        for asker in self.askers.drain(..) {
            // The receiver may have given up.
            let _ = asker.try_send(outcome.clone());
        }
    }

    /// Sends the result: now if no load is in progress, else when it ends.
    pub(crate) fn ask(&mut self, asker: SyncSender<Result<(), LoadError>>, under_way: bool) {
        match (&self.failure, under_way) {
            (None, true) => {
                if self.askers.len() >= ASKERS_MAX {
                    self.askers.remove(0);
                }
                self.askers.push(asker);
            }
            (failure, _) => _ = asker.try_send(failure.clone().map_or(Ok(()), Err)),
        }
    }

    /// No more results: drops all waiting senders.
    pub(crate) fn close(&mut self) {
        self.askers.clear();
    }
}
