//! Floods of packets that belong to no connection, from addresses that nobody has proven.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quinn_proto::TransportConfig;

use crate::h3_client::{H3Client, client_config};
use crate::hostile::{StopOnDrop, endure, serve_files};
use crate::raw::{INITIAL_BYTES, RawClient, Windows};
use crate::requests::{A, connect};
use crate::rig::{Rig, eventually};

/// Packets without a connection that a thread examines: in a second, and at once (docs/http3.md).
const PACKETS_PER_SECOND: u64 = 4_000;
const PACKETS_AT_ONCE: u64 = 1_000;
/// Handshakes in progress from which clients must prove their address.
const HANDSHAKES_UNPROVEN_MAX: usize = 64;

/// Networks from which a flood comes, as a server on this machine sees them: more than those whose shares are the whole
/// budget.
const NETWORKS: u8 = 32;

const RETRIES: &str = "komainu_quic_retries_total";
const DROPPED: &str = "komainu_quic_dropped_packets_total";

/// Value of a metric without labels.
pub(crate) fn counted(rig: &Rig, name: &str) -> u64 {
    let metrics = rig.metrics();
    let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.map_or(0, |value| value.parse::<f64>().unwrap() as u64)
}

/// Starts a server of one thread with so many handshakes in progress that new clients must prove their addresses.
fn serve_occupied() -> Rig {
    let rig =
        serve_files("threads = 1\ntimeouts = { head = \"10m\" }\n[control]\nlisten = \"unix:control.sock\"");
    for _ in 0..=HANDSHAKES_UNPROVEN_MAX {
        let mut client = RawClient::new(rig.address, Windows::default());
        client.send_hello();
    }
    eventually("new clients must prove their addresses", || {
        RawClient::new(rig.address, Windows::default()).send_hello();
        counted(&rig, RETRIES) > 0
    });
    rig
}

/// A socket in each of some networks.
fn sockets(networks: std::ops::Range<u8>) -> Vec<UdpSocket> {
    networks.map(|network| UdpSocket::bind((format!("127.0.{network}.9"), 0)).unwrap()).collect()
}

/// Sends datagrams from all sockets in turns.
fn flood(rig: &Rig, sockets: &[UdpSocket], datagrams: &[Vec<u8>], count: usize) {
    for at in 0..count {
        // Whatever finds no room is lost.
        let _ = sockets[at % sockets.len()].send_to(&datagrams[at % datagrams.len()], rig.address);
    }
}

/// Sends five times as many as are examined, in pieces that find room in the server's socket: packets that the kernel drops
/// would be others' too.
fn flood_until(stop: &AtomicBool, rig: &Rig, sockets: &[UdpSocket], datagrams: &[Vec<u8>]) {
    while !stop.load(Ordering::Relaxed) {
        flood(rig, sockets, datagrams, 100);
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn initial_packets_without_a_connection_are_answered_within_a_budget() {
    let rig = serve_occupied();
    let packets = RawClient::forged_initials(rig.address, &[7; 64], 997);
    for sources in [sockets(1..2), sockets(1..NETWORKS)] {
        endure(&rig, || {
            let answered = counted(&rig, RETRIES);
            let from = Instant::now();
            flood(&rig, &sources, &packets, 30_000);
            let answered = counted(&rig, RETRIES) - answered;
            let most = PACKETS_AT_ONCE + PACKETS_PER_SECOND * (from.elapsed().as_secs() + 1);
            assert!(answered <= most, "{answered} in {:?}", from.elapsed());
            let dropped = counted(&rig, DROPPED);
            eventually("more arrive than are examined", || {
                flood(&rig, &sources, &packets, 10_000);
                counted(&rig, DROPPED) > dropped
            });
        });
    }
}

#[test]
fn unknown_versions_are_answered_within_a_budget() {
    let rig = serve_occupied();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut packet = vec![0xc3, 0x1a, 0x2a, 0x3a, 0x4a, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0];
    packet.resize(INITIAL_BYTES, 0);
    socket.set_nonblocking(true).unwrap();
    endure(&rig, || {
        eventually("more arrive than are answered", || {
            for _ in 0..1_000 {
                let _ = socket.send_to(&packet, rig.address);
                while socket.recv(&mut [0; 2048]).is_ok() {}
            }
            counted(&rig, DROPPED) > 0
        });
    });
}

#[test]
fn clients_that_are_known_are_served_during_a_flood() {
    let rig = serve_occupied();
    let packets = RawClient::forged_initials(rig.address, &[7; 64], 997);
    let sources = sockets(1..NETWORKS);
    // Clients keep the tokens of one connection for the next ones.
    let known = client_config(&[b"h3"], TransportConfig::default());
    let ask_as_known = || {
        let mut client = H3Client::begin(rig.address, "a.test", known.clone());
        client.drive("the handshake", |client| client.is_connected);
        assert_eq!(client.ask("GET", "/small", &[A], b"").status, 200);
    };
    ask_as_known();
    let mut established = connect(&rig);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ending = StopOnDrop(&stop);
        scope.spawn(|| flood_until(&stop, &rig, &sources, &packets));
        eventually("more arrive than are examined", || counted(&rig, DROPPED) > 2_000);
        for _ in 0..5 {
            (0..10).for_each(|_| {
                assert_eq!(established.ask("GET", "/small", &[A], b"").status, 200);
            });
            ask_as_known();
        }
    });
}

/// A flood from one network leaves room for those of others who have no token yet.
#[test]
fn flood_of_one_network_leaves_room_for_others() {
    let rig = serve_occupied();
    let packets = RawClient::forged_initials(rig.address, &[7; 64], 997);
    let sources = sockets(1..2);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ending = StopOnDrop(&stop);
        scope.spawn(|| flood_until(&stop, &rig, &sources, &packets));
        eventually("more arrive than are examined", || counted(&rig, DROPPED) > 2_000);
        for _ in 0..5 {
            let mut client = RawClient::new(rig.address, Windows::default());
            client.send_hello();
            let until = Instant::now() + crate::rig::PATIENCE;
            while !client.has_retried {
                assert!(Instant::now() < until, "no answer");
                if !client.receive(Duration::from_millis(500)) {
                    client.send_hello();
                }
            }
        }
    });
}
