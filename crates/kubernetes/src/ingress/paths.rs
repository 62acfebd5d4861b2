//! Paths of Ingresses, in the order of ingress-nginx.

use std::cmp::Reverse;

use shapes::pattern::PathPattern;
use shapes::template::nginx_target;

use crate::escape::LiteralPath;
use crate::objects::IngressHttpPath;

/// Kind of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum IngressPathKind {
    /// This path alone.
    Exact,
    /// This path, and all below it by elements.
    Prefix,
    /// All paths that begin with this text.
    Text,
}

/// A path of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IngressPath {
    pub(crate) kind: IngressPathKind,
    pub(crate) text: String,
}

/// Kind and text of a path: of two Ingresses with the same one, the older one has it.
pub(crate) type PathClaim = (IngressPathKind, String);

/// Place among the paths of a host: the least comes first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PathRank {
    /// 0 for `app-root`, 1 for exact paths, 2 for others, 3 for expressions of another namespace than that of the host, 4 for
    /// default backends.
    stage: u8,
    bytes: Reverse<usize>,
    kind: IngressPathKind,
    /// Of expressions that are as long, ingress-nginx takes the last by the alphabet.
    expression: Reverse<String>,
    /// Number of the Ingress by age, of the rule and path, and of the route.
    order: (usize, usize, usize),
}

impl PathRank {
    /// The rank of `app-root`.
    pub(crate) fn of_root(ingress: usize) -> PathRank {
        PathRank::new(0, 1, IngressPathKind::Exact, (ingress, 0, 0))
    }

    /// The rank of the refusal of line feeds, before everything else.
    pub(crate) fn of_line_feeds(ingress: usize) -> PathRank {
        PathRank::new(0, 2, IngressPathKind::Exact, (ingress, 0, 0))
    }

    /// The rank of a default backend.
    pub(crate) fn of_default(ingress: usize) -> PathRank {
        PathRank::new(4, 0, IngressPathKind::Text, (ingress, 0, 0))
    }

    fn new(stage: u8, bytes: usize, kind: IngressPathKind, order: (usize, usize, usize)) -> PathRank {
        PathRank { stage, bytes: Reverse(bytes), kind, expression: Reverse(String::new()), order }
    }

    /// Returns the rank of another route for the same path.
    pub(crate) fn part(&self, part: usize) -> PathRank {
        let (ingress, path, _) = self.order;
        PathRank { order: (ingress, path, part), ..self.clone() }
    }
}

/// A path as conditions of routes.
#[derive(Debug)]
pub(crate) struct MatchedPath {
    pub(crate) rank: PathRank,
    /// Patterns; none for every path.
    pub(crate) patterns: Vec<String>,
    /// Groups of the expression.
    pub(crate) groups: usize,
    /// The fault of an expression that is not valid: the patterns are those of its beginning, and have to be closed.
    pub(crate) fault: Option<String>,
}

impl IngressPath {
    /// Reads the path of a rule.
    pub(crate) fn of(path: &IngressHttpPath) -> IngressPath {
        let text = path.path.clone().filter(|text| !text.is_empty()).unwrap_or_else(|| "/".to_owned());
        let kind = match path.path_type.as_deref() {
            Some("Exact") => IngressPathKind::Exact,
            Some("Prefix") => IngressPathKind::Prefix,
            _ => IngressPathKind::Text,
        };
        IngressPath { kind, text }
    }

    /// Returns what no two Ingresses can have of a host.
    pub(crate) fn claim(&self) -> PathClaim {
        match (self.kind, self.text.trim_end_matches('/')) {
            (IngressPathKind::Prefix, text) => (IngressPathKind::Prefix, text.to_owned()),
            // Every path begins with a slash.
            (IngressPathKind::Text, "") => (IngressPathKind::Prefix, String::new()),
            (kind, _) => (kind, self.text.clone()),
        }
    }

    /// Whether the path concerns HTTP-01 challenges, which are never redirected to TLS.
    pub(crate) fn is_challenge(&self) -> bool {
        self.text.starts_with("/.well-known/acme-challenge")
    }

    /// Returns the conditions of a plain path. `order` is the number of the Ingress, and of the rule and path.
    pub(crate) fn plain(&self, order: (usize, usize)) -> Result<MatchedPath, String> {
        let literal = LiteralPath::new(&self.text).ok_or_else(|| format!("{:?} is not a path", self.text))?;
        let stage = if self.kind == IngressPathKind::Exact { 1 } else { 2 };
        let rank = PathRank::new(stage, literal.len(), self.kind, (order.0, order.1, 0));
        let patterns = match self.kind {
            IngressPathKind::Exact => vec![literal.exact()],
            _ if self.text == "/" => Vec::new(),
            IngressPathKind::Prefix => {
                let literal = literal.without_slash();
                if literal.is_empty() { Vec::new() } else { vec![literal.exact(), literal.below().0] }
            }
            IngressPathKind::Text => vec![literal.beginning()],
        };
        Ok(MatchedPath { rank, patterns, groups: 0, fault: None })
    }

    /// Returns the conditions of an expression, which ignores case and begins at the start of the path. `is_foreign` is whether the host
    /// belongs to another namespace; `has_exact` whether the same text is an exact path of the host.
    pub(crate) fn expression(&self, order: (usize, usize), is_foreign: bool, has_exact: bool) -> MatchedPath {
        let stage = if is_foreign { 3 } else { 2 };
        let mut rank = PathRank::new(stage, self.text.len(), self.kind, (order.0, order.1, 0));
        rank.expression = Reverse(self.text.clone());
        let is_folder = self.kind == IngressPathKind::Prefix && has_exact && !self.text.ends_with('/');
        let text = if is_folder { format!("{}/", self.text) } else { self.text.clone() };
        if text == "/" {
            return MatchedPath { rank, patterns: Vec::new(), groups: 0, fault: None };
        }
        let pattern = format!("~* ^{text}");
        match PathPattern::parse(&pattern) {
            Ok(parsed) => {
                let groups = parsed.groups().iter().filter(|name| name.parse::<usize>().is_ok()).count();
                MatchedPath { rank, patterns: vec![pattern], groups, fault: None }
            }
            Err(fault) => {
                let fault =
                    format!("the path {:?} is not a regular expression: {}", self.text, fault.message);
                MatchedPath {
                    rank,
                    patterns: vec![format!("~* ^{}", literal_start(&text))],
                    groups: 0,
                    fault: Some(fault),
                }
            }
        }
    }
}

/// Returns the literal beginning of an expression, escaped.
fn literal_start(text: &str) -> String {
    let end = text
        .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_')))
        .unwrap_or(text.len());
    let start = &text[..end];
    // A quantifier makes the last character optional.
    let start = if text[end..].starts_with(['?', '*', '{']) {
        &start[..start.len().saturating_sub(1)]
    } else {
        start
    };
    // The other alternatives may be anywhere.
    let start = if text.contains('|') { "" } else { start };
    regex_syntax::escape(start)
}

/// Returns the path for `rewrite`: groups (`$1`) that the expression has, and everything else as it is.
pub(crate) fn rewrite_template(target: &str, groups: usize) -> String {
    let mut out = String::new();
    let mut rest = target;
    while let Some(at) = rest.find('$') {
        out += &encoded(&rest[..at]);
        rest = &rest[at + 1..];
        let (name, after) = match rest.strip_prefix('{').and_then(|braced| braced.split_once('}')) {
            Some((name, after)) => (name, after),
            // nginx reads one digit.
            None => rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()).min(1)),
        };
        match name.parse::<usize>() {
            Ok(number) if (1..=groups).contains(&number) => out += &format!("${{{number}}}"),
            // A group that the expression does not have is empty.
            Ok(_) => {}
            Err(_) => {
                out += "$$";
                continue;
            }
        }
        rest = after;
    }
    out += &encoded(rest);
    let out = nginx_target(&out);
    if out.starts_with('/') { out } else { format!("/{out}") }
}

/// Encodes everything that is no part of a path with its query.
fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'#' | b'\\' | b'"' | b'<' | b'>' | b'{' | b'}' | b'|' | b'^' | b'`' => {
                out += &format!("%{byte:02X}")
            }
            0x21..=0x7e => out.push(char::from(byte)),
            _ => out += &format!("%{byte:02X}"),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(kind: IngressPathKind, text: &str) -> IngressPath {
        IngressPath { kind, text: text.to_owned() }
    }

    #[test]
    fn plain_paths_match_as_their_kind_says() {
        let patterns = |kind, text: &str| path(kind, text).plain((0, 0)).unwrap().patterns;
        assert_eq!(patterns(IngressPathKind::Exact, "/a"), ["/a"]);
        assert_eq!(patterns(IngressPathKind::Exact, "/"), ["/"]);
        assert_eq!(patterns(IngressPathKind::Prefix, "/a/"), ["/a", "/a/*"]);
        assert_eq!(patterns(IngressPathKind::Prefix, "/"), [""; 0]);
        assert_eq!(patterns(IngressPathKind::Text, "/a"), ["/a*"]);
        assert_eq!(patterns(IngressPathKind::Text, "/a*b"), ["~ ^/a\\*b"]);
        assert!(path(IngressPathKind::Exact, "a").plain((0, 0)).is_err());
    }

    #[test]
    fn paths_stand_in_the_order_of_ingress_nginx() {
        let mut paths = [
            path(IngressPathKind::Text, "/aa"),
            path(IngressPathKind::Prefix, "/"),
            path(IngressPathKind::Prefix, "/aa"),
            path(IngressPathKind::Exact, "/a"),
            path(IngressPathKind::Prefix, "/aa/bb"),
        ];
        paths.sort_by_key(|path| path.plain((0, 0)).unwrap().rank);
        let shown: Vec<String> = paths.iter().map(|path| format!("{:?} {}", path.kind, path.text)).collect();
        assert_eq!(shown, ["Exact /a", "Prefix /aa/bb", "Prefix /aa", "Text /aa", "Prefix /"]);
        let own = path(IngressPathKind::Text, "/a").expression((0, 0), false, false).rank;
        let foreign = path(IngressPathKind::Text, "/(.*)(.*)").expression((1, 0), true, false).rank;
        assert!(own < foreign && path(IngressPathKind::Prefix, "/").plain((0, 0)).unwrap().rank < foreign);
    }

    #[test]
    fn expressions_have_groups_and_faults() {
        let of = |text: &str| path(IngressPathKind::Text, text).expression((0, 0), false, false);
        assert_eq!(
            (of("/a(/|$)(.*)").groups, of("/a(/|$)(.*)").patterns),
            (2, vec!["~* ^/a(/|$)(.*)".to_owned()])
        );
        for (text, start) in
            [("/ab(", "~* ^/ab"), ("/a|/b(", "~* ^"), ("/ab*(", "~* ^/a"), ("/a.b[", "~* ^/a")]
        {
            let found = of(text);
            assert!(found.fault.is_some(), "{text}");
            assert_eq!(found.patterns, [start], "{text}");
        }
        assert!(of(&format!("/{}", "(a".repeat(10_000))).fault.is_some());
    }

    #[test]
    fn targets_have_groups_of_the_expression() {
        assert_eq!(rewrite_template("/$2", 2), "/${2}");
        assert_eq!(rewrite_template("/x$1/y?z=$2", 1), "/x${1}/y?z=&$args");
        assert_eq!(rewrite_template("/${1}0", 1), "/${1}0");
        assert_eq!(rewrite_template("/$10", 1), "/${1}0");
        assert_eq!(rewrite_template("/$host/a b", 1), "/$$host/a%20b");
        assert_eq!(rewrite_template("x", 0), "/x");
    }
}
