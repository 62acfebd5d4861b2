//! The routes of hosts. Other Ingresses than that which has a host may add paths that no older Ingress has; their expressions come after
//! all other paths.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::{Map, Value, json};

use crate::backends::Backend;
use crate::ingress::guards::Authentication;
use crate::ingress::host_claims::{Canaries, IngressJudge, named_port};
use crate::ingress::paths::{IngressPath, MatchedPath, PathClaim, PathRank, rewrite_template};
use crate::ingress::references::{NamedUrl, may_name};
use crate::ingress::services::{NamedPort, ServerOptions, resolve_service};
use crate::ingress::settings::{CanaryRules, IngressSettings};
use crate::ingress::site_set::{HostRoute, JudgedIngress, host_of};
use crate::objects::{IngressBackend, ObjectKey};

impl IngressJudge<'_, '_> {
    pub(super) fn build_routes(&mut self, canaries: &Canaries) {
        let mut claims: BTreeMap<(String, PathClaim), ObjectKey> = BTreeMap::new();
        let mut used_canaries = BTreeSet::new();
        for at in 0..self.ingresses.len() {
            if self.ingresses[at].settings.canary.is_some() || self.excess.has(at) {
                continue;
            }
            let (ingress, key) = (self.ingresses[at].ingress.clone(), self.ingresses[at].key.clone());
            let mut order = 0;
            let mut own_hosts = BTreeSet::new();
            for (number, rule) in ingress.spec.rules.iter().enumerate() {
                if self.refused_rules.contains(&(at, number)) {
                    continue;
                }
                let host = host_of(rule.host.as_ref());
                own_hosts.insert(host.clone());
                for path in rule.http.iter().flat_map(|http| &http.paths) {
                    order += 1;
                    let named = IngressPath::of(path);
                    let claim = (host.clone(), named.claim());
                    if let Some(owner) = claims.get(&claim) {
                        // The name of an object of another namespace is not this one's to know.
                        let whose = match owner.namespace == key.namespace {
                            true => format!("the older Ingress {}", owner.name),
                            false => "an older Ingress of another namespace".to_owned(),
                        };
                        let note = format!("{whose} has the path {host}{}: it answers there", named.text);
                        self.ingresses[at].faults.warn("PathTaken", &note);
                        continue;
                    }
                    claims.insert(claim.clone(), key.clone());
                    let canary = canaries.get(&(key.namespace.clone(), host.clone(), claim.1));
                    if let Some((canary, _)) = canary {
                        used_canaries.insert(*canary);
                    }
                    self.add_path(at, &host, &named, order, &path.backend, canary);
                }
            }
            self.refuse_line_feeds(at, &own_hosts);
            self.add_root(at, &own_hosts);
            self.add_default(at, own_hosts);
        }
        for (at, judged) in self.ingresses.iter_mut().enumerate() {
            if judged.settings.canary.is_some() && !used_canaries.contains(&at) {
                let note = "no other Ingress of this namespace has the host and path of this canary: it gets no requests";
                judged.faults.warn("CanaryWithoutMain", note);
            }
        }
    }

    /// Refuses paths with a line feed where paths are expressions: `$` of ingress-nginx matches before one at the end, so that another
    /// path could answer what its guarded path takes.
    fn refuse_line_feeds(&mut self, at: usize, hosts: &BTreeSet<String>) {
        let namespace = self.ingresses[at].key.namespace.clone();
        for host in hosts {
            let is_refusal = |route: &HostRoute| route.rank == PathRank::of_line_feeds(route.ingress);
            if self.hosts[host].namespace != namespace
                || !self.expression_hosts.contains(&(host.clone(), namespace.clone()))
                || self.hosts[host].routes.iter().any(is_refusal)
            {
                continue;
            }
            let conditions = Map::from_iter([("path".to_owned(), json!([r"~ \n"]))]);
            let action = Map::from_iter([("respond".to_owned(), json!(404))]);
            self.push(at, host, PathRank::of_line_feeds(at), conditions, action, true);
        }
    }

    fn add_root(&mut self, at: usize, hosts: &BTreeSet<String>) {
        let Some(to) = self.ingresses[at].settings.app_root.clone() else { return };
        for host in hosts {
            let is_own = self.hosts[host].namespace == self.ingresses[at].key.namespace;
            let has_root = |route: &HostRoute| route.rank == PathRank::of_root(route.ingress);
            if !is_own || self.hosts[host].routes.iter().any(has_root) {
                let note = format!("app-root: an older Ingress has the host {host:?}");
                self.ingresses[at].faults.warn("HostTaken", &note);
                continue;
            }
            let conditions = Map::from_iter([("path".to_owned(), json!(["/"]))]);
            let action = Map::from_iter([("redirect".to_owned(), json!({ "to": to, "status": 302 }))]);
            self.push(at, host, PathRank::of_root(at), conditions, action, true);
        }
    }

    /// Adds `defaultBackend` for all other paths of the hosts.
    fn add_default(&mut self, at: usize, mut hosts: BTreeSet<String>) {
        let Some(backend) = self.ingresses[at].ingress.spec.default_backend.clone() else { return };
        if self.ingresses[at].ingress.spec.rules.is_empty() {
            hosts.insert(String::new());
        }
        for host in hosts {
            let is_own = self.hosts[&host].namespace == self.ingresses[at].key.namespace;
            let is_default = |route: &HostRoute| route.rank == PathRank::of_default(route.ingress);
            if !is_own || self.hosts[&host].routes.iter().any(is_default) {
                let note =
                    format!("defaultBackend: an older Ingress answers the other paths of the host {host:?}");
                self.ingresses[at].faults.warn("PathTaken", &note);
                continue;
            }
            let matched =
                MatchedPath { rank: PathRank::of_default(at), patterns: Vec::new(), groups: 0, fault: None };
            self.add_matched(at, &host, &matched, &backend, None, true);
        }
    }

    fn add_path(
        &mut self,
        at: usize,
        host: &str,
        path: &IngressPath,
        order: usize,
        backend: &IngressBackend,
        canary: Option<&(usize, IngressBackend)>,
    ) {
        let namespace = &self.ingresses[at].key.namespace;
        let is_expression = self.expression_hosts.contains(&(host.to_owned(), namespace.clone()));
        let settings = &self.ingresses[at].settings;
        let is_own =
            settings.uses_expressions || settings.rewrite.as_ref().is_some_and(|to| *to != path.text);
        let matched = if is_expression {
            let is_foreign = self.hosts[host].namespace != *namespace;
            let has_exact = !is_own && self.exact_paths.contains(&(host.to_owned(), path.text.clone()));
            Ok(path.expression((at, order), is_foreign, has_exact))
        } else {
            path.plain((at, order))
        };
        match matched {
            Ok(matched) => {
                if let Some(fault) = &matched.fault {
                    let note = format!("{fault}; what begins like it is closed (403)");
                    self.ingresses[at].faults.warn("InvalidPath", &note);
                }
                self.add_matched(at, host, &matched, backend, canary, !path.is_challenge());
            }
            Err(fault) => {
                self.ingresses[at].faults.warn("InvalidPath", &format!("{fault}: it is not served"))
            }
        }
    }

    fn add_matched(
        &mut self,
        at: usize,
        host: &str,
        matched: &MatchedPath,
        backend: &IngressBackend,
        canary: Option<&(usize, IngressBackend)>,
        may_redirect: bool,
    ) {
        let mut conditions = Map::new();
        if !matched.patterns.is_empty() {
            conditions.insert("path".to_owned(), json!(matched.patterns));
        }
        let mut table = match matched.fault {
            Some(_) => None,
            None => self.handling(at, host, backend, canary),
        };
        if self.ingresses[at].faults.is_closed() {
            table = None;
        }
        let Some(mut table) = table else {
            let closed = Map::from_iter([("respond".to_owned(), json!({ "status": 403 }))]);
            self.push(at, host, matched.rank.clone(), conditions, closed, false);
            return;
        };
        let settings = &self.ingresses[at].settings;
        if let Some(target) =
            settings.rewrite.clone().filter(|_| table.contains_key("proxy") || table.contains_key("split"))
        {
            if target.starts_with("http://") || target.starts_with("https://") {
                table.retain(|name, _| name != "proxy" && name != "split");
                let to = rewrite_template(&target, matched.groups);
                table.insert(
                    "redirect".to_owned(),
                    json!({ "to": to.trim_start_matches('/'), "status": 302 }),
                );
            } else {
                table.insert("rewrite".to_owned(), json!(rewrite_template(&target, matched.groups)));
            }
        }
        let auth = table.remove("auth");
        let networks = settings.networks.clone();
        if let Some(deny) = networks.deny {
            table.insert("deny".to_owned(), json!(deny));
        }
        let satisfies_any = settings.satisfies_any;
        if satisfies_any && let (Some(allow), Some(auth)) = (&networks.allow, &auth) {
            let mut known = conditions.clone();
            known.insert("client".to_owned(), json!(allow));
            let mut open = table.clone();
            // Who is let in by its address says nothing about who it is.
            remove_fields(&mut open, auth.get("response_headers"));
            self.push(at, host, matched.rank.part(0), known, open, may_redirect);
            table.insert("auth".to_owned(), auth.clone());
            self.push(at, host, matched.rank.part(1), conditions, table, may_redirect);
            return;
        }
        if let Some(allow) = networks.allow {
            table.insert("allow".to_owned(), json!(allow));
        }
        if let Some(auth) = auth {
            table.insert("auth".to_owned(), auth);
        }
        self.push(at, host, matched.rank.clone(), conditions, table, may_redirect);
    }

    fn push(
        &mut self,
        at: usize,
        host: &str,
        rank: PathRank,
        conditions: Map<String, Value>,
        action: Map<String, Value>,
        may_redirect: bool,
    ) {
        let settings = &self.ingresses[at].settings;
        let is_closed = self.ingresses[at].faults.is_closed();
        let route = HostRoute {
            ingress: at,
            rank,
            conditions,
            action,
            redirects: may_redirect && settings.redirects_to_tls && !is_closed,
            forces_tls: may_redirect && settings.forces_tls && !is_closed,
        };
        if let Some(state) = self.hosts.get_mut(host) {
            state.routes.push(route);
        }
    }

    /// Returns the directives of a route without its conditions; `None` if it has to be closed.
    fn handling(
        &mut self,
        at: usize,
        host: &str,
        backend: &IngressBackend,
        canary: Option<&(usize, IngressBackend)>,
    ) -> Option<Map<String, Value>> {
        let settings = self.ingresses[at].settings.clone();
        let mut table = settings.route.clone();
        match self.auth(at, host, &settings) {
            AuthOutcome::None => {}
            AuthOutcome::Table(auth) => _ = table.insert("auth".to_owned(), Value::Object(auth)),
            AuthOutcome::Unreachable => {
                return Some(Map::from_iter([("respond".to_owned(), json!({ "status": 503 }))]));
            }
            AuthOutcome::Closed => return None,
        }
        if let Some(redirect) = settings.redirect {
            table.insert("redirect".to_owned(), redirect);
            return Some(table);
        }
        self.add_mirror(at, &settings, &mut table);
        self.add_error_server(at, backend, &settings, &mut table);
        let mut proxy = settings.proxy.clone();
        if let Some(client) = self.hosts.get(host).and_then(|state| state.client.clone()) {
            pass_client_fields(&mut proxy, client.passes_certificate);
        }
        let main = self.server(at, backend, &settings);
        let canary = canary.and_then(|(index, backend)| {
            let judged = &self.ingresses[*index];
            let rules = judged.settings.canary.clone()?;
            // The canary's own balancing counts; everything else is that of the main Ingress.
            let mut own = settings.clone();
            own.group.retain(|name, _| name != "balance");
            own.group.extend(judged.settings.group.clone());
            Some((rules, self.server(*index, backend, &own)))
        });
        match canary {
            None => {
                let (name, value) = answer(&main, &proxy);
                table.insert(name.to_owned(), value);
            }
            Some((rules, canary)) => {
                let split = split(
                    &rules,
                    answer(&main, &proxy),
                    answer(&canary, &proxy),
                    settings.split_cookie.as_deref(),
                );
                table.insert("split".to_owned(), split);
            }
        }
        Some(table)
    }

    /// Resolves the backend of a path; `None` if there is no server.
    fn server(&mut self, at: usize, backend: &IngressBackend, settings: &IngressSettings) -> Option<String> {
        let JudgedIngress { key, faults, .. } = &mut self.ingresses[at];
        let options = ServerOptions {
            scheme: settings.scheme,
            table: &settings.group,
            uses_service_address: settings.uses_service_address,
            owner: &key.name,
        };
        let found = match named_port(backend) {
            Some((name, port)) => {
                let service = ObjectKey::new(&key.namespace, name);
                resolve_service(self.source, self.groups, &service, &port, options)
            }
            None => Err("a backend is a Service here: `resource` is not supported".to_owned()),
        };
        match found {
            Ok(Backend::Group(name)) => return Some(name),
            Ok(_) => {}
            Err(note) => faults.warn("ServiceNotFound", &format!("{note}: requests are answered 503")),
        }
        self.default_server(at, settings)
    }

    /// Resolves the default backend; `None` if there is no server.
    fn default_server(&mut self, at: usize, settings: &IngressSettings) -> Option<String> {
        let JudgedIngress { key, faults, .. } = &mut self.ingresses[at];
        let fallback = settings.default_backend.as_ref()?;
        let service = ObjectKey::new(&key.namespace, fallback);
        let none = Map::new();
        let options =
            ServerOptions { scheme: None, table: &none, uses_service_address: false, owner: &key.name };
        match resolve_service(self.source, self.groups, &service, &NamedPort::First, options) {
            Ok(Backend::Group(name)) => Some(name),
            Ok(_) => None,
            Err(note) => {
                faults.warn("ServiceNotFound", &format!("default-backend: {note}"));
                None
            }
        }
    }

    /// Has the default backend answer in place of some errors, with the fields that ingress-nginx sends.
    fn add_error_server(
        &mut self,
        at: usize,
        backend: &IngressBackend,
        settings: &IngressSettings,
        table: &mut Map<String, Value>,
    ) {
        if settings.error_statuses.is_empty() {
            return;
        }
        let Some(name) = self.default_server(at, settings) else { return };
        let key = &self.ingresses[at].key;
        let (service, port) = match named_port(backend) {
            Some((service, NamedPort::Number(port))) => (service, port.to_string()),
            Some((service, NamedPort::Name(port))) => (service, port),
            Some((service, NamedPort::First)) => (service, String::new()),
            None => ("", String::new()),
        };
        let all = [
            ("X-Namespace", key.namespace.as_str()),
            ("X-Ingress-Name", &key.name),
            ("X-Service-Name", service),
            ("X-Service-Port", &port),
        ];
        let is_sent = |value: &str| !value.is_empty() && crate::escape::is_host(value);
        let (set, removed): (Vec<_>, Vec<_>) = all.into_iter().partition(|(_, value)| is_sent(value));
        let set: Map<String, Value> =
            set.into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
        let removed: Vec<&str> = removed.into_iter().map(|(name, _)| name).collect();
        let mut fields = Map::from_iter([("set".to_owned(), Value::Object(set))]);
        if !removed.is_empty() {
            fields.insert("remove".to_owned(), json!(removed));
        }
        let to = json!({ "upstream": name, "request_headers": fields });
        table.insert("error_server".to_owned(), json!({ "to": to, "statuses": settings.error_statuses }));
    }

    /// Returns the `auth` of a route.
    fn auth(&mut self, at: usize, host: &str, settings: &IngressSettings) -> AuthOutcome {
        let (url, mut table) = match settings.authentication.clone() {
            None => return AuthOutcome::None,
            Some(Authentication::Table(table)) => return AuthOutcome::Table(table),
            Some(Authentication::Server(url, table)) => (url, table),
        };
        let JudgedIngress { faults, .. } = &mut self.ingresses[at];
        let is_concrete = !host.is_empty() && !host.contains('*');
        let mut url = url;
        if url.host == "$host" {
            if !is_concrete {
                let note = format!("auth-url has $host, and {host:?} is not one host");
                faults.close("UnsupportedAnnotation", &note);
                return AuthOutcome::Closed;
            }
            url.host = host.to_owned();
        }
        let slash = if url.rest.starts_with('/') { "" } else { "/" };
        table.insert("ask".to_owned(), json!(format!("{}{slash}{}", url.origin(), url.rest)));
        table.insert("host".to_owned(), json!(url.host));
        match self.url_group(at, &url, "auth-url") {
            Ok(UrlServers::External) => AuthOutcome::Table(table),
            Ok(UrlServers::Group(name)) => {
                table.insert("upstream".to_owned(), json!(name));
                AuthOutcome::Table(table)
            }
            Ok(UrlServers::Empty) => AuthOutcome::Unreachable,
            Err(note) => {
                self.ingresses[at].faults.close("ServiceNotFound", &note);
                AuthOutcome::Closed
            }
        }
    }

    /// Finds the servers of a URL: those of a Service, if its host is the name of one.
    fn url_group(&mut self, at: usize, url: &NamedUrl, what: &str) -> Result<UrlServers, String> {
        let key = self.ingresses[at].key.clone();
        let address = url.host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        if address.is_ok_and(|address| !self.source.is_usable(address)) {
            return Err(format!("{what}: {} is an address of this machine or of a link", url.host));
        }
        let Some(service) = url.service(self.objects, &key.namespace) else {
            return Ok(UrlServers::External);
        };
        if !may_name(self.objects, &key.namespace, "Service", &service) {
            return Err(format!(
                "{what}: no ReferenceGrant in the namespace {} allows this Ingress the Service {}",
                service.namespace, service.name
            ));
        }
        let mut table = Map::new();
        if url.scheme == "https" {
            // As ingress-nginx asks Services.
            table
                .insert("tls".to_owned(), json!({ "verify": false, "name": url.host.trim_end_matches('.') }));
        }
        let scheme = (url.scheme == "https").then_some("https");
        let owner = format!("{}.{}.{what}", key.namespace, key.name);
        let options = ServerOptions { scheme, table: &table, uses_service_address: false, owner: &owner };
        let port = NamedPort::Number(url.port_number());
        match resolve_service(self.source, self.groups, &service, &port, options) {
            Ok(Backend::Group(name)) => Ok(UrlServers::Group(name)),
            Ok(_) => Ok(UrlServers::Empty),
            Err(note) => Err(format!("{what}: {note}")),
        }
    }

    fn add_mirror(&mut self, at: usize, settings: &IngressSettings, table: &mut Map<String, Value>) {
        let Some((url, mut mirror, host)) = settings.mirror.clone() else { return };
        let mut to = Map::new();
        match self.url_group(at, &url, "mirror-target") {
            Ok(UrlServers::External) => _ = to.insert("to".to_owned(), json!([url.origin()])),
            Ok(UrlServers::Group(name)) => _ = to.insert("upstream".to_owned(), json!(name)),
            Ok(UrlServers::Empty) => return,
            Err(note) => {
                self.ingresses[at].faults.warn("ServiceNotFound", &format!("{note}: nothing is copied"));
                return;
            }
        }
        if let Some(host) = host.filter(|host| crate::escape::is_host(host)) {
            to.insert("host".to_owned(), json!(host));
        }
        mirror.insert("to".to_owned(), Value::Object(to));
        table.insert("mirror".to_owned(), Value::Object(mirror));
    }
}

enum AuthOutcome {
    None,
    Table(Map<String, Value>),
    /// The Service that decides has no endpoints: 503.
    Unreachable,
    Closed,
}

enum UrlServers {
    /// By DNS.
    External,
    Group(String),
    /// A Service without endpoints.
    Empty,
}

/// Returns the action of a group, or 503 if there is none.
fn answer(group: &Option<String>, proxy: &Map<String, Value>) -> (&'static str, Value) {
    match group {
        Some(name) => {
            let mut proxy = proxy.clone();
            proxy.insert("upstream".to_owned(), json!(name));
            ("proxy", Value::Object(proxy))
        }
        None => ("respond", json!({ "status": 503 })),
    }
}

/// Removes fields from the requests that the servers of a route get.
fn remove_fields(table: &mut Map<String, Value>, names: Option<&Value>) {
    let Some(names) = names.and_then(Value::as_array) else { return };
    let mut proxies: Vec<&mut Value> = Vec::new();
    for (name, value) in table.iter_mut() {
        match name.as_str() {
            "proxy" => proxies.push(value),
            "split" => {
                let branches = value["branches"].as_array_mut().into_iter().flatten();
                proxies.extend(branches.filter_map(|branch| branch.get_mut("proxy")));
            }
            _ => {}
        }
    }
    for proxy in proxies {
        let removed = &mut proxy["request_headers"]["remove"];
        match removed.as_array_mut() {
            Some(known) => known.extend(names.iter().cloned()),
            None => *removed = Value::Array(names.clone()),
        }
    }
}

/// Returns the `split` of a path with a canary: by field, then by cookie, then by weight.
fn split(
    rules: &CanaryRules,
    main: (&'static str, Value),
    canary: (&'static str, Value),
    cookie: Option<&str>,
) -> Value {
    let mut branches = Vec::new();
    let mut add = |name: &str, weight: u64, when: Option<Value>, action: &(&'static str, Value)| {
        let mut branch =
            Map::from_iter([("name".to_owned(), json!(name)), ("weight".to_owned(), json!(weight))]);
        if let Some(when) = when {
            branch.insert("when".to_owned(), when);
        }
        branch.insert(action.0.to_owned(), action.1.clone());
        branches.push(Value::Object(branch));
    };
    match &rules.header {
        Some((name, Some(value))) => {
            add("canary-by-header", 0, Some(json!({ "header": { name: value } })), &canary)
        }
        Some((name, None)) => {
            add("canary-by-header", 0, Some(json!({ "header": { name: "always" } })), &canary);
            add("main-by-header", 0, Some(json!({ "header": { name: "never" } })), &main);
        }
        None => {}
    }
    if let Some(name) = &rules.cookie {
        add("canary-by-cookie", 0, Some(json!({ "cookie": { name: "always" } })), &canary);
        add("main-by-cookie", 0, Some(json!({ "cookie": { name: "never" } })), &main);
    }
    add("main", rules.weight_total - rules.weight, None, &main);
    add("canary", rules.weight, None, &canary);
    let by = match cookie.filter(|_| !rules.ignores_affinity) {
        Some(name) => format!("sticky:{name}"),
        None => "random".to_owned(),
    };
    json!({ "by": by, "branches": branches })
}

/// Passes the properties of the client's certificate on in the fields of ingress-nginx, which clients cannot set.
fn pass_client_fields(proxy: &mut Map<String, Value>, passes_certificate: bool) {
    let fields = proxy.entry("request_headers").or_insert_with(|| json!({}));
    let mut set = fields.get("set").cloned().unwrap_or_else(|| json!({}));
    set["ssl-client-verify"] = json!("$tls_client_verify");
    set["ssl-client-subject-dn"] = json!("$tls_client_subject");
    set["ssl-client-issuer-dn"] = json!("$tls_client_issuer");
    let mut removed =
        vec!["ssl-client-verify", "ssl-client-subject-dn", "ssl-client-issuer-dn", "ssl-client-cert"];
    if passes_certificate {
        set["ssl-client-cert"] = json!("$tls_client_certificate");
    }
    removed.retain(|name| set.get(name).is_none());
    fields["set"] = set;
    if !removed.is_empty() {
        fields["remove"] = json!(removed);
    }
}
