//! Formatting of nginx directives, one per line.

use std::collections::HashMap;

use super::tree::NginxDirective;
use crate::findings::EntryNumber;

/// Replacement of a directive in a scratch copy.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Replacement {
    /// The directive is omitted.
    Dropped,
    /// The directive with these arguments.
    Arguments(Vec<String>),
    /// A `listen` with this port and these parameters.
    Listen(u16, Vec<String>),
}

/// Formats directives, and records which line belongs to which directive.
pub(super) struct NginxWriter<'a> {
    pub(super) replaced: &'a HashMap<EntryNumber, Replacement>,
    /// Listening address.
    pub(super) address: &'a str,
    /// Whether to record the responding location in variables.
    pub(super) traced: bool,
    pub(super) text: String,
    /// Directive of each line, from line 1.
    pub(super) lines: Vec<EntryNumber>,
}

impl NginxWriter<'_> {
    pub(super) fn line(&mut self, entry: EntryNumber, depth: usize, text: &str) {
        self.text.push_str(&"  ".repeat(depth));
        self.text.push_str(text);
        self.text.push('\n');
        self.lines.push(entry);
    }

    pub(super) fn block(&mut self, directives: &[NginxDirective], depth: usize, around: EntryNumber) {
        for one in directives {
            self.directive(one, depth, around);
        }
    }

    fn directive(&mut self, one: &NginxDirective, depth: usize, around: EntryNumber) {
        let entry = if one.entry == EntryNumber::MAX { around } else { one.entry };
        let replacement = self.replaced.get(&one.entry).filter(|_| one.entry != EntryNumber::MAX);
        let args: Vec<String> = match replacement {
            Some(Replacement::Dropped) => return,
            Some(Replacement::Arguments(args)) => args.clone(),
            // A server without a `listen` of its own.
            Some(Replacement::Listen(..)) if one.block.is_some() => one.args.clone(),
            Some(Replacement::Listen(port, rest)) => {
                let address = format!("{}:{port}", self.address);
                [address].into_iter().chain(rest.iter().cloned()).collect()
            }
            None => one.args.clone(),
        };
        let mut text = quoted(&one.name);
        for arg in &args {
            text.push(' ');
            text.push_str(&quoted(arg));
        }
        let Some(block) = &one.block else {
            text.push(';');
            self.line(entry, depth, &text);
            return;
        };
        text.push_str(" {");
        self.line(entry, depth, &text);
        if let Some(Replacement::Listen(port, _)) = replacement {
            self.line(entry, depth + 1, &format!("listen {}:{port};", self.address));
        }
        if self.traced {
            match one.name.as_str() {
                "server" => {
                    // Executed again for each internal redirect.
                    let place = format!("set $komainu_place \"${{komainu_place}} {entry}\";");
                    self.line(entry, depth + 1, &place);
                    self.line(entry, depth + 1, "set $komainu_if \"${komainu_if}\";");
                }
                "location" => self.line(
                    entry,
                    depth + 1,
                    &format!("set $komainu_place \"${{komainu_place}} {entry}\";"),
                ),
                "if" => self.line(entry, depth + 1, &format!("set $komainu_if \"${{komainu_if}} {entry}\";")),
                _ => {}
            }
        }
        self.block(block, depth + 1, entry);
        self.line(entry, depth, "}");
    }
}

/// Quotes a word for nginx.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_./:=~@$%*^-|()+?,!<>&[]".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) && !word.contains("${") {
        true => word.to_owned(),
        false => {
            let escaped = word.replace('\\', "\\\\").replace('"', "\\\"").replace('\t', "\\t");
            format!("\"{}\"", escaped.replace('\r', "\\r").replace('\n', "\\n"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::lexer::{NginxToken, tokens};
    use super::*;

    #[test]
    fn words_are_read_back_as_they_were() {
        for word in
            ["a", "", r"\.php$", "a b", "\"x\"", "^/a{2}$", "${a}b", "it's; #1", r"\\", "a\tb\n", "$uri/"]
        {
            let all = tokens("f", &format!("{};", quoted(word))).unwrap();
            assert_eq!(all[0].token, NginxToken::Word(word.to_owned()), "{word}");
            assert_eq!(all.len(), 2, "{word}");
        }
    }
}
