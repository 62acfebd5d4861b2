//! WebSockets over HTTP/2 streams (RFC 8441) to upstream servers, and their ends on either side.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use crate::h2rig::{Came, H2Origin};
use crate::rig;
use crate::rig::{Options, Origin, Rig};
use http::{Method, Status};
use http2::{ErrorCode, Event, Machine, Options as H2, RequestLine};

const ASK: &str = "GET /chat?a HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                   Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// Starts an origin that answers every request with `status`, sends "hello" on extended CONNECT, and reads
/// on.
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
                    if is_get {
                        peer.begin(asked.stream, Status::NOT_FOUND, b"", true)
                    } else {
                        _ = peer.machine.data(asked.stream, b"", true, &mut peer.out)
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
fn websocket_upgrade_is_sent_as_extended_connect() {
    let origin = origin(true, Status::OK);
    let rig = rig(&origin);
    let mut client = rig.client();
    client.send(ASK);
    let response = client.response(Method::Get).unwrap();
    assert_eq!(
        (response.status, response.field("upgrade"), response.field("sec-websocket-protocol")),
        (101, Some("websocket"), Some("chat"))
    );
    // The proxy computes the answer to the client's key.
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
fn declined_connect_is_relayed_and_a_missing_key_is_rejected() {
    let origin = origin(true, Status::FORBIDDEN);
    let rig = rig(&origin);
    assert_eq!(rig.ask(ASK).status, 403);
    let keyless = ASK.replace("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", "");
    assert_eq!(rig.ask(&keyless).status, 400);
}

#[test]
fn server_without_extended_connect_gets_a_plain_request() {
    let origin = origin(false, Status::OK);
    let rig = rig(&origin);
    assert_eq!(rig.ask(ASK).status, 404);
    assert_eq!(origin.wait_noted("GET ended"), "GET ended with \"\"");
}

/// An HTTP/2 client, and a log of what it received: `1 200`, `1 "hello"`, `1 end`, `1 reset 8`.
struct StreamClient {
    stream: TcpStream,
    machine: Machine,
    out: Vec<u8>,
    input: Vec<u8>,
    came: Vec<String>,
}

impl StreamClient {
    /// Opens a tunnel on stream 1 and waits for its head.
    fn tunnel(rig: &Rig) -> StreamClient {
        let mut client = StreamClient::connect(rig, b"websocket");
        client.wait("1 200");
        client
    }

    /// Sends an extended CONNECT for `protocol` on stream 1.
    fn connect(rig: &Rig, protocol: &[u8]) -> StreamClient {
        let stream = TcpStream::connect(rig.h2c).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.set_nodelay(true).unwrap();
        let machine = Machine::client(H2::default());
        let mut client =
            StreamClient { stream, machine, out: Vec::new(), input: Vec::new(), came: Vec::new() };
        client.turn_until(|client| client.machine.peer_settings().connect_protocol);
        client.ask(b"CONNECT", Some(protocol), false);
        client
    }

    fn ask(&mut self, method: &[u8], protocol: Option<&[u8]>, ended: bool) {
        let line = RequestLine { method, scheme: b"http", authority: b"a", path: b"/chat", protocol };
        let (_, mut head) = self.machine.request(&line, ended, &mut self.out).unwrap();
        if protocol.is_some() {
            head.lines(b"sec-websocket-version: 13\r\n");
        }
    }

    fn wait(&mut self, what: &str) {
        self.turn_until(|client| client.came.iter().any(|came| came == what));
    }

    fn turn_until(&mut self, is_so: impl Fn(&StreamClient) -> bool) {
        while !is_so(self) {
            self.turn();
        }
    }

    fn flush(&mut self) {
        self.machine.flush(&mut self.out);
        self.stream.write_all(&self.out).unwrap();
        self.out.clear();
    }

    fn turn(&mut self) {
        self.flush();
        let mut room = [0; 16 * 1024];
        let len = self.stream.read(&mut room).unwrap_or_else(|error| panic!("{error} after {:?}", self.came));
        assert!(len > 0, "the connection ended after {:?}", self.came);
        self.input.extend_from_slice(&room[..len]);
        loop {
            let (consumed, event) = self.machine.feed(&self.input, 0).unwrap();
            let bytes: Vec<u8> = self.input.drain(..consumed).collect();
            let mut note = |stream: u32, ended: bool, what: String| {
                self.came.push(format!("{stream} {what}"));
                if ended {
                    self.came.push(format!("{stream} end"));
                }
            };
            match event {
                Event::NeedMore => return,
                Event::Head { stream, ended } => note(stream, ended, self.machine.status.code().to_string()),
                Event::Data { stream, data, ended } => {
                    note(stream, ended, format!("{:?}", String::from_utf8_lossy(data.of(&bytes))));
                }
                Event::Reset { stream, code } => note(stream, false, format!("reset {}", code.0)),
                _ => {}
            }
        }
    }
}

/// Starts an origin that accepts tunnels and sends a word, followed by the end of the stream if `ends` is
/// set. A GET makes it reset the first tunnel.
fn leaving(ends: bool) -> H2Origin {
    let options = H2 { connect_protocol: true, ..H2::default() };
    H2Origin::start(options, move |peer, _| {
        loop {
            match peer.next() {
                Came::End => return,
                Came::Head(asked) => {
                    peer.begin(asked.stream, Status::OK, b"", false);
                    peer.content(asked.stream, b"hello", ends);
                }
                Came::Whole(asked) if asked.method == "GET" => {
                    peer.machine.reset(1, ErrorCode::CANCEL);
                    peer.begin(asked.stream, Status::NOT_FOUND, b"", true);
                }
                Came::Whole(_) => peer.note("ended"),
                Came::Reset(_, code) => peer.note(format!("reset {}", code.0)),
                Came::Other => {}
            }
            peer.flush();
        }
    })
}

#[test]
fn unsupported_connect_protocol_is_rejected_with_501() {
    for connect_protocol in [true, false] {
        let origin = origin(connect_protocol, Status::OK);
        StreamClient::connect(&rig(&origin), b"connect-udp").wait("1 501");
        assert_eq!(origin.connections(), 0);
    }
}

#[test]
fn server_stream_reset_resets_the_client_stream() {
    for ends in [false, true] {
        let origin = leaving(ends);
        let rig = rig(&origin);
        let mut client = StreamClient::tunnel(&rig);
        client.wait(if ends { "1 end" } else { "1 \"hello\"" });
        client.ask(b"GET", None, true);
        client.wait("1 reset 8");
        client.wait("3 404");
        assert_eq!(origin.connections(), 1);
    }
}

#[test]
fn server_reset_after_its_end_resets_the_client_stream() {
    let (reset, resets) = mpsc::channel();
    let resets = Mutex::new(resets);
    let origin = Origin::start(move |mut caller, _| {
        let head = caller.head().unwrap();
        let key = head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).unwrap();
        let accept = String::from_utf8(net::websocket::accept(key.as_bytes()).to_vec()).unwrap();
        caller.send(&format!(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Accept: {accept}\r\n\r\nhello"
        ));
        caller.stream.shutdown(Shutdown::Write).unwrap();
        resets.lock().unwrap().recv().unwrap();
        caller.reset();
    });
    let rig = Rig::to(&origin);
    let mut client = StreamClient::tunnel(&rig);
    client.wait("1 end");
    assert!(client.came.contains(&"1 \"hello\"".to_owned()), "{:?}", client.came);
    reset.send(()).unwrap();
    client.wait("1 reset 8");
}

#[test]
fn client_reset_after_its_end_reaches_the_server() {
    let origin = leaving(false);
    let rig = rig(&origin);
    let mut client = StreamClient::tunnel(&rig);
    client.wait("1 \"hello\"");
    client.machine.data(1, b"bye", true, &mut client.out);
    client.flush();
    origin.wait_noted("ended");
    client.machine.reset(1, ErrorCode::CANCEL);
    client.flush();
    origin.wait_noted("reset 8");
    // The client of an HTTP/1 tunnel leaves.
    let origin = leaving(false);
    let rig = Rig::with(Options::to(vec![origin.server()]));
    let mut client = rig.client();
    client.send(ASK);
    assert_eq!(client.response(Method::Get).unwrap().status, 101);
    assert_eq!(client.raw(5), b"hello");
    client.shutdown_write();
    origin.wait_noted("ended");
    rig::reset(&client.stream);
    drop(client);
    origin.wait_noted("reset 8");
}
