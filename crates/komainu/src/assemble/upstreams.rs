//! Converts `proxy` actions to options of upstream groups, and builds the groups of a configuration.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use admission::auth::{Auth, AuthKind};
use config::matcher::RouteId;
use config::{Config, EncodedSlashes};
use failure::IoFailure;
use hosting::cgi_programs;
use net::{ClientCertificates, ServerCertificate, SpillQuota, SpillStore};
use process::config_files::ConfigFiles;
use proxy::directives::{ProxyTls, Upstream};
use proxy::options::{
    Host, KeepAlive, Origin, PathMap, ProxyOptions, Tls, UpstreamAddress, UpstreamProtocol, UpstreamServer,
};
use proxy::origin::ProxyHttp;
use proxy::{Group, GroupOptions, GroupReload, GroupShared, RouteOptions};
use reload::KeptState;
use shapes::prefix::StripPrefix;
use telemetry::metrics::RouteLabels;

/// The upstream groups of a configuration, shared by all cores, and their use by routes.
#[derive(Default)]
pub(crate) struct GroupPlan {
    pub(crate) shared: Vec<Arc<GroupShared>>,
    /// Names of the groups: from the configuration, or derived from the route that owns the group.
    names: Vec<String>,
    /// Last number used for each name.
    last_numbers: HashMap<String, usize>,
    /// Upstream routes by site and route.
    routes: Vec<Vec<Option<UpstreamRoute>>>,
    /// Index in [`GroupPlan::shared`] of each stream's group.
    streams: Vec<usize>,
    /// Servers that answer authorization requests.
    auth_servers: Vec<(Auth, UpstreamRoute)>,
}

/// Access of a route to its servers.
pub(crate) struct UpstreamRoute {
    /// Index of the group in [`GroupPlan::shared`].
    pub(crate) group: usize,
    pub(crate) options: Arc<RouteOptions>,
    /// Quota of temporary files for the route's responses.
    pub(crate) spill: Option<Arc<SpillQuota>>,
}

impl GroupPlan {
    /// Creates the groups, without resolving or connecting yet. Unchanged groups are kept, so that health, limits,
    /// queue, kept connections and TLS sessions survive a reload. In a changed group, servers that it already had keep
    /// their health.
    ///
    /// # Errors
    /// A certificate that cannot be read, by name.
    pub(crate) fn new(
        config: &Config,
        kept: &mut KeptState,
        spill: &Arc<SpillStore>,
        files: &ConfigFiles,
    ) -> io::Result<GroupPlan> {
        let mut groups = GroupPlan::default();
        let before: Vec<Arc<GroupShared>> =
            std::iter::from_fn(|| kept.take_if(&(), |_: &Arc<GroupShared>| true)).collect();
        let mut before = GroupReload::new(&before);
        let mut named = HashMap::new();
        for (index, (name, proxy)) in config.upstreams.iter().enumerate() {
            named.insert(name.as_str(), index);
            groups.add_group(name.clone(), group_options(proxy, files)?, &mut before)?;
        }
        for (site_index, site) in config.sites.iter().enumerate() {
            let ways = (0..site.routes.len()).map(|route| {
                let id = RouteId { site: site_index, route };
                groups.build_upstream_route(config, id, &named, &mut before, spill, files)
            });
            let ways = ways.collect::<io::Result<Vec<_>>>()?;
            groups.routes.push(ways);
        }
        for auth in config.auths() {
            let Some(proxy) = auth_proxy(auth).filter(|_| groups.auth_route(auth).is_none()) else {
                continue;
            };
            let options = route_options(&config::Route::default(), &proxy, false).into();
            let group = groups.add_group("auth".to_owned(), group_options(&proxy, files)?, &mut before)?;
            groups.auth_servers.push((auth.clone(), UpstreamRoute { group, options, spill: None }));
        }
        for stream in &config.streams {
            let group = groups.add_group(stream.label(), stream_options(stream), &mut before)?;
            groups.streams.push(group);
        }
        for group in &groups.shared {
            kept.put((), group.clone());
        }
        Ok(groups)
    }

    /// Returns all groups with their names.
    pub(crate) fn named_groups(&self) -> Vec<(String, Arc<GroupShared>)> {
        self.names.iter().cloned().zip(self.shared.iter().cloned()).collect()
    }

    /// Returns the upstream route of a route; `None` if it does not proxy.
    pub(crate) fn upstream_route(&self, RouteId { site, route }: RouteId) -> Option<&UpstreamRoute> {
        self.routes.get(site)?.get(route)?.as_ref()
    }

    /// Returns the upstream route to the server that an `auth` queries.
    pub(crate) fn auth_route(&self, auth: &Auth) -> Option<&UpstreamRoute> {
        self.auth_servers.iter().find(|(of, _)| of == auth).map(|(_, way)| way)
    }

    /// Selects the groups of streams from a core's groups, in the order of the configuration.
    pub(crate) fn stream_groups(&self, groups: &[Group]) -> Vec<Group> {
        self.streams.iter().filter_map(|at| groups.get(*at)).cloned().collect()
    }

    fn add_group(
        &mut self,
        name: String,
        options: GroupOptions,
        before: &mut GroupReload,
    ) -> io::Result<usize> {
        self.shared.push(before.build(options).map_err(io::Error::other)?);
        let name = self.unused_name(name);
        self.names.push(name);
        Ok(self.shared.len() - 1)
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

    fn build_upstream_route(
        &mut self,
        config: &Config,
        id: RouteId,
        named: &HashMap<&str, usize>,
        before: &mut GroupReload,
        spill: &Arc<SpillStore>,
        files: &ConfigFiles,
    ) -> io::Result<Option<UpstreamRoute>> {
        let (site, route) = (&config.sites[id.site], config.route(id));
        let Some(proxy) = route.proxy() else { return Ok(None) };
        let shares = |name: &String| named.get(name.as_str()).copied();
        let group = match proxy.upstream.as_ref().and_then(shares) {
            Some(group) => group,
            None => self.add_group(route_group_name(site, route), group_options(proxy, files)?, before)?,
        };
        let spill = SpillQuota::new(spill, proxy.spill_bytes_max);
        let is_of_cgi = |server: &UpstreamServer| matches!(server.protocol, UpstreamProtocol::Cgi(_));
        let are_of_cgi = self.shared[group].options().servers.iter().all(is_of_cgi);
        let mut options = route_options(route, proxy, are_of_cgi);
        options.cgi.keeps_encoded_slashes = config.route_settings(id).encoded_slashes == EncodedSlashes::Keep;
        options.request.routing_fields = site.condition_fields();
        Ok(Some(UpstreamRoute { group, options: options.into(), spill }))
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

fn group_options(proxy: &ProxyOptions, files: &ConfigFiles) -> io::Result<GroupOptions> {
    let servers = proxy.to.iter().map(|upstream| build_server(proxy, upstream, files));
    Ok(GroupOptions::of(proxy, servers.collect::<io::Result<_>>()?))
}

/// Returns the group options of a stream.
fn stream_options(stream: &config::Stream) -> GroupOptions {
    let server = |server: &config::StreamServer| {
        let at = match &server.address {
            Origin::Tcp { host, port, .. } => UpstreamAddress::Tcp { host: host.clone(), port: *port },
            Origin::Unix(path) => UpstreamAddress::Unix(path.clone()),
            // Streams cannot have CGI addresses.
            Origin::Cgi(..) => UpstreamAddress::Unix(PathBuf::new()),
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
        Origin::Cgi(..) => return Err(io::Error::other("an address of CGI inside one")),
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
        let group = group_options(&proxy, &ConfigFiles::default()).unwrap();
        assert_eq!(group, GroupOptions::new(vec![server]));
        assert_eq!(route_options(&config::Route::default(), &proxy, false), RouteOptions::default());
    }
}
