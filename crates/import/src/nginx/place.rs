//! Locations with their paths, and which of them answers for a path.

use super::scope::Scope;
use super::tree::NginxDirective;
use super::work::Matcher;
use crate::draft::{TomlItem, TomlSection};
use crate::expressions::path_matches;
use crate::findings::EntryNumber;

/// The paths of a location, of which another one takes some before it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct LocationPaths {
    /// Patterns, one of which matches; none for every path.
    pub(crate) any: Vec<String>,
    /// Patterns of each location around it, one of which matches too.
    pub(crate) within: Vec<Vec<String>>,
    /// Paths that belong to other locations.
    pub(crate) except: Vec<PathException>,
}

/// Paths below a prefix that are excluded, but for those of longer prefixes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PathException {
    /// The prefix.
    pub(crate) prefix: String,
    /// Paths below it that are not excluded.
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

/// The pattern of the paths that begin so.
pub(crate) fn prefix_pattern(prefix: &str) -> String {
    crate::paths::from_literal(prefix, true)
        .unwrap_or_else(|| format!("~ ^{}", crate::expressions::quoted(prefix)))
}

impl LocationPaths {
    /// Those that one of these patterns matches.
    pub(crate) fn of(any: Vec<String>) -> Self {
        Self { any, ..Self::default() }
    }

    /// Whether a path is one of them.
    pub(crate) fn matches(&self, path: &str) -> bool {
        let any = |patterns: &[String]| patterns.iter().any(|pattern| path_matches(pattern, path));
        (self.any.is_empty() || any(&self.any))
            && self.within.iter().all(|patterns| any(patterns))
            && !self.except.iter().any(|one| one.matches(path))
    }

    /// Whether every path is one of them.
    pub(crate) fn is_everything(&self) -> bool {
        self.within.is_empty()
            && self.except.is_empty()
            && (self.any.is_empty() || self.any == ["/*"] || self.any == ["*"])
    }

    /// A route for them.
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
    /// The matchers of the locations around it, the outermost first.
    pub(crate) around: Vec<Matcher>,
    /// The number of its `location` in the report.
    pub(crate) entry: Option<EntryNumber>,
    /// Whether its paths are more than those of the location, which cannot be written: all of them are refused.
    pub(crate) is_closed: bool,
    /// Whether it is the path without the final slash of a location that passes requests on, which nginx redirects.
    pub(crate) lacks_slash: bool,
}

impl<'d> Place<'d> {
    /// A server itself, without its locations.
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

    /// The `root` or `alias` that counts here, and the matcher of the location that it stands in.
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

/// The locations of a server, in an order in which the first that matches is the one that nginx chooses.
pub(crate) struct ServerLocations<'d> {
    pub(crate) places: Vec<Place<'d>>,
    /// Those with a `@name`.
    pub(crate) named: Vec<&'d NginxDirective>,
    /// The server itself.
    pub(crate) server: Scope<'d>,
}

impl<'d> ServerLocations<'d> {
    /// The named location.
    pub(crate) fn named(&self, name: &str) -> Option<&'d NginxDirective> {
        self.named.iter().copied().find(|one| one.first() == name)
    }

    /// The location that nginx chooses for a path.
    pub(crate) fn at(&self, path: &str) -> Option<&Place<'d>> {
        self.places.iter().find(|place| place.paths.matches(path))
    }
}
