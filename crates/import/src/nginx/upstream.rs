//! Translation of `upstream` blocks: groups of servers.

use super::directive::Part;
use super::scope::{Scope, field_name, format_duration, parse_milliseconds};
use super::translation::{AppliedDirective, Translation};
use super::tree::NginxDirective;
use crate::draft::{TomlItem, TomlSection, table_path};
use crate::findings::Outcome;

/// Maximum of `connections` in `keep_alive`.
const KEPT_CONNECTIONS_MAX: u64 = 100_000;
/// Defaults of nginx.
const REQUESTS_DEFAULT: u64 = 1000;
const IDLE_DEFAULT_MS: u64 = 60_000;

/// Returns Komainu's name of a group, made of letters, digits, `_` and `-`.
fn valid_group_name(name: &str, scheme: &str) -> String {
    match scheme {
        "http" | "fastcgi" | "uwsgi" | "scgi" => name.to_owned(),
        _ => format!("{name}-{scheme}"),
    }
}

/// Returns the URL of an upstream server in Komainu's notation.
pub(crate) fn server_url(address: &str, scheme: &str) -> String {
    match address.strip_prefix("unix:") {
        Some(path) if matches!(scheme, "fastcgi" | "uwsgi" | "scgi") => {
            format!("{scheme}+unix:/{}", path.trim_start_matches('/'))
        }
        Some(path) => format!("unix:{path}"),
        None => format!("{scheme}://{address}"),
    }
}

impl Translation<'_> {
    /// Returns the `upstream` of this name.
    fn find_upstream(&self, name: &str) -> Option<&NginxDirective> {
        let is_it = |one: &&NginxDirective| one.name == "upstream" && one.first_arg() == name;
        self.http.levels.iter().flat_map(|level| level.iter()).find(is_it)
    }

    /// Returns the name of a group in Komainu's configuration; its first use translates the group. `tls` belongs to the group here, and
    /// to the location in nginx: each has a group of its own.
    pub(crate) fn use_group(&self, name: &str, scheme: &str, tls: Option<&TomlItem>) -> Option<String> {
        let block = self.find_upstream(name)?;
        let mut group = valid_group_name(name, scheme);
        for number in 2.. {
            let path = table_path("upstreams", &group);
            let known = self
                .tables
                .borrow()
                .iter()
                .find_map(|(known, section)| (*known == path).then(|| section.get("tls") == tls));
            match known {
                Some(true) => break,
                Some(false) => group = format!("{}-{number}", valid_group_name(name, scheme)),
                None => {
                    let mut section = self.translate_upstream(block, scheme);
                    tls.into_iter().for_each(|tls| section.set("tls", tls.clone()));
                    self.tables.borrow_mut().push((path, section));
                    break;
                }
            }
        }
        Some(group)
    }

    fn translate_upstream(&self, block: &NginxDirective, scheme: &str) -> TomlSection {
        let mut section = TomlSection::default();
        self.count_taken(block);
        let scope = Scope::of(vec![block.block_directives()]);
        let mut servers = Vec::new();
        for one in block.block_directives() {
            match one.name.as_str() {
                "server" => servers.push(self.translate_server(one, scheme, &mut section)),
                _ if self.apply_one(Part::Upstream, one, &scope, &mut section) => {}
                _ if self.ledger.is_marked(one.entry) => {}
                _ => self
                    .ledger
                    .mark_impossible(one.entry, "`[upstreams.NAME]` has nothing like it: see docs/proxy.md"),
            }
        }
        let none = server_url("down.invalid:1", scheme);
        section.entries.insert(0, ("to".to_owned(), self.list_servers(block, servers, "url", &none)));
        section
    }

    /// Returns the list of a group's servers, whose addresses are under `key`. One that is named twice has both weights. `none` takes the place
    /// of servers that are all down: no name ends with `.invalid` (RFC 6761 section 6.4), so that the answer is 502, as in nginx.
    pub(super) fn list_servers(
        &self,
        block: &NginxDirective,
        servers: Vec<TomlItem>,
        key: &str,
        none: &str,
    ) -> TomlItem {
        let address = |server: &TomlItem| match server {
            TomlItem::Table(entries) => {
                entries.iter().find(|(name, _)| name == key).map(|(_, item)| item.clone())
            }
            item => Some(item.clone()),
        };
        let weight = |server: &TomlItem| match server {
            TomlItem::Table(entries) => match entries.iter().find(|(name, _)| name == "weight") {
                Some((_, TomlItem::Number(weight))) => *weight,
                _ => 1,
            },
            _ => 1,
        };
        let mut all: Vec<TomlItem> = Vec::new();
        for server in servers {
            let Some(known) = all.iter_mut().find(|known| address(known) == address(&server)) else {
                all.push(server);
                continue;
            };
            let sum = (weight(known) + weight(&server)).min(1000);
            let mut entries = match std::mem::replace(known, TomlItem::Flag(false)) {
                TomlItem::Table(entries) => entries,
                item => vec![(key.to_owned(), item)],
            };
            entries.retain(|(name, _)| name != "weight");
            entries.push(("weight".to_owned(), TomlItem::Number(sum)));
            *known = TomlItem::Table(entries);
            self.ledger.mark_different(block.entry, "a server that is named twice is one with both weights");
        }
        if !all.is_empty() && all.iter().all(|server| weight(server) == 0) {
            self.ledger.mark_different(
                block.entry,
                "all servers are down: a name that never resolves is there instead",
            );
            return TomlItem::text(none);
        }
        match all.len() {
            1 => all.remove(0),
            _ => TomlItem::List(all),
        }
    }

    fn translate_server(
        &self,
        directive: &NginxDirective,
        scheme: &str,
        section: &mut TomlSection,
    ) -> TomlItem {
        let mut entries = vec![("url".to_owned(), TomlItem::text(server_url(directive.first_arg(), scheme)))];
        self.count_taken(directive);
        let mut is_down = false;
        for parameter in directive.args.iter().skip(1) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            match (name, value.parse::<u64>()) {
                ("weight", Ok(weight)) => {
                    entries.push(("weight".to_owned(), TomlItem::Number(weight.min(1000))))
                }
                ("backup", _) => entries.push(("backup".to_owned(), TomlItem::Flag(true))),
                ("max_conns", Ok(0)) => {}
                ("max_conns", Ok(count)) => entries.push(("connections".to_owned(), TomlItem::Number(count))),
                ("down", _) => is_down = true,
                ("max_fails", Ok(0)) => {
                    section.set("eject", TomlItem::Flag(false));
                    self.ledger.mark_different(directive.entry, "`eject = false` counts for the whole group");
                }
                ("max_fails", Ok(count)) => {
                    section.set_in("eject", "failures", TomlItem::Number(count.min(1000)));
                    self.ledger.mark_different(
                        directive.entry,
                        "`failures` are failures in a row, for all servers of the group; nginx counts those in `fail_timeout`",
                    );
                }
                ("fail_timeout", _) => match parse_milliseconds(value).filter(|&ms| ms >= 10) {
                    Some(ms) if section.get("eject") != Some(&TomlItem::Flag(false)) => {
                        section.set_in("eject", "first", TomlItem::text(format_duration(ms.min(300_000))));
                        self.ledger.mark_different(
                            directive.entry,
                            "a server that keeps failing is left out for twice as long each time",
                        );
                    }
                    _ => {}
                },
                ("resolve" | "service" | "route", _) => {
                    self.ledger.mark_different(
                        directive.entry,
                        format!("`{name}` is not needed, or not there: names are resolved again every 30 s"),
                    );
                }
                ("slow_start", _) => match parse_milliseconds(value) {
                    Some(ms) => section.set_text("slow_start", format_duration(ms.min(3_600_000))),
                    None => self.ledger.mark_impossible(directive.entry, "`slow_start` is not a duration"),
                },
                _ => self.ledger.mark_impossible(directive.entry, format!("`{parameter}` is not known")),
            }
        }
        if is_down {
            entries.retain(|(name, _)| name != "weight");
            entries.push(("weight".to_owned(), TomlItem::Number(0)));
        }
        match entries.len() {
            1 => entries.remove(0).1,
            _ => TomlItem::Table(entries),
        }
    }

    /// Whether `name` is an upstream group.
    pub(crate) fn is_upstream(&self, name: &str) -> bool {
        self.find_upstream(name).is_some()
    }

    /// Reports unused groups.
    pub(crate) fn report_unused_upstreams(&self, scope: &Scope<'_>) {
        let blocks = scope.levels.iter().flat_map(|level| level.iter()).filter(|one| one.name == "upstream");
        for block in blocks.filter(|block| !self.ledger.is_marked(block.entry)) {
            self.ledger.mark_different(block.entry, "no location uses it here, so it is left out");
            for one in block.block_directives() {
                self.ledger.mark_different(one.entry, "it belongs to a group that no location uses here");
            }
        }
    }
}

pub(super) fn least_conn(_: &AppliedDirective<'_>, group: &mut TomlSection) -> Outcome {
    group.set_text("balance", "least-requests");
    Outcome::TRANSLATED
}

pub(super) fn ip_hash(_: &AppliedDirective<'_>, group: &mut TomlSection) -> Outcome {
    group.set_text("balance", "hash:client");
    Outcome::differs("the whole address counts, nginx takes the first three bytes of IPv4")
}

/// Balancing of groups, and of those of streams.
pub(super) fn random(_: &AppliedDirective<'_>, group: &mut TomlSection) -> Outcome {
    group.set_text("balance", "two-choices");
    Outcome::differs("the less busy of two random servers")
}

/// The remark on keys of another hash function.
pub(super) const OTHER_HASH_REMARK: &str = "clients are spread over the servers in another way than before";

pub(super) fn hash(one: &AppliedDirective<'_>, group: &mut TomlSection) -> Outcome {
    let Some(key) = translate_hash_key(one.first_arg()) else {
        return Outcome::not_possible(
            "`balance` takes the client, the URI, one field or one cookie: choose one",
        );
    };
    group.set_text("balance", key);
    Outcome::differs(OTHER_HASH_REMARK)
}

pub(super) fn sticky(one: &AppliedDirective<'_>, group: &mut TomlSection) -> Outcome {
    if one.first_arg() != "cookie" {
        return Outcome::not_possible("`[upstreams.NAME]` has nothing like it: see docs/proxy.md");
    }
    group.set_text("balance", format!("sticky:{}", one.directive.arg_at(1)));
    Outcome::differs("the cookie's value is another one; it lasts as long as the browser's session")
}

pub(super) fn keepalive(one: &AppliedDirective<'_>, group: &mut TomlSection) -> Outcome {
    let Ok(count) = one.first_arg().parse::<u64>() else {
        return Outcome::not_possible("this is not a number");
    };
    group.set_in("keep_alive", "connections", TomlItem::Number(count.min(KEPT_CONNECTIONS_MAX)));
    Outcome::differs("connections of all threads together, where nginx counts each worker's")
}

pub(super) fn keepalive_requests(one: &AppliedDirective<'_>, group: &mut TomlSection) -> Outcome {
    let count = one.first_arg().parse().unwrap_or(REQUESTS_DEFAULT);
    group.set_in("keep_alive", "requests", TomlItem::Number(count));
    Outcome::TRANSLATED
}

pub(super) fn keepalive_timeout(one: &AppliedDirective<'_>, group: &mut TomlSection) -> Outcome {
    let ms = parse_milliseconds(one.first_arg()).unwrap_or(IDLE_DEFAULT_MS).clamp(10, 86_400_000);
    group.set_in("keep_alive", "idle", TomlItem::text(format_duration(ms)));
    Outcome::TRANSLATED
}

fn translate_hash_key(key: &str) -> Option<String> {
    Some(match key {
        "$request_uri" | "$uri" | "$scheme$proxy_host$request_uri" => "hash:uri".to_owned(),
        "$remote_addr" | "$binary_remote_addr" => "hash:client".to_owned(),
        _ => {
            let is_plain = |name: &str| !name.contains('$');
            match (key.strip_prefix("$http_"), key.strip_prefix("$cookie_")) {
                (Some(name), _) if is_plain(name) => format!("hash:header:{}", field_name(name)),
                (_, Some(name)) if is_plain(name) => format!("hash:cookie:{name}"),
                _ => return None,
            }
        }
    })
}
