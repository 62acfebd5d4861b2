//! Frames (RFC 9114 section 7.2).

use crate::varint;

/// Frame types.
#[allow(missing_docs)] // each is its name in RFC 9114 or RFC 9218
pub mod kind {
    pub const DATA: u64 = 0x0;
    pub const HEADERS: u64 = 0x1;
    pub const CANCEL_PUSH: u64 = 0x3;
    pub const SETTINGS: u64 = 0x4;
    pub const PUSH_PROMISE: u64 = 0x5;
    pub const GOAWAY: u64 = 0x7;
    pub const MAX_PUSH_ID: u64 = 0xd;
    /// PRIORITY_UPDATE of a request (RFC 9218 section 7.2).
    pub const PRIORITY_UPDATE: u64 = 0xf_0700;
    /// PRIORITY_UPDATE of a push.
    pub const PRIORITY_UPDATE_PUSH: u64 = 0xf_0701;

    /// Whether a type belongs to HTTP/2 and must not be sent (RFC 9114 section 7.2.8).
    #[must_use]
    pub const fn is_http2(kind: u64) -> bool {
        matches!(kind, 0x2 | 0x6 | 0x8 | 0x9)
    }
}

/// Maximum size of a frame header: two integers of eight bytes.
pub(crate) const HEADER_BYTES_MAX: usize = 16;

/// Type and payload length of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http3FrameHeader {
    /// The type: see [`kind`].
    pub kind: u64,
    /// The number of payload bytes.
    pub len: u64,
}

impl Http3FrameHeader {
    /// Reads the header at the start of `bytes`; returns it and its length. `None` if it is cut off.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<(Http3FrameHeader, usize)> {
        let (kind, kind_bytes) = varint::read(bytes)?;
        let (len, len_bytes) = varint::read(&bytes[kind_bytes..])?;
        Some((Http3FrameHeader { kind, len }, kind_bytes + len_bytes))
    }

    /// Writes the header.
    pub fn write(self, out: &mut Vec<u8>) {
        varint::write(out, self.kind);
        varint::write(out, self.len);
    }
}

/// Writes a frame whose payload is one integer, such as GOAWAY.
pub(crate) fn write_integer(out: &mut Vec<u8>, kind: u64, value: u64) {
    let mut payload = Vec::with_capacity(8);
    varint::write(&mut payload, value);
    write(out, kind, &payload);
}

/// Writes a frame.
pub(crate) fn write(out: &mut Vec<u8>, kind: u64, payload: &[u8]) {
    Http3FrameHeader { kind, len: payload.len() as u64 }.write(out);
    out.extend_from_slice(payload);
}

/// Reads a payload that is exactly one integer.
pub(crate) fn read_integer(payload: &[u8]) -> Option<u64> {
    varint::read(payload).filter(|(_, len)| *len == payload.len()).map(|(value, _)| value)
}
