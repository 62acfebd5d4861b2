//! Maps paths of clients to paths of upstream servers, and back.

use http::path::{encode_beyond_ascii, encoded, strip_prefix};
use http::{Reject, TargetForm};

use crate::options::PathMap;
use crate::template::TemplateContext;

impl PathMap {
    /// Creates a mapping from a decoded prefix to its percent-encoded replacement. A trailing slash of either
    /// is ignored.
    #[must_use]
    pub fn new(from: &str, to: &str) -> PathMap {
        let from = from.trim_end_matches('/');
        let encoded = encoded(from.as_bytes());
        PathMap { from: from.into(), from_encoded: encoded, to: to.trim_end_matches('/').into() }
    }

    /// Returns the upstream's view of the percent-encoded `path`, in two parts; `None` if the path does not
    /// have the prefix.
    fn to_upstream<'p>(&'p self, path: &'p [u8]) -> Option<(&'p [u8], &'p [u8])> {
        let rest = strip_prefix(path, self.from.as_bytes())?;
        matches!(rest.first(), None | Some(b'/')).then_some((self.to.as_bytes(), rest))
    }

    /// Splits a decoded path: returns the prefix, its replacement (percent-encoded) and the rest.
    pub(crate) fn split_prefix<'p>(&'p self, path: &'p [u8]) -> Option<(&'p [u8], &'p [u8], &'p [u8])> {
        let rest = path.strip_prefix(self.from.as_bytes())?;
        let is_whole = matches!(rest.first(), None | Some(b'/'));
        is_whole.then_some((self.from.as_bytes(), self.to.as_bytes(), rest))
    }

    /// Returns the client's view of an upstream's `path`, in two parts; `None` if the path does not have the
    /// mapped prefix.
    #[must_use]
    pub fn to_client<'p>(&'p self, path: &'p [u8]) -> Option<(&'p [u8], &'p [u8])> {
        let rest = path.strip_prefix(self.to.as_bytes())?;
        matches!(rest.first(), None | Some(b'/' | b'?' | b'#')).then_some((&self.from_encoded[..], rest))
    }
}

/// Writes the request target for the upstream: origin-form, with the path that the route matched
/// ([`http::path`]) and the prefix replaced.
///
/// # Errors
/// 400 for an ambiguous path.
pub fn write_target(
    out: &mut Vec<u8>,
    map: Option<&PathMap>,
    context: &TemplateContext<'_>,
) -> Result<(), Reject> {
    let target = &context.head.target;
    if target.form == TargetForm::Asterisk {
        out.push(b'*');
        return Ok(());
    }
    let path = context.path()?;
    match map.and_then(|map| map.to_upstream(&path)) {
        Some((prefix, rest)) => {
            out.extend_from_slice(prefix);
            out.extend_from_slice(if prefix.is_empty() { collapse_leading_slashes(rest) } else { rest });
        }
        None => out.extend_from_slice(&path),
    }
    if let Some(query) = target.query {
        out.push(b'?');
        out.extend_from_slice(&encode_beyond_ascii(query.of(context.bytes)));
    }
    Ok(())
}

/// Reduces leading slashes to one, because `//host/…` can be parsed as an authority.
fn collapse_leading_slashes(path: &[u8]) -> &[u8] {
    match path {
        [] => b"/",
        [b'/', rest @ ..] if rest.starts_with(b"/") => collapse_leading_slashes(rest),
        path => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{EmptySegments, RequestHead};
    use net::Peer;

    fn target(raw: &str, map: Option<(&str, &str)>) -> String {
        target_with(raw, map, EmptySegments::Merge)
    }

    fn target_with(raw: &str, map: Option<(&str, &str)>, empty_segments: EmptySegments) -> String {
        let method = if raw == "*" { "OPTIONS" } else { "GET" };
        let bytes = format!("{method} {raw} HTTP/1.1\r\nHost: a\r\n\r\n").into_bytes();
        let mut head = RequestHead::default();
        assert!(head.parse(&bytes, &http::Limits::default()).unwrap());
        let ask = TemplateContext {
            head: &head,
            bytes: &bytes,
            peer: Peer::Unix,
            client: net::Client::direct(Peer::Unix, false),
            tls: None,
            empty_segments,
            ids: http::RequestIds::default(),
            user: None,
            upstream: "",
            custom_variables: None,
        };
        let map = map.map(|(from, to)| PathMap::new(from, to));
        let mut out = Vec::new();
        match write_target(&mut out, map.as_ref(), &ask) {
            Ok(()) => String::from_utf8(out).unwrap(),
            Err(reject) => reject.reason.into(),
        }
    }

    #[test]
    fn upstream_servers_receive_the_normalized_path() {
        for (raw, want) in [
            ("/", "/"),
            ("/a%20b?x=/../y", "/a%20b?x=/../y"),
            ("/a/b/?", "/a/b/?"),
            ("/a//b", "/a/b"),
            ("/caf\u{e9}?q=\u{e9}", "/caf%C3%A9?q=%C3%A9"),
            ("/a|b?c|d", "/a%7Cb?c|d"),
            ("/a%2fb\\c", "/a%2fb%5Cc"),
            ("/a/..;/b", "dot segment in disguise in path"),
            ("//evil.test/a", "/evil.test/a"),
            ("/.well-known/..x/...", "/.well-known/..x/..."),
            ("/a/../b%20c", "/b%20c"),
            ("/a/%2e%2E/b", "/b"),
            ("/a/./b/.%2e/", "/a/"),
            ("/a/../%7Cx%3f", "/%7Cx%3f"),
            ("/..", "path climbs above the root"),
            ("http://h/x?y", "/x?y"),
            ("http://h", "/"),
            ("http://h?q", "/?q"),
            ("*", "*"),
        ] {
            assert_eq!(target(raw, None), want, "{raw}");
        }
    }

    #[test]
    fn prefixes_are_replaced_only_at_segment_boundaries() {
        for (raw, from, to, want) in [
            ("/api/x?y", "/api", "/", "/x?y"),
            ("/api", "/api", "/", "/"),
            ("/api/", "/api/", "/v1/", "/v1/"),
            ("/api", "/api", "/v1", "/v1"),
            ("/api/x", "/api", "/v1", "/v1/x"),
            ("/apix", "/api", "/v1", "/apix"),
            ("/x", "/", "/app", "/app/x"),
            ("/api//evil.test", "/api", "/", "/evil.test"),
            ("/%61pi/x%20y", "/api", "/v1", "/v1/x%20y"),
            ("/api/../x", "/api", "/v1", "/x"),
            ("/api/a%2Fb", "/api", "/v1", "/v1/a%2Fb"),
            ("/%61pi/a%2Fb", "/api", "/v1", "/v1/a%2Fb"),
            ("/api%2Fx", "/api", "/v1", "/api%2Fx"),
            ("/a%2fb/x", "/a%2Fb", "/v1", "/v1/x"),
            ("/caf%c3%a9/x", "/caf\u{e9}", "/v1", "/v1/x"),
            ("/caf\u{e9}/x", "/caf\u{e9}", "/", "/x"),
            ("/a/../api/x", "/api", "/v1", "/v1/x"),
        ] {
            assert_eq!(target(raw, Some((from, to))), want, "{raw} {from} {to}");
        }
    }

    #[test]
    fn kept_empty_segments_never_form_a_host() {
        let kept = |raw, map| target_with(raw, map, EmptySegments::Keep);
        assert_eq!(kept("//a//b//", None), "/a//b//");
        assert_eq!(kept("/api//evil.test//x", Some(("/api", "/"))), "/evil.test//x");
        assert_eq!(kept("/api//x", Some(("/api", "/v1"))), "/v1//x");
    }

    #[test]
    fn client_prefix_is_mapped_back_encoded() {
        let map = PathMap::new("/caf\u{e9}", "/v1");
        assert_eq!(map.to_client(b"/v1/x"), Some((&b"/caf%C3%A9"[..], &b"/x"[..])));
    }
}
