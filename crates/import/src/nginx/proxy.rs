//! Translation of `proxy_pass` and related directives.

use super::place::{Place, prefix_pattern};
use super::rewrite::simple_break;
use super::scope::{
    OF_CONNECTION, Scope, TemplateUse, constants, duration_within, field_name, is_of_connection, milliseconds,
};
use super::tree::NginxDirective;
use super::upstream::server_url;
use super::work::{Matcher, Translation, unavailable};
use crate::draft::{TomlItem, TomlSection};
use crate::expressions::quoted;

const DAY_MS: u64 = 86_400_000;

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
    pub(crate) fn proxy(&self, pass: &NginxDirective, place: &Place<'d>, section: &mut TomlSection) {
        let scope = &place.scope;
        let url = constants(pass.first(), scope, 0);
        let Some(target) = PassTarget::parse(&url) else {
            self.ledger.impossible(
                pass.entry,
                "the upstream server depends on the request: write a route with its own `proxy` for each",
            );
            unavailable(section);
            return;
        };
        self.ledger.translated(pass.entry);
        let mut proxy = TomlSection::default();
        match self.group(&target.address, target.scheme) {
            Some(group) => proxy.set_text("upstream", group),
            None => proxy.set_text("to", server_url(&target.address, target.scheme)),
        }
        self.host(&target, scope, &mut proxy);
        self.prefixes(pass, &target, place, (&mut proxy, section));
        self.request_headers(scope, &mut proxy);
        if pass.first().contains('$') && scope.one("proxy_redirect").is_none() {
            // nginx does not rewrite redirects if the address has variables.
            proxy.set("rewrite", TomlItem::Flag(false));
        }
        self.response_fields(scope, &mut proxy);
        self.proxy_timeouts(scope, &mut proxy);
        self.upstream_tls(&target, scope, &mut proxy);
        self.retries(scope, &mut proxy);
        self.proxy_rest(scope, &mut proxy);
        self.charset_of_files(scope);
        self.intercepts(scope.one("proxy_intercept_errors"), section);
        self.cache("proxy", scope, section);
        let item = match proxy.entries.as_slice() {
            [(key, to)] if key == "to" => to.clone(),
            _ => TomlItem::Table(proxy.entries),
        };
        proxy.comments.into_iter().for_each(|comment| section.comment(comment));
        section.set("proxy", item);
    }

    /// Translates `Host`, which defaults to that of the upstream server.
    fn host(&self, target: &PassTarget, scope: &Scope<'_>, proxy: &mut TomlSection) {
        let headers = [scope.all("proxy_set_header"), scope.all("grpc_set_header")].concat();
        let set = headers.into_iter().find(|one| one.first().eq_ignore_ascii_case("host"));
        let value = set.map(|one| constants(one.arg(1), scope, 0));
        let is_group = self.is_upstream(&target.address);
        let is_unix = target.address.starts_with("unix:");
        match (value.as_deref(), set) {
            (Some("$host" | "${host}"), Some(one)) => {
                self.ledger.differs(
                    one.entry,
                    "`Host` is passed on as the client sent it: with its port, a final dot, and in its case",
                );
            }
            (Some("$http_host" | "${http_host}"), Some(one)) => self.ledger.translated(one.entry),
            (Some("$proxy_host" | "${proxy_host}"), Some(one)) => {
                self.ledger.translated(one.entry);
                proxy.set_text("host", "upstream");
            }
            (Some(text), Some(one)) if !text.contains('$') && !text.is_empty() => {
                self.ledger.translated(one.entry);
                proxy.set_text("host", text);
            }
            (Some(_), Some(one)) => {
                self.ledger.impossible(one.entry, "`host` in `proxy` takes a text, \"pass\" or \"upstream\"");
            }
            (_, None) | (None, _) => match (is_group, is_unix) {
                (_, true) => proxy.set_text("host", "localhost"),
                (true, _) => {
                    proxy.set_text("host", target.address.clone());
                    self.redirects_of_group(&target.address, scope);
                }
                (false, _) => proxy.set_text("host", "upstream"),
            },
        }
    }

    /// Reports redirects to the name of a group, which nginx rewrites to the client's host.
    fn redirects_of_group(&self, group: &str, scope: &Scope<'_>) {
        let blocks = scope.levels.iter().flat_map(|level| level.iter());
        for one in blocks.filter(|one| one.name == "upstream" && one.first() == group) {
            self.ledger.differs(
                one.entry,
                format!("redirects of its servers to `http://{group}/` are passed on as they are"),
            );
        }
    }

    /// Translates the replacement of the location's prefix by the path of `proxy_pass`.
    fn prefixes(
        &self,
        pass: &NginxDirective,
        target: &PassTarget,
        place: &Place<'d>,
        (proxy, section): (&mut TomlSection, &mut TomlSection),
    ) {
        let (scope, matcher) = (&place.scope, &place.matcher);
        let rewrite = scope.own_one("rewrite").filter(|one| one.arg(2) == "break");
        if let Some((rewrite, (strip, add))) = rewrite.and_then(|one| Some((one, simple_break(one, place)?)))
        {
            self.ledger.differs(
                rewrite.entry,
                "paths in redirects and cookies of the upstream server are changed back (`rewrite`)",
            );
            if matches!(matcher, Matcher::Prefix(path, _) if *path == strip)
                && !rewrite.first().contains("/?(")
            {
                self.ledger.differs(rewrite.entry, format!("`{strip}` without a `/` becomes `/`"));
            }
            for (key, text) in [("strip_prefix", strip), ("add_prefix", add)] {
                if !text.is_empty() {
                    proxy.set_text(key, text);
                }
            }
            return;
        }
        let Some(uri) = &target.uri else {
            keep_encoded_slashes(place, section);
            return;
        };
        if uri.contains('$') {
            self.target_of_request(pass, uri, scope, section);
            return;
        }
        let Some(replaced) = matcher.replaced() else {
            self.ledger.differs(
                pass.entry,
                "the path of `proxy_pass` does not count in a location with an expression",
            );
            return;
        };
        if uri.contains(['?', '#']) {
            self.ledger.impossible(pass.entry, "a query cannot be added: only the path is replaced");
        }
        let uri = uri.split(['?', '#']).next().unwrap_or("/");
        let is_exact = matches!(matcher, Matcher::Exact(_));
        let (strip, add) = (replaced.trim_end_matches('/'), uri.trim_end_matches('/'));
        if strip == add && replaced.ends_with('/') == uri.ends_with('/') {
            if !strip.is_empty() {
                let what =
                    "redirects to other paths of the upstream server are changed to the client's host too";
                self.ledger.differs(pass.entry, what);
            }
            return;
        }
        let is_path = uri.starts_with('/') && uri.bytes().all(|byte| byte.is_ascii_graphic());
        if is_exact && is_path && section.get("rewrite").is_none() {
            // Prefixes are replaced by whole segments, which would lose a final `/`.
            section.set_text("rewrite", uri);
            self.ledger.differs(
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
                section.set("path", TomlItem::Text(format!("~ ^{}(.*)$", quoted(replaced))));
                section.set_text("rewrite", format!("{uri}$1"));
                if uri.ends_with('/') {
                    self.ledger
                        .differs(pass.entry, "nginx joins the paths with two slashes, here there is one");
                }
                self.ledger.differs(
                    pass.entry,
                    "paths in redirects and cookies of the upstream server are passed on as they are",
                );
                return;
            }
            self.ledger.impossible(
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
        self.ledger.differs(pass.entry, "paths in cookies are changed as those in redirects are (`rewrite`)");
    }

    /// Translates the path of `proxy_pass http://app/x/$1` to `rewrite`.
    fn target_of_request(
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
                self.ledger.differs(pass.entry, "the query is passed on too");
            }
            if scope.rewrites() {
                self.ledger
                    .differs(pass.entry, "a path that was rewritten is passed on, not the one that was sent");
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
        if let Some(to) = self.template(pass, &text, scope, TemplateUse::Target) {
            section.set_text("rewrite", to);
        } else {
            unavailable(section);
        }
    }

    fn request_headers(&self, scope: &Scope<'_>, proxy: &mut TomlSection) {
        let mut set = Vec::new();
        let mut removed = Vec::new();
        for one in [scope.all("proxy_set_header"), scope.all("grpc_set_header")].concat() {
            let (name, value) = (one.first(), constants(one.arg(1), scope, 0));
            let bare = value.replace(['{', '}'], "");
            match (name.to_ascii_lowercase().as_str(), bare.as_str()) {
                ("host", _) => {}
                ("connection" | "upgrade", _) => self.ledger.needless(
                    one.entry,
                    "not needed: WebSockets are passed on, and connections are kept (`upgrades` in `proxy`)",
                ),
                ("content-length", "") => {
                    self.ledger.differs(one.entry, "the content of a request is passed on, with its length")
                }
                (name, _) if is_of_connection(name) => self.ledger.needless(one.entry, OF_CONNECTION),
                ("x-forwarded-for", "$proxy_add_x_forwarded_for") => self.ledger.differs(
                    one.entry,
                    "it is always sent; what clients send in it counts only from `trusted_proxies`, others cannot make it up",
                ),
                ("x-forwarded-for", "$remote_addr") | ("x-forwarded-proto", "$scheme") | ("x-forwarded-host", "$host" | "$http_host") => {
                    self.ledger.needless(one.entry, "not needed: it is always sent");
                }
                (_, variable) if is_answered(scope, name, variable) => {
                    self.ledger.needless(one.entry, "not needed: `response_headers` of `auth` copies the field");
                }
                (_, "") => {
                    removed.push(TomlItem::text(name));
                    self.ledger.translated(one.entry);
                }
                _ => {
                    if let Some(value) = self.template(one, &value, scope, TemplateUse::Header) {
                        if value.contains("$remote_user") {
                            self.ledger.differs(one.entry, "`$remote_user` is a user that `auth` knows");
                        }
                        set.push((name.to_owned(), TomlItem::Text(value)));
                        self.ledger.translated(one.entry);
                    }
                }
            }
        }
        if !set.is_empty() {
            proxy.set_in("request_headers", "set", TomlItem::Table(set));
        }
        if !removed.is_empty() {
            proxy.set_in("request_headers", "remove", TomlItem::List(removed));
        }
    }

    fn response_fields(&self, scope: &Scope<'_>, proxy: &mut TomlSection) {
        let mut hidden = scope.all("proxy_hide_header");
        hidden.retain(|one| {
            let is_kept = !is_of_connection(one.first());
            if !is_kept {
                self.ledger.needless(one.entry, OF_CONNECTION);
            }
            is_kept
        });
        if !hidden.is_empty() {
            let names = hidden.iter().map(|one| {
                self.ledger.translated(one.entry);
                TomlItem::text(one.first())
            });
            proxy.set_in("response_headers", "remove", TomlItem::List(names.collect()));
        }
        for one in scope.all("proxy_pass_header") {
            self.ledger.needless(one.entry, "not needed: fields of upstream servers are passed on");
        }
        for one in scope.all("proxy_cookie_domain") {
            match (one.first(), one.arg(1)) {
                ("off", _) => self.ledger.translated(one.entry),
                (from, to) if !from.starts_with('~') && !from.contains('$') && !to.contains('$') => {
                    let from = from.trim_start_matches('.').to_owned();
                    proxy.set_in("cookie_domains", &from, TomlItem::text(to));
                    self.ledger.translated(one.entry);
                }
                _ => self.ledger.impossible(one.entry, "`cookie_domains` takes domains as they are"),
            }
        }
        let redirects = scope.all("proxy_redirect");
        for one in redirects {
            match one.first() {
                "off" => {
                    proxy.set("rewrite", TomlItem::Flag(false));
                    self.ledger.differs(one.entry, "with `rewrite = false` cookies keep their paths too");
                }
                "default" => self.ledger.translated(one.entry),
                _ => self.ledger.differs(
                    one.entry,
                    "addresses of upstream servers and their paths are changed to the client's by themselves, others are not",
                ),
            }
        }
    }

    fn proxy_timeouts(&self, scope: &Scope<'_>, proxy: &mut TomlSection) {
        let range = (10, DAY_MS);
        self.time(scope, "proxy_connect_timeout", proxy, ("timeouts", "connect"), range);
        self.time(scope, "grpc_connect_timeout", proxy, ("timeouts", "connect"), range);
        for name in ["proxy_read_timeout", "grpc_read_timeout"] {
            self.time(scope, name, proxy, ("timeouts", "head"), range);
            self.time(scope, name, proxy, ("timeouts", "between"), range);
        }
        let is_upgraded = |one: &&NginxDirective| one.first().eq_ignore_ascii_case("upgrade");
        if let (Some(read), Some(_)) = (
            scope.one("proxy_read_timeout"),
            scope.all("proxy_set_header").iter().find(|one| is_upgraded(one)),
        ) && let Some(ms) = milliseconds(read.first())
        {
            proxy.set_in("timeouts", "tunnel", TomlItem::text(duration_within(ms, 10, DAY_MS).0));
        }
        for name in ["proxy_send_timeout", "grpc_send_timeout"] {
            let Some(send) = scope.one(name) else { continue };
            let read = scope.one(&name.replace("send", "read"));
            match read.is_some_and(|read| read.first() == send.first()) {
                true => self.ledger.translated(send.entry),
                false => self.ledger.differs(
                    send.entry,
                    "`between` counts for both directions, and is that of `proxy_read_timeout` (or 60 s)",
                ),
            }
        }
        if let Some(one) = scope.one("proxy_next_upstream_timeout") {
            self.ledger.impossible(
                one.entry,
                "`total` in `timeouts` counts the response's body too: set it by hand",
            );
        }
    }

    fn upstream_tls(&self, target: &PassTarget, scope: &Scope<'_>, proxy: &mut TomlSection) {
        let files = [
            ("proxy_ssl_trusted_certificate", "ca"),
            ("proxy_ssl_certificate", "certificate"),
            ("proxy_ssl_certificate_key", "key"),
        ];
        if target.scheme != "https" {
            return;
        }
        match scope.one("proxy_ssl_verify").or_else(|| scope.one("grpc_ssl_verify")) {
            Some(one) if one.first() == "on" => self.ledger.translated(one.entry),
            found => {
                if let Some(one) = found {
                    self.ledger.translated(one.entry);
                }
                proxy.set_in("tls", "verify", TomlItem::Flag(false));
                proxy.comment(
                    "nginx does not verify the upstream server's certificate: remove `verify = false` if it has a valid one.",
                );
            }
        }
        for (name, key) in files {
            if let Some(one) = scope.one(name) {
                proxy.set_in("tls", key, TomlItem::text(self.file(one.first())));
                self.ledger.translated(one.entry);
            }
        }
        if let Some(one) = scope.one("proxy_ssl_name") {
            match one.first() {
                name if name.contains('$') => {
                    self.ledger
                        .impossible(one.entry, "`name` in `tls` is a text; it is the URL's host by default");
                }
                name => {
                    proxy.set_in("tls", "name", TomlItem::text(name));
                    self.ledger.translated(one.entry);
                }
            }
        }
    }

    fn retries(&self, scope: &Scope<'_>, proxy: &mut TomlSection) {
        if let Some(one) = scope.one("proxy_next_upstream") {
            let mut statuses = Vec::new();
            for word in &one.args {
                if let Some(code) = word.strip_prefix("http_").and_then(|code| code.parse::<u64>().ok()) {
                    statuses.push(TomlItem::Number(code));
                }
            }
            match one.first() {
                "off" => proxy.set("retry", TomlItem::Flag(false)),
                _ => {
                    if !statuses.is_empty() {
                        proxy.set_in("retry", "statuses", TomlItem::List(statuses));
                    }
                    if one.args.iter().any(|word| word == "non_idempotent") {
                        proxy.set_in("retry", "non_idempotent", TomlItem::Flag(true));
                    }
                }
            }
            self.ledger.differs(one.entry, "at most 20 of 100 requests are sent again (`budget` in `retry`)");
        }
        if let Some(one) = scope.one("proxy_next_upstream_tries") {
            match one.first().parse::<u64>() {
                Ok(count @ 1..=100) if proxy.get("retry") != Some(&TomlItem::Flag(false)) => {
                    proxy.set_in("retry", "attempts", TomlItem::Number(count));
                    self.ledger.translated(one.entry);
                }
                _ => self.ledger.differs(one.entry, "`attempts` in `retry` is 3"),
            }
        }
    }

    fn proxy_rest(&self, scope: &Scope<'_>, proxy: &mut TomlSection) {
        for name in ["proxy_buffering", "proxy_request_buffering"] {
            if let Some(one) = scope.one(name) {
                let reason = match (name, one.first()) {
                    (_, "on") => "bodies are buffered in so far as the other side is slow",
                    ("proxy_buffering", _) => "not needed: each part of a response is passed on as it comes",
                    _ => {
                        "a request whose body is announced and fits into `read_ahead` waits until it is complete"
                    }
                };
                self.ledger.needless(one.entry, reason);
            }
        }
        self.client_abort(scope, "proxy_ignore_client_abort", proxy);
        if let Some(one) = scope.one("underscores_in_headers") {
            if one.first() == "on" {
                proxy.set("underscores", TomlItem::Flag(true));
            }
            self.ledger.translated(one.entry);
        }
    }

    /// Translates the directive `name`: the treatment of requests whose client disconnects.
    pub(super) fn client_abort(&self, scope: &Scope<'_>, name: &str, proxy: &mut TomlSection) {
        if let Some(one) = scope.one(name) {
            if one.first() == "on" {
                proxy.set("client_abort", TomlItem::text("ignore"));
            }
            self.ledger.translated(one.entry);
        }
    }
}

/// Whether a variable holds the field of this name in the response to `auth_request`.
fn is_answered(scope: &Scope<'_>, name: &str, variable: &str) -> bool {
    let is_it = |one: &NginxDirective| {
        let field = one.arg(1).strip_prefix("$upstream_http_").unwrap_or("");
        one.first() == variable && field_name(field).eq_ignore_ascii_case(name)
    };
    scope.all("auth_request_set").into_iter().any(is_it)
}

/// Keeps encoded slashes (`encoded_slashes`), as nginx does, except in paths that belong to other locations
/// once they are decoded: Komainu selects the route by the encoded path. Does nothing if these paths cannot
/// be excluded.
fn keep_encoded_slashes(place: &Place<'_>, section: &mut TomlSection) {
    let Matcher::Prefix(prefix, _) = &place.matcher else { return };
    let levels = &place.scope.levels;
    let Some(server) = levels.len().checked_sub(2 + place.around.len()).map(|at| levels[at]) else { return };
    let asks_for_path = |one: &NginxDirective| match one.name.as_str() {
        "rewrite" => true,
        "if" => one.args.iter().any(|arg| arg.contains("uri") || arg.contains("$request_filename")),
        _ => false,
    };
    if server.iter().chain(place.scope.own()).any(asks_for_path) {
        return;
    }
    let mut has_expressions = false;
    super::tree::visit(server, &mut |one| {
        has_expressions |=
            one.name == "location" && one.first().starts_with('~') && Some(one.entry) != place.entry;
    });
    let mut others = Vec::new();
    if has_expressions || !collect_longer(server, place, prefix, &mut others) {
        return;
    }
    for one in others {
        let end = if one.first() == "=" { "$" } else { "" };
        let path = one.args.last().map_or("", String::as_str);
        let spelled = format!("~ ^{}{end}", quoted(path).replace('/', "(?:/|%2F)+"));
        section.exclude(TomlItem::Table(vec![("path".to_owned(), TomlItem::Text(spelled))]));
    }
    section.set_text("encoded_slashes", "keep");
}

/// Collects the locations of a level, and of the levels down to `place`, that nginx selects instead of it for
/// some paths below `prefix`. Returns false if there are others with such paths, nested in locations that
/// nginx does not select for them.
fn collect_longer<'d>(
    level: &'d [NginxDirective],
    place: &Place<'_>,
    prefix: &str,
    found: &mut Vec<&'d NginxDirective>,
) -> bool {
    let is_longer = |one: &NginxDirective| {
        is_location(one) && one.args.last().is_some_and(|path| path.starts_with(prefix))
    };
    level.iter().filter(|one| is_location(one)).all(|one| {
        let (mut has_place, mut longer) = (Some(one.entry) == place.entry, Vec::new());
        let is_place = has_place;
        super::tree::visit(one.inner(), &mut |inner| {
            has_place |= Some(inner.entry) == place.entry;
            longer.extend(is_longer(inner).then_some(inner));
        });
        if is_place {
            found.extend(longer);
            true
        } else if has_place {
            collect_longer(one.inner(), place, prefix, found)
        } else if is_longer(one) {
            found.push(one);
            true
        } else {
            longer.is_empty()
        }
    })
}

fn is_location(one: &NginxDirective) -> bool {
    one.name == "location" && !one.first().starts_with('@')
}
