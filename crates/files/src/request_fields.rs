//! The fields of a request that concern a file (conditions, ranges, codings), and the response that follows from them.

use std::borrow::Cow;
use std::ops::Range;

use http::coding::AcceptedCodings;
use http::condition::{ConditionOutcome, Conditions, Validators};
use http::range::{self, RangeOutcome};
use http::{Coding, Method, Name};

/// Request fields that determine how a file is sent.
#[derive(Debug, Default)]
pub struct RequestFields<'r> {
    if_match: Value<'r>,
    if_unmodified_since: Value<'r>,
    if_none_match: Value<'r>,
    if_modified_since: Value<'r>,
    if_range: Value<'r>,
    range: Value<'r>,
    accept_encoding: Value<'r>,
}

/// A field's value. Several fields of one name are joined by commas (RFC 9110 section 5.2); if the field is not a list,
/// the joined value is invalid and is ignored.
type Value<'r> = Option<Cow<'r, [u8]>>;

/// The response to send.
#[derive(Debug, PartialEq, Eq)]
pub enum SendPlan {
    /// 200 with the entire representation.
    Whole,
    /// 206 with one range.
    Part(Range<u64>),
    /// 206 with several ranges.
    Parts(Vec<Range<u64>>),
    /// 304 Not Modified.
    NotModified,
    /// 412 Precondition Failed.
    PreconditionFailed,
    /// 416 Range Not Satisfiable.
    Unsatisfiable,
}

impl<'r> RequestFields<'r> {
    /// Picks the relevant fields from name-value pairs.
    pub fn of(fields: impl Iterator<Item = (Name, &'r [u8])>) -> RequestFields<'r> {
        let mut asked = RequestFields::default();
        for (name, value) in fields {
            let slot = match name {
                Name::IfMatch => &mut asked.if_match,
                Name::IfUnmodifiedSince => &mut asked.if_unmodified_since,
                Name::IfNoneMatch => &mut asked.if_none_match,
                Name::IfModifiedSince => &mut asked.if_modified_since,
                Name::IfRange => &mut asked.if_range,
                Name::Range => &mut asked.range,
                Name::AcceptEncoding => &mut asked.accept_encoding,
                _ => continue,
            };
            match slot {
                None => *slot = Some(Cow::Borrowed(value)),
                Some(before) => {
                    let joined = before.to_mut();
                    joined.extend_from_slice(b", ");
                    joined.extend_from_slice(value);
                }
            }
        }
        asked
    }

    /// Whether the request has a `Range` field.
    #[must_use]
    pub fn has_range(&self) -> bool {
        self.range.is_some()
    }

    /// Returns the coding of `available` for this client; `None` if the client refuses all of them. Without
    /// `Accept-Encoding`, identity is used, although RFC 9110 section 12.5.3 would allow any coding.
    #[must_use]
    pub fn choose_coding(&self, available: &[Coding]) -> Option<Coding> {
        match &self.accept_encoding {
            None => Some(Coding::Identity),
            Some(value) => AcceptedCodings::parse(value).choose(available),
        }
    }

    /// Returns the response for a representation of `length` bytes. Conditions are evaluated before ranges
    /// (RFC 9110 section 13.2.2). Ranges apply to GET only.
    #[must_use]
    pub fn plan(
        &self,
        method: Method,
        validators: &Validators<'_>,
        length: u64,
        ranges_max: usize,
    ) -> SendPlan {
        let conditions = Conditions {
            if_match: self.if_match.as_deref(),
            if_unmodified_since: self.if_unmodified_since.as_deref(),
            if_none_match: self.if_none_match.as_deref(),
            if_modified_since: self.if_modified_since.as_deref(),
            if_range: self.if_range.as_deref(),
        };
        if !conditions.is_empty() {
            match conditions.evaluate(method, validators) {
                ConditionOutcome::Proceed => {}
                ConditionOutcome::NotModified => return SendPlan::NotModified,
                ConditionOutcome::Failed => return SendPlan::PreconditionFailed,
            }
        }
        let Some(range) = self.range.as_deref().filter(|_| method == Method::Get && ranges_max > 0) else {
            return SendPlan::Whole;
        };
        if !conditions.range_applies(validators) {
            return SendPlan::Whole;
        }
        match range::resolve(range, length, ranges_max) {
            RangeOutcome::Whole => SendPlan::Whole,
            RangeOutcome::Unsatisfiable => SendPlan::Unsatisfiable,
            RangeOutcome::Parts(mut parts) if parts.len() == 1 => SendPlan::Part(parts.remove(0)),
            RangeOutcome::Parts(parts) => SendPlan::Parts(parts),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Validators<'_> = Validators { etag: Some(b"\"a\""), modified_s: Some(784_111_777) };

    fn plan(method: Method, fields: &[(Name, &str)]) -> SendPlan {
        RequestFields::of(fields.iter().map(|(name, value)| (*name, value.as_bytes())))
            .plan(method, &FILE, 1000, 16)
    }

    #[test]
    fn conditions_take_precedence_over_ranges() {
        let range = (Name::Range, "bytes=0-9");
        for (fields, want) in [
            (&[][..], SendPlan::Whole),
            (&[range], SendPlan::Part(0..10)),
            (&[(Name::Range, "bytes=0-9, 500-509")], SendPlan::Parts(vec![0..10, 500..510])),
            (&[(Name::Range, "bytes=1000-")], SendPlan::Unsatisfiable),
            (&[range, (Name::IfNoneMatch, "\"a\"")], SendPlan::NotModified),
            (&[range, (Name::IfMatch, "\"b\"")], SendPlan::PreconditionFailed),
            (&[(Name::Range, "bytes=1000-"), (Name::IfMatch, "\"b\"")], SendPlan::PreconditionFailed),
            (&[range, (Name::IfRange, "\"a\"")], SendPlan::Part(0..10)),
            (&[range, (Name::IfRange, "\"b\"")], SendPlan::Whole),
            (&[(Name::Range, "bytes=1000-"), (Name::IfRange, "\"b\"")], SendPlan::Whole),
            (&[range, (Name::IfMatch, "\"a\""), (Name::IfRange, "\"a\"")], SendPlan::Part(0..10)),
            (&[(Name::IfRange, "\"b\"")], SendPlan::Whole),
        ] {
            assert_eq!(plan(Method::Get, fields), want, "{fields:?}");
        }
        assert_eq!(plan(Method::Head, &[range]), SendPlan::Whole);
        assert_eq!(plan(Method::Head, &[(Name::IfNoneMatch, "\"a\"")]), SendPlan::NotModified);
    }

    #[test]
    fn repeated_fields_are_combined() {
        let tags = [(Name::IfNoneMatch, "\"b\""), (Name::IfNoneMatch, "\"a\"")];
        assert_eq!(plan(Method::Get, &tags), SendPlan::NotModified);
        let ranges = [(Name::Range, "bytes=0-9"), (Name::Range, "bytes=20-29")];
        assert_eq!(plan(Method::Get, &ranges), SendPlan::Whole);
        let accept = [(Name::AcceptEncoding, &b"gzip;q=0.5"[..]), (Name::AcceptEncoding, b"br")];
        let available = [Coding::Gzip, Coding::Brotli, Coding::Identity];
        assert_eq!(RequestFields::of(accept.into_iter()).choose_coding(&available), Some(Coding::Brotli));
    }

    #[test]
    fn ranges_can_be_turned_off() {
        let asked = RequestFields::of([(Name::Range, &b"bytes=0-9"[..])].into_iter());
        assert!(asked.has_range());
        assert_eq!(asked.plan(Method::Get, &FILE, 1000, 0), SendPlan::Whole);
    }

    #[test]
    fn identity_is_chosen_without_accept_encoding() {
        assert_eq!(
            RequestFields::default().choose_coding(&[Coding::Brotli, Coding::Identity]),
            Some(Coding::Identity)
        );
    }
}
