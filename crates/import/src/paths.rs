//! Conversion of regular expressions to path patterns with `*` and `**`; a wider pattern is used where there
//! is not exact.

use crate::findings::Untranslatable;

use std::iter::Peekable;
use std::str::Chars;

/// Maximum number of alternatives to which one expression may expand.
const ALTERNATIVES_MAX: usize = 64;
/// Maximum number of alternatives for which examples are generated.
const EXAMPLES_MAX: usize = 6;
/// Maximum nesting depth of groups.
const DEPTH_MAX: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq)]
enum PathPiece {
    Char(char),
    /// Any run of characters without a slash.
    Segment,
    /// Any run of characters.
    Any,
    Start,
    End,
}

/// Path patterns that replace a regular expression.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PathSet {
    pub(crate) patterns: Vec<String>,
    /// Difference between the paths matched by the patterns and by the expression; `None` if they are equal.
    pub(crate) difference: Option<String>,
}

type Alternatives = Vec<Vec<PathPiece>>;

struct RegexReader<'a> {
    chars: Peekable<Chars<'a>>,
    depth: usize,
    is_wider: bool,
    ignores_case: bool,
}

impl RegexReader<'_> {
    fn parse_alternatives(&mut self) -> Result<Alternatives, Untranslatable> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err("its groups are nested too deeply".into());
        }
        let mut all = Vec::new();
        let mut now: Alternatives = vec![Vec::new()];
        while let Some(&c) = self.chars.peek() {
            match c {
                ')' => break,
                '|' => {
                    self.chars.next();
                    all.append(&mut now);
                    now = vec![Vec::new()];
                }
                _ => {
                    let part = self.parse_repeated()?;
                    now = concatenate(&now, &part)?;
                }
            }
        }
        all.append(&mut now);
        self.depth -= 1;
        if all.len() > ALTERNATIVES_MAX { Err("it has too many alternatives".into()) } else { Ok(all) }
    }

    fn parse_repeated(&mut self) -> Result<Alternatives, Untranslatable> {
        let atom = self.parse_atom()?;
        let quantifier = match self.chars.peek() {
            Some(&c @ ('*' | '+' | '?')) => c,
            Some('{') => '{',
            _ => {
                // A class that matches a single character is widened to a run.
                self.is_wider |=
                    atom.iter().flatten().any(|p| matches!(p, PathPiece::Segment | PathPiece::Any))
                        && atom.len() == 1
                        && atom[0].len() == 1;
                return Ok(atom);
            }
        };
        self.chars.next();
        if quantifier == '{' {
            self.chars.by_ref().find(|&c| c == '}').ok_or("a `{` is not closed")?;
        }
        if let Some('+') = self.chars.next_if(|&c| matches!(c, '?' | '+')) {
            // A possessive quantifier does not backtrack and therefore matches less.
            self.is_wider = true;
        }
        let run = if atom.iter().flatten().any(|p| matches!(p, PathPiece::Any | PathPiece::Char('/'))) {
            PathPiece::Any
        } else {
            PathPiece::Segment
        };
        let is_run = atom.len() == 1 && atom[0].len() == 1 && atom[0][0] == run;
        Ok(match quantifier {
            '?' if !is_run => atom.into_iter().chain([Vec::new()]).collect(),
            '*' => {
                self.is_wider |= !is_run;
                vec![vec![run]]
            }
            _ if is_run => {
                self.is_wider |= quantifier != '+' || run == PathPiece::Any;
                vec![vec![run]]
            }
            '+' => {
                self.is_wider = true;
                concatenate(&atom, &vec![vec![run]])?
            }
            _ => {
                self.is_wider = true;
                vec![vec![run]]
            }
        })
    }

    fn parse_atom(&mut self) -> Result<Alternatives, Untranslatable> {
        let one = |piece| Ok(vec![vec![piece]]);
        match self.chars.next() {
            Some('^') => one(PathPiece::Start),
            Some('$') => one(PathPiece::End),
            Some('.') => one(PathPiece::Any),
            Some('[') => self.parse_class(),
            Some('(') => self.parse_group(),
            Some('\\') => match self.chars.next() {
                Some('d' | 'w' | 's') => {
                    // These classes are narrower than `*`.
                    self.is_wider = true;
                    one(PathPiece::Segment)
                }
                Some('D' | 'W' | 'S') => one(PathPiece::Any),
                Some('b' | 'B' | 'A' | 'Z' | 'z' | 'G') => Err("it has an assertion".into()),
                Some(c) if c.is_ascii_digit() => Err("it refers to one of its own groups".into()),
                Some(c) if !c.is_ascii_alphanumeric() => one(PathPiece::Char(c)),
                Some(c) => Err(format!("it has the escape `\\{c}`").into()),
                None => Err("it ends with a backslash".into()),
            },
            Some(c) => one(PathPiece::Char(c)),
            None => Ok(vec![Vec::new()]),
        }
    }

    fn parse_group(&mut self) -> Result<Alternatives, Untranslatable> {
        if self.chars.next_if_eq(&'?').is_some() {
            match self.chars.next() {
                Some(':') => {}
                Some('i') if self.chars.next_if_eq(&')').is_some() => {
                    self.ignores_case = true;
                    return Ok(vec![Vec::new()]);
                }
                Some('P') | Some('<') if !matches!(self.chars.peek(), Some('=' | '!')) => {
                    self.chars.by_ref().find(|&c| c == '>').ok_or("a group's name is not closed")?;
                }
                _ => return Err("it looks ahead or back, which no path pattern can".into()),
            }
        }
        let inner = self.parse_alternatives()?;
        match self.chars.next() {
            Some(')') => Ok(inner),
            _ => Err("a `(` is not closed".into()),
        }
    }

    fn parse_class(&mut self) -> Result<Alternatives, Untranslatable> {
        let negated = self.chars.next_if_eq(&'^').is_some();
        let mut members = Vec::new();
        let mut is_range = false;
        let mut first = true;
        loop {
            match self.chars.next() {
                None => return Err("a `[` is not closed".into()),
                Some(']') if !first => break,
                Some('\\') => match self.chars.next() {
                    Some('d' | 'w' | 's') => is_range = true,
                    Some(c) if !c.is_ascii_alphanumeric() => members.push(c),
                    Some(c) => return Err(format!("a class has the escape `\\{c}`").into()),
                    None => return Err("a `[` is not closed".into()),
                },
                Some('-') if !members.is_empty() && self.chars.peek().is_some_and(|&c| c != ']') => {
                    is_range = true;
                }
                Some(c) => members.push(c),
            }
            first = false;
        }
        let has_slash = members.contains(&'/');
        let piece = if has_slash != negated { PathPiece::Any } else { PathPiece::Segment };
        let is_repeated = self.chars.peek().is_some_and(|c| matches!(c, '*' | '+' | '{'));
        if negated || is_range || is_repeated || members.len() > 6 {
            // Only `[^/]` is equivalent to `*`; all other classes are narrower.
            self.is_wider |= !(negated && members == ['/']);
            return Ok(vec![vec![piece]]);
        }
        Ok(members.into_iter().map(|c| vec![PathPiece::Char(c)]).collect())
    }
}

fn concatenate(left: &Alternatives, right: &Alternatives) -> Result<Alternatives, Untranslatable> {
    if left.len() * right.len() > ALTERNATIVES_MAX {
        return Err("it has too many alternatives".into());
    }
    let joined = |l: &Vec<PathPiece>| {
        let l = l.clone();
        right.iter().map(move |r| [l.as_slice(), r.as_slice()].concat()).collect::<Vec<_>>()
    };
    Ok(left.iter().flat_map(joined).collect())
}

fn parse_regex(regex: &str, ignores_case: bool) -> Result<(Alternatives, bool, bool), Untranslatable> {
    let mut reader = RegexReader { chars: regex.chars().peekable(), depth: 0, is_wider: false, ignores_case };
    let all = reader.parse_alternatives()?;
    match reader.chars.next() {
        Some(_) => Err("a `)` is not opened".into()),
        None => Ok((all, reader.is_wider, reader.ignores_case)),
    }
}

/// Returns path patterns for a regular expression of nginx or Unit, with their difference from it.
///
/// # Errors
/// The reason why there are no such patterns.
pub(crate) fn from_regex(regex: &str, ignores_case: bool) -> Result<PathSet, Untranslatable> {
    let (all, mut wider, ignores_case) = parse_regex(regex, ignores_case)?;
    let mut patterns = Vec::new();
    for alternative in all {
        if let Some((pattern, is_wider)) = pattern_of(&alternative) {
            wider |= is_wider;
            patterns.push(pattern);
        }
    }
    let mut differs = Vec::new();
    if wider {
        differs.push("the patterns match more than the regular expression");
    }
    if ignores_case && patterns.iter().any(|one| one.contains(|c: char| c.is_alphabetic())) {
        differs.push("paths match in lower and in upper case, but not in mixed case");
        let upper: Vec<String> = patterns.iter().map(|one| one.to_uppercase()).collect();
        patterns = patterns.iter().map(|one| one.to_lowercase()).chain(upper).collect();
    }
    let mut seen = Vec::new();
    patterns.retain(|one| {
        !seen.contains(one) && {
            seen.push(one.clone());
            true
        }
    });
    if patterns.is_empty() {
        Err("no path can match it".into())
    } else {
        Ok(PathSet { patterns, difference: (!differs.is_empty()).then(|| differs.join("; ")) })
    }
}

/// Converts one alternative to a path pattern; the flag tells whether the pattern matches more. `None` if no
/// path pattern can match it.
fn pattern_of(pieces: &[PathPiece]) -> Option<(String, bool)> {
    let mut pieces = pieces.to_vec();
    match pieces.first() {
        Some(PathPiece::Start) => drop(pieces.remove(0)),
        _ => pieces.insert(0, PathPiece::Any),
    }
    match pieces.last() {
        Some(PathPiece::End) => drop(pieces.pop()),
        _ => pieces.push(PathPiece::Any),
    }
    if pieces.iter().any(|piece| matches!(piece, PathPiece::Start | PathPiece::End)) {
        return None;
    }
    let mut wider = false;
    let mut merged: Vec<PathPiece> = Vec::new();
    for piece in pieces {
        let is_run = |piece: &PathPiece| matches!(piece, PathPiece::Any | PathPiece::Segment);
        match merged.last_mut() {
            Some(last) if is_run(last) && is_run(&piece) => {
                if piece == PathPiece::Any {
                    *last = PathPiece::Any;
                }
            }
            _ => merged.push(piece),
        }
    }
    // The first and the last `*` of a pattern match slashes as well.
    for at in [0, merged.len().saturating_sub(1)] {
        if let Some(piece @ PathPiece::Segment) = merged.get_mut(at) {
            *piece = PathPiece::Any;
            wider = true;
        }
    }
    let last = merged.len().saturating_sub(1);
    let mut out = String::new();
    for (at, piece) in merged.iter().enumerate() {
        match piece {
            PathPiece::Char('*') => {
                out.push('*');
                wider = true;
            }
            PathPiece::Char(c) => out.push(*c),
            PathPiece::Any if at == 0 || at == last => out.push('*'),
            PathPiece::Any => out.push_str("**"),
            _ => out.push('*'),
        }
    }
    let is_path = out.starts_with(['/', '*'])
        && !out.contains(['?', '#', '\\', '%'])
        && !out.chars().any(char::is_control)
        && !out.split('/').any(|segment| matches!(segment, "." | ".."));
    is_path.then_some((out, wider))
}

/// Texts that a regular expression matches, with flags for anchors at the start and at the end. Lookaround
/// assertions are ignored.
pub(crate) fn matching_examples(regex: &str) -> Vec<(String, bool, bool)> {
    let mut plain = regex.to_owned();
    while let Some(at) = ["(?!", "(?=", "(?<!", "(?<="].iter().filter_map(|start| plain.find(start)).min() {
        let end = plain[at..].find(')').map_or(plain.len(), |end| at + end + 1);
        plain.replace_range(at..end, "");
    }
    let Ok((all, ..)) = parse_regex(&plain, false) else { return Vec::new() };
    let mut found: Vec<(String, bool, bool)> = Vec::new();
    for alternative in all.iter().take(EXAMPLES_MAX) {
        for run in ["1", "ab", "a-1"] {
            let text: String = alternative
                .iter()
                .map(|piece| match piece {
                    PathPiece::Char(c) => c.to_string(),
                    PathPiece::Segment | PathPiece::Any => run.to_owned(),
                    PathPiece::Start | PathPiece::End => String::new(),
                })
                .collect();
            let one = (text, alternative.contains(&PathPiece::Start), alternative.contains(&PathPiece::End));
            if !found.contains(&one) {
                found.push(one);
            }
        }
    }
    found
}

/// Whether a regular expression may match a path that ends with a slash.
pub(crate) fn may_be_folder(regex: &str) -> bool {
    let Ok((all, ..)) = parse_regex(regex, true) else { return true };
    all.iter().any(|alternative| match alternative.as_slice() {
        [.., PathPiece::Char(last), PathPiece::End] => *last == '/',
        _ => true,
    })
}

/// Whether a regular expression may match the path of a file with this name without matching the path of its
/// directory. Returns true if this cannot be determined.
pub(crate) fn may_match_only_file(regex: &str, name: &str) -> bool {
    let Ok((all, ..)) = parse_regex(strip_match_all(regex), true) else { return true };
    let file = format!("/{name}").to_lowercase();
    all.iter().any(|alternative| {
        let (before, is_bound) = match alternative.as_slice() {
            [before @ .., PathPiece::End] => (before, true),
            all => (all, false),
        };
        let literal = before.iter().rev().map_while(|piece| match piece {
            PathPiece::Char(c) => Some(*c),
            _ => None,
        });
        let tail: String =
            literal.collect::<Vec<char>>().into_iter().rev().collect::<String>().to_lowercase();
        let ends = |text: &str| text.ends_with(&tail) || tail.ends_with(text);
        match is_bound {
            true => ends(&file),
            // The match may end anywhere within the name.
            false => (2..=file.len()).filter_map(|end| file.get(..end)).any(ends),
        }
    })
}

/// Strips a `.*` or `(.*)`, which also matches the empty text, from the end of an expression.
fn strip_match_all(regex: &str) -> &str {
    let body = regex.strip_suffix('$').unwrap_or(regex);
    if let Some(start) = body.strip_suffix(".*") {
        return start;
    }
    let group = body.strip_suffix(".*)").and_then(|body| Some((body, body.rfind('(')?)));
    match group {
        Some((body, at))
            if matches!(&body[at..], "(" | "(?:") || body[at..].starts_with("(?<") && body.ends_with('>') =>
        {
            &regex[..at]
        }
        _ => regex,
    }
}

/// Returns the hosts that a regular expression names, if they can be enumerated (`^(www\.)?example\.com$`),
/// and whether they match more than the expression.
pub(crate) fn hosts_from_regex(regex: &str) -> Option<(Vec<String>, bool)> {
    let (all, mut wider, _) = parse_regex(regex, true).ok()?;
    let mut hosts = Vec::new();
    for alternative in all {
        let inner = match alternative.as_slice() {
            [PathPiece::Start, inner @ .., PathPiece::End] => inner,
            [inner @ .., PathPiece::End] => {
                wider = true;
                inner
            }
            _ => return None,
        };
        let (wildcard, inner) = match inner {
            [PathPiece::Segment | PathPiece::Any, rest @ ..] => ("*", rest),
            all => ("", all),
        };
        let mut host = wildcard.to_owned();
        for piece in inner {
            match piece {
                PathPiece::Char(c) => host.push(*c),
                _ => return None,
            }
        }
        if !wildcard.is_empty() && !host.starts_with("*.") {
            return None;
        }
        wider |= !wildcard.is_empty();
        hosts.push(host.to_lowercase());
    }
    Some((hosts, wider))
}

/// Returns a path pattern for the literal `path`, or for everything that begins with it; `None` if the text
/// has characters that are special in patterns.
pub(crate) fn from_literal(path: &str, is_prefix: bool) -> Option<String> {
    let is_plain = path.starts_with('/')
        && !path.contains(['*', '?', '#', '\\', '%'])
        && !path.chars().any(char::is_control)
        && !path.split('/').any(|segment| matches!(segment, "." | ".."));
    is_plain.then(|| if is_prefix { format!("{path}*") } else { path.to_owned() })
}

/// Returns a pattern for the paths that begin with `prefix` and match the suffix pattern (`*.txt`); `None` if
/// prefix and suffix may overlap or the pattern is not a suffix.
pub(crate) fn below_suffix(prefix: &str, pattern: &str) -> Option<String> {
    let suffix = pattern.strip_prefix('*').filter(|suffix| !suffix.is_empty() && !suffix.contains('*'))?;
    let is_shared = |end: usize| suffix.get(..end).is_some_and(|start| prefix.ends_with(start));
    let is_plain = from_literal(prefix, true).is_some() && !(1..=suffix.len()).any(is_shared);
    is_plain.then(|| format!("{prefix}**{suffix}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn convert(regex: &str) -> String {
        match from_regex(regex, false) {
            Ok(set) => {
                format!("{}{}", set.patterns.join(" "), set.difference.map_or("", |_| " ~"))
            }
            Err(reason) => format!("! {reason}"),
        }
    }

    #[test]
    fn expressions_are_converted_to_patterns() {
        for (regex, patterns) in [
            (r"\.php$", "*.php"),
            (r"\.(jpe?g|png)$", "*.jpeg *.jpg *.png"),
            (r"^/images/", "/images/*"),
            (r"^/(a|b)/c$", "/a/c /b/c"),
            (r"/\.", "*/.*"),
            (r"^/user/[^/]+/edit$", "/user/*/edit"),
            (r"^/user/(\d+)$", "/user/* ~"),
            (r"^/a[bc]$", "/ab /ac"),
            (r"^/a.*z$", "/a**z"),
            (r"^/(?<name>[a-z]+)/x$", "/*/x ~"),
            (r"\.(?:css|js)$", "*.css *.js"),
            (r"^/.+\.php(/|$)", "/**.php/* /**.php ~"),
            (r"^/v\d+/", "/v*/* ~"),
            (r"^/a/.+$", "/a/* ~"),
            (r"^/[a-z]+/x$", "/*/x ~"),
            (r"^.*$", "*"),
            (r"^a", "! no path can match it"),
            (r"/\.(?!well-known)", "! it looks ahead or back, which no path pattern can"),
            (r"(a", "! a `(` is not closed"),
            (r"a)", "! a `)` is not opened"),
        ] {
            assert_eq!(convert(regex), patterns, "{regex}");
        }
        assert_eq!(
            from_regex("[a-z]{1,3}(x{1,3}){9}((((((((((((((((((((a))))))))))))))))))))", false).ok(),
            None
        );
        let set = from_regex(r"\.Png$", true).unwrap();
        assert_eq!(set.patterns, ["*.png", "*.PNG"]);
    }

    #[test]
    fn example_paths_of_expressions_are_generated() {
        let of = |regex: &str| {
            let shown = |(text, start, end): (String, bool, bool)| {
                format!("{}{text}{}", if start { "^" } else { "" }, if end { "$" } else { "" })
            };
            matching_examples(regex).into_iter().map(shown).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of(r"\.(css|js)$"), ".css$ .js$");
        assert_eq!(of(r"^/user/(\d+)$"), "^/user/1$ ^/user/ab$ ^/user/a-1$");
        assert_eq!(of(r"/\.(?!well-known)"), "/.");
        assert_eq!(of("(a"), "");
    }

    #[test]
    fn hosts_are_extracted_from_expressions() {
        let hosts = |regex: &str| hosts_from_regex(regex).map(|(hosts, _)| hosts.join(" "));
        assert_eq!(hosts(r"^(www\.)?example\.com$").as_deref(), Some("www.example.com example.com"));
        assert_eq!(hosts(r"^(?<user>.+)\.example\.com$").as_deref(), Some("*.example.com"));
        assert_eq!(hosts(r"^www\d+\.example\.com$"), None);
    }

    #[test]
    fn expressions_for_files_and_directories_are_detected() {
        for (regex, expected) in [
            (r"\.txt$", false),
            (r"\.(txt|HTML)$", true),
            (r"^/a/.+$", true),
            (r"^/a/index\.html$", true),
            (r"^/a/", false),
            (r"^/a/(?<rest>.*)$", false),
            (r"^/a/.*", false),
            (r"/b", false),
            (r"/in", true),
            (r"^/[^/]+/verify", false),
            (r"(?!a)", true),
        ] {
            assert_eq!(may_match_only_file(regex, "index.html"), expected, "{regex}");
        }
        for (regex, expected) in [(r"\.(a|b)$", false), (r"/$", true), (r"\.a", true), (r"^/[a-z]+$", true)] {
            assert_eq!(may_be_folder(regex), expected, "{regex}");
        }
    }

    #[test]
    fn suffix_pattern_is_placed_below_a_prefix() {
        assert_eq!(below_suffix("/a/", "*.php").as_deref(), Some("/a/**.php"));
        for (prefix, pattern) in
            [("/a/", "*/x"), ("/a.t", "*.txt"), ("/a/", "*/.*"), ("/a%", "*.txt"), ("/a/", "/b*")]
        {
            assert_eq!(below_suffix(prefix, pattern), None, "{prefix} {pattern}");
        }
    }
}
