//! Effective settings of a route, merged from all levels.

use crate::error_pages::ErrorPages;
use crate::replace::BodyEdit;
use crate::response_headers::ResponseHeaders;
use crate::server::Config;
use crate::site::{EncodedSlashes, Route, Site};
use admission::auth::Auth;
use admission::cors::Cors;
use admission::crawlers::Crawlers;
use admission::maintenance::Maintenance;
use cache::CachePolicy;
use net::BandwidthLimit;
use net::CompressResponses;
use shapes::network::TrustedSource;
use std::time::Duration;

/// The settings of one route, with the server's and the site's taken into account.
#[derive(Debug, Clone, PartialEq)]
pub struct RouteSettings<'a> {
    /// Bytes of a request body; unlimited if absent.
    pub body_bytes_max: Option<u64>,
    /// Number of header fields of a request; `None` if only the limit of the server applies.
    pub headers_max: Option<u32>,
    /// Maximum time without a byte of the request body from the client.
    pub body_timeout: Duration,
    /// Maximum time in which the client reads nothing of its response.
    pub write_timeout: Duration,
    /// Treatment of requests with encoded slashes.
    pub encoded_slashes: EncodedSlashes,
    /// Whether empty segments of paths are merged: the site's setting, because it applies before a route is chosen.
    pub merge_slashes: bool,
    /// Whether requests without TLS are redirected where the site speaks TLS.
    pub redirect_https: bool,
    /// Compression of responses, if there is any.
    pub compress: Option<&'a CompressResponses>,
    /// The cache of responses, if there is any.
    pub cache: Option<&'a CachePolicy>,
    /// The users and passwords that are asked for, if there are any.
    pub auth: Option<&'a Auth>,
    /// Whether errors of applications and upstream servers have the pages of the site.
    pub intercept_errors: bool,
    /// Bandwidth limit of responses, if any.
    pub bandwidth: Option<&'a BandwidthLimit>,
    /// Origins that may read responses.
    pub cors: Option<&'a Cors>,
    /// Maintenance mode of the site.
    pub maintenance: Option<&'a Maintenance>,
    /// Rules of the site for crawlers.
    pub crawlers: Option<&'a Crawlers>,
    /// Clients that each level admits, where it names some; a client must be in all of them.
    pub allow: Vec<&'a [TrustedSource]>,
    /// Clients that a level refuses.
    pub deny: Vec<&'a [TrustedSource]>,
    /// Error pages, the innermost level first.
    pub error_pages: Vec<&'a ErrorPages>,
    /// Texts that are replaced in bodies.
    pub replace: &'a [BodyEdit],
    /// Changes to response headers, in the order in which they apply.
    pub response_headers: Vec<&'a ResponseHeaders>,
}

impl Config {
    /// The settings of a site, or of one of its routes, with the server's and the site's taken into account.
    pub fn settings(&self, site: Option<usize>, route: Option<usize>) -> RouteSettings<'_> {
        let site = site.and_then(|site| self.sites.get(site));
        let route = site.zip(route).and_then(|(site, route)| site.routes.get(route));
        let limits = [route.map(|route| &route.limits), site.map(|site| &site.limits)];
        let timeouts = [route.map(|route| &route.timeouts), site.map(|site| &site.timeouts)];
        let timeouts = || timeouts.into_iter().flatten();
        let headers = [
            Some(&self.response_headers),
            site.map(|site| &site.response_headers),
            route.map(|route| &route.response_headers),
        ];
        let body_bytes_max = limits.into_iter().flatten().find_map(|limits| limits.body_bytes_max);
        let encoded_slashes =
            route.and_then(|route| route.encoded_slashes).or(site.and_then(|site| site.encoded_slashes));
        RouteSettings {
            encoded_slashes: encoded_slashes.unwrap_or(self.encoded_slashes),
            redirect_https: site.and_then(|site| site.redirect_https).unwrap_or(self.redirect_https),
            merge_slashes: site.and_then(|site| site.merge_slashes).unwrap_or(self.merge_slashes),
            body_bytes_max: body_bytes_max.unwrap_or(self.limits.body_bytes_max),
            headers_max: route.and_then(|route| route.headers_max).or(site.and_then(|site| site.headers_max)),
            body_timeout: timeouts().find_map(|timeouts| timeouts.body).unwrap_or(self.timeouts.body),
            write_timeout: timeouts().find_map(|timeouts| timeouts.write).unwrap_or(self.timeouts.write),
            compress: innermost([
                route.map(|route| &route.compress),
                site.map(|site| &site.compress),
                Some(&self.compress),
            ]),
            cache: innermost([route.map(|route| &route.cache), site.map(|site| &site.cache)]),
            cors: innermost([route.map(|route| &route.cors), site.map(|site| &site.cors)]),
            maintenance: innermost([site.map(|site| &site.maintenance), Some(&self.maintenance)]),
            crawlers: innermost([site.map(|site| &site.crawlers), Some(&self.crawlers)]),
            allow: [site.map(|site| &site.allow), route.map(|route| &route.allow)]
                .into_iter()
                .flatten()
                .filter_map(Option::as_deref)
                .collect(),
            deny: [site.map(|site| &site.deny), route.map(|route| &route.deny)]
                .into_iter()
                .flatten()
                .filter(|denied| !denied.is_empty())
                .map(Vec::as_slice)
                .collect(),
            error_pages: site.map(|site| &site.error_pages).into_iter().chain([&self.error_pages]).collect(),
            intercept_errors: route
                .and_then(|route| route.intercept_errors)
                .or(site.and_then(|site| site.intercept_errors))
                .unwrap_or(false),
            replace: route
                .and_then(|route| route.replace.as_deref())
                .or(site.and_then(|site| site.replace.as_deref()))
                .unwrap_or_default(),
            bandwidth: innermost([route.map(|route| &route.bandwidth), site.map(|site| &site.bandwidth)]),
            auth: innermost([route.map(|route| &route.auth), site.map(|site| &site.auth)]),
            response_headers: headers.into_iter().flatten().filter(|rules| !rules.is_empty()).collect(),
        }
    }
}

impl Site {
    /// The cache of one of its routes: that of the route, or its own. As [`RouteSettings::cache`], where nothing else is asked.
    pub fn cache_of<'a>(&'a self, route: &'a Route) -> Option<&'a CachePolicy> {
        innermost([Some(&route.cache), Some(&self.cache)])
    }
}

/// Returns the value of the innermost level that sets one.
fn innermost<const LEVELS: usize, T>(levels: [Option<&Option<Option<T>>>; LEVELS]) -> Option<&T> {
    levels.into_iter().flatten().find_map(Option::as_ref)?.as_ref()
}
