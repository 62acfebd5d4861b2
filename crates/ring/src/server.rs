//! The server's side: one handle per server thread, which submits requests and takes answers.
//!
//! Everything it decides on stands in private memory; from the shared memory it takes one copy of a value, checks it, and
//! goes by the copy. What does not check is a [`WorkerFault`]: the worker slot is heard no more, and its slots come back when it dies.

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

/// A request under way. Void once its answer was received whole, it was cancelled, or it was lost with its worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Ticket {
    slot: u16,
    generation: SlotGeneration,
}

impl Ticket {
    /// A small number that no other request under way of this [`ServerSide`] has: below [`ServerSide::slots`]. For a table.
    pub fn index(self) -> usize {
        self.slot.into()
    }
}

/// A request that died with its worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lost {
    /// Void from now on.
    pub ticket: Ticket,
    /// Whether any part of its answer was received. If not, another worker may be asked.
    pub started: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Use {
    Free,
    /// In use; its ticket is valid.
    Live,
    /// Cancelled while a worker held it; free when the worker releases it.
    Cancelled,
    /// Its response broke the protocol; free when its worker is dead, or never if its worker is unknown.
    Broken,
}

/// What the private side knows of a slot.
struct SlotRecord {
    generation: SlotGeneration,
    used: Use,
    /// The worker that claimed it, once the server has seen that, and as long as the worker lives.
    worker_slot: Option<usize>,
    writer: Writer,
    reader: Reader,
    /// `Done` or `Aborted` once the worker's final tag was seen.
    ending: Option<SlotPhase>,
    /// The kind of frame that came last and counts for the order.
    stage: FrameKind,
    /// Whether any part was received.
    started: bool,
    /// Whether the request's end was published.
    ended: bool,
    /// Whether it stands in `touched`.
    touched: bool,
    /// Whether a file was received, and its worker waits to hear that its descriptor is no longer needed.
    file: bool,
}

#[derive(Clone, Copy, Default)]
struct ClaimantRecord {
    position: u32,
    /// It broke the rules; its lane is not read until it died.
    mute: bool,
}

/// One server thread's side of the channel.
pub struct ServerSide {
    shared: Arc<SharedMemory>,
    thread: usize,
    records: Vec<SlotRecord>,
    /// Free slots, the one used last on top: its memory is warm, and the others' need never be touched.
    free: Vec<u16>,
    worker_slots: Vec<ClaimantRecord>,
    tail: u32,
    /// Whether requests were queued since the last ring.
    queued: bool,
    /// Slots whose worker, if it has one, has something to see.
    touched: Vec<u16>,
    /// News found outside `poll`.
    owed: Vec<Ticket>,
    faults: Vec<WorkerFault>,
    quarantined: usize,
    /// What workers are to measure of the requests submitted from now on.
    measure: Measure,
    /// Of the response that was received from last.
    cost: WorkerCost,
    /// Pinned to its thread.
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

    /// How many requests this thread may have under way.
    pub fn slots(&self) -> usize {
        self.records.len()
    }

    /// Number of slots lost for good: their state was overwritten, so their holder is unknown. Once it is not 0,
    /// replace the generation.
    pub fn quarantined(&self) -> usize {
        self.quarantined
    }

    /// Decides what workers are to measure of the requests that are submitted from now on.
    pub fn set_measure(&mut self, measure: Measure) {
        self.measure = measure;
    }

    /// What its worker has reported of the request that was received from last; CPU time and memory after the last part alone.
    #[must_use]
    pub fn cost(&self) -> WorkerCost {
        self.cost
    }

    /// The next worker found to break the rules, which is to be killed.
    pub fn take_fault(&mut self) -> Option<WorkerFault> {
        self.faults.pop()
    }

    /// Queues a request: its head, whole, and as much of `body` as fits, whose count comes back. With `last` the request
    /// ends with `body`, if all of it was taken; otherwise it continues with [`ServerSide::push_body`].
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

    /// Streams more of a request's body: how many bytes were taken, 0 where the worker has to consume first, after which
    /// there is news of this ticket. With `last` the request ends with `body`, if all of it was taken. A request already
    /// answered takes everything and keeps nothing.
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

    /// The worker that holds the request; `None` while it is queued, once its worker has finished, or if the memory does not
    /// say.
    pub fn claimant(&self, ticket: Ticket) -> Option<WorkerSlot> {
        let at = self.live(ticket).ok()?;
        if self.records[at].ending.is_some() {
            return None;
        }
        self.records[at].worker_slot.or_else(|| self.holder(at)?.1).map(WorkerSlot)
    }

    /// The worker that sends the response, also once that is finished; `None` before anything has arrived, or after the
    /// worker's death. For statistics: the worker may hold another request by now.
    pub fn answerer(&self, ticket: Ticket) -> Option<WorkerSlot> {
        self.live(ticket).ok().and_then(|at| self.records[at].worker_slot).map(WorkerSlot)
    }

    /// Cancels the request, for a `reason` that the worker may read: a queued request is removed at once, a claimed one
    /// keeps its slot until its worker releases it or dies. The ticket is invalid from then on.
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

    /// Notifies the worker, now or when it claims the request, that the client has closed its sending side. The answer is
    /// still wanted: see [`News::client_closed`](crate::News::client_closed).
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

    /// Looks at every worker's notices and calls `each` for every ticket that has news: parts to [`receive`], or room for
    /// [`push_body`]. A bounded number, even where a worker never stops.
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

    /// Takes the next part of the answer to `ticket`, as far as it has come; bytes are appended to `into`, of a body at
    /// most `bytes_max` (at least 1) at once. Receive until there is `None`, or until the client cannot take more: what
    /// is left in the slot is what holds the worker back.
    ///
    /// # Errors
    /// See [`Error`]; the ticket is void then.
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

    /// Lets the worker continue that waits since a [`Part::File`]: its descriptor was received, or is not needed. The next
    /// [`ServerSide::receive`] does the same.
    pub fn file_taken(&mut self, ticket: Ticket) {
        if let Ok(at) = self.live(ticket) {
            self.release_file(at);
        }
    }

    /// The eventfd that wakes this thread: edge-triggered it need not be read.
    #[cfg(not(loom))]
    pub fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.shared.thread_signals[self.thread].fd()
    }

    /// Sleeps until the thread is rung.
    #[cfg(loom)]
    pub fn sleep(&self) {
        self.shared.thread_signals[self.thread].wait();
    }

    /// Before the thread sleeps: from now on workers ring. `false`, and not armed, if there is something to
    /// [`poll`](ServerSide::poll) already.
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

    /// After the thread slept: spares the workers the ringing.
    pub fn disarm(&mut self) {
        self.shared.asleep(self.thread).swap(0, AcqRel);
    }

    /// Wakes workers that have something to do: one idle worker if requests were queued (it wakes the next), and the workers
    /// whose requests have made progress. Called once, at the end of the event loop's tick, because waking is expensive.
    pub fn flush_doorbells(&mut self) {
        if !self.queued && self.touched.is_empty() {
            return;
        }
        // Publish, fence, look who sleeps; a worker says that it sleeps, fences, and looks again.
        fence(SeqCst);
        if std::mem::take(&mut self.queued) {
            self.shared.wake_one();
        }
        let mut touched = std::mem::take(&mut self.touched);
        for at in touched.drain(..).map(usize::from) {
            self.records[at].touched = false;
            // Only now, after the fence, is it sure whether a worker has it.
            if let Some((SlotPhase::Claimed, Some(worker_slot))) = self.holder(at) {
                self.shared.ring_slot(worker_slot);
            }
        }
        self.touched = touched;
    }

    /// Wakes one more idle worker if requests still wait, because the worker that was woken for them does not claim them:
    /// an event loop may have fallen into a long computation. Whether there was one to wake.
    pub fn wake_another(&mut self) -> bool {
        fence(SeqCst);
        !Queue::new(&self.shared, self.thread).is_empty() && self.shared.wake_one()
    }

    /// Takes back the slots of a dead worker: its complete responses are still received, the others are
    /// lost. Call it on every server thread, after the process is gone (pidfd), and before the worker slot is given to another;
    /// then [`flush_doorbells`](ServerSide::flush_doorbells) and [`poll`](ServerSide::poll).
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
        // It may have been the worker that was woken for the queued requests.
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

    /// What the state word says, if an honest side can have written it: the worker slot is `None` while queued.
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

    /// Checks one tag of `worker_slot`'s lane against the slot it names.
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
            // Taken note of before its streams are looked at: what comes after is noticed again.
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

    /// The slot is the server's again, and its next use another.
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
