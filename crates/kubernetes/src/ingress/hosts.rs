//! Which Ingress has which hosts and paths, and the sites that they become.
//!
//! A host belongs to the namespace of the oldest Ingress that names it: certificates, client certificates, aliases and expressions of
//! that namespace count. Others may add paths that no older Ingress has; their expressions come after all other paths.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use settings::node::Node;
use shapes::host::HostPattern;

use crate::backends::{Backend, BackendGroups, BackendSource};
use crate::http_route::failing_table;
use crate::ingress::classes::ServedClasses;
use crate::ingress::faults::{Faults, ObjectEvent};
use crate::ingress::guards::{Authentication, ClientAuthority};
use crate::ingress::paths::{IngressPath, MatchedPath, PathClaim, PathRank, rewrite_template};
use crate::ingress::references::{MemoryFolder, NamedUrl, may_name};
use crate::ingress::services::{NamedPort, ServerOptions, resolve_service};
use crate::ingress::settings::{CanaryRules, IngressSettings, read_settings};
use crate::listeners::certificate_paths;
use crate::objects::{Ingress, IngressBackend, ObjectKey, Objects, TLS_SECRET};
use crate::options::{IngressOptions, TranslateOptions};

/// What the configuration's checks have found in the routes of an Ingress.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum IngressState {
    /// Used as translated.
    Whole,
    /// Answered 500.
    Failing,
    /// Left out.
    Absent,
}

/// An Ingress that is served.
struct JudgedIngress {
    key: ObjectKey,
    ingress: Arc<Ingress>,
    settings: IngressSettings,
    faults: Faults,
}

/// A host, with what its site has besides routes.
#[derive(Default)]
struct IngressHost {
    /// The oldest Ingress that names the host.
    owner: usize,
    namespace: String,
    aliases: Vec<String>,
    /// Secret with the certificate.
    certificate: Option<ObjectKey>,
    client: Option<ClientAuthority>,
    /// The other name, with or without `www.`.
    www: Option<String>,
    /// Addresses that get its connections undecrypted.
    passed_to: Option<Vec<String>>,
    routes: Vec<HostRoute>,
}

/// A route of a host.
struct HostRoute {
    ingress: usize,
    rank: PathRank,
    conditions: Map<String, Value>,
    action: Map<String, Value>,
    /// Whether requests without TLS are redirected, if the host has a certificate.
    redirects: bool,
    /// Whether they are redirected in any case.
    forces_tls: bool,
}

/// All Ingresses that are served.
pub(crate) struct IngressSet {
    ingresses: Vec<JudgedIngress>,
    /// Faults of each, with those that are found after it was judged.
    faults: Vec<Faults>,
    hosts: BTreeMap<String, IngressHost>,
    /// Addresses and hosts that Gateways have.
    taken: BTreeSet<(String, String)>,
    /// Addresses at which a Gateway speaks the other protocol.
    clashing: BTreeSet<String>,
    options: IngressOptions,
}

impl IngressSet {
    /// Whether a host's connections are passed through.
    pub(crate) fn passes_through(&self) -> bool {
        self.hosts.values().any(|host| host.passed_to.is_some())
    }

    /// Returns the number of Ingresses.
    pub(crate) fn len(&self) -> usize {
        self.ingresses.len()
    }

    /// Leaves out hosts that Gateways have at the same addresses, and addresses at which a Gateway speaks with TLS where Ingresses do
    /// not, or the other way round. `listeners` are addresses of Gateways, and whether they have TLS.
    pub(crate) fn yield_hosts(
        &mut self,
        taken: BTreeSet<(String, String)>,
        listeners: impl Iterator<Item = (String, bool)>,
    ) {
        self.taken = taken;
        self.faults = self.ingresses.iter().map(|judged| judged.faults.clone()).collect();
        let of_ours = [(&self.options.http, false), (&self.options.https, true)];
        self.clashing = listeners
            .filter(|(address, is_tls)| {
                of_ours.iter().any(|(own, own_tls)| *own == address && own_tls != is_tls)
            })
            .map(|(address, _)| address)
            .collect();
        for address in &self.clashing {
            for host in self.hosts.values() {
                let note = format!(
                    "a Gateway has the address {address} for another protocol: choose other addresses for one of them"
                );
                self.faults[host.owner].warn("AddressTaken", &note);
            }
        }
        for (name, host) in &self.hosts {
            let names = [name].into_iter().chain(&host.aliases).chain(&host.www);
            for name in names {
                let is_taken = |address: &String| self.taken.contains(&(address.clone(), name.clone()));
                if is_taken(&self.options.http)
                    || (host.certificate.is_some() && is_taken(&self.options.https))
                {
                    let note = format!("a Gateway has the host {name:?} at this address, and answers there");
                    self.faults[host.owner].warn("HostTaken", &note);
                }
            }
        }
    }

    /// Returns the addresses that are listened on.
    pub(crate) fn addresses(&self) -> BTreeSet<String> {
        let mut addresses = BTreeSet::new();
        if !self.hosts.is_empty() {
            addresses.insert(self.options.http.clone());
        }
        if self.hosts.values().any(|host| host.certificate.is_some() || host.passed_to.is_some()) {
            addresses.insert(self.options.https.clone());
        }
        addresses
    }

    /// Notes what the configuration's checks have found in the routes of an Ingress.
    pub(crate) fn reject(&mut self, at: usize, fault: &str) {
        let note = format!("its paths are answered 500: {fault}");
        self.faults[at].warn("Rejected", &note);
    }

    /// Returns the object of an Ingress, and the warnings about it.
    pub(crate) fn events(&self) -> Vec<ObjectEvent> {
        self.ingresses
            .iter()
            .zip(&self.faults)
            .flat_map(|(judged, faults)| faults.events(&judged.key, &judged.ingress.metadata.uid))
            .collect()
    }

    /// Returns the names of the Ingresses.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.ingresses.iter().map(|judged| &judged.key)
    }

    /// Returns the sites. The place of a route is that of its Ingress: `first_place` and its number. `unusable` are addresses that cannot be
    /// bound.
    pub(crate) fn sites(
        &self,
        first_place: usize,
        states: &[IngressState],
        unusable: &BTreeMap<String, String>,
    ) -> Vec<Node> {
        let mut sites = Vec::new();
        for (name, host) in &self.hosts {
            if states[host.owner] == IngressState::Absent {
                continue;
            }
            for is_tls in [false, true] {
                let address = if is_tls { &self.options.https } else { &self.options.http };
                let is_served = !is_tls || (host.certificate.is_some() && host.passed_to.is_none());
                if !is_served || unusable.contains_key(address) || self.clashing.contains(address) {
                    continue;
                }
                let is_free = |name: &&String| !self.taken.contains(&((*address).clone(), (*name).clone()));
                let names: Vec<&String> = [name].into_iter().chain(&host.aliases).filter(is_free).collect();
                if !names.is_empty() {
                    let routes = self.routes(host, is_tls, first_place, states);
                    sites.push(self.site(host, &names, is_tls, first_place, routes));
                }
                if let Some(other) = host.www.as_ref().filter(is_free) {
                    let to = format!("$scheme://{name}$uri");
                    let route = json!({ "redirect": { "to": to, "status": 308 } });
                    let routes = vec![Node::from(route).at(first_place + host.owner)];
                    sites.push(self.site(host, &[other], is_tls, first_place, routes));
                }
            }
        }
        sites
    }

    fn site(
        &self,
        host: &IngressHost,
        names: &[&String],
        is_tls: bool,
        first_place: usize,
        routes: Vec<Node>,
    ) -> Node {
        let place = first_place + host.owner;
        let mut site = Map::new();
        if names.iter().all(|name| !name.is_empty()) {
            site.insert("hosts".to_owned(), json!(names));
        }
        let address = if is_tls { &self.options.https } else { &self.options.http };
        site.insert("listen".to_owned(), json!([{ "address": address, "tls": is_tls, "h2c": !is_tls }]));
        if let Some(secret) = host.certificate.as_ref().filter(|_| is_tls) {
            let (chain, key) = certificate_paths(secret);
            let mut tls = json!({ "certificate": [chain], "key": [key] });
            if let Some(client) = &host.client {
                tls["client"] = client.table.clone();
            }
            site.insert("tls".to_owned(), tls);
            if let Some(value) = &self.options.hsts {
                site.insert("hsts".to_owned(), json!(value));
            }
        }
        let mut node = Node::from(Value::Object(site)).at(place);
        if !routes.is_empty() {
            node.set_entry("route", Node::list(routes).at_own(place));
        }
        node
    }

    fn routes(
        &self,
        host: &IngressHost,
        is_tls: bool,
        first_place: usize,
        states: &[IngressState],
    ) -> Vec<Node> {
        let mut nodes = Vec::new();
        let mut add = |at: usize, conditions: &Map<String, Value>, action: Map<String, Value>| {
            let mut table = conditions.clone();
            table.extend(action);
            nodes.push(Node::from(Value::Object(table)).at(first_place + at));
        };
        for route in &host.routes {
            let action = match states[route.ingress] {
                IngressState::Whole => route.action.clone(),
                IngressState::Failing => failing_table(),
                IngressState::Absent => continue,
            };
            let redirects = (host.certificate.is_some() && route.redirects) || route.forces_tls;
            // Without TLS nobody shows a certificate.
            let needs_tls = host.client.is_some();
            if is_tls || !(redirects || needs_tls) {
                add(route.ingress, &route.conditions, action);
                continue;
            }
            let port = self.options.https.rsplit_once(':').map_or("443", |(_, port)| port);
            let port = if port == "443" { String::new() } else { format!(":{port}") };
            let to = json!({ "redirect": { "to": format!("https://$host{port}$uri"), "status": 308 } });
            let to = to.as_object().cloned().unwrap_or_default();
            if !self.options.trusts_proxies || needs_tls {
                add(route.ingress, &route.conditions, to);
                continue;
            }
            // A proxy in front that has received the request through TLS says so.
            let mut conditions = route.conditions.clone();
            conditions.insert("not".to_owned(), json!({ "header": { "x-forwarded-proto": "https" } }));
            add(route.ingress, &conditions, to);
            add(route.ingress, &route.conditions, action);
        }
        nodes
    }

    /// Returns the streams of hosts whose connections are passed through.
    pub(crate) fn streams(
        &self,
        first_place: usize,
        states: &[IngressState],
        unusable: &BTreeMap<String, String>,
    ) -> Vec<Node> {
        let mut streams = Vec::new();
        for (name, host) in &self.hosts {
            let Some(servers) = host.passed_to.as_ref().filter(|servers| !servers.is_empty()) else {
                continue;
            };
            let address = &self.options.https;
            let is_taken =
                self.taken.contains(&(address.clone(), name.clone())) || self.clashing.contains(address);
            if is_taken || unusable.contains_key(address) || states[host.owner] != IngressState::Whole {
                continue;
            }
            let names: Vec<&String> = [name].into_iter().chain(&host.aliases).collect();
            let stream = json!({ "listen": [address], "names": names, "to": servers });
            streams.push(Node::from(stream).at(first_place + host.owner));
        }
        streams
    }
}

/// Judges all Ingresses, the oldest first. `files` gets the certificates and users.
pub(crate) fn judge_ingresses(
    objects: &Objects,
    options: &TranslateOptions,
    source: &BackendSource<'_>,
    groups: &mut BackendGroups,
    files: &mut BTreeMap<String, Vec<u8>>,
) -> IngressSet {
    let classes = ServedClasses::new(objects, options.ingress.class.as_deref());
    let mut ours: Vec<(&ObjectKey, &Arc<Ingress>)> =
        objects.ingresses.iter().filter(|(_, ingress)| classes.serve(ingress)).collect();
    ours.sort_by_key(|(key, ingress)| (ingress.metadata.creation_timestamp.clone(), (*key).clone()));
    let mut folder = MemoryFolder(files);
    let ingresses = ours.into_iter().map(|(key, ingress)| {
        let mut faults = Faults::default();
        let settings = read_settings(objects, key, ingress, &mut faults, &mut folder);
        JudgedIngress { key: key.clone(), ingress: ingress.clone(), settings, faults }
    });
    let mut judge = IngressJudge {
        ingresses: ingresses.collect(),
        hosts: BTreeMap::new(),
        aliases: BTreeMap::new(),
        expression_hosts: BTreeSet::new(),
        exact_paths: BTreeSet::new(),
        refused_rules: BTreeSet::new(),
        objects,
        options,
        source,
        groups,
        files: folder.0,
    };
    judge.claim_hosts();
    judge.resolve_certificates();
    judge.resolve_host_settings();
    judge.find_expressions();
    let canaries = judge.find_canaries();
    judge.build_routes(&canaries);
    let IngressJudge { ingresses, mut hosts, .. } = judge;
    for host in hosts.values_mut() {
        host.routes.sort_by(|one, other| one.rank.cmp(&other.rank));
        // Some faults are found after other routes of the Ingress were made.
        for route in host.routes.iter_mut().filter(|route| ingresses[route.ingress].faults.is_closed()) {
            route.action = Map::from_iter([("respond".to_owned(), json!({ "status": 403 }))]);
            (route.redirects, route.forces_tls) = (false, false);
        }
    }
    IngressSet {
        faults: ingresses.iter().map(|judged| judged.faults.clone()).collect(),
        ingresses,
        hosts,
        taken: BTreeSet::new(),
        clashing: BTreeSet::new(),
        options: options.ingress.clone(),
    }
}

/// A rule's host, in lower case; empty for every host.
fn host_of(host: Option<&String>) -> String {
    host.map(|host| host.to_ascii_lowercase()).unwrap_or_default()
}

struct IngressJudge<'a, 's> {
    ingresses: Vec<JudgedIngress>,
    hosts: BTreeMap<String, IngressHost>,
    /// Aliases, with the host that has each.
    aliases: BTreeMap<String, String>,
    /// Hosts whose paths are expressions, for Ingresses of a namespace.
    expression_hosts: BTreeSet<(String, String)>,
    /// Exact paths of hosts.
    exact_paths: BTreeSet<(String, String)>,
    /// Rules that are not served: number of the Ingress and of the rule.
    refused_rules: BTreeSet<(usize, usize)>,
    objects: &'a Objects,
    options: &'a TranslateOptions,
    source: &'a BackendSource<'s>,
    groups: &'a mut BackendGroups,
    files: &'a mut BTreeMap<String, Vec<u8>>,
}

/// A canary of a path: the number of its Ingress, and its backend.
type Canaries = BTreeMap<(String, String, PathClaim), (usize, IngressBackend)>;

impl IngressJudge<'_, '_> {
    /// Gives each host to the oldest Ingress that names it.
    fn claim_hosts(&mut self) {
        for at in 0..self.ingresses.len() {
            let ingress = self.ingresses[at].ingress.clone();
            if self.ingresses[at].settings.canary.is_some() {
                continue;
            }
            let namespace = self.ingresses[at].key.namespace.clone();
            let mut first = None;
            for (number, rule) in ingress.spec.rules.iter().enumerate() {
                let host = host_of(rule.host.as_ref());
                if !self.claim_host(at, &namespace, &host) {
                    self.refused_rules.insert((at, number));
                } else if first.is_none() {
                    first = Some(host);
                }
            }
            if ingress.spec.rules.is_empty() && ingress.spec.default_backend.is_some() {
                self.claim_host(at, &namespace, "");
            }
            let Some(host) = first.filter(|host| !host.is_empty()) else { continue };
            for alias in self.ingresses[at].settings.aliases.clone() {
                if self.hosts[&host].namespace != namespace {
                    let note = format!(
                        "server-alias {alias}: the host {host} belongs to an Ingress of the namespace {}",
                        self.hosts[&host].namespace
                    );
                    self.ingresses[at].faults.warn("HostTaken", &note);
                } else if self.hosts.contains_key(&alias) || self.aliases.contains_key(&alias) {
                    let note = format!("server-alias {alias}: an older Ingress has this host");
                    self.ingresses[at].faults.warn("HostTaken", &note);
                } else {
                    self.aliases.insert(alias, host.clone());
                }
            }
        }
        for (alias, host) in &self.aliases {
            if let Some(host) = self.hosts.get_mut(host) {
                host.aliases.push(alias.clone());
            }
        }
    }

    fn claim_host(&mut self, at: usize, namespace: &str, host: &str) -> bool {
        if !host.is_empty() && HostPattern::parse(host).is_err() {
            self.ingresses[at]
                .faults
                .warn("InvalidHost", &format!("{host:?} is not a host: its rule is not served"));
            return false;
        }
        if let Some(main) = self.aliases.get(host).cloned() {
            if self.hosts[&main].namespace != namespace {
                let note = format!(
                    "the host {host} is an alias of {main}, which an older Ingress of another namespace has: its rule is not served"
                );
                self.ingresses[at].faults.warn("HostTaken", &note);
                return false;
            }
            self.aliases.remove(host);
        }
        self.hosts.entry(host.to_owned()).or_insert_with(|| IngressHost {
            owner: at,
            namespace: namespace.to_owned(),
            ..IngressHost::default()
        });
        true
    }

    /// Returns the hosts of an Ingress that belong to its namespace; others are noted with what cannot be done for them.
    fn own_hosts(&mut self, at: usize, what: &str, closes: bool) -> Vec<String> {
        let JudgedIngress { key, ingress, faults, .. } = &mut self.ingresses[at];
        let mut own = Vec::new();
        let names: BTreeSet<String> = ingress
            .spec
            .rules
            .iter()
            .enumerate()
            .filter(|(number, _)| !self.refused_rules.contains(&(at, *number)))
            .map(|(_, rule)| host_of(rule.host.as_ref()))
            .collect();
        for host in names {
            let Some(state) = self.hosts.get(&host) else { continue };
            if state.namespace == key.namespace {
                own.push(host);
                continue;
            }
            let note = format!(
                "{what}: the host {host:?} belongs to an older Ingress of the namespace {}",
                state.namespace
            );
            if closes {
                faults.close("HostTaken", &note);
            } else {
                faults.warn("HostTaken", &note);
            }
        }
        own
    }

    fn resolve_certificates(&mut self) {
        for at in 0..self.ingresses.len() {
            if self.ingresses[at].settings.canary.is_some() {
                continue;
            }
            let (ingress, key) = (self.ingresses[at].ingress.clone(), self.ingresses[at].key.clone());
            for tls in &ingress.spec.tls {
                let mut hosts: Vec<String> = tls.hosts.iter().map(|host| host.to_ascii_lowercase()).collect();
                if hosts.is_empty() {
                    hosts = ingress.spec.rules.iter().map(|rule| host_of(rule.host.as_ref())).collect();
                }
                let named = tls.secret_name.as_ref().filter(|name| !name.is_empty());
                let secret = named.map(|name| ObjectKey::new(&key.namespace, name));
                let secret = secret.or_else(|| self.options.ingress.default_certificate.clone());
                let Some(secret) = secret else {
                    let note = "`tls` without `secretName`, and there is no --default-certificate: its hosts have no TLS";
                    self.ingresses[at].faults.warn("CertificateNotFound", note);
                    continue;
                };
                if let Err(note) = self.add_certificate(&secret) {
                    self.ingresses[at].faults.warn("CertificateNotFound", &note);
                    continue;
                }
                for host in hosts {
                    let namespace = self.hosts.get(&host).map(|state| state.namespace.clone());
                    match namespace {
                        // Of a host without paths, as in ingress-nginx.
                        None => {}
                        Some(owner) if owner != key.namespace => {
                            let note = format!(
                                "tls: the host {host:?} belongs to an older Ingress of the namespace {owner}"
                            );
                            self.ingresses[at].faults.warn("HostTaken", &note);
                        }
                        Some(_) => {
                            let state = self.hosts.get_mut(&host).expect("it was found");
                            state.certificate.get_or_insert_with(|| secret.clone());
                        }
                    }
                }
            }
        }
        if let Some(secret) = self.options.ingress.default_certificate.clone()
            && self.add_certificate(&secret).is_ok()
            && let Some(every) = self.hosts.get_mut("")
        {
            every.certificate.get_or_insert(secret);
        }
    }

    /// Adds a certificate to the files.
    fn add_certificate(&mut self, key: &ObjectKey) -> Result<(), String> {
        let (chain_path, key_path) = certificate_paths(key);
        if self.files.contains_key(&chain_path) {
            return Ok(());
        }
        let secret = self.objects.secrets.get(key).filter(|secret| secret.r#type == TLS_SECRET);
        let secret =
            secret.ok_or_else(|| format!("there is no Secret {key} of the type kubernetes.io/tls"))?;
        let (chain, private) = secret.certificate()?;
        self.files.insert(chain_path, chain);
        self.files.insert(key_path, private);
        Ok(())
    }

    /// Client certificates, other names, and connections that are passed through.
    fn resolve_host_settings(&mut self) {
        for at in 0..self.ingresses.len() {
            if let Some(client) = self.ingresses[at].settings.client_authority.clone() {
                for host in self.own_hosts(at, "auth-tls-secret", true) {
                    let state = self.hosts.get_mut(&host).expect("it is one of them");
                    let faults = &mut self.ingresses[at].faults;
                    if state.certificate.is_none() {
                        let note =
                            format!("auth-tls-secret: the host {host:?} has no certificate: add it to `tls`");
                        faults.close("CertificateNotFound", &note);
                    }
                    match &state.client {
                        None => state.client = Some(client.clone()),
                        Some(known) if *known == client => {}
                        Some(_) => {
                            let note = format!(
                                "auth-tls-secret: an older Ingress asks clients of the host {host:?} for other certificates"
                            );
                            faults.close("HostTaken", &note);
                        }
                    }
                }
            }
            if self.ingresses[at].settings.redirects_www {
                for host in self.own_hosts(at, "from-to-www-redirect", false) {
                    self.add_www(at, &host);
                }
            }
            if self.ingresses[at].settings.is_passed_through {
                for host in self.own_hosts(at, "ssl-passthrough", true) {
                    self.pass_through(at, &host);
                }
            }
        }
    }

    fn add_www(&mut self, at: usize, host: &str) {
        let faults = &mut self.ingresses[at].faults;
        if host.is_empty() || host.starts_with('*') {
            faults.warn("InvalidAnnotation", "from-to-www-redirect needs a host without `*`");
            return;
        }
        let other = match host.strip_prefix("www.") {
            Some(bare) => bare.to_owned(),
            None => format!("www.{host}"),
        };
        let is_taken = self.hosts.contains_key(&other)
            || self.aliases.contains_key(&other)
            || self.hosts.values().any(|state| state.www.as_ref() == Some(&other));
        if is_taken {
            faults.warn("HostTaken", &format!("from-to-www-redirect: another Ingress has the host {other}"));
        } else if let Some(state) = self.hosts.get_mut(host) {
            state.www = Some(other);
        }
    }

    fn pass_through(&mut self, at: usize, host: &str) {
        let (key, ingress) = (self.ingresses[at].key.clone(), self.ingresses[at].ingress.clone());
        let rule = ingress.spec.rules.iter().find(|rule| host_of(rule.host.as_ref()) == host);
        let path = rule.and_then(|rule| rule.http.as_ref()).and_then(|http| http.paths.first());
        let faults = &mut self.ingresses[at].faults;
        let (Some(path), false) = (path, host.is_empty()) else {
            faults.close("InvalidAnnotation", "ssl-passthrough needs a host and a path");
            return;
        };
        let none = Map::new();
        let options = ServerOptions {
            scheme: Some("http"),
            table: &none,
            uses_service_address: false,
            owner: &key.name,
        };
        let servers = match named_port(&path.backend) {
            Some((name, port)) => {
                let service = ObjectKey::new(&key.namespace, name);
                resolve_service(self.source, self.groups, &service, &port, options)
            }
            None => Err("the backend is not a Service".to_owned()),
        };
        match servers {
            Ok(Backend::Group(name)) => {
                let group = self.groups.group(&name);
                let addresses = group.map(|group| self.source.group_addresses(group)).unwrap_or_default();
                self.hosts.get_mut(host).expect("it is one of them").passed_to = Some(addresses);
            }
            // Without endpoints connections are closed.
            Ok(_) => self.hosts.get_mut(host).expect("it is one of them").passed_to = Some(Vec::new()),
            Err(note) => faults.close("ServiceNotFound", &format!("ssl-passthrough: {note}")),
        }
    }

    /// Finds the hosts whose paths are expressions. `use-regex` or `rewrite-target` of one Ingress makes expressions of all paths of
    /// a host, in all Ingresses of the namespace.
    fn find_expressions(&mut self) {
        for (at, judged) in self.ingresses.iter().enumerate() {
            let settings = &judged.settings;
            if settings.canary.is_some() {
                continue;
            }
            for (number, rule) in judged.ingress.spec.rules.iter().enumerate() {
                if self.refused_rules.contains(&(at, number)) {
                    continue;
                }
                let host = host_of(rule.host.as_ref());
                let paths: Vec<IngressPath> =
                    rule.http.iter().flat_map(|http| &http.paths).map(IngressPath::of).collect();
                let is_rewritten =
                    |path: &IngressPath| settings.rewrite.as_ref().is_some_and(|to| *to != path.text);
                if settings.uses_expressions || paths.iter().any(is_rewritten) {
                    self.expression_hosts.insert((host.clone(), judged.key.namespace.clone()));
                }
                for path in
                    paths.iter().filter(|path| path.kind == crate::ingress::paths::IngressPathKind::Exact)
                {
                    self.exact_paths.insert((host.clone(), path.text.clone()));
                }
            }
        }
    }

    /// Finds the canaries, by namespace, host and path. The oldest of a path counts.
    fn find_canaries(&mut self) -> Canaries {
        let mut canaries = Canaries::new();
        for at in 0..self.ingresses.len() {
            let judged = &mut self.ingresses[at];
            if judged.settings.canary.is_none() {
                continue;
            }
            for rule in &judged.ingress.spec.rules {
                let host = host_of(rule.host.as_ref());
                for path in rule.http.iter().flat_map(|http| &http.paths) {
                    let place = (judged.key.namespace.clone(), host.clone(), IngressPath::of(path).claim());
                    match canaries.entry(place) {
                        std::collections::btree_map::Entry::Vacant(entry) => {
                            _ = entry.insert((at, path.backend.clone()));
                        }
                        std::collections::btree_map::Entry::Occupied(_) => {
                            let text = path.path.as_deref().unwrap_or("/");
                            let note =
                                format!("an older canary has the path {host}{text}: one canary counts");
                            judged.faults.warn("PathTaken", &note);
                        }
                    }
                }
            }
        }
        canaries
    }

    fn build_routes(&mut self, canaries: &Canaries) {
        let mut claims: BTreeMap<(String, PathClaim), ObjectKey> = BTreeMap::new();
        let mut used_canaries = BTreeSet::new();
        for at in 0..self.ingresses.len() {
            if self.ingresses[at].settings.canary.is_some() {
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
        let rest = if url.rest.is_empty() { "/" } else { url.rest.as_str() };
        table.insert("ask".to_owned(), json!(format!("{}{rest}", url.origin())));
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

fn named_port(backend: &IngressBackend) -> Option<(&str, NamedPort)> {
    let service = backend.service.as_ref().filter(|service| !service.name.is_empty())?;
    let port = match (service.port.number, &service.port.name) {
        (Some(number), _) => NamedPort::Number(number),
        (None, Some(name)) => NamedPort::Name(name.clone()),
        (None, None) => NamedPort::First,
    };
    Some((&service.name, port))
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
