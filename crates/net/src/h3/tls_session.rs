//! Keys of TLS for QUIC (RFC 9001), for both ends.

use std::sync::{Arc, LazyLock};

use quinn_proto::crypto::rustls::QuicServerConfig;
use quinn_proto::crypto::{KeyPair, Keys, PacketKey};
use rustls::quic::{KeyChange, Secrets};

use crate::tls::TlsAcceptor;

/// The version of RFC 9000.
pub(crate) const QUIC_VERSION: u32 = 1;

/// Keys of Initial packets and Retry, which depend on nothing but the version; `None` if the TLS library lacks them.
pub(crate) fn initial_keys() -> Option<Arc<QuicServerConfig>> {
    static KEYS: LazyLock<Option<Arc<QuicServerConfig>>> =
        LazyLock::new(|| Some(Arc::new(QuicServerConfig::try_from(TlsAcceptor::quic_base()?).ok()?)));
    KEYS.clone()
}

/// Converts new keys; `next` gets the secrets of those that follow by key updates.
pub(crate) fn changed_keys(change: KeyChange, next: &mut Option<Secrets>) -> Keys {
    let keys = match change {
        KeyChange::Handshake { keys } => keys,
        KeyChange::OneRtt { keys, next: secrets } => {
            *next = Some(secrets);
            keys
        }
    };
    Keys {
        header: KeyPair { local: Box::new(keys.local.header), remote: Box::new(keys.remote.header) },
        packet: KeyPair { local: Box::new(keys.local.packet), remote: Box::new(keys.remote.packet) },
    }
}

/// Returns the keys after the next key update (RFC 9001 section 6).
pub(crate) fn next_keys(next: &mut Option<Secrets>) -> Option<KeyPair<Box<dyn PacketKey>>> {
    let keys = next.as_mut()?.next_packet_keys();
    Some(KeyPair { local: Box::new(keys.local), remote: Box::new(keys.remote) })
}
