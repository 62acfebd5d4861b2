//! Applications over the streams of one multiplexed connection.

use crate::rig::Rig;
use net::toy::{self, ToyConnection};

fn body(n: usize) -> Vec<u8> {
    (0..n * 97).map(|at| b'a' + ((at * 7 + n) % 26) as u8).collect()
}

/// Serves one application with a queue of 2,000 requests.
fn serve() -> Rig {
    toy::enable();
    Rig::perl("all", |options| options.settings.queue_max = 2_000)
}

#[test]
fn a_thousand_requests_share_a_connection_and_two_workers() {
    let rig = serve();
    let mut client = ToyConnection::connect(rig.address).unwrap();
    client.set_first_window(20_000);
    let mut ids = Vec::new();
    for n in 0..1_000 {
        ids.push(match n % 3 {
            0 => client.open("GET /pieces HTTP/1.1\r\nHost: a", None),
            1 => client.open("POST /echo HTTP/1.1\r\nHost: a", Some(body(n))),
            _ => client.open("POST /stream HTTP/1.1\r\nHost: a", Some(body(n))),
        });
    }
    client.finish().unwrap();
    for (n, id) in ids.into_iter().enumerate() {
        let got = client.response(id);
        assert!(got.status == "200" && got.ended, "{n}: {} {:?}", got.status, got.reset);
        match n % 3 {
            0 => assert!(
                got.body.len() == 100_002 && got.lines.matches("X-Two: ").count() == 2,
                "{}",
                got.lines
            ),
            _ => assert!(got.body == body(n), "{n}: {} bytes", got.body.len()),
        }
    }
    drop(client);
}

#[test]
fn workers_are_freed_when_streams_are_reset_or_stall() {
    let rig = serve();
    for seed in 0..5usize {
        let mut client = ToyConnection::connect(rig.address).unwrap();
        client.updates_windows = false;
        client.set_first_window([0, 1, 5_000][seed % 3]);
        let mut ids = Vec::new();
        for n in 0..100 {
            let (path, bytes) = if n % 2 == 0 { ("/stream", Some(body(n * 3))) } else { ("/pieces", None) };
            ids.push(client.open(&format!("POST {path} HTTP/1.1\r\nHost: a"), bytes));
            if n % 4 == 0 {
                client.reset(ids[n * (seed + 7) % ids.len()]);
            }
        }
        for _ in 0..40 {
            client.step().unwrap();
        }
    }
    let mut client = ToyConnection::connect(rig.address).unwrap();
    let ids: Vec<u32> =
        (0..20).map(|_| client.open("GET /env HTTP/1.1\r\nHost: shop.example:81", None)).collect();
    client.finish().unwrap();
    let own_port = format!("SERVER_PORT={}", rig.address.port());
    for id in ids {
        let got = client.response(id);
        let text = String::from_utf8_lossy(&got.body);
        assert_eq!(got.status, "200");
        for line in ["HTTP_HOST=shop.example:81", &own_port, "SERVER_PROTOCOL=HTTP/2.0", "PATH_INFO=/env"] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
