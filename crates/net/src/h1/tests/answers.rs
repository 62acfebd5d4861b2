//! Exact responses to single requests.

use http::Limits as HeadLimits;

use super::rig::{FILE_BYTES, Rig, SLOW_TIME, read};
use crate::options::{Limits, Timeouts};
use crate::sim::End;

/// Returns a request without a body.
fn get(method: &str, path: &str, version: &str, fields: &str) -> Vec<u8> {
    format!("{method} {path} HTTP/{version}\r\nHost: zoo\r\n{fields}\r\n").into_bytes()
}

/// Splits a response into its head and the rest.
fn split(answer: &str) -> (&str, &str) {
    answer.split_once("\r\n\r\n").expect("a whole head")
}

#[test]
fn pipelined_responses_are_sent_in_one_write() {
    let rig = Rig::with_short_timeouts();
    let wire = rig.connect(0);
    wire.whole_sends.set(true);
    let all =
        [get("GET", "/fixed?1", "1.1", ""), get("HEAD", "/fixed", "1.1", ""), get("GET", "/204", "1.1", "")];
    let answer = rig.send_and_read(&wire, &all.concat());
    assert_eq!(answer.matches("HTTP/1.1 ").count(), 3);
    assert_eq!(wire.sends.borrow().len(), 1);
}

#[test]
fn responses_without_content_have_no_body() {
    let rig = Rig::with_short_timeouts();
    let wire = rig.connect(0);
    for (method, path, length) in [
        ("HEAD", "/fixed", Some("Content-Length: 20")),
        ("HEAD", "/chunked", None),
        ("GET", "/204", None),
        ("GET", "/304", None),
        ("GET", "/empty", Some("Content-Length: 0")),
    ] {
        let answer = rig.send_and_read(&wire, &get(method, path, "1.1", ""));
        let (head, rest) = split(&answer);
        assert_eq!(rest, "", "{method} {path}");
        assert_eq!(head.lines().find(|line| line.starts_with("Content-Length")), length, "{method} {path}");
        assert!(!head.contains("Connection:"), "{head}");
    }
}

#[test]
fn http10_connection_persists_only_with_keep_alive() {
    let rig = Rig::with_short_timeouts();
    let wire = rig.connect(0);
    let keep = get("GET", "/fixed", "1.0", "Connection: keep-alive\r\n");
    for _ in 0..2 {
        assert!(rig.send_and_read(&wire, &keep).contains("\r\nConnection: keep-alive\r\n"));
    }
    assert!(rig.send_and_read(&wire, &get("GET", "/fixed", "1.0", "")).contains("\r\nConnection: close\r\n"));
    assert_eq!(wire.end(), Some(End::Fin));
    rig.assert_empty();
}

#[test]
fn http10_body_of_unknown_length_ends_with_the_connection() {
    let rig = Rig::with_short_timeouts();
    let wire = rig.connect(0);
    let answer = rig.send_and_read(&wire, &get("GET", "/chunked?3", "1.0", ""));
    let (head, body) = split(&answer);
    assert!(head.contains("Connection: close") && !head.contains("Transfer-Encoding"), "{head}");
    assert_eq!((body.len(), wire.end()), (5_011, Some(End::Fin)));
}

#[test]
fn continue_is_sent_when_the_body_is_first_read() {
    let rig = Rig::with_short_timeouts();
    let wire = rig.connect(0);
    let head = get("POST", "/echo", "1.1", "Content-Length: 4\r\nExpect: 100-continue\r\n");
    assert_eq!(rig.send_and_read(&wire, &head), "HTTP/1.1 100 Continue\r\n\r\n");
    let answer = rig.send_and_read(&wire, b"body");
    assert!(answer.ends_with("\r\n4\r\nbody\r\n0\r\n\r\n") && !answer.contains("close"), "{answer}");
    // A client that sends the body without waiting gets no 100, and its connection stays open even if nothing
    // reads the body.
    for path in ["/echo", "/fixed"] {
        let head = get("POST", path, "1.1", "Content-Length: 4\r\nExpect: 100-continue\r\n");
        let answer = rig.send_and_read(&wire, &[head.as_slice(), b"body"].concat());
        assert!(answer.starts_with("HTTP/1.1 200 OK") && !answer.contains("close"), "{answer}");
    }
}

#[test]
fn final_response_instead_of_continue_closes_the_connection() {
    for path in ["/fixed", "/limited", "/nowhere"] {
        let rig = Rig::with_short_timeouts();
        let wire = rig.connect(0);
        let head = get("POST", path, "1.1", "Content-Length: 40\r\nExpect: 100-continue\r\n");
        let answer = rig.send_and_read(&wire, &head);
        assert!(!answer.contains("100 Continue") && answer.contains("Connection: close"), "{answer}");
        assert_eq!(wire.end(), Some(End::Fin));
        wire.client_closes();
        rig.run_until_idle();
        rig.assert_empty();
    }
}

#[test]
fn continue_is_not_sent_after_the_final_response() {
    let rig = Rig::with_short_timeouts();
    let wire = rig.connect(0);
    let head = get("POST", "/late-echo", "1.1", "Content-Length: 4\r\nExpect: 100-continue\r\n");
    let answer = rig.send_and_read(&wire, &head);
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("Connection: close"), "{answer}");
    assert!(!answer.contains("100 Continue"), "{answer}");
    assert_eq!(rig.send_and_read(&wire, b"body"), "4\r\nbody\r\n0\r\n\r\n");
}

#[test]
fn http10_client_is_not_sent_continue() {
    let rig = Rig::with_short_timeouts();
    let wire = rig.connect(0);
    let head = get("POST", "/echo", "1.0", "Content-Length: 4\r\nExpect: 100-continue\r\n");
    assert_eq!(rig.send_and_read(&wire, &head), "");
    assert!(rig.send_and_read(&wire, b"body").ends_with("\r\n\r\nbody"));
}

#[test]
fn bodies_above_the_limit_are_rejected() {
    for (fields, body) in [
        ("Content-Length: 11\r\n", ""),
        ("Transfer-Encoding: chunked\r\n", "b\r\nhello"),
        ("Transfer-Encoding: chunked\r\n", "6\r\nhello,\r\n5\r\nworld\r\n0\r\n\r\n"),
    ] {
        let rig = Rig::with_short_timeouts();
        let wire = rig.connect(0);
        let answer =
            rig.send_and_read(&wire, &[get("POST", "/limited", "1.1", fields), body.into()].concat());
        assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("Connection: close"), "{answer}");
        assert_eq!(rig.engine.service.log.borrow()[0].3, "413 body too large");
    }
}

#[test]
fn route_body_limit_overrides_the_server_limit() {
    let limits = Limits { body_bytes_max: 3, ..Limits::default() };
    let rig = Rig::new(limits, Timeouts::default());
    let wire = rig.connect(0);
    let post = |path| [get("POST", path, "1.1", "Content-Length: 9\r\n"), b"nine byte".to_vec()].concat();
    assert!(rig.send_and_read(&wire, &post("/limited")).ends_with("small"));
    assert!(rig.send_and_read(&wire, &post("/echo")).starts_with("HTTP/1.1 413 "));
}

#[test]
fn head_size_limit_is_exact_however_the_head_is_split() {
    let head = HeadLimits { head_bytes_max: 300, start_line_bytes_max: 100, ..HeadLimits::default() };
    let fitting = |bytes: usize| {
        let short = get("GET", "/fixed", "1.1", "X-Long: \r\n");
        let fill = format!("X-Long: {}\r\n", "x".repeat(bytes - short.len()));
        get("GET", "/fixed", "1.1", &fill)
    };
    for (bytes, status) in [(300, "200"), (301, "431")] {
        for step in [1, 7, 299, 400] {
            let rig = Rig::new(Limits { head, ..Limits::default() }, Timeouts::default());
            let wire = rig.connect(0);
            for piece in fitting(bytes).chunks(step) {
                wire.client_sends(piece);
                rig.run_until_idle();
            }
            let answer = read(&wire);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{bytes} by {step}: {answer}");
        }
    }
}

#[test]
fn requests_are_logged_on_kept_and_closed_connections() {
    let rig = Rig::with_short_timeouts();
    let wire = rig.connect(0);
    for fields in ["", "Connection: close\r\n"] {
        wire.client_sends(&get("GET", "/slow?7", "1.1", fields));
        rig.run_until_idle();
        rig.advance_ms(SLOW_TIME.0);
    }
    let service = &rig.engine.service;
    let record = ("GET /slow?7".to_string(), 200, 30, String::new());
    assert_eq!(*service.log.borrow(), [record.clone(), record]);
    assert_eq!(*service.durations_ms.borrow(), [SLOW_TIME.0, SLOW_TIME.0]);
    assert_eq!(rig.engine.context.counters.requests.value(), 2);
}

#[test]
fn handler_and_parse_errors_are_logged() {
    let rig = Rig::with_short_timeouts();
    for path in ["/fail", "/silent", "/panic", "/late-fail", "/short"] {
        let wire = rig.connect(0);
        rig.send_and_read(&wire, &get("GET", path, "1.1", ""));
    }
    let wire = rig.connect(0);
    rig.send_and_read(&wire, b"nonsense\r\n\r\n");
    let log: Vec<(String, u16, String)> =
        rig.engine.service.log.take().into_iter().map(|(what, status, _, why)| (what, status, why)).collect();
    let expected = [
        ("GET /fail", 500, "out of order"),
        ("GET /silent", 500, "no response"),
        ("GET /panic", 500, "the handler panicked"),
        ("GET /late-fail", 200, "after the response"),
        ("GET /short", 200, "cut"),
        ("-", 400, "400 invalid byte in the target"),
    ];
    for ((what, status, why), expected) in log.iter().zip(expected) {
        assert_eq!((what.as_str(), *status), (expected.0, expected.1));
        assert!(why == expected.2 || what == "-", "{why} instead of {}", expected.2);
    }
    assert_eq!(log.len(), expected.len());
    assert_eq!((rig.core.panics(), rig.engine.context.counters.rejected.value()), (1, 1));
}

#[test]
fn empty_line_before_too_long_request_line_yields_414() {
    let bytes_max = 20_000;
    let head =
        HeadLimits { head_bytes_max: bytes_max, start_line_bytes_max: bytes_max, ..HeadLimits::default() };
    for long in [bytes_max - 3, bytes_max - 2, bytes_max - 1, bytes_max, bytes_max + 1, 2 * bytes_max] {
        let rig = Rig::new(Limits { head, ..Limits::default() }, Timeouts::default());
        let wire = rig.connect(0);
        let answer = rig.send_and_read(&wire, format!("\r\n{:x<long$}", "GET /").as_bytes());
        let expected = if long < bytes_max - 2 { "" } else { "HTTP/1.1 414 " };
        assert!(answer.starts_with(expected), "{long}: {answer}");
        assert_eq!(answer.is_empty(), expected.is_empty());
    }
}

#[test]
fn log_record_covers_only_its_own_request() {
    let rig = Rig::with_short_timeouts();
    let wire = rig.connect(0);
    rig.send_and_read(&wire, &[get("GET", "/big", "1.1", ""), b"nonsense\r\n\r\n".to_vec()].concat());
    let wire = rig.connect(1);
    wire.client_sends(&[get("GET", "/nowhere", "1.1", ""), get("GET", "/slow", "1.1", "")].concat());
    rig.run_until_idle();
    wire.client_resets();
    rig.run_until_idle();
    let log = rig.engine.service.log.take();
    let reported: Vec<(u16, u64)> = log.iter().map(|record| (record.1, record.2 / 1_000)).collect();
    // A client that disconnected before its response is logged with 499, not with 200 or the previous status.
    assert_eq!(reported, [(200, 150), (400, 0), (404, 0), (499, 0)]);
}

#[test]
fn log_counts_bytes_sent_of_an_interrupted_file() {
    let rig = Rig::with_short_timeouts();
    let wire = rig.connect(0);
    assert!(rig.send_and_read(&wire, &get("GET", "/file", "1.1", "")).len() > FILE_BYTES);
    wire.set_room(5_000);
    rig.send_and_read(&wire, &get("GET", "/file", "1.1", ""));
    wire.client_resets();
    rig.run_until_idle();
    let log = rig.engine.service.log.take();
    assert_eq!(log[0].2, 100 + FILE_BYTES as u64);
    assert!((4_000..=5_000).contains(&log[1].2), "{}", log[1].2);
}
