//! Bytes on the wire, and the counters for them.

use std::io::BufReader;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{Answer, ok, origin, plan, plan_of, run, status};
use bench::load::{self, LoadObserver, LoadProgress};
use bench::outcome::RunSetup;
use bench::plan::{ConnectOptions, LoadPlan};
use bench::request::{BenchRequest, RequestSettings};
use bench::tally::ErrorKind;
use bench::url::Url;
use http::Version;
use rustix::net::{AddressFamily, SocketType};

const KEEP: fn() -> RequestSettings = || RequestSettings { keep_alive: true, ..RequestSettings::default() };

#[test]
fn every_request_is_counted_once_on_one_thread_or_on_several() {
    for threads in [1, 3] {
        let origin = origin(|_| ok("hello"));
        let plan = LoadPlan { threads, ..origin.plan(7, 1_000) };
        let measured = run(&plan);
        let tally = &measured.tally;
        assert_eq!((origin.count(), tally.responses, tally.latency.count()), (1_000, 1_000, 1_000));
        assert_eq!((tally.connections, tally.reused_responses), (7, 993));
        assert_eq!((tally.statuses(), tally.errors.total()), (vec![(200, 1_000)], 0));
        assert_eq!((tally.content_bytes, measured.responses_in_time), (5_000, 1_000));
        assert_eq!((measured.facts.server.as_str(), measured.facts.content_bytes), ("test", 5));
        let points: u64 = measured.points.iter().map(|point| point.responses).sum();
        assert_eq!(points, 1_000);
        assert!(measured.seconds > 0.0 && measured.rate() > 0.0);
    }
}

#[test]
fn threads_are_limited_to_the_number_of_connections() {
    let origin = origin(|_| ok("hello"));
    let plan = LoadPlan { threads: 3, ..origin.plan(1, 10) };
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let measured = (run(&plan), RunSetup::from_plan(&plan, "http://x/", Version::Http11));
        done.send(measured).expect("the test waits");
    });
    let (measured, setup) = ended.recv_timeout(Duration::from_secs(20)).expect("the run ends");
    assert_eq!((origin.count(), measured.tally.responses), (10, 10));
    assert!(setup.load_description.ends_with(", 1 thread"), "{}", setup.load_description);
}

#[test]
fn requests_in_flight_after_the_warm_up_are_counted() {
    let origin = origin(|_| {
        std::thread::sleep(Duration::from_millis(40));
        ok("hello")
    });
    let plan = LoadPlan { warm_up: Duration::from_millis(100), threads: 2, ..origin.plan(10, 20) };
    assert_eq!(run(&plan).tally.responses, 20);
}

#[test]
fn closed_connections_are_not_reused() {
    let origin = origin(|asked| {
        assert!(asked.fields.contains(&"connection: close".to_string()));
        ok("x")
    });
    let plan = plan(&origin.url("/"), &RequestSettings::default(), 3, 50);
    let tally = run(&plan).tally;
    assert_eq!((tally.responses, tally.connections, tally.reused_responses), (50, 50, 0));
    assert_eq!(tally.errors.total(), 0);
}

#[test]
fn http_1_0_connection_is_kept_if_the_server_agrees() {
    for (agrees, connections) in [(true, 1), (false, 20)] {
        let origin = origin(move |asked| {
            assert!(asked.line.ends_with(" HTTP/1.0"));
            assert!(asked.fields.contains(&"connection: keep-alive".to_string()));
            let bytes = |said: &str| format!("HTTP/1.0 200 OK\r\n{said}\r\nhello").into_bytes();
            if agrees {
                Answer::Bytes(bytes("Content-Length: 5\r\nConnection: keep-alive\r\n"))
            } else {
                Answer::Last(bytes(""))
            }
        });
        let manner = RequestSettings { version: Version::Http10, ..KEEP() };
        let tally = run(&plan(&origin.url("/"), &manner, 1, 20)).tally;
        assert_eq!((tally.responses, tally.connections, tally.errors.total()), (20, connections, 0));
        assert_eq!(tally.content_bytes, 100);
    }
}

#[test]
fn pipelined_requests_survive_a_close_in_the_middle() {
    let origin = origin(|asked| match asked.on_connection % 10 {
        9 => Answer::Last(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx".to_vec()),
        _ => ok("x"),
    });
    let plan = LoadPlan { pipeline: 8, ..origin.plan(2, 500) };
    let tally = run(&plan).tally;
    assert_eq!((tally.responses, tally.errors.total()), (500, 0));
    assert!(tally.connections >= 50, "{}", tally.connections);
}

#[test]
fn interim_responses_and_chunks_are_parsed() {
    let bytes = b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;e\r\nde\r\n0\r\nT: v\r\n\r\n";
    let origin = origin(move |_| Answer::Bytes(bytes.to_vec()));
    let tally = run(&LoadPlan { verify: true, ..origin.plan(2, 100) }).tally;
    assert_eq!((tally.responses, tally.content_bytes, tally.statuses()), (100, 500, vec![(200, 100)]));
    assert_eq!((tally.different_contents, tally.different_lengths), (0, 0));
}

#[test]
fn long_heads_and_bodies_are_read() {
    // The second kind of response has an unusually long head, and a body longer than one read.
    let origin = origin(|asked| match asked.number % 2 {
        0 => ok("small"),
        _ => {
            let field = format!("X-Long: {}\r\n", "y".repeat(20_000));
            let head = format!("HTTP/1.1 200 OK\r\n{field}Content-Length: 300000\r\n\r\n");
            Answer::Bytes([head.into_bytes(), vec![b'z'; 300_000]].concat())
        }
    });
    let tally = run(&origin.plan(1, 40)).tally;
    assert_eq!((tally.responses, tally.errors.total()), (40, 0));
    assert_eq!(tally.content_bytes, 20 * 5 + 20 * 300_000);
    assert_eq!(tally.different_lengths, 20);
}

#[test]
fn changed_content_is_detected_only_when_verified() {
    let make = || origin(|asked| ok(if asked.number % 4 == 3 { "bbb" } else { "aaa" }));
    let plain = run(&make().plan(1, 100)).tally;
    assert_eq!((plain.different_lengths, plain.different_contents), (0, 0));
    let verified = run(&LoadPlan { verify: true, ..make().plan(1, 100) }).tally;
    assert_eq!((verified.different_lengths, verified.different_contents), (0, 25));
}

#[test]
fn content_is_sent_unchanged_by_length_and_in_chunks() {
    let body: Vec<u8> = (0..100_000u32).map(|at| (at % 251) as u8).collect();
    for chunked in [false, true] {
        let expected = body.clone();
        let origin = origin(move |asked| ok(if asked.body == expected { "same" } else { "different" }));
        let url = Url::parse(&origin.url("/up")).unwrap();
        let ask = BenchRequest { method: "PUT".into(), body: Some(body.clone()), ..BenchRequest::get(url) };
        let tally = run(&plan_of(&[ask], &RequestSettings { chunked, ..KEEP() }, 2, 30)).tally;
        assert_eq!((tally.responses, tally.content_bytes), (30, 30 * 4));
        assert!(tally.bytes_out > 30 * 100_000);
    }
}

#[test]
fn url_lists_are_requested_in_order_or_by_random_weight() {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let reported = seen.clone();
    let origin = origin(move |asked| {
        reported.lock().unwrap().push(asked.line.split(' ').nth(1).unwrap().to_string());
        ok("x")
    });
    let ask = |target: &str, weight| BenchRequest {
        weight,
        ..BenchRequest::get(Url::parse(&origin.url(target)).unwrap())
    };
    run(&plan_of(&[ask("/a", 1), ask("/b", 1), ask("/c", 1)], &KEEP(), 1, 6));
    assert_eq!(*seen.lock().unwrap(), ["/a", "/b", "/c", "/a", "/b", "/c"]);
    seen.lock().unwrap().clear();
    let weighted = plan_of(&[ask("/a", 3), ask("/b", 1)], &KEEP(), 1, 2_000);
    run(&LoadPlan { is_random: true, seed: 5, ..weighted });
    let heavy = seen.lock().unwrap().iter().filter(|target| *target == "/a").count();
    assert!((1_400..1_600).contains(&heavy), "{heavy}");
}

#[test]
fn load_is_sent_over_a_unix_socket() {
    let path = std::env::temp_dir().join(format!("komainu-traffic-{}", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let writer = stream.try_clone().unwrap();
                crate::common::serve(BufReader::new(stream), writer, &|_| ok("x"), &AtomicU64::new(0));
            });
        }
    });
    let ask = BenchRequest::get(Url::parse("http://name.example/").unwrap());
    let reach = ConnectOptions { unix: Some(path.clone()), ..ConnectOptions::default() };
    let made = LoadPlan::new(&[ask], &KEEP(), &reach).unwrap();
    let plan =
        LoadPlan { requests_max: Some(100), duration: None, warm_up: Duration::ZERO, connections: 4, ..made };
    assert_eq!(run(&plan).tally.responses, 100);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn failures_are_counted_by_kind() {
    type Case = (fn() -> Answer, ErrorKind, &'static str);
    let cases: [Case; 5] = [
        (|| Answer::Bytes(b"220 smtp\r\n".to_vec()), ErrorKind::Malformed, "invalid version"),
        (
            || Answer::Bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx".to_vec()),
            ErrorKind::Malformed,
            "different Content-Lengths",
        ),
        (
            || Answer::Last(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort".to_vec()),
            ErrorKind::Closed,
            "cut short",
        ),
        (|| Answer::Last(Vec::new()), ErrorKind::Closed, "without a response"),
        (|| Answer::Endless, ErrorKind::Malformed, "invalid version"),
    ];
    for (answer, kind, what) in cases {
        let origin = origin(move |_| answer());
        let tally = run(&origin.plan(2, 10)).tally;
        let (count, example) = tally.errors.count_and_example(kind);
        assert_eq!((count, tally.errors.total(), tally.responses), (10, 10, 0), "{kind:?}");
        assert!(example.contains(what), "{example}");
    }
}

#[test]
fn endless_and_missing_responses_time_out() {
    for begins in [false, true] {
        let origin = origin(move |asked| match (begins, asked.on_connection) {
            (true, _) => Answer::Bytes([b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), vec![b'x'; 100]].concat()),
            (false, _) => Answer::Bytes(Vec::new()),
        });
        let plan = LoadPlan { timeout: Duration::from_millis(200), ..origin.plan(2, 4) };
        let tally = run(&plan).tally;
        assert_eq!(tally.errors.count_and_example(ErrorKind::Timeout).0, 4);
        assert_eq!(tally.latency.count(), 4, "they count with the time that they waited");
        assert!(tally.latency.min() >= 150_000_000);
    }
}

#[test]
fn endless_response_does_not_prevent_the_end_of_the_run() {
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n".to_vec();
    let origin = origin(move |asked| match asked.on_connection {
        0 => Answer::Bytes([head.clone(), vec![b'x'; 1_000_000]].concat()),
        _ => Answer::Endless,
    });
    let plan = LoadPlan {
        duration: Some(Duration::from_millis(300)),
        requests_max: None,
        timeout: Duration::from_millis(100),
        ..origin.plan(1, 1)
    };
    assert!(run(&plan).tally.errors.count_and_example(ErrorKind::Timeout).0 >= 1);
}

#[test]
fn error_statuses_are_counted() {
    let origin = origin(|asked| if asked.number % 100 == 99 { status(503, "no") } else { ok("yes") });
    let tally = run(&origin.plan(4, 2_000)).tally;
    assert_eq!((tally.error_statuses(), tally.responses), (20, 2_000));
    assert_eq!(tally.statuses(), [(200, 1_980), (503, 20)]);
}

#[test]
fn unreachable_server_is_reported_before_the_run() {
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let plan = plan(&format!("http://{gone}/"), &KEEP(), 1, 1);
    let error = load::run_load(&plan, &false.into(), &mut ()).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot connect to {gone}: connection refused"));
}

#[test]
fn unestablished_connections_at_the_end_count_as_errors() {
    // The backlog has room for one or two connections, and none are accepted.
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    rustix::net::listen(&socket, 1).unwrap();
    let address = std::net::TcpListener::from(socket);
    let plan = LoadPlan {
        duration: Some(Duration::from_millis(500)),
        requests_max: None,
        ..plan(&format!("http://{}/", address.local_addr().unwrap()), &KEEP(), 50, 1)
    };
    let tally = run(&plan).tally;
    let (count, example) = tally.errors.count_and_example(ErrorKind::Connect);
    assert_eq!(count + tally.connections, 50, "{example}");
    assert!(count > 10 && example.contains("before the run ended"), "{count} {example}");
}

#[test]
fn interrupted_run_reports_the_figures_so_far() {
    struct StopAt<'s>(&'s AtomicBool);
    impl LoadObserver for StopAt<'_> {
        fn progress(&mut self, progress: &LoadProgress<'_>) {
            if progress.tally.responses > 0 {
                self.0.store(true, std::sync::atomic::Ordering::Relaxed);
            }
        }
    }
    let origin = origin(|_| ok("x"));
    let plan =
        LoadPlan { duration: Some(Duration::from_secs(3_600)), requests_max: None, ..origin.plan(2, 1) };
    let stop = AtomicBool::new(false);
    let measured = load::run_load(&plan, &stop, &mut StopAt(&stop)).unwrap();
    assert!(measured.interrupted && measured.responses_in_time > 0 && measured.seconds < 600.0);
}

#[test]
fn keep_alive_connections_closed_by_the_server_lose_no_request() {
    let origin = origin(|asked| match asked.on_connection {
        4 => Answer::Last(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec()),
        _ => ok("x"),
    });
    // The pause gives the FIN time to arrive.
    let plan = LoadPlan {
        pace: bench::plan::Pace::Closed { think: Duration::from_millis(30) },
        ..origin.plan(1, 20)
    };
    let tally = run(&plan).tally;
    assert_eq!((tally.responses, tally.connections, tally.errors.total()), (20, 4, 0));
}
