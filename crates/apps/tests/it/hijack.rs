//! Rack's full hijack: connections that an application takes over, and related cases.

use std::io::Write;
use std::net::Shutdown;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::rig::{Client, Rig, is_alive, modules, one_worker, until};
use crate::websocket_h2::{FIN, Streams, TEXT, frame};
use apps::{AppKind, Options};
use http2::ErrorCode;

/// Serves `tests/ruby/FILE` with one worker that handles one request at a time.
fn ruby(file: &str, adapt: impl FnOnce(&mut Options)) -> Rig {
    let worker = modules("ruby").join("worker.rb");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ruby").join(file);
    let mut options = Options::new("shop", vec!["ruby".into(), worker.into(), file.into()]);
    options.settings.timeouts.stop = Duration::from_millis(5_000);
    options.settings.kind = Some(AppKind::Rack(PathBuf::new()));
    options.settings.timeouts.tunnel = Duration::from_secs(600);
    one_worker(&mut options);
    adapt(&mut options);
    Rig::start(options)
}

fn open(rig: &Rig, path: &str) -> Client {
    let mut client = rig.connect();
    client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
    client.through("X-From: the-application\r\n\r\n");
    client
}

fn says(client: &mut Client, text: &str) {
    // Read the echo while sending the rest.
    let mut sends = client.stream.try_clone().unwrap();
    let bytes = text.as_bytes().to_vec();
    let sent = std::thread::spawn(move || sends.write_all(&bytes).unwrap());
    assert_eq!(client.take(text.len()), text.as_bytes());
    sent.join().unwrap();
}

#[test]
fn hijacked_connection_carries_both_directions_and_frees_worker() {
    let rig = ruby("hijack.ru", |_| {});
    let mut clients: Vec<_> = (0..20).map(|_| open(&rig, "/echo")).collect();
    rig.get("/").expect(200, "plain");
    for client in &mut clients {
        says(client, "hello");
        says(client, &"y".repeat(300_000));
    }
    rig.get("/").expect(200, "plain");
    // A half-close is passed on, and the data sent before it arrives.
    let mut client = clients.pop().unwrap();
    client.send("the last");
    client.stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.rest(), b"the last");
    rig.logged("echo ended");
    // A request with a body, followed immediately by more bytes.
    let mut client = rig.connect();
    client.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbodyand more");
    client.through("\r\n\r\n");
    assert_eq!(client.take(12), b"bodyand more");
}

#[test]
fn failures_after_hijack_close_only_the_hijacked_connection() {
    let rig = ruby("hijack.ru", |_| {});
    assert_eq!(open(&rig, "/twice").rest(), b"the request is over");
    assert_eq!(open(&rig, "/fail").rest(), b"before it failed");
    rig.logged("on purpose, after all");
    rig.get("/begun").expect(200, "true true");
    // The worker's death ends the connections that it has taken over, and no others.
    let first = rig.ready(1);
    assert_eq!(open(&rig, "/die").rest(), b"");
    until("another worker", || rig.pids("ready").first().is_some_and(|pid| *pid != first[0]));
    rig.get("/").expect(200, "plain");
}

/// An HTTP/2 connection is shared with other requests.
#[test]
fn http2_connection_cannot_be_hijacked() {
    let rig = ruby("hijack.ru", |_| {});
    let curl = |path: &str| {
        let url = format!("http://{}{path}", rig.address);
        let curl = std::process::Command::new("curl")
            .args(["-s", "--http2-prior-knowledge", "-w", " %{http_version} %{http_code}", &url])
            .output()
            .unwrap();
        String::from_utf8_lossy(&curl.stdout).into_owned()
    };
    // The environment states that hijacking is not available.
    assert_eq!(curl("/begun"), "false false 2 200");
    let unasked = curl("/unasked");
    assert!(unasked.ends_with(" 2 502"), "{unasked}");
    rig.logged("it wants to take over a connection of HTTP/2");
    rig.get("/").expect(200, "plain");
}

#[test]
fn hijack_passes_rack_lint() {
    let rig = ruby("hijack.ru", |options| options.env.push(("LINT".into(), "1".into())));
    says(&mut open(&rig, "/echo"), "through Rack::Lint");
    assert!(!rig.log().contains("Lint"), "{}", rig.log());
}

#[test]
fn hijacked_connection_that_is_never_read_or_closed_times_out() {
    let rig = ruby("hijack.ru", |options| options.settings.timeouts.tunnel = Duration::from_millis(500));
    let mut client = rig.connect();
    client.send("GET /never HTTP/1.1\r\nHost: a\r\n\r\n");
    // The buffers of both ends are filled, and no more is accepted.
    client.stream.set_nonblocking(true).unwrap();
    let mut sent = 0;
    let piece = vec![b'x'; 65_536];
    let stalled = loop {
        match client.stream.write(&piece) {
            Ok(len) => sent += len,
            Err(error) => break error,
        }
        assert!(sent < 64 << 20, "it is taken without end");
        std::thread::sleep(std::time::Duration::from_millis(1));
    };
    assert!(stalled.kind() == std::io::ErrorKind::WouldBlock, "{stalled}");
    client.stream.set_nonblocking(false).unwrap();
    // A reset, because unread data remains.
    assert!(client.rest().is_empty());
    rig.get("/").expect(200, "plain");
}

#[test]
fn client_that_does_not_read_blocks_the_hijacking_application() {
    let rig = ruby("hijack.ru", |_| {});
    let client = open(&rig, "/flood");
    rig.logged("the flood stands still");
    rig.get("/").expect(200, "plain");
    drop(client);
    rig.logged("flood ended after ");
    let log = rig.log();
    let count = log.split("flood ended after ").nth(1).unwrap().split_whitespace().next().unwrap();
    assert!(count.parse::<u64>().unwrap() < 64 << 20, "{count} bytes are taken without a reader");
}

#[test]
fn replaced_worker_keeps_its_hijacked_connections() {
    let rig = ruby("hijack.ru", |_| {});
    let first = rig.ready(1)[0];
    let mut client = open(&rig, "/echo");
    rig.app.reload();
    until("the next generation", || rig.pids("ready").first().is_some_and(|pid| *pid != first));
    rig.get("/").expect(200, "plain");
    says(&mut client, "still here");
    drop(client);
    until("the old worker leaves", || !is_alive(first));
    // A connection that is never closed stays open until the worker is killed.
    let second = rig.ready(1)[0];
    let mut client = rig.connect();
    client.send("GET /never HTTP/1.1\r\nHost: a\r\n\r\n");
    rig.get("/").expect(200, "plain");
    rig.app.reload();
    assert_eq!(client.rest(), b"");
    until("the old worker is killed", || !is_alive(second));
}

#[test]
fn disabled_hijack_yields_502() {
    let rig = ruby("hijack.ru", |options| options.settings.kind = None);
    assert_eq!(rig.get("/echo").status, 502);
    rig.get("/").expect(200, "plain");
}

#[test]
fn action_cable_works() {
    let rig = ruby("cable.ru", |_| {});
    let mut clients: Vec<_> = (0..3)
        .map(|_| {
            let mut client = rig.connect();
            client.send(
                "GET /cable HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                 Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
                 Sec-WebSocket-Protocol: actioncable-v1-json\r\nOrigin: http://a\r\n\r\n",
            );
            let head = client.through("\r\n\r\n");
            assert!(head.contains(" 101 ") && head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
            client.through("{\"type\":\"welcome\"}");
            client.send(masked(r#"{"command":"subscribe","identifier":"{\"channel\":\"EchoChannel\"}"}"#));
            client.through("confirm_subscription");
            client
        })
        .collect();
    rig.get("/").expect(200, "plain");
    clients[0].send(masked(
        r#"{"command":"message","identifier":"{\"channel\":\"EchoChannel\"}","data":"{\"action\":\"speak\",\"text\":\"to all\"}"}"#,
    ));
    for client in &mut clients {
        client.through("\"said\":\"to all\"");
    }
}

/// Returns a masked text frame of a client; the mask is all zeros.
fn masked(text: &str) -> Vec<u8> {
    let len = text.len();
    let head = match len {
        ..126 => vec![0x81, 0x80 | len as u8],
        _ => vec![0x81, 0x80 | 126, (len >> 8) as u8, len as u8],
    };
    [head, vec![0; 4], text.as_bytes().to_vec()].concat()
}

const VERSION: &str = "sec-websocket-version: 13\r\n";

/// Browsers open WebSockets over an existing HTTP/2 connection.
#[test]
fn action_cable_works_over_http2() {
    let rig = ruby("cable.ru", |_| {});
    let mut client = Streams::to(&rig);
    let fields =
        format!("{VERSION}sec-websocket-protocol: actioncable-v1-json\r\norigin: http://chat.example\r\n");
    let ids = [(); 3].map(|()| client.ask("/cable", "websocket", &fields));
    for id in ids {
        client.wait(|streams| streams.got[&id].status > 0);
        let said = client.got[&id].fields.clone();
        assert_eq!(client.got[&id].status, 200, "{said}");
        assert!(said.contains("sec-websocket-protocol: actioncable-v1-json"), "{said}");
        for line in ["upgrade", "connection", "sec-websocket-accept"] {
            assert!(!said.contains(line), "{line} in {said}");
        }
        assert_eq!(client.message(id), br#"{"type":"welcome"}"#);
        let subscribe = br#"{"command":"subscribe","identifier":"{\"channel\":\"EchoChannel\"}"}"#;
        client.send(id, frame(FIN | TEXT, subscribe));
        while !client.message(id).ends_with(br#""type":"confirm_subscription"}"#) {}
    }
    rig.get("/").expect(200, "plain");
    let speak = br#"{"command":"message","identifier":"{\"channel\":\"EchoChannel\"}","data":"{\"action\":\"speak\",\"text\":\"to all\"}"}"#;
    client.send(ids[0], frame(FIN | TEXT, speak));
    for id in ids {
        while !client.message(id).windows(15).any(|part| part == b"\"said\":\"to all\"") {}
    }
}

#[test]
fn http2_websocket_stream_is_hijacked_as_http1_handshake() {
    let rig = ruby("hijack.ru", |options| options.settings.timeouts.request = Duration::from_millis(1_000));
    let mut client = Streams::to(&rig);
    let own_key = format!("{VERSION}sec-websocket-key: the-client's-own\r\n");
    let id = client.ask("/switch", "websocket", &own_key);
    // A client's fields must not replace the server's key. Bytes after the head must arrive.
    client.wait(|streams| streams.got[&id].data.windows(2).any(|end| end == b"\n\n"));
    let seen = String::from_utf8(std::mem::take(&mut client.got.get_mut(&id).unwrap().data)).unwrap();
    assert_eq!(seen, "GET HTTP/1.1 Upgrade websocket 13 16\n\n");
    assert_eq!(client.got[&id].status, 200);
    assert!(client.got[&id].fields.contains("x-from: the-application"), "{}", client.got[&id].fields);
    for text in ["hello".to_owned(), "y".repeat(300_000)] {
        client.send(id, &text);
        client.wait(|streams| streams.got[&id].data.len() >= text.len());
        assert!(std::mem::take(&mut client.got.get_mut(&id).unwrap().data) == text.as_bytes());
    }
    // Responses other than 101 are passed on as a refusal; an invalid, late or endless head is an error of
    // the application.
    for (path, status) in [
        ("/refused", 403),
        ("/echo", 502),
        ("/early", 502),
        ("/closed", 502),
        ("/garbage", 502),
        ("/longhead", 502),
        ("/never", 504),
        // An ordinary response without a hijack: passing on its success would open a tunnel without a peer.
        ("/begun", 501),
    ] {
        assert_eq!(client.status(path, "websocket", VERSION), status, "{path}");
    }
    // Only WebSocket is translated to the HTTP/1.1 handshake.
    let other = client.ask("/unasked", "connect-udp", "");
    client.wait(|streams| streams.got[&other].status > 0);
    assert_eq!(client.got[&other].status, 502);
    client.send(id, "still there");
    client.wait(|streams| streams.got[&id].data == b"still there");
    // The end of the stream is passed on.
    client.machine.data(id, b"", true, &mut client.out);
    client.flush();
    rig.logged("echo ended");
}

#[test]
fn clients_leaving_before_the_handshake_hold_no_resources() {
    let rig = ruby("hijack.ru", |_| {});
    let mut client = Streams::to(&rig);
    let ids: Vec<_> = (0..20).map(|_| client.ask("/waits", "websocket", VERSION)).collect();
    rig.logged("waits: 20");
    // The worker is free, and the server waits for the response on the hijacked socket.
    rig.get("/").expect(200, "plain");
    for id in ids {
        client.machine.reset(id, ErrorCode::CANCEL);
    }
    client.flush();
    rig.logged("closed by the server: 20");
}
