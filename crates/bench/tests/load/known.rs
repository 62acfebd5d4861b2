//! Servers with known delays, stalls and rates, compared with the measured figures. Lower bounds are exact,
//! because sleeps never end early; upper bounds leave room for other load on the machine.

use std::time::{Duration, Instant};

use crate::common::{Answer, ok, origin, run};
use bench::advice;
use bench::load::LoadResult;
use bench::outcome::BenchOutcome;
use bench::plan::{Arrivals, LoadPlan, Pace};
use bench::session::{self, LoadSubject};
use bench::tally::ErrorKind;
use http::Version;

const MS: u64 = 1_000_000;

fn timed(plan: LoadPlan, ms: u64) -> LoadPlan {
    LoadPlan { duration: Some(Duration::from_millis(ms)), requests_max: None, ..plan }
}

fn open(plan: LoadPlan, rate: f64, arrivals: Arrivals) -> LoadPlan {
    LoadPlan { pace: Pace::Open { rate, arrivals }, ..plan }
}

#[test]
fn known_latency_distribution_is_measured() {
    // Nine of ten requests take 20 ms, one takes 200 ms.
    let origin = origin(|asked| {
        std::thread::sleep(Duration::from_millis(if asked.number % 10 == 9 { 200 } else { 20 }));
        ok("x")
    });
    let latency = run(&origin.plan(8, 400)).tally.latency;
    assert!(latency.min() >= 20 * MS, "{}", latency.min());
    assert!((20 * MS..150 * MS).contains(&latency.percentile(50.0)), "{}", latency.percentile(50.0));
    assert!(latency.percentile(89.0) < 200 * MS, "{}", latency.percentile(89.0));
    assert!(latency.percentile(92.0) >= 200 * MS, "{}", latency.percentile(92.0));
    let slow: u64 = latency.buckets().filter(|(ns, _)| *ns >= 200 * MS).map(|(_, count)| count).sum();
    assert!((40..60).contains(&slow), "{slow}");
}

#[test]
fn first_byte_and_last_byte_times_are_measured_separately() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        use std::io::{Read, Write};
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut request = [0; 1024];
                while stream.read(&mut request).is_ok_and(|len| len > 0) {
                    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na").unwrap();
                    std::thread::sleep(Duration::from_millis(60));
                    stream.write_all(b"b").unwrap();
                }
            });
        }
    });
    let url = format!("http://{address}/");
    let manner = bench::request::RequestSettings { keep_alive: true, ..Default::default() };
    let tally = run(&crate::common::plan(&url, &manner, 2, 20)).tally;
    assert!(tally.latency.min() >= 60 * MS);
    assert!(tally.first_byte.percentile(50.0) < tally.latency.percentile(50.0) - 40 * MS);
}

/// Starts a server that responds immediately, except during the first 400 ms of each second.
fn stalling() -> crate::common::LoadTarget {
    let began = Instant::now();
    origin(move |_| {
        let into = began.elapsed().as_millis() as u64 % 1_000;
        if into < 400 {
            std::thread::sleep(Duration::from_millis(400 - into));
        }
        ok("x")
    })
}

#[test]
fn open_loop_shows_a_stall_and_closed_loop_warns_of_it() {
    let origin = stalling();
    let shown = run(&open(timed(origin.plan(20, 1), 3_000), 200.0, Arrivals::Constant)).tally.latency;
    // Two in five requests become due while the server stalls, and wait 200 ms on average.
    assert!(shown.percentile(75.0) >= 80 * MS, "{}", shown.percentile(75.0));
    assert!(shown.percentile(95.0) >= 250 * MS, "{}", shown.percentile(95.0));

    let plan = timed(origin.plan(2, 1), 3_000);
    let subject = LoadSubject {
        plan,
        url: origin.url("/"),
        version: Version::Http11,
        server_pids: Vec::new(),
        excluded_pids: Vec::new(),
    };
    let outcome = session::measure(&subject, &false.into(), &mut ()).unwrap();
    let hidden = &outcome.measured.tally.latency;
    assert!(hidden.percentile(75.0) < 80 * MS, "{}", hidden.percentile(75.0));
    let said = advice::describe_scope(&outcome);
    assert!(said.contains("--rate") && said.contains("nothing at all was answered"), "{said}");
}

#[test]
fn requests_that_hang_are_counted_with_their_waiting_time() {
    // Every 20th request is never answered.
    let origin = origin(|asked| {
        if asked.number % 20 == 19 {
            std::thread::sleep(Duration::from_secs(60));
        }
        ok("x")
    });
    let result = run(&timed(origin.plan(4, 1), 500));
    let hung = result.tally.errors.count_and_example(ErrorKind::Unanswered).0;
    assert_eq!((hung, result.tally.errors.total()), (4, 4), "all connections hang in the end");
    assert_eq!(result.tally.responses + hung, origin.count());
    assert_eq!(result.tally.latency.count(), origin.count());
    // Until 2 s after the end, they might have been answered.
    assert!(result.tally.latency.max() >= 2_000 * MS, "{}", result.tally.latency.max());
    assert!((0.5..1.5).contains(&result.seconds), "{}", result.seconds);
}

#[test]
fn responses_slower_than_the_run_are_waited_for() {
    let origin = origin(|_| {
        std::thread::sleep(Duration::from_millis(700));
        ok("x")
    });
    for connections in [1, 5] {
        let result = run(&timed(origin.plan(connections, 1), 300));
        let tally = &result.tally;
        assert_eq!((tally.latency.count(), tally.errors.total()), (connections as u64, 0));
        assert!(tally.latency.min() >= 690 * MS, "{}", tally.latency.min());
        assert_eq!(result.responses_in_time, 0, "they count in no rate");
    }
}

#[test]
fn requests_not_sent_at_the_end_are_not_counted() {
    let origin = origin(|_| ok("x"));
    let plan = LoadPlan { keep_alive: false, ..timed(origin.plan(8, 1), 300) };
    let began = Instant::now();
    let result = run(&plan);
    assert_eq!(result.tally.errors.total(), 0, "{:?}", result.tally.errors);
    assert!(result.tally.responses > 8 && began.elapsed() < Duration::from_secs(2), "nothing is waited for");
}

#[test]
fn number_of_requests_ends_with_the_last_failure() {
    let origin = origin(|asked| {
        if asked.number == 3 {
            std::thread::sleep(Duration::from_secs(60));
        }
        ok("x")
    });
    let plan = LoadPlan { timeout: Duration::from_millis(700), ..origin.plan(2, 10) };
    let result = run(&plan);
    assert_eq!((result.tally.responses, result.tally.errors.total()), (9, 1));
    assert!(result.seconds >= 0.65, "{}", result.seconds);
}

#[test]
fn arrivals_follow_the_schedule_regardless_of_responses() {
    for arrivals in [Arrivals::Constant, Arrivals::Poisson] {
        for threads in [1, 2] {
            let origin = origin(|_| ok("x"));
            let plan = open(timed(origin.plan(20, 1), 1_000), 400.0, arrivals);
            let tally = run(&LoadPlan { threads, ..plan }).tally;
            let due = tally.responses + tally.errors.total();
            // Also those that became due while the generator was held up, up to the end.
            let expected = if arrivals == Arrivals::Constant { 400..=400 } else { 320..=480 };
            assert!(expected.contains(&due), "{arrivals:?}: {due}");
            assert_eq!(tally.lateness.count(), due);
        }
    }
}

#[test]
fn due_requests_join_a_pipeline_that_waits() {
    // The server answers when it has got all four requests of its connection.
    let one = "HTTP/1.1 200 X\r\nContent-Length: 1\r\n\r\nx";
    let origin = origin(move |asked| match asked.on_connection {
        3 => Answer::Bytes(one.repeat(4).into()),
        _ => Answer::Bytes(Vec::new()),
    });
    let pace = Pace::Open { rate: 100.0, arrivals: Arrivals::Constant };
    let tally = run(&LoadPlan { pipeline: 4, pace, ..origin.plan(1, 4) }).tally;
    assert_eq!((tally.responses, tally.errors.total()), (4, 0), "{:?}", tally.errors);
}

#[test]
fn every_due_request_of_a_server_that_died_is_counted() {
    // The server closes its socket and all connections with the 50th request.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        use std::io::{Read, Write};
        // The generator's attempt comes first.
        drop(listener.accept().unwrap());
        let (mut stream, _) = listener.accept().unwrap();
        for _ in 0..50 {
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx");
        }
    });
    let manner = bench::request::RequestSettings { keep_alive: true, ..Default::default() };
    let plan = crate::common::plan(&format!("http://{address}/"), &manner, 1, 1);
    let tally = run(&open(timed(plan, 1_000), 200.0, Arrivals::Constant)).tally;
    let attempts = tally.errors.count_and_example(ErrorKind::Connect).0;
    assert_eq!(tally.responses + tally.errors.total() - attempts, 200, "{:?}", tally.errors);
    let closed = tally.errors.count_and_example(ErrorKind::Closed).0;
    assert_eq!(tally.latency.count() + closed, 200, "those that were not sent count with their waiting time");
    assert!(tally.responses <= 50 && attempts > 0, "{} {attempts}", tally.responses);
}

#[test]
fn equal_seeds_send_equal_numbers_of_requests() {
    let times = |seed| {
        let origin = origin(|_| ok("x"));
        let plan = open(timed(origin.plan(5, 1), 400), 300.0, Arrivals::Poisson);
        run(&LoadPlan { seed, ..plan }).tally.lateness.count()
    };
    let other: Vec<u64> = (2..8).map(times).collect();
    assert_eq!(times(1), times(1));
    assert!(other.iter().any(|count| *count != times(1)), "{other:?}");
}

#[test]
fn unsent_requests_of_an_overload_count_with_their_waiting_time() {
    // One connection with 50 ms per request serves 20 of 200 requests per second.
    let origin = origin(|_| {
        std::thread::sleep(Duration::from_millis(50));
        ok("x")
    });
    let plan = open(timed(origin.plan(1, 1), 1_000), 200.0, Arrivals::Constant);
    let measured: LoadResult = run(&LoadPlan { timeout: Duration::from_millis(300), ..plan });
    let tally = &measured.tally;
    assert!(tally.responses < 40, "{}", tally.responses);
    assert!(tally.errors.count_and_example(ErrorKind::Unsent).0 > 150, "{:?}", tally.errors);
    let all = tally.responses + tally.errors.total();
    assert_eq!((all, tally.latency.count()), (200, 200));
    assert!(tally.latency.percentile(90.0) > 800 * MS);
    let outcome = BenchOutcome {
        measured,
        setup: bench::outcome::RunSetup { is_open: true, ..Default::default() },
        ..BenchOutcome::default()
    };
    assert!(advice::describe_scope(&outcome).contains("were still waiting at the end"));
}

#[test]
fn think_time_and_ramp_are_respected() {
    let origin = origin(|_| ok("x"));
    let think = Pace::Closed { think: Duration::from_millis(50) };
    let plan = LoadPlan { pace: think, ..timed(origin.plan(4, 1), 600) };
    let tally = run(&plan).tally;
    // Each of four connections sends at most one request per 50 ms, the first one immediately.
    assert!((4..=52).contains(&tally.responses), "{}", tally.responses);
    assert!(tally.latency.percentile(50.0) < 50 * MS);

    let slow = LoadPlan { ramp: Duration::from_millis(500), ..timed(origin.plan(10, 1), 300) };
    assert!(run(&slow).tally.connections < 10, "not all were opened in 300 of 500 ms");
}

#[test]
fn the_warm_up_is_answered_but_not_counted() {
    let origin = origin(|asked| match asked.number {
        0..5 => Answer::Bytes(b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n".to_vec()),
        _ => {
            std::thread::sleep(Duration::from_millis(5));
            ok("x")
        }
    });
    let plan = LoadPlan { warm_up: Duration::from_millis(300), ..timed(origin.plan(2, 1), 300) };
    let measured = run(&plan);
    assert_eq!(measured.tally.error_statuses(), 0, "the five fell into the warm-up");
    assert!(measured.tally.responses < origin.count());
    assert!((0.29..2.0).contains(&measured.seconds), "{}", measured.seconds);
    assert_eq!(measured.tally.connections, 2, "connections made in the warm-up are reported too");
}
