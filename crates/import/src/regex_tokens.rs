//! Tokenizer for regular expressions of backtracking engines (PCRE).

/// Kind of a token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum RegexTokenKind {
    /// A literal character.
    Literal,
    /// An escape sequence, including the backslash.
    Escape,
    /// A character class, including the brackets.
    Class,
    /// The start of a group, with its kind: `(`, `(?:`, `(?<name>`, `(?!`.
    Open,
    /// A group without a subexpression: `(?i)`, `(?#comment)`, `(?1)`, `(?R)`, `(*UTF)`.
    Setting,
    /// `)`.
    Close,
    /// `|`.
    Alternative,
    /// `^`, `$` and `.`.
    Symbol,
    /// `*`, `+`, `?` or `{1,2}`, including a following `?` or `+`.
    Quantifier,
}

/// Token of a regular expression.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RegexToken<'a> {
    pub(crate) kind: RegexTokenKind,
    pub(crate) text: &'a str,
}

impl RegexToken<'_> {
    /// The only character that the token matches; `None` if there may be several.
    pub(crate) fn literal(&self) -> Option<char> {
        match self.kind {
            RegexTokenKind::Literal => self.text.chars().next(),
            // Escaped letters and digits are not literals.
            RegexTokenKind::Escape => {
                self.text.chars().nth(1).filter(|c| self.text.len() == 2 && !c.is_ascii_alphanumeric())
            }
            _ => None,
        }
    }

    /// Whether the token begins a lookaround assertion.
    pub(crate) fn looks_around(&self) -> bool {
        self.kind == RegexTokenKind::Open && ["(?!", "(?=", "(?<!", "(?<="].contains(&self.text)
    }

    /// Whether the token is a possessive quantifier, which does not backtrack.
    pub(crate) fn is_possessive(&self) -> bool {
        self.kind == RegexTokenKind::Quantifier && self.text.len() > 1 && self.text.ends_with('+')
    }
}

/// Splits an expression into tokens.
pub(crate) fn regex_tokens(regex: &str) -> Vec<RegexToken<'_>> {
    let mut tokens = Vec::new();
    let mut rest = regex;
    while let Some(first) = rest.chars().next() {
        let (kind, length) = match first {
            '\\' => (RegexTokenKind::Escape, escape_length(rest)),
            '[' => (RegexTokenKind::Class, class_length(rest)),
            '(' => open_length(rest),
            ')' => (RegexTokenKind::Close, 1),
            '|' => (RegexTokenKind::Alternative, 1),
            '^' | '$' | '.' => (RegexTokenKind::Symbol, 1),
            _ => match quantifier_length(rest) {
                Some(length) => (RegexTokenKind::Quantifier, length),
                None => (RegexTokenKind::Literal, first.len_utf8()),
            },
        };
        let (text, after) = rest.split_at(length);
        tokens.push(RegexToken { kind, text });
        rest = after;
    }
    tokens
}

/// Joins tokens to the text of an expression.
pub(crate) fn regex_text(tokens: &[RegexToken<'_>]) -> String {
    tokens.iter().map(|token| token.text).collect()
}

fn escape_length(text: &str) -> usize {
    let Some(second) = text[1..].chars().next() else { return 1 };
    let rest = &text[1 + second.len_utf8()..];
    let run = |is_it: fn(&char) -> bool, max: usize| rest.chars().take_while(is_it).take(max).count();
    let enclosed = |open: char, close: char| match rest.strip_prefix(open) {
        Some(inner) => inner.find(close).map_or(0, |end| end + 2),
        None => 0,
    };
    let more = match second {
        '0'..='9' => run(char::is_ascii_digit, usize::MAX),
        'x' if rest.starts_with('{') => enclosed('{', '}'),
        'x' => run(char::is_ascii_hexdigit, 2),
        'o' => enclosed('{', '}'),
        'p' | 'P' if rest.starts_with('{') => enclosed('{', '}'),
        'p' | 'P' | 'c' => rest.chars().next().map_or(0, char::len_utf8),
        'k' | 'g' => {
            let named = enclosed('<', '>').max(enclosed('{', '}')).max(enclosed('\'', '\''));
            if named > 0 { named } else { run(|c| c.is_ascii_digit() || *c == '-', usize::MAX) }
        }
        'Q' => rest.find("\\E").map_or(rest.len(), |end| end + 2),
        _ => 0,
    };
    1 + second.len_utf8() + more
}

fn class_length(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1).peekable();
    chars.next_if(|(_, c)| *c == '^');
    chars.next_if(|(_, c)| *c == ']');
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => drop(chars.next()),
            '[' if text[at + 1..].starts_with(':') => {
                let end = text[at..].find(":]").map(|end| at + end + 1);
                while let Some(end) = end
                    && chars.next_if(|(next, _)| *next <= end).is_some()
                {}
            }
            ']' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

fn open_length(text: &str) -> (RegexTokenKind, usize) {
    let whole = || (RegexTokenKind::Setting, text.find(')').map_or(text.len(), |end| end + 1));
    if text.starts_with("(*") {
        return whole();
    }
    let Some(rest) = text.strip_prefix("(?") else { return (RegexTokenKind::Open, 1) };
    let named = |start: usize, end: char| {
        (RegexTokenKind::Open, text[start..].find(end).map_or(text.len(), |at| start + at + 1))
    };
    match rest.as_bytes() {
        [b':' | b'|' | b'>' | b'!' | b'=', ..] => (RegexTokenKind::Open, 3),
        [b'<', b'!' | b'=', ..] => (RegexTokenKind::Open, 4),
        [b'<', ..] => named(3, '>'),
        [b'P', b'<', ..] => named(4, '>'),
        [b'\'', ..] => named(3, '\''),
        _ => match rest.find([':', ')']) {
            // Flags that apply to this group, such as `(?i:`.
            Some(at)
                if rest[at..].starts_with(':')
                    && rest[..at].bytes().all(|b| b.is_ascii_alphabetic() || b == b'-') =>
            {
                (RegexTokenKind::Open, 2 + at + 1)
            }
            _ => whole(),
        },
    }
}

fn quantifier_length(text: &str) -> Option<usize> {
    let length = match text.as_bytes().first()? {
        b'*' | b'+' | b'?' => 1,
        b'{' => {
            let (inner, _) = text[1..].split_once('}')?;
            let (min, max) = inner.split_once(',').unwrap_or((inner, ""));
            let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
            (!min.is_empty() && is_number(min) && is_number(max)).then_some(inner.len() + 2)?
        }
        _ => return None,
    };
    Some(length + usize::from(text[length..].starts_with(['?', '+'])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_cover_the_whole_text() {
        for (regex, expected) in [
            (r"^/\(?!a", r"^ / \( ? ! a"),
            (r"a(?!b)|(?<n>c)++", "a (?! b ) | (?<n> c ) ++"),
            (r"[]\]x[:alpha:]]{2,}?{", "[]\\]x[:alpha:]] {2,}? {"),
            (r"\141\x{61}\x2e\cA\pL\p{L}\k<a>\g1\Q(a\E", r"\141 \x{61} \x2e \cA \pL \p{L} \k<a> \g1 \Q(a\E"),
            ("(?i)(?i-s:é)(?#c)(?1)(*UTF8)", "(?i) (?i-s: é ) (?#c) (?1) (*UTF8)"),
            ("(?", "(?"),
            ("[a", "[a"),
            ("\\", "\\"),
        ] {
            let tokens = regex_tokens(regex);
            let shown: Vec<&str> = tokens.iter().map(|token| token.text).collect();
            assert_eq!(shown.join(" "), expected);
            assert_eq!(regex_text(&tokens), regex);
        }
    }
}
