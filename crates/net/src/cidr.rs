//! Networks of addresses: who is trusted.

use std::net::IpAddr;

/// A network in CIDR notation (RFC 4632): an address and how many of its leading bits count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    bits: u128,
    mask: u128,
}

impl Cidr {
    /// Reads `10.0.0.0/8`, `::1/128` or a single address. `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Cidr> {
        let (address, len) = match text.split_once('/') {
            None => (text.parse::<IpAddr>().ok()?, None),
            Some((address, len)) if len.bytes().all(|byte| byte.is_ascii_digit()) => {
                (address.parse().ok()?, Some(len.parse::<u32>().ok()?))
            }
            Some(_) => return None,
        };
        let width = if address.is_ipv4() { 32 } else { 128 };
        let len = len.unwrap_or(width);
        if len > width {
            return None;
        }
        let host_bits = width - len;
        let mask = if host_bits == 128 { 0 } else { u128::MAX << host_bits };
        Some(Cidr { bits: as_bits(address) & mask, mask })
    }

    /// Whether `address` belongs to the network. An IPv4 address counts the same when it comes mapped into IPv6.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        as_bits(address) & self.mask == self.bits
    }
}

/// IPv4 stands in its mapped place (`::ffff:a.b.c.d`).
fn as_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_contain_their_addresses() {
        for (network, address, inside) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.0", false),
            ("10.1.2.3", "10.1.2.3", true),
            ("10.1.2.3", "10.1.2.4", false),
            ("0.0.0.0/0", "203.0.113.9", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("::/0", "2001:db8::1", true),
            ("::/0", "203.0.113.9", true),
            ("2001:db8::/33", "2001:db8:7fff::1", true),
            ("2001:db8::/33", "2001:db8:8000::1", false),
            ("10.0.0.0/8", "::ffff:10.9.9.9", true),
            ("192.168.77.1/24", "192.168.77.200", true),
        ] {
            let network = Cidr::parse(network).unwrap();
            assert_eq!(network.contains(address.parse().unwrap()), inside, "{network:?} {address}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in
            ["", "10.0.0.0/33", "::/129", "10.0.0/8", "10.0.0.0/", "10.0.0.0/+8", "a/8", "10.0.0.0/8/8"]
        {
            assert_eq!(Cidr::parse(text), None, "{text}");
        }
    }
}
