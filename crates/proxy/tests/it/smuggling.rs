//! Runs every case of `smuggling.case`: checks the client's responses and all bytes that the upstream
//! received.

use crate::rig::{Options, Origin, Rig};
use http::machine::ClientMachine as Machine;
use http::machine::Step;
use http::{Limits, Method};

#[derive(Debug, Default)]
struct Case {
    name: String,
    sent: Vec<u8>,
    statuses: Vec<u16>,
    seen: Vec<u8>,
}

fn unescape(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match (byte, byte == b'\\') {
            (_, false) => byte,
            _ => match bytes.next() {
                Some(b'r') => b'\r',
                Some(b'n') => b'\n',
                Some(b't') => b'\t',
                Some(b'0') => 0,
                Some(b'\\') => b'\\',
                Some(b'x') => {
                    let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
                    u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
                }
                other => panic!("unknown escape {other:?} in {text}"),
            },
        });
    }
    out
}

fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for line in include_str!("smuggling.case").lines() {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "" | "#" => {}
            "case" => cases.push(Case { name: rest.into(), ..Case::default() }),
            ">" => cases.last_mut().unwrap().sent.extend(unescape(rest)),
            "<" => cases.last_mut().unwrap().seen.extend(unescape(rest)),
            "client" => {
                cases.last_mut().unwrap().statuses =
                    rest.split(' ').map(|word| word.parse().unwrap()).collect();
            }
            _ => panic!("unknown line: {line}"),
        }
    }
    cases
}

/// Returns the statuses of the responses in `bytes`, all of which must be complete.
fn statuses(mut bytes: &[u8]) -> Vec<u16> {
    let mut statuses = Vec::new();
    let mut machine = Machine::default();
    while !bytes.is_empty() {
        let fed =
            machine.feed(bytes, Method::Get, &Limits::default()).expect("the proxy sends valid responses");
        bytes = &bytes[fed.consumed..];
        match fed.step {
            Step::Head => {
                statuses.push(machine.head.status.code());
                // A response without content ends with its head.
                if machine.head.framing == http::framing::Framing::None {
                    machine.next();
                }
            }
            Step::End => machine.next(),
            Step::Data(_) if machine.body().is_some_and(http::body::Body::is_end) => machine.next(),
            Step::Data(_) => {}
            Step::NeedMore => panic!("a response is cut short"),
        }
    }
    statuses
}

#[test]
fn ambiguous_requests_never_reach_an_upstream() {
    let cases = cases();
    assert!(cases.len() > 60);
    let mut failures = String::new();
    for case in &cases {
        assert!(!case.sent.is_empty() && !case.statuses.is_empty(), "{}: not a case", case.name);
        let origin = Origin::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        let mut options = Options::to(vec![origin.server()]);
        // The client closes its sending side after the last byte, and still waits for responses.
        options.route.cancels_on_disconnect = false;
        options.route.request.forwarded.via = None;
        options.route.request.forwarded.x_forwarded = Some(false);
        let rig = Rig::with(options);
        let mut client = rig.client();
        client.send_bytes(&case.sent);
        client.shutdown_write();
        let (received, _) = client.rest();
        // The proxy has stopped and closed all connections, so nothing more can reach the origin.
        drop(rig);
        origin.wait_idle();
        let statuses = statuses(&received);
        let seen = origin.seen_bytes();
        if statuses != case.statuses || seen != case.seen {
            failures += &format!("{}\n  client {statuses:?}\n  seen {}\n", case.name, seen.escape_ascii());
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
}
