//! The Ingresses that are served, and the sites that their hosts become.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde_json::{Map, Value, json};
use settings::node::Node;

use crate::http_route::failing_table;
use crate::ingress::faults::{Faults, ObjectEvent};
use crate::ingress::guards::ClientAuthority;
use crate::ingress::paths::PathRank;
use crate::ingress::settings::IngressSettings;
use crate::listeners::certificate_paths;
use crate::objects::{Ingress, ObjectKey};
use crate::options::IngressOptions;

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

/// A rule's host, in lower case; empty for every host.
pub(super) fn host_of(host: Option<&String>) -> String {
    host.map(|host| host.to_ascii_lowercase()).unwrap_or_default()
}

/// An Ingress that is served.
pub(super) struct JudgedIngress {
    pub(super) key: ObjectKey,
    pub(super) ingress: Arc<Ingress>,
    pub(super) settings: IngressSettings,
    pub(super) faults: Faults,
}

/// Gateways, or routes of them, that want a host of an address.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct GatewayClaim {
    /// When the oldest was created.
    since: Option<String>,
    namespaces: BTreeSet<String>,
}

impl GatewayClaim {
    /// Adds a Gateway or route.
    pub(crate) fn add(&mut self, created: &str, namespace: &str) {
        if self.since.as_deref().is_none_or(|since| created < since) {
            self.since = Some(created.to_owned());
        }
        self.namespaces.insert(namespace.to_owned());
    }

    /// Whether an Ingress keeps the host: it is older, and nobody in its namespace moves the host to a Gateway.
    fn leaves(&self, ingress: &JudgedIngress) -> bool {
        let created = ingress.ingress.metadata.creation_timestamp.as_str();
        !created.is_empty()
            && self.since.as_deref().is_some_and(|since| created < since)
            && !self.namespaces.contains(&ingress.key.namespace)
    }
}

/// A host, with what its site has besides routes.
#[derive(Default)]
pub(super) struct IngressHost {
    /// The oldest Ingress that names the host.
    pub(super) owner: usize,
    pub(super) namespace: String,
    pub(super) aliases: Vec<String>,
    /// Secret with the certificate.
    pub(super) certificate: Option<ObjectKey>,
    /// Whether a Secret is named whose certificate is not there, or not yet.
    pub(super) lacks_certificate: bool,
    pub(super) client: Option<ClientAuthority>,
    /// The other name, with or without `www.`.
    pub(super) www: Option<String>,
    /// Addresses that get its connections undecrypted.
    pub(super) passed_to: Option<Vec<String>>,
    pub(super) routes: Vec<HostRoute>,
}

/// A route of a host.
pub(super) struct HostRoute {
    pub(super) ingress: usize,
    pub(super) rank: PathRank,
    pub(super) conditions: Map<String, Value>,
    pub(super) action: Map<String, Value>,
    /// Whether requests without TLS are redirected, if the host has a certificate.
    pub(super) redirects: bool,
    /// Whether they are redirected in any case.
    pub(super) forces_tls: bool,
}

/// All Ingresses that are served.
pub(crate) struct IngressSet {
    pub(super) ingresses: Vec<JudgedIngress>,
    /// Faults of each, with those that are found after it was judged.
    pub(super) faults: Vec<Faults>,
    pub(super) hosts: BTreeMap<String, IngressHost>,
    /// Addresses and hosts that Gateways have.
    pub(super) taken: BTreeSet<(String, String)>,
    /// Addresses and hosts that Ingresses keep, though Gateways want them.
    pub(super) kept: BTreeSet<(String, String)>,
    /// Addresses at which a Gateway speaks the other protocol.
    pub(super) clashing: BTreeSet<String>,
    pub(super) options: IngressOptions,
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

    /// Leaves out hosts that Gateways have at the same addresses, unless the Ingress is older and of another namespace, and addresses at which a Gateway speaks with TLS where Ingresses do
    /// not, or the other way round. `listeners` are addresses of Gateways, and whether they have TLS.
    pub(crate) fn yield_hosts(
        &mut self,
        claims: &BTreeMap<(String, String), GatewayClaim>,
        listeners: impl Iterator<Item = (String, bool)>,
    ) {
        (self.taken, self.kept) = (BTreeSet::new(), BTreeSet::new());
        let mut other_names: HashMap<&str, &IngressHost> = HashMap::new();
        for host in self.hosts.values() {
            let names = host.aliases.iter().chain(&host.www);
            other_names.extend(names.map(|name| (name.as_str(), host)));
        }
        for (place @ (address, name), claim) in claims {
            let host = self.hosts.get(name).or_else(|| other_names.get(name.as_str()).copied());
            let is_kept = host.is_some_and(|host| {
                let has_address =
                    *address == self.options.http || host.certificate.is_some() || host.passed_to.is_some();
                has_address && claim.leaves(&self.ingresses[host.owner])
            });
            if is_kept { &mut self.kept } else { &mut self.taken }.insert(place.clone());
        }
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

    /// Returns the addresses and hosts that Ingresses keep, though Gateways want them.
    pub(crate) fn kept_hosts(&self) -> &BTreeSet<(String, String)> {
        &self.kept
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
            // A certificate that is lost, or not there yet, makes nobody send passwords in clear: only who gives it may ask.
            let has_tls =
                host.certificate.is_some() || host.lacks_certificate && !is_for_challenges(&route.conditions);
            let redirects = (has_tls && route.redirects) || route.forces_tls;
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

/// Whether a route is for the challenges of a certificate authority (RFC 8555, 8.3).
fn is_for_challenges(conditions: &Map<String, Value>) -> bool {
    let is_challenge =
        |path: &Value| path.as_str().is_some_and(|path| path.starts_with("/.well-known/acme-challenge/"));
    conditions
        .get("path")
        .and_then(Value::as_array)
        .is_some_and(|paths| !paths.is_empty() && paths.iter().all(is_challenge))
}
