//! Assembles the route tables from a checked configuration.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use ::cluster::ClusterStore;
use admission::auth::Auth;
use cache::{Cache, CachePurge};
use cache_handler::handler::RouteCache;
use cache_handler::peers::{CachePeers, RoutePeers};
use cache_handler::purge_method::{PurgeAccess, PurgeToken, purge_tokens};
use cache_handler::purge_order::SharedPurges;
use cache_handler::rules::{CacheRules, RouteSuffixes};
use certificates::tls::{TlsPlan, stream_acceptors};
use config::matcher::{RouteId, Routes};
use config::{Action, Config, EncodedSlashes, HiddenRouteKind, PartOf, add_config_place};
use engine::clients::access::ClientAccess;
use engine::clients::proxies::{peer_set, trusted_proxies};
use engine::options::{PEER_LISTENER_KEY, https_port};
use failure::IoFailure;
use files::{FileOptions, Files};
use hosting::cgi_programs::CgiPrograms;
use hosting::workers::{self, AppHandles, Hosting, MountedApp};
use http::{EmptySegments, Fields, Status};
use logging::access::AccessLogs;
use logging::notice::ErrorLog;
use logging::sink::LogSinks;
use net::{Core, RouteLimits, SpillStore, TlsAcceptor};
use operator::access::ControlAccess;
use process::config_files::{ConfigFiles, MemoryFiles};
use proxy::{CoreGroup, CurrentGroup, Proxy, UpstreamEvent};
use reload::KeptState;
use routing::edits::RouteEdits;
use routing::error_server::RouteErrorServer;
use routing::fixed::{fixed_response, status};
use routing::geo::CountryDatabase;
use routing::ids::IdRules;
use routing::internal::{InternalRoutes, RouteGuards, SiteInternals};
use routing::pages::SitePages;
use routing::path_rules::{MapValues, PathRules, route_prefix};
use routing::php::{self, PhpRoute};
use routing::replace::RouteReplacement;
use routing::request_path::PathPrefix;
use routing::route::{
    Handler, ProgramFolder, Route, RouteGuardSet, RoutePaths, RouteStep, RouteSteps, StepKind,
};
use routing::router::RouteTable;
use routing::streams::limits::StreamLimits;
use routing::streams::route::StreamRoutes;
use sharing::Sharing;
use steps::access::RouteAccess;
use steps::auth::{AuthPlan, AuthResources};
use steps::cors::RouteCors;
use steps::header_limit::RouteHeaderLimit;
use steps::limit::{CountedRequests, LimitPlan};
use steps::shaping::queue::QueuePlan;
use steps::shaping::shared_limits;
use steps::site_https::SiteHttps;
use telemetry::costs::CostPlan;
use telemetry::metrics::{CoreMetrics, RouteLabel, RouteLabels};
use telemetry::otlp::PushOptions;
use telemetry::traces::TraceExport;

use crate::assemble::cluster::PeerPlan;
use crate::assemble::content::{build_route_files, stripped_prefix};
use crate::assemble::dictionaries::{self, DictionaryStores};
use crate::assemble::discovery::UsedDiscovery;
use crate::assemble::guards::{GuardPlan, number_guards};
use crate::assemble::releases::{ReleasePlan, build_release, link_branches};
use crate::assemble::response_cache::build_response_cache;
use crate::assemble::site_places::site_places;
use crate::assemble::upstreams::{CoreGroups, GroupPlan, GroupSources, UpstreamRoute};

/// A configuration and the state of its features that is shared by all cores.
pub(crate) struct ServerPlan {
    pub(crate) config: Config,
    /// The matcher over all sites and routes.
    pub(crate) routes: Arc<Routes>,
    /// TLS settings for clients; `None` if no site uses TLS. Replaced where nothing but contents of files has changed.
    tls: Mutex<Option<Arc<TlsPlan>>>,
    /// Port to which requests without TLS are redirected.
    pub(crate) https_port: Option<u16>,
    pub(crate) groups: GroupPlan,
    /// The response cache; `None` if no route uses one.
    pub(crate) cache: Option<Arc<Cache>>,
    /// The compression dictionaries, by the guards of their routes; empty if no route provides any.
    pub(crate) dictionaries: DictionaryStores,
    purge_tokens: HashMap<PathBuf, PurgeToken>,
    /// Error pages that are in memory instead of on disk.
    pages_in_memory: MemoryFiles,
    /// Cache key components of each site's routes.
    cache_locations: Vec<RouteSuffixes>,
    /// Access rules of the control listener.
    pub(crate) control_access: Arc<ControlAccess>,
    pub(crate) limits: LimitPlan,
    pub(crate) sharing: Option<Arc<Sharing>>,
    /// Store of the set of servers.
    pub(crate) cluster: Option<ClusterStore>,
    /// Other servers of the set that share responses.
    pub(crate) peers: PeerPlan,
    /// Servers and sites that were found while the server runs.
    pub(crate) discovery: UsedDiscovery,
    auth: AuthPlan,
    pub(crate) releases: ReleasePlan,
    pub(crate) queues: QueuePlan,
    /// Destination of the requests' spans.
    pub(crate) traces: Option<TraceExport>,
    /// Destination and interval of pushed metrics.
    pub(crate) push: Option<PushOptions>,
    guards: GuardPlan,
    /// Database that maps addresses to countries.
    geo: Option<Arc<CountryDatabase>>,
    /// Limits of streams, in the order of the configuration.
    streams: Vec<StreamLimits>,
    /// TLS of streams that decrypt it, in the same order.
    stream_tls: Vec<Option<TlsAcceptor>>,
    /// Destinations of access logs, once they are open.
    pub(crate) sinks: LogSinks,
    /// State that the next configuration may take over.
    kept: KeptState,
}

impl ServerPlan {
    /// Prepares a configuration; `previous` is the one that it replaces, if any.
    ///
    /// # Errors
    /// A directory, an error page or a certificate that cannot be opened, by name.
    pub(crate) fn new(
        config: Config,
        previous: Option<&ServerPlan>,
        cores: usize,
        hosting: Option<&Hosting>,
    ) -> io::Result<ServerPlan> {
        let spill = match hosting {
            Some(hosting) => hosting.spill().clone(),
            None => spill_store(&config)?,
        };
        let files = hosting.map(Hosting::files).unwrap_or_default();
        let mut kept = previous.map(|plan| plan.kept.successor()).unwrap_or_default();
        let tls = TlsPlan::new(&config.certificate_settings(), &mut kept, &files)?;
        // A port chosen by the kernel is kept.
        let https_port = match https_port(config.listen.iter()) {
            Some(0) => previous.and_then(|plan| plan.https_port),
            port => port,
        };
        let cache = build_response_cache(&config, &mut kept, hosting)?;
        let budget = hosting.map(Hosting::memory).cloned().unwrap_or_default();
        let notices = hosting.map(Hosting::notices);
        let dictionaries = dictionaries::build_stores(&config, &mut kept, &budget);
        let limits = LimitPlan::new(&config, &mut kept, &budget);
        let sharing = shared_limits::open_sharing(&config, &mut kept, &files, notices)?;
        let site_auths: Vec<Vec<&Auth>> = config.sites.iter().map(|site| site.auths().collect()).collect();
        let resources = AuthResources { files: &files, memory: &budget, notices };
        let auth = AuthPlan::new(&site_auths, &mut kept, resources, cores)?;
        let releases = ReleasePlan::new(&config, &mut kept);
        let queues = QueuePlan::new(&config, &mut kept, &releases.counters);
        let tracing = &config.tracing;
        let metrics = &config.metrics;
        let headers = files.headers("`[tracing]`", &tracing.headers, tracing.headers_file.as_ref())?;
        let traces = notices.map(|notices| TraceExport::new(&config.tracing, headers, &mut kept, notices));
        let headers = files.headers("`[metrics]`", &metrics.headers, metrics.headers_file.as_ref())?;
        let push = PushOptions::new(metrics, headers);
        let traces = traces.transpose()?.flatten();
        let guards = GuardPlan::new(&config, &mut kept, &budget, &releases.counters);
        let geo = CountryDatabase::of(config.geo.as_ref(), &mut kept, &files, notices)?;
        let programs = config.proxies().filter_map(|proxy| proxy.cgi.as_ref());
        kept.share((), CgiPrograms::default).apply(programs, notices)?;
        let streams = StreamLimits::of(&config, &mut kept, &budget);
        let of_streams = config.streams.iter().map(|stream| (stream.label(), stream.tls.as_ref()));
        let stream_tls = stream_acceptors(of_streams, &config.tls, &mut kept, &files)?;
        let cluster = crate::assemble::cluster::open(config.cluster.as_ref(), &mut kept, &files, notices)?;
        let mut peers = PeerPlan::new(config.cluster.as_ref(), cluster.as_ref())?;
        let discovery = UsedDiscovery::open(&config, &mut kept, notices)?;
        let groups_before = previous.map(|plan| (&plan.config, &plan.groups));
        let sources = GroupSources { files: &files, found: &discovery.found };
        let set = cluster.as_ref().and_then(|store| Some((store.peer_options()?, store.name(), &mut peers)));
        let groups = GroupPlan::new(&config, groups_before, &spill, sources, set)?;
        let routes_before = previous.map(|plan| (&plan.config, &*plan.routes));
        let routes = Arc::new(Routes::compile_after(&config, routes_before));
        kept.release_unused();
        let purge_tokens = purge_tokens(config.purge_token_files(), &files)?;
        let pages_in_memory =
            config.error_page_files().filter_map(|path| Some((path.clone(), files.in_memory(path)?)));
        let pages_in_memory = pages_in_memory.collect();
        let control_access = Arc::new(ControlAccess::new(&config, &files)?);
        let cache_locations = config.sites.iter().map(|site| RouteSuffixes::new(site)).collect();
        let plan = ServerPlan {
            cache_locations,
            groups,
            tls: Mutex::new(tls.map(Arc::new)),
            https_port,
            config,
            routes,
            cache,
            dictionaries,
            purge_tokens,
            pages_in_memory,
            control_access,
            geo,
            limits,
            sharing,
            cluster,
            peers,
            discovery,
            auth,
            releases,
            queues,
            traces,
            push,
            guards,
            streams,
            stream_tls,
            sinks: LogSinks::default(),
            kept,
        };
        for (name, app) in &plan.config.apps {
            match hosting {
                Some(hosting) => hosting.check(name, app)?,
                None => _ = workers::options(name, app)?,
            }
        }
        // Each core builds its table later; errors can still be returned here.
        build_route_table(&plan, None, cores, previous.map(|plan| (plan, None)))?;
        plan.queues.apply();
        plan.cluster.iter().for_each(|cluster| SharedPurges::follow(cluster, plan.cache.clone()));
        plan.sharing.iter().for_each(|sharing| sharing.add(plan.limits.shared_tables()));
        Ok(plan)
    }

    /// Returns the TLS settings for clients; `None` if no site uses TLS.
    pub(crate) fn tls(&self) -> Option<Arc<TlsPlan>> {
        self.tls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the files of the TLS settings again.
    ///
    /// # Errors
    /// A file cannot be read or is invalid.
    pub(crate) fn reread_tls(&self, files: &ConfigFiles) -> io::Result<Option<Arc<TlsPlan>>> {
        let tls = TlsPlan::new(&self.config.certificate_settings(), &mut self.kept.successor(), files)?;
        Ok(tls.map(Arc::new))
    }

    /// Replaces the TLS settings by those of files that were read again.
    pub(crate) fn replace_tls(&self, tls: Option<Arc<TlsPlan>>) {
        *self.tls.lock().unwrap_or_else(PoisonError::into_inner) = tls;
    }

    /// Applies TLS settings: those of this plan, or read again.
    ///
    /// # Errors
    /// Authorities or revocation lists are invalid.
    pub(crate) fn activate_tls(&self, tls: Option<&TlsPlan>, acceptor: &TlsAcceptor) -> io::Result<()> {
        // That of the listener for other servers of the set stands behind those of the sites.
        let (routes, of_peers) = (self.routes.clone(), self.config.sites.len());
        let find = move |name: &str, key| match key {
            PEER_LISTENER_KEY => Some(of_peers),
            key => routes.site_of_name(name, key),
        };
        TlsPlan::activate(tls, find, self.peers.tls.clone().map(|tls| (of_peers, tls)), acceptor)
    }

    /// Returns the places of the sites of a plan before, whose assembled parts can be taken over, by the sites of this one.
    fn shared_sites(&self, before: &ServerPlan) -> Vec<Option<usize>> {
        if !self.config.has_base_of(&before.config) {
            return Vec::new();
        }
        let place = |(index, at): (usize, Option<usize>)| {
            let (own, other) = (self.groups.of_site(index)?, before.groups.of_site(at?)?);
            (own.is_shareable && Arc::ptr_eq(own, other)).then_some(at).flatten()
        };
        site_places(&self.config, &before.config).into_iter().enumerate().map(place).collect()
    }

    /// Whether nothing else was found, and the servers of the set are the same, since the plan was made.
    pub(crate) fn is_current(&self) -> bool {
        let has_same_peers = |cluster: &ClusterStore| cluster.peers() == self.peers.servers;
        self.discovery.is_current() && self.cluster.as_ref().is_none_or(has_same_peers)
    }
}

/// Returns the directory of temporary files.
pub(crate) fn temporary_folder(config: &Config) -> PathBuf {
    let usual = || std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from);
    config.temp_path.clone().unwrap_or_else(usual)
}

/// Returns the store of temporary files. A directory named in the configuration must be writable; if the
/// default one is not, the server works without temporary files and logs this.
pub(crate) fn spill_store(config: &Config) -> io::Result<Arc<SpillStore>> {
    let folder = temporary_folder(config);
    let store = SpillStore::new(&folder, config.limits.spill_bytes_max);
    if config.temp_path.is_some() && config.limits.spill_bytes_max > 0 {
        store.create().map_err(|error| {
            error
                .attempting(format_args!("cannot create a file in {} (`temp_path`)", folder.display()))
                .about(&folder)
        })?;
    }
    Ok(store)
}

/// Context for building a core's table.
#[derive(Clone, Copy)]
pub(crate) struct CoreContext<'a> {
    pub(crate) core: &'a Core,
    pub(crate) handles: &'a AppHandles,
    pub(crate) notices: &'a ErrorLog,
    /// The core's instances of the active upstream groups.
    pub(crate) groups: &'a RefCell<Rc<CoreGroups>>,
    pub(crate) metrics: &'a CoreMetrics,
}

/// The plan that another one replaces, and the core's table of it, whose parts are taken over.
pub(crate) type TableBefore<'p> = Option<(&'p ServerPlan, Option<&'p RouteTable>)>;

/// Builds the table of one core. Without a core the configuration is only checked and the table has no sites,
/// because their files may need more descriptors than available.
///
/// # Errors
/// A directory or an error page that cannot be opened, by name.
pub(crate) fn build_route_table(
    plan: &ServerPlan,
    core_context: Option<CoreContext<'_>>,
    cores: usize,
    before: TableBefore<'_>,
) -> io::Result<RouteTable> {
    let config = &plan.config;
    let shared = before.map(|(before, _)| plan.shared_sites(before)).unwrap_or_default();
    let known = before.and_then(|(_, table)| table);
    let tls = plan.tls();
    let mut sites = Vec::new();
    let mut pages = Vec::new();
    let mut edits = Vec::new();
    let mut empty_segments = Vec::new();
    let mut https = Vec::new();
    let mut scopes: HashMap<&str, u64> = HashMap::new();
    let mut guards = Vec::new();
    let maps = MapValues::new(config, plan.geo.as_ref());
    let server_pages = SitePages::read(&config.settings(None, None).error_pages, &plan.pages_in_memory);
    let server_pages = server_pages.map_err(|error| add_config_place("error_pages", "file", None, error))?;
    let groups = core_context.map(|core_context| build_groups(plan, core_context)).unwrap_or_default();
    if let Some(core_context) = core_context {
        core_context.handles.release_stopped();
    }
    let peers = core_context.and_then(|_| cache_peers(plan, &groups)).map(Rc::new);
    for (site_index, site) in config.sites.iter().enumerate() {
        let redirects = || site.tls.is_some() && config.settings(Some(site_index), None).redirect_https;
        let scope = site.tls.as_ref().and_then(|tls| tls.scope.as_deref()).map_or(0, |name| {
            let next = scopes.len() as u64 + 1;
            *scopes.entry(name).or_insert(next)
        });
        let of_https = || SiteHttps {
            scope,
            redirect_port: redirects().then(|| redirect_port(plan, site)).flatten(),
            policy: tls.as_ref().map_or(0, |tls| tls.policy(site_index)),
            subject: site
                .tls
                .as_ref()
                .and_then(|tls| tls.client.as_ref())
                .and_then(|client| client.subject.clone()),
        };
        match (shared.get(site_index).copied().flatten(), core_context, known) {
            // It was checked with the plan before.
            (Some(_), None, _) => {
                pages.push(Rc::default());
                continue;
            }
            (Some(at), Some(_), Some(known)) => {
                pages.push(known.pages[at].clone());
                guards.push(known.guards[at].clone());
                sites.push(known.sites[at].clone());
                edits.push(known.edits[at].clone());
                empty_segments.push(known.empty_segments[at]);
                https.push(of_https());
                continue;
            }
            _ => {}
        }
        let route = |route| {
            let id = RouteId { site: site_index, route };
            self::build_route(plan, core_context, &groups, peers.as_ref(), id, cores)
        };
        let routes = (0..site.routes.len()).map(route);
        let mut routes = routes.collect::<io::Result<Vec<_>>>()?;
        for (route, of) in routes.iter_mut().zip(&site.routes) {
            route.path_rules = PathRules::new(of, maps.as_ref());
            if let Some(rules) = &route.path_rules {
                route.steps.add(RouteStep::Rewrite(rules.clone()));
            }
        }
        number_guards(config, site_index, &mut routes);
        let guard = plan.guards.site_guard(config, site_index, &plan.releases.counters);
        let guard =
            guard.map_err(|error| add_config_place("maintenance", "site", site.line.as_ref(), error))?;
        let internals = build_internal_routes(plan, core_context, site_index, cores, &mut routes)?;
        for route in &mut routes {
            if let Some(guard) = &guard {
                route.steps.add(RouteStep::Guard(guard.clone()));
            }
            if let Some(internals) = internals.as_ref().filter(|_| route.handler.is_backend()) {
                route.steps.add(RouteStep::NamedFiles(internals.clone()));
            }
        }
        let own =
            SitePages::read(&config.settings(Some(site_index), None).error_pages, &plan.pages_in_memory);
        pages.push(Rc::new(
            own.map_err(|error| add_config_place("error_pages", "site", site.line.as_ref(), error))?,
        ));
        if core_context.is_none() {
            continue;
        }
        guards.push(guard);
        let settings = config.settings(Some(site_index), None);
        sites.push(Rc::new(link_branches(&site.routes, routes)));
        edits.push(RouteEdits::of_site(&settings.response_headers, site));
        empty_segments.push(self::convert_merge_slashes(settings.merge_slashes));
        https.push(of_https());
    }
    pages.push(Rc::new(server_pages));
    edits.push(RouteEdits::of(&config.settings(None, None).response_headers));
    empty_segments.push(self::convert_merge_slashes(config.merge_slashes));
    let introducers = trusted_proxies(&config.trusted_proxies);
    let of_streams = plan.groups.stream_groups(&groups);
    let streams = |of: CoreContext<'_>| {
        StreamRoutes::new(config, &of_streams, &plan.streams, &plan.stream_tls, of.metrics)
    };
    let request_logs = config.request_logs();
    Ok(RouteTable {
        uses_country: plan.routes.uses_country(),
        routes: plan.routes.clone(),
        sites,
        empty_segments,
        pages,
        edits,
        https,
        guards,
        trusted_proxies: introducers,
        maps,
        ids: IdRules::new(config.request_ids, &config.tracing),
        costs: CostPlan::new(&config.server_timing, &request_logs),
        traces: plan.traces.clone(),
        streams: core_context.map(streams).unwrap_or_default(),
        access: Cell::new(core_context.and_then(|_| AccessLogs::new(&request_logs, &plan.sinks))),
    })
}

/// Returns the port to which requests of a site without TLS are redirected.
fn redirect_port(plan: &ServerPlan, site: &config::Site) -> Option<u16> {
    if site.listen.is_empty() {
        plan.https_port
    } else {
        https_port(plan.config.site_listeners(site)).filter(|port| *port != 0)
    }
}

/// Converts the value of `merge_slashes`.
pub(crate) fn convert_merge_slashes(merge_slashes: bool) -> EmptySegments {
    if merge_slashes { EmptySegments::Merge } else { EmptySegments::Keep }
}

/// Returns the servers of the set that share responses; `None` if there are no others.
fn cache_peers(plan: &ServerPlan, groups: &CoreGroups) -> Option<CachePeers> {
    let PeerPlan { servers, groups: of_servers, options, .. } = &plan.peers;
    if !of_servers.iter().any(Option::is_some) {
        return None;
    }
    let proxy = |group: &Arc<CurrentGroup>| groups.of(group).map(|group| group.proxy(options, None));
    let each = servers.iter().zip(of_servers);
    Some(CachePeers::new(each.map(|(peer, group)| (peer.name.clone(), group.as_ref().and_then(proxy)))))
}

/// Returns this core's instances of the upstream groups; existing ones are kept.
fn build_groups(plan: &ServerPlan, core_context: CoreContext<'_>) -> Rc<CoreGroups> {
    let group = |current: &Arc<CurrentGroup>| {
        let notices = core_context.notices.clone();
        let report = Box::new(move |news: &UpstreamEvent<'_>| notices.log_upstream_event(news));
        CoreGroup::new(core_context.core, current, report)
    };
    let groups = Rc::new(core_context.groups.borrow().next(&plan.groups.all, group));
    core_context.groups.replace(groups.clone());
    groups
}

fn build_route(
    plan: &ServerPlan,
    core_context: Option<CoreContext<'_>>,
    groups: &CoreGroups,
    peers: Option<&Rc<CachePeers>>,
    id: RouteId,
    cores: usize,
) -> io::Result<Route> {
    let config = &plan.config;
    let (site, route) = (&config.sites[id.site], config.route(id));
    let settings = config.route_settings(id);
    let mut strip = Vec::new();
    let not_found =
        || Handler::Respond { status: Status::NOT_FOUND, fields: Fields::new(), body: Vec::new() };
    let reach = |way: &UpstreamRoute| Some(groups.of(&way.group)?.proxy(&way.options, way.spill.clone()));
    let proxy = || plan.groups.upstream_route(id).and_then(reach).map_or_else(not_found, Handler::Proxy);
    let asked = |auth: &Auth| plan.groups.auth_route(auth).and_then(reach);
    let app = |app: &apps::Mounted| {
        let prefix = stripped_prefix(route, &app.strip_prefix);
        let target = app.target.clone().unwrap_or_default().into_bytes();
        let handle = core_context.and_then(|core_context| core_context.handles.of(&app.name));
        handle.map_or_else(not_found, |app| Handler::App(MountedApp { app, prefix, target }))
    };
    let open_files = |files: &FileOptions, has_scripts: bool| {
        open_files(plan, core_context, id, files, cores, has_scripts)
    };
    let php_app = php::php_app(config, route);
    let handler = match &route.action {
        Action::NotFound => not_found(),
        Action::Proxy(_) => proxy(),
        Action::Files(_) | Action::App(_) if php_app.is_some() && !route.internal => {
            let (mounted, php) = php_app.expect("the guard has seen it");
            strip = php::prefix_of(route, mounted, stripped_prefix);
            let files = open_files(&php::files_of(route, php), true)?;
            handler_with_app(php, files, app(mounted), &strip)
        }
        Action::App(mounted) => app(mounted),
        // Files of internal routes are opened separately, for `X-Accel-Redirect` and the like.
        Action::Files(_) if route.internal => not_found(),
        Action::Files(files) => {
            strip = stripped_prefix(route, &files.strip_prefix);
            let php = php::script_server(route);
            let files = open_files(files, php.is_some())?;
            match php.map(|php| (php, proxy())) {
                Some((php, Handler::Proxy(proxy))) => {
                    Handler::Php(Box::new(PhpRoute::new(php, files, proxy, &strip)))
                }
                _ => Handler::Files(files),
            }
        }
        Action::Redirect(redirect) => {
            Handler::Redirect { to: redirect.to.clone(), status: status(redirect.status) }
        }
        Action::Respond(respond) => fixed_response(respond),
        // Requests are served by other routes: a branch, or the route found after the rewrite.
        Action::Split(_) | Action::RewriteOnly => not_found(),
    };
    let has_scripts = php_app.is_some() || php::script_server(route).is_some();
    let mut steps = build_steps(plan, core_context, id, peers, asked);
    if let Some(release) = build_release(&plan.releases, config, &plan.groups, groups, id) {
        steps.add(RouteStep::Release(release));
    }
    if let Some(server) = &route.error_server {
        let way = plan.groups.upstream_route(RouteId { site: id.site, route: server.route });
        let server = RouteErrorServer::new(server, way.and_then(reach));
        steps.add(RouteStep::ErrorServer(Rc::new(server)));
    }
    let otherwise = route.otherwise.as_ref().filter(|_| !has_scripts).map(|action| match action {
        Action::App(mounted) => app(mounted),
        _ => proxy(),
    });
    let handler = match (handler, otherwise) {
        (Handler::Files(files), Some(otherwise)) => {
            steps.add(RouteStep::Files(files));
            otherwise
        }
        (handler, _) => handler,
    };
    let is_counted = !matches!(
        &route.part_of,
        Some(PartOf { kind: HiddenRouteKind::Mirror | HiddenRouteKind::ErrorServer, .. })
    );
    Ok(Route {
        steps,
        handler,
        path_rules: None,
        paths: RoutePaths {
            strip: PathPrefix(strip),
            prefix: route_prefix(route),
            keeps_encoded_slashes: settings.encoded_slashes == EncodedSlashes::Keep,
        },
        limits: RouteLimits {
            compression: settings.compress.map(|compress| Rc::new(compress.clone())),
            body_bytes_max: settings.body_bytes_max.unwrap_or(http::body::NO_LIMIT),
            body_timeout: settings.body_timeout.into(),
            write_timeout: settings.write_timeout.into(),
        },
        edits: RouteEdits::of_site(&settings.response_headers, site),
        label: core_context
            .filter(|_| is_counted)
            .map_or_else(RouteLabel::default, |of| of.metrics.label(&RouteLabels::of(site, route))),
        is_unlogged: !route.log,
        guards: RouteGuardSet::default(),
        programs: ProgramFolder::of(route),
        branches: Vec::new(),
    })
}

/// Returns the steps of a route that follow from its own settings. `proxy` makes the proxy for the server of
/// an `auth` directive.
fn build_steps(
    plan: &ServerPlan,
    core_context: Option<CoreContext<'_>>,
    id: RouteId,
    peers: Option<&Rc<CachePeers>>,
    proxy: impl FnOnce(&Auth) -> Option<Proxy>,
) -> RouteSteps {
    let config = &plan.config;
    let route = config.route(id);
    let settings = config.route_settings(id);
    let notices = core_context.map(|of| of.notices);
    let mut steps = RouteSteps::default();
    if let Some(cors) = settings.cors {
        let cors = Rc::new(RouteCors(cors.clone()));
        steps.add(RouteStep::CorsFields(cors.clone()));
        steps.add(RouteStep::Cors(cors));
    }
    let access = ClientAccess::of_route(&settings);
    if !access.admits_all() {
        steps.add(RouteStep::Access(RouteAccess(access)));
    }
    if let Some(fields_max) = settings.headers_max {
        steps.add(RouteStep::HeaderLimit(RouteHeaderLimit { fields_max: fields_max as usize }));
    }
    let cache = build_route_cache(plan, id, core_context, peers);
    let owner = route.part_of.as_ref().map_or(id.route, |part| part.route);
    if let Some(rates) = plan.limits.of(id.site, owner, notices) {
        let counted = if cache.is_some() { CountedRequests::Requests } else { CountedRequests::All };
        steps.add(RouteStep::Limit(Rc::new(rates), counted));
    }
    let core = core_context.map(|of| of.core);
    if let Some(auth) = plan.auth.of_route(id.site, settings.auth, proxy, core, notices) {
        steps.add(RouteStep::Auth(auth));
    }
    if let Some(replacement) = RouteReplacement::new(settings.replace) {
        steps.add(RouteStep::Replace(replacement));
    }
    // A fixed response is intentional, so it is not replaced by an error page.
    if settings.intercept_errors && !matches!(route.action, Action::Respond(_)) {
        steps.add(RouteStep::InterceptErrors);
    }
    if let Some(limit) = settings.bandwidth {
        steps.add(RouteStep::Bandwidth(limit.clone()));
    }
    if let Some(cache) = cache {
        steps.add(RouteStep::Cache(cache));
    }
    if let Some(queue) = plan.queues.of(config, id, notices) {
        steps.add(RouteStep::Queue(queue));
    }
    steps
}

/// Returns a handler for files with scripts that an application runs; for files alone if the application
/// could not be started.
fn handler_with_app(php: &apps::PhpApp, files: Box<Files>, app: Handler, strip: &[u8]) -> Handler {
    match app {
        Handler::App(app) => Handler::Php(Box::new(PhpRoute::of_app(php, files, app, strip))),
        _ => Handler::Files(files),
    }
}

/// Opens the files of a route.
fn open_files(
    plan: &ServerPlan,
    core_context: Option<CoreContext<'_>>,
    id: RouteId,
    files: &FileOptions,
    cores: usize,
    has_scripts: bool,
) -> io::Result<Box<Files>> {
    let config = &plan.config;
    let notices = core_context.map(|of| of.notices);
    let mut options = build_route_files(config, id, files, cores, notices);
    options.dictionaries = dictionaries::route_transport(config, &plan.dictionaries, id);
    if has_scripts {
        php::configure_for_scripts(&mut options)?;
    }
    let line = config.route(id).line.as_ref();
    Files::new(options).map(Box::new).map_err(|error| add_config_place("files", "route", line, error))
}

/// Builds a site's internal routes and moves the guards of `routes` to them. Clients get 404 for these,
/// whatever steps the routes ask for; only a limit of the site applies, which counts requests for all its routes.
fn build_internal_routes(
    plan: &ServerPlan,
    core_context: Option<CoreContext<'_>>,
    site: usize,
    cores: usize,
    routes: &mut [Route],
) -> io::Result<SiteInternals> {
    let config = &plan.config;
    let notices = core_context.map(|of| of.notices);
    InternalRoutes::of_site(&config.sites[site], |index, files| {
        let id = RouteId { site, route: index };
        let route = config.route(id);
        let opened = Files::new(build_route_files(config, id, files, cores, notices));
        let opened =
            opened.map_err(|error| add_config_place("files", "route", route.line.as_ref(), error))?;
        let mut steps = std::mem::take(&mut routes[index].steps);
        if let Some(rates) = plan.limits.of_site(site, notices) {
            routes[index].steps.add(RouteStep::Limit(Rc::new(rates), CountedRequests::All));
        }
        let guards = RouteGuards {
            client_access: match steps.take(StepKind::Access) {
                Some(RouteStep::Access(RouteAccess(access))) => access,
                _ => ClientAccess::default(),
            },
            rates: plan.limits.of_route(site, index, notices),
            auth: match steps.take(StepKind::Auth) {
                Some(RouteStep::Auth(auth)) => Some(auth),
                _ => None,
            },
        };
        Ok((PathPrefix(stripped_prefix(route, &files.strip_prefix)), opened, guards))
    })
}

/// Returns the cache settings of a route.
fn build_route_cache(
    plan: &ServerPlan,
    id: RouteId,
    core_context: Option<CoreContext<'_>>,
    peers: Option<&Rc<CachePeers>>,
) -> Option<RouteCache> {
    let config = &plan.config;
    let settings = config.route_settings(id);
    let policy = settings.cache?;
    let place = plan.cache_locations.get(id.site)?.of(id.route);
    let access = |purge: &CachePurge| PurgeAccess {
        token: match (&purge.token, &purge.token_file) {
            (Some(token), _) => Some(PurgeToken::new(token.as_bytes())),
            (None, Some(file)) => plan.purge_tokens.get(file).cloned(),
            (None, None) => None,
        },
        from: (!purge.from.is_empty()).then(|| peer_set(&purge.from)),
        notices: core_context.map(|core_context| core_context.notices.clone()),
        cluster: plan.cluster.clone(),
    };
    let purge = policy.purge.as_ref().map(access).map(Rc::new);
    // Stored content is modified for each client, so it cannot be stored compressed.
    let is_edited = !settings.replace.is_empty();
    let dictionaries = dictionaries::route_transport(config, &plan.dictionaries, id);
    let route = config.route(id);
    // Another server runs the handler alone, without the steps of the route.
    let shares = matches!(&route.action, Action::Proxy(proxy) if !proxy.is_php) && route.part_of.is_none();
    Some(RouteCache {
        cache: plan.cache.clone()?,
        rules: Rc::new(CacheRules::new(policy, place).with_written_fields(config.route(id).proxy())),
        compresses: settings.compress.is_some() && !is_edited,
        dictionaries: dictionaries.filter(|_| !is_edited).map(Rc::new),
        purge,
        peers: peers
            .filter(|_| shares)
            .map(|set| RoutePeers { set: set.clone(), route: (id.site, id.route) }),
        asked_key: None,
    })
}
