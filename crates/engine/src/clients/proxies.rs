//! Determines the client of a request: the peer, or the address that a trusted proxy forwards.

use http::{Dialect, HeadRef, forwarded};
use net::{Exchange, Fault, Peer, PeerSet};

/// Proxies whose forwarding fields are trusted.
pub struct TrustedProxies {
    /// Addresses of the proxies.
    pub(crate) peers: PeerSet,
    /// Header fields that the proxies send: `Forwarded` or `X-Forwarded-*`.
    pub(crate) dialect: Dialect,
    /// Whether addresses of proxies in the fields are passed over.
    pub(crate) is_recursive: bool,
}

impl TrustedProxies {
    /// Sets the client's address and scheme from the forwarding fields, if the peer is trusted.
    ///
    /// # Errors
    /// 400 if the fields are ambiguous.
    pub fn set_client(&self, exchange: &mut Exchange<'_>) -> Result<(), Fault> {
        let request = exchange.request();
        let peer = request.peer();
        if !self.peers.contains(peer) {
            return Ok(());
        }
        let HeadRef { head, bytes } = request.head();
        let trusts = |ip| self.is_recursive && self.peers.contains(Peer::Tcp((ip, 0).into()));
        let claim = forwarded::claimed_client(head, bytes, self.dialect, trusts)?;
        let secure = claim.is_secure.unwrap_or(request.client().is_secure);
        exchange.set_client(claim.address.map_or(peer, Peer::Tcp), secure, self.dialect);
        Ok(())
    }
}

/// The proxies that may send forwarding fields; `None` if there are none.
pub fn trusted_proxies(trusted: &config::TrustedProxies) -> Option<TrustedProxies> {
    (!trusted.from.is_empty()).then(|| TrustedProxies {
        peers: peer_set(&trusted.from),
        dialect: trusted.fields,
        is_recursive: trusted.recursive,
    })
}

/// Converts the peers that may send the PROXY protocol or forwarding fields.
pub fn peer_set(from: &[shapes::network::TrustedSource]) -> PeerSet {
    let mut sources = PeerSet::default();
    for source in from {
        match source {
            shapes::network::TrustedSource::Unix => sources.includes_unix = true,
            shapes::network::TrustedSource::Network(network) => sources.networks.push(*network),
        }
    }
    sources
}
