//! Decodes bodies piece by piece (RFC 9112 sections 6 and 7).

use crate::fields::Fields;
use crate::framing::Framing;
use crate::line::{self, Cursor, FieldLine, Limits, LineRules};
use crate::reject::Reject;
use crate::scan;
use crate::status::Status;

/// Maximum length of a body, in bytes, that no body reaches.
pub const NO_LIMIT: u64 = u64::MAX;

/// Chunk extensions and size lines carry no content. A body may have this many bytes of them, plus eight for
/// each byte of content (one-byte chunks have five).
const OVERHEAD_BYTES_FREE: u64 = 16 * 1024;
/// Longest size line of a chunk, with its extension, without its CRLF.
const SIZE_LINE_BYTES_MAX: u32 = 1024;

/// Removes the framing from a body.
#[derive(Debug, Default)]
pub struct Body {
    state: ChunkState,
    /// Content bytes that may still be received.
    allowed: u64,
    content: u64,
    overhead: u64,
    /// In a box, because few bodies have trailers.
    trailer_section: Option<Box<TrailerSection>>,
}

/// The trailer section, as far as it was received.
#[derive(Debug, Default)]
struct TrailerSection {
    trailers: Fields,
    /// The bytes of a line that is not complete yet.
    line: Vec<u8>,
    cursor: Cursor,
    /// Bytes and fields received so far, including dropped fields.
    bytes: usize,
    fields: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ChunkState {
    #[default]
    End,
    Remaining(u64),
    UntilClose,
    /// In a chunk's size line: the size so far and the bytes of the line.
    Size {
        size: u64,
        digits: u32,
    },
    /// White space behind the size, ahead of an extension or the line's end.
    Space {
        size: u64,
        line: u32,
    },
    Extension {
        size: u64,
        line: u32,
    },
    SizeLf {
        size: u64,
    },
    Data {
        remaining: u64,
    },
    DataCr,
    DataLf,
    Trailers,
}

/// The result of decoding a slice: `consumed` bytes were read, and `data_start..data_end` of them are
/// content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodedPiece {
    /// Bytes consumed.
    pub consumed: usize,
    /// Start of the content, relative to the slice.
    pub data_start: usize,
    /// End of the content; equal to `data_start` if there is none.
    pub data_end: usize,
}

impl Body {
    /// Creates a decoder for a body with at most `bytes_max` bytes of content.
    ///
    /// # Errors
    /// 413 if the announced length exceeds `bytes_max`.
    pub fn new(framing: Framing, bytes_max: u64) -> Result<Body, Reject> {
        let state = match framing {
            Framing::None => ChunkState::End,
            Framing::Length(length) if length > bytes_max => return Err(TOO_LARGE),
            Framing::Length(length) => ChunkState::Remaining(length),
            Framing::Chunked => ChunkState::Size { size: 0, digits: 0 },
            Framing::UntilClose => ChunkState::UntilClose,
        };
        Ok(Body { state, allowed: bytes_max, ..Body::default() })
    }

    /// Creates a decoder for a chunked body of any length.
    #[must_use]
    pub fn chunked() -> Body {
        let state = ChunkState::Size { size: 0, digits: 0 };
        Body { state, allowed: NO_LIMIT, ..Body::default() }
    }

    /// Sets the maximum content length, before any content has been read.
    ///
    /// # Errors
    /// 413 if the announced length exceeds `bytes_max`.
    pub(crate) fn limit(&mut self, bytes_max: u64) -> Result<(), Reject> {
        self.allowed = bytes_max;
        match self.state {
            ChunkState::Remaining(length) if length > bytes_max => Err(TOO_LARGE),
            _ => Ok(()),
        }
    }

    /// Whether the whole body has been received.
    #[must_use]
    pub fn is_end(&self) -> bool {
        self.state == ChunkState::End
    }

    /// The trailer fields, complete once the body has ended. Fields that affect framing or routing are
    /// dropped.
    #[must_use]
    pub fn trailers(&self) -> &Fields {
        static NONE: Fields = Fields::new();
        self.trailer_section.as_ref().map_or(&NONE, |section| &section.trailers)
    }

    /// The bytes still to be received, if the framing states them.
    #[must_use]
    pub fn remaining(&self) -> Option<u64> {
        match self.state {
            ChunkState::End => Some(0),
            ChunkState::Remaining(left) => Some(left),
            _ => None,
        }
    }

    /// Notifies the decoder that the sender has closed its side, which completes a body that extends to the
    /// close.
    ///
    /// # Errors
    /// 400 if bytes are missing.
    pub fn eof(&mut self) -> Result<(), Reject> {
        match self.state {
            ChunkState::End => Ok(()),
            ChunkState::UntilClose => {
                self.state = ChunkState::End;
                Ok(())
            }
            _ => Err(Reject::bad_request("body cut short")),
        }
    }

    /// Decodes from `bytes` until the first piece of content, the body's end, or the end of `bytes`.
    ///
    /// # Errors
    /// 400 for invalid framing, 413 for content above the limit, 431 for too much trailer.
    pub fn feed(&mut self, bytes: &[u8], limits: &Limits) -> Result<DecodedPiece, Reject> {
        let mut at = 0;
        while at < bytes.len() {
            match self.state {
                ChunkState::End => break,
                ChunkState::Remaining(left) => {
                    let piece = self.take_content(bytes, at, left)?;
                    self.state = match left - (piece.data_end - at) as u64 {
                        0 => ChunkState::End,
                        left => ChunkState::Remaining(left),
                    };
                    return Ok(piece);
                }
                ChunkState::UntilClose => return self.take_content(bytes, at, NO_LIMIT),
                ChunkState::Data { remaining: left } => {
                    let piece = self.take_content(bytes, at, left)?;
                    self.state = match left - (piece.data_end - at) as u64 {
                        0 => ChunkState::DataCr,
                        left => ChunkState::Data { remaining: left },
                    };
                    return Ok(piece);
                }
                ChunkState::Trailers => at = self.parse_trailers(bytes, at, limits)?,
                _ => {
                    self.state = self.framing_byte(bytes[at])?;
                    at += 1;
                }
            }
        }
        Ok(DecodedPiece { consumed: at, data_start: at, data_end: at })
    }

    fn take_content(&mut self, bytes: &[u8], at: usize, left: u64) -> Result<DecodedPiece, Reject> {
        let left = left.min(self.allowed - self.content);
        if left == 0 {
            return Err(TOO_LARGE);
        }
        let len = (bytes.len() - at).min(usize::try_from(left).unwrap_or(usize::MAX));
        self.content += len as u64;
        Ok(DecodedPiece { consumed: at + len, data_start: at, data_end: at + len })
    }

    /// Consumes one byte of chunk framing.
    fn framing_byte(&mut self, byte: u8) -> Result<ChunkState, Reject> {
        self.overhead += 1;
        if self.overhead > OVERHEAD_BYTES_FREE + self.content.saturating_mul(8) {
            return Err(Reject::bad_request("more chunk framing than content"));
        }
        match self.state {
            ChunkState::Size { size, digits } => match (scan::hex_value(byte), byte) {
                (Some(_), _) if digits == 16 || size >> 58 != 0 => {
                    Err(Reject::bad_request("chunk size overflows"))
                }
                (Some(digit), _) => {
                    Ok(ChunkState::Size { size: size << 4 | u64::from(digit), digits: digits + 1 })
                }
                (None, _) if digits == 0 => Err(Reject::bad_request("chunk without a size")),
                (None, b';') => Ok(ChunkState::Extension { size, line: digits + 1 }),
                (None, b'\r') => Ok(ChunkState::SizeLf { size }),
                // BWS (RFC 9112 section 7.1.1); some servers also pad sizes that have no extension.
                (None, b' ' | b'\t') => Ok(ChunkState::Space { size, line: digits + 1 }),
                (None, _) => Err(Reject::bad_request("invalid byte in a chunk size")),
            },
            ChunkState::Space { size, line } => match byte {
                b'\r' => Ok(ChunkState::SizeLf { size }),
                _ if line >= SIZE_LINE_BYTES_MAX => Err(Reject::bad_request("chunk extension too long")),
                b' ' | b'\t' => Ok(ChunkState::Space { size, line: line + 1 }),
                b';' => Ok(ChunkState::Extension { size, line: line + 1 }),
                _ => Err(Reject::bad_request("invalid byte in a chunk size")),
            },
            ChunkState::Extension { size, .. } if byte == b'\r' => Ok(ChunkState::SizeLf { size }),
            ChunkState::Extension { line, .. } if line >= SIZE_LINE_BYTES_MAX => {
                Err(Reject::bad_request("chunk extension too long"))
            }
            ChunkState::Extension { size, line } if scan::is_value_byte(byte) => {
                Ok(ChunkState::Extension { size, line: line + 1 })
            }
            ChunkState::Extension { .. } => Err(Reject::bad_request("control byte in a chunk extension")),
            ChunkState::SizeLf { .. } if byte != b'\n' => Err(Reject::bad_request("chunk size without CRLF")),
            ChunkState::SizeLf { size: 0 } => Ok(ChunkState::Trailers),
            ChunkState::SizeLf { size } if size > self.allowed - self.content => Err(TOO_LARGE),
            ChunkState::SizeLf { size } => Ok(ChunkState::Data { remaining: size }),
            ChunkState::DataCr if byte == b'\r' => Ok(ChunkState::DataLf),
            ChunkState::DataLf if byte == b'\n' => Ok(ChunkState::Size { size: 0, digits: 0 }),
            _ => Err(Reject::bad_request("chunk data without CRLF")),
        }
    }

    /// Parses one byte at a time, which is fast enough: trailers are rare and bounded.
    fn parse_trailers(&mut self, bytes: &[u8], mut at: usize, limits: &Limits) -> Result<usize, Reject> {
        let section = self.trailer_section.get_or_insert_default();
        let TrailerSection { trailers, line, cursor, bytes: section_bytes, fields } = &mut **section;
        while at < bytes.len() && self.state == ChunkState::Trailers {
            if *section_bytes == limits.head_bytes_max {
                return Err(Reject::new(Status::FIELDS_TOO_LARGE, "trailers too large"));
            }
            *section_bytes += 1;
            line.push(bytes[at]);
            at += 1;
            let rules = LineRules { bare_lf: false, spaced_colon: limits.lenient_heads };
            match line::parse_field(line, cursor, rules)? {
                FieldLine::Partial => continue,
                FieldLine::Blank => self.state = ChunkState::End,
                FieldLine::Field(_) if *fields == limits.fields_max => {
                    return Err(Reject::new(Status::FIELDS_TOO_LARGE, "too many trailer fields"));
                }
                FieldLine::Field(field) => {
                    *fields += 1;
                    if field.id.is_allowed_in_trailers() {
                        let pushed = trailers.try_push(field.name.of(line), field.value.of(line));
                        pushed.expect("a field that was read is valid");
                    }
                }
            }
            line.clear();
            *cursor = Cursor::default();
        }
        Ok(at)
    }
}

/// The rejection of a request whose body is too long.
pub const TOO_LARGE: Reject = Reject::new(Status::CONTENT_TOO_LARGE, "body too large");
