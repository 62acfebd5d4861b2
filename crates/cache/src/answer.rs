//! Selects what a client gets of a response: the whole, a part, or 304 (RFC 9110 sections 13 and 14).

use std::ops::Range;

use http::condition::{ConditionOutcome, Conditions, Validators, parse_date_s};
use http::range::{self, RangeOutcome};
use http::{Fields, HeadRef, Length, Name, Status};

/// Part of a response that a client gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selected {
    /// The whole response.
    Whole,
    /// Range of bytes, and the total length: 206.
    Part(Range<u64>, u64),
    /// Not modified: 304.
    NotModified,
    /// Unsatisfiable range for content of this length: 416.
    Unsatisfiable(u64),
}

/// Selects what the client gets of a response with this status and these fields, whose content has `length`
/// bytes if known.
#[must_use]
pub fn select(request: HeadRef<'_>, status: Status, fields: &Fields, length: Option<u64>) -> Selected {
    let is_asked = request.fields.iter().any(|field| field.id.is_conditional() || field.id == Name::Range);
    if status != Status::OK || !is_asked {
        return Selected::Whole;
    }
    let all = |id: Name| -> Option<Vec<u8>> {
        let mut values = request.values(id);
        let first = values.next()?.to_vec();
        Some(values.fold(first, |all, value| [&all, &b", "[..], value].concat()))
    };
    let if_none_match = all(Name::IfNoneMatch);
    // A cache ignores `If-Match` and `If-Unmodified-Since` (RFC 9111 section 4.3.2).
    let conditions = Conditions {
        if_match: None,
        if_none_match: if_none_match.as_deref(),
        if_modified_since: request.value(Name::IfModifiedSince),
        if_unmodified_since: None,
        if_range: request.value(Name::IfRange),
    };
    let modified_s = fields.first(b"last-modified").and_then(parse_date_s);
    let validators = Validators { etag: fields.first(b"etag"), modified_s };
    match conditions.evaluate(request.method, &validators) {
        ConditionOutcome::NotModified => return Selected::NotModified,
        // Failed conditions are left to the origin.
        ConditionOutcome::Failed | ConditionOutcome::Proceed => {}
    }
    // Without `Last-Modified`, `Date` is used instead (RFC 9111 section 4.3.2).
    if modified_s.is_none() && conditions.if_none_match.is_none() && conditions.if_modified_since.is_some() {
        let made = Validators { etag: None, modified_s: fields.first(b"date").and_then(parse_date_s) };
        let since = Conditions { if_modified_since: conditions.if_modified_since, ..Conditions::default() };
        if since.evaluate(request.method, &made) == ConditionOutcome::NotModified {
            return Selected::NotModified;
        }
    }
    let (Some(range), Some(length)) = (request.value(Name::Range), length) else {
        return Selected::Whole;
    };
    if !conditions.range_applies(&validators) || request.method != http::Method::Get {
        return Selected::Whole;
    }
    match range::resolve(range, length, 1) {
        RangeOutcome::Whole => Selected::Whole,
        RangeOutcome::Unsatisfiable => Selected::Unsatisfiable(length),
        RangeOutcome::Parts(parts) => {
            parts.into_iter().next().map_or(Selected::Whole, |part| Selected::Part(part, length))
        }
    }
}

/// Whether a 206 carries the whole content (`Content-Range: bytes 0-9/10`, and ten bytes), so that it is
/// equivalent to a 200.
#[must_use]
pub fn is_whole_part(status: Status, fields: &Fields, length: Length) -> bool {
    let Length::Known(length @ 1..) = length else { return false };
    let whole = http::range::content_range(&(0..length), length);
    let mut ranges = fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case(b"content-range"));
    status.code() == 206
        && ranges.next().is_some_and(|(_, value)| value == whole.as_bytes())
        && ranges.next().is_none()
}

/// Returns the fields for a 304 (RFC 9110 section 15.4.5).
#[must_use]
pub fn not_modified_fields(fields: &Fields) -> Fields {
    let stays = |name: &[u8]| {
        matches!(
            Name::of(name),
            Name::CacheControl
                | Name::ContentLocation
                | Name::Date
                | Name::Etag
                | Name::Expires
                | Name::LastModified
                | Name::Server
                | Name::Vary
        )
    };
    let mut kept = Fields::new();
    for (name, value) in fields.iter().filter(|(name, _)| stays(name)) {
        kept.try_push(name, value).expect("a stored field is valid");
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::RequestHead;

    #[test]
    fn range_response_covering_everything_is_recognized() {
        let is = |status: u16, range: &str, length: Length| {
            let fields = crate::object::tests::fields(&[("Content-Range", range)]);
            is_whole_part(Status::of(status).unwrap(), &fields, length)
        };
        assert!(is(206, "bytes 0-9/10", Length::Known(10)));
        for (status, range, length) in [
            (200, "bytes 0-9/10", Length::Known(10)),
            (206, "bytes 0-9/*", Length::Known(10)),
            (206, "bytes 0-9/11", Length::Known(10)),
            (206, "bytes 1-9/10", Length::Known(9)),
            (206, "bytes 0-9/10", Length::Known(11)),
            (206, "bytes 0-9/10", Length::Unknown),
            (206, "bytes 0--1/0", Length::Known(0)),
        ] {
            assert!(!is(status, range, length), "{status} {range}");
        }
    }

    #[test]
    fn conditions_and_ranges_select_what_is_sent() {
        const DATE: &str = "Wed, 01 Jan 2020 00:00:00 GMT";
        let with = |lines: &str, stored: &[(&str, &str)]| {
            let bytes = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n").into_bytes();
            let mut head = RequestHead::default();
            assert!(head.parse(&bytes, &http::Limits::default()).unwrap());
            let stored = crate::object::tests::fields(stored);
            select(HeadRef::new(&head, &bytes), Status::OK, &stored, Some(10))
        };
        let tagged = [("ETag", "\"a\""), ("Last-Modified", DATE)];
        assert_eq!(with("", &tagged), Selected::Whole);
        assert_eq!(with("If-None-Match: \"b\", W/\"a\"\r\n", &tagged), Selected::NotModified);
        assert_eq!(with("If-None-Match: \"b\"\r\nIf-None-Match: \"a\"\r\n", &tagged), Selected::NotModified);
        let both = format!("If-None-Match: \"b\"\r\nIf-Modified-Since: {DATE}\r\n");
        assert_eq!(with(&both, &tagged), Selected::Whole, "the tag takes precedence");
        assert_eq!(with("If-Match: \"b\"\r\n", &tagged), Selected::Whole, "for the origin alone");
        let since = format!("If-Modified-Since: {DATE}\r\n");
        assert_eq!(with(&since, &tagged), Selected::NotModified);
        assert_eq!(with(&since, &[("Date", DATE)]), Selected::NotModified);
        assert_eq!(with(&since, &[("Date", "Thu, 02 Jan 2020 00:00:00 GMT")]), Selected::Whole);
        assert_eq!(with("Range: bytes=2-3\r\n", &tagged), Selected::Part(2..4, 10));
        assert_eq!(with("Range: bytes=-3\r\n", &tagged), Selected::Part(7..10, 10));
        assert_eq!(with("Range: bytes=0-1,8-9\r\n", &tagged), Selected::Whole, "several parts are not made");
        assert_eq!(with("Range: bytes=10-\r\n", &tagged), Selected::Unsatisfiable(10));
        assert_eq!(with("Range: bytes=2-3\r\nIf-Range: \"b\"\r\n", &tagged), Selected::Whole);
        assert_eq!(with("Range: bytes=2-3\r\nIf-Range: \"a\"\r\n", &tagged), Selected::Part(2..4, 10));
    }
}
