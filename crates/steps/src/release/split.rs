//! Traffic splitting between the branches of a route.

use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::rc::Rc;

use admission::{ShareSampler, WeightedChoice, point};
use config::{Split, SplitBy};
use http::Fields;
use net::{Exchange, Peer, Request};

use super::conditions::RequestConditions;

/// Prefix length that identifies an IPv6 client: the other bits change over time.
const IPV6_PREFIX: u32 = 64;

/// Split of a route, on one core.
pub struct SplitRule {
    by: SplitBy,
    names: Vec<Rc<str>>,
    conditions: Vec<Option<RequestConditions>>,
    choice: WeightedChoice,
    draw: RefCell<ShareSampler>,
}

impl SplitRule {
    /// Creates the rule of a configured split.
    pub fn new(split: &Split) -> SplitRule {
        let branches = &split.branches;
        SplitRule {
            by: split.by.clone(),
            names: branches.iter().map(|branch| branch.name.as_str().into()).collect(),
            conditions: branches
                .iter()
                .map(|branch| branch.when.as_ref().map(RequestConditions::new))
                .collect(),
            choice: WeightedChoice::new(
                branches.iter().map(|branch| (branch.name.as_str(), branch.weight())),
            ),
            draw: RefCell::new(ShareSampler::new(RandomState::new().hash_one(0))),
        }
    }

    /// Returns the index of a request's branch. With sticky sessions, sets the cookie that keeps the client
    /// on it.
    pub(super) fn choose(&self, exchange: &mut Exchange<'_>) -> usize {
        let request = exchange.request();
        let is_met = |conditions: &Option<RequestConditions>| {
            conditions.as_ref().is_some_and(|conditions| conditions.matches(&request))
        };
        let branch = match self.conditions.iter().position(is_met) {
            Some(branch) => branch,
            None => {
                let (point, cookie) = self.point(&request);
                if let Some(cookie) = cookie {
                    let mut fields = Fields::new();
                    fields.try_push(b"Set-Cookie", cookie.as_bytes()).expect("a cookie's name is a token");
                    exchange.add_fields(&fields);
                }
                self.choice.choose(point)
            }
        };
        exchange.notes().branch = Some(self.names[branch].clone());
        branch
    }

    /// Returns the hash that determines the branch of a request, and the cookie to set if there is one.
    fn point(&self, request: &Request<'_>) -> (u64, Option<String>) {
        let of_client = || client_point(request.client().address);
        let keyed =
            |value: Option<&[u8]>| value.filter(|value| !value.is_empty()).map_or_else(of_client, point);
        let cookie = |name: &String| {
            let mut cookies = cache::vary::cookies(request.head());
            cookies.find(|(other, _)| *other == name.as_bytes()).map(|(_, value)| value)
        };
        match &self.by {
            SplitBy::Random => (self.draw.borrow_mut().next_number(), None),
            SplitBy::HashClient => (of_client(), None),
            SplitBy::HashHeader(name) => {
                let is_of = |other: &[u8]| other.eq_ignore_ascii_case(name.as_bytes());
                let mut fields = request.fields().filter(|(_, other, _)| is_of(other));
                (keyed(fields.next().map(|(.., value)| value)), None)
            }
            SplitBy::HashCookie(name) => (keyed(cookie(name)), None),
            SplitBy::Sticky(name) => {
                if let Some(number) = cookie(name).and_then(sticky_number) {
                    return (point(&number.to_be_bytes()), None);
                }
                let number = (self.draw.borrow_mut().next_number() >> 32) as u32;
                let secure = if request.client().is_secure { "; Secure" } else { "" };
                let cookie = format!("{name}={number:08x}; Path=/; HttpOnly; SameSite=Lax{secure}");
                (point(&number.to_be_bytes()), Some(cookie))
            }
        }
    }
}

/// Parses a sticky cookie: eight lower-case hexadecimal digits. A cookie with another value is replaced.
fn sticky_number(value: &[u8]) -> Option<u32> {
    let is_digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    let text = std::str::from_utf8(value)
        .ok()
        .filter(|text| text.len() == 8 && text.bytes().all(|byte| is_digit(&byte)))?;
    u32::from_str_radix(text, 16).ok()
}

fn client_point(client: Peer) -> u64 {
    match client {
        Peer::Unix => point(b"unix"),
        Peer::Tcp(address) => match address.ip().to_canonical() {
            IpAddr::V4(address) => point(&address.octets()),
            IpAddr::V6(address) => point(&(address.to_bits() >> (128 - IPV6_PREFIX)).to_be_bytes()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sticky_cookie_must_be_eight_lowercase_hex_digits() {
        assert_eq!(sticky_number(b"00ff00ff"), Some(0x00ff_00ff));
        for value in ["", "ff", "00FF00FF", "+0ff00ff", "00ff00ff0", "stable", "\u{ff11}\u{ff11}ab"] {
            assert_eq!(sticky_number(value.as_bytes()), None, "{value}");
        }
    }

    #[test]
    fn ipv6_network_counts_as_one_client() {
        let of = |text: &str| client_point(Peer::Tcp(text.parse().unwrap()));
        assert_eq!(of("[2001:db8::1]:1"), of("[2001:db8::ffff:2]:2"));
        assert_ne!(of("[2001:db8::1]:1"), of("[2001:db8:0:1::1]:1"));
        assert_eq!(of("[::ffff:192.0.2.1]:1"), of("192.0.2.1:9"));
    }
}
