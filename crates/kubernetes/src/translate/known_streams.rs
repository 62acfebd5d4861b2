//! Streams of listeners that are not for HTTP.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use settings::node::Node;

use crate::allowance::{NAME_BYTES, find_excess, stream_bytes, text_bytes};
use crate::attach::AttachedRoute;
use crate::listeners::{JudgedGateways, JudgedListener, ListenerProtocol};
use crate::objects::Kind;
use crate::stream_route::refusing_stream;
use crate::translate::known_routes::{KnownRoute, KnownRoutes, ListenerId, PieceState, RouteNumber};
use crate::translate::known_sites::{KnownSites, SitePiece};
use crate::translate::site_tree::tls_table;

/// Bytes that the name of a stream has at most.
const STREAM_NAME_MAX: usize = 64;
/// Kinds of routes that become streams.
pub(super) const STREAM_KINDS: [Kind; 3] = [Kind::TlsRoute, Kind::TcpRoute, Kind::UdpRoute];

/// Makes the streams.
pub(super) struct StreamBuilder<'a> {
    pub(super) gateways: &'a JudgedGateways,
    pub(super) routes: &'a KnownRoutes,
    pub(super) sites: &'a KnownSites,
    /// Addresses of Ingresses.
    pub(super) ingress_addresses: &'a BTreeSet<String>,
    /// Routes that are not served because their namespaces have too much.
    pub(super) excess: &'a BTreeSet<RouteNumber>,
}

/// Returns the routes that take more than their namespaces may have, in bytes; the oldest fit.
pub(super) fn excess_of_streams(
    gateways: &JudgedGateways,
    routes: &KnownRoutes,
    limit: u64,
) -> BTreeSet<RouteNumber> {
    let mut namespaces: BTreeMap<&str, Vec<(RouteNumber, u64)>> = BTreeMap::new();
    for (id, route) in by_age(routes) {
        let is_stream = |(gateway, listener): ListenerId| {
            let listener = &gateways.gateways[gateway].listeners[listener];
            listener.is_served() && !listener.protocol.is_http()
        };
        let places = route.attached.places.iter().map(|place| (place.gateway, place.listener));
        let of_streams: Vec<ListenerId> = places.filter(|at| is_stream(*at)).collect();
        let listeners: BTreeSet<&ListenerId> = of_streams.iter().collect();
        let text: usize = route.attached.stream.values().map(text_bytes).sum();
        let bytes = listeners.len() as u64 * stream_bytes(text) + of_streams.len() as u64 * NAME_BYTES;
        namespaces.entry(&route.attached.key.namespace).or_default().push((id, bytes));
    }
    let excess = namespaces.into_values().flat_map(|of| {
        let numbers = find_excess(of.iter().map(|(_, bytes)| *bytes), limit);
        numbers.into_iter().map(|number| of[number].0).collect::<Vec<_>>()
    });
    excess.collect()
}

/// Returns the routes that have streams, the oldest first.
fn by_age(routes: &KnownRoutes) -> Vec<(RouteNumber, &KnownRoute)> {
    let mut by_age: Vec<(RouteNumber, &KnownRoute)> = routes.of_kinds(&STREAM_KINDS).collect();
    by_age.retain(|(_, route)| !route.attached.stream.is_empty());
    let age = |route: &AttachedRoute| (route.created.clone(), route.key.clone());
    by_age.sort_by_cached_key(|(_, route)| age(&route.attached));
    by_age
}

/// Streams, with the objects that they are made of.
pub(super) type PlacedStreams = Vec<(SitePiece, Node)>;

impl StreamBuilder<'_> {
    fn listener(&self, id: ListenerId) -> &JudgedListener {
        &self.gateways.gateways[id.0].listeners[id.1]
    }

    /// One stream for each listener of a route that is not of HTTP. Of several routes for a host of a listener, the oldest has it.
    pub(super) fn streams(&self) -> PlacedStreams {
        let mut taken: BTreeSet<(String, &str)> = BTreeSet::new();
        let mut streams = PlacedStreams::new();
        for (id, route) in by_age(self.routes) {
            let mut hosts: BTreeMap<ListenerId, Vec<&str>> = BTreeMap::new();
            for place in &route.attached.places {
                let at = (place.gateway, place.listener);
                let listener = self.listener(at);
                if listener.protocol.is_http() || !listener.is_served() {
                    continue;
                }
                let host = place.host.as_str();
                if self.sites.is_owner(at, host) && taken.insert((listener.bind_address(), host)) {
                    hosts.entry(at).or_default().push(host);
                }
            }
            // Nobody else gets the hosts of one that does not fit.
            if route.state != PieceState::Absent && !self.excess.contains(&id) {
                let of_route =
                    hosts.into_iter().map(|(at, hosts)| self.stream(route, self.listener(at), &hosts));
                streams.extend(of_route.map(|node| (SitePiece::Route(id), node)));
            }
        }
        streams.extend(self.refusing_streams(&taken));
        streams
    }

    fn stream(&self, route: &KnownRoute, listener: &JudgedListener, hosts: &[&str]) -> Node {
        let of_route = &route.attached;
        let has_servers = of_route.stream["to"].as_array().is_some_and(|servers| !servers.is_empty());
        let is_followed = has_servers && route.state == PieceState::Whole;
        let mut table = if is_followed { of_route.stream.clone() } else { refusing_stream() };
        if is_followed && listener.protocol.has_certificates() {
            table.insert("tls".to_owned(), tls_table(listener));
        }
        if listener.protocol == ListenerProtocol::Udp {
            table.insert("protocol".to_owned(), json!("udp"));
        }
        let name = format!("{}/{}:{}", of_route.key.namespace, of_route.key.name, listener.port);
        if name.len() <= STREAM_NAME_MAX {
            table.insert("name".to_owned(), json!(name));
        }
        if hosts != [""] {
            table.insert("names".to_owned(), json!(hosts));
        }
        table.insert("listen".to_owned(), json!(listener.address));
        Node::from(Value::Object(table))
    }

    /// Streams that refuse clients of TLS whose name no route has, at addresses without sites.
    fn refusing_streams(&self, taken: &BTreeSet<(String, &str)>) -> PlacedStreams {
        let served = || self.gateways.listeners().filter(|(_, listener)| listener.is_served());
        let with_sites: BTreeSet<&str> = served()
            .filter(|(_, listener)| listener.protocol == ListenerProtocol::Https)
            .map(|(_, listener)| listener.address.as_str())
            .chain(self.ingress_addresses.iter().map(String::as_str))
            .collect();
        let mut done = BTreeSet::new();
        let mut streams = PlacedStreams::new();
        for (at, listener) in served() {
            let address = listener.address.as_str();
            let is_open = with_sites.contains(address) || taken.contains(&(listener.bind_address(), ""));
            if matches!(listener.protocol, ListenerProtocol::Tls { .. }) && !is_open && done.insert(address) {
                let mut table = refusing_stream();
                table.insert("listen".to_owned(), json!(address));
                streams.push((SitePiece::Listener(at), Node::from(Value::Object(table))));
            }
        }
        streams
    }
}
