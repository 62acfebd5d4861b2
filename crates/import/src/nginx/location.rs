//! Locations of a server, in an order in which the first match is the one that nginx selects.
//!
//! nginx selects a location level by level (`ngx_http_core_find_location`): an exact match (`=`) first, else
//! the longest prefix, whose nested locations are searched next. Unless those yield an exact match or a
//! regular expression, or the prefix has `^~`, the regular expressions of the level follow; then the longest
//! prefix applies, the innermost first. A match by a regular expression is final.

use super::conditions::words;
use super::place::{LocationPaths, PathException, Place, ServerLocations, prefix_pattern};
use super::scope::Scope;
use super::tree::NginxDirective;
use super::work::{Matcher, Translation, redirect};
use crate::draft::{TomlItem, TomlSection};
use crate::expressions::{implies_prefix, path_expression, quoted, wider_expression};
use crate::findings::EntryNumber;
use crate::paths::{below_suffix, from_literal, from_regex};

/// Names of the groups of an expression in nginx and in Komainu.
type GroupNames = Vec<(String, String)>;

/// A location whose order among the others is not yet determined.
#[derive(Clone)]
struct FoundLocation<'d> {
    directive: &'d NginxDirective,
    scope: Scope<'d>,
    matcher: Matcher,
    /// Patterns of its paths, regardless of the enclosing locations.
    paths: Vec<String>,
    /// See [`Place::is_closed`].
    is_closed: bool,
    inner: Vec<FoundLocation<'d>>,
}

impl FoundLocation<'_> {
    /// The prefix of a prefix location, and whether it has `^~`.
    fn prefix(&self) -> Option<(&str, bool)> {
        match &self.matcher {
            Matcher::Prefix(path, first) => Some((path, *first)),
            _ => None,
        }
    }

    fn is_regex(&self) -> bool {
        matches!(self.matcher, Matcher::Regex(..))
    }

    /// Returns the path without the trailing slash if nginx redirects it to this location.
    fn redirects_to_slash(&self) -> Option<&str> {
        let (Matcher::Exact(path) | Matcher::Prefix(path, _)) = &self.matcher else { return None };
        let passes = self.directive.inner().iter().any(|one| one.name.ends_with("_pass"));
        path.strip_suffix('/').filter(|path| passes && !path.is_empty())
    }

    /// Returns a copy of the location for exactly `path`.
    fn without_slash(&self, path: &str) -> Self {
        let pattern = from_literal(path, false).unwrap_or_else(|| format!("~ ^{}$", quoted(path)));
        Self {
            matcher: Matcher::Exact(path.to_owned()),
            paths: vec![pattern],
            inner: Vec::new(),
            ..self.clone()
        }
    }
}

/// Context of the locations of a level.
#[derive(Clone, Default)]
struct AroundLevel {
    /// Patterns of the enclosing regular expressions.
    within: Vec<Vec<String>>,
    /// Innermost enclosing prefix.
    prefix: String,
    /// Paths that belong to siblings of the enclosing locations.
    except: Vec<PathException>,
    matchers: Vec<Matcher>,
}

/// Places of a level: those that are final, and those that come after the regular expressions of the
/// enclosing level.
#[derive(Default)]
struct LevelPlaces<'d> {
    decided: Vec<Place<'d>>,
    rest: Vec<Place<'d>>,
}

/// The remark on a server without a `root`.
pub(super) const NO_REST: &str = "what no location has is 404: nginx serves a folder of its own";

impl<'d> Translation<'d> {
    /// Returns the routes of a server. They are cached, because several sites may have the same ones.
    pub(crate) fn locations(&self, server: &Scope<'d>, entry: EntryNumber) -> Vec<TomlSection> {
        if let Some(known) = self.routes.borrow().get(&entry) {
            return known.clone();
        }
        let routes = self.translated_locations(server, entry);
        self.routes.borrow_mut().insert(entry, routes.clone());
        routes
    }

    fn translated_locations(&self, server: &Scope<'d>, entry: EntryNumber) -> Vec<TomlSection> {
        let mut named = Vec::new();
        let found = self.collect(server, &mut named);
        let LevelPlaces { decided, rest } = level(&found, &AroundLevel::default());
        let places = decided.into_iter().chain(rest).collect();
        let around = ServerLocations { places, named, server: server.clone() };
        let places = &around.places;
        let server_place = Place::of_server(server);
        let phase = self.rewrite_phase(&server_place, &around);
        let continues = phase.continues;
        let mut routes = self.finished(self.line_feeds(server), server);
        routes.extend(self.finished(phase.whole(), server));
        if !continues {
            places.iter().for_each(|place| self.unreached(place.scope.own()));
            return routes;
        }
        let mut own: Vec<Vec<TomlSection>> = places.iter().map(|place| self.routes(place, &around)).collect();
        // Paths without a location are served from the root of the server.
        let has_rest = places.iter().any(|place| place.paths.is_everything());
        let serves = server.own().iter().any(|one| matches!(one.name.as_str(), "root" | "try_files"))
            || places.is_empty();
        let rest = [Place::of_server(server)];
        let mut all: Vec<&Place<'d>> = places.iter().collect();
        if !has_rest && (serves || server.one("root").is_some()) {
            own.push(self.routes(&server_place, &around));
            all.extend(&rest);
        } else if !has_rest {
            self.ledger.differs(entry, NO_REST);
        }
        self.merge_scripts(&all, &mut own);
        routes.extend(own.into_iter().flatten());
        for one in &around.named {
            if !self.ledger.is_marked(one.entry) {
                self.ledger
                    .differs(one.entry, "no `try_files` that was translated names it, so it is left out");
                self.unreached(one.inner());
            }
        }
        routes
    }

    /// Returns the route for paths with a line feed if the server has regular expressions: in nginx, `$` also
    /// matches before a trailing line feed, and `.` does not match one.
    fn line_feeds(&self, server: &Scope<'d>) -> Vec<TomlSection> {
        let reads_path = |text: &str| matches!(text.trim_matches(['$', '{', '}']), "uri" | "document_uri");
        let differs = |expression: &str| expression.contains(['$', '.']);
        let mut found = false;
        super::tree::visit(server.own(), &mut |one| match one.name.as_str() {
            "location" => found |= one.first().starts_with('~') && differs(one.arg(1)),
            "rewrite" => found |= differs(one.first()),
            "if" => {
                let words = words(one);
                let variable = words.first().copied().unwrap_or_default();
                found |= reads_path(variable) && words.last().is_some_and(|last| differs(last));
                let map = self.map_block(variable.trim_matches(['$', '{', '}']));
                let map = map.filter(|map| reads_path(Self::map_source(map)));
                let keys = map.iter().flat_map(|map| map.inner());
                found |= keys.into_iter().any(|line| line.name.starts_with('~') && differs(&line.name));
            }
            _ => {}
        });
        if !found {
            return Vec::new();
        }
        let mut section = TomlSection::default();
        section.comment("Expressions of nginx treat a line feed in another way.");
        section.set_text("path", r"~ \n");
        section.set("respond", TomlItem::Number(404));
        vec![section]
    }

    /// Returns the redirect of `/a` to `location /a/` with `proxy_pass`.
    pub(crate) fn slash_redirect(&self, place: &Place<'d>) -> TomlSection {
        let mut section = place.paths.route();
        if let Some(path) = place.matcher.replaced() {
            section.set("redirect", redirect(&format!("{path}$query"), 301));
        }
        self.headers(&place.scope, &mut section);
        section
    }

    pub(crate) fn unreached(&self, block: &[NginxDirective]) {
        for one in block {
            if !self.ledger.is_marked(one.entry) {
                self.ledger.differs(one.entry, "nothing that was translated reaches it, so it is left out");
            }
            self.unreached(one.inner());
        }
    }

    fn collect(&self, scope: &Scope<'d>, named: &mut Vec<&'d NginxDirective>) -> Vec<FoundLocation<'d>> {
        let mut found = Vec::new();
        for one in scope.own().iter().filter(|one| one.name == "location") {
            let (operator, path) = match one.args.as_slice() {
                [path] => ("", path.as_str()),
                [operator, path] => (operator.as_str(), path.as_str()),
                _ => ("?", ""),
            };
            let matcher = match operator {
                "=" => Matcher::Exact(path.to_owned()),
                "~" => Matcher::Regex(path.to_owned(), false),
                "~*" => Matcher::Regex(path.to_owned(), true),
                "" | "^~" => Matcher::Prefix(path.to_owned(), operator == "^~"),
                _ => {
                    self.ledger.impossible(one.entry, "this is no location of nginx");
                    continue;
                }
            };
            if path.starts_with('@') {
                named.push(one);
                continue;
            }
            if !matches!(matcher, Matcher::Regex(..)) && !path.is_empty() && !path.starts_with('/') {
                self.ledger.needless(one.entry, "no path begins so, and nothing of it is ever used");
                self.unreached(one.inner());
                continue;
            }
            let inner = scope.with(one.inner());
            let (paths, groups, is_closed) = match self.paths(one, &matcher) {
                Some((paths, groups)) => (paths, groups, false),
                None => (vec![closed_path(&matcher)], GroupNames::new(), true),
            };
            let scope = if groups.is_empty() { inner } else { inner.with_groups(&groups) };
            let inner = if is_closed { Vec::new() } else { self.collect(&scope, named) };
            found.push(FoundLocation { directive: one, scope, matcher, paths, is_closed, inner });
        }
        found
    }

    /// Returns the patterns of a location and the groups of its expression; `None` if its paths cannot be
    /// expressed by a route.
    fn paths(&self, one: &NginxDirective, matcher: &Matcher) -> Option<(Vec<String>, GroupNames)> {
        let literal = |path: &str, is_prefix| {
            self.ledger.translated(one.entry);
            let end = if is_prefix { "" } else { "$" };
            let pattern =
                from_literal(path, is_prefix).unwrap_or_else(|| format!("~ ^{}{end}", quoted(path)));
            Some((vec![pattern], GroupNames::new()))
        };
        let (regex, ignores_case) = match matcher {
            Matcher::Exact(path) => return literal(path, false),
            Matcher::Prefix(path, _) => return literal(path, true),
            Matcher::Regex(regex, ignores_case) => (regex, *ignores_case),
            Matcher::Server => return None,
        };
        let expression = path_expression(regex, ignores_case);
        let needs_groups = expression.as_ref().is_ok_and(|found| names_groups(one, &found.groups));
        if let (Ok(set), false) = (from_regex(regex, ignores_case), needs_groups)
            && set.differs.is_none()
        {
            self.ledger.translated(one.entry);
            return Some((set.patterns, GroupNames::new()));
        }
        match expression {
            Ok(found) => {
                self.ledger.translated(one.entry);
                Some((vec![found.pattern], found.groups))
            }
            Err(reason) => {
                let what = "its paths, and perhaps more, are closed (403) until somebody writes them";
                self.ledger.impossible(one.entry, format!("{reason}: {what}"));
                self.lost_location(one);
                None
            }
        }
    }

    fn lost_location(&self, one: &NginxDirective) {
        for inner in one.inner() {
            if !self.ledger.is_marked(inner.entry) {
                self.ledger.impossible(inner.entry, "it belongs to a location without a route");
            }
            self.lost_location(inner);
        }
    }
}

/// Returns the places of the locations of one level, including nested ones.
fn level<'d>(found: &[FoundLocation<'d>], around: &AroundLevel) -> LevelPlaces<'d> {
    let mut places = LevelPlaces::default();
    for one in found.iter().filter(|one| matches!(one.matcher, Matcher::Exact(_))) {
        places.decided.extend(place(one, around));
    }
    places.decided.extend(slash_redirects(found, around));
    let mut prefixes: Vec<&FoundLocation<'d>> = found.iter().filter(|one| one.prefix().is_some()).collect();
    prefixes.sort_by_key(|one| std::cmp::Reverse(one.prefix().map_or(0, |(path, _)| path.len())));
    // At the outermost level, locations with `^~` can simply precede the expressions.
    let is_outermost = around.matchers.is_empty();
    let (first, others): (Vec<&FoundLocation<'d>>, Vec<&FoundLocation<'d>>) =
        prefixes.iter().partition(|one| is_outermost && comes_first(one, &prefixes));
    for one in first {
        let LevelPlaces { decided, rest } = level(&one.inner, &inside(one, &[], around));
        places.decided.extend(decided.into_iter().chain(rest).chain(place(one, around)));
    }
    let mut rest = Vec::new();
    for one in &others {
        let inner = level(&one.inner, &inside(one, &others, around));
        places.decided.extend(inner.decided);
        rest.extend(inner.rest.into_iter().chain(place(one, around)));
    }
    let mut except = around.except.clone();
    except.extend(without_expressions(&others, true));
    let level_around = AroundLevel { except, ..around.clone() };
    for one in found.iter().filter(|one| one.is_regex()) {
        let mut inner_around = level_around.clone();
        inner_around.within.push(one.paths.clone());
        inner_around.matchers.push(one.matcher.clone());
        let inner = level(&one.inner, &inner_around);
        places.decided.extend(inner.decided.into_iter().chain(inner.rest));
        places.decided.extend(place(one, &level_around));
    }
    places.rest = rest;
    places
}

/// Whether a prefix and all longer ones below it have `^~`.
fn comes_first(one: &FoundLocation<'_>, all: &[&FoundLocation<'_>]) -> bool {
    let Some((prefix, _)) = one.prefix() else { return false };
    all.iter().filter_map(|other| other.prefix()).all(|(path, first)| first || !path.starts_with(prefix))
}

/// Returns the paths to which the expressions of a level do not apply, because their longest prefix has `^~`
/// (if `wanted`), or the opposite.
fn without_expressions(prefixes: &[&FoundLocation<'_>], wanted: bool) -> Vec<PathException> {
    let of_kind = |one: &&FoundLocation<'_>| one.prefix().is_some_and(|(_, first)| first == wanted);
    let mut found: Vec<PathException> = Vec::new();
    // The shortest prefixes are last.
    for one in prefixes.iter().copied().filter(of_kind).collect::<Vec<_>>().into_iter().rev() {
        let Some((prefix, _)) = one.prefix() else { continue };
        if found.iter().any(|known| prefix.starts_with(&known.prefix)) {
            continue;
        }
        let is_below = |other: &&FoundLocation<'_>| {
            other.prefix().is_some_and(|(path, _)| path.len() > prefix.len() && path.starts_with(prefix))
        };
        let below: Vec<&FoundLocation<'_>> = prefixes.iter().copied().filter(is_below).collect();
        let except = without_expressions(&below, !wanted);
        found.push(PathException { prefix: prefix.to_owned(), except });
    }
    found
}

/// Returns the context of the locations within a prefix; `beside` are the prefixes of its level.
fn inside(one: &FoundLocation<'_>, beside: &[&FoundLocation<'_>], around: &AroundLevel) -> AroundLevel {
    let Some((prefix, _)) = one.prefix() else { return around.clone() };
    let longer = beside
        .iter()
        .filter_map(|other| other.prefix())
        .filter(|(path, _)| path.len() > prefix.len() && path.starts_with(prefix));
    let mut except = around.except.clone();
    except.extend(longer.map(|(path, _)| PathException { prefix: path.to_owned(), except: Vec::new() }));
    let mut matchers = around.matchers.clone();
    matchers.push(one.matcher.clone());
    AroundLevel { within: around.within.clone(), prefix: prefix.to_owned(), except, matchers }
}

/// Returns the redirects to locations with a trailing slash.
fn slash_redirects<'d>(found: &[FoundLocation<'d>], around: &AroundLevel) -> Vec<Place<'d>> {
    let is_taken = |path: &str| {
        let own = |one: &FoundLocation<'_>| match &one.matcher {
            Matcher::Exact(own) | Matcher::Prefix(own, _) => own == path,
            _ => false,
        };
        found.iter().any(own)
    };
    let mut places: Vec<Place<'d>> = Vec::new();
    for one in found {
        let Some(path) = one.redirects_to_slash().filter(|path| !is_taken(path)) else { continue };
        // Other locations may take all paths below the prefix, but not this path.
        let Some(mut place) = place(&one.without_slash(path), around) else { continue };
        place.matcher = one.matcher.clone();
        // An exact location for the same path determines the redirect.
        let slashed = format!("{path}/");
        let is_exact =
            |other: &&FoundLocation<'_>| matches!(&other.matcher, Matcher::Exact(exact) if *exact == slashed);
        if let Some(exact) = found.iter().find(is_exact).and_then(|exact| self::place(exact, around)) {
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
fn place<'d>(one: &FoundLocation<'d>, around: &AroundLevel) -> Option<Place<'d>> {
    let mut paths =
        LocationPaths { any: one.paths.clone(), within: around.within.clone(), except: Vec::new() };
    match &one.matcher {
        Matcher::Exact(path) | Matcher::Prefix(path, _) => {
            let is_exact = matches!(one.matcher, Matcher::Exact(_));
            for except in &around.except {
                if is_excluded(path, is_exact, except) {
                    return None;
                }
                if !is_exact && (except.prefix.starts_with(path) || path.starts_with(&except.prefix)) {
                    paths.except.push(except.clone());
                }
            }
        }
        _ => {
            paths.except.clone_from(&around.except);
            match below_all(&around.prefix, &one.paths) {
                Some(any) => paths.any = any,
                None => paths.within.push(vec![prefix_pattern(&around.prefix)]),
            }
        }
    }
    Some(Place {
        scope: one.scope.clone(),
        matcher: one.matcher.clone(),
        paths,
        around: around.matchers.clone(),
        entry: Some(one.directive.entry),
        is_closed: one.is_closed,
        lacks_slash: false,
    })
}

/// Whether a path, or all paths that begin with it, are excluded.
fn is_excluded(path: &str, is_exact: bool, except: &PathException) -> bool {
    let has_others = except.except.iter().any(|one| one.prefix.starts_with(path));
    except.matches(path) && (is_exact || !has_others)
}

/// Restricts patterns to the paths that begin with a prefix; `None` if that cannot be expressed by patterns.
fn below_all(prefix: &str, patterns: &[String]) -> Option<Vec<String>> {
    if matches!(prefix, "" | "/") {
        return Some(patterns.to_vec());
    }
    patterns
        .iter()
        .map(|pattern| match implies_prefix(pattern, prefix) {
            true => Some(pattern.clone()),
            false => below_suffix(prefix, pattern),
        })
        .collect()
}

/// Returns a pattern that includes all paths of a location whose exact paths cannot be expressed.
fn closed_path(matcher: &Matcher) -> String {
    match matcher {
        Matcher::Exact(path) => format!("~ ^{}$", quoted(path)),
        Matcher::Prefix(path, _) => format!("~ ^{}", quoted(path)),
        Matcher::Regex(regex, ignores_case) => wider_expression(regex, *ignores_case),
        Matcher::Server => "*".to_owned(),
    }
}

/// Whether a location uses groups of its expression.
fn names_groups(one: &NginxDirective, groups: &[(String, String)]) -> bool {
    let mut found = false;
    super::tree::visit(one.inner(), &mut |inner| {
        found |= inner.args.iter().any(|arg| {
            groups
                .iter()
                .any(|(old, _)| arg.contains(&format!("${old}")) || arg.contains(&format!("${{{old}}}")))
        });
    });
    found && !groups.is_empty()
}
