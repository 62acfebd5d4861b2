//! Translation of the rewrite directives of a server or location (`rewrite`, `if`, `return`, `set` and
//! `break`), in the order in which nginx executes them, to routes that precede that of the location itself.

use super::conditions::{IfConditions, file_operator, is_of_files, words};
use super::place::{Place, ServerLocations};
use super::rewrite::{
    EVERYTHING, PathRewrite, has_two_slashes, is_absolute, passes_path_as_sent, refuses, simple_break,
    slash_apart,
};
use super::tree::NginxDirective;
use super::work::{Matcher, Translation};
use crate::conditions::{RouteCondition, ask, close};
use crate::draft::{TomlItem, TomlSection};

/// Directives that nginx executes in order.
const EXECUTED: [&str; 5] = ["rewrite", "if", "return", "set", "break"];

/// A route for a result of the rewrite phase.
#[derive(Clone)]
pub(crate) enum PhaseRoute {
    /// The route responds, or restarts the search with another path.
    Whole(TomlSection),
    /// The location responds with another path: conditions and `rewrite`.
    Rewritten(TomlSection),
}

impl PhaseRoute {
    fn section_mut(&mut self) -> &mut TomlSection {
        match self {
            Self::Whole(section) | Self::Rewritten(section) => section,
        }
    }
}

/// Result of the rewrite phase, which precedes access checks and content.
pub(crate) struct RewritePhase {
    pub(crate) routes: Vec<PhaseRoute>,
    /// Whether the phase leaves requests for the location itself.
    pub(crate) continues: bool,
    /// Whether a `break` skips the following directives for some requests.
    is_broken: bool,
}

impl RewritePhase {
    fn new() -> Self {
        Self { routes: Vec::new(), continues: true, is_broken: false }
    }

    fn answer(&mut self, section: TomlSection, is_for_all: bool) {
        self.routes.push(PhaseRoute::Whole(section));
        self.continues &= !is_for_all;
    }

    /// Returns the routes of a server, whose locations respond to rewritten paths.
    pub(crate) fn whole(self) -> Vec<TomlSection> {
        let section = |route| match route {
            PhaseRoute::Whole(section) | PhaseRoute::Rewritten(section) => section,
        };
        self.routes.into_iter().map(section).collect()
    }
}

impl<'d> Translation<'d> {
    /// Translates the rewrite directives of a server or location.
    pub(crate) fn rewrite_phase(&self, place: &Place<'d>, around: &ServerLocations<'d>) -> RewritePhase {
        let mut phase = RewritePhase::new();
        let own: Vec<&'d NginxDirective> =
            place.scope.own().iter().filter(|one| EXECUTED.contains(&one.name.as_str())).collect();
        for (at, one) in own.iter().enumerate() {
            let is_last = own[at + 1..].iter().all(|one| one.name == "set");
            match one.name.as_str() {
                "if" => self.condition(one, (place, around), is_last, &mut phase),
                _ => self.execute(one, (place, around), is_last, &mut phase),
            }
            if !phase.continues || phase.is_broken {
                let rest = own[at + 1..].iter().filter(|one| !self.ledger.is_marked(one.entry));
                rest.for_each(|one| {
                    self.ledger.needless(one.entry, "what stands before it ends the execution");
                    one.inner().iter().for_each(|one| self.ledger.needless(one.entry, "see its `if`"));
                });
                break;
            }
        }
        phase
    }

    /// Translates one directive other than `if`.
    fn execute(
        &self,
        one: &NginxDirective,
        (place, around): (&Place<'d>, &ServerLocations<'d>),
        is_last: bool,
        phase: &mut RewritePhase,
    ) {
        match one.name.as_str() {
            "set" => self.ledger.needless(one.entry, "its value stands where the variable was used"),
            "break" => {
                self.ledger.needless(one.entry, "what stands behind it is left out");
                phase.is_broken = true;
            }
            "return" => {
                let mut section = place.paths.route();
                self.returned(one, (place, around), &mut section);
                phase.answer(section, true);
            }
            _ => self.rewritten(one, (place, around), is_last, phase),
        }
    }

    fn rewritten(
        &self,
        one: &NginxDirective,
        (place, around): (&Place<'d>, &ServerLocations<'d>),
        is_last: bool,
        phase: &mut RewritePhase,
    ) {
        let flag = one.arg(2);
        let is_server = place.matcher == Matcher::Server;
        let paths = place.paths.route();
        let is_for_all = |section: &TomlSection| {
            section.get("path") == paths.get("path") && section.get("not") == paths.get("not")
        };
        if matches!(flag, "permanent" | "redirect") || is_absolute(one.arg(1)) {
            let status = if flag == "permanent" { 301 } else { 302 };
            match self.redirected(one, place, status) {
                Some(section) => {
                    let is_for_all = is_for_all(&section);
                    phase.answer(section, is_for_all);
                }
                None => self.closed(one, place, phase),
            }
            return;
        }
        let passes_as_sent = place.scope.own_one("proxy_pass").is_some_and(passes_path_as_sent);
        if flag == "break" && !is_server && is_last && passes_as_sent {
            self.ledger.needless(one.entry, "`proxy_pass` passes the path on as it was sent");
            return;
        }
        let is_kept_simple = is_last && simple_break(one, place).is_some();
        if flag == "break" && !is_server && is_kept_simple {
            return;
        }
        let Some(PathRewrite { section, to }) = self.changed(one, place) else {
            return self.closed(one, place, phase);
        };
        let mut route = section;
        if flag == "break" && !is_server {
            let passes_variables =
                |one: &NginxDirective| one.name.ends_with("_pass") && one.first().contains('$');
            if place.folder().is_some_and(|(one, _)| one.name == "alias")
                || place.scope.own().iter().any(passes_variables)
            {
                let reason = "beside `alias`, or variables in `proxy_pass`, its new path is another one";
                self.ledger.impossible(one.entry, reason);
                close(&mut route, self.ledger.open_end(one.entry).unwrap_or_default());
                let is_for_all = is_for_all(&route);
                return phase.answer(route, is_for_all);
            }
            self.ledger.differs(one.entry, "folders that its new path names have no index here");
            phase.continues &= !is_for_all(&route);
            route.set_text("rewrite", to);
            phase.routes.push(PhaseRoute::Rewritten(route));
            return;
        }
        if let Err(reason) = self.search_again(one, (place, around), is_last, (&to, &mut route)) {
            self.ledger.impossible(one.entry, reason);
            close(&mut route, self.ledger.open_end(one.entry).unwrap_or_default());
            let is_for_all = is_for_all(&route);
            return phase.answer(route, is_for_all);
        }
        if has_two_slashes(one) {
            self.ledger.differs(one.entry, "its new path has two slashes, of which locations see one here");
        }
        match to.split('?').next().is_some_and(|path| path.contains('$') && !path.ends_with('/')) {
            true => self.ledger.differs(one.entry, "a folder that its new path names is answered with its page, without a redirect to the `/` behind it"),
            false => self.ledger.translated(one.entry),
        }
        let is_for_all = is_for_all(&route);
        route.set_text("rewrite", to);
        phase.answer(route, is_for_all);
    }

    /// Refuses all requests of a place because a directive cannot be translated.
    fn closed(&self, one: &NginxDirective, place: &Place<'d>, phase: &mut RewritePhase) {
        let mut section = place.paths.route();
        close(&mut section, self.ledger.open_end(one.entry).unwrap_or_default());
        phase.answer(section, true);
    }

    /// Translates an `if` and the directives within it.
    fn condition(
        &self,
        one: &'d NginxDirective,
        (place, around): (&Place<'d>, &ServerLocations<'d>),
        is_last: bool,
        phase: &mut RewritePhase,
    ) {
        let is_server = place.matcher == Matcher::Server;
        if is_server && self.maintenance_of(one, &place.scope).is_some()
            || self.is_of_own_files(one, (place, around))
        {
            return;
        }
        let conditions = match self.if_conditions(one, &place.scope) {
            Ok(IfConditions::Never) => {
                self.ledger.needless(one.entry, "its condition is never met");
                one.inner().iter().for_each(|inner| self.ledger.needless(inner.entry, "see its `if`"));
                return;
            }
            Ok(IfConditions::Always) => vec![(RouteCondition::none_of(&[]), None)],
            Ok(IfConditions::Any(found)) => found,
            Err(_) if self.only_sets(one, place) => {
                self.ledger.needless(one.entry, SETS);
                one.inner().iter().for_each(|inner| self.ledger.needless(inner.entry, SETS));
                return;
            }
            Err(reason) => {
                let what = "the route is closed (403) until its condition is written";
                self.ledger.impossible(one.entry, format!("{reason}: {what}"));
                self.lost(one);
                return self.closed(one, place, phase);
            }
        };
        if self.only_sets(one, place) {
            self.ledger.needless(one.entry, SETS);
            one.inner().iter().for_each(|inner| self.ledger.needless(inner.entry, SETS));
            return;
        }
        let fault = self.fault_of(one, place);
        self.ledger.translated(one.entry);
        let mut are_all = false;
        for (condition, value) in conditions {
            if let Some(differs) = condition.differs {
                self.ledger.differs(one.entry, differs);
            }
            let mut inner = match &fault {
                Some(reason) => {
                    self.ledger.impossible(one.entry, reason);
                    self.lost(one);
                    let mut inner = RewritePhase::new();
                    self.closed(one, place, &mut inner);
                    inner
                }
                None => self.conditional(one, (place, around), is_last, (&condition, value)),
            };
            if inner.is_broken && inner.continues && !is_last {
                self.ledger.impossible(
                    one.entry,
                    "`break` in it leaves out what stands behind it: the route is closed (403)",
                );
                self.closed(one, place, &mut inner);
            }
            are_all |= condition.is_empty() && !inner.continues;
            for mut route in inner.routes {
                condition.write(route.section_mut());
                phase.routes.push(route);
            }
        }
        phase.continues &= !are_all;
    }

    /// Returns the routes of the directives in an `if`, for one of its conditions. `is_last` if no directive
    /// is executed after the `if`.
    fn conditional(
        &self,
        one: &'d NginxDirective,
        (place, around): (&Place<'d>, &ServerLocations<'d>),
        is_last: bool,
        (condition, value): (&RouteCondition, Option<(String, &'d str)>),
    ) -> RewritePhase {
        let mut inner = Place { scope: place.scope.with(one.inner()), ..place.clone() };
        if !condition.groups.is_empty() {
            inner.scope = inner.scope.with_groups(&condition.groups);
        }
        let mut phase = RewritePhase::new();
        let own: Vec<&NginxDirective> = one.inner().iter().collect();
        for (at, directive) in own.iter().enumerate() {
            if !EXECUTED.contains(&directive.name.as_str()) {
                continue;
            }
            let is_last = is_last && own[at + 1..].iter().all(|one| one.name == "set");
            let mut directive =
                with_value(directive, value.as_ref().map(|(name, value)| (name.as_str(), *value)));
            if let (Some(target), false) = (directive.args.last_mut(), condition.groups.is_empty())
                && let Some(apart) = words(one).last().and_then(|regex| slash_apart(regex, target))
            {
                *target = apart.1;
            }
            self.execute(&directive, (&inner, around), is_last, &mut phase);
            if !phase.continues || phase.is_broken {
                break;
            }
        }
        for route in &mut phase.routes {
            self.open_ends(one.inner(), route.section_mut());
        }
        phase
    }

    /// Returns the reason why the directives in an `if` cannot be translated, if there is one.
    fn fault_of(&self, one: &NginxDirective, place: &Place<'d>) -> Option<String> {
        let is_known = |inner: &NginxDirective| {
            EXECUTED.contains(&inner.name.as_str())
                || super::known::is_harmless(&inner.name)
                || self.ledger.is_marked(inner.entry) && !self.ledger.is_impossible(inner.entry)
        };
        if let Some(other) = one.inner().iter().find(|inner| !is_known(inner)) {
            return Some(format!(
                "`{}` in `if` cannot be translated, so what meets its condition is refused (403): write a route with the condition",
                other.name
            ));
        }
        let leaves = |inner: &NginxDirective| match inner.name.as_str() {
            "return" => true,
            "rewrite" => inner.arg(2) != "break" && EVERYTHING.contains(&inner.first()),
            _ => false,
        };
        let ends = |inner: &NginxDirective| {
            inner.name == "break" || inner.name == "rewrite" && inner.arg(2) == "break"
        };
        let continues = one.inner().iter().find(|inner| leaves(inner) || ends(inner)).is_none_or(ends);
        let own = |name: &str| place.scope.own_one(name).is_some();
        (continues && place.matcher != Matcher::Server && (own("try_files") || own("limit_except"))).then(|| {
            "nginx forgets `try_files` and `limit_except` of the location where it is met: what meets it is refused (403)".to_owned()
        })
    }

    /// Whether an `if` only sets variables.
    fn only_sets(&self, one: &NginxDirective, place: &Place<'d>) -> bool {
        one.inner().iter().all(|inner| inner.name == "set") && self.fault_of(one, place).is_none()
    }

    /// Whether an `if` for paths without a file is redundant, because `files` and `php` do the same.
    pub(crate) fn is_of_own_files(
        &self,
        one: &NginxDirective,
        (place, around): (&Place<'d>, &ServerLocations<'d>),
    ) -> bool {
        let has_others = |place: &Place<'d>| {
            let is_other = |other: &&NginxDirective| match other.name.as_str() {
                "return" | "rewrite" => true,
                // Directives that respond or rewrite the path regardless of files.
                "if" => {
                    other.entry != one.entry
                        && !is_of_files(other)
                        && !other.inner().iter().all(|inner| refuses(inner) || inner.name == "set")
                }
                // `try_files` would handle the paths that the `if` refuses.
                "try_files" => {
                    one.inner().iter().any(refuses)
                        && other.args.last().is_some_and(|last| !last.starts_with('='))
                }
                name => name.ends_with("_pass") && name != "fastcgi_pass",
            };
            place.scope.own().iter().any(|other| is_other(&other))
        };
        let others = place.matcher == Matcher::Server && around.places.iter().any(has_others);
        file_operator(one).is_some() && is_of_files(one) && !others && !has_others(place)
    }

    /// Returns a route of a location for a rewritten path: its content, with the conditions and the path of
    /// the rewrite.
    pub(crate) fn with_path(&self, content: &TomlSection, rewritten: &TomlSection) -> TomlSection {
        let mut section = content.clone();
        let path = section.remove("path");
        let own_path = rewritten.get("path").cloned();
        let mut asks: Vec<_> = rewritten.entries.clone();
        asks.retain(|(key, _)| !matches!(key.as_str(), "path" | "rewrite"));
        own_path.clone().into_iter().for_each(|path| section.set("path", path));
        ask(&mut section, &asks);
        if let Some(path) = path.filter(|path| Some(path) != own_path.as_ref()) {
            section.require("path", path);
        }
        ask(&mut section, &[]);
        if section.get("respond").is_some() || section.get("redirect").is_some() {
            return section;
        }
        rewritten.get("rewrite").cloned().into_iter().for_each(|to| section.set("rewrite", to));
        for action in ["files", "proxy"] {
            section.retain_in(action, |key| !matches!(key, "strip_prefix" | "add_prefix"));
        }
        let to = rewritten.get("rewrite").and_then(TomlItem::as_text).unwrap_or_default();
        let path = to.split('?').next().unwrap_or_default();
        if section.get("files").is_some() && (path.ends_with('/') || path.contains('$')) {
            // Index pages belong to the location of their path.
            section.set_in("files", "index", TomlItem::List(Vec::new()));
        }
        ask(&mut section, &[]);
        section
    }
}

/// The remark on variables that depend on the request.
const SETS: &str = "what uses the variable says whether it can be translated";

/// Replaces a variable in the arguments of a directive by its value.
fn with_value(one: &NginxDirective, value: Option<(&str, &str)>) -> NginxDirective {
    let mut one = one.clone();
    if let Some((name, value)) = value {
        for arg in &mut one.args {
            *arg = arg.replace(&format!("${{{name}}}"), value).replace(&format!("${name}"), value);
        }
    }
    one
}
