//! Scheduling of the streams of a connection.

use std::collections::VecDeque;
use std::rc::Rc;

use super::shared::StreamShared;

const URGENCIES: usize = 8;

/// Streams that have output and are not known to be blocked. More urgent ones come first; among those with
/// the same urgency, incremental ones are sent in turn, others one after the other (RFC 9218).
#[derive(Default)]
pub(crate) struct SendQueue([VecDeque<Rc<StreamShared>>; URGENCIES]);

impl SendQueue {
    /// Appends a stream to the queue of its urgency, unless it is already queued.
    pub(crate) fn push(&mut self, stream: &Rc<StreamShared>) {
        if !stream.is_queued.replace(true) {
            self.queue_of(stream).push_back(stream.clone());
        }
    }

    /// Queues the stream just served again: at the back if it is incremental, else at the front.
    pub(crate) fn requeue(&mut self, stream: Rc<StreamShared>) {
        stream.is_queued.set(true);
        if stream.priority.get().is_incremental {
            self.queue_of(&stream).push_back(stream)
        } else {
            self.queue_of(&stream).push_front(stream)
        }
    }

    /// Removes and returns the next stream.
    pub(crate) fn pop(&mut self) -> Option<Rc<StreamShared>> {
        let stream = self.0.iter_mut().find_map(VecDeque::pop_front)?;
        stream.is_queued.set(false);
        Some(stream)
    }

    /// Whether no stream is queued.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(VecDeque::is_empty)
    }

    /// Releases unused memory.
    pub(crate) fn shrink(&mut self) {
        self.0.iter_mut().for_each(VecDeque::shrink_to_fit);
    }

    fn queue_of(&mut self, stream: &StreamShared) -> &mut VecDeque<Rc<StreamShared>> {
        &mut self.0[usize::from(stream.priority.get().urgency).min(URGENCIES - 1)]
    }
}
