//! The channel under loom, which explores every interleaving of its atomics with two or three threads.
//! `RUSTFLAGS="--cfg loom" cargo test -p komainu-ring --release --test loom`

#![cfg(loom)]
#![allow(clippy::unwrap_used)]

use std::num::NonZeroU32;
use std::sync::Arc;

use loom::thread;
use ring::{
    Channel, ClaimedRequest, NextRequest, Options, ResponsePart, ServerSide, Ticket, TicketError, Worker,
    WorkerSlot,
};

fn channel(worker_slots: usize, slots: usize) -> Arc<Channel> {
    let options = Options {
        threads: 1,
        worker_slots,
        process_slots: 1,
        slots,
        request_bytes: 16,
        response_bytes: 16,
        slot_fds: true,
    };
    Arc::new(Channel::create(&options).unwrap())
}

/// Claims a request as an event loop does; the worker may already be `armed`.
fn claim_in_a_loop(worker: &Worker, mut armed: bool) -> ClaimedRequest {
    loop {
        if armed {
            worker.sleep();
            worker.disarm();
        }
        if let Some(request) = worker.try_next() {
            return request;
        }
        armed = worker.arm(true);
    }
}

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(builder.preemption_bound.unwrap_or(3));
    builder.max_branches = 5_000;
    builder.check(body);
}

/// Answers each request with its own head until the worker is retired.
fn echo(worker: &Worker) -> usize {
    let mut answered = 0;
    while let NextRequest::ClaimedRequest(mut request) = worker.next(None) {
        let head = request.head().to_vec();
        request.respond(&head).unwrap();
        request.finish().unwrap();
        answered += 1;
    }
    answered
}

/// Sleeps and polls until `count` answers arrived; each must match its own request.
fn collect(server: &mut ServerSide, tickets: &[(Ticket, u8)], mut count: usize) {
    while count > 0 {
        server.flush_doorbells();
        if server.arm() {
            server.sleep();
            server.disarm();
        }
        server.poll(|server, ticket| {
            let mut bytes = Vec::new();
            while let Some(received) = server.receive(ticket, &mut bytes, 16).unwrap() {
                assert_eq!(received.part, ResponsePart::Head);
                assert!(received.is_last);
                let (_, head) = tickets.iter().find(|(known, _)| *known == ticket).unwrap();
                assert_eq!(bytes, [*head]);
                count -= 1;
                break;
            }
        });
    }
}

fn submit(server: &mut ServerSide, head: u8) -> (Ticket, u8) {
    (server.submit(&[head], b"", true).unwrap().0, head)
}

#[test]
fn a_sleeping_worker_and_a_sleeping_server_wake_each_other() {
    model(|| {
        let channel = channel(1, 1);
        let mut server = channel.server(0);
        let worker = Arc::clone(&channel);
        let worker = thread::spawn(move || echo(&worker.worker(WorkerSlot(0))));
        for head in [7, 8] {
            let ticket = submit(&mut server, head);
            collect(&mut server, &[ticket], 1);
        }
        channel.retire(WorkerSlot(0));
        assert_eq!(worker.join().unwrap(), 2);
        assert_eq!(server.in_use(), 0);
    });
}

#[test]
fn two_workers_share_a_queue() {
    model(|| {
        let channel = channel(2, 2);
        let mut server = channel.server(0);
        let workers = [0, 1].map(|worker_slot| {
            let channel = Arc::clone(&channel);
            thread::spawn(move || {
                let worker = channel.worker(WorkerSlot(worker_slot));
                let Some(mut request) = worker.try_next() else { return 0 };
                let head = request.head().to_vec();
                request.respond(&head).unwrap();
                request.finish().unwrap();
                1
            })
        });
        let tickets = [submit(&mut server, 1), submit(&mut server, 2)];
        let answered: usize = workers.map(|worker| worker.join().unwrap()).iter().sum();
        collect(&mut server, &tickets, answered);
        assert_eq!(server.in_use(), 2 - answered);
    });
}

#[test]
fn doorbell_wakes_one_worker_per_queued_request() {
    model(|| {
        let channel = channel(2, 2);
        let mut server = channel.server(0);
        let workers = [0, 1].map(|worker_slot| {
            let channel = Arc::clone(&channel);
            thread::spawn(move || {
                // Each worker claims one request and keeps it: both must have been woken for either to end.
                let worker = channel.worker(WorkerSlot(worker_slot));
                let NextRequest::ClaimedRequest(request) = worker.next(None) else {
                    panic!("not asked to leave")
                };
                std::mem::forget(request);
            })
        });
        submit(&mut server, 1);
        submit(&mut server, 2);
        server.flush_doorbells();
        for worker in workers {
            worker.join().unwrap();
        }
    });
}

#[test]
fn concurrent_claim_and_cancellation_release_the_slot() {
    model(|| {
        let channel = channel(1, 1);
        let mut server = channel.server(0);
        let (ticket, _) = submit(&mut server, 5);
        let worker = Arc::clone(&channel);
        let worker = thread::spawn(move || {
            let worker = worker.worker(WorkerSlot(0));
            worker.try_next().map(|mut request| {
                assert_eq!(request.head(), [5]);
                // The request may have been cancelled meanwhile; neither outcome loses a request.
                let _ = request.respond(b"x");
                let _ = request.finish();
            })
        });
        server.cancel(ticket, NonZeroU32::MIN);
        assert_eq!(server.receive(ticket, &mut Vec::new(), 1), Err(TicketError::Void));
        worker.join().unwrap();
        server.poll(|_, _| panic!("a cancelled ticket has no news"));
        assert_eq!(server.in_use(), 0, "the slot is back, by the one or the other");
        assert_eq!(server.take_fault(), None);
    });
}

#[test]
fn death_of_a_claiming_worker_does_not_stop_others() {
    model(|| {
        let channel = channel(2, 2);
        let mut server = channel.server(0);
        let tickets = [submit(&mut server, 1), submit(&mut server, 2)];
        let doomed = Arc::clone(&channel);
        let doomed = thread::spawn(move || {
            doomed.worker(WorkerSlot(0)).try_next().map(|request| {
                let head = request.head()[0];
                std::mem::forget(request);
                head
            })
        });
        let other = Arc::clone(&channel);
        let other = thread::spawn(move || echo(&other.worker(WorkerSlot(1))));
        let claimed = doomed.join().unwrap();
        let lost = server.worker_died(WorkerSlot(0));
        assert_eq!(lost.len(), usize::from(claimed.is_some()));
        for lost in &lost {
            let (_, head) = tickets.iter().find(|(ticket, _)| *ticket == lost.ticket).unwrap();
            assert_eq!((Some(*head), lost.has_started), (claimed, false));
        }
        collect(&mut server, &tickets, 2 - lost.len());
        assert_eq!(server.in_use(), 0);
        channel.retire(WorkerSlot(1));
        other.join().unwrap();
    });
}

#[test]
fn bodies_stream_both_ways_and_both_sides_sleep() {
    model(|| {
        let channel = channel(1, 1);
        let mut server = channel.server(0);
        let worker = Arc::clone(&channel);
        let worker = thread::spawn(move || {
            let NextRequest::ClaimedRequest(mut request) = worker.worker(WorkerSlot(0)).next(None) else {
                panic!("a request")
            };
            request.respond(b"h").unwrap();
            let mut piece = [0; 4];
            loop {
                let count = request.read(&mut piece).unwrap();
                if count == 0 {
                    return request.finish().unwrap();
                }
                request.write(&piece[..count]).unwrap();
            }
        });
        // Head and body fill the area of sixteen bytes: the second piece must wait for the worker.
        let body = *b"abcdefgh";
        let (_, mut sent) = server.submit(b"p", &body, true).unwrap();
        let mut echoed = Vec::new();
        let mut over = false;
        while !over {
            server.flush_doorbells();
            if server.arm() {
                server.sleep();
                server.disarm();
            }
            server.poll(|server, ticket| {
                if sent < body.len() {
                    sent += server.push_body(ticket, &body[sent..], true).unwrap();
                }
                let mut head = Vec::new();
                while !over {
                    let Some(received) = server.receive(ticket, &mut head, 16).unwrap() else { break };
                    if received.part == ResponsePart::Data {
                        echoed.append(&mut head);
                    }
                    head.clear();
                    over = received.is_last;
                }
            });
        }
        assert_eq!(echoed, body);
        worker.join().unwrap();
    });
}

#[test]
fn a_sleeping_event_loop_is_woken_for_each_request() {
    model(|| {
        let channel = channel(1, 1);
        let mut server = channel.server(0);
        let worker = Arc::clone(&channel);
        let worker = thread::spawn(move || {
            let worker = worker.worker(WorkerSlot(0));
            for _ in 0..2 {
                let mut request = claim_in_a_loop(&worker, false);
                let head = request.head().to_vec();
                request.respond(&head).unwrap();
                request.finish().unwrap();
            }
        });
        for head in [7, 8] {
            let ticket = submit(&mut server, head);
            collect(&mut server, &[ticket], 1);
        }
        worker.join().unwrap();
    });
}

#[test]
fn event_loop_armed_before_a_blocking_write_is_still_woken() {
    model(|| {
        let channel = channel(1, 2);
        let mut server = channel.server(0);
        let worker = Arc::clone(&channel);
        let first = submit(&mut server, 1).0;
        let worker = thread::spawn(move || {
            let worker = worker.worker(WorkerSlot(0));
            let mut request = worker.try_next().unwrap();
            let armed = worker.arm(true);
            // Head and body are larger than the area of sixteen bytes.
            request.respond(b"h").unwrap();
            request.write(b"abcdefgh").unwrap();
            request.finish().unwrap();
            std::mem::forget(claim_in_a_loop(&worker, armed));
        });
        let second = submit(&mut server, 2).0;
        let mut over = false;
        while !over {
            server.flush_doorbells();
            if server.arm() {
                server.sleep();
                server.disarm();
            }
            server.poll(|server, ticket| {
                assert!(ticket == first && ticket != second);
                let mut bytes = Vec::new();
                while let Some(received) = server.receive(ticket, &mut bytes, 16).unwrap() {
                    over = received.is_last;
                    if over {
                        break;
                    }
                }
            });
        }
        server.flush_doorbells();
        worker.join().unwrap();
    });
}

/// The server wakes workers to check their signals, at any time.
#[test]
fn wake_for_signals_loses_no_request() {
    for is_event_loop in [false, true] {
        model(move || {
            let channel = channel(1, 1);
            let mut server = channel.server(0);
            let signals = Arc::clone(&channel);
            let signals = thread::spawn(move || signals.wake_for_signals());
            let worker = Arc::clone(&channel);
            let worker = thread::spawn(move || {
                let worker = worker.worker(WorkerSlot(0));
                if is_event_loop {
                    return std::mem::forget(claim_in_a_loop(&worker, false));
                }
                loop {
                    match worker.next(None) {
                        NextRequest::ClaimedRequest(request) => return std::mem::forget(request),
                        NextRequest::TimedOut => {}
                        NextRequest::Retired => panic!("not asked to leave"),
                    }
                }
            });
            submit(&mut server, 7);
            server.flush_doorbells();
            worker.join().unwrap();
            signals.join().unwrap();
        });
    }
}

/// A worker that waits for the server's progress sleeps on its word, and an event loop stays armed.
#[test]
fn wake_for_signals_during_a_blocking_read_loses_no_wake() {
    model(|| {
        let channel = channel(1, 2);
        let mut server = channel.server(0);
        let first = server.submit(b"p", b"", false).unwrap().0;
        let signals = Arc::clone(&channel);
        let signals = thread::spawn(move || signals.wake_for_signals());
        let worker = Arc::clone(&channel);
        let worker = thread::spawn(move || {
            let worker = worker.worker(WorkerSlot(0));
            let mut request = worker.try_next().unwrap();
            let armed = worker.arm(true);
            let mut piece = [0; 4];
            assert_eq!(request.read(&mut piece).unwrap(), 1);
            std::mem::forget(request);
            std::mem::forget(claim_in_a_loop(&worker, armed));
        });
        assert_eq!(server.push_body(first, b"x", true).unwrap(), 1);
        server.flush_doorbells();
        submit(&mut server, 2);
        server.flush_doorbells();
        worker.join().unwrap();
        signals.join().unwrap();
    });
}
