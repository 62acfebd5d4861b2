//! Translation of limits: rates and numbers of requests, sizes, timeouts and bandwidth.

use super::directive::Part;
use super::scope::{Scope, field_name, format_duration, parse_bytes, parse_milliseconds, translate_size};
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
    pub(super) fn translate_rate_limits(&self, scope: &Scope<'_>, section: &mut TomlSection) {
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
        let Some(key) = translate_rate_key(found.first_arg()) else {
            self.mark_unusable_key(directive, found);
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

    /// Reports a limit whose zone counts by what cannot be a key of `limit`.
    fn mark_unusable_key(&self, directive: &NginxDirective, zone: &NginxDirective) {
        self.ledger.mark_impossible(
            directive.entry,
            "the key of its zone cannot be a key here: the route is closed (403)",
        );
        self.ledger.mark_impossible(
            zone.entry,
            "`key` of `limit` takes the client, a field, a cookie, a parameter, the path or the host",
        );
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
            self.mark_unusable_key(directive, found);
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
        // The first name of the server, which is the same for all of its requests.
        "$server_name" => "all".to_owned(),
        "$host" | "$http_host" => "host".to_owned(),
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
