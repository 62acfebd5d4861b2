//! The server's side: one handle per server thread, which submits requests and receives responses.
//!
//! All decisions are based on private memory; each value from the shared memory is copied once, validated,
//! and only the copy is used. An invalid value is a [`WorkerFault`]: the worker is ignored from then on, and
//! its slots become free when it dies.

use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::sync::Arc;

use crate::cost::{Measure, UNKNOWN, WorkerCost};
use crate::error::{Breach, Error, Refused, WorkerFault, WorkerSlot};
use crate::lane;
use crate::part::{FilePart, Part, Received, follow};
use crate::pipe::{FrameKind, Reader, Writer};
use crate::queue::Queue;
use crate::request::CLIENT_CLOSED;
use crate::shared::{AWAKE, SharedMemory, Slot};
use crate::sync::{AcqRel, Acquire, Relaxed, Release, SeqCst, fence};
use crate::words::{SlotGeneration, SlotPhase, SlotState, Tag};

/// A request in progress. Void once the request was completely answered, cancelled, or lost with its worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Ticket {
    slot: u16,
    generation: SlotGeneration,
}

impl Ticket {
    /// A table index below [`ServerSide::slots`], unique among the requests in progress of this thread.
    pub fn index(self) -> usize {
        self.slot.into()
    }
}

/// A request that died with its worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lost {
    /// The request's ticket, void from now on.
    pub ticket: Ticket,
    /// Whether any part of the response was received. If not, the request can be retried on another worker.
    pub started: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Use {
    Free,
    /// In use; the ticket is valid.
    Live,
    /// Cancelled while held by a worker; free when the worker releases it.
    Cancelled,
    /// The response violated the protocol; free when its worker is dead, or never if its worker is unknown.
    Broken,
}

/// The server's private state of a slot.
struct SlotRecord {
    generation: SlotGeneration,
    used: Use,
    /// The worker that claimed the slot, once the server has seen the claim and as long as the worker lives.
    worker_slot: Option<usize>,
    writer: Writer,
    reader: Reader,
    /// `Done` or `Aborted` once the worker's final tag was received.
    ending: Option<SlotPhase>,
    /// The last kind of frame that advanced the response.
    stage: FrameKind,
    /// Whether any part was received.
    started: bool,
    /// Whether the request's end was published.
    ended: bool,
    /// Whether the slot is listed in `touched`.
    touched: bool,
    /// Whether a file was received whose worker waits to learn that the descriptor is no longer needed.
    file: bool,
}

#[derive(Clone, Copy, Default)]
struct ClaimantRecord {
    position: u32,
    /// Whether the worker violated the protocol; its lane is not read until it has died.
    mute: bool,
}

/// One server thread's side of the channel.
pub struct ServerSide {
    shared: Arc<SharedMemory>,
    thread: usize,
    records: Vec<SlotRecord>,
    /// Free slots, most recently used on top: its memory is warm, and untouched slots stay unallocated.
    free: Vec<u16>,
    worker_slots: Vec<ClaimantRecord>,
    tail: u32,
    /// Whether requests were queued since the last ring.
    queued: bool,
    /// Slots whose worker, if any, must be notified of progress.
    touched: Vec<u16>,
    /// Tickets with news found outside of `poll`.
    owed: Vec<Ticket>,
    faults: Vec<WorkerFault>,
    quarantined: usize,
    /// The measurements requested for requests submitted from now on.
    measure: Measure,
    /// The cost of the response that was last received from.
    cost: WorkerCost,
    /// Makes the type `!Send`, because it belongs to one thread.
    _thread: PhantomData<*const ()>,
}

impl ServerSide {
    pub(crate) fn new(shared: Arc<SharedMemory>, thread: usize) -> ServerSide {
        let (slots, worker_slots) = (shared.geometry.slots, shared.geometry.worker_slots);
        let record = |_| SlotRecord {
            generation: SlotGeneration::FIRST,
            used: Use::Free,
            worker_slot: None,
            writer: Writer::new(),
            reader: Reader::new(),
            ending: None,
            stage: FrameKind::Interim,
            started: false,
            ended: false,
            touched: false,
            file: false,
        };
        ServerSide {
            records: (0..slots).map(record).collect(),
            free: (0..slots as u16).rev().collect(),
            worker_slots: vec![ClaimantRecord::default(); worker_slots],
            shared,
            thread,
            tail: 0,
            queued: false,
            touched: Vec::new(),
            owed: Vec::new(),
            faults: Vec::new(),
            quarantined: 0,
            measure: Measure::Claim,
            cost: WorkerCost::default(),
            _thread: PhantomData,
        }
    }

    fn slot(&self, at: usize) -> Slot<'_> {
        self.shared.slot(self.thread, at)
    }

    /// Maximum number of requests in progress on this thread.
    pub fn slots(&self) -> usize {
        self.records.len()
    }

    /// Number of slots lost because their holder is unknown. Replace the generation once it is not 0.
    pub fn quarantined(&self) -> usize {
        self.quarantined
    }

    /// Sets the measurements that workers make for requests submitted from now on.
    pub fn set_measure(&mut self, measure: Measure) {
        self.measure = measure;
    }

    /// The cost reported by the worker of the request last received from; CPU time and memory are available
    /// only after the last part.
    #[must_use]
    pub fn cost(&self) -> WorkerCost {
        self.cost
    }

    /// Takes the next worker found to violate the protocol; the caller must kill it.
    pub fn take_fault(&mut self) -> Option<WorkerFault> {
        self.faults.pop()
    }

    /// Queues a request: its whole head and as much of `body` as fits; returns the number of body bytes
    /// taken. With `last` the request ends with `body`, if all of it was taken; otherwise it continues with
    /// [`ServerSide::push_body`].
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn submit(&mut self, head: &[u8], body: &[u8], last: bool) -> Result<(Ticket, usize), Refused> {
        let &slot = self.free.last().ok_or(Refused::Full)?;
        let at = usize::from(slot);
        let shared = &*self.shared;
        let view = shared.slot(self.thread, at);
        let (request, response) = (view.request(), view.response());
        if head.len() > request.payload_max() as usize {
            return Err(Refused::HeadTooLarge);
        }
        self.free.pop();
        for word in [request.tail, response.head, response.tail, view.noticed(), view.cancelled()] {
            word.store(0, Relaxed);
        }
        view.measure().store(self.measure as u32, Relaxed);
        view.cost().into_iter().for_each(|word| word.store(UNKNOWN, Relaxed));
        let mut writer = Writer::new();
        writer.frame(request, FrameKind::Head, head);
        // If a worker has overwritten the tail, the only effect is that nothing more fits.
        let taken = if body.is_empty() { 0 } else { writer.body(request, body).unwrap_or(0) };
        let ended = last && taken == body.len();
        writer.publish(request, ended);

        let record = &mut self.records[at];
        let generation = record.generation;
        *record = SlotRecord {
            generation,
            used: Use::Live,
            worker_slot: None,
            writer,
            reader: Reader::new(),
            ending: None,
            stage: FrameKind::Interim,
            started: false,
            ended,
            touched: record.touched,
            file: false,
        };
        view.state().store(SlotState::ready(generation).0, Release);
        Queue::new(shared, self.thread).push(&mut self.tail, Tag::new(at, generation));
        self.queued = true;
        Ok((Ticket { slot, generation }, taken))
    }

    /// Streams more of a request's body. Returns the number of bytes taken, 0 if the worker must first
    /// consume some, after which `poll` reports the ticket. With `last` the request ends with `body`, if all
    /// of it was taken. For a request that has already been answered, all bytes are accepted and discarded.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn push_body(&mut self, ticket: Ticket, body: &[u8], last: bool) -> Result<usize, Error> {
        let at = self.live(ticket)?;
        let record = &mut self.records[at];
        if record.ended || record.ending.is_some() {
            return Ok(body.len());
        }
        let pipe = self.shared.slot(self.thread, at).request();
        let taken = match record.writer.body(pipe, body) {
            Ok(taken) => taken,
            Err(breach) => return Err(Error::WorkerFault(self.break_off(at, breach))),
        };
        record.ended = last && taken == body.len();
        if taken > 0 || record.ended {
            record.writer.publish(pipe, record.ended);
            self.touch(at);
        }
        Ok(taken)
    }

    /// The worker that holds the request; `None` if queued or finished, or if the state word is invalid.
    pub fn claimant(&self, ticket: Ticket) -> Option<WorkerSlot> {
        let at = self.live(ticket).ok()?;
        if self.records[at].ending.is_some() {
            return None;
        }
        self.records[at].worker_slot.or_else(|| self.holder(at)?.1).map(WorkerSlot)
    }

    /// The worker that sends the response, even after it has finished; `None` before anything has arrived, or
    /// after the worker's death. For statistics: the worker may already hold another request.
    pub fn answerer(&self, ticket: Ticket) -> Option<WorkerSlot> {
        self.live(ticket).ok().and_then(|at| self.records[at].worker_slot).map(WorkerSlot)
    }

    /// Cancels the request with a `reason` that the worker can read: a queued request is removed immediately,
    /// a claimed one keeps its slot until its worker releases it or dies. The ticket is invalid from then on.
    pub fn cancel(&mut self, ticket: Ticket, reason: NonZeroU32) {
        let Ok(at) = self.live(ticket) else { return };
        let view = self.slot(at);
        let (ready, free) =
            (SlotState::ready(ticket.generation), SlotState::new(SlotPhase::Free, 0, ticket.generation));
        let record = &self.records[at];
        if record.ending.is_some() || view.state().compare_exchange(ready.0, free.0, AcqRel, Acquire).is_ok()
        {
            return self.release(at);
        }
        view.cancelled().store(reason.get(), Release);
        if record.worker_slot.is_none() && self.holder(at).is_none() {
            return self.quarantine(at);
        }
        self.records[at].used = Use::Cancelled;
        self.touch(at);
    }

    /// Notifies the worker, now or when it claims the request, that the client has closed its sending side.
    /// The response is still expected: see [`News::client_closed`](crate::News::client_closed).
    pub fn report_client_closed(&mut self, ticket: Ticket) {
        if let Ok(at) = self.live(ticket) {
            self.slot(at).cancelled().store(CLIENT_CLOSED, Release);
            self.touch(at);
        }
    }

    /// Whether a worker still holds a request that was cancelled.
    pub fn is_still_held(&self, ticket: Ticket) -> bool {
        let record = &self.records[ticket.index()];
        record.generation == ticket.generation && record.used == Use::Cancelled
    }

    /// Reads the notices of every worker and calls `each` for every ticket with news: parts to [`receive`],
    /// or room for [`push_body`]. The number of notices handled by one call is bounded.
    ///
    /// [`receive`]: ServerSide::receive
    /// [`push_body`]: ServerSide::push_body
    pub fn poll(&mut self, mut each: impl FnMut(&mut ServerSide, Ticket)) {
        for ticket in std::mem::take(&mut self.owed) {
            if self.live(ticket).is_ok() {
                each(self, ticket);
            }
        }
        for worker_slot in 0..self.worker_slots.len() {
            for _ in 0..self.shared.geometry.cells {
                if self.worker_slots[worker_slot].mute {
                    break;
                }
                let position = &mut self.worker_slots[worker_slot].position;
                let Some(tag) = lane::pop(&self.shared, self.thread, worker_slot, position) else { break };
                match self.notice(worker_slot, tag) {
                    Ok(Some(ticket)) => each(self, ticket),
                    Ok(None) => {}
                    Err(breach) => self.mute(Some(worker_slot), breach),
                }
            }
        }
    }

    /// Takes the next available part of the response to `ticket`; bytes are appended to `into`, at most
    /// `bytes_max` (at least 1) of a body at once. Call it until it returns `None` or the client cannot
    /// accept more: data left in the slot provides backpressure for the worker.
    ///
    /// # Errors
    /// See [`Error`]; the ticket is void afterwards.
    pub fn receive(
        &mut self,
        ticket: Ticket,
        into: &mut Vec<u8>,
        bytes_max: usize,
    ) -> Result<Option<Received>, Error> {
        let at = self.live(ticket)?;
        self.release_file(at);
        self.part(at, into, bytes_max).map_err(|breach| Error::WorkerFault(self.break_off(at, breach)))
    }

    /// Resumes the worker that waits after a [`Part::File`]; the next [`ServerSide::receive`] does the same.
    pub fn file_taken(&mut self, ticket: Ticket) {
        if let Ok(at) = self.live(ticket) {
            self.release_file(at);
        }
    }

    /// The eventfd that wakes this thread; with edge-triggered epoll it need not be read.
    #[cfg(not(loom))]
    pub fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.shared.thread_signals[self.thread].fd()
    }

    /// Sleeps until the thread is rung.
    #[cfg(loom)]
    pub fn sleep(&self) {
        self.shared.thread_signals[self.thread].wait();
    }

    /// Prepares for sleeping: from now on workers ring the doorbell. Returns `false`, without preparing, if
    /// there is already something to [`poll`](ServerSide::poll).
    #[must_use]
    pub fn arm(&mut self) -> bool {
        self.flush_doorbells();
        self.shared.asleep(self.thread).swap(1, AcqRel);
        fence(SeqCst);
        let waiting = |(worker_slot, record): (usize, &ClaimantRecord)| {
            !record.mute && !lane::is_empty(&self.shared, self.thread, worker_slot, record.position)
        };
        if self.owed.is_empty() && !self.worker_slots.iter().enumerate().any(waiting) {
            return true;
        }
        self.disarm();
        false
    }

    /// Ends the preparation after the thread slept, so that workers need not ring.
    pub fn disarm(&mut self) {
        self.shared.asleep(self.thread).swap(0, AcqRel);
    }

    /// Wakes workers with work to do: one idle worker if requests were queued (it wakes the next one), and
    /// the workers whose requests have progressed. Called once at the end of an event loop iteration, because
    /// waking is expensive.
    pub fn flush_doorbells(&mut self) {
        if !self.queued && self.touched.is_empty() {
            return;
        }
        // Publish, fence, check for sleepers; a worker announces that it sleeps, fences, and checks again.
        fence(SeqCst);
        if std::mem::take(&mut self.queued) {
            self.shared.wake_one();
        }
        let mut touched = std::mem::take(&mut self.touched);
        for at in touched.drain(..).map(usize::from) {
            self.records[at].touched = false;
            // Only after the fence is it certain whether a worker holds the request.
            if let Some((SlotPhase::Claimed, Some(worker_slot))) = self.holder(at) {
                self.shared.ring_slot(worker_slot);
            }
        }
        self.touched = touched;
    }

    /// Wakes another idle worker if requests still wait, because the worker woken for them does not claim
    /// them: its event loop may be busy with a long computation. Returns whether there was one to wake.
    pub fn wake_another(&mut self) -> bool {
        fence(SeqCst);
        !Queue::new(&self.shared, self.thread).is_empty() && self.shared.wake_one()
    }

    /// Reclaims the slots of a dead worker: complete responses are still delivered, the other requests are
    /// lost. Call it on every server thread after the process has exited (pidfd) and before the worker slot
    /// is reused; then call [`flush_doorbells`](ServerSide::flush_doorbells) and [`poll`](ServerSide::poll).
    pub fn worker_died(&mut self, WorkerSlot(worker_slot): WorkerSlot) -> Vec<Lost> {
        let mut lost = Vec::new();
        for at in 0..self.records.len() {
            self.settle(worker_slot, at, &mut lost);
        }
        lane::clear(&self.shared, self.thread, worker_slot);
        self.worker_slots[worker_slot] = ClaimantRecord::default();
        self.shared.clear_idle(worker_slot);
        self.shared.sleep(worker_slot).store(AWAKE, Relaxed);
        self.shared.retired(worker_slot).store(0, Relaxed);
        // The dead worker may have been the one woken for the queued requests.
        let shared = Arc::clone(&self.shared);
        let queue = Queue::new(&shared, self.thread);
        queue.rebuild(&mut self.tail);
        self.queued |= !queue.is_empty();
        lost
    }
}

/// Private helpers of the methods above.
impl ServerSide {
    fn live(&self, ticket: Ticket) -> Result<usize, Error> {
        let at = ticket.index();
        match self.records.get(at) {
            Some(record) if record.used == Use::Live && record.generation == ticket.generation => Ok(at),
            _ => Err(Error::Void),
        }
    }

    /// Decodes the state word, if it is valid: the worker slot is `None` while queued.
    fn holder(&self, at: usize) -> Option<(SlotPhase, Option<usize>)> {
        let state = self.slot(at).load_state();
        if state.generation() != self.records[at].generation {
            return None;
        }
        match state.phase()? {
            SlotPhase::Free => None,
            SlotPhase::Ready => {
                (state == SlotState::ready(state.generation())).then_some((SlotPhase::Ready, None))
            }
            phase => {
                (state.worker_slot() < self.worker_slots.len()).then_some((phase, Some(state.worker_slot())))
            }
        }
    }

    /// Validates one tag of `worker_slot`'s lane against the slot that it names.
    fn notice(&mut self, worker_slot: usize, tag: Tag) -> Result<Option<Ticket>, Breach> {
        let at = tag.slot();
        let record = self.records.get(at).ok_or(Breach::Tag)?;
        if record.generation != tag.generation()
            || record.worker_slot.is_some_and(|known| known != worker_slot)
        {
            return Err(Breach::Tag);
        }
        let (phase, holder) = match record.used {
            Use::Free => return Err(Breach::Tag),
            Use::Broken => return Ok(None),
            Use::Live | Use::Cancelled => self.holder(at).ok_or(Breach::SlotState)?,
        };
        if holder != Some(worker_slot) {
            return Err(Breach::Tag);
        }
        let cancelled = record.used == Use::Cancelled;
        if !tag.is_finished() {
            // Cleared before the streams are read, so that later progress causes a new notice.
            self.slot(at).noticed().swap(0, AcqRel);
        } else if phase == SlotPhase::Claimed || record.ending.is_some() {
            return Err(Breach::SlotState);
        }
        let record = &mut self.records[at];
        record.worker_slot = Some(worker_slot);
        record.ending = tag.is_finished().then_some(phase).or(record.ending);
        let ticket = Ticket { slot: at as u16, generation: record.generation };
        if !cancelled {
            return Ok(Some(ticket));
        }
        if tag.is_finished() {
            self.release(at);
        }
        Ok(None)
    }

    fn part(&mut self, at: usize, into: &mut Vec<u8>, bytes_max: usize) -> Result<Option<Received>, Breach> {
        let record = &mut self.records[at];
        if record.worker_slot.is_none() && record.ending.is_none() {
            return Ok(None);
        }
        let view = self.shared.slot(self.thread, at);
        self.cost = WorkerCost::read(view.cost().map(|word| word.load(Relaxed)), record.ending.is_some());
        let pipe = view.response();
        let Some(frame) = record.reader.next(pipe)? else {
            let part = match record.ending {
                None => return Ok(None),
                Some(SlotPhase::Aborted) => Part::Aborted(view.reason().load(Relaxed)),
                Some(_) if record.stage == FrameKind::Interim => return Err(Breach::Order),
                Some(_) => Part::End,
            };
            self.release(at);
            return Ok(Some(Received { part, last: true }));
        };
        record.started = true;
        record.stage = follow(record.stage, frame.kind)?;
        let whole = frame.rest as usize;
        let part = match frame.kind {
            FrameKind::Data => {
                record.reader.append(pipe, bytes_max.max(1), into);
                Part::Data
            }
            FrameKind::File => {
                let mut bytes = [0; FilePart::BYTES];
                let count = record.reader.copy(pipe, &mut bytes);
                if whole != FilePart::BYTES || count != FilePart::BYTES {
                    return Err(Breach::Frame);
                }
                Part::File(FilePart::decode(bytes))
            }
            FrameKind::Log => {
                let mut level = [0];
                if record.reader.copy(pipe, &mut level) == 0 {
                    return Err(Breach::Frame);
                }
                record.reader.append(pipe, whole, into);
                Part::Log(level[0])
            }
            kind => {
                record.reader.append(pipe, whole, into);
                match kind {
                    FrameKind::Interim => Part::Interim,
                    FrameKind::Trailers => Part::Trailers,
                    _ => Part::Head,
                }
            }
        };
        let last = record.ending == Some(SlotPhase::Done) && record.reader.is_empty(pipe)?;
        if last {
            if record.stage == FrameKind::Interim {
                return Err(Breach::Order);
            }
            self.release(at);
        } else if record.ending.is_none() {
            // A worker may close its file as soon as the server reports that it has received it.
            record.file = frame.kind == FrameKind::File;
            if !record.file && record.reader.owes(pipe) {
                record.reader.report(pipe);
                self.touch(at);
            }
        }
        Ok(Some(Received { part, last }))
    }

    fn release_file(&mut self, at: usize) {
        if std::mem::take(&mut self.records[at].file) {
            let pipe = self.shared.slot(self.thread, at).response();
            self.records[at].reader.report(pipe);
            self.touch(at);
        }
    }

    fn touch(&mut self, at: usize) {
        if !std::mem::replace(&mut self.records[at].touched, true) {
            self.touched.push(at as u16);
        }
    }

    /// Returns the slot to the free list with a new generation.
    fn release(&mut self, at: usize) {
        let record = &mut self.records[at];
        record.used = Use::Free;
        record.generation = record.generation.next();
        let free = SlotState::new(SlotPhase::Free, 0, record.generation);
        self.slot(at).state().store(free.0, Release);
        self.free.push(at as u16);
    }
}

mod counts;
mod damage;
#[cfg(not(loom))]
#[cfg(test)]
mod tests;
