//! Bytes that the access log and the metrics count: those that clients get, and of WebSockets those of both directions.

use std::fs;
use std::io::{Read, Write};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use bench::attack::wire::{AttackTarget, INITIAL_WINDOW_SIZE, client_start, window_update};

use crate::certified;
use crate::origin::Origin;
use crate::rig::h3_client::H3Client;
use crate::rig::{Rig, eventually, listener};

/// Size of the response: more than the buffers of the kernel and of QUIC.
const RESPONSE_BYTES: u64 = 60_000_000;
const CLIENT_BYTES_MAX: u64 = 40_000_000;

const HTTP3_HEAD: [(&str, &str); 1] = [(":authority", "a.test")];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Protocol {
    Http1,
    Http2,
    Http3,
}

const PROTOCOLS: [Protocol; 3] = [Protocol::Http1, Protocol::Http2, Protocol::Http3];

/// Starts an upstream server that tells when it has sent a whole response. Returns its URL.
fn upstream() -> (String, Receiver<()>) {
    let listener = listener();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (done, is_done) = channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|len| len > 0) {
                head.push(byte[0]);
            }
            let head =
                format!("HTTP/1.1 200 OK\r\nContent-Length: {RESPONSE_BYTES}\r\nConnection: close\r\n\r\n");
            let sent = stream.write_all(head.as_bytes());
            let piece = vec![b'x'; 1_000_000];
            let sent = sent
                .and_then(|()| (0..RESPONSE_BYTES / 1_000_000).try_for_each(|_| stream.write_all(&piece)));
            if sent.is_ok() {
                let _ = done.send(());
            }
        }
    });
    (url, is_done)
}

/// Starts a server that passes requests to `url`. The first address is for HTTP/1 and HTTP/2 without TLS.
fn serve(protocol: Protocol, url: &str) -> Rig {
    let listen = match protocol {
        Protocol::Http3 => "tls = true",
        _ => "h2c = true",
    };
    let text = format!(
        r#"
        listen = [{{ address = "127.0.0.1:0", {listen} }}]
        threads = 1
        control.listen = "unix:control.sock"
        [log]
        file = "access.log"
        access = "$status $request_bytes $body_bytes $fault"
        [[site]]
        hosts = ["a.test"]
        tls = {{ certificate = "a.test.pem", key = "a.test.key" }}
        [[site.route]]
        proxy = "{url}"
        "#
    );
    certified::start(certified::folder(&[("a.test", "ec")]), &text)
}

/// Waits for the only line of the log.
fn line(rig: &Rig) -> Vec<String> {
    let text = || fs::read_to_string(rig.folder.at("access.log")).unwrap_or_default();
    eventually("the log is written", || text().ends_with('\n'));
    let text = text();
    assert_eq!(text.lines().count(), 1, "{text}");
    text.trim_end().splitn(4, ' ').map(str::to_owned).collect()
}

fn counted(rig: &Rig, name: &str) -> u64 {
    let metrics = rig.metrics();
    let values = metrics.lines().filter(|line| line.starts_with(name) && !line.starts_with('#'));
    values.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64).sum()
}

/// Asks, waits until the server has the whole response, and then reads it or leaves.
fn ask(protocol: Protocol, rig: &Rig, is_done: &Receiver<()>, reads: bool) {
    if protocol == Protocol::Http3 {
        let mut client = H3Client::connect(rig.address, "a.test");
        client.reads = false;
        let id = client.send("GET", "/", &HTTP3_HEAD, b"");
        client.drive("the upstream server has sent everything", |_| is_done.try_recv().is_ok());
        if reads {
            client.reads = true;
            let response = client.finish(id);
            assert_eq!(response.content.len() as u64, RESPONSE_BYTES);
        } else {
            client.quic.close(Instant::now(), 0x100u32.into(), bytes::Bytes::new());
            client.turn();
        }
        return;
    }
    let mut stream = rig.connect();
    match protocol {
        Protocol::Http1 => {
            stream.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n").unwrap()
        }
        _ => {
            let target = AttackTarget { authority: "a.test".into(), path: "/".into(), is_https: false };
            let windows =
                [client_start(&[(INITIAL_WINDOW_SIZE, 0x7fff_ffff)]), window_update(0, 0x7fff_0000)].concat();
            stream.write_all(&[windows, target.get(1)].concat()).unwrap();
        }
    }
    is_done.recv().unwrap();
    let mut left = if reads { RESPONSE_BYTES } else { 0 };
    let mut piece = vec![0; 1 << 20];
    while left > 0 {
        let len = stream.read(&mut piece).unwrap() as u64;
        assert!(len > 0, "{left} bytes are missing");
        left = left.saturating_sub(len);
    }
    if reads && protocol == Protocol::Http2 {
        // Heads of frames are among the bytes, so some content is left.
        eventually("the log is written", || {
            rig.folder.at("access.log").metadata().is_ok_and(|file| file.len() > 0) || {
                stream.set_read_timeout(Some(std::time::Duration::from_millis(10))).unwrap();
                let _ = stream.read(&mut piece);
                false
            }
        });
    }
}

#[test]
fn response_that_waits_for_its_client_is_counted_as_far_as_it_is_delivered() {
    for protocol in PROTOCOLS {
        let (url, is_done) = upstream();
        let rig = serve(protocol, &url);
        ask(protocol, &rig, &is_done, false);
        let line = line(&rig);
        let bytes: u64 = line[2].parse().unwrap();
        assert!(line[0] == "200" && bytes < CLIENT_BYTES_MAX && line[3] != "-", "{protocol:?}: {line:?}");
        assert_eq!(counted(&rig, "komainu_http_response_body_bytes_total"), bytes, "{protocol:?}");
    }
}

#[test]
fn response_that_has_waited_for_its_client_is_counted_whole() {
    for protocol in PROTOCOLS {
        let (url, is_done) = upstream();
        let rig = serve(protocol, &url);
        ask(protocol, &rig, &is_done, true);
        assert_eq!(line(&rig), ["200", "0", &RESPONSE_BYTES.to_string(), "-"], "{protocol:?}");
        assert_eq!(counted(&rig, "komainu_http_response_body_bytes_total"), RESPONSE_BYTES, "{protocol:?}");
    }
}

/// An upstream server that accepts WebSockets, and sends everything back.
fn echo() -> Origin {
    Origin::start(|ask| {
        let key = ask.field("Sec-WebSocket-Key").concat();
        let accept = net::websocket::accept(key.as_bytes());
        format!(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Accept: {}\r\n\r\n",
            str::from_utf8(&accept).unwrap()
        )
    })
}

#[test]
fn bytes_of_websockets_are_counted_in_both_directions() {
    for protocol in [Protocol::Http1, Protocol::Http3] {
        let origin = echo();
        let rig = serve(protocol, &origin.url);
        let sent = [7; 5_000];
        if protocol == Protocol::Http3 {
            let mut client = H3Client::connect(rig.address, "a.test");
            let fields = [HTTP3_HEAD[0], (":protocol", "websocket"), ("sec-websocket-version", "13")];
            let id = client.open("CONNECT", "/", &fields);
            client.push(id, &sent, true);
            assert_eq!(client.finish(id).content, sent);
        } else {
            let mut stream = rig.connect();
            let head = "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
            // The first bytes come with the head.
            stream.write_all(&[head.as_bytes(), &sent[..1_000]].concat()).unwrap();
            stream.write_all(&sent[1_000..]).unwrap();
            let mut answer = Vec::new();
            let mut piece = [0; 4096];
            while !answer.ends_with(&sent) {
                let len = stream.read(&mut piece).unwrap();
                assert!(len > 0, "{}", answer.len());
                answer.extend_from_slice(&piece[..len]);
            }
            // Not before: a client that has closed its side gets no answer.
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(stream.read(&mut piece).unwrap(), 0);
        }
        let status = if protocol == Protocol::Http3 { "200" } else { "101" };
        assert_eq!(line(&rig), [status, "5000", "5000", "-"], "{protocol:?}");
        for name in ["komainu_http_request_body_bytes_total", "komainu_http_response_body_bytes_total"] {
            assert_eq!(counted(&rig, name), 5_000, "{protocol:?}: {name}");
        }
    }
}
