//! Ingresses as objects of Gateway API: a Gateway for each namespace, and an HTTPRoute for each host of an Ingress.
//!
//! Annotations for which Gateway API has no words are reported, and stand as comments above their routes. The route of one that
//! guards has no backend: Gateway API answers 500 there.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use other_servers::{INGRESS_PREFIX, IngressVerdict, ingress_annotation};
use serde_json::{Map, Value, json};

use super::path_type;
use crate::data::{DataNode, parse_json, read_file};
use crate::findings::{ImportError, ImportRemark, ImportResult, ImportVerdict};
use crate::yaml::parse_documents;

/// Listeners of a Gateway or ListenerSet, and rules of an HTTPRoute, at most.
const LISTENERS_MAX: usize = 64;
const RULES_MAX: usize = 16;

/// Value of `Strict-Transport-Security` that ingress-nginx sends through TLS unless its ConfigMap says otherwise.
const HSTS: &str = "max-age=31536000; includeSubDomains";

/// The Secret of hosts that have TLS without one.
const DEFAULT_CERTIFICATE: &str = "default-certificate";

const GENERAL_DIFFERENCES: [&str; 5] = [
    "Each namespace has a Gateway of its own, with listeners for its hosts: `allowedRoutes` keeps others out.",
    "Expressions come before prefixes in Gateway API, whatever their lengths.",
    "A route without a backend is answered 500: it is closed until somebody has written its guard, as with a KomainuPolicy.",
    "Requests may have bodies of any size, where ingress-nginx allows 1 MiB.",
    "`Strict-Transport-Security` is that of ingress-nginx without a ConfigMap.",
];

/// Writes objects of Gateway API for the Ingresses of a file.
///
/// # Errors
/// The file cannot be read, is neither YAML nor JSON, or has no Ingress.
pub fn import_to_gateway(path: &Path) -> Result<ImportResult, ImportError> {
    let (name, text) = read_file(path)?;
    let is_json = text.trim_start_matches('\u{feff}').trim_start().starts_with('{');
    let documents = if is_json { vec![parse_json(&name, &text)?] } else { parse_documents(&name, &text)? };
    let mut items: Vec<DataNode> = Vec::new();
    for document in documents {
        match document.get("items") {
            Some(list) => items.extend(list.items().iter().cloned()),
            None => items.push(document),
        }
    }
    let text_at =
        |item: &DataNode, path: &[&str]| item.at(path).and_then(DataNode::text).unwrap_or("").to_owned();
    let mut ingresses: Vec<&DataNode> =
        items.iter().filter(|item| text_at(item, &["kind"]) == "Ingress").collect();
    if ingresses.is_empty() {
        return Err(ImportError::new(&name, 0, "there is no object of the kind Ingress in this file"));
    }
    ingresses.sort_by_key(|item| text_at(item, &["metadata", "creationTimestamp"]));
    let mut writer = GatewayWriter { file: name, ports: named_ports(&items), ..GatewayWriter::default() };
    let (canaries, mains): (Vec<&DataNode>, Vec<&DataNode>) = ingresses
        .into_iter()
        .partition(|item| writer.annotation(item, "canary").is_some_and(|one| one == "true"));
    for item in mains {
        writer.add_ingress(item, &canaries);
    }
    for canary in canaries {
        writer.report_canary(canary);
    }
    for item in
        items.iter().filter(|item| !matches!(text_at(item, &["kind"]).as_str(), "Ingress" | "Service"))
    {
        let kind = text_at(item, &["kind"]);
        writer.remark(
            item.line,
            &format!("{kind} {}", text_at(item, &["metadata", "name"])),
            ImportVerdict::Translated,
            "not an Ingress: it stays in the cluster",
        );
    }
    Ok(writer.finish())
}

#[derive(Default)]
struct GatewayWriter {
    file: String,
    remarks: Vec<ImportRemark>,
    /// Listeners of each namespace, by host and whether they have TLS, with the Secret.
    listeners: BTreeMap<String, BTreeMap<(String, bool), Option<String>>>,
    routes: Vec<WrittenRoute>,
    /// Numbers of ports by namespace, Service and name.
    ports: BTreeMap<(String, String, String), u64>,
    names: BTreeSet<(String, String)>,
    /// Canaries that a route has, by line, with the annotation that closes it.
    used_canaries: BTreeMap<usize, Option<String>>,
}

/// An HTTPRoute.
struct WrittenRoute {
    namespace: String,
    name: String,
    comments: Vec<String>,
    /// Names of its listeners.
    listeners: Vec<String>,
    /// The `hostnames` and `rules`.
    spec: Map<String, Value>,
}

/// The parts that all rules of an Ingress have in common.
#[derive(Clone, Default)]
struct RuleParts {
    filters: Vec<Value>,
    timeouts: Map<String, Value>,
    retry: Option<Value>,
    redirect: Option<Value>,
    rewrite: Option<String>,
    rewrite_host: Option<String>,
    is_expression: bool,
    /// Replacement of the beginning of the path: the target without its group.
    rewrite_prefix: Option<String>,
    /// Reasons why the rules have no backend.
    closed: Vec<String>,
    comments: Vec<String>,
    keeps_plain: bool,
    forces_tls: bool,
    app_root: Option<String>,
}

impl GatewayWriter {
    fn remark(&mut self, line: usize, directive: &str, verdict: ImportVerdict, reason: &str) {
        self.remarks.push(ImportRemark {
            file: self.file.clone(),
            line,
            directive: directive.to_owned(),
            verdict,
            reasons: if reason.is_empty() { Vec::new() } else { vec![reason.to_owned()] },
        });
    }

    fn annotation(&self, item: &DataNode, name: &str) -> Option<String> {
        let all = item.at(&["metadata", "annotations"])?;
        all.get(&format!("{INGRESS_PREFIX}{name}")).and_then(DataNode::text).map(str::to_owned)
    }

    fn add_ingress(&mut self, item: &DataNode, canaries: &[&DataNode]) {
        let text = |path: &[&str]| item.at(path).and_then(DataNode::text).unwrap_or("").to_owned();
        let namespace = match text(&["metadata", "namespace"]) {
            empty if empty.is_empty() => "default".to_owned(),
            namespace => namespace,
        };
        let name = text(&["metadata", "name"]);
        let parts = self.read_annotations(item);
        let secured = self.read_tls(item);
        let mut rules: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for rule in item.at(&["spec", "rules"]).map_or(&[][..], DataNode::items) {
            let host = rule.get("host").and_then(DataNode::text).unwrap_or("").to_lowercase();
            let parts = &parts.of_host(secured.secret(&host).is_some());
            for path in rule.at(&["http", "paths"]).map_or(&[][..], DataNode::items) {
                let found = self.add_path(path, &host, &namespace, parts, canaries);
                rules.entry(host.clone()).or_default().extend(found);
            }
        }
        if let Some(backend) = item.at(&["spec", "defaultBackend"]) {
            let matches = json!([{ "path": { "type": "PathPrefix", "value": "/" } }]);
            if rules.is_empty() {
                rules.insert(String::new(), Vec::new());
            }
            for (host, rules) in &mut rules {
                let parts = &parts.of_host(secured.secret(host).is_some());
                rules.push(self.rule(matches.clone(), backend, (&namespace, None), parts, None));
            }
        }
        for (host, mut rules) in rules {
            if let Some(root) = &parts.app_root {
                let path = json!({ "type": "ReplaceFullPath", "replaceFullPath": root });
                rules.insert(0, json!({
                    "matches": [{ "path": { "type": "Exact", "value": "/" } }],
                    "filters": [{ "type": "RequestRedirect", "requestRedirect": { "path": path, "statusCode": 302 } }],
                }));
            }
            self.add_routes(&namespace, &name, &host, rules, secured.secret(&host), &parts);
        }
    }

    /// Reads and reports which hosts have TLS.
    fn read_tls(&mut self, item: &DataNode) -> SecuredHosts {
        let mut secured = SecuredHosts::default();
        for tls in item.at(&["spec", "tls"]).map_or(&[][..], DataNode::items) {
            let given = tls.get("secretName").and_then(DataNode::text).filter(|name| !name.is_empty());
            let secret = given.unwrap_or(DEFAULT_CERTIFICATE);
            let hosts = tls.get("hosts").map_or_else(Vec::new, DataNode::texts);
            if hosts.is_empty() {
                secured.others.get_or_insert_with(|| secret.to_owned());
            }
            for host in hosts {
                secured.by_host.insert(host.to_lowercase(), secret.to_owned());
            }
            let (verdict, reason) = match given {
                Some(_) => (ImportVerdict::Translated, ""),
                None => (
                    ImportVerdict::Impossible,
                    "a listener needs a Secret: make `default-certificate`, or name another in `certificateRefs`",
                ),
            };
            self.remark(tls.line, "tls", verdict, reason);
        }
        secured
    }

    /// Adds the routes of a host: one for requests through TLS, and one that redirects the others, or one for both.
    fn add_routes(
        &mut self,
        namespace: &str,
        name: &str,
        host: &str,
        rules: Vec<Value>,
        secret: Option<&String>,
        parts: &RuleParts,
    ) {
        let listeners = self.listeners.entry(namespace.to_owned()).or_default();
        listeners.entry((host.to_owned(), false)).or_insert(None);
        if let Some(secret) = secret {
            listeners.entry((host.to_owned(), true)).or_insert_with(|| Some(secret.clone()));
        }
        let redirects = (secret.is_some() && !parts.keeps_plain) || parts.forces_tls;
        let mut sections = Vec::new();
        if !redirects {
            sections.push(listener_name(host, false));
        }
        if secret.is_some() {
            sections.push(listener_name(host, true));
        }
        if !sections.is_empty() {
            for rules in rules.chunks(RULES_MAX) {
                let route = self.unused_name(namespace, name);
                self.push_route((namespace, route), host, sections.clone(), rules, &parts.comments);
            }
        }
        if redirects {
            let redirect = json!({ "scheme": "https", "statusCode": 308 });
            let rule = json!({ "filters": [{ "type": "RequestRedirect", "requestRedirect": redirect }] });
            let route = self.unused_name(namespace, &format!("{name}-to-https"));
            self.push_route((namespace, route), host, vec![listener_name(host, false)], &[rule], &[]);
        }
    }

    fn unused_name(&mut self, namespace: &str, name: &str) -> String {
        let mut found = name.to_owned();
        let mut number = 1;
        while !self.names.insert((namespace.to_owned(), found.clone())) {
            number += 1;
            found = format!("{name}-{number}");
        }
        found
    }

    fn push_route(
        &mut self,
        (namespace, name): (&str, String),
        host: &str,
        listeners: Vec<String>,
        rules: &[Value],
        comments: &[String],
    ) {
        let mut spec = Map::new();
        if !host.is_empty() {
            spec.insert("hostnames".to_owned(), json!([host]));
        }
        spec.insert("rules".to_owned(), json!(rules));
        let (namespace, comments) = (namespace.to_owned(), comments.to_vec());
        self.routes.push(WrittenRoute { namespace, name, comments, listeners, spec });
    }

    /// Reads the annotations of an Ingress, and reports each.
    fn read_annotations(&mut self, item: &DataNode) -> RuleParts {
        let mut parts = RuleParts::default();
        let all = item.at(&["metadata", "annotations"]).map_or(&[][..], DataNode::entries);
        let texts: BTreeMap<&str, &str> = all
            .iter()
            .filter_map(|(name, value)| {
                Some((name.strip_prefix(INGRESS_PREFIX)?, value.text().unwrap_or("")))
            })
            .collect();
        let mut cors = Map::new();
        let mut read = Vec::new();
        for (name, value) in all {
            let Some(own) = name.strip_prefix(INGRESS_PREFIX) else { continue };
            let text = value.text().unwrap_or("").trim();
            let translated = read_annotation(own, text, &texts, &mut parts, &mut cors);
            read.push((own, text, value, translated));
        }
        for (own, text, value, translated) in read {
            let (verdict, reason) = match (translated, parts.closed.first()) {
                (Ok(()), Some(closed)) if is_of_backend(own) && !is_off(text) => {
                    let reason = format!("`{closed}` closes the route: write this with its backend");
                    (ImportVerdict::Impossible, reason)
                }
                (Ok(()), _) if keeps_query(own, text) => {
                    (ImportVerdict::Differs, "the query of the request is kept".to_owned())
                }
                (Ok(()), _) => (ImportVerdict::Translated, String::new()),
                (Err(reason), _) => (ImportVerdict::Impossible, reason),
            };
            if verdict == ImportVerdict::Impossible {
                parts.comments.push(format!("{}:{}: {own}: {}", self.file, value.line, one_line(&reason)));
            }
            self.remark(value.line, &format!("{own}: {}", one_line(text)), verdict, &reason);
        }
        if texts.get("enable-cors") == Some(&"true") {
            cors.entry("allowOrigins").or_insert_with(|| json!(["*"]));
            parts.filters.push(json!({ "type": "CORS", "cors": cors }));
        }
        parts
    }

    fn add_path(
        &mut self,
        path: &DataNode,
        host: &str,
        namespace: &str,
        parts: &RuleParts,
        canaries: &[&DataNode],
    ) -> Vec<Value> {
        let text = path.get("path").and_then(DataNode::text).filter(|text| !text.is_empty()).unwrap_or("/");
        let (matched, prefix) = match_of(path_type(path), text, parts);
        let mut closed = RuleParts::default();
        let mut parts = parts;
        if parts.rewrite_prefix.is_some() && prefix.is_none() && parts.closed.is_empty() {
            // The target has a group that this path does not have at its end.
            closed.closed.push("rewrite-target".to_owned());
            parts = &closed;
            let reason = "Gateway API has no groups of expressions: the route has no backend";
            self.remark(path.line, &format!("path {text}"), ImportVerdict::Impossible, reason);
        } else if let Some(closed) = parts.closed.first() {
            let reason = format!("`{closed}` closes the route: it has no backend");
            self.remark(path.line, &format!("path {text}"), ImportVerdict::Impossible, &reason);
        } else if parts.is_expression && matched["type"] != "RegularExpression" {
            let reason = "the path matches as a prefix: capital and small letters are told apart, as is what follows without `/`";
            self.remark(path.line, &format!("path {text}"), ImportVerdict::Differs, reason);
        } else {
            self.remark(path.line, &format!("path {text}"), ImportVerdict::Translated, "");
        }
        let backend = path.get("backend").unwrap_or(path);
        let canary = canaries.iter().copied().find(|canary| {
            let of = canary.at(&["metadata", "namespace"]).and_then(DataNode::text).unwrap_or("default");
            of == namespace && canary_backend(canary, host, path).is_some()
        });
        let matches = |headers: Value| {
            let mut one = json!({ "path": matched });
            if headers.as_array().is_some_and(|headers| !headers.is_empty()) {
                one["headers"] = headers;
            }
            json!([one])
        };
        let mut rules = Vec::new();
        let mut weighted = None;
        if let Some(canary) = canary {
            self.used_canaries.entry(canary.line).or_insert_with(|| parts.closed.first().cloned());
            let backend_of_canary = canary_backend(canary, host, path).cloned();
            let of = |name: &str| self.annotation(canary, name);
            let header = of("canary-by-header");
            let value = of("canary-by-header-value").map(|value| ("Exact", value));
            let value = value.or(of("canary-by-header-pattern")
                .map(|pattern| ("RegularExpression", format!(".*(?:{pattern}).*"))));
            let cookie = of("canary-by-cookie");
            let number = |name: &str| of(name).and_then(|text| text.parse::<u64>().ok());
            let total = number("canary-weight-total").unwrap_or(100).max(1);
            let weight = number("canary-weight").unwrap_or(0).min(total);
            let mut conditions = Vec::new();
            match (header, value) {
                (Some(name), Some((kind, value))) => {
                    conditions.push((json!([{ "type": kind, "name": name, "value": value }]), true));
                }
                (Some(name), None) => {
                    conditions.push((json!([{ "name": name, "value": "always" }]), true));
                    conditions.push((json!([{ "name": name, "value": "never" }]), false));
                }
                (None, _) => {}
            }
            if let Some(name) = cookie {
                for (value, is_canary) in [("always", true), ("never", false)] {
                    let value = format!("(.*;\\s*)?{name}={value}(;.*)?");
                    conditions.push((
                        json!([{ "type": "RegularExpression", "name": "Cookie", "value": value }]),
                        is_canary,
                    ));
                }
            }
            for (headers, is_canary) in conditions {
                let to = if is_canary { backend_of_canary.as_ref().unwrap_or(backend) } else { backend };
                rules.push(self.rule(matches(headers), to, (namespace, prefix.as_deref()), parts, None));
            }
            weighted = backend_of_canary.map(|backend| (backend, weight, total));
        }
        rules.push(self.rule(matches(json!([])), backend, (namespace, prefix.as_deref()), parts, weighted));
        rules
    }

    /// Returns a rule. `prefix` replaces the path that was matched.
    fn rule(
        &mut self,
        matches: Value,
        backend: &DataNode,
        (namespace, prefix): (&str, Option<&str>),
        parts: &RuleParts,
        canary: Option<(DataNode, u64, u64)>,
    ) -> Value {
        let mut rule = Map::new();
        rule.insert("matches".to_owned(), matches);
        if !parts.closed.is_empty() {
            return Value::Object(rule);
        }
        let mut filters = parts.filters.clone();
        if let Some(redirect) = &parts.redirect {
            filters.push(json!({ "type": "RequestRedirect", "requestRedirect": redirect }));
            rule.insert("filters".to_owned(), Value::Array(filters));
            return Value::Object(rule);
        }
        let mut rewrite = Map::new();
        if let Some(host) = &parts.rewrite_host {
            rewrite.insert("hostname".to_owned(), json!(host));
        }
        if let Some(prefix) = prefix {
            let path = json!({ "type": "ReplacePrefixMatch", "replacePrefixMatch": prefix });
            rewrite.insert("path".to_owned(), path);
        } else if let Some(full) = parts.rewrite.as_ref().filter(|full| !has_value(&rule, full)) {
            rewrite.insert("path".to_owned(), json!({ "type": "ReplaceFullPath", "replaceFullPath": full }));
        }
        if !rewrite.is_empty() {
            filters.push(json!({ "type": "URLRewrite", "urlRewrite": rewrite }));
        }
        if !filters.is_empty() {
            rule.insert("filters".to_owned(), Value::Array(filters));
        }
        let mut backends = Vec::new();
        match canary {
            Some((other, weight, total)) => {
                for (backend, weight) in [(backend, total - weight), (&other, weight)] {
                    if let Some(mut reference) = self.backend_reference(namespace, backend) {
                        reference["weight"] = json!(weight);
                        backends.push(reference);
                    }
                }
            }
            None => backends.extend(self.backend_reference(namespace, backend)),
        }
        rule.insert("backendRefs".to_owned(), Value::Array(backends));
        if !parts.timeouts.is_empty() {
            rule.insert("timeouts".to_owned(), Value::Object(parts.timeouts.clone()));
        }
        if let Some(retry) = &parts.retry {
            rule.insert("retry".to_owned(), retry.clone());
        }
        Value::Object(rule)
    }

    /// Returns a reference to a Service, with the number of its port. Reports what is none.
    fn backend_reference(&mut self, namespace: &str, backend: &DataNode) -> Option<Value> {
        let service = backend.get("service");
        let Some(name) = service.and_then(|service| service.get("name")?.text()) else {
            let reason = "a backend is a Service: the route has no backend";
            self.remark(backend.line, "backend", ImportVerdict::Impossible, reason);
            return None;
        };
        let port = service.and_then(|service| service.get("port"));
        let number = port.and_then(|port| port.get("number")?.number());
        let text = port.and_then(|port| port.get("name")?.text()).unwrap_or("");
        let known = || self.ports.get(&(namespace.to_owned(), name.to_owned(), text.to_owned())).copied();
        let Some(port) = number.or_else(known) else {
            let reason = format!(
                "Gateway API has numbers of ports, and the Service {} with a port `{}` is not in the file: the route has no backend (`kubectl get \
                 ingress,service -o yaml` writes both)",
                one_line(name),
                one_line(text)
            );
            self.remark(backend.line, "backend", ImportVerdict::Impossible, &reason);
            return None;
        };
        Some(json!({ "name": name, "port": port }))
    }

    fn report_canary(&mut self, canary: &DataNode) {
        let name = canary.at(&["metadata", "name"]).and_then(DataNode::text).unwrap_or("").to_owned();
        let (verdict, reason) = match self.used_canaries.get(&canary.line) {
            Some(None) => {
                (ImportVerdict::Translated, "its share is a weight of the other Ingress's route".to_owned())
            }
            Some(Some(closed)) => (
                ImportVerdict::Impossible,
                format!("`{closed}` closes the other Ingress's route: it has no backends"),
            ),
            None => {
                (ImportVerdict::Impossible, "no other Ingress of the file has its host and path".to_owned())
            }
        };
        self.remark(canary.line, &format!("canary {name}"), verdict, &reason);
    }

    fn finish(self) -> ImportResult {
        let mut text = "# Written by `komainu import ingress --to gateway`. Look for CHECK.\n".to_owned();
        // Which of a namespace's ListenerSets has a listener; those of the first number are in the Gateway.
        let mut numbers: BTreeMap<(&str, String), usize> = BTreeMap::new();
        for (namespace, listeners) in &self.listeners {
            let all: Vec<Value> = listeners
                .iter()
                .map(|((host, is_tls), secret)| listener(host, *is_tls, secret.as_ref()))
                .collect();
            for (at, (host, is_tls)) in listeners.keys().enumerate() {
                numbers.insert((namespace, listener_name(host, *is_tls)), at / LISTENERS_MAX);
            }
            for (number, some) in all.chunks(LISTENERS_MAX).enumerate() {
                text += "---\n";
                if some.iter().any(|one| one["tls"]["certificateRefs"][0]["name"] == DEFAULT_CERTIFICATE) {
                    let _ = writeln!(
                        text,
                        "# CHECK the Secret {DEFAULT_CERTIFICATE}: hosts have TLS without a Secret of their own"
                    );
                }
                let mut spec = Map::from_iter([("listeners".to_owned(), json!(some))]);
                if number > 0 {
                    spec.insert("parentRef".to_owned(), json!({ "name": GATEWAY_NAME }));
                    write_object(&mut text, "ListenerSet", namespace, &set_name(number), Value::Object(spec));
                    continue;
                }
                spec.insert("gatewayClassName".to_owned(), json!("komainu"));
                if all.len() > LISTENERS_MAX {
                    spec.insert("allowedListeners".to_owned(), json!({ "namespaces": { "from": "Same" } }));
                }
                write_object(&mut text, "Gateway", namespace, GATEWAY_NAME, Value::Object(spec));
            }
        }
        for WrittenRoute { namespace, name, comments, listeners, mut spec } in self.routes {
            text += "---\n";
            for comment in comments {
                let _ = writeln!(text, "# CHECK {comment}");
            }
            let parents = listeners.into_iter().map(|section| {
                match numbers.get(&(&namespace, section.clone())).copied().unwrap_or(0) {
                    0 => json!({ "name": GATEWAY_NAME, "sectionName": section }),
                    number => json!({
                        "group": "gateway.networking.k8s.io", "kind": "ListenerSet",
                        "name": set_name(number), "sectionName": section,
                    }),
                }
            });
            spec.insert("parentRefs".to_owned(), parents.collect());
            write_object(&mut text, "HTTPRoute", &namespace, &name, Value::Object(spec));
        }
        ImportResult { toml: text, remarks: self.remarks, general_differences: &GENERAL_DIFFERENCES }
    }
}

/// Hosts of an Ingress that have TLS, with the names of their Secrets.
#[derive(Default)]
struct SecuredHosts {
    by_host: BTreeMap<String, String>,
    /// The Secret of a `tls` without hosts.
    others: Option<String>,
}

impl SecuredHosts {
    fn secret(&self, host: &str) -> Option<&String> {
        self.by_host.get(host).or(self.others.as_ref())
    }
}

impl RuleParts {
    /// Returns the parts for a host with or without TLS.
    fn of_host(&self, is_secured: bool) -> RuleParts {
        let mut parts = self.clone();
        if is_secured {
            parts.filters.push(json!({
                "type": "ResponseHeaderModifier",
                "responseHeaderModifier": { "set": [{ "name": "Strict-Transport-Security", "value": HSTS }] },
            }));
        }
        parts
    }
}

/// Returns the numbers of the ports of all Services, by namespace, Service and name.
fn named_ports(items: &[DataNode]) -> BTreeMap<(String, String, String), u64> {
    let mut ports = BTreeMap::new();
    let text = |node: &DataNode, path: &[&str]| node.at(path).and_then(DataNode::text).map(str::to_owned);
    for service in items.iter().filter(|item| text(item, &["kind"]).as_deref() == Some("Service")) {
        let namespace = text(service, &["metadata", "namespace"]).filter(|name| !name.is_empty());
        let namespace = namespace.unwrap_or_else(|| "default".to_owned());
        let Some(name) = text(service, &["metadata", "name"]) else { continue };
        for port in service.at(&["spec", "ports"]).map_or(&[][..], DataNode::items) {
            if let (Some(of), Some(number)) =
                (text(port, &["name"]), port.get("port").and_then(DataNode::number))
            {
                ports.insert((namespace.clone(), name.clone(), of), number);
            }
        }
    }
    ports
}

fn listener(host: &str, is_tls: bool, secret: Option<&String>) -> Value {
    let mut listener = json!({
        "name": listener_name(host, is_tls),
        "port": if is_tls { 443 } else { 80 },
        "protocol": if is_tls { "HTTPS" } else { "HTTP" },
    });
    if !host.is_empty() {
        listener["hostname"] = json!(host);
    }
    if let Some(secret) = secret {
        listener["tls"] = json!({ "certificateRefs": [{ "name": secret }] });
    }
    listener
}

/// Returns the name of a ListenerSet, from 1.
fn set_name(number: usize) -> String {
    format!("{GATEWAY_NAME}-{}", number + 1)
}

const GATEWAY_NAME: &str = "ingress";

fn listener_name(host: &str, is_tls: bool) -> String {
    let scheme = if is_tls { "https" } else { "http" };
    match host {
        "" => scheme.to_owned(),
        host => format!("{scheme}-{}", host.replace('*', "wildcard").replace('.', "-")),
    }
}

fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect()
}

/// Whether a value of an annotation asks for nothing.
fn is_off(text: &str) -> bool {
    matches!(text, "" | "false" | "off")
}

/// Whether an annotation is a redirect to a URL without the path and query of the request, which Gateway API adds the query to.
fn keeps_query(name: &str, text: &str) -> bool {
    matches!(name, "permanent-redirect" | "temporal-redirect") && !text.ends_with("$request_uri")
}

/// Whether an annotation becomes a part of rules that those without a backend do not have.
fn is_of_backend(name: &str) -> bool {
    let is_redirect = name.starts_with("permanent-redirect") || name.starts_with("temporal-redirect");
    let is_rewrite = matches!(name, "rewrite-target" | "upstream-vhost" | "x-forwarded-prefix");
    let is_attempt = matches!(name, "proxy-read-timeout" | "proxy-next-upstream-tries" | "backend-protocol");
    is_redirect || is_rewrite || is_attempt || name == "enable-cors" || name.starts_with("cors-")
}

/// Translates an annotation. `Err` is the reason why it is not.
fn read_annotation(
    name: &str,
    text: &str,
    all: &BTreeMap<&str, &str>,
    parts: &mut RuleParts,
    cors: &mut Map<String, Value>,
) -> Result<(), String> {
    let list = || text.split(',').map(str::trim).filter(|one| !one.is_empty()).collect::<Vec<_>>();
    match name {
        "rewrite-target" => {
            parts.rewrite = Some(text.to_owned()).filter(|text| !text.is_empty() && !text.contains('$'));
            parts.is_expression |= !text.is_empty();
            parts.rewrite_prefix = prefix_of_target(text).map(str::to_owned);
            if text.contains('$') && parts.rewrite_prefix.is_none() {
                parts.closed.push(name.to_owned());
                return Err("Gateway API has no groups of expressions: the route has no backend".to_owned());
            }
        }
        "use-regex" => parts.is_expression |= text == "true",
        "app-root" if text.starts_with('/') => parts.app_root = Some(text.to_owned()),
        "ssl-redirect" => parts.keeps_plain = text == "false",
        "force-ssl-redirect" => parts.forces_tls = text == "true",
        "upstream-vhost" if !text.contains('$') => parts.rewrite_host = Some(text.to_owned()),
        "x-forwarded-prefix" => parts.filters.push(json!({
            "type": "RequestHeaderModifier",
            "requestHeaderModifier": { "set": [{ "name": "X-Forwarded-Prefix", "value": text }] },
        })),
        "proxy-read-timeout" => match text.trim_end_matches('s').parse::<u64>() {
            Ok(seconds) => {
                _ = parts.timeouts.insert("backendRequest".to_owned(), json!(format!("{seconds}s")))
            }
            Err(_) => return Err("it is not a number of seconds".to_owned()),
        },
        "proxy-next-upstream-tries" => match text.parse::<u64>() {
            Ok(tries @ 1..=100) => parts.retry = Some(json!({ "attempts": tries - 1 })),
            _ => return Err("`retry.attempts` is a number up to 99".to_owned()),
        },
        "permanent-redirect" | "temporal-redirect" => {
            let code =
                if name.starts_with('p') { "permanent-redirect-code" } else { "temporal-redirect-code" };
            let usual = if name.starts_with('p') { 301 } else { 302 };
            let status = all.get(code).and_then(|text| text.parse::<u64>().ok()).unwrap_or(usual);
            match redirect_of(text, status) {
                Some(redirect) => parts.redirect = Some(redirect),
                None => {
                    parts.closed.push(name.to_owned());
                    return Err("the target has variables or a query: the route has no backend".to_owned());
                }
            }
        }
        "permanent-redirect-code" | "temporal-redirect-code" | "enable-cors" => {}
        "cors-allow-origin" => _ = cors.insert("allowOrigins".to_owned(), json!(list())),
        "cors-allow-methods" => _ = cors.insert("allowMethods".to_owned(), json!(list())),
        "cors-allow-headers" => _ = cors.insert("allowHeaders".to_owned(), json!(list())),
        "cors-expose-headers" => _ = cors.insert("exposeHeaders".to_owned(), json!(list())),
        "cors-allow-credentials" => _ = cors.insert("allowCredentials".to_owned(), json!(text == "true")),
        "cors-max-age" => _ = cors.insert("maxAge".to_owned(), json!(text.parse::<u32>().unwrap_or(600))),
        "backend-protocol" => {
            return match text.to_ascii_uppercase().as_str() {
                "HTTP" | "AUTO_HTTP" => Ok(()),
                "GRPC" => Err("write `appProtocol: kubernetes.io/h2c` at the port of the Service".to_owned()),
                _ => Err("write a BackendTLSPolicy for the Service".to_owned()),
            };
        }
        _ => {
            let row = ingress_annotation(name);
            if row.is_some_and(|row| row.verdict == IngressVerdict::NotNeeded) || is_off(text) {
                return Ok(());
            }
            if row.is_none_or(|row| row.guards) {
                parts.closed.push(name.to_owned());
                return Err("Gateway API has no words for it: the route has no backend until a KomainuPolicy guards it".to_owned());
            }
            return Err("Gateway API has no words for it".to_owned());
        }
    }
    Ok(())
}

/// Returns the beginning of a target with one group at its end, such as `/$2` or `/api/$2`.
fn prefix_of_target(text: &str) -> Option<&str> {
    let prefix = text.strip_suffix("$2").or(text.strip_suffix("$1"))?;
    (prefix.starts_with('/') && !prefix.contains('$')).then_some(prefix)
}

/// Returns the match of a path, and what replaces its prefix.
fn match_of(kind: &str, text: &str, parts: &RuleParts) -> (Value, Option<String>) {
    let beginning = ["(/|$)(.*)", "/(.*)", "(.*)"].iter().find_map(|end| text.strip_suffix(end));
    if parts.is_expression {
        let is_plain = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "/-_".contains(c));
        if let Some(beginning) = beginning.filter(|text| is_plain(text)) {
            let value = if beginning.is_empty() { "/" } else { beginning };
            return (json!({ "type": "PathPrefix", "value": value }), parts.rewrite_prefix.clone());
        }
        if is_plain(text) {
            return (json!({ "type": "PathPrefix", "value": text }), None);
        }
        let value = format!("(?i){}", text.strip_suffix('$').map_or(format!("{text}.*"), str::to_owned));
        return (json!({ "type": "RegularExpression", "value": value }), None);
    }
    match kind {
        "Exact" => (json!({ "type": "Exact", "value": text }), None),
        "Prefix" => (json!({ "type": "PathPrefix", "value": text }), None),
        _ if text.ends_with('/') => (json!({ "type": "PathPrefix", "value": text }), None),
        _ => {
            let value = format!("{}.*", crate::expressions::escape_literal(text));
            (json!({ "type": "RegularExpression", "value": value }), None)
        }
    }
}

/// Returns a redirect to a URL without variables, or with `$request_uri` at its end.
fn redirect_of(text: &str, status: u64) -> Option<Value> {
    let (text, keeps_path) = match text.strip_suffix("$request_uri") {
        Some(text) => (text, true),
        None => (text, false),
    };
    if text.contains(['$', '?', '#']) || !matches!(status, 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let mut redirect = json!({ "statusCode": status });
    let path = match text.split_once("://") {
        Some((scheme @ ("http" | "https"), rest)) => {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let (host, port) = match authority.rsplit_once(':') {
                Some((host, port)) => (host, Some(port.parse::<u16>().ok()?)),
                None => (authority, None),
            };
            redirect["scheme"] = json!(scheme);
            redirect["hostname"] = json!(host);
            if let Some(port) = port {
                redirect["port"] = json!(port);
            }
            path
        }
        Some(_) => return None,
        None if text.starts_with('/') => text,
        None => return None,
    };
    match (keeps_path, path) {
        (true, "" | "/") => {}
        (true, _) => return None,
        (false, path) => {
            let path = if path.is_empty() { "/" } else { path };
            redirect["path"] = json!({ "type": "ReplaceFullPath", "replaceFullPath": path });
        }
    }
    Some(redirect)
}

/// Whether the path of a rule is this one already.
fn has_value(rule: &Map<String, Value>, path: &str) -> bool {
    let value = rule.get("matches").and_then(|matches| matches.pointer("/0/path/value"));
    value.and_then(Value::as_str) == Some(path)
}

/// Returns the backend of a canary for the host and path of another Ingress.
fn canary_backend<'d>(canary: &'d DataNode, host: &str, path: &DataNode) -> Option<&'d DataNode> {
    let text = |path: &DataNode| path.get("path").and_then(DataNode::text).unwrap_or("/").to_owned();
    let rules = canary.at(&["spec", "rules"]).map_or(&[][..], DataNode::items);
    let of_host = rules
        .iter()
        .filter(|rule| rule.get("host").and_then(DataNode::text).unwrap_or("").to_lowercase() == host);
    let mut paths = of_host.flat_map(|rule| rule.at(&["http", "paths"]).map_or(&[][..], DataNode::items));
    paths.find(|other| text(other) == text(path) && path_type(other) == path_type(path))?.get("backend")
}

fn write_object(out: &mut String, kind: &str, namespace: &str, name: &str, spec: Value) {
    let _ = writeln!(out, "apiVersion: gateway.networking.k8s.io/v1\nkind: {kind}\nmetadata:");
    let _ =
        writeln!(out, "  name: {}\n  namespace: {}\nspec:", scalar(&json!(name)), scalar(&json!(namespace)));
    write_yaml(out, &spec, 1);
}

/// Writes a table or list as a block, indented by twice the level.
fn write_yaml(out: &mut String, value: &Value, level: usize) {
    let indent = "  ".repeat(level);
    match value {
        Value::Object(table) => {
            for (key, value) in table {
                write_entry(out, &format!("{indent}{key}:"), value, level);
            }
        }
        Value::Array(items) => {
            for item in items {
                let mut text = String::new();
                write_yaml(&mut text, item, level + 1);
                // The first line stands behind the dash.
                let text = text.strip_prefix(&format!("{indent}  ")).unwrap_or(&text);
                let _ = write!(out, "{indent}- {text}");
            }
        }
        scalar_value => {
            let _ = writeln!(out, "{indent}{}", scalar(scalar_value));
        }
    }
}

fn write_entry(out: &mut String, start: &str, value: &Value, level: usize) {
    let is_empty =
        value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty);
    if is_empty || !(value.is_array() || value.is_object()) {
        let _ = writeln!(out, "{start} {}", scalar(value));
    } else {
        let _ = writeln!(out, "{start}");
        write_yaml(out, value, level + 1);
    }
}

/// Returns a scalar: a text in double quotes, as JSON has it, unless it is a plain word.
fn scalar(value: &Value) -> String {
    let is_word = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '/' | '_'))
            && !matches!(
                text.to_ascii_lowercase().as_str(),
                "true" | "false" | "null" | "yes" | "no" | "on" | "off" | "y" | "n"
            )
    };
    match value {
        Value::String(text) if is_word(text) => text.clone(),
        other => other.to_string(),
    }
}
