//! A stream as its own task and the task of its connection share it.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

use http::Fields;

use super::protocol::{ContentFrames, CutReason, StreamPriority};
use crate::bandwidth::{Bandwidth, ResponseBucket};
use crate::file::FileRest;
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
    /// Bytes that the connection's task has read of its file and framed.
    pub(crate) file_sent_bytes: Cell<u64>,
    /// Bytes of its connection up to the end of its last frame.
    pub(crate) framed_at: Cell<u64>,
    /// Milliseconds that the client may take none of the response.
    pub(crate) write_ms: Cell<u64>,
    /// What it is charged with.
    pub(crate) held_bytes: Cell<usize>,
    /// It carries something else than HTTP.
    pub(crate) is_tunnel: Cell<bool>,
    /// What it carries has broken off at its other end, perhaps after its end was sent.
    pub(crate) is_broken: Cell<bool>,
    /// How fast its response may be sent, where that is limited.
    bucket: OnceCell<Box<ResponseBucket>>,
    /// Why it ended, once it has been reset or the connection is over.
    reset: Cell<Option<CutReason>>,
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
    /// A part of a file that comes after them. It is read when the stream's turn comes.
    pub(crate) file: Option<FileRest>,
    /// The response ends after that, with these trailers.
    pub(crate) end: Option<Fields>,
    /// The end was sent.
    pub(crate) ended: bool,
}

impl StreamOutput {
    /// Whether there is anything to send. A file that its stream's task has to read on is not.
    pub(crate) fn is_waiting(&self) -> bool {
        let follows = match &self.file {
            Some(file) => file.stop.is_none(),
            None => self.end.is_some(),
        };
        !self.ended && (self.at < self.bytes.len() || follows)
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

    /// Frames one piece of what waits, at most `bytes_max`. False where no window allows it.
    pub(crate) fn frame(
        &mut self,
        id: u32,
        bytes_max: usize,
        frames: &mut (impl ContentFrames + ?Sized),
    ) -> bool {
        let waiting = self.len();
        let len = waiting.min(frames.capacity(id)).min(PIECE_BYTES_MAX.min(bytes_max));
        if len == 0 && waiting > 0 {
            return false;
        }
        let is_last = len == waiting && self.end.is_some() && self.file.is_none();
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

    /// Frames what comes next of the file, at most `bytes_max`. Returns how much; `None` where no window allows it.
    fn frame_file(
        &mut self,
        id: u32,
        bytes_max: usize,
        frames: &mut (impl ContentFrames + ?Sized),
    ) -> Option<u64> {
        let file = self.file.as_mut()?;
        let len = file.left().min(bytes_max as u64) as usize;
        let is_last = len as u64 == file.left() && self.end.as_ref().is_some_and(Fields::is_empty);
        if frames.capacity(id) == 0 {
            return None;
        }
        let taken = frames.data_read(id, len, is_last, &mut |slices| file.read(slices));
        if file.left() == 0 {
            self.file = None;
            self.ended = is_last;
        }
        Some(taken as u64)
    }

    /// A part of a file comes next; the response ends with it where it is the last one.
    pub(crate) fn begin_file(&mut self, file: FileRest, is_last: bool) {
        (self.file, self.end) = (Some(file), is_last.then(Fields::new));
    }

    /// Bytes of the file that another thread has read.
    pub(crate) fn push_of_file(&mut self, bytes: Vec<u8>) {
        if let Some(file) = &mut self.file {
            file.skip(bytes.len());
        }
        self.file.take_if(|file| file.left() == 0);
        self.push_owned(bytes);
    }

    /// Whether its end was sent, or comes without further calls.
    pub(crate) fn ends(&self) -> bool {
        self.ended || self.end.is_some()
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
            file_sent_bytes: Cell::new(0),
            framed_at: Cell::new(0),
            write_ms: Cell::new(0),
            held_bytes: Cell::new(0),
            is_tunnel: Cell::new(false),
            is_broken: Cell::new(false),
            bucket: OnceCell::new(),
            reset: Cell::new(None),
        }
    }

    /// Limits how fast its response is sent; the first limit counts.
    pub(crate) fn limit_bandwidth(&self, bandwidth: Bandwidth, now_ms: u64) {
        self.bucket.get_or_init(|| Box::new(ResponseBucket::new(bandwidth, now_ms)));
    }

    /// The limit of its bandwidth. What is no response has none.
    pub(crate) fn bucket(&self) -> Option<&ResponseBucket> {
        self.bucket.get().map(|bucket| &**bucket).filter(|_| !self.is_tunnel.get())
    }

    /// The limit of its bandwidth, where that allows none of its content to be sent now.
    pub(crate) fn exhausted_bucket(&self, now_ms: u64) -> Option<&ResponseBucket> {
        let output = self.output.borrow();
        // The end of a response costs nothing.
        self.bucket().filter(|bucket| (output.len() > 0 || output.file.is_some()) && bucket.room(now_ms) == 0)
    }

    /// Whether both sides have sent their ends: the peer counts it no more (RFC 9113 section 5.1.2).
    pub(crate) fn is_whole(&self) -> bool {
        self.output.borrow().ended && self.input.borrow().ended
    }

    pub(crate) fn is_reset(&self) -> bool {
        self.reset.get().is_some()
    }

    /// Why it has been reset; the first reason counts.
    pub(crate) fn cut_reason(&self) -> CutReason {
        self.reset.get().unwrap_or(CutReason::Peer)
    }

    /// Frames what comes next, where the server sends it: a piece of what was written, or at most `file_bytes_max` of a file; of either no
    /// more than the limit of its bandwidth allows. False where no window allows it.
    pub(crate) fn frame(
        &self,
        file_bytes_max: usize,
        now_ms: u64,
        frames: &mut (impl ContentFrames + ?Sized),
    ) -> bool {
        let Some(bucket) = self.bucket() else {
            return self.frame_within(file_bytes_max, usize::MAX, frames).is_some();
        };
        let room = bucket.room(now_ms);
        let framed = self.frame_within(file_bytes_max, room, frames);
        bucket.spend(framed.unwrap_or(0));
        framed.is_some()
    }

    /// The same, at most `bytes_max`. Returns how much; `None` where no window allows it.
    fn frame_within(
        &self,
        file_bytes_max: usize,
        bytes_max: usize,
        frames: &mut (impl ContentFrames + ?Sized),
    ) -> Option<usize> {
        let mut output = self.output.borrow_mut();
        let before = output.len();
        if before > 0 || output.file.is_none() {
            return output.frame(self.id, bytes_max, frames).then(|| before - output.len());
        }
        // Streams that take turns get as much of them as with other content.
        let max = if self.priority.get().incremental { PIECE_BYTES_MAX } else { file_bytes_max };
        let taken = output.frame_file(self.id, max.min(file_bytes_max).min(bytes_max), frames)?;
        self.count_of_file(taken);
        Some(taken as usize)
    }

    /// So many more bytes of its file were read.
    pub(crate) fn count_of_file(&self, bytes: u64) {
        self.file_sent_bytes.set(self.file_sent_bytes.get() + bytes);
    }

    /// Nothing more is sent or received.
    pub(crate) fn cut(&self, why: CutReason) {
        self.reset.set(self.reset.get().or(Some(why)));
        *self.output.borrow_mut() = StreamOutput::default();
    }
}
