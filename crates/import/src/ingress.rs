//! Ingresses of Kubernetes, with the annotations of ingress-nginx that are used most.

use std::path::Path;

use crate::data::{DatumAt, json, read};
use crate::draft::{Draft, SiteDraft, TomlItem, TomlSection};
use crate::findings::{ImportError, ImportLedger, Imported};
use crate::paths::{from_literal, from_regex};

/// What differs between the servers whatever a configuration says.
const GENERAL: [&str; 4] = [
    "Services are reached by their names in the cluster's DNS (`http://NAME.NAMESPACE.svc:PORT`), through the cluster's balancing, not pod by pod.",
    "The result is one file: Komainu does not watch the cluster. A change of an Ingress needs another import.",
    "`Host` is passed on as the client sent it, and X-Forwarded-For, X-Forwarded-Proto and X-Forwarded-Host are sent, as ingress-nginx does.",
    "Files of certificates are where secrets have to be mounted: /etc/komainu/tls/NAMESPACE/SECRET/.",
];
const PREFIX: &str = "nginx.ingress.kubernetes.io/";

/// A route of a host, with what decides its order.
struct IngressRoute {
    host: String,
    is_exact: bool,
    length: usize,
    section: TomlSection,
}

struct IngressReader<'a> {
    ledger: &'a ImportLedger,
    routes: Vec<IngressRoute>,
    /// What sites have beside their routes, by host.
    sites: Vec<(String, TomlSection)>,
}

/// Translates Ingresses: the JSON that `kubectl get ingress -A -o json` prints.
///
/// # Errors
/// A file that cannot be read, or is no JSON: YAML is one of these.
pub fn import(path: &Path) -> Result<Imported, ImportError> {
    let (name, text) = read(path)?;
    let ledger = ImportLedger::default();
    let mut config = json(&name, &text).map_err(|error| {
        let remedy = "YAML is not read: `kubectl get ingress -A -o json > ingress.json`, or `kubectl create --dry-run=client -o json -f FILE` without a cluster, makes the JSON that is";
        ImportError { message: format!("{}; {remedy}", error.message), ..error }
    })?;
    config.enter(&ledger, &name, "");
    let mut reader = IngressReader { ledger: &ledger, routes: Vec::new(), sites: Vec::new() };
    let items = config.get("items").map_or(vec![&config], |items| items.items().iter().collect());
    for item in items {
        match item.get("kind").and_then(DatumAt::text) {
            Some("Ingress") => reader.ingress(item),
            _ => item.impossible(&ledger, "this is no Ingress"),
        }
    }
    for key in ["apiVersion", "kind", "metadata"] {
        config.get(key).into_iter().for_each(|one| one.needless(&ledger, "not needed"));
    }
    config.impossible(&ledger, "there is nothing like it here");
    let mut draft = Draft::default();
    draft.top.set("listen", TomlItem::text(":80"));
    reader.write(&mut draft);
    if draft.sites.iter().any(|site| site.section.get("tls").is_some()) {
        draft.top.set("listen", TomlItem::List([":80", ":443"].map(TomlItem::text).into()));
    }
    draft.gather();
    Ok(Imported {
        toml: draft.text(),
        remarks: ledger.into_remarks(),
        general: GENERAL.map(str::to_owned).into(),
    })
}

impl<'a> IngressReader<'a> {
    fn write(mut self, draft: &mut Draft) {
        // As ingress-nginx does it: exact paths first, then the longest.
        self.routes.sort_by_key(|route| (!route.is_exact, std::cmp::Reverse(route.length)));
        let mut hosts: Vec<String> = Vec::new();
        for route in &self.routes {
            if !hosts.contains(&route.host) {
                hosts.push(route.host.clone());
            }
        }
        hosts.sort_by_key(|host| (host.is_empty(), host.clone()));
        for host in hosts {
            let mut site = SiteDraft::default();
            if !host.is_empty() {
                site.section.set("hosts", TomlItem::List(vec![TomlItem::text(host.clone())]));
            }
            if let Some((_, more)) = self.sites.iter().find(|(known, _)| *known == host) {
                site.section.entries.extend(more.entries.clone());
                site.section.comments.extend(more.comments.clone());
            }
            let own = self.routes.iter().filter(|route| route.host == host);
            site.routes = own.map(|route| route.section.clone()).collect();
            draft.sites.push(site);
        }
    }

    fn site(&mut self, host: &str) -> &mut TomlSection {
        let at = match self.sites.iter().position(|(known, _)| known == host) {
            Some(at) => at,
            None => {
                self.sites.push((host.to_owned(), TomlSection::default()));
                self.sites.len() - 1
            }
        };
        &mut self.sites[at].1
    }

    fn ingress(&mut self, item: &DatumAt) {
        let ledger = self.ledger;
        let namespace =
            item.at(&["metadata", "namespace"]).and_then(DatumAt::text).unwrap_or("default").to_owned();
        let annotations = item.at(&["metadata", "annotations"]);
        let of = |name: &str| annotations.and_then(|all| all.get(&format!("{PREFIX}{name}")));
        if of("canary").and_then(DatumAt::flag) == Some(true) {
            item.impossible(
                ledger,
                "requests are not split by canaries: give the servers of `[upstreams.NAME]` weights",
            );
            return;
        }
        let mut common = TomlSection::default();
        let scheme = self.annotations(annotations, &mut common);
        let rewrite = of("rewrite-target");
        let spec = item.get("spec");
        for rule in spec.and_then(|spec| spec.get("rules")).map_or(&[][..], DatumAt::items) {
            let host = rule.get("host").and_then(DatumAt::text).unwrap_or("").to_lowercase();
            rule.get("host").into_iter().for_each(|one| one.translated(ledger));
            if let Some(redirect) = of("ssl-redirect").filter(|one| one.flag() == Some(false)) {
                self.site(&host).set("redirect_https", TomlItem::Flag(false));
                redirect.translated(ledger);
            }
            for path in rule.at(&["http", "paths"]).map_or(&[][..], DatumAt::items) {
                self.path(path, &host, &namespace, &common, (scheme, rewrite, of("use-regex")));
            }
        }
        if let Some(backend) = spec.and_then(|spec| spec.get("defaultBackend")) {
            let mut section = common.clone();
            self.backend(backend, &namespace, scheme, &mut section);
            self.routes.push(IngressRoute { host: String::new(), is_exact: false, length: 0, section });
        }
        self.tls(spec, &namespace, annotations);
        for key in ["apiVersion", "kind", "status"] {
            item.get(key).into_iter().for_each(|one| one.needless(ledger, "not needed"));
        }
        if let Some(class) = spec.and_then(|spec| spec.get("ingressClassName")) {
            class.needless(ledger, "not needed: all Ingresses of the file are translated");
        }
        annotations.into_iter().for_each(|all| all.impossible(ledger, "this annotation has no translation"));
        item.get("metadata").into_iter().for_each(|all| {
            all.entries()
                .iter()
                .filter(|(key, _)| key != "annotations")
                .for_each(|(_, one)| one.needless(ledger, "not needed"));
        });
        item.impossible(ledger, "there is nothing like it here");
    }

    fn tls(&mut self, spec: Option<&DatumAt>, namespace: &str, annotations: Option<&DatumAt>) {
        let issuer = annotations
            .into_iter()
            .flat_map(DatumAt::entries)
            .find(|(name, _)| name.starts_with("cert-manager.io/"));
        for tls in spec.and_then(|spec| spec.get("tls")).map_or(&[][..], DatumAt::items) {
            let secret = tls.get("secretName").and_then(DatumAt::text).unwrap_or("").to_owned();
            for host in tls.get("hosts").map_or_else(Vec::new, DatumAt::texts) {
                let file =
                    |name: &str| TomlItem::Text(format!("/etc/komainu/tls/{namespace}/{secret}/{name}"));
                let value = match (&issuer, secret.is_empty()) {
                    (None, false) => TomlItem::Table(vec![
                        ("certificate".to_owned(), file("tls.crt")),
                        ("key".to_owned(), file("tls.key")),
                    ]),
                    _ => TomlItem::text("auto"),
                };
                self.site(&host.to_lowercase()).set("tls", value);
            }
            match &issuer {
                Some(_) => {
                    tls.differs(self.ledger, "Komainu obtains the certificate by itself (`tls = \"auto\"`)")
                }
                None => tls.differs(self.ledger, "the secret has to be mounted where the files are named"),
            }
        }
        if let Some((_, issuer)) = issuer {
            issuer.differs(self.ledger, "Komainu obtains the certificate by itself (`[acme]`)");
        }
    }

    fn path(
        &mut self,
        path: &DatumAt,
        host: &str,
        namespace: &str,
        common: &TomlSection,
        (scheme, rewrite, regex): (&str, Option<&DatumAt>, Option<&DatumAt>),
    ) {
        let text = path.get("path").and_then(DatumAt::text).unwrap_or("/").to_owned();
        let kind = path.get("pathType").and_then(DatumAt::text).unwrap_or("Prefix");
        let is_regex = regex.and_then(DatumAt::flag) == Some(true)
            || rewrite.and_then(DatumAt::text).is_some_and(|to| to.contains('$'));
        regex.into_iter().for_each(|one| one.translated(self.ledger));
        for key in ["path", "pathType"] {
            path.get(key).into_iter().for_each(|one| one.translated(self.ledger));
        }
        let captured = text.strip_suffix("(/|$)(.*)").or(text.strip_suffix("/(.*)"));
        let plain = captured.unwrap_or(&text).trim_end_matches('/').to_owned();
        let mut section = TomlSection::default();
        let patterns = match (kind, is_regex && captured.is_none()) {
            (_, true) => from_regex(&format!("^{text}"), true).map(|set| set.patterns),
            ("Exact", _) => from_literal(&text, false)
                .map(|one| vec![one])
                .ok_or_else(|| "no path pattern can be this".to_owned()),
            _ if plain.is_empty() => Ok(Vec::new()),
            _ => from_literal(&plain, false)
                .map(|one| vec![one.clone(), format!("{one}/*")])
                .ok_or_else(|| "no path pattern can be this".to_owned()),
        };
        match patterns {
            Ok(patterns) if patterns.is_empty() => {}
            Ok(patterns) => {
                if is_regex && captured.is_none() {
                    path.differs(
                        self.ledger,
                        "the patterns match more than the regular expression, in lower and in upper case",
                    );
                }
                section.set("path", TomlItem::texts(patterns));
            }
            Err(reason) => {
                path.impossible(self.ledger, &reason);
                path.get("path").into_iter().filter_map(|one| one.entry).for_each(|entry| {
                    self.ledger.impossible(entry, format!("{reason}: no route was written for it"));
                });
                return;
            }
        }
        section.entries.extend(common.entries.clone());
        section.comments.extend(common.comments.clone());
        self.backend(path.get("backend").unwrap_or(path), namespace, scheme, &mut section);
        if let Some(target) = rewrite {
            rewritten(self.ledger, target, &plain, captured.is_some(), &mut section);
        }
        self.routes.push(IngressRoute {
            host: host.to_owned(),
            is_exact: kind == "Exact",
            length: text.len(),
            section,
        });
    }

    fn backend(&self, backend: &DatumAt, namespace: &str, scheme: &str, section: &mut TomlSection) {
        let service = backend.get("service");
        let name = service.and_then(|service| service.get("name")).and_then(DatumAt::text);
        let port = service.and_then(|service| service.get("port"));
        let number = port.and_then(|port| port.get("number")).and_then(DatumAt::number);
        if section.get("redirect").is_some() || section.get("respond").is_some() {
            section.remove("proxy");
            backend.needless(self.ledger, "not needed: an annotation answers");
            return;
        }
        let Some(name) = name else {
            backend.impossible(self.ledger, "a backend is a service here; the route answers 501");
            section.remove("proxy");
            section.set("respond", TomlItem::Number(501));
            return;
        };
        backend.translated(self.ledger);
        let number = number.unwrap_or_else(|| {
            port.into_iter().for_each(|port| {
                port.differs(self.ledger, "ports have numbers here: 80 was written for this name")
            });
            80
        });
        section.set_in("proxy", "to", TomlItem::Text(format!("{scheme}://{name}.{namespace}.svc:{number}")));
    }

    /// Writes what annotations say for all routes; returns the scheme of the services.
    fn annotations(&self, all: Option<&DatumAt>, section: &mut TomlSection) -> &'static str {
        let mut scheme = "http";
        section.set_in("limits", "body", TomlItem::text("1MiB"));
        for (name, value) in all.map_or(&[][..], DatumAt::entries) {
            let text = value.text().unwrap_or("");
            let networks = || TomlItem::List(text.split(',').map(|one| TomlItem::text(one.trim())).collect());
            match name.strip_prefix(PREFIX).unwrap_or(name) {
                "proxy-body-size" => section.set_in("limits", "body", TomlItem::Text(body_size(text))),
                "proxy-connect-timeout" => {
                    section.set_in("proxy", "timeouts", seconds(section, "connect", text))
                }
                "proxy-read-timeout" => {
                    section.set_in("proxy", "timeouts", seconds(section, "head", text));
                    section.set_in("proxy", "timeouts", seconds(section, "between", text));
                }
                "backend-protocol" => match text.to_uppercase().as_str() {
                    "HTTPS" | "GRPCS" => {
                        scheme = "https";
                        section.set_in(
                            "proxy",
                            "tls",
                            TomlItem::Table(vec![("verify".to_owned(), TomlItem::Flag(false))]),
                        );
                    }
                    "GRPC" => scheme = "h2c",
                    _ => {}
                },
                "whitelist-source-range" | "allowlist-source-range" => section.set("allow", networks()),
                "denylist-source-range" => section.set("deny", networks()),
                "limit-rps" | "limit-rpm" => {
                    let unit = if name.ends_with("rps") { "s" } else { "m" };
                    let count = text.parse::<u64>().unwrap_or(1).clamp(1, 1_000_000);
                    section.set(
                        "limit",
                        TomlItem::Table(vec![
                            ("rate".to_owned(), TomlItem::Text(format!("{count}/{unit}"))),
                            ("burst".to_owned(), TomlItem::Number((count * 5).min(1_000_000))),
                            ("status".to_owned(), TomlItem::Number(503)),
                        ]),
                    );
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
                "auth-url" if !text.contains('$') => section.set_in("auth", "ask", TomlItem::text(text)),
                "auth-url" | "auth-type" | "auth-secret" | "auth-tls-secret" => {
                    section.set("respond", TomlItem::Number(403));
                    section.comment(format!(
                        "CHECK: `{name}` decided who may ask: the route is closed until `auth` does."
                    ));
                    value.impossible(self.ledger, "users and passwords are in a file (`auth = { basic = FILE }`): the route is closed (403)");
                    continue;
                }
                "auth-response-headers" => section.set_in("auth", "response_headers", networks()),
                "proxy-buffering"
                | "proxy-buffer-size"
                | "proxy-buffers-number"
                | "client-body-buffer-size"
                | "proxy-http-version"
                | "proxy-send-timeout"
                | "service-upstream"
                | "kubernetes.io/ingress.class"
                | "proxy-request-buffering"
                | "kubectl.kubernetes.io/last-applied-configuration"
                | "force-ssl-redirect" => {
                    value.needless(self.ledger, "not needed");
                    continue;
                }
                "ssl-redirect" | "rewrite-target" | "use-regex" => continue,
                _ => continue,
            }
            value.translated(self.ledger);
        }
        if section.get("respond").is_some() {
            section.remove("redirect");
        }
        scheme
    }
}

/// The `timeouts` of `proxy` with one more.
fn seconds(section: &TomlSection, key: &str, text: &str) -> TomlItem {
    let value = format!("{}s", text.trim_end_matches('s').parse::<u64>().unwrap_or(60).clamp(1, 86_400));
    let mut entries = match section.get("proxy") {
        Some(TomlItem::Table(entries)) => match entries.iter().find(|(name, _)| name == "timeouts") {
            Some((_, TomlItem::Table(known))) => known.clone(),
            _ => Vec::new(),
        },
        _ => Vec::new(),
    };
    entries.push((key.to_owned(), TomlItem::Text(value)));
    TomlItem::Table(entries)
}

/// A size of nginx.
fn body_size(text: &str) -> String {
    let digits = text.trim_end_matches(|c: char| c.is_alphabetic());
    match (digits.parse::<u64>(), text.to_lowercase().chars().last()) {
        (Ok(0), _) => "unlimited".to_owned(),
        (Ok(count), Some('k')) => format!("{count}KiB"),
        (Ok(count), Some('m')) => format!("{count}MiB"),
        (Ok(count), Some('g')) => format!("{count}GiB"),
        (Ok(count), _) => format!("{count}B"),
        (Err(_), _) => "1MiB".to_owned(),
    }
}

/// `rewrite-target`: the path's prefix is replaced.
fn rewritten(
    ledger: &ImportLedger,
    target: &DatumAt,
    prefix: &str,
    keeps_rest: bool,
    section: &mut TomlSection,
) {
    let text = target.text().unwrap_or("");
    let head = text.trim_end_matches("$1").trim_end_matches("$2").trim_end_matches('/');
    if !keeps_rest || head.contains('$') || !(text.ends_with("$1") || text.ends_with("$2")) {
        target.impossible(ledger, "only what a final `(.*)` finds can be kept: `strip_prefix` and `add_prefix` change the start of paths");
        section.comment(format!("CHECK: rewrite-target {text} is not applied."));
        return;
    }
    if section.get("proxy").is_some() {
        if !prefix.is_empty() {
            section.set_in("proxy", "strip_prefix", TomlItem::text(prefix));
        }
        if !head.is_empty() {
            section.set_in("proxy", "add_prefix", TomlItem::text(head));
        }
    }
    target.translated(ledger);
}
