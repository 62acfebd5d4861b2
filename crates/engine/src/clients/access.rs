//! Which clients are served.

use std::net::IpAddr;

use config::TrustedSource;
use net::{Peer, Request, Sources};

use crate::clients::proxies::sources;

/// The address of a client; none over a Unix socket.
pub fn address(client: Peer) -> Option<IpAddr> {
    match client {
        Peer::Tcp(address) => Some(address.ip()),
        Peer::Unix => None,
    }
}

/// The code of the country that a request comes from, where that is known.
pub fn country(request: &Request<'_>) -> Option<[u8; 2]> {
    request.own_values()?.country(address(request.client().address)?)
}

/// Which clients are served, by address.
#[derive(Debug, Default)]
pub struct ClientAccess {
    /// A client must be in each of them.
    allow: Vec<Sources>,
    /// And in none of these.
    deny: Vec<Sources>,
}

impl ClientAccess {
    /// The clients that each of `allow` has, where it is there, and none of `deny`.
    pub fn new<'c>(
        allow: impl IntoIterator<Item = &'c Option<Vec<TrustedSource>>>,
        deny: impl IntoIterator<Item = &'c Vec<TrustedSource>>,
    ) -> ClientAccess {
        let allow = allow.into_iter().flatten();
        let deny = deny.into_iter().filter(|denied| !denied.is_empty());
        ClientAccess {
            allow: allow.map(|allowed| sources(allowed)).collect(),
            deny: deny.map(|denied| sources(denied)).collect(),
        }
    }

    /// The clients that a route answers: its site has to answer them too.
    pub fn of_route(site: &config::Site, route: &config::Route) -> ClientAccess {
        ClientAccess::new([&site.allow, &route.allow], [&site.deny, &route.deny])
    }

    /// Whether it admits every client.
    pub fn admits_all(&self) -> bool {
        self.allow.is_empty() && self.deny.is_empty()
    }

    /// Whether a client is one of them.
    pub fn admits(&self, client: Peer) -> bool {
        self.allow.iter().all(|allowed| allowed.contains(client))
            && !self.deny.iter().any(|denied| denied.contains(client))
    }
}
