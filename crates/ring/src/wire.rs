//! The encoding of heads in frames: fields, each a name and a value of arbitrary bytes. Only names are
//! interpreted.
//!
//! ```text
//! request head    field*
//! response head   status u16, field*
//! trailers        field*
//! field           id u8 | value length u24, as one u32; for id 0: name length u16, name; value
//! ```
//!
//! All numbers are little-endian and unaligned. A well-known name is encoded as its id alone, so that a
//! language's worker can keep a ready-made key for each; ids below 32 are parts of the request that are not
//! header fields.

use std::fmt;

/// A well-known name: [`FieldId::METHOD`] or another part of a request, or the name of a header field.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FieldId(u8);

macro_rules! parts {
    ($($(#[$doc:meta])* $name:ident = $id:literal $text:literal,)*) => {
        impl FieldId {
            $($(#[$doc])* pub const $name: FieldId = FieldId($id);)*
        }
        const PARTS: &[(u8, &str)] = &[$(($id, $text),)*];
    };
}

parts! {
    /// The method, as sent.
    METHOD = 1 ":method",
    /// The path and query, percent-encoded; `*` for `OPTIONS *`.
    TARGET = 2 ":target",
    /// The part of the path at which the application is mounted, decoded; empty at the root.
    SCRIPT_NAME = 3 ":script-name",
    /// The rest of the path, decoded.
    PATH = 4 ":path",
    /// The query without its question mark.
    QUERY = 5 ":query",
    /// The protocol version, such as `HTTP/1.1`.
    PROTOCOL = 6 ":protocol",
    /// `http` or `https`.
    SCHEME = 7 ":scheme",
    /// The client's address.
    REMOTE_ADDR = 8 ":remote-addr",
    /// The client's port, decimal.
    REMOTE_PORT = 9 ":remote-port",
    /// The host that the request was made to, without port.
    SERVER_NAME = 10 ":server-name",
    /// The port that the request was made to, decimal.
    SERVER_PORT = 11 ":server-port",
    /// The server's own address.
    SERVER_ADDR = 12 ":server-addr",
    /// The request's id in the server's log.
    REQUEST_ID = 13 ":request-id",
    /// The reason phrase of a response, if the application gave one.
    REASON = 14 ":reason",
    /// The client requests a WebSocket: the subprotocols it offers, separated by commas.
    WEBSOCKET = 15 ":websocket",
    /// The selected target of an application with several targets.
    APP_TARGET = 16 ":app-target",
    /// A variable for CGI-like environments that no header field can set: `HTTPS=on`. May be repeated.
    VARIABLE = 17 ":variable",
}

/// Header field names, with ids from 32 on. Append only: ids must never change.
const HEADERS: &[&str] = &[
    "content-type",
    "content-length",
    "host",
    "user-agent",
    "accept",
    "accept-encoding",
    "accept-language",
    "accept-charset",
    "connection",
    "cookie",
    "referer",
    "origin",
    "cache-control",
    "pragma",
    "authorization",
    "if-none-match",
    "if-modified-since",
    "if-match",
    "if-unmodified-since",
    "if-range",
    "range",
    "expect",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "upgrade-insecure-requests",
    "date",
    "via",
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-real-ip",
    "x-requested-with",
    "x-request-id",
    "x-csrf-token",
    "traceparent",
    "tracestate",
    "priority",
    "dnt",
    "sec-gpc",
    "sec-fetch-dest",
    "sec-fetch-mode",
    "sec-fetch-site",
    "sec-fetch-user",
    "sec-ch-ua",
    "sec-ch-ua-mobile",
    "sec-ch-ua-platform",
    "sec-websocket-key",
    "sec-websocket-version",
    "sec-websocket-protocol",
    "sec-websocket-extensions",
    "sec-websocket-accept",
    "last-event-id",
    "content-encoding",
    "content-language",
    "content-location",
    "content-disposition",
    "content-range",
    "content-security-policy",
    "access-control-request-method",
    "access-control-request-headers",
    "access-control-allow-origin",
    "access-control-allow-credentials",
    "access-control-allow-headers",
    "access-control-allow-methods",
    "access-control-expose-headers",
    "access-control-max-age",
    "accept-ranges",
    "age",
    "allow",
    "alt-svc",
    "etag",
    "expires",
    "last-modified",
    "link",
    "location",
    "proxy-authenticate",
    "proxy-authorization",
    "referrer-policy",
    "retry-after",
    "server",
    "set-cookie",
    "strict-transport-security",
    "vary",
    "www-authenticate",
    "x-accel-buffering",
    "x-content-type-options",
    "x-frame-options",
    "x-powered-by",
    "x-runtime",
    "x-sendfile",
    "x-xss-protection",
    "keep-alive",
    "proxy-connection",
];

const FIRST_HEADER: u8 = 32;
const TABLE_LEN: usize = 512;

/// Ids by hash of the name, with open addressing: one or two probes per name.
static IDS: [u8; TABLE_LEN] = {
    let mut table = [0; TABLE_LEN];
    let mut index = 0;
    while index < HEADERS.len() {
        let mut at = hash(HEADERS[index].as_bytes());
        while table[at] != 0 {
            at = (at + 1) % TABLE_LEN;
        }
        table[at] = FIRST_HEADER + index as u8;
        index += 1;
    }
    table
};

/// Hashes the length and five bytes in lower case.
const fn hash(name: &[u8]) -> usize {
    let (len, mut sum) = (name.len(), name.len());
    if len > 0 {
        let picks = [0, len / 4, len / 2, len - len / 4 - 1, len - 1];
        let mut index = 0;
        while index < picks.len() {
            sum = sum.wrapping_mul(33) ^ (name[picks[index]] | 0x20) as usize;
            index += 1;
        }
    }
    (sum ^ sum >> 9) % TABLE_LEN
}

impl FieldId {
    /// Returns the well-known header name equal to `name`, ignoring case.
    pub fn of_header(name: &[u8]) -> Option<FieldId> {
        let mut at = hash(name);
        while IDS[at] != 0 {
            if HEADERS[usize::from(IDS[at] - FIRST_HEADER)].as_bytes().eq_ignore_ascii_case(name) {
                return Some(FieldId(IDS[at]));
            }
            at = (at + 1) % TABLE_LEN;
        }
        None
    }

    /// Returns the name with this id, if there is one.
    pub fn of_id(id: u8) -> Option<FieldId> {
        let known = match id.checked_sub(FIRST_HEADER) {
            Some(header) => usize::from(header) < HEADERS.len(),
            None => PARTS.iter().any(|(part, _)| *part == id),
        };
        known.then_some(FieldId(id))
    }

    /// The id, 1 to 255.
    pub fn id(self) -> u8 {
        self.0
    }

    /// The name: a header's in lower case, a request part's with a leading colon.
    pub fn text(self) -> &'static str {
        match self.0.checked_sub(FIRST_HEADER) {
            Some(header) => HEADERS[usize::from(header)],
            None => PARTS.iter().find(|(id, _)| *id == self.0).map_or("", |(_, text)| text),
        }
    }

    /// Whether the name is that of a header field rather than of a request part.
    pub fn is_header(self) -> bool {
        self.0 >= FIRST_HEADER
    }
}

/// A name or value is too long for a field: 64 KiB and 16 MiB, respectively.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooLong;

/// A head is malformed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field too long for the channel")
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a malformed head")
    }
}

impl std::error::Error for TooLong {}
impl std::error::Error for Malformed {}

/// Appends a field with a well-known name.
///
/// # Errors
/// [`TooLong`], with nothing appended.
pub fn put(into: &mut Vec<u8>, name: FieldId, value: &[u8]) -> Result<(), TooLong> {
    into.extend_from_slice(&field_word(name.0, value)?);
    into.extend_from_slice(value);
    Ok(())
}

/// Appends a header field, with its id if the name is well known.
///
/// # Errors
/// [`TooLong`], with nothing appended.
pub fn put_header(into: &mut Vec<u8>, name: &[u8], value: &[u8]) -> Result<(), TooLong> {
    if let Some(known) = FieldId::of_header(name) {
        return put(into, known, value);
    }
    let name_len = u16::try_from(name.len()).map_err(|_| TooLong)?;
    into.extend_from_slice(&field_word(0, value)?);
    into.extend_from_slice(&name_len.to_le_bytes());
    into.extend_from_slice(name);
    into.extend_from_slice(value);
    Ok(())
}

fn field_word(id: u8, value: &[u8]) -> Result<[u8; 4], TooLong> {
    let len = u32::try_from(value.len()).ok().filter(|len| *len < 1 << 24).ok_or(TooLong)?;
    Ok((len << 8 | u32::from(id)).to_le_bytes())
}

/// Begins a response head.
pub fn put_status(into: &mut Vec<u8>, status: u16) {
    into.extend_from_slice(&status.to_le_bytes());
}

/// Splits a response head into its status and fields.
///
/// # Errors
/// [`Malformed`] if the status is missing.
pub fn response(head: &[u8]) -> Result<(u16, WireFields<'_>), Malformed> {
    let (status, fields) = head.split_first_chunk().ok_or(Malformed)?;
    Ok((u16::from_le_bytes(*status), WireFields(fields)))
}

/// One field of a head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WireField<'a> {
    /// The well-known name, if it is one.
    pub known: Option<FieldId>,
    /// The name: lower case if it is well known, otherwise as written.
    pub name: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

/// The fields of a request head, of trailers, or of the rest of a response head. Iteration ends after a
/// malformed field.
#[derive(Clone, Debug)]
pub struct WireFields<'a>(pub &'a [u8]);

impl<'a> WireFields<'a> {
    fn field(&mut self) -> Result<WireField<'a>, Malformed> {
        let word = u32::from_le_bytes(*self.0.split_off(..4).and_then(<[u8]>::first_chunk).ok_or(Malformed)?);
        let (known, name) = if word & 0xff == 0 {
            let len = *self.0.split_off(..2).and_then(<[u8]>::first_chunk).ok_or(Malformed)?;
            (None, self.0.split_off(..usize::from(u16::from_le_bytes(len))).ok_or(Malformed)?)
        } else {
            let known = FieldId::of_id((word & 0xff) as u8).ok_or(Malformed)?;
            (Some(known), known.text().as_bytes())
        };
        let value = self.0.split_off(..(word >> 8) as usize).ok_or(Malformed)?;
        Ok(WireField { known, name, value })
    }
}

impl<'a> Iterator for WireFields<'a> {
    type Item = Result<WireField<'a>, Malformed>;

    fn next(&mut self) -> Option<Result<WireField<'a>, Malformed>> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_ids_and_names_map_to_each_other() {
        for (index, text) in HEADERS.iter().enumerate() {
            let name = FieldId::of_id(FIRST_HEADER + index as u8).unwrap();
            assert_eq!((name.text(), name.is_header()), (*text, true));
            assert_eq!(FieldId::of_header(text.as_bytes()), Some(name));
            assert_eq!(FieldId::of_header(text.to_ascii_uppercase().as_bytes()), Some(name));
            assert_eq!(**text, text.to_ascii_lowercase());
        }
        for (id, text) in PARTS {
            let name = FieldId::of_id(*id).unwrap();
            assert_eq!((name.id(), name.text(), name.is_header()), (*id, *text, false));
            assert_eq!(FieldId::of_header(text.as_bytes()), None);
        }
        assert_eq!(FieldId::of_header(b""), None);
        assert_eq!(FieldId::of_header(b"x-unheard-of"), None);
        assert_eq!((FieldId::of_id(0), FieldId::of_id(31), FieldId::of_id(255)), (None, None, None));
    }

    #[test]
    fn encoded_head_is_decoded_field_by_field() {
        let mut head = Vec::new();
        put_status(&mut head, 404);
        put_header(&mut head, b"Content-Type", b"text/html").unwrap();
        put_header(&mut head, b"X-Mine", b"").unwrap();
        put(&mut head, FieldId::REASON, b"Gone Fishing").unwrap();
        let (status, fields) = response(&head).unwrap();
        let fields: Vec<_> = fields.map(|field| field.map(|f| (f.name, f.value)).unwrap()).collect();
        assert_eq!(status, 404);
        let expected: [(&[u8], &[u8]); 3] =
            [(b"content-type", b"text/html"), (b"X-Mine", b""), (b":reason", b"Gone Fishing")];
        assert_eq!(fields, expected);
    }

    #[test]
    fn truncated_head_is_malformed_or_shorter() {
        let mut head = Vec::new();
        put_header(&mut head, b"Host", b"a").unwrap();
        let first = head.len();
        put_header(&mut head, b"X-Mine", b"bc").unwrap();
        for cut in 0..=head.len() {
            let fields: Vec<_> = WireFields(&head[..cut]).collect();
            let whole = fields.iter().filter(|field| field.is_ok()).count();
            assert_eq!(whole, usize::from(cut >= first) + usize::from(cut == head.len()), "cut at {cut}");
            let clean = [0, first, head.len()].contains(&cut);
            assert_eq!(fields.iter().any(Result::is_err), !clean, "cut at {cut}");
        }
        assert_eq!(response(&[1]).map(|(status, _)| status), Err(Malformed));
        assert_eq!(WireFields(&[31, 0, 0, 0]).next(), Some(Err(Malformed)), "an id nobody has");
    }

    #[test]
    fn too_long_names_and_values_are_rejected() {
        let mut head = Vec::new();
        assert_eq!(put_header(&mut head, &[b'x'; 65536], b""), Err(TooLong));
        assert_eq!(put(&mut head, FieldId::PATH, &vec![0; 1 << 24]), Err(TooLong));
        assert!(head.is_empty());
    }
}
