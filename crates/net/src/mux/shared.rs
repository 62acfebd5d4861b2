//! A stream as its own task and the task of its connection share it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use http::Fields;

use super::protocol::{ContentFrames, StreamPriority};
use crate::source::Source;

/// Bytes that wait to be sent on a stream before its handler waits.
pub(crate) const OUT_BYTES_MAX: usize = 64 * 1024;

/// Bytes of one stream that are framed together.
const PIECE_BYTES_MAX: usize = 16 * 1024;

/// What the stream's task and the connection's task share.
pub(crate) struct StreamShared {
    pub(crate) id: u32,
    pub(crate) source: Rc<Source>,
    pub(crate) priority: Cell<StreamPriority>,
    pub(crate) input: RefCell<StreamInput>,
    pub(crate) output: RefCell<StreamOutput>,
    /// Whether it stands in line to be sent.
    pub(crate) in_line: Cell<bool>,
    /// What it is charged with.
    pub(crate) held_bytes: Cell<usize>,
    /// It carries something else than HTTP.
    pub(crate) is_tunnel: Cell<bool>,
    /// What it carries has broken off at its other end, perhaps after its end was sent.
    pub(crate) is_broken: Cell<bool>,
    /// The peer has reset it, or the connection is over.
    reset: Cell<bool>,
}

/// What was received and not read.
#[derive(Default)]
pub(crate) struct StreamInput {
    pub(crate) bytes: Vec<u8>,
    pub(crate) ended: bool,
    pub(crate) trailers: Fields,
    /// The connection's receiving side has ended: no more comes.
    pub(crate) cut: bool,
}

/// What was written and not sent.
#[derive(Default)]
pub(crate) struct StreamOutput {
    pub(crate) bytes: Vec<u8>,
    /// Bytes of them that were sent.
    pub(crate) at: usize,
    /// The response ends after them, with these trailers.
    pub(crate) end: Option<Fields>,
    /// The end was sent.
    pub(crate) ended: bool,
}

impl StreamOutput {
    /// Whether there is anything to send.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.ended && (self.at < self.bytes.len() || self.end.is_some())
    }

    pub(crate) fn sent(&mut self, len: usize) {
        self.at += len;
        if self.at == self.bytes.len() {
            // A response is seldom written in one piece: the memory stays for the next one, unless it is much.
            self.bytes.clear();
            self.bytes.shrink_to(OUT_BYTES_MAX);
            self.at = 0;
        }
    }

    /// Frames one piece of what waits. False where no window allows it.
    pub(crate) fn frame(&mut self, id: u32, frames: &mut (impl ContentFrames + ?Sized)) -> bool {
        let waiting = self.len();
        let len = waiting.min(frames.capacity(id)).min(PIECE_BYTES_MAX);
        if len == 0 && waiting > 0 {
            return false;
        }
        let is_last = len == waiting && self.end.is_some();
        let end = if is_last { self.end.take() } else { None };
        let has_trailers = end.as_ref().is_some_and(|trailers| !trailers.is_empty());
        if len > 0 || is_last && !has_trailers {
            frames.data(id, &self.bytes[self.at..self.at + len], is_last && !has_trailers);
        }
        if let Some(trailers) = end.filter(|_| has_trailers) {
            frames.trailers(id, &trailers);
        }
        self.sent(len);
        self.ended = is_last;
        true
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        // What is left moves to the front, once as much has been sent: so no more bytes are moved than are sent.
        if self.at >= self.len().max(1) {
            self.bytes.drain(..self.at);
            self.at = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The same as [`StreamOutput::push`], without a copy where nothing waits.
    pub(crate) fn push_owned(&mut self, bytes: Vec<u8>) {
        if self.len() > 0 {
            return self.push(&bytes);
        }
        (self.bytes, self.at) = (bytes, 0);
    }
}

impl StreamShared {
    pub(crate) fn new(id: u32, source: Rc<Source>, priority: StreamPriority) -> StreamShared {
        StreamShared {
            id,
            source,
            priority: Cell::new(priority),
            input: RefCell::default(),
            output: RefCell::default(),
            in_line: Cell::new(false),
            held_bytes: Cell::new(0),
            is_tunnel: Cell::new(false),
            is_broken: Cell::new(false),
            reset: Cell::new(false),
        }
    }

    /// Whether both sides have sent their ends: the peer counts it no more (RFC 9113 section 5.1.2).
    pub(crate) fn is_whole(&self) -> bool {
        self.output.borrow().ended && self.input.borrow().ended
    }

    pub(crate) fn is_reset(&self) -> bool {
        self.reset.get()
    }

    /// Nothing more is sent or received.
    pub(crate) fn cut(&self) {
        self.reset.set(true);
        *self.output.borrow_mut() = StreamOutput::default();
    }
}
