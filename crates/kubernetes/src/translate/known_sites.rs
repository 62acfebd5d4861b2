//! The sites of listeners, of which only those are made and read again that a change concerns.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use config::{Finding, Site};
use settings::node::Node;

use crate::allowance::{Allowed, SITE_BYTES, route_bytes};
use crate::attach::{AttachedRoute, wider_hosts};
use crate::config_reader::{ConfigReader, ReadSite};
use crate::http_route::{ListenerPort, RouteEntry};
use crate::listeners::{JudgedGateways, JudgedListener, ListenerProtocol};
use crate::policies::PolicySet;
use crate::translate::known_routes::{KnownRoutes, ListenerId, PieceState, RouteNumber};
use crate::translate::site_costs::{SiteCost, SiteCosts, SiteName};
use crate::translate::site_tree::{SiteHead, SiteRoute, sort_routes};

/// Sites by their identity.
pub(super) type RememberedSites = HashMap<[u64; 2], ReadSite>;

/// An object of which a site is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SitePiece {
    Listener(ListenerId),
    Route(RouteNumber),
    /// Number of an Ingress.
    Ingress(usize),
}

struct KnownSite {
    head: Arc<SiteHead>,
    routes: Vec<SiteRoute>,
    read: ReadSite,
    /// The tree, if trees are kept.
    tree: Option<Node>,
}

/// A site to read.
struct DueSite {
    name: SiteName,
    head: Arc<SiteHead>,
    routes: Vec<SiteRoute>,
    node: Node,
    /// The site before.
    known: Option<KnownSite>,
}

impl DueSite {
    fn take_node(&mut self) -> Node {
        std::mem::replace(&mut self.node, Node::list(Vec::new()))
    }

    /// Returns the object that a finding concerns.
    fn piece(&self, finding: &Finding) -> Option<SitePiece> {
        match finding.span.start {
            0 => None,
            1 => Some(SitePiece::Listener(self.name.0)),
            at => self.routes.get(at - 2).map(|route| SitePiece::Route(route.id)),
        }
    }
}

impl KnownSite {
    /// Whether the site is made of a head and these routes.
    fn is_of(&self, head: &Arc<SiteHead>, routes: &[SiteRoute]) -> bool {
        Arc::ptr_eq(&self.head, head)
            && self.routes.len() == routes.len()
            && self.routes.iter().zip(routes).all(|(one, other)| one.is_same(other))
    }
}

/// All sites of listeners.
#[derive(Default)]
pub(super) struct KnownSites {
    keeps_trees: bool,
    /// Heads of the listeners for HTTP that are served.
    heads: HashMap<ListenerId, Arc<SiteHead>>,
    /// Heads by the names of listeners.
    heads_by_scope: HashMap<String, Arc<SiteHead>>,
    /// The listener that has a host of an address: the narrowest that covers it.
    owners: HashMap<String, BTreeMap<String, ListenerId>>,
    /// Host and address of each listener that is served.
    served: BTreeMap<ListenerId, (String, String)>,
    sites: BTreeMap<SiteName, KnownSite>,
    /// Sites before the listeners were numbered anew, by the names of the listeners.
    before: HashMap<(String, String), KnownSite>,
    scopes: HashMap<ListenerId, String>,
    remembered: RememberedSites,
    /// Sites to look at.
    due: BTreeSet<SiteName>,
    /// Sites to read even if they are made of the same, because of their groups.
    stale: BTreeSet<SiteName>,
    /// Addresses and hosts that older Ingresses have.
    withheld: BTreeSet<(String, String)>,
    costs: SiteCosts,
    /// What the routes of a namespace become where it has too much.
    failing: Option<Arc<Vec<RouteEntry>>>,
    /// Routes about which there is another verdict.
    reconsidered: BTreeSet<RouteNumber>,
}

/// Returns what the routes of a listener depend on.
pub(super) fn listener_port(gateways: &JudgedGateways, (gateway, listener): ListenerId) -> ListenerPort {
    let gateway = &gateways.gateways[gateway];
    let state = &gateway.listeners[listener];
    ListenerPort {
        port: state.port,
        is_tls: state.protocol == ListenerProtocol::Https,
        client: gateway.client_certificate().cloned(),
    }
}

impl KnownSites {
    /// `namespace_bytes` is the memory that the routes of a namespace may take.
    pub(super) fn new(
        keeps_trees: bool,
        remembered: RememberedSites,
        namespace_bytes: Option<u64>,
    ) -> KnownSites {
        KnownSites {
            keeps_trees,
            remembered,
            costs: SiteCosts::new(namespace_bytes),
            failing: namespace_bytes.map(|_| Arc::new(vec![RouteEntry::failing()])),
            ..KnownSites::default()
        }
    }

    /// Returns all sites that were read.
    pub(super) fn into_remembered(self) -> RememberedSites {
        let all = self.sites.into_values().chain(self.before.into_values()).map(|site| site.read);
        self.remembered.into_iter().chain(all.map(|read| (read.id(), read))).collect()
    }

    /// Takes over other listeners or policies. Returns the listeners whose sites are others.
    pub(super) fn renew(
        &mut self,
        gateways: &JudgedGateways,
        policies: &PolicySet,
        routes: &KnownRoutes,
    ) -> BTreeSet<ListenerId> {
        let served = |listener: &&JudgedListener| listener.is_served();
        let datagrams: BTreeSet<&str> = gateways
            .listeners()
            .map(|(_, listener)| listener)
            .filter(served)
            .filter(|listener| listener.protocol == ListenerProtocol::Udp)
            .map(|listener| listener.address.as_str())
            .collect();
        for ((listener, host), site) in std::mem::take(&mut self.sites) {
            if let Some(scope) = self.scopes.get(&listener) {
                self.before.insert((scope.clone(), host), site);
            }
        }
        let heads_before = std::mem::take(&mut self.heads_by_scope);
        let mut others = BTreeSet::new();
        let had_too_much = self.costs.clear();
        if !had_too_much.is_empty() {
            let of_them =
                routes.all().filter(|(_, route)| had_too_much.contains(&route.attached.key.namespace));
            self.reconsidered.extend(of_them.map(|(id, _)| id));
        }
        self.heads.clear();
        self.owners.clear();
        self.scopes.clear();
        self.served.clear();
        self.due.clear();
        for (id, listener) in gateways.listeners().filter(|(_, listener)| listener.is_served()) {
            let bind = listener.bind_address();
            self.owners.entry(bind.clone()).or_default().insert(listener.hostname.clone(), id);
            self.served.insert(id, (bind, listener.hostname.clone()));
            if !listener.protocol.is_http() {
                continue;
            }
            let policy = policies.of_listener(&gateways.gateways[id.0], id.1);
            let has_datagrams = datagrams.contains(listener.address.as_str());
            let head = SiteHead::of(listener, listener_port(gateways, id), policy, has_datagrams);
            let head = match heads_before.get(&listener.scope) {
                Some(known) if **known == head => known.clone(),
                _ => {
                    others.insert(id);
                    Arc::new(head)
                }
            };
            self.heads.insert(id, head.clone());
            self.heads_by_scope.insert(listener.scope.clone(), head);
            self.scopes.insert(id, listener.scope.clone());
            self.due.insert((id, listener.hostname.clone()));
            self.due.extend(routes.hosts(id).map(|host| (id, host.clone())));
        }
        others
    }

    /// Leaves out addresses and hosts that older Ingresses have.
    pub(super) fn withhold(&mut self, withheld: BTreeSet<(String, String)>, routes: &KnownRoutes) {
        for (bind, host) in self.withheld.symmetric_difference(&withheld) {
            let Some(owners) = self.owners.get(bind) else { continue };
            if let Some(listener) = wider_hosts(host).iter().find_map(|wider| owners.get(wider)).copied() {
                self.due.insert((listener, host.clone()));
            }
            for listener in owners.values() {
                self.reconsidered.extend(routes.of_host(*listener, host));
            }
        }
        self.withheld = withheld;
    }

    /// Takes the routes about which there is another verdict.
    pub(super) fn take_reconsidered(&mut self) -> BTreeSet<RouteNumber> {
        std::mem::take(&mut self.reconsidered)
    }

    /// Returns why some places of a route are not served, and whether none is.
    pub(super) fn refusal(&self, route: &AttachedRoute) -> Option<(String, bool)> {
        let (mut first, mut refused) = (None, 0);
        for place in &route.places {
            let site = ((place.gateway, place.listener), place.host.clone());
            let bind = self.served.get(&site.0).map(|(bind, _)| bind);
            let text = if bind.is_some_and(|bind| self.withheld.contains(&(bind.clone(), place.host.clone())))
            {
                let host = if place.host.is_empty() { "every host" } else { &place.host };
                format!("an older Ingress of another namespace has {host} at the address of the listener")
            } else if self.costs.allowed(&route.key.namespace, &site) != Allowed::Whole {
                self.costs.excess_text(&route.key.namespace)
            } else {
                continue;
            };
            refused += 1;
            first.get_or_insert(text);
        }
        first.map(|text| (text, refused == route.places.len()))
    }

    /// Whether a listener has a host of its address: the narrowest that covers it.
    pub(super) fn is_owner(&self, listener: ListenerId, host: &str) -> bool {
        let Some((bind, _)) = self.served.get(&listener) else { return false };
        let Some(owners) = self.owners.get(bind) else { return false };
        if !self.withheld.is_empty() && self.withheld.contains(&(bind.clone(), host.to_owned())) {
            return false;
        }
        wider_hosts(host).iter().find_map(|wider| owners.get(wider)) == Some(&listener)
    }

    /// Notes that a host of a listener has other routes.
    pub(super) fn note_host(&mut self, listener: ListenerId, host: &str) {
        if !self.heads.contains_key(&listener) {
            return;
        }
        self.due.insert((listener, host.to_owned()));
        // Narrower hosts have these routes too.
        let suffix = match host.strip_prefix('*') {
            Some(suffix) => suffix,
            None if host.is_empty() => "",
            None => return,
        };
        let first = (listener, String::new());
        let sites = self.sites.range(first.clone()..).map(|(name, _)| name);
        let is_below = |(_, host): &&SiteName| host.ends_with(suffix);
        let is_of_listener = |(of, _): &&SiteName| *of == listener;
        self.due.extend(sites.take_while(is_of_listener).filter(is_below).cloned());
        // Hosts of a namespace that has too much may have no site.
        self.due.extend(self.costs.sites_from(&first).take_while(is_of_listener).filter(is_below).cloned());
    }

    /// Notes that groups are others to the sites that name them.
    pub(super) fn note_groups(&mut self, groups: &BTreeSet<String>) {
        let named = self.sites.iter().filter(|(_, site)| site.read.names_any(groups));
        self.stale.extend(named.map(|(name, _)| name.clone()));
        // Those of listeners that were renewed before have other names now.
        self.before.retain(|_, site| !site.read.names_any(groups));
        self.due.extend(self.stale.iter().cloned());
    }

    /// Makes and reads the sites that are due. Returns findings with the objects that they concern; these sites stay due.
    pub(super) fn refresh(
        &mut self,
        routes: &KnownRoutes,
        reader: &mut ConfigReader,
    ) -> Vec<(Option<SitePiece>, Finding)> {
        let mut due: Vec<DueSite> = Vec::new();
        for name in std::mem::take(&mut self.due) {
            due.extend(self.make(name, routes));
        }
        let mut findings = Vec::new();
        // Sites of a listener have the same settings, so that they can be read together.
        for of_listener in due.chunk_by_mut(|one, other| one.name.0 == other.name.0) {
            let nodes: Vec<Node> = of_listener.iter_mut().map(DueSite::take_node).collect();
            let trees: Vec<Option<Node>> =
                nodes.iter().map(|node| self.keeps_trees.then(|| node.clone())).collect();
            let find = |at: usize, id| {
                let known = of_listener[at].known.as_ref().map(|known| &known.read);
                known.filter(|known| known.is_of(id)).or_else(|| self.remembered.get(&id)).cloned()
            };
            let outcomes = reader.read_sites(nodes, &find);
            for ((site, tree), outcome) in of_listener.iter().zip(trees).zip(outcomes) {
                match outcome {
                    Ok(read) => {
                        let (head, routes) = (site.head.clone(), site.routes.clone());
                        self.sites.insert(site.name.clone(), KnownSite { head, routes, read, tree });
                    }
                    Err(found) => {
                        findings.extend(found.into_iter().map(|finding| (site.piece(&finding), finding)));
                        self.due.insert(site.name.clone());
                    }
                }
            }
        }
        findings
    }

    /// Finds out what the sites that are due take, and which of them are closed by that: these become due too.
    pub(super) fn settle_costs(&mut self, routes: &KnownRoutes) {
        if !self.costs.has_limit() {
            return;
        }
        for name in &self.due {
            let (listener, host) = name;
            let exists = routes.has_host(*listener, host) && self.is_owner(*listener, host);
            let head = self.heads.get(listener).filter(|_| exists);
            self.costs
                .set(name, head.map(|head| site_costs(routes, head, *listener, host)).unwrap_or_default());
        }
        for ((listener, host), namespace) in self.costs.settle() {
            for wider in wider_hosts(&host) {
                let of_host = routes.of_host(listener, &wider);
                self.reconsidered
                    .extend(of_host.filter(|id| routes.get(*id).attached.key.namespace == namespace));
            }
            self.due.insert((listener, host));
        }
    }

    /// Makes a site. `None` if it is the same as before, or does not exist.
    fn make(&mut self, name: SiteName, routes: &KnownRoutes) -> Option<DueSite> {
        let (listener, host) = &name;
        let own = self.served.get(listener).is_some_and(|(_, own)| own == host);
        let has_routes = || {
            let mut of_host = routes.of_host(*listener, host);
            of_host.any(|id| {
                self.costs.allowed(&routes.get(id).attached.key.namespace, &name) != Allowed::Absent
            })
        };
        let exists = (own || has_routes()) && self.is_owner(*listener, host);
        let Some(head) = self.heads.get(listener).filter(|_| exists).cloned() else {
            self.sites.remove(&name);
            return None;
        };
        let of_site = self.site_routes(routes, &head, &name);
        let scope = self.scopes.get(listener).cloned().unwrap_or_default();
        let known = self.sites.remove(&name).or_else(|| self.before.remove(&(scope, host.clone())));
        let is_stale = self.stale.remove(&name);
        if !is_stale && known.as_ref().is_some_and(|known| known.is_of(&head, &of_site)) {
            self.sites.extend(known.map(|known| (name, known)));
            return None;
        }
        let node = head.site(host, &of_site);
        Some(DueSite { name, head, routes: of_site, node, known })
    }

    /// Returns the routes of a site, with those of wider hosts.
    fn site_routes(&self, routes: &KnownRoutes, head: &SiteHead, name: &SiteName) -> Vec<SiteRoute> {
        let (listener, host) = name;
        let (mut of_site, mut closed) = (Vec::new(), None);
        for (host_depth, wider) in wider_hosts(host).iter().enumerate() {
            for id in routes.of_host(*listener, wider) {
                let route = routes.get(id);
                let Some(entries) = route.entries(&head.port) else { continue };
                match self.costs.allowed(&route.attached.key.namespace, name) {
                    Allowed::Whole if route.state == PieceState::Absent => {}
                    Allowed::Whole => {
                        let state = route.state;
                        of_site.extend((0..entries.len()).map(|at| SiteRoute {
                            host_depth,
                            entries: entries.clone(),
                            at,
                            id,
                            state,
                        }));
                    }
                    Allowed::Failing => closed = closed.or(Some(id)),
                    Allowed::Absent => {}
                }
            }
        }
        sort_routes(&mut of_site);
        if let (Some(id), Some(failing)) = (closed, &self.failing) {
            // After the routes of other namespaces.
            let (entries, state) = (failing.clone(), PieceState::Failing);
            of_site.push(SiteRoute { host_depth: usize::MAX, entries, at: 0, id, state });
        }
        of_site
    }

    /// Forgets the sites of listeners before, once all are read.
    pub(super) fn settle(&mut self) {
        self.before.clear();
        self.stale.clear();
        self.remembered.clear();
    }

    /// Returns the sites, by listener and host.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Site>> {
        self.sites.values().map(|site| &site.read.site)
    }

    /// Returns the trees of the sites, if they are kept.
    pub(super) fn trees(&self) -> impl Iterator<Item = &Node> {
        self.sites.values().filter_map(|site| site.tree.as_ref())
    }
}

/// Returns what the routes of a host of a listener take, by namespace.
fn site_costs(
    routes: &KnownRoutes,
    head: &SiteHead,
    listener: ListenerId,
    host: &str,
) -> BTreeMap<String, SiteCost> {
    let mut costs: BTreeMap<String, SiteCost> = BTreeMap::new();
    let mut newest = "";
    for wider in wider_hosts(host) {
        for id in routes.of_host(listener, &wider) {
            let route = routes.get(id);
            let of_site = if wider == host { SITE_BYTES } else { 0 };
            let of_entry = |entry: &RouteEntry| route_bytes(entry.len() + head.policy_bytes);
            let of_routes: u64 =
                route.entries(&head.port).into_iter().flat_map(|all| all.iter()).map(of_entry).sum();
            newest = newest.max(&route.attached.created);
            let new = || SiteCost { newest: String::new(), bytes: 0 };
            costs.entry(route.attached.key.namespace.clone()).or_insert_with(new).bytes +=
                of_site + of_routes;
        }
    }
    costs.values_mut().for_each(|cost| newest.clone_into(&mut cost.newest));
    costs
}
