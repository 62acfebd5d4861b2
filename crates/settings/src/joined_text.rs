//! The text of a configuration: the file and the files that it includes, one after another.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

use failure::Failure;

/// Separates the files. TOML cannot contain it.
const SEPARATOR: char = '\0';

/// Joins the file and those that it includes into one text, which `Config::parse` of the crate `config` reads.
#[must_use]
pub fn join_files(main: &str, included: &[(PathBuf, String)]) -> String {
    let mut text = main.to_owned();
    for (path, part) in included {
        text.push(SEPARATOR);
        // A line feed in the name must not start a new line of the file.
        text.push_str(&path.display().to_string().replace('\n', " "));
        text.push('\n');
        text.push_str(part);
    }
    text
}

/// The files in such a text, each with its content; the first one has no name there.
pub fn split_files(joined: &str) -> impl Iterator<Item = (Option<&str>, &str)> {
    joined.split(SEPARATOR).enumerate().map(|(index, part)| match part.split_once('\n') {
        Some((name, content)) if index > 0 => (Some(name), content),
        _ => (None, part),
    })
}

/// A line of a configuration. Displays as `line 12`, or `line 12 of sites/shop.toml`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigLine {
    /// The included file; `None` for that which includes the others.
    pub file: Option<String>,
    /// Counted from 1.
    pub number: u32,
}

impl fmt::Display for ConfigLine {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "line {}", self.number)?;
        self.file.iter().try_for_each(|file| write!(out, " of {file}"))
    }
}

/// Adds to an error which directive of which `table` (a file, a site, a route) it is about, and the line by which
/// that table is found.
#[must_use]
pub fn add_config_place(
    directive: &str,
    table: &str,
    line: Option<&ConfigLine>,
    error: io::Error,
) -> io::Error {
    let place = line.map_or(String::new(), |line| format!(" (the {table} in {line})"));
    let kind = error.kind();
    let failure = Failure::from(error).context(format_args!("`{directive}`{place}"));
    io::Error::new(
        kind,
        match line {
            Some(line) => failure.named_at(line.file.clone(), line.number),
            None => failure,
        },
    )
}

/// A file in the joined text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SourcePart {
    /// Path of the file as findings show it.
    pub(crate) name: String,
    /// Start of the source in the joined text, in bytes.
    pub(crate) start: usize,
    /// End of the source in the joined text, in bytes, exclusive.
    pub(crate) end: usize,
}

/// The joined text and its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinedText {
    /// The files, separated by NUL. The name of each included file and a line feed precede its content.
    pub(crate) text: String,
    files: Vec<SourcePart>,
}

impl JoinedText {
    /// `name` is that of the first file.
    pub(crate) fn new(name: &str, text: &str) -> Self {
        let mut files = Vec::new();
        let mut at = 0;
        for (index, part) in text.split(SEPARATOR).enumerate() {
            let (name, head_bytes) = match part.split_once('\n') {
                _ if index == 0 => (name, 0),
                Some((name, _)) => (name, name.len() + 1),
                None => (part, part.len()),
            };
            let end = at + part.len();
            files.push(SourcePart { name: name.to_owned(), start: at + head_bytes, end });
            at = end + SEPARATOR.len_utf8();
        }
        Self { text: text.to_owned(), files }
    }

    /// The files: first that which includes the others.
    pub(crate) fn files(&self) -> &[SourcePart] {
        &self.files
    }

    /// Returns the text of a place; `None` if it is none of this text.
    #[must_use]
    pub fn text_of(&self, place: &Range<usize>) -> Option<&str> {
        self.text.get(place.clone())
    }

    /// The file of this byte.
    pub(crate) fn file_at(&self, at: usize) -> &SourcePart {
        let after = self.files.partition_point(|file| file.start <= at);
        &self.files[after.saturating_sub(1)]
    }
}
