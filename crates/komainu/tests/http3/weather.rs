//! A network between a client and the server that loses, repeats, delays and reorders packets, drops large ones, and gives
//! the client other addresses, all by a seed: every response is whole and right, or visibly broken.
//!
//! The network is in front of the real program, so that sockets, offloads and clocks are those of the server; a seed
//! repeats the network's decisions, though not the times of the scheduler.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quinn_proto::TransportConfig;

use crate::h3_client::{H3Client, client_config};
use crate::hosted::status;
use crate::origin::{Origin, answer};
use crate::requests::A;
use crate::rig::{Rig, eventually};

/// Time for a response where a third of the packets is lost: the times between tries double.
const LOSSY_PATIENCE: Duration = Duration::from_secs(120);
/// How many seeds are run, at the same time by this many threads.
const SEEDS: u64 = 40;
const THREADS: u64 = 4;
/// Memory that remains for the process as a whole, in bytes.
const HELD_BYTES_MAX: u64 = 256 * 1024;

/// The decisions of a network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    /// Percentages of packets.
    lost: u32,
    repeated: u32,
    delayed: u32,
    /// The longest delay, in milliseconds.
    delay_max: u64,
    /// Size of packets from which they are dropped, once this many have passed.
    size_max: usize,
    passes_before: u64,
    /// Bytes that reach the client in a second.
    rate: u64,
    /// Number of packets after which the client's address changes each time, as behind a NAT that forgets.
    packets_per_address: u64,
}

/// Maximum time for which packets wait for a slow line; later ones are lost.
const LINE_TIME_MAX: Duration = Duration::from_secs(1);

impl Weather {
    /// Passes all packets, to the client as many bytes in a second.
    pub(crate) fn slow(rate: u64) -> Weather {
        Weather {
            lost: 0,
            repeated: 0,
            delayed: 0,
            delay_max: 0,
            size_max: usize::MAX,
            passes_before: 0,
            rate,
            packets_per_address: u64::MAX,
        }
    }

    fn of(random: &mut fastrand::Rng) -> Weather {
        let mut either = |first: u32, second: u32| if random.bool() { first } else { second };
        let kind = [either(0, 30), either(0, 10), either(0, 40)];
        Weather {
            lost: random.u32(0..=kind[0]),
            repeated: random.u32(0..=kind[1]),
            delayed: random.u32(0..=kind[2]),
            delay_max: random.u64(1..10),
            // QUIC needs 1,200 bytes.
            size_max: if random.bool() { 65_535 } else { random.usize(1200..1500) },
            passes_before: random.u64(0..200),
            rate: u64::MAX,
            packets_per_address: if random.bool() { u64::MAX } else { random.u64(50..500) },
        }
    }
}

/// A network, which ends on drop.
pub(crate) struct Network {
    pub(crate) address: SocketAddr,
    ends: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Network {
    pub(crate) fn start(server: SocketAddr, weather: Weather, random: fastrand::Rng) -> Network {
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = near.local_addr().unwrap();
        let ends = Arc::new(AtomicBool::new(false));
        let stop = ends.clone();
        let thread = std::thread::spawn(move || pass(&near, server, weather, random, &stop));
        Network { address, ends, thread: Some(thread) }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

/// A packet that is due at a time; `bool` is whether it goes to the server.
type Due = Reverse<(Instant, u64, bool, Vec<u8>)>;

fn pass(
    near: &UdpSocket,
    server: SocketAddr,
    weather: Weather,
    mut random: fastrand::Rng,
    stop: &AtomicBool,
) {
    let address_of_client = || {
        let upstream = UdpSocket::bind("127.0.0.1:0").unwrap();
        upstream.connect(server).unwrap();
        upstream.set_nonblocking(true).unwrap();
        upstream
    };
    let mut upstream = address_of_client();
    near.set_nonblocking(true).unwrap();
    let mut client = None;
    let mut waiting: BinaryHeap<Due> = BinaryHeap::new();
    let mut count = 0;
    let mut is_free_at = Instant::now();
    let mut buffer = vec![0; 65_536];
    while !stop.load(Ordering::Relaxed) {
        let mut is_idle = true;
        for to_server in [true, false] {
            let len = match to_server {
                true => near.recv_from(&mut buffer).map(|(len, from)| {
                    client = Some(from);
                    len
                }),
                false => upstream.recv(&mut buffer),
            };
            let Ok(len) = len else { continue };
            is_idle = false;
            count += 1;
            if count % weather.packets_per_address == 0 {
                upstream = address_of_client();
            }
            let is_too_large = count > weather.passes_before && len > weather.size_max;
            if is_too_large || random.u32(0..100) < weather.lost {
                continue;
            }
            let copies = if random.u32(0..100) < weather.repeated { 2 } else { 1 };
            for _ in 0..copies {
                let is_delayed = random.u32(0..100) < weather.delayed;
                let delay = if is_delayed { random.u64(0..=weather.delay_max) } else { 0 };
                let mut at = Instant::now() + Duration::from_millis(delay);
                if !to_server && weather.rate < u64::MAX {
                    at = at.max(is_free_at);
                    if at > Instant::now() + LINE_TIME_MAX {
                        continue;
                    }
                    is_free_at = at + Duration::from_micros(len as u64 * 1_000_000 / weather.rate);
                }
                waiting.push(Reverse((at, count, to_server, buffer[..len].to_vec())));
            }
        }
        while waiting.peek().is_some_and(|Reverse((at, ..))| *at <= Instant::now()) {
            let Some(Reverse((_, _, to_server, packet))) = waiting.pop() else { break };
            // A packet for which there is no room is lost too.
            let _ = match (to_server, client) {
                (true, _) => upstream.send(&packet),
                (false, Some(client)) => near.send_to(&packet, client),
                (false, None) => Ok(0),
            };
        }
        if is_idle {
            std::thread::sleep(Duration::from_micros(300));
        }
    }
}

fn content(len: usize) -> Vec<u8> {
    (0..len as u32).map(|at| (at % 251) as u8).collect()
}

/// Sends requests through one network. Returns how many of their responses were whole.
fn run(rig: &Rig, seed: u64) -> u64 {
    let mut random = fastrand::Rng::with_seed(seed);
    let weather = Weather::of(&mut random);
    let network = Network::start(rig.address, weather, random.fork());
    let mut transport = TransportConfig::default();
    // A client for which nothing comes any more sees that.
    transport.max_idle_timeout(Some(Duration::from_secs(10).try_into().unwrap()));
    let config = client_config(&[b"h3"], transport);
    let mut client = H3Client::begin(network.address, "a.test", config);
    let seen = |what: &str, client: &H3Client| format!("seed {seed}, {weather:?}: {what}, {:?}", client.lost);
    client.drive(&seen("handshake", &client), |client| client.is_connected || client.lost.is_some());
    let mut whole = 0;
    for _ in 0..3 {
        if client.lost.is_some() {
            break;
        }
        let upload = vec![b'a'; random.usize(0..60_000)];
        let length = upload.len().to_string();
        let small = client.send("GET", "/files/small", &[A], b"");
        let big = client.send("GET", "/files/big", &[A], b"");
        let sent = client.send("POST", "/up", &[A, ("content-length", &length)], &upload);
        let cancelled = client.send("GET", "/files/big", &[A], b"");
        client.cancel(cancelled);
        for (what, id) in [("small", small), ("big", big), ("upload", sent)] {
            let what = seen(what, &client);
            client.drive_within(LOSSY_PATIENCE, &what, |client| {
                let response = client.response(id);
                response.is_whole || response.reset.is_some() || client.lost.is_some()
            });
            let response = client.response(id);
            if !response.is_whole {
                continue;
            }
            whole += 1;
            assert_eq!(response.status, 200, "{what}");
            let is_right = match id {
                id if id == small => response.content == b"small",
                id if id == big => response.content == content(200_000),
                _ => response.text() == length,
            };
            assert!(is_right, "{what}: {} bytes", response.content.len());
        }
    }
    client.quic.close(Instant::now(), 0x100u32.into(), bytes::Bytes::new());
    client.turn();
    whole
}

fn serve() -> (Origin, Rig) {
    let origin = Origin::start(|ask| answer("200 OK", "", &ask.body.len().to_string()));
    let routes = format!(
        "[[site.route]]\npath = \"/files/*\"\nfiles = \"www\"\n[[site.route]]\nproxy = \"{}\"",
        origin.url
    );
    let rig = crate::requests::serve_with("", &routes, |folder| {
        folder.write("www/files/small", "small").write("www/files/big", content(200_000));
    });
    (origin, rig)
}

fn held_bytes(rig: &Rig) -> u64 {
    status(rig)["memory"]["held_bytes"].as_u64().unwrap()
}

#[test]
fn responses_are_whole_or_visibly_broken_in_any_weather() {
    let (_origin, rig) = serve();
    let next = AtomicU64::new(0);
    let whole = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= SEEDS {
                        break;
                    }
                    whole.fetch_add(run(&rig, seed), Ordering::Relaxed);
                }
            });
        }
    });
    // Connections survive all of this.
    let whole = whole.load(Ordering::Relaxed);
    assert!(whole >= SEEDS * 9 * 8 / 10, "{whole}");
    eventually("all memory is given back", || held_bytes(&rig) < HELD_BYTES_MAX);
}
