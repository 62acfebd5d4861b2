//! Translation of access control and limits: `allow`, `auth_basic`, `limit_req`, sizes and timeouts.

use super::directive::Part;
use super::scope::{
    Scope, field_name, format_duration, parse_bytes, parse_milliseconds, replace_constants, translate_size,
};
use super::translation::{AppliedDirective, Translation};
use super::tree::NginxDirective;
use crate::draft::{TomlItem, TomlSection};
use crate::findings::Outcome;

const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;
/// Lowest timeout that can be set.
const TIMEOUT_MIN_MS: u64 = 10;
/// Lowest `bandwidth` in bytes a second.
const BANDWIDTH_MIN: u64 = 1024;
/// The remark on `allow` and `deny` behind one for `all`.
pub(super) const NO_EFFECT_REMARK: &str = "it has no effect: an `all` stands before it";
/// Default and maximum of `headers` in `[limits]`, and maximum of `header_limit`.
const HEADERS_DEFAULT: u64 = 100;
const HEADERS_MAX: u64 = 10_000;
const HEADER_LIMIT_MAX: u64 = 1000;
/// Defaults of nginx.
const BODY_DEFAULT: &str = "1MiB";
const IDLE_DEFAULT_MS: u64 = 75_000;
const REQUESTS_DEFAULT: u64 = 1000;
const HEAD_BUFFERS_DEFAULT: u64 = 4;

impl Translation<'_> {
    /// Writes the access checks of a route. As in nginx, they do not apply to `return`.
    pub(crate) fn translate_access(&self, scope: &Scope<'_>, section: &mut TomlSection) {
        self.translate_addresses(scope, section);
        self.translate_password(scope, section);
        self.translate_rate_limits(scope, section);
        self.translate_guards(scope, section);
        if let Some(one) = self.take(scope, "satisfy")
            && one.first_arg() == "any"
        {
            let has_addresses = section.get("allow").or(section.get("deny")).is_some();
            let reason = "a request has to meet both, addresses and password: write a route with `client` for the addresses that need no password before this one";
            if has_addresses && section.get("auth").is_some() {
                self.ledger.mark_impossible(one.entry, reason);
                self.ledger.manual_comment(one.entry).into_iter().for_each(|check| section.comment(check));
            } else {
                self.ledger.mark_different(one.entry, reason);
            }
        }
    }

    /// Translates `auth_request`, and reports access checks without an equivalent.
    fn translate_guards(&self, scope: &Scope<'_>, section: &mut TomlSection) {
        const GUARDS: [&str; 5] =
            ["auth_request", "auth_jwt", "access_by_lua_block", "access_by_lua_file", "secure_link"];
        let is_on = |one: &NginxDirective| one.first_arg() != "off";
        let Some(guard) = GUARDS.iter().find_map(|name| scope.effective(name).filter(|one| is_on(one)))
        else {
            self.take(scope, "auth_request");
            return;
        };
        let asked = (guard.name == "auth_request").then(|| self.auth_request_url(guard, scope)).flatten();
        match asked {
            Some(url) if section.get("auth").is_none() => {
                self.ledger.mark_different(
                    guard.entry,
                    "refused requests get the response of the server that is asked; see docs/auth.md",
                );
                section.set_in("auth", "ask", TomlItem::Text(url));
                let mut fields = Vec::new();
                for one in scope.effective_all("auth_request_set") {
                    let field =
                        one.arg_at(1).strip_prefix("$upstream_http_").filter(|name| !name.contains('$'));
                    match field {
                        Some("set_cookie") => self
                            .not_needed(one, "not needed: cookies of the answer are added to the response"),
                        Some(field) => {
                            fields.push(TomlItem::Text(field_name(field)));
                            self.ledger.mark_different(one.entry, "the field is copied into the request under its own name (`response_headers`)");
                        }
                        None => self.ledger.mark_impossible(
                            one.entry,
                            "only fields of the answer can be copied (`response_headers` of `auth`)",
                        ),
                    }
                }
                if !fields.is_empty() {
                    section.set_in("auth", "response_headers", TomlItem::List(fields));
                }
            }
            _ => {
                if !self.ledger.is_impossible(guard.entry) {
                    self.ledger.mark_impossible(
                        guard.entry,
                        "no other directive decides instead, so the route is closed (403)",
                    );
                }
                refuse_all(section);
            }
        }
    }

    /// Returns the URL of the `auth_request` subrequest: that of `proxy_pass` in its location.
    fn auth_request_url(&self, guard: &NginxDirective, scope: &Scope<'_>) -> Option<String> {
        let path = guard.first_arg();
        let is_it = |one: &&NginxDirective| {
            one.name == "location" && one.args.last().is_some_and(|last| last == path)
        };
        let (at, location) = scope
            .levels
            .iter()
            .enumerate()
            .rev()
            .find_map(|(at, level)| Some((at, level.iter().find(is_it)?)))?;
        let takes_first = |one: &NginxDirective| {
            one.name == "location" && (one.first_arg().starts_with('~') || one.first_arg() == "=")
        };
        if location.first_arg() != "=" && scope.levels[at].iter().any(takes_first) {
            return None;
        }
        let levels = scope.levels[..=at].iter().copied();
        let mut outer = levels.flatten().filter(|one| one.name != "client_max_body_size");
        let mut own = location.block_directives().iter();
        if let Some(other) =
            own.find(|one| may_decide_ask(one)).or_else(|| outer.find(|one| may_decide_ask(one)))
        {
            self.ledger.mark_impossible(
                guard.entry,
                format!("the location `{path}` has `{}` or inherits it, which may refuse too: the route is closed (403)", other.name),
            );
            return None;
        }
        let pass = location.block_directives().iter().find(|one| one.name == "proxy_pass")?;
        let url = pass.first_arg().replace("http://unix:", "unix:");
        if url.contains('$') {
            return None;
        }
        let has_path =
            url.split_once("://").map_or(url.matches(':').count() > 1, |(_, rest)| rest.contains('/'));
        let name = url.split_once("://")?.1.split(['/', ':']).next()?;
        match (self.is_upstream(name), has_path) {
            // `auth` does not support upstream groups.
            (true, _) => None,
            (_, true) => Some(url),
            (_, false) => Some(format!("{url}{path}")),
        }
    }

    fn translate_addresses(&self, scope: &Scope<'_>, section: &mut TomlSection) {
        let rules = self.take_all_of(scope, &["allow", "deny"]);
        let mut allowed = Vec::new();
        let mut denied = Vec::new();
        let mut closed = false;
        let mut open = false;
        for one in &rules {
            let network = match one.first_arg() {
                "unix:" => "unix",
                network => network,
            };
            if closed || open {
                self.not_needed(one, NO_EFFECT_REMARK);
                continue;
            }
            match (one.name.as_str(), network) {
                ("deny", "all") => closed = true,
                ("allow", "all") => open = true,
                ("deny", network) => {
                    if !allowed.is_empty() {
                        self.ledger.mark_different(
                            one.entry,
                            "`deny` counts before `allow` here: an address that an earlier `allow` names is refused if this one has it too",
                        );
                    }
                    denied.push(TomlItem::text(network));
                }
                (_, network) => allowed.push(TomlItem::text(network)),
            }
        }
        if closed && allowed.is_empty() {
            refuse_all(section);
            return;
        }
        let has_networks = closed || !denied.is_empty();
        let unknown = self.client_addresses.unknown_reason().filter(|_| has_networks);
        if let (Some(reason), Some(first)) = (unknown, rules.first()) {
            rules.iter().for_each(|one| self.ledger.mark_impossible(one.entry, reason));
            refuse_all(section);
            section.close(self.ledger.manual_comment(first.entry).unwrap_or_default());
            return;
        }
        if closed {
            section.set("allow", TomlItem::List(allowed));
        }
        if !denied.is_empty() {
            section.set("deny", TomlItem::List(denied));
        }
    }

    fn translate_password(&self, scope: &Scope<'_>, section: &mut TomlSection) {
        let file = scope.effective("auth_basic_user_file");
        let Some(realm) = self.take(scope, "auth_basic").filter(|realm| realm.first_arg() != "off") else {
            file.into_iter().for_each(|file| self.not_needed(file, "no password is asked for"));
            return;
        };
        let Some(file) = file else {
            self.ledger
                .mark_impossible(realm.entry, "`auth_basic_user_file` is missing: the route is closed");
            refuse_all(section);
            return;
        };
        let name = replace_constants(file.first_arg(), scope, 0);
        if name.contains('$') {
            let reason = "the file depends on the request: the route is closed (403) until `auth` names one";
            self.ledger.mark_impossible(file.entry, reason);
            refuse_all(section);
            section.close(self.ledger.manual_comment(file.entry).unwrap_or_default());
            return;
        }
        let mut auth = vec![("basic".to_owned(), TomlItem::text(self.resolve_path(&name)))];
        if realm.first_arg().contains('$') {
            self.ledger.mark_different(realm.entry, "the realm is a text without variables")
        } else {
            auth.push(("realm".to_owned(), TomlItem::text(realm.first_arg())))
        }
        self.ledger.mark_different(
            file.entry,
            "passwords must be hashed with bcrypt or Argon2: make those of `htpasswd -m` and `crypt` again with `htpasswd -B`",
        );
        section.set("auth", TomlItem::Table(auth));
    }

    fn translate_rate_limits(&self, scope: &Scope<'_>, section: &mut TomlSection) {
        let status = self.take(scope, "limit_req_status");
        let dry = self.take(scope, "limit_req_dry_run");
        let mut limits = Vec::new();
        for one in self.take_all(scope, "limit_req") {
            if let Some(limit) = self.translate_limit_req(one, status, dry) {
                limits.push(limit);
            }
        }
        let status = self.take(scope, "limit_conn_status");
        for one in self.take_all(scope, "limit_conn") {
            limits.extend(self.translate_limit_conn(one, status));
        }
        match limits.len() {
            0 => {}
            1 => section.set("limit", limits.remove(0)),
            _ => section.set("limit", TomlItem::List(limits)),
        }
    }

    /// Returns the directive of this kind that defines a zone.
    fn find_zone(&self, kind: &str, zone: &str) -> Option<&NginxDirective> {
        let is_it = |found: &&NginxDirective| {
            let mut zones = found.args.iter().filter_map(|arg| arg.strip_prefix("zone="));
            zones.any(|rest| rest.split(':').next() == Some(zone))
        };
        self.http.effective_all(kind).into_iter().find(is_it)
    }

    /// Translates `limit_conn`, a limit of concurrent requests.
    fn translate_limit_conn(
        &self,
        directive: &NginxDirective,
        status: Option<&NginxDirective>,
    ) -> Option<TomlItem> {
        let zone = directive.first_arg();
        let count = directive.arg_at(1).parse::<u64>().ok().filter(|count| *count > 0);
        let found = self.find_zone("limit_conn_zone", zone);
        let (Some(found), Some(count)) = (found, count) else {
            self.ledger.mark_impossible(
                directive.entry,
                "there is no such `limit_conn_zone`, or no number: the route is closed (403)",
            );
            return None;
        };
        let key = match found.first_arg().trim_start_matches('$') {
            "server_name" => Some("host".to_owned()),
            _ => translate_rate_key(found.first_arg()),
        };
        let Some(key) = key else {
            self.ledger.mark_impossible(
                directive.entry,
                "the key of its zone cannot be a key here: the route is closed (403)",
            );
            self.ledger.mark_impossible(
                found.entry,
                "`key` of `limit` takes the client, a field, a cookie, a parameter, the path or the host",
            );
            return None;
        };
        self.ledger.mark_different(
            found.entry,
            "each route, or the site where all its routes have it, counts for itself; a network of IPv6 (/64) is one client",
        );
        key_difference(&key).into_iter().for_each(|reason| self.ledger.mark_different(found.entry, reason));
        let status = status.and_then(|status| status.first_arg().parse().ok()).unwrap_or(503);
        let mut limit = vec![("concurrent".to_owned(), TomlItem::Number(count.min(1_000_000)))];
        if key != "client" {
            limit.push(("key".to_owned(), TomlItem::Text(key)));
        }
        limit.push(("status".to_owned(), TomlItem::Number(status)));
        Some(TomlItem::Table(limit))
    }

    fn translate_limit_req(
        &self,
        directive: &NginxDirective,
        status: Option<&NginxDirective>,
        dry: Option<&NginxDirective>,
    ) -> Option<TomlItem> {
        let value = |name: &str| directive.args.iter().find_map(|arg| arg.strip_prefix(name));
        let zone = value("zone=").and_then(|zone| self.find_zone("limit_req_zone", zone));
        let Some(found) = zone else {
            self.ledger.mark_impossible(
                directive.entry,
                "there is no such `limit_req_zone`: the route is closed (403)",
            );
            return None;
        };
        let Some(key) = translate_rate_key(found.first_arg()) else {
            self.ledger.mark_impossible(
                directive.entry,
                "the key of its zone cannot be a key here: the route is closed (403)",
            );
            self.ledger.mark_impossible(
                found.entry,
                "`key` of `limit` takes the client, a field, a cookie, a parameter, the path or the host",
            );
            return None;
        };
        let rate = found.args.iter().find_map(|arg| arg.strip_prefix("rate="));
        let Some((number, unit)) = rate.and_then(|rate| rate.split_once("r/")) else {
            self.ledger.mark_impossible(found.entry, "the rate is missing");
            self.ledger.mark_impossible(
                directive.entry,
                "the rate of its zone is missing: the route is closed (403)",
            );
            return None;
        };
        self.ledger.mark_different(
            found.entry,
            "each route, or the site where all its routes have it, counts for itself; a network of IPv6 (/64) is one client",
        );
        key_difference(&key).into_iter().for_each(|reason| self.ledger.mark_different(found.entry, reason));
        let per_ms = if unit == "m" { 60_000 } else { 1000 };
        let burst: u64 = value("burst=").and_then(|burst| burst.parse().ok()).unwrap_or(0);
        let delay = match (directive.args.iter().any(|arg| arg == "nodelay"), value("delay=")) {
            (true, _) => 0,
            (false, delay) => burst.saturating_sub(delay.and_then(|delay| delay.parse().ok()).unwrap_or(0)),
        };
        let mut limit = vec![
            ("rate".to_owned(), TomlItem::Text(format!("{number}/{unit}"))),
            ("burst".to_owned(), TomlItem::Number((burst - delay).min(1_000_000))),
        ];
        if key != "client" {
            limit.push(("key".to_owned(), TomlItem::Text(key)));
        }
        let wait = delay * per_ms / number.parse::<u64>().unwrap_or(1).max(1);
        if wait > 0 {
            limit.push(("delay".to_owned(), TomlItem::Text(format_duration(wait.min(60_000)))));
        }
        let status = status.and_then(|status| status.first_arg().parse().ok()).unwrap_or(503);
        limit.push(("status".to_owned(), TomlItem::Number(status)));
        if dry.is_some_and(|dry| dry.first_arg() == "on") {
            limit.push(("dry_run".to_owned(), TomlItem::Flag(true)));
        }
        Some(TomlItem::Table(limit))
    }

    /// Writes the limits and timeouts of sites and routes.
    pub(crate) fn translate_limits(&self, scope: &Scope<'_>, section: &mut TomlSection) {
        section.set_in("limits", "body", TomlItem::text(BODY_DEFAULT));
        self.apply(Part::Limits, scope, section);
    }

    /// Returns the largest `max_headers` of all servers: `headers` of `[limits]` counts for all, before a route is
    /// chosen. `None` if no server has the directive.
    pub(crate) fn header_fields_max(&self) -> Option<u64> {
        let count = |one: &NginxDirective| one.first_arg().parse().ok();
        let mut counts = Vec::new();
        for level in &self.http.levels {
            super::tree::visit(level, &mut |one| {
                counts.extend(Some(one).filter(|one| one.name == "max_headers"))
            });
        }
        let of_others = self.http.effective("max_headers").map_or(Some(HEADERS_DEFAULT), count);
        let largest = counts.iter().filter_map(|one| count(one)).chain(of_others).max()?;
        (!counts.is_empty()).then(|| largest.clamp(1, HEADERS_MAX))
    }

    /// Translates connection settings of one server, which apply to all servers in Komainu.
    pub(crate) fn translate_server_connection_settings(&self, scope: &Scope<'_>, top: &mut TomlSection) {
        let mut section = TomlSection::default();
        self.apply(Part::Connections, scope, &mut section);
        for one in scope.innermost().iter().filter(|one| self.is_of_part(one, Part::Connections)) {
            self.ledger.mark_different(
                one.entry,
                "it counts for all sites: `[timeouts]` and `[limits]` of the file",
            );
        }
        for (table, item) in section.entries {
            let TomlItem::Table(entries) = item else { continue };
            for (key, item) in entries {
                let is_there = matches!(top.get(&table), Some(TomlItem::Table(known)) if known.iter().any(|(name, _)| *name == key));
                if !is_there {
                    top.set_in(&table, &key, item);
                }
            }
        }
    }
}

pub(super) fn client_max_body_size(one: &AppliedDirective<'_>, section: &mut TomlSection) -> Outcome {
    let (size, outcome) = match (parse_bytes(one.first_arg()), translate_size(one.first_arg())) {
        (Some(0), _) => ("unlimited".to_owned(), Outcome::TRANSLATED),
        (Some(_), Some(size)) => (size, Outcome::TRANSLATED),
        _ => (BODY_DEFAULT.to_owned(), Outcome::not_possible("this is not a size")),
    };
    section.set_in("limits", "body", TomlItem::Text(size));
    outcome
}

/// A route refuses what the limit of all servers lets through.
pub(super) fn max_headers(one: &AppliedDirective<'_>, section: &mut TomlSection) -> Outcome {
    let Some(count) = one.first_arg().parse::<u64>().ok().filter(|count| *count > 0) else {
        return Outcome::not_possible("this is not a number");
    };
    if one.translation.header_fields_max().is_some_and(|of_all| count < of_all) {
        section.set("header_limit", TomlItem::Number(count.min(HEADER_LIMIT_MAX)));
    }
    match count {
        ..=HEADER_LIMIT_MAX => Outcome::TRANSLATED,
        _ => Outcome::differs(
            "`header_limit` of a route is at most 1000, `headers` of `[limits]` at most 10000",
        ),
    }
}

pub(super) fn client_body_timeout(one: &AppliedDirective<'_>, section: &mut TomlSection) -> Outcome {
    one.write_time(section, ("timeouts", "body"), (TIMEOUT_MIN_MS, HOUR_MS))
}

pub(super) fn send_timeout(one: &AppliedDirective<'_>, section: &mut TomlSection) -> Outcome {
    one.write_time(section, ("timeouts", "write"), (TIMEOUT_MIN_MS, HOUR_MS))
}

/// The rate and the number of bytes that are sent without it; `None` if one of them is not a size.
fn bandwidth<'a>(scope: &Scope<'a>) -> Option<(u64, Option<&'a str>)> {
    let rate = parse_bytes(scope.effective("limit_rate")?.first_arg())?;
    match scope.effective("limit_rate_after").map(|one| one.first_arg()) {
        None => Some((rate, None)),
        Some(after) => parse_bytes(after).map(|bytes| (rate, Some(after).filter(|_| bytes > 0))),
    }
}

const NO_BANDWIDTH_REMARK: &str = "`bandwidth` takes a size, and no variables";

pub(super) fn limit_rate(one: &AppliedDirective<'_>, section: &mut TomlSection) -> Outcome {
    let Some((rate, after)) = bandwidth(one.scope) else {
        return Outcome::not_possible(NO_BANDWIDTH_REMARK);
    };
    if rate == 0 {
        return Outcome::TRANSLATED;
    }
    let is_low = rate < BANDWIDTH_MIN;
    let text = translate_size(one.first_arg()).filter(|_| !is_low).unwrap_or_else(|| "1KiB".to_owned());
    let rate = TomlItem::Text(format!("{text}/s"));
    let item = match after.and_then(translate_size) {
        None => rate,
        Some(after) => {
            TomlItem::Table(vec![("rate".to_owned(), rate), ("after".to_owned(), TomlItem::Text(after))])
        }
    };
    section.set("bandwidth", item);
    if is_low { Outcome::differs("the lowest rate is 1 KiB a second") } else { Outcome::TRANSLATED }
}

/// Part of `bandwidth`, which [`limit_rate`] writes.
pub(super) fn limit_rate_after(one: &AppliedDirective<'_>, _: &mut TomlSection) -> Outcome {
    match one.scope.effective("limit_rate") {
        Some(_) if bandwidth(one.scope).is_none() => Outcome::not_possible(NO_BANDWIDTH_REMARK),
        _ => Outcome::TRANSLATED,
    }
}

pub(super) fn client_header_timeout(one: &AppliedDirective<'_>, top: &mut TomlSection) -> Outcome {
    one.write_time(top, ("timeouts", "head"), (TIMEOUT_MIN_MS, HOUR_MS))
}

pub(super) fn keepalive_timeout(one: &AppliedDirective<'_>, top: &mut TomlSection) -> Outcome {
    let ms = parse_milliseconds(one.first_arg()).unwrap_or(IDLE_DEFAULT_MS);
    let text = format_duration(ms.clamp(TIMEOUT_MIN_MS, DAY_MS));
    top.set_in("timeouts", "idle", TomlItem::Text(text));
    match ms {
        0 => Outcome::differs("connections are kept, for 10 ms: they cannot be closed at once"),
        _ => Outcome::TRANSLATED,
    }
}

pub(super) fn keepalive_requests(one: &AppliedDirective<'_>, top: &mut TomlSection) -> Outcome {
    let count = one.first_arg().parse().unwrap_or(REQUESTS_DEFAULT).max(1);
    top.set_in("limits", "requests_per_connection", TomlItem::Number(count));
    Outcome::TRANSLATED
}

pub(super) fn large_client_header_buffers(one: &AppliedDirective<'_>, top: &mut TomlSection) -> Outcome {
    let size = parse_bytes(one.directive.arg_at(1)).unwrap_or(0).max(1024);
    let total = one.first_arg().parse::<u64>().unwrap_or(HEAD_BUFFERS_DEFAULT).saturating_mul(size);
    let kib = |bytes: u64| TomlItem::Text(format!("{}KiB", (bytes / 1024).clamp(1, 1024)));
    top.set_in("limits", "head", kib(total));
    top.set_in("limits", "request_line", kib(size));
    Outcome::TRANSLATED
}

/// Replaces the actions of a route by a 403 response.
pub(crate) fn refuse_all(section: &mut TomlSection) {
    for action in [
        "files",
        "proxy",
        "php",
        "app",
        "redirect",
        "respond",
        "rewrite",
        "cache",
        "variables",
        "encoded_slashes",
        "internal",
    ] {
        section.remove(action);
    }
    section.set("respond", TomlItem::Number(403));
}

/// Returns the difference between a key of `limit` and that of nginx.
fn key_difference(key: &str) -> Option<&'static str> {
    match key.split(':').next() {
        Some("query") => Some(
            "the parameter has this exact name, and its value is decoded: nginx takes the first with the name in any case of letters, as it was sent",
        ),
        Some("cookie") => {
            Some("the cookie has this exact name: nginx takes the first with the name in any case of letters")
        }
        _ => None,
    }
}

/// Translates the key of a zone to a `key` of `limit`.
fn translate_rate_key(key: &str) -> Option<String> {
    let key = key.replace(['{', '}'], "");
    Some(match key.as_str() {
        "$binary_remote_addr" | "$remote_addr" => "client".to_owned(),
        "$server_name" | "$host" | "$http_host" => "host".to_owned(),
        "$uri" | "$request_uri" => "path".to_owned(),
        _ => {
            let one = |prefix: &str| key.strip_prefix(prefix).filter(|name| !name.contains('$'));
            match (one("$http_"), one("$cookie_"), one("$arg_")) {
                (Some(name), ..) => format!("header:{}", field_name(name)),
                (_, Some(name), _) => format!("cookie:{name}"),
                (.., Some(name)) => format!("query:{name}"),
                _ => return None,
            }
        }
    })
}

/// Whether a directive that applies to the location which `auth_request` asks may change the answer: all but those
/// known not to.
fn may_decide_ask(one: &NginxDirective) -> bool {
    const HARMLESS: &[&str] = &[
        // Of the whole process.
        "daemon",
        "debug_points",
        "env",
        "events",
        "http",
        "load_module",
        "lock_file",
        "mail",
        "master_process",
        "pcre_jit",
        "pid",
        "stream",
        "thread_pool",
        "timer_resolution",
        "user",
        "working_directory",
        // Of the location and around it.
        "internal",
        "proxy_pass",
        "proxy_pass_request_body",
        "proxy_connect_timeout",
        "proxy_read_timeout",
        "proxy_send_timeout",
        "proxy_buffering",
        "proxy_buffers",
        "proxy_buffer_size",
        "proxy_busy_buffers_size",
        "proxy_http_version",
        "proxy_request_buffering",
        "proxy_socket_keepalive",
        "proxy_headers_hash_max_size",
        "proxy_headers_hash_bucket_size",
        "proxy_temp_path",
        "proxy_hide_header",
        "proxy_pass_header",
        "proxy_ignore_headers",
        "proxy_redirect",
        "access_log",
        "error_log",
        "log_not_found",
        "log_format",
        "log_subrequest",
        "listen",
        "server_name",
        "server",
        "upstream",
        "map",
        "geo",
        "location",
        "root",
        "alias",
        "index",
        "include",
        "types",
        "default_type",
        "add_header",
        "expires",
        "tcp_nopush",
        "tcp_nodelay",
        "server_tokens",
        "server_names_hash_bucket_size",
        "types_hash_max_size",
        "http2",
        "charset",
        "limit_req_zone",
        "limit_conn_zone",
        "auth_request_set",
        "resolver",
        "resolver_timeout",
        "limit_req_status",
        "limit_conn_status",
    ];
    const HARMLESS_STARTS: &[&str] = &[
        "ssl_",
        "gzip",
        "log_",
        "worker_",
        "open_file_cache",
        "server_names_hash",
        "types_hash",
        "variables_hash",
        "map_hash",
        "client_header_",
        "client_body_",
        "keepalive_",
        "send_timeout",
        "reset_timedout",
        "large_client",
        "fastcgi_",
        "uwsgi_",
        "scgi_",
        "brotli",
        "sendfile",
        "aio",
        "directio",
        "output_buffers",
        "postpone_output",
    ];
    const HARMLESS_FIELDS: [&str; 4] =
        ["content-length", "x-original-uri", "x-original-url", "x-original-method"];
    match one.name.as_str() {
        "auth_request" => one.first_arg() != "off",
        "proxy_set_header" => {
            let field = one.first_arg().to_ascii_lowercase();
            let value = match field.as_str() {
                "content-length" => "",
                "x-original-uri" => "$request_uri",
                "x-original-method" => "$request_method",
                _ => "$scheme://$http_host$request_uri",
            };
            !HARMLESS_FIELDS.contains(&field.as_str()) || one.arg_at(1) != value
        }
        // Errors of the server that is asked keep their status.
        "error_page" => one.args.iter().any(|arg| arg.starts_with('=')),
        "fastcgi_pass" | "uwsgi_pass" | "scgi_pass" => true,
        "proxy_pass_request_body" => one.first_arg() != "off",
        name => !HARMLESS.contains(&name) && !HARMLESS_STARTS.iter().any(|start| name.starts_with(start)),
    }
}
