//! Values of JSON and YAML with their line numbers.

use crate::findings::{EntryNumber, ImportError, ImportLedger};

/// Maximum nesting depth of values.
pub(crate) const DEPTH_MAX: usize = 64;
/// Maximum number of values in one file.
pub(crate) const VALUES_MAX: usize = 200_000;

/// Maximum number of comments above one route.
const OPEN_ENDS_MAX: usize = 8;

/// A value of JSON or YAML.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Datum {
    Null,
    Flag(bool),
    Number(String),
    Text(String),
    List(Vec<DatumAt>),
    Table(Vec<(String, DatumAt)>),
}

/// A value and its line number.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DatumAt {
    pub(crate) line: usize,
    pub(crate) datum: Datum,
    /// Number of the value in the report; `None` for tables and lists of tables, whose members have entries
    /// of their own.
    pub(crate) entry: Option<EntryNumber>,
}

impl DatumAt {
    pub(crate) fn new(line: usize, datum: Datum) -> Self {
        Self { line, datum, entry: None }
    }

    /// Returns the value of this key if the value is a table that has it.
    pub(crate) fn get(&self, key: &str) -> Option<&DatumAt> {
        self.entries().iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// Returns the value at this path of keys.
    pub(crate) fn at(&self, path: &[&str]) -> Option<&DatumAt> {
        path.iter().try_fold(self, |value, key| value.get(key))
    }

    pub(crate) fn entries(&self) -> &[(String, DatumAt)] {
        match &self.datum {
            Datum::Table(entries) => entries,
            _ => &[],
        }
    }

    pub(crate) fn items(&self) -> &[DatumAt] {
        match &self.datum {
            Datum::List(items) => items,
            _ => &[],
        }
    }

    /// The items of a list, or the value itself.
    pub(crate) fn each(&self) -> Vec<&DatumAt> {
        match &self.datum {
            Datum::List(items) => items.iter().collect(),
            _ => vec![self],
        }
    }

    /// Returns a text, or a number as it was written.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.datum {
            Datum::Text(text) | Datum::Number(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the texts of a list, or the single text.
    pub(crate) fn texts(&self) -> Vec<String> {
        self.each().into_iter().filter_map(|one| one.text().map(str::to_owned)).collect()
    }

    pub(crate) fn number(&self) -> Option<u64> {
        self.text()?.parse().ok()
    }

    pub(crate) fn flag(&self) -> Option<bool> {
        match (&self.datum, self.text()) {
            (Datum::Flag(flag), _) => Some(*flag),
            (_, Some("true")) => Some(true),
            (_, Some("false")) => Some(false),
            _ => None,
        }
    }

    /// Enters each value in the report under the path that leads to it.
    pub(crate) fn enter(&mut self, ledger: &ImportLedger, file: &str, path: &str) {
        let line = self.line;
        match &mut self.datum {
            Datum::Table(entries) if !entries.is_empty() => {
                for (key, value) in entries {
                    let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    value.enter(ledger, file, &path);
                }
            }
            Datum::List(items)
                if items.iter().any(|item| matches!(item.datum, Datum::Table(_) | Datum::List(_))) =>
            {
                for (at, item) in items.iter_mut().enumerate() {
                    item.enter(ledger, file, &format!("{path}[{at}]"));
                }
            }
            datum => {
                let shown = format!("{path} = {}", shown(datum));
                self.entry = Some(ledger.enter(file, line, &shown));
            }
        }
    }

    fn numbers(&self, found: &mut Vec<EntryNumber>) {
        found.extend(self.entry);
        match &self.datum {
            Datum::List(items) => items.iter().for_each(|item| item.numbers(found)),
            Datum::Table(entries) => entries.iter().for_each(|(_, value)| value.numbers(found)),
            _ => {}
        }
    }

    /// Comments above a route for the values within this one that cannot be translated.
    pub(crate) fn open_ends(&self, ledger: &ImportLedger) -> Vec<String> {
        let mut all = Vec::new();
        self.numbers(&mut all);
        all.into_iter().filter_map(|entry| ledger.open_end(entry)).take(OPEN_ENDS_MAX).collect()
    }

    /// Marks all values within this one as translated.
    pub(crate) fn translated(&self, ledger: &ImportLedger) {
        self.needless(ledger, "");
    }

    /// Marks all values within this one as not needed.
    pub(crate) fn needless(&self, ledger: &ImportLedger, reason: &str) {
        let mut all = Vec::new();
        self.numbers(&mut all);
        all.into_iter().for_each(|entry| ledger.needless(entry, reason));
    }

    /// Marks all values within this one as translated with a difference.
    pub(crate) fn differs(&self, ledger: &ImportLedger, reason: &str) {
        let mut all = Vec::new();
        self.numbers(&mut all);
        all.into_iter().for_each(|entry| ledger.differs(entry, reason));
    }

    /// Marks all values within this one that have no verdict as not possible.
    pub(crate) fn impossible(&self, ledger: &ImportLedger, reason: &str) {
        let mut all = Vec::new();
        self.numbers(&mut all);
        all.into_iter()
            .filter(|entry| !ledger.is_marked(*entry))
            .for_each(|entry| ledger.impossible(entry, reason));
    }
}

fn shown(datum: &Datum) -> String {
    match datum {
        Datum::Null => "null".to_owned(),
        Datum::Flag(flag) => flag.to_string(),
        Datum::Number(text) => text.clone(),
        Datum::Text(text) => format!("\"{text}\""),
        Datum::List(items) => {
            let all: Vec<String> = items.iter().map(|item| shown(&item.datum)).collect();
            format!("[{}]", all.join(", "))
        }
        Datum::Table(_) => "{}".to_owned(),
    }
}

struct JsonReader<'a> {
    file: &'a str,
    text: &'a str,
    at: usize,
    line: usize,
    values: usize,
}

/// Parses JSON; comments are allowed as in Unit.
///
/// # Errors
/// The text is not JSON, is nested too deeply, or has too many values.
pub(crate) fn json(file: &str, text: &str) -> Result<DatumAt, ImportError> {
    let mut reader =
        JsonReader { file, text: text.trim_start_matches('\u{feff}'), at: 0, line: 1, values: 0 };
    let value = reader.value(0)?;
    reader.space();
    match reader.peek() {
        Some(_) => Err(reader.fault("something follows the value")),
        None => Ok(value),
    }
}

impl JsonReader<'_> {
    fn fault(&self, message: &str) -> ImportError {
        ImportError::new(self.file, self.line, format!("this is not JSON: {message}"))
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn take(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        self.line += usize::from(c == '\n');
        Some(c)
    }

    fn space(&mut self) {
        loop {
            let rest = &self.text[self.at..];
            match self.peek() {
                Some(' ' | '\t' | '\r' | '\n') => drop(self.take()),
                Some('/') if rest.starts_with("//") => {
                    while self.peek().is_some_and(|c| c != '\n') {
                        self.take();
                    }
                }
                Some('/') if rest.starts_with("/*") => {
                    let end = rest.find("*/").map_or(rest.len(), |end| end + 2);
                    self.line += rest[..end].matches('\n').count();
                    self.at += end;
                }
                _ => return,
            }
        }
    }

    fn value(&mut self, depth: usize) -> Result<DatumAt, ImportError> {
        self.space();
        self.values += 1;
        if depth > DEPTH_MAX || self.values > VALUES_MAX {
            return Err(self.fault("it is nested too deeply, or has too many values"));
        }
        let line = self.line;
        let datum = match self.peek() {
            Some('{') => self.table(depth)?,
            Some('[') => self.list(depth)?,
            Some('"') => Datum::Text(self.string()?),
            _ => self.word()?,
        };
        Ok(DatumAt::new(line, datum))
    }

    fn table(&mut self, depth: usize) -> Result<Datum, ImportError> {
        self.take();
        let mut entries: Vec<(String, DatumAt)> = Vec::new();
        loop {
            self.space();
            match self.peek() {
                Some('}') if entries.is_empty() => break,
                Some('"') => {}
                _ => return Err(self.fault("a key is missing")),
            }
            let key = self.string()?;
            self.space();
            if self.take() != Some(':') {
                return Err(self.fault("a `:` is missing"));
            }
            if entries.iter().any(|(known, _)| *known == key) {
                return Err(self.fault(&format!("{key:?} stands twice in a table")));
            }
            entries.push((key, self.value(depth + 1)?));
            self.space();
            match self.peek() {
                Some(',') => drop(self.take()),
                Some('}') => break,
                _ => return Err(self.fault("a `,` or `}` is missing")),
            }
        }
        self.take();
        Ok(Datum::Table(entries))
    }

    fn list(&mut self, depth: usize) -> Result<Datum, ImportError> {
        self.take();
        let mut items = Vec::new();
        loop {
            self.space();
            if self.peek() == Some(']') && items.is_empty() {
                break;
            }
            items.push(self.value(depth + 1)?);
            self.space();
            match self.peek() {
                Some(',') => drop(self.take()),
                Some(']') => break,
                _ => return Err(self.fault("a `,` or `]` is missing")),
            }
        }
        self.take();
        Ok(Datum::List(items))
    }

    fn word(&mut self) -> Result<Datum, ImportError> {
        let rest = &self.text[self.at..];
        let end = rest
            .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.')))
            .unwrap_or(rest.len());
        let word = &rest[..end];
        let datum = match word {
            "null" => Datum::Null,
            "true" => Datum::Flag(true),
            "false" => Datum::Flag(false),
            _ if word.parse::<f64>().is_ok() => Datum::Number(word.to_owned()),
            _ => return Err(self.fault("a value is missing")),
        };
        self.at += end;
        Ok(datum)
    }

    fn string(&mut self) -> Result<String, ImportError> {
        self.take();
        let mut out = String::new();
        loop {
            match self.take() {
                None | Some('\n') => return Err(self.fault("a quote is not closed")),
                Some('"') => return Ok(out),
                Some('\\') => match self.take() {
                    Some('n') => out.push('\n'),
                    Some('t') => out.push('\t'),
                    Some('r') => out.push('\r'),
                    Some('b') => out.push('\u{8}'),
                    Some('f') => out.push('\u{c}'),
                    Some('u') => out.push(self.unit()?),
                    Some(c @ ('"' | '\\' | '/')) => out.push(c),
                    _ => return Err(self.fault("an escape is not known")),
                },
                Some(c) => out.push(c),
            }
        }
    }

    fn hex(&mut self) -> Result<u32, ImportError> {
        let digits =
            self.text.get(self.at..self.at + 4).and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let found = digits.ok_or_else(|| self.fault("four hexadecimal digits are missing"))?;
        self.at += 4;
        Ok(found)
    }

    fn unit(&mut self) -> Result<char, ImportError> {
        let first = self.hex()?;
        let code = match first {
            0xD800..0xDC00 if self.text[self.at..].starts_with("\\u") => {
                self.at += 2;
                let second = self.hex()?;
                0x10000 + ((first - 0xD800) << 10) + (second.wrapping_sub(0xDC00) & 0x3FF)
            }
            code => code,
        };
        char::from_u32(code).ok_or_else(|| self.fault("a surrogate stands alone"))
    }
}

/// Maximum size of a file in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// `O_NONBLOCK` of `open(2)`, which has this value on all supported architectures of Linux.
const O_NONBLOCK: i32 = 0o4000;

/// Opens a file for reading, without blocking on a FIFO that has no writer.
///
/// # Errors
/// The file cannot be opened or is not a regular file.
pub fn open(path: &std::path::Path) -> Result<std::fs::File, String> {
    use std::os::unix::fs::OpenOptionsExt;
    let opened = std::fs::OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path);
    let file = opened.map_err(|error| error.to_string())?;
    match file.metadata().map_err(|error| error.to_string())?.is_file() {
        true => Ok(file),
        false => Err("this is not a regular file: write its content into one first".to_owned()),
    }
}

/// Reads a file; returns its name without the directory, and its text.
///
/// # Errors
/// The file cannot be read, is too long, or is not UTF-8.
pub(crate) fn read(path: &std::path::Path) -> Result<(String, String), ImportError> {
    use std::io::Read;
    let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let fault = |message: String| ImportError::new(&name, 0, message);
    let file = open(path).map_err(fault)?;
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| fault(error.to_string()))?;
    match text.len() as u64 > FILE_BYTES_MAX {
        true => Err(fault(format!("longer than {} MiB", FILE_BYTES_MAX >> 20))),
        false => Ok((name, text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_read_with_lines() {
        let value = json(
            "f",
            "{\n \"a\": [1, true, null], // x\n /* y\n */ \"b\": {\"c\": \"\\u00e9\\ud83d\\ude00\\n\"}\n}",
        )
        .unwrap();
        assert_eq!(value.get("a").unwrap().items().len(), 3);
        let text = value.at(&["b", "c"]).unwrap();
        assert_eq!((text.text(), text.line), (Some("é😀\n"), 4));
    }

    #[test]
    fn what_is_no_json_is_refused() {
        let deep = "[".repeat(100_000);
        for wrong in [
            "",
            "{",
            "[1",
            "{\"a\"}",
            "{\"a\":1,}",
            "[1,]",
            "{} x",
            "\"a",
            "\"\\q\"",
            "\"\\ud800\"",
            "01x",
            "{\"a\":1,\"a\":2}",
            &deep,
        ] {
            assert!(json("f", wrong).is_err(), "{}", &wrong[..wrong.len().min(20)]);
        }
    }
}
