use super::*;
use crate::channel::Channel;
use crate::error::StopReason;
use crate::layout::Options;
use crate::request::{ClaimedRequest, DROPPED};
use crate::response_part::{FilePart, ReceivedPart, ResponsePart};
use crate::worker::{NextRequest, Worker};
use std::time::Duration;

const GONE: NonZeroU32 = NonZeroU32::new(9).unwrap();

struct Rig {
    channel: Channel,
    server: ServerSide,
    worker: Worker,
}

fn rig() -> Rig {
    let options = Options {
        threads: 1,
        worker_slots: 2,
        slots: 4,
        request_bytes: 256,
        response_bytes: 256,
        process_slots: 1,
        slot_fds: true,
    };
    let channel = Channel::create(&options).unwrap();
    let server = channel.server(0);
    let worker = channel.worker(WorkerSlot(0));
    Rig { channel, server, worker }
}

impl Rig {
    fn submit(&mut self, head: &[u8]) -> Ticket {
        self.server.submit(head, b"", true).unwrap().0
    }

    fn claim(&mut self) -> ClaimedRequest {
        self.worker.try_next().expect("a request waits")
    }

    fn poll_tickets(&mut self) -> Vec<Ticket> {
        let mut news = Vec::new();
        self.server.poll(|_, ticket| news.push(ticket));
        news
    }

    fn receive(&mut self, ticket: Ticket) -> Result<Option<(ResponsePart, Vec<u8>, bool)>, TicketError> {
        let mut bytes = Vec::new();
        let received = self.server.receive(ticket, &mut bytes, 1 << 20)?;
        Ok(received.map(|ReceivedPart { part, is_last: last }| (part, bytes, last)))
    }

    fn expect(&mut self, ticket: Ticket, part: ResponsePart, bytes: &[u8], last: bool) {
        assert_eq!(self.receive(ticket), Ok(Some((part, bytes.to_vec(), last))));
    }
}

#[test]
fn request_is_delivered_and_its_response_received() {
    let mut rig = rig();
    let ticket = rig.submit(b"GET /");
    assert_eq!(rig.server.claimant(ticket), None);
    let mut request = rig.claim();
    assert_eq!(rig.server.claimant(ticket), Some(WorkerSlot(0)));
    assert_eq!(request.head(), b"GET /");
    assert_eq!(request.read(&mut [0; 9]), Ok(0));
    request.respond(b"200").unwrap();
    request.write_later(b"OK").unwrap();
    assert_eq!(rig.poll_tickets(), []);
    request.finish().unwrap();
    assert_eq!(rig.poll_tickets(), [ticket]);
    rig.expect(ticket, ResponsePart::Head, b"200", false);
    rig.expect(ticket, ResponsePart::Data, b"OK", true);
    assert_eq!(rig.receive(ticket), Err(TicketError::Void));
    assert_eq!(rig.server.in_use(), 0);
}

#[test]
fn response_parts_arrive_in_order() {
    let mut rig = rig();
    let ticket = rig.submit(b"x");
    let mut request = rig.claim();
    request.log(3, b"hm").unwrap();
    request.interim(b"103").unwrap();
    request.respond(b"200").unwrap();
    assert_eq!(request.respond(b"200"), Err(StopReason::Order));
    request.write(b"a").unwrap();
    request.trailers(b"t").unwrap();
    assert_eq!(request.write(b"b"), Err(StopReason::Order));
    request.finish().unwrap();
    assert_eq!(rig.poll_tickets(), [ticket, ticket], "one notice while none was read, and the end");
    rig.expect(ticket, ResponsePart::Log(3), b"hm", false);
    rig.expect(ticket, ResponsePart::Interim, b"103", false);
    rig.expect(ticket, ResponsePart::Head, b"200", false);
    rig.expect(ticket, ResponsePart::Data, b"a", false);
    rig.expect(ticket, ResponsePart::Trailers, b"t", true);
}

#[test]
fn end_after_all_parts_were_received_arrives_alone() {
    let mut rig = rig();
    let ticket = rig.submit(b"x");
    let mut request = rig.claim();
    request.respond(b"200").unwrap();
    request.flush();
    rig.poll_tickets();
    rig.expect(ticket, ResponsePart::Head, b"200", false);
    assert_eq!(rig.receive(ticket), Ok(None));
    request.finish().unwrap();
    assert_eq!(rig.poll_tickets(), [ticket]);
    rig.expect(ticket, ResponsePart::End, b"", true);
}

#[test]
fn a_large_body_streams_both_ways_through_small_areas() {
    let mut rig = rig();
    let body: Vec<u8> = (0..100_000u32).map(|byte| (byte / 3) as u8).collect();
    let (_, mut sent) = rig.server.submit(b"POST", &body, true).unwrap();
    assert!(sent > 0 && sent < body.len());
    let mut request = rig.claim();
    request.respond(b"200").unwrap();
    request.flush();
    let mut held = Vec::new();
    let mut echoed = Vec::new();
    let mut ended = false;
    let mut request = Some(request);
    for _ in 0..10_000 {
        if let Some(worker) = &mut request {
            let mut piece = [0; 200];
            if held.is_empty() && !ended {
                match worker.try_read(&mut piece).unwrap() {
                    Some(0) => ended = true,
                    Some(count) => held.extend_from_slice(&piece[..count]),
                    None => {}
                }
            }
            let taken = worker.try_write(&held).unwrap();
            held.drain(..taken);
        }
        if ended && held.is_empty() {
            request.take().into_iter().for_each(|request| request.finish().unwrap());
        }
        for ticket in rig.poll_tickets() {
            sent += rig.server.push_body(ticket, &body[sent..], true).unwrap();
            while let Some((part, bytes, last)) = rig.receive(ticket).unwrap() {
                if part == ResponsePart::Data {
                    echoed.extend_from_slice(&bytes);
                }
                if last {
                    assert!(echoed == body && sent == body.len());
                    assert_eq!(rig.server.in_use(), 0);
                    return;
                }
            }
        }
    }
    panic!("the streams stood still: {sent} bytes sent, {} came back", echoed.len());
}

#[test]
fn head_size_and_slot_count_are_limited() {
    let mut rig = rig();
    assert_eq!(rig.server.submit(&[0; 253], b"", true), Err(SubmitError::HeadTooLarge));
    for _ in 0..rig.server.slots() {
        rig.submit(&[0; 252]);
    }
    assert_eq!(rig.server.submit(b"", b"", true), Err(SubmitError::Full));
    let mut request = rig.claim();
    assert_eq!(request.head().len(), 252);
    assert_eq!(request.respond(&[0; 253]), Err(StopReason::TooLarge));
    request.respond(&[0; 252]).unwrap();
}

#[test]
fn dropped_request_is_aborted_after_its_sent_parts() {
    let mut rig = rig();
    let first = rig.submit(b"a");
    let second = rig.submit(b"b");
    drop(rig.claim());
    let mut request = rig.claim();
    request.respond(b"200").unwrap();
    request.abort(77);
    assert_eq!(rig.poll_tickets(), [first, second]);
    rig.expect(first, ResponsePart::Aborted(DROPPED), b"", true);
    rig.expect(second, ResponsePart::Head, b"200", false);
    rig.expect(second, ResponsePart::Aborted(77), b"", true);
}

#[test]
fn finish_without_a_head_aborts_the_request() {
    let mut rig = rig();
    let ticket = rig.submit(b"a");
    assert_eq!(rig.claim().finish(), Err(StopReason::Order));
    assert_eq!(rig.poll_tickets(), [ticket]);
    rig.expect(ticket, ResponsePart::Aborted(DROPPED), b"", true);
}

#[test]
fn cancelled_queued_request_is_never_claimed() {
    let mut rig = rig();
    // More cancelled tags than the queue has cells, and no claims: the queue is rebuilt.
    for _ in 0..50 {
        let ticket = rig.submit(b"gone");
        rig.server.cancel(ticket, GONE);
        assert_eq!(rig.receive(ticket), Err(TicketError::Void));
    }
    let kept = rig.submit(b"kept");
    for _ in 0..50 {
        let ticket = rig.submit(b"gone");
        rig.server.cancel(ticket, GONE);
    }
    assert_eq!(rig.server.in_use(), 1);
    assert_eq!(rig.claim().head(), b"kept");
    assert!(rig.worker.try_next().is_none());
    assert_eq!(rig.poll_tickets(), [kept]);
}

#[test]
fn cancelled_claimed_request_frees_its_slot_when_released() {
    let mut rig = rig();
    let (ticket, _) = rig.server.submit(b"POST", b"abc", false).unwrap();
    let mut request = rig.claim();
    rig.server.cancel(ticket, GONE);
    assert_eq!(rig.receive(ticket), Err(TicketError::Void));
    assert_eq!(request.cancelled(), Some(9));
    assert!(request.readiness().is_cancelled);
    assert_eq!(request.read(&mut [0; 9]), Ok(3), "what came is still read");
    assert_eq!(request.read(&mut [0; 9]), Err(StopReason::Cancelled(9)));
    assert_eq!(request.respond(b"200"), Err(StopReason::Cancelled(9)));
    assert_eq!(rig.server.in_use(), 1);
    request.finish().unwrap();
    assert_eq!(rig.poll_tickets(), []);
    assert_eq!(rig.server.in_use(), 0);
}

#[test]
fn only_claimed_requests_of_a_dead_worker_are_lost() {
    let mut rig = rig();
    let names: [&[u8]; 4] = [b"answered", b"begun", b"untouched", b"queued"];
    let [answered, begun, untouched, queued] = names.map(|name| rig.submit(name));
    let mut first = rig.claim();
    let mut second = rig.claim();
    let third = rig.claim();
    first.respond(b"200").unwrap();
    first.finish().unwrap();
    second.respond(b"200").unwrap();
    second.flush();
    rig.poll_tickets();
    rig.expect(begun, ResponsePart::Head, b"200", false);

    let lost = rig.server.worker_died(WorkerSlot(0));
    second.abandon_as_killed();
    third.abandon_as_killed();
    let expected = [
        LostRequest { ticket: begun, has_started: true },
        LostRequest { ticket: untouched, has_started: false },
    ];
    assert!(lost.len() == 2 && expected.iter().all(|one| lost.contains(one)), "{lost:?}");
    rig.expect(answered, ResponsePart::Head, b"200", true);

    let heir = rig.channel.worker(WorkerSlot(0));
    let mut request = heir.try_next().unwrap();
    assert_eq!(request.head(), b"queued");
    request.respond(b"201").unwrap();
    request.finish().unwrap();
    assert_eq!(rig.poll_tickets(), [queued]);
    rig.expect(queued, ResponsePart::Head, b"201", true);
    assert_eq!((rig.server.in_use(), rig.server.quarantined()), (0, 0));
}

#[test]
fn unreported_response_of_a_dead_worker_is_found() {
    let mut rig = rig();
    let ticket = rig.submit(b"x");
    let mut request = rig.claim();
    request.respond(b"200").unwrap();
    request.finish().unwrap();
    // Simulates a death between writing the state word and the lane.
    lane::clear(&rig.server.shared, 0, 0);
    assert_eq!(rig.poll_tickets(), []);
    assert_eq!(rig.server.worker_died(WorkerSlot(0)), []);
    assert!(!rig.server.arm(), "there is something to poll");
    assert_eq!(rig.poll_tickets(), [ticket]);
    rig.expect(ticket, ResponsePart::Head, b"200", true);
}

#[test]
fn cancelled_request_of_a_dead_worker_frees_its_slot() {
    let mut rig = rig();
    let ticket = rig.submit(b"x");
    let request = rig.claim();
    rig.server.cancel(ticket, GONE);
    assert_eq!(rig.server.worker_died(WorkerSlot(0)), []);
    request.abandon_as_killed();
    assert_eq!(rig.server.in_use(), 0);
}

#[test]
fn claiming_worker_wakes_the_next_sleeping_worker() {
    let mut rig = rig();
    let other = rig.channel.worker(WorkerSlot(1));
    let sleeps = |rig: &Rig, worker_slot| rig.server.shared.sleep_word(worker_slot).load(Relaxed) != AWAKE;
    assert!(rig.worker.arm(true) && other.arm(true));
    rig.submit(b"1");
    rig.submit(b"2");
    assert!(sleeps(&rig, 0) && sleeps(&rig, 1), "not before the tick's end");
    rig.server.flush_doorbells();
    assert!(!sleeps(&rig, 0) && sleeps(&rig, 1));
    rig.worker.disarm();
    let _first = rig.claim();
    assert!(!sleeps(&rig, 1), "one was left in the queue");
    other.disarm();
    let _second = other.try_next().unwrap();
    assert!(!other.arm(true) || other.try_next().is_none());
}

#[test]
fn wake_up_of_a_dead_worker_goes_to_another_worker() {
    let mut rig = rig();
    let other = rig.channel.worker(WorkerSlot(1));
    assert!(rig.worker.arm(true) && other.arm(true));
    rig.submit(b"1");
    rig.server.flush_doorbells();
    let sleeps = |rig: &Rig, worker_slot| rig.server.shared.sleep_word(worker_slot).load(Relaxed) != AWAKE;
    assert!(!sleeps(&rig, 0) && sleeps(&rig, 1));
    assert_eq!(rig.server.worker_died(WorkerSlot(0)), []);
    rig.server.flush_doorbells();
    assert!(!sleeps(&rig, 1));
    assert_eq!(other.try_next().unwrap().head(), b"1");
}

#[test]
fn corrupted_queue_is_repaired_when_a_worker_dies() {
    let mut rig = rig();
    let tickets = [rig.submit(b"1"), rig.submit(b"2")];
    let (head, _, cells) = rig.server.shared.geometry.queue(0);
    rig.server.shared.word(head).store(1 << 30, Relaxed);
    (0..8).for_each(|cell| rig.server.shared.word(cells + cell).store(u32::MAX, Relaxed));
    assert!(rig.worker.try_next().is_none());
    assert_eq!(rig.server.worker_died(WorkerSlot(1)), []);
    let heads = [rig.claim().head().to_vec(), rig.claim().head().to_vec()];
    assert!(heads.contains(&b"1".to_vec()) && heads.contains(&b"2".to_vec()));
    assert_eq!(rig.poll_tickets().len(), tickets.len());
}

#[test]
fn invalid_notice_mutes_its_worker_slot_until_the_worker_dies() {
    let mut rig = rig();
    let ticket = rig.submit(b"1");
    let mut request = rig.claim();
    lane::push(&rig.server.shared, 0, 1, &mut 0, Tag::new(0, rig.server.records[0].generation));
    assert_eq!(rig.poll_tickets(), [], "not its request");
    assert_eq!(
        rig.server.take_fault(),
        Some(WorkerFault { worker_slot: Some(WorkerSlot(1)), violation: ProtocolViolation::Tag })
    );
    lane::push(&rig.server.shared, 0, 1, &mut 1, Tag(77));
    assert!(rig.server.arm(), "it is not heard");
    rig.server.disarm();
    request.respond(b"200").unwrap();
    request.finish().unwrap();
    assert_eq!(rig.poll_tickets(), [ticket], "the others are");
    assert_eq!(rig.server.worker_died(WorkerSlot(1)), []);
    let second = rig.submit(b"2");
    drop(rig.channel.worker(WorkerSlot(1)).try_next().unwrap());
    assert_eq!(rig.poll_tickets(), [second], "its heir is heard");
}

#[test]
fn stale_tag_does_not_affect_the_next_use_of_its_slot() {
    let mut rig = rig();
    let first = rig.submit(b"1");
    let late = Tag::new(first.index(), first.generation).finished();
    let mut request = rig.claim();
    request.respond(b"200").unwrap();
    request.finish().unwrap();
    rig.poll_tickets();
    rig.expect(first, ResponsePart::Head, b"200", true);
    let second = rig.submit(b"2");
    assert_eq!(second.index(), first.index(), "the slot used last is used first");
    assert_eq!(rig.receive(first), Err(TicketError::Void));
    let request = rig.claim();
    lane::push(&rig.server.shared, 0, 0, &mut 1, late);
    assert_eq!(rig.poll_tickets(), []);
    assert_eq!(
        rig.server.take_fault(),
        Some(WorkerFault { worker_slot: Some(WorkerSlot(0)), violation: ProtocolViolation::Tag })
    );
    request.abandon_as_killed();
    assert_eq!(rig.server.worker_died(WorkerSlot(0)), [LostRequest { ticket: second, has_started: false }]);
}

#[test]
fn finished_tag_requires_a_finished_state() {
    let mut rig = rig();
    let ticket = rig.submit(b"1");
    let request = rig.claim();
    lane::push(&rig.server.shared, 0, 0, &mut 0, Tag::new(0, ticket.generation).finished());
    assert_eq!(rig.poll_tickets(), []);
    assert_eq!(
        rig.server.take_fault(),
        Some(WorkerFault { worker_slot: Some(WorkerSlot(0)), violation: ProtocolViolation::SlotState })
    );
    request.abandon_as_killed();
    assert_eq!(rig.server.worker_died(WorkerSlot(0)), [LostRequest { ticket, has_started: false }]);
}

#[test]
fn body_before_the_head_is_a_worker_fault() {
    let mut rig = rig();
    let ticket = rig.submit(b"1");
    let request = rig.claim();
    let pipe = rig.server.slot(0).response();
    let mut writer = Writer::new();
    writer.write_frame(pipe, FrameKind::Data, b"x");
    writer.publish(pipe, false);
    lane::push(&rig.server.shared, 0, 0, &mut 0, Tag::new(0, ticket.generation));
    assert_eq!(rig.poll_tickets(), [ticket]);
    let fault = WorkerFault { worker_slot: Some(WorkerSlot(0)), violation: ProtocolViolation::Order };
    assert_eq!(rig.receive(ticket), Err(TicketError::WorkerFault(fault)));
    request.abandon_as_killed();
    assert_eq!(rig.server.worker_died(WorkerSlot(0)), []);
    assert_eq!((rig.server.in_use(), rig.server.quarantined()), (0, 0));
}

#[test]
fn invalid_response_position_ends_only_its_ticket() {
    let mut rig = rig();
    let ticket = rig.submit(b"1");
    let other = rig.submit(b"2");
    let mut request = rig.claim();
    let held = rig.claim();
    request.respond(b"200").unwrap();
    request.flush();
    let at = request.slot_index();
    rig.server.slot(at).response().head.store(1000, Relaxed);
    assert_eq!(rig.poll_tickets(), [ticket]);
    let fault = WorkerFault { worker_slot: Some(WorkerSlot(0)), violation: ProtocolViolation::Position };
    assert_eq!(rig.receive(ticket), Err(TicketError::WorkerFault(fault)));
    assert_eq!(rig.receive(ticket), Err(TicketError::Void));
    assert_eq!(rig.server.take_fault(), Some(fault));
    request.abandon_as_killed();
    held.abandon_as_killed();
    assert_eq!(rig.server.worker_died(WorkerSlot(0)), [LostRequest { ticket: other, has_started: false }]);
    assert_eq!((rig.server.in_use(), rig.server.quarantined()), (0, 0));
}

#[test]
fn slot_with_an_unknown_holder_is_quarantined() {
    let mut rig = rig();
    let ticket = rig.submit(b"1");
    let request = rig.claim();
    rig.server.slot(0).state().store(0xffff_ffff, Relaxed);
    rig.server.cancel(ticket, GONE);
    request.abandon_as_killed();
    assert_eq!(
        rig.server.take_fault(),
        Some(WorkerFault { worker_slot: None, violation: ProtocolViolation::SlotState })
    );
    assert_eq!(rig.server.worker_died(WorkerSlot(0)), []);
    assert_eq!((rig.server.in_use(), rig.server.quarantined()), (1, 1));
}

#[test]
fn server_arms_only_when_nothing_is_pending() {
    let mut rig = rig();
    assert!(rig.server.arm());
    let ticket = rig.submit(b"x");
    let mut request = rig.claim();
    request.respond(b"200").unwrap();
    request.finish().unwrap();
    let mut rung = [0; 8];
    assert_eq!(rustix::io::read(rig.server.fd(), &mut rung), Ok(8), "it was rung");
    rig.server.disarm();
    assert!(!rig.server.arm());
    assert_eq!(rig.poll_tickets(), [ticket]);
    assert!(rig.server.arm());
}

#[test]
fn wake_for_signals_wakes_a_worker_waiting_without_timeout() {
    let rig = rig();
    // No worker sleeps, so none may find a stale wake-up later.
    rig.channel.wake_for_signals();
    let channel = &rig.channel;
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(matches!(channel.worker(WorkerSlot(0)).next(None), NextRequest::TimedOut));
            done.store(true, std::sync::atomic::Ordering::Release);
        });
        while !done.load(std::sync::atomic::Ordering::Acquire) {
            channel.wake_for_signals();
            std::thread::yield_now();
        }
    });
}

#[test]
fn waiting_worker_times_out_and_a_retired_one_stops() {
    let rig = rig();
    assert!(matches!(rig.worker.next(Some(Duration::ZERO)), NextRequest::TimedOut));
    assert!(matches!(rig.worker.next(Some(Duration::from_millis(2))), NextRequest::TimedOut));
    rig.channel.retire(WorkerSlot(0));
    assert!(matches!(rig.worker.next(None), NextRequest::Retired));
    assert!(!rig.worker.arm(true));
}

#[test]
fn file_part_is_received_between_head_and_end() {
    let mut rig = rig();
    let ticket = rig.submit(b"x");
    let file = FilePart { fd: 5, offset: 1, len: 2 };
    let server = &mut rig.server;
    std::thread::scope(|scope| {
        let channel = &rig.channel;
        scope.spawn(move || {
            let NextRequest::ClaimedRequest(mut request) = channel.worker(WorkerSlot(1)).next(None) else {
                panic!("a request")
            };
            request.respond(b"200").unwrap();
            request.file(file).unwrap();
            request.finish().unwrap();
        });
        let mut parts = Vec::new();
        let mut over = false;
        while !over {
            server.flush_doorbells();
            server.poll(|server, ticket| {
                while let Ok(Some(received)) = server.receive(ticket, &mut Vec::new(), 100) {
                    parts.push(received.part);
                    over = received.is_last;
                }
            });
            std::thread::yield_now();
        }
        assert_eq!(parts, [ResponsePart::Head, ResponsePart::File(file), ResponsePart::End]);
    });
    assert_eq!(rig.receive(ticket), Err(TicketError::Void));
}

#[test]
fn worker_measures_the_requested_costs() {
    let mut rig = rig();
    let mut cost = |measure: Measure, others: usize| {
        rig.server.set_measure(measure);
        let ticket = rig.submit(b"x");
        let mut request = rig.claim();
        for _ in 0..others {
            let _ = rig.submit(b"y");
            rig.claim().abort(1);
        }
        let mut spun = 0_u64;
        while spun < 3_000_000 {
            spun = std::hint::black_box(spun + 1);
        }
        request.respond(b"head").unwrap();
        request.flush();
        rig.poll_tickets();
        rig.expect(ticket, ResponsePart::Head, b"head", false);
        let begun = rig.server.cost();
        assert!(begun.claimed_us.is_some() && begun.cpu_us.is_none(), "{begun:?}");
        request.finish().unwrap();
        rig.poll_tickets();
        rig.expect(ticket, ResponsePart::End, b"", true);
        rig.server.cost()
    };
    let claimed = cost(Measure::Claim, 0);
    assert!(claimed.claimed_us.is_some() && (claimed.cpu_us, claimed.memory_kib) == (None, None));
    let cpu = cost(Measure::Cpu, 0);
    assert!(cpu.cpu_us.is_some_and(|us| us > 100) && cpu.memory_kib.is_none(), "{cpu:?}");
    let all = cost(Measure::All, 0);
    assert!(all.cpu_us.is_some() && all.memory_kib.is_some(), "{all:?}");
    // With another request at the same time, the thread's CPU time cannot be attributed.
    let overlapping = cost(Measure::All, 1);
    assert_eq!((overlapping.cpu_us, overlapping.memory_kib), (None, None));
}
