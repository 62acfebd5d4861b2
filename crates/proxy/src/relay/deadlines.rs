//! Waits and deadlines of a relay.

use net::{Fault, Interest};
use times::{Millis, Moment};

use super::{BYTES_PER_TURN, GATHERED_BYTES, Relay, RequestProgress, ResponseProgress};
use crate::failure::AttemptFailure;

/// Interval at which a relay whose client does not read checks for slight progress and for a shortage of
/// memory.
const CHECK_INTERVAL: Millis = Millis(2_000);
/// Weight of a wait, so that a relay which is always ready still yields to other tasks.
const WAIT_COST_BYTES: usize = BYTES_PER_TURN / 256;

/// Deadlines of a relay's waits, by the core's clock; [`Moment::NEVER`] for a wait that is not under way.
struct RelayDeadlines {
    /// Wait for the server's `100 Continue`.
    expect_continue: Moment,
    /// Wait for more of the body from the client.
    client_read: Moment,
    /// Wait for the client to accept some of the response.
    client_write: Moment,
    /// Wait for the server to accept some of the request.
    upstream_write: Moment,
    /// Wait for the response head.
    upstream_head: Moment,
    /// Wait for more of the response's content.
    upstream_body: Moment,
    /// Wait for bytes of the server while the client has closed its sending side.
    half_closed: Moment,
}

impl RelayDeadlines {
    /// Returns the earliest deadline.
    fn earliest(&self) -> Moment {
        let RelayDeadlines {
            expect_continue,
            client_read,
            client_write,
            upstream_write,
            upstream_head,
            upstream_body,
            half_closed,
        } = *self;
        let client = client_read.min(client_write);
        let upstream = upstream_write.min(upstream_head).min(upstream_body);
        expect_continue.min(client).min(upstream).min(half_closed)
    }
}

impl Relay<'_, '_> {
    /// Waits until either side can continue, or a timeout expires.
    pub(super) async fn wait(&mut self, down: ResponseProgress) -> Result<(), AttemptFailure> {
        self.exchange.try_flush()?;
        if self.exchange.is_spilling() {
            self.exchange.yield_after_spill().await;
        }
        let now = self.exchange.core().now();
        let unsent = self.exchange.unsent();
        // The client has caught up meanwhile, which no event would report.
        if down == ResponseProgress::ClientFull && unsent == 0 {
            return Ok(());
        }
        if std::mem::replace(&mut self.unsent, unsent) != unsent {
            self.client_write_at = now;
        }
        let reads_client = matches!(self.request_progress, RequestProgress::Continue | RequestProgress::Body)
            && self.side.backlog() < GATHERED_BYTES;
        let reads_upstream = down == ResponseProgress::NoInput;
        if self.options.route.cancels_on_disconnect && self.exchange.has_disconnected() {
            return Err(AttemptFailure::NotUpstream(Fault::Disconnected));
        }
        let client = Interest::of(reads_client, unsent > 0).or(self.client_close_interest(now));
        let deadline = match unsent {
            0 if self.waits_for_head(down) => self.head_deadline().min(self.options.deadline),
            0 => self.deadline(down),
            1.. => self.deadline(down).min(now + CHECK_INTERVAL),
        };
        self.side.release_buffers();
        self.release_memory();
        let upstream = match self.request_progress {
            // Bytes left in TLS are not sent any more.
            RequestProgress::Abandoned => Interest::of(reads_upstream, false),
            _ => self.side.interest(reads_upstream),
        };
        // A side that is always ready without progress must not starve other tasks.
        self.moved_bytes += WAIT_COST_BYTES;
        match self.side.wait(self.exchange, client, upstream, deadline).await {
            Err(Fault::Timeout) => self.on_timeout(down),
            other => Ok(other?),
        }
    }

    /// Returns the events to watch for on the client's closing or leaving; records when its sending side was
    /// found to be closed.
    fn client_close_interest(&mut self, now: Moment) -> Interest {
        let watches_end = !self.options.route.timeouts.half_closed.is_zero();
        if watches_end && self.exchange.is_half_closed() {
            self.half_closed_at.get_or_insert(now);
        }
        match (watches_end && self.half_closed_at.is_none(), self.options.route.cancels_on_disconnect) {
            (true, _) => Interest::END,
            (false, true) => self.exchange.disconnect_interest(),
            (false, false) => Interest::GONE,
        }
    }

    /// Prepares for a wait: releases memory if it is short, and accounts for the rest.
    pub(super) fn release_memory(&mut self) {
        let is_short = self.is_memory_short();
        self.exchange.hold(self.side.update_memory(is_short) + self.replay.bytes.capacity());
    }

    /// Whether only the response head is awaited, which is the usual case.
    fn waits_for_head(&self, down: ResponseProgress) -> bool {
        let is_sent = self.request_progress == RequestProgress::Done && !self.side.has_pending_output();
        is_sent
            && down == ResponseProgress::NoInput
            && !self.exchange.has_begun()
            && self.half_closed_at.is_none()
    }

    /// Returns the deadline of the wait for the head.
    fn head_deadline(&self) -> Moment {
        self.upstream_write_at + self.options.route.timeouts.head
    }

    /// Returns the deadlines of the waits that are under way.
    fn deadlines(&self, down: ResponseProgress) -> RelayDeadlines {
        let timeouts = &self.options.route.timeouts;
        let due = |waits: bool, since: Moment, timeout: Millis| {
            if waits { since + timeout } else { Moment::NEVER }
        };
        let side = &self.side;
        let has_begun = self.exchange.has_begun();
        let reads = down == ResponseProgress::NoInput;
        let was_sent = matches!(self.request_progress, RequestProgress::Done | RequestProgress::Abandoned);
        let sends = self.request_progress != RequestProgress::Abandoned && side.has_pending_output();
        let reads_client = self.request_progress == RequestProgress::Body && side.backlog() == 0;
        let half_closed = self.half_closed_at.filter(|_| !timeouts.half_closed.is_zero() && reads);
        RelayDeadlines {
            expect_continue: due(
                self.request_progress == RequestProgress::Continue,
                self.upstream_write_at,
                timeouts.expect_continue,
            ),
            client_read: due(reads_client, self.client_read_at, self.exchange.body_timeout()),
            client_write: due(self.unsent > 0, self.client_write_at, self.exchange.write_timeout()),
            upstream_write: due(sends, self.upstream_write_at, timeouts.between),
            upstream_head: if reads && !has_begun && was_sent { self.head_deadline() } else { Moment::NEVER },
            upstream_body: due(reads && has_begun, side.received_at(), timeouts.between),
            half_closed: half_closed
                .map_or(Moment::NEVER, |since| since.max(side.received_at()) + timeouts.half_closed),
        }
    }

    /// Checks whether a stalled side has accepted a few bytes: the kernel reports room only when a third of
    /// its buffer is free.
    fn check_for_progress(&mut self, now: Moment) {
        if self.unsent > 0 && self.exchange.has_progressed() {
            self.client_write_at = now;
        }
        if self.request_progress != RequestProgress::Abandoned && self.side.has_progressed() {
            self.upstream_write_at = now;
        }
    }

    fn deadline(&self, down: ResponseProgress) -> Moment {
        self.deadlines(down).earliest().min(self.options.deadline)
    }

    /// Checks the timeouts after a turn in which one side was always ready, because the other side's still
    /// apply.
    pub(super) fn check_deadline(&mut self, down: ResponseProgress) -> Result<(), AttemptFailure> {
        if self.exchange.core().now() < self.deadline(down) { Ok(()) } else { self.on_timeout(down) }
    }

    fn on_timeout(&mut self, down: ResponseProgress) -> Result<(), AttemptFailure> {
        let now = self.exchange.core().now();
        self.check_for_progress(now);
        if now < self.deadline(down) {
            return Ok(());
        }
        let deadlines = self.deadlines(down);
        if deadlines.expect_continue <= now {
            // The server does not support `Expect` or has not decided: send the body.
            self.begin_body();
            return Ok(());
        }
        if deadlines.half_closed <= now {
            return Err(AttemptFailure::NotUpstream(Fault::Disconnected));
        }
        // Even when the whole request times out, the server is not at fault if the relay was waiting for the
        // client.
        let clients_turn =
            (self.request_progress == RequestProgress::Body && self.side.backlog() == 0) || self.unsent > 0;
        let is_client_late = deadlines.client_read.min(deadlines.client_write) <= now;
        if is_client_late || (clients_turn && self.options.deadline <= now) {
            return Err(AttemptFailure::NotUpstream(Fault::Timeout));
        }
        Err(if self.exchange.has_begun() {
            AttemptFailure::Body("the upstream took too long in the middle of a response")
        } else {
            AttemptFailure::HeadTimeout
        })
    }
}
