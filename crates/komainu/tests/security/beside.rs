//! The table of docs/security.md for side effects of a request and for the control listener: memory.

use std::io::Write;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;

use crate::bounds::{Client, bytes, hold, hold_briefly};
use crate::rig;
use crate::rig::{Folder, PATIENCE, Rig, read_answer};

const PLAIN: &str = r#"
    threads = 1
    temp_path = "."
    [limits]
    memory = "8GiB"
"#;

/// Starts a server that accepts connections and reads nothing.
fn silent() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut taken = Vec::new();
        while let Ok((stream, _)) = listener.accept() {
            taken.push(stream);
        }
    });
    port
}

fn start(config: &str) -> Rig {
    Rig::config(Folder::new(), &format!("{PLAIN}{config}"))
}

fn send(rig: &Rig, state: &str, count: usize, request: impl AsRef<[u8]>) {
    let request = bytes(request);
    drop(hold(rig, state, count, || Client::new(rig).sends(&request), |client| _ = client.push()));
}

#[test]
fn delayed_requests_stay_within_bounds() {
    const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let limit = "limit = { rate = \"1/m\", burst = 0, delay = \"60s\", key = \"header:X\" }";
    let rig = start(&format!(
        r#"
        [[route]]
        {limit}
        respond = "ok"
        "#
    ));
    let mut at = 0;
    // Two requests with each key; the second one waits for a minute.
    let open = || {
        at += 1;
        let request = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {at}\r\n\r\n");
        Client::new(&rig).ask(&request).sends(&bytes(request))
    };
    drop(hold(&rig, "request that a `limit` delays", 900, open, |client| _ = client.push()));
    let ask = format!(
        r#"
        [[route]]
        auth = {{ ask = "http://127.0.0.1:{}" }}
        respond = "ok"
        "#,
        silent()
    );
    send(&start(&ask), "request that `auth.ask` asks about", 500, GET);
    let to =
        format!("[[route]]\nproxy = {{ to = \"fastcgi://127.0.0.1:{}\", spill = \"100MiB\" }}\n", silent());
    let post = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 400000\r\n\r\n{}", "x".repeat(300_000));
    send(&start(&to), "body sent slowly, to a FastCGI server", 100, post);
}

/// Sends a request `count` times on one connection and reads each response.
fn flood(rig: &Rig, state: &str, count: usize, request: &str) {
    let open = || {
        let mut stream = rig.connect();
        for _ in 0..count {
            stream.write_all(request.as_bytes()).unwrap();
            read_answer(&mut stream).expect(200, "ok");
        }
        stream
    };
    drop(hold_briefly(rig, state, 1, open, |_| {}));
}

#[test]
fn mirrors_spans_and_log_lines_stay_within_bounds() {
    let get = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(8_000));
    let post = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n{}", "x".repeat(60_000));
    let origin = start("[[route]]\nrespond = \"ok\"\n");
    let mirror = format!(
        r#"
        [[route]]
        mirror = {{ to = "http://127.0.0.1:{}", timeout = "10m" }}
        proxy = "http://{}"
        "#,
        silent(),
        origin.address
    );
    flood(&start(&mirror), "copies of a `mirror` that nobody answers", 1_000, &post);
    let tracing = format!(
        r#"
        [tracing]
        enabled = true
        sample = "100%"
        to = "http://127.0.0.1:{}"
        [[route]]
        respond = "ok"
        "#,
        silent()
    );
    flood(&start(&tracing), "spans that no collector takes", 10_000, &get);
    let log = format!(
        r#"
        [log]
        access = "combined"
        file = {{ syslog = "tcp://127.0.0.1:{}" }}
        [[route]]
        respond = "ok"
        "#,
        silent()
    );
    flood(&start(&log), "log lines that a receiver does not take", 5_000, &get);
}

#[test]
fn control_api_clients_stay_within_bounds() {
    let rig = start(
        r#"
        [control]
        listen = "unix:control.sock"
        [[route]]
        respond = "ok"
        "#,
    );
    let connect = || {
        let stream = UnixStream::connect(rig.folder.at("control.sock")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    let post = format!(
        "POST /v1/{} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}",
        "x".repeat(1_000)
    );
    let open = || {
        let mut stream = connect();
        stream.write_all(b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        // Each refused change adds a log line.
        for _ in 0..150 {
            let mut other = connect();
            other.write_all(post.as_bytes()).unwrap();
            let answer = rig::read_to_close(&mut other);
            assert!(answer.starts_with(b"HTTP/1.1 4"), "{}", String::from_utf8_lossy(&answer));
        }
        stream
    };
    drop(hold_briefly(&rig, "follower of `/v1/events` who reads nothing", 12, open, |_| {}));
    let history = b"GET /v1/history HTTP/1.1\r\nHost: x\r\n\r\n".repeat(500);
    let open = || {
        let mut stream = connect();
        stream.set_nonblocking(true).unwrap();
        // As much as the server accepts.
        let _ = stream.write(&history);
        stream
    };
    drop(hold_briefly(&rig, "client of `GET /v1/history` who reads nothing", 24, open, |_| {}));
    let begun = bytes(
        [
            &b"POST /v1/cache/purge HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1048576\r\n\r\n"[..],
            &vec![b' '; 1_048_575],
        ]
        .concat(),
    );
    let open = || {
        let mut stream = connect();
        stream.write_all(&begun).unwrap();
        stream
    };
    drop(hold_briefly(&rig, "control API, body nearly whole", 24, open, |_| {}));
}
