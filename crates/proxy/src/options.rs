//! Options of a proxy: plain data from which [`crate::GroupShared`] and [`crate::Proxy`] are built.

use std::path::PathBuf;

use http::{Status, Template};
pub use net::ProxyProtocol;
use times::Millis;

/// A group of upstream servers: options that all its routes share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GroupOptions {
    /// The servers; at least one.
    pub servers: Vec<UpstreamServer>,
    /// The load-balancing method. Default round robin.
    pub balance: Balance,
    /// Options of connections kept for the next request.
    pub keep_alive: KeepAlive,
    /// Rules for ejecting a failing server; `None`: servers are never ejected.
    pub ejection: Option<Ejection>,
    /// Active health checks; `None` for none.
    pub check: Option<HealthCheck>,
    /// Time over which the weight of a server that is back in service grows to its full value, in
    /// milliseconds; 0: immediately (default).
    pub slow_start: Millis,
    /// Maximum queued requests while every server is at its `connections_max`; more are refused with 503.
    /// Default 1,000.
    pub queue_max: usize,
    /// Interval between resolutions of a name, in milliseconds. Default 30,000.
    pub resolve_interval: Millis,
    /// Version of the PROXY protocol header at the beginning of each connection, which names the client. Such
    /// a connection serves one client and is not kept. `None`: no header (default).
    pub proxy_protocol: Option<ProxyProtocol>,
    /// Whether some errors in response heads are repaired (see [`http::Limits::lenient_heads`]) and a lone LF
    /// ends a line. Applies to health checks and HTTP/2; routes have their own value in
    /// [`RouteOptions::head_limits`]. Default no.
    pub lenient_heads: bool,
}

/// Options of a route to a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteOptions {
    /// Timeouts.
    pub timeouts: UpstreamTimeouts,
    /// Rules for retrying a request.
    pub retry: Retry,
    /// Rules for rewriting request heads.
    pub request: RequestOptions,
    /// Rules for changing responses.
    pub response: ResponseOptions,
    /// Mapping of a path prefix to the upstream's; `None`: the path is unchanged.
    pub path: Option<PathMap>,
    /// Protocols that a client may switch to (`Upgrade`), in lower case. Default `websocket`. `h2c` is never
    /// forwarded, because HTTP/2 requests in the tunnel would bypass all rules.
    pub upgrades: Vec<String>,
    /// Whether the request of a client that has left (`net::Exchange::has_disconnected`) is cancelled. A request
    /// whose connection is reset is always cancelled. Default yes.
    pub cancels_on_disconnect: bool,
    /// Maximum bytes of a response read ahead of a slow client, in addition to the socket buffers. A response
    /// that fits frees its upstream connection immediately. A request whose `Content-Length` fits is read
    /// completely before it uses a connection. Default 64 KiB.
    pub read_ahead_bytes: usize,
    /// Options for FastCGI, uwsgi and SCGI servers.
    pub cgi: CgiOptions,
    /// Limits of response heads; a head that exceeds them causes a 502. Default 32 KiB, 200 fields.
    pub head_limits: http::Limits,
}

/// An upstream server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UpstreamServer {
    /// Address of the server.
    pub address: UpstreamAddress,
    /// TLS options; `None`: no TLS.
    pub tls: Option<Tls>,
    /// Protocol of the server. Default HTTP/1.1.
    pub protocol: UpstreamProtocol,
    /// Share of the requests. 0: the server gets no requests. Default 1.
    pub weight: u32,
    /// Whether the server gets requests only if no other server is in service. Default no.
    pub backup: bool,
    /// Maximum concurrent requests, over all cores; 0: no limit (default).
    pub connections_max: u32,
    /// Display name, for an address that is not meaningful. Default: the server's URL.
    pub name: Option<String>,
}

/// Protocol of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum UpstreamProtocol {
    /// HTTP/1.1 (default).
    #[default]
    Http1,
    /// HTTP/2: negotiated by ALPN over TLS, otherwise by prior knowledge.
    Http2,
    /// A protocol of the CGI family.
    Cgi(CgiProtocol),
    /// Any protocol: connections are relayed. Health checks use HTTP/1.1.
    Tcp,
}

/// A protocol that carries variables instead of an HTTP head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CgiProtocol {
    /// FastCGI 1.0, responder role. Connections are kept.
    FastCgi,
    /// uwsgi, modifier 0. One request per connection.
    Uwsgi,
    /// SCGI. One request per connection.
    Scgi,
    /// SCGI to this server's own process that starts CGI programs. The sending side is closed after the body,
    /// because a program reads its input to the end.
    Program,
}

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum UpstreamAddress {
    /// A host and a port.
    Tcp {
        /// A name to be resolved, an IPv4 address, or an IPv6 address without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// A Unix socket.
    Unix(PathBuf),
}

/// TLS options for connections to a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tls {
    /// Name for SNI and certificate verification; `None`: the server's host name.
    pub name: Option<String>,
    /// Trusted root certificates (PEM), instead of the system's.
    pub roots_pem: Option<Vec<u8>>,
    /// Client certificate chain and private key (PEM), for servers that request a client certificate.
    pub identity_pem: Option<(Vec<u8>, Vec<u8>)>,
    /// Whether any certificate is accepted. This allows anyone on the network path to read and change all
    /// traffic. Default no.
    pub insecure: bool,
}

/// The load-balancing method.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Balance {
    /// Servers in turn, by weight (default).
    #[default]
    RoundRobin,
    /// The server with the fewest requests under way, by weight.
    LeastRequests,
    /// The less busy of two servers picked at random: nearly as even, without herding.
    TwoChoices,
    /// The same server for the same key; few keys move when servers are added or removed.
    Hash(HashKey),
    /// The server that a cookie names. For a client without the cookie, round robin; the response then sets
    /// the cookie.
    Sticky {
        /// Name of the cookie.
        cookie: String,
    },
}

/// Source of the hash key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HashKey {
    /// The client's IP address.
    Client,
    /// The value of a request field.
    Field(String),
    /// The value of a cookie.
    Cookie(String),
    /// The path and query.
    Uri,
}

/// Connections kept for the next request. All numbers are per server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeepAlive {
    /// Maximum idle connections, over all cores. 0: none are kept, and requests are sent with `Connection:
    /// close`. Default 1,024.
    pub idle_max: usize,
    /// Maximum idle time of a connection, in milliseconds; less if the server announces less (`Keep-Alive:
    /// timeout`). Default 60,000.
    pub idle_timeout: Millis,
    /// Number of requests after which a connection is closed; 0: no limit (default).
    pub requests_max: u32,
}

/// Timeouts in milliseconds, with a resolution of a tenth of a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamTimeouts {
    /// To connect, including name resolution and TLS handshake. Default 5,000.
    pub connect: Millis,
    /// From the last byte of the request to the complete response head. Default 60,000.
    pub head: Millis,
    /// Between two pieces of a body, in either direction. Default 60,000.
    pub between: Millis,
    /// The whole request, including retries and the body; 0: no limit (default).
    pub total: Millis,
    /// Wait in the queue while all servers are at their limits. Default 10,000.
    pub queue: Millis,
    /// Idle time of an upgraded connection. Default 3,600,000.
    pub tunnel: Millis,
    /// Wait for the server's `100 Continue`; after it the body is sent anyway. Default 1,000.
    pub expect_continue: Millis,
    /// Since the client closed its sending side, or since the server last sent something after that, while
    /// the client may still wait for the response. 0: no limit (default).
    pub half_closed: Millis,
}

/// Rules for retrying a request, on another server if there is one. A request is retried only before the
/// response to the client begins, and only if nothing was sent or the method is idempotent (RFC 9110 section
/// 9.2.2). A kept connection that turns out to be closed does not count as an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Maximum attempts, including the first; at least 1. Default 3.
    pub attempts_max: u32,
    /// Retries per 100 requests, so that retries do not overload the remaining servers of a failing group.
    /// Ten retries are available initially. Default 20.
    pub budget_percent: u32,
    /// Response statuses that count as failures: 502, 503, 504, 429. Default none.
    pub statuses: Vec<Status>,
    /// Whether requests with non-idempotent methods are retried too. Default no.
    pub non_idempotent: bool,
    /// Maximum bytes of a request body kept for a retry; a longer body is not retried. Default 64 KiB.
    pub body_bytes_max: usize,
}

/// Rules for ejecting a failing server, which then gets no requests for some time. Failures are connections
/// that cannot be opened or break before the response, timeouts and invalid responses. The only server of a
/// group is never ejected; if all servers are ejected, they get requests nevertheless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ejection {
    /// Consecutive failures that eject a server; at least 1. Default 3.
    pub failures_max: u32,
    /// Duration of the first ejection, in milliseconds, doubled by each consecutive one. After it, one
    /// request probes the server. Default 5,000.
    pub first: Millis,
    /// Maximum duration in milliseconds. Default 300,000.
    pub max: Millis,
}

/// Active health checks: requests that the proxy itself sends to each server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HealthCheck {
    /// The check.
    pub probe: Probe,
    /// Interval in milliseconds. Default 5,000.
    pub interval: Millis,
    /// Timeout of a check in milliseconds. Default 2,000.
    pub timeout: Millis,
    /// Consecutive successful checks that return a server to service. Default 2.
    pub rise: u32,
    /// Consecutive failed checks that take a server out of service. Default 3.
    pub fall: u32,
}

/// A health check.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Probe {
    /// Opens a connection (and completes the TLS handshake).
    Connect,
    /// Sends `GET path`; the response must have a status in `first..=last`.
    Get {
        /// The path.
        path: String,
        /// Value of `Host`; `None`: the server's own.
        host: Option<String>,
        /// Lowest status of a healthy server. Default 200.
        first: u16,
        /// Highest status of a healthy server. Default 399.
        last: u16,
    },
}

/// Rules for rewriting request heads. Hop-by-hop fields and those that `Connection` names are never
/// forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestOptions {
    /// Value of `Host`. Default: the client's.
    pub host: Host,
    /// Fields that name the client. Default `X-Forwarded-For`, `-Proto`, `-Host`. Values from a trusted proxy
    /// ([`net::Client::vouched`]) are extended; those from any other sender are replaced.
    pub forwarded: Forwarded,
    /// Pseudonym of this proxy in `Via`. Empty: no `Via` is sent and loops are not detected. Default
    /// `komainu`.
    pub via: String,
    /// Whether fields with `_` in their names are forwarded, which many applications confuse with `-`.
    /// Default no.
    pub underscores: bool,
    /// Names of fields on which routing depends. Fields with a different spelling that applications may
    /// confuse with one of them are not forwarded.
    pub routing_fields: Vec<String>,
    /// Fields to remove, set and add.
    pub edits: Edits,
}

/// Value of `Host` in forwarded requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Host {
    /// The client's value (default).
    #[default]
    Pass,
    /// The server's own `host[:port]`.
    Upstream,
    /// This value.
    Set(String),
}

/// Fields that name the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forwarded {
    /// `X-Forwarded-For`, `X-Forwarded-Proto`, `X-Forwarded-Host`.
    pub x_forwarded: bool,
    /// `Forwarded` (RFC 7239).
    pub standard: bool,
}

/// Fields to remove, set and add, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    /// Names of fields to remove, case-insensitive.
    pub remove: Vec<String>,
    /// Fields that replace those of the same name.
    pub set: Vec<(String, Template)>,
    /// Fields added, beside existing ones of the same name.
    pub add: Vec<(String, Template)>,
}

/// Rules for changing responses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseOptions {
    /// Whether `Location`, `Content-Location` and `Refresh` values that name an upstream server or its path
    /// are mapped to the client's view, and the paths of cookies as well. Default yes.
    pub rewrite: bool,
    /// Cookie domains and their replacements; an empty replacement removes the attribute.
    pub cookie_domains: Vec<(String, String)>,
    /// Fields to remove, set and add.
    pub edits: Edits,
}

/// Options for FastCGI, uwsgi and SCGI servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgiOptions {
    /// Variables to set, replacing those of the same name. Default none.
    pub variables: Vec<(String, Template)>,
    /// Whether encoded slashes are forwarded. If so, paths have the form that routes match
    /// ([`http::path::matched_path`]), in which `%2F` and `%252F` differ. Default no.
    pub keeps_encoded_slashes: bool,
}

/// Mapping of a path prefix to the upstream's: `/api` to `/`, `/shop` to `/apps/shop`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathMap {
    /// Prefix of the client's path, decoded; ends at a segment boundary.
    pub(crate) from: String,
    /// `from`, percent-encoded.
    pub(crate) from_encoded: Vec<u8>,
    /// Replacement of the prefix, percent-encoded.
    pub(crate) to: String,
}

impl UpstreamServer {
    /// Creates a server with weight 1, without TLS or a limit.
    #[must_use]
    pub fn new(at: UpstreamAddress) -> UpstreamServer {
        UpstreamServer {
            address: at,
            tls: None,
            protocol: UpstreamProtocol::Http1,
            weight: 1,
            backup: false,
            connections_max: 0,
            name: None,
        }
    }

    /// Whether the protocol is HTTP/2.
    #[must_use]
    pub fn is_http2(&self) -> bool {
        self.protocol == UpstreamProtocol::Http2
    }

    /// Returns `host[:port]` for `Host`; the scheme's default port is omitted.
    #[must_use]
    pub fn authority(&self) -> String {
        let own_port = if self.tls.is_some() { 443 } else { 80 };
        match &self.address {
            UpstreamAddress::Unix(_) => "localhost".into(),
            UpstreamAddress::Tcp { host, port } => {
                let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
                if *port == own_port { host } else { format!("{host}:{port}") }
            }
        }
    }
}

impl std::fmt::Display for UpstreamServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(name) = &self.name {
            return f.write_str(name);
        }
        if let UpstreamProtocol::Cgi(protocol) = self.protocol {
            let scheme = match protocol {
                CgiProtocol::FastCgi => "fastcgi",
                CgiProtocol::Uwsgi => "uwsgi",
                CgiProtocol::Scgi => "scgi",
                CgiProtocol::Program => "cgi",
            };
            return match &self.address {
                UpstreamAddress::Unix(path) => write!(f, "{scheme}+unix:{}", path.display()),
                UpstreamAddress::Tcp { .. } => write!(f, "{scheme}://{}", self.authority()),
            };
        }
        match (&self.address, &self.tls) {
            (UpstreamAddress::Tcp { host, port }, _) if self.protocol == UpstreamProtocol::Tcp => {
                match host.contains(':') {
                    true => write!(f, "tcp://[{host}]:{port}"),
                    false => write!(f, "tcp://{host}:{port}"),
                }
            }
            (UpstreamAddress::Unix(path), _) => write!(f, "unix:{}", path.display()),
            (UpstreamAddress::Tcp { .. }, None) if self.is_http2() => write!(f, "h2c://{}", self.authority()),
            (UpstreamAddress::Tcp { .. }, None) => write!(f, "http://{}", self.authority()),
            (UpstreamAddress::Tcp { .. }, Some(_)) => write!(f, "https://{}", self.authority()),
        }
    }
}

impl GroupOptions {
    /// Creates the default options for these servers.
    #[must_use]
    pub fn new(servers: Vec<UpstreamServer>) -> GroupOptions {
        GroupOptions {
            servers,
            balance: Balance::default(),
            keep_alive: KeepAlive::default(),
            ejection: Some(Ejection::default()),
            check: None,
            slow_start: Millis(0),
            queue_max: 1_000,
            resolve_interval: Millis(30_000),
            proxy_protocol: None,
            lenient_heads: false,
        }
    }

    /// Returns the head limits for uses that belong to no single route: a route's defaults.
    pub(crate) fn head_limits(&self) -> http::Limits {
        let bare_lf = self.lenient_heads;
        let lenient_heads = self.lenient_heads;
        http::Limits { bare_lf, lenient_heads, ..RouteOptions::default().head_limits }
    }

    /// Whether connections are kept for the next request.
    #[must_use]
    pub fn keeps_connections(&self) -> bool {
        self.keep_alive.idle_max > 0 && self.proxy_protocol.is_none()
    }
}

impl Default for RouteOptions {
    fn default() -> RouteOptions {
        RouteOptions {
            timeouts: UpstreamTimeouts::default(),
            retry: Retry::default(),
            request: RequestOptions::default(),
            response: ResponseOptions::default(),
            path: None,
            upgrades: vec!["websocket".into()],
            cancels_on_disconnect: true,
            read_ahead_bytes: 64 * 1024,
            cgi: CgiOptions::default(),
            head_limits: http::Limits {
                head_bytes_max: 32 * 1024,
                fields_max: 200,
                ..http::Limits::default()
            },
        }
    }
}

impl Default for KeepAlive {
    fn default() -> KeepAlive {
        KeepAlive { idle_max: 1_024, idle_timeout: Millis(60_000), requests_max: 0 }
    }
}

impl Default for UpstreamTimeouts {
    fn default() -> UpstreamTimeouts {
        UpstreamTimeouts {
            connect: Millis(5_000),
            head: Millis(60_000),
            between: Millis(60_000),
            total: Millis(0),
            queue: Millis(10_000),
            tunnel: Millis(3_600_000),
            expect_continue: Millis(1_000),
            half_closed: Millis(0),
        }
    }
}

impl Default for Retry {
    fn default() -> Retry {
        Retry {
            attempts_max: 3,
            budget_percent: 20,
            statuses: Vec::new(),
            non_idempotent: false,
            body_bytes_max: 64 * 1024,
        }
    }
}

impl Default for Ejection {
    fn default() -> Ejection {
        Ejection { failures_max: 3, first: Millis(5_000), max: Millis(300_000) }
    }
}

impl Default for HealthCheck {
    fn default() -> HealthCheck {
        let probe = Probe::Get { path: "/".into(), host: None, first: 200, last: 399 };
        HealthCheck { probe, interval: Millis(5_000), timeout: Millis(2_000), rise: 2, fall: 3 }
    }
}

impl Default for RequestOptions {
    fn default() -> RequestOptions {
        RequestOptions {
            host: Host::default(),
            forwarded: Forwarded { x_forwarded: true, standard: false },
            via: "komainu".into(),
            underscores: false,
            routing_fields: Vec::new(),
            edits: Edits::default(),
        }
    }
}

impl Default for ResponseOptions {
    fn default() -> ResponseOptions {
        ResponseOptions { rewrite: true, cookie_domains: Vec::new(), edits: Edits::default() }
    }
}
