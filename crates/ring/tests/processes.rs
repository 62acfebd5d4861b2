//! The channel between real processes: workers that are killed at arbitrary times, and one that overwrites
//! the memory while the server works.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::process::{Child, Command, Stdio};

use ring::{
    Attachment, Channel, ENVIRONMENT, NextRequest, Options, ResponsePart, ServerSide, Ticket, WorkerSlot,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{FdFlags, fcntl_setfd};

const ROLE: &str = "KOMAINU_TEST_ROLE";
const SEAT: &str = "KOMAINU_TEST_WORKER_SLOT";

/// Not a test: the entry point of the processes started below.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let environment = std::env::var(ENVIRONMENT).unwrap();
    let worker_slot = std::env::var(SEAT).unwrap().parse().unwrap();
    match role.as_str() {
        "echo" => echo(&environment, worker_slot),
        "scribble" => scribble(&environment, worker_slot),
        role => panic!("no role {role}"),
    }
}

/// Sends head and body of each request back.
fn echo(environment: &str, worker_slot: usize) {
    let worker = Attachment::new(environment).unwrap().worker(WorkerSlot(worker_slot)).unwrap();
    while let NextRequest::ClaimedRequest(mut request) = worker.next(None) {
        let head = request.head().to_vec();
        let mut piece = [0; 700];
        // A cancelled or damaged request is dropped and thereby aborted.
        let _ = (|| {
            request.respond(&head)?;
            loop {
                let count = request.read(&mut piece)?;
                if count == 0 {
                    return request.finish();
                }
                request.write(&piece[..count])?;
            }
        })();
    }
}

/// Writes noise all over the shared memory, without end; half of it to the control words.
fn scribble(environment: &str, seed: usize) {
    let memory = environment.split(';').next().unwrap().parse().unwrap();
    // SAFETY: the descriptor is inherited under this number and stays open.
    let memory = unsafe { std::os::fd::BorrowedFd::borrow_raw(memory) };
    let len = rustix::fs::fstat(memory).unwrap().st_size as usize;
    let access = rustix::mm::ProtFlags::all();
    let shared = rustix::mm::MapFlags::SHARED;
    let access = access.intersection(rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE);
    // SAFETY: a fresh mapping of the whole file.
    let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, shared, memory, 0) };
    let start = start.unwrap().cast::<u32>();
    let mut noise = Noise(seed as u64 + 1);
    loop {
        // Excludes the header, otherwise no worker could attach any more; half of the writes go to worker
        // slots, queues and lanes.
        let near = noise.below(2) == 0;
        let value = noise.next();
        let at = 16 + noise.below(if near { 2_000 } else { len / 4 - 16 });
        let value = if value.is_multiple_of(2) { (value >> 8) as u32 % 4096 } else { (value >> 8) as u32 };
        // SAFETY: inside the mapping, aligned; others may write to it concurrently, hence volatile.
        unsafe { start.add(at).write_volatile(value) };
    }
}

/// xorshift: the source of every choice of these tests, with a fixed seed.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 16) as usize % limit
    }
}

fn start(channel: &Channel, role: &str, worker_slot: usize) -> Child {
    for fd in channel.descriptors() {
        fcntl_setfd(fd, FdFlags::empty()).unwrap();
    }
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "role", "--nocapture"])
        .env(ROLE, role)
        .env(SEAT, worker_slot.to_string())
        .env(ENVIRONMENT, channel.environment())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// The client's state of one request.
struct Asked {
    serial: u32,
    body: Vec<u8>,
    sent: usize,
    answer: Vec<u8>,
}

struct Load {
    server: ServerSide,
    asked: HashMap<Ticket, Asked>,
    noise: Noise,
    /// Number of requests answered, each with its own content.
    answered: usize,
    /// Number of requests aborted by the worker, which only damaged memory causes here.
    aborted: usize,
}

impl Load {
    fn new(channel: &Channel, seed: u64) -> Load {
        Load { server: channel.server(0), asked: HashMap::new(), noise: Noise(seed), answered: 0, aborted: 0 }
    }

    /// Submits a request. Most have no body; some have one many times larger than their slot.
    fn ask(&mut self, serial: u32) {
        let len = if self.noise.below(20) == 0 { self.noise.below(60_000) } else { 0 };
        let body: Vec<u8> = (0..len).map(|at| (at as u32 * 31 + serial) as u8).collect();
        let (ticket, sent) = self.server.submit(&serial.to_le_bytes(), &body, true).unwrap();
        self.asked.insert(ticket, Asked { serial, body, sent, answer: Vec::new() });
    }

    /// Runs one iteration of an event loop. Returns whether there was anything to do.
    fn tick(&mut self, strict: bool) {
        self.server.flush_doorbells();
        if self.server.arm() {
            let limit = if strict { 20 } else { 0 };
            let rung = poll(
                &mut [PollFd::new(&self.server.fd(), PollFlags::IN)],
                Some(&Timespec { tv_sec: limit, tv_nsec: 200_000 }),
            );
            assert!(rung.unwrap() > 0 || !strict, "the channel stands still: {} left", self.asked.len());
            let _ = rustix::io::read(self.server.fd(), &mut [0; 8]);
            self.server.disarm();
        }
        let mut news = Vec::new();
        self.server.poll(|_, ticket| news.push(ticket));
        for ticket in news {
            self.attend(ticket, strict);
        }
    }

    fn attend(&mut self, ticket: Ticket, strict: bool) {
        let Some(asked) = self.asked.get_mut(&ticket) else { return };
        if asked.sent < asked.body.len() {
            asked.sent += self.server.push_body(ticket, &asked.body[asked.sent..], true).unwrap_or(0);
        }
        let mut bytes = Vec::new();
        loop {
            let received = match self.server.receive(ticket, &mut bytes, 10_000) {
                Ok(None) => return,
                Ok(Some(received)) => received,
                Err(error) => {
                    assert!(!strict, "{error}");
                    self.asked.remove(&ticket);
                    return;
                }
            };
            match received.part {
                ResponsePart::Head => assert!(!strict || bytes == asked.serial.to_le_bytes()),
                ResponsePart::Data => asked.answer.extend_from_slice(&bytes),
                ResponsePart::End => {}
                ResponsePart::Aborted(_) => self.aborted += 1,
                part => assert!(!strict, "{part:?}"),
            }
            bytes.clear();
            if received.is_last {
                let whole = asked.answer == asked.body;
                assert!(!strict || whole, "the wrong answer to {}", asked.serial);
                self.asked.remove(&ticket);
                self.answered += 1;
                return;
            }
        }
    }

    fn worker_died(&mut self, worker_slot: usize) -> Vec<Asked> {
        let lost = self.server.worker_died(WorkerSlot(worker_slot));
        lost.iter().map(|lost| self.asked.remove(&lost.ticket).expect("lost once, and asked by us")).collect()
    }
}

fn options(worker_slots: usize) -> Options {
    Options { worker_slots, slots: 64, request_bytes: 4096, response_bytes: 4096, ..Options::default() }
}

#[test]
fn killed_workers_lose_only_the_requests_they_held() {
    const WORKERS: usize = 3;
    let channel = Channel::create(&options(WORKERS)).unwrap();
    let mut load = Load::new(&channel, 42);
    let mut workers: Vec<Child> =
        (0..WORKERS).map(|worker_slot| start(&channel, "echo", worker_slot)).collect();
    let mut serial = 0;
    let mut kills = 0;
    let mut lost = 0;
    let total = 60_000;
    let mut next_kill = 300;
    while load.answered < total {
        while serial as usize - lost < total && load.asked.len() < 24 {
            load.ask(serial);
            serial += 1;
        }
        load.tick(true);
        if load.answered >= next_kill && load.answered + 100 < total {
            // Kills a worker after a random number of answers, wherever it is then.
            next_kill = load.answered + load.noise.below(1_000);
            let worker_slot = load.noise.below(WORKERS);
            workers[worker_slot].kill().unwrap();
            workers[worker_slot].wait().unwrap();
            let held = load.worker_died(worker_slot).len();
            assert!(held <= 1, "a worker holds one request at a time, and lost {held}");
            (kills, lost) = (kills + 1, lost + held);
            workers[worker_slot] = start(&channel, "echo", worker_slot);
        }
    }
    assert!(kills > 50, "{kills}");
    assert_eq!((load.aborted, load.asked.len()), (0, 0));
    assert_eq!(load.server.take_fault(), None);
    assert_eq!((load.server.in_use(), load.server.quarantined()), (0, 0), "every slot came back");
    for (worker_slot, worker) in workers.iter_mut().enumerate() {
        channel.retire(WorkerSlot(worker_slot));
        assert!(worker.wait().unwrap().success(), "it left when it was asked to");
    }
}

#[test]
fn corrupting_process_neither_stops_nor_crashes_the_server() {
    const WORKERS: usize = 2;
    for round in 0..2 {
        let channel = Channel::create(&options(WORKERS + 1)).unwrap();
        let mut load = Load::new(&channel, 7 + round);
        let mut workers: Vec<Child> =
            (0..WORKERS).map(|worker_slot| start(&channel, "echo", worker_slot)).collect();
        workers.push(start(&channel, "scribble", WORKERS + round as usize));
        for serial in 0..1_000 {
            if load.server.in_use() < 24 {
                load.ask(serial);
            }
            load.tick(false);
            // Reacts as an owner does: cancels requests that take too long, and kills workers that violate
            // the protocol.
            if serial % 50 == 49 {
                for (ticket, _) in load.asked.drain() {
                    load.server.cancel(ticket, NonZeroU32::MIN);
                }
            }
            while let Some(fault) = load.server.take_fault() {
                if let Some(WorkerSlot(worker_slot @ 0..WORKERS)) = fault.worker_slot {
                    workers[worker_slot].kill().unwrap();
                    workers[worker_slot].wait().unwrap();
                    load.worker_died(worker_slot);
                    workers[worker_slot] = start(&channel, "echo", worker_slot);
                }
            }
        }
        for worker in &mut workers {
            worker.kill().unwrap();
            worker.wait().unwrap();
        }
        for (ticket, _) in load.asked.drain() {
            load.server.cancel(ticket, NonZeroU32::MIN);
        }
        for worker_slot in 0..=WORKERS {
            load.server.worker_died(WorkerSlot(worker_slot));
        }
        assert_eq!(load.server.in_use(), load.server.quarantined(), "every other slot came back");
    }
}

#[test]
fn attachment_requires_a_valid_environment() {
    let channel = Channel::create(&options(2)).unwrap();
    let good = channel.environment();
    let attachment = Attachment::new(&good).unwrap();
    assert!(attachment.worker(WorkerSlot(1)).is_ok());
    assert!(attachment.worker(WorkerSlot(2)).is_err());
    // The attachment owns the descriptors from now on.
    std::mem::forget(channel);
    let (memory, rest) = good.split_once(';').unwrap();
    for bad in
        ["", ";", "x;1;", "-1;3;", &format!("{memory};"), &format!("{good};1"), &format!("{memory};9,9;")]
    {
        assert!(Attachment::new(bad).is_err(), "{bad:?}");
    }
    assert!(Attachment::new(&format!("0;{rest}")).is_err(), "no channel's memory");
}
