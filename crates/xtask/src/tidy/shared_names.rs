//! Checks that a type name is used only once in the whole workspace.

use std::collections::BTreeMap;

use crate::tidy::finding::TidyFinding;
use crate::tidy::source::{SourceFile, Token, closing_bracket};
use crate::tidy::tree::{SourceTree, crate_of, is_test_path};

const DECLARING_KEYWORDS: [&str; 5] = ["struct", "enum", "trait", "type", "union"];

/// Type name that several crates may share.
struct SharedName {
    name: &'static str,
    /// Reason why the types represent the same concept.
    #[cfg_attr(not(test), expect(dead_code, reason = "for readers and for the test of the list"))]
    reason: &'static str,
}

const SHARED_NAMES: &[SharedName] = &[
    SharedName { name: "Options", reason: "the settings of a crate, which `komainu::assemble` fills in" },
    SharedName {
        name: "ErrorPages",
        reason: "the table of `config`, and the trait of `net` that renders pages",
    },
    SharedName { name: "Frame", reason: "a frame of a worker's pipe, and of the test protocol of `net`" },
    SharedName { name: "FrameKind", reason: "the kinds of both frames" },
    SharedName {
        name: "Outcome",
        reason: "the result of a request for the cache, and of a directive for `import`",
    },
    SharedName {
        name: "Upload",
        reason: "a request body on its way to a worker, and in the test protocol of `net`",
    },
    SharedName { name: "Limits", reason: "limits of a message's head (`http`), and of connections (`net`)" },
];

/// Returns all findings about type names used in two crates. Types declared by macros are not seen.
pub(crate) fn check(tree: &SourceTree) -> Vec<TidyFinding> {
    let mut places: BTreeMap<String, Vec<(&str, usize)>> = BTreeMap::new();
    for (file, text) in tree.rust().filter(|(file, _)| !is_test_path(file)) {
        if crate_of(file).is_none_or(|folder| !folder.starts_with("crates/")) {
            continue;
        }
        let source = SourceFile::new(text);
        for name in declared_types(&source.tokens()) {
            if !source.is_test(name.line) {
                places.entry(name.text.to_string()).or_default().push((file, name.line));
            }
        }
    }
    places.retain(|name, _| SHARED_NAMES.iter().all(|twin| twin.name != name));
    places.iter().filter_map(|(name, places)| duplicate_finding(name, places)).collect()
}

/// Returns the finding for the first declaration in another crate than the first one.
fn duplicate_finding(name: &str, places: &[(&str, usize)]) -> Option<TidyFinding> {
    let (first, line) = places.first()?;
    let (file, at) = places.iter().find(|(file, _)| crate_of(file) != crate_of(first))?;
    let what = format!("`{name}` is also the name of a type at {first}:{line}");
    let remedy = "name the type for what it is of, or add it to SHARED_NAMES in xtask's shared_names.rs with the reason";
    Some(TidyFinding::new(file, *at, what, remedy))
}

/// Returns the names of the types that this file declares in its modules, but not in functions, traits or
/// `impl` blocks.
fn declared_types<'a>(tokens: &[Token<'a>]) -> Vec<Token<'a>> {
    let mut names = Vec::new();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        let is_module = at >= 2 && tokens[at - 2].text == "mod";
        match token.text {
            "{" if is_module => at += 1,
            "{" | "(" | "[" => at = closing_bracket(tokens, at).max(at) + 1,
            word if DECLARING_KEYWORDS.contains(&word) => {
                names.extend(tokens.get(at + 1).filter(|name| name.text.starts_with(char::is_uppercase)));
                at += 2;
            }
            _ => at += 1,
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find_all(files: &[(&str, &str)]) -> Vec<String> {
        check(&SourceTree::of(files)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn duplicate_type_name_in_another_crate_is_reported() {
        for second in ["pub enum Ticket {}", "struct Ticket(u8);", "mod a { pub(crate) type Ticket = u8; }"] {
            let files =
                [("crates/a/src/lib.rs", "\npub struct Ticket { a: u8 }"), ("crates/b/src/x.rs", second)];
            let found = find_all(&files);
            assert_eq!(found.len(), 1, "{second}");
            assert!(found[0].starts_with("crates/b/src/x.rs:1: `Ticket` is also"), "{found:?}");
            assert!(found[0].contains("crates/a/src/lib.rs:2"), "{found:?}");
        }
    }

    #[test]
    fn types_of_one_crate_tests_and_local_items_pass() {
        for second in [
            ("crates/a/src/y.rs", "struct Ticket;"),
            ("crates/b/tests/y.rs", "struct Ticket;"),
            ("crates/b/src/y.rs", "#[cfg(test)]\nmod tests { struct Ticket; }"),
            ("crates/b/src/y.rs", "fn f() { struct Ticket; }"),
            ("crates/b/src/y.rs", "impl A for B { type Ticket = u8; }"),
            ("crates/b/src/y.rs", "trait A { type Ticket; }"),
            ("crates/b/src/y.rs", "// struct Ticket;"),
        ] {
            let files = [("crates/a/src/x.rs", "struct Ticket;"), second];
            assert!(find_all(&files).is_empty(), "{second:?}");
        }
        let files = [("crates/a/src/x.rs", "struct Options;"), ("crates/b/src/x.rs", "struct Options;")];
        assert!(find_all(&files).is_empty());
    }

    #[test]
    fn every_exception_has_a_reason_and_is_unique() {
        for (at, twin) in SHARED_NAMES.iter().enumerate() {
            assert!(!twin.reason.is_empty(), "{}", twin.name);
            assert!(SHARED_NAMES[..at].iter().all(|other| other.name != twin.name), "{}", twin.name);
        }
    }
}
