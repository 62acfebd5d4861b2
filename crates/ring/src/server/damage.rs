//! What becomes of a slot when its worker lied or died.

use super::{Lost, Server, Ticket, Use};
use crate::error::{Breach, Fault, Seat};
use crate::words::Phase;

impl Server {
    /// Ends a ticket whose answer is not to be believed.
    pub(super) fn break_off(&mut self, at: usize, breach: Breach) -> Fault {
        let record = &self.records[at];
        let ended = record.ending.is_some();
        let seat = record.seat.or_else(|| if ended { None } else { self.holder(at)?.1 });
        match seat {
            // The worker let go of it; it may be dead by now, and another in its seat.
            _ if ended => {
                self.release(at);
                self.mute(seat, breach);
            }
            Some(_) => {
                self.records[at].seat = seat;
                self.records[at].used = Use::Broken;
                self.mute(seat, breach);
            }
            None => self.quarantine(at),
        }
        Fault { seat: seat.map(Seat), breach }
    }

    /// Nobody can tell who holds the slot, so nobody's death frees it: an honest worker may still write there.
    pub(super) fn quarantine(&mut self, at: usize) {
        self.records[at].seat = None;
        self.records[at].used = Use::Broken;
        self.quarantined += 1;
        self.mute(None, Breach::State);
    }

    pub(super) fn mute(&mut self, seat: Option<usize>, breach: Breach) {
        if let Some(seat) = seat {
            self.seats[seat].mute = true;
        }
        self.faults.push(Fault { seat: seat.map(Seat), breach });
    }

    /// A whole answer outlives its worker, and is not its heir's.
    fn disown(&mut self, seat: usize, at: usize) {
        let known = &mut self.records[at].seat;
        *known = known.filter(|known| *known != seat);
    }

    /// Settles one slot on the death of `seat`'s holder.
    pub(super) fn bury(&mut self, seat: usize, at: usize, lost: &mut Vec<Lost>) {
        let record = &self.records[at];
        let ticket = Ticket { slot: at as u16, generation: record.generation };
        let started = record.started;
        let holder = match record.used {
            Use::Free => return,
            Use::Broken if record.seat == Some(seat) => return self.release(at),
            Use::Broken => return,
            Use::Live if record.ending.is_some() => return self.disown(seat, at),
            Use::Live | Use::Cancelled => self.holder(at),
        };
        let live = record.used == Use::Live;
        let phase = match (record.seat, holder) {
            // The word may have been scribbled on since; the first notice was believed.
            (Some(known), Some((phase, Some(now)))) if known == seat && now == seat => phase,
            (Some(known), _) if known == seat => Phase::Claimed,
            (None, Some((phase, Some(now)))) if now == seat => phase,
            // Nobody knows who has it. (A cancelled one was claimed, and cannot be in the queue again.)
            (None, None) | (None, Some((Phase::Ready, _))) if !live || holder.is_none() => {
                if live {
                    lost.push(Lost { ticket, started });
                }
                return self.quarantine(at);
            }
            _ => return,
        };
        let record = &mut self.records[at];
        if live && phase != Phase::Claimed && !self.seats[seat].mute {
            // It finished, and died before it could say so.
            record.seat = None;
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
