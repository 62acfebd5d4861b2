//! Waits and deadlines of a relay.

use net::{Fault, Interest};

use super::{BYTES_PER_TURN, GATHERED_BYTES, Relay, RequestProgress, ResponseProgress};
use crate::failure::AttemptFailure;

/// Interval at which a relay whose client does not read checks for slight progress and for a shortage of
/// memory.
const CHECK_INTERVAL_MS: u64 = 2_000;
/// Weight of a wait, so that a relay which is always ready still yields to other tasks.
const WAIT_COST_BYTES: usize = BYTES_PER_TURN / 256;

/// Deadlines of a relay's waits, by the core's clock; `u64::MAX` for a wait that is not under way.
struct RelayDeadlines {
    /// Wait for the server's `100 Continue`.
    continue_ms: u64,
    /// Wait for more of the body from the client.
    client_read_ms: u64,
    /// Wait for the client to accept some of the response.
    client_write_ms: u64,
    /// Wait for the server to accept some of the request.
    upstream_write_ms: u64,
    /// Wait for the response head.
    upstream_head_ms: u64,
    /// Wait for more of the response's content.
    upstream_body_ms: u64,
    /// Wait for bytes of the server while the client has closed its sending side.
    half_closed_ms: u64,
}

impl RelayDeadlines {
    /// Returns the earliest deadline.
    fn earliest_ms(&self) -> u64 {
        let RelayDeadlines {
            continue_ms,
            client_read_ms,
            client_write_ms,
            upstream_write_ms,
            upstream_head_ms,
            upstream_body_ms,
            half_closed_ms,
        } = *self;
        let client_ms = client_read_ms.min(client_write_ms);
        let upstream_ms = upstream_write_ms.min(upstream_head_ms).min(upstream_body_ms);
        continue_ms.min(client_ms).min(upstream_ms).min(half_closed_ms)
    }
}

impl Relay<'_, '_> {
    /// Waits until either side can continue, or a timeout expires.
    pub(super) async fn wait(&mut self, down: ResponseProgress) -> Result<(), AttemptFailure> {
        self.exchange.try_flush()?;
        if self.exchange.is_spilling() {
            self.exchange.yield_after_spill().await;
        }
        let now_ms = self.exchange.core().now_ms();
        let unsent = self.exchange.unsent();
        // The client has caught up meanwhile, which no event would report.
        if down == ResponseProgress::ClientFull && unsent == 0 {
            return Ok(());
        }
        if std::mem::replace(&mut self.unsent, unsent) != unsent {
            self.client_write_ms = now_ms;
        }
        let reads_client = matches!(self.request_progress, RequestProgress::Continue | RequestProgress::Body)
            && self.side.backlog() < GATHERED_BYTES;
        let reads_upstream = down == ResponseProgress::NoInput;
        let is_abandoned = self.request_progress == RequestProgress::Abandoned;
        if self.options.route.cancels_on_disconnect && self.exchange.has_disconnected() {
            return Err(AttemptFailure::NotUpstream(Fault::Disconnected));
        }
        let client = Interest::of(reads_client, unsent > 0).or(self.client_close_interest(now_ms));
        let deadline_ms = match unsent {
            0 if self.waits_for_head(down) => self.head_deadline_ms().min(self.options.deadline_ms),
            0 => self.deadline_ms(down),
            1.. => self.deadline_ms(down).min(now_ms + CHECK_INTERVAL_MS),
        };
        self.side.release_buffers();
        self.release_memory();
        // A side that is always ready without progress must not starve other tasks.
        self.moved_bytes += WAIT_COST_BYTES;
        match self.side.wait(self.exchange, client, reads_upstream, is_abandoned, deadline_ms).await {
            Err(Fault::Timeout) => self.on_timeout(down),
            other => Ok(other?),
        }
    }

    /// Returns the events to watch for on the client's closing or leaving; records when its sending side was
    /// found to be closed.
    fn client_close_interest(&mut self, now_ms: u64) -> Interest {
        let watches_end = self.options.route.timeouts.half_closed_ms > 0;
        if watches_end && self.exchange.is_half_closed() {
            self.half_closed_ms.get_or_insert(now_ms);
        }
        match (watches_end && self.half_closed_ms.is_none(), self.options.route.cancels_on_disconnect) {
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
            && self.half_closed_ms.is_none()
    }

    /// Returns the deadline of the wait for the head.
    fn head_deadline_ms(&self) -> u64 {
        self.upstream_write_ms.saturating_add(self.options.route.timeouts.head_ms)
    }

    /// Returns the deadlines of the waits that are under way.
    fn deadlines(&self, down: ResponseProgress) -> RelayDeadlines {
        let timeouts = &self.options.route.timeouts;
        let due = |waits: bool, since_ms: u64, timeout_ms: u64| {
            if waits { since_ms.saturating_add(timeout_ms) } else { u64::MAX }
        };
        let side = &self.side;
        let has_begun = self.exchange.has_begun();
        let reads = down == ResponseProgress::NoInput;
        let was_sent = matches!(self.request_progress, RequestProgress::Done | RequestProgress::Abandoned);
        let sends = self.request_progress != RequestProgress::Abandoned && side.has_pending_output();
        let reads_client = self.request_progress == RequestProgress::Body && side.backlog() == 0;
        let half_closed = self.half_closed_ms.filter(|_| timeouts.half_closed_ms > 0 && reads);
        RelayDeadlines {
            continue_ms: due(
                self.request_progress == RequestProgress::Continue,
                self.upstream_write_ms,
                timeouts.continue_ms,
            ),
            client_read_ms: due(reads_client, self.client_read_ms, self.exchange.body_ms()),
            client_write_ms: due(self.unsent > 0, self.client_write_ms, self.exchange.write_ms()),
            upstream_write_ms: due(sends, self.upstream_write_ms, timeouts.between_ms),
            upstream_head_ms: if reads && !has_begun && was_sent {
                self.head_deadline_ms()
            } else {
                u64::MAX
            },
            upstream_body_ms: due(reads && has_begun, side.received_ms(), timeouts.between_ms),
            half_closed_ms: half_closed.map_or(u64::MAX, |since_ms| {
                since_ms.max(side.received_ms()).saturating_add(timeouts.half_closed_ms)
            }),
        }
    }

    /// Checks whether a stalled side has accepted a few bytes: the kernel reports room only when a third of
    /// its buffer is free.
    fn check_for_progress(&mut self, now_ms: u64) {
        if self.unsent > 0 && self.exchange.has_progressed() {
            self.client_write_ms = now_ms;
        }
        if self.request_progress != RequestProgress::Abandoned && self.side.has_progressed() {
            self.upstream_write_ms = now_ms;
        }
    }

    fn deadline_ms(&self, down: ResponseProgress) -> u64 {
        self.deadlines(down).earliest_ms().min(self.options.deadline_ms)
    }

    /// Checks the timeouts after a turn in which one side was always ready, because the other side's still
    /// apply.
    pub(super) fn check_deadline(&mut self, down: ResponseProgress) -> Result<(), AttemptFailure> {
        if self.exchange.core().now_ms() < self.deadline_ms(down) { Ok(()) } else { self.on_timeout(down) }
    }

    fn on_timeout(&mut self, down: ResponseProgress) -> Result<(), AttemptFailure> {
        let now_ms = self.exchange.core().now_ms();
        self.check_for_progress(now_ms);
        if now_ms < self.deadline_ms(down) {
            return Ok(());
        }
        let deadlines = self.deadlines(down);
        if deadlines.continue_ms <= now_ms {
            // The server does not support `Expect` or has not decided: send the body.
            self.begin_body();
            return Ok(());
        }
        if deadlines.half_closed_ms <= now_ms {
            return Err(AttemptFailure::NotUpstream(Fault::Disconnected));
        }
        // Even when the whole request times out, the server is not at fault if the relay was waiting for the
        // client.
        let clients_turn =
            (self.request_progress == RequestProgress::Body && self.side.backlog() == 0) || self.unsent > 0;
        let is_client_late = deadlines.client_read_ms.min(deadlines.client_write_ms) <= now_ms;
        if is_client_late || (clients_turn && self.options.deadline_ms <= now_ms) {
            return Err(AttemptFailure::NotUpstream(Fault::Timeout));
        }
        Err(if self.exchange.has_begun() {
            AttemptFailure::Body("the upstream took too long in the middle of a response")
        } else {
            AttemptFailure::HeadTimeout
        })
    }
}
