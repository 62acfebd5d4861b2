//! Fields that an encoder adds to its dynamic table, and how it finds them there.

use http::Name;

/// The indexing of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indexing {
    /// The field is added to the dynamic table.
    Yes,
    /// Not added: the value differs from message to message and would evict repeated fields.
    No,
    /// Never indexed: a secret that must not be exposed to guessing by compression (RFC 7541 section 7.1).
    Never,
}

/// Decides the indexing of a field.
#[must_use]
pub fn indexing(id: Name, name: &[u8], value: &[u8]) -> Indexing {
    match id {
        Name::Authorization | Name::ProxyAuthorization | Name::SetCookie => Indexing::Never,
        // A short value could be guessed byte by byte.
        Name::Cookie if value.len() < 20 => Indexing::Never,
        Name::Age
        | Name::ContentLength
        | Name::ContentRange
        | Name::Etag
        | Name::IfModifiedSince
        | Name::IfNoneMatch
        | Name::IfRange
        | Name::Location
        | Name::Range
        | Name::RetryAfter
        | Name::XForwardedFor
        | Name::Forwarded => Indexing::No,
        Name::Other if name.eq_ignore_ascii_case(b"x-request-id") => Indexing::No,
        _ => Indexing::Yes,
    }
}

/// A hash of a field: computed from the name's number if known, otherwise from the lower-case name.
#[must_use]
pub fn hash(id: Name, name: &[u8], value: &[u8]) -> u32 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut sum = u64::from(id as u8) ^ (value.len() as u64) << 8;
    if id == Name::Other {
        for &byte in name {
            sum = (sum ^ u64::from(byte | 0x20)).wrapping_mul(FACTOR).rotate_left(23);
        }
    }
    let (words, rest) = value.as_chunks::<8>();
    for word in words {
        sum = (sum ^ u64::from_le_bytes(*word)).wrapping_mul(FACTOR).rotate_left(23);
    }
    let last = rest.iter().fold(0, |last, &byte| last << 8 | u64::from(byte));
    sum = (sum ^ last).wrapping_mul(FACTOR);
    (sum >> 40) as u32
}
