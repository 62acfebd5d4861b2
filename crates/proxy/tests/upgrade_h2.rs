//! WebSockets of HTTP/1.1 clients over streams to upstream servers (RFC 8441).
#![allow(clippy::unwrap_used)]

mod h2rig;
mod rig;

use h2rig::{Came, H2Origin};
use http::{Method, Status};
use http2::Options as H2;
use rig::{Options, Rig};

const ASK: &str = "GET /chat?a HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                   Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// Answers every request with that status, and says "hello" on those that ask for a protocol; then whatever comes is read.
fn origin(connect_protocol: bool, status: Status) -> H2Origin {
    let options = H2 { connect_protocol, ..H2::default() };
    H2Origin::start(options, move |peer, _| {
        loop {
            match peer.next() {
                Came::End => return,
                Came::Head(asked) => {
                    let protocol =
                        peer.machine.protocol.map(|span| span.of(peer.machine.head_bytes()).to_vec());
                    peer.note(format!("{} {protocol:?} {}", asked.method, asked.fields));
                    let lines = b"sec-websocket-accept: nonsense\r\nsec-websocket-protocol: chat\r\n";
                    peer.begin(asked.stream, status, lines, !status.is_success());
                    if status.is_success() {
                        peer.content(asked.stream, b"hello", false);
                    }
                }
                Came::Whole(asked) => {
                    peer.note(format!(
                        "{} ended with {:?}",
                        asked.method,
                        String::from_utf8_lossy(&asked.body)
                    ));
                    let is_get = asked.method == "GET";
                    match is_get {
                        true => peer.begin(asked.stream, Status::NOT_FOUND, b"", true),
                        false => _ = peer.machine.data(asked.stream, b"", true, &mut peer.out),
                    }
                }
                _ => {}
            }
            peer.flush();
        }
    })
}

fn rig(origin: &H2Origin) -> Rig {
    Rig::with(Options::to(vec![origin.server()]))
}

#[test]
fn a_server_that_takes_extended_connect_gets_it() {
    let origin = origin(true, Status::OK);
    let rig = rig(&origin);
    let mut client = rig.client();
    client.send(ASK);
    let response = client.response(Method::Get).unwrap();
    assert_eq!(
        (response.status, response.field("upgrade"), response.field("sec-websocket-protocol")),
        (101, Some("websocket"), Some("chat"))
    );
    // The answer to the client's key is ours.
    assert_eq!(response.field("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    client.send("last words");
    client.shutdown_write();
    assert_eq!(client.rest(), (b"hello".to_vec(), true));
    let asked = origin.wait_noted("CONNECT Some").to_ascii_lowercase();
    assert!(asked.contains(&format!("{:?}", Some(b"websocket".to_vec())).to_ascii_lowercase()), "{asked}");
    assert!(asked.contains("sec-websocket-version: 13"), "{asked}");
    for line in ["sec-websocket-key", "upgrade", "connection: "] {
        assert!(!asked.contains(line), "{line} in {asked}");
    }
    assert_eq!(origin.wait_noted("CONNECT ended"), "CONNECT ended with \"last words\"");
}

#[test]
fn a_server_may_decline_and_a_client_needs_a_key() {
    let origin = origin(true, Status::FORBIDDEN);
    let rig = rig(&origin);
    assert_eq!(rig.ask(ASK).status, 403);
    let keyless = ASK.replace("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", "");
    assert_eq!(rig.ask(&keyless).status, 400);
}

#[test]
fn a_server_that_does_not_announce_it_gets_a_plain_request() {
    let origin = origin(false, Status::OK);
    let rig = rig(&origin);
    assert_eq!(rig.ask(ASK).status, 404);
    assert_eq!(origin.wait_noted("GET ended"), "GET ended with \"\"");
}
