//! The path of a request. Routes, handlers and upstream servers all get the same path; only its form differs
//! (decoded or percent-encoded).
//!
//! - Percent-encoding is decoded once: `%61` is `a`, `%2561` is `%61`. A byte beyond ASCII is treated as if
//!   it were encoded.
//! - An encoded slash or backslash (`%2F`, `%5C`, and a plain backslash, which some servers treat as a slash)
//!   is never decoded: both forms contain `%2F` or `%5C`. [`has_encoded_slash`] reports whether there is one,
//!   because most sites refuse such paths.
//! - Dot segments are resolved, encoded or not.
//! - A `%25` before bytes that would read as an encoded slash (`%252F`) stays encoded where encoded slashes
//!   are kept ([`matched_path`]): otherwise `%2F` and `%252F` would be the same path.
//! - Empty segments (`//`) are merged; or kept except at the start, where some clients would read them as a
//!   host; or all kept.
//! - Paths that servers are known to interpret differently, and that no browser sends, are refused: with NUL,
//!   a `%` without two digits, `..` above the root, or a hidden dot segment (`..;a`, `..%2Fa`).

use std::borrow::Cow;

use crate::reject::Reject;
use crate::scan::{self, is_path_byte};

/// An encoded slash in a decoded path.
const SLASH: &[u8] = b"%2F";
/// A backslash in a decoded path.
const BACKSLASH: &[u8] = b"%5C";
/// A percent sign in a [`matched_path`] before bytes that would read as an encoded slash or backslash.
const PERCENT: &[u8] = b"%25";

/// Treatment of empty segments: `//` in the middle or at the end of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EmptySegments {
    /// `/a//b` is equivalent to `/a/b`.
    #[default]
    Merge,
    /// `/a//b` and `/a/b` are different paths.
    Keep,
    /// Empty segments are kept at the start too: the form for applications and upstream servers.
    AsSent,
}

/// Decodes a path for route matching and applications. Borrowed if nothing had to change. The path of
/// `OPTIONS *` is `*`.
///
/// # Errors
/// 400 for paths that are refused; see the module documentation.
pub fn normal_path(raw: &[u8], empty: EmptySegments) -> Result<Cow<'_, [u8]>, Reject> {
    if !raw.starts_with(b"/") || has_plain_segments(raw, |byte| !matches!(byte, b'%' | b'\\')) {
        return Ok(Cow::Borrowed(raw));
    }
    decoded(raw, empty, b"%").map(Cow::Owned)
}

/// Decodes a path for routes if encoded slashes are kept: `%252F` stays `%252F`, because `%2F` in it is an
/// encoded slash.
///
/// # Errors
/// Those of [`normal_path`].
pub fn matched_path(raw: &[u8], empty: EmptySegments) -> Result<Cow<'_, [u8]>, Reject> {
    match normal_path(raw, empty)? {
        Cow::Owned(_) if raw.windows(3).any(|unit| unit == b"%25") => {
            decoded(raw, empty, PERCENT).map(Cow::Owned)
        }
        path => Ok(path),
    }
}

/// Decodes a path; `percent` replaces a percent sign before bytes that would read as an encoded slash.
fn decoded(raw: &[u8], empty: EmptySegments, percent: &[u8]) -> Result<Vec<u8>, Reject> {
    let mut path = Vec::with_capacity(raw.len());
    resolve(&mut path, raw, empty, |path, segment| {
        let mut units = PathUnits(segment);
        while let Some(unit) = units.next() {
            match unit? {
                PathUnit::Byte(b'%') if units.reads_as_slash() => path.extend_from_slice(percent),
                PathUnit::Byte(byte) => path.push(byte),
                PathUnit::Slash => path.extend_from_slice(SLASH),
                PathUnit::Backslash => path.extend_from_slice(BACKSLASH),
            }
        }
        Ok(())
    })?;
    Ok(path)
}

/// Whether two paths are equal if empty segments are ignored.
#[must_use]
pub fn differ_only_in_slashes(one: &[u8], other: &[u8]) -> bool {
    let merged = |path: &[u8]| {
        let mut merged = path.to_vec();
        merged.dedup_by(|next, last| *next == b'/' && *last == b'/');
        merged
    };
    merged(one) == merged(other)
}

/// Percent-encodes a path for request targets and header fields: the path as sent, except that dot segments
/// are resolved as in [`normal_path`] and bytes that are not allowed in a path (RFC 3986 section 3.3) are
/// encoded.
///
/// # Errors
/// Those of [`normal_path`].
pub fn encoded_path(raw: &[u8], empty: EmptySegments) -> Result<Cow<'_, [u8]>, Reject> {
    let stands = |byte| byte == b'%' || is_path_byte(byte);
    if !raw.starts_with(b"/") || (has_plain_segments(raw, stands) && !has_encoded_dots(raw)?) {
        return Ok(Cow::Borrowed(raw));
    }
    let mut path = Vec::with_capacity(raw.len());
    resolve(&mut path, raw, empty, |path, segment| {
        segment.iter().for_each(|&byte| push_encoded(path, byte, stands));
        Ok(())
    })?;
    Ok(Cow::Owned(path))
}

/// Whether a path as sent has an encoded slash, or a backslash in any form.
#[must_use]
pub fn has_encoded_slash(raw: &[u8]) -> bool {
    PathUnits(raw).any(|unit| matches!(unit, Ok(PathUnit::Slash | PathUnit::Backslash)))
}

/// Returns the part of `path` after `prefix`; `prefix` is decoded as in [`matched_path`], `path` is
/// percent-encoded.
#[must_use]
pub fn strip_prefix<'p>(path: &'p [u8], prefix: &[u8]) -> Option<&'p [u8]> {
    let mut units = PathUnits(path);
    let mut left = prefix;
    while !left.is_empty() {
        left = match units.next()?.ok()? {
            PathUnit::Byte(b'%') if units.reads_as_slash() => left.strip_prefix(PERCENT)?,
            PathUnit::Byte(byte) => left.strip_prefix(&[byte])?,
            PathUnit::Slash => left.strip_prefix(SLASH)?,
            PathUnit::Backslash => left.strip_prefix(BACKSLASH)?,
        };
    }
    Some(units.0)
}

/// Percent-encodes the bytes beyond ASCII of a query or target as sent.
#[must_use]
pub fn encode_beyond_ascii(bytes: &[u8]) -> Cow<'_, [u8]> {
    if bytes.is_ascii() {
        return Cow::Borrowed(bytes);
    }
    let mut out = Vec::with_capacity(bytes.len() + 16);
    bytes.iter().for_each(|&byte| push_encoded(&mut out, byte, |byte| byte.is_ascii()));
    Cow::Owned(out)
}

/// Percent-encodes a decoded path ([`matched_path`]): bytes that are not allowed in a path, and `%`, except
/// in `%2F`, `%5C` and `%252F`, which are encoded already.
#[must_use]
pub fn encoded(decoded: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(decoded.len());
    for (at, &byte) in decoded.iter().enumerate() {
        let is_kept = [SLASH, BACKSLASH].iter().any(|kept| decoded[at..].starts_with(kept))
            || decoded[at..].strip_prefix(PERCENT).is_some_and(|rest| PathUnits(rest).reads_as_slash());
        push_encoded(&mut out, byte, |byte| is_path_byte(byte) || is_kept);
    }
    out
}

/// Encodes one decoded path segment for a URL: everything but RFC 3986's unreserved characters becomes `%XX`.
#[must_use]
pub fn encoded_segment(segment: &[u8]) -> String {
    let is_unreserved = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let mut out = Vec::with_capacity(segment.len());
    segment.iter().for_each(|&byte| push_encoded(&mut out, byte, is_unreserved));
    String::from_utf8(out).expect("encoded bytes are ASCII")
}

fn push_encoded(out: &mut Vec<u8>, byte: u8, stands: impl Fn(u8) -> bool) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    if stands(byte) {
        out.push(byte);
    } else {
        out.extend([b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
}

/// The fast path: whether all bytes fit, no segment but the last is empty, and no segment begins with a dot.
fn has_plain_segments(raw: &[u8], fits: impl Fn(u8) -> bool) -> bool {
    let mut rest = raw;
    let mut after_slash = false;
    while let Some((chunk, after)) = rest.split_first_chunk::<8>()
        && let Some(ends_with_slash) = scan::plain_path_word(u64::from_le_bytes(*chunk), after_slash)
    {
        (rest, after_slash) = (after, ends_with_slash);
    }
    rest.iter().all(|&byte| {
        let plain = fits(byte) && !(after_slash && matches!(byte, b'/' | b'.'));
        after_slash = byte == b'/';
        plain
    })
}

/// Whether the path has an encoded dot segment.
fn has_encoded_dots(raw: &[u8]) -> Result<bool, Reject> {
    if !raw.contains(&b'%') {
        return Ok(false);
    }
    for segment in raw.split(|&byte| byte == b'/') {
        if matches!(Segment::of(segment)?, Segment::CurrentFolder | Segment::ParentFolder) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Resolves dot segments and writes the remaining segments, each after its slash.
fn resolve(
    path: &mut Vec<u8>,
    raw: &[u8],
    empty: EmptySegments,
    write: impl Fn(&mut Vec<u8>, &[u8]) -> Result<(), Reject>,
) -> Result<(), Reject> {
    let mut segments = raw.split(|&byte| byte == b'/').skip(1).peekable();
    let mut is_start = true;
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match Segment::of(segment)? {
            Segment::Empty | Segment::CurrentFolder if last => path.push(b'/'),
            Segment::Empty if empty != EmptySegments::Merge && !path.is_empty() => path.push(b'/'),
            // An empty segment at the start that results from resolving `/..` was not sent there.
            Segment::Empty if empty == EmptySegments::AsSent && is_start => path.push(b'/'),
            Segment::Empty | Segment::CurrentFolder => {}
            Segment::ParentFolder => {
                let parent = path.iter().rposition(|&byte| byte == b'/');
                path.truncate(parent.ok_or(Reject::bad_request("path climbs above the root"))?);
                if last {
                    path.push(b'/');
                }
            }
            Segment::Name => {
                path.push(b'/');
                write(path, segment)?;
            }
        }
        is_start &= segment.is_empty();
    }
    Ok(())
}

/// A segment of a path.
enum Segment {
    Empty,
    /// `.`
    CurrentFolder,
    /// `..`
    ParentFolder,
    Name,
}

impl Segment {
    /// Classifies a segment as it was sent.
    fn of(segment: &[u8]) -> Result<Segment, Reject> {
        // Some servers split a segment at encoded slashes, drop what follows a semicolon, and then resolve
        // dot segments.
        let mut dots = 0;
        let mut others = false;
        let mut has_parameters = false;
        let mut is_cut = false;
        let mut disguised = false;
        let is_dots = |dots: usize, others: bool| !others && (dots == 1 || dots == 2);
        for unit in PathUnits(segment) {
            match unit? {
                PathUnit::Slash | PathUnit::Backslash => {
                    disguised |= is_dots(dots, others);
                    (dots, others, has_parameters, is_cut) = (0, false, false, true);
                }
                PathUnit::Byte(0) => return Err(Reject::bad_request("encoded NUL in path")),
                PathUnit::Byte(_) if has_parameters => {}
                PathUnit::Byte(b';') => {
                    disguised |= is_dots(dots, others);
                    has_parameters = true;
                }
                PathUnit::Byte(b'.') => dots += 1,
                PathUnit::Byte(_) => others = true,
            }
        }
        if disguised || (is_cut && is_dots(dots, others)) {
            return Err(Reject::bad_request("dot segment in disguise in path"));
        }
        Ok(match (segment, dots) {
            ([], _) => Segment::Empty,
            (_, 1) if !others => Segment::CurrentFolder,
            (_, 2) if !others => Segment::ParentFolder,
            _ => Segment::Name,
        })
    }
}

/// One byte of a path, or one percent-encoded byte, decoded.
enum PathUnit {
    Byte(u8),
    /// `%2F`; a plain slash is a `Byte`.
    Slash,
    /// `%5C`, or a plain backslash.
    Backslash,
}

/// The units of a path as sent.
struct PathUnits<'r>(&'r [u8]);

impl Iterator for PathUnits<'_> {
    type Item = Result<PathUnit, Reject>;

    fn next(&mut self) -> Option<Self::Item> {
        let unit = match self.0 {
            [] => return None,
            [b'%', high, low, rest @ ..] => {
                let (Some(high), Some(low)) = (scan::hex_value(*high), scan::hex_value(*low)) else {
                    return self.invalid();
                };
                self.0 = rest;
                match high << 4 | low {
                    b'/' => PathUnit::Slash,
                    b'\\' => PathUnit::Backslash,
                    byte => PathUnit::Byte(byte),
                }
            }
            [b'%', ..] => return self.invalid(),
            [byte, rest @ ..] => {
                self.0 = rest;
                if *byte == b'\\' { PathUnit::Backslash } else { PathUnit::Byte(*byte) }
            }
        };
        Some(Ok(unit))
    }
}

impl PathUnits<'_> {
    /// Whether the bytes after a percent sign read as an encoded slash or backslash, after any number of
    /// decodings.
    fn reads_as_slash(&self) -> bool {
        let mut units = PathUnits(self.0);
        let mut next = || match units.next() {
            Some(Ok(PathUnit::Byte(byte))) => byte.to_ascii_uppercase(),
            _ => 0,
        };
        loop {
            match [next(), next()] {
                [b'2', b'5'] => {}
                pair => return matches!(&pair, b"2F" | b"5C"),
            }
        }
    }

    fn invalid(&mut self) -> Option<Result<PathUnit, Reject>> {
        self.0 = &[];
        Some(Err(Reject::bad_request("invalid percent-encoding in path")))
    }
}

/// Formats a target for operators: queries and path parameters (after `;`) may hold secrets, so they are
/// replaced by `?***` and `;***`. Bytes beyond ASCII are percent-encoded.
#[must_use]
pub fn redact_target(target: &[u8]) -> String {
    let end = target.iter().position(|byte| b"?;".contains(byte));
    let shown = encode_beyond_ascii(&target[..end.unwrap_or(target.len())]);
    let mark = end.map_or("", |end| if target[end] == b'?' { "?***" } else { ";***" });
    format!("{}{mark}", String::from_utf8_lossy(&shown))
}

#[cfg(test)]
mod tests {
    use super::*;
    use EmptySegments::{AsSent, Keep, Merge};

    #[test]
    fn error_log_hides_queries_and_parameters() {
        let shown = |target: &str| redact_target(target.as_bytes());
        assert_eq!(
            [shown("/a?token=x"), shown("/a;t=x?y"), shown("/a%20b"), shown("-")],
            ["/a?***", "/a;***", "/a%20b", "-"]
        );
    }

    #[test]
    fn plain_segment_scan_agrees_with_a_bytewise_check() {
        const ALPHABET: &[u8] = b"//..aZ09-_%\\;~\x7f\xc3\0,:";
        let fits = |byte: u8| !matches!(byte, b'%' | b'\\');
        let mut dice = 1u64;
        for len in 0..40 {
            for _ in 0..4_000 {
                let mut path = vec![b'/'];
                for _ in 0..len {
                    dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    // Mostly letters; otherwise no word would be plain.
                    let at = (dice >> 33) as usize;
                    path.push(if at & 0xf000 > 0x2000 {
                        b'a' + (at % 26) as u8
                    } else {
                        ALPHABET[at % ALPHABET.len()]
                    });
                }
                let pairs = path.windows(2).any(|pair| pair[0] == b'/' && matches!(pair[1], b'/' | b'.'));
                let want = !pairs && path.iter().all(|&byte| fits(byte));
                assert_eq!(has_plain_segments(&path, fits), want, "{}", path.escape_ascii());
            }
        }
    }

    /// Both forms of a path, or the reason for refusing it.
    fn both(raw: &[u8], empty: EmptySegments) -> (String, String) {
        let form = |found: Result<Cow<'_, [u8]>, Reject>| match found {
            Ok(path) => path.escape_ascii().to_string().replace("\\\\", "\\"),
            Err(reject) => reject.reason.to_owned(),
        };
        (form(normal_path(raw, empty)), form(encoded_path(raw, empty)))
    }

    #[test]
    fn decoded_and_encoded_paths_are_normalized_alike() {
        for (raw, decoded, encoded) in [
            (&b"/"[..], "/", "/"),
            (b"*", "*", "*"),
            (b"/a/b", "/a/b", "/a/b"),
            (b"/%61%20b", "/a b", "/%61%20b"),
            (b"/%2561", "/%61", "/%2561"),
            (b"/%252e%252e/x", "/%2e%2e/x", "/%252e%252e/x"),
            (b"/100%25", "/100%", "/100%25"),
            (b"/a|b<c", "/a|b<c", "/a%7Cb%3Cc"),
            (b"/caf\xc3\xa9", "/caf\\xc3\\xa9", "/caf%C3%A9"),
            (b"/caf%c3%a9", "/caf\\xc3\\xa9", "/caf%c3%a9"),
            (b"/\xe9/../\xe8", "/\\xe8", "/%E8"),
            (b"/a%0d%0ab", "/a\\r\\nb", "/a%0d%0ab"),
            (b"/a%3fb%23", "/a?b#", "/a%3fb%23"),
            // Dots.
            (b"/a/./b/.", "/a/b/", "/a/b/"),
            (b"/a/../b%20c", "/b c", "/b%20c"),
            (b"/a/b/..", "/a/", "/a/"),
            (b"/a/b/../..", "/", "/"),
            (b"/a/%2E%2e/b", "/b", "/b"),
            (b"/a/.%2e/b/%2e/", "/b/", "/b/"),
            (b"/.well-known/..x/...", "/.well-known/..x/...", "/.well-known/..x/..."),
            // Encoded slashes are not separators.
            (b"/a%2fb", "/a%2Fb", "/a%2fb"),
            (b"/a%5cb\\c", "/a%5Cb%5Cc", "/a%5cb%5Cc"),
            (b"/x/a%2f..b/../c", "/x/c", "/x/c"),
            // Parameters belong to their segment.
            (b"/a;x=1/b;/c", "/a;x=1/b;/c", "/a;x=1/b;/c"),
            (b"/...;/b", "/...;/b", "/...;/b"),
        ] {
            assert_eq!(both(raw, Merge), (decoded.into(), encoded.into()), "{}", raw.escape_ascii());
            assert_eq!(both(raw, Keep), both(raw, Merge), "without empty segments both rules agree");
        }
    }

    #[test]
    fn empty_segments_are_merged_or_kept() {
        for (raw, merged, kept) in [
            ("/a//b///c", "/a/b/c", "/a//b///c"),
            ("/a//", "/a/", "/a//"),
            ("//a", "/a", "/a"),
            ("///", "/", "/"),
            ("/..//a", "path climbs above the root", "path climbs above the root"),
            ("/x/..//evil.test/a", "/evil.test/a", "/evil.test/a"),
            ("/a//../b", "/b", "/a/b"),
            ("/a//./b/", "/a/b/", "/a//b/"),
            ("/u/https://b", "/u/https:/b", "/u/https://b"),
        ] {
            assert_eq!(both(raw.as_bytes(), Merge), (merged.into(), merged.into()), "{raw}");
            assert_eq!(both(raw.as_bytes(), Keep), (kept.into(), kept.into()), "{raw}");
            // Empty segments at the start distinguish the two modes.
            let sent = if raw.starts_with("//") { raw } else { kept };
            assert_eq!(both(raw.as_bytes(), AsSent), (sent.into(), sent.into()), "{raw}");
        }
        for (one, other, same) in [("/a/b", "//a///b", true), ("/a/b", "/b", false), ("/a/", "/a//", true)] {
            assert_eq!(differ_only_in_slashes(one.as_bytes(), other.as_bytes()), same, "{one} {other}");
        }
    }

    #[test]
    fn encoded_percent_sign_does_not_create_a_slash() {
        for (raw, normal, matched) in [
            ("/a%2fb", "/a%2Fb", "/a%2Fb"),
            ("/a%252Fb", "/a%2Fb", "/a%252Fb"),
            ("/a%25%32Fb", "/a%2Fb", "/a%252Fb"),
            ("/a%252fb", "/a%2fb", "/a%252fb"),
            ("/a%25252Fb", "/a%252Fb", "/a%25252Fb"),
            ("/a%255Cb%25", "/a%5Cb%", "/a%255Cb%"),
            ("/100%25/2F", "/100%/2F", "/100%/2F"),
            ("/%2525", "/%25", "/%25"),
        ] {
            let path = |found: Result<Cow<'_, [u8]>, Reject>| found.unwrap().escape_ascii().to_string();
            assert_eq!(path(normal_path(raw.as_bytes(), Merge)), normal, "{raw}");
            let found = matched_path(raw.as_bytes(), Merge).unwrap();
            assert_eq!(found.escape_ascii().to_string(), matched, "{raw}");
            assert_eq!(matched_path(&encoded(&found), Merge).unwrap(), found, "{raw}");
            assert_eq!(strip_prefix(raw.as_bytes(), &found), Some(&b""[..]), "{raw}");
        }
    }

    #[test]
    fn ambiguous_paths_are_rejected() {
        for (raw, reason) in [
            ("/%2e%2e/", "path climbs above the root"),
            ("/..", "path climbs above the root"),
            ("/a/../../b", "path climbs above the root"),
            ("/a%00", "encoded NUL in path"),
            ("/a%0", "invalid percent-encoding in path"),
            ("/a%", "invalid percent-encoding in path"),
            ("/a%zz", "invalid percent-encoding in path"),
            ("/a%u002f", "invalid percent-encoding in path"),
            ("/a/..;/b", "dot segment in disguise in path"),
            ("/a/..;x=1/b", "dot segment in disguise in path"),
            ("/a/.;/b", "dot segment in disguise in path"),
            ("/a/%2e%2e%3bx", "dot segment in disguise in path"),
            ("/a/..%2fb", "dot segment in disguise in path"),
            ("/a/b%2f..", "dot segment in disguise in path"),
            ("/a/b%5c%2e;y%2fc", "dot segment in disguise in path"),
            ("/a/..\\b", "dot segment in disguise in path"),
        ] {
            assert_eq!(both(raw.as_bytes(), Merge), (reason.into(), reason.into()), "{raw}");
            assert_eq!(both(raw.as_bytes(), Keep), (reason.into(), reason.into()), "{raw}");
        }
    }

    #[test]
    fn encoded_slashes_are_detected() {
        for (raw, want) in [("/a%2fb", true), ("/%5C", true), ("/a\\b", true), ("/a/b%252F", false)] {
            assert_eq!(has_encoded_slash(raw.as_bytes()), want, "{raw}");
        }
    }

    #[test]
    fn a_prefix_is_found_however_it_is_encoded() {
        for (path, prefix, rest) in [
            ("/api/x", "/api", Some("/x")),
            ("/%61p%69/x%20y", "/api", Some("/x%20y")),
            ("/caf%C3%A9/x", "/café", Some("/x")),
            ("/100%25/x", "/100%", Some("/x")),
            ("/api", "/api", Some("")),
            ("/ap", "/api", None),
            // An encoded slash is not a slash: it stays `%2F`.
            ("/a%2fb", "/a/b", None),
            ("/a%2fb/x", "/a%2Fb", Some("/x")),
            ("/a%252Fb/x", "/a%2Fb", None),
            ("/a%252Fb/x", "/a%252Fb", Some("/x")),
            ("/a\\b", "/a%5Cb", Some("")),
        ] {
            assert_eq!(strip_prefix(path.as_bytes(), prefix.as_bytes()), rest.map(str::as_bytes), "{path}");
        }
    }

    #[test]
    fn only_bytes_beyond_ascii_are_encoded_in_queries() {
        assert_eq!(encode_beyond_ascii(b"a=%20|&b=\"<"), &b"a=%20|&b=\"<"[..]);
        assert_eq!(encode_beyond_ascii(b"q=caf\xe9"), &b"q=caf%E9"[..]);
        assert_eq!(encoded(b"/a b%/\n/a%2Fb%2f"), &b"/a%20b%25/%0A/a%2Fb%252f"[..]);
    }
}
