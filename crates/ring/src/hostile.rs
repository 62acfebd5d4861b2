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
use crate::request::ClaimedRequest;
use crate::response_part::ResponsePart;
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
    let mut play = HostileScenario {
        server: channel.server(0),
        honest: channel.worker(HONEST),
        hostile: channel.worker(HOSTILE),
        channel: &channel,
        corrupts_anywhere: first & 1 == 1,
        honest_requests: VecDeque::new(),
        hostile_requests: Vec::new(),
        submitted: Vec::new(),
        serial: 0,
    };
    let mut steps = rest.iter().copied();
    while let Some(step) = steps.next() {
        play.step(step, &mut steps);
    }
    play.end_all();
}

struct HostileScenario<'a> {
    server: ServerSide,
    honest: Worker,
    hostile: Worker,
    channel: &'a Channel,
    corrupts_anywhere: bool,
    /// Requests held by the honest worker.
    honest_requests: VecDeque<ClaimedRequest>,
    /// Requests held by the hostile worker.
    hostile_requests: Vec<ClaimedRequest>,
    /// Tickets that are valid as far as the submitter knows, with their requests.
    submitted: Vec<(Ticket, u32, Vec<u8>)>,
    serial: u32,
}

/// Reads the next bytes as a number; 0 at the end.
fn number(steps: &mut impl Iterator<Item = u8>) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|_| steps.next().unwrap_or(0)))
}

impl HostileScenario<'_> {
    fn step(&mut self, step: u8, steps: &mut impl Iterator<Item = u8>) {
        match step % 16 {
            0 | 1 => self.submit(),
            2 => self.hostile_requests.extend(self.hostile.try_next()),
            3 => self.honest_requests.extend(self.honest.try_next()),
            4 => self.send_answer(),
            5 | 6 => self.poll_server(),
            7 => {
                if let Some((ticket, ..)) = self.pick_ticket(number(steps)) {
                    self.server.cancel(ticket, NonZeroU32::MIN);
                    self.submitted.retain(|(known, ..)| *known != ticket);
                }
            }
            8 => {
                if let Some((ticket, ..)) = self.pick_ticket(number(steps)) {
                    let _ = self.server.push_body(ticket, &[7; 200], false);
                }
            }
            9 => {
                if self.server.arm() {
                    self.server.disarm();
                }
            }
            10 => self.kill_hostile_worker(),
            11 if !self.hostile_requests.is_empty() => drop(self.hostile_requests.pop()),
            12 => self.write_hostile_response(number(steps) as usize % 300),
            _ => self.corrupt(number(steps), number(steps), number(steps)),
        }
    }

    fn pick_ticket(&self, at: u32) -> Option<(Ticket, u32)> {
        let at = (at as usize).checked_rem(self.submitted.len())?;
        Some((self.submitted[at].0, self.submitted[at].1))
    }

    fn submit(&mut self) {
        self.serial += 1;
        let head = self.serial.to_le_bytes();
        if let Ok((ticket, _)) = self.server.submit(&head, b"", true) {
            self.submitted.push((ticket, self.serial, Vec::new()));
        }
    }

    /// Lets the honest worker send its request's head back in two pieces.
    fn send_answer(&mut self) {
        let Some(mut request) = self.honest_requests.pop_front() else { return };
        let head = request.head().to_vec();
        // An honest worker gets at worst an error, whatever the hostile one wrote.
        let _ = request.respond(&head).and_then(|()| request.write(&head)).and_then(|()| request.finish());
    }

    fn poll_server(&mut self) {
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
            let Some(at) = self.submitted.iter().position(|(known, ..)| *known == ticket) else {
                assert!(self.corrupts_anywhere || received.is_err(), "news of a ticket that nobody has");
                return;
            };
            match received {
                Ok(None) => return,
                Err(_) => drop(self.submitted.swap_remove(at)),
                Ok(Some(received)) => {
                    if matches!(received.part, ResponsePart::Head | ResponsePart::Data) {
                        self.submitted[at].2.extend_from_slice(&bytes);
                    }
                    if received.is_last {
                        let (_, serial, answer) = self.submitted.swap_remove(at);
                        self.check(serial, &answer, received.part);
                    }
                }
            }
        }
    }

    /// Checks that an answer which only the honest worker can have given is correct.
    fn check(&self, serial: u32, answer: &[u8], part: ResponsePart) {
        let echo = [serial.to_le_bytes(), serial.to_le_bytes()].concat();
        let by_honest =
            answer.len() == 8 && !matches!(part, ResponsePart::Aborted(_)) && answer[..4] == answer[4..];
        assert!(
            self.corrupts_anywhere || !by_honest || answer == echo,
            "{serial} was answered with {answer:?}"
        );
    }

    /// Lets the hostile worker die while it holds requests.
    fn kill_hostile_worker(&mut self) {
        self.hostile_requests.drain(..).for_each(ClaimedRequest::abandon_as_killed);
        for lost in self.server.worker_died(HOSTILE) {
            self.submitted.retain(|(ticket, ..)| *ticket != lost.ticket);
        }
        self.hostile = self.channel.worker(HOSTILE);
    }

    /// Writes the beginning of a response.
    fn write_hostile_response(&mut self, len: usize) {
        if let Some(request) = self.hostile_requests.last_mut() {
            let _ = request.respond(b"");
            let _ = request.try_write(&vec![0xee; len]);
        }
    }

    fn corrupt(&mut self, place: u32, value: u32, kind: u32) {
        let shared = self.channel.shared();
        let geometry = &shared.geometry;
        let own = self
            .hostile_requests
            .get((kind >> 8) as usize % self.hostile_requests.len().max(1))
            .map(ClaimedRequest::slot_index);
        let place = place as usize;
        let index = match (self.corrupts_anywhere, own) {
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
            self.honest_requests.extend(self.honest.try_next());
            self.send_answer();
            self.poll_server();
        }
        self.kill_hostile_worker();
        self.poll_server();
        if !self.corrupts_anywhere {
            for _ in 0..40 {
                self.honest_requests.extend(self.honest.try_next());
                self.send_answer();
                self.poll_server();
            }
            assert_eq!((self.server.in_use(), self.server.quarantined()), (0, 0), "a slot was lost");
            assert!(self.submitted.is_empty(), "left without an answer: {:?}", self.submitted);
            return;
        }
        for (ticket, ..) in std::mem::take(&mut self.submitted) {
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
    fn hostile_law_holds_for_random_input() {
        for seed in 1..4000u64 {
            fuzz_hostile(&noise(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), 600));
        }
    }

    #[test]
    fn hostile_law_holds_for_seeds() {
        corpus::replay(&corpus::seeds("hostile"), 4_000, fuzz_hostile);
    }
}
