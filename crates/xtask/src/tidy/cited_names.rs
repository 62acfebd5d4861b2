//! Checks that the files and items exist that pages for contributors name.

use std::collections::{BTreeMap, BTreeSet};

use crate::tidy::finding::TidyFinding;
use crate::tidy::tree::{SourceTree, crate_of};

/// Pages for contributors, and folders of them.
const PAGES: [&str; 7] = [
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "crates/komainu/tests/README.md",
    "docs/decisions/",
    "docs/glossary.md",
    "workers/README.md",
];
/// Folders in which named files must exist.
const FOLDERS: [&str; 8] =
    ["crates/", "debian/", "docs/", "fuzz/", "labs/", "packages/", "scripts/", "workers/"];

/// Returns all findings about names of files and items.
pub(crate) fn check(tree: &SourceTree) -> Vec<TidyFinding> {
    let crates = words_of_crates(tree);
    let mut findings = Vec::new();
    for (page, text) in tree.files().filter(|(name, _)| PAGES.iter().any(|page| name.starts_with(page))) {
        for (at, line) in text.lines().enumerate() {
            let names =
                line.split(|letter: char| letter.is_whitespace() || "`(),;[]|<>'\"#".contains(letter));
            for name in names.map(|name| name.trim_end_matches(['.', ':', '/', '!'])) {
                if !file_exists(tree, name) || !item_exists(&crates, name) {
                    let what = format!("there is no `{name}`");
                    findings.push(TidyFinding::new(page, at + 1, what, "name what is there"));
                }
            }
        }
    }
    findings
}

/// Returns the words of each crate's sources.
fn words_of_crates(tree: &SourceTree) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut crates: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (file, text) in tree.rust() {
        let Some(name) = crate_of(file).and_then(|folder| folder.strip_prefix("crates/")) else { continue };
        let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
        crates.entry(name).or_default().extend(text.split(|letter| !is_part(letter)));
    }
    crates
}

/// Whether a path names a file or folder; also for what is not a path, and for patterns such as `src/SERVER.rs`.
fn file_exists(tree: &SourceTree, name: &str) -> bool {
    let is_placeholder = |part: &str| part.len() > 2 && part.chars().all(char::is_uppercase);
    let is_pattern = name.contains(['*', '{', '…', '$'])
        || name.split(['/', '.']).any(|part| is_placeholder(part) && part != "README");
    let folder = format!("{name}/");
    let is_path = FOLDERS.iter().any(|folder| name.starts_with(folder));
    !is_path || is_pattern || tree.files().any(|(file, _)| file == name || file.starts_with(&folder))
}

/// Whether all parts of a path such as `net::Core` are words of the crate; also for other text.
fn item_exists(crates: &BTreeMap<&str, BTreeSet<&str>>, name: &str) -> bool {
    let Some((first, rest)) = name.split_once("::") else { return true };
    crates.get(first).is_none_or(|words| rest.split("::").all(|part| words.contains(part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_files_and_items_are_reported() {
        let page = "`crates/a/src/lib.rs` docs/x.md#y `crates/a/src/SERVER.rs`, crates/a.\n\
                    `a::Core::run`, [`a::lib`](x) std::io `b::None` a::Core::new()\n";
        let found = |page: &str| -> Vec<String> {
            let source = "mod lib; struct Core; fn run()";
            let files = [("ARCHITECTURE.md", page), ("crates/a/src/lib.rs", source), ("docs/x.md", "")];
            check(&SourceTree::of(&files)).iter().map(ToString::to_string).collect()
        };
        assert_eq!(found(page), ["ARCHITECTURE.md:2: there is no `a::Core::new`; name what is there"]);
        assert_eq!(found("crates/a/src/x.rs docs/README.md scripts/run\n").len(), 3);
        assert_eq!(found("\n(`a::Gone`)"), ["ARCHITECTURE.md:2: there is no `a::Gone`; name what is there"]);
    }
}
