//! Every message that the pages explain exists in the program's source.

use std::fs;
use std::path::Path;

use crate::pages::{page, root};

/// Collects the program's source, with string literals as they are printed: joined lines, quotes, and `…` for
/// placeholders.
fn source(folder: &Path, out: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            source(&path, out);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            out.push_str(&fs::read_to_string(path).unwrap());
        }
    }
}

/// A source text without the escaped line ends within literals.
fn joined(text: &str) -> String {
    let mut parts = text.split("\\\n");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |joined, part| joined + part.trim_start()).replace("\\\"", "\"")
}

/// The code spans in the first cell of a table row.
fn messages(row: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = row;
    while let Some(open) = rest.find(['`', '|']) {
        if rest[open..].starts_with('|') {
            break;
        }
        let ticks = rest[open..].len() - rest[open..].trim_start_matches('`').len();
        let mark = "`".repeat(ticks);
        let inside = &rest[open + ticks..];
        let Some(close) = inside.find(&mark) else { break };
        found.push(inside[..close].trim().to_owned());
        rest = &inside[close + ticks..];
    }
    found
}

#[test]
fn every_explained_message_exists_in_the_source() {
    let mut program = String::new();
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        source(&entry.unwrap().path().join("src"), &mut program);
    }
    let program = joined(&program);
    let page = page("troubleshooting.md");
    let mut count = 0;
    for row in page.lines().filter_map(|line| line.strip_prefix("| ")) {
        for message in messages(row) {
            for part in message.split('…').map(|part| part.trim_matches([' ', ':', ',', ';'])) {
                assert!(program.contains(part), "no message has the words {part:?} of {message:?}");
            }
            count += 1;
        }
    }
    assert!(count > 120, "{count} messages were found");
}

#[test]
fn messages_are_the_code_spans_of_the_first_cell() {
    let found = messages("`one` and `` two `b` ``, `three…` | `not this` |");
    assert_eq!(found, ["one", "two `b`", "three…"]);
}
