//! The end of connections, and what their clients still receive.

use super::rig::{BIG_BYTES, Rig, read};
use crate::options::{Limits, Timeouts};
use crate::sim::End;

const FIXED: &[u8] = b"GET /fixed HTTP/1.1\r\nHost: zoo\r\n\r\n";

fn get(path: &str, version: &str) -> Vec<u8> {
    format!("GET {path} HTTP/{version}\r\nHost: zoo\r\nConnection: keep-alive\r\n\r\n").into_bytes()
}

#[test]
fn error_response_arrives_while_the_client_still_sends() {
    let rig = Rig::with_short_timeouts();
    let wire = rig.connect(0);
    wire.client_sends(b"POST /fixed HTTP/1.1\r\nHost: zoo\r\nContent-Length: nonsense\r\n\r\n");
    for _ in 0..20 {
        // More than the server reads at once.
        wire.client_sends(&[b'x'; 10_000]);
        rig.run_until_idle();
    }
    assert_eq!(
        (wire.end(), wire.server_closed()),
        (Some(End::Fin), false),
        "the other direction is still open"
    );
    assert!(read(&wire).starts_with("HTTP/1.1 400 "));
    wire.client_closes();
    rig.run_until_idle();
    rig.assert_empty();
}

#[test]
fn lingering_close_after_an_error_is_bounded() {
    let rig = Rig::with_short_timeouts();
    let wire = rig.connect(0);
    rig.send_and_read(&wire, b"nonsense\r\n\r\n");
    let began = rig.elapsed_ms();
    while !wire.server_closed() {
        wire.client_sends(&[b'x'; 64 * 1024]);
        rig.advance_ms(500);
        assert!(rig.elapsed_ms() < began + 32_000);
    }
    assert!(rig.elapsed_ms() >= began + 29_000);
    rig.assert_empty();
    // A client that goes silent is closed too.
    let wire = rig.connect(0);
    rig.send_and_read(&wire, b"nonsense\r\n\r\n");
    rig.advance_ms(2_500);
    assert!(wire.server_closed());
}

#[test]
fn last_response_within_the_request_limit_closes_the_connection() {
    let limits = Limits { requests_per_connection_max: 3, ..Limits::default() };
    let rig = Rig::new(limits, Timeouts::default());
    let wire = rig.connect(0);
    let answers = rig.send_and_read(&wire, &FIXED.repeat(10));
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 3);
    assert_eq!(answers.matches("Connection: close").count(), 1);
    assert_eq!(wire.end(), Some(End::Fin));
}

#[test]
fn stopping_server_sends_connection_close() {
    let rig = Rig::with_short_timeouts();
    let busy = rig.connect(0);
    let idle = rig.connect(1);
    rig.send_and_read(&busy, FIXED);
    rig.send_and_read(&idle, FIXED);
    rig.engine.context.is_draining.set(true);
    assert!(rig.send_and_read(&busy, FIXED).contains("Connection: close"));
    busy.client_closes();
    rig.run_until_idle();
    assert_eq!(rig.open_connections(), 1);
    // Idle connections park after the linger time at the latest; a draining server can then close them.
    rig.advance_ms(1_100);
    assert_eq!(rig.core.running(), 0);
    rig.core.close_parked();
    assert_eq!(idle.end(), Some(End::Fin));
    rig.assert_empty();
}

#[test]
fn idle_connections_are_closed_while_new_ones_wait() {
    let rig = Rig::with_short_timeouts();
    let lingering = rig.connect(0);
    let busy = rig.connect(1);
    let silent = rig.connect(2);
    rig.send_and_read(&lingering, FIXED);
    let newcomer = rig.core.add_source();
    rig.engine.context.connection_limit.waiting.borrow_mut().push(newcomer.clone());
    assert!(rig.send_and_read(&busy, FIXED).contains("Connection: close"));
    rig.advance_ms(1_100);
    assert_eq!(lingering.end(), Some(End::Fin));
    assert_eq!(silent.end(), None, "it has not had its first answer");
    rig.core.deregister(&newcomer);
}

#[test]
fn free_permit_wakes_every_waiting_listener() {
    let rig = Rig::new(Limits { connections_max: 1, ..Limits::default() }, Timeouts::default());
    let wire = rig.connect(0);
    let listeners = [rig.core.add_source(), rig.core.add_source()];
    rig.engine.context.connection_limit.waiting.borrow_mut().extend(listeners.clone());
    wire.client_closes();
    rig.run_until_idle();
    for listener in &listeners {
        assert_ne!(listener.ready() & crate::source::READ, 0);
        rig.core.deregister(listener);
    }
    assert!(!rig.engine.context.connection_limit.has_waiting(rig.engine.context.core.now()));
}

#[test]
fn truncated_body_never_looks_complete() {
    for path in ["/cut", "/late-panic"] {
        // An HTTP/1.1 client sees that the last chunk is missing.
        let rig = Rig::with_short_timeouts();
        let wire = rig.connect(0);
        let answer = rig.send_and_read(&wire, &get(path, "1.1"));
        assert!(answer.ends_with("4\r\npart\r\n"), "{answer}");
        assert_eq!(wire.end(), Some(End::Fin));
        // To an HTTP/1.0 client, an orderly end of the connection would be the end of the body.
        let wire = rig.connect(1);
        rig.send_and_read(&wire, &get(path, "1.0"));
        assert_eq!(wire.end(), Some(End::Reset));
    }
}

#[test]
fn abandoned_engine_resets_unfinished_http10_responses() {
    let rig = Rig::with_short_timeouts();
    let wire = rig.connect(0);
    wire.set_room(100);
    rig.send_and_read(&wire, &get("/chunked", "1.0"));
    assert_eq!(wire.end(), None);
    rig.core.drop_tasks();
    assert_eq!(wire.end(), Some(End::Reset));
}

#[test]
fn responses_before_a_truncated_one_arrive() {
    let rig = Rig::with_short_timeouts();
    let wire = rig.connect(0);
    let answers = rig.send_and_read(&wire, &[FIXED, &get("/short", "1.1"), FIXED].concat());
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 2);
    assert!(answers.ends_with("part"), "{answers}");
    assert_eq!(wire.end(), Some(End::Fin));
}

#[test]
fn panicking_handler_fails_only_its_own_request() {
    let rig = Rig::with_short_timeouts();
    let unlucky = rig.connect(0);
    let other = rig.connect(1);
    let answers = rig.send_and_read(&unlucky, &[FIXED, &get("/panic", "1.1")].concat());
    assert!(answers.starts_with("HTTP/1.1 200") && answers.contains("HTTP/1.1 500"), "{answers}");
    assert_eq!(rig.core.panics(), 1);
    assert!(rig.send_and_read(&other, FIXED).starts_with("HTTP/1.1 200"));
}

#[test]
fn a_handler_is_dropped_when_its_client_resets() {
    let rig = Rig::with_short_timeouts();
    let wire = rig.connect(0);
    rig.send_and_read(&wire, &get("/slow", "1.1"));
    assert_eq!((rig.open_connections(), rig.core.timers_armed()), (1, 1));
    wire.client_resets();
    rig.run_until_idle();
    rig.assert_empty();
    assert_eq!(rig.engine.service.log.borrow()[0].3, "connection closed by the peer");
}

#[test]
fn half_closed_client_receives_all_responses() {
    let rig = Rig::with_short_timeouts();
    let wire = rig.connect(0);
    wire.client_sends(&[get("/slow", "1.1"), get("/big", "1.1"), get("/fixed", "1.1")].concat());
    wire.client_half_closes();
    rig.run_until_idle();
    rig.advance_ms(1_000);
    assert!(read(&wire).len() > BIG_BYTES + 30 + 20);
    assert_eq!(wire.end(), Some(End::Fin));
    rig.assert_empty();
}

#[test]
fn incomplete_head_at_end_of_input_gets_no_response() {
    let rig = Rig::with_short_timeouts();
    let wire = rig.connect(0);
    wire.client_sends(&FIXED[..20]);
    rig.run_until_idle();
    wire.client_half_closes();
    rig.run_until_idle();
    assert_eq!((read(&wire).as_str(), wire.end()), ("", Some(End::Fin)));
    rig.assert_empty();
}
