//! Locations with their paths, and which of them answers for a path.

use super::scope::Scope;
use super::tree::NginxDirective;
use super::work::Matcher;
use crate::expressions::path_matches;
use crate::findings::EntryNumber;

/// A location with its paths.
#[derive(Clone)]
pub(crate) struct Place<'d> {
    pub(crate) scope: Scope<'d>,
    pub(crate) matcher: Matcher,
    /// Patterns of its paths; none for all.
    pub(crate) paths: Vec<String>,
    /// The prefix location that it stands in.
    pub(crate) within: Option<String>,
    /// The number of its `location` in the report.
    pub(crate) entry: Option<EntryNumber>,
    /// Whether its paths match more than it did, and it restricts who gets them: all of them are refused.
    pub(crate) is_closed: bool,
}

impl<'d> Place<'d> {
    /// A server itself, without its locations.
    pub(crate) fn of_server(server: &Scope<'d>) -> Self {
        Self {
            scope: server.clone(),
            matcher: Matcher::Server,
            paths: Vec::new(),
            within: None,
            entry: None,
            is_closed: false,
        }
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
        self.places.iter().find(|place| place.paths.iter().any(|pattern| path_matches(pattern, path)))
    }
}
