//! Validation of field sections as messages (RFC 9113 section 8), as strict as HTTP/1, so that a request
//! means the same over every protocol version.

use http::{
    BodySize, ContentLength, Field, Fields, Head, Limits, Method, Name, Reject, Span, Status, Target,
    Version, scan, target,
};

use crate::block::FieldBlock;
use crate::lines;
use crate::priority::Priority;

/// The reason for rejecting a field section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadError {
    /// Malformed under HTTP/2: the stream is reset (RFC 9113 section 8.1.1).
    Malformed(&'static str),
    /// Refused with a response.
    Refused(Reject),
}

use HeadError::Malformed;

/// Properties of a request that are not part of its [`Head`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestExtras {
    /// `Content-Length`, which must equal the total length of DATA.
    pub length: Option<u64>,
    /// The `Priority` field.
    pub priority: Option<Priority>,
    /// `:protocol` of an extended CONNECT.
    pub protocol: Option<Span>,
    /// Whether the scheme is https.
    pub is_https: bool,
}

/// The pseudo-header fields of a request.
#[derive(Clone, Copy, Default)]
struct PseudoFields {
    method: Option<Span>,
    scheme: Option<Span>,
    authority: Option<Span>,
    path: Option<Span>,
    protocol: Option<Span>,
}

impl PseudoFields {
    /// Reads the pseudo-header fields at the start of the block; returns them and their number.
    fn read(block: &FieldBlock) -> Result<(PseudoFields, usize), HeadError> {
        let mut pseudo = PseudoFields::default();
        let mut count = 0;
        for field in &block.fields {
            let name = field.name.of(&block.bytes);
            let place = match name {
                b":method" => &mut pseudo.method,
                b":scheme" => &mut pseudo.scheme,
                b":authority" => &mut pseudo.authority,
                b":path" => &mut pseudo.path,
                b":protocol" => &mut pseudo.protocol,
                [b':', ..] => return Err(Malformed("unknown pseudo-header field")),
                _ => break,
            };
            if place.replace(field.value).is_some() {
                return Err(Malformed("repeated pseudo-header field"));
            }
            count += 1;
        }
        Ok((pseudo, count))
    }
}

/// Properties of a request that its field section does not show.
#[derive(Clone, Copy, Debug)]
pub struct RequestSection {
    /// Limits of the head.
    pub limits: Limits,
    /// Version of the connection.
    pub version: Version,
    /// Whether no body follows.
    pub ended: bool,
    /// Whether extended CONNECT is allowed.
    pub connect_protocol: bool,
}

/// Converts the block's section to a request: `head` receives the fields, with `Host` first, and spans into
/// the block's bytes.
pub fn request(
    block: &mut FieldBlock,
    head: &mut Head,
    section: &RequestSection,
) -> Result<RequestExtras, HeadError> {
    let &RequestSection { version, ended, .. } = section;
    *head = Head { fields: std::mem::take(&mut head.fields), version, ..Head::default() };
    head.fields.clear();
    if block.is_too_large {
        // The method must be known for any refusal, because a response to HEAD has no content.
        let method = block.iter().find(|(name, _)| *name == b":method").map(|(_, value)| Method::of(value));
        head.method = method.unwrap_or_default();
        return Err(HeadError::Refused(Reject::new(Status::FIELDS_TOO_LARGE, "head too large")));
    }
    if !block.is_valid {
        return Err(Malformed("invalid byte in a field"));
    }
    let (pseudo, count) = PseudoFields::read(block)?;
    let mut extras = RequestExtras { protocol: pseudo.protocol, ..RequestExtras::default() };
    let facts = CombinedFields::read(&block.fields[count..], &block.bytes)?;
    let length = facts.length.length(false).map_err(malformed)?;
    let refused = request_line(&pseudo, block, head, section, &mut extras)?;
    let host = authority(&pseudo, &facts, block, head)?;
    std::mem::swap(&mut head.fields, &mut block.fields);
    match host {
        // `Host` replaces one of the pseudo-header fields.
        Some(host) => {
            head.fields.replace(count - 1, host);
            head.fields.remove(..count - 1);
        }
        None => head.fields.remove(..count),
    }
    if facts.cookies > 1 {
        join_cookies(head, &mut block.bytes);
    }
    let is_connect = head.method == Method::Connect;
    head.body = match (length, ended) {
        (Some(_), _) if is_connect => return Err(Malformed("CONNECT with Content-Length")),
        (Some(1..), true) => return Err(Malformed("content-length without content")),
        (Some(0), _) | (None, true) => BodySize::None,
        (Some(length), false) => BodySize::Known(length),
        (None, false) => BodySize::Unknown,
    };
    head.expects_continue = facts.expects == HeadExpectation::Continue && head.body != BodySize::None;
    extras.length = length;
    extras.priority = facts.priority;
    match (refused, facts.expects) {
        (Some(reject), _) => Err(HeadError::Refused(reject)),
        (None, HeadExpectation::Unknown) => {
            Err(HeadError::Refused(Reject::new(Status::EXPECTATION_FAILED, "unknown expectation")))
        }
        _ => Ok(extras),
    }
}

/// Parses method, scheme and path. Returns a reject for a request that is well-formed but refused.
fn request_line(
    pseudo: &PseudoFields,
    block: &FieldBlock,
    head: &mut Head,
    section: &RequestSection,
    extras: &mut RequestExtras,
) -> Result<Option<Reject>, HeadError> {
    let bytes = &block.bytes[..];
    let method = pseudo.method.ok_or(Malformed("request without :method"))?;
    if !Method::is_name(method.of(bytes)) {
        return Err(Malformed("invalid method"));
    }
    head.method = Method::of(method.of(bytes));
    head.method_name = method;
    let is_connect = head.method == Method::Connect;
    match pseudo.protocol {
        Some(_) if !is_connect => return Err(Malformed(":protocol without CONNECT")),
        Some(_) if !section.connect_protocol => return Err(Malformed("extended CONNECT is not enabled")),
        Some(protocol) if !scan::is_token(protocol.of(bytes)) => return Err(Malformed("invalid :protocol")),
        None if is_connect => {
            if pseudo.scheme.is_some() || pseudo.path.is_some() {
                return Err(Malformed("CONNECT with :scheme or :path"));
            }
            let authority = pseudo.authority.ok_or(Malformed("CONNECT without :authority"))?;
            head.target = Target::parse(Method::Connect, bytes, authority).map_err(malformed)?;
            return Ok(None);
        }
        _ => {}
    }
    let scheme = pseudo.scheme.ok_or(Malformed("request without :scheme"))?.of(bytes);
    extras.is_https = match scheme {
        b"http" => false,
        b"https" => true,
        _ => return Err(Malformed("unknown scheme")),
    };
    let path = pseudo.path.ok_or(Malformed("request without :path"))?;
    let text = path.of(bytes);
    if !matches!(text, [b'/', ..] | b"*") || scan::target_len(text) != text.len() {
        return Err(Malformed("invalid path"));
    }
    let method = if is_connect { Method::Get } else { head.method };
    head.target = Target::parse(method, bytes, path).map_err(malformed)?;
    // Counts the same bytes as the request line of HTTP/1.
    let line_len = head.method_name.len() + text.len() + " \u{20}HTTP/1.1\r\n".len();
    let too_long = Reject::new(Status::URI_TOO_LONG, "request line too long");
    Ok((line_len > section.limits.start_line_bytes_max).then_some(too_long))
}

fn malformed(reject: Reject) -> HeadError {
    Malformed(reject.reason)
}

/// Determines the request's authority: `:authority`, otherwise `Host`; if both exist they must be equal.
/// Returns the `Host` field to add.
fn authority(
    pseudo: &PseudoFields,
    facts: &CombinedFields,
    block: &mut FieldBlock,
    head: &mut Head,
) -> Result<Option<Field>, HeadError> {
    let Some(authority) = pseudo.authority else {
        head.authority = facts.host.ok_or(Malformed("request without :authority and Host"))?;
        return if head.authority.is_empty() { Err(Malformed("empty Host")) } else { Ok(None) };
    };
    let text = authority.of(&block.bytes);
    if text.is_empty() || !target::is_authority(text) {
        return Err(Malformed("invalid :authority"));
    }
    head.authority = authority;
    match facts.host {
        Some(host) if host.of(&block.bytes).eq_ignore_ascii_case(text) => Ok(None),
        Some(_) => Err(Malformed(":authority and Host differ")),
        None => {
            let start = block.bytes.len();
            block.bytes.extend_from_slice(b"host: ");
            block.bytes.extend_from_within(authority.start()..authority.end());
            let end = block.bytes.len();
            block.bytes.extend_from_slice(b"\r\n");
            Ok(Some(Field {
                id: Name::Host,
                name: Span::new(start, start + 4),
                value: Span::new(start + 6, end),
            }))
        }
    }
}

/// Joins the `Cookie` fields that a client may split (RFC 9113 section 8.2.3) into one, at the position of
/// the first.
fn join_cookies(head: &mut Head, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    bytes.extend_from_slice(b"cookie: ");
    let value_start = bytes.len();
    let mut first = None;
    let mut place = 0;
    head.fields.retain(|field| {
        let is_crumb = field.id == Name::Cookie;
        if is_crumb && first.is_some() {
            bytes.extend_from_slice(b"; ");
        }
        if is_crumb {
            bytes.extend_from_within(field.value.start()..field.value.end());
        }
        let keeps = !is_crumb || first.is_none();
        if is_crumb && first.is_none() {
            first = Some(place);
        }
        place += usize::from(keeps);
        keeps
    });
    let value = Span::new(value_start, bytes.len());
    bytes.extend_from_slice(b"\r\n");
    if let Some(place) = first {
        let cookie = Field { id: Name::Cookie, name: Span::new(start, start + 6), value };
        head.fields.replace(place, cookie);
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum HeadExpectation {
    #[default]
    Nothing,
    Continue,
    Unknown,
}

/// The combined meaning of the fields of a head.
#[derive(Clone, Copy, Debug, Default)]
struct CombinedFields {
    length: ContentLength,
    host: Option<Span>,
    has_credentials: bool,
    expects: HeadExpectation,
    cookies: usize,
    priority: Option<Priority>,
}

impl CombinedFields {
    fn read(fields: &[Field], bytes: &[u8]) -> Result<CombinedFields, HeadError> {
        let mut facts = CombinedFields::default();
        for field in fields {
            let value = || field.value.of(bytes);
            match field.id {
                Name::Other => match field.name.of(bytes) {
                    [b':', ..] => return Err(Malformed("pseudo-header field after other fields")),
                    b"priority" => facts.priority = Some(Priority::of(value())),
                    _ => {}
                },
                id if lines::is_connection_specific(id) => return Err(Malformed("field of a connection")),
                Name::Te if !value().eq_ignore_ascii_case(b"trailers") => {
                    return Err(Malformed("te other than trailers"));
                }
                Name::ContentLength => facts.length.take(value()).map_err(malformed)?,
                Name::Host if !target::is_authority(value()) => return Err(Malformed("invalid Host")),
                Name::Host if facts.host.replace(field.value).is_some() => {
                    return Err(Malformed("repeated Host"));
                }
                Name::Authorization if facts.has_credentials => {
                    return Err(Malformed("repeated Authorization"));
                }
                Name::Authorization => facts.has_credentials = true,
                Name::Expect if value().eq_ignore_ascii_case(b"100-continue") => {
                    facts.expects = HeadExpectation::Continue;
                }
                Name::Expect => facts.expects = HeadExpectation::Unknown,
                Name::Cookie => facts.cookies += 1,
                _ => {}
            }
        }
        Ok(facts)
    }
}

/// Converts the block's section to a response: its status and its `Content-Length`. The pseudo-header field
/// is removed from the fields. `is_lenient` accepts a repeated `Content-Length`.
pub fn response(
    block: &mut FieldBlock,
    version: Version,
    is_lenient: bool,
) -> Result<(Status, Option<u64>), HeadError> {
    if block.is_too_large {
        return Err(Malformed("response head too large"));
    }
    if !block.is_valid {
        return Err(Malformed("invalid byte in a field"));
    }
    let status = match block.iter().next() {
        Some((b":status", digits)) if digits.len() == 3 => scan::parse_decimal(digits),
        _ => None,
    };
    let status = status.and_then(|code| Status::of(code as u16)).ok_or(Malformed("invalid :status"))?;
    if status == Status::SWITCHING_PROTOCOLS {
        return Err(Malformed(match version {
            Version::Http2 => "101 in HTTP/2",
            _ => "101 in HTTP/3",
        }));
    }
    let facts = CombinedFields::read(&block.fields[1..], &block.bytes)?;
    let length = facts.length.length(is_lenient).map_err(malformed)?;
    block.fields.remove(..1);
    facts.length.normalize(&mut block.fields, &block.bytes);
    Ok((status, length))
}

/// Converts the block's section to trailers. Fields that would change the meaning of the message are left
/// out.
pub fn trailers(block: &FieldBlock) -> Result<Fields, HeadError> {
    if block.is_too_large {
        return Err(Malformed("trailers too large"));
    }
    if !block.is_valid {
        return Err(Malformed("invalid byte in a field"));
    }
    let mut trailers = Fields::new();
    for field in &block.fields {
        let name = field.name.of(&block.bytes);
        let value = field.value.of(&block.bytes);
        if name.starts_with(b":") {
            return Err(Malformed("pseudo-header field in trailers"));
        }
        if field.id.is_allowed_in_trailers() {
            trailers.try_push(name, value).expect("a valid field");
        }
    }
    Ok(trailers)
}
