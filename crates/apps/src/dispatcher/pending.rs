//! A queued or running request, for its task: waits for news of its ticket, receives the answer and streams the body.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use net::{Exchange, Interest};
use ring::{Error, Received, Ticket, WorkerSlot};

use super::{Completion, Deadline, Dispatcher};
use crate::mail::SupervisorCommand;

/// Why a worker's request is cancelled: what `komainu_cancelled` returns.
mod reason {
    use std::num::NonZeroU32;

    /// The client disconnected, or its request is malformed.
    pub(super) const GONE: NonZeroU32 = NonZeroU32::MIN;
    /// The time for an answer is over.
    pub(super) const LATE: NonZeroU32 = NonZeroU32::MIN.saturating_add(1);
    /// It waited in the queue for too long, or was refused because the queue was full.
    pub(super) const UNSERVED: NonZeroU32 = NonZeroU32::MIN.saturating_add(2);
}

/// A request under way; cancelled when it is dropped before its end.
pub(crate) struct PendingRequest {
    pub(crate) dispatcher: Rc<Dispatcher>,
    ticket: Ticket,
    over: bool,
    /// When it was queued, by the core's clock.
    since_us: u64,
    /// How long it was in the queue, once that is known.
    queue_us: Option<u64>,
    is_noted: bool,
}

impl PendingRequest {
    /// What has just been queued.
    pub(super) fn new(dispatcher: &Rc<Dispatcher>, ticket: Ticket) -> PendingRequest {
        let since_us = dispatcher.core.now_us();
        PendingRequest {
            dispatcher: dispatcher.clone(),
            ticket,
            over: false,
            since_us,
            queue_us: None,
            is_noted: false,
        }
    }

    /// Waits until there may be more of the answer, or room for more of the body; with `client`, also until that
    /// can do what is wanted of it.
    ///
    /// # Errors
    /// How the request ended without a response.
    pub(crate) async fn news(&self, client: Option<(&Exchange<'_>, Interest)>) -> Result<(), Completion> {
        poll_fn(|cx| {
            let found = self.dispatcher.with_entry(self.ticket, |entry| {
                entry.task = self.dispatcher.core.task();
                match entry.completion {
                    Some(fate) => Some(Err(fate)),
                    None => std::mem::take(&mut entry.news).then_some(Ok(())),
                }
            });
            match found.unwrap_or_else(|| Some(Err(self.dispatcher.completion_of_lost(self.ticket)))) {
                Some(found) => Poll::Ready(found),
                None if client.is_some_and(|(x, interest)| x.poll_client(interest, cx)) => {
                    Poll::Ready(Ok(()))
                }
                None => Poll::Pending,
            }
        })
        .await
    }

    /// How long a worker has had it, in milliseconds, and its process id, or 0.
    pub(crate) fn held(&self) -> (u64, i32) {
        let now_ms = self.dispatcher.core.now_ms();
        let claimed_ms = self.dispatcher.with_entry(self.ticket, |entry| entry.claimed_ms).flatten();
        let (server, generation) = (self.dispatcher.server.borrow(), &self.dispatcher.generation);
        let pid = server
            .claimant(self.ticket)
            .map(|WorkerSlot(worker_slot)| &generation.pids[generation.place_of(worker_slot)]);
        (now_ms - claimed_ms.unwrap_or(now_ms), pid.map_or(0, |pid| pid.load(Ordering::Relaxed)))
    }

    /// Notes once how long the request was in the queue for a worker: when that has responded, or when none has taken it.
    pub(crate) fn note_queue(&mut self, x: &mut Exchange<'_>, ended: Option<Completion>) {
        let is_untaken = matches!(ended, Some(Completion::Unserved | Completion::Crowded));
        let queue_us = if is_untaken { Some(self.age_us()) } else { self.queue_us };
        if let Some(queue_us) = queue_us.filter(|_| !std::mem::replace(&mut self.is_noted, true)) {
            let notes = x.notes();
            notes.queue_us = Some(notes.queue_us.unwrap_or(0) + queue_us);
        }
    }

    /// Microseconds since it was queued.
    fn age_us(&self) -> u64 {
        self.dispatcher.core.now_us().saturating_sub(self.since_us)
    }

    /// The next wait ends at once: there may be more of the answer than was looked at.
    pub(crate) fn look_again(&self) {
        self.dispatcher.with_entry(self.ticket, |entry| entry.news = true);
    }

    /// From now on this one has to move next, with its whole time.
    pub(crate) fn expect(&self, expect: Deadline) {
        let now_ms = self.dispatcher.core.now_ms();
        self.dispatcher.with_entry(self.ticket, |entry| {
            (entry.expect, entry.expect_since_ms) = (expect, now_ms);
            entry.held_ms = match expect {
                Deadline::Taker(_) => entry.held_ms.or(Some(now_ms)),
                _ => None,
            };
        });
    }

    /// The next part of the answer, if any has come; see [`ServerSide::receive`].
    ///
    /// # Errors
    /// The answer breaks the channel's rules.
    pub(crate) fn receive(
        &mut self,
        into: &mut Vec<u8>,
        bytes_max: usize,
    ) -> Result<Option<Received>, Error> {
        let mut server = self.dispatcher.server.borrow_mut();
        let worker_slot = server.answerer(self.ticket);
        if self.queue_us.is_none() && worker_slot.is_some() {
            let claimed_us = server.claimed_us(self.ticket);
            self.queue_us = claimed_us.map(|claimed_us| {
                // The worker may say anything: it was no longer than until now.
                let queue_us = claimed_us.wrapping_sub(self.since_us as u32);
                u64::from(queue_us).min(self.age_us())
            });
        }
        let received = server.receive(self.ticket, into, bytes_max);
        drop(server);
        match &received {
            Ok(Some(part)) if part.last => {
                self.end();
                worker_slot.iter().for_each(|worker_slot| self.count(*worker_slot));
            }
            Err(Error::WorkerFault(_)) => self.end(),
            // Lost with its worker: the slot may be another's by now.
            Err(Error::Void) | Ok(_) => {}
        }
        received
    }

    /// The ticket is void: the slot may be in use again.
    fn end(&mut self) {
        self.over = true;
        self.dispatcher.entries.borrow_mut()[self.ticket.index()] = None;
    }

    fn count(&self, WorkerSlot(at): WorkerSlot) {
        let worker_slot = &self.dispatcher.generation.worker_slots[at];
        let requests = worker_slot.requests.fetch_add(1, Ordering::Relaxed) + 1;
        if requests == worker_slot.requests_max.load(Ordering::Relaxed) {
            let generation = self.dispatcher.generation.number;
            self.dispatcher.commands.send(SupervisorCommand::Recycle { generation, worker_slot: at });
        }
    }

    /// Streams more of the request's body; see [`ServerSide::push_body`].
    ///
    /// # Errors
    /// The request is over.
    pub(crate) fn push(&self, body: &[u8], last: bool) -> Result<usize, Error> {
        self.dispatcher.server.borrow_mut().push_body(self.ticket, body, last)
    }

    /// Lets the worker know that the client has closed its sending side.
    pub(crate) fn report_client_closed(&self) {
        self.dispatcher.server.borrow_mut().report_client_closed(self.ticket);
    }

    /// The descriptor of the file received last is no longer needed.
    pub(crate) fn file_taken(&self) {
        self.dispatcher.server.borrow_mut().file_taken(self.ticket);
    }

    /// Whether the request has ended, in whatever way.
    pub(crate) fn is_void(&self) -> bool {
        self.dispatcher.with_entry(self.ticket, |_| ()).is_none()
    }

    /// Takes descriptors out of the worker's process, if this process may not.
    pub(crate) fn launcher(&self) -> Option<Arc<dyn crate::launcher::Launcher>> {
        self.dispatcher.generation.options.launcher.clone()
    }

    /// The process that holds it, for taking a descriptor out of it.
    pub(crate) fn process(&self) -> Option<Arc<std::os::fd::OwnedFd>> {
        let WorkerSlot(worker_slot) = self.dispatcher.server.borrow().claimant(self.ticket)?;
        let generation = &self.dispatcher.generation;
        crate::mail::lock(&generation.processes[generation.place_of(worker_slot)]).clone()
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let (dispatcher, ticket) = (&self.dispatcher, self.ticket);
        let entry = dispatcher.entries.borrow_mut()[ticket.index()].take_if(|entry| entry.ticket == ticket);
        let Some(entry) = entry else {
            return dispatcher.lost.borrow_mut().retain(|(other, _)| *other != ticket);
        };
        let why = match entry.completion {
            None | Some(Completion::Lost { .. } | Completion::Stalled | Completion::TooSlow) => reason::GONE,
            Some(Completion::Late) => reason::LATE,
            Some(Completion::Unserved | Completion::Crowded | Completion::Down) => reason::UNSERVED,
        };
        let worker_slot = dispatcher
            .server
            .borrow()
            .claimant(ticket)
            .filter(|_| entry.completion == Some(Completion::Late));
        dispatcher.server.borrow_mut().cancel(ticket, why);
        worker_slot.iter().for_each(|worker_slot| dispatcher.give_up_late(ticket, *worker_slot));
    }
}
