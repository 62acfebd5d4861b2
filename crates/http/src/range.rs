//! Byte ranges (RFC 9110 section 14).

use std::ops::Range;

use crate::scan;

/// Maximum number of ranges in one request that overlap others; more are treated as an attack (RFC 9110
/// section 14.2 names "more than two overlapping ranges").
const OVERLAPS_MAX: usize = 2;
/// Ranges with at most this many bytes between them are joined: a part of a multipart response costs about as
/// much.
const JOIN_GAP_MAX: u64 = 80;

/// The result of a `Range` field for a representation of known length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RangeOutcome {
    /// No valid range: the field is ignored.
    Whole,
    /// The requested bytes, at least one range: none empty, all inside the representation, none overlapping.
    /// In the order of the request, or ascending where ranges had to be joined.
    Parts(Vec<Range<u64>>),
    /// 416: no range of the request lies within the representation.
    Unsatisfiable,
}

/// Resolves the value of a `Range` field against `length` bytes.
///
/// The field is ignored ([`RangeOutcome::Whole`]) if its unit is not bytes, if it is not a list of ranges, or if it
/// has more than `ranges_max` ranges or more than two that overlap others. Ranges that overlap or nearly
/// touch are joined, so that an answer never holds more bytes than the representation.
#[must_use]
pub fn resolve(value: &[u8], length: u64, ranges_max: usize) -> RangeOutcome {
    let Some(specs) = specs(value) else { return RangeOutcome::Whole };
    let mut parts: Vec<Range<u64>> = Vec::new();
    for (index, spec) in scan::list(specs).enumerate() {
        if index == ranges_max {
            return RangeOutcome::Whole;
        }
        match RangeSpec::parse(spec) {
            Some(spec) => parts.extend(spec.within(length)),
            None => return RangeOutcome::Whole,
        }
    }
    match parts.len() {
        0 if scan::list(specs).next().is_none() => RangeOutcome::Whole,
        0 => RangeOutcome::Unsatisfiable,
        1 => RangeOutcome::Parts(parts),
        _ => join_ranges(parts).map_or(RangeOutcome::Whole, RangeOutcome::Parts),
    }
}

/// The value of `Content-Range` for one range of `length` bytes (section 14.4).
#[must_use]
pub fn content_range(range: &Range<u64>, length: u64) -> String {
    debug_assert!(range.start < range.end && range.end <= length);
    format!("bytes {}-{}/{length}", range.start, range.end - 1)
}

/// The value of `Content-Range` in a 416.
#[must_use]
pub fn unsatisfied_range(length: u64) -> String {
    format!("bytes */{length}")
}

/// The ranges after `bytes=`.
fn specs(value: &[u8]) -> Option<&[u8]> {
    let (unit, rest) = value.split_at_checked(b"bytes=".len())?;
    unit.eq_ignore_ascii_case(b"bytes=").then_some(rest)
}

#[derive(Clone, Copy)]
enum RangeSpec {
    From(u64),
    Between(u64, u64),
    Last(u64),
}

impl RangeSpec {
    fn parse(spec: &[u8]) -> Option<RangeSpec> {
        let dash = spec.iter().position(|&byte| byte == b'-')?;
        let first = &spec[..dash];
        let last = &spec[dash + 1..];
        match (first.is_empty(), last.is_empty()) {
            (true, _) => Some(RangeSpec::Last(position(last)?)),
            (false, true) => Some(RangeSpec::From(position(first)?)),
            (false, false) => {
                let first = position(first)?;
                let last = position(last)?;
                (first <= last).then_some(RangeSpec::Between(first, last))
            }
        }
    }

    /// The bytes of a representation that the range selects; `None` if there are none.
    fn within(self, length: u64) -> Option<Range<u64>> {
        let range = match self {
            RangeSpec::From(first) => first..length,
            RangeSpec::Between(first, last) => first..length.min(last.saturating_add(1)),
            RangeSpec::Last(count) => length.saturating_sub(count)..length,
        };
        (range.start < range.end).then_some(range)
    }
}

/// Parses digits. A position that does not fit becomes the maximum.
fn position(digits: &[u8]) -> Option<u64> {
    let all_digits = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    all_digits.then(|| {
        digits.iter().fold(0u64, |sum, &digit| sum.saturating_mul(10).saturating_add(u64::from(digit - b'0')))
    })
}

/// Joins ranges that overlap or nearly touch; `None` if too many overlap.
fn join_ranges(parts: Vec<Range<u64>>) -> Option<Vec<Range<u64>>> {
    let mut sorted = parts.clone();
    sorted.sort_unstable_by_key(|range| (range.start, range.end));
    let mut joined: Vec<Range<u64>> = Vec::with_capacity(sorted.len());
    let mut overlaps = 0;
    for range in sorted {
        match joined.last_mut() {
            Some(last) if range.start <= last.end.saturating_add(JOIN_GAP_MAX) => {
                overlaps += usize::from(range.start < last.end);
                last.end = last.end.max(range.end);
            }
            _ => joined.push(range),
        }
    }
    match (overlaps > OVERLAPS_MAX, joined.len() == parts.len()) {
        (true, _) => None,
        // Nothing was joined: keep the order of the request.
        (false, true) => Some(parts),
        (false, false) => Some(joined),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(ranges: &[(u64, u64)]) -> RangeOutcome {
        RangeOutcome::Parts(ranges.iter().map(|&(start, end)| start..end).collect())
    }

    #[test]
    fn single_range_is_resolved() {
        let cases: [(&str, RangeOutcome); 22] = [
            ("bytes=0-0", parts(&[(0, 1)])),
            ("bytes=0-999", parts(&[(0, 1000)])),
            ("bytes=0-5000", parts(&[(0, 1000)])),
            ("bytes=500-", parts(&[(500, 1000)])),
            ("bytes=-1", parts(&[(999, 1000)])),
            ("bytes=-5000", parts(&[(0, 1000)])),
            ("BYTES=1-2", parts(&[(1, 3)])),
            ("bytes= 1-2 ,", parts(&[(1, 3)])),
            ("bytes=999-99999999999999999999999999", parts(&[(999, 1000)])),
            ("bytes=1000-", RangeOutcome::Unsatisfiable),
            ("bytes=99999999999999999999999999-", RangeOutcome::Unsatisfiable),
            ("bytes=-0", RangeOutcome::Unsatisfiable),
            ("bytes=2-1", RangeOutcome::Whole),
            ("bytes=a-1", RangeOutcome::Whole),
            ("bytes=1-+2", RangeOutcome::Whole),
            ("bytes=1 - 2", RangeOutcome::Whole),
            ("bytes=-", RangeOutcome::Whole),
            ("bytes=", RangeOutcome::Whole),
            ("bytes=,", RangeOutcome::Whole),
            ("bytes=1", RangeOutcome::Whole),
            ("items=0-1", RangeOutcome::Whole),
            ("", RangeOutcome::Whole),
        ];
        for (value, want) in cases {
            assert_eq!(resolve(value.as_bytes(), 1000, 16), want, "{value}");
        }
    }

    #[test]
    fn multiple_ranges_are_resolved_and_merged() {
        let cases: [(&str, RangeOutcome); 10] = [
            ("bytes=0-0,-1", parts(&[(0, 1), (9_999, 10_000)])),
            ("bytes=5000-5001, 0-1", parts(&[(5000, 5002), (0, 2)])),
            ("bytes=0-1,2-3", parts(&[(0, 4)])),
            ("bytes=0-1,82-83", parts(&[(0, 84)])),
            ("bytes=0-1,83-84", parts(&[(0, 2), (83, 85)])),
            ("bytes=100-200,0-150,9000-", parts(&[(0, 201), (9000, 10_000)])),
            ("bytes=0-1,20000-", parts(&[(0, 2)])),
            ("bytes=20000-,30000-", RangeOutcome::Unsatisfiable),
            ("bytes=0-1,5-3", RangeOutcome::Whole),
            ("bytes=0-,0-,0-,0-", RangeOutcome::Whole),
        ];
        for (value, want) in cases {
            assert_eq!(resolve(value.as_bytes(), 10_000, 16), want, "{value}");
        }
        assert_eq!(resolve(b"bytes=0-0,500-500,900-900", 1000, 3), parts(&[(0, 1), (500, 501), (900, 901)]));
        assert_eq!(resolve(b"bytes=0-0,500-500,900-900", 1000, 2), RangeOutcome::Whole);
        assert_eq!(resolve(b"bytes=0-0", 1000, 0), RangeOutcome::Whole);
    }

    #[test]
    fn an_empty_file_has_no_ranges() {
        for value in ["bytes=0-", "bytes=0-0", "bytes=-1"] {
            assert_eq!(resolve(value.as_bytes(), 0, 16), RangeOutcome::Unsatisfiable);
        }
    }

    #[test]
    fn content_range_is_formatted() {
        assert_eq!(content_range(&(0..1), 10), "bytes 0-0/10");
        assert_eq!(content_range(&(5..10), 10), "bytes 5-9/10");
        assert_eq!(unsatisfied_range(10), "bytes */10");
    }

    /// Law: resolved ranges are not empty, lie in the file, do not overlap, and are no more than allowed.
    #[test]
    fn resolved_ranges_always_lie_in_the_file() {
        const PIECES: [&str; 16] = [
            "0",
            "1",
            "7",
            "99",
            "-",
            "-",
            ",",
            ",",
            " ",
            "18446744073709551615",
            "9999999999999999999999",
            "\t",
            "x",
            "=",
            "50-60",
            "\"",
        ];
        let mut random = fastrand::Rng::with_seed(11);
        let mut satisfied = 0;
        for _ in 0..50_000 {
            let length = random.choice([0, 1, 100, 5000, u64::MAX]).unwrap();
            let mut value = String::from("bytes=");
            for _ in 0..random.usize(..12) {
                value.push_str(random.choice(PIECES).unwrap());
            }
            let RangeOutcome::Parts(mut parts) = resolve(value.as_bytes(), length, 4) else { continue };
            satisfied += 1;
            assert!((1..=4).contains(&parts.len()), "{value}");
            parts.sort_unstable_by_key(|range| range.start);
            assert!(parts.iter().all(|range| range.start < range.end && range.end <= length), "{value}");
            assert!(parts.windows(2).all(|pair| pair[0].end < pair[1].start), "{value}");
        }
        assert!(satisfied > 1000, "the pieces make valid ranges often enough: {satisfied}");
    }
}
