//! The table of docs/security.md for WebSockets, tunnels and connections taken over by an application:
//! memory.

use std::io::{Read, Write};
use std::net::TcpListener;

use crate::bounds::{Client, bytes, compressed_zeros, hold};
use crate::hosted;
use crate::rig::{Folder, Rig, as_we_are, installed};
use bench::attack::wire::{
    END_HEADERS, INITIAL_WINDOW_SIZE, client_start, frame, kind, push_literal, stream_id, window_update,
};

const PLAIN: &str = r#"
    threads = 1
    [limits]
    memory = "8GiB"
"#;
const UPGRADE: &str = "GET /echo HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n";

/// Accepts WebSockets; then receives and does nothing, or sends endlessly.
const SOCKETS: &str = r#"
async def app(scope, receive, send):
    if scope["type"] != "websocket":
        return
    await receive()
    await send({"type": "websocket.accept"})
    if b"x-sends" in dict(scope["headers"]):
        while True:
            await send({"type": "websocket.send", "bytes": bytes(100_000)})
    while (await receive())["type"] != "websocket.disconnect":
        pass
"#;

fn sockets(more: &str) -> Rig {
    let app = format!("asgi = \"sockets.py:app\"\nworkers = 1\n{more}");
    hosted::start(hosted::folder("sockets.py", SOCKETS), &format!("{PLAIN}{}", hosted::only(&app)))
}

fn open(rig: &Rig, fields: &str) -> Client {
    let client = Client::new(rig);
    client.ask(&format!("{UPGRADE}{fields}\r\n"))
}

fn push(client: &mut Client) {
    client.push();
}

/// Head of a frame with a zero mask.
fn head(first: u8, len: usize) -> Vec<u8> {
    let mut bytes = vec![first];
    match len {
        0..126 => bytes.push(0x80 | len as u8),
        _ => {
            bytes.push(0xff);
            bytes.extend((len as u64).to_be_bytes());
        }
    }
    bytes.extend([0; 4]);
    bytes
}

#[test]
fn idle_websockets_stay_within_bounds() {
    let rig = sockets("");
    drop(hold(&rig, "WebSocket, idle", 300, || open(&rig, ""), push));
}

#[test]
fn incomplete_websocket_messages_stay_within_bounds() {
    let rig = sockets("");
    let mut message = head(0x02, (16 << 20) - 1);
    message.extend(vec![b'x'; (16 << 20) - 1]);
    let message = bytes(message);
    let long = || open(&rig, "").sends(&message);
    drop(hold(&rig, "WebSocket, message under way", 8, long, push));
    let rig = sockets("");
    let zeros = compressed_zeros(1_000);
    let compressed = bytes([head(0x42, zeros.len() + 100), zeros].concat());
    let offer = "Sec-WebSocket-Extensions: permessage-deflate\r\n";
    let short = || open(&rig, offer).sends(&compressed);
    drop(hold(&rig, "WebSocket, compressed message under way", 300, short, push));
}

#[test]
fn unread_websocket_messages_stay_within_bounds() {
    let rig = sockets("");
    let state = "WebSocket, the application sends and nothing is read";
    drop(hold(&rig, state, 50, || open(&rig, "X-Sends: yes\r\n"), push));
}

#[test]
fn websocket_messages_not_read_by_app_stay_within_bounds() {
    let rig = sockets("");
    let state = "WebSocket, messages to an application that does not read";
    let message = bytes([head(0x82, 125), vec![b'x'; 125]].concat().repeat(1_000));
    let open = || open(&rig, "X-Sends: yes\r\n").sends_without_end(&message);
    drop(hold(&rig, state, 50, open, push));
}

#[test]
fn inflating_websocket_messages_stay_within_bounds() {
    let rig = sockets("websockets = { message = \"1MiB\" }");
    let offer = "Sec-WebSocket-Extensions: permessage-deflate\r\n";
    let zeros = compressed_zeros(1_000_000);
    let bomb = bytes([head(0x42, zeros.len() + 1_000), zeros].concat());
    drop(hold(&rig, "WebSocket, messages that inflate", 20, || open(&rig, offer).sends(&bomb), push));
}

/// Requests for 100 WebSockets over one HTTP/2 connection with maximum windows; with `x-sends` if `sends`.
fn hundred(sends: bool) -> Vec<u8> {
    let mut sent = client_start(&[(INITIAL_WINDOW_SIZE, 0x7fff_ffff)]);
    sent.extend(window_update(0, 0x7fff_0000));
    let mut block = Vec::new();
    for (name, value) in [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "http"),
        (":authority", "a.test"),
        (":path", "/echo"),
        ("sec-websocket-version", "13"),
    ] {
        push_literal(&mut block, name.as_bytes(), value.as_bytes());
    }
    if sends {
        push_literal(&mut block, b"x-sends", b"yes");
    }
    sent.extend((0..100).flat_map(|at| frame(kind::HEADERS, END_HEADERS, stream_id(at), &block)));
    sent
}

#[test]
fn hundred_websockets_over_http2_stay_within_bounds() {
    let app = hosted::only("asgi = \"sockets.py:app\"\nworkers = 1\n");
    let start = || {
        let folder = hosted::folder("sockets.py", SOCKETS);
        let listen = "listen = { address = \"127.0.0.1:0\", h2c = true }\n";
        folder.write("komainu.toml", format!("{listen}{}{PLAIN}{app}", as_we_are()));
        let mut command = hosted::server();
        command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
        Rig::start(command, folder)
    };
    let rig = start();
    let idle = bytes(hundred(false));
    drop(hold(&rig, "HTTP/2, 100 WebSockets, idle", 5, || Client::new(&rig).sends(&idle), push));
    let rig = start();
    let noisy = hundred(true);
    let message = [head(0x82, 125), vec![b'x'; 125]].concat().repeat(18);
    let messages = (0..100).flat_map(|at| frame(kind::DATA, 0, stream_id(at), &message));
    let noisy = bytes([noisy, messages.collect()].concat());
    let state = "HTTP/2, 100 WebSockets, the application sends, nothing is read";
    drop(hold(&rig, state, 3, || Client::new(&rig).sends(&noisy), push));
}

#[test]
fn http2_websocket_bypasses_the_cache() {
    let app = r#"
        [[route]]
        app = "shop"
        cache = true
        [apps.shop]
        asgi = "sockets.py:app"
        workers = 1
    "#;
    let folder = hosted::folder("sockets.py", SOCKETS);
    let listen = "listen = { address = \"127.0.0.1:0\", h2c = true }\n";
    folder.write("komainu.toml", format!("{listen}{}{PLAIN}{app}", as_we_are()));
    let mut command = hosted::server();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let rig = Rig::start(command, folder);
    let mut stream = rig.connect();
    stream.write_all(&hundred(false)).unwrap();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        stream.read_exact(&mut payload).unwrap();
        if head[3] == kind::HEADERS {
            // Status 200 as an index into the HPACK static table.
            assert_eq!(payload[0], 0x88, "{payload:?}");
            break;
        }
    }
    assert!(!rig.reported().contains("panicked"), "{}", rig.reported());
}

/// Starts an upstream server that switches protocols, sends endlessly and reads nothing.
fn switches() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let _ = stream.read(&mut [0; 4096]);
                let head =
                    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
                let mut sent = stream.write_all(head.as_bytes());
                while sent.is_ok() {
                    sent = stream.write_all(&[b'x'; 64 * 1024]);
                }
            });
        }
    });
    port
}

#[test]
fn tunnels_with_unread_data_stay_within_bounds() {
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            {PLAIN}
            [[route]]
            proxy = "http://127.0.0.1:{}"
            "#,
            switches()
        ),
    );
    let noise = bytes(vec![b'x'; 64 * 1024]);
    let open = || open(&rig, "").sends_without_end(&noise);
    drop(hold(&rig, "tunnel to an upstream server, both sides send, none reads", 60, open, push));
}

const TAKES_OVER: &str = r#"
run lambda { |env|
  io = env["rack.hijack"].call
  Thread.new { io.write("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"); loop { io.write("x" * 65_536) } }
  [200, {}, []]
}
"#;

#[test]
fn hijacked_connections_with_unread_data_stay_within_bounds() {
    if installed("ruby").is_none() {
        return;
    }
    let app = hosted::only("rack = \"config.ru\"\nworkers = 1");
    let rig = hosted::start(hosted::folder("config.ru", TAKES_OVER), &format!("{PLAIN}{app}"));
    let noise = bytes(vec![b'x'; 64 * 1024]);
    let get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let open = || Client::new(&rig).ask(get).sends_without_end(&noise);
    let state = "connection that a Rack application has taken over, both send, none reads";
    drop(hold(&rig, state, 40, open, push));
}
