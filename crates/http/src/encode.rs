//! Encodes heads and chunks.

use crate::field_list::Field;
use crate::fields::Fields;
use crate::framing::{Framing, Length};
use crate::head::Version;
use crate::method::Method;
use crate::scan;
use crate::status::Status;

/// The framing of a response: decided once, before its head is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutgoingFraming {
    /// The marker of the body's end on the wire; `None` also if the request forbids a body.
    pub framing: Framing,
    /// The `Content-Length` to announce.
    pub length: Option<u64>,
    /// Whether the connection stays open after the response.
    pub keep_alive: bool,
}

impl OutgoingFraming {
    /// Returns the framing of a response of `status` and `length` to a request of that method and version
    /// (RFC 9112 section 6): HEAD, 1xx, 204 and 304 have no content; content of unknown length is chunked, or
    /// for a 1.0 client delimited by the closing of the connection.
    #[must_use]
    pub fn decide(
        method: Method,
        version: Version,
        status: Status,
        length: Length,
        keep_alive: bool,
    ) -> OutgoingFraming {
        if status.forbids_content() {
            return OutgoingFraming { framing: Framing::None, length: None, keep_alive };
        }
        let (framing, announced) = match length {
            Length::Known(0) => (Framing::None, Some(0)),
            Length::Known(length) => (Framing::Length(length), Some(length)),
            Length::Unknown if version == Version::Http11 => (Framing::Chunked, None),
            Length::Unknown => (Framing::UntilClose, None),
        };
        if method == Method::Head {
            return OutgoingFraming { framing: Framing::None, length: announced, keep_alive };
        }
        OutgoingFraming {
            framing,
            length: announced,
            keep_alive: keep_alive && framing != Framing::UntilClose,
        }
    }

    /// Writes the whole response head. `common` are field lines that every response carries (Server, Date).
    pub fn write_head(
        &self,
        out: &mut Vec<u8>,
        version: Version,
        status: Status,
        common: &[u8],
        fields: &Fields,
    ) {
        self.begin_head(out, version, status, None, common);
        out.extend_from_slice(fields.as_bytes());
        out.extend_from_slice(b"\r\n");
    }

    /// Writes the beginning of the head: the status line, `common` and the fields that frame the message.
    /// More field lines may follow, then the blank line. `reason`, from a parsed head, replaces the standard
    /// reason phrase.
    pub fn begin_head(
        &self,
        out: &mut Vec<u8>,
        version: Version,
        status: Status,
        reason: Option<&[u8]>,
        common: &[u8],
    ) {
        match (status.line(), reason) {
            (Some(line), None) => out.extend_from_slice(line.as_bytes()),
            (_, reason) => {
                out.extend_from_slice(b"HTTP/1.1 ");
                out.extend_from_slice(&status.digits());
                out.push(b' ');
                out.extend_from_slice(reason.unwrap_or_default());
                out.extend_from_slice(b"\r\n");
            }
        }
        out.extend_from_slice(common);
        if let Some(length) = self.length {
            out.extend_from_slice(b"Content-Length: ");
            write_decimal(out, length);
            out.extend_from_slice(b"\r\n");
        } else if self.framing == Framing::Chunked {
            out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
        }
        match (self.keep_alive, version) {
            (false, _) if !status.is_informational() => out.extend_from_slice(b"Connection: close\r\n"),
            (true, Version::Http10) => out.extend_from_slice(b"Connection: keep-alive\r\n"),
            _ => {}
        }
    }
}

/// Writes field lines directly into a head, without building [`Fields`] first. Names and values must come
/// from a parsed head or from the server itself: they are checked in debug builds only.
pub struct FieldWriter<'o> {
    out: &'o mut Vec<u8>,
}

impl<'o> FieldWriter<'o> {
    /// Creates a writer that appends to `out`.
    pub fn new(out: &'o mut Vec<u8>) -> FieldWriter<'o> {
        FieldWriter { out }
    }

    /// Writes one field line.
    #[inline]
    pub fn line(&mut self, name: &[u8], value: &[u8]) {
        self.begin(name);
        self.part(value);
        self.end();
    }

    /// Writes the field lines of a parsed head. Adjacent lines of `buffer` that already have the form `Name:
    /// value\r
    /// ` are copied together.
    pub fn fields<'f>(&mut self, buffer: &[u8], fields: impl Iterator<Item = &'f Field>) {
        let mut from = 0;
        let mut to = 0;
        for &Field { name, value, .. } in fields {
            let is_written_so = name.end() + 2 == value.start()
                && matches!(buffer.get(name.end()..), Some([b':', b' ', ..]))
                && matches!(buffer.get(value.end()..), Some([b'\r', b'\n', ..]));
            if !is_written_so || name.start() != to {
                self.out.extend_from_slice(&buffer[from..to]);
                (from, to) = (name.start(), name.start());
            }
            if is_written_so { to = value.end() + 2 } else { self.line(name.of(buffer), value.of(buffer)) }
        }
        self.out.extend_from_slice(&buffer[from..to]);
    }

    /// Appends field lines that are already encoded.
    pub fn push_encoded(&mut self, lines: &[u8]) {
        debug_assert!(lines.is_empty() || lines.ends_with(b"\r\n"));
        self.out.extend_from_slice(lines);
    }

    /// Starts a line; its value follows in parts.
    #[inline]
    pub fn begin(&mut self, name: &[u8]) {
        debug_assert!(scan::is_token(name));
        self.out.extend_from_slice(name);
        self.out.extend_from_slice(b": ");
    }

    /// Appends a part of a value.
    #[inline]
    pub fn part(&mut self, bytes: &[u8]) {
        debug_assert!(scan::value_len(bytes) == bytes.len());
        self.out.extend_from_slice(bytes);
    }

    /// Appends a decimal number as a part of a value.
    pub fn number(&mut self, number: u64) {
        write_decimal(self.out, number);
    }

    /// Appends a part of a value by calling `fill`.
    pub fn part_with(&mut self, fill: impl FnOnce(&mut Vec<u8>)) {
        let start = self.out.len();
        fill(self.out);
        debug_assert!(scan::value_len(&self.out[start..]) == self.out.len() - start);
    }

    /// Ends the line.
    #[inline]
    pub fn end(&mut self) {
        self.out.extend_from_slice(b"\r\n");
    }
}

/// The line that opens a chunk of `len` bytes; `len` must not be zero, which would end the body.
pub fn write_chunk_start(out: &mut Vec<u8>, len: usize) {
    debug_assert!(len > 0);
    let nibbles = (usize::BITS - len.leading_zeros()).div_ceil(4);
    for nibble in (0..nibbles).rev() {
        out.push(b"0123456789abcdef"[len >> (nibble * 4) & 15]);
    }
    out.extend_from_slice(b"\r\n");
}

/// The bytes after a chunk's content.
pub const CHUNK_END: &[u8] = b"\r\n";

/// Writes the last chunk, the trailer fields and the final CRLF.
pub fn write_last_chunk(out: &mut Vec<u8>, trailers: &Fields) {
    out.extend_from_slice(b"0\r\n");
    out.extend_from_slice(trailers.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends `number` in decimal.
pub fn write_decimal(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(
        method: Method,
        version: Version,
        status: Status,
        length: Length,
    ) -> (Framing, Option<u64>, bool) {
        let out = OutgoingFraming::decide(method, version, status, length, true);
        (out.framing, out.length, out.keep_alive)
    }

    #[test]
    fn response_framing_follows_method_version_and_status() {
        use Version::{Http10, Http11};
        let known = Length::Known(5);
        assert_eq!(decide(Method::Get, Http11, Status::OK, known), (Framing::Length(5), Some(5), true));
        assert_eq!(decide(Method::Head, Http11, Status::OK, known), (Framing::None, Some(5), true));
        assert_eq!(decide(Method::Get, Http11, Status::OK, Length::Known(0)), (Framing::None, Some(0), true));
        assert_eq!(decide(Method::Get, Http11, Status::NOT_MODIFIED, known), (Framing::None, None, true));
        assert_eq!(decide(Method::Get, Http11, Status::NO_CONTENT, known), (Framing::None, None, true));
        assert_eq!(decide(Method::Get, Http11, Status::OK, Length::Unknown), (Framing::Chunked, None, true));
        assert_eq!(
            decide(Method::Get, Http10, Status::OK, Length::Unknown),
            (Framing::UntilClose, None, false)
        );
        assert_eq!(decide(Method::Head, Http10, Status::OK, Length::Unknown), (Framing::None, None, true));
    }

    #[test]
    fn adjacent_fields_copied_together_equal_single_lines() {
        let mut head = crate::RequestHead::default();
        let text =
            b"GET / HTTP/1.1\r\nHost: a\r\nA: 1\r\nB: 2\r\nC:3\r\nD: 4\t\r\nE:  5\r\nF:\r\ng: 6\r\n\r\n";
        assert_eq!(head.parse(text, &crate::Limits::default()), Ok(true));
        for left_out in 0..head.fields.len() {
            let passed = || {
                let fields = head.fields.iter().enumerate();
                fields.filter(move |(at, _)| *at != left_out).map(|(_, field)| field)
            };
            let mut together = b"x".to_vec();
            let mut single = b"x".to_vec();
            FieldWriter::new(&mut together).fields(text, passed());
            passed().for_each(|f| FieldWriter::new(&mut single).line(f.name.of(text), f.value.of(text)));
            assert_eq!(String::from_utf8(together), String::from_utf8(single), "without {left_out}");
        }
        // The buffer ends with a value, or a value follows its name without a space.
        let bytes = b"N: vMw";
        let mut out = Vec::new();
        let n = crate::Span::new(0, 1);
        let m = crate::Span::new(4, 5);
        let field = |name, value| Field { id: crate::Name::Other, name, value };
        let fields = [field(n, crate::Span::new(3, 4)), field(m, crate::Span::new(5, 6))];
        FieldWriter::new(&mut out).fields(bytes, fields.iter());
        assert_eq!(out, b"N: v\r\nM: w\r\n");
    }

    #[test]
    fn decimal_and_chunk_size_numbers_are_formatted() {
        for (number, decimal_text, hex_text) in
            [(1, "1", "1\r\n"), (4096, "4096", "1000\r\n"), (255, "255", "ff\r\n")]
        {
            let mut dec = Vec::new();
            let mut hex = Vec::new();
            write_decimal(&mut dec, number);
            write_chunk_start(&mut hex, number as usize);
            assert_eq!((dec, hex), (decimal_text.as_bytes().to_vec(), hex_text.as_bytes().to_vec()));
        }
        let mut out = Vec::new();
        write_decimal(&mut out, u64::MAX);
        assert_eq!(out, b"18446744073709551615");
    }
}
