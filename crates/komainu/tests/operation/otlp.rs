//! Metrics, logs and traces for an OpenTelemetry collector.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

use crate::origin::{Ask, Origin, answer};
use crate::rig::{self, Folder, Rig, eventually, installed};

/// Validates the documents with the protocol's schema and returns the number of spans, metrics and records.
fn judged(asks: &[Ask]) -> Option<usize> {
    let python = installed("python3")?;
    let mut lines = String::new();
    for ask in asks {
        let path = ask.line().split(' ').nth(1).unwrap();
        lines.push_str(&format!("{path} {}\n", rig::text(&ask.body)));
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/otlp_schema.py");
    let mut judge = Command::new(python);
    let mut judge = judge
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    judge.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let judged = judge.wait_with_output().unwrap();
    assert!(judged.status.success(), "{}\n{lines}", rig::text(&judged.stderr));
    Some(rig::text(&judged.stdout).trim().parse().unwrap())
}

fn document(ask: &Ask) -> Value {
    serde_json::from_slice(&ask.body).unwrap()
}

/// An attribute of a resource, a data point or a record, as text.
fn attribute(of: &Value, name: &str) -> Option<String> {
    let found = of["attributes"].as_array()?.iter().find(|attribute| attribute["key"] == name)?;
    let value = found["value"].as_object().unwrap().values().next().unwrap();
    Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

/// Requests that the collector received on this path.
fn sent(collector: &Origin, path: &str) -> Vec<Ask> {
    let is = |ask: &Ask| ask.line() == format!("POST {path} HTTP/1.1");
    collector.asks().into_iter().filter(is).collect()
}

/// Data points of a metric in a document, by kind of data.
fn points(document: &Value, metric: &str, kind: &str) -> Vec<Value> {
    let metrics = document["resourceMetrics"][0]["scopeMetrics"][0]["metrics"].as_array().unwrap();
    let found = metrics.iter().find(|other| other["name"] == metric);
    found.and_then(|found| found[kind]["dataPoints"].as_array()).cloned().unwrap_or_default()
}

/// Number of requests of the route `/a` with this status in the latest document, and the document.
fn latest(collector: &Origin, status: &str) -> (u64, Value) {
    let Some(last) = sent(collector, "/v1/metrics").pop() else { return (0, Value::Null) };
    let document = document(&last);
    let of_route = points(&document, "komainu.http.requests", "sum").into_iter().find(|point| {
        attribute(point, "http.route").as_deref() == Some("/a")
            && attribute(point, "http.response.status_code").as_deref() == Some(status)
    });
    let count = of_route.map_or(0, |point| point["asInt"].as_str().unwrap().parse().unwrap());
    (count, document)
}

/// Starts a server that exports traces, metrics and logs to a collector, and answers `A` at a path.
fn export_all(url: &str, access: &str, path: &str) -> Rig {
    Rig::config(
        Folder::new(),
        &format!(
            r#"
            threads = 1

            [tracing]
            enabled = true
            sample = "100%"
            to = "{url}"

            [metrics]
            to = "{url}"
            every = "1s"

            [log]
            access = "{access}"
            file = {{ otlp = "{url}" }}

            [[route]]
            path = "{path}"
            respond = "A"
            "#
        ),
    )
}

#[test]
fn otlp_metrics_are_exported_periodically_and_at_stop() {
    let collector = Origin::start(|_| answer("200 OK", "", "{}"));
    let folder = Folder::new();
    folder.write("keys", "# of the service\nX-Key: secret\n");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(folder.at("keys"), mode).unwrap();
    let config = |more: &str| {
        format!(
            r#"
            threads = 2

            [log]
            level = "info"

            [tracing]
            enabled = true
            sample = "100%"

            [metrics]
            to = "{}"
            every = "1s"
            service = "shop"
            instance = "one"
            headers = {{ X-Tenant = "a" }}
            headers_file = "keys"
            {more}

            [[route]]
            path = "/a"
            respond = "A"
            "#,
            collector.url
        )
    };
    let mut rig = Rig::config(folder, &config(""));
    for _ in 0..7 {
        rig.get("/a").expect(200, "A");
    }
    eventually("the collector has the requests", || latest(&collector, "200").0 == 7);
    let (_, first) = latest(&collector, "200");
    let resource = &first["resourceMetrics"][0]["resource"];
    let named = |name: &str| attribute(resource, name).unwrap();
    assert_eq!((named("service.name"), named("service.instance.id")), ("shop".into(), "one".into()));
    let ask = collector.last();
    assert_eq!((ask.field("X-Key"), ask.field("X-Tenant")), (vec!["secret"], vec!["a"]));
    let of_route = |point: &Value| attribute(point, "http.route").as_deref() == Some("/a");
    let durations = points(&first, "http.server.request.duration", "histogram");
    let duration = durations.iter().find(|point| of_route(point)).unwrap();
    assert_eq!(
        (&duration["count"], attribute(duration, "komainu.handler")),
        (&"7".into(), Some("respond".into()))
    );
    assert!(duration["exemplars"][0]["traceId"].is_string(), "{duration}");
    assert!(points(&first, "process.memory.usage", "gauge")[0]["asDouble"].as_f64().unwrap() > 1e6);
    // Histograms with finer buckets after a reload; the exporting thread is new, and the counts continue from
    // the same start time.
    let text = format!(
        "{}{}{}",
        rig::listen(&rig.folder),
        rig::as_we_are(),
        config("histograms = \"exponential\"\n")
    );
    rig.folder.write("komainu.toml", text);
    rig.signal("-HUP");
    rig.get("/a").expect(200, "A");
    let finer =
        || points(&latest(&collector, "200").1, "http.server.request.duration", "exponentialHistogram");
    eventually("histograms are exponential", || {
        finer().iter().any(|point| of_route(point) && point["count"] == "8")
    });
    let point = finer().into_iter().find(of_route).unwrap();
    assert_eq!((&point["scale"], &point["startTimeUnixNano"]), (&3.into(), &duration["startTimeUnixNano"]));
    // The last values are sent when the server stops.
    rig.get("/a").expect(200, "A");
    rig.signal("-TERM");
    assert!(rig.ended().success());
    assert_eq!(latest(&collector, "200").0, 9);
    if let Some(count) = judged(&sent(&collector, "/v1/metrics")) {
        assert!(count > 40, "{count}");
    }
    // Secrets are not logged.
    assert!(!rig.reported().contains("secret"), "{}", rig.reported());
}

/// Log records that the collector received.
fn records(collector: &Origin) -> Vec<Value> {
    let asks = sent(collector, "/v1/logs");
    let of = |ask: &Ask| {
        document(ask)["resourceLogs"][0]["scopeLogs"][0]["logRecords"].as_array().unwrap().clone()
    };
    asks.iter().flat_map(of).collect()
}

fn body(record: &Value) -> &str {
    record["body"]["stringValue"].as_str().unwrap()
}

#[test]
fn log_lines_are_exported_as_otlp_records() {
    let collector = Origin::start(|_| answer("200 OK", "", "{}"));
    let url = &collector.url;
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            threads = 1

            [tracing]
            enabled = true
            sample = "100%"

            [log]
            access = '$method $uri $status'
            mask_query = ["token"]
            level = "info"
            file = {{ otlp = "{url}", service = "shop" }}
            errors = {{ otlp = "{url}", service = "shop", headers = {{ X-Key = "k" }} }}

            [[route]]
            path = "/a"
            respond = "A"
            response_headers = {{ set = {{ X-Trace = "$trace_id", X-Span = "$span_id" }} }}

            [[route]]
            path = "/bad"
            proxy = "http://{}"
            "#,
            crate::rig::nobody()
        ),
    );
    let first = rig.ask("/a?token=secret&b=\"\u{e9}", "User-Agent: t\"\x1b\r\n");
    assert_eq!(first.status(), 400, "a control character is no field value");
    let first = rig.ask("/a?token=secret&b=1", "User-Agent: t\"\\\r\n");
    first.expect(200, "A");
    rig.get("/bad").expect_status(502);
    let of = |text: &str| records(&collector).into_iter().find(|record| body(record).contains(text));
    eventually("both requests are there", || of("/a?").is_some() && of("/bad 502").is_some());
    let record = of("/a?").unwrap();
    assert_eq!(body(&record), "GET /a?token=***&b=1 200");
    for (name, want) in [
        ("komainu.log", "access"),
        ("http.request.method", "GET"),
        ("http.response.status_code", "200"),
        ("http.response.body.size", "1"),
        ("url.path", "/a"),
        ("url.query", "token=***&b=1"),
        ("url.scheme", rig.scheme()),
        ("server.address", "localhost"),
        ("client.address", "127.0.0.1"),
        ("network.protocol.version", "1.1"),
        ("user_agent.original", "t\"\\"),
    ] {
        assert_eq!(attribute(&record, name).as_deref(), Some(want), "{name} in {record}");
    }
    assert_eq!(record["severityText"], "INFO");
    assert_eq!(
        (record["traceId"].as_str(), record["spanId"].as_str(), &record["flags"]),
        (first.field("X-Trace"), first.field("X-Span"), &1.into())
    );
    let bad = of("/bad 502").unwrap();
    assert_eq!((&bad["severityText"], attribute(&bad, "komainu.reason").is_some()), (&"ERROR".into(), true));
    // The error log, each line with its severity.
    let error = |record: &Value| attribute(record, "komainu.log").as_deref() == Some("error");
    eventually("the error is there", || {
        records(&collector).iter().any(|record| error(record) && record["severityNumber"] == 17)
    });
    let all = records(&collector);
    assert!(all.iter().all(|record| !record.to_string().contains("secret")), "{all:?}");
    let of_errors =
        sent(&collector, "/v1/logs").into_iter().filter(|ask| ask.field("X-Key") == ["k"]).count();
    assert!(of_errors >= 1);
    if let Some(count) = judged(&sent(&collector, "/v1/logs")) {
        assert_eq!(count, all.len());
    }
}

#[test]
fn stream_log_lines_are_exported_as_otlp_records() {
    let collector = Origin::start(|_| answer("200 OK", "", "{}"));
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = server.local_addr().unwrap();
    std::thread::spawn(move || server.incoming().for_each(drop));
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            [log]
            access = "json"
            file = {{ otlp = "{}" }}
            [[stream]]
            listen = "127.0.0.1:0"
            name = "db"
            to = "{to}"
            "#,
            collector.url
        ),
    );
    drop(rig.connect());
    let found = || records(&collector).into_iter().find(|record| body(record).contains("\"db\""));
    eventually("the connection is there", || found().is_some());
    let record = found().unwrap();
    assert_eq!(
        (attribute(&record, "komainu.log").as_deref(), &record["severityText"]),
        (Some("access"), &"INFO".into())
    );
    if let Some(count) = judged(&sent(&collector, "/v1/logs")) {
        assert_eq!(count, records(&collector).len());
    }
}

#[test]
fn otlp_data_is_resent_after_temporary_collector_errors() {
    let busy = Arc::new(AtomicUsize::new(1));
    let asked = Arc::new(AtomicUsize::new(0));
    let theirs = busy.clone();
    let counted = asked.clone();
    let collector = Origin::start(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        match theirs.load(Ordering::Relaxed) {
            0 => answer("200 OK", "", "{}"),
            1 => answer("503 Service Unavailable", "Retry-After: 1\r\n", ""),
            _ => answer("400 Bad Request", "", "not\nthis"),
        }
    });
    let url = &collector.url;
    let rig = export_all(url, "$uri", "/a");
    rig.get("/a?1").expect(200, "A");
    let paths = ["/v1/traces", "/v1/metrics", "/v1/logs"];
    eventually("each is refused twice", || paths.iter().all(|path| sent(&collector, path).len() >= 2));
    rig.get("/a?2").expect(200, "A");
    let said = |part: &str| rig.reported().matches(part).count();
    for path in &paths[..2] {
        assert_eq!(said(&format!("{url}{path}: a response with status 503; ")), 1, "{}", rig.reported());
    }
    assert_eq!(said("503; lines wait for it"), 1, "{}", rig.reported());
    // Everything queued is sent exactly once.
    let before = paths.map(|path| sent(&collector, path).len());
    busy.store(0, Ordering::Relaxed);
    let taken = |path: usize| sent(&collector, paths[path]).split_off(before[path]);
    let targets = |asks: Vec<Ask>| {
        let each = asks.iter().map(|ask| rig::text(&ask.body)).collect::<String>();
        ["/a?1", "/a?2"].map(|target| each.matches(&format!("\"stringValue\":\"{target}\"")).count())
    };
    eventually("the lines are there", || targets(taken(2)) == [1, 1]);
    eventually("both spans are there", || {
        taken(0).iter().map(|ask| rig::text(&ask.body).matches("\"name\":\"GET /a\"").count()).sum::<usize>()
            == 2
    });
    eventually("the counts are there", || latest(&collector, "200").0 == 2);
    eventually("that is said", || {
        said("data are taken again; nothing was dropped") == 2 && said("it can be reached again") == 1
    });
    // Permanently rejected data is not sent again.
    busy.store(2, Ordering::Relaxed);
    rig.get("/a?3").expect(200, "A");
    eventually("the refusal is said", || {
        said("lines are refused and dropped: a response with status 400: not this") == 1
    });
    busy.store(0, Ordering::Relaxed);
    rig.get("/a?4").expect(200, "A");
    eventually("the next one is taken", || {
        sent(&collector, "/v1/logs").iter().any(|ask| rig::text(&ask.body).contains("/a?4"))
    });
    let of_third =
        sent(&collector, "/v1/logs").iter().filter(|ask| rig::text(&ask.body).contains("/a?3")).count();
    assert_eq!(of_third, 1);
    eventually("the loss is said", || said("1 line was dropped") == 1);
    judged(&collector.asks());
}

#[test]
fn stalled_otlp_collector_does_not_block_requests_or_stop() {
    // A collector that accepts connections but reads nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let mut rig = export_all(&url, "json", "/*");
    let many = "GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(200);
    for _ in 0..100 {
        rig.send(&format!("{many}GET /a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
    }
    let status = fs::read_to_string(format!("/proc/{}/status", rig.child.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(kib < 200 * 1024, "{kib} KiB");
    rig.signal("-TERM");
    assert!(rig.ended().success());
    drop(silent);
}

#[test]
fn invalid_otlp_headers_file_prevents_the_start() {
    let folder = Folder::new();
    folder.write("keys", "X-Key s3cr3t\n");
    let text = r#"
        [metrics]
        to = "http://127.0.0.1:9"
        headers_file = "keys"
        [[route]]
        respond = "A"
    "#;
    folder.write("komainu.toml", format!("listen = \"127.0.0.1:0\"\n{}{text}", rig::as_we_are()));
    let ended = rig::komainu().arg("start").arg("-c").arg(folder.at("komainu.toml")).output().unwrap();
    let said = rig::text(&ended.stderr);
    assert!(!ended.status.success() && said.contains("keys: line 1: write NAME: VALUE"), "{said}");
    assert!(!said.contains("s3cr3t"), "{said}");
}
