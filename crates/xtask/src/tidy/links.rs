//! Checks that links in documents have an existing target, and that the book's table of contents lists every
//! page of `docs`.

use crate::markdown::{find_links, heading_anchors};
use crate::tidy::finding::TidyFinding;
use crate::tidy::tree::SourceTree;

/// Table of contents of the book.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Returns all findings about links.
pub(crate) fn check(tree: &SourceTree) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for (name, text) in tree.files().filter(|(name, _)| name.ends_with(".md")) {
        for link in find_links(text) {
            let target = &text[link.target.clone()];
            if let Some(what) = link_fault(tree, name, target) {
                let line = text[..link.target.start].lines().count();
                findings.push(TidyFinding::new(name, line, what, "correct the link"));
            }
        }
    }
    findings.extend(unlisted_pages(tree));
    findings
}

/// Returns the file of the repository that a link refers to, and the anchor in it. `None` for external links.
pub(crate) fn resolve_link<'a>(file: &str, target: &'a str) -> Option<(String, &'a str)> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, place) = target.split_once('#').unwrap_or((target, ""));
    if path.is_empty() {
        return Some((file.to_owned(), place));
    }
    let mut parts: Vec<&str> = file.split('/').collect();
    parts.pop();
    for part in path.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => drop(parts.pop()),
            other => parts.push(other),
        }
    }
    Some((parts.join("/"), place))
}

fn link_fault(tree: &SourceTree, file: &str, target: &str) -> Option<String> {
    let (path, place) = resolve_link(file, target)?;
    let folder = format!("{path}/");
    match tree.text(&path) {
        Some(_) if place.is_empty() => None,
        Some(text) if path.ends_with(".md") && heading_anchors(text).iter().any(|anchor| anchor == place) => {
            None
        }
        Some(_) => Some(format!("a link to `{target}`, and {path} has no such heading")),
        None if tree.files().any(|(name, _)| name.starts_with(&folder)) => None,
        None => Some(format!("a link to `{target}`, and there is no {path}")),
    }
}

fn unlisted_pages(tree: &SourceTree) -> Vec<TidyFinding> {
    let Some(summary) = tree.text(SUMMARY) else { return Vec::new() };
    let listed: Vec<String> = find_links(summary)
        .into_iter()
        .filter_map(|link| resolve_link(SUMMARY, &summary[link.target]).map(|(path, _)| path))
        .collect();
    let pages = tree
        .files()
        .map(|(name, _)| name)
        .filter(|name| name.starts_with("docs/") && name.ends_with(".md") && *name != SUMMARY);
    let missing = pages.filter(|page| !listed.iter().any(|name| name == page));
    let finding = |page: &str| {
        TidyFinding::new(page, 1, "is not in the table of contents", "add it to docs/SUMMARY.md")
            .into_warning()
    };
    missing.map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find_all(files: &[(&str, &str)]) -> Vec<String> {
        check(&SourceTree::of(files)).iter().map(TidyFinding::to_string).collect()
    }

    #[test]
    fn broken_links_are_reported() {
        let page = "[a](b.md) [a](b.md#one) [a](../README.md) [a](../src) [a](https://example.com/x) [a](#here)\n# Here\n";
        let files =
            [("docs/x/a.md", page), ("docs/x/b.md", "## One"), ("docs/README.md", ""), ("docs/src/x.rs", "")];
        assert_eq!(find_all(&files), [""; 0]);
        let found = find_all(&[("a.md", "\n[a](b.md)\n[a](c.md#two) [a](#three)"), ("c.md", "# One")]);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].starts_with("a.md:2: a link to `b.md`, and there is no b.md"), "{}", found[0]);
        assert!(found[1].contains("c.md has no such heading") && found[2].contains("a.md has no such"));
    }

    #[test]
    fn pages_missing_from_the_table_of_contents_are_reported() {
        let files = [("docs/SUMMARY.md", "- [A](a.md)"), ("docs/a.md", ""), ("docs/b.md", ""), ("c.md", "")];
        let found = find_all(&files);
        assert_eq!(
            found,
            ["docs/b.md:1: warning: is not in the table of contents; add it to docs/SUMMARY.md"]
        );
    }
}
