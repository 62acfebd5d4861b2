//! Networks, and who is trusted.

use crate::check::InvalidValue;
use crate::record::directives;
use crate::shape::{List, Text, Word};
use std::fmt;
use std::net::IpAddr;

/// A network of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    /// Its address, or one of those in it.
    pub address: IpAddr,
    /// How many leading bits count.
    pub bits: u8,
}

impl fmt::Display for Network {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.address, self.bits)
    }
}

/// Where connections come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrustedSource {
    /// A network.
    Network(Network),
    /// A Unix socket.
    Unix,
}

/// The fields in which a trusted proxy is believed.
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
    /// Proxies in front of this server, such as a load balancer, that say who the client is. Just their networks stand
    /// for `from` alone.
    ///
    /// ```toml
    /// trusted_proxies = ["10.0.0.0/8", "2001:db8::/32"]
    /// ```
    ///
    /// Then the client's address is the last one that they name and that is not one of them; and it is what the access
    /// log, `$client_ip`, `hash:client`, the application's `REMOTE_ADDR` and the PROXY protocol to upstream servers
    /// have. So it is with its scheme, `http` or `https`. Nobody else is believed.
    TrustedProxies in "`trusted_proxies`" {
        /// Networks, addresses, and `"unix"` for whoever connects over a Unix socket.
        "from" from: Vec<TrustedSource> = [], List(SOURCE);
        /// Where they say it: `"x-forwarded"`, in `X-Forwarded-For` and `X-Forwarded-Proto`, or `"forwarded"`, in the field
        /// of RFC 7239. They are believed in what they write themselves alone: a proxy that knows nothing of the other
        /// one passes on what a client has written there.
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
        let fault =
            InvalidValue::new("this is no IP address", "write a network such as \"10.0.0.0/8\", or \"unix\"");
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
                    "this is no prefix length",
                    format!("write a number from 0 to {width}"),
                );
                Err(fault.within(address.len() + 1..text.len()))
            }
        },
    }
}
