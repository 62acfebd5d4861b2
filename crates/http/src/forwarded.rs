//! The client's address as trusted proxies report it: `X-Forwarded-For` and `X-Forwarded-Proto`, or
//! `Forwarded` (RFC 7239). Each proxy appends the address of its own client, so the elements are read from
//! the last one backwards, as long as the proxy that wrote the element is trusted.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::head::Head;
use crate::name::Name;
use crate::reject::Reject;
use crate::scan;

/// The fields in which a proxy names its client. Only one of them is read: a field that the proxy does not
/// write itself may have been sent by the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `X-Forwarded-For` and its companions.
    XForwarded,
    /// `Forwarded`.
    Standard,
}

/// The dialect whose field of that name reports the client, its address, scheme or requested host; `None` for
/// other fields. `X-Real-IP` and every `X-Forwarded-…` belong to the dialect of `X-Forwarded-For`. Only
/// fields from proxies that are trusted to write a dialect may be passed on to upstream servers and
/// applications.
#[must_use]
#[inline]
pub fn dialect_of(id: Name, name: &[u8]) -> Option<Dialect> {
    match id {
        Name::Forwarded => Some(Dialect::Standard),
        Name::XForwardedFor | Name::XForwardedHost | Name::XForwardedProto => Some(Dialect::XForwarded),
        Name::Other if matches!(name, [b'X' | b'x', b'-', ..]) && is_companion(name) => {
            Some(Dialect::XForwarded)
        }
        _ => None,
    }
}

/// Whether a field without a [`Name`] belongs to the `X-Forwarded-For` dialect.
fn is_companion(name: &[u8]) -> bool {
    const PREFIX: &[u8] = b"x-forwarded-";
    name.get(..PREFIX.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(PREFIX))
        || name.eq_ignore_ascii_case(b"x-real-ip")
}

/// The client as reported by the proxies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClaimedClient {
    /// The client's address, with port 0 if the port is unknown. `None` if the fields give no trustworthy
    /// address.
    pub address: Option<SocketAddr>,
    /// Whether the client uses TLS with the first proxy.
    pub is_secure: Option<bool>,
}

const INVALID: Reject = Reject::bad_request("invalid Forwarded");

/// Reads the client from a request of a trusted sender: the last hop that is not trusted itself, or else the
/// first hop. A hop without an address (`unknown`, `_hidden`) ends the search: the client is then the proxy
/// that wrote it.
///
/// # Errors
/// 400 for an invalid `Forwarded`: a client may have sent it to hide the elements after it.
pub fn claimed_client(
    head: &Head,
    bytes: &[u8],
    dialect: Dialect,
    trusts: impl Fn(IpAddr) -> bool,
) -> Result<ClaimedClient, Reject> {
    match dialect {
        Dialect::XForwarded => Ok(claim_from_x_forwarded(head, bytes, trusts)),
        Dialect::Standard => claim_from_forwarded(head, bytes, trusts),
    }
}

/// The elements of all fields of that name, last one first.
fn elements_reversed<'x>(head: &'x Head, bytes: &'x [u8], name: Name) -> impl Iterator<Item = &'x [u8]> {
    let fields = head.fields.named(name).rev();
    let elements = fields.flat_map(move |field| field.value.of(bytes).rsplit(|&byte| byte == b','));
    elements.map(scan::trim).filter(|element| !element.is_empty())
}

/// The elements of all `X-Forwarded-For` fields, last one first. Tabs stay, so that an element with one is no address: proxies
/// write none, and other servers, such as nginx, do not take them for white space.
fn addresses_reversed<'x>(head: &'x Head, bytes: &'x [u8]) -> impl Iterator<Item = &'x [u8]> {
    let is_space = |byte: &&u8| matches!(byte, b' ' | b'\t');
    let fields = head.fields.named(Name::XForwardedFor).rev();
    let elements = fields.flat_map(move |field| {
        let start =
            field.value.start() - bytes[..field.value.start()].iter().rev().take_while(is_space).count();
        let end = field.value.end() + bytes[field.value.end()..].iter().take_while(is_space).count();
        bytes[start..end].rsplit(|&byte| byte == b',')
    });
    elements.map(trim_spaces).filter(|element| !element.is_empty())
}

fn trim_spaces(mut bytes: &[u8]) -> &[u8] {
    while let [b' ', rest @ ..] | [rest @ .., b' '] = bytes {
        bytes = rest;
    }
    bytes
}

fn claim_from_x_forwarded(head: &Head, bytes: &[u8], trusts: impl Fn(IpAddr) -> bool) -> ClaimedClient {
    let mut claim = ClaimedClient::default();
    let mut trusted_hops = 0;
    for hop in addresses_reversed(head, bytes) {
        let Some(address) = address(hop) else { break };
        claim.address = Some(address);
        if !trusts(address.ip()) {
            break;
        }
        trusted_hops += 1;
    }
    // Each proxy may have appended its own value, or only the first one has set it.
    let scheme = elements_reversed(head, bytes, Name::XForwardedProto).take(trusted_hops + 1).last();
    claim.is_secure = scheme.map(is_secure);
    claim
}

fn claim_from_forwarded(
    head: &Head,
    bytes: &[u8],
    trusts: impl Fn(IpAddr) -> bool,
) -> Result<ClaimedClient, Reject> {
    let mut hops = Vec::new();
    for field in head.fields.named(Name::Forwarded) {
        for element in scan::list(field.value.of(bytes)) {
            hops.push(parse_hop(element)?);
        }
    }
    let mut claim = ClaimedClient::default();
    for hop in hops.iter().rev() {
        claim.is_secure = hop.is_secure.or(claim.is_secure);
        let Some(address) = hop.address else { break };
        claim.address = Some(address);
        if !trusts(address.ip()) {
            break;
        }
    }
    Ok(claim)
}

/// Parses one element: `for=192.0.2.1;proto=https;by="[2001:db8::1]"`.
fn parse_hop(element: &[u8]) -> Result<ClaimedClient, Reject> {
    let mut hop = ClaimedClient::default();
    let mut rest = element;
    while !rest.is_empty() {
        let (name, after) = rest.split_at(scan::token_len(rest));
        let value = after.strip_prefix(b"=").filter(|_| !name.is_empty()).ok_or(INVALID)?;
        let (value, after) = split_value(value)?;
        if name.eq_ignore_ascii_case(b"for") {
            hop.address = address(value);
        } else if name.eq_ignore_ascii_case(b"proto") {
            hop.is_secure = Some(is_secure(value));
        }
        rest = match scan::trim(after) {
            [] => break,
            [b';', more @ ..] => scan::trim(more),
            _ => return Err(INVALID),
        };
    }
    Ok(hop)
}

/// Splits off a token or a quoted string at the beginning; returns it and the rest. Backslash escapes are not
/// removed, because no address or scheme needs one.
fn split_value(bytes: &[u8]) -> Result<(&[u8], &[u8]), Reject> {
    let Some(quoted) = bytes.strip_prefix(b"\"") else {
        return match scan::token_len(bytes) {
            0 => Err(INVALID),
            len => Ok(bytes.split_at(len)),
        };
    };
    let mut escaped = false;
    for (at, &byte) in quoted.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Ok((&quoted[..at], &quoted[at + 1..])),
            _ => {}
        }
    }
    Err(INVALID)
}

/// Parses an address as proxies write it: with or without a port, an IPv6 address with or without brackets.
fn address(text: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let bare = || text.parse::<IpAddr>().ok();
    let bracketed = || text.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().ok().map(IpAddr::V6);
    let reported = match bare().or_else(bracketed) {
        Some(ip) => SocketAddr::new(ip, 0),
        None => text.parse().ok()?,
    };
    Some(SocketAddr::new(reported.ip().to_canonical(), reported.port()))
}

fn is_secure(scheme: &[u8]) -> bool {
    scheme.eq_ignore_ascii_case(b"https") || scheme.eq_ignore_ascii_case(b"wss")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::Limits;
    use crate::request::RequestHead;

    fn reported(dialect: Dialect, lines: &str) -> Result<(String, Option<bool>), &'static str> {
        let bytes = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n").replace('\n', "\r\n");
        let bytes = bytes.replace("\r\r", "\r").into_bytes();
        let mut head = RequestHead::default();
        assert!(head.parse(&bytes, &Limits::default()).unwrap(), "{lines}");
        let trusts = |ip: IpAddr| ip.to_string().starts_with("10.") || ip.to_string() == "2001:db8::1";
        let claim = claimed_client(&head, &bytes, dialect, trusts).map_err(|reject| reject.reason)?;
        Ok((claim.address.map_or("-".into(), |address| address.to_string()), claim.is_secure))
    }

    #[test]
    fn forwarding_field_names_match_in_any_case() {
        for (name, dialect) in [
            ("X-Forwarded-For", Some(Dialect::XForwarded)),
            ("x-forwarded-proto", Some(Dialect::XForwarded)),
            ("X-FORWARDED-HOST", Some(Dialect::XForwarded)),
            ("X-Forwarded-Port", Some(Dialect::XForwarded)),
            ("x-forwarded-Prefix", Some(Dialect::XForwarded)),
            ("X-Real-IP", Some(Dialect::XForwarded)),
            ("Forwarded", Some(Dialect::Standard)),
            ("X-Forwarded", None),
            ("X-Real-IPs", None),
            ("Via", None),
        ] {
            assert_eq!(dialect_of(Name::of(name.as_bytes()), name.as_bytes()), dialect, "{name}");
        }
    }

    #[test]
    fn x_forwarded_for_is_read_from_the_end() {
        for (lines, address, secure) in [
            ("", "-", None),
            ("X-Forwarded-For: 1.1.1.1\n", "1.1.1.1:0", None),
            ("X-Forwarded-For: 6.6.6.6, 1.1.1.1, 10.0.0.1\n", "1.1.1.1:0", None),
            ("X-Forwarded-For: 6.6.6.6\nX-Forwarded-For: 1.1.1.1, 10.0.0.1\n", "1.1.1.1:0", None),
            ("X-Forwarded-For: 10.0.0.3, , 10.0.0.1,\n", "10.0.0.3:0", None),
            ("X-Forwarded-For: nonsense, 10.0.0.1\n", "10.0.0.1:0", None),
            ("X-Forwarded-For: 6.6.6.6, unknown\n", "-", None),
            ("X-Forwarded-For:  1.1.1.1  ,10.0.0.1  \n", "1.1.1.1:0", None),
            ("X-Forwarded-For:\t1.1.1.1\n", "-", None),
            ("X-Forwarded-For: \t 1.1.1.1\n", "-", None),
            ("X-Forwarded-For: 1.1.1.1\t\n", "-", None),
            ("X-Forwarded-For: 1.1.1.1 \t \n", "-", None),
            ("X-Forwarded-For: 1.1.1.1,\t10.0.0.1\n", "-", None),
            ("X-Forwarded-For: 1.1.1.1\t, 10.0.0.1\n", "10.0.0.1:0", None),
            ("X-Forwarded-For: 1.1.1.1:80\n", "1.1.1.1:80", None),
            ("X-Forwarded-For: 2001:db8::7\n", "[2001:db8::7]:0", None),
            ("X-Forwarded-For: [2001:db8::7]:80\n", "[2001:db8::7]:80", None),
            ("X-Forwarded-For: ::ffff:1.1.1.1\n", "1.1.1.1:0", None),
            ("X-Forwarded-Proto: HTTPS\n", "-", Some(true)),
            ("X-Forwarded-Proto: https\nX-Forwarded-For: 1.1.1.1, 10.0.0.1\n", "1.1.1.1:0", Some(true)),
            // An element that the client sent itself comes before those of the proxies.
            ("X-Forwarded-Proto: https, http\nX-Forwarded-For: 1.1.1.1\n", "1.1.1.1:0", Some(false)),
            ("X-Forwarded-Proto: https, http\nX-Forwarded-For: 1.1.1.1, 10.0.0.1\n", "1.1.1.1:0", Some(true)),
            ("Forwarded: for=1.1.1.1\n", "-", None),
        ] {
            assert_eq!(reported(Dialect::XForwarded, lines), Ok((address.into(), secure)), "{lines}");
        }
    }

    #[test]
    fn forwarded_elements_are_read_from_the_end() {
        for (lines, address, secure) in [
            ("Forwarded: for=1.1.1.1;proto=https\n", "1.1.1.1:0", Some(true)),
            (
                "Forwarded: for=6.6.6.6, FOR=1.1.1.1 ; Proto=https;by=10.0.0.2, for=10.0.0.1;proto=http\n",
                "1.1.1.1:0",
                Some(true),
            ),
            (
                "Forwarded: for=6.6.6.6\nForwarded: for=\"[2001:db8::7]:80\", for=\"[2001:db8::1]\"\n",
                "[2001:db8::7]:80",
                None,
            ),
            ("Forwarded: for=6.6.6.6, for=_hidden;proto=https\n", "-", Some(true)),
            ("Forwarded: host=\"a, for=6.6.6.6;\\\"\";for=1.1.1.1\n", "1.1.1.1:0", None),
            ("Forwarded: proto=http, for=10.0.0.1\n", "10.0.0.1:0", Some(false)),
            ("X-Forwarded-For: 1.1.1.1\n", "-", None),
        ] {
            assert_eq!(reported(Dialect::Standard, lines), Ok((address.into(), secure)), "{lines}");
        }
    }

    #[test]
    fn malformed_forwarded_elements_are_rejected() {
        for value in ["for=\"6.6.6.6, for=1.1.1.1", "for", "for=;proto=http", "for=a b", "=a", "for=[::1]"] {
            let said = reported(Dialect::Standard, &format!("Forwarded: {value}\n"));
            assert_eq!(said, Err("invalid Forwarded"), "{value}");
        }
    }
}
