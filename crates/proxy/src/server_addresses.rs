//! The addresses of a server: an IP address, or a host name that is resolved periodically.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use net::Core;
use shapes::network::is_local;
use times::{AtomicMoment, Millis, Moment};

/// A server's addresses, for all cores.
#[derive(Debug)]
pub(crate) struct ServerAddresses {
    host: String,
    port: u16,
    known: Mutex<Arc<[SocketAddr]>>,
    /// Time of the next resolution; [`Moment::NEVER`] for an IP address.
    resolve_at: AtomicMoment,
    resolving: AtomicBool,
    /// Whether the addresses of this machine and its links are used.
    allows_local: bool,
    /// Number of lookups started.
    #[cfg(test)]
    lookup_count: std::sync::atomic::AtomicU64,
}

/// Interval at which a request that waits for the first addresses of a name checks for them.
const POLL_INTERVAL: Millis = Millis(5);
/// Pause after a failed resolution.
const RETRY_PAUSE: Millis = Millis(1_000);

impl ServerAddresses {
    /// Creates the addresses. Without `allows_local`, those of [`is_local`] are left out. A host without a name has none, ever.
    pub(crate) fn new(host: &str, port: u16, allows_local: bool) -> ServerAddresses {
        let address: Option<IpAddr> = host.parse().ok();
        let is_usable = |ip: &IpAddr| allows_local || !is_local(*ip);
        let known: Vec<SocketAddr> =
            address.filter(is_usable).map(|ip| SocketAddr::new(ip, port)).into_iter().collect();
        ServerAddresses {
            host: host.to_owned(),
            port,
            resolve_at: AtomicMoment::new(if known.is_empty() && !host.is_empty() {
                Moment::ZERO
            } else {
                Moment::NEVER
            }),
            known: Mutex::new(known.into()),
            resolving: AtomicBool::new(false),
            allows_local,
            #[cfg(test)]
            lookup_count: std::sync::atomic::AtomicU64::new(0),
        }
    }

    /// Returns the addresses known at present; empty if the name was never resolved.
    pub(crate) fn known_addresses(&self) -> Arc<[SocketAddr]> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether a connection to `address` leads to this server.
    pub(crate) fn has(&self, address: SocketAddr) -> bool {
        self.resolve_at.load(Ordering::Relaxed).is_never() || self.known_addresses().contains(&address)
    }

    /// Returns the addresses. Known addresses stay in use while the name is resolved again in the background;
    /// only a name without any known addresses makes the caller wait.
    pub(crate) async fn addresses(self: &Arc<Self>, core: &Core, again_after: Millis) -> Arc<[SocketAddr]> {
        self.refresh_if_due(core, again_after);
        let mut known = self.known_addresses();
        while known.is_empty() && self.is_due(core) {
            // All callers share one lookup, because a lookup blocks one of a few threads.
            core.sleep(POLL_INTERVAL).await;
            self.refresh_if_due(core, again_after);
            known = self.known_addresses();
        }
        known
    }

    /// Starts another resolution in the background if it is due. Also called by a timer, because requests on
    /// kept connections do not ask for the addresses.
    pub(crate) fn refresh_if_due(self: &Arc<Self>, core: &Core, again_after: Millis) {
        if self.is_due(core) && !self.resolving.swap(true, Ordering::Relaxed) {
            let this = self.clone();
            let theirs = core.clone();
            core.spawn(async move { this.resolve(theirs, again_after).await });
        }
    }

    fn is_due(&self, core: &Core) -> bool {
        core.now() >= self.resolve_at.load(Ordering::Relaxed)
    }

    /// Calls the system's resolver on another thread, because it blocks.
    async fn resolve(self: Arc<Self>, core: Core, again_after: Millis) {
        let host = self.host.clone();
        let port = self.port;
        #[cfg(test)]
        self.lookup_count.fetch_add(1, Ordering::Relaxed);
        let found = core.offload(move || (host.as_str(), port).to_socket_addrs().map(Vec::from_iter)).await;
        let again_after = match found {
            Ok(mut addresses) if !addresses.is_empty() => {
                addresses.dedup();
                // A name that now has other addresses keeps none of the old ones.
                addresses.retain(|address| self.allows_local || !is_local(address.ip()));
                *self.known.lock().unwrap_or_else(PoisonError::into_inner) = addresses.into();
                again_after
            }
            // The old addresses stay in use after a failed lookup.
            _ => RETRY_PAUSE.min(again_after),
        };
        self.resolve_at.store((core.now() + again_after).min(Moment::LAST), Ordering::Relaxed);
        self.resolving.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
impl ServerAddresses {
    /// Sets the addresses, as if a lookup had returned them.
    pub(crate) fn set_addresses(&self, addresses: Vec<SocketAddr>) {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = addresses.into();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn concurrent_lookups_of_a_name_query_the_resolver_once() {
        let core = Core::for_client(1).expect("an engine");
        let names = Arc::new(ServerAddresses::new("localhost", 80, true));
        let (release, held) = mpsc::channel::<()>();
        let theirs = core.clone();
        let count = core
            .run_until_end(async move {
                // The only thread is kept busy, so that all tasks wait before the first lookup completes.
                let busy = theirs.clone();
                let core = theirs;
                core.spawn(async move { _ = busy.offload(move || held.recv()).await });
                let answered = Rc::new(Cell::new(0));
                for _ in 0..100 {
                    let names = names.clone();
                    let theirs = core.clone();
                    let answered = answered.clone();
                    core.spawn(async move {
                        assert!(!names.addresses(&theirs, Millis(60_000)).await.is_empty());
                        answered.set(answered.get() + 1);
                    });
                }
                core.sleep(Millis(20)).await;
                release.send(()).expect("the thread waits");
                while answered.get() < 100 {
                    core.sleep(Millis(5)).await;
                }
                names.lookup_count.load(Ordering::Relaxed)
            })
            .expect("the engine turns");
        assert_eq!(count, 1);
    }

    #[test]
    fn local_addresses_are_left_out_if_they_are_not_allowed() {
        let of = |host: &str| ServerAddresses::new(host, 80, false).known_addresses().len();
        for local in [
            "127.0.0.1",
            "127.9.9.9",
            "::1",
            "::ffff:127.0.0.1",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "2002:7f00:1::1",
            "169.254.169.254",
            "fe80::1",
            "0.0.0.0",
            "::",
        ] {
            assert_eq!(of(local), 0, "{local}");
            assert_eq!(ServerAddresses::new(local, 80, true).known_addresses().len(), 1);
        }
        assert_eq!((of("10.0.0.1"), of("2001:db8::1")), (1, 1));
        let core = Core::for_client(1).expect("an engine");
        let names = Arc::new(ServerAddresses::new("localhost", 80, false));
        let theirs = core.clone();
        let found = core.run_until_end(async move { names.addresses(&theirs, Millis(60_000)).await });
        assert!(found.expect("the engine turns").is_empty());
    }
}
