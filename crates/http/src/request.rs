//! Request heads (RFC 9112 section 3).

use std::ops::Deref;

use crate::framing::{Framing, FramingFields};
use crate::head::{Head, Version};
use crate::line::{self, ConnectionOptions, Cursor, Limits};
use crate::method::Method;
use crate::name::Name;
use crate::reject::Reject;
use crate::scan;
use crate::span::Span;
use crate::status::Status;
use crate::target::{self, Target};

/// Maximum number of empty lines before a request that are skipped.
const EMPTY_LINES_MAX: usize = 4;

/// The head of an HTTP/1 request: the protocol-independent [`Head`] and the properties specific to HTTP/1.
/// Reused for each request, so that the field list is allocated once per connection.
#[derive(Clone, Debug, Default)]
pub struct RequestHead {
    head: Head,
    /// The framing of the body.
    pub framing: Framing,
    /// Whether the client wants the connection to stay open.
    pub keep_alive: bool,
    /// Length of the head in bytes, the blank line included.
    pub len: usize,
    cursor: Cursor,
    /// Bytes have been parsed since the last reset.
    has_parsed_bytes: bool,
}

impl Deref for RequestHead {
    type Target = Head;

    fn deref(&self) -> &Head {
        &self.head
    }
}

impl RequestHead {
    /// Resets the head for the next request; keeps the memory of the field list.
    pub fn reset(&mut self) {
        let mut fields = std::mem::take(&mut self.head.fields);
        fields.clear();
        *self = RequestHead { head: Head { fields, ..Head::default() }, ..RequestHead::default() };
    }

    /// Whether nothing of a head has been parsed since the last [`RequestHead::reset`].
    pub(crate) fn is_untouched(&self) -> bool {
        !self.has_parsed_bytes
    }

    /// Continues to parse `buffer`, which begins with the head's first byte and has grown since the last
    /// call. Returns true once the head is complete.
    ///
    /// # Errors
    /// Requests that are invalid under RFC 9112, and ambiguous ones that attackers use: see the vectors.
    pub fn parse(&mut self, buffer: &[u8], limits: &Limits) -> Result<bool, Reject> {
        self.has_parsed_bytes = true;
        if self.cursor.at == 0 && !self.start_line(buffer, limits)? {
            return Ok(false);
        }
        let whole = line::parse_section(buffer, &mut self.cursor, &mut self.head.fields, limits, false)?;
        if whole {
            self.len = self.cursor.at;
            self.validate_fields(buffer)?;
        }
        Ok(whole)
    }

    fn start_line(&mut self, buffer: &[u8], limits: &Limits) -> Result<bool, Reject> {
        let Some(start) = skip_empty_lines(buffer, limits.bare_lf)? else { return Ok(false) };
        let max = limits.start_line_bytes_max.saturating_add(start).min(limits.head_bytes_max);
        let window = &buffer[..buffer.len().min(max)];
        match self.request_line(window, start, limits.bare_lf)? {
            false if window.len() == max => Err(Reject::new(Status::URI_TOO_LONG, "request line too long")),
            whole => Ok(whole),
        }
    }

    fn request_line(&mut self, window: &[u8], start: usize, bare_lf: bool) -> Result<bool, Reject> {
        let Cursor { first_len: first, second_len: second, .. } = &mut self.cursor;
        *first += scan::token_len(&window[start + *first..]);
        let method_end = start + *first;
        match window.get(method_end) {
            None => return Ok(false),
            Some(b' ') if Method::is_name(&window[start..method_end]) => {}
            Some(0x16) if method_end == start => {
                return Err(Reject::bad_request("TLS on a port without TLS"));
            }
            Some(_) => return Err(Reject::bad_request("invalid method")),
        }
        let target_start = method_end + 1;
        *second += scan::target_len(&window[target_start + *second..]);
        let target_end = target_start + *second;
        match window.get(target_end) {
            None => return Ok(false),
            Some(b' ') if target_end > target_start => {}
            Some(b'\r' | b'\n') => return Err(Reject::bad_request("request line without a version")),
            Some(_) => return Err(Reject::bad_request("invalid byte in the target")),
        }
        let version_start = target_end + 1;
        let Some(version) = window.get(version_start..version_start + 8) else {
            // Refuse early a prefix that cannot become a version.
            return if is_version_prefix(&window[version_start..]) {
                Ok(false)
            } else {
                Err(Reject::bad_request("invalid version"))
            };
        };
        self.head.version =
            parse_version(version).map_err(|reject| match &window[start..version_start + 8] {
                b"PRI * HTTP/2.0" => Reject::new(reject.status, HTTP2_REFUSED),
                _ => reject,
            })?;
        if window.get(version_start + 8).is_some_and(|byte| !matches!(byte, b'\r' | b'\n')) {
            return Err(Reject::bad_request("invalid version"));
        }
        let Some(end) = line::line_end(window, version_start + 8, bare_lf)? else { return Ok(false) };
        self.head.method_name = Span::new(start, method_end);
        self.head.method = Method::of(self.head.method_name.of(window));
        self.head.target = Target::parse(self.head.method, window, Span::new(target_start, target_end))?;
        self.cursor = Cursor::at(end);
        Ok(true)
    }

    /// Validates the fields together, after the last one.
    fn validate_fields(&mut self, buffer: &[u8]) -> Result<(), Reject> {
        let is_1_0 = self.head.version == Version::Http10;
        let mut evidence = FramingFields::default();
        let mut host = None;
        let mut connection = ConnectionOptions::default();
        let mut expects = false;
        let mut has_credentials = false;
        for field in &self.head.fields {
            match field.id {
                Name::ContentLength | Name::TransferEncoding => evidence.take(field, buffer)?,
                Name::Host if host.is_some() => return Err(Reject::bad_request("repeated Host")),
                Name::Host if !target::is_authority(field.value.of(buffer)) => {
                    return Err(Reject::bad_request("invalid Host"));
                }
                Name::Host => host = Some(field.value),
                Name::Authorization if has_credentials => {
                    return Err(Reject::bad_request("repeated Authorization"));
                }
                Name::Authorization => has_credentials = true,
                Name::Connection => connection.add(field.value.of(buffer)),
                Name::Expect if is_1_0 => {}
                Name::Expect if field.value.of(buffer).eq_ignore_ascii_case(b"100-continue") => {
                    expects = true
                }
                Name::Expect => return Err(Reject::new(Status::EXPECTATION_FAILED, "unknown expectation")),
                _ => {}
            }
        }
        if host.is_none() && !is_1_0 {
            return Err(Reject::bad_request("HTTP/1.1 without Host"));
        }
        self.keep_alive = (connection.keep_alive || !is_1_0) && !connection.close;
        self.framing = evidence.framing(is_1_0, Framing::None, false)?;
        self.head.body = self.framing.size();
        self.head.expects_continue = expects && self.framing != Framing::None;
        self.head.authority = match self.head.target.authority {
            Span::EMPTY => host.unwrap_or_default(),
            authority => authority,
        };
        Ok(())
    }
}

/// Returns the offset of the request line. Empty lines before it are skipped (RFC 9112 section 2.2), because
/// old clients send some after a POST. `None` if more bytes are needed.
fn skip_empty_lines(buffer: &[u8], bare_lf: bool) -> Result<Option<usize>, Reject> {
    let mut start = 0;
    for _ in 0..EMPTY_LINES_MAX {
        match &buffer[start..] {
            [b'\r', b'\n', ..] => start += 2,
            [b'\n', ..] if bare_lf => start += 1,
            [b'\r'] => return Ok(None),
            _ => return Ok(Some(start)),
        }
    }
    match buffer.get(start) {
        Some(b'\r' | b'\n') => Err(Reject::bad_request("too many empty lines before a request")),
        _ => Ok(Some(start)),
    }
}

/// The reason for refusing the HTTP/2 preface, which looks like an HTTP/1 request.
const HTTP2_REFUSED: &str = "HTTP/2 with prior knowledge, which this address does not accept; `h2c = true` of a `listen` entry allows it";

pub(crate) fn parse_version(version: &[u8]) -> Result<Version, Reject> {
    match version {
        b"HTTP/1.1" => Ok(Version::Http11),
        b"HTTP/1.0" => Ok(Version::Http10),
        [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
            if major.is_ascii_digit() && minor.is_ascii_digit() =>
        {
            Err(Reject::new(Status::VERSION_NOT_SUPPORTED, "unknown HTTP version"))
        }
        _ => Err(Reject::bad_request("invalid version")),
    }
}

/// Whether `begun` (fewer than eight bytes) is a prefix of `HTTP/d.d`.
pub(crate) fn is_version_prefix(begun: &[u8]) -> bool {
    begun.iter().zip(b"HTTP/0.0").all(|(&byte, &want)| match want {
        b'0' => byte.is_ascii_digit(),
        _ => byte == want,
    })
}
