//! Words: the ones that nginx, the RFCs and their readers use, in names, comments, messages and documents.

use crate::tidy::finding::TidyFinding;
use crate::tidy::tree::SourceTree;

/// A refused word, or two words, in small letters, and what to write instead.
struct PlainWords {
    words: &'static [&'static str],
    remedy: &'static str,
}

const REFUSED: &[PlainWords] = &[
    PlainWords {
        words: &[
            "told",
            "tells",
            "telling",
            "to tell",
            "tell the",
            "tell of",
            "tell which",
            "tell what",
            "tell whether",
        ],
        remedy: "write who reports, logs, notifies, sends or states what",
    },
    PlainWords { words: &["anew"], remedy: "write `again` or `new`" },
    PlainWords { words: &["heed", "heeds", "heeded"], remedy: "write `watch`, `follow` or `check`" },
    PlainWords {
        words: &["whom", "whence", "hither", "thither", "thereof", "lest", "aught"],
        remedy: "name the thing",
    },
    PlainWords { words: &["betake", "betakes", "behold"], remedy: "write the plain verb" },
    PlainWords { words: &["errand", "errands"], remedy: "write `request`, `task` or `command`" },
    PlainWords { words: &["goes on", "go on", "going on", "went on"], remedy: "write `continue`" },
    PlainWords { words: &["let go", "lets go", "letting go"], remedy: "write `release`, `drop` or `close`" },
    PlainWords { words: &["comes of", "come of"], remedy: "write `results from`, or what happens" },
];

/// Endings of the names of files that are read.
const ENDINGS: [&str; 12] =
    [".rs", ".md", ".toml", ".c", ".h", ".cpp", ".py", ".rb", ".pm", ".pl", ".sh", "Makefile"];

/// This file has the list.
const LIST: &str = "crates/xtask/src/tidy/words.rs";

/// All findings about words.
pub(crate) fn check(tree: &SourceTree) -> Vec<TidyFinding> {
    let is_read = |name: &str| {
        ENDINGS.iter().any(|ending| name.ends_with(ending))
            || (name.starts_with("scripts/") && !name.contains('.'))
    };
    let mut findings = Vec::new();
    for (file, text) in tree.files().filter(|(name, _)| is_read(name) && *name != LIST) {
        for (at, line) in text.lines().enumerate() {
            findings.extend(refused(line).into_iter().map(|(word, remedy)| {
                TidyFinding::new(file, at + 1, format!("`{word}` is not a plain word here"), remedy)
            }));
        }
    }
    findings
}

/// The refused words of a line. The parts of `snake_case` are words; a hyphen joins two words to one (`--kill-whom`).
fn refused(line: &str) -> Vec<(&'static str, &'static str)> {
    let line = line.to_lowercase().replace('_', " ");
    let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
    let is_part = |c: char| c.is_alphanumeric() || c == '-';
    let has = |wanted: &str| {
        line.match_indices(wanted)
            .any(|(at, _)| !line[..at].ends_with(is_part) && !line[at + wanted.len()..].starts_with(is_part))
    };
    let all = REFUSED.iter().flat_map(|refused| refused.words.iter().map(|word| (*word, refused.remedy)));
    all.filter(|(word, _)| has(word)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(file: &str, text: &str) -> usize {
        check(&SourceTree::of(&[(file, text)])).len()
    }

    #[test]
    fn refused_words_are_found_in_comments_strings_names_and_documents() {
        for (file, text) in [
            ("a.rs", "// The client is told."),
            ("a.rs", "let text = \"Told once\";"),
            ("a.rs", "fn told_once() {}"),
            ("a.rs", "fn let_go() {}"),
            ("docs/a.md", "It goes  on."),
            ("workers/a.c", "/* started anew */"),
            ("scripts/setup", "# to whom"),
        ] {
            assert_eq!(found(file, text), 1, "{text}");
        }
    }

    #[test]
    fn the_finding_has_its_line_and_the_remedy() {
        let findings = check(&SourceTree::of(&[("a.py", "a\n# loads it anew\n")]));
        assert_eq!(
            findings[0].to_string(),
            "a.py:2: `anew` is not a plain word here; write `again` or `new`"
        );
    }

    #[test]
    fn parts_of_words_options_and_data_pass() {
        for (file, text) in [
            ("a.rs", "// retold, a teller, untold, renewal"),
            ("docs/a.md", "systemctl kill --kill-whom=main"),
            ("a.rs", "// it goes. On the next line"),
            ("a.txt", "told"),
        ] {
            assert_eq!(found(file, text), 0, "{text}");
        }
    }
}
