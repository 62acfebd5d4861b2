//! Requests as seen by the cache: eligibility, keys, and requests to the origin.

use cache::{Object, key, vary};
use http::forwarded::dialect_of;
use http::{Name, is_confusable};
use net::{DetachedRequest, Exchange, Request};

/// Fields that are in no key although some applications take the URL, host, scheme or method from them, or
/// echo them; sorted by length. A request with one of them, in any spelling, bypasses the cache.
/// docs/cache.md has the same list.
const UNKEYED: [&str; 77] = [
    "uri",
    "url",
    "proxy",
    "x-ssl",
    "x-url",
    "x-host",
    "x-port",
    "x-https",
    "x-proto",
    "base-url",
    "http-url",
    "redirect",
    "x-method",
    "x-scheme",
    "http-host",
    "proxy-url",
    "translate",
    "x-arr-ssl",
    "ms-asproxy",
    "proxy-host",
    "x-base-url",
    "x-protocol",
    "x-real-url",
    "destination",
    "request-uri",
    "script-name",
    "x-forwarded",
    "x-http-host",
    "x-path-info",
    "x-proxy-url",
    "x-real-host",
    "x-real-port",
    "wl-proxy-ssl",
    "x-real-proto",
    "x-url-scheme",
    "host-override",
    "x-http-method",
    "x-invoke-path",
    "x-nextjs-data",
    "x-request-uri",
    "x-rewrite-uri",
    "x-rewrite-url",
    "x-script-name",
    "x-server-name",
    "x-server-port",
    "x-wap-profile",
    "x-backend-host",
    "x-gateway-host",
    "x-invoke-query",
    "x-matched-path",
    "x-original-uri",
    "x-original-url",
    "x-override-url",
    "x-request-path",
    "front-end-https",
    "x-client-scheme",
    "x-host-override",
    "x-invoke-output",
    "x-invoke-status",
    "x-original-host",
    "x-original-path",
    "x-original-port",
    "x-original-proto",
    "x-method-override",
    "x-original-method",
    "x-original-scheme",
    "x-forwarded-scheme",
    "x-forwarded-server",
    "x-now-route-matches",
    "x-http-host-override",
    "x-http-path-override",
    "x-envoy-original-host",
    "x-envoy-original-path",
    "x-http-destinationurl",
    "x-middleware-prefetch",
    "x-http-method-override",
    "x-middleware-subrequest",
];

/// Fields in which proxies identify their client, in addition to those of [`dialect_of`]. They are removed
/// from requests whose response may be stored, unless a trusted proxy has sent them.
const CLIENT_FIELDS: [&str; 20] = [
    "x-client-ip",
    "client-ip",
    "true-client-ip",
    "x-true-client-ip",
    "x-cluster-client-ip",
    "x-original-forwarded-for",
    "x-remote-ip",
    "x-remote-addr",
    "x-originating-ip",
    "proxy-client-ip",
    "wl-proxy-client-ip",
    "cf-connecting-ip",
    "cf-connecting-ipv6",
    "cf-visitor",
    "fastly-client-ip",
    "fastly-ssl",
    "x-azure-clientip",
    "x-appengine-user-ip",
    "x-envoy-external-address",
    "cloudfront-forwarded-proto",
];

/// Maximum length of the names in [`UNKEYED`].
const UNKEYED_BYTES_MAX: usize = 32;

/// Index of the first name of each length in [`UNKEYED`], and at the end the number of names.
const UNKEYED_AT: [usize; UNKEYED_BYTES_MAX + 2] = {
    let mut at = [0; UNKEYED_BYTES_MAX + 2];
    let mut length = 0;
    let mut index = 0;
    while length < at.len() {
        while index < UNKEYED.len() && UNKEYED[index].len() < length {
            assert!(index == 0 || UNKEYED[index - 1].len() <= UNKEYED[index].len());
            index += 1;
        }
        at[length] = index;
        length += 1;
    }
    assert!(index == UNKEYED.len());
    at
};

/// Whether a field is one of [`UNKEYED`].
fn is_unkeyed_field(name: &[u8]) -> bool {
    let Some(&[begin, end]) = UNKEYED_AT.get(name.len()..).and_then(<[usize]>::first_chunk) else {
        return false;
    };
    UNKEYED[begin..end].iter().any(|one| is_confusable(name, one.as_bytes()))
}

/// Creates the request to the origin: unconditional, or conditional on the validators of `stale`. With
/// `with_codings` it accepts the client's codings, otherwise none, because content that is compressed by this
/// server is stored once for all codings.
pub(crate) fn origin_request(
    exchange: &Exchange<'_>,
    stale: Option<&Object>,
    with_codings: bool,
) -> DetachedRequest {
    let mut request = exchange.detach();
    let codings = vary::accepted_codings(exchange.request().head());
    let is_vouched = exchange.request().client().trusted_dialect.is_some();
    request.retain(|id, name| {
        let is_claim = dialect_of(id, name).is_some()
            || id == Name::Other && CLIENT_FIELDS.iter().any(|one| is_confusable(name, one.as_bytes()));
        let is_ours = id.is_conditional() || matches!(id, Name::Range | Name::AcceptEncoding);
        !is_ours && (is_vouched || !is_claim)
    });
    if with_codings && !codings.is_empty() {
        request.add(Name::AcceptEncoding, &codings);
    }
    if let Some(stale) = stale {
        if let Some(etag) = stale.fields.first(b"etag") {
            request.add(Name::IfNoneMatch, etag);
        }
        if let Some(modified) = stale.fields.first(b"last-modified") {
            request.add(Name::IfModifiedSince, modified);
        }
    }
    request
}

/// Whether the response to a request may depend on properties that are not in the key.
pub(crate) fn is_unkeyed(request: &Request<'_>) -> bool {
    // The origin gets the host as it was sent, whereas the key has it in lower case and without the default
    // port.
    let host = request.authority();
    let usual_port = if request.client().is_secure { ":443" } else { ":80" };
    if host.iter().any(u8::is_ascii_uppercase) || host.ends_with(usual_port.as_bytes()) {
        return true;
    }
    // An extended CONNECT has no `Upgrade` field.
    let head = request.head();
    if head.upgrade(head.bytes).is_some() {
        return true;
    }
    request.fields().any(|(id, name, value)| match id {
        Name::Upgrade => true,
        // A field named by `Connection` does not reach the origin, but would be part of the key or variant.
        Name::Connection => !http::scan::list(value).all(is_usual_option),
        Name::Other => is_unkeyed_field(name),
        _ => false,
    })
}

/// Whether an option of `Connection` does not name an end-to-end field of the request.
fn is_usual_option(option: &[u8]) -> bool {
    [&b"close"[..], b"keep-alive"].iter().any(|usual| option.eq_ignore_ascii_case(usual))
        || Name::of(option).is_hop_by_hop()
}

/// Writes the key of a request with this query. Returns `false` if the request has none.
pub(crate) fn write_key(key: &mut Vec<u8>, request: &Request<'_>, query: Option<&[u8]>) -> bool {
    let Ok(path) = request.encoded_path() else { return false };
    let client = request.client();
    let mut variation = Vec::new();
    if client.trusted_dialect.is_some() {
        // Such fields reach the origin, and a trusted proxy may pass on those of its clients.
        for (id, name, value) in request.fields() {
            let is_other =
                id == Name::Other && name.len() > 12 && name[..12].eq_ignore_ascii_case(b"x-forwarded-");
            if is_other || id == Name::XForwardedHost {
                variation.extend_from_slice(&[name, b"=", value, b" "].concat());
            }
        }
    }
    key::write_key(key, client.is_secure, request.authority(), &path, query, &variation)
}
