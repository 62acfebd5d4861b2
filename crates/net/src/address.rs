//! Addresses to serve on, and of those who come.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use http::Dialect;
use ipnet::IpNet;

/// What to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bind {
    /// A TCP address; port 0 lets the kernel choose. An IPv6 address takes IPv6 connections alone.
    Tcp(SocketAddr),
    /// Every address of the machine at this port, IPv6 and IPv4; IPv4 alone where the machine has no IPv6.
    Any(u16),
    /// A Unix socket at this path.
    Unix(PathBuf),
}

impl Bind {
    /// The port; `None` for a Unix socket.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        match self {
            Bind::Tcp(address) => Some(address.port()),
            Bind::Any(port) => Some(*port),
            Bind::Unix(_) => None,
        }
    }
}

impl std::fmt::Display for Bind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Bind::Tcp(address) => write!(f, "http://{address}"),
            Bind::Any(port) => write!(f, "http://[::]:{port}"),
            Bind::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// What to listen on, and what is spoken there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// The address.
    pub at: Bind,
    /// Connections begin with a PROXY protocol header, and these may make them; nobody else may. `None` for none.
    pub proxy_protocol: Option<Sources>,
    /// Connections speak TLS, after that header if there is one; [`crate::Options::tls`] says how.
    pub tls: bool,
    /// Connections in the clear may speak HTTP/2 without asking first ("prior knowledge"): those that begin with its preface do.
    pub h2c: bool,
    /// Connections may be relayed, which [`crate::Service::choose_stream`] decides. `None` for none.
    pub streams: Option<StreamListener>,
    /// By which requests know the listener that has accepted their connection ([`crate::Request::listener_key`]): the
    /// server's own number.
    pub key: u64,
}

/// A listener that has streams: connections to it may be relayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamListener {
    /// By which [`crate::Service::choose_stream`] knows the listener.
    pub key: String,
    /// Whether the choice depends on the name that clients ask for by TLS: then their first message is read first.
    pub reads_name: bool,
    /// Whether every connection is relayed or closed, and none is for the sites.
    pub is_only: bool,
}

/// Where a server can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenUrl {
    /// The address, with the port that the kernel chose.
    pub at: Bind,
    /// Through TLS.
    pub is_tls: bool,
    /// Connections are relayed, and none is for the sites.
    pub is_stream: bool,
}

impl std::fmt::Display for ListenUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = self.at.to_string();
        match (self.is_tls, text.strip_prefix("http:")) {
            (_, Some(rest)) if self.is_stream => write!(f, "tcp:{rest}"),
            (_, None) if self.is_stream => write!(f, "{text} (stream)"),
            (true, Some(rest)) => write!(f, "https:{rest}"),
            (true, None) => write!(f, "{text} (TLS)"),
            (false, _) => f.write_str(&text),
        }
    }
}

impl From<Bind> for Listen {
    /// Nothing but HTTP.
    fn from(at: Bind) -> Listen {
        Listen { at, proxy_protocol: None, tls: false, h2c: false, streams: None, key: 0 }
    }
}

/// A set of those who may come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// Networks.
    pub networks: Vec<IpNet>,
    /// Clients of Unix sockets.
    pub unix: bool,
}

impl Sources {
    /// Whether it belongs to the set.
    #[must_use]
    pub fn contains(&self, peer: Peer) -> bool {
        match peer {
            Peer::Tcp(address) => self.networks.iter().any(|network| covers(network, address.ip())),
            Peer::Unix => self.unix,
        }
    }

    /// Whether nobody does.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.networks.is_empty() && !self.unix
    }
}

/// Whether `address` belongs to `network`. An IPv4 address counts the same in its mapped form (`::ffff:a.b.c.d`), and so does a network of
/// such addresses. A wider network of IPv6 has no IPv4 addresses: else `::/0` would admit every client.
fn covers(network: &IpNet, address: IpAddr) -> bool {
    match (network, address.to_canonical()) {
        (IpNet::V6(network), IpAddr::V4(address)) => {
            network.prefix_len() >= 96 && network.contains(&address.to_ipv6_mapped())
        }
        (network, address) => network.contains(&address),
    }
}

/// Where to connect to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Dial {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A Unix socket at this path; in the abstract namespace (unix(7)), where it begins with `@`.
    Unix(PathBuf),
}

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A TCP client.
    Tcp(SocketAddr),
    /// A client of a Unix socket, which has no address.
    Unix,
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Peer::Tcp(address) => address.ip().to_canonical().fmt(f),
            Peer::Unix => f.write_str("unix:"),
        }
    }
}

/// The sender of a request: the peer of the connection, or the client that trusted proxies report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its address, with port 0 where the proxy did not report a port.
    pub address: Peer,
    /// Whether it speaks TLS: with us, or with the first of those proxies.
    pub secure: bool,
    /// The fields in which the peer's word on the client counts; `None` where it does not.
    pub vouched: Option<Dialect>,
}

impl Client {
    /// Who comes without a proxy whose word counts.
    #[must_use]
    pub fn direct(address: Peer, secure: bool) -> Client {
        Client { address, secure, vouched: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_cover_their_addresses() {
        for (network, address, inside) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.0", false),
            ("10.1.2.3/32", "10.1.2.3", true),
            ("10.1.2.3/32", "10.1.2.4", false),
            ("0.0.0.0/0", "203.0.113.9", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("::/0", "2001:db8::1", true),
            ("::/0", "203.0.113.9", false),
            ("::/0", "::ffff:203.0.113.9", false),
            ("::/64", "203.0.113.9", false),
            ("::ffff:0:0/95", "203.0.113.9", false),
            ("::ffff:0:0/95", "::fffe:0:1", true),
            ("::ffff:0:0/96", "203.0.113.9", true),
            ("::ffff:0:0/96", "::fffe:0:1", false),
            ("::/96", "203.0.113.9", false),
            ("2001:db8::/33", "2001:db8:7fff::1", true),
            ("2001:db8::/33", "2001:db8:8000::1", false),
            ("10.0.0.0/8", "::ffff:10.9.9.9", true),
            ("::ffff:10.0.0.0/104", "10.9.9.9", true),
            ("::ffff:10.0.0.0/104", "::ffff:11.0.0.0", false),
            ("192.168.77.1/24", "192.168.77.200", true),
        ] {
            let network: IpNet = network.parse().unwrap();
            assert_eq!(covers(&network, address.parse().unwrap()), inside, "{network} {address}");
        }
    }
}
