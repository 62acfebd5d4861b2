//! The framing of message bodies (RFC 9112 section 6).

use crate::field_list::{Field, FieldList};
use crate::name::Name;
use crate::reject::Reject;
use crate::scan;
use crate::span::Span;
use crate::status::Status;

/// The marker of the end of a body.
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
    /// This many bytes, more than zero.
    Known(u64),
    /// A body whose length is unknown until its end.
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

/// The combined `Content-Length` fields of a head.
#[derive(Clone, Copy, Debug, Default)]
pub struct ContentLength {
    length: Option<u64>,
    is_repeated: bool,
}

impl ContentLength {
    /// Processes one field value: a number, or a list of equal numbers (RFC 9110 section 8.6).
    ///
    /// # Errors
    /// 400 for anything else, and for a number that differs from an earlier one.
    pub fn take(&mut self, value: &[u8]) -> Result<(), Reject> {
        for item in value.split(|&byte| byte == b',') {
            let length =
                scan::parse_decimal(scan::trim(item)).ok_or(Reject::bad_request("invalid Content-Length"))?;
            match self.length.replace(length) {
                None => {}
                Some(earlier) if earlier == length => self.is_repeated = true,
                Some(_) => return Err(Reject::bad_request("different Content-Lengths")),
            }
        }
        Ok(())
    }

    /// The length, if there is one. `is_lenient` accepts a repeated `Content-Length`.
    ///
    /// # Errors
    /// [`Reject::REPEATED_LENGTH`].
    pub fn length(self, is_lenient: bool) -> Result<Option<u64>, Reject> {
        if self.is_repeated && !is_lenient { Err(Reject::REPEATED_LENGTH) } else { Ok(self.length) }
    }

    /// Replaces the `Content-Length` fields of the same head by a single field with a single number.
    pub fn normalize(self, fields: &mut FieldList, buffer: &[u8]) {
        if !self.is_repeated {
            return;
        }
        let mut is_first = true;
        fields.retain(|field| field.id != Name::ContentLength || std::mem::take(&mut is_first));
        if let Some(at) = fields.iter().position(|field| field.id == Name::ContentLength) {
            let Field { value, .. } = fields[at];
            let digits = value.of(buffer).iter().take_while(|byte| byte.is_ascii_digit()).count();
            fields
                .replace(at, Field { value: Span::new(value.start(), value.start() + digits), ..fields[at] });
        }
    }
}

/// Collects the framing fields of a head.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FramingFields {
    pub(crate) length: ContentLength,
    chunked: bool,
}

impl FramingFields {
    /// Processes a `Content-Length` or `Transfer-Encoding` field.
    pub(crate) fn take(&mut self, field: &Field, buffer: &[u8]) -> Result<(), Reject> {
        let value = field.value.of(buffer);
        match field.id {
            Name::ContentLength => self.length.take(value)?,
            Name::TransferEncoding => {
                if self.chunked {
                    return Err(Reject::bad_request("repeated Transfer-Encoding"));
                }
                self.chunked = is_chunked(value)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// The framing of a message that may have a body; `fallback` if there is no framing field. `is_lenient`
    /// accepts a repeated `Content-Length`.
    pub(crate) fn framing(
        self,
        is_1_0: bool,
        fallback: Framing,
        is_lenient: bool,
    ) -> Result<Framing, Reject> {
        // Checked before a repeated length, because no setting accepts both.
        if self.chunked && self.length.length.is_some() {
            return Err(Reject::bad_request("both Content-Length and Transfer-Encoding"));
        }
        match (self.length.length(is_lenient)?, self.chunked) {
            (_, true) if is_1_0 => Err(Reject::bad_request("Transfer-Encoding in HTTP/1.0")),
            (_, true) => Ok(Framing::Chunked),
            (Some(0), false) => Ok(Framing::None),
            (Some(length), false) => Ok(Framing::Length(length)),
            (None, false) => Ok(fallback),
        }
    }
}

/// Whether the value is `chunked` alone. Another coding before it is not supported (501); everything else is
/// refused as an attack.
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
        _ => Err(Reject::bad_request("Transfer-Encoding is not chunked")),
    }
}
