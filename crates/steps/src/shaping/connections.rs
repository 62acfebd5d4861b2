//! Limit of connections per client. Connections are counted when they are accepted, before any byte is read.

use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};

use admission::{ConcurrencyLimiter, LimitReached};
use config::Config;
use engine::clients::proxies::peer_set;
use logging::Level;
use logging::notice::ErrorLog;
use net::{ConnectionGate, GatePermit, MemoryBudget, Peer, PeerSet, TooManyConnections};
use telemetry::gauges::LimitMetrics;

/// Maximum clients counted. Each takes 34 bytes, less than its connections.
const CLIENTS_MAX: usize = 200_000;
/// Low bits of an IPv6 address that are ignored: all addresses of a /64 network count as one client.
const HOST_BITS: u32 = 64;

/// Connection counts of all clients.
pub struct ClientConnections {
    limiter: Arc<ConcurrencyLimiter>,
    /// Trusted proxies, which are exempt because they connect on behalf of many clients.
    trusted: RwLock<PeerSet>,
    notices: ErrorLog,
}

impl ClientConnections {
    /// Creates the limit of a configuration.
    pub fn new(config: &Config, memory: &MemoryBudget, notices: &ErrorLog) -> ClientConnections {
        let memory = memory.clone();
        let account = Arc::new(move |before, after| memory.change(before, after));
        let limiter = ConcurrencyLimiter::new(0, CLIENTS_MAX, account);
        let gate = ClientConnections {
            limiter: Arc::new(limiter),
            trusted: RwLock::default(),
            notices: notices.clone(),
        };
        gate.apply(config);
        gate
    }

    /// Applies another configuration to later connections.
    pub fn apply(&self, config: &Config) {
        let trusted = peer_set(&config.trusted_proxies.from);
        *self.trusted.write().unwrap_or_else(PoisonError::into_inner) = trusted;
        self.limiter.set_max(config.limits.connections_per_client_max);
    }

    /// Returns the metrics of the limit. `None` without a limit.
    pub fn metrics(&self) -> Option<LimitMetrics> {
        (self.limiter.max() > 0).then(|| LimitMetrics {
            site: String::new(),
            route: String::new(),
            limit: "connections_per_client".to_owned(),
            is_dry: false,
            refused: self.limiter.refused.load(Ordering::Relaxed),
            delayed: 0,
            evicted: self.limiter.uncounted.load(Ordering::Relaxed),
            bytes: self.limiter.bytes() as u64,
        })
    }

    fn key(&self, client: IpAddr) -> u64 {
        let mut hasher = self.limiter.hasher();
        match client {
            IpAddr::V4(address) => hasher.add(&address.octets()),
            IpAddr::V6(address) => hasher.add(&(address.to_bits() >> HOST_BITS).to_be_bytes()),
        }
        hasher.key()
    }
}

impl ConnectionGate for ClientConnections {
    fn acquire(&self, client: Peer) -> Result<Option<GatePermit>, TooManyConnections> {
        let max = self.limiter.max();
        let Peer::Tcp(address) = client else { return Ok(None) };
        if max == 0 || self.trusted.read().unwrap_or_else(PoisonError::into_inner).contains(client) {
            return Ok(None);
        }
        let address = address.ip().to_canonical();
        match self.limiter.acquire(self.key(address), false) {
            Ok(place) => Ok(place.map(|place| Box::new(place) as GatePermit)),
            Err(LimitReached) => {
                let kind = format!("`limits.connections_per_client` of {max}: connections are closed");
                self.notices.throttled(Level::Warn, kind.clone(), || format!("{address}: {kind}"));
                Err(TooManyConnections)
            }
        }
    }
}
