//! Translation of one location to routes.

use super::access::refuse_all;
use super::files::{FilesFallback, finds_folders};
use super::location_place::{LocationPlace, ServerLocations};
use super::php::script_pass;
use super::rewrite::break_prefixes;
use super::rewrite_phase::PhaseRoute;
use super::scope::Scope;
use super::script_paths::refuse_path_info_route;
use super::translation::{LocationMatcher, Translation, make_unavailable};
use super::tree::NginxDirective;
use crate::conditions::{RouteCondition, close_route};
use crate::draft::{TomlItem, TomlSection, only_rewrites};

/// The remark on `limit_except` in a location with rewrite directives.
pub(super) const LIMIT_EXCEPT_REMARK: &str =
    "nginx executes no `rewrite`, `if` and `return` of the location for other methods";
/// The remark on scripts as index of folders in a location that ends with a named one.
const INDEX_BESIDE_NAMED_REMARK: &str =
    "a route has one action beside `files`: no script is run for its folders, which have no index";
impl<'d> Translation<'d> {
    /// Returns the routes of a location, in the order in which they have to be written.
    pub(crate) fn location_routes(
        &self,
        place: &LocationPlace<'d>,
        locations: &ServerLocations<'d>,
    ) -> Vec<TomlSection> {
        let scope = &place.scope;
        if place.is_closed {
            let mut section = place.paths.to_route();
            let check = place.entry.and_then(|entry| self.ledger.manual_comment(entry));
            close_route(&mut section, check.unwrap_or_default());
            return self.finish_routes(vec![section], scope);
        }
        // Clients are refused before any directive of the location is executed.
        if let Some(internal) =
            scope.effective("internal").filter(|_| place.lacks_slash || !has_internal_files(place, locations))
        {
            return self.finish_routes(vec![self.internal_route(internal, place, locations)], scope);
        }
        if place.lacks_slash {
            return self.finish_routes(vec![self.slash_redirect_route(place)], scope);
        }
        let mut phase = match place.matcher {
            // The rewrite directives of the server precede all locations already.
            LocationMatcher::Server => None,
            _ => Some(self.translate_rewrite_phase(place, locations)),
        };
        let limit = scope.innermost_last("limit_except");
        // The last routes of the content are for other methods, for which nginx skips the rewrite directives
        // of the location.
        let asks = limit.is_some_and(|limit| !limit.block_directives().is_empty());
        let mut content = Vec::new();
        let needs_content = phase.as_ref().is_none_or(|phase| {
            phase.continues || phase.routes.iter().any(|route| matches!(route, PhaseRoute::Rewritten(_)))
        });
        if needs_content {
            let mut section = place.paths.to_route();
            if let LocationMatcher::Regex(regex, _) = &place.matcher
                && regex.contains("(?!")
            {
                section.comment(format!("The same as {regex}, without looking ahead."));
            }
            content = self.content_routes(place, locations, section);
        } else {
            let is_left = |one: &&NginxDirective| {
                !matches!(one.name.as_str(), "location" | "limit_except") && !self.ledger.is_marked(one.entry)
            };
            for one in scope.innermost().iter().filter(is_left) {
                self.not_needed(one, "the request is answered before it applies");
            }
        }
        let mut routes = Vec::new();
        for route in phase.iter_mut().flat_map(|phase| std::mem::take(&mut phase.routes)) {
            match route {
                PhaseRoute::Final(mut section) => {
                    // nginx skips the rewrite directives of the location for other methods.
                    limit.into_iter().for_each(|limit| allow_methods(limit, &mut section));
                    routes.push(section);
                }
                PhaseRoute::Rewritten(section) => {
                    let executed = content.iter().filter(|content| !asks || content.get("method").is_some());
                    routes.extend(executed.map(|content| self.apply_rewritten_path(content, &section)));
                }
            }
        }
        if phase.is_none_or(|phase| phase.continues) {
            routes.extend(content);
        } else {
            content.retain(|route| limit.is_some() && route.get("method").is_none());
            match limit {
                Some(limit) if content.is_empty() => {
                    routes.push(self.refuse_methods_route(limit, place));
                    self.ledger.mark_different(limit.entry, LIMIT_EXCEPT_REMARK);
                }
                _ => routes.append(&mut content),
            }
        }
        self.finish_routes(routes, scope)
    }

    /// Returns the route of an `internal` location.
    fn internal_route(
        &self,
        internal: &NginxDirective,
        place: &LocationPlace<'d>,
        locations: &ServerLocations<'d>,
    ) -> TomlSection {
        let mut section = place.paths.to_route();
        section.set("respond", TomlItem::Number(404));
        self.write_headers(&place.scope, &mut section);
        let reason = match script_pass(place) {
            Some(_) => "clients get 404; other locations run its script as their front script",
            None if has_upstream(locations) => {
                "clients get 404; X-Accel-Redirect of an upstream server to it has no effect, as it has no files of its own"
            }
            None => "clients get 404; nothing inside the server asks for it either",
        };
        self.ledger.mark_different(internal.entry, reason);
        let is_asked = locations.ordered_places.iter().any(|other| {
            let asks = other.scope.effective("auth_request");
            asks.is_some_and(|asks| matches!(&place.matcher, LocationMatcher::Exact(path) | LocationMatcher::Prefix(path, _) if asks.first_arg() == path))
        });
        let reason = match is_asked {
            true => "its location is internal: see the `auth_request` that asks it",
            false => "its location is internal: it is of use for `error_page` alone here",
        };
        for one in place.scope.innermost() {
            if !self.ledger.is_marked(one.entry) && script_pass(place).is_none() {
                self.ledger.mark_different(one.entry, reason);
            }
        }
        section
    }

    /// Returns the routes of a location that neither redirects nor is `internal` without files. `section` has
    /// its paths.
    fn content_routes(
        &self,
        place: &LocationPlace<'d>,
        locations: &ServerLocations<'d>,
        mut section: TomlSection,
    ) -> Vec<TomlSection> {
        let scope = &place.scope;
        let fallback = self.write_action(place, &mut section, locations);
        if let Some(internal) = scope.effective("internal") {
            // Scripts must not run for files that applications name.
            section.remove("php");
            if section.get("files").is_some() && section.get("proxy").is_none() {
                section.set("internal", TomlItem::Flag(true))
            } else {
                refuse_all(&mut section);
                section.set("respond", TomlItem::Number(404));
            }
            self.count_taken(internal);
        }
        let others = scope
            .innermost_last("limit_except")
            .and_then(|limit| self.translate_limit_except(limit, place, &mut section));
        self.translate_access(scope, &mut section);
        self.complete_route((place, locations), fallback, &mut section);
        self.close_untranslated(place, &mut section);
        let mut routes: Vec<TomlSection> =
            self.refuse_other_scripts(place, locations, &section).into_iter().collect();
        routes.extend(self.refuse_folders_route(place, &section));
        routes.extend(self.refuse_guarded_index(place, locations, &section));
        routes.extend(refuse_path_info_route(place, locations, &section));
        routes.extend(self.refuse_other_files(place, &mut section));
        routes.push(section);
        if let Some(mut others) = others {
            if others.get("respond").is_none() {
                let fallback = fallback.filter(|_| others.get("proxy").is_some());
                self.complete_route((place, locations), fallback, &mut others);
                self.close_untranslated(place, &mut others);
            }
            routes.push(others);
        }
        routes
    }

    /// Returns a route that refuses directories. It is needed if `try_files` finds directories whose index
    /// pages another location serves differently: the fallback for paths without a file would respond
    /// instead.
    fn refuse_folders_route(&self, place: &LocationPlace<'d>, section: &TomlSection) -> Option<TomlSection> {
        let one = place.scope.innermost_last("try_files")?;
        let (last, tries) = one.args.split_last()?;
        let has_fallback = section.get("proxy").or(section.get("app")).is_some() || !last.starts_with('=');
        let Some(TomlItem::Table(files)) = section.get("files") else { return None };
        let is_without =
            |(key, value): &(String, TomlItem)| key == "index" && *value == TomlItem::List(Vec::new());
        if !has_fallback || !finds_folders(tries) || !files.iter().any(is_without) {
            return None;
        }
        let reason =
            "another location has the pages of its folders: paths with a final slash are closed (403)";
        self.ledger.mark_different(one.entry, reason);
        let mut refusal = place.paths.to_route();
        refusal.require("path", TomlItem::text("*/"));
        refusal.comment(reason);
        refusal.set("respond", TomlItem::Number(403));
        Some(refusal)
    }

    /// Refuses all requests of a route if a directive that applies to it is not translated and may restrict
    /// access.
    fn close_untranslated(&self, place: &LocationPlace<'d>, section: &mut TomlSection) {
        if section.get("respond").is_some() || section.get("redirect").is_some() {
            return;
        }
        let mut names: Vec<&str> = Vec::new();
        for name in place.scope.simple_names() {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let has = |names: &[&str]| names.iter().any(|name| section.get(name).is_some());
        let counts = |name: &&str| match name.split('_').next() {
            _ if self.is_harmless(name) => false,
            // Komainu applies both restrictions, which refuses more.
            _ if *name == "satisfy" => false,
            // These directives have been translated before.
            _ if ["rewrite", "return", "set", "break"].contains(name) => false,
            _ if *name == "try_files" || name.ends_with("_pass") => {
                place.scope.innermost_last(name).is_some()
            }
            Some("proxy" | "grpc") => has(&["proxy"]),
            Some("fastcgi" | "uwsgi" | "scgi") => has(&["php", "proxy"]),
            _ => true,
        };
        let all = names.into_iter().filter(counts).flat_map(|name| place.scope.effective_all(name));
        let Some(lost) = all.into_iter().find(|one| self.ledger.is_impossible(one.entry)) else { return };
        let check = self.ledger.manual_comment(lost.entry).unwrap_or_default();
        refuse_all(section);
        close_route(section, check);
    }

    /// Writes response header fields, and comments on required manual work.
    fn complete_route(
        &self,
        (place, locations): (&LocationPlace<'d>, &ServerLocations<'d>),
        fallback: Option<&'d NginxDirective>,
        section: &mut TomlSection,
    ) {
        let scope = &place.scope;
        self.write_headers(scope, section);
        if let Some(location) = fallback {
            let inner = locations.server.with_block(location.block_directives());
            self.write_fallback_headers(("proxy", location.first_arg()), (scope, &inner), section);
        }
        self.write_script_headers(place, locations, section);
        self.write_page_cache_control(place, locations, section);
        self.translate_sub_filter(scope, section);
        if place.matcher != LocationMatcher::Server {
            self.add_manual_comments(scope.innermost(), section);
        }
    }

    /// Adds the directives that every route of a location has.
    pub(crate) fn finish_routes(&self, mut routes: Vec<TomlSection>, scope: &Scope<'d>) -> Vec<TomlSection> {
        // Routes that only rewrite have conditions alone: limits belong to the route that responds.
        for section in routes.iter_mut().filter(|section| !only_rewrites(section)) {
            self.translate_limits(scope, section);
            self.write_compression(scope, section);
        }
        routes
    }

    /// Writes the action of a route; returns the named location that responds if there is no file.
    fn write_action(
        &self,
        place: &LocationPlace<'d>,
        section: &mut TomlSection,
        locations: &ServerLocations<'d>,
    ) -> Option<&'d NginxDirective> {
        let scope = &place.scope;
        let own = |names: &[&str]| scope.innermost().iter().find(|one| names.contains(&one.name.as_str()));
        if let Some(pass) = own(&["proxy_pass", "grpc_pass"]) {
            self.write_proxy(pass, place, section);
            if let Some(one) = scope.innermost_last("try_files") {
                self.ledger.mark_impossible(
                    one.entry,
                    "files beside `proxy_pass` in one location: write `files` with `proxy` in the route",
                );
            }
            return None;
        }
        if let Some(pass) = script_pass(place) {
            self.write_script_location(pass, place, section);
            return None;
        }
        if let Some(pass) = own(&["fastcgi_pass", "uwsgi_pass", "scgi_pass"]) {
            self.write_cgi_proxy(pass, scope, section);
            return None;
        }
        if scope.innermost().iter().any(|one| {
            one.name.contains("_by_lua")
                || matches!(one.name.as_str(), "stub_status" | "memcached_pass" | "js_content" | "perl")
        }) {
            make_unavailable(section);
            return None;
        }
        let front = self.find_front_script(place, locations);
        let last = self.write_files(place, section, locations, front.as_ref());
        self.add_php(place, locations, front.as_ref(), section);
        let FilesFallback::Named(location) = last else { return None };
        if front.is_some() {
            return None;
        }
        if section.remove("php").is_some() {
            // A route has one action for paths without a file.
            section.remove("intercept_errors");
            section.set_in("files", "index", TomlItem::List(Vec::new()));
            if let Some(one) = scope.innermost_last("try_files").filter(|one| finds_folders(&one.args)) {
                self.ledger.mark_different(one.entry, INDEX_BESIDE_NAMED_REMARK);
            }
        }
        let inner = locations.server.with_block(location.block_directives());
        if !self.is_no_stricter(&inner, &place.scope) {
            self.ledger.mark_impossible(
                location.entry,
                "it refuses requests that the location of the files lets in: paths without a file are 404",
            );
            return None;
        }
        self.translate_named_location(location, (place, locations), section).then_some(location)
    }

    /// Whether a place refuses no request that the other one accepts.
    pub(crate) fn is_no_stricter(&self, one: &Scope<'d>, other: &Scope<'d>) -> bool {
        let shown = |scope: &Scope<'d>, names: &[&str]| -> Vec<String> {
            let all = scope.effective_all_of(names);
            all.into_iter().map(|one| format!("{} {}", one.name, one.args.join(" "))).collect()
        };
        let is_open =
            |scope: &Scope<'d>, names: &[&str]| shown(scope, names).iter().all(|one| one.ends_with(" off"));
        let guards: [&[&str]; 5] =
            [&["allow", "deny"], &["auth_basic"], &["auth_basic_user_file"], &["auth_request"], &["satisfy"]];
        let is_same = guards.iter().all(|names| shown(one, names) == shown(other, names));
        let known = |scope: &Scope<'d>| {
            scope
                .innermost()
                .iter()
                .filter(|one| one.block.is_none() && self.ledger.is_impossible(one.entry))
                .count()
        };
        let needs_nothing = guards[..4].iter().all(|names| is_open(one, names)) && known(one) == 0;
        needs_nothing || is_same && known(one) == 0
    }

    /// Translates a named location to a route of `place`. Returns false if it cannot be translated.
    pub(super) fn translate_named_location(
        &self,
        location: &'d NginxDirective,
        (place, locations): (&LocationPlace<'d>, &ServerLocations<'d>),
        section: &mut TomlSection,
    ) -> bool {
        let inner = locations.server.with_block(location.block_directives()).with_groups(&place.scope.groups);
        let own = |names: &[&str]| inner.innermost().iter().find(|one| names.contains(&one.name.as_str()));
        self.count_taken(location);
        let named = LocationPlace {
            scope: inner.clone(),
            matcher: LocationMatcher::Regex(String::new(), false),
            entry: Some(location.entry),
            ..LocationPlace::for_server(&inner)
        };
        let is_lost =
            |one: &&NginxDirective| self.ledger.is_impossible(one.entry) && !self.is_harmless(&one.name);
        if let Some(lost) = inner.innermost().iter().find(is_lost) {
            let reason = format!("`{}` in it is not translated", lost.name);
            self.ledger.mark_impossible(location.entry, reason);
            return false;
        }
        let is_executed = |one: &&NginxDirective| {
            matches!(one.name.as_str(), "rewrite" | "if" | "return" | "break" | "limit_except" | "try_files")
        };
        let executed: Vec<&NginxDirective> = inner.innermost().iter().filter(is_executed).collect();
        let is_simple = match executed.as_slice() {
            [] => true,
            [one] => one.name == "rewrite" && break_prefixes(one, &named).is_some(),
            _ => false,
        };
        if is_simple && let Some(pass) = own(&["proxy_pass", "grpc_pass"]) {
            self.write_proxy(pass, &named, section);
            return section.get("proxy").is_some();
        }
        if executed.is_empty()
            && let Some(pass) = own(&["fastcgi_pass", "uwsgi_pass", "scgi_pass"])
        {
            self.write_cgi_proxy(pass, &inner, section);
            return section.get("proxy").is_some();
        }
        self.ledger.mark_impossible(
            location.entry,
            "of a named location, only `proxy_pass`, `fastcgi_pass` and the like are translated",
        );
        section.comment(format!(
            "CHECK: paths without a file belong to {}: add `app = \"NAME\"` or `proxy` here.",
            location.first_arg()
        ));
        false
    }

    /// Translates `limit_except`: restricts the location's route to its methods, and returns a copy of the
    /// route for all other methods, with the restrictions of `limit_except` instead of the location's own.
    fn translate_limit_except(
        &self,
        limit: &'d NginxDirective,
        place: &LocationPlace<'d>,
        section: &mut TomlSection,
    ) -> Option<TomlSection> {
        const KNOWN: [&str; 5] = ["allow", "deny", "auth_basic", "auth_basic_user_file", "satisfy"];
        if limit.block_directives().is_empty() {
            self.not_needed(limit, "it does not restrict other methods");
            return None;
        }
        let mut others = section.clone();
        allow_methods(limit, section);
        if !limit.block_directives().iter().all(|one| KNOWN.contains(&one.name.as_str())) {
            return Some(self.refuse_methods_route(limit, place));
        }
        self.count_taken(limit);
        if place.scope.innermost_last("try_files").is_some() {
            // nginx ignores `try_files` for other methods.
            others.retain_in("files", |key| !matches!(key, "try" | "fallback"));
            if others.get("files").is_some() {
                others.set_in("files", "index", TomlItem::List(Vec::new()));
                self.ledger.mark_different(limit.entry, "folders have no index for other methods");
            }
            others.remove("proxy");
        }
        if place.scope.innermost_last("rewrite").is_some_and(|one| break_prefixes(one, place).is_some()) {
            self.ledger.mark_different(limit.entry, LIMIT_EXCEPT_REMARK);
        }
        self.translate_access(&place.scope.with_block(limit.block_directives()), &mut others);
        if others.get("respond").is_none() {
            return Some(others);
        }
        let mut refusal = place.paths.to_route();
        refusal.set("respond", TomlItem::Number(403));
        Some(refusal)
    }

    /// Returns the route that refuses all methods except those of `limit_except`, whose restrictions cannot
    /// be translated.
    fn refuse_methods_route(&self, limit: &'d NginxDirective, place: &LocationPlace<'d>) -> TomlSection {
        let is_refusal =
            limit.block_directives().iter().all(|one| one.name == "deny" && one.first_arg() == "all");
        let mut refusal = place.paths.to_route();
        if is_refusal && !limit.block_directives().is_empty() {
            self.count_block_taken(limit);
            refusal.set("respond", TomlItem::Number(403));
            return refusal;
        }
        let reason =
            "its restrictions of other methods are not translated, so these methods are refused (403)";
        self.ledger.mark_impossible(limit.entry, reason);
        limit.block_directives().iter().for_each(|one| self.ledger.mark_impossible(one.entry, reason));
        close_route(&mut refusal, self.ledger.manual_comment(limit.entry).unwrap_or_default());
        refusal
    }
}

/// Restricts a route to the methods of `limit_except`, unless it has a condition on methods already.
fn allow_methods(limit: &NginxDirective, section: &mut TomlSection) {
    let methods = TomlItem::text_or_list(limit.args.iter().map(|method| method.to_ascii_uppercase()));
    RouteCondition::new("method", methods).write(section);
}

/// Whether some location passes requests to an upstream server, which may name files by `X-Accel-Redirect`.
fn has_upstream(locations: &ServerLocations<'_>) -> bool {
    let mut found = false;
    super::tree::visit(locations.server.innermost(), &mut |one| found |= one.name.ends_with("_pass"));
    found
}

/// Whether an internal location has files that applications name by `X-Accel-Redirect`.
fn has_internal_files(place: &LocationPlace<'_>, locations: &ServerLocations<'_>) -> bool {
    let own = || place.scope.innermost().iter();
    let is_root = |one: &NginxDirective| matches!(one.name.as_str(), "root" | "alias");
    let is_other = |one: &NginxDirective| {
        one.name.ends_with("_pass") || matches!(one.name.as_str(), "return" | "try_files" | "rewrite" | "if")
    };
    let inherits_root = place.find_folder().is_some() && has_upstream(locations);
    (own().any(is_root) || inherits_root) && !own().any(is_other)
}
