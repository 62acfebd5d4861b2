//! Reader of nginx's configuration, including the files that it includes.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::lexer::{NginxToken, NginxTokenAtLine, tokenize};
use crate::findings::{EntryIndex, ImportError, ImportLedger, Outcome};

/// Maximum size of a file in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Maximum number of files in one configuration.
const FILES_MAX: usize = 1000;
/// Maximum nesting depth of includes and of blocks.
const DEPTH_MAX: usize = 32;
/// Maximum number of directives in all files.
const DIRECTIVES_MAX: usize = 100_000;

/// A directive of nginx.
#[derive(Debug, Clone)]
pub(crate) struct NginxDirective {
    pub(crate) entry: EntryIndex,
    pub(crate) name: String,
    pub(crate) args: Vec<String>,
    /// Directives between the braces; `None` if the directive ends with a semicolon.
    pub(crate) block: Option<Vec<NginxDirective>>,
}

impl NginxDirective {
    /// Returns the first argument, or an empty text.
    pub(crate) fn first_arg(&self) -> &str {
        self.arg_at(0)
    }

    /// Returns an argument, or an empty text.
    pub(crate) fn arg_at(&self, at: usize) -> &str {
        self.args.get(at).map_or("", String::as_str)
    }

    /// Returns the directives of the block; empty without a block.
    pub(crate) fn block_directives(&self) -> &[NginxDirective] {
        self.block.as_deref().unwrap_or(&[])
    }
}

/// Whether a block contains data instead of directives. Its lines are reported with the block.
pub(super) fn is_data_block(name: &str) -> bool {
    matches!(name, "map" | "geo" | "types" | "split_clients" | "charset_map" | "match")
        || name.ends_with("_by_lua_block")
}

/// Whether a file belongs to nginx's distribution or to certbot. Komainu does not need such files, which may
/// be missing.
fn is_distribution_file(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
    matches!(
        name,
        "mime.types"
            | "fastcgi_params"
            | "fastcgi.conf"
            | "uwsgi_params"
            | "scgi_params"
            | "fastcgi-php.conf"
            // TLS settings, written by certbot.
            | "options-ssl-nginx.conf"
    )
}

/// Reads files and enters each directive in the report.
pub(crate) struct TreeReader<'a> {
    ledger: &'a ImportLedger,
    /// Directory against which relative names are resolved.
    prefix: PathBuf,
    /// Directory that is omitted from file names in messages.
    display_root: PathBuf,
    open_files: Vec<PathBuf>,
    file_count: usize,
    directive_count: usize,
}

impl<'a> TreeReader<'a> {
    /// Creates a reader for the file `main`, whose relative names are resolved against `prefix`.
    pub(crate) fn new(ledger: &'a ImportLedger, main: &Path, prefix: &Path) -> Self {
        let shown_below = main.parent().unwrap_or(Path::new("")).to_owned();
        Self {
            ledger,
            prefix: prefix.to_owned(),
            display_root: shown_below,
            open_files: Vec::new(),
            file_count: 0,
            directive_count: 0,
        }
    }

    /// Reads a file and the files that it includes.
    ///
    /// # Errors
    /// A file cannot be read, is too long, includes itself, or is not a configuration of nginx.
    pub(crate) fn read(&mut self, path: &Path) -> Result<Vec<NginxDirective>, ImportError> {
        let shown = path.strip_prefix(&self.display_root).unwrap_or(path).display().to_string();
        let fault = |message: String| ImportError::new(&shown, 0, message);
        let canonical = path.canonicalize().map_err(|error| fault(error.to_string()))?;
        if self.open_files.contains(&canonical) {
            return Err(fault("this file includes itself".to_owned()));
        }
        self.file_count += 1;
        if self.file_count > FILES_MAX || self.open_files.len() >= DEPTH_MAX {
            return Err(fault(format!(
                "more than {FILES_MAX} files are included, or {DEPTH_MAX} by each other"
            )));
        }
        let text = read_text(path).map_err(|error| fault(error.to_string()))?;
        let mut tokens = tokenize(&shown, &text)?.into_iter();
        self.open_files.push(canonical);
        let found = self.read_block(&shown, &mut tokens, None, 0)?;
        self.open_files.pop();
        Ok(found)
    }

    fn read_block(
        &mut self,
        file: &str,
        tokens: &mut std::vec::IntoIter<NginxTokenAtLine>,
        opened: Option<usize>,
        depth: usize,
    ) -> Result<Vec<NginxDirective>, ImportError> {
        let mut found = Vec::new();
        let mut words: Vec<String> = Vec::new();
        let mut first_line = 0;
        let mut last_line = 0;
        if depth > DEPTH_MAX {
            return Err(ImportError::new(file, opened.unwrap_or(0), "blocks are nested too deeply"));
        }
        while let Some(NginxTokenAtLine { token, line }) = tokens.next() {
            last_line = line;
            match token {
                NginxToken::Word(word) => {
                    first_line = if words.is_empty() { line } else { first_line };
                    words.push(word);
                }
                NginxToken::Close => {
                    return match (words.is_empty(), opened) {
                        (true, Some(_)) => Ok(found),
                        (false, _) => Err(ImportError::new(file, line, "a `;` is missing before `}`")),
                        (true, None) => Err(ImportError::new(file, line, "this `}` closes nothing")),
                    };
                }
                NginxToken::End | NginxToken::Open if words.is_empty() => {
                    return Err(ImportError::new(file, line, "a directive's name is missing here"));
                }
                NginxToken::End => {
                    let words = std::mem::take(&mut words);
                    self.read_directive(file, first_line, words, &mut found)?;
                }
                NginxToken::Open => {
                    let mut one = self.enter_directive(file, first_line, std::mem::take(&mut words), true)?;
                    one.block = Some(if is_data_block(&one.name) {
                        read_data(file, tokens, line)?
                    } else {
                        self.read_block(file, tokens, Some(line), depth + 1)?
                    });
                    found.push(one);
                }
            }
        }
        match (opened, words.is_empty()) {
            (Some(line), _) => Err(ImportError::new(file, line, "this `{` is not closed")),
            (None, false) => Err(ImportError::new(file, last_line, "a `;` is missing at the end")),
            (None, true) => Ok(found),
        }
    }

    fn enter_directive(
        &mut self,
        file: &str,
        line: usize,
        mut words: Vec<String>,
        is_block: bool,
    ) -> Result<NginxDirective, ImportError> {
        self.directive_count += 1;
        if self.directive_count > DIRECTIVES_MAX {
            return Err(ImportError::new(file, line, format!("more than {DIRECTIVES_MAX} directives")));
        }
        let shown = format!("{}{}", words.join(" "), if is_block { " { }" } else { "" });
        let entry = self.ledger.add_entry(file, line, &shown);
        let name = words.remove(0);
        let args = if name == "location" && words.len() == 1 { split_operator(words) } else { words };
        Ok(NginxDirective { entry, name, args, block: None })
    }

    fn read_directive(
        &mut self,
        file: &str,
        line: usize,
        words: Vec<String>,
        found: &mut Vec<NginxDirective>,
    ) -> Result<(), ImportError> {
        let one = self.enter_directive(file, line, words, false)?;
        if one.name != "include" {
            found.push(one);
            return Ok(());
        }
        let pattern = self.prefix.join(one.first_arg());
        let has_stars = one.first_arg().contains(['*', '?', '[']);
        let mut paths: Vec<PathBuf> = if has_stars {
            glob::glob(&pattern.to_string_lossy())
                .map_err(|error| ImportError::new(file, line, error.to_string()))?
                .filter_map(Result::ok)
                .take(FILES_MAX + 1)
                .collect()
        } else {
            vec![pattern.clone()]
        };
        paths.sort();
        match () {
            () if is_distribution_file(&pattern) => {
                let reason = "not needed: Komainu knows media types, and runs applications by itself";
                self.ledger.enter(one.entry, &Outcome::not_needed(reason));
                found.push(one);
                return Ok(());
            }
            () if !has_stars && !pattern.exists() => {
                let reason = "there is no such file, so what stands in it is missing here";
                self.ledger.enter(one.entry, &Outcome::not_possible(reason));
                found.push(one);
                return Ok(());
            }
            () if paths.is_empty() => self.ledger.enter(one.entry, &Outcome::not_needed("no file matches")),
            () => self.ledger.enter(one.entry, &Outcome::TRANSLATED),
        }
        for path in paths {
            let inner = self.read(&path).map_err(|error| match error.line {
                0 => ImportError::new(file, line, error.to_string()),
                _ => error,
            })?;
            found.extend(inner);
        }
        Ok(())
    }
}

/// Splits the operator of a `location` from its path: nginx requires no space between them.
fn split_operator(words: Vec<String>) -> Vec<String> {
    let found = ["^~", "~*", "~", "="].iter().find_map(|operator| {
        let path = words.first()?.strip_prefix(operator)?;
        Some(vec![(*operator).to_owned(), path.to_owned()])
    });
    found.unwrap_or(words)
}

/// Reads the lines of a data block: words up to each `;`.
fn read_data(
    file: &str,
    tokens: &mut std::vec::IntoIter<NginxTokenAtLine>,
    opened: usize,
) -> Result<Vec<NginxDirective>, ImportError> {
    let mut found = Vec::new();
    let mut words: Vec<String> = Vec::new();
    for NginxTokenAtLine { token, line } in tokens {
        match token {
            NginxToken::Word(word) => words.push(word),
            NginxToken::End if !words.is_empty() => {
                let name = words.remove(0);
                found.push(NginxDirective {
                    entry: EntryIndex::MAX,
                    name,
                    args: std::mem::take(&mut words),
                    block: None,
                });
            }
            NginxToken::End => {}
            NginxToken::Close => return Ok(found),
            NginxToken::Open => return Err(ImportError::new(file, line, "a block does not belong here")),
        }
    }
    Err(ImportError::new(file, opened, "this `{` is not closed"))
}

/// Reads a file; invalid UTF-8 is replaced.
///
/// # Errors
/// The file cannot be read or is too long.
pub(super) fn read_text(path: &Path) -> std::io::Result<String> {
    use std::io::Read;
    let file = crate::data::open_file(path)?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        Err(std::io::Error::other(format!("longer than {} MiB", FILE_BYTES_MAX >> 20)))
    } else {
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Calls `each` for all directives, including those in blocks except data blocks.
pub(crate) fn visit<'d>(directives: &'d [NginxDirective], callback: &mut dyn FnMut(&'d NginxDirective)) {
    for one in directives {
        callback(one);
        if !is_data_block(&one.name) {
            visit(one.block_directives(), callback);
        }
    }
}

/// Returns `names` without duplicates.
pub(crate) fn unique(names: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut seen = HashSet::new();
    names.into_iter().filter(|name| seen.insert(name.clone())).collect()
}
