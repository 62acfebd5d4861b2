//! Translation of `rewrite`: redirects and internal changes of the path.

use shapes::template::nginx_target;

use super::location_place::{LocationPlace, PathConditions};
use super::scope::{Scope, TemplateDestination};
use super::translation::{LocationMatcher, Translation, is_target, redirect_item};
use super::tree::NginxDirective;
use crate::draft::TomlSection;
use crate::expressions::{implies_prefix, path_expression};
use crate::findings::Untranslatable;
use crate::paths::{from_literal, from_regex};
use crate::regex_tokens::{RegexToken, regex_tokens};

/// Expressions that match every path.
pub(super) const MATCH_ALL_EXPRESSIONS: [&str; 12] =
    ["^", "^(.*)$", "^(.*)", "(.*)", "^/(.*)$", "^/(.*)", "^.*$", "^.*", ".*", "^/.*$", "/(.*)", "^/(.*)?$"];

/// An internal `rewrite` of the path.
pub(crate) struct PathRewrite {
    /// Route with the conditions for the matching paths.
    pub(crate) section: TomlSection,
    /// The new path.
    pub(crate) target: String,
}

impl<'d> Translation<'d> {
    /// Translates an internal `rewrite`.
    pub(crate) fn translate_internal_rewrite(
        &self,
        directive: &NginxDirective,
        place: &LocationPlace<'d>,
    ) -> Option<PathRewrite> {
        let (from, target) = split_rewrite(directive);
        let (section, groups) = match rewritten_paths_route(&from, &target, place) {
            Ok(found) => found,
            Err(reason) => {
                self.ledger.mark_impossible(
                    directive.entry,
                    format!("{reason}: write `[[site.route]]` with `path` and `rewrite`"),
                );
                return None;
            }
        };
        let has_query = target.contains("$args") && !target.ends_with('?');
        let text = if has_query { target } else { nginx_target(&target) };
        if !has_query && text.ends_with("&$args") {
            let how = "a request without a query has `&` at the end of its new one";
            self.ledger.mark_different(directive.entry, how);
        }
        let scope = match groups {
            Some(groups) => place.scope.with_groups(&groups),
            None => place.scope.clone(),
        };
        let to = self.translate_template(directive, &text, &scope, TemplateDestination::Target)?;
        let is_path = ["/", "$path", "$uri"].iter().any(|start| to.starts_with(start));
        if !is_path || to.contains('#') || !to.bytes().all(|byte| byte.is_ascii_graphic()) {
            self.ledger.mark_impossible(
                directive.entry,
                "the new path is not a path here: write `rewrite` with one that begins with `/`",
            );
            return None;
        }
        Some(PathRewrite { section, target: to })
    }

    /// Translates a `rewrite` that redirects.
    pub(crate) fn translate_redirect(
        &self,
        directive: &NginxDirective,
        place: &LocationPlace<'d>,
        status: u64,
    ) -> Option<TomlSection> {
        let (from, to) = split_rewrite(directive);
        let from = from.as_str();
        let to = to.as_str();
        let with_query = |to: &str| match to.strip_suffix('?') {
            // The query is appended unless the target ends with `?`.
            Some(to) => to.to_owned(),
            None if to.contains("$request_uri") => to.to_owned(),
            None if to.contains('?') => format!("{to}&$args"),
            None => format!("{to}$is_args$args"),
        };
        let simple = redirect_pattern(from, to).and_then(|(pattern, to)| {
            let paths = match (pattern, place.paths.includes_every_path()) {
                (None, _) => place.paths.clone(),
                (Some(pattern), true) => PathConditions::from_patterns(vec![pattern]),
                (Some(pattern), _) if place.paths == PathConditions::from_patterns(vec![pattern.clone()]) => {
                    place.paths.clone()
                }
                // `$rest` requires that the pattern is the only path of the route.
                (Some(_), false) => return Err("".into()),
            };
            Ok((paths.to_route(), to))
        });
        let (mut section, to, groups) = match simple {
            Ok((section, to)) => (section, to, None),
            Err(_) => match rewritten_paths_route(from, to, place) {
                Ok((section, groups)) => (section, to.to_owned(), groups),
                Err(reason) => {
                    self.ledger.mark_impossible(
                        directive.entry,
                        format!("{reason}: write `[[site.route]]` with `path` and `redirect`"),
                    );
                    return None;
                }
            },
        };
        if with_query(&to).ends_with("&$args") {
            self.ledger.mark_different(
                directive.entry,
                "a request without a query has `&` at the end of its new one",
            );
        }
        let scope = groups.map_or_else(|| place.scope.clone(), |groups| place.scope.with_groups(&groups));
        let to = self.translate_template(directive, &with_query(&to), &scope, TemplateDestination::Target)?;
        if !is_target(&to.replace('\u{3}', "/")) {
            self.ledger.mark_impossible(
                directive.entry,
                "a redirect begins with a scheme or with `/`: write `redirect` with what stands before the variable",
            );
            return None;
        }
        if to.contains(['\u{2}', '\u{3}']) {
            self.ledger.mark_different(
                directive.entry,
                "the rest of the path is percent-encoded as the client has sent it",
            );
        }
        section
            .set("redirect", redirect_item(&to.replace('\u{2}', "$rest").replace('\u{3}', "$path"), status));
        self.write_headers(&place.scope, &mut section);
        Some(section)
    }
}

/// Returns the expression and the target of a `rewrite`. If the target begins with a group that includes the
/// leading slash of the path, the slash is moved out of the group.
fn split_rewrite(directive: &NginxDirective) -> (String, String) {
    move_leading_slash(directive.first_arg(), directive.arg_at(1))
        .unwrap_or_else(|| (directive.first_arg().to_owned(), directive.arg_at(1).to_owned()))
}

/// Names of the groups of an expression in nginx and in Komainu.
type RenamedGroups = Vec<(String, String)>;

/// Returns a route for the paths within the location that a `rewrite` matches, and the groups of its
/// expression; `None` if the expression matches every path and the groups of the location remain.
fn rewritten_paths_route(
    from: &str,
    to: &str,
    place: &LocationPlace<'_>,
) -> Result<(TomlSection, Option<RenamedGroups>), Untranslatable> {
    let captures = (1..=9).any(|digit| to.contains(&format!("${digit}")));
    if MATCH_ALL_EXPRESSIONS.contains(&from) && !captures {
        return Ok((place.paths.to_route(), None));
    }
    let exact = from_regex(from, false).ok().filter(|set| set.difference.is_none());
    let found = path_expression(from, false)?;
    let named = found
        .groups
        .iter()
        .any(|(old, _)| to.contains(&format!("${old}")) || to.contains(&format!("${{{old}}}")));
    let patterns = match exact {
        Some(set) if !captures && !named => set.patterns,
        _ => vec![found.pattern.clone()],
    };
    let mut section = PathConditions { patterns: patterns.clone(), ..place.paths.clone() }.to_route();
    let is_within = |prefix: &str| patterns.iter().all(|pattern| implies_prefix(pattern, prefix));
    let is_implied = match &place.matcher {
        LocationMatcher::Server => true,
        LocationMatcher::Prefix(prefix, _) => prefix == "/" || is_within(prefix),
        LocationMatcher::Regex(regex, ignores_case) => regex == from && !ignores_case,
        LocationMatcher::Exact(_) => false,
    };
    if !is_implied && let Some(path) = place.paths.to_route().get("path") {
        section.require("path", path.clone());
    }
    Ok((section, Some(found.groups)))
}

pub(crate) fn is_absolute(to: &str) -> bool {
    to.starts_with("http://") || to.starts_with("https://") || to.starts_with("$scheme")
}

/// Moves the leading slash of the path out of the first group if the target begins with that group; returns
/// the new expression and target.
pub(crate) fn move_leading_slash(from: &str, to: &str) -> Option<(String, String)> {
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
    ["^(.*", "^(.+", "^(/"].iter().any(|start| rewrite.first_arg().starts_with(start))
        && rewrite.arg_at(1).split('?').next().is_some_and(|path| path.contains("/$1"))
}

/// Returns the prefixes that a `rewrite … break` before `proxy_pass` removes and adds, if it does nothing
/// else.
pub(crate) fn break_prefixes(
    rewrite: &NginxDirective,
    place: &LocationPlace<'_>,
) -> Option<(String, String)> {
    place.scope.innermost_last("proxy_pass").filter(|pass| !passes_original_path(pass))?;
    let from = rewrite.first_arg().strip_prefix('^').map(|from| from.trim_end_matches('$'))?;
    let before = rewrite.arg_at(1).strip_suffix("$1")?;
    let (strip, add) = match from.strip_suffix("(/.*)") {
        // The group includes the slash.
        Some(strip) => (strip, before),
        None => {
            let strip = from.strip_suffix("/(.*)").or_else(|| from.strip_suffix("/?(.*)"))?;
            (strip, before.strip_suffix('/')?)
        }
    };
    // Paths without the prefix would get the added prefix.
    let is_bare_changed = matches!(place.matcher, LocationMatcher::Prefix(..)) && add.is_empty();
    let needs_slash = !from.ends_with("/?(.*)") && !is_bare_changed;
    let begins_so = match &place.matcher {
        LocationMatcher::Exact(path) | LocationMatcher::Prefix(path, _) => path
            .strip_prefix(strip)
            .is_some_and(|rest| rest.starts_with('/') || rest.is_empty() && !needs_slash),
        LocationMatcher::Regex(..) | LocationMatcher::Server => add.is_empty(),
    };
    let is_plain = !strip.contains(['(', '[', '{', '\\', '*', '+', '?', '$', '|', '.'])
        && !add.contains(['$', '?', '#'])
        && !add.ends_with('/');
    (is_plain && begins_so).then(|| (strip.to_owned(), add.to_owned()))
}

/// Whether `proxy_pass` sends the path as received from the client, regardless of `rewrite`.
pub(crate) fn passes_original_path(pass: &NginxDirective) -> bool {
    pass.first_arg().replace(['{', '}'], "").contains("$request_uri")
}

/// Whether a directive answers requests with a refusal or a redirect.
pub(crate) fn refuses_or_redirects(directive: &NginxDirective) -> bool {
    match directive.name.as_str() {
        "return" => {
            directive.first_arg().parse::<u16>().map_or(directive.args.len() == 1, |status| status >= 300)
        }
        "rewrite" => {
            matches!(directive.arg_at(2), "permanent" | "redirect") || is_absolute(directive.arg_at(1))
        }
        _ => false,
    }
}

/// Whether a directive responds, and so does not refuse requests. A rewritten path may belong to a location that
/// refuses requests, or to no file.
pub(crate) fn responds_or_redirects(directive: &NginxDirective) -> bool {
    match directive.name.as_str() {
        "return" => {
            directive.first_arg().parse::<u16>().map_or(directive.args.len() == 1, |status| status < 400)
        }
        _ => refuses_or_redirects(directive),
    }
}

/// Whether a directive in an `if` may let in requests that the directives behind it refuse.
pub(crate) fn may_grant(directive: &NginxDirective, scope: &Scope<'_>) -> bool {
    let code = directive.first_arg();
    match directive.name.as_str() {
        "return" => {
            code.parse::<u16>().is_ok_and(|status| status < 300)
                || scope
                    .effective_all("error_page")
                    .iter()
                    .any(|page| page.args.iter().any(|arg| arg == code))
        }
        "rewrite" => !refuses_or_redirects(directive),
        _ => directive.name == "break",
    }
}

/// Returns the path pattern and the target of a `rewrite` that redirects. In the target, `\u{2}` stands for
/// the match of a final `*`, and `\u{3}` for the whole path.
fn redirect_pattern(from: &str, to: &str) -> Result<(Option<String>, String), Untranslatable> {
    let captures = (1..=9).any(|digit| to.contains(&format!("${digit}")));
    let body = from.strip_prefix('^');
    if MATCH_ALL_EXPRESSIONS.contains(&from) {
        let to = if from.contains("/(") {
            to.replace("/$1", "\u{3}").replace("$1", "\u{2}")
        } else {
            to.replace("$1", "\u{3}")
        };
        let is_rest = to.contains('\u{2}');
        return Ok((is_rest.then(|| "/*".to_owned()), to));
    }
    if !captures {
        let set = from_regex(from, false)?;
        return match (set.difference, set.patterns.as_slice()) {
            (None, [one]) => Ok((Some(one.clone()), to.to_owned())),
            _ => Err("its expression is not a path pattern".into()),
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
        _ => Err("only a `(.*)` at the end can be kept (`$rest`)".into()),
    }
}
