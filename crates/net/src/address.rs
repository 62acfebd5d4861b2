//! Addresses to serve on, and of those who come.

use std::net::SocketAddr;
use std::path::PathBuf;

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

impl std::fmt::Display for Bind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Bind::Tcp(address) => write!(f, "http://{address}"),
            Bind::Any(port) => write!(f, "http://[::]:{port}"),
            Bind::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Where to connect to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Dial {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A Unix socket at this path.
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
