//! Conditions of a route: path patterns, and patterns for header and query values.

use crate::expression::Expression;
use crate::glob::{ELEMENTS_MAX, Glob};
use serde_json::json;
use settings::checker::{Checker, InvalidValue};
use settings::node::{Node, NodeData};
use settings::shape::{Shape, ShapeKind, Text};
use std::fmt;
use std::ops::Range;

/// The paths of a route. It matches the whole path, percent-decoded and without dot segments, byte by byte.
#[derive(Debug, Clone, PartialEq)]
pub struct PathPattern {
    text: String,
    matcher: PathForm,
}

#[derive(Debug, Clone, PartialEq)]
enum PathForm {
    /// Every path.
    Any,
    /// The text itself.
    Exact,
    /// Paths that start with this number of bytes of the text.
    Prefix(usize),
    /// Paths that end with the text from this byte on.
    Suffix(usize),
    Glob(Glob),
    Regex(Expression),
}

impl PathPattern {
    /// Parses a pattern:
    ///
    /// - `/a` matches that path only;
    /// - a `*` at the end matches any rest, with slashes, also an empty one: `/a/*` matches `/a/` and all below it, but
    ///   not `/a`;
    /// - any other `*` matches any run of characters without a slash: `/x/*/y`;
    /// - `**` matches any run of characters, with slashes: `/x/**/y`;
    /// - a pattern that starts with `*` matches at any depth: `*.php` is `**.php`;
    /// - `~ REGEX` matches where the regular expression is found in the path; `~* REGEX` ignores the case of ASCII letters.
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        if let Some(expression) = Expression::parse(text) {
            return Ok(Self { text: text.to_owned(), matcher: PathForm::Regex(expression?) });
        }
        check_path(text)?;
        let body = text.trim_end_matches('*');
        let form = match (body.find('*'), body.len() == text.len()) {
            _ if body.is_empty() => PathForm::Any,
            (None, true) => PathForm::Exact,
            (None, false) => PathForm::Prefix(body.len()),
            _ => compile_glob(text)?,
        };
        Ok(Self { text: text.to_owned(), matcher: form })
    }

    /// True when it matches the path.
    pub fn matches(&self, path: &[u8]) -> bool {
        match &self.matcher {
            PathForm::Any => true,
            PathForm::Exact => path == self.text.as_bytes(),
            PathForm::Prefix(end) => path.starts_with(&self.text.as_bytes()[..*end]),
            PathForm::Suffix(start) => path.ends_with(&self.text.as_bytes()[*start..]),
            PathForm::Glob(glob) => glob.matches(path.iter().copied()),
            PathForm::Regex(expression) => expression.is_match(path),
        }
    }

    /// The names of its groups, if it is a regular expression: numbers, and the names that they have besides.
    pub fn groups(&self) -> Vec<String> {
        match &self.matcher {
            PathForm::Regex(expression) => expression.groups().collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the captures by name if the pattern is a regular expression that matches the path.
    pub fn captures(&self, path: &[u8]) -> Option<Vec<(String, Vec<u8>)>> {
        match &self.matcher {
            PathForm::Regex(expression) => expression.captures(path),
            _ => None,
        }
    }

    /// The pattern as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the pattern matches every path.
    pub fn is_any(&self) -> bool {
        self.matcher == PathForm::Any
    }

    /// Whether the pattern matches every path, or every path below `/`.
    pub fn matches_whole_site(&self) -> bool {
        self.is_any() || self.as_str() == "/*"
    }

    /// Returns the prefix that can be removed from a matching path so that a path remains: `/a` for `/a/*`.
    pub fn prefix(&self) -> Option<&str> {
        match self.matcher {
            PathForm::Prefix(end) => self.text[..end].strip_suffix('/'),
            _ => None,
        }
    }

    /// True when every path that matches `other` matches this too; false if that is not easy to decide.
    pub fn covers(&self, other: &Self) -> bool {
        match (&self.matcher, &other.matcher) {
            // Every path starts with a slash.
            (PathForm::Any | PathForm::Prefix(1), _) => true,
            (PathForm::Regex(expression), _) if expression.matches_every_path() => true,
            (_, PathForm::Exact) => self.matches(other.text.as_bytes()),
            (PathForm::Prefix(end), PathForm::Prefix(other_end)) => {
                other_end >= end && other.text.starts_with(&self.text[..*end])
            }
            _ => self.text == other.text,
        }
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

/// A pattern with a star elsewhere than at its end.
fn compile_glob(text: &str) -> Result<PathForm, InvalidValue> {
    let after = text.trim_start_matches('*');
    if after.len() < text.len() && !after.contains('*') {
        return Ok(PathForm::Suffix(text.len() - after.len()));
    }
    // The first and the last star reach across slashes.
    let start = if after.len() < text.len() { "**" } else { "" };
    let body = after.trim_end_matches('*');
    let end = if body.len() < after.len() { "**" } else { "" };
    let glob = Glob::new([start, body, end].concat().as_bytes(), false);
    glob.map(PathForm::Glob).ok_or_else(|| {
        let remedy = format!("a path with a `*` in the middle has at most {ELEMENTS_MAX} characters");
        InvalidValue::new("too long for a pattern", remedy)
    })
}

/// Refuses patterns that match no path.
fn check_path(text: &str) -> Result<(), InvalidValue> {
    if !text.starts_with(['/', '*']) {
        let remedy = match text {
            _ if text.starts_with(['=', '^', '@']) && text.contains(' ') => {
                "nginx's `=`, `^~` and `@` are not written here: \"/a\" matches that path alone, \"/a/*\" what is below it, and the first route that matches answers"
            }
            _ if text.starts_with('^') => "a regular expression begins with `~`: \"~ ^/user/([0-9]+)$\"",
            "" => "remove `path` to match every path",
            _ => "a path starts with `/`, or with `*` for any depth: \"/images/*\", \"*.php\"",
        };
        return Err(InvalidValue::new("this is not a path", remedy));
    }
    if let Some(at) = text.find(|c: char| c.is_control()) {
        return Err(InvalidValue::new("a control character", "").within(at..at + 1));
    }
    if text.ends_with(char::is_whitespace) {
        let end = text.trim_end().len();
        let remedy = "remove it; paths that end with one are matched by a regular expression: '~ ^/a[ ]$'";
        return Err(InvalidValue::new("a blank at the end", remedy).within(end..text.len()));
    }
    if text.starts_with("//") {
        let remedy = "slashes at the start of a path are one when it is matched: write one";
        return Err(InvalidValue::new("no path starts with `//`", remedy).within(0..2));
    }
    if let Some((fault, at)) = find_path_fault(text.as_bytes()) {
        return Err(InvalidValue::new(fault.label, fault.remedy).within(at));
    }
    let mut at = 1;
    for segment in text.get(1..).unwrap_or("").split('/') {
        if matches!(segment, "." | "..") {
            let fault = InvalidValue::new(
                "no path has a dot segment",
                "dot segments are resolved before paths are matched",
            );
            return Err(fault.within(at..at + segment.len()));
        }
        at += segment.len() + 1;
    }
    Ok(())
}

/// The warning about a percent-encoded character.
pub const ESCAPED_CHARACTER: &str = "a percent-encoded character";

/// Why no path has a text in it, and the remedy.
pub struct PathFault {
    /// Label of the place.
    pub label: &'static str,
    /// Remedy for the fault.
    pub remedy: &'static str,
}

/// Whether a text begins with a percent-encoded byte.
pub fn is_escape(text: &[u8]) -> bool {
    matches!(text, [b'%', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit())
}

/// The first thing in a text that no path has once it is decoded, and its place.
pub fn find_path_fault(text: &[u8]) -> Option<(PathFault, Range<usize>)> {
    let fault = |label, remedy, at| Some((PathFault { label, remedy }, at));
    if let Some(at) = text.iter().position(|byte| matches!(byte, b'?' | b'#')) {
        // A fragment stays with the client, a query is no part of the path.
        let (label, remedy) = match text[at] {
            b'?' => ("the path ends here", "match the query with `query = { name = \"value\" }`"),
            _ => ("the path ends here", "clients send nothing of a URL from the `#` on: remove it"),
        };
        return fault(label, remedy, at..text.len());
    }
    if let Some(at) = text.iter().position(|&byte| byte == b'\\') {
        let remedy = "a backslash is refused with 400, or matched as `%5C` with `encoded_slashes = \"keep\"`";
        return fault("no path has a backslash", remedy, at..at + 1);
    }
    // With `encoded_slashes = "keep"` these stay encoded.
    let is_kept =
        |rest: &[u8]| [&b"%2F"[..], b"%5C", b"%252F", b"%255C"].iter().any(|kept| rest.starts_with(kept));
    let at = (0..text.len()).find(|at| is_escape(&text[*at..]) && !is_kept(&text[*at..]))?;
    let remedy = "paths are percent-decoded before they are matched: write the character itself";
    fault(ESCAPED_CHARACTER, remedy, at..at + 3)
}

/// The pattern for the value of a header field or query parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct ValuePattern {
    text: String,
    matcher: ValueForm,
}

#[derive(Debug, Clone, PartialEq)]
enum ValueForm {
    Present,
    Exact,
    Glob(Glob),
    Regex(Expression),
}

impl ValuePattern {
    /// Any value at all.
    pub fn present() -> Self {
        Self { text: "*".to_owned(), matcher: ValueForm::Present }
    }

    /// Parses a value, in which `*` matches any run of characters, or `~ REGEX`, or `~* REGEX` for one that ignores case.
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        if let Some(rest) = text.strip_prefix('!') {
            let remedy = format!(
                "`not = {{ … }}` in a route has conditions that must not be met: write \"{rest}\" there"
            );
            return Err(InvalidValue::new("`!` has no meaning here", remedy).within(0..1));
        }
        let form = if let Some(expression) = Expression::parse(text) {
            ValueForm::Regex(expression?)
        } else if !text.contains('*') {
            ValueForm::Exact
        } else if text.bytes().all(|byte| byte == b'*') {
            return Ok(Self::present());
        } else {
            let remedy = || format!("a value with `*` has at most {ELEMENTS_MAX} characters");
            let glob = Glob::new(text.as_bytes(), true);
            ValueForm::Glob(glob.ok_or_else(|| InvalidValue::new("too long for a pattern", remedy()))?)
        };
        Ok(Self { text: text.to_owned(), matcher: form })
    }

    /// True when it matches the value. For a regular expression, the value is gathered first.
    pub fn matches(&self, value: impl Iterator<Item = u8>) -> bool {
        match &self.matcher {
            ValueForm::Regex(expression) => expression.is_match(&value.collect::<Vec<u8>>()),
            ValueForm::Present => true,
            ValueForm::Exact => value.eq(self.text.bytes()),
            ValueForm::Glob(glob) => glob.matches(value),
        }
    }

    /// True when it matches the value.
    pub fn matches_bytes(&self, value: &[u8]) -> bool {
        match &self.matcher {
            ValueForm::Regex(expression) => expression.is_match(value),
            _ => self.matches(value.iter().copied()),
        }
    }

    /// Whether a query has a parameter of that name with a value that matches.
    pub fn matches_parameter(&self, query: &[u8], name: &str) -> bool {
        http::form::values(query, name.as_bytes())
            .any(|value| self.matches_bytes(value.as_deref().unwrap_or_default()))
    }

    /// The pattern as it was written; `*` for any value.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// `true` for any value, or a value pattern.
pub struct ValueCondition;

impl Shape for ValueCondition {
    type Out = ValuePattern;

    fn kind(&self) -> ShapeKind {
        let schema = json!({ "anyOf": [{ "type": "string" }, { "const": true }] });
        ShapeKind::new(
            "a value (in which `*` stands for any run of characters), `\"~ REGEX\"`, or `true` for any value",
            schema,
        )
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<ValuePattern> {
        match &node.data {
            NodeData::Flag(true) => Some(ValuePattern::present()),
            NodeData::Flag(false) => {
                check
                    .report_invalid(&node.span, "a field cannot be required to be absent")
                    .help("write `not = { header = { NAME = true } }` or `not = { query = { NAME = true } }` in a route");
                None
            }
            NodeData::Text(_) => Text { what: "a value", parse: ValuePattern::parse }.read(node, check),
            _ => {
                check.report_type_mismatch(node, "a string, or `true` for any value");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_patterns_match_paths() {
        let cases: [(&str, &[&str], &[&str]); 13] = [
            ("/a", &["/a"], &["/a/", "/ab", "/", "/A"]),
            ("/a/*", &["/a/", "/a/b", "/a/b/c"], &["/a", "/ab"]),
            ("/a/**", &["/a/", "/a/b", "/a/b/c"], &["/a", "/ab"]),
            ("/a*", &["/a", "/ab", "/a/b"], &["/b"]),
            ("*.php", &["/x.php", "/a/b.php", "/.php"], &["/x.php5", "/x.php/info"]),
            ("**.php", &["/x.php", "/a/b.php"], &["/x.php5"]),
            ("/x/*/y", &["/x/1/y", "/x//y"], &["/x/1/2/y", "/x/y", "/x/1/y/"]),
            ("/x/**/y", &["/x/1/y", "/x/1/2/y"], &["/x/y", "/x/1/yz"]),
            ("/u/*/f/*", &["/u/1/f/", "/u/1/f/a/b"], &["/u/1/2/f/a", "/u/1/f"]),
            ("*/wp-*.php", &["/wp-login.php", "/a/wp-x.php"], &["/a/wp-x/y.php"]),
            ("*", &["/", "/a/b", "*"], &[]),
            ("**", &["/", "/a/b"], &[]),
            ("/é", &["/é"], &["/e"]),
        ];
        for (pattern, fits, fails) in cases {
            let compiled = PathPattern::parse(pattern).unwrap();
            for path in fits {
                assert!(compiled.matches(path.as_bytes()), "{pattern} {path}");
            }
            for path in fails {
                assert!(!compiled.matches(path.as_bytes()), "{pattern} {path}");
            }
        }
    }

    #[test]
    fn path_patterns_that_never_match_are_rejected() {
        let long = format!("/a*{}", "b".repeat(ELEMENTS_MAX));
        for wrong in [
            "", "a", "^/a", "~", "/a?b=1", "/a#b", "/a%20b", "/a/../b", "/.", "/a\n", "/a ", "/a/* ",
            "*.php ", "//a", "//*", &long,
        ] {
            assert!(PathPattern::parse(wrong).is_err(), "{wrong}");
        }
        for right in ["/a%2Fb", "/a%252Fb", "/a b", "/a//b", "/a%", "/a%2"] {
            assert!(PathPattern::parse(right).is_ok(), "{right}");
        }
        assert!(PathPattern::parse(&format!("/{}/*", "b".repeat(500))).is_ok());
    }

    #[test]
    fn regular_expressions_are_searched_in_paths() {
        let php = PathPattern::parse("~ \\.php(/|$)").unwrap();
        assert!(php.matches(b"/a.php") && php.matches(b"/a.php/b") && !php.matches(b"/a.phpx"));
        assert!(PathPattern::parse("~* ^/A$").unwrap().matches(b"/a"));
        assert_eq!(PathPattern::parse("~ ^/(?<a>.)").unwrap().groups(), ["1", "a"]);
        assert!(PathPattern::parse("/a").unwrap().captures(b"/a").is_none());
        assert!(php.covers(&PathPattern::parse("/x.php").unwrap()));
        assert!(!php.covers(&PathPattern::parse("*.php").unwrap()) && !php.is_any());
    }

    #[test]
    fn covering_patterns_are_detected() {
        let covers =
            |a: &str, b: &str| PathPattern::parse(a).unwrap().covers(&PathPattern::parse(b).unwrap());
        assert!(covers("*", "/a/*"));
        assert!(covers("/a/*", "/a/b"));
        assert!(covers("/a/*", "/a/b/*"));
        assert!(covers("*.php", "/x.php"));
        assert!(covers("/x/*/y", "/x/*/y"));
        assert!(!covers("/a/b/*", "/a/*"));
        assert!(!covers("/a/*", "/a"));
        assert!(!covers("/a", "*"));
    }

    #[test]
    fn prefix_patterns_return_their_prefix() {
        let prefix = |text: &str| PathPattern::parse(text).unwrap().prefix().map(str::to_owned);
        assert_eq!(prefix("/a/b/*"), Some("/a/b".into()));
        assert_eq!(prefix("/*"), Some("".into()));
        assert_eq!(prefix("/a*"), None);
        assert_eq!(prefix("/a"), None);
    }

    #[test]
    fn value_patterns_match_values() {
        let matches =
            |pattern: &str, value: &str| ValuePattern::parse(pattern).unwrap().matches(value.bytes());
        assert!(matches("yes", "yes"));
        assert!(!matches("yes", "Yes"));
        assert!(matches("text/*", "text/html; a/b"));
        assert!(matches("*", ""));
        assert!(matches("", ""));
        assert!(!matches("*bot*", "human"));
        assert!(matches("~* (wget|curl)/[0-9]", "Mozilla (Wget/1)"));
        assert!(!matches("~ (wget|curl)/[0-9]", "Wget/1"));
        assert!(matches("~ ^$", ""));
        assert!(ValuePattern::parse("~ (").is_err());
    }
}
