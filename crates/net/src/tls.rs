//! TLS, as a client speaks it to other servers and as a server speaks it to clients: the only module that knows rustls.

mod certificate;
mod store;
mod tickets;
mod acceptor;
mod handshake;

pub use acceptor::{ClientCertificates, TlsAcceptor, TlsOptions, TlsSite};
pub use certificate::{CertificateInfo, ServerCertificate};
pub use handshake::{ClientIdentity, HandshakeFailure, HandshakeStep, TlsHandshake, TlsSession};
pub use store::CertificateStore;
pub use tickets::TicketKeys;

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme,
};

use self::certificate::certificates;
use crate::fault::Fault;
use crate::stream::Stream;
use crate::wait::Interest;

/// How to speak TLS to a server: made once, shared by all cores, so that sessions resumed on one were begun on any.
#[derive(Clone, Debug)]
pub struct TlsClient {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

/// What a client believes, and who it says it is.
#[derive(Clone, Debug, Default)]
pub struct TlsClientOptions<'o> {
    /// The name to send (SNI) and to verify: a DNS name or an IP address.
    pub name: &'o str,
    /// Certificates (PEM) to trust instead of the system's.
    pub roots_pem: Option<&'o [u8]>,
    /// Our own certificate chain and key (PEM).
    pub identity_pem: Option<(&'o [u8], &'o [u8])>,
    /// Take any certificate.
    pub insecure: bool,
    /// Make a full handshake each time.
    pub no_resumption: bool,
}

impl TlsClient {
    /// Reads certificates and keys.
    ///
    /// # Errors
    /// What is wrong with them, in words.
    pub fn new(options: &TlsClientOptions<'_>) -> Result<TlsClient, String> {
        let name = ServerName::try_from(options.name.to_owned())
            .map_err(|_| format!("`{}` is no name that a certificate could have", options.name))?;
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let builder = match options.insecure {
            true => builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider))),
            false => builder.with_root_certificates(roots(options.roots_pem)?),
        };
        let mut config = match options.identity_pem {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let chain = certificates(chain)?;
                let key = certificate::private_key(key)?;
                builder.with_client_auth_cert(chain, key).map_err(|error| error.to_string())?
            }
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        if options.no_resumption {
            config.resumption = Resumption::disabled();
        }
        Ok(TlsClient { config: Arc::new(config), name })
    }
}

fn roots(pem: Option<&[u8]>) -> Result<RootCertStore, String> {
    let mut store = RootCertStore::empty();
    match pem {
        Some(pem) => {
            for certificate in certificates(pem)? {
                store.add(certificate).map_err(|error| format!("certificate: {error}"))?;
            }
        }
        None => {
            // A system's store may hold a few that are malformed; one that holds none is an error.
            let (added, _) = store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if added == 0 {
                return Err("the system has no trusted certificates".into());
            }
        }
    }
    Ok(store)
}

/// A TLS connection that never blocks.
pub struct TlsStream {
    stream: Stream,
    // Boxed: it is large, and moves with each request into a list of idle connections and out of it.
    tls: Box<ClientConnection>,
}

impl TlsStream {
    /// Shakes hands over a stream just connected.
    ///
    /// # Errors
    /// [`Fault::Timeout`]; [`Fault::Gone`]; [`Fault::Broken`] with what is wrong with the server's certificate or answer.
    pub async fn connect(stream: Stream, client: &TlsClient, deadline_ms: u64) -> Result<TlsStream, Fault> {
        let tls = ClientConnection::new(client.config.clone(), client.name.clone())
            .map_err(|_| Fault::Broken("no TLS session could be made"))?;
        let mut this = TlsStream { stream, tls: Box::new(tls) };
        while this.tls.is_handshaking() {
            this.flush()?;
            if !this.tls.is_handshaking() {
                break;
            }
            if this.tls.wants_read() && this.receive()? {
                continue;
            }
            let interest = this.interest(this.tls.wants_read(), false);
            this.stream.ready_for(interest, deadline_ms).await?;
        }
        this.flush()?;
        Ok(this)
    }

    pub(crate) fn into_parts(self) -> (Stream, Box<ClientConnection>) {
        (self.stream, self.tls)
    }

    pub(crate) fn of_parts(stream: Stream, tls: Box<ClientConnection>) -> TlsStream {
        TlsStream { stream, tls }
    }

    /// The socket under it.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// What to wait for in order to read or to write.
    #[must_use]
    pub fn interest(&self, read: bool, write: bool) -> Interest {
        Interest::of(read, write || self.tls.wants_write())
    }

    /// Reads what is there: `None` where nothing is, 0 at the end that the peer has announced.
    ///
    /// # Errors
    /// [`Fault::Gone`] also where the connection ends unannounced: somebody may have cut it short.
    pub fn try_read(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Fault> {
        loop {
            match self.tls.reader().read(buffer) {
                Ok(len) => return Ok(Some(len)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return Err(Fault::Gone),
            }
            if !self.receive()? {
                // A wait to read ends also when it could be written, as long as something is left to send.
                self.flush()?;
                return Ok(None);
            }
        }
    }

    /// Writes what fits of two pieces: 0 where nothing does now.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn try_write(&mut self, first: &[u8], second: &[u8]) -> Result<usize, Fault> {
        if !self.flush()? {
            return Ok(0);
        }
        let mut writer = self.tls.writer();
        let mut taken = writer.write(first)?;
        if taken == first.len() && !second.is_empty() {
            taken += writer.write(second)?;
        }
        self.flush()?;
        Ok(taken)
    }

    /// Whether something is encrypted that the kernel has not taken yet.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.tls.wants_write()
    }

    /// Hands what is encrypted to the kernel; true where nothing is left.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn flush(&mut self) -> Result<bool, Fault> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut TlsSocket(&self.stream)) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(fault_of(error)),
            }
        }
        Ok(true)
    }

    /// Whether a read would return something without the socket: decrypted bytes, or the end that the peer has announced.
    #[must_use]
    pub(crate) fn has_input(&self) -> bool {
        !self.tls.is_handshaking() && !self.tls.wants_read()
    }

    /// Announces the end of what is sent.
    pub(crate) fn announce_end(&mut self) {
        self.tls.send_close_notify();
        // The peer may be gone already, and then nobody reads it.
        let _ = self.flush();
    }

    /// Takes in what has come; true where there was something (or the end).
    fn receive(&mut self) -> Result<bool, Fault> {
        match self.tls.read_tls(&mut TlsSocket(&self.stream)) {
            Ok(0) if self.tls.is_handshaking() => return Err(Fault::Gone),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(fault_of(error)),
        }
        match self.tls.process_new_packets() {
            Ok(_) => {
                // A peer that takes no more may have said something first: whoever writes learns of it there.
                let _ = self.flush();
                Ok(true)
            }
            Err(error) => {
                // The alert for the peer, which may have disconnected.
                let _ = self.flush();
                Err(Fault::Broken(reason(&error)))
            }
        }
    }
}

/// A stream as the `Read` and `Write` that rustls asks for.
struct TlsSocket<'s>(&'s Stream);

impl Read for TlsSocket<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.0.try_read(buffer) {
            Ok(Some(len)) => Ok(len),
            Ok(None) => Err(ErrorKind::WouldBlock.into()),
            Err(fault) => Err(error_of(fault)),
        }
    }
}

impl Write for TlsSocket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let sent = match slices {
            [one] => self.0.try_write(&[one], false),
            many => self.0.try_write(&many.iter().map(|slice| &**slice).collect::<Vec<&[u8]>>(), false),
        };
        match sent {
            Ok(0) => Err(ErrorKind::WouldBlock.into()),
            Ok(len) => Ok(len),
            Err(fault) => Err(error_of(fault)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn error_of(fault: Fault) -> io::Error {
    match fault {
        Fault::Io(error) => error,
        _ => ErrorKind::ConnectionReset.into(),
    }
}

fn fault_of(error: io::Error) -> Fault {
    match error.kind() {
        ErrorKind::ConnectionReset => Fault::Gone,
        _ => Fault::Io(error),
    }
}

/// What went wrong, in words for a log.
fn reason(error: &rustls::Error) -> &'static str {
    use rustls::Error;
    match error {
        Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "the certificate has expired"
        }
        Error::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        ) => "the certificate is not valid yet",
        Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            "the certificate's issuer is not trusted"
        }
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => "the certificate is for another name",
        Error::InvalidCertificate(_) => "the certificate is not valid",
        Error::AlertReceived(_) => "the server refused the TLS handshake",
        Error::InvalidMessage(_) => "the server does not speak TLS",
        _ => "TLS failed",
    }
}

/// Believes every certificate, but not a signature that does not fit it.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
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
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests;
