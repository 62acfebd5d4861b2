//! A request in a worker's hands: its head and body to read, its response to write.

use std::fmt;
use std::rc::Rc;

use crate::error::Stop;
use crate::lane;
use crate::part::{FilePart, follow};
use crate::pipe::{Kind, Reader, Writer};
use crate::shared::Slot;
use crate::side::Side;
use crate::sync::{AcqRel, Acquire, Relaxed, Release, SeqCst, fence};
use crate::words::{Phase, State, Tag};

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

/// What of a request can go on without waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct News {
    /// [`Request::try_read`] would not come back empty-handed.
    pub readable: bool,
    /// The server took something of the response since a write was refused.
    pub writable: bool,
    /// The server lost interest.
    pub cancelled: bool,
    /// The client has closed its sending side. Most clients that do are gone, some wait for their answer: writes succeed.
    pub client_closed: bool,
}

/// A claimed request. Dropped before [`Request::finish`] or [`Request::abort`], it is aborted with [`DROPPED`].
pub struct Request {
    side: Rc<Side>,
    thread: usize,
    tag: Tag,
    head: Vec<u8>,
    reader: Reader,
    writer: Writer,
    /// The last kind of frame that moved the response on.
    stage: Kind,
    /// Whether frames were written since the last publishing.
    unpublished: bool,
    /// Whether the slot was given back.
    released: bool,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("thread", &self.thread)
            .field("tag", &self.tag)
            .finish_non_exhaustive()
    }
}

impl Request {
    /// Reads the head of a slot just claimed; aborts it and returns `None` where there is none to read.
    pub(crate) fn begin(side: &Rc<Side>, thread: usize, tag: Tag) -> Option<Request> {
        let head = side.spare.borrow_mut().pop().unwrap_or_default();
        let mut request = Request {
            side: Rc::clone(side),
            thread,
            tag,
            head,
            reader: Reader::new(),
            writer: Writer::new(),
            stage: Kind::Interim,
            unpublished: false,
            released: false,
        };
        let pipe = request.side.shared.slot(thread, tag.slot()).request();
        match request.reader.next(pipe) {
            Ok(Some(frame)) if frame.kind == Kind::Head => {
                request.reader.append(pipe, frame.rest as usize, &mut request.head);
                request.tell();
                Some(request)
            }
            _ => {
                request.abort(DAMAGED);
                None
            }
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

    /// What can go on; for event loops that hold many requests.
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
    /// [`Stop::Cancelled`] once nothing is left of a cancelled request's body; [`Stop::Broken`].
    pub fn read(&mut self, into: &mut [u8]) -> Result<usize, Stop> {
        if let Some(count) = self.try_read(into)? {
            return Ok(count);
        }
        let side = Rc::clone(&self.side);
        side.sleep_until(|| self.try_read(into))
    }

    /// Reads a piece of the body: `None` if none is there yet, 0 at its end.
    ///
    /// # Errors
    /// As [`Request::read`].
    pub fn try_read(&mut self, into: &mut [u8]) -> Result<Option<usize>, Stop> {
        if into.is_empty() {
            return Ok(Some(0));
        }
        let side = Rc::clone(&self.side);
        let pipe = side.shared.slot(self.thread, self.tag.slot()).request();
        loop {
            match self.reader.next(pipe).map_err(|_| Stop::Broken)? {
                Some(frame) if frame.kind != Kind::Data => return Err(Stop::Broken),
                Some(_) => {
                    let count = self.reader.copy(pipe, into);
                    self.tell();
                    if count > 0 {
                        return Ok(Some(count));
                    }
                }
                None if self.reader.has_ended() => return Ok(Some(0)),
                None => return self.cancelled().map_or(Ok(None), |reason| Err(Stop::Cancelled(reason))),
            }
        }
    }

    /// Tells the server what was consumed, where it waits for that.
    fn tell(&mut self) {
        let pipe = self.side.shared.slot(self.thread, self.tag.slot()).request();
        if !self.reader.has_ended() && self.reader.owes(pipe) {
            self.reader.tell(pipe);
            self.notice();
        }
    }

    /// Writes the response's head. It is sent with the first piece of the body, the end, or [`Request::flush`].
    ///
    /// # Errors
    /// See [`Stop`].
    pub fn respond(&mut self, head: &[u8]) -> Result<(), Stop> {
        self.whole(Kind::Head, head)
    }

    /// Writes and sends a head that another one follows (1xx).
    ///
    /// # Errors
    /// See [`Stop`].
    pub fn interim(&mut self, head: &[u8]) -> Result<(), Stop> {
        self.whole(Kind::Interim, head)?;
        self.flush();
        Ok(())
    }

    /// Writes the fields that follow the body.
    ///
    /// # Errors
    /// See [`Stop`].
    pub fn trailers(&mut self, fields: &[u8]) -> Result<(), Stop> {
        self.whole(Kind::Trailers, fields)
    }

    /// Writes a line for the server's log, cut to what a slot can hold.
    ///
    /// # Errors
    /// [`Stop::Cancelled`], [`Stop::Broken`].
    pub fn log(&mut self, level: u8, text: &[u8]) -> Result<(), Stop> {
        let most = self.slot().response().payload_max() as usize - 1;
        let text = &text[..text.len().min(most)];
        self.whole(Kind::Log, &[&[level], text].concat())
    }

    /// Sends part of an open file as the next piece of the body, and waits until the server has taken the descriptor.
    ///
    /// # Errors
    /// See [`Stop`].
    pub fn file(&mut self, file: FilePart) -> Result<(), Stop> {
        if self.stage == Kind::Interim {
            return Err(Stop::Order);
        }
        self.pass(file)
    }

    /// Hands the client's connection to a socket in place of a response, and waits until the server has taken the
    /// descriptor. [`Request::finish`] is all that may follow.
    ///
    /// # Errors
    /// See [`Stop`]; [`Stop::Cancelled`] where the server does not do that.
    pub fn hijack(&mut self, fd: i32) -> Result<(), Stop> {
        if self.stage != Kind::Interim {
            return Err(Stop::Order);
        }
        self.pass(FilePart { fd, offset: 0, len: 0 })
    }

    fn pass(&mut self, file: FilePart) -> Result<(), Stop> {
        self.whole(Kind::File, &file.encode())?;
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
    /// See [`Stop`].
    pub fn write(&mut self, body: &[u8]) -> Result<(), Stop> {
        self.write_later(body)?;
        self.flush();
        Ok(())
    }

    /// Writes a piece of the body, which is sent when more follows, with the end, or by [`Request::flush`].
    ///
    /// # Errors
    /// See [`Stop`].
    pub fn write_later(&mut self, mut body: &[u8]) -> Result<(), Stop> {
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
    /// See [`Stop`].
    pub fn try_write(&mut self, body: &[u8]) -> Result<usize, Stop> {
        let taken = self.body(body)?;
        self.flush();
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
    /// [`Stop::Order`] without a head; the request is aborted then.
    pub fn finish(mut self) -> Result<(), Stop> {
        if self.stage == Kind::Interim && self.cancelled().is_none() {
            return Err(Stop::Order);
        }
        self.release(Phase::Done);
        Ok(())
    }

    /// Gives up, for a `reason` of the worker's; what was sent already stands.
    pub fn abort(mut self, reason: u32) {
        self.slot().reason().store(reason, Relaxed);
        self.release(Phase::Aborted);
    }

    fn alive(&self) -> Result<(), Stop> {
        self.cancelled().map_or(Ok(()), |reason| Err(Stop::Cancelled(reason)))
    }

    fn body(&mut self, body: &[u8]) -> Result<usize, Stop> {
        self.alive()?;
        self.stage = follow(self.stage, Kind::Data).map_err(|_| Stop::Order)?;
        let pipe = self.side.shared.slot(self.thread, self.tag.slot()).response();
        let taken = self.writer.body(pipe, body).map_err(|_| Stop::Broken)?;
        self.unpublished |= taken > 0;
        Ok(taken)
    }

    /// Writes one frame that cannot be cut, waiting for its room.
    fn whole(&mut self, kind: Kind, payload: &[u8]) -> Result<(), Stop> {
        self.alive()?;
        let stage = follow(self.stage, kind).map_err(|_| Stop::Order)?;
        let side = Rc::clone(&self.side);
        let pipe = side.shared.slot(self.thread, self.tag.slot()).response();
        let want = u32::try_from(payload.len()).map_err(|_| Stop::TooLarge)?;
        if want > pipe.payload_max() {
            return Err(Stop::TooLarge);
        }
        let fits = |writer: &mut Writer| {
            let room = writer.room(pipe, want).map_err(|_| Stop::Broken)?;
            Ok(room.filter(|room| *room >= want).map(drop))
        };
        if fits(&mut self.writer)?.is_none() {
            self.flush();
            side.sleep_until(|| self.alive().and_then(|()| fits(&mut self.writer)))?;
        }
        self.writer.frame(pipe, kind, payload);
        self.unpublished = true;
        self.stage = stage;
        Ok(())
    }

    /// Leaves a notice for the server thread, unless one stands unread.
    fn notice(&self) {
        if self.slot().noticed().swap(1, AcqRel) == 0 {
            self.push(self.tag);
        }
    }

    fn push(&self, tag: Tag) {
        let Side { shared, seat, lanes, .. } = &*self.side;
        let lane = &lanes[self.thread];
        let mut position = lane.get();
        lane::push(shared, self.thread, *seat, &mut position, tag);
        lane.set(position);
        // Publish, fence, look whether it sleeps; the server says that it sleeps, fences, and looks again.
        fence(SeqCst);
        shared.ring_thread(self.thread);
    }

    /// Gives the slot back: nothing of it is touched after the state word.
    fn release(&mut self, phase: Phase) {
        self.released = true;
        let slot = self.slot();
        if self.unpublished {
            self.writer.publish(slot.response(), false);
        }
        slot.state().store(State::new(phase, self.side.seat, self.tag.generation()).0, Release);
        self.push(self.tag.finished());
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.released {
            self.slot().reason().store(DROPPED, Relaxed);
            self.release(Phase::Aborted);
        }
        let mut head = std::mem::take(&mut self.head);
        let mut spare = self.side.spare.borrow_mut();
        if spare.len() < SPARE_MAX && head.capacity() <= SPARE_BYTES_MAX {
            head.clear();
            spare.push(head);
        }
    }
}
