//! The queue of one core for one generation: requests, their tickets and their deadlines.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use net::{Core, TaskId};
use ring::{LostRequest, Measure, ServerSide, SubmitError, Ticket, WorkerSlot};
use times::{Millis, Moment};

use crate::deflate::Codecs;
use crate::generation::{ClaimedHead, CoreLoad, Generation, HeadStart, SHOWN_MAX};
use crate::options::Options;
use crate::queues::{CommandQueue, KillReason, SupervisorCommand, lock};

mod overdue;
mod pending;

use overdue::{OverdueEvent, OverdueRequests};
pub(crate) use pending::PendingRequest;

/// A request that waits longer than this causes one more worker to be started.
const SCALE_UP_AFTER: Millis = Millis(20);
/// Timed-out requests that are logged per second.
const TIMEOUTS_LOGGED_MAX: u32 = 10;
/// How long a worker waits for a client at least before the response may be cut off for others. Whoever reads steadily empties the buffers
/// sooner.
const HELD_TIME_MIN: Millis = Millis(2_000);
/// Minimum interval between two log lines about responses that were cut off.
const TRUNCATION_REPORT_INTERVAL: Millis = Millis(60_000);
/// Buffers kept for reuse.
const BUFFERS_MAX: usize = 32;
/// Capacity of the largest buffer that is kept.
const BUFFER_BYTES_MAX: usize = 128 * 1024;

/// The reason why a request ended without a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completion {
    /// The worker died. `again`: another worker may get the request.
    WorkerDied { may_retry: bool },
    /// The deadline for a response has passed.
    TimedOut,
    /// No worker claimed the request in time.
    Unclaimed,
    /// Dropped in favour of a newer request, because the queue was full.
    Dropped,
    /// The application cannot be loaded.
    LoadFailed,
    /// The client stopped sending its body, or reading the response.
    ClientStalled,
    /// The client reads the response slowly, and other requests wait for its worker.
    ClientTooSlow,
}

/// The side that must make progress next, and its time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deadline {
    /// The worker, until its response begins: within `timeouts.request`.
    Worker,
    /// The worker, between two pieces of its response: within `timeouts.between`.
    NextPiece,
    /// The client, within this time.
    Client(Millis),
    /// The client must read the response, within this time, while a worker waits for it.
    ClientRead(Millis),
    /// Another deadline applies.
    Other,
    /// No deadline; the task is woken repeatedly at this interval.
    Poll(Millis),
}

/// State of the request of one ticket.
#[derive(Clone, Copy)]
struct RequestEntry {
    ticket: Ticket,
    task: TaskId,
    has_event: bool,
    completion: Option<Completion>,
    queued_at: Moment,
    /// Time at which the claim by a worker was noticed.
    claimed_at: Option<Moment>,
    deadline: Deadline,
    deadline_since: Moment,
    /// Time since which the worker has waited for the client to read the response.
    held_since: Option<Moment>,
}

impl RequestEntry {
    /// Deadline for the next progress of a claimed request.
    fn deadline(&self, options: &Options) -> Moment {
        let since = self.deadline_since.max(self.claimed_at.unwrap_or_default());
        match self.deadline {
            Deadline::Worker => since + Millis::of(options.settings.timeouts.request),
            Deadline::NextPiece => since + options.settings.timeouts.between_max(),
            Deadline::Client(time) | Deadline::ClientRead(time) | Deadline::Poll(time) => since + time,
            Deadline::Other => Moment::NEVER,
        }
    }
}

/// Places of a request in `concurrent` limits and in a queue: see [`net::Exchange::places`].
pub(crate) type HeldPermits = [Option<Rc<dyn Any>>; 2];

/// The queue of one core for one generation.
pub(crate) struct Dispatcher {
    pub(crate) core: Core,
    pub(crate) generation: Arc<Generation>,
    index: usize,
    commands: Arc<CommandQueue>,
    server: RefCell<ServerSide>,
    entries: RefCell<Vec<Option<RequestEntry>>>,
    /// Tickets whose worker died and whose tasks have not noticed it yet, and whether another worker may get
    /// the request. The slots may be in use again.
    lost_tickets: RefCell<Vec<(Ticket, bool)>>,
    /// The beginning of each request's head, for the status, indexed by ticket.
    heads: RefCell<Vec<HeadStart>>,
    /// Timed-out requests that their workers must release.
    overdue: OverdueRequests,
    /// Places of requests whose clients have left, and for which workers still run.
    abandoned_permits: RefCell<Vec<(Ticket, HeldPermits)>>,
    buffers: RefCell<Vec<Vec<u8>>>,
    /// Start of the current second, and the numbers of timed-out requests logged and not logged in it.
    logged_timeouts: Cell<(Moment, u32, u32)>,
    /// The codecs of WebSocket messages.
    pub(crate) codecs: Codecs,
    is_armed: Cell<bool>,
    /// Whether another generation serves.
    is_replaced: Cell<bool>,
    /// Time at which a cut-off response was last logged.
    truncation_logged_at: Cell<Option<Moment>>,
}

impl Dispatcher {
    /// Creates the dispatcher of core `index`; called once, on that core.
    pub(crate) fn new(
        core: &Core,
        generation: Arc<Generation>,
        index: usize,
        commands: Arc<CommandQueue>,
    ) -> std::io::Result<Dispatcher> {
        let server = generation.channel.server(index);
        core.watch_eventfd(&server.fd())?;
        Ok(Dispatcher {
            core: core.clone(),
            index,
            commands,
            entries: RefCell::new(vec![None; server.slots()]),
            server: RefCell::new(server),
            lost_tickets: RefCell::default(),
            heads: RefCell::default(),
            overdue: OverdueRequests::default(),
            abandoned_permits: RefCell::default(),
            buffers: RefCell::default(),
            logged_timeouts: Cell::default(),
            codecs: Codecs::default(),
            is_armed: Cell::new(false),
            is_replaced: Cell::new(false),
            truncation_logged_at: Cell::new(None),
            generation,
        })
    }

    /// Returns an empty buffer.
    pub(crate) fn buffer(&self) -> Vec<u8> {
        self.buffers.borrow_mut().pop().unwrap_or_default()
    }

    /// Keeps a buffer for reuse.
    pub(crate) fn return_buffer(&self, mut buffer: Vec<u8>) {
        let mut buffers = self.buffers.borrow_mut();
        if buffers.len() < BUFFERS_MAX && buffer.capacity() <= BUFFER_BYTES_MAX {
            buffer.clear();
            buffers.push(buffer);
        }
    }

    /// Wakes another idle worker for requests that were not claimed. Returns whether there was one.
    pub(crate) fn wake_another(&self) -> bool {
        self.server.borrow_mut().wake_another()
    }

    /// Number of requests in progress.
    pub(crate) fn in_use(&self) -> usize {
        let server = self.server.borrow();
        // Quarantined slots have no request.
        server.in_use() - server.quarantined()
    }

    /// Queues a request; returns how much of the body was written. If the queue is full, the oldest request is dropped.
    ///
    /// # Errors
    /// See [`SubmitError`].
    pub(crate) fn submit(
        self: &Rc<Dispatcher>,
        head: &[u8],
        body: &[u8],
        last: bool,
        measure: Measure,
        places: HeldPermits,
    ) -> Result<(PendingRequest, usize), SubmitError> {
        let (waits, has_slot) = {
            let server = self.server.borrow();
            (server.queued(self.index) > 0, server.in_use() < server.slots())
        };
        // A request that finds no other one waiting is most likely claimed at once. If no slot is free, this
        // request is refused: a dropped one keeps its slot until its task has run.
        if waits && has_slot {
            self.make_room();
        }
        let (ticket, taken) = {
            let mut server = self.server.borrow_mut();
            server.set_measure(measure);
            server.submit(head, body, last)?
        };
        let now = self.core.now();
        let entry = RequestEntry {
            ticket,
            task: self.core.current_task(),
            has_event: false,
            completion: None,
            queued_at: now,
            claimed_at: None,
            deadline: Deadline::Worker,
            deadline_since: now,
            held_since: None,
        };
        self.entries.borrow_mut()[ticket.index()] = Some(entry);
        let mut heads = self.heads.borrow_mut();
        let unused = HeadStart::of(b"");
        if heads.len() <= ticket.index() {
            heads.resize(ticket.index() + 1, unused);
        }
        heads[ticket.index()] = HeadStart::of(head);
        Ok((PendingRequest::new(self, ticket, places), taken))
    }

    /// Counts the next request, which waits behind others. If the application's queue is full, drops the
    /// oldest waiting request, whose client is the most likely to have given up.
    fn make_room(&self) {
        let counted = &self.generation.core_loads[self.index].waiting;
        counted.store(counted.load(Ordering::Relaxed).max(1) + 1, Ordering::Relaxed);
        if self.waiting() <= self.generation.options.settings.queue_max as usize {
            return;
        }
        self.update_claims();
        let mut entries = self.entries.borrow_mut();
        let waiting = || {
            entries.iter().flatten().filter(|entry| entry.claimed_at.is_none() && entry.completion.is_none())
        };
        counted.store(waiting().count() + 1, Ordering::Relaxed);
        if self.waiting() <= self.generation.options.settings.queue_max as usize {
            return;
        }
        let Some(at) = waiting().min_by_key(|entry| entry.queued_at).map(|entry| entry.ticket.index()) else {
            return;
        };
        if let Some(entry) = &mut entries[at] {
            self.complete(entry, Completion::Dropped);
            counted.store(counted.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
        }
    }

    /// Requests of all cores that wait for a worker, including the one that this core is about to queue
    /// behind others. The value is an estimate: a core's count is too high until the core checks which
    /// requests were claimed, and one too low if none waited before; its queue counts cancelled requests as
    /// well.
    fn waiting(&self) -> usize {
        let server = self.server.borrow();
        let of_core = |(index, load): (usize, &CoreLoad)| {
            let queued = server.queued(index) + usize::from(index == self.index);
            load.waiting.load(Ordering::Relaxed).max(1).min(queued)
        };
        self.generation.core_loads.iter().enumerate().map(of_core).sum()
    }

    /// Ends a request without a response: its task is woken, and releases the ticket.
    fn complete(&self, entry: &mut RequestEntry, completion: Completion) {
        if entry.completion.is_none() {
            entry.completion = Some(completion);
            self.core.wake_task(entry.task);
        }
    }

    fn update_claims(&self) {
        let server = self.server.borrow();
        for entry in self.entries.borrow_mut().iter_mut().flatten() {
            if entry.claimed_at.is_none()
                && entry.completion.is_none()
                && server.claimant(entry.ticket).is_some()
            {
                entry.claimed_at = Some(self.core.now());
            }
        }
    }

    /// Checks all deadlines, and publishes the counts of this core. Runs a few times a second.
    pub(crate) fn sweep(&self) {
        self.update_held();
        self.release_permits();
        if self.in_use() == 0 {
            return self.report_load(0, 0);
        }
        self.update_claims();
        let now = self.core.now();
        let server = self.server.borrow();
        let mut waiting = 0;
        let mut claimed = 0;
        let mut need = false;
        for entry in self.entries.borrow_mut().iter_mut().flatten().filter(|entry| entry.completion.is_none())
        {
            if entry.claimed_at.is_some() {
                claimed += 1;
                if let Some(WorkerSlot(worker_slot)) = server.claimant(entry.ticket) {
                    self.generation.has_seen_deadline[worker_slot].store(true, Ordering::Relaxed);
                }
                if now < entry.deadline(&self.generation.options) {
                    continue;
                }
                match entry.deadline {
                    Deadline::Client(_) | Deadline::ClientRead(_) => {
                        self.complete(entry, Completion::ClientStalled)
                    }
                    Deadline::Poll(_) => {
                        (entry.has_event, entry.deadline_since) = (true, now);
                        self.core.wake_task(entry.task);
                    }
                    // The worker is killed after the request was logged: see `Drop` of `PendingRequest`.
                    Deadline::Worker | Deadline::NextPiece | Deadline::Other => {
                        self.complete(entry, Completion::TimedOut)
                    }
                }
                continue;
            }
            let waited = now - entry.queued_at;
            if waited >= Millis::of(self.generation.options.settings.timeouts.queue) {
                self.complete(entry, Completion::Unclaimed);
                continue;
            }
            waiting += 1;
            need |= waited >= SCALE_UP_AFTER;
        }
        drop(server);
        self.report_load(waiting, claimed);
        self.end_slowest_response();
        if need {
            self.commands.send(SupervisorCommand::RequestsWaiting);
        }
    }

    /// Handles the worker of a timed-out request. A worker that runs one request at a time hangs; an event
    /// loop, which also runs others, may only be waiting.
    fn handle_timed_out_worker(&self, ticket: Ticket, worker_slot: WorkerSlot) {
        if self.generation.is_one_request_per_thread() {
            self.kill(worker_slot, KillReason::TimedOut)
        } else {
            self.overdue.add(ticket, worker_slot, self.core.now())
        }
    }

    /// Returns whether one more timed-out request may be logged, and how many were suppressed before it. All
    /// requests of an event loop may time out at once.
    pub(crate) fn may_log(&self) -> Option<u32> {
        let (mut since, mut reported, mut unreported) = self.logged_timeouts.get();
        if self.core.now() - since >= Millis(1_000) {
            (since, reported) = (self.core.now(), 0);
        }
        let may = reported < TIMEOUTS_LOGGED_MAX;
        let before = unreported;
        (reported, unreported) =
            if may { (reported + 1, 0) } else { (reported, unreported.saturating_add(1)) };
        self.logged_timeouts.set((since, reported, unreported));
        may.then_some(before)
    }

    fn update_held(&self) {
        let server = self.server.borrow();
        let report = |worker_slot, event| match event {
            OverdueEvent::Hangs => self.kill(worker_slot, KillReason::Unreleased),
            OverdueEvent::Unresponsive => self.report_overdue(worker_slot, 1),
            OverdueEvent::Responsive => self.report_overdue(worker_slot, -1),
        };
        self.overdue.check(self.core.now(), |ticket| server.is_still_held(ticket), report);
    }

    fn report_overdue(&self, WorkerSlot(worker_slot): WorkerSlot, more: isize) {
        self.commands.send(SupervisorCommand::Overdue {
            generation: self.generation.number,
            worker_slot,
            change: more,
        });
    }

    /// Ends the response whose worker has waited longest for its client, if slow clients occupy too many
    /// workers.
    pub(crate) fn end_slowest_response(&self) {
        if !self.generation.is_blocked_by_clients() {
            return;
        }
        let mut entries = self.entries.borrow_mut();
        let now = self.core.now();
        let is_slow = |since: Moment| now >= since + HELD_TIME_MIN;
        let held = entries
            .iter_mut()
            .flatten()
            .filter(|entry| entry.completion.is_none() && entry.held_since.is_some_and(is_slow));
        if let Some(entry) = held.min_by_key(|entry| entry.held_since) {
            self.complete(entry, Completion::ClientTooSlow);
        }
    }

    /// Whether to log that a response was cut off: at most once a minute.
    pub(crate) fn should_log_truncation(&self) -> bool {
        let now = self.core.now();
        let is_due =
            self.truncation_logged_at.get().is_none_or(|last_at| now >= last_at + TRUNCATION_REPORT_INTERVAL);
        if is_due {
            self.truncation_logged_at.set(Some(now));
        }
        is_due
    }

    fn report_load(&self, waiting: usize, claimed: usize) {
        let load = &self.generation.core_loads[self.index];
        load.waiting.store(waiting, Ordering::Relaxed);
        load.claimed.store(claimed, Ordering::Relaxed);
        let mut current = lock(&load.current);
        current.clear();
        if claimed > 0 {
            self.collect_claimed(&mut current);
        }
    }

    /// Adds the first requests that workers have claimed.
    fn collect_claimed(&self, current: &mut Vec<ClaimedHead>) {
        let entries = self.entries.borrow();
        let heads = self.heads.borrow();
        let server = self.server.borrow();
        let now = self.core.now();
        let claimed =
            entries.iter().flatten().filter(|entry| entry.completion.is_none()).filter_map(|entry| {
                let WorkerSlot(worker_slot) = server.claimant(entry.ticket)?;
                let age = now - entry.claimed_at?;
                Some(ClaimedHead { worker_slot, age, head: *heads.get(entry.ticket.index())? })
            });
        current.extend(claimed.take(SHOWN_MAX));
    }

    pub(crate) fn kill(&self, WorkerSlot(worker_slot): WorkerSlot, reason: KillReason) {
        self.commands.send(SupervisorCommand::Kill {
            generation: self.generation.number,
            worker_slot,
            reason,
        });
    }

    /// Marks the dispatcher as replaced by another generation: requests without a time limit must end.
    pub(crate) fn mark_replaced(&self) {
        self.is_replaced.set(true);
        self.wake_polling_tasks();
    }

    /// Wakes the tasks that check their state periodically.
    pub(crate) fn wake_polling_tasks(&self) {
        for entry in self.entries.borrow_mut().iter_mut().flatten() {
            if let Deadline::Poll(_) = entry.deadline {
                entry.has_event = true;
                self.core.wake_task(entry.task);
            }
        }
    }

    /// Whether another generation serves.
    pub(crate) fn is_replaced(&self) -> bool {
        self.is_replaced.get()
    }

    /// Ends the unclaimed requests, because the application cannot be loaded.
    pub(crate) fn refuse_unclaimed(&self) {
        self.update_claims();
        for entry in self.entries.borrow_mut().iter_mut().flatten() {
            if entry.claimed_at.is_none() {
                self.complete(entry, Completion::LoadFailed);
            }
        }
    }

    /// Ends the unclaimed requests, because the channel is damaged. They may move to the generation that
    /// serves.
    pub(crate) fn abandon_unclaimed(&self) {
        self.update_claims();
        for entry in self.entries.borrow_mut().iter_mut().flatten() {
            if entry.claimed_at.is_none() {
                self.complete(entry, Completion::WorkerDied { may_retry: true });
            }
        }
    }

    /// Ends the requests of a dead worker. If the worker has `called_exit`, its requests are not retried, because
    /// one of them probably caused that.
    pub(crate) fn worker_died(&self, place: usize, worker_slots: std::ops::Range<usize>, called_exit: bool) {
        for worker_slot in worker_slots {
            let lost = self.server.borrow_mut().worker_died(WorkerSlot(worker_slot));
            let mut entries = self.entries.borrow_mut();
            for LostRequest { ticket, has_started: started } in lost {
                if let Some(entry) = entries[ticket.index()].take_if(|entry| entry.ticket == ticket) {
                    self.lost_tickets.borrow_mut().push((ticket, !started && !called_exit));
                    self.core.wake_task(entry.task);
                }
            }
        }
        self.commands.send(SupervisorCommand::Released { generation: self.generation.number, place });
    }

    /// Reports that no request is in progress, and that none will be.
    pub(crate) fn close(&self) {
        self.core.unwatch_eventfd(&self.server.borrow().fd());
        self.report_load(0, 0);
        self.commands.send(SupervisorCommand::Drained { generation: self.generation.number });
    }

    // ---- hooks of the engine's wait ----

    /// Reads what the workers have written, and wakes the tasks that wait for it.
    pub(crate) fn drain(&self) {
        let mut server = self.server.borrow_mut();
        if server.in_use() == 0 {
            return;
        }
        let mut entries = self.entries.borrow_mut();
        server.poll(|_, ticket| {
            if let Some(entry) = &mut entries[ticket.index()] {
                entry.has_event = true;
                self.core.wake_task(entry.task);
            }
        });
        while let Some(fault) = server.take_fault() {
            match fault.worker_slot {
                Some(worker_slot) => self.kill(worker_slot, KillReason::ProtocolViolation),
                None => self.commands.send(SupervisorCommand::Damaged { generation: self.generation.number }),
            }
        }
    }

    /// Releases the places of requests that workers have released.
    fn release_permits(&self) {
        let mut left = self.abandoned_permits.borrow_mut();
        if left.is_empty() {
            return;
        }
        let server = self.server.borrow();
        let freed: Vec<_> = left.extract_if(.., |(ticket, _)| !server.is_still_held(*ticket)).collect();
        // The tasks that this wakes may access this dispatcher.
        drop((left, server, freed));
    }

    /// Flushes the doorbells to the workers and arms the one of this core; false if there is something to
    /// read already.
    pub(crate) fn prepare_wait(&self) -> bool {
        let mut server = self.server.borrow_mut();
        server.flush_doorbells();
        if server.in_use() == 0 {
            return true;
        }
        let armed = server.arm();
        self.is_armed.set(armed);
        armed
    }

    /// Disarms the doorbell after the engine has woken up.
    pub(crate) fn finish_wait(&self) {
        if self.is_armed.take() {
            self.server.borrow_mut().disarm();
        }
    }

    /// Calls `look` with the state of a ticket; `None` if the ticket is void.
    fn with_entry<R>(&self, ticket: Ticket, look: impl FnOnce(&mut RequestEntry) -> R) -> Option<R> {
        let mut entries = self.entries.borrow_mut();
        entries[ticket.index()].as_mut().filter(|entry| entry.ticket == ticket).map(look)
    }

    /// Returns the completion of a void ticket.
    fn completion_of_lost(&self, ticket: Ticket) -> Completion {
        let lost = self.lost_tickets.borrow();
        let again = lost.iter().any(|(other, again)| *other == ticket && *again);
        Completion::WorkerDied { may_retry: again }
    }
}

impl Drop for Dispatcher {
    /// Hands the watch over unreleased requests to the supervisor, because this core ends.
    fn drop(&mut self) {
        let server = self.server.borrow();
        let generation = self.generation.number;
        self.overdue.for_each_held(
            self.core.now(),
            |ticket| server.is_still_held(ticket),
            |worker_slot, left| {
                let WorkerSlot(worker_slot) = worker_slot;
                self.commands.send(SupervisorCommand::OverdueUntil { generation, worker_slot, left });
            },
        );
    }
}
