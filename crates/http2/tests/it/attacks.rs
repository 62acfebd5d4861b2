//! Memory and work that one peer can cause, measured: each attack ends with ENHANCE_YOUR_CALM before it costs
//! much, or its cost is bounded while it lasts; honest peers are not disconnected.

use crate::support::drive::{Conduct, Driven, Seen};
use crate::support::wire::*;
use http2::{ErrorCode, HpackEncoder, Options, PeerLimits, RequestLine};

/// Maximum memory of a connection's tables and buffers, without its streams.
const TABLES_BYTES: usize = 64 * 1024;

fn server(conduct: Conduct) -> Driven {
    let mut driven = Driven::server(Options::default(), conduct);
    driven.feed(&client_start());
    driven.seen.clear();
    driven
}

/// The cost of an attack.
struct Damage {
    /// Rounds until the connection ended.
    rounds: usize,
    /// Requests that reached handlers.
    requests: usize,
    /// Maximum memory held.
    held: usize,
    /// Bytes sent in response.
    sent: usize,
}

/// Feeds rounds of frames; panics if the connection survives `rounds_max` rounds.
fn attack(mut driven: Driven, rounds_max: usize, mut round: impl FnMut(usize) -> Vec<u8>) -> Damage {
    let mut sent = 0;
    let mut requests = 0;
    for at in 0..rounds_max {
        driven.feed(&round(at));
        sent += driven.out.len();
        driven.out.clear();
        requests += driven.seen.iter().filter(|seen| matches!(seen, Seen::Head { .. })).count();
        driven.seen.clear();
        if let Some(error) = driven.error {
            // An invalid frame on a refused stream may itself end the connection.
            let is_wrong = [
                "frame of a wrong length",
                "stream depends on itself",
                "window increment of 0",
                "HEADERS on a closed stream",
            ]
            .contains(&error.reason);
            assert!(is_wrong || error.code == ErrorCode::ENHANCE_YOUR_CALM, "{}", error.reason);
            return Damage { rounds: at, requests, held: driven.machine.held_bytes_peak(), sent };
        }
    }
    panic!("{rounds_max} rounds were accepted; credit {}", driven.machine.credit());
}

fn stream(at: usize) -> u32 {
    at as u32 * 2 + 1
}

/// CVE-2023-44487: requests that are reset immediately.
#[test]
fn rapid_reset_attack_is_bounded() {
    let round = |at| [get(stream(at)), frame(RST_STREAM, 0, stream(at), &[0, 0, 0, 8])].concat();
    let damage = attack(server(Conduct::Serves), 10_000, |at| {
        // A request that is answered immediately completes before the reset arrives; one with a body does
        // not.
        let id = stream(at);
        [post(id, &[]), frame(RST_STREAM, 0, id, &[0, 0, 0, 8])].concat()
    });
    assert!(damage.requests <= 500 && damage.held < TABLES_BYTES, "{} requests", damage.requests);
    // Answered, but the client cannot have received anything when it resets the stream.
    let damage = attack(server(Conduct::Serves), 10_000, round);
    assert!(damage.requests <= 500 && damage.held < TABLES_BYTES, "{} requests", damage.requests);
    // What was sent, a client may reset at any time.
    let mut sent = server(Conduct::Serves);
    for at in 0..10_000 {
        sent.feed(&get(stream(at)));
        sent.machine.mark_sent();
        sent.out.clear();
        sent.feed(&frame(RST_STREAM, 0, stream(at), &[0, 0, 0, 8]));
    }
    assert_eq!(sent.error, None);
    // Handlers that never finish: their number is bounded by the stream limit and some room.
    let damage = attack(server(Conduct::Keeps), 10_000, round);
    assert!(damage.requests <= 128 + 32 + 8, "{} requests", damage.requests);
    assert!(damage.held < (128 + 40) * 5 * 1024 + TABLES_BYTES, "{} bytes", damage.held);
}

/// CVE-2025-8671: requests that the server is made to reset.
#[test]
fn made_you_reset_attack_is_bounded() {
    for (name, offence) in [
        ("increment of 0", (|id| window_update(id, 0)) as fn(u32) -> Vec<u8>),
        ("window overflow", |id| window_update(id, 0x7fff_ffff)),
        ("DATA after the end", |id| frame(DATA, 0, id, b"x")),
        ("HEADERS after the end", |id| headers(id, END_STREAM, &[("x", "y")])),
        ("PRIORITY of a wrong length", |id| frame(PRIORITY, 0, id, &[0; 4])),
        ("dependence on itself", |id| frame(PRIORITY, 0, id, &[&id.to_be_bytes()[..], &[0]].concat())),
    ] {
        let damage =
            attack(server(Conduct::Keeps), 10_000, |at| [get(stream(at)), offence(stream(at))].concat());
        assert!(damage.requests <= 100, "{name}: {} requests", damage.requests);
    }
    let damage = attack(server(Conduct::Serves), 10_000, |at| {
        let length = [("content-length", "1")];
        [post(stream(at), &length), frame(DATA, END_STREAM, stream(at), b"12")].concat()
    });
    assert!(damage.requests <= 100);
}

#[test]
fn malformed_and_refused_requests_are_bounded() {
    let damage = attack(server(Conduct::Serves), 10_000, |at| headers(stream(at), END_STREAM, &GET[..2]));
    assert!(damage.rounds <= 100 && damage.requests == 0);
    let damage = attack(server(Conduct::Keeps), 10_000, |at| get(stream(at)));
    assert!(damage.requests == 128 && damage.rounds <= 128 + 500, "{} rounds", damage.rounds);
}

#[test]
fn continuation_floods_are_bounded() {
    let first = |at, rest| if at == 0 { frame(HEADERS, END_STREAM, 1, &block(&GET)) } else { rest };
    for (name, len, rounds) in [("full", 16_384, 3), ("one byte", 1, 2001), ("empty", 0, 101)] {
        let damage =
            attack(server(Conduct::Keeps), 10_000, |at| first(at, frame(CONTINUATION, 0, 1, &vec![0; len])));
        assert!(damage.rounds <= rounds, "{name}: {} rounds", damage.rounds);
        assert!(damage.held < TABLES_BYTES && damage.requests == 0, "{name}: {} bytes", damage.held);
    }
}

/// A table entry of 4,000 bytes, and requests that refer to it: each reference expands to 4,000 bytes.
fn bomb(encoder: &mut HpackEncoder, at: usize, references: usize) -> Vec<u8> {
    let mut payload = Vec::new();
    encoder.encode_block(&mut payload, GET.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())));
    if at == 0 {
        payload.extend(b"\x40\x01x\x7f\xa1\x1e");
        payload.extend([b'v'; 4000]);
    }
    payload.extend(vec![0xbe; references]);
    frame(HEADERS, END_STREAM | END_HEADERS, stream(at), &payload)
}

/// The HPACK bomb, and CVE-2026-49975: references that expand a thousandfold, with a window of 0 so that no
/// response is sent.
#[test]
fn hpack_bombs_use_bounded_memory() {
    for references in [3, 16, 12_000] {
        let mut driven = server(Conduct::Keeps);
        driven.feed(&settings(&[(4, 0)]));
        // The table holds only the bomb, so the rest of the head is sent as literals; the size update is not
        // sent.
        let mut encoder = HpackEncoder::default();
        encoder.set_table_bytes_max(0);
        encoder.encode_block(&mut Vec::new(), []);
        let damage = attack(driven, 10_000, |at| bomb(&mut encoder, at, references));
        let share = Options::default().peer_limits.held_bytes_max;
        assert!(damage.held <= share / 2 + 32 * 1024 + TABLES_BYTES, "{references}: {} bytes", damage.held);
        assert!(damage.rounds <= 800, "{references}: {} rounds", damage.rounds);
    }
}

#[test]
fn frames_without_progress_end_the_connection() {
    let update = |value: &[u8]| frame(PRIORITY_UPDATE, 0, 0, &[&[0, 0, 0, 1], value].concat());
    for (name, flood) in [
        ("PING", frame(PING, 0, 0, &[0; 8])),
        ("PING acknowledged unasked", frame(PING, ACK, 0, &[0; 8])),
        ("SETTINGS", settings(&[])),
        ("SETTINGS of many values", settings(&[(4, 100); 2000])),
        ("SETTINGS acknowledged again", frame(SETTINGS, ACK, 0, &[])),
        ("PRIORITY", frame(PRIORITY, 0, 1, &[0; 5])),
        ("PRIORITY_UPDATE", [update(b"u=1"), update(b"u=2")].concat()),
        ("WINDOW_UPDATE", window_update(0, 1)),
        ("WINDOW_UPDATE of a stream", window_update(1, 1)),
        ("empty DATA", frame(DATA, 0, 1, &[])),
        ("DATA of padding alone", frame(DATA, PADDED, 1, &[&[255][..], &[0; 255]].concat())),
        ("DATA with more padding than content", frame(DATA, PADDED, 1, &[&[255][..], &[0; 256]].concat())),
        ("GOAWAY", frame(GOAWAY, 0, 0, &[0; 8])),
        ("unknown frames", frame(77, 0, 0, &[0; 100])),
        ("RST_STREAM of a closed stream", frame(RST_STREAM, 0, 3, &[0; 4])),
    ] {
        let mut driven = server(Conduct::Keeps);
        driven.feed(&[post(1, &[]), get(3), frame(RST_STREAM, 0, 3, &[0; 4])].concat());
        let damage = attack(driven, 3000, |_| flood.clone());
        assert!(damage.rounds <= 2000, "{name}: {} rounds", damage.rounds);
        assert!(damage.held < TABLES_BYTES, "{name}: {} bytes", damage.held);
        assert!(damage.sent <= 2000 * 17 + 1000, "{name}: {} bytes sent", damage.sent);
    }
}

#[test]
fn unread_ping_acknowledgements_end_the_connection() {
    let options = Options {
        peer_limits: PeerLimits { credit_max: 1 << 30, ..PeerLimits::default() },
        ..Options::default()
    };
    let mut machine = http2::Machine::server(options);
    let flood: Vec<u8> = [client_start(), frame(PING, 0, 0, &[0; 8]).repeat(100_000)].concat();
    let mut at = 0;
    let error = loop {
        match machine.feed(&flood[at..], 0) {
            Ok((_, http2::Event::NeedMore)) => panic!("all were taken"),
            Ok((consumed, _)) => at += consumed,
            Err(error) => break error,
        }
    };
    assert_eq!((error.code, error.reason), (ErrorCode::ENHANCE_YOUR_CALM, "answers are not read"));
    assert!(machine.held_bytes() < 5 * TABLES_BYTES, "{}", machine.held_bytes());
}

/// Windows that stay closed: streams wait, no new ones begin, and the memory held for them is bounded.
#[test]
fn zero_window_stalls_use_bounded_memory() {
    let mut driven = server(Conduct::Keeps);
    driven.feed(&settings(&[(4, 0)]));
    for at in 0..128 {
        driven.feed(&get(stream(at)));
        drop(driven.machine.respond(stream(at), http::Status::OK, false, &mut driven.out));
        assert_eq!(driven.machine.data(stream(at), &[0; 1000], true, &mut driven.out), 0);
        driven.machine.charge(stream(at), 10_000);
    }
    let held = driven.machine.held_bytes();
    let streams = driven.machine.stream_count();
    assert!(
        held > 1 << 20 && held < (1 << 20) + 20_000 && streams > 70,
        "{held} bytes for {streams} streams"
    );
    driven.seen.clear();
    let damage = attack(driven, 10_000, |at| get(stream(128 + at)));
    assert_eq!(damage.requests, 0, "no new stream begins");
    // Windows opened byte by byte: each update costs credit and earns none.
    let mut driven = server(Conduct::Keeps);
    driven.feed(&[settings(&[(4, 0)]), get(1)].concat());
    drop(driven.machine.respond(1, http::Status::OK, false, &mut driven.out));
    let mut rounds = 0;
    while driven.error.is_none() {
        driven.feed(&window_update(1, 1));
        assert!(driven.machine.data(1, &[0; 1000], false, &mut driven.out) <= 1);
        rounds += 1;
    }
    assert!(rounds <= 2000, "{rounds}");
}

/// Memory that the caller charges to a peer counts too.
#[test]
fn charged_memory_above_the_share_ends_the_connection() {
    let mut driven = server(Conduct::Keeps);
    driven.feed(&get(1));
    driven.machine.charge(1, 2 << 20);
    driven.feed(&frame(PING, 0, 0, &[0; 8]));
    assert_eq!(driven.reason(), "too much held for the connection");
}

#[test]
fn hpack_table_size_churn_is_bounded() {
    // Each block empties the table, enlarges it again and fills it.
    let mut driven = server(Conduct::Serves);
    let churn = [
        &[0x20, 0x3f, 0xe1, 0x1f, 0x82, 0x86, 0x84][..],
        b"\x41\x06a.test",
        b"\x40\x01x\x7f\xa1\x1e",
        &[b'v'; 4000],
    ]
    .concat();
    for at in 0..1000 {
        driven.feed(&frame(HEADERS, END_STREAM | END_HEADERS, stream(at), &churn));
        assert!(driven.machine.held_bytes() < TABLES_BYTES, "{}", driven.machine.held_bytes());
    }
    assert_eq!(
        (driven.error, driven.machine.credit()),
        (None, 2000),
        "requests that are served cost no credit"
    );
    // Resizing the encoder's table by SETTINGS: each frame costs credit.
    let damage = attack(server(Conduct::Serves), 10_000, |at| settings(&[(1, at as u32 % 2 * 4096)]));
    assert!(damage.rounds <= 2000 && damage.held < TABLES_BYTES);
}

/// Resets, GOAWAY, late frames and releases in any order leave no memory held.
#[test]
fn races_of_resets_and_releases_leave_nothing_held() {
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let options = Options {
            peer_limits: PeerLimits { credit_max: 1 << 20, ..PeerLimits::default() },
            ..Options::default()
        };
        let mut driven = Driven::server(options, Conduct::Keeps);
        driven.feed(&client_start());
        let mut next = 0;
        for _ in 0..200 {
            let id = stream(random.usize(..next.max(1)));
            match random.u8(..14) {
                0..3 => {
                    driven.feed(&post(stream(next), &[]));
                    next += 1;
                }
                3 => drop(driven.feed(&frame(RST_STREAM, 0, id, &[0; 4]))),
                4 => drop(driven.feed(&frame(DATA, random.u8(..2), id, &vec![0; random.usize(..3000)]))),
                5 => drop(driven.feed(&headers(id, END_STREAM, &[("x", "y")]))),
                6 => drop(driven.feed(&window_update(id, random.u32(1..1000)))),
                7 => drop(driven.feed(&frame(DATA, 0, id, &[0; 3000])[..random.usize(9..3009)])),
                8 => driven.machine.reset(id, ErrorCode::CANCEL),
                9 => driven.answer(id),
                10 => driven.machine.grant(id, 0),
                11 => driven.machine.discard(id),
                12 if random.u8(..20) == 0 => driven.machine.shutdown(),
                13 if random.u8(..20) == 0 => driven.machine.finish_shutdown(),
                _ => _ = driven.machine.release(id),
            }
            if driven.error.is_some() {
                break;
            }
        }
        let ids: Vec<u32> = driven.machine.stream_ids().collect();
        ids.into_iter().for_each(|id| _ = driven.machine.release(id));
        driven.machine.flush(&mut driven.out);
        assert!(driven.machine.held_bytes() < 8 * 1024, "seed {seed}: {} bytes", driven.machine.held_bytes());
    }
}

#[test]
fn flood_of_informational_responses_is_bounded() {
    let line = RequestLine { method: b"GET", scheme: b"http", authority: b"a", path: b"/", protocol: None };
    let mut driven = Driven::client(Options::default());
    driven.feed(&server_start());
    drop(driven.machine.request(&line, true, &mut driven.out));
    let damage = attack(driven, 10_000, |_| headers(1, 0, &[(":status", "103"), ("link", "a")]));
    assert!(damage.rounds <= 2000);
}

/// Over half of its share, a peer may have one stream at a time and no window updates; below a quarter it
/// recovers.
#[test]
fn a_peer_is_slowed_and_recovers() {
    let mut driven = server(Conduct::Keeps);
    driven.feed(&[get(1), post(3, &[]), frame(DATA, 0, 3, &[0; 16_384]).repeat(3)].concat());
    driven.machine.charge(1, 1 << 20);
    driven.machine.grant(3, 3 * 16_384);
    assert!(!driven.machine.wants_flush(), "no window while it is slowed");
    driven.seen.clear();
    driven.feed(&get(5));
    assert!(driven.seen.is_empty());
    assert!(driven.sent().contains(&(RST_STREAM, 0, 5, ErrorCode::REFUSED_STREAM.0.to_be_bytes().to_vec())));
    driven.machine.uncharge(1, 1 << 20);
    driven.feed(&get(7));
    assert!(matches!(driven.seen[..], [Seen::Head { stream: 7, .. }]), "{:?}", driven.seen);
    assert!(driven.sent().contains(&(WINDOW_UPDATE, 0, 3, (3u32 * 16_384).to_be_bytes().to_vec())));
    // Without credit, a request is still served if it is the only one, and earns some.
    let mut driven = server(Conduct::Serves);
    driven.feed(&frame(PING, 0, 0, &[0; 8]).repeat(1900));
    for at in 0..120 {
        driven.feed(&get(stream(at)));
    }
    assert_eq!((driven.error, driven.machine.stream_count()), (None, 0));
    assert_eq!(driven.machine.credit(), 99 + 120 * 8);
}

/// Long-lived honest clients do not lose credit in the end.
#[test]
fn honest_clients_do_not_run_out_of_credit() {
    // Many requests, with the window updates and pings that libraries send.
    let mut driven = server(Conduct::Serves);
    for at in 0..20_000 {
        let id = stream(at);
        driven.feed(&[get(id), window_update(0, 2), frame(PING, 0, 0, &[0; 8])].concat());
        driven.seen.clear();
        driven.out.clear();
    }
    assert!(driven.error.is_none() && driven.machine.credit() >= 1998);
    // Every third request is cancelled.
    for at in 20_000..30_000 {
        let cancels = if at % 3 == 0 {
            frame(RST_STREAM, 0, stream(at), &[0, 0, 0, 8])
        } else {
            frame(DATA, 1, stream(at), b"x")
        };
        driven.feed(&[post(stream(at), &[]), cancels].concat());
        driven.seen.clear();
        driven.out.clear();
    }
    assert_eq!(driven.error, None);
    // A stream that lives for a day, with a ping every ten seconds.
    driven.feed(&post(stream(30_000), &[]));
    for at in 0..8640 {
        driven.now_ms = at * 10_000;
        driven.feed(&[frame(PING, 0, 0, &[0; 8]), frame(DATA, 0, stream(30_000), b"x")].concat());
    }
    assert_eq!(driven.error, None);
    // A large download whose client announces each frame on its own, for the stream and the connection.
    let mut driven = server(Conduct::Keeps);
    driven.feed(&get(1));
    drop(driven.machine.respond(1, http::Status::OK, false, &mut driven.out));
    for _ in 0..20_000 {
        let sent = driven.machine.data(1, &[0; 1000], false, &mut driven.out) as u32;
        driven.out.clear();
        driven.feed(&[window_update(0, sent), window_update(1, sent)].concat());
    }
    assert_eq!(driven.error, None);
    // A client that announces each 4 KiB of larger frames, as Go's does.
    let mut driven = server(Conduct::Keeps);
    driven.feed(&get(1));
    drop(driven.machine.respond(1, http::Status::OK, false, &mut driven.out));
    for _ in 0..5_000 {
        let sent = driven.machine.data(1, &[0; 16_384], false, &mut driven.out);
        driven.out.clear();
        for read in (0..sent).step_by(4096).map(|at| (sent - at).min(4096) as u32) {
            driven.feed(&[window_update(0, read), window_update(1, read)].concat());
        }
    }
    assert_eq!(driven.error, None);
}
