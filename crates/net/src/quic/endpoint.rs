//! The endpoint of one socket: receives packets, admits connections, and distributes events to them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use quinn_proto::crypto::rustls::QuicServerConfig;
use quinn_proto::{
    Connection, ConnectionError, ConnectionEvent, ConnectionHandle, Endpoint, EndpointConfig, EndpointEvent,
    Incoming, MtuDiscoveryConfig, ServerConfig, Transmit, TransportConfig, ValidationTokenConfig, VarInt,
};
use times::{Millis, Moment};

use super::handshake::{HandshakeConfig, HandshakeOutcome};
use super::identifiers::IdentifierGenerator;
use super::inbox::ConnectionInbox;
use super::keys::EndpointKeys;
use super::outbox::Outbox;
use super::succession;
use super::timers::ConnectionTimers;
use super::tokens::{TokenKeys, UsedTokens};
use super::udp_socket::QuicUdpSocket;
use super::unsolicited::{LimitedKeys, UnsolicitedBudget};
use crate::core::Core;
use crate::h3::{
    Acknowledgements, CountingFactory, QUIC_VERSION, QuicClock, REQUESTS_FIRST, REQUESTS_MAX, SEGMENTS_MAX,
    SEND_WINDOW_BYTES, UNIDIRECTIONAL_STREAMS_MAX, initial_keys,
};
use crate::permit::ServingContext;
use crate::source::{READ, Source, WRITE};
use crate::tls::TlsAcceptor;
use crate::turn_hook::TurnHook;

/// Handshakes in progress from which each new one ends the oldest.
pub(super) const HANDSHAKES_MAX: usize = 1024;
/// Handshakes from which new connections are ignored, because those to be ended have not had their turn.
pub(super) const HANDSHAKES_ENDING_MAX: usize = HANDSHAKES_MAX + 256;
/// Packets of a new connection that are kept until its handshake begins, in bytes: of each, and of all.
const INCOMING_BYTES_MAX: u64 = 16 * 1024;
const INCOMING_BYTES_TOTAL_MAX: u64 = 2 * 1024 * 1024;
/// Unread data of a stream, and of a connection, in bytes.
const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
pub(super) const RECEIVE_WINDOW_BYTES: u32 = 1536 * 1024;
/// Handshake data out of order that a client may make this server keep, in bytes.
const CRYPTO_BYTES_MAX: usize = 16 * 1024;
/// Time without packets after which a connection ends, if its streams wait for long.
const SILENCE_MIN: Millis = Millis(30_000);
/// Tokens sent to a client for its next connections.
const TOKENS_PER_CONNECTION: u32 = 2;
const TOKEN_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// A socket for QUIC, as a core receives it.
#[derive(Clone, Debug)]
pub(crate) struct QuicSocket {
    pub(crate) socket: Arc<QuicUdpSocket>,
    /// Index of the socket among those of its address.
    pub(crate) index: u8,
    /// Number and key of the listener that the socket belongs to.
    pub(crate) listener: (u64, u64),
}

/// The endpoint of a socket, as its listener knows it.
#[derive(Clone)]
pub(crate) struct OpenEndpoint(pub(super) Rc<EndpointControl>);

/// Commands and settings of an endpoint, which change while it serves connections.
pub(super) struct EndpointControl {
    pub(super) context: Rc<ServingContext>,
    /// The task of the endpoint keeps it open.
    pub(super) socket: Weak<QuicUdpSocket>,
    /// Number and key of the listener of new connections.
    pub(super) listener: Cell<(u64, u64)>,
    pub(super) is_closing: Cell<bool>,
    pub(super) has_ended: Cell<bool>,
    /// Whether this process receives the packets of the socket. Not before it has taken over from the process that
    /// has passed the socket on, and not after a successor has taken over.
    pub(super) receives: Cell<bool>,
    /// Wakes the endpoint's task.
    pub(super) source: Rc<Source>,
}

impl OpenEndpoint {
    pub(crate) fn new(context: &Rc<ServingContext>, quic_socket: &QuicSocket) -> OpenEndpoint {
        let core = &context.core;
        context.http3_listeners.borrow_mut().push(quic_socket.listener.1);
        let source = core.add_source();
        source.clear(READ | WRITE);
        OpenEndpoint(Rc::new(EndpointControl {
            context: context.clone(),
            socket: Arc::downgrade(&quic_socket.socket),
            listener: Cell::new(quic_socket.listener),
            is_closing: Cell::new(false),
            has_ended: Cell::new(false),
            receives: Cell::new(quic_socket.socket.has_taken_over()),
            source,
        }))
    }

    /// Whether the endpoint serves the socket, and has not ended.
    pub(crate) fn serves(&self, socket: &Arc<QuicUdpSocket>) -> bool {
        self.0.socket.as_ptr() == Arc::as_ptr(socket)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.0.has_ended.get()
    }

    /// Changes the listener of new connections, and accepts them again.
    pub(crate) fn reopen(&self, listener: (u64, u64)) {
        self.0.announce(false);
        self.0.listener.set(listener);
        self.0.announce(true);
        self.0.is_closing.set(false);
    }

    /// Receives the packets of the socket from now on.
    pub(crate) fn receive(&self) {
        self.0.receives.set(true);
        self.wake();
    }

    /// Stops accepting new connections, if they belong to this listener.
    pub(crate) fn close(&self, listener: u64) {
        if self.0.listener.get().0 == listener {
            self.0.announce(false);
            self.0.is_closing.set(true);
            self.wake();
        }
    }

    /// Lets the endpoint's task check whether it has ended.
    pub(crate) fn wake(&self) {
        self.0.context.core.set_ready(&self.0.source, READ);
    }
}

impl EndpointControl {
    /// Lets responses of the listener name HTTP/3, or no longer.
    fn announce(&self, serves: bool) {
        let key = self.listener.get().1;
        let mut keys = self.context.http3_listeners.borrow_mut();
        match serves {
            true => keys.push(key),
            false => {
                let at = keys.iter().position(|other| *other == key);
                at.into_iter().for_each(|at| _ = keys.swap_remove(at));
            }
        }
    }
}

impl Drop for EndpointControl {
    fn drop(&mut self) {
        self.context.core.deregister(&self.source);
    }
}

/// The endpoint of one socket.
pub(super) struct QuicEndpoint {
    pub(super) core: Core,
    pub(super) socket: Arc<QuicUdpSocket>,
    pub(super) source: Rc<Source>,
    pub(super) quic: RefCell<Endpoint>,
    pub(super) base: Arc<QuicServerConfig>,
    /// Settings of new connections without their transport and TLS.
    pub(super) server: Arc<ServerConfig>,
    pub(super) acceptor: TlsAcceptor,
    pub(super) open: OpenEndpoint,
    pub(super) links: RefCell<Vec<Option<Rc<ConnectionInbox>>>>,
    pub(super) timers: ConnectionTimers,
    pub(super) outbox: Rc<Outbox>,
    /// Connections that wait for room in the socket.
    pub(super) blocked: RefCell<Vec<Rc<ConnectionInbox>>>,
    /// Handshakes in progress, by their order.
    pub(super) handshakes: RefCell<BTreeMap<u64, Rc<ConnectionInbox>>>,
    pub(super) next_handshake: Cell<u64>,
    /// Number of this process among those that have passed the socket on.
    pub(super) generation: u8,
    pub(super) identifiers: IdentifierGenerator,
    pub(super) unsolicited: Arc<UnsolicitedBudget>,
    /// Readable when a successor has sent something.
    pub(super) channel: Rc<Source>,
    /// Tells when the process that has passed the socket on has ended.
    pub(super) predecessor: Option<Rc<Source>>,
    pub(super) buffer: Cell<Vec<u8>>,
    clock: QuicClock,
}

impl QuicEndpoint {
    /// Creates the endpoint; `None` if the TLS library lacks the keys of QUIC.
    pub(super) fn new(
        context: &Rc<ServingContext>,
        quic_socket: &QuicSocket,
        open: OpenEndpoint,
    ) -> io::Result<Option<Rc<QuicEndpoint>>> {
        let Some(acceptor) = context.tls.clone() else { return Ok(None) };
        let Some(base) = initial_keys() else { return Ok(None) };
        let core = context.core.clone();
        let source = core.register_receiver(quic_socket.socket.fd())?;
        let channel = core.register(quic_socket.socket.successor())?;
        let predecessor = quic_socket.socket.predecessor();
        let predecessor_end = predecessor.map(|channel| core.register(channel)).transpose()?;
        let before = predecessor.and_then(succession::read_announcement);
        let generation = before.as_ref().map_or(0, |(generation, _)| generation.wrapping_add(1));
        let secret = acceptor.endpoint_secret(before.map(|(_, secret)| secret));
        succession::announce(quic_socket.socket.successor(), generation, &secret);
        let keys = EndpointKeys::new(&secret);
        let mut config = EndpointConfig::new(keys.reset.clone());
        let identifiers =
            IdentifierGenerator { core: quic_socket.index, generation, key: keys.identifiers.clone() };
        config.supported_versions(vec![QUIC_VERSION]);
        let own = identifiers.clone();
        config.cid_generator(move || Box::new(own.clone()));
        let theirs = acceptor.clone();
        let token_keys =
            Arc::new(TokenKeys { own: keys.tokens, tickets: Box::new(move || theirs.ticket_keys()) });
        let unsolicited = Arc::new(UnsolicitedBudget::new(token_keys.clone()));
        let limited_keys = LimitedKeys { base: base.clone(), budget: unsolicited.clone() };
        let mut server = ServerConfig::new(Arc::new(limited_keys), token_keys);
        let mut tokens = ValidationTokenConfig::default();
        tokens.log(Arc::new(UsedTokens::default())).sent(TOKENS_PER_CONNECTION).lifetime(TOKEN_LIFETIME);
        server.validation_token_config(tokens);
        server.max_incoming(HANDSHAKES_ENDING_MAX);
        server.incoming_buffer_size(INCOMING_BYTES_MAX).incoming_buffer_size_total(INCOMING_BYTES_TOTAL_MAX);
        let discovers_mtu = !quic_socket.socket.may_fragment();
        let server = Arc::new(server);
        let quic = Endpoint::new(Arc::new(config), Some(server.clone()), discovers_mtu, None);
        let outbox = Rc::new(Outbox::new(&core, quic_socket.socket.clone(), source.clone()));
        let hook: Rc<dyn TurnHook> = outbox.clone();
        core.add_turn_hook(&hook);
        Ok(Some(Rc::new(QuicEndpoint {
            outbox,
            timers: ConnectionTimers::new(&core, source.clone()),
            clock: QuicClock::new(&core),
            core,
            socket: quic_socket.socket.clone(),
            source,
            quic: RefCell::new(quic),
            base,
            server,
            acceptor,
            open,
            links: RefCell::default(),
            blocked: RefCell::default(),
            handshakes: RefCell::default(),
            next_handshake: Cell::new(0),
            generation,
            identifiers,
            unsolicited,
            channel,
            predecessor: predecessor_end,
            buffer: Cell::default(),
        })))
    }

    // ---- used by connections ----

    pub(super) fn core(&self) -> &Core {
        &self.core
    }

    pub(super) fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    pub(super) fn timers(&self) -> &ConnectionTimers {
        &self.timers
    }

    pub(super) fn segments_max(&self) -> usize {
        self.socket.segments_max().min(SEGMENTS_MAX)
    }

    /// Returns the time of this turn.
    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(super) fn clock(&self) -> &QuicClock {
        &self.clock
    }

    /// Lends the buffer for packets to be sent.
    pub(super) fn take_buffer(&self) -> Vec<u8> {
        self.buffer.take()
    }

    pub(super) fn return_buffer(&self, buffer: Vec<u8>) {
        self.buffer.set(buffer);
    }

    /// Wakes a connection's task when the socket has room.
    pub(super) fn wait_for_room(&self, link: &Rc<ConnectionInbox>) {
        self.blocked.borrow_mut().push(link.clone());
    }

    /// Sends a packet at the beginning of `out` that belongs to no connection.
    pub(super) fn respond(&self, transmit: &Transmit, out: &[u8]) {
        // A packet for which there is no room counts as lost.
        let _ = self.socket.send(transmit, &out[..transmit.size]);
    }

    /// Wakes a connection's task.
    pub(super) fn wake(&self, link: &ConnectionInbox) {
        self.core.set_ready(&link.source, READ);
    }

    pub(super) fn handle_event(
        &self,
        handle: ConnectionHandle,
        event: EndpointEvent,
    ) -> Option<ConnectionEvent> {
        self.quic.borrow_mut().handle_event(handle, event)
    }

    pub(super) fn remove(&self, handle: ConnectionHandle, link: &Rc<ConnectionInbox>) {
        if let Some(slot) = self.links.borrow_mut().get_mut(handle.0)
            && slot.take_if(|other| Rc::ptr_eq(other, link)).is_some()
        {
            self.timers.remove(handle.0, &link.timer);
        }
        self.open.wake();
    }

    /// Begins a connection, whose events go to `inbox`.
    pub(super) fn accept(
        &self,
        inbox: &Rc<ConnectionInbox>,
        incoming: Incoming,
        config: Arc<ServerConfig>,
    ) -> Result<(ConnectionHandle, Connection), ConnectionError> {
        let mut out = self.take_buffer();
        out.clear();
        let accepted = self.quic.borrow_mut().accept(incoming, self.now(), &mut out, Some(config));
        let accepted = match accepted {
            Ok((handle, quic)) => {
                let mut links = self.links.borrow_mut();
                if links.len() <= handle.0 {
                    links.resize(handle.0 + 1, None);
                }
                links[handle.0] = Some(inbox.clone());
                Ok((handle, quic))
            }
            Err(error) => {
                if let Some(transmit) = error.response {
                    self.respond(&transmit, &out);
                }
                Err(error.cause)
            }
        };
        self.return_buffer(out);
        accepted
    }

    /// Maximum number of requests of a client at once.
    pub(super) fn requests_max(context: &ServingContext) -> u32 {
        context.limits.get().streams_max.min(REQUESTS_MAX) as u32
    }

    /// Settings of a connection that begins.
    pub(super) fn connection_config(
        &self,
        context: &ServingContext,
        incoming: &Incoming,
        outcome: &Arc<HandshakeOutcome>,
        acknowledgements: &Arc<Acknowledgements>,
    ) -> Arc<ServerConfig> {
        let mut transport = TransportConfig::default();
        let requests = QuicEndpoint::requests_max(context).min(REQUESTS_FIRST as u32);
        transport
            .max_concurrent_bidi_streams(VarInt::from_u32(requests))
            .max_concurrent_uni_streams(VarInt::from_u32(UNIDIRECTIONAL_STREAMS_MAX))
            .stream_receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES))
            .receive_window(VarInt::from_u32(RECEIVE_WINDOW_BYTES))
            .send_window(SEND_WINDOW_BYTES)
            .crypto_buffer_size(CRYPTO_BYTES_MAX)
            .datagram_receive_buffer_size(None)
            .mtu_discovery_config(Some(MtuDiscoveryConfig::default()))
            .congestion_controller_factory(Arc::new(CountingFactory(acknowledgements.clone())));
        let silence = context.timeouts.get().idle.max(SILENCE_MIN);
        if let Ok(silence) = Duration::from_millis(silence.0).try_into() {
            transport.max_idle_timeout(Some(silence));
        }
        let crypto = HandshakeConfig {
            acceptor: self.acceptor.clone(),
            base: self.base.clone(),
            client: incoming.remote_address().ip(),
            listener_key: self.open.0.listener.get().1,
            local: incoming.local_ip(),
            outcome: outcome.clone(),
        };
        let mut config = (*self.server).clone();
        config.transport = Arc::new(transport);
        config.crypto = Arc::new(crypto);
        Arc::new(config)
    }

    /// Address of this server for a connection, with the local address of its first packet.
    pub(super) fn local_address(&self, local: Option<IpAddr>) -> SocketAddr {
        let bound = self.socket.address();
        SocketAddr::new(local.unwrap_or_else(|| bound.ip()), bound.port())
    }

    /// Sends what waits for room in the socket. Wakes the connections whose timers are due, and those that wait for room
    /// if there is some.
    pub(super) fn wake_connections(&self) {
        self.outbox.flush();
        while let Some(number) = self.timers.take_due() {
            let link = self.links.borrow().get(number).cloned().flatten();
            if let Some(link) = link {
                link.timer.set(Moment::NEVER);
                self.wake(&link);
            }
        }
        self.timers.arm();
        if !self.outbox.is_blocked() {
            self.blocked.take().iter().for_each(|link| self.wake(link));
        }
    }

    /// Whether no new connections are accepted.
    pub(super) fn is_closing(&self, context: &ServingContext) -> bool {
        context.is_draining.get() || self.open.0.is_closing.get()
    }

    /// Returns the number of connections and handshakes.
    pub(super) fn connections(&self) -> usize {
        self.handshakes.borrow().len() + self.quic.borrow().open_connections()
    }
}

/// A handshake that has been admitted, counted until it ends.
pub(super) struct PendingHandshake {
    pub(super) endpoint: Rc<QuicEndpoint>,
    pub(super) inbox: Rc<ConnectionInbox>,
    number: u64,
}

impl PendingHandshake {
    /// Begins a handshake. Of too many, the oldest ends: a client needs a round trip or two, so those of a flood
    /// are older than those of others.
    pub(super) fn begin(endpoint: Rc<QuicEndpoint>, inbox: Rc<ConnectionInbox>) -> PendingHandshake {
        let number = endpoint.next_handshake.get();
        endpoint.next_handshake.set(number + 1);
        let mut handshakes = endpoint.handshakes.borrow_mut();
        handshakes.insert(number, inbox.clone());
        let extra = handshakes.len().saturating_sub(HANDSHAKES_MAX);
        for oldest in handshakes.values().take(extra).filter(|oldest| !oldest.source.is_aborted()) {
            oldest.source.abort();
            endpoint.wake(oldest);
        }
        drop(handshakes);
        PendingHandshake { endpoint, inbox, number }
    }
}

impl Drop for PendingHandshake {
    fn drop(&mut self) {
        self.endpoint.handshakes.borrow_mut().remove(&self.number);
        self.endpoint.open.wake();
    }
}
