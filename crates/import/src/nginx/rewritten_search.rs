//! Internal changes of the path: differences between nginx, which executes the rewrite directives of the
//! server once, and Komainu, which restarts the search for a route.

use super::conditions::IfConditions;
use super::location_place::{LocationPlace, ServerLocations};
use super::rewrite::{MATCH_ALL_EXPRESSIONS, has_two_slashes, refuses_or_redirects};
use super::translation::{LocationMatcher, Translation};
use super::tree::NginxDirective;
use crate::draft::{TomlItem, TomlSection};
use crate::expressions::{literal_start, path_expression, path_matches};
use crate::findings::Untranslatable;
use crate::paths::from_literal;

/// Paths that a `rewrite` produces: their literal beginning, and whether that is the whole path.
struct RewrittenPaths<'t> {
    start: &'t str,
    is_whole: bool,
}

impl<'t> RewrittenPaths<'t> {
    fn from_template(to: &'t str) -> Self {
        let path = to.split('?').next().unwrap_or(to);
        match path.find('$') {
            None => Self { start: path, is_whole: true },
            Some(end) => Self { start: &path[..end], is_whole: false },
        }
    }

    /// Returns a pattern for the paths; `None` if they may be any.
    fn to_pattern(&self) -> Option<String> {
        (self.start.len() > 1).then(|| from_literal(self.start, !self.is_whole)).flatten()
    }

    /// Whether a pattern may match one of the paths.
    fn may_match(&self, pattern: &str) -> bool {
        let head = literal_start(pattern);
        if self.is_whole {
            path_matches(pattern, self.start)
        } else {
            head.starts_with(self.start) || self.start.starts_with(&head)
        }
    }
}

impl<'d> Translation<'d> {
    /// Checks whether the search for a route, which restarts with the first route, selects what nginx selects
    /// for the new path `to`: nginx executes the rewrite directives of the server only once. A route that
    /// would match again gets an exception.
    ///
    /// # Errors
    /// Directives would be executed again.
    pub(crate) fn check_new_search(
        &self,
        directive: &NginxDirective,
        (place, locations): (&LocationPlace<'d>, &ServerLocations<'d>),
        is_last: bool,
        (to, route): (&str, &mut TomlSection),
    ) -> Result<(), Untranslatable> {
        let made = RewrittenPaths::from_template(to);
        if directive.arg_at(2).is_empty() && !is_last {
            return Err("what stands behind it sees the new path: what it changes is refused (403)".into());
        }
        if has_two_slashes(directive) && refuse_differently(&made, locations) {
            return Err("its new path has two slashes, of which locations see one here, and these refuse different requests: what it changes is refused (403)".into());
        }
        let is_server = place.matcher == LocationMatcher::Server;
        let own = locations.server.innermost();
        let at = own.iter().position(|other| {
            other.entry == directive.entry
                || other.block_directives().iter().any(|inner| inner.entry == directive.entry)
        });
        for (other_at, other) in own.iter().enumerate() {
            let is_behind = at.is_some_and(|at| other_at > at);
            let again = match other.name.as_str() {
                _ if Some(other_at) == at => false,
                "rewrite" => path_expression(other.first_arg(), false)
                    .map_or(true, |found| made.may_match(&found.pattern)),
                "if" => self.may_act_again(other, locations, &made, is_behind),
                "return" => is_behind,
                _ => false,
            };
            if !again {
                continue;
            }
            let what = format!(
                "`{} {}` is executed again for the new path, which nginx does not",
                other.name,
                other.args.join(" ")
            );
            // Directives that refuse or redirect do not grant access.
            let body =
                if other.name == "if" { other.block_directives() } else { std::slice::from_ref(other) };
            if !body.iter().all(|one| one.name == "set" || refuses_or_redirects(one)) {
                return Err(format!("{what}: what it changes is refused (403)").into());
            }
            self.ledger.mark_different(directive.entry, what);
        }
        let own_paths = route.get("path").cloned();
        let own_paths: Vec<String> = match &own_paths {
            Some(TomlItem::List(items)) => {
                items.iter().filter_map(TomlItem::as_text).map(str::to_owned).collect()
            }
            Some(one) => one.as_text().map(str::to_owned).into_iter().collect(),
            None => vec!["*".to_owned()],
        };
        let finds_itself = own_paths.iter().any(|pattern| made.may_match(pattern));
        // A location that matches its own result loops in nginx too, unless the path belongs to another
        // location.
        let belongs_to_other = || {
            made.is_whole
                && locations.find_location(made.start).is_some_and(|other| other.entry != place.entry)
        };
        if finds_itself && (is_server || belongs_to_other()) {
            // A rewrite of the server can exclude the new paths only if they are a single path, or if its
            // expression matches every path.
            let is_safe = made.is_whole || MATCH_ALL_EXPRESSIONS.contains(&directive.first_arg());
            let Some(pattern) = made.to_pattern().filter(|_| is_safe || !is_server) else {
                return Err("its expression finds the new path too, and here the search begins again with it: what it changes is refused (403)".into());
            };
            route.exclude(TomlItem::Table(vec![("path".to_owned(), TomlItem::Text(pattern))]));
            if is_server {
                self.ledger.mark_different(
                    directive.entry,
                    "requests for paths that it makes are not rewritten (`not`)",
                );
            }
        }
        Ok(())
    }

    /// Whether a directive of the server acts on an internal path although it did not act on that of the
    /// request.
    pub(crate) fn is_changed_by_server(&self, path: &str, locations: &ServerLocations<'d>) -> bool {
        let made = RewrittenPaths::from_template(path);
        locations.server.innermost().iter().any(|one| match one.name.as_str() {
            "rewrite" => {
                path_expression(one.first_arg(), false).map_or(true, |found| made.may_match(&found.pattern))
            }
            "if" => self.may_act_again(one, locations, &made, false),
            _ => false,
        })
    }

    /// Whether a rewritten path may meet an `if` of the server that the previous path did not meet.
    fn may_act_again(
        &self,
        directive: &'d NginxDirective,
        locations: &ServerLocations<'d>,
        made: &RewrittenPaths<'_>,
        is_behind: bool,
    ) -> bool {
        let server = LocationPlace::for_server(&locations.server);
        if self.maintenance_file(directive, &locations.server).is_some()
            || self.is_redundant_file_check(directive, (&server, locations))
        {
            return false;
        }
        let Ok(conditions) = self.translate_if(directive, &locations.server) else { return true };
        let rewrites = directive.block_directives().iter().filter(|inner| inner.name == "rewrite");
        let patterns: Vec<String> = rewrites
            .map(|inner| {
                path_expression(inner.first_arg(), false).map_or("*".to_owned(), |found| found.pattern)
            })
            .collect();
        let may_rewrite = || patterns.iter().any(|pattern| made.may_match(pattern));
        let IfConditions::Any(conditions) = conditions else {
            return matches!(conditions, IfConditions::Always) && (is_behind || may_rewrite());
        };
        let ends = directive
            .block_directives()
            .iter()
            .any(|inner| matches!(inner.name.as_str(), "return" | "break"));
        conditions.iter().any(|(condition, _)| match condition.paths() {
            Some(TomlItem::Text(path)) => made.may_match(path),
            Some(_) => true,
            None if condition.depends_on_path() => true,
            None => is_behind && ends || may_rewrite(),
        })
    }
}

/// Whether nginx may select another location for rewritten paths with two slashes than for those with one, and
/// the locations in question refuse different requests.
fn refuse_differently(made: &RewrittenPaths<'_>, locations: &ServerLocations<'_>) -> bool {
    let may_answer = |place: &&LocationPlace<'_>| {
        let any = &place.paths.patterns;
        any.is_empty() || any.iter().any(|pattern| made.may_match(pattern))
    };
    let all: Vec<&LocationPlace<'_>> = locations.ordered_places.iter().filter(may_answer).collect();
    let tells_apart = |place: &&LocationPlace<'_>| {
        place
            .enclosing_matchers
            .iter()
            .chain([&place.matcher])
            .any(|matcher| tells_slashes_apart(matcher, made.start))
    };
    if !all.iter().any(tells_apart) {
        return false;
    }
    let server = LocationPlace::for_server(&locations.server);
    let rest = (!all.iter().any(|place| place.paths.includes_every_path())).then_some(&server);
    let mut all = all.into_iter().chain(rest).map(refusals);
    let first = all.next();
    all.any(|other| Some(&other) != first.as_ref())
}

/// Whether a matcher may match only one of two paths that begin with `start`, of which one has a further slash
/// after it.
fn tells_slashes_apart(matcher: &LocationMatcher, start: &str) -> bool {
    match matcher {
        LocationMatcher::Server => false,
        LocationMatcher::Exact(_) => true,
        LocationMatcher::Prefix(path, _) => path.len() > start.len() && path.starts_with(start),
        LocationMatcher::Regex(regex, _) => {
            // Other expressions than literals that begin with a slash may have to match one between.
            let plain = regex.replace(r"\.", "").replace(".*", "").replace(".+", "");
            regex.rfind('/').is_some_and(|at| at > 0)
                || plain.contains(['^', '.'])
                || plain.contains("(?")
                || [r"\W", r"\D", r"\S", r"\N", r"\x", r"\1"].iter().any(|escape| plain.contains(escape))
        }
    }
}

/// Returns the directives by which a location may refuse requests.
fn refusals(place: &LocationPlace<'_>) -> Vec<String> {
    const GUARDS: [&[&str]; 7] = [
        &["allow", "deny"],
        &["auth_basic"],
        &["auth_basic_user_file"],
        &["auth_request"],
        &["auth_jwt"],
        &["satisfy"],
        &["internal"],
    ];
    let is_refusal = |one: &NginxDirective| {
        one.name == "limit_except" || one.name == "return" && one.first_arg().starts_with(['4', '5'])
    };
    let own = place.scope.innermost().iter();
    let own = own
        .filter(|one| is_refusal(one) || one.name == "if" && one.block_directives().iter().any(is_refusal));
    let shown = |one: &NginxDirective| {
        let inner =
            one.block_directives().iter().map(|inner| format!("{} {}", inner.name, inner.args.join(" ")));
        format!("{} {} {}", one.name, one.args.join(" "), inner.collect::<Vec<_>>().join(" "))
    };
    GUARDS.iter().flat_map(|names| place.scope.effective_all_of(names)).chain(own).map(shown).collect()
}
