//! The nearest valid name to a mistyped one.

/// Longer words are not compared: they are no typing mistakes, and the time is the product of both lengths.
const WORD_CHARS_MAX: usize = 64;

/// The name nearest to `word`, if they differ by at most a third of the word's length, or by one edit. Case does not
/// count, and `-` equals `_`.
pub fn nearest_name<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = normalize_word(word);
    let chars = word.chars().count();
    if chars > WORD_CHARS_MAX {
        return None;
    }
    let edits_max = (chars / 3).max(1);
    let sorted = sorted_words(&word);
    names
        .into_iter()
        .map(|name| (name, normalize_word(name)))
        .map(|(name, folded)| match sorted.len() > 1 && sorted_words(&folded) == sorted {
            // The same words in another order.
            true => (1, name),
            false => (strsim::osa_distance(&word, &folded), name),
        })
        .filter(|&(edits, name)| edits <= edits_max && edits < name.chars().count())
        .min_by_key(|&(edits, _)| edits)
        .map(|(_, name)| name)
}

/// The words of a name in alphabetical order.
fn sorted_words(name: &str) -> Vec<&str> {
    let mut words: Vec<&str> = name.split('_').collect();
    words.sort_unstable();
    words
}

fn normalize_word(word: &str) -> String {
    word.chars()
        .take(WORD_CHARS_MAX + 1)
        .map(|c| if c == '-' { '_' } else { c.to_ascii_lowercase() })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistyped_names_find_the_nearest_valid_name() {
        let names = ["idle", "head", "body", "response_headers"];
        assert_eq!(nearest_name("idel", names), Some("idle"));
        assert_eq!(nearest_name("Response-Header", names), Some("response_headers"));
        assert_eq!(nearest_name("bdy", names), Some("body"));
        assert_eq!(nearest_name("https_redirect", ["https", "redirect_https"]), Some("redirect_https"));
        assert_eq!(nearest_name("headers-response", names), Some("response_headers"));
        assert_eq!(nearest_name("gzip", names), None);
        assert_eq!(nearest_name("", names), None);
        assert_eq!(nearest_name(&"x".repeat(1 << 20), names), None);
    }

    #[test]
    fn transposed_letters_count_as_one_edit() {
        assert_eq!(nearest_name("ab", ["ba"]), Some("ba"));
        assert_eq!(nearest_name("ümlaut", ["umlaut"]), Some("umlaut"));
    }
}
