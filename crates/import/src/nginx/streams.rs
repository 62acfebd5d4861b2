//! Translation of `stream`: proxied TCP and UDP connections.

use super::access::NO_EFFECT_REMARK;
use super::directive::Part;
use super::proxy::TIMEOUT_RANGE_MS;
use super::scope::{Scope, format_clamped_duration, parse_milliseconds};
use super::translation::{AppliedDirective, Translation};
use super::tree::NginxDirective;
use super::upstream::OTHER_HASH_REMARK;
use crate::draft::{TomlItem, TomlSection};
use crate::findings::{Outcome, Untranslatable};

/// Directives of `stream` that apply only where others name them.
const DEFINITIONS: [&str; 6] = ["server", "upstream", "map", "geo", "split_clients", "limit_conn_zone"];
/// Maximum of `connections_per_client`.
const CONNECTIONS_MAX: u64 = 1_000_000;

/// Destination of the connections of a server.
struct StreamTarget<'d> {
    /// Server names (SNI) of the connections; empty for all others.
    names: Vec<String>,
    target: &'d str,
    /// Whether some of its connections may be for another server in nginx.
    is_closed: bool,
}

impl<'d> Translation<'d> {
    /// Writes a `[[stream]]` for each server.
    pub(crate) fn translate_streams(&self, block: &'d NginxDirective) -> Vec<TomlSection> {
        let scope = Scope::of(vec![block.block_directives()]);
        let mut found = Vec::new();
        for server in block.block_directives().iter().filter(|one| one.name == "server") {
            found.extend(self.translate_stream_server(server, &scope.with_block(server.block_directives())));
        }
        for one in block.block_directives() {
            match one.name.as_str() {
                "log_format" | "access_log" | "error_log" => self.ledger.mark_different(
                    one.entry,
                    "each connection has a line in the access log of `[log]`, in its format (`log = false` for none)",
                ),
                "upstream" | "map" if !self.ledger.is_marked(one.entry) => {
                    self.ledger.mark_different(one.entry, "no stream that was translated uses it, so it is left out");
                    one.block_directives().iter().for_each(|inner| {
                        self.ledger.mark_different(inner.entry, "it belongs to a block that no stream uses");
                    });
                }
                _ => {}
            }
        }
        found
    }

    fn translate_stream_server(&self, server: &'d NginxDirective, scope: &Scope<'d>) -> Vec<TomlSection> {
        let lost = |reason: &str| {
            self.ledger.mark_impossible(server.entry, reason);
            for one in server.block_directives() {
                self.ledger.mark_impossible(one.entry, "it belongs to a stream that was not translated");
            }
            Vec::new()
        };
        let Some(pass) = scope.innermost_last("proxy_pass") else {
            return lost("it has no `proxy_pass`: only a site can answer by itself");
        };
        let mut listen = Vec::new();
        let mut listen_udp = Vec::new();
        for one in scope.innermost().iter().filter(|one| one.name == "listen") {
            let has = |name: &str| one.args.iter().skip(1).any(|arg| arg == name);
            if has("ssl") {
                return lost(
                    "only sites decrypt TLS: pass it through (`[[stream]]` without `ssl`), or keep nginx for this part",
                );
            }
            let of_protocol = if has("udp") { &mut listen_udp } else { &mut listen };
            of_protocol.push((translate_address(one.first_arg()), has("proxy_protocol")));
        }
        if scope.effective("proxy_ssl").is_some_and(|one| one.first_arg() == "on") {
            return lost("streams do not use TLS towards their servers: keep nginx for this part");
        }
        let targets = match self.stream_targets(pass, scope) {
            Ok(targets) => targets,
            Err(reason) => return lost(reason.as_ref()),
        };
        self.count_taken(pass);
        let mut found = Vec::new();
        for (listen, is_udp) in [(listen, false), (listen_udp, true)] {
            if !listen.is_empty() {
                let listen = self.translate_stream_addresses(listen, scope);
                let build = |target| self.build_stream(target, (&listen, is_udp), scope);
                found.extend(targets.iter().filter_map(build));
            }
        }
        found
    }

    /// Returns the addresses of a stream; wildcard addresses of IPv4 and IPv6 are combined.
    fn translate_stream_addresses(&self, all: Vec<(String, bool)>, scope: &Scope<'d>) -> TomlItem {
        self.take_in_block(scope.innermost(), "listen").for_each(drop);
        let from = self.take_all(scope, "set_real_ip_from");
        let from: Vec<TomlItem> = from.iter().map(|one| TomlItem::text(one.first_arg())).collect();
        let mut items: Vec<TomlItem> = Vec::new();
        for (text, proxy_protocol) in &all {
            let port = text.strip_prefix("0.0.0.0:").or_else(|| text.strip_prefix("[::]:"));
            let pair = |start: &str| {
                port.is_some_and(|port| all.iter().any(|(other, _)| *other == format!("{start}{port}")))
            };
            let text = match port {
                Some(port) if pair("0.0.0.0:") && pair("[::]:") => format!(":{port}"),
                _ => text.clone(),
            };
            let item = if *proxy_protocol {
                let networks = if from.is_empty() {
                    ["0.0.0.0/0", "::/0"].map(TomlItem::text).into()
                } else {
                    from.clone()
                };
                let entries =
                    [("address", TomlItem::Text(text)), ("proxy_protocol", TomlItem::List(networks))];
                TomlItem::Table(entries.map(|(key, item)| (key.to_owned(), item)).into())
            } else {
                TomlItem::Text(text)
            };
            if !items.contains(&item) {
                items.push(item);
            }
        }
        match items.len() {
            1 => items.remove(0),
            _ => TomlItem::List(items),
        }
    }

    /// Returns the destinations of `proxy_pass`: a single one, or one for each server name.
    fn stream_targets(
        &self,
        pass: &'d NginxDirective,
        scope: &Scope<'d>,
    ) -> Result<Vec<StreamTarget<'d>>, Untranslatable> {
        let to = pass.first_arg();
        let Some(variable) = to.strip_prefix('$') else {
            return Ok(vec![StreamTarget { names: Vec::new(), target: to, is_closed: false }]);
        };
        let preread = scope.effective("ssl_preread");
        let is_it =
            |one: &&&NginxDirective| one.name == "map" && one.arg_at(1).strip_prefix('$') == Some(variable);
        let map = scope.levels[0].iter().filter(|one| one.name == "map").collect::<Vec<_>>();
        let map = map.iter().find(is_it).filter(|map| map.first_arg() == "$ssl_preread_server_name");
        let (Some(preread), Some(map)) = (preread.filter(|one| one.first_arg() == "on"), map) else {
            return Err("the server depends on the connection: a stream chooses only by the name that clients ask for (`names`)".into());
        };
        self.count_taken(preread);
        let mut found: Vec<StreamTarget<'d>> = Vec::new();
        let mut rest = None;
        let hostnames = map.block_directives().iter().any(|line| line.name == "hostnames");
        let has_include = map.block_directives().iter().any(|line| line.name == "include");
        let mut has_lost = has_include;
        for line in map.block_directives() {
            let to = line.first_arg();
            let names = match line.name.as_str() {
                "hostnames" | "volatile" => continue,
                "default" => {
                    rest = Some(to).filter(|to| !to.is_empty());
                    continue;
                }
                "include" => None,
                // Without `hostnames`, this is a text that no client sends.
                name if !hostnames && name.starts_with(['*', '.']) => continue,
                name => map_key_names(name),
            };
            match names {
                Some(names) => match found.iter_mut().find(|known| known.target == to) {
                    Some(known) => known.names.extend(names),
                    None => found.push(StreamTarget { names, target: to, is_closed: has_include }),
                },
                None => {
                    has_lost = true;
                    self.ledger.mark_impossible(
                        map.entry,
                        format!("`{}`: `names` takes names and `*.example.com`: the stream for other names is closed; write each name", line.name),
                    );
                }
            }
        }
        self.count_taken(map);
        found.extend(rest.map(|to| StreamTarget { names: Vec::new(), target: to, is_closed: has_lost }));

        if found.iter().any(|target| target.target.contains('$')) {
            Err("one of the servers of its map depends on the connection".into())
        } else {
            Ok(found)
        }
    }

    /// Builds a stream; `is_udp`: of datagrams.
    fn build_stream(
        &self,
        target: &StreamTarget<'d>,
        (listen, is_udp): (&TomlItem, bool),
        scope: &Scope<'d>,
    ) -> Option<TomlSection> {
        let mut section = TomlSection::default();
        if is_udp {
            section.set_text("protocol", "udp");
        }
        section.set("listen", listen.clone());
        if !target.names.is_empty() {
            section.set("names", TomlItem::text_or_list(target.names.clone()));
        }
        let group =
            scope.levels[0].iter().find(|one| one.name == "upstream" && one.first_arg() == target.target);
        match group {
            Some(group) => self.translate_stream_group(group, &mut section),
            None => section.set_text("to", target.target),
        }
        self.apply(Part::StreamSettings, scope, &mut section);
        self.translate_stream_access(scope, &mut section);
        for one in scope.innermost().iter().filter(|one| !self.ledger.is_marked(one.entry)) {
            self.ledger.mark_impossible(one.entry, "a stream has nothing like it: docs/streams.md");
        }
        if target.is_closed {
            let reason = "CHECK: the map of `ssl_preread` chooses another server for some of these clients.";
            close_stream(reason.to_owned(), &mut section);
        }
        self.close_untranslated_stream(scope, &mut section);
        Some(section)
    }

    /// Refuses all clients of a stream if a directive that applies to it is not translated and may restrict access, or
    /// change what is passed on.
    fn close_untranslated_stream(&self, scope: &Scope<'d>, section: &mut TomlSection) {
        let is_lost = |one: &&NginxDirective| {
            self.ledger.is_impossible(one.entry)
                && !self.is_harmless_for_streams(&one.name)
                && !DEFINITIONS.contains(&one.name.as_str())
                // Without `proxy_ssl`, these have no effect.
                && !one.name.starts_with("proxy_ssl_")
        };
        let mut all = scope.levels.iter().rev().flat_map(|level| level.iter());
        let Some(lost) = all.find(is_lost) else { return };
        close_stream(self.ledger.manual_comment(lost.entry).unwrap_or_default(), section);
    }

    fn translate_stream_access(&self, scope: &Scope<'d>, section: &mut TomlSection) {
        let mut allowed = Vec::new();
        let mut denied = Vec::new();
        let mut closed = false;
        let mut open = false;
        for one in self.take_all_of(scope, &["allow", "deny"]) {
            let network = if one.first_arg() == "unix:" { "unix" } else { one.first_arg() };
            match (one.name.as_str(), network) {
                _ if closed || open => self.not_needed(one, NO_EFFECT_REMARK),
                ("deny", "all") => closed = true,
                (_, "all") => open = true,
                ("deny", network) => denied.push(TomlItem::text(network)),
                (_, network) => allowed.push(TomlItem::text(network)),
            }
        }
        let has_protocol =
            |one: &NginxDirective| one.name == "listen" && one.args.iter().any(|arg| arg == "proxy_protocol");
        let asks = closed || !denied.is_empty();
        if asks && scope.innermost().iter().any(has_protocol) && scope.effective("set_real_ip_from").is_none()
        {
            let reason = "without `set_real_ip_from`, nginx looks at the address of the proxy, and `proxy_protocol` gives that of its client here: the stream is closed";
            scope
                .effective_all_of(&["allow", "deny"])
                .iter()
                .for_each(|one| self.ledger.mark_impossible(one.entry, reason));
            return;
        }
        if closed {
            if allowed.is_empty() {
                section.set("deny", TomlItem::List(["0.0.0.0/0", "::/0"].map(TomlItem::text).into()))
            } else {
                section.set("allow", TomlItem::List(allowed))
            }
        }
        if !denied.is_empty() {
            section.set("deny", TomlItem::List(denied));
        }
    }

    /// Translates an `upstream` of `stream`.
    fn translate_stream_group(&self, group: &'d NginxDirective, section: &mut TomlSection) {
        self.count_taken(group);
        let scope = Scope::of(vec![group.block_directives()]);
        let mut servers = Vec::new();
        for one in group.block_directives() {
            match one.name.as_str() {
                "server" => servers.push(self.translate_stream_server_line(one, section)),
                _ if self.apply_one(Part::StreamUpstream, one, &scope, section) => {}
                _ if self.ledger.is_marked(one.entry) => {}
                _ => self.ledger.mark_impossible(one.entry, "a stream has nothing like it: docs/streams.md"),
            }
        }
        section.set("to", self.list_servers(group, servers, "address", "down.invalid:1"));
    }

    fn translate_stream_server_line(
        &self,
        directive: &NginxDirective,
        section: &mut TomlSection,
    ) -> TomlItem {
        self.count_taken(directive);
        let mut entries = vec![("address".to_owned(), TomlItem::text(directive.first_arg()))];
        let mut is_down = false;
        for word in directive.args.iter().skip(1) {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            match (name, value.parse::<u64>()) {
                ("weight", Ok(weight)) => {
                    entries.push(("weight".to_owned(), TomlItem::Number(weight.min(1000))))
                }
                ("backup", _) => entries.push(("backup".to_owned(), TomlItem::Flag(true))),
                ("down", _) => is_down = true,
                ("max_conns", Ok(count)) if count > 0 => {
                    entries.push(("connections".to_owned(), TomlItem::Number(count.min(1_000_000))));
                }
                ("max_fails", Ok(0)) => {
                    section.set("eject", TomlItem::Flag(false));
                    self.ledger
                        .mark_different(directive.entry, "`eject = false` counts for the whole stream");
                }
                ("max_fails", Ok(count)) => {
                    section.set_in("eject", "failures", TomlItem::Number(count.min(1000)));
                    self.ledger.mark_different(
                        directive.entry,
                        "`failures` are failures in a row, for all servers of the stream",
                    );
                }
                ("fail_timeout", _) => {
                    if let Some(ms) = parse_milliseconds(value)
                        .filter(|_| section.get("eject") != Some(&TomlItem::Flag(false)))
                    {
                        section.set_in(
                            "eject",
                            "first",
                            TomlItem::text(format_clamped_duration(ms, 10, 300_000).0),
                        );
                        self.ledger.mark_different(
                            directive.entry,
                            "a server that keeps failing is left out for twice as long each time",
                        );
                    }
                }
                ("slow_start", _) => {
                    let ms = parse_milliseconds(value).unwrap_or(0);
                    section.set_text("slow_start", format_clamped_duration(ms, 0, 3_600_000).0);
                }
                _ => self.ledger.mark_different(
                    directive.entry,
                    format!("`{name}` is left out: names are resolved again every 30 s"),
                ),
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
}

/// Refuses all clients of a stream.
fn close_stream(check: String, section: &mut TomlSection) {
    section.comment(check);
    section.comment("This stream refuses all clients: remove `deny` if they may connect.");
    section.remove("allow");
    section.set("deny", TomlItem::List(["0.0.0.0/0", "::/0", "unix"].map(TomlItem::text).into()));
}

/// Whether the stream that is being written relays datagrams.
fn is_udp(stream: &TomlSection) -> bool {
    stream.get("protocol").is_some()
}

/// Translates the number of responses, which has no effect for connections.
pub(super) fn proxy_responses(one: &AppliedDirective<'_>, stream: &mut TomlSection) -> Outcome {
    let Ok(count) = one.first_arg().parse::<u64>() else {
        return Outcome::not_possible("this is not a number");
    };
    if is_udp(stream) {
        stream.set("responses", TomlItem::Number(count.min(1_000_000)));
    }
    Outcome::TRANSLATED
}

pub(super) fn proxy_protocol(one: &AppliedDirective<'_>, stream: &mut TomlSection) -> Outcome {
    if one.is_on() && is_udp(stream) {
        return Outcome::not_possible(
            "over UDP there is version 2 alone (`proxy_protocol = \"v2\"`), in each datagram",
        );
    }
    if one.is_on() {
        stream.set_text("proxy_protocol", "v1");
    }
    Outcome::TRANSLATED
}

pub(super) fn proxy_timeout(one: &AppliedDirective<'_>, stream: &mut TomlSection) -> Outcome {
    one.write_time(stream, ("timeouts", "idle"), TIMEOUT_RANGE_MS)
}

/// Translates a limit on the connections of each client.
pub(super) fn limit_conn(one: &AppliedDirective<'_>, stream: &mut TomlSection) -> Outcome {
    let name = format!("zone={}:", one.first_arg());
    let is_zone = |zone: &&NginxDirective| {
        zone.name == "limit_conn_zone" && zone.args.iter().any(|arg| arg.starts_with(&name))
    };
    let zone = one.scope.levels.first().and_then(|level| level.iter().find(is_zone));
    let count = one.directive.arg_at(1).parse::<u64>();
    let (Some(zone), Ok(count)) = (zone, count) else {
        return Outcome::not_possible("there is no such `limit_conn_zone`, or no number");
    };
    one.translation.count_taken(zone);
    if !matches!(zone.first_arg(), "$binary_remote_addr" | "$remote_addr") {
        return Outcome::not_possible(
            "a stream counts the connections of each client (`connections_per_client`), or all of them (`connections`)",
        );
    }
    let known = match stream.get("connections_per_client") {
        Some(TomlItem::Number(known)) => *known,
        _ => CONNECTIONS_MAX,
    };
    stream.set("connections_per_client", TomlItem::Number(count.clamp(1, known)));
    Outcome::differs("each stream counts by itself, and an IPv6 network of 64 bits is one client")
}

pub(super) fn least_conn(_: &AppliedDirective<'_>, stream: &mut TomlSection) -> Outcome {
    stream.set_text("balance", "least-connections");
    Outcome::TRANSLATED
}

pub(super) fn hash(one: &AppliedDirective<'_>, stream: &mut TomlSection) -> Outcome {
    if !matches!(one.first_arg(), "$remote_addr" | "$binary_remote_addr") {
        return Outcome::not_possible(
            "`balance` of a stream takes the client's address alone (`hash:client`)",
        );
    }
    stream.set_text("balance", "hash:client");
    Outcome::differs(OTHER_HASH_REMARK)
}

/// Returns a listening address in Komainu's notation.
fn translate_address(text: &str) -> String {
    match text {
        port if port.bytes().all(|byte| byte.is_ascii_digit()) => format!("0.0.0.0:{port}"),
        text => match text.strip_prefix("*:") {
            Some(port) => format!("0.0.0.0:{port}"),
            None => text.to_owned(),
        },
    }
}

/// Translates a key of a map to server names; `None` if it is not a name.
fn map_key_names(text: &str) -> Option<Vec<String>> {
    let is_name = |name: &str| !name.is_empty() && !name.contains(['*', '~', '$', '\\', '(']);
    match (text.strip_prefix("*."), text.strip_prefix('.')) {
        (Some(rest), _) if is_name(rest) => Some(vec![text.to_lowercase()]),
        (_, Some(rest)) if is_name(rest) => {
            Some(vec![rest.to_lowercase(), format!("*.{}", rest.to_lowercase())])
        }
        _ => is_name(text).then(|| vec![text.to_lowercase()]),
    }
}
