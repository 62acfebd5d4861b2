//! Conditional requests (RFC 9110 section 13).

use std::time::{SystemTime, UNIX_EPOCH};

use crate::method::Method;
use crate::scan;

/// The conditional fields of one request, as sent. Several fields with the same name are joined by commas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conditions<'a> {
    /// `If-Match`: a list of entity tags, or `*`.
    pub if_match: Option<&'a [u8]>,
    /// `If-Unmodified-Since`: a date.
    pub if_unmodified_since: Option<&'a [u8]>,
    /// `If-None-Match`: a list of entity tags, or `*`.
    pub if_none_match: Option<&'a [u8]>,
    /// `If-Modified-Since`: a date.
    pub if_modified_since: Option<&'a [u8]>,
    /// `If-Range`: one entity tag, or a date.
    pub if_range: Option<&'a [u8]>,
}

/// The validators of the selected representation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Validators<'a> {
    /// The value of its `ETag` field, quotes and `W/` included.
    pub etag: Option<&'a [u8]>,
    /// The value of `Last-Modified`, in seconds since 1970.
    pub modified_s: Option<u64>,
}

/// The result of the conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionOutcome {
    /// Perform the method.
    Proceed,
    /// 304: the client has this representation already.
    NotModified,
    /// 412: the representation has changed.
    Failed,
}

impl Conditions<'_> {
    /// Whether there is no condition other than `If-Range`.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.if_match.is_none()
            && self.if_unmodified_since.is_none()
            && self.if_none_match.is_none()
            && self.if_modified_since.is_none()
    }

    /// Evaluates the conditions on an existing representation, in the order of section 13.2.2. An invalid
    /// date is ignored, and so is a date if the representation has none; an invalid list of tags matches
    /// nothing.
    #[must_use]
    pub fn evaluate(&self, method: Method, validators: &Validators<'_>) -> ConditionOutcome {
        if let Some(tags) = self.if_match {
            if !any_tag_matches(tags, validators.etag, strong_match) {
                return ConditionOutcome::Failed;
            }
        } else if let (Some(since_s), Some(modified_s)) =
            (date_s(self.if_unmodified_since), validators.modified_s)
            && modified_s > since_s
        {
            return ConditionOutcome::Failed;
        }
        let reads = matches!(method, Method::Get | Method::Head);
        if let Some(tags) = self.if_none_match {
            return if !any_tag_matches(tags, validators.etag, weak_match) {
                ConditionOutcome::Proceed
            } else if reads {
                ConditionOutcome::NotModified
            } else {
                ConditionOutcome::Failed
            };
        }
        match (date_s(self.if_modified_since), validators.modified_s) {
            (Some(since_s), Some(modified_s)) if reads && modified_s <= since_s => {
                ConditionOutcome::NotModified
            }
            _ => ConditionOutcome::Proceed,
        }
    }

    /// Whether a `Range` field applies (section 13.1.5): always without `If-Range`; otherwise only if its tag
    /// matches strongly, or its date is exactly the representation's.
    #[must_use]
    pub fn range_applies(&self, validators: &Validators<'_>) -> bool {
        match self.if_range {
            None => true,
            Some(tag @ ([b'"', ..] | [b'W', b'/', ..])) => {
                validators.etag.is_some_and(|own| strong_match(tag, own))
            }
            Some(date) => validators.modified_s.is_some() && date_s(Some(date)) == validators.modified_s,
        }
    }
}

/// Whether two entity tags are the same and both strong (RFC 9110 section 8.8.3.2).
#[must_use]
pub fn strong_match(one: &[u8], other: &[u8]) -> bool {
    one == other && is_opaque_tag(one)
}

/// Whether two entity tags are equal, ignoring the `W/` prefix.
#[must_use]
pub fn weak_match(one: &[u8], other: &[u8]) -> bool {
    let one = opaque_tag(one);
    let other = opaque_tag(other);
    one == other && is_opaque_tag(one)
}

fn any_tag_matches(tags: &[u8], own: Option<&[u8]>, same: fn(&[u8], &[u8]) -> bool) -> bool {
    // `*` matches any existing representation, and this one exists.
    tags == b"*" || own.is_some_and(|own| tag_list(tags).any(|tag| same(tag, own)))
}

/// The elements of a list of tags. Unlike in quoted strings, a backslash in a tag is literal, so this is
/// not [`scan::list`].
fn tag_list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = value;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let mut quoted = false;
        let end = rest.iter().position(|&byte| {
            quoted ^= byte == b'"';
            byte == b',' && !quoted
        });
        let element = &rest[..end.unwrap_or(rest.len())];
        rest = end.map_or(&[][..], |end| &rest[end + 1..]);
        Some(scan::trim(element))
    })
}

fn opaque_tag(tag: &[u8]) -> &[u8] {
    tag.strip_prefix(b"W/").unwrap_or(tag)
}

fn is_opaque_tag(tag: &[u8]) -> bool {
    matches!(tag, [b'"', inner @ .., b'"'] if inner.iter().all(|&byte| byte > b' ' && byte != b'"' && byte != 0x7f))
}

/// Seconds since 1970 of an HTTP date in any of the three forms (RFC 9110 section 5.6.7).
#[must_use]
pub fn parse_date_s(text: &[u8]) -> Option<u64> {
    let time = httpdate::parse_http_date(std::str::from_utf8(text).ok()?).ok()?;
    time.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs())
}

/// Formats seconds since 1970 as an HTTP date; later times are clamped to the end of the year 9999.
#[must_use]
pub fn date_text(unix_s: u64) -> String {
    const LAST_S: u64 = 253_402_300_799;
    httpdate::fmt_http_date(SystemTime::from(httpdate::HttpDate::from(
        UNIX_EPOCH + std::time::Duration::from_secs(unix_s.min(LAST_S)),
    )))
}

fn date_s(value: Option<&[u8]>) -> Option<u64> {
    value.and_then(parse_date_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &[u8] = b"Sun, 06 Nov 1994 08:49:36 GMT";
    const SAME: &[u8] = b"Sun, 06 Nov 1994 08:49:37 GMT";
    const NEW: &[u8] = b"Sunday, 06-Nov-94 08:49:38 GMT";
    const FILE: Validators<'_> = Validators { etag: Some(b"\"a\""), modified_s: Some(784_111_777) };

    fn verdict(method: Method, set: &[(&str, &[u8])]) -> ConditionOutcome {
        let mut conditions = Conditions::default();
        for &(name, value) in set {
            let slot = match name {
                "match" => &mut conditions.if_match,
                "none" => &mut conditions.if_none_match,
                "since" => &mut conditions.if_modified_since,
                "unmodified" => &mut conditions.if_unmodified_since,
                _ => unreachable!(),
            };
            *slot = Some(value);
        }
        conditions.evaluate(method, &FILE)
    }

    #[test]
    fn each_precondition_is_evaluated_alone() {
        use ConditionOutcome::{Failed, NotModified, Proceed};
        for (name, value, get, put) in [
            ("match", &b"\"a\""[..], Proceed, Proceed),
            ("match", b"*", Proceed, Proceed),
            ("match", b"\"b\" , \"a\"", Proceed, Proceed),
            ("match", b"\"b,\\\", \"a\"", Proceed, Proceed),
            ("match", b"W/\"a\"", Failed, Failed),
            ("match", b"a", Failed, Failed),
            ("match", b"", Failed, Failed),
            ("none", b"\"a\"", NotModified, Failed),
            ("none", b"W/\"a\"", NotModified, Failed),
            ("none", b"*", NotModified, Failed),
            ("none", b"\"b\",,\"c\", W/\"a\"", NotModified, Failed),
            ("none", b"\"b\"", Proceed, Proceed),
            ("none", b"\"a", Proceed, Proceed),
            ("none", b"w/\"a\"", Proceed, Proceed),
            ("since", OLD, Proceed, Proceed),
            ("since", SAME, NotModified, Proceed),
            ("since", NEW, NotModified, Proceed),
            ("since", b"Sun Nov  6 08:49:38 1994", NotModified, Proceed),
            ("since", b"yesterday", Proceed, Proceed),
            ("unmodified", OLD, Failed, Failed),
            ("unmodified", SAME, Proceed, Proceed),
            ("unmodified", NEW, Proceed, Proceed),
            ("unmodified", b"yesterday", Proceed, Proceed),
        ] {
            let text = String::from_utf8_lossy(value);
            assert_eq!(verdict(Method::Get, &[(name, value)]), get, "GET {name} {text}");
            assert_eq!(verdict(Method::Head, &[(name, value)]), get, "HEAD {name} {text}");
            assert_eq!(verdict(Method::Put, &[(name, value)]), put, "PUT {name} {text}");
        }
    }

    #[test]
    fn entity_tags_take_precedence_over_dates() {
        use ConditionOutcome::{Failed, NotModified, Proceed};
        let same = &b"\"a\""[..];
        let other = &b"\"b\""[..];
        for (set, want) in [
            (&[("match", same), ("unmodified", OLD)][..], Proceed),
            (&[("none", other), ("since", NEW)], Proceed),
            (&[("none", same), ("since", OLD)], NotModified),
            (&[("match", other), ("none", same)], Failed),
            (&[("match", same), ("none", same)], NotModified),
            (&[("unmodified", OLD), ("since", NEW)], Failed),
            (&[("unmodified", NEW), ("since", NEW)], NotModified),
        ] {
            assert_eq!(verdict(Method::Get, set), want, "{set:?}");
        }
    }

    #[test]
    fn date_conditions_are_ignored_without_validators() {
        let bare = Validators::default();
        let dates = Conditions {
            if_modified_since: Some(NEW),
            if_unmodified_since: Some(OLD),
            ..Conditions::default()
        };
        assert_eq!(dates.evaluate(Method::Get, &bare), ConditionOutcome::Proceed);
        let tag = Conditions { if_match: Some(b"\"a\""), ..Conditions::default() };
        assert_eq!(tag.evaluate(Method::Get, &bare), ConditionOutcome::Failed);
    }

    #[test]
    fn if_range_requires_a_strong_match() {
        let applies = |value: &[u8], of: &Validators<'_>| {
            Conditions { if_range: Some(value), ..Conditions::default() }.range_applies(of)
        };
        assert!(Conditions::default().range_applies(&FILE));
        assert!(applies(b"\"a\"", &FILE));
        assert!(applies(SAME, &FILE));
        for value in [&b"W/\"a\""[..], b"\"b\"", b"\"a\", \"b\"", OLD, NEW, b"", b"a", b"*"] {
            assert!(!applies(value, &FILE), "{}", String::from_utf8_lossy(value));
        }
        let weak = Validators { etag: Some(b"W/\"a\""), modified_s: None };
        assert!(!applies(b"W/\"a\"", &weak));
        assert!(!applies(SAME, &weak));
    }

    #[test]
    fn http_dates_round_trip() {
        assert_eq!(date_text(784_111_777).as_bytes(), SAME);
        assert_eq!(parse_date_s(date_text(0).as_bytes()), Some(0));
        assert_eq!(date_text(u64::MAX), "Fri, 31 Dec 9999 23:59:59 GMT");
        assert_eq!(parse_date_s(b"Sun, 06 Nov 1994 08:49:37 CET"), None);
        assert_eq!(parse_date_s(b"\xff"), None);
    }
}
