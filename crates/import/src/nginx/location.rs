//! The locations of a server, in an order in which the first that matches is the one that nginx chooses.

use super::place::{Place, ServerLocations};
use super::scope::Scope;
use super::tree::NginxDirective;
use super::work::{Matcher, Translation, redirect};
use crate::draft::TomlSection;
use crate::expressions::{expression_below, path_expression, quoted, wider_expression};
use crate::findings::EntryNumber;
use crate::paths::{below, from_literal, from_regex};

/// GroupNames of an expression, as nginx and Komainu name them.
type GroupNames = Vec<(String, String)>;

/// A location before its place is known.
struct FoundLocation<'d> {
    directive: &'d NginxDirective,
    scope: Scope<'d>,
    matcher: Matcher,
    /// Patterns of its paths.
    paths: Vec<String>,
    /// The prefix location that it stands in.
    within: Option<String>,
    /// See [`Place::is_closed`].
    is_closed: bool,
}

impl<'d> Translation<'d> {
    /// The routes of a server.
    pub(crate) fn locations(&self, server: &Scope<'d>) -> Vec<TomlSection> {
        let mut found = Vec::new();
        let mut named = Vec::new();
        self.collect(server, None, &mut found, &mut named);
        let around = ServerLocations { places: self.ordered(found), named, server: server.clone() };
        let places = &around.places;
        let server_place = Place::of_server(server);
        let mut routes = self.finished(self.rewrites(&server_place), server);
        if let Some(one) = server.own_one("return") {
            let mut section = TomlSection::default();
            self.respond(one, server, &mut section);
            self.headers(server, &mut section);
            routes.extend(self.finished(vec![section], server));
            for place in places {
                self.unreached(place.scope.own());
            }
            return routes;
        }
        routes.extend(self.slash_redirects(places));
        let mut own: Vec<Vec<TomlSection>> = places.iter().map(|place| self.routes(place, &around)).collect();
        // What no location has is served from the folder of the server.
        let has_rest = places.iter().any(|place| place.paths == ["/*"]);
        let serves = server.own().iter().any(|one| matches!(one.name.as_str(), "root" | "try_files"))
            || places.is_empty();
        if !has_rest && (serves || server.one("root").is_some()) {
            own.push(self.routes_of_server(server, &around));
            let rest = [Place::of_server(server)];
            let all: Vec<&Place<'d>> = places.iter().chain(&rest).collect();
            self.merge_scripts(&all, &mut own);
        } else {
            self.merge_scripts(&places.iter().collect::<Vec<_>>(), &mut own);
        }
        routes.extend(own.into_iter().flatten());
        let named = &around.named;
        for one in named {
            if !self.ledger.is_marked(one.entry) {
                self.ledger
                    .differs(one.entry, "no `try_files` that was translated names it, so it is left out");
                self.unreached(one.inner());
            }
        }
        routes
    }

    /// `location /a/` with `proxy_pass`: nginx redirects `/a` to it, unless there is a `location = /a`.
    fn slash_redirects(&self, places: &[Place<'d>]) -> Vec<TomlSection> {
        let is_taken = |path: &str| {
            places.iter().any(|place| match &place.matcher {
                Matcher::Exact(exact) => exact == path,
                Matcher::Prefix(prefix, _) => prefix == path,
                _ => false,
            })
        };
        let passes = |place: &Place<'d>| place.scope.own().iter().any(|one| one.name.ends_with("_pass"));
        let mut found: Vec<TomlSection> = Vec::new();
        for place in places.iter().filter(|place| passes(place) && place.scope.own_one("internal").is_none())
        {
            let Matcher::Prefix(prefix, _) = &place.matcher else { continue };
            let Some(path) = prefix.strip_suffix('/').filter(|path| !path.is_empty() && !is_taken(path))
            else {
                continue;
            };
            let mut section = TomlSection::default();
            section.set_text("path", path);
            section.set("redirect", redirect(&format!("{prefix}$query"), 301));
            self.headers(&place.scope, &mut section);
            if !found.contains(&section) && from_literal(path, false).is_some() {
                found.push(section);
            }
        }
        found
    }

    fn routes_of_server(&self, server: &Scope<'d>, around: &ServerLocations<'d>) -> Vec<TomlSection> {
        // Its own `rewrite` and `if` stand before all locations already.
        let all = self.routes(&Place::of_server(server), around);
        all.into_iter().next_back().into_iter().collect()
    }

    fn unreached(&self, block: &[NginxDirective]) {
        for one in block {
            if !self.ledger.is_marked(one.entry) {
                self.ledger.differs(one.entry, "nothing that was translated reaches it, so it is left out");
            }
            self.unreached(one.inner());
        }
    }

    fn collect(
        &self,
        scope: &Scope<'d>,
        within: Option<&str>,
        found: &mut Vec<FoundLocation<'d>>,
        named: &mut Vec<&'d NginxDirective>,
    ) {
        for one in scope.own().iter().filter(|one| one.name == "location") {
            let (operator, path) = match one.args.as_slice() {
                [path] => match path.strip_prefix('=').or(path.strip_prefix("^~")) {
                    Some(rest) if !rest.is_empty() => (&path[..path.len() - rest.len()], rest),
                    _ => ("", path.as_str()),
                },
                [operator, path] => (operator.as_str(), path.as_str()),
                _ => {
                    self.ledger.impossible(one.entry, "this is no location of nginx");
                    continue;
                }
            };
            if path.starts_with('@') {
                named.push(one);
                continue;
            }
            let inner = scope.with(one.inner());
            let matcher = match operator {
                "=" => Matcher::Exact(path.to_owned()),
                "~" => Matcher::Regex(path.to_owned(), false),
                "~*" => Matcher::Regex(path.to_owned(), true),
                _ => Matcher::Prefix(path.to_owned(), operator == "^~"),
            };
            let next = match &matcher {
                Matcher::Prefix(path, _) => Some(path.as_str()),
                _ => within,
            };
            self.collect(&inner, next, found, named);
            let translated = self.paths(one, &matcher, within, scope);
            let is_lost = translated.is_none() && self.ledger.is_impossible(one.entry);
            let is_closed = is_lost && restricts(one.inner());
            let (paths, groups) = match translated {
                Some(found) => found,
                None if is_closed => (closed_paths(&matcher, within), GroupNames::new()),
                None => continue,
            };
            let within = within.map(str::to_owned);
            let inner = if groups.is_empty() { inner } else { inner.with_groups(&groups) };
            found.push(FoundLocation { directive: one, scope: inner, matcher, paths, within, is_closed });
        }
    }

    /// The patterns of a location, and the groups of its expression.
    fn paths(
        &self,
        one: &NginxDirective,
        matcher: &Matcher,
        within: Option<&str>,
        server: &Scope<'d>,
    ) -> Option<(Vec<String>, GroupNames)> {
        let literal = |path: &str, is_prefix| match from_literal(path, is_prefix) {
            Some(pattern) => {
                self.ledger.translated(one.entry);
                Some((vec![pattern], GroupNames::new()))
            }
            None => {
                self.ledger
                    .impossible(one.entry, format!("no path pattern can be this: {}", without_route(one)));
                self.lost_location(one);
                None
            }
        };
        let (regex, ignores_case) = match matcher {
            Matcher::Exact(path) => return literal(path, false),
            Matcher::Prefix(path, _) => return literal(path, true),
            Matcher::Regex(regex, ignores_case) => (regex, *ignores_case),
            Matcher::Server => return None,
        };
        let pattern = from_regex(regex, ignores_case);
        let expression = path_expression(regex, ignores_case);
        let needs_groups = expression.as_ref().is_ok_and(|found| names_groups(one, &found.groups));
        if let (Ok(set), false) = (&pattern, needs_groups)
            && set.differs.is_none()
        {
            self.ledger.translated(one.entry);
            let below_it = |prefix| set.patterns.iter().flat_map(|one| below(prefix, one)).collect();
            return Some((within.map_or_else(|| set.patterns.clone(), below_it), GroupNames::new()));
        }
        if !needs_groups && pattern.is_err() && is_dotfiles(one, regex) && !passes_on(server) {
            self.ledger.differs(
                one.entry,
                "not needed for `files`, which never serve what begins with a dot, except `/.well-known/`",
            );
            one.inner().iter().for_each(|inner| self.ledger.needless(inner.entry, "see its location"));
            return None;
        }
        let reason = match expression {
            Ok(found) => {
                let joined = match within {
                    None => Some(found.pattern),
                    Some(prefix) => expression_below(prefix, &found.pattern),
                };
                match joined {
                    Some(pattern) => {
                        self.ledger.translated(one.entry);
                        return Some((vec![pattern], found.groups));
                    }
                    None => "its expression and the location around it have different paths".to_owned(),
                }
            }
            Err(reason) => reason,
        };
        let Ok(set) = pattern else {
            self.ledger.impossible(one.entry, format!("{reason}: {}", without_route(one)));
            self.lost_location(one);
            return None;
        };
        let what = set.differs.unwrap_or_else(|| "the patterns match the same paths".to_owned());
        self.ledger.differs(one.entry, format!("{reason}; {what}: {}", set.patterns.join(", ")));
        let paths = match within {
            Some(prefix) => set.patterns.iter().flat_map(|pattern| below(prefix, pattern)).collect(),
            None => set.patterns,
        };
        Some((paths, GroupNames::new()))
    }

    fn lost_location(&self, one: &NginxDirective) {
        for inner in one.inner() {
            if !self.ledger.is_marked(inner.entry) {
                self.ledger.impossible(inner.entry, "it belongs to a location without a route");
            }
            self.lost_location(inner);
        }
    }

    /// First those with `=`, then those with `^~`, then expressions in their order, then prefixes, the longest first. Where a longer
    /// prefix without `^~` stands below one with it, its expressions and itself come first.
    fn ordered(&self, found: Vec<FoundLocation<'d>>) -> Vec<Place<'d>> {
        let place = |one: &FoundLocation<'d>, paths: Vec<String>| Place {
            scope: one.scope.clone(),
            matcher: one.matcher.clone(),
            paths,
            within: one.within.clone(),
            entry: Some(one.directive.entry),
            is_closed: one.is_closed,
        };
        let mut places = Vec::new();
        let is_exact = |one: &&FoundLocation<'d>| matches!(one.matcher, Matcher::Exact(_));
        places.extend(found.iter().filter(is_exact).map(|one| place(one, one.paths.clone())));
        let mut prefixes: Vec<(&FoundLocation<'d>, &str, bool)> = found
            .iter()
            .filter_map(|one| match &one.matcher {
                Matcher::Prefix(path, first) => Some((one, path.as_str(), *first)),
                _ => None,
            })
            .collect();
        prefixes.sort_by_key(|(_, path, _)| std::cmp::Reverse(path.len()));
        // Expressions in a location come before those of the server.
        let is_regex = |one: &&FoundLocation<'d>| matches!(one.matcher, Matcher::Regex(..));
        let mut regexes: Vec<&FoundLocation<'d>> = found.iter().filter(is_regex).collect();
        regexes.sort_by_key(|one| usize::MAX - one.within.as_ref().map_or(0, String::len));
        let mut done = vec![false; prefixes.len()];
        for at in 0..prefixes.len() {
            let (one, path, is_first) = prefixes[at];
            if !is_first {
                continue;
            }
            for inner in 0..at {
                let (inner_one, inner_path, inner_first) = prefixes[inner];
                if done[inner] || inner_first || !inner_path.starts_with(path) {
                    continue;
                }
                // Below `^~` an expression outside of it does not count, also for a location that stands in it.
                let is_inside = is_nested(inner_one, path, &found);
                let counts = |regex: &&&FoundLocation<'d>| !is_inside || is_nested(regex, path, &found);
                for regex in regexes.iter().filter(counts) {
                    let below_it = |pattern: &String| match pattern.starts_with('~') {
                        true => expression_below(inner_path, pattern).into_iter().collect(),
                        false => below(inner_path, pattern),
                    };
                    let paths: Vec<String> = match is_inside {
                        // It is for paths of the outer location alone.
                        true => regex.paths.clone(),
                        false => regex.paths.iter().flat_map(below_it).collect(),
                    };
                    if !paths.is_empty() {
                        places.push(place(regex, paths));
                    }
                }
                places.push(place(inner_one, inner_one.paths.clone()));
                done[inner] = true;
            }
            // Expressions within it come before it.
            for regex in regexes.iter().filter(|regex| regex.within.as_deref() == Some(path)) {
                places.push(place(regex, regex.paths.clone()));
            }
            places.push(place(one, one.paths.clone()));
            done[at] = true;
        }
        places.extend(
            regexes.iter().filter(|one| !one.paths.is_empty()).map(|one| place(one, one.paths.clone())),
        );
        for (at, (one, ..)) in prefixes.iter().enumerate() {
            if !done[at] {
                places.push(place(one, one.paths.clone()));
            }
        }
        self.nested_overlap(&regexes, &prefixes);
        // Of the same paths of a location the first place counts.
        let mut seen: Vec<(Option<EntryNumber>, Vec<String>)> = Vec::new();
        places.retain(|place| {
            let key = (place.entry, place.paths.clone());
            !seen.contains(&key) && {
                seen.push(key);
                true
            }
        });
        places
    }

    /// An expression within a location does not count below a longer one that stands outside of it; the routes cannot say that.
    fn nested_overlap(&self, regexes: &[&FoundLocation<'d>], prefixes: &[(&FoundLocation<'d>, &str, bool)]) {
        for regex in regexes {
            let Some(within) = regex.within.as_deref() else { continue };
            let is_taken = |(one, path, _): &(&FoundLocation<'d>, &str, bool)| {
                path.len() > within.len() && path.starts_with(within) && one.within.as_deref() != Some(within)
            };
            if prefixes.iter().any(is_taken) {
                self.ledger.differs(
                    regex.directive.entry,
                    "it counts below the longer locations within its own too: look at their order",
                );
            }
        }
    }
}

/// Whether a location stands in the one with this prefix, or in one that stands in it.
fn is_nested(one: &FoundLocation<'_>, prefix: &str, all: &[FoundLocation<'_>]) -> bool {
    let mut within = one.within.as_deref();
    // Prefixes get shorter from the inside to the outside, so this ends.
    while let Some(path) = within {
        if path == prefix {
            return true;
        }
        let is_it =
            |other: &&FoundLocation<'_>| matches!(&other.matcher, Matcher::Prefix(own, _) if own == path);
        within = all.iter().find(is_it).and_then(|other| other.within.as_deref());
        within = within.filter(|next| next.len() < path.len());
    }
    false
}

/// What becomes of a location whose paths cannot be written.
fn without_route(one: &NginxDirective) -> &'static str {
    match restricts(one.inner()) {
        true => "its paths, and perhaps more, are closed (403) until somebody writes them",
        false => "no route was written for it, other routes get its requests",
    }
}

/// Whether a location refuses requests, or some of them.
fn restricts(block: &[NginxDirective]) -> bool {
    let mut found = false;
    super::tree::visit(block, &mut |one| {
        found |= match one.name.as_str() {
            "deny" | "internal" | "auth_request" | "auth_jwt" => true,
            "auth_basic" => one.first() != "off",
            "return" => one.first().parse().is_ok_and(|status: u16| (400..500).contains(&status)),
            _ => false,
        };
    });
    found
}

/// Paths that include all of a location whose own paths cannot be written.
fn closed_paths(matcher: &Matcher, within: Option<&str>) -> Vec<String> {
    let pattern = match matcher {
        Matcher::Exact(path) => format!("~ ^{}$", quoted(path)),
        Matcher::Prefix(path, _) => format!("~ ^{}", quoted(path)),
        Matcher::Regex(regex, ignores_case) => wider_expression(regex, *ignores_case),
        Matcher::Server => "*".to_owned(),
    };
    let within = match matcher {
        Matcher::Regex(..) => within,
        _ => None,
    };
    match within {
        None => vec![pattern],
        Some(prefix) => {
            vec![expression_below(prefix, &pattern).unwrap_or_else(|| format!("~ ^{}", quoted(prefix)))]
        }
    }
}

/// Whether a location names what groups of its expression match.
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

/// Whether a location does nothing but refuse what begins with a dot.
fn is_dotfiles(one: &NginxDirective, regex: &str) -> bool {
    let starts = [r"/\.", r"(^|/)\.", r"(?:^|/)\."];
    starts.iter().any(|start| regex.starts_with(start))
        && one
            .inner()
            .iter()
            .all(|one| matches!(one.name.as_str(), "deny" | "access_log" | "log_not_found" | "return"))
}

/// Whether a server passes requests on, to which files with a leading dot are paths as all others.
fn passes_on(server: &Scope<'_>) -> bool {
    let mut found = false;
    super::tree::visit(server.own(), &mut |one| found |= one.name.ends_with("_pass"));
    found
}
