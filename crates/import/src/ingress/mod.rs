//! Importer of Kubernetes Ingresses, with the most common annotations of ingress-nginx.

mod values;

mod reader;

mod guards;

mod annotations;

mod gateway;

use std::cmp::Reverse;
use std::path::Path;

use crate::conditions::{close_route, refuse_line_feeds};
use crate::data::{DataNode, parse_json, read_file};
use crate::draft::{ConfigDraft, SiteDraft, TomlItem, TomlSection};
use crate::expressions::{escape_literal, path_expression, widen_expression};
use crate::findings::{ImportError, ImportLedger, ImportResult};
use crate::paths::from_literal;
use crate::yaml::parse_documents;
pub use gateway::import_to_gateway;
use reader::{ANNOTATION_PREFIX, IngressReader, IngressRoute};
use values::translate_rewrite_target;
pub use values::translate_sign_in;

/// Differences between the servers that do not depend on the configuration.
const GENERAL_DIFFERENCES: [&str; 4] = [
    "Services are reached by their names in the cluster's DNS (`http://NAME.NAMESPACE.svc:PORT`), through the cluster's balancing, not pod by pod.",
    "The result is one file: Komainu does not watch the cluster. A change of an Ingress needs another import.",
    "`Host` is passed on as the client sent it, and X-Forwarded-For, X-Forwarded-Proto and X-Forwarded-Host are sent, as ingress-nginx does.",
    "Files of certificates are where secrets have to be mounted: /etc/komainu/tls/NAMESPACE/SECRET/.",
];

/// Kinds of objects other than Ingress that say where requests go or who may ask.
const ROUTE_KINDS: [&str; 17] = [
    "AuthorizationPolicy",
    "GRPCRoute",
    "Gateway",
    "HTTPProxy",
    "HTTPRoute",
    "IngressRoute",
    "IngressRouteTCP",
    "IngressRouteUDP",
    "Mapping",
    "Middleware",
    "TCPRoute",
    "TLSOption",
    "TLSRoute",
    "TransportServer",
    "UDPRoute",
    "VirtualServer",
    "VirtualService",
];

/// Translates Ingresses: YAML manifests with one or more documents, or the JSON that `kubectl get ingress -A
/// -o json` prints.
///
/// # Errors
/// The file cannot be read, or is neither YAML nor JSON.
pub fn import(path: &Path) -> Result<ImportResult, ImportError> {
    let (name, text) = read_file(path)?;
    let ledger = ImportLedger::default();
    let is_json = text.trim_start_matches('\u{feff}').trim_start().starts_with('{') && !text.contains("{{");
    let mut documents = if is_json {
        vec![parse_json(&name, &text)?]
    } else {
        parse_documents(&name, &text).map_err(|error| {
            if text.contains("{{") {
                let remedy =
                    "this is a template of Helm: `helm template` makes the manifests that are read here";
                ImportError { message: format!("{}; {remedy}", error.message), ..error }
            } else {
                error
            }
        })?
    };
    let several = documents.len() > 1;
    for (at, document) in documents.iter_mut().enumerate() {
        let path = if several { format!("[{at}]") } else { String::new() };
        document.enter_in_ledger(&ledger, &name, &path);
    }
    let mut reader = IngressReader {
        ledger: &ledger,
        routes: Vec::new(),
        sites: Vec::new(),
        named_ports: Vec::new(),
        closed_hosts: Vec::new(),
        expression_hosts: Vec::new(),
        exact_paths: Vec::new(),
        aliases: Vec::new(),
        known_hosts: Vec::new(),
        closed_all: Vec::new(),
        is_by_age: false,
        ingress: 0,
    };
    let of_list = |document: &DataNode| match document.get("items") {
        Some(items) => items.items().to_vec(),
        None => vec![document.clone()],
    };
    let mut items: Vec<DataNode> = documents.iter().flat_map(of_list).collect();
    items.iter().for_each(|item| reader.read_service(item));
    let kind = |item: &DataNode| item.get("kind").and_then(DataNode::text).unwrap_or("").to_owned();
    if !items.iter().any(|item| kind(item) == "Ingress") {
        return Err(ImportError::new(&name, 0, "there is no object of the kind Ingress in this file"));
    }
    if items.iter().filter(|item| kind(item) == "Ingress").all(is_canary) {
        let reason = "each Ingress in this file is a canary, which has a share of the requests of another Ingress: add that one to the file";
        return Err(ImportError::new(&name, 0, reason));
    }
    let age = |item: &DataNode| {
        let text = |key: &str| item.at(&["metadata", key]).and_then(DataNode::text).unwrap_or("").to_owned();
        (text("creationTimestamp"), text("namespace"), text("name"))
    };
    reader.is_by_age =
        items.iter().filter(|item| kind(item) == "Ingress").all(|item| !age(item).0.is_empty());
    if reader.is_by_age {
        items.sort_by_key(age);
    }
    for item in items.iter().filter(|item| kind(item) == "Ingress") {
        reader.read_expression_hosts(item);
    }
    for (at, item) in items.iter().enumerate() {
        reader.ingress = at;
        match kind(item).as_str() {
            "Ingress" => reader.translate_ingress(item),
            "Service" => item.mark_not_needed(&ledger, "its ports were read; the cluster has it"),
            "ConfigMap" => reader.read_controller_settings(item),
            other if ROUTE_KINDS.contains(&other) => {
                item.mark_impossible(
                    &ledger,
                    "routes of this kind are not read: write what they say by hand",
                );
            }
            _ => item.mark_not_needed(&ledger, "not needed: this is no Ingress, and stays in the cluster"),
        }
    }
    for document in &documents {
        let metadata = document.get("metadata").map_or(&[][..], DataNode::entries);
        // Annotations have outcomes of their own.
        let names = metadata.iter().filter(|(key, _)| key != "annotations").map(|(_, value)| value);
        let all = ["apiVersion", "kind"].into_iter().filter_map(|key| document.get(key)).chain(names);
        all.for_each(|one| one.mark_not_needed(&ledger, "not needed"));
        document.mark_impossible(&ledger, "there is nothing like it here");
    }
    let mut draft = ConfigDraft::default();
    draft.top.set("listen", TomlItem::text(":80"));
    reader.write(&mut draft);
    if draft.sites.iter().any(|site| site.section.get("tls").is_some()) {
        draft.top.set("listen", TomlItem::List([":80", ":443"].map(TomlItem::text).into()));
        // Otherwise hosts without `tls` would get a certificate and redirect to `https`.
        for site in draft.sites.iter_mut().filter(|site| site.section.get("tls").is_none()) {
            site.section.set("tls", TomlItem::Flag(false));
        }
    }
    draft.hoist_shared();
    draft.move_fields_to_snippets();
    Ok(ImportResult {
        toml: draft.to_toml(),
        remarks: ledger.into_remarks(),
        general_differences: &GENERAL_DIFFERENCES,
    })
}

/// Whether an Ingress only has a share of the requests of another one.
fn is_canary(item: &DataNode) -> bool {
    let annotations = item.at(&["metadata", "annotations"]);
    let canary = annotations.and_then(|all| all.get(&format!("{ANNOTATION_PREFIX}canary")));
    canary.and_then(DataNode::flag) == Some(true)
}

impl<'a> IngressReader<'a> {
    fn write(mut self, draft: &mut ConfigDraft) {
        // Same precedence as in ingress-nginx: exact paths first, then the longest.
        self.routes.sort_by(|one, other| {
            let key = |route: &IngressRoute| (!route.is_exact, Reverse(route.path_length));
            // Of expressions that are as long, ingress-nginx takes the last by the alphabet.
            key(one).cmp(&key(other)).then_with(|| other.expression.cmp(&one.expression))
        });
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
                let names = std::iter::once(host.clone()).chain(self.aliases_of(&host));
                site.section.set("hosts", TomlItem::List(names.map(TomlItem::Text).collect()));
            }
            if let Some((_, more)) = self.sites.iter().find(|(known, _)| *known == host) {
                site.section.entries.extend(more.entries.clone());
                site.section.comments.extend(more.comments.clone());
            }
            let own = self.routes.iter().filter(|route| route.host == host);
            site.routes = own.map(|route| route.section.clone()).collect();
            if self.expression_hosts.contains(&host) {
                site.routes.insert(0, refuse_line_feeds());
            }
            for (_, check) in self.closed_hosts.iter().filter(|(closed, _)| *closed == host) {
                site.close(check.clone());
            }
            self.closed_all.iter().for_each(|check| site.close(check.clone()));
            draft.sites.push(site);
        }
    }

    /// Reads the settings of the controller, some of which restrict access to all hosts.
    fn read_controller_settings(&mut self, item: &DataNode) {
        let reason = "settings of the controller are not read: write what they say at the top of the file";
        for (key, value) in item.get("data").map_or(&[][..], DataNode::entries) {
            let is_set = value.flag() != Some(false) && value.text() != Some("");
            if guards::RESTRICTING_SETTINGS.contains(&key.as_str()) && is_set {
                let reason =
                    "this setting of the controller may refuse requests of all hosts: they are closed (403)";
                value.mark_impossible(self.ledger, reason);
                self.closed_all.push(self.ledger.check_comment(value.line, &format!("{key}: {reason}")));
            }
        }
        item.mark_impossible(self.ledger, reason);
    }

    /// Returns the further names of a host. A name that is the host of a rule is that alone, and one of several hosts that
    /// of the first.
    fn aliases_of(&self, host: &str) -> Vec<String> {
        let is_free = |name: &&String, at: usize| {
            let others = &self.aliases[..at];
            !self.known_hosts.contains(name) && !others.iter().any(|(_, names)| names.contains(name))
        };
        let Some(at) = self.aliases.iter().position(|(known, _)| known == host) else { return Vec::new() };
        self.aliases[at].1.iter().filter(|name| is_free(name, at)).cloned().collect()
    }

    /// Reads the named ports of a service.
    fn read_service(&mut self, item: &DataNode) {
        if item.get("kind").and_then(DataNode::text) != Some("Service") {
            return;
        }
        let text = |path: &[&str]| item.at(path).and_then(DataNode::text).map(str::to_owned);
        let namespace = text(&["metadata", "namespace"]).unwrap_or_else(|| "default".to_owned());
        let Some(name) = text(&["metadata", "name"]) else { return };
        for port in item.at(&["spec", "ports"]).map_or(&[][..], DataNode::items) {
            let found =
                (port.get("name").and_then(DataNode::text), port.get("port").and_then(DataNode::number));
            if let (Some(port), Some(number)) = found {
                self.named_ports.push((namespace.clone(), name.clone(), port.to_owned(), number));
            }
        }
    }

    /// Records the hosts of an Ingress whose paths are expressions. In ingress-nginx, `use-regex` or
    /// `rewrite-target` of one Ingress makes expressions of all paths of a host, in all Ingresses.
    fn read_expression_hosts(&mut self, item: &DataNode) {
        let annotations = item.at(&["metadata", "annotations"]);
        let of = |name: &str| annotations.and_then(|all| all.get(&format!("{ANNOTATION_PREFIX}{name}")));
        let is_regex = of("use-regex").and_then(DataNode::flag) == Some(true);
        let target = of("rewrite-target").and_then(DataNode::text).unwrap_or("");
        if is_canary(item) {
            return;
        }
        for rule in item.at(&["spec", "rules"]).map_or(&[][..], DataNode::items) {
            let paths = rule.at(&["http", "paths"]).map_or(&[][..], DataNode::items);
            for path in paths.iter().filter(|path| path_type(path) == "Exact") {
                let host = rule.get("host").and_then(DataNode::text).unwrap_or("").to_lowercase();
                let text = path.get("path").and_then(DataNode::text).unwrap_or("/");
                self.exact_paths.push((host, text.to_owned()));
            }
            let is_rewritten = |path: &DataNode| {
                !target.is_empty() && path.get("path").and_then(DataNode::text) != Some(target)
            };
            if is_regex || paths.iter().any(is_rewritten) {
                let host = rule.get("host").and_then(DataNode::text).unwrap_or("").to_lowercase();
                self.expression_hosts.push(host);
            }
        }
    }

    fn translate_ingress(&mut self, item: &DataNode) {
        let ledger = self.ledger;
        let namespace =
            item.at(&["metadata", "namespace"]).and_then(DataNode::text).unwrap_or("default").to_owned();
        let annotations = item.at(&["metadata", "annotations"]);
        let of = |name: &str| annotations.and_then(|all| all.get(&format!("{ANNOTATION_PREFIX}{name}")));
        if is_canary(item) {
            item.mark_impossible(
                ledger,
                "requests are not split by canaries: give the servers of `[upstreams.NAME]` weights",
            );
            return;
        }
        let mut common = TomlSection::default();
        let spec = item.get("spec");
        let clients = self.translate_client_certificates(annotations, spec, &namespace);
        let scheme = self.translate_annotations(annotations, &namespace, &mut common);
        if let Some(Err(check)) = &clients {
            common.close(check.clone());
            annotations.into_iter().for_each(|all| self.mark_closed(all));
        } else if let Some(Ok(_)) = &clients
            && !common.is_closed()
        {
            guards::pass_client_fields(&mut common);
        }
        if !common.is_closed()
            && let Some((statuses, service)) = error_server(annotations)
        {
            let name = item.at(&["metadata", "name"]).and_then(DataNode::text).unwrap_or_default();
            let port = self.named_ports.iter().find(|(of, known, ..)| *of == namespace && known == service);
            let port = port.map_or(80, |(.., number)| *number);
            let fields = [("X-Namespace", namespace.as_str()), ("X-Ingress-Name", name)];
            let set = fields.into_iter().filter(|(_, value)| !value.is_empty());
            let set = set.map(|(name, value)| (name.to_owned(), TomlItem::text(value))).collect();
            let to = TomlItem::text(format!("http://{service}.{namespace}.svc:{port}"));
            let fields = TomlItem::Table(vec![("set".to_owned(), TomlItem::Table(set))]);
            let to = vec![("to".to_owned(), to), ("request_headers".to_owned(), fields)];
            common.set_in("error_server", "to", TomlItem::Table(to));
            let statuses = statuses.into_iter().map(TomlItem::Number).collect();
            common.set_in("error_server", "statuses", TomlItem::List(statuses));
        }
        let rewrite = of("rewrite-target");
        if rewrite.is_some_and(|target| target.text() == Some("")) {
            rewrite.into_iter().for_each(|one| one.mark_not_needed(ledger, "not needed: it is empty"));
        }
        for rule in spec.and_then(|spec| spec.get("rules")).map_or(&[][..], DataNode::items) {
            let host = rule.get("host").and_then(DataNode::text).unwrap_or("").to_lowercase();
            rule.get("host").into_iter().for_each(|one| one.mark_translated(ledger));
            if let Some(root) = of("app-root").and_then(DataNode::text) {
                let mut section = TomlSection::default();
                section.set_text("path", "/");
                section.set_text("redirect", root);
                let root = IngressRoute {
                    host: host.clone(),
                    is_exact: true,
                    path_length: usize::MAX,
                    expression: String::new(),
                    place: "app-root".to_owned(),
                    ingress: self.ingress,
                    section,
                };
                self.add_route(root, rule);
                of("app-root").into_iter().for_each(|one| one.mark_translated(ledger));
            }
            if let Some(redirect) = of("ssl-redirect").filter(|one| one.flag() == Some(false)) {
                self.site_section(&host).set("redirect_https", TomlItem::Flag(false));
                redirect.mark_translated(ledger);
            }
            for path in rule.at(&["http", "paths"]).map_or(&[][..], DataNode::items) {
                self.translate_path(path, &host, &namespace, &common, (scheme, rewrite, of("use-regex")));
            }
        }
        let hosts = guards::ingress_hosts(spec);
        if let Some(backend) = spec.and_then(|spec| spec.get("defaultBackend")) {
            let mut section = common.clone();
            self.translate_backend(backend, &namespace, scheme, &mut section);
            // It answers the other paths of the hosts that no Ingress before has.
            for host in
                hosts.iter().filter(|host| !self.known_hosts.contains(host)).cloned().collect::<Vec<_>>()
            {
                let others = IngressRoute {
                    host,
                    is_exact: false,
                    path_length: 0,
                    expression: String::new(),
                    place: "default".to_owned(),
                    ingress: self.ingress,
                    section: section.clone(),
                };
                self.add_route(others, backend);
            }
        }
        if let Some(aliases) = of("server-alias") {
            self.read_aliases(aliases, &hosts);
        }
        self.known_hosts.extend(hosts);
        self.translate_tls(spec, &namespace, annotations);
        self.translate_host_annotations(annotations, spec, clients.and_then(Result::ok));
        for key in ["apiVersion", "kind", "status"] {
            item.get(key).into_iter().for_each(|one| one.mark_not_needed(ledger, "not needed"));
        }
        if let Some(class) = spec.and_then(|spec| spec.get("ingressClassName")) {
            class.mark_not_needed(ledger, "not needed: all Ingresses of the file are translated");
        }
        if let Some(all) = annotations {
            if all.entries().is_empty() {
                all.mark_not_needed(ledger, "not needed");
            }
            all.mark_impossible(ledger, "this annotation has no translation");
        }
        item.get("metadata").into_iter().for_each(|all| {
            all.entries()
                .iter()
                .filter(|(key, _)| key != "annotations")
                .for_each(|(_, one)| one.mark_not_needed(ledger, "not needed"));
        });
        item.mark_impossible(ledger, "there is nothing like it here");
    }

    fn translate_tls(&mut self, spec: Option<&DataNode>, namespace: &str, annotations: Option<&DataNode>) {
        let issuer = annotations
            .into_iter()
            .flat_map(DataNode::entries)
            .find(|(name, _)| name.starts_with("cert-manager.io/"));
        for tls in spec.and_then(|spec| spec.get("tls")).map_or(&[][..], DataNode::items) {
            let secret = tls.get("secretName").and_then(DataNode::text).unwrap_or("").to_owned();
            for host in tls.get("hosts").map_or_else(Vec::new, DataNode::texts) {
                let file =
                    |name: &str| TomlItem::Text(format!("/etc/komainu/tls/{namespace}/{secret}/{name}"));
                let value = match (&issuer, secret.is_empty()) {
                    (None, false) => TomlItem::Table(vec![
                        ("certificate".to_owned(), file("tls.crt")),
                        ("key".to_owned(), file("tls.key")),
                    ]),
                    _ => TomlItem::text("auto"),
                };
                let site = self.site_section(&host.to_lowercase());
                // Another Ingress for the same host may require client certificates.
                let client = match site.get("tls") {
                    Some(TomlItem::Table(known)) => known.iter().find(|(key, _)| key == "client").cloned(),
                    _ => None,
                };
                site.set("tls", value);
                client.into_iter().for_each(|(_, client)| guards::require_client_certificates(site, client));
            }
            match &issuer {
                Some(_) => tls.mark_different(
                    self.ledger,
                    "Komainu obtains the certificate by itself (`tls = \"auto\"`)",
                ),
                None => {
                    tls.mark_different(self.ledger, "the secret has to be mounted where the files are named")
                }
            }
        }
        if let Some((_, issuer)) = issuer {
            issuer.mark_different(self.ledger, "Komainu obtains the certificate by itself (`[acme]`)");
        }
    }

    fn translate_path(
        &mut self,
        path: &DataNode,
        host: &str,
        namespace: &str,
        common: &TomlSection,
        (scheme, rewrite, regex): (&str, Option<&DataNode>, Option<&DataNode>),
    ) {
        let text = path.get("path").and_then(DataNode::text).unwrap_or("/").to_owned();
        let kind = path_type(path);
        let is_regex = self.expression_hosts.iter().any(|known| known == host);
        regex.into_iter().for_each(|one| one.mark_translated(self.ledger));
        for key in ["path", "pathType"] {
            path.get(key).into_iter().for_each(|one| one.mark_translated(self.ledger));
        }
        let plain = text.trim_end_matches('/').to_owned();
        let is_rewritten = rewrite.and_then(DataNode::text).is_some_and(|to| !to.is_empty() && to != text);
        let is_own_regex = regex.and_then(DataNode::flag) == Some(true) || is_rewritten;
        let has_exact = self.exact_paths.iter().any(|(known, path)| known == host && *path == text);
        // The path itself is left to the route of the type `Exact`.
        let is_folder = kind == "Prefix" && !is_own_regex && has_exact && !text.ends_with('/');
        let expression = if is_folder { format!("{text}/") } else { text.clone() };
        let ingress = self.ingress;
        let route_of = |section: TomlSection| IngressRoute {
            host: host.to_owned(),
            is_exact: kind == "Exact" && !is_regex,
            path_length: text.len(),
            expression: if is_regex { text.clone() } else { String::new() },
            place: format!("{kind} {}", if kind == "Prefix" && !is_regex { &plain } else { &text }),
            ingress,
            section,
        };
        let mut section = TomlSection::default();
        let impossible = || "no path pattern can be this".into();
        let patterns = match kind {
            _ if text == "/" && (is_regex || kind != "Exact") => Ok(Vec::new()),
            _ if is_regex => {
                path_expression(&format!("^{expression}"), true).map(|found| vec![found.pattern])
            }
            "Exact" => from_literal(&text, false).map(|one| vec![one]).ok_or_else(impossible),
            "Prefix" if plain.is_empty() => Ok(Vec::new()),
            "Prefix" => from_literal(&plain, false)
                .map(|one| vec![one.clone(), format!("{one}/*")])
                .ok_or_else(impossible),
            // A prefix of the text, as in nginx, and not of segments.
            _ => from_literal(&text, true).map(|one| vec![one]).ok_or_else(impossible),
        };
        match patterns {
            Ok(patterns) if patterns.is_empty() => {}
            Ok(patterns) => {
                section.set("path", TomlItem::text_or_list(patterns));
            }
            Err(reason) => {
                path.mark_impossible(self.ledger, reason.as_ref());
                path.get("path").into_iter().filter_map(|one| one.entry).for_each(|entry| {
                    self.ledger.mark_impossible(entry, format!("{reason}: the route is closed (403)"));
                });
                let start = if is_regex { expression } else { escape_literal(&plain) };
                section.set("path", TomlItem::text(widen_expression(&format!("^{start}"), true)));
                close_route(
                    &mut section,
                    self.ledger.check_comment(path.line, &format!("`{text}`: {reason}")),
                );
                self.add_route(route_of(section), path);
                return;
            }
        }
        section.entries.extend(common.entries.clone());
        section.comments.extend(common.comments.clone());
        self.translate_backend(path.get("backend").unwrap_or(path), namespace, scheme, &mut section);
        if let Some(target) = rewrite.filter(|target| target.text() != Some("")) {
            translate_rewrite_target(self.ledger, target, &text, &mut section);
        }
        self.add_route(route_of(section), path);
    }

    fn translate_backend(
        &self,
        backend: &DataNode,
        namespace: &str,
        scheme: &str,
        section: &mut TomlSection,
    ) {
        let service = backend.get("service");
        let name = service.and_then(|service| service.get("name")).and_then(DataNode::text);
        let port = service.and_then(|service| service.get("port"));
        let number = port.and_then(|port| port.get("number")).and_then(DataNode::number);
        if section.is_closed() {
            backend.mark_different(self.ledger, "not written: the route is closed (403)");
            return;
        }
        if section.get("redirect").is_some() || section.get("respond").is_some() {
            section.remove("proxy");
            section.remove("error_server");
            backend.mark_not_needed(self.ledger, "not needed: an annotation answers");
            return;
        }
        let Some(name) = name else {
            backend.mark_impossible(self.ledger, "a backend is a service here; the route answers 501");
            section.remove("proxy");
            section.set("respond", TomlItem::Number(501));
            return;
        };
        backend.mark_translated(self.ledger);
        let port_name = port.and_then(|port| port.get("name")).and_then(DataNode::text).unwrap_or("");
        let known = self
            .named_ports
            .iter()
            .find(|(of, service, port, _)| of == namespace && service == name && port == port_name);
        let number = number.or(known.map(|(.., number)| *number)).unwrap_or_else(|| {
            port.into_iter().for_each(|port| {
                port.mark_different(self.ledger, "ports have numbers here: 80 was written for this name")
            });
            80
        });
        section.set_in("proxy", "to", TomlItem::Text(format!("{scheme}://{name}.{namespace}.svc:{number}")));
    }
}

/// Returns the statuses whose responses the default backend of an Ingress replaces, and its Service.
pub(super) fn error_server(annotations: Option<&DataNode>) -> Option<(Vec<u64>, &str)> {
    let text = |name: &str| annotations?.get(&format!("{ANNOTATION_PREFIX}{name}"))?.text();
    let status = |text: &str| text.trim().parse().ok().filter(|status| (400..=599).contains(status));
    if annotations?
        .get(&format!("{ANNOTATION_PREFIX}disable-proxy-intercept-errors"))
        .and_then(DataNode::flag)
        == Some(true)
    {
        return None;
    }
    let statuses: Vec<u64> = text("custom-http-errors")?.split(',').map(status).collect::<Option<_>>()?;
    let is_name = |name: &&str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let service = text("default-backend").map(str::trim).filter(|name| !name.is_empty()).filter(is_name)?;
    Some((statuses, service))
}

/// Returns the type of a path: `Exact`, `Prefix`, or `ImplementationSpecific`, the default.
fn path_type(path: &DataNode) -> &str {
    path.get("pathType").and_then(DataNode::text).unwrap_or("ImplementationSpecific")
}
