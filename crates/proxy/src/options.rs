//! Options of a proxy: plain data from which [`crate::GroupShared`] and [`crate::Proxy`] are built.

use std::path::PathBuf;

use http::Template;
pub use net::ProxyProtocol;
use shapes::client_abort::ClientAbort;
use times::Millis;

pub use crate::directives::{
    Eject, Forwarded, HealthCheck, KeepAlive, ProxyHeaders, ProxyLimits, ProxyOptions, ProxyTimeouts, Retry,
    SameSite, StickyCookie,
};
pub use crate::origin::{Balance, CgiProtocol, HashKey, Host, Origin};

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
    pub ejection: Option<Eject>,
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
    /// Whether servers may be at addresses of this machine and its links: loopback, link-local and unspecified ones. Default
    /// yes.
    pub allows_local: bool,
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
    pub timeouts: ProxyTimeouts,
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
    /// HTTP/3, which needs TLS.
    Http3,
    /// A protocol of the CGI family.
    Cgi(CgiProtocol),
    /// Any protocol: connections are relayed. Health checks use HTTP/1.1.
    Tcp,
    /// Any protocol: datagrams are relayed. Health checks use HTTP/1.1 over TCP.
    Udp,
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
    /// Names of which the certificate must have one, instead of `name`: host names or URIs.
    pub verify_names: Vec<String>,
    /// Whether any certificate is accepted. This allows anyone on the network path to read and change all
    /// traffic. Default no.
    pub insecure: bool,
}

/// Rules for rewriting request heads. Hop-by-hop fields and those that `Connection` names are never
/// forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestOptions {
    /// Value of `Host`. Default: the client's.
    pub host: Host,
    /// Fields that name the client and this proxy. Default `X-Forwarded-For`, `-Proto`, `-Host` and `Via`. Values from a
    /// trusted proxy ([`net::Client::vouched`]) are extended; those from any other sender are replaced. Without `Via`
    /// loops are not detected.
    pub forwarded: Forwarded,
    /// Whether fields with `_` in their names are forwarded, which many applications confuse with `-`.
    /// Default no.
    pub underscores: bool,
    /// Names of fields on which routing depends. Fields with a different spelling that applications may
    /// confuse with one of them are not forwarded.
    pub routing_fields: Vec<String>,
    /// Fields to remove, set and add.
    pub edits: ProxyHeaders,
}

/// Rules for changing responses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseOptions {
    /// Whether `Location`, `Content-Location` and `Refresh` values that name an upstream server or its path
    /// are mapped to the client's view, and the paths of cookies as well. Default yes.
    pub rewrite: bool,
    /// Beginnings of `Location` and `Refresh` and their replacements.
    pub locations: Vec<(String, Template)>,
    /// Cookie domains and their replacements; an empty replacement removes the attribute.
    pub cookie_domains: Vec<(String, String)>,
    /// Attributes of the cookie of [`Balance::Sticky`].
    pub sticky: StickyCookie,
    /// Fields to remove, set and add.
    pub edits: ProxyHeaders,
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
    /// Whether it stands for a name that has no server at present.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        matches!(&self.address, UpstreamAddress::Tcp { host, .. } if host.is_empty())
    }

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

    /// Whether requests share connections: over HTTP/2 and HTTP/3.
    #[must_use]
    pub fn shares_connections(&self) -> bool {
        matches!(self.protocol, UpstreamProtocol::Http2 | UpstreamProtocol::Http3)
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
            let scheme = protocol.name();
            return match &self.address {
                UpstreamAddress::Unix(path) => write!(f, "{scheme}+unix:{}", path.display()),
                UpstreamAddress::Tcp { .. } => write!(f, "{scheme}://{}", self.authority()),
            };
        }
        match (&self.address, &self.tls) {
            (UpstreamAddress::Tcp { host, port }, _)
                if matches!(self.protocol, UpstreamProtocol::Tcp | UpstreamProtocol::Udp) =>
            {
                let scheme = if self.protocol == UpstreamProtocol::Udp { "udp" } else { "tcp" };
                if host.contains(':') {
                    write!(f, "{scheme}://[{host}]:{port}")
                } else {
                    write!(f, "{scheme}://{host}:{port}")
                }
            }
            (UpstreamAddress::Unix(path), _) => write!(f, "unix:{}", path.display()),
            (UpstreamAddress::Tcp { .. }, None) if self.shares_connections() => {
                write!(f, "h2c://{}", self.authority())
            }
            (UpstreamAddress::Tcp { .. }, None) => write!(f, "http://{}", self.authority()),
            (UpstreamAddress::Tcp { .. }, Some(_)) => match self.protocol {
                UpstreamProtocol::Http3 => write!(f, "h3://{}", self.authority()),
                _ => write!(f, "https://{}", self.authority()),
            },
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
            ejection: Some(Eject::default()),
            check: None,
            slow_start: Millis(0),
            queue_max: 1_000,
            resolve_interval: Millis(30_000),
            allows_local: true,
            proxy_protocol: None,
            lenient_heads: false,
        }
    }

    /// Whether a group with these options becomes one with the others by replacing servers with such that are spoken to in
    /// the same way.
    #[must_use]
    pub fn differs_in_servers_alone(&self, other: &GroupOptions) -> bool {
        let without = |options: &GroupOptions| GroupOptions { servers: Vec::new(), ..options.clone() };
        let Some(first) = self.servers.first() else { return false };
        let is_alike = |server: &UpstreamServer| server.protocol == first.protocol && server.tls == first.tls;
        without(self) == without(other) && self.servers.iter().chain(&other.servers).all(is_alike)
    }

    /// Creates the options of the group that a table declares, with these servers.
    #[must_use]
    pub fn of(proxy: &ProxyOptions, servers: Vec<UpstreamServer>) -> GroupOptions {
        GroupOptions {
            servers,
            balance: proxy.balance.clone(),
            keep_alive: proxy.keep_alive.clone(),
            ejection: proxy.eject.clone(),
            check: proxy.health.clone(),
            slow_start: proxy.slow_start,
            queue_max: proxy.queue_max as usize,
            resolve_interval: proxy.resolve,
            allows_local: true,
            proxy_protocol: proxy.proxy_protocol,
            lenient_heads: proxy.lenient_heads,
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

impl RouteOptions {
    /// Creates the options of a route that a table declares. `path` maps its paths to those of its servers, and
    /// `are_of_cgi` says whether these speak a protocol of the CGI family, which has the client's address in variables.
    #[must_use]
    pub fn of(proxy: &ProxyOptions, path: Option<PathMap>, are_of_cgi: bool) -> RouteOptions {
        let mut forwarded = proxy.forwarded.clone();
        forwarded.x_forwarded = forwarded.x_forwarded.or(Some(!are_of_cgi));
        forwarded.via = forwarded.via.filter(|_| !are_of_cgi);
        RouteOptions {
            timeouts: proxy.timeouts.clone(),
            retry: proxy.retry.clone(),
            request: RequestOptions {
                host: proxy.host.clone(),
                forwarded,
                underscores: proxy.underscores,
                routing_fields: Vec::new(),
                edits: proxy.request_headers.clone(),
            },
            response: ResponseOptions {
                rewrite: proxy.rewrite,
                locations: proxy.locations.clone(),
                cookie_domains: proxy.cookie_domains.clone(),
                sticky: proxy.sticky.clone(),
                edits: proxy.response_headers.clone(),
            },
            path,
            upgrades: proxy.upgrades.clone(),
            cancels_on_disconnect: proxy.client_abort == ClientAbort::Cancel,
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
}

impl Default for RouteOptions {
    fn default() -> RouteOptions {
        RouteOptions {
            timeouts: ProxyTimeouts::default(),
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

impl Default for RequestOptions {
    fn default() -> RequestOptions {
        RequestOptions {
            host: Host::default(),
            forwarded: Forwarded { x_forwarded: Some(true), ..Forwarded::default() },
            underscores: false,
            routing_fields: Vec::new(),
            edits: ProxyHeaders::default(),
        }
    }
}

impl Default for ResponseOptions {
    fn default() -> ResponseOptions {
        ResponseOptions {
            rewrite: true,
            locations: Vec::new(),
            cookie_domains: Vec::new(),
            sticky: StickyCookie::default(),
            edits: ProxyHeaders::default(),
        }
    }
}
