//! What a relay waits for, and the clocks that run meanwhile.

use net::{Fault, Interest};

use super::{Down, GATHERED_BYTES, Relay, Up};
use crate::failure::Failure;

/// How often a relay whose client does not read looks whether memory is short by now.
const LOOK_MS: u64 = 2_000;

impl Relay<'_, '_> {
    /// Waits until either side can go on, or a clock runs out.
    pub(super) async fn wait(&mut self, down: Down) -> Result<(), Failure> {
        self.x.try_flush()?;
        if self.x.is_spilling() {
            self.x.take_turns().await;
        }
        let now_ms = self.x.core().now_ms();
        let unsent = self.x.unsent();
        if std::mem::replace(&mut self.unsent, unsent) != unsent {
            self.client_write_ms = now_ms;
        }
        let reads_client = matches!(self.up, Up::Continue | Up::Body) && self.leg.backlog() < GATHERED_BYTES;
        let reads_upstream = down == Down::Dry;
        let interest = match self.up {
            // What is left in TLS goes nowhere any more.
            Up::Abandoned => Interest::of(reads_upstream, false),
            _ => self.leg.link.interest(reads_upstream, self.leg.backlog() > 0),
        };
        let client = Interest::of(reads_client, unsent > 0);
        let mut deadline_ms = self.deadline_ms(down);
        if unsent > 0 {
            deadline_ms = deadline_ms.min(now_ms + LOOK_MS);
        }
        self.leg.let_go();
        self.settle();
        let waited = self.x.either(client, (self.leg.link.stream(), interest), deadline_ms).await;
        self.leg.hold();
        match waited {
            Err(Fault::Timeout) => self.on_timeout(down),
            other => Ok(other?),
        }
    }

    /// Before others have their turn: gives back what it can where memory is short, and counts the rest.
    pub(super) fn settle(&mut self) {
        let is_short = self.is_short();
        self.x.hold(self.leg.weigh(is_short) + self.kept.bytes.capacity());
    }

    /// Every clock that runs, as the time when it runs out.
    fn clocks(&self, down: Down) -> [u64; 6] {
        let timeouts = &self.plan.options.timeouts;
        let runs =
            |runs: bool, since_ms: u64, ms: u64| if runs { since_ms.saturating_add(ms) } else { u64::MAX };
        let waits = down == Down::Dry;
        [
            runs(self.up == Up::Continue, self.up_ms, timeouts.continue_ms),
            runs(self.up == Up::Body && self.leg.backlog() == 0, self.client_read_ms, self.x.body_ms()),
            runs(self.unsent > 0, self.client_write_ms, self.x.write_ms()),
            runs(self.up != Up::Abandoned && self.leg.is_behind(), self.up_ms, timeouts.between_ms),
            runs(
                waits && !self.x.has_begun() && matches!(self.up, Up::Done | Up::Abandoned),
                self.up_ms,
                timeouts.head_ms,
            ),
            runs(waits && self.x.has_begun(), self.down_ms, timeouts.between_ms),
        ]
    }

    fn deadline_ms(&self, down: Down) -> u64 {
        self.clocks(down).into_iter().fold(self.plan.deadline_ms, u64::min)
    }

    fn on_timeout(&mut self, down: Down) -> Result<(), Failure> {
        let now_ms = self.x.core().now_ms();
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
        let clients_turn = (self.up == Up::Body && self.leg.backlog() == 0) || self.unsent > 0;
        if read <= now_ms || write <= now_ms || (clients_turn && self.plan.deadline_ms <= now_ms) {
            return Err(Failure::Ours(Fault::Timeout));
        }
        Err(match self.x.has_begun() {
            true => Failure::Body("the upstream took too long in the middle of a response"),
            false => Failure::Slow,
        })
    }
}
