//! The metrics listener: output for Prometheus, and refused clients.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use crate::origin::{Origin, answer};
use crate::rig;
use crate::rig::{Answer, Folder, PATIENCE, Rig, as_we_are, connect, eventually, installed, komainu, nobody};

const CONFIG: &str = r#"
    threads = 2

    [log]
    level = "info"

    [control]
    listen = "unix:control.sock"

    [[site]]
    hosts = ["shop.test"]

    [[site.route]]
    path = "/gone/*"
    respond = { status = 410, body = "x" }

    [[route]]
    files = "www"
"#;

fn start() -> Rig {
    let folder = Folder::new();
    folder.write("www/a", "A").write("www/large", vec![b'x'; 100_000]);
    Rig::config(folder, CONFIG)
}

fn ask(rig: &Rig, path: &str, fields: &str) -> Answer {
    let mut stream = UnixStream::connect(rig.folder.at("control.sock")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{fields}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    Answer::parse(bytes)
}

fn metrics(rig: &Rig) -> String {
    ask(rig, "/metrics", "").expect_status(200).text()
}

/// Value of a sample.
fn value(text: &str, line: &str) -> f64 {
    let found = text.lines().find_map(|one| one.strip_prefix(line)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("no {line} in\n{text}")).parse().unwrap()
}

const FILES: &str = "site=\"*\",route=\"*\",handler=\"files\"";

#[test]
fn requests_are_counted_by_route_status_and_time() {
    let rig = start();
    for _ in 0..7 {
        rig.get("/a").expect(200, "A");
    }
    rig.get("/missing").expect_status(404);
    rig.send("GET /gone/1 HTTP/1.1\r\nHost: shop.test\r\nConnection: close\r\n\r\n").expect(410, "x");
    rig.send("nonsense\r\n\r\n").expect_status(400);
    // A request is counted after its response has been sent.
    let count = |code: &str| format!("komainu_http_requests_total{{{FILES},code=\"{code}\"}}");
    eventually("all are counted", || {
        let text = metrics(&rig);
        text.contains("code=\"410\"")
            && text.contains(&count("404"))
            && text.contains("komainu_invalid_requests_total 1")
    });
    let text = metrics(&rig);
    assert_eq!((value(&text, &count("200")), value(&text, &count("404"))), (7.0, 1.0));
    let shop = "site=\"shop.test\",route=\"/gone/*\",handler=\"respond\"";
    assert_eq!(value(&text, &format!("komainu_http_requests_total{{{shop},code=\"410\"}}")), 1.0);
    assert_eq!(value(&text, &format!("komainu_http_response_body_bytes_total{{{shop}}}")), 1.0);
    assert_eq!(value(&text, &format!("komainu_http_request_duration_seconds_count{{{FILES}}}")), 8.0);
    assert_eq!(
        value(&text, &format!("komainu_http_request_duration_seconds_bucket{{le=\"+Inf\",{FILES}}}")),
        8.0
    );
    assert!(value(&text, "komainu_connections_total") >= 10.0);
    assert!(
        value(&text, "komainu_resident_bytes") > 1e6 && value(&text, "komainu_memory_budget_bytes") > 1e6
    );
    // Values chosen by clients do not become labels.
    for n in 0..50 {
        rig.send(&format!("GET /{n} HTTP/1.1\r\nHost: h{n}.test\r\nConnection: close\r\n\r\n"));
    }
    eventually("these too", || value(&metrics(&rig), &count("404")) == 51.0);
    assert_eq!(metrics(&rig).lines().count(), text.lines().count());
}

#[test]
fn upstream_cache_and_body_metrics_are_counted() {
    let origin = Origin::start(|ask| {
        if ask.line().contains("/bad") {
            answer("503 Service Unavailable", "", "no")
        } else {
            answer("200 OK", "Cache-Control: max-age=60\r\n", "four")
        }
    });
    let (dead, live) = (format!("http://{}", nobody()), &origin.url);
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            threads = 1

            [control]
            listen = "unix:control.sock"

            [[route]]
            path = "/cached/*"
            proxy = "{live}"
            cache = true

            [[route]]
            proxy = ["{dead}", "{live}"]
            "#
        ),
    );
    for _ in 0..3 {
        rig.get("/cached/a").expect(200, "four");
    }
    for _ in 0..6 {
        rig.get("/a").expect(200, "four");
    }
    rig.get("/bad").expect(503, "no");
    rig.send("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        .expect_status(200);
    let of = |name: &str, server: &str, more: &str| format!("{name}{{server=\"{server}\"{more}}}");
    let bad = of("komainu_upstream_responses_total", live, ",class=\"5xx\"");
    let route = "site=\"*\",route=\"*\",handler=\"proxy\"";
    eventually("all are counted", || {
        let text = metrics(&rig);
        text.contains(&bad) && text.contains(&format!("komainu_http_request_body_bytes_total{{{route}}} 5"))
    });
    let text = metrics(&rig);
    assert_eq!(value(&text, &bad), 1.0);
    // One for the cache, six, the failing one, and the one with a body.
    assert_eq!(value(&text, &of("komainu_upstream_requests_total", live, "")), 9.0);
    assert_eq!(value(&text, &of("komainu_upstream_responses_total", live, ",class=\"2xx\"")), 8.0);
    assert_eq!(value(&text, &of("komainu_upstream_response_seconds_count", live, "")), 9.0);
    assert!(value(&text, &of("komainu_upstream_connect_seconds_count", live, "")) >= 1.0);
    assert_eq!(value(&text, &of("komainu_upstream_requests_active", live, "")), 0.0);
    assert_eq!(value(&text, &of("komainu_upstream_up", live, "")), 1.0);
    let failures = value(&text, &of("komainu_upstream_failures_total", &dead, ",reason=\"connect\""));
    assert!(failures >= 1.0);
    assert_eq!(value(&text, &of("komainu_upstream_retries_total", &dead, "")), failures);
    assert_eq!(value(&text, &of("komainu_upstream_requests_total", &dead, "")), failures);
    let cached = "site=\"*\",route=\"/cached/*\",handler=\"proxy\"";
    let outcome = |outcome: &str| format!("komainu_cache_requests_total{{{cached},outcome=\"{outcome}\"}}");
    assert_eq!((value(&text, &outcome("miss")), value(&text, &outcome("hit"))), (1.0, 2.0));
    for histogram in ["komainu_http_first_byte_seconds", "komainu_http_queue_seconds"] {
        assert_eq!(value(&text, &format!("{histogram}_count{{{route}}}")), 8.0, "{histogram}");
    }
    assert_eq!(value(&text, "komainu_tls_handshakes_total{kind=\"full\"}"), 0.0);
    assert!(value(&text, "komainu_protocol_requests_total{protocol=\"HTTP/1\"}") >= 8.0);
    assert_eq!(value(&text, "komainu_protocol_requests_total{protocol=\"HTTP/3\"}"), 0.0);
    // A reload keeps the counters, even of a server whose group has changed.
    let config = std::fs::read_to_string(rig.folder.at("komainu.toml")).unwrap();
    let changed = format!(
        r#"
        [[route]]
        path = "/new"
        respond = "new"
        [[route]]
        proxy = ["{live}"]
        "#
    );
    let (before, _) = config.rsplit_once("[[route]]").unwrap();
    rig.folder.write("komainu.toml", format!("{before}{changed}"));
    rig.signal("-HUP");
    eventually("the new route answers", || rig.get("/new").status() == 200);
    let requests = of("komainu_upstream_requests_total", live, "");
    let before = value(&metrics(&rig), &requests);
    assert!(before >= 9.0, "{before}");
    rig.get("/a").expect(200, "four");
    eventually("it continues", || value(&metrics(&rig), &requests) == before + 1.0);
    eventually("the old group is gone", || !metrics(&rig).contains(&dead));
}

/// Checks the text and the names with Prometheus' own linter.
#[test]
fn promtool_accepts_metrics() {
    let Some(promtool) = installed("promtool") else { return };
    let origin = Origin::start(|_| answer("200 OK", "", "x"));
    let text = format!(
        r#"
        [control]
        listen = "unix:control.sock"
        [[route]]
        path = "/up"
        proxy = "{}"
        [[route]]
        respond = "a"
        "#,
        origin.url
    );
    let rig = Rig::config(Folder::new(), &text);
    rig.get("/up").expect(200, "x");
    rig.get("/").expect(200, "a");
    let mut tool = Command::new(promtool);
    let tool =
        tool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut tool = tool.spawn().unwrap();
    tool.stdin.take().unwrap().write_all(metrics(&rig).as_bytes()).unwrap();
    let judged = tool.wait_with_output().unwrap();
    let said = format!("{}{}", rig::text(&judged.stdout), rig::text(&judged.stderr));
    assert!(judged.status.success() && said.is_empty(), "{said}");
}

#[test]
fn counts_survive_a_reload() {
    let rig = start();
    rig.get("/a").expect(200, "A");
    let line = format!("komainu_http_requests_total{{{FILES},code=\"200\"}}");
    eventually("it is counted", || metrics(&rig).contains(&line));
    let text = std::fs::read_to_string(rig.folder.at("komainu.toml")).unwrap();
    let new = r#"
    [[route]]
    path = "/new"
    respond = "new"
    "#;
    rig.folder.write("komainu.toml", text.replace("[[route]]", &format!("{new}[[route]]")));
    rig.signal("-HUP");
    eventually("the new route answers", || rig.get("/new").status() == 200);
    rig.get("/a").expect(200, "A");
    eventually("both are counted", || value(&metrics(&rig), &line) == 2.0);
}

#[test]
fn prometheus_client_parses_both_metrics_formats() {
    let Some(python) = installed("python3") else { return };
    let rig = start();
    rig.get("/a").expect(200, "A");
    let accept = "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n";
    for (fields, kind, parser) in [
        (accept, "application/openmetrics-text; version=1.0.0; charset=utf-8", "openmetrics.parser"),
        ("", "text/plain; version=0.0.4; charset=utf-8", "parser"),
    ] {
        let answer = ask(&rig, "/metrics", fields);
        answer.expect_field("Content-Type", kind);
        let script = format!(
            r"import sys
from prometheus_client.{parser} import text_string_to_metric_families as read
found = {{f.name: f for f in read(sys.stdin.read())}}
assert found['komainu_http_requests'].type == 'counter', found
assert found['komainu_http_request_duration_seconds'].type == 'histogram', found
assert found['komainu_connections_open'].samples, found
"
        );
        let mut reader = Command::new(&python);
        let mut reader = reader.args(["-c", &script]).stdin(Stdio::piped()).spawn().unwrap();
        reader.stdin.take().unwrap().write_all(answer.text().as_bytes()).unwrap();
        assert!(reader.wait().unwrap().success(), "{}", answer.text());
    }
}

#[test]
fn control_listener_rejects_unknown_paths_and_methods() {
    let rig = start();
    let status: serde_json::Value = serde_json::from_str(&ask(&rig, "/v1/status", "").text()).unwrap();
    assert_eq!(status["pid"], rig.child.id());
    ask(&rig, "/none", "").expect_status(404);
    let mut stream = UnixStream::connect(rig.folder.at("control.sock")).unwrap();
    stream.write_all(b"DELETE /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    Answer::parse(bytes).expect_status(405).expect_field("Allow", "GET, HEAD");
    ask(&rig, "/metrics", "Content-Length: 1\r\n").expect_status(400);
}

#[test]
fn tcp_metrics_check_host_and_survive_stalled_clients() {
    let folder = Folder::new();
    folder.write("www/a", "A");
    let mut command = komainu();
    command.args(["run", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", "--log-level", "info"]);
    command.arg(folder.at("www"));
    let rig = Rig::start(command, folder);
    let at = || {
        let said = rig.reported();
        let (_, rest) = said.split_once("the control listener is http://")?;
        rest.split_whitespace().next()?.parse::<SocketAddr>().ok()
    };
    eventually("it says where", || at().is_some());
    let address = at().unwrap();
    let ask = |host: &str| {
        let mut stream = connect(address);
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        Answer::parse(bytes).status()
    };
    assert_eq!(
        [ask("rebound.test"), ask("localhost:1"), ask("[::1]"), ask("127.0.0.1")],
        [421, 200, 200, 200]
    );
    // Clients that stall within a request occupy all slots for a moment.
    let begun: Vec<TcpStream> = (0..300)
        .map(|_| {
            let mut client = connect(address);
            client.write_all(b"GET /metrics HTTP/1.1\r\nX: ").unwrap();
            client
        })
        .collect();
    assert_eq!(ask("localhost"), 200);
    drop(begun);
    // Each client sends requests until the server stops reading, and reads nothing.
    let flood = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(1_000);
    let clients: Vec<TcpStream> = (0..20)
        .map(|_| {
            let mut client = connect(address);
            client.set_nonblocking(true).unwrap();
            while let Ok(1..) = client.write(flood.as_bytes()) {}
            client
        })
        .collect();
    assert_eq!(ask("localhost"), 200);
    rig.get("/a").expect(200, "A");
    let resident = std::fs::read_to_string(format!("/proc/{}/status", rig.child.id())).unwrap();
    let line = resident.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(kib < 200 * 1024, "{kib} KiB");
    drop(clients);
}

#[test]
fn occupied_control_address_is_reported_at_start() {
    let folder = Folder::new();
    folder.write("www/a", "A");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap();
    let config = format!(
        r#"
        listen = "127.0.0.1:0"
        {}
        [control]
        listen = "{at}"
        [[route]]
        files = "www"
        "#,
        as_we_are()
    );
    folder.write("komainu.toml", config);
    let ended = komainu().arg("start").arg("-c").arg(folder.at("komainu.toml")).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(
        !ended.status.success() && said.contains("`control.listen`") && said.contains(&at.to_string()),
        "{said}"
    );
}
