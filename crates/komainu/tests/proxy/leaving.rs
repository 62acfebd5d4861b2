//! Clients that disconnect before the response: their upstream requests are cancelled.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::net::sockopt;

use crate::origin::{Origin, ok};
use crate::rig::{Folder, Rig, as_we_are, eventually, komainu, text};

/// Starts an origin: `/silent` never answers, `/stream` begins a response and never ends it, other paths are
/// answered after a moment.
fn origin() -> Origin {
    Origin::start(|ask| match ask.line() {
        line if line.contains("/silent") => "HTTP/1.1 200 OK\r\n".to_owned(),
        line if line.contains("/stream") => {
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n\
             9\r\ndata: 1\n\n\r\n"
                .to_owned()
        }
        _ => {
            std::thread::sleep(Duration::from_millis(300));
            ok("late")
        }
    })
}

fn start(origin: &Origin, more: &str, route: &str) -> Rig {
    let folder = Folder::new();
    let text = format!(
        r#"
        {}
        threads = 1
        listen = {{ address = "127.0.0.1:0", h2c = true }}
        [[route]]
        proxy = {{ to = "{}"{more} }}
        {route}
        "#,
        as_we_are(),
        origin.url
    );
    folder.write("komainu.toml", text);
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    Rig::start(command, folder)
}

/// Sends a request and, for a stream, reads up to its first event.
fn ask(rig: &Rig, request: &str) -> TcpStream {
    let mut stream = rig.connect();
    stream.write_all(request.as_bytes()).unwrap();
    let mut begun = Vec::new();
    while request.contains("/stream") && !text(&begun).contains("data: 1") {
        let mut bytes = [0; 4096];
        let len = stream.read(&mut bytes).unwrap();
        assert!(len > 0, "{}", text(&begun));
        begun.extend_from_slice(&bytes[..len]);
    }
    stream
}

#[test]
fn client_disconnect_cancels_upstream_request() {
    let origin = origin();
    for (more, route) in [("", ""), (", client_abort = \"ignore\"", ""), ("", "cache = true")] {
        let rig = start(&origin, more, route);
        for path in ["/silent", "/stream"] {
            // The response may be stored, so it is awaited without the client.
            if route == "cache = true" && path == "/silent" {
                continue;
            }
            for way in ["closed", "reset"] {
                // A half-closed client may still wait for a response if the proxy is configured to allow
                // this.
                if way == "closed" && !more.is_empty() {
                    continue;
                }
                let stream = ask(&rig, &format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
                eventually("it is asked for", || origin.open() == 1);
                match way {
                    "closed" => stream.shutdown(Shutdown::Write).unwrap(),
                    _ => sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap(),
                }
                let _kept = (way == "closed").then_some(stream);
                eventually("the upstream connection is closed", || origin.open() == 0);
            }
        }
        assert!(
            !rig.reported().contains("upstream"),
            "the upstream server is not to blame: {}",
            rig.reported()
        );
    }
}

#[test]
fn http2_client_disconnect_cancels_upstream_request() {
    let origin = origin();
    let rig = start(&origin, "", "");
    for path in ["/silent", "/stream"] {
        let mut curl = Command::new("curl");
        curl.args(["-sN", "--http2-prior-knowledge", &rig.url(path)]).stdout(Stdio::null());
        let mut client = curl.spawn().unwrap();
        eventually("it is asked for", || origin.open() == 1);
        client.kill().unwrap();
        client.wait().unwrap();
        eventually("the upstream connection is closed", || origin.open() == 0);
    }
}

#[test]
fn client_that_requested_close_may_half_close() {
    let origin = origin();
    for more in ["", ", client_abort = \"ignore\""] {
        let rig = start(&origin, more, "");
        for head in ["GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "GET / HTTP/1.0\r\n\r\n"] {
            let mut stream = ask(&rig, head);
            stream.shutdown(Shutdown::Write).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.ends_with("late"), "{head}: {answer:?}");
        }
        let mut stream = ask(&rig, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer.ends_with("late"), !more.is_empty(), "{more}: {answer:?}");
    }
}

#[test]
fn thousand_disconnects_leave_no_upstream_connections() {
    let origin = origin();
    let rig = start(&origin, "", "");
    for _ in 0..10 {
        let ask = |_| ask(&rig, "GET /silent HTTP/1.1\r\nHost: a\r\n\r\n");
        let clients: Vec<TcpStream> = (0..100).map(ask).collect();
        eventually("all are asked for", || origin.open() == 100);
        drop(clients);
        eventually("the upstream connections are closed", || origin.open() == 0);
    }
}

#[test]
fn http2_stream_reset_cancels_only_its_upstream_request() {
    let origin = origin();
    let rig = start(&origin, "", "");
    let mut client = rig.connect();
    let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
        [&[0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream][..], payload].concat()
    };
    // `:method: GET`, `:scheme: http`, `:path: /silent`, `:authority: a`.
    let head = b"\x82\x86\x04\x07/silent\x01\x01a";
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    sent.extend(frame(4, 0, 0, b""));
    sent.extend(frame(1, 5, 1, head));
    sent.extend(frame(1, 5, 3, head));
    client.write_all(&sent).unwrap();
    eventually("both are asked for", || origin.open() == 2);
    client.write_all(&frame(3, 0, 1, &[0, 0, 0, 8])).unwrap();
    eventually("one upstream connection is closed", || origin.open() == 1);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(origin.open(), 1, "the other stream continues");
    drop(client);
    eventually("so is the other's", || origin.open() == 0);
}

#[test]
fn client_disconnect_cancels_authorization_subrequest() {
    let silent = origin();
    let origin = origin();
    let asks = format!("auth = {{ ask = \"{}/silent\" }}", silent.url);
    let rig = start(&origin, "", &asks);
    let clients: Vec<TcpStream> =
        (0..20).map(|_| ask(&rig, "GET /silent HTTP/1.1\r\nHost: a\r\n\r\n")).collect();
    eventually("the auth server is asked", || silent.open() == 20);
    drop(clients);
    eventually("its connections are closed", || silent.open() == 0);
    assert_eq!(origin.open(), 0);
}
