//! Translation of the rewrite directives of a server or location (`rewrite`, `if`, `return`, `set` and
//! `break`), in the order in which nginx executes them, to routes that precede that of the location itself.

use super::conditions::{IfConditions, condition_words, file_operator, is_file_fallback};
use super::location_place::{LocationPlace, ServerLocations};
use super::php::script_pass;
use super::rewrite::{
    MATCH_ALL_EXPRESSIONS, PathRewrite, break_prefixes, has_two_slashes, is_absolute, move_leading_slash,
    passes_original_path, refuses_or_redirects,
};
use super::translation::{LocationMatcher, Translation};
use super::tree::NginxDirective;
use crate::conditions::{RouteCondition, add_conditions, close_route};
use crate::draft::{TomlItem, TomlSection};

/// Directives that nginx executes in order.
const EXECUTED_DIRECTIVES: [&str; 5] = ["rewrite", "if", "return", "set", "break"];

/// A route for a result of the rewrite phase.
#[derive(Clone)]
pub(crate) enum PhaseRoute {
    /// The route responds, or restarts the search with another path.
    Final(TomlSection),
    /// The location responds with another path: conditions and `rewrite`.
    Rewritten(TomlSection),
}

impl PhaseRoute {
    fn section_mut(&mut self) -> &mut TomlSection {
        match self {
            Self::Final(section) | Self::Rewritten(section) => section,
        }
    }
}

/// Result of the rewrite phase, which precedes access checks and content.
pub(crate) struct RewritePhase {
    pub(crate) routes: Vec<PhaseRoute>,
    /// Whether the phase leaves requests for the location itself.
    pub(crate) continues: bool,
    /// Whether a `break` skips the following directives for some requests.
    may_be_cut_short: bool,
}

impl RewritePhase {
    fn new() -> Self {
        Self { routes: Vec::new(), continues: true, may_be_cut_short: false }
    }

    /// Adds a route that refuses requests before those of the directives behind it, unless there is one already.
    pub(super) fn add_refusal(&mut self, section: TomlSection) {
        let is_there = |route: &PhaseRoute| matches!(route, PhaseRoute::Final(known) if *known == section);
        if !self.routes.iter().any(is_there) {
            self.routes.push(PhaseRoute::Final(section));
        }
    }

    fn add_route(&mut self, section: TomlSection, is_for_all: bool) {
        self.routes.push(PhaseRoute::Final(section));
        self.continues &= !is_for_all;
    }

    /// Returns the routes of a server, whose locations respond to rewritten paths.
    pub(crate) fn into_final_routes(self) -> Vec<TomlSection> {
        let section = |route| match route {
            PhaseRoute::Final(section) | PhaseRoute::Rewritten(section) => section,
        };
        self.routes.into_iter().map(section).collect()
    }
}

impl<'d> Translation<'d> {
    /// Translates the rewrite directives of a server or location.
    pub(crate) fn translate_rewrite_phase(
        &self,
        place: &LocationPlace<'d>,
        locations: &ServerLocations<'d>,
    ) -> RewritePhase {
        let mut phase = RewritePhase::new();
        let own: Vec<&'d NginxDirective> = place
            .scope
            .innermost()
            .iter()
            .filter(|one| EXECUTED_DIRECTIVES.contains(&one.name.as_str()))
            .collect();
        for (at, one) in own.iter().enumerate() {
            let is_last = own[at + 1..].iter().all(|one| one.name == "set");
            match one.name.as_str() {
                "if" => self.translate_if_block(one, (place, locations), is_last, &mut phase),
                _ => self.translate_directive(one, (place, locations), is_last, &mut phase),
            }
            if !phase.continues || phase.may_be_cut_short {
                let rest = own[at + 1..].iter().filter(|one| !self.ledger.is_marked(one.entry));
                rest.for_each(|one| {
                    self.not_needed(one, "a directive before it ends the execution");
                    one.block_directives().iter().for_each(|one| self.not_needed(one, "see its `if`"));
                });
                break;
            }
        }
        phase
    }

    /// Translates one directive other than `if`.
    fn translate_directive(
        &self,
        directive: &NginxDirective,
        (place, locations): (&LocationPlace<'d>, &ServerLocations<'d>),
        is_last: bool,
        phase: &mut RewritePhase,
    ) {
        match directive.name.as_str() {
            "set" => self.not_needed(directive, "its value stands where the variable was used"),
            "break" => {
                self.not_needed(directive, "directives after it are left out");
                phase.may_be_cut_short = true;
            }
            "return" => {
                self.count_taken(directive);
                let mut section = place.paths.to_route();
                self.translate_return_or_named(directive, (place, locations), &mut section);
                phase.add_route(section, true);
            }
            _ => self.translate_rewrite(directive, (place, locations), is_last, phase),
        }
    }

    fn translate_rewrite(
        &self,
        directive: &NginxDirective,
        (place, locations): (&LocationPlace<'d>, &ServerLocations<'d>),
        is_last: bool,
        phase: &mut RewritePhase,
    ) {
        let flag = directive.arg_at(2);
        let is_server = place.matcher == LocationMatcher::Server;
        let is_kept_simple = is_last && break_prefixes(directive, place).is_some();
        if !(flag == "break" && !is_server && is_kept_simple) {
            self.count_taken(directive);
        }
        let paths = place.paths.to_route();
        let is_for_all = |section: &TomlSection| {
            section.get("path") == paths.get("path") && section.get("not") == paths.get("not")
        };
        if matches!(flag, "permanent" | "redirect") || is_absolute(directive.arg_at(1)) {
            let status = if flag == "permanent" { 301 } else { 302 };
            match self.translate_redirect(directive, place, status) {
                Some(section) => {
                    let is_for_all = is_for_all(&section);
                    phase.add_route(section, is_for_all);
                }
                None => self.close_place(directive, place, phase),
            }
            return;
        }
        let passes_as_sent = place.scope.innermost_last("proxy_pass").is_some_and(passes_original_path);
        if flag == "break" && !is_server && is_last && passes_as_sent {
            self.not_needed(directive, "`proxy_pass` passes the path on as it was sent");
            return;
        }
        if flag == "break" && !is_server && is_kept_simple {
            return;
        }
        let Some(PathRewrite { section, target: to }) = self.translate_internal_rewrite(directive, place)
        else {
            return self.close_place(directive, place, phase);
        };
        let mut route = section;
        if flag == "break" && !is_server {
            let passes_variables =
                |one: &NginxDirective| one.name.ends_with("_pass") && one.first_arg().contains('$');
            if place.find_folder().is_some_and(|(one, _)| one.name == "alias")
                || place.scope.innermost().iter().any(passes_variables)
            {
                let reason = "beside `alias`, or variables in `proxy_pass`, its new path is another one";
                self.ledger.mark_impossible(directive.entry, reason);
                close_route(&mut route, self.ledger.manual_comment(directive.entry).unwrap_or_default());
                let is_for_all = is_for_all(&route);
                return phase.add_route(route, is_for_all);
            }
            self.ledger.mark_different(directive.entry, "folders that its new path names have no index here");
            phase.continues &= !is_for_all(&route);
            route.set_text("rewrite", to);
            phase.routes.push(PhaseRoute::Rewritten(route));
            return;
        }
        if let Err(reason) = self.check_new_search(directive, (place, locations), is_last, (&to, &mut route))
        {
            self.ledger.mark_impossible(directive.entry, reason);
            close_route(&mut route, self.ledger.manual_comment(directive.entry).unwrap_or_default());
            let is_for_all = is_for_all(&route);
            return phase.add_route(route, is_for_all);
        }
        if has_two_slashes(directive) {
            self.ledger.mark_different(
                directive.entry,
                "its new path has two slashes, of which locations see one here",
            );
        }
        if to.split('?').next().is_some_and(|path| path.contains('$') && !path.ends_with('/')) {
            self.ledger.mark_different(directive.entry, "a folder that its new path names is answered with its page, without a redirect to the `/` behind it")
        }
        let is_for_all = is_for_all(&route);
        route.set_text("rewrite", to);
        phase.add_route(route, is_for_all);
    }

    /// Refuses all requests of a place because a directive cannot be translated.
    fn close_place(&self, directive: &NginxDirective, place: &LocationPlace<'d>, phase: &mut RewritePhase) {
        let mut section = place.paths.to_route();
        close_route(&mut section, self.ledger.manual_comment(directive.entry).unwrap_or_default());
        phase.add_route(section, true);
    }

    /// Translates an `if` and the directives within it.
    fn translate_if_block(
        &self,
        directive: &'d NginxDirective,
        (place, locations): (&LocationPlace<'d>, &ServerLocations<'d>),
        is_last: bool,
        phase: &mut RewritePhase,
    ) {
        let is_server = place.matcher == LocationMatcher::Server;
        if is_server && self.maintenance_file(directive, &place.scope).is_some()
            || self.is_redundant_file_check(directive, (place, locations))
        {
            return;
        }
        let conditions = match self.translate_if(directive, &place.scope) {
            Ok(IfConditions::Never) => {
                self.not_needed(directive, "its condition is never met");
                directive.block_directives().iter().for_each(|inner| self.not_needed(inner, "see its `if`"));
                return;
            }
            Ok(IfConditions::Always) => vec![(RouteCondition::none_of(&[]), None)],
            Ok(IfConditions::Any(found)) => found,
            Err(_) if self.only_sets_variables(directive, place) => {
                self.not_needed(directive, VARIABLES_REMARK);
                directive
                    .block_directives()
                    .iter()
                    .for_each(|inner| self.not_needed(inner, VARIABLES_REMARK));
                return;
            }
            Err(reason) => {
                let what = "the route is closed (403) until its condition is written";
                self.ledger.mark_impossible(directive.entry, format!("{reason}: {what}"));
                self.report_untranslated_if(directive);
                return self.close_place(directive, place, phase);
            }
        };
        if self.only_sets_variables(directive, place) {
            self.not_needed(directive, VARIABLES_REMARK);
            directive.block_directives().iter().for_each(|inner| self.not_needed(inner, VARIABLES_REMARK));
            return;
        }
        self.refuse_repeated_fields(directive, place, &conditions, phase);
        let fault = self.untranslatable_reason(directive, place);
        self.count_taken(directive);
        let mut are_all = false;
        for (condition, value) in conditions {
            if let Some(differs) = condition.difference {
                self.ledger.mark_different(directive.entry, differs);
            }
            let mut inner = match &fault {
                Some(reason) => {
                    self.ledger.mark_impossible(directive.entry, reason);
                    self.report_untranslated_if(directive);
                    let mut inner = RewritePhase::new();
                    self.close_place(directive, place, &mut inner);
                    inner
                }
                None => self.conditional_routes(directive, (place, locations), is_last, (&condition, value)),
            };
            if inner.may_be_cut_short && inner.continues && !is_last {
                self.ledger.mark_impossible(
                    directive.entry,
                    "`break` in it skips the directives after it: the route is closed (403)",
                );
                self.close_place(directive, place, &mut inner);
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
    fn conditional_routes(
        &self,
        one: &'d NginxDirective,
        (place, locations): (&LocationPlace<'d>, &ServerLocations<'d>),
        is_last: bool,
        (condition, value): (&RouteCondition, Option<(String, &'d str)>),
    ) -> RewritePhase {
        let mut inner =
            LocationPlace { scope: place.scope.with_block(one.block_directives()), ..place.clone() };
        if !condition.groups.is_empty() {
            inner.scope = inner.scope.with_groups(&condition.groups);
        }
        let mut phase = RewritePhase::new();
        let own: Vec<&NginxDirective> = one.block_directives().iter().collect();
        for (at, directive) in own.iter().enumerate() {
            if !EXECUTED_DIRECTIVES.contains(&directive.name.as_str()) {
                continue;
            }
            let is_last = is_last && own[at + 1..].iter().all(|one| one.name == "set");
            let mut directive =
                substitute_value(directive, value.as_ref().map(|(name, value)| (name.as_str(), *value)));
            if let (Some(target), false) = (directive.args.last_mut(), condition.groups.is_empty())
                && let Some(apart) =
                    condition_words(one).last().and_then(|regex| move_leading_slash(regex, target))
            {
                *target = apart.1;
            }
            self.translate_directive(&directive, (&inner, locations), is_last, &mut phase);
            if !phase.continues || phase.may_be_cut_short {
                break;
            }
        }
        for route in &mut phase.routes {
            self.add_manual_comments(one.block_directives(), route.section_mut());
        }
        phase
    }

    /// Returns the reason why the directives in an `if` cannot be translated, if there is one.
    fn untranslatable_reason(&self, directive: &NginxDirective, place: &LocationPlace<'d>) -> Option<String> {
        let is_known = |inner: &NginxDirective| {
            EXECUTED_DIRECTIVES.contains(&inner.name.as_str())
                || self.is_harmless(&inner.name)
                || self.ledger.is_marked(inner.entry) && !self.ledger.is_impossible(inner.entry)
        };
        if let Some(other) = directive.block_directives().iter().find(|inner| !is_known(inner)) {
            return Some(format!(
                "`{}` in `if` cannot be translated, so requests that meet its condition are refused (403): write a route with the condition",
                other.name
            ));
        }
        let leaves = |inner: &NginxDirective| match inner.name.as_str() {
            "return" => true,
            "rewrite" => inner.arg_at(2) != "break" && MATCH_ALL_EXPRESSIONS.contains(&inner.first_arg()),
            _ => false,
        };
        let ends = |inner: &NginxDirective| {
            inner.name == "break" || inner.name == "rewrite" && inner.arg_at(2) == "break"
        };
        let continues =
            directive.block_directives().iter().find(|inner| leaves(inner) || ends(inner)).is_none_or(ends);
        let own = |name: &str| place.scope.innermost_last(name).is_some();
        (continues && place.matcher != LocationMatcher::Server && (own("try_files") || own("limit_except"))).then(|| {
            "nginx applies no `try_files` and `limit_except` of the location where its condition is met: such requests are refused (403)".to_owned()
        })
    }

    /// Whether an `if` only sets variables.
    fn only_sets_variables(&self, directive: &NginxDirective, place: &LocationPlace<'d>) -> bool {
        directive.block_directives().iter().all(|inner| inner.name == "set")
            && self.untranslatable_reason(directive, place).is_none()
    }

    /// Whether an `if` for paths without a file is redundant, because `files` and `php` do the same.
    pub(crate) fn is_redundant_file_check(
        &self,
        directive: &NginxDirective,
        (place, locations): (&LocationPlace<'d>, &ServerLocations<'d>),
    ) -> bool {
        let has_others = |place: &LocationPlace<'d>| {
            let is_other = |other: &&NginxDirective| match other.name.as_str() {
                "return" | "rewrite" => true,
                // Directives that respond or rewrite the path regardless of files.
                "if" => {
                    other.entry != directive.entry
                        && !is_file_fallback(other)
                        && !other
                            .block_directives()
                            .iter()
                            .all(|inner| refuses_or_redirects(inner) || inner.name == "set")
                }
                // `try_files` would handle the paths that the `if` refuses.
                "try_files" => {
                    directive.block_directives().iter().any(refuses_or_redirects)
                        && other.args.last().is_some_and(|last| !last.starts_with('='))
                }
                "fastcgi_pass" => script_pass(place).is_none(),
                name => name.ends_with("_pass"),
            };
            place.scope.innermost().iter().any(|other| is_other(&other))
        };
        let others =
            place.matcher == LocationMatcher::Server && locations.ordered_places.iter().any(has_others);
        file_operator(directive).is_some() && is_file_fallback(directive) && !others && !has_others(place)
    }

    /// Returns a route of a location for a rewritten path: its content, with the conditions and the path of
    /// the rewrite.
    pub(crate) fn apply_rewritten_path(&self, content: &TomlSection, rewritten: &TomlSection) -> TomlSection {
        let mut section = content.clone();
        let path = section.remove("path");
        let own_path = rewritten.get("path").cloned();
        let mut asks: Vec<_> = rewritten.entries.clone();
        asks.retain(|(key, _)| !matches!(key.as_str(), "path" | "rewrite"));
        own_path.clone().into_iter().for_each(|path| section.set("path", path));
        add_conditions(&mut section, &asks);
        if let Some(path) = path.filter(|path| Some(path) != own_path.as_ref()) {
            section.require("path", path);
        }
        add_conditions(&mut section, &[]);
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
        add_conditions(&mut section, &[]);
        section
    }
}

/// The remark on variables that depend on the request.
const VARIABLES_REMARK: &str = "the directives that use the variable say whether it can be translated";

/// Replaces a variable in the arguments of a directive by its value.
fn substitute_value(directive: &NginxDirective, value: Option<(&str, &str)>) -> NginxDirective {
    let mut one = directive.clone();
    if let Some((name, value)) = value {
        for arg in &mut one.args {
            *arg = arg.replace(&format!("${{{name}}}"), value).replace(&format!("${name}"), value);
        }
    }
    one
}
