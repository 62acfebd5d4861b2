//! HTTP/3 to upstream servers: another server of this program stands behind.

use std::io::Write;
use std::time::Duration;

use super::requests::{A, connect, serve, serve_with};
use crate::origin::{Origin, answer};
use crate::rig::{self, Folder, Rig, eventually};

/// A server that forwards everything to `back` over HTTP/3; `more` are lines of the table `proxy`.
fn front(back: &str, more: &str) -> Rig {
    let text = format!(
        r#"
        [[route]]
        [route.proxy]
        to = ["h3://{back}"]
        host = "a.test"
        {more}
        "#
    );
    Rig::config(Folder::new(), &text)
}

const ANY: &str = "tls = { name = \"a.test\", verify = false }";

#[test]
fn requests_share_a_connection_and_answers_are_whole() {
    let origin = Origin::start(|ask| {
        let length = ask.body.len();
        answer("200 OK", &format!("X-Length: {length}\r\n"), &format!("{} ", ask.line()).repeat(2_000))
    });
    let back = serve(&format!("[[site.route]]\nproxy = \"{}\"\nlimits = {{ body = \"20MiB\" }}", origin.url));
    let front = front(&back.address.to_string(), ANY);
    std::thread::scope(|scope| {
        for at in 0..20 {
            let front = &front;
            scope.spawn(move || {
                for round in 0..5 {
                    let answer = front.get(&format!("/{at}/{round}"));
                    assert_eq!(answer.text(), format!("GET /{at}/{round} HTTP/1.1 ").repeat(2_000));
                }
            });
        }
    });
    let content = "0123456789".repeat(500_000);
    let answer = front.send(&format!(
        "POST /up HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{content}",
        content.len()
    ));
    answer.expect_status(200).expect_field("X-Length", "5000000");
    let head = front.send("HEAD /h HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert_eq!((head.status(), head.text().len()), (200, 0));
    assert!(head.field("content-length").is_some());
    let quic = std::fs::read_to_string("/proc/net/udp").unwrap();
    let port = format!("{:04X}", back.address.port());
    let connected =
        quic.lines().filter(|line| line.split_whitespace().nth(2).is_some_and(|to| to.ends_with(&port)));
    assert!((1..=4).contains(&connected.count()), "requests share connections:\n{quic}");
}

#[test]
fn a_file_of_megabytes_arrives_through_both_servers() {
    let content: Vec<u8> = (0..20_000_000u32).map(|at| (at % 249) as u8).collect();
    let made = content.clone();
    let back = serve_with("", "[[site.route]]\nfiles = \"www\"", move |folder| {
        std::fs::create_dir(folder.at("www")).unwrap();
        std::fs::write(folder.at("www/large.bin"), &made).unwrap();
    });
    let front = front(&back.address.to_string(), ANY);
    let answer = front.get("/large.bin");
    assert_eq!(answer.status(), 200);
    assert!(answer.body == content);
}

#[test]
fn untrusted_certificate_and_closed_port_are_told_apart() {
    let back = serve("[[site.route]]\nrespond = \"yes\"");
    let fails = |at: &str, more: &str, reason: &str| {
        let rig = front(at, more);
        rig.get("/").expect_status(502);
        rig.expect_report(reason);
    };
    fails(&back.address.to_string(), "tls = { name = \"a.test\" }", "issuer is not trusted");
    fails(&rig::nobody().to_string(), ANY, "refused the connection");
    let trusted = format!("tls = {{ name = \"a.test\", ca = \"{}\" }}", back.folder.at("ca.pem").display());
    front(&back.address.to_string(), &trusted).get("/").expect(200, "yes");
    let other = format!("tls = {{ name = \"b.test\", ca = \"{}\" }}", back.folder.at("ca.pem").display());
    fails(&back.address.to_string(), &other, "refused the TLS handshake");
}

#[test]
fn restarted_server_is_connected_to_again() {
    let back = serve("[[site.route]]\nrespond = \"first\"");
    let address = back.address;
    let front = front(&address.to_string(), ANY);
    front.get("/").expect(200, "first");
    let mut back = back;
    back.signal("-TERM");
    back.ended();
    let folder = crate::certified::folder(&[("a.test", "ec")]);
    let text = format!(
        r#"
        listen = [{{ address = "{address}", tls = true }}]
        [[site]]
        hosts = ["a.test"]
        tls = {{ certificate = "a.test.pem", key = "a.test.key" }}
        [[site.route]]
        respond = "second"
        "#
    );
    let _second = crate::certified::start(folder, &text);
    front.get("/").expect(200, "second");
}

#[test]
fn health_checks_use_http3() {
    let back =
        serve("[[site.route]]\npath = \"/health\"\nrespond = \"fine\"\n[[site.route]]\nrespond = \"yes\"");
    let more = format!("{ANY}\nhealth = {{ path = \"/health\", interval = \"100ms\" }}");
    let front = front(&back.address.to_string(), &more);
    front.get("/").expect(200, "yes");
    let mut back = back;
    back.signal("-KILL");
    back.ended();
    eventually("the server is out of service", || front.get("/").status() == 503);
}

#[test]
fn websocket_crosses_an_http3_upstream() {
    let listener = rig::listener();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut stream = stream;
                let mut head = Vec::new();
                let mut byte = [0];
                while !head.ends_with(b"\r\n\r\n")
                    && std::io::Read::read(&mut stream, &mut byte).is_ok_and(|n| n > 0)
                {
                    head.push(byte[0]);
                }
                let head = rig::text(&head);
                let key = head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).unwrap();
                let accepted = format!(
                    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                     Sec-WebSocket-Accept: {}\r\n\r\n",
                    rig::text(&net::websocket::accept(key.as_bytes()))
                );
                let _ = stream.write_all(accepted.as_bytes());
                let mut piece = [0; 1024];
                while let Ok(len @ 1..) = std::io::Read::read(&mut stream, &mut piece) {
                    if stream.write_all(&piece[..len]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    let back = serve(&format!("[[site.route]]\nproxy = \"http://{address}\""));
    let front = front(&back.address.to_string(), ANY);
    let mut stream = front.connect();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let ask = "GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
               Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
    stream.write_all(ask.as_bytes()).unwrap();
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        std::io::Read::read_exact(&mut stream, &mut byte).unwrap();
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 101"), "{}", rig::text(&head));
    for round in 0..10 {
        let text = format!("round {round} ").repeat(2_000);
        stream.write_all(text.as_bytes()).unwrap();
        let mut back = vec![0; text.len()];
        std::io::Read::read_exact(&mut stream, &mut back).unwrap();
        assert!(back == text.as_bytes());
    }
    // What the server has sent before it closed arrives, and then the end.
    stream.write_all(b"bye").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(rig::read_to_close(&mut stream), b"bye");
}

#[test]
fn an_abandoned_request_is_cancelled_at_the_server_behind() {
    let origin = Origin::start(|_| {
        std::thread::sleep(Duration::from_millis(300));
        answer("200 OK", "", "late")
    });
    let back = serve(&format!("[[site.route]]\nproxy = \"{}\"", origin.url));
    let front = front(&back.address.to_string(), ANY);
    front.get("/").expect(200, "late");
    for _ in 0..50 {
        let mut stream = front.connect();
        stream.write_all(b"GET /gone HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        // Dropped: the client leaves before the response.
        reset_on_close(&stream);
    }
    front.get("/").expect(200, "late");
    let mut client = connect(&back);
    assert_eq!(client.ask("GET", "/", &[A], b"").status, 200);
}

/// Lets the stream be reset when it is closed.
fn reset_on_close(stream: &std::net::TcpStream) {
    rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO)).unwrap();
}
