//! Tokenizer for nginx's configuration.

use crate::findings::ImportError;

/// A token of nginx's configuration.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum NginxToken {
    Word(String),
    Open,
    Close,
    End,
}

/// A token and its line.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NginxTokenAtLine {
    pub(crate) token: NginxToken,
    pub(crate) line: usize,
}

/// Maximum size of a word in bytes.
const WORD_BYTES_MAX: usize = 64 << 10;

struct Lexer<'a> {
    file: &'a str,
    text: &'a str,
    position: usize,
    line: usize,
}

/// Splits a text into tokens as nginx does: quotes and `#` are special only at the start of a word.
///
/// # Errors
/// An unterminated quote or Lua block, a word that directly follows a quote, or a word that is too long.
pub(crate) fn tokenize(file: &str, text: &str) -> Result<Vec<NginxTokenAtLine>, ImportError> {
    let mut lexer = Lexer { file, text, position: 0, line: 1 };
    let mut found = Vec::new();
    while let Some(one) = lexer.next()? {
        let opens_lua = one.token == NginxToken::Open
            && matches!(found.last(), Some(NginxTokenAtLine { token: NginxToken::Word(word), .. }) if word.ends_with("_by_lua_block"));
        found.push(one);
        if opens_lua {
            lexer.skip_block()?;
        }
    }
    Ok(found)
}

impl Lexer<'_> {
    fn peek(&self) -> Option<char> {
        self.text[self.position..].chars().next()
    }

    fn take(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.position += c.len_utf8();
        self.line += usize::from(c == '\n');
        Some(c)
    }

    fn error(&self, line: usize, message: &str) -> ImportError {
        ImportError::new(self.file, line, message)
    }

    fn next(&mut self) -> Result<Option<NginxTokenAtLine>, ImportError> {
        loop {
            match self.peek() {
                None => return Ok(None),
                Some('#') => {
                    while self.peek().is_some_and(|c| c != '\n') {
                        self.take();
                    }
                }
                Some(c) if c.is_ascii_whitespace() || c == '\u{feff}' => drop(self.take()),
                Some(_) => break,
            }
        }
        let line = self.line;
        let sign = match self.peek() {
            Some('{') => Some(NginxToken::Open),
            Some('}') => Some(NginxToken::Close),
            Some(';') => Some(NginxToken::End),
            _ => None,
        };
        let token = match sign {
            Some(sign) => {
                self.take();
                sign
            }
            None => NginxToken::Word(self.read_word()?),
        };
        Ok(Some(NginxTokenAtLine { token, line }))
    }

    fn read_word(&mut self) -> Result<String, ImportError> {
        let line = self.line;
        let quote = self.peek().filter(|c| matches!(c, '"' | '\''));
        if quote.is_some() {
            self.take();
        }
        let mut word = String::new();
        loop {
            if word.len() > WORD_BYTES_MAX {
                return Err(self.error(line, "a word is too long: is a quote missing?"));
            }
            let Some(c) = self.peek() else {
                return match quote {
                    Some(_) => Err(self.error(line, "a quote is not closed")),
                    None => Ok(word),
                };
            };
            match c {
                '\\' => {
                    self.take();
                    self.read_escape(&mut word);
                }
                '$' if self.text[self.position..].starts_with("${") => {
                    self.take();
                    self.take();
                    word.push_str("${");
                }
                _ if quote == Some(c) => {
                    self.take();
                    let is_end =
                        self.peek().is_none_or(|c| c.is_ascii_whitespace() || matches!(c, ';' | '{' | ')'));
                    return if is_end {
                        Ok(word)
                    } else {
                        Err(self.error(self.line, "a space or `;` is missing after a quote"))
                    };
                }
                c if quote.is_none() && (c.is_ascii_whitespace() || matches!(c, ';' | '{')) => {
                    return Ok(word);
                }
                c => {
                    self.take();
                    word.push(c);
                }
            }
        }
    }

    /// Reads an escape sequence: nginx keeps the backslash before all other characters.
    fn read_escape(&mut self, word: &mut String) {
        match self.take() {
            Some(c @ ('"' | '\'' | '\\')) => word.push(c),
            Some('t') => word.push('\t'),
            Some('r') => word.push('\r'),
            Some('n') => word.push('\n'),
            Some(c) => word.extend(['\\', c]),
            None => word.push('\\'),
        }
    }

    /// Skips a Lua block up to its closing brace, which is the next token. Braces in texts and comments of Lua do not count.
    fn skip_block(&mut self) -> Result<(), ImportError> {
        let line = self.line;
        let mut depth = 0;
        loop {
            match self.peek() {
                None => return Err(self.error(line, "a block of Lua is not closed")),
                Some('}') if depth == 0 => return Ok(()),
                Some('}') => depth -= 1,
                Some('{') => depth += 1,
                Some(quote @ ('"' | '\'')) => {
                    self.take();
                    self.skip_quoted(quote);
                }
                Some('[') => {
                    if let Some(end) = self.long_bracket_end() {
                        self.skip_past(&end);
                        continue;
                    }
                }
                Some('-') if self.text[self.position..].starts_with("--") => {
                    self.take();
                    self.take();
                    match self.long_bracket_end() {
                        Some(end) => self.skip_past(&end),
                        None => self.skip_past("\n"),
                    }
                    continue;
                }
                _ => {}
            }
            self.take();
        }
    }

    /// Skips a text of Lua up to its closing quote, which is the next character; a line feed ends it too.
    fn skip_quoted(&mut self, quote: char) {
        while let Some(c) = self.peek().filter(|c| *c != quote && *c != '\n') {
            self.take();
            if c == '\\' {
                self.take();
            }
        }
    }

    /// Returns the end of the long text or comment of Lua that begins here, such as `]==]`.
    fn long_bracket_end(&self) -> Option<String> {
        let rest = self.text[self.position..].strip_prefix('[')?;
        let level = rest.len() - rest.trim_start_matches('=').len();
        rest[level..].starts_with('[').then(|| format!("]{}]", "=".repeat(level)))
    }

    /// Skips to the end of the next `end`, or of the text.
    fn skip_past(&mut self, end: &str) {
        while !self.text[self.position..].starts_with(end) && self.take().is_some() {}
        for _ in end.chars() {
            self.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> String {
        let shown = |one: &NginxTokenAtLine| match &one.token {
            NginxToken::Word(word) => format!("<{word}>"),
            NginxToken::Open => "{".to_owned(),
            NginxToken::Close => "}".to_owned(),
            NginxToken::End => ";".to_owned(),
        };
        match tokenize("f", text) {
            Ok(all) => all.iter().map(shown).collect(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn words_are_split_like_in_nginx() {
        for (text, expected) in [
            ("a b;", "<a><b>;"),
            ("a 'b c' \"d;e\"; # x\nf{}", "<a><b c><d;e>;<f>{}"),
            (r#"log '$a "$b"';"#, "<log><$a \"$b\">;"),
            (r"location ~ \.php$ {}", r"<location><~><\.php$>{}"),
            (r"a '\'x\n';", "<a><'x\n>;"),
            ("a ${b}c;", "<a><${b}c>;"),
            ("a#b;", "<a#b>;"),
            ("a 'b", "f:1: a quote is not closed"),
            ("a\n'b'c;", "f:2: a space or `;` is missing after a quote"),
            ("x_by_lua_block { if a { b } } c;", "<x_by_lua_block>{}<c>;"),
            ("x_by_lua_block { a", "f:1: a block of Lua is not closed"),
            ("x_by_lua_block { a = \"}\\\"}\" .. '}' } c;", "<x_by_lua_block>{}<c>;"),
            ("x_by_lua_block { -- }\n --[[ }\n} ]] a = [==[ }]] ]==] } c;", "<x_by_lua_block>{}<c>;"),
            ("x_by_lua_block { a[b[1]] = a - 1 -- it's\n } c;", "<x_by_lua_block>{}<c>;"),
            ("\u{feff}a;", "<a>;"),
        ] {
            assert_eq!(words(text), expected, "{text}");
        }
    }
}
