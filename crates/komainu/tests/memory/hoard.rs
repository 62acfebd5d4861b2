//! Clients that send large amounts of data and read nothing: the server's memory meanwhile and afterwards.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use crate::hosted::{folder, logged, only, start};
use crate::rig;
use crate::rig::{Folder, Rig, connect, eventually};

/// Bound for one client: twice the buffers of a connection, and the allocator's overhead.
const BOUND_BYTES: u64 = 64 << 20;
/// Bytes that a client sends unless the server stops reading.
const POURED_BYTES: usize = 256 << 20;
/// Time without progress after which the server counts as no longer reading.
const STUCK: Duration = Duration::from_secs(2);

const SOCKETS: &str = r#"
async def app(scope, receive, send):
    if scope["type"] != "websocket":
        return
    await receive()
    await send({"type": "websocket.accept"})
    if scope["path"] == "/many":
        for at in range(4000):
            await send({"type": "websocket.send", "bytes": bytes(100_000)})
    while True:
        event = await receive()
        if event["type"] == "websocket.disconnect":
            print("disconnected", event["code"], flush=True)
            return
        if scope["path"] == "/echo":
            await send({"type": "websocket.send", "bytes": event.get("bytes") or event["text"].encode()})
"#;

fn resident_bytes(rig: &Rig) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{}/statm", rig.child.id())).unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Sends `piece` repeatedly without reading until the server closes, stops reading, or has accepted
/// `POURED_BYTES`. Returns the peak growth of the server's memory.
fn pour(rig: &Rig, stream: &mut TcpStream, piece: &[u8]) -> u64 {
    let before = resident_bytes(rig);
    let mut most = 0;
    let mut sent = 0;
    stream.set_write_timeout(Some(STUCK)).unwrap();
    while sent < POURED_BYTES {
        match stream.write(piece) {
            Ok(0) => break,
            // Completes a frame or request that was cut off.
            Ok(len) if len < piece.len() && stream.write_all(&piece[len..]).is_err() => break,
            Ok(_) => sent += piece.len(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
        most = most.max(resident_bytes(rig).saturating_sub(before));
        assert!(most < BOUND_BYTES, "{} MiB more after {} MiB", most >> 20, sent >> 20);
    }
    most
}

/// Waits until the memory has been released.
fn given_back(rig: &Rig, before: u64) {
    eventually("the memory comes back", || resident_bytes(rig) < before + BOUND_BYTES / 2);
}

fn sockets(more: &str) -> Rig {
    let app = format!("asgi = \"sockets.py:app\"\nworkers = 1\n{more}");
    start(folder("sockets.py", SOCKETS), &format!("threads = 1\n{}", only(&app)))
}

fn open(rig: &Rig, path: &str, fields: &str) -> TcpStream {
    let mut stream = connect(rig.address);
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{fields}\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let mut byte = [0];
    while !answer.ends_with(b"\r\n\r\n") {
        assert_eq!(stream.read(&mut byte).unwrap(), 1);
        answer.push(byte[0]);
    }
    assert!(answer.starts_with(b"HTTP/1.1 101"), "{:?}", String::from_utf8_lossy(&answer));
    stream
}

/// A masked frame with a payload of up to 125 bytes.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first, 0x80 | payload.len() as u8, 1, 2, 3, 4];
    bytes.extend(payload.iter().zip([1, 2, 3, 4].iter().cycle()).map(|(byte, mask)| byte ^ mask));
    bytes
}

#[test]
fn websocket_ping_flood_is_closed_within_memory_bound() {
    let rig = sockets("");
    let mut stream = open(&rig, "/", "");
    let before = resident_bytes(&rig);
    pour(&rig, &mut stream, &frame(0x89, &[b'x'; 125]).repeat(1000));
    logged(&rig, "disconnected 1008");
    drop(stream);
    given_back(&rig, before);
}

#[test]
fn floods_of_useless_websocket_frames_are_closed_with_1008() {
    let rig = sockets("");
    for (what, first, each) in [
        ("fragments of nothing", frame(0x01, b"x"), frame(0x00, b"")),
        ("pongs that nobody asked for", Vec::new(), frame(0x8a, b"")),
        ("pings", Vec::new(), frame(0x89, b"")),
    ] {
        let mut stream = open(&rig, "/", "");
        stream.write_all(&first).unwrap();
        pour(&rig, &mut stream, &each.repeat(10_000));
        // Unread bytes make the kernel reset the connection; the close frame was sent before.
        let answered = rig::read_to_close(&mut stream);
        let close = answered.windows(4).any(|bytes| bytes[0] == 0x88 && bytes[2..] == 1008u16.to_be_bytes());
        assert!(close, "{what}: {answered:?}");
    }
}

#[test]
fn unread_websocket_messages_hold_little_memory() {
    let rig = sockets("");
    let before = resident_bytes(&rig);
    // The application would send 400 MB.
    let mut stream = open(&rig, "/many", "");
    pour(&rig, &mut stream, &frame(0x82, &[b'x'; 125]).repeat(1000));
    let mut stream = open(&rig, "/echo", "");
    pour(&rig, &mut stream, &frame(0x82, &[b'x'; 125]).repeat(1000));
    drop(stream);
    given_back(&rig, before);
}

/// Messages of the maximum length that are never completed.
#[test]
fn memory_of_incomplete_messages_is_released() {
    let rig = sockets("");
    let before = resident_bytes(&rig);
    let len = (16 << 20) - 1;
    let mut bytes = vec![0x02, 0xff];
    bytes.extend((len as u64).to_be_bytes());
    bytes.extend(vec![0; 4 + len]);
    let mut streams: Vec<_> = (0..8).map(|_| open(&rig, "/", "")).collect();
    streams.iter_mut().for_each(|stream| stream.write_all(&bytes).unwrap());
    eventually("they are held", || resident_bytes(&rig) > before + 100 * (1 << 20));
    drop(streams);
    given_back(&rig, before);
}

/// Pipelines many requests whose responses are never read.
fn pipelined(config: &str, files: Folder, request: &str) {
    let rig = start(files, config);
    let before = resident_bytes(&rig);
    let mut stream = connect(rig.address);
    pour(&rig, &mut stream, request.repeat(200).as_bytes());
    drop(stream);
    given_back(&rig, before);
}

#[test]
fn unread_pipelined_responses_hold_little_memory() {
    let long = "x".repeat(1000);
    let config = format!(
        r#"
        threads = 1

        [[route]]
        path = "/r/*"
        redirect = "/{long}"

        [[route]]
        path = "/s/*"
        respond = {{ status = 200, body = "{long}" }}

        [[route]]
        files = "www"
        "#
    );
    for request in [
        "GET /absent HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /r/x HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /s/x HTTP/1.1\r\nHost: a\r\n\r\n",
        "HEAD /a HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /a HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST /s/x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx",
        "POST /s/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
    ] {
        let files = Folder::new();
        files.write("www/a", "A".repeat(10_000));
        pipelined(&config, files, request);
    }
}

#[test]
fn unread_application_responses_hold_little_memory() {
    let app = "async def app(scope, receive, send):\n    if scope['type'] != 'http':\n        return\n    \
        await send({'type': 'http.response.start', 'status': 200, 'headers': []})\n    \
        await send({'type': 'http.response.body', 'body': b'x' * 10000})\n";
    let config = format!("threads = 1\n{}", only("asgi = \"a.py:app\"\nworkers = 1"));
    pipelined(&config, folder("a.py", app), "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
}

/// Starts an upstream server that answers each connection with `first`, then repeats `more` endlessly.
fn endless(first: &'static [u8], more: &'static [u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let more = more.repeat(64 * 1024 / more.len());
            let mut sent = stream.write_all(first);
            while sent.is_ok() {
                sent = stream.write_all(&more);
            }
        }
    });
    port
}

/// An upstream server that sends more than its client reads: interim responses, a response body, data after
/// an upgrade.
#[test]
fn endless_upstream_responses_hold_little_memory() {
    for (first, more) in [
        (&b"HTTP/1.1 103 Early Hints\r\n\r\n"[..], &b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n"[..]),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
            b"\x8a\x00",
        ),
    ] {
        let port = endless(first, more);
        let rig = start(
            Folder::new(),
            &format!(
                r#"
                threads = 1
                [[route]]
                proxy = "http://127.0.0.1:{port}"
                "#
            ),
        );
        let before = resident_bytes(&rig);
        let mut stream = connect(rig.address);
        let head = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
            Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        for _ in 0..30 {
            std::thread::sleep(Duration::from_millis(100));
            let more = resident_bytes(&rig).saturating_sub(before);
            assert!(more < BOUND_BYTES, "{} MiB more", more >> 20);
        }
        drop(stream);
        given_back(&rig, before);
    }
}

/// `count` zeros as the payload of a permessage-deflate message.
fn deflated_zeros(count: usize) -> Vec<u8> {
    let mut codec = flate2::Compress::new(flate2::Compression::best(), false);
    let mut bytes = Vec::with_capacity(count / 500 + 1024);
    codec.compress_vec(&vec![0; count], &mut bytes, flate2::FlushCompress::Sync).unwrap();
    assert!(bytes.ends_with(&[0, 0, 0xff, 0xff]));
    bytes.truncate(bytes.len() - 4);
    bytes
}

/// Zeros compressed 1000:1, in messages above and just below the size limit.
#[test]
fn inflated_messages_over_the_limit_are_closed_with_1009() {
    let rig = sockets("websockets = { message = \"1MiB\" }");
    let before = resident_bytes(&rig);
    let offer = "Sec-WebSocket-Extensions: permessage-deflate\r\n";
    let zeros = deflated_zeros(100 << 20);
    let mut bytes = vec![0xc2, 0xff];
    bytes.extend((zeros.len() as u64).to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend(zeros);
    let mut streams: Vec<_> = (0..20).map(|_| open(&rig, "/", offer)).collect();
    streams.iter_mut().for_each(|stream| stream.write_all(&bytes).unwrap());
    for stream in &mut streams {
        let answered = rig::read_to_close(stream);
        assert!(answered.windows(2).any(|code| code == 1009u16.to_be_bytes()), "{answered:?}");
        let more = resident_bytes(&rig).saturating_sub(before);
        assert!(more < BOUND_BYTES, "{} MiB more", more >> 20);
    }
    given_back(&rig, before);
}

/// Many concurrent messages below the limit that are never completed: their inflated size is counted as it
/// grows.
#[test]
fn inflated_size_counts_towards_memory_budget() {
    let app = "asgi = \"sockets.py:app\"\nworkers = 1\n";
    let config = format!(
        r#"
        threads = 1
        [limits]
        memory = "64MiB"
        {}
        "#,
        only(app)
    );
    let rig = start(folder("sockets.py", SOCKETS), &config);
    let offer = "Sec-WebSocket-Extensions: permessage-deflate\r\n";
    let mut streams: Vec<_> = (0..60).map(|_| open(&rig, "/", offer)).collect();
    let before = resident_bytes(&rig);
    // 15 MiB of zeros, in a frame without FIN.
    let zeros = deflated_zeros(15 << 20);
    let mut bytes = vec![0x42, 0xfe];
    bytes.extend((zeros.len() as u16).to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend(zeros);
    // The server may have closed the socket for lack of memory.
    streams.iter_mut().for_each(|stream| _ = stream.write_all(&bytes));
    let mut statuses = Vec::new();
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(100));
        let more = resident_bytes(&rig).saturating_sub(before);
        // The allocator retains outgrown buffers for a moment. If the bytes were not counted, growth would be
        // 900 MiB.
        assert!(more < (64 << 20) + BOUND_BYTES * 3, "{} MiB more", more >> 20);
        let mut other = connect(rig.address);
        other.write_all(b"GET /none HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        // A refused connection is closed at once, even while the client sends.
        let answer = rig::read_to_close(&mut other);
        statuses.push(String::from_utf8_lossy(&answer).chars().skip(9).take(3).collect::<String>());
    }
    // The application handles only WebSockets and answers requests with 500.
    assert!(statuses.iter().all(|status| ["500", "502", "503"].contains(&status.as_str())), "{statuses:?}");
    logged(&rig, "disconnected 1013");
    drop(streams);
    given_back(&rig, before);
}

fn status_meanwhile(rig: &Rig) -> String {
    let mut other = connect(rig.address);
    other.write_all(b"GET /none HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let answer = rig::read_to_close(&mut other);
    String::from_utf8_lossy(&answer).chars().skip(9).take(3).collect()
}

/// Unfinished messages that grow slowly and exhaust the budget: their connections are closed, the heaviest
/// first.
#[test]
fn slow_clients_that_exhaust_the_memory_budget_are_closed() {
    let app = "asgi = \"sockets.py:app\"\nworkers = 1\n";
    let config = format!(
        r#"
        threads = 1
        [limits]
        memory = "64MiB"
        {}
        "#,
        only(app)
    );
    let rig = start(folder("sockets.py", SOCKETS), &config);
    let mut streams: Vec<_> = (0..9).map(|_| open(&rig, "/", "")).collect();
    let head = [&[0x82, 0xff][..], &16_000_000u64.to_be_bytes(), &[0; 4]].concat();
    streams.iter_mut().for_each(|stream| stream.write_all(&head).unwrap());
    // Continues until requests are refused, but not until connections are no longer accepted.
    for round in 0..64 {
        let stream = &mut streams[round % 9];
        if stream.write_all(&[b'x'; 1_000_000]).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(150));
        if round > 50 && status_meanwhile(&rig) == "503" {
            break;
        }
    }
    assert_eq!(status_meanwhile(&rig), "503");
    let answered = (0..40).any(|_| {
        streams.iter_mut().for_each(|stream| _ = stream.write(b"x"));
        std::thread::sleep(Duration::from_millis(500));
        // The application handles only WebSockets, so no request gets a 200.
        status_meanwhile(&rig) != "503"
    });
    assert!(answered, "others are refused as long as these clients like");
    logged(&rig, "disconnected 1006");
}

/// An application that sends early hints endlessly to a client that does not read.
#[test]
fn unread_interim_responses_hold_little_memory() {
    let app = "async def app(scope, receive, send):\n    if scope['type'] != 'http':\n        return\n    \
        for _ in range(100_000):\n        \
        await send({'type': 'http.response.early_hint', 'links': [b'<x>; y=' + b'z' * 1000]})\n    \
        await send({'type': 'http.response.start', 'status': 200, 'headers': []})\n    \
        await send({'type': 'http.response.body', 'body': b'at last'})\n    print('at last', flush=True)\n";
    let config = format!("threads = 1\n{}", only("asgi = \"a.py:app\"\nworkers = 1"));
    let rig = start(folder("a.py", app), &config);
    let before = resident_bytes(&rig);
    let mut stream = connect(rig.address);
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    // Memory grows if all hints are kept; otherwise the application waits.
    for _ in 0..50 {
        std::thread::sleep(Duration::from_millis(100));
        let more = resident_bytes(&rig).saturating_sub(before);
        assert!(more < BOUND_BYTES, "{} MiB more", more >> 20);
        if rig.reported().contains("at last") {
            break;
        }
    }
}
