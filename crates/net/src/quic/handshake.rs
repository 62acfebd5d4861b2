//! TLS of a QUIC connection (RFC 9001): the site is chosen by the ClientHello, as for TCP.

use std::any::Any;
use std::io::Cursor;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use quinn_proto::crypto::rustls::QuicServerConfig;
use quinn_proto::crypto::{
    ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, ServerConfig, Session, UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectionId, Side, TransportError, TransportErrorCode};
use rustls::quic::{self, Secrets, Version};
use rustls::server::Acceptor;

use crate::h3::{QUIC_VERSION, changed_keys, next_keys};
use crate::tls::{HELLO_BYTES_MAX, HELLO_TOO_LONG, HandshakeFailure, TlsAcceptor, TlsSession, not_admitted};

/// Header of a TLS record with handshake messages (RFC 8446 section 5.1), without the length.
const RECORD_HEADER: [u8; 3] = [22, 3, 1];
/// Alerts (RFC 8446 section 6).
const UNEXPECTED_MESSAGE: u8 = 10;
const DECODE_ERROR: u8 = 50;
const INTERNAL_ERROR: u8 = 80;

/// Outcome of a handshake, shared by the connection's task and the session inside the QUIC connection.
#[derive(Default)]
pub(super) struct HandshakeOutcome(Mutex<Option<Box<Result<TlsSession, HandshakeFailure>>>>);

impl HandshakeOutcome {
    fn set(&self, outcome: Result<TlsSession, HandshakeFailure>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| Box::new(outcome));
    }

    /// Takes the outcome; `None` if the handshake is incomplete.
    pub(super) fn take(&self) -> Option<Result<TlsSession, HandshakeFailure>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take().map(|outcome| *outcome)
    }
}

/// Settings of one handshake.
pub(super) struct HandshakeConfig {
    pub(super) acceptor: TlsAcceptor,
    /// Keys of Initial packets and Retry, which do not depend on the site.
    pub(super) base: Arc<QuicServerConfig>,
    /// The client's address, and the key of the listener.
    pub(super) client: IpAddr,
    pub(super) listener_key: u64,
    /// The server's address, which identifies the site for clients that send no server name.
    pub(super) local: Option<IpAddr>,
    pub(super) outcome: Arc<HandshakeOutcome>,
}

impl ServerConfig for HandshakeConfig {
    fn initial_keys(&self, version: u32, client: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        self.base.initial_keys(version, client)
    }

    fn retry_tag(&self, version: u32, client: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.base.retry_tag(version, client, packet)
    }

    fn start_session(self: Arc<Self>, _: u32, parameters: &TransportParameters) -> Box<dyn Session> {
        let mut own = Vec::new();
        parameters.write(&mut own);
        Box::new(HandshakeSession { state: SessionState::Hello(Vec::new()), parameters: own, config: self })
    }
}

/// The server side of a handshake, and of the session afterwards.
struct HandshakeSession {
    state: SessionState,
    parameters: Vec<u8>,
    config: Arc<HandshakeConfig>,
}

enum SessionState {
    /// Bytes of the incomplete ClientHello.
    Hello(Vec<u8>),
    Running {
        tls: Box<quic::ServerConnection>,
        policy: u64,
        next: Option<Secrets>,
        is_reported: bool,
    },
    /// Everything was sent and received: later keys follow from the secrets alone.
    Finished(Option<Secrets>),
}

impl HandshakeSession {
    /// Chooses the site when the ClientHello is complete.
    fn begin(&mut self) -> Result<(), TransportError> {
        let SessionState::Hello(hello) = &self.state else { return Ok(()) };
        let Some(len) = hello_bytes(hello) else { return Ok(()) };
        if len > HELLO_BYTES_MAX {
            return Err(self.fail(DECODE_ERROR, HandshakeFailure::of(HELLO_TOO_LONG)));
        }
        if hello.len() < len {
            return Ok(());
        }
        let mut record = RECORD_HEADER.to_vec();
        record.extend_from_slice(&(len as u16).to_be_bytes());
        record.extend_from_slice(&hello[..len]);
        let mut reader = Acceptor::default();
        let mut rest = &record[..];
        while !rest.is_empty() {
            if !matches!(reader.read_tls(&mut rest), Ok(1..)) {
                break;
            }
        }
        let Ok(Some(accepted)) = reader.accept() else {
            return Err(self.fail(DECODE_ERROR, HandshakeFailure::of("an invalid TLS message")));
        };
        let config = &self.config;
        let hello = accepted.client_hello();
        let admitted = config.acceptor.admit_quic(&hello, config.local, config.client, config.listener_key);
        let (tls, policy) = match admitted {
            Ok(admitted) => admitted,
            Err(not) => {
                let (alert, failure) = not_admitted(not, hello.server_name());
                return Err(self.fail(alert, failure));
            }
        };
        let made = quic::ServerConnection::new(tls, Version::V1, std::mem::take(&mut self.parameters));
        let Ok(mut tls) = made else {
            return Err(self.fail(INTERNAL_ERROR, HandshakeFailure::of("the TLS handshake failed")));
        };
        let SessionState::Hello(hello) = &self.state else { return Ok(()) };
        let read = tls.read_hs(hello);
        self.state = SessionState::Running { tls: Box::new(tls), policy, next: None, is_reported: false };
        read.map_err(|error| self.refused(&error))
    }

    fn refused(&self, error: &rustls::Error) -> TransportError {
        let SessionState::Running { tls, .. } = &self.state else {
            return self.fail(INTERNAL_ERROR, HandshakeFailure::of("the TLS handshake failed"));
        };
        let alert = tls.alert().map_or(INTERNAL_ERROR, u8::from);
        self.fail(alert, HandshakeFailure::of_error(error, tls.server_name()))
    }

    fn fail(&self, alert: u8, failure: HandshakeFailure) -> TransportError {
        let error = TransportError {
            code: TransportErrorCode::crypto(alert),
            frame: None,
            reason: failure.reason.to_owned(),
        };
        self.config.outcome.set(Err(failure));
        error
    }
}

/// Returns the size of the first handshake message, once its header has arrived.
fn hello_bytes(bytes: &[u8]) -> Option<usize> {
    let header = bytes.first_chunk::<4>()?;
    Some(4 + (u32::from_be_bytes(*header) & 0x00ff_ffff) as usize)
}

impl Session for HandshakeSession {
    fn initial_keys(&self, client: &ConnectionId, _: Side) -> Keys {
        self.config.base.initial_keys(QUIC_VERSION, client).expect("the endpoint supports this version alone")
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        // Session tickets permit no early data.
        None
    }

    fn early_data_accepted(&self) -> Option<bool> {
        None
    }

    fn is_handshaking(&self) -> bool {
        match &self.state {
            SessionState::Hello(_) => true,
            SessionState::Running { tls, .. } => tls.is_handshaking(),
            SessionState::Finished(_) => false,
        }
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        match &mut self.state {
            SessionState::Hello(hello) => {
                hello.extend_from_slice(bytes);
                self.begin()?;
            }
            SessionState::Running { tls, .. } => {
                let read = tls.read_hs(bytes);
                read.map_err(|error| self.refused(&error))?;
            }
            // No message of a client is permitted after its handshake (RFC 9001 sections 4.4 and 6).
            SessionState::Finished(_) => {
                return Err(self.fail(UNEXPECTED_MESSAGE, HandshakeFailure::of("an invalid TLS message")));
            }
        }
        let SessionState::Running { tls, policy, is_reported, .. } = &mut self.state else {
            return Ok(false);
        };
        if tls.is_handshaking() || *is_reported {
            return Ok(false);
        }
        *is_reported = true;
        let session = TlsSession::of(tls, tls.server_name(), *policy);
        self.config.outcome.set(session);
        Ok(true)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let SessionState::Running { tls, .. } = &self.state else { return Ok(None) };
        let Some(bytes) = tls.quic_transport_parameters() else { return Ok(None) };
        Ok(Some(TransportParameters::read(Side::Server, &mut Cursor::new(bytes))?))
    }

    fn write_handshake(&mut self, out: &mut Vec<u8>) -> Option<Keys> {
        let SessionState::Running { tls, next, is_reported, .. } = &mut self.state else { return None };
        let before = out.len();
        let change = tls.write_hs(out);
        if change.is_none() && out.len() == before && *is_reported {
            self.state = SessionState::Finished(next.take());
            return None;
        }
        Some(changed_keys(change?, next))
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        match &mut self.state {
            SessionState::Running { next, .. } | SessionState::Finished(next) => next_keys(next),
            SessionState::Hello(_) => None,
        }
    }

    fn is_valid_retry(&self, _: &ConnectionId, _: &[u8], _: &[u8]) -> bool {
        // Only clients receive Retry packets.
        false
    }

    fn export_keying_material(
        &self,
        _: &mut [u8],
        _: &[u8],
        _: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        // Nothing here is bound to the secrets of a connection.
        Err(ExportKeyingMaterialError)
    }
}
