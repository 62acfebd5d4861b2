//! The streams of one connection (RFC 9113 section 5.1).

use std::collections::VecDeque;

use http::Method;

use crate::error::ErrorCode;
use crate::window::{ReceiveWindow, SendWindow};
use sections::Priority;

/// The receiving side of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receiving {
    /// A head is expected: a client's stream whose response has not begun.
    Head,
    /// DATA is expected, optionally followed by trailers.
    Body,
    /// DATA is expected, but it is counted and dropped.
    Discard,
    /// The peer has ended its side.
    Ended,
}

/// The sending side of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sending {
    /// A head: a server's stream whose response has not begun.
    Head,
    /// DATA, optionally followed by trailers.
    Body,
    /// This side has ended the stream.
    Ended,
}

/// One stream, from its first HEADERS frame until the caller releases it.
#[derive(Debug)]
pub(crate) struct StreamRecord {
    pub(crate) id: u32,
    pub(crate) receiving: Receiving,
    pub(crate) sending: Sending,
    /// The error code, once either side has reset the stream: nothing more is sent or accepted.
    pub(crate) reset: Option<ErrorCode>,
    /// Whether the peer has reset the stream: further frames from it are an error.
    pub(crate) reset_by_peer: bool,
    /// Whether the stream counts as open.
    pub(crate) is_counted: bool,
    /// The request's method on a client: a response to HEAD announces a length without content.
    pub(crate) method: Method,
    pub(crate) send_window: SendWindow,
    pub(crate) receive_window: ReceiveWindow,
    /// Remaining bytes of DATA, if the head announced a length.
    pub(crate) content_left: Option<u64>,
    /// Bytes by which the receive window has grown.
    pub(crate) grown_bytes: u32,
    /// Bytes passed to the caller and not yet granted again.
    pub(crate) unread: usize,
    /// Bytes held for the stream: its head, and charges of the caller.
    pub(crate) held: usize,
    pub(crate) priority: Priority,
    /// Credit that its response has earned.
    pub(crate) earned: u32,
}

impl StreamRecord {
    /// Whether both sides have ended or the stream was reset.
    pub(crate) fn is_closed(&self) -> bool {
        self.reset.is_some() || (self.receiving == Receiving::Ended && self.sending == Sending::Ended)
    }

    /// The window increment that is due; `None` if the stream is no longer read.
    pub(crate) fn window_update(&mut self) -> Option<u32> {
        let is_read = self.reset.is_none() && matches!(self.receiving, Receiving::Head | Receiving::Body);
        if is_read { self.receive_window.due_increment() } else { None }
    }
}

/// Number of released streams reset by this side that are remembered, so that frames sent before the peer
/// received the reset are no error.
const RESETS_REMEMBERED: usize = 128;
/// Number of complete responses that are remembered until they were sent: more than a turn of a connection serves.
const UNSENT_REMEMBERED: usize = 256;
/// Maximum number of priorities received before their streams.
const EARLY_PRIORITIES_MAX: usize = 16;

/// All streams of a connection, found by their identifiers.
#[derive(Debug, Default)]
pub(crate) struct StreamTable {
    /// Identifiers in ascending order with the slots of their streams.
    index: Vec<(u32, u32)>,
    slots: Vec<Option<StreamRecord>>,
    free: Vec<u32>,
    /// The identifiers of recently reset streams, oldest at the front.
    resets: VecDeque<u32>,
    early_priorities: Vec<(u32, Priority)>,
    /// Released streams whose responses are complete but were not sent yet, with the credit that they have earned;
    /// oldest at the front.
    unsent: VecDeque<(u32, u32)>,
}

impl StreamTable {
    /// Number of streams that have not been released.
    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    fn slot(&self, id: u32) -> Option<usize> {
        // Fast paths: a peer with one open stream, and the newest stream.
        if let Some(&(last, slot)) = self.index.last()
            && last == id
        {
            return Some(slot as usize);
        }
        let place = self.index.binary_search_by_key(&id, |&(id, _)| id).ok()?;
        Some(self.index[place].1 as usize)
    }

    pub(crate) fn find(&self, id: u32) -> Option<&StreamRecord> {
        self.slots[self.slot(id)?].as_ref()
    }

    pub(crate) fn find_mut(&mut self, id: u32) -> Option<&mut StreamRecord> {
        let slot = self.slot(id)?;
        self.slots[slot].as_mut()
    }

    /// Adds a stream; its identifier must be greater than all others.
    pub(crate) fn insert(&mut self, mut stream: StreamRecord) {
        debug_assert!(self.index.last().is_none_or(|&(last, _)| last < stream.id));
        if let Some(place) = self.early_priorities.iter().position(|&(id, _)| id == stream.id) {
            stream.priority = self.early_priorities.swap_remove(place).1;
        }
        self.early_priorities.retain(|&(id, _)| id > stream.id);
        let id = stream.id;
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = Some(stream);
                slot
            }
            None => {
                self.slots.push(Some(stream));
                self.slots.len() as u32 - 1
            }
        };
        self.index.push((id, slot));
    }

    /// Removes a stream.
    pub(crate) fn remove(&mut self, id: u32) -> Option<StreamRecord> {
        let place = self.index.binary_search_by_key(&id, |&(id, _)| id).ok()?;
        let (_, slot) = self.index.remove(place);
        let stream = self.slots[slot as usize].take();
        self.free.push(slot);
        if self.index.is_empty() {
            // The memory is kept for the next ones: see `StreamTable::shrink`.
            self.slots.clear();
            self.free.clear();
        }
        stream
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut StreamRecord> {
        self.slots.iter_mut().flatten()
    }

    /// The identifiers of all streams in ascending order.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.index.iter().map(|&(id, _)| id)
    }

    /// Remembers a released stream whose complete response was not sent yet, and what it has earned.
    pub(crate) fn remember_unsent(&mut self, id: u32, earned: u32) {
        if self.unsent.len() == UNSENT_REMEMBERED {
            self.unsent.pop_front();
        }
        self.unsent.push_back((id, earned));
    }

    /// Forgets the complete responses, because all were sent.
    pub(crate) fn forget_unsent(&mut self) {
        self.unsent.clear();
    }

    /// Removes a stream from those whose responses were not sent, and returns what it had earned.
    pub(crate) fn take_unsent(&mut self, id: u32) -> Option<u32> {
        let place = self.unsent.iter().position(|&(unsent, _)| unsent == id)?;
        self.unsent.remove(place).map(|(_, earned)| earned)
    }

    /// Records that this side has reset the stream.
    pub(crate) fn remember_reset(&mut self, id: u32) {
        if self.resets.len() == RESETS_REMEMBERED {
            self.resets.pop_front();
        }
        self.resets.push_back(id);
    }

    /// Whether this side has recently reset the stream.
    pub(crate) fn was_reset(&self, id: u32) -> bool {
        self.resets.contains(&id)
    }

    /// Stores the priority of a stream that has not begun; the oldest is dropped if there are too many.
    pub(crate) fn prioritize_early(&mut self, id: u32, priority: Priority) {
        self.early_priorities.retain(|&(other, _)| other != id);
        if self.early_priorities.len() == EARLY_PRIORITIES_MAX {
            self.early_priorities.remove(0);
        }
        self.early_priorities.push((id, priority));
    }

    /// Releases memory if no stream is left.
    pub(crate) fn shrink(&mut self) {
        if self.index.is_empty() {
            (self.index, self.slots, self.free) = (Vec::new(), Vec::new(), Vec::new());
        }
        self.resets.shrink_to_fit();
        self.unsent.shrink_to_fit();
        self.early_priorities.shrink_to_fit();
    }

    /// Memory of the table itself, in bytes.
    pub(crate) fn held_bytes(&self) -> usize {
        self.index.capacity() * size_of::<(u32, u32)>()
            + self.slots.capacity() * size_of::<Option<StreamRecord>>()
            + (self.free.capacity() + self.resets.capacity()) * size_of::<u32>()
            + self.early_priorities.capacity() * size_of::<(u32, Priority)>()
            + self.unsent.capacity() * size_of::<(u32, u32)>()
    }
}
