//! Concurrency limits of a client: requests (`limit = { concurrent = … }`) and connections.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};

use crate::limit::value;
use crate::rig::{Answer, Folder, PATIENCE, Rig, as_we_are, connect, eventually, komainu, read_to_close};

/// Starts a server that answers on request of the test, and `?now` at once; returns its URL and its
/// connections, each with one request.
fn held_origin() -> (String, Receiver<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (requests, received) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let requests = requests.clone();
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                let mut piece = [0; 4096];
                while !bytes.ends_with(b"\r\n\r\n") {
                    let Ok(len @ 1..) = stream.read(&mut piece) else { return };
                    bytes.extend_from_slice(&piece[..len]);
                }
                if bytes.windows(5).any(|part| part == b"?now ") {
                    answer_held(stream)
                } else {
                    _ = requests.send(stream)
                }
            });
        }
    });
    (url, received)
}

fn answer_held(mut stream: TcpStream) {
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nheld").unwrap();
}

fn request(client: &str, path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: {client}\r\nConnection: close\r\n\r\n")
}

/// Sends a request whose response is read later.
fn begin(rig: &Rig, client: &str, path: &str) -> TcpStream {
    let mut stream = rig.connect();
    stream.write_all(request(client, path).as_bytes()).unwrap();
    stream
}

fn end(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    Answer::parse(bytes)
}

#[test]
fn concurrent_requests_per_client_are_limited() {
    let (url, held) = held_origin();
    let next = || held.recv_timeout(PATIENCE).unwrap();
    let folder = Folder::new();
    folder.write("www/large", "");
    File::options().write(true).open(folder.at("www/large")).unwrap().set_len(256 << 20).unwrap();
    let rig = Rig::config(
        folder,
        &format!(
            r#"
            threads = 2
            trusted_proxies = ["127.0.0.1"]

            [control]
            listen = "unix:control.sock"

            [[route]]
            path = "/held"
            proxy = "{url}"
            limit = [{{ rate = "1000/s" }}, {{ concurrent = 2 }}]

            [[route]]
            path = "/dry"
            proxy = "{url}"
            limit = {{ concurrent = 1, dry_run = true, name = "trial" }}

            [[route]]
            path = "/large"
            files = "www"
            limit = {{ concurrent = 1, status = 503, name = "downloads" }}
            "#
        ),
    );
    let ask = |client: &str, path: &str| rig.send(&request(client, path));
    // At most two requests of a client are in progress; another client has its own limit.
    let two = ["192.0.2.1"; 2].map(|client| (begin(&rig, client, "/held"), next()));
    let refused = ask("192.0.2.1", "/held");
    refused.expect_status(429).expect_field("retry-after", "1").expect_field("cache-control", "no-store");
    refused.expect_no_field("ratelimit");
    let other = (begin(&rig, "192.0.2.2", "/held"), next());
    for (stream, answer) in two.into_iter().chain([other]) {
        answer_held(answer);
        end(stream).expect(200, "held");
    }
    // The slots are free again, including that of a client that disconnected.
    let kept = (begin(&rig, "192.0.2.1", "/held"), next());
    let left = (begin(&rig, "192.0.2.1", "/held"), next());
    ask("192.0.2.1", "/held?now").expect_status(429);
    drop(left.0);
    answer_held(left.1);
    eventually("its place is free", || ask("192.0.2.1", "/held?now").status() == 200);
    answer_held(kept.1);
    end(kept.0).expect(200, "held");
    // A dry run refuses nothing and is logged.
    let two = [0; 2].map(|_| (begin(&rig, "192.0.2.3", "/dry"), next()));
    for (stream, answer) in two {
        answer_held(answer);
        end(stream).expect(200, "held");
    }
    assert_eq!(value(&rig.metrics(), "komainu_limit_refused_total", "trial"), 1);
    rig.expect_report("dry run");
    // A response counts until the client has received it.
    let mut slow = begin(&rig, "192.0.2.4", "/large");
    slow.read_exact(&mut [0; 12]).unwrap();
    ask("192.0.2.4", "/large").expect_status(503);
    assert_eq!(value(&rig.metrics(), "komainu_limit_refused_total", "downloads"), 1);
    drop(slow);
    eventually("the download is over", || {
        let mut stream = begin(&rig, "192.0.2.4", "/large");
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        head == *b"HTTP/1.1 200"
    });
}

/// Starts a server with this listener and at most three connections for each client.
fn of_three(listener: &str, more: &str) -> Rig {
    let folder = Folder::new();
    folder.certify();
    let text = format!(
        r#"
        {}
        listen = [{listener}]

        [limits]
        connections_per_client = 3

        [control]
        listen = "unix:control.sock"
        {more}

        [[route]]
        respond = "ok"
        "#,
        as_we_are()
    );
    folder.write("komainu.toml", text);
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    Rig::start(command, folder)
}

/// Opens a connection and sends `first`.
fn opening(rig: &Rig, first: &[u8]) -> TcpStream {
    let mut stream = connect(rig.listens);
    // A refused connection may be reset already.
    let _ = stream.write_all(first);
    stream
}

/// Fails if the server does not close such a connection, however long it takes.
#[track_caller]
fn expect_refused(rig: &Rig, first: &[u8]) {
    read_to_close(&mut opening(rig, first));
}

/// Opens a connection and sends `first`; returns `None` if the server closes it at once.
fn opens(rig: &Rig, first: &[u8]) -> Option<TcpStream> {
    let mut stream = opening(rig, first);
    stream.set_read_timeout(Some(std::time::Duration::from_millis(500))).unwrap();
    match stream.read(&mut [0]) {
        Err(error)
            if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) =>
        {
            Some(stream)
        }
        _ => None,
    }
}

#[test]
fn connections_per_client_are_limited() {
    let tls = "{ address = \"127.0.0.1:0\", tls = true }";
    let certificate = "[tls]\ndefault = { certificate = \"cert.pem\", key = \"key.pem\" }\n";
    // The first byte of a handshake that never continues.
    for (listener, more, first) in [("\"127.0.0.1:0\"", "", &b""[..]), (tls, certificate, &b"\x16"[..])] {
        let rig = of_three(listener, more);
        let mut open: Vec<TcpStream> = (0..3).map(|_| opens(&rig, first).unwrap()).collect();
        expect_refused(&rig, first);
        open.pop();
        eventually("its place is free", || {
            open.extend(opens(&rig, first));
            open.len() == 3
        });
        expect_refused(&rig, first);
        assert!(value(&rig.metrics(), "komainu_limit_refused_total", "connections_per_client") >= 2);
        rig.expect_report("`limits.connections_per_client` of 3");
        // A reload changes the limit.
        let file = std::fs::read_to_string(rig.folder.at("komainu.toml")).unwrap();
        rig.folder.write("komainu.toml", file.replace("client = 3", "client = 4"));
        rig.signal("-HUP");
        eventually("a fourth one may come", || {
            open.extend(opens(&rig, first));
            open.len() == 4
        });
        expect_refused(&rig, first);
    }
}

#[test]
fn proxied_connections_count_for_the_reported_client() {
    let rig = of_three("{ address = \"127.0.0.1:0\", proxy_protocol = [\"127.0.0.1\"] }", "");
    let header = |client: &str| format!("PROXY TCP4 {client} 192.0.2.80 4000 80\r\n").into_bytes();
    let mut open: Vec<TcpStream> = Vec::new();
    for client in ["192.0.2.1", "192.0.2.2"] {
        open.extend((0..3).map(|_| opens(&rig, &header(client)).unwrap()));
        expect_refused(&rig, &header(client));
    }
    // Connections whose client is not known yet are not limited, nor are the proxy's own.
    open.extend((0..5).map(|_| opens(&rig, b"PROX").unwrap()));
    open.extend((0..5).map(|_| opens(&rig, b"PROXY UNKNOWN\r\n").unwrap()));
    // A proxy that names its clients in fields needs many connections itself.
    let rig = of_three("\"127.0.0.1:0\"", "[trusted_proxies]\nfrom = [\"127.0.0.1\"]\n");
    let _open: Vec<TcpStream> = (0..6).map(|_| opens(&rig, b"").unwrap()).collect();
}
