//! HTTP/3 to upstream servers: another server of this program stands behind.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::h3_origin::{Act, H3Origin};
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
fn missing_client_certificate_is_named() {
    let folder = crate::certified::folder(&[("a.test", "ec")]);
    let text = r#"
        listen = [{ address = "127.0.0.1:0", tls = true }]
        [[site]]
        hosts = ["a.test"]
        tls = { certificate = "a.test.pem", key = "a.test.key", client = "ca.pem" }
        [[site.route]]
        respond = "yes"
    "#;
    let back = crate::certified::start(folder, text);
    let front = front(&back.address.to_string(), ANY);
    front.get("/").expect_status(502);
    front.expect_report("requires a client certificate");
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

/// Frames of an HTTP/2 client that lets the server send no content, with this many requests for `path`.
fn requests_without_windows(path: &str, requests: u32) -> Vec<u8> {
    let mut frames = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // SETTINGS with an initial window of 0, and the acknowledgement of the server's.
    frames.extend_from_slice(b"\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0\0\0\0\0\x04\x01\0\0\0\0");
    for number in 0..requests {
        // GET, http, and the path and authority as literals that are not indexed (RFC 7541).
        let block = [&b"\x82\x86\x04"[..], &[path.len() as u8], path.as_bytes(), b"\x01\x01a"].concat();
        frames.extend_from_slice(&[0, 0, block.len() as u8, 1, 5]);
        frames.extend_from_slice(&(2 * number + 1).to_be_bytes());
        frames.extend_from_slice(&block);
    }
    frames
}

#[test]
fn unread_streams_never_use_up_the_window_of_the_connection() {
    let back = serve_with("", "[[site.route]]\nfiles = \"www\"", |folder| {
        std::fs::create_dir(folder.at("www")).unwrap();
        std::fs::write(folder.at("www/large"), vec![b'x'; 4_000_000]).unwrap();
        std::fs::write(folder.at("www/small"), vec![b'y'; 50_000]).unwrap();
    });
    let folder = Folder::new();
    let text = format!(
        r#"
        listen = [{{ address = "127.0.0.1:0", h2c = true }}]
        threads = 1
        timeouts = {{ write = "10m" }}
        {}
        [[route]]
        [route.proxy]
        to = ["h3://{}"]
        host = "a.test"
        spill = "0B"
        {ANY}
        "#,
        rig::as_we_are(),
        back.address
    );
    folder.write("komainu.toml", &text);
    let mut command = rig::komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let front = Rig::start(command, folder);
    let small = || assert_eq!(front.get("/small").expect_status(200).body.len(), 50_000);
    small();
    let mut unread = front.connect();
    unread.write_all(&requests_without_windows("/large", 95)).unwrap();
    for _ in 0..100 {
        small();
    }
    drop(unread);
    small();
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
    let origin = Origin::start(|ask| match ask.line() {
        line if line.contains("/silent") => "HTTP/1.1 200 OK\r\n".to_owned(),
        line if line.contains("/stream") => {
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegun\r\n".to_owned()
        }
        _ => answer("200 OK", "", "yes"),
    });
    let back = serve(&format!("[[site.route]]\nproxy = \"{}\"", origin.url));
    let front = front(&back.address.to_string(), ANY);
    front.get("/").expect(200, "yes");
    for path in ["/silent", "/stream"] {
        let ask = |_| {
            let mut stream = front.connect();
            write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            stream
        };
        let clients: Vec<_> = (0..50).map(ask).collect();
        eventually("all are asked for", || {
            origin.asks().iter().filter(|ask| ask.line().contains(path)).count() == 50
        });
        // Dropped: the clients leave before the end of the response.
        clients.iter().for_each(reset_on_close);
        drop(clients);
        // A kept connection may be idle.
        eventually("the origin's connections are closed", || origin.open() <= 1);
    }
    front.get("/").expect(200, "yes");
    let mut client = connect(&back);
    assert_eq!(client.ask("GET", "/", &[A], b"").status, 200);
}

/// How often each of these requests was sent upstream, at most.
fn sent_most(origin: &H3Origin, paths: &[String]) -> usize {
    let asked = origin.asked();
    paths.iter().map(|path| asked.iter().filter(|one| *one == path).count()).max().unwrap()
}

fn statuses_of(front: &Rig, paths: &[String]) -> Vec<u16> {
    std::thread::scope(|scope| {
        let gets: Vec<_> = paths.iter().map(|path| scope.spawn(|| front.get(path).status())).collect();
        gets.into_iter().map(|get| get.join().unwrap()).collect()
    })
}

#[test]
fn requests_on_closing_connections_get_one_attempt_beyond_retry() {
    for attempts in [1, 3] {
        for act in [
            Act::Close(Duration::from_millis(50)),
            Act::Reject { goes_away: false },
            Act::Reject { goes_away: true },
        ] {
            let origin = H3Origin::start({
                let act = act.clone();
                move |_| act.clone()
            });
            let more = format!("{ANY}\nretry = {{ attempts = {attempts}, budget = 1000 }}");
            let front = front(&origin.address.to_string(), &more);
            let paths: Vec<String> = (0..50).map(|at| format!("/{at}")).collect();
            assert_eq!(statuses_of(&front, &paths), vec![502; 50], "{act:?}");
            let sent = sent_most(&origin, &paths);
            assert!(sent <= attempts + 1, "{act:?}: {attempts} attempts, sent {sent} times");
        }
    }
}

#[test]
fn refused_requests_are_sent_again() {
    // After GOAWAY, the second request needs a connection of its own.
    for goes_away in [false, true] {
        let left = AtomicUsize::new(1);
        let origin = H3Origin::start(move |_| {
            match left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
                Ok(_) => Act::Reject { goes_away },
                Err(_) => Act::Answer(String::new(), "yes".into()),
            }
        });
        let front = front(&origin.address.to_string(), &format!("{ANY}\nretry = {{ attempts = 1 }}"));
        let post = "POST /up HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi";
        front.send(post).expect(200, "yes");
        assert_eq!(origin.asked().len(), 2);
        front.get("/").expect(200, "yes");
    }
}

#[test]
fn health_checks_accept_heads_as_long_as_routes_do() {
    let policy = "x".repeat(27_000);
    let origin = H3Origin::start({
        let lines = format!("content-security-policy: {policy}\r\n");
        move |_| Act::Answer(lines.clone(), "fine".into())
    });
    let back = Folder::new();
    let config = format!(
        r#"
        {}
        listen = {{ address = "127.0.0.1:0", h2c = true }}
        log = {{ file = "access.log", access = "combined" }}
        [[route]]
        respond = "fine"
        response_headers.set.content-security-policy = "{policy}"
        "#,
        rig::as_we_are()
    );
    back.write("komainu.toml", config);
    let mut command = rig::komainu();
    command.arg("start").arg("-c").arg(back.at("komainu.toml"));
    let back = Rig::start(command, back);
    let over_h3 = || origin.asked().iter().filter(|path| *path == "/health").count();
    let over_h2 = || {
        let log = std::fs::read_to_string(back.folder.at("access.log")).unwrap_or_default();
        log.lines().filter(|line| line.contains("/health")).count()
    };
    let kinds: [(String, &str, &dyn Fn() -> usize); 2] = [
        (format!("h3://{}", origin.address), ANY, &over_h3),
        (format!("h2c://{}", back.listens), "", &over_h2),
    ];
    for (to, tls, checks) in kinds {
        let route = format!(
            r#"
            [[route]]
            [route.proxy]
            to = ["{to}"]
            health = {{ path = "/health", interval = "100ms", rise = 1, fall = 1 }}
            {tls}
            "#
        );
        let front = Rig::config(Folder::new(), &route);
        eventually("several checks", || checks() >= 5);
        let answer = front.get("/");
        assert_eq!(answer.status(), 200, "{to}");
        assert!(answer.head.contains(&policy) && answer.text().contains("fine"), "{to}");
        assert!(!front.reported().contains("out of service"), "{}", front.reported());
    }
}

/// Lets the stream be reset when it is closed.
fn reset_on_close(stream: &std::net::TcpStream) {
    rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO)).unwrap();
}
