//! One location as routes.

use super::files::Last;
use super::php::php_pass;
use super::place::{Place, ServerLocations};
use super::rewrite::{PathRewrite, simple_break};
use super::scope::{Scope, TemplateUse, constants};
use super::tree::NginxDirective;
use super::work::{Matcher, Translation, is_target, redirect, route, unavailable};
use crate::conditions::{RouteCondition, close};
use crate::draft::{TomlItem, TomlSection, only_rewrites};

/// Statuses that `respond` can have.
const STATUSES: std::ops::RangeInclusive<u64> = 200..=599;

impl<'d> Translation<'d> {
    /// The routes of a location, in the order in which they have to stand.
    pub(crate) fn routes(&self, place: &Place<'d>, around: &ServerLocations<'d>) -> Vec<TomlSection> {
        let scope = &place.scope;
        if place.is_closed {
            let mut section = route(&place.paths);
            let check = place.entry.and_then(|entry| self.ledger.open_end(entry));
            close(&mut section, check.unwrap_or_default());
            return self.finished(vec![section], scope);
        }
        let mut routes = self.rewrites(place);
        let is_whole = |section: &TomlSection| {
            section.get("path") == route(&place.paths).get("path") && section.entries.len() == 2
        };
        let is_done =
            scope.own().iter().any(|one| one.name == "rewrite") && routes.last().is_some_and(is_whole);
        let limit = scope.own_one("limit_except");
        if let Some(limit) = limit {
            // nginx rewrites no requests with other methods.
            routes.iter_mut().for_each(|section| allow_methods(limit, section));
        }
        if is_done {
            // Nothing of the location answers after that.
            routes.extend(limit.map(|limit| self.close_methods(limit, place)));
            return self.finished(routes, scope);
        }
        let mut section = route(&place.paths);
        if let Matcher::Regex(regex, _) = &place.matcher
            && regex.contains("(?!")
        {
            section.comment(format!("The same as {regex}, without looking ahead."));
        }
        let internal = scope.own_one("internal");
        // Files that applications name by X-Accel-Redirect; all else that is internal is asked for by nginx itself.
        let has_files = || {
            let is_root = |one: &NginxDirective| matches!(one.name.as_str(), "root" | "alias");
            let is_other = |one: &NginxDirective| {
                one.name.ends_with("_pass") || matches!(one.name.as_str(), "return" | "try_files")
            };
            scope.own().iter().any(is_root) && !scope.own().iter().any(is_other)
        };
        if let Some(internal) = internal.filter(|_| !has_files()) {
            section.set("respond", TomlItem::Number(404));
            let reason = match php_pass(place) {
                Some(_) => "clients get 404; other locations run its script as their front script",
                None => "clients get 404; nothing inside the server asks for it either",
            };
            self.ledger.differs(internal.entry, reason);
            for one in scope.own() {
                if !self.ledger.is_marked(one.entry) && php_pass(place).is_none() {
                    self.ledger.differs(
                        one.entry,
                        "its location is internal: it is of use for `error_page` alone here",
                    );
                }
            }
            routes.push(section);
            return self.finished(routes, scope);
        }
        if let Some(one) = scope.own_one("return") {
            self.respond(one, scope, &mut section);
            self.headers(scope, &mut section);
            for one in
                scope.own().iter().filter(|one| matches!(one.name.as_str(), "allow" | "deny" | "auth_basic"))
            {
                self.ledger.needless(one.entry, "`return` answers before it counts");
            }
            let others = limit.map(|limit| {
                allow_methods(limit, &mut section);
                self.close_methods(limit, place)
            });
            self.open_ends(scope.own(), &mut section);
            routes.push(section);
            routes.extend(others);
            return self.finished(routes, scope);
        }
        routes.extend(self.answering(place, around, section));
        self.finished(routes, scope)
    }

    /// The routes of a location that neither redirects nor is for the server alone. `section` has its paths.
    fn answering(
        &self,
        place: &Place<'d>,
        around: &ServerLocations<'d>,
        mut section: TomlSection,
    ) -> Vec<TomlSection> {
        let scope = &place.scope;
        let fallback = self.content(place, &mut section, around);
        if let Some(internal) = scope.own_one("internal") {
            section.set("internal", TomlItem::Flag(true));
            // The server's scripts are not for files that applications name.
            section.remove("php");
            self.ledger.translated(internal.entry);
        }
        let others = scope.own_one("limit_except").and_then(|limit| self.methods(limit, place, &mut section));
        self.access(scope, &mut section);
        self.complete((place, around), fallback, &mut section);
        let refusal = self.referers(place, &mut section);
        let mut routes = self.with_parts(place, around, section);
        if let Some(mut others) = others {
            if refusal.is_some() {
                // What `referer` does not match is not for the route of other methods.
                let methods = routes.last().and_then(|section| section.get("method")).cloned();
                let condition = methods.map(|methods| vec![("method".to_owned(), methods)]);
                condition.into_iter().for_each(|one| others.exclude(TomlItem::Table(one)));
            }
            match others.get("respond") {
                Some(_) => routes.push(others),
                None => {
                    self.complete((place, around), fallback, &mut others);
                    routes.extend(self.with_parts(place, around, others));
                }
            }
        }
        routes.extend(refusal);
        routes
    }

    /// A route with those that have to stand before it: scripts that nginx does not run, and each `rewrite … break`.
    fn with_parts(
        &self,
        place: &Place<'d>,
        around: &ServerLocations<'d>,
        section: TomlSection,
    ) -> Vec<TomlSection> {
        let mut routes: Vec<TomlSection> = self.other_scripts(place, around, &section).into_iter().collect();
        routes.extend(self.breaks(place).into_iter().map(|rewrite| rewritten(&section, rewrite)));
        routes.push(section);
        routes
    }

    /// Writes the fields of responses, and comments for what a human has to do.
    fn complete(
        &self,
        (place, around): (&Place<'d>, &ServerLocations<'d>),
        fallback: Option<&'d NginxDirective>,
        section: &mut TomlSection,
    ) {
        let scope = &place.scope;
        self.headers(scope, section);
        if let Some(location) = fallback {
            let inner = around.server.with(location.inner());
            self.headers_of_fallback(location, (scope, &inner), section);
        }
        self.cache_control_of_pages(place, around, section);
        self.replacements(scope, section);
        if place.matcher != Matcher::Server {
            self.open_ends(scope.own(), section);
        }
    }

    /// What every route of a location has.
    pub(crate) fn finished(&self, mut routes: Vec<TomlSection>, scope: &Scope<'d>) -> Vec<TomlSection> {
        // One that only rewrites has conditions alone: what the request may be is for the route that answers.
        for section in routes.iter_mut().filter(|section| !only_rewrites(section)) {
            self.sizes(scope, section);
            self.compression(scope, section);
        }
        routes
    }

    /// Writes what answers; returns the named location that answers where there is no file.
    fn content(
        &self,
        place: &Place<'d>,
        section: &mut TomlSection,
        around: &ServerLocations<'d>,
    ) -> Option<&'d NginxDirective> {
        let scope = &place.scope;
        let own = |names: &[&str]| scope.own().iter().find(|one| names.contains(&one.name.as_str()));
        if let Some(pass) = own(&["proxy_pass", "grpc_pass"]) {
            self.proxy(pass, place, section);
            if let Last::Named(_) = self.tried(place, around) {
                section.comment("CHECK: `try_files` beside `proxy_pass` is left out.");
            }
            return None;
        }
        if let Some(pass) = php_pass(place) {
            self.php_location(pass, place, section);
            return None;
        }
        if let Some(pass) = own(&["fastcgi_pass", "uwsgi_pass", "scgi_pass"]) {
            self.cgi(pass, scope, section);
            return None;
        }
        if let Some(one) = own(&["stub_status"]) {
            self.ledger.impossible(
                one.entry,
                "`[control] listen` serves `/metrics` and `/v1/status` at an address of its own",
            );
            unavailable(section);
            return None;
        }
        if scope.own().iter().any(|one| {
            one.name.contains("_by_lua")
                || matches!(one.name.as_str(), "memcached_pass" | "js_content" | "perl")
        }) {
            unavailable(section);
            return None;
        }
        let front = self.front_of(place, around);
        let last = self.files(place, section, around, front.as_ref());
        self.php_beside(place, around, front.as_ref(), section);
        let Last::Named(location) = last else { return None };
        if front.is_some() {
            return None;
        }
        self.named_location(location, (place, around), section);
        Some(location)
    }

    /// What no file answers belongs to a named location.
    fn named_location(
        &self,
        location: &'d NginxDirective,
        (place, around): (&Place<'d>, &ServerLocations<'d>),
        section: &mut TomlSection,
    ) {
        let inner = around.server.with(location.inner()).with_groups(&place.scope.groups);
        let own = |names: &[&str]| inner.own().iter().find(|one| names.contains(&one.name.as_str()));
        self.ledger.translated(location.entry);
        if let Some(pass) = own(&["proxy_pass", "grpc_pass"]) {
            let named = Place {
                scope: inner.clone(),
                matcher: Matcher::Regex(String::new(), false),
                paths: place.paths.clone(),
                within: None,
                entry: Some(location.entry),
                is_closed: false,
            };
            for one in inner.own().iter().filter(|one| one.name == "rewrite") {
                if simple_break(one, &named).is_none() {
                    self.ledger.impossible(
                        one.entry,
                        "the path of a request that no file answers is changed by `strip_prefix` and `add_prefix` of `proxy` alone",
                    );
                    self.ledger.open_end(one.entry).into_iter().for_each(|check| section.comment(check));
                }
            }
            self.proxy(pass, &named, section);
            return;
        }
        if let Some(pass) = own(&["fastcgi_pass", "uwsgi_pass", "scgi_pass"]) {
            self.cgi(pass, &inner, section);
            return;
        }
        self.ledger.impossible(
            location.entry,
            "a named location counts where it passes requests on (`proxy_pass`, `fastcgi_pass` and the like) and no more",
        );
        section.comment(format!(
            "CHECK: what no file answers belongs to {}: add `app = \"NAME\"` or `proxy` here.",
            location.first()
        ));
    }

    /// `try_files` beside another action.
    fn tried(&self, place: &Place<'d>, around: &ServerLocations<'d>) -> Last<'d> {
        let Some(one) = place.scope.own_one("try_files") else { return Last::Files };
        self.ledger.impossible(
            one.entry,
            "files beside `proxy_pass` in one location: write `files` with `proxy` in the route",
        );
        around.named(one.args.last().map_or("", String::as_str)).map_or(Last::Files, Last::Named)
    }

    /// `limit_except`: writes the methods of a location's route, and returns the route for all others: the same one, with what
    /// `limit_except` asks for in place of what the location does.
    fn methods(
        &self,
        limit: &'d NginxDirective,
        place: &Place<'d>,
        section: &mut TomlSection,
    ) -> Option<TomlSection> {
        const KNOWN: [&str; 5] = ["allow", "deny", "auth_basic", "auth_basic_user_file", "satisfy"];
        if limit.inner().is_empty() {
            self.ledger.needless(limit.entry, "it asks nothing of other methods");
            return None;
        }
        let mut others = section.clone();
        allow_methods(limit, section);
        if !limit.inner().iter().all(|one| KNOWN.contains(&one.name.as_str())) {
            return Some(self.close_methods(limit, place));
        }
        self.ledger.translated(limit.entry);
        self.access(&place.scope.with(limit.inner()), &mut others);
        if others.get("respond").is_none() {
            return Some(others);
        }
        let mut refusal = route(&place.paths);
        refusal.set("respond", TomlItem::Number(403));
        Some(refusal)
    }

    /// The route that refuses all methods but those of `limit_except`, where nothing else can be written for them.
    fn close_methods(&self, limit: &'d NginxDirective, place: &Place<'d>) -> TomlSection {
        let is_refusal = limit.inner().iter().all(|one| one.name == "deny" && one.first() == "all");
        let mut refusal = route(&place.paths);
        if is_refusal && !limit.inner().is_empty() {
            self.ledger.translated(limit.entry);
            limit.inner().iter().for_each(|one| self.ledger.translated(one.entry));
            refusal.set("respond", TomlItem::Number(403));
            return refusal;
        }
        let reason = "what it asks of other methods is not translated, so they are refused (403)";
        self.ledger.impossible(limit.entry, reason);
        limit.inner().iter().for_each(|one| self.ledger.impossible(one.entry, reason));
        close(&mut refusal, self.ledger.open_end(limit.entry).unwrap_or_default());
        refusal
    }

    /// `return`.
    pub(crate) fn respond(&self, one: &NginxDirective, scope: &Scope<'_>, section: &mut TomlSection) {
        let (code, text) = match one.first().parse::<u64>() {
            Ok(code) => (code, one.args.get(1).map(String::as_str)),
            Err(_) => (302, Some(one.first())),
        };
        let is_redirect = matches!(code, 301 | 302 | 303 | 307 | 308);
        match (is_redirect, text) {
            (true, Some(target)) => {
                let Some(to) = self.template(one, target, scope, TemplateUse::Target) else {
                    unavailable(section);
                    return;
                };
                if !is_target(&to) {
                    self.ledger.impossible(
                        one.entry,
                        "a redirect begins with a scheme or with `/`: write `redirect` with what stands before the variable",
                    );
                    unavailable(section);
                    return;
                }
                self.ledger.translated(one.entry);
                if target.contains("$http_host") {
                    self.ledger.differs(one.entry, "`$host` is without its port");
                }
                section.set("redirect", redirect(&to, code));
            }
            _ if code == 444 => {
                self.ledger
                    .differs(one.entry, "connections are not closed without an answer: the answer is 404");
                section.set("respond", TomlItem::Number(404));
            }
            (_, None) if STATUSES.contains(&code) => {
                self.ledger.translated(one.entry);
                if let Some(kind) = scope.own_one("default_type") {
                    self.ledger.needless(kind.entry, "not needed: the response has no content of its own");
                }
                section.set("respond", TomlItem::Number(code));
            }
            (_, Some(body)) if STATUSES.contains(&code) => {
                let resolved = constants(body, scope, 0);
                let has_variables = resolved.contains('$');
                let body = match has_variables {
                    true => self.template(one, body, scope, TemplateUse::Header),
                    false => Some(resolved),
                };
                let Some(body) = body else {
                    unavailable(section);
                    return;
                };
                self.ledger.translated(one.entry);
                let has_variables = has_variables && body.contains('$');
                section.set_in("respond", "status", TomlItem::Number(code));
                section.set_in("respond", "body", TomlItem::Text(body));
                let kind = scope.one("default_type");
                kind.into_iter().for_each(|one| self.ledger.translated(one.entry));
                let kind = kind.map_or("text/plain", |one| one.first());
                section.set_in("respond", "type", TomlItem::text(kind));
                if has_variables {
                    section.set_in("respond", "variables", TomlItem::Flag(true));
                }
            }
            _ => {
                self.ledger.impossible(one.entry, "the status is not between 200 and 599");
                unavailable(section);
            }
        }
    }
}

/// Has a route answer the methods of `limit_except` alone, unless it asks for methods already.
fn allow_methods(limit: &NginxDirective, section: &mut TomlSection) {
    let methods = TomlItem::texts(limit.args.iter().map(|method| method.to_ascii_uppercase()));
    // The only fault is that it asks for other methods.
    let _ = RouteCondition::new("method", methods).write(section);
}

/// A route with a path of a `rewrite … break`, and with its own prefixes gone.
fn rewritten(section: &TomlSection, rewrite: PathRewrite) -> TomlSection {
    let mut route = TomlSection { comments: section.comments.clone(), entries: Vec::new() };
    if let Some(paths) = rewrite.paths.or_else(|| section.get("path").cloned()) {
        route.set("path", paths);
    }
    route.set_text("rewrite", rewrite.to);
    for (key, item) in &section.entries {
        if !matches!(key.as_str(), "path" | "rewrite") {
            route.set(key, item.clone());
        }
    }
    for action in ["files", "proxy"] {
        if let Some((_, TomlItem::Table(entries))) = route.entries.iter_mut().find(|(key, _)| key == action) {
            entries.retain(|(key, _)| !matches!(key.as_str(), "strip_prefix" | "add_prefix"));
        }
    }
    route
}
