//! Locations with their paths, and the selection of a location for a path.

use super::scope::Scope;
use super::tree::NginxDirective;
use super::work::Matcher;
use crate::draft::{TomlItem, TomlSection};
use crate::expressions::path_matches;
use crate::findings::EntryNumber;

/// The paths of a location, without those that other locations take first.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct LocationPaths {
    /// Patterns of which one has to match; empty for every path.
    pub(crate) any: Vec<String>,
    /// Patterns of each enclosing location, of which one has to match as well.
    pub(crate) within: Vec<Vec<String>>,
    /// Excluded paths, which belong to other locations.
    pub(crate) except: Vec<PathException>,
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

    fn condition(&self) -> TomlItem {
        let mut section = TomlSection::default();
        section.set_text("path", prefix_pattern(&self.prefix));
        self.except.iter().for_each(|one| section.exclude(one.condition()));
        TomlItem::Table(section.entries)
    }
}

/// Returns the pattern of the paths that begin with `prefix`.
pub(crate) fn prefix_pattern(prefix: &str) -> String {
    crate::paths::from_literal(prefix, true)
        .unwrap_or_else(|| format!("~ ^{}", crate::expressions::quoted(prefix)))
}

impl LocationPaths {
    /// The paths that match one of these patterns.
    pub(crate) fn of(any: Vec<String>) -> Self {
        Self { any, ..Self::default() }
    }

    /// Whether `path` is one of the paths.
    pub(crate) fn matches(&self, path: &str) -> bool {
        let any = |patterns: &[String]| patterns.iter().any(|pattern| path_matches(pattern, path));
        (self.any.is_empty() || any(&self.any))
            && self.within.iter().all(|patterns| any(patterns))
            && !self.except.iter().any(|one| one.matches(path))
    }

    /// Whether every path is included.
    pub(crate) fn is_everything(&self) -> bool {
        self.within.is_empty()
            && self.except.is_empty()
            && (self.any.is_empty() || self.any == ["/*"] || self.any == ["*"])
    }

    /// Returns a route with the conditions for these paths.
    pub(crate) fn route(&self) -> TomlSection {
        let mut section = TomlSection::default();
        if !self.any.is_empty() && self.any != ["/*"] && self.any != ["*"] {
            section.set("path", TomlItem::texts(self.any.iter().cloned()));
        }
        for patterns in &self.within {
            section.require("path", TomlItem::texts(patterns.iter().cloned()));
        }
        self.except.iter().for_each(|one| section.exclude(one.condition()));
        section
    }
}

/// A location with its paths.
#[derive(Clone)]
pub(crate) struct Place<'d> {
    pub(crate) scope: Scope<'d>,
    pub(crate) matcher: Matcher,
    pub(crate) paths: LocationPaths,
    /// Matchers of the enclosing locations, the outermost first.
    pub(crate) around: Vec<Matcher>,
    /// Number of the `location` in the report.
    pub(crate) entry: Option<EntryNumber>,
    /// Whether the exact paths of the location cannot be expressed: `paths` are more than them, and all are
    /// refused.
    pub(crate) is_closed: bool,
    /// Whether this is the path without the trailing slash of a location that proxies requests, which nginx
    /// redirects to the path with the slash.
    pub(crate) lacks_slash: bool,
}

impl<'d> Place<'d> {
    /// The place of the server itself, without its locations.
    pub(crate) fn of_server(server: &Scope<'d>) -> Self {
        Self {
            scope: server.clone(),
            matcher: Matcher::Server,
            paths: LocationPaths::default(),
            around: Vec::new(),
            entry: None,
            is_closed: false,
            lacks_slash: false,
        }
    }

    /// Returns the effective `root` or `alias`, and the matcher of the location that contains it.
    pub(crate) fn folder(&self) -> Option<(&'d NginxDirective, Matcher)> {
        let matchers: Vec<&Matcher> = self.around.iter().chain([&self.matcher]).collect();
        let levels = &self.scope.levels;
        for (at, level) in levels.iter().enumerate().rev() {
            let is_folder = |one: &&NginxDirective| matches!(one.name.as_str(), "root" | "alias");
            let Some(found) = level.iter().rev().find(is_folder) else { continue };
            let from_end = levels.len() - 1 - at;
            let matcher = matchers.len().checked_sub(from_end + 1).map(|at| matchers[at].clone());
            return Some((found, matcher.unwrap_or(Matcher::Server)));
        }
        None
    }
}

/// Locations of a server, in an order in which the first match is the one that nginx selects.
pub(crate) struct ServerLocations<'d> {
    pub(crate) places: Vec<Place<'d>>,
    /// Named locations (`@name`).
    pub(crate) named: Vec<&'d NginxDirective>,
    /// Scope of the server.
    pub(crate) server: Scope<'d>,
}

impl<'d> ServerLocations<'d> {
    /// Returns the named location `name`, which includes the `@`.
    pub(crate) fn named(&self, name: &str) -> Option<&'d NginxDirective> {
        self.named.iter().copied().find(|one| one.first() == name)
    }

    /// Returns the location that nginx selects for a path.
    pub(crate) fn at(&self, path: &str) -> Option<&Place<'d>> {
        self.places.iter().find(|place| place.paths.matches(path))
    }
}
