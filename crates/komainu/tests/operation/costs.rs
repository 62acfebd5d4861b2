//! Costs of a request: in the access log, in `Server-Timing` for chosen clients, and in metrics.

use std::fs;

use serde_json::Value;

use crate::hosted::{folder, start, status};
use crate::origin::{Origin, answer};
use crate::rig::{Answer, Rig, eventually};

/// Lines of the access log once there are `count` of them, by target.
fn lines(rig: &Rig, count: usize) -> Vec<Value> {
    let text = || fs::read_to_string(rig.folder.at("access.log")).unwrap_or_default();
    eventually("the log is written", || text().lines().count() >= count && text().ends_with('\n'));
    text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn of<'l>(lines: &'l [Value], target: &str) -> Vec<&'l Value> {
    lines.iter().filter(|line| line["target"] == target).collect()
}

/// Value of a `Server-Timing` metric.
fn timing(answer: &Answer, name: &str) -> Option<f64> {
    let value = answer.field("Server-Timing")?;
    let entry = value.split(", ").find_map(|entry| entry.strip_prefix(&format!("{name};dur=")))?;
    Some(entry.parse().unwrap())
}

const PSGI: &str = r#"
my @kept;
sub { my $path = $_[0]{PATH_INFO};
    if ($path eq '/busy') { my $until = (times)[0] + 0.1; 1 while (times)[0] < $until; }
    if ($path eq '/grow') { push @kept, 'x' x 16_000_000; }
    if ($path eq '/long') { return sub { my $w = $_[0]->([200, []]); $w->write("a") for 1..3; $w->close } }
    [200, ['Content-Type' => 'text/plain'], ['done']] }
"#;

const LOG: &str = r#"
    [log]
    access = "json"
    file = "access.log"
    fields = ["target", "queue_ms", "server_cpu_ms", "worker", "worker_cpu_ms", "worker_memory_kib"]
"#;

#[test]
fn request_costs_are_logged_and_sent_as_server_timing() {
    let origin = Origin::start(|_| answer("200 OK", "", "x"));
    let config = format!(
        r#"
        threads = 1
        server_timing = ["127.0.0.0/8"]
        {LOG}

        [[route]]
        path = "/up"
        proxy = "{}"

        [[route]]
        app = "shop"

        [apps.shop]
        psgi = "app.psgi"
        workers = 1
        "#,
        origin.url
    );
    let rig = start(folder("app.psgi", PSGI), &config);
    for target in ["/quick", "/busy", "/grow", "/long"] {
        let answer = rig.get(target);
        answer.expect_status(200);
        assert!(timing(&answer, "total").is_some() && timing(&answer, "queue").is_some(), "{answer:?}");
        if target == "/busy" {
            let cpu_ms = timing(&answer, "worker-cpu").unwrap();
            assert!((60.0..2_000.0).contains(&cpu_ms), "{cpu_ms} ms");
        }
    }
    let up = rig.get("/up");
    assert!(timing(&up, "upstream").is_some() && timing(&up, "worker-cpu").is_none(), "{up:?}");
    assert!(timing(&up, "server-cpu").unwrap() > 0.0);
    let lines = lines(&rig, 5);
    let number = |target: &str, field: &str| of(&lines, target)[0][field].as_f64();
    let cpu_ms = number("/busy", "worker_cpu_ms").unwrap();
    assert!((60.0..2_000.0).contains(&cpu_ms), "{cpu_ms} ms");
    assert!(number("/quick", "worker_cpu_ms").unwrap() < cpu_ms);
    let grown_kib = number("/grow", "worker_memory_kib").unwrap();
    assert!((14_000.0..64_000.0).contains(&grown_kib), "{grown_kib} KiB");
    for target in ["/quick", "/long"] {
        assert_eq!(number(target, "worker"), Some(1.0), "{target}");
        assert!(number(target, "queue_ms").unwrap() >= 0.0);
        assert!(number(target, "server_cpu_ms").unwrap() > 0.0);
        assert!(number(target, "worker_cpu_ms").is_some(), "{target}");
    }
    assert_eq!((number("/up", "worker"), number("/up", "worker_cpu_ms")), (None, None));
    // The metrics' totals agree with the log of all requests.
    let shop = || {
        let routes = status(&rig)["routes"].as_array().unwrap().clone();
        routes.into_iter().find(|route| route["handler"] == "app shop").unwrap()
    };
    let route = shop();
    assert_eq!((&route["cpu"]["requests"], &route["worker_cpu"]["requests"]), (&4.into(), &4.into()));
    assert!(route["worker_cpu"]["us"].as_u64().unwrap() >= 60_000, "{route}");
}

#[test]
fn unlisted_clients_get_no_server_timing_and_costs_are_sampled() {
    let config = r#"
        threads = 1
        server_timing = ["10.0.0.0/8"]
        [[route]]
        app = "shop"
        [apps.shop]
        psgi = "app.psgi"
        workers = 1
    "#;
    let rig = start(folder("app.psgi", PSGI), config);
    for _ in 0..128 {
        let answer = rig.get("/quick");
        answer.expect_status(200);
        assert!(answer.field("Server-Timing").is_none(), "{answer:?}");
    }
    let route = status(&rig)["routes"][1].clone();
    let route = if route["handler"] == "app shop" { route } else { status(&rig)["routes"][0].clone() };
    assert_eq!((&route["requests"], &route["worker_cpu"]["requests"]), (&128.into(), &128.into()), "{route}");
    // Two requests were measured, each of which stands for 64.
    assert_eq!(route["cpu"]["requests"], 128);
}

#[test]
fn worker_cpu_time_is_not_logged_for_overlapping_requests() {
    let app = r"import asyncio
arrived = 0
async def app(scope, receive, send):
    global arrived
    if scope['type'] != 'http':
        raise NotImplementedError
    if scope['path'] == '/both':
        arrived += 1
        while arrived < 2:
            await asyncio.sleep(0.01)
    await send({'type': 'http.response.start', 'status': 200, 'headers': []})
    await send({'type': 'http.response.body', 'body': b'x'})
";
    let config = format!(
        r#"
        threads = 1
        {LOG}
        [[route]]
        app = "shop"
        [apps.shop]
        asgi = "app.py:app"
        workers = 1
        "#
    );
    let rig = start(folder("app.py", app), &config);
    rig.get("/alone").expect(200, "x");
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| _ = rig.get("/both").expect(200, "x"));
        }
    });
    let lines = lines(&rig, 3);
    assert!(of(&lines, "/alone")[0]["worker_cpu_ms"].is_f64(), "{lines:?}");
    for line in of(&lines, "/both") {
        assert!(line.get("worker_cpu_ms").is_none() && line["queue_ms"].is_f64(), "{line}");
    }
}
