//! Cache keys: the URL as handlers see it, so that no two URLs that may have different responses share a key.

/// Maximum length of a key in bytes; requests with a longer one bypass the cache.
pub const KEY_BYTES_MAX: usize = 4096;

/// Writes the key of a request: `scheme://host/path?query`, with the host in lower case and without the
/// scheme's default port. `path` and `query` are percent-encoded, as handlers get them. `variation` contains
/// further properties of the request that handlers see, such as the host reported by a trusted proxy; usually
/// empty.
///
/// False if the request has no key, because it has no host or the key is too long.
pub fn write_key(
    out: &mut Vec<u8>,
    is_secure: bool,
    host: &[u8],
    path: &[u8],
    query: Option<&[u8]>,
    variation: &[u8],
) -> bool {
    out.clear();
    if host.is_empty() || !path.starts_with(b"/") {
        return false;
    }
    let (scheme, port) =
        if is_secure { (&b"https://"[..], &b":443"[..]) } else { (&b"http://"[..], &b":80"[..]) };
    out.extend_from_slice(scheme);
    let host_at = out.len();
    out.extend_from_slice(host.strip_suffix(port).unwrap_or(host));
    out[host_at..].make_ascii_lowercase();
    out.extend_from_slice(path);
    if let Some(query) = query {
        out.push(b'?');
        out.extend_from_slice(query);
    }
    if !variation.is_empty() {
        // A space separates the variation, because URLs contain none.
        out.push(b' ');
        out.extend_from_slice(variation);
    }
    out.len() <= KEY_BYTES_MAX
}

/// Replaces the query of a key by the result of `normal`.
pub fn rewrite_query(key: &mut Vec<u8>, normal: impl FnOnce(&[u8]) -> Option<Vec<u8>>) {
    let end = url(key).len();
    let Some(at) = key[..end].iter().position(|&byte| byte == b'?') else { return };
    let rest = key.split_off(end);
    let query = normal(&key[at + 1..]);
    key.truncate(at);
    if let Some(query) = query {
        key.push(b'?');
        key.extend_from_slice(&query);
    }
    key.extend_from_slice(&rest);
}

/// Returns the key of the URL in a response's `Location` or `Content-Location`, if it is on the same host.
/// `host` is the host of the request.
#[must_use]
pub fn same_host_key(key: &[u8], host: &[u8], reference: &[u8]) -> Option<Vec<u8>> {
    let base = url(key);
    let scheme_end = base.windows(3).position(|part| part == b"://")? + 3;
    let path_at = scheme_end + base[scheme_end..].iter().position(|&byte| byte == b'/')?;
    let (origin, path) = base.split_at(path_at);
    let reference = reference.split(|&byte| byte == b'#').next().unwrap_or_default();
    let joined = if let Some(end) = reference.windows(3).position(|part| part == b"://") {
        let rest = &reference[end + 3..];
        let host_end = rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len());
        let same_scheme = reference[..end + 3].eq_ignore_ascii_case(&base[..scheme_end]);
        if !same_scheme || !rest[..host_end].eq_ignore_ascii_case(host) {
            return None;
        }
        [origin, if host_end == rest.len() { b"/" } else { &rest[host_end..] }].concat()
    } else if reference.starts_with(b"//") || reference.is_empty() {
        return None;
    } else if reference.starts_with(b"/") {
        [origin, reference].concat()
    } else {
        let path = path.split(|&byte| byte == b'?').next().unwrap_or_default();
        let folder = path.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
        [origin, &path[..folder], reference].concat()
    };
    Some(joined)
}

/// Returns the URL of a key, without its variation.
#[must_use]
pub fn url(key: &[u8]) -> &[u8] {
    let end = key.iter().position(|&byte| byte == b' ').unwrap_or(key.len());
    &key[..end]
}

/// Returns the part of a URL from `//` on.
#[must_use]
pub fn without_scheme(url: &[u8]) -> &[u8] {
    &url[url.iter().position(|&byte| byte == b'/').unwrap_or(0)..]
}

/// Returns the host of a URL or key, with its port if there is one.
#[must_use]
pub fn host(url: &[u8]) -> &[u8] {
    let rest = without_scheme(url);
    let rest = rest.strip_prefix(b"//").unwrap_or(rest);
    &rest[..rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len())]
}

/// Normalizes a URL like those in keys; `None` if it is invalid. Without a scheme (`//host/path`) the result
/// begins with `//`.
#[must_use]
pub fn normal_url(text: &str) -> Option<Vec<u8>> {
    let (scheme, rest, port) = if let Some(rest) = text.strip_prefix("https://") {
        ("https:", rest, ":443")
    } else if let Some(rest) = text.strip_prefix("http://") {
        ("http:", rest, ":80")
    } else {
        ("", text.strip_prefix("//")?, "")
    };
    let at = rest.find(['/', '?']).unwrap_or(rest.len());
    let (host, path) = rest.split_at(at);
    let host = host.strip_suffix(port).unwrap_or(host).to_ascii_lowercase();
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic());
    if host.is_empty() || !is_plain {
        return None;
    }
    let slash = if path.starts_with('/') { "" } else { "/" };
    let path = path.split('#').next().unwrap_or_default();
    Some(format!("{scheme}//{host}{slash}{path}").into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(is_secure: bool, host: &str, path: &str, query: Option<&str>) -> Option<String> {
        let mut out = Vec::new();
        let query = query.map(str::as_bytes);
        let has = write_key(&mut out, is_secure, host.as_bytes(), path.as_bytes(), query, b"");
        has.then(|| String::from_utf8(out).unwrap())
    }

    #[test]
    fn cache_keys_are_normalized_urls() {
        for (is_secure, host, path, query, wanted) in [
            (false, "Example.COM:80", "/A", None, Some("http://example.com/A")),
            (true, "example.com:443", "/", Some("b=1&a"), Some("https://example.com/?b=1&a")),
            (true, "example.com:80", "/", None, Some("https://example.com:80/")),
            (false, "a", "/?", Some(""), Some("http://a/??")),
            (false, "", "/", None, None),
            (false, "a", "*", None, None),
        ] {
            assert_eq!(key(is_secure, host, path, query).as_deref(), wanted);
        }
        assert_eq!(key(false, "a", &format!("/{}", "x".repeat(KEY_BYTES_MAX)), None), None);
        let mut out = Vec::new();
        assert!(write_key(&mut out, false, b"a", b"/x", None, b"other.test"));
        assert_eq!((&out[..], url(&out)), (&b"http://a/x other.test"[..], &b"http://a/x"[..]));
    }

    #[test]
    fn query_of_a_key_is_rewritten() {
        for (key, wanted) in [
            ("http://a/x?b&a", "http://a/x?a"),
            ("http://a/x", "http://a/x"),
            ("http://a/x?", "http://a/x"),
            ("http://a/x?b q=?", "http://a/x q=?"),
        ] {
            let mut key = key.as_bytes().to_vec();
            rewrite_query(&mut key, |query| query.ends_with(b"a").then(|| b"a".to_vec()));
            assert_eq!(String::from_utf8(key).unwrap(), wanted);
        }
    }

    #[test]
    fn references_are_resolved_only_within_the_same_origin() {
        for (reference, wanted) in [
            ("/x", Some("http://a.test/x")),
            ("x", Some("http://a.test/b/x")),
            ("http://A.test:80/x#y", Some("http://a.test/x")),
            ("http://a.test:80", Some("http://a.test/")),
            ("http://b.test/x", None),
            ("https://a.test:80/x", None),
            ("//a.test/x", None),
            ("", None),
        ] {
            let key = same_host_key(b"http://a.test/b/c?d/e", b"a.test:80", reference.as_bytes());
            assert_eq!(key.map(|key| String::from_utf8(key).unwrap()).as_deref(), wanted, "{reference}");
        }
    }

    #[test]
    fn urls_given_by_administrators_are_normalized() {
        for (text, wanted) in [
            ("http://A.test:80/x?y#z", Some("http://a.test/x?y")),
            ("https://a.test", Some("https://a.test/")),
            ("https://a.test?x", Some("https://a.test/?x")),
            ("//a.test/", Some("//a.test/")),
            ("a.test/", None),
            ("http:///x", None),
            ("http://a/ b", None),
        ] {
            assert_eq!(
                normal_url(text).map(|url| String::from_utf8(url).unwrap()).as_deref(),
                wanted,
                "{text}"
            );
        }
    }
}
