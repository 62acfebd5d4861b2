//! The fields of Compression Dictionary Transport (RFC 9842): dictionaries that clients announce and that
//! responses offer.

use crate::fields::Fields;
use crate::scan;

/// Maximum length of a pattern and of an identifier, in bytes (RFC 9842 section 2.1.3 for the latter).
pub const TEXT_BYTES_MAX: usize = 1024;

/// The SHA-256 hash in `Available-Dictionary`, a byte sequence (RFC 9651 section 3.3.5); parameters are
/// ignored.
#[must_use]
pub fn available_hash(value: &[u8]) -> Option<[u8; 32]> {
    let value = scan::trim(value).strip_prefix(b":")?;
    let end = value.iter().position(|&byte| byte == b':')?;
    let text = &value[..end];
    let rest = &value[end + 1..];
    if !rest.is_empty() && !rest.starts_with(b";") {
        return None;
    }
    // 32 bytes are 43 base64 digits; the padding may be missing.
    let digits = text.strip_suffix(b"=").unwrap_or(text);
    if digits.len() != 43 {
        return None;
    }
    let mut hash = [0; 32];
    let mut bits = 0u32;
    let mut held = 0;
    let mut at = 0;
    for &digit in digits {
        let digit = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        (bits, held) = (bits << 6 | u32::from(digit), held + 6);
        if held >= 8 {
            held -= 8;
            hash[at] = (bits >> held) as u8;
            at += 1;
        }
        bits &= 0xff;
    }
    Some(hash)
}

/// The value of `Use-As-Dictionary` (RFC 9842 section 2.1). `pattern` is a URL pattern relative to the
/// response's origin; `destinations` are request destinations of the Fetch standard, empty for all. `None` if
/// a text has bytes that are not allowed in a string.
#[must_use]
pub fn use_as_dictionary(pattern: &[u8], destinations: &[String], id: Option<&str>) -> Option<Vec<u8>> {
    let mut value = b"match=".to_vec();
    push_string(&mut value, pattern)?;
    if !destinations.is_empty() {
        value.extend_from_slice(b", match-dest=(");
        for (index, destination) in destinations.iter().enumerate() {
            if index > 0 {
                value.push(b' ');
            }
            push_string(&mut value, destination.as_bytes())?;
        }
        value.push(b')');
    }
    if let Some(id) = id {
        value.extend_from_slice(b", id=");
        push_string(&mut value, id.as_bytes())?;
    }
    value.extend_from_slice(b", type=raw");
    Some(value)
}

/// Appends a quoted string (RFC 9651 section 3.3.3).
fn push_string(out: &mut Vec<u8>, text: &[u8]) -> Option<()> {
    if text.len() > TEXT_BYTES_MAX || !text.iter().all(|byte| matches!(byte, 0x20..=0x7e)) {
        return None;
    }
    out.push(b'"');
    for &byte in text {
        if matches!(byte, b'"' | b'\\') {
            out.push(b'\\');
        }
        out.push(byte);
    }
    out.push(b'"');
    Some(())
}

/// Returns the URL pattern that matches only this percent-encoded path.
#[must_use]
pub fn pattern_of(path: &[u8]) -> Vec<u8> {
    let mut pattern = Vec::with_capacity(path.len());
    for &byte in path {
        if matches!(byte, b'\\' | b':' | b'*' | b'?' | b'+' | b'(' | b')' | b'{' | b'}') {
            pattern.push(b'\\');
        }
        pattern.push(byte);
    }
    pattern
}

/// The request's context that decides whether its response may be compressed with a dictionary.
#[derive(Clone, Copy, Debug, Default)]
pub struct FetchContext<'r> {
    /// `Sec-Fetch-Site`.
    pub site: Option<&'r [u8]>,
    /// `Sec-Fetch-Mode`.
    pub mode: Option<&'r [u8]>,
    /// `Origin`.
    pub origin: Option<&'r [u8]>,
}

impl FetchContext<'_> {
    /// Whether the origin that initiated the request may read a response with these fields (RFC 9842 section
    /// 9.3.3): the length of unreadable responses must not depend on a dictionary.
    #[must_use]
    pub fn may_read(&self, fields: &Fields) -> bool {
        let (Some(site), Some(mode)) = (self.site, self.mode) else { return true };
        if site == b"same-origin" || matches!(mode, b"navigate" | b"same-origin") {
            return true;
        }
        let allowed = fields.first(b"access-control-allow-origin");
        mode == b"cors"
            && self.origin.is_some()
            && allowed.is_some_and(|allowed| allowed == b"*" || Some(allowed) == self.origin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_dictionary_is_a_byte_sequence_of_32_bytes() {
        let value = b":pZGm1Av0IEBKARczz7exkNYsZb8LzaMrV7J32a2fFG4=:";
        let hash = available_hash(value).unwrap();
        assert_eq!((hash[..4].to_vec(), hash[31]), (vec![0xa5, 0x91, 0xa6, 0xd4], 0x6e));
        assert_eq!(available_hash(b" :pZGm1Av0IEBKARczz7exkNYsZb8LzaMrV7J32a2fFG4:;a=1 "), Some(hash));
        for wrong in [
            &b""[..],
            b":",
            b"::",
            b"pZGm1Av0IEBKARczz7exkNYsZb8LzaMrV7J32a2fFG4=",
            b":pZGm1Av0IEBKARczz7exkNYsZb8LzaMrV7J32a2fFG4=",
            b":pZGm1Av0IEBKARczz7exkNYsZb8LzaMrV7J32a2fFG4=:x",
            b":pZGm1Av0IEBKARczz7exkNYsZb8LzaMrV7J32a2fFG=:",
            b":pZGm1Av0IEBKARczz7exkNYsZb8LzaMrV7J32a2fFG4=:, :pZGm1Av0IEBKARczz7exkNYsZb8LzaMrV7J32a2fFG4=:",
            b":pZGm1Av0IEBKARczz7exkNYsZb8LzaMrV7J32a2f-G4=:",
        ] {
            assert_eq!(available_hash(wrong), None, "{}", wrong.escape_ascii());
        }
    }

    #[test]
    fn use_as_dictionary_value_is_formatted_and_escaped() {
        let text = |pattern: &str, to: &[&str], id| {
            let to: Vec<String> = to.iter().map(|one| (*one).into()).collect();
            use_as_dictionary(pattern.as_bytes(), &to, id).map(|value| String::from_utf8(value).unwrap())
        };
        assert_eq!(text("/app/*/main.js", &[], None).unwrap(), r#"match="/app/*/main.js", type=raw"#);
        assert_eq!(
            text("/a\\:b", &["script", "style"], Some("x\"y")).unwrap(),
            r#"match="/a\\:b", match-dest=("script" "style"), id="x\"y", type=raw"#
        );
        assert_eq!(text("/ä", &[], None), None);
        assert_eq!(text(&"/".repeat(TEXT_BYTES_MAX + 1), &[], None), None);
        assert_eq!(pattern_of(b"/a*(1).js?"), b"/a\\*\\(1\\).js\\?");
    }

    #[test]
    fn dictionary_requires_a_response_that_the_origin_may_read() {
        let allows = |origin: Option<&str>| {
            let mut fields = Fields::new();
            if let Some(origin) = origin {
                fields.try_push(b"Access-Control-Allow-Origin", origin.as_bytes()).unwrap();
            }
            fields
        };
        let context = |site, mode, origin| FetchContext { site, mode, origin };
        let (a, b) = (Some(&b"https://a"[..]), Some("https://a"));
        for (context, allowed, may) in [
            (FetchContext::default(), None, true),
            (context(Some(&b"same-origin"[..]), Some(&b"no-cors"[..]), None), None, true),
            (context(Some(b"cross-site"), Some(b"navigate"), None), None, true),
            (context(Some(b"cross-site"), Some(b"no-cors"), None), Some("*"), false),
            (context(Some(b"cross-site"), Some(b"cors"), a), None, false),
            (context(Some(b"cross-site"), Some(b"cors"), None), Some("*"), false),
            (context(Some(b"cross-site"), Some(b"cors"), a), Some("*"), true),
            (context(Some(b"same-site"), Some(b"cors"), a), b, true),
            (context(Some(b"same-site"), Some(b"cors"), a), Some("https://b"), false),
        ] {
            assert_eq!(context.may_read(&allows(allowed)), may, "{context:?} {allowed:?}");
        }
    }
}
