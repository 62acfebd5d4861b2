//! The static table (RFC 9204 appendix A).

use http::Name;
use sections::static_entries;
use sections::static_entry::{NO_ENTRY, StaticEntry, first_by_name};

/// Number of entries.
const STATIC_LEN: usize = 99;

/// The entries; the first entry has index 0.
pub(crate) static STATIC_ENTRIES: [StaticEntry; STATIC_LEN] = ENTRIES;

const ENTRIES: [StaticEntry; STATIC_LEN] = static_entries! {
    Other ":authority" "";
    Other ":path" "/";
    Age "age" "0";
    Other "content-disposition" "";
    ContentLength "content-length" "0";
    Cookie "cookie" "";
    Date "date" "";
    Etag "etag" "";
    IfModifiedSince "if-modified-since" "";
    IfNoneMatch "if-none-match" "";
    LastModified "last-modified" "";
    Link "link" "";
    Location "location" "";
    Referer "referer" "";
    SetCookie "set-cookie" "";
    Other ":method" "CONNECT";
    Other ":method" "DELETE";
    Other ":method" "GET";
    Other ":method" "HEAD";
    Other ":method" "OPTIONS";
    Other ":method" "POST";
    Other ":method" "PUT";
    Other ":scheme" "http";
    Other ":scheme" "https";
    Other ":status" "103";
    Other ":status" "200";
    Other ":status" "304";
    Other ":status" "404";
    Other ":status" "503";
    Accept "accept" "*/*";
    Accept "accept" "application/dns-message";
    AcceptEncoding "accept-encoding" "gzip, deflate, br";
    AcceptRanges "accept-ranges" "bytes";
    Other "access-control-allow-headers" "cache-control";
    Other "access-control-allow-headers" "content-type";
    Other "access-control-allow-origin" "*";
    CacheControl "cache-control" "max-age=0";
    CacheControl "cache-control" "max-age=2592000";
    CacheControl "cache-control" "max-age=604800";
    CacheControl "cache-control" "no-cache";
    CacheControl "cache-control" "no-store";
    CacheControl "cache-control" "public, max-age=31536000";
    ContentEncoding "content-encoding" "br";
    ContentEncoding "content-encoding" "gzip";
    ContentType "content-type" "application/dns-message";
    ContentType "content-type" "application/javascript";
    ContentType "content-type" "application/json";
    ContentType "content-type" "application/x-www-form-urlencoded";
    ContentType "content-type" "image/gif";
    ContentType "content-type" "image/jpeg";
    ContentType "content-type" "image/png";
    ContentType "content-type" "text/css";
    ContentType "content-type" "text/html; charset=utf-8";
    ContentType "content-type" "text/plain";
    ContentType "content-type" "text/plain;charset=utf-8";
    Range "range" "bytes=0-";
    Other "strict-transport-security" "max-age=31536000";
    Other "strict-transport-security" "max-age=31536000; includesubdomains";
    Other "strict-transport-security" "max-age=31536000; includesubdomains; preload";
    Vary "vary" "accept-encoding";
    Vary "vary" "origin";
    Other "x-content-type-options" "nosniff";
    Other "x-xss-protection" "1; mode=block";
    Other ":status" "100";
    Other ":status" "204";
    Other ":status" "206";
    Other ":status" "302";
    Other ":status" "400";
    Other ":status" "403";
    Other ":status" "421";
    Other ":status" "425";
    Other ":status" "500";
    AcceptLanguage "accept-language" "";
    Other "access-control-allow-credentials" "FALSE";
    Other "access-control-allow-credentials" "TRUE";
    Other "access-control-allow-headers" "*";
    Other "access-control-allow-methods" "get";
    Other "access-control-allow-methods" "get, post, options";
    Other "access-control-allow-methods" "options";
    Other "access-control-expose-headers" "content-length";
    Other "access-control-request-headers" "content-type";
    Other "access-control-request-method" "get";
    Other "access-control-request-method" "post";
    Other "alt-svc" "clear";
    Authorization "authorization" "";
    Other "content-security-policy" "script-src 'none'; object-src 'none'; base-uri 'none'";
    Other "early-data" "1";
    Other "expect-ct" "";
    Forwarded "forwarded" "";
    IfRange "if-range" "";
    Origin "origin" "";
    Other "purpose" "prefetch";
    Server "server" "";
    Other "timing-allow-origin" "*";
    Other "upgrade-insecure-requests" "1";
    UserAgent "user-agent" "";
    XForwardedFor "x-forwarded-for" "";
    Other "x-frame-options" "deny";
    Other "x-frame-options" "sameorigin";
};

/// The index of the first entry with each known name.
const FIRST_OF_KNOWN: [u8; 256] = first_by_name(&ENTRIES);

/// For each entry, the next one with the same name; [`NO_ENTRY`] for the last.
const NEXT_OF_NAME: [u8; STATIC_LEN] = {
    let mut next = [NO_ENTRY; STATIC_LEN];
    let mut place = 0;
    while place < STATIC_LEN {
        let mut other = place + 1;
        while other < STATIC_LEN {
            if is_equal(ENTRIES[place].name(), ENTRIES[other].name()) {
                next[place] = other as u8;
                break;
            }
            other += 1;
        }
        place += 1;
    }
    next
};

const fn is_equal(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}

/// The result of a search for a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StaticMatch {
    /// The entry has the name and the value.
    Field(usize),
    /// The entry has the name.
    Name(usize),
    None,
}

/// Searches for a field; `name` may be in any case.
pub(crate) fn find(id: Name, name: &[u8], value: &[u8]) -> StaticMatch {
    let first = match id {
        Name::Other => STATIC_ENTRIES.iter().position(|entry| {
            entry.id == Name::Other && entry.name_len == name.len() && entry.name().eq_ignore_ascii_case(name)
        }),
        known => Some(usize::from(FIRST_OF_KNOWN[known as usize])).filter(|index| *index < STATIC_LEN),
    };
    let Some(first) = first else { return StaticMatch::None };
    let mut place = first;
    while let Some(entry) = STATIC_ENTRIES.get(place) {
        if entry.value() == value {
            return StaticMatch::Field(place);
        }
        place = usize::from(NEXT_OF_NAME[place]);
    }
    StaticMatch::Name(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn static_table_entries_map_to_known_names() {
        for (place, entry) in STATIC_ENTRIES.iter().enumerate() {
            let name = if entry.name().starts_with(b":") { Name::Other } else { Name::of(entry.name()) };
            assert_eq!(entry.id, name, "{}", entry.line);
            assert_eq!(find(entry.id, entry.name(), entry.value()), StaticMatch::Field(place));
        }
    }

    #[test]
    fn static_fields_and_names_are_found_in_any_case() {
        let search =
            |name: &str, value: &str| find(Name::of(name.as_bytes()), name.as_bytes(), value.as_bytes());
        assert_eq!(search("Content-Type", "text/css"), StaticMatch::Field(51));
        assert_eq!(search("Content-Type", "text/x-new"), StaticMatch::Name(44));
        assert_eq!(search("X-Frame-Options", "sameorigin"), StaticMatch::Field(98));
        assert_eq!(search("access-control-allow-headers", "*"), StaticMatch::Field(75));
        assert_eq!(search("Upgrade", "a"), StaticMatch::None);
        assert_eq!(search("x-new", "a"), StaticMatch::None);
    }
}
