//! Translation of `rewrite`: redirects and internal changes of the path.

use super::place::{LocationPaths, Place};
use super::scope::TemplateUse;
use super::tree::NginxDirective;
use super::work::{Matcher, Translation, is_target, redirect};
use crate::draft::TomlSection;
use crate::expressions::{implies_prefix, path_expression};
use crate::paths::{from_literal, from_regex};
use crate::regex_tokens::{RegexToken, regex_tokens};

/// Expressions that match every path.
pub(super) const EVERYTHING: [&str; 12] =
    ["^", "^(.*)$", "^(.*)", "(.*)", "^/(.*)$", "^/(.*)", "^.*$", "^.*", ".*", "^/.*$", "/(.*)", "^/(.*)?$"];

/// An internal `rewrite` of the path.
pub(crate) struct PathRewrite {
    /// Route with the conditions for the matching paths.
    pub(crate) section: TomlSection,
    /// The new path.
    pub(crate) to: String,
}

impl<'d> Translation<'d> {
    /// Translates an internal `rewrite`.
    pub(crate) fn changed(&self, one: &NginxDirective, place: &Place<'d>) -> Option<PathRewrite> {
        let (from, target) = apart(one);
        let (section, groups) = match rewritten_paths(&from, &target, place) {
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
            // nginx appends the query of the request.
            None if target.contains('?') && !target.contains("$args") => {
                self.ledger.differs(one.entry, "a request without a query has `&` at the end of its new one");
                format!("{target}&$args")
            }
            None => target,
        };
        let scope = match groups {
            Some(groups) => place.scope.with_groups(&groups),
            None => place.scope.clone(),
        };
        let to = self.template(one, &text, &scope, TemplateUse::Target)?;
        let is_path = ["/", "$path", "$uri"].iter().any(|start| to.starts_with(start));
        if !is_path || to.contains('#') || !to.bytes().all(|byte| byte.is_ascii_graphic()) {
            self.ledger.impossible(
                one.entry,
                "the new path is no path here: write `rewrite` with one that begins with `/`",
            );
            return None;
        }
        Some(PathRewrite { section, to })
    }

    /// Translates a `rewrite` that redirects.
    pub(crate) fn redirected(
        &self,
        one: &NginxDirective,
        place: &Place<'d>,
        status: u64,
    ) -> Option<TomlSection> {
        let (from, to) = apart(one);
        let (from, to) = (from.as_str(), to.as_str());
        let with_query = |to: &str| match to.strip_suffix('?') {
            // The query is appended unless the target ends with `?`.
            Some(to) => to.to_owned(),
            None if to.contains("$request_uri") => to.to_owned(),
            None if to.contains('?') => format!("{to}&$args"),
            None => format!("{to}$is_args$args"),
        };
        let simple = redirect_of(from, to).and_then(|(pattern, to)| {
            let paths = match (pattern, place.paths.is_everything()) {
                (None, _) => place.paths.clone(),
                (Some(pattern), true) => LocationPaths::of(vec![pattern]),
                (Some(pattern), _) if place.paths == LocationPaths::of(vec![pattern.clone()]) => {
                    place.paths.clone()
                }
                // `$rest` requires that the pattern is the only path of the route.
                (Some(_), false) => return Err(String::new()),
            };
            Ok((paths.route(), to))
        });
        let (mut section, to, groups) = match simple {
            Ok((section, to)) => (section, to, None),
            Err(_) => match rewritten_paths(from, to, place) {
                Ok((section, groups)) => (section, to.to_owned(), groups),
                Err(reason) => {
                    self.ledger.impossible(
                        one.entry,
                        format!("{reason}: write `[[site.route]]` with `path` and `redirect`"),
                    );
                    return None;
                }
            },
        };
        if with_query(&to).ends_with("&$args") {
            self.ledger.differs(one.entry, "a request without a query has `&` at the end of its new one");
        }
        let scope = groups.map_or_else(|| place.scope.clone(), |groups| place.scope.with_groups(&groups));
        let to = self.template(one, &with_query(&to), &scope, TemplateUse::Target)?;
        if !is_target(&to.replace('\u{3}', "/")) {
            self.ledger.impossible(
                one.entry,
                "a redirect begins with a scheme or with `/`: write `redirect` with what stands before the variable",
            );
            return None;
        }
        if to.contains(['\u{2}', '\u{3}']) {
            self.ledger
                .differs(one.entry, "what is kept of the path is percent-encoded as the client has sent it");
        }
        section.set("redirect", redirect(&to.replace('\u{2}', "$rest").replace('\u{3}', "$path"), status));
        self.headers(&place.scope, &mut section);
        self.ledger.translated(one.entry);
        Some(section)
    }
}

/// Returns the expression and the target of a `rewrite`. If the target begins with a group that includes the
/// leading slash of the path, the slash is moved out of the group.
fn apart(one: &NginxDirective) -> (String, String) {
    slash_apart(one.first(), one.arg(1)).unwrap_or_else(|| (one.first().to_owned(), one.arg(1).to_owned()))
}

/// Names of the groups of an expression in nginx and in Komainu.
type RenamedGroups = Vec<(String, String)>;

/// Returns a route for the paths within the location that a `rewrite` matches, and the groups of its
/// expression; `None` if the expression matches every path and the groups of the location remain.
fn rewritten_paths(
    from: &str,
    to: &str,
    place: &Place<'_>,
) -> Result<(TomlSection, Option<RenamedGroups>), String> {
    let captures = (1..=9).any(|digit| to.contains(&format!("${digit}")));
    if EVERYTHING.contains(&from) && !captures {
        return Ok((place.paths.route(), None));
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
    let mut section = LocationPaths { any: patterns.clone(), ..place.paths.clone() }.route();
    let is_within = |prefix: &str| patterns.iter().all(|pattern| implies_prefix(pattern, prefix));
    let is_implied = match &place.matcher {
        Matcher::Server => true,
        Matcher::Prefix(prefix, _) => prefix == "/" || is_within(prefix),
        Matcher::Regex(regex, ignores_case) => regex == from && !ignores_case,
        Matcher::Exact(_) => false,
    };
    if !is_implied && let Some(path) = place.paths.route().get("path") {
        section.require("path", path.clone());
    }
    Ok((section, Some(found.groups)))
}

pub(crate) fn is_absolute(to: &str) -> bool {
    to.starts_with("http://") || to.starts_with("https://") || to.starts_with("$scheme")
}

/// Moves the leading slash of the path out of the first group if the target begins with that group; returns
/// the new expression and target.
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

/// Whether the target has a slash before a group that begins with a slash itself.
pub(crate) fn has_two_slashes(rewrite: &NginxDirective) -> bool {
    ["^(.*", "^(.+", "^(/"].iter().any(|start| rewrite.first().starts_with(start))
        && rewrite.arg(1).split('?').next().is_some_and(|path| path.contains("/$1"))
}

/// Returns the prefixes that a `rewrite … break` before `proxy_pass` removes and adds, if it does nothing
/// else.
pub(crate) fn simple_break(rewrite: &NginxDirective, place: &Place<'_>) -> Option<(String, String)> {
    place.scope.own_one("proxy_pass").filter(|pass| !passes_path_as_sent(pass))?;
    let from = rewrite.first().strip_prefix('^').map(|from| from.trim_end_matches('$'))?;
    let before = rewrite.arg(1).strip_suffix("$1")?;
    let (strip, add) = match from.strip_suffix("(/.*)") {
        // The group includes the slash.
        Some(strip) => (strip, before),
        None => {
            let strip = from.strip_suffix("/(.*)").or_else(|| from.strip_suffix("/?(.*)"))?;
            (strip, before.strip_suffix('/')?)
        }
    };
    // Paths without the prefix would get the added prefix.
    let is_bare_changed = matches!(place.matcher, Matcher::Prefix(..)) && add.is_empty();
    let needs_slash = !from.ends_with("/?(.*)") && !is_bare_changed;
    let begins_so = match &place.matcher {
        Matcher::Exact(path) | Matcher::Prefix(path, _) => path
            .strip_prefix(strip)
            .is_some_and(|rest| rest.starts_with('/') || rest.is_empty() && !needs_slash),
        Matcher::Regex(..) | Matcher::Server => add.is_empty(),
    };
    let is_plain = !strip.contains(['(', '[', '{', '\\', '*', '+', '?', '$', '|', '.'])
        && !add.contains(['$', '?', '#'])
        && !add.ends_with('/');
    (is_plain && begins_so).then(|| (strip.to_owned(), add.to_owned()))
}

/// Whether `proxy_pass` sends the path as received from the client, regardless of `rewrite`.
pub(crate) fn passes_path_as_sent(pass: &NginxDirective) -> bool {
    pass.first().replace(['{', '}'], "").contains("$request_uri")
}

/// Whether a directive answers requests with a refusal or a redirect.
pub(crate) fn refuses(one: &NginxDirective) -> bool {
    match one.name.as_str() {
        "return" => one.first().parse::<u16>().map_or(one.args.len() == 1, |status| status >= 300),
        "rewrite" => matches!(one.arg(2), "permanent" | "redirect") || is_absolute(one.arg(1)),
        _ => false,
    }
}

/// Whether a directive responds or rewrites the path, and so does not refuse requests.
pub(crate) fn answers(one: &NginxDirective) -> bool {
    match one.name.as_str() {
        "return" => one.first().parse::<u16>().map_or(one.args.len() == 1, |status| status < 400),
        name => name == "rewrite",
    }
}

/// Returns the path pattern and the target of a `rewrite` that redirects. In the target, `\u{2}` stands for
/// the match of a final `*`, and `\u{3}` for the whole path.
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
        .and_then(|head| regex_tokens(head).iter().map(RegexToken::literal).collect::<Option<String>>());
    let pattern = head.and_then(|head| from_literal(&head, true));
    match pattern {
        Some(pattern) if !to.contains("$2") && pattern.ends_with("/*") => {
            Ok((Some(pattern), to.replace("$1", "\u{2}")))
        }
        _ => Err("only a `(.*)` at the end can be kept (`$rest`)".to_owned()),
    }
}
