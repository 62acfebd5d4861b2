//! `queue` of a route: limits of concurrent and waiting requests, and refused ones.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use bench::attack::wire::{AttackTarget, client_start, stream_id};

use rustix::net::sockopt::set_socket_linger;

use crate::rig::{Answer, Folder, PATIENCE, Rig, as_we_are, eventually, komainu, read_answer};

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 4\r\n\r\ndone";

/// Starts a server that answers on request of the test, and paths with `now` at once; returns its URL and the
/// requests received, each with its path.
fn held_origin() -> (String, Receiver<(String, TcpStream)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (requests, received) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let requests = requests.clone();
            std::thread::spawn(move || {
                while let Some(path) = next_path(&mut stream) {
                    if path.contains("now") {
                        stream.write_all(ANSWER).unwrap()
                    } else {
                        let _ = requests.send((path, stream));
                        return;
                    }
                }
            });
        }
    });
    (url, received)
}

/// Path of the next request on a connection.
fn next_path(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        bytes.push(byte[0]);
    }
    String::from_utf8(bytes).unwrap().split(' ').nth(1).map(str::to_owned)
}

/// Answers a request held by the origin, and closes the connection.
fn answer_held(mut stream: TcpStream) {
    stream
        .write_all(
            &String::from_utf8_lossy(ANSWER).replace("OK\r\n", "OK\r\nConnection: close\r\n").into_bytes(),
        )
        .unwrap();
}

fn start(url: &str, queue: &str, more: &str) -> Rig {
    let folder = Folder::new();
    folder.write(
        "komainu.toml",
        format!(
            r#"
            {}
            threads = 2
            listen = {{ address = "127.0.0.1:0", h2c = true }}

            [control]
            listen = "unix:control.sock"
            {more}

            [[route]]
            proxy = "{url}"
            queue = {queue}
            "#,
            as_we_are()
        ),
    );
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    Rig::start(command, folder)
}

/// Sends a request whose response is read later.
fn begin(rig: &Rig, path: &str) -> TcpStream {
    let mut stream = rig.connect();
    stream
        .write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes())
        .unwrap();
    stream
}

fn end(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    Answer::parse(bytes)
}

/// Sum of a metric over the lines that contain `with`.
fn value(rig: &Rig, name: &str, with: &str) -> u64 {
    let text = rig.metrics();
    let lines = text.lines().filter(|line| line.starts_with(&format!("{name}{{")) && line.contains(with));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64).sum()
}

fn waiting(rig: &Rig) -> u64 {
    value(rig, "komainu_queue_waiting", "")
}

/// Adds requests to the queue one by one, so that their order is known.
fn queued(rig: &Rig, paths: &[&str]) -> Vec<TcpStream> {
    let before = waiting(rig);
    let one = |(index, path): (usize, &&str)| {
        let stream = begin(rig, path);
        eventually("it waits", || waiting(rig) == before + index as u64 + 1);
        stream
    };
    paths.iter().enumerate().map(one).collect()
}

#[test]
fn queue_serves_in_order_and_rejects_the_oldest_request() {
    let (url, held) = held_origin();
    let next = || held.recv_timeout(PATIENCE).unwrap();
    let rig = start(&url, "{ active = 2, waiting = 3, age = \"10m\" }", "");
    let mut active: Vec<_> = ["/1", "/2"].map(|path| (begin(&rig, path), next())).into();
    let mut waits = queued(&rig, &["/3", "/4", "/5"]);
    assert_eq!(value(&rig, "komainu_queue_active", "route=\"*\""), 2);
    let newcomer = begin(&rig, "/6");
    let refused = end(waits.remove(0));
    refused.expect_status(503).expect_field("retry-after", "600").expect_field("cache-control", "no-store");
    assert_eq!(value(&rig, "komainu_queue_shed_total", "reason=\"full\""), 1);
    eventually("it is reported", || rig.reported().contains("is full"));
    assert!(held.try_recv().is_err(), "no more than two are in the handler");
    // A free slot goes to the request that has waited longest.
    let (client, (_, origin)) = active.remove(0);
    answer_held(origin);
    end(client).expect(200, "done");
    let fourth = next();
    assert_eq!(fourth.0, "/4");
    active.push((waits.remove(0), fourth));
    assert_eq!(waiting(&rig), 2);
    // Clients that disconnect free their slots in the queue and in the handler. They reset their connections:
    // after `Connection: close`, a half-closed client could still wait for the response.
    let leave = |client: TcpStream| set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
    leave(waits.remove(0));
    eventually("it has left", || waiting(&rig) == 1);
    let (client, _origin) = active.remove(0);
    leave(client);
    let sixth = next();
    assert_eq!(sixth.0, "/6");
    active.push((newcomer, sixth));
    assert_eq!(waiting(&rig), 0);
    // A reload raises the limit by one, which admits a waiting request; then none waits.
    let waits = queued(&rig, &["/7", "/8"]);
    let file = std::fs::read_to_string(rig.folder.at("komainu.toml")).unwrap();
    rig.folder.write("komainu.toml", file.replace("active = 2, waiting = 3", "active = 3, waiting = 0"));
    rig.signal("-HUP");
    let seventh = next();
    assert_eq!(seventh.0, "/7");
    let mut waits = waits.into_iter();
    active.push((waits.next().unwrap(), seventh));
    end(waits.next().unwrap()).expect_status(503);
    rig.get("/9").expect_status(503);
    for (client, (_, origin)) in active {
        answer_held(origin);
        end(client).expect(200, "done");
    }
    rig.get("/now").expect(200, "done");
    assert_eq!(value(&rig, "komainu_queue_active", ""), 0);
}

#[test]
fn queued_request_times_out_and_its_wait_is_logged() {
    let (url, held) = held_origin();
    let log = r#"
        [log]
        access = "$status $queue_ms"
        file = "access.log"
    "#;
    let rig = start(&url, "{ active = 1, age = \"300ms\" }", log);
    let first = (begin(&rig, "/1"), held.recv_timeout(PATIENCE).unwrap());
    let began = Instant::now();
    let refused = rig.get("/2");
    assert!(began.elapsed() >= Duration::from_millis(290), "{:?}", began.elapsed());
    refused.expect_status(503).expect_field("retry-after", "1");
    assert_eq!(value(&rig, "komainu_queue_shed_total", "reason=\"age\""), 1);
    answer_held(first.1.1);
    end(first.0).expect(200, "done");
    rig.get("/now").expect(200, "done");
    eventually("both are in the log", || {
        let lines = std::fs::read_to_string(rig.folder.at("access.log")).unwrap_or_default();
        let waited = lines.lines().find_map(|line| line.strip_prefix("503 ")?.parse::<f64>().ok());
        waited.is_some_and(|ms| ms >= 290.0) && lines.contains("200 ")
    });
    assert!(value(&rig, "komainu_http_queue_seconds_count", "") >= 3);
}

#[test]
fn cache_hits_bypass_the_queue() {
    let (url, held) = held_origin();
    let rig = start(&url, "{ active = 1, waiting = 1, age = \"10m\" }\ncache = true", "");
    rig.get("/now").expect(200, "done");
    let active = (begin(&rig, "/1"), held.recv_timeout(PATIENCE).unwrap());
    let waits = queued(&rig, &["/2"]);
    rig.get("/now").expect(200, "done");
    assert_eq!(waiting(&rig), 1);
    answer_held(active.1.1);
    end(active.0).expect(200, "done");
    answer_held(held.recv_timeout(PATIENCE).unwrap().1);
    waits.into_iter().for_each(|client| _ = end(client).expect(200, "done"));
}

#[test]
fn active_requests_never_exceed_the_limit() {
    const CLIENTS: usize = 24;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let counts = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let theirs = counts.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let counts = theirs.clone();
            std::thread::spawn(move || {
                while next_path(&mut stream).is_some() {
                    let now = counts[0].fetch_add(1, Ordering::SeqCst) + 1;
                    counts[1].fetch_max(now, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(2));
                    counts[0].fetch_sub(1, Ordering::SeqCst);
                    stream.write_all(ANSWER).unwrap();
                }
            });
        }
    });
    let rig = start(&url, "{ active = 3, age = \"10m\" }", "");
    let all = Barrier::new(CLIENTS);
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut stream = rig.connect();
                all.wait();
                for _ in 0..4 {
                    // Pipelined: the second request waits for the first.
                    let two = "GET /a HTTP/1.1\r\nHost: x\r\n\r\n".repeat(2);
                    stream.write_all(two.as_bytes()).unwrap();
                    (0..2).for_each(|_| _ = read_answer(&mut stream).expect(200, "done"));
                }
            });
        }
    });
    let most = counts[1].load(Ordering::SeqCst);
    assert!((2..=3).contains(&most), "{most} at once");
    assert_eq!((waiting(&rig), value(&rig, "komainu_queue_active", "")), (0, 0));
}

#[test]
fn ten_thousand_queued_requests_use_bounded_memory() {
    const CONNECTIONS: usize = 100;
    const STREAMS: usize = 100;
    /// Upper bound of the memory of a waiting request.
    const BYTES_MAX: u64 = 24 * 1024;
    let (url, held) = held_origin();
    let waiting_max = CONNECTIONS * STREAMS;
    let rig = start(&url, &format!("{{ active = 1, waiting = {waiting_max}, age = \"10m\" }}"), "");
    let first = (begin(&rig, "/1"), held.recv_timeout(PATIENCE).unwrap());
    let bytes = |name: &str| {
        let text = rig.metrics();
        let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap();
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64
    };
    let before = bytes("komainu_resident_bytes");
    let target = AttackTarget { authority: "x".into(), path: "/wait".into(), is_https: false };
    let requests: Vec<u8> = (0..STREAMS).flat_map(|at| target.get(stream_id(at))).collect();
    let clients: Vec<TcpStream> = (0..CONNECTIONS)
        .map(|_| {
            let mut stream = rig.connect();
            stream.write_all(&[client_start(&[]), requests.clone()].concat()).unwrap();
            stream
        })
        .collect();
    eventually("all wait", || waiting(&rig) == waiting_max as u64);
    let held_bytes = bytes("komainu_memory_held_bytes");
    assert!(held_bytes >= 4096 * waiting_max as u64, "each is charged: {held_bytes}");
    let grown = bytes("komainu_resident_bytes").saturating_sub(before);
    assert!(grown <= BYTES_MAX * waiting_max as u64, "{grown} bytes");
    // Another request displaces the oldest one, which is refused although its client does not read the
    // response.
    let last = begin(&rig, "/now");
    eventually("the oldest is refused", || value(&rig, "komainu_queue_shed_total", "reason=\"full\"") == 1);
    assert_eq!(waiting(&rig), waiting_max as u64);
    drop(clients);
    eventually("all have left", || waiting(&rig) == 1);
    answer_held(first.1.1);
    end(first.0).expect(200, "done");
    end(last).expect(200, "done");
    assert_eq!((waiting(&rig), value(&rig, "komainu_queue_active", "")), (0, 0));
    eventually("their memory is free", || bytes("komainu_memory_held_bytes") < held_bytes / 10);
}
