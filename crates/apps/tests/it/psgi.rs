//! PSGI with the system's Perl: supported application behaviour and its results.

use std::io::Write;

use crate::rig;
use crate::rig::{Rig, is_alive, kill, one_worker, until};

fn all() -> Rig {
    Rig::perl("all", |_| {})
}

#[test]
fn environment_follows_psgi_1_1() {
    let rig = all();
    let mut client = rig.connect();
    client.send(
        "GET //env/?a=%20b&c HTTP/1.1\r\nHost: shop.example:81\r\nX-Mine: 1\r\nx-mine: 2\r\nCookie: a=1\r\ncookie: b=2\r\n\
         X_Mine: 3\r\nProxy: http://evil.example\r\nX-Sendfile-Type: X-Accel-Redirect\r\n\
         X-Accel-Mapping: /=/srv/\r\nContent-Type: text/x\r\nAuthorization: Basic x\r\n\r\n",
    );
    client.answer().expect(404, "no /env/");
    client.send(
        "GET /%65nv?a=%20b&c HTTP/1.1\r\nHost: shop.example:81\r\nX-Mine: 1\r\nx-mine: 2\r\nCookie: a=1\r\ncookie: b=2\r\n\
         X_Mine: 3\r\nProxy: http://evil.example\r\nX-Sendfile-Type: X-Accel-Redirect\r\n\
         X-Accel-Mapping: /=/srv/\r\nContent-Type: text/x\r\nAuthorization: Basic x\r\n\r\n",
    );
    let answer = client.answer();
    let port = client.stream.local_addr().unwrap().port();
    let own_port = rig.address.port();
    let expected = format!(
        r"CONTENT_TYPE=text/x
HTTP_AUTHORIZATION=Basic x
HTTP_COOKIE=a=1; b=2
HTTP_HOST=shop.example:81
HTTP_X_MINE=1, 2
PATH_INFO=/env
QUERY_STRING=a=%20b&c
REMOTE_ADDR=127.0.0.1
REMOTE_PORT={port}
REQUEST_METHOD=GET
REQUEST_URI=/%65nv?a=%20b&c
SCRIPT_NAME=
SERVER_NAME=shop.example
SERVER_PORT={own_port}
SERVER_PROTOCOL=HTTP/1.1
psgi.errors=GLOB
psgi.input=GLOB
psgi.multiprocess=1
psgi.multithread=0
psgi.nonblocking=0
psgi.run_once=0
psgi.streaming=1
psgi.url_scheme=http
psgi.version=ARRAY
psgix.cleanup=1
psgix.cleanup.handlers=ARRAY
psgix.harakiri=1
psgix.informational=CODE
psgix.input.buffered=1
psgix.input.terminated=1
"
    );
    answer.expect(200, &expected);
}

#[test]
fn environment_changes_do_not_leak_into_the_next_request() {
    let rig = Rig::perl("all", one_worker);
    let mut client = rig.connect();
    let fresh = client.get("/env").text();
    for _ in 0..3 {
        client.get("/spoil").expect(200, "spoilt");
        assert_eq!(client.get("/env").text(), fresh);
    }
}

#[test]
fn array_bodies_are_sent_with_content_length() {
    let rig = all();
    let answer = rig.get("/pieces");
    assert_eq!(answer.text(), format!("ab{}", "c".repeat(100_000)));
    assert_eq!(answer.field("content-length"), Some("100002"));
    assert_eq!(answer.head.matches("X-Two: ").count(), 2);
    assert_eq!(rig.get("/").field("content-length").map(str::len), Some(2));
    let nothing = rig.get("/empty");
    assert_eq!((nothing.status, nothing.field("content-length")), (204, None));
}

#[test]
fn request_bodies_arrive_complete_in_any_framing() {
    let rig = all();
    let mut client = rig.connect();
    for len in [0, 1, 1000, 32 * 1024, 64 * 1024, 64 * 1024 + 1, 3_000_000] {
        let body: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
        let answer = client.post("/echo", &body);
        assert!(answer.status == 200 && answer.body == body, "{len} bytes");
        assert_eq!(answer.field("x-length"), Some(len.to_string().as_str()));
        assert_eq!(answer.field("x-buffered"), Some(if len <= 64 * 1024 { "1" } else { "0" }), "{len}");
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
}

#[test]
fn lines_of_a_body_can_be_read() {
    let rig = all();
    let mut client = rig.connect();
    for count in [3, 30_000] {
        let body = "a line\n".repeat(count);
        client.post("/lines", body.as_bytes()).expect(200, &format!("7 {} end", count - 1));
    }
}

#[test]
fn unbuffered_request_body_is_readable_before_its_end() {
    let file = rig::scratch("as-it-arrives").join("app.psgi");
    std::fs::write(&file, "sub { $_[0]{'psgi.input'}->read(my $piece, 5); [200, [], [$piece]] }").unwrap();
    let rig = Rig::perl_file(&file, |options| options.settings.request_buffering = Some(false));
    let mut client = rig.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
    client.answer().expect(200, "hello");
}

#[test]
fn bytes_are_streamed_in_both_directions_at_once() {
    let rig = all();
    let mut client = rig.connect();
    client.send("POST /stream HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    // A worker gets the request once enough was received; after that each piece is echoed before the next one
    // is sent.
    let mut sent = 0;
    let mut begun = false;
    for _ in 0..10 {
        client.send(format!("20000\r\n{}\r\n", "z".repeat(131_072)));
        sent += 131_072;
        if !begun {
            assert!(client.through("\r\n\r\n").contains("chunked"));
            begun = true;
        }
    }
    client.send("0\r\n\r\n");
    let mut got = 0;
    loop {
        let len = usize::from_str_radix(client.through("\r\n").trim_end(), 16).unwrap();
        got += client.take(len).len();
        client.through("\r\n");
        if len == 0 {
            break;
        }
    }
    assert_eq!(got, sent);
}

#[test]
fn large_bodies_do_not_increase_worker_memory() {
    let rig = Rig::perl("all", one_worker);
    let worker = rig.ready(1)[0];
    let mut client = rig.connect();
    let before = apps::Usage::of(worker).unwrap().rss_bytes;
    let mib = 200;
    client.send(format!("POST /count HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", mib << 20));
    for _ in 0..mib {
        client.send(vec![b'u'; 1 << 20]);
    }
    client.answer().expect(200, &format!("{} bytes", mib << 20));
    client.send(format!("GET /download?{mib} HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert_eq!(client.answer().body.len(), mib << 20);
    let grown = apps::Usage::of(worker).unwrap().rss_bytes.saturating_sub(before);
    assert!(grown < 16 << 20, "{} MiB", grown >> 20);
}

#[test]
fn delayed_and_streamed_responses_are_sent() {
    let rig = all();
    let answer = rig.get("/delayed");
    answer.expect(201, "later");
    assert_eq!(answer.field("x-late"), Some("yes"));
    assert_eq!(rig.get("/download?1").body.len(), 1 << 20);
    rig.get("/object").expect(200, "1\n2\n3\n");
    rig.logged("the body was closed");
}

#[test]
fn bodies_chunked_by_the_application_are_not_chunked_again() {
    let rig = all();
    let mut client = rig.connect();
    client.get("/chunks").expect(200, "abc");
    client.send("HEAD /chunks HTTP/1.1\r\nHost: a\r\n\r\n");
    client.through("\r\n\r\n");
    assert_eq!(client.get("/").status, 200);
    // A body that is not chunked is the content.
    client.get("/chunks?no").expect(200, "no chunk");
    assert_eq!(client.get("/").status, 200);
}

#[test]
fn file_handles_are_sent_by_the_server() {
    let rig = all();
    let path = rig::scratch("files").join("a file");
    let text: Vec<u8> = (0..5_000_000u32).map(|at| (at % 253) as u8).collect();
    std::fs::File::create(&path).unwrap().write_all(&text).unwrap();
    let link = path.with_file_name("link");
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let mut client = rig.connect();
    let request = format!("GET /file?{} HTTP/1.1\r\nHost: a\r\n", link.display());
    for (more, skipped) in [("", 0), ("X-Skip: 1\r\n", 3), ("", 0)] {
        client.send(format!("{request}{more}\r\n"));
        let answer = client.answer();
        assert_eq!(answer.field("content-length"), Some((text.len() - skipped).to_string().as_str()));
        assert!(answer.body == text[skipped..]);
    }
    client.send(format!("{request}Connection: close\r\n\r\n").replacen("GET", "HEAD", 1));
    let head = String::from_utf8(client.rest()).unwrap();
    assert!(head.contains("Content-Length: 5000000\r\n") && head.ends_with("\r\n\r\n"), "{head}");
}

#[test]
fn psgi_extensions_work() {
    let rig = Rig::perl("all", one_worker);
    let mut client = rig.connect();
    client.send("GET /hint HTTP/1.1\r\nHost: a\r\n\r\n");
    let hint = client.answer();
    assert_eq!((hint.status, hint.field("link")), (103, Some("</a.css>; rel=preload")));
    client.answer().expect(200, "hinted");
    client.get("/cleanup").expect(200, "soon clean");
    rig.logged("cleaned up after /cleanup");
    client.get("/errors").expect(200, "logged");
    rig.logged("to the log");
    rig.logged("to stdout");
    let last = client.get("/harakiri").text();
    let pid: u32 = last.strip_prefix("last words of ").unwrap().parse().unwrap();
    until("its end", || !is_alive(pid));
    assert_ne!(client.get("/").text(), format!("hello from {pid}"));
}

#[test]
fn body_beyond_content_length_is_dropped_and_logged() {
    let rig = Rig::perl("all", one_worker);
    let mut client = rig.connect();
    for path in ["/excess", "/excess-stream"] {
        client.get(path).expect(200, "hello");
        rig.logged(&format!("GET {path}: more body written than announced"));
    }
    client.get("/die").expect(500, "Internal Server Error");
    assert_eq!(rig.log().matches("than announced").count(), 2, "{}", rig.log());
}

#[test]
fn application_errors_fail_only_their_own_request() {
    let rig = Rig::perl("all", one_worker);
    let worker = rig.ready(1);
    let mut client = rig.connect();
    for (path, reported) in [
        ("/die", "GET /die: on purpose"),
        ("/nothing", "neither an array nor code"),
        ("/silent", "without an answer"),
        ("/wide", "Wide character in the body"),
    ] {
        client.get(path).expect(500, "Internal Server Error");
        rig.logged(reported);
    }
    assert_eq!(client.get("/split").status, 502);
    let cut = {
        let mut client = rig.connect();
        client.send("GET /die-late HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        String::from_utf8(client.rest()).unwrap()
    };
    // Also if the server receives the beginning and the end together.
    assert!(cut.starts_with("HTTP/1.1 200 ") && cut.contains("begun"), "what was written is sent: {cut:?}");
    assert!(!cut.ends_with("0\r\n\r\n"), "must not look whole: {cut:?}");
    rig.logged("GET /die-late: in the middle");
    assert_eq!(rig.ready(1), worker, "the worker lives");
}

#[test]
fn worker_that_dies_during_a_request_is_replaced() {
    let rig = all();
    for (path, said, tries) in [("/exit", "exits", 1), ("/kill", "is killed", 2)] {
        rig.ready(2);
        assert_eq!(rig.get(path).status, 502);
        // Retried once if no response was sent, unless the application itself ended its worker.
        let deaths = || rig.log().lines().filter(|line| *line == said).count();
        until("all deaths", || deaths() == tries);
        assert_eq!(rig.get("/").status, 200);
        assert_eq!(deaths(), tries);
        rig.ready(2);
        assert_eq!(rig.get("/").status, 200);
        let mut client = rig.connect();
        let before = rig.ready(2);
        assert_eq!(client.post(path, b"once").status, 502);
        until("one death", || before.iter().filter(|pid| !is_alive(**pid)).count() == 1);
    }
    rig.logged("was killed by signal 9");
}

#[test]
fn killed_prototype_is_replaced_when_a_worker_is_needed() {
    let rig = all();
    let workers = rig.ready(2);
    let prototype = rig.pids("prototype")[0];
    assert!(kill(prototype, "-KILL"));
    rig.logged("the prototype was killed by signal 9; the workers continue");
    assert_eq!(rig.get("/").status, 200);
    assert_eq!(rig.ready(2), workers);
    // A worker that dies after this is forked from a new prototype.
    assert!(kill(workers[0], "-KILL"));
    until("a new worker", || {
        let now = rig.pids("ready");
        now.len() == 2 && !now.contains(&workers[0])
    });
    assert_ne!(rig.pids("prototype"), [prototype]);
}

/// A truncated form must not be accepted.
#[test]
fn truncated_request_body_is_not_seen_as_complete() {
    let file = rig::scratch("half-a-body").join("app.psgi");
    std::fs::write(
        &file,
        "sub { $_[0]{'psgi.input'}->read(my $body, 100_000); print STDERR 'got ', length $body, qq{\\n}; [200, [], ['done']] }",
    )
    .unwrap();
    let rig = Rig::perl_file(&file, |options| {
        one_worker(options);
        options.settings.body_ahead_bytes = 1_000;
    });
    rig.ready(1);
    let mut client = rig.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 40000\r\n\r\n");
    client.send([b'x'; 20_000]);
    std::thread::sleep(std::time::Duration::from_millis(300));
    drop(client);
    rig.connect().post("/", &[b'x'; 40_000]).expect(200, "done");
    rig.logged("got 40000");
    assert!(!rig.log().contains("got 20000"), "{}", rig.log());
}

/// The length of the GET response is unknown if an application removes the body of its response to HEAD (RFC
/// 9110 section 8.6).
#[test]
fn head_response_has_only_the_length_set_by_the_application() {
    let file = rig::scratch("head").join("app.psgi");
    let text = "sub { [200, [$_[0]{QUERY_STRING} ? ('Content-Length' => 4) : ()], $_[0]{REQUEST_METHOD} eq 'HEAD' ? [] : ['body']] }";
    std::fs::write(&file, text).unwrap();
    let rig = Rig::perl_file(&file, one_worker);
    let mut client = rig.connect();
    for (path, get, head) in [("/", Some("4"), None), ("/?length", Some("4"), Some("4"))] {
        assert_eq!(client.get(path).field("content-length"), get);
        client.send(format!("HEAD {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let answer = client.through("\r\n\r\n").to_ascii_lowercase();
        let length = answer.lines().find_map(|line| line.strip_prefix("content-length: "));
        assert_eq!(length, head, "{answer}");
    }
    client.get("/").expect(200, "body");
}
