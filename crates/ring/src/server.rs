//! The server's side: one handle per server thread, which submits requests and receives responses.
//!
//! All decisions are based on private memory; each value from the shared memory is copied once, validated,
//! and only the copy is used. An invalid value is a [`WorkerFault`]: the worker is ignored from then on, and
//! its slots become free when it dies.

use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::sync::Arc;

use crate::cost::{Measure, UNKNOWN, WorkerCost};
use crate::error::{ProtocolViolation, SubmitError, TicketError, WorkerFault, WorkerSlot};
use crate::lane;
use crate::pipe::{FrameKind, Reader, Writer};
use crate::queue::Queue;
use crate::request::CLIENT_CLOSED;
use crate::response_part::{FilePart, ReceivedPart, ResponsePart, next_stage};
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
pub struct LostRequest {
    /// The request's ticket, void from now on.
    pub ticket: Ticket,
    /// Whether any part of the response was received. If not, the request can be retried on another worker.
    pub has_started: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SlotUse {
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
    slot_use: SlotUse,
    /// The worker that claimed the slot, once the server has seen the claim and as long as the worker lives.
    worker_slot: Option<usize>,
    writer: Writer,
    reader: Reader,
    /// `Done` or `Aborted` once the worker's final tag was received.
    final_phase: Option<SlotPhase>,
    /// The last kind of frame that advanced the response.
    stage: FrameKind,
    /// Whether any part was received.
    has_started: bool,
    /// Whether the request's end was published.
    ended: bool,
    /// Whether the slot is listed in `touched`.
    is_touched: bool,
    /// Whether a file was received whose worker waits to learn that the descriptor is no longer needed.
    holds_file: bool,
}

#[derive(Clone, Copy, Default)]
struct ClaimantRecord {
    position: u32,
    /// Whether the worker violated the protocol; its lane is not read until it has died.
    is_muted: bool,
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
    has_queued: bool,
    /// Slots whose worker, if any, must be notified of progress.
    touched_slots: Vec<u16>,
    /// Tickets with news found outside of `poll`.
    pending_tickets: Vec<Ticket>,
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
        let slots = shared.geometry.slots;
        let worker_slots = shared.geometry.worker_slots;
        let record = |_| SlotRecord {
            generation: SlotGeneration::FIRST,
            slot_use: SlotUse::Free,
            worker_slot: None,
            writer: Writer::new(),
            reader: Reader::new(),
            final_phase: None,
            stage: FrameKind::Interim,
            has_started: false,
            ended: false,
            is_touched: false,
            holds_file: false,
        };
        ServerSide {
            records: (0..slots).map(record).collect(),
            free: (0..slots as u16).rev().collect(),
            worker_slots: vec![ClaimantRecord::default(); worker_slots],
            shared,
            thread,
            tail: 0,
            has_queued: false,
            touched_slots: Vec::new(),
            pending_tickets: Vec::new(),
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
    /// See [`SubmitError`].
    pub fn submit(&mut self, head: &[u8], body: &[u8], last: bool) -> Result<(Ticket, usize), SubmitError> {
        let &slot = self.free.last().ok_or(SubmitError::Full)?;
        let at = usize::from(slot);
        let shared = &*self.shared;
        let view = shared.slot(self.thread, at);
        let request = view.request();
        let response = view.response();
        if head.len() > request.payload_max() as usize {
            return Err(SubmitError::HeadTooLarge);
        }
        self.free.pop();
        for word in [request.tail, response.head, response.tail, view.notice_flag(), view.cancelled()] {
            word.store(0, Relaxed);
        }
        view.measure().store(self.measure as u32, Relaxed);
        view.cost().into_iter().for_each(|word| word.store(UNKNOWN, Relaxed));
        let mut writer = Writer::new();
        writer.write_frame(request, FrameKind::Head, head);
        // If a worker has overwritten the tail, the only effect is that nothing more fits.
        let taken = if body.is_empty() { 0 } else { writer.write_body(request, body).unwrap_or(0) };
        let ended = last && taken == body.len();
        writer.publish(request, ended);

        let record = &mut self.records[at];
        let generation = record.generation;
        *record = SlotRecord {
            generation,
            slot_use: SlotUse::Live,
            worker_slot: None,
            writer,
            reader: Reader::new(),
            final_phase: None,
            stage: FrameKind::Interim,
            has_started: false,
            ended,
            is_touched: record.is_touched,
            holds_file: false,
        };
        view.state().store(SlotState::ready(generation).0, Release);
        Queue::new(shared, self.thread).push(&mut self.tail, Tag::new(at, generation));
        self.has_queued = true;
        Ok((Ticket { slot, generation }, taken))
    }

    /// Streams more of a request's body. Returns the number of bytes taken, 0 if the worker must first
    /// consume some, after which `poll` reports the ticket. With `last` the request ends with `body`, if all
    /// of it was taken. For a request that has already been answered, all bytes are accepted and discarded.
    ///
    /// # Errors
    /// See [`TicketError`].
    pub fn push_body(&mut self, ticket: Ticket, body: &[u8], last: bool) -> Result<usize, TicketError> {
        let at = self.live_slot(ticket)?;
        let record = &mut self.records[at];
        if record.ended || record.final_phase.is_some() {
            return Ok(body.len());
        }
        let pipe = self.shared.slot(self.thread, at).request();
        let taken = match record.writer.write_body(pipe, body) {
            Ok(taken) => taken,
            Err(breach) => return Err(TicketError::WorkerFault(self.void_ticket(at, breach))),
        };
        record.ended = last && taken == body.len();
        if taken > 0 || record.ended {
            record.writer.publish(pipe, record.ended);
            self.mark_touched(at);
        }
        Ok(taken)
    }

    /// The worker that holds the request; `None` if queued or finished, or if the state word is invalid.
    pub fn claimant(&self, ticket: Ticket) -> Option<WorkerSlot> {
        let at = self.live_slot(ticket).ok()?;
        if self.records[at].final_phase.is_some() {
            return None;
        }
        self.records[at].worker_slot.or_else(|| self.holder(at)?.1).map(WorkerSlot)
    }

    /// The worker that sends the response, even after it has finished; `None` before anything has arrived, or
    /// after the worker's death. For statistics: the worker may already hold another request.
    pub fn responder(&self, ticket: Ticket) -> Option<WorkerSlot> {
        self.live_slot(ticket).ok().and_then(|at| self.records[at].worker_slot).map(WorkerSlot)
    }

    /// Cancels the request with a `reason` that the worker can read: a queued request is removed immediately,
    /// a claimed one keeps its slot until its worker releases it or dies. The ticket is invalid from then on.
    pub fn cancel(&mut self, ticket: Ticket, reason: NonZeroU32) {
        let Ok(at) = self.live_slot(ticket) else { return };
        let view = self.slot(at);
        let ready = SlotState::ready(ticket.generation);
        let free = SlotState::new(SlotPhase::Free, 0, ticket.generation);
        let record = &self.records[at];
        if record.final_phase.is_some()
            || view.state().compare_exchange(ready.0, free.0, AcqRel, Acquire).is_ok()
        {
            return self.release(at);
        }
        view.cancelled().store(reason.get(), Release);
        if record.worker_slot.is_none() && self.holder(at).is_none() {
            return self.quarantine(at);
        }
        self.records[at].slot_use = SlotUse::Cancelled;
        self.mark_touched(at);
    }

    /// Notifies the worker, now or when it claims the request, that the client has closed its sending side.
    /// The response is still expected: see [`Readiness::has_client_closed`](crate::Readiness::has_client_closed).
    pub fn report_client_closed(&mut self, ticket: Ticket) {
        if let Ok(at) = self.live_slot(ticket) {
            self.slot(at).cancelled().store(CLIENT_CLOSED, Release);
            self.mark_touched(at);
        }
    }

    /// Whether a worker still holds a request that was cancelled.
    pub fn is_still_held(&self, ticket: Ticket) -> bool {
        let record = &self.records[ticket.index()];
        record.generation == ticket.generation && record.slot_use == SlotUse::Cancelled
    }

    /// Reads the notices of every worker and calls `each` for every ticket with news: parts to [`receive`],
    /// or room for [`push_body`]. The number of notices handled by one call is bounded.
    ///
    /// [`receive`]: ServerSide::receive
    /// [`push_body`]: ServerSide::push_body
    pub fn poll(&mut self, mut each: impl FnMut(&mut ServerSide, Ticket)) {
        for ticket in std::mem::take(&mut self.pending_tickets) {
            if self.live_slot(ticket).is_ok() {
                each(self, ticket);
            }
        }
        for worker_slot in 0..self.worker_slots.len() {
            for _ in 0..self.shared.geometry.cells {
                if self.worker_slots[worker_slot].is_muted {
                    break;
                }
                let position = &mut self.worker_slots[worker_slot].position;
                let Some(tag) = lane::pop(&self.shared, self.thread, worker_slot, position) else { break };
                match self.validate_notice(worker_slot, tag) {
                    Ok(Some(ticket)) => each(self, ticket),
                    Ok(None) => {}
                    Err(breach) => self.mute_worker(Some(worker_slot), breach),
                }
            }
        }
    }

    /// Takes the next available part of the response to `ticket`; bytes are appended to `into`, at most
    /// `bytes_max` (at least 1) of a body at once. Call it until it returns `None` or the client cannot
    /// accept more: data left in the slot provides backpressure for the worker.
    ///
    /// # Errors
    /// See [`TicketError`]; the ticket is void afterwards.
    pub fn receive(
        &mut self,
        ticket: Ticket,
        into: &mut Vec<u8>,
        bytes_max: usize,
    ) -> Result<Option<ReceivedPart>, TicketError> {
        let at = self.live_slot(ticket)?;
        self.release_file(at);
        self.next_part(at, into, bytes_max)
            .map_err(|breach| TicketError::WorkerFault(self.void_ticket(at, breach)))
    }

    /// Resumes the worker that waits after a [`ResponsePart::File`]; the next [`ServerSide::receive`] does the same.
    pub fn release_taken_file(&mut self, ticket: Ticket) {
        if let Ok(at) = self.live_slot(ticket) {
            self.release_file(at);
        }
    }

    /// The eventfd that wakes this thread; with edge-triggered epoll it need not be read.
    #[cfg(not(loom))]
    pub fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.shared.thread_doorbells[self.thread].fd()
    }

    /// Sleeps until the thread is rung.
    #[cfg(loom)]
    pub fn sleep(&self) {
        self.shared.thread_doorbells[self.thread].wait();
    }

    /// Prepares for sleeping: from now on workers ring the doorbell. Returns `false`, without preparing, if
    /// there is already something to [`poll`](ServerSide::poll).
    #[must_use]
    pub fn arm(&mut self) -> bool {
        self.flush_doorbells();
        self.shared.thread_sleep_flag(self.thread).swap(1, AcqRel);
        fence(SeqCst);
        let waiting = |(worker_slot, record): (usize, &ClaimantRecord)| {
            !record.is_muted && !lane::is_empty(&self.shared, self.thread, worker_slot, record.position)
        };
        if self.pending_tickets.is_empty() && !self.worker_slots.iter().enumerate().any(waiting) {
            return true;
        }
        self.disarm();
        false
    }

    /// Ends the preparation after the thread slept, so that workers need not ring.
    pub fn disarm(&mut self) {
        self.shared.thread_sleep_flag(self.thread).swap(0, AcqRel);
    }

    /// Wakes workers with work to do: one idle worker if requests were queued (it wakes the next one), and
    /// the workers whose requests have progressed. Called once at the end of an event loop iteration, because
    /// waking is expensive.
    pub fn flush_doorbells(&mut self) {
        if !self.has_queued && self.touched_slots.is_empty() {
            return;
        }
        // Publish, fence, check for sleepers; a worker announces that it sleeps, fences, and checks again.
        fence(SeqCst);
        if std::mem::take(&mut self.has_queued) {
            self.shared.wake_one();
        }
        let mut touched = std::mem::take(&mut self.touched_slots);
        for at in touched.drain(..).map(usize::from) {
            self.records[at].is_touched = false;
            // Only after the fence is it certain whether a worker holds the request.
            if let Some((SlotPhase::Claimed, Some(worker_slot))) = self.holder(at) {
                self.shared.ring_slot(worker_slot);
            }
        }
        self.touched_slots = touched;
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
    pub fn worker_died(&mut self, WorkerSlot(worker_slot): WorkerSlot) -> Vec<LostRequest> {
        let mut lost = Vec::new();
        for at in 0..self.records.len() {
            self.reclaim_slot(worker_slot, at, &mut lost);
        }
        lane::clear(&self.shared, self.thread, worker_slot);
        self.worker_slots[worker_slot] = ClaimantRecord::default();
        self.shared.clear_idle(worker_slot);
        self.shared.sleep_word(worker_slot).store(AWAKE, Relaxed);
        self.shared.retired_flag(worker_slot).store(0, Relaxed);
        // The dead worker may have been the one woken for the queued requests.
        let shared = Arc::clone(&self.shared);
        let queue = Queue::new(&shared, self.thread);
        queue.rebuild(&mut self.tail);
        self.has_queued |= !queue.is_empty();
        lost
    }
}

/// Private helpers of the methods above.
impl ServerSide {
    fn live_slot(&self, ticket: Ticket) -> Result<usize, TicketError> {
        let at = ticket.index();
        match self.records.get(at) {
            Some(record) if record.slot_use == SlotUse::Live && record.generation == ticket.generation => {
                Ok(at)
            }
            _ => Err(TicketError::Void),
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
    fn validate_notice(&mut self, worker_slot: usize, tag: Tag) -> Result<Option<Ticket>, ProtocolViolation> {
        let at = tag.slot();
        let record = self.records.get(at).ok_or(ProtocolViolation::Tag)?;
        if record.generation != tag.generation()
            || record.worker_slot.is_some_and(|known| known != worker_slot)
        {
            return Err(ProtocolViolation::Tag);
        }
        let (phase, holder) = match record.slot_use {
            SlotUse::Free => return Err(ProtocolViolation::Tag),
            SlotUse::Broken => return Ok(None),
            SlotUse::Live | SlotUse::Cancelled => self.holder(at).ok_or(ProtocolViolation::SlotState)?,
        };
        if holder != Some(worker_slot) {
            return Err(ProtocolViolation::Tag);
        }
        let cancelled = record.slot_use == SlotUse::Cancelled;
        if !tag.is_finished() {
            // Cleared before the streams are read, so that later progress causes a new notice.
            self.slot(at).notice_flag().swap(0, AcqRel);
        } else if phase == SlotPhase::Claimed || record.final_phase.is_some() {
            return Err(ProtocolViolation::SlotState);
        }
        let record = &mut self.records[at];
        record.worker_slot = Some(worker_slot);
        record.final_phase = tag.is_finished().then_some(phase).or(record.final_phase);
        let ticket = Ticket { slot: at as u16, generation: record.generation };
        if !cancelled {
            return Ok(Some(ticket));
        }
        if tag.is_finished() {
            self.release(at);
        }
        Ok(None)
    }

    fn next_part(
        &mut self,
        at: usize,
        into: &mut Vec<u8>,
        bytes_max: usize,
    ) -> Result<Option<ReceivedPart>, ProtocolViolation> {
        let record = &mut self.records[at];
        if record.worker_slot.is_none() && record.final_phase.is_none() {
            return Ok(None);
        }
        let view = self.shared.slot(self.thread, at);
        self.cost =
            WorkerCost::read(view.cost().map(|word| word.load(Relaxed)), record.final_phase.is_some());
        let pipe = view.response();
        let Some(frame) = record.reader.next(pipe)? else {
            let part = match record.final_phase {
                None => return Ok(None),
                Some(SlotPhase::Aborted) => ResponsePart::Aborted(view.reason().load(Relaxed)),
                Some(_) if record.stage == FrameKind::Interim => return Err(ProtocolViolation::Order),
                Some(_) => ResponsePart::End,
            };
            self.release(at);
            return Ok(Some(ReceivedPart { part, is_last: true }));
        };
        record.has_started = true;
        record.stage = next_stage(record.stage, frame.kind)?;
        let whole = frame.unread as usize;
        let part = match frame.kind {
            FrameKind::Data => {
                record.reader.append(pipe, bytes_max.max(1), into);
                ResponsePart::Data
            }
            FrameKind::File => {
                let mut bytes = [0; FilePart::BYTES];
                let count = record.reader.copy(pipe, &mut bytes);
                if whole != FilePart::BYTES || count != FilePart::BYTES {
                    return Err(ProtocolViolation::Frame);
                }
                ResponsePart::File(FilePart::decode(bytes))
            }
            FrameKind::Log => {
                let mut level = [0];
                if record.reader.copy(pipe, &mut level) == 0 {
                    return Err(ProtocolViolation::Frame);
                }
                record.reader.append(pipe, whole, into);
                ResponsePart::Log(level[0])
            }
            kind => {
                record.reader.append(pipe, whole, into);
                match kind {
                    FrameKind::Interim => ResponsePart::Interim,
                    FrameKind::Trailers => ResponsePart::Trailers,
                    _ => ResponsePart::Head,
                }
            }
        };
        let last = record.final_phase == Some(SlotPhase::Done) && record.reader.is_empty(pipe)?;
        if last {
            if record.stage == FrameKind::Interim {
                return Err(ProtocolViolation::Order);
            }
            self.release(at);
        } else if record.final_phase.is_none() {
            // A worker may close its file as soon as the server reports that it has received it.
            record.holds_file = frame.kind == FrameKind::File;
            if !record.holds_file && record.reader.should_report(pipe) {
                record.reader.report(pipe);
                self.mark_touched(at);
            }
        }
        Ok(Some(ReceivedPart { part, is_last: last }))
    }

    fn release_file(&mut self, at: usize) {
        if std::mem::take(&mut self.records[at].holds_file) {
            let pipe = self.shared.slot(self.thread, at).response();
            self.records[at].reader.report(pipe);
            self.mark_touched(at);
        }
    }

    fn mark_touched(&mut self, at: usize) {
        if !std::mem::replace(&mut self.records[at].is_touched, true) {
            self.touched_slots.push(at as u16);
        }
    }

    /// Returns the slot to the free list with a new generation.
    fn release(&mut self, at: usize) {
        let record = &mut self.records[at];
        record.slot_use = SlotUse::Free;
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
