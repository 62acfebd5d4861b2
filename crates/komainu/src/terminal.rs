//! Output of commands, sanitized for terminals: it may repeat text of servers, peers, certificates and file
//! names.

use std::io::{self, IsTerminal, Write};

use failure::Failure;
use serde_json::Value;

/// Replaces control characters, and characters that change the display order of others (Unicode's "Trojan
/// Source"). Newlines and tabs are kept.
pub(crate) fn sanitize(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (index, line) in text.split('\n').enumerate() {
        if index > 0 {
            out.push('\n');
        }
        for (index, part) in line.split('\t').enumerate() {
            if index > 0 {
                out.push('\t');
            }
            out.push_str(&top::formatting::sanitize(part));
        }
    }
    out
}

/// Indents the lines after the first one: a text of a server is shown whole, but none of its lines looks like one of a
/// command.
pub(crate) fn indent_rest(text: &str) -> String {
    text.trim_end_matches('\n').replace('\n', "\n  ")
}

/// Applies [`indent_rest`] to all texts of a document, except for names of fields.
pub(crate) fn indent_texts(document: &Value) -> Value {
    match document {
        Value::String(text) => Value::String(indent_rest(text)),
        Value::Array(all) => all.iter().map(indent_texts).collect(),
        Value::Object(all) => all.iter().map(|(name, value)| (name.clone(), indent_texts(value))).collect(),
        other => other.clone(),
    }
}

/// Writes a line to the standard error; failures are ignored.
pub(crate) fn print_error_line(line: &str) {
    let _ = writeln!(io::stderr(), "{}", sanitize(line));
}

/// Writes the failure of a command. Coloured findings are free of control characters of the file already.
pub(crate) fn print_failure(failure: &Failure) {
    let text = failure.render(is_coloured());
    if failure.findings().is_some() && is_coloured() {
        let _ = writeln!(io::stderr(), "{text}");
    } else {
        print_error_line(&text);
    }
}

/// Whether the standard error may be coloured.
pub(crate) fn is_coloured() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

/// Writer that passes everything through [`sanitize`]. Characters must not be split between writes.
pub(crate) struct SanitizedOutput<W>(pub(crate) W);

impl<W: Write> Write for SanitizedOutput<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_all(sanitize(&String::from_utf8_lossy(bytes)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_replaced_in_terminal_output() {
        let said = "a\u{1b}[31m\rb\u{202e}c\u{9b}d\u{2066}\u{200b}\n\té\u{7f}";
        assert_eq!(sanitize(said), "a?[31m?b?c?d??\n\té?");
        let mut out = SanitizedOutput(Vec::new());
        write!(out, "{said}, {}", 1).unwrap();
        assert_eq!(out.0, "a?[31m?b?c?d??\n\té?, 1".as_bytes());
    }
}
