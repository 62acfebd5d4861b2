//! The addresses that the server listens on, and which of them a site has.

use crate::server::Config;
use crate::site::Site;
use net::{ConfiguredListener, Listen};
use std::hash::{DefaultHasher, Hash, Hasher};

impl Config {
    /// Returns all addresses of sites: those at the top of the file, then the additional ones of sites.
    pub fn listeners(&self) -> impl Iterator<Item = &ConfiguredListener> {
        self.listen.iter().chain(&self.site_listeners)
    }

    /// The addresses at which a site answers.
    pub fn site_listeners(&self, site: &Site) -> impl Iterator<Item = &ConfiguredListener> {
        let is_own = move |listener: &&ConfiguredListener| {
            site.listen.iter().any(|own| own.address == listener.address)
        };
        let top = if site.listen.is_empty() { self.listen.as_slice() } else { &[] };
        let own = self.listeners().filter(is_own);
        top.iter().chain(own)
    }

    /// The number of an address, which it keeps when the configuration is read again. That of an address at the top of the file is
    /// even, that of an address of sites odd: so a connection is known by it that is older than the configuration.
    pub fn listener_key(&self, address: &Listen) -> u64 {
        listener_key(address, self.site_listeners.iter().any(|listener| listener.address == *address))
    }
}

/// The number of an address: see [`Config::listener_key`]. `is_of_sites` says whether it is one of
/// [`Config::site_listeners`].
pub fn listener_key(address: &Listen, is_of_sites: bool) -> u64 {
    let mut hasher = DefaultHasher::new();
    address.hash(&mut hasher);
    hasher.finish() & !1 | u64::from(is_of_sites)
}
