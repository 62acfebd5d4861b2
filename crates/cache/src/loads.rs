//! Coordination of reads from disk: one request reads, and others for the same key wait for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::disk::DiskLookup;

/// Keys that are being read from disk, with the tasks that wait for them.
#[derive(Debug, Default)]
pub(crate) struct Loads(Mutex<HashMap<Vec<u8>, Vec<Waker>>>);

/// Action for a request whose response may be on disk.
#[derive(Debug)]
pub enum DiskLoad {
    /// The request reads the file. The guard is dropped once the response is in memory.
    Read(DiskLookup, LoadGuard),
    /// The request waits until another one has read it, then looks again.
    Wait(LoadWaiter),
}

/// A read in progress; dropping it wakes the waiting requests.
#[derive(Debug)]
pub struct LoadGuard {
    loads: Arc<Loads>,
    key: Vec<u8>,
}

/// Waits for a response that is being read from disk.
#[derive(Debug)]
pub struct LoadWaiter {
    loads: Arc<Loads>,
    key: Vec<u8>,
}

impl Loads {
    fn lock(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Vec<Waker>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(self: &Arc<Loads>, key: &[u8], lookup: DiskLookup) -> DiskLoad {
        let loads = self.clone();
        let key = key.to_vec();
        let mut keys = self.lock();
        if keys.contains_key(&key) {
            return DiskLoad::Wait(LoadWaiter { loads, key });
        }
        keys.insert(key.clone(), Vec::new());
        DiskLoad::Read(lookup, LoadGuard { loads, key })
    }
}

impl Drop for LoadGuard {
    fn drop(&mut self) {
        let waiters = self.loads.lock().remove(&self.key);
        waiters.into_iter().flatten().for_each(Waker::wake);
    }
}

impl LoadWaiter {
    /// Waits for the end of the read.
    pub fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        match self.loads.lock().get_mut(&self.key) {
            Some(waiters) if waiters.iter().any(|waiter| waiter.will_wake(cx.waker())) => Poll::Pending,
            Some(waiters) => {
                waiters.push(cx.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready(()),
        }
    }
}
