//! Subjects of certificates: names and IP addresses, and the issuer for each.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use failure::Failure;
use shapes::host::PRIVATE_SUFFIXES;

/// Reserved suffixes for which no certificates are issued.
const UNUSABLE_SUFFIXES: [&str; 3] = ["invalid", "example", "onion"];

/// Subject of a certificate: a name or an address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// A DNS name in lower case; `*.example.com` for every name one label below `example.com`.
    Dns(String),
    /// An IP address (RFC 8738).
    Ip(IpAddr),
}

/// Issuer of certificates for a subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Issuer {
    /// A public authority, by ACME.
    Public,
    /// The local authority of this machine.
    Local,
    /// No issuer.
    Unavailable,
}

impl Subject {
    /// Parses `example.com`, `*.example.com`, `192.0.2.1`, `2001:db8::1` or `[2001:db8::1]`.
    ///
    /// # Errors
    /// Description of the invalid part of the text.
    pub fn parse(text: &str) -> Result<Subject, Failure> {
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
        if let Ok(address) = bare.parse::<IpAddr>() {
            return Ok(Subject::Ip(address));
        }
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        let labels = name.strip_prefix("*.").unwrap_or(&name);
        let is_label = |label: &str| {
            (1..=63).contains(&label.len())
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
        };
        if name.len() <= 253 && labels.split('.').all(is_label) {
            Ok(Subject::Dns(name))
        } else {
            Err(Failure::new(format!("{text:?} is not a host name or IP address")))
        }
    }

    /// Returns the issuer for the subject.
    pub fn issuer(&self) -> Issuer {
        match self {
            Subject::Ip(IpAddr::V4(address)) => issuer_v4(*address),
            Subject::Ip(IpAddr::V6(address)) => issuer_v6(*address),
            Subject::Dns(name) => {
                let is_in = |suffix: &&str| {
                    name.strip_suffix(*suffix).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
                };
                let name = name.strip_prefix("*.").unwrap_or(name);
                let last = name.rsplit('.').next().unwrap_or_default();
                if PRIVATE_SUFFIXES.iter().any(is_in) {
                    Issuer::Local
                } else if UNUSABLE_SUFFIXES.iter().any(is_in)
                    || !name.contains('.')
                    || last.bytes().all(|byte| byte.is_ascii_digit())
                {
                    Issuer::Unavailable
                } else {
                    Issuer::Public
                }
            }
        }
    }

    /// Whether the subject matches every name one label below another one.
    pub fn is_wildcard(&self) -> bool {
        matches!(self, Subject::Dns(name) if name.starts_with("*."))
    }

    /// Returns the name without `*.`, as DNS-01 challenges use it.
    pub(crate) fn base(&self) -> String {
        let text = self.to_string();
        text.strip_prefix("*.").map(str::to_owned).unwrap_or(text)
    }

    /// Returns the server name in the TLS handshake of a TLS-ALPN-01 challenge; for an address, its reverse
    /// name (RFC 8738 section 6).
    pub(crate) fn server_name(&self) -> String {
        match self {
            Subject::Dns(name) => name.clone(),
            Subject::Ip(IpAddr::V4(address)) => {
                let [a, b, c, d] = address.octets();
                format!("{d}.{c}.{b}.{a}.in-addr.arpa")
            }
            Subject::Ip(IpAddr::V6(address)) => {
                let nibbles = address.octets().into_iter().rev();
                let text: String = nibbles
                    .flat_map(|byte| [byte & 15, byte >> 4])
                    .map(|nibble| format!("{nibble:x}."))
                    .collect();
                format!("{text}ip6.arpa")
            }
        }
    }

    /// Returns the subject as a file name; `+`, which no name contains, replaces `*`, which shells expand.
    pub(crate) fn file_stem(&self) -> String {
        self.to_string().replace('*', "+")
    }

    /// Returns the subject of a file name.
    pub(crate) fn of_file_stem(stem: &str) -> Option<Subject> {
        Subject::parse(&stem.replace('+', "*")).ok()
    }
}

fn issuer_v4(address: Ipv4Addr) -> Issuer {
    let shared = address.octets()[0] == 100 && address.octets()[1] & 0xc0 == 64;
    if address.is_loopback() || address.is_private() || address.is_link_local() || shared {
        return Issuer::Local;
    }
    let nobodys = address.is_unspecified()
        || address.is_broadcast()
        || address.is_documentation()
        || address.octets()[0] >= 224
        || address.octets()[0] == 0;
    if nobodys { Issuer::Unavailable } else { Issuer::Public }
}

fn issuer_v6(address: Ipv6Addr) -> Issuer {
    if address.is_loopback() || address.is_unique_local() || address.is_unicast_link_local() {
        return Issuer::Local;
    }
    // 2000::/3 is assigned; 2001:db8::/32 is reserved for documentation.
    let [first, second, ..] = address.segments();
    if first & 0xe000 == 0x2000 && (first, second) != (0x2001, 0xdb8) {
        Issuer::Public
    } else {
        Issuer::Unavailable
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Dns(name) => out.write_str(name),
            Subject::Ip(address) => write!(out, "{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issuer_depends_on_the_subject() {
        let of = |issuer, names: &[&str]| {
            for name in names {
                assert_eq!(Subject::parse(name).unwrap().issuer(), issuer, "{name}");
            }
        };
        of(
            Issuer::Public,
            &["example.com", "*.Example.com.", "93.184.216.34", "2606:2800::1", "xn--mnchen-3ya.de"],
        );
        of(
            Issuer::Local,
            &["localhost", "a.localhost", "*.test", "nas.local", "x.home.arpa", "127.0.0.1", "10.1.2.3"],
        );
        of(Issuer::Local, &["::1", "[fd00::1]", "fe80::1", "169.254.1.1", "100.64.0.1"]);
        of(
            Issuer::Unavailable,
            &["nas", "a.onion", "www.example", "0.0.0.0", "192.0.2.1", "2001:db8::1", "::", "1.2.3"],
        );
        for wrong in ["", "a..b", "a b", "*.*.com", "a*.com", "é.fr", "a/b", "../x", &"a".repeat(64)] {
            assert!(Subject::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn subjects_map_to_file_names_and_challenge_names() {
        for text in ["example.com", "*.example.com", "192.0.2.1", "2001:db8::1"] {
            let subject = Subject::parse(text).unwrap();
            assert_eq!(subject.to_string(), text);
            assert_eq!(Subject::of_file_stem(&subject.file_stem()), Some(subject));
        }
        assert_eq!(Subject::parse("*.example.com").unwrap().base(), "example.com");
        assert_eq!(Subject::parse("192.0.2.1").unwrap().server_name(), "1.2.0.192.in-addr.arpa");
        let v6 = Subject::parse("2001:db8::1").unwrap().server_name();
        assert_eq!(v6, "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa");
    }
}
