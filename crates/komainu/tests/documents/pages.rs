//! The pages and their code blocks.

use std::fs;
use std::path::Path;

/// A code block of a page.
pub(crate) struct Block {
    /// Second-level heading of the section that contains the block.
    pub(crate) section: String,
    pub(crate) language: String,
    pub(crate) text: String,
}

/// Root directory of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Text of a page, by its path relative to `docs`.
pub(crate) fn page(name: &str) -> String {
    fs::read_to_string(root().join("docs").join(name)).unwrap()
}

/// Names and texts of all pages, including the repository's README.md.
pub(crate) fn pages() -> Vec<(String, String)> {
    let mut pages = vec![("../README.md".to_owned(), page("../README.md"))];
    for folder in ["", "tasks", "from"] {
        for entry in fs::read_dir(root().join("docs").join(folder)).unwrap() {
            let name = Path::new(folder).join(entry.unwrap().file_name()).to_string_lossy().into_owned();
            if name.ends_with(".md") {
                pages.push((name.clone(), page(&name)));
            }
        }
    }
    pages.sort();
    pages
}

/// The code blocks of a page, in order.
pub(crate) fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut section = String::new();
    let mut open = None::<Block>;
    for line in page.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(language), None) => {
                let section = section.clone();
                let language = language.to_owned();
                open = Some(Block { section, language, text: String::new() });
            }
            (None, Some(block)) => block.text.extend([line, "\n"]),
            (None, None) => {
                if let Some(heading) = line.strip_prefix("## ") {
                    heading.clone_into(&mut section);
                }
            }
        }
    }
    blocks
}

/// The file name in the first line of a file: `# app.py`, `/* ok.c */`, `// server.js` or `<?php #
/// index.php`.
pub(crate) fn file_name(text: &str) -> Option<&str> {
    let first = text.lines().next()?;
    let mut words = first.strip_prefix("<?php ").unwrap_or(first).split_whitespace();
    let mark = words.next()?;
    let name = words.next()?;
    let is_last = words.next().is_none_or(|word| word == "*/");
    let is_name = name.contains('.') && !name.starts_with('/') && is_last;
    (matches!(mark, "#" | "//" | "/*") && is_name).then_some(name)
}

/// The commands of a block, without prompts and without the output shown.
pub(crate) fn commands(block: &Block) -> Vec<&str> {
    match block.language.as_str() {
        "sh" => block.text.lines().collect(),
        "console" => block.text.lines().filter_map(|line| line.strip_prefix("$ ")).collect(),
        _ => Vec::new(),
    }
}
