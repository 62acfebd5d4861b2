//! Response heads (RFC 9112 section 4), as a client reads them.

use crate::field_list::FieldList;
use crate::framing::{Framing, FramingFields, Length};
use crate::head::Version;
use crate::line::{self, ConnectionOptions, Cursor, Limits};
use crate::method::Method;
use crate::name::Name;
use crate::reject::Reject;
use crate::request;
use crate::scan;
use crate::span::Span;
use crate::status::Status;

/// A response head, as spans into the buffer it was read from. Reused like a request head.
#[derive(Clone, Debug)]
pub struct ResponseHead {
    /// The status.
    pub status: Status,
    /// The reason phrase; often empty.
    pub reason: Span,
    /// The version in the status line.
    pub version: Version,
    /// All fields, in order.
    pub fields: FieldList,
    /// The framing of the body, which depends on the method of the request.
    pub framing: Framing,
    /// The announced `Content-Length`, even if there is no body (HEAD, 304).
    pub length: Option<u64>,
    /// Whether the connection serves another request after this response.
    pub keep_alive: bool,
    /// Length of the head in bytes, the blank line included.
    pub len: usize,
    cursor: Cursor,
    /// Bytes have been parsed since the last reset.
    has_parsed_bytes: bool,
}

impl Default for ResponseHead {
    fn default() -> ResponseHead {
        ResponseHead {
            status: Status::OK,
            reason: Span::EMPTY,
            version: Version::Http11,
            fields: FieldList::default(),
            framing: Framing::None,
            length: None,
            keep_alive: false,
            len: 0,
            cursor: Cursor::default(),
            has_parsed_bytes: false,
        }
    }
}

impl ResponseHead {
    /// Creates the head of a response received on a stream of another protocol version, whose layer frames
    /// the body. `fields` must already be validated; `ended` means that no body follows, and `method` is the
    /// request's.
    #[must_use]
    pub fn of_stream(
        status: Status,
        fields: FieldList,
        buffer: &[u8],
        method: Method,
        ended: bool,
    ) -> ResponseHead {
        let length = fields.value(buffer, Name::ContentLength).and_then(scan::parse_decimal);
        let framing = match (ended, length) {
            _ if method == Method::Head || status.forbids_content() => Framing::None,
            (true, _) => Framing::None,
            (false, Some(length)) => Framing::Length(length),
            (false, None) => Framing::UntilClose,
        };
        let version = Version::Http2;
        ResponseHead { status, version, fields, framing, length, keep_alive: true, ..ResponseHead::default() }
    }

    /// The first field of that known name.
    #[must_use]
    pub fn field<'b>(&self, buffer: &'b [u8], id: Name) -> Option<&'b [u8]> {
        self.fields.value(buffer, id)
    }

    /// The size of the body in response to a request of that method; for HEAD, of the body that GET would
    /// get.
    #[must_use]
    pub fn body_length(&self, method: Method) -> Length {
        match (self.framing, self.length) {
            (Framing::Length(length), _) | (Framing::None, Some(length)) => Length::Known(length),
            // The length of a response to HEAD without one is unknown; any other response without framing has
            // no body.
            (Framing::None, None) if method != Method::Head => Length::Known(0),
            (Framing::None | Framing::Chunked | Framing::UntilClose, _) => Length::Unknown,
        }
    }

    /// Resets the head for the next response; keeps the memory of the field list.
    pub fn reset(&mut self) {
        let mut fields = std::mem::take(&mut self.fields);
        fields.clear();
        *self = ResponseHead { fields, ..ResponseHead::default() };
    }

    /// Whether nothing of a head has been parsed since the last [`ResponseHead::reset`].
    pub(crate) fn is_untouched(&self) -> bool {
        !self.has_parsed_bytes
    }

    /// Continues to parse `buffer`, which begins with the head's first byte and has grown since the last
    /// call; `method` is the request's. True once the head is complete.
    ///
    /// # Errors
    /// As for requests. The caller decides the status for the proxy's client (502).
    pub fn parse(&mut self, buffer: &[u8], method: Method, limits: &Limits) -> Result<bool, Reject> {
        self.has_parsed_bytes = true;
        if self.cursor.at == 0 && !self.status_line(buffer, limits)? {
            return Ok(false);
        }
        let is_lenient = limits.lenient_heads;
        let whole = line::parse_section(buffer, &mut self.cursor, &mut self.fields, limits, is_lenient)?;
        if whole {
            self.len = self.cursor.at;
            self.validate_fields(buffer, method, is_lenient)?;
        }
        Ok(whole)
    }

    /// The name of the field in whose line [`ResponseHead::parse`] failed; `None` if the error was elsewhere.
    #[must_use]
    pub fn refused_field<'b>(&self, buffer: &'b [u8]) -> Option<&'b [u8]> {
        let line = buffer.get(self.cursor.at..).filter(|_| self.cursor.at > 0)?;
        Some(&line[..scan::token_len(line)]).filter(|name| !name.is_empty())
    }

    fn status_line(&mut self, buffer: &[u8], limits: &Limits) -> Result<bool, Reject> {
        let max = limits.start_line_bytes_max.min(limits.head_bytes_max);
        let window = &buffer[..buffer.len().min(max)];
        match self.parse_status_line(window, limits.bare_lf)? {
            false if window.len() == max => Err(Reject::bad_request("status line too long")),
            whole => Ok(whole),
        }
    }

    fn parse_status_line(&mut self, window: &[u8], bare_lf: bool) -> Result<bool, Reject> {
        // The fast path for the usual `HTTP/1.1 NNN ` prefix.
        if let Some([b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'1', b' ', code @ .., b' ']) =
            window.first_chunk::<13>()
            && let [b'1'..=b'9', b'0'..=b'9', b'0'..=b'9'] = code
        {
            self.version = Version::Http11;
            return self.parse_reason(window, code, 13, bare_lf);
        }
        let Some(version) = window.get(..8) else {
            return if request::is_version_prefix(window) {
                Ok(false)
            } else {
                Err(Reject::bad_request("invalid version"))
            };
        };
        self.version = request::parse_version(version)?;
        let shape = [
            |b: u8| b == b' ',
            |b: u8| (b'1'..=b'9').contains(&b),
            |b: u8| b.is_ascii_digit(),
            |b: u8| b.is_ascii_digit(),
        ];
        if !window[8..].iter().zip(shape).all(|(&byte, fits)| fits(byte)) {
            return Err(Reject::bad_request("invalid status"));
        }
        let Some([_, code @ ..]) = window[8..].first_chunk::<4>() else { return Ok(false) };
        let reason_start = match window.get(12) {
            None => return Ok(false),
            Some(b' ') => 13,
            // The space before the reason is missing: invalid, but common and harmless.
            Some(b'\r' | b'\n') => 12,
            Some(_) => return Err(Reject::bad_request("invalid status")),
        };
        self.parse_reason(window, code, reason_start, bare_lf)
    }

    /// Parses the rest of the status line after the three digits.
    fn parse_reason(
        &mut self,
        window: &[u8],
        code: &[u8; 3],
        reason_start: usize,
        bare_lf: bool,
    ) -> Result<bool, Reject> {
        let code = code.iter().fold(0, |sum, digit| sum * 10 + u16::from(digit - b'0'));
        self.status = Status::of(code).ok_or(Reject::bad_request("invalid status"))?;
        let reason_end = reason_start + scan::value_len(&window[reason_start..]);
        let Some(end) = line::line_end(window, reason_end, bare_lf)? else { return Ok(false) };
        self.reason = Span::new(reason_start, reason_end);
        self.cursor = Cursor::at(end);
        Ok(true)
    }

    fn validate_fields(&mut self, buffer: &[u8], method: Method, is_lenient: bool) -> Result<(), Reject> {
        let is_1_0 = self.version == Version::Http10;
        let mut evidence = FramingFields::default();
        let mut connection = ConnectionOptions::default();
        for field in &self.fields {
            match field.id {
                Name::ContentLength | Name::TransferEncoding => evidence.take(field, buffer)?,
                Name::Connection => connection.add(field.value.of(buffer)),
                _ => {}
            }
        }
        let framing = evidence.framing(is_1_0, Framing::UntilClose, is_lenient)?;
        self.length = evidence.length.length(is_lenient)?;
        evidence.length.normalize(&mut self.fields, buffer);
        let tunnel = method == Method::Connect && (200..300).contains(&self.status.code());
        self.framing = match method {
            _ if self.status == Status::SWITCHING_PROTOCOLS || tunnel => Framing::UntilClose,
            Method::Head => Framing::None,
            _ if self.status.forbids_content() => Framing::None,
            _ => framing,
        };
        // If content is announced for a response that cannot have any, the server may send it nevertheless,
        // and it would be parsed as the next response.
        let astray = self.framing == Framing::None
            && method != Method::Head
            && self.status != Status::NOT_MODIFIED
            && matches!(framing, Framing::Length(_) | Framing::Chunked);
        let is_persistent = (connection.keep_alive || !is_1_0) && !connection.close;
        self.keep_alive = is_persistent && !astray && self.framing != Framing::UntilClose;
        Ok(())
    }
}
