//! TLS for clients and servers. Only this module uses rustls.

pub mod directives;
mod pem;
mod certificate;
mod store;
mod tickets;
mod client_expiry;
mod acceptor;
mod handshake;
mod blocking;
#[cfg(any(test, feature = "hostile"))]
pub mod hostile;

pub(crate) use acceptor::{ALPN_HTTP2, ALPN_HTTP3};
pub use acceptor::{ClientCertificates, TlsAcceptor, TlsOptions, TlsSite};
pub use blocking::BlockingTlsStream;
pub use certificate::{CertificateFault, CertificateInfo, ServerCertificate};
pub use handshake::{ClientIdentity, HandshakeFailure, TlsAgreement, TlsSession};
pub(crate) use handshake::{HELLO_BYTES_MAX, HELLO_TOO_LONG, HandshakeStep, TlsHandshake, not_admitted};
pub use pem::strip_byte_order_marks;
pub use store::CertificateStore;
pub(crate) use tickets::token_key;
pub use tickets::{PERIOD_S as TICKET_PERIOD_S, TicketKeys};

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::rc::Rc;
use std::sync::Arc;

use failure::Failure;
use http::append::COPY_BYTES;
use rustls::AlertDescription;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{
    CryptoProvider, SupportedKxGroup, aws_lc_rs, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
pub(crate) use rustls::server::ServerConnection;
use rustls::version::{TLS12, TLS13};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, Connection, DigitallySignedStruct, RootCertStore,
    SignatureScheme, SupportedProtocolVersion,
};
use times::{Millis, Moment};

use self::pem::{certificates, private_key};
use crate::bandwidth::ResponseBucket;
use crate::fault::Fault;
use crate::stream::Stream;
use crate::wait::Interest;

/// TLS configuration for connections to a server. Made once and shared by all cores, so that a session begun
/// on one core can be resumed on another.
#[derive(Clone, Debug)]
pub struct TlsClient {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

/// A version of HTTP that a TLS client offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsHttp {
    /// HTTP/1.1 (default).
    #[default]
    Http1,
    /// HTTP/2.
    Http2,
    /// HTTP/3, which needs TLS 1.3.
    Http3,
}

/// Options of a TLS client.
#[derive(Clone, Debug, Default)]
pub struct TlsClientOptions<'o> {
    /// Server name to send (SNI) and verify: a DNS name or an IP address.
    pub name: &'o str,
    /// Certificates (PEM) to trust instead of the system's.
    pub roots_pem: Option<&'o [u8]>,
    /// The client's certificate chain and key (PEM).
    pub identity_pem: Option<(&'o [u8], &'o [u8])>,
    /// Names of which the certificate must have one, instead of `name`: host names, IP addresses or URIs.
    pub verify_names: &'o [String],
    /// Whether to accept any certificate.
    pub insecure: bool,
    /// The version of HTTP to offer (ALPN).
    pub http: TlsHttp,
    /// Whether to disable session resumption.
    pub disables_resumption: bool,
    /// The only version to offer, `1.2` or `1.3`.
    pub version: Option<&'o str>,
    /// Key exchange groups to offer, in order of preference; empty for the defaults. Names are IANA's
    /// (`X25519`, `X25519MLKEM768`, `secp256r1`), case-insensitive, or `P-256` and so on.
    pub groups: &'o [&'o str],
}

impl TlsClient {
    /// Reads certificates and keys.
    ///
    /// # Errors
    /// Returns a message if an option, certificate or key is invalid.
    pub fn new(options: &TlsClientOptions<'_>) -> Result<TlsClient, Failure> {
        let name = ServerName::try_from(options.name.to_owned())
            .map_err(|_| format!("`{}` is not a name that a certificate could have", options.name))?;
        let mut provider = aws_lc_rs::default_provider();
        if !options.groups.is_empty() {
            provider.kx_groups = options.groups.iter().map(|name| group(name)).collect::<Result<_, _>>()?;
        }
        let provider = Arc::new(provider);
        let versions: &[&SupportedProtocolVersion] = match options.version {
            None if options.http != TlsHttp::Http3 => &[&TLS13, &TLS12],
            None | Some("1.3") => &[&TLS13],
            Some("1.2") if options.http == TlsHttp::Http3 => {
                return Err("HTTP/3 needs version 1.3 of TLS".into());
            }
            Some("1.2") => &[&TLS12],
            Some(other) => {
                return Err(Failure::new(format!(
                    "`{other}` is not a version of TLS that can be offered: 1.2 or 1.3"
                )));
            }
        };
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(versions)
            .map_err(|error| error.to_string())?;
        let builder = if options.insecure {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        } else if !options.verify_names.is_empty() {
            let verifier = NamedCertificate {
                provider,
                roots: roots(options.roots_pem)?,
                names: options.verify_names.to_vec(),
            };
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
        } else {
            builder.with_root_certificates(roots(options.roots_pem)?)
        };
        let mut config = match options.identity_pem {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let chain = certificates(chain)?;
                let key = private_key(key)?;
                builder.with_client_auth_cert(chain, key).map_err(|error| error.to_string())?
            }
        };
        let protocol: &[u8] = match options.http {
            TlsHttp::Http1 => b"http/1.1",
            TlsHttp::Http2 => ALPN_HTTP2,
            TlsHttp::Http3 => ALPN_HTTP3,
        };
        config.alpn_protocols = vec![protocol.to_vec()];
        if options.disables_resumption {
            config.resumption = Resumption::disabled();
        }
        Ok(TlsClient { config: Arc::new(config), name })
    }

    /// Returns the settings and the server's name for QUIC.
    #[must_use]
    pub fn quic(&self) -> (Arc<ClientConfig>, ServerName<'static>) {
        (self.config.clone(), self.name.clone())
    }
}

/// Returns the key exchange group with this name.
fn group(name: &str) -> Result<&'static dyn SupportedKxGroup, Failure> {
    let iana = match name.to_ascii_lowercase().as_str() {
        "p-256" | "p256" | "prime256v1" => "secp256r1".to_string(),
        "p-384" | "p384" => "secp384r1".to_string(),
        other => other.to_string(),
    };
    let named = |group: &&&'static dyn SupportedKxGroup| {
        group.name().as_str().is_some_and(|known| known.eq_ignore_ascii_case(&iana))
    };
    aws_lc_rs::ALL_KX_GROUPS.iter().find(named).copied().ok_or_else(|| {
        let all: Vec<&str> =
            aws_lc_rs::ALL_KX_GROUPS.iter().filter_map(|group| group.name().as_str()).collect();
        Failure::new(format!("`{name}` is not a group of a key exchange here: there are {}", all.join(", ")))
    })
}

fn roots(pem: Option<&[u8]>) -> Result<RootCertStore, Failure> {
    let mut store = RootCertStore::empty();
    match pem {
        Some(pem) => {
            for certificate in certificates(pem)? {
                store.add(certificate).map_err(|error| format!("certificate: {error}"))?;
            }
        }
        None => {
            // A system's store may contain malformed certificates, but not only these.
            let (added, _) = store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if added == 0 {
                return Err("the system has no trusted certificates".into());
            }
        }
    }
    Ok(store)
}

/// Plaintext size of the first records of a response: one to three packets, which a client can decrypt early.
const RECORD_BYTES_FIRST: usize = 4 * 1024 - 256;
/// Plaintext size of further records: the maximum (RFC 8446 section 5.1), for the lowest cost per byte.
const RECORD_BYTES: usize = 16 * 1024;
/// Bytes sent in small records before switching to large ones.
const SMALL_RECORDS_BYTES: usize = 32 * 1024;
/// Idle time after which records are small again, like the congestion window of TCP.
const SMALL_AGAIN: Millis = Millis(1_000);
/// Maximum plaintext of one write; it is encrypted into a separate buffer.
const WRITE_BYTES_MAX: usize = 64 * 1024;
/// Maximum size of a head that is held back, to send it with its content in one system call.
const HELD_BYTES_MAX: usize = 4 * 1024;
/// Memory of an idle connection: keys, state, and the 4 KiB buffer for reading the next record.
const IDLE_BYTES: usize = 8 * 1024;

/// A non-blocking TLS connection.
pub struct TlsStream {
    stream: Stream,
    // Boxed because it is large and moves into and out of a list of idle connections with each request.
    tls: Box<Connection>,
    /// The session of a client's connection.
    session: Option<Rc<TlsSession>>,
    /// Bytes written since the connection was idle, and the time of the last write.
    written_bytes: usize,
    written_at: Moment,
    /// Bytes encrypted since everything was last passed to the kernel.
    held_bytes: usize,
    /// Whether the kernel accepted less than there was.
    is_blocked: bool,
    /// Whether a write has failed, so that encrypted bytes can never be sent and must not be waited for.
    write_failed: bool,
    /// Memory held for the peer's certificates, in bytes.
    chain_bytes: usize,
}

/// Returns the memory held for the peer's certificates, in bytes.
fn chain_bytes(tls: &Connection) -> usize {
    let chain = tls.peer_certificates().unwrap_or_default();
    chain.iter().map(|certificate| size_of::<CertificateDer<'_>>() + certificate.len()).sum()
}

impl TlsStream {
    /// Performs the handshake over a connected stream.
    ///
    /// # Errors
    /// [`Fault::Timeout`]; [`Fault::Disconnected`]; [`Fault::Failed`] for an invalid certificate or response.
    pub async fn connect(stream: Stream, client: &TlsClient, deadline: Moment) -> Result<TlsStream, Fault> {
        let tls = ClientConnection::new(client.config.clone(), client.name.clone())
            .map_err(|_| Fault::Failed("no TLS session could be made"))?;
        let mut this = TlsStream::from_parts(stream, Box::new(tls.into()));
        while this.tls.is_handshaking() {
            this.flush()?;
            if !this.tls.is_handshaking() {
                break;
            }
            if this.tls.wants_read() && this.receive()? {
                continue;
            }
            let interest = this.interest(Interest::of(this.tls.wants_read(), false));
            this.stream.ready_for(interest, deadline).await?;
        }
        this.flush()?;
        this.chain_bytes = chain_bytes(&this.tls);
        Ok(this)
    }

    pub(crate) fn into_parts(self) -> (Stream, Box<Connection>) {
        (self.stream, self.tls)
    }

    pub(crate) fn from_parts(stream: Stream, mut tls: Box<Connection>) -> TlsStream {
        // Room for a full-size write in addition to a head that is held back.
        tls.set_buffer_limit(Some(HELD_BYTES_MAX + WRITE_BYTES_MAX));
        let chain_bytes = chain_bytes(&tls);
        TlsStream {
            stream,
            tls,
            session: None,
            written_bytes: 0,
            written_at: Moment::ZERO,
            held_bytes: 0,
            is_blocked: false,
            write_failed: false,
            chain_bytes,
        }
    }

    /// Creates the stream of a client whose handshake is complete.
    pub(crate) fn accepted(stream: Stream, tls: Box<ServerConnection>, session: Rc<TlsSession>) -> TlsStream {
        let tls = Box::new(Connection::Server(*tls));
        // The client's certificate is also in the session, in two forms.
        let own_bytes = session.client.as_ref().map_or(0, |client| 2 * client.der.len());
        let stream = TlsStream::from_parts(stream, tls);
        let chain_bytes = stream.chain_bytes + own_bytes;
        TlsStream { session: Some(session), chain_bytes, ..stream }
    }

    /// Returns the session of a client's connection; `None` for a connection to another server.
    #[must_use]
    pub fn session(&self) -> Option<&Rc<TlsSession>> {
        self.session.as_ref()
    }

    /// Returns the negotiated parameters.
    #[must_use]
    pub fn agreement(&self) -> TlsAgreement {
        TlsAgreement::of(&self.tls)
    }

    /// Whether the peer has agreed to HTTP/2 (ALPN).
    pub(crate) fn has_negotiated_http2(&self) -> bool {
        self.tls.alpn_protocol() == Some(ALPN_HTTP2)
    }

    /// Returns the memory held, in bytes.
    #[must_use]
    pub(crate) fn weight_bytes(&self) -> usize {
        // Unsent ciphertext is at most one write and a head before it.
        let unsent_bytes = if self.tls.wants_write() { HELD_BYTES_MAX + WRITE_BYTES_MAX } else { 0 };
        IDLE_BYTES + self.chain_bytes + unsent_bytes
    }

    /// Returns the underlying socket.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Sets or removes the bandwidth limit of writes.
    pub(crate) fn set_bucket(&mut self, bucket: Option<Box<ResponseBucket>>) {
        self.stream.set_bucket(bucket);
    }

    /// Returns the events to wait for in order to read or write, as `wanted`.
    #[must_use]
    pub fn interest(&self, wanted: Interest) -> Interest {
        wanted.or(Interest::of(false, self.tls.wants_write() && !self.write_failed))
    }

    /// Reads available bytes: `None` if there are none, 0 at an end announced by close_notify.
    ///
    /// # Errors
    /// [`Fault::Disconnected`] also if the connection ends without close_notify, because it may have been truncated.
    pub fn try_read(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Fault> {
        loop {
            match self.tls.reader().read(buffer) {
                Ok(len) => return Ok(Some(len)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return Err(Fault::Disconnected),
            }
            // While output is pending, a wait for input also ends when the socket is writable. If flushing
            // fails, the peer may have sent data before it closed, so read that before the end.
            if !self.receive()? && (self.flush().is_ok() || !self.receive()?) {
                return Ok(None);
            }
        }
    }

    /// Whether data written now would probably be sent at once. Retries output that is pending.
    ///
    /// # Errors
    /// Fails if the peer is gone.
    pub(crate) fn has_room(&mut self) -> Result<bool, Fault> {
        Ok(!self.is_blocked || self.flush()?)
    }

    /// Writes as much as possible of two pieces; returns 0 if the send buffer is full. `more` announces
    /// further bytes: little data is held back until the next write or flush.
    ///
    /// # Errors
    /// Fails if the peer is gone.
    pub fn try_write(&mut self, first: &[u8], second: &[u8], more: bool) -> Result<usize, Fault> {
        // Pending ciphertext is sent together with this data, unless the socket is blocked.
        if !self.has_room()? {
            return Ok(0);
        }
        let now = self.stream.core().now();
        if now >= self.written_at + SMALL_AGAIN {
            self.written_bytes = 0;
        }
        self.written_at = now;
        let mut taken = 0;
        for piece in [first, second] {
            taken += self.encrypt(&piece[..piece.len().min(WRITE_BYTES_MAX - taken)])?;
        }
        self.held_bytes += taken;
        if !more || self.held_bytes > HELD_BYTES_MAX {
            self.flush()?;
        }
        Ok(taken)
    }

    /// Encrypts a piece into records.
    fn encrypt(&mut self, piece: &[u8]) -> Result<usize, Fault> {
        let mut taken = 0;
        while taken < piece.len() {
            let max =
                if self.written_bytes < SMALL_RECORDS_BYTES { RECORD_BYTES_FIRST } else { RECORD_BYTES };
            let len = write_in_pieces(&mut self.tls.writer(), &piece[taken..piece.len().min(taken + max)])?;
            if len == 0 {
                break;
            }
            taken += len;
            self.written_bytes += len;
        }
        Ok(taken)
    }

    /// Whether there is ciphertext that the kernel has not accepted.
    #[must_use]
    pub fn has_pending_output(&self) -> bool {
        self.tls.wants_write()
    }

    /// Passes ciphertext to the kernel; returns true if nothing is left.
    ///
    /// # Errors
    /// Fails if the peer is gone.
    pub fn flush(&mut self) -> Result<bool, Fault> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut TlsSocket(&self.stream)) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.is_blocked = true;
                    return Ok(false);
                }
                Err(error) => {
                    self.write_failed = true;
                    return Err(fault_of(error));
                }
            }
        }
        self.is_blocked = false;
        self.held_bytes = 0;
        Ok(true)
    }

    /// Whether a read would return decrypted bytes or the peer's close_notify without the socket.
    #[must_use]
    pub(crate) fn has_input(&self) -> bool {
        !self.tls.is_handshaking() && !self.tls.wants_read()
    }

    /// Sends close_notify.
    pub(crate) fn send_close_notify(&mut self) {
        self.tls.send_close_notify();
        // Fails if the peer is already gone.
        let _ = self.flush();
    }

    /// Receives and decrypts data; returns true if there was some, or the end.
    fn receive(&mut self) -> Result<bool, Fault> {
        match self.tls.read_tls(&mut TlsSocket(&self.stream)) {
            Ok(0) if self.tls.is_handshaking() => return Err(Fault::Disconnected),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(fault_of(error)),
        }
        match self.tls.process_new_packets() {
            Ok(_) => {
                // A peer that accepts no more may have sent data before. The next write fails.
                let _ = self.flush();
                Ok(true)
            }
            Err(error) => {
                // Sends the alert; the peer may have disconnected.
                let _ = self.flush();
                Err(Fault::Failed(describe_error(&error)))
            }
        }
    }
}

/// Implements `Read` and `Write` on a stream, as rustls requires.
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

/// Writes plaintext for one record, which rustls copies piece by piece: see [`COPY_BYTES`].
fn write_in_pieces(writer: &mut impl Write, record: &[u8]) -> io::Result<usize> {
    let mut pieces = [IoSlice::new(b""); RECORD_BYTES.div_ceil(COPY_BYTES)];
    let mut count = 0;
    for (piece, bytes) in pieces.iter_mut().zip(record.chunks(COPY_BYTES)) {
        *piece = IoSlice::new(bytes);
        count += 1;
    }
    writer.write_vectored(&pieces[..count])
}

fn error_of(fault: Fault) -> io::Error {
    match fault {
        Fault::Io(error) => error,
        _ => ErrorKind::ConnectionReset.into(),
    }
}

fn fault_of(error: io::Error) -> Fault {
    match error.kind() {
        ErrorKind::ConnectionReset => Fault::Disconnected,
        _ => Fault::Io(error),
    }
}

/// Describes an error for the log.
pub(crate) fn describe_error(error: &rustls::Error) -> &'static str {
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
        // The variant belongs to an internal crate of rustls and is only available as text.
        Error::InvalidCertificate(other) if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            "the certificate is that of an authority (CA:TRUE) and not of a server: make one with `-addext \
             basicConstraints=critical,CA:FALSE`"
        }
        Error::InvalidCertificate(_) => "the certificate is not valid",
        Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "the server requires a client certificate: `certificate` and `key` of `tls`"
        }
        Error::AlertReceived(_) => "the server refused the TLS handshake",
        Error::InvalidMessage(_) => "the server does not speak TLS",
        _ => "TLS failed",
    }
}

/// A verifier that accepts every certificate, but still verifies the peer's signature with it.
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

/// Accepts certificates of the trusted authorities that have one of these names, whatever name was sent.
#[derive(Debug)]
struct NamedCertificate {
    provider: Arc<CryptoProvider>,
    roots: RootCertStore,
    names: Vec<String>,
}

impl NamedCertificate {
    fn has_name(&self, certificate: &CertificateDer<'_>, parsed: &ParsedCertificate<'_>) -> bool {
        let info = CertificateInfo::of_der(certificate);
        self.names.iter().any(|name| {
            if name.contains("://") {
                // URIs are compared byte by byte (RFC 5280 section 7.4).
                let wanted = format!("URI:{name}");
                return info.as_ref().is_ok_and(|info| info.alternatives.contains(&wanted));
            }
            ServerName::try_from(name.as_str()).is_ok_and(|name| verify_server_name(parsed, &name).is_ok())
        })
    }
}

impl ServerCertVerifier for NamedCertificate {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let parsed = ParsedCertificate::try_from(certificate)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, intermediates, now, algorithms)?;
        if self.has_name(certificate, &parsed) {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::NotValidForName.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests;
