//! Access control by client address.

use std::net::IpAddr;

use net::{Peer, PeerSet, Request};
use shapes::network::TrustedSource;

use crate::clients::proxies::peer_set;

/// The IP address of a client; `None` over a Unix socket.
pub fn address(client: Peer) -> Option<IpAddr> {
    match client {
        Peer::Tcp(address) => Some(address.ip()),
        Peer::Unix => None,
    }
}

/// Country code of a request's client, if known.
pub fn country(request: &Request<'_>) -> Option<[u8; 2]> {
    request.custom_variables()?.country(address(request.client().address)?)
}

/// Access rules by client address.
#[derive(Debug, Default)]
pub struct ClientAccess {
    /// Allowed networks; the client must be in each of them.
    allow: Vec<PeerSet>,
    /// Denied networks; the client must be in none of them.
    deny: Vec<PeerSet>,
}

impl ClientAccess {
    /// Admits clients that are in every list of `allow`, and in no list of `deny`.
    pub fn new<'c>(
        allow: impl IntoIterator<Item = &'c [TrustedSource]>,
        deny: impl IntoIterator<Item = &'c [TrustedSource]>,
    ) -> ClientAccess {
        let deny = deny.into_iter().filter(|denied| !denied.is_empty());
        ClientAccess { allow: allow.into_iter().map(peer_set).collect(), deny: deny.map(peer_set).collect() }
    }

    /// Access rules of a route, with those of its site.
    pub fn of_route(settings: &config::RouteSettings<'_>) -> ClientAccess {
        ClientAccess::new(settings.allow.iter().copied(), settings.deny.iter().copied())
    }

    /// Whether all clients are admitted.
    pub fn admits_all(&self) -> bool {
        self.allow.is_empty() && self.deny.is_empty()
    }

    /// Whether a client is admitted.
    pub fn admits(&self, client: Peer) -> bool {
        self.allow.iter().all(|allowed| allowed.contains(client))
            && !self.deny.iter().any(|denied| denied.contains(client))
    }
}
