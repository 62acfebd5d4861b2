//! Values of JSON and YAML with their line numbers.

use crate::findings::{EntryIndex, ImportError, ImportLedger};

/// Maximum nesting depth of values.
pub(crate) const VALUE_DEPTH_MAX: usize = 64;
/// Maximum number of values in one file.
pub(crate) const VALUES_MAX: usize = 200_000;

/// Maximum number of comments above one route.
const MANUAL_COMMENTS_MAX: usize = 8;

/// A value of JSON or YAML.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum DataValue {
    Null,
    Flag(bool),
    Number(String),
    Text(String),
    List(Vec<DataNode>),
    Table(Vec<(String, DataNode)>),
}

/// A value and its line number.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DataNode {
    pub(crate) line: usize,
    pub(crate) value: DataValue,
    /// Number of the value in the report; `None` for tables and lists of tables, whose members have entries
    /// of their own.
    pub(crate) entry: Option<EntryIndex>,
}

impl DataNode {
    pub(crate) fn new(line: usize, datum: DataValue) -> Self {
        Self { line, value: datum, entry: None }
    }

    /// Returns the value of this key if the value is a table that has it.
    pub(crate) fn get(&self, key: &str) -> Option<&DataNode> {
        self.entries().iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// Returns the value at this path of keys.
    pub(crate) fn at(&self, path: &[&str]) -> Option<&DataNode> {
        path.iter().try_fold(self, |value, key| value.get(key))
    }

    pub(crate) fn entries(&self) -> &[(String, DataNode)] {
        match &self.value {
            DataValue::Table(entries) => entries,
            _ => &[],
        }
    }

    pub(crate) fn items(&self) -> &[DataNode] {
        match &self.value {
            DataValue::List(items) => items,
            _ => &[],
        }
    }

    /// The items of a list, or the value itself.
    pub(crate) fn items_or_self(&self) -> Vec<&DataNode> {
        match &self.value {
            DataValue::List(items) => items.iter().collect(),
            _ => vec![self],
        }
    }

    /// Returns a text, or a number as it was written.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            DataValue::Text(text) | DataValue::Number(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the texts of a list, or the single text.
    pub(crate) fn texts(&self) -> Vec<String> {
        self.items_or_self().into_iter().filter_map(|one| one.text().map(str::to_owned)).collect()
    }

    pub(crate) fn number(&self) -> Option<u64> {
        self.text()?.parse().ok()
    }

    pub(crate) fn flag(&self) -> Option<bool> {
        match (&self.value, self.text()) {
            (DataValue::Flag(flag), _) => Some(*flag),
            (_, Some("true")) => Some(true),
            (_, Some("false")) => Some(false),
            _ => None,
        }
    }

    /// Enters each value in the report under the path that leads to it.
    pub(crate) fn enter_in_ledger(&mut self, ledger: &ImportLedger, file: &str, path: &str) {
        let line = self.line;
        match &mut self.value {
            DataValue::Table(entries) if !entries.is_empty() => {
                for (key, value) in entries {
                    let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    value.enter_in_ledger(ledger, file, &path);
                }
            }
            DataValue::List(items)
                if items
                    .iter()
                    .any(|item| matches!(item.value, DataValue::Table(_) | DataValue::List(_))) =>
            {
                for (at, item) in items.iter_mut().enumerate() {
                    item.enter_in_ledger(ledger, file, &format!("{path}[{at}]"));
                }
            }
            datum => {
                let shown = format!("{path} = {}", format_value(datum));
                self.entry = Some(ledger.add_entry(file, line, &shown));
            }
        }
    }

    fn collect_entries(&self, found: &mut Vec<EntryIndex>) {
        found.extend(self.entry);
        match &self.value {
            DataValue::List(items) => items.iter().for_each(|item| item.collect_entries(found)),
            DataValue::Table(entries) => entries.iter().for_each(|(_, value)| value.collect_entries(found)),
            _ => {}
        }
    }

    /// Comments above a route for the values within this one that cannot be translated.
    pub(crate) fn manual_comments(&self, ledger: &ImportLedger) -> Vec<String> {
        let mut all = Vec::new();
        self.collect_entries(&mut all);
        all.into_iter().filter_map(|entry| ledger.manual_comment(entry)).take(MANUAL_COMMENTS_MAX).collect()
    }

    /// Marks all values within this one as translated.
    pub(crate) fn mark_translated(&self, ledger: &ImportLedger) {
        self.mark_not_needed(ledger, "");
    }

    /// Marks all values within this one as not needed.
    pub(crate) fn mark_not_needed(&self, ledger: &ImportLedger, reason: &str) {
        let mut all = Vec::new();
        self.collect_entries(&mut all);
        all.into_iter().for_each(|entry| ledger.mark_not_needed(entry, reason));
    }

    /// Marks all values within this one as translated with a difference.
    pub(crate) fn mark_different(&self, ledger: &ImportLedger, reason: &str) {
        let mut all = Vec::new();
        self.collect_entries(&mut all);
        all.into_iter().for_each(|entry| ledger.mark_different(entry, reason));
    }

    /// Marks all values within this one that have no verdict as not possible.
    pub(crate) fn mark_impossible(&self, ledger: &ImportLedger, reason: &str) {
        let mut all = Vec::new();
        self.collect_entries(&mut all);
        all.into_iter()
            .filter(|entry| !ledger.is_marked(*entry))
            .for_each(|entry| ledger.mark_impossible(entry, reason));
    }
}

fn format_value(datum: &DataValue) -> String {
    match datum {
        DataValue::Null => "null".to_owned(),
        DataValue::Flag(flag) => flag.to_string(),
        DataValue::Number(text) => text.clone(),
        DataValue::Text(text) => format!("\"{text}\""),
        DataValue::List(items) => {
            let all: Vec<String> = items.iter().map(|item| format_value(&item.value)).collect();
            format!("[{}]", all.join(", "))
        }
        DataValue::Table(_) => "{}".to_owned(),
    }
}

struct JsonReader<'a> {
    file: &'a str,
    text: &'a str,
    position: usize,
    line: usize,
    values: usize,
}

/// Parses JSON; comments are allowed as in Unit.
///
/// # Errors
/// The text is not JSON, is nested too deeply, or has too many values.
pub(crate) fn parse_json(file: &str, text: &str) -> Result<DataNode, ImportError> {
    let mut reader =
        JsonReader { file, text: text.trim_start_matches('\u{feff}'), position: 0, line: 1, values: 0 };
    let value = reader.parse_value(0)?;
    reader.skip_space();
    match reader.peek() {
        Some(_) => Err(reader.error("something follows the value")),
        None => Ok(value),
    }
}

impl JsonReader<'_> {
    fn error(&self, message: &str) -> ImportError {
        ImportError::new(self.file, self.line, format!("this is not JSON: {message}"))
    }

    fn peek(&self) -> Option<char> {
        self.text[self.position..].chars().next()
    }

    fn take(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.position += c.len_utf8();
        self.line += usize::from(c == '\n');
        Some(c)
    }

    fn skip_space(&mut self) {
        loop {
            let rest = &self.text[self.position..];
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
                    self.position += end;
                }
                _ => return,
            }
        }
    }

    fn parse_value(&mut self, depth: usize) -> Result<DataNode, ImportError> {
        self.skip_space();
        self.values += 1;
        if depth > VALUE_DEPTH_MAX || self.values > VALUES_MAX {
            return Err(self.error("it is nested too deeply, or has too many values"));
        }
        let line = self.line;
        let datum = match self.peek() {
            Some('{') => self.parse_table(depth)?,
            Some('[') => self.parse_list(depth)?,
            Some('"') => DataValue::Text(self.parse_string()?),
            _ => self.parse_word()?,
        };
        Ok(DataNode::new(line, datum))
    }

    fn parse_table(&mut self, depth: usize) -> Result<DataValue, ImportError> {
        self.take();
        let mut entries: Vec<(String, DataNode)> = Vec::new();
        loop {
            self.skip_space();
            match self.peek() {
                Some('}') if entries.is_empty() => break,
                Some('"') => {}
                _ => return Err(self.error("a key is missing")),
            }
            let key = self.parse_string()?;
            self.skip_space();
            if self.take() != Some(':') {
                return Err(self.error("a `:` is missing"));
            }
            if entries.iter().any(|(known, _)| *known == key) {
                return Err(self.error(&format!("{key:?} stands twice in a table")));
            }
            entries.push((key, self.parse_value(depth + 1)?));
            self.skip_space();
            match self.peek() {
                Some(',') => drop(self.take()),
                Some('}') => break,
                _ => return Err(self.error("a `,` or `}` is missing")),
            }
        }
        self.take();
        Ok(DataValue::Table(entries))
    }

    fn parse_list(&mut self, depth: usize) -> Result<DataValue, ImportError> {
        self.take();
        let mut items = Vec::new();
        loop {
            self.skip_space();
            if self.peek() == Some(']') && items.is_empty() {
                break;
            }
            items.push(self.parse_value(depth + 1)?);
            self.skip_space();
            match self.peek() {
                Some(',') => drop(self.take()),
                Some(']') => break,
                _ => return Err(self.error("a `,` or `]` is missing")),
            }
        }
        self.take();
        Ok(DataValue::List(items))
    }

    fn parse_word(&mut self) -> Result<DataValue, ImportError> {
        let rest = &self.text[self.position..];
        let end = rest
            .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.')))
            .unwrap_or(rest.len());
        let word = &rest[..end];
        let datum = match word {
            "null" => DataValue::Null,
            "true" => DataValue::Flag(true),
            "false" => DataValue::Flag(false),
            _ if word.parse::<f64>().is_ok() => DataValue::Number(word.to_owned()),
            _ => return Err(self.error("a value is missing")),
        };
        self.position += end;
        Ok(datum)
    }

    fn parse_string(&mut self) -> Result<String, ImportError> {
        self.take();
        let mut out = String::new();
        loop {
            match self.take() {
                None | Some('\n') => return Err(self.error("a quote is not closed")),
                Some('"') => return Ok(out),
                Some('\\') => match self.take() {
                    Some('n') => out.push('\n'),
                    Some('t') => out.push('\t'),
                    Some('r') => out.push('\r'),
                    Some('b') => out.push('\u{8}'),
                    Some('f') => out.push('\u{c}'),
                    Some('u') => out.push(self.parse_unicode_escape()?),
                    Some(c @ ('"' | '\\' | '/')) => out.push(c),
                    _ => return Err(self.error("an escape is not known")),
                },
                Some(c) => out.push(c),
            }
        }
    }

    fn parse_hex(&mut self) -> Result<u32, ImportError> {
        let digits = self
            .text
            .get(self.position..self.position + 4)
            .and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let found = digits.ok_or_else(|| self.error("four hexadecimal digits are missing"))?;
        self.position += 4;
        Ok(found)
    }

    fn parse_unicode_escape(&mut self) -> Result<char, ImportError> {
        let first = self.parse_hex()?;
        let code = match first {
            0xD800..0xDC00 if self.text[self.position..].starts_with("\\u") => {
                self.position += 2;
                let second = self.parse_hex()?;
                0x10000 + ((first - 0xD800) << 10) + (second.wrapping_sub(0xDC00) & 0x3FF)
            }
            code => code,
        };
        char::from_u32(code).ok_or_else(|| self.error("a surrogate stands alone"))
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
pub fn open_file(path: &std::path::Path) -> std::io::Result<std::fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    let file = std::fs::OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(std::io::Error::other("this is not a regular file: write its content into one first"))
    }
}

/// Reads a file; returns its name without the directory, and its text.
///
/// # Errors
/// The file cannot be read, is too long, or is not UTF-8.
pub(crate) fn read_file(path: &std::path::Path) -> Result<(String, String), ImportError> {
    use std::io::Read;
    let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let fault = |message: String| ImportError::new(&name, 0, message);
    let file = open_file(path).map_err(|error| fault(error.to_string()))?;
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| fault(error.to_string()))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        Err(fault(format!("longer than {} MiB", FILE_BYTES_MAX >> 20)))
    } else {
        Ok((name, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_parsed_with_line_numbers() {
        let value = parse_json(
            "f",
            "{\n \"a\": [1, true, null], // x\n /* y\n */ \"b\": {\"c\": \"\\u00e9\\ud83d\\ude00\\n\"}\n}",
        )
        .unwrap();
        assert_eq!(value.get("a").unwrap().items().len(), 3);
        let text = value.at(&["b", "c"]).unwrap();
        assert_eq!((text.text(), text.line), (Some("é😀\n"), 4));
    }

    #[test]
    fn invalid_json_is_rejected() {
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
            assert!(parse_json("f", wrong).is_err(), "{}", &wrong[..wrong.len().min(20)]);
        }
    }
}
