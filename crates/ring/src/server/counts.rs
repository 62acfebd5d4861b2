//! Numbers of used slots and of queued requests.

use super::ServerSide;
use crate::queue::Queue;

impl ServerSide {
    /// Number of slots in use: queued, held by workers, or being received.
    pub fn in_use(&self) -> usize {
        self.records.len() - self.free.len()
    }

    /// Upper bound of the number of requests of the server thread `thread` that wait for a worker.
    pub fn queued(&self, thread: usize) -> usize {
        Queue::new(&self.shared, thread).len()
    }
}
