//! Translation of one location to routes.

use super::access::refuse;
use super::files::{Last, finds_folders};
use super::phase::PhaseRoute;
use super::php::php_pass;
use super::place::{Place, ServerLocations};
use super::rewrite::simple_break;
use super::scope::{Scope, TemplateUse, constants};
use super::tree::NginxDirective;
use super::work::{Matcher, Translation, is_target, redirect, unavailable};
use crate::conditions::{RouteCondition, close};
use crate::draft::{TomlItem, TomlSection, only_rewrites};

/// The remark on `limit_except` in a location with rewrite directives.
pub(super) const NOT_EXECUTED: &str =
    "nginx executes no `rewrite`, `if` and `return` of the location for other methods";
/// Valid statuses of `respond`.
const STATUSES: std::ops::RangeInclusive<u64> = 200..=599;

impl<'d> Translation<'d> {
    /// Returns the routes of a location, in the order in which they have to be written.
    pub(crate) fn routes(&self, place: &Place<'d>, around: &ServerLocations<'d>) -> Vec<TomlSection> {
        let scope = &place.scope;
        if place.is_closed {
            let mut section = place.paths.route();
            let check = place.entry.and_then(|entry| self.ledger.open_end(entry));
            close(&mut section, check.unwrap_or_default());
            return self.finished(vec![section], scope);
        }
        // Clients are refused before any directive of the location is executed.
        if let Some(internal) =
            scope.one("internal").filter(|_| place.lacks_slash || !has_internal_files(place))
        {
            return self.finished(vec![self.internal(internal, place)], scope);
        }
        if place.lacks_slash {
            return self.finished(vec![self.slash_redirect(place)], scope);
        }
        let mut phase = match place.matcher {
            // The rewrite directives of the server precede all locations already.
            Matcher::Server => None,
            _ => Some(self.rewrite_phase(place, around)),
        };
        let limit = scope.own_one("limit_except");
        // The last routes of the content are for other methods, for which nginx skips the rewrite directives
        // of the location.
        let asks = limit.is_some_and(|limit| !limit.inner().is_empty());
        let mut content = Vec::new();
        let needs_content = phase.as_ref().is_none_or(|phase| {
            phase.continues || phase.routes.iter().any(|route| matches!(route, PhaseRoute::Rewritten(_)))
        });
        if needs_content {
            let mut section = place.paths.route();
            if let Matcher::Regex(regex, _) = &place.matcher
                && regex.contains("(?!")
            {
                section.comment(format!("The same as {regex}, without looking ahead."));
            }
            content = self.answering(place, around, section);
        } else {
            let is_left = |one: &&NginxDirective| {
                !matches!(one.name.as_str(), "location" | "limit_except") && !self.ledger.is_marked(one.entry)
            };
            for one in scope.own().iter().filter(is_left) {
                self.ledger.needless(one.entry, "the request is answered before it counts");
            }
        }
        let mut routes = Vec::new();
        for route in phase.iter_mut().flat_map(|phase| std::mem::take(&mut phase.routes)) {
            match route {
                PhaseRoute::Whole(mut section) => {
                    // nginx skips the rewrite directives of the location for other methods.
                    limit.into_iter().for_each(|limit| allow_methods(limit, &mut section));
                    routes.push(section);
                }
                PhaseRoute::Rewritten(section) => {
                    let executed = content.iter().filter(|content| !asks || content.get("method").is_some());
                    routes.extend(executed.map(|content| self.with_path(content, &section)));
                }
            }
        }
        if phase.is_none_or(|phase| phase.continues) {
            routes.extend(content);
        } else {
            content.retain(|route| limit.is_some() && route.get("method").is_none());
            match limit {
                Some(limit) if content.is_empty() => {
                    routes.push(self.close_methods(limit, place));
                    self.ledger.differs(limit.entry, NOT_EXECUTED);
                }
                _ => routes.append(&mut content),
            }
        }
        self.finished(routes, scope)
    }

    /// Returns the route of an `internal` location.
    fn internal(&self, internal: &NginxDirective, place: &Place<'d>) -> TomlSection {
        let mut section = place.paths.route();
        section.set("respond", TomlItem::Number(404));
        self.headers(&place.scope, &mut section);
        let reason = match php_pass(place) {
            Some(_) => "clients get 404; other locations run its script as their front script",
            None => "clients get 404; nothing inside the server asks for it either",
        };
        self.ledger.differs(internal.entry, reason);
        for one in place.scope.own() {
            if !self.ledger.is_marked(one.entry) && php_pass(place).is_none() {
                self.ledger
                    .differs(one.entry, "its location is internal: it is of use for `error_page` alone here");
            }
        }
        section
    }

    /// Translates `return`, or the named location that `error_page` assigns to its status.
    pub(crate) fn returned(
        &self,
        one: &NginxDirective,
        (place, around): (&Place<'d>, &ServerLocations<'d>),
        section: &mut TomlSection,
    ) {
        if let Some((page, location)) = error_location(one, place, around) {
            self.ledger.translated(one.entry);
            self.ledger.translated(page.entry);
            if !self.named_location(location, (place, around), section) {
                close(section, self.ledger.open_end(location.entry).unwrap_or_default());
            }
            let inner = around.server.with(location.inner());
            self.access(&inner, section);
            self.headers(&inner, section);
            return;
        }
        self.respond(one, &place.scope, section);
        self.headers(&place.scope, section);
        self.open_ends(place.scope.own(), section);
    }

    /// Returns the routes of a location that neither redirects nor is `internal` without files. `section` has
    /// its paths.
    fn answering(
        &self,
        place: &Place<'d>,
        around: &ServerLocations<'d>,
        mut section: TomlSection,
    ) -> Vec<TomlSection> {
        let scope = &place.scope;
        let fallback = self.content(place, &mut section, around);
        if let Some(internal) = scope.one("internal") {
            // Scripts must not run for files that applications name.
            section.remove("php");
            match section.get("files").is_some() && section.get("proxy").is_none() {
                true => section.set("internal", TomlItem::Flag(true)),
                false => {
                    refuse(&mut section);
                    section.set("respond", TomlItem::Number(404));
                }
            }
            self.ledger.translated(internal.entry);
        }
        let others = scope.own_one("limit_except").and_then(|limit| self.methods(limit, place, &mut section));
        self.access(scope, &mut section);
        self.complete((place, around), fallback, &mut section);
        self.close_untranslated(place, &mut section);
        let mut routes: Vec<TomlSection> = self.other_scripts(place, around, &section).into_iter().collect();
        routes.extend(self.folders_of_others(place, &section));
        routes.push(section);
        if let Some(mut others) = others {
            if others.get("respond").is_none() {
                let fallback = fallback.filter(|_| others.get("proxy").is_some());
                self.complete((place, around), fallback, &mut others);
                self.close_untranslated(place, &mut others);
            }
            routes.push(others);
        }
        routes
    }

    /// Returns a route that refuses directories. It is needed if `try_files` finds directories whose index
    /// pages another location serves differently: the fallback for paths without a file would respond
    /// instead.
    fn folders_of_others(&self, place: &Place<'d>, section: &TomlSection) -> Option<TomlSection> {
        let one = place.scope.own_one("try_files")?;
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
        self.ledger.differs(one.entry, reason);
        let mut refusal = place.paths.route();
        refusal.require("path", TomlItem::text("*/"));
        refusal.comment(reason);
        refusal.set("respond", TomlItem::Number(403));
        Some(refusal)
    }

    /// Refuses all requests of a route if a directive that applies to it is not translated and may restrict
    /// access.
    fn close_untranslated(&self, place: &Place<'d>, section: &mut TomlSection) {
        if section.get("respond").is_some() || section.get("redirect").is_some() {
            return;
        }
        let mut names: Vec<&str> = Vec::new();
        for one in place.scope.levels.iter().flat_map(|level| level.iter()).filter(|one| one.block.is_none())
        {
            if !names.contains(&one.name.as_str()) {
                names.push(&one.name);
            }
        }
        let has = |names: &[&str]| names.iter().any(|name| section.get(name).is_some());
        let counts = |name: &&str| match name.split('_').next() {
            _ if super::known::is_harmless(name) => false,
            // Komainu applies both restrictions, which refuses more.
            _ if *name == "satisfy" => false,
            // These directives have been translated before.
            _ if ["rewrite", "return", "set", "break"].contains(name) => false,
            _ if *name == "try_files" || name.ends_with("_pass") => place.scope.own_one(name).is_some(),
            Some("proxy" | "grpc") => has(&["proxy"]),
            Some("fastcgi" | "uwsgi" | "scgi") => has(&["php", "proxy"]),
            _ => true,
        };
        let all = names.into_iter().filter(counts).flat_map(|name| place.scope.all(name));
        let Some(lost) = all.into_iter().find(|one| self.ledger.is_impossible(one.entry)) else { return };
        let check = self.ledger.open_end(lost.entry).unwrap_or_default();
        refuse(section);
        close(section, check);
    }

    /// Writes response header fields, and comments on required manual work.
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

    /// Adds the directives that every route of a location has.
    pub(crate) fn finished(&self, mut routes: Vec<TomlSection>, scope: &Scope<'d>) -> Vec<TomlSection> {
        // Routes that only rewrite have conditions alone: limits belong to the route that responds.
        for section in routes.iter_mut().filter(|section| !only_rewrites(section)) {
            self.sizes(scope, section);
            self.compression(scope, section);
        }
        routes
    }

    /// Writes the action of a route; returns the named location that responds if there is no file.
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
            if let Some(one) = scope.own_one("try_files") {
                self.ledger.impossible(
                    one.entry,
                    "files beside `proxy_pass` in one location: write `files` with `proxy` in the route",
                );
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
        let inner = around.server.with(location.inner());
        if !self.asks_no_more(&inner, &place.scope) {
            self.ledger.impossible(
                location.entry,
                "it refuses requests that the location of the files lets in: what no file answers is 404",
            );
            return None;
        }
        self.named_location(location, (place, around), section).then_some(location)
    }

    /// Whether a place refuses no request that the other one accepts.
    pub(crate) fn asks_no_more(&self, one: &Scope<'d>, other: &Scope<'d>) -> bool {
        let shown = |scope: &Scope<'d>, names: &[&str]| -> Vec<String> {
            let all = scope.all_of(names);
            all.into_iter().map(|one| format!("{} {}", one.name, one.args.join(" "))).collect()
        };
        let is_open =
            |scope: &Scope<'d>, names: &[&str]| shown(scope, names).iter().all(|one| one.ends_with(" off"));
        let guards: [&[&str]; 5] =
            [&["allow", "deny"], &["auth_basic"], &["auth_basic_user_file"], &["auth_request"], &["satisfy"]];
        let is_same = guards.iter().all(|names| shown(one, names) == shown(other, names));
        let known = |scope: &Scope<'d>| {
            scope
                .own()
                .iter()
                .filter(|one| one.block.is_none() && self.ledger.is_impossible(one.entry))
                .count()
        };
        let needs_nothing = guards[..4].iter().all(|names| is_open(one, names)) && known(one) == 0;
        needs_nothing || is_same && known(one) == 0
    }

    /// Translates a named location to a route of `place`. Returns false if it cannot be translated.
    fn named_location(
        &self,
        location: &'d NginxDirective,
        (place, around): (&Place<'d>, &ServerLocations<'d>),
        section: &mut TomlSection,
    ) -> bool {
        let inner = around.server.with(location.inner()).with_groups(&place.scope.groups);
        let own = |names: &[&str]| inner.own().iter().find(|one| names.contains(&one.name.as_str()));
        self.ledger.translated(location.entry);
        let named = Place {
            scope: inner.clone(),
            matcher: Matcher::Regex(String::new(), false),
            entry: Some(location.entry),
            ..Place::of_server(&inner)
        };
        let is_lost = |one: &&NginxDirective| {
            self.ledger.is_impossible(one.entry) && !super::known::is_harmless(&one.name)
        };
        if let Some(lost) = inner.own().iter().find(is_lost) {
            let reason = format!("`{}` in it is not translated", lost.name);
            self.ledger.impossible(location.entry, reason);
            return false;
        }
        let is_executed = |one: &&NginxDirective| {
            matches!(one.name.as_str(), "rewrite" | "if" | "return" | "break" | "limit_except" | "try_files")
        };
        let executed: Vec<&NginxDirective> = inner.own().iter().filter(is_executed).collect();
        let is_simple = match executed.as_slice() {
            [] => true,
            [one] => one.name == "rewrite" && simple_break(one, &named).is_some(),
            _ => false,
        };
        if is_simple && let Some(pass) = own(&["proxy_pass", "grpc_pass"]) {
            self.proxy(pass, &named, section);
            return section.get("proxy").is_some();
        }
        if executed.is_empty()
            && let Some(pass) = own(&["fastcgi_pass", "uwsgi_pass", "scgi_pass"])
        {
            self.cgi(pass, &inner, section);
            return section.get("proxy").is_some();
        }
        self.ledger.impossible(
            location.entry,
            "a named location counts where it passes requests on (`proxy_pass`, `fastcgi_pass` and the like) and no more",
        );
        section.comment(format!(
            "CHECK: what no file answers belongs to {}: add `app = \"NAME\"` or `proxy` here.",
            location.first()
        ));
        false
    }

    /// Translates `limit_except`: restricts the location's route to its methods, and returns a copy of the
    /// route for all other methods, with the restrictions of `limit_except` instead of the location's own.
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
        if place.scope.own_one("try_files").is_some() {
            // nginx ignores `try_files` for other methods.
            others.retain_in("files", |key| !matches!(key, "try" | "fallback"));
            if others.get("files").is_some() {
                others.set_in("files", "index", TomlItem::List(Vec::new()));
                self.ledger.differs(limit.entry, "folders have no index for other methods");
            }
            others.remove("proxy");
        }
        if place.scope.own_one("rewrite").is_some_and(|one| simple_break(one, place).is_some()) {
            self.ledger.differs(limit.entry, NOT_EXECUTED);
        }
        self.access(&place.scope.with(limit.inner()), &mut others);
        if others.get("respond").is_none() {
            return Some(others);
        }
        let mut refusal = place.paths.route();
        refusal.set("respond", TomlItem::Number(403));
        Some(refusal)
    }

    /// Returns the route that refuses all methods except those of `limit_except`, whose restrictions cannot
    /// be translated.
    fn close_methods(&self, limit: &'d NginxDirective, place: &Place<'d>) -> TomlSection {
        let is_refusal = limit.inner().iter().all(|one| one.name == "deny" && one.first() == "all");
        let mut refusal = place.paths.route();
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

    /// Translates `return`.
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
                if target.contains("request_uri") && scope.rewrites() {
                    self.ledger
                        .differs(one.entry, "`$request_uri` is the path that `rewrite` made, if one did");
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

/// Restricts a route to the methods of `limit_except`, unless it has a condition on methods already.
fn allow_methods(limit: &NginxDirective, section: &mut TomlSection) {
    let methods = TomlItem::texts(limit.args.iter().map(|method| method.to_ascii_uppercase()));
    RouteCondition::new("method", methods).write(section);
}

/// Whether an internal location has files that applications name by `X-Accel-Redirect`.
fn has_internal_files(place: &Place<'_>) -> bool {
    let own = || place.scope.own().iter();
    let is_root = |one: &NginxDirective| matches!(one.name.as_str(), "root" | "alias");
    let is_other = |one: &NginxDirective| {
        one.name.ends_with("_pass") || matches!(one.name.as_str(), "return" | "try_files" | "rewrite" | "if")
    };
    own().any(is_root) && !own().any(is_other)
}

/// Returns the `error_page` that assigns the status of a `return` to a named location whose response is sent
/// unchanged (`=`), and the location.
fn error_location<'d>(
    one: &NginxDirective,
    place: &Place<'d>,
    around: &ServerLocations<'d>,
) -> Option<(&'d NginxDirective, &'d NginxDirective)> {
    let is_it = |page: &&NginxDirective| {
        page.args.split_last().is_some_and(|(target, codes)| {
            let is_passed = codes.last().is_some_and(|last| last == "=");
            is_passed && target.starts_with('@') && codes.iter().any(|code| code == one.first())
        })
    };
    let page = place.scope.all("error_page").into_iter().find(is_it)?;
    Some((page, around.named(page.args.last()?)?))
}
