//! Recovery of slots whose worker violated the protocol or died.

use super::{Lost, ServerSide, Ticket, Use};
use crate::error::{Breach, WorkerFault, WorkerSlot};
use crate::words::SlotPhase;

impl ServerSide {
    /// Ends a ticket whose response is invalid.
    pub(super) fn break_off(&mut self, at: usize, breach: Breach) -> WorkerFault {
        let record = &self.records[at];
        let ended = record.ending.is_some();
        let worker_slot = record.worker_slot.or_else(|| if ended { None } else { self.holder(at)?.1 });
        match worker_slot {
            // The worker has released the slot; it may be dead by now, with another worker in its worker
            // slot.
            _ if ended => {
                self.release(at);
                self.mute(worker_slot, breach);
            }
            Some(_) => {
                self.records[at].worker_slot = worker_slot;
                self.records[at].used = Use::Broken;
                self.mute(worker_slot, breach);
            }
            None => self.quarantine(at),
        }
        WorkerFault { worker_slot: worker_slot.map(WorkerSlot), breach }
    }

    /// Quarantines a slot whose holder is unknown: no worker's death frees it, because an honest worker may
    /// still write to it.
    pub(super) fn quarantine(&mut self, at: usize) {
        self.records[at].worker_slot = None;
        self.records[at].used = Use::Broken;
        self.quarantined += 1;
        self.mute(None, Breach::SlotState);
    }

    pub(super) fn mute(&mut self, worker_slot: Option<usize>, breach: Breach) {
        if let Some(worker_slot) = worker_slot {
            self.worker_slots[worker_slot].mute = true;
        }
        self.faults.push(WorkerFault { worker_slot: worker_slot.map(WorkerSlot), breach });
    }

    /// Dissociates a complete response from its dead worker, so that it is not attributed to the successor.
    fn disown(&mut self, worker_slot: usize, at: usize) {
        let known = &mut self.records[at].worker_slot;
        *known = known.filter(|known| *known != worker_slot);
    }

    /// Resolves the state of one slot after the death of the holder of `worker_slot`.
    pub(super) fn settle(&mut self, worker_slot: usize, at: usize, lost: &mut Vec<Lost>) {
        let record = &self.records[at];
        let ticket = Ticket { slot: at as u16, generation: record.generation };
        let started = record.started;
        let holder = match record.used {
            Use::Free => return,
            Use::Broken if record.worker_slot == Some(worker_slot) => return self.release(at),
            Use::Broken => return,
            Use::Live if record.ending.is_some() => return self.disown(worker_slot, at),
            Use::Live | Use::Cancelled => self.holder(at),
        };
        let live = record.used == Use::Live;
        let phase = match (record.worker_slot, holder) {
            // The word may have been overwritten since; the first valid notice is authoritative.
            (Some(known), Some((phase, Some(now)))) if known == worker_slot && now == worker_slot => phase,
            (Some(known), _) if known == worker_slot => SlotPhase::Claimed,
            (None, Some((phase, Some(now)))) if now == worker_slot => phase,
            // The holder is unknown. (A cancelled request was claimed, and cannot be in the queue again.)
            (None, None) | (None, Some((SlotPhase::Ready, _))) if !live || holder.is_none() => {
                if live {
                    lost.push(Lost { ticket, started });
                }
                return self.quarantine(at);
            }
            _ => return,
        };
        let record = &mut self.records[at];
        if live && phase != SlotPhase::Claimed && !self.worker_slots[worker_slot].mute {
            // The worker finished the request and died before it could report that.
            record.worker_slot = None;
            record.ending = Some(phase);
            self.owed.push(ticket);
            return;
        }
        if live {
            lost.push(Lost { ticket, started });
        }
        self.release(at);
    }
}
