//! The table `[discover]`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use settings::checker::InvalidValue;
use settings::directives;
use settings::shape::{Maybe, OneOrMore, Text, Time, Toggle};
use shapes::host::HostPattern;

/// Port of DNS servers.
const DNS_PORT: u16 = 53;
/// Path of Docker's socket.
const DOCKER_SOCKET: &str = "/run/docker.sock";

directives! {
    /// Discovery of servers that change while this one runs: containers of Docker by their labels, and DNS for servers
    /// whose URL begins with `srv+` or `dns+`.
    ///
    /// ```toml
    /// [discover]
    /// docker = true
    /// hosts  = ["*.apps.example.com"]
    /// dns    = "127.0.0.1:8600"
    /// ```
    DiscoverTable in "`[discover]`" {
        /// Docker's socket, whose containers with labels are served: `true` for `/run/docker.sock`, `"unix:PATH"`, or
        /// `"http://HOST:PORT"` for a proxy of the socket.
        "docker" docker: Option<DockerAddress> = false,
            Toggle {
                on: Some(|| Some(DockerAddress::default())),
                off: || None,
                shape: Maybe(Text { what: "an address such as \"unix:/run/docker.sock\"", parse: DockerAddress::parse }),
            };
        /// Hosts that containers may have. Hosts of `[[site]]` are never theirs.
        "hosts" hosts: Vec<HostPattern> = absent("every host that no site has"),
            OneOrMore(Text { what: "a host such as \"*.apps.example.com\"", parse: HostPattern::parse });
        /// DNS servers, `HOST:PORT` or an IP address, that are asked in turn.
        "dns" dns: Vec<SocketAddr> = absent("those of `/etc/resolv.conf`"),
            OneOrMore(Text { what: "an address such as \"127.0.0.1:8600\"", parse: dns_server });
        /// Maximum time for each answer of a DNS server and of Docker. A start or reload waits as long for the first
        /// answers, and continues without them.
        "timeout" timeout: Duration = "2s", Time { min: Duration::from_millis(10), max: Duration::from_secs(60) };
    }
}

/// Address of Docker's API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DockerAddress {
    /// Path of a Unix socket.
    Unix(PathBuf),
    /// `host:port`.
    Tcp(String),
}

impl Default for DockerAddress {
    fn default() -> DockerAddress {
        DockerAddress::Unix(PathBuf::from(DOCKER_SOCKET))
    }
}

impl std::fmt::Display for DockerAddress {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DockerAddress::Unix(path) => write!(out, "unix:{}", path.display()),
            DockerAddress::Tcp(address) => write!(out, "http://{address}"),
        }
    }
}

impl DockerAddress {
    fn parse(text: &str) -> Result<DockerAddress, InvalidValue> {
        let wrong = |what: &str| {
            InvalidValue::new(what.to_owned(), "write \"unix:/run/docker.sock\" or \"http://127.0.0.1:2375\"")
        };
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            if !path.starts_with('/') {
                return Err(wrong("the path begins with a slash"));
            }
            return Ok(DockerAddress::Unix(PathBuf::from(path)));
        }
        let schemes = ["http://", "tcp://"];
        let rest = schemes.iter().find_map(|scheme| text.strip_prefix(scheme));
        let address = rest.ok_or_else(|| wrong("this is not the address of Docker"))?.trim_end_matches('/');
        match address.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(DockerAddress::Tcp(address.to_owned()))
            }
            _ => Err(wrong("the port is missing")),
        }
    }
}

fn dns_server(text: &str) -> Result<SocketAddr, InvalidValue> {
    let address = text.parse().ok();
    let address = address.or_else(|| Some(SocketAddr::new(text.parse::<IpAddr>().ok()?, DNS_PORT)));
    address.ok_or_else(|| {
        InvalidValue::new(
            "this is not the address of a DNS server",
            "write \"192.0.2.53\" or \"127.0.0.1:8600\"",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_docker_and_dns_servers_are_parsed() {
        for (text, shown) in [
            ("unix:/run/docker.sock", "unix:/run/docker.sock"),
            ("unix:///var/run/docker.sock", "unix:/var/run/docker.sock"),
            ("tcp://127.0.0.1:2375", "http://127.0.0.1:2375"),
            ("http://proxy:2375/", "http://proxy:2375"),
        ] {
            assert_eq!(DockerAddress::parse(text).unwrap().to_string(), shown);
        }
        for text in
            ["", "unix:", "unix:run", "/run/docker.sock", "http://proxy", "https://proxy:1", "http://:1"]
        {
            assert!(DockerAddress::parse(text).is_err(), "{text}");
        }
        assert_eq!(dns_server("192.0.2.1").unwrap().to_string(), "192.0.2.1:53");
        assert_eq!(dns_server("[::1]:8600").unwrap().to_string(), "[::1]:8600");
        assert!(dns_server("localhost:53").is_err() && dns_server("192.0.2.1:x").is_err());
    }
}
