//! TLS of a connection to a server.

use std::any::Any;
use std::io::Cursor;
use std::sync::{Arc, Mutex, PoisonError};

use quinn_proto::crypto::rustls::QuicServerConfig;
use quinn_proto::crypto::{
    ClientConfig, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, ServerConfig, Session,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectError, ConnectionId, Side, TransportError, TransportErrorCode};
use rustls::quic::{ClientConnection, Secrets, Version};

use super::tls_session::{self, QUIC_VERSION};
use crate::tls::{TlsAgreement, TlsClient, describe_error};

/// Size of the tag of a Retry packet (RFC 9001 section 5.8).
const RETRY_TAG_BYTES: usize = 16;
/// Alert of a fault of this side (RFC 8446 section 6).
const INTERNAL_ERROR: u8 = 80;

/// Outcome of a handshake: the agreement, or the reason of the failure. Shared by the client and the session inside
/// the QUIC connection.
#[derive(Default)]
pub(super) struct ClientOutcome(Mutex<Option<Result<TlsAgreement, &'static str>>>);

impl ClientOutcome {
    fn set(&self, outcome: Result<TlsAgreement, &'static str>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(outcome);
    }

    /// Returns the outcome; `None` if the handshake is incomplete.
    pub(super) fn get(&self) -> Option<Result<TlsAgreement, &'static str>> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Settings of one handshake.
pub(super) struct ClientHandshake {
    pub(super) tls: TlsClient,
    pub(super) initial: Arc<QuicServerConfig>,
    pub(super) outcome: Arc<ClientOutcome>,
}

impl ClientConfig for ClientHandshake {
    fn start_session(
        self: Arc<Self>,
        _: u32,
        _: &str,
        parameters: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        let mut own = Vec::new();
        parameters.write(&mut own);
        let (config, name) = self.tls.quic();
        let tls = ClientConnection::new(config, Version::V1, name, own)
            .map_err(|_| ConnectError::EndpointStopping)?;
        Ok(Box::new(ClientSession { tls, next: None, is_reported: false, handshake: self }))
    }
}

/// The client side of a handshake, and of the session afterwards.
struct ClientSession {
    tls: ClientConnection,
    next: Option<Secrets>,
    is_reported: bool,
    handshake: Arc<ClientHandshake>,
}

impl Session for ClientSession {
    fn initial_keys(&self, server: &ConnectionId, _: Side) -> Keys {
        let keys = self.handshake.initial.initial_keys(QUIC_VERSION, server);
        let keys = keys.expect("the client supports this version alone");
        // These are the server's.
        Keys {
            header: KeyPair { local: keys.header.remote, remote: keys.header.local },
            packet: KeyPair { local: keys.packet.remote, remote: keys.packet.local },
        }
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        // Requests in early data could be replayed.
        None
    }

    fn early_data_accepted(&self) -> Option<bool> {
        None
    }

    fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        if let Err(error) = self.tls.read_hs(bytes) {
            let reason = describe_error(&error);
            self.handshake.outcome.set(Err(reason));
            let alert = self.tls.alert().map_or(INTERNAL_ERROR, u8::from);
            let code = TransportErrorCode::crypto(alert);
            return Err(TransportError { code, frame: None, reason: reason.to_owned() });
        }
        if self.tls.is_handshaking() || std::mem::replace(&mut self.is_reported, true) {
            return Ok(false);
        }
        self.handshake.outcome.set(Ok(TlsAgreement::of(&self.tls)));
        Ok(true)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let Some(bytes) = self.tls.quic_transport_parameters() else { return Ok(None) };
        Ok(Some(TransportParameters::read(Side::Client, &mut Cursor::new(bytes))?))
    }

    fn write_handshake(&mut self, out: &mut Vec<u8>) -> Option<Keys> {
        let change = self.tls.write_hs(out)?;
        Some(tls_session::changed_keys(change, &mut self.next))
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        tls_session::next_keys(&mut self.next)
    }

    fn is_valid_retry(&self, original: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        let Some(content_bytes) = payload.len().checked_sub(RETRY_TAG_BYTES) else { return false };
        let (content, tag) = payload.split_at(content_bytes);
        let packet = [header, content].concat();
        self.handshake.initial.retry_tag(QUIC_VERSION, original, &packet) == tag
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
