//! Checks documents: generated ones are up to date, and none contains machine-specific paths or open tasks.

use std::path::Path;

use other_servers::{OtherServer, SERVERS};

use crate::tidy::figures_page;
use crate::tidy::finding::TidyFinding;
use crate::tidy::foreign_directives;
use crate::tidy::tree::SourceTree;

/// Split so that this rule does not match its own source.
const FOREIGN_PATHS: [&str; 2] = [concat!("/wo", "rk/"), concat!("/ro", "ot/")];
const TODO_MARKERS: [&str; 2] = [concat!("TO", "DO"), concat!("FIX", "ME")];
const PUBLIC_INDEX: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Returns the text of a generated page or part.
type PageText = Box<dyn Fn(&str, &str) -> String>;

/// Document that is generated from the code, or has a part that is.
pub(crate) struct GeneratedDocument {
    pub(crate) file: String,
    /// File from which it is generated, if it does not come from the code alone.
    pub(crate) source: Option<&'static str>,
    /// Returns the text; its arguments are the text that is there and that of `source`.
    pub(crate) text: PageText,
}

/// Returns all generated documents, which `cargo xtask docs` writes.
pub(crate) fn generated_documents() -> Vec<GeneratedDocument> {
    let reference = GeneratedDocument {
        file: "docs/configuration.md".to_owned(),
        source: None,
        text: Box::new(|_, _| config::reference()),
    };
    let page = |server: &'static OtherServer| GeneratedDocument {
        file: format!("docs/{}", server.page),
        source: None,
        text: Box::new(|text, _| foreign_directives::write_tables(text, server)),
    };
    let annotations = GeneratedDocument {
        file: "docs/from/ingress-nginx.md".to_owned(),
        source: None,
        text: Box::new(|text, _| foreign_directives::write_annotations(text)),
    };
    // For the plain manifests and for the chart.
    let policy = |folder: &str| GeneratedDocument {
        file: format!("packages/{folder}/policy.yaml"),
        source: None,
        text: Box::new(|_, _| kubernetes::policy_definition::definition_yaml()),
    };
    let policies = ["kubernetes", "helm/komainu/files"].map(policy);
    let figures = GeneratedDocument {
        file: "docs/figures.md".to_owned(),
        source: Some(figures_page::RESULTS),
        text: Box::new(figures_page::write_table),
    };
    [reference, annotations, figures]
        .into_iter()
        .chain(policies)
        .chain(SERVERS.into_iter().map(page))
        .collect()
}

/// Returns all findings about documents.
pub(crate) fn check(tree: &SourceTree) -> Vec<TidyFinding> {
    let mut findings: Vec<TidyFinding> =
        generated_documents().iter().filter_map(|document| check_generated(tree, document)).collect();
    for (name, text) in tree.files() {
        // The examples must be valid configurations.
        if name.starts_with("demo/") && name.ends_with(".toml") {
            findings.extend(first_mistake(name, text));
        }
        for (at, line) in text.lines().enumerate() {
            findings.extend(
                check_line(name, line).map(|(what, remedy)| TidyFinding::new(name, at + 1, what, remedy)),
            );
        }
    }
    findings
}

fn check_generated(tree: &SourceTree, document: &GeneratedDocument) -> Option<TidyFinding> {
    let written = tree.text(&document.file).unwrap_or_default();
    let source = document.source.and_then(|source| tree.text(source)).unwrap_or_default();
    let wanted = (document.text)(written, source);
    if written == wanted {
        return None;
    }
    let same = written.lines().zip(wanted.lines()).take_while(|(a, b)| a == b).count();
    Some(TidyFinding::new(
        &document.file,
        same + 1,
        document.source.map_or("differs from what the code says", |_| "differs from its source"),
        "write it again: cargo xtask docs",
    ))
}

fn first_mistake(name: &str, text: &str) -> Option<TidyFinding> {
    let folder = Path::new(name).parent().unwrap_or(Path::new(""));
    let report = match config::Config::parse(text, name, folder) {
        Ok((_, warnings)) if warnings.is_empty() => return None,
        Ok((_, warnings)) => warnings,
        Err(errors) => errors,
    };
    Some(TidyFinding::new(name, 1, report.render(false), "correct it as it says"))
}

fn check_line(name: &str, line: &str) -> Option<(String, &'static str)> {
    if let Some(path) = FOREIGN_PATHS.into_iter().find(|path| names_path(line, path)) {
        return Some((format!("names `{path}`, a path of one machine"), "use a path inside the repository"));
    }
    if name.ends_with(".rs")
        && let Some(promise) = TODO_MARKERS.into_iter().find(|promise| has_word(line, promise))
    {
        return Some((format!("`{promise}`"), "do it, or open an issue"));
    }
    if name.ends_with("Cargo.lock")
        && let Some(source) = line.strip_prefix("source = ")
        && source.trim_matches('"') != PUBLIC_INDEX
    {
        return Some((format!("a dependency from {source}"), "take it from crates.io"));
    }
    if name.ends_with(".md") && cites_line(line) {
        return Some(("cites a line number, which will move".to_string(), "cite the symbol"));
    }
    None
}

/// Whether `line` contains `path` at the beginning of an absolute path.
fn names_path(line: &str, path: &str) -> bool {
    let begins = |at: usize| {
        !line[..at]
            .ends_with(|c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | '/' | '}' | ')' | '*'))
    };
    line.match_indices(path).any(|(at, _)| begins(at))
}

fn has_word(line: &str, word: &str) -> bool {
    line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|one| one == word)
}

fn cites_line(line: &str) -> bool {
    line.match_indices(".rs:")
        .any(|(at, found)| line[at + found.len()..].starts_with(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count_findings(name: &str, text: &str) -> usize {
        text.lines().filter(|line| check_line(name, line).is_some()).count()
    }

    #[test]
    fn outdated_generated_document_is_reported_with_its_line() {
        let document = GeneratedDocument {
            file: "docs/a.md".to_owned(),
            source: None,
            text: Box::new(|_, _| "one\ntwo\n".to_owned()),
        };
        let reported = |text: &str| {
            check_generated(&SourceTree::of(&[("docs/a.md", text)]), &document).map(|finding| finding.line)
        };
        assert_eq!(reported("one\ntwo\n"), None);
        assert_eq!(reported("one\n2\n"), Some(2));
        assert_eq!(reported("one\ntwo\nthree\n"), Some(3));
        assert_eq!(check_generated(&SourceTree::of(&[]), &document).map(|finding| finding.line), Some(1));
    }

    #[test]
    fn invalid_directive_in_an_example_is_reported() {
        assert_eq!(first_mistake("demo/a.toml", "[[route]]\nfiles = \"public\"\n"), None);
        let finding = first_mistake("demo/a.toml", "lissten = \":80\"\n").expect("no such directive");
        assert!(
            finding.message.contains("lissten") && finding.message.contains("listen"),
            "{}",
            finding.message
        );
    }

    #[test]
    fn machine_specific_paths_are_reported() {
        for path in FOREIGN_PATHS {
            assert_eq!(count_findings("a.md", &format!("see {path}x")), 1);
            assert_eq!(count_findings("a.toml", &format!("root = \"{path}x\"")), 1);
            assert_eq!(count_findings("a.rs", &format!("crates{path}x")), 0);
        }
    }

    #[test]
    fn open_tasks_line_numbers_and_foreign_sources_are_reported() {
        assert_eq!(count_findings("a.rs", &format!("// {}: later", TODO_MARKERS[0])), 1);
        assert_eq!(count_findings("a.rs", &format!("// {}S of others", TODO_MARKERS[0])), 0);
        assert_eq!(count_findings("a.md", "see net.rs:12"), 1);
        assert_eq!(count_findings("a.md", "see `net.rs`: twelve"), 0);
        assert_eq!(count_findings("Cargo.lock", "source = \"git+https://example.com/x\""), 1);
        assert_eq!(count_findings("Cargo.lock", &format!("source = \"{PUBLIC_INDEX}\"")), 0);
    }
}
