//! Release traffic: `split`, `mirror` and `fault`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::origin::{Origin, answer, ok};
use crate::rig::{Answer, Folder, Rig, eventually, is_closed, nobody, read_answer};

/// Starts a version of an application with cacheable responses, which a route's cache could mix up.
fn version(name: &'static str) -> Origin {
    Origin::start(move |_| answer("200 OK", "Cache-Control: max-age=600\r\n", name))
}

/// Value of the first sample with this name and all of these labels; 0 if there is none.
fn value(rig: &Rig, name: &str, labels: &[&str]) -> u64 {
    let text = rig.metrics();
    let line = text.lines().find(|line| {
        line.starts_with(&format!("{name}{{")) && labels.iter().all(|label| line.contains(label))
    });
    line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).unwrap_or(0.0) as u64
}

fn ask_as(rig: &Rig, client: &str, path: &str, fields: &str) -> Answer {
    rig.send(&format!(
        "GET {path} HTTP/1.1\r\nHost: a.test\r\nX-Forwarded-For: {client}\r\n{fields}Connection: close\r\n\r\n"
    ))
}

fn splits(stable: &str, canary: &str, weights: [u32; 2]) -> String {
    let branches = |more: &str| {
        format!(
            "[{{ name = \"stable\", weight = {}, proxy = \"{stable}\" }}, \
             {{ name = \"canary\", weight = {}, proxy = \"{canary}\"{more} }}]",
            weights[0], weights[1]
        )
    };
    let plain = branches("");
    let by_when = branches(", when = { header = { X-Canary = \"yes\" }, cookie = { beta = true } }");
    format!(
        r#"
        threads = 2
        trusted_proxies = ["127.0.0.1"]

        [control]
        listen = "unix:control.sock"

        [log]
        access = "$target $branch"
        file = "access.log"

        [[route]]
        path = "/client"
        split = {plain}

        [[route]]
        path = "/when"
        split = {by_when}

        [[route]]
        path = "/cookie"
        split = {{ by = "sticky:release", branches = {plain} }}

        [[route]]
        path = "/header"
        split = {{ by = "hash:header:X-User", branches = {plain} }}

        [[route]]
        path = "/session"
        split = {{ by = "hash:cookie:sid", branches = {plain} }}

        [[route]]
        path = "/random"
        split = {{ by = "random", branches = {plain} }}

        [[route]]
        path = "/cached*"
        cache = true
        split = {{ by = "hash:header:X-User", branches = {plain} }}

        [[route]]
        path = "/kinds"

        [[route.split.branches]]
        name = "files"
        weight = 0
        files = "www"
        when.query.v = "files"

        [[route.split.branches]]
        name = "text"
        respond = "text"
        "#
    )
}

/// The version that answers each client.
fn of_clients(rig: &Rig, path: &str) -> BTreeMap<u8, String> {
    (0..200)
        .map(|host| (host, ask_as(rig, &format!("192.0.2.{host}"), path, "").expect_status(200).text()))
        .collect()
}

#[test]
fn a_split_sends_each_client_to_one_branch() {
    let stable = version("stable");
    let canary = version("canary");
    let folder = Folder::new();
    folder.write("www/kinds", "a file");
    let rig = Rig::config(folder, &splits(&stable.url, &canary.url, [80, 20]));
    let before = of_clients(&rig, "/client");
    assert_eq!(before, of_clients(&rig, "/client"));
    let count = |of: &BTreeMap<u8, String>| of.values().filter(|version| *version == "canary").count();
    // The choice depends only on addresses and names, so it is the same in every run.
    assert!((20..60).contains(&count(&before)), "{}", count(&before));
    conditions_come_before_weights(&rig);
    a_cookie_keeps_its_client(&rig);
    keys_keep_their_clients(&rig);
    the_cache_keeps_branches_apart(&rig, (&stable, &canary));
    branches_have_any_action(&rig);
    logs_and_metrics_name_the_branch(&rig);
    // A reload changes the weights, and only the necessary clients move.
    let text = format!(
        "{}{}{}",
        crate::rig::listen(&rig.folder),
        crate::rig::as_we_are(),
        splits(&stable.url, &canary.url, [50, 50])
    );
    rig.folder.write("komainu.toml", text);
    rig.signal("-HUP");
    eventually("the weights are in use", || of_clients(&rig, "/client") != before);
    let after = of_clients(&rig, "/client");
    assert!(count(&after) > count(&before));
    assert!(before.iter().all(|(host, version)| version == "stable" || after[host] == "canary"));
}

fn conditions_come_before_weights(rig: &Rig) {
    let both = "X-Canary: yes\r\nCookie: a=b; beta=1\r\n";
    for host in 0..20 {
        ask_as(rig, &format!("192.0.2.{host}"), "/when", both).expect(200, "canary");
    }
    // A single matching condition is not enough.
    let stays = (0..200).map(|host| format!("192.0.2.{host}"));
    let stays: Vec<String> =
        stays.filter(|client| ask_as(rig, client, "/when", "").text() == "stable").collect();
    for fields in ["X-Canary: yes\r\n", "Cookie: beta=1\r\n", "X-Canary: no\r\nCookie: beta=1\r\n"] {
        ask_as(rig, &stays[0], "/when", fields).expect(200, "stable");
    }
}

fn a_cookie_keeps_its_client(rig: &Rig) {
    let mut seen = BTreeSet::new();
    for _ in 0..40 {
        let first = ask_as(rig, "192.0.2.1", "/cookie", "");
        let cookie = first.expect_status(200).field("set-cookie").unwrap().to_owned();
        let (pair, attributes) = cookie.split_once("; ").unwrap();
        assert_eq!(
            attributes,
            if rig.scheme() == "https" {
                "Path=/; HttpOnly; SameSite=Lax; Secure"
            } else {
                "Path=/; HttpOnly; SameSite=Lax"
            }
        );
        let version = first.text();
        for client in ["192.0.2.1", "198.51.100.7"] {
            let again = ask_as(rig, client, "/cookie", &format!("Cookie: x=y; {pair}\r\n"));
            again.expect(200, &version).expect_no_field("set-cookie");
        }
        seen.insert(version);
    }
    // A client with an arbitrary cookie gets a branch, and a new number if its own is invalid.
    for value in ["canary", "", "FFFFFFFF", "00000000000000000000000000", "%00", "-1", "zzzzzzzz"] {
        let answer = ask_as(rig, "192.0.2.1", "/cookie", &format!("Cookie: release={value}\r\n"));
        assert!(answer.expect_status(200).field("set-cookie").unwrap().starts_with("release="), "{value}");
    }
    assert!(seen.contains("stable"));
}

fn keys_keep_their_clients(rig: &Rig) {
    for (path, field) in [("/header", "X-User: "), ("/session", "Cookie: sid=")] {
        let of =
            |user: usize, client: &str| ask_as(rig, client, path, &format!("{field}user{user}\r\n")).text();
        let versions: Vec<String> = (0..60).map(|user| of(user, "192.0.2.1")).collect();
        assert!(versions.contains(&"stable".to_owned()) && versions.contains(&"canary".to_owned()));
        assert!((0..60).all(|user| of(user, "198.51.100.7") == versions[user]));
    }
    let drawn: BTreeSet<String> = (0..200).map(|_| ask_as(rig, "192.0.2.1", "/random", "").text()).collect();
    assert_eq!(drawn.len(), 2, "each request is drawn: all 200 alike is less likely than 1 in 10^19");
}

fn the_cache_keeps_branches_apart(rig: &Rig, (stable, canary): (&Origin, &Origin)) {
    let asked = stable.asks().len() + canary.asks().len();
    for _ in 0..3 {
        for user in 0..60 {
            let fields = format!("X-User: user{user}\r\n");
            let uncached = ask_as(rig, "192.0.2.1", "/header", &fields).text();
            ask_as(rig, "192.0.2.1", "/cached", &fields).expect(200, &uncached);
        }
    }
    // One miss for each version: all other requests are cache hits.
    let misses =
        (stable.asks().iter().chain(&canary.asks())).filter(|ask| ask.line().contains("/cached")).count();
    assert_eq!(misses, 2, "of {} more requests", stable.asks().len() + canary.asks().len() - asked);
}

fn branches_have_any_action(rig: &Rig) {
    rig.get("/kinds").expect(200, "text");
    rig.get("/kinds?v=files").expect(200, "a file");
}

fn logs_and_metrics_name_the_branch(rig: &Rig) {
    eventually("the log has the branches", || {
        let log = std::fs::read_to_string(rig.folder.at("access.log")).unwrap_or_default();
        ["/when canary", "/client stable", "/kinds text", "/kinds?v=files files"]
            .iter()
            .all(|line| log.lines().any(|other| other == *line))
    });
    for branch in ["stable", "canary"] {
        let labels = ["route=\"/client\"", &format!("handler=\"branch {branch}\"")];
        assert!(value(rig, "komainu_http_requests_total", &labels) > 0, "{branch}: {}", rig.metrics());
    }
}

/// Starts a server that reads chunked bodies, and returns its URL.
fn chunked_origin() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut bytes = Vec::new();
            let mut buffer = [0; 4096];
            while !bytes.ends_with(b"\r\n0\r\n\r\n") {
                match stream.read(&mut buffer) {
                    Ok(count @ 1..) => bytes.extend_from_slice(&buffer[..count]),
                    _ => break,
                }
            }
            let _ = stream.write_all(answer("200 OK", "Connection: close\r\n", "chunks").as_bytes());
        }
    });
    url
}

#[test]
fn each_mirror_of_a_list_gets_a_copy() {
    let origin = Origin::start(|ask| ok(&format!("real {}", ask.body.len())));
    let copies: [Origin; 3] = std::array::from_fn(|_| Origin::start(|_| ok("a copy")));
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            [[route]]
            proxy  = "{}"
            mirror = ["{}", {{ to = "{}", body_max = "3B" }}, {{ to = "{}", share = "0%" }}]
            "#,
            origin.url, copies[0].url, copies[1].url, copies[2].url
        ),
    );
    rig.get("/1").expect(200, "real 0");
    let posted =
        rig.send("POST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello");
    posted.expect(200, "real 5");
    rig.get("/3").expect(200, "real 0");
    let paths = |origin: &Origin| {
        let mut paths: Vec<String> =
            origin.asks().iter().map(|ask| ask.line().split(' ').nth(1).unwrap().to_owned()).collect();
        paths.sort();
        paths
    };
    eventually("the first has copies of all", || paths(&copies[0]) == ["/1", "/2", "/3"]);
    eventually("the second has those with short bodies", || paths(&copies[1]) == ["/1", "/3"]);
    assert!(copies[0].asks().iter().any(|ask| ask.body == b"hello"));
    assert!(paths(&copies[2]).is_empty());
}

#[test]
fn mirrored_copies_neither_delay_nor_fail_requests() {
    let origin = Origin::start(|ask| ok(&format!("real {}", ask.body.len())));
    let copies = Origin::start(|_| answer("500 Internal Server Error", "", "of no interest"));
    // A server that never answers, and one that never stops sending.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let flood = TcpListener::bind("127.0.0.1:0").unwrap();
    let flooded = Arc::new(AtomicUsize::new(0));
    let (flood_url, counted) = (format!("http://{}", flood.local_addr().unwrap()), flooded.clone());
    std::thread::spawn(move || {
        for stream in flood.incoming() {
            let mut stream = stream.unwrap();
            let mut head = [0; 1024];
            let _ = stream.read(&mut head);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n");
            let block = [b'x'; 65536];
            while stream.write_all(&block).is_ok() {
                counted.fetch_add(block.len(), Ordering::Relaxed);
            }
            counted.fetch_add(1_000_000_000, Ordering::Relaxed);
        }
    });
    let route = |path: &str, to: &str, more: &str| {
        format!(
            r#"
            [[route]]
            path = "{path}"
            proxy = "{}"
            mirror = {{ to = {to}{more} }}
            "#,
            origin.url
        )
    };
    let chunks = format!(
        r#"
        [[route]]
        path = "/chunks/*"
        proxy = "{}"
        mirror = {{ to = {{ upstream = "copies" }}, body_max = "1KiB" }}
        "#,
        chunked_origin()
    );
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            threads = 1

            [control]
            listen = "unix:control.sock"
            {chunks}
            {}
            {}
            {}
            {}
            {}

            [upstreams.copies]
            to = "{}"
            "#,
            route("/all/*", "{ upstream = \"copies\", add_prefix = \"/copy\" }", ", body_max = \"1KiB\""),
            route("/none/*", "{ upstream = \"copies\" }", ", share = \"0%\""),
            route(
                "/silent/*",
                &format!("\"http://{}\"", silent.local_addr().unwrap()),
                ", in_flight = 2, timeout = \"60s\""
            ),
            route("/flood/*", &format!("\"{flood_url}\""), ""),
            route("/nobody/*", &format!("\"http://{}\"", nobody()), ", when = { query = { copy = true } }"),
            copies.url,
        ),
    );
    let outcome = |route: &str, outcome: &str| {
        let labels = [format!("route=\"{route}/*\""), format!("outcome=\"{outcome}\"")];
        value(&rig, "komainu_mirror_requests_total", &[&labels[0], &labels[1]])
    };
    // Bodies with a length and in chunks, and one that is too long.
    let post = |path: &str, body: &str| {
        rig.send(&format!("POST {path} HTTP/1.1\r\nHost: a\r\n{body}")).expect_status(200).text()
    };
    rig.get("/all/1?q").expect(200, "real 0");
    assert_eq!(post("/all/2", "Content-Length: 5\r\nConnection: close\r\n\r\nhello"), "real 5");
    assert_eq!(
        post(
            "/chunks/3",
            "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
        ),
        "chunks"
    );
    let long = "x".repeat(2000);
    assert_eq!(
        post("/all/4", &format!("Content-Length: 2000\r\nConnection: close\r\n\r\n{long}")),
        "real 2000"
    );
    let chunked =
        format!("Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n7d0\r\n{long}\r\n0\r\n\r\n");
    assert_eq!(post("/chunks/5", &chunked), "chunks");
    // A copy of a copy could loop forever.
    rig.ask("/all/6", "X-Mirrored: 1\r\n").expect(200, "real 0");
    for _ in 0..20 {
        rig.get("/none/1").expect(200, "real 0");
    }
    eventually("the copies have come", || copies.asks().len() == 3);
    eventually("what is too long is counted", || {
        outcome("/all", "too_long") + outcome("/chunks", "too_long") == 2
    });
    assert_eq!((outcome("/all", "sent"), outcome("/chunks", "sent")), (2, 1));
    let of = |path: &str| copies.asks().into_iter().find(|ask| ask.line().contains(path)).unwrap();
    // "/1" would occur in the version of every request line.
    assert_eq!(of("/all/1").line(), "GET /copy/all/1?q HTTP/1.1");
    for path in ["/2", "/3"] {
        assert_eq!((of(path).body.as_slice(), of(path).field("x-mirrored")), (&b"hello"[..], vec!["1"]));
    }
    assert!(origin.asks().iter().all(|ask| ask.line().contains("/6") || ask.field("x-mirrored").is_empty()));
    // Two copies without an answer are in flight; further ones are dropped.
    for _ in 0..5 {
        rig.get("/silent/1").expect(200, "real 0");
    }
    assert_eq!((outcome("/silent", "sent"), outcome("/silent", "dropped")), (2, 3));
    rig.get("/flood/1").expect(200, "real 0");
    eventually("the flood is cut off", || flooded.load(Ordering::Relaxed) > 1_000_000_000);
    assert!(flooded.load(Ordering::Relaxed) < 1_080_000_000, "most of it was not read");
    for path in ["/nobody/1", "/nobody/2?copy"] {
        rig.get(path).expect(200, "real 0");
    }
    eventually("the copy has failed", || outcome("/nobody", "failed") == 1);
    assert_eq!(outcome("/nobody", "sent"), 1);
}

#[test]
fn faults_are_injected_into_matching_requests_only() {
    let rig = Rig::config(
        Folder::new(),
        r#"
        threads = 1

        [control]
        listen = "unix:control.sock"

        [[route]]
        path = "/some"
        respond = "ok"
        fault = [
            { abort = true, when = { header = { X-Fault = "abort" } } },
            { status = 503, when = { query = { fault = "status" } } },
            { delay = "50ms", when = { header = { X-Fault = "delay" } } },
            { delay = "10m", when = { header = { X-Fault = "long" } } },
            { status = 500, share = "0%" },
        ]

        [[route]]
        respond = "other"
        "#,
    );
    eventually("the start warns", || rig.reported().contains("requests are made to fail (`fault`)"));
    rig.get("/some").expect(200, "ok");
    rig.get("/some?fault=status").expect_status(503).expect_field("cache-control", "no-store");
    let before = std::time::Instant::now();
    rig.ask("/some", "X-Fault: delay\r\n").expect(200, "ok");
    // The server reads its clock once for each wake-up, so that the delay may end a little early.
    assert!(before.elapsed() >= std::time::Duration::from_millis(30));
    let mut stream = rig.connect();
    stream.write_all(b"GET /some HTTP/1.1\r\nHost: a\r\nX-Fault: abort\r\n\r\n").unwrap();
    assert!(is_closed(&mut stream));
    rig.ask("/other", "X-Fault: abort\r\n").expect(200, "other");
    // A delayed request blocks no other, and its client may disconnect.
    let mut waits = rig.connect();
    waits.write_all(b"GET /some HTTP/1.1\r\nHost: a\r\nX-Fault: long\r\n\r\n").unwrap();
    eventually("all are counted", || value(&rig, "komainu_faults_injected_total", &["route=\"/some\""]) == 4);
    drop(waits);
    let mut stream = rig.connect();
    stream.write_all(b"GET /some HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    read_answer(&mut stream).expect(200, "ok");
}
