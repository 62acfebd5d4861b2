//! Generates the source of the book: the pages of `docs` and the main documents in one folder, with adapted
//! links.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use crate::markdown::find_links;
use crate::measure::Fallible;
use crate::messages;
use crate::tidy::links::resolve_link;
use crate::tidy::tree::SourceTree;

const SUMMARY_FILE: &str = "docs/SUMMARY.md";
/// Pages outside of `docs` that the book includes.
const MAIN_DOCUMENTS: [&str; 3] = ["ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"];
/// Folder of the book's configuration and styles.
const BOOK_FOLDER: &str = "docs/book/";
/// The generated page of messages, and the entry after which it is inserted in the table of contents.
const MESSAGES_ENTRY: (&str, &str) = ("messages.md", "(troubleshooting.md)\n");

/// Writes the book's source to `out`, from the repository at `root`.
pub(crate) fn write_book(root: &Path, out: &Path) -> Fallible<ExitCode> {
    let tree = SourceTree::read(root)?;
    for (name, text) in tree.files() {
        if let Some(page) = book_page_name(name) {
            write_file(&out.join("src").join(page), &adapt_links(&tree, name, text))?;
        } else if let Some(name) = name.strip_prefix(BOOK_FOLDER) {
            write_file(&out.join(name), text)?;
        }
    }
    let summary = tree.text(SUMMARY_FILE).ok_or("docs/SUMMARY.md is missing")?;
    let summary = adapt_links(&tree, SUMMARY_FILE, summary);
    let line = format!("{}- [Every message]({})\n", MESSAGES_ENTRY.1, MESSAGES_ENTRY.0);
    write_file(&out.join("src/SUMMARY.md"), &summary.replace(MESSAGES_ENTRY.1, &line))?;
    write_file(&out.join("src").join(MESSAGES_ENTRY.0), &messages::messages_page(&tree))?;
    Ok(ExitCode::SUCCESS)
}

fn write_file(file: &Path, text: &str) -> Fallible<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    Ok(fs::write(file, text)?)
}

/// Returns the name that a file of the repository has in the book, if it is a page of it.
fn book_page_name(name: &str) -> Option<&str> {
    let page = name.strip_prefix("docs/").or_else(|| MAIN_DOCUMENTS.contains(&name).then_some(name))?;
    page.ends_with(".md").then_some(page)
}

/// Returns a page with its links adapted to the book; links to files outside the book are replaced by their
/// text.
fn adapt_links(tree: &SourceTree, name: &str, text: &str) -> String {
    let depth = book_page_name(name).map_or(0, |page| page.matches('/').count());
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    for link in find_links(text) {
        let Some((path, place)) = resolve_link(name, &text[link.target.clone()]) else { continue };
        // An image inside a link, or a link inside a link's text, stays as it is.
        if link.text.start <= at && at > 0 {
            continue;
        }
        out.push_str(&text[at..link.text.start - 1]);
        let shown = &text[link.text.clone()];
        match book_page_name(&path).filter(|_| tree.text(&path).is_some()) {
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
    fn links_are_adapted_to_the_book_or_removed() {
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
            adapt_links(&tree, "docs/tasks/a.md", text),
            "[a](../php.md#x) [b](../CHANGELOG.md) c [d](https://e) [f](../tasks/rails.md)\n"
        );
        assert_eq!(adapt_links(&tree, "CHANGELOG.md", "[a](docs/php.md)"), "[a](php.md)");
    }
}
