//! Randomized conversations: clients get the responses to their requests, in order and complete, or a visibly
//! truncated prefix of these; and all memory is released.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use super::rig::Rig;
use super::script::{ClientAction, ConnectionAfter, Script, verify};
use crate::sim::{Dice, SimulatedWire};

/// Longer than all timeouts together.
const FOREVER_MS: u64 = 60_000;

struct Client {
    wire: Rc<SimulatedWire>,
    script: Script,
    done: usize,
    next_ms: u64,
    got: Vec<u8>,
    /// Average number of steps between two reads.
    read_interval: u64,
    is_orderly: bool,
}

impl Client {
    fn new(rig: &Rig, dice: &Dice, gentle: bool) -> Client {
        let mut script = Script::from_seed(dice);
        script.split_sends(dice);
        if gentle {
            end_orderly(&mut script, dice)
        } else {
            add_disruption(&mut script, dice)
        }
        let wire = rig.connect(dice.below(u64::MAX));
        let next_ms = rig.elapsed_ms() + dice.below(200);
        Client {
            wire,
            script,
            done: 0,
            next_ms,
            got: Vec::new(),
            read_interval: 1 + dice.below(3),
            is_orderly: gentle,
        }
    }

    fn step(&mut self, rig: &Rig, dice: &Dice) {
        if dice.once_in(self.read_interval) {
            self.read();
        }
        while let Some(act) = self.script.actions.get(self.done)
            && rig.elapsed_ms() >= self.next_ms
        {
            self.done += 1;
            match act {
                ClientAction::Send(bytes) => self.wire.client_sends(bytes),
                ClientAction::Wait(ms) => self.next_ms = rig.elapsed_ms() + ms,
                ClientAction::Room(bytes) => self.wire.set_room(*bytes),
                ClientAction::HalfClose => self.wire.client_half_closes(),
                ClientAction::Close => self.wire.client_closes(),
                ClientAction::Reset => self.wire.client_resets(),
                ClientAction::Drain => rig.engine.context.is_draining.set(true),
            }
            if dice.once_in(3) {
                rig.run_until_idle();
            }
        }
    }

    fn read(&mut self) {
        self.got.extend(self.wire.client_reads());
    }

    fn verify(&self) {
        let verdict = verify(&self.got, self.wire.end(), &self.script.expected);
        if !self.is_orderly {
            return;
        }
        let answers = self
            .script
            .expected
            .iter()
            .take_while(|expected| expected.after == ConnectionAfter::Stays)
            .count();
        let last = self.script.expected.get(answers);
        let ending = last.is_some_and(|expected| expected.after == ConnectionAfter::Closes);
        if last.is_none_or(|expected| expected.after != ConnectionAfter::Resets) {
            assert_eq!(
                verdict.complete_responses,
                answers + usize::from(ending),
                "of {:?}",
                self.script.expected
            );
        }
        assert!(!verdict.was_refused);
    }
}

/// Ends a script like a client that wants its responses.
fn end_orderly(script: &mut Script, dice: &Dice) {
    if dice.once_in(3) {
        // Accepts the responses bit by bit, but always some bytes.
        let rooms = (0..150)
            .flat_map(|_| [ClientAction::Room(1 + dice.below(30_000) as usize), ClientAction::Wait(100)]);
        script.actions.insert(0, ClientAction::Room(dice.below(10_000) as usize));
        script.actions.extend(rooms);
        script.actions.push(ClientAction::Room(usize::MAX));
    }
    match dice.below(4) {
        0 => script.actions.push(ClientAction::HalfClose),
        1 => script.actions.extend([ClientAction::Wait(5_000), ClientAction::Close]),
        2 => script.actions.extend([ClientAction::Wait(5_000), ClientAction::Reset]),
        _ => {}
    }
}

/// Adds a random action that breaks a conversation.
fn add_disruption(script: &mut Script, dice: &Dice) {
    let at = dice.below(script.actions.len() as u64 + 1) as usize;
    match dice.below(7) {
        0 => script.actions.insert(at, ClientAction::Wait(dice.below(12_000))),
        how @ 1..=3 => {
            script.actions.truncate(at);
            script.actions.push(
                [ClientAction::Reset, ClientAction::Close, ClientAction::HalfClose][how as usize - 1].clone(),
            );
        }
        4 => script.actions.insert(at, ClientAction::Room(dice.below(1_000) as usize)),
        5 => script.actions.insert(at, ClientAction::Drain),
        _ => {
            script.actions.truncate(at);
            if let Some(ClientAction::Send(bytes)) = script.actions.last_mut() {
                bytes.truncate(dice.below(bytes.len() as u64) as usize);
            }
        }
    }
}

/// Runs the scenario of a seed, from the first connection to the last timeout.
fn run(seed: u64, gentle: bool) {
    let rig = Rig::with_short_timeouts();
    let dice = Dice::new(seed);
    let mut clients: Vec<Client> = (0..1 + dice.below(3)).map(|_| Client::new(&rig, &dice, gentle)).collect();
    while rig.open_connections() > 0 {
        assert!(rig.elapsed_ms() < FOREVER_MS, "{} connections hang", rig.open_connections());
        for client in &mut clients {
            client.step(&rig, &dice);
        }
        // Small steps while a client acts; afterwards only timeouts are left.
        let acting = clients.iter().any(|client| client.done < client.script.actions.len());
        rig.advance_ms(if acting { 20 } else { 400 });
    }
    for client in &mut clients {
        client.read();
        client.verify();
    }
    rig.assert_empty();
}

/// Runs seeds until one fails, and reports it.
fn run_seeds(seeds: std::ops::Range<u64>, gentle: bool) {
    for seed in seeds {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(seed, gentle))) {
            eprintln_seed(seed, gentle);
            std::panic::resume_unwind(panic);
        }
    }
}

#[allow(clippy::print_stderr)]
fn eprintln_seed(seed: u64, gentle: bool) {
    eprintln!("to see it again: run({seed}, {gentle})");
}

#[test]
fn patient_clients_receive_every_response() {
    run_seeds(0..4_000, true);
}

#[test]
fn disturbed_conversations_yield_prefixes_and_never_hang() {
    run_seeds(100_000..104_000, false);
}

#[test]
fn randomly_damaged_requests_never_hang() {
    for seed in 0..1_000 {
        let rig = Rig::with_short_timeouts();
        let dice = Dice::new(seed);
        let mut script = Script::from_seed(&dice);
        script.split_sends(&dice);
        for act in &mut script.actions {
            if let ClientAction::Send(bytes) = act
                && !dice.once_in(3)
            {
                let at = dice.below(bytes.len() as u64) as usize;
                bytes[at] = dice.below(256) as u8;
            }
        }
        let mut client = Client {
            wire: rig.connect(seed),
            script,
            done: 0,
            next_ms: 0,
            got: Vec::new(),
            read_interval: 1,
            is_orderly: false,
        };
        while rig.open_connections() > 0 {
            assert!(rig.elapsed_ms() < FOREVER_MS, "seed {seed} hangs");
            client.step(&rig, &dice);
            rig.advance_ms(50);
        }
        rig.assert_empty();
    }
}
