//! Valid and invalid frames as a peer writes them.

use http2::HpackEncoder;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PUSH_PROMISE: u8 = 5;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const PRIORITY_UPDATE: u8 = 16;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
pub(crate) const PADDED: u8 = 8;
pub(crate) const PRIORITIZED: u8 = 32;

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// One frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A SETTINGS frame.
pub(crate) fn settings(settings: &[(u16, u32)]) -> Vec<u8> {
    let payload: Vec<u8> = settings
        .iter()
        .flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat())
        .collect();
    frame(SETTINGS, 0, 0, &payload)
}

/// A WINDOW_UPDATE frame.
pub(crate) fn window_update(stream: u32, increment: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &increment.to_be_bytes())
}

/// The connection start of a client: preface, empty settings, and the acknowledgement of the server's
/// settings.
pub(crate) fn client_start() -> Vec<u8> {
    [PREFACE, &settings(&[]), &frame(SETTINGS, ACK, 0, &[])].concat()
}

/// The connection start of a server.
pub(crate) fn server_start() -> Vec<u8> {
    [settings(&[]), frame(SETTINGS, ACK, 0, &[])].concat()
}

/// A header block that uses no table.
pub(crate) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        out.push(0);
        for text in [name, value] {
            assert!(text.len() < 127 + 128, "one byte of continuation");
            match text.len() {
                len @ 0..127 => out.push(len as u8),
                len => out.extend([127, (len - 127) as u8]),
            }
            out.extend_from_slice(text.as_bytes());
        }
    }
    out
}

/// A HEADERS frame.
pub(crate) fn headers(stream: u32, flags: u8, fields: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, flags | END_HEADERS, stream, &block(fields))
}

pub(crate) const GET: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "http"), (":authority", "a.test"), (":path", "/")];
pub(crate) const POST: [(&str, &str); 4] =
    [(":method", "POST"), (":scheme", "http"), (":authority", "a.test"), (":path", "/")];

/// A request without a body.
pub(crate) fn get(stream: u32) -> Vec<u8> {
    headers(stream, END_STREAM, &GET)
}

/// A request whose body follows.
pub(crate) fn post(stream: u32, more: &[(&str, &str)]) -> Vec<u8> {
    headers(stream, 0, &[&POST[..], more].concat())
}

/// A request as a client with a dynamic table sends it.
pub(crate) fn indexed_get(encoder: &mut HpackEncoder, stream: u32) -> Vec<u8> {
    let mut out = Vec::new();
    encoder.encode_block(&mut out, GET.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())));
    frame(HEADERS, END_STREAM | END_HEADERS, stream, &out)
}

/// Parses sent bytes into frames: kind, flags, stream, payload.
pub(crate) fn frames(mut bytes: &[u8]) -> Vec<(u8, u8, u32, Vec<u8>)> {
    let mut frames = Vec::new();
    bytes = bytes.strip_prefix(PREFACE).unwrap_or(bytes);
    while let [a, b, c, kind, flags, d, e, f, g, rest @ ..] = bytes {
        let len = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        frames.push((*kind, *flags, u32::from_be_bytes([*d, *e, *f, *g]), rest[..len].to_vec()));
        bytes = &rest[len..];
    }
    assert!(bytes.is_empty(), "whole frames are sent");
    frames
}
