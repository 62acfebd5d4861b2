//! Locations of a server, in an order in which the first match is the one that nginx selects.
//!
//! nginx selects a location level by level (`ngx_http_core_find_location`): an exact match (`=`) first, else
//! the longest prefix, whose nested locations are searched next. Unless those yield an exact match or a
//! regular expression, or the prefix has `^~`, the regular expressions of the level follow; then the longest
//! prefix applies, the innermost first. A match by a regular expression is final.

use super::conditions::condition_words;
use super::location_place::{LocationPlace, PathConditions, PathException, ServerLocations, prefix_pattern};
use super::scope::Scope;
use super::translation::{LocationMatcher, Translation, redirect_item};
use super::tree::NginxDirective;
use crate::conditions::refuse_line_feeds;
use crate::draft::TomlSection;
use crate::expressions::{escape_literal, implies_prefix, path_expression, widen_expression};
use crate::findings::EntryIndex;
use crate::paths::{below_suffix, from_literal, from_regex};

/// Names of the groups of an expression in nginx and in Komainu.
type GroupNames = Vec<(String, String)>;

/// A location whose order among the others is not yet determined.
#[derive(Clone)]
struct UnorderedLocation<'d> {
    directive: &'d NginxDirective,
    scope: Scope<'d>,
    matcher: LocationMatcher,
    /// Patterns of its paths, regardless of the enclosing locations.
    paths: Vec<String>,
    /// See [`LocationPlace::is_closed`].
    is_closed: bool,
    nested: Vec<UnorderedLocation<'d>>,
}

impl UnorderedLocation<'_> {
    /// The prefix of a prefix location, and whether it has `^~`.
    fn prefix(&self) -> Option<(&str, bool)> {
        match &self.matcher {
            LocationMatcher::Prefix(path, first) => Some((path, *first)),
            _ => None,
        }
    }

    fn is_regex(&self) -> bool {
        matches!(self.matcher, LocationMatcher::Regex(..))
    }

    /// Returns the path without the trailing slash if nginx redirects it to this location.
    fn redirects_to_slash(&self) -> Option<&str> {
        let (LocationMatcher::Exact(path) | LocationMatcher::Prefix(path, _)) = &self.matcher else {
            return None;
        };
        let passes = self.directive.block_directives().iter().any(|one| one.name.ends_with("_pass"));
        path.strip_suffix('/').filter(|path| passes && !path.is_empty())
    }

    /// Returns a copy of the location for exactly `path`.
    fn without_slash(&self, path: &str) -> Self {
        let pattern = from_literal(path, false).unwrap_or_else(|| format!("~ ^{}$", escape_literal(path)));
        Self {
            matcher: LocationMatcher::Exact(path.to_owned()),
            paths: vec![pattern],
            nested: Vec::new(),
            ..self.clone()
        }
    }
}

/// Context of the locations of a level.
#[derive(Clone, Default)]
struct EnclosingContext {
    /// Patterns of the enclosing regular expressions.
    enclosing_patterns: Vec<Vec<String>>,
    /// Innermost enclosing prefix.
    prefix: String,
    /// Paths that belong to siblings of the enclosing locations.
    sibling_exceptions: Vec<PathException>,
    matchers: Vec<LocationMatcher>,
}

/// Places of a level: those that are final, and those that come after the regular expressions of the
/// enclosing level.
#[derive(Default)]
struct LevelLocations<'d> {
    final_places: Vec<LocationPlace<'d>>,
    late_places: Vec<LocationPlace<'d>>,
}

/// The remark on a server without a `root`.
pub(super) const NO_ROOT_REMARK: &str = "paths without a location are 404: nginx serves its default folder";

impl<'d> Translation<'d> {
    /// Returns the routes of a server. They are cached, because several sites may have the same ones.
    pub(crate) fn server_routes(&self, server: &Scope<'d>, entry: EntryIndex) -> Vec<TomlSection> {
        if let Some(known) = self.cached_routes.borrow().get(&entry) {
            return known.clone();
        }
        let routes = self.translate_locations(server, entry);
        self.cached_routes.borrow_mut().insert(entry, routes.clone());
        routes
    }

    fn translate_locations(&self, server: &Scope<'d>, entry: EntryIndex) -> Vec<TomlSection> {
        let mut named = Vec::new();
        let found = self.collect_locations(server, &mut named);
        let LevelLocations { final_places: decided, late_places: rest } =
            order_level(&found, &EnclosingContext::default());
        let places = decided.into_iter().chain(rest).collect();
        let around = ServerLocations { ordered_places: places, named, server: server.clone() };
        let places = &around.ordered_places;
        let server_place = LocationPlace::for_server(server);
        let phase = self.translate_rewrite_phase(&server_place, &around);
        let continues = phase.continues;
        let odd = self.odd_addresses_route(server).into_iter().collect();
        let mut routes = self.finish_routes(odd, server);
        routes.extend(self.finish_routes(self.line_feed_route(server), server));
        routes.extend(self.finish_routes(phase.into_final_routes(), server));
        if !continues {
            places.iter().for_each(|place| self.report_unreached(place.scope.innermost()));
            return routes;
        }
        let mut own: Vec<Vec<TomlSection>> =
            places.iter().map(|place| self.location_routes(place, &around)).collect();
        // Paths without a location are served from the root of the server.
        let has_rest = places.iter().any(|place| place.paths.includes_every_path());
        let serves = server.innermost().iter().any(|one| matches!(one.name.as_str(), "root" | "try_files"))
            || places.is_empty();
        let rest = [LocationPlace::for_server(server)];
        let mut all: Vec<&LocationPlace<'d>> = places.iter().collect();
        if !has_rest && (serves || server.effective("root").is_some()) {
            own.push(self.location_routes(&server_place, &around));
            all.extend(&rest);
        } else if !has_rest {
            self.ledger.mark_different(entry, NO_ROOT_REMARK);
        }
        self.merge_script_routes(&all, &mut own);
        routes.extend(own.into_iter().flatten());
        for one in &around.named {
            if !self.ledger.is_marked(one.entry) {
                self.ledger.mark_different(
                    one.entry,
                    "no `try_files` that was translated names it, so it is left out",
                );
                self.report_unreached(one.block_directives());
            }
        }
        routes
    }

    /// Returns the route for paths with a line feed if the server has regular expressions: in nginx, `$` also
    /// matches before a trailing line feed, and `.` does not match one.
    fn line_feed_route(&self, server: &Scope<'d>) -> Vec<TomlSection> {
        let reads_path = |text: &str| matches!(text.trim_matches(['$', '{', '}']), "uri" | "document_uri");
        let differs = |expression: &str| expression.contains(['$', '.']);
        let mut found = false;
        super::tree::visit(server.innermost(), &mut |one| match one.name.as_str() {
            "location" => found |= one.first_arg().starts_with('~') && differs(one.arg_at(1)),
            "rewrite" => found |= differs(one.first_arg()),
            "if" => {
                let words = condition_words(one);
                let variable = words.first().copied().unwrap_or_default();
                found |= reads_path(variable) && words.last().is_some_and(|last| differs(last));
                let map = self.find_map(variable.trim_matches(['$', '{', '}']));
                let map = map.filter(|map| reads_path(Self::map_source(map)));
                let keys = map.iter().flat_map(|map| map.block_directives());
                found |= keys.into_iter().any(|line| line.name.starts_with('~') && differs(&line.name));
            }
            _ => {}
        });
        if !found {
            return Vec::new();
        }
        vec![refuse_line_feeds()]
    }

    /// Returns the redirect of `/a` to `location /a/` with `proxy_pass`.
    pub(crate) fn slash_redirect_route(&self, place: &LocationPlace<'d>) -> TomlSection {
        let mut section = place.paths.to_route();
        if let Some(path) = place.matcher.replaced_part() {
            section.set("redirect", redirect_item(&format!("{path}$query"), 301));
        }
        self.write_headers(&place.scope, &mut section);
        section
    }

    pub(crate) fn report_unreached(&self, block: &[NginxDirective]) {
        for one in block {
            if !self.ledger.is_marked(one.entry) {
                self.ledger
                    .mark_different(one.entry, "nothing that was translated reaches it, so it is left out");
            }
            self.report_unreached(one.block_directives());
        }
    }

    fn collect_locations(
        &self,
        scope: &Scope<'d>,
        named: &mut Vec<&'d NginxDirective>,
    ) -> Vec<UnorderedLocation<'d>> {
        let mut found = Vec::new();
        for one in scope.innermost().iter().filter(|one| one.name == "location") {
            let (operator, path) = match one.args.as_slice() {
                [path] => ("", path.as_str()),
                [operator, path] => (operator.as_str(), path.as_str()),
                _ => ("?", ""),
            };
            let matcher = match operator {
                "=" => LocationMatcher::Exact(path.to_owned()),
                "~" => LocationMatcher::Regex(path.to_owned(), false),
                "~*" => LocationMatcher::Regex(path.to_owned(), true),
                "" | "^~" => LocationMatcher::Prefix(path.to_owned(), operator == "^~"),
                _ => {
                    self.ledger.mark_impossible(one.entry, "this is not a location of nginx");
                    continue;
                }
            };
            if path.starts_with('@') {
                named.push(one);
                continue;
            }
            if !matches!(matcher, LocationMatcher::Regex(..)) && !path.is_empty() && !path.starts_with('/') {
                self.not_needed(one, "no path begins like this, so it is never used");
                self.report_unreached(one.block_directives());
                continue;
            }
            if !matches!(matcher, LocationMatcher::Regex(..))
                && path.contains("//")
                && self.always_merges_slashes()
            {
                self.not_needed(one, "slashes in a row are one, so it is never used");
                self.report_unreached(one.block_directives());
                continue;
            }
            let inner = scope.with_block(one.block_directives());
            self.count_taken(one);
            let (paths, groups, is_closed) = match self.location_patterns(one, &matcher) {
                Some((paths, groups)) => (paths, groups, false),
                None => (vec![covering_pattern(&matcher)], GroupNames::new(), true),
            };
            let scope = if groups.is_empty() { inner } else { inner.with_groups(&groups) };
            let inner = if is_closed { Vec::new() } else { self.collect_locations(&scope, named) };
            found.push(UnorderedLocation { directive: one, scope, matcher, paths, is_closed, nested: inner });
        }
        found
    }

    /// Whether all servers merge slashes.
    fn always_merges_slashes(&self) -> bool {
        self.merges_slashes() == Some(true)
    }

    /// Whether servers merge slashes; `None` if some do and others do not: the default server of an address decides for
    /// the others there.
    pub(super) fn merges_slashes(&self) -> Option<bool> {
        let is_on = |one: &NginxDirective| one.first_arg() != "off";
        let of_all = self.http.effective("merge_slashes").is_none_or(is_on);
        let of_server = |server: &NginxDirective| {
            let own = server.block_directives().iter().rfind(|one| one.name == "merge_slashes");
            own.map_or(of_all, is_on)
        };
        let servers = self.http.levels.iter().copied().flatten().filter(|one| one.name == "server");
        let mut all = servers.map(of_server);
        let first = all.next()?;
        all.all(|other| other == first).then_some(first)
    }

    /// Returns the patterns of a location and the groups of its expression; `None` if its paths cannot be
    /// expressed by a route.
    fn location_patterns(
        &self,
        directive: &NginxDirective,
        matcher: &LocationMatcher,
    ) -> Option<(Vec<String>, GroupNames)> {
        let literal = |path: &str, is_prefix| {
            let end = if is_prefix { "" } else { "$" };
            let pattern =
                from_literal(path, is_prefix).unwrap_or_else(|| format!("~ ^{}{end}", escape_literal(path)));
            Some((vec![pattern], GroupNames::new()))
        };
        let (regex, ignores_case) = match matcher {
            LocationMatcher::Exact(path) | LocationMatcher::Prefix(path, _) if path.starts_with("//") => {
                return self.close_two_slashes(directive);
            }
            LocationMatcher::Regex(regex, _)
                if with_one_slash(regex) != *regex && !self.always_merges_slashes() =>
            {
                return self.close_two_slashes(directive);
            }
            LocationMatcher::Exact(path) => return literal(path, false),
            LocationMatcher::Prefix(path, _) => return literal(path, true),
            LocationMatcher::Regex(regex, ignores_case) => (regex, *ignores_case),
            LocationMatcher::Server => return None,
        };
        let expression = path_expression(regex, ignores_case);
        let needs_groups = expression.as_ref().is_ok_and(|found| uses_groups(directive, &found.groups));
        if let (Ok(set), false) = (from_regex(regex, ignores_case), needs_groups)
            && set.difference.is_none()
        {
            return Some((set.patterns, GroupNames::new()));
        }
        match expression {
            Ok(found) => Some((vec![found.pattern], found.groups)),
            Err(reason) => {
                let what = "its paths, and perhaps more, are closed (403): write `path`";
                self.ledger.mark_impossible(directive.entry, format!("{reason}: {what}"));
                self.report_untranslated_location(directive);
                None
            }
        }
    }

    /// Reports a location of paths that begin with two slashes, whose paths cannot be expressed by a route.
    fn close_two_slashes<T>(&self, directive: &NginxDirective) -> Option<T> {
        let reason = "slashes at the start of a path are one here: its paths with one slash are closed (403)";
        self.ledger.mark_impossible(directive.entry, reason);
        self.report_untranslated_location(directive);
        None
    }

    fn report_untranslated_location(&self, directive: &NginxDirective) {
        for inner in directive.block_directives() {
            if !self.ledger.is_marked(inner.entry) {
                self.ledger.mark_impossible(inner.entry, "it belongs to a location without a route");
            }
            self.report_untranslated_location(inner);
        }
    }
}

/// Returns the places of the locations of one level, including nested ones.
fn order_level<'d>(found: &[UnorderedLocation<'d>], context: &EnclosingContext) -> LevelLocations<'d> {
    let mut places = LevelLocations::default();
    for one in found.iter().filter(|one| matches!(one.matcher, LocationMatcher::Exact(_))) {
        places.final_places.extend(build_place(one, context));
    }
    places.final_places.extend(slash_redirect_places(found, context));
    let mut prefixes: Vec<&UnorderedLocation<'d>> =
        found.iter().filter(|one| one.prefix().is_some()).collect();
    prefixes.sort_by_key(|one| std::cmp::Reverse(one.prefix().map_or(0, |(path, _)| path.len())));
    // At the outermost level, locations with `^~` can simply precede the expressions.
    let is_outermost = context.matchers.is_empty();
    let (first, others): (Vec<&UnorderedLocation<'d>>, Vec<&UnorderedLocation<'d>>) =
        prefixes.iter().partition(|one| is_outermost && precedes_expressions(one, &prefixes));
    for one in first {
        let LevelLocations { final_places: decided, late_places: rest } =
            order_level(&one.nested, &context_within(one, &[], context));
        places.final_places.extend(decided.into_iter().chain(rest).chain(build_place(one, context)));
    }
    let mut rest = Vec::new();
    for one in &others {
        let inner = order_level(&one.nested, &context_within(one, &others, context));
        places.final_places.extend(inner.final_places);
        rest.extend(inner.late_places.into_iter().chain(build_place(one, context)));
    }
    let mut except = context.sibling_exceptions.clone();
    except.extend(paths_without_expressions(&others, true));
    let level_around = EnclosingContext { sibling_exceptions: except, ..context.clone() };
    for one in found.iter().filter(|one| one.is_regex()) {
        let mut inner_around = level_around.clone();
        inner_around.enclosing_patterns.push(one.paths.clone());
        inner_around.matchers.push(one.matcher.clone());
        let inner = order_level(&one.nested, &inner_around);
        places.final_places.extend(inner.final_places.into_iter().chain(inner.late_places));
        places.final_places.extend(build_place(one, &level_around));
    }
    places.late_places = rest;
    places
}

/// Whether a prefix and all longer ones below it have `^~`.
fn precedes_expressions(location: &UnorderedLocation<'_>, all: &[&UnorderedLocation<'_>]) -> bool {
    let Some((prefix, _)) = location.prefix() else { return false };
    all.iter().filter_map(|other| other.prefix()).all(|(path, first)| first || !path.starts_with(prefix))
}

/// Returns the paths to which the expressions of a level do not apply, because their longest prefix has `^~`
/// (if `wanted`), or the opposite.
fn paths_without_expressions(prefixes: &[&UnorderedLocation<'_>], wanted: bool) -> Vec<PathException> {
    let of_kind = |one: &&UnorderedLocation<'_>| one.prefix().is_some_and(|(_, first)| first == wanted);
    let mut found: Vec<PathException> = Vec::new();
    // The shortest prefixes are last.
    for one in prefixes.iter().copied().filter(of_kind).collect::<Vec<_>>().into_iter().rev() {
        let Some((prefix, _)) = one.prefix() else { continue };
        if found.iter().any(|known| prefix.starts_with(&known.prefix)) {
            continue;
        }
        let is_below = |other: &&UnorderedLocation<'_>| {
            other.prefix().is_some_and(|(path, _)| path.len() > prefix.len() && path.starts_with(prefix))
        };
        let below: Vec<&UnorderedLocation<'_>> = prefixes.iter().copied().filter(is_below).collect();
        let except = paths_without_expressions(&below, !wanted);
        found.push(PathException { prefix: prefix.to_owned(), except });
    }
    found
}

/// Returns the context of the locations within a prefix; `beside` are the prefixes of its level.
fn context_within(
    location: &UnorderedLocation<'_>,
    beside: &[&UnorderedLocation<'_>],
    context: &EnclosingContext,
) -> EnclosingContext {
    let Some((prefix, _)) = location.prefix() else { return context.clone() };
    let longer = beside
        .iter()
        .filter_map(|other| other.prefix())
        .filter(|(path, _)| path.len() > prefix.len() && path.starts_with(prefix));
    let mut except = context.sibling_exceptions.clone();
    except.extend(longer.map(|(path, _)| PathException { prefix: path.to_owned(), except: Vec::new() }));
    let mut matchers = context.matchers.clone();
    matchers.push(location.matcher.clone());
    EnclosingContext {
        enclosing_patterns: context.enclosing_patterns.clone(),
        prefix: prefix.to_owned(),
        sibling_exceptions: except,
        matchers,
    }
}

/// Returns the redirects to locations with a trailing slash.
fn slash_redirect_places<'d>(
    found: &[UnorderedLocation<'d>],
    context: &EnclosingContext,
) -> Vec<LocationPlace<'d>> {
    let is_taken = |path: &str| {
        let own = |one: &UnorderedLocation<'_>| match &one.matcher {
            LocationMatcher::Exact(own) | LocationMatcher::Prefix(own, _) => own == path,
            _ => false,
        };
        found.iter().any(own)
    };
    let mut places: Vec<LocationPlace<'d>> = Vec::new();
    for one in found {
        let Some(path) = one.redirects_to_slash().filter(|path| !is_taken(path)) else { continue };
        // Other locations may take all paths below the prefix, but not this path.
        let Some(mut place) = build_place(&one.without_slash(path), context) else { continue };
        place.matcher = one.matcher.clone();
        // An exact location for the same path determines the redirect.
        let slashed = format!("{path}/");
        let is_exact = |other: &&UnorderedLocation<'_>| matches!(&other.matcher, LocationMatcher::Exact(exact) if *exact == slashed);
        if let Some(exact) = found.iter().find(is_exact).and_then(|exact| self::build_place(exact, context)) {
            place.scope = exact.scope;
        }
        place.lacks_slash = true;
        if !places.iter().any(|other| other.paths == place.paths) {
            places.push(place);
        }
    }
    places
}

/// Returns the place of a location; `None` if other locations take all of its paths.
fn build_place<'d>(
    location: &UnorderedLocation<'d>,
    context: &EnclosingContext,
) -> Option<LocationPlace<'d>> {
    let mut paths = PathConditions {
        patterns: location.paths.clone(),
        enclosing_patterns: context.enclosing_patterns.clone(),
        exceptions: Vec::new(),
    };
    match &location.matcher {
        LocationMatcher::Exact(path) | LocationMatcher::Prefix(path, _) => {
            let is_exact = matches!(location.matcher, LocationMatcher::Exact(_));
            for except in &context.sibling_exceptions {
                if is_excluded(path, is_exact, except) {
                    return None;
                }
                if !is_exact && (except.prefix.starts_with(path) || path.starts_with(&except.prefix)) {
                    paths.exceptions.push(except.clone());
                }
            }
        }
        _ => {
            paths.exceptions.clone_from(&context.sibling_exceptions);
            match restrict_to_prefix(&context.prefix, &location.paths) {
                Some(any) => paths.patterns = any,
                None => paths.enclosing_patterns.push(vec![prefix_pattern(&context.prefix)]),
            }
        }
    }
    Some(LocationPlace {
        scope: location.scope.clone(),
        matcher: location.matcher.clone(),
        paths,
        enclosing_matchers: context.matchers.clone(),
        entry: Some(location.directive.entry),
        is_closed: location.is_closed,
        lacks_slash: false,
    })
}

/// Whether a path, or all paths that begin with it, are excluded.
fn is_excluded(path: &str, is_exact: bool, except: &PathException) -> bool {
    let has_others = except.except.iter().any(|one| one.prefix.starts_with(path));
    except.matches(path) && (is_exact || !has_others)
}

/// Restricts patterns to the paths that begin with a prefix; `None` if that cannot be expressed by patterns.
fn restrict_to_prefix(prefix: &str, patterns: &[String]) -> Option<Vec<String>> {
    if matches!(prefix, "" | "/") {
        return Some(patterns.to_vec());
    }
    patterns
        .iter()
        .map(|pattern| {
            if implies_prefix(pattern, prefix) {
                Some(pattern.clone())
            } else {
                below_suffix(prefix, pattern)
            }
        })
        .collect()
}

/// Returns a pattern that includes all paths of a location whose exact paths cannot be expressed.
fn covering_pattern(matcher: &LocationMatcher) -> String {
    // Slashes at the start of a path are one.
    let escaped = |path: &str| escape_literal(&format!("/{}", path.trim_start_matches('/')));
    match matcher {
        LocationMatcher::Exact(path) => format!("~ ^{}$", escaped(path)),
        LocationMatcher::Prefix(path, _) => format!("~ ^{}", escaped(path)),
        LocationMatcher::Regex(regex, ignores_case) => {
            widen_expression(&with_one_slash(regex), *ignores_case)
        }
        LocationMatcher::Server => "*".to_owned(),
    }
}

/// Returns an expression that asks for one slash where this one asks for several at the start of a path.
fn with_one_slash(regex: &str) -> String {
    let rest = regex.strip_prefix("^/").unwrap_or_default();
    let several = ["{2}", "{2,}", "[/]", "+/"].iter().find_map(|more| rest.strip_prefix(more));
    let one = several.or_else(|| rest.starts_with('/').then(|| rest.trim_start_matches('/')));
    one.map_or_else(|| regex.to_owned(), |rest| format!("^/{rest}"))
}

/// Whether a location uses groups of its expression.
fn uses_groups(directive: &NginxDirective, groups: &[(String, String)]) -> bool {
    let mut found = false;
    super::tree::visit(directive.block_directives(), &mut |inner| {
        found |= inner.args.iter().any(|arg| {
            groups
                .iter()
                .any(|(old, _)| arg.contains(&format!("${old}")) || arg.contains(&format!("${{{old}}}")))
        });
    });
    found && !groups.is_empty()
}
