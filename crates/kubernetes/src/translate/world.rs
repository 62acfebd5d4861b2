//! All that is known of the objects, and the order in which a change passes through it.

mod checks;
mod results;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use settings::node::Node;

use crate::backend_tls::BackendTlsPolicies;
use crate::backends::{BackendGroups, BackendSource, BackendUser, EndpointIndex};
use crate::changes::ClusterFiles;
use crate::config_reader::ConfigReader;
use crate::gateway_services::{WantedObject, service_of, wanted_services};
use crate::grpc_route::grpc_rules;
use crate::http_route::{ListenerPort, RuledRoute, http_rules, route_entries};
use crate::ingress::{GatewayClaim, ObjectEvent, judge_ingresses, oldest_ingress};
use crate::listeners::{JudgedGateways, judge_gateways};
use crate::objects::{Kind, ObjectKey, Objects};
use crate::options::{CONTROLLER_NAME, IngressOptions, TranslateOptions};
use crate::policies::{PolicySet, judge_policies};
use crate::policy_spec::TargetKind;
use crate::stream_route::stream_servers;
use crate::translate::changed_config::TranslatedChange;
use crate::translate::known_groups::KnownGroups;
use crate::translate::known_ingresses::KnownIngresses;
use crate::translate::known_routes::{
    KnownRoute, KnownRoutes, ListenerId, PieceState, RouteName, RouteNews, RouteNumber, TranslatedRoute,
    is_of_http, route_names, stream_routes,
};
use crate::translate::known_sites::{KnownSites, RememberedSites, listener_port};
use crate::translate::known_statuses::KnownStatuses;
use crate::translate::known_streams::STREAM_KINDS;
use crate::translate::news::News;

/// Contents of files by their paths.
type Contents = BTreeMap<String, Vec<u8>>;

/// Groups that are used, but not by routes.
#[derive(Default)]
struct GroupUse {
    groups: BTreeSet<String>,
}

/// The contents of files, by what names them.
#[derive(Default)]
struct KnownFiles {
    gateways: Contents,
    tls_policies: Contents,
    policies: Contents,
    ingresses: Contents,
    all: Arc<ClusterFiles>,
}

/// The Services of Gateways.
#[derive(Default)]
struct KnownServices {
    names: BTreeSet<ObjectKey>,
    wanted: Arc<Vec<WantedObject>>,
    events: Vec<ObjectEvent>,
}

/// All that is known.
pub(super) struct World {
    options: TranslateOptions,
    own_addresses: BTreeSet<IpAddr>,
    endpoints: EndpointIndex,
    classes: BTreeSet<String>,
    /// When the oldest Ingress was created.
    ingresses_since: Option<String>,
    gateways: JudgedGateways,
    /// Secrets and ConfigMaps that Gateways and ListenerSets name.
    gateway_names: BTreeSet<ObjectKey>,
    tls_policies: BackendTlsPolicies,
    policies: PolicySet,
    /// What KomainuPolicies use.
    policy_use: GroupUse,
    routes: KnownRoutes,
    groups: KnownGroups,
    ingresses: KnownIngresses,
    files: KnownFiles,
    sites: KnownSites,
    /// The streams, if trees are kept.
    streams: Vec<Node>,
    /// Routes without streams because their namespaces have too much.
    stream_excess: BTreeSet<RouteNumber>,
    addresses: Arc<BTreeSet<String>>,
    services: KnownServices,
    events: Arc<Vec<ObjectEvent>>,
    keeps_trees: bool,
}

/// What a change concerns.
#[derive(Default)]
struct ChangedParts {
    routes: RouteNews,
    /// HTTPRoutes with other policies.
    with_other_policies: BTreeSet<ObjectKey>,
    /// Whether the streams are others.
    streams: bool,
    /// Whether other listeners are served.
    listeners: bool,
    /// Whether the sites of Ingresses are others.
    ingresses: bool,
    /// Whether the Services of Gateways are others.
    services: bool,
    /// Whether other Gateways use Services with a BackendTLSPolicy.
    uses_of_tls: bool,
}

/// Objects that KomainuPolicies name.
#[derive(Default)]
struct PolicyNames {
    /// Secrets and Services.
    objects: BTreeSet<ObjectKey>,
    /// HTTPRoutes.
    routes: BTreeSet<ObjectKey>,
}

impl GroupUse {
    /// Replaces the groups.
    fn replace(&mut self, known: &mut KnownGroups, groups: BackendGroups) {
        let groups = groups.into_groups();
        known.replace(&self.groups, &groups);
        self.groups = groups.into_keys().collect();
    }
}

/// Returns where backends are looked up.
fn backend_source<'a>(
    objects: &'a Objects,
    endpoints: &'a EndpointIndex,
    policies: &'a BackendTlsPolicies,
    options: &'a TranslateOptions,
    own_addresses: &'a BTreeSet<IpAddr>,
) -> BackendSource<'a> {
    BackendSource {
        objects,
        endpoints,
        policies,
        allows_loopback: options.allows_loopback,
        place: &options.place,
        own_addresses,
        reads: RefCell::default(),
    }
}

/// Returns what the routes of some listeners for HTTP depend on.
fn ports(gateways: &JudgedGateways, listeners: &BTreeSet<ListenerId>) -> BTreeSet<ListenerPort> {
    listeners.iter().map(|listener| listener_port(gateways, *listener)).collect()
}

fn named_by_policies(objects: &Objects) -> PolicyNames {
    let mut names = PolicyNames::default();
    for (key, policy) in &objects.policies {
        let spec = policy.spec();
        names.objects.extend(spec.references.iter().map(|reference| {
            ObjectKey::new(reference.namespace.as_deref().unwrap_or(&key.namespace), &reference.name)
        }));
        let routes = spec.targets.iter().filter(|target| target.kind == TargetKind::HttpRoute);
        names.routes.extend(routes.map(|target| ObjectKey::new(&key.namespace, &target.name)));
    }
    names
}

/// Returns the addresses and hosts that Gateways want, at the addresses of Ingresses.
fn host_claims(
    gateways: &JudgedGateways,
    routes: &KnownRoutes,
    options: &IngressOptions,
) -> BTreeMap<(String, String), GatewayClaim> {
    let mut claims: BTreeMap<(String, String), GatewayClaim> = BTreeMap::new();
    for (id, listener) in gateways.listeners().filter(|(_, listener)| listener.takes_address()) {
        let address = listener.bind_address();
        if address != options.http && address != options.https {
            continue;
        }
        let gateway = &gateways.gateways[id.0];
        let of_listener = claims.entry((address.clone(), listener.hostname.clone())).or_default();
        of_listener.add(gateway.created(), &gateway.key.namespace);
        for host in routes.hosts(id) {
            let claim = claims.entry((address.clone(), host.clone())).or_default();
            for route in routes.of_host(id, host).map(|id| &routes.get(id).attached) {
                claim.add(&route.created, &route.key.namespace);
            }
        }
    }
    claims
}

impl World {
    /// Creates a world of which nothing is translated yet.
    pub(super) fn new(
        objects: &Objects,
        options: &TranslateOptions,
        (keeps_trees, remembered): (bool, RememberedSites),
    ) -> World {
        World {
            options: options.clone(),
            own_addresses: options.pool.iter().copied().collect(),
            endpoints: EndpointIndex::of(objects),
            classes: BTreeSet::new(),
            ingresses_since: None,
            gateways: JudgedGateways::default(),
            gateway_names: BTreeSet::new(),
            tls_policies: BackendTlsPolicies::default(),
            policies: PolicySet::default(),
            policy_use: GroupUse::default(),
            routes: KnownRoutes::default(),
            groups: KnownGroups::default(),
            ingresses: KnownIngresses::default(),
            files: KnownFiles::default(),
            sites: KnownSites::new(keeps_trees, remembered, options.namespace_bytes),
            streams: Vec::new(),
            stream_excess: BTreeSet::new(),
            addresses: Arc::default(),
            services: KnownServices::default(),
            events: Arc::default(),
            keeps_trees,
        }
    }

    /// Returns the sites that were read.
    pub(super) fn into_sites(self) -> RememberedSites {
        self.sites.into_remembered()
    }

    /// Whether what is known was translated with the same settings, except for addresses that cannot be used, or are given already.
    pub(super) fn has_options(&self, options: &TranslateOptions) -> bool {
        let (unusable, assigned) = (self.options.unusable.clone(), self.options.assigned.clone());
        self.options == TranslateOptions { unusable, assigned, ..options.clone() }
    }

    /// Translates what has changed.
    pub(super) fn update(
        &mut self,
        objects: &Objects,
        options: &TranslateOptions,
        news: &mut News<'_>,
        (reader, statuses): (&mut ConfigReader, &mut KnownStatuses),
    ) -> Result<TranslatedChange, String> {
        let are_others_unusable = self.options.unusable != options.unusable;
        self.options.unusable.clone_from(&options.unusable);
        self.options.assigned.clone_from(&options.assigned);
        let mut work = ChangedParts::default();
        self.refresh_endpoints(objects, news);
        self.judge_gateways(objects, are_others_unusable, news);
        self.judge_tls_policies(objects, news);
        self.judge_policies(objects, news, &mut work);
        self.attach_routes(objects, news, &mut work);
        self.find_due_routes(news, &mut work);
        self.translate_routes(objects, &mut work);
        self.judge_ingresses(objects, news, &mut work);
        self.renew_sites(news, &mut work);
        self.read(objects, news, &mut work, reader)?;
        self.want_services(objects, news, &mut work);
        self.set_statuses(objects, news, &work, statuses);
        self.gather(news, &work);
        let sites = self.sites.all().chain(self.ingresses.all()).cloned().collect();
        Ok(TranslatedChange {
            config: reader.join(sites),
            files: self.files.all.clone(),
            addresses: self.addresses.clone(),
            events: self.events.clone(),
            wanted: self.services.wanted.clone(),
            assigned: self.gateways.addresses(),
        })
    }

    fn refresh_endpoints(&mut self, objects: &Objects, news: &mut News<'_>) {
        if news.is_first {
            return;
        }
        let slices = news.of(Kind::EndpointSlice);
        let services = slices.flat_map(|slice| self.endpoints.refresh(objects, slice)).flatten();
        news.endpoints = services.collect();
        let source =
            backend_source(objects, &self.endpoints, &self.tls_policies, &self.options, &self.own_addresses);
        let groups = &mut self.groups;
        news.emptied = news
            .endpoints
            .iter()
            .filter(|service| groups.note_endpoints(&source, service))
            .cloned()
            .collect();
    }

    fn judge_gateways(&mut self, objects: &Objects, are_others_unusable: bool, news: &mut News<'_>) {
        let kinds =
            [Kind::GatewayClass, Kind::Gateway, Kind::ListenerSet, Kind::Namespace, Kind::ReferenceGrant];
        let mut are_ingresses_since_another_time = false;
        if news.has(&[Kind::Ingress, Kind::IngressClass]) {
            let since = oldest_ingress(objects, &self.options).map(str::to_owned);
            are_ingresses_since_another_time = self.ingresses_since != since;
            self.ingresses_since = since;
        }
        let is_due = are_others_unusable
            || are_ingresses_since_another_time
            || news.has(&kinds)
            || news.names(Kind::Secret, &self.gateway_names)
            || news.names(Kind::ConfigMap, &self.gateway_names);
        if !is_due {
            return;
        }
        let only = self.options.gateway_class.as_deref();
        let classes = objects.gateway_classes.iter().filter(|(key, class)| {
            class.spec.controller_name == CONTROLLER_NAME && only.is_none_or(|only| only == key.name)
        });
        let classes: BTreeSet<&str> = classes.map(|(key, _)| key.name.as_str()).collect();
        let mut files = Contents::new();
        let since = self.ingresses_since.as_deref();
        self.gateways = judge_gateways(objects, &classes, &self.options, since, &mut files);
        self.classes = classes.into_iter().map(str::to_owned).collect();
        self.gateway_names = self.gateways.named_objects();
        (self.files.gateways, news.files, news.gateways) = (files, true, true);
    }

    fn judge_tls_policies(&mut self, objects: &Objects, news: &mut News<'_>) {
        if !news.has(&[Kind::BackendTlsPolicy])
            && !news.names(Kind::ConfigMap, &self.tls_policies.named_objects())
        {
            return;
        }
        let mut files = Contents::new();
        let before =
            std::mem::replace(&mut self.tls_policies, BackendTlsPolicies::judge(objects, &mut files));
        news.tls_targets = before.targeted().chain(self.tls_policies.targeted()).cloned().collect();
        (self.files.tls_policies, news.files, news.tls_policies) = (files, true, true);
    }

    fn judge_policies(&mut self, objects: &Objects, news: &mut News<'_>, work: &mut ChangedParts) {
        let has_any = !objects.policies.is_empty() || !objects.unread_policies.is_empty();
        let named = if has_any { named_by_policies(objects) } else { PolicyNames::default() };
        let is_due = news.has(&[Kind::KomainuPolicy])
            || (has_any
                && (news.gateways
                    || news.tls_policies
                    || news.has(&[Kind::ReferenceGrant])
                    || news.names(Kind::Secret, &named.objects)
                    || news.names(Kind::Service, &named.objects)
                    || news.emptied.iter().any(|service| named.objects.contains(service))
                    || news.names(Kind::HttpRoute, &named.routes)));
        if !is_due {
            return;
        }
        let source =
            backend_source(objects, &self.endpoints, &self.tls_policies, &self.options, &self.own_addresses);
        let (mut groups, mut files) = (BackendGroups::default(), Contents::new());
        let set = judge_policies(objects, &self.gateways, &source, &mut groups, &mut files);
        let before = std::mem::replace(&mut self.policies, set);
        self.policy_use.replace(&mut self.groups, groups);
        (self.files.policies, news.files, news.policies) = (files, true, true);
        let mut keys = before.changed_routes(&self.policies);
        for namespace in before.changed_namespaces(&self.policies) {
            let first = ObjectKey::new(&namespace, "");
            let routes = objects.http_routes.range(first..).map(|(key, _)| key);
            keys.extend(routes.take_while(|key| key.namespace == namespace).cloned());
        }
        work.with_other_policies = keys;
    }

    fn attach_routes(&mut self, objects: &Objects, news: &News<'_>, work: &mut ChangedParts) {
        let mut names: BTreeSet<RouteName> =
            news.changed.iter().filter(|(kind, _)| kind.is_route()).cloned().collect();
        if news.gateways {
            names.extend(route_names(objects));
            names.extend(self.routes.names().cloned());
            self.routes.forget_listeners(&mut work.routes);
        }
        let has_changed = |name: &RouteName| news.changed.contains(name);
        self.routes.attach(objects, &names, &has_changed, &mut self.gateways, &mut work.routes);
    }

    /// Finds the routes whose translation depends on what has changed.
    fn find_due_routes(&mut self, news: &News<'_>, work: &mut ChangedParts) {
        let due = &mut work.routes.to_translate;
        for key in news.of(Kind::Service).chain(&news.tls_targets).chain(&news.emptied) {
            due.extend(self.routes.readers_of(key));
        }
        for key in &news.endpoints {
            // Streams have the servers themselves.
            let readers = self.routes.readers_of(key);
            due.extend(readers.filter(|id| !is_of_http(self.routes.get(*id).attached.kind)));
        }
        for key in news.of(Kind::ReferenceGrant) {
            due.extend(self.routes.asking_for_grants(&key.namespace));
        }
        for key in &work.with_other_policies {
            due.extend(self.routes.id(&(Kind::HttpRoute, key.clone())));
        }
        for id in &work.routes.touched {
            let known = &self.routes.get(*id).attached;
            if is_of_http(known.kind)
                && !known.entries.keys().eq(ports(&self.gateways, &known.listeners()).iter())
            {
                due.insert(*id);
            }
        }
    }

    fn translate_routes(&mut self, objects: &Objects, work: &mut ChangedParts) {
        for (_, groups) in &work.routes.gone {
            self.groups.replace(groups, &BTreeMap::new());
            work.uses_of_tls = true;
        }
        let targets: BTreeSet<ObjectKey> = self.tls_policies.targeted().cloned().collect();
        for id in work.routes.to_translate.clone() {
            let translated = self.translate_route(objects, id);
            work.uses_of_tls |= !targets.is_disjoint(&self.routes.get(id).services);
            self.groups.replace(&self.routes.get(id).groups, &translated.groups);
            self.routes.note_reads(id, translated.reads.clone());
            work.streams |= self.routes.route_mut(id).take_over(id, translated, &mut work.routes);
        }
        let uses_any = |id: &RouteNumber| !targets.is_disjoint(&self.routes.get(*id).services);
        work.uses_of_tls |= !targets.is_empty() && work.routes.touched.iter().any(uses_any);
    }

    fn translate_route(&self, objects: &Objects, id: RouteNumber) -> TranslatedRoute {
        let source =
            backend_source(objects, &self.endpoints, &self.tls_policies, &self.options, &self.own_addresses);
        let known = &self.routes.get(id).attached;
        let key = &known.key;
        let mut made = TranslatedRoute::default();
        let ruled = match known.kind {
            Kind::HttpRoute => objects.http_routes.get(key).map(|route| http_rules(key, route)),
            Kind::GrpcRoute => objects.grpc_routes.get(key).map(|route| grpc_rules(key, route)),
            kind => {
                let user =
                    BackendUser { kind: kind.name(), namespace: &key.namespace, client: None, session: None };
                if let Some(route) = stream_routes(objects, kind).get(key) {
                    made.stream = stream_servers(user, route, &source, &mut made.faults);
                }
                None
            }
        };
        if let Some(ruled) = ruled {
            self.translate_rules(&ruled, &known.listeners(), &source, &mut made);
        }
        made.reads = source.take_reads();
        made
    }

    fn translate_rules(
        &self,
        route: &RuledRoute<'_>,
        listeners: &BTreeSet<ListenerId>,
        source: &BackendSource<'_>,
        made: &mut TranslatedRoute,
    ) {
        let mut groups = BackendGroups::default();
        let policies = &self.policies;
        for port in ports(&self.gateways, listeners) {
            let entries = route_entries(route, &port, source, policies, &mut groups, &mut made.faults);
            made.entries.insert(port, entries);
        }
        made.services = groups.take_services();
        made.groups = groups.into_groups();
        if made.entries.is_empty() {
            // References are judged all the same.
            let port = ListenerPort { port: 80, is_tls: false, client: None };
            route_entries(route, &port, source, policies, &mut BackendGroups::default(), &mut made.faults);
        }
    }

    fn judge_ingresses(&mut self, objects: &Objects, news: &mut News<'_>, work: &mut ChangedParts) {
        let known = &self.ingresses;
        let kinds = [Kind::Secret, Kind::ConfigMap, Kind::Service, Kind::ReferenceGrant, Kind::Namespace];
        let concerned = if known.passes_through() { &news.endpoints } else { &news.emptied };
        let is_due = news.has(&[Kind::Ingress, Kind::IngressClass])
            || (known.has_any()
                && (news.has(&kinds)
                    || news.tls_policies
                    || concerned.iter().any(|service| known.reads.services.contains(service))));
        if is_due {
            let source = backend_source(
                objects,
                &self.endpoints,
                &self.tls_policies,
                &self.options,
                &self.own_addresses,
            );
            let (mut groups, mut files) = (BackendGroups::default(), Contents::new());
            let set = judge_ingresses(objects, &self.options, &source, &mut groups, &mut files);
            self.ingresses.replace(set, source.take_reads());
            let groups = groups.into_groups();
            let before = self.ingresses.replace_groups(&groups);
            self.groups.replace(&before, &groups);
            (self.files.ingresses, news.files, work.ingresses) = (files, true, true);
        }
        let are_others = news.gateways || news.policies || !work.routes.hosts.is_empty();
        if self.ingresses.is_due() || (self.ingresses.has_any() && are_others) {
            let listeners = self.gateways.listeners().map(|(_, listener)| listener);
            let claims = host_claims(&self.gateways, &self.routes, &self.options.ingress);
            self.ingresses.yield_hosts(claims, listeners, news.gateways);
            work.ingresses |= self.ingresses.is_due();
        }
    }

    /// Finds the Services that have to be made for Gateways, or changed.
    fn want_services(&mut self, objects: &Objects, news: &News<'_>, work: &mut ChangedParts) {
        let Some(options) = &self.options.gateway_services else { return };
        let is_named =
            |key: &ObjectKey| self.services.names.contains(key) || options.pods.as_ref() == Some(key);
        let is_due = news.gateways
            || work.listeners
            || news.names(Kind::Service, &self.services.names)
            || news.endpoints.iter().any(is_named);
        if !is_due {
            return;
        }
        let gateways = &self.gateways.gateways;
        let (wanted, events) = wanted_services(objects, gateways, &self.options);
        self.services.names = gateways.iter().map(service_of).collect();
        if *self.services.wanted != wanted {
            self.services.wanted = Arc::new(wanted);
        }
        (self.services.events, work.services) = (events, true);
    }

    /// Takes other listeners over to the sites, and what routes have become.
    fn renew_sites(&mut self, news: &News<'_>, work: &mut ChangedParts) {
        let kept = self.ingresses.set.as_ref().map(|set| set.kept_hosts().clone());
        if news.gateways || news.policies {
            for gateway in &mut self.gateways.gateways {
                gateway.listeners.iter_mut().for_each(|listener| listener.rejected = None);
            }
            work.listeners = true;
            let others = self.sites.renew(&self.gateways, &self.policies, &self.routes);
            let is_faulty = |route: &KnownRoute| {
                let mut listeners = route.attached.places.iter().map(|place| (place.gateway, place.listener));
                route.state != PieceState::Whole && listeners.any(|listener| others.contains(&listener))
            };
            let faulty: Vec<RouteNumber> =
                self.routes.all().filter(|(_, route)| is_faulty(route)).map(|(id, _)| id).collect();
            faulty.into_iter().for_each(|id| self.judge_anew(id, work));
        }
        self.sites.withhold(kept.unwrap_or_default(), &self.routes);
        work.streams |= work.listeners || work.routes.streams || work.ingresses;
        if work.streams {
            // They are checked together.
            let is_faulty = |route: &KnownRoute| route.state != PieceState::Whole;
            let streams = self.routes.of_kinds(&STREAM_KINDS);
            let faulty: Vec<RouteNumber> =
                streams.filter(|(_, route)| is_faulty(route)).map(|(id, _)| id).collect();
            faulty.into_iter().for_each(|id| self.judge_anew(id, work));
        }
        for (listener, host) in std::mem::take(&mut work.routes.hosts) {
            self.sites.note_host(listener, &host);
        }
    }

    /// Has the configuration's checks decide again about a route.
    fn judge_anew(&mut self, id: RouteNumber, work: &mut ChangedParts) {
        let route = self.routes.route_mut(id);
        (route.state, route.attached.rejected) = (PieceState::Whole, None);
        self.note_state(id, work);
    }

    /// Notes that another state of a route changes what it is part of.
    fn note_state(&mut self, id: RouteNumber, work: &mut ChangedParts) {
        work.routes.touched.insert(id);
        let route = &self.routes.get(id).attached;
        work.streams |= !is_of_http(route.kind);
        for place in &route.places {
            self.sites.note_host((place.gateway, place.listener), &place.host);
        }
    }
}
