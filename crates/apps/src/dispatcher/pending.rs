//! A queued or running request, as its task uses it: waits for news of its ticket, receives the response and
//! streams the body.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use net::{Exchange, Interest, RequestNotes};
use ring::{ReceivedPart, Ticket, TicketError, WorkerCost, WorkerSlot};
use times::Millis;

use super::{Completion, Deadline, Dispatcher, HeldPermits};
use crate::log::{AppLog, AppLogLevel, request_line};
use crate::queues::SupervisorCommand;

/// Cancellation reasons of requests, as returned by `komainu_cancelled`.
mod reason {
    use std::num::NonZeroU32;

    /// The client disconnected, or its request is malformed.
    pub(super) const CLIENT_GONE: NonZeroU32 = NonZeroU32::MIN;
    /// The response took too long.
    pub(super) const TIMED_OUT: NonZeroU32 = NonZeroU32::MIN.saturating_add(1);
    /// The request waited in the queue for too long, or was refused because the queue was full.
    pub(super) const UNCLAIMED: NonZeroU32 = NonZeroU32::MIN.saturating_add(2);
}

/// A request in progress; cancelled if it is dropped before its end.
pub(crate) struct PendingRequest {
    pub(crate) dispatcher: Rc<Dispatcher>,
    ticket: Ticket,
    has_ended: bool,
    /// Time of queueing, by the core's clock.
    queued_us: u64,
    worker_slot: Option<WorkerSlot>,
    cost: WorkerCost,
    /// Released when no worker runs for the request any more.
    permits: HeldPermits,
}

impl PendingRequest {
    /// Wraps a request that was just queued.
    pub(super) fn new(dispatcher: &Rc<Dispatcher>, ticket: Ticket, places: HeldPermits) -> PendingRequest {
        PendingRequest {
            dispatcher: dispatcher.clone(),
            ticket,
            has_ended: false,
            queued_us: dispatcher.core.now_us(),
            worker_slot: None,
            cost: WorkerCost::default(),
            permits: places,
        }
    }

    /// Waits until there may be more of the response, or room for more of the body; with `client`, also until
    /// the interest in its connection is ready.
    ///
    /// # Errors
    /// The reason why the request ended without a response.
    pub(crate) async fn wait_for_event(
        &self,
        client: Option<(&Exchange<'_>, Interest)>,
    ) -> Result<(), Completion> {
        poll_fn(|cx| {
            let found = self.dispatcher.with_entry(self.ticket, |entry| {
                entry.task = self.dispatcher.core.current_task();
                match entry.completion {
                    Some(fate) => Some(Err(fate)),
                    None => std::mem::take(&mut entry.has_event).then_some(Ok(())),
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

    /// Returns the time since a worker claimed the request, and the worker's process id, or 0.
    pub(crate) fn claim_age(&self) -> (Millis, i32) {
        let now = self.dispatcher.core.now();
        let claimed_at = self.dispatcher.with_entry(self.ticket, |entry| entry.claimed_at).flatten();
        let server = self.dispatcher.server.borrow();
        let generation = &self.dispatcher.generation;
        let pid = server
            .claimant(self.ticket)
            .map(|WorkerSlot(worker_slot)| &generation.pids[generation.place_of(worker_slot)]);
        (now - claimed_at.unwrap_or(now), pid.map_or(0, |pid| pid.load(Ordering::Relaxed)))
    }

    /// Logs that the request timed out.
    pub(crate) fn log_timeout(&self, exchange: &Exchange<'_>, app_log: &AppLog) {
        let Some(unreported) = self.dispatcher.may_log() else { return };
        let timeouts = &self.dispatcher.generation.options.settings.timeouts;
        let (what, limit, name) = if exchange.has_begun() {
            ("its answer paused, and is cut short:", timeouts.between_max(), "timeouts.between")
        } else {
            ("no answer", timeouts.request.into(), "timeouts.request")
        };
        let (held_for, pid) = self.claim_age();
        let more = if unreported > 0 { format!(" (and {unreported} more like it)") } else { String::new() };
        let text = format!(
            "{}: {what} within {} s ({name}); worker {pid} has had it for {:.1} s{more}",
            request_line(exchange),
            limit.as_secs_f64(),
            held_for.as_secs_f64(),
        );
        app_log.report(AppLogLevel::Warn, &text);
    }

    /// Makes the next wait return at once, because more of the response may be available.
    pub(crate) fn skip_next_wait(&self) {
        self.dispatcher.with_entry(self.ticket, |entry| entry.has_event = true);
    }

    /// Sets the side that must make progress next, and restarts its time limit.
    pub(crate) fn set_deadline(&self, expect: Deadline) {
        let now = self.dispatcher.core.now();
        self.dispatcher.with_entry(self.ticket, |entry| {
            (entry.deadline, entry.deadline_since) = (expect, now);
            entry.held_since = match expect {
                Deadline::ClientRead(_) => entry.held_since.or(Some(now)),
                _ => None,
            };
        });
    }

    /// Receives the next part of the response, if available; see [`ServerSide::receive`].
    ///
    /// # Errors
    /// The response violates the channel's protocol.
    pub(crate) fn receive(
        &mut self,
        into: &mut Vec<u8>,
        bytes_max: usize,
    ) -> Result<Option<ReceivedPart>, TicketError> {
        let mut server = self.dispatcher.server.borrow_mut();
        let worker_slot = server.responder(self.ticket);
        let received = server.receive(self.ticket, into, bytes_max);
        if let Ok(Some(_)) = &received {
            (self.worker_slot, self.cost) = (worker_slot, server.cost());
        }
        drop(server);
        match &received {
            Ok(Some(part)) if part.is_last => {
                self.end();
                self.count_answered();
            }
            Err(TicketError::WorkerFault(_)) => self.end(),
            // Lost with its worker: the slot may belong to another request by now.
            Err(TicketError::Void) | Ok(_) => {}
        }
        received
    }

    /// Records the queueing time, the worker and its costs in `notes`.
    pub(crate) fn record_costs(&self, notes: &mut RequestNotes) {
        let Some(WorkerSlot(worker_slot)) = self.worker_slot else { return };
        notes.worker = Some(self.dispatcher.generation.place_of(worker_slot) as u32 + 1);
        // Values from the worker are not trusted, so limit them to the time that has passed.
        let passed_us = self.dispatcher.core.now_us() - self.queued_us;
        let cost = &self.cost;
        if let Some(claimed_us) = cost.claimed_us {
            let queue_us = claimed_us.wrapping_sub(self.queued_us as u32).cast_signed().max(0);
            notes.queue_us = Some(u64::from(queue_us.unsigned_abs()).min(passed_us));
        }
        notes.worker_cpu_us = cost.cpu_us.map(|us| us.min(u32::try_from(passed_us).unwrap_or(u32::MAX)));
        notes.worker_memory_kib = cost.memory_kib;
    }

    /// Removes the entry, because the ticket is void and the slot may be in use again.
    fn end(&mut self) {
        self.has_ended = true;
        self.dispatcher.entries.borrow_mut()[self.ticket.index()] = None;
    }

    /// Counts the request as answered by its worker.
    pub(crate) fn count_answered(&self) {
        let Some(WorkerSlot(at)) = self.worker_slot else { return };
        let generation = &self.dispatcher.generation;
        let counts = &generation.counts[generation.place_of(at)];
        let requests = counts.requests.fetch_add(1, Ordering::Relaxed) + 1;
        if requests == counts.requests_max.load(Ordering::Relaxed) {
            let generation = generation.number;
            self.dispatcher.commands.send(SupervisorCommand::Recycle { generation, worker_slot: at });
        }
    }

    /// Streams more of the request's body; see [`ServerSide::push_body`].
    ///
    /// # Errors
    /// The request has ended.
    pub(crate) fn push(&self, body: &[u8], last: bool) -> Result<usize, TicketError> {
        self.dispatcher.server.borrow_mut().push_body(self.ticket, body, last)
    }

    /// Tells the worker that the client has closed its sending side.
    pub(crate) fn report_client_closed(&self) {
        self.dispatcher.server.borrow_mut().report_client_closed(self.ticket);
    }

    /// Releases the descriptor of the file received last.
    pub(crate) fn release_file(&self) {
        self.dispatcher.server.borrow_mut().release_taken_file(self.ticket);
    }

    /// Whether the request has ended.
    pub(crate) fn is_void(&self) -> bool {
        self.dispatcher.with_entry(self.ticket, |_| ()).is_none()
    }

    /// Returns the launcher, which copies descriptors from the worker's process if this process may not.
    pub(crate) fn launcher(&self) -> Option<Arc<dyn crate::launcher::Launcher>> {
        self.dispatcher.generation.options.launcher.clone()
    }

    /// Returns the process that has claimed the request, for copying a descriptor from it.
    pub(crate) fn process(&self) -> Option<Arc<std::os::fd::OwnedFd>> {
        let WorkerSlot(worker_slot) = self.dispatcher.server.borrow().claimant(self.ticket)?;
        let generation = &self.dispatcher.generation;
        crate::queues::lock(&generation.processes[generation.place_of(worker_slot)]).clone()
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let dispatcher = &self.dispatcher;
        let ticket = self.ticket;
        let entry = dispatcher.entries.borrow_mut()[ticket.index()].take_if(|entry| entry.ticket == ticket);
        let Some(entry) = entry else {
            return dispatcher.lost_tickets.borrow_mut().retain(|(other, _)| *other != ticket);
        };
        let why = match entry.completion {
            None
            | Some(Completion::WorkerDied { .. } | Completion::ClientStalled | Completion::ClientTooSlow) => {
                reason::CLIENT_GONE
            }
            Some(Completion::TimedOut) => reason::TIMED_OUT,
            Some(Completion::Unclaimed | Completion::Dropped | Completion::LoadFailed) => reason::UNCLAIMED,
        };
        let worker_slot = dispatcher
            .server
            .borrow()
            .claimant(ticket)
            .filter(|_| entry.completion == Some(Completion::TimedOut));
        dispatcher.server.borrow_mut().cancel(ticket, why);
        let places = std::mem::take(&mut self.permits);
        if places.iter().any(Option::is_some) && dispatcher.server.borrow().is_still_held(ticket) {
            dispatcher.abandoned_permits.borrow_mut().push((ticket, places));
        }
        worker_slot.iter().for_each(|worker_slot| dispatcher.handle_timed_out_worker(ticket, *worker_slot));
    }
}
