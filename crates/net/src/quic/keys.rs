//! Secrets of an endpoint, which all cores share.

use std::sync::Arc;

use aws_lc_rs::hkdf;
use aws_lc_rs::hmac;

/// Keys for stateless resets, address tokens and connection identifiers.
#[derive(Clone)]
pub(super) struct EndpointKeys {
    pub(super) reset: Arc<hmac::Key>,
    pub(super) tokens: Arc<hkdf::Prk>,
    pub(super) identifiers: Arc<hmac::Key>,
}

impl EndpointKeys {
    /// Derives the keys from a secret ([`crate::TlsAcceptor`] has one for all cores).
    pub(super) fn new(secret: &[u8]) -> EndpointKeys {
        let key = |what: &[u8]| {
            let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), what);
            hmac::Key::new(hmac::HMAC_SHA256, tag.as_ref())
        };
        let tokens = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), b"komainu quic tokens");
        EndpointKeys {
            reset: Arc::new(key(b"komainu quic stateless reset")),
            tokens: Arc::new(hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(tokens.as_ref())),
            identifiers: Arc::new(key(b"komainu quic identifiers")),
        }
    }
}
