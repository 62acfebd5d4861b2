//! Measures the cost of a round trip through the channel: CPU microseconds of server and workers together,
//! for small requests.
//! `cargo run --release -p komainu-ring --example pingpong [SECONDS]`
//!
//! `inline` runs both sides in one thread: the instructions alone. `busy` has two worker processes that never
//! sleep, so that on a machine with few cores they yield to each other. `asleep` is the server's normal
//! operation: ring, sleep, wake.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::os::fd::AsRawFd;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use ring::{Attachment, Channel, ClaimedRequest, NextRequest, Options, ServerSide, Worker, WorkerSlot};
use rustix::event::{PollFd, PollFlags, poll};

const REQUEST: &[u8] = b"GET / HTTP/1.1 Host: localhost";
const HEAD: &[u8] = b"200 Content-Type: text/plain";
const BODY: &[u8] = b"OK OK OK OK OK OK OK OK OK OK ";

fn main() {
    let mode = std::env::args().nth(1).unwrap_or_default();
    if let Ok(environment) = std::env::var(ring::ENVIRONMENT) {
        return work(&environment, &mode);
    }
    let seconds = mode.parse().unwrap_or(1.0);
    println!(
        "{:>9} {:>8} {:>12} {:>14} {:>14}",
        "in flight", "mode", "answers/s", "CPU us/answer", "of the server"
    );
    for in_flight in [1, 8, 50, 200] {
        for mode in ["inline", "busy", "asleep"] {
            let run = Run { in_flight, asleep: mode == "asleep", limit: Duration::from_secs_f64(seconds) };
            let (answers, took, server, all) =
                if mode == "inline" { run.inline() } else { run.processes(mode) };
            let per = |cpu: Duration| cpu.as_secs_f64() * 1e6 / answers as f64;
            let rate = answers as f64 / took.as_secs_f64();
            println!("{in_flight:>9} {mode:>8} {rate:>12.0} {:>14.3} {:>14.3}", per(all), per(server));
        }
    }
}

fn options() -> Options {
    Options { worker_slots: 2, slots: 256, ..Options::default() }
}

/// Runs a worker process.
fn work(environment: &str, mode: &str) {
    let worker_slot: usize = std::env::args().nth(2).unwrap().parse().unwrap();
    let worker = Attachment::new(environment).unwrap().worker(WorkerSlot(worker_slot)).unwrap();
    loop {
        let limit = if mode == "asleep" { None } else { Some(Duration::ZERO) };
        match worker.next(limit) {
            NextRequest::ClaimedRequest(request) => answer(request),
            NextRequest::TimedOut => std::thread::yield_now(),
            NextRequest::Retired => return,
        }
    }
}

fn answer(mut request: ClaimedRequest) {
    assert_eq!(request.head(), REQUEST);
    request.respond(HEAD).unwrap();
    request.write_later(BODY).unwrap();
    request.finish().unwrap();
}

struct Run {
    in_flight: usize,
    asleep: bool,
    limit: Duration,
}

type Outcome = (u64, Duration, Duration, Duration);

impl Run {
    fn inline(&self) -> Outcome {
        let channel = Channel::create(&options()).unwrap();
        let mut server = channel.server(0);
        let worker = channel.worker(WorkerSlot(0));
        let start = Instant::now();
        let before = cpu("self");
        let mut answers = 0;
        while start.elapsed() < self.limit {
            for _ in 0..self.in_flight {
                server.submit(REQUEST, b"", true).unwrap();
            }
            server.flush_doorbells();
            while let Some(request) = take(&worker) {
                answer(request);
            }
            answers += drain(&mut server);
        }
        let spent = cpu("self") - before;
        (answers, start.elapsed(), spent, spent)
    }

    fn processes(&self, mode: &str) -> Outcome {
        let channel = Channel::create(&options()).unwrap();
        let mut server = channel.server(0);
        let mut workers: Vec<Child> = (0..2).map(|worker_slot| spawn(&channel, mode, worker_slot)).collect();
        let pids: Vec<String> = workers.iter().map(|worker| worker.id().to_string()).collect();
        // Both workers are running once each has had time to answer many requests.
        self.serve(&mut server, Duration::from_millis(100));
        let all = |own: Duration| own + pids.iter().map(|pid| cpu(pid)).sum();
        let start = Instant::now();
        let own = cpu("self");
        let before = all(own);
        let answers = self.serve(&mut server, self.limit);
        let own_after = cpu("self");
        let outcome = (answers, start.elapsed(), own_after - own, all(own_after) - before);
        for (worker_slot, worker) in workers.iter_mut().enumerate() {
            channel.retire(WorkerSlot(worker_slot));
            worker.wait().unwrap();
        }
        outcome
    }

    /// Keeps `in_flight` requests in progress for `limit`.
    fn serve(&self, server: &mut ServerSide, limit: Duration) -> u64 {
        let start = Instant::now();
        let mut answers = 0;
        while server.in_use() > 0 || start.elapsed() < limit {
            while start.elapsed() < limit && server.in_use() < self.in_flight {
                server.submit(REQUEST, b"", true).unwrap();
            }
            server.flush_doorbells();
            if !self.asleep {
                std::thread::yield_now();
            } else if server.arm() {
                poll(&mut [PollFd::new(&server.fd(), PollFlags::IN)], None).unwrap();
                let _ = rustix::io::read(server.fd(), &mut [0; 8]);
                server.disarm();
            }
            answers += drain(server);
        }
        answers
    }
}

fn take(worker: &Worker) -> Option<ClaimedRequest> {
    worker.try_next()
}

fn drain(server: &mut ServerSide) -> u64 {
    let mut answers = 0;
    let mut bytes = Vec::with_capacity(256);
    server.poll(|server, ticket| {
        bytes.clear();
        while let Ok(Some(received)) = server.receive(ticket, &mut bytes, 65536) {
            answers += u64::from(received.is_last);
        }
        assert_eq!(bytes.len(), HEAD.len() + BODY.len());
    });
    answers
}

fn spawn(channel: &Channel, mode: &str, worker_slot: usize) -> Child {
    for fd in channel.descriptors() {
        assert!(fd.as_raw_fd() > 2);
        rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty()).unwrap();
    }
    Command::new(std::env::current_exe().unwrap())
        .args([mode, &worker_slot.to_string()])
        .env(ring::ENVIRONMENT, channel.environment())
        .spawn()
        .unwrap()
}

/// CPU time of a process's first thread so far, as accounted by the scheduler in nanoseconds.
fn cpu(pid: &str) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}
