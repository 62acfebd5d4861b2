//! Field names that the server knows.

macro_rules! names {
    ($($name:ident $text:literal;)*) => {
        /// A known field name, or `Other`. Names are resolved once while a head is parsed; later code
        /// compares no strings.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[allow(missing_docs)] // each is the field of that name
        pub enum Name {
            Other,
            $($name,)*
        }

        const KNOWN: &[(Name, &str)] = &[$((Name::$name, $text),)*];
    };
}

names! {
    Accept "Accept";
    AcceptEncoding "Accept-Encoding";
    AcceptLanguage "Accept-Language";
    AcceptRanges "Accept-Ranges";
    Age "Age";
    Allow "Allow";
    Authorization "Authorization";
    AvailableDictionary "Available-Dictionary";
    CacheControl "Cache-Control";
    Connection "Connection";
    ContentEncoding "Content-Encoding";
    ContentLanguage "Content-Language";
    ContentLength "Content-Length";
    ContentLocation "Content-Location";
    ContentRange "Content-Range";
    ContentType "Content-Type";
    Cookie "Cookie";
    Date "Date";
    Etag "ETag";
    Expect "Expect";
    Expires "Expires";
    Forwarded "Forwarded";
    Host "Host";
    Http2Settings "HTTP2-Settings";
    IfMatch "If-Match";
    IfModifiedSince "If-Modified-Since";
    IfNoneMatch "If-None-Match";
    IfRange "If-Range";
    IfUnmodifiedSince "If-Unmodified-Since";
    KeepAlive "Keep-Alive";
    LastModified "Last-Modified";
    Link "Link";
    Location "Location";
    Origin "Origin";
    Pragma "Pragma";
    ProxyAuthenticate "Proxy-Authenticate";
    ProxyAuthorization "Proxy-Authorization";
    ProxyConnection "Proxy-Connection";
    Range "Range";
    Referer "Referer";
    Refresh "Refresh";
    RetryAfter "Retry-After";
    SecWebsocketAccept "Sec-WebSocket-Accept";
    SecWebsocketExtensions "Sec-WebSocket-Extensions";
    SecWebsocketKey "Sec-WebSocket-Key";
    SecWebsocketProtocol "Sec-WebSocket-Protocol";
    SecWebsocketVersion "Sec-WebSocket-Version";
    Server "Server";
    SetCookie "Set-Cookie";
    Te "TE";
    Trailer "Trailer";
    TransferEncoding "Transfer-Encoding";
    Upgrade "Upgrade";
    UseAsDictionary "Use-As-Dictionary";
    UserAgent "User-Agent";
    Vary "Vary";
    Via "Via";
    Warning "Warning";
    WwwAuthenticate "WWW-Authenticate";
    XForwardedFor "X-Forwarded-For";
    XForwardedHost "X-Forwarded-Host";
    XForwardedProto "X-Forwarded-Proto";
    XRequestId "X-Request-Id";
    Traceparent "traceparent";
    Tracestate "tracestate";
}

/// A case-insensitive perfect hash of a name's words. The table is built, and checked for collisions, at
/// compile time.
#[inline(always)]
const fn hash_index([first, second, third]: [u64; 3]) -> usize {
    const SPACES: u64 = 0x2020_2020_2020_2020;
    let (second, third) = ((second | SPACES).rotate_left(21), (third | SPACES).rotate_left(42));
    let sum = (first | SPACES).wrapping_add(second).wrapping_add(third);
    (sum.wrapping_mul(0x6595_ada5_265a_dea9) >> 56) as usize
}

const SLOTS: usize = 256;

const TABLE: [u8; SLOTS] = {
    let mut table = [u8::MAX; SLOTS];
    let mut index = 0;
    while index < KNOWN.len() {
        let slot = hash_index(words(KNOWN[index].1.as_bytes()));
        assert!(table[slot] == u8::MAX, "two known names share a slot: change `place`");
        assert!(KNOWN[index].0 as usize == index + 1, "KNOWN follows the order of the enum");
        table[slot] = index as u8;
        index += 1;
    }
    table
};

/// A name of at most [`LEN_MAX`] bytes as three words, padded with zeros.
#[inline(always)]
const fn words(name: &[u8]) -> [u64; 3] {
    match (name.first_chunk::<8>(), name.last_chunk::<8>()) {
        (Some(first), Some(last)) => {
            let first = u64::from_le_bytes(*first);
            let last = u64::from_le_bytes(*last);
            match name.len() {
                8 => [first, 0, 0],
                len @ 9..=16 => [first, last >> (8 * (16 - len)), 0],
                len => match name.split_at(8).1.first_chunk::<8>() {
                    Some(second) => [first, u64::from_le_bytes(*second), last >> (8 * ((24 - len) % 8))],
                    None => [first, 0, 0],
                },
            }
        }
        _ => {
            let mut word = 0;
            let mut at = name.len();
            while at > 0 {
                at -= 1;
                word = word << 8 | name[at] as u64;
            }
            [word, 0, 0]
        }
    }
}

/// A known name, in the form used for comparisons.
struct KnownName {
    name: Name,
    len: usize,
    text: [u64; 3],
    /// The bits that may differ in an equal name: the case bits of letters.
    case_bits: [u64; 3],
}

const KNOWN_NAMES: [KnownName; KNOWN.len()] = {
    let mut all =
        [const { KnownName { name: Name::Other, len: 0, text: [0; 3], case_bits: [0; 3] } }; KNOWN.len()];
    let mut index = 0;
    while index < KNOWN.len() {
        let text = KNOWN[index].1.as_bytes();
        assert!(text.len() <= LEN_MAX, "a known name fits three words");
        let mut cases = [0u8; LEN_MAX];
        let mut at = 0;
        while at < text.len() {
            cases[at] = if text[at].is_ascii_alphabetic() { 0x20 } else { 0 };
            at += 1;
        }
        let cases = words(cases.split_at(text.len()).0);
        all[index] = KnownName { name: KNOWN[index].0, len: text.len(), text: words(text), case_bits: cases };
        index += 1;
    }
    all
};

/// Maximum length of a known name in bytes: three words.
const LEN_MAX: usize = 24;

impl Name {
    /// Returns the known name equal to `name` (case-insensitive), or `Other`.
    #[must_use]
    #[inline]
    pub fn of(name: &[u8]) -> Name {
        if name.len() > LEN_MAX {
            return Name::Other;
        }
        Name::of_words(words(name), name.len())
    }

    /// Like [`Name::of`], for a name of `len` bytes, at most 24, in little-endian words padded with zeros.
    #[must_use]
    #[inline(always)]
    pub(crate) fn of_words([a, b, c]: [u64; 3], len: usize) -> Name {
        let index = TABLE[hash_index([a, b, c])] as usize;
        let Some(KnownName { name, len: known_len, text, case_bits: cases }) = KNOWN_NAMES.get(index) else {
            return Name::Other;
        };
        // Ignores the case bit of letters. Compares the length too, because a zero may be a byte of the name.
        let differs = ((a ^ text[0]) & !cases[0]) | ((b ^ text[1]) & !cases[1]) | ((c ^ text[2]) & !cases[2]);
        if differs == 0 && *known_len == len { *name } else { Name::Other }
    }

    /// The usual spelling; empty for `Other`.
    #[must_use]
    pub fn text(self) -> &'static str {
        match (self as usize).checked_sub(1) {
            Some(index) => KNOWN[index].1,
            None => "",
        }
    }

    /// Whether the field is hop-by-hop, so that it is never forwarded (RFC 9110 section 7.6.1).
    #[must_use]
    pub const fn is_hop_by_hop(self) -> bool {
        NameSet::HOP_BY_HOP.has(self)
    }

    /// Whether the field makes a request conditional (RFC 9110 section 13.1).
    #[must_use]
    pub const fn is_conditional(self) -> bool {
        matches!(
            self,
            Name::IfMatch
                | Name::IfNoneMatch
                | Name::IfModifiedSince
                | Name::IfUnmodifiedSince
                | Name::IfRange
        )
    }

    /// Whether the field determines the end or the routing of a message. Framing fields are never accepted
    /// from a trailer section (RFC 9110 section 6.5.1) or from a handler.
    #[must_use]
    pub const fn is_framing(self) -> bool {
        NameSet::FRAMING.has(self)
    }

    /// Whether the field is allowed in a trailer section: not if it changes how the message is processed (RFC
    /// 9110 section 6.5.1).
    #[must_use]
    pub const fn is_allowed_in_trailers(self) -> bool {
        !self.is_framing()
            && !matches!(
                self,
                Name::Authorization
                    | Name::ProxyAuthorization
                    | Name::Cookie
                    | Name::SetCookie
                    | Name::ContentEncoding
                    | Name::ContentType
                    | Name::ContentRange
                    | Name::CacheControl
                    | Name::Expect
                    | Name::Range
                    | Name::XForwardedFor
                    | Name::XForwardedHost
                    | Name::XForwardedProto
                    | Name::Forwarded
            )
    }
}

/// A set of known names, including [`Name::Other`]: one bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NameSet(u128);

const _: () = assert!(KNOWN.len() < 128, "a set of names has a bit for each");

impl NameSet {
    /// Names for which [`Name::is_hop_by_hop`] is true.
    pub const HOP_BY_HOP: NameSet = NameSet::of(&[
        Name::Connection,
        Name::KeepAlive,
        Name::ProxyConnection,
        Name::Te,
        Name::Trailer,
        Name::TransferEncoding,
        Name::Upgrade,
        Name::Http2Settings,
    ]);
    /// Names for which [`Name::is_framing`] is true.
    pub const FRAMING: NameSet = NameSet::HOP_BY_HOP.with(Name::ContentLength).with(Name::Host);

    /// Creates a set of these names.
    #[must_use]
    pub const fn of(names: &[Name]) -> NameSet {
        let mut set = NameSet(0);
        let mut at = 0;
        while at < names.len() {
            set = set.with(names[at]);
            at += 1;
        }
        set
    }

    /// Returns the set with this name added.
    #[must_use]
    #[inline]
    pub const fn with(self, name: Name) -> NameSet {
        NameSet(self.0 | 1 << name as u32)
    }

    /// Returns the union of both sets.
    #[must_use]
    pub const fn or(self, other: NameSet) -> NameSet {
        NameSet(self.0 | other.0)
    }

    /// Whether the set contains the name.
    #[must_use]
    #[inline]
    pub const fn has(self, name: Name) -> bool {
        self.0 >> name as u32 & 1 != 0
    }

    /// Whether the sets have a name in common.
    #[must_use]
    #[inline]
    pub const fn intersects(self, other: NameSet) -> bool {
        self.0 & other.0 != 0
    }
}

/// Whether programs that receive fields as variables (`HTTP_REMOTE_USER`) may confuse two names: they differ
/// only in case, and in characters that are neither letters nor digits.
#[must_use]
pub fn is_confusable(one: &[u8], other: &[u8]) -> bool {
    let same = |(a, b): (&u8, &u8)| {
        a.eq_ignore_ascii_case(b) || !a.is_ascii_alphanumeric() && !b.is_ascii_alphanumeric()
    };
    one.len() == other.len() && one.iter().zip(other).all(same)
}

/// Whether a name begins with `prefix`, or with a prefix that such programs may confuse with it.
#[must_use]
pub fn has_confusable_prefix(name: &[u8], prefix: &[u8]) -> bool {
    name.get(..prefix.len()).is_some_and(|start| is_confusable(start, prefix))
}

/// Prefix of the fields that servers of a set send each other (`[cluster] peers`).
const PEER_PREFIX: &[u8] = b"komainu-peer";

/// Whether a field is meant only for a server and the one in front of it: a file to send in place of the body, or the
/// location of files (`X-Accel-…`, `X-Sendfile…`, `X-LIGHTTPD-send-…`), or fields between servers of a set (`Komainu-Peer…`).
/// A client that received it would learn paths; an application that accepted it from a client could be made to send any file.
#[must_use]
pub fn is_internal(name: &[u8]) -> bool {
    let prefixes: [&[u8]; 3] = [b"x-accel-", b"x-sendfile", b"x-lighttpd-send-"];
    match name {
        [b'X' | b'x', b'-' | b'_', ..] => prefixes.iter().any(|prefix| has_confusable_prefix(name, prefix)),
        [b'K' | b'k', b'O' | b'o', ..] => has_confusable_prefix(name, PEER_PREFIX),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_field_names_match_exactly_in_any_case() {
        for (name, text) in KNOWN.iter().copied() {
            assert_eq!(Name::of(text.as_bytes()), name);
            assert_eq!(Name::of(text.to_uppercase().as_bytes()), name);
            assert_eq!(Name::of(text.to_lowercase().as_bytes()), name);
            assert_eq!(name.text(), text);
            for longer in [format!("{text}x"), format!("{text}\0"), format!("{text}{}", "\0".repeat(24))] {
                assert_eq!(Name::of(longer.as_bytes()), Name::Other);
            }
            assert_eq!(Name::of(&text.as_bytes()[1..]), Name::Other);
            // A name with any other byte at any position is a different name, even if only the case bit
            // differs.
            for at in 0..text.len() {
                for byte in 0..=255u8 {
                    let mut other = text.as_bytes().to_vec();
                    other[at] = byte;
                    let same = other.eq_ignore_ascii_case(text.as_bytes());
                    assert_eq!(Name::of(&other) == name, same, "{text} with {byte:#x} at {at}");
                }
            }
        }
        assert_eq!(Name::of(b""), Name::Other);
        for (name, internal) in [
            ("X-Accel-Redirect", true),
            ("x-accel-buffering", true),
            ("X-SENDFILE", true),
            ("X-Sendfile-Type", true),
            ("X-Sendfile2", true),
            ("X-LIGHTTPD-send-file", true),
            ("X_Accel_Redirect", true),
            ("X-Accel_Redirect", true),
            ("X_Sendfile", true),
            ("Komainu-Peer", true),
            ("komainu_peer-Ask", true),
            ("Komainu-Pe", false),
            ("Komainu", false),
            ("X-Accel", false),
            ("X-Accelerate", false),
            ("X-Send", false),
            ("Accel-Redirect", false),
            ("", false),
        ] {
            assert_eq!(is_internal(name.as_bytes()), internal, "{name}");
        }
        assert_eq!(Name::Other.text(), "");
    }
}
