//! Server-side TLS handshakes, up to the first byte of HTTP, driven by the task that waits for the socket.

use std::fmt::{self, Write as _};
use std::io::{self, ErrorKind, Read};
use std::net::IpAddr;
use std::rc::Rc;

use data_encoding::BASE64;
use http::template::{TlsValues, TlsVariable};
use rustls::server::{Accepted, AcceptedAlert, Acceptor, ServerConnection};
use rustls::{
    CertificateError, CipherSuite, CommonState, Error, HandshakeKind, PeerIncompatible, ProtocolVersion,
};

use super::TlsSocket;
use super::acceptor::{NotAdmitted, TlsAcceptor, UNVERIFIED_POLICY};
use super::certificate::CertificateInfo;
use crate::stream::Stream;

/// Properties of a client's TLS connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsSession {
    /// `TLSv1.3` or `TLSv1.2`.
    pub version: &'static str,
    /// The cipher suite by its OpenSSL name, as in nginx and Apache; for TLS 1.3 that is IANA's name.
    pub cipher: &'static str,
    /// The server name that the client sent (SNI), in lower case.
    pub server_name: Option<Box<str>>,
    /// Whether the session was resumed.
    pub is_resumed: bool,
    /// Hash of the policy on client certificates that has admitted the client
    /// ([`super::ClientCertificates::policy`]); 0 for none.
    pub policy: u64,
    /// The verified client certificate, if there is one.
    pub client: Option<Box<ClientIdentity>>,
}

impl TlsSession {
    /// Returns the properties of a connection whose handshake is complete.
    pub(crate) fn of(
        tls: &CommonState,
        server_name: Option<&str>,
        policy: u64,
    ) -> Result<TlsSession, HandshakeFailure> {
        // Of those that nobody has verified, nothing is known.
        let is_verified = policy & UNVERIFIED_POLICY == 0;
        let shown = tls.peer_certificates().and_then(<[_]>::first).filter(|_| is_verified);
        let client = shown.map(|certificate| {
            let info = CertificateInfo::of_der(certificate);
            let info = info.map_err(|_| HandshakeFailure::of("the client's certificate cannot be read"))?;
            Ok(Box::new(ClientIdentity { info, der: Box::from(&**certificate) }))
        });
        let agreed = TlsAgreement::of(tls);
        Ok(TlsSession {
            version: agreed.version,
            cipher: agreed.cipher,
            server_name: server_name.map(Into::into),
            is_resumed: agreed.is_resumed,
            policy,
            client: client.transpose()?,
        })
    }

    /// Whether the client's certificate has expired since it was verified.
    #[must_use]
    pub fn has_expired(&self, now_unix_s: u64) -> bool {
        let end = self.client.as_ref().map(|client| u64::try_from(client.info.not_after_unix_s));
        end.is_some_and(|end| end.unwrap_or_default() < now_unix_s)
    }
}

/// A client certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientIdentity {
    /// Attributes of the certificate.
    pub info: CertificateInfo,
    /// The certificate in DER.
    pub der: Box<[u8]>,
}

impl ClientIdentity {
    /// Appends the certificate in PEM (RFC 7468).
    pub fn write_pem(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"-----BEGIN CERTIFICATE-----\n");
        for line in self.der.chunks(48) {
            out.extend_from_slice(BASE64.encode(line).as_bytes());
            out.push(b'\n');
        }
        out.extend_from_slice(b"-----END CERTIFICATE-----\n");
    }
}

impl ClientIdentity {
    /// Returns the certificate in PEM, with every byte percent-encoded that is not unreserved (RFC 3986 section 2.3).
    fn encoded_pem(&self) -> String {
        let mut pem = Vec::new();
        self.write_pem(&mut pem);
        let mut text = String::with_capacity(pem.len() + pem.len() / 8);
        for byte in pem {
            if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
                text.push(char::from(byte));
            } else {
                let _ = write!(text, "%{byte:02X}");
            }
        }
        text
    }
}

impl TlsValues for TlsSession {
    fn write(&self, variable: TlsVariable, out: &mut Vec<u8>) {
        let info = self.client.as_ref().map(|client| &client.info);
        let of_client = |text: fn(&CertificateInfo) -> &str| info.map(text).unwrap_or_default();
        let (alternatives, certificate);
        let text = match variable {
            TlsVariable::Version => self.version,
            TlsVariable::Cipher => self.cipher,
            TlsVariable::Resumed => {
                if self.is_resumed {
                    "true"
                } else {
                    "false"
                }
            }
            TlsVariable::ServerName => self.server_name.as_deref().unwrap_or_default(),
            TlsVariable::ClientVerify => {
                if info.is_some() {
                    "SUCCESS"
                } else {
                    "NONE"
                }
            }
            TlsVariable::ClientSubject => of_client(|info| &info.subject),
            TlsVariable::ClientIssuer => of_client(|info| &info.issuer),
            TlsVariable::ClientSan => {
                alternatives = info.map(|info| info.alternatives.join(", ")).unwrap_or_default();
                &alternatives
            }
            TlsVariable::ClientSerial => of_client(|info| &info.serial),
            TlsVariable::ClientFingerprint => of_client(|info| &info.sha256),
            TlsVariable::ClientCertificate => {
                certificate = self.client.as_ref().map(|client| client.encoded_pem()).unwrap_or_default();
                &certificate
            }
        };
        // A certificate authority may include any character in a name, but a field value is one line.
        out.extend(text.bytes().map(|byte| if byte.is_ascii_control() { b' ' } else { byte }));
    }
}

/// A handshake in progress.
pub(crate) struct TlsHandshake {
    acceptor: TlsAcceptor,
    state: HandshakeState,
    /// The first byte received, which identifies clients that do not speak TLS.
    first_byte: Option<u8>,
    /// Received bytes of the ClientHello.
    hello_bytes: usize,
    /// Bytes received after the ClientHello: mostly client certificates.
    later_bytes: usize,
}

/// Maximum size of a ClientHello; browsers send at most 2 KiB.
pub(crate) const HELLO_BYTES_MAX: usize = 16 * 1024;
/// Memory of a handshake without the client's certificates: both sides' first messages and the key exchange.
const HANDSHAKE_BYTES: usize = 16 * 1024;
/// Reason for refusing a ClientHello longer than [`HELLO_BYTES_MAX`].
pub(crate) const HELLO_TOO_LONG: &str = "the first TLS message has more than 16 KiB";

enum HandshakeState {
    /// The ClientHello is incomplete.
    Hello(Box<Acceptor>),
    Running {
        tls: Box<ServerConnection>,
        policy: u64,
        is_challenge: bool,
    },
    Finished,
}

/// Progress of a handshake.
pub(crate) enum HandshakeStep {
    /// Waits until the socket is readable.
    WantsRead,
    /// Waits until the socket is writable.
    WantsWrite,
    /// Complete: HTTP begins.
    Done(Box<ServerConnection>, Rc<TlsSession>),
    /// A certificate authority has validated the name; the connection ends.
    ChallengeDone,
}

/// A failed handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandshakeFailure {
    /// The reason, in words.
    pub reason: &'static str,
    /// The server name that the client sent, if it is known and relevant.
    pub name: Option<Box<str>>,
    /// Whether the client seems to speak HTTP without TLS.
    pub is_http: bool,
    /// Whether the client disconnected; the service is not told of these failures.
    pub is_gone: bool,
}

impl HandshakeFailure {
    pub(crate) fn of(reason: &'static str) -> HandshakeFailure {
        HandshakeFailure { reason, name: None, is_http: false, is_gone: false }
    }

    /// Returns the failure for an error of the TLS library.
    pub(crate) fn of_error(error: &Error, name: Option<&str>) -> HandshakeFailure {
        failure(error, name)
    }
}

impl fmt::Display for HandshakeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{} (server name {name:?})", self.reason),
            None => f.write_str(self.reason),
        }
    }
}

impl TlsHandshake {
    /// Begins a handshake of which the bytes `begun` were already read.
    ///
    /// # Errors
    /// Fails if these exceed the maximum size of a ClientHello.
    pub(crate) fn new(acceptor: &TlsAcceptor, begun: &[u8]) -> Result<TlsHandshake, HandshakeFailure> {
        let mut hello = Box::<Acceptor>::default();
        let mut rest = begun;
        while !rest.is_empty() {
            match hello.read_tls(&mut rest) {
                Ok(1..) if begun.len() <= HELLO_BYTES_MAX => {}
                _ => return Err(HandshakeFailure::of(HELLO_TOO_LONG)),
            }
        }
        let first = begun.first().copied();
        Ok(TlsHandshake {
            acceptor: acceptor.clone(),
            state: HandshakeState::Hello(hello),
            first_byte: first,
            hello_bytes: begun.len(),
            later_bytes: 0,
        })
    }

    /// Returns the memory held, in bytes, with the client's certificates.
    pub(crate) fn weight_bytes(&self) -> usize {
        HANDSHAKE_BYTES + self.later_bytes
    }

    /// Whether the client has sent anything.
    pub(crate) fn has_begun(&self) -> bool {
        self.first_byte.is_some()
    }

    /// Continues the handshake as far as the socket permits. `client` is the client's address, if it has one;
    /// `listener_key` is the key of the listener that accepted the connection.
    ///
    /// # Errors
    /// Returns the reason of the failure. An alert was sent, unless the client is gone.
    pub(crate) fn advance(
        &mut self,
        stream: &Stream,
        client: Option<IpAddr>,
        listener_key: u64,
    ) -> Result<HandshakeStep, HandshakeFailure> {
        loop {
            match std::mem::replace(&mut self.state, HandshakeState::Finished) {
                HandshakeState::Hello(mut hello) => match hello.accept() {
                    Ok(Some(accepted)) => self.state = self.begin(accepted, stream, client, listener_key)?,
                    Ok(None) => {
                        // Reject an oversized message before buffering more of it.
                        if self.hello_bytes > HELLO_BYTES_MAX {
                            return Err(HandshakeFailure::of(HELLO_TOO_LONG));
                        }
                        let first = &mut self.first_byte;
                        let bytes = &mut self.hello_bytes;
                        let read = hello.read_tls(&mut FirstBytes { stream, first, bytes });
                        self.state = HandshakeState::Hello(hello);
                        if !read_result(read)? {
                            return Ok(HandshakeStep::WantsRead);
                        }
                    }
                    Err((error, alert)) => return Err(self.refused(&error, alert, stream)),
                },
                HandshakeState::Running { mut tls, policy, is_challenge } => {
                    if !tls.is_handshaking() {
                        if is_challenge {
                            tls.send_close_notify();
                            // The authority has received what it needs and may be gone.
                            let _ = send_pending(&mut tls, stream);
                            return Ok(HandshakeStep::ChallengeDone);
                        }
                        let session = TlsSession::of(&tls, tls.server_name(), policy)?;
                        // Remaining output (tickets) is sent with the first response, or when HTTP waits.
                        return Ok(HandshakeStep::Done(tls, Rc::new(session)));
                    }
                    if !send_pending(&mut tls, stream)? {
                        self.state = HandshakeState::Running { tls, policy, is_challenge };
                        return Ok(HandshakeStep::WantsWrite);
                    }
                    let read = tls.read_tls(&mut TlsSocket(stream));
                    self.later_bytes += read.as_ref().copied().unwrap_or_default();
                    let came = read_result(read)?;
                    if came && let Err(error) = tls.process_new_packets() {
                        // Sends the alert to the client.
                        let _ = send_pending(&mut tls, stream);
                        return Err(failure(&error, tls.server_name()));
                    }
                    self.state = HandshakeState::Running { tls, policy, is_challenge };
                    if !came {
                        return Ok(HandshakeStep::WantsRead);
                    }
                }
                HandshakeState::Finished => return Err(HandshakeFailure::of("the handshake is over")),
            }
        }
    }

    /// Selects the site for the complete ClientHello, and responds.
    fn begin(
        &self,
        accepted: Accepted,
        stream: &Stream,
        client: Option<IpAddr>,
        listener_key: u64,
    ) -> Result<HandshakeState, HandshakeFailure> {
        let hello = accepted.client_hello();
        let name: Option<Box<str>> = hello.server_name().map(Into::into);
        let address = match name {
            Some(_) => String::new(),
            None => stream
                .local_address()
                .map_or_else(String::new, |address| address.ip().to_canonical().to_string()),
        };
        let admission = self.acceptor.admit(&hello, &address, client, listener_key).map_err(|not| {
            let (alert, failure) = not_admitted(not, name.as_deref());
            // The client may be gone.
            let _ = stream.try_write(&[&[ALERT, 3, 3, 0, 2, FATAL, alert]], false);
            failure
        })?;
        let tls = accepted.into_connection(admission.config).map_err(|(error, alert)| {
            write_alert(alert, stream);
            failure(&error, name.as_deref())
        })?;
        let mut tls = Box::new(tls);
        // Further messages may have arrived with the ClientHello, which the socket will not report again.
        if let Err(error) = tls.process_new_packets() {
            let _ = send_pending(&mut tls, stream);
            return Err(failure(&error, name.as_deref()));
        }
        Ok(HandshakeState::Running { tls, policy: admission.policy, is_challenge: admission.is_challenge })
    }

    fn refused(&self, error: &Error, alert: AcceptedAlert, stream: &Stream) -> HandshakeFailure {
        let is_tls = self.first_byte == Some(HANDSHAKE);
        if is_tls {
            write_alert(alert, stream);
            return failure(error, None);
        }
        let is_http = self.first_byte.is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'\r');
        let reason =
            if is_http { "the client speaks HTTP without TLS" } else { "the client does not speak TLS" };
        HandshakeFailure { is_http, ..HandshakeFailure::of(reason) }
    }
}

// RFC 8446 sections 5.1 and 6.
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const FATAL: u8 = 2;
const HANDSHAKE_FAILURE: u8 = 40;
const UNRECOGNIZED_NAME: u8 = 112;

/// Returns the alert for a client that is not admitted, and the failure to log.
pub(crate) fn not_admitted(not: NotAdmitted, name: Option<&str>) -> (u8, HandshakeFailure) {
    let (alert, reason) = match not {
        NotAdmitted::UnknownName if name.is_none() => {
            (UNRECOGNIZED_NAME, "the client names no host, and no site is for that")
        }
        NotAdmitted::UnknownName => (UNRECOGNIZED_NAME, "no site has this name"),
        // The alert for an unknown name (RFC 6066 section 3): neither side is at fault.
        NotAdmitted::NoCertificate => {
            (UNRECOGNIZED_NAME, "there is no certificate for this name yet: see `komainu cert list`")
        }
        NotAdmitted::NoCipher => (HANDSHAKE_FAILURE, "no shared cipher suite"),
        NotAdmitted::NoSignature => {
            (HANDSHAKE_FAILURE, "the client verifies signatures of no certificate for this name")
        }
    };
    (alert, HandshakeFailure { name: name.map(Into::into), ..HandshakeFailure::of(reason) })
}

fn write_alert(mut alert: AcceptedAlert, stream: &Stream) {
    // A few bytes, for which an empty socket has room; the client may be gone.
    let _ = alert.write(&mut TlsSocket(stream));
}

/// Returns whether bytes were read; false if none are available.
fn read_result(read: io::Result<usize>) -> Result<bool, HandshakeFailure> {
    match read {
        Ok(0) => Err(HandshakeFailure { is_gone: true, ..HandshakeFailure::of("the client disconnected") }),
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
        Err(error) if error.kind() == ErrorKind::InvalidData => {
            Err(HandshakeFailure::of("a TLS message is too long"))
        }
        Err(_) => Err(HandshakeFailure { is_gone: true, ..HandshakeFailure::of("the client disconnected") }),
    }
}

/// Sends pending output; returns true if nothing is left.
fn send_pending(tls: &mut ServerConnection, stream: &Stream) -> Result<bool, HandshakeFailure> {
    while tls.wants_write() {
        match tls.write_tls(&mut TlsSocket(stream)) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(_) => {
                return Err(HandshakeFailure {
                    is_gone: true,
                    ..HandshakeFailure::of("the client disconnected")
                });
            }
        }
    }
    Ok(true)
}

/// The negotiated parameters of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlsAgreement {
    /// `TLSv1.3` or `TLSv1.2`.
    pub version: &'static str,
    /// The cipher suite, named like [`TlsSession::cipher`].
    pub cipher: &'static str,
    /// Key exchange group by IANA's name, for example `X25519`; empty if a resumption had no key exchange.
    pub group: &'static str,
    /// Whether the session was resumed.
    pub is_resumed: bool,
    /// Whether the server requested another key share (HelloRetryRequest, RFC 8446 section 4.1.4).
    pub is_retried: bool,
}

impl TlsAgreement {
    /// Returns the parameters of a connection whose handshake is complete.
    pub(crate) fn of(tls: &CommonState) -> TlsAgreement {
        let (is_resumed, is_retried) = match tls.handshake_kind() {
            Some(HandshakeKind::Resumed) => (true, false),
            Some(HandshakeKind::FullWithHelloRetryRequest) => (false, true),
            Some(HandshakeKind::Full) | None => (false, false),
        };
        TlsAgreement {
            version: match tls.protocol_version() {
                Some(ProtocolVersion::TLSv1_3) => "TLSv1.3",
                _ => "TLSv1.2",
            },
            cipher: tls.negotiated_cipher_suite().map_or("", |suite| cipher_name(suite.suite())),
            group: tls
                .negotiated_key_exchange_group()
                .and_then(|group| group.name().as_str())
                .unwrap_or_default(),
            is_resumed,
            is_retried,
        }
    }
}

fn cipher_name(suite: CipherSuite) -> &'static str {
    use CipherSuite as Suite;
    match suite {
        Suite::TLS13_AES_128_GCM_SHA256 => "TLS_AES_128_GCM_SHA256",
        Suite::TLS13_AES_256_GCM_SHA384 => "TLS_AES_256_GCM_SHA384",
        Suite::TLS13_CHACHA20_POLY1305_SHA256 => "TLS_CHACHA20_POLY1305_SHA256",
        Suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 => "ECDHE-ECDSA-AES128-GCM-SHA256",
        Suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 => "ECDHE-ECDSA-AES256-GCM-SHA384",
        Suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256 => "ECDHE-ECDSA-CHACHA20-POLY1305",
        Suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 => "ECDHE-RSA-AES128-GCM-SHA256",
        Suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 => "ECDHE-RSA-AES256-GCM-SHA384",
        Suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 => "ECDHE-RSA-CHACHA20-POLY1305",
        other => other.as_str().unwrap_or_default(),
    }
}

fn failure(error: &Error, name: Option<&str>) -> HandshakeFailure {
    let reason = match error {
        Error::PeerIncompatible(PeerIncompatible::NoCipherSuitesInCommon) => "no shared cipher suite",
        Error::PeerIncompatible(PeerIncompatible::NoKxGroupsInCommon) => "no shared key exchange group",
        Error::PeerIncompatible(
            PeerIncompatible::ServerDoesNotSupportTls12Or13
            | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
            | PeerIncompatible::SupportedVersionsExtensionRequired
            | PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled,
        ) => "no shared TLS version",
        Error::PeerIncompatible(PeerIncompatible::NoSignatureSchemesInCommon) => "no shared signature scheme",
        Error::PeerIncompatible(_) => "the client's TLS lacks what this server needs",
        Error::NoCertificatesPresented => "the client shows no certificate",
        Error::InvalidCertificate(error) => client_certificate(error),
        Error::InvalidCertRevocationList(_) => {
            "a revocation list for client certificates is not valid, or not signed by their issuer"
        }
        // The resolver found no certificate for the cipher suites and signatures of a TLS 1.2 client.
        Error::General(_) => "no certificate fits the client's cipher suites and signatures",
        Error::NoApplicationProtocol => "no shared application protocol (ALPN)",
        Error::AlertReceived(_) => "the client refused the server's certificate or answer",
        Error::InvalidMessage(_) | Error::InappropriateMessage { .. } => "an invalid TLS message",
        Error::InappropriateHandshakeMessage { .. } => "an invalid TLS message",
        _ => "the TLS handshake failed",
    };
    HandshakeFailure { name: name.map(Into::into), ..HandshakeFailure::of(reason) }
}

/// Describes why a client's certificate was refused.
fn client_certificate(error: &CertificateError) -> &'static str {
    use CertificateError as Refusal;
    match error {
        Refusal::Expired | Refusal::ExpiredContext { .. } => "the client's certificate has expired",
        Refusal::NotValidYet | Refusal::NotValidYetContext { .. } => {
            "the client's certificate is not valid yet"
        }
        Refusal::UnknownIssuer => "the issuer of the client's certificate is not trusted",
        Refusal::BadSignature => {
            "a signature is not valid: that of the client's certificate, or one made with its key"
        }
        Refusal::Revoked => "the client's certificate is revoked",
        Refusal::BadEncoding => "the client's certificate is malformed",
        Refusal::InvalidPurpose | Refusal::InvalidPurposeContext { .. } => {
            "the client's certificate is for another purpose: its extendedKeyUsage lacks clientAuth"
        }
        Refusal::UnhandledCriticalExtension => {
            "the client's certificate has a critical extension that this server does not know"
        }
        other => {
            // The variant belongs to an internal crate of rustls and is only available as text.
            let said = format!("{other:?}");
            let known = REFUSAL_TEXTS.iter().find(|(word, _)| said.contains(word));
            known.map_or("the client's certificate is not valid", |(_, reason)| *reason)
        }
    }
}

/// Error names of the certificate verifier and their descriptions.
const REFUSAL_TEXTS: [(&str, &str); 7] = [
    (
        "UnsupportedCertVersion",
        "the client's certificate is of X.509 version 1, and 3 is needed: make it with an extension",
    ),
    ("CaUsedAsEndEntity", "the client's certificate is that of an authority (CA:TRUE)"),
    ("EndEntityUsedAsCa", "the issuer of the client's certificate is not an authority (CA:FALSE)"),
    ("NameConstraint", "the client's certificate has a name that its authority may not issue for"),
    ("PathLenConstraint", "the client's certificate has more authorities above it than one of them allows"),
    (
        "UnsupportedSignatureAlgorithm",
        "the client's certificate is signed by an algorithm that is not accepted",
    ),
    ("Maximum", "the client's certificate comes with too many others"),
];

/// A reader that counts the bytes and remembers the first one.
struct FirstBytes<'s> {
    stream: &'s Stream,
    first: &'s mut Option<u8>,
    bytes: &'s mut usize,
}

impl Read for FirstBytes<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = TlsSocket(self.stream).read(buffer)?;
        if self.first.is_none() {
            *self.first = buffer[..len].first().copied();
        }
        *self.bytes += len;
        Ok(len)
    }
}
