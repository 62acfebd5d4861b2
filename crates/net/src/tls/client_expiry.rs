//! Limits session tickets to the validity of the client's certificate.
//!
//! A resumed session contains the certificate that was verified when the session began, and it is not
//! verified again. Each ticket therefore contains the time at which that certificate expires, and tickets
//! issued in a resumed session inherit it, so no chain of tickets exceeds it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ProducesTickets, ResolvesServerCert};
use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme, SupportedProtocolVersion,
};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::tickets::unix_s;

const EXPIRY_BYTES: usize = size_of::<u64>();

/// Creates the configuration of each connection to a site that requests client certificates.
pub(super) struct ClientTrust {
    pub(super) verifier: Arc<dyn ClientCertVerifier>,
    pub(super) versions: &'static [&'static SupportedProtocolVersion],
}

impl ClientTrust {
    /// Returns the site's configuration for one connection, with tickets limited to its client's certificate.
    pub(super) fn connection_config(
        &self,
        site: &ServerConfig,
        resolver: Arc<dyn ResolvesServerCert>,
    ) -> Option<ServerConfig> {
        let end = ClientCertExpiry::default();
        let builder = ServerConfig::builder_with_provider(site.crypto_provider().clone());
        // Accepted before, when the site was set up.
        let builder = builder.with_protocol_versions(self.versions).ok()?;
        let verifier = TimedVerifier { verifier: self.verifier.clone(), expiry: end.clone() };
        let mut config = builder.with_client_cert_verifier(Arc::new(verifier)).with_cert_resolver(resolver);
        config.alpn_protocols.clone_from(&site.alpn_protocols);
        config.ignore_client_order = site.ignore_client_order;
        config.session_storage = site.session_storage.clone();
        config.send_tls13_tickets = site.send_tls13_tickets;
        config.ticketer = Arc::new(TimedTickets { tickets: site.ticketer.clone(), expiry: end });
        Some(config)
    }
}

/// Time at which the first certificate of a connection's client expires, in seconds since 1970.
#[derive(Clone)]
struct ClientCertExpiry(Arc<AtomicU64>);

impl Default for ClientCertExpiry {
    /// The value for clients without certificates.
    fn default() -> ClientCertExpiry {
        ClientCertExpiry(Arc::new(AtomicU64::new(u64::MAX)))
    }
}

/// Verifies client certificates and stores the earliest expiry.
struct TimedVerifier {
    verifier: Arc<dyn ClientCertVerifier>,
    expiry: ClientCertExpiry,
}

/// Asks clients for a certificate, and admits any whose key they have.
pub(super) struct UnverifiedClients(pub(super) Arc<dyn ClientCertVerifier>);

/// Returns the expiry of a certificate; 0 if it cannot be parsed.
fn expiry_of(certificate: &CertificateDer<'_>) -> u64 {
    let parsed = X509Certificate::from_der(certificate);
    parsed.map_or(0, |(_, parsed)| u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or_default())
}

impl ClientCertVerifier for TimedVerifier {
    fn offer_client_auth(&self) -> bool {
        self.verifier.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.verifier.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.verifier.verify_client_cert(end_entity, intermediates, now)?;
        let ends = std::iter::once(end_entity).chain(intermediates).map(expiry_of);
        self.expiry.0.store(ends.min().unwrap_or_default(), Ordering::Relaxed);
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        self.verifier.requires_raw_public_keys()
    }
}

impl ClientCertVerifier for UnverifiedClients {
    fn offer_client_auth(&self) -> bool {
        self.0.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // A client may show the certificate of another authority.
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        self.0.requires_raw_public_keys()
    }
}

impl fmt::Debug for UnverifiedClients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UnverifiedClients")
    }
}

impl fmt::Debug for TimedVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TimedVerifier")
    }
}

/// Adds the expiry of the client's certificates to tickets, and refuses expired ones.
struct TimedTickets {
    tickets: Arc<dyn ProducesTickets>,
    expiry: ClientCertExpiry,
}

impl ProducesTickets for TimedTickets {
    fn enabled(&self) -> bool {
        self.tickets.enabled()
    }

    fn lifetime(&self) -> u32 {
        self.tickets.lifetime()
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let end = self.expiry.0.load(Ordering::Relaxed);
        self.tickets.encrypt(&[&end.to_be_bytes(), plain].concat())
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let mut opened = self.tickets.decrypt(ticket)?;
        let end = u64::from_be_bytes(*opened.first_chunk::<EXPIRY_BYTES>()?);
        if end <= unix_s() {
            return None;
        }
        self.expiry.0.store(end, Ordering::Relaxed);
        opened.drain(..EXPIRY_BYTES);
        Some(opened)
    }
}

impl fmt::Debug for TimedTickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TimedTickets")
    }
}
