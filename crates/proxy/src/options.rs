//! What a proxy does: plain data, from which [`crate::GroupShared`] and [`crate::Proxy`] are built.

use std::path::PathBuf;

use http::{Status, Template};
pub use net::ProxyProtocol;

/// A group of upstream servers: what all its routes share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GroupOptions {
    /// The servers. At least one.
    pub servers: Vec<UpstreamServer>,
    /// The load-balancing method. Default round robin.
    pub balance: Balance,
    /// Connections kept for the next request.
    pub keep_alive: KeepAlive,
    /// When a server that fails is ejected; `None` for never.
    pub ejection: Option<Ejection>,
    /// Active health checks; `None` for none.
    pub check: Option<HealthCheck>,
    /// A server that is back in service gets its full share only after this time, in milliseconds; 0 at once (default).
    pub slow_start_ms: u64,
    /// Requests that wait when every server is at its `connections_max`; more are refused with 503. Default 1,000.
    pub queue_max: usize,
    /// How often names are resolved again, in milliseconds. Default 30,000.
    pub resolve_ms: u64,
    /// Begin each connection with a PROXY protocol header that names the client. Each connection then serves one
    /// client and is not kept. Default no.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// Whether some faults of response heads are repaired: see [`http::Limits::lenient_heads`], and a lone LF ends a line.
    /// Holds for health checks and HTTP/2; the routes have it in [`RouteOptions::head`] too. Default no.
    pub lenient_heads: bool,
}

/// How a route uses its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteOptions {
    /// How long things may take.
    pub timeouts: UpstreamTimeouts,
    /// When a request is sent again.
    pub retry: Retry,
    /// How request heads are rewritten.
    pub request: RequestOptions,
    /// What is changed in responses.
    pub response: ResponseOptions,
    /// The part of the path that upstream servers see differently; `None` for no part.
    pub path: Option<PathMap>,
    /// Protocols that a client may switch to (`Upgrade`), in lower case. Default `websocket`. `h2c` never passes: HTTP/2
    /// requests in the tunnel would bypass every rule.
    pub upgrades: Vec<String>,
    /// Whether the request of a client that has left (`net::Exchange::has_left`) ends. One whose connection is reset always does.
    /// Default yes.
    pub cancels_left: bool,
    /// Bytes of a response that are read ahead of a slow client, in addition to the socket buffers. A response that fits
    /// frees its upstream connection at once. A request whose `Content-Length` fits is read completely before it uses
    /// a connection. Default 64 KiB.
    pub read_ahead_bytes: usize,
    /// For servers that speak FastCGI, uwsgi or SCGI.
    pub cgi: CgiOptions,
    /// Sizes of response heads; a head beyond them is a 502. Default 32 KiB, 200 fields.
    pub head: http::Limits,
}

/// One upstream server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UpstreamServer {
    /// Its address.
    pub at: UpstreamAddress,
    /// TLS to it; `None` in the clear.
    pub tls: Option<Tls>,
    /// How it is asked. Default HTTP/1.1.
    pub protocol: UpstreamProtocol,
    /// Its share of the requests. 0 takes it out. Default 1.
    pub weight: u32,
    /// Whether it gets requests only when no other server is in service. Default no.
    pub backup: bool,
    /// Requests at once, over all cores; 0 for no limit (default).
    pub connections_max: u32,
    /// What it is shown as, where its address says nothing to people. Default: its URL.
    pub name: Option<String>,
}

/// What a server speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum UpstreamProtocol {
    /// HTTP/1.1 (default).
    #[default]
    Http1,
    /// HTTP/2: by ALPN through TLS, else by prior knowledge.
    Http2,
    /// A protocol of the CGI family.
    Cgi(CgiProtocol),
    /// Whatever its clients speak: connections are relayed. Checks ask it over HTTP/1.1.
    Tcp,
}

/// Protocols that carry variables instead of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CgiProtocol {
    /// FastCGI 1.0, as a responder. Connections are kept.
    FastCgi,
    /// uwsgi, modifier 0. Each request has a connection.
    Uwsgi,
    /// SCGI. Each request has a connection.
    Scgi,
    /// SCGI to this server's own starter of programs, whose input ends with the body.
    Program,
}

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum UpstreamAddress {
    /// A host name or address, and a port.
    Tcp {
        /// A name to be resolved, an IPv4 address, or an IPv6 address without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// A Unix socket.
    Unix(PathBuf),
}

/// TLS to a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tls {
    /// The name to send (SNI) and to verify; `None` for the server's host name.
    pub name: Option<String>,
    /// Certificates (PEM) to trust instead of the system's.
    pub roots_pem: Option<Vec<u8>>,
    /// The client certificate chain and its key (PEM), for servers that ask for one.
    pub identity_pem: Option<(Vec<u8>, Vec<u8>)>,
    /// Accept any certificate. Then anyone on the network path can read and change all traffic. Default no.
    pub insecure: bool,
}

/// The load-balancing method.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Balance {
    /// Each in turn, by weight (default).
    #[default]
    RoundRobin,
    /// The one with the fewest requests under way, by weight.
    LeastRequests,
    /// The less busy of two picked at random: nearly as even, and it does not herd.
    TwoChoices,
    /// The same one for the same key, moving as few keys as possible when servers come and go.
    Hash(HashKey),
    /// The server that a cookie names; round robin for a client without the cookie, which the response then sets.
    Sticky {
        /// The cookie's name.
        cookie: String,
    },
}

/// What is hashed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HashKey {
    /// The client's address.
    Client,
    /// A request field.
    Field(String),
    /// A cookie.
    Cookie(String),
    /// Path and query.
    Uri,
}

/// Connections kept for the next request. All numbers are for one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeepAlive {
    /// Idle connections kept, over all cores; 0 keeps none, and each request then asks for `Connection: close`. Default 1,024.
    pub idle_max: usize,
    /// How long a connection may be idle, in milliseconds; less if the server announces less (`Keep-Alive: timeout`).
    /// Default 60,000.
    pub idle_ms_max: u64,
    /// Requests after which a connection is closed; 0 for no limit (default).
    pub requests_max: u32,
}

/// How long things may take, in milliseconds; kept to within a tenth of a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamTimeouts {
    /// To connect, name resolution and TLS handshake included. Default 5,000.
    pub connect_ms: u64,
    /// From the request's last byte to the response's whole head. Default 60,000.
    pub head_ms: u64,
    /// Between two pieces of a body, either way. Default 60,000.
    pub between_ms: u64,
    /// The whole request, retries and body included; 0 for no limit (default).
    pub total_ms: u64,
    /// In the queue for a server at its limit. Default 10,000.
    pub queue_ms: u64,
    /// An upgraded connection on which nothing moves. Default 3,600,000.
    pub tunnel_ms: u64,
    /// For the server's `100 Continue`, after which the body is sent without. Default 1,000.
    pub continue_ms: u64,
    /// After the client has closed its sending side and the server has sent nothing since, where the client may still wait
    /// for the response. 0 for no limit (default).
    pub half_closed_ms: u64,
}

/// When a request is retried, on another server if there is one. A request is retried only before the response to the
/// client begins, and only if nothing was sent or the method is idempotent (RFC 9110 section 9.2.2).
/// A kept connection that turns out to be closed does not count as an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Attempts in all. At least 1. Default 3.
    pub attempts_max: u32,
    /// Retries for each 100 requests, so that retries cannot drown what is left of a failing group; ten are always
    /// in hand at first. Default 20.
    pub budget_percent: u32,
    /// Statuses of a response that count as failures: 502, 503, 504, 429. Default none.
    pub statuses: Vec<Status>,
    /// Retry other methods too, as if they were idempotent. Default no.
    pub non_idempotent: bool,
    /// Bytes of a request body kept for a retry; beyond that none is made. Default 64 KiB.
    pub body_bytes_max: usize,
}

/// When a server that fails is ejected: it gets no requests for some time. A failure is a connection that cannot be
/// opened, breaks before the response, times out or returns an invalid response. The only server of a group is never
/// ejected, and if all servers are ejected, they get requests nevertheless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ejection {
    /// Failures in a row. At least 1. Default 3.
    pub failures_max: u32,
    /// How long the first time, in milliseconds; each further time doubles it. Then one request probes whether it
    /// is back. Default 5,000.
    pub first_ms: u64,
    /// How long at most. Default 300,000.
    pub ms_max: u64,
}

/// Active health checks: requests that the proxy itself sends to each server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HealthCheck {
    /// What is asked.
    pub probe: Probe,
    /// How often, in milliseconds. Default 5,000.
    pub interval_ms: u64,
    /// How long an answer may take. Default 2,000.
    pub timeout_ms: u64,
    /// Good answers in a row that bring a server back. Default 2.
    pub rise: u32,
    /// Consecutive failed checks that take the server out of service. Default 3.
    pub fall: u32,
}

/// What a check does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Probe {
    /// Opens a connection (and completes the TLS handshake).
    Connect,
    /// `GET path`, which must be answered with a status of `first..=last`.
    Get {
        /// The path.
        path: String,
        /// The `Host`; `None` for the server's own.
        host: Option<String>,
        /// The lowest status of a healthy server. Default 200.
        first: u16,
        /// The highest. Default 399.
        last: u16,
    },
}

/// How request heads are rewritten. Hop-by-hop fields and those that `Connection` names are never forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestOptions {
    /// What stands in `Host`. Default the client's.
    pub host: Host,
    /// Which fields name the client. Default `X-Forwarded-For`, `-Proto`, `-Host`. The values of a trusted proxy
    /// ([`net::Client::vouched`]) are extended; those of any other sender are replaced.
    pub forwarded: Forwarded,
    /// The proxy's name in `Via`; empty for no `Via`, and then loops are not detected. Default `komainu`.
    pub via: String,
    /// Forward fields with `_` in their names, which many applications take for the same name with `-`. Default no.
    pub underscores: bool,
    /// Names of fields that decide which route serves a request: none is forwarded that applications may take for one of them, and that
    /// is written otherwise.
    pub conditioned: Vec<String>,
    /// Fields removed, set and added.
    pub edits: Edits,
}

/// What stands in `Host`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Host {
    /// What the client sent (default).
    #[default]
    Pass,
    /// The server's own `host[:port]`.
    Upstream,
    /// This.
    Set(String),
}

/// Which fields name the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forwarded {
    /// `X-Forwarded-For`, `X-Forwarded-Proto`, `X-Forwarded-Host`.
    pub x_forwarded: bool,
    /// `Forwarded` (RFC 7239).
    pub standard: bool,
}

/// Fields removed, set and added, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    /// Names of fields to remove, any case.
    pub remove: Vec<String>,
    /// Fields that replace those of the same name.
    pub set: Vec<(String, Template)>,
    /// Fields that are added to those of the same name.
    pub add: Vec<(String, Template)>,
}

/// What is changed in responses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseOptions {
    /// Change `Location`, `Content-Location` and `Refresh` that name an upstream server, or a path as upstream servers
    /// see it, into what the client sees; and the paths of cookies. Default yes.
    pub rewrite: bool,
    /// Cookie domains to replace; an empty new one removes the attribute.
    pub cookie_domains: Vec<(String, String)>,
    /// Fields removed, set and added.
    pub edits: Edits,
}

/// What is said to servers that speak FastCGI, uwsgi or SCGI.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgiOptions {
    /// Variables that are added, or that replace those of the same name. Default none.
    pub variables: Vec<(String, Template)>,
    /// Whether encoded slashes pass: then paths are those that routes match ([`http::path::matched_path`]), in which `%2F`
    /// and `%252F` differ. Default no.
    pub keeps_encoded_slashes: bool,
}

/// A path prefix that upstream servers see differently: `/api` as `/`, `/shop` as `/apps/shop`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathMap {
    /// What the client's path begins with, decoded; it ends where a segment ends.
    pub(crate) from: String,
    /// The same, percent-encoded.
    pub(crate) from_encoded: Vec<u8>,
    /// What stands there instead, as it stands in a request.
    pub(crate) to: String,
}

impl UpstreamServer {
    /// A server with weight 1, in the clear, without a limit.
    #[must_use]
    pub fn at(at: UpstreamAddress) -> UpstreamServer {
        UpstreamServer {
            at,
            tls: None,
            protocol: UpstreamProtocol::Http1,
            weight: 1,
            backup: false,
            connections_max: 0,
            name: None,
        }
    }

    /// Whether it is asked over HTTP/2.
    #[must_use]
    pub fn is_http2(&self) -> bool {
        self.protocol == UpstreamProtocol::Http2
    }

    /// `host[:port]` as it stands in `Host`: without the scheme's own port.
    #[must_use]
    pub fn authority(&self) -> String {
        let own_port = if self.tls.is_some() { 443 } else { 80 };
        match &self.at {
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
            return match &self.at {
                UpstreamAddress::Unix(path) => write!(f, "{scheme}+unix:{}", path.display()),
                UpstreamAddress::Tcp { .. } => write!(f, "{scheme}://{}", self.authority()),
            };
        }
        match (&self.at, &self.tls) {
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
    /// The defaults, for these servers.
    #[must_use]
    pub fn to(servers: Vec<UpstreamServer>) -> GroupOptions {
        GroupOptions {
            servers,
            balance: Balance::default(),
            keep_alive: KeepAlive::default(),
            ejection: Some(Ejection::default()),
            check: None,
            slow_start_ms: 0,
            queue_max: 1_000,
            resolve_ms: 30_000,
            proxy_protocol: None,
            lenient_heads: false,
        }
    }

    /// The limits of heads that are not read for one route alone: those of a route by default.
    pub(crate) fn head(&self) -> http::Limits {
        let (bare_lf, lenient_heads) = (self.lenient_heads, self.lenient_heads);
        http::Limits { bare_lf, lenient_heads, ..RouteOptions::default().head }
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
            cancels_left: true,
            read_ahead_bytes: 64 * 1024,
            cgi: CgiOptions::default(),
            head: http::Limits { head_bytes_max: 32 * 1024, fields_max: 200, ..http::Limits::default() },
        }
    }
}

impl Default for KeepAlive {
    fn default() -> KeepAlive {
        KeepAlive { idle_max: 1_024, idle_ms_max: 60_000, requests_max: 0 }
    }
}

impl Default for UpstreamTimeouts {
    fn default() -> UpstreamTimeouts {
        UpstreamTimeouts {
            connect_ms: 5_000,
            head_ms: 60_000,
            between_ms: 60_000,
            total_ms: 0,
            queue_ms: 10_000,
            tunnel_ms: 3_600_000,
            continue_ms: 1_000,
            half_closed_ms: 0,
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
        Ejection { failures_max: 3, first_ms: 5_000, ms_max: 300_000 }
    }
}

impl Default for HealthCheck {
    fn default() -> HealthCheck {
        let probe = Probe::Get { path: "/".into(), host: None, first: 200, last: 399 };
        HealthCheck { probe, interval_ms: 5_000, timeout_ms: 2_000, rise: 2, fall: 3 }
    }
}

impl Default for RequestOptions {
    fn default() -> RequestOptions {
        RequestOptions {
            host: Host::default(),
            forwarded: Forwarded { x_forwarded: true, standard: false },
            via: "komainu".into(),
            underscores: false,
            conditioned: Vec::new(),
            edits: Edits::default(),
        }
    }
}

impl Default for ResponseOptions {
    fn default() -> ResponseOptions {
        ResponseOptions { rewrite: true, cookie_domains: Vec::new(), edits: Edits::default() }
    }
}
