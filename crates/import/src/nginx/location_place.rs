//! Locations with their paths, and the selection of a location for a path.

use super::scope::Scope;
use super::translation::LocationMatcher;
use super::tree::NginxDirective;
use crate::draft::{TomlItem, TomlSection};
use crate::expressions::path_matches;
use crate::findings::EntryIndex;

/// The paths of a location, without those that other locations take first.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct PathConditions {
    /// Patterns of which one has to match; empty for every path.
    pub(crate) patterns: Vec<String>,
    /// Patterns of each enclosing location, of which one has to match as well.
    pub(crate) enclosing_patterns: Vec<Vec<String>>,
    /// Excluded paths, which belong to other locations.
    pub(crate) exceptions: Vec<PathException>,
}

/// Excluded paths below a prefix, except those of longer prefixes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PathException {
    /// Prefix of the excluded paths.
    pub(crate) prefix: String,
    /// Paths below the prefix that are not excluded.
    pub(crate) except: Vec<PathException>,
}

impl PathException {
    pub(crate) fn matches(&self, path: &str) -> bool {
        path.starts_with(&self.prefix) && !self.except.iter().any(|one| one.matches(path))
    }

    fn to_condition(&self) -> TomlItem {
        let mut section = TomlSection::default();
        section.set_text("path", prefix_pattern(&self.prefix));
        self.except.iter().for_each(|one| section.exclude(one.to_condition()));
        TomlItem::Table(section.entries)
    }
}

/// Returns the pattern of the paths that begin with `prefix`.
pub(crate) fn prefix_pattern(prefix: &str) -> String {
    crate::paths::from_literal(prefix, true)
        .unwrap_or_else(|| format!("~ ^{}", crate::expressions::escape_literal(prefix)))
}

impl PathConditions {
    /// The paths that match one of these patterns.
    pub(crate) fn from_patterns(any: Vec<String>) -> Self {
        Self { patterns: any, ..Self::default() }
    }

    /// Whether `path` is one of the paths.
    pub(crate) fn matches(&self, path: &str) -> bool {
        let any = |patterns: &[String]| patterns.iter().any(|pattern| path_matches(pattern, path));
        (self.patterns.is_empty() || any(&self.patterns))
            && self.enclosing_patterns.iter().all(|patterns| any(patterns))
            && !self.exceptions.iter().any(|one| one.matches(path))
    }

    /// Whether every path is included.
    pub(crate) fn includes_every_path(&self) -> bool {
        self.enclosing_patterns.is_empty()
            && self.exceptions.is_empty()
            && (self.patterns.is_empty() || self.patterns == ["/*"] || self.patterns == ["*"])
    }

    /// Returns a route with the conditions for these paths.
    pub(crate) fn to_route(&self) -> TomlSection {
        let mut section = TomlSection::default();
        if !self.patterns.is_empty() && self.patterns != ["/*"] && self.patterns != ["*"] {
            section.set("path", TomlItem::text_or_list(self.patterns.iter().cloned()));
        }
        for patterns in &self.enclosing_patterns {
            section.require("path", TomlItem::text_or_list(patterns.iter().cloned()));
        }
        self.exceptions.iter().for_each(|one| section.exclude(one.to_condition()));
        section
    }
}

/// A location with its paths.
#[derive(Clone)]
pub(crate) struct LocationPlace<'d> {
    pub(crate) scope: Scope<'d>,
    pub(crate) matcher: LocationMatcher,
    pub(crate) paths: PathConditions,
    /// Matchers of the enclosing locations, the outermost first.
    pub(crate) enclosing_matchers: Vec<LocationMatcher>,
    /// Number of the `location` in the report.
    pub(crate) entry: Option<EntryIndex>,
    /// Whether the exact paths of the location cannot be expressed: `paths` are more than them, and all are
    /// refused.
    pub(crate) is_closed: bool,
    /// Whether this is the path without the trailing slash of a location that proxies requests, which nginx
    /// redirects to the path with the slash.
    pub(crate) lacks_slash: bool,
}

impl<'d> LocationPlace<'d> {
    /// The place of the server itself, without its locations.
    pub(crate) fn for_server(server: &Scope<'d>) -> Self {
        Self {
            scope: server.clone(),
            matcher: LocationMatcher::Server,
            paths: PathConditions::default(),
            enclosing_matchers: Vec::new(),
            entry: None,
            is_closed: false,
            lacks_slash: false,
        }
    }

    /// Whether a path may be one of those of the location, as far as that is seen at once: a server may have thousands.
    fn may_match(&self, path: &str) -> bool {
        match &self.matcher {
            LocationMatcher::Exact(start) | LocationMatcher::Prefix(start, _) if !self.is_closed => {
                path.starts_with(start.trim_end_matches('/'))
            }
            _ => true,
        }
    }

    /// Returns the effective `root` or `alias`, and the matcher of the location that contains it.
    pub(crate) fn find_folder(&self) -> Option<(&'d NginxDirective, LocationMatcher)> {
        let matchers: Vec<&LocationMatcher> = self.enclosing_matchers.iter().chain([&self.matcher]).collect();
        let levels = &self.scope.levels;
        for (at, level) in levels.iter().enumerate().rev() {
            let is_folder = |one: &&NginxDirective| matches!(one.name.as_str(), "root" | "alias");
            let Some(found) = level.iter().rev().find(is_folder) else { continue };
            let from_end = levels.len() - 1 - at;
            let matcher = matchers.len().checked_sub(from_end + 1).map(|at| matchers[at].clone());
            return Some((found, matcher.unwrap_or(LocationMatcher::Server)));
        }
        None
    }
}

/// Locations of a server, in an order in which the first match is the one that nginx selects.
pub(crate) struct ServerLocations<'d> {
    pub(crate) ordered_places: Vec<LocationPlace<'d>>,
    /// Named locations (`@name`).
    pub(crate) named: Vec<&'d NginxDirective>,
    /// Scope of the server.
    pub(crate) server: Scope<'d>,
}

impl<'d> ServerLocations<'d> {
    /// Returns the named location `name`, which includes the `@`.
    pub(crate) fn find_named(&self, name: &str) -> Option<&'d NginxDirective> {
        self.named.iter().copied().find(|one| one.first_arg() == name)
    }

    /// Returns the location that nginx selects for a path.
    pub(crate) fn find_location(&self, path: &str) -> Option<&LocationPlace<'d>> {
        self.ordered_places.iter().find(|place| place.may_match(path) && place.paths.matches(path))
    }
}
