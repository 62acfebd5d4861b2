//! Directives of addresses to listen on.

use crate::address::BindAddress;
use serde_json::json;
use settings::checker::{Checker, InvalidValue, format_list, shorten};
use settings::directives;
use settings::node::{Node, NodeData};
use settings::report::NamedPath;
use settings::shape::{Flag, Maybe, OneOrMore, Shape, ShapeKind, Text, Toggle};
use shapes::network::{SOURCE, TrustedSource};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::str::FromStr;

/// Clients that receive 103 (Early Hints).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EarlyHints {
    /// Clients that use HTTP/2.
    Http2,
    /// All clients except those that use HTTP/1.0.
    All,
}

/// Maximum length of a Unix socket's path, in bytes: `sun_path` without its NUL.
const UNIX_PATH_BYTES_MAX: usize = 107;

/// An address to listen on. Port 0 is any free port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Listen {
    /// One address and port, `127.0.0.1:80` or `[::1]:80`; an IPv6 address accepts only IPv6 connections.
    Tcp(SocketAddr),
    /// Every address of the machine, IPv4 and IPv6, `:80`.
    Any(u16),
    /// `localhost:80`: 127.0.0.1, and ::1 if the machine has it (RFC 6761 section 6.3).
    Localhost(u16),
    /// A Unix socket, `unix:/run/k.sock`.
    Unix(PathBuf),
}

impl Listen {
    /// Parses `ADDRESS:PORT`, `:PORT`, `localhost:PORT` or `unix:PATH`.
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        if let Some(path) = text.strip_prefix("unix:") {
            return parse_unix(path);
        }
        if text.starts_with("udp:") {
            return Err(InvalidValue::new(
                "an address has no protocol",
                "write \":443\": HTTP/3 has the same port; a `[[stream]]` has `protocol = \"udp\"`",
            ));
        }
        if text.contains(',') {
            return Err(InvalidValue::new(
                "several addresses in one text",
                format!("write {}", format_list(text.split(',').map(str::trim))),
            ));
        }
        if text.contains("://") {
            let (scheme, rest) = text.split_once("://").unwrap_or_default();
            let bare = rest.split('/').next().unwrap_or_default();
            let port = if scheme == "https" { ":443" } else { ":80" };
            let port = if bare.ends_with(|c: char| c.is_ascii_digit()) && bare.matches(':').count() == 1 {
                ""
            } else {
                port
            };
            return Err(InvalidValue::new(
                "this is a URL, not an address",
                format!("write \"{bare}{port}\""),
            ));
        }
        if text.starts_with('/') || text.starts_with("./") {
            return Err(InvalidValue::new("a path without `unix:`", format!("write \"unix:{text}\"")));
        }
        if text.split_whitespace().any(|word| word == "ssl") {
            return Err(InvalidValue::new(
                "`ssl` has no place here",
                "port 443 speaks TLS; for another port write { address = \":8443\", tls = true }",
            ));
        }
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            let remedy =
                format!("write \":{text}\" for every address, \"127.0.0.1:{text}\" for this machine only");
            return Err(InvalidValue::new("a port without an address", remedy));
        }
        if text.parse::<Ipv6Addr>().is_ok() {
            // `::1:9301` is an address, and is hardly meant as one.
            let with_port = text.rsplit_once(':').filter(|(address, port)| {
                port.len() > 1 && port.parse::<u16>().is_ok() && address.parse::<Ipv6Addr>().is_ok()
            });
            let remedy = match with_port {
                Some((address, port)) => format!("write \"[{address}]:{port}\", or \"[{text}]:80\""),
                None => format!("write \"[{text}]:80\""),
            };
            return Err(InvalidValue::new("an IPv6 address needs brackets and a port", remedy));
        }
        let Some((host, port_text)) = text.rsplit_once(':') else {
            return Err(missing_port(text));
        };
        if host.starts_with('[') && !host.ends_with(']') {
            return Err(missing_port(text));
        }
        let Ok(port) = port_text.parse::<u16>() else {
            let fault = InvalidValue::new(
                "this is not a port",
                "a port is a number from 0 to 65535; 0 is any free one",
            );
            return Err(fault.within(host.len() + 1..text.len()));
        };
        parse_host_and_port(host, port)
    }

    /// Returns the port; `None` for a Unix socket.
    pub fn port(&self) -> Option<u16> {
        match self {
            Self::Tcp(address) => Some(address.port()),
            Self::Any(port) | Self::Localhost(port) => Some(*port),
            Self::Unix(_) => None,
        }
    }

    /// Returns the addresses to bind on this machine.
    pub fn bind_addresses(&self) -> Vec<BindAddress> {
        match self {
            Self::Tcp(address) => vec![BindAddress::Tcp(*address)],
            Self::Any(port) => vec![BindAddress::Any(*port)],
            Self::Unix(path) => vec![BindAddress::Unix(path.clone())],
            Self::Localhost(port) => {
                let mut binds = vec![BindAddress::Tcp((Ipv4Addr::LOCALHOST, *port).into())];
                // Only if the machine has IPv6; with port 0 one port is enough.
                if *port != 0 && TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
                    binds.push(BindAddress::Tcp((Ipv6Addr::LOCALHOST, *port).into()));
                }
                binds
            }
        }
    }

    /// The socket addresses that it binds.
    pub fn sockets(&self) -> Vec<SocketAddr> {
        let pair = |v4: Ipv4Addr, v6: Ipv6Addr, port: u16| {
            vec![SocketAddr::from((v4, port)), SocketAddr::from((v6, port))]
        };
        match self {
            Self::Tcp(address) => vec![*address],
            Self::Any(port) => pair(Ipv4Addr::UNSPECIFIED, Ipv6Addr::UNSPECIFIED, *port),
            Self::Localhost(port) => pair(Ipv4Addr::LOCALHOST, Ipv6Addr::LOCALHOST, *port),
            Self::Unix(_) => Vec::new(),
        }
    }

    /// True when both cannot be bound.
    pub fn overlaps(&self, other: &Self) -> bool {
        if let (Self::Unix(this), Self::Unix(that)) = (self, other) {
            return this == that;
        }
        // A wildcard takes the port on every address of its family.
        let same = |this: &SocketAddr, that: &SocketAddr| {
            let one = this.ip();
            let other = that.ip();
            this.port() == that.port()
                && one.is_ipv4() == other.is_ipv4()
                && (one == other || one.is_unspecified() || other.is_unspecified())
        };
        let others = other.sockets();
        let taken = |socket: &SocketAddr| others.iter().any(|other| same(socket, other));
        self.sockets().iter().any(|socket| socket.port() != 0 && taken(socket))
    }
}

fn missing_port(text: &str) -> InvalidValue {
    // nginx's `listen 80 default_server` and the like.
    if let Some((address, words)) = text.split_once(char::is_whitespace) {
        let fault = InvalidValue::new(
            format!("`{}` has no place here", shorten(words.trim())),
            "write the address alone; a `[[site]]` without `hosts` is the default one, and `{ address = \"...\", tls = true }` has \
             the options",
        );
        return fault.within(address.len() + 1..text.len());
    }
    let remedy = match text {
        _ if text.contains('[') && !text.ends_with(']') => {
            "an IPv6 address is written \"[::1]:8080\"".to_owned()
        }
        "" => "write \":80\" for every address, \"127.0.0.1:8080\" for this machine only".to_owned(),
        _ if text.contains("${") => {
            "a variable of the environment is written `${NAME}`: close the brace".to_owned()
        }
        _ => format!("write \"{text}:80\""),
    };
    InvalidValue::new("the port is missing", remedy)
}

fn parse_unix(path: &str) -> Result<Listen, InvalidValue> {
    let at = "unix:".len().."unix:".len() + path.len();
    if path.is_empty() {
        return Err(InvalidValue::new("the path is missing", "write \"unix:/run/komainu.sock\""));
    }
    if path.contains('\0') {
        return Err(InvalidValue::new("a path must not contain NUL", "").within(at));
    }
    if path.len() > UNIX_PATH_BYTES_MAX {
        let remedy = format!("a Unix socket's path has at most {UNIX_PATH_BYTES_MAX} bytes");
        return Err(InvalidValue::new(format!("{} bytes long", path.len()), remedy).within(at));
    }
    Ok(Listen::Unix(PathBuf::from(path)))
}

fn parse_host_and_port(host: &str, port: u16) -> Result<Listen, InvalidValue> {
    if host.is_empty() || host == "*" {
        return Ok(Listen::Any(port));
    }
    if host.eq_ignore_ascii_case("localhost") {
        return Ok(Listen::Localhost(port));
    }
    let bracketed = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let address = match bracketed {
        Some(inner) => inner.parse::<Ipv6Addr>().map(IpAddr::V6),
        None => host.parse::<Ipv4Addr>().map(IpAddr::V4),
    };
    address.map(|address| Listen::Tcp(SocketAddr::new(address, port))).map_err(|_| {
        let remedy = if host.contains(':') && bracketed.is_none() {
            format!("an IPv6 address needs brackets: \"[{host}]:{port}\"")
        } else {
            format!(
                "write an IP address of this machine, or \":{port}\" for all; write names as `hosts` of a site"
            )
        };
        InvalidValue::new("this is not an IP address", remedy).within(0..host.len())
    })
}

impl FromStr for Listen {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        Self::parse(text)
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(out, "{address}"),
            Self::Any(port) => write!(out, ":{port}"),
            Self::Localhost(port) => write!(out, "localhost:{port}"),
            Self::Unix(path) => write!(out, "unix:{}", path.display()),
        }
    }
}

directives! {
    /// An address to listen on. An address alone is shorthand for `address`.
    ///
    /// ```toml
    /// listen = ["127.0.0.1:8080", { address = ":80", proxy_protocol = ["10.0.0.0/8"] }]
    /// ```
    ConfiguredListener named "Listener" in "`listen`" {
        /// `"127.0.0.1:8080"`, `"[::1]:8080"`, `":80"` or `"*:80"` for every address of the machine, IPv4 and IPv6,
        /// `"localhost:8080"`, or `"unix:/run/k.sock"`. `"[::]:80"` accepts only IPv6 connections. Port 0 is any free
        /// port.
        "address" address: Listen = required(""), Address;
        /// Whether connections use TLS, after a PROXY protocol header if one is expected. The certificates
        /// are those of the sites' `tls`.
        "tls" tls: Option<bool> = absent("`true` at port 443, `false` elsewhere"), Maybe(Flag);
        /// Whether connections begin with a header of the PROXY protocol, version 1 or 2, in which a proxy sends the
        /// client's address: a list of the networks of such proxies, or `true` for those of `trusted_proxies`. The
        /// server then uses the address from the header everywhere. It refuses connections from other networks, and
        /// those without the header; over a Unix socket, all must have it.
        "proxy_protocol" proxy_protocol: Option<Vec<TrustedSource>> = false,
            Toggle { on: Some(|| Some(Vec::new())), off: || None, shape: Maybe(OneOrMore(SOURCE)) };
        /// Whether clients may speak HTTP/2 in the clear, with prior knowledge (h2c): a connection that begins with HTTP/2's preface
        /// is one. HTTP/1 is spoken at the same address.
        "h2c" h2c: bool = false, Flag;
        /// Whether clients may use HTTP/3, on the UDP port with the same number. Only with TLS, and not with `proxy_protocol`
        /// or where `[[stream]]` relays connections. A port that cannot be bound is a warning.
        "http3" http3: Option<bool> = absent("`http3` of `[tls]`"), Maybe(Flag);
    }
}

impl ConfiguredListener {
    /// An address for HTTP without the PROXY protocol.
    pub fn plain(address: Listen) -> Self {
        Self { address, ..Self::default() }
    }

    /// Whether connections speak TLS.
    pub fn is_tls(&self) -> bool {
        self.tls.unwrap_or(match &self.address {
            Listen::Any(port) | Listen::Localhost(port) => *port == 443,
            Listen::Tcp(address) => address.port() == 443,
            Listen::Unix(_) => false,
        })
    }
}

impl Default for Listen {
    /// Only for `Default`: a listener's address is required.
    fn default() -> Self {
        Self::Unix(PathBuf::new())
    }
}

/// An address in the file: a relative socket path is relative to the file's folder.
pub struct Address;

impl Shape for Address {
    type Out = Listen;

    fn kind(&self) -> ShapeKind {
        let text = "an address: \"IP:PORT\", \":PORT\", \"localhost:PORT\" or \"unix:PATH\"";
        ShapeKind::new(text, json!({ "type": "string", "pattern": "^(unix:.+|.*:[0-9]+)$" }))
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<Listen> {
        let shape = Text { what: "an address such as \":80\" or \"127.0.0.1:8080\"", parse: Listen::parse };
        // A port alone, `listen = 8080`, has its remedy.
        let port = match node.data {
            NodeData::Integer(number) => Some(number.to_string()),
            _ => None,
        };
        if let Some(fault) = port.as_deref().and_then(|port| Listen::parse(port).err()) {
            check.report_fault(&node.span, port.as_deref().unwrap_or_default(), fault);
            return None;
        }
        match shape.read(node, check)? {
            Listen::Unix(path) => {
                let path = check.resolve_path(&path.to_string_lossy());
                let directive = format!("{}.unix", check.directive_path_text());
                check.report.add_named_path(NamedPath {
                    directive,
                    path: path.clone(),
                    span: node.span.clone(),
                });
                Some(Listen::Unix(path))
            }
            address => Some(address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listen_addresses_print_as_they_are_written() {
        for text in
            ["127.0.0.1:80", "[::1]:8080", "[::]:0", ":80", "localhost:3000", "unix:/run/k.sock", "unix:k"]
        {
            assert_eq!(Listen::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Listen::parse("*:80"), Ok(Listen::Any(80)));
    }

    #[test]
    fn invalid_listen_addresses_have_a_remedy() {
        let cases = [
            ("8080", "\":8080\""),
            ("", "\":80\""),
            ("0.0.0.0", "\"0.0.0.0:80\""),
            ("::1", "\"[::1]:80\""),
            ("[::1]", "\"[::1]:80\""),
            ("::1%eth0:80", "\"[::1%eth0]:80\""),
            ("http://127.0.0.1:8000/", "\"127.0.0.1:8000\""),
            ("https://[::1]", "\"[::1]:443\""),
            ("/run/k.sock", "\"unix:/run/k.sock\""),
            ("unix:", "\"unix:/run/komainu.sock\""),
            ("127.0.0.1:65536", "65535"),
            ("127.0.0.1:http", "65535"),
            ("example.com:80", "\":80\""),
            ("256.0.0.1:80", "\":80\""),
            ("[127.0.0.1]:80", "\":80\""),
            ("${NIX", "close the brace"),
        ];
        for (text, remedy) in cases {
            let fault = Listen::parse(text).unwrap_err();
            assert!(fault.remedy.contains(remedy), "{text}: {fault}");
        }
        assert!(Listen::parse(&format!("unix:/{}", "x".repeat(107))).is_err());
    }

    #[test]
    fn overlapping_addresses_are_detected() {
        let overlap = |a: &str, b: &str| Listen::parse(a).unwrap().overlaps(&Listen::parse(b).unwrap());
        assert!(overlap(":80", "0.0.0.0:80"));
        assert!(overlap("[::]:80", ":80"));
        assert!(overlap("localhost:80", "127.0.0.1:80"));
        assert!(overlap("unix:/a", "unix:/a"));
        assert!(!overlap("0.0.0.0:80", "[::]:80"));
        assert!(overlap(":80", "127.0.0.1:80"));
        assert!(overlap("[::1]:80", "[::]:80"));
        assert!(overlap("localhost:80", "0.0.0.0:80"));
        assert!(!overlap("0.0.0.0:80", "[::1]:80"));
        assert!(!overlap(":80", "127.0.0.1:81"));
        assert!(!overlap(":0", ":0"));
        assert!(!overlap("unix:/a", "unix:/b"));
    }
}
