//! Accounting of the memory and work that one peer causes.
//!
//! There are two figures. `held` is memory: each byte kept for the peer is added when it is stored and
//! subtracted when it is freed. `credit` is work: a frame that does not advance a request or response costs
//! credit, a request that is served completely earns some, and time adds a little, so that a connection that
//! lives for days may send occasional pings. A peer that holds more than half of its memory, or has less than
//! a quarter of its credit left, is throttled: it may open only one stream at a time, and its windows are not
//! replenished. A peer that exceeds its share is disconnected with ENHANCE_YOUR_CALM.

use crate::error::ConnectionError;

/// Costs and earnings of credit; the unit is one frame that is cheap to handle.
pub(crate) mod price {
    /// Cost of a frame that advances no message: PING, PRIORITY, WINDOW_UPDATE, SETTINGS, or an unknown type.
    pub(crate) const FRAME: u32 = 1;
    /// Number of settings in one SETTINGS frame, or of open streams that it affects, that cost as much as a
    /// frame.
    pub(crate) const SETTINGS_PER_FRAME: u32 = 16;
    /// Cost of an empty CONTINUATION frame.
    pub(crate) const EMPTY_CONTINUATION: u32 = 20;
    /// Cost of a stream that the peer opens beyond the limit.
    pub(crate) const REFUSED: u32 = 4;
    /// Cost of a stream that the peer resets before its response is complete.
    pub(crate) const RESET: u32 = 4;
    /// Bytes of a decoded head that cost as much as one frame. Heads within the limits are smaller.
    pub(crate) const HEAD_BYTES_FREE: usize = 64 * 1024;
    /// Cost of a request that is answered with an error because its head exceeds a limit.
    pub(crate) const REFUSED_HEAD: u32 = 20;
    /// Cost of a stream that this side resets because of an error of the peer.
    pub(crate) const STREAM_ERROR: u32 = 20;
    /// Earned by a request that is served completely.
    pub(crate) const FINISHED: u32 = 8;
    /// Earned by sending a DATA frame, because the peer answers it with two WINDOW_UPDATE frames.
    pub(crate) const DATA_SENT: u32 = 2;
    /// Bytes of content sent that earn as much as one frame costs: some clients (Go's) send two WINDOW_UPDATE
    /// frames for each 4 KiB read.
    pub(crate) const DATA_BYTES_PER_FRAME: u32 = 1024;
    /// Earned every second.
    pub(crate) const PER_SECOND: u32 = 2;
}

/// The share of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerLimits {
    /// Maximum number of bytes held for the peer. Default 2 MiB.
    pub held_bytes_max: usize,
    /// Initial and maximum credit of a connection. Default 2,000.
    pub credit_max: u32,
}

impl Default for PeerLimits {
    fn default() -> PeerLimits {
        PeerLimits { held_bytes_max: 2 << 20, credit_max: 2_000 }
    }
}

/// The account of one connection.
#[derive(Debug)]
pub(crate) struct Ledger {
    limits: PeerLimits,
    held: usize,
    /// Maximum of `held` so far.
    held_peak: usize,
    credit: u32,
    is_throttled: bool,
    /// Time of the last credit for elapsed time, in milliseconds.
    credited_ms: Option<u64>,
}

const OVER_CREDIT: ConnectionError = ConnectionError::enhance_your_calm("too many frames without progress");
const OVER_MEMORY: ConnectionError = ConnectionError::enhance_your_calm("too much held for the connection");

impl Ledger {
    pub(crate) fn new(share: PeerLimits) -> Ledger {
        Ledger {
            limits: share,
            held: 0,
            held_peak: 0,
            credit: share.credit_max,
            is_throttled: false,
            credited_ms: None,
        }
    }

    /// Adds credit for the elapsed time.
    pub(crate) fn tick(&mut self, now_ms: u64) {
        let given = *self.credited_ms.get_or_insert(now_ms);
        let seconds = now_ms.saturating_sub(given) / 1000;
        if seconds > 0 {
            self.credited_ms = Some(given + seconds * 1000);
            self.add_credit((seconds.min(1 << 20) as u32).saturating_mul(price::PER_SECOND));
        }
    }

    /// Adds credit.
    pub(crate) fn add_credit(&mut self, credit: u32) {
        self.credit = self.credit.saturating_add(credit).min(self.limits.credit_max);
    }

    /// Subtracts credit.
    ///
    /// # Errors
    /// ENHANCE_YOUR_CALM if the credit is insufficient.
    pub(crate) fn spend(&mut self, credit: u32) -> Result<(), ConnectionError> {
        match self.credit.checked_sub(credit) {
            Some(left) => self.credit = left,
            None => {
                self.credit = 0;
                return Err(OVER_CREDIT);
            }
        }
        Ok(())
    }

    /// Adds memory held for the peer.
    pub(crate) fn hold(&mut self, bytes: usize) {
        self.held += bytes;
        self.held_peak = self.held_peak.max(self.held);
    }

    /// Subtracts memory that was freed.
    pub(crate) fn free(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.held, "freed what was not held");
        self.held = self.held.saturating_sub(bytes);
    }

    /// Fails if the memory held, plus `more` bytes stored elsewhere, exceeds the share; `allowed` bytes of
    /// unread content do not count.
    ///
    /// # Errors
    /// ENHANCE_YOUR_CALM.
    pub(crate) fn check(&self, more: usize, allowed: usize) -> Result<(), ConnectionError> {
        let held = (self.held + more).saturating_sub(allowed);
        if held > self.limits.held_bytes_max { Err(OVER_MEMORY) } else { Ok(()) }
    }

    /// Whether the peer is throttled: if it holds more than half of its memory or has less than a quarter of its
    /// credit, until it is back at a quarter of the memory and half of the credit.
    pub(crate) fn is_throttled(&mut self, more: usize, allowed: usize) -> bool {
        let held = (self.held + more).saturating_sub(allowed);
        let max = self.limits.held_bytes_max;
        let credit = self.credit;
        let full = self.limits.credit_max;
        self.is_throttled = if self.is_throttled {
            held > max / 4 || credit < full / 2
        } else {
            held > max / 2 || credit < full / 4
        };
        self.is_throttled
    }

    pub(crate) fn held(&self) -> usize {
        self.held
    }

    pub(crate) fn held_peak(&self) -> usize {
        self.held_peak
    }

    pub(crate) fn credit(&self) -> u32 {
        self.credit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_slowed_before_it_is_disconnected_and_recovers() {
        let mut ledger = Ledger::new(PeerLimits { held_bytes_max: 1000, credit_max: 100 });
        ledger.hold(500);
        assert!(!ledger.is_throttled(0, 0) && !ledger.is_throttled(1, 1) && ledger.is_throttled(1, 0));
        ledger.free(249);
        assert!(ledger.is_throttled(0, 0) && ledger.check(0, 0).is_ok());
        ledger.free(1);
        assert!(!ledger.is_throttled(0, 0));
        assert_eq!(ledger.check(751, 0), Err(OVER_MEMORY));
        assert_eq!(ledger.check(751, 1), Ok(()));
        ledger.spend(76).unwrap();
        assert!(ledger.is_throttled(0, 0));
        ledger.tick(5000);
        ledger.tick(17_999);
        assert!(ledger.is_throttled(0, 0), "{}", ledger.credit());
        ledger.tick(18_000);
        assert!(!ledger.is_throttled(0, 0));
        assert_eq!(ledger.spend(51), Err(OVER_CREDIT));
        ledger.add_credit(u32::MAX);
        assert_eq!(ledger.credit(), 100);
    }
}
