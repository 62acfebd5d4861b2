//! The memory budget: whatever clients do, the server stays within it, reports that it is exhausted, and
//! returns the memory.

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::hosted;
use crate::origin::{Origin, answer};
use crate::rig;
use crate::rig::{Answer, Folder, Rig, as_we_are, connect, curl, eventually, komainu};
use rustix::net::{AddressFamily, SocketType, sockopt};

/// The smallest budget allowed.
const BUDGET_MIB: u64 = 16;
/// Growth allowed beyond the budget: kept buffers, allocator overhead, tables of connections. Without a
/// budget, each attack here takes several times as much.
const BEYOND_MIB: u64 = 24;

fn rss_mib(rig: &Rig) -> u64 {
    memory_kib(rig, "VmRSS") / 1024
}

fn memory_kib(rig: &Rig, kind: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", rig.child.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with(kind)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// A client with a small receive buffer, so that unread data stays with the server; it has sent as much of
/// `request` as the server accepts. `None` if new connections have to wait.
fn reads_nothing(rig: &Rig, request: &[u8]) -> Option<TcpStream> {
    let socket: OwnedFd = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_recv_buffer_size(&socket, 4096).unwrap();
    rustix::net::connect(&socket, &rig.address).ok()?;
    let mut stream = TcpStream::from(socket);
    stream.set_nonblocking(true).unwrap();
    // Bytes that cannot be written at once stay unsent.
    let _ = stream.write(request);
    Some(stream)
}

/// Status of an ordinary request during an attack, without a time limit.
fn meanwhile(rig: &Rig) -> u16 {
    let mut stream = rig.connect();
    stream.write_all(b"GET /small HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    // A refused connection is closed at once, even while the client sends.
    let bytes = rig::read_to_close(&mut stream);
    Answer::parse(bytes).status()
}

/// Opens `count` clients that send `request` and read nothing.
fn attack(rig: &Rig, count: usize, request: &[u8]) {
    assert_eq!(meanwhile(rig), 200);
    let before = rss_mib(rig);
    let within = |what: &str| {
        let grown = rss_mib(rig).saturating_sub(before);
        assert!(grown <= BUDGET_MIB + BEYOND_MIB, "{grown} MiB more {what}");
    };
    let mut clients = Vec::new();
    let mut statuses = Vec::new();
    for at in 0..count {
        clients.extend(reads_nothing(rig, request));
        if at % 100 == 99 {
            within("while they come");
            statuses.push(meanwhile(rig));
        }
    }
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        within("while they stay");
        statuses.push(meanwhile(rig));
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(statuses.iter().all(|status| [200, 503].contains(status)), "{statuses:?}");
    drop(clients);
    eventually("others are answered again", || meanwhile(rig) == 200);
    eventually("the memory is given back", || rss_mib(rig) <= before + 12);
    assert_eq!(meanwhile(rig), 200);
}

fn www() -> Folder {
    let folder = Folder::new();
    folder.write("www/small", "S").write("www/medium", vec![b'm'; 30_000]);
    folder.write("www/large", vec![b'l'; 2_000_000]);
    folder
}

#[test]
fn unread_pipelined_responses_stay_within_memory_budget() {
    let rig = Rig::config(
        www(),
        r#"
        threads = 2
        [limits]
        memory = "16MiB"
        [[route]]
        files = "www"
        "#,
    );
    attack(&rig, 1_500, "GET /medium HTTP/1.1\r\nHost: a\r\n\r\n".repeat(200).as_bytes());
}

#[test]
fn unread_proxied_responses_stay_within_memory_budget() {
    let origin = Rig::config(
        www(),
        r#"
        threads = 1
        [[route]]
        files = "www"
        "#,
    );
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            threads = 2
            [limits]
            memory = "16MiB"
            [[route]]
            proxy = {{ to = "http://{}", read_ahead = "256KiB" }}
            "#,
            origin.address
        ),
    );
    attack(&rig, 600, b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
}

#[test]
fn unread_compressed_responses_stay_within_memory_budget() {
    let folder = www();
    // Text that compresses poorly, so that much of it waits to be sent.
    let mut seed = 1_u32;
    let text = std::iter::repeat_with(|| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        b' ' + (seed >> 24) as u8 % 95
    });
    folder.write("www/large.txt", text.take(3_000_000).collect::<Vec<u8>>());
    let origin = Rig::config(
        folder,
        r#"
        threads = 1
        [[route]]
        files = "www"
        "#,
    );
    let config = format!(
        r#"
        threads = 1
        compress = true
        [limits]
        memory = "16MiB"
        [[route]]
        proxy = "http://{}"
        "#,
        origin.address
    );
    let rig = Rig::config(Folder::new(), &config);
    attack(&rig, 300, b"GET /large.txt HTTP/1.1\r\nHost: a\r\nAccept-Encoding: br\r\n\r\n");
}

/// Concurrent streams that a server allows.
const STREAMS: u32 = 128;

/// Opens the maximum number of HTTP/2 streams, with the initial window `window`.
fn streams_of_http_2(window: u32) -> Vec<u8> {
    let frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let len = (payload.len() as u32).to_be_bytes();
        [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    };
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[&[0, 4][..], &window.to_be_bytes()].concat()));
    bytes.extend(frame(8, 0, 0, &0x7fff_0000_u32.to_be_bytes()));
    for stream in 0..STREAMS {
        let head = b"\x82\x86\x04\x06/large\x01\x01a";
        bytes.extend(frame(1, 5, stream * 2 + 1, head));
    }
    bytes
}

/// Starts a server that speaks HTTP/2 without TLS.
fn h2c(folder: Folder, text: &str) -> Rig {
    let listen = "listen = { address = \"127.0.0.1:0\", h2c = true }\n";
    folder.write("komainu.toml", format!("{listen}{}{text}", as_we_are()));
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    Rig::start(command, folder)
}

#[test]
fn unread_http2_streams_stay_within_memory_budget() {
    for window in [0, 0x7fff_ffff] {
        let limits = r#"
            threads = 2
            [limits]
            memory = "16MiB"
            [[route]]
            files = "www"
        "#;
        attack(&h2c(www(), limits), 150, &streams_of_http_2(window));
    }
}

/// A client whose streams all wait for window updates; the heads of their responses have been received.
fn with_heads(rig: &Rig) -> TcpStream {
    let mut stream = connect(rig.address);
    stream.write_all(&streams_of_http_2(0)).unwrap();
    let mut reader = BufReader::new(&stream);
    let mut heads = 0;
    while heads < STREAMS {
        let mut header = [0; 9];
        reader.read_exact(&mut header).unwrap();
        let mut payload = vec![0; u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize];
        reader.read_exact(&mut payload).unwrap();
        heads += u32::from(header[3] == 1);
        // No DATA (beyond the window), RST_STREAM or GOAWAY frames.
        assert!(![0, 3, 7].contains(&header[3]), "{header:?} {payload:?}");
    }
    drop(reader);
    stream
}

/// Growth of the server in KiB for each stream that waits for a window update.
fn each_stream_kib(rig: &Rig) -> u64 {
    const CLIENTS: u64 = 20;
    // Memory allocated for the first connections is reused by all.
    let first: Vec<_> = (0..2).map(|_| with_heads(rig)).collect();
    let before = memory_kib(rig, "RssAnon");
    let clients: Vec<_> = (0..CLIENTS).map(|_| with_heads(rig)).collect();
    let each = memory_kib(rig, "RssAnon").saturating_sub(before) / CLIENTS / u64::from(STREAMS);
    drop((first, clients));
    each
}

#[test]
fn a_stream_holds_no_more_of_a_cached_object_than_of_a_file() {
    let large: String = (0..190_000).map(|at| format!("{at:9} ")).collect();
    let content = large.clone();
    let origin = Origin::start(move |_| answer("200 OK", "Cache-Control: max-age=3600\r\n", &content));
    let roomy = r#"
        threads = 1
        [limits]
        memory = "4GiB"
        [[route]]
    "#;
    let files = h2c(www(), &format!("{roomy}files = \"www\"\n"));
    let cached = h2c(Folder::new(), &format!("{roomy}proxy = \"{}\"\ncache = true\n", origin.url));
    eventually("it is stored", || {
        cached.send("GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").is_hit()
    });
    let of_file_kib = each_stream_kib(&files);
    let of_object_kib = each_stream_kib(&cached);
    // A buffer read ahead would be at least 16 KiB.
    assert!(of_object_kib < of_file_kib + 12, "{of_object_kib} KiB, {of_file_kib} KiB of a file");
    assert_eq!(origin.asks().len(), 1);
    let get = |range: &str| {
        let arguments = ["--http2-prior-knowledge", "-H", "Host: a", "-r", range, &cached.url("/large")];
        rig::text(&curl(&arguments).stdout)
    };
    assert!(get("0-") == large && get("99999-1600000") == large[99_999..=1_600_000]);
}

#[test]
fn status_reports_held_memory() {
    let rig = Rig::config(
        www(),
        r#"
        threads = 1
        [limits]
        memory = "16MiB"
        [[route]]
        files = "www"
        "#,
    );
    let reported = || {
        let output =
            rig::komainu().args(["status", "--json", "--pid", &rig.child.id().to_string()]).output().unwrap();
        let servers: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        servers[0]["memory"].clone()
    };
    assert_eq!(reported()["budget_bytes"], BUDGET_MIB << 20);
    let request = "GET /medium HTTP/1.1\r\nHost: a\r\n\r\n".repeat(200);
    let clients: Vec<_> = (0..50).filter_map(|_| reads_nothing(&rig, request.as_bytes())).collect();
    eventually("it is counted", || reported()["held_bytes"].as_u64().unwrap() > 50 * 16 * 1024);
    drop(clients);
    eventually("it is free again", || reported()["held_bytes"].as_u64().unwrap() < 50 * 1024);
}

#[test]
fn workers_may_use_huge_pages_when_small_server_does_not() {
    let folder = Folder::new();
    folder.write("app.psgi", "sub { [200, [], [$$]] }");
    let app = hosted::only("psgi = \"app.psgi\"\nworkers = 1");
    let rig = hosted::start(folder, &format!("limits = {{ memory = \"{BUDGET_MIB}MiB\" }}\n{app}"));
    let worker: u32 = rig.get("/").expect_status(200).text().parse().unwrap();
    let huge_pages = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("THP_enabled:").map(str::trim));
        line.map(str::to_owned)
    };
    let server = huge_pages(rig.child.id());
    if server.is_none() {
        return;
    }
    assert_eq!((server.as_deref(), huge_pages(worker).as_deref()), (Some("0"), Some("1")));
}
