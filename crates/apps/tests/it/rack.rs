//! Rack with the system's Ruby: supported application behaviour and its results.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use crate::rig::{Rig, is_alive, modules, one_worker, scratch, until};
use apps::Options;

/// Serves `tests/ruby/FILE` with two workers; `adapt` may change the options.
fn ruby(file: &str, adapt: impl FnOnce(&mut Options)) -> Rig {
    let worker = modules("ruby").join("worker.rb");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ruby").join(file);
    let mut options = Options::new("shop", vec!["ruby".into(), worker.into(), file.into()]);
    options.settings.timeouts.stop = Duration::from_millis(5_000);
    adapt(&mut options);
    Rig::start(options)
}

fn all() -> Rig {
    ruby("all.ru", |_| {})
}

#[test]
fn environment_follows_rack() {
    let rig = all();
    let mut client = rig.connect();
    client.send(
        "GET /env?a=%20b&c HTTP/1.1\r\nHost: shop.example:81\r\nX-Mine: 1\r\nx-mine: 2\r\nCookie: a=1\r\ncookie: b=2\r\n\
         X_Mine: 3\r\nContent-Type: text/x\r\nX-Mixed.Name~1: y\r\n\r\n",
    );
    let answer = client.answer();
    let port = client.stream.local_addr().unwrap().port();
    let own_port = rig.address.port();
    let expected = format!(
        r"CONTENT_TYPE=text/x
HTTP_COOKIE=a=1; b=2
HTTP_HOST=shop.example:81
HTTP_VERSION=HTTP/1.1
HTTP_X_MINE=1, 2
HTTP_X_MIXED.NAME~1=y
PATH_INFO=/env
QUERY_STRING=a=%20b&c
REMOTE_ADDR=127.0.0.1
REMOTE_PORT={port}
REQUEST_METHOD=GET
REQUEST_URI=/env?a=%20b&c
SCRIPT_NAME=
SERVER_NAME=shop.example
SERVER_PORT={own_port}
SERVER_PROTOCOL=HTTP/1.1
SERVER_SOFTWARE=komainu
rack.after_reply=Array
rack.early_hints=Komainu::Call
rack.errors=IO
rack.hijack=Komainu::Call
rack.hijack?=true
rack.input=Komainu::EmptyInput
rack.multiprocess=true
rack.multithread=false
rack.response_finished=Array
rack.run_once=false
rack.url_scheme=http
rack.version=Array
"
    );
    answer.expect(200, &expected);
    rig.get("/frozen").expect(200, "true");
}

#[test]
fn path_info_keeps_percent_encoding_and_is_normalized() {
    let rig = all();
    for (sent, seen) in [
        ("/no%20such", "/no%20such"),
        ("/a//b%7e/", "/a/b%7e/"),
        ("/a/%2e%2e/b%20c", "/b%20c"),
        ("/%C3%A4/../%C3%A4", "/%C3%A4"),
        ("http://shop.example/x%20y", "/x%20y"),
    ] {
        rig.get(sent).expect(404, &format!("no |{seen}"));
    }
}

#[test]
fn environment_changes_do_not_leak_into_the_next_request() {
    let rig = ruby("all.ru", one_worker);
    let mut client = rig.connect();
    let fresh = client.get("/env").text();
    for _ in 0..3 {
        client.get("/spoil").expect(200, "spoilt");
        assert_eq!(client.get("/env").text(), fresh);
    }
}

#[test]
fn rack_lint_reports_no_errors() {
    let rig = ruby("lint.ru", |_| {});
    let mut client = rig.connect();
    for path in ["/", "/?a=b", "/%20", "/hint"] {
        client.send(format!("GET {path} HTTP/1.1\r\nHost: shop.example\r\n\r\n"));
        if path == "/hint" {
            assert_eq!(client.answer().status, 103);
        }
        assert_eq!(client.answer().status, 200, "{path}");
    }
    for path in ["/echo", "/pieces", "/lines"] {
        client.post(path, b"one\ntwo\n\nthree").expect(200, "one\ntwo\n\nthree");
        client.post(path, b"").expect(200, "");
    }
    client.post("/gets", b"one\ntwo").expect(200, "\"one\\n\"");
    client.post("/rewind", b"one").expect(200, "on");
    client.post("/hijack", b"one").expect(200, "hijacked");
    assert_eq!(client.get("/nothing").status, 204);
    for method in ["PUT", "DELETE", "PATCH", "OPTIONS", "REPORT"] {
        client.send(format!("{method} /x HTTP/1.1\r\nHost: shop.example\r\n\r\n"));
        client.answer().expect(200, "linted");
    }
    client.send("OPTIONS * HTTP/1.1\r\nHost: shop.example\r\n\r\n");
    client.answer().expect(200, "linted");
    client.send("GET / HTTP/1.0\r\n\r\n");
    client.answer().expect(200, "linted");
    assert!(!rig.log().contains("Lint"), "{}", rig.log());
}

#[test]
fn response_heads_of_rack_2_and_3_are_accepted() {
    let rig = all();
    let answer = rig.get("/fields");
    answer.expect(201, "ab");
    for field in
        ["Set-Cookie: a=1", "Set-Cookie: b=2", "x-list: 1", "x-list: 2", "X-Number: 5", "X-Symbol: s"]
    {
        assert!(answer.head.contains(&format!("\r\n{field}\r\n")), "{field} in {}", answer.head);
    }
    assert!(!answer.head.contains("x-nil"));
    assert_eq!(rig.get("/status?404").status, 404);
    for odd in ["101", "0", "1000", "x"] {
        assert_eq!(rig.get(&format!("/status?{odd}")).status, 500, "{odd}");
    }
    // A line break in a value must not inject a second field.
    assert_eq!(rig.get("/split").status, 502);
}

#[test]
fn array_bodies_are_sent_with_content_length() {
    let rig = all();
    let answer = rig.get("/pieces");
    assert_eq!(answer.text(), format!("ab{}", "c".repeat(100_000)));
    assert_eq!(answer.field("content-length"), Some("100002"));
    assert!(rig.get("/").field("content-length").is_some());
}

#[test]
fn body_pieces_are_sent_immediately_and_bodies_are_closed() {
    let rig = all();
    let gate = scratch("rack-drip").join("gate");
    let mut client = rig.connect();
    client.send(format!("GET /drip?{} HTTP/1.1\r\nHost: a\r\n\r\n", gate.display()));
    client.through("begun");
    std::fs::write(&gate, "").unwrap();
    client.through("done\r\n0\r\n\r\n");
    rig.get("/lines").expect(200, "one\ntwo\n");
    rig.logged("the body was closed");
}

#[test]
fn disconnected_client_ends_a_download_without_errors() {
    let rig = ruby("all.ru", one_worker);
    let mut client = rig.connect();
    client.send("GET /download?2000 HTTP/1.1\r\nHost: a\r\n\r\n");
    client.through("xxxx");
    drop(client);
    assert_eq!(rig.get("/").status, 200);
    assert!(!rig.log().contains("Error"), "{}", rig.log());
}

#[test]
fn streaming_bodies_and_partial_hijacks_work() {
    let rig = all();
    let body = vec![b'z'; 300_000];
    let mut client = rig.connect();
    assert_eq!(client.post("/stream", &body).body, body);
    client.get("/kept-stream").expect(200, "0\n1\n2\n");
    client.post("/hijack", b"this").expect(200, "got this");
}

#[test]
fn early_hints_are_sent_before_the_response() {
    let rig = all();
    let mut client = rig.connect();
    let hints = client.get("/hint");
    assert_eq!(hints.status, 103);
    assert_eq!(hints.head.matches("\r\nLink: ").count(), 2);
    client.answer().expect(200, "hinted");
    client.send("GET /hint HTTP/1.0\r\n\r\n");
    client.answer().expect(200, "hinted");
}

#[test]
fn response_finished_callbacks_are_called() {
    let rig = all();
    rig.get("/finished").expect(200, "soon");
    rig.logged("finished last");
    let log = rig.log();
    let reported = log.find("finished /finished 200 {\"x-a\"=>\"b\"} nil").expect("the end is reported");
    assert!(reported < log.find("finished last").unwrap() && log.contains("after the end"), "{log}");
}

#[test]
fn file_bodies_are_sent_by_the_server() {
    let rig = all();
    let file = scratch("rack-file").join("file");
    let bytes: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(&file, &bytes).unwrap();
    let answer = rig.get(&format!("/file?{}", file.display()));
    assert!(answer.status == 200 && answer.body == bytes);
    assert_eq!(answer.field("content-length"), Some("800000"));
    rig.logged("the file was closed");
    for path in [format!("/part?{}", file.display()), "/file?/no/such/file".into(), "/file?/dev/null".into()]
    {
        rig.get(&path).expect(200, "read by the application");
    }
}

#[test]
fn request_bodies_arrive_complete_in_any_framing() {
    let rig = all();
    let mut client = rig.connect();
    for len in [0, 1, 1000, 32 * 1024, 64 * 1024 + 1, 3_000_000] {
        let body: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
        let answer = client.post("/echo", &body);
        assert!(answer.status == 200 && answer.body == body, "{len} bytes");
        client.post("/twice", &body).expect(200, &format!("same {len}"));
    }
    for (pieces, length) in [(1, "5000"), (3, "15000"), (40, "none")] {
        client.send("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        for _ in 0..pieces {
            client.send(format!("1388\r\n{}\r\n", "y".repeat(5000)));
        }
        client.send("0\r\n\r\n");
        let answer = client.answer();
        assert_eq!((answer.body.len(), answer.field("x-length")), (pieces * 5000, Some(length)));
    }
    client.post("/gets", b"a\nbc\n\nd").expect(200, "\"a\\n\"[\"bc\\n\", \"\\n\", \"d\"]nilnil");
    client.post("/gets", b"").expect(200, "nil[]nilnil");
}

/// Peak memory of a process in KiB.
fn memory_kib_max(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn large_bodies_do_not_increase_worker_memory() {
    let rig = ruby("all.ru", one_worker);
    let before = memory_kib_max(rig.ready(1)[0]);
    let mut client = rig.connect();
    let piece = vec![b'u'; 1 << 20];
    let pieces = 200;
    client.send(format!("POST /count HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", pieces << 20));
    for _ in 0..pieces {
        client.stream.write_all(&piece).unwrap();
    }
    client.answer().expect(200, "209715200 bytes");
    assert_eq!(client.get("/download?200").body.len(), 200 << 20);
    let after = memory_kib_max(rig.ready(1)[0]);
    assert!(after < before + 24 * 1024, "{before} KiB before, {after} KiB after");
}

#[test]
fn rack_application_errors_are_logged() {
    let rig = ruby("all.ru", one_worker);
    let pids = rig.ready(1);
    rig.get("/errors").expect(200, "logged");
    rig.logged("to the log");
    rig.logged("to stdout");
    rig.get("/raise").expect(500, "Internal Server Error\n");
    rig.logged("GET /raise: ");
    rig.logged("on purpose (RuntimeError)");
    rig.get("/load-error").expect(500, "Internal Server Error\n");
    rig.get("/nothing").expect(500, "Internal Server Error\n");
    rig.logged("the application's answer is not [status, headers, body]");
    let mut client = rig.connect();
    client.send("GET /raise-late HTTP/1.1\r\nHost: a\r\n\r\n");
    let cut = client.rest();
    assert!(cut.ends_with(b"begun\r\n"), "no end of what is not whole: {}", String::from_utf8_lossy(&cut));
    rig.logged("in the middle (RuntimeError)");
    let mut client = rig.connect();
    client.send("GET /raise-at-once HTTP/1.1\r\nHost: a\r\n\r\n");
    let cut = client.rest();
    assert!(cut.ends_with(b"begun\r\n"), "what was written is sent: {}", String::from_utf8_lossy(&cut));
    rig.logged("GET /raise-at-once: ");
    assert_eq!(rig.get("/raise-first").status, 500, "nothing was written");
    rig.logged("before a byte (RuntimeError)");
    assert_eq!(rig.get("/text").status, 500);
    rig.logged("GET /text: ");
    rig.logged("the body responds to neither each nor call: String");
    rig.get("/excess").expect(200, "hello");
    rig.logged("GET /excess: more body written than announced");
    rig.get("/raise-closing").expect(200, "answered");
    rig.logged("while closing (RuntimeError)");
    assert_eq!(rig.ready(1), pids, "nobody had to die of that");
}

#[test]
fn forked_child_of_the_application_sends_no_response() {
    let rig = ruby("all.ru", one_worker);
    let pids = rig.ready(1);
    for _ in 0..3 {
        rig.get("/fork").expect(200, "the parent's answer, 0");
    }
    assert_eq!(rig.ready(1), pids);
}

#[test]
fn worker_that_dies_fails_only_its_request() {
    let rig = all();
    let pids = rig.ready(2);
    let gate = scratch("rack-death").join("gate");
    let mut waiting = rig.connect();
    waiting.send(format!("GET /wait?{} HTTP/1.1\r\nHost: a\r\n\r\n", gate.display()));
    rig.logged("waiting");
    assert_eq!(rig.connect().post("/kill", b"").status, 502);
    rig.get("/").expect(200, &rig.get("/").text());
    std::fs::write(&gate, "").unwrap();
    waiting.answer().expect(200, "waited");
    assert_eq!(rig.connect().post("/exit", b"").status, 502);
    until("a fresh worker", || rig.ready(2).iter().any(|pid| !pids.contains(pid)));
    assert_eq!(rig.get("/").status, 200);
}

#[test]
fn reloaded_worker_finishes_its_request_first() {
    let rig = ruby("all.ru", one_worker);
    let pid = rig.ready(1)[0];
    let gate = scratch("rack-term").join("gate");
    let mut waiting = rig.connect();
    waiting.send(format!("GET /wait?{} HTTP/1.1\r\nHost: a\r\n\r\n", gate.display()));
    rig.logged("waiting");
    rig.app.reload();
    rig.logged("generation 2 takes over");
    std::fs::write(&gate, "").unwrap();
    waiting.answer().expect(200, "waited");
    until("its end", || !is_alive(pid));
    let next = rig.ready(1)[0];
    // A worker without requests in progress.
    rig.app.reload();
    until("its end", || !is_alive(next));
    assert_eq!(rig.get("/").status, 200);
}

#[test]
fn threads_run_requests_concurrently() {
    let rig = ruby("all.ru", |options| {
        one_worker(options);
        options.settings.threads = 4;
    });
    let pid = rig.ready(1)[0];
    let mut clients: Vec<_> = (0..4).map(|_| rig.connect()).collect();
    for client in &mut clients {
        client.send("GET /meet?4 HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    for client in &mut clients {
        client.answer().expect(200, &format!("met {pid} true"));
    }
    rig.app.reload();
    until("its end", || !is_alive(pid));
    assert_eq!(rig.get("/").status, 200);
}
