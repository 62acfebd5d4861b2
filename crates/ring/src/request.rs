//! A request held by a worker: reading its head and body, writing its response.

use std::fmt;
use std::rc::Rc;

#[cfg(not(loom))]
use crate::cost::{self, Measure, Meter};
use crate::error::StopReason;
use crate::lane;
use crate::pipe::{FrameKind, Reader, Writer};
use crate::response_part::{FilePart, next_stage};
use crate::shared::Slot;
use crate::sync::{AcqRel, Acquire, Relaxed, Release, SeqCst, fence};
use crate::words::{SlotPhase, SlotState, Tag};
use crate::worker_side::WorkerSide;

/// Abort reason of a request that was dropped before it was finished.
pub const DROPPED: u32 = 1;
/// Abort reason of a request whose memory is damaged.
pub const DAMAGED: u32 = 2;

/// Value of the slot's cancel word that means that the client has closed its sending side; the request is not
/// cancelled.
pub(crate) const CLIENT_CLOSED: u32 = u32::MAX;

/// Maximum number of head buffers kept for reuse.
const SPARE_MAX: usize = 64;
/// Maximum size of a head buffer kept for reuse, in bytes.
const SPARE_BYTES_MAX: usize = 16 * 1024;

/// The operations on a request that are possible without waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Readiness {
    /// Whether [`ClaimedRequest::try_read`] would return something.
    pub is_readable: bool,
    /// Whether the server has consumed some of the response since a write was refused.
    pub is_writable: bool,
    /// Whether the server has cancelled the request.
    pub is_cancelled: bool,
    /// Whether the client has closed its sending side. Most such clients are gone, but some wait for their
    /// answer: writes succeed.
    pub has_client_closed: bool,
}

/// A claimed request. Dropping it before [`ClaimedRequest::finish`] or [`ClaimedRequest::abort`] aborts it
/// with [`DROPPED`].
pub struct ClaimedRequest {
    side: Rc<WorkerSide>,
    thread: usize,
    tag: Tag,
    head: Vec<u8>,
    reader: Reader,
    writer: Writer,
    /// The last kind of frame that advanced the response.
    stage: FrameKind,
    /// Whether frames were written but not yet published.
    has_unpublished: bool,
    /// Whether the slot was returned to the server.
    is_released: bool,
    #[cfg(not(loom))]
    meter: Option<Meter>,
}

impl fmt::Debug for ClaimedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClaimedRequest")
            .field("thread", &self.thread)
            .field("tag", &self.tag)
            .finish_non_exhaustive()
    }
}

impl ClaimedRequest {
    /// Reads the head of a slot that was just claimed; aborts the request and returns `None` if the head is
    /// invalid.
    pub(crate) fn begin(side: &Rc<WorkerSide>, thread: usize, tag: Tag) -> Option<ClaimedRequest> {
        let head = side.spare_buffers.borrow_mut().pop().unwrap_or_default();
        let mut request = ClaimedRequest {
            side: Rc::clone(side),
            thread,
            tag,
            head,
            reader: Reader::new(),
            writer: Writer::new(),
            stage: FrameKind::Interim,
            has_unpublished: false,
            is_released: false,
            #[cfg(not(loom))]
            meter: None,
        };
        #[cfg(not(loom))]
        request.begin_measuring();
        let pipe = request.side.shared.slot(thread, tag.slot()).request();
        match request.reader.next(pipe) {
            Ok(Some(frame)) if frame.kind == FrameKind::Head => {
                request.reader.append(pipe, frame.unread as usize, &mut request.head);
                request.report_consumed();
                Some(request)
            }
            _ => {
                request.abort(DAMAGED);
                None
            }
        }
    }

    /// Records the time of the claim, and begins to measure the cost if the server asks for it.
    #[cfg(not(loom))]
    fn begin_measuring(&mut self) {
        let (claims, held) = self.side.claims.get();
        let claims = claims.wrapping_add(1);
        self.side.claims.set((claims, held + 1));
        let slot = self.slot();
        slot.cost()[0].store(cost::claimed_us(), Relaxed);
        let measure = Measure::of(slot.measure().load(Relaxed));
        // With another request at the same time, the thread's CPU time cannot be attributed.
        self.meter = Meter::new(if held == 0 { measure } else { Measure::Claim }, claims);
    }

    /// Records the cost.
    #[cfg(not(loom))]
    fn end_measuring(&self) {
        let (claims, held) = self.side.claims.get();
        self.side.claims.set((claims, held.saturating_sub(1)));
        if let Some(meter) = self.meter {
            let (cpu_us, memory_kib) = meter.words(claims);
            let [_, cpu_word, memory_word] = self.slot().cost();
            cpu_word.store(cpu_us, Relaxed);
            memory_word.store(memory_kib, Relaxed);
        }
    }

    fn slot(&self) -> Slot<'_> {
        self.side.shared.slot(self.thread, self.tag.slot())
    }

    /// The slot's index, for the tests' hostile worker.
    #[cfg(any(test, feature = "hostile"))]
    pub(crate) fn slot_index(&self) -> usize {
        self.tag.slot()
    }

    /// Leaves the slot as a killed worker would.
    #[cfg(any(test, feature = "hostile"))]
    pub(crate) fn abandon_as_killed(mut self) {
        self.is_released = true;
    }

    /// The request's head, as the server submitted it.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// The server's reason for cancelling the request, if it did.
    pub fn cancelled(&self) -> Option<u32> {
        Some(self.slot().cancelled().load(Acquire)).filter(|reason| ![0, CLIENT_CLOSED].contains(reason))
    }

    /// The operations that are possible without waiting, for event loops that hold many requests.
    pub fn readiness(&self) -> Readiness {
        let slot = self.slot();
        Readiness {
            is_readable: self.reader.has_data(slot.request()),
            is_writable: self.writer.has_progress(slot.response()),
            is_cancelled: self.cancelled().is_some(),
            has_client_closed: slot.cancelled().load(Acquire) == CLIENT_CLOSED,
        }
    }

    /// Reads a piece of the body, waiting for it; returns 0 at the end.
    ///
    /// # Errors
    /// [`StopReason::Cancelled`] once the body of a cancelled request is used up; [`StopReason::Broken`].
    pub fn read(&mut self, into: &mut [u8]) -> Result<usize, StopReason> {
        if let Some(count) = self.try_read(into)? {
            return Ok(count);
        }
        let side = Rc::clone(&self.side);
        side.sleep_until(|| self.try_read(into))
    }

    /// Reads a piece of the body: `None` if none is available yet, 0 at the end.
    ///
    /// # Errors
    /// As [`ClaimedRequest::read`].
    pub fn try_read(&mut self, into: &mut [u8]) -> Result<Option<usize>, StopReason> {
        if into.is_empty() {
            return Ok(Some(0));
        }
        let side = Rc::clone(&self.side);
        let pipe = side.shared.slot(self.thread, self.tag.slot()).request();
        loop {
            match self.reader.next(pipe).map_err(|_| StopReason::Broken)? {
                Some(frame) if frame.kind != FrameKind::Data => return Err(StopReason::Broken),
                Some(_) => {
                    let count = self.reader.copy(pipe, into);
                    self.report_consumed();
                    if count > 0 {
                        return Ok(Some(count));
                    }
                }
                None if self.reader.has_ended() => return Ok(Some(0)),
                None => {
                    return self.cancelled().map_or(Ok(None), |reason| Err(StopReason::Cancelled(reason)));
                }
            }
        }
    }

    /// Reports consumed bytes to the server, if enough have accumulated.
    fn report_consumed(&mut self) {
        let pipe = self.side.shared.slot(self.thread, self.tag.slot()).request();
        if !self.reader.has_ended() && self.reader.should_report(pipe) {
            self.reader.report(pipe);
            self.notify_server();
        }
    }

    /// Writes the response's head. It is sent with the first piece of the body, the end, or
    /// [`ClaimedRequest::flush`].
    ///
    /// # Errors
    /// See [`StopReason`].
    pub fn respond(&mut self, head: &[u8]) -> Result<(), StopReason> {
        self.write_frame(FrameKind::Head, head)
    }

    /// Non-blocking [`ClaimedRequest::respond`]: `false` if the server must first consume something.
    ///
    /// # Errors
    /// See [`StopReason`].
    pub fn try_respond(&mut self, head: &[u8]) -> Result<bool, StopReason> {
        self.try_write_frame(FrameKind::Head, head)
    }

    /// Writes and sends an interim head (1xx), which another head follows.
    ///
    /// # Errors
    /// See [`StopReason`].
    pub fn interim(&mut self, head: &[u8]) -> Result<(), StopReason> {
        self.write_frame(FrameKind::Interim, head)?;
        self.flush();
        Ok(())
    }

    /// Non-blocking [`ClaimedRequest::interim`]: `false` if the server must first consume something.
    ///
    /// # Errors
    /// See [`StopReason`].
    pub fn try_interim(&mut self, head: &[u8]) -> Result<bool, StopReason> {
        let is_written = self.try_write_frame(FrameKind::Interim, head)?;
        self.flush();
        Ok(is_written)
    }

    /// Writes the trailer fields.
    ///
    /// # Errors
    /// See [`StopReason`].
    pub fn trailers(&mut self, fields: &[u8]) -> Result<(), StopReason> {
        self.write_frame(FrameKind::Trailers, fields)
    }

    /// Non-blocking [`ClaimedRequest::trailers`]: `false` if the server must first consume something.
    ///
    /// # Errors
    /// See [`StopReason`].
    pub fn try_trailers(&mut self, fields: &[u8]) -> Result<bool, StopReason> {
        self.try_write_frame(FrameKind::Trailers, fields)
    }

    /// Writes a line for the server's log, truncated to the capacity of a slot.
    ///
    /// # Errors
    /// [`StopReason::Cancelled`], [`StopReason::Broken`].
    pub fn log(&mut self, level: u8, text: &[u8]) -> Result<(), StopReason> {
        let most = self.slot().response().payload_max() as usize - 1;
        let text = &text[..text.len().min(most)];
        self.write_frame(FrameKind::Log, &[&[level], text].concat())
    }

    /// Sends part of an open file as the next piece of the body, and waits until the server has taken the
    /// descriptor.
    ///
    /// # Errors
    /// See [`StopReason`].
    pub fn file(&mut self, file: FilePart) -> Result<(), StopReason> {
        if self.stage == FrameKind::Interim {
            return Err(StopReason::Order);
        }
        self.pass_descriptor(file)
    }

    /// Passes the client's connection to a socket instead of sending a response, and waits until the server
    /// has taken the descriptor. Only [`ClaimedRequest::finish`] may follow.
    ///
    /// # Errors
    /// See [`StopReason`]; [`StopReason::Cancelled`] if the server does not support this.
    pub fn hijack(&mut self, fd: i32) -> Result<(), StopReason> {
        if self.stage != FrameKind::Interim {
            return Err(StopReason::Order);
        }
        self.pass_descriptor(FilePart { fd, offset: 0, len: 0 })
    }

    fn pass_descriptor(&mut self, file: FilePart) -> Result<(), StopReason> {
        self.write_frame(FrameKind::File, &file.encode())?;
        self.flush();
        let side = Rc::clone(&self.side);
        side.sleep_until(|| {
            if self.writer.is_drained(self.slot().response()) {
                Ok(Some(()))
            } else {
                self.check_cancelled().map(|()| None)
            }
        })
    }

    /// Writes and sends a piece of the body, waiting if the client cannot keep up.
    ///
    /// # Errors
    /// See [`StopReason`].
    pub fn write(&mut self, body: &[u8]) -> Result<(), StopReason> {
        self.write_later(body)?;
        self.flush();
        Ok(())
    }

    /// Writes a piece of the body, which is sent with later data, with the end, or by
    /// [`ClaimedRequest::flush`].
    ///
    /// # Errors
    /// See [`StopReason`].
    pub fn write_later(&mut self, mut body: &[u8]) -> Result<(), StopReason> {
        while !body.is_empty() {
            let taken = match self.write_body(body)? {
                0 => {
                    self.flush();
                    let side = Rc::clone(&self.side);
                    side.sleep_until(|| self.write_body(body).map(|taken| (taken > 0).then_some(taken)))?
                }
                taken => taken,
            };
            body = &body[taken..];
        }
        Ok(())
    }

    /// Writes and sends as much of `body` as fits now; returns 0 if the server must first consume something.
    ///
    /// # Errors
    /// See [`StopReason`].
    pub fn try_write(&mut self, body: &[u8]) -> Result<usize, StopReason> {
        let taken = self.write_body(body)?;
        self.flush();
        Ok(taken)
    }

    /// Writes as much of `body` as fits now, and sends it only if some of `body` is left; returns 0 if the
    /// server must first consume something.
    ///
    /// # Errors
    /// See [`StopReason`].
    pub fn try_write_later(&mut self, body: &[u8]) -> Result<usize, StopReason> {
        let taken = self.write_body(body)?;
        if taken < body.len() {
            self.flush();
        }
        Ok(taken)
    }

    /// Sends everything written so far.
    pub fn flush(&mut self) {
        if std::mem::take(&mut self.has_unpublished) {
            self.writer.publish(self.slot().response(), false);
            self.notify_server();
        }
    }

    /// Ends the response and the request.
    ///
    /// # Errors
    /// [`StopReason::Order`] without a head; the request is then aborted.
    pub fn finish(mut self) -> Result<(), StopReason> {
        if self.stage == FrameKind::Interim && self.cancelled().is_none() {
            return Err(StopReason::Order);
        }
        self.release(SlotPhase::Done);
        Ok(())
    }

    /// Aborts the response with a `reason` chosen by the worker. Bytes that were already sent are not
    /// withdrawn.
    pub fn abort(mut self, reason: u32) {
        self.slot().reason().store(reason, Relaxed);
        self.release(SlotPhase::Aborted);
    }

    fn check_cancelled(&self) -> Result<(), StopReason> {
        self.cancelled().map_or(Ok(()), |reason| Err(StopReason::Cancelled(reason)))
    }

    fn write_body(&mut self, body: &[u8]) -> Result<usize, StopReason> {
        self.check_cancelled()?;
        self.stage = next_stage(self.stage, FrameKind::Data).map_err(|_| StopReason::Order)?;
        let pipe = self.side.shared.slot(self.thread, self.tag.slot()).response();
        let taken = self.writer.write_body(pipe, body).map_err(|_| StopReason::Broken)?;
        self.has_unpublished |= taken > 0;
        Ok(taken)
    }

    /// Writes one indivisible frame, waiting for room.
    fn write_frame(&mut self, kind: FrameKind, payload: &[u8]) -> Result<(), StopReason> {
        if !self.try_write_frame(kind, payload)? {
            let side = Rc::clone(&self.side);
            side.sleep_until(|| {
                self.try_write_frame(kind, payload).map(|is_written| is_written.then_some(()))
            })?;
        }
        Ok(())
    }

    /// Writes one indivisible frame. Returns `false` if there is no room; earlier frames are then sent.
    fn try_write_frame(&mut self, kind: FrameKind, payload: &[u8]) -> Result<bool, StopReason> {
        self.check_cancelled()?;
        let stage = next_stage(self.stage, kind).map_err(|_| StopReason::Order)?;
        let pipe = self.side.shared.slot(self.thread, self.tag.slot()).response();
        let want = u32::try_from(payload.len()).map_err(|_| StopReason::TooLarge)?;
        if want > pipe.payload_max() {
            return Err(StopReason::TooLarge);
        }
        let room = self.writer.payload_room(pipe, want).map_err(|_| StopReason::Broken)?;
        if room.is_none_or(|room| room < want) {
            self.flush();
            return Ok(false);
        }
        self.writer.write_frame(pipe, kind, payload);
        self.has_unpublished = true;
        self.stage = stage;
        Ok(true)
    }

    /// Leaves a notice for the server thread unless an unread one exists.
    fn notify_server(&self) {
        if self.slot().notice_flag().swap(1, AcqRel) == 0 {
            self.push(self.tag);
        }
    }

    fn push(&self, tag: Tag) {
        let WorkerSide { shared, worker_slot, lane_positions: lanes, .. } = &*self.side;
        let lane = &lanes[self.thread];
        let mut position = lane.get();
        lane::push(shared, self.thread, *worker_slot, &mut position, tag);
        lane.set(position);
        // Publish, fence, check for a sleeper; the server announces that it sleeps, fences, and checks again.
        fence(SeqCst);
        shared.ring_thread(self.thread);
    }

    /// Returns the slot to the server: it must not be accessed after the state word is written.
    fn release(&mut self, phase: SlotPhase) {
        self.is_released = true;
        #[cfg(not(loom))]
        self.end_measuring();
        let slot = self.slot();
        if self.has_unpublished {
            self.writer.publish(slot.response(), false);
        }
        slot.state().store(SlotState::new(phase, self.side.worker_slot, self.tag.generation()).0, Release);
        self.push(self.tag.finished());
    }
}

impl Drop for ClaimedRequest {
    fn drop(&mut self) {
        if !self.is_released {
            self.slot().reason().store(DROPPED, Relaxed);
            self.release(SlotPhase::Aborted);
        }
        let mut head = std::mem::take(&mut self.head);
        let mut spare = self.side.spare_buffers.borrow_mut();
        if spare.len() < SPARE_MAX && head.capacity() <= SPARE_BYTES_MAX {
            head.clear();
            spare.push(head);
        }
    }
}
