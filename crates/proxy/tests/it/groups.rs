//! Groups of servers: balancing, ejection, limits and queues.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::rig;
use crate::rig::{Client, Options, Origin, Rig, nobody, server};
use proxy::GroupReload;
use proxy::health::ServerState;
use proxy::options::{Balance, Eject, HashKey, HealthCheck};
use times::{Millis, Moment};

/// Starts an origin that responds with its name.
fn named(name: &'static str) -> Origin {
    Origin::start(move |mut caller, _| {
        while caller.request().is_some() {
            caller.send(&format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{name}"));
        }
    })
}

fn group(origins: &[&Origin]) -> Options {
    Options::to(origins.iter().map(|origin| origin.server()).collect())
}

fn names(rig: &Rig, count: usize) -> String {
    (0..count).map(|_| rig.get("/").text()).collect()
}

#[test]
fn round_robin_follows_server_weights() {
    let a = named("a");
    let b = named("b");
    let mut options = group(&[&a, &b]);
    options.group.servers[0].weight = 3;
    assert_eq!(names(&Rig::with(options.clone()), 8), "aabaaaba");
    options.group.servers[1].weight = 0;
    assert_eq!(names(&Rig::with(options), 4), "aaaa");
}

#[test]
fn backups_serve_only_when_no_other_server_is_left() {
    let a = named("a");
    let b = named("b");
    let mut options = group(&[&a, &b]);
    options.group.servers[1].backup = true;
    let rig = Rig::with(options);
    assert_eq!(names(&rig, 3), "aaa");
    rig.shared.set_order(0, proxy::health::UpstreamOrder::Drain, Moment(1));
    assert_eq!(names(&rig, 3), "bbb");
    rig.shared.set_order(1, proxy::health::UpstreamOrder::Drain, Moment(1));
    let response = rig.get("/");
    assert_eq!(response.refused(), (503, "no upstream is in service".into()));
    assert_eq!(response.field("Retry-After"), Some("5"));
    rig.shared.set_order(0, proxy::health::UpstreamOrder::Ready, Moment(1));
    assert_eq!(names(&rig, 3), "aaa");
}

#[test]
fn failing_server_is_ejected() {
    let a = named("a");
    let mut options = group(&[&a]);
    options.group.servers.push(server(nobody()));
    options.group.ejection =
        Some(Eject { failures_max: 2, first: Millis(3_600_000), max: Millis(3_600_000) });
    let rig = Rig::with(options);
    assert_eq!(names(&rig, 20), "a".repeat(20));
    assert!(matches!(rig.shared.state(1, Moment::ZERO), proxy::health::ServerState::Ejected(_)));
    // If all servers have failed, one still gets the request.
    rig.shared.set_order(0, proxy::health::UpstreamOrder::Drain, Moment(1));
    assert_eq!(rig.get("/").refused().0, 502);
}

#[test]
fn recovered_server_is_used_again() {
    let well = Arc::new(AtomicBool::new(false));
    let is_well = well.clone();
    let b = Origin::start(move |mut caller, _| {
        while caller.request().is_some() && is_well.load(Ordering::SeqCst) {
            caller.send("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nb");
        }
    });
    let a = named("a");
    let mut options = group(&[&a, &b]);
    options.group.ejection = Some(Eject { failures_max: 1, first: Millis(1), max: Millis(1) });
    let rig = Rig::with(options);
    assert_eq!(names(&rig, 6), "aaaaaa", "its failures are retried elsewhere");
    well.store(true, Ordering::SeqCst);
    let mut seen = String::new();
    for _ in 0..10_000 {
        seen.push_str(&names(&rig, 1));
        if seen.ends_with("baba") {
            return;
        }
    }
    panic!("b never came back: {seen}");
}

#[test]
fn hash_balancing_is_stable_per_client_or_field() {
    let origins = [named("a"), named("b"), named("c"), named("d")];
    let mut options = group(&origins.iter().collect::<Vec<_>>());
    options.group.balance = Balance::Hash(HashKey::Client);
    let all = names(&Rig::with(options.clone()), 10);
    assert_eq!(all, all[..1].repeat(10));
    options.group.balance = Balance::Hash(HashKey::Field("X-User".into()));
    let rig = Rig::with(options);
    let of = |user: usize| rig.ask(&format!("GET / HTTP/1.1\r\nHost: a\r\nX-User: {user}\r\n\r\n")).text();
    let first: Vec<String> = (0..40).map(of).collect();
    assert_eq!(first, (0..40).map(of).collect::<Vec<_>>());
    assert!(["a", "b", "c", "d"].iter().all(|name| first.iter().any(|met| met == name)), "{first:?}");
    rig.shared.set_order(1, proxy::health::UpstreamOrder::Drain, Moment(1));
    for (user, met) in first.iter().enumerate() {
        assert!(met == "b" || of(user) == *met);
    }
}

#[test]
fn sticky_cookie_selects_the_same_server() {
    let a = named("a");
    let b = named("b");
    let mut options = group(&[&a, &b]);
    options.group.balance = Balance::Sticky { cookie: "srv".into() };
    let rig = Rig::with(options);
    let first = rig.get("/");
    let cookie = first.field("Set-Cookie").unwrap().to_owned();
    assert!(cookie.starts_with("srv=") && cookie.ends_with("; Path=/; HttpOnly; SameSite=Lax"), "{cookie}");
    let pair = cookie.split(';').next().unwrap();
    let again = || rig.ask(&format!("GET / HTTP/1.1\r\nHost: a\r\nCookie: x=1; {pair}\r\n\r\n"));
    for _ in 0..5 {
        let response = again();
        assert_eq!((response.text(), response.field("Set-Cookie")), (first.text(), None));
    }
    // The server that the cookie names is stopped: the client gets another server and a new cookie.
    let drained = if first.text() == "a" { 0 } else { 1 };
    rig.shared.set_order(drained, proxy::health::UpstreamOrder::Down, Moment(1));
    let moved = again();
    assert!(moved.text() != first.text() && moved.field("Set-Cookie").is_some());
}

/// An origin that delays its responses until the test releases them.
struct Held {
    origin: Origin,
    inside: Arc<AtomicUsize>,
    open: Arc<(Mutex<usize>, Condvar)>,
}

impl Held {
    fn new(name: &'static str) -> Held {
        let inside = Arc::new(AtomicUsize::new(0));
        let open: Arc<(Mutex<usize>, Condvar)> = Arc::default();
        let count = inside.clone();
        let gate = open.clone();
        let origin = Origin::start(move |mut caller, _| {
            while caller.request().is_some() {
                count.fetch_add(1, Ordering::SeqCst);
                let mut passes = gate.0.lock().unwrap();
                while *passes == 0 {
                    passes = gate.1.wait(passes).unwrap();
                }
                *passes -= 1;
                drop(passes);
                count.fetch_sub(1, Ordering::SeqCst);
                caller.send(&format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{name}"));
            }
        });
        Held { origin, inside, open }
    }

    fn release(&self, count: usize) {
        *self.open.0.lock().unwrap() += count;
        self.open.1.notify_all();
    }

    fn wait_inside(&self, count: usize) {
        while self.inside.load(Ordering::SeqCst) != count {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn asking(rig: &Rig) -> Client {
    let mut client = rig.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    client
}

#[test]
fn least_busy_server_is_selected() {
    let held = Held::new("h");
    let free = named("f");
    for balance in [Balance::LeastRequests, Balance::TwoChoices] {
        let mut options = group(&[&held.origin, &free]);
        options.group.balance = balance.clone();
        let rig = Rig::with(options);
        // Eventually one request blocks on the first server, which is the busier one from then on.
        let mut stuck = Vec::new();
        while held.inside.load(Ordering::SeqCst) == 0 {
            let client = asking(&rig);
            // The next request is sent only after it is known which server got this one.
            client.stream.set_nonblocking(true).unwrap();
            while held.inside.load(Ordering::SeqCst) == 0 && client.stream.peek(&mut [0]).is_err() {
                std::thread::sleep(Duration::from_millis(1));
            }
            client.stream.set_nonblocking(false).unwrap();
            stuck.push(client);
        }
        assert_eq!(names(&rig, 20), "f".repeat(20), "{balance:?}");
        held.release(1);
        held.wait_inside(0);
        for mut client in stuck {
            assert_eq!(client.response(http::Method::Get).unwrap().status, 200);
        }
    }
}

#[test]
fn requests_above_the_connection_limit_are_queued() {
    let held = Held::new("h");
    let mut options = group(&[&held.origin]);
    options.group.servers[0].connections_max = 2;
    options.group.queue_max = 30;
    let rig = Rig::with(options);
    let mut clients: Vec<Client> = (0..32).map(|_| asking(&rig)).collect();
    held.wait_inside(2);
    // Wait until all thirty-two clients are in the queue; then one more is refused.
    let refused = loop {
        let mut extra = asking(&rig);
        extra.stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        match extra.response(http::Method::Get) {
            Ok(response) => break response,
            // This client is queued; its disconnect frees the place.
            Err(_) => rig::reset(&extra.stream),
        }
    };
    assert_eq!(refused.refused(), (503, "too many requests wait".into()));
    assert_eq!(refused.field("Retry-After"), Some("1"));
    assert_eq!((held.inside.load(Ordering::SeqCst), held.origin.connections()), (2, 2));
    held.release(32);
    for client in &mut clients {
        assert_eq!(client.response(http::Method::Get).unwrap().text(), "h");
    }
    assert_eq!(held.origin.connections(), 2, "never more than the limit");
}

#[test]
fn queued_request_times_out() {
    let held = Held::new("h");
    let mut options = group(&[&held.origin]);
    options.group.servers[0].connections_max = 1;
    options.route.timeouts.queue = Millis(50);
    let rig = Rig::with(options);
    let mut first = asking(&rig);
    held.wait_inside(1);
    assert_eq!(rig.get("/").refused(), (503, "no upstream became free in time".into()));
    held.release(1);
    assert_eq!(first.response(http::Method::Get).unwrap().text(), "h");
}

#[test]
fn health_checks_accept_heads_as_long_as_routes_do() {
    let checks = Arc::new(AtomicUsize::new(0));
    let counted = checks.clone();
    let policy = format!("Content-Security-Policy: {}\r\n", "script-src 'self';".repeat(1_500));
    let origin = Origin::start(move |mut caller, _| {
        while let Some(request) = caller.request() {
            let is_too_long = request.starts_with(b"GET /long");
            let policy = if is_too_long { policy.repeat(2) } else { policy.clone() };
            counted.fetch_add(1, Ordering::SeqCst);
            caller.send(&format!("HTTP/1.1 200 OK\r\n{policy}Content-Length: 1\r\n\r\nb"));
        }
    });
    for (path, standing) in [("/", ServerState::Up), ("/long", ServerState::Down)] {
        let mut options = group(&[&origin]);
        let probe =
            HealthCheck { path: Some(path.into()), host: None, expect: (200, 299), ..HealthCheck::default() };
        options.group.check =
            Some(HealthCheck { interval: Millis(5), timeout: Millis(5_000), rise: 1, fall: 1, ..probe });
        checks.store(0, Ordering::SeqCst);
        let rig = Rig::with(options);
        // The result of a check is known before the next one begins.
        while checks.load(Ordering::SeqCst) < 3 {
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(rig.shared.state(0, Moment::ZERO), standing, "{path}");
    }
}

#[test]
fn health_checks_remove_and_restore_a_server() {
    let well = Arc::new(AtomicBool::new(true));
    let is_well = well.clone();
    let b = Origin::start(move |mut caller, _| {
        while let Some(request) = caller.request() {
            let checked = request.starts_with(b"GET /health HTTP/1.1\r\nHost: b.test\r\n");
            let status = if checked && !is_well.load(Ordering::SeqCst) { "503 No" } else { "200 OK" };
            caller.send(&format!("HTTP/1.1 {status}\r\nContent-Length: 1\r\n\r\nb"));
        }
    });
    let a = named("a");
    let mut options = group(&[&a, &b]);
    let probe = HealthCheck {
        path: Some("/health".into()),
        host: Some("b.test".into()),
        expect: (200, 299),
        ..HealthCheck::default()
    };
    options.group.check =
        Some(HealthCheck { interval: Millis(5), timeout: Millis(5_000), rise: 2, fall: 2, ..probe });
    let rig = Rig::with(options);
    let until = |want: &str| {
        for _ in 0..2_000 {
            let mut asked: Vec<char> = names(&rig, 4).chars().collect();
            asked.sort_unstable();
            if asked.iter().collect::<String>() == want {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        panic!("{want} never came");
    };
    until("aabb");
    well.store(false, Ordering::SeqCst);
    until("aaaa");
    well.store(true, Ordering::SeqCst);
    until("aabb");
}

#[test]
fn rolling_restart_loses_no_request() {
    let a = named("a");
    let b = named("b");
    let rig = Rig::with(group(&[&a, &b]));
    let stop = Arc::new(AtomicBool::new(false));
    let address = rig.address;
    let done = stop.clone();
    let load = std::thread::spawn(move || {
        let mut client = Client::to(address);
        let mut count = 0u64;
        while !done.load(Ordering::SeqCst) {
            client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi");
            assert_eq!(client.response(http::Method::Post).unwrap().status, 200);
            count += 1;
        }
        count
    });
    for _ in 0..20 {
        for server in [0, 1] {
            rig.shared.set_order(server, proxy::health::UpstreamOrder::Drain, Moment(1));
            std::thread::sleep(Duration::from_millis(5));
            rig.shared.set_order(server, proxy::health::UpstreamOrder::Ready, Moment(1));
        }
    }
    stop.store(true, Ordering::SeqCst);
    assert!(load.join().unwrap() > 0);
}

#[test]
fn endless_response_still_marks_its_server_as_recovered() {
    let well = Arc::new(AtomicBool::new(false));
    let is_well = well.clone();
    let b = Origin::start(move |mut caller, _| {
        while let Some(request) = caller.request() {
            if !is_well.load(Ordering::SeqCst) {
                return;
            }
            if request.starts_with(b"GET /events ") {
                caller.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nb\r\n");
                caller.rest();
                return;
            }
            caller.send("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nb");
        }
    });
    let a = named("a");
    let mut options = group(&[&a, &b]);
    options.group.ejection = Some(Eject { failures_max: 1, first: Millis(1), max: Millis(1) });
    let rig = Rig::with(options);
    assert_eq!(names(&rig, 4), "aaaa");
    well.store(true, Ordering::SeqCst);
    // The request that detects the recovery of b is an event stream, which does not end while its client
    // stays.
    let mut streams = Vec::new();
    while !b.seen().contains("GET /events") {
        let mut stream = rig.client();
        stream.send("GET /events HTTP/1.1\r\nHost: a\r\n\r\n");
        stream.raw(12);
        streams.push(stream);
    }
    let seen = names(&rig, 10);
    streams.iter().for_each(|stream| rig::reset(&stream.stream));
    assert!(seen.contains('b'), "b is back: {seen}");
}

#[test]
fn backups_do_not_replace_busy_servers() {
    let held = Held::new("h");
    let backup = named("b");
    let mut options = group(&[&held.origin, &backup]);
    options.group.servers[0].connections_max = 1;
    options.group.servers[1].backup = true;
    options.route.timeouts.queue = Millis(100);
    let rig = Rig::with(options);
    let mut first = asking(&rig);
    held.wait_inside(1);
    assert_eq!(rig.get("/").refused(), (503, "no upstream became free in time".into()));
    assert_eq!(backup.connections(), 0);
    // A backup does replace a server that goes out of service.
    held.release(1);
    assert_eq!(first.response(http::Method::Get).unwrap().text(), "h");
    rig.shared.set_order(0, proxy::health::UpstreamOrder::Drain, Moment(1));
    assert_eq!(names(&rig, 2), "bb");
}

#[test]
fn ejected_backup_is_not_probed_while_others_serve() {
    let a = named("a");
    let backup = Origin::start(|mut caller, _| drop(caller.request()));
    let mut options = group(&[&a, &backup]);
    options.group.servers[1].backup = true;
    options.group.ejection = Some(Eject { failures_max: 1, first: Millis(1), max: Millis(1) });
    let rig = Rig::with(options);
    rig.shared.set_order(0, proxy::health::UpstreamOrder::Drain, Moment(1));
    assert_eq!(rig.get("/").status, 502);
    rig.shared.set_order(0, proxy::health::UpstreamOrder::Ready, Moment(1));
    let asked = backup.connections();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(names(&rig, 5), "aaaaa");
    assert_eq!(backup.connections(), asked);
}

#[test]
fn total_timeout_applies_in_the_queue() {
    let origin = Origin::start(|mut caller, _| {
        caller.head();
        caller.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
        caller.rest();
    });
    let mut options = group(&[&origin]);
    options.group.servers[0].connections_max = 1;
    options.route.timeouts.total = Some(Millis(200));
    options.route.timeouts.queue = Millis(3_600_000);
    let rig = Rig::with(options);
    // A tunnel occupies the only connection indefinitely.
    let mut tunnel = rig.client();
    tunnel.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    assert_eq!(tunnel.response(http::Method::Get).unwrap().status, 101);
    assert_eq!(rig.get("/").refused(), (503, "no upstream became free in time".into()));
}

#[test]
fn slow_client_does_not_eject_the_server() {
    let a = named("a");
    let b = named("b");
    let mut options = group(&[&a, &b]);
    options.group.ejection =
        Some(Eject { failures_max: 1, first: Millis(3_600_000), max: Millis(3_600_000) });
    options.route.timeouts.total = Some(Millis(100));
    let rig = Rig::with(options);
    for _ in 0..4 {
        let response = rig.ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nh");
        assert_eq!(response.status, 408, "{}", response.text());
    }
    for server in [0, 1] {
        assert_eq!(rig.shared.state(server, Moment::ZERO), proxy::health::ServerState::Up);
    }
}

#[test]
fn server_that_gives_up_waiting_for_a_body_is_not_ejected() {
    // Closes without a response, or within one, while a part of the body is missing.
    let origin = Origin::start(|mut caller, _| {
        let head = caller.head().unwrap();
        while caller.body_piece().is_some_and(|piece| !piece.ends_with(b"!")) {}
        if head.contains("/begun") {
            caller.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf");
        }
    });
    for path in ["/", "/begun"] {
        for framing in
            ["Content-Length: 100\r\n\r\nsome!", "Transfer-Encoding: chunked\r\n\r\n5\r\nsome!\r\n"]
        {
            let mut options = group(&[&origin, &origin]);
            options.group.ejection =
                Some(Eject { failures_max: 1, first: Millis(3_600_000), max: Millis(3_600_000) });
            options.route.read_ahead_bytes = 0;
            let rig = Rig::with(options);
            for _ in 0..4 {
                let mut client = rig.client();
                client.send(&format!("POST {path} HTTP/1.1\r\nHost: a\r\n{framing}"));
                match client.response(http::Method::Post) {
                    Ok(response) => assert_eq!((response.status, path), (502, "/"), "{framing}"),
                    Err(broken) => assert_eq!(path, "/begun", "{framing}: {broken}"),
                }
            }
            for server in [0, 1] {
                let state = rig.shared.state(server, Moment::ZERO);
                assert_eq!(state, proxy::health::ServerState::Up, "{path} {framing}");
            }
        }
    }
}

#[test]
fn queued_request_of_a_closed_client_is_never_sent() {
    let held = Held::new("h");
    let mut options = group(&[&held.origin]);
    options.group.servers[0].connections_max = 1;
    let rig = Rig::with(options);
    let mut first = asking(&rig);
    held.wait_inside(1);
    for _ in 0..20 {
        let mut gone = rig.client();
        gone.send("GET /gone HTTP/1.1\r\nHost: a\r\n\r\n");
        gone.stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(gone.response(http::Method::Get).is_err(), "nobody answers it");
    }
    held.release(1);
    assert_eq!(first.response(http::Method::Get).unwrap().text(), "h");
    held.release(1);
    assert_eq!(rig.get("/").text(), "h");
    assert!(!held.origin.seen().contains("/gone"));
}

/// Tries again until it holds: a server that is stalled may see later requests first.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let mut tries = 0..40;
    while !holds() {
        assert!(tries.next().is_some(), "{what}");
    }
}

#[test]
fn disconnected_client_leaves_the_queue() {
    let held = Held::new("h");
    let mut options = group(&[&held.origin]);
    options.group.servers[0].connections_max = 1;
    options.group.queue_max = 1;
    let rig = Rig::with(options);
    let mut first = asking(&rig);
    held.wait_inside(1);
    // Whether the request of a client waits: one that does not is refused.
    let waits = |client: &mut rig::Client| {
        client.stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        match client.response(http::Method::Get) {
            Ok(refused) => {
                assert_eq!(refused.refused().1, "too many requests wait");
                false
            }
            Err(_) => true,
        }
    };
    // On a new connection, and on a used one.
    for used in [false, true] {
        until("the request waits", || {
            let mut gone = rig.client();
            if used {
                gone.send("TRACE / HTTP/1.1\r\nHost: a\r\n\r\n");
                assert_eq!(gone.response(http::Method::Trace).unwrap().status, 405);
            }
            gone.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            let is_queued = waits(&mut gone);
            // A stalled server may not have read it yet, and then this one waits in its place.
            let mut other = asking(&rig);
            let is_known = is_queued && !waits(&mut other);
            rig::reset(&other.stream);
            rig::reset(&gone.stream);
            is_known
        });
        // The place in the queue is free: another client waits in it, at the latest when the server has seen the other leave.
        until("another client waits", || {
            let mut next = asking(&rig);
            let is_waiting = waits(&mut next);
            rig::reset(&next.stream);
            is_waiting
        });
    }
    held.release(1);
    assert_eq!(first.response(http::Method::Get).unwrap().text(), "h");
    held.release(1);
    assert_eq!(rig.get("/").text(), "h");
}

#[test]
fn changed_group_keeps_the_state_of_its_servers() {
    use proxy::health::ServerState;
    let well = named("w");
    let dead = nobody();
    let mut options = group(&[&well]);
    options.group.servers.push(server(dead));
    let rig = Rig::with(options.clone());
    let mut asked = 0;
    while rig.shared.state(1, Moment(u64::MAX - 1)) == ServerState::Up {
        assert_eq!(rig.get("/").text(), "w");
        asked += 1;
        assert!(asked < 100, "it is never ejected");
    }
    options.group.servers[0].weight = 5;
    options.group.servers.reverse();
    let changed = GroupReload::new(std::slice::from_ref(&rig.shared)).build(options.group.clone()).unwrap();
    assert!(matches!(changed.state(0, Moment::ZERO), ServerState::Ejected(_)));
    assert_eq!(changed.state(1, Moment::ZERO), ServerState::Up);
    // Without ejection, no server stays ejected.
    options.group.ejection = None;
    let changed = GroupReload::new(&[changed]).build(options.group).unwrap();
    assert_eq!(changed.state(0, Moment::ZERO), ServerState::Up);
}
