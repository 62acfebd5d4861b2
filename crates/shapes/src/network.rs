//! Networks and addresses of clients.

use ipnet::IpNet;
use settings::checker::InvalidValue;
use settings::shape::Text;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The origin of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrustedSource {
    /// A network: its address may be any address in it.
    Network(IpNet),
    /// A Unix socket.
    Unix,
}

impl TrustedSource {
    /// Whether a client at this address is in it; none is that of a Unix socket.
    pub fn contains(&self, address: Option<IpAddr>) -> bool {
        match (self, address) {
            (Self::Unix, address) => address.is_none(),
            (Self::Network(network), Some(address)) => network.contains(&address.to_canonical()),
            (Self::Network(_), None) => false,
        }
    }

    /// Whether it is every address.
    pub fn includes_every_address(&self) -> bool {
        matches!(self, Self::Network(network) if network.prefix_len() == 0)
    }
}

/// Whether an address belongs to this machine or to a link: loopback, link-local, such as the metadata of a cloud, unspecified
/// or multicast. An IPv6 address in which an IPv4 address is embedded (RFC 4291, 2.5.5; RFC 6052; RFC 3056) is judged by that too.
pub fn is_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            address.is_link_local()
                || address.is_broadcast()
                || address.is_loopback()
                || address.is_unspecified()
                || address.is_multicast()
        }
        IpAddr::V6(address) => {
            address.is_unicast_link_local()
                || address.is_loopback()
                || address.is_unspecified()
                || address.is_multicast()
                || embedded_ipv4(address).is_some_and(|inner| is_local(inner.into()))
        }
    }
}

fn embedded_ipv4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let octets = address.octets();
    let at = match address.segments() {
        // Mapped and compatible addresses, and NAT64.
        [0, 0, 0, 0, 0, 0 | 0xffff, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => 12,
        // 6to4.
        [0x2002, ..] => 2,
        _ => return None,
    };
    let inner: [u8; 4] = octets[at..at + 4].try_into().ok()?;
    Some(inner.into())
}

/// A network, an address or `"unix"`.
pub const SOURCE: Text<TrustedSource> =
    Text { what: "a network such as \"10.0.0.0/8\", an address, or \"unix\"", parse: parse_source };

fn parse_source(text: &str) -> Result<TrustedSource, InvalidValue> {
    match text {
        "unix" => Ok(TrustedSource::Unix),
        _ if text.starts_with('!') => {
            let remedy = "write `not = { client = … }` in a route, or `deny`, for clients that are not meant";
            Err(InvalidValue::new("`!` has no meaning here", remedy))
        }
        _ => network(text).map(TrustedSource::Network),
    }
}

/// Parses an address, or a network in CIDR notation.
///
/// # Errors
/// The text is neither.
pub fn network(text: &str) -> Result<IpNet, InvalidValue> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (text, None),
    };
    let Ok(ip) = address.parse::<IpAddr>() else {
        let remedy = match text {
            "all" | "any" | "everyone" | "everybody" | "*" => {
                "write networks: everybody is `[\"0.0.0.0/0\", \"::/0\"]`; beside `allow` no `deny` is needed: who is not in it is refused"
            }
            // As Caddy has it.
            "private_ranges" => {
                "write the networks: `[\"10.0.0.0/8\", \"172.16.0.0/12\", \"192.168.0.0/16\", \"fd00::/8\", \"127.0.0.0/8\"]`"
            }
            _ => "write a network such as \"10.0.0.0/8\", or \"unix\"",
        };
        let fault = InvalidValue::new("this is not an IP address", remedy);
        return Err(fault.within(0..address.len()));
    };
    let single = IpNet::from(ip);
    let Some(bits) = bits else { return Ok(unmap_ipv4(single)) };
    let count = bits.parse().ok().filter(|_| !bits.starts_with('+'));
    count.and_then(|count| IpNet::new(ip, count).ok()).map(unmap_ipv4).ok_or_else(|| {
        let remedy = format!("write a number from 0 to {}", single.max_prefix_len());
        InvalidValue::new("this is not a prefix length", remedy).within(address.len() + 1..text.len())
    })
}

/// Converts a network of IPv4-mapped addresses (RFC 4291 section 2.5.5.2) to IPv4: clients have IPv4
/// addresses.
fn unmap_ipv4(network: IpNet) -> IpNet {
    let mapped = match network {
        IpNet::V6(mapped) => mapped.addr().to_ipv4_mapped().zip(mapped.prefix_len().checked_sub(96)),
        IpNet::V4(_) => None,
    };
    mapped.and_then(|(ip, bits)| IpNet::new(ip.into(), bits).ok()).unwrap_or(network)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_and_single_addresses_are_parsed() {
        for (text, want) in
            [("10.0.0.0/8", "10.0.0.0/8"), ("10.1.2.3", "10.1.2.3/32"), ("::1", "::1/128"), ("::/0", "::/0")]
        {
            assert_eq!(network(text).unwrap().to_string(), want);
        }
        for (text, want) in [
            ("::ffff:127.0.0.1", "127.0.0.1/32"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("::ffff:0:0/96", "0.0.0.0/0"),
            ("::ffff:0:0/95", "::ffff:0.0.0.0/95"),
        ] {
            assert_eq!(network(text).unwrap().to_string(), want);
        }
        for (text, what, at) in [
            ("", "an IP address", 0..0),
            ("a/8", "an IP address", 0..1),
            ("10.0.0/8", "an IP address", 0..6),
            ("010.0.0.0/8", "an IP address", 0..9),
            ("10.0.0.0/33", "a prefix length", 9..11),
            ("10.0.0.0/", "a prefix length", 9..9),
            ("10.0.0.0/+8", "a prefix length", 9..11),
            ("10.0.0.0/8/8", "a prefix length", 9..12),
            ("::/129", "a prefix length", 3..6),
            ("::/300", "a prefix length", 3..6),
        ] {
            let fault = network(text).unwrap_err();
            assert_eq!(
                (fault.message.as_str(), fault.span),
                (format!("this is not {what}").as_str(), Some(at))
            );
        }
    }
}
