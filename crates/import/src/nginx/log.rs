//! Translation of logs and trusted proxies.

use super::client_addresses::ClientAddresses;
use super::scope::{Scope, TemplateDestination, translate_template};
use super::translation::Translation;
use super::tree::NginxDirective;
use crate::draft::{TomlItem, TomlSection};

/// nginx's default access log.
pub(super) const DEFAULT_LOG: &str = "/var/log/nginx/access.log";

impl<'d> Translation<'d> {
    /// Returns the access logs of a place, each as a table; empty if they are off.
    pub(crate) fn translate_access_logs(&self, scope: &Scope<'d>) -> Vec<TomlItem> {
        let all = scope.effective_all("access_log");
        if all.is_empty() {
            let mut log = TomlSection::default();
            log.set_text("access", "combined");
            log.set_text("file", DEFAULT_LOG);
            return vec![TomlItem::Table(log.entries)];
        }
        if let Some(off) = all.iter().find(|one| one.first_arg() == "off") {
            self.count_taken(off);
            return Vec::new();
        }
        all.iter().for_each(|one| self.count_taken(one));
        let log = |one: &&NginxDirective| {
            let mut log = TomlSection::default();
            self.translate_access_log(one, &mut log).then_some(TomlItem::Table(log.entries))
        };
        all.iter().filter_map(log).collect()
    }

    /// Reports `access_log` of locations: logs belong to whole sites.
    pub(crate) fn report_location_logs(&self, all: &[&NginxDirective]) {
        for one in all.iter().filter(|one| one.name == "access_log" && !self.ledger.is_marked(one.entry)) {
            let reason = match one.first_arg() {
                "off" => "a log is for a whole site: `only` limits it by status, time or share",
                _ => "a log is for a whole site",
            };
            self.ledger.mark_different(one.entry, reason);
        }
    }

    /// Writes the error log.
    pub(crate) fn translate_error_log(&self, all: &[&NginxDirective], log: &mut TomlSection) {
        let mut has_errors = false;
        for one in all.iter().filter(|one| one.name == "error_log") {
            if has_errors {
                self.ledger.mark_different(one.entry, "there is one error log for all");
                continue;
            }
            has_errors = true;
            match one.first_arg() {
                "stderr" | "/dev/stderr" => log.set_text("errors", "stderr"),
                "/dev/null" => self.ledger.mark_different(one.entry, "errors are written to stderr"),
                name if name.starts_with("syslog:") || name.starts_with("memory:") => {
                    self.ledger.mark_impossible(
                        one.entry,
                        "errors are written to a file or to stderr, which a service manager keeps",
                    );
                    continue;
                }
                name => log.set_text("errors", self.resolve_path(name)),
            }
            let level = match one.arg_at(1) {
                "debug" => Some("debug"),
                "info" | "notice" => None,
                "" | "error" | "crit" | "alert" | "emerg" => Some("error"),
                _ => Some("warn"),
            };
            if let Some(level) = level {
                log.set_text("level", level);
            }
            self.ledger
                .mark_different(one.entry, "the levels are \"error\", \"warn\", \"info\" and \"debug\"");
        }
    }

    /// Translates one access log. Returns false if its destination has no equivalent.
    fn translate_access_log(&self, directive: &NginxDirective, log: &mut TomlSection) -> bool {
        let format = match directive.arg_at(1) {
            name if name.contains('=') => "",
            name => name,
        };
        let known =
            self.http.effective_all("log_format").into_iter().find(|found| found.first_arg() == format);
        match known {
            None => log.set_text("access", "combined"),
            Some(found) => self.translate_format(found, log),
        }
        for word in directive.args.iter().skip(1).filter(|word| word.contains('=')) {
            match word.strip_prefix("if=") {
                Some(condition) => match self.mapped_statuses(condition) {
                    Some(statuses) => log.set_in("only", "status", statuses),
                    None => self.ledger.mark_different(
                        directive.entry,
                        "`if` is left out: `only` limits the log by status, time or share",
                    ),
                },
                None => self.ledger.mark_different(
                    directive.entry,
                    format!("`{word}` is left out: lines are written within a tenth of a second"),
                ),
            }
        }
        match directive.first_arg() {
            "/dev/stdout" => log.set_text("file", "stdout"),
            "/dev/stderr" => log.set_text("file", "stderr"),
            name if name.starts_with("syslog:") => match parse_syslog(name) {
                Some(to) => log.set("file", to),
                None => {
                    self.ledger
                        .mark_impossible(directive.entry, "its server is an address, or a socket (`unix:`)");
                    return false;
                }
            },
            name if name.contains('$') => {
                self.ledger.mark_impossible(
                    directive.entry,
                    "the name of a log has no variables: give each site its `logs`",
                );
                return false;
            }
            name => log.set_text("file", self.resolve_path(name)),
        }
        true
    }

    /// Returns the statuses for which a `map` of `$status` has a true value.
    fn mapped_statuses(&self, condition: &str) -> Option<TomlItem> {
        let variable = condition.strip_prefix('$')?;
        let map = self
            .http
            .effective_all("map")
            .into_iter()
            .find(|map| map.arg_at(1).strip_prefix('$') == Some(variable))?;
        let is_true = |line: &NginxDirective| !matches!(line.first_arg(), "" | "0");
        let rest = map.block_directives().iter().find(|line| line.name == "default").is_some_and(is_true);
        let mut classes = [rest; 5];
        for line in map.block_directives().iter().filter(|line| line.name != "default") {
            let digits = line.name.strip_prefix("~^")?;
            let digits =
                digits.strip_prefix('[').and_then(|digits| digits.strip_suffix(']')).unwrap_or(digits);
            for digit in digits.chars() {
                let class = digit.to_digit(10).filter(|digit| (1..=5).contains(digit))?;
                classes[class as usize - 1] = is_true(line);
            }
        }
        let is_of_status = matches!(map.first_arg(), "$status" | "${status}");
        let named = (1..=5).zip(classes).filter(|(_, is_meant)| *is_meant);
        let names: Vec<String> = named.map(|(class, _)| format!("{class}xx")).collect();
        if !is_of_status || names.is_empty() {
            return None;
        }
        self.not_needed(map, "`only` of the log that names it");
        Some(TomlItem::text_or_list(names))
    }

    fn translate_format(&self, found: &NginxDirective, log: &mut TomlSection) {
        let skip = if found.arg_at(1).starts_with("escape=") { 2 } else { 1 };
        let text: String = found.args.iter().skip(skip).cloned().collect();
        let text = text.replace("$request\"", "$request_method $request_uri $server_protocol\"");
        let text = text.replace("$request ", "$request_method $request_uri $server_protocol ");
        let scope = Scope::of(Vec::new());
        let combined = r#"$remote_addr - $remote_user [$time_local] "$request_method $request_uri $server_protocol" $status $body_bytes_sent "$http_referer" "$http_user_agent""#;
        self.count_taken(found);
        if text == combined {
            log.set_text("access", "combined");
            return;
        }
        match translate_template(&text, &scope, TemplateDestination::Log, &|name| self.use_map(name)) {
            Ok(text) if !text.trim_start().starts_with('{') => {
                let has_times =
                    ["$upstream_ms", "$connect_ms", "$first_byte_ms"].iter().any(|time| text.contains(time));
                log.set_text("access", text);
                if has_times {
                    self.ledger.mark_different(found.entry, "times of upstream servers are in milliseconds; `$upstream_ms` ends with the head of the response")
                }
            }
            Ok(_) => {
                log.set_text("access", "json");
                self.ledger.mark_different(
                    found.entry,
                    "`access = \"json\"`: names are those of `fields` in `[log]`",
                );
            }
            Err(reason) => {
                log.set_text("access", "combined");
                self.ledger.mark_impossible(
                    found.entry,
                    format!("{reason}: the log is \"combined\"; `access` takes a text with variables"),
                );
            }
        }
    }

    /// Translates `set_real_ip_from` to `trusted_proxies`, if client addresses are those of nginx then.
    pub(crate) fn translate_real_ip(&self, all: &[&NginxDirective], top: &mut TomlSection) {
        const NAMES: [&str; 3] = ["set_real_ip_from", "real_ip_header", "real_ip_recursive"];
        let named = all.iter().filter(|one| NAMES.contains(&one.name.as_str()));
        let (from, recursive) = match &self.client_addresses {
            ClientAddresses::Peer => {
                named.for_each(|one| {
                    self.not_needed(one, "not needed: no `set_real_ip_from` stands beside it")
                });
                return;
            }
            ClientAddresses::Unknown { remedy, .. } => {
                for one in named {
                    self.ledger.mark_impossible(one.entry, *remedy);
                    self.ledger.manual_comment(one.entry).into_iter().for_each(|check| top.comment(check));
                }
                return;
            }
            ClientAddresses::ProxyProtocol { .. } => {
                let reason =
                    "`proxy_protocol` of `listen` has the networks; connections from others are answered 403";
                named.for_each(|one| self.ledger.mark_different(one.entry, reason));
                return;
            }
            ClientAddresses::Field { from, recursive } => (from, *recursive),
        };
        named.for_each(|one| self.count_taken(one));
        let from = TomlItem::List(from.iter().map(|text| source_item(text)).collect());
        let item = match recursive {
            true => from,
            false => TomlItem::Table(vec![
                ("from".to_owned(), from),
                ("recursive".to_owned(), TomlItem::Flag(false)),
            ]),
        };
        top.set("trusted_proxies", item);
    }
}

/// A source of `trusted_proxies` and `proxy_protocol`.
pub(super) fn source_item(text: &str) -> TomlItem {
    TomlItem::text(if text == "unix:" { "unix" } else { text })
}

/// Parses a destination such as `syslog:server=ADDRESS,facility=local7,tag=shop`.
fn parse_syslog(text: &str) -> Option<TomlItem> {
    let mut to = TomlSection::default();
    for word in text.strip_prefix("syslog:")?.split(',') {
        match word.split_once('=') {
            Some(("server", path)) if path.starts_with("unix:") => to.set_text("syslog", path),
            Some(("server", address)) => {
                let has_port = address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
                to.set_text("syslog", format!("udp://{address}{}", if has_port { "" } else { ":514" }));
            }
            Some((key @ ("facility" | "tag"), value)) => to.set_text(key, value),
            // Komainu sends the severity of the entry and the host name.
            _ => {}
        }
    }
    to.get("syslog")?;
    Some(TomlItem::Table(to.entries))
}
