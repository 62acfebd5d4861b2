//! Lexer for Rust files as the rules need it: code without comments and literals, tokens, and the lines that
//! belong to tests.

/// Lexed source file.
pub(crate) struct SourceFile {
    /// Text with comments and the contents of literals blanked; all lines keep their positions and lengths.
    code: String,
    /// Whether each line is part of an item under `#[cfg(test)]`.
    test_lines: Vec<bool>,
}

/// Word or punctuation mark of the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub(crate) text: &'a str,
    /// Line number, from 1.
    pub(crate) line: usize,
}

impl SourceFile {
    pub(crate) fn new(text: &str) -> SourceFile {
        let code = blank_non_code(text);
        let tests = mark_test_lines(&tokenize(&code), code.lines().count());
        SourceFile { code, test_lines: tests }
    }

    /// Returns all tokens in order; `::` is one token, other punctuation marks are single characters.
    pub(crate) fn tokens(&self) -> Vec<Token<'_>> {
        tokenize(&self.code)
    }

    /// Returns the lines of code, with comments and the contents of literals blanked.
    pub(crate) fn lines(&self) -> Vec<&str> {
        self.code.lines().collect()
    }

    /// Whether `line` (from 1) belongs to tests.
    pub(crate) fn is_test(&self, line: usize) -> bool {
        self.test_lines.get(line - 1).copied().unwrap_or(false)
    }
}

/// Returns the index of the token that closes the bracket at `open`, or of the last token.
pub(crate) fn closing_bracket(tokens: &[Token<'_>], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.text {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth = depth.saturating_sub(1),
            _ => continue,
        }
        if depth == 0 {
            return at;
        }
    }
    tokens.len().saturating_sub(1)
}

fn tokenize(code: &str) -> Vec<Token<'_>> {
    let bytes = code.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    let mut line = 1;
    while at < bytes.len() {
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80;
        let end = match bytes[at] {
            b'\n' => {
                line += 1;
                at += 1;
                continue;
            }
            byte if byte.is_ascii_whitespace() => {
                at += 1;
                continue;
            }
            byte if is_word(byte) => at + bytes[at..].iter().take_while(|&&byte| is_word(byte)).count(),
            b':' if bytes.get(at + 1) == Some(&b':') => at + 2,
            _ => at + 1,
        };
        found.push(Token { text: &code[at..end], line });
        at = end;
    }
    found
}

/// Marks the lines from each `#[cfg(test)]` (alone or within `all` or `any`) to the end of its item.
fn mark_test_lines(tokens: &[Token<'_>], count: usize) -> Vec<bool> {
    let mut marked = vec![false; count];
    for at in 0..tokens.len() {
        if !is_test_attribute(tokens, at) {
            continue;
        }
        let mut end = at;
        // The item ends at its own `;` or closing brace; attributes and generics before that are skipped.
        while let Some(token) = tokens.get(end) {
            match token.text {
                ";" => break,
                "{" => {
                    end = closing_bracket(tokens, end);
                    break;
                }
                "[" | "(" => end = closing_bracket(tokens, end) + 1,
                _ => end += 1,
            }
        }
        let last = tokens.get(end).or(tokens.last()).map_or(count, |token| token.line);
        marked[tokens[at].line - 1..last.min(count)].fill(true);
    }
    marked
}

fn is_test_attribute(tokens: &[Token<'_>], at: usize) -> bool {
    let word = |offset: usize| tokens.get(at + offset).map(|token| token.text);
    let is_cfg = word(0) == Some("#") && word(1) == Some("[") && word(2) == Some("cfg");
    if !is_cfg {
        return false;
    }
    let inside = &tokens[at + 3..closing_bracket(tokens, at + 1)];
    inside.iter().any(|token| token.text == "test") && !inside.iter().any(|token| token.text == "not")
}

/// Replaces comments and the contents of literals with spaces; line ends are kept.
fn blank_non_code(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = at + literal_length(bytes, at);
        if end > at + 1 {
            out[at..end.min(bytes.len())]
                .iter_mut()
                .filter(|byte| **byte != b'\n')
                .for_each(|byte| *byte = b' ');
        }
        at = end;
    }
    String::from_utf8(out).expect("whole literals and comments are replaced by spaces")
}

/// Returns the ranges of string literals in plain quotes, without the quotes.
pub(crate) fn string_literal_ranges(text: &str) -> Vec<std::ops::Range<usize>> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let end = at + literal_length(bytes, at);
        if bytes[at] == b'"' && end <= bytes.len() && end > at + 1 {
            found.push(at + 1..end - 1);
        }
        at = end;
    }
    found
}

/// Returns the length of the comment or literal at `at`, or 1.
fn literal_length(bytes: &[u8], at: usize) -> usize {
    match bytes[at] {
        b'/' if bytes.get(at + 1) == Some(&b'/') => line_length(&bytes[at..]),
        b'/' if bytes.get(at + 1) == Some(&b'*') => block_comment_length(&bytes[at..]),
        b'"' => string_length(&bytes[at..]),
        b'\'' => char_length(&bytes[at..]),
        b'r' | b'b' | b'c' if at == 0 || !is_identifier(bytes[at - 1]) => {
            raw_string_length(&bytes[at..]).unwrap_or(1)
        }
        _ => 1,
    }
}

fn is_identifier(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn line_length(bytes: &[u8]) -> usize {
    bytes.iter().position(|&byte| byte == b'\n').unwrap_or(bytes.len())
}

fn block_comment_length(bytes: &[u8]) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < bytes.len() {
        match &bytes[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    bytes.len()
}

fn string_length(bytes: &[u8]) -> usize {
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Returns the length of a character literal, or 1 for the quote of a lifetime.
fn char_length(bytes: &[u8]) -> usize {
    if bytes.get(1) == Some(&b'\\') {
        let close = bytes.iter().skip(3).position(|&byte| byte == b'\'');
        return close.map_or(bytes.len(), |at| at + 4);
    }
    // A character literal has one character of up to four bytes and a closing quote; a lifetime has no quote
    // there.
    let mut width = 1;
    while bytes.get(1 + width).is_some_and(|byte| byte & 0xC0 == 0x80) {
        width += 1;
    }
    if bytes.get(1 + width) == Some(&b'\'') { width + 2 } else { 1 }
}

/// Returns the length of a raw string literal (`r"…"`, `r#"…"#`, `br"…"`, `cr"…"`); `None` for
/// `r#identifier`. The caller handles `b"…"` at its quote.
fn raw_string_length(bytes: &[u8]) -> Option<usize> {
    let prefix = match bytes {
        [b'r', ..] => 1,
        [b'b' | b'c', b'r', ..] => 2,
        _ => return None,
    };
    let hashes = bytes[prefix..].iter().take_while(|&&byte| byte == b'#').count();
    let open = prefix + hashes;
    if bytes.get(open) != Some(&b'"') {
        return None;
    }
    let close: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
    let length = bytes[open + 1..].windows(close.len()).position(|window| window == close);
    Some(length.map_or(bytes.len(), |at| open + 1 + at + close.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        SourceFile::new(text).tokens().iter().map(|token| token.text.to_string()).collect()
    }

    #[test]
    fn comments_and_literals_are_blanked_and_lines_kept() {
        let text = "a /* x /* y */ \n z */ b // c\nd \"e \\\" // f\" g 'h' '\\'' '\\u{1F}' 'é' '\"' i<'j> k";
        assert_eq!(words(text).join(" "), "a b d g i < ' j > k");
        assert_eq!(SourceFile::new(text).tokens()[1].line, 2);
    }

    #[test]
    fn raw_strings_are_distinguished_from_raw_identifiers() {
        assert_eq!(words("a r\"\\\" b r#\"c \" d\"# e br##\"f\"# g\"## h r#type i br b\"j\" r").join(" "), {
            "a b e h r # type i br b r"
        });
    }

    #[test]
    fn unterminated_literals_do_not_panic() {
        for text in ["\"a", "r#\"a\"", "/* a", "'\\", "b'", "\"\\"] {
            let _ = words(text);
        }
    }

    #[test]
    fn only_items_under_cfg_test_are_tests() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n fn b() {}\n}\nfn c() {}\n#[cfg(all(test, unix))]\nuse d::{\n e};\nfn f() {}\n#[cfg(not(test))]\nfn g() {}\n#[cfg(test)]\n#[path = \"x\"]\nmod h;\nfn i() {}";
        let source = SourceFile::new(text);
        let tests: Vec<usize> = (1..=text.lines().count()).filter(|&line| source.is_test(line)).collect();
        assert_eq!(tests, [2, 3, 4, 5, 7, 8, 9, 13, 14, 15]);
    }
}
