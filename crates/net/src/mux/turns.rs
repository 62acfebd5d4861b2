//! Whose data is sent next.

use std::collections::VecDeque;
use std::rc::Rc;

use super::shared::StreamShared;

const URGENCIES: usize = 8;

/// The streams that have something to send and are not known to be blocked. More urgent ones come first; among those of one
/// urgency, incremental ones take turns, and others are sent one after the other.
#[derive(Default)]
pub(crate) struct Turns([VecDeque<Rc<StreamShared>>; URGENCIES]);

impl Turns {
    /// Puts a stream at the end of its line, unless it stands there already.
    pub(crate) fn push(&mut self, stream: &Rc<StreamShared>) {
        if !stream.in_line.replace(true) {
            self.line(stream).push_back(stream.clone());
        }
    }

    /// Puts the stream that was served back: in front of the others, unless those of its urgency take turns.
    pub(crate) fn push_again(&mut self, stream: Rc<StreamShared>) {
        stream.in_line.set(true);
        match stream.priority.get().incremental {
            true => self.line(&stream).push_back(stream),
            false => self.line(&stream).push_front(stream),
        }
    }

    /// The next stream, which stands in no line then.
    pub(crate) fn pop(&mut self) -> Option<Rc<StreamShared>> {
        let stream = self.0.iter_mut().find_map(VecDeque::pop_front)?;
        stream.in_line.set(false);
        Some(stream)
    }

    /// Whether nobody stands in line.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(VecDeque::is_empty)
    }

    /// Releases memory that the streams in line do not need.
    pub(crate) fn shrink(&mut self) {
        self.0.iter_mut().for_each(VecDeque::shrink_to_fit);
    }

    fn line(&mut self, stream: &StreamShared) -> &mut VecDeque<Rc<StreamShared>> {
        &mut self.0[usize::from(stream.priority.get().urgency).min(URGENCIES - 1)]
    }
}
