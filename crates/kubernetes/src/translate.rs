//! A snapshot of objects to a configuration and to statuses, without I/O and clocks.
//!
//! Each listener of a Gateway has its sites, one for every host that its routes name. A site has the routes of its host, then those
//! of wider hosts, in the order that Gateway API asks for. Each route has a place of its own in the tree, so that a fault which the
//! configuration's own checks find concerns the object of that place alone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;

use config::{Config, Finding, Severity};
use serde_json::{Map, Value, json};
use settings::document::plain_value;
use settings::node::Node;

use crate::attach::{AttachedRoute, ClaimedHosts, OfferedRoute, attach, wider_hosts};
use crate::backend_tls::BackendTlsPolicies;
use crate::backends::{BackendGroups, BackendSource, BackendUser, index_endpoints};
use crate::config_reader::ConfigReader;
use crate::gateway_services::{WantedObject, service_addresses, wanted_services};
use crate::grpc_route::grpc_rules;
use crate::http_route::{ListenerPort, RouteEntry, failing_table, http_rules, route_entries};
use crate::ingress::{IngressSet, IngressState, ObjectEvent, judge_ingresses};
use crate::listeners::{
    JudgedGateway, JudgedGateways, JudgedListener, ListenerProtocol, certificate_paths, judge_gateways,
};
use crate::objects::{Kind, ObjectKey, Objects, StreamRoute, Table};
use crate::options::{CONTROLLER_NAME, StatusCondition, TranslateOptions, supported_features};
use crate::policies::{AppliedPolicy, PolicySet, judge_policies};
use crate::stream_route::{refusing_stream, stream_servers};

/// Bytes that the name of a stream has at most.
const STREAM_NAME_MAX: usize = 64;

/// A status as it should be, without times.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredStatus {
    /// Kind of the object.
    pub kind: Kind,
    /// The object.
    pub key: ObjectKey,
    /// Fields of `status`. Of a route, only the `parents` of this controller.
    pub status: Value,
}

/// The result of a translation.
pub struct ClusterConfig {
    /// The configuration.
    pub config: Config,
    /// The configuration's directives, for tests; null of [`translate_with`].
    pub tree: Value,
    /// Contents of the files below [`crate::options::MEMORY_FOLDER`].
    pub files: BTreeMap<PathBuf, Vec<u8>>,
    /// Statuses of all objects of this controller.
    pub statuses: Vec<DesiredStatus>,
    /// Addresses that the configuration listens on, except those of the base.
    pub addresses: BTreeSet<String>,
    /// Warnings about objects that have no status for them.
    pub events: Vec<ObjectEvent>,
    /// Objects that are absent or have another content.
    pub wanted: Vec<WantedObject>,
    /// Addresses of the pool that Gateways have: [`TranslateOptions::assigned`] of the next translation.
    pub assigned: BTreeMap<ObjectKey, IpAddr>,
}

/// Translates objects, of which nothing is known.
///
/// # Errors
/// See [`translate_with`].
pub fn translate(objects: &Objects, options: &TranslateOptions) -> Result<ClusterConfig, String> {
    let mut tree = Value::Null;
    let mut reader = ConfigReader::default();
    let mut read = |node: Node| {
        tree = plain_value(&node);
        reader.read(node)
    };
    let translated = translate_by(objects, options, &mut read)?;
    Ok(ClusterConfig { tree, ..translated })
}

/// Translates objects. `reader` knows what was read last, and reads what has changed.
///
/// # Errors
/// A fault of the base, or of what all objects share: a text for the log. Faults of objects are in their statuses.
pub fn translate_with(
    objects: &Objects,
    options: &TranslateOptions,
    reader: &mut ConfigReader,
) -> Result<ClusterConfig, String> {
    translate_by(objects, options, &mut |node| reader.read(node))
}

/// Reads a tree: see [`ConfigReader::read`].
type ReadTree<'r> = &'r mut dyn FnMut(Node) -> Result<Config, Vec<Finding>>;

fn translate_by(
    objects: &Objects,
    options: &TranslateOptions,
    read: ReadTree<'_>,
) -> Result<ClusterConfig, String> {
    let mut files = BTreeMap::new();
    let is_ours = |name: &str| options.gateway_class.as_deref().is_none_or(|only| only == name);
    let classes: BTreeSet<&str> = objects
        .gateway_classes
        .iter()
        .filter(|(key, class)| class.spec.controller_name == CONTROLLER_NAME && is_ours(&key.name))
        .map(|(key, _)| key.name.as_str())
        .collect();
    let mut gateways = judge_gateways(objects, &classes, options, &mut files);
    let mut tls_policies = BackendTlsPolicies::judge(objects, &mut files);
    let mut groups = BackendGroups::default();
    let endpoints = index_endpoints(objects);
    let own_addresses = options.pool.iter().copied().collect();
    let source = BackendSource {
        objects,
        endpoints: &endpoints,
        policies: &tls_policies,
        allows_loopback: options.allows_loopback,
        place: &options.place,
        own_addresses: &own_addresses,
    };
    let policies = judge_policies(objects, &gateways.gateways, &source, &mut groups, &mut files);
    // What policies name is no backend of a route.
    groups.take_services();
    let (mut routes, uses) = attach_routes(&source, &mut gateways, &policies, &mut groups);
    let mut ingresses = judge_ingresses(objects, options, &source, &mut groups, &mut files);
    for (services, route) in uses {
        let places = routes[route].places.iter();
        let keys = places.map(|place| gateways.gateways[place.gateway].key.clone()).collect();
        tls_policies.note_use(services, &keys);
    }
    let listeners = gateways.gateways.iter().flat_map(|gateway| &gateway.listeners);
    let listeners = listeners.filter(|listener| listener.is_served());
    ingresses.yield_hosts(taken_hosts(&gateways.gateways, &routes), listeners.flat_map(taken_addresses));
    let config = read_config(&mut gateways, &mut routes, &mut ingresses, &policies, &groups, options, read)?;
    gateways.count_sets();
    let mut statuses: Vec<DesiredStatus> = Vec::new();
    for name in classes {
        let class = &objects.gateway_classes[&ObjectKey::new("", name)];
        let accepted =
            StatusCondition::new("Accepted", true, "Accepted", "Komainu serves Gateways of this class");
        let features: Vec<Value> =
            supported_features(options).iter().map(|name| json!({ "name": name })).collect();
        let status = json!({
            "conditions": [accepted.json(class.metadata.generation)],
            "supportedFeatures": features,
        });
        statuses.push(DesiredStatus { kind: Kind::GatewayClass, key: ObjectKey::new("", name), status });
    }
    let desired =
        |kind: Kind, key: &ObjectKey, status: Value| DesiredStatus { kind, key: key.clone(), status };
    let judged = &gateways.gateways;
    statuses.extend(judged.iter().map(|state| {
        let addresses = match options.gateway_services {
            Some(_) => service_addresses(objects, state),
            None => options.status_addresses.clone(),
        };
        desired(Kind::Gateway, &state.key, state.status(&addresses))
    }));
    statuses.extend(gateways.sets.iter().map(|set| desired(Kind::ListenerSet, &set.key, set.status(judged))));
    statuses.extend(routes.iter().map(|route| desired(route.kind, &route.key, route.status())));
    statuses
        .extend(tls_policies.statuses().map(|(key, status)| desired(Kind::BackendTlsPolicy, &key, status)));
    statuses.extend(ingresses.keys().map(|key| desired(Kind::Ingress, key, ingress_status(options))));
    let of_policies = policies.statuses.iter();
    statuses.extend(of_policies.map(|(key, status)| desired(Kind::KomainuPolicy, key, status.clone())));
    let served = judged.iter().flat_map(|gateway| &gateway.listeners).filter(|listener| listener.is_served());
    let mut addresses: BTreeSet<String> = served.map(JudgedListener::bind_address).collect();
    addresses.extend(ingresses.addresses());
    let (wanted, mut events) = wanted_services(objects, judged, options);
    let assigned = gateways.addresses();
    events.extend(ingresses.events());
    let files = files.into_iter().map(|(path, content)| (PathBuf::from(path), content)).collect();
    Ok(ClusterConfig { config, tree: Value::Null, files, statuses, addresses, events, wanted, assigned })
}

/// Returns the addresses and hosts that Gateways have.
fn taken_hosts(gateways: &[JudgedGateway], routes: &[AttachedRoute]) -> BTreeSet<(String, String)> {
    let mut taken = BTreeSet::new();
    let listeners = gateways.iter().flat_map(|gateway| &gateway.listeners);
    for listener in listeners.filter(|listener| listener.is_served()) {
        taken.insert((listener.bind_address(), listener.hostname.clone()));
    }
    for place in routes.iter().flat_map(|route| &route.places) {
        let listener = &gateways[place.gateway].listeners[place.listener];
        if listener.is_served() {
            taken.insert((listener.bind_address(), place.host.clone()));
        }
    }
    taken
}

/// Returns the address of a listener, with whether it speaks TLS there; both for what is neither TLS nor HTTP.
fn taken_addresses(listener: &JudgedListener) -> Vec<(String, bool)> {
    let tls: &[bool] = match listener.protocol {
        ListenerProtocol::Http => &[false],
        ListenerProtocol::Https | ListenerProtocol::Tls { .. } => &[true],
        // Its datagrams are those of HTTP/3.
        ListenerProtocol::Udp => &[false],
        ListenerProtocol::Tcp | ListenerProtocol::Other => &[false, true],
    };
    tls.iter().map(|is_tls| (listener.address.clone(), *is_tls)).collect()
}

/// Returns the status of every Ingress: the addresses that are given for statuses, or else the one of `--ingress-http`.
fn ingress_status(options: &TranslateOptions) -> Value {
    let own = options.ingress.http.rsplit_once(':').map(|(host, _)| host.trim_matches(['[', ']']));
    let own =
        own.filter(|host| host.parse::<std::net::IpAddr>().is_ok_and(|address| !address.is_unspecified()));
    let addresses = match own {
        Some(own) if options.status_addresses.is_empty() => vec![own.to_owned()],
        _ => options.status_addresses.clone(),
    };
    let entry = |text: &String| match text.parse::<std::net::IpAddr>() {
        Ok(_) => json!({ "ip": text }),
        Err(_) => json!({ "hostname": text }),
    };
    json!({ "loadBalancer": { "ingress": addresses.iter().map(entry).collect::<Vec<_>>() } })
}

/// Services that the rules of a route lead to, and the position of the route.
type UsedServices = Vec<(BTreeSet<ObjectKey>, usize)>;

/// Attaches all routes, the oldest first, and translates them for their listeners. Returns them by kind and name.
fn attach_routes(
    source: &BackendSource<'_>,
    gateways: &mut JudgedGateways,
    policies: &PolicySet,
    groups: &mut BackendGroups,
) -> (Vec<AttachedRoute>, UsedServices) {
    let objects = source.objects;
    let mut offered = offered_routes(objects);
    offered.sort_by(|one, other| {
        (&one.metadata.creation_timestamp, one.key).cmp(&(&other.metadata.creation_timestamp, other.key))
    });
    let mut claimed = ClaimedHosts::default();
    let attached = offered.into_iter().filter_map(|route| attach(objects, route, gateways, &mut claimed));
    let mut routes: Vec<AttachedRoute> = attached.collect();
    routes.sort_by(|one, other| (one.kind, &one.key).cmp(&(other.kind, &other.key)));
    let mut uses = Vec::new();
    for (index, route) in routes.iter_mut().enumerate() {
        let key = route.key.clone();
        let ruled = match route.kind {
            Kind::HttpRoute => objects.http_routes.get(&key).map(|found| http_rules(&key, found)),
            Kind::GrpcRoute => objects.grpc_routes.get(&key).map(|found| grpc_rules(&key, found)),
            kind => {
                let found = stream_routes(objects, kind).get(&key);
                let user =
                    BackendUser { kind: kind.name(), namespace: &key.namespace, client: None, session: None };
                route.stream = found
                    .map_or_else(Map::new, |found| stream_servers(user, found, source, &mut route.faults));
                continue;
            }
        };
        let Some(ruled) = ruled else { continue };
        for place in &route.places {
            let port = listener_port(&gateways.gateways[place.gateway], place.listener);
            if !route.entries.contains_key(&port) {
                let entries = route_entries(&ruled, &port, source, policies, groups, &mut route.faults);
                route.entries.insert(port, entries);
            }
        }
        let services = groups.take_services();
        if !services.is_empty() {
            uses.push((services, index));
        }
        if route.entries.is_empty() {
            // References are judged all the same.
            let port = ListenerPort { port: 80, is_tls: false, client: None };
            route_entries(&ruled, &port, source, policies, &mut BackendGroups::default(), &mut route.faults);
        }
    }
    (routes, uses)
}

fn stream_routes(objects: &Objects, kind: Kind) -> &Table<StreamRoute> {
    match kind {
        Kind::TlsRoute => &objects.tls_routes,
        Kind::TcpRoute => &objects.tcp_routes,
        _ => &objects.udp_routes,
    }
}

/// All routes, of every kind.
fn offered_routes(objects: &Objects) -> Vec<OfferedRoute<'_>> {
    let mut all = Vec::new();
    for (key, route) in &objects.http_routes {
        let (metadata, spec) = (&route.metadata, &route.spec);
        let (parents, hostnames) = (spec.parent_refs.as_slice(), spec.hostnames.as_slice());
        all.push(OfferedRoute { kind: Kind::HttpRoute, key, metadata, parents, hostnames });
    }
    for (key, route) in &objects.grpc_routes {
        let (metadata, spec) = (&route.metadata, &route.spec);
        let (parents, hostnames) = (spec.parent_refs.as_slice(), spec.hostnames.as_slice());
        all.push(OfferedRoute { kind: Kind::GrpcRoute, key, metadata, parents, hostnames });
    }
    for kind in [Kind::TlsRoute, Kind::TcpRoute, Kind::UdpRoute] {
        for (key, route) in stream_routes(objects, kind) {
            let (metadata, spec) = (&route.metadata, &route.spec);
            // Only TLS names a host.
            let hostnames = if kind == Kind::TlsRoute { spec.hostnames.as_slice() } else { &[] };
            all.push(OfferedRoute { kind, key, metadata, parents: &spec.parent_refs, hostnames });
        }
    }
    all
}

/// Returns what the routes of a listener depend on.
fn listener_port(gateway: &JudgedGateway, listener: usize) -> ListenerPort {
    let state = &gateway.listeners[listener];
    ListenerPort {
        port: state.port,
        is_tls: state.protocol == ListenerProtocol::Https,
        client: gateway.client_certificate().cloned(),
    }
}

/// What became of a route, or of a site, when the configuration was checked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
enum PieceState {
    /// Used as translated.
    #[default]
    Whole,
    /// Answered 500.
    Failing,
    /// Left out.
    Absent,
}

/// Reads the configuration, and replaces what has faults, until it has none.
fn read_config(
    judged: &mut JudgedGateways,
    routes: &mut [AttachedRoute],
    ingresses: &mut IngressSet,
    policies: &PolicySet,
    groups: &BackendGroups,
    options: &TranslateOptions,
    read: ReadTree<'_>,
) -> Result<Config, String> {
    let gateways = judged.gateways.as_mut_slice();
    // Places: 0 is the base; then the listeners; then the routes; then the Ingresses.
    let listeners: Vec<(usize, usize)> = (0..gateways.len())
        .flat_map(|gateway| (0..gateways[gateway].listeners.len()).map(move |listener| (gateway, listener)))
        .collect();
    let first_route = 1 + listeners.len();
    let first_ingress = first_route + routes.len();
    let mut states = vec![PieceState::Whole; first_ingress + ingresses.len()];
    loop {
        let tree = build_tree(gateways, routes, (ingresses, policies), groups, options, &states, &listeners);
        let findings = match read(tree) {
            Ok(config) => return Ok(config),
            Err(findings) => findings,
        };
        let mut is_changed = false;
        let before = states.clone();
        for finding in findings.iter().filter(|finding| finding.severity == Severity::Error) {
            let place = finding.span.start;
            if place == 0 || place >= states.len() || before[place] == PieceState::Absent {
                continue;
            }
            is_changed = true;
            let fault = describe(finding);
            if let Some(at) = place.checked_sub(first_ingress) {
                states[place] = match before[place] {
                    PieceState::Whole => PieceState::Failing,
                    _ => PieceState::Absent,
                };
                ingresses.reject(at, &fault);
                continue;
            }
            match place.checked_sub(first_route) {
                Some(route) => {
                    states[place] = match before[place] {
                        PieceState::Whole => PieceState::Failing,
                        _ => PieceState::Absent,
                    };
                    let faults = &mut routes[route];
                    faults.faults.has_valid_rule = false;
                    faults.rejected.get_or_insert(fault);
                }
                None => {
                    states[place] = PieceState::Absent;
                    let (gateway, listener) = listeners[place - 1];
                    gateways[gateway].listeners[listener].refused.get_or_insert(("Invalid", fault));
                }
            }
        }
        if !is_changed {
            let faults: Vec<String> = findings.iter().map(describe).collect();
            return Err(faults.join("; "));
        }
    }
}

fn describe(finding: &config::Finding) -> String {
    let mut text = format!("{}: {}", finding.title, finding.label);
    for help in &finding.help {
        text += &format!("; {help}");
    }
    text
}

/// A route of a site: its precedence within hosts from narrow to wide, and its place.
struct SiteRoute<'a> {
    host_depth: usize,
    entry: &'a RouteEntry,
    place: usize,
}

/// Routes of a listener with their places, by host.
type RoutesByHost<'a> = BTreeMap<&'a str, Vec<(&'a RouteEntry, usize)>>;

/// What a tree is made of.
struct TreeBuilder<'a> {
    gateways: &'a [JudgedGateway],
    routes: &'a [AttachedRoute],
    states: &'a [PieceState],
    /// Gateway and listener, in the order of their places.
    listeners: &'a [(usize, usize)],
    /// The listener that has a host of an address: the narrowest that covers it.
    owners: BTreeMap<(String, &'a str), usize>,
    policies: &'a PolicySet,
    /// Addresses of Ingresses.
    ingress_addresses: BTreeSet<String>,
}

fn build_tree(
    gateways: &[JudgedGateway],
    routes: &[AttachedRoute],
    (ingresses, policies): (&IngressSet, &PolicySet),
    groups: &BackendGroups,
    options: &TranslateOptions,
    states: &[PieceState],
    listeners: &[(usize, usize)],
) -> Node {
    let mut builder = TreeBuilder {
        gateways,
        routes,
        states,
        listeners,
        owners: BTreeMap::new(),
        policies,
        ingress_addresses: ingresses.addresses(),
    };
    builder.owners = builder
        .served()
        .map(|(at, listener)| ((listener.bind_address(), listener.hostname.as_str()), at))
        .collect();
    let (mut sites, mut streams) = (builder.sites(), builder.streams());
    let first_ingress = builder.first_route() + routes.len();
    let ingress_states: Vec<IngressState> = states[first_ingress..]
        .iter()
        .map(|state| match state {
            PieceState::Whole => IngressState::Whole,
            PieceState::Failing => IngressState::Failing,
            PieceState::Absent => IngressState::Absent,
        })
        .collect();
    sites.extend(ingresses.sites(first_ingress, &ingress_states, &options.unusable));
    streams.extend(ingresses.streams(first_ingress, &ingress_states, &options.unusable));
    let mut top = options.base.clone();
    if !gateways.is_empty() || ingresses.len() > 0 {
        let tables: Map<String, Value> =
            groups.tables().map(|(name, table)| (name.clone(), table.clone())).collect();
        top.insert("upstreams".to_owned(), Value::Object(tables));
    }
    let base_sites = top.remove("site");
    let mut node = Node::from(Value::Object(top));
    let mut all: Vec<Node> = Vec::new();
    if let Some(Value::Array(own)) = base_sites {
        all.extend(own.into_iter().map(Node::from));
    }
    all.extend(sites);
    node.set_entry("site", Node::list(all));
    if !streams.is_empty() {
        node.set_entry("stream", Node::list(streams));
    }
    node
}

impl<'a> TreeBuilder<'a> {
    fn first_route(&self) -> usize {
        1 + self.listeners.len()
    }

    /// Listeners that are served, with their positions.
    fn served(&self) -> impl Iterator<Item = (usize, &'a JudgedListener)> + use<'a> {
        let (gateways, states) = (self.gateways, self.states);
        self.listeners.iter().enumerate().filter_map(move |(at, (gateway, listener))| {
            let listener = &gateways[*gateway].listeners[*listener];
            (listener.is_served() && states[at + 1] != PieceState::Absent).then_some((at, listener))
        })
    }

    fn is_owner(&self, at: usize, listener: &JudgedListener, host: &str) -> bool {
        let address = listener.bind_address();
        let find = |wider: &String| self.owners.get(&(address.clone(), wider.as_str())).copied();
        wider_hosts(host).iter().find_map(find) == Some(at)
    }

    /// One site for every host of each listener for HTTP.
    fn sites(&self) -> Vec<Node> {
        // Routes by listener and host.
        let mut hosted: BTreeMap<(usize, usize), RoutesByHost<'_>> = BTreeMap::new();
        for (index, route) in self.routes.iter().enumerate() {
            let place = self.first_route() + index;
            if self.states[place] == PieceState::Absent || route.entries.is_empty() {
                continue;
            }
            for at in &route.places {
                let port = listener_port(&self.gateways[at.gateway], at.listener);
                let entries = route.entries.get(&port).map(Vec::as_slice).unwrap_or_default();
                let hosts = hosted.entry((at.gateway, at.listener)).or_default();
                hosts.entry(&at.host).or_default().extend(entries.iter().map(|entry| (entry, place)));
            }
        }
        let datagrams: BTreeSet<&str> = self
            .served()
            .filter(|(_, listener)| listener.protocol == ListenerProtocol::Udp)
            .map(|(_, listener)| listener.address.as_str())
            .collect();
        let mut sites = Vec::new();
        for (at, state) in self.served().filter(|(_, listener)| listener.protocol.is_http()) {
            let (gateway, listener) = self.listeners[at];
            let policy = self.policies.of_listener(&self.gateways[gateway], listener);
            let none = BTreeMap::new();
            let hosts = hosted.get(&self.listeners[at]).unwrap_or(&none);
            let mut names: BTreeSet<&str> = hosts.keys().copied().collect();
            // Its own host too, so that requests for it reach no wider listener.
            names.insert(&state.hostname);
            for name in names.into_iter().filter(|name| self.is_owner(at, state, name)) {
                let mut of_site = Vec::new();
                for (host_depth, host) in wider_hosts(name).iter().enumerate() {
                    let found = hosts.get(host.as_str()).map(Vec::as_slice).unwrap_or_default();
                    of_site.extend(found.iter().map(|(entry, place)| SiteRoute {
                        host_depth,
                        entry,
                        place: *place,
                    }));
                }
                of_site.sort_by(|one, other| {
                    (one.host_depth, &one.entry.rank).cmp(&(other.host_depth, &other.entry.rank))
                });
                let has_datagrams = datagrams.contains(state.address.as_str());
                sites.push(site_node(state, name, at + 1, has_datagrams, &policy, &of_site, self.states));
            }
        }
        sites
    }

    /// One stream for each listener of a route that is not of HTTP. Of several routes for a host of a listener, the oldest has it.
    fn streams(&self) -> Vec<Node> {
        let positions: BTreeMap<(usize, usize), usize> = self
            .served()
            .filter(|(_, listener)| !listener.protocol.is_http())
            .map(|(at, _)| (self.listeners[at], at))
            .collect();
        let mut by_age: Vec<(usize, &AttachedRoute)> = self.routes.iter().enumerate().collect();
        by_age.retain(|(_, route)| !route.stream.is_empty());
        by_age.sort_by(|(_, one), (_, other)| (&one.created, &one.key).cmp(&(&other.created, &other.key)));
        let mut taken: BTreeSet<(String, &str)> = BTreeSet::new();
        let mut streams = Vec::new();
        for (index, route) in by_age {
            let place = self.first_route() + index;
            let mut hosts: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
            for of_route in &route.places {
                let Some(at) = positions.get(&(of_route.gateway, of_route.listener)) else { continue };
                let listener = &self.gateways[of_route.gateway].listeners[of_route.listener];
                let host = of_route.host.as_str();
                if self.is_owner(*at, listener, host) && taken.insert((listener.bind_address(), host)) {
                    hosts.entry(*at).or_default().push(host);
                }
            }
            for (at, hosts) in hosts {
                let (gateway, listener) = self.listeners[at];
                let listener = &self.gateways[gateway].listeners[listener];
                let has_servers = route.stream["to"].as_array().is_some_and(|servers| !servers.is_empty());
                let is_followed = has_servers && self.states[place] == PieceState::Whole;
                let mut table = if is_followed { route.stream.clone() } else { refusing_stream() };
                if is_followed && listener.protocol.has_certificates() {
                    table.insert("tls".to_owned(), tls_table(listener));
                }
                if listener.protocol == ListenerProtocol::Udp {
                    table.insert("protocol".to_owned(), json!("udp"));
                }
                let name = format!("{}/{}:{}", route.key.namespace, route.key.name, listener.port);
                if name.len() <= STREAM_NAME_MAX {
                    table.insert("name".to_owned(), json!(name));
                }
                if hosts != [""] {
                    table.insert("names".to_owned(), json!(hosts));
                }
                table.insert("listen".to_owned(), json!(listener.address));
                if self.states[place] != PieceState::Absent {
                    streams.push(Node::from(Value::Object(table)).at(place));
                }
            }
        }
        streams.extend(self.refusing_streams(&taken));
        streams
    }

    /// Streams that refuse clients of TLS whose name no route has, at addresses without sites.
    fn refusing_streams(&self, taken: &BTreeSet<(String, &str)>) -> Vec<Node> {
        let with_sites: BTreeSet<&str> = self
            .served()
            .filter(|(_, listener)| listener.protocol == ListenerProtocol::Https)
            .map(|(_, listener)| listener.address.as_str())
            .chain(self.ingress_addresses.iter().map(String::as_str))
            .collect();
        let mut done = BTreeSet::new();
        let mut streams = Vec::new();
        for (at, listener) in self.served() {
            let address = listener.address.as_str();
            let is_open = with_sites.contains(address) || taken.contains(&(listener.bind_address(), ""));
            if matches!(listener.protocol, ListenerProtocol::Tls { .. }) && !is_open && done.insert(address) {
                let mut table = refusing_stream();
                table.insert("listen".to_owned(), json!(address));
                streams.push(Node::from(Value::Object(table)).at(at + 1));
            }
        }
        streams
    }
}

fn site_node(
    listener: &JudgedListener,
    host: &str,
    place: usize,
    has_datagrams: bool,
    policy: &AppliedPolicy,
    routes: &[SiteRoute<'_>],
    states: &[PieceState],
) -> Node {
    let is_tls = listener.protocol == ListenerProtocol::Https;
    let mut site = Map::new();
    if !host.is_empty() {
        site.insert("hosts".to_owned(), json!([host]));
    }
    let mut listen = json!({ "address": listener.address, "tls": is_tls, "h2c": !is_tls });
    if is_tls && has_datagrams {
        // The datagrams of the port are those of a route.
        listen["http3"] = json!(false);
    }
    site.insert("listen".to_owned(), json!([listen]));
    if is_tls {
        site.insert("tls".to_owned(), tls_table(listener));
    }
    policy.add_to_site(&mut site);
    let mut node = Node::from(Value::Object(site)).at(place);
    let routes = routes.iter().map(|route| {
        let mut table = route.entry.conditions.clone();
        match states[route.place] {
            PieceState::Whole => {
                let mut action = route.entry.action.clone();
                policy.add_defaults(&mut action);
                policy.close(&mut action);
                table.extend(action);
            }
            _ => table.extend(failing_table()),
        }
        Node::from(Value::Object(table)).at(route.place)
    });
    let routes: Vec<Node> = routes.collect();
    if !routes.is_empty() {
        node.set_entry("route", Node::list(routes).at_own(place));
    }
    node
}

/// Returns the `tls` of a listener.
fn tls_table(listener: &JudgedListener) -> Value {
    let paths: Vec<(String, String)> = listener.certificates.iter().map(certificate_paths).collect();
    let (chains, keys): (Vec<String>, Vec<String>) = paths.into_iter().unzip();
    let mut tls = json!({ "certificate": chains, "key": keys });
    if let Some(client) = &listener.client {
        tls["client"] = json!({ "ca": client.authorities });
        if client.is_optional {
            tls["client"]["unverified"] = json!(true);
        }
    }
    if listener.protocol == ListenerProtocol::Https {
        tls["scope"] = json!(listener.scope);
    }
    tls
}
