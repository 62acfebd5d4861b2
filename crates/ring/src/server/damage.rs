//! Recovery of slots whose worker violated the protocol or died.

use super::{LostRequest, ServerSide, SlotUse, Ticket};
use crate::error::{ProtocolViolation, WorkerFault, WorkerSlot};
use crate::words::SlotPhase;

impl ServerSide {
    /// Ends a ticket whose response is invalid.
    pub(super) fn void_ticket(&mut self, at: usize, breach: ProtocolViolation) -> WorkerFault {
        let record = &self.records[at];
        let ended = record.final_phase.is_some();
        let worker_slot = record.worker_slot.or_else(|| if ended { None } else { self.holder(at)?.1 });
        match worker_slot {
            // The worker has released the slot; it may be dead by now, with another worker in its worker
            // slot.
            _ if ended => {
                self.release(at);
                self.mute_worker(worker_slot, breach);
            }
            Some(_) => {
                self.records[at].worker_slot = worker_slot;
                self.records[at].slot_use = SlotUse::Broken;
                self.mute_worker(worker_slot, breach);
            }
            None => self.quarantine(at),
        }
        WorkerFault { worker_slot: worker_slot.map(WorkerSlot), violation: breach }
    }

    /// Quarantines a slot whose holder is unknown: no worker's death frees it, because an honest worker may
    /// still write to it.
    pub(super) fn quarantine(&mut self, at: usize) {
        self.records[at].worker_slot = None;
        self.records[at].slot_use = SlotUse::Broken;
        self.quarantined += 1;
        self.mute_worker(None, ProtocolViolation::SlotState);
    }

    pub(super) fn mute_worker(&mut self, worker_slot: Option<usize>, breach: ProtocolViolation) {
        if let Some(worker_slot) = worker_slot {
            self.worker_slots[worker_slot].is_muted = true;
        }
        self.faults.push(WorkerFault { worker_slot: worker_slot.map(WorkerSlot), violation: breach });
    }

    /// Dissociates a complete response from its dead worker, so that it is not attributed to the successor.
    fn detach_response(&mut self, worker_slot: usize, at: usize) {
        let known = &mut self.records[at].worker_slot;
        *known = known.filter(|known| *known != worker_slot);
    }

    /// Resolves the state of one slot after the death of the holder of `worker_slot`.
    pub(super) fn reclaim_slot(&mut self, worker_slot: usize, at: usize, lost: &mut Vec<LostRequest>) {
        let record = &self.records[at];
        let ticket = Ticket { slot: at as u16, generation: record.generation };
        let started = record.has_started;
        let holder = match record.slot_use {
            SlotUse::Free => return,
            SlotUse::Broken if record.worker_slot == Some(worker_slot) => return self.release(at),
            SlotUse::Broken => return,
            SlotUse::Live if record.final_phase.is_some() => return self.detach_response(worker_slot, at),
            SlotUse::Live | SlotUse::Cancelled => self.holder(at),
        };
        let live = record.slot_use == SlotUse::Live;
        let phase = match (record.worker_slot, holder) {
            // The word may have been overwritten since; the first valid notice is authoritative.
            (Some(known), Some((phase, Some(now)))) if known == worker_slot && now == worker_slot => phase,
            (Some(known), _) if known == worker_slot => SlotPhase::Claimed,
            (None, Some((phase, Some(now)))) if now == worker_slot => phase,
            // The holder is unknown. (A cancelled request was claimed, and cannot be in the queue again.)
            (None, None) | (None, Some((SlotPhase::Ready, _))) if !live || holder.is_none() => {
                if live {
                    lost.push(LostRequest { ticket, has_started: started });
                }
                return self.quarantine(at);
            }
            _ => return,
        };
        let record = &mut self.records[at];
        if live && phase != SlotPhase::Claimed && !self.worker_slots[worker_slot].is_muted {
            // The worker finished the request and died before it could report that.
            record.worker_slot = None;
            record.final_phase = Some(phase);
            self.pending_tickets.push(ticket);
            return;
        }
        if live {
            lost.push(LostRequest { ticket, has_started: started });
        }
        self.release(at);
    }
}
