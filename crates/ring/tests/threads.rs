//! Server threads and workers of both kinds concurrently in one process: every request gets its own response.

#![allow(clippy::unwrap_used)]

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use ring::{
    Channel, ClaimedRequest, NextRequest, Options, ResponsePart, ServerSide, StopReason, Ticket, TicketError,
    Worker, WorkerSlot,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const THREADS: usize = 2;
const BLOCKING: usize = 3;
/// Fewer under Miri, which is about a thousand times slower.
const REQUESTS: u32 = if cfg!(miri) { 6 } else { 60_000 };

fn wait(fd: std::os::fd::BorrowedFd<'_>, who: &str) {
    if cfg!(miri) {
        // Miri has no poll: the caller checks again in its next iteration.
        return thread::yield_now();
    }
    let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
    let rung = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).unwrap();
    assert!(rung > 0, "{who} stands still");
}

/// A blocking worker as in most languages: one request at a time, sleeping when necessary.
fn blocking(worker: &Worker) {
    while let NextRequest::ClaimedRequest(mut request) = worker.next(None) {
        let head = request.head().to_vec();
        let mut piece = [0; 100];
        let outcome = (|| {
            request.respond(&head)?;
            loop {
                let count = request.read(&mut piece)?;
                if count == 0 {
                    return request.finish();
                }
                request.write(&piece[..count])?;
            }
        })();
        assert!(matches!(outcome, Ok(()) | Err(StopReason::Cancelled(5))), "{outcome:?}");
    }
}

/// One of an event loop's requests: bytes read but not yet written.
struct Task {
    request: ClaimedRequest,
    piece: Vec<u8>,
    ended: bool,
}

impl Task {
    fn new(mut request: ClaimedRequest) -> Task {
        let head = request.head().to_vec();
        // If the request is already cancelled, a later call reports it again.
        let _ = request.respond(&head);
        request.flush();
        Task { request, piece: Vec::new(), ended: false }
    }

    /// Continues as far as possible without waiting. Returns whether the task is finished.
    fn run(&mut self) -> Result<bool, StopReason> {
        loop {
            while !self.piece.is_empty() {
                match self.request.try_write(&self.piece)? {
                    0 => return Ok(false),
                    taken => drop(self.piece.drain(..taken)),
                }
            }
            if self.ended {
                return Ok(true);
            }
            self.piece.resize(90, 0);
            let count = self.request.try_read(&mut self.piece);
            self.piece.truncate(count.ok().flatten().unwrap_or(0));
            match count? {
                None => return Ok(false),
                Some(count) => self.ended = count == 0,
            }
        }
    }
}

/// A worker with an event loop: up to ten requests at once, sleeping on its eventfd.
fn event_loop(worker: &Worker) {
    let mut tasks: Vec<Task> = Vec::new();
    loop {
        let wanted = tasks.len() < 10;
        if worker.arm(wanted) {
            let news = tasks.iter().any(|task| {
                let news = task.request.readiness();
                news.is_cancelled
                    || news.is_readable && task.piece.is_empty()
                    || news.is_writable && !task.piece.is_empty()
            });
            if !news {
                wait(worker.fd().unwrap(), "the event loop");
                worker.clear_eventfd();
            }
            worker.disarm();
        }
        while tasks.len() < 10 {
            let Some(request) = worker.try_next() else { break };
            tasks.push(Task::new(request));
        }
        let mut at = 0;
        while at < tasks.len() {
            match tasks[at].run() {
                Ok(false) => at += 1,
                Ok(true) => tasks.swap_remove(at).request.finish().unwrap(),
                Err(stop) => {
                    assert_eq!(stop, StopReason::Cancelled(5));
                    drop(tasks.swap_remove(at));
                }
            }
        }
        if worker.is_retired() && tasks.is_empty() {
            return;
        }
    }
}

struct Asked {
    ticket: Ticket,
    serial: u32,
    body: Vec<u8>,
    sent: usize,
    answer: Vec<u8>,
}

/// Submits requests, streams bodies, receives responses, and occasionally cancels.
fn serve(server: &mut ServerSide, thread: u32) {
    let mut serial = 0;
    let mut asked = Vec::<Asked>::new();
    while serial < REQUESTS || server.in_use() > 0 {
        while serial < REQUESTS && server.in_use() < server.slots() {
            let len = if serial % 7 == 0 { serial as usize % 2000 } else { 0 };
            let body: Vec<u8> = (0..len).map(|at| (at as u32 ^ serial) as u8).collect();
            let head = [thread.to_le_bytes(), serial.to_le_bytes()].concat();
            let (ticket, sent) = server.submit(&head, &body, true).unwrap();
            asked.push(Asked { ticket, serial, body, sent, answer: Vec::new() });
            if serial % 11 == 0 {
                let gone = asked.swap_remove(serial as usize % asked.len());
                server.cancel(gone.ticket, NonZeroU32::new(5).unwrap());
            }
            serial += 1;
        }
        server.flush_doorbells();
        if server.arm() {
            wait(server.fd(), "a server thread");
            let _ = rustix::io::read(server.fd(), &mut [0; 8]);
            server.disarm();
        }
        server.poll(|server, ticket| {
            let at = asked.iter().position(|asked| asked.ticket == ticket).expect("news of what was asked");
            if attend(server, &mut asked[at], thread) {
                asked.swap_remove(at);
            }
        });
        assert_eq!(server.take_fault(), None);
    }
    assert!(asked.is_empty());
}

/// Whether the response is complete.
fn attend(server: &mut ServerSide, asked: &mut Asked, thread: u32) -> bool {
    if asked.sent < asked.body.len() {
        asked.sent += server.push_body(asked.ticket, &asked.body[asked.sent..], true).unwrap();
    }
    loop {
        let mut bytes = Vec::new();
        let Some(received) = server.receive(asked.ticket, &mut bytes, 150).unwrap() else { return false };
        match received.part {
            ResponsePart::Head => {
                assert_eq!(bytes, [thread.to_le_bytes(), asked.serial.to_le_bytes()].concat())
            }
            ResponsePart::Data => asked.answer.extend_from_slice(&bytes),
            ResponsePart::End => {}
            part => panic!("{part:?}"),
        }
        if received.is_last {
            assert!(asked.answer == asked.body, "the wrong answer to {}", asked.serial);
            assert_eq!(server.receive(asked.ticket, &mut bytes, 1), Err(TicketError::Void));
            return true;
        }
    }
}

#[test]
fn blocking_and_event_loop_workers_serve_several_threads() {
    let options = Options {
        threads: THREADS,
        worker_slots: BLOCKING + 1,
        slots: 32,
        request_bytes: 256,
        response_bytes: 256,
        process_slots: 1,
        slot_fds: true,
    };
    let channel = &Channel::create(&options).unwrap();
    let serving = &AtomicUsize::new(THREADS);
    thread::scope(|scope| {
        for worker_slot in 0..BLOCKING {
            scope.spawn(move || blocking(&channel.worker(WorkerSlot(worker_slot))));
        }
        scope.spawn(move || event_loop(&channel.worker(WorkerSlot(BLOCKING))));
        for number in 0..THREADS {
            scope.spawn(move || {
                serve(&mut channel.server(number), number as u32);
                if serving.fetch_sub(1, Ordering::AcqRel) == 1 {
                    (0..=BLOCKING).for_each(|worker_slot| channel.retire(WorkerSlot(worker_slot)));
                }
            });
        }
    });
}
