//! Translation of `proxy_pass` and related directives.

use super::directive::Part;
use super::location_place::{LocationPlace, prefix_pattern};
use super::rewrite::break_prefixes;
use super::scope::{
    CONNECTION_FIELD_REMARK, Scope, TemplateDestination, field_name, is_connection_field, replace_constants,
};
use super::translation::{AppliedDirective, LocationMatcher, Translation, make_unavailable};
use super::tree::NginxDirective;
use super::upstream::server_url;
use crate::draft::{TomlItem, TomlSection};
use crate::expressions::escape_literal;
use crate::findings::Outcome;

/// Range of timeouts that can be set.
pub(super) const TIMEOUT_RANGE_MS: (u64, u64) = (10, 86_400_000);

/// Parts of the URL of `proxy_pass`.
struct PassTarget {
    scheme: &'static str,
    address: String,
    /// Path and query after the address, if any.
    uri: Option<String>,
}

impl PassTarget {
    fn parse(url: &str) -> Option<Self> {
        let (scheme, rest) = match url.split_once("://") {
            Some(("http", rest)) => ("http", rest),
            Some(("https" | "grpcs", rest)) => ("https", rest),
            Some(("grpc", rest)) => ("h2c", rest),
            None => ("h2c", url),
            Some(_) => return None,
        };
        if let Some(path) = rest.strip_prefix("unix:") {
            if path.split(':').next().is_some_and(|path| path.contains('$')) {
                return None;
            }
            let (path, uri) = match path.split_once(':') {
                Some((path, uri)) => (path, Some(uri.to_owned()).filter(|uri| !uri.is_empty())),
                None => (path, None),
            };
            return Some(Self { scheme, address: format!("unix:{path}"), uri });
        }
        let variable = rest.find("${request_uri}").or_else(|| rest.find("${uri}")).unwrap_or(rest.len());
        let end = rest.find('/').unwrap_or(rest.len()).min(variable);
        let uri = Some(rest[end..].to_owned()).filter(|uri| !uri.is_empty());
        (!rest[..end].contains('$')).then(|| Self { scheme, address: rest[..end].to_owned(), uri })
    }
}

impl<'d> Translation<'d> {
    /// Writes the `proxy` of a location that has `proxy_pass` or `grpc_pass`.
    pub(crate) fn write_proxy(
        &self,
        pass: &NginxDirective,
        place: &LocationPlace<'d>,
        section: &mut TomlSection,
    ) {
        let scope = &place.scope;
        let url = replace_constants(pass.first_arg(), scope, 0);
        let Some(target) = PassTarget::parse(&url) else {
            self.ledger.mark_impossible(
                pass.entry,
                "the upstream server depends on the request: write a route with its own `proxy` for each",
            );
            make_unavailable(section);
            return;
        };
        self.count_taken(pass);
        let mut proxy = TomlSection::default();
        let is_group = self.is_upstream(&target.address);
        if !is_group {
            proxy.set_text("to", server_url(&target.address, target.scheme));
        }
        self.translate_host(&target, scope, &mut proxy);
        self.translate_prefixes(pass, &target, place, (&mut proxy, section));
        self.translate_request_headers(scope, &mut proxy);
        if pass.first_arg().contains('$') && scope.effective("proxy_redirect").is_none() {
            // nginx does not rewrite redirects if the address has variables.
            proxy.set("rewrite", TomlItem::Flag(false));
        }
        self.apply(Part::ProxySettings, scope, &mut proxy);
        if target.scheme == "https" {
            self.apply_upstream_verification(scope, is_group.then_some(&target.address), &mut proxy);
            self.apply(Part::UpstreamTls, scope, &mut proxy);
        }
        if is_group {
            let tls = proxy.remove("tls");
            let group = self.use_group(&target.address, target.scheme, tls.as_ref());
            proxy.entries.splice(0..0, group.map(|group| ("upstream".to_owned(), TomlItem::text(group))));
        }
        self.apply(Part::ProxyRequests, scope, &mut proxy);
        self.report_charset(scope);
        self.translate_intercept_errors(scope, "proxy_intercept_errors", section);
        self.translate_cache("proxy", scope, section);
        let item = match proxy.entries.as_slice() {
            [(key, to)] if key == "to" => to.clone(),
            _ => TomlItem::Table(proxy.entries),
        };
        proxy.comments.into_iter().for_each(|comment| section.comment(comment));
        // A route has one action: without a translation of the target, it answers 501.
        if section.get("respond").is_none() {
            section.set("proxy", item);
        }
    }

    /// Translates `Host`, which defaults to that of the upstream server.
    fn translate_host(&self, target: &PassTarget, scope: &Scope<'_>, proxy: &mut TomlSection) {
        let headers =
            [scope.effective_all("proxy_set_header"), scope.effective_all("grpc_set_header")].concat();
        let set = headers.into_iter().find(|one| one.first_arg().eq_ignore_ascii_case("host"));
        set.into_iter().for_each(|one| self.count_taken(one));
        let value = set.map(|one| replace_constants(one.arg_at(1), scope, 0));
        let is_group = self.is_upstream(&target.address);
        let is_unix = target.address.starts_with("unix:");
        match (value.as_deref(), set) {
            (Some("$host" | "${host}"), Some(one)) => {
                self.ledger.mark_different(
                    one.entry,
                    "`Host` is passed on as the client sent it: with its port, a final dot, and in its case",
                );
            }
            (Some("$http_host" | "${http_host}"), Some(_)) => {}
            (Some("$proxy_host" | "${proxy_host}"), Some(_)) => {
                proxy.set_text("host", "upstream");
            }
            (Some(text), Some(_)) if !text.contains('$') && !text.is_empty() => {
                proxy.set_text("host", text);
            }
            (Some(_), Some(one)) => {
                self.ledger
                    .mark_impossible(one.entry, "`host` in `proxy` takes a text, \"pass\" or \"upstream\"");
            }
            (_, None) | (None, _) => match (is_group, is_unix) {
                (_, true) => proxy.set_text("host", "localhost"),
                (true, _) => {
                    proxy.set_text("host", target.address.clone());
                    self.report_group_redirects(&target.address, scope);
                }
                (false, _) => proxy.set_text("host", "upstream"),
            },
        }
    }

    /// Reports redirects to the name of a group, which nginx rewrites to the client's host.
    fn report_group_redirects(&self, group: &str, scope: &Scope<'_>) {
        let blocks = scope.levels.iter().flat_map(|level| level.iter());
        for one in blocks.filter(|one| one.name == "upstream" && one.first_arg() == group) {
            self.ledger.mark_different(
                one.entry,
                format!("redirects of its servers to `http://{group}/` are passed on as they are"),
            );
        }
    }

    /// Translates the replacement of the location's prefix by the path of `proxy_pass`.
    fn translate_prefixes(
        &self,
        pass: &NginxDirective,
        target: &PassTarget,
        place: &LocationPlace<'d>,
        (proxy, section): (&mut TomlSection, &mut TomlSection),
    ) {
        let scope = &place.scope;
        let matcher = &place.matcher;
        let is_whole = |uri: &String| pass.first_arg().contains('$') && !uri.contains('$');
        if target.uri.as_ref().is_some_and(is_whole) && !matches!(matcher, LocationMatcher::Exact(_)) {
            let reason = "beside variables, its path replaces the whole target: the route is closed (403)";
            self.ledger.mark_impossible(pass.entry, reason);
            return;
        }
        let rewrite = scope.innermost_last("rewrite").filter(|one| one.arg_at(2) == "break");
        if let Some((rewrite, (strip, add))) =
            rewrite.and_then(|one| Some((one, break_prefixes(one, place)?)))
        {
            self.ledger.mark_different(
                rewrite.entry,
                "paths in redirects and cookies of the upstream server are changed back (`rewrite`)",
            );
            if matches!(matcher, LocationMatcher::Prefix(path, _) if *path == strip)
                && !rewrite.first_arg().contains("/?(")
            {
                self.ledger.mark_different(rewrite.entry, format!("`{strip}` without a `/` becomes `/`"));
            }
            for (key, text) in [("strip_prefix", strip), ("add_prefix", add)] {
                if !text.is_empty() {
                    proxy.set_text(key, text);
                }
            }
            return;
        }
        let Some(uri) = &target.uri else {
            self.keep_encoded_slashes(place, section);
            return;
        };
        if uri.contains('$') {
            self.translate_request_target(pass, uri, scope, section);
            return;
        }
        let Some(replaced) = matcher.replaced_part() else {
            self.ledger.mark_different(
                pass.entry,
                "the path of `proxy_pass` does not count in a location with an expression",
            );
            return;
        };
        if uri.contains(['?', '#']) {
            self.ledger.mark_impossible(pass.entry, "a query cannot be added: only the path is replaced");
        }
        let uri = uri.split(['?', '#']).next().unwrap_or("/");
        let is_exact = matches!(matcher, LocationMatcher::Exact(_));
        let strip = replaced.trim_end_matches('/');
        let add = uri.trim_end_matches('/');
        if strip == add && replaced.ends_with('/') == uri.ends_with('/') {
            if !strip.is_empty() {
                let what =
                    "redirects to other paths of the upstream server are changed to the client's host too";
                self.ledger.mark_different(pass.entry, what);
            }
            return;
        }
        let is_path = uri.starts_with('/') && uri.bytes().all(|byte| byte.is_ascii_graphic());
        if is_exact && is_path && section.get("rewrite").is_none() {
            // Prefixes are replaced by whole segments, which would lose a final `/`.
            section.set_text("rewrite", uri);
            self.ledger.mark_different(
                pass.entry,
                "paths in redirects and cookies of the upstream server are passed on as they are",
            );
            return;
        }
        let both_end = replaced.ends_with('/') && uri.ends_with('/');
        if !is_exact && !both_end {
            // Prefixes are replaced by whole segments: use a group for the rest of the path.
            let is_plain =
                section.get("path").is_none_or(|path| path.as_text() == Some(&prefix_pattern(replaced)));
            let has_groups = !scope.groups.is_empty() || section.get("rewrite").is_some();
            if is_path && is_plain && !has_groups {
                section.set("path", TomlItem::Text(format!("~ ^{}(.*)$", escape_literal(replaced))));
                section.set_text("rewrite", format!("{uri}$1"));
                if uri.ends_with('/') {
                    self.ledger.mark_different(
                        pass.entry,
                        "nginx joins the paths with two slashes, here there is one",
                    );
                }
                self.ledger.mark_different(
                    pass.entry,
                    "paths in redirects and cookies of the upstream server are passed on as they are",
                );
                return;
            }
            self.ledger.mark_impossible(
                pass.entry,
                "either the location or `proxy_pass` does not end with `/`: only whole segments can be replaced here",
            );
        }
        if !strip.is_empty() {
            proxy.set_text("strip_prefix", strip);
        }
        if !add.is_empty() {
            proxy.set_text("add_prefix", add);
        }
        self.ledger
            .mark_different(pass.entry, "paths in cookies are changed as those in redirects are (`rewrite`)");
    }

    /// Translates the path of `proxy_pass http://app/x/$1` to `rewrite`.
    fn translate_request_target(
        &self,
        pass: &NginxDirective,
        uri: &str,
        scope: &Scope<'_>,
        section: &mut TomlSection,
    ) {
        let plain = uri.replace(['{', '}'], "");
        let whole = ["$request_uri", "$uri$is_args$args", "$uri$is_args$query_string", "$uri"];
        if whole.contains(&plain.as_str()) {
            if plain == "$uri" {
                self.ledger.mark_different(pass.entry, "the query is passed on too");
            }
            if scope.has_rewrites() {
                self.ledger.mark_different(
                    pass.entry,
                    "a path that was rewritten is passed on, not the one that was sent",
                );
            }
            return;
        }
        let ends = ["$is_args$args", "$is_args$query_string", "?$args", "?$query_string"];
        let text = match ends.iter().find_map(|end| plain.strip_suffix(end)) {
            Some(path) => path.to_owned(),
            // nginx sends exactly this target, without the query of the request.
            None if plain.contains('?') => plain,
            None => format!("{plain}?"),
        };
        if let Some(to) = self.translate_template(pass, &text, scope, TemplateDestination::Target) {
            section.set_text("rewrite", to);
        } else {
            make_unavailable(section);
        }
    }

    fn translate_request_headers(&self, scope: &Scope<'_>, proxy: &mut TomlSection) {
        let mut set: Vec<(String, TomlItem)> = Vec::new();
        let mut added: Vec<(String, TomlItem)> = Vec::new();
        let mut removed = Vec::new();
        for one in [scope.effective_all("proxy_set_header"), scope.effective_all("grpc_set_header")].concat()
        {
            let name = one.first_arg();
            let value = replace_constants(one.arg_at(1), scope, 0);
            let bare = value.replace(['{', '}'], "");
            let lower = name.to_ascii_lowercase();
            if lower == "host" {
                continue;
            }
            self.count_taken(one);
            match (lower.as_str(), bare.as_str()) {
                ("connection" | "upgrade", _) => self.not_needed(one,
                    "not needed: WebSockets are passed on, and connections are kept (`upgrades` in `proxy`)",
                ),
                ("content-length", "") => {
                    self.ledger.mark_different(one.entry, "the content of a request is passed on, with its length")
                }
                (name, _) if is_connection_field(name) => self.not_needed(one, CONNECTION_FIELD_REMARK),
                ("x-forwarded-for", "$proxy_add_x_forwarded_for") => self.ledger.mark_different(
                    one.entry,
                    "it is always sent; what clients send in it counts only from `trusted_proxies`, others cannot make it up",
                ),
                ("x-forwarded-for", "$remote_addr") | ("x-forwarded-proto", "$scheme") | ("x-forwarded-host", "$host" | "$http_host") => {
                    self.not_needed(one, "not needed: it is always sent");
                }
                (_, variable) if is_auth_response_field(scope, name, variable) => {
                    self.not_needed(one, "not needed: `response_headers` of `auth` copies the field");
                }
                (_, "") => {
                    removed.push(TomlItem::text(name));
                }
                _ => {
                    if let Some(value) = self.translate_template(one, &value, scope, TemplateDestination::Header) {
                        if value.contains("$remote_user") {
                            self.ledger.mark_different(one.entry, "`$remote_user` is a user that `auth` knows");
                        }
                        let is_there = |fields: &[(String, TomlItem)]| {
                            fields.iter().any(|(known, _)| known.eq_ignore_ascii_case(name))
                        };
                        match (is_there(&set), is_there(&added)) {
                            (false, _) => set.push((name.to_owned(), TomlItem::Text(value))),
                            (true, false) => added.push((name.to_owned(), TomlItem::Text(value))),
                            (true, true) => self.ledger.mark_impossible(one.entry, "a field is sent at most twice (`set` and `add` of `request_headers`)"),
                        }
                    }
                }
            }
        }
        removed.retain(|name: &TomlItem| {
            !set.iter().any(|(known, _)| name.as_text().is_some_and(|name| known.eq_ignore_ascii_case(name)))
        });
        if !set.is_empty() {
            proxy.set_in("request_headers", "set", TomlItem::Table(set));
        }
        if !added.is_empty() {
            proxy.set_in("request_headers", "add", TomlItem::Table(added));
        }
        if !removed.is_empty() {
            proxy.set_in("request_headers", "remove", TomlItem::List(removed));
        }
    }

    /// Writes whether the certificate of the upstream server is verified: by default it is not. Those of a group have its name.
    fn apply_upstream_verification(
        &self,
        scope: &Scope<'_>,
        group: Option<&String>,
        proxy: &mut TomlSection,
    ) {
        let verify = self.take(scope, "proxy_ssl_verify").or_else(|| self.take(scope, "grpc_ssl_verify"));
        if verify.is_some_and(|one| one.first_arg() == "on") {
            let is_name =
                |text: &&String| text.chars().all(|c| c.is_ascii_alphanumeric() || ".-".contains(c));
            if let Some(name) = group.filter(is_name) {
                proxy.set_in("tls", "name", TomlItem::text(name));
            }
            return;
        }
        proxy.set_in("tls", "verify", TomlItem::Flag(false));
        proxy.comment(
            "nginx does not verify the upstream server's certificate: remove `verify = false` if it has a valid one.",
        );
    }
}

pub(super) fn proxy_hide_header(one: &AppliedDirective<'_>, proxy: &mut TomlSection) -> Outcome {
    if is_connection_field(one.first_arg()) {
        return Outcome::not_needed(CONNECTION_FIELD_REMARK);
    }
    hide_header(one, proxy)
}

/// Removes a field from responses of the upstream server.
pub(super) fn hide_header(one: &AppliedDirective<'_>, proxy: &mut TomlSection) -> Outcome {
    proxy.push_in("response_headers", "remove", TomlItem::text(one.first_arg()));
    Outcome::TRANSLATED
}

pub(super) fn proxy_cookie_domain(one: &AppliedDirective<'_>, proxy: &mut TomlSection) -> Outcome {
    match (one.first_arg(), one.directive.arg_at(1)) {
        ("off", _) => Outcome::TRANSLATED,
        (from, to) if !from.starts_with('~') && !from.contains('$') && !to.contains('$') => {
            proxy.set_in("cookie_domains", from.trim_start_matches('.'), TomlItem::text(to));
            Outcome::TRANSLATED
        }
        _ => Outcome::not_possible("`cookie_domains` takes domains as they are"),
    }
}

pub(super) fn proxy_redirect(one: &AppliedDirective<'_>, proxy: &mut TomlSection) -> Outcome {
    match one.first_arg() {
        "off" => {
            proxy.set("rewrite", TomlItem::Flag(false));
            Outcome::differs("with `rewrite = false` cookies keep their paths too")
        }
        "default" => Outcome::TRANSLATED,
        _ => Outcome::differs(
            "addresses of upstream servers and their paths are changed to the client's by themselves, others are not",
        ),
    }
}

/// The timeout of connecting to a server: of `proxy_pass`, of the other protocols, and of streams.
pub(super) fn connect_timeout(one: &AppliedDirective<'_>, proxy: &mut TomlSection) -> Outcome {
    one.write_time(proxy, ("timeouts", "connect"), TIMEOUT_RANGE_MS)
}

pub(super) fn read_timeout(one: &AppliedDirective<'_>, proxy: &mut TomlSection) -> Outcome {
    one.write_time(proxy, ("timeouts", "head"), TIMEOUT_RANGE_MS);
    one.write_time(proxy, ("timeouts", "between"), TIMEOUT_RANGE_MS)
}

/// Is also the timeout of WebSockets.
pub(super) fn proxy_read_timeout(one: &AppliedDirective<'_>, proxy: &mut TomlSection) -> Outcome {
    let outcome = read_timeout(one, proxy);
    let mut fields = one.scope.effective_all("proxy_set_header").into_iter();
    if fields.any(|field| field.first_arg().eq_ignore_ascii_case("upgrade")) {
        one.write_time(proxy, ("timeouts", "tunnel"), TIMEOUT_RANGE_MS);
    }
    outcome
}

pub(super) fn proxy_send_timeout(one: &AppliedDirective<'_>, _: &mut TomlSection) -> Outcome {
    let read = one.scope.effective(&one.directive.name.replace("send", "read"));
    if read.is_some_and(|read| read.first_arg() == one.first_arg()) {
        return Outcome::TRANSLATED;
    }
    Outcome::differs("`between` counts for both directions, and is that of `proxy_read_timeout` (or 60 s)")
}

pub(super) fn proxy_ssl_trusted_certificate(one: &AppliedDirective<'_>, proxy: &mut TomlSection) -> Outcome {
    proxy.set_in("tls", "ca", one.path());
    Outcome::TRANSLATED
}

pub(super) fn proxy_ssl_certificate(one: &AppliedDirective<'_>, proxy: &mut TomlSection) -> Outcome {
    proxy.set_in("tls", "certificate", one.path());
    Outcome::TRANSLATED
}

pub(super) fn proxy_ssl_certificate_key(one: &AppliedDirective<'_>, proxy: &mut TomlSection) -> Outcome {
    proxy.set_in("tls", "key", one.path());
    Outcome::TRANSLATED
}

pub(super) fn proxy_ssl_name(one: &AppliedDirective<'_>, proxy: &mut TomlSection) -> Outcome {
    if one.first_arg().contains('$') {
        return Outcome::not_possible("`name` in `tls` is a text; it is the URL's host by default");
    }
    proxy.set_in("tls", "name", TomlItem::text(one.first_arg()));
    Outcome::TRANSLATED
}

pub(super) fn proxy_next_upstream(one: &AppliedDirective<'_>, proxy: &mut TomlSection) -> Outcome {
    if one.first_arg() == "off" {
        proxy.set("retry", TomlItem::Flag(false));
    } else {
        let words = &one.directive.args;
        let status = |word: &String| word.strip_prefix("http_")?.parse().ok().map(TomlItem::Number);
        let statuses: Vec<TomlItem> = words.iter().filter_map(status).collect();
        if !statuses.is_empty() {
            proxy.set_in("retry", "statuses", TomlItem::List(statuses));
        }
        if words.iter().any(|word| word == "non_idempotent") {
            proxy.set_in("retry", "non_idempotent", TomlItem::Flag(true));
        }
    }
    Outcome::differs("at most 20 of 100 requests are sent again (`budget` in `retry`)")
}

pub(super) fn proxy_next_upstream_tries(one: &AppliedDirective<'_>, proxy: &mut TomlSection) -> Outcome {
    match one.first_arg().parse::<u64>() {
        Ok(count @ 1..=100) if proxy.get("retry") != Some(&TomlItem::Flag(false)) => {
            proxy.set_in("retry", "attempts", TomlItem::Number(count));
            Outcome::TRANSLATED
        }
        _ => Outcome::differs("`attempts` in `retry` is 3"),
    }
}

const BUFFERED_REMARK: &str = "bodies are buffered in so far as the other side is slow";

pub(super) fn proxy_buffering(one: &AppliedDirective<'_>, _: &mut TomlSection) -> Outcome {
    Outcome::not_needed(if one.is_on() {
        BUFFERED_REMARK
    } else {
        "not needed: each part of a response is passed on as it comes"
    })
}

pub(super) fn proxy_request_buffering(one: &AppliedDirective<'_>, _: &mut TomlSection) -> Outcome {
    Outcome::not_needed(if one.is_on() {
        BUFFERED_REMARK
    } else {
        "a request whose body is announced and fits into `read_ahead` waits until it is complete"
    })
}

pub(super) fn underscores_in_headers(one: &AppliedDirective<'_>, proxy: &mut TomlSection) -> Outcome {
    if one.is_on() {
        proxy.set("underscores", TomlItem::Flag(true));
    }
    Outcome::TRANSLATED
}

/// Requests whose client disconnects: of `proxy_pass` and of the other protocols.
pub(super) fn ignore_client_abort(one: &AppliedDirective<'_>, proxy: &mut TomlSection) -> Outcome {
    if one.is_on() {
        proxy.set("client_abort", TomlItem::text("ignore"));
    }
    Outcome::TRANSLATED
}

/// Whether a variable holds the field of this name in the response to `auth_request`.
fn is_auth_response_field(scope: &Scope<'_>, name: &str, variable: &str) -> bool {
    let is_it = |one: &NginxDirective| {
        let field = one.arg_at(1).strip_prefix("$upstream_http_").unwrap_or("");
        one.first_arg() == variable && field_name(field).eq_ignore_ascii_case(name)
    };
    scope.effective_all("auth_request_set").into_iter().any(is_it)
}
