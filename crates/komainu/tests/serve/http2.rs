//! HTTP/2, as seen by clients.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};

use crate::rig;
use crate::rig::{Folder, Rig, as_we_are, curl, environment, eventually, komainu, text};
use bench::attack::wire::*;

const H2: &str = "--http2-prior-knowledge";

fn server() -> Rig {
    let folder = Folder::new();
    folder.write("a", "0123456789").write("index.html", "<h1>hi</h1>").write("large", "x".repeat(3_000_000));
    let mut command = komainu();
    command.args(["run", "--h2c", "--listen", "127.0.0.1:0"]).arg(folder.path());
    Rig::start(command, folder)
}

#[test]
fn files_are_served_over_both_versions_at_one_address() {
    let rig = server();
    let url = rig.url("/a");
    let format = "|%{http_version} %{http_code} %{num_connects}|";
    assert_eq!(text(&curl(&[H2, "-w", format, &url]).stdout), "0123456789|2 200 1|");
    assert_eq!(text(&curl(&["-w", format, &url]).stdout), "0123456789|1.1 200 1|");
    assert_eq!(text(&curl(&[H2, "-r", "2-3", "-w", format, &url]).stdout), "23|2 206 1|");
    let head = text(&curl(&[H2, "-I", &url]).stdout).to_ascii_lowercase();
    assert!(head.starts_with("http/2 200") && head.contains("content-length: 10"), "{head}");
    assert!(!head.contains("connection:") && head.contains("server: komainu"), "{head}");
    assert_eq!(text(&curl(&[H2, "-w", "%{http_code}", "-o", "/dev/null", &rig.url("/none")]).stdout), "404");
    let large = curl(&[H2, &rig.url("/large")]).stdout;
    assert!(large.len() == 3_000_000 && large.iter().all(|&byte| byte == b'x'));
}

#[test]
fn address_without_h2c_rejects_http2() {
    let folder = Folder::new();
    folder.write("www/a", "0123456789");
    let rig = Rig::config(
        folder,
        r#"
        [log]
        access = "json"
        file = "access.log"
        [[route]]
        files = "www"
        "#,
    );
    let refused = curl(&[H2, &rig.url("/a")]);
    assert!(!refused.status.success() && refused.stdout.is_empty());
    rig.get("/a").expect(200, "0123456789");
    // The server's log and `komainu bench` both name the missing setting.
    let logged = || std::fs::read_to_string(rig.folder.at("access.log")).unwrap_or_default();
    eventually("the log names the remedy", || {
        logged().contains("\"status\":505") && logged().contains("h2c = true")
    });
    let bench = komainu().args(["bench", "--http2", "-n", "1", "-c", "1", &rig.url("/a")]).output().unwrap();
    let said = text(&[bench.stdout, bench.stderr].concat());
    assert!(said.contains("h2c = true"), "{said}");
}

#[test]
fn bench_speaks_http2_with_and_without_tls() {
    let folder = Folder::new();
    folder.certify();
    folder.write("large", "x".repeat(200_000));
    let mut secure = komainu();
    secure.args(["run", "--listen", "127.0.0.1:0", "--tls-certificate"]);
    secure.arg(folder.at("cert.pem")).arg("--tls-key").arg(folder.at("key.pem")).arg(folder.path());
    for (scheme, rig) in [("http", server()), ("https", Rig::start(secure, folder))] {
        let url = format!("{scheme}://{}/large", rig.address);
        let bench = [
            "bench",
            "--http2",
            "-k",
            "-m",
            "20",
            "-c",
            "4",
            "-n",
            "500",
            "--timeout",
            "1m",
            "--verify",
            "--expect",
            "errors = 0",
        ];
        let output = komainu().args(bench).args(["--expect", "responses = 500"]).arg(&url).output().unwrap();
        let reported = text(&output.stdout);
        assert!(output.status.success() && reported.contains("HTTP/2, 20 streams each"), "{reported}");
    }
}

fn proxy_to(url: &str) -> Rig {
    let folder = Folder::new();
    let listen = "listen = { address = \"127.0.0.1:0\", h2c = true }";
    let route = format!(
        r#"
        [[site]]
        [[site.route]]
        proxy = "{url}"
        "#
    );
    folder.write("komainu.toml", format!("{listen}\n{}{route}", as_we_are()));
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    Rig::start(command, folder)
}

/// Starts an upstream server that reads one request and responds with the length of its body.
fn counting_origin() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = Vec::new();
        let mut piece = vec![0; 65_536];
        let length = |bytes: &[u8]| -> Option<(usize, usize)> {
            let head = text(bytes).split_once("\r\n\r\n")?.0.to_ascii_lowercase();
            let length = head.split("content-length: ").nth(1)?.split('\r').next()?.parse().ok()?;
            Some((head.len() + 4, length))
        };
        let length = loop {
            let read = stream.read(&mut piece).unwrap();
            assert!(read > 0, "the request is cut");
            bytes.extend_from_slice(&piece[..read]);
            if let Some((head, length)) = length(&bytes[..bytes.len().min(2048)])
                && bytes.len() >= head + length
            {
                break length.to_string();
            }
        };
        let len = length.len();
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{length}")
            .unwrap();
    });
    address
}

#[test]
fn http2_requests_and_bodies_reach_upstream_servers() {
    let origin = server();
    let rig = proxy_to(&origin.url(""));
    let format = "|%{http_version} %{http_code}|";
    assert_eq!(text(&curl(&[H2, "-w", format, &rig.url("/a")]).stdout), "0123456789|2 200|");
    let large = curl(&[H2, &rig.url("/large")]).stdout;
    assert_eq!(large.len(), 3_000_000);
    // curl 7.88 fails if a response arrives before its request is complete, so the origin reads all of it.
    let counting = counting_origin();
    let rig = proxy_to(&format!("http://{counting}"));
    let data = format!("@{}", origin.folder.at("large").display());
    let posted = curl(&[H2, "-w", format, "--data-binary", &data, &rig.url("/a")]);
    assert_eq!(text(&posted.stdout), "3000000|2 200|");
}

/// A closed connection and empty content stay readable until they are consumed, which must not block others.
#[test]
fn client_lost_during_100_continue_blocks_no_other() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = listener.local_addr().unwrap();
    let folder = Folder::new();
    let listen = "threads = 1\nlisten = { address = \"127.0.0.1:0\", h2c = true }\n";
    let routes = format!(
        r#"
        [[route]]
        path = "/a"
        respond = "here"
        [[route]]
        proxy = "http://{silent}"
        "#
    );
    folder.write("komainu.toml", format!("{}{listen}{routes}", as_we_are()));
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let rig = Rig::start(command, folder);
    let target = AttackTarget { authority: "a".into(), path: "/".into(), is_https: false };
    let mut head = target.header_block(true);
    push_literal(&mut head, b"expect", b"100-continue");
    let start = [client_start(&[]), frame(kind::HEADERS, END_HEADERS, 1, &head)].concat();
    let empty = frame(kind::DATA, 8, 1, &[10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    for leaves in [true, false] {
        let mut stream = rig.connect();
        stream.write_all(&start).unwrap();
        let (mut upstream, _) = listener.accept().unwrap();
        if leaves {
            stream.shutdown(std::net::Shutdown::Write).unwrap()
        } else {
            stream.write_all(&empty).unwrap()
        }
        rig.get("/a").expect(200, "here");
        if leaves {
            // Well before the body is sent without `100 Continue`.
            upstream.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
            upstream.read_to_end(&mut Vec::new()).expect("the request ends with its client");
        }
    }
}

/// The client answers each PING only after another window has been consumed, like a link with a latency far
/// above the server's processing time.
#[test]
fn the_window_of_an_upload_grows_with_its_rate() {
    const BODY_BYTES: usize = 6_000_000;
    let rig = proxy_to(&format!("http://{}", counting_origin()));
    let target = AttackTarget { authority: "a".into(), path: "/".into(), is_https: false };
    let mut stream = rig.connect();
    let mut head = target.header_block(true);
    push_literal(&mut head, b"content-length", BODY_BYTES.to_string().as_bytes());
    let start = [client_start(&[]), frame(kind::HEADERS, END_HEADERS, 1, &head)].concat();
    stream.write_all(&start).unwrap();
    let mut connection = 65_535_i64;
    let mut window = 65_536_i64;
    let mut sent = 0;
    let mut announced = 0_i64;
    let mut held_ping = None;
    let mut largest = 0;
    let mut is_answered = false;
    while !is_answered {
        let len = window.min(connection).min(16_384).min((BODY_BYTES - sent) as i64);
        if len > 0 {
            let ends = u8::from(sent + len as usize == BODY_BYTES);
            stream.write_all(&frame(kind::DATA, ends, 1, &vec![b'x'; len as usize])).unwrap();
            (sent, window, connection) = (sent + len as usize, window - len, connection - len);
            largest = largest.max(window);
            continue;
        }
        let mut header = [0; 9];
        stream.read_exact(&mut header).unwrap();
        let mut payload = vec![0; usize::from(header[1]) << 8 | usize::from(header[2])];
        stream.read_exact(&mut payload).unwrap();
        let number = payload.first_chunk().map_or(0, |bytes| i64::from(u32::from_be_bytes(*bytes)));
        match (header[3], header[8]) {
            (kind::WINDOW_UPDATE, 0) => connection += number,
            (kind::WINDOW_UPDATE, _) => {
                (window, announced) = (window + number, announced + number);
                largest = largest.max(window);
            }
            (kind::PING, _) => (held_ping, announced) = (Some(payload), 0),
            (kind::HEADERS, _) => is_answered = true,
            _ => {}
        }
        if announced >= largest
            && sent < BODY_BYTES
            && let Some(payload) = held_ping.take()
        {
            stream.write_all(&frame(kind::PING, 1, 0, &payload)).unwrap();
        }
    }
    assert!(largest >= 400_000, "the largest window was {largest}");
}

/// Starts a server with a certificate and a proxy that connects to it over HTTP/2.
fn front_and_back(size: usize) -> (Rig, Rig) {
    let back = Folder::new();
    back.certify().write("www/a", "0123456789").write("www/large", "x".repeat(size));
    let listen = "listen = [{ address = \"127.0.0.1:0\", tls = true }]\n\
                  tls.default = { certificate = \"cert.pem\", key = \"key.pem\" }\n";
    back.write(
        "komainu.toml",
        format!(
            r#"
            {}
            {listen}
            [[site]]
            [[site.route]]
            files = "www"
            "#,
            as_we_are()
        ),
    );
    let mut command = komainu();
    command.arg("start").arg("-c").arg(back.at("komainu.toml"));
    let back = Rig::start(command, back);
    let front = Folder::new();
    front.write("komainu.toml", front_text(&back, ""));
    let mut command = komainu();
    command.arg("start").arg("-c").arg(front.at("komainu.toml"));
    (Rig::start(command, front), back)
}

fn front_text(back: &Rig, more: &str) -> String {
    let port = back.address.port();
    format!(
        r#"
        {}
        threads = 1
        listen = {{ address = "127.0.0.1:0", h2c = true }}
        [[site]]
        [[site.route]]
        proxy = {{ to = "https://localhost:{port}", http = "2", spill = "0B", tls = {{ ca = "{}" }}{more} }}
        "#,
        as_we_are(),
        back.folder.at("cert.pem").display()
    )
}

#[test]
fn http2_upstream_requests_survive_reload_and_stop() {
    const SIZE: usize = 40_000_000;
    let (mut front, back) = front_and_back(SIZE);
    let format = "|%{http_version} %{http_code}|";
    assert_eq!(text(&curl(&[H2, "-w", format, &front.url("/a")]).stdout), "0123456789|2 200|");
    assert_eq!(text(&curl(&["-w", format, &front.url("/a")]).stdout), "0123456789|1.1 200|");
    // More than all buffers on the way hold, so that the request is in progress during the changes.
    let ask = |target: &str| {
        let mut client = front.connect();
        write!(client, "GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut first = [0; 12];
        client.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"HTTP/1.1 200");
        client
    };
    let rest = |mut client: std::net::TcpStream| {
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).unwrap();
        rest.len() - (rest.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4)
    };
    let one = ask("/large");
    let other = ask("/large");
    front
        .folder
        .write("komainu.toml", front_text(&back, ", slow_start = \"1s\", request_headers.set.x-new = \"1\""));
    front.signal("-HUP");
    rig::eventually("a reload", || front.reported().contains("the configuration was read again"));
    assert_eq!(text(&curl(&[H2, &front.url("/a")]).stdout), "0123456789");
    assert_eq!(rest(one), SIZE);
    front.signal("-TERM");
    assert_eq!(rest(other), SIZE);
    assert!(front.ended().success());
}

/// The Python of the tests' environment, if it has gRPC.
fn python_with_grpc() -> Option<std::path::PathBuf> {
    let python = environment().join("bin/python");
    let found = Command::new(&python).args(["-c", "import grpc"]).output();
    if found.is_ok_and(|output| output.status.success()) {
        return Some(python);
    }
    let missing = "Python's grpcio is not installed; scripts/setup test brings it";
    assert!(std::env::var_os("KOMAINU_TEST_ALL").is_none(), "{missing}");
    eprintln!("SKIPPED: {missing}");
    None
}

#[test]
fn grpc_calls_pass_with_metadata_errors_and_deadlines() {
    let Some(python) = python_with_grpc() else { return };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/grpc_echo.py");
    // The server exits at the end of its input.
    let mut server = Command::new(&python)
        .args([script, "serve"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut port = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut port).unwrap();
    // An upstream server that accepts connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = Folder::new();
    let route = |path: &str, port: &str| {
        format!(
            r#"
            [[site.route]]
            path = "{path}"
            proxy = "h2c://127.0.0.1:{port}"
            "#
        )
    };
    let routes = route("/echo.Echo/*", port.trim())
        + &route("/down.Down/*", "1")
        + &route("/silent.Silent/*", &silent.local_addr().unwrap().port().to_string());
    let listen = "listen = { address = \"127.0.0.1:0\", h2c = true }\n";
    folder.write("komainu.toml", format!("{}{listen}[[site]]\n{routes}", as_we_are()));
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let rig = Rig::start(command, folder);
    let calls = Command::new(&python).args([script, "call", &rig.address.to_string()]).output().unwrap();
    assert!(calls.status.success(), "{}{}", text(&calls.stdout), text(&calls.stderr));
    assert_eq!(text(&calls.stdout), "all calls are as they should be\n");
    let url = rig.url("/silent.Silent/Any");
    let call = |kind: &str| {
        let fields = [H2, "-s", "-i", "-X", "POST", "-H", "grpc-timeout: 100m", "-H", kind];
        text(&curl(&[&fields[..], &["--data-binary", "", &url]].concat()).stdout)
    };
    let late = call("content-type: application/grpc+proto");
    assert!(late.starts_with("HTTP/2 200") && late.contains("grpc-status: 4\r\n"), "{late}");
    assert!(late.contains("grpc-message: ") && late.contains("content-type: application/grpc\r\n"), "{late}");
    drop(server.stdin.take());
    server.wait().unwrap();
}

/// A client that closes its sending side sends no further WINDOW_UPDATE, so a stream that waits for one ends
/// at once.
#[test]
fn half_closed_client_with_closed_window_is_disconnected() {
    let folder = Folder::new();
    folder.write("www/large", "x".repeat(3_000_000));
    let listen = r#"
        listen = { address = "127.0.0.1:0", h2c = true }
        [timeouts]
        write = "10m"
        idle = "10m"
    "#;
    let route = r#"
        [[site]]
        [[site.route]]
        files = "www"
    "#;
    folder.write("komainu.toml", format!("{}{listen}{route}", as_we_are()));
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let rig = Rig::start(command, folder);
    let mut client = rig.connect();
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    // SETTINGS with an initial window of 0.
    client.write_all(b"\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0\0").unwrap();
    // HEADERS with END_STREAM and END_HEADERS: GET, http, "/large", "a".
    client.write_all(b"\0\0\x0d\x01\x05\0\0\0\x01\x82\x86\x04\x06/large\x01\x01a").unwrap();
    let mut first = [0; 9];
    client.read_exact(&mut first).unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    assert!(rest.len() < 10_000, "{}", rest.len());
}

/// An h2spec case that fails without TLS: such an address also speaks HTTP/1, and answers 400.
const PREFACE: &str = "Sends invalid connection preface";
/// Cases that may fail because the handler has responded, and the rest of the request was declined, before
/// the invalid frame arrives.
const ANSWERED_BEFORE: [&str; 5] = [
    "Sends a DATA frame after sending RST_STREAM frame",
    "Sends a HEADERS frame after sending RST_STREAM frame",
    "Sends a HEADERS frame that contains a pseudo-header field as trailers",
    "Sends a second HEADERS frame without the END_STREAM flag",
    "Sends a HEADERS frame with the \"content-length\" header field which does not equal the",
];

#[test]
fn access_log_names_the_reason_for_ended_requests() {
    let folder = Folder::new();
    folder.write("www/large", "x".repeat(3_000_000));
    let listen = "listen = { address = \"127.0.0.1:0\", h2c = true }\n";
    let log = r#"
        [log]
        access = "json"
        file = "access.log"
    "#;
    folder.write(
        "komainu.toml",
        format!(
            r#"
            {listen}
            {}
            {log}
            [[route]]
            files = "www"
            "#,
            as_we_are()
        ),
    );
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let rig = Rig::start(command, folder);
    let target = AttackTarget { authority: "a".into(), path: "/large".into(), is_https: false };
    let lines = || std::fs::read_to_string(rig.folder.at("access.log")).unwrap_or_default();
    let by_us = "ended by the server with ";
    for (number, (sent, fault)) in [
        (window_update(1, 0), format!("{by_us}PROTOCOL_ERROR: window increment of 0")),
        (window_update(0, 0), format!("{by_us}PROTOCOL_ERROR: window increment of 0")),
        (window_update(1, 0x7fff_ffff).repeat(2), format!("{by_us}FLOW_CONTROL_ERROR: window too large")),
        (
            frame(kind::PING, 0, 0, &[0; 8]).repeat(3_000),
            format!("{by_us}ENHANCE_YOUR_CALM: too many frames without progress"),
        ),
        (rst_stream(1, 8), "connection closed by the peer".into()),
    ]
    .into_iter()
    .enumerate()
    {
        let mut stream = rig.connect();
        stream.write_all(&[client_start(&[(INITIAL_WINDOW_SIZE, 0)]), target.get(1)].concat()).unwrap();
        // The response's head shows that the request has begun.
        let mut received = Vec::new();
        let mut piece = [0; 4096];
        while !received.windows(9).any(|frame: &[u8]| frame[3..] == [kind::HEADERS, END_HEADERS, 0, 0, 0, 1])
        {
            let len = stream.read(&mut piece).unwrap();
            assert!(len > 0, "{fault}");
            received.extend_from_slice(&piece[..len]);
        }
        stream.write_all(&sent).unwrap();
        eventually("a line in the log", || lines().matches('\n').count() > number);
        let line = lines().lines().nth(number).unwrap().to_owned();
        assert!(line.contains(&format!("\"fault\":\"{fault}\"")), "{fault}: {line}");
    }
}

/// Runs all 146 cases of h2spec (github.com/summerwind/h2spec).
fn h2spec(rig: &Rig, arguments: &[&str], known: &str) {
    let h2spec = environment().with_file_name("h2spec").join("h2spec");
    if !h2spec.is_file() {
        eprintln!("SKIPPED: h2spec is not installed; scripts/setup test brings it");
        return;
    }
    let port = rig.address.port().to_string();
    let fixed = ["--strict", "-h", "127.0.0.1", "-p", &port, "-o", "3"];
    // A case needs to pass once: on a busy machine the response may be complete before an invalid frame
    // arrives.
    let mut failed: Option<Vec<String>> = None;
    for _ in 0..5 {
        let output = Command::new(&h2spec).args(fixed).args(arguments).output().unwrap();
        let report = text(&output.stdout);
        assert!(report.contains("146 tests"), "{report}");
        let failures = report.split("Failures:").nth(1).unwrap_or_default();
        let now: Vec<String> = failures
            .lines()
            .filter_map(|line| line.split_once("× "))
            .map(|(_, case)| case.to_string())
            .filter(|case| !ANSWERED_BEFORE.iter().chain([&known]).any(|known| case.contains(known)))
            .filter(|case| failed.as_ref().is_none_or(|before| before.contains(case)))
            .collect();
        if now.is_empty() {
            return;
        }
        failed = Some(now);
    }
    panic!("{failed:#?}");
}

#[test]
fn h2spec_has_only_known_failures_without_tls() {
    h2spec(&server(), &[], PREFACE);
}

#[test]
fn h2spec_has_only_known_failures_over_tls() {
    let folder = Folder::new();
    folder.certify().write("index.html", "<h1>hi</h1>");
    let mut command = komainu();
    command.args(["run", "--listen", "127.0.0.1:0", "--tls-certificate"]);
    command.arg(folder.at("cert.pem")).arg("--tls-key").arg(folder.at("key.pem")).arg(folder.path());
    h2spec(&Rig::start(command, folder), &["-t", "-k"], ANSWERED_BEFORE[0]);
}
