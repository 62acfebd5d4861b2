//! Asks a server for what RFC 9114 and RFC 9204 forbid, and prints how it ends each connection.
//!
//! `h3i-probe HOST:PORT` exits with 1 if one answer is not among those that the RFC allows. It owns the list of
//! probes, and never sends what ordinary clients could not.

use std::time::Duration;

use h3i::actions::h3::{Action, StreamEvent, StreamEventType, WaitType};
use h3i::actions::h3::{send_headers_frame, send_headers_frame_literal};
use h3i::client::sync_client;
use h3i::config::Config;
use h3i::frame::H3iFrame;
use h3i::quiche;
use quiche::h3::Header;

const CONTROL: u64 = 0;
const PUSH: u64 = 1;
const QPACK_ENCODER: u64 = 2;
const QPACK_DECODER: u64 = 3;

/// How a server answers.
#[derive(Clone, PartialEq)]
enum Answer {
    Status(u16),
    /// The request's stream was reset with this code.
    Reset(u64),
    /// The connection was closed with this code.
    Closed(u64),
    Nothing,
}

use Answer::{Closed, Reset, Status};

impl std::fmt::Display for Answer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Status(status) => write!(out, "status {status}"),
            Reset(code) => write!(out, "reset, {code:#x}"),
            Closed(code) => write!(out, "closed, {code:#x}"),
            Answer::Nothing => write!(out, "nothing"),
        }
    }
}

/// Actions of a client, and the answers that are right.
struct Probe {
    name: &'static str,
    section: &'static str,
    actions: Vec<Action>,
    right: Vec<Answer>,
}

fn probe(
    name: &'static str,
    section: &'static str,
    actions: Vec<Action>,
    right: &[Answer],
) -> Probe {
    Probe {
        name,
        section,
        actions,
        right: right.to_vec(),
    }
}

fn bytes(stream_id: u64, fin_stream: bool, bytes: &[u8]) -> Action {
    Action::StreamBytes {
        stream_id,
        fin_stream,
        bytes: bytes.to_vec(),
        expected_result: Default::default(),
    }
}

fn open(stream_id: u64, stream_type: u64) -> Action {
    Action::OpenUniStream {
        stream_id,
        fin_stream: false,
        stream_type,
        expected_result: Default::default(),
    }
}

/// A control stream with empty settings, as every client has it.
fn control() -> Vec<Action> {
    vec![open(2, CONTROL), bytes(2, false, &[4, 0])]
}

fn after_control(mut actions: Vec<Action>) -> Vec<Action> {
    let mut all = control();
    all.append(&mut actions);
    all
}

fn fields(lines: &[(&str, &str)]) -> Vec<Header> {
    lines
        .iter()
        .map(|(name, value)| Header::new(name.as_bytes(), value.as_bytes()))
        .collect()
}

const GET: [(&str, &str); 4] = [
    (":method", "GET"),
    (":scheme", "https"),
    (":authority", "localhost"),
    (":path", "/"),
];

/// A request with these lines in place of those of `GET` with the same names, and after them.
fn request(lines: &[(&str, &str)]) -> Vec<Action> {
    let mut all: Vec<_> = GET
        .into_iter()
        .filter(|(name, _)| !lines.iter().any(|(other, _)| other == name))
        .collect();
    all.extend(lines);
    after_control(vec![send_headers_frame_literal(0, true, fields(&all))])
}

fn get(fin: bool) -> Action {
    send_headers_frame(0, fin, fields(&GET))
}

fn post(length: &str) -> Action {
    let lines = [("content-length", length)];
    let mut all = GET.to_vec();
    all[0].1 = "POST";
    all.extend(lines);
    send_headers_frame(0, false, fields(&all))
}

fn probes() -> Vec<Probe> {
    let malformed = [Reset(0x10e), Status(400), Closed(0x10e)];
    let unexpected = [Closed(0x105)];
    let ok = [Status(200)];
    vec![
        probe(
            "a request",
            "RFC 9114 4.1",
            after_control(vec![get(true)]),
            &ok,
        ),
        probe(
            "a request without a control stream",
            "RFC 9114 6.2.1",
            vec![get(true)],
            &ok,
        ),
        probe(
            "an unknown frame before and after HEADERS",
            "RFC 9114 9",
            {
                after_control(vec![
                    bytes(0, false, &[0x21, 2, 1, 1]),
                    get(false),
                    bytes(0, true, &[0x21, 0]),
                ])
            },
            &ok,
        ),
        probe(
            "a stream of an unknown type",
            "RFC 9114 6.2",
            after_control(vec![open(6, 0x21), bytes(6, false, b"anything"), get(true)]),
            &ok,
        ),
        probe(
            "an unknown setting",
            "RFC 9114 7.2.4",
            vec![
                open(2, CONTROL),
                bytes(2, false, &[4, 2, 0x21, 1]),
                get(true),
            ],
            &ok,
        ),
        probe(
            "DATA before HEADERS",
            "RFC 9114 4.1",
            after_control(vec![bytes(0, true, &[0, 1, b'x'])]),
            &unexpected,
        ),
        probe(
            "HEADERS after trailers",
            "RFC 9114 4.1",
            {
                let trailers = send_headers_frame(0, false, fields(&[("x", "1")]));
                after_control(vec![get(false), trailers.clone(), trailers])
            },
            &unexpected,
        ),
        probe(
            "DATA after trailers",
            "RFC 9114 4.1",
            {
                let trailers = send_headers_frame(0, false, fields(&[("x", "1")]));
                after_control(vec![get(false), trailers, bytes(0, true, &[0, 1, b'x'])])
            },
            &unexpected,
        ),
        probe(
            "a pseudo-header in trailers",
            "RFC 9114 4.3",
            after_control(vec![
                post("0"),
                send_headers_frame(0, true, fields(&[(":path", "/")])),
            ]),
            &malformed,
        ),
        probe(
            "a stream without a request",
            "RFC 9114 4.1",
            after_control(vec![bytes(0, true, b"")]),
            &[Reset(0x10d), Status(400)],
        ),
        probe(
            "less content than announced",
            "RFC 9114 4.1.2",
            after_control(vec![
                post("5"),
                bytes(0, true, &[0, 4, b'a', b'b', b'c', b'd']),
            ]),
            &malformed,
        ),
        probe(
            "more content than announced",
            "RFC 9114 4.1.2",
            after_control(vec![
                post("1"),
                bytes(0, true, &[0, 4, b'a', b'b', b'c', b'd']),
            ]),
            &malformed,
        ),
        probe(
            "a field name in capitals",
            "RFC 9114 4.2",
            request(&[("X-Capital", "1")]),
            &malformed,
        ),
        probe(
            "a field of connections",
            "RFC 9114 4.2",
            request(&[("connection", "close")]),
            &malformed,
        ),
        probe(
            "transfer-encoding",
            "RFC 9114 4.2",
            request(&[("transfer-encoding", "chunked")]),
            &malformed,
        ),
        probe(
            "te that is not trailers",
            "RFC 9114 4.2",
            request(&[("te", "gzip")]),
            &malformed,
        ),
        probe(
            "a line break in a value",
            "RFC 9114 10.3",
            request(&[("x", "a\r\ny: b")]),
            &malformed,
        ),
        probe(
            "an unknown pseudo-header",
            "RFC 9114 4.3",
            request(&[(":x", "1")]),
            &malformed,
        ),
        probe(
            "a pseudo-header of responses",
            "RFC 9114 4.3",
            request(&[(":status", "200")]),
            &malformed,
        ),
        probe(
            "a pseudo-header after a field",
            "RFC 9114 4.3",
            request(&[("a", "b"), (":path", "/")]),
            &malformed,
        ),
        probe(
            "two paths",
            "RFC 9114 4.3.1",
            request(&[(":path", "/"), (":path", "/b")]),
            &malformed,
        ),
        probe(
            "an empty path",
            "RFC 9114 4.3.1",
            request(&[(":path", "")]),
            &malformed,
        ),
        probe(
            "authority and host that differ",
            "RFC 9114 4.3.1",
            request(&[("host", "b.test")]),
            &malformed,
        ),
        probe(
            "a request without a path",
            "RFC 9114 4.3.1",
            after_control(vec![send_headers_frame(0, true, fields(&GET[..3]))]),
            &malformed,
        ),
        probe(
            "SETTINGS on a request's stream",
            "RFC 9114 7.2.4",
            after_control(vec![bytes(0, false, &[4, 0])]),
            &unexpected,
        ),
        probe(
            "SETTINGS twice",
            "RFC 9114 7.2.4",
            after_control(vec![bytes(2, false, &[4, 0])]),
            &unexpected,
        ),
        probe(
            "a control stream without SETTINGS",
            "RFC 9114 6.2.1",
            vec![open(2, CONTROL), bytes(2, false, &[7, 1, 0])],
            &[Closed(0x10a)],
        ),
        probe(
            "a setting twice",
            "RFC 9114 7.2.4",
            vec![open(2, CONTROL), bytes(2, false, &[4, 4, 6, 1, 6, 1])],
            &[Closed(0x109)],
        ),
        probe(
            "a setting of HTTP/2",
            "RFC 9114 7.2.4.1",
            vec![open(2, CONTROL), bytes(2, false, &[4, 2, 3, 1])],
            &[Closed(0x109)],
        ),
        probe(
            "two control streams",
            "RFC 9114 6.2.1",
            after_control(vec![open(6, CONTROL)]),
            &[Closed(0x103)],
        ),
        probe(
            "a control stream that ends",
            "RFC 9114 6.2.1",
            after_control(vec![bytes(2, true, b"")]),
            &[Closed(0x104)],
        ),
        probe(
            "a control stream that is reset",
            "RFC 9114 6.2.1",
            {
                // The server must know by then which stream it is.
                let wait_type = WaitType::WaitDuration(Duration::from_millis(50));
                let reset = Action::ResetStream {
                    stream_id: 2,
                    error_code: 0x100,
                };
                after_control(vec![
                    Action::FlushPackets,
                    Action::Wait { wait_type },
                    reset,
                ])
            },
            &[Closed(0x104)],
        ),
        probe(
            "a push stream of a client",
            "RFC 9114 6.2.2",
            after_control(vec![open(6, PUSH)]),
            &[Closed(0x103)],
        ),
        probe(
            "PUSH_PROMISE of a client",
            "RFC 9114 7.2.5",
            after_control(vec![bytes(0, false, &[5, 3, 0, 0, 0])]),
            &unexpected,
        ),
        probe(
            "DATA on the control stream",
            "RFC 9114 7.2.1",
            after_control(vec![bytes(2, false, &[0, 0])]),
            &unexpected,
        ),
        probe(
            "HEADERS on the control stream",
            "RFC 9114 7.2.2",
            after_control(vec![bytes(2, false, &[1, 0])]),
            &unexpected,
        ),
        probe(
            "GOAWAY on a request's stream",
            "RFC 9114 7.2.6",
            after_control(vec![bytes(0, false, &[7, 1, 0])]),
            &unexpected,
        ),
        probe(
            "a frame of HTTP/2 (PING)",
            "RFC 9114 7.2.8",
            after_control(vec![bytes(2, false, &[6, 0])]),
            &unexpected,
        ),
        probe(
            "a frame of HTTP/2 on a request's stream",
            "RFC 9114 7.2.8",
            after_control(vec![bytes(0, false, &[2, 0])]),
            &unexpected,
        ),
        probe(
            "GOAWAY with a greater identifier",
            "RFC 9114 5.2",
            after_control(vec![bytes(2, false, &[7, 1, 4, 7, 1, 8])]),
            &[Closed(0x108)],
        ),
        probe(
            "MAX_PUSH_ID that shrinks",
            "RFC 9114 7.2.7",
            after_control(vec![bytes(2, false, &[0x0d, 1, 4, 0x0d, 1, 2])]),
            &[Closed(0x108)],
        ),
        probe(
            "CANCEL_PUSH beyond MAX_PUSH_ID",
            "RFC 9114 7.2.3",
            after_control(vec![bytes(2, false, &[3, 1, 9])]),
            &[Closed(0x108)],
        ),
        probe(
            "a frame cut by the stream's end",
            "RFC 9114 7.1",
            after_control(vec![bytes(0, true, &[1, 20, 0, 0])]),
            &[Closed(0x106)],
        ),
        probe(
            "a frame with too much content",
            "RFC 9114 7.1",
            after_control(vec![bytes(2, false, &[7, 3, 0, 0, 0])]),
            &[Closed(0x106)],
        ),
        probe(
            "a field section that is none",
            "RFC 9204 2.2.3",
            after_control(vec![bytes(0, true, &[1, 3, 0, 0, 0xff])]),
            &[Closed(0x200)],
        ),
        probe(
            "an entry that does not exist",
            "RFC 9204 2.2.3",
            after_control(vec![bytes(0, true, &[1, 4, 0, 0, 0xff, 0x3f])]),
            &[Closed(0x200)],
        ),
        probe(
            "a dynamic table beyond its limit",
            "RFC 9204 4.3.1",
            after_control(vec![
                open(6, QPACK_ENCODER),
                bytes(6, false, &[0x3f, 0xff, 0xff, 0xff, 0x7f]),
            ]),
            &[Closed(0x201)],
        ),
        probe(
            "a duplicate of nothing",
            "RFC 9204 4.3.4",
            after_control(vec![open(6, QPACK_ENCODER), bytes(6, false, &[0x05])]),
            &[Closed(0x201)],
        ),
        probe(
            "an acknowledgement of nothing",
            "RFC 9204 4.4.1",
            after_control(vec![open(6, QPACK_DECODER), bytes(6, false, &[0x80 | 5])]),
            &[Closed(0x202)],
        ),
        probe(
            "an increment of zero",
            "RFC 9204 4.4.3",
            after_control(vec![open(6, QPACK_DECODER), bytes(6, false, &[0])]),
            &[Closed(0x202)],
        ),
        probe(
            "two encoder streams",
            "RFC 9204 4.2",
            after_control(vec![open(6, QPACK_ENCODER), open(10, QPACK_ENCODER)]),
            &[Closed(0x103)],
        ),
        probe(
            "a decoder stream that ends",
            "RFC 9204 4.2",
            after_control(vec![open(6, QPACK_DECODER), bytes(6, true, b"")]),
            &[Closed(0x104)],
        ),
        probe(
            "PRIORITY_UPDATE of a push",
            "RFC 9218 7.2",
            after_control(vec![bytes(2, false, &[0x80, 0x0f, 0x07, 0x01, 1, 9])]),
            &[Closed(0x108)],
        ),
        probe(
            "PRIORITY_UPDATE of no request's stream",
            "RFC 9218 7.2",
            after_control(vec![bytes(2, false, &[0x80, 0x0f, 0x07, 0x00, 1, 3])]),
            &[Closed(0x108)],
        ),
        probe(
            "a request after all that is refused",
            "",
            after_control(vec![get(true)]),
            &ok,
        ),
    ]
}

/// Sends a probe on a connection of its own.
fn ask(server: &str, mut actions: Vec<Action>) -> Answer {
    let config = Config::new()
        .with_host_port("localhost:443".to_owned())
        .with_connect_to(server.to_owned())
        .verify_peer(false)
        .with_idle_timeout(3_000)
        .build()
        .expect("a valid configuration");
    actions.push(Action::FlushPackets);
    let event_type = StreamEventType::Headers;
    // It ends early if the stream is reset or the connection closed.
    actions.push(Action::Wait {
        wait_type: WaitType::StreamEvent(StreamEvent {
            stream_id: 0,
            event_type,
        }),
    });
    actions.push(Action::Wait {
        wait_type: WaitType::WaitDuration(Duration::from_millis(50)),
    });
    let error = quiche::ConnectionError {
        is_app: true,
        error_code: 0x100,
        reason: Vec::new(),
    };
    actions.push(Action::ConnectionClose { error });
    let summary = sync_client::connect(config, actions, None).expect("the server speaks HTTP/3");
    if let Some(error) = summary.conn_close_details.peer_error() {
        return Closed(error.error_code);
    }
    let answer = summary
        .stream_map
        .stream(0)
        .into_iter()
        .find_map(|frame| match frame {
            H3iFrame::Headers(headers) => {
                let status = headers.status_code()?;
                Some(Status(std::str::from_utf8(status).ok()?.parse().ok()?))
            }
            H3iFrame::ResetStream(reset) => Some(Reset(reset.error_code)),
            H3iFrame::QuicheH3(_) => None,
        });
    answer.unwrap_or(Answer::Nothing)
}

fn main() {
    let server = std::env::args().nth(1).expect("usage: h3i-probe HOST:PORT");
    let mut wrong = 0;
    for Probe {
        name,
        section,
        actions,
        right,
    } in probes()
    {
        let answer = ask(&server, actions);
        let is_right = right.contains(&answer);
        wrong += i32::from(!is_right);
        let mark = if is_right { "    " } else { "!!  " };
        println!("{mark}{name:45} {section:18} {answer}");
        if !is_right {
            let right: Vec<_> = right.iter().map(Answer::to_string).collect();
            println!("    {:45} {:18} expected: {}", "", "", right.join("; "));
        }
    }
    println!("{wrong} answers are wrong");
    std::process::exit(i32::from(wrong > 0));
}
