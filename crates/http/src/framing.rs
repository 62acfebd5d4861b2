//! How a message's body ends (RFC 9112 section 6): decided once, in a type.

use crate::field_list::Field;
use crate::name::Name;
use crate::reject::Reject;
use crate::scan;
use crate::status::Status;

/// How the end of a body is marked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// There is no body.
    #[default]
    None,
    /// This many bytes, more than zero.
    Length(u64),
    /// The chunked coding.
    Chunked,
    /// Until the connection closes: responses only.
    UntilClose,
}

impl Framing {
    /// The size of a body with this framing.
    #[must_use]
    pub const fn size(self) -> BodySize {
        match self {
            Framing::None => BodySize::None,
            Framing::Length(length) => BodySize::Known(length),
            Framing::Chunked | Framing::UntilClose => BodySize::Unknown,
        }
    }
}

/// The size of a body, independent of the protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodySize {
    /// There is no body.
    #[default]
    None,
    /// So many bytes, more than zero.
    Known(u64),
    /// A body whose length is known at its end only.
    Unknown,
}

/// The length of a body that is about to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// This many bytes.
    Known(u64),
    /// Not known yet.
    Unknown,
}

/// Collects the framing fields of a head.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Evidence {
    length: Option<u64>,
    chunked: bool,
}

impl Evidence {
    /// Takes a `Content-Length` or `Transfer-Encoding` field into account.
    pub(crate) fn take(&mut self, field: &Field, buffer: &[u8]) -> Result<(), Reject> {
        let value = field.value.of(buffer);
        match field.id {
            Name::ContentLength => {
                if self.length.is_some() {
                    return Err(Reject::bad("repeated Content-Length"));
                }
                self.length = Some(scan::decimal(value).ok_or(Reject::bad("invalid Content-Length"))?);
            }
            Name::TransferEncoding => {
                if self.chunked {
                    return Err(Reject::bad("repeated Transfer-Encoding"));
                }
                self.chunked = is_chunked(value)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// The framing of a message that may have a body; `fallback` if there is no framing field.
    pub(crate) fn framing(self, is_1_0: bool, fallback: Framing) -> Result<Framing, Reject> {
        match (self.length, self.chunked) {
            (Some(_), true) => Err(Reject::bad("both Content-Length and Transfer-Encoding")),
            (_, true) if is_1_0 => Err(Reject::bad("Transfer-Encoding in HTTP/1.0")),
            (None, true) => Ok(Framing::Chunked),
            (Some(0), false) => Ok(Framing::None),
            (Some(length), false) => Ok(Framing::Length(length)),
            (None, false) => Ok(fallback),
        }
    }

    /// The `Content-Length` that was announced.
    pub(crate) fn length(self) -> Option<u64> {
        self.length
    }
}

/// True for `chunked` alone. Another coding before it is not supported (501); everything else is refused as an attack.
fn is_chunked(value: &[u8]) -> Result<bool, Reject> {
    if value.eq_ignore_ascii_case(b"chunked") {
        return Ok(true);
    }
    let codings: Vec<&[u8]> = scan::tokens(value).collect();
    let known = |coding: &&[u8]| {
        ["gzip", "x-gzip", "deflate", "compress"].iter().any(|c| coding.eq_ignore_ascii_case(c.as_bytes()))
    };
    match codings.as_slice() {
        [before @ .., last]
            if last.eq_ignore_ascii_case(b"chunked") && !before.is_empty() && before.iter().all(known) =>
        {
            Err(Reject::new(Status::NOT_IMPLEMENTED, "transfer coding not supported"))
        }
        _ => Err(Reject::bad("Transfer-Encoding is not chunked")),
    }
}
