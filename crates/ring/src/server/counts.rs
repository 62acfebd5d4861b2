//! How many slots are in use, and how many requests wait.

use super::ServerSide;
use crate::queue::Queue;

impl ServerSide {
    /// How many slots are in use: queued, in workers' hands, or being received.
    pub fn in_use(&self) -> usize {
        self.records.len() - self.free.len()
    }

    /// At most how many requests of the server thread `thread` wait for a worker.
    pub fn queued(&self, thread: usize) -> usize {
        Queue::new(&self.shared, thread).len()
    }
}
