//! Hosts of sites: names, addresses, and wildcards.

use settings::checker::InvalidValue;
use std::fmt;
use std::net::Ipv6Addr;

/// The longest host, in bytes (RFC 1035 section 2.3.4).
pub const HOST_BYTES_MAX: usize = 253;

/// Suffixes of names that no public authority issues certificates for: RFC 2606, 6761, 6762, 7686 and 8375, ICANN's `internal`, and those that
/// networks use by custom.
pub const PRIVATE_SUFFIXES: [&str; 11] = [
    "localhost",
    "local",
    "internal",
    "home.arpa",
    "test",
    "lan",
    "home",
    "corp",
    "intranet",
    "private",
    "localdomain",
];

/// Pattern of the hosts that a site serves. Text is in lower case.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HostPattern {
    /// This host alone: a name, an IPv4 address, or an IPv6 address in brackets.
    Exact(String),
    /// Every name below this one, at any depth, but not the name itself: `.example.com` for `*.example.com`.
    Subdomains(String),
}

impl HostPattern {
    /// Parses `example.com`, `*.example.com`, `192.0.2.1` or `[2001:db8::1]`. Case and a final dot do not
    /// count.
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        if text == "*" || text.is_empty() {
            return Err(InvalidValue::new(
                "this is not a host",
                "remove `hosts` for the site that answers all other hosts",
            ));
        }
        if let Some(at) = text.find("://") {
            let fault = InvalidValue::new("a URL, not a host", "write the name alone: \"example.com\"");
            return Err(fault.within(0..at + 3));
        }
        if let Some(name) = text.strip_prefix("*.") {
            return parse_exact(name)
                .map(|name| Self::Subdomains(format!(".{name}")))
                .map_err(|fault| shift_fault(fault, 2));
        }
        if let Some(inner) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let address = inner.parse::<Ipv6Addr>();
            return address
                .map(|address| Self::Exact(format!("[{address}]")))
                .map_err(|_| InvalidValue::new("this is not an IPv6 address", "").within(1..text.len() - 1));
        }
        parse_exact(text).map(Self::Exact)
    }
}

impl HostPattern {
    /// Whether it is the host of an authority, `host` or `host:port`, in any case.
    #[must_use]
    pub fn matches_authority(&self, authority: &[u8]) -> bool {
        let end = match authority.first() {
            Some(b'[') => {
                authority.iter().position(|&byte| byte == b']').map_or(authority.len(), |at| at + 1)
            }
            _ => authority.iter().position(|&byte| byte == b':').unwrap_or(authority.len()),
        };
        let host = authority[..end].strip_suffix(b".").unwrap_or(&authority[..end]);
        match self {
            Self::Exact(name) => host.eq_ignore_ascii_case(name.as_bytes()),
            Self::Subdomains(name) => {
                let start = host.len().saturating_sub(name.len());
                start > 0 && host[start..].eq_ignore_ascii_case(name.as_bytes())
            }
        }
    }
}

impl HostPattern {
    /// Whether there are hosts that both match.
    #[must_use]
    pub fn shares_hosts_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Exact(this), Self::Exact(that)) => this == that,
            (Self::Subdomains(below), Self::Exact(name)) | (Self::Exact(name), Self::Subdomains(below)) => {
                name.len() > below.len() && name.ends_with(below.as_str())
            }
            (Self::Subdomains(this), Self::Subdomains(that)) => {
                this.ends_with(that.as_str()) || that.ends_with(this.as_str())
            }
        }
    }
}

fn shift_fault(fault: InvalidValue, by: usize) -> InvalidValue {
    InvalidValue { span: fault.span.map(|at| at.start + by..at.end + by), ..fault }
}

/// The remedy for networks in place of hosts.
const NETWORK_REMEDY: &str =
    "`hosts` names what clients ask for; which clients a route answers is `client = \"10.0.0.0/8\"`";

fn parse_exact(text: &str) -> Result<String, InvalidValue> {
    let name = text.strip_suffix('.').unwrap_or(text);
    if name.parse::<std::net::Ipv6Addr>().is_ok() {
        return Err(InvalidValue::new("an IPv6 address needs brackets", format!("write \"[{name}]\"")));
    }
    if name.parse::<ipnet::IpNet>().is_ok() {
        return Err(InvalidValue::new("a network is not a host", NETWORK_REMEDY));
    }
    if let Some(at) = name.find(':') {
        let remedy = "a site answers on every `listen` address; write the name alone";
        return Err(InvalidValue::new("a host must not have a port here", remedy).within(at..text.len()));
    }
    if let Some((at, wrong)) = name.char_indices().find(|&(_, c)| !is_name_char(c)) {
        let remedy = match wrong {
            '*' => "a wildcard must be the first label: \"*.example.com\"",
            '/' => "write the path as `path` of a route",
            c if !c.is_ascii() => "write the name as in DNS: \"xn--...\" (Punycode)",
            _ => "a name consists of letters, digits, `-`, `_` and dots",
        };
        return Err(InvalidValue::new(format!("a host must not contain {wrong:?}"), remedy)
            .within(at..at + wrong.len_utf8()));
    }
    if name.len() > HOST_BYTES_MAX || name.split('.').any(|label| label.is_empty() || label.len() > 63) {
        let remedy = "a name has labels of 1 to 63 characters with dots between them, 253 characters in all";
        return Err(InvalidValue::new("this is not a host", remedy));
    }
    Ok(name.to_ascii_lowercase())
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

impl fmt::Display for HostPattern {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => out.write_str(name),
            Self::Subdomains(name) => write!(out, "*{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_are_parsed_and_normalized() {
        for (text, printed) in [
            ("Example.COM", "example.com"),
            ("example.com.", "example.com"),
            ("*.Example.com", "*.example.com"),
            ("192.0.2.1", "192.0.2.1"),
            ("[2001:DB8:0::1]", "[2001:db8::1]"),
            ("a_b-c", "a_b-c"),
        ] {
            assert_eq!(HostPattern::parse(text).unwrap().to_string(), printed);
        }
        let long = "a".repeat(64);
        for wrong in [
            "", "*", "a.*.com", "*.*.com", "*a.com", "a b", "a:80", "http://a", "a/b", "é.fr", "..", "[::g]",
            "*.", &long,
        ] {
            assert!(HostPattern::parse(wrong).is_err(), "{wrong}");
        }
    }
}
