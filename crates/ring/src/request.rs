//! A request in a worker's hands: its head and body to read, its response to write.

use std::fmt;
use std::rc::Rc;

#[cfg(not(loom))]
use crate::cost::{self, Measure, Meter};
use crate::error::StopReason;
use crate::lane;
use crate::part::{FilePart, follow};
use crate::pipe::{FrameKind, Reader, Writer};
use crate::shared::Slot;
use crate::side::Side;
use crate::sync::{AcqRel, Acquire, Relaxed, Release, SeqCst, fence};
use crate::words::{SlotPhase, SlotState, Tag};

/// Reason of a request aborted because it was dropped unfinished.
pub const DROPPED: u32 = 1;
/// Reason of a request aborted because its memory is damaged.
pub const DAMAGED: u32 = 2;

/// In the slot's word for the reason of a cancel: nothing is cancelled, but the client has closed its sending side.
pub(crate) const CLIENT_CLOSED: u32 = u32::MAX;

/// Heads kept for the next request; more than that were a burst.
const SPARE_MAX: usize = 64;
/// A kept head's buffer is not larger than this.
const SPARE_BYTES_MAX: usize = 16 * 1024;

/// What can be done with a request without waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct News {
    /// [`ClaimedRequest::try_read`] would not come back empty-handed.
    pub readable: bool,
    /// The server took something of the response since a write was refused.
    pub writable: bool,
    /// The server lost interest.
    pub cancelled: bool,
    /// The client has closed its sending side. Most clients that do are gone, some wait for their answer: writes succeed.
    pub client_closed: bool,
}

/// A claimed request. Dropped before [`ClaimedRequest::finish`] or [`ClaimedRequest::abort`], it is aborted with [`DROPPED`].
pub struct ClaimedRequest {
    side: Rc<Side>,
    thread: usize,
    tag: Tag,
    head: Vec<u8>,
    reader: Reader,
    writer: Writer,
    /// The last kind of frame that moved the response on.
    stage: FrameKind,
    /// Whether frames were written since the last publishing.
    unpublished: bool,
    /// Whether the slot was given back.
    released: bool,
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
    /// Reads the head of a slot just claimed; aborts it and returns `None` where there is none to read.
    pub(crate) fn begin(side: &Rc<Side>, thread: usize, tag: Tag) -> Option<ClaimedRequest> {
        let head = side.spare.borrow_mut().pop().unwrap_or_default();
        let mut request = ClaimedRequest {
            side: Rc::clone(side),
            thread,
            tag,
            head,
            reader: Reader::new(),
            writer: Writer::new(),
            stage: FrameKind::Interim,
            unpublished: false,
            released: false,
            #[cfg(not(loom))]
            meter: None,
        };
        #[cfg(not(loom))]
        request.begin_measuring();
        let pipe = request.side.shared.slot(thread, tag.slot()).request();
        match request.reader.next(pipe) {
            Ok(Some(frame)) if frame.kind == FrameKind::Head => {
                request.reader.append(pipe, frame.rest as usize, &mut request.head);
                request.report();
                Some(request)
            }
            _ => {
                request.abort(DAMAGED);
                None
            }
        }
    }

    /// Writes down when it was claimed, and begins to measure what it costs, if the server asks for that.
    #[cfg(not(loom))]
    fn begin_measuring(&mut self) {
        let (claims, held) = self.side.claims.get();
        let claims = claims.wrapping_add(1);
        self.side.claims.set((claims, held + 1));
        let slot = self.slot();
        slot.cost()[0].store(cost::claimed_us(), Relaxed);
        let measure = Measure::of(slot.measure().load(Relaxed));
        // Beside another request nobody knows which one the thread works for.
        self.meter = Meter::new(if held == 0 { measure } else { Measure::Claim }, claims);
    }

    /// Writes down what it has cost.
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

    /// For the tests' hostile worker, which scribbles on what it holds.
    #[cfg(any(test, feature = "hostile"))]
    pub(crate) fn slot_index(&self) -> usize {
        self.tag.slot()
    }

    /// Leaves the slot as a killed worker does.
    #[cfg(any(test, feature = "hostile"))]
    pub(crate) fn vanish(mut self) {
        self.released = true;
    }

    /// The request's head, as the server submitted it.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// Why the server lost interest, if it did.
    pub fn cancelled(&self) -> Option<u32> {
        Some(self.slot().cancelled().load(Acquire)).filter(|reason| ![0, CLIENT_CLOSED].contains(reason))
    }

    /// What can be done without waiting; for event loops that hold many requests.
    pub fn news(&self) -> News {
        let slot = self.slot();
        News {
            readable: self.reader.has_news(slot.request()),
            writable: self.writer.has_news(slot.response()),
            cancelled: self.cancelled().is_some(),
            client_closed: slot.cancelled().load(Acquire) == CLIENT_CLOSED,
        }
    }

    /// Reads a piece of the body, waiting until there is one; 0 at its end.
    ///
    /// # Errors
    /// [`StopReason::Cancelled`] once nothing is left of a cancelled request's body; [`StopReason::Broken`].
    pub fn read(&mut self, into: &mut [u8]) -> Result<usize, StopReason> {
        if let Some(count) = self.try_read(into)? {
            return Ok(count);
        }
        let side = Rc::clone(&self.side);
        side.sleep_until(|| self.try_read(into))
    }

    /// Reads a piece of the body: `None` if none is there yet, 0 at its end.
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
                    self.report();
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

    /// Reports to the server what was consumed, if the server waits for it.
    fn report(&mut self) {
        let pipe = self.side.shared.slot(self.thread, self.tag.slot()).request();
        if !self.reader.has_ended() && self.reader.owes(pipe) {
            self.reader.report(pipe);
            self.notice();
        }
    }

    /// Writes the response's head. It is sent with the first piece of the body, the end, or [`ClaimedRequest::flush`].
    ///
    /// # Errors
    /// See [`StopReason`].
    pub fn respond(&mut self, head: &[u8]) -> Result<(), StopReason> {
        self.whole(FrameKind::Head, head)
    }

    /// As [`ClaimedRequest::respond`], without waiting: `false` where the server has to take something first.
    ///
    /// # Errors
    /// See [`StopReason`].
    pub fn try_respond(&mut self, head: &[u8]) -> Result<bool, StopReason> {
        self.try_whole(FrameKind::Head, head)
    }

    /// Writes and sends a head that another one follows (1xx).
    ///
    /// # Errors
    /// See [`StopReason`].
    pub fn interim(&mut self, head: &[u8]) -> Result<(), StopReason> {
        self.whole(FrameKind::Interim, head)?;
        self.flush();
        Ok(())
    }

    /// As [`ClaimedRequest::interim`], without waiting: `false` where the server has to take something first.
    ///
    /// # Errors
    /// See [`StopReason`].
    pub fn try_interim(&mut self, head: &[u8]) -> Result<bool, StopReason> {
        let is_written = self.try_whole(FrameKind::Interim, head)?;
        self.flush();
        Ok(is_written)
    }

    /// Writes the fields that follow the body.
    ///
    /// # Errors
    /// See [`StopReason`].
    pub fn trailers(&mut self, fields: &[u8]) -> Result<(), StopReason> {
        self.whole(FrameKind::Trailers, fields)
    }

    /// As [`ClaimedRequest::trailers`], without waiting: `false` where the server has to take something first.
    ///
    /// # Errors
    /// See [`StopReason`].
    pub fn try_trailers(&mut self, fields: &[u8]) -> Result<bool, StopReason> {
        self.try_whole(FrameKind::Trailers, fields)
    }

    /// Writes a line for the server's log, cut to what a slot can hold.
    ///
    /// # Errors
    /// [`StopReason::Cancelled`], [`StopReason::Broken`].
    pub fn log(&mut self, level: u8, text: &[u8]) -> Result<(), StopReason> {
        let most = self.slot().response().payload_max() as usize - 1;
        let text = &text[..text.len().min(most)];
        self.whole(FrameKind::Log, &[&[level], text].concat())
    }

    /// Sends part of an open file as the next piece of the body, and waits until the server has taken the descriptor.
    ///
    /// # Errors
    /// See [`StopReason`].
    pub fn file(&mut self, file: FilePart) -> Result<(), StopReason> {
        if self.stage == FrameKind::Interim {
            return Err(StopReason::Order);
        }
        self.pass(file)
    }

    /// Hands the client's connection to a socket in place of a response, and waits until the server has taken the
    /// descriptor. [`ClaimedRequest::finish`] is all that may follow.
    ///
    /// # Errors
    /// See [`StopReason`]; [`StopReason::Cancelled`] where the server does not do that.
    pub fn hijack(&mut self, fd: i32) -> Result<(), StopReason> {
        if self.stage != FrameKind::Interim {
            return Err(StopReason::Order);
        }
        self.pass(FilePart { fd, offset: 0, len: 0 })
    }

    fn pass(&mut self, file: FilePart) -> Result<(), StopReason> {
        self.whole(FrameKind::File, &file.encode())?;
        self.flush();
        let side = Rc::clone(&self.side);
        side.sleep_until(|| match self.writer.is_drained(self.slot().response()) {
            true => Ok(Some(())),
            false => self.alive().map(|()| None),
        })
    }

    /// Writes and sends a piece of the body, waiting where the client cannot keep up.
    ///
    /// # Errors
    /// See [`StopReason`].
    pub fn write(&mut self, body: &[u8]) -> Result<(), StopReason> {
        self.write_later(body)?;
        self.flush();
        Ok(())
    }

    /// Writes a piece of the body, which is sent when more follows, with the end, or by [`ClaimedRequest::flush`].
    ///
    /// # Errors
    /// See [`StopReason`].
    pub fn write_later(&mut self, mut body: &[u8]) -> Result<(), StopReason> {
        while !body.is_empty() {
            let taken = match self.body(body)? {
                0 => {
                    self.flush();
                    let side = Rc::clone(&self.side);
                    side.sleep_until(|| self.body(body).map(|taken| (taken > 0).then_some(taken)))?
                }
                taken => taken,
            };
            body = &body[taken..];
        }
        Ok(())
    }

    /// Writes and sends as much of `body` as fits now; 0 where the server has to take something first.
    ///
    /// # Errors
    /// See [`StopReason`].
    pub fn try_write(&mut self, body: &[u8]) -> Result<usize, StopReason> {
        let taken = self.body(body)?;
        self.flush();
        Ok(taken)
    }

    /// Writes as much of `body` as fits now, and sends it only if that is not all of it; 0 where the server has to take
    /// something first.
    ///
    /// # Errors
    /// See [`StopReason`].
    pub fn try_write_later(&mut self, body: &[u8]) -> Result<usize, StopReason> {
        let taken = self.body(body)?;
        if taken < body.len() {
            self.flush();
        }
        Ok(taken)
    }

    /// Sends what was written.
    pub fn flush(&mut self) {
        if std::mem::take(&mut self.unpublished) {
            self.writer.publish(self.slot().response(), false);
            self.notice();
        }
    }

    /// Ends the response: the request is over.
    ///
    /// # Errors
    /// [`StopReason::Order`] without a head; the request is aborted then.
    pub fn finish(mut self) -> Result<(), StopReason> {
        if self.stage == FrameKind::Interim && self.cancelled().is_none() {
            return Err(StopReason::Order);
        }
        self.release(SlotPhase::Done);
        Ok(())
    }

    /// Aborts the response, for a `reason` of the worker's. Bytes that were sent already stay sent.
    pub fn abort(mut self, reason: u32) {
        self.slot().reason().store(reason, Relaxed);
        self.release(SlotPhase::Aborted);
    }

    fn alive(&self) -> Result<(), StopReason> {
        self.cancelled().map_or(Ok(()), |reason| Err(StopReason::Cancelled(reason)))
    }

    fn body(&mut self, body: &[u8]) -> Result<usize, StopReason> {
        self.alive()?;
        self.stage = follow(self.stage, FrameKind::Data).map_err(|_| StopReason::Order)?;
        let pipe = self.side.shared.slot(self.thread, self.tag.slot()).response();
        let taken = self.writer.body(pipe, body).map_err(|_| StopReason::Broken)?;
        self.unpublished |= taken > 0;
        Ok(taken)
    }

    /// Writes one frame that cannot be cut, waiting for its room.
    fn whole(&mut self, kind: FrameKind, payload: &[u8]) -> Result<(), StopReason> {
        if !self.try_whole(kind, payload)? {
            let side = Rc::clone(&self.side);
            side.sleep_until(|| self.try_whole(kind, payload).map(|is_written| is_written.then_some(())))?;
        }
        Ok(())
    }

    /// Writes one frame that cannot be cut. `false` if it has no room: what was written before is sent then.
    fn try_whole(&mut self, kind: FrameKind, payload: &[u8]) -> Result<bool, StopReason> {
        self.alive()?;
        let stage = follow(self.stage, kind).map_err(|_| StopReason::Order)?;
        let pipe = self.side.shared.slot(self.thread, self.tag.slot()).response();
        let want = u32::try_from(payload.len()).map_err(|_| StopReason::TooLarge)?;
        if want > pipe.payload_max() {
            return Err(StopReason::TooLarge);
        }
        let room = self.writer.room(pipe, want).map_err(|_| StopReason::Broken)?;
        if room.is_none_or(|room| room < want) {
            self.flush();
            return Ok(false);
        }
        self.writer.frame(pipe, kind, payload);
        self.unpublished = true;
        self.stage = stage;
        Ok(true)
    }

    /// Leaves a notice for the server thread, unless one stands unread.
    fn notice(&self) {
        if self.slot().noticed().swap(1, AcqRel) == 0 {
            self.push(self.tag);
        }
    }

    fn push(&self, tag: Tag) {
        let Side { shared, worker_slot, lanes, .. } = &*self.side;
        let lane = &lanes[self.thread];
        let mut position = lane.get();
        lane::push(shared, self.thread, *worker_slot, &mut position, tag);
        lane.set(position);
        // Publish, fence, look whether it sleeps; the server says that it sleeps, fences, and looks again.
        fence(SeqCst);
        shared.ring_thread(self.thread);
    }

    /// Gives the slot back: nothing of it is touched after the state word.
    fn release(&mut self, phase: SlotPhase) {
        self.released = true;
        #[cfg(not(loom))]
        self.end_measuring();
        let slot = self.slot();
        if self.unpublished {
            self.writer.publish(slot.response(), false);
        }
        slot.state().store(SlotState::new(phase, self.side.worker_slot, self.tag.generation()).0, Release);
        self.push(self.tag.finished());
    }
}

impl Drop for ClaimedRequest {
    fn drop(&mut self) {
        if !self.released {
            self.slot().reason().store(DROPPED, Relaxed);
            self.release(SlotPhase::Aborted);
        }
        let mut head = std::mem::take(&mut self.head);
        let mut spare = self.side.spare.borrow_mut();
        if spare.len() < SPARE_MAX && head.capacity() <= SPARE_BYTES_MAX {
            head.clear();
            spare.push(head);
        }
    }
}
