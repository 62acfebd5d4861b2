//! The streams of one connection (RFC 9113 section 5.1).

use std::collections::VecDeque;

use http::Method;

use crate::error::ErrorCode;
use crate::priority::Priority;
use crate::window::{ReceiveWindow, SendWindow};

/// What the peer may still send on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receiving {
    /// Its head: a client's stream whose response has not begun.
    Head,
    /// DATA, then maybe trailers.
    Body,
    /// The same, but nobody wants it: DATA is counted and dropped.
    Discard,
    /// Nothing: it has ended its side.
    Ended,
}

/// What we may still send on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sending {
    /// A head: a server's stream whose response has not begun.
    Head,
    /// DATA, then maybe trailers.
    Body,
    /// Nothing: we have ended our side.
    Ended,
}

/// One stream, from its first HEADERS frame until the caller releases it.
#[derive(Debug)]
pub(crate) struct StreamRecord {
    pub(crate) id: u32,
    pub(crate) receiving: Receiving,
    pub(crate) sending: Sending,
    /// Set when either side has reset it: nothing more is sent or taken.
    pub(crate) reset: Option<ErrorCode>,
    /// Set when it was the peer that reset it: what it sends after that is an error.
    pub(crate) reset_by_peer: bool,
    /// Whether it counts among the open streams.
    pub(crate) is_counted: bool,
    /// The request's method, where this side is the client: a response to HEAD announces a length without content.
    pub(crate) method: Method,
    pub(crate) send_window: SendWindow,
    pub(crate) receive_window: ReceiveWindow,
    /// Bytes of DATA that still have to come, where the head said how many.
    pub(crate) content_left: Option<u64>,
    /// Bytes by which its receive window is larger than at its beginning.
    pub(crate) grown: u32,
    /// Bytes that the caller has and has not granted again.
    pub(crate) unread: usize,
    /// Bytes that are held for the stream: its head, and what the caller charged.
    pub(crate) held: usize,
    pub(crate) priority: Priority,
}

impl StreamRecord {
    /// Whether both sides have ended, in whatever way.
    pub(crate) fn is_closed(&self) -> bool {
        self.reset.is_some() || (self.receiving == Receiving::Ended && self.sending == Sending::Ended)
    }

    /// The increment of its window that is due; none is where nothing more is read from it.
    pub(crate) fn window_update(&mut self) -> Option<u32> {
        let is_read = self.reset.is_none() && matches!(self.receiving, Receiving::Head | Receiving::Body);
        if is_read { self.receive_window.update() } else { None }
    }
}

/// Streams that we have reset and released, so that what the peer sent before it learned of it is no error.
const RESETS_REMEMBERED: usize = 128;
/// Priorities that came before their streams.
const EARLY_PRIORITIES_MAX: usize = 16;

/// All streams of a connection, found by their identifiers.
#[derive(Debug, Default)]
pub(crate) struct StreamTable {
    /// Identifiers in rising order, and the slots of their streams.
    index: Vec<(u32, u32)>,
    slots: Vec<Option<StreamRecord>>,
    free: Vec<u32>,
    /// The oldest one is at the front.
    resets: VecDeque<u32>,
    early: Vec<(u32, Priority)>,
}

impl StreamTable {
    /// Number of streams that are not released.
    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    fn slot(&self, id: u32) -> Option<usize> {
        // A peer that has one stream open at a time, and the newest stream, are the common cases.
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

    /// Adds a stream; its identifier must be above all others.
    pub(crate) fn insert(&mut self, mut stream: StreamRecord) {
        debug_assert!(self.index.last().is_none_or(|&(last, _)| last < stream.id));
        if let Some(place) = self.early.iter().position(|&(id, _)| id == stream.id) {
            stream.priority = self.early.swap_remove(place).1;
        }
        self.early.retain(|&(id, _)| id > stream.id);
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

    /// Removes a stream. The last one that goes takes the memory of many with it.
    pub(crate) fn remove(&mut self, id: u32) -> Option<StreamRecord> {
        let place = self.index.binary_search_by_key(&id, |&(id, _)| id).ok()?;
        let (_, slot) = self.index.remove(place);
        let stream = self.slots[slot as usize].take();
        self.free.push(slot);
        if self.index.is_empty() {
            self.slots.clear();
            self.free.clear();
            if self.slots.capacity() > 8 {
                (self.index, self.slots, self.free) = (Vec::new(), Vec::new(), Vec::new());
            }
        }
        stream
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut StreamRecord> {
        self.slots.iter_mut().flatten()
    }

    /// The identifiers of all streams, in rising order.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.index.iter().map(|&(id, _)| id)
    }

    /// Remembers that we have reset this stream.
    pub(crate) fn remember_reset(&mut self, id: u32) {
        if self.resets.len() == RESETS_REMEMBERED {
            self.resets.pop_front();
        }
        self.resets.push_back(id);
    }

    /// Whether we have reset this stream a short while ago.
    pub(crate) fn was_reset(&self, id: u32) -> bool {
        self.resets.contains(&id)
    }

    /// Keeps the priority of a stream that has not begun; of too many, the one that came first is forgotten.
    pub(crate) fn prioritize_early(&mut self, id: u32, priority: Priority) {
        self.early.retain(|&(other, _)| other != id);
        if self.early.len() == EARLY_PRIORITIES_MAX {
            self.early.remove(0);
        }
        self.early.push((id, priority));
    }

    /// Releases memory where no stream is left.
    pub(crate) fn shrink(&mut self) {
        if self.index.is_empty() {
            (self.index, self.slots, self.free) = (Vec::new(), Vec::new(), Vec::new());
        }
        self.resets.shrink_to_fit();
        self.early.shrink_to_fit();
    }

    /// Memory of the table itself.
    pub(crate) fn held_bytes(&self) -> usize {
        self.index.capacity() * size_of::<(u32, u32)>()
            + self.slots.capacity() * size_of::<Option<StreamRecord>>()
            + (self.free.capacity() + self.resets.capacity()) * size_of::<u32>()
            + self.early.capacity() * size_of::<(u32, Priority)>()
    }
}
