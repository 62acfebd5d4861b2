//! Route matching. Compiled once from the sites; finding a route allocates nothing.

use crate::action::Action;
pub use crate::condition_fields::ConditionFields;
use crate::conditions::ConditionSet;
use crate::levels::RouteSettings;
use crate::listeners::listener_key;
use crate::server::Config;
use crate::site::{Route, Site};
use net::Listen;
use shapes::host::{HOST_BYTES_MAX, HostPattern};
use shapes::pattern::ValuePattern;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// A route: the site, and its route, as indexes into `Config::sites`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RouteId {
    /// Index into `Config::sites`.
    pub site: usize,
    /// Index into `Site::routes`.
    pub route: usize,
}

impl Config {
    /// The route with this ID.
    pub fn route(&self, RouteId { site, route }: RouteId) -> &Route {
        &self.sites[site].routes[route]
    }

    /// The settings of a route: see [`Config::settings`].
    pub fn route_settings(&self, RouteId { site, route }: RouteId) -> RouteSettings<'_> {
        self.settings(Some(site), Some(route))
    }
}

/// Request properties that routes match, besides header fields.
#[derive(Debug, Clone, Copy)]
pub struct RouteRequest<'a> {
    /// The host of the request, with its port; empty if the request has none.
    pub host: &'a [u8],
    /// The number of the address that has accepted the connection ([`Config::listener_key`]); 0 for one at the top of the file
    /// that no site names.
    pub listener_key: u64,
    /// The method.
    pub method: &'a [u8],
    /// The path, percent-decoded once and without dot segments (see `http::path`).
    pub path: &'a [u8],
    /// Query as the client sent it, without its `?`; empty if there is none.
    pub query: &'a [u8],
    /// The client's address; none over a Unix socket.
    pub client: Option<IpAddr>,
    /// Code of the client's country, if known.
    pub country: Option<[u8; 2]>,
}

/// All sites' routes, ready to be searched.
#[derive(Debug, Clone, Default)]
pub struct Routes {
    /// The sites that answer at all addresses at the top of the file.
    default_hosts: Hosts,
    /// The sites of addresses that a site names, by [`Config::listener_key`].
    hosts_by_listener: HashMap<u64, Hosts>,
    sites: Vec<Arc<Vec<RouteConditions>>>,
}

/// The sites of an address, by host.
#[derive(Debug, Clone, Default)]
struct Hosts {
    exact: HashMap<Box<[u8]>, usize>,
    /// Wildcard hosts: the key of `*.example.com` is `.example.com`.
    wildcards: HashMap<Box<[u8]>, usize>,
    default: Option<usize>,
}

/// A route's conditions.
#[derive(Debug, Clone)]
struct RouteConditions(ConditionSet);

/// Name, and the pattern that its value must match.
type Condition = (String, ValuePattern);

impl Routes {
    /// Compiles the sites. If two claim the same host at one address, the first gets it.
    pub fn compile(config: &Config) -> Self {
        Self::compile_after(config, None)
    }

    /// Compiles the sites. Those that are the same as in the configuration before are not compiled again.
    pub fn compile_after(config: &Config, before: Option<(&Config, &Self)>) -> Self {
        let mut routes = Self::default();
        let known: HashMap<*const Site, &Arc<Vec<RouteConditions>>> = before
            .iter()
            .flat_map(|(before, routes)| before.sites.iter().map(Arc::as_ptr).zip(&routes.sites))
            .collect();
        for site in &config.sites {
            routes.sites.push(match known.get(&Arc::as_ptr(site)) {
                Some(conditions) => Arc::clone(conditions),
                None => compile_conditions(site),
            });
        }
        let top: HashSet<&Listen> = config.listen.iter().map(|listener| &listener.address).collect();
        let of_sites: HashSet<&Listen> = config.site_listeners.iter().map(|one| &one.address).collect();
        let own = config.sites.iter().flat_map(|site| &site.listen).map(|listener| &listener.address);
        let mut hosts: HashMap<&Listen, Hosts> = own
            .filter(|one| top.contains(one) || of_sites.contains(one))
            .map(|one| (one, Hosts::default()))
            .collect();
        let named_of_top: Vec<&Listen> = top.iter().copied().filter(|one| hosts.contains_key(one)).collect();
        for (index, site) in config.sites.iter().enumerate() {
            if site.listen.is_empty() {
                routes.default_hosts.add(index, site);
                for address in &named_of_top {
                    hosts.get_mut(address).expect("an address that a site names").add(index, site);
                }
            }
            for listener in &site.listen {
                if let Some(hosts) = hosts.get_mut(&listener.address) {
                    hosts.add(index, site);
                }
            }
        }
        let by_key = hosts
            .into_iter()
            .map(|(address, hosts)| (listener_key(address, of_sites.contains(address)), hosts));
        routes.hosts_by_listener = by_key.collect();
        routes
    }

    /// Compiles the routes of a single site, whose index is 0 here.
    pub fn compile_site(site: &Site) -> Self {
        Self { sites: vec![compile_conditions(site)], ..Self::default() }
    }

    /// Returns the site for the name of a TLS client (SNI) or an IP address, as for the host of a request.
    pub fn site_of_name(&self, name: &str, listener_key: u64) -> Option<usize> {
        match name.parse::<Ipv6Addr>() {
            Ok(address) => self.site(format!("[{address}]").as_bytes(), listener_key),
            Err(_) => self.site(name.as_bytes(), listener_key),
        }
    }

    /// Returns the site for a host at a listener, by the listener's key. The host may have a port, and be in
    /// upper or lower case. Of the sites at the address, the one that names the host is returned, else the
    /// one with the longest matching wildcard, else the default site.
    pub fn site(&self, host: &[u8], listener_key: u64) -> Option<usize> {
        self.find_site(host, listener_key).map(|(site, _)| site)
    }

    /// Whether a route looks at the client's country.
    pub fn uses_country(&self) -> bool {
        self.sites.iter().flat_map(|site| site.iter()).any(|route| route.0.uses_country())
    }

    /// The sites for a host at any address.
    pub fn sites_for_host(&self, host: &[u8]) -> Vec<usize> {
        let all = std::iter::once(&self.default_hosts).chain(self.hosts_by_listener.values());
        let mut sites: Vec<usize> =
            all.filter_map(|hosts| hosts.find_site(host)).map(|(site, _)| site).collect();
        sites.sort_unstable();
        sites.dedup();
        sites
    }

    fn find_site(&self, host: &[u8], listener_key: u64) -> Option<(usize, SiteMatch)> {
        if self.hosts_by_listener.is_empty() && listener_key & 1 == 0 {
            return self.default_hosts.find_site(host);
        }
        match self.hosts_by_listener.get(&listener_key) {
            Some(hosts) => hosts.find_site(host),
            // The connection arrived at an address of sites that a new configuration has removed: no site
            // matches.
            None if listener_key & 1 == 1 => None,
            None => self.default_hosts.find_site(host),
        }
    }

    /// The first route of the host's site that matches.
    pub fn find(&self, request: &RouteRequest, fields: impl ConditionFields) -> Option<RouteId> {
        let site = self.site(request.host, request.listener_key)?;
        self.find_in(site, request, fields).map(|route| RouteId { site, route })
    }

    /// The first route of a site that matches, for any host.
    pub fn find_in(
        &self,
        site: usize,
        request: &RouteRequest,
        fields: impl ConditionFields,
    ) -> Option<usize> {
        self.sites[site].iter().position(|route| route.0.first_unmet(request, &fields).is_none())
    }

    /// Whether a route answers a request, for any host, as the first of its site. Its own `path` is ignored;
    /// those of the routes before it are not.
    pub fn is_first_ignoring_path(
        &self,
        RouteId { site, route }: RouteId,
        request: &RouteRequest,
        fields: impl ConditionFields,
    ) -> bool {
        let answers = |other: &RouteConditions| other.0.first_unmet(request, &fields).is_none();
        !self.sites[site][..route].iter().any(answers)
            && self.sites[site][route].0.first_unmet_except_path(request, &fields).is_none()
    }

    /// Whether more than the path and query of a request decides which of the routes up to this one answers.
    pub fn has_conditions_up_to(&self, RouteId { site, route }: RouteId, path: &[u8]) -> bool {
        let (own, before) = self.sites[site][..=route].split_last().expect("the slice has this route");
        own.0.has_conditions()
            || before.iter().any(|other| other.0.matches_path(path) && other.0.has_conditions())
    }

    /// Why `find` finds its route: the site, and the result of each of its routes, in order.
    pub fn explain_match(&self, request: &RouteRequest, fields: impl ConditionFields) -> Explanation {
        let Some((site, site_match)) = self.find_site(request.host, request.listener_key) else {
            return Explanation { site: None, site_match: SiteMatch::None, route_matches: Vec::new() };
        };
        let mut found = false;
        let mut step = |route: &RouteConditions| match route.0.first_unmet(request, &fields) {
            _ if found => RouteMatch::NotReached,
            Some(obstacle) => obstacle,
            None => {
                found = true;
                RouteMatch::Matched
            }
        };
        let steps = self.sites[site].iter().map(&mut step).collect();
        Explanation { site: Some(site), site_match, route_matches: steps }
    }
}

/// Compiles the conditions of a site's routes, without hidden ones, which come after all others.
fn compile_conditions(site: &Site) -> Arc<Vec<RouteConditions>> {
    let found = site.routes.iter().filter(|route| route.part_of.is_none());
    Arc::new(found.map(RouteConditions::compile).collect())
}

impl Hosts {
    /// Adds the hosts of a site, except those that another one has.
    fn add(&mut self, index: usize, site: &Site) {
        if site.hosts.is_empty() {
            self.default.get_or_insert(index);
        }
        for host in &site.hosts {
            let (map, name) = match host {
                HostPattern::Exact(name) => (&mut self.exact, name),
                HostPattern::Subdomains(name) => (&mut self.wildcards, name),
            };
            map.entry(name.as_bytes().into()).or_insert(index);
        }
    }

    fn find_site(&self, host: &[u8]) -> Option<(usize, SiteMatch)> {
        if self.exact.is_empty() && self.wildcards.is_empty() {
            return self.default.map(|site| (site, SiteMatch::Default));
        }
        let mut space = [0; HOST_BYTES_MAX];
        let host = normalize_host(host, &mut space);
        if let Some(&site) = self.exact.get(host) {
            return Some((site, SiteMatch::Exact));
        }
        if !self.wildcards.is_empty() {
            // From the left, so that the longest wildcard is found first. `*.example.com` does not match `example.com`.
            let dots = (1..host.len()).filter(|&at| host[at] == b'.');
            if let Some(site) = dots.filter_map(|at| self.wildcards.get(&host[at..])).next() {
                return Some((*site, SiteMatch::Wildcard));
            }
        }
        self.default.map(|site| (site, SiteMatch::Default))
    }
}

impl RouteConditions {
    fn compile(route: &Route) -> Self {
        let own = ConditionSet {
            path: route.path.clone(),
            host: route.host.clone(),
            method: route.method.clone(),
            header: route.header.clone(),
            query: route.query.clone(),
            repeated: route.repeated.clone(),
            referer: route.referer.clone(),
            client: route.client.clone(),
            country: route.country.clone(),
            not: route.not.clone(),
        };
        Self(own)
    }
}

impl Site {
    /// The header fields that choose between its routes, in order.
    pub fn condition_fields(&self) -> Vec<String> {
        let mut names = Vec::new();
        for route in &self.routes {
            RouteConditions::compile(route).0.add_fields(&mut names);
        }
        names.sort_unstable();
        names.dedup();
        names
    }
}

impl ConditionSet {
    /// Adds the names of header fields that it looks at.
    fn add_fields(&self, names: &mut Vec<String>) {
        names.extend(self.header.iter().map(|(name, _)| name.clone()));
        names.extend(self.repeated.iter().cloned());
        self.not.iter().for_each(|not| not.add_fields(names));
    }

    /// Whether the condition, or its exclusions, depend on the client's country.
    fn uses_country(&self) -> bool {
        !self.country.is_empty() || self.not.iter().any(Self::uses_country)
    }

    /// The first condition that the request does not meet.
    fn first_unmet(&self, request: &RouteRequest, fields: &impl ConditionFields) -> Option<RouteMatch> {
        if self.matches_path(request.path) {
            self.first_unmet_except_path(request, fields)
        } else {
            Some(RouteMatch::Path)
        }
    }

    fn matches_path(&self, path: &[u8]) -> bool {
        self.path.is_empty() || self.path.iter().any(|pattern| pattern.matches(path))
    }

    /// Whether the condition, or its exclusions, depend on more than path and query of a request.
    fn has_conditions(&self) -> bool {
        let of_fields = !self.header.is_empty() || !self.host.is_empty() || !self.referer.is_empty();
        let of_fields = of_fields || !self.repeated.is_empty();
        let of_client = !self.client.is_empty() || !self.country.is_empty();
        of_fields || of_client || !self.method.is_empty() || self.not.iter().any(Self::has_conditions)
    }

    /// The first condition but `path` that the request does not meet.
    #[inline]
    fn first_unmet_except_path(
        &self,
        request: &RouteRequest,
        fields: &impl ConditionFields,
    ) -> Option<RouteMatch> {
        if !self.host.is_empty() && !self.host.iter().any(|host| host.matches_authority(request.host)) {
            return Some(RouteMatch::Host);
        }
        let head_for_get = |method: &String| method == "GET" && request.method == b"HEAD";
        let takes = |method: &String| method.as_bytes() == request.method || head_for_get(method);
        if !self.method.is_empty() && !self.method.iter().any(takes) {
            return Some(RouteMatch::Method);
        }
        if !self.repeated.is_empty() && !self.repeated.iter().any(|name| is_repeated(fields, name)) {
            return Some(RouteMatch::Repeated);
        }
        if !self.referer.is_empty() && !self.referer.iter().any(|one| one.matches_request(fields)) {
            return Some(RouteMatch::Referer);
        }
        if !self.client.is_empty() && !self.client.iter().any(|source| source.contains(request.client)) {
            return Some(RouteMatch::Client);
        }
        if !self.country.is_empty() && !self.country.iter().any(|one| one.matches(request.country)) {
            return Some(RouteMatch::Country);
        }
        let fails =
            |(name, pattern): &Condition| !fields.any_value(name, &mut |value| pattern.matches_bytes(value));
        if let Some(index) = self.header.iter().position(fails) {
            return Some(RouteMatch::Header(index));
        }
        let absent = |(name, pattern): &Condition| !pattern.matches_parameter(request.query, name);
        if let Some(index) = self.query.iter().position(absent) {
            return Some(RouteMatch::Query(index));
        }
        let excludes = |not: &ConditionSet| not.first_unmet(request, fields).is_none();
        self.not.iter().position(excludes).map(RouteMatch::Excluded)
    }
}

/// Whether a request has a field more than once.
fn is_repeated(fields: &impl ConditionFields, name: &str) -> bool {
    let mut count = 0;
    fields.any_value(name, &mut |_| {
        count += 1;
        count > 1
    })
}

/// Why a site was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SiteMatch {
    /// The site names the host.
    Exact,
    /// The site has the longest wildcard that matches.
    Wildcard,
    /// The site is the default site.
    Default,
    /// No site has this host.
    None,
}

/// The result of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteMatch {
    /// The route handles the request.
    Matched,
    /// The path does not match.
    Path,
    /// The host does not match.
    Host,
    /// The method does not match.
    Method,
    /// No field of `repeated` occurs more than once.
    Repeated,
    /// The referring page does not match.
    Referer,
    /// The client address does not match.
    Client,
    /// The client's country does not match.
    Country,
    /// The header condition of this index does not match.
    Header(usize),
    /// The query condition of this index does not match.
    Query(usize),
    /// The `not` of this index excludes the request.
    Excluded(usize),
    /// An earlier route answers.
    NotReached,
}

/// Explanation of how a request finds its route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The site, as an index into `Config::sites`.
    pub site: Option<usize>,
    /// Why this site.
    pub site_match: SiteMatch,
    /// The result of each of the site's routes.
    pub route_matches: Vec<RouteMatch>,
}

impl Explanation {
    /// Returns the explanation as text, one line for the site and one for each route. `sites` must be those
    /// that were compiled.
    pub fn text(&self, sites: &[Arc<Site>]) -> String {
        let Some(site) = self.site.and_then(|site| sites.get(site)) else {
            return "no site has this host, and there is no default site: 404\n".to_owned();
        };
        let why = match self.site_match {
            SiteMatch::Exact => "names this host",
            SiteMatch::Wildcard => "has the longest wildcard that matches this host",
            SiteMatch::Default | SiteMatch::None => "no other site has this host",
        };
        let mut lines = vec![format!("{}: {why}", site_text(site))];
        lines.extend(
            site.routes.iter().zip(&self.route_matches).map(|(route, step)| route_text(route, *step)),
        );
        if !self.route_matches.contains(&RouteMatch::Matched) {
            lines.push("  no route matches: 404".to_owned());
        }
        lines.join("\n") + "\n"
    }
}

fn site_text(site: &Site) -> String {
    let place = site.line.as_ref().map_or(String::new(), |line| format!(" ({line})"));
    match site.hosts.first() {
        Some(host) => format!("site {host}{place}"),
        None => format!("default site{place}"),
    }
}

fn route_text(route: &Route, step: RouteMatch) -> String {
    let paths: Vec<&str> = route.path.iter().map(|path| path.as_str()).collect();
    let paths = if paths.is_empty() { "every path".to_owned() } else { paths.join(", ") };
    let mark = if step == RouteMatch::Matched { ">" } else { " " };
    let why = match step {
        RouteMatch::Matched => format!("matches: {}", action_text(route)),
        RouteMatch::Path => "the path does not match".to_owned(),
        RouteMatch::Host => "it is for other hosts (`host`)".to_owned(),
        RouteMatch::Method => format!("the method is not {}", route.method.join(" or ")),
        RouteMatch::Repeated => format!("no field occurs more than once ({})", route.repeated.join(", ")),
        RouteMatch::Referer => "it is for requests from other pages (`referer`)".to_owned(),
        RouteMatch::Client => "it is for other clients (`client`)".to_owned(),
        RouteMatch::Country => "it is for clients of other countries (`country`)".to_owned(),
        RouteMatch::Header(index) => unmet_text("header field", &route.header[index]),
        RouteMatch::Query(index) => unmet_text("query parameter", &route.query[index]),
        RouteMatch::Excluded(_) if route.not.len() == 1 => "its `not` excludes the request".to_owned(),
        RouteMatch::Excluded(index) => format!("table {} of its `not` excludes the request", index + 1),
        RouteMatch::NotReached => "not reached".to_owned(),
    };
    let line = route.line.as_ref().map_or(String::new(), |line| format!("{line}: "));
    format!("{mark} {line}{paths}: {why}")
}

/// The actions, and upstream servers by name.
fn action_text(route: &Route) -> String {
    let words = std::iter::once(&route.action).chain(&route.otherwise).map(|action| match action {
        Action::Proxy(proxy) => {
            let urls: Vec<String> = proxy.to.iter().map(|upstream| upstream.url.to_string()).collect();
            format!("proxy to {}", urls.join(", "))
        }
        Action::App(app) => format!("app {}", app.name),
        action => action.name().to_owned(),
    });
    words.collect::<Vec<_>>().join(", otherwise ")
}

fn unmet_text(what: &str, (name, pattern): &Condition) -> String {
    match pattern.as_str() {
        "*" => format!("there is no {what} `{name}`"),
        text => format!("the {what} `{name}` is not `{text}`"),
    }
}

/// The host in lower case, without port and final dot; empty if it is too long for a host.
fn normalize_host<'s>(host: &[u8], space: &'s mut [u8; HOST_BYTES_MAX]) -> &'s [u8] {
    let end = match host.first() {
        Some(b'[') => host.iter().position(|&byte| byte == b']').map_or(host.len(), |at| at + 1),
        _ => host.iter().position(|&byte| byte == b':').unwrap_or(host.len()),
    };
    let host = host[..end].strip_suffix(b".").unwrap_or(&host[..end]);
    let Some(lower) = space.get_mut(..host.len()) else { return &[] };
    lower.copy_from_slice(host);
    lower.make_ascii_lowercase();
    lower
}

#[cfg(test)]
mod tests;
