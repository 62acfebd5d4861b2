//! State shared by a worker and the requests it holds: the memory, the worker slot, and sleeping.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use crate::doorbell;
use crate::error::StopReason;
use crate::shared::{AWAKE, ON_FD, ON_WORD, SharedMemory};
use crate::sync::{AcqRel, SeqCst, fence};

/// A worker slot that is held.
pub(crate) struct WorkerSide {
    pub(crate) shared: Arc<SharedMemory>,
    pub(crate) worker_slot: usize,
    /// Position in the lane to each server thread.
    pub(crate) lane_positions: Vec<Cell<u32>>,
    /// Number of requests claimed so far, and number of them currently held.
    #[cfg(not(loom))]
    pub(crate) claims: Cell<(u32, u32)>,
    /// Buffers of finished requests, for reuse.
    pub(crate) spare_buffers: RefCell<Vec<Vec<u8>>>,
}

impl WorkerSide {
    pub(crate) fn new(shared: Arc<SharedMemory>, worker_slot: usize) -> WorkerSide {
        let lanes = (0..shared.geometry.threads).map(|_| Cell::new(0)).collect();
        WorkerSide {
            shared,
            worker_slot,
            lane_positions: lanes,
            #[cfg(not(loom))]
            claims: Cell::default(),
            spare_buffers: RefCell::default(),
        }
    }

    /// Sleeps until `ready` returns a value, woken by the server's progress on a held request. An event loop
    /// may be armed meanwhile: it is armed again when this returns.
    pub(crate) fn sleep_until<T>(
        &self,
        mut ready: impl FnMut() -> Result<Option<T>, StopReason>,
    ) -> Result<T, StopReason> {
        if let Some(value) = ready()? {
            return Ok(value);
        }
        let sleep = self.shared.sleep_word(self.worker_slot);
        let before = sleep.swap(ON_WORD, AcqRel);
        let mut was_rung = false;
        let over = loop {
            fence(SeqCst);
            match ready() {
                Ok(None) => _ = doorbell::wait(sleep, ON_WORD, None),
                over => break over,
            }
            was_rung |= sleep.swap(ON_WORD, AcqRel) == AWAKE;
        };
        was_rung |= sleep.swap(before, AcqRel) == AWAKE;
        // A ring may have been for another request, or for a new one: wake the event loop to check.
        if before == ON_FD
            && was_rung
            && let Some(signal) = self.shared.slot_doorbells.get(self.worker_slot)
        {
            signal.ring();
        }
        over.map(|value| value.expect("`None` was the other arm"))
    }
}
