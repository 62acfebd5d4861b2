//! Values of objects as values of directives: nothing in them becomes a variable, a wildcard or an expression.

use std::time::Duration;

/// Returns a text for a directive with variables.
pub(crate) fn template(text: &str) -> String {
    text.replace('$', "$$")
}

/// Returns a pattern that matches this value of a header field or query parameter alone.
pub(crate) fn exact_value(text: &str) -> String {
    let is_plain = !text.contains('*') && !text.starts_with(['~', '!', ' ']) && !text.ends_with(' ');
    if is_plain { text.to_owned() } else { format!("~ ^{}$", regex_syntax::escape(text)) }
}

/// Returns a pattern for values that match the expression as a whole.
pub(crate) fn whole_expression(expression: &str) -> String {
    format!("~ ^(?:{expression})$")
}

/// Returns an expression that matches this text alone.
pub(crate) fn literal_expression(text: &str) -> String {
    regex_syntax::escape(text)
}

/// Percent-decodes a path, except what stays encoded when paths are matched: slashes and backslashes.
pub(crate) fn decoded_path(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let digits = bytes.get(at + 1..at + 3).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = match digits.filter(|_| bytes[at] == b'%').map(|digits| u8::from_str_radix(digits, 16)) {
            Some(Ok(byte)) if !matches!(byte, b'/' | b'\\') => {
                at += 2;
                byte
            }
            _ => bytes[at],
        };
        out.push(byte);
        at += 1;
    }
    String::from_utf8(out).ok()
}

/// A literal path, and how it is written as a pattern.
pub(crate) struct LiteralPath(String);

impl LiteralPath {
    /// Takes a path of an object; `None` if no path can be so.
    pub(crate) fn new(text: &str) -> Option<LiteralPath> {
        let path = decoded_path(text)?;
        path.starts_with('/').then_some(LiteralPath(path))
    }

    fn is_plain(&self) -> bool {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "/-._!&'()+,;=:@$".contains(c);
        self.0.chars().all(is_plain)
            && !self.0.contains("/./")
            && !self.0.contains("/../")
            && !self.0.starts_with("//")
            && !self.0.ends_with("/.")
            && !self.0.ends_with("/..")
    }

    /// Returns the pattern of this path alone.
    pub(crate) fn exact(&self) -> String {
        if self.is_plain() { self.0.clone() } else { format!("~ ^{}$", regex_syntax::escape(&self.0)) }
    }

    /// Returns the path without a slash at its end; empty for the root.
    pub(crate) fn without_slash(&self) -> LiteralPath {
        LiteralPath(self.0.trim_end_matches('/').to_owned())
    }

    /// Returns the pattern of what is below this path, and the variable that has what follows the slash.
    pub(crate) fn below(&self) -> (String, &'static str) {
        if self.is_plain() {
            (format!("{}/*", self.0), "$rest")
        } else {
            (format!("~ (?s)^{}/(.*)$", regex_syntax::escape(&self.0)), "$1")
        }
    }

    /// Returns the pattern of everything that begins with this text.
    pub(crate) fn beginning(&self) -> String {
        if self.is_plain() { format!("{}*", self.0) } else { format!("~ ^{}", regex_syntax::escape(&self.0)) }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Returns a path for `rewrite` or `redirect`: its text, with everything encoded that is no part of a path.
pub(crate) fn path_template(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'$' => out.push_str("$$"),
            b'?' | b'#' | b'\\' | b'"' | b'<' | b'>' | b'{' | b'}' | b'|' | b'^' | b'`' => {
                out.push_str(&format!("%{byte:02X}"))
            }
            0x21..=0x7e => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    if out.starts_with('/') { out } else { format!("/{out}") }
}

/// Parses a length of time as Gateway API writes it (GEP-2257).
pub(crate) fn duration(text: &str) -> Option<Duration> {
    let mut left = text;
    let mut sum = Duration::ZERO;
    if left.is_empty() || left.len() > 32 {
        return None;
    }
    while !left.is_empty() {
        let digits = left.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = left.get(..digits)?.parse().ok()?;
        left = &left[digits..];
        let units = left.bytes().take_while(u8::is_ascii_lowercase).count();
        let unit_ms = match left.get(..units)? {
            "h" => 3_600_000,
            "m" => 60_000,
            "s" => 1_000,
            "ms" => 1,
            _ => return None,
        };
        left = &left[units..];
        sum = sum.checked_add(Duration::from_millis(number.checked_mul(unit_ms)?))?;
    }
    Some(sum)
}

/// Writes a length of time for a directive, within the limits of timeouts of `proxy`.
pub(crate) fn timeout(time: Duration) -> String {
    let ms = time.as_millis().clamp(10, 86_400_000);
    format!("{ms}ms")
}

/// Whether a text may stand as a host in a directive: a DNS name, or an address.
pub(crate) fn is_host(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 253
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'))
}
