//! Encoding of attack traffic: frames and heads written by hand, because most of them violate the protocol on
//! purpose.

/// Frame types (RFC 9113 section 6, RFC 9218 section 7.1).
#[allow(missing_docs)] // the names are those of the RFCs
pub mod kind {
    pub const DATA: u8 = 0x0;
    pub const HEADERS: u8 = 0x1;
    pub const PRIORITY: u8 = 0x2;
    pub const RST_STREAM: u8 = 0x3;
    pub const SETTINGS: u8 = 0x4;
    pub const PING: u8 = 0x6;
    pub const GOAWAY: u8 = 0x7;
    pub const WINDOW_UPDATE: u8 = 0x8;
    pub const CONTINUATION: u8 = 0x9;
    pub const PRIORITY_UPDATE: u8 = 0x10;
}

/// END_STREAM flag; ACK of SETTINGS and PING is the same bit.
pub const END_STREAM: u8 = 0x1;
/// END_HEADERS flag.
pub const END_HEADERS: u8 = 0x4;

/// Identifier of SETTINGS_HEADER_TABLE_SIZE.
pub const HEADER_TABLE_SIZE: u16 = 1;
/// Identifier of SETTINGS_INITIAL_WINDOW_SIZE.
pub const INITIAL_WINDOW_SIZE: u16 = 4;

/// Encodes a frame. `payload` must be shorter than 16 MiB.
#[must_use]
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Encodes a SETTINGS frame.
#[must_use]
pub fn settings(settings: &[(u16, u32)]) -> Vec<u8> {
    let pair = |(id, value): &(u16, u32)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat();
    frame(kind::SETTINGS, 0, 0, &settings.iter().flat_map(pair).collect::<Vec<u8>>())
}

/// Encodes a WINDOW_UPDATE frame.
#[must_use]
pub fn window_update(stream: u32, increment: u32) -> Vec<u8> {
    frame(kind::WINDOW_UPDATE, 0, stream, &increment.to_be_bytes())
}

/// Encodes an RST_STREAM frame.
#[must_use]
pub fn rst_stream(stream: u32, code: u32) -> Vec<u8> {
    frame(kind::RST_STREAM, 0, stream, &code.to_be_bytes())
}

/// Encodes the client's connection preface and SETTINGS.
#[must_use]
pub fn client_start(values: &[(u16, u32)]) -> Vec<u8> {
    [http2::frame::PREFACE.to_vec(), settings(values)].concat()
}

/// Returns the ID of the client's stream with index `at`, from 0.
#[must_use]
pub fn stream_id(at: usize) -> u32 {
    (at as u32 * 2 + 1) & http2::frame::MAX_31_BITS
}

/// Encodes an integer of HPACK and QPACK (RFC 7541 section 5.1) with a prefix of `bits` after the bits of `first`.
pub(super) fn push_integer(out: &mut Vec<u8>, first: u8, bits: u8, value: usize) {
    let most = (1_usize << bits) - 1;
    if value < most {
        return out.push(first | value as u8);
    }
    out.push(first | most as u8);
    let mut rest = value - most;
    while rest >= 128 {
        out.push(rest as u8 | 128);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Encodes a string of HPACK and QPACK without Huffman coding.
pub(super) fn push_string(out: &mut Vec<u8>, bytes: &[u8]) {
    push_integer(out, 0, 7, bytes.len());
    out.extend_from_slice(bytes);
}

/// Encodes a field with an indexed name of the static table and a literal value, not added to the dynamic
/// table.
fn push_named(out: &mut Vec<u8>, index: u8, value: &[u8]) {
    push_integer(out, 0, 4, usize::from(index));
    push_string(out, value);
}

/// Encodes a field that is added to the dynamic table.
pub fn push_indexed(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.push(0x40);
    push_string(out, name);
    push_string(out, value);
}

/// Encodes a field that is not added to the dynamic table.
pub fn push_literal(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.push(0);
    push_string(out, name);
    push_string(out, value);
}

/// Target of the attacks.
#[derive(Clone, Debug)]
pub struct AttackTarget {
    /// Host and port.
    pub authority: String,
    /// Path and query.
    pub path: String,
    /// Whether the scheme is `https`.
    pub is_https: bool,
}

impl AttackTarget {
    /// Encodes the header block of a request.
    #[must_use]
    pub fn header_block(&self, is_post: bool) -> Vec<u8> {
        let mut block = vec![0x82 + u8::from(is_post), 0x86 + u8::from(self.is_https)];
        push_named(&mut block, 4, self.path.as_bytes());
        push_named(&mut block, 1, self.authority.as_bytes());
        block
    }

    /// Encodes a request without content.
    #[must_use]
    pub fn get(&self, stream: u32) -> Vec<u8> {
        frame(kind::HEADERS, END_STREAM | END_HEADERS, stream, &self.header_block(false))
    }

    /// Encodes a request whose content has not been sent yet.
    #[must_use]
    pub fn post(&self, stream: u32) -> Vec<u8> {
        frame(kind::HEADERS, END_HEADERS, stream, &self.header_block(true))
    }

    /// Returns the start of an HTTP/1 request, without the empty line that ends its head.
    #[must_use]
    pub fn http1(&self, method: &str) -> String {
        format!("{method} {} HTTP/1.1\r\nHost: {}\r\n", self.path, self.authority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http2::{Event, Machine, Options};

    #[test]
    fn handwritten_frames_are_parsed_by_the_http2_server() {
        let target = AttackTarget { authority: "a.test".repeat(40), path: "/x".into(), is_https: true };
        let mut machine = Machine::server(Options::default());
        let mut bytes = client_start(&[(INITIAL_WINDOW_SIZE, 0)]);
        bytes.extend(target.get(stream_id(0)));
        bytes.extend(target.post(stream_id(1)));
        let mut at = 0;
        let mut paths = Vec::new();
        loop {
            let (consumed, event) = machine.feed(&bytes[at..], 0).unwrap();
            at += consumed;
            match event {
                Event::NeedMore => break,
                Event::Head { stream, ended } => {
                    let head = machine.head_bytes();
                    assert!(machine.is_https);
                    paths.push((stream, ended, machine.head.target.path.of(head).to_vec()));
                }
                event => assert_eq!(event, Event::Settings),
            }
        }
        assert_eq!(paths, [(1, true, b"/x".to_vec()), (3, false, b"/x".to_vec())]);
    }
}
