//! Clients that break the rules of QUIC, or use them against the server.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use crate::floods::counted;
use crate::hostile::{endure, endure_within, serve_big, serve_files};
use crate::raw::{self, INITIAL_BYTES, Level, RawClient, acknowledgement, crypto, frame, kind, stream};
use crate::requests::{A, connect};
use crate::rig::{Rig, eventually};

/// Error codes of QUIC (RFC 9000 section 20.1).
const CONNECTION_ID_LIMIT: u64 = 0x9;
const PROTOCOL_VIOLATION: u64 = 0xa;
const CRYPTO_BUFFER_EXCEEDED: u64 = 0xd;
/// The TLS alert unexpected_message as an error of QUIC (RFC 9001 section 4.8).
const UNEXPECTED_MESSAGE: u64 = 0x10a;
/// Error code of HTTP/3.
const EXCESSIVE_LOAD: u64 = 0x107;

/// Asks for the small file, and waits for an answer.
fn is_served(client: &mut RawClient, id: u64) {
    let before = client.stream_bytes;
    let request = stream(id, 0, &raw::get("/small"), true);
    let until = Instant::now() + crate::rig::PATIENCE;
    while Instant::now() < until {
        // Nothing is sent again by itself.
        client.send_frames(&request);
        if client.receive(Duration::from_millis(100)) && client.stream_bytes > before {
            return;
        }
        assert_eq!(client.closed, None);
    }
    panic!("no answer");
}

#[test]
fn client_by_hand_is_served() {
    let rig = serve_big();
    let mut client = RawClient::connect(rig.address);
    (0..10).for_each(|at| is_served(&mut client, 4 * at));
}

/// RFC 9000 section 21.4.
#[test]
fn acknowledgements_of_packets_not_received_end_the_connection() {
    let rig = serve_big();
    endure(&rig, || {
        for (what, ahead) in [("never sent", 1_000), ("between those received", 0)] {
            // More packets than the server sends before it skips a number for the first time, but so few that they fit
            // into the client's socket beside the close.
            let windows = raw::Windows { data: 96 * 1024, ..raw::Windows::default() };
            let mut client = RawClient::connect_with(rig.address, windows);
            client.acknowledges = false;
            let request = stream(0, 0, &raw::get("/big"), true);
            client.send_frames(&request);
            let until = Instant::now() + crate::rig::PATIENCE;
            while client.closed.is_none() {
                assert!(Instant::now() < until, "{what}: still open");
                if client.stream_bytes == 0 {
                    client.send_frames(&request);
                }
                client.receive(Duration::from_millis(100));
                let Some(last) = client.spaces[Level::Data as usize].received.last().copied() else {
                    continue;
                };
                let all: Vec<u64> = (0..=last + ahead).collect();
                client.send_frames(&acknowledgement(&all));
            }
            assert_eq!(client.closed, Some((PROTOCOL_VIOLATION, false)), "{what}");
        }
    });
}

/// RFC 9000 section 8.1.
#[test]
fn unproven_client_gets_at_most_three_times_its_bytes() {
    let rig = serve_big();
    let mut clients: Vec<(RawClient, usize, usize)> = (0..20)
        .map(|_| {
            let mut client = RawClient::new(rig.address, raw::Windows::default());
            client.send_hello();
            let sent = client.hello.len().div_ceil(1000) * INITIAL_BYTES;
            client.socket.set_nonblocking(true).unwrap();
            (client, sent, 0)
        })
        .collect();
    // Some repetitions of the server's flight would be due meanwhile.
    let until = Instant::now() + Duration::from_secs(4);
    while Instant::now() < until {
        for (client, _, received) in &mut clients {
            while let Ok(len) = client.socket.recv(&mut [0; 2048]) {
                *received += len;
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    for (_, sent, received) in &clients {
        assert!(*received > 0 && *received <= 3 * sent, "{received} bytes for {sent}");
    }
}

#[test]
fn connection_identifiers_of_a_client_are_bounded() {
    let rig = serve_big();
    let identifier = |number: u64, before: u64| {
        let mut frame = frame(kind::NEW_CONNECTION_ID, &[number, before]);
        frame.push(8);
        frame.extend((number + (1 << 40)).to_be_bytes());
        frame.extend([number as u8; 16]);
        frame
    };
    endure(&rig, || {
        // What the server retires is acknowledged, or never.
        for acknowledges in [true, false] {
            let mut client = RawClient::connect(rig.address);
            client.acknowledges = acknowledges;
            for number in 1..20_000 {
                let frames = identifier(number, number);
                client.send_frames(&frames);
                if number % 20 == 0 {
                    client.receive_all();
                }
                if client.closed.is_some() {
                    break;
                }
            }
        }
        // More at once than the server allows.
        let mut client = RawClient::connect(rig.address);
        let frames: Vec<u8> = (1..40).flat_map(|number| identifier(number, 0)).collect();
        assert_eq!(client.ended_by(&frames), (CONNECTION_ID_LIMIT, false));
        // One that the server has not given.
        let mut client = RawClient::connect(rig.address);
        let ended = client.ended_by(&frame(kind::RETIRE_CONNECTION_ID, &[1_000]));
        assert_eq!(ended, (PROTOCOL_VIOLATION, false));
    });
}

#[test]
fn retired_identifiers_are_replaced_one_by_one() {
    // Connections without requests stay open.
    let rig = serve_files("timeouts = { head = \"10m\" }");
    endure(&rig, || {
        let mut client = RawClient::connect(rig.address);
        for _ in 0..3_000 {
            client.receive(Duration::from_millis(1));
            if let Some((number, _)) = client.identifiers.pop_first() {
                client.send_frames(&frame(kind::RETIRE_CONNECTION_ID, &[number]).repeat(100));
            }
            assert_eq!(client.closed, None);
        }
        is_served(&mut client, 0);
    });
}

/// Each is replaced, and the replacements wait at the server until the client acknowledges packets.
#[test]
fn identifiers_retired_without_acknowledgements_end_the_connection() {
    // Connections without requests and without acknowledgements stay open.
    let rig = serve_files(
        "threads = 1\ntimeouts = { head = \"10m\", idle = \"10m\", write = \"10m\" }\n[control]\nlisten = \"unix:control.sock\"",
    );
    let open = || counted(&rig, "komainu_connections_open");
    endure(&rig, || {
        let mut other = connect(&rig);
        let before = open();
        let mut client = RawClient::connect(rig.address);
        client.receive_all();
        client.acknowledges = false;
        assert_eq!(open(), before + 1);
        // The server gives 8 at once; packets name the first of them.
        for first in (1..1_000).step_by(7) {
            let retire = |number| frame(kind::RETIRE_CONNECTION_ID, &[number]);
            client.send_frames(&(first..first + 7).flat_map(retire).collect::<Vec<u8>>());
            // The server gives new ones before it answers.
            assert_eq!(other.ask("GET", "/small", &[A], b"").status, 200);
            client.receive_all();
            if client.closed.is_some() {
                break;
            }
        }
        // The close leaves although the client lets nothing else through.
        assert_eq!(client.closed, Some((EXCESSIVE_LOAD, true)));
        eventually("the connection is forgotten", || open() == before);
    });
}

#[test]
fn requests_that_are_reset_at_once_end_the_connection() {
    let rig = serve_big();
    endure(&rig, || {
        let mut client = RawClient::connect(rig.address);
        let request = raw::get("/big");
        let mut asked = 0;
        while client.closed.is_none() && asked < 200_000 {
            if asked < client.streams_max {
                let id = 4 * asked;
                let mut frames = stream(id, 0, &request, false);
                frames.extend(frame(kind::RESET_STREAM, &[id, 0x10c, request.len() as u64]));
                frames.extend(frame(kind::STOP_SENDING, &[id, 0x10c]));
                client.send_frames(&frames);
                asked += 1;
            }
            if asked == client.streams_max || asked % 20 == 0 {
                client.receive_all();
            }
        }
        assert_eq!(client.closed, Some((EXCESSIVE_LOAD, true)), "after {asked}");
    });
}

#[test]
fn client_of_a_thousand_addresses_is_served_at_the_last() {
    let rig = serve_big();
    endure(&rig, || {
        let mut client = RawClient::connect(rig.address);
        client.receive_all();
        for at in 0..3_000 {
            client.rebind();
            client.send_frames(&[kind::PING]);
            if at % 100 == 0 {
                client.receive(Duration::from_millis(5));
            }
        }
        is_served(&mut client, 0);
        // At most one for each address, and some repetitions.
        assert!(client.challenges < 500, "{}", client.challenges);
    });
}

#[test]
fn client_hello_arrives_in_pieces_of_any_order() {
    let rig = serve_big();
    for seed in 0..10 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut client = RawClient::new(rig.address, raw::Windows::default());
        let hello = client.hello.clone();
        let mut pieces: Vec<Vec<u8>> = (0..hello.len())
            .map(|at| {
                // Some overlap.
                let len = random.usize(1..4).min(hello.len() - at);
                crypto(at as u64, &hello[at..at + len])
            })
            .collect();
        random.shuffle(&mut pieces);
        for piece in pieces.chunks(130) {
            let datagram = client.initial(&piece.concat());
            client.send(&datagram);
        }
        client.finish_handshake();
        is_served(&mut client, 0);
    }
}

#[test]
fn handshake_data_with_gaps_and_without_end_is_bounded() {
    let rig = serve_files("timeouts = { head = \"2s\" }");
    endure(&rig, || {
        for round in 0..50 {
            let mut client = RawClient::new(rig.address, raw::Windows::default());
            // Every second byte, one by one, again and again; the first is missing.
            let first = 1 + round % 2;
            for at in (first..16_000).step_by(400) {
                let frames: Vec<u8> = (at..at + 400).step_by(2).flat_map(|at| crypto(at, b"x")).collect();
                let datagram = client.initial(&frames);
                client.send(&datagram);
            }
        }
        let mut client = RawClient::new(rig.address, raw::Windows::default());
        let ended = client.send_until_closed(|client| client.initial(&crypto(17_000, b"x")));
        assert_eq!(ended, (CRYPTO_BUFFER_EXCEEDED, false));
        // The same after the handshake.
        let mut client = RawClient::connect(rig.address);
        let frames: Vec<u8> = (1..400).step_by(2).flat_map(|at| crypto(at, b"x")).collect();
        for at in 0..1_000 {
            client.send_frames(&frames);
            if at % 20 == 0 {
                client.receive_all();
            }
        }
        let mut client = RawClient::connect(rig.address);
        assert_eq!(client.ended_by(&crypto(17_000, b"x")), (CRYPTO_BUFFER_EXCEEDED, false));
    });
}

/// RFC 9001 sections 4.1.3 and 6.
#[test]
fn handshake_data_after_the_handshake_ends_the_connection() {
    let rig = serve_big();
    endure(&rig, || {
        for messages in [&b"x"[..], &[24, 0, 0, 1, 0], &[1, 0, 0, 4, 3, 3, 0, 0]] {
            let mut client = RawClient::connect(rig.address);
            assert_eq!(client.ended_by(&crypto(0, messages)), (UNEXPECTED_MESSAGE, false), "{messages:?}");
        }
        let mut client = flood(&rig, &crypto(0, b"").repeat(300), 5_000);
        assert_eq!(client.closed, None);
        is_served(&mut client, 0);
    });
}

/// A packet of a version that nobody knows, with an identifier that ends with `mark`.
fn unknown_version(len: usize, mark: u8) -> Vec<u8> {
    let mut packet = vec![0xc3, 0x1a, 0x2a, 0x3a, 0x4a, 8, 1, 2, 3, 4, 5, 6, 7, mark, 0];
    packet.resize(len, 0);
    packet
}

/// RFC 9000 sections 5.2.2 and 6.1.
#[test]
fn unknown_versions_are_answered_by_smaller_packets() {
    let rig = serve_big();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(crate::rig::PATIENCE)).unwrap();
    let mut buffer = [0; 2048];
    for len in 1..INITIAL_BYTES {
        socket.send_to(&unknown_version(len, 1)[..len], rig.address).unwrap();
    }
    // The answer to the last one is the first: the others were too short.
    socket.send_to(&unknown_version(INITIAL_BYTES, 2), rig.address).unwrap();
    let len = socket.recv(&mut buffer).unwrap();
    let answer = &buffer[..len];
    assert!(len < 100 && answer[1..5] == [0; 4], "{answer:?}");
    assert_eq!(answer[6 + usize::from(answer[5]) + 8], 2);
    endure(&rig, || {
        for _ in 0..30_000 {
            let _ = socket.send_to(&unknown_version(INITIAL_BYTES, 3), rig.address);
        }
    });
}

#[test]
fn handshakes_that_are_never_finished_leave_room_for_others() {
    let rig = serve_big();
    endure(&rig, || {
        let sockets: Vec<UdpSocket> = (0..500).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        for _ in 0..10 {
            for socket in &sockets {
                let mut client = RawClient::new(rig.address, raw::Windows::default());
                client.socket = socket.try_clone().unwrap();
                client.send_hello();
            }
        }
        let mut client = RawClient::connect(rig.address);
        assert!(client.has_retried);
        is_served(&mut client, 0);
    });
}

/// Clients that have proven their address: of more than 1,024 for a core, each one ends the oldest.
#[test]
fn unfinished_proven_handshakes_leave_room_for_others() {
    let rig = serve_files("threads = 1");
    // 1,024 of 52 KiB, as they are charged.
    endure_within(&rig, 64 * 1024, || {
        let mut clients: Vec<RawClient> = (0..1_500)
            .map(|_| {
                let mut client = RawClient::new(rig.address, raw::Windows::default());
                client.send_hello();
                client
            })
            .collect();
        for client in &mut clients {
            // The answer to Retry is sent, that to the handshake is not.
            let until = Instant::now() + Duration::from_millis(50);
            while !client.has_retried && client.received_bytes == 0 && Instant::now() < until {
                client.receive(Duration::from_millis(5));
            }
        }
        let mut client = RawClient::connect(rig.address);
        is_served(&mut client, 0);
    });
}

fn flood(rig: &Rig, frames: &[u8], count: usize) -> RawClient {
    let mut client = RawClient::connect(rig.address);
    client.receive_all();
    for at in 0..count {
        client.send_frames(frames);
        if at % 50 == 0 {
            client.receive(Duration::from_millis(1));
        }
        if client.closed.is_some() {
            break;
        }
    }
    client
}

#[test]
fn floods_of_frames_without_effect_hold_nothing() {
    let rig = serve_big();
    endure(&rig, || {
        let challenge = [&[kind::PATH_CHALLENGE][..], &[7; 8]].concat().repeat(100);
        // MAX_DATA, DATA_BLOCKED, STREAMS_BLOCKED.
        let rest = [frame(0x10, &[1 << 30]), frame(0x14, &[1]), frame(0x16, &[100])].concat().repeat(100);
        // MAX_STREAM_DATA, MAX_STREAMS, STREAM_DATA_BLOCKED.
        let streams =
            [frame(0x11, &[0, 1 << 29]), frame(0x12, &[200]), frame(0x13, &[200]), frame(0x15, &[0, 1])];
        for frames in [vec![kind::PING; 1_000], challenge, rest, streams.concat().repeat(50)] {
            let mut client = flood(&rig, &frames, 5_000);
            assert_eq!(client.closed, None, "{}", frames[0]);
            is_served(&mut client, 0);
        }
        // Acknowledgements of the same packets again and again.
        let mut client = RawClient::connect(rig.address);
        client.receive_all();
        let frames = acknowledgement(&client.spaces[Level::Data as usize].received).repeat(100);
        (0..5_000).for_each(|_| client.send_frames(&frames));
        is_served(&mut client, 0);
        // Packets between which others are missing.
        for at in 0..20_000 {
            client.spaces[Level::Data as usize].next += 1 + at % 3;
            client.send_frames(&[kind::PING]);
            if at % 50 == 0 {
                client.receive(Duration::from_millis(1));
            }
        }
        is_served(&mut client, 4);
        // An empty packet is an error.
        let client = flood(&rig, &[0], 100);
        assert_eq!(client.closed, None, "padding");
    });
}

#[test]
fn packets_after_the_end_of_a_connection_are_answered_rarely() {
    let rig = serve_big();
    endure(&rig, || {
        for _ in 0..20 {
            let mut client = RawClient::connect(rig.address);
            client.receive_all();
            let before = client.received_bytes;
            let close = frame(kind::CLOSE | 1, &[0x100, 0]);
            let mut sent = 0;
            for _ in 0..1_000 {
                let packet = client.packet(Level::Data, &close);
                sent += packet.len();
                client.send(&packet);
            }
            while client.socket.recv(&mut [0; 2048]).is_ok_and(|len| {
                client.received_bytes += len;
                true
            }) {}
            assert!(client.received_bytes - before < sent, "{} for {sent}", client.received_bytes - before);
        }
    });
}
