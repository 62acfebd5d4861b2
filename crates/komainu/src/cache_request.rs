//! A request as the cache sees it: whether it may have a part in it, its key, and the request that asks the origin for it.

use cache::{Object, answer, key, vary};
use http::Name;
use http::forwarded::dialect_of;
use net::{DetachedRequest, Exchange, Request};

/// Fields that some applications take their URL or method from, and that no key holds: a request that has one is not answered
/// from the cache, and its response is not stored.
const UNKEYED: [&str; 32] = [
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
    "x-original-url",
    "x-rewrite-url",
    "x-original-host",
    "x-host",
    "x-http-host-override",
    "x-forwarded-scheme",
    "x-forwarded-server",
    "x-original-uri",
    "x-request-uri",
    "request-uri",
    "x-script-name",
    "http-host",
    "proxy-host",
    "x-backend-host",
    "x-url-scheme",
    "front-end-https",
    "base-url",
    "x-forwarded",
    "x-scheme",
    "x-override-url",
    "x-http-path-override",
    "http-url",
    "x-proxy-url",
    "x-gateway-host",
    // Next.js chooses by these what it renders.
    "x-middleware-prefetch",
    "x-nextjs-data",
    "x-invoke-path",
    "x-invoke-status",
    "x-matched-path",
];

/// The request for the origin: complete and unconditional, or a question whether what is stored is valid. It accepts the client's
/// codings where it is `with_codings`, else none: what is compressed here is stored once for all of them.
pub(crate) fn asked(x: &Exchange<'_>, stale: Option<&Object>, with_codings: bool) -> DetachedRequest {
    let mut request = x.detach();
    let codings = vary::accepted_codings(x.request().head());
    let is_vouched = x.request().client().vouched.is_some();
    request.retain(|id, name| {
        let is_claim = dialect_of(id, name).is_some();
        let is_ours = answer::is_conditional(id) || matches!(id, Name::Range | Name::AcceptEncoding);
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

/// Whether its response may depend on what the key does not hold.
pub(crate) fn is_unkeyed(request: &Request<'_>) -> bool {
    // The origin sees the host as it is, and the key has it in lower case and without the usual port.
    let (host, usual_port) = (request.authority(), if request.client().secure { ":443" } else { ":80" });
    if host.iter().any(u8::is_ascii_uppercase) || host.ends_with(usual_port.as_bytes()) {
        return true;
    }
    // An extended CONNECT has no field that says so.
    let (head, bytes) = request.head();
    if head.upgrade(bytes).is_some() {
        return true;
    }
    request.fields().any(|(id, name, value)| match id {
        Name::Upgrade => true,
        // A field that `Connection` names does not reach the origin, though key and variant would hold it.
        Name::Connection => !http::scan::list(value).all(is_usual_option),
        Name::Other => UNKEYED.iter().any(|one| name.eq_ignore_ascii_case(one.as_bytes())),
        _ => false,
    })
}

/// Whether it is an option of `Connection` that names no field of the request itself.
fn is_usual_option(option: &[u8]) -> bool {
    [&b"close"[..], b"keep-alive"].iter().any(|usual| option.eq_ignore_ascii_case(usual))
        || Name::of(option).is_hop_by_hop()
}

/// Writes the key of a request with this query; false where it has none.
pub(crate) fn write_key(key: &mut Vec<u8>, request: &Request<'_>, query: Option<&[u8]>) -> bool {
    let Ok(path) = request.encoded_path() else { return false };
    let client = request.client();
    let mut variation = Vec::new();
    if client.vouched.is_some() {
        // A trusted proxy passes on what its clients claim, and so does this server.
        for (id, name, value) in request.fields() {
            let is_other =
                id == Name::Other && name.len() > 12 && name[..12].eq_ignore_ascii_case(b"x-forwarded-");
            if is_other || id == Name::XForwardedHost {
                variation.extend_from_slice(&[name, b"=", value, b" "].concat());
            }
        }
    }
    key::write_key(key, client.secure, request.authority(), &path, query, &variation)
}
