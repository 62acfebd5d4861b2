//! Query parameters as origins decode them: `application/x-www-form-urlencoded` (WHATWG URL, section 5).

use std::borrow::Cow;

use crate::scan;

/// The decoded values of all parameters with that name, in order; `None` for a parameter without `=`.
/// Parameters are separated by `&` only, and names are compared after decoding: `%6b` is `k`.
pub fn values<'q>(query: &'q [u8], name: &[u8]) -> impl Iterator<Item = Option<Cow<'q, [u8]>>> {
    query.split(|&byte| byte == b'&').filter_map(move |pair| {
        let at = pair.iter().position(|&byte| byte == b'=').unwrap_or(pair.len());
        (*decoded(&pair[..at]) == *name).then(|| pair.get(at + 1..).map(decoded))
    })
}

/// Decodes form-encoded text: `+` is a space, `%41` an `A`; a `%` without two digits is kept.
#[must_use]
pub fn decoded(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.iter().any(|byte| matches!(byte, b'%' | b'+')) {
        return Cow::Borrowed(text);
    }
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        let digit = |at: usize| tail.get(at).and_then(|&byte| scan::hex_value(byte));
        rest = tail;
        match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                out.push(high << 4 | low);
                rest = &tail[2..];
            }
            (b'+', ..) => out.push(b' '),
            _ => out.push(first),
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_found_by_percent_encoded_names() {
        let all = |query: &'static [u8]| -> Vec<Option<Cow<'static, [u8]>>> { values(query, b"k").collect() };
        let some = |value: &'static [u8]| Some(Cow::Borrowed(value));
        assert_eq!(
            all(b"k=1&%6b=a%20b+c&%6B&kk=2&K=3&k=%4"),
            [some(b"1"), some(b"a b c"), None, some(b"%4")]
        );
        assert_eq!(all(b""), []);
        assert_eq!(all(b"x;k=1"), []);
    }
}
