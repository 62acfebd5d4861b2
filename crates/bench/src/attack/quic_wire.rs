//! Encoding of attack traffic for HTTP/3: frames, field sections and Initial packets written by hand.

use failure::Failure;
use http3::OwnStream;
use http3::frame::{Http3FrameHeader, kind};
use net::TlsClient;
use rustls::quic::{ClientConnection, Keys, Suite, Version};
use rustls::{CipherSuite, Side};

use super::wire::{AttackTarget, push_integer, push_string};

/// Version 1 of QUIC (RFC 9000).
pub const QUIC_1: u32 = 1;
/// Size of a datagram with an Initial packet, below which servers ignore it (RFC 9000 section 14.1).
pub const INITIAL_BYTES: usize = 1_200;
/// Size of the dynamic table that the attacks use, which most servers allow.
pub const TABLE_BYTES: usize = 4_096;
/// Size of a packet number as it is written.
const NUMBER_BYTES: usize = 4;
/// Size of the authentication tag of a packet.
const TAG_BYTES: usize = 16;

/// Indexes of QPACK's static table (RFC 9204 appendix A).
mod field {
    pub(super) const AUTHORITY: usize = 0;
    pub(super) const PATH: usize = 1;
    pub(super) const METHOD_GET: u8 = 17;
    pub(super) const METHOD_POST: u8 = 20;
    pub(super) const SCHEME_HTTPS: u8 = 23;
}

/// Appends an integer below 2^30 in QUIC's encoding (RFC 9000 section 16).
pub fn push_varint(out: &mut Vec<u8>, value: u32) {
    match value {
        0..0x40 => out.push(value as u8),
        0x40..0x4000 => out.extend((value as u16 | 0x4000).to_be_bytes()),
        _ => out.extend((value | 0x8000_0000).to_be_bytes()),
    }
}

/// Encodes a frame of HTTP/3.
#[must_use]
pub fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = begin_frame(kind, payload.len());
    out.extend_from_slice(payload);
    out
}

/// Encodes the header of a frame whose payload has `len` bytes.
#[must_use]
pub fn begin_frame(kind: u64, len: usize) -> Vec<u8> {
    let mut out = Vec::new();
    Http3FrameHeader { kind, len: len as u64 }.write(&mut out);
    out
}

/// Encodes a frame whose payload is one integer below 2^30.
#[must_use]
pub fn integer_frame(kind: u64, value: u32) -> Vec<u8> {
    let mut payload = Vec::new();
    push_varint(&mut payload, value);
    frame(kind, &payload)
}

/// Returns the first bytes of one of the client's own streams: its type, and on the control stream SETTINGS.
#[must_use]
pub fn stream_start(stream: OwnStream) -> Vec<u8> {
    match stream {
        OwnStream::Control => [vec![0], frame(kind::SETTINGS, &[])].concat(),
        OwnStream::Encoder => vec![2],
        OwnStream::Decoder => vec![3],
    }
}

/// Encodes the instruction that sets the size of the dynamic table.
#[must_use]
pub fn set_capacity(bytes: usize) -> Vec<u8> {
    let mut out = Vec::new();
    push_integer(&mut out, 0x20, 5, bytes);
    out
}

/// Encodes the instruction that adds a field to the dynamic table.
#[must_use]
pub fn insert(name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    push_integer(&mut out, 0x40, 5, name.len());
    out.extend_from_slice(name);
    push_string(&mut out, value);
    out
}

/// Appends a field that refers to no table.
pub fn push_literal(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    push_integer(out, 0x20, 3, name.len());
    out.extend_from_slice(name);
    push_string(out, value);
}

impl AttackTarget {
    /// Encodes the field lines of a request, without the prefix of the section.
    #[must_use]
    pub fn field_lines(&self, is_post: bool) -> Vec<u8> {
        let method = if is_post { field::METHOD_POST } else { field::METHOD_GET };
        let mut lines = vec![0xc0 | method, 0xc0 | field::SCHEME_HTTPS];
        for (index, value) in [(field::PATH, &self.path), (field::AUTHORITY, &self.authority)] {
            push_integer(&mut lines, 0x50, 4, index);
            push_string(&mut lines, value.as_bytes());
        }
        lines
    }

    /// Encodes the HEADERS frame of a request over HTTP/3. Its last fields are `references` to the first entry
    /// of the dynamic table, if there are any.
    #[must_use]
    pub fn http3(&self, is_post: bool, references: usize) -> Vec<u8> {
        // Required Insert Count 1 is encoded as 2 (RFC 9204 section 4.5.1.1); the base is 1 as well.
        let prefix = if references > 0 { [2, 0] } else { [0, 0] };
        let section = [&prefix[..], &self.field_lines(is_post), &vec![0x80; references]].concat();
        frame(kind::HEADERS, &section)
    }
}

/// Fields of an Initial packet of a client.
#[derive(Clone, Debug, Default)]
pub struct InitialPacket {
    /// Number of the connection, from which its identifier is made.
    pub connection: u64,
    /// Packet number.
    pub number: u32,
    /// Address validation token.
    pub token: Vec<u8>,
    /// Frames, filled up with PADDING.
    pub frames: Vec<u8>,
    /// Size of the whole packet in bytes; at most [`INITIAL_BYTES`].
    pub size: usize,
}

/// Encodes a CRYPTO frame.
#[must_use]
pub fn crypto_frame(offset: u32, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![0x06];
    push_varint(&mut out, offset);
    push_varint(&mut out, bytes.len() as u32);
    out.extend_from_slice(bytes);
    out
}

/// Encryption of Initial packets, for the connections of one run.
pub struct InitialSealer {
    suite: Suite,
    /// First half of all connection identifiers, so that no earlier run has used them.
    seed: u64,
}

impl InitialSealer {
    /// Creates one, and a ClientHello for a client with these settings.
    ///
    /// # Errors
    /// Fails if the settings cannot be used with QUIC.
    pub fn new(tls: &TlsClient) -> Result<(InitialSealer, Vec<u8>), Failure> {
        let (config, name) = tls.quic();
        let suites = &config.crypto_provider().cipher_suites;
        let initial = suites.iter().find(|suite| suite.suite() == CipherSuite::TLS13_AES_128_GCM_SHA256);
        let suite = initial.and_then(|suite| suite.tls13()).and_then(|suite| suite.quic_suite());
        let suite = suite.ok_or(Failure::new("TLS has no cipher suite for QUIC's Initial packets"))?;
        // The only parameter is an empty initial_source_connection_id.
        let client = ClientConnection::new(config, Version::V1, name, vec![0x0f, 0]);
        let mut hello = Vec::new();
        client.map_err(Failure::new)?.write_hs(&mut hello);
        Ok((InitialSealer { suite, seed: fastrand::u64(..) }, hello))
    }

    /// Appends the encrypted packet.
    ///
    /// # Errors
    /// Fails if the packet is too small for its frames.
    pub fn seal(&self, packet: &InitialPacket, out: &mut Vec<u8>) -> Result<(), Failure> {
        let id = [self.seed.to_be_bytes(), packet.connection.to_be_bytes()].concat();
        let start = out.len();
        // The last two bits tell the size of the packet number.
        out.push(0xc0 | (NUMBER_BYTES as u8 - 1));
        out.extend(QUIC_1.to_be_bytes());
        out.push(id.len() as u8);
        out.extend_from_slice(&id);
        out.push(0);
        push_varint(out, packet.token.len() as u32);
        out.extend_from_slice(&packet.token);
        let number_at = out.len() + 2;
        let len = (start + packet.size).saturating_sub(number_at);
        out.extend((len as u16 | 0x4000).to_be_bytes());
        out.extend(packet.number.to_be_bytes());
        let payload_at = number_at + NUMBER_BYTES;
        out.extend_from_slice(&packet.frames);
        if out.len() + TAG_BYTES > start + packet.size {
            return Err(Failure::new("an Initial packet is too small for its frames"));
        }
        out.resize(start + packet.size - TAG_BYTES, 0);
        let keys = Keys::initial(Version::V1, self.suite.suite, self.suite.quic, &id, Side::Client).local;
        let (head, payload) = out.split_at_mut(payload_at);
        let tag = keys.packet.encrypt_in_place(u64::from(packet.number), &head[start..], payload);
        out.extend_from_slice(tag.map_err(Failure::new)?.as_ref());
        let (head, payload) = out.split_at_mut(payload_at);
        let (first, number) = head[start..].split_at_mut(number_at - start);
        let sample = &payload[..keys.header.sample_len()];
        keys.header.encrypt_in_place(sample, &mut first[0], number).map_err(Failure::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http3::{Connection, MessageEvent, MessageStream, Options, UnidirectionalStream};
    use net::{TlsClientOptions, TlsHttp};

    #[test]
    fn handwritten_sections_are_parsed_by_the_http3_server() {
        let target = AttackTarget { authority: "a.test".repeat(40), path: "/x".into(), is_https: true };
        let mut server = Connection::server(Options::default());
        let mut encoder = UnidirectionalStream::default();
        let table = [stream_start(OwnStream::Encoder), set_capacity(TABLE_BYTES), insert(b"x-a", b"1")];
        let mut bytes = &table.concat()[..];
        while !bytes.is_empty() {
            let (consumed, _) = server.feed_unidirectional(&mut encoder, bytes, false).unwrap();
            bytes = &bytes[consumed..];
        }
        for (is_post, references) in [(false, 0), (true, 0), (false, 3)] {
            let mut stream = MessageStream::new(0);
            let head = target.http3(is_post, references);
            let (_, event) = server.feed(&mut stream, &head, false).unwrap();
            assert!(matches!(event, MessageEvent::Head { .. }), "{event:?}");
            assert_eq!(server.head.target.path.of(server.head_bytes()), b"/x");
            // The authority becomes `Host`.
            assert_eq!(server.head.fields.iter().count(), references + 1);
        }
    }

    #[test]
    fn initial_packet_is_decrypted_with_the_keys_of_its_identifier() {
        let options = TlsClientOptions {
            name: "a.test",
            insecure: true,
            http: TlsHttp::Http3,
            groups: &["X25519"],
            ..TlsClientOptions::default()
        };
        let (sealer, hello) = InitialSealer::new(&TlsClient::new(&options).unwrap()).unwrap();
        let frames = crypto_frame(0, &hello);
        let packet = InitialPacket {
            connection: 7,
            number: 300,
            frames: frames.clone(),
            size: 700,
            token: vec![9; 70],
        };
        let mut out = vec![1, 2, 3];
        sealer.seal(&packet, &mut out).unwrap();
        assert_eq!(out.len(), 703, "appended with exactly its size");
        let mut sealed = out[3..].to_vec();
        let id = sealed[6..22].to_vec();
        // Header: 7 bytes and the identifier, the token with its length of 2 bytes, the length.
        let number_at = 6 + 16 + 1 + 2 + 70 + 2;
        let keys =
            Keys::initial(Version::V1, sealer.suite.suite, sealer.suite.quic, &id, Side::Server).remote;
        let (head, payload) = sealed.split_at_mut(number_at + NUMBER_BYTES);
        let (first, number) = head.split_at_mut(number_at);
        keys.header.decrypt_in_place(&payload[..16], &mut first[0], number).unwrap();
        assert_eq!(number, 300_u32.to_be_bytes());
        let head = head.to_vec();
        let plain = keys.packet.decrypt_in_place(300, &head, payload).unwrap();
        assert!(plain.starts_with(&frames) && plain[frames.len()..].iter().all(|byte| *byte == 0));
        let small = InitialPacket { size: 100, ..packet };
        assert!(sealer.seal(&small, &mut out).is_err());
    }
}
