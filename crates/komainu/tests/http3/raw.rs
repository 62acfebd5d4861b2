//! A QUIC client that makes its packets by hand, so that each of them can be wrong: no recovery, no congestion
//! control, and acknowledgements only if wanted.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::quic::{ClientConnection, KeyChange, Keys, PacketKeySet, Secrets, Version};
use rustls::{Side, Tls13CipherSuite};

use crate::rig::{PATIENCE, any_certificate};

/// Size of the tag of a packet.
const TAG_BYTES: usize = 16;
/// Size of a datagram with an Initial packet (RFC 9000 section 14.1).
pub(crate) const INITIAL_BYTES: usize = 1200;
/// Bytes of the ClientHello in one packet.
const HELLO_PIECE_BYTES: usize = 1000;

/// Frame types (RFC 9000 section 19).
pub(crate) mod kind {
    pub(crate) const PING: u8 = 0x01;
    pub(crate) const ACK: u8 = 0x02;
    pub(crate) const RESET_STREAM: u8 = 0x04;
    pub(crate) const STOP_SENDING: u8 = 0x05;
    pub(crate) const CRYPTO: u8 = 0x06;
    pub(crate) const STREAM: u8 = 0x08;
    pub(crate) const NEW_CONNECTION_ID: u8 = 0x18;
    pub(crate) const RETIRE_CONNECTION_ID: u8 = 0x19;
    pub(crate) const PATH_CHALLENGE: u8 = 0x1a;
    pub(crate) const CLOSE: u8 = 0x1c;
}

/// The level of encryption of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Initial,
    Handshake,
    Data,
}

const LEVELS: [Level; 3] = [Level::Initial, Level::Handshake, Level::Data];

/// Packets of a level.
#[derive(Default)]
pub(crate) struct Space {
    keys: Option<Keys>,
    pub(crate) next: u64,
    /// Numbers of the packets received.
    pub(crate) received: Vec<u64>,
    is_to_acknowledge: bool,
    /// Handshake data that was received and not read: by offset.
    crypto: BTreeMap<u64, Vec<u8>>,
    crypto_read: u64,
    crypto_sent: u64,
}

/// A connection.
pub(crate) struct RawClient {
    pub(crate) socket: UdpSocket,
    pub(crate) server: SocketAddr,
    own: [u8; 8],
    /// The identifier of the server that packets name.
    pub(crate) peer: Vec<u8>,
    token: Vec<u8>,
    pub(crate) spaces: [Space; 3],
    tls: ClientConnection,
    /// Keys of the next phase, and the bit of this one (RFC 9001 section 6).
    next: Option<Secrets>,
    next_keys: Option<PacketKeySet>,
    phase: u8,
    /// The ClientHello.
    pub(crate) hello: Vec<u8>,
    pub(crate) acknowledges: bool,
    /// Code of the server's close, and whether it was HTTP/3 that closed.
    pub(crate) closed: Option<(u64, bool)>,
    /// Whether 1-RTT keys are there, and whether the server has confirmed the handshake.
    pub(crate) is_complete: bool,
    is_confirmed: bool,
    /// The frame with Finished.
    finished: Vec<u8>,
    pub(crate) has_retried: bool,
    pub(crate) received_bytes: usize,
    pub(crate) stream_bytes: u64,
    pub(crate) challenges: u64,
    /// Number of requests that the server permits.
    pub(crate) streams_max: u64,
    /// Identifiers that the server has given, by their numbers.
    pub(crate) identifiers: BTreeMap<u64, Vec<u8>>,
}

/// The most that the server may send, as transport parameters.
#[derive(Clone, Copy)]
pub(crate) struct Windows {
    pub(crate) data: u64,
    pub(crate) stream: u64,
}

impl Default for Windows {
    fn default() -> Windows {
        Windows { data: 1 << 30, stream: 1 << 30 }
    }
}

pub(crate) fn varint(out: &mut Vec<u8>, value: u64) {
    match value {
        0..0x40 => out.push(value as u8),
        0x40..0x4000 => out.extend((value as u16 | 0x4000).to_be_bytes()),
        0x4000..0x4000_0000 => out.extend((value as u32 | 0x8000_0000).to_be_bytes()),
        _ => out.extend((value | 0xc000_0000_0000_0000).to_be_bytes()),
    }
}

/// A frame of integers.
pub(crate) fn frame(kind: u8, values: &[u64]) -> Vec<u8> {
    let mut out = vec![kind];
    values.iter().for_each(|value| varint(&mut out, *value));
    out
}

pub(crate) fn crypto(offset: u64, bytes: &[u8]) -> Vec<u8> {
    [&frame(kind::CRYPTO, &[offset, bytes.len() as u64]), bytes].concat()
}

pub(crate) fn stream(id: u64, offset: u64, bytes: &[u8], ends: bool) -> Vec<u8> {
    [&frame(kind::STREAM | 6 | u8::from(ends), &[id, offset, bytes.len() as u64]), bytes].concat()
}

/// A HEADERS frame with a GET request for a path on `a.test`.
pub(crate) fn get(path: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut http = http3::Connection::client(http3::Options::default());
    http.write_section(0, &mut out, |section| {
        section.pseudo(b":method", b"GET");
        section.pseudo(b":scheme", b"https");
        section.pseudo(b":authority", b"a.test");
        section.pseudo(b":path", path.as_bytes());
    });
    out
}

struct Input<'b>(&'b [u8]);

impl<'b> Input<'b> {
    fn take(&mut self, len: usize) -> &'b [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn varint(&mut self) -> u64 {
        let len = 1 << (self.0[0] >> 6);
        let bytes = self.take(len);
        bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)) & !(3 << (8 * len - 2))
    }
}

fn suite() -> rustls::quic::Suite {
    let suite = rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
    let suite: &'static Tls13CipherSuite = suite.tls13().unwrap();
    suite.quic_suite().unwrap()
}

impl RawClient {
    /// Prepares a connection; nothing is sent.
    pub(crate) fn new(server: SocketAddr, windows: Windows) -> RawClient {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(any_certificate())
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h3".to_vec()];
        let mut random = fastrand::Rng::new();
        let own: [u8; 8] = std::array::from_fn(|_| random.u8(..));
        let peer: Vec<u8> = (0..8).map(|_| random.u8(..)).collect();
        let mut parameters = Vec::new();
        let mut add = |id: u64, value: &[u8]| {
            varint(&mut parameters, id);
            varint(&mut parameters, value.len() as u64);
            parameters.extend_from_slice(value);
        };
        let number = |value| {
            let mut out = Vec::new();
            varint(&mut out, value);
            out
        };
        add(0x0f, &own);
        add(0x04, &number(windows.data));
        [0x05, 0x06, 0x07].into_iter().for_each(|id| add(id, &number(windows.stream)));
        [0x08, 0x09].into_iter().for_each(|id| add(id, &number(100)));
        add(0x0e, &number(8));
        let name = ServerName::try_from("a.test").unwrap();
        let mut tls = ClientConnection::new(Arc::new(config), Version::V1, name, parameters).unwrap();
        let mut hello = Vec::new();
        assert!(tls.write_hs(&mut hello).is_none());
        let mut client = RawClient {
            socket: UdpSocket::bind("127.0.0.1:0").unwrap(),
            server,
            own,
            peer,
            token: Vec::new(),
            spaces: Default::default(),
            tls,
            next: None,
            next_keys: None,
            phase: 0,
            hello,
            acknowledges: true,
            closed: None,
            is_complete: false,
            is_confirmed: false,
            finished: Vec::new(),
            has_retried: false,
            received_bytes: 0,
            stream_bytes: 0,
            challenges: 0,
            streams_max: 32,
            identifiers: BTreeMap::new(),
        };
        client.take_initial_keys();
        client
    }

    /// Connects.
    pub(crate) fn connect(server: SocketAddr) -> RawClient {
        RawClient::connect_with(server, Windows::default())
    }

    pub(crate) fn connect_with(server: SocketAddr, windows: Windows) -> RawClient {
        let mut client = RawClient::new(server, windows);
        client.send_hello();
        client.finish_handshake();
        // The control stream, with empty SETTINGS.
        let control = stream(2, 0, &[0, 4, 0], false);
        client.send_frames(&control);
        client
    }

    pub(crate) fn send_hello(&mut self) {
        let hello = self.hello.clone();
        for (at, piece) in hello.chunks(HELLO_PIECE_BYTES).enumerate() {
            let frames = crypto((at * HELLO_PIECE_BYTES) as u64, piece);
            let datagram = self.initial(&frames);
            self.send(&datagram);
        }
        self.spaces[0].crypto_sent = hello.len() as u64;
    }

    /// Receives until the handshake is complete.
    pub(crate) fn finish_handshake(&mut self) {
        let until = Instant::now() + PATIENCE;
        while !self.is_confirmed {
            assert!(Instant::now() < until && self.closed.is_none(), "no handshake: {:?}", self.closed);
            if self.receive(Duration::from_millis(500)) {
                continue;
            }
            // A packet was lost.
            if self.spaces[1].keys.is_none() {
                self.send_hello();
            } else if self.is_complete {
                let finished = self.finished.clone();
                let packet = self.packet(Level::Handshake, &finished);
                self.send(&packet);
            }
        }
    }

    /// Makes Initial packets as they come from `count` clients that all name this token, which the server has not given.
    pub(crate) fn forged_initials(server: SocketAddr, token: &[u8], count: u64) -> Vec<Vec<u8>> {
        let mut client = RawClient::new(server, Windows::default());
        client.token = token.to_vec();
        let frames = crypto(0, &client.hello[..HELLO_PIECE_BYTES.min(client.hello.len())]);
        let forge = |number: u64| {
            client.peer = number.to_be_bytes().to_vec();
            client.take_initial_keys();
            client.initial(&frames)
        };
        (1 << 40..(1 << 40) + count).map(forge).collect()
    }

    fn take_initial_keys(&mut self) {
        self.spaces[0].keys = Some(suite().keys(&self.peer, Side::Client, Version::V1));
    }

    /// Makes a packet with these frames.
    pub(crate) fn packet(&mut self, level: Level, frames: &[u8]) -> Vec<u8> {
        let number = self.spaces[level as usize].next;
        self.spaces[level as usize].next += 1;
        self.numbered(level, number, frames)
    }

    fn numbered(&mut self, level: Level, number: u64, frames: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        match level {
            Level::Data => {
                out.push(0x43 | self.phase << 2);
                out.extend_from_slice(&self.peer);
            }
            Level::Initial | Level::Handshake => {
                out.push(if level == Level::Initial { 0xc3 } else { 0xe3 });
                out.extend([0, 0, 0, 1]);
                out.push(self.peer.len() as u8);
                out.extend_from_slice(&self.peer);
                out.push(self.own.len() as u8);
                out.extend_from_slice(&self.own);
                if level == Level::Initial {
                    varint(&mut out, self.token.len() as u64);
                    out.extend_from_slice(&self.token);
                }
                let len = 4 + frames.len() + TAG_BYTES;
                out.extend((len as u16 | 0x4000).to_be_bytes());
            }
        }
        let number_at = out.len();
        out.extend((number as u32).to_be_bytes());
        let header_bytes = out.len();
        out.extend_from_slice(frames);
        let keys = self.spaces[level as usize].keys.as_ref().unwrap();
        let (header, payload) = out.split_at_mut(header_bytes);
        let tag = keys.local.packet.encrypt_in_place(number, header, payload).unwrap();
        out.extend_from_slice(tag.as_ref());
        let (front, sample) = out.split_at_mut(header_bytes);
        let (first, rest) = front.split_first_mut().unwrap();
        let number = &mut rest[number_at - 1..];
        keys.local.header.encrypt_in_place(&sample[..TAG_BYTES], first, number).unwrap();
        out
    }

    /// Makes a datagram with an Initial packet of the size that servers demand.
    pub(crate) fn initial(&mut self, frames: &[u8]) -> Vec<u8> {
        let token_length = if self.token.len() < 0x40 { 1 } else { 2 };
        let header =
            1 + 4 + 1 + self.peer.len() + 1 + self.own.len() + token_length + self.token.len() + 2 + 4;
        let mut padded = frames.to_vec();
        padded.resize(padded.len().max(INITIAL_BYTES.saturating_sub(header + TAG_BYTES)), 0);
        self.packet(Level::Initial, &padded)
    }

    pub(crate) fn send(&self, datagram: &[u8]) {
        // A packet for which there is no room counts as lost.
        let _ = self.socket.send_to(datagram, self.server);
    }

    /// Sends frames in a packet of the established connection.
    pub(crate) fn send_frames(&mut self, frames: &[u8]) {
        let packet = self.packet(Level::Data, frames);
        self.send(&packet);
    }

    /// Continues from another port.
    pub(crate) fn rebind(&mut self) {
        self.socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    }

    /// Receives a datagram. Returns false if none arrives in time.
    pub(crate) fn receive(&mut self, wait: Duration) -> bool {
        self.socket.set_read_timeout(Some(wait.max(Duration::from_millis(1)))).unwrap();
        let mut buffer = [0; 2048];
        let Ok(len) = self.socket.recv(&mut buffer) else { return false };
        self.received_bytes += len;
        self.take_datagram(&mut buffer[..len]);
        if self.acknowledges {
            self.acknowledge();
        }
        true
    }

    /// Receives what there is.
    pub(crate) fn receive_all(&mut self) {
        while self.receive(Duration::from_millis(1)) {}
    }

    /// Sends datagrams until the server has ended the connection: some may be lost. Returns the code, and whether it
    /// is one of HTTP/3.
    pub(crate) fn send_until_closed(
        &mut self,
        mut make: impl FnMut(&mut RawClient) -> Vec<u8>,
    ) -> (u64, bool) {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(closed) = self.closed {
                return closed;
            }
            assert!(
                Instant::now() < until,
                "still open: {} sent, {:?} received",
                self.spaces[2].next,
                self.spaces[2].received.last()
            );
            let datagram = make(self);
            self.send(&datagram);
            self.receive(Duration::from_millis(100));
        }
    }

    /// Sends frames until the server has ended the connection.
    pub(crate) fn ended_by(&mut self, frames: &[u8]) -> (u64, bool) {
        self.send_until_closed(|client| client.packet(Level::Data, frames))
    }

    fn acknowledge(&mut self) {
        for level in LEVELS {
            let space = &mut self.spaces[level as usize];
            if !std::mem::take(&mut space.is_to_acknowledge) || space.keys.is_none() {
                continue;
            }
            let frames = acknowledgement(&space.received);
            // A server that has confirmed the handshake drops packets of the levels before.
            let datagram = match level {
                Level::Initial => self.initial(&frames),
                _ => self.packet(level, &frames),
            };
            self.send(&datagram);
        }
    }

    fn take_datagram(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            let len = self.take_packet(bytes).unwrap_or(bytes.len());
            bytes = &mut bytes[len..];
        }
    }

    /// Processes a packet. Returns its length; `None` if it is the last, or not understood.
    fn take_packet(&mut self, bytes: &mut [u8]) -> Option<usize> {
        let first = bytes[0];
        if first & 0x80 == 0 {
            let len = bytes.len();
            self.open(Level::Data, &mut bytes[..len], 1 + self.own.len());
            return None;
        }
        let mut input = Input(&bytes[5..]);
        let len = usize::from(input.take(1)[0]);
        input.take(len);
        let len = usize::from(input.take(1)[0]);
        let source = input.take(len).to_vec();
        if bytes[1..5] == [0; 4] {
            return None;
        }
        let level = match first >> 4 & 3 {
            0 => Level::Initial,
            2 => Level::Handshake,
            _ => {
                // Retry: its token is between the identifiers and the tag.
                self.token = input.0[..input.0.len() - TAG_BYTES].to_vec();
                self.peer = source;
                self.has_retried = true;
                self.take_initial_keys();
                self.send_hello();
                return None;
            }
        };
        if level == Level::Initial {
            let len = input.varint() as usize;
            input.take(len);
        }
        let rest = input.varint() as usize;
        let number_at = bytes.len() - input.0.len();
        self.peer = source;
        self.open(level, &mut bytes[..number_at + rest], number_at);
        Some(number_at + rest)
    }

    /// Decrypts a packet and processes its frames.
    fn open(&mut self, level: Level, packet: &mut [u8], number_at: usize) {
        let Some(keys) = &self.spaces[level as usize].keys else { return };
        if packet.len() < number_at + 4 + TAG_BYTES {
            return;
        }
        let (front, sample) = packet.split_at_mut(number_at + 4);
        let (first, rest) = front.split_first_mut().unwrap();
        let number = &mut rest[number_at - 1..];
        if keys.remote.header.decrypt_in_place(&sample[..TAG_BYTES], first, number).is_err() {
            return;
        }
        let number_bytes = usize::from(packet[0] & 3) + 1;
        let header_bytes = number_at + number_bytes;
        let short =
            packet[number_at..header_bytes].iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
        let expected = self.spaces[level as usize].received.last().map_or(0, |last| last + 1);
        let number = whole_number(short, number_bytes, expected);
        let (header, payload) = packet.split_at_mut(header_bytes);
        let is_next = level == Level::Data && header[0] >> 2 & 1 != self.phase;
        if is_next && self.next_keys.is_none() {
            self.next_keys = self.next.as_mut().map(Secrets::next_packet_keys);
        }
        let next = self.next_keys.as_ref().filter(|_| is_next);
        let remote = next.map_or(&keys.remote.packet, |next| &next.remote);
        let Ok(frames) = remote.decrypt_in_place(number, header, payload) else { return };
        let frames = frames.to_vec();
        if let Some(next) = self.next_keys.take_if(|_| is_next) {
            self.phase ^= 1;
            let keys = self.spaces[level as usize].keys.as_mut().unwrap();
            (keys.local.packet, keys.remote.packet) = (next.local, next.remote);
        }
        let space = &mut self.spaces[level as usize];
        match space.received.binary_search(&number) {
            Ok(_) => return,
            Err(at) => space.received.insert(at, number),
        }
        self.take_frames(level, &frames);
    }

    fn take_frames(&mut self, level: Level, frames: &[u8]) {
        let mut input = Input(frames);
        while !input.0.is_empty() {
            let kind = input.varint();
            if !matches!(kind, 0 | 2 | 3 | 0x1c | 0x1d) {
                self.spaces[level as usize].is_to_acknowledge = true;
            }
            match kind {
                0 | 1 => {}
                0x1e => self.is_confirmed = true,
                2 | 3 => {
                    input.varint();
                    input.varint();
                    let ranges = input.varint();
                    let counts = if kind == 3 { 3 } else { 0 };
                    (0..1 + 2 * ranges + counts).for_each(|_| _ = input.varint());
                }
                4 => (0..3).for_each(|_| _ = input.varint()),
                5 | 0x11 | 0x15 => (0..2).for_each(|_| _ = input.varint()),
                6 => {
                    let offset = input.varint();
                    let len = input.varint() as usize;
                    let bytes = input.take(len).to_vec();
                    self.spaces[level as usize].crypto.insert(offset, bytes);
                    self.read_crypto();
                }
                7 => {
                    let len = input.varint() as usize;
                    input.take(len);
                }
                8..=15 => {
                    input.varint();
                    if kind & 4 != 0 {
                        input.varint();
                    }
                    let len = if kind & 2 != 0 { input.varint() as usize } else { input.0.len() };
                    self.stream_bytes += input.take(len).len() as u64;
                }
                0x12 => self.streams_max = input.varint(),
                0x10 | 0x13 | 0x14 | 0x16 | 0x17 | 0x19 => _ = input.varint(),
                0x18 => {
                    let number = input.varint();
                    input.varint();
                    let len = usize::from(input.take(1)[0]);
                    self.identifiers.insert(number, input.take(len).to_vec());
                    input.take(16);
                }
                0x1a => {
                    self.challenges += 1;
                    let mut answer = vec![0x1b];
                    answer.extend_from_slice(input.take(8));
                    self.send_frames(&answer);
                }
                0x1b => _ = input.take(8),
                0x1c | 0x1d => {
                    self.closed = Some((input.varint(), kind == 0x1d));
                    return;
                }
                other => panic!("frame {other:#x}"),
            }
        }
    }

    /// Gives TLS the handshake data that is complete, and sends its answers.
    fn read_crypto(&mut self) {
        for level in LEVELS {
            let space = &mut self.spaces[level as usize];
            while let Some((&offset, _)) =
                space.crypto.first_key_value().filter(|(at, _)| **at <= space.crypto_read)
            {
                let bytes = space.crypto.remove(&offset).unwrap();
                let known = ((space.crypto_read - offset) as usize).min(bytes.len());
                self.tls.read_hs(&bytes[known..]).unwrap();
                space.crypto_read += (bytes.len() - known) as u64;
            }
        }
        let mut level = if self.spaces[1].keys.is_none() { Level::Initial } else { Level::Handshake };
        loop {
            let mut out = Vec::new();
            let change = self.tls.write_hs(&mut out);
            if !out.is_empty() && !self.is_complete {
                let space = &mut self.spaces[level as usize];
                let frames = crypto(space.crypto_sent, &out);
                space.crypto_sent += out.len() as u64;
                self.finished = frames.clone();
                let packet = self.packet(level, &frames);
                self.send(&packet);
            }
            match change {
                Some(KeyChange::Handshake { keys }) => {
                    self.spaces[1].keys = Some(keys);
                    level = Level::Handshake;
                }
                Some(KeyChange::OneRtt { keys, next }) => {
                    self.next = Some(next);
                    self.spaces[2].keys = Some(keys);
                    self.is_complete = true;
                }
                None => return,
            }
        }
    }
}

/// An ACK frame for these numbers, which are sorted.
pub(crate) fn acknowledgement(numbers: &[u64]) -> Vec<u8> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for &number in numbers.iter().rev() {
        if let Some((lowest, _)) = ranges.last_mut().filter(|(lowest, _)| *lowest == number + 1) {
            *lowest = number;
        } else if ranges.len() == 16 {
            break;
        } else {
            ranges.push((number, number));
        }
    }
    let Some(&(lowest, highest)) = ranges.first() else { return Vec::new() };
    let mut values = vec![highest, 0, ranges.len() as u64 - 1, highest - lowest];
    for pair in ranges.windows(2) {
        values.extend([pair[0].0 - pair[1].1 - 2, pair[1].1 - pair[1].0]);
    }
    frame(kind::ACK, &values)
}

/// RFC 9000 section A.3.
fn whole_number(short: u64, bytes: usize, expected: u64) -> u64 {
    let window = 1u64 << (8 * bytes);
    let candidate = expected & !(window - 1) | short;
    if candidate + window / 2 <= expected {
        candidate + window
    } else if candidate > expected + window / 2 && candidate >= window {
        candidate - window
    } else {
        candidate
    }
}
