//! Regular expressions: of paths, and of the values of maps.

use regex::bytes::{Captures, Regex, RegexBuilder};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind, Look};
use settings::checker::InvalidValue;
use std::fmt;

/// Bytes of a regular expression.
const TEXT_BYTES_MAX: usize = 1000;
/// Maximum size of a compiled expression, in bytes. The time of a search is at most proportional to this
/// times the length of the text.
const COMPILED_BYTES_MAX: usize = 64 * 1024;
/// Size of the lazy automaton's cache per thread, in bytes; beyond that the search is slower.
const SEARCH_BYTES_MAX: usize = 256 * 1024;
/// Groups that a regular expression may have.
const GROUPS_MAX: usize = 32;

/// A regular expression, which is searched for in bytes: `.` is any byte but a line feed, and classes such as `\\d` and `\\w` are of
/// ASCII. A search takes linear time, whatever the expression.
#[derive(Clone)]
pub struct Expression {
    text: String,
    regex: Regex,
}

impl Expression {
    /// Parses `~ REGEX`, or `~* REGEX` for one that ignores the case of ASCII letters; `None` for a text without a `~` at its start.
    pub fn parse(text: &str) -> Option<Result<Self, InvalidValue>> {
        let rest = text.strip_prefix('~')?;
        let (rest, ignores_case) = match rest.strip_prefix('*') {
            Some(rest) => (rest, true),
            None => (rest, false),
        };
        let body = rest.trim_start_matches(' ');
        Some(Self::compile(text, body, ignores_case))
    }

    fn compile(text: &str, body: &str, ignores_case: bool) -> Result<Self, InvalidValue> {
        let at = text.len() - body.len()..text.len();
        if body.is_empty() {
            return Err(InvalidValue::new(
                "the regular expression is missing",
                "write \"~ ^/user/([0-9]+)$\"",
            ));
        }
        if let Some(rest) = body.strip_prefix("i ").filter(|_| !ignores_case && text.starts_with("~i")) {
            let remedy = format!("an expression that ignores case is written \"~* {rest}\"");
            return Err(InvalidValue::new("`~i` has no meaning", remedy).within(at));
        }
        if let Some(c) = body.chars().find(|c| c.is_control()) {
            let remedy = "in double quotes `\\b` is a backspace: write the expression in single quotes";
            return Err(
                InvalidValue::new(format!("a regular expression with a {c:?} in it"), remedy).within(at)
            );
        }
        if body.len() > TEXT_BYTES_MAX {
            let remedy = format!("a regular expression has at most {TEXT_BYTES_MAX} bytes");
            return Err(InvalidValue::new("too long for a regular expression", remedy).within(at));
        }
        let built = RegexBuilder::new(body)
            .unicode(false)
            // A path may contain any byte: a line feed must not evade a rule for `/admin/.*`.
            .dot_matches_new_line(true)
            .case_insensitive(ignores_case)
            .size_limit(COMPILED_BYTES_MAX)
            .dfa_size_limit(SEARCH_BYTES_MAX)
            .build();
        let regex = built.map_err(|error| explain_error(body, &error).within(at.clone()))?;
        if regex.captures_len() > GROUPS_MAX + 1 {
            let remedy = format!("it may have {GROUPS_MAX}; `(?:...)` groups without capturing");
            return Err(InvalidValue::new("too many groups", remedy).within(at));
        }
        Ok(Self { text: text.to_owned(), regex })
    }

    /// Returns texts that a match must contain, as far as that is easy to decide. Texts of optional parts are
    /// left out, and those of alternatives if one may be empty. Otherwise each alternative contributes its
    /// text.
    pub fn required_texts(&self) -> Vec<RequiredText> {
        let mut texts = Vec::new();
        if let Some(hir) = self.to_hir() {
            collect_required(&hir, false, &mut texts);
        }
        texts
    }

    /// Whether it matches every path, as far as that is easy to decide: `^/`, `.*`.
    pub fn matches_every_path(&self) -> bool {
        let Some(hir) = self.to_hir() else { return false };
        let is_any = |part: &Hir| match part.kind() {
            HirKind::Repetition(some) => {
                some.max.is_none() && some.sub.properties().maximum_len() == Some(1) && is_any_byte(&some.sub)
            }
            _ => false,
        };
        let mut parts = flatten(&hir);
        let is_anchored = parts.first().is_some_and(|part| matches!(part.kind(), HirKind::Look(Look::Start)));
        parts.drain(..usize::from(is_anchored));
        // The first byte of a path is a slash.
        let takes_first = |part: &&Hir| match part.kind() {
            HirKind::Literal(literal) => *literal.0 == *b"/",
            HirKind::Repetition(some) => some.min == 1 && is_any(part),
            _ => false,
        };
        let is_first_taken = parts.first().is_some_and(takes_first);
        let reaches_end = parts.iter().any(|part| is_any(part));
        parts.drain(..usize::from(is_first_taken));
        if reaches_end && parts.last().is_some_and(|part| matches!(part.kind(), HirKind::Look(Look::End))) {
            parts.pop();
        }
        parts
            .iter()
            .all(|part| part.properties().minimum_len() == Some(0) && part.properties().look_set().is_empty())
    }

    /// Whether `^` follows something, or `$` precedes something, so that the expression never matches.
    pub fn has_misplaced_anchor(&self) -> bool {
        self.to_hir().is_some_and(|hir| has_misplaced_anchor(&hir))
    }

    fn to_hir(&self) -> Option<Hir> {
        let mut parser = ParserBuilder::new().unicode(false).utf8(false).dot_matches_new_line(true).build();
        parser.parse(self.regex.as_str()).ok()
    }

    /// Whether the expression matches somewhere in the bytes.
    pub fn is_match(&self, bytes: &[u8]) -> bool {
        self.regex.is_match(bytes)
    }

    /// The names of its groups: their numbers, and names that they have besides.
    pub fn groups(&self) -> impl Iterator<Item = String> {
        self.regex.capture_names().enumerate().skip(1).flat_map(|(number, name)| {
            [Some(number.to_string()), name.map(str::to_owned)].into_iter().flatten()
        })
    }

    /// Returns the captures of [`Expression::groups`] by name; `None` if the expression does not match.
    pub fn captures(&self, bytes: &[u8]) -> Option<Vec<(String, Vec<u8>)>> {
        let found: Captures<'_> = self.regex.captures(bytes)?;
        let of = |(number, name): (usize, Option<&str>)| {
            let value = found.get(number).map(|group| group.as_bytes().to_vec()).unwrap_or_default();
            let named = name.map(|name| (name.to_owned(), value.clone()));
            [Some((number.to_string(), value)), named].into_iter().flatten()
        };
        Some(self.regex.capture_names().enumerate().skip(1).flat_map(of).collect())
    }
}

/// The parts of an expression, one after the other.
fn flatten(hir: &Hir) -> Vec<&Hir> {
    match hir.kind() {
        HirKind::Concat(parts) => parts.iter().flat_map(flatten).collect(),
        HirKind::Capture(capture) => flatten(&capture.sub),
        HirKind::Empty => Vec::new(),
        _ => vec![hir],
    }
}

fn is_any_byte(hir: &Hir) -> bool {
    match hir.kind() {
        HirKind::Class(Class::Bytes(class)) => {
            matches!(class.ranges(), [all] if (all.start(), all.end()) == (0, u8::MAX))
        }
        _ => false,
    }
}

fn has_misplaced_anchor(hir: &Hir) -> bool {
    let takes_bytes = |part: &&Hir| part.properties().minimum_len() > Some(0);
    let parts = flatten(hir);
    let is_misplaced = |(at, part): (usize, &&Hir)| match part.kind() {
        HirKind::Look(Look::Start) => parts[..at].iter().any(takes_bytes),
        HirKind::Look(Look::End) => parts[at..].iter().any(takes_bytes),
        HirKind::Alternation(all) => all.iter().all(has_misplaced_anchor),
        HirKind::Repetition(some) => some.min > 0 && has_misplaced_anchor(&some.sub),
        _ => false,
    };
    parts.iter().enumerate().any(is_misplaced)
}

/// A text that every match of an expression, or of one of its alternatives, contains.
pub struct RequiredText {
    /// Whether the text is at the start of the searched text.
    /// Whether a match begins with the text.
    pub is_at_start: bool,
    /// Bytes that a match contains.
    pub text: Vec<u8>,
}

fn collect_required(hir: &Hir, is_at_start: bool, texts: &mut Vec<RequiredText>) {
    match hir.kind() {
        HirKind::Literal(literal) => texts.push(RequiredText { is_at_start, text: literal.0.to_vec() }),
        HirKind::Capture(capture) => collect_required(&capture.sub, is_at_start, texts),
        HirKind::Repetition(repetition) if repetition.min > 0 => {
            collect_required(&repetition.sub, is_at_start, texts);
        }
        HirKind::Concat(parts) => {
            let mut is_at_start = is_at_start;
            for part in parts {
                collect_required(part, is_at_start, texts);
                is_at_start = matches!(part.kind(), HirKind::Look(Look::Start));
            }
        }
        HirKind::Alternation(parts) if parts.iter().all(|part| part.properties().minimum_len() > Some(0)) => {
            // `(/|%2F)` begins as a path does: its other beginnings are no mistake.
            let has_slash =
                |part: &Hir| matches!(part.kind(), HirKind::Literal(text) if text.0.starts_with(b"/"));
            let is_at_start = is_at_start && !parts.iter().any(has_slash);
            parts.iter().for_each(|part| collect_required(part, is_at_start, texts));
        }
        _ => {}
    }
}

/// Describes the error of an expression and suggests a correction.
fn explain_error(body: &str, error: &regex::Error) -> InvalidValue {
    if let regex::Error::CompiledTooBig(limit) = error {
        let remedy = format!("it takes more than {} KiB: repeat fewer times in `{{...}}`", limit / 1024);
        return InvalidValue::new("this regular expression is too large", remedy);
    }
    // The last line describes the error, the lines before it show its position.
    let text = error.to_string();
    let said = text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
    let remedy = match () {
        () if ["(?=", "(?!", "(?<=", "(?<!"].iter().any(|part| body.contains(part)) => {
            "look-around has no place in a search of linear time: write a route for the exception before this one"
        }
        () if said.contains("backreference") => "write the alternatives: `(a|b)`",
        () if said.contains("Unicode") => {
            "write the characters without a class: only those of ASCII are in classes"
        }
        () => "the syntax is RE2's: groups, classes, alternatives, repetitions",
    };
    InvalidValue::new(said, remedy)
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl fmt::Debug for Expression {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:?}", self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Expression, InvalidValue> {
        Expression::parse(text).unwrap()
    }

    #[test]
    fn groups_have_numbers_and_names() {
        let found = read(r"~ ^/user/(?<id>\d+)(/x)?$").unwrap();
        assert_eq!(found.groups().collect::<Vec<_>>(), ["1", "id", "2"]);
        let of = |path: &str| found.captures(path.as_bytes());
        let pair = |name: &str, value: &str| (name.to_owned(), value.as_bytes().to_vec());
        assert_eq!(of("/user/42"), Some(vec![pair("1", "42"), pair("id", "42"), pair("2", "")]));
        assert_eq!(of("/user/4/x"), Some(vec![pair("1", "4"), pair("id", "4"), pair("2", "/x")]));
        assert_eq!(of("/user/"), None);
    }

    #[test]
    fn expressions_match_bytes_and_may_ignore_case() {
        assert!(
            read("~*\\.PHP$").unwrap().is_match(b"/a.php") && !read("~ \\.PHP$").unwrap().is_match(b"/a.php")
        );
        let any = read("~ ^/a.b$").unwrap();
        assert!(any.is_match(b"/a\xffb") && any.is_match(b"/a\nb") && !any.is_match(b"/a\nb\n"));
        assert!(read("~ ^/caf\u{e9}").unwrap().is_match("/caf\u{e9}/x".as_bytes()));
        assert!(read("~/x").unwrap() == read("~/x").unwrap() && Expression::parse("/x").is_none());
    }

    #[test]
    fn unsupported_expressions_are_rejected_with_a_remedy() {
        for (text, part) in [
            ("~", "missing"),
            ("~ ", "missing"),
            ("~ ^/(?!admin)", "look"),
            ("~ (?<=a)b", "look"),
            (r"~ ^/(a)\1", "backreference"),
            ("~ ^/(a", "unclosed group"),
            ("~ ^/[a", "unclosed"),
            ("~ ((a{100}){100}){100}", "too large"),
            ("~ ^/[\u{e9}]", "Unicode"),
        ] {
            let fault = read(text).unwrap_err();
            assert!(fault.message.contains(part), "{text}: {fault}");
            assert!(!fault.remedy.is_empty(), "{text}");
        }
        assert!(read(&format!("~ {}", "a".repeat(TEXT_BYTES_MAX + 1))).is_err());
        assert!(read(&format!("~ {}", "(a)".repeat(GROUPS_MAX + 1))).is_err());
        assert!(read(&format!("~ {}", "(a)".repeat(GROUPS_MAX))).is_ok());
    }

    #[test]
    fn expressions_matching_everything_or_nothing_are_detected() {
        for text in [
            "~ ^/",
            "~ .*",
            "~ /",
            "~ ^/.*",
            "~ ^/.*$",
            "~ ^.*$",
            "~ ^.+$",
            "~* ^/(.*)$",
            "~ ^(/.*)$",
            "~ a*",
        ] {
            assert!(read(text).unwrap().matches_every_path(), "{text}");
        }
        for text in
            ["~ ^/a", "~ ^$", "~ ^/$", "~ ^/.", "~ .*a", "~ ^/[^.]*$", "~ ^/a?$", "~ ^/..*", "~ (?i)/b"]
        {
            assert!(!read(text).unwrap().matches_every_path(), "{text}");
        }
        for text in ["~ admin^", "~ ^/a^", "~ a$b", "~ (a|b)^/c", "~ (a^|b^)", r"~ \.php$/x"] {
            assert!(read(text).unwrap().has_misplaced_anchor(), "{text}");
        }
        for text in ["~ ^/admin", "~ (^|/)a", "~ a($|/)", "~ x?^/a", "~ (^/a|b^)", "~ ^/a$", "~ [$^]a"] {
            assert!(!read(text).unwrap().has_misplaced_anchor(), "{text}");
        }
    }

    #[test]
    fn backtracking_prone_patterns_are_matched_in_linear_time() {
        // With backtracking each of them takes longer than the age of the universe.
        let long = [&b"/"[..], &vec![b'a'; 4000], b"!"].concat();
        for text in ["~ ^/(a+)+$", "~ ^/(a|aa)+$", "~ ^/(a*)*b$", "~ ^/(.*a){12}$"] {
            assert!(!read(text).unwrap().is_match(&long), "{text}");
        }
    }
}
