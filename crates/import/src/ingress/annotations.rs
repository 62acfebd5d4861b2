//! Annotations that apply to all routes of an Ingress.

use super::error_server;
use super::guards;
use super::reader::{ANNOTATION_PREFIX, IngressReader};
use super::values::{translate_body_size, translate_sign_in, with_timeout};
use crate::data::DataNode;
use crate::draft::{TomlItem, TomlSection};

impl IngressReader<'_> {
    /// Translates the less common annotations. Returns false if the annotation is unknown or has been
    /// reported already.
    fn translate_rare_annotation(&self, name: &str, value: &DataNode, section: &mut TomlSection) -> bool {
        let text = value.text().unwrap_or("");
        let networks = || TomlItem::List(text.split(',').map(|one| TomlItem::text(one.trim())).collect());
        match name.strip_prefix(ANNOTATION_PREFIX).unwrap_or(name) {
            "enable-cors" => {
                if value.flag() == Some(true) && section.get("cors").is_none() {
                    section.set("cors", TomlItem::Flag(true));
                }
            }
            "cors-allow-origin" | "cors-allow-methods" | "cors-allow-headers" | "cors-expose-headers" => {
                let key = match name.strip_prefix(ANNOTATION_PREFIX).unwrap_or(name) {
                    "cors-allow-origin" => "origins",
                    "cors-allow-methods" => "methods",
                    "cors-allow-headers" => "headers",
                    _ => "expose",
                };
                section.set_in("cors", key, networks());
            }
            "cors-allow-credentials" => {
                section.set_in("cors", "credentials", TomlItem::Flag(value.flag() == Some(true)));
            }
            "cors-max-age" => {
                let age = text.parse::<u64>().unwrap_or(600).min(86_400);
                section.set_in("cors", "max_age", TomlItem::Text(format!("{age}s")));
            }
            "limit-rate" if text != "0" => {
                section.set(
                    "bandwidth",
                    TomlItem::Text(format!("{}B/s", text.parse::<u64>().unwrap_or(0).max(1024))),
                );
            }
            "limit-connections" => {
                let count = TomlItem::Number(text.parse::<u64>().unwrap_or(1).clamp(1, 1_000_000));
                let limit = ("concurrent".to_owned(), count);
                let status = ("status".to_owned(), TomlItem::Number(503));
                guards::add_limit(section, TomlItem::Table(vec![limit, status]));
            }
            "proxy-next-upstream-tries" => match text.parse::<u64>() {
                Ok(count @ 1..=100) => {
                    section.set_in(
                        "proxy",
                        "retry",
                        TomlItem::Table(vec![("attempts".to_owned(), TomlItem::Number(count))]),
                    );
                }
                _ => {
                    value.mark_different(self.ledger, "`attempts` in `retry` is 3");
                    return false;
                }
            },
            "x-forwarded-prefix" => {
                let set = TomlItem::Table(vec![("X-Forwarded-Prefix".to_owned(), TomlItem::text(text))]);
                section.set_in("proxy", "request_headers", TomlItem::Table(vec![("set".to_owned(), set)]));
            }
            "load-balance" => match text {
                "round_robin" => {}
                _ => {
                    value.mark_different(self.ledger, "the cluster balances between the pods of a service");
                    return false;
                }
            },
            "configuration-snippet" => match guards::snippet_fields(text) {
                Some(fields) => {
                    for (field, value) in fields {
                        guards::set_field(section, "response_headers", &field, value);
                    }
                }
                None => {
                    self.close_routes(value, guards::SNIPPET_REMARK, section);
                    return false;
                }
            },
            _ => return false,
        }
        true
    }

    /// Translates annotations that apply to all routes; returns the scheme of the services.
    pub(super) fn translate_annotations(
        &self,
        all: Option<&DataNode>,
        namespace: &str,
        section: &mut TomlSection,
    ) -> &'static str {
        let mut scheme = "http";
        section.set_in("limits", "body", TomlItem::text("1MiB"));
        for (name, value) in all.map_or(&[][..], DataNode::entries) {
            let text = value.text().unwrap_or("");
            let networks = || TomlItem::List(text.split(',').map(|one| TomlItem::text(one.trim())).collect());
            match name.strip_prefix(ANNOTATION_PREFIX).unwrap_or(name) {
                "proxy-body-size" => {
                    section.set_in("limits", "body", TomlItem::Text(translate_body_size(text)))
                }
                "proxy-connect-timeout" => {
                    section.set_in("proxy", "timeouts", with_timeout(section, "connect", text))
                }
                "proxy-read-timeout" => {
                    section.set_in("proxy", "timeouts", with_timeout(section, "head", text));
                    section.set_in("proxy", "timeouts", with_timeout(section, "between", text));
                }
                "backend-protocol" => match text.to_uppercase().as_str() {
                    "HTTPS" | "GRPCS" => {
                        scheme = "https";
                        section.set_in("proxy", "tls", self.translate_upstream_tls(all, namespace));
                    }
                    "GRPC" => scheme = "h2c",
                    _ => {}
                },
                "whitelist-source-range" | "allowlist-source-range" => {
                    self.translate_networks(value, "allow", section);
                    continue;
                }
                "denylist-source-range" => {
                    self.translate_networks(value, "deny", section);
                    continue;
                }
                "limit-rps" | "limit-rpm" => {
                    let unit = if name.ends_with("rps") { "s" } else { "m" };
                    let count = text.parse::<u64>().unwrap_or(1).clamp(1, 1_000_000);
                    let factor = match burst_factor(all) {
                        Ok(factor) => factor,
                        Err(multiplier) => {
                            let reason = "it is no number: the route is closed (403)";
                            self.close_routes(multiplier, reason, section);
                            continue;
                        }
                    };
                    guards::add_limit(
                        section,
                        TomlItem::Table(vec![
                            ("rate".to_owned(), TomlItem::Text(format!("{count}/{unit}"))),
                            ("burst".to_owned(), TomlItem::Number((count * factor).min(1_000_000))),
                            ("status".to_owned(), TomlItem::Number(503)),
                        ]),
                    );
                }
                "limit-burst-multiplier" => {
                    let has = |name: &str| {
                        all.is_some_and(|all| all.get(&format!("{ANNOTATION_PREFIX}{name}")).is_some())
                    };
                    if burst_factor(all).is_err() {
                        continue;
                    }
                    if !has("limit-rps") && !has("limit-rpm") {
                        value.mark_not_needed(self.ledger, "not needed: there is no limit of a rate");
                        continue;
                    }
                }
                "permanent-redirect" | "temporal-redirect" => {
                    let status = if name.contains("permanent") { 301 } else { 302 };
                    section.set(
                        "redirect",
                        TomlItem::Table(vec![
                            ("to".to_owned(), TomlItem::Text(text.replace("$request_uri", "$uri"))),
                            ("status".to_owned(), TomlItem::Number(status)),
                        ]),
                    );
                }
                "upstream-vhost" => section.set_in("proxy", "host", TomlItem::text(text)),
                "affinity" if text == "cookie" => {
                    section.set_in("proxy", "balance", TomlItem::text("sticky"))
                }
                "auth-url" if !text.contains('$') => {
                    section.set_in("auth", "ask", TomlItem::Text(with_path(text)));
                }
                "auth-url" => {
                    let reason = "`ask` in `auth` takes a URL without variables: the route is closed (403) until it has one";
                    self.close_routes(value, reason, section);
                    continue;
                }
                "auth-type" | "auth-secret" => {
                    let reason = "users and passwords are in a file (`auth = { basic = FILE }`): the route is closed (403) until `auth` asks for them";
                    self.close_routes(value, reason, section);
                    continue;
                }
                "auth-signin" => match sign_in_target(all, text) {
                    Some(to) => section.set_in("auth", "sign_in", TomlItem::Text(to)),
                    None => {
                        let reason = "write `sign_in` in `auth`, with `$url` for the URL that was asked for";
                        value.mark_impossible(self.ledger, reason);
                        continue;
                    }
                },
                "auth-signin-redirect-param" => {}
                "auth-response-headers" => section.set_in("auth", "response_headers", networks()),
                "proxy-buffering"
                | "proxy-buffer-size"
                | "proxy-buffers-number"
                | "client-body-buffer-size"
                | "proxy-http-version"
                | "proxy-send-timeout"
                | "service-upstream"
                | "proxy-request-buffering" => {
                    value.mark_not_needed(self.ledger, "not needed");
                    continue;
                }
                "custom-http-errors" if error_server(all).is_some() => {}
                "default-backend" if error_server(all).is_some() => {
                    value.mark_different(
                        self.ledger,
                        "it answers in place of errors, and not where the Service of a path has no endpoint",
                    );
                    continue;
                }
                "rewrite-target" | "use-regex" | "app-root" | "server-alias" => continue,
                _ if guards::HOST_ANNOTATIONS
                    .contains(&name.strip_prefix(ANNOTATION_PREFIX).unwrap_or("")) =>
                {
                    continue;
                }
                _ if self.translate_rare_annotation(name, value, section) => {}
                _ => {
                    self.report_unknown(name, value, section);
                    continue;
                }
            }
            value.mark_translated(self.ledger);
        }
        if section.is_closed() {
            section.entries.retain(|(key, _)| key == "respond");
            all.into_iter().for_each(|all| self.mark_closed(all));
        }
        scheme
    }
}

/// Returns the factor between the rate of a limit and its burst; `Err` is the annotation that is no number.
fn burst_factor(all: Option<&DataNode>) -> Result<u64, &DataNode> {
    const DEFAULT: u64 = 5;
    let name = format!("{ANNOTATION_PREFIX}limit-burst-multiplier");
    let Some(multiplier) = all.and_then(|all| all.get(&name)) else { return Ok(DEFAULT) };
    let text = multiplier.text().and_then(|text| text.trim().parse::<u64>().ok());
    match text.or_else(|| multiplier.number()) {
        // ingress-nginx takes its default for 0.
        Some(0) => Ok(DEFAULT),
        Some(factor @ 1..=1_000_000) => Ok(factor),
        _ => Err(multiplier),
    }
}

/// Returns a URL with the path `/` where it has none before its query.
fn with_path(url: &str) -> String {
    let host_at = url.find("://").map_or(0, |at| at + 3);
    match url[host_at..].find(['/', '?']) {
        Some(at) if url[host_at + at..].starts_with('?') => {
            let (server, query) = url.split_at(host_at + at);
            format!("{server}/{query}")
        }
        _ => url.to_owned(),
    }
}

/// Returns the target of the redirect to the login page, if `auth-url` is translated.
fn sign_in_target(all: Option<&DataNode>, text: &str) -> Option<String> {
    let other = |name: &str| all?.get(&format!("{ANNOTATION_PREFIX}{name}")).and_then(DataNode::text);
    other("auth-url").filter(|url| !url.contains('$'))?;
    translate_sign_in(text, other("auth-signin-redirect-param"))
}
