//! Upstream servers: their URLs, and which of them gets a request.

use serde_json::json;
use settings::checker::{Checker, InvalidValue};
use settings::node::Node;
use settings::shape::{Shape, ShapeKind, Text};
use settings::spelling::nearest_name;
use shapes::header;
use shapes::names::parse_cookie_name;
use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::str::FromStr;

/// Maximum length of a Unix socket's path, in bytes: `sun_path` without its NUL.
const UNIX_PATH_BYTES_MAX: usize = 107;
/// The name of the cookie for `"sticky"`.
const STICKY_COOKIE: &str = "komainu";

/// The address of an upstream server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Origin {
    /// `http://HOST[:PORT]` and the like.
    Tcp {
        /// A name, an IPv4 address, or an IPv6 address without brackets.
        host: String,
        /// The port.
        port: u16,
        /// The protocol.
        scheme: OriginScheme,
    },
    /// A Unix socket, `unix:/run/app.sock`.
    Unix(PathBuf),
    /// A server that speaks a protocol of the CGI family: `fastcgi://HOST:PORT`, `fastcgi+unix:PATH`. The address is one of those
    /// above, without TLS.
    Cgi(CgiProtocol, Box<Origin>),
    /// All servers that records of DNS name: `srv+http://NAME`, `dns+http://NAME:PORT`. The address is one of those above,
    /// with a host; its port has no meaning for [`OriginRecords::Service`].
    Discovered(OriginRecords, Box<Origin>),
}

/// The records of DNS that name the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OriginRecords {
    /// SRV records, which also have the ports.
    Service,
    /// Address records.
    Host,
}

impl OriginRecords {
    const ALL: [OriginRecords; 2] = [Self::Service, Self::Host];

    /// Returns the beginning of URLs.
    fn prefix(self) -> &'static str {
        match self {
            Self::Service => "srv+",
            Self::Host => "dns+",
        }
    }
}

/// The scheme of an upstream server with a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OriginScheme {
    /// `http`: HTTP/1.1.
    Http,
    /// `https`: HTTP over TLS.
    Https,
    /// `h2c`: HTTP/2 without TLS.
    H2c,
    /// `h3`: HTTP/3.
    H3,
}

impl OriginScheme {
    const ALL: [OriginScheme; 4] = [Self::Http, Self::Https, Self::H2c, Self::H3];

    /// Returns the scheme as URLs have it.
    fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::H2c => "h2c",
            Self::H3 => "h3",
        }
    }

    /// Returns the default port of the scheme.
    fn default_port(self) -> u16 {
        if self.is_tls() { 443 } else { 80 }
    }

    fn is_tls(self) -> bool {
        matches!(self, Self::Https | Self::H3)
    }
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

impl CgiProtocol {
    const ALL: [CgiProtocol; 3] = [CgiProtocol::FastCgi, CgiProtocol::Uwsgi, CgiProtocol::Scgi];

    /// Returns the scheme as URLs have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::FastCgi => "fastcgi",
            Self::Uwsgi => "uwsgi",
            Self::Scgi => "scgi",
            Self::Program => "cgi",
        }
    }

    fn from_name(name: &str) -> Option<CgiProtocol> {
        Self::ALL.into_iter().find(|scheme| scheme.name() == name)
    }

    /// Returns the default port of the scheme.
    fn default_port(self) -> u16 {
        match self {
            Self::FastCgi => 9000,
            Self::Uwsgi => 3031,
            Self::Scgi | Self::Program => 4000,
        }
    }
}

impl Default for Origin {
    /// Only for `Default`: an upstream server's URL is required.
    fn default() -> Self {
        Self::Unix(PathBuf::new())
    }
}

impl Origin {
    /// Parses `http://HOST[:PORT]`, `https://HOST[:PORT]`, `h2c://HOST[:PORT]`, `h3://HOST[:PORT]` or `unix:PATH`; or `fastcgi://HOST[:PORT]`,
    /// `fastcgi+unix:PATH`, and the same with `uwsgi` and `scgi`.
    /// Before each of these with a host may stand `srv+` or `dns+`.
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        let records = OriginRecords::ALL.into_iter();
        let discovered = records.filter_map(|one| Some((one, text.strip_prefix(one.prefix())?))).next();
        if let Some((records, rest)) = discovered {
            return parse_discovered(records, rest);
        }
        if let Some(path) = text.strip_prefix("unix:") {
            return parse_unix(path);
        }
        if let Some((scheme, path)) = text.split_once("+unix:")
            && let Some(scheme) = CgiProtocol::from_name(scheme)
        {
            let at = scheme.name().len() + 1;
            return parse_unix(path).map(|origin| Self::Cgi(scheme, Box::new(origin))).map_err(|fault| {
                InvalidValue { span: fault.span.map(|range| at + range.start..at + range.end), ..fault }
            });
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(missing_scheme(text));
        };
        let cgi = CgiProtocol::from_name(&scheme.to_ascii_lowercase());
        let of_http = OriginScheme::ALL.into_iter().find(|known| scheme.eq_ignore_ascii_case(known.name()));
        let Some(own_scheme) = of_http.or(cgi.map(|_| OriginScheme::Http)) else {
            let fault = InvalidValue::new(
                "an upstream server has a scheme of http, https, h2c, h3, unix, fastcgi, uwsgi or scgi",
                "write \"http://HOST:PORT\", \"https://HOST:PORT\", \"h2c://HOST:PORT\", \"h3://HOST:PORT\", \"unix:PATH\" or \"fastcgi://HOST:PORT\"",
            );
            return Err(fault.within(0..scheme.len()));
        };
        let start = scheme.len() + 3;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        if matches!(authority, "unix" | "unix:") && path.len() > 1 {
            let socket = path.split_once(':').map_or(path, |(socket, _)| socket);
            let fault = InvalidValue::new(
                "a Unix socket has no scheme before it",
                match cgi {
                    Some(_) => format!("write \"{}+unix:{socket}\"", scheme.to_ascii_lowercase()),
                    None => format!("write \"unix:{socket}\""),
                },
            );
            return Err(fault.within(0..text.len()));
        }
        if !matches!(path, "" | "/") {
            let fault = InvalidValue::new(
                "an upstream server's URL must not have a path",
                "change paths with `strip_prefix` and `add_prefix`",
            );
            return Err(fault.within(start + end..text.len()));
        }
        let (host, port) = parse_host_and_port(authority).map_err(|fault| InvalidValue {
            span: fault.span.map(|at| start + at.start..start + at.end),
            ..fault
        })?;
        let default = cgi.map_or(own_scheme.default_port(), CgiProtocol::default_port);
        let origin = Self::Tcp { host, port: port.unwrap_or(default), scheme: own_scheme };
        Ok(match cgi {
            Some(scheme) => Self::Cgi(scheme, Box::new(origin)),
            None => origin,
        })
    }

    /// Whether it speaks HTTP/2 without TLS.
    pub fn is_h2c(&self) -> bool {
        matches!(self.one(), Self::Tcp { scheme: OriginScheme::H2c, .. })
    }

    /// Whether it speaks HTTP/3.
    pub fn is_h3(&self) -> bool {
        matches!(self.one(), Self::Tcp { scheme: OriginScheme::H3, .. })
    }

    /// Whether it speaks TLS.
    pub fn is_tls(&self) -> bool {
        matches!(self.one(), Self::Tcp { scheme, .. } if scheme.is_tls())
    }

    /// Returns the URL without the records by which its servers are found.
    #[must_use]
    pub fn one(&self) -> &Origin {
        match self {
            Self::Discovered(_, one) => one,
            one => one,
        }
    }

    /// Returns the name and port whose records name the servers; `None` if the URL is that of a single server.
    pub fn records(&self) -> Option<(OriginRecords, &str, u16)> {
        let Self::Discovered(records, one) = self else { return None };
        let at = if let Self::Cgi(_, at) = &**one { at } else { one };
        let Self::Tcp { host, port, .. } = &**at else { return None };
        Some((*records, host, *port))
    }

    /// Returns the URL of a server that was found, with this address.
    #[must_use]
    pub fn found_at(&self, host: String, port: u16) -> Origin {
        match self {
            Self::Discovered(_, one) => one.found_at(host, port),
            Self::Cgi(protocol, at) => Self::Cgi(*protocol, Box::new(at.found_at(host, port))),
            Self::Tcp { scheme, .. } => Self::Tcp { host, port, scheme: *scheme },
            Self::Unix(_) => self.clone(),
        }
    }
}

/// Parses the rest of a URL whose servers are found by records of DNS.
fn parse_discovered(records: OriginRecords, rest: &str) -> Result<Origin, InvalidValue> {
    let prefix = records.prefix();
    let whole = 0..prefix.len() + rest.len();
    let origin = Origin::parse(rest).map_err(|fault| shift_fault(fault, prefix))?;
    let of_name = Origin::Discovered(records, Box::new(origin));
    let is_name = |name: &str| {
        name.parse::<std::net::IpAddr>().is_err() && name.split('.').all(|label| !label.is_empty())
    };
    match of_name.records() {
        Some((_, name, _)) if is_name(name) => {}
        _ => {
            let remedy = format!("write \"{prefix}http://NAME\", and other addresses without `{prefix}`");
            return Err(InvalidValue::new("this has no name to look up", remedy).within(whole));
        }
    }
    let has_port = rest.split_once("://").is_some_and(|(_, authority)| authority.contains(':'));
    if records == OriginRecords::Service && has_port {
        let fault = InvalidValue::new("SRV records have the port", "remove the port");
        return Err(fault.within(whole));
    }
    Ok(of_name)
}

fn missing_scheme(text: &str) -> InvalidValue {
    let is_known = |scheme: &str| OriginScheme::ALL.iter().any(|known| known.name() == scheme);
    if let Some((scheme, path)) = text.split_once("+unix:").filter(|(scheme, _)| is_known(scheme)) {
        let (problem, remedy) = match scheme {
            "http" => ("a Unix socket has no scheme before it", format!("write \"unix:{path}\"")),
            _ => (
                "Unix sockets are asked over HTTP/1 without TLS",
                format!("write \"{scheme}://HOST:PORT\" or \"unix:{path}\""),
            ),
        };
        return InvalidValue::new(problem, remedy);
    }
    if let Some((scheme, rest)) = text.split_once(':').filter(|(scheme, _)| is_known(scheme)) {
        let rest = rest.trim_start_matches('/');
        return InvalidValue::new("this is not a URL", format!("write \"{scheme}://{rest}\""));
    }
    let remedy = match text {
        "" => "write \"http://127.0.0.1:3000\" or \"unix:/run/app.sock\"".to_owned(),
        _ if text.starts_with(['/', '.']) => format!("write \"unix:{text}\""),
        // As Caddy has it.
        _ if text.starts_with("unix//") => format!("write \"unix:{}\"", &text["unix/".len()..]),
        _ if text.bytes().all(|byte| byte.is_ascii_digit()) => format!("write \"http://127.0.0.1:{text}\""),
        _ if text.starts_with(':') => format!("write \"http://127.0.0.1{text}\""),
        _ => format!("write \"http://{text}\""),
    };
    InvalidValue::new("this is not a URL", remedy)
}

fn parse_unix(path: &str) -> Result<Origin, InvalidValue> {
    let at = "unix:".len().."unix:".len() + path.len();
    // Other servers also write `unix://PATH`.
    let path = path.strip_prefix("//").map_or(path, |rest| rest);
    match path.len() {
        0 => Err(InvalidValue::new("the path is missing", "write \"unix:/run/app.sock\"")),
        _ if path.contains('\0') => Err(InvalidValue::new("a path must not contain NUL", "").within(at)),
        1..=UNIX_PATH_BYTES_MAX => Ok(Origin::Unix(PathBuf::from(path))),
        long => {
            let remedy = format!("a Unix socket's path has at most {UNIX_PATH_BYTES_MAX} bytes");
            Err(InvalidValue::new(format!("{long} bytes long"), remedy).within(at))
        }
    }
}

fn parse_host_and_port(text: &str) -> Result<(String, Option<u16>), InvalidValue> {
    if let Some(at) = text.find('@') {
        let fault = InvalidValue::new(
            "an upstream server's URL must not have a user",
            "set the `Authorization` field in `request_headers` instead",
        );
        return Err(fault.within(0..at + 1));
    }
    let (host, port) = match text.rfind(':') {
        Some(colon) if !text[colon..].contains(']') => (&text[..colon], Some(&text[colon + 1..])),
        _ => (text, None),
    };
    let bracketed = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let named = !host.is_empty()
        && host.len() <= 253
        && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'));
    let host = match bracketed {
        Some(inner) if inner.parse::<Ipv6Addr>().is_ok() => inner,
        None if named => host,
        _ => {
            let remedy = if host.matches(':').count() > 1 && bracketed.is_none() {
                "an IPv6 address needs brackets: \"http://[::1]:3000\""
            } else {
                "write a host name or an IP address, such as \"http://127.0.0.1:3000\""
            };
            return Err(InvalidValue::new("this is not a host", remedy).within(0..host.len().max(1)));
        }
    };
    let digits = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let number = port.map(|port| port.parse::<u16>().ok().filter(|&number| number > 0 && digits(port)));
    match (port, number) {
        (Some(port), Some(None)) => {
            let fault = InvalidValue::new("this is not a port", "a port is a number from 1 to 65535");
            Err(fault.within(text.len() - port.len()..text.len()))
        }
        (_, number) => Ok((host.to_owned(), number.flatten())),
    }
}

impl FromStr for Origin {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        Self::parse(text)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(out, "unix:{}", path.display()),
            Self::Discovered(OriginRecords::Service, one) => {
                let text = one.to_string();
                write!(out, "srv+{}", text.rsplit_once(':').map_or(&*text, |(name, _)| name))
            }
            Self::Discovered(OriginRecords::Host, one) => write!(out, "dns+{one}"),
            Self::Cgi(scheme, at) => match at.to_string().strip_prefix("http") {
                Some(rest) => write!(out, "{}{rest}", scheme.name()),
                None => write!(out, "{}+{at}", scheme.name()),
            },
            Self::Tcp { host, port, scheme } => {
                let scheme = scheme.name();
                if host.contains(':') {
                    write!(out, "{scheme}://[{host}]:{port}")
                } else {
                    write!(out, "{scheme}://{host}:{port}")
                }
            }
        }
    }
}

/// A URL in the file: a relative socket path is relative to the file's folder.
pub struct UrlShape;

impl Shape for UrlShape {
    type Out = Origin;

    fn kind(&self) -> ShapeKind {
        let text = "a URL: \"http://HOST:PORT\", \"https://HOST:PORT\", \"h2c://HOST:PORT\", \
                    \"h3://HOST:PORT\", \"unix:PATH\", \"srv+http://NAME\", \"dns+http://NAME:PORT\", or \
                    \"fastcgi://HOST:PORT\" or \"fastcgi+unix:PATH\" and the same with `uwsgi` and `scgi`";
        let pattern =
            "^(((fastcgi|uwsgi|scgi)[+])?unix:.+|((srv|dns)[+])?(https?|h2c|h3|fastcgi|uwsgi|scgi)://.+)$";
        ShapeKind::new(text, json!({ "type": "string", "pattern": pattern }))
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<Origin> {
        let shape = Text { what: "a URL such as \"http://127.0.0.1:3000\"", parse: Origin::parse };
        match shape.read(node, check)? {
            Origin::Unix(path) => Some(Origin::Unix(check.resolve_path(&path.to_string_lossy()))),
            Origin::Cgi(scheme, at) => Some(Origin::Cgi(
                scheme,
                Box::new(match *at {
                    Origin::Unix(path) => Origin::Unix(check.resolve_path(&path.to_string_lossy())),
                    at => at,
                }),
            )),
            origin => Some(origin),
        }
    }
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

/// The version of HTTP that servers with `https` URLs are asked over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyHttp {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
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

impl Balance {
    const WORDS: [&str; 6] =
        ["round-robin", "least-requests", "two-choices", "hash:client", "hash:uri", "sticky"];

    /// Parses one of the words, `hash:header:NAME`, `hash:cookie:NAME` or `sticky:COOKIE`.
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        if let Some(name) = text.strip_prefix("hash:header:") {
            return header::parse_name(name)
                .map(|name| Self::Hash(HashKey::Field(name)))
                .map_err(|fault| shift_fault(fault, "hash:header:"));
        }
        if let Some(name) = text.strip_prefix("hash:cookie:") {
            return parse_cookie_name(name)
                .map(|name| Self::Hash(HashKey::Cookie(name)))
                .map_err(|fault| shift_fault(fault, "hash:cookie:"));
        }
        if let Some(name) = text.strip_prefix("sticky:") {
            return parse_cookie_name(name)
                .map(|cookie| Self::Sticky { cookie })
                .map_err(|fault| shift_fault(fault, "sticky:"));
        }
        Ok(match text {
            "round-robin" => Self::RoundRobin,
            "least-requests" => Self::LeastRequests,
            "two-choices" => Self::TwoChoices,
            "hash:client" => Self::Hash(HashKey::Client),
            "hash:uri" => Self::Hash(HashKey::Uri),
            "sticky" => Self::Sticky { cookie: STICKY_COOKIE.to_owned() },
            _ => return Err(unknown_balance(text)),
        })
    }
}

fn unknown_balance(text: &str) -> InvalidValue {
    // Names in other servers.
    let alias = match text {
        "least_conn" | "leastconn" | "least-connections" => Some("least-requests"),
        "ip_hash" | "source" | "ip-hash" => Some("hash:client"),
        "random" | "p2c" => Some("two-choices"),
        "uri" => Some("hash:uri"),
        "roundrobin" | "rr" => Some("round-robin"),
        _ => nearest_name(text, Balance::WORDS),
    };
    let message = match alias {
        Some(word) => format!("did you mean \"{word}\"?"),
        None => "not one of these".to_owned(),
    };
    let words: Vec<String> = Balance::WORDS.iter().map(|word| format!("\"{word}\"")).collect();
    let more = "\"hash:header:NAME\", \"hash:cookie:NAME\" and \"sticky:COOKIE\"";
    InvalidValue::new(message, format!("there are {}, {more}", words.join(", ")))
}

/// The servers of a group speak HTTP, or one protocol of the CGI family, all of them.
pub fn check_protocols<'o>(origins: impl Iterator<Item = &'o Origin>, items: &[Node], check: &mut Checker) {
    let name = |origin: &Origin| match origin.one() {
        Origin::Cgi(scheme, _) => scheme.name(),
        _ => "HTTP",
    };
    // The default is a placeholder for servers that could not be parsed.
    let mut known = origins.zip(items).filter(|(origin, _)| **origin != Origin::default());
    let Some((first, first_item)) = known.next() else { return };
    let Some((other, item)) = known.find(|(other, _)| name(other) != name(first)) else { return };
    let title = format!("one group with servers of {} and of {}", name(first), name(other));
    let finding = check.error(&item.span, title, "this server speaks another protocol");
    finding.related(first_item.span.clone(), "than this one");
    finding.help("write a route, or an `[upstreams.NAME]`, for each protocol");
}

/// The name of a group.
pub fn group_name(text: &str) -> Result<String, InvalidValue> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match text.char_indices().find(|(_, c)| !fits(*c)) {
        Some((at, wrong)) => {
            let fault = InvalidValue::new(format!("a group's name must not contain {wrong:?}"), "");
            Err(fault.within(at..at + wrong.len_utf8()))
        }
        None if text.is_empty() => Err(InvalidValue::new("the name is missing", "")),
        None => Ok(text.to_owned()),
    }
}

/// Moves the place of the fault by the length of `start`.
fn shift_fault(fault: InvalidValue, start: &str) -> InvalidValue {
    InvalidValue { span: fault.span.map(|at| at.start + start.len()..at.end + start.len()), ..fault }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_print_as_they_are_written() {
        for text in [
            "http://127.0.0.1:3000",
            "https://app.internal:8443",
            "h2c://127.0.0.1:50051",
            "h3://127.0.0.1:443",
            "http://[::1]:80",
            "unix:/run/a.sock",
            "unix:a.sock",
            "fastcgi://127.0.0.1:9000",
            "fastcgi+unix:/run/php/php-fpm.sock",
            "uwsgi://[::1]:3031",
            "scgi+unix:a.sock",
            "srv+http://_web._tcp.example.test",
            "srv+https://web.service.consul",
            "dns+h2c://web.service.consul:8080",
            "dns+fastcgi://php:9000",
        ] {
            assert_eq!(Origin::parse(text).unwrap().to_string(), text);
        }
        for (text, whole) in [
            ("http://a", "http://a:80"),
            ("HTTPS://a_b.c/", "https://a_b.c:443"),
            ("http://[2001:db8::1]", "http://[2001:db8::1]:80"),
            ("unix:///run/a", "unix:/run/a"),
            ("fastcgi://a", "fastcgi://a:9000"),
            ("UWSGI://a", "uwsgi://a:3031"),
            ("h3://a", "h3://a:443"),
            ("scgi+unix:///run/a", "scgi+unix:/run/a"),
        ] {
            assert_eq!(Origin::parse(text).unwrap().to_string(), whole);
        }
    }

    #[test]
    fn invalid_origins_have_a_remedy() {
        for (text, remedy) in [
            ("", "http://127.0.0.1:3000"),
            ("3000", "\"http://127.0.0.1:3000\""),
            ("127.0.0.1:3000", "\"http://127.0.0.1:3000\""),
            ("/run/app.sock", "\"unix:/run/app.sock\""),
            ("unix:", "unix:/run/app.sock"),
            ("ftp://a", "http://HOST:PORT"),
            ("fastcgi+unix:", "unix:/run/app.sock"),
            ("fastcgi://a/b.php", "strip_prefix"),
            ("https+unix:/a", "\"unix:/a\""),
            ("h3+unix:/a", "\"h3://HOST:PORT\""),
            ("http+unix:/a", "\"unix:/a\""),
            ("h3:/a:443", "\"h3://a:443\""),
            ("http://a/b", "strip_prefix"),
            ("http://a?b", "strip_prefix"),
            ("http://u:p@a", "Authorization"),
            ("http://", "host name"),
            ("http://:80", "host name"),
            ("http://::1:80", "brackets"),
            ("http://[::1", "host name"),
            ("http://[1.2.3.4]:80", "host name"),
            ("http://a b", "host name"),
            ("http://a:0", "65535"),
            ("http://a:65536", "65535"),
            ("http://a:", "65535"),
            ("srv+http://a:80", "remove the port"),
            ("srv+unix:/a", "without `srv+`"),
            ("dns+http://127.0.0.1:80", "without `dns+`"),
            ("dns+http://[::1]:80", "without `dns+`"),
            ("dns+http://a..b:80", "without `dns+`"),
            ("dns+fastcgi+unix:/a", "without `dns+`"),
            ("dns+srv+http://a", "without `dns+`"),
            ("dns+http://a/b", "strip_prefix"),
        ] {
            let fault = Origin::parse(text).unwrap_err();
            assert!(fault.remedy.contains(remedy), "{text}: {fault}");
            assert!(fault.span.is_none_or(|at| at.end <= text.len().max(at.start + 1)), "{text}");
        }
        assert!(Origin::parse(&format!("unix:/{}", "x".repeat(107))).is_err());
    }

    #[test]
    fn balance_methods_are_parsed() {
        for word in Balance::WORDS {
            assert!(Balance::parse(word).is_ok(), "{word}");
        }
        assert_eq!(Balance::parse("hash:header:X-Id"), Ok(Balance::Hash(HashKey::Field("x-id".into()))));
        assert_eq!(Balance::parse("hash:cookie:sid"), Ok(Balance::Hash(HashKey::Cookie("sid".into()))));
        assert_eq!(Balance::parse("sticky:s"), Ok(Balance::Sticky { cookie: "s".into() }));
        for (wrong, said) in [
            ("least_conn", "least-requests"),
            ("ip_hash", "hash:client"),
            ("round_robin", "round-robin"),
            ("hash:header:a b", "' '"),
            ("sticky:", "missing"),
            ("hash:cookie:a=b", "'='"),
            ("fastest", "not one of these"),
        ] {
            let fault = Balance::parse(wrong).unwrap_err();
            assert!(fault.message.contains(said), "{wrong}: {fault}");
        }
    }
}
