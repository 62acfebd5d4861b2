//! Limits, timeouts and hostile clients: excess is refused without affecting other clients.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::{Duration, Instant};

use crate::rig;
use crate::rig::{
    Answer, Folder, Rig, as_we_are, connect, curl, eventually, is_closed, komainu, read_answer, text,
};

fn small() -> Folder {
    let folder = Folder::new();
    folder.write("www/a", "A");
    folder
}

#[test]
fn malformed_requests_are_rejected_and_connection_is_closed() {
    let rig = Rig::files(&[("a", "A")]);
    let long = "x".repeat(20_000);
    let many = "X: y\r\n".repeat(101);
    for (status, request) in [
        (400, "GET / HTTP/1.1\r\n\r\n".to_owned()),
        (400, "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n".to_owned()),
        (400, "GET / HTTP/1.1\r\nHost : a\r\n\r\n".to_owned()),
        (400, "GET / HTTP/1.1\nHost: a\n\n".to_owned()),
        (400, "GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n".to_owned()),
        (
            400,
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
                .to_owned(),
        ),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab".to_owned()),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\na".to_owned()),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n".to_owned()),
        (417, "GET / HTTP/1.1\r\nHost: a\r\nExpect: miracles\r\n\r\n".to_owned()),
        (505, "GET / HTTP/2.0\r\nHost: a\r\n\r\n".to_owned()),
        (414, format!("GET /{long} HTTP/1.1\r\nHost: a\r\n\r\n")),
        (431, format!("GET / HTTP/1.1\r\nHost: a\r\nX: {long}\r\n\r\n")),
        (431, format!("GET / HTTP/1.1\r\nHost: a\r\n{many}\r\n")),
        (400, "\x16\x03\x01\x02\x00\x01\x00\x01\x7c\x03\x03".to_owned()),
    ] {
        // The second request must never be answered.
        let answer = rig.send(&format!("{request}GET /a HTTP/1.1\r\nHost: a\r\n\r\n"));
        answer.expect_status(status).expect_field("Connection", "close");
        assert!(!answer.text().contains("HTTP/1.1 200"), "{request:?}");
    }
    rig.get("/a").expect(200, "A");
}

#[test]
fn header_fields_of_a_route_have_a_limit() {
    let folder = small();
    let config = r#"
        listen = { address = "127.0.0.1:0", h2c = true }

        [[route]]
        path = "/few"
        header_limit = 4
        respond = "few"

        [[route]]
        path = "/inner/*"
        internal = true
        header_limit = 1
        files = "www"

        [[route]]
        respond = "many"
    "#;
    folder.write("komainu.toml", format!("{}{config}", as_we_are()));
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let rig = Rig::start(command, folder);
    // `Host` counts, and the connection stays open. Internal routes refuse direct requests as ever.
    let mut stream = rig.connect();
    for (path, count, status) in
        [("/few", 4, 200), ("/few", 5, 431), ("/few", 4, 200), ("/inner/a", 4, 404), ("/many", 100, 200)]
    {
        let fields = "X: y\r\n".repeat(count - 1);
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n").as_bytes()).unwrap();
        read_answer(&mut stream).expect_status(status);
    }
    // curl sends `Host` (`:authority`), `User-Agent` and `Accept`.
    for protocol in ["--http1.1", "--http2-prior-knowledge"] {
        for (more, status) in [("A: b", "|200"), ("A: b\nC: d", "|431")] {
            let url = rig.url("/few");
            let mut given = vec![protocol, "-w", "|%{http_code}", url.as_str()];
            more.lines().for_each(|field| given.extend(["-H", field]));
            let got = text(&curl(&given).stdout);
            assert!(got.ends_with(status), "{protocol} {more:?}: {got}");
        }
    }
}

#[test]
fn header_limit_of_a_route_replaces_that_of_its_site() {
    let rig = Rig::config(
        small(),
        r#"
        [[site]]
        header_limit = 4

        [[site.route]]
        path = "/less"
        header_limit = 2
        respond = "less"

        [[site.route]]
        path = "/more"
        header_limit = 6
        respond = "more"

        [[site.route]]
        path = "/inner/*"
        internal = true
        files = "www"

        [[site.route]]
        respond = "all"
        "#,
    );
    let mut stream = rig.connect();
    for (path, most) in [("/less", 2), ("/more", 6), ("/", 4)] {
        for (count, status) in [(most, 200), (most + 1, 431)] {
            let fields = "X: y\r\n".repeat(count - 1);
            stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n").as_bytes()).unwrap();
            read_answer(&mut stream).expect_status(status);
        }
    }
    rig.ask("/inner/a", &"X: y\r\n".repeat(9)).expect_status(404);
}

#[test]
fn bodies_have_a_limit() {
    let rig = Rig::config(
        small(),
        r#"
        [limits]
        body = "1KiB"
        [[route]]
        files = "www"
        "#,
    );
    let head = "POST /a HTTP/1.1\r\nHost: a\r\n";
    let mut stream = rig.connect();
    stream.write_all(format!("{head}Content-Length: 2000\r\n\r\n{}", "x".repeat(2000)).as_bytes()).unwrap();
    read_answer(&mut stream).expect_status(413);
    // With HTTP/1, a body that is not read costs the connection; later versions end its stream alone.
    let costs_connection = !rig::through_http3();
    assert!(!costs_connection || is_closed(&mut stream), "its body was not read");
    // A body within the limit is read, and the connection stays open.
    let mut stream = rig.connect();
    for _ in 0..2 {
        stream
            .write_all(format!("{head}Content-Length: 1000\r\n\r\n{}", "x".repeat(1000)).as_bytes())
            .unwrap();
        read_answer(&mut stream).expect_status(405);
    }
    let chunk = format!("3e8\r\n{}\r\n", "x".repeat(1000));
    stream.write_all(format!("{head}Transfer-Encoding: chunked\r\n\r\n{chunk}0\r\n\r\n").as_bytes()).unwrap();
    read_answer(&mut stream).expect_status(405);
    stream
        .write_all(format!("{head}Transfer-Encoding: chunked\r\n\r\n{chunk}{chunk}0\r\n\r\n").as_bytes())
        .unwrap();
    read_answer(&mut stream).expect_status(405);
    if costs_connection {
        assert!(is_closed(&mut stream), "a body above the limit costs the connection");
    } else {
        stream.write_all(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        read_answer(&mut stream).expect(200, "A");
    }
}

#[test]
fn slow_heads_are_answered_408() {
    // The TLS handshake takes part of the time for the first head.
    let head = if rig::through_tls() { "3s" } else { "300ms" };
    let text = format!(
        r#"
        [timeouts]
        head = "{head}"
        idle = "10s"
        [[route]]
        files = "www"
        "#
    );
    let rig = Rig::config(small(), &text);
    // Sending single bytes does not extend the timeout.
    let mut stream = rig.connect();
    stream.write_all(b"GET /a HTTP/1.1\r\n").unwrap();
    let began = Instant::now();
    let mut bytes = Vec::new();
    while began.elapsed() < rig::PATIENCE {
        std::thread::sleep(Duration::from_millis(50));
        if stream.write_all(b"X").is_err() {
            break;
        }
        let mut buffer = [0; 1000];
        stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        if let Ok(len) = stream.read(&mut buffer) {
            bytes.extend_from_slice(&buffer[..len]);
            break;
        }
    }
    assert_eq!(Answer::parse(bytes).status(), 408);
    // A silent connection is closed without a response.
    assert!(is_closed(&mut rig.connect()));
    rig.get("/a").expect(200, "A");
}

#[test]
fn idle_connections_are_closed_in_time() {
    let rig = Rig::config(
        small(),
        r#"
        [timeouts]
        idle = "300ms"
        [[route]]
        files = "www"
        "#,
    );
    let mut stream = rig.connect();
    stream.write_all(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    read_answer(&mut stream).expect(200, "A");
    assert!(is_closed(&mut stream));
}

#[test]
fn requests_per_connection_have_a_limit() {
    let rig = Rig::config(
        small(),
        r#"
        [limits]
        requests_per_connection = 2
        [[route]]
        files = "www"
        "#,
    );
    let mut stream = rig.connect();
    stream.write_all("GET /a HTTP/1.1\r\nHost: a\r\n\r\n".repeat(3).as_bytes()).unwrap();
    read_answer(&mut stream).expect_no_field("Connection");
    read_answer(&mut stream).expect_field("Connection", "close");
    assert!(is_closed(&mut stream));
}

/// Connections in a listener's accept queue.
fn not_accepted(listener: SocketAddr) -> usize {
    let SocketAddr::V4(address) = listener else { panic!("an IPv4 address") };
    let local = format!("{:08X}:{:04X}", u32::from_ne_bytes(address.ip().octets()), address.port());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let listening = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let line = listening.into_iter().find(|fields| fields[1] == local && fields[3] == "0A").unwrap();
    usize::from_str_radix(line[4].split(':').nth(1).unwrap(), 16).unwrap()
}

#[test]
fn new_connections_wait_at_the_connection_limit() {
    const BEGUN: &[u8] = b"GET /a HTTP/1.1\r\nConnection: close\r\n";
    if rig::through_tls() {
        // A TLS handshake that takes a second would count as idle and be closed in favor of others, depending
        // on the machine's load.
        return;
    }
    let rig = Rig::config(
        small(),
        r#"
        threads = 1
        [limits]
        connections = 8
        [[route]]
        files = "www"
        "#,
    );
    let mut busy: Vec<_> = (0..8).map(|_| rig.connect()).collect();
    for stream in &mut busy {
        // The response shows that the server has accepted the connection, which is within the next request
        // and thus not idle.
        stream.write_all(&[b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n", BEGUN].concat()).unwrap();
        read_answer(stream).expect(200, "A");
    }
    let mut late: Vec<_> = (0..20).map(|_| rig.connect()).collect();
    for stream in &mut late {
        stream.write_all(BEGUN).unwrap();
    }
    // One of the eight completes its request with `Connection: close` and makes room for one of the twenty.
    busy[0].write_all(b"Host: a\r\n\r\n").unwrap();
    read_answer(&mut busy[0]).expect(200, "A");
    eventually("one newcomer is served and nineteen wait", || not_accepted(rig.listens) == 19);
    for stream in &mut busy[1..] {
        stream.write_all(b"Host: a\r\n\r\n").unwrap();
        read_answer(stream).expect(200, "A");
    }
    // None was refused.
    for stream in &mut late {
        stream.write_all(b"Host: a\r\n\r\n").unwrap();
        read_answer(stream).expect(200, "A");
    }
}

#[test]
fn silent_connections_make_room_for_new_ones() {
    let rig = Rig::config(
        small(),
        r#"
        threads = 1
        [limits]
        connections = 8
        [timeouts]
        head = "5m"
        [[route]]
        files = "www"
        "#,
    );
    let silent: Vec<_> = (0..40).map(|_| rig.connect()).collect();
    rig.get("/a").expect(200, "A");
    drop(silent);
}

#[test]
fn low_descriptor_limit_is_logged_with_its_remedy() {
    let folder = small();
    let mut command = std::process::Command::new("sh");
    let serve = format!(
        "ulimit -n 256; exec {} run --threads 1 --listen 127.0.0.1:0 {}",
        komainu().get_program().to_str().unwrap(),
        folder.at("www").display()
    );
    command.args(["-c", &serve]);
    let rig = Rig::start(command, folder);
    eventually("the log names the limit and its remedy", || {
        let reported = rig.reported();
        reported.contains("192 connections") && reported.contains("LimitNOFILE")
    });
    // The limit is usable: 190 clients in the middle of a request are all answered.
    let mut busy: Vec<_> = (0..190).map(|_| rig.connect()).collect();
    for stream in &mut busy {
        stream.write_all(b"GET /a HTTP/1.1\r\n").unwrap();
    }
    for stream in busy.iter_mut().rev() {
        stream.write_all(b"Host: a\r\n\r\n").unwrap();
        read_answer(stream).expect(200, "A");
    }
}

#[test]
fn descriptor_exhaustion_fails_no_request() {
    let folder = small();
    let mut command = std::process::Command::new("sh");
    let serve = format!(
        "ulimit -n 48; exec {} run --threads 1 --listen 127.0.0.1:0 {}",
        komainu().get_program().to_str().unwrap(),
        folder.at("www").display()
    );
    command.args(["-c", &serve]);
    let rig = Rig::start(command, folder);
    let address = rig.address;
    let mut clients: Vec<_> = (0..100).map(|_| connect(address)).collect();
    for client in &mut clients {
        client.write_all(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    }
    for mut client in clients {
        // The client has closed its connection, so the next one gets its descriptor.
        read_answer(&mut client).expect(200, "A");
    }
    rig.get("/a").expect(200, "A");
}

#[test]
fn half_closed_client_receives_pipelined_responses() {
    let rig = Rig::files(&[("a", "A")]);
    let mut stream = rig.connect();
    stream.write_all("GET /a HTTP/1.1\r\nHost: a\r\n\r\n".repeat(3).as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    for _ in 0..3 {
        read_answer(&mut stream).expect(200, "A");
    }
    assert!(is_closed(&mut stream));
}

#[test]
fn stalled_reader_is_disconnected_and_blocks_no_other() {
    let folder = small();
    folder.write("www/large", vec![b'x'; 30_000_000]);
    let rig = Rig::config(
        folder,
        r#"
        threads = 1
        [timeouts]
        write = "300ms"
        [[route]]
        files = "www"
        "#,
    );
    let mut stream = rig.connect();
    stream.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    for _ in 0..20 {
        rig.get("/a").expect(200, "A");
    }
    std::thread::sleep(Duration::from_millis(800));
    let mut received = 0;
    let mut buffer = vec![0; 1 << 16];
    while let Ok(len @ 1..) = stream.read(&mut buffer) {
        received += len;
    }
    assert!(received < 30_000_000, "the rest was not worth waiting for");
}

#[test]
fn idle_connections_use_little_memory() {
    // 350 to 450 bytes are measured; the margin covers one or two pages of tables. Through TLS it is 8,600
    // bytes, including rustls' read buffer of 4,096.
    let bytes_max = if rig::through_tls() { 10_000 } else { 700 };
    let rig = Rig::files(&[("a", "A")]);
    let resident_bytes = || -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", rig.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    };
    let idle = |count: usize| -> Vec<_> {
        let asked = |_| {
            let mut client = rig.connect();
            client.write_all(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            read_answer(&mut client);
            client
        };
        (0..count).map(asked).collect()
    };
    // Shared memory, such as pages of up to 256 futures for each core, is allocated once, with the first or
    // the next hundreds of connections.
    let (some, more) = if rig::through_tls() { (200, 300) } else { (500, 1_500) };
    let mut clients = idle(some);
    let mut each = u64::MAX;
    for _ in 0..4 {
        let before = resident_bytes();
        clients.extend(idle(more));
        // Connections of the last second still have their futures.
        let began = Instant::now();
        while each >= bytes_max && began.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(20));
            each = each.min(resident_bytes().saturating_sub(before) / more as u64);
        }
        if each < bytes_max {
            break;
        }
    }
    assert!(each < bytes_max, "{each} bytes for an idle connection");
    eprintln!("{each} bytes for an idle connection");
    for client in &mut clients {
        client.write_all(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        read_answer(client).expect(200, "A");
    }
}
