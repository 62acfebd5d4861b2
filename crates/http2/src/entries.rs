//! The static table (RFC 7541 appendix A).

use http::Name;
use sections::static_entries;
use sections::static_entry::{NO_ENTRY, StaticEntry, first_by_name};

/// The entries; the first entry has index 1.
pub(crate) static STATIC_ENTRIES: [StaticEntry; STATIC_LEN] = ENTRIES;

/// Number of entries.
pub(crate) const STATIC_LEN: usize = 61;

const ENTRIES: [StaticEntry; STATIC_LEN] = static_entries! {
    Other ":authority" "";
    Other ":method" "GET";
    Other ":method" "POST";
    Other ":path" "/";
    Other ":path" "/index.html";
    Other ":scheme" "http";
    Other ":scheme" "https";
    Other ":status" "200";
    Other ":status" "204";
    Other ":status" "206";
    Other ":status" "304";
    Other ":status" "400";
    Other ":status" "404";
    Other ":status" "500";
    Other "accept-charset" "";
    AcceptEncoding "accept-encoding" "gzip, deflate";
    AcceptLanguage "accept-language" "";
    AcceptRanges "accept-ranges" "";
    Accept "accept" "";
    Other "access-control-allow-origin" "";
    Age "age" "";
    Allow "allow" "";
    Authorization "authorization" "";
    CacheControl "cache-control" "";
    Other "content-disposition" "";
    ContentEncoding "content-encoding" "";
    ContentLanguage "content-language" "";
    ContentLength "content-length" "";
    ContentLocation "content-location" "";
    ContentRange "content-range" "";
    ContentType "content-type" "";
    Cookie "cookie" "";
    Date "date" "";
    Etag "etag" "";
    Expect "expect" "";
    Expires "expires" "";
    Other "from" "";
    Host "host" "";
    IfMatch "if-match" "";
    IfModifiedSince "if-modified-since" "";
    IfNoneMatch "if-none-match" "";
    IfRange "if-range" "";
    IfUnmodifiedSince "if-unmodified-since" "";
    LastModified "last-modified" "";
    Link "link" "";
    Location "location" "";
    Other "max-forwards" "";
    ProxyAuthenticate "proxy-authenticate" "";
    ProxyAuthorization "proxy-authorization" "";
    Range "range" "";
    Referer "referer" "";
    Refresh "refresh" "";
    RetryAfter "retry-after" "";
    Server "server" "";
    SetCookie "set-cookie" "";
    Other "strict-transport-security" "";
    TransferEncoding "transfer-encoding" "";
    UserAgent "user-agent" "";
    Vary "vary" "";
    Via "via" "";
    WwwAuthenticate "www-authenticate" "";
};

/// The index of the first entry with a known name; 0 if there is none.
pub(crate) const fn static_name(id: Name) -> usize {
    match BY_NAME[id as usize] {
        NO_ENTRY => 0,
        index => index as usize + 1,
    }
}

const BY_NAME: [u8; 256] = first_by_name(&ENTRIES);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn static_table_entries_map_to_known_names() {
        for (place, entry) in STATIC_ENTRIES.iter().enumerate() {
            let name = if entry.name().starts_with(b":") { Name::Other } else { Name::of(entry.name()) };
            assert_eq!(entry.id, name, "{}", entry.line);
            if name != Name::Other {
                assert_eq!(static_name(name), place + 1);
            }
        }
        assert_eq!((static_name(Name::Other), static_name(Name::Upgrade)), (0, 0));
        assert_eq!(
            (STATIC_ENTRIES[15].name(), STATIC_ENTRIES[15].value()),
            (&b"accept-encoding"[..], &b"gzip, deflate"[..])
        );
    }
}
