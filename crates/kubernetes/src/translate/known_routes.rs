//! Routes with their translation, and indexes of what each of them depends on: a change concerns the routes that it names.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::attach::{AttachedPlace, AttachedRoute, ClaimedHosts, OfferedRoute, ParentVerdicts, find_places};
use crate::backends::{BackendGroup, BackendReads};
use crate::http_route::{ListenerPort, RouteEntry, RouteFaults};
use crate::listeners::JudgedGateways;
use crate::objects::{Kind, ObjectKey, Objects, StreamRoute, Table};

/// Kind and name of a route.
pub(super) type RouteName = (Kind, ObjectKey);
/// Number of a route.
pub(super) type RouteNumber = usize;
/// Gateway and listener.
pub(super) type ListenerId = (usize, usize);

/// What became of a route, or of a site, when the configuration was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) enum PieceState {
    /// Used as translated.
    #[default]
    Whole,
    /// Answered 500.
    Failing,
    /// Left out.
    Absent,
}

impl PieceState {
    /// The state after a further fault.
    pub(super) fn next(self) -> PieceState {
        match self {
            PieceState::Whole => PieceState::Failing,
            PieceState::Failing | PieceState::Absent => PieceState::Absent,
        }
    }
}

/// A route of this controller.
pub(super) struct KnownRoute {
    pub(super) attached: AttachedRoute,
    verdicts: ParentVerdicts,
    pub(super) state: PieceState,
    /// Groups that its rules use.
    pub(super) groups: BTreeSet<String>,
    /// Services that its rules lead to.
    pub(super) services: BTreeSet<ObjectKey>,
    /// Objects that its translation has looked up.
    reads: BackendReads,
}

/// What a route is translated to.
#[derive(Default)]
pub(super) struct TranslatedRoute {
    /// Routes of sites, by what they depend on.
    pub(super) entries: BTreeMap<ListenerPort, Vec<RouteEntry>>,
    pub(super) stream: Map<String, Value>,
    pub(super) faults: RouteFaults,
    pub(super) groups: BTreeMap<String, BackendGroup>,
    pub(super) services: BTreeSet<ObjectKey>,
    pub(super) reads: BackendReads,
}

/// Routes of a listener.
#[derive(Default)]
struct ListenerRoutes {
    /// Routes that are attached, by host.
    hosts: BTreeMap<String, BTreeSet<RouteNumber>>,
    /// HTTPRoutes and GRPCRoutes that would be attached.
    http: BTreeSet<RouteNumber>,
    grpc: BTreeSet<RouteNumber>,
    /// Hosts that an older route of the other kind has.
    refused: BTreeSet<(RouteNumber, String)>,
}

/// All routes of this controller.
#[derive(Default)]
pub(super) struct KnownRoutes {
    ids: BTreeMap<RouteName, RouteNumber>,
    routes: HashMap<RouteNumber, KnownRoute>,
    next_id: RouteNumber,
    listeners: HashMap<ListenerId, ListenerRoutes>,
    by_service: HashMap<ObjectKey, BTreeSet<RouteNumber>>,
    by_granting: HashMap<String, BTreeSet<RouteNumber>>,
}

/// What a change of routes concerns.
#[derive(Default)]
pub(super) struct RouteNews {
    /// Routes to translate.
    pub(super) to_translate: BTreeSet<RouteNumber>,
    /// Routes whose status may differ.
    pub(super) touched: BTreeSet<RouteNumber>,
    /// Hosts of listeners that other routes have.
    pub(super) hosts: BTreeSet<(ListenerId, String)>,
    /// Listeners whose number of routes may differ.
    pub(super) listeners: BTreeSet<ListenerId>,
    /// Routes that are gone, with their groups.
    pub(super) gone: Vec<(RouteName, BTreeSet<String>)>,
    /// Whether a route that is not of HTTP is concerned.
    pub(super) streams: bool,
}

impl KnownRoutes {
    /// Returns a route.
    pub(super) fn get(&self, id: RouteNumber) -> &KnownRoute {
        &self.routes[&id]
    }

    /// Returns a route.
    pub(super) fn route_mut(&mut self, id: RouteNumber) -> &mut KnownRoute {
        self.routes.get_mut(&id).expect("a number of a route")
    }

    /// Returns the number of a route.
    pub(super) fn id(&self, name: &RouteName) -> Option<RouteNumber> {
        self.ids.get(name).copied()
    }

    /// Returns all routes, by kind and name.
    pub(super) fn all(&self) -> impl Iterator<Item = (RouteNumber, &KnownRoute)> {
        self.ids.values().map(|id| (*id, &self.routes[id]))
    }

    /// Returns the routes of some kinds.
    pub(super) fn of_kinds<'k>(
        &'k self,
        kinds: &'k [Kind],
    ) -> impl Iterator<Item = (RouteNumber, &'k KnownRoute)> {
        let range = |kind: Kind| {
            let first = (kind, ObjectKey::default());
            self.ids.range(first..).take_while(move |((found, _), _)| *found == kind)
        };
        kinds.iter().copied().flat_map(range).map(|(_, id)| (*id, &self.routes[id]))
    }

    /// Returns the names of all routes.
    pub(super) fn names(&self) -> impl Iterator<Item = &RouteName> {
        self.ids.keys()
    }

    /// Returns the routes whose translation has looked up a Service.
    pub(super) fn readers_of(&self, service: &ObjectKey) -> impl Iterator<Item = RouteNumber> {
        self.by_service.get(service).into_iter().flatten().copied()
    }

    /// Returns the routes whose translation has asked for the ReferenceGrants of a namespace.
    pub(super) fn asking_for_grants(&self, namespace: &str) -> impl Iterator<Item = RouteNumber> {
        self.by_granting.get(namespace).into_iter().flatten().copied()
    }

    /// Returns the routes of a host of a listener.
    pub(super) fn of_host(&self, listener: ListenerId, host: &str) -> impl Iterator<Item = RouteNumber> {
        self.listeners.get(&listener).and_then(|routes| routes.hosts.get(host)).into_iter().flatten().copied()
    }

    /// Returns the hosts of a listener that routes have.
    pub(super) fn hosts(&self, listener: ListenerId) -> impl Iterator<Item = &String> {
        self.listeners.get(&listener).into_iter().flat_map(|routes| routes.hosts.keys())
    }

    /// Whether a route has a host of a listener.
    pub(super) fn has_host(&self, listener: ListenerId, host: &str) -> bool {
        self.listeners.get(&listener).is_some_and(|routes| routes.hosts.contains_key(host))
    }

    /// Forgets the listeners of all routes, because there are other ones.
    pub(super) fn forget_listeners(&mut self, news: &mut RouteNews) {
        self.listeners.clear();
        for (id, route) in &mut self.routes {
            route.attached.places.clear();
            route.verdicts.clear();
            news.touched.insert(*id);
        }
    }

    /// Attaches routes anew, of which some have changed themselves. `gateways` gets the numbers of their routes.
    pub(super) fn attach(
        &mut self,
        objects: &Objects,
        names: &BTreeSet<RouteName>,
        changed: &dyn Fn(&RouteName) -> bool,
        gateways: &mut JudgedGateways,
        news: &mut RouteNews,
    ) {
        let (mut to_attach, mut contested) = (BTreeSet::new(), BTreeSet::new());
        for name in names {
            let offered = offered_route(objects, name);
            let found = offered.and_then(|offered| Some((offered, find_places(objects, offered, gateways)?)));
            match found {
                None => {
                    if let Some(id) = self.ids.remove(name) {
                        self.remove(name, id, gateways, &mut contested, news);
                    }
                }
                Some((offered, verdicts)) => {
                    let id = self.enter(offered, changed(name), news);
                    self.offer(id, verdicts, &mut contested);
                    to_attach.insert(id);
                }
            }
        }
        for listener in contested {
            self.settle_claims(listener, &mut to_attach);
        }
        for id in to_attach {
            self.place(id, gateways, news);
        }
    }

    /// Enters a route, or its new state.
    fn enter(&mut self, offered: OfferedRoute<'_>, has_changed: bool, news: &mut RouteNews) -> RouteNumber {
        let name = (offered.kind, offered.key.clone());
        let known = self.ids.get(&name).copied();
        let id = known.unwrap_or(self.next_id);
        if known.is_none() {
            self.next_id += 1;
            self.ids.insert(name, id);
            let route = KnownRoute {
                attached: AttachedRoute::new(offered),
                verdicts: ParentVerdicts::new(),
                state: PieceState::Whole,
                groups: BTreeSet::new(),
                services: BTreeSet::new(),
                reads: BackendReads::default(),
            };
            self.routes.insert(id, route);
            news.to_translate.insert(id);
        } else if has_changed {
            let known = &mut self.route_mut(id).attached;
            let before = std::mem::replace(known, AttachedRoute::new(offered));
            (known.places, known.entries) = (before.places, before.entries);
            news.to_translate.insert(id);
        }
        news.touched.insert(id);
        id
    }

    /// Notes the places that were found for a route.
    fn offer(&mut self, id: RouteNumber, verdicts: ParentVerdicts, contested: &mut BTreeSet<ListenerId>) {
        let route = self.routes.get_mut(&id).expect("it was entered");
        let kind = route.attached.kind;
        let listeners = |verdicts: &ParentVerdicts| -> BTreeSet<ListenerId> {
            places(verdicts).map(|place| (place.gateway, place.listener)).collect()
        };
        let (before, after) = (listeners(&route.verdicts), listeners(&verdicts));
        route.verdicts = verdicts;
        if is_of_http(kind) {
            for listener in before {
                self.withdraw(id, listener, contested);
            }
            for listener in after {
                let routes = self.listeners.entry(listener).or_default();
                match kind {
                    Kind::HttpRoute => routes.http.insert(id),
                    _ => routes.grpc.insert(id),
                };
                contested.insert(listener);
            }
        }
    }

    fn withdraw(&mut self, id: RouteNumber, listener: ListenerId, contested: &mut BTreeSet<ListenerId>) {
        if let Some(routes) = self.listeners.get_mut(&listener) {
            routes.http.remove(&id);
            routes.grpc.remove(&id);
            contested.insert(listener);
        }
    }

    /// Decides which hosts of a listener HTTPRoutes have, and which GRPCRoutes: the oldest route has a host.
    fn settle_claims(&mut self, listener: ListenerId, to_attach: &mut BTreeSet<RouteNumber>) {
        let Some(routes) = self.listeners.get_mut(&listener) else { return };
        let mut refused = BTreeSet::new();
        if !routes.http.is_empty() && !routes.grpc.is_empty() {
            let mut by_age: Vec<(&KnownRoute, RouteNumber)> =
                routes.http.iter().chain(&routes.grpc).map(|id| (&self.routes[id], *id)).collect();
            by_age.sort_by(|(one, _), (other, _)| one.age().cmp(&other.age()));
            let mut claimed = ClaimedHosts::default();
            for (route, id) in by_age {
                let kind = route.attached.kind;
                let own = places(&route.verdicts).filter(|place| (place.gateway, place.listener) == listener);
                let (taken, free): (Vec<_>, Vec<_>) =
                    own.partition(|place| claimed.is_taken(&place.host, kind));
                refused.extend(taken.into_iter().map(|place| (id, place.host.clone())));
                free.into_iter().for_each(|place| claimed.claim(&place.host, kind));
            }
        }
        let others = routes.refused.symmetric_difference(&refused).map(|(id, _)| *id);
        to_attach.extend(others.filter(|id| self.routes.contains_key(id)));
        routes.refused = refused;
    }

    /// Attaches a route to its places.
    fn place(&mut self, id: RouteNumber, gateways: &mut JudgedGateways, news: &mut RouteNews) {
        let before = self.get(id).attached.places.clone();
        self.unplace(id, gateways, news);
        let route = self.routes.get_mut(&id).expect("it was entered");
        let listeners = &self.listeners;
        route.attached.attach(&route.verdicts, |place| {
            let routes = listeners.get(&(place.gateway, place.listener));
            routes.is_some_and(|routes| {
                !routes.refused.is_empty() && routes.refused.contains(&(id, place.host.clone()))
            })
        });
        if route.attached.places != before {
            // The checks may find something else elsewhere.
            (route.state, route.attached.rejected) = (PieceState::Whole, None);
        }
        news.touched.insert(id);
        news.streams |= !is_of_http(route.attached.kind);
        for place in route.attached.places.clone() {
            let listener = (place.gateway, place.listener);
            self.listeners
                .entry(listener)
                .or_default()
                .hosts
                .entry(place.host.clone())
                .or_default()
                .insert(id);
            news.hosts.insert((listener, place.host));
        }
        for listener in self.get(id).attached.listeners() {
            gateways.gateways[listener.0].listeners[listener.1].attached_routes += 1;
            news.listeners.insert(listener);
        }
    }

    /// Takes a route from its places.
    fn unplace(&mut self, id: RouteNumber, gateways: &mut JudgedGateways, news: &mut RouteNews) {
        let route = self.routes.get_mut(&id).expect("a number of a route");
        news.streams |= !is_of_http(route.attached.kind);
        for listener in route.attached.listeners() {
            gateways.gateways[listener.0].listeners[listener.1].attached_routes -= 1;
            news.listeners.insert(listener);
        }
        for place in std::mem::take(&mut route.attached.places) {
            let listener = (place.gateway, place.listener);
            if let Some(routes) = self.listeners.get_mut(&listener)
                && let Some(of_host) = routes.hosts.get_mut(&place.host)
            {
                of_host.remove(&id);
                if of_host.is_empty() {
                    routes.hosts.remove(&place.host);
                }
            }
            news.hosts.insert((listener, place.host));
        }
    }

    fn remove(
        &mut self,
        name: &RouteName,
        id: RouteNumber,
        gateways: &mut JudgedGateways,
        contested: &mut BTreeSet<ListenerId>,
        news: &mut RouteNews,
    ) {
        self.unplace(id, gateways, news);
        let verdicts = std::mem::take(&mut self.route_mut(id).verdicts);
        for place in places(&verdicts) {
            self.withdraw(id, (place.gateway, place.listener), contested);
        }
        self.note_reads(id, BackendReads::default());
        let route = self.routes.remove(&id).expect("a number of a route");
        news.to_translate.remove(&id);
        news.touched.remove(&id);
        news.gone.push((name.clone(), route.groups));
    }

    /// Notes the objects that the translation of a route has looked up.
    pub(super) fn note_reads(&mut self, id: RouteNumber, reads: BackendReads) {
        let before = std::mem::replace(&mut self.route_mut(id).reads, reads.clone());
        if before == reads {
            return;
        }
        forget(&mut self.by_service, &before.services, id);
        forget(&mut self.by_granting, &before.granting, id);
        for service in reads.services {
            self.by_service.entry(service).or_default().insert(id);
        }
        for namespace in reads.granting {
            self.by_granting.entry(namespace).or_default().insert(id);
        }
    }
}

impl KnownRoute {
    /// By age; HTTPRoutes before GRPCRoutes.
    fn age(&self) -> (&str, &ObjectKey, Kind) {
        (&self.attached.created, &self.attached.key, self.attached.kind)
    }

    /// Returns the routes of sites for the listeners of a port.
    pub(super) fn entries(&self, port: &ListenerPort) -> Option<&Arc<Vec<RouteEntry>>> {
        self.attached.entries.get(port)
    }

    /// Takes over a translation. Entries that are the same stay the same object. Returns whether the route's streams are others.
    pub(super) fn take_over(
        &mut self,
        id: RouteNumber,
        translated: TranslatedRoute,
        news: &mut RouteNews,
    ) -> bool {
        let TranslatedRoute { entries, stream, faults, groups, services, reads: _ } = translated;
        let attached = &mut self.attached;
        let mut before = std::mem::take(&mut attached.entries);
        let mut is_same = self.state == PieceState::Whole && before.len() == entries.len();
        for (port, made) in entries {
            let known = before.remove(&port).filter(|known| **known == made);
            is_same &= known.is_some();
            attached.entries.insert(port, known.unwrap_or_else(|| Arc::new(made)));
        }
        let has_other_stream = attached.stream != stream || self.state != PieceState::Whole;
        (attached.stream, attached.faults, attached.rejected) = (stream, faults, None);
        self.state = PieceState::Whole;
        (self.groups, self.services) = (groups.into_keys().collect(), services);
        news.touched.insert(id);
        let is_of_http = is_of_http(attached.kind);
        if is_of_http && !is_same {
            let place = |place: &AttachedPlace| ((place.gateway, place.listener), place.host.clone());
            news.hosts.extend(attached.places.iter().map(place));
        }
        !is_of_http && has_other_stream
    }
}

fn places(verdicts: &ParentVerdicts) -> impl Iterator<Item = &AttachedPlace> {
    verdicts.iter().filter_map(|(_, places)| places.as_ref().ok()).flatten()
}

/// Whether routes of a kind become routes of sites.
pub(super) fn is_of_http(kind: Kind) -> bool {
    matches!(kind, Kind::HttpRoute | Kind::GrpcRoute)
}

/// Removes a route from an index.
fn forget<K: std::hash::Hash + Eq>(
    index: &mut HashMap<K, BTreeSet<RouteNumber>>,
    keys: &BTreeSet<K>,
    id: RouteNumber,
) {
    for key in keys {
        if let Some(ids) = index.get_mut(key) {
            ids.remove(&id);
            if ids.is_empty() {
                index.remove(key);
            }
        }
    }
}

/// Returns the routes of a kind that is not of HTTP.
pub(super) fn stream_routes(objects: &Objects, kind: Kind) -> &Table<StreamRoute> {
    match kind {
        Kind::TlsRoute => &objects.tls_routes,
        Kind::TcpRoute => &objects.tcp_routes,
        _ => &objects.udp_routes,
    }
}

/// Returns a route of any kind, if it exists.
fn offered_route<'o>(objects: &'o Objects, name: &RouteName) -> Option<OfferedRoute<'o>> {
    let kind = name.0;
    match kind {
        Kind::HttpRoute => {
            let (key, route) = objects.http_routes.get_key_value(&name.1)?;
            let (metadata, spec) = (&route.metadata, &route.spec);
            Some(OfferedRoute { kind, key, metadata, parents: &spec.parent_refs, hostnames: &spec.hostnames })
        }
        Kind::GrpcRoute => {
            let (key, route) = objects.grpc_routes.get_key_value(&name.1)?;
            let (metadata, spec) = (&route.metadata, &route.spec);
            Some(OfferedRoute { kind, key, metadata, parents: &spec.parent_refs, hostnames: &spec.hostnames })
        }
        _ => {
            let (key, route) = stream_routes(objects, kind).get_key_value(&name.1)?;
            let (metadata, spec) = (&route.metadata, &route.spec);
            // Only TLS names a host.
            let hostnames = if kind == Kind::TlsRoute { spec.hostnames.as_slice() } else { &[] };
            Some(OfferedRoute { kind, key, metadata, parents: &spec.parent_refs, hostnames })
        }
    }
}

/// Returns the names of all routes.
pub(super) fn route_names(objects: &Objects) -> BTreeSet<RouteName> {
    let mut names = BTreeSet::new();
    names.extend(objects.http_routes.keys().map(|key| (Kind::HttpRoute, key.clone())));
    names.extend(objects.grpc_routes.keys().map(|key| (Kind::GrpcRoute, key.clone())));
    for kind in [Kind::TlsRoute, Kind::TcpRoute, Kind::UdpRoute] {
        names.extend(stream_routes(objects, kind).keys().map(|key| (kind, key.clone())));
    }
    names
}
