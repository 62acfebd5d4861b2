//! Files over the streams of one multiplexed connection.

use std::net::SocketAddr;

use files::{FileOptions, FileOutcome, Files, Options};
use http::Status;
use net::toy::{self, ToyConnection};
use net::{BindAddress, Exchange, Fault, MemoryBudget, RequestRecord, Server, Service};

use crate::scratch::ScratchFolder;

const FILES: usize = 40;

struct Site(Files);

impl Service for Site {
    async fn serve(&self, x: &mut Exchange<'_>) -> Result<(), Fault> {
        let path = x.request().normal_path()?.into_owned();
        match self.0.serve(x, &path).await? {
            FileOutcome::Done => Ok(()),
            FileOutcome::Declined(reason) => x.refuse(Status::NOT_FOUND, reason).await,
        }
    }

    fn log(&self, _: &RequestRecord<'_>) {}
}

/// Returns bytes that differ from their neighbours, so that a wrong offset is noticed.
fn pattern(n: usize) -> Vec<u8> {
    (0..n * 2_500).map(|at| (at / 251 + at * 7 + n) as u8).collect()
}

fn serve() -> (ScratchFolder, Server, SocketAddr, MemoryBudget) {
    toy::enable();
    let folder = ScratchFolder::new();
    for n in 0..FILES {
        folder.write(&format!("root/{n}.bin"), pattern(n));
    }
    let options = Options {
        files: FileOptions { root: vec![folder.path("root")], ..FileOptions::default() },
        ..Options::default()
    };
    let memory = MemoryBudget::new(1 << 40);
    let net_options = net::Options {
        limits: net::Limits { streams_max: 1_000, ..net::Limits::default() },
        memory: memory.clone(),
        ..net::Options::default()
    };
    let bind = BindAddress::Tcp(([127, 0, 0, 1], 0).into());
    let server =
        Server::start(&net_options, &[bind], move |_| Ok(Site(Files::new(options.clone())?))).unwrap();
    let BindAddress::Tcp(address) = server.addresses()[0] else { panic!("a TCP address") };
    (folder, server, address, memory)
}

fn stop(server: Server) {
    server.stop_handle().drain();
    server.join().unwrap();
}

#[test]
fn a_thousand_files_are_sent_over_one_connection() {
    let (_folder, server, address, memory) = serve();
    let mut client = ToyConnection::connect(address).unwrap();
    client.set_first_window(3_000);
    let ids: Vec<u32> = (0..1_000)
        .map(|n| client.open(&format!("GET /{}.bin HTTP/1.1\r\nHost: a", n % FILES), None))
        .collect();
    client.finish().unwrap();
    for (n, id) in ids.into_iter().enumerate() {
        let got = client.response(id);
        assert!(got.status == "200" && got.ended && got.body == pattern(n % FILES), "{n}: {}", got.status);
    }
    let range = client.open("GET /9.bin HTTP/1.1\r\nHost: a\r\nRange: bytes=10-19", None);
    let head = client.open("HEAD /9.bin HTTP/1.1\r\nHost: a", None);
    let none = client.open("GET /x HTTP/1.1\r\nHost: a", None);
    client.finish().unwrap();
    assert_eq!(
        (&client.response(range).status[..], &client.response(range).body[..]),
        ("206", &pattern(9)[10..20])
    );
    assert!(
        client.response(head).lines.contains("Content-Length: 22500\r\n")
            && client.response(head).body.is_empty()
    );
    assert_eq!(client.response(none).status, "404");
    drop(client);
    toy::assert_released(&memory);
    stop(server);
}

#[test]
fn stalled_and_reset_streams_hold_bounded_memory() {
    let (_folder, server, address, memory) = serve();
    for seed in 0..20u64 {
        let mut client = ToyConnection::connect(address).unwrap();
        client.updates_windows = false;
        client.set_first_window([0, 1, 10_000, 60_000][seed as usize % 4]);
        let mut ids = Vec::new();
        for n in 0..300 {
            ids.push(
                client.open(&format!("GET /{}.bin HTTP/1.1\r\nHost: a", (n + seed as usize) % FILES), None),
            );
            if n % 3 == 0 {
                client.reset(ids[(n * seed as usize) % ids.len()]);
            }
        }
        for _ in 0..50 {
            client.step().unwrap();
            let held = memory.held_bytes();
            // The task of a stream and its 64 KiB of output, doubled to allow for growth.
            assert!(held < 300 * (128 * 1024 + 8 * 1024) + (1 << 20), "seed {seed}: {held} bytes");
        }
        drop(client);
        toy::assert_released(&memory);
    }
    stop(server);
}
