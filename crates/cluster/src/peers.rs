//! Addresses of the servers of a set that ask each other for responses, and the identity that proves that a server is of the
//! set.

use std::net::SocketAddr;
use std::time::Duration;

use aws_lc_rs::hmac;
use aws_lc_rs::signature::Ed25519KeyPair;
use failure::Failure;
use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;

/// Name in the certificate of the set.
pub const PEER_NAME: &str = "komainu-cluster";
/// Maximum number of other servers that are asked.
pub(crate) const PEERS_MAX: usize = 100;

/// Another server of the set, or this one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SetPeer {
    /// Name in the set.
    pub name: String,
    /// Address that it has given.
    pub address: SocketAddr,
}

/// How servers of the set speak to each other.
#[derive(Clone, PartialEq, Eq)]
pub struct PeerOptions {
    /// Address of this server.
    pub address: SocketAddr,
    /// Maximum time for the head of a response.
    pub timeout: Duration,
    /// A certificate and its key (PEM), which servers and clients present. Each server has another certificate of the same
    /// key and name, so that it verifies those of the others by its own.
    pub identity_pem: (Vec<u8>, Vec<u8>),
}

impl std::fmt::Debug for PeerOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PeerOptions").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Makes the certificate of the set from its secret.
///
/// # Errors
/// The certificate cannot be made.
pub(crate) fn identity(secret: &[u8]) -> Result<(Vec<u8>, Vec<u8>), Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::new(format!("the certificate of the set: {error}"));
    let seed = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), b"komainu cluster peers 1");
    let key = Ed25519KeyPair::from_seed_unchecked(seed.as_ref()).map_err(|error| failed(&error))?;
    let key = key.to_pkcs8().map_err(|error| failed(&error))?;
    let key = PrivatePkcs8KeyDer::from(key.as_ref().to_vec());
    let key = KeyPair::try_from(&key).map_err(|error| failed(&error))?;
    let mut params = CertificateParams::new([PEER_NAME.to_owned()]).map_err(|error| failed(&error))?;
    params.distinguished_name.push(DnType::CommonName, PEER_NAME);
    let certificate = params.self_signed(&key).map_err(|error| failed(&error))?;
    Ok((certificate.pem().into_bytes(), key.serialize_pem().into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_with_a_secret_have_one_key() {
        let key = |secret: &[u8]| identity(secret).unwrap().1;
        assert_eq!(key(&[1; 32]), key(&[1; 32]));
        assert_ne!(key(&[1; 32]), key(&[2; 32]));
    }
}
