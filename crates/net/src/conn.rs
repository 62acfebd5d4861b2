//! One HTTP/1 connection while it is busy: its bytes in, its bytes out, and the response under way.

use std::cell::{Cell, RefCell};
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;

use http::encode::Outgoing;
use http::machine::Step;
use http::{EmptySegments, Fields, Framing, Reject, Status, Version};

use crate::address::{Client, Peer};
use crate::compress::{COMPRESSED_BYTES, COMPRESSED_WEIGHT, Compressing, Compression};
use crate::core::Core;
use crate::counters::Counters;
use crate::fault::Fault;
use crate::memory::Pressure;
use crate::options::{Limits, Timeouts};
use crate::page::{ErrorPages, FieldEdits};
use crate::preface::Told;
use crate::spill::Overflow;
use crate::stream::Stream;
use crate::work::{Work, Works};

/// Bytes collected before they are written without waiting for the end of the tick's work.
pub(crate) const OUT_BYTES_MAX: usize = 64 * 1024;
/// A piece of a body at least this large is written from where it stands instead of being copied first.
const COPIED_BYTES_MAX: usize = 16 * 1024;
/// Bytes of a request body that a handler left unread and that are worth reading to keep the connection.
const DISCARD_BYTES_MAX: u64 = 64 * 1024;
/// One sendfile call.
const SENDFILE_BYTES_MAX: u64 = 1024 * 1024;
/// Bytes that a connection moves before others get their turn.
const TURN_BYTES_MAX: usize = 256 * 1024;
/// What a request weighs against [`TURN_BYTES_MAX`], beside its bytes.
pub(crate) const REQUEST_WEIGHT_BYTES: usize = 4 * 1024;
/// What a piece of a body weighs at least: in the smallest chunks, what frames it costs more than what it holds.
pub const PIECE_WEIGHT_BYTES: usize = 64;

/// What all connections of one core share.
pub(crate) struct Context {
    pub(crate) core: Core,
    pub(crate) limits: Limits,
    pub(crate) timeouts: Timeouts,
    pub(crate) works: Works,
    pub(crate) counters: Arc<Counters>,
    /// The server is stopping: answers say `Connection: close`.
    pub(crate) draining: Cell<bool>,
    pub(crate) seats: Seats,
    /// How many responses are being compressed.
    pub(crate) encoders: Rc<Cell<usize>>,
}

/// How many connections a core may hold, and who waits for one to end.
pub(crate) struct Seats {
    pub(crate) max: usize,
    pub(crate) taken: Cell<usize>,
    pub(crate) waiting: RefCell<Vec<Rc<crate::source::Source>>>,
}

impl Seats {
    pub(crate) fn new(max: usize) -> Seats {
        Seats { max, taken: Cell::new(0), waiting: RefCell::default() }
    }

    /// Whether newcomers wait for a seat: then nobody keeps one between two requests.
    pub(crate) fn crowded(&self) -> bool {
        !self.waiting.borrow().is_empty()
    }
}

/// What a connection holds while nothing happens on it.
const PARKED_BYTES: usize = 512;
/// What one holds while it is busy, beside its buffers: its future above all.
const BUSY_BYTES: usize = 4 * 1024;
/// [`OUT_BYTES_MAX`] while memory is short.
const OUT_BYTES_MAX_SHORT: usize = 4 * 1024;
/// The most that a client may go without taking a byte of a response while memory is critically short.
const WRITE_MS_SHORT: u64 = 5_000;
/// How often a connection that waits for its client to read looks whether memory is short by now.
const LOOK_MS: u64 = 2_000;

/// A connection's seat, and what it holds of memory: given back when it is dropped.
pub(crate) struct Seat {
    context: Rc<Context>,
    held_bytes: Cell<usize>,
}

impl Seat {
    pub(crate) fn take(context: &Rc<Context>) -> Seat {
        let seats = &context.seats;
        seats.taken.set(seats.taken.get() + 1);
        context.counters.connections_open.set(seats.taken.get() as u64);
        let seat = Seat { context: context.clone(), held_bytes: Cell::new(0) };
        seat.hold(0);
        seat
    }

    pub(crate) fn context(&self) -> &Rc<Context> {
        &self.context
    }

    /// From now on the connection holds so many bytes, beside what every one does.
    pub(crate) fn hold(&self, bytes: usize) {
        let after = bytes + PARKED_BYTES;
        let before = self.held_bytes.replace(after);
        if before != after {
            self.context.core.memory().change(before, after);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.context.core.memory().change(self.held_bytes.get(), 0);
        let seats = &self.context.seats;
        seats.taken.set(seats.taken.get() - 1);
        self.context.counters.connections_open.set(seats.taken.get() as u64);
        if seats.taken.get() < seats.max && !seats.waiting.borrow().is_empty() {
            for source in seats.waiting.borrow_mut().drain(..) {
                self.context.core.nudge(&source);
            }
        }
    }
}

/// How far the response of the current request is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reply {
    /// No head yet.
    #[default]
    Unsent,
    /// The head is out; the body ends as the framing says, a length counting down.
    Body(Framing),
    /// All of it is out.
    Done,
}

/// What there is of a request's body now.
pub(crate) enum Piece {
    /// Content, at this place of the input.
    Data(usize, usize),
    /// It has ended.
    End,
    /// Nothing until the client sends more.
    Pending,
}

/// A busy connection.
pub(crate) struct Conn {
    // Before the seat: the socket closes, then the seat is free.
    pub(crate) stream: Stream,
    pub(crate) seat: Seat,
    pub(crate) peer: Peer,
    /// What was told of it ahead of the first request.
    pub(crate) told: Option<Box<Told>>,
    /// Who sends the current request.
    pub(crate) client: Client,
    pub(crate) served: u32,
    pub(crate) work: Box<Work>,
    /// What a slow client has not taken, in a file: it comes before what `work` holds to send.
    pub(crate) overflow: Option<Box<Overflow>>,
    pub(crate) reply: Reply,
    pub(crate) status: Status,
    pub(crate) body_sent: u64,
    pub(crate) keep_alive: bool,
    pub(crate) started_ms: u64,
    /// `100 Continue` is due before the body is read.
    pub(crate) continue_due: bool,
    /// The most content that the body may have, until it begins to be read: then the machine knows it.
    pub(crate) body_limit: Option<u64>,
    /// What the handler has said of the response's fields, and of the pages for errors. They stay when it fails: the answer to
    /// that is the site's too.
    pub(crate) edits: Option<Rc<FieldEdits>>,
    pub(crate) pages: Option<Rc<ErrorPages>>,
    /// What becomes of empty segments in the path of this request.
    pub(crate) empty_segments: EmptySegments,
    /// Which responses are compressed; and that of the response under way, where it is.
    pub(crate) compression: Option<Rc<Compression>>,
    pub(crate) compressing: Option<Box<Compressing>>,
    /// Progress timeouts of this request.
    pub(crate) body_ms: u64,
    pub(crate) write_ms: u64,
    /// What it has moved since others had their turn.
    pub(crate) moved_bytes: usize,
    /// What the handler holds for the current request.
    pub(crate) handler_bytes: usize,
}

impl Conn {
    pub(crate) fn context(&self) -> &Context {
        self.seat.context()
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.stream.core().now_ms()
    }

    // ---- memory ----

    pub(crate) fn pressure(&self) -> Pressure {
        self.stream.core().memory().pressure()
    }

    /// Counts what the connection holds now.
    pub(crate) fn weigh(&self) {
        let encoder_bytes = self.compressing.as_ref().map_or(0, |compressing| compressing.weight_bytes);
        self.seat.hold(BUSY_BYTES + self.work.weight_bytes() + encoder_bytes + self.handler_bytes);
    }

    /// Before a wait that may be long: gives back what it can where memory is short, and counts the rest.
    pub(crate) fn settle(&mut self) {
        if self.pressure() >= Pressure::High {
            self.work.trim();
        }
        self.weigh();
    }

    /// Bytes collected before they are written without waiting for the end of the tick's work.
    pub(crate) fn out_bytes_max(&self) -> usize {
        if self.pressure() >= Pressure::High { OUT_BYTES_MAX_SHORT } else { OUT_BYTES_MAX }
    }

    /// Milliseconds that the client may take no byte of the response.
    pub(crate) fn patience_ms(&self) -> u64 {
        if self.pressure() >= Pressure::Critical { self.write_ms.min(WRITE_MS_SHORT) } else { self.write_ms }
    }

    /// A request head is whole: prepares for its response.
    pub(crate) fn begin_request(&mut self) {
        let head = &self.work.machine.head;
        let (limits, timeouts) = (self.context().limits, self.context().timeouts);
        let max = limits.requests_per_connection_max;
        self.keep_alive = head.keep_alive && (max == 0 || self.served + 1 < max);
        // A client that sends without having been told to does not wait to be told.
        self.continue_due = head.expects_continue && self.work.input.is_empty();
        self.forget_response();
        self.empty_segments = EmptySegments::Merge;
        self.body_limit = Some(limits.body_bytes_max);
        (self.body_ms, self.write_ms) = (timeouts.body_ms, timeouts.write_ms);
        self.client = self.direct();
        self.started_ms = self.now_ms();
    }

    /// Nothing of the response before it holds for the next one.
    pub(crate) fn forget_response(&mut self) {
        (self.edits, self.pages, self.compression, self.compressing) = (None, None, None, None);
        (self.reply, self.body_sent) = (Reply::Unsent, 0);
    }

    /// Who sends requests, as long as nobody says more.
    pub(crate) fn direct(&self) -> Client {
        let secure = self.told.as_ref().is_some_and(|told| told.secure);
        Client::direct(self.peer, secure)
    }

    /// A deadline that far from now.
    pub(crate) fn after_ms(&self, ms: u64) -> u64 {
        self.now_ms().saturating_add(ms)
    }

    /// Counts bytes moved; after many of them others get their turn, however fast this client is.
    pub(crate) async fn moved(&mut self, bytes: usize) {
        self.moved_bytes += bytes;
        if self.moved_bytes >= TURN_BYTES_MAX {
            self.moved_bytes = 0;
            self.stream.core().yield_now().await;
        }
    }

    // ---- bytes out ----

    /// Adds to what will be written; writes when that has grown large.
    pub(crate) async fn push(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        if self.work.out.len() + bytes.len() <= self.out_bytes_max() {
            self.work.out.extend_from_slice(bytes);
            self.weigh();
            return Ok(());
        }
        self.write_out(bytes, false).await
    }

    /// Writes everything collected so far.
    pub(crate) async fn flush(&mut self) -> Result<(), Fault> {
        if self.work.out.is_empty() && !self.overflows() {
            return Ok(());
        }
        self.write_out(b"", false).await
    }

    /// Writes what was collected, then `bytes`. With `more`, the kernel holds a last partial packet back.
    /// Dropped half-way, it has forgotten how much of `bytes` went out, but not of what was collected.
    async fn write_out(&mut self, bytes: &[u8], more: bool) -> Result<(), Fault> {
        if self.overflows() {
            // Boxed, as it is seldom.
            Box::pin(self.drain()).await?;
        }
        let mut bytes_at = 0;
        loop {
            let (out, rest) = (&self.work.out[self.work.out_at..], &bytes[bytes_at..]);
            let sent = match (out.is_empty(), rest.is_empty()) {
                (true, true) => break,
                (false, true) => self.stream.try_write(&[out], more)?,
                (true, false) => self.stream.try_write(&[rest], more)?,
                (false, false) => self.stream.try_write(&[out, rest], more)?,
            };
            let of_out = sent.min(out.len());
            self.work.out_at += of_out;
            bytes_at += sent - of_out;
            match sent {
                0 => self.wait_writable().await?,
                sent => self.moved(sent).await,
            }
        }
        self.work.out.clear();
        self.work.out_at = 0;
        Ok(())
    }

    /// Writes what the client takes now; true where nothing is left.
    pub(crate) fn try_flush(&mut self) -> Result<bool, Fault> {
        if self.overflows() && !self.try_drain()? {
            return Ok(false);
        }
        while self.backlog() > 0 {
            let sent = self.stream.try_write(&[&self.work.out[self.work.out_at..]], false)?;
            if sent == 0 {
                return Ok(false);
            }
            self.work.out_at += sent;
        }
        self.work.out.clear();
        self.work.out_at = 0;
        Ok(true)
    }

    /// Bytes collected and not written yet.
    pub(crate) fn backlog(&self) -> usize {
        self.work.out.len() - self.work.out_at
    }

    /// Adds to what will be written, without waiting: a large piece goes out from where it stands, as far as the
    /// client takes it now; the rest is kept, however much that is.
    fn offer(&mut self, mut bytes: &[u8]) -> Result<(), Fault> {
        if self.backlog() + bytes.len() > COPIED_BYTES_MAX && !self.overflows() {
            let out = &self.work.out[self.work.out_at..];
            let sent = match out.is_empty() {
                true => self.stream.try_write(&[bytes], false)?,
                false => self.stream.try_write(&[out, bytes], false)?,
            };
            let of_out = sent.min(out.len());
            self.work.out_at += of_out;
            bytes = &bytes[sent - of_out..];
        }
        if self.work.out_at >= COPIED_BYTES_MAX || self.backlog() == 0 {
            self.work.out.drain(..self.work.out_at);
            self.work.out_at = 0;
        }
        self.work.out.extend_from_slice(bytes);
        self.weigh();
        Ok(())
    }

    pub(crate) async fn wait_writable(&mut self) -> Result<(), Fault> {
        let since_ms = self.now_ms();
        loop {
            self.settle();
            let until_ms = since_ms.saturating_add(self.patience_ms());
            match self.stream.writable(until_ms.min(self.after_ms(LOOK_MS))).await {
                Err(Fault::Timeout) if self.now_ms() < since_ms.saturating_add(self.patience_ms()) => {}
                done => return done,
            }
        }
    }

    /// Sends `len` bytes of a file, after what was collected.
    async fn send_file(&mut self, file: BorrowedFd<'_>, mut at: u64, len: u64) -> Result<(), Fault> {
        let end = at + len;
        self.write_out(b"", len > 0).await?;
        while at < end {
            let part = (end - at).min(SENDFILE_BYTES_MAX) as usize;
            match self.stream.try_sendfile(file, &mut at, part)? {
                Some(0) => return Err(Fault::Broken("file shrank while it was sent")),
                Some(sent) => {
                    // Not all of it at once: the client may go away in the middle.
                    self.body_sent += sent as u64;
                    self.moved(sent).await;
                }
                None => self.wait_writable().await?,
            }
        }
        Ok(())
    }

    // ---- bytes in ----

    /// Reads more of a head into the input. False where nothing is there now; `None` at the end.
    pub(crate) fn fill_head(&mut self) -> Result<Option<bool>, Fault> {
        let head_bytes_max = self.context().limits.head.head_bytes_max;
        let read = self.stream.try_read(self.work.input.head_room(head_bytes_max))?;
        Ok(match read {
            Some(0) => None,
            Some(len) => {
                self.work.input.filled(len);
                self.weigh();
                Some(true)
            }
            None => Some(false),
        })
    }

    /// The place of the next piece of the request's body in the input; `None` at its end.
    pub(crate) async fn body_piece(&mut self) -> Result<Option<(usize, usize)>, Fault> {
        loop {
            match self.try_body_piece()? {
                Piece::Data(start, end) => {
                    self.moved((end - start).max(PIECE_WEIGHT_BYTES)).await;
                    return Ok(Some((start, end)));
                }
                Piece::End => return Ok(None),
                Piece::Pending => {
                    self.flush().await?;
                    self.settle();
                    self.stream.readable(self.after_ms(self.body_ms)).await?;
                }
            }
        }
    }

    /// Sets the most content that the body may have, as long as nobody has begun to read it.
    pub(crate) fn limit_body(&mut self, bytes_max: u64) -> Result<(), Reject> {
        if self.body_limit.is_some() {
            self.body_limit = Some(bytes_max);
            self.work.machine.limit_body(bytes_max)?;
        }
        Ok(())
    }

    /// The same without waiting. Before a wait, what was collected must be flushed: it may hold the
    /// `100 Continue` that the client waits for.
    pub(crate) fn try_body_piece(&mut self) -> Result<Piece, Fault> {
        if let Some(bytes_max) = self.body_limit {
            self.work.machine.limit_body(bytes_max)?;
            self.body_limit = None;
        }
        loop {
            let base = self.work.input.at;
            let limits = self.context().limits.head;
            let fed = self.work.machine.feed(self.work.input.rest(), &limits)?;
            self.work.input.at += fed.consumed;
            let piece = match fed.step {
                Step::Data(span) => Some(Piece::Data(base + span.start(), base + span.end())),
                Step::End => Some(Piece::End),
                Step::Head | Step::NeedMore => None,
            };
            if let Some(piece) = piece {
                self.continue_due = false;
                return Ok(piece);
            }
            if !self.fill_body()? {
                if std::mem::take(&mut self.continue_due) && self.reply == Reply::Unsent {
                    self.work.out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
                }
                return Ok(Piece::Pending);
            }
        }
    }

    /// Reads more of the body into the input. False where nothing is there now.
    fn fill_body(&mut self) -> Result<bool, Fault> {
        let head_len = self.work.machine.head.len;
        let is_short = self.pressure() >= Pressure::High;
        let read = self.stream.try_read(self.work.input.body_room(head_len, is_short))?;
        self.weigh();
        match read {
            Some(0) => Err(Fault::Reject(Reject::bad("body cut short"))),
            Some(len) => {
                self.work.input.filled(len);
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Whether the client still waits for `100 Continue`, and has not begun to send the body all the same.
    pub(crate) fn awaits_continue(&mut self) -> Result<bool, Fault> {
        self.continue_due = self.continue_due && !self.fill_body()?;
        Ok(self.continue_due)
    }

    /// Reads what a handler left of the body, if that is little. False where it is too much to be worth it.
    pub(crate) async fn discard_body(&mut self) -> Result<bool, Fault> {
        let mut discarded = 0;
        while !self.work.machine.body_ended() {
            let remaining = self.work.machine.body().and_then(http::body::Body::remaining).unwrap_or(0);
            if self.awaits_continue()? || discarded + remaining > DISCARD_BYTES_MAX {
                return Ok(false);
            }
            if let Some((start, end)) = self.body_piece().await? {
                discarded += (end - start) as u64;
            }
        }
        Ok(true)
    }

    // ---- the response ----

    /// Body bytes of the response.
    pub(crate) async fn send_body(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        if self.compressing.is_none() {
            return self.send_framed(bytes).await;
        }
        for piece in bytes.chunks(COMPRESSED_BYTES) {
            let compressed = self.compress(piece)?;
            self.send_framed(&compressed).await?;
            self.moved(0).await;
        }
        Ok(())
    }

    /// A piece of the body as the encoder of the response makes it.
    fn compress(&mut self, piece: &[u8]) -> Result<Vec<u8>, Fault> {
        self.moved_bytes += piece.len() * COMPRESSED_WEIGHT;
        match &mut self.compressing {
            Some(compressing) => compressing.write(piece),
            None => Ok(piece.to_vec()),
        }
    }

    /// Hands on what the encoder holds back, where the client must get it before the handler waits.
    pub(crate) fn flush_encoder(&mut self) -> Result<(), Fault> {
        match &mut self.compressing {
            None => Ok(()),
            Some(compressing) => {
                let compressed = compressing.flush()?;
                self.offer_framed(&compressed)
            }
        }
    }

    /// Body bytes of the response, framed.
    async fn send_framed(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let Reply::Body(framing) = self.reply else {
            return Err(Fault::Broken("body written outside a response"));
        };
        if bytes.is_empty() || framing == Framing::None {
            return Ok(());
        }
        self.body_sent += bytes.len() as u64;
        match framing {
            Framing::None => Ok(()),
            Framing::Length(left) => {
                let left = less(left, bytes.len() as u64)?;
                self.push(bytes).await?;
                self.reply = Reply::Body(left);
                Ok(())
            }
            Framing::UntilClose => self.push(bytes).await,
            Framing::Chunked => {
                http::encode::chunk_start(&mut self.work.out, bytes.len());
                self.push(bytes).await?;
                self.work.out.extend_from_slice(http::encode::CHUNK_END);
                Ok(())
            }
        }
    }

    /// Body bytes of the response, without waiting.
    pub(crate) fn offer_body(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        if self.compressing.is_none() {
            return self.offer_framed(bytes);
        }
        for piece in bytes.chunks(COMPRESSED_BYTES) {
            let compressed = self.compress(piece)?;
            self.offer_framed(&compressed)?;
        }
        Ok(())
    }

    /// Body bytes of the response, framed, without waiting.
    fn offer_framed(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let Reply::Body(framing) = self.reply else {
            return Err(Fault::Broken("body written outside a response"));
        };
        if bytes.is_empty() || framing == Framing::None {
            return Ok(());
        }
        self.body_sent += bytes.len() as u64;
        match framing {
            Framing::None | Framing::UntilClose => self.offer(bytes),
            Framing::Length(left) => {
                let left = less(left, bytes.len() as u64)?;
                self.offer(bytes)?;
                self.reply = Reply::Body(left);
                Ok(())
            }
            Framing::Chunked => {
                http::encode::chunk_start(&mut self.work.out, bytes.len());
                self.offer(bytes)?;
                self.work.out.extend_from_slice(http::encode::CHUNK_END);
                Ok(())
            }
        }
    }

    /// A range of a file as body bytes of the response.
    pub(crate) async fn send_file_body(
        &mut self,
        file: BorrowedFd<'_>,
        at: u64,
        len: u64,
    ) -> Result<(), Fault> {
        match self.reply {
            Reply::Body(Framing::None) => Ok(()),
            _ if self.compressing.is_some() => self.compress_file(file, at, len).await,
            Reply::Body(Framing::Length(left)) => {
                let left = less(left, len)?;
                self.send_file(file, at, len).await?;
                self.reply = Reply::Body(left);
                Ok(())
            }
            _ => Err(Fault::Broken("a file needs an announced length")),
        }
    }

    /// A range of a file, compressed. Reading it may wait for the disk, so that is done off the event loop.
    async fn compress_file(&mut self, file: BorrowedFd<'_>, mut at: u64, len: u64) -> Result<(), Fault> {
        let end = at + len;
        while at < end {
            let owned = file.try_clone_to_owned()?;
            let wanted = (end - at).min(OUT_BYTES_MAX as u64) as usize;
            let core = self.stream.core().clone();
            let read = core.offload(move || {
                let mut bytes = vec![0; wanted];
                let len = rustix::io::retry_on_intr(|| rustix::io::pread(&owned, &mut bytes[..], at))?;
                bytes.truncate(len);
                Ok::<_, rustix::io::Errno>(bytes)
            });
            let bytes = read.await.map_err(|errno| Fault::Io(errno.into()))?;
            if bytes.is_empty() {
                return Err(Fault::Broken("file shrank while it was sent"));
            }
            at += bytes.len() as u64;
            self.send_body(&bytes).await?;
        }
        Ok(())
    }

    /// Whether the connection may serve another request after this one.
    pub(crate) fn may_keep_alive(&self) -> bool {
        let context = self.context();
        // A client that still waits for its 100 will not get it now, and whether it sends the body is anybody's guess.
        self.keep_alive && !self.continue_due && !context.draining.get() && !context.seats.crowded()
    }

    /// The response's head is on its way.
    pub(crate) fn begun(&mut self, status: Status, outgoing: Outgoing) {
        self.keep_alive = outgoing.keep_alive;
        self.status = status;
        self.reply = Reply::Body(outgoing.framing);
        if outgoing.framing == Framing::UntilClose {
            // Its end is the connection's. Whatever ends the connection before the response is whole (a panic,
            // the end of the process) must not look like that.
            self.stream.reset_on_close(true);
        }
    }

    /// Ends the response: nothing more of its body comes.
    pub(crate) fn end_response(&mut self, trailers: &Fields) -> Result<(), Fault> {
        if let Some(compressing) = self.compressing.take() {
            self.offer_framed(&compressing.finish()?)?;
        }
        match self.reply {
            Reply::Unsent => return Err(Fault::Broken("no response")),
            Reply::Body(Framing::Length(_)) => return Err(Fault::Broken("less body written than announced")),
            Reply::Body(Framing::Chunked) => http::encode::last_chunk(&mut self.work.out, trailers),
            Reply::Body(Framing::None | Framing::UntilClose) | Reply::Done => {}
        }
        self.reply = Reply::Done;
        Ok(())
    }

    /// The version to answer in kind: a head that was refused may not have one.
    pub(crate) fn version(&self) -> Version {
        self.work.machine.head.version
    }
}

/// What an announced length is after `len` bytes of it.
fn less(left: u64, len: u64) -> Result<Framing, Fault> {
    match left.checked_sub(len) {
        None => Err(Fault::Broken("more body written than announced")),
        Some(0) => Ok(Framing::None),
        Some(left) => Ok(Framing::Length(left)),
    }
}
