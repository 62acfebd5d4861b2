//! Paths as upstream servers see them, and back.

use std::borrow::Cow;

use http::target::{normal_path, routed_path};
use http::{Reject, TargetForm};

use crate::options::PathMap;
use crate::template::Ask;

impl PathMap {
    /// A prefix and what stands in its place; a slash at the end of either means nothing.
    #[must_use]
    pub fn new(from: &str, to: &str) -> PathMap {
        PathMap { from: from.trim_end_matches('/').into(), to: to.trim_end_matches('/').into() }
    }

    /// The upstream's view of `path`, in two parts; `None` where the prefix is not there.
    fn forward<'p>(&'p self, path: &'p [u8]) -> Option<(&'p [u8], &'p [u8])> {
        swap(&self.from, &self.to, path)
    }

    /// The client's view of an upstream's `path`, in two parts; `None` where it is outside of what is mapped.
    #[must_use]
    pub fn back<'p>(&'p self, path: &'p [u8]) -> Option<(&'p [u8], &'p [u8])> {
        swap(&self.to, &self.from, path)
    }
}

/// `path` with the prefix `old` exchanged for `new`; the prefix must end where a segment ends.
fn swap<'p>(old: &'p str, new: &'p str, path: &'p [u8]) -> Option<(&'p [u8], &'p [u8])> {
    let (old, new) = (old.trim_end_matches('/'), new.trim_end_matches('/'));
    let rest = path.strip_prefix(old.as_bytes())?;
    matches!(rest.first(), None | Some(b'/' | b'?' | b'#')).then_some((new.as_bytes(), rest))
}

/// Writes the request target for the upstream: origin-form, the prefix exchanged, and without the segments `.` and
/// `..`, which the upstream might resolve differently from whoever chose the route.
///
/// # Errors
/// 400 for a path with dot segments that cannot be resolved.
pub fn write_target(out: &mut Vec<u8>, map: Option<&PathMap>, ask: &Ask<'_>) -> Result<(), Reject> {
    let target = &ask.head.target;
    if target.form == TargetForm::Asterisk {
        out.push(b'*');
        return Ok(());
    }
    let raw = target.path(ask.bytes);
    if has_dot_segment(raw) {
        write_path(out, map, &encoded(&normal_path(raw)?));
    } else if map.is_none_or(|map| map.forward(raw).is_some()) {
        write_path(out, map, raw);
    } else {
        // The route may have matched `/%61pi` as `/api`.
        match normal_path(raw).map(|normal| encoded(&normal).into_owned()) {
            Ok(normal) if map.is_some_and(|map| map.forward(&normal).is_some()) => {
                write_path(out, map, &normal);
            }
            // The route may have matched it all the same, by a path in which an encoded slash stays one.
            Err(reject) if map.is_some_and(|map| is_routed_below(map, raw)) => return Err(reject),
            _ => write_path(out, None, raw),
        }
    }
    if let Some(query) = target.query {
        out.push(b'?');
        out.extend_from_slice(query.of(ask.bytes));
    }
    Ok(())
}

fn is_routed_below(map: &PathMap, raw: &[u8]) -> bool {
    routed_path(raw).is_ok_and(|path| map.forward(&path).is_some())
}

fn write_path(out: &mut Vec<u8>, map: Option<&PathMap>, path: &[u8]) {
    let (prefix, rest) = map.and_then(|map| map.forward(path)).unwrap_or((b"", path));
    out.extend_from_slice(prefix);
    // `//host/…` reads as the beginning of an authority to some.
    let rest = match rest.iter().position(|&byte| byte != b'/') {
        Some(slashes) => &rest[slashes..],
        None => &[],
    };
    if !rest.is_empty() || prefix.is_empty() || path.ends_with(b"/") {
        out.push(b'/');
    }
    out.extend_from_slice(rest);
}

/// Whether a segment is `.` or `..`, written plainly or with `%2e`. An encoded slash ends a segment too: upstream
/// servers that decode first see one there.
fn has_dot_segment(path: &[u8]) -> bool {
    // Nearly every path is done with here.
    if !path.iter().any(|&byte| byte == b'.' || byte == b'%') {
        return false;
    }
    let (mut rest, mut dots, mut others) = (path, 0, false);
    loop {
        rest = match rest {
            [b'.', after @ ..] | [b'%', b'2', b'e' | b'E', after @ ..] => {
                dots += 1;
                after
            }
            [] | [b'/', ..] | [b'%', b'2', b'f' | b'F', ..] if !others && (dots == 1 || dots == 2) => {
                return true;
            }
            [] => return false,
            [b'/', after @ ..] | [b'%', b'2', b'f' | b'F', after @ ..] => {
                (dots, others) = (0, false);
                after
            }
            [_, after @ ..] => {
                others = true;
                after
            }
        };
    }
}

/// A decoded path with everything encoded again that may not stand in one (RFC 3986 section 3.3).
fn encoded(path: &[u8]) -> Cow<'_, [u8]> {
    let stands = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/".contains(&byte);
    if path.iter().all(|&byte| stands(byte)) {
        return Cow::Borrowed(path);
    }
    let mut out = Vec::with_capacity(path.len() * 2);
    for &byte in path {
        if stands(byte) {
            out.push(byte);
        } else {
            let digits = b"0123456789ABCDEF";
            out.extend([b'%', digits[usize::from(byte >> 4)], digits[usize::from(byte & 15)]]);
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::RequestHead;
    use net::Peer;

    fn target(raw: &str, map: Option<(&str, &str)>) -> String {
        let method = if raw == "*" { "OPTIONS" } else { "GET" };
        let bytes = format!("{method} {raw} HTTP/1.1\r\nHost: a\r\n\r\n").into_bytes();
        let mut head = RequestHead::default();
        assert!(head.parse(&bytes, &http::Limits::default()).unwrap());
        let ask = Ask {
            head: &head,
            bytes: &bytes,
            peer: Peer::Unix,
            client: net::Client::direct(Peer::Unix, false),
            upstream: "",
        };
        let map = map.map(|(from, to)| PathMap::new(from, to));
        let mut out = Vec::new();
        match write_target(&mut out, map.as_ref(), &ask) {
            Ok(()) => String::from_utf8(out).unwrap(),
            Err(reject) => reject.reason.into(),
        }
    }

    #[test]
    fn paths_go_as_they_came_but_for_dot_segments() {
        for (raw, want) in [
            ("/", "/"),
            ("/a%20b?x=/../y", "/a%20b?x=/../y"),
            ("/a/b/?", "/a/b/?"),
            ("/a//b", "/a//b"),
            ("//evil.test/a", "/evil.test/a"),
            ("/.well-known/..x/...", "/.well-known/..x/..."),
            ("/a/../b%20c", "/b%20c"),
            ("/a/%2e%2E/b", "/b"),
            ("/a/./b/.%2e/", "/a/"),
            ("/a/../%7Cx%3f", "/%7Cx%3F"),
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
    fn prefixes_are_exchanged_where_segments_end() {
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
            // It would leave what is mapped: the route has matched it as `/api/a%2Fb`.
            ("/%61pi/a%2Fb", "/api", "/v1", "encoded slash in path"),
            ("/a/../api/x", "/api", "/v1", "/v1/x"),
        ] {
            assert_eq!(target(raw, Some((from, to))), want, "{raw} {from} {to}");
        }
    }
}
