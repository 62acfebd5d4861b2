//! The table of docs/security.md for HTTP/1, the PROXY protocol, the control socket and the logs: memory.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;

use crate::bounds;
use crate::bounds::{Client, bytes, file_bytes, hold, hold_briefly};
use crate::hosted;
use crate::rig;
use crate::rig::{Folder, Rig, eventually};

const PLAIN: &str = r#"
    threads = 1
    temp_path = "."
    [limits]
    memory = "8GiB"
"#;
const LARGE_BYTES: usize = 3_000_000;
const HUGE_BYTES: usize = 10_000_000;

fn www() -> Folder {
    let folder = Folder::new();
    folder.write("www/small", "S").write("www/medium", vec![b'm'; 30_000]);
    // Text that compresses poorly.
    let mut random = fastrand::Rng::with_seed(1);
    let text = std::iter::repeat_with(|| random.u8(b' '..=b'~'));
    folder.write("www/large.txt", text.take(LARGE_BYTES).collect::<Vec<u8>>());
    folder
}

fn files() -> Rig {
    Rig::config(
        www(),
        &format!(
            r#"
            {PLAIN}
            [[route]]
            files = "www"
            "#
        ),
    )
}

fn push(client: &mut Client) {
    client.push();
}

/// Opens `count` clients that send as much of `request` as the server accepts and read nothing.
fn send(rig: &Rig, state: &str, count: usize, request: impl AsRef<[u8]>) -> Vec<Client> {
    let request = bytes(request);
    hold(rig, state, count, || Client::new(rig).sends(&request), push)
}

/// Starts an upstream server that sends `answer`, then repeats `more` endlessly; it reads only the request
/// head.
fn upstream(answer: &'static [u8], more: &'static [u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let _ = stream.read(&mut [0; 1024]);
                let mut sent = stream.write_all(answer);
                let more = more.repeat(64 * 1024 / more.len().max(1));
                while sent.is_ok() && !more.is_empty() {
                    sent = stream.write_all(&more);
                }
                std::thread::sleep(rig::PATIENCE);
            });
        }
    });
    port
}

fn proxy(port: u16, more: &str) -> Rig {
    let to = format!("[[route]]\nproxy = {{ to = \"http://127.0.0.1:{port}\"{more} }}\n");
    Rig::config(Folder::new(), &format!("{PLAIN}{to}"))
}

#[test]
fn security_document_contains_the_table_of_bounds() {
    let read = |path: &str| {
        std::fs::read_to_string(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
    };
    let lines: String = bounds::table::rows().map(bounds::table::Row::line).collect();
    let table = format!("{}{lines}", bounds::table::HEAD);
    let document = read("../../docs/security.md");
    assert!(document.contains(&table), "docs/security.md must have this table:\n{table}");
    let tests = ["http1", "beside", "h2", "sockets", "tls", "work"]
        .map(|name| read(&format!("tests/security/{name}.rs")))
        .concat();
    for row in bounds::table::rows() {
        assert!(tests.contains(&format!("fn {}()", row.test)), "no test {}", row.test);
        assert!(tests.contains(&format!("\"{}\"", row.state)), "no test measures {:?}", row.state);
    }
}

#[test]
fn idle_and_slow_connections_stay_within_bounds() {
    // Each state gets a new server: memory freed by one state would be reused by the next.
    let open = |rig: &Rig, state: &str, count: usize, request: &str| drop(send(rig, state, count, request));
    open(&files(), "connected, silent", 2_000, "");
    let rig = files();
    let idle = || Client::new(&rig).ask("HEAD /small HTTP/1.1\r\nHost: a\r\n\r\n");
    drop(hold(&rig, "idle after a request", 2_000, idle, push));
    open(&files(), "head begun", 2_000, "GET / HTTP/1.1\r\nHost: a\r\n");
    let long = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}", "x".repeat(16_000));
    open(&files(), "head nearly whole", 500, &long);
    let brief = |rig: &Rig, state: &str, request: &str| {
        let request = bytes(request);
        drop(hold_briefly(rig, state, 1_000, || Client::new(rig).sends(&request), push));
    };
    brief(&files(), "refused (400), not read", "GET /\r\n\r\n");
    let quick = format!(
        r#"
        {PLAIN}
        [timeouts]
        head = "300ms"
        [[route]]
        files = "www"
        "#
    );
    let rig = Rig::config(www(), &quick);
    brief(&rig, "too slow (408), not read", "GET / HTTP/1.1\r\nHost: a\r\n");
}

#[test]
fn slow_request_bodies_stay_within_bounds() {
    let post = |len: usize, sent: usize| {
        format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n{}", "x".repeat(sent))
    };
    drop(send(&files(), "body sent slowly, to `files`, `respond`, `redirect`", 300, post(65_000, 64_000)));
    let rig = proxy(upstream(b"", b""), "");
    // The kernel buffers some megabytes.
    drop(send(&rig, "body sent slowly, to `proxy`", 100, post(15_000_000, 8_000_000)));
    let app = "def app(environ, start):\n    start('200 OK', [])\n    return [b'']\n";
    let start = |more: &str| {
        hosted::start(
            hosted::folder("a.py", app),
            &format!("{PLAIN}{}", hosted::only(&format!("wsgi = \"a.py:app\"\n{more}"))),
        )
    };
    drop(send(&start(""), "body sent slowly, to an application, in memory", 300, post(128_000, 127_000)));
    let rig = start("spill = \"50MiB\"\n");
    let clients = send(&rig, "body sent slowly, to an application, in a file", 100, post(400_000, 300_000));
    assert_files("uploads are in files", &rig, 50 << 20);
    drop(clients);
    let expects = "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 400000\r\n\r\n";
    drop(send(&rig, "`100-continue`, and no body", 500, expects));
}

#[test]
fn unread_file_responses_stay_within_bounds() {
    let many = "GET /medium HTTP/1.1\r\nHost: a\r\n\r\n".repeat(400);
    drop(send(&files(), "pipelining, nothing read", 300, many));
    drop(send(&files(), "slow reader of a file", 500, "GET /large.txt HTTP/1.1\r\nHost: a\r\n\r\n"));
}

#[test]
fn unread_proxied_responses_stay_within_bounds() {
    let origin = files();
    // More than the kernel's buffers hold.
    origin.folder.write("www/huge", vec![b'h'; HUGE_BYTES]);
    let port = origin.address.port();
    let get = "GET /huge HTTP/1.1\r\nHost: a\r\n\r\n";
    drop(send(&proxy(port, ", spill = \"0B\""), "slow reader of a proxied response, in memory", 200, get));
    let rig = proxy(port, ", spill = \"100MiB\"");
    let clients = send(&rig, "slow reader of a proxied response, in a file", 100, get);
    assert_files("responses are in files", &rig, 100 << 20);
    drop(clients);
    let hints = b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n";
    let rig = proxy(upstream(b"", hints), "");
    let get = bytes(get);
    drop(hold_briefly(&rig, "1xx without end, not read", 100, || Client::new(&rig).sends(&get), push));
}

#[test]
fn unread_compressed_responses_stay_within_bounds() {
    let origin = files();
    let start = || {
        Rig::config(
            Folder::new(),
            &format!(
                r#"
                compress = true
                {PLAIN}
                [[route]]
                proxy = {{ to = "http://{}", spill = "0B" }}
                "#,
                origin.address
            ),
        )
    };
    for (coding, state) in [
        ("gzip", "slow reader of a response compressed with gzip"),
        ("br", "slow reader of a response compressed with br"),
        ("zstd", "slow reader of a response compressed with zstd"),
    ] {
        let get = format!("GET /large.txt HTTP/1.1\r\nHost: a\r\nAccept-Encoding: {coding}\r\n\r\n");
        drop(send(&start(), state, 40, get));
    }
}

#[test]
fn unread_application_responses_stay_within_bounds() {
    let app = "def app(environ, start):\n    start('200 OK', [('Content-Length', '10000000')])\n    \
        return (b'x' * 100000 for _ in range(100))\n";
    let start = |more: &str| {
        let app_text = hosted::only(&format!("wsgi = \"a.py:app\"\nthreads = 100\n{more}"));
        hosted::start(hosted::folder("a.py", app), &format!("{PLAIN}{app_text}"))
    };
    let get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    drop(send(&start("spill = \"0B\"\n"), "slow reader of an application's response, in memory", 50, get));
    let rig = start("spill = \"100MiB\"\n");
    let clients = send(&rig, "slow reader of an application's response, in a file", 100, get);
    assert_files("responses are in files", &rig, 100 << 20);
    drop(clients);
}

#[test]
fn slow_proxy_protocol_headers_stay_within_bounds() {
    let folder = www();
    let listen = "listen = { address = \"127.0.0.1:0\", proxy_protocol = [\"127.0.0.0/8\"] }\n";
    let user = rig::as_we_are();
    folder.write(
        "komainu.toml",
        format!(
            r#"
            {listen}
            {user}
            {PLAIN}
            [[route]]
            files = "www"
            "#
        ),
    );
    let mut command = rig::komainu();
    command.args(["start", "-c"]).arg(folder.at("komainu.toml"));
    let rig = Rig::start(command, folder);
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x10\x00".to_vec();
    header.extend([0; 4_000]);
    drop(send(&rig, "PROXY header nearly whole", 500, header));
}

#[test]
fn incomplete_control_commands_stay_within_bounds() {
    let rig = files();
    let path = control_socket(&rig);
    let open = || {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(&[b'x'; 4_000]).unwrap();
        stream
    };
    drop(hold(&rig, "control socket, line begun", 60, open, |_| {}));
}

/// Asserts that temporary files use a good part of their limit, but do not exceed it. Responses whose files do
/// not fit wait for their clients, and how many have begun by then differs: a quarter of the limit is usual.
fn assert_files(what: &str, rig: &Rig, bytes_max: u64) {
    eventually(what, || file_bytes(rig, rig.folder.path()) > bytes_max / 8);
    let bytes = file_bytes(rig, rig.folder.path());
    assert!(bytes <= bytes_max, "{what}: {bytes}");
}

fn control_socket(rig: &Rig) -> String {
    let links = std::fs::read_to_string("/proc/net/unix").unwrap();
    let name = format!("/{}.sock", rig.child.id());
    let line = links.lines().find(|line| line.ends_with(&name)).unwrap();
    line[line.find('/').unwrap()..].to_owned()
}

#[test]
fn unread_log_lines_stay_within_bounds() {
    let folder = www();
    let fifo = folder.at("log");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    // Opened for reading, but never read.
    let reader = std::fs::OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
    let rig = Rig::config(
        folder,
        &format!(
            r#"
            {PLAIN}
            [log]
            access = "combined"
            file = "log"
            [[route]]
            respond = 204
            "#
        ),
    );
    // 40 MB of log lines from one connection, whose responses are read.
    let request = bytes(format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(8_000)).repeat(50));
    let flood = || {
        let mut stream = rig.connect();
        for _ in 0..100 {
            stream.write_all(&request).unwrap();
            let mut answers = 0;
            let mut buffer = [0; 8192];
            while answers < 50 {
                let len = stream.read(&mut buffer).unwrap();
                answers += buffer[..len].windows(4).filter(|end| end == b"\r\n\r\n").count();
            }
        }
        stream
    };
    drop(hold(&rig, "log lines that nobody takes", 1, flood, |_| {}));
    drop(reader);
}
