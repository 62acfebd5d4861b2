//! Translation of Caddy's handlers: responses, and settings for the handlers that follow.

use std::cell::Cell;

use super::changed_path::ChangedPath;
use super::scripts::{CaddyScripts, translate_duration};
use crate::data::DataNode;
use crate::draft::{TomlItem, TomlSection};
use crate::findings::{ImportLedger, Untranslatable};
use shapes::pattern::PathPattern;

/// Response header fields that apply only to requests that meet conditions.
#[derive(Debug, Clone)]
pub(super) struct FieldVariant {
    pub(super) conditions: TomlSection,
    pub(super) fields: TomlItem,
}

/// Settings of a route made by preceding handlers.
#[derive(Debug, Clone, Default)]
pub(super) struct CaddySettings {
    pub(super) section: TomlSection,
    pub(super) root: Option<String>,
    pub(super) strip_prefix: Option<String>,
    pub(super) try_files: Vec<String>,
    /// Index and front scripts of a PHP site.
    pub(super) scripts: Option<CaddyScripts>,
    /// The `php` of a route, which runs the scripts.
    pub(super) php: Option<TomlItem>,
    /// Changes of request header fields.
    pub(super) request: TomlSection,
    /// Response header fields that apply only to some requests.
    pub(super) variants: Vec<FieldVariant>,
    /// Relation of the path that the next matchers look at to the client's.
    pub(super) path: ChangedPath,
    /// Whether a rewrite changed the query.
    pub(super) has_new_query: bool,
    /// Reason why the path that the next handlers see is not known.
    pub(super) unknown_path: Option<String>,
    /// Name of the `path_regexp` in the conditions.
    pub(super) regex: Option<String>,
}

impl CaddySettings {
    /// Records the name of the path expression in a set of matchers that was translated to `conditions`.
    pub(super) fn record_regex_name(&mut self, set: Option<&DataNode>, conditions: &TomlSection) {
        match set.and_then(|set| set.get("path_regexp")) {
            Some(regex) => {
                self.regex = Some(regex.get("name").and_then(DataNode::text).unwrap_or("").to_owned());
            }
            None if conditions.get("path").is_some() => self.regex = None,
            None => {}
        }
    }

    /// Checks that a matcher looks at what the client sent: earlier handlers may have changed the query or
    /// header fields.
    ///
    /// # Errors
    /// Conditions of routes would look at other values.
    pub(super) fn check_unchanged(&self, key: &str, value: &DataNode) -> Result<(), Untranslatable> {
        // Behind them, only paths of files are left.
        if matches!(key, "path" | "path_regexp") && self.scripts.is_some() && self.php.is_none() {
            return Err("a matcher looks at the path of a script; a route, at the path of the client".into());
        }
        if key == "query" && self.has_new_query {
            return Err(
                "a matcher looks at the query after it was changed; a route, at that of the client".into()
            );
        }
        let names: Vec<&str> = match key {
            "host" => vec!["host"],
            "header" | "header_regexp" => value.entries().iter().map(|(name, _)| name.as_str()).collect(),
            _ => return Ok(()),
        };
        let is_changed = |name: &str| self.request.entries.iter().any(|(_, item)| names_field(item, name));
        if names.into_iter().any(is_changed) {
            return Err(
                "a matcher looks at a header field after it was changed; a route, at that of the client"
                    .into(),
            );
        }
        Ok(())
    }

    /// Translates the placeholders in a text to variables, including groups of the path expression. Returns
    /// `None` if one has no equivalent.
    fn translate_template(&self, text: &str) -> Option<String> {
        const START: &str = "{http.regexp.";
        if !text.contains(START) {
            return translate_template(text);
        }
        let Some(TomlItem::Text(path)) = self.section.get("path") else { return None };
        let groups = PathPattern::parse(path).ok()?.groups();
        let name = format!("{}.", self.regex.as_deref()?);
        // The text between groups may contain other placeholders.
        let mut pieces = text.split(START);
        let mut out = translate_template(pieces.next()?)?;
        for piece in pieces {
            let (group, rest) = piece.split_once('}')?;
            let group = group.strip_prefix(&name).unwrap_or(group);
            if !groups.iter().any(|known| known == group) {
                return None;
            }
            out.push_str(&format!("${{{group}}}"));
            out.push_str(&translate_template(rest)?);
        }
        Some(out)
    }
}

/// Whether changes of header fields include a field; a `*` in a name that is removed stands for any text.
fn names_field(changes: &TomlItem, name: &str) -> bool {
    match changes {
        TomlItem::Table(places) => places.iter().any(|(_, place)| match place {
            TomlItem::Table(fields) => fields.iter().any(|(field, _)| field.eq_ignore_ascii_case(name)),
            TomlItem::List(removed) => removed
                .iter()
                .filter_map(TomlItem::as_text)
                .any(|field| field.contains('*') || field.eq_ignore_ascii_case(name)),
            _ => false,
        }),
        _ => false,
    }
}

/// Addresses that the matchers `remote_ip` and `client_ip` of a server refer to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ClientAddress {
    /// Both refer to the address of the connection.
    #[default]
    Connection,
    /// `client_ip` refers to the address named by trusted proxies, like `client` of Komainu, which has no
    /// condition for the address of the connection.
    FromTrustedProxies,
    /// `client_ip` refers to an address that Komainu cannot determine.
    Unknown,
}

impl ClientAddress {
    /// Returns the reason why a route cannot express a matcher, if there is one.
    pub(super) fn unsupported_reason(self, key: &str) -> Option<&'static str> {
        match (self, key) {
            (Self::FromTrustedProxies, "remote_ip") => {
                Some("`remote_ip` asks for the address of the proxy; `client` is the one that it names")
            }
            (Self::Unknown, "client_ip") => {
                Some("`client_ip` asks for what proxies say that are not trusted here")
            }
            _ => None,
        }
    }
}

/// Reader of the routes of a configuration.
pub(super) struct CaddyReader<'a> {
    pub(super) ledger: &'a ImportLedger,
    /// Whether the route whose conditions are being read uses groups of an expression.
    pub(super) uses_groups: Cell<bool>,
    /// Addresses that the matchers of the server being read refer to.
    pub(super) client_address: Cell<ClientAddress>,
}

impl CaddyReader<'_> {
    pub(super) fn translate_fields(&self, fields: Option<&DataNode>, key: &str, section: &mut TomlSection) {
        let Some(fields) = fields else { return };
        let mut unknown = Vec::new();
        for (name, place) in [("set", "set"), ("add", "add")] {
            let mut all = Vec::new();
            for (field, values) in fields.get(name).map_or(&[][..], DataNode::entries) {
                match translate_template(&values.texts().join(", ")) {
                    Some(value) => {
                        all.push((field.clone(), TomlItem::Text(value)));
                        values.mark_translated(self.ledger);
                    }
                    None => {
                        values.mark_impossible(self.ledger, "there is no such variable here");
                        // Clients must not be able to send the field that the server would set.
                        unknown.extend((key == "request_headers").then(|| TomlItem::text(field.clone())));
                    }
                }
            }
            if !all.is_empty() {
                section.merge_in(key, place, TomlItem::Table(all));
            }
        }
        if let Some(removed) = fields.get("delete") {
            unknown.extend(removed.texts().into_iter().map(TomlItem::Text));
            removed.mark_translated(self.ledger);
        }
        if !unknown.is_empty() {
            section.merge_in(key, "remove", TomlItem::List(unknown));
        }
        if let Some(deferred) = fields.get("deferred") {
            deferred.mark_not_needed(self.ledger, "not needed: fields are set when the response is sent");
        }
    }

    pub(super) fn translate_encode(&self, handler: &DataNode, section: &mut TomlSection) {
        let mut codings: Vec<TomlItem> = Vec::new();
        let prefer = handler.get("prefer").map_or_else(Vec::new, DataNode::texts);
        let given =
            handler.get("encodings").map_or(&[][..], DataNode::entries).iter().map(|(name, _)| name.clone());
        for name in prefer.into_iter().chain(given) {
            let item = TomlItem::Text(name);
            if !codings.contains(&item) {
                codings.push(item);
            }
        }
        let min = handler.get("minimum_length").and_then(DataNode::number).unwrap_or(512);
        section.set_in("compress", "codings", TomlItem::List(codings));
        section.set_in("compress", "min", TomlItem::Text(format!("{min}B")));
        handler.mark_translated(self.ledger);
        if let Some(matcher) = handler.get("match") {
            matcher.mark_different(self.ledger, "the types are the default of `types` in `compress`");
        }
    }

    /// Translates the handler `rewrite`. Without a translation, what follows is closed: it would answer for
    /// other paths.
    pub(super) fn translate_rewrite(&self, handler: &DataNode, settings: &mut CaddySettings) {
        const KEYS: [&str; 3] = ["handler", "uri", "strip_path_prefix"];
        if let Some(uri) = handler.get("uri") {
            let text = uri.text().unwrap_or("");
            let is_first = settings.strip_prefix.is_none()
                && settings.try_files.is_empty()
                && settings.scripts.is_none()
                && settings.section.get("rewrite").is_none();
            let to = settings.translate_template(text).filter(|to| {
                ["/", "$path", "$uri"].iter().any(|start| to.starts_with(start)) && !to.contains("$http_")
            });
            match to {
                Some(to) if is_first => {
                    settings.path = settings.path.rewritten(&to);
                    settings.has_new_query |= to.contains('?');
                    settings.section.set_text("rewrite", to);
                    uri.mark_translated(self.ledger);
                }
                Some(_) => {
                    let reason = "a path is changed more than once: what follows is closed (403) until one `rewrite` of the route does all";
                    self.lose_path(uri, reason, settings);
                }
                None => {
                    let reason = "the new path is not text with variables of Komainu: what follows is closed (403) until `rewrite` of the route has it";
                    self.lose_path(uri, reason, settings);
                }
            }
        }
        if let Some(prefix) = handler.get("strip_path_prefix") {
            let text = prefix.text().unwrap_or("");
            let text = if text.starts_with('/') { text.to_owned() } else { format!("/{text}") };
            if settings.strip_prefix.is_some() || !settings.try_files.is_empty() || text.contains('{') {
                let reason = "this prefix is not removed: what follows is closed (403) until `strip_prefix` or `rewrite` of the route does it";
                self.lose_path(prefix, reason, settings);
            } else {
                let around = settings.section.get("path").and_then(TomlItem::as_text);
                settings.path = settings.path.without_prefix(&text, around);
                settings.strip_prefix = Some(text);
                prefix.mark_translated(self.ledger);
            }
        }
        for (key, value) in handler.entries().iter().filter(|(key, _)| !KEYS.contains(&key.as_str())) {
            let reason = format!(
                "`{key}` of a rewrite has no translation: what follows is closed (403) until `rewrite` of the route does it"
            );
            self.lose_path(value, &reason, settings);
        }
    }

    fn lose_path(&self, value: &DataNode, reason: &str, settings: &mut CaddySettings) {
        value.mark_impossible(self.ledger, reason);
        settings.path = ChangedPath::Unknown;
        settings.unknown_path = Some(self.ledger.check_comment(value.line, reason));
    }

    pub(super) fn translate_respond(
        &self,
        handler: &DataNode,
        settings: &CaddySettings,
        section: &mut TomlSection,
    ) {
        if let Some(abort) = handler.get("abort").filter(|abort| abort.flag() == Some(true)) {
            abort.mark_different(
                self.ledger,
                "connections are not closed without an answer: the answer is 403",
            );
            section.set("respond", TomlItem::Number(403));
            return;
        }
        let status = handler.get("status_code");
        let code = status.and_then(DataNode::number);
        if let Some(status) = status.filter(|_| code.is_none_or(|code| !(200..600).contains(&code))) {
            let reason = "a status is a number from 200 to 599: the route is closed (403)";
            status.mark_impossible(self.ledger, reason);
            section.close(self.ledger.check_comment(status.line, reason));
            return;
        }
        status.into_iter().for_each(|one| one.mark_translated(self.ledger));
        let location = handler.at(&["headers", "Location"]);
        if let Some(location) = location {
            const STARTS: [&str; 6] = ["/", "http://", "https://", "$scheme://", "$path", "$uri"];
            let to = location.texts().first().and_then(|to| settings.translate_template(to));
            let is_target = to.as_ref().is_some_and(|to| STARTS.iter().any(|start| to.starts_with(start)));
            match (to, code.unwrap_or(302)) {
                (Some(to), code @ (301 | 302 | 303 | 307 | 308)) if is_target => {
                    section.set(
                        "redirect",
                        TomlItem::Table(vec![
                            ("to".to_owned(), TomlItem::Text(to)),
                            ("status".to_owned(), TomlItem::Number(code)),
                        ]),
                    );
                    location.mark_translated(self.ledger);
                    return;
                }
                (to, _) => {
                    let reason = match to {
                        None => "the target has a variable that is not here",
                        Some(_) if !is_target => "a redirect begins with a scheme or with `/`",
                        Some(_) => "a redirect has the status 301, 302, 303, 307 or 308",
                    };
                    location.mark_impossible(self.ledger, reason);
                    section.set("respond", TomlItem::Number(501));
                    return;
                }
            }
        }
        let is_error = handler.get("handler").and_then(DataNode::text) == Some("error");
        let code = code.unwrap_or(if is_error { 500 } else { 200 });
        section.set_in("respond", "status", TomlItem::Number(code));
        if let Some(body) = handler.get("body") {
            match body.text().filter(|body| !body.contains("{http.")) {
                Some(text) => {
                    section.set_in("respond", "body", TomlItem::text(text));
                    body.mark_translated(self.ledger);
                }
                None => {
                    let reason = "the body is a text without variables";
                    body.mark_impossible(self.ledger, reason);
                    if code < 400 {
                        section.set("respond", TomlItem::Number(501));
                    }
                }
            }
        }
    }

    pub(super) fn translate_files(
        &self,
        handler: &DataNode,
        settings: &CaddySettings,
        section: &mut TomlSection,
    ) {
        const KEYS: [&str; 11] = [
            "handler",
            "root",
            "hide",
            "index_names",
            "browse",
            "canonical_uris",
            "precompressed",
            "precompressed_order",
            "pass_thru",
            "status_code",
            "etag_file_extensions",
        ];
        let is_unknown = |(key, value): &&(String, DataNode)| {
            !KEYS.contains(&key.as_str()) || key == "status_code" && value.number() != Some(200)
        };
        if let Some((key, value)) = handler.entries().iter().find(is_unknown) {
            let reason = format!("`files` has nothing like `{key}`: the route is closed (403)");
            value.mark_all_impossible(self.ledger, &reason);
            section.close(self.ledger.check_comment(value.line, &reason));
            return;
        }
        handler.get("status_code").into_iter().for_each(|one| one.mark_translated(self.ledger));
        let root = handler.get("root").and_then(DataNode::text).map(str::to_owned).or(settings.root.clone());
        let root = root.unwrap_or_else(|| ".".to_owned());
        if root.contains('{') {
            handler.mark_impossible(self.ledger, "the folder depends on the request: write a route for each");
            section.set("respond", TomlItem::Number(501));
            return;
        }
        section.set_in("files", "root", TomlItem::Text(root));
        section.set_in("files", "symlinks", TomlItem::text("on"));
        handler.get("root").into_iter().for_each(|one| one.mark_translated(self.ledger));
        if let Some(names) = handler.get("index_names") {
            section.set_in(
                "files",
                "index",
                TomlItem::List(names.texts().into_iter().map(TomlItem::Text).collect()),
            );
            names.mark_translated(self.ledger);
        }
        if let Some(browse) = handler.get("browse") {
            section.set_in("files", "listing", TomlItem::Flag(true));
            browse.mark_translated(self.ledger);
        }
        if let Some(order) = handler.get("precompressed_order").or(handler.get("precompressed")) {
            section.set_in("files", "precompressed", TomlItem::Flag(true));
            order.mark_translated(self.ledger);
            handler.get("precompressed").into_iter().for_each(|one| one.mark_translated(self.ledger));
        }
        if let Some(prefix) = &settings.strip_prefix {
            section.set_in("files", "strip_prefix", TomlItem::text(prefix.clone()));
        }
        if let Some((last, tries)) = settings.try_files.split_last() {
            if last.contains('$') {
                section.set_in(
                    "files",
                    "try",
                    TomlItem::List(settings.try_files.iter().cloned().map(TomlItem::Text).collect()),
                )
            } else {
                if tries != ["$path"] && !tries.is_empty() {
                    section.set_in(
                        "files",
                        "try",
                        TomlItem::List(tries.iter().cloned().map(TomlItem::Text).collect()),
                    );
                }
                section.set_in("files", "fallback", TomlItem::text(last.clone()));
            }
        }
    }

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
    /// accepted. Returns false for other uses of `handle_response`, which have no translation.
    pub(super) fn translate_forward_auth(&self, handler: &DataNode, section: &mut TomlSection) -> bool {
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

impl DataNode {
    /// Marks all values within this one as not possible, regardless of other verdicts.
    pub(super) fn mark_all_impossible(&self, ledger: &ImportLedger, reason: &str) {
        self.mark_different(ledger, "");
        let all: Vec<&DataNode> = self.entries().iter().map(|(_, value)| value).chain(self.items()).collect();
        all.into_iter().for_each(|one| one.mark_all_impossible(ledger, reason));
        if let Some(entry) = self.entry {
            ledger.mark_impossible(entry, reason);
        }
    }
}

/// Translates the placeholders in a text to variables. Returns `None` if one has no equivalent.
fn translate_template(text: &str) -> Option<String> {
    let mut out = text.replace('$', "$$");
    for (placeholder, variable) in [
        ("{http.request.host}", "$host"),
        ("{http.request.hostport}", "$http_host"),
        ("{http.request.uri.path}", "$path"),
        ("{http.request.uri.query}", "$args"),
        ("{http.request.uri}", "$uri"),
        ("{http.request.scheme}", "$scheme"),
        ("{http.request.method}", "$method"),
        ("{http.request.remote.host}", "$remote_addr"),
        ("{http.vars.client_ip}", "$remote_addr"),
        ("{http.reverse_proxy.upstream.hostport}", "$upstream"),
    ] {
        out = out.replace(placeholder, variable);
    }
    while let Some(at) = out.find("{http.request.header.") {
        let end = at + out[at..].find('}')?;
        let name = out[at + "{http.request.header.".len()..end].to_lowercase().replace('-', "_");
        out.replace_range(at..=end, &format!("$http_{name}"));
    }
    (!out.contains("{http.") && !out.contains("{env.")).then_some(out)
}
