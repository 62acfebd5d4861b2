//! Networks, and trusted proxies.

use crate::check::InvalidValue;
use crate::record::directives;
use crate::shape::{List, Text, Word};
use std::fmt;
use std::net::IpAddr;

/// A network of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    /// Its address, or any address in it.
    pub address: IpAddr,
    /// The number of leading bits that must be equal.
    pub bits: u8,
}

impl fmt::Display for Network {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.address, self.bits)
    }
}

/// The origin of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrustedSource {
    /// A network.
    Network(Network),
    /// A Unix socket.
    Unix,
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
    Text { what: "a network such as \"10.0.0.0/8\", an address, or \"unix\"", parse: source };

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

fn source(text: &str) -> Result<TrustedSource, InvalidValue> {
    match text {
        "unix" => Ok(TrustedSource::Unix),
        _ => network(text).map(TrustedSource::Network),
    }
}

fn network(text: &str) -> Result<Network, InvalidValue> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (text, None),
    };
    let Ok(ip) = address.parse::<IpAddr>() else {
        let fault = InvalidValue::new(
            "this is not an IP address",
            "write a network such as \"10.0.0.0/8\", or \"unix\"",
        );
        return Err(fault.within(0..address.len()));
    };
    let width = if ip.is_ipv4() { 32 } else { 128 };
    match bits {
        None => Ok(Network { address: ip, bits: width }),
        Some(bits) => match bits.parse::<u8>().ok().filter(|&count| count <= width && !bits.starts_with('+'))
        {
            Some(bits) => Ok(Network { address: ip, bits }),
            None => {
                let fault = InvalidValue::new(
                    "this is not a prefix length",
                    format!("write a number from 0 to {width}"),
                );
                Err(fault.within(address.len() + 1..text.len()))
            }
        },
    }
}
