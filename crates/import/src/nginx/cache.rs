//! Translation of `proxy_cache` and related directives.

use super::scope::{
    Scope, TextPart, field_name, format_duration, parse_bytes, parse_milliseconds, replace_constants,
    split_template, translate_size,
};
use super::translation::Translation;
use super::tree::{NginxDirective, unique};
use crate::draft::{TomlItem, TomlSection};

const YEAR_MS: u64 = 365 * 86_400_000;
/// Maximum number of fields and cookies in a cache key.
const KEY_PARTS_MAX: usize = 16;

impl Translation<'_> {
    /// Writes the `cache` of a location.
    pub(crate) fn translate_cache(&self, protocol: &str, scope: &Scope<'_>, section: &mut TomlSection) {
        let of = |name: &str| self.take(scope, &format!("{protocol}_{name}"));
        let Some(one) = of("cache") else { return };
        if one.first_arg() == "off" {
            return;
        }
        if one.first_arg().contains('$') {
            self.ledger.mark_different(one.entry, "a zone with variables: nothing is cached here");
            section.comment(format!("CHECK: nothing is cached here, as {protocol}_cache has variables: write `cache` with rules that have `bypass = true`."));
            return;
        }
        self.translate_store(one, protocol);
        let mut cache = TomlSection::default();
        let mut rules: Vec<TomlItem> = Vec::new();
        if !self.translate_bypasses(protocol, scope, &mut rules) {
            section.comment(format!("CHECK: nothing is cached here until the conditions of {protocol}_cache_bypass and {protocol}_no_cache are written: `cache` with rules that have `bypass = true`."));
            return;
        }
        let mut common = Vec::new();
        if !self.translate_key(of("cache_key"), scope, &mut common) {
            section.comment(format!("CHECK: nothing is cached here until the key of {protocol}_cache_key is written: `cache` with a rule that has `key`."));
            return;
        }
        self.translate_ignored(of("ignore_headers"), &mut common, &mut cache);
        if let Some(uses) = of("cache_min_uses") {
            common.push((
                "min_uses".to_owned(),
                TomlItem::Number(uses.first_arg().parse().unwrap_or(1).clamp(1, 1000)),
            ));
        }
        if let Some(update) = of("cache_background_update") {
            if update.first_arg() == "on" {
                common.push(("stale_while_revalidate".to_owned(), TomlItem::text("1h")));
                cache.comment("CHECK: how long stale responses are used while new ones are fetched: stale_while_revalidate.");
            }
            self.ledger.mark_different(
                update.entry,
                "for at most an hour (`stale_while_revalidate`); nginx sets no end",
            );
        }
        if !common.is_empty() {
            rules.push(TomlItem::Table(common));
        }
        for valid in self.take_all(scope, &format!("{protocol}_cache_valid")) {
            rules.extend(self.translate_valid(valid));
        }
        match of("cache_use_stale") {
            Some(stale) if stale.first_arg() == "off" => {
                cache.set_text("grace", "0s");
            }
            Some(stale) => self.ledger.mark_different(
                stale.entry,
                "stale responses are used for an hour (`grace`) while the origin cannot be reached, and for errors as `stale_if_error` says",
            ),
            None => cache.set_text("grace", "0s"),
        }
        if let Some(methods) = of("cache_methods") {
            self.ledger
                .mark_different(methods.entry, "responses to GET and HEAD are stored, to no other method");
        }
        if !rules.is_empty() {
            cache.set("rule", TomlItem::List(rules));
        }
        cache.comments.into_iter().for_each(|comment| section.comment(comment));
        section.set(
            "cache",
            if cache.entries.is_empty() { TomlItem::Flag(true) } else { TomlItem::Table(cache.entries) },
        );
    }

    /// Translates the `proxy_cache_path` of a zone to the store, `[cache]`.
    fn translate_store(&self, zone: &NginxDirective, protocol: &str) {
        let is_zone = |path: &&NginxDirective| {
            path.args.iter().any(|arg| {
                arg.strip_prefix("keys_zone=")
                    .is_some_and(|rest| rest.split(':').next() == Some(zone.first_arg()))
            })
        };
        let Some(path) = self.http.effective_all(&format!("{protocol}_cache_path")).into_iter().find(is_zone)
        else {
            return;
        };
        let value = |name: &str| path.args.iter().find_map(|arg| arg.strip_prefix(name));
        let disk_size = value("max_size=")
            .filter(|text| parse_bytes(text).is_some_and(|bytes| bytes >= 1 << 20))
            .and_then(translate_size);
        self.change_table("cache", |section| {
            let found = section.get("disk").is_some();
            let reason = if found { "there is one store: this zone shares that of the first" } else { "responses are kept in memory (64 MiB, `memory` in `[cache]`) and on disk; `levels` and `inactive` are not needed" };
            self.ledger.mark_different(path.entry, reason);
            if !found {
                section.set_in("disk", "path", TomlItem::text(self.resolve_path(path.first_arg())));
                let text = disk_size.unwrap_or_else(|| "1GiB".to_owned());
                section.set_in("disk", "size", TomlItem::text(text));
            }
        });
    }

    fn translate_valid(&self, directive: &NginxDirective) -> Option<TomlItem> {
        let (codes, time) = match directive.args.split_last() {
            Some((time, codes)) => (codes, time),
            None => return None,
        };
        let Some(ms) = parse_milliseconds(time) else {
            self.ledger.mark_impossible(directive.entry, "this is not a duration");
            return None;
        };
        let status = |code: &String| match code.as_str() {
            "any" => vec!["2xx", "3xx", "4xx", "5xx"].into_iter().map(TomlItem::text).collect(),
            code => code.parse::<u64>().map(|code| vec![TomlItem::Number(code)]).unwrap_or_default(),
        };
        let statuses: Vec<TomlItem> = match codes {
            [] => [200, 301, 302].into_iter().map(TomlItem::Number).collect(),
            codes => codes.iter().flat_map(status).collect(),
        };
        Some(TomlItem::Table(vec![
            ("status".to_owned(), TomlItem::List(statuses)),
            ("default_ttl".to_owned(), TomlItem::text(format_duration(ms.min(YEAR_MS)))),
        ]))
    }

    /// Translates `proxy_cache_bypass` and `proxy_no_cache`: conditions of requests that bypass the cache.
    /// Returns false if a condition has no equivalent, because private responses must not be shared.
    fn translate_bypasses(&self, protocol: &str, scope: &Scope<'_>, rules: &mut Vec<TomlItem>) -> bool {
        let mut are_known = true;
        let all = |name: &str| self.take_all(scope, &format!("{protocol}_{name}"));
        for one in [all("cache_bypass"), all("no_cache")].concat() {
            for variable in &one.args {
                let condition = match variable.trim_start_matches('$') {
                    name if name.starts_with("cookie_") => {
                        Some(("cookie", TomlItem::text(&name["cookie_".len()..])))
                    }
                    name if name.starts_with("http_") => {
                        Some(("header", present_condition(&field_name(&name["http_".len()..]))))
                    }
                    name if name.starts_with("arg_") => {
                        Some(("query", present_condition(&name["arg_".len()..])))
                    }
                    _ => None,
                };
                let Some((key, condition)) = condition else {
                    self.ledger.mark_impossible(
                        one.entry,
                        format!("`{variable}` cannot be a condition, so nothing is cached here: use `cookie`, `header`, `query` or `path` of a rule with `bypass = true`"),
                    );
                    are_known = false;
                    continue;
                };
                let rule = TomlItem::Table(vec![
                    (key.to_owned(), condition),
                    ("bypass".to_owned(), TomlItem::Flag(true)),
                ]);
                if !rules.contains(&rule) {
                    rules.push(rule);
                }
                self.ledger.mark_different(
                    one.entry,
                    "such requests pass the cache in both directions, whatever the value is",
                );
            }
        }
        are_known
    }

    /// Translates `proxy_cache_key`: the parts of the key besides scheme, host and path. Returns false if a
    /// variable has no equivalent, because private responses must not be shared.
    fn translate_key(
        &self,
        one: Option<&NginxDirective>,
        scope: &Scope<'_>,
        common: &mut Vec<(String, TomlItem)>,
    ) -> bool {
        let Some(one) = one else { return true };
        let mut has_path = false;
        let mut has_query = false;
        let mut parameters = Vec::new();
        let mut fields = Vec::new();
        let mut cookies = Vec::new();
        for part in split_template(&replace_constants(one.first_arg(), scope, 0)) {
            let TextPart::Variable(name) = part else { continue };
            match name.as_str() {
                "scheme" | "https" | "host" | "http_host" | "server_name" | "server_port" | "proxy_host"
                | "proxy_port" | "request_method" | "is_args" => {}
                "uri" | "document_uri" => has_path = true,
                "request_uri" | "args" | "query_string" => has_query = true,
                name => match (
                    name.strip_prefix("http_"),
                    name.strip_prefix("cookie_"),
                    name.strip_prefix("arg_"),
                ) {
                    (Some(field), ..) => fields.push(field_name(field)),
                    (_, Some(cookie), _) => cookies.push(cookie.to_owned()),
                    (.., Some(parameter)) => parameters.push(parameter.to_owned()),
                    _ => {
                        self.ledger.mark_impossible(
                            one.entry,
                            format!("`${name}` cannot be in the key, so nothing is cached here: `key` of a rule takes fields, cookies and parameters"),
                        );
                        return false;
                    }
                },
            }
        }
        let fields = unique(fields);
        let cookies = unique(cookies);
        if fields.len() + cookies.len() > KEY_PARTS_MAX {
            let reason = "a key has at most 16 fields and cookies, so nothing is cached here";
            self.ledger.mark_impossible(one.entry, reason);
            return false;
        }
        let mut key = Vec::new();
        if !has_query && has_path {
            let query = if parameters.is_empty() {
                TomlItem::Flag(false)
            } else {
                TomlItem::text_or_list(unique(parameters))
            };
            key.push(("query".to_owned(), query));
            self.ledger.mark_different(one.entry, "the origin gets no parameters that the key leaves out");
        }
        if !fields.is_empty() || !cookies.is_empty() {
            self.ledger.mark_different(one.entry, "of each URL 16 variants by fields and cookies are kept");
        }
        for (name, parts) in [("header", fields), ("cookie", cookies)] {
            if !parts.is_empty() {
                key.push((name.to_owned(), TomlItem::text_or_list(parts)));
            }
        }
        if !key.is_empty() {
            common.push(("key".to_owned(), TomlItem::Table(key)));
        }
        true
    }

    fn translate_ignored(
        &self,
        one: Option<&NginxDirective>,
        common: &mut Vec<(String, TomlItem)>,
        cache: &mut TomlSection,
    ) {
        let Some(one) = one else { return };
        let mut ignored = Vec::new();
        for name in &one.args {
            match name.to_ascii_lowercase().as_str() {
                "cache-control" => ignored.push(TomlItem::text("Cache-Control")),
                "expires" => ignored.push(TomlItem::text("Expires")),
                "vary" => ignored.push(TomlItem::text("Vary")),
                "set-cookie" => cache.set("set_cookie", TomlItem::Flag(true)),
                _ => {
                    self.ledger.mark_different(one.entry, format!("`{name}` has no effect here in any case"))
                }
            }
        }
        if !ignored.is_empty() {
            common.push(("ignore".to_owned(), TomlItem::List(ignored)));
        }
    }
}

fn present_condition(name: &str) -> TomlItem {
    TomlItem::Table(vec![(name.to_owned(), TomlItem::Flag(true))])
}
