//! The end of connections, and what their clients still receive.

use super::rig::{BIG_BYTES, Rig, read};
use crate::options::{Limits, Timeouts};
use crate::sim::End;

const FIXED: &[u8] = b"GET /fixed HTTP/1.1\r\nHost: zoo\r\n\r\n";

fn get(path: &str, version: &str) -> Vec<u8> {
    format!("GET {path} HTTP/{version}\r\nHost: zoo\r\nConnection: keep-alive\r\n\r\n").into_bytes()
}

#[test]
fn a_refusal_arrives_although_the_client_is_still_sending() {
    let rig = Rig::quick();
    let wire = rig.connect(0);
    wire.client_sends(b"POST /fixed HTTP/1.1\r\nHost: zoo\r\nContent-Length: nonsense\r\n\r\n");
    for _ in 0..20 {
        // More than the server reads at once.
        wire.client_sends(&[b'x'; 10_000]);
        rig.settle();
    }
    assert_eq!(
        (wire.end(), wire.server_closed()),
        (Some(End::Fin), false),
        "the other direction is still open"
    );
    assert!(read(&wire).starts_with("HTTP/1.1 400 "));
    wire.client_closes();
    rig.settle();
    rig.assert_empty();
}

#[test]
fn a_refused_client_that_never_stops_is_left_in_the_end() {
    let rig = Rig::quick();
    let wire = rig.connect(0);
    rig.ask(&wire, b"nonsense\r\n\r\n");
    let began_ms = rig.elapsed_ms();
    while !wire.server_closed() {
        wire.client_sends(&[b'x'; 64 * 1024]);
        rig.pass(500);
        assert!(rig.elapsed_ms() < began_ms + 32_000);
    }
    assert!(rig.elapsed_ms() >= began_ms + 29_000);
    rig.assert_empty();
    // A client that goes silent is closed too.
    let wire = rig.connect(0);
    rig.ask(&wire, b"nonsense\r\n\r\n");
    rig.pass(2_500);
    assert!(wire.server_closed());
}

#[test]
fn the_last_answer_before_the_request_limit_arrives() {
    let limits = Limits { requests_per_connection_max: 3, ..Limits::default() };
    let rig = Rig::new(limits, Timeouts::default());
    let wire = rig.connect(0);
    let answers = rig.ask(&wire, &FIXED.repeat(10));
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 3);
    assert_eq!(answers.matches("Connection: close").count(), 1);
    assert_eq!(wire.end(), Some(End::Fin));
}

#[test]
fn a_stopping_server_says_so_with_the_next_answer() {
    let rig = Rig::quick();
    let (busy, idle) = (rig.connect(0), rig.connect(1));
    rig.ask(&busy, FIXED);
    rig.ask(&idle, FIXED);
    rig.engine.context.draining.set(true);
    assert!(rig.ask(&busy, FIXED).contains("Connection: close"));
    busy.client_closes();
    rig.settle();
    assert_eq!(rig.open(), 1);
    // Idle connections park after the linger time at the latest; a draining server can then close them.
    rig.pass(1_100);
    assert_eq!(rig.core.running(), 0);
    rig.core.close_parked();
    assert_eq!(idle.end(), Some(End::Fin));
    rig.assert_empty();
}

#[test]
fn while_new_connections_wait_none_is_kept_between_requests() {
    let rig = Rig::quick();
    let (lingering, busy, silent) = (rig.connect(0), rig.connect(1), rig.connect(2));
    rig.ask(&lingering, FIXED);
    let newcomer = rig.core.add_source();
    rig.engine.context.connection_limit.waiting.borrow_mut().push(newcomer.clone());
    assert!(rig.ask(&busy, FIXED).contains("Connection: close"));
    rig.pass(1_100);
    assert_eq!(lingering.end(), Some(End::Fin));
    assert_eq!(silent.end(), None, "it has not had its first answer");
    rig.core.deregister(&newcomer);
}

#[test]
fn a_free_permit_wakes_every_listener_that_waits() {
    let rig = Rig::new(Limits { connections_max: 1, ..Limits::default() }, Timeouts::default());
    let wire = rig.connect(0);
    let listeners = [rig.core.add_source(), rig.core.add_source()];
    rig.engine.context.connection_limit.waiting.borrow_mut().extend(listeners.clone());
    wire.client_closes();
    rig.settle();
    for listener in &listeners {
        assert_ne!(listener.ready() & crate::source::READ, 0);
        rig.core.deregister(listener);
    }
    assert!(!rig.engine.context.connection_limit.crowded());
}

#[test]
fn a_cut_body_never_looks_whole() {
    for path in ["/cut", "/late-panic"] {
        // An HTTP/1.1 client sees that the last chunk is missing.
        let rig = Rig::quick();
        let wire = rig.connect(0);
        let answer = rig.ask(&wire, &get(path, "1.1"));
        assert!(answer.ends_with("4\r\npart\r\n"), "{answer}");
        assert_eq!(wire.end(), Some(End::Fin));
        // To an HTTP/1.0 client, an orderly end of the connection would be the end of the body.
        let wire = rig.connect(1);
        rig.ask(&wire, &get(path, "1.0"));
        assert_eq!(wire.end(), Some(End::Reset));
    }
}

#[test]
fn an_engine_that_ends_cuts_bodies_visibly() {
    let rig = Rig::quick();
    let wire = rig.connect(0);
    wire.set_room(100);
    rig.ask(&wire, &get("/chunked", "1.0"));
    assert_eq!(wire.end(), None);
    rig.core.abandon();
    assert_eq!(wire.end(), Some(End::Reset));
}

#[test]
fn answers_before_a_cut_one_arrive() {
    let rig = Rig::quick();
    let wire = rig.connect(0);
    let answers = rig.ask(&wire, &[FIXED, &get("/short", "1.1"), FIXED].concat());
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 2);
    assert!(answers.ends_with("part"), "{answers}");
    assert_eq!(wire.end(), Some(End::Fin));
}

#[test]
fn a_panic_costs_its_request_alone() {
    let rig = Rig::quick();
    let (unlucky, other) = (rig.connect(0), rig.connect(1));
    let answers = rig.ask(&unlucky, &[FIXED, &get("/panic", "1.1")].concat());
    assert!(answers.starts_with("HTTP/1.1 200") && answers.contains("HTTP/1.1 500"), "{answers}");
    assert_eq!(rig.core.panics(), 1);
    assert!(rig.ask(&other, FIXED).starts_with("HTTP/1.1 200"));
}

#[test]
fn a_handler_is_dropped_when_its_client_resets() {
    let rig = Rig::quick();
    let wire = rig.connect(0);
    rig.ask(&wire, &get("/slow", "1.1"));
    assert_eq!((rig.open(), rig.core.timers_armed()), (1, 1));
    wire.client_resets();
    rig.settle();
    rig.assert_empty();
    assert_eq!(rig.engine.service.log.borrow()[0].3, "connection closed by the peer");
}

#[test]
fn a_client_that_has_sent_all_still_gets_all() {
    let rig = Rig::quick();
    let wire = rig.connect(0);
    wire.client_sends(&[get("/slow", "1.1"), get("/big", "1.1"), get("/fixed", "1.1")].concat());
    wire.client_half_closes();
    rig.settle();
    rig.pass(1_000);
    assert!(read(&wire).len() > BIG_BYTES + 30 + 20);
    assert_eq!(wire.end(), Some(End::Fin));
    rig.assert_empty();
}

#[test]
fn a_head_cut_short_by_the_client_ends_quietly() {
    let rig = Rig::quick();
    let wire = rig.connect(0);
    wire.client_sends(&FIXED[..20]);
    rig.settle();
    wire.client_half_closes();
    rig.settle();
    assert_eq!((read(&wire).as_str(), wire.end()), ("", Some(End::Fin)));
    rig.assert_empty();
}
