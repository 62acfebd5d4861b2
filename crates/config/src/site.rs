//! Sites and their routes: which handler answers a request.

use crate::action::{Action, Branch, Redirect, Respond, Split, check_actions};
use crate::conditions::{ConditionSet, HEADER, HOSTS, METHODS, PATHS, QUERY, REPEATED};
use crate::error_pages::{ERROR_PAGES, ErrorPages};
use crate::error_server::ErrorServer;
use crate::geo::{Countries, CountryPattern};
use crate::hsts::{hsts, hsts_year};
use crate::mirror::{self, InjectedFault, Mirror};
use crate::referer::{REFERER, RefererPattern};
use crate::replace::{self, BodyEdit, check_replacements};
use crate::response_headers::ResponseHeaders;
use crate::rewrite::{REWRITE, check_rewrite, route_table};
use crate::snippet;
use admission::auth::{self, Auth};
use admission::cors::{self, Cors};
use admission::crawlers::{self, Crawlers};
use admission::limits::{self, RateLimit};
use admission::maintenance::{self, Maintenance};
use admission::queue::{self, RequestQueue};
use cache::CachePolicy;
use cache::route_policy;
use files::FileOptions;
use http::{Template, Variable};
use logging::RequestLog;
use net::ConfiguredListener;
use net::bandwidth::{self, BandwidthLimit};
use net::compress::{self, CompressResponses};
use net::dictionary::{self, UseAsDictionary};
use net::tls::directives::{SiteTls, site_tls};
use proxy::cgi_program::Cgi;
use proxy::options::ProxyOptions;
use proxy::upstream_group::{PhpServers, Proxied, programs};
use settings::checker::Checker;
use settings::directive_table::{brief, table};
use settings::directives;
use settings::joined_text::ConfigLine;
use settings::node::{Node, NodeData};
use settings::shape::{Count, Flag, List, Maybe, OneOrMore, Size, Text, Time, Toggle, Unlimited, Word};
use settings::units::GIB;
use shapes::host::HostPattern;
use shapes::network::{SOURCE, TrustedSource};
use shapes::pattern::{PathPattern, ValuePattern};
use shapes::prefix::StripPrefix;
use std::time::Duration;

/// Handling of requests with an encoded slash or a backslash in their path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EncodedSlashes {
    /// 400 Bad Request.
    Refuse,
    /// Such requests are answered, and these characters are never decoded.
    Keep,
}

pub(crate) const BODY: Unlimited<Size> = Unlimited(Size { min: 0, max: 1024 * GIB });
pub(crate) const PATIENCE: Time = Time { min: Duration::from_millis(10), max: Duration::from_secs(3600) };
const FIELD_COUNT: Maybe<Count<u32>> = Maybe(Count { min: 1, max: 1000 });
pub(crate) const ENCODED_SLASHES: Word<EncodedSlashes> =
    Word(&[("refuse", EncodedSlashes::Refuse), ("keep", EncodedSlashes::Keep)]);
const HSTS: Text<String> =
    Text { what: "a value such as \"max-age=31536000; includeSubDomains\"", parse: hsts };
directives! {
    /// A site: its hosts and its routes.
    ///
    /// ```toml
    /// [[site]]
    /// hosts = ["example.com", "*.example.com"]
    /// error_pages = { 404 = "errors/404.html", "5xx" = "errors/50x.html" }
    ///
    /// [[site.route]]
    /// files = "public"
    /// ```
    ///
    /// A request is answered by the site that names its host exactly; otherwise by the one with the longest wildcard
    /// that matches; otherwise by the default site, which has no `hosts`. If there is none, the answer is 404. Upper
    /// and lower case are equal, and the port is ignored.
    Site in "`[[site]]`", check site_agrees {
        /// Hosts: a name, an IP address (IPv6 in brackets), or `*.example.com` for every name below `example.com`, at
        /// any depth, but not `example.com` itself. The default site has none.
        "hosts" hosts: Vec<HostPattern> = absent("the default site"), HOSTS;
        /// Addresses at which the site answers. Addresses that are in `listen` at the top of the file have
        /// their settings there. Others are the site's own, or shared with other sites that name them. A site
        /// without `listen` answers at all addresses at the top of the file, and at no others. At each
        /// address a host belongs to one site, and one site may be the default.
        "listen" listen: Vec<ConfiguredListener> = absent("all addresses of `listen` at the top of the file"),
            OneOrMore(brief::<ConfiguredListener>("address").number("address"));
        /// Snippets whose directives the site uses, by name: see `snippet`.
        "use" uses: Vec<String> = absent("none"), snippet::USE;
        /// The clients that the site answers, by address: networks, addresses and `"unix"` for Unix sockets; all others get 403.
        /// A route's own `allow` counts in addition.
        "allow" allow: Option<Vec<TrustedSource>> = absent("every client"), Maybe(OneOrMore(SOURCE));
        /// Clients that get 403, even if they are in `allow`.
        "deny" deny: Vec<TrustedSource> = absent("none"), OneOrMore(SOURCE);
        /// Maintenance mode: a page in place of all others. `false` exempts the site from the server's.
        "maintenance" maintenance: Option<Option<Maintenance>> = absent("as the server has it"), maintenance::policy();
        /// Crawlers that are refused, and robots.txt; `false` for none, if the server has `crawlers`.
        "crawlers" crawlers: Option<Option<Crawlers>> = absent("as the server has it"), crawlers::policy();
        /// Rate limit of the site's routes, all together. See `limit` below. A route's own limits are applied
        /// after it.
        "limit" limit: Vec<RateLimit> = absent("unlimited"), limits::limits();
        /// Number of header fields of a request to the site's routes; those with more get 431. A route's own `header_limit`,
        /// larger or smaller, takes its place.
        "header_limit" headers_max: Option<u32> = absent("as many as `headers` of `[limits]`"), FIELD_COUNT;
        /// Rate at which each response is sent, such as `"1MiB/s"`, or a table. Upgraded connections are not
        /// limited.
        "bandwidth" bandwidth: Option<Option<BandwidthLimit>> = absent("unlimited"), bandwidth::policy();
        /// Origins whose pages may read the responses of the site's routes: `true` for all, without cookies,
        /// or a table.
        "cors" cors: Option<Option<Cors>> = absent("what upstream servers and applications say"), cors::policy();
        /// Texts that are put in place of others in the bodies of the site's responses.
        "replace" replace: Option<Vec<BodyEdit>> = absent("none"), replace::rules();
        /// Users and passwords that the site's routes ask for.
        "auth" auth: Option<Option<Auth>> = absent("none"), auth::policy();
        /// Files to send with errors, by status or by class; a status takes precedence over its class. They are used in
        /// addition to the server's.
        "error_pages" error_pages: ErrorPages = {}, ERROR_PAGES;
        /// Whether `error_pages` are sent in place of errors of applications and upstream servers too, for the statuses that have one;
        /// nginx calls it `proxy_intercept_errors`. `WWW-Authenticate`, `Retry-After` and `Allow` of the response stay.
        "intercept_errors" intercept_errors: Option<bool> = false, Maybe(Flag);
        /// TLS: the site's certificates, or `"auto"` to have the server obtain them. `false` is none.
        /// `listen` defines which addresses use TLS.
        "tls" tls: Option<SiteTls> = absent("`default` of `[tls]`"), site_tls();
        /// Whether requests without TLS are redirected to `https://`, as at the top of the file.
        "redirect_https" redirect_https: Option<bool> = absent("as the server has it"), Maybe(Flag);
        /// Whether browsers must use TLS for the site from then on (`Strict-Transport-Security`, RFC 6797):
        /// `true` for a year, or the field's value. Only responses through TLS carry it.
        "hsts" hsts: Option<String> = false, Toggle { on: Some(hsts_year), off: || None, shape: Maybe(HSTS) };
        /// Whether responses carry `X-Content-Type-Options: nosniff`, `X-Frame-Options: SAMEORIGIN` and
        /// `Referrer-Policy: strict-origin-when-cross-origin`. They replace those of applications and
        /// upstream servers. `response_headers` changes or removes them one by one.
        "security_headers" security_headers: bool = false, Flag;
        /// Changes to the header fields of the site's responses.
        "response_headers" response_headers: ResponseHeaders = {}, table();
        /// Encoded slashes in the paths of the site's requests: `"refuse"` or `"keep"`, as at the top of the file.
        "encoded_slashes" encoded_slashes: Option<EncodedSlashes> = absent("as the server has it"),
            Maybe(ENCODED_SLASHES);
        /// Whether `//` in the paths of the site's requests is one slash, as at the top of the file.
        "merge_slashes" merge_slashes: Option<bool> = absent("as the server has it"), Maybe(Flag);
        /// Compression of the site's responses, instead of the server's setting.
        "compress" compress: Option<Option<CompressResponses>> = absent("as the server has it"), compress::responses();
        /// The cache of responses of the site's `proxy` and `app` routes.
        "cache" cache: Option<Option<CachePolicy>> = absent("none"), route_policy::policy();
        /// Limits of the site's requests, instead of the server's.
        "limits" limits: RouteLimits = {}, table();
        /// Timeouts of the site's requests, instead of the server's.
        "timeouts" timeouts: RouteTimeouts = {}, table();
        /// Access logs of the site's requests, besides those of the server.
        "logs" logs: Vec<RequestLog> = [], List(table());
        /// Routes, in order: the first that matches answers. If none matches, the answer is 404.
        "route" routes: Vec<Route> = [], List(route_table());
    }
    held {
        /// Line where the site begins; `None` for the implicit site of top-level routes.
        line: Option<ConfigLine>;
    }
}

directives! {
    /// A route: conditions, all of which a request must meet, and one action; or `files` with `proxy` or `app`, which
    /// answers if no file does.
    ///
    /// ```toml
    /// [[site]]
    ///
    /// [[site.route]]
    /// path     = "/old/*"
    /// redirect = "/new/$rest"
    ///
    /// [[site.route]]
    /// path    = ["/status", "/health"]
    /// method  = "GET"
    /// header  = { X-Probe = true }
    /// respond = "fine"
    /// ```
    ///
    /// Routes at the top of the file, `[[route]]`, belong to the default site.
    Route in "`[[site.route]]`", check route_agrees {
        /// Paths, one of which must match the whole path of the request, percent-decoded once and without dot segments
        /// and empty segments; an encoded slash or backslash stays `%2F` or `%5C`. Upper and lower case differ. The
        /// route's action gets the same path.
        ///
        /// | pattern | matches |
        /// |---|---|
        /// | `/a` | only that path; `/` is only the root |
        /// | `/a/*` | `/a/` and everything below it, at any depth; not `/a` itself |
        /// | `/a*` | everything that starts with `/a` |
        /// | `*.php` | everything that ends with `.php`, at any depth |
        /// | `/x/*/y` | `*` in the middle is any run of characters without a slash |
        /// | `/x/**/y` | `**` is any run of characters, slashes included |
        /// | `~ ^/user/(?<id>[0-9]+)$` | a regular expression, wherever it is found in the path; `~*` ignores case |
        ///
        /// The first route that matches answers, whatever its pattern: a regular expression has no precedence over a prefix, nor a
        /// prefix over it. What the groups of a regular expression match are variables, `$1` and `$id`, in the route's `redirect`,
        /// `rewrite`, `respond` and header fields, percent-encoded. Regular expressions have RE2's syntax, without look-around and
        /// backreferences, are of bytes and ASCII, and take linear time.
        "path" path: Vec<PathPattern> = absent("every path"), PATHS;
        /// Another path, and perhaps a query, for the action of the route: files, applications and upstream
        /// servers get it in place of the client's; `REQUEST_URI` stays what the client sent. It may contain
        /// the variables of `redirect`. Without a `?` the query is unchanged; with one, it is replaced
        /// (`?id=$id&$args`). After a route without an action, the search begins again from the first route,
        /// with the new path; after 10 rounds the answer is 500.
        ///
        /// ```toml
        /// [[route]]
        /// path    = "~ ^/user/(?<id>[0-9]+)$"
        /// rewrite = "/profile?id=$id"
        /// proxy   = "http://127.0.0.1:3000"
        ///
        /// [[route]]
        /// path    = "/old/*"
        /// rewrite = "/new/$rest"
        ///
        /// [[route]]
        /// path  = "/new/*"
        /// files = "public"
        /// ```
        "rewrite" rewrite: Option<Template> = absent("the client's path"), REWRITE;
        /// Hosts, if the site has several: one of them must be the request's.
        "host" host: Vec<HostPattern> = absent("every host of the site"), HOSTS;
        /// Methods. `GET` includes HEAD.
        "method" method: Vec<String> = absent("every method"), METHODS;
        /// Query parameters, decoded; the request must have each with a value that matches: a text, in which `*`
        /// matches any run of characters, `"~ REGEX"` (`"~* REGEX"` ignores case), or `true` for any value.
        "query" query: Vec<(String, ValuePattern)> = {}, QUERY;
        /// Header fields; the request must have each with a value that matches, as in `query`. If a field or
        /// parameter occurs several times, one match suffices: upstream servers and applications may use
        /// another one.
        "header" header: Vec<(String, ValuePattern)> = {}, HEADER;
        /// Header fields; the request must have one of them more than once. A route that refuses these requests stands before those with
        /// `header` or `referer` if another server, or an application, looks at one of several lines alone.
        ///
        /// ```toml
        /// [[route]]
        /// repeated = "X-Key"
        /// respond  = 400
        ///
        /// [[route]]
        /// header = { X-Key = "a4f0c2" }
        /// files  = "public"
        /// ```
        "repeated" repeated: Vec<String> = absent("every request"), REPEATED;
        /// Pages that link to or embed the resource (`Referer`), by host; one of them must match. `"none"` is
        /// for requests without the field, `"~ REGEX"` for URLs without their scheme. Clients can send any
        /// value: this keeps other sites from showing your images, but is not an access control.
        ///
        /// ```toml
        /// [[route]]
        /// path    = "/images/*"
        /// referer = ["none", "example.com", "*.example.com"]
        /// files   = "public"
        ///
        /// [[route]]
        /// path    = "/images/*"
        /// respond = 403
        /// ```
        "referer" referer: Vec<RefererPattern> = absent("every page"), REFERER;
        /// Clients that the route is for, by address: networks, addresses and `"unix"`. For all others, the search continues with the next
        /// route; `allow` answers them 403.
        "client" client: Vec<TrustedSource> = absent("every client"), OneOrMore(SOURCE);
        /// Countries of clients, by their codes of ISO 3166-1, which need `[geo]`; `"none"` for unknown.
        "country" country: Vec<CountryPattern> = absent("every country"), Countries;
        /// Requests that the route is not for, although its other conditions are met: those that meet all conditions of this table, or of
        /// one table in a list. For them the search continues with the next route.
        ///
        /// ```toml
        /// # Everything but GET and HEAD is refused, except from the office.
        /// [[route]]
        /// not     = [{ method = "GET" }, { client = "192.0.2.0/24" }]
        /// respond = 405
        ///
        /// [[route]]
        /// files = "public"
        /// ```
        "not" not: Vec<ConditionSet> = absent("none"), OneOrMore(brief::<ConditionSet>("path"));
        /// Snippets whose directives the route uses, by name: see `snippet`.
        "use" uses: Vec<String> = absent("none"), snippet::USE;
        /// Clients that the route answers, by address: networks, addresses and `"unix"` for Unix sockets; all
        /// others get 403. The address is the one that `trusted_proxies` report, if they do. The site's
        /// `allow` applies too. A network of IPv6 contains no IPv4 clients: `["0.0.0.0/0", "::/0"]` allows
        /// everybody.
        ///
        /// ```toml
        /// [[route]]
        /// path  = "/admin/*"
        /// allow = ["127.0.0.1", "10.0.0.0/8"]
        /// proxy = "http://127.0.0.1:3000"
        /// ```
        "allow" allow: Option<Vec<TrustedSource>> = absent("every client"), Maybe(OneOrMore(SOURCE));
        /// Clients that get 403, even if they are in `allow`.
        "deny" deny: Vec<TrustedSource> = absent("none"), OneOrMore(SOURCE);
        /// Limit of the request rate per client, or per another key: a rate such as `"10/s"`, or a table, or
        /// a list of them. Requests beyond the limit get 429 with `Retry-After`.
        "limit" limit: Vec<RateLimit> = absent("unlimited"), limits::limits();
        /// Number of header fields of a request, instead of the site's; those with more get 431. `headers` of `[limits]` is checked
        /// before a route is chosen, so that a larger number has no effect. `Host` counts. Over HTTP/2 and HTTP/3, `:authority` counts as
        /// `Host`, the other pseudo-header fields do not count, and all `cookie` fields are one. Files of `internal` routes are not limited by it.
        "header_limit" headers_max: Option<u32> = absent("as the site has it"), FIELD_COUNT;
        /// Limit of concurrent requests in the route's handler, and of the number and time of those that
        /// wait: a number, or a table. Further requests get 503 with `Retry-After`.
        "queue" queue: Option<RequestQueue> = absent("unlimited"), queue::queue();
        /// Rate at which each response is sent, instead of the site's setting; `false` for as fast as clients
        /// read.
        "bandwidth" bandwidth: Option<Option<BandwidthLimit>> = absent("as the site has it"), bandwidth::policy();
        /// Origins whose pages may read the route's responses, instead of the site's setting.
        "cors" cors: Option<Option<Cors>> = absent("as the site has it"), cors::policy();
        /// Texts that are put in place of others in the bodies of the route's responses, instead of the site's; `false` for none.
        "replace" replace: Option<Vec<BodyEdit>> = absent("as the site has it"), replace::rules();
        /// Users and passwords that the route asks for, instead of the site's; `false` for none.
        "auth" auth: Option<Option<Auth>> = absent("as the site has it"), auth::policy();
        /// Changes to the header fields of the route's responses.
        "response_headers" response_headers: ResponseHeaders = {}, table();
        /// Encoded slashes in the paths of the route's requests: `"refuse"` or `"keep"`, as at the top of the file.
        /// Paths are matched with `%2F` and `%5C` in them either way.
        "encoded_slashes" encoded_slashes: Option<EncodedSlashes> = absent("as the site, or the server, has it"),
            Maybe(ENCODED_SLASHES);
        /// Compression of the route's responses, instead of the site's setting.
        "compress" compress: Option<Option<CompressResponses>> = absent("as the site has it"), compress::responses();
        /// The cache of responses of the route's `proxy` or `app`, instead of the site's setting.
        "cache" cache: Option<Option<CachePolicy>> = absent("as the site has it"), route_policy::policy();
        /// Responses that clients keep as dictionaries, so that later ones are sent as the difference from them.
        "use_as_dictionary" dictionaries: Vec<UseAsDictionary> = false, dictionary::rules();
        /// Whether clients get 404 here, and only applications and upstream servers of the same site may have these `files` sent: by
        /// naming one in place of their response, in `X-Accel-Redirect` (a path of the route) or `X-Sendfile` (a path on the disk).
        /// The first route that matches the path decides, and `allow`, `deny`, `auth` and `limit` of this route count.
        ///
        /// ```toml
        /// [[route]]
        /// path     = "/protected/*"
        /// internal = true
        /// files    = { root = "/srv/downloads", strip_prefix = true }
        /// ```
        "internal" internal: bool = false, Flag;
        /// Whether `error_pages` are sent in place of errors of the route's application or upstream servers, instead of the site's setting.
        "intercept_errors" intercept_errors: Option<bool> = absent("as the site has it"), Maybe(Flag);
 /// The server that answers in place of responses with some statuses, before `error_pages`.
        "error_server" error_server: Option<ErrorServer> = absent("none"), Maybe(table());
        /// Whether access logs have the requests of the route.
        "log" log: bool = true, Flag;
        /// Copies of a share of the requests for other servers, whose responses are discarded.
        "mirror" mirrors: Vec<Mirror> = absent("none"), mirror::mirrors();
        /// Faults for tests: delays, errors and closed connections for a share of the requests.
        "fault" faults: Vec<InjectedFault> = absent("none"), mirror::faults();
        /// Limits of the route's requests, instead of the site's.
        "limits" limits: RouteLimits = {}, table();
        /// Timeouts of the route's requests, instead of the site's.
        "timeouts" timeouts: RouteTimeouts = {}, table();
    }
    held {
        /// The action.
        action: Action;
        /// The action for requests that `files` does not answer.
        otherwise: Option<Action>;
        /// Line where the route begins, if it is written in a file.
        line: Option<ConfigLine>;
        /// The route that it belongs to, if it is hidden: a branch, or the way of mirrored requests or of an error server.
        part_of: Option<PartOf>;
    }
    also {
        /// Action: serves files.
        "files" = brief::<FileOptions>("root") => |route, files| route.action = Action::Files(Box::new(files));
        /// Action: forwards requests to upstream servers. With `files`, only requests that no file answers
        /// are forwarded.
        "proxy" = Proxied => |route, proxy| route.otherwise = Some(Action::Proxy(Box::new(proxy)));
        /// Action, beside `files`: lets PHP-FPM, or another FastCGI server, run the scripts among the files:
        /// a URL such as `"unix:/run/php/php-fpm.sock"` or `"127.0.0.1:9000"`, or a table with the settings
        /// of `proxy`. A path names a script if it exists, also with more of the path behind it
        /// (`/index.php/a/b`), or a folder with `index.php`. Other files are sent as they are, never those
        /// with the name of a script. All other requests are for `scripts.front`.
        ///
        /// ```toml
        /// [[route]]
        /// files = "/srv/shop/public"
        /// php   = "unix:/run/php/php-fpm.sock"
        /// ```
        "php" = PhpServers => |route, php| route.otherwise = Some(Action::Proxy(Box::new(php)));
        /// Action: runs a program for each request, by CGI.
        "cgi" = brief::<Cgi>("root") => |route, cgi| route.otherwise = Some(Action::Proxy(Box::new(programs(cgi))));
        /// Action: lets an application answer. Beside `files`, only requests that no file answers.
        "app" = apps::directives::mounted() => |route, app| route.otherwise = Some(Action::App(Box::new(app)));
        /// Action: redirects.
        "redirect" = brief::<Redirect>("to") => |route, to| route.action = Action::Redirect(Box::new(to));
        /// Action: sends a fixed response.
        "respond" = brief::<Respond>("body").number("status") =>
            |route, answer| route.action = Action::Respond(Box::new(answer));
        /// Action: one of several, for a part of the requests each.
        "split" = brief::<Split>("branches") => |route, split| route.action = Action::Split(Box::new(split));
    }
}

directives! {
    /// Limits that a site or route may set.
    RouteLimits in "`limits` of a site or route" {
        /// Bytes of a request body.
        "body" body_bytes_max: Option<Option<u64>> = absent("as the site, or the server, has it"), Maybe(BODY);
    }
}

directives! {
    /// Timeouts that a site or route may set.
    RouteTimeouts in "`timeouts` of a site or route" {
        /// Maximum time without a byte of the request body from the client. Then the request is answered 408.
        "body" body: Option<Duration> = absent("as the site, or the server, has it"), Maybe(PATIENCE);
        /// Maximum time in which the client reads nothing of its response. Then the connection is closed.
        "write" write: Option<Duration> = absent("as the site, or the server, has it"), Maybe(PATIENCE);
    }
}

impl Route {
    /// Returns the route's proxy, also if it is a fallback of `files`.
    pub fn proxy(&self) -> Option<&ProxyOptions> {
        std::iter::once(&self.action).chain(&self.otherwise).find_map(|action| match action {
            Action::Proxy(proxy) => Some(&**proxy),
            _ => None,
        })
    }

    /// Returns the prefix that `strip_prefix` removes, or that comes before `$rest`, if the route's path ends
    /// with `/*`.
    pub fn prefix(&self) -> Option<&str> {
        match self.path.as_slice() {
            [one] => one.prefix(),
            _ => None,
        }
    }

    /// True when every request that matches `other` matches this route too; false if that is not easy to decide.
    fn covers(&self, other: &Self) -> bool {
        let any = |paths: &[PathPattern]| paths.is_empty();
        let path = any(&self.path)
            || !any(&other.path)
                && other.path.iter().all(|that| self.path.iter().any(|this| this.covers(that)))
            || self.path.iter().any(PathPattern::is_any);
        let method = self.method.is_empty()
            || !other.method.is_empty() && other.method.iter().all(|that| self.method.contains(that));
        let conditions = |these: &[(String, ValuePattern)], those: &[(String, ValuePattern)]| {
            these.iter().all(|this| those.contains(this))
        };
        let host = self.host.is_empty() || self.host == other.host;
        let repeated = self.repeated.is_empty() || self.repeated == other.repeated;
        let referer = self.referer.is_empty() || self.referer == other.referer;
        let client = self.client.is_empty() || self.client == other.client;
        let country = self.country.is_empty() || self.country == other.country;
        let not = self.not.iter().all(|this| other.not.contains(this));
        path && method
            && host
            && repeated
            && referer
            && client
            && country
            && not
            && conditions(&self.query, &other.query)
            && conditions(&self.header, &other.header)
    }
}

fn site_agrees(site: &mut Site, node: &Node, check: &mut Checker) {
    site.line = Some(check.line_of(&node.span));
    if node.entry("route").is_none() {
        let title = "a site without routes".to_owned();
        check.warning(&node.span, title, "answers 404 to everything").help("add a `[[site.route]]`");
    }
    limits::check_limits(&site.limit, node, check);
    check_replacements(site.replace.as_deref(), node, check);
    route_policy::warn_of_shared_pages(&site.cache, &[], node, check);
    for (route, node) in site.routes.iter().zip(node.items("route")) {
        let is_of_site = |host: &HostPattern| {
            site.hosts.is_empty() || site.hosts.iter().any(|own| own.shares_hosts_with(host))
        };
        if let Some(entry) = node.entry("host")
            && !route.host.is_empty()
            && !route.host.iter().any(is_of_site)
        {
            let finding = check.warning(
                &entry.value.span,
                "this route never answers".to_owned(),
                "the site has no such host",
            );
            finding.help("write the host in the site's `hosts` too, or give it a site of its own");
        }
    }
    warn_of_unreachable_routes(&site.routes, node.items("route"), check);
}

/// Warns of routes that never answer, because an earlier one matches all their requests.
pub(crate) fn warn_of_unreachable_routes(routes: &[Route], nodes: &[Node], check: &mut Checker) {
    // Each route is compared with each before it. Files with thousands of routes are generated, so the advice
    // is omitted.
    const ROUTES_MAX: usize = 1000;
    // A route that could not be read completely may look broader than it is.
    if check.report.error_count() > 0 || routes.len() != nodes.len() || routes.len() > ROUTES_MAX {
        return;
    }
    for (index, (route, node)) in routes.iter().zip(nodes).enumerate() {
        let Some(earlier) = routes[..index].iter().position(|earlier| earlier.covers(route)) else {
            continue;
        };
        let at = node.entry("path").map_or(&node.span, |entry| &entry.value.span);
        let finding =
            check.warning(at, "this route never answers".to_owned(), "every request that matches it...");
        let by = &nodes[earlier];
        let by = by.entry("path").map_or(&by.span, |entry| &entry.value.span);
        finding.related(by.clone(), "...matches this route first");
        finding.help("the first route that matches answers: put the narrower one first");
    }
}

fn route_agrees(route: &mut Route, node: &Node, check: &mut Checker) {
    route.line = Some(check.line_of(&node.span));
    if check_rewrite(&route.path, route.prefix(), route.rewrite.as_ref(), node, check) {
        route.action = Action::RewriteOnly;
    } else {
        check_actions(&mut route.action, &mut route.otherwise, "a route", &Action::ACTION_NAMES, node, check);
    }
    if let Some(entry) = node.entry("internal").filter(|_| route.internal)
        && (!matches!(route.action, Action::Files(_)) || route.otherwise.is_some())
    {
        let title = "`internal` is for files alone".to_owned();
        let finding = check.error(&entry.key_span, title, "this route has another action");
        finding.help("write a route with `files` alone for what applications may have sent");
    }
    limits::check_limits(&route.limit, node, check);
    check_replacements(route.replace.as_deref(), node, check);
    route_policy::warn_of_shared_pages(&route.cache, &route.path, node, check);
    mirror::check_faults(node, check);
    check_prefix(route, &route.action, &route.otherwise, node, check);
    if let Action::Split(split) = &route.action {
        for (branch, node) in split.branches.iter().zip(branch_nodes(node)) {
            check_prefix(route, &branch.action, &branch.otherwise, node, check);
        }
    }
}

/// The tables of a route's branches.
pub(crate) fn branch_nodes(route: &Node) -> &[Node] {
    match route.entry("split") {
        Some(split) if matches!(split.value.data, NodeData::List(_)) => route.items("split"),
        Some(split) => split.value.items("branches"),
        None => &[],
    }
}

impl Site {
    /// Returns the authentication rules of the site and its routes, including repetitions.
    pub fn auths(&self) -> impl Iterator<Item = &Auth> {
        let routes = self.routes.iter().map(|route| &route.auth);
        [&self.auth].into_iter().chain(routes).flatten().flatten()
    }

    /// Appends hidden routes for branches, mirrors and error servers, which no request matches. They give these the properties
    /// of routes.
    pub(crate) fn add_hidden_routes(&mut self) {
        for index in 0..self.routes.len() {
            let hidden = |part, action, otherwise, of: &Route| Route {
                part_of: Some(PartOf { route: index, kind: part }),
                action,
                otherwise,
                limit: Vec::new(),
                faults: Vec::new(),
                mirrors: Vec::new(),
                ..of.clone()
            };
            let mut route = self.routes[index].clone();
            if let Some(server) = &mut route.error_server {
                let action = Action::Proxy(Box::new(server.to.clone()));
                server.route = self.routes.len();
                self.routes[index].error_server = Some(server.clone());
                let mut asked = hidden(HiddenRouteKind::ErrorServer, action, None, &route);
                (asked.cache, asked.error_server) = (Some(None), None);
                self.routes.push(asked);
            }
            for (at, mirror) in route.mirrors.iter().enumerate() {
                let mut proxy = mirror.to.clone();
                let mark = Template::parse("1", |_| false).expect("a text without variables is a template");
                proxy.request_headers.set.push((MIRROR_FIELD.to_ascii_lowercase(), mark));
                let mut copies =
                    hidden(HiddenRouteKind::Mirror, Action::Proxy(Box::new(proxy)), None, &route);
                (copies.cache, copies.error_server) = (Some(None), None);
                self.routes[index].mirrors[at].route = self.routes.len();
                self.routes.push(copies);
            }
            let Action::Split(split) = &route.action else { continue };
            let next = self.routes.len();
            if let Action::Split(own) = &mut self.routes[index].action {
                own.first_route = next;
            }
            for Branch { name, action, otherwise, line, .. } in &split.branches {
                let part = HiddenRouteKind::Branch(name.clone());
                let branch = hidden(part, action.clone(), otherwise.clone(), &route);
                self.routes.push(Route { line: line.clone(), ..branch });
            }
        }
    }
}

/// Field that marks the copies of a mirror for servers.
pub const MIRROR_FIELD: &str = "X-Mirrored";

/// The route that a hidden route belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PartOf {
    /// Index of the route in the site.
    pub route: usize,
    /// Kind of the hidden route.
    pub kind: HiddenRouteKind,
}

/// Kind of a hidden route.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum HiddenRouteKind {
    /// The way of its mirrored requests.
    #[default]
    Mirror,
    /// The way of its error server.
    ErrorServer,
    /// A branch of its split, by name.
    Branch(String),
}

/// `strip_prefix = true` and `$rest` need a path that ends with `/*`.
fn check_prefix(
    route: &Route,
    action: &Action,
    otherwise: &Option<Action>,
    node: &Node,
    check: &mut Checker,
) {
    for action in std::iter::once(action).chain(otherwise) {
        let (asked, key) = match action {
            Action::Files(files) => (files.strip_prefix == StripPrefix::OfRoute, "strip_prefix"),
            Action::Proxy(proxy) => (proxy.strip_prefix == StripPrefix::OfRoute, "strip_prefix"),
            Action::App(app) => (app.strip_prefix == StripPrefix::OfRoute, "strip_prefix"),
            Action::Redirect(redirect) => (redirect.to.uses(&Variable::Rest), "to"),
            _ => continue,
        };
        let Some(entry) = node.entry(action.name()).filter(|_| asked && route.prefix().is_none()) else {
            continue;
        };
        let at = entry.value.entry(key).map_or(&entry.value.span, |entry| &entry.value.span);
        let what = if key == "to" { "`$rest`" } else { "`strip_prefix = true`" };
        let title = format!("{what} without a single path that ends with `/*` and has no other `*`");
        let finding = check.error(at, title, "there is no prefix to remove");
        match node.entry("path") {
            Some(path) => finding.related(path.value.span.clone(), "has no single `/*` at its end"),
            None => finding.help("give the route a `path` such as \"/old/*\""),
        };
    }
}
