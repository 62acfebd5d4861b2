//! TLS of both sides: a scratch certificate, and a client that does not verify it.

use std::sync::Arc;

use failure::Failure;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs::kx_group;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, ServerConfig, SignatureScheme};

/// Scratch certificate and its key.
pub(crate) struct ScratchCertificate {
    pub(crate) certificate_pem: String,
    pub(crate) key_pem: String,
    pub(crate) server: Arc<ServerConfig>,
    pub(crate) client: Arc<ClientConfig>,
}

impl ScratchCertificate {
    /// # Errors
    /// Returns a description of the error.
    pub(crate) fn new() -> Result<Self, Failure> {
        let fault = |error: &dyn std::fmt::Display| Failure::new("the scratch certificate").caused_by(error);
        let key = rcgen::KeyPair::generate().map_err(|error| fault(&error))?;
        let params =
            rcgen::CertificateParams::new(vec!["localhost".to_owned()]).map_err(|error| fault(&error))?;
        let certificate = params.self_signed(&key).map_err(|error| fault(&error))?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let private = PrivateKeyDer::try_from(key.serialize_der()).map_err(|error| fault(&error))?;
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| fault(&error))?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], private)
            .map_err(|error| fault(&error))?;
        let schemes = provider.signature_verification_algorithms.supported_schemes();
        // Without the hybrid key exchange, which would be most of the work of a handshake and is not compared. The curve of the
        // certificate is one of the groups, as TLS 1.2 requires.
        let plain = rustls::crypto::CryptoProvider {
            kx_groups: vec![kx_group::X25519, kx_group::SECP256R1],
            ..Arc::unwrap_or_clone(provider)
        };
        let client = ClientConfig::builder_with_provider(Arc::new(plain))
            .with_safe_default_protocol_versions()
            .map_err(|error| fault(&error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate { schemes }))
            .with_no_client_auth();
        Ok(Self {
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
            server: Arc::new(server),
            client: Arc::new(client),
        })
    }
}

/// Certificate verifier that accepts every certificate: both servers are on loopback and use the scratch
/// certificate.
#[derive(Debug)]
struct AcceptAnyCertificate {
    schemes: Vec<SignatureScheme>,
}

impl ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes.clone()
    }
}
