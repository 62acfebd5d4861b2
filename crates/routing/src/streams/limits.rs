//! Connection limits of streams and their clients, counted over all cores.

use std::net::IpAddr;
use std::sync::Arc;

use admission::{ConcurrencyLimiter, ConcurrencyPermit, LimitReached};
use config::Config;
use net::{MemoryBudget, Peer};
use reload::KeptState;

/// Maximum clients counted for each stream.
const CLIENTS_MAX: usize = 200_000;
/// Low bits of an IPv6 address that are ignored: all addresses of a /64 network count as one client.
const HOST_BITS: u32 = 64;

/// Connection limits of a stream.
#[derive(Clone, Debug)]
pub struct StreamLimits {
    all: Arc<ConcurrencyLimiter>,
    per_client: Arc<ConcurrencyLimiter>,
}

/// Permits of a connection; dropping them releases it.
#[derive(Debug, Default)]
pub(crate) struct StreamPermits {
    _permits: [Option<ConcurrencyPermit>; 2],
}

impl StreamLimits {
    /// Returns the limits of a configuration's streams, in their order. A stream with the same label keeps
    /// its counts.
    pub fn of(config: &Config, kept: &mut KeptState, memory: &MemoryBudget) -> Vec<StreamLimits> {
        let limits = |stream: &config::Stream| {
            let limits = kept.share(stream.label(), || StreamLimits::new(memory));
            limits.all.set_max(stream.connections_max.unwrap_or(0));
            limits.per_client.set_max(stream.connections_per_client_max);
            limits
        };
        config.streams.iter().map(limits).collect()
    }

    fn new(memory: &MemoryBudget) -> StreamLimits {
        let limiter = |keys_max| {
            let memory = memory.clone();
            let account = Arc::new(move |before, after| memory.change(before, after));
            Arc::new(ConcurrencyLimiter::new(0, keys_max, account))
        };
        StreamLimits { all: limiter(1), per_client: limiter(CLIENTS_MAX) }
    }

    /// Counts a connection of a client until the permits are dropped.
    ///
    /// # Errors
    /// The stream or the client has reached its limit.
    pub(crate) fn acquire(&self, client: Peer) -> Result<StreamPermits, LimitReached> {
        let all = match self.all.max() {
            0 => None,
            _ => self.all.acquire(0, false)?,
        };
        let own = match (self.per_client.max(), client) {
            (0, _) | (_, Peer::Unix) => None,
            (_, Peer::Tcp(address)) => self.per_client.acquire(self.key(address.ip()), false)?,
        };
        Ok(StreamPermits { _permits: [all, own] })
    }

    fn key(&self, client: IpAddr) -> u64 {
        let mut hasher = self.per_client.hasher();
        match client.to_canonical() {
            IpAddr::V4(address) => hasher.add(&address.octets()),
            IpAddr::V6(address) => hasher.add(&(address.to_bits() >> HOST_BITS).to_be_bytes()),
        }
        hasher.key()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn connections_are_counted_across_reloads_and_released() {
        let config = |limits: &str| {
            let text = format!("[[stream]]\nlisten = \":1\"\nto = \"a:1\"\n{limits}");
            Config::parse(&text, "komainu.toml", Path::new("/")).unwrap().0
        };
        let memory = MemoryBudget::default();
        let mut kept = KeptState::default();
        let first =
            StreamLimits::of(&config("connections = 3\nconnections_per_client = 2\n"), &mut kept, &memory);
        let client = |text: &str| Peer::Tcp(format!("{text}:1").parse().unwrap());
        let one = client("10.0.0.1");
        let other = client("[2001:db8::1]");
        let third = client("[2001:db8::2]");
        let places = (first[0].acquire(one).unwrap(), first[0].acquire(one).unwrap());
        assert!(first[0].acquire(one).is_err());
        let last = first[0].acquire(other).unwrap();
        assert!(first[0].acquire(third).is_err(), "the stream has as many as it may");
        drop(last);
        let second =
            StreamLimits::of(&config("connections_per_client = 1\n"), &mut kept.successor(), &memory);
        assert!(second[0].acquire(one).is_err());
        let last = second[0].acquire(other).unwrap();
        assert!(second[0].acquire(third).is_err(), "a network of 64 bits is one client");
        drop((places, last));
        assert!(second[0].acquire(one).is_ok() && second[0].acquire(third).is_ok());
    }
}
