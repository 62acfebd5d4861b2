//! Checks that the tests exist that `scripts/escape` runs and that the table of walls in `docs/security.md` names.
//!
//! The script writes `PROGRAM/MODULE::TEST`. The table writes `PROGRAM/MODULE`, perhaps with `::TEST`, a program, or a
//! path of the repository.

use crate::tidy::finding::TidyFinding;
use crate::tidy::tree::SourceTree;

const SCRIPT: &str = "scripts/escape";
const TABLE: &str = "docs/security.md";
/// Heading of the table's section, and the beginning of the next one's.
const SECTION: &str = "## Walls";
const NEXT_SECTION: &str = "\n#";
/// Folder of the programs.
const PROGRAMS: &str = "crates/komainu/tests";
const REMEDY: &str = "name a test that exists";

/// Returns all findings about the tests of walls.
pub(crate) fn check(tree: &SourceTree) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for (at, line) in tree.text(SCRIPT).unwrap_or_default().lines().enumerate() {
        // The last text of a line of the list.
        let named = line.strip_prefix("    (").and_then(|_| line.rsplit('\'').nth(1));
        if let Some(name) = named.filter(|name| !name.contains("::") || !exists(tree, name)) {
            findings.push(TidyFinding::new(
                SCRIPT,
                at + 1,
                format!("runs `{name}`, which is no test"),
                REMEDY,
            ));
        }
    }
    let text = tree.text(TABLE).unwrap_or_default();
    let Some(begin) = text.find(SECTION) else { return findings };
    let section = &text[begin + SECTION.len()..];
    let section = &section[..section.find(NEXT_SECTION).unwrap_or(section.len())];
    let lines_before = text[..begin].lines().count() + 1;
    for (at, line) in section.lines().enumerate() {
        let Some((_, tests)) = line.trim_end_matches([' ', '|']).rsplit_once(" | ") else { continue };
        for name in tests.split('`').skip(1).step_by(2).filter(|name| !exists(tree, name)) {
            let what = format!("names `{name}`, which is no test");
            findings.push(TidyFinding::new(TABLE, lines_before + at, what, REMEDY));
        }
    }
    findings
}

/// Whether a name is that of a test, of a module or program with tests, or a path of the repository.
fn exists(tree: &SourceTree, name: &str) -> bool {
    let (path, test) = name.split_once("::").map_or((name, None), |(path, test)| (path, Some(test)));
    let is_there = |file: &str| match (tree.text(file), test) {
        (Some(text), Some(test)) => text.contains(&format!("#[test]\nfn {test}()")),
        (found, _) => found.is_some(),
    };
    let folder = format!("{path}/");
    let has_files = || tree.files().any(|(file, _)| file.starts_with(&folder));
    is_there(&format!("{PROGRAMS}/{path}.rs"))
        || test.is_none()
            && (is_there(&format!("{PROGRAMS}/{path}/main.rs")) || is_there(path) || has_files())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_without_a_test_are_reported() {
        let script =
            "ESCAPES = [\n    ('who', \"what's there\", 'a/b::one'),\n    ('who', 'what', 'a/b::two'),\n]\n";
        let table = "# S\n## Walls\n| who | tests |\n|---|---|\n| `x` | `a`, `a/b`, `a/b::one`, `fuzz` |\n\
                     | y | `a/c`, `a/b::two` |\n### More\n| z | `a/d` |\n";
        let files = [
            (SCRIPT, script),
            (TABLE, table),
            ("crates/komainu/tests/a/main.rs", "mod b;"),
            ("crates/komainu/tests/a/b.rs", "#[test]\nfn one() {}\nfn two() {}\n"),
            ("fuzz/x.rs", ""),
        ];
        let found: Vec<String> =
            check(&SourceTree::of(&files)).iter().map(|one| format!("{}:{}", one.file, one.line)).collect();
        assert_eq!(found, ["scripts/escape:3", "docs/security.md:6", "docs/security.md:6"]);
    }
}
