//! The cache in front of upstream servers: responses to clients, and the number of requests to the origin.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use crate::origin::{Origin, answer};
use crate::rig;
use crate::rig::{Folder, Rig, eventually, komainu, read_answer};

fn run(origin: &str) -> Rig {
    let mut command = komainu();
    command.args(["run", "--listen", "127.0.0.1:0", "--threads", "2", "--cache", origin]);
    Rig::start(command, Folder::new())
}

const FRESH: &str = "Cache-Control: max-age=3600\r\n";

/// Starts an origin that numbers its responses and adds these fields.
fn counting(fields: &'static str) -> Origin {
    let count = AtomicUsize::new(0);
    Origin::start(move |_| {
        answer("200 OK", fields, &format!("response {}", count.fetch_add(1, Ordering::SeqCst)))
    })
}

#[test]
fn a_fresh_response_is_served_without_the_origin() {
    let origin = counting("Cache-Control: max-age=3600\r\nETag: \"a\"\r\nX-Own: 1\r\n");
    let rig = run(&origin.url);
    let first = rig.get("/a?b");
    first.expect(200, "response 0").expect_field("Cache-Status", "Komainu; fwd=uri-miss; stored; ttl=3600");
    let hit = rig.get("/a?b");
    hit.expect_hit().expect(200, "response 0").expect_field("X-Own", "1").expect_field("ETag", "\"a\"");
    assert!(hit.field("Age").unwrap().parse::<u64>().unwrap() < 3600);
    let head = rig.send("HEAD /a?b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    head.expect(200, "").expect_field("Content-Length", "10");
    rig.ask("/a?b", "If-None-Match: \"a\"\r\n").expect(304, "").expect_field("ETag", "\"a\"");
    rig.ask("/a?b", "Range: bytes=0-3\r\n").expect(206, "resp").expect_field("Content-Range", "bytes 0-3/10");
    rig.ask("/a?b", "Range: bytes=10-\r\n").expect_status(416).expect_field("Content-Range", "bytes */10");
    assert_eq!(origin.asks().len(), 1);
    rig.get("/a?c").expect(200, "response 1");
}

#[test]
fn private_responses_are_not_stored() {
    for fields in [
        "Cache-Control: private, max-age=3600\r\n",
        "Cache-Control: no-store\r\n",
        "Cache-Control: max-age=3600\r\nSet-Cookie: a=b\r\n",
        "Cache-Control: max-age=3600\r\nVary: *\r\n",
        "",
    ] {
        let origin = counting(fields);
        let rig = run(&origin.url);
        for n in 0..3 {
            rig.get("/").expect(200, &format!("response {n}"));
        }
        rig.ask("/", "Cookie: a=b\r\n").expect(200, "response 3");
    }
    let origin = counting(FRESH);
    let rig = run(&origin.url);
    for n in 0..2 {
        rig.ask("/", "Authorization: x\r\n").expect(200, &format!("response {n}"));
    }
    rig.ask("/other", "Cache-Control: only-if-cached\r\n").expect_status(504);
    assert_eq!(origin.asks().len(), 2);
}

#[test]
fn requests_that_could_poison_the_cache_bypass_it() {
    let origin = counting(FRESH);
    let rig = run(&origin.url);
    for (asked, field) in [
        "X-HTTP-Method-Override: POST",
        "X-Original-URL: /admin",
        "X-Rewrite-URL: /admin",
        "X-Host: evil.test",
        "X-Forwarded-Scheme: nothttps",
        "Upgrade: h2c",
        "Content-Length: 1",
    ]
    .into_iter()
    .enumerate()
    {
        let body = if field.starts_with("Content-Length") { "x" } else { "" };
        let request =
            format!("GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{field}\r\n\r\n{body}");
        rig.send(&request).expect(200, &format!("response {asked}"));
    }
    // A host claimed by the client is not forwarded, so the response may be stored.
    let claims = "X-Forwarded-Host: evil.test\r\nX-Forwarded-Prefix: /evil\r\nForwarded: host=evil.test\r\n";
    rig.ask("/", claims).expect(200, "response 7");
    assert!(!origin.last().head.contains("evil"), "{}", origin.last().head);
    rig.get("/").expect(200, "response 7");
    assert_eq!(origin.asks().len(), 8);
}

#[test]
fn variants_are_stored_and_unsafe_requests_invalidate_them() {
    let count = AtomicUsize::new(0);
    let origin = Origin::start(move |ask| {
        let n = count.fetch_add(1, Ordering::SeqCst);
        let status = if ask.line().starts_with("PUT") { "500 No" } else { "200 OK" };
        answer(status, "Cache-Control: max-age=3600\r\nVary: X-A\r\n", &format!("{n}"))
    });
    let rig = run(&origin.url);
    rig.ask("/", "X-A: 1\r\n").expect(200, "0");
    rig.ask("/", "X-A: 2\r\n").expect(200, "1");
    rig.ask("/", "X-A: 1\r\n").expect(200, "0");
    rig.get("/").expect(200, "2");
    let change = |method: &str| {
        rig.send(&format!(
            "{method} / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        ))
    };
    change("PUT").expect_status(500);
    rig.ask("/", "X-A: 2\r\n").expect(200, "1");
    change("POST").expect_status(200).expect_field("Cache-Status", "Komainu; fwd=method");
    rig.ask("/", "X-A: 2\r\n").expect(200, "5");
}

#[test]
fn stale_response_is_revalidated_or_served_on_origin_failure() {
    let mode = Arc::new(Mutex::new("fresh"));
    let theirs = mode.clone();
    let origin = Origin::start(move |ask| match *theirs.lock().unwrap() {
        "fresh" => answer("200 OK", "Cache-Control: max-age=0\r\nETag: \"a\"\r\nX-A: 1\r\n", "body"),
        "valid" => {
            assert_eq!(ask.field("If-None-Match"), ["\"a\""]);
            "HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\nX-A: 2\r\n\r\n".to_owned()
        }
        "error" => answer("503 Down", "", "down"),
        _ => String::new(),
    });
    let rig = run(&origin.url);
    rig.get("/").expect(200, "body").expect_field("X-A", "1");
    *mode.lock().unwrap() = "valid";
    let validated = rig.get("/");
    validated.expect(200, "body").expect_field("X-A", "2");
    assert!(validated.field("Cache-Status").unwrap().contains("hit; fwd=stale; fwd-status=304"));
    *mode.lock().unwrap() = "error";
    rig.get("/").expect(503, "down");
    *mode.lock().unwrap() = "dead";
    let stale = rig.get("/");
    stale.expect(200, "body").expect_field("X-A", "2");
    assert!(stale.field("Cache-Status").unwrap().contains("detail=unreachable"));
    rig.get("/other").expect_status(502);
}

/// Starts an origin driven by the test: it announces each request and sends the bytes that it is given.
fn stepped() -> (String, Receiver<usize>, Sender<&'static str>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let ((came, comes), (steps, next)) = (channel(), channel::<&'static str>());
    let next = Arc::new(Mutex::new(next));
    std::thread::spawn(move || {
        for (index, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let came = came.clone();
            let next = next.clone();
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while !matches!(stream.read(&mut bytes), Ok(0) | Err(_)) {
                    came.send(index).unwrap();
                    while let Ok(step) = next.lock().unwrap().recv() {
                        if step.is_empty() {
                            return;
                        }
                        stream.write_all(step.as_bytes()).unwrap();
                        if step.ends_with('!') {
                            break;
                        }
                    }
                }
            });
        }
    });
    (url, comes, steps)
}

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

#[test]
fn concurrent_requests_share_one_origin_response() {
    let (url, comes, steps) = stepped();
    let rig = run(&url);
    let mut clients: Vec<_> = (0..50).map(|_| rig.connect()).collect();
    clients[0].write_all(GET).unwrap();
    comes.recv().unwrap();
    for client in &mut clients[1..] {
        client.write_all(GET).unwrap();
    }
    steps.send("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 12\r\n\r\nfirst ").unwrap();
    // The first bytes reach the waiting clients before the origin has sent the rest.
    let mut last = clients.pop().unwrap();
    let mut begun = Vec::new();
    while !begun.ends_with(b"first ") {
        let mut byte = [0];
        last.read_exact(&mut byte).unwrap();
        begun.push(byte[0]);
    }
    // The client whose request went to the origin disconnects.
    drop(clients.remove(0));
    steps.send("second").unwrap();
    let mut rest = String::new();
    last.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "second");
    for client in &mut clients {
        read_answer(client).expect(200, "first second");
    }
    assert!(comes.try_recv().is_err(), "the origin was asked once");
}

#[test]
fn truncated_response_is_not_stored() {
    let (url, comes, steps) = stepped();
    let rig = run(&url);
    let mut client = rig.connect();
    client.write_all(GET).unwrap();
    comes.recv().unwrap();
    steps.send("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 12\r\n\r\nfirst ").unwrap();
    steps.send("").unwrap();
    let broken = rig::read_to_close(&mut client);
    assert!(!broken.ends_with(b"second"));
    let mut again = rig.connect();
    again.write_all(GET).unwrap();
    comes.recv().unwrap();
    steps.send("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 6\r\n\r\nwhole!").unwrap();
    read_answer(&mut again).expect(200, "whole!");
    eventually("it is stored", || rig.get("/").is_hit());
}

#[test]
fn responses_above_the_object_limit_are_not_stored() {
    let large = "x".repeat(100_000);
    let body = large.clone();
    let origin = Origin::start(move |_| answer("200 OK", "Cache-Control: max-age=60\r\n", &body));
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            cache = {{ memory = "1MiB", object = "50KiB" }}
            [[route]]
            path = "/no"
            proxy = "{0}"
            [[route]]
            proxy = "{0}"
            cache = {{ grace = "1m" }}
            "#,
            origin.url
        ),
    );
    for _ in 0..2 {
        rig.get("/").expect(200, &large).expect_no_hit();
        rig.get("/no").expect(200, &large).expect_no_field("Cache-Status");
    }
    assert_eq!(origin.asks().len(), 4);
}

/// A client that sends many requests and disconnects must not overload the origin or use up the memory of
/// others.
#[test]
fn origin_requests_of_disconnected_clients_are_limited() {
    // The origin stalls within the head, or within a cacheable body.
    for begins in [
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 9\r\n\r\nsome",
    ] {
        leave_many(begins);
    }
}

fn leave_many(begins: &'static str) {
    let origin = Origin::start(move |_| begins.to_owned());
    let rig = run(&origin.url);
    for at in 0..200 {
        let mut client = rig.connect();
        write!(client, "GET /{at} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        eventually("the origin is asked", || origin.connections() > at);
        if begins.ends_with("some") {
            client.read_exact(&mut [0; 12]).unwrap();
        }
        // A reset is an unambiguous disconnect.
        rustix::net::sockopt::set_socket_linger(&client, Some(std::time::Duration::ZERO)).unwrap();
    }
    eventually("all but a few are cancelled", || origin.open() == 64);
}
