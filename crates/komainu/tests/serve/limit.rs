//! `limit`: request rates of clients.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::rig::{Answer, Folder, Rig, eventually, read_answer};

/// Rates so low that no test takes long enough for a request beyond the burst.
const CONFIG: &str = r#"
    threads = 2
    trusted_proxies = ["127.0.0.1"]
    error_pages = { 429 = "busy.txt" }

    [control]
    listen = "unix:control.sock"

    [[site]]
    hosts = ["site.test"]
    limit = { rate = "4/h", name = "whole" }

    [[site.route]]
    path = "/two"
    limit = [{ rate = "2/h" }, { rate = "1/h", key = "header:x-key", name = "key" }]
    respond = "two"

    [[site.route]]
    respond = "rest"

    [[route]]
    path = "/burst"
    limit = { rate = "10/h", burst = 5 }
    respond = "ok"

    [[route]]
    path = "/plain"
    limit = "3/h"
    respond = "ok"

    [[route]]
    path = "/headers"
    response_headers = { set = { X-Own = "1" } }
    limit = { rate = "3/h", headers = true }
    respond = "ok"

    [[route]]
    path = "/status"
    limit = { rate = "1/h", status = 503 }
    respond = "ok"

    [[route]]
    path = "/dry"
    limit = { rate = "1/h", dry_run = true, name = "trial" }
    respond = "ok"

    [[route]]
    path = "/except"
    limit = { rate = "1/h", except = "10.0.0.0/8" }
    respond = "ok"

    [[route]]
    path = "/keys"
    limit = { rate = "1/h", key = ["query:k", "cookie:sid"] }
    respond = "ok"

    [[route]]
    path = "/token"
    limit = { rate = "1/h", key = "query:token" }
    respond = "ok"

    [[route]]
    path = "/session"
    limit = { rate = "1/h", key = "cookie:sid" }
    respond = "ok"

    [[route]]
    path = "/api"
    limit = { rate = "1/h", key = "header:x-api-key" }
    respond = "ok"

    [[route]]
    path = "/paths/*"
    limit = { rate = "1/h", key = "path" }
    respond = "ok"

    [[route]]
    path = "/all"
    limit = { rate = "2/h", key = "all" }
    respond = "ok"

    [[route]]
    path = "/million"
    limit = { rate = "1/h", keys = 1000, name = "crowd" }
    respond = { status = 204 }
"#;

fn start() -> Rig {
    let folder = Folder::new();
    folder.write("busy.txt", "busy");
    Rig::config(folder, CONFIG)
}

fn ask_as(rig: &Rig, client: &str, host: &str, path: &str, fields: &str) -> Answer {
    rig.send(&format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nX-Forwarded-For: {client}\r\n{fields}Connection: close\r\n\r\n"
    ))
}

fn statuses(rig: &Rig, client: &str, path: &str, count: usize) -> Vec<u16> {
    (0..count).map(|_| ask_as(rig, client, "x.test", path, "").status()).collect()
}

pub(crate) fn value(text: &str, name: &str, limit: &str) -> u64 {
    let limit = format!("limit=\"{limit}\"");
    let line = text.lines().find(|line| line.starts_with(&format!("{name}{{")) && line.contains(&limit));
    let value = line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    value.unwrap_or_else(|| panic!("no {name} of {limit} in {text}")) as u64
}

/// All cases share one server; each has its own path, and thus its own limit.
#[test]
fn rate_limits_apply_to_configured_keys() {
    let rig = start();
    a_burst_passes_and_the_rest_is_refused(&rig);
    networks_are_clients(&rig);
    fields_state_what_is_left(&rig);
    sites_and_routes_limit_together(&rig);
    requests_are_counted_by_parts_of_them(&rig);
    a_value_in_another_form_is_the_same(&rig);
    values_that_differ_are_counted_by_the_client(&rig);
    a_dry_run_refuses_nothing(&rig);
    a_crowd_is_bounded(&rig);
    one_client_asks_without_end(&rig);
}

fn a_burst_passes_and_the_rest_is_refused(rig: &Rig) {
    assert_eq!(statuses(rig, "192.0.2.1", "/burst", 8), [200, 200, 200, 200, 200, 200, 429, 429]);
    let refused = ask_as(rig, "192.0.2.1", "x.test", "/burst", "");
    refused.expect(429, "busy").expect_field("ratelimit-policy", "\"client\";q=6;w=2160");
    refused.expect_field("cache-control", "no-store");
    // One request every six minutes.
    let retry_s: u64 = refused.field("retry-after").unwrap().parse().unwrap();
    assert!((300..=360).contains(&retry_s), "{retry_s}");
    refused.expect_field("ratelimit", &format!("\"client\";r=0;t={retry_s}"));
    // Other clients are not affected, and addresses claimed by a client are ignored.
    assert_eq!(statuses(rig, "192.0.2.2", "/burst", 1), [200]);
    assert_eq!(ask_as(rig, "203.0.113.9, 192.0.2.1", "x.test", "/burst", "").status(), 429);
    assert_eq!(statuses(rig, "192.0.2.1", "/plain", 4), [200, 200, 200, 429]);
    assert_eq!(statuses(rig, "192.0.2.1", "/status", 2), [200, 503]);
    assert_eq!(statuses(rig, "10.1.2.3", "/except", 3), [200, 200, 200]);
    assert_eq!(statuses(rig, "11.1.2.3", "/except", 2), [200, 429]);
}

fn networks_are_clients(rig: &Rig) {
    assert_eq!(statuses(rig, "2001:db8::1", "/plain", 2), [200, 200]);
    // An IPv6 client usually has a /64 network, so it is limited as one.
    assert_eq!(statuses(rig, "2001:db8::ffff:1", "/plain", 2), [200, 429]);
    assert_eq!(statuses(rig, "2001:db8:0:1::1", "/plain", 1), [200]);
    assert_eq!(statuses(rig, "::ffff:192.0.2.1", "/plain", 1), [429]);
}

fn fields_state_what_is_left(rig: &Rig) {
    for (left, status) in [(2, 200), (1, 200), (0, 200), (0, 429)] {
        let answer = ask_as(rig, "192.0.2.1", "x.test", "/headers", "");
        answer.expect_status(status).expect_field("x-own", "1");
        answer.expect_field("ratelimit-policy", "\"client\";q=3;w=3600");
        let state = answer.field("ratelimit").unwrap();
        assert!(state.starts_with(&format!("\"client\";r={left};t=")), "{state}");
    }
    ask_as(rig, "192.0.2.9", "x.test", "/plain", "").expect(200, "ok").expect_no_field("ratelimit");
}

fn sites_and_routes_limit_together(rig: &Rig) {
    let two = |key: &str| ask_as(rig, "192.0.2.1", "site.test", "/two", &format!("X-Key: {key}\r\n"));
    two("a").expect(200, "two");
    let refused = two("a");
    refused.expect_status(429);
    assert!(
        refused.field("ratelimit").unwrap().starts_with("\"key\";r=0"),
        "{:?}",
        refused.field("ratelimit")
    );
    refused
        .expect_field("ratelimit-policy", "\"whole\";q=4;w=3600, \"client\";q=2;w=3600, \"key\";q=1;w=3600");
    // A request refused by one limit is not counted by the others: the client's limit has one left, the
    // site's three.
    two("b").expect(200, "two");
    assert!(two("c").expect_status(429).field("ratelimit").unwrap().starts_with("\"client\";r=0"));
    for status in [200, 200, 429] {
        ask_as(rig, "192.0.2.1", "site.test", "/rest", "").expect_status(status);
    }
    assert!(two("d").expect_status(429).field("ratelimit").unwrap().starts_with("\"whole\";r=0"));
    ask_as(rig, "192.0.2.7", "site.test", "/rest", "").expect(200, "rest");
}

fn requests_are_counted_by_parts_of_them(rig: &Rig) {
    let ask = |query: &str, cookie: &str, client: &str| {
        ask_as(rig, client, "x.test", &format!("/keys{query}"), cookie).status()
    };
    assert_eq!(ask("?k=1", "Cookie: sid=a\r\n", "192.0.2.1"), 200);
    assert_eq!(ask("?k=1", "Cookie: other=x; sid=a\r\n", "192.0.2.2"), 429);
    assert_eq!(ask("?k=1", "Cookie: sid=b\r\n", "192.0.2.1"), 200);
    assert_eq!(ask("?k=2", "Cookie: sid=a\r\n", "192.0.2.1"), 200);
    // Without the cookie the client's address is the key.
    assert_eq!(ask("?k=1", "", "192.0.2.1"), 200);
    assert_eq!(ask("?k=1", "", "192.0.2.1"), 429);
    assert_eq!(ask("?k=1", "", "192.0.2.2"), 200);
    assert_eq!(statuses(rig, "192.0.2.1", "/paths/a", 2), [200, 429]);
    assert_eq!(statuses(rig, "192.0.2.2", "/paths/%61?x", 1), [429]);
    assert_eq!(statuses(rig, "192.0.2.2", "/paths/b", 1), [200]);
    assert_eq!(statuses(rig, "192.0.2.1", "/all", 1), [200]);
    assert_eq!(statuses(rig, "192.0.2.2", "/all", 2), [200, 429]);
}

fn a_value_in_another_form_is_the_same(rig: &Rig) {
    let ask = |path: &str, fields: &str| ask_as(rig, "192.0.2.1", "x.test", path, fields).status();
    for (path, status) in [
        ("/token?token=SECRET", 200),
        ("/token?token=%53ECRET", 429),
        ("/token?%74oken=SECRET", 429),
        ("/token?token=SECRET&a=b&token=%53ECRET", 429),
        ("/token?token=a+b", 200),
        ("/token?token=a%20b", 429),
        ("/token?token=a%2Bb", 200),
    ] {
        assert_eq!(ask(path, ""), status, "{path}");
    }
    assert_eq!(ask("/session", "Cookie: sid=SECRET\r\n"), 200);
    for cookie in ["sid=%53ECRET", "sid=\"SECRET\"", "sid= SECRET", "sid=SECRET; sid=SECRET"] {
        assert_eq!(ask("/session", &format!("Cookie: {cookie}\r\n")), 429, "{cookie}");
    }
}

/// Origins differ in which of several values they use, so each value would be a way to evade the limit.
fn values_that_differ_are_counted_by_the_client(rig: &Rig) {
    let ask = |path: &str, fields: &str| ask_as(rig, "192.0.2.30", "x.test", path, fields).status();
    // The first request of each uses up the client's limit.
    for (query, status) in
        [("token=j1&token=REAL", 200), ("token=j2&token=REAL", 429), ("token=REAL&token=j3", 429), ("", 429)]
    {
        assert_eq!(ask(&format!("/token?{query}"), ""), status, "{query}");
    }
    for (fields, status) in [
        ("Cookie: sid=j1; sid=REAL\r\n", 200),
        ("Cookie: sid=j2; sid=REAL\r\n", 429),
        ("Cookie: sid=j3\r\nCookie: sid=REAL\r\n", 429),
    ] {
        assert_eq!(ask("/session", fields), status, "{fields}");
    }
    for (fields, status) in [
        ("X-Api-Key: j1\r\nX-Api-Key: REAL\r\n", 200),
        ("X-Api-Key: j2\r\nx-api-key: REAL\r\n", 429),
        ("X-Api-Key: j3, REAL\r\n", 200),
        ("X-Api-Key: REAL\r\n", 200),
    ] {
        assert_eq!(ask("/api", fields), status, "{fields}");
    }
}

fn a_dry_run_refuses_nothing(rig: &Rig) {
    assert_eq!(statuses(rig, "192.0.2.1", "/dry", 4), [200, 200, 200, 200]);
    let text = rig.metrics();
    assert_eq!(value(&text, "komainu_limit_refused_total", "trial"), 3);
    assert!(text.contains("route=\"/dry\",limit=\"trial\",dry_run=\"true\""), "{text}");
    eventually("the log has the dry run", || {
        let log = rig.reported();
        log.contains(
            "192.0.2.1: limit \"trial\" of 1/h (site *, route /dry): would be refused or delayed (dry run)",
        )
    });
    rig.expect_report("192.0.2.1: limit \"client\" of 10/h (site *, route /burst): refused");
}

fn a_crowd_is_bounded(rig: &Rig) {
    // Thousands of requests, pipelined on one connection.
    let crowd = |from: u32, count: u32| -> Vec<u8> {
        let request = |number: u32| {
            let client = std::net::Ipv4Addr::from_bits(0x0B00_0000 + number);
            format!("GET /million HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: {client}\r\n\r\n")
        };
        (from..from + count).map(request).collect::<String>().into_bytes()
    };
    ask_as(rig, "192.0.2.66", "x.test", "/million", "").expect_status(204);
    let before = value(&rig.metrics(), "komainu_limit_table_bytes", "crowd");
    for from in (0..6_000).step_by(1_000) {
        let mut stream = rig.connect();
        let requests = crowd(from, 1_000);
        let mut writer = stream.try_clone().unwrap();
        let written = std::thread::spawn(move || writer.write_all(&requests));
        for _ in 0..1_000 {
            read_answer(&mut stream).expect_status(204);
        }
        written.join().unwrap().unwrap();
    }
    let text = rig.metrics();
    let after = value(&text, "komainu_limit_table_bytes", "crowd");
    // At most 69 bytes for each key.
    assert!(after < 69_000 && before <= after, "{before} {after}");
    assert!(value(&text, "komainu_limit_forgotten_keys_total", "crowd") > 1_500, "{text}");
    assert_eq!(value(&text, "komainu_limit_refused_total", "crowd"), 0);
}

fn one_client_asks_without_end(rig: &Rig) {
    let mut passed = 0;
    for _ in 0..4 {
        let mut stream = rig.connect();
        let mut writer = stream.try_clone().unwrap();
        let request = "GET /million HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 198.51.100.7\r\n\r\n";
        let written = std::thread::spawn(move || writer.write_all(request.repeat(500).as_bytes()));
        for _ in 0..500 {
            passed += usize::from(read_answer(&mut stream).status() == 204);
        }
        written.join().unwrap().unwrap();
    }
    assert_eq!(passed, 1);
    assert_eq!(value(&rig.metrics(), "komainu_limit_refused_total", "crowd"), 1_999);
}

#[test]
fn delayed_requests_wait_and_are_bounded_in_number() {
    let folder = Folder::new();
    // At most five requests wait, each 250 ms longer than the previous one.
    let rig = Rig::config(
        folder,
        r#"
        threads = 2
        [[route]]
        limit = { rate = "4/s", burst = 0, delay = "60s", delayed = 5 }
        respond = "ok"
        "#,
    );
    let started = std::time::Instant::now();
    let mut streams: Vec<TcpStream> = (0..12).map(|_| rig.connect()).collect();
    for stream in &mut streams {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    }
    let answers: Vec<u16> = streams.iter_mut().map(|stream| read_answer(stream).status()).collect();
    let took = started.elapsed();
    let passed = answers.iter().filter(|status| **status == 200).count();
    // On a slow machine, later requests may take slots of those that have finished waiting.
    assert!(passed >= 6 && answers.iter().all(|status| matches!(status, 200 | 429)), "{answers:?}");
    assert!(took.as_millis() >= (passed as u128 - 1) * 250, "{passed} in {took:?}");
}

#[test]
fn disconnected_waiting_request_frees_its_delay_slot() {
    let folder = Folder::new();
    let rig = Rig::config(
        folder,
        r#"
        threads = 1
        [control]
        listen = "unix:control.sock"
        [[route]]
        limit = { rate = "200/h", burst = 0, delay = "60s", delayed = 1 }
        respond = "ok"
        "#,
    );
    rig.get("/").expect(200, "ok");
    let delayed = |count: u64| {
        eventually("one more waits", || {
            value(&rig.metrics(), "komainu_limit_delayed_total", "client") == count
        });
    };
    let mut first = rig.connect();
    first.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    delayed(1);
    let refused = rig.get("/");
    refused.expect_status(429);
    assert!(refused.field("retry-after").is_some());
    drop(first);
    // The slot is free once the server has noticed the disconnect.
    eventually("there is room for another", || {
        let mut second = rig.connect();
        second.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        second.set_read_timeout(Some(std::time::Duration::from_millis(300))).unwrap();
        let mut byte = [0];
        // Without an immediate refusal, the request waits.
        let waits = second.read(&mut byte).is_err();
        waits || value(&rig.metrics(), "komainu_limit_delayed_total", "client") == 2
    });
    delayed(2);
}

#[test]
fn disconnected_waiting_request_returns_its_turn() {
    // One request passes, and one slot within the next minute is left, which becomes free when the request
    // that waits for it is cancelled.
    let rig = Rig::config(
        Folder::new(),
        r#"
        threads = 2
        [control]
        listen = "unix:control.sock"
        [[route]]
        limit = { rate = "1/m", burst = 0, delay = "60s", delayed = 100, key = "all" }
        respond = "ok"
        "#,
    );
    rig.get("/").expect(200, "ok");
    let delayed = || value(&rig.metrics(), "komainu_limit_delayed_total", "all");
    for count in 1..=5 {
        eventually("the turn of the one before is free", || {
            let mut stream = rig.connect();
            stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            stream.set_read_timeout(Some(std::time::Duration::from_millis(20))).unwrap();
            let mut byte = [0];
            // The client disconnects while it waits.
            loop {
                match stream.read(&mut byte) {
                    Ok(_) => break false,
                    Err(_) if delayed() == count => break true,
                    Err(_) => {}
                }
            }
        });
    }
}

/// Starts an origin that counts requests and whose responses may be stored for a minute.
fn origin() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let theirs = count.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let count = theirs.clone();
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                let mut piece = [0; 4096];
                while let Ok(len @ 1..) = stream.read(&mut piece) {
                    bytes.extend_from_slice(&piece[..len]);
                    if bytes.ends_with(b"\r\n\r\n") {
                        bytes.clear();
                        count.fetch_add(1, Ordering::Relaxed);
                        let answer =
                            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nCache-Control: max-age=60\r\n\r\nok";
                        stream.write_all(answer).unwrap();
                    }
                }
            });
        }
    });
    (format!("http://{address}"), count)
}

#[test]
fn limit_counts_all_requests_or_only_cache_misses() {
    let (url, count) = origin();
    let config = format!(
        r#"
        [[route]]
        path = "/before/*"
        proxy = "{url}"
        cache = true
        limit = "3/h"

        [[route]]
        path = "/misses/*"
        proxy = "{url}"
        cache = true
        limit = {{ rate = "2/h", misses_only = true, headers = true }}

        [[route]]
        path = "/files/*"
        files = "www"
        proxy = "{url}"
        limit = {{ rate = "2/h", misses_only = true }}
        "#
    );
    let folder = Folder::new();
    folder.write("www/files/a", "file");
    let rig = Rig::config(folder, &config);
    let statuses = |paths: &[&str]| paths.iter().map(|path| rig.get(path).status()).collect::<Vec<_>>();
    assert_eq!(statuses(&["/before/a", "/before/a", "/before/a", "/before/a"]), [200, 200, 200, 429]);
    assert_eq!(count.load(Ordering::Relaxed), 1);
    // Cache hits are not counted, before and after the limit is reached.
    assert_eq!(
        statuses(&["/misses/a", "/misses/a", "/misses/a", "/misses/b", "/misses/c"]),
        [200, 200, 200, 200, 429]
    );
    assert_eq!(statuses(&["/misses/a", "/misses/b", "/misses/c"]), [200, 200, 429]);
    rig.get("/misses/a").expect_no_field("ratelimit");
    assert_eq!(count.load(Ordering::Relaxed), 3);
    // Requests that bypass the cache count as misses.
    rig.send("POST /misses/a HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        .expect_status(429);
    // Without a cache every request counts.
    assert_eq!(statuses(&["/files/a", "/files/a", "/files/a"]), [200, 200, 429]);
}

#[test]
fn reload_keeps_counters_of_unchanged_limits() {
    let folder = Folder::new();
    let config = |more: &str| {
        format!(
            r#"
            [[route]]
            path = "/a"
            limit = "2/h"
            respond = "a"
            {more}
            "#
        )
    };
    let rig = Rig::config(folder, &config(""));
    rig.get("/a").expect(200, "a");
    rig.get("/a").expect(200, "a");
    rig.get("/a").expect_status(429);
    let file = std::fs::read_to_string(rig.folder.at("komainu.toml")).unwrap();
    let more = r#"
        [[route]]
        path = "/b"
        limit = "1/h"
        respond = "b"
    "#;
    rig.folder.write("komainu.toml", format!("{file}{more}"));
    rig.signal("-HUP");
    eventually("the new route is there", || rig.get("/b").status() != 404);
    rig.get("/b").expect_status(429);
    rig.get("/a").expect_status(429);
}
