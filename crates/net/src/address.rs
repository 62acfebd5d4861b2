//! Addresses to listen on and to connect to, and the addresses of clients.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use http::Dialect;
use ipnet::IpNet;

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BindAddress {
    /// A TCP address; port 0 lets the kernel choose. An IPv6 address accepts only IPv6 connections.
    Tcp(SocketAddr),
    /// Every local address at this port, IPv6 and IPv4; IPv4 only if the machine has no IPv6.
    Any(u16),
    /// A Unix socket at this path.
    Unix(PathBuf),
    /// A UDP address, as [`BindAddress::Tcp`].
    Udp(SocketAddr),
    /// Every local address at this UDP port, as [`BindAddress::Any`].
    AnyUdp(u16),
}

impl BindAddress {
    /// Returns the port; `None` for a Unix socket.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        match self {
            BindAddress::Tcp(address) | BindAddress::Udp(address) => Some(address.port()),
            BindAddress::Any(port) | BindAddress::AnyUdp(port) => Some(*port),
            BindAddress::Unix(_) => None,
        }
    }

    /// Whether datagrams are received at the address.
    #[must_use]
    pub fn is_udp(&self) -> bool {
        matches!(self, BindAddress::Udp(_) | BindAddress::AnyUdp(_))
    }

    /// Returns the UDP address with the same address and port; a Unix socket stays as it is.
    #[must_use]
    pub fn over_udp(self) -> BindAddress {
        match self {
            BindAddress::Tcp(address) => BindAddress::Udp(address),
            BindAddress::Any(port) => BindAddress::AnyUdp(port),
            other => other,
        }
    }

    /// Returns the TCP address with the same address and port; a Unix socket stays as it is.
    #[must_use]
    pub fn over_tcp(self) -> BindAddress {
        match self {
            BindAddress::Udp(address) => BindAddress::Tcp(address),
            BindAddress::AnyUdp(port) => BindAddress::Any(port),
            other => other,
        }
    }
}

impl std::fmt::Display for BindAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BindAddress::Tcp(address) => write!(f, "http://{address}"),
            BindAddress::Any(port) => write!(f, "http://[::]:{port}"),
            BindAddress::Unix(path) => write!(f, "unix:{}", path.display()),
            BindAddress::Udp(address) => write!(f, "udp://{address}"),
            BindAddress::AnyUdp(port) => write!(f, "udp://[::]:{port}"),
        }
    }
}

/// A listening address and the protocols that its connections speak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenOptions {
    /// The address.
    pub address: BindAddress,
    /// Peers that may connect; each connection must begin with a PROXY protocol header. `None`: PROXY
    /// protocol headers are not accepted.
    pub proxy_protocol: Option<PeerSet>,
    /// Whether connections speak TLS (after a PROXY protocol header); see [`crate::Options::tls`].
    pub is_tls: bool,
    /// Whether cleartext connections may use HTTP/2 with prior knowledge (RFC 9113 section 3.3).
    pub allows_h2c: bool,
    /// Whether clients may use HTTP/3 at the UDP port with the same number; only with TLS.
    pub allows_http3: bool,
    /// Set if connections may be relayed, as [`crate::Service::choose_stream`] decides. Required for a UDP address,
    /// whose datagrams are relayed as [`crate::Service::choose_datagrams`] decides.
    pub streams: Option<StreamListener>,
    /// Identifier of the listener, chosen by the server and reported with each request
    /// ([`crate::Request::listener_key`]).
    pub key: u64,
}

/// Settings of a listener whose connections may be relayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamListener {
    /// Name of the listener for [`crate::Service::choose_stream`].
    pub key: String,
    /// Whether the choice depends on the TLS server name; if so, the ClientHello is read before choosing.
    pub reads_server_name: bool,
    /// Whether every connection is relayed or closed, and none serves HTTP.
    pub is_only: bool,
}

/// The URL at which a server can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenUrl {
    /// The address, with the port that the kernel chose.
    pub address: BindAddress,
    /// Whether connections speak TLS.
    pub is_tls: bool,
    /// Whether all connections are relayed and none serves HTTP.
    pub is_stream: bool,
}

impl std::fmt::Display for ListenUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = self.address.to_string();
        if self.address.is_udp() {
            return f.write_str(&text);
        }
        match (self.is_tls, text.strip_prefix("http:")) {
            (_, Some(rest)) if self.is_stream => write!(f, "tcp:{rest}"),
            (_, None) if self.is_stream => write!(f, "{text} (stream)"),
            (true, Some(rest)) => write!(f, "https:{rest}"),
            (true, None) => write!(f, "{text} (TLS)"),
            (false, _) => f.write_str(&text),
        }
    }
}

impl From<BindAddress> for ListenOptions {
    /// A listener for cleartext HTTP/1 only.
    fn from(at: BindAddress) -> ListenOptions {
        ListenOptions {
            address: at,
            proxy_protocol: None,
            is_tls: false,
            allows_h2c: false,
            allows_http3: false,
            streams: None,
            key: 0,
        }
    }
}

/// A set of peer addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerSet {
    /// Networks whose addresses belong to the set.
    pub networks: Vec<IpNet>,
    /// Whether clients of Unix sockets belong to the set.
    pub includes_unix: bool,
}

impl PeerSet {
    /// Whether `peer` belongs to the set.
    #[must_use]
    pub fn contains(&self, peer: Peer) -> bool {
        match peer {
            Peer::Tcp(address) => self.networks.iter().any(|network| covers(network, address.ip())),
            Peer::Unix => self.includes_unix,
        }
    }

    /// Whether the set has no members.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.networks.is_empty() && !self.includes_unix
    }
}

/// Whether `address` belongs to `network`. An IPv4 address and its mapped form (`::ffff:a.b.c.d`) are
/// equivalent, and so are networks of mapped addresses. A wider IPv6 network contains no IPv4 addresses:
/// otherwise `::/0` would admit every client.
fn covers(network: &IpNet, address: IpAddr) -> bool {
    match (network, address.to_canonical()) {
        (IpNet::V6(network), IpAddr::V4(address)) => {
            network.prefix_len() >= 96 && network.contains(&address.to_ipv6_mapped())
        }
        (network, address) => network.contains(&address),
    }
}

/// An address to connect to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ConnectAddress {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A Unix socket at this path, or in the abstract namespace (unix(7)) if the path begins with `@`.
    Unix(PathBuf),
}

/// The remote end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A client with an address.
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
    /// The client's address, with port 0 if the proxy did not report a port.
    pub address: Peer,
    /// Whether the client speaks TLS, with this server or with the first of the trusted proxies.
    pub is_secure: bool,
    /// The header fields in which a trusted peer reports the client; `None` if the peer is not trusted.
    pub trusted_dialect: Option<Dialect>,
}

impl Client {
    /// A client that is connected directly, without a trusted proxy.
    #[must_use]
    pub fn direct(address: Peer, is_secure: bool) -> Client {
        Client { address, is_secure, trusted_dialect: None }
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
