//! The reference of all directives, as Markdown.

use crate::directive_table::{DirectiveTable, all_chapters};
use crate::shape::{DirectiveReference, TableReference};
use std::fmt::Write;

/// Returns the reference of a file whose top level is the table `R`, as Markdown.
#[must_use]
pub fn reference<R: DirectiveTable>(introduction: &str) -> String {
    let mut out = introduction.to_owned() + "\n";
    let chapters = all_chapters::<R>();
    for chapter in &chapters {
        write_contents(&mut out, chapter);
    }
    for chapter in chapters {
        write_chapter(&mut out, &chapter);
    }
    out
}

/// A line of the table of contents: the chapter, and the names in it.
fn write_contents(out: &mut String, chapter: &TableReference) {
    let place = capitalize(chapter.place);
    let is_kept = |letter: &char| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_');
    let anchor = place.to_lowercase().chars().filter(is_kept).collect::<String>().replace(' ', "-");
    let names: Vec<String> = chapter.directives.iter().map(|article| format!("`{}`", article.name)).collect();
    writeln!(out, "- [{place}](#{anchor}): {}", names.join(", ")).expect("a String takes everything");
}

fn write_chapter(out: &mut String, chapter: &TableReference) {
    let place = capitalize(chapter.place);
    write!(out, "\n## {place}\n\n{}\n", unindent(chapter.about)).expect("a String takes everything");
    for article in &chapter.directives {
        write_article(out, article);
    }
}

fn write_article(out: &mut String, article: &DirectiveReference) {
    let DirectiveReference { name, doc, default, absent, kind } = article;
    let default = match (*default, *absent) {
        ("required", _) => "Required.".to_owned(),
        ("absent", "") => "May be absent.".to_owned(),
        ("absent", meaning) => format!("Absent: {meaning}."),
        (toml, _) => format!("Default: `{toml}`."),
    };
    let takes = &kind.text;
    write!(out, "\n### `{name}`\n\n{}\n\nTakes {takes}. {default}\n", unindent(doc))
        .expect("a String takes everything");
}

fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}

/// The text of a documentation comment without the space at the start of each line.
pub(crate) fn unindent(doc: &str) -> String {
    let lines: Vec<&str> = doc.lines().map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
    lines.join("\n").trim().to_owned()
}
