//! The addresses of a server: given as such, or a name that is resolved again and again.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use net::Core;

/// A server's addresses, for all cores.
#[derive(Debug)]
pub(crate) struct Names {
    host: String,
    port: u16,
    known: Mutex<Arc<[SocketAddr]>>,
    /// When they are to be resolved again; `u64::MAX` for an address given as such.
    until_ms: AtomicU64,
    resolving: AtomicBool,
}

/// How long a name that could not be resolved is not asked for again.
const FAILED_MS: u64 = 1_000;

impl Names {
    pub(crate) fn new(host: &str, port: u16) -> Names {
        let address: Option<IpAddr> = host.parse().ok();
        let known: Vec<SocketAddr> = address.iter().map(|&ip| SocketAddr::new(ip, port)).collect();
        Names {
            host: host.to_owned(),
            port,
            until_ms: AtomicU64::new(if known.is_empty() { 0 } else { u64::MAX }),
            known: Mutex::new(known.into()),
            resolving: AtomicBool::new(false),
        }
    }

    /// The addresses known now; none where the name was never resolved.
    pub(crate) fn known(&self) -> Arc<[SocketAddr]> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether a connection to `address` still goes to this server.
    pub(crate) fn has(&self, address: SocketAddr) -> bool {
        self.until_ms.load(Ordering::Relaxed) == u64::MAX || self.known().contains(&address)
    }

    /// The addresses. Known ones are used while they are resolved anew in the background; only a name that has none
    /// yet is waited for.
    pub(crate) async fn addresses(self: &Arc<Self>, core: &Core, again_ms: u64) -> Arc<[SocketAddr]> {
        let known = self.known();
        if core.now_ms() < self.until_ms.load(Ordering::Relaxed) {
            return known;
        }
        if known.is_empty() {
            // Several may ask at once, at the very beginning: each waits for an answer of its own.
            self.clone().resolve(core.clone(), again_ms).await;
            return self.known();
        }
        if !self.resolving.swap(true, Ordering::Relaxed) {
            let this = self.clone();
            let theirs = core.clone();
            core.spawn(async move { this.resolve(theirs, again_ms).await });
        }
        known
    }

    /// Asks the system's resolver, which blocks, on another thread.
    async fn resolve(self: Arc<Self>, core: Core, again_ms: u64) {
        let (host, port) = (self.host.clone(), self.port);
        let found = core.offload(move || (host.as_str(), port).to_socket_addrs().map(Vec::from_iter)).await;
        let again_ms = match found {
            Ok(mut addresses) if !addresses.is_empty() => {
                addresses.dedup();
                *self.known.lock().unwrap_or_else(PoisonError::into_inner) = addresses.into();
                again_ms
            }
            // The old ones are better than none.
            _ => FAILED_MS.min(again_ms),
        };
        self.until_ms.store(core.now_ms().saturating_add(again_ms).min(u64::MAX - 1), Ordering::Relaxed);
        self.resolving.store(false, Ordering::Relaxed);
    }
}
