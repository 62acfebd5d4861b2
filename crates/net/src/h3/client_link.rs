//! A QUIC connection to a server and its socket.

use std::cell::RefCell;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, EcnCodepoint, Endpoint, EndpointConfig, Event,
    Transmit, TransportConfig, VarInt,
};
use quinn_udp::RecvMeta;
use times::{Millis, Moment};

use super::acknowledgements::{Acknowledgements, CountingFactory};
use super::client_handshake::{ClientHandshake, ClientOutcome};
use super::connection::SEND_WINDOW_BYTES;
use super::receiving::fault;
use super::tls_session;
use super::transport::{
    QuicClock, RECEIVE_BUFFERS, SEGMENTS_MAX, TURN_BYTES_MAX, UNIDIRECTIONAL_STREAMS_MAX, for_each_packet,
};
use crate::core::Core;
use crate::datagram_socket::{PortUse, ReceiveBuffers, UdpFeatures, bind_socket};
use crate::fault::Fault;
use crate::source::{READ, Source, WRITE};
use crate::tls::{TlsAgreement, TlsClient};
use crate::wait::{self, Interest};

/// Interval of packets that keep a connection open whose requests wait.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Time for which a server that has answered before must refuse packets until it counts as gone.
const REFUSED_MIN: Millis = Millis(500);
/// Time without packets after which a connection has ended.
const SILENCE_MAX: Duration = Duration::from_secs(30);

thread_local! {
    /// Buffers for packets that are received, and for those that are sent.
    static BUFFERS: RefCell<(ReceiveBuffers<RECEIVE_BUFFERS>, Vec<u8>)> =
        RefCell::new((ReceiveBuffers::new(), Vec::new()));
}

/// Windows of a connection, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceiveWindows {
    pub(crate) stream: u32,
    pub(crate) connection: u32,
}

/// The socket of a connection, and its place at its endpoint.
pub(super) struct ClientLink {
    core: Core,
    socket: OwnedFd,
    features: UdpFeatures,
    source: Rc<Source>,
    endpoint: Endpoint,
    handle: ConnectionHandle,
    /// Packets for which the socket had no room.
    unsent: Option<(Transmit, Vec<u8>)>,
    clock: QuicClock,
    received_bytes: u64,
    sent_bytes: u64,
    /// Whether no packet was received yet, so that an error of the network ends the connection.
    is_unanswered: bool,
    /// The error that ends the connection, if sending has found it.
    failure: Option<io::Error>,
    /// Time since which the network reports that nobody listens, and nothing was received.
    refused_since: Option<Moment>,
}

impl ClientLink {
    /// Connects and performs the handshake.
    ///
    /// # Errors
    /// [`Fault::Timeout`]; [`Fault::Io`] if the server's port is closed; [`Fault::Failed`] for an invalid certificate
    /// or answer.
    pub(super) async fn connect(
        core: &Core,
        address: SocketAddr,
        tls: &TlsClient,
        windows: ReceiveWindows,
        acknowledgements: &Arc<Acknowledgements>,
        deadline: Moment,
    ) -> Result<(ClientLink, Connection, TlsAgreement), Fault> {
        let Some(initial) = tls_session::initial_keys() else {
            return Err(Fault::Failed("no TLS session could be made"));
        };
        let outcome = Arc::<ClientOutcome>::default();
        let handshake = ClientHandshake { tls: tls.clone(), initial, outcome: outcome.clone() };
        let mut config = ClientConfig::new(Arc::new(handshake));
        config.transport_config(Arc::new(transport(windows, acknowledgements)));
        let any = match address {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        };
        let socket = bind_socket(any, true, PortUse::Exclusive)?;
        // The kernel drops what others send, and reports a closed port.
        rustix::net::connect(&socket, &address).map_err(io::Error::from)?;
        let features = UdpFeatures::enable(&socket)?;
        let discovers_mtu = !features.may_fragment();
        let mut endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), None, discovers_mtu, None);
        let clock = QuicClock::new(core);
        let begun = endpoint.connect(clock.now(), config, address, "server");
        let (handle, mut quic) = begun.map_err(|_| Fault::Failed("no QUIC connection could be made"))?;
        let source = core.register_receiver(&socket)?;
        let mut link = ClientLink {
            core: core.clone(),
            socket,
            features,
            source,
            endpoint,
            handle,
            unsent: None,
            clock,
            received_bytes: 0,
            sent_bytes: 0,
            is_unanswered: true,
            failure: None,
            refused_since: None,
        };
        link.shake_hands(&mut quic, deadline).await.map_err(|fault| match (fault, outcome.get()) {
            (Fault::Timeout, _) => Fault::Timeout,
            (_, Some(Err(reason))) => Fault::Failed(reason),
            (fault, _) => fault,
        })?;
        match outcome.get() {
            Some(Ok(agreement)) => Ok((link, quic, agreement)),
            _ => Err(Fault::Failed("TLS failed")),
        }
    }

    async fn shake_hands(&mut self, quic: &mut Connection, deadline: Moment) -> Result<(), Fault> {
        loop {
            let received = self.receive(quic);
            let mut is_connected = false;
            while let Some(event) = quic.poll() {
                match event {
                    Event::Connected => {
                        is_connected = true;
                        break;
                    }
                    Event::ConnectionLost { reason } => {
                        self.send(quic);
                        return Err(handshake_fault(&reason));
                    }
                    _ => {}
                }
            }
            self.send(quic);
            received?;
            if is_connected {
                return Ok(());
            }
            if self.core.now() >= deadline {
                quic.close(self.now(), VarInt::from_u32(0), Bytes::new());
                self.send(quic);
                return Err(Fault::Timeout);
            }
            self.wait(quic.poll_timeout(), None, deadline).await;
        }
    }

    /// Returns the time of this turn.
    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Returns the total size of received and sent packets, in bytes.
    pub(super) fn packet_bytes(&self) -> (u64, u64) {
        (self.received_bytes, self.sent_bytes)
    }

    /// Receives packets until the socket is empty, and passes due timers. Returns false if the socket may hold more.
    ///
    /// # Errors
    /// The network reports that the server does not listen.
    pub(super) fn receive(&mut self, quic: &mut Connection) -> Result<bool, Fault> {
        let received =
            BUFFERS.with_borrow_mut(|(receiving, sending)| self.receive_packets(quic, receiving, sending));
        let now = self.now();
        if quic.poll_timeout().is_some_and(|at| at <= now) {
            quic.handle_timeout(now);
        }
        self.failure.take().map_or(received, |error| Err(error.into()))
    }

    fn receive_packets(
        &mut self,
        quic: &mut Connection,
        buffers: &mut ReceiveBuffers<RECEIVE_BUFFERS>,
        out: &mut Vec<u8>,
    ) -> Result<bool, Fault> {
        if self.source.ready() & READ == 0 {
            return Ok(true);
        }
        let mut received_bytes = 0;
        while received_bytes < TURN_BYTES_MAX {
            let mut metas = [RecvMeta::default(); RECEIVE_BUFFERS];
            let count = match buffers.receive(&self.socket, &self.features, &mut metas) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.source.clear(READ);
                    return Ok(true);
                }
                Err(error) if self.is_lost(&error) => return Err(error.into()),
                Err(_) => continue,
            };
            self.is_unanswered = false;
            self.refused_since = None;
            for (at, meta) in metas[..count].iter().enumerate() {
                received_bytes += meta.len;
                for_each_packet(buffers.bytes(at, meta.len), meta.stride, |packet| {
                    self.handle_packet(quic, meta, packet, out);
                });
            }
            // The kernel found no more, and reports each packet that arrives later.
            if count < RECEIVE_BUFFERS {
                self.source.clear(READ);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether an error of the network means that the server is gone. A single one could have been sent by anybody, so
    /// once the server has answered it must stay silent for a while too.
    fn is_lost(&mut self, error: &io::Error) -> bool {
        let is_refused = error.kind() == io::ErrorKind::ConnectionRefused;
        let now = self.core.now();
        let since = *self.refused_since.get_or_insert(now);
        self.is_unanswered || is_refused && now >= since + REFUSED_MIN
    }

    fn handle_packet(&mut self, quic: &mut Connection, meta: &RecvMeta, packet: BytesMut, out: &mut Vec<u8>) {
        self.received_bytes += packet.len() as u64;
        let ecn = meta.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8));
        out.clear();
        match self.endpoint.handle(self.now(), meta.addr, None, ecn, packet, out) {
            Some(DatagramEvent::ConnectionEvent(_, event)) => quic.handle_event(event),
            Some(DatagramEvent::Response(transmit)) => {
                // A packet for which there is no room counts as lost.
                let _ = self.features.send_packets(&self.socket, &transmit, &out[..transmit.size]);
            }
            Some(DatagramEvent::NewConnection(incoming)) => self.endpoint.ignore(incoming),
            None => {}
        }
    }

    /// Whether packets wait for room in the socket.
    pub(super) fn is_blocked(&self) -> bool {
        self.unsent.is_some()
    }

    /// Sends what the connection permits. Returns the number of bytes sent.
    pub(super) fn send(&mut self, quic: &mut Connection) -> usize {
        while let Some(event) = quic.poll_endpoint_events() {
            if let Some(answer) = self.endpoint.handle_event(self.handle, event) {
                quic.handle_event(answer);
            }
        }
        let sent = BUFFERS.with_borrow_mut(|(_, buffer)| self.send_packets(quic, buffer));
        self.sent_bytes += sent as u64;
        sent
    }

    fn send_packets(&mut self, quic: &mut Connection, buffer: &mut Vec<u8>) -> usize {
        if let Some((transmit, bytes)) = self.unsent.take() {
            if !self.send_or_drop(&transmit, &bytes) {
                self.unsent = Some((transmit, bytes));
                return 0;
            }
            self.core.watch_room(&self.socket, &self.source, false);
        }
        let now = self.now();
        let segments_max = self.features.segments_max().min(SEGMENTS_MAX);
        let mut sent = 0;
        while sent < TURN_BYTES_MAX {
            buffer.clear();
            let Some(transmit) = quic.poll_transmit(now, segments_max, buffer) else { break };
            if !self.send_or_drop(&transmit, &buffer[..transmit.size]) {
                self.unsent = Some((transmit, buffer.clone()));
                break;
            }
            sent += transmit.size;
        }
        sent
    }

    /// Sends packets. Returns false if the socket has no room.
    fn send_or_drop(&mut self, transmit: &Transmit, bytes: &[u8]) -> bool {
        match self.features.send_packets(&self.socket, transmit, bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.source.clear(WRITE);
                self.core.watch_room(&self.socket, &self.source, true);
                return false;
            }
            // The packets count as lost.
            Err(error) if self.is_lost(&error) => self.failure = Some(error),
            _ => {}
        }
        true
    }

    /// Waits for packets, for room in the socket if packets wait for it, for the connection's timer, for `other`,
    /// and at most until `deadline`.
    pub(super) async fn wait(&self, timer: Option<Instant>, other: Option<&Source>, deadline: Moment) {
        let timer = timer.map_or(Moment::NEVER, |at| self.clock.moment(at));
        let until = timer.min(deadline);
        let own = (&*self.source, Interest::of(true, self.is_blocked()));
        // Whoever waits looks at everything afterwards.
        let _ = match other {
            Some(other) => {
                let sources = [own, (other, Interest::READ)];
                wait::any_ready(&self.core, sources, until, || false).await
            }
            None => wait::any_ready(&self.core, [own], until, || false).await,
        };
    }
}

impl Drop for ClientLink {
    fn drop(&mut self) {
        self.core.unwatch(&self.socket);
        self.core.deregister(&self.source);
    }
}

fn transport(windows: ReceiveWindows, acknowledgements: &Arc<Acknowledgements>) -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport
        // A server opens no request streams (RFC 9114 section 6.1).
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_concurrent_uni_streams(VarInt::from_u32(UNIDIRECTIONAL_STREAMS_MAX))
        .stream_receive_window(VarInt::from_u32(windows.stream))
        .receive_window(VarInt::from_u32(windows.connection))
        .send_window(SEND_WINDOW_BYTES)
        .datagram_receive_buffer_size(None)
        .keep_alive_interval(Some(KEEP_ALIVE_INTERVAL))
        .max_idle_timeout(SILENCE_MAX.try_into().ok())
        .congestion_controller_factory(Arc::new(CountingFactory(acknowledgements.clone())));
    transport
}

/// Returns the fault of a connection that was lost before its handshake was complete.
fn handshake_fault(reason: &quinn_proto::ConnectionError) -> Fault {
    use quinn_proto::ConnectionError;
    match reason {
        ConnectionError::VersionMismatch => Fault::Failed("the server does not speak QUIC version 1"),
        ConnectionError::ConnectionClosed(close)
            if close.error_code == quinn_proto::TransportErrorCode::CONNECTION_REFUSED =>
        {
            Fault::Failed("the server refused the QUIC connection")
        }
        ConnectionError::ConnectionClosed(_) => Fault::Failed("the server refused the TLS handshake"),
        reason => fault(reason),
    }
}
