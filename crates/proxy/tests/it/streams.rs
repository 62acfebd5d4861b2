//! Proxying over the streams of one multiplexed connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use net::toy::{self, ToyConnection};
use net::{BindAddress, Exchange, Fault, MemoryBudget, RequestRecord, Server, SpillQuota, SpillStore};
use proxy::{Group, GroupShared, Proxy};
use times::Millis;

use crate::rig::{Options, Origin};

struct Hop(Proxy);

impl net::Service for Hop {
    async fn serve(&self, exchange: &mut Exchange<'_>) -> Result<(), Fault> {
        self.0.serve(exchange).await
    }

    fn log(&self, _: &RequestRecord<'_>) {}
}

/// Starts a proxy with at most 30 connections to the origin.
fn serve(origin: &Origin, spill: Option<Arc<SpillQuota>>) -> (Server, SocketAddr, MemoryBudget) {
    toy::enable();
    let mut upstream = origin.server();
    upstream.connections_max = 30;
    let mut options = Options::to(vec![upstream]);
    options.group.queue_max = 2_000;
    options.route.timeouts.queue = Millis(60_000);
    let route = Arc::new(options.route);
    let shared = GroupShared::new(options.group).unwrap();
    let memory = MemoryBudget::new(1 << 40);
    let net_options = net::Options {
        limits: net::Limits { streams_max: 1_000, ..net::Limits::default() },
        memory: memory.clone(),
        ..net::Options::default()
    };
    let bind = BindAddress::Tcp(([127, 0, 0, 1], 0).into());
    let server = Server::start(&net_options, &[bind], move |core| {
        Ok(Hop(Group::new(core, &shared).proxy(&route, spill.clone())))
    })
    .unwrap();
    let BindAddress::Tcp(address) = server.addresses()[0] else { panic!("a TCP address") };
    (server, address, memory)
}

fn stop(server: Server) {
    server.stop_handle().drain();
    server.join().unwrap();
}

/// Waits until a condition becomes true.
fn until(what: &str, is_true: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_true() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what} did not come");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn body(n: usize) -> Vec<u8> {
    (0..n * 97).map(|at| b'a' + ((at * 7 + n) % 26) as u8).collect()
}

#[test]
fn a_thousand_requests_are_relayed_over_one_connection() {
    let origin = Origin::mirror();
    let (server, address, _) = serve(&origin, None);
    let mut client = ToyConnection::connect(address).unwrap();
    client.set_first_window(20_000);
    let mut ids = Vec::new();
    for n in 0..1_000 {
        ids.push(match n % 3 {
            0 => client.open(&format!("GET /{n} HTTP/1.1\r\nHost: a"), None),
            1 => client.open(&format!("POST /{n} HTTP/1.1\r\nHost: a"), Some(body(n))),
            _ => {
                let bytes = body(n);
                let head = format!("POST /{n} HTTP/1.1\r\nHost: a\r\nContent-Length: {}", bytes.len());
                client.open(&head, Some(bytes))
            }
        });
    }
    client.finish().unwrap();
    for (n, id) in ids.into_iter().enumerate() {
        let got = client.response(id);
        let method = if n % 3 == 0 { "GET" } else { "POST" };
        assert!(got.status == "200" && got.ended, "{n}: {} {:?}", got.status, got.reset);
        assert!(got.body.starts_with(format!("{method} /{n} HTTP/1.1\r\nHost: a\r\n").as_bytes()), "{n}");
        let text = String::from_utf8_lossy(&got.body);
        assert!(text.contains("Via: 2.0 komainu"), "{text}");
        if n % 3 != 0 {
            assert!(got.body.ends_with(&body(n)), "{n}");
        }
    }
    // Counts open connections only: if the origin is slow to accept, connections are closed instead of kept.
    until("30 connections", || origin.open() <= 30);
    drop(client);
    stop(server);
}

#[test]
fn reset_and_stalled_streams_release_all_memory() {
    let origin = Origin::mirror();
    let (server, address, memory) = serve(&origin, None);
    for seed in 0..15usize {
        let mut client = ToyConnection::connect(address).unwrap();
        client.updates_windows = seed % 3 != 0;
        client.set_first_window([0, 1, 5_000][seed % 3]);
        let mut ids = Vec::new();
        for n in 0..200 {
            let bytes = (n % 2 == 0).then(|| body(n * 5));
            ids.push(client.open(&format!("POST /{n} HTTP/1.1\r\nHost: a"), bytes));
            if n % 4 == 0 {
                client.reset(ids[n * (seed + 7) % ids.len()]);
            }
        }
        for _ in 0..60 {
            client.step().unwrap();
            let held = memory.held_bytes();
            // Each request holds a task, one window of input, output, and the read-ahead.
            assert!(held < 200 * (400 * 1024) + (4 << 20), "seed {seed}: {held} bytes");
        }
    }
    let mut client = ToyConnection::connect(address).unwrap();
    let last = client.open("GET /last HTTP/1.1\r\nHost: a", None);
    client.finish().unwrap();
    assert_eq!(client.response(last).status, "200");
    drop(client);
    toy::assert_released(&memory);
    stop(server);
}

#[test]
fn unread_stream_response_is_spilled_to_a_file() {
    const BYTES: usize = 3_000_000;
    let origin = Origin::start(|mut caller, _| {
        while caller.request().is_some() {
            caller.send(&format!("HTTP/1.1 200 OK\r\nContent-Length: {BYTES}\r\n\r\n"));
            caller.send_bytes(&body(BYTES / 97 + 1)[..BYTES]);
        }
    });
    let folder = std::env::temp_dir();
    let quota = SpillQuota::new(&SpillStore::new(&folder, 1 << 30), 1 << 30);
    let used = quota.clone().unwrap();
    let (server, address, memory) = serve(&origin, quota);
    let mut client = ToyConnection::connect(address).unwrap();
    client.updates_windows = false;
    client.set_first_window(1_000);
    let ids: Vec<u32> = (0..4).map(|_| client.open("GET / HTTP/1.1\r\nHost: a", None)).collect();
    // Everything above the memory limit is in files once the origin has sent all of it.
    client.run_until(|_| used.used() > 4 * (BYTES as u64 - 512 * 1024)).unwrap();
    assert!(memory.held_bytes() < 4 * 900 * 1024, "{} bytes held", memory.held_bytes());
    client.reset(ids[0]);
    client.updates_windows = true;
    for id in &ids[1..] {
        client.send_window_update(*id, 1 << 30);
    }
    client.finish().unwrap();
    for id in &ids[1..] {
        let got = client.response(*id);
        assert!(
            got.ended && got.body == body(BYTES / 97 + 1)[..BYTES],
            "{} of {BYTES} bytes",
            got.body.len()
        );
    }
    until("an end of all files", || used.used() == 0);
    drop(client);
    stop(server);
}
