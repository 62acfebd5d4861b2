//! Translation of access control and limits: `allow`, `auth_basic`, `limit_req`, sizes and timeouts.

use super::scope::{Scope, field_name, format_duration, parse_bytes, parse_milliseconds, translate_size};
use super::translation::{Translation, UNKNOWN_CLIENTS_REMARK};
use super::tree::NginxDirective;
use crate::draft::{TomlItem, TomlSection};

impl Translation<'_> {
    /// Writes the access checks of a route. As in nginx, they do not apply to `return`.
    pub(crate) fn translate_access(&self, scope: &Scope<'_>, section: &mut TomlSection) {
        self.translate_addresses(scope, section);
        self.translate_password(scope, section);
        self.translate_rate_limits(scope, section);
        self.translate_guards(scope, section);
        if let Some(one) = scope.effective("satisfy") {
            match one.first_arg() {
                "any" => {
                    let has_addresses = section.get("allow").or(section.get("deny")).is_some();
                    let reason = "a request has to meet both, addresses and password: write a route with `client` for the addresses that need no password before this one";
                    if has_addresses && section.get("auth").is_some() {
                        self.ledger.mark_impossible(one.entry, reason);
                        self.ledger
                            .manual_comment(one.entry)
                            .into_iter()
                            .for_each(|check| section.comment(check));
                    } else {
                        self.ledger.mark_different(one.entry, reason);
                    }
                }
                _ => self.ledger.mark_translated(one.entry),
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
            scope
                .effective("auth_request")
                .into_iter()
                .for_each(|one| self.ledger.mark_translated(one.entry));
            return;
        };
        let asked = (guard.name == "auth_request").then(|| self.auth_request_url(guard, scope)).flatten();
        match asked {
            Some(url) if section.get("auth").is_none() => {
                self.ledger.mark_different(
                    guard.entry,
                    "what is not let in gets the answer of the server that is asked; see docs/auth.md",
                );
                section.set_in("auth", "ask", TomlItem::Text(url));
                let mut fields = Vec::new();
                for one in scope.effective_all("auth_request_set") {
                    let field =
                        one.arg_at(1).strip_prefix("$upstream_http_").filter(|name| !name.contains('$'));
                    match field {
                        Some("set_cookie") => self.ledger.mark_not_needed(
                            one.entry,
                            "not needed: cookies of the answer are added to the response",
                        ),
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
                self.ledger.mark_impossible(
                    guard.entry,
                    "nothing here decides in its place, so the route is closed (403)",
                );
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
        let location = scope.levels.iter().rev().find_map(|level| level.iter().find(is_it))?;
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
        let rules = scope.effective_all_of(&["allow", "deny"]);
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
                self.ledger.mark_not_needed(one.entry, "it has no effect: an `all` stands before it");
                continue;
            }
            self.ledger.mark_translated(one.entry);
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
        if let Some(first) = rules.first().filter(|_| has_networks && !self.knows_client_addresses) {
            rules.iter().for_each(|one| self.ledger.mark_impossible(one.entry, UNKNOWN_CLIENTS_REMARK));
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
        let realm = scope.effective("auth_basic");
        realm.into_iter().for_each(|realm| self.ledger.mark_translated(realm.entry));
        let Some(realm) = realm.filter(|realm| realm.first_arg() != "off") else {
            file.into_iter()
                .for_each(|file| self.ledger.mark_not_needed(file.entry, "no password is asked for"));
            return;
        };
        let Some(file) = file else {
            self.ledger
                .mark_impossible(realm.entry, "`auth_basic_user_file` is missing: the route is closed");
            refuse_all(section);
            return;
        };
        let mut auth = vec![("basic".to_owned(), TomlItem::text(self.resolve_path(file.first_arg())))];
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
        let status = scope.effective("limit_req_status");
        let dry = scope.effective("limit_req_dry_run");
        let mut limits = Vec::new();
        for one in scope.effective_all("limit_req") {
            if let Some(limit) = self.translate_limit_req(one, status, dry) {
                limits.push(limit);
            }
        }
        let status = scope.effective("limit_conn_status");
        for one in scope.effective_all("limit_conn") {
            limits.extend(self.translate_limit_conn(one, status));
        }
        for one in [scope.effective("limit_req_status"), dry, status].into_iter().flatten() {
            self.ledger.mark_translated(one.entry);
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
            self.ledger.mark_impossible(directive.entry, "there is no such `limit_conn_zone`, or no number");
            return None;
        };
        let key = match found.first_arg().trim_start_matches('$') {
            "server_name" => Some("host".to_owned()),
            _ => translate_rate_key(found.first_arg()),
        };
        let Some(key) = key else {
            self.ledger.mark_impossible(directive.entry, "what its zone counts by cannot be a key here");
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
        self.ledger.mark_translated(directive.entry);
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
        let zone = value("zone=")?;
        let Some(found) = self.find_zone("limit_req_zone", zone) else {
            self.ledger.mark_impossible(directive.entry, "there is no such `limit_req_zone`");
            return None;
        };
        let Some(key) = translate_rate_key(found.first_arg()) else {
            self.ledger.mark_impossible(directive.entry, "what its zone counts by cannot be a key here");
            self.ledger.mark_impossible(
                found.entry,
                "`key` of `limit` takes the client, a field, a cookie, a parameter, the path or the host",
            );
            return None;
        };
        let rate = found.args.iter().find_map(|arg| arg.strip_prefix("rate="));
        let Some((number, unit)) = rate.and_then(|rate| rate.split_once("r/")) else {
            self.ledger.mark_impossible(found.entry, "the rate is missing");
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
        self.ledger.mark_translated(directive.entry);
        Some(TomlItem::Table(limit))
    }

    /// Writes the limits and timeouts of sites and routes.
    pub(crate) fn translate_limits(&self, scope: &Scope<'_>, section: &mut TomlSection) {
        let body = match scope.effective("client_max_body_size") {
            Some(one) => {
                self.ledger.mark_translated(one.entry);
                match parse_bytes(one.first_arg()) {
                    Some(0) => "unlimited".to_owned(),
                    Some(_) => self.translate_size(one).unwrap_or_default(),
                    None => {
                        self.ledger.mark_impossible(one.entry, "this is no size");
                        "1MiB".to_owned()
                    }
                }
            }
            // nginx's default.
            None => "1MiB".to_owned(),
        };
        section.set_in("limits", "body", TomlItem::Text(body));
        let hour = 3_600_000;
        self.translate_time(scope, "client_body_timeout", section, ("timeouts", "body"), (10, hour));
        self.translate_time(scope, "send_timeout", section, ("timeouts", "write"), (10, hour));
        self.translate_bandwidth(scope, section);
    }

    /// Writes the bandwidth limit of responses.
    fn translate_bandwidth(&self, scope: &Scope<'_>, section: &mut TomlSection) {
        let after = scope.effective("limit_rate_after");
        let Some(one) = scope.effective("limit_rate") else {
            after.into_iter().for_each(|one| self.ledger.mark_translated(one.entry));
            return;
        };
        let after_bytes = after.map_or(Some(0), |one| parse_bytes(one.first_arg()));
        let (Some(rate), Some(after_bytes)) = (parse_bytes(one.first_arg()), after_bytes) else {
            for one in [Some(one), after].into_iter().flatten() {
                self.ledger.mark_impossible(one.entry, "`bandwidth` takes a size, and no variables");
            }
            return;
        };
        match rate {
            1..1024 => self.ledger.mark_different(one.entry, "the lowest rate is 1 KiB a second"),
            _ => self.ledger.mark_translated(one.entry),
        }
        after.into_iter().for_each(|one| self.ledger.mark_translated(one.entry));
        if rate == 0 {
            return;
        }
        let low = || "1KiB".to_owned();
        let text = if rate < 1024 { low() } else { translate_size(one.first_arg()).unwrap_or_else(low) };
        let rate = TomlItem::Text(format!("{text}/s"));
        let after = after.filter(|_| after_bytes > 0).and_then(|one| translate_size(one.first_arg()));
        section.set(
            "bandwidth",
            match after {
                None => rate,
                Some(after) => TomlItem::Table(vec![
                    ("rate".to_owned(), rate),
                    ("after".to_owned(), TomlItem::Text(after)),
                ]),
            },
        );
    }

    /// Translates connection settings of one server, which apply to all servers in Komainu.
    pub(crate) fn translate_server_connection_settings(&self, scope: &Scope<'_>, top: &mut TomlSection) {
        let names = [
            "client_header_timeout",
            "keepalive_timeout",
            "keepalive_requests",
            "large_client_header_buffers",
        ];
        let own: Vec<&NginxDirective> = names.iter().filter_map(|name| scope.innermost_last(name)).collect();
        if own.is_empty() {
            return;
        }
        let mut section = TomlSection::default();
        self.translate_connection_settings(scope, &mut section);
        for one in own {
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

    /// Translates the connection timeouts and limits of the whole server.
    pub(crate) fn translate_connection_settings(&self, scope: &Scope<'_>, top: &mut TomlSection) {
        self.translate_time(scope, "client_header_timeout", top, ("timeouts", "head"), (10, 3_600_000));
        if let Some(one) = scope.effective("keepalive_timeout") {
            let ms = parse_milliseconds(one.first_arg()).unwrap_or(75_000);
            let text = format_duration(ms.clamp(10, 86_400_000));
            match ms {
                0 => self.ledger.mark_different(
                    one.entry,
                    "connections are kept, for 10 ms: they cannot be closed at once",
                ),
                _ => self.ledger.mark_translated(one.entry),
            }
            top.set_in("timeouts", "idle", TomlItem::Text(text));
        }
        if let Some(one) = scope.effective("keepalive_requests") {
            top.set_in(
                "limits",
                "requests_per_connection",
                TomlItem::Number(one.first_arg().parse().unwrap_or(1000).max(1)),
            );
            self.ledger.mark_translated(one.entry);
        }
        if let Some(one) = scope.effective("large_client_header_buffers") {
            let size = Self::parse_bytes_or_zero(one.arg_at(1)).max(1024);
            let total = one.first_arg().parse::<u64>().unwrap_or(4).saturating_mul(size);
            let kib = |bytes: u64| TomlItem::Text(format!("{}KiB", (bytes / 1024).clamp(1, 1024)));
            top.set_in("limits", "head", kib(total));
            top.set_in("limits", "request_line", kib(size));
            self.ledger.mark_translated(one.entry);
        }
    }
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
