//! Generates the source of the book: the pages of `docs` and the main documents in one folder, with adapted
//! links.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use crate::markdown::links;
use crate::measure::Fallible;
use crate::messages;
use crate::tidy::links::resolved;
use crate::tidy::tree::SourceTree;

const SUMMARY: &str = "docs/SUMMARY.md";
/// Pages outside of `docs` that the book includes.
const MAIN_DOCUMENTS: [&str; 3] = ["ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"];
/// Folder of the book's configuration and styles.
const BOOK: &str = "docs/book/";
/// The generated page of messages, and the entry after which it is inserted in the table of contents.
const MESSAGES: (&str, &str) = ("messages.md", "(troubleshooting.md)\n");

/// Writes the book's source to `out`, from the repository at `root`.
pub(crate) fn write(root: &Path, out: &Path) -> Fallible<ExitCode> {
    let tree = SourceTree::read(root)?;
    for (name, text) in tree.files() {
        if let Some(page) = page_name(name) {
            put(&out.join("src").join(page), &with_links_of_the_book(&tree, name, text))?;
        } else if let Some(name) = name.strip_prefix(BOOK) {
            put(&out.join(name), text)?;
        }
    }
    let summary = tree.text(SUMMARY).ok_or("docs/SUMMARY.md is missing")?;
    let summary = with_links_of_the_book(&tree, SUMMARY, summary);
    let line = format!("{}- [Every message]({})\n", MESSAGES.1, MESSAGES.0);
    put(&out.join("src/SUMMARY.md"), &summary.replace(MESSAGES.1, &line))?;
    put(&out.join("src").join(MESSAGES.0), &messages::page(&tree))?;
    Ok(ExitCode::SUCCESS)
}

fn put(file: &Path, text: &str) -> Fallible<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    Ok(fs::write(file, text)?)
}

/// Returns the name that a file of the repository has in the book, if it is a page of it.
fn page_name(name: &str) -> Option<&str> {
    let page = name.strip_prefix("docs/").or_else(|| MAIN_DOCUMENTS.contains(&name).then_some(name))?;
    page.ends_with(".md").then_some(page)
}

/// Returns a page with its links adapted to the book; links to files outside the book are replaced by their
/// text.
fn with_links_of_the_book(tree: &SourceTree, name: &str, text: &str) -> String {
    let depth = page_name(name).map_or(0, |page| page.matches('/').count());
    let (mut out, mut at) = (String::with_capacity(text.len()), 0);
    for link in links(text) {
        let Some((path, place)) = resolved(name, &text[link.target.clone()]) else { continue };
        // An image inside a link, or a link inside a link's text, stays as it is.
        if link.text.start <= at && at > 0 {
            continue;
        }
        out.push_str(&text[at..link.text.start - 1]);
        let shown = &text[link.text.clone()];
        match page_name(&path).filter(|_| tree.text(&path).is_some()) {
            Some(page) => {
                let place = if place.is_empty() { String::new() } else { format!("#{place}") };
                out.extend(["[", shown, "](", &"../".repeat(depth), page, &place, ")"]);
            }
            None => out.push_str(shown),
        }
        at = link.target.end + 1;
    }
    out + &text[at..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_pages_of_the_book_or_nowhere() {
        let text =
            "[a](../php.md#x) [b](../../CHANGELOG.md) [c](../../workers/x.h) [d](https://e) [f](rails.md)\n";
        let tree = SourceTree::of(&[
            ("docs/tasks/a.md", text),
            ("docs/tasks/rails.md", ""),
            ("docs/php.md", ""),
            ("CHANGELOG.md", ""),
            ("workers/x.h", ""),
        ]);
        assert_eq!(
            with_links_of_the_book(&tree, "docs/tasks/a.md", text),
            "[a](../php.md#x) [b](../CHANGELOG.md) c [d](https://e) [f](../tasks/rails.md)\n"
        );
        assert_eq!(with_links_of_the_book(&tree, "CHANGELOG.md", "[a](docs/php.md)"), "[a](php.md)");
    }
}
