//! Annotations that restrict access: client certificates, snippets, and unknown ones.

use std::net::IpAddr;

use other_servers::ingress_annotation;

use super::reader::{ANNOTATION_PREFIX, IngressReader};
use crate::data::DataNode;
use crate::draft::{TomlItem, TomlSection};

/// Annotations that apply to the hosts of an Ingress instead of its routes.
pub(super) const HOST_ANNOTATIONS: [&str; 9] = [
    "ssl-redirect",
    "force-ssl-redirect",
    "ssl-passthrough",
    "server-snippet",
    "auth-tls-secret",
    "auth-tls-verify-client",
    "auth-tls-verify-depth",
    "auth-tls-error-page",
    "auth-tls-pass-certificate-to-upstream",
];
/// The remark on snippets of nginx's configuration.
pub(super) const SNIPPET_REMARK: &str = "lines of nginx are not read: the route is closed (403); `komainu import nginx` translates them from a file of their own";
/// Settings of the controller, in its ConfigMap, that may refuse requests of all hosts.
pub(super) const RESTRICTING_SETTINGS: [&str; 15] = [
    "allowlist-source-range",
    "block-cidrs",
    "block-referers",
    "block-user-agents",
    "denylist-source-range",
    "enable-modsecurity",
    "enable-owasp-modsecurity-crs",
    "global-auth-snippet",
    "global-auth-url",
    "http-snippet",
    "location-snippet",
    "main-snippet",
    "modsecurity-snippet",
    "server-snippet",
    "whitelist-source-range",
];
/// Parts of the annotation domains of other controllers.
const CONTROLLERS: [&str; 9] = [
    "ingress",
    "traefik",
    "haproxy",
    "konghq",
    "nginx.org",
    "nginx.com",
    "projectcontour",
    "appgw",
    "ambassador",
];

/// Whether an annotation of ingress-nginx refuses no requests.
fn is_harmless(own: &str) -> bool {
    // Some are of old versions; those of TLS to Services count where the protocol asks for TLS.
    matches!(own, "client-header-timeout" | "proxy-buffers")
        || own.starts_with("proxy-ssl-")
        || ingress_annotation(own).is_some_and(|row| !row.guards)
}

impl IngressReader<'_> {
    /// Translates the networks of an annotation to `allow` or `deny`. ingress-nginx refuses all requests if one of them is
    /// none.
    pub(super) fn translate_networks(&self, value: &DataNode, key: &str, section: &mut TomlSection) {
        let text = value.text().unwrap_or("");
        let networks: Vec<&str> = text.split(',').map(str::trim).collect();
        let is_network = |text: &&str| match text.split_once('/') {
            Some((address, bits)) => {
                let most = address.parse::<IpAddr>().map(|address| if address.is_ipv4() { 32 } else { 128 });
                most.is_ok_and(|most| bits.parse::<u8>().is_ok_and(|bits| bits <= most))
            }
            None => text.parse::<IpAddr>().is_ok(),
        };
        if text.trim().is_empty() {
            value.mark_not_needed(self.ledger, "not needed: it is empty");
        } else if networks.iter().all(is_network) {
            section.set(key, TomlItem::List(networks.into_iter().map(TomlItem::text).collect()));
            value.mark_translated(self.ledger);
        } else {
            let reason =
                "an entry is no network, so ingress-nginx refuses all requests: the route is closed (403)";
            self.close_routes(value, reason, section);
        }
    }

    /// Reads the further names of hosts. Only the first Ingress of a host can name them.
    pub(super) fn read_aliases(&mut self, aliases: &DataNode, hosts: &[String]) {
        let names = aliases.text().unwrap_or("").split(',').map(|name| name.trim().to_lowercase());
        let is_name = |name: &String| {
            let rest = name.strip_prefix("*.").unwrap_or(name);
            !rest.is_empty() && rest.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-'))
        };
        let (names, others): (Vec<String>, Vec<String>) = names.partition(is_name);
        for host in hosts.iter().filter(|host| !host.is_empty()) {
            if !self.aliases.iter().any(|(known, _)| known == host) {
                self.aliases.push((host.clone(), names.clone()));
            }
        }
        if others.is_empty() {
            aliases.mark_translated(self.ledger);
        } else {
            aliases.mark_impossible(
                self.ledger,
                "`hosts` takes names and `*.example.com`: write the others there",
            );
        }
    }

    /// Closes the routes to which an untranslated annotation applies.
    pub(super) fn close_routes(&self, value: &DataNode, reason: &str, section: &mut TomlSection) {
        value.mark_impossible(self.ledger, reason);
        value.manual_comments(self.ledger).into_iter().for_each(|check| section.close(check));
    }

    /// Reports the annotations of closed routes, of which nothing was written.
    pub(super) fn mark_closed(&self, annotations: &DataNode) {
        const READ_ELSEWHERE: [&str; 3] = ["use-regex", "app-root", "server-alias"];
        for (name, value) in annotations.entries() {
            let own = name.strip_prefix(ANNOTATION_PREFIX);
            let is_judged = value.entry.is_some_and(|entry| self.ledger.is_impossible(entry));
            let is_of_routes = |own: &str| !HOST_ANNOTATIONS.contains(&own) && !READ_ELSEWHERE.contains(&own);
            if !is_judged && own.is_some_and(is_of_routes) {
                value.mark_different(self.ledger, "not written: the route is closed (403)");
            }
        }
    }

    /// Reports an annotation without a translation; its routes are closed unless it is known to refuse no
    /// requests.
    pub(super) fn report_unknown(&self, name: &str, value: &DataNode, section: &mut TomlSection) {
        let Some(own) = name.strip_prefix(ANNOTATION_PREFIX) else {
            let domain = name.split('/').next().unwrap_or("");
            let is_read = domain != "kubernetes.io" && CONTROLLERS.iter().any(|word| domain.contains(word));
            if is_read || matches!(name, "modsecurity-snippet") {
                self.close_routes(
                    value,
                    "an annotation of another controller: the route is closed (403)",
                    section,
                );
            } else {
                value.mark_not_needed(self.ledger, "not needed: no setting of ingress-nginx")
            }
            return;
        };
        match own {
            // Disabled features need no translation.
            _ if value.flag() == Some(false) => value.mark_not_needed(self.ledger, "not needed"),
            "satisfy" => value.mark_different(self.ledger, "both, addresses and users, are asked for"),
            _ if is_harmless(own) => {
                value.mark_impossible(self.ledger, "this annotation has no translation");
                value.manual_comments(self.ledger).into_iter().for_each(|check| section.comment(check));
            }
            _ if own.ends_with("-snippet") => self.close_routes(value, SNIPPET_REMARK, section),
            _ => self.close_routes(
                value,
                "this annotation has no translation: the route is closed (403)",
                section,
            ),
        }
    }

    /// Returns the `client` of `tls` for required client certificates; `Err` is the comment above the closed
    /// routes.
    pub(super) fn translate_client_certificates(
        &self,
        annotations: Option<&DataNode>,
        spec: Option<&DataNode>,
        namespace: &str,
    ) -> Option<Result<TomlItem, String>> {
        let of = |name: &str| annotations.and_then(|all| all.get(&format!("{ANNOTATION_PREFIX}{name}")));
        let secret = of("auth-tls-secret")?;
        let mode = of("auth-tls-verify-client");
        let mode_text = mode.and_then(DataNode::text).unwrap_or("on");
        if mode_text == "off" {
            [Some(secret), mode].into_iter().flatten().for_each(|one| one.mark_translated(self.ledger));
            return None;
        }
        let with_tls: Vec<String> = items(spec, "tls")
            .iter()
            .flat_map(|tls| tls.get("hosts").map_or_else(Vec::new, DataNode::texts))
            .map(|host| host.to_lowercase())
            .collect();
        let is_secured = ingress_hosts(spec).iter().all(|host| with_tls.contains(host));
        let reason = match mode_text {
            "on" | "optional" if is_secured => {
                [Some(secret), mode].into_iter().flatten().for_each(|one| {
                    one.mark_different(self.ledger, "the secret has to be mounted where the files are named");
                });
                let file = self.secret_path(secret, namespace, "ca.crt");
                let mut client = vec![("ca".to_owned(), file)];
                if mode_text == "optional" {
                    client.push(("required".to_owned(), TomlItem::Flag(false)));
                }
                for name in
                    ["auth-tls-verify-depth", "auth-tls-error-page", "auth-tls-pass-certificate-to-upstream"]
                {
                    of(name).into_iter().for_each(|one| {
                        one.mark_different(self.ledger, "services get `ssl-client-verify`, `ssl-client-subject-dn` and `ssl-client-issuer-dn`");
                    });
                }
                return Some(Ok(TomlItem::Table(client)));
            }
            "on" | "optional" => "a host of this Ingress has no `tls`: the routes are closed (403)",
            _ => {
                "certificates of clients that nobody verifies are not asked for: the routes are closed (403)"
            }
        };
        secret.mark_impossible(self.ledger, reason);
        mode.into_iter().for_each(|one| one.mark_impossible(self.ledger, reason));
        Some(Err(secret.manual_comments(self.ledger).join(" ")))
    }

    /// Returns the path of a file of a secret, whose name may include the namespace.
    fn secret_path(&self, secret: &DataNode, namespace: &str, file: &str) -> TomlItem {
        let text = secret.text().unwrap_or("");
        let (namespace, name) = text.split_once('/').unwrap_or((namespace, text));
        TomlItem::Text(format!("/etc/komainu/tls/{namespace}/{name}/{file}"))
    }

    /// Returns the `tls` of `proxy` for HTTPS services, whose certificates ingress-nginx verifies only if an
    /// annotation requests it.
    pub(super) fn translate_upstream_tls(&self, annotations: Option<&DataNode>, namespace: &str) -> TomlItem {
        let of =
            |name: &str| annotations.and_then(|all| all.get(&format!("{ANNOTATION_PREFIX}proxy-ssl-{name}")));
        let verify = of("verify").filter(|one| one.text() == Some("on") || one.flag() == Some(true));
        let mut entries = Vec::new();
        match (verify, of("secret")) {
            (Some(_), Some(secret)) => {
                entries.push(("ca".to_owned(), self.secret_path(secret, namespace, "ca.crt")))
            }
            (Some(_), None) => {}
            (None, _) => entries.push(("verify".to_owned(), TomlItem::Flag(false))),
        }
        if let Some(name) = of("name").and_then(DataNode::text) {
            entries.push(("name".to_owned(), TomlItem::text(name)));
        }
        for name in ["verify", "secret", "name", "server-name"] {
            of(name).into_iter().for_each(|one| {
                one.mark_different(self.ledger, "the secret has to be mounted where the files are named");
            });
        }
        TomlItem::Table(entries)
    }

    /// Translates annotations that apply to the hosts of an Ingress.
    pub(super) fn translate_host_annotations(
        &mut self,
        annotations: Option<&DataNode>,
        spec: Option<&DataNode>,
        clients: Option<TomlItem>,
    ) {
        let ledger = self.ledger;
        let of = |name: &str| annotations.and_then(|all| all.get(&format!("{ANNOTATION_PREFIX}{name}")));
        let forced = of("force-ssl-redirect");
        let is_forced = forced.and_then(DataNode::flag) == Some(true);
        for host in ingress_hosts(spec) {
            if let Some(client) = &clients {
                require_client_certificates(self.site_section(&host), client.clone());
            }
            if is_forced && self.site_section(&host).get("tls").is_none() {
                if host.is_empty() || host.contains('*') {
                    forced.into_iter().for_each(|one| {
                        one.mark_impossible(ledger, "this host has no `tls`: its routes are closed (403)");
                    })
                } else {
                    self.site_section(&host).set_text("tls", "auto");
                    forced.into_iter().for_each(|one| {
                        one.mark_different(
                            ledger,
                            "this host has no `tls` of its own: Komainu obtains a certificate",
                        );
                    });
                }
            }
            if let Some(snippet) = of("server-snippet") {
                snippet.mark_impossible(ledger, SNIPPET_REMARK);
            }
            if let Some(passed) = of("ssl-passthrough").filter(|one| one.flag() == Some(true)) {
                passed.mark_impossible(
                    ledger,
                    "the service decrypts: write a `[[stream]]` with `names`; the host is closed (403)",
                );
            }
            let guards =
                ["server-snippet", "ssl-passthrough", "force-ssl-redirect"].into_iter().filter_map(of);
            let checks: Vec<String> = guards.flat_map(|one| one.manual_comments(ledger)).collect();
            self.closed_hosts.extend(checks.into_iter().map(|check| (host.clone(), check)));
        }
        for name in HOST_ANNOTATIONS {
            of(name)
                .into_iter()
                .filter(|one| one.flag().is_some())
                .for_each(|one| one.mark_not_needed(ledger, "not needed"));
        }
    }
}

/// Makes a site require client certificates.
pub(super) fn require_client_certificates(site: &mut TomlSection, client: TomlItem) {
    if let Some(certificate @ TomlItem::Text(_)) = site.get("tls").cloned() {
        site.set("tls", TomlItem::Table(vec![("certificate".to_owned(), certificate)]));
    }
    site.set_in("tls", "client", client);
}

fn items<'a>(spec: Option<&'a DataNode>, key: &str) -> &'a [DataNode] {
    spec.and_then(|spec| spec.get(key)).map_or(&[][..], DataNode::items)
}

/// Returns the hosts of an Ingress.
pub(super) fn ingress_hosts(spec: Option<&DataNode>) -> Vec<String> {
    let of_rule = |rule: &DataNode| rule.get("host").and_then(DataNode::text).unwrap_or("").to_lowercase();
    let mut hosts: Vec<String> = items(spec, "rules").iter().map(of_rule).collect();
    if spec.is_some_and(|spec| spec.get("defaultBackend").is_some()) {
        hosts.push(String::new());
    }
    hosts
}

/// Passes the subject of the client certificate to services in the header fields of ingress-nginx, which
/// clients cannot set.
pub(super) fn pass_client_fields(section: &mut TomlSection) {
    let set = [
        ("ssl-client-verify", "$tls_client_verify"),
        ("ssl-client-subject-dn", "$tls_client_subject"),
        ("ssl-client-issuer-dn", "$tls_client_issuer"),
    ];
    let set = set.map(|(name, value)| (name.to_owned(), TomlItem::text(value))).into();
    let remove = TomlItem::List(vec![TomlItem::text("ssl-client-cert")]);
    let fields = vec![("set".to_owned(), TomlItem::Table(set)), ("remove".to_owned(), remove)];
    section.set_in("proxy", "request_headers", TomlItem::Table(fields));
}

/// Adds a limit to those of a section.
pub(super) fn add_limit(section: &mut TomlSection, limit: TomlItem) {
    let all = match section.get("limit").cloned() {
        None => limit,
        Some(TomlItem::List(items)) => TomlItem::List([items, vec![limit]].concat()),
        Some(one) => TomlItem::List(vec![one, limit]),
    };
    section.set("limit", all);
}

/// Sets a header field in a table such as `response_headers`.
pub(super) fn set_field(section: &mut TomlSection, table: &str, name: &str, value: String) {
    let mut fields = match section.get(table) {
        Some(TomlItem::Table(places)) => match places.iter().find(|(place, _)| place == "set") {
            Some((_, TomlItem::Table(fields))) => fields.clone(),
            _ => Vec::new(),
        },
        _ => Vec::new(),
    };
    fields.push((name.to_owned(), TomlItem::Text(value)));
    section.set_in(table, "set", TomlItem::Table(fields));
}

/// Returns the response header fields that a snippet sets, if it does nothing else.
pub(super) fn snippet_fields(text: &str) -> Option<Vec<(String, String)>> {
    let mut fields = Vec::new();
    let unquoted = |text: &str| text.trim().trim_matches(['"', '\'']).to_owned();
    for line in text.split(';').map(str::trim).filter(|line| !line.is_empty()) {
        let (directive, rest) = line.split_once(char::is_whitespace)?;
        let (name, value) = match directive {
            "more_set_headers" => {
                let pair = unquoted(rest);
                let (name, value) = pair.split_once(':')?;
                (name.trim().to_owned(), value.trim().to_owned())
            }
            "add_header" => {
                let (name, value) = rest.trim().split_once(char::is_whitespace)?;
                (name.to_owned(), unquoted(value.trim().strip_suffix("always").unwrap_or(value)))
            }
            _ => return None,
        };
        let is_name =
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        if !is_name || value.contains(['$', '"', '\'', '\\', '{', '}', '#']) {
            return None;
        }
        fields.push((name, value));
    }
    (!fields.is_empty()).then_some(fields)
}
