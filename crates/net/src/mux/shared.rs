//! State of a stream, shared by its task and the connection's task.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

use http::Fields;
use http::append::append;
use times::{Millis, Moment};

use super::protocol::{AbortReason, ContentFrames, StreamPriority};
use crate::bandwidth::{BandwidthLimit, ResponseBucket};
use crate::file::UnsentFile;
use crate::source::Source;

/// Unsent bytes of a stream at which its handler waits.
pub(crate) const OUT_BYTES_MAX: usize = 64 * 1024;

/// Maximum number of bytes of a stream that are framed at once.
const PIECE_BYTES_MAX: usize = 16 * 1024;

/// State shared by the stream's task and the connection's task.
pub(crate) struct StreamShared {
    pub(crate) id: u32,
    pub(crate) source: Rc<Source>,
    pub(crate) priority: Cell<StreamPriority>,
    pub(crate) input: RefCell<StreamInput>,
    pub(crate) output: RefCell<StreamOutput>,
    /// Whether the stream is scheduled for sending.
    pub(crate) is_queued: Cell<bool>,
    /// Bytes of the file that the connection's task has read and framed.
    pub(crate) file_sent_bytes: Cell<u64>,
    /// Bytes of the output that a reset has discarded.
    pub(crate) discarded_bytes: Cell<usize>,
    /// Position in the connection's output of the end of the last frame.
    pub(crate) framed_position: Cell<u64>,
    /// Time for which the client may accept nothing of the response, in milliseconds.
    pub(crate) write_timeout: Cell<Millis>,
    /// Memory charged to the stream, in bytes.
    pub(crate) held_bytes: Cell<usize>,
    /// Whether the stream carries another protocol than HTTP.
    pub(crate) is_tunnel: Cell<bool>,
    /// Whether the other end of the tunnel has failed, perhaps after its end was sent.
    pub(crate) is_broken: Cell<bool>,
    /// Bandwidth limit of the response.
    bucket: OnceCell<Box<ResponseBucket>>,
    /// Reason of the reset or of the connection's end.
    reset: Cell<Option<AbortReason>>,
}

/// Received data that was not read.
#[derive(Default)]
pub(crate) struct StreamInput {
    pub(crate) bytes: Vec<u8>,
    pub(crate) ended: bool,
    pub(crate) trailers: Fields,
    /// Whether the connection's receiving side has ended, so that nothing more arrives.
    pub(crate) is_truncated: bool,
}

/// Output that was not sent.
#[derive(Default)]
pub(crate) struct StreamOutput {
    pub(crate) bytes: Vec<u8>,
    /// Number of `bytes` that were sent.
    pub(crate) at: usize,
    /// A file range that follows `bytes`; read when the stream is scheduled.
    pub(crate) file: Option<UnsentFile>,
    /// Trailers of the response that ends after this output; `None` if more output follows.
    pub(crate) end: Option<Fields>,
    /// Whether the end was sent.
    pub(crate) ended: bool,
}

impl StreamOutput {
    /// Whether there is output to frame. A file that the stream's task must read first does not count.
    pub(crate) fn is_waiting(&self) -> bool {
        let follows = match &self.file {
            Some(file) => file.stop.is_none(),
            None => self.end.is_some(),
        };
        !self.ended && (self.at < self.bytes.len() || follows)
    }

    pub(crate) fn mark_sent(&mut self, len: usize) {
        self.at += len;
        if self.at == self.bytes.len() {
            // Most responses are written in several pieces, so keep the memory unless it is large.
            self.bytes.clear();
            self.bytes.shrink_to(OUT_BYTES_MAX);
            self.at = 0;
        }
    }

    /// Frames one piece of the output, at most `bytes_max`. Returns false if flow control blocks it.
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
        self.mark_sent(len);
        self.ended = is_last;
        true
    }

    /// Frames the next bytes of the file, at most `bytes_max`. `None` if flow control blocks them.
    fn frame_file(
        &mut self,
        id: u32,
        bytes_max: usize,
        frames: &mut (impl ContentFrames + ?Sized),
    ) -> Option<u64> {
        let file = self.file.as_mut()?;
        let len = file.remaining_bytes().min(bytes_max as u64) as usize;
        let is_last = len as u64 == file.remaining_bytes() && self.end.as_ref().is_some_and(Fields::is_empty);
        if frames.capacity(id) == 0 {
            return None;
        }
        let taken = frames.data_in_place(id, len, is_last, &mut |slices| file.read(slices));
        if file.remaining_bytes() == 0 {
            self.file = None;
            self.ended = is_last;
        }
        Some(taken as u64)
    }

    /// Sets the file range to send next. `is_last` means that the response ends with it.
    pub(crate) fn begin_file(&mut self, file: UnsentFile, is_last: bool) {
        (self.file, self.end) = (Some(file), is_last.then(Fields::new));
    }

    /// Appends bytes of the file that a blocking thread has read.
    pub(crate) fn push_file_bytes(&mut self, bytes: Vec<u8>) {
        if let Some(file) = &mut self.file {
            file.skip(bytes.len());
        }
        self.file.take_if(|file| file.remaining_bytes() == 0);
        self.push_owned(bytes);
    }

    /// Whether the end was sent, or follows the current output.
    pub(crate) fn ends(&self) -> bool {
        self.ended || self.end.is_some()
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Whether everything was framed, and nothing waits, not even a file that has to be read first.
    pub(crate) fn is_framed(&self) -> bool {
        self.len() == 0 && self.file.is_none() && self.end.is_none()
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        // Compacts only after at least as much was sent as remains, so that no more bytes are moved than
        // sent.
        if self.at >= self.len().max(1) {
            self.bytes.drain(..self.at);
            self.at = 0;
        }
        append(&mut self.bytes, bytes);
    }

    /// Like [`StreamOutput::push`], without copying if there is no unsent output.
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
            is_queued: Cell::new(false),
            file_sent_bytes: Cell::new(0),
            discarded_bytes: Cell::new(0),
            framed_position: Cell::new(0),
            write_timeout: Cell::new(Millis::ZERO),
            held_bytes: Cell::new(0),
            is_tunnel: Cell::new(false),
            is_broken: Cell::new(false),
            bucket: OnceCell::new(),
            reset: Cell::new(None),
        }
    }

    /// Limits the rate of the response; only the first call has an effect.
    pub(crate) fn limit_bandwidth(&self, bandwidth: &BandwidthLimit, now: Moment) {
        self.bucket.get_or_init(|| Box::new(ResponseBucket::new(bandwidth, now)));
    }

    /// Returns the bandwidth limit. Tunnels have none.
    pub(crate) fn bucket(&self) -> Option<&ResponseBucket> {
        self.bucket.get().map(|bucket| &**bucket).filter(|_| !self.is_tunnel.get())
    }

    /// Returns the bandwidth limit if it currently permits no content.
    pub(crate) fn exhausted_bucket(&self, now: Moment) -> Option<&ResponseBucket> {
        let output = self.output.borrow();
        // The end of a response is not limited.
        self.bucket()
            .filter(|bucket| (output.len() > 0 || output.file.is_some()) && bucket.available_bytes(now) == 0)
    }

    /// Whether both sides have ended the stream, so that it is closed for the peer (RFC 9113 section 5.1.2).
    pub(crate) fn is_closed(&self) -> bool {
        self.output.borrow().ended && self.input.borrow().ended
    }

    pub(crate) fn is_reset(&self) -> bool {
        self.reset.get().is_some()
    }

    /// Returns the first reason for which the stream was reset.
    pub(crate) fn abort_reason(&self) -> AbortReason {
        self.reset.get().unwrap_or(AbortReason::Peer)
    }

    /// Frames the next output: a piece of the buffer, or at most `file_bytes_max` of a file, within the
    /// bandwidth limit. Returns false if flow control blocks it.
    pub(crate) fn frame(
        &self,
        file_bytes_max: usize,
        now: Moment,
        frames: &mut (impl ContentFrames + ?Sized),
    ) -> bool {
        let Some(bucket) = self.bucket() else {
            return self.frame_within(file_bytes_max, usize::MAX, frames).is_some();
        };
        let room = bucket.available_bytes(now);
        let framed = self.frame_within(file_bytes_max, room, frames);
        bucket.spend(framed.unwrap_or(0));
        framed.is_some()
    }

    /// Like [`StreamShared::frame`], at most `bytes_max`. Returns the number of bytes; `None` if blocked.
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
        // Incremental streams get the same share of each turn with files as with other content.
        let max = if self.priority.get().is_incremental { PIECE_BYTES_MAX } else { file_bytes_max };
        let taken = output.frame_file(self.id, max.min(file_bytes_max).min(bytes_max), frames)?;
        self.count_file_bytes(taken);
        Some(taken as usize)
    }

    /// Counts bytes read from the file.
    pub(crate) fn count_file_bytes(&self, bytes: u64) {
        self.file_sent_bytes.set(self.file_sent_bytes.get() + bytes);
    }

    /// Resets the stream: nothing more is sent or received.
    pub(crate) fn abort(&self, why: AbortReason) {
        self.reset.set(self.reset.get().or(Some(why)));
        let discarded = std::mem::take(&mut *self.output.borrow_mut());
        self.discarded_bytes.set(self.discarded_bytes.get() + discarded.len());
    }
}
