//! The nearest valid name to a mistyped one.

/// Longer words are not compared: they are no typing mistakes, and the time is the product of both lengths.
const WORD_CHARS_MAX: usize = 64;

/// The name nearest to `word`, if they differ by at most a third of the word's length, or by one edit. Case does not
/// count, and `-` equals `_`.
pub(crate) fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = fold(word);
    if word.len() > WORD_CHARS_MAX {
        return None;
    }
    let edits_max = (word.len() / 3).max(1);
    names
        .into_iter()
        .map(|name| (distance(&word, &fold(name)), name))
        .filter(|&(edits, name)| edits <= edits_max && edits < name.chars().count())
        .min_by_key(|&(edits, _)| edits)
        .map(|(_, name)| name)
}

fn fold(word: &str) -> Vec<char> {
    word.chars()
        .take(WORD_CHARS_MAX + 1)
        .map(|c| if c == '-' { '_' } else { c.to_ascii_lowercase() })
        .collect()
}

/// The number of insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 0..a.len() {
        let mut row = vec![i + 1];
        for j in 0..b.len() {
            let replace = last[j] + usize::from(a[i] != b[j]);
            let mut edits = replace.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                edits = edits.min(before_last[j - 1] + 1);
            }
            row.push(edits);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_mistakes_find_their_name() {
        let names = ["idle", "head", "body", "response_headers"];
        assert_eq!(nearest("idel", names), Some("idle"));
        assert_eq!(nearest("Response-Header", names), Some("response_headers"));
        assert_eq!(nearest("bdy", names), Some("body"));
        assert_eq!(nearest("gzip", names), None);
        assert_eq!(nearest("", names), None);
        assert_eq!(nearest(&"x".repeat(1 << 20), names), None);
    }

    #[test]
    fn a_swap_is_one_edit() {
        let chars = |word: &str| word.chars().collect::<Vec<_>>();
        assert_eq!(distance(&chars("ab"), &chars("ba")), 1);
        assert_eq!(distance(&chars("kitten"), &chars("sitting")), 3);
        assert_eq!(distance(&chars(""), &chars("abc")), 3);
    }
}
