//! Randomized conversations: clients get the responses to their requests, in order and complete, or a visibly
//! truncated prefix of these; and all memory is released.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use super::rig::Rig;
use super::script::{Act, After, Script, judge};
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
    lazy: u64,
    gentle: bool,
}

impl Client {
    fn new(rig: &Rig, dice: &Dice, gentle: bool) -> Client {
        let mut script = Script::of(dice);
        script.cut(dice);
        match gentle {
            true => end_gently(&mut script, dice),
            false => spoil(&mut script, dice),
        }
        let (wire, next_ms) = (rig.connect(dice.roll(u64::MAX)), rig.core.now_ms() + dice.roll(200));
        Client { wire, script, done: 0, next_ms, got: Vec::new(), lazy: 1 + dice.roll(3), gentle }
    }

    fn step(&mut self, rig: &Rig, dice: &Dice) {
        if dice.once_in(self.lazy) {
            self.read();
        }
        while let Some(act) = self.script.acts.get(self.done)
            && rig.core.now_ms() >= self.next_ms
        {
            self.done += 1;
            match act {
                Act::Send(bytes) => self.wire.client_sends(bytes),
                Act::Wait(ms) => self.next_ms = rig.core.now_ms() + ms,
                Act::Room(bytes) => self.wire.set_room(*bytes),
                Act::HalfClose => self.wire.client_half_closes(),
                Act::Close => self.wire.client_closes(),
                Act::Reset => self.wire.client_resets(),
                Act::Drain => rig.engine.context.draining.set(true),
            }
            if dice.once_in(3) {
                rig.settle();
            }
        }
    }

    fn read(&mut self) {
        self.got.extend(self.wire.client_reads());
    }

    fn judge(&self) {
        let verdict = judge(&self.got, self.wire.end(), &self.script.expected);
        if !self.gentle {
            return;
        }
        let answers =
            self.script.expected.iter().take_while(|expected| expected.after == After::Stays).count();
        let last = self.script.expected.get(answers);
        let ending = last.is_some_and(|expected| expected.after == After::Closes);
        if last.is_none_or(|expected| expected.after != After::Resets) {
            assert_eq!(verdict.whole, answers + usize::from(ending), "of {:?}", self.script.expected);
        }
        assert!(!verdict.given_up);
    }
}

/// Ends a script like a client that wants its responses.
fn end_gently(script: &mut Script, dice: &Dice) {
    if dice.once_in(3) {
        // Accepts the responses bit by bit, but always some bytes.
        let rooms = (0..150).flat_map(|_| [Act::Room(1 + dice.roll(30_000) as usize), Act::Wait(100)]);
        script.acts.insert(0, Act::Room(dice.roll(10_000) as usize));
        script.acts.extend(rooms);
        script.acts.push(Act::Room(usize::MAX));
    }
    match dice.roll(4) {
        0 => script.acts.push(Act::HalfClose),
        1 => script.acts.extend([Act::Wait(5_000), Act::Close]),
        2 => script.acts.extend([Act::Wait(5_000), Act::Reset]),
        _ => {}
    }
}

/// Adds a random action that breaks a conversation.
fn spoil(script: &mut Script, dice: &Dice) {
    let at = dice.roll(script.acts.len() as u64 + 1) as usize;
    match dice.roll(7) {
        0 => script.acts.insert(at, Act::Wait(dice.roll(12_000))),
        how @ 1..=3 => {
            script.acts.truncate(at);
            script.acts.push([Act::Reset, Act::Close, Act::HalfClose][how as usize - 1].clone());
        }
        4 => script.acts.insert(at, Act::Room(dice.roll(1_000) as usize)),
        5 => script.acts.insert(at, Act::Drain),
        _ => {
            script.acts.truncate(at);
            if let Some(Act::Send(bytes)) = script.acts.last_mut() {
                bytes.truncate(dice.roll(bytes.len() as u64) as usize);
            }
        }
    }
}

/// Runs the scenario of a seed, from the first connection to the last timeout.
fn run(seed: u64, gentle: bool) {
    let (rig, dice) = (Rig::quick(), Dice::new(seed));
    let mut clients: Vec<Client> = (0..1 + dice.roll(3)).map(|_| Client::new(&rig, &dice, gentle)).collect();
    while rig.open() > 0 {
        assert!(rig.elapsed_ms() < FOREVER_MS, "{} connections hang", rig.open());
        for client in &mut clients {
            client.step(&rig, &dice);
        }
        // Small steps while a client acts; afterwards only timeouts are left.
        let acting = clients.iter().any(|client| client.done < client.script.acts.len());
        rig.pass(if acting { 20 } else { 400 });
    }
    for client in &mut clients {
        client.read();
        client.judge();
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
fn patient_clients_get_every_answer() {
    run_seeds(0..4_000, true);
}

#[test]
fn spoiled_conversations_are_prefixes_and_nobody_hangs() {
    run_seeds(100_000..104_000, false);
}

#[test]
fn bytes_at_random_are_answered_or_not_but_never_hang() {
    for seed in 0..1_000 {
        let (rig, dice) = (Rig::quick(), Dice::new(seed));
        let mut script = Script::of(&dice);
        script.cut(&dice);
        for act in &mut script.acts {
            if let Act::Send(bytes) = act
                && !dice.once_in(3)
            {
                let at = dice.roll(bytes.len() as u64) as usize;
                bytes[at] = dice.roll(256) as u8;
            }
        }
        let mut client = Client {
            wire: rig.connect(seed),
            script,
            done: 0,
            next_ms: 0,
            got: Vec::new(),
            lazy: 1,
            gentle: false,
        };
        while rig.open() > 0 {
            assert!(rig.elapsed_ms() < FOREVER_MS, "seed {seed} hangs");
            client.step(&rig, &dice);
            rig.pass(50);
        }
        rig.assert_empty();
    }
}
