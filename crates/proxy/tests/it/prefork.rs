//! Servers with one process per connection, and proxies on several threads, which share idle connections.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::rig;
use crate::rig::{Caller, Options, Origin, Rig};
use http::Method;
use proxy::options::{HealthCheck, UpstreamServer};
use proxy::{Group, GroupOptions, GroupReload, GroupShared, Proxy, RouteOptions};
use times::{Millis, Moment};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn serve(mut caller: Caller, _: usize) {
    while caller.request().is_some() {
        caller.send(OK);
    }
}

/// Runs concurrent clients, each with several requests on one connection. Fails if a request is not answered.
fn load(rig: &Rig, clients: usize, requests: usize) {
    thread::scope(|scope| {
        for _ in 0..clients {
            scope.spawn(|| {
                let mut client = rig.client();
                for _ in 0..requests {
                    client.send(GET);
                    assert_eq!(client.response(Method::Get).expect("an answer").text(), "ok");
                }
            });
        }
    });
}

#[test]
fn clients_up_to_the_worker_count_reuse_connections() {
    let origin = Origin::prefork(4, serve);
    let rig = Rig::on(4, Options::to(vec![origin.server()]));
    // In each round the clients are distributed to threads anew.
    for _ in 0..25 {
        load(&rig, 4, 10);
    }
    // No connection is opened while another is idle; on a slow machine one may be closed for another
    // occasionally.
    assert!(origin.connections() < 25, "{}", origin.connections());
}

#[test]
fn more_clients_than_workers_are_all_served() {
    let origin = Origin::prefork(2, serve);
    let rig = Rig::on(3, Options::to(vec![origin.server()]));
    load(&rig, 8, 20);
}

#[test]
fn threads_use_each_others_connections() {
    let origin = Origin::answering(OK);
    let rig = Rig::on(4, Options::to(vec![origin.server()]));
    for _ in 0..60 {
        // Must not be sent twice, so a closed connection must not be used.
        let post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi";
        assert_eq!((rig.get("/").text(), rig.ask(post).text()), ("ok".into(), "ok".into()));
    }
    assert_eq!(origin.connections(), 1);
}

#[test]
fn idle_connection_limit_applies_across_all_threads() {
    let together = Arc::new(Barrier::new(12));
    let origin = Origin::start(move |mut caller, _| {
        while caller.request().is_some() {
            together.wait();
            caller.send(OK);
        }
    });
    let mut options = Options::to(vec![origin.server()]);
    options.group.keep_alive.idle_max = 3;
    let rig = Rig::on(4, options);
    load(&rig, 12, 1);
    assert_eq!(origin.connections(), 12);
    let deadline = Instant::now() + Duration::from_secs(20);
    while origin.open() > 3 {
        assert!(Instant::now() < deadline, "{} are open", origin.open());
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn groups_with_the_same_server_share_its_connections() {
    struct Both(Proxy, Proxy);

    impl net::Service for Both {
        async fn serve(&self, x: &mut net::Exchange<'_>) -> Result<(), net::Fault> {
            let proxy = if x.request().path() == b"/a" { &self.0 } else { &self.1 };
            proxy.serve(x).await
        }

        fn log(&self, _: &net::RequestRecord<'_>) {}
    }

    let origin = Origin::prefork(1, serve);
    let mut groups = GroupReload::default();
    let a = groups.build(GroupOptions::new(vec![origin.server()])).unwrap();
    let b = groups.build(GroupOptions::new(vec![origin.server()])).unwrap();
    let both = (a.clone(), b);
    let route = Arc::new(RouteOptions::default());
    let to = move |core: &net::Core, shared: &Arc<GroupShared>| Group::new(core, shared).proxy(&route, None);
    let rig = Rig::serving(2, a, move |core, _| Both(to(core, &both.0), to(core, &both.1)));
    for _ in 0..20 {
        assert_eq!((rig.get("/a").text(), rig.get("/b").text()), ("ok".into(), "ok".into()));
    }
    assert_eq!(origin.connections(), 1);
}

#[test]
fn health_check_passes_while_workers_hold_idle_connections() {
    let origin = Origin::prefork(1, |mut caller, _| {
        while let Some(request) = caller.request() {
            let checked = request.starts_with(b"GET /health ");
            caller.send(if checked { "HTTP/1.1 200 Well\r\nContent-Length: 0\r\n\r\n" } else { OK });
        }
    });
    let mut options = Options::to(vec![origin.server()]);
    let probe = HealthCheck {
        path: Some("/health".into()),
        host: None,
        expect: (200, 200),
        ..HealthCheck::default()
    };
    options.group.check =
        Some(HealthCheck { interval: Millis(20), timeout: Millis(5_000), fall: 1, ..probe });
    let rig = Rig::on(2, options);
    let deadline = Instant::now() + Duration::from_secs(30);
    // A request after each check occupies the only worker again.
    while origin.seen().matches("GET /health ").count() < 5 {
        assert!(Instant::now() < deadline, "no checks come through");
        assert_eq!(rig.get("/").text(), "ok");
    }
    assert_eq!(rig.shared.state(0, Moment(1)), proxy::health::ServerState::Up);
}

#[test]
fn server_accepting_one_connection_per_turn_keeps_connections() {
    // A single thread that, in each iteration, accepts one connection and answers one request of each
    // connection.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = rig::server(listener.local_addr().unwrap());
    let accepted = Arc::new(AtomicUsize::new(0));
    let count = accepted.clone();
    thread::spawn(move || {
        listener.set_nonblocking(true).unwrap();
        let mut connections: Vec<TcpStream> = Vec::new();
        loop {
            if let Ok((stream, _)) = listener.accept() {
                stream.set_nonblocking(true).unwrap();
                count.fetch_add(1, Ordering::SeqCst);
                connections.push(stream);
            }
            connections.retain_mut(|stream| match stream.read(&mut [0; 4096]) {
                Ok(0) => false,
                Ok(_) => {
                    thread::sleep(Duration::from_micros(20));
                    stream.write_all(OK.as_bytes()).is_ok()
                }
                Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
            });
        }
    });
    let rig = Rig::on(1, Options::to(vec![server]));
    load(&rig, 1, 20);
    load(&rig, 400, 20);
    let accepted = accepted.load(Ordering::SeqCst);
    assert!(accepted < 700, "{accepted}");
}

/// Starts three threads that each serve one connection until it ends, in the order of the kernel's accept
/// queue. The body of each response is its number.
fn three_workers() -> (UpstreamServer, Arc<AtomicUsize>) {
    let listener = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
    let server = rig::server(listener.local_addr().unwrap());
    let answers = Arc::new(AtomicUsize::new(0));
    for _ in 0..3 {
        let listener = listener.clone();
        let answers = answers.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut caller = Caller::new(stream, Arc::default());
                while caller.request().is_some() {
                    thread::sleep(Duration::from_millis(1));
                    let number = answers.fetch_add(1, Ordering::SeqCst).to_string();
                    caller.send(&format!(
                        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{number}",
                        number.len()
                    ));
                }
            }
        });
    }
    (server, answers)
}

#[test]
fn clients_exceeding_the_workers_are_served_fairly() {
    let (server, answers) = three_workers();
    let rig = Rig::on(1, Options::to(vec![server]));
    // Maximum number of responses while one request waited.
    let longest = AtomicUsize::new(0);
    let clients = |requests: usize| {
        thread::scope(|scope| {
            for _ in 0..30 {
                scope.spawn(|| {
                    let mut client = rig.client();
                    for _ in 0..requests {
                        client.send(GET);
                        let sent = answers.load(Ordering::SeqCst);
                        let response = client.response(Method::Get).expect("an answer");
                        let number: usize = response.text().parse().expect("a number");
                        longest.fetch_max(number.saturating_sub(sent), Ordering::SeqCst);
                    }
                });
            }
        });
    };
    // Initially the proxy does not know the number of workers.
    clients(20);
    longest.store(0, Ordering::SeqCst);
    clients(100);
    assert_eq!(answers.load(Ordering::SeqCst), 30 * (20 + 100));
    // Of 3,000 requests; threads also wait for the processor on a busy machine.
    assert!(longest.load(Ordering::SeqCst) <= 400, "one waited for {longest:?} others");
}

#[test]
fn busy_server_that_accepts_everything_keeps_its_connections() {
    for stall_at in [usize::MAX, 11] {
        busy(stall_at);
    }
}

fn busy(stall_at: usize) {
    // One thread answers all requests in order, one per millisecond, and stalls once.
    let (ask, asked) = mpsc::channel::<mpsc::Sender<()>>();
    thread::spawn(move || {
        for (number, turn) in asked.into_iter().enumerate() {
            thread::sleep(Duration::from_millis(if number == stall_at { 300 } else { 1 }));
            let _ = turn.send(());
        }
    });
    let origin = Origin::start(move |mut caller, _| {
        let (turn, mine) = mpsc::channel();
        while caller.request().is_some() {
            ask.send(turn.clone()).unwrap();
            mine.recv().unwrap();
            caller.send(OK);
        }
    });
    let rig = Rig::on(2, Options::to(vec![origin.server()]));
    // The proxy learns the server's response time and then gets a hundred clients at once.
    load(&rig, 1, 10);
    load(&rig, 100, 8);
    assert!(origin.connections() < 300, "{}", origin.connections());
}

#[test]
fn connections_are_kept_despite_slow_requests() {
    let over = Arc::new((Mutex::new(false), Condvar::new()));
    let theirs = over.clone();
    let origin = Origin::start(move |mut caller, _| {
        while let Some(request) = caller.request() {
            if request.starts_with(b"GET /slow ") {
                let (over, reported) = &*theirs;
                drop(reported.wait_while(over.lock().unwrap(), |over| !*over).unwrap());
            }
            caller.send(OK);
        }
    });
    let rig = Rig::on(2, Options::to(vec![origin.server()]));
    assert_eq!(rig.get("/").text(), "ok");
    let slow: Vec<_> = (0..4)
        .map(|_| {
            let mut client = rig.client();
            client.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
            client
        })
        .collect();
    load(&rig, 2, 2_000);
    // Some connections are closed, because the proxy cannot know at first why the slow requests wait, but not
    // continually.
    assert!(origin.connections() < 1_000, "{}", origin.connections());
    *over.0.lock().unwrap() = true;
    over.1.notify_all();
    for mut client in slow {
        assert_eq!(client.response(Method::Get).expect("an answer").text(), "ok");
    }
}

#[test]
fn slow_responses_do_not_delay_new_connections() {
    let slow = |mut caller: Caller, _| {
        while caller.request().is_some() {
            thread::sleep(Duration::from_millis(1_000));
            caller.send(OK);
        }
    };
    let origin = Origin::prefork(2, slow);
    let rig = Rig::on(1, Options::to(vec![origin.server()]));
    // The proxy learns that responses take a second.
    load(&rig, 2, 3);
    // The connections of these clients are idle, and two more are needed: waiting for several usual response
    // times would take four seconds or more.
    let since = Instant::now();
    load(&rig, 4, 1);
    assert!(since.elapsed() < Duration::from_millis(4_500), "{:?}", since.elapsed());
}
