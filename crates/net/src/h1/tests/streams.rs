//! The toy protocol over a simulated network: many streams on one connection, with faults from a seed.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use times::Millis;

use super::rig::{BIG_BYTES, FILE_BYTES, Rig, pattern_bytes};
use crate::options::{Limits, Timeouts};
use crate::sim::{Dice, SimulatedWire};
use crate::toy::{ENDS, FRAME_HEAD_BYTES, Frame, FrameKind, PREFACE};

/// Timeout, to make a hanging test fail.
const PATIENCE: Duration = Duration::from_secs(60);

/// Received parts of a response.
#[derive(Default, Debug)]
struct ReceivedResponse {
    status: String,
    lines: String,
    body: Vec<u8>,
    trailers: String,
    ended: bool,
    reset: Option<u8>,
}

/// A client of the toy protocol.
struct ToyClient {
    wire: Rc<SimulatedWire>,
    unparsed: Vec<u8>,
    received: BTreeMap<u32, ReceivedResponse>,
    /// Sum of the server's window updates, by stream.
    granted: BTreeMap<u32, usize>,
    has_received_goaway: bool,
    /// Whether to update windows as soon as data is received.
    updates_windows: bool,
}

fn frame(kind: FrameKind, flags: u8, id: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    Frame { kind, flags, id, payload }.write(&mut bytes);
    bytes
}

fn window(id: u32, bytes: u32) -> Vec<u8> {
    frame(FrameKind::Window, 0, id, &bytes.to_be_bytes())
}

fn get(id: u32, target: &str) -> Vec<u8> {
    let head = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
    frame(FrameKind::Open, ENDS, id, head.as_bytes())
}

fn post(id: u32, target: &str) -> Vec<u8> {
    let head = format!("POST {target} HTTP/1.1\r\nHost: a\r\n\r\n");
    frame(FrameKind::Open, 0, id, head.as_bytes())
}

impl ToyClient {
    fn new(rig: &Rig, seed: u64) -> ToyClient {
        let wire = rig.connect(seed);
        wire.client_sends(PREFACE);
        ToyClient {
            wire,
            unparsed: Vec::new(),
            received: BTreeMap::new(),
            granted: BTreeMap::new(),
            has_received_goaway: false,
            updates_windows: true,
        }
    }

    fn send(&self, bytes: &[u8]) {
        self.wire.client_sends(bytes);
    }

    /// Parses received frames and updates the windows.
    fn read(&mut self) -> bool {
        self.unparsed.extend(self.wire.client_reads());
        let mut at = 0;
        let mut grants = Vec::new();
        while let Some((frame, len)) = Frame::read(&self.unparsed[at..]).unwrap() {
            at += len;
            let got = self.received.entry(frame.id).or_default();
            // The server may read the rest of the request after the response is complete.
            let may_follow = matches!(frame.kind, FrameKind::Reset | FrameKind::Window);
            assert!(!got.ended || may_follow || frame.id == 0, "{frame:?} after the end");
            let text = || String::from_utf8(frame.payload.to_vec()).unwrap();
            match frame.kind {
                FrameKind::Head => {
                    got.status = text()[..3].to_owned();
                    got.lines = text()[3..].to_owned();
                }
                FrameKind::Data => {
                    got.body.extend_from_slice(frame.payload);
                    if self.updates_windows && !frame.payload.is_empty() {
                        let len = frame.payload.len() as u32;
                        grants.extend([window(frame.id, len), window(0, len)].concat());
                    }
                }
                FrameKind::Trailers => got.trailers = text(),
                FrameKind::Reset => got.reset = Some(frame.payload[0]),
                FrameKind::Window => {
                    let bytes = u32::from_be_bytes(*frame.payload.first_chunk().unwrap());
                    *self.granted.entry(frame.id).or_default() += bytes as usize;
                }
                FrameKind::GoAway => self.has_received_goaway = true,
                _ => {}
            }
            let got = self.received.entry(frame.id).or_default();
            got.ended |= frame.flags & ENDS != 0;
        }
        self.unparsed.drain(..at);
        if !grants.is_empty() {
            self.send(&grants);
        }
        at > 0
    }

    /// Runs until `is_so` returns true; files are read by other threads, which take their time.
    fn run_until(&mut self, rig: &Rig, is_so: impl Fn(&ToyClient) -> bool) {
        let begun = Instant::now();
        loop {
            self.run_until_idle(rig);
            if is_so(self) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "it does not come about");
            std::thread::yield_now();
            rig.core.run_remote();
        }
    }

    /// Whether all of these streams have ended.
    fn have_ended(&self, ids: &[u32]) -> bool {
        ids.iter().all(|id| self.received.get(id).is_some_and(|got| got.ended))
    }

    /// Runs until nothing more happens.
    fn run_until_idle(&mut self, rig: &Rig) {
        loop {
            rig.run_until_idle();
            if !self.read() {
                return;
            }
        }
    }
}

fn rig_with_large_limits() -> Rig {
    let limits = Limits { streams_max: 2_000, ..Limits::default() };
    Rig::new(
        limits,
        Timeouts {
            head: Millis(4_000),
            body: Millis(2_000),
            write: Millis(3_000),
            idle: Millis(9_000),
            drain: Millis(5_000),
        },
    )
}

#[test]
fn stream_requests_are_served_like_ordinary_requests() {
    let rig = rig_with_large_limits();
    let mut client = ToyClient::new(&rig, 1);
    for (id, path) in
        [(1, "/fixed?1"), (3, "/chunked?2"), (5, "/file?7"), (7, "/nowhere"), (9, "/204"), (11, "/slow?1")]
    {
        client.send(&get(id, path));
    }
    client.run_until_idle(&rig);
    rig.advance_ms(1_000);
    client.run_until(&rig, |client| client.have_ended(&[1, 3, 5, 7, 9, 11]));
    let got = |id: u32| &client.received[&id];
    assert_eq!((&got(1).status[..], &got(1).body), ("200", &pattern_bytes(1, 20)));
    assert!(got(1).lines.contains("Content-Length: 20\r\n") && got(1).lines.contains("Date: "));
    assert!(!got(1).lines.contains("Connection"));
    assert_eq!(got(3).body, [pattern_bytes(2, 1), pattern_bytes(2, 10), pattern_bytes(2, 5_000)].concat());
    assert_eq!(got(3).trailers, "X-Number: 2\r\n");
    assert!(!got(3).lines.contains("Transfer-Encoding"));
    assert!(got(5).body == [pattern_bytes(7, 100), pattern_bytes(0, FILE_BYTES)[7..].to_vec()].concat());
    assert_eq!((&got(7).status[..], &got(9).status[..]), ("404", "204"));
    assert_eq!(got(11).body, pattern_bytes(1, 30));
    assert!([1, 3, 5, 7, 9, 11].iter().all(|id| got(*id).ended && got(*id).reset.is_none()));
    assert_eq!(rig.engine.context.counters.requests.value(), 6);
    client.wire.client_closes();
    rig.run_until_idle();
    rig.assert_empty();
}

/// Requests that are answered at once leave no stream behind by which the connection could seem busy.
#[test]
fn connection_in_use_is_not_closed_as_idle() {
    let rig = Rig::with_short_timeouts();
    let mut client = ToyClient::new(&rig, 1);
    for id in (1..=9).step_by(2) {
        client.send(&get(id, "/fixed?1"));
        client.run_until_idle(&rig);
        assert!(client.have_ended(&[id]), "stream {id} is answered");
        rig.advance_ms(6_000);
        client.run_until_idle(&rig);
        assert!(!client.has_received_goaway, "after stream {id}");
    }
    rig.advance_ms(9_500);
    client.run_until_idle(&rig);
    assert!(client.has_received_goaway, "an idle connection is closed");
    client.wire.client_closes();
    rig.run_until_idle();
    rig.assert_empty();
}

#[test]
fn reading_stream_bodies_replenishes_the_window() {
    let rig = rig_with_large_limits();
    let mut client = ToyClient::new(&rig, 2);
    client.send(&post(1, "/echo"));
    client.send(&post(3, "/swallow"));
    client.run_until_idle(&rig);
    let mut sent = Vec::new();
    let mut left = [64 * 1024usize; 2];
    for round in 0..200 {
        let piece = pattern_bytes(round, 5_000);
        if left[0] < piece.len() || left[1] < piece.len() {
            client.run_until_idle(&rig);
            left = [1, 3].map(|id| client.granted.remove(&id).unwrap_or(0) + left[id as usize / 2]);
        }
        for (at, id) in [1, 3].into_iter().enumerate() {
            client.send(&frame(FrameKind::Data, 0, id, &piece));
            left[at] -= piece.len();
        }
        sent.extend(piece);
    }
    client.send(&frame(FrameKind::Data, ENDS, 1, b""));
    client.send(&frame(FrameKind::Data, ENDS, 3, b""));
    client.run_until_idle(&rig);
    assert!(client.received[&1].body == sent);
    assert_eq!(client.received[&3].body, format!("{} bytes", sent.len()).into_bytes());
    assert!(client.granted.get(&0).is_some_and(|bytes| *bytes > 500_000), "{:?}", client.granted);
    client.wire.client_closes();
    rig.run_until_idle();
    rig.assert_empty();
}

#[test]
fn unread_stream_body_is_bounded_by_its_window() {
    let rig = rig_with_large_limits();
    let mut client = ToyClient::new(&rig, 3);
    client.send(&post(1, "/slow"));
    for _ in 0..13 {
        client.send(&frame(FrameKind::Data, 0, 1, &[b'x'; 5_000]));
    }
    client.run_until_idle(&rig);
    assert_eq!(rig.open_connections(), 1);
    client.send(&frame(FrameKind::Data, 0, 1, &[b'x'; 5_000]));
    client.run_until_idle(&rig);
    rig.advance_ms(1_000);
    assert_eq!(rig.open_connections(), 0, "who sends more than was granted is disconnected");
    rig.assert_empty();
}

#[test]
fn a_thousand_streams_share_a_connection() {
    let rig = rig_with_large_limits();
    let mut client = ToyClient::new(&rig, 4);
    client.send(&frame(FrameKind::FirstWindow, 0, 0, &1_000u32.to_be_bytes()));
    for n in 0..1_000 {
        client.send(&get(n * 2 + 1, &format!("/big?{n}")));
    }
    client.run_until_idle(&rig);
    for n in 0..1_000u32 {
        let got = &client.received[&(n * 2 + 1)];
        assert!(
            got.ended && got.body == pattern_bytes(u64::from(n), BIG_BYTES),
            "stream {n}: {} bytes",
            got.body.len()
        );
    }
    client.wire.client_closes();
    rig.run_until_idle();
    rig.assert_empty();
}

#[test]
fn incremental_streams_interleave_and_others_do_not() {
    let rig = rig_with_large_limits();
    let mut client = ToyClient::new(&rig, 5);
    client.updates_windows = false;
    client.wire.set_room(0);
    for (id, flags) in [(1, 3 << 4), (3, 3 << 4), (5, 1 << 4 | 8), (7, 1 << 4 | 8)] {
        let head = "GET /big?0 HTTP/1.1\r\nHost: a\r\n\r\n";
        client.send(&frame(FrameKind::Open, ENDS | flags, id, head.as_bytes()));
    }
    rig.run_until_idle();
    let mut order = Vec::new();
    client.wire.set_room(usize::MAX);
    rig.run_until_idle();
    let bytes = client.wire.client_reads();
    let mut at = 0;
    while let Some((frame, len)) = Frame::read(&bytes[at..]).unwrap() {
        at += len;
        if frame.kind == FrameKind::Data {
            order.push(frame.id);
        }
    }
    let first_of = |id: u32| order.iter().position(|other| *other == id).unwrap();
    let last_of = |id: u32| order.iter().rposition(|other| *other == id).unwrap();
    assert!(last_of(5) < first_of(7), "one after the other: {order:?}");
    assert!(first_of(1) < last_of(3) && first_of(3) < last_of(1), "in turns: {order:?}");
    assert_eq!(FRAME_HEAD_BYTES, 8);
    client.wire.client_resets();
    rig.run_until_idle();
    rig.assert_empty();
}

#[test]
fn a_stream_without_progress_is_reset_and_the_others_continue() {
    let rig = rig_with_large_limits();
    let mut client = ToyClient::new(&rig, 6);
    client.send(&frame(FrameKind::FirstWindow, 0, 0, &0u32.to_be_bytes()));
    client.send(&get(1, "/fixed?1"));
    client.send(&post(3, "/echo"));
    client.run_until_idle(&rig);
    assert_eq!((&client.received[&1].status[..], client.received[&1].body.len()), ("200", 0));
    client.send(&frame(FrameKind::FirstWindow, 0, 0, &1_000u32.to_be_bytes()));
    rig.advance_ms(2_500);
    client.send(&get(5, "/fixed?5"));
    client.run_until_idle(&rig);
    assert_eq!(
        (&client.received[&3].status[..], client.received[&3].ended),
        ("408", false),
        "no body within its time"
    );
    rig.advance_ms(5_000);
    client.run_until_idle(&rig);
    assert_eq!((client.received[&1].reset, client.received[&3].reset), (Some(3), Some(3)));
    assert_eq!((client.received[&5].ended, client.received[&5].reset), (true, None));
    rig.advance_ms(10_000);
    rig.assert_empty();
}

#[test]
fn rapidly_reset_streams_use_bounded_memory() {
    let limits = Limits { streams_max: 100, ..Limits::default() };
    let rig = Rig::new(limits, Timeouts::default());
    let client = ToyClient::new(&rig, 7);
    client.wire.set_room(0);
    let mut most = 0;
    let mut id = 1;
    'flood: for _ in 0..1_000 {
        let mut burst = Vec::new();
        for _ in 0..1_000 {
            burst.extend(get(id, "/big?1"));
            burst.extend(frame(FrameKind::Reset, 0, id, &[4]));
            id += 2;
        }
        client.send(&burst);
        while client.wire.unread() > 0 {
            let unread = client.wire.unread();
            rig.run_turn();
            rig.core.memory().publish_changes();
            most = most.max(rig.core.memory().budget().held_bytes());
            assert!(rig.core.running() <= 102, "{} tasks", rig.core.running());
            if client.wire.unread() == unread && !rig.core.has_ready() {
                // The server accepts no more until its client reads.
                break 'flood;
            }
        }
    }
    assert!(most < 3 * 1024 * 1024, "{most} bytes held");
    rig.advance_ms(60_000);
    rig.assert_empty();
}

/// A stream that both sides have ended, or one has reset, is closed for the client, although its task may
/// still run.
#[test]
fn client_within_the_stream_limit_is_never_refused() {
    let rig = Rig::new(Limits { streams_max: 2, ..Limits::default() }, Timeouts::default());
    let mut client = ToyClient::new(&rig, 7);
    client.send(&[get(1, "/works-on?1"), get(3, "/works-on?3")].concat());
    client.run_until_idle(&rig);
    assert!(client.have_ended(&[1, 3]));
    // The tasks of the first streams still run; as many more as the limit permits may begin.
    client.send(&[get(5, "/works-on?5"), get(7, "/works-on?7")].concat());
    client.run_until_idle(&rig);
    assert!(rig.core.running() <= 3, "{} tasks", rig.core.running());
    assert!(!client.have_ended(&[5]) && client.received.get(&5).is_none_or(|got| got.reset.is_none()));
    rig.advance_ms(1_000);
    client.run_until_idle(&rig);
    assert!(client.have_ended(&[5, 7]));
    rig.advance_ms(1_000);
    // A stream that was reset does not count either; one above the limit is refused.
    client.send(&[get(9, "/slow?9"), get(11, "/slow?11"), get(13, "/slow?13")].concat());
    client.send(&[frame(FrameKind::Reset, 0, 9, &[4]), get(15, "/slow?15")].concat());
    client.run_until_idle(&rig);
    rig.advance_ms(1_000);
    client.run_until_idle(&rig);
    assert_eq!(client.received[&13].reset, Some(1), "three at once are too many");
    assert!(client.have_ended(&[11, 15]));
    client.wire.client_closes();
    rig.advance_ms(1_000);
    rig.assert_empty();
}

#[test]
fn stopping_server_finishes_open_streams() {
    let rig = rig_with_large_limits();
    let mut client = ToyClient::new(&rig, 8);
    client.send(&get(1, "/slow?1"));
    client.run_until_idle(&rig);
    rig.engine.context.is_draining.set(true);
    rig.advance_ms(1_100);
    client.run_until_idle(&rig);
    assert!(client.has_received_goaway && client.received[&1].ended);
    assert_eq!(client.received[&1].body, pattern_bytes(1, 30));
    // The server does not wait for a client that does not close.
    rig.advance_ms(3_100);
    assert_eq!(rig.open_connections(), 0);
    rig.assert_empty();
}

#[test]
fn failing_handler_affects_only_its_own_stream() {
    let rig = rig_with_large_limits();
    let mut client = ToyClient::new(&rig, 9);
    for (id, path) in [
        (1, "/panic"),
        (3, "/cut"),
        (5, "/short"),
        (7, "/fail"),
        (9, "/silent"),
        (11, "/late-fail?1"),
        (13, "/fixed?1"),
    ] {
        client.send(&get(id, path));
    }
    client.run_until_idle(&rig);
    let status =
        |id: u32| (&client.received[&id].status[..], client.received[&id].ended, client.received[&id].reset);
    assert_eq!(
        (status(1), status(7), status(9)),
        (("500", true, None), ("500", true, None), ("500", true, None))
    );
    assert_eq!((status(3), status(5)), (("200", false, Some(3)), ("200", false, Some(3))));
    assert_eq!((status(11), status(13)), (("200", true, None), ("200", true, None)));
    client.wire.client_closes();
    rig.run_until_idle();
    rig.assert_empty();
}

/// Random streams, windows, resets, room and ends, from a seed. In all cases everything is released, complete
/// responses are correct, and memory is bounded by what the client may have sent and what it has not read.
#[test]
fn random_stream_operations_release_everything() {
    let paths = [
        "/fixed",
        "/chunked",
        "/big",
        "/file",
        "/slow",
        "/echo",
        "/swallow",
        "/offload",
        "/late-echo",
        "/cut",
        "/panic",
    ];
    for seed in 0..150 {
        let rig = rig_with_large_limits();
        let mut client = ToyClient::new(&rig, seed);
        let dice = Dice::new(seed ^ 0x70f);
        client.updates_windows = dice.once_in(2);
        let first = [0, 1, 1_000, 65_536][dice.below(4) as usize];
        client.send(&frame(FrameKind::FirstWindow, 0, 0, &u32::to_be_bytes(first)));
        let (mut next, mut bodies): (u32, BTreeMap<u32, usize>) = (1, BTreeMap::new());
        for _ in 0..300 {
            match dice.below(12) {
                0..=3 => {
                    let path = paths[dice.below(paths.len() as u64) as usize];
                    let posts = path.ends_with("echo") || path == "/swallow";
                    let target = format!("{path}?{next}");
                    client.send(&if posts { post(next, &target) } else { get(next, &target) });
                    if posts {
                        bodies.insert(next, 64 * 1024);
                    }
                    next += 2;
                }
                4..=6 => {
                    let Some((&id, left)) = bodies.iter_mut().nth(dice.below(1 + next as u64 / 8) as usize)
                    else {
                        continue;
                    };
                    *left += client.granted.remove(&id).unwrap_or(0);
                    let len = (dice.below(9_000) as usize).min(*left);
                    if len > 0 {
                        *left -= len;
                        client.send(&frame(FrameKind::Data, 0, id, &pattern_bytes(u64::from(id), len)));
                    } else {
                        client.send(&frame(FrameKind::Data, ENDS, id, b""));
                        bodies.remove(&id);
                    }
                }
                7 => {
                    let id = dice.below(u64::from(next)) as u32 | 1;
                    client.send(&frame(FrameKind::Reset, 0, id, &[4]));
                    bodies.remove(&id);
                }
                8 => client.send(&window(dice.below(u64::from(next)) as u32, dice.below(100_000) as u32)),
                9 => client.wire.set_room([0, 10, 10_000, usize::MAX][dice.below(4) as usize]),
                10 => rig.advance_ms(dice.below(500)),
                _ => {
                    rig.run_until_idle();
                    client.read();
                }
            }
            rig.core.memory().publish_changes();
            let held = rig.core.memory().budget().held_bytes() as usize;
            let streams = client.received.len().max(next as usize / 2) + 1;
            assert!(held < 512 * 1024 + streams * 250_000, "seed {seed}: {held} bytes for {streams} streams");
        }
        match dice.below(4) {
            0 => client.wire.client_resets(),
            1 => client.wire.client_closes(),
            2 => client.wire.client_half_closes(),
            _ => {}
        }
        let begun = Instant::now();
        while rig.core.tasks_alive() > 0 && begun.elapsed() < PATIENCE {
            rig.advance_ms(1_000);
            std::thread::yield_now();
            rig.core.run_remote();
        }
        rig.assert_empty();
        rig.core.memory().publish_changes();
        assert_eq!(rig.core.memory().budget().held_bytes(), 0, "seed {seed}");
        client.read();
        for (id, got) in &client.received {
            if got.ended && got.status == "200" && got.body.len() == BIG_BYTES {
                assert!(got.body == pattern_bytes(u64::from(*id), BIG_BYTES), "seed {seed}");
            }
        }
    }
}
