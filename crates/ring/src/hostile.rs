//! A hostile worker that writes arbitrary values, for tests and the fuzz target, both of which derive its
//! steps from bytes.
//!
//! Two laws are checked. If anything in the memory is overwritten: no panic, no endless loop, and once every
//! worker is dead every slot is free or counted as quarantined. If a worker overwrites only what it holds
//! (its lane, the streams of its slots): requests of an honest worker of the same channel are answered as if
//! the hostile one did not exist.

use std::collections::VecDeque;
use std::num::NonZeroU32;

use crate::channel::Channel;
use crate::error::WorkerSlot;
use crate::layout::{Options, slot};
use crate::part::Part;
use crate::request::ClaimedRequest;
use crate::server::{ServerSide, Ticket};
use crate::sync::Relaxed;
use crate::worker::Worker;

const HOSTILE: WorkerSlot = WorkerSlot(0);
const HONEST: WorkerSlot = WorkerSlot(1);

/// Derives the steps from `data` and runs them. The first byte decides whether the hostile worker writes to
/// the whole memory or only to what it holds.
///
/// # Panics
/// If a law is violated.
pub fn fuzz_hostile(data: &[u8]) {
    let Some((&first, rest)) = data.split_first() else { return };
    let options = Options {
        threads: 1,
        worker_slots: 2,
        slots: 8,
        request_bytes: 128,
        response_bytes: 128,
        process_slots: 1,
        slot_fds: false,
    };
    let channel = Channel::create(&options).expect("small enough for any machine");
    let mut play = Play {
        server: channel.server(0),
        honest: channel.worker(HONEST),
        hostile: channel.worker(HOSTILE),
        channel: &channel,
        anywhere: first & 1 == 1,
        held: VecDeque::new(),
        prey: Vec::new(),
        asked: Vec::new(),
        serial: 0,
    };
    let mut steps = rest.iter().copied();
    while let Some(step) = steps.next() {
        play.step(step, &mut steps);
    }
    play.end_all();
}

struct Play<'a> {
    server: ServerSide,
    honest: Worker,
    hostile: Worker,
    channel: &'a Channel,
    anywhere: bool,
    /// Requests held by the honest worker.
    held: VecDeque<ClaimedRequest>,
    /// Requests held by the hostile worker.
    prey: Vec<ClaimedRequest>,
    /// Tickets that are valid as far as the submitter knows, with their requests.
    asked: Vec<(Ticket, u32, Vec<u8>)>,
    serial: u32,
}

/// Reads the next bytes as a number; 0 at the end.
fn number(steps: &mut impl Iterator<Item = u8>) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|_| steps.next().unwrap_or(0)))
}

impl Play<'_> {
    fn step(&mut self, step: u8, steps: &mut impl Iterator<Item = u8>) {
        match step % 16 {
            0 | 1 => self.submit(),
            2 => self.prey.extend(self.hostile.try_next()),
            3 => self.held.extend(self.honest.try_next()),
            4 => self.answer(),
            5 | 6 => self.listen(),
            7 => {
                if let Some((ticket, ..)) = self.pick(number(steps)) {
                    self.server.cancel(ticket, NonZeroU32::MIN);
                    self.asked.retain(|(known, ..)| *known != ticket);
                }
            }
            8 => {
                if let Some((ticket, ..)) = self.pick(number(steps)) {
                    let _ = self.server.push_body(ticket, &[7; 200], false);
                }
            }
            9 => {
                if self.server.arm() {
                    self.server.disarm();
                }
            }
            10 => self.die(),
            11 if !self.prey.is_empty() => drop(self.prey.pop()),
            12 => self.write_prey(number(steps) as usize % 300),
            _ => self.scribble(number(steps), number(steps), number(steps)),
        }
    }

    fn pick(&self, at: u32) -> Option<(Ticket, u32)> {
        let at = (at as usize).checked_rem(self.asked.len())?;
        Some((self.asked[at].0, self.asked[at].1))
    }

    fn submit(&mut self) {
        self.serial += 1;
        let head = self.serial.to_le_bytes();
        if let Ok((ticket, _)) = self.server.submit(&head, b"", true) {
            self.asked.push((ticket, self.serial, Vec::new()));
        }
    }

    /// Lets the honest worker send its request's head back in two pieces.
    fn answer(&mut self) {
        let Some(mut request) = self.held.pop_front() else { return };
        let head = request.head().to_vec();
        // An honest worker gets at worst an error, whatever the hostile one wrote.
        let _ = request.respond(&head).and_then(|()| request.write(&head)).and_then(|()| request.finish());
    }

    fn listen(&mut self) {
        let mut news = Vec::new();
        self.server.poll(|_, ticket| news.push(ticket));
        for ticket in news {
            self.receive(ticket);
        }
        while self.server.take_fault().is_some() {}
    }

    fn receive(&mut self, ticket: Ticket) {
        for _ in 0..1000 {
            let mut bytes = Vec::new();
            let received = self.server.receive(ticket, &mut bytes, 50);
            assert!(bytes.len() <= 128);
            let Some(at) = self.asked.iter().position(|(known, ..)| *known == ticket) else {
                assert!(self.anywhere || received.is_err(), "news of a ticket that nobody has");
                return;
            };
            match received {
                Ok(None) => return,
                Err(_) => drop(self.asked.swap_remove(at)),
                Ok(Some(received)) => {
                    if matches!(received.part, Part::Head | Part::Data) {
                        self.asked[at].2.extend_from_slice(&bytes);
                    }
                    if received.last {
                        let (_, serial, answer) = self.asked.swap_remove(at);
                        self.check(serial, &answer, received.part);
                    }
                }
            }
        }
    }

    /// Checks that an answer which only the honest worker can have given is correct.
    fn check(&self, serial: u32, answer: &[u8], part: Part) {
        let echo = [serial.to_le_bytes(), serial.to_le_bytes()].concat();
        let by_honest = answer.len() == 8 && !matches!(part, Part::Aborted(_)) && answer[..4] == answer[4..];
        assert!(self.anywhere || !by_honest || answer == echo, "{serial} was answered with {answer:?}");
    }

    /// Lets the hostile worker die while it holds requests.
    fn die(&mut self) {
        self.prey.drain(..).for_each(ClaimedRequest::vanish);
        for lost in self.server.worker_died(HOSTILE) {
            self.asked.retain(|(ticket, ..)| *ticket != lost.ticket);
        }
        self.hostile = self.channel.worker(HOSTILE);
    }

    /// Writes the beginning of a response.
    fn write_prey(&mut self, len: usize) {
        if let Some(request) = self.prey.last_mut() {
            let _ = request.respond(b"");
            let _ = request.try_write(&vec![0xee; len]);
        }
    }

    fn scribble(&mut self, place: u32, value: u32, kind: u32) {
        let shared = self.channel.shared();
        let geometry = &shared.geometry;
        let own =
            self.prey.get((kind >> 8) as usize % self.prey.len().max(1)).map(ClaimedRequest::slot_index);
        let place = place as usize;
        let index = match (self.anywhere, own) {
            (true, _) if kind & 1 == 0 => place % shared.region.words().len(),
            (true, _) => geometry.slot(0, place % geometry.slots) + (place >> 8) % slot::WORDS,
            // Excludes the state word: every worker uses it, so overwriting it affects all of them.
            (false, Some(own)) if kind & 3 == 0 => geometry.slot(0, own) + 1 + place % (slot::WORDS - 1),
            (false, Some(own)) if kind & 3 == 1 => {
                let areas = (geometry.request_bytes + geometry.response_bytes) / 4;
                geometry.areas(0, own).0 / 4 + place % areas
            }
            _ => geometry.lane(0, HOSTILE.0) + place % geometry.cells,
        };
        // Small numbers, positions and bit flips of the current value have more effect than noise.
        let word = shared.word(index);
        let value = match kind >> 4 & 3 {
            0 => value % 256,
            1 => word.load(Relaxed) ^ 1 << (value % 32),
            2 => word.load(Relaxed).wrapping_add(value % 512).wrapping_sub(256),
            _ => value,
        };
        word.store(value, Relaxed);
    }

    fn end_all(&mut self) {
        // First completes the honest worker's requests, so that the remaining slots are the hostile worker's.
        for _ in 0..40 {
            self.held.extend(self.honest.try_next());
            self.answer();
            self.listen();
        }
        self.die();
        self.listen();
        if !self.anywhere {
            for _ in 0..40 {
                self.held.extend(self.honest.try_next());
                self.answer();
                self.listen();
            }
            assert_eq!((self.server.in_use(), self.server.quarantined()), (0, 0), "a slot was lost");
            assert!(self.asked.is_empty(), "left without an answer: {:?}", self.asked);
            return;
        }
        for (ticket, ..) in std::mem::take(&mut self.asked) {
            self.server.cancel(ticket, NonZeroU32::MIN);
        }
        self.server.worker_died(HONEST);
        self.server.worker_died(HOSTILE);
        assert_eq!(self.server.in_use(), self.server.quarantined(), "a slot was lost");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// xorshift: the only source of randomness of the tests, with a fixed seed.
    fn noise(mut seed: u64, len: usize) -> Vec<u8> {
        let byte = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed >> 32) as u8
        };
        std::iter::repeat_with(byte).take(len).collect()
    }

    #[test]
    fn noise_breaks_no_law() {
        for seed in 1..4000u64 {
            fuzz_hostile(&noise(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), 600));
        }
    }

    #[test]
    fn seeds_break_no_law() {
        corpus::replay(&corpus::seeds("hostile"), 4_000, fuzz_hostile);
    }
}
