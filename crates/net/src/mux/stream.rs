//! A stream of a multiplexed connection, as the lane of one request.

use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;

use http::encode::{FieldWriter, OutgoingFraming};
use http::{BodySize, Fields, Head, HeadRef, Length, Reject, Status, Version};
use times::Millis;

use super::conn::{DIRECT_BYTES_MAX, MuxConn};
use super::protocol::StreamRequest;
use super::shared::{OUT_BYTES_MAX, StreamShared};
use crate::bandwidth::{BandwidthLimit, ResponseBucket};
use crate::fault::Fault;
use crate::file::{self, FileSpan, ReadStop, UnsentFile};
use crate::filters::DefaultFields;
use crate::inbound::{BodyChunk, PIECE_WEIGHT_BYTES};
use crate::memory::Pressure;
use crate::progress;
use crate::source::{GONE, READ, Source, WRITE};
use crate::spill::{Overflow, SpillError, SpillFile, SpillQuota, SpilledOutput};
use crate::wait::{self, Interest};

mod ends;
mod raw;

/// Unsent bytes at which a handler waits, under memory pressure.
const OUT_BYTES_MAX_LOW_MEMORY: usize = 4 * 1024;
/// Unsent bytes at which a handler waits, if the streams of its connection hold [`CONNECTION_BYTES_FULL`].
const OUT_BYTES_MAX_FULL: usize = 16 * 1024;
/// Memory of a connection's streams from which they buffer less.
const CONNECTION_BYTES_FULL: usize = 1024 * 1024;
/// Bytes loaded from a temporary file ahead of the client. Must not exceed what a handler keeps in memory
/// before it spills: otherwise the same bytes would be written and loaded again endlessly.
const LOADED_BYTES_MAX: usize = 4 * 1024;
/// Capacity that the buffer for field lines keeps.
const HEAD_LINES_BYTES_KEPT: usize = 16 * 1024;
/// Bytes that a stream moves before it yields to others.
const TURN_BYTES_MAX: usize = 256 * 1024;
/// Memory of a stream without its buffers: mostly its future, then the fields of its head (5.3 KiB measured).
const STREAM_BYTES: usize = 5 * 1024 + 512;

/// State owned by a stream's task. Dropping it ends the stream, with a reset if the response is incomplete.
pub(crate) struct StreamLane {
    conn: Rc<MuxConn>,
    shared: Rc<StreamShared>,
    head: Head,
    head_bytes: Vec<u8>,
    /// The piece of the body that the handler is reading.
    piece: Vec<u8>,
    /// Number of bytes of `piece` that were read from a tunnel.
    raw_read_bytes: usize,
    /// Bytes of `piece` for which no window update was sent.
    ungranted_bytes: usize,
    /// Remaining permitted size of the body.
    allowed_bytes: u64,
    has_body_begun: bool,
    /// Trailers of the request, after its body was read.
    trailers: Option<Fields>,
    /// Whether `100 Continue` must be sent before the body is read.
    must_send_continue: bool,
    /// Output spilled to a file for a slow client; follows the output in `shared` and precedes `rest`.
    pub(crate) overflow: SpilledOutput,
    output_after_file: Vec<u8>,
    /// Whether the response has announced at most [`DIRECT_BYTES_MAX`].
    is_small: bool,
    /// Trailers of the response if it ends after `rest`.
    end: Option<Fields>,
    body_timeout: Millis,
    /// Bytes that the client had received at the last call of [`StreamLane::has_progressed`].
    reported_bytes: u64,
    moved_bytes: usize,
    request_bytes: usize,
    /// Size of the file read in progress.
    file_bytes: usize,
}

impl StreamLane {
    /// Creates the state of a stream that the peer has opened; its task must call [`StreamLane::register_for_reset`].
    pub(crate) fn open(conn: &Rc<MuxConn>, id: u32, request: StreamRequest) -> StreamLane {
        let source = conn.core.add_source();
        let shared = Rc::new(StreamShared::new(id, source, request.priority));
        shared.input.borrow_mut().ended = request.ended;
        let limits = conn.context().limits.get();
        let timeouts = conn.context().timeouts.get();
        shared.write_timeout.set(timeouts.write);
        conn.add(&shared);
        let lane = StreamLane {
            conn: conn.clone(),
            shared,
            must_send_continue: request.head.expects_continue,
            head: request.head,
            head_bytes: request.bytes,
            piece: Vec::new(),
            raw_read_bytes: 0,
            ungranted_bytes: 0,
            allowed_bytes: limits.body_bytes_max,
            has_body_begun: false,
            trailers: None,
            is_small: false,
            end: None,
            overflow: SpilledOutput::default(),
            output_after_file: Vec::new(),
            body_timeout: timeouts.body,
            reported_bytes: 0,
            moved_bytes: 0,
            request_bytes: 0,
            file_bytes: 0,
        };
        lane.update_memory();
        lane
    }

    /// Registers the current task to be woken when the stream is reset, whatever it waits for.
    pub(crate) fn register_for_reset(&self) {
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

    pub(crate) fn head(&self) -> HeadRef<'_> {
        HeadRef::new(&self.head, &self.head_bytes)
    }

    /// Returns the fault that ended a request whose task only knows that the stream is gone.
    pub(crate) fn explain(&self, fault: Fault) -> Fault {
        self.shared.abort_reason().explain(fault)
    }

    fn pressure(&self) -> Pressure {
        self.conn.core.memory().pressure()
    }

    // ---- memory and turns ----

    fn update_memory(&self) {
        let input = self.shared.input.borrow();
        let output = self.shared.output.borrow();
        let buffers = input.bytes.capacity() + output.bytes.capacity();
        let own = self.piece.capacity() + self.output_after_file.capacity() + self.head_bytes.capacity();
        drop((input, output));
        let request = self.request_bytes + self.file_bytes;
        self.conn.set_stream_bytes(&self.shared, STREAM_BYTES + buffers + own + request);
    }

    /// Sets the memory of the request, in bytes. Called before a wait that may be long.
    pub(crate) fn hold(&mut self, bytes: usize) {
        self.request_bytes = bytes;
        self.update_memory();
    }

    pub(crate) fn set_timeouts(&mut self, body_timeout: Millis, write_timeout: Millis) {
        self.body_timeout = body_timeout;
        self.shared.write_timeout.set(write_timeout);
    }

    pub(crate) fn body_timeout(&self) -> Millis {
        self.body_timeout
    }

    /// Milliseconds for which the client may accept nothing, including pauses of the bandwidth limit.
    pub(crate) fn stall_timeout(&self) -> Millis {
        let write_timeout = progress::stall_timeout(self.shared.write_timeout.get(), self.pressure());
        write_timeout + self.shared.bucket().map_or(Millis::ZERO, ResponseBucket::pause_max)
    }

    /// Limits the rate at which the response is sent.
    pub(crate) fn limit_bandwidth(&self, bandwidth: &BandwidthLimit) {
        self.shared.limit_bandwidth(bandwidth, self.conn.core.now());
    }

    pub(crate) fn count_moved(&mut self, bytes: usize) {
        self.moved_bytes += bytes;
    }

    /// Counts moved bytes and yields to other tasks when the turn is used up.
    pub(crate) async fn consume_budget(&mut self, bytes: usize) {
        self.moved_bytes += bytes;
        if self.moved_bytes >= TURN_BYTES_MAX {
            self.moved_bytes = 0;
            self.conn.core.yield_now().await;
        }
    }

    // ---- the request's body ----

    /// Sets the maximum body size. Has no effect once the body is being read.
    pub(crate) fn limit_body(&mut self, bytes_max: u64) -> Result<(), Reject> {
        if self.has_body_begun {
            return Ok(());
        }
        self.allowed_bytes = bytes_max;
        match self.head.body {
            BodySize::Known(length) if length > bytes_max => Err(http::body::TOO_LARGE),
            _ => Ok(()),
        }
    }

    /// Returns start and end of the next piece of the body in [`StreamLane::slice`]; `None` at its end.
    pub(crate) async fn body_piece(&mut self, has_begun: bool) -> Result<Option<(usize, usize)>, Fault> {
        loop {
            match self.try_body_piece(has_begun)? {
                BodyChunk::Data(start, end) => {
                    self.consume_budget((end - start).max(PIECE_WEIGHT_BYTES)).await;
                    return Ok(Some((start, end)));
                }
                BodyChunk::End => return Ok(None),
                BodyChunk::Pending => {
                    self.update_memory();
                    let until = self.conn.core.now() + self.body_timeout;
                    wait::ready(&self.conn.core, &self.shared.source, Interest(READ), until).await?;
                }
            }
        }
    }

    /// Like [`StreamLane::body_piece`], without waiting. Updates the window for the piece returned before.
    pub(crate) fn try_body_piece(&mut self, has_begun: bool) -> Result<BodyChunk, Fault> {
        if !self.has_body_begun {
            self.limit_body(self.allowed_bytes)?;
            self.has_body_begun = true;
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
            self.must_send_continue = false;
            self.ungranted_bytes = self.piece.len();
            let left = self.allowed_bytes.checked_sub(self.piece.len() as u64);
            self.allowed_bytes = left.ok_or(http::body::TOO_LARGE)?;
            return Ok(BodyChunk::Data(0, self.piece.len()));
        }
        if input.ended || self.head.body == BodySize::None {
            self.trailers.get_or_insert_with(|| std::mem::take(&mut input.trailers));
            return Ok(BodyChunk::End);
        }
        self.check_input(input.is_truncated)?;
        drop(input);
        self.shared.source.clear(READ);
        if std::mem::take(&mut self.must_send_continue) && !has_begun {
            self.send_head(Status::CONTINUE, b"", false);
        }
        Ok(BodyChunk::Pending)
    }

    /// Returns the bytes of a piece.
    pub(crate) fn slice(&self, start: usize, end: usize) -> &[u8] {
        &self.piece[start..end]
    }

    /// Returns the trailers of the request, after its body has ended.
    pub(crate) fn trailers(&self) -> Option<&Fields> {
        self.trailers.as_ref()
    }

    /// Whether the client still waits for `100 Continue` and has not begun to send the body.
    pub(crate) fn awaits_continue(&mut self) -> Result<bool, Fault> {
        let input = self.shared.input.borrow();
        self.must_send_continue &= input.bytes.is_empty() && !input.ended;
        if self.must_send_continue {
            self.check_input(input.is_truncated)?;
            // The task was not woken by body data.
            self.shared.source.clear(READ);
        }
        Ok(self.must_send_continue)
    }

    /// Fails if the rest of an incomplete body cannot arrive.
    fn check_input(&self, is_cut: bool) -> Result<(), Fault> {
        match is_cut {
            _ if self.shared.is_reset() => Err(Fault::Disconnected),
            true => Err(Fault::Reject(Reject::bad_request("body cut short"))),
            false => Ok(()),
        }
    }

    // ---- the response ----

    fn send_head(&self, status: Status, lines: &[u8], ends: bool) {
        self.conn.machine.borrow_mut().head(self.shared.id, status, lines, ends);
        self.conn.notify();
    }

    /// Sends the head. Returns the size of the body that the client gets.
    pub(crate) fn begin(
        &mut self,
        status: Status,
        length: Length,
        own: DefaultFields,
        lines: impl FnOnce(&mut FieldWriter<'_>),
    ) -> BodySize {
        // HTTP/3 frames responses in the same way.
        let outgoing = OutgoingFraming::decide(self.head.method, Version::Http2, status, length, true);
        let mut block = self.take_head_lines();
        let default_lines = &self.conn.context().default_lines;
        default_lines.with(self.conn.core.unix_s(), own, |default| block.extend_from_slice(default));
        if let Some(length) = outgoing.length {
            let mut lines = FieldWriter::new(&mut block);
            lines.begin(b"Content-Length");
            lines.number(length);
            lines.end();
        }
        lines(&mut FieldWriter::new(&mut block));
        let body = outgoing.framing.size();
        self.is_small = matches!(body, BodySize::Known(length) if length <= DIRECT_BYTES_MAX as u64);
        let ends = body == BodySize::None;
        self.send_head(status, &block, ends);
        self.conn.context().head_lines.set(block);
        self.shared.output.borrow_mut().ended = ends;
        body
    }

    /// Sends an interim response.
    pub(crate) fn send_interim(&mut self, status: Status, lines: impl FnOnce(&mut FieldWriter<'_>)) {
        let mut block = self.take_head_lines();
        lines(&mut FieldWriter::new(&mut block));
        self.send_head(status, &block, false);
        self.conn.context().head_lines.set(block);
    }

    /// Returns the core's buffer for field lines, empty and not large.
    fn take_head_lines(&self) -> Vec<u8> {
        let mut lines = self.conn.context().head_lines.take();
        lines.clear();
        lines.shrink_to(HEAD_LINES_BYTES_KEPT);
        lines
    }

    /// Sends body bytes, at least one.
    pub(crate) async fn send(&mut self, mut bytes: &[u8]) -> Result<(), Fault> {
        if self.overflow.is_some() {
            Box::pin(self.drain()).await?;
        }
        if self.is_small && self.conn.frame_directly(&self.shared, bytes) {
            self.consume_budget(bytes.len()).await;
            return Ok(());
        }
        while !bytes.is_empty() {
            let waiting = self.shared.output.borrow().len();
            let (piece, rest) = bytes.split_at(bytes.len().min(self.out_bytes_max().saturating_sub(waiting)));
            if piece.is_empty() {
                self.wait_writable().await?;
                continue;
            }
            self.enqueue(piece)?;
            bytes = rest;
            self.consume_budget(piece.len()).await;
        }
        Ok(())
    }

    /// Like [`StreamLane::send`], without waiting: data that the client does not accept is kept in memory.
    pub(crate) fn offer(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        if self.overflow.is_none() {
            return self.enqueue(bytes);
        }
        self.output_after_file.extend_from_slice(bytes);
        self.update_memory();
        Ok(())
    }

    fn enqueue(&self, bytes: &[u8]) -> Result<(), Fault> {
        if self.shared.is_reset() {
            return Err(Fault::Disconnected);
        }
        self.shared.output.borrow_mut().push(bytes);
        self.update_memory();
        self.conn.enqueue(&self.shared);
        Ok(())
    }

    /// Sends a range of a file as body bytes, counted in `total`. `is_last` means that the body ends with it.
    /// The connection's task reads the file when the stream is scheduled: waiting streams hold no content.
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
            return Err(Fault::Disconnected);
        }
        if span.len == 0 {
            return Ok(());
        }
        self.shared.output.borrow_mut().begin_file(UnsentFile::new(span), is_last);
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
                Some(ReadStop::Shrank) => return Err(file::FILE_SHRANK),
                Some(ReadStop::NotCached) => Box::pin(self.read_uncached()).await?,
            }
        }
    }

    /// Reads the next part of the stream's file on a blocking thread.
    async fn read_uncached(&mut self) -> Result<(), Fault> {
        let next = self.shared.output.borrow().file.as_ref().map(|file| file.next_read(self.out_bytes_max()));
        let Some((file, at, len)) = next else { return Ok(()) };
        self.file_bytes = len;
        self.update_memory();
        let core = self.conn.core.clone();
        let bytes = file::read(&core, file.as_fd(), at, len).await;
        self.file_bytes = 0;
        let bytes = bytes?;
        if self.shared.is_reset() {
            return Err(Fault::Disconnected);
        }
        self.shared.count_file_bytes(bytes.len() as u64);
        self.shared.output.borrow_mut().push_file_bytes(bytes);
        self.update_memory();
        self.conn.enqueue(&self.shared);
        Ok(())
    }

    /// Returns the number of unsent bytes at which the handler waits.
    fn out_bytes_max(&self) -> usize {
        if self.pressure() >= Pressure::High {
            return OUT_BYTES_MAX_LOW_MEMORY;
        }
        let is_full = self.conn.streams_bytes() >= CONNECTION_BYTES_FULL;
        if is_full { OUT_BYTES_MAX_FULL } else { OUT_BYTES_MAX }
    }

    /// Completes the body.
    pub(crate) fn finish(&mut self, trailers: &Fields) {
        if self.shared.output.borrow().ends() {
            return;
        }
        match *self.overflow {
            // The content of the temporary file is sent first.
            Some(_) => self.end = Some(trailers.clone()),
            None if trailers.is_empty() && self.conn.end_directly(&self.shared) => {
                self.shared.output.borrow_mut().ended = true;
            }
            None => {
                self.shared.output.borrow_mut().end = Some(trailers.clone());
                self.conn.enqueue(&self.shared);
            }
        }
    }

    /// Waits until the connection has taken all output.
    pub(crate) async fn flush(&mut self) -> Result<(), Fault> {
        if self.overflow.is_some() {
            Box::pin(self.drain()).await?;
        }
        while !self.try_flush()? {
            self.wait_writable().await?;
        }
        Ok(())
    }

    /// Whether the connection has taken all output.
    pub(crate) fn try_flush(&mut self) -> Result<bool, Fault> {
        if self.overflow.is_some() && !self.try_drain()? {
            return Ok(false);
        }
        if self.shared.is_reset() {
            return Err(Fault::Disconnected);
        }
        let is_empty = !self.shared.output.borrow().is_waiting();
        if !is_empty {
            // Writable again when the connection has taken some of it.
            self.shared.source.clear(WRITE);
        }
        Ok(is_empty)
    }

    /// Returns the number of unsent bytes in memory.
    pub(crate) fn backlog(&self) -> usize {
        self.shared.output.borrow().len() + self.output_after_file.len()
    }

    /// Returns the number of bytes that the connection has not taken: unsent, or discarded by a reset.
    pub(crate) fn undelivered_bytes(&self) -> u64 {
        (self.backlog() + self.shared.discarded_bytes.get()) as u64 + self.overflow.unread_bytes()
    }

    async fn wait_writable(&mut self) -> Result<(), Fault> {
        self.update_memory();
        self.shared.source.clear(WRITE);
        loop {
            let until = self.conn.core.now() + self.stall_timeout();
            let of_file = self.shared.file_sent_bytes.get();
            let position = self.conn.position(&self.shared);
            match wait::ready(&self.conn.core, &self.shared.source, Interest(WRITE), until).await {
                // Other streams are sent first. The connection's task checks the client's progress.
                Err(Fault::Timeout) if self.shared.is_queued.get() => {}
                Err(Fault::Timeout) if self.shared.file_sent_bytes.get() != of_file => {}
                Err(Fault::Timeout) if self.conn.position(&self.shared) != position => {}
                // The client has not received the last frame yet. The connection's task checks that too.
                Err(Fault::Timeout)
                    if self.conn.acknowledged_bytes.get() < self.conn.position(&self.shared) => {}
                waited => break waited?,
            }
        }
        if self.shared.source.ready() & GONE != 0 { Err(Fault::Disconnected) } else { Ok(()) }
    }

    // ---- output spilled to a file ----

    /// Moves buffered output to a file; `announced` bytes are still to be written. On failure, the remaining
    /// data stays in memory.
    pub(crate) async fn spill(&mut self, quota: &Arc<SpillQuota>, announced: u64) -> Result<(), SpillError> {
        let core = self.conn.core.clone();
        if self.overflow.is_none() {
            let waiting = self.backlog() as u64;
            if waiting == 0 {
                return Ok(());
            }
            let file = SpillFile::create(&core, quota, announced.saturating_add(waiting)).await?;
            *self.overflow = Some(Box::new(Overflow { file, is_writing: false }));
            // File content is appended to `output`, so move all that follows it to `rest`.
            let mut output = self.shared.output.borrow_mut();
            let at = output.at;
            self.output_after_file = output.bytes.split_off(at);
            (output.bytes, output.at) = (Vec::new(), 0);
        }
        let Some(overflow) = &mut *self.overflow else { return Ok(()) };
        overflow.is_writing = true;
        let (bytes, written, result) =
            overflow.file.append(&core, std::mem::take(&mut self.output_after_file), 0).await;
        overflow.is_writing = false;
        self.output_after_file = bytes;
        self.output_after_file.drain(..written);
        let is_empty = overflow.file.is_empty();
        if self.pressure() >= Pressure::High {
            self.output_after_file.shrink_to_fit();
        }
        if is_empty {
            // If the stream was reset, the next call returns the error.
            let _ = self.remove_spill_file();
        }
        self.update_memory();
        result
    }

    /// Removes the empty file and passes what follows it to the connection.
    fn remove_spill_file(&mut self) -> Result<(), Fault> {
        *self.overflow = None;
        let rest = std::mem::take(&mut self.output_after_file);
        self.shared.output.borrow_mut().end = self.end.take();
        self.enqueue(&rest)
    }

    /// Moves file content to the connection, as much as it accepts; returns true if nothing is left.
    fn try_drain(&mut self) -> Result<bool, Fault> {
        let core = self.conn.core.clone();
        loop {
            let Some(overflow) = &mut *self.overflow else { return Ok(true) };
            if overflow.is_writing || self.shared.is_reset() {
                return Err(Fault::Disconnected);
            }
            if overflow.file.unread() == 0 {
                self.remove_spill_file()?;
                return Ok(true);
            }
            let room = LOADED_BYTES_MAX.saturating_sub(self.shared.output.borrow().len());
            if room == 0 {
                self.shared.source.clear(WRITE);
                return Ok(false);
            }
            let Some((file, at, len)) = overflow.file.window(&core) else { return Ok(false) };
            let bytes = file::read_in_memory(file, at, len.min(room))?;
            overflow.file.sent(bytes.len() as u64);
            self.moved_bytes += bytes.len();
            self.enqueue(&bytes)?;
        }
    }

    /// Moves the whole file.
    async fn drain(&mut self) -> Result<(), Fault> {
        while !self.try_drain()? {
            if self.overflow.is_loading() {
                self.overflow.wait_loaded().await
            } else {
                self.wait_writable().await?
            }
        }
        Ok(())
    }
}

/// A file range being sent. Dropping it adds the bytes sent to `total` and cancels the rest.
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
        let (head, bytes) = (std::mem::take(&mut self.head), std::mem::take(&mut self.head_bytes));
        self.conn.machine.borrow_mut().take_back(head, bytes);
        self.conn.remove(&self.shared);
    }
}
