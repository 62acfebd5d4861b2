//! A snapshot of objects to a configuration and to statuses, without I/O and clocks.
//!
//! Each listener of a Gateway has its sites, one for every host that its routes name. A site has the routes of its host, then those
//! of wider hosts, in the order that Gateway API asks for. Each route has a place of its own in the tree, so that a fault which the
//! configuration's own checks find concerns the object of that place alone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use config::{Config, Finding, Severity};
use serde_json::{Map, Value, json};
use settings::document::plain_value;
use settings::node::Node;
use shapes::host::HostPattern;

use crate::backends::{BackendGroups, BackendSource, index_endpoints};
use crate::config_reader::ConfigReader;
use crate::grants::takes_namespace;
use crate::http_route::{ListenerPort, RouteEntry, RouteFaults, failing_table, route_entries};
use crate::ingress::{IngressSet, IngressState, ObjectEvent, judge_ingresses};
use crate::listeners::{JudgedGateway, JudgedListener, certificate_paths, judge_gateways};
use crate::objects::{GATEWAY_GROUP, HttpRoute, Kind, ObjectKey, Objects, ParentReference};
use crate::options::{CONTROLLER_NAME, FEATURES, StatusCondition, TranslateOptions};

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
}

/// A route that is attached to listeners.
struct AttachedRoute {
    key: ObjectKey,
    route: Arc<HttpRoute>,
    /// Gateway, listener, and the host of the site; empty for every host.
    places: Vec<(usize, usize, String)>,
    /// Entries by port.
    entries: BTreeMap<ListenerPort, Vec<RouteEntry>>,
    faults: RouteFaults,
    /// Verdicts by parent: `None` if attached.
    parents: Vec<(ParentReference, Option<(&'static str, String)>)>,
    /// Faults that the configuration's checks have found.
    rejected: Option<String>,
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
    let endpoints = index_endpoints(objects);
    let source = BackendSource {
        objects,
        endpoints: &endpoints,
        allows_loopback: options.allows_loopback,
        place: &options.place,
    };
    let mut groups = BackendGroups::default();
    let mut routes = Vec::new();
    for (key, route) in &objects.http_routes {
        if let Some(attached) = attach(objects, key, route, &mut gateways, &source, &mut groups) {
            routes.push(attached);
        }
    }
    let mut ingresses = judge_ingresses(objects, options, &source, &mut groups, &mut files);
    let listeners = gateways.iter().flat_map(|gateway| &gateway.listeners);
    let listeners = listeners.filter(|listener| listener.is_served());
    ingresses.yield_hosts(
        taken_hosts(&gateways, &routes),
        listeners.map(|listener| (listener.address.clone(), listener.is_tls)),
    );
    let config = read_config(&mut gateways, &mut routes, &mut ingresses, &groups, options, read)?;
    let mut statuses: Vec<DesiredStatus> = Vec::new();
    for name in classes {
        let class = &objects.gateway_classes[&ObjectKey::new("", name)];
        let accepted =
            StatusCondition::new("Accepted", true, "Accepted", "Komainu serves Gateways of this class");
        let features: Vec<Value> = FEATURES.iter().map(|name| json!({ "name": name })).collect();
        let status = json!({
            "conditions": [accepted.json(class.metadata.generation)],
            "supportedFeatures": features,
        });
        statuses.push(DesiredStatus { kind: Kind::GatewayClass, key: ObjectKey::new("", name), status });
    }
    statuses.extend(gateways.iter().map(|state| DesiredStatus {
        kind: Kind::Gateway,
        key: state.key.clone(),
        status: state.status(options),
    }));
    statuses.extend(routes.iter().map(|route| DesiredStatus {
        kind: Kind::HttpRoute,
        key: route.key.clone(),
        status: route.status(),
    }));
    statuses.extend(ingresses.keys().map(|key| DesiredStatus {
        kind: Kind::Ingress,
        key: key.clone(),
        status: ingress_status(options),
    }));
    let served =
        gateways.iter().flat_map(|gateway| &gateway.listeners).filter(|listener| listener.is_served());
    let mut addresses: BTreeSet<String> = served.map(|listener| listener.address.clone()).collect();
    addresses.extend(ingresses.addresses());
    let events = ingresses.events();
    let files = files.into_iter().map(|(path, content)| (PathBuf::from(path), content)).collect();
    Ok(ClusterConfig { config, tree: Value::Null, files, statuses, addresses, events })
}

/// Returns the addresses and hosts that Gateways have.
fn taken_hosts(gateways: &[JudgedGateway], routes: &[AttachedRoute]) -> BTreeSet<(String, String)> {
    let mut taken = BTreeSet::new();
    let listeners = gateways.iter().flat_map(|gateway| &gateway.listeners);
    for listener in listeners.filter(|listener| listener.is_served()) {
        taken.insert((listener.address.clone(), listener.hostname.clone()));
    }
    for (gateway, listener, host) in routes.iter().flat_map(|route| &route.places) {
        let listener = &gateways[*gateway].listeners[*listener];
        if listener.is_served() {
            taken.insert((listener.address.clone(), host.clone()));
        }
    }
    taken
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

/// Finds the listeners of a route, and translates it for them. `None` if it has no parent of this controller.
fn attach(
    objects: &Objects,
    key: &ObjectKey,
    route: &Arc<HttpRoute>,
    gateways: &mut [JudgedGateway],
    source: &BackendSource<'_>,
    groups: &mut BackendGroups,
) -> Option<AttachedRoute> {
    let mut attached = AttachedRoute {
        key: key.clone(),
        route: route.clone(),
        places: Vec::new(),
        entries: BTreeMap::new(),
        faults: RouteFaults::default(),
        parents: Vec::new(),
        rejected: None,
    };
    let mut counted = BTreeSet::new();
    for parent in &route.spec.parent_refs {
        let is_gateway = parent.kind.as_deref().is_none_or(|kind| kind == "Gateway")
            && parent.group.as_deref().is_none_or(|group| group == GATEWAY_GROUP);
        let gateway_key = ObjectKey::new(parent.namespace.as_deref().unwrap_or(&key.namespace), &parent.name);
        let found = gateways.iter().position(|gateway| is_gateway && gateway.key == gateway_key);
        let Some(at) = found else { continue };
        let verdict = attach_to(objects, &mut attached, at, &gateways[at], parent);
        attached.parents.push((parent.clone(), verdict.err()));
    }
    for (gateway, listener, _) in &attached.places {
        if counted.insert((*gateway, *listener)) {
            gateways[*gateway].listeners[*listener].attached_routes += 1;
        }
    }
    for (gateway, listener) in &counted {
        let listener = &gateways[*gateway].listeners[*listener];
        let port = ListenerPort { port: listener.port, is_tls: listener.is_tls };
        if !attached.entries.contains_key(&port) {
            let entries = route_entries(key, route, port, source, groups, &mut attached.faults);
            attached.entries.insert(port, entries);
        }
    }
    if attached.entries.is_empty() {
        // References are judged all the same.
        let port = ListenerPort { port: 80, is_tls: false };
        route_entries(key, route, port, source, &mut BackendGroups::default(), &mut attached.faults);
    }
    (!attached.parents.is_empty()).then_some(attached)
}

/// Attaches a route to the listeners of a parent.
fn attach_to(
    objects: &Objects,
    attached: &mut AttachedRoute,
    gateway_index: usize,
    gateway: &JudgedGateway,
    parent: &ParentReference,
) -> Result<(), (&'static str, String)> {
    let is_named = |listener: &JudgedListener| {
        parent.section_name.as_deref().is_none_or(|name| name == listener.name)
            && parent.port.is_none_or(|port| port == listener.port)
    };
    let named: Vec<usize> =
        (0..gateway.listeners.len()).filter(|at| is_named(&gateway.listeners[*at])).collect();
    if named.is_empty() {
        return Err(("NoMatchingParent", "the Gateway has no listener of this name or port".to_owned()));
    }
    let takes = |at: &usize| {
        let listener = &gateway.gateway.spec.listeners[*at];
        let rule = listener.allowed_routes.as_ref().and_then(|allowed| allowed.namespaces.as_ref());
        gateway.listeners[*at].kinds.contains(&"HTTPRoute")
            && takes_namespace(objects, rule, &gateway.key.namespace, &attached.key.namespace)
    };
    let allowed: Vec<usize> = named.into_iter().filter(takes).collect();
    if allowed.is_empty() {
        return Err((
            "NotAllowedByListeners",
            "no listener takes routes of this kind and namespace (`allowedRoutes`)".to_owned(),
        ));
    }
    let mut is_attached = false;
    for at in allowed {
        for host in common_hosts(&gateway.listeners[at].hostname, &attached.route.spec.hostnames) {
            is_attached = true;
            let place = (gateway_index, at, host);
            if !attached.places.contains(&place) {
                attached.places.push(place);
            }
        }
    }
    if is_attached {
        Ok(())
    } else {
        Err((
            "NoMatchingListenerHostname",
            "no listener has a hostname that one of the route's fits".to_owned(),
        ))
    }
}

/// The hosts that a listener and a route have in common; empty texts are for every host.
fn common_hosts(listener: &str, hostnames: &[String]) -> Vec<String> {
    if hostnames.is_empty() {
        return vec![listener.to_owned()];
    }
    let mut hosts = Vec::new();
    for name in hostnames {
        let name = name.to_ascii_lowercase();
        if HostPattern::parse(&name).is_err() {
            continue;
        }
        let common = match () {
            () if listener.is_empty() || listener == name || covers(listener, &name) => Some(name),
            () if covers(&name, listener) => Some(listener.to_owned()),
            () => None,
        };
        hosts.extend(common.filter(|host| !hosts.contains(host)));
    }
    hosts
}

/// Whether a wildcard covers another host, which may be a wildcard.
fn covers(wide: &str, narrow: &str) -> bool {
    wide.strip_prefix('*').is_some_and(|suffix| {
        let narrow = narrow.strip_prefix('*').unwrap_or(narrow);
        narrow.len() > suffix.len() && narrow.ends_with(suffix)
    })
}

/// The hosts whose routes a site of this host has too, from narrow to wide, with itself.
fn wider_hosts(host: &str) -> Vec<String> {
    let mut hosts = vec![host.to_owned()];
    let mut rest = host.strip_prefix("*.").unwrap_or(host);
    while let Some((_, wider)) = rest.split_once('.') {
        hosts.push(format!("*.{wider}"));
        rest = wider;
    }
    if !host.is_empty() {
        hosts.push(String::new());
    }
    hosts
}

impl AttachedRoute {
    /// Returns the parents of this controller.
    fn status(&self) -> Value {
        let generation = self.route.metadata.generation;
        let resolved = match &self.faults.unresolved {
            Some((reason, message)) => StatusCondition::new("ResolvedRefs", false, reason, message),
            None => StatusCondition::new("ResolvedRefs", true, "ResolvedRefs", "all references are resolved"),
        };
        let invalid = self.rejected.as_ref().or(self.faults.invalid.as_ref());
        // A filter of another kind is a reference that is not resolved.
        let invalid = invalid.filter(|_| {
            !(self.rejected.is_none()
                && self.faults.unresolved.as_ref().is_some_and(|(reason, _)| *reason == "InvalidKind"))
        });
        let parents = self.parents.iter().map(|(parent, refused)| {
            let accepted = match (refused, invalid) {
                (Some((reason, message)), _) => StatusCondition::new("Accepted", false, reason, message),
                (None, Some(fault)) if !self.faults.has_valid_rule => {
                    StatusCondition::new("Accepted", false, "UnsupportedValue", fault)
                }
                (None, _) => StatusCondition::new("Accepted", true, "Accepted", "the route is accepted"),
            };
            let mut conditions = vec![accepted.json(generation), resolved.json(generation)];
            if let (None, Some(fault), true) = (refused, invalid, self.faults.has_valid_rule) {
                let partly = format!("Rules that cannot be followed are answered 500: {fault}");
                conditions.push(
                    StatusCondition::new("PartiallyInvalid", true, "UnsupportedValue", &partly)
                        .json(generation),
                );
            }
            json!({
                "parentRef": parent_json(parent),
                "controllerName": CONTROLLER_NAME,
                "conditions": conditions,
            })
        });
        json!({ "parents": parents.collect::<Vec<_>>() })
    }
}

fn parent_json(parent: &ParentReference) -> Value {
    let mut table = Map::new();
    table.insert("group".to_owned(), json!(parent.group.as_deref().unwrap_or(GATEWAY_GROUP)));
    table.insert("kind".to_owned(), json!(parent.kind.as_deref().unwrap_or("Gateway")));
    table.insert("name".to_owned(), json!(parent.name));
    for (key, value) in [("namespace", &parent.namespace), ("sectionName", &parent.section_name)] {
        if let Some(value) = value {
            table.insert(key.to_owned(), json!(value));
        }
    }
    if let Some(port) = parent.port {
        table.insert("port".to_owned(), json!(port));
    }
    Value::Object(table)
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
    gateways: &mut [JudgedGateway],
    routes: &mut [AttachedRoute],
    ingresses: &mut IngressSet,
    groups: &BackendGroups,
    options: &TranslateOptions,
    read: ReadTree<'_>,
) -> Result<Config, String> {
    // Places: 0 is the base; then the listeners; then the routes; then the Ingresses.
    let listeners: Vec<(usize, usize)> = (0..gateways.len())
        .flat_map(|gateway| (0..gateways[gateway].listeners.len()).map(move |listener| (gateway, listener)))
        .collect();
    let first_route = 1 + listeners.len();
    let first_ingress = first_route + routes.len();
    let mut states = vec![PieceState::Whole; first_ingress + ingresses.len()];
    loop {
        let tree = build_tree(gateways, routes, ingresses, groups, options, &states, &listeners);
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

fn build_tree(
    gateways: &[JudgedGateway],
    routes: &[AttachedRoute],
    ingresses: &IngressSet,
    groups: &BackendGroups,
    options: &TranslateOptions,
    states: &[PieceState],
    listeners: &[(usize, usize)],
) -> Node {
    let first_route = 1 + listeners.len();
    // Routes by listener and host.
    let mut hosted: BTreeMap<(usize, usize), RoutesByHost<'_>> = BTreeMap::new();
    for (index, route) in routes.iter().enumerate() {
        let place = first_route + index;
        if states[place] == PieceState::Absent {
            continue;
        }
        for (gateway, listener, host) in &route.places {
            let state = &gateways[*gateway].listeners[*listener];
            let port = ListenerPort { port: state.port, is_tls: state.is_tls };
            let entries = route.entries.get(&port).map(Vec::as_slice).unwrap_or_default();
            let hosts = hosted.entry((*gateway, *listener)).or_default();
            hosts.entry(host).or_default().extend(entries.iter().map(|entry| (entry, place)));
        }
    }
    // Each host of an address belongs to the narrowest listener there that covers it.
    let served = listeners.iter().enumerate().filter_map(|(at, (gateway, listener))| {
        let state = &gateways[*gateway].listeners[*listener];
        let is_served = state.is_served() && states[at + 1] != PieceState::Absent;
        is_served.then_some(((state.address.as_str(), state.hostname.as_str()), at))
    });
    let owners: BTreeMap<(&str, &str), usize> = served.collect();
    let owner = |address: &str, host: &str| {
        wider_hosts(host).iter().find_map(|wider| owners.get(&(address, wider.as_str()))).copied()
    };
    let mut sites = Vec::new();
    for (at, (gateway, listener)) in listeners.iter().enumerate() {
        let place = at + 1;
        let state = &gateways[*gateway].listeners[*listener];
        if !state.is_served() || states[place] == PieceState::Absent {
            continue;
        }
        let none = BTreeMap::new();
        let hosts = hosted.get(&(*gateway, *listener)).unwrap_or(&none);
        let mut names: BTreeSet<&str> = hosts.keys().copied().collect();
        // Its own host too, so that requests for it reach no wider listener.
        names.insert(&state.hostname);
        for name in names.into_iter().filter(|name| owner(&state.address, name) == Some(at)) {
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
            sites.push(site_node(state, name, place, &of_site, states));
        }
    }
    let first_ingress = first_route + routes.len();
    let ingress_states: Vec<IngressState> = states[first_ingress..]
        .iter()
        .map(|state| match state {
            PieceState::Whole => IngressState::Whole,
            PieceState::Failing => IngressState::Failing,
            PieceState::Absent => IngressState::Absent,
        })
        .collect();
    sites.extend(ingresses.sites(first_ingress, &ingress_states, &options.unusable));
    let streams = ingresses.streams(first_ingress, &ingress_states, &options.unusable);
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

fn site_node(
    listener: &JudgedListener,
    host: &str,
    place: usize,
    routes: &[SiteRoute<'_>],
    states: &[PieceState],
) -> Node {
    let mut site = Map::new();
    if !host.is_empty() {
        site.insert("hosts".to_owned(), json!([host]));
    }
    site.insert(
        "listen".to_owned(),
        json!([{ "address": listener.address, "tls": listener.is_tls, "h2c": !listener.is_tls }]),
    );
    if listener.is_tls {
        let paths: Vec<(String, String)> = listener.certificates.iter().map(certificate_paths).collect();
        let (chains, keys): (Vec<String>, Vec<String>) = paths.into_iter().unzip();
        site.insert("tls".to_owned(), json!({ "certificate": chains, "key": keys }));
    }
    let mut node = Node::from(Value::Object(site)).at(place);
    let routes = routes.iter().map(|route| {
        let mut table = route.entry.conditions.clone();
        match states[route.place] {
            PieceState::Whole => table.extend(route.entry.action.clone()),
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
