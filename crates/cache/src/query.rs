//! Normalization of query strings for cache keys.

/// Removes the parameters whose names `keeps` refuses. `sorts` sorts the parameters by name, with a stable
/// order for equal names. Names are compared in decoded form. `None` if nothing is left.
///
/// Only `&` separates parameters; in `a=1;b=2` everything belongs to the first one, even if an origin splits
/// it.
#[must_use]
pub fn normal_query(query: &[u8], keeps: impl Fn(&[u8]) -> bool, sorts: bool) -> Option<Vec<u8>> {
    let named = |pair| (decoded_name(pair), pair);
    let pairs = query.split(|&byte| byte == b'&').filter(|pair| !pair.is_empty()).map(named);
    let mut pairs: Vec<(Vec<u8>, &[u8])> = pairs.filter(|(name, _)| keeps(name)).collect();
    if sorts {
        pairs.sort_by(|(name, _), (other, _)| name.cmp(other));
    }
    let pairs: Vec<&[u8]> = pairs.into_iter().map(|(_, pair)| pair).collect();
    (!pairs.is_empty()).then(|| pairs.join(&b"&"[..]))
}

/// Returns the decoded name of a parameter.
fn decoded_name(pair: &[u8]) -> Vec<u8> {
    decoded(pair.split(|&byte| byte == b'=').next().unwrap_or_default())
}

/// Decodes form encoding: `+` is a space and `%41` is `A`; a `%` without two hexadecimal digits is kept.
pub(crate) fn decoded(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        let digit = |at: usize| tail.get(at).and_then(|&byte| char::from(byte).to_digit(16));
        rest = tail;
        match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                rest = &tail[2..];
            }
            (b'+', ..) => out.push(b' '),
            _ => out.push(first),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_parameters_are_removed_and_sorted() {
        let kept = |query: &str, sorts| {
            let keeps = |name: &[u8]| name != b"utm" && name != b"a b";
            normal_query(query.as_bytes(), keeps, sorts).map(|query| String::from_utf8(query).unwrap())
        };
        for (query, plain, sorted) in [
            ("b=2&a=1&b=1", Some("b=2&a=1&b=1"), Some("a=1&b=2&b=1")),
            ("utm=1&x", Some("x"), Some("x")),
            ("u%74m=1", None, None),
            ("utm=1;x=2&y", Some("y"), Some("y")),
            ("x=1;utm=2", Some("x=1;utm=2"), Some("x=1;utm=2")),
            ("utm", None, None),
            ("a+b=1&a%20b&%zz", Some("%zz"), Some("%zz")),
            ("", None, None),
            ("&&", None, None),
            ("b&%61", Some("b&%61"), Some("%61&b")),
        ] {
            assert_eq!(
                (kept(query, false).as_deref(), kept(query, true).as_deref()),
                (plain, sorted),
                "{query}"
            );
        }
    }
}
