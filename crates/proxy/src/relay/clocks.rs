//! What a relay waits for, and the clocks that run meanwhile.

use net::{Fault, Interest};

use super::{GATHERED_BYTES, Relay, RequestProgress, ResponseProgress};
use crate::failure::AttemptFailure;

/// How often a relay whose client does not read looks whether that reads a little, and whether memory is short by now.
const LOOK_MS: u64 = 2_000;

impl Relay<'_, '_> {
    /// Waits until either side can continue, or a timeout expires.
    pub(super) async fn wait(&mut self, down: ResponseProgress) -> Result<(), AttemptFailure> {
        self.x.try_flush()?;
        if self.x.is_spilling() {
            self.x.take_turns().await;
        }
        let now_ms = self.x.core().now_ms();
        let unsent = self.x.unsent();
        if std::mem::replace(&mut self.unsent, unsent) != unsent {
            self.client_write_ms = now_ms;
        }
        let reads_client = matches!(self.up, RequestProgress::Continue | RequestProgress::Body)
            && self.side.backlog() < GATHERED_BYTES;
        let reads_upstream = down == ResponseProgress::Dry;
        let is_abandoned = self.up == RequestProgress::Abandoned;
        let client = Interest::of(reads_client, unsent > 0);
        let mut deadline_ms = self.deadline_ms(down);
        if unsent > 0 {
            deadline_ms = deadline_ms.min(now_ms + LOOK_MS);
        }
        self.side.release();
        self.settle();
        match self.side.wait(self.x, client, reads_upstream, is_abandoned, deadline_ms).await {
            Err(Fault::Timeout) => self.on_timeout(down),
            other => Ok(other?),
        }
    }

    /// Before others have their turn: gives back what it can where memory is short, and counts the rest.
    pub(super) fn settle(&mut self) {
        let is_short = self.is_short();
        self.x.hold(self.side.weigh(is_short) + self.kept.bytes.capacity());
    }

    /// Every clock that runs, as the time when it runs out.
    fn clocks(&self, down: ResponseProgress) -> [u64; 6] {
        let timeouts = &self.plan.options.timeouts;
        let runs =
            |runs: bool, since_ms: u64, ms: u64| if runs { since_ms.saturating_add(ms) } else { u64::MAX };
        let waits = down == ResponseProgress::Dry;
        [
            runs(self.up == RequestProgress::Continue, self.up_ms, timeouts.continue_ms),
            runs(
                self.up == RequestProgress::Body && self.side.backlog() == 0,
                self.client_read_ms,
                self.x.body_ms(),
            ),
            runs(self.unsent > 0, self.client_write_ms, self.x.write_ms()),
            runs(
                self.up != RequestProgress::Abandoned && self.side.is_behind(),
                self.up_ms,
                timeouts.between_ms,
            ),
            runs(
                waits
                    && !self.x.has_begun()
                    && matches!(self.up, RequestProgress::Done | RequestProgress::Abandoned),
                self.up_ms,
                timeouts.head_ms,
            ),
            runs(waits && self.x.has_begun(), self.side.received_ms(), timeouts.between_ms),
        ]
    }

    /// The kernel reports room only when a third of its buffer is free: asks whether a client that seems to read nothing has
    /// read a little.
    fn look_for_progress(&mut self, now_ms: u64) -> Result<(), AttemptFailure> {
        if self.unsent > 0 {
            self.x.flush_anyway()?;
            let unsent = self.x.unsent();
            if std::mem::replace(&mut self.unsent, unsent) != unsent {
                self.client_write_ms = now_ms;
            }
        }
        Ok(())
    }

    fn deadline_ms(&self, down: ResponseProgress) -> u64 {
        self.clocks(down).into_iter().fold(self.plan.deadline_ms, u64::min)
    }

    fn on_timeout(&mut self, down: ResponseProgress) -> Result<(), AttemptFailure> {
        let now_ms = self.x.core().now_ms();
        self.look_for_progress(now_ms)?;
        if now_ms < self.deadline_ms(down) {
            return Ok(());
        }
        let [wait_continue, read, write, ..] = self.clocks(down);
        if wait_continue <= now_ms {
            // It knows nothing of `Expect`, or has not made up its mind: send the body.
            self.begin_body();
            return Ok(());
        }
        // At the end of the whole request's time, too: who was waited for is not the server.
        let clients_turn = (self.up == RequestProgress::Body && self.side.backlog() == 0) || self.unsent > 0;
        if read <= now_ms || write <= now_ms || (clients_turn && self.plan.deadline_ms <= now_ms) {
            return Err(AttemptFailure::Ours(Fault::Timeout));
        }
        Err(match self.x.has_begun() {
            true => AttemptFailure::Body("the upstream took too long in the middle of a response"),
            false => AttemptFailure::Slow,
        })
    }
}
