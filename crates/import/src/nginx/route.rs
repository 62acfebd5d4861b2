//! One location as routes.

use super::files::Last;
use super::scope::{Scope, TemplateUse, constants, field_name};
use super::tree::NginxDirective;
use super::work::{Matcher, Translation, unavailable};
use crate::draft::{TomlItem, TomlSection};
use crate::paths::{below, from_literal, from_regex};

/// A location with its paths.
pub(crate) struct Place<'d> {
    pub(crate) scope: Scope<'d>,
    pub(crate) matcher: Matcher,
    /// Patterns of its paths; none for all.
    pub(crate) paths: Vec<String>,
}

/// Statuses that `respond` can have.
const STATUSES: std::ops::RangeInclusive<u64> = 200..=599;

/// A route of these paths.
fn route(paths: &[String]) -> TomlSection {
    let mut section = TomlSection::default();
    if !paths.is_empty() && paths != ["/*"] && paths != ["*"] {
        section.set("path", TomlItem::texts(paths.iter().cloned()));
    }
    section
}

impl<'d> Translation<'d> {
    /// The routes of a location, in the order in which they have to stand.
    pub(crate) fn routes(
        &self,
        place: &Place<'d>,
        named: &dyn Fn(&str) -> Option<&'d NginxDirective>,
    ) -> Vec<TomlSection> {
        let scope = &place.scope;
        let mut routes = self.rewrites(place);
        let is_whole = |section: &TomlSection| {
            section.get("path") == route(&place.paths).get("path") && section.entries.len() == 2
        };
        if scope.own().iter().any(|one| one.name == "rewrite") && routes.last().is_some_and(is_whole) {
            // Nothing of the location answers after that.
            return self.finished(routes, scope);
        }
        let mut section = route(&place.paths);
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
            self.ledger
                .differs(internal.entry, "clients get 404; nothing inside the server asks for it either");
            for one in scope.own() {
                if !self.ledger.is_marked(one.entry) {
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
            self.open_ends(scope.own(), &mut section);
            routes.push(section);
            return self.finished(routes, scope);
        }
        self.content(place, &mut section, named);
        if let Some(internal) = internal {
            section.set("internal", TomlItem::Flag(true));
            self.ledger.translated(internal.entry);
        }
        let methods = scope.own_one("limit_except");
        let refusal = methods.and_then(|one| self.methods(one, place, &mut section));
        self.access(scope, &mut section);
        self.headers(scope, &mut section);
        self.open_ends(scope.own(), &mut section);
        routes.push(section);
        routes.extend(refusal);
        self.finished(routes, scope)
    }

    /// What every route of a location has.
    pub(crate) fn finished(&self, mut routes: Vec<TomlSection>, scope: &Scope<'d>) -> Vec<TomlSection> {
        for section in &mut routes {
            self.sizes(scope, section);
            self.compression(scope, section);
        }
        routes
    }

    fn content(
        &self,
        place: &Place<'d>,
        section: &mut TomlSection,
        named: &dyn Fn(&str) -> Option<&'d NginxDirective>,
    ) {
        let scope = &place.scope;
        let own = |names: &[&str]| scope.own().iter().find(|one| names.contains(&one.name.as_str()));
        if let Some(pass) = own(&["proxy_pass", "grpc_pass"]) {
            self.proxy(pass, scope, &place.matcher, section);
            if let Last::Named(_) = self.tried(place, named) {
                section.comment("CHECK: `try_files` beside `proxy_pass` is left out.");
            }
            return;
        }
        if let Some(pass) = own(&["fastcgi_pass"]) {
            self.ledger.impossible(
                pass.entry,
                "write one route with `files` and `php = \"unix:…\"` in place of this location: docs/php.md; the route answers 501 until then",
            );
            unavailable(section);
            return;
        }
        if let Some(pass) = own(&["uwsgi_pass", "scgi_pass"]) {
            self.ledger.impossible(
                pass.entry,
                "write `proxy = \"uwsgi://…\"` or `\"scgi://…\"`, or let Komainu run the application itself (`[apps.NAME]`, such as `wsgi = \"shop.wsgi:application\"`)",
            );
            unavailable(section);
            return;
        }
        if let Some(one) = own(&["stub_status"]) {
            self.ledger.impossible(
                one.entry,
                "`[control] listen` serves `/metrics` and `/v1/status` at an address of its own",
            );
            unavailable(section);
            return;
        }
        if scope.own().iter().any(|one| {
            one.name.contains("_by_lua")
                || matches!(one.name.as_str(), "memcached_pass" | "js_content" | "perl")
        }) {
            unavailable(section);
            return;
        }
        if let Last::Named(location) = self.files(scope, &place.matcher, section, named) {
            let inner = scope.with(location.inner());
            let Some(pass) = inner.own_one("proxy_pass").or_else(|| inner.own_one("grpc_pass")) else {
                self.ledger.impossible(
                    location.entry,
                    "a named location counts where it has `proxy_pass` and no more",
                );
                section.comment(format!(
                    "CHECK: what no file answers belongs to {}: add `app = \"NAME\"` or `proxy` here.",
                    location.first()
                ));
                return;
            };
            self.ledger.translated(location.entry);
            self.proxy(pass, &inner, &Matcher::Regex(String::new(), false), section);
        }
    }

    /// `try_files` beside another action.
    fn tried(&self, place: &Place<'d>, named: &dyn Fn(&str) -> Option<&'d NginxDirective>) -> Last<'d> {
        let Some(one) = place.scope.own_one("try_files") else { return Last::Files };
        self.ledger.impossible(
            one.entry,
            "files beside `proxy_pass` in one location: write `files` with `proxy` in the route",
        );
        named(one.args.last().map_or("", String::as_str)).map_or(Last::Files, Last::Named)
    }

    /// `limit_except`: the methods of the route, and a route that refuses all others.
    fn methods(
        &self,
        one: &'d NginxDirective,
        place: &Place<'d>,
        section: &mut TomlSection,
    ) -> Option<TomlSection> {
        let inner = place.scope.with(one.inner());
        let mut refusal = route(&place.paths);
        self.access(&inner, &mut refusal);
        if refusal.get("respond").is_none() {
            self.ledger.impossible(one.entry, "only `deny all` for other methods can be translated");
            return None;
        }
        section.set("method", TomlItem::texts(one.args.iter().cloned()));
        self.ledger.translated(one.entry);
        Some(refusal)
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
                section.set("respond", TomlItem::Number(code));
            }
            (_, Some(body)) if STATUSES.contains(&code) => {
                let resolved = constants(body, scope, 0);
                let body = if resolved.contains('$') { body.to_owned() } else { resolved };
                if body.contains('$') {
                    self.ledger.impossible(one.entry, "the body is a text without variables");
                } else {
                    self.ledger.translated(one.entry);
                }
                section.set_in("respond", "status", TomlItem::Number(code));
                section.set_in("respond", "body", TomlItem::Text(body));
                let kind = scope.one("default_type").map_or("text/plain", |one| one.first());
                section.set_in("respond", "type", TomlItem::text(kind));
            }
            _ => {
                self.ledger.impossible(one.entry, "the status is not between 200 and 599");
                unavailable(section);
            }
        }
    }

    /// `rewrite` and `if`: routes before that of the location itself.
    pub(crate) fn rewrites(&self, place: &Place<'d>) -> Vec<TomlSection> {
        let mut routes = Vec::new();
        for one in place.scope.own() {
            match one.name.as_str() {
                "rewrite" => routes.extend(self.rewrite(one, place)),
                "if" => routes.extend(self.condition(one, place)),
                "set" => self.ledger.needless(one.entry, "its value stands where the variable was used"),
                "break" => self.ledger.needless(one.entry, "there is nothing to end here"),
                _ => {}
            }
        }
        routes
    }

    fn rewrite(&self, one: &NginxDirective, place: &Place<'d>) -> Option<TomlSection> {
        let (from, to, flag) = (one.first(), one.arg(1), one.arg(2));
        let status = match flag {
            "permanent" => 301,
            _ if flag == "redirect"
                || to.starts_with("http://")
                || to.starts_with("https://")
                || to.starts_with("$scheme") =>
            {
                302
            }
            "break" if place.scope.own_one("proxy_pass").is_some() => return None,
            _ => {
                self.ledger.impossible(
                    one.entry,
                    "paths are not changed inside the server: use `redirect`, `strip_prefix` and `add_prefix`, or `try` and `fallback` of `files`",
                );
                return None;
            }
        };
        let faulty = |reason: &str| {
            self.ledger.impossible(
                one.entry,
                format!("{reason}: write `[[site.route]]` with `path` and `redirect`"),
            );
        };
        let (pattern, to) = match redirect_of(from, to) {
            Ok(found) => found,
            Err(reason) => {
                faulty(&reason);
                return None;
            }
        };
        // The query is added, unless the target ends with a `?`.
        let to = match to.strip_suffix('?') {
            Some(to) => to.to_owned(),
            None if to.contains("$request_uri") || to.contains('?') => to,
            None => format!("{to}$is_args$args"),
        };
        let to = self.template(one, &to, &place.scope, TemplateUse::Target)?;
        let paths = match (pattern, &place.matcher) {
            (None, _) => place.paths.clone(),
            (Some(pattern), Matcher::Prefix(prefix, _)) => {
                let paths = below(prefix, &pattern);
                if paths != [pattern] && to.contains('\u{2}') || paths.is_empty() {
                    faulty("its expression and its location have different paths");
                    return None;
                }
                paths
            }
            (Some(pattern), _) => vec![pattern],
        };
        let mut section = route(&paths);
        section.set("redirect", redirect(&to.replace('\u{2}', "$rest").replace('\u{3}', "$path"), status));
        self.ledger.translated(one.entry);
        Some(section)
    }

    /// `if` with `return` in it, where the condition is one that routes have.
    fn condition(&self, one: &'d NginxDirective, place: &Place<'d>) -> Vec<TomlSection> {
        let condition: Vec<&str> = one
            .args
            .iter()
            .map(|word| word.trim_start_matches('(').trim_end_matches(')').trim())
            .filter(|word| !word.is_empty())
            .collect();
        let inner = place.scope.with(one.inner());
        let Some(answer) = inner.own_one("return") else {
            self.ledger.impossible(
                one.entry,
                "only `return` in `if` can be translated: write a route with the condition",
            );
            return self.lost(one);
        };
        let found = match condition.as_slice() {
            [variable, operator, value] => conditions(variable, operator, value),
            _ => Err("a route cannot ask for it"),
        };
        let (conditions, note) = match found {
            Ok(found) => found,
            Err(reason) => {
                self.ledger.impossible(
                    one.entry,
                    format!("{reason}: routes have conditions for path, method, header and query"),
                );
                return self.lost(one);
            }
        };
        match note {
            Some(note) => self.ledger.differs(one.entry, note),
            None => self.ledger.translated(one.entry),
        }
        let one_route = |(key, item): (&str, TomlItem)| {
            let mut section = route(&place.paths);
            section.set(key, item);
            self.respond(answer, &inner, &mut section);
            section
        };
        conditions.into_iter().map(one_route).collect()
    }

    /// Reports what stands in an `if` that was not translated.
    fn lost(&self, one: &NginxDirective) -> Vec<TomlSection> {
        for inner in one.inner() {
            self.ledger.impossible(inner.entry, "it belongs to an `if` that was not translated");
        }
        Vec::new()
    }
}

/// The action of a redirect.
pub(crate) fn redirect(to: &str, status: u64) -> TomlItem {
    match status {
        302 => TomlItem::text(to),
        _ => TomlItem::Table(vec![
            ("to".to_owned(), TomlItem::text(to)),
            ("status".to_owned(), TomlItem::Number(status)),
        ]),
    }
}

/// The path pattern and the target of a `rewrite` that redirects. In the target `\u{2}` stands for what a final `*` matched,
/// `\u{3}` for the whole path.
fn redirect_of(from: &str, to: &str) -> Result<(Option<String>, String), String> {
    let captures = (1..=9).any(|digit| to.contains(&format!("${digit}")));
    let body = from.strip_prefix('^');
    if matches!(
        from,
        "^" | "^(.*)$" | "^(.*)" | "(.*)" | "^/(.*)$" | "^/(.*)" | "^.*$" | "^.*" | ".*" | "^/.*$"
    ) {
        let to = match from.contains("/(") {
            true => to.replace("/$1", "\u{3}").replace("$1", "\u{2}"),
            false => to.replace("$1", "\u{3}"),
        };
        let is_rest = to.contains('\u{2}');
        return Ok((is_rest.then(|| "/*".to_owned()), to));
    }
    if !captures {
        let set = from_regex(from, false)?;
        return match (set.differs, set.patterns.as_slice()) {
            (None, [one]) => Ok((Some(one.clone()), to.to_owned())),
            _ => Err("its expression is no path pattern".to_owned()),
        };
    }
    let head = body
        .and_then(|body| body.trim_end_matches('$').strip_suffix("(.*)"))
        .map(|head| head.replace("\\.", ".").replace("\\-", "-").replace("\\/", "/"));
    let pattern = head
        .filter(|head| !head.contains(['(', '[', '|', '+', '?', '\\']))
        .and_then(|head| from_literal(&head, true));
    match pattern {
        Some(pattern) if !to.contains("$2") && pattern.ends_with("/*") => {
            Ok((Some(pattern), to.replace("$1", "\u{2}")))
        }
        _ => Err("only a `(.*)` at the end can be kept (`$rest`)".to_owned()),
    }
}

type IfConditions<'a> = (Vec<(&'static str, TomlItem)>, Option<&'a str>);

/// The conditions of a route that an `if` has.
fn conditions<'a>(variable: &str, operator: &str, value: &str) -> Result<IfConditions<'a>, &'a str> {
    let name = variable.trim_start_matches('$');
    let table = |key: &str, value: &str| TomlItem::Table(vec![(key.to_owned(), TomlItem::text(value))]);
    let values: Vec<String> = match operator {
        "=" => vec![value.to_owned()],
        "~" | "~*" => {
            let is_plain = |word: &str| !word.contains(['[', '\\', '+', '?', '{', '(', ')', '*', '.']);
            let body = value.trim_start_matches('^').trim_end_matches('$');
            let body = body.strip_prefix('(').and_then(|body| body.strip_suffix(')')).unwrap_or(body);
            let words: Vec<&str> = body.split('|').collect();
            if !words.iter().all(|word| is_plain(word) && !word.is_empty()) {
                return Err("its expression is no pattern");
            }
            let (start, end) =
                (if value.starts_with('^') { "" } else { "*" }, if value.ends_with('$') { "" } else { "*" });
            words.iter().map(|word| format!("{start}{word}{end}")).collect()
        }
        _ => return Err("a route cannot ask for what is not so"),
    };
    let note = (operator == "~*").then_some("upper and lower case differ in the value");
    if name == "request_method" {
        let is_plain = values.iter().all(|value| !value.contains('*'));
        return match is_plain {
            true => Ok((vec![("method", TomlItem::texts(values))], None)),
            false => Err("a method is a word"),
        };
    }
    let key = match (name.strip_prefix("http_"), name.strip_prefix("arg_")) {
        (Some(field), _) => ("header", field_name(field)),
        (_, Some(parameter)) => ("query", parameter.to_owned()),
        _ => return Err("a route cannot ask for this variable"),
    };
    Ok((values.iter().map(|value| (key.0, table(&key.1, value))).collect(), note))
}
