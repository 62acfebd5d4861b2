//! The two packed words: a slot's state, and the tag that identifies one use of a slot in queue and lane.

/// Maximum number of slots of one server thread, limited by a [`Tag`].
pub(crate) const SLOTS_MAX: usize = 1 << SLOT_BITS;
/// Maximum number of worker slots, limited by a [`SlotState`].
pub(crate) const WORKER_SLOTS_MAX: usize = 1 << WORKER_SLOT_BITS;

const SLOT_BITS: u32 = 14;
const WORKER_SLOT_BITS: u32 = 12;
const PHASE_BITS: u32 = 3;
const GENERATION_BITS: u32 = 17;
const GENERATION_MAX: u32 = (1 << GENERATION_BITS) - 1;

/// The use count of a slot. Never 0, so that no tag equals the empty word.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(crate) struct SlotGeneration(u32);

impl SlotGeneration {
    pub(crate) const FIRST: SlotGeneration = SlotGeneration(1);

    pub(crate) fn next(self) -> SlotGeneration {
        SlotGeneration(if self.0 == GENERATION_MAX { 1 } else { self.0 + 1 })
    }
}

/// One use of one slot of a server thread: generation 17 bits, finished 1 bit, slot 14 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tag(pub(crate) u32);

impl Tag {
    const FINISHED: u32 = 1 << SLOT_BITS;

    pub(crate) fn new(slot: usize, generation: SlotGeneration) -> Tag {
        debug_assert!(slot < SLOTS_MAX);
        Tag(generation.0 << (SLOT_BITS + 1) | slot as u32)
    }

    pub(crate) fn slot(self) -> usize {
        (self.0 & (Self::FINISHED - 1)) as usize
    }

    pub(crate) fn generation(self) -> SlotGeneration {
        SlotGeneration(self.0 >> (SLOT_BITS + 1))
    }

    /// The same tag with the flag that the worker will not access the slot again.
    pub(crate) fn finished(self) -> Tag {
        Tag(self.0 | Self::FINISHED)
    }

    pub(crate) fn is_finished(self) -> bool {
        self.0 & Self::FINISHED != 0
    }
}

/// The owner and state of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlotPhase {
    /// Owned by the server; empty.
    Free,
    /// A request that any worker may claim.
    Ready,
    /// Owned by a worker.
    Claimed,
    /// Owned by the server again: the complete response is in the slot.
    Done,
    /// Owned by the server again: the worker aborted, and its reason is in the slot.
    Aborted,
}

/// A slot's state word: generation 17 bits, worker slot 12 bits, phase 3 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SlotState(pub(crate) u32);

impl SlotState {
    pub(crate) fn new(phase: SlotPhase, worker_slot: usize, generation: SlotGeneration) -> SlotState {
        debug_assert!(worker_slot < WORKER_SLOTS_MAX);
        SlotState(
            generation.0 << (WORKER_SLOT_BITS + PHASE_BITS)
                | (worker_slot as u32) << PHASE_BITS
                | phase as u32,
        )
    }

    pub(crate) fn ready(generation: SlotGeneration) -> SlotState {
        SlotState::new(SlotPhase::Ready, 0, generation)
    }

    /// The phase; `None` if the word is invalid.
    pub(crate) fn phase(self) -> Option<SlotPhase> {
        Some(match self.0 & ((1 << PHASE_BITS) - 1) {
            0 => SlotPhase::Free,
            1 => SlotPhase::Ready,
            2 => SlotPhase::Claimed,
            3 => SlotPhase::Done,
            4 => SlotPhase::Aborted,
            _ => return None,
        })
    }

    pub(crate) fn worker_slot(self) -> usize {
        (self.0 >> PHASE_BITS) as usize & (WORKER_SLOTS_MAX - 1)
    }

    pub(crate) fn generation(self) -> SlotGeneration {
        SlotGeneration(self.0 >> (WORKER_SLOT_BITS + PHASE_BITS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_words_round_trip() {
        let last = SlotGeneration(GENERATION_MAX);
        for (slot, generation) in
            [(0, SlotGeneration::FIRST), (SLOTS_MAX - 1, last), (77, SlotGeneration(4096))]
        {
            let tag = Tag::new(slot, generation);
            assert_ne!(tag.0, 0);
            assert_eq!((tag.slot(), tag.generation(), tag.is_finished()), (slot, generation, false));
            let tag = tag.finished();
            assert_eq!((tag.slot(), tag.generation(), tag.is_finished()), (slot, generation, true));
        }
        for phase in
            [SlotPhase::Free, SlotPhase::Ready, SlotPhase::Claimed, SlotPhase::Done, SlotPhase::Aborted]
        {
            let state = SlotState::new(phase, WORKER_SLOTS_MAX - 1, last);
            assert_eq!(
                (state.phase(), state.worker_slot(), state.generation()),
                (Some(phase), WORKER_SLOTS_MAX - 1, last)
            );
        }
        assert_eq!(SlotState(7).phase(), None);
    }

    #[test]
    fn slot_generation_is_never_zero() {
        assert_eq!(SlotGeneration(GENERATION_MAX).next(), SlotGeneration::FIRST);
        assert_eq!(SlotGeneration::FIRST.next(), SlotGeneration(2));
    }
}
