//! Proxying over the streams of one multiplexed connection.
#![allow(clippy::unwrap_used)]

mod rig;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use net::toy::{self, ToyConnection};
use net::{Bind, Exchange, Fault, MemoryBudget, RequestRecord, Server};
use proxy::options::Options;
use proxy::{GroupShared, Proxy};

use rig::Origin;

struct Hop(Proxy);

impl net::Service for Hop {
    async fn serve(&self, exchange: &mut Exchange<'_>) -> Result<(), Fault> {
        self.0.serve(exchange).await
    }

    fn log(&self, _: &RequestRecord<'_>) {}
}

/// A proxy that keeps no more than 30 connections to the origin.
fn serve(origin: &Origin) -> (Server, SocketAddr, MemoryBudget) {
    toy::speak();
    let mut upstream = origin.server();
    upstream.connections_max = 30;
    let mut options = Options::to(vec![upstream]);
    options.queue_max = 2_000;
    options.timeouts.queue_ms = 60_000;
    let shared = GroupShared::new(options).unwrap();
    let memory = MemoryBudget::new(1 << 40);
    let net_options = net::Options {
        limits: net::Limits { streams_max: 1_000, ..net::Limits::default() },
        memory: memory.clone(),
        ..net::Options::default()
    };
    let bind = Bind::Tcp(([127, 0, 0, 1], 0).into());
    let server =
        Server::start(&net_options, &[bind], move |core| Ok(Hop(Proxy::new(core, &shared)))).unwrap();
    let Bind::Tcp(address) = server.addresses()[0] else { panic!("a TCP address") };
    (server, address, memory)
}

fn stop(server: Server) {
    server.stop().drain();
    server.join().unwrap();
}

fn body(n: usize) -> Vec<u8> {
    (0..n * 97).map(|at| b'a' + ((at * 7 + n) % 26) as u8).collect()
}

#[test]
fn a_thousand_requests_are_relayed_over_one_connection() {
    let origin = Origin::mirror();
    let (server, address, _) = serve(&origin);
    let mut client = ToyConnection::connect(address).unwrap();
    client.first_window(20_000);
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
    assert!(origin.connections() <= 30, "{} connections", origin.connections());
    drop(client);
    stop(server);
}

#[test]
fn streams_that_are_given_up_or_stall_leave_nothing_behind() {
    let origin = Origin::mirror();
    let (server, address, memory) = serve(&origin);
    for seed in 0..15usize {
        let mut client = ToyConnection::connect(address).unwrap();
        client.grants = seed % 3 != 0;
        client.first_window([0, 1, 5_000][seed % 3]);
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
            // A stream's task, its input of a window, its output, and what the relay reads ahead.
            assert!(held < 200 * (400 * 1024) + (4 << 20), "seed {seed}: {held} bytes");
        }
    }
    let mut client = ToyConnection::connect(address).unwrap();
    let last = client.open("GET /last HTTP/1.1\r\nHost: a", None);
    client.finish().unwrap();
    assert_eq!(client.response(last).status, "200");
    drop(client);
    let begun = Instant::now();
    while memory.held_bytes() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "{} bytes are still held", memory.held_bytes());
        std::thread::sleep(Duration::from_millis(5));
    }
    stop(server);
}
