//! Networks, and trusted proxies.

use ipnet::IpNet;
use settings::checker::InvalidValue;
use settings::directives;
use settings::shape::{List, Text, Word};
use std::net::IpAddr;

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
    pub(crate) fn contains(&self, address: Option<IpAddr>) -> bool {
        match (self, address) {
            (Self::Unix, address) => address.is_none(),
            (Self::Network(network), Some(address)) => network.contains(&address.to_canonical()),
            (Self::Network(_), None) => false,
        }
    }

    /// Whether it is every address.
    pub(crate) fn includes_every_address(&self) -> bool {
        matches!(self, Self::Network(network) if network.prefix_len() == 0)
    }
}

/// The fields that a trusted proxy sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForwardedFields {
    /// `X-Forwarded-For` and `X-Forwarded-Proto`.
    XForwarded,
    /// `Forwarded` (RFC 7239).
    Standard,
}

pub(crate) const SOURCE: Text<TrustedSource> =
    Text { what: "a network such as \"10.0.0.0/8\", an address, or \"unix\"", parse: parse_source };

directives! {
    /// Proxies in front of this server, such as a load balancer, that send the client's address. A list of networks
    /// stands for `from`.
    ///
    /// ```toml
    /// trusted_proxies = ["10.0.0.0/8", "2001:db8::/32"]
    /// ```
    ///
    /// The client's address is then the last address in the field that is not one of these proxies; its scheme, `http`
    /// or `https`, is taken from the same proxy. They are used in the access log, `$client_ip`, `hash:client`, the
    /// application's `REMOTE_ADDR` and the PROXY protocol to upstream servers. Such fields from other addresses are
    /// ignored.
    TrustedProxies in "`trusted_proxies`" {
        /// Networks, addresses, and `"unix"` for all connections over a Unix socket.
        "from" from: Vec<TrustedSource> = [], List(SOURCE);
        /// The fields with the client's address: `"x-forwarded"` is `X-Forwarded-For` and `X-Forwarded-Proto`,
        /// `"forwarded"` is the field of RFC 7239. Only one kind is used, because a proxy that does not know the other
        /// one forwards what the client wrote there.
        "fields" fields: ForwardedFields = "x-forwarded",
            Word(&[("x-forwarded", ForwardedFields::XForwarded), ("forwarded", ForwardedFields::Standard)]);
    }
}

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

pub(crate) fn network(text: &str) -> Result<IpNet, InvalidValue> {
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
