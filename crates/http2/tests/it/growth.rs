//! Windows that grow with the measured rate: a sender over a link with latency, simulated by round trips.

use crate::support::drive::{Conduct, Driven, Seen};
use crate::support::wire::*;
use http2::{HpackEncoder, Options};

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// A client that sends as much as its windows allow to a server one round trip away.
struct Sender {
    driven: Driven,
    /// Frames that the server sent in the last round trip.
    arriving: Vec<(u8, u8, u32, Vec<u8>)>,
    connection_window: usize,
    /// Streams and their windows.
    windows: Vec<(u32, usize)>,
    /// Whether the client reads everything that has arrived, and answers pings, before it sends.
    reads_first: bool,
}

impl Sender {
    fn new(growth_max: usize, streams: usize) -> Sender {
        let mut driven = Driven::server(Options::default(), Conduct::Serves);
        driven.machine.limit_growth(growth_max as u32);
        driven.feed(&client_start());
        let arriving = driven.sent();
        let windows = (0..streams).map(|at| (at as u32 * 2 + 1, 64 * KIB)).collect();
        let mut sender = Sender { driven, arriving, connection_window: 65_535, windows, reads_first: false };
        let posts: Vec<u8> = sender.windows.iter().flat_map(|(id, _)| post(*id, &[])).collect();
        sender.driven.feed(&posts);
        sender
    }

    /// Sends as much as the windows allow. Returns the number of bytes.
    fn send(&mut self) -> usize {
        let mut sent = 0;
        for (id, window) in &mut self.windows {
            loop {
                let len = (*window).min(self.connection_window).min(16_384);
                if len == 0 {
                    break;
                }
                self.driven.feed(&frame(DATA, 0, *id, &vec![0; len]));
                *window -= len;
                self.connection_window -= len;
                sent += len;
            }
        }
        sent
    }

    /// Simulates one round trip: processes the received frames in order. Returns the bytes of content sent.
    fn round(&mut self) -> usize {
        let mut sent = self.send();
        for (kind, flags, id, payload) in std::mem::take(&mut self.arriving) {
            match kind {
                WINDOW_UPDATE => {
                    let increment = u32::from_be_bytes(payload[..].try_into().unwrap()) as usize;
                    match self.windows.iter_mut().find(|(stream, _)| *stream == id) {
                        Some((_, window)) => *window += increment,
                        None => self.connection_window += increment,
                    }
                    sent += if self.reads_first { 0 } else { self.send() };
                }
                PING if flags & ACK == 0 => drop(self.driven.feed(&frame(PING, ACK, 0, &payload))),
                _ => {}
            }
        }
        sent += self.send();
        self.arriving = self.driven.sent();
        assert_eq!(self.driven.error, None);
        sent
    }

    /// Returns the bytes sent in the last of `rounds` round trips.
    fn after(&mut self, rounds: usize) -> usize {
        (0..rounds).map(|_| self.round()).last().unwrap()
    }
}

#[test]
fn upload_window_grows_to_fill_the_round_trip() {
    assert!(Sender::new(0, 1).after(30) <= 64 * KIB);
    let mut sender = Sender::new(4 * MIB, 1);
    let rates: Vec<usize> = (0..32).map(|_| sender.round()).collect();
    // Windows are announced by halves, so a part of them is always in flight.
    assert!(rates[16..].iter().sum::<usize>() >= 16 * 3 * MIB / 2, "{rates:?}");
    assert!(rates.iter().all(|&rate| rate <= 5 * MIB), "{rates:?}");
    assert_eq!(sender.driven.machine.window_size(1) as usize, 64 * KIB + 4 * MIB);
    assert_eq!(sender.driven.machine.window_size(0) as usize, 256 * KIB + 4 * MIB);
    // Content that a handler has not yet read may remain unread without harm.
    sender.driven.conduct = Conduct::Keeps;
    (0..4).for_each(|_| _ = sender.round());
    assert!(sender.driven.machine.held_bytes() > 3 * MIB);
}

#[test]
fn window_grows_for_a_client_that_answers_pings_first() {
    let mut sender = Sender { reads_first: true, ..Sender::new(4 * MIB, 1) };
    let rates: Vec<usize> = (0..40).map(|_| sender.round()).collect();
    assert!(rates[32..].iter().sum::<usize>() >= 8 * 3 * MIB / 2, "{rates:?}");
    assert_eq!(sender.driven.machine.window_size(1) as usize, 64 * KIB + 4 * MIB);
}

#[test]
fn streams_share_the_window_growth_of_the_connection() {
    let mut sender = Sender::new(MIB, 8);
    assert!(sender.after(40) >= MIB);
    let machine = &sender.driven.machine;
    let grown = |id| machine.window_size(id) as usize - 64 * KIB;
    assert!(machine.window_size(0) as usize <= 256 * KIB + MIB);
    assert!((0..8).map(|at| grown(at * 2 + 1)).sum::<usize>() <= MIB);
    // A stream that ends leaves its share of the growth to others.
    let mut sender = Sender::new(MIB, 1);
    sender.after(20);
    assert_eq!(sender.driven.machine.window_size(1) as usize, 64 * KIB + MIB);
    sender.driven.feed(&[frame(DATA, END_STREAM, 1, b""), post(3, &[])].concat());
    sender.windows = vec![(3, 64 * KIB)];
    sender.after(20);
    assert_eq!(sender.driven.machine.window_size(3) as usize, 64 * KIB + MIB);
}

#[test]
fn windows_shrink_while_memory_is_short() {
    let mut sender = Sender::new(2 * MIB, 1);
    assert!(sender.after(16) >= MIB);
    sender.driven.machine.limit_growth(0);
    // Credit already granted may still be used.
    sender.after(2);
    assert!(sender.after(20) <= 64 * KIB);
    assert_eq!(sender.driven.machine.window_size(0) as usize, 256 * KIB);
    sender.driven.machine.limit_growth(2 << 20);
    assert!(sender.after(20) >= MIB, "and grow again");
}

#[test]
fn small_bodies_cause_no_pings_and_slow_senders_cause_few() {
    let mut driven = Driven::server(Options::default(), Conduct::Serves);
    driven.machine.limit_growth(1 << 20);
    driven.feed(&client_start());
    driven.sent();
    let pings = |driven: &mut Driven| driven.sent().iter().filter(|frame| frame.0 == PING).count();
    for at in 0..10 {
        driven.feed(&[post(at * 2 + 1, &[]), frame(DATA, END_STREAM, at * 2 + 1, &[0; 3_000])].concat());
    }
    assert_eq!(pings(&mut driven), 0);
    // A client that sends less than its window per round trip is measured twice per window.
    driven.feed(&post(101, &[]));
    let mut asked = 0;
    for _ in 0..200 {
        driven.feed(&frame(DATA, 0, 101, &[0; 10_000]));
        asked += pings(&mut driven);
        driven.feed(&frame(PING, ACK, 0, b"windows?"));
    }
    assert!(asked > 0 && asked <= 2 * 2_000_000 / 65_536, "{asked}");
    assert_eq!(driven.machine.window_size(101), 64 * 1024);
}

/// Memory is released while the connection is idle, and the contents of the HPACK tables are kept.
#[test]
fn shrinking_an_idle_connection_keeps_its_hpack_tables() {
    let mut driven = Driven::server(Options::default(), Conduct::Serves);
    driven.feed(&client_start());
    let mut encoder = HpackEncoder::default();
    let mut request = |id: u32| {
        let mut payload = Vec::new();
        let fields = GET.iter().chain(&[("x-name", "a value that is worth an entry")]);
        encoder.encode_block(&mut payload, fields.map(|(name, value)| (name.as_bytes(), value.as_bytes())));
        frame(HEADERS, END_STREAM | END_HEADERS, id, &payload)
    };
    let requests: Vec<u8> = (0..50).flat_map(|at| request(at * 2 + 1)).collect();
    driven.feed(&requests);
    driven.sent();
    let before = driven.machine.own_bytes();
    driven.machine.shrink();
    assert!(driven.machine.own_bytes() < before, "{before}");
    let first = driven.seen[1].clone();
    let again = request(101);
    assert!(again.len() < 9 + 10, "it refers to the table");
    driven.seen.clear();
    driven.feed(&again);
    let fields = |seen: &Seen| match seen {
        Seen::Head { fields, .. } => fields.clone(),
        seen => panic!("{seen:?}"),
    };
    assert_eq!(fields(&driven.seen[0]), fields(&first));
    assert_eq!(driven.error, None);
}
