//! Who the client of a request is: the peer, or whom a trusted proxy tells of.

use http::{Dialect, forwarded};
use net::{Exchange, Fault, Peer, Sources};

/// Proxies whose word counts.
pub(crate) struct TrustedProxies {
    /// Where they come from.
    pub(crate) sources: Sources,
    /// The fields they speak in.
    pub(crate) dialect: Dialect,
}

impl TrustedProxies {
    /// Takes note of what the peer tells of the client, where its word counts.
    ///
    /// # Errors
    /// 400 where it speaks so that it can be understood in two ways.
    pub(crate) fn introduce(&self, exchange: &mut Exchange<'_>) -> Result<(), Fault> {
        let request = exchange.request();
        let peer = request.peer();
        if !self.sources.contains(peer) {
            return Ok(());
        }
        let (head, bytes) = request.head();
        let trusts = |ip| self.sources.contains(Peer::Tcp((ip, 0).into()));
        let claim = forwarded::claim(head, bytes, self.dialect, trusts)?;
        let secure = claim.secure.unwrap_or(request.client().secure);
        exchange.set_client(claim.address.map_or(peer, Peer::Tcp), secure, self.dialect);
        Ok(())
    }
}
