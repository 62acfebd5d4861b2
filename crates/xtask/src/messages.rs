//! Generates the page of the book that lists every message of the server, extracted from the source.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::tidy::source::{SourceFile, string_literal_ranges};
use crate::tidy::tree::{SourceTree, is_test_path};

/// Crates with the subject of their messages; other crates have no messages of the server.
const SUBJECTS: [(&str, &str); 18] = [
    ("komainu", "Starting, commands, logs, sites and routes"),
    ("config", "The configuration"),
    ("http", "Requests: HTTP/1"),
    ("http2", "Requests: HTTP/2"),
    ("net", "Connections, TLS, bodies"),
    ("files", "Files"),
    ("admission", "Limits, passwords, tokens, other origins"),
    ("proxy", "Upstream servers"),
    ("cgi", "FastCGI, uwsgi and SCGI"),
    ("cache", "The cache"),
    ("apps", "Applications and their workers"),
    ("certificates", "Certificates, OCSP, DNS"),
    ("steps", "Limits, maintenance, crawlers, authentication"),
    ("routing", "Sites, routes and paths"),
    ("sharing", "Limits shared through Redis"),
    ("cluster", "The store of a set of servers"),
    ("discovery", "DNS names and containers"),
    ("coding", "Compression"),
];

/// Names of files whose texts are help, descriptions of figures, or pages.
const EXCLUDED_FILES: [&str; 9] =
    ["cli", "openapi", "metrics", "rule_counters", "exposition", "measure", "ab", "page", "toy"];

/// Calls whose texts are for developers: invariants and failed assertions.
const DEVELOPER_CALLS: [&str; 8] = [
    "expect(",
    "assert!(",
    "assert_eq!(",
    "assert_ne!(",
    "panic!(",
    "unreachable!(",
    "matches!(",
    "include_str!(",
];

/// Generates the page.
pub(crate) fn messages_page(tree: &SourceTree) -> String {
    let mut page = "# Every message\n\nMade from the program's source: search it for the words of a message. `…` stands for what \
                    differs. [Troubleshooting](troubleshooting.md) has causes and remedies of those that are met most often.\n"
        .to_owned();
    for (name, subject) in SUBJECTS {
        let messages = crate_messages(tree, name);
        if messages.is_empty() {
            continue;
        }
        write!(page, "\n## {subject}\n\n").expect("a String takes everything");
        for message in messages {
            let fence = if message.contains('`') { "``" } else { "`" };
            let room = if message.starts_with('`') || message.ends_with('`') { " " } else { "" };
            writeln!(page, "- {fence}{room}{message}{room}{fence}").expect("a String takes everything");
        }
    }
    page
}

/// Returns the messages of a crate without duplicates, in alphabetical order.
fn crate_messages(tree: &SourceTree, name: &str) -> BTreeSet<String> {
    let folder = format!("crates/{name}/src/");
    let files = tree.rust().filter(|(file, _)| file.starts_with(&folder) && !is_test_path(file));
    let kept = files.filter(|(file, _)| !EXCLUDED_FILES.iter().any(|other| has_path_segment(file, other)));
    kept.flat_map(|(_, text)| message_literals(text))
        .filter_map(|literal| displayed_message(&literal))
        .collect()
}

/// Whether a file or one of its folders has this name.
fn has_path_segment(file: &str, name: &str) -> bool {
    file.split('/').any(|part| part.trim_end_matches(".rs") == name)
}

/// Returns the string literals of a file, except those in tests, in attributes or for developers.
fn message_literals(text: &str) -> Vec<String> {
    let source = SourceFile::new(text);
    let code = source.lines();
    let mut found = Vec::new();
    let mut line = 0;
    let mut counted = 0;
    for literal in string_literal_ranges(text) {
        line += text[counted..literal.start].matches('\n').count();
        counted = literal.start;
        let begin = text[..literal.start].rfind('\n').map_or(0, |end| end + 1);
        let before = &code[line][..literal.start - 1 - begin];
        let is_alone = before.trim().is_empty();
        let call = if is_alone && line > 0 { code[line - 1].trim_end() } else { before };
        let is_for_developers = DEVELOPER_CALLS.iter().any(|name| call.contains(name));
        let is_attribute = before.trim_start().starts_with("#[") || before.trim_start().starts_with("#![");
        if !source.is_test(line + 1) && !is_for_developers && !is_attribute {
            found.push(text[literal].to_owned());
        }
    }
    found
}

/// Returns a literal as users read it, if it is a message: at least three words, and no header, document or
/// sentence of the reference.
fn displayed_message(literal: &str) -> Option<String> {
    if ["\\r\\n", "<", "-----", "$(", ";q=", "\\t", "HTTP/1.1\\"].iter().any(|part| literal.contains(part)) {
        return None;
    }
    let mut text = String::new();
    let mut rest = literal;
    while let Some(next) = rest.chars().next() {
        rest = &rest[next.len_utf8()..];
        match next {
            '\\' if rest.starts_with('\n') => rest = rest.trim_start(),
            '\\' if rest.starts_with('n') => (text, rest) = (text + " ", &rest[1..]),
            '\\' => {}
            '{' if rest.starts_with('{') => (text, rest) = (text + "{", &rest[1..]),
            '}' if rest.starts_with('}') => (text, rest) = (text + "}", &rest[1..]),
            '{' => (text, rest) = (text + "…", rest.split_once('}')?.1),
            other => text.push(other),
        }
    }
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let words =
        text.split(' ').filter(|word| word.chars().filter(|letter| letter.is_lowercase()).count() >= 2);
    (words.count() >= 3 && !text.ends_with('.')).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_messages_for_users_are_extracted() {
        let text = r#"
/// The "words of a comment" are none.
#[arg(help = "the words of help")]
fn a() {
    let b = Some(1).expect("what the code makes sure");
    log.error(format!("cannot open {}: {error}; \
        try \"another\" one", c));
    header("Content-Type: text/html; charset=utf-8\r\n");
    assert!(b, "this never is");
    name("two words"); // "words after code too"
}
#[cfg(test)]
mod tests { fn b() { x("the words of a test"); } }
"#;
        let tree = SourceTree::of(&[
            ("crates/net/src/a.rs", text),
            ("crates/net/src/cli.rs", "f(\"some words of help\")"),
        ]);
        let found: Vec<String> = crate_messages(&tree, "net").into_iter().collect();
        assert_eq!(found, ["cannot open …: …; try \"another\" one"]);
        let page = messages_page(&tree);
        assert!(
            page.contains("## Connections, TLS, bodies\n\n- `cannot open …: …; try \"another\" one`\n"),
            "{page}"
        );
    }

    #[test]
    fn literals_are_unescaped_and_non_messages_ignored() {
        assert_eq!(
            displayed_message("write {{ min = 2 }} for {what} here").as_deref(),
            Some("write { min = 2 } for … here")
        );
        assert_eq!(displayed_message("Two words."), None);
        assert_eq!(displayed_message("a sentence of the reference."), None);
    }
}
