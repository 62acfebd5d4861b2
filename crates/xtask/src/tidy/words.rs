//! Checks the first words of documentation: items are described by a noun phrase or a verb, not by a question
//! word or a pronoun.

use crate::tidy::finding::TidyFinding;
use crate::tidy::tree::SourceTree;

/// First words that do not name the subject.
const REFUSED_FIRST_WORDS: [&str; 9] = ["What", "Its", "It", "Where", "Which", "Those", "By", "Who", "Whose"];
/// Reciprocal of the maximum share of blocks that may begin with such a word.
const SHARE_RECIPROCAL: usize = 100;

/// Returns findings for all such documentation blocks if their share is above the limit.
pub(crate) fn check(tree: &SourceTree) -> Vec<TidyFinding> {
    let mut blocks = 0;
    let mut refused = Vec::new();
    for (file, text) in tree.rust() {
        for (line, first) in first_words(text) {
            blocks += 1;
            if REFUSED_FIRST_WORDS.contains(&first) {
                let what = format!("this documentation begins with `{first}`");
                let remedy = "begin with a noun phrase, or with a verb in the third person";
                refused.push(TidyFinding::new(file, line, what, remedy));
            }
        }
    }
    if refused.len() * SHARE_RECIPROCAL > blocks { refused } else { Vec::new() }
}

/// Returns the first word of each block of `///` or `//!`, with its line number.
fn first_words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut was_document = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        let line = line.trim_start();
        let document = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        let begins = document.is_some() && !was_document;
        was_document = document.is_some();
        let words = document.filter(|_| begins)?;
        let first = words.split_whitespace().next()?;
        Some((at + 1, first.trim_end_matches([',', ':', '.'])))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_words_of_doc_blocks_are_extracted() {
        let text = "//! What it owns.\n//! It never acts.\n\n/// Returns it.\n///\n/// Where it is.\nfn f() {}\n    /// Whose\n";
        assert_eq!(first_words(text).collect::<Vec<_>>(), [(1, "What"), (4, "Returns"), (8, "Whose")]);
    }

    #[test]
    fn one_percent_of_bad_first_words_is_tolerated() {
        let good = "/// A noun.\n\n".repeat(99);
        let bad = "/// Which it is.\n";
        let found = |text: &str| check(&SourceTree::of(&[("crates/a/src/lib.rs", text)])).len();
        assert_eq!(found(&format!("{good}{bad}")), 0);
        assert_eq!(found(&format!("{good}{bad}\n{bad}")), 2);
    }
}
