//! Translation of `reverse_proxy`, and of `forward_auth`, which Caddy adapts to it.

use super::changed_path::ChangedPath;
use super::reader::{CaddyReader, CaddySettings};
use super::scripts::translate_duration;
use crate::data::DataNode;
use crate::draft::{TomlItem, TomlSection};

impl CaddyReader<'_> {
    pub(super) fn translate_proxy(
        &self,
        handler: &DataNode,
        settings: &CaddySettings,
        section: &mut TomlSection,
    ) {
        let mut own = settings.clone();
        if let Some(rewrite) = handler.get("rewrite") {
            self.translate_rewrite(rewrite, &mut own);
            if let Some(check) = &own.unknown_path {
                section.close(check.clone());
                return;
            }
            own.section.get("rewrite").into_iter().for_each(|to| section.set("rewrite", to.clone()));
        }
        let settings = &own;
        let transport = handler.get("transport");
        let protocol = transport.and_then(|one| one.get("protocol"));
        if protocol.and_then(DataNode::text).is_some_and(|name| name != "http") {
            match protocol.and_then(DataNode::text) {
                Some("fastcgi") => self.write_fastcgi_proxy(handler, settings, section),
                _ => {
                    handler.mark_impossible(self.ledger, "there is no such protocol of upstream servers");
                    section.set("respond", TomlItem::Number(501));
                }
            }
            return;
        }
        protocol.into_iter().for_each(|one| one.mark_translated(self.ledger));
        let tls = transport.and_then(|one| one.get("tls"));
        let scheme = if tls.is_some() { "https" } else { "http" };
        let mut to = Vec::new();
        for upstream in handler.get("upstreams").map_or(&[][..], DataNode::items) {
            let Some(dial) = upstream.get("dial") else { continue };
            let text = dial.text().unwrap_or("");
            let text = text.strip_prefix("tcp/").unwrap_or(text);
            match text.strip_prefix("unix/") {
                _ if text.contains('{') => dial.mark_impossible(
                    self.ledger,
                    "the server depends on the request: write a route for each",
                ),
                Some(path) => to.push(format!("unix:{path}")),
                None if text.contains(['/', '*', '?', '#', '@', ' ']) || text.is_empty() => {
                    dial.mark_impossible(self.ledger, "this is not the address of a server");
                }
                None if text.starts_with(':') => to.push(format!("{scheme}://127.0.0.1{text}")),
                None => to.push(format!("{scheme}://{text}")),
            }
            dial.mark_translated(self.ledger);
        }
        if to.is_empty() {
            handler.mark_impossible(self.ledger, "its servers are not known from the configuration");
            section.set("respond", TomlItem::Number(501));
            return;
        }
        section.set_in("proxy", "to", TomlItem::text_or_list(to));
        if let Some(prefix) = &settings.strip_prefix {
            section.set_in("proxy", "strip_prefix", TomlItem::text(prefix.clone()));
        }
        if let Some(tls) = tls {
            if let Some(insecure) = tls.get("insecure_skip_verify") {
                section.set_in(
                    "proxy",
                    "tls",
                    TomlItem::Table(vec![("verify".to_owned(), TomlItem::Flag(false))]),
                );
                insecure.mark_translated(self.ledger);
            } else {
                self.translate_upstream_tls(tls, section);
            }
        }
        self.translate_balance(handler, section);
        let mut fields = settings.request.clone();
        self.translate_fields(handler.at(&["headers", "request"]), "request_headers", &mut fields);
        self.translate_fields(handler.at(&["headers", "response"]), "response_headers", &mut fields);
        for (key, item) in fields.entries {
            let item = extract_host(item, section);
            section.set_in("proxy", &key, item);
        }
    }

    /// Translates the adapted form of `forward_auth` to `auth`: a server decides whether a request is
    /// accepted. Returns false for other uses of `handle_response`, which have no translation, and after changes of the
    /// path or query, which that server would not see.
    pub(super) fn translate_forward_auth(&self, handler: &DataNode, settings: &mut CaddySettings) -> bool {
        let is_changed =
            settings.path != ChangedPath::Same || settings.has_new_query || settings.unknown_path.is_some();
        if is_changed || !accepts_successes_alone(handler.get("handle_response")) {
            return false;
        }
        let section = &mut settings.section;
        let dials: Vec<&str> = handler
            .get("upstreams")
            .map_or(&[][..], DataNode::items)
            .iter()
            .filter_map(|upstream| upstream.get("dial")?.text())
            .collect();
        let uri = handler.at(&["rewrite", "uri"]);
        let method = handler.at(&["rewrite", "method"]);
        let ([dial], Some(uri), Some("GET")) =
            (dials.as_slice(), uri.and_then(DataNode::text), method.and_then(DataNode::text))
        else {
            return false;
        };
        let is_plain = !dial.contains(['{', '/']) && uri.starts_with('/') && !uri.contains('{');
        if !is_plain || handler.at(&["transport", "tls"]).is_some() || section.get("auth").is_some() {
            return false;
        }
        let host = if dial.starts_with(':') { format!("127.0.0.1{dial}") } else { (*dial).to_owned() };
        let mut names = Vec::new();
        collect_copied_fields(handler.get("handle_response"), &mut names);
        section.set_in("auth", "ask", TomlItem::Text(format!("http://{host}{uri}")));
        if !names.is_empty() {
            let names = names.into_iter().map(TomlItem::Text).collect();
            section.set_in("auth", "response_headers", TomlItem::List(names));
        }
        handler.mark_translated(self.ledger);
        true
    }

    /// Translates the authorities for certificates of upstream servers, and the certificate that Komainu
    /// presents.
    fn translate_upstream_tls(&self, tls: &DataNode, section: &mut TomlSection) {
        let mut entries = Vec::new();
        for (key, path) in [
            ("ca", &["root_ca_pem_files"][..]),
            ("ca", &["ca", "pem_files"][..]),
            ("certificate", &["client_certificate_file"][..]),
            ("key", &["client_certificate_key_file"][..]),
            ("name", &["server_name"][..]),
        ] {
            if let Some(found) = tls.at(path)
                && let [one] = found.texts().as_slice()
                && !one.contains('{')
                && !entries.iter().any(|(known, _)| known == key)
            {
                entries.push((key.to_owned(), TomlItem::text(one.clone())));
                found.mark_translated(self.ledger);
            }
        }
        tls.get("ca")
            .and_then(|ca| ca.get("provider"))
            .into_iter()
            .for_each(|one| one.mark_not_needed(self.ledger, ""));
        if !entries.is_empty() {
            section.set_in("proxy", "tls", TomlItem::Table(entries));
        }
    }

    pub(super) fn translate_balance(&self, handler: &DataNode, section: &mut TomlSection) {
        if let Some(policy) = handler.at(&["load_balancing", "selection_policy", "policy"]) {
            let name = match policy.text().unwrap_or("") {
                "round_robin" => Some("round-robin"),
                "least_conn" => Some("least-requests"),
                "random" | "random_choose" => Some("two-choices"),
                "ip_hash" | "client_ip_hash" => Some("hash:client"),
                "uri_hash" => Some("hash:uri"),
                "cookie" => Some("sticky"),
                _ => None,
            };
            match name {
                Some(name) => {
                    section.set_in("proxy", "balance", TomlItem::text(name));
                    policy.mark_translated(self.ledger);
                }
                None => policy.mark_impossible(self.ledger, "`balance` has no such way"),
            }
        }
        let active = handler.at(&["health_checks", "active"]);
        if let Some((active, path)) =
            active.and_then(|active| Some((active, active.get("uri").or(active.get("path"))?)))
        {
            section.set_in("proxy", "health", TomlItem::text(path.text().unwrap_or("/")));
            path.mark_translated(self.ledger);
            let mut health = vec![("path".to_owned(), TomlItem::text(path.text().unwrap_or("/")))];
            for key in ["interval", "timeout"] {
                if let Some(found) = active.get(key)
                    && let Some(item) = translate_duration(found)
                {
                    health.push((key.to_owned(), item));
                    found.mark_translated(self.ledger);
                }
            }
            if let Some(status) = active.get("expect_status")
                && let Some(code) = status.number()
            {
                let expect = if code < 10 { format!("{code}00-{code}99") } else { code.to_string() };
                health.push(("expect".to_owned(), TomlItem::Text(expect)));
                status.mark_translated(self.ledger);
            }
            if health.len() > 1 {
                section.set_in("proxy", "health", TomlItem::Table(health));
            }
        }
    }
}

/// Whether requests pass exactly if the response has a status of 2xx, with header fields of it.
fn accepts_successes_alone(responses: Option<&DataNode>) -> bool {
    let [response] = responses.map_or(&[][..], DataNode::items) else { return false };
    let matched = response.get("match").map_or(&[][..], DataNode::entries);
    let is_success = matches!(matched, [(key, status)] if key == "status_code" && status.texts() == ["2"]);
    let keeps = |(key, _): &(String, DataNode)| matches!(key.as_str(), "match" | "routes");
    let handlers = response
        .get("routes")
        .map_or(&[][..], DataNode::items)
        .iter()
        .flat_map(|route| route.get("handle").map_or(&[][..], DataNode::items));
    let only_fields = |handler: &DataNode| {
        matches!(handler.get("handler").and_then(DataNode::text), Some("vars" | "headers"))
            && handler.get("root").is_none()
    };
    is_success && response.entries().iter().all(keeps) && handlers.into_iter().all(only_fields)
}

/// Collects the response header fields that are copied to the request.
fn collect_copied_fields(within: Option<&DataNode>, names: &mut Vec<String>) {
    let Some(within) = within else { return };
    for (field, values) in within.at(&["request", "set"]).map_or(&[][..], DataNode::entries) {
        let is_passed = values.texts().iter().any(|value| value.starts_with("{http.reverse_proxy.header."));
        if is_passed && !names.contains(field) {
            names.push(field.clone());
        }
    }
    let below = within.entries().iter().map(|(_, value)| value).chain(within.items());
    below.for_each(|one| collect_copied_fields(Some(one), names));
}

/// Moves `Host` from the header fields to `host` of `proxy`.
fn extract_host(item: TomlItem, section: &mut TomlSection) -> TomlItem {
    let TomlItem::Table(mut places) = item else { return item };
    for (_, fields) in &mut places {
        if let TomlItem::Table(fields) = fields
            && let Some(at) = fields.iter().position(|(name, _)| name.eq_ignore_ascii_case("host"))
        {
            let (_, value) = fields.remove(at);
            let value = match value {
                TomlItem::Text(text) if text == "$upstream" => TomlItem::text("upstream"),
                TomlItem::Text(text) if text.contains('$') => TomlItem::text("pass"),
                other => other,
            };
            section.set_in("proxy", "host", value);
        }
    }
    places.retain(|(_, fields)| !matches!(fields, TomlItem::Table(fields) if fields.is_empty()));
    TomlItem::Table(places)
}
