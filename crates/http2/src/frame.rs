//! Reading and writing frames (RFC 9113 sections 4 and 6).

use crate::error::ErrorCode;

/// Length of a frame header in bytes.
pub const HEADER_BYTES: usize = 9;
/// The connection preface of a client (RFC 9113 section 3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The largest payload that every endpoint must accept, and the largest that this one accepts, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = 16_384;
/// The largest stream identifier and the largest window.
pub const MAX_31_BITS: u32 = 0x7fff_ffff;

/// The types of frames.
pub(crate) mod kind {
    pub(crate) const DATA: u8 = 0x0;
    pub(crate) const HEADERS: u8 = 0x1;
    pub(crate) const PRIORITY: u8 = 0x2;
    pub(crate) const RST_STREAM: u8 = 0x3;
    pub(crate) const SETTINGS: u8 = 0x4;
    pub(crate) const PUSH_PROMISE: u8 = 0x5;
    pub(crate) const PING: u8 = 0x6;
    pub(crate) const GOAWAY: u8 = 0x7;
    pub(crate) const WINDOW_UPDATE: u8 = 0x8;
    pub(crate) const CONTINUATION: u8 = 0x9;
    /// PRIORITY_UPDATE (RFC 9218 section 7.1).
    pub(crate) const PRIORITY_UPDATE: u8 = 0x10;
}

/// Flags of frames; `ACK` and `END_STREAM` share a bit.
pub(crate) mod flag {
    pub(crate) const END_STREAM: u8 = 0x1;
    pub(crate) const ACK: u8 = 0x1;
    pub(crate) const END_HEADERS: u8 = 0x4;
    pub(crate) const PADDED: u8 = 0x8;
    pub(crate) const PRIORITY: u8 = 0x20;
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    /// Length of the payload in bytes.
    pub(crate) len: usize,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    /// The stream identifier; 0 for the connection.
    pub(crate) stream: u32,
}

impl FrameHeader {
    /// Parses the header at the start of `bytes`; `None` if it is incomplete.
    pub(crate) fn read(bytes: &[u8]) -> Option<FrameHeader> {
        let [a, b, c, kind, flags, stream @ ..] = bytes.first_chunk::<HEADER_BYTES>()?;
        Some(FrameHeader {
            len: usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c),
            kind: *kind,
            flags: *flags,
            stream: u32::from_be_bytes(*stream) & MAX_31_BITS,
        })
    }

    /// Encodes the header. `len` must fit 24 bits, which the peer's maximum frame size guarantees.
    pub(crate) const fn bytes(self) -> [u8; HEADER_BYTES] {
        debug_assert!(self.len < 1 << 24);
        let stream = self.stream.to_be_bytes();
        let len = (self.len as u32).to_be_bytes();
        [len[1], len[2], len[3], self.kind, self.flags, stream[0], stream[1], stream[2], stream[3]]
    }

    /// Whether a flag is set.
    pub(crate) const fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    out.extend_from_slice(&FrameHeader { len: payload.len(), kind, flags, stream }.bytes());
    out.extend_from_slice(payload);
}

/// Writes a SETTINGS frame.
pub(crate) fn settings(out: &mut Vec<u8>, settings: &[(u16, u32)]) {
    let header = FrameHeader { len: settings.len() * 6, kind: kind::SETTINGS, flags: 0, stream: 0 };
    out.extend_from_slice(&header.bytes());
    for (id, value) in settings {
        out.extend_from_slice(&id.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// Writes the acknowledgement of a SETTINGS frame.
pub(crate) fn settings_ack(out: &mut Vec<u8>) {
    frame(out, kind::SETTINGS, flag::ACK, 0, &[]);
}

/// Writes a PING frame or its acknowledgement.
pub(crate) fn ping(out: &mut Vec<u8>, is_ack: bool, payload: [u8; 8]) {
    frame(out, kind::PING, if is_ack { flag::ACK } else { 0 }, 0, &payload);
}

/// Writes a WINDOW_UPDATE frame.
pub(crate) fn window_update(out: &mut Vec<u8>, stream: u32, increment: u32) {
    debug_assert!(increment > 0 && increment <= MAX_31_BITS);
    frame(out, kind::WINDOW_UPDATE, 0, stream, &increment.to_be_bytes());
}

/// Writes a RST_STREAM frame.
pub(crate) fn rst_stream(out: &mut Vec<u8>, stream: u32, code: ErrorCode) {
    frame(out, kind::RST_STREAM, 0, stream, &code.0.to_be_bytes());
}

/// Writes a GOAWAY frame; `reason` is debug data for the peer's logs.
pub(crate) fn goaway(out: &mut Vec<u8>, last_stream: u32, code: ErrorCode, reason: &str) {
    let len = 8 + reason.len();
    out.extend_from_slice(&FrameHeader { len, kind: kind::GOAWAY, flags: 0, stream: 0 }.bytes());
    out.extend_from_slice(&last_stream.to_be_bytes());
    out.extend_from_slice(&code.0.to_be_bytes());
    out.extend_from_slice(reason.as_bytes());
}

/// Writes a PRIORITY_UPDATE frame (RFC 9218 section 7.1).
pub(crate) fn priority_update(out: &mut Vec<u8>, stream: u32, value: &[u8]) {
    let header = FrameHeader { len: 4 + value.len(), kind: kind::PRIORITY_UPDATE, flags: 0, stream: 0 };
    out.extend_from_slice(&header.bytes());
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(value);
}

/// Reads the big-endian number at `at`; the caller has checked the length.
pub(crate) fn u32_at(payload: &[u8], at: usize) -> u32 {
    payload[at..].first_chunk::<4>().map_or(0, |four| u32::from_be_bytes(*four))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_header_round_trips() {
        let header = FrameHeader { len: 0x12_3456, kind: 7, flags: 0x25, stream: MAX_31_BITS };
        assert_eq!(FrameHeader::read(&header.bytes()), Some(header));
        assert_eq!(FrameHeader::read(&header.bytes()[..8]), None);
        // The reserved bit is ignored (RFC 9113 section 4.1).
        assert_eq!(FrameHeader::read(&[0, 0, 0, 0, 0, 0x80, 0, 0, 1]).map(|header| header.stream), Some(1));
    }
}
