//! Logs.

use super::scope::{Scope, TemplateUse, template};
use super::tree::NginxDirective;
use super::work::Translation;
use crate::draft::{TomlItem, TomlSection};

impl Translation<'_> {
    /// Writes `[log]`: one access log for all sites, and the error log.
    pub(crate) fn logs(&self, all: &[&NginxDirective], log: &mut TomlSection) {
        let mut first: Option<&NginxDirective> = None;
        for one in all.iter().filter(|one| one.name == "access_log") {
            match (one.first(), first) {
                ("off", _) => self.ledger.differs(
                    one.entry,
                    "there is one access log for all: `only` in `[log]` limits it by status, time or share",
                ),
                (_, None) => {
                    first = Some(one);
                    self.access_log(one, log);
                }
                (_, Some(_)) => {
                    self.ledger.differs(
                        one.entry,
                        "there is one access log for all sites; `$host` in its format says which it is",
                    );
                }
            }
        }
        if first.is_none() {
            log.set_text("access", "combined");
            log.set_text("file", "/var/log/nginx/access.log");
            log.comment("The default of nginx.");
        }
        let mut has_errors = false;
        for one in all.iter().filter(|one| one.name == "error_log") {
            if has_errors {
                self.ledger.differs(one.entry, "there is one error log for all");
                continue;
            }
            has_errors = true;
            match one.first() {
                "stderr" | "/dev/stderr" => log.set_text("errors", "stderr"),
                "/dev/null" => self.ledger.differs(one.entry, "errors are written to stderr"),
                name if name.starts_with("syslog:") || name.starts_with("memory:") => {
                    self.ledger.impossible(
                        one.entry,
                        "errors are written to a file or to stderr, which a service manager keeps",
                    );
                    continue;
                }
                name => log.set_text("errors", self.file(name)),
            }
            let level = match one.arg(1) {
                "debug" => Some("debug"),
                "info" | "notice" => None,
                "" | "error" | "crit" | "alert" | "emerg" => Some("error"),
                _ => Some("warn"),
            };
            if let Some(level) = level {
                log.set_text("level", level);
            }
            self.ledger.differs(one.entry, "the levels are \"error\", \"warn\", \"info\" and \"debug\"");
        }
    }

    fn access_log(&self, one: &NginxDirective, log: &mut TomlSection) {
        let format = match one.arg(1) {
            name if name.contains('=') => "",
            name => name,
        };
        let known = self.http.all("log_format").into_iter().find(|found| found.first() == format);
        match known {
            None => log.set_text("access", "combined"),
            Some(found) => self.format(found, log),
        }
        for word in one.args.iter().skip(1).filter(|word| word.contains('=')) {
            match word.starts_with("if=") {
                true => self.ledger.differs(
                    one.entry,
                    "`if` is left out: `only` in `[log]` limits the log by status, time or share",
                ),
                false => self.ledger.differs(
                    one.entry,
                    format!("`{word}` is left out: lines are written within a tenth of a second"),
                ),
            }
        }
        match one.first() {
            "/dev/stdout" => log.set_text("file", "stdout"),
            "/dev/stderr" => log.set_text("file", "stderr"),
            name if name.starts_with("syslog:") || name.contains('$') => {
                self.ledger.impossible(one.entry, "the log is one file, stdout or stderr");
                return;
            }
            name => log.set_text("file", self.file(name)),
        }
        self.ledger.translated(one.entry);
    }

    fn format(&self, found: &NginxDirective, log: &mut TomlSection) {
        let skip = if found.arg(1).starts_with("escape=") { 2 } else { 1 };
        let text: String = found.args.iter().skip(skip).cloned().collect();
        let text = text
            .replace("$remote_user", "-")
            .replace("${remote_user}", "-")
            .replace("$request\"", "$request_method $request_uri $server_protocol\"");
        let text = text.replace("$request ", "$request_method $request_uri $server_protocol ");
        let scope = Scope::of(Vec::new());
        let combined = r#"$remote_addr - - [$time_local] "$request_method $request_uri $server_protocol" $status $body_bytes_sent "$http_referer" "$http_user_agent""#;
        if text == combined {
            log.set_text("access", "combined");
            self.ledger.translated(found.entry);
            return;
        }
        match template(&text, &scope, TemplateUse::Log, &|name| self.map_variable(name)) {
            Ok(text) if !text.trim_start().starts_with('{') => {
                log.set_text("access", text);
                let what = "`$remote_user` is `-`; times of upstream servers are in milliseconds";
                self.ledger.differs(found.entry, what);
            }
            Ok(_) => {
                log.set_text("access", "json");
                self.ledger
                    .differs(found.entry, "`access = \"json\"`: names are those of `fields` in `[log]`");
            }
            Err(reason) => {
                log.set_text("access", "combined");
                self.ledger.impossible(
                    found.entry,
                    format!("{reason}: the log is \"combined\"; `access` takes a text with variables"),
                );
            }
        }
    }

    /// Writes the `trusted_proxies` of `set_real_ip_from`.
    pub(crate) fn proxies(&self, all: &[&NginxDirective], top: &mut TomlSection) {
        let mut from = Vec::new();
        for one in all.iter().filter(|one| one.name == "set_real_ip_from") {
            let item = match one.first() {
                "unix:" => TomlItem::text("unix"),
                name if name.parse::<std::net::IpAddr>().is_ok() || name.contains('/') => {
                    TomlItem::text(name)
                }
                _ => {
                    self.ledger.impossible(one.entry, "a trusted proxy is an address or a network");
                    continue;
                }
            };
            if !from.contains(&item) {
                from.push(item);
            }
            self.ledger.translated(one.entry);
        }
        for one in all.iter().filter(|one| one.name == "real_ip_header") {
            match one.first().to_ascii_lowercase().as_str() {
                "x-forwarded-for" => self.ledger.translated(one.entry),
                "proxy_protocol" => self
                    .ledger
                    .needless(one.entry, "`proxy_protocol` of `listen` takes the address from there"),
                "forwarded" => self.ledger.translated(one.entry),
                _ => self.ledger.impossible(
                    one.entry,
                    "the client's address is read from X-Forwarded-For or Forwarded: have the proxy send one",
                ),
            }
        }
        for one in all.iter().filter(|one| one.name == "real_ip_recursive") {
            match one.first() {
                "on" => self.ledger.translated(one.entry),
                _ => self
                    .ledger
                    .differs(one.entry, "trusted proxies in the field are passed over, as with `on`"),
            }
        }
        if !from.is_empty() {
            top.set("trusted_proxies", TomlItem::List(from));
        }
    }
}
