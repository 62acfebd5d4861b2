//! WebSockets of an ASGI application: byte-level exchanges, and malicious clients.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use crate::rig;
use crate::rig::{Client, Rig, modules, run_event_loop, until};
use apps::{Options, Workers};

const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
const FIN: u8 = 0x80;

fn python(adapt: impl FnOnce(&mut Options)) -> Rig {
    let worker = modules("python").join("worker.py");
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/sockets.py");
    let mut options =
        Options::new("chat", vec!["python3".into(), worker.into(), "asgi".into(), place.into()]);
    options.workers = Workers { min: 1, max: 1 };
    options.settings.timeouts.stop = Duration::from_millis(5_000);
    run_event_loop(&mut options, 100);
    options.settings.websockets.message_bytes_max = 1_000_000;
    adapt(&mut options);
    Rig::start(options)
}

fn ask(client: &mut Client, path: &str, fields: &str) -> String {
    client.send(format!(
        "GET {path} HTTP/1.1\r\nHost: chat.example\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{fields}\r\n"
    ));
    client.through("\r\n\r\n")
}

/// Opens a WebSocket.
fn open(rig: &Rig, path: &str) -> Client {
    let mut client = rig.connect();
    let head = ask(&mut client, path, "");
    assert!(head.starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "{head}");
    client
}

/// Encodes a masked frame; `first` is the first byte: FIN, reserved bits and opcode.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
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

/// Receives the next frame: its first byte and its payload.
fn next(client: &mut Client) -> (u8, Vec<u8>) {
    let head = client.take(2);
    let len = match head[1] {
        126 => client.take(2).iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)),
        127 => client.take(8).iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)),
        len => usize::from(len),
    };
    (head[0], client.take(len))
}

/// Receives a close frame: its code and reason.
#[track_caller]
fn closed(client: &mut Client) -> (u16, String) {
    let (first, payload) = next(client);
    assert_eq!(first, FIN | CLOSE, "{payload:?}");
    (u16::from_be_bytes([payload[0], payload[1]]), String::from_utf8(payload[2..].to_vec()).unwrap())
}

/// Asserts that the connection ends without further data.
fn ended(client: &mut Client) {
    assert!(!client.more(), "the connection ends");
}

#[test]
fn messages_go_both_ways() {
    let rig = python(|_| {});
    let mut client = rig.connect();
    let head = ask(&mut client, "/", "Sec-WebSocket-Protocol: other, chat\r\n");
    for line in [
        "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",
        "Sec-WebSocket-Protocol: chat",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "x-app: yes",
    ] {
        assert!(head.lines().any(|other| other.eq_ignore_ascii_case(line)), "{line} in {head}");
    }
    assert!(!head.contains("x-of-its-own"), "{head}");
    client.send(frame(FIN | TEXT, "grüß".as_bytes()));
    assert_eq!(next(&mut client), (FIN | TEXT, "grüß".as_bytes().to_vec()));
    client.send(frame(FIN | BINARY, &[0, 255]));
    assert_eq!(next(&mut client), (FIN | BINARY, vec![0, 255]));
    // A ping between the fragments of a message, byte by byte.
    let pieces =
        [frame(TEXT, b"one "), frame(FIN | PING, b"?"), frame(0, b"two "), frame(FIN, b"three")].concat();
    for byte in pieces {
        client.send([byte]);
        client.stream.flush().unwrap();
    }
    assert_eq!(next(&mut client), (FIN | PONG, b"?".to_vec()));
    assert_eq!(next(&mut client), (FIN | TEXT, b"one two three".to_vec()));
    client.send(frame(FIN | CLOSE, &[&3000u16.to_be_bytes()[..], b"bye"].concat()));
    assert_eq!(closed(&mut client), (3000, "bye".into()));
    rig.logged("/ received 3000 'bye'");
    ended(&mut client);
}

#[test]
fn unread_messages_block_only_their_own_application() {
    let rig = python(|_| {});
    let mut client = open(&rig, "/");
    let long = vec![b'x'; 900_000];
    client.send(frame(FIN | BINARY, &long));
    let mut back = Vec::new();
    let mut first = 0;
    while first & FIN == 0 {
        let (byte, payload) = next(&mut client);
        first = byte;
        back.extend(payload);
    }
    assert!(back == long);
    // Twenty megabytes that the client does not read at first: only their application blocks.
    let mut many = open(&rig, "/many");
    client.send(frame(FIN | TEXT, b"still there"));
    assert_eq!(next(&mut client).1, b"still there");
    let mut sum = 0;
    while sum < 20_000_000 {
        sum += next(&mut many).1.len();
    }
    assert_eq!(sum, 20_000_000);
}

#[test]
fn application_closes_sockets_with_its_code() {
    let rig = python(|_| {});
    for (path, expected) in [
        ("/close", (4001, "enough".to_owned())),
        ("/long-reason", (4002, "ü".repeat(61))),
        ("/return", (1000, String::new())),
        ("/fail", (1011, String::new())),
    ] {
        let mut client = open(&rig, path);
        assert_eq!(closed(&mut client), expected, "{path}");
        client.send(frame(FIN | CLOSE, &expected.0.to_be_bytes()));
        ended(&mut client);
    }
    rig.logged("ValueError: on purpose");
    rig.logged("/close received 4001 'enough'");
}

#[test]
fn refused_handshake_yields_a_response() {
    let rig = python(|_| {});
    let mut client = rig.connect();
    assert!(ask(&mut client, "/refuse", "").starts_with("HTTP/1.1 403"));
    let mut client = rig.connect();
    let head = ask(&mut client, "/teapot", "");
    assert!(head.starts_with("HTTP/1.1 418") && head.to_ascii_lowercase().contains("x-pot: tea"), "{head}");
    assert_eq!(client.take(15), b"short and stout");
    assert!(ask(&mut rig.connect(), "/silent", "").starts_with("HTTP/1.1 500"));
    rig.logged("before it accepted or refused");
    let plain = "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n";
    for (more, status) in [
        ("Sec-WebSocket-Version: 8\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", 426),
        ("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", 426),
        ("Sec-WebSocket-Version: 13\r\n", 400),
        ("Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: short\r\n", 400),
    ] {
        let mut client = rig.connect();
        client.send(format!("{plain}{more}\r\n"));
        assert_eq!(client.answer().status, status, "{more}");
    }
}

#[test]
fn invalid_frames_are_answered_with_close_codes() {
    let rig = python(|options| options.settings.websockets.message_bytes_max = 1000);
    let unmasked = vec![FIN | TEXT, 2, b'h', b'i'];
    let huge = [&[FIN | BINARY, 0xff][..], &(u64::MAX >> 1).to_be_bytes(), &[1, 2, 3, 4]].concat();
    for (what, bytes, code) in [
        ("a message too long", frame(FIN | BINARY, &[0; 1001]), 1009),
        ("fragments too long", [frame(BINARY, &[0; 600]), frame(FIN, &[0; 600])].concat(), 1009),
        ("a length out of this world", huge, 1009),
        ("no UTF-8", frame(FIN | TEXT, &[0xc3, 0x28]), 1007),
        ("no mask", unmasked, 1002),
        ("a reserved bit", frame(FIN | 0x40 | TEXT, b"x"), 1002),
        ("a reserved kind", frame(FIN | 3, b"x"), 1002),
        ("a reserved control kind", frame(FIN | 11, b"x"), 1002),
        ("a ping in fragments", frame(PING, b"x"), 1002),
        ("a long ping", frame(FIN | PING, &[0; 126]), 1002),
        ("a fragment of nothing", frame(FIN, b"x"), 1002),
        ("a message within a message", [frame(TEXT, b"x"), frame(FIN | TEXT, b"y")].concat(), 1002),
    ] {
        let mut client = open(&rig, "/");
        client.send(bytes);
        // Further bytes must not be parsed as frames.
        client.send([0xff; 200]);
        assert_eq!(closed(&mut client).0, code, "{what}");
        drop(client);
        rig.logged(&format!("/ received {code}"));
    }
    assert!(!rig.log().contains("Error"), "{}", rig.log());
    let mut client = open(&rig, "/");
    client.send(frame(FIN | TEXT, b"well"));
    assert_eq!(next(&mut client).1, b"well");
}

#[test]
fn disconnected_and_idle_clients_are_reported_to_application() {
    let rig = python(|options| options.settings.websockets.idle = Duration::from_millis(1_000));
    drop(open(&rig, "/gone"));
    rig.logged("/gone received 1006");
    let mut silent = open(&rig, "/silent-client");
    assert_eq!(next(&mut silent), (FIN | PING, vec![]));
    assert_eq!(closed(&mut silent).0, 1001);
    rig.logged("/silent-client received 1006");
    // A client that is not read from does not count as idle while the application is busy.
    let mut unheard = open(&rig, "/asleep");
    for size in [1, 300_000, 2] {
        unheard.send(frame(FIN | BINARY, &vec![b'x'; size]));
    }
    let mut got = 0;
    while got < 300_003 {
        let (first, payload) = next(&mut unheard);
        assert_ne!(first, FIN | CLOSE, "{payload:?}");
        got += if first & 0xf > BINARY { 0 } else { payload.len() };
        if first == FIN | PING {
            unheard.send(frame(FIN | PONG, &payload));
        }
    }
}

#[test]
fn reload_and_drain_close_open_sockets() {
    let rig = python(|_| {});
    let worker = rig.ready(1);
    let mut first = open(&rig, "/");
    rig.app.reload();
    assert_eq!(closed(&mut first).0, 1012);
    drop(first);
    until("the new worker", || rig.pids("ready").first().is_some_and(|pid| *pid != worker[0]));
    let mut second = open(&rig, "/");
    rig.drain();
    assert_eq!(closed(&mut second).0, 1001);
    drop(second);
}

/// Idle sockets rarely wake up, but the shutdown must reach them immediately.
#[test]
fn idle_sockets_are_closed_immediately_on_drain_and_reload() {
    let rig = python(|options| options.settings.websockets.idle = Duration::from_millis(3_600_000));
    let mut clients: Vec<_> = (0..20).map(|_| open(&rig, "/")).collect();
    rig.drain();
    for client in &mut clients {
        assert_eq!(closed(client).0, 1001);
    }
    drop(clients);
    let rig = python(|options| options.settings.websockets.idle = Duration::from_millis(3_600_000));
    let mut client = open(&rig, "/");
    rig.app.reload();
    assert_eq!(closed(&mut client).0, 1012);
}

/// Only the last received ping is answered, once.
#[test]
fn only_the_last_of_many_pings_is_answered() {
    let rig = python(|_| {});
    let mut client = open(&rig, "/");
    let pings: Vec<u8> = (0..200u8).flat_map(|at| frame(FIN | PING, &[at])).collect();
    client.send([pings, frame(FIN | TEXT, b"well")].concat());
    let mut pongs = 0;
    let mut last = 0;
    loop {
        match next(&mut client) {
            (first, payload) if first == FIN | PONG => (pongs, last) = (pongs + 1, payload[0]),
            (first, payload) => break assert_eq!((first, payload), (FIN | TEXT, b"well".to_vec())),
        }
    }
    assert_eq!(last, 199);
    assert!(pongs < 100, "{pongs}");
}

#[test]
fn compressed_messages_are_exchanged() {
    const COMPRESSED: u8 = 0x40;
    let rig = python(|options| options.settings.websockets.message_bytes_max = 100_000);
    let offer = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n";
    let offered = || {
        let mut client = rig.connect();
        let head = ask(&mut client, "/", offer).to_ascii_lowercase();
        let agreed = "sec-websocket-extensions: permessage-deflate; server_no_context_takeover; client_no_context_takeover\r\n";
        assert!(head.contains(agreed), "{head}");
        client
    };
    let mut client = offered();
    // "Hello" in one frame, then in two with a ping between them, then an empty message.
    client.send(frame(FIN | COMPRESSED | TEXT, &[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00]));
    assert_eq!(next(&mut client), (FIN | TEXT, b"Hello".to_vec()));
    client.send(frame(COMPRESSED | TEXT, &[0xf2, 0x48]));
    client.send(frame(FIN | PING, b""));
    client.send(frame(FIN, &[0xcd, 0xc9, 0xc9, 0x07, 0x00]));
    assert_eq!(next(&mut client), (FIN | PONG, vec![]));
    assert_eq!(next(&mut client), (FIN | TEXT, b"Hello".to_vec()));
    client.send(frame(FIN | COMPRESSED | BINARY, &[0]));
    assert_eq!(next(&mut client), (FIN | BINARY, vec![]));
    // Long messages are compressed on the way back.
    client.send(frame(FIN | TEXT, &b"abcd".repeat(20_000)));
    let (first, payload) = next(&mut client);
    assert!(first & COMPRESSED != 0 && payload.len() < 2_000, "{first:x} {}", payload.len());
    for (what, bytes, code) in [
        ("what is no deflate", frame(FIN | COMPRESSED | TEXT, &[0xff; 50]), 1007),
        ("no UTF-8", frame(FIN | COMPRESSED | TEXT, &[0x00, 0x01, 0x00, 0xfe, 0xff, 0xff, 0x00]), 1007),
        (
            "fragments that begin again",
            [frame(COMPRESSED | TEXT, &[0xf2]), frame(FIN | COMPRESSED, &[0x48])].concat(),
            1002,
        ),
        ("blocks of nothing without end", frame(COMPRESSED | BINARY, &[0; 120_000]), 1009),
    ] {
        let mut client = offered();
        client.send(bytes);
        assert_eq!(closed(&mut client).0, code, "{what}");
    }
    let mut plain = open(&rig, "/");
    plain.send(frame(FIN | COMPRESSED | TEXT, &[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00]));
    assert_eq!(closed(&mut plain).0, 1002);
}

#[test]
fn compression_can_be_disabled() {
    let rig = python(|options| options.settings.websockets.compress = false);
    let head = ask(&mut rig.connect(), "/", "Sec-WebSocket-Extensions: permessage-deflate\r\n");
    assert!(head.starts_with("HTTP/1.1 101") && !head.contains("deflate"), "{head}");
}

#[test]
fn a_worker_that_dies_ends_its_sockets() {
    let rig = python(|_| {});
    let worker = rig.ready(1);
    let mut client = open(&rig, "/");
    assert!(rig::kill(worker[0], "-KILL"));
    assert_eq!(closed(&mut client).0, 1011);
}

/// The server drops a client that reads nothing; the application must not wait for it any longer.
#[test]
fn client_that_reads_nothing_does_not_block_the_application() {
    let rig = python(|options| {
        options.settings.websockets.idle = Duration::from_millis(1_000);
        options.settings.timeouts.request = Duration::from_millis(15_000);
    });
    let client = open(&rig, "/many");
    rig.logged("/many received 1006");
    drop(client);
}

/// A worker at its concurrency limit accepts no requests, but still handles commands.
#[test]
fn worker_at_its_concurrency_limit_exits_when_asked() {
    let rig = python(|options| {
        options.settings.concurrency = 2;
        options.settings.timeouts.stop = Duration::from_millis(30_000);
        options.settings.recycle.age = Some(Duration::from_millis(2_000));
    });
    let worker = rig.ready(1)[0];
    let mut clients = [open(&rig, "/one"), open(&rig, "/two")];
    until("its successor", || rig.pids("ready").first().is_some_and(|pid| *pid != worker));
    for client in &mut clients {
        client.stream.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
        assert_eq!(closed(client).0, 1012);
    }
}

/// An application that only sends learns of the disconnect when it sends.
#[test]
fn application_that_only_sends_learns_of_the_disconnect() {
    let rig = python(|_| {});
    let mut gone = open(&rig, "/ticker");
    assert_eq!(next(&mut gone).1, b"tick");
    drop(gone);
    rig.logged("the ticker ends: Gone");
    let mut polite = open(&rig, "/ticker");
    polite.send(frame(FIN | CLOSE, &1000u16.to_be_bytes()));
    while next(&mut polite).0 != FIN | CLOSE {}
    ended(&mut polite);
    until("its end", || rig.log().matches("the ticker ends").count() == 2);
}

/// Buffered output for the client can never be sent and must not block anything.
#[test]
fn client_reset_with_unread_data_does_not_block_others() {
    let rig = python(|options| options.settings.answer_ahead_bytes = 64 << 20);
    let client = open(&rig, "/many");
    // The application has sent everything and waits.
    rig.logged("/many sent");
    // Closing a socket with unread data sends a reset.
    assert_eq!(client.stream.peek(&mut [0]).unwrap(), 1);
    drop(client);
    let mut other = open(&rig, "/");
    other.stream.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
    other.send(frame(FIN | TEXT, b"still there"));
    assert_eq!(next(&mut other).1, b"still there");
    rig.logged("/many received 1006");
}
