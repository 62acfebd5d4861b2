//! Ids of requests, and of the traces that they are part of (W3C Trace Context, level 1).

use std::ops::Deref;

use crate::head::Head;
use crate::name::Name;
use crate::scan::{self, hex};

/// Bytes of an id that a proxy in front may send.
pub const REQUEST_ID_BYTES_MAX: usize = 128;
/// Members of a `tracestate` (section 3.3.1.1).
const STATES_MAX: usize = 32;
/// Bytes of a key and of a value in it.
const STATE_BYTES_MAX: usize = 256;
/// Bytes of a `traceparent` of version 00.
const TRACEPARENT_BYTES: usize = 55;

/// The id of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestId {
    /// It has none.
    #[default]
    None,
    /// This server made it.
    Made(u128),
    /// The one in its field `X-Request-Id`.
    Sent,
}

/// The place of a request in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceSpan {
    /// The trace.
    pub trace: u128,
    /// The span of whoever sent the request; 0 if the trace begins here.
    pub parent: u64,
    /// The span of the request on this server: the parent of what upstream servers and applications do.
    pub span: u64,
    /// Whether the trace is recorded.
    pub is_sampled: bool,
    /// Whether the request's `tracestate` is passed on.
    pub has_state: bool,
}

/// The ids of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestIds {
    /// Its own.
    pub request: RequestId,
    /// Its place in a trace; `None` where this server takes no part in traces.
    pub trace: Option<TraceSpan>,
}

/// A valid `traceparent`: the trace, the sender's span, and whether the trace is recorded.
pub type TraceParent = (u128, u64, bool);

impl RequestIds {
    /// Appends the id of the request; nothing if it has none.
    pub fn write_request_id(&self, head: &Head, bytes: &[u8], out: &mut Vec<u8>) {
        match self.request {
            RequestId::None => {}
            RequestId::Made(id) => out.extend_from_slice(&IdText::wide(id)),
            RequestId::Sent => out.extend_from_slice(head.field(bytes, Name::XRequestId).unwrap_or_default()),
        }
    }

    /// Whether a field of the request is passed on to upstream servers and applications, as far as it concerns ids: not
    /// where another one stands in its place.
    #[must_use]
    pub fn passes(&self, name: Name) -> bool {
        match name {
            Name::XRequestId => !matches!(self.request, RequestId::Made(_)),
            Name::Traceparent => self.trace.is_none(),
            Name::Tracestate => self.trace.is_none_or(|trace| trace.has_state),
            _ => true,
        }
    }

    /// The fields that are passed on in addition.
    pub fn fields(&self) -> impl Iterator<Item = (Name, IdText)> {
        let request = match self.request {
            RequestId::Made(id) => Some((Name::XRequestId, IdText::wide(id))),
            RequestId::None | RequestId::Sent => None,
        };
        request.into_iter().chain(self.trace.map(|trace| (Name::Traceparent, trace.traceparent())))
    }
}

impl TraceSpan {
    /// The value of `traceparent` for what this server asks.
    #[must_use]
    pub fn traceparent(&self) -> IdText {
        let mut out = IdText::default();
        out.push(b"00-");
        out.push_wide(self.trace);
        out.push(b"-");
        out.push_hex(self.span);
        out.push(if self.is_sampled { b"-01" } else { b"-00" });
        out
    }

    /// Appends the id of the trace, 32 hexadecimal digits.
    pub fn write_trace(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&IdText::wide(self.trace));
    }

    /// Appends the id of this server's span, 16 hexadecimal digits.
    pub fn write_span(&self, out: &mut Vec<u8>) {
        let mut text = IdText::default();
        text.push_hex(self.span);
        out.extend_from_slice(&text);
    }
}

/// The line of `X-Request-Id` for an id of this server, as HTTP/1 writes it.
#[must_use]
pub fn request_id_line(id: u128) -> [u8; 48] {
    let mut line = *b"X-Request-Id: 00000000000000000000000000000000\r\n";
    for (at, place) in line[14..46].chunks_exact_mut(8).enumerate() {
        place.copy_from_slice(&digits((id >> (96 - 32 * at)) as u32));
    }
    line
}

/// The text of an id, without memory of its own.
#[derive(Clone, Copy, Debug)]
pub struct IdText {
    bytes: [u8; TRACEPARENT_BYTES],
    len: usize,
}

impl Default for IdText {
    fn default() -> IdText {
        IdText { bytes: [0; TRACEPARENT_BYTES], len: 0 }
    }
}

impl Deref for IdText {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl IdText {
    /// A number in 32 hexadecimal digits.
    fn wide(number: u128) -> IdText {
        let mut text = IdText::default();
        text.push_wide(number);
        text
    }

    fn push(&mut self, text: &[u8]) {
        self.bytes[self.len..self.len + text.len()].copy_from_slice(text);
        self.len += text.len();
    }

    /// A number in 16 hexadecimal digits.
    fn push_hex(&mut self, number: u64) {
        self.push(&digits((number >> 32) as u32));
        self.push(&digits(number as u32));
    }

    /// A number in 32 hexadecimal digits.
    fn push_wide(&mut self, number: u128) {
        self.push_hex((number >> 64) as u64);
        self.push_hex(number as u64);
    }
}

/// The eight hexadecimal digits of a number, made at once, because every request needs them.
fn digits(number: u32) -> [u8; 8] {
    const ONES: u64 = 0x0101_0101_0101_0101;
    // Each half of what is left is moved apart, until each byte has four bits: the last digit in the lowest byte.
    let mut apart = u64::from(number);
    apart = (apart | apart << 16) & 0x0000_ffff_0000_ffff;
    apart = (apart | apart << 8) & 0x00ff_00ff_00ff_00ff;
    apart = (apart | apart << 4) & (ONES * 0x0f);
    // A digit beyond 9 reaches 16 when 6 is added to it.
    let letters = (apart + ONES * 6) >> 4 & ONES;
    (apart + ONES * u64::from(b'0') + letters * u64::from(b'a' - b'0' - 10)).to_be_bytes()
}

/// Whether an id of a request may be used as it was sent: letters, digits and a few signs, none of which needs quotes anywhere.
#[must_use]
pub fn is_request_id(value: &[u8]) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.~:+/=@".contains(byte);
    (1..=REQUEST_ID_BYTES_MAX).contains(&value.len()) && value.iter().all(is_plain)
}

/// Reads a `traceparent`; `None` for one that is not valid (section 3.2).
#[must_use]
pub fn traceparent(value: &[u8]) -> Option<TraceParent> {
    let (known, rest) = value.split_at_checked(TRACEPARENT_BYTES)?;
    let version = number(&known[..2])?;
    let has_dashes = [2, 35, 52].iter().all(|&at| known[at] == b'-');
    // A later version may have more behind another dash.
    let is_long = !rest.is_empty() && (version == 0 || rest[0] != b'-');
    if version == 0xff || !has_dashes || is_long {
        return None;
    }
    let (trace, parent, flags) = (number(&known[3..35])?, number(&known[36..52])?, number(&known[53..])?);
    (trace != 0 && parent != 0).then_some((trace, parent as u64, flags & 1 == 1))
}

/// A number in hexadecimal digits, none of them upper case.
fn number(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0u128, |sum, &digit| {
        let value = hex(digit).filter(|_| !digit.is_ascii_uppercase())?;
        Some(sum << 4 | u128::from(value))
    })
}

/// Whether a `tracestate` is valid (section 3.3.1).
#[must_use]
pub fn is_tracestate(value: &[u8]) -> bool {
    let members = || value.split(|&byte| byte == b',').map(scan::trim).filter(|member| !member.is_empty());
    let is_key = |key: &[u8]| {
        let may = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-*/@".contains(byte);
        key.first().is_some_and(u8::is_ascii_alphanumeric)
            && key.len() <= STATE_BYTES_MAX
            && key.iter().all(may)
    };
    let is_value = |value: &[u8]| {
        (1..=STATE_BYTES_MAX).contains(&value.len())
            && value.iter().all(|byte| matches!(byte, 0x20..=0x7e) && !b",=".contains(byte))
    };
    members().count() <= STATES_MAX
        && members().all(|member| {
            let at = member.iter().position(|&byte| byte == b'=');
            at.is_some_and(|at| is_key(&member[..at]) && is_value(&member[at + 1..]))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &[u8] = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_traceparent_is_read_and_written() {
        let (trace, parent, is_sampled) = traceparent(PARENT).unwrap();
        assert_eq!((trace >> 64, parent, is_sampled), (0x0af7_6519_16cd_43dd, 0xb7ad_6b71_6920_3331, true));
        let span = TraceSpan { trace, parent: 1, span: parent, is_sampled, has_state: false };
        assert_eq!(&*span.traceparent(), PARENT);
        let unsampled = TraceSpan { is_sampled: false, span: 0xa, ..span };
        assert!(unsampled.traceparent().ends_with(b"-000000000000000a-00"));
    }

    #[test]
    fn the_line_of_an_id_has_its_digits() {
        for id in [1, u128::MAX, 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c] {
            let line = format!("X-Request-Id: {id:032x}\r\n");
            assert_eq!(request_id_line(id), line.as_bytes());
        }
    }

    #[test]
    fn digits_are_hexadecimal() {
        for number in (0..u32::MAX).step_by(65_521).chain([u32::MAX]) {
            assert_eq!(digits(number), format!("{number:08x}").as_bytes(), "{number}");
        }
    }

    #[test]
    fn an_invalid_traceparent_is_none() {
        let whole = String::from_utf8(PARENT.to_vec()).unwrap();
        for (wrong, right) in [
            (whole.replace("00-0a", "ff-0a"), false),
            (whole.replace("00-0a", "01-0a"), true),
            (format!("{whole}-"), false),
            (format!("{whole}x").replace("00-0a", "01-0a"), false),
            (format!("{whole}-more").replace("00-0a", "cc-0a"), true),
            (whole.replace("0af", "0AF"), false),
            (whole.replace("b7ad6b7169203331", "0000000000000000"), false),
            (whole.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)), false),
            (whole.replace("c-b", "c_b"), false),
            (whole[..54].to_owned(), false),
            (whole.replace("31-01", "31-0g"), false),
            (String::new(), false),
        ] {
            assert_eq!(traceparent(wrong.as_bytes()).is_some(), right, "{wrong}");
        }
    }

    #[test]
    fn tracestates() {
        let many = |count| vec!["a=1"; count].join(",");
        for (value, right) in [
            ("", true),
            ("congo=t61rcWkgMzE", true),
            ("rojo=00f067aa0ba902b7 , congo=t61rcWkgMzE,", true),
            ("fw529a3039@dt=FfAcAAAABg", true),
            (&many(32), true),
            (&many(33), false),
            ("Upper=1", false),
            ("a", false),
            ("a=", false),
            ("=1", false),
            ("a=b=c", false),
            ("a=\u{e9}", false),
            (&format!("a={}", "x".repeat(257)), false),
        ] {
            assert_eq!(is_tracestate(value.as_bytes()), right, "{value}");
        }
    }

    #[test]
    fn ids_that_were_sent_are_plain() {
        assert!(is_request_id(b"a-B_9.~:+/=@"));
        for id in [&b""[..], b"a b", b"a\"b", b"a;b", b"a\x1b", b"a,b", "\u{e9}".as_bytes(), &[b'a'; 129]] {
            assert!(!is_request_id(id), "{id:?}");
        }
    }

    #[test]
    fn what_takes_the_place_of_a_field_is_passed_on_instead_of_it() {
        let trace = TraceSpan { trace: 1, parent: 0, span: 2, is_sampled: true, has_state: false };
        let made = RequestIds { request: RequestId::Made(0xabc), trace: Some(trace) };
        assert!(
            !made.passes(Name::XRequestId)
                && !made.passes(Name::Traceparent)
                && !made.passes(Name::Tracestate)
        );
        let fields: Vec<_> = made.fields().collect();
        assert_eq!(
            (fields[0].0, &*fields[0].1),
            (Name::XRequestId, &b"00000000000000000000000000000abc"[..])
        );
        assert_eq!(&*fields[1].1, b"00-00000000000000000000000000000001-0000000000000002-01");
        let sent = RequestIds { request: RequestId::Sent, trace: None };
        assert!(
            [Name::XRequestId, Name::Traceparent, Name::Tracestate].iter().all(|name| sent.passes(*name))
        );
        assert_eq!(sent.fields().count(), 0);
    }
}
