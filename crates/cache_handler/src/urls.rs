//! Cache rules for a URL named by an operator: the forms of the URL in keys, and the rules that apply to it.

use cache::CachePolicy;
use cache::{Cache, key};
use config::Config;
use config::matcher::{RouteRequest, Routes};
use failure::Failure;
use http::path::{self, EmptySegments};
use http::{HeadRef, Limits, RequestHead};
use net::ConfiguredListener;

use crate::rules::{CacheRules, MatchedRules, RouteSuffix};

/// A hypothetical GET request for a URL.
pub(crate) struct NamedRequest {
    pub(crate) head: RequestHead,
    pub(crate) bytes: Vec<u8>,
}

impl NamedRequest {
    /// Creates the request for a URL, in the form used in keys, with these fields.
    ///
    /// # Errors
    /// The URL or a field is invalid.
    pub(crate) fn new<'f>(
        url: &[u8],
        fields: impl Iterator<Item = &'f str>,
    ) -> Result<NamedRequest, Failure> {
        let host = key::host(url);
        let target = &key::without_scheme(url)[2 + host.len()..];
        let mut bytes = [b"GET ", target, b" HTTP/1.1\r\nHost: ", host, b"\r\n"].concat();
        for field in fields {
            if field.contains(['\r', '\n']) || !field.contains(':') {
                return Err(Failure::new(format!("{field:?} is not a header field: write \"Name: value\"")));
            }
            bytes.extend_from_slice(format!("{field}\r\n").as_bytes());
        }
        bytes.extend_from_slice(b"\r\n");
        let mut head = RequestHead::default();
        match head.parse(&bytes, &Limits::default()) {
            Ok(true) => Ok(NamedRequest { head, bytes }),
            _ => Err("these are no URL and header fields of a request".into()),
        }
    }

    fn host(&self) -> &[u8] {
        self.head.authority.of(&self.bytes)
    }

    fn query(&self) -> Option<&[u8]> {
        self.head.target.query.map(|query| query.of(&self.bytes))
    }

    fn path(&self) -> &[u8] {
        self.head.target.path(&self.bytes)
    }

    fn field(&self, name: &str) -> Option<&[u8]> {
        let mut fields = self.head.fields.iter();
        let is_it = |found: &[u8]| found.eq_ignore_ascii_case(name.as_bytes());
        fields.find(|field| is_it(field.name.of(&self.bytes))).map(|field| field.value.of(&self.bytes))
    }
}

/// Returns the key of the listener that a request for this host would arrive at: one with the host's port, or
/// else the first one of the configuration.
pub fn listener_key_for(config: &Config, host: &[u8], is_https: bool) -> u64 {
    let port = http::target::split_port(host).and_then(|(_, port)| port);
    let port = port.and_then(|port| std::str::from_utf8(port).ok()?.parse::<u16>().ok());
    let port = port.unwrap_or(if is_https { 443 } else { 80 });
    let has_port = |listener: &&ConfiguredListener| listener.address.port() == Some(port);
    let named = config.listeners().find(has_port).or_else(|| config.listeners().next());
    named.map_or(0, |listener| config.listener_key(&listener.address))
}

/// Cache rules of the route that serves a request, and those that match the request.
pub(crate) struct NamedRules {
    pub(crate) rules: CacheRules,
    pub(crate) matched: MatchedRules,
}

fn rules_of(policy: &CachePolicy) -> CacheRules {
    CacheRules::new(policy, RouteSuffix::default())
}

fn empty_segments(merge_slashes: bool) -> EmptySegments {
    if merge_slashes { EmptySegments::Merge } else { EmptySegments::Keep }
}

/// Returns the rules for a request. `None` if no route serves it, `Some(None)` if the route that does has no
/// cache.
pub(crate) fn rules_for(
    config: &Config,
    request: &NamedRequest,
    is_https: bool,
) -> Option<Option<NamedRules>> {
    let routes = Routes::compile(config);
    let listener_key = listener_key_for(config, request.host(), is_https);
    let site = routes
        .site(request.host(), listener_key)
        .or_else(|| routes.sites_for_host(request.host()).first().copied())?;
    let empty = empty_segments(config.settings(Some(site), None).merge_slashes);
    let path = path::matched_path(request.path(), empty).ok()?;
    let query = request.query().unwrap_or_default();
    let wanted = RouteRequest {
        host: request.host(),
        listener_key,
        method: b"GET",
        path: &path,
        query,
        client: None,
        country: None,
    };
    let route = routes.find_in(site, &wanted, |name: &str| request.field(name))?;
    Some(config.settings(Some(site), Some(route)).cache.map(|policy| {
        let rules = rules_of(policy);
        let matched = rules.matched_by(HeadRef::new(&request.head, &request.bytes), &path);
        NamedRules { rules, matched }
    }))
}

/// Returns all forms that a URL may have in keys, according to the routes that may serve it. They begin with
/// `//` or a scheme, as `url` does.
pub(crate) fn key_urls(config: &Config, cache: &Cache, url: &[u8]) -> Vec<Vec<u8>> {
    let mut urls = vec![url.to_vec()];
    let Ok(request) = NamedRequest::new(url, std::iter::empty()) else { return urls };
    let origin = &url[..url.len() - key::without_scheme(url).len() + 2 + key::host(url).len()];
    let sites = Routes::compile(config).sites_for_host(request.host());
    let routes = sites.into_iter().flat_map(|site| {
        config.sites[site].routes.iter().enumerate().map(move |(index, route)| (site, index, route))
    });
    for (site, index, route) in routes {
        let settings = config.settings(Some(site), Some(index));
        let empty = empty_segments(settings.merge_slashes);
        let paths = (path::matched_path(request.path(), empty), path::encoded_path(request.path(), empty));
        let (Some(policy), (Ok(path), Ok(encoded))) = (settings.cache, paths) else { continue };
        let sent = path::encoded_path(request.path(), EmptySegments::AsSent).unwrap_or_default();
        if !route.path.is_empty() && !route.path.iter().any(|pattern| pattern.matches(&path)) {
            continue;
        }
        for query in rules_of(policy).key_queries(&path, request.query()) {
            let query = query.map(|query| [b"?", &query[..]].concat()).unwrap_or_default();
            urls.extend([&encoded, &sent].map(|path| [origin, path, &query].concat()));
        }
    }
    for at in 0..urls.len() {
        for scheme in [&b""[..], b"http:", b"https:"] {
            let mut stated = [scheme, &urls[at]].concat();
            if let Some(search) = cache.search_rules.find(&stated) {
                key::rewrite_query(&mut stated, |query| search.normal(query));
                urls.push(stated);
            }
        }
    }
    urls.sort_unstable();
    urls.dedup();
    urls
}
