//! Whether a connection is read before its socket is registered.
//!
//! On a busy server the first request is usually there when its connection is accepted, and often the last one: then the
//! connection needs no registration at all, which costs as much as accepting it.

use std::cell::Cell;

/// Weight of a success against a failure: a failure costs a read, a success saves a registration and an event.
const SUCCESS: i32 = 3;
/// Bound of the score.
const SCORE_MAX: i32 = 24;
/// While reads fail, one connection of so many is tried.
const TRIED_OF: u32 = 64;

/// The successes of a core of late.
pub(crate) struct EarlyReads {
    score: Cell<i32>,
    skipped: Cell<u32>,
}

impl Default for EarlyReads {
    fn default() -> EarlyReads {
        EarlyReads { score: Cell::new(SUCCESS), skipped: Cell::new(0) }
    }
}

impl EarlyReads {
    /// Whether to read from the next connection at once.
    pub(crate) fn is_promising(&self) -> bool {
        if self.score.get() > 0 {
            return true;
        }
        self.skipped.set((self.skipped.get() + 1) % TRIED_OF);
        self.skipped.get() == 0
    }

    /// Records whether there was something to read.
    pub(crate) fn record(&self, is_success: bool) {
        let change = if is_success { SUCCESS } else { -1 };
        self.score.set((self.score.get() + change).clamp(-SCORE_MAX, SCORE_MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_tried_while_they_succeed_and_now_and_then_otherwise() {
        let reads = EarlyReads::default();
        (0..100).for_each(|_| {
            assert!(reads.is_promising());
            reads.record(true);
        });
        (0..SCORE_MAX).for_each(|_| reads.record(false));
        let tried = (0..640).filter(|_| reads.is_promising()).count();
        assert_eq!(tried, 10);
        (0..SCORE_MAX).for_each(|_| reads.record(false));
        (0..=SCORE_MAX / SUCCESS).for_each(|_| reads.record(true));
        assert!(reads.is_promising());
    }
}
