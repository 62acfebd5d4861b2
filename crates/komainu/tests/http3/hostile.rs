//! Clients that break the rules of HTTP/3, or ask for a million things and read nothing.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use http3::OwnStream;
use quinn_proto::{ConnectionError, Dir, StreamId, TransportConfig, VarInt};

use crate::h3_client::{H3Client, client_config};
use crate::requests::{A, connect, serve};
use crate::rig::{Rig, eventually};

const YES: &str = "[[site.route]]\nrespond = \"yes\"";

fn code(lost: &Option<ConnectionError>) -> u64 {
    match lost {
        Some(ConnectionError::ApplicationClosed(close)) => close.error_code.into_inner(),
        other => panic!("{other:?}"),
    }
}

/// RFC 9114 sections 4.1, 7.1, 7.2.
#[test]
fn broken_frames_end_the_connection_with_their_code() {
    let rig = serve(YES);
    // DATA before HEADERS; SETTINGS, a frame of HTTP/2, and PUSH_PROMISE on a request stream.
    for frame in [&[0, 1, 0][..], &[4, 0], &[6, 0], &[5, 0]] {
        let mut client = connect(&rig);
        let id = client.quic.streams().open(quinn_proto::Dir::Bi).unwrap();
        client.quic.send_stream(id).write(frame).unwrap();
        client.drive("end of the connection", |client| client.lost.is_some());
        assert_eq!(code(&client.lost), 0x105, "{frame:?}");
    }
}

#[test]
fn random_and_cut_packets_are_ignored() {
    let rig = serve(YES);
    let mut client = connect(&rig);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..20_000 {
        let len = random.usize(0..1500);
        let packet: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(len).collect();
        let _ = socket.send_to(&packet, rig.address);
    }
    assert_eq!(client.ask("GET", "/", &[A], b"").status, 200);
}

#[test]
fn streams_opened_and_reset_a_thousand_times_leave_nothing() {
    let rig = serve(YES);
    let mut client = connect(&rig);
    for _ in 0..1000 {
        let id = client.open("POST", "/", &[A]);
        client.cancel(id);
    }
    assert_eq!(client.ask("GET", "/", &[A], b"").status, 200);
}

#[test]
fn client_that_reads_nothing_makes_the_server_hold_little() {
    let rig = serve_big();
    let mut client = connect(&rig);
    client.reads = false;
    let before = memory_kib(rig.child.id());
    for _ in 0..100 {
        client.send("GET", "/big", &[A], b"");
    }
    client.drive_for(Duration::from_secs(2));
    let grown = memory_kib(rig.child.id()).saturating_sub(before);
    assert!(grown < 32 * 1024, "{grown} KiB");
    let mut other = connect(&rig);
    assert_eq!(other.ask("GET", "/small", &[A], b"").status, 200);
}

/// Maximum growth of the server's memory during an attack, in KiB.
const GROWTH_KIB_MAX: u64 = 32 * 1024;
/// Requests before memory is measured.
const WARM_UP: u64 = 100;

pub(crate) struct StopOnDrop<'s>(pub(crate) &'s AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs an attack while another client asks without pause: it is served, and the server's memory stays bounded.
pub(crate) fn endure(rig: &Rig, attack: impl FnOnce()) {
    endure_within(rig, GROWTH_KIB_MAX, attack);
}

/// Like [`endure`], with the growth of memory that is allowed, in KiB.
pub(crate) fn endure_within(rig: &Rig, kib_max: u64, attack: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    let answers = AtomicU64::new(0);
    let (process, address) = (rig.child.id(), rig.address);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut client = H3Client::connect(address, "a.test");
            let mut before = 0;
            let mut most = 0;
            while !stop.load(Ordering::Relaxed) {
                assert_eq!(client.ask("GET", "/small", &[A], b"").status, 200, "{:?}", client.lost);
                if answers.fetch_add(1, Ordering::Relaxed) == WARM_UP {
                    before = memory_kib(process);
                }
                most = most.max(memory_kib(process));
            }
            most - before
        });
        // The load ends if the attack panics.
        let ending = StopOnDrop(&stop);
        let served = |more: u64| {
            let from = answers.load(Ordering::Relaxed);
            eventually("the other client is served", || {
                load.is_finished() || answers.load(Ordering::Relaxed) > from + more
            });
        };
        served(WARM_UP + 1);
        attack();
        served(10);
        drop(ending);
        let grown = load.join().unwrap();
        assert!(grown < kib_max, "{grown} KiB");
    });
    assert_eq!(connect(rig).ask("GET", "/small", &[A], b"").status, 200);
}

pub(crate) fn serve_big() -> Rig {
    serve_files("")
}

/// Serves a small and a big file, with lines in front of the site.
pub(crate) fn serve_files(first: &str) -> Rig {
    crate::requests::serve_with(first, "[[site.route]]\nfiles = \"www\"", |folder| {
        std::fs::create_dir(folder.at("www")).unwrap();
        std::fs::write(folder.at("www/big"), vec![7; 20_000_000]).unwrap();
        std::fs::write(folder.at("www/small"), b"small").unwrap();
    })
}

/// Anonymous memory of a process, in KiB.
pub(crate) fn memory_kib(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn head_that_does_not_end_is_reset() {
    let rig = crate::requests::serve_with("timeouts = { head = \"1s\" }", YES, |_| {});
    let mut client = connect(&rig);
    assert_eq!(client.ask("GET", "/", &[A], b"").status, 200);
    let id = client.quic.streams().open(quinn_proto::Dir::Bi).unwrap();
    // HEADERS of 100 bytes, of which one has arrived.
    client.quic.send_stream(id).write(&[1, 0x40, 100, 0]).unwrap();
    let mut reset = None;
    client.drive("the reset", |client| {
        if let Ok(mut chunks) = client.quic.recv_stream(id).read(true)
            && let Err(quinn_proto::ReadError::Reset(code)) = chunks.next(1)
        {
            reset = Some(code.into_inner());
        }
        reset.is_some()
    });
    assert_eq!(reset, Some(0x10c));
    assert_eq!(client.ask("GET", "/", &[A], b"").status, 200);
}

/// Sends pieces on one of the client's own streams until the connection ends. Returns its code.
fn flood(rig: &Rig, stream: OwnStream, mut piece: impl FnMut(u64) -> Vec<u8>) -> u64 {
    let mut client = connect(rig);
    assert_eq!(client.ask("GET", "/small", &[A], b"").status, 200);
    for turn in 0..2_000 {
        client.push_own(stream, &piece(turn));
        client.exchange();
        if client.lost.is_some() {
            break;
        }
    }
    client.drive("end of the connection", |client| client.lost.is_some());
    code(&client.lost)
}

fn integer(value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    crate::raw::varint(&mut out, value);
    out
}

/// A frame of the control stream.
fn control(kind: u64, payload: &[u8]) -> Vec<u8> {
    [&integer(kind), &integer(payload.len() as u64), payload].concat()
}

#[test]
fn floods_on_the_control_stream_end_the_connection() {
    let rig = serve_big();
    endure(&rig, || {
        let update = |turn: u64| {
            let of = |at: u64| control(0xf0700, &[&integer(turn * 400 + at * 4)[..], b"u=1"].concat());
            (0..100).flat_map(of).collect()
        };
        assert_eq!(flood(&rig, OwnStream::Control, update), 0x107, "PRIORITY_UPDATE");
        let unknown = |_| control(0x21, b"").repeat(100);
        assert_eq!(flood(&rig, OwnStream::Control, unknown), 0x107, "unknown frames");
        let push = |turn: u64| control(0xd, &integer(turn)).repeat(100);
        assert_eq!(flood(&rig, OwnStream::Control, push), 0x107, "MAX_PUSH_ID");
        // Each is lower than the one before.
        let leaving = |turn: u64| {
            (0..100).flat_map(|at| control(7, &integer((1 << 40) - turn * 100 - at))).collect::<Vec<u8>>()
        };
        let mut client = connect(&rig);
        for turn in 0..2_000 {
            client.push_own(OwnStream::Control, &leaving(turn));
            client.exchange();
            if client.lost.is_some() {
                break;
            }
        }
        client.drive("end of the connection", |client| client.lost.is_some());
    });
}

/// RFC 9114 sections 5.2, 6.2.1 and 7.2.4.
#[test]
fn wrong_control_frames_end_the_connection_with_their_code() {
    let rig = serve_big();
    let second = |_| control(4, b"");
    assert_eq!(flood(&rig, OwnStream::Control, second), 0x105, "second SETTINGS");
    let raised = |_| [control(7, &integer(4)), control(7, &integer(8))].concat();
    assert_eq!(flood(&rig, OwnStream::Control, raised), 0x108, "GOAWAY raised");
    let large = |_| control(0xf0700, &vec![0; 5_000]);
    assert_eq!(flood(&rig, OwnStream::Control, large), 0x107, "large frame");
    let cancel = |_| control(3, &integer(0));
    assert_eq!(flood(&rig, OwnStream::Control, cancel), 0x108, "CANCEL_PUSH");
}

#[test]
fn floods_on_the_streams_of_qpack_end_the_connection() {
    let rig = serve_big();
    // Set the capacity to 4,096, then add an entry of 3,000 bytes again and again.
    let entry = [&[0x41, b'x', 0x7f, 0x99, 0x16][..], &[b'v'; 2_968]].concat();
    let adding = |turn| if turn == 0 { vec![0x3f, 0xe1, 0x1f] } else { entry.repeat(4) };
    let small = [0x41, b'x', 1, b'v'];
    let many = |turn| if turn == 0 { vec![0x3f, 0xe1, 0x1f] } else { small.repeat(1_000) };
    let twice = |turn| match turn {
        0 => vec![0x3f, 0xe1, 0x1f],
        1 => entry.clone(),
        _ => vec![0; 1_000],
    };
    endure(&rig, || {
        assert_eq!(flood(&rig, OwnStream::Encoder, adding), 0x107, "large entries");
        assert_eq!(flood(&rig, OwnStream::Encoder, many), 0x107, "small entries");
        assert_eq!(flood(&rig, OwnStream::Encoder, twice), 0x107, "duplicates");
    });
    assert_eq!(flood(&rig, OwnStream::Encoder, |_| vec![0x3f, 0xff, 0xff, 0x7f]), 0x201, "too large a table");
    assert_eq!(flood(&rig, OwnStream::Encoder, |_| vec![0x05]), 0x201, "duplicate of nothing");
    assert_eq!(flood(&rig, OwnStream::Decoder, |_| vec![0x80]), 0x202, "acknowledgement of nothing");
    assert_eq!(
        flood(&rig, OwnStream::Decoder, |_| vec![0x3f, 0x80, 0x80, 1]),
        0x202,
        "increment without entries"
    );
}

/// A HEADERS frame whose section needs an entry that the server does not have.
const BLOCKED: [u8; 5] = [1, 3, 101, 0, 0x80];

/// Opens a stream for a request when the server permits one.
fn open_stream(client: &mut H3Client) -> StreamId {
    let mut opened = None;
    client.drive("room for a stream", |client| {
        opened = client.quic.streams().open(Dir::Bi);
        opened.is_some()
    });
    opened.unwrap()
}

#[test]
fn more_blocked_streams_than_allowed_end_the_connection() {
    let rig = serve_files("timeouts = { head = \"1s\" }");
    endure(&rig, || {
        let mut client = connect(&rig);
        // The server's settings allow references once they have arrived.
        assert_eq!(client.ask("GET", "/small", &[A], b"").status, 200);
        let block = |client: &mut H3Client| {
            let id = open_stream(client);
            client.quic.send_stream(id).write(&BLOCKED).unwrap();
            client.exchange();
            id
        };
        let ids: Vec<_> = (0..16).map(|_| block(&mut client)).collect();
        let mut is_reset = vec![false; ids.len()];
        client.drive("resets of the blocked streams", |client| {
            for (at, id) in ids.iter().enumerate() {
                if let Ok(mut chunks) = client.quic.recv_stream(*id).read(true) {
                    is_reset[at] |= matches!(chunks.next(1), Err(quinn_proto::ReadError::Reset(_)));
                }
            }
            is_reset.iter().all(|reset| *reset)
        });
        assert_eq!(client.ask("GET", "/small", &[A], b"").status, 200, "their places are free again");
        for _ in 0..17 {
            block(&mut client);
        }
        client.drive("end of the connection", |client| client.lost.is_some());
        assert_eq!(code(&client.lost), 0x200);
    });
}

#[test]
fn frames_without_effect_on_a_request_end_the_connection() {
    let rig = serve_big();
    endure(&rig, || {
        for (what, frame) in [("unknown", &[0x21, 0][..]), ("empty DATA", &[0, 0])] {
            let mut client = connect(&rig);
            let id = client.open("POST", "/small", &[A]);
            for _ in 0..100 {
                client.push_raw(id, &frame.repeat(1_000));
                client.exchange();
            }
            client.drive("end of the connection", |client| client.lost.is_some());
            assert_eq!(code(&client.lost), 0x107, "{what}");
        }
    });
}

#[test]
fn huge_sections_are_answered_and_dropped() {
    let rig = serve_big();
    endure(&rig, || {
        let mut client = connect(&rig);
        // The places in the table are those of this test.
        client.push_own(OwnStream::Decoder, b"");
        for _ in 0..20 {
            let id = open_stream(&mut client);
            // 1 GiB, of which some arrives.
            let _ = client.quic.send_stream(id).write(&[1, 0xc0, 0, 0, 0, 0x40, 0, 0, 0]);
            for _ in 0..20 {
                let _ = client.quic.send_stream(id).write(&[0; 10_000]);
                client.exchange();
            }
            client.drive("answer", |client| {
                client
                    .quic
                    .recv_stream(id)
                    .read(true)
                    .is_ok_and(|mut chunks| !matches!(chunks.next(1), Err(quinn_proto::ReadError::Blocked)))
            });
            let _ = client.quic.send_stream(id).reset(VarInt::from_u32(0x10c));
        }
        assert_eq!(client.lost, None);
        // A field that the dynamic table repeats: 7 bytes that unpack to 28 KB.
        client.push_own(OwnStream::Encoder, &[0x3f, 0xe1, 0x1f]);
        let entry = [&[0x41, b'x', 0x7f, 0xa1, 0x1e][..], &[b'v'; 4_000]].concat();
        client.push_own(OwnStream::Encoder, &entry);
        let mut last = None;
        for _ in 0..100 {
            let Some(id) = client.quic.streams().open(Dir::Bi) else { break };
            let section = [&[2, 0][..], &[0x80; 1_000]].concat();
            let _ = client.quic.send_stream(id).write(&control(1, &section));
            client.exchange();
            last = Some(id);
        }
        let id = last.unwrap();
        client.drive("an answer", |client| {
            client.lost.is_some()
                || client
                    .quic
                    .recv_stream(id)
                    .read(true)
                    .is_ok_and(|mut chunks| !matches!(chunks.next(1), Err(quinn_proto::ReadError::Blocked)))
        });
    });
}

/// A client with small windows, whose connection lets nothing through after that.
fn client_without_room(rig: &Rig, bytes: u32) -> H3Client {
    let mut transport = TransportConfig::default();
    transport.receive_window(VarInt::from_u32(bytes));
    let mut client = H3Client::begin(rig.address, "a.test", client_config(&[b"h3"], transport));
    client.drive("the handshake", |client| client.is_connected);
    client.reads = false;
    client
}

#[test]
fn ten_thousand_requests_without_reading_hold_little() {
    let rig = serve_big();
    endure(&rig, || {
        let mut client = connect(&rig);
        client.reads = false;
        let mut open = Vec::new();
        let mut asked = 0;
        while asked < 10_000 && client.lost.is_none() {
            match client.quic.streams().open(Dir::Bi) {
                Some(id) => {
                    let _ = client.quic.send_stream(id).write(&crate::raw::get("/big"));
                    let _ = client.quic.send_stream(id).finish();
                    open.push(id);
                    asked += 1;
                }
                // The limit of streams: only those that are given up make room.
                None => open.drain(..).for_each(|id| {
                    _ = client.quic.recv_stream(id).stop(VarInt::from_u32(0x10c));
                }),
            }
            client.exchange();
        }
        assert!(asked > 1_000, "{asked}");
    });
}

#[test]
fn connection_windows_that_stay_closed_hold_little() {
    let rig = serve_files("timeouts = { write = \"1s\" }");
    endure(&rig, || {
        // A request holds 10 KiB until it ends, whatever its response: these 20 MiB together.
        let mut clients: Vec<H3Client> = (0..20).map(|_| client_without_room(&rig, 1_000)).collect();
        for client in &mut clients {
            (0..100).for_each(|_| _ = client.send("GET", "/big", &[A], b""));
        }
        // Acknowledgements alone do not keep them.
        eventually("the connections end", || {
            clients.iter_mut().for_each(H3Client::exchange);
            clients.iter().all(|client| client.lost.is_some())
        });
    });
}
