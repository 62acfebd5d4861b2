//! Formatting of nginx directives, one per line.

use std::collections::HashMap;

use super::tree::NginxDirective;
use crate::findings::EntryIndex;

/// Replacement of a directive in a scratch copy.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum DirectiveReplacement {
    /// The directive is omitted.
    Dropped,
    /// The directive with these arguments.
    Arguments(Vec<String>),
    /// A `listen` with this port and these parameters.
    Listen(u16, Vec<String>),
}

/// Formats directives, and records which line belongs to which directive.
pub(super) struct NginxWriter<'a> {
    pub(super) replacements: &'a HashMap<EntryIndex, DirectiveReplacement>,
    /// Listening address.
    pub(super) address: &'a str,
    /// Whether to record the responding location in variables.
    pub(super) records_location: bool,
    pub(super) text: String,
    /// Directive of each line, from line 1.
    pub(super) line_entries: Vec<EntryIndex>,
}

impl NginxWriter<'_> {
    pub(super) fn write_line(&mut self, entry: EntryIndex, depth: usize, text: &str) {
        self.text.push_str(&"  ".repeat(depth));
        self.text.push_str(text);
        self.text.push('\n');
        self.line_entries.push(entry);
    }

    pub(super) fn write_block(
        &mut self,
        directives: &[NginxDirective],
        depth: usize,
        enclosing_entry: EntryIndex,
    ) {
        for one in directives {
            self.write_directive(one, depth, enclosing_entry);
        }
    }

    fn write_directive(&mut self, directive: &NginxDirective, depth: usize, around: EntryIndex) {
        let entry = if directive.entry == EntryIndex::MAX { around } else { directive.entry };
        let replacement =
            self.replacements.get(&directive.entry).filter(|_| directive.entry != EntryIndex::MAX);
        let args: Vec<String> = match replacement {
            Some(DirectiveReplacement::Dropped) => return,
            Some(DirectiveReplacement::Arguments(args)) => args.clone(),
            // A server without a `listen` of its own.
            Some(DirectiveReplacement::Listen(..)) if directive.block.is_some() => directive.args.clone(),
            Some(DirectiveReplacement::Listen(port, rest)) => {
                let address = format!("{}:{port}", self.address);
                [address].into_iter().chain(rest.iter().cloned()).collect()
            }
            None => directive.args.clone(),
        };
        let mut text = quote_word(&directive.name);
        for arg in &args {
            text.push(' ');
            text.push_str(&quote_word(arg));
        }
        let Some(block) = &directive.block else {
            text.push(';');
            self.write_line(entry, depth, &text);
            return;
        };
        text.push_str(" {");
        self.write_line(entry, depth, &text);
        if let Some(DirectiveReplacement::Listen(port, _)) = replacement {
            self.write_line(entry, depth + 1, &format!("listen {}:{port};", self.address));
        }
        if self.records_location {
            match directive.name.as_str() {
                "server" => {
                    // Executed again for each internal redirect.
                    let place = format!("set $komainu_place \"${{komainu_place}} {entry}\";");
                    self.write_line(entry, depth + 1, &place);
                    self.write_line(entry, depth + 1, "set $komainu_if \"${komainu_if}\";");
                }
                "location" => self.write_line(
                    entry,
                    depth + 1,
                    &format!("set $komainu_place \"${{komainu_place}} {entry}\";"),
                ),
                "if" => self.write_line(
                    entry,
                    depth + 1,
                    &format!("set $komainu_if \"${{komainu_if}} {entry}\";"),
                ),
                _ => {}
            }
        }
        self.write_block(block, depth + 1, entry);
        self.write_line(entry, depth, "}");
    }
}

/// Quotes a word for nginx.
fn quote_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_./:=~@$%*^-|()+?,!<>&[]".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) && !word.contains("${") {
        word.to_owned()
    } else {
        let escaped = word.replace('\\', "\\\\").replace('"', "\\\"").replace('\t', "\\t");
        format!("\"{}\"", escaped.replace('\r', "\\r").replace('\n', "\\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::lexer::{NginxToken, tokenize};
    use super::*;

    #[test]
    fn quoted_words_are_parsed_back() {
        for word in
            ["a", "", r"\.php$", "a b", "\"x\"", "^/a{2}$", "${a}b", "it's; #1", r"\\", "a\tb\n", "$uri/"]
        {
            let all = tokenize("f", &format!("{};", quote_word(word))).unwrap();
            assert_eq!(all[0].token, NginxToken::Word(word.to_owned()), "{word}");
            assert_eq!(all.len(), 2, "{word}");
        }
    }
}
