//! `rewrite`: redirects, and other paths inside the server.

use super::place::Place;
use super::scope::TemplateUse;
use super::tree::NginxDirective;
use super::work::{Matcher, Translation, is_target, redirect, route};
use crate::draft::{TomlItem, TomlSection};
use crate::expressions::{PathExpression, expression_below, path_expression};
use crate::paths::{below, examples, from_literal, from_regex};
use config::PathPattern;

/// Expressions that every path matches.
const EVERYTHING: [&str; 12] =
    ["^", "^(.*)$", "^(.*)", "(.*)", "^/(.*)$", "^/(.*)", "^.*$", "^.*", ".*", "^/.*$", "/(.*)", "^/(.*)?$"];

/// A `rewrite` that changes the path inside the server.
pub(crate) struct PathRewrite {
    /// Paths that it is for; none for all of its location.
    pub(crate) paths: Option<TomlItem>,
    /// The new path.
    pub(crate) to: String,
}

impl<'d> Translation<'d> {
    /// A `rewrite` as a route that redirects, or that gives the search another path.
    pub(crate) fn rewrite(&self, one: &NginxDirective, place: &Place<'d>) -> Option<TomlSection> {
        let (from, to, flag) = (one.first(), one.arg(1), one.arg(2));
        let is_absolute =
            to.starts_with("http://") || to.starts_with("https://") || to.starts_with("$scheme");
        match flag {
            "permanent" => self.redirected(one, place, 301),
            _ if flag == "redirect" || is_absolute => self.redirected(one, place, 302),
            "break" if place.matcher != Matcher::Server => None,
            _ => {
                let found = self.changed(one, place)?;
                let again = place.matcher == Matcher::Server && matches_again(from, to);
                let rewritten = if again { rewritten_pattern(&found.to) } else { None };
                if again && rewritten.is_none() {
                    self.ledger.impossible(
                        one.entry,
                        "its expression finds the new path too, and here the search begins again with it: give the routes that answer `rewrite`, or `fallback` of `files`",
                    );
                    return None;
                }
                let mut section = TomlSection::default();
                match found.paths {
                    Some(paths) => section.set("path", paths),
                    None => section = route(&place.paths),
                }
                if let Some(pattern) = rewritten {
                    // nginx rewrites a request once, here the search begins again.
                    section.exclude(TomlItem::Table(vec![("path".to_owned(), TomlItem::Text(pattern))]));
                    self.ledger
                        .differs(one.entry, "requests for paths that it makes are not rewritten (`not`)");
                }
                section.set_text("rewrite", found.to);
                self.ledger.translated(one.entry);
                Some(section)
            }
        }
    }

    /// The `rewrite … break` of a location whose own action answers with the new path.
    pub(crate) fn breaks(&self, place: &Place<'d>) -> Vec<PathRewrite> {
        let own = place.scope.own().iter().filter(|one| one.name == "rewrite" && one.arg(2) == "break");
        own.filter(|one| place.matcher != Matcher::Server && !is_absolute(one.arg(1)))
            .filter(|one| simple_break(one, place).is_none())
            .filter_map(|one| {
                let found = self.changed(one, place)?;
                self.ledger.translated(one.entry);
                Some(found)
            })
            .collect()
    }

    /// The new path of a `rewrite`, and what it is for.
    fn changed(&self, one: &NginxDirective, place: &Place<'d>) -> Option<PathRewrite> {
        let (from, target) = apart(one);
        let (expression, paths) = match rewritten_paths(&from, &target, place) {
            Ok(found) => found,
            Err(reason) => {
                self.ledger.impossible(
                    one.entry,
                    format!("{reason}: write `[[site.route]]` with `path` and `rewrite`"),
                );
                return None;
            }
        };
        let text = match target.strip_suffix('?') {
            Some(text) if !text.contains('?') => format!("{text}?"),
            Some(text) => text.to_owned(),
            // nginx adds the request's own query.
            None if target.contains('?') && !target.contains("$args") => {
                self.ledger.differs(one.entry, "a request without a query has `&` at the end of its new one");
                format!("{target}&$args")
            }
            None => target,
        };
        let scope = place
            .scope
            .with_groups(&expression.map_or_else(|| place.scope.groups.clone(), |found| found.groups));
        let to = self.template(one, &text, &scope, TemplateUse::Target)?;
        let is_path = ["/", "$path", "$uri"].iter().any(|start| to.starts_with(start));
        if !is_path || to.contains('#') || !to.bytes().all(|byte| byte.is_ascii_graphic()) {
            self.ledger.impossible(
                one.entry,
                "the new path is no path here: write `rewrite` with one that begins with `/`",
            );
            return None;
        }
        Some(PathRewrite { paths, to })
    }

    /// A `rewrite` that redirects.
    fn redirected(&self, one: &NginxDirective, place: &Place<'d>, status: u64) -> Option<TomlSection> {
        let (from, to) = apart(one);
        let (from, to) = (from.as_str(), to.as_str());
        let with_query = |to: &str| match to.strip_suffix('?') {
            // The query is added, unless the target ends with a `?`.
            Some(to) => to.to_owned(),
            None if to.contains("$request_uri") || to.contains('?') => to.to_owned(),
            None => format!("{to}$is_args$args"),
        };
        let simple = redirect_of(from, to).and_then(|(pattern, to)| {
            let paths = match (pattern, &place.matcher) {
                (None, _) => place.paths.clone(),
                (Some(pattern), Matcher::Prefix(prefix, _)) => {
                    let paths = below(prefix, &pattern);
                    if paths != [pattern] && to.contains('\u{2}') || paths.is_empty() {
                        return Err("its expression and its location have different paths".to_owned());
                    }
                    paths
                }
                (Some(_), Matcher::Regex(..) | Matcher::Exact(_)) => return Err(String::new()),
                (Some(pattern), _) => vec![pattern],
            };
            Ok((route(&paths), to))
        });
        let (mut section, to, groups) = match simple {
            Ok((section, to)) => (section, to, Vec::new()),
            Err(_) => match rewritten_paths(from, to, place) {
                Ok((found, paths)) => {
                    let mut section = route(&place.paths);
                    paths.into_iter().for_each(|paths| section.set("path", paths));
                    (section, to.to_owned(), found.map_or_else(Vec::new, |found| found.groups))
                }
                Err(reason) => {
                    self.ledger.impossible(
                        one.entry,
                        format!("{reason}: write `[[site.route]]` with `path` and `redirect`"),
                    );
                    return None;
                }
            },
        };
        let scope = place.scope.with_groups(&groups);
        let to = self.template(one, &with_query(&to), &scope, TemplateUse::Target)?;
        if !is_target(&to.replace('\u{3}', "/")) {
            self.ledger.impossible(
                one.entry,
                "a redirect begins with a scheme or with `/`: write `redirect` with what stands before the variable",
            );
            return None;
        }
        section.set("redirect", redirect(&to.replace('\u{2}', "$rest").replace('\u{3}', "$path"), status));
        self.headers(&place.scope, &mut section);
        self.ledger.translated(one.entry);
        Some(section)
    }
}

/// The expression and the target of a `rewrite`, where that begins with a group: with the path's slash before it.
fn apart(one: &NginxDirective) -> (String, String) {
    slash_apart(one.first(), one.arg(1)).unwrap_or_else(|| (one.first().to_owned(), one.arg(1).to_owned()))
}

/// The paths that a `rewrite` is for within its location, with the groups that its target names.
fn rewritten_paths(
    from: &str,
    to: &str,
    place: &Place<'_>,
) -> Result<(Option<PathExpression>, Option<TomlItem>), String> {
    let captures = (1..=9).any(|digit| to.contains(&format!("${digit}")));
    if EVERYTHING.contains(&from) && !captures {
        return Ok((None, None));
    }
    let exact = from_regex(from, false).ok().filter(|set| set.differs.is_none());
    let found = path_expression(from, false)?;
    let named = found
        .groups
        .iter()
        .any(|(old, _)| to.contains(&format!("${old}")) || to.contains(&format!("${{{old}}}")));
    let patterns = match exact {
        Some(set) if !captures && !named => set.patterns,
        _ => vec![found.pattern.clone()],
    };
    let patterns: Vec<String> = match &place.matcher {
        Matcher::Server => patterns,
        Matcher::Prefix(prefix, _) if prefix == "/" => patterns,
        Matcher::Prefix(prefix, _) => patterns
            .iter()
            .flat_map(|pattern| match pattern.starts_with('~') {
                true => expression_below(prefix, pattern).into_iter().collect(),
                false => below(prefix, pattern),
            })
            .collect(),
        // The expression of the location is what its own would be: the same, or one that finds everything.
        Matcher::Regex(regex, ignores_case) if regex == from && !ignores_case => patterns,
        Matcher::Regex(..) if EVERYTHING.contains(&from) => {
            return Err("its groups are those of another expression than that of its location".to_owned());
        }
        Matcher::Exact(path)
            if patterns.iter().any(|pattern| crate::expressions::path_matches(pattern, path)) =>
        {
            patterns
        }
        _ => return Err("both its expression and that of its location would have to be found".to_owned()),
    };
    match patterns.is_empty() {
        true => Err("its expression and its location have different paths".to_owned()),
        false => Ok((Some(found), Some(TomlItem::texts(patterns)))),
    }
}

fn is_absolute(to: &str) -> bool {
    to.starts_with("http://") || to.starts_with("https://") || to.starts_with("$scheme")
}

/// Where the target begins with the first group, and that with the path's slash: the same with the slash before the group.
pub(crate) fn slash_apart(from: &str, to: &str) -> Option<(String, String)> {
    const STARTS: [(&str, &str); 5] = [
        ("^(.*)", "^/(.*)"),
        ("^(.+)", "^/(.*)"),
        ("^(.*/)", "^/(|.*/)"),
        ("^(.+/)", "^/(|.*/)"),
        ("^(/", "^/("),
    ];
    let rest = to.strip_prefix("$1")?;
    let (start, new) = STARTS.iter().find(|(start, _)| from.starts_with(start))?;
    Some((format!("{new}{}", &from[start.len()..]), format!("/$1{rest}")))
}

/// What `rewrite … break` before `proxy_pass` removes from the path and adds to it, where that is all that it does.
pub(crate) fn simple_break(rewrite: &NginxDirective, place: &Place<'_>) -> Option<(String, String)> {
    place.scope.own_one("proxy_pass")?;
    let from = rewrite.first().strip_prefix('^').map(|from| from.trim_end_matches('$'))?;
    let before = rewrite.arg(1).strip_suffix("$1")?;
    let (strip, add) = match from.strip_suffix("(/.*)") {
        // What is kept has its slash.
        Some(strip) => (strip, before),
        None => {
            let strip = from.strip_suffix("/(.*)").or_else(|| from.strip_suffix("/?(.*)"))?;
            (strip, before.strip_suffix('/')?)
        }
    };
    let is_plain = !strip.contains(['(', '[', '\\', '*', '+', '?', '$', '|', '.'])
        && !add.contains(['$', '?', '#'])
        && !add.ends_with('/');
    is_plain.then(|| (strip.to_owned(), add.to_owned()))
}

/// The paths that a `rewrite` makes; none where they may be all.
fn rewritten_pattern(to: &str) -> Option<String> {
    let path = to.split('?').next().unwrap_or(to);
    match path.find('$') {
        None => from_literal(path, false),
        Some(end) if end > 1 => from_literal(&path[..end], true),
        Some(_) => None,
    }
}

/// Whether the new path of a `rewrite` is one that its expression finds again, by examples.
fn matches_again(from: &str, to: &str) -> bool {
    if EVERYTHING.contains(&from) {
        return true;
    }
    let Ok(found) = path_expression(from, false) else { return false };
    let Ok(pattern) = PathPattern::parse(&found.pattern) else { return false };
    examples(from).into_iter().any(|(text, at_start, _)| {
        let text = if text.starts_with('/') {
            text
        } else if at_start {
            return false;
        } else {
            format!("/{text}")
        };
        let Some(captures) = pattern.captures(text.as_bytes()) else { return false };
        let mut path = to.split('?').next().unwrap_or(to).to_owned();
        for (name, value) in captures {
            let value = String::from_utf8_lossy(&value).into_owned();
            path = path.replace(&format!("${name}"), &value).replace(&format!("${{{name}}}"), &value);
        }
        pattern.matches(path.as_bytes())
    })
}

/// The path pattern and the target of a `rewrite` that redirects. In the target `\u{2}` stands for what a final `*` matched,
/// `\u{3}` for the whole path.
fn redirect_of(from: &str, to: &str) -> Result<(Option<String>, String), String> {
    let captures = (1..=9).any(|digit| to.contains(&format!("${digit}")));
    let body = from.strip_prefix('^');
    if EVERYTHING.contains(&from) {
        let to = match from.contains("/(") {
            true => to.replace("/$1", "\u{3}").replace("$1", "\u{2}"),
            false => to.replace("$1", "\u{3}"),
        };
        let is_rest = to.contains('\u{2}');
        return Ok((is_rest.then(|| "/*".to_owned()), to));
    }
    if !captures {
        let set = from_regex(from, false)?;
        return match (set.differs, set.patterns.as_slice()) {
            (None, [one]) => Ok((Some(one.clone()), to.to_owned())),
            _ => Err("its expression is no path pattern".to_owned()),
        };
    }
    let head = body
        .and_then(|body| body.trim_end_matches('$').strip_suffix("(.*)"))
        .map(|head| head.replace("\\.", ".").replace("\\-", "-").replace("\\/", "/"));
    let pattern = head
        .filter(|head| !head.contains(['(', '[', '|', '+', '?', '\\']))
        .and_then(|head| from_literal(&head, true));
    match pattern {
        Some(pattern) if !to.contains("$2") && pattern.ends_with("/*") => {
            Ok((Some(pattern), to.replace("$1", "\u{2}")))
        }
        _ => Err("only a `(.*)` at the end can be kept (`$rest`)".to_owned()),
    }
}
