//! Laws that hold for arbitrary bytes, called by the fuzz target and the replay test; each panics if its law
//! is violated.

use http::Limits;
use http2::{FieldBlock, HpackDecoder, HpackEncoder, Options, PeerLimits};

use super::drive::{Conduct, run};
use super::wire;

/// Bytes as frames, on both sides: the result does not depend on where the bytes are cut. The first byte
/// selects the conversion to frames and the user's conduct.
pub(crate) fn frames(bytes: &[u8]) {
    let Some((&first, rest)) = bytes.split_first() else { return };
    let is_server = first & 1 == 0;
    let conduct = [Conduct::Keeps, Conduct::Serves, Conduct::Hurries][usize::from(first >> 1) % 3];
    let body = if first & 8 == 0 { expand(rest) } else { rest.to_vec() };
    let start = if is_server { wire::client_start() } else { wire::server_start() };
    let bytes = if first & 16 == 0 { [start, body].concat() } else { body };
    let limits = Limits {
        head_bytes_max: 160,
        start_line_bytes_max: 60,
        fields_max: 4,
        bare_lf: false,
        lenient_heads: false,
    };
    let tight = Options {
        head: limits,
        streams_max: 3,
        table_bytes_max: 64,
        connect_protocol: true,
        peer_limits: PeerLimits { held_bytes_max: 64 * 1024, credit_max: 60 },
        ..Options::default()
    };
    for options in [Options::default(), tight] {
        let whole = run(is_server, options, conduct, [&bytes[..]]);
        assert_eq!(whole, run(is_server, options, conduct, bytes.chunks(1)), "byte by byte");
        assert_eq!(whole, run(is_server, options, conduct, corpus::random_cuts(&bytes)), "at random");
    }
}

/// Bytes as header blocks: a decoded section keeps its meaning when it is encoded again.
pub(crate) fn hpack(bytes: &[u8]) {
    let limits = Limits { head_bytes_max: 4096, fields_max: 64, ..Limits::default() };
    let mut decoder = HpackDecoder::new(256);
    let mut again = HpackDecoder::new(4096);
    let mut encoder = HpackEncoder::default();
    let mut block = FieldBlock::default();
    let mut second = FieldBlock::default();
    // The blocks of one connection, each preceded by its length.
    let mut rest = bytes;
    while let [len, after @ ..] = rest {
        let (wire, after) = after.split_at(usize::from(*len).min(after.len()));
        rest = after;
        if decoder.decode(wire, &mut block, &limits).is_err() {
            return;
        }
        assert!(decoder.held_bytes() < 8 * 1024, "the table above its limit");
        assert!(block.bytes.len() <= 4096 + 64 * 36 + 400, "a section above its limit");
        if block.is_too_large || block.iter().any(|(name, _)| name.iter().any(u8::is_ascii_uppercase)) {
            continue;
        }
        let mut wire = Vec::new();
        encoder.encode_block(&mut wire, block.iter());
        let roomy = Limits { head_bytes_max: 1 << 20, fields_max: 1 << 10, ..Limits::default() };
        again.decode(&wire, &mut second, &roomy).expect("what is encoded is decoded");
        assert!(block.iter().eq(second.iter()), "the same fields");
        assert_eq!((block.size, block.is_valid), (second.size, second.is_valid));
    }
}

/// Expands a compact notation of frames, so that mutations change contents and not only lengths: kind, flags,
/// stream, length, payload.
pub(crate) fn expand(mut bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let [kind, flags, stream, len, rest @ ..] = bytes {
        let (payload, rest) = rest.split_at(usize::from(*len).min(rest.len()));
        bytes = rest;
        // Mostly the frame types of RFC 9113 and RFC 9218; occasionally another one.
        let kind = match kind {
            0..=9 | 16 => *kind,
            200.. => *kind,
            other => other % 10,
        };
        out.extend(wire::frame(kind, *flags, u32::from(*stream), payload));
    }
    out
}
