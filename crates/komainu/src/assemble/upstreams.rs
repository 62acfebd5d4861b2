//! Converts `proxy` actions to options of upstream groups, and builds the groups of a configuration.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use config::{Auth, AuthKind, Config, EncodedSlashes};
use failure::IoFailure;
use hosting::cgi_programs;
use http::Status;
use net::{ClientCertificates, ServerCertificate, SpillQuota, SpillStore};
use process::config_files::ConfigFiles;
use proxy::options::{
    Balance, CgiOptions, CgiProtocol, Edits, Ejection, Forwarded, GroupOptions, HashKey, HealthCheck, Host,
    KeepAlive, PathMap, Probe, ProxyProtocol, RequestOptions, ResponseOptions, Retry, RouteOptions, Tls,
    UpstreamAddress, UpstreamProtocol, UpstreamServer, UpstreamTimeouts,
};
use proxy::{Group, GroupReload, GroupShared};
use reload::KeptState;
use shapes::prefix::StripPrefix;
use telemetry::metrics::RouteLabels;
use times::Millis;

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
    /// Creates the groups, without resolving or connecting yet. Unchanged groups are kept, so that health, limits, queue, kept connections and TLS sessions survive a reload. In a changed group,
    /// servers that it already had keep their health.
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
            let ways = site.routes.iter().enumerate().map(|(index, route)| {
                let encoded_slashes = config.settings(Some(site_index), Some(index)).encoded_slashes;
                groups.build_upstream_route((site, route, encoded_slashes), &named, &mut before, spill, files)
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
    pub(crate) fn upstream_route(&self, site: usize, route: usize) -> Option<&UpstreamRoute> {
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
        (site, route, encoded_slashes): (&config::Site, &config::Route, EncodedSlashes),
        named: &HashMap<&str, usize>,
        before: &mut GroupReload,
        spill: &Arc<SpillStore>,
        files: &ConfigFiles,
    ) -> io::Result<Option<UpstreamRoute>> {
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
        options.cgi.keeps_encoded_slashes = encoded_slashes == EncodedSlashes::Keep;
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
fn auth_proxy(auth: &Auth) -> Option<config::Proxy> {
    let (server, host) = match auth.kind()? {
        AuthKind::Server(server) => (server, auth.host.clone()),
        AuthKind::Jwt(jwt) => (jwt.jwks.as_ref()?, config::UpstreamHost::Upstream),
        AuthKind::Basic(_) | AuthKind::Signed(_) => return None,
    };
    let mut proxy = config::Proxy::with_servers([server.origin.clone()]);
    proxy.tls = auth.tls.clone();
    proxy.host = host;
    // Authorization requests carry this information in their own fields.
    proxy.forwarded.x_forwarded = Some(false);
    proxy.forwarded.standard = false;
    Some(proxy)
}

fn group_options(proxy: &config::Proxy, files: &ConfigFiles) -> io::Result<GroupOptions> {
    let servers =
        proxy.to.iter().map(|upstream| build_server(proxy, upstream, files)).collect::<io::Result<_>>()?;
    Ok(GroupOptions {
        servers,
        balance: convert_balance(&proxy.balance),
        keep_alive: KeepAlive {
            idle_max: proxy.keep_alive.connections_max as usize,
            idle_timeout: proxy.keep_alive.idle.into(),
            requests_max: proxy.keep_alive.requests_max.unwrap_or(0),
        },
        ejection: proxy.eject.as_ref().map(convert_ejection),
        check: proxy.health.as_ref().map(convert_health_check),
        slow_start: proxy.slow_start.into(),
        queue_max: proxy.queue_max as usize,
        resolve_interval: proxy.resolve.into(),
        proxy_protocol: convert_proxy_protocol(proxy.proxy_protocol),
        lenient_heads: proxy.lenient_heads,
    })
}

fn convert_proxy_protocol(version: config::ProxyProtocol) -> Option<ProxyProtocol> {
    match version {
        config::ProxyProtocol::Off => None,
        config::ProxyProtocol::V1 => Some(ProxyProtocol::V1),
        config::ProxyProtocol::V2 => Some(ProxyProtocol::V2),
    }
}

/// Returns the group options of a stream.
fn stream_options(stream: &config::Stream) -> GroupOptions {
    let server = |server: &config::StreamServer| {
        let at = match &server.address {
            config::Origin::Tcp { host, port, .. } => {
                UpstreamAddress::Tcp { host: host.clone(), port: *port }
            }
            config::Origin::Unix(path) => UpstreamAddress::Unix(path.clone()),
            // Streams cannot have CGI addresses.
            config::Origin::Cgi(..) => UpstreamAddress::Unix(PathBuf::new()),
        };
        UpstreamServer {
            protocol: UpstreamProtocol::Tcp,
            weight: server.weight,
            backup: server.backup,
            connections_max: server.connections_max.unwrap_or(0),
            ..UpstreamServer::new(at)
        }
    };
    GroupOptions {
        balance: convert_balance(&stream.balance.into()),
        keep_alive: KeepAlive { idle_max: 0, ..KeepAlive::default() },
        ejection: stream.eject.as_ref().map(convert_ejection),
        check: stream.health.as_ref().map(convert_health_check),
        slow_start: stream.slow_start.into(),
        resolve_interval: stream.resolve.into(),
        proxy_protocol: convert_proxy_protocol(stream.proxy_protocol),
        ..GroupOptions::new(stream.to.iter().map(server).collect())
    }
}

/// Converts the options of a route. `are_of_cgi` is whether its servers speak a protocol of the CGI family.
fn route_options(route: &config::Route, proxy: &config::Proxy, are_of_cgi: bool) -> RouteOptions {
    RouteOptions {
        timeouts: UpstreamTimeouts {
            half_closed: if proxy.cgi.is_some() { cgi_programs::HALF_CLOSED_TIMEOUT } else { Millis::ZERO },
            ..convert_timeouts(&proxy.timeouts)
        },
        cancels_on_disconnect: proxy.client_abort == config::ClientAbort::Cancel,
        retry: convert_retry(&proxy.retry),
        request: build_request_options(proxy, are_of_cgi),
        response: ResponseOptions {
            rewrite: proxy.rewrite,
            cookie_domains: proxy.cookie_domains.clone(),
            edits: convert_edits(&proxy.response_headers),
        },
        path: build_path_map(route, proxy),
        upgrades: proxy.upgrades.clone(),
        read_ahead_bytes: proxy.read_ahead_bytes as usize,
        cgi: CgiOptions { variables: proxy.variables.clone(), keeps_encoded_slashes: false },
        head_limits: http::Limits {
            head_bytes_max: proxy.limits.head_bytes_max as usize,
            start_line_bytes_max: proxy.limits.status_line_bytes_max as usize,
            fields_max: proxy.limits.headers_max as usize,
            bare_lf: proxy.lenient_heads || proxy.limits.lenient_bare_lf,
            lenient_heads: proxy.lenient_heads,
        },
    }
}

fn build_server(
    proxy: &config::Proxy,
    upstream: &config::Upstream,
    files: &ConfigFiles,
) -> io::Result<UpstreamServer> {
    let (cgi, url) = match &upstream.url {
        config::Origin::Cgi(scheme, at) => (Some(convert_cgi_scheme(*scheme)), &**at),
        url => (None, url),
    };
    let at = match url {
        // A dedicated thread starts CGI programs and listens on its own socket.
        config::Origin::Unix(_) if proxy.cgi.is_some() => {
            UpstreamAddress::Unix(proxy.cgi.as_ref().map(cgi_programs::socket).unwrap_or_default())
        }
        config::Origin::Tcp { host, port, .. } => UpstreamAddress::Tcp { host: host.clone(), port: *port },
        config::Origin::Unix(path) => UpstreamAddress::Unix(path.clone()),
        config::Origin::Cgi(..) => return Err(io::Error::other("an address of CGI inside one")),
    };
    let tls = upstream
        .url
        .is_tls()
        .then(|| build_tls(upstream.tls.as_ref().unwrap_or(&proxy.tls), files))
        .transpose()?;
    let is_http2 = upstream.url.is_h2c() || (tls.is_some() && proxy.http == config::ProxyHttp::Http2);
    Ok(UpstreamServer {
        tls,
        protocol: match cgi {
            Some(protocol) => UpstreamProtocol::Cgi(protocol),
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

fn convert_cgi_scheme(scheme: config::CgiScheme) -> CgiProtocol {
    match scheme {
        config::CgiScheme::FastCgi => CgiProtocol::FastCgi,
        config::CgiScheme::Uwsgi => CgiProtocol::Uwsgi,
        config::CgiScheme::Scgi => CgiProtocol::Scgi,
        config::CgiScheme::Program => CgiProtocol::Program,
    }
}

fn build_tls(tls: &config::ProxyTls, files: &ConfigFiles) -> io::Result<Tls> {
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

fn convert_balance(balance: &config::Balance) -> Balance {
    match balance {
        config::Balance::RoundRobin => Balance::RoundRobin,
        config::Balance::LeastRequests => Balance::LeastRequests,
        config::Balance::TwoChoices => Balance::TwoChoices,
        config::Balance::HashClient => Balance::Hash(HashKey::Client),
        config::Balance::HashUri => Balance::Hash(HashKey::Uri),
        config::Balance::HashHeader(name) => Balance::Hash(HashKey::Field(name.clone())),
        config::Balance::HashCookie(name) => Balance::Hash(HashKey::Cookie(name.clone())),
        config::Balance::Sticky(cookie) => Balance::Sticky { cookie: cookie.clone() },
    }
}

fn convert_timeouts(timeouts: &config::ProxyTimeouts) -> UpstreamTimeouts {
    UpstreamTimeouts {
        connect: timeouts.connect.into(),
        head: timeouts.head.into(),
        between: timeouts.between.into(),
        total: timeouts.total.map_or(Millis::ZERO, Millis::of),
        queue: timeouts.queue.into(),
        tunnel: timeouts.tunnel.into(),
        expect_continue: timeouts.expect.into(),
        half_closed: Millis::ZERO,
    }
}

fn convert_retry(retry: &config::Retry) -> Retry {
    let status = |code: &u16| Status::of(*code).expect("the configuration holds statuses of three digits");
    Retry {
        attempts_max: retry.attempts_max,
        budget_percent: retry.budget_percent,
        statuses: retry.statuses.iter().map(status).collect(),
        non_idempotent: retry.non_idempotent,
        body_bytes_max: retry.body_bytes_max as usize,
    }
}

fn convert_ejection(eject: &config::Eject) -> Ejection {
    Ejection { failures_max: eject.failures_max, first: eject.first.into(), max: eject.max.into() }
}

fn convert_health_check(health: &config::Health) -> HealthCheck {
    let (first, last) = health.expect;
    let get = |path: &String| Probe::Get { path: path.clone(), host: health.host.clone(), first, last };
    HealthCheck {
        probe: health.path.as_ref().map_or(Probe::Connect, get),
        interval: health.interval.into(),
        timeout: health.timeout.into(),
        rise: health.rise,
        fall: health.fall,
    }
}

fn build_request_options(proxy: &config::Proxy, are_of_cgi: bool) -> RequestOptions {
    RequestOptions {
        host: match &proxy.host {
            config::UpstreamHost::Pass => Host::Pass,
            config::UpstreamHost::Upstream => Host::Upstream,
            config::UpstreamHost::Text(text) => Host::Set(text.clone()),
        },
        forwarded: Forwarded {
            // CGI servers receive this information in variables.
            x_forwarded: proxy.forwarded.x_forwarded.unwrap_or(!are_of_cgi),
            standard: proxy.forwarded.standard,
        },
        via: proxy.forwarded.via.clone().filter(|_| !are_of_cgi).unwrap_or_default(),
        underscores: proxy.underscores,
        routing_fields: Vec::new(),
        edits: convert_edits(&proxy.request_headers),
    }
}

fn convert_edits(headers: &config::ProxyHeaders) -> Edits {
    Edits { remove: headers.remove.clone(), set: headers.set.clone(), add: headers.add.clone() }
}

fn build_path_map(route: &config::Route, proxy: &config::Proxy) -> Option<PathMap> {
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
        let url = config::Origin::parse("http://127.0.0.1:3000").unwrap();
        let proxy = config::Proxy::with_servers([url]);
        let server = UpstreamServer::new(UpstreamAddress::Tcp { host: "127.0.0.1".into(), port: 3000 });
        let group = group_options(&proxy, &ConfigFiles::default()).unwrap();
        assert_eq!(group, GroupOptions::new(vec![server]));
        assert_eq!(route_options(&config::Route::default(), &proxy, false), RouteOptions::default());
    }
}
