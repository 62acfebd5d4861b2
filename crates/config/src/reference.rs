//! The reference of all directives, as Markdown.

use crate::directive_table::all_chapters;
use crate::server::Config;
use crate::shape::{DirectiveReference, TableReference};
use std::fmt::Write;

const INTRODUCTION: &str = "\
# Configuration

The configuration is one TOML file. Every directive has a default, so the file may be empty. Sizes and durations are strings
with a unit: `\"16KiB\"` (B, KiB, MiB, GiB, TiB), `\"1m30s\"` (ms, s, m, h, d). Relative paths are relative to the file's folder.
`komainu check -c FILE` shows the errors of a file and their places; `komainu schema` prints a JSON Schema for editors.

This page is generated from the directives themselves. Its chapters, each with its directives in their order:
";

/// The reference, the text of `docs/configuration.md`.
pub fn reference() -> String {
    let mut out = INTRODUCTION.to_owned() + "\n";
    let chapters = all_chapters::<Config>();
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
