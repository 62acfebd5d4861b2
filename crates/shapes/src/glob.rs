//! Patterns with wildcards. The time to match is linear in the length of the text.

use std::fmt;

/// The longest pattern: one bit for each of its elements, and one for its end.
pub(crate) const ELEMENTS_MAX: usize = 127;

/// A compiled pattern. All states run at once, one bit for each (bit i: the first i elements have matched), so that
/// each byte of the text is read only once.
#[derive(Clone, PartialEq)]
pub(crate) struct Glob {
    /// For each byte, the elements that match exactly this byte.
    literals: Box<[u128]>,
    /// Elements that match any run of bytes without a slash.
    segment_runs: u128,
    /// Elements that match any run of bytes.
    any_runs: u128,
    end_bit: u128,
}

impl Glob {
    /// Compiles a pattern: `**` matches any run of bytes, `*` one without a slash; if `flat`, `*` is `**`.
    /// `None` if it is longer than `ELEMENTS_MAX`.
    pub(crate) fn new(pattern: &[u8], flat: bool) -> Option<Self> {
        let mut literals = vec![0u128; 256].into_boxed_slice();
        let mut within = 0u128;
        let mut across = 0u128;
        let mut count = 0;
        let mut rest = pattern;
        while let Some((&byte, tail)) = rest.split_first() {
            if count == ELEMENTS_MAX {
                return None;
            }
            let bit = 1u128 << count;
            let stars = rest.iter().take_while(|&&byte| byte == b'*').count();
            match stars {
                0 => literals[usize::from(byte)] |= bit,
                1 if !flat => within |= bit,
                _ => across |= bit,
            }
            rest = if stars > 0 { &rest[stars..] } else { tail };
            count += 1;
        }
        Some(Self { literals, segment_runs: within, any_runs: across, end_bit: 1 << count })
    }

    /// True when the pattern matches the whole text.
    pub(crate) fn matches(&self, text: impl Iterator<Item = u8>) -> bool {
        // A star matches nothing too: its state leads on to the next.
        let stars = self.segment_runs | self.any_runs;
        let past_stars = |states: u128| states | (states & stars) << 1;
        let mut states = past_stars(1);
        for byte in text {
            let stay = if byte == b'/' { self.any_runs } else { stars };
            states = past_stars((states & self.literals[usize::from(byte)]) << 1 | states & stay);
            if states == 0 {
                return false;
            }
        }
        states & self.end_bit != 0
    }
}

impl fmt::Debug for Glob {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Glob({} elements)", self.end_bit.trailing_zeros())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, by recursion.
    fn matches_naively(pattern: &[u8], text: &[u8]) -> bool {
        let Some((&first, rest)) = pattern.split_first() else { return text.is_empty() };
        if first != b'*' {
            return text.first() == Some(&first) && matches_naively(rest, &text[1..]);
        }
        let stars = pattern.iter().take_while(|&&byte| byte == b'*').count();
        (0..=text.len())
            .take_while(|&taken| stars > 1 || !text[..taken].contains(&b'/'))
            .any(|taken| matches_naively(&pattern[stars..], &text[taken..]))
    }

    #[test]
    fn glob_agrees_with_a_reference_implementation() {
        let words = |letters: &[u8], length: usize| {
            let mut words = vec![Vec::new()];
            let mut last = words.clone();
            for _ in 0..length {
                last = last
                    .iter()
                    .flat_map(|word: &Vec<u8>| {
                        letters.iter().map(|&byte| [word.as_slice(), &[byte]].concat())
                    })
                    .collect();
                words.extend(last.iter().cloned());
            }
            words
        };
        let texts = words(b"ab/", 5);
        for pattern in words(b"a*/", 5) {
            let glob = Glob::new(&pattern, false).unwrap();
            for text in &texts {
                let got = glob.matches(text.iter().copied());
                assert_eq!(got, matches_naively(&pattern, text), "{pattern:?} {text:?}");
            }
        }
    }

    #[test]
    fn flat_star_matches_slashes() {
        let glob = Glob::new(b"a*c", true).unwrap();
        assert!(glob.matches(b"a/b/c".iter().copied()));
        assert!(!glob.matches(b"a/b/cd".iter().copied()));
    }

    #[test]
    fn pattern_length_is_limited() {
        assert!(Glob::new(&[b'a'; ELEMENTS_MAX], false).unwrap().matches([b'a'; ELEMENTS_MAX].into_iter()));
        assert!(Glob::new(&[b'a'; ELEMENTS_MAX + 1], false).is_none());
        assert!(Glob::new(&[b'*'; 1000], false).unwrap().matches(std::iter::empty()));
    }
}
