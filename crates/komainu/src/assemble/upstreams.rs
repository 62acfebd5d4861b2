//! Converts `proxy` actions to options of upstream groups, and builds the groups of a configuration.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use ::cluster::PeerOptions;
use ::discovery::Found;
use admission::auth::{Auth, AuthKind};
use config::matcher::RouteId;
use config::{Action, Config, EncodedSlashes};
use failure::IoFailure;
use hosting::cgi_programs;
use net::{ClientCertificates, ServerCertificate, SpillQuota, SpillStore};
use process::config_files::ConfigFiles;
use proxy::directives::{ProxyTls, Upstream};
use proxy::options::{
    Host, KeepAlive, Origin, PathMap, ProxyOptions, Tls, UpstreamAddress, UpstreamProtocol, UpstreamServer,
};
use proxy::origin::ProxyHttp;
use proxy::{
    CoreGroup, CurrentGroup, Group, GroupOptions, GroupReload, GroupShared, KnownServers, RouteOptions,
};
use shapes::prefix::StripPrefix;
use telemetry::metrics::RouteLabels;

use crate::assemble::cluster::PeerPlan;
use crate::assemble::discovery::discovered_name;
use crate::assemble::site_places::site_places;

/// Highest weight of a server.
const WEIGHT_MAX: u32 = 1000;

/// The upstream groups of a configuration, shared by all cores, and their use by routes.
#[derive(Default)]
pub(crate) struct GroupPlan {
    pub(crate) all: Vec<Arc<CurrentGroup>>,
    /// Names of the groups: from the configuration, or derived from the route that owns the group.
    names: Vec<String>,
    /// Last number used for each name.
    last_numbers: HashMap<String, usize>,
    /// Groups that the configuration names.
    named: HashMap<String, NamedGroup>,
    /// Upstream routes by site.
    sites: Vec<Arc<SiteUpstreams>>,
    /// Group of each stream.
    streams: Vec<Arc<CurrentGroup>>,
    /// Servers that answer authorization requests.
    auth_servers: Vec<(Auth, UpstreamRoute)>,
    /// Servers of all groups, shared with the plans that take over from each other.
    known: Arc<Mutex<KnownServers>>,
    /// Groups that get other servers when the configuration is put in force.
    replacements: Vec<(Arc<CurrentGroup>, Arc<GroupShared>)>,
    /// Groups whose servers were replaced alone since, as the configuration would have them.
    changed: Mutex<HashMap<String, Arc<ProxyOptions>>>,
}

/// A group that the configuration names.
#[derive(Clone)]
struct NamedGroup {
    /// The group as the configuration has it.
    proxy: Arc<ProxyOptions>,
    current: Arc<CurrentGroup>,
}

/// The upstream routes of a site, by route.
#[derive(Default)]
pub(crate) struct SiteUpstreams {
    routes: Vec<Option<UpstreamRoute>>,
    /// Whether what is assembled of the site depends on nothing but the site and the groups that it names, so that it can be
    /// taken over as it is.
    pub(crate) is_shareable: bool,
}

/// Access of a route to its servers.
pub(crate) struct UpstreamRoute {
    pub(crate) group: Arc<CurrentGroup>,
    pub(crate) options: Arc<RouteOptions>,
    /// Quota of temporary files for the route's responses.
    pub(crate) spill: Option<Arc<SpillQuota>>,
}

/// A configuration and its groups, which the next one takes over.
pub(crate) type GroupsBefore<'p> = Option<(&'p Config, &'p GroupPlan)>;

/// Builder of the groups of a configuration.
struct GroupBuilder<'p> {
    plan: GroupPlan,
    /// What is joined to the same base (`Config::join`) as before, so that parts of it are the same.
    joined: GroupsBefore<'p>,
    /// Groups of the configuration before by their state.
    before: HashMap<*const GroupShared, Arc<CurrentGroup>>,
    reload: GroupReload,
    spill: &'p Arc<SpillStore>,
    sources: GroupSources<'p>,
    /// Whether servers may be at addresses of this machine and its links.
    allows_local: bool,
}

impl GroupPlan {
    /// Creates the groups, without resolving or connecting yet. Unchanged groups are kept, so that health, limits,
    /// queue, kept connections and TLS sessions survive a reload. In a changed group, servers that it already had keep
    /// their health. `set` are the servers of the set, with the name of this one.
    ///
    /// # Errors
    /// A certificate that cannot be read, by name.
    pub(crate) fn new(
        config: &Config,
        before: GroupsBefore<'_>,
        spill: &Arc<SpillStore>,
        sources: GroupSources<'_>,
        set: Option<(&PeerOptions, &str, &mut PeerPlan)>,
    ) -> io::Result<GroupPlan> {
        let joined = before.filter(|(before, _)| config.has_base_of(before));
        let all = before.map(|(_, groups)| groups.all.as_slice()).unwrap_or_default();
        let mut plan = GroupPlan::default();
        let (mut reload, mut by_state) = (GroupReload::default(), HashMap::new());
        match joined {
            Some((_, groups)) => plan.known = groups.known.clone(),
            None => {
                let states: Vec<Arc<GroupShared>> = all.iter().map(|group| group.get()).collect();
                reload = GroupReload::new(&states);
                by_state = states.iter().map(Arc::as_ptr).zip(all.iter().cloned()).collect();
            }
        }
        let mut builder = GroupBuilder {
            plan,
            joined,
            before: by_state,
            reload,
            spill,
            sources,
            allows_local: config.local_upstreams,
        };
        builder.add_all(config)?;
        if let Some((options, own, peers)) = set {
            builder.add_peers(options, own, peers)?;
        }
        let GroupBuilder { mut plan, reload, .. } = builder;
        match joined {
            None => plan.known = Arc::new(Mutex::new(reload.finish())),
            Some((_, groups)) => {
                let kept: HashSet<*const CurrentGroup> = plan.all.iter().map(Arc::as_ptr).collect();
                let mut known = plan.known.lock().unwrap_or_else(PoisonError::into_inner);
                let gone = groups.all.iter().filter(|group| !kept.contains(&Arc::as_ptr(group)));
                gone.for_each(|group| known.remove(&group.get()));
                drop(known);
            }
        }
        Ok(plan)
    }

    /// Returns all groups with their names.
    pub(crate) fn named_groups(&self) -> Vec<(String, Arc<GroupShared>)> {
        self.names.iter().cloned().zip(self.states()).collect()
    }

    /// Returns all groups.
    pub(crate) fn states(&self) -> Vec<Arc<GroupShared>> {
        self.all.iter().map(|group| group.get()).collect()
    }

    /// Gives the groups their new servers, when the configuration is put in force.
    pub(crate) fn apply(&self) {
        self.replacements.iter().for_each(|(group, next)| group.replace(next.clone()));
    }

    /// Gives a named group the servers of `proxy`, which differs from the group in the configuration in these alone. Returns whether
    /// there is such a group.
    ///
    /// # Errors
    /// A certificate that cannot be read, by name.
    pub(crate) fn replace_servers(
        &self,
        name: &str,
        proxy: &Arc<ProxyOptions>,
        sources: GroupSources<'_>,
    ) -> io::Result<bool> {
        let Some(group) = self.named.get(name) else { return Ok(false) };
        let before = group.current.get();
        let options =
            GroupOptions { allows_local: before.options().allows_local, ..sources.group_options(proxy)? };
        if *before.options() != options {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            let next = known.replace(&before, options).map_err(io::Error::other)?;
            group.current.replace(next);
        }
        let mut changed = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        changed.insert(name.to_owned(), proxy.clone());
        Ok(true)
    }

    /// Returns a configuration with the servers that [`GroupPlan::replace_servers`] has put in force since.
    pub(crate) fn with_changes(&self, mut config: Config) -> Config {
        let changed = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, proxy) in &mut config.upstreams {
            if let Some(now) = changed.get(name) {
                *proxy = now.clone();
            }
        }
        config
    }

    /// Returns the upstream routes of a site.
    pub(crate) fn of_site(&self, site: usize) -> Option<&Arc<SiteUpstreams>> {
        self.sites.get(site)
    }

    /// Returns the upstream route of a route; `None` if it does not proxy.
    pub(crate) fn upstream_route(&self, RouteId { site, route }: RouteId) -> Option<&UpstreamRoute> {
        self.sites.get(site)?.routes.get(route)?.as_ref()
    }

    /// Returns the upstream route to the server that an `auth` queries.
    pub(crate) fn auth_route(&self, auth: &Auth) -> Option<&UpstreamRoute> {
        self.auth_servers.iter().find(|(of, _)| of == auth).map(|(_, way)| way)
    }

    /// Selects the groups of streams from a core's groups, in the order of the configuration.
    pub(crate) fn stream_groups(&self, groups: &CoreGroups) -> Vec<Group> {
        self.streams.iter().filter_map(|group| groups.of(group)).map(CoreGroup::group).collect()
    }

    /// Returns the name, or `name#2` and so on if it is already in use.
    fn unused_name(&mut self, name: String) -> String {
        let Some(mut number) = self.last_numbers.get(&name).copied() else {
            self.last_numbers.insert(name.clone(), 1);
            return name;
        };
        let unused = loop {
            number += 1;
            let numbered = format!("{name}#{number}");
            if !self.last_numbers.contains_key(&numbered) {
                break numbered;
            }
        };
        self.last_numbers.extend([(name, number), (unused.clone(), 1)]);
        unused
    }
}

impl GroupBuilder<'_> {
    fn add_all(&mut self, config: &Config) -> io::Result<()> {
        for (name, proxy) in &config.upstreams {
            let current = match self.known_group(name, proxy)? {
                Some(current) => {
                    self.add(name.clone(), current.clone());
                    current
                }
                None => self.add_group(name.clone(), self.sources.group_options(proxy)?)?,
            };
            self.plan.named.insert(name.clone(), NamedGroup { proxy: proxy.clone(), current });
        }
        let places = self.joined.map(|(before, _)| site_places(config, before)).unwrap_or_default();
        for (site_index, site) in config.sites.iter().enumerate() {
            let place = places.get(site_index).copied().flatten();
            let known = place.and_then(|at| self.joined?.1.sites.get(at));
            if let Some(known) = known.filter(|known| known.is_shareable && self.has_groups_of(site, known)) {
                self.plan.sites.push(known.clone());
                continue;
            }
            let ways = (0..site.routes.len())
                .map(|route| self.build_upstream_route(config, RouteId { site: site_index, route }));
            let routes = ways.collect::<io::Result<Vec<_>>>()?;
            let is_shareable = is_shareable(config, site_index);
            self.plan.sites.push(Arc::new(SiteUpstreams { routes, is_shareable }));
        }
        for auth in config.auths() {
            let Some(proxy) = auth_proxy(auth).filter(|_| self.plan.auth_route(auth).is_none()) else {
                continue;
            };
            let options = route_options(&config::Route::default(), &proxy, false).into();
            let named = auth.upstream.as_ref().and_then(|name| self.plan.named.get(name));
            let group = match named.map(|named| named.current.clone()) {
                Some(group) => group,
                None => self.add_group("auth".to_owned(), self.sources.group_options(&proxy)?)?,
            };
            self.plan.auth_servers.push((auth.clone(), UpstreamRoute { group, options, spill: None }));
        }
        for stream in &config.streams {
            let group = self.add_group(stream.label(), stream_options(stream))?;
            self.plan.streams.push(group);
        }
        Ok(())
    }

    /// Returns a named group of the configuration before, if it differs in its servers at most.
    fn known_group(
        &mut self,
        name: &str,
        proxy: &Arc<ProxyOptions>,
    ) -> io::Result<Option<Arc<CurrentGroup>>> {
        let Some(known) = self.joined.and_then(|(_, groups)| groups.named.get(name)) else { return Ok(None) };
        // Contents of files may have changed.
        let names_files = proxy.to.iter().any(|server| server.url.is_tls());
        // So may what was found by names.
        let names_servers = proxy.to.iter().any(|server| server.url.records().is_some());
        if Arc::ptr_eq(&known.proxy, proxy) && !names_files && !names_servers {
            return Ok(Some(known.current.clone()));
        }
        let before = known.current.get();
        let options = GroupOptions { allows_local: self.allows_local, ..self.sources.group_options(proxy)? };
        if *before.options() == options {
            return Ok(Some(known.current.clone()));
        }
        if !before.options().differs_in_servers_alone(&options) {
            return Ok(None);
        }
        let mut all = self.plan.known.lock().unwrap_or_else(PoisonError::into_inner);
        let next = all.replace(&before, options).map_err(io::Error::other)?;
        drop(all);
        self.plan.replacements.push((known.current.clone(), next));
        Ok(Some(known.current.clone()))
    }

    /// Whether a site still names the groups that its upstream routes have.
    fn has_groups_of(&self, site: &config::Site, known: &SiteUpstreams) -> bool {
        site.routes.iter().zip(&known.routes).all(|(route, way)| {
            let Some((proxy, way)) = route.proxy().zip(way.as_ref()) else { return true };
            let named = proxy.upstream.as_ref().and_then(|name| self.plan.named.get(name));
            named.is_some_and(|named| Arc::ptr_eq(&named.current, &way.group))
        })
    }

    fn add_group(&mut self, name: String, mut options: GroupOptions) -> io::Result<Arc<CurrentGroup>> {
        options.allows_local = self.allows_local;
        self.add_trusted_group(name, options)
    }

    /// Adds the groups of the servers of the set, except this one, whose name is `own`.
    fn add_peers(&mut self, options: &PeerOptions, own: &str, peers: &mut PeerPlan) -> io::Result<()> {
        for peer in peers.servers.clone().iter() {
            let group = if peer.name == own {
                None
            } else {
                let name = format!("peer {}", peer.name);
                Some(self.add_trusted_group(name, PeerPlan::group_options(peer, options))?)
            };
            peers.groups.push(group);
        }
        Ok(())
    }

    /// Adds a group whose servers may be at any address.
    fn add_trusted_group(&mut self, name: String, options: GroupOptions) -> io::Result<Arc<CurrentGroup>> {
        let state = match self.joined {
            None => self.reload.build(options),
            Some(_) => self.plan.known.lock().unwrap_or_else(PoisonError::into_inner).build(options),
        };
        let state = state.map_err(io::Error::other)?;
        let known = self.before.remove(&Arc::as_ptr(&state));
        let group = known.unwrap_or_else(|| Arc::new(CurrentGroup::new(state)));
        self.add(name, group.clone());
        Ok(group)
    }

    fn add(&mut self, name: String, group: Arc<CurrentGroup>) {
        self.plan.all.push(group);
        let name = self.plan.unused_name(name);
        self.plan.names.push(name);
    }

    fn build_upstream_route(&mut self, config: &Config, id: RouteId) -> io::Result<Option<UpstreamRoute>> {
        let (site, route) = (&config.sites[id.site], config.route(id));
        let Some(proxy) = route.proxy() else { return Ok(None) };
        let named = proxy.upstream.as_ref().and_then(|name| self.plan.named.get(name));
        let group = match named {
            Some(group) => group.current.clone(),
            None => self.add_group(route_group_name(site, route), self.sources.group_options(proxy)?)?,
        };
        let spill = SpillQuota::new(self.spill, proxy.spill_bytes_max);
        let is_of_cgi = |server: &UpstreamServer| matches!(server.protocol, UpstreamProtocol::Cgi(_));
        let are_of_cgi = group.get().options().servers.iter().all(is_of_cgi);
        let mut options = route_options(route, proxy, are_of_cgi);
        options.cgi.keeps_encoded_slashes = config.route_settings(id).encoded_slashes == EncodedSlashes::Keep;
        options.request.routing_fields = site.condition_fields();
        Ok(Some(UpstreamRoute { group, options: options.into(), spill }))
    }
}

/// Whether what is assembled of a site is the same as long as the site is, and the groups that it names: it has no counts, caches,
/// files or applications of its own.
fn is_shareable(config: &Config, index: usize) -> bool {
    let site = &config.sites[index];
    let settings = config.settings(Some(index), None);
    if settings.maintenance.is_some() || settings.crawlers.is_some() || !site.limit.is_empty() {
        return false;
    }
    (0..site.routes.len()).all(|at| {
        let route = &site.routes[at];
        let settings = config.settings(Some(index), Some(at));
        let has_own_state = settings.cache.is_some()
            || settings.auth.is_some()
            || !route.limit.is_empty()
            || route.queue.is_some()
            || route.internal
            || route.otherwise.is_some();
        let is_plain = match &route.action {
            Action::Proxy(proxy) => proxy.upstream.is_some() && proxy.cgi.is_none() && !proxy.is_php,
            Action::NotFound | Action::Redirect(_) | Action::Respond(_) | Action::Split(_) => true,
            Action::RewriteOnly => true,
            Action::Files(_) | Action::App(_) => false,
        };
        is_plain && !has_own_state
    })
}

/// This core's parts of the groups in use.
#[derive(Default)]
pub(crate) struct CoreGroups(HashMap<*const CurrentGroup, CoreGroup>);

impl CoreGroups {
    /// Returns the parts of these groups; those of `self` are taken over.
    pub(crate) fn next(
        &self,
        groups: &[Arc<CurrentGroup>],
        make: impl Fn(&Arc<CurrentGroup>) -> CoreGroup,
    ) -> CoreGroups {
        let part = |group: &Arc<CurrentGroup>| self.of(group).cloned().unwrap_or_else(|| make(group));
        CoreGroups(groups.iter().map(|group| (Arc::as_ptr(group), part(group))).collect())
    }

    /// Returns the part of a group.
    pub(crate) fn of(&self, group: &Arc<CurrentGroup>) -> Option<&CoreGroup> {
        self.0.get(&Arc::as_ptr(group)).filter(|part| part.follows(group))
    }

    /// Has all parts take over replacements.
    pub(crate) fn follow(&self) {
        self.0.values().for_each(CoreGroup::follow);
    }
}

/// Returns the name of a group that belongs to a single route: its site and path.
fn route_group_name(site: &config::Site, route: &config::Route) -> String {
    let labels = RouteLabels::of(site, route);
    match labels.route.as_str() {
        "*" => labels.site,
        route => format!("{}{route}", labels.site),
    }
}

/// Returns the proxy settings for an authentication server, or one with token keys (JWKS).
fn auth_proxy(auth: &Auth) -> Option<ProxyOptions> {
    let (server, host) = match auth.kind()? {
        AuthKind::Server(server) => (server, auth.host.clone()),
        AuthKind::Jwt(jwt) => (jwt.jwks.as_ref()?, Host::Upstream),
        AuthKind::Basic(_) | AuthKind::Signed(_) => return None,
    };
    let mut proxy = ProxyOptions::with_servers([server.origin.clone()]);
    proxy.tls = auth.tls.clone();
    proxy.host = host;
    // Authorization requests carry this information in their own fields.
    proxy.forwarded.x_forwarded = Some(false);
    proxy.forwarded.standard = false;
    Some(proxy)
}

/// Sources of the servers of groups beside the configuration.
#[derive(Clone, Copy)]
pub(crate) struct GroupSources<'p> {
    pub(crate) files: &'p ConfigFiles,
    /// Servers that were found by names.
    pub(crate) found: &'p Found,
}

impl GroupSources<'_> {
    fn group_options(&self, proxy: &ProxyOptions) -> io::Result<GroupOptions> {
        let servers = proxy.to.iter().map(|upstream| self.build_servers(proxy, upstream));
        let mut servers = servers.collect::<io::Result<Vec<_>>>()?.concat();
        if servers.iter().all(|server| server.backup) {
            // What was found are only backups of servers that do not exist at present.
            servers.iter_mut().for_each(|server| server.backup = false);
        }
        Ok(GroupOptions::of(proxy, servers))
    }

    /// Returns the server, or all that its name has at present.
    fn build_servers(&self, proxy: &ProxyOptions, upstream: &Upstream) -> io::Result<Vec<UpstreamServer>> {
        let Some(name) = discovered_name(&upstream.url) else {
            return Ok(vec![build_server(proxy, upstream, self.files)?]);
        };
        let build = |host: String, port: u16, weight: u32, is_backup: bool| {
            let url = upstream.url.found_at(host, port);
            let weight = upstream.weight.saturating_mul(weight).min(WEIGHT_MAX);
            let one = Upstream { url, weight, backup: upstream.backup || is_backup, ..upstream.clone() };
            let mut server = build_server(proxy, &one, self.files)?;
            if let Some(tls) = &mut server.tls {
                // The host of an SRV record is not verified: who forges the record chooses it.
                tls.name.get_or_insert_with(|| verified_name(&name.name));
            }
            Ok(server)
        };
        match self.found.servers.get(&name).filter(|servers| !servers.is_empty()) {
            Some(servers) => servers
                .iter()
                .map(|at| build(at.address.ip().to_string(), at.address.port(), at.weight, at.is_backup))
                .collect(),
            None => {
                // A server without addresses.
                let none = build(String::new(), 0, 1, false)?;
                Ok(vec![UpstreamServer { name: Some(upstream.url.to_string()), ..none }])
            }
        }
    }
}

/// Returns the name that certificates of servers have: that of the domain without the labels of the service.
fn verified_name(name: &str) -> String {
    let mut rest = name;
    while let Some((_, after)) = rest.split_once('.').filter(|_| rest.starts_with('_')) {
        rest = after;
    }
    rest.to_owned()
}

/// Returns the group options of a stream.
fn stream_options(stream: &config::Stream) -> GroupOptions {
    let server = |server: &config::StreamServer| {
        let at = match &server.address {
            Origin::Tcp { host, port, .. } => UpstreamAddress::Tcp { host: host.clone(), port: *port },
            Origin::Unix(path) => UpstreamAddress::Unix(path.clone()),
            // Streams cannot have these.
            Origin::Cgi(..) | Origin::Discovered(..) => UpstreamAddress::Unix(PathBuf::new()),
        };
        UpstreamServer {
            protocol: if stream.is_udp() { UpstreamProtocol::Udp } else { UpstreamProtocol::Tcp },
            weight: server.weight,
            backup: server.backup,
            connections_max: server.connections_max.unwrap_or(0),
            ..UpstreamServer::new(at)
        }
    };
    GroupOptions {
        balance: stream.balance.clone(),
        keep_alive: KeepAlive { idle_max: 0, ..KeepAlive::default() },
        ejection: stream.eject.clone(),
        check: stream.health.clone(),
        slow_start: stream.slow_start,
        resolve_interval: stream.resolve,
        proxy_protocol: stream.proxy_protocol,
        ..GroupOptions::new(stream.to.iter().map(server).collect())
    }
}

/// Returns the options of a route. `are_of_cgi` is whether its servers speak a protocol of the CGI family.
fn route_options(route: &config::Route, proxy: &ProxyOptions, are_of_cgi: bool) -> RouteOptions {
    let mut options = RouteOptions::of(proxy, build_path_map(route, proxy), are_of_cgi);
    if proxy.cgi.is_some() {
        options.timeouts.half_closed = cgi_programs::HALF_CLOSED_TIMEOUT;
    }
    options
}

fn build_server(
    proxy: &ProxyOptions,
    upstream: &Upstream,
    files: &ConfigFiles,
) -> io::Result<UpstreamServer> {
    let (cgi, url) = match &upstream.url {
        Origin::Cgi(protocol, at) => (Some(*protocol), &**at),
        url => (None, url),
    };
    let at = match url {
        // A dedicated thread starts CGI programs and listens on its own socket.
        Origin::Unix(_) if proxy.cgi.is_some() => {
            UpstreamAddress::Unix(proxy.cgi.as_ref().map(cgi_programs::socket).unwrap_or_default())
        }
        Origin::Tcp { host, port, .. } => UpstreamAddress::Tcp { host: host.clone(), port: *port },
        Origin::Unix(path) => UpstreamAddress::Unix(path.clone()),
        Origin::Cgi(..) | Origin::Discovered(..) => {
            return Err(io::Error::other("an address that is none of a single server"));
        }
    };
    let tls = upstream
        .url
        .is_tls()
        .then(|| build_tls(upstream.tls.as_ref().unwrap_or(&proxy.tls), files))
        .transpose()?;
    let is_h3 = upstream.url.is_h3();
    let is_http2 = upstream.url.is_h2c() || (tls.is_some() && proxy.http == ProxyHttp::Http2 && !is_h3);
    Ok(UpstreamServer {
        tls,
        protocol: match cgi {
            Some(protocol) => UpstreamProtocol::Cgi(protocol),
            None if is_h3 => UpstreamProtocol::Http3,
            None if is_http2 => UpstreamProtocol::Http2,
            None => UpstreamProtocol::Http1,
        },
        weight: upstream.weight,
        backup: upstream.backup,
        connections_max: upstream.connections_max.unwrap_or(0),
        name: proxy.cgi.as_ref().map(|cgi| format!("cgi:{}", cgi.root.display())),
        ..UpstreamServer::new(at)
    })
}

fn build_tls(tls: &ProxyTls, files: &ConfigFiles) -> io::Result<Tls> {
    let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidData, format!("`proxy.tls`: {text}"));
    let identity_pem = match (&tls.certificate, &tls.key) {
        (Some(certificate), Some(key)) => {
            let chain_pem = files.read(certificate)?;
            let key_pem = files.read(key)?;
            ServerCertificate::from_pem(&chain_pem, &key_pem)
                .map_err(|fault| invalid(fault.in_files(certificate, key)).about(certificate))?;
            Some((chain_pem, key_pem))
        }
        _ => None,
    };
    let roots = |path: &Path| {
        let pem = files.read(path)?;
        ClientCertificates::check_authority(&pem)
            .map_err(|text| invalid(format!("{}: {text}", path.display())).about(path))?;
        io::Result::Ok(pem)
    };
    Ok(Tls {
        name: tls.name.clone(),
        roots_pem: tls.ca.as_deref().map(roots).transpose()?,
        identity_pem,
        verify_names: tls.verify_names.clone(),
        insecure: !tls.verify,
    })
}

fn build_path_map(route: &config::Route, proxy: &ProxyOptions) -> Option<PathMap> {
    let from = match &proxy.strip_prefix {
        // The path below the prefix names the program.
        StripPrefix::None if proxy.cgi.is_some() => route.prefix().unwrap_or_default(),
        StripPrefix::None => "",
        StripPrefix::OfRoute => route.prefix().unwrap_or_default(),
        StripPrefix::Text(text) => text,
    };
    let to = proxy.add_prefix.as_deref().unwrap_or_default();
    (from != to).then(|| PathMap::new(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_of_the_configuration_are_those_of_the_proxy() {
        let url = Origin::parse("http://127.0.0.1:3000").unwrap();
        let proxy = ProxyOptions::with_servers([url]);
        let server = UpstreamServer::new(UpstreamAddress::Tcp { host: "127.0.0.1".into(), port: 3000 });
        let (files, found) = (ConfigFiles::default(), Found::default());
        let group = GroupSources { files: &files, found: &found }.group_options(&proxy).unwrap();
        assert_eq!(group, GroupOptions::new(vec![server]));
        assert_eq!(route_options(&config::Route::default(), &proxy, false), RouteOptions::default());
    }
}
