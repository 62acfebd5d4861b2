//! The `proxy` action: which upstream servers, and how requests and responses are forwarded.

use crate::cgi_program::Cgi;
use crate::origin::{Balance, Host, Origin, ProxyHttp, UrlShape, check_protocols, group_name};
use crate::scripts::Scripts;
use http::{Status, Template};
use net::ProxyProtocol;
use settings::checker::{Checker, DefinedVariables, InvalidValue};
use settings::directive_table::{brief, table};
use settings::directives;
use settings::node::{Entry, Node};
use settings::shape::{
    Count, Flag, List, Map, Mapped, Maybe, OneOrMore, PathShape, Size, Text, Time, Toggle, Unlimited, Word,
};
use settings::units::{KIB, MIB, SPILL_MAX};
use shapes::client_abort::{CLIENT_ABORT, ClientAbort};
use shapes::header;
use shapes::names::parse_variable_name;
use shapes::prefix::{StripPrefix, parse_rooted_path, parse_strip_prefix};
use shapes::template::{TemplateShape, parse_template};
use std::path::PathBuf;
use std::time::Duration;
use times::Millis;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);
/// Browsers keep no cookie for longer than 400 days.
const COOKIE_AGE_MAX: Duration = Duration::from_secs(400 * 86_400);
const WAIT: Mapped<Time, Millis> = duration(Duration::from_millis(10), DAY);
/// Versions of the PROXY protocol, or none.
pub const PROXY_PROTOCOL: Word<Option<ProxyProtocol>> =
    Word(&[("off", None), ("v1", Some(ProxyProtocol::V1)), ("v2", Some(ProxyProtocol::V2))]);

/// A length of time that a core measures.
pub const fn duration(min: Duration, max: Duration) -> Mapped<Time, Millis> {
    Mapped { shape: Time { min, max }, map: Millis::of }
}

const BALANCE: Text<Balance> =
    Text { what: "a way of balancing such as \"least-requests\"", parse: Balance::parse };
const STATUSES: List<Mapped<Count<u16>, Status>> = List(Mapped {
    shape: Count { min: 400, max: 599 },
    map: |code| Status::of(code).unwrap_or(Status::BAD_GATEWAY),
});
const PROTOCOLS: List<Text<String>> =
    List(Text { what: "a protocol such as \"websocket\"", parse: parse_protocol });
const NAMES: List<Text<String>> = List(Text { what: "a header name", parse: parse_rule_name });
const FIELDS: Map<String, TemplateShape> = Map {
    what: "header names",
    key: parse_rule_name,
    value: TemplateShape { what: "a header value", parse: parse_value_template },
};
const VARIABLES: Map<String, TemplateShape> = Map {
    what: "names of variables",
    key: parse_variable_name,
    value: TemplateShape { what: "a value", parse: parse_value_template },
};
const LOCATIONS: Map<String, TemplateShape> = Map {
    what: "beginnings of URLs",
    key: parse_url_start,
    value: TemplateShape { what: "the beginning of a URL", parse: parse_value_template },
};
const DOMAINS: Map<String, Text<String>> =
    Map { what: "cookie domains", key: parse_domain, value: Text { what: "a domain", parse: parse_domain } };

directives! {
    /// Forwards requests to upstream servers. A URL, or a list of URLs, is shorthand for `to`. Connections to upstream
    /// servers are kept for further requests by default.
    ///
    /// ```toml
    /// [[route]]
    /// path  = "/api/*"
    /// proxy = { to = ["http://127.0.0.1:3000", "unix:/run/api.sock"], balance = "least-requests" }
    ///
    /// [[route]]
    /// proxy = "http://127.0.0.1:8000"
    /// ```
    ///
    /// Komainu writes each request to the upstream server from its parsed form; fields that concern a single connection
    /// (RFC 9110 section 7.6.1) are not forwarded. If the route has `files` too, upstream servers only get requests
    /// that no file answers.
    ///
    /// Routes that use the same servers share them under a name: their connections, limits, health and balancing. A
    /// directive of the route replaces that of the group as a whole.
    ///
    /// ```toml
    /// [upstreams.shop]
    /// to      = ["http://10.0.0.1:3000", "http://10.0.0.2:3000"]
    /// balance = "least-requests"
    /// health  = "/up"
    ///
    /// [[route]]
    /// path  = "/reports/*"
    /// proxy = { upstream = "shop", timeouts = { head = "10m" } }
    ///
    /// [[route]]
    /// proxy = { upstream = "shop" }
    /// ```
    ProxyOptions named "Proxy" in "`proxy` and `[upstreams.NAME]`", check proxy_agrees {
        /// The upstream server, or several: URLs, or tables with more settings.
        "to" to: Vec<Upstream> = absent("the servers of `upstream`"), OneOrMore(brief::<Upstream>("url"));
        /// The `[upstreams.NAME]` that has the servers.
        "upstream" upstream: Option<String> = absent("the servers in `to`"),
            Maybe(Text { what: "the name of an `[upstreams.NAME]`", parse: group_name });
        /// Load-balancing method. `"round-robin"`: each server in turn. `"least-requests"`: the server with
        /// the fewest running requests. `"two-choices"`: the less busy of two random servers.
        /// `"hash:client"`, `"hash:uri"`, `"hash:header:NAME"` and `"hash:cookie:NAME"`: the same server for
        /// the same client address, path and query, field or cookie. `"sticky"`: the server named by a cookie
        /// that the proxy sets (`"sticky:COOKIE"` sets the name of the cookie).
        "balance" balance: Balance = "round-robin", BALANCE;
        /// Attributes of the cookie that `"sticky"` sets.
        "sticky" sticky: StickyCookie = {}, table();
        /// Connections kept for further requests; `false` keeps none.
        "keep_alive" keep_alive: KeepAlive = {}, Toggle { on: None, off: KeepAlive::none, shape: table() };
        /// Timeouts.
        "timeouts" timeouts: ProxyTimeouts = {}, table();
        /// Conditions for sending a request again; `false` never.
        "retry" retry: Retry = {}, Toggle { on: None, off: Retry::none, shape: table() };
        /// Conditions for ejecting a failing server, so that it gets no requests for a time. `false` ejects
        /// none.
        "eject" eject: Option<Eject> = {}, Toggle { on: None, off: || None, shape: Maybe(table::<Eject>()) };
        /// Health checks: requests of the proxy itself that find out which servers are healthy. A path alone requests
        /// that path; `true` only connects.
        "health" health: Option<HealthCheck> = false,
            Toggle { on: Some(|| Some(HealthCheck::default())), off: || None, shape: Maybe(brief::<HealthCheck>("path")) };
        /// The time after which a server that is back in service gets its full share of requests.
        "slow_start" slow_start: Millis = "0s", duration(Duration::ZERO, HOUR);
        /// Requests that wait while every server is at its `connections`; if there are more, they are answered 503.
        "queue" queue_max: u32 = 1000, Count { min: 0, max: 1_000_000 };
        /// Interval at which names are resolved again.
        "resolve" resolve: Millis = "30s", duration(SECOND, DAY);
        /// The version of HTTP that servers with `https` URLs are asked over: `"1.1"`, or `"2"`, which they have to offer (ALPN).
        /// Requests share few connections over HTTP/2, which gRPC needs. A server in the clear is asked over HTTP/2 if its URL
        /// begins with `h2c://`, and any over HTTP/3 if it begins with `h3://`.
        "http" http: ProxyHttp = "1.1", Word(&[("1.1", ProxyHttp::Http1), ("2", ProxyHttp::Http2)]);
        /// TLS to servers with `https` URLs.
        "tls" tls: ProxyTls = {}, table();
        /// The value of `Host`: `"pass"`, what the client sent, even if it is empty; `"upstream"`, the name of the
        /// upstream server; or a text.
        "host" host: Host = "pass",
            Text { what: "\"pass\", \"upstream\" or a host", parse: upstream_host };
        /// Fields with the client's address.
        "forwarded" forwarded: Forwarded = {}, table();
        /// Changes to the header fields of requests.
        "request_headers" request_headers: ProxyHeaders = {}, table();
        /// Changes to the header fields of the upstream server's responses; those of the route apply after them.
        "response_headers" response_headers: ProxyHeaders = {}, table();
        /// Whether fields with `_` in their names are forwarded; applications cannot distinguish them from those with
        /// `-`. `X_Forwarded_For`, `Content_Type` and others that are known with `-` never are, nor are other spellings of
        /// the fields that the `header` conditions of the site name.
        "underscores" underscores: bool = false, Flag;
        /// The prefix to remove from the path: `true` removes what the route's `path` has before its final `/*`, a text
        /// removes that text.
        "strip_prefix" strip_prefix: StripPrefix = false,
            Toggle {
                on: Some(|| StripPrefix::OfRoute),
                off: || StripPrefix::None,
                shape: Text { what: "the start of a path, such as \"/api\"", parse: parse_strip_prefix },
            };
        /// The prefix to add to the path, after `strip_prefix`.
        "add_prefix" add_prefix: Option<String> = absent("none"),
            Maybe(Text { what: "the start of a path, such as \"/app\"", parse: prefix });
        /// Whether `Location`, `Content-Location` and `Refresh` with the address of an upstream server or its path, and
        /// the paths of cookies, are changed to what the client uses.
        "rewrite" rewrite: bool = true, Flag;
        /// Beginnings of `Location` and `Refresh`, and what replaces them, before `rewrite` is applied; nginx calls it
        /// `proxy_redirect`. The first that fits counts. The replacement may contain the variables of header values.
        ///
        /// ```toml
        /// [[route]]
        /// proxy = { to = "http://127.0.0.1:3000", locations = { "http://old.example/" = "$scheme://$host/" } }
        /// ```
        "locations" locations: Vec<(String, Template)> = {}, LOCATIONS;
        /// Domains of cookies to replace; an empty text removes the domain.
        "cookie_domains" cookie_domains: Vec<(String, String)> = {}, DOMAINS;
        /// The version of the PROXY protocol that sends the client's address to servers at the start of a connection:
        /// `"v1"` is a text line, `"v2"` is binary. Each connection then serves only one client and is not kept.
        "proxy_protocol" proxy_protocol: Option<ProxyProtocol> = "off", PROXY_PROTOCOL;
        /// Protocols to which clients may switch with `Upgrade`.
        "upgrades" upgrades: Vec<String> = ["websocket"], PROTOCOLS;
        /// Bytes of a response that are read ahead of a slow client. A response that fits releases its upstream
        /// connection at once; a request whose announced length fits gets an upstream connection only when its body is
        /// complete.
        "read_ahead" read_ahead_bytes: u64 = "64KiB", Size { min: 4 * KIB, max: 64 * MIB };
        /// Bytes of temporary files (`temp_path`) for what exceeds `read_ahead` of responses, of all clients of the
        /// route together, so that a slow client occupies no upstream connection; `spill` of `[limits]` limits those of
        /// all routes. 0 turns it off. When the files are full, the upstream server waits for slow clients.
        "spill" spill_bytes_max: u64 = "1GiB", Size { min: 0, max: SPILL_MAX };
        /// Handling of requests whose client closes its side of the connection early. `"cancel"`: the request
        /// ends, as with nginx. A client that has asked to close the connection after the response
        /// (`Connection: close`, HTTP/1.0) still gets its response. `"ignore"`: the request is answered,
        /// unless it waits (`queue`, `delay` of a limit, `connections`, `backoff`). A reset always cancels the request.
        "client_abort" client_abort: ClientAbort = "cancel", CLIENT_ABORT;
        /// Variables for servers with `fastcgi`, `uwsgi` or `scgi` URLs, besides those of CGI; one of the same name is replaced.
        /// Values may contain the variables of header values.
        ///
        /// ```toml
        /// [[route]]
        /// proxy = { to = "fastcgi://127.0.0.1:9000", variables = { APP_ENV = "production" } }
        /// ```
        "variables" variables: Vec<(String, Template)> = {}, VARIABLES;
        /// Scripts that `php` may run.
        "scripts" scripts: Scripts = {}, table();
        /// Whether response heads with one of these faults are accepted and repaired: white space before a colon, the same
        /// `Content-Length` more than once, and a lone LF as the end of a line. If not, such a response is answered 502.
        /// Health checks do the same. Other faults, such as different `Content-Length`s, are always refused.
        "lenient_heads" lenient_heads: bool = false, Flag;
        /// Limits on the heads of responses; a response that exceeds them is answered 502.
        "limits" limits: ProxyLimits = {}, table();
    }
    held {
        /// Whether the servers run the scripts among the route's files.
        is_php: bool;
        /// The programs that are run in place of servers.
        cgi: Option<Cgi>;
    }
}

directives! {
    /// An upstream server. A URL alone is shorthand for `url`.
    ///
    /// ```toml
    /// [[route]]
    ///
    /// [route.proxy]
    /// to = [
    ///     { url = "http://10.0.0.1:3000", weight = 2 },
    ///     { url = "http://10.0.0.2:3000" },
    ///     { url = "http://10.0.1.1:3000", backup = true },
    /// ]
    /// ```
    Upstream in "`to` of `proxy`" {
        /// Address of the server: `http://HOST:PORT`, `https://HOST:PORT`, `h2c://HOST:PORT` for HTTP/2
        /// without TLS, `h3://HOST:PORT` for HTTP/3, or `unix:PATH` for a Unix socket. The default port is 80,
        /// or 443 for `https` and `h3`. Servers
        /// that speak FastCGI, uwsgi or SCGI have `fastcgi://HOST:PORT` or `fastcgi+unix:PATH`, and likewise
        /// `uwsgi` and `scgi`; their default ports are 9000, 3031 and 4000.
        ///
        /// `srv+http://NAME` stands for all servers that the SRV records of the name have, and `dns+http://NAME:PORT` for
        /// all addresses of the name; likewise with the other schemes with a host. They are looked up again when the
        /// records expire (`[discover]`).
        "url" url: Origin = required(""), UrlShape;
        /// Share of the requests; 0 for none.
        "weight" weight: u32 = 1, Count { min: 0, max: 1000 };
        /// Whether it is used only if no other server is available.
        "backup" backup: bool = false, Flag;
        /// Requests that it gets at once; further ones wait, limited by `queue` and `timeouts`.
        "connections" connections_max: Option<u32> = "unlimited", Unlimited(Count { min: 1, max: 1_000_000 });
        /// TLS to this server, instead of the group's.
        "tls" tls: Option<ProxyTls> = absent("as the group has it"), Maybe(table::<ProxyTls>());
    }
}

directives! {
    /// Attributes of the cookie that names a client's server. It is always `HttpOnly`.
    ///
    /// ```toml
    /// [[route]]
    ///
    /// [route.proxy]
    /// to      = ["http://10.0.0.1:3000", "http://10.0.0.2:3000"]
    /// balance = "sticky:server"
    /// sticky  = { path = "/shop", max_age = "2d", same_site = "Strict" }
    /// ```
    StickyCookie derives (Eq) in "`sticky` of `proxy`", check sticky_agrees {
        /// Path of the requests that have it.
        "path" path: String = "/", Text { what: "a path such as \"/shop\"", parse: parse_cookie_path };
        /// Domain whose hosts get it.
        "domain" domain: Option<String> = absent("the host of the request"),
            Maybe(Text { what: "a domain", parse: parse_domain });
        /// Requests of other sites that have it: `"Strict"` for none, `"Lax"` for links, `"None"` for all. Browsers refuse a cookie
        /// with `None` that is not `Secure`: to clients without TLS, it is sent without this attribute.
        "same_site" same_site: SameSite = "Lax",
            Word(&[("Strict", SameSite::Strict), ("Lax", SameSite::Lax), ("None", SameSite::None)]);
        /// Time for which browsers keep it.
        "max_age" max_age: Option<Duration> = absent("until the browser ends"),
            Maybe(Time { min: SECOND, max: COOKIE_AGE_MAX });
        /// Whether browsers send it through TLS alone.
        "secure" secure: Option<bool> = absent("whether the client uses TLS"), Maybe(Flag);
    }
}

impl StickyCookie {
    /// Returns the attributes as they follow the cookie's value. `is_secure` is whether the client uses TLS.
    pub(crate) fn text(&self, is_secure: bool) -> String {
        let mut text = format!("; Path={}", self.path);
        if let Some(domain) = &self.domain {
            text += &format!("; Domain={domain}");
        }
        if let Some(age) = self.max_age {
            text += &format!("; Max-Age={}", age.as_secs());
        }
        let is_secure = self.secure.unwrap_or(is_secure);
        text += match self.same_site {
            SameSite::Strict => "; HttpOnly; SameSite=Strict",
            SameSite::Lax => "; HttpOnly; SameSite=Lax",
            SameSite::None if is_secure => "; HttpOnly; SameSite=None",
            // Browsers refuse it.
            SameSite::None => "; HttpOnly",
        };
        if is_secure {
            text += "; Secure";
        }
        text
    }
}

/// Requests of other sites that have a cookie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SameSite {
    /// None.
    Strict,
    /// Those that follow a link.
    #[default]
    Lax,
    /// All.
    None,
}

directives! {
    /// Connections kept for further requests; the numbers are for each server. All threads, and all routes that use the
    /// server, share its idle connections: Komainu opens a new one only if none is idle. Some servers use one process
    /// for each connection: while a new connection waits several times as long as the server usually takes to answer,
    /// other connections are closed after their request instead of kept.
    KeepAlive derives (Eq Hash) in "`keep_alive` of `proxy`" {
        /// Idle connections kept, of all threads together.
        "connections" idle_max: u32 = 1024, Count { min: 0, max: 100_000 };
        /// Maximum idle time of a connection. A shorter time that the server announces takes precedence.
        "idle" idle_timeout: Millis = "60s", WAIT;
        /// Requests after which a connection is closed.
        "requests" requests_max: Option<u32> = "unlimited", Unlimited(Count { min: 1, max: 1_000_000_000 });
    }
}

directives! {
    /// Timeouts of the proxy.
    ProxyTimeouts derives (Eq) in "`timeouts` of `proxy`" {
        /// Maximum time to connect, including name resolution and TLS handshake.
        "connect" connect: Millis = "5s", WAIT;
        /// Maximum time from the last byte of the request to the end of the response head.
        "head" head: Millis = "60s", WAIT;
        /// Maximum time in which the server neither sends nor reads a byte of a body.
        "between" between: Millis = "60s", WAIT;
        /// Maximum time for the whole request, including retries and body.
        "total" total: Option<Millis> = "unlimited", Unlimited(WAIT);
        /// Maximum time that a request waits in the queue while every server is at its `connections`.
        "queue" queue: Millis = "10s", WAIT;
        /// Maximum time without a byte in either direction on an upgraded connection (a WebSocket). Then it
        /// is closed.
        "tunnel" tunnel: Millis = "1h", WAIT;
        /// Maximum wait for the server's `100 Continue`. Then the body is sent without it. If the client
        /// sends the body at once, Komainu does not wait.
        "continue" expect_continue: Millis = "1s", WAIT;
    }
    held {
        /// Since the client closed its sending side, or since the server last sent something after that, while
        /// the client may still wait for the response. Zero: no limit.
        half_closed: Millis;
    }
}

directives! {
    /// Retries of a request, on another server if there is one. A request is sent again only if the client
    /// has received nothing. In addition, nothing must have been sent to the server, or the method must be
    /// idempotent (RFC 9110 section 9.2.2). The first time that a kept-alive connection turns out to be
    /// closed, or that the server refuses a stream of HTTP/2, does not count.
    Retry derives (Eq) in "`retry` of `proxy`" {
        /// Attempts, including the first.
        "attempts" attempts_max: u32 = 3, Count { min: 1, max: 100 };
        /// Retries for each 100 requests, so that retries do not overload the remaining servers of a failing group.
        "budget" budget_percent: u32 = 20, Count { min: 0, max: 1000 };
        /// Statuses of responses that count as failures, such as 502, 503 and 429.
        "statuses" statuses: Vec<Status> = [], STATUSES;
        /// Whether requests with other methods are sent again too, as if they were idempotent. An order may then be
        /// placed twice.
        "non_idempotent" non_idempotent: bool = false, Flag;
        /// Whether the only server of a group is asked again after a connection that failed or timed out, which it most likely will
        /// again.
        "same_server" same_server: bool = false, Flag;
        /// Least time between a failed attempt and the next one; each wait is longer by a random part of up to a half. A request does not
        /// wait if its `total` would pass meanwhile, and ends if its client leaves.
        "backoff" backoff: Millis = "0s", duration(Duration::ZERO, Duration::from_secs(60));
        /// Bytes of a request body that are kept for sending it again; requests with a longer body are not sent again.
        "body" body_bytes_max: u64 = "64KiB", Size { min: 0, max: 64 * MIB };
    }
}

directives! {
    /// When a server is ejected, so that it gets no requests for a time. Failures are connections that are refused,
    /// close before the response, time out, or have no valid response. The only server of a group is never ejected; if
    /// all servers are ejected, they get requests anyway.
    Eject derives (Eq Hash) in "`eject` of `proxy`", check eject_agrees {
        /// Failures in a row.
        "failures" failures_max: u32 = 3, Count { min: 1, max: 1000 };
        /// Duration of the first ejection of a server. Each further ejection is twice as long. Afterwards one
        /// request tests whether the server answers again.
        "first" first: Millis = "5s", WAIT;
        /// The longest time for which a server is ejected.
        "max" max: Millis = "5m", WAIT;
    }
}

directives! {
    /// Health checks: requests of the proxy itself that find out which servers are healthy.
    ///
    /// ```toml
    /// [[route]]
    /// proxy = { to = ["http://10.0.0.1:3000", "http://10.0.0.2:3000"], health = { path = "/up", interval = "2s" } }
    /// ```
    HealthCheck named "Health" derives (Eq Hash) in "`health` of `proxy`", check health_agrees {
        /// The path to request.
        "path" path: Option<String> = absent("connecting is enough"),
            Maybe(Text { what: "a path such as \"/up\"", parse: asked_path });
        /// The value of `Host`.
        "host" host: Option<String> = absent("the server's own"),
            Maybe(Text { what: "a host", parse: host_text });
        /// Statuses of a healthy server: one, or a range.
        "expect" expect: (u16, u16) = "200-399",
            Text { what: "a status such as \"200\", or a range such as \"200-399\"", parse: statuses };
        /// The time between two checks.
        "interval" interval: Millis = "5s", duration(Duration::from_millis(100), DAY);
        /// Maximum time for a response.
        "timeout" timeout: Millis = "2s", WAIT;
        /// Successful checks in a row that put a server back in service.
        "rise" rise: u32 = 2, Count { min: 1, max: 1000 };
        /// Failed checks in a row that take a server out of service.
        "fall" fall: u32 = 3, Count { min: 1, max: 1000 };
    }
}

directives! {
    /// TLS to upstream servers.
    ///
    /// ```toml
    /// [[route]]
    ///
    /// [route.proxy]
    /// to  = "https://10.0.0.1"
    /// tls = { name = "app.internal", ca = "internal-ca.pem", verify_names = ["spiffe://internal/app"] }
    /// ```
    ProxyTls in "`tls` of `proxy`", check tls_agrees {
        /// The name that is sent as SNI and verified in the certificate.
        "name" name: Option<String> = absent("the URL's host"),
            Maybe(Text { what: "a host name", parse: host_text });
        /// Whether the server's certificate is verified. Without that, anyone on the network path can read and change
        /// the traffic.
        "verify" verify: bool = true, Flag;
        /// Names of which the certificate must have one, instead of `name`: host names, or URIs such as
        /// `"spiffe://example.com/app"`.
        "verify_names" verify_names: Vec<String> = absent("the name that is sent as SNI"),
            OneOrMore(Text { what: "a host name or a URI", parse: certificate_name });
        /// Certificates (PEM) of the authorities to trust.
        "ca" ca: Option<PathBuf> = absent("those of the system"), Maybe(PathShape("a file"));
        /// The client certificate chain (PEM), for servers that ask for one.
        "certificate" certificate: Option<PathBuf> = absent("none"), Maybe(PathShape("a file"));
        /// The key of `certificate` (PEM).
        "key" key: Option<PathBuf> = absent("none"), Maybe(PathShape("a file"));
    }
}

directives! {
    /// Fields that tell upstream servers the client's address. The values that `trusted_proxies` sent are kept and
    /// extended; those that other clients sent are replaced.
    Forwarded derives (Eq) in "`forwarded` of `proxy`" {
        /// Whether `X-Forwarded-For`, `X-Forwarded-Proto` and `X-Forwarded-Host` are sent. Servers of FastCGI, uwsgi and
        /// SCGI, and programs, get the client's address in `REMOTE_ADDR`.
        "x_forwarded" x_forwarded: Option<bool> = absent("true; for FastCGI, uwsgi, SCGI and programs false"), Maybe(Flag);
        /// Whether `Forwarded` (RFC 7239) is sent.
        "standard" standard: bool = false, Flag;
        /// The name of this server in `Via`; `false` for no `Via`. A mark of the route and process is added to it; a
        /// request with its own mark is in a loop and is answered 508. FastCGI, uwsgi, SCGI and programs have none.
        "via" via: Option<String> = "komainu",
            Toggle { on: None, off: || None, shape: Maybe(Text { what: "a name", parse: token }) };
    }
}

directives! {
    /// Changes to header fields: `remove`, then `set`, then `add`.
    ProxyHeaders derives (Eq) in "`request_headers` and `response_headers` of `proxy`" {
        /// Fields to set; they replace those of the same name. A value may contain the variables of the site's
        /// `response_headers`, and `$upstream`, the `host:port` of the server that gets the request.
        "set" set: Vec<(String, Template)> = {}, FIELDS;
        /// Fields to add to those of the same name. Values as in `set`.
        "add" add: Vec<(String, Template)> = {}, FIELDS;
        /// Names of fields to remove.
        "remove" remove: Vec<String> = [], NAMES;
    }
}

directives! {
    /// Limits on the heads of responses.
    ProxyLimits in "`limits` of `proxy`" {
        /// Bytes of a head, including the status line.
        "head" head_bytes_max: u64 = "32KiB", Size { min: KIB, max: MIB };
        /// Bytes of a status line.
        "status_line" status_line_bytes_max: u64 = "8KiB", Size { min: 256, max: MIB };
        /// Number of header fields.
        "headers" headers_max: u32 = 200, Count { min: 1, max: 10_000 };
        /// Whether a lone LF ends a line of a response head; `lenient_heads` includes this.
        "lenient_bare_lf" lenient_bare_lf: bool = false, Flag;
    }
}

impl Forwarded {
    /// Whether `X-Forwarded-For` and the like are sent.
    #[must_use]
    pub fn sends_x_forwarded(&self) -> bool {
        self.x_forwarded.unwrap_or(true)
    }
}

impl KeepAlive {
    fn none() -> Self {
        Self { idle_max: 0, ..Self::default() }
    }
}

impl Retry {
    fn none() -> Self {
        Self { attempts_max: 1, ..Self::default() }
    }
}

impl ProxyOptions {
    /// The default settings with these servers.
    pub fn with_servers(urls: impl IntoIterator<Item = Origin>) -> Self {
        let upstream = |url| Upstream { url, ..Upstream::default() };
        Self { to: urls.into_iter().map(upstream).collect(), ..Self::default() }
    }
}

fn proxy_agrees(proxy: &mut ProxyOptions, node: &Node, check: &mut Checker) {
    if proxy.upstream.is_some() {
        return; // the group's directives are checked with the group
    }
    let Some(to) = node.entry("to") else {
        if node.entry("upstream").is_none() {
            let title = format!("`{}.to` is missing", check.directive_path_text());
            let finding = check.error(&node.span, title, "no `to` here");
            finding.help("name the upstream servers here, or a group of them with `upstream`");
        }
        return;
    };
    let items = match node.items("to") {
        [] => std::slice::from_ref(&to.value),
        items => items,
    };
    if items.len() != proxy.to.len() {
        return;
    }
    for (index, upstream) in proxy.to.iter().enumerate() {
        if upstream.url == Origin::default() {
            continue; // reported already: it could not be read
        }
        let earlier = proxy.to[..index].iter().position(|earlier| earlier.url == upstream.url);
        if let Some(earlier) = earlier {
            let finding =
                check.error(&items[index].span, "one upstream server twice".to_owned(), "again here");
            finding
                .related(items[earlier].span.clone(), "first given here")
                .help("give one a `weight` instead");
        }
    }
    if proxy.to.iter().all(|upstream| upstream.backup) {
        let finding =
            check.error(&to.value.span, "only backup servers".to_owned(), "no server without `backup`");
        finding.help("remove `backup` from one: a backup is used only if no other server is available");
    } else if proxy.to.iter().all(|upstream| upstream.weight == 0) {
        let finding =
            check.error(&to.value.span, "every server has the weight 0".to_owned(), "no server can answer");
        finding.help("set the `weight` of at least one above 0");
    }
    for (upstream, item) in proxy.to.iter().zip(items) {
        if let Some(tls) = item.entry("tls").filter(|_| !upstream.url.is_tls()) {
            warn_of_useless_tls(tls, check);
        }
    }
    if let Some(tls) = node.entry("tls").filter(|_| !proxy.to.iter().any(|upstream| upstream.url.is_tls())) {
        warn_of_useless_tls(tls, check);
    }
    check_protocols(proxy.to.iter().map(|upstream| &upstream.url), items, check);
    check_http2(proxy, node, check);
    match node.entry("keep_alive") {
        Some(entry) if proxy.proxy_protocol.is_some() && proxy.keep_alive.idle_max > 0 => {
            let title = "`keep_alive` beside `proxy_protocol`".to_owned();
            check
                .warning(&entry.value.span, title, "has no effect")
                .help("each connection serves one client");
        }
        _ => {}
    }
}

/// Reports directives that HTTP/2 does not support.
fn check_http2(proxy: &ProxyOptions, node: &Node, check: &mut Checker) {
    let has_https = proxy.to.iter().any(|upstream| upstream.url.is_tls() && !upstream.url.is_h3());
    if let Some(http) = node.entry("http").filter(|_| proxy.http == ProxyHttp::Http2 && !has_https) {
        let title = "`http = \"2\"` without an `https` URL".to_owned();
        let finding = check.error(&http.value.span, title, "no server is asked over `https`");
        finding.help("write \"h2c://HOST:PORT\" for HTTP/2 without TLS, or \"https://HOST:PORT\"");
    }
    let is_http2 = |url: &Origin| url.is_h2c() || (proxy.http == ProxyHttp::Http2 && url.is_tls());
    let any = |is_shared: &dyn Fn(&Origin) -> bool| proxy.to.iter().any(|upstream| is_shared(&upstream.url));
    let shared = match () {
        () if any(&Origin::is_h3) => Some("HTTP/3"),
        () if any(&is_http2) => Some("HTTP/2"),
        () => None,
    };
    if let Some(entry) = node.entry("proxy_protocol")
        && let Some(version) = shared.filter(|_| proxy.proxy_protocol.is_some())
    {
        let title = format!("`proxy_protocol` beside {version}");
        let finding =
            check.error(&entry.value.span, title, format!("clients share connections over {version}"));
        finding.help("remove it: `forwarded` sends the client's address with each request");
    }
}

fn warn_of_useless_tls(entry: &Entry, check: &mut Checker) {
    let finding =
        check.error(&entry.key_span, "`tls` without an `https` URL".to_owned(), "no server uses TLS");
    finding.help("write the server's URL as \"https://HOST:PORT\"");
}

fn sticky_agrees(sticky: &mut StickyCookie, node: &Node, check: &mut Checker) {
    let Some(entry) = node.entry("secure").filter(|_| sticky.secure == Some(false)) else { return };
    if sticky.same_site == SameSite::None {
        let title = "`secure = false` with `same_site = \"None\"`".to_owned();
        check
            .error(&entry.value.span, title, "browsers refuse such a cookie")
            .help("remove `secure`, or write `same_site = \"Lax\"`");
    }
}

fn eject_agrees(eject: &mut Eject, node: &Node, check: &mut Checker) {
    if eject.first <= eject.max {
        return;
    }
    let at =
        ["first", "max"].iter().find_map(|key| node.entry(key)).map_or(&node.span, |entry| &entry.value.span);
    check.error(
        at,
        format!("`first` is above `max` in `{}`", check.directive_path_text()),
        "longer than `max`",
    );
}

fn health_agrees(health: &mut HealthCheck, node: &Node, check: &mut Checker) {
    for key in ["host", "expect"] {
        if let Some(entry) = node.entry(key).filter(|_| health.path.is_none() && node.entry("path").is_none())
        {
            let title = format!("`{key}` without `path` in `{}`", check.directive_path_text());
            check
                .error(&entry.key_span, title, "there is no response to check")
                .help("add `path`: without it the check only connects");
        }
    }
}

fn tls_agrees(tls: &mut ProxyTls, node: &Node, check: &mut Checker) {
    for (one, other) in [("certificate", "key"), ("key", "certificate")] {
        if let Some(entry) = node.entry(one).filter(|_| node.entry(other).is_none()) {
            let title = format!("`{one}` without `{other}` in `{}`", check.directive_path_text());
            check.error(&entry.key_span, title, format!("`{other}` is missing"));
        }
    }
    if let Some(entry) = node.entry("ca").filter(|_| !tls.verify) {
        let title = format!("`ca` beside `verify = false` in `{}`", check.directive_path_text());
        check
            .error(&entry.key_span, title, "nothing is verified")
            .help("remove `verify`: `ca` makes the verification succeed");
    }
    if let Some(entry) = node.entry("verify_names").filter(|_| !tls.verify) {
        let title = format!("`verify_names` beside `verify = false` in `{}`", check.directive_path_text());
        check.error(&entry.key_span, title, "nothing is verified").help("remove one of them");
    }
}

fn parse_protocol(text: &str) -> Result<String, InvalidValue> {
    match token(text)?.to_ascii_lowercase().as_str() {
        "h2c" => Err(InvalidValue::new("requests over `h2c` would bypass all rules", "remove it")),
        lower => Ok(lower.to_owned()),
    }
}

fn token(text: &str) -> Result<String, InvalidValue> {
    if text.chars().all(header::is_token_char) && !text.is_empty() {
        Ok(text.to_owned())
    } else {
        Err(InvalidValue::new("a protocol consists of letters, digits and hyphens", ""))
    }
}

/// The name of a field that rules may change.
fn parse_rule_name(text: &str) -> Result<String, InvalidValue> {
    match text.to_ascii_lowercase().as_str() {
        "host" => Err(InvalidValue::new(
            "`Host` is not a field to change",
            "leave it out, and servers get the client's; `host` of `proxy` sets another: \"pass\", \"upstream\" or a name",
        )),
        _ => header::parse_rule_name(text),
    }
}

fn parse_value_template(text: &str, defined_variables: &DefinedVariables) -> Result<Template, InvalidValue> {
    parse_template(
        &header::parse_value(text)?,
        &[header::VARIABLES, &["upstream"]].concat(),
        defined_variables,
    )
}

fn parse_cookie_path(text: &str) -> Result<String, InvalidValue> {
    let is_plain = |c: char| c.is_ascii_graphic() && !matches!(c, ';' | ',' | '"' | '\\');
    if text.starts_with('/') && text.len() <= 1024 && text.chars().all(is_plain) {
        Ok(text.to_owned())
    } else {
        Err(InvalidValue::new("no path of a cookie", "write \"/\" or \"/shop\""))
    }
}

fn parse_url_start(text: &str) -> Result<String, InvalidValue> {
    if !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic()) {
        Ok(text.to_owned())
    } else {
        Err(InvalidValue::new("no beginning of a URL", "write \"http://old.example/\" or \"/old/\""))
    }
}

fn parse_domain(text: &str) -> Result<String, InvalidValue> {
    match text.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))) {
        Some(wrong) => Err(InvalidValue::new(format!("a domain must not contain {wrong:?}"), "")),
        None => Ok(text.to_ascii_lowercase()),
    }
}

fn host_text(text: &str) -> Result<String, InvalidValue> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']');
    match text.char_indices().find(|(_, c)| !fits(*c)) {
        Some((at, wrong)) => {
            let fault = InvalidValue::new(
                format!("a host must not contain {wrong:?}"),
                "write a name such as \"example.com\"",
            );
            Err(fault.within(at..at + wrong.len_utf8()))
        }
        None if text.is_empty() => Err(InvalidValue::new("the host is missing", "")),
        None => Ok(text.to_owned()),
    }
}

/// A host name, or a URI with its scheme.
fn certificate_name(text: &str) -> Result<String, InvalidValue> {
    let is_uri = text.split_once("://").is_some_and(|(scheme, rest)| {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
        !scheme.is_empty() && scheme.chars().all(fits) && !rest.is_empty()
    });
    if is_uri && text.chars().all(|c| c.is_ascii_graphic()) { Ok(text.to_owned()) } else { host_text(text) }
}

/// Parses a value of `host`.
///
/// # Errors
/// The text is neither a word nor a host.
pub fn upstream_host(text: &str) -> Result<Host, InvalidValue> {
    match text {
        "pass" => Ok(Host::Pass),
        "upstream" => Ok(Host::Upstream),
        _ => host_text(text).map(Host::Set),
    }
}

fn prefix(text: &str) -> Result<String, InvalidValue> {
    match parse_strip_prefix(text)? {
        StripPrefix::Text(path) => asked_path(&path),
        _ => Ok(text.to_owned()),
    }
}

/// A path of a request.
fn asked_path(text: &str) -> Result<String, InvalidValue> {
    let path = parse_rooted_path(text)?;
    let wrong = path.char_indices().find(|(_, c)| !c.is_ascii_graphic() || *c == '#');
    let Some((at, wrong)) = wrong else { return Ok(path) };
    let fault = InvalidValue::new(format!("a URL must not contain {wrong:?}"), "percent-encode it");
    Err(fault.within(at..at + wrong.len_utf8()))
}

/// `200`, or `200-399`.
fn statuses(text: &str) -> Result<(u16, u16), InvalidValue> {
    let status =
        |text: &str| text.parse::<u16>().ok().filter(|code| text.len() == 3 && (100..=599).contains(code));
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = status(first).zip(status(last)).filter(|(first, last)| first <= last);
    range.ok_or_else(|| {
        InvalidValue::new("neither a status nor a range of statuses", "write \"200\" or \"200-399\"")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookie_without_same_site_is_secure() {
        let text = |same_site, secure, is_tls| {
            StickyCookie { same_site, secure, ..StickyCookie::default() }.text(is_tls)
        };
        assert_eq!(text(SameSite::None, None, true), "; Path=/; HttpOnly; SameSite=None; Secure");
        assert_eq!(text(SameSite::None, Some(true), false), "; Path=/; HttpOnly; SameSite=None; Secure");
        assert_eq!(text(SameSite::None, None, false), "; Path=/; HttpOnly");
        assert_eq!(text(SameSite::Lax, None, false), "; Path=/; HttpOnly; SameSite=Lax");
        assert_eq!(text(SameSite::Strict, Some(false), true), "; Path=/; HttpOnly; SameSite=Strict");
    }
}
