//! Timeouts, and the memory of waiting connections.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::Poll;

use times::Millis;

use super::rig::{Rig, read};
use crate::fault::Fault;
use crate::options::{Limits, Timeouts};
use crate::sim::{End, SimulatedWire};
use crate::stream::Stream;

const FIXED: &[u8] = b"GET /fixed HTTP/1.1\r\nHost: zoo\r\n\r\n";
/// Precision of timeouts: a tenth of a second, plus the same step of the test's clock.
const COARSE_MS: u64 = 200;

/// Returns the timeouts of the rig.
fn short_timeouts() -> Timeouts {
    Rig::with_short_timeouts().engine.context.timeouts.get()
}

#[test]
fn silent_connection_is_closed_without_a_response() {
    let rig = Rig::with_short_timeouts();
    let wire = rig.connect(0);
    rig.advance_ms(short_timeouts().head.0 - COARSE_MS);
    assert_eq!(wire.end(), None);
    rig.advance_ms(2 * COARSE_MS);
    assert_eq!((read(&wire).as_str(), wire.end()), ("", Some(End::Fin)));
    rig.assert_empty();
}

#[test]
fn first_head_timeout_starts_at_accept() {
    let rig = Rig::with_short_timeouts();
    let wire = rig.connect(0);
    rig.advance_ms(short_timeouts().head.0 - 500);
    rig.send_and_read(&wire, &FIXED[..10]);
    rig.advance_ms(500 + COARSE_MS);
    assert!(read(&wire).starts_with("HTTP/1.1 408 "));
    assert_eq!(wire.end(), Some(End::Fin));
}

#[test]
fn idle_connection_is_closed_after_the_idle_timeout() {
    let rig = Rig::with_short_timeouts();
    let wire = rig.connect(0);
    rig.advance_ms(1_000);
    for pause_ms in [short_timeouts().idle.0 - COARSE_MS, 0] {
        rig.send_and_read(&wire, FIXED);
        rig.advance_ms(pause_ms);
        assert_eq!(wire.end(), None);
    }
    rig.advance_ms(short_timeouts().idle.0 + COARSE_MS);
    assert_eq!(wire.end(), Some(End::Fin));
    rig.assert_empty();
}

#[test]
fn an_idle_connection_parks_and_serves_again() {
    let rig = Rig::with_short_timeouts();
    let wire = rig.connect(0);
    for _ in 0..3 {
        assert!(rig.send_and_read(&wire, FIXED).starts_with("HTTP/1.1 200"));
        assert_eq!(rig.core.running(), 1, "its future lingers a moment");
        assert_eq!(rig.engine.context.buffers.free_entries(), 1, "without buffers");
        rig.advance_ms(1_200);
        assert_eq!((rig.core.running(), rig.core.tasks_alive()), (0, 1));
    }
}

#[test]
fn slowly_sent_head_times_out_without_holding_buffers() {
    let rig = Rig::with_short_timeouts();
    let wire = rig.connect(0);
    let mut sent = 0;
    for byte in FIXED {
        wire.client_sends(&[*byte]);
        rig.run_until_idle();
        rig.advance_ms(900);
        sent += 1;
        if wire.server_closed() {
            break;
        }
        if sent > 2 {
            assert_eq!(
                (rig.core.running(), rig.engine.context.buffers.free_entries()),
                (0, 1),
                "it holds no buffers"
            );
        }
    }
    assert!(rig.elapsed_ms() <= short_timeouts().head.0 + 900 + COARSE_MS, "{}", rig.elapsed_ms());
    assert!(read(&wire).starts_with("HTTP/1.1 408 "));
    rig.assert_empty();
}

#[test]
fn a_head_in_pieces_with_pauses_is_served() {
    let rig = Rig::with_short_timeouts();
    let wire = rig.connect(0);
    for _ in 0..3 {
        for piece in FIXED.chunks(13) {
            wire.client_sends(piece);
            rig.run_until_idle();
            rig.advance_ms(1_200);
        }
        assert!(read(&wire).starts_with("HTTP/1.1 200"));
    }
}

#[test]
fn later_head_timeout_starts_at_its_first_byte() {
    let rig = Rig::with_short_timeouts();
    let wire = rig.connect(0);
    rig.send_and_read(&wire, FIXED);
    rig.advance_ms(6_000);
    wire.client_sends(&FIXED[..10]);
    rig.run_until_idle();
    rig.advance_ms(short_timeouts().head.0 - COARSE_MS);
    assert_eq!(wire.end(), None);
    rig.advance_ms(2 * COARSE_MS);
    assert!(read(&wire).starts_with("HTTP/1.1 408 "));
    assert_eq!(wire.end(), Some(End::Fin));
}

#[test]
fn a_body_must_make_progress() {
    let rig = Rig::with_short_timeouts();
    let wire = rig.connect(0);
    wire.client_sends(b"POST /limited HTTP/1.1\r\nHost: zoo\r\nContent-Length: 9\r\n\r\n");
    for _ in 0..8 {
        wire.client_sends(b"x");
        rig.run_until_idle();
        rig.advance_ms(short_timeouts().body.0 - COARSE_MS);
        assert_eq!(wire.end(), None);
    }
    rig.advance_ms(2 * COARSE_MS);
    assert!(read(&wire).starts_with("HTTP/1.1 408 "));
    rig.advance_ms(3_000);
    rig.assert_empty();
}

#[test]
fn a_response_must_make_progress() {
    let rig = Rig::with_short_timeouts();
    let wire = rig.connect(0);
    wire.set_room(1_000);
    wire.client_sends(b"GET /big HTTP/1.1\r\nHost: zoo\r\n\r\n");
    rig.run_until_idle();
    for _ in 0..5 {
        rig.advance_ms(short_timeouts().write.0 - COARSE_MS);
        assert_eq!(wire.end(), None);
        wire.set_room(1);
        rig.run_until_idle();
    }
    rig.advance_ms(short_timeouts().write.0 + COARSE_MS);
    assert_eq!(wire.end(), Some(End::Reset));
    rig.assert_empty();
    assert_eq!(rig.engine.service.log.borrow()[0].3, "timed out");
}

#[test]
fn unread_responses_time_out() {
    let rig = Rig::with_short_timeouts();
    let wire = rig.connect(0);
    wire.set_room(0);
    rig.send_and_read(&wire, FIXED);
    rig.advance_ms(short_timeouts().write.0 - COARSE_MS);
    assert_eq!(wire.end(), None);
    rig.advance_ms(2 * COARSE_MS);
    assert!(wire.server_closed());
    rig.assert_empty();
}

#[test]
fn cancelled_wait_does_not_end_the_next_wait() {
    let rig = Rig::with_short_timeouts();
    let wire = Rc::new(SimulatedWire::new(0));
    let (core, stream) = (rig.core.clone(), Stream::simulated(&rig.core, wire));
    let ended = Rc::new(Cell::new(false));
    let reported = Rc::new(Cell::new(false));
    let ends = ended.clone();
    let reports = reported.clone();
    rig.core.spawn(async move {
        let mut given_up = Box::pin(stream.readable(core.now() + Millis(1_000)));
        poll_fn(|context| Poll::Ready(given_up.as_mut().poll(context).is_pending())).await;
        drop(given_up);
        core.sleep(Millis(2_000)).await;
        reports.set(true);
        assert!(matches!(stream.readable(core.now() + Millis(3_000)).await, Err(Fault::Timeout)));
        ends.set(true);
    });
    rig.advance_ms(2_000 + 3_000 - COARSE_MS);
    assert!(reported.get() && !ended.get());
    rig.advance_ms(2 * COARSE_MS);
    assert!(ended.get());
}

#[test]
fn longest_timeouts_neither_fire_nor_overflow() {
    let never = Millis::MAX;
    let timeouts = Timeouts { head: never, body: never, write: never, idle: never, drain: never };
    let rig = Rig::new(Limits::default(), timeouts);
    let silent = rig.connect(0);
    let head = rig.connect(1);
    let body = rig.connect(2);
    let taken = rig.connect(3);
    let idle = rig.connect(4);
    head.client_sends(b"GET /fix");
    body.client_sends(b"POST /echo HTTP/1.1\r\nHost: zoo\r\nContent-Length: 9\r\n\r\n");
    taken.set_room(0);
    rig.send_and_read(&taken, FIXED);
    rig.send_and_read(&idle, FIXED);
    rig.advance_ms(1_000_000);
    for wire in [&silent, &head, &body, &taken, &idle] {
        assert_eq!(wire.end(), None);
    }
    assert!(rig.send_and_read(&head, b"ed HTTP/1.1\r\nHost: zoo\r\n\r\n").starts_with("HTTP/1.1 200"));
    assert!(rig.send_and_read(&body, b"nine byte").contains("nine byte"));
    taken.set_room(usize::MAX);
    rig.run_until_idle();
    assert!(read(&taken).starts_with("HTTP/1.1 200"));
}
