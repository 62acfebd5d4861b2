//! Paths that a handler has changed: later matchers of Caddy look at the new path, conditions of Komainu at
//! the client's.

use crate::expressions::{escape_literal, path_matches};
use crate::findings::Untranslatable;

/// Relation of the path that the next handlers see to the path that the client sent.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) enum ChangedPath {
    /// Both are equal.
    #[default]
    Same,
    /// The client's path without this prefix. `always` is set if all paths of the route begin with it.
    Stripped { prefix: String, always: bool },
    /// This text, followed by the client's path.
    Prefixed(String),
    /// The same path for all requests.
    Fixed(String),
    /// The client's path if there is such a file, otherwise one of these.
    Tried(Vec<String>),
    /// Any other.
    Unknown,
}

/// Reason why a matcher has no translation.
const REASON: &str = "a matcher looks at the path after it was changed; a route, at the path of the client";

impl ChangedPath {
    /// Returns the relation after a prefix was removed. `around` is the `path` of the route.
    pub(super) fn without_prefix(&self, prefix: &str, around: Option<&str>) -> Self {
        let starts = |path: &str| path.strip_suffix('*').is_some_and(|start| starts_with(start, prefix));
        match self {
            Self::Same if prefix.starts_with('/') && !prefix.ends_with('/') && !prefix.contains('%') => {
                Self::Stripped { prefix: prefix.to_owned(), always: around.is_some_and(starts) }
            }
            _ => Self::Unknown,
        }
    }

    /// Returns the relation after a rewrite to a text with variables.
    pub(super) fn rewritten(&self, to: &str) -> Self {
        let path = to.split('?').next().unwrap_or(to);
        let start = path.strip_suffix("$uri").or(path.strip_suffix("$path"));
        match (self, start) {
            (_, None) if !path.contains('$') => Self::Fixed(path.to_owned()),
            (Self::Same, Some("")) => Self::Same,
            (Self::Same, Some(start)) if !start.contains('$') => Self::Prefixed(start.to_owned()),
            _ => Self::Unknown,
        }
    }

    /// Returns the relation after `try_files` with these paths.
    pub(super) fn tried(&self, paths: &[String]) -> Self {
        let others: Vec<String> = paths.iter().filter(|path| *path != "$path").cloned().collect();
        match self {
            Self::Same if others.iter().all(|path| !path.contains('$')) => Self::Tried(others),
            _ => Self::Unknown,
        }
    }

    /// Returns the patterns of the client's paths whose changed paths match `pattern`; `None` if all do.
    ///
    /// # Errors
    /// No patterns match exactly these.
    pub(super) fn original_patterns(&self, pattern: &str) -> Result<Option<Vec<String>>, Untranslatable> {
        let unchanged = || Ok(Some(vec![pattern.to_owned()]));
        let (head, has_star) = match pattern.split_once('*') {
            Some((head, _)) => (head, true),
            None => (pattern, false),
        };
        let is_suffix = pattern.strip_prefix('*').is_some_and(|end| !end.contains(['*', '/']));
        match self {
            Self::Same => unchanged(),
            _ if matches!(pattern, "*" | "/*") => Ok(None),
            Self::Fixed(path) => Ok(if self.matches_fixed(pattern, path) { None } else { Some(Vec::new()) }),
            Self::Tried(paths) if !paths.iter().any(|path| self.matches_fixed(pattern, path)) => {
                // The file of the path with a slash behind it is found too, and has the path without.
                let is_bound = !pattern.ends_with(['*', '/']);
                let with_slash = is_bound.then(|| format!("{pattern}/"));
                Ok(Some(std::iter::once(pattern.to_owned()).chain(with_slash).collect()))
            }
            Self::Stripped { .. } | Self::Prefixed(_) if is_suffix => unchanged(),
            Self::Stripped { prefix, always } if pattern.starts_with('/') => {
                let with_prefix = format!("{prefix}{pattern}");
                if *always || starts_with(head, prefix) {
                    Ok(Some(vec![with_prefix]))
                } else if has_star && starts_with(prefix, head) {
                    Err(REASON.into())
                } else {
                    Ok(Some(vec![pattern.to_owned(), with_prefix]))
                }
            }
            Self::Prefixed(start) if pattern.starts_with('/') => {
                if starts_with(head, start) {
                    match &pattern[start.len()..] {
                        "*" => Ok(None),
                        rest if rest.starts_with('/') => Ok(Some(vec![rest.to_owned()])),
                        rest if rest.starts_with('*') => Err(REASON.into()),
                        // The client's path begins with a slash.
                        _ => Ok(Some(Vec::new())),
                    }
                } else if has_star && starts_with(start, head) {
                    if pattern.len() == head.len() + 1 { Ok(None) } else { Err(REASON.into()) }
                } else {
                    Ok(Some(Vec::new()))
                }
            }
            _ => Err(REASON.into()),
        }
    }

    fn matches_fixed(&self, pattern: &str, path: &str) -> bool {
        path_matches(&case_insensitive_pattern(pattern), path)
    }

    /// Checks that an expression can be matched against the client's path.
    ///
    /// # Errors
    /// The expression would match other paths than in Caddy.
    pub(super) fn check_expression(&self, pattern: &str) -> Result<(), Untranslatable> {
        match self {
            Self::Same => Ok(()),
            // An end of the path would be that without the slash behind it, which the file of a path with one has.
            Self::Tried(paths)
                if !pattern.contains('$') && !paths.iter().any(|path| path_matches(pattern, path)) =>
            {
                Ok(())
            }
            _ => Err(REASON.into()),
        }
    }
}

/// Whether `text` begins with `start`, regardless of case as in Caddy.
fn starts_with(text: &str, start: &str) -> bool {
    text.get(..start.len()).is_some_and(|head| head.eq_ignore_ascii_case(start))
}

/// Returns a pattern that matches the paths that Caddy's matcher `path` does. Expressions are kept.
///
/// A `*` at one end stands for any text, and so do both of two at the ends. In all other patterns a `*` stands for
/// text without a slash, also at the end.
pub(super) fn case_insensitive_pattern(text: &str) -> String {
    let at_ends = usize::from(text.starts_with('*')) + usize::from(text.ends_with('*') && text.len() > 1);
    let has_only_ends = text.matches('*').count() == at_ends;
    if text.starts_with('~') || has_only_ends && !text.contains(|c: char| c.is_ascii_alphabetic()) {
        return text.to_owned();
    }
    let (start, inner, end) = if has_only_ends {
        let start = if text.starts_with('*') { "" } else { "^" };
        let end = if text.ends_with('*') { "" } else { "$" };
        (start, text.trim_matches('*'), end)
    } else {
        ("^", text, "$")
    };
    format!("~* {start}{}{end}", escape_literal(inner).replace("\\*", "[^/]*"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_changed_paths_become_those_of_clients() {
        let stripped = |always| ChangedPath::Stripped { prefix: "/s".to_owned(), always };
        let prefixed = ChangedPath::Prefixed("/sub".to_owned());
        let fixed = ChangedPath::Fixed("/a.html".to_owned());
        let tried = ChangedPath::Tried(vec!["/index.html".to_owned()]);
        for (changed, pattern, expected) in [
            (ChangedPath::Same, "/a*", "/a*"),
            (stripped(true), "/admin*", "/s/admin*"),
            (stripped(false), "/admin*", "/admin* /s/admin*"),
            (stripped(false), "/S/admin*", "/s/S/admin*"),
            (stripped(false), "/*", "every"),
            (ChangedPath::Stripped { prefix: "/static".to_owned(), always: false }, "/st*", "!"),
            (stripped(true), "*.php", "*.php"),
            (stripped(true), "*a*", "!"),
            (prefixed.clone(), "/sub/admin*", "/admin*"),
            (prefixed.clone(), "/SUB*", "every"),
            (prefixed.clone(), "/s*", "every"),
            (prefixed.clone(), "/s*x", "!"),
            (prefixed.clone(), "/sub*x", "!"),
            (prefixed.clone(), "/sub", ""),
            (prefixed.clone(), "/admin*", ""),
            (prefixed, "*.php", "*.php"),
            (fixed.clone(), "/A*", "every"),
            (fixed, "/b*", ""),
            (tried.clone(), "/admin/*", "/admin/*"),
            (tried.clone(), "/admin", "/admin /admin/"),
            (tried.clone(), "*.txt", "*.txt *.txt/"),
            (tried, "*.html", "!"),
            (ChangedPath::Unknown, "/a*", "!"),
        ] {
            let found = match changed.original_patterns(pattern) {
                Ok(None) => "every".to_owned(),
                Ok(Some(patterns)) => patterns.join(" "),
                Err(_) => "!".to_owned(),
            };
            assert_eq!(found, expected, "{changed:?} {pattern}");
        }
    }

    #[test]
    fn stars_stand_for_what_they_do_in_caddy() {
        for (pattern, matched, others) in [
            ("/a*", &["/a", "/A/b"][..], &["/b"][..]),
            ("*.TXT", &["/a/b.txt"], &["/a.txtx"]),
            ("*dmi*", &["/ADMIN/x", "/a/dmi"], &["/adin"]),
            ("/a*n/*", &["/admin/x", "/an/"], &["/admin/x/y", "/a/b/n/x"]),
            ("/*/x.txt", &["/a/x.txt"], &["/x.txt", "/a/b/x.txt"]),
            ("/*/*", &["/1/2", "/a/b"], &["/1", "/1/2/3"]),
            ("/a/**", &["/a/b"], &["/a/b/c"]),
            ("/1*", &["/1/2/3"], &["/2"]),
        ] {
            let pattern = case_insensitive_pattern(pattern);
            for path in matched {
                assert!(path_matches(&pattern, path), "{pattern} {path}");
            }
            for path in others {
                assert!(!path_matches(&pattern, path), "{pattern} {path}");
            }
        }
    }

    #[test]
    fn changes_of_paths_follow_each_other() {
        let same = ChangedPath::Same;
        assert_eq!(
            same.without_prefix("/s", Some("/S/*")),
            ChangedPath::Stripped { prefix: "/s".to_owned(), always: true }
        );
        assert_eq!(
            same.without_prefix("/s", Some("/*")),
            ChangedPath::Stripped { prefix: "/s".to_owned(), always: false }
        );
        assert_eq!(same.without_prefix("/s/", None), ChangedPath::Unknown);
        assert_eq!(same.rewritten("/sub$uri"), ChangedPath::Prefixed("/sub".to_owned()));
        assert_eq!(same.rewritten("$path?a=b"), ChangedPath::Same);
        assert_eq!(same.rewritten("/a?$args"), ChangedPath::Fixed("/a".to_owned()));
        assert_eq!(same.rewritten("/${1}"), ChangedPath::Unknown);
        assert_eq!(same.rewritten("/sub$uri").rewritten("/x$uri"), ChangedPath::Unknown);
        assert_eq!(same.tried(&["$path".to_owned(), "/pub$path".to_owned()]), ChangedPath::Unknown);
    }
}
