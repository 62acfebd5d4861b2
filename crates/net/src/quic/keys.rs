//! Secrets of an endpoint, which all cores share.

use std::sync::Arc;

use aws_lc_rs::hkdf;
use aws_lc_rs::hmac;

use crate::tls::token_key;

/// Keys for stateless resets, address tokens and connection identifiers.
#[derive(Clone)]
pub(super) struct EndpointKeys {
    pub(super) reset: Arc<hmac::Key>,
    pub(super) tokens: Arc<hkdf::Prk>,
    pub(super) identifiers: Arc<hmac::Key>,
}

impl EndpointKeys {
    /// Derives the keys from a secret ([`crate::TlsAcceptor`] has one for all cores). Stateless resets also depend on the
    /// machine: servers with the same secret and different addresses would otherwise tell the resets of each other's
    /// connections to anyone who saw an identifier (RFC 9000 section 21.11).
    pub(super) fn new(secret: &[u8]) -> EndpointKeys {
        let key = |what: &[u8], machine: &[u8]| {
            let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, secret));
            context.update(what);
            context.update(machine);
            hmac::Key::new(hmac::HMAC_SHA256, context.sign().as_ref())
        };
        let machine = rustix::system::uname();
        EndpointKeys {
            reset: Arc::new(key(b"komainu quic stateless reset", machine.nodename().to_bytes())),
            tokens: token_key(secret),
            identifiers: Arc::new(key(b"komainu quic identifiers", b"")),
        }
    }
}
