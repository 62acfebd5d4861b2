//! One stream of a multiplexed connection: the lane of one request.

use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;

use http::encode::{Lines, Outgoing};
use http::{BodySize, Fields, Head, Length, Reject, Status, Version};

use super::conn::MuxConn;
use super::protocol::StreamRequest;
use super::shared::{OUT_BYTES_MAX, StreamShared};
use crate::bandwidth::{Bandwidth, ResponseBucket};
use crate::fault::Fault;
use crate::file::{self, FileRest, FileSpan, ReadStop};
use crate::filters::DefaultFields;
use crate::inbound::{BodyChunk, PIECE_WEIGHT_BYTES};
use crate::memory::Pressure;
use crate::progress;
use crate::source::{GONE, READ, Source, WRITE};
use crate::spill::{Overflow, SpillError, SpillFile, SpillQuota, SpilledOutput};
use crate::wait::{self, Interest};

mod ends;
mod raw;

/// Bytes that wait to be sent on a stream before its handler waits, while memory is short.
const OUT_BYTES_MAX_SHORT: usize = 4 * 1024;
/// The same where the streams of its connection hold [`CONNECTION_BYTES_FULL`] together.
const OUT_BYTES_MAX_FULL: usize = 16 * 1024;
/// From so many bytes on, the streams of one connection read less ahead.
const CONNECTION_BYTES_FULL: usize = 1024 * 1024;
/// Bytes that are loaded from a temporary file ahead of what the client takes. No more than a handler keeps in memory before it
/// spills: otherwise the same bytes would be written and loaded again without end.
const LOADED_BYTES_MAX: usize = 4 * 1024;
/// Bytes that a stream moves before others get their turn.
const TURN_BYTES_MAX: usize = 256 * 1024;
/// What a stream holds beside its buffers: its future above all, then the fields of its head (5.3 KiB measured).
const STREAM_BYTES: usize = 5 * 1024 + 512;

/// What the task of a stream holds. Dropping it ends the stream, which the peer learns of where the response is not whole.
pub(crate) struct StreamLane {
    conn: Rc<MuxConn>,
    shared: Rc<StreamShared>,
    head: Head,
    head_bytes: Vec<u8>,
    /// The piece of the body that the handler reads.
    piece: Vec<u8>,
    /// Bytes of it that were read, where the stream carries something else than HTTP.
    raw_at: usize,
    /// Bytes of it for which no window was granted yet.
    ungranted_bytes: usize,
    /// Content that the body may still have.
    allowed_bytes: u64,
    body_begun: bool,
    /// The request's, once its body has been read.
    trailers: Option<Fields>,
    /// `100 Continue` is due before the body is read.
    continue_due: bool,
    /// What a slow client has not taken, in a file: it comes after what the connection has, and before `rest`.
    pub(crate) overflow: SpilledOutput,
    rest: Vec<u8>,
    /// The response ends after those, with these trailers.
    end: Option<Fields>,
    body_ms: u64,
    /// What the client had taken when somebody last asked.
    seen_bytes: u64,
    moved_bytes: usize,
    request_bytes: usize,
    /// Bytes of a file that are being read.
    file_bytes: usize,
}

impl StreamLane {
    /// A stream that the peer has opened; its task registers itself with [`StreamLane::attend`].
    pub(crate) fn open(conn: &Rc<MuxConn>, id: u32, request: StreamRequest) -> StreamLane {
        let source = conn.core.add_source();
        let shared = Rc::new(StreamShared::new(id, source, request.priority));
        shared.input.borrow_mut().ended = request.ended;
        let (limits, timeouts) = (conn.context().limits.get(), conn.context().timeouts.get());
        shared.write_ms.set(timeouts.write_ms);
        conn.add(&shared);
        let lane = StreamLane {
            conn: conn.clone(),
            shared,
            continue_due: request.head.expects_continue,
            head: request.head,
            head_bytes: request.bytes,
            piece: Vec::new(),
            raw_at: 0,
            ungranted_bytes: 0,
            allowed_bytes: limits.body_bytes_max,
            body_begun: false,
            trailers: None,
            end: None,
            overflow: SpilledOutput::default(),
            rest: Vec::new(),
            body_ms: timeouts.body_ms,
            seen_bytes: 0,
            moved_bytes: 0,
            request_bytes: 0,
            file_bytes: 0,
        };
        lane.weigh();
        lane
    }

    /// The current task is run when the stream is cut, whatever it waits for.
    pub(crate) fn attend(&self) {
        let task = self.conn.core.current();
        self.shared.source.wait_read(task);
        self.shared.source.wait_write(task);
    }

    pub(crate) fn conn(&self) -> &Rc<MuxConn> {
        &self.conn
    }

    pub(crate) fn source(&self) -> &Source {
        &self.shared.source
    }

    pub(crate) fn source_rc(&self) -> Rc<Source> {
        self.shared.source.clone()
    }

    pub(crate) fn head(&self) -> (&Head, &[u8]) {
        (&self.head, &self.head_bytes)
    }

    /// What ended the request, where its task knows only that the stream is gone.
    pub(crate) fn explain(&self, fault: Fault) -> Fault {
        self.shared.cut_reason().explain(fault)
    }

    fn pressure(&self) -> Pressure {
        self.conn.core.memory().pressure()
    }

    // ---- memory and turns ----

    fn weigh(&self) {
        let (input, output) = (self.shared.input.borrow(), self.shared.output.borrow());
        let buffers = input.bytes.capacity() + output.bytes.capacity();
        let own = self.piece.capacity() + self.rest.capacity() + self.head_bytes.capacity();
        drop((input, output));
        let request = self.request_bytes + self.file_bytes;
        self.conn.weigh_stream(&self.shared, STREAM_BYTES + buffers + own + request);
    }

    /// Sets what the request holds, called before a wait that may be long.
    pub(crate) fn hold(&mut self, bytes: usize) {
        self.request_bytes = bytes;
        self.weigh();
    }

    pub(crate) fn set_timeouts(&mut self, body_ms: u64, write_ms: u64) {
        self.body_ms = body_ms;
        self.shared.write_ms.set(write_ms);
    }

    pub(crate) fn body_ms(&self) -> u64 {
        self.body_ms
    }

    /// Milliseconds that the client may take no byte of the response, beside those in which the limit of its bandwidth gives it none.
    pub(crate) fn patience_ms(&self) -> u64 {
        let write_ms = progress::patience_ms(self.shared.write_ms.get(), self.pressure());
        write_ms.saturating_add(self.shared.bucket().map_or(0, ResponseBucket::pause_ms))
    }

    /// Limits how fast the response is sent.
    pub(crate) fn limit_bandwidth(&self, bandwidth: Bandwidth) {
        self.shared.limit_bandwidth(bandwidth, self.conn.core.now_ms());
    }

    pub(crate) fn count_moved(&mut self, bytes: usize) {
        self.moved_bytes += bytes;
    }

    /// Counts bytes moved; after many of them others get their turn.
    pub(crate) async fn moved(&mut self, bytes: usize) {
        self.moved_bytes += bytes;
        if self.moved_bytes >= TURN_BYTES_MAX {
            self.moved_bytes = 0;
            self.conn.core.yield_now().await;
        }
    }

    // ---- the request's body ----

    /// Sets the most content that the body may have, as long as nobody has begun to read it.
    pub(crate) fn limit_body(&mut self, bytes_max: u64) -> Result<(), Reject> {
        if self.body_begun {
            return Ok(());
        }
        self.allowed_bytes = bytes_max;
        match self.head.body {
            BodySize::Known(length) if length > bytes_max => Err(http::body::TOO_LARGE),
            _ => Ok(()),
        }
    }

    /// The place of the next piece of the body in what [`StreamLane::slice`] is about; `None` at its end.
    pub(crate) async fn body_piece(&mut self, has_begun: bool) -> Result<Option<(usize, usize)>, Fault> {
        loop {
            match self.try_body_piece(has_begun)? {
                BodyChunk::Data(start, end) => {
                    self.moved((end - start).max(PIECE_WEIGHT_BYTES)).await;
                    return Ok(Some((start, end)));
                }
                BodyChunk::End => return Ok(None),
                BodyChunk::Pending => {
                    self.weigh();
                    let until_ms = self.conn.core.now_ms().saturating_add(self.body_ms);
                    wait::ready(&self.conn.core, &self.shared.source, Interest(READ), until_ms).await?;
                }
            }
        }
    }

    /// The same without waiting. What was returned before has been read: the peer may send as much again.
    pub(crate) fn try_body_piece(&mut self, has_begun: bool) -> Result<BodyChunk, Fault> {
        if !self.body_begun {
            self.limit_body(self.allowed_bytes)?;
            self.body_begun = true;
        }
        let granted = std::mem::take(&mut self.ungranted_bytes);
        if granted > 0 {
            self.conn.machine.borrow_mut().grant(self.shared.id, granted);
            self.conn.notify();
        }
        self.piece.clear();
        let mut input = self.shared.input.borrow_mut();
        if !input.bytes.is_empty() {
            std::mem::swap(&mut self.piece, &mut input.bytes);
            drop(input);
            self.continue_due = false;
            self.ungranted_bytes = self.piece.len();
            let left = self.allowed_bytes.checked_sub(self.piece.len() as u64);
            self.allowed_bytes = left.ok_or(http::body::TOO_LARGE)?;
            return Ok(BodyChunk::Data(0, self.piece.len()));
        }
        if input.ended || self.head.body == BodySize::None {
            self.trailers.get_or_insert_with(|| std::mem::take(&mut input.trailers));
            return Ok(BodyChunk::End);
        }
        self.check_input(input.cut)?;
        drop(input);
        self.shared.source.clear(READ);
        if std::mem::take(&mut self.continue_due) && !has_begun {
            self.send_head(Status::CONTINUE, b"", false);
        }
        Ok(BodyChunk::Pending)
    }

    /// The bytes of a piece.
    pub(crate) fn slice(&self, start: usize, end: usize) -> &[u8] {
        &self.piece[start..end]
    }

    /// The request's trailers, once its body has ended.
    pub(crate) fn trailers(&self) -> Option<&Fields> {
        self.trailers.as_ref()
    }

    /// Whether the client still waits for `100 Continue`, and has not begun to send the body all the same.
    pub(crate) fn awaits_continue(&mut self) -> Result<bool, Fault> {
        let input = self.shared.input.borrow();
        self.continue_due &= input.bytes.is_empty() && !input.ended;
        if self.continue_due {
            self.check_input(input.cut)?;
            // Whatever woke the task was no body.
            self.shared.source.clear(READ);
        }
        Ok(self.continue_due)
    }

    /// A body that has not ended cannot be completed any more.
    fn check_input(&self, is_cut: bool) -> Result<(), Fault> {
        match is_cut {
            _ if self.shared.is_reset() => Err(Fault::Gone),
            true => Err(Fault::Reject(Reject::bad("body cut short"))),
            false => Ok(()),
        }
    }

    // ---- the response ----

    fn send_head(&self, status: Status, lines: &[u8], ends: bool) {
        self.conn.machine.borrow_mut().head(self.shared.id, status, lines, ends);
        self.conn.notify();
    }

    /// Sends the head. Returns how much body the client gets.
    pub(crate) fn begin(
        &mut self,
        status: Status,
        length: Length,
        own: DefaultFields,
        lines: impl FnOnce(&mut Lines<'_>),
    ) -> BodySize {
        let outgoing = Outgoing::decide(self.head.method, Version::Http2, status, length, true);
        let mut block = Vec::new();
        let default_lines = &self.conn.context().default_lines;
        default_lines.with(self.conn.core.unix_s(), own, |default| block.extend_from_slice(default));
        if let Some(length) = outgoing.length {
            let mut lines = Lines::new(&mut block);
            lines.begin(b"Content-Length");
            lines.number(length);
            lines.end();
        }
        lines(&mut Lines::new(&mut block));
        let body = outgoing.framing.size();
        let ends = body == BodySize::None;
        self.send_head(status, &block, ends);
        self.shared.output.borrow_mut().ended = ends;
        body
    }

    /// Sends an interim response.
    pub(crate) fn inform(&mut self, status: Status, lines: impl FnOnce(&mut Lines<'_>)) {
        let mut block = Vec::new();
        lines(&mut Lines::new(&mut block));
        self.send_head(status, &block, false);
    }

    /// Body bytes, at least one.
    pub(crate) async fn send(&mut self, mut bytes: &[u8]) -> Result<(), Fault> {
        if self.overflow.is_some() {
            Box::pin(self.drain()).await?;
        }
        while !bytes.is_empty() {
            let waiting = self.shared.output.borrow().len();
            let (piece, rest) = bytes.split_at(bytes.len().min(self.output_max().saturating_sub(waiting)));
            if piece.is_empty() {
                self.wait_writable().await?;
                continue;
            }
            self.enqueue(piece)?;
            bytes = rest;
            self.moved(piece.len()).await;
        }
        Ok(())
    }

    /// The same, without waiting: what the client does not take now is kept in memory.
    pub(crate) fn offer(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        if self.overflow.is_none() {
            return self.enqueue(bytes);
        }
        self.rest.extend_from_slice(bytes);
        self.weigh();
        Ok(())
    }

    fn enqueue(&self, bytes: &[u8]) -> Result<(), Fault> {
        if self.shared.is_reset() {
            return Err(Fault::Gone);
        }
        self.shared.output.borrow_mut().push(bytes);
        self.weigh();
        self.conn.enqueue(&self.shared);
        Ok(())
    }

    /// A range of a file as body bytes, counted in `total`; with `is_last` the body ends with it. The connection's task reads it when the
    /// stream's turn comes, so that no stream holds what others send first.
    pub(crate) async fn send_file(
        &mut self,
        span: FileSpan<'_>,
        is_last: bool,
        total: &mut u64,
    ) -> Result<(), Fault> {
        if self.overflow.is_some() {
            Box::pin(self.drain()).await?;
        }
        if self.shared.is_reset() {
            return Err(Fault::Gone);
        }
        if span.len == 0 {
            return Ok(());
        }
        self.shared.output.borrow_mut().begin_file(FileRest::new(span), is_last);
        let _sending = FileSending { shared: self.shared.clone(), total };
        self.conn.enqueue(&self.shared);
        loop {
            self.wait_writable().await?;
            let stop = match &self.shared.output.borrow().file {
                None => return Ok(()),
                Some(file) => file.stop,
            };
            match stop {
                None => {}
                Some(ReadStop::Shrank) => return Err(file::SHRANK),
                Some(ReadStop::Cold) => Box::pin(self.read_cold()).await?,
            }
        }
    }

    /// Lets another thread read on in the stream's file.
    async fn read_cold(&mut self) -> Result<(), Fault> {
        let next = self.shared.output.borrow().file.as_ref().map(|file| file.next(self.output_max()));
        let Some((file, at, len)) = next else { return Ok(()) };
        self.file_bytes = len;
        self.weigh();
        let core = self.conn.core.clone();
        let bytes = file::read(&core, file.as_fd(), at, len).await;
        self.file_bytes = 0;
        let bytes = bytes?;
        if self.shared.is_reset() {
            return Err(Fault::Gone);
        }
        self.shared.count_of_file(bytes.len() as u64);
        self.shared.output.borrow_mut().push_of_file(bytes);
        self.weigh();
        self.conn.enqueue(&self.shared);
        Ok(())
    }

    /// Bytes that may wait to be sent before the handler waits.
    fn output_max(&self) -> usize {
        if self.pressure() >= Pressure::High {
            return OUT_BYTES_MAX_SHORT;
        }
        let is_full = self.conn.streams_bytes() >= CONNECTION_BYTES_FULL;
        if is_full { OUT_BYTES_MAX_FULL } else { OUT_BYTES_MAX }
    }

    /// The body is complete.
    pub(crate) fn finish(&mut self, trailers: &Fields) {
        if self.shared.output.borrow().ends() {
            return;
        }
        match *self.overflow {
            // What a file holds comes first.
            Some(_) => self.end = Some(trailers.clone()),
            None => {
                self.shared.output.borrow_mut().end = Some(trailers.clone());
                self.conn.enqueue(&self.shared);
            }
        }
    }

    /// Waits until the connection has sent all that was written.
    pub(crate) async fn flush(&mut self) -> Result<(), Fault> {
        if self.overflow.is_some() {
            Box::pin(self.drain()).await?;
        }
        while !self.try_flush()? {
            self.wait_writable().await?;
        }
        Ok(())
    }

    /// Whether the connection has taken all that was written.
    pub(crate) fn try_flush(&mut self) -> Result<bool, Fault> {
        if self.overflow.is_some() && !self.try_drain()? {
            return Ok(false);
        }
        if self.shared.is_reset() {
            return Err(Fault::Gone);
        }
        let is_empty = !self.shared.output.borrow().is_waiting();
        if !is_empty {
            // Ready again once the connection has taken some of it.
            self.shared.source.clear(WRITE);
        }
        Ok(is_empty)
    }

    /// Bytes that wait in memory to be sent.
    pub(crate) fn backlog(&self) -> usize {
        self.shared.output.borrow().len() + self.rest.len()
    }

    async fn wait_writable(&mut self) -> Result<(), Fault> {
        self.weigh();
        self.shared.source.clear(WRITE);
        loop {
            let until_ms = self.conn.core.now_ms().saturating_add(self.patience_ms());
            let of_file = self.shared.file_sent_bytes.get();
            match wait::ready(&self.conn.core, &self.shared.source, Interest(WRITE), until_ms).await {
                // It is another stream's turn: whether the client reads at all, the connection's task watches.
                Err(Fault::Timeout) if self.shared.in_line.get() => {}
                Err(Fault::Timeout) if self.shared.file_sent_bytes.get() != of_file => {}
                // The client has not taken what was framed yet: the connection's task watches that as well.
                Err(Fault::Timeout) if self.conn.taken_bytes.get() < self.shared.framed_at.get() => {}
                waited => break waited?,
            }
        }
        match self.shared.source.ready() & GONE != 0 {
            true => Err(Fault::Gone),
            false => Ok(()),
        }
    }

    // ---- what a slow client has not taken, in a file ----

    /// Moves what waits to a file; `announced` bytes are still to come. What could not be moved stays where it is.
    pub(crate) async fn spill(&mut self, quota: &Arc<SpillQuota>, announced: u64) -> Result<(), SpillError> {
        let core = self.conn.core.clone();
        if self.overflow.is_none() {
            let waiting = self.backlog() as u64;
            if waiting == 0 {
                return Ok(());
            }
            let file = SpillFile::create(&core, quota, announced.saturating_add(waiting)).await?;
            *self.overflow = Some(Box::new(Overflow { file, writing: false }));
            // What comes from the file goes this way again: all of it in order.
            let mut output = self.shared.output.borrow_mut();
            let at = output.at;
            self.rest = output.bytes.split_off(at);
            (output.bytes, output.at) = (Vec::new(), 0);
        }
        let Some(overflow) = &mut *self.overflow else { return Ok(()) };
        overflow.writing = true;
        let (bytes, written, result) = overflow.file.append(&core, std::mem::take(&mut self.rest), 0).await;
        overflow.writing = false;
        self.rest = bytes;
        self.rest.drain(..written);
        let is_empty = overflow.file.is_empty();
        if self.pressure() >= Pressure::High {
            self.rest.shrink_to_fit();
        }
        if is_empty {
            // A stream that has been cut learns of it at its next call.
            let _ = self.leave_file();
        }
        self.weigh();
        result
    }

    /// Nothing is left in the file: what comes after it is the connection's.
    fn leave_file(&mut self) -> Result<(), Fault> {
        *self.overflow = None;
        let rest = std::mem::take(&mut self.rest);
        self.shared.output.borrow_mut().end = self.end.take();
        self.enqueue(&rest)
    }

    /// Moves bytes of the file to the connection, as far as it takes them; true where nothing is left.
    fn try_drain(&mut self) -> Result<bool, Fault> {
        let core = self.conn.core.clone();
        loop {
            let Some(overflow) = &mut *self.overflow else { return Ok(true) };
            if overflow.writing || self.shared.is_reset() {
                return Err(Fault::Gone);
            }
            if overflow.file.unread() == 0 {
                self.leave_file()?;
                return Ok(true);
            }
            let room = LOADED_BYTES_MAX.saturating_sub(self.shared.output.borrow().len());
            if room == 0 {
                self.shared.source.clear(WRITE);
                return Ok(false);
            }
            let Some((file, at, len)) = overflow.file.window(&core) else { return Ok(false) };
            let bytes = file::read_loaded(file, at, len.min(room))?;
            overflow.file.sent(bytes.len() as u64);
            self.moved_bytes += bytes.len();
            self.enqueue(&bytes)?;
        }
    }

    /// Moves all of the file.
    async fn drain(&mut self) -> Result<(), Fault> {
        while !self.try_drain()? {
            match self.overflow.is_loading() {
                true => self.overflow.loaded().await,
                false => self.wait_writable().await?,
            }
        }
        Ok(())
    }
}

/// A file under way on a stream. Dropped, it counts what was sent, and nothing more is.
struct FileSending<'t> {
    shared: Rc<StreamShared>,
    total: &'t mut u64,
}

impl Drop for FileSending<'_> {
    fn drop(&mut self) {
        *self.total += self.shared.file_sent_bytes.take();
        let mut output = self.shared.output.borrow_mut();
        if output.file.take().is_some() {
            output.end = None;
        }
    }
}

impl Drop for StreamLane {
    fn drop(&mut self) {
        self.conn.remove(&self.shared);
    }
}
