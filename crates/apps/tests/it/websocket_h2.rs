//! WebSockets of an ASGI application over HTTP/2 streams (RFC 8441): byte-level exchanges, and malicious
//! clients.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use crate::rig::{Rig, modules, run_event_loop, until};
use apps::{Options, Workers};
use http2::{ErrorCode, Event, Machine, RequestLine};

pub(crate) const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
pub(crate) const FIN: u8 = 0x80;

fn python(adapt: impl FnOnce(&mut Options)) -> Rig {
    let worker = modules("python").join("worker.py");
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/sockets.py");
    let mut options =
        Options::new("chat", vec!["python3".into(), worker.into(), "asgi".into(), place.into()]);
    options.workers = Workers { min: 1, max: 1 };
    options.settings.timeouts.stop = Duration::from_millis(5_000);
    run_event_loop(&mut options, 100);
    options.settings.websockets.message_bytes_max = 2_000_000;
    adapt(&mut options);
    Rig::start(options)
}

/// Data received on one stream.
#[derive(Default)]
pub(crate) struct Got {
    pub(crate) status: u16,
    pub(crate) fields: String,
    pub(crate) data: Vec<u8>,
    ended: bool,
    reset: Option<ErrorCode>,
}

/// An HTTP/2 connection with many streams.
pub(crate) struct Streams {
    stream: TcpStream,
    pub(crate) machine: Machine,
    pub(crate) out: Vec<u8>,
    input: Vec<u8>,
    pub(crate) got: HashMap<u32, Got>,
    /// Streams whose flow-control window is not replenished.
    stalled: Vec<u32>,
    is_over: bool,
}

impl Streams {
    pub(crate) fn to(rig: &Rig) -> Streams {
        let stream = rig.connect().stream;
        stream.set_nodelay(true).unwrap();
        let machine = Machine::client(http2::Options::default());
        let got = HashMap::new();
        let out = Vec::new();
        let input = Vec::new();
        let stalled = Vec::new();
        let mut streams = Streams { stream, machine, out, input, got, stalled, is_over: false };
        streams.wait(|streams| streams.machine.settings_acked());
        assert!(streams.machine.peer_settings().connect_protocol, "the server announces RFC 8441");
        streams
    }

    pub(crate) fn flush(&mut self) {
        self.machine.flush(&mut self.out);
        // A write error is ignored; reading reports the disconnect.
        let _ = self.stream.write_all(&self.out);
        self.out.clear();
    }

    /// Opens a stream with an extended CONNECT request.
    pub(crate) fn ask(&mut self, path: &str, protocol: &str, fields: &str) -> u32 {
        let line = RequestLine {
            method: b"CONNECT",
            scheme: b"http",
            authority: b"chat.example",
            path: path.as_bytes(),
            protocol: Some(protocol.as_bytes()),
        };
        let (id, mut head) = self.machine.request(&line, false, &mut self.out).unwrap();
        head.lines(fields.as_bytes());
        drop(head);
        self.got.insert(id, Got::default());
        self.flush();
        id
    }

    /// Opens a WebSocket.
    fn open(&mut self, path: &str) -> u32 {
        let id = self.ask(path, "websocket", "sec-websocket-version: 13\r\n");
        self.wait(|streams| streams.got[&id].status > 0);
        assert_eq!(self.got[&id].status, 200, "{}", self.got[&id].fields);
        id
    }

    /// Returns the status of the response; 0 if the stream is reset.
    pub(crate) fn status(&mut self, path: &str, protocol: &str, fields: &str) -> u16 {
        let id = self.ask(path, protocol, fields);
        self.wait(|streams| streams.got[&id].status > 0 || streams.got[&id].reset.is_some());
        self.got[&id].status
    }

    /// Sends data as the flow-control windows permit.
    pub(crate) fn send(&mut self, id: u32, bytes: impl AsRef<[u8]>) {
        let mut rest = bytes.as_ref();
        while !rest.is_empty() && !self.is_over && self.got[&id].reset.is_none() {
            let taken = self.machine.data(id, rest, false, &mut self.out);
            rest = &rest[taken..];
            self.flush();
            if taken == 0 {
                self.turn();
            }
        }
    }

    pub(crate) fn wait(&mut self, is_so: impl Fn(&Streams) -> bool) {
        while !is_so(self) {
            assert!(!self.is_over, "the connection ended early");
            self.turn();
        }
    }

    /// Flushes the output and reads once.
    fn turn(&mut self) {
        self.flush();
        let mut room = vec![0; 64 * 1024];
        let len = self.stream.read(&mut room).unwrap();
        self.is_over |= len == 0;
        self.input.extend_from_slice(&room[..len]);
        loop {
            let (consumed, event) = self.machine.feed(&self.input, 0).unwrap();
            let bytes: Vec<u8> = self.input.drain(..consumed).collect();
            match event {
                Event::NeedMore => break,
                Event::Head { stream, ended } => {
                    let head = &self.machine.head;
                    let spans = self.machine.head_bytes();
                    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                    let got = self.got.get_mut(&stream).unwrap();
                    (got.status, got.ended) = (self.machine.status.code(), ended);
                    for field in &head.fields {
                        got.fields +=
                            &format!("{}: {}\n", text(field.name.of(spans)), text(field.value.of(spans)));
                    }
                }
                Event::Data { stream, data, ended } => {
                    let got = self.got.get_mut(&stream).unwrap();
                    got.data.extend_from_slice(data.of(&bytes));
                    got.ended |= ended;
                    if !self.stalled.contains(&stream) {
                        self.machine.grant(stream, data.len());
                    }
                }
                Event::Reset { stream, code } => self.got.get_mut(&stream).unwrap().reset = Some(code),
                _ => {}
            }
        }
        self.flush();
    }

    fn take(&mut self, id: u32, len: usize) -> Vec<u8> {
        self.wait(|streams| streams.got[&id].data.len() >= len);
        self.got.get_mut(&id).unwrap().data.drain(..len).collect()
    }

    /// Receives the next frame: its first byte and its payload.
    fn next(&mut self, id: u32) -> (u8, Vec<u8>) {
        let head = self.take(id, 2);
        let len = match head[1] {
            126 => self.take(id, 2).iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)),
            127 => self.take(id, 8).iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)),
            len => usize::from(len),
        };
        (head[0], self.take(id, len))
    }

    /// Receives a message in any number of frames.
    pub(crate) fn message(&mut self, id: u32) -> Vec<u8> {
        let mut message = Vec::new();
        loop {
            let (first, payload) = self.next(id);
            message.extend(payload);
            if first & FIN != 0 {
                return message;
            }
        }
    }

    #[track_caller]
    fn closed(&mut self, id: u32) -> (u16, String) {
        let (first, payload) = self.next(id);
        assert_eq!(first, FIN | CLOSE, "{payload:?}");
        (u16::from_be_bytes([payload[0], payload[1]]), String::from_utf8(payload[2..].to_vec()).unwrap())
    }

    /// Asserts that the stream ends without further data.
    fn ended(&mut self, id: u32) {
        self.wait(|streams| streams.got[&id].ended);
        assert_eq!(self.got[&id].data, b"");
    }
}

/// Encodes a masked frame; `first` is the first byte: FIN, reserved bits and opcode.
pub(crate) fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    match payload.len() {
        len @ 0..126 => bytes.push(0x80 | len as u8),
        len @ 126..65_536 => {
            bytes.push(0x80 | 126);
            bytes.extend_from_slice(&(len as u16).to_be_bytes());
        }
        len => {
            bytes.push(0x80 | 127);
            bytes.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
    let mask = [7, 77, 177, 27];
    bytes.extend_from_slice(&mask);
    bytes.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    bytes
}

#[test]
fn messages_go_both_ways_on_several_streams() {
    let rig = python(|_| {});
    let mut client = Streams::to(&rig);
    let fields = "sec-websocket-version: 13\r\nsec-websocket-protocol: other, chat\r\n\
                  sec-websocket-extensions: permessage-deflate\r\n";
    let one = client.ask("/version", "websocket", fields);
    assert_eq!(
        client.message(one),
        b"2 ['other', 'chat'] connection host sec-websocket-extensions sec-websocket-protocol sec-websocket-version upgrade"
    );
    let said = client.got[&one].fields.clone();
    assert_eq!(client.got[&one].status, 200, "{said}");
    for line in [
        "sec-websocket-protocol: chat",
        "sec-websocket-extensions: permessage-deflate",
        "x-app: yes",
        "date: ",
    ] {
        assert!(said.contains(line), "{line} in {said}");
    }
    for line in ["upgrade", "connection", "sec-websocket-accept", "x-of-its-own"] {
        assert!(!said.contains(line), "{line} in {said}");
    }
    let other = client.open("/");
    client.send(one, frame(FIN | TEXT, "grüß".as_bytes()));
    client.send(other, frame(FIN | BINARY, &[0, 255]));
    assert_eq!(client.next(other), (FIN | BINARY, vec![0, 255]));
    assert_eq!(client.next(one), (FIN | TEXT, "grüß".as_bytes().to_vec()));
    // A ping between the fragments of a message, byte by byte, followed by more than a window of data.
    let pieces =
        [frame(TEXT, b"one "), frame(FIN | PING, b"?"), frame(0, b"two "), frame(FIN, b"three")].concat();
    pieces.iter().for_each(|byte| client.send(other, [*byte]));
    assert_eq!(client.next(other), (FIN | PONG, b"?".to_vec()));
    assert_eq!(client.next(other), (FIN | TEXT, b"one two three".to_vec()));
    let long: Vec<u8> = (0..1_500_000u32).map(|at| (at % 251) as u8).collect();
    client.send(other, frame(FIN | BINARY, &long));
    assert!(client.message(other) == long);
    // "Hello" compressed.
    client.send(one, frame(FIN | 0x40 | TEXT, &[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00]));
    assert_eq!(client.next(one), (FIN | TEXT, b"Hello".to_vec()));
    client.send(one, frame(FIN | CLOSE, &[&3000u16.to_be_bytes()[..], b"bye"].concat()));
    assert_eq!(client.closed(one), (3000, "bye".into()));
    rig.logged("/version received 3000 'bye'");
    client.ended(one);
    // Other streams and the connection remain open.
    client.send(other, frame(FIN | TEXT, b"still there"));
    assert_eq!(client.next(other).1, b"still there");
}

#[test]
fn refused_handshake_yields_a_response() {
    let rig = python(|_| {});
    let mut client = Streams::to(&rig);
    let version = "sec-websocket-version: 13\r\n";
    for (path, protocol, fields, status) in [
        ("/refuse", "websocket", version, 403),
        ("/teapot", "websocket", version, 418),
        ("/silent", "websocket", version, 500),
        ("/", "websocket", "sec-websocket-version: 8\r\n", 426),
        ("/", "websocket", "", 426),
        // The application does not respond to this, which it sees as an ordinary request.
        ("/", "connect-udp", version, 500),
        // Status 0 is a reset, because the request is malformed.
        ("", "websocket", version, 0),
        ("/", "web socket", version, 0),
        ("/", "websocket", "content-length: 5\r\nsec-websocket-version: 13\r\n", 0),
    ] {
        assert_eq!(client.status(path, protocol, fields), status, "{path} {protocol} {fields}");
    }
    let id = client.ask("/teapot", "websocket", version);
    assert_eq!(client.take(id, 15), b"short and stout");
    client.ended(id);
}

#[test]
fn ends_of_streams_and_of_the_application_close_sockets() {
    let rig = python(|_| {});
    let mut client = Streams::to(&rig);
    // An end of the stream without a close, a reset, and the end of the connection count as disconnects.
    let ended = client.open("/ended");
    client.machine.data(ended, b"", true, &mut client.out);
    client.flush();
    rig.logged("/ended received 1006");
    client.ended(ended);
    let reset = client.open("/ticker");
    client.next(reset);
    client.machine.reset(reset, ErrorCode::CANCEL);
    client.flush();
    rig.logged("the ticker ends");
    for (path, expected) in [
        ("/close", (4001, "enough".to_owned())),
        ("/return", (1000, String::new())),
        ("/fail", (1011, String::new())),
    ] {
        let id = client.open(path);
        assert_eq!(client.closed(id), expected, "{path}");
        client.send(id, frame(FIN | CLOSE, &expected.0.to_be_bytes()));
        client.ended(id);
    }
    client.open("/gone");
    drop(client);
    rig.logged("/gone received 1006");
    until("the memory is given back", || rig.memory.held_bytes() == 0);
}

#[test]
fn silent_client_is_pinged_and_closed() {
    let rig = python(|options| options.settings.websockets.idle = Duration::from_millis(4_000));
    let mut client = Streams::to(&rig);
    let id = client.open("/silent-client");
    assert_eq!(client.next(id), (FIN | PING, vec![]));
    assert_eq!(client.closed(id).0, 1001);
    rig.logged("/silent-client received 1006");
}

#[test]
fn reload_and_drain_close_sockets_on_streams() {
    let rig = python(|options| options.settings.websockets.idle = Duration::from_millis(3_600_000));
    let mut client = Streams::to(&rig);
    let sockets: Vec<_> = (0..10).map(|_| client.open("/")).collect();
    rig.app.reload();
    for id in sockets {
        assert_eq!(client.closed(id).0, 1012);
        client.send(id, frame(FIN | CLOSE, &1012u16.to_be_bytes()));
        client.ended(id);
    }
    let sockets: Vec<_> = (0..10).map(|_| client.open("/")).collect();
    rig.drain();
    for id in sockets {
        assert_eq!(client.closed(id).0, 1001);
    }
}

/// A client that does not read one stream blocks only that stream's application.
#[test]
fn unread_stream_is_bounded_and_does_not_block_others() {
    let rig = python(|_| {});
    let mut client = Streams::to(&rig);
    client.stalled.push(1);
    let many = client.open("/many");
    let other = client.open("/");
    assert_eq!(many, 1);
    // The window of the stream is exhausted.
    client.wait(|streams| streams.got[&many].data.len() >= 65_536);
    for n in 0..50u8 {
        client.send(other, frame(FIN | TEXT, &[b'a' + n % 26; 1000]));
        assert_eq!(client.next(other).1, [b'a' + n % 26; 1000]);
    }
    let held = rig.memory.held_bytes();
    assert!(held < 1 << 20, "{held} bytes are held");
    assert!(!rig.log().contains("/many sent"), "{}", rig.log());
    client.stalled.clear();
    let unread = client.got[&many].data.len();
    client.machine.grant(many, unread);
    let mut sum = 0;
    while sum < 20_000_000 {
        sum += client.next(many).1.len();
    }
    assert_eq!(sum, 20_000_000);
    rig.logged("/many sent");
}

/// Each socket has its own budget of frames without content.
#[test]
fn ping_flood_closes_only_its_own_socket() {
    let rig = python(|_| {});
    let mut client = Streams::to(&rig);
    let loud = client.open("/loud");
    let other = client.open("/");
    let pings = frame(FIN | PING, b"?").repeat(1_000);
    for _ in 0..1_000 {
        client.send(loud, &pings);
        if client.got[&loud].ended || client.got[&loud].reset.is_some() {
            break;
        }
    }
    rig.logged("/loud received 1008");
    client.wait(|streams| streams.got[&loud].ended || streams.got[&loud].reset.is_some());
    client.send(other, frame(FIN | TEXT, b"well"));
    assert_eq!(client.next(other), (FIN | TEXT, b"well".to_vec()));
    let held = rig.memory.held_bytes();
    assert!(held < 1 << 20, "{held} bytes are held");
}
