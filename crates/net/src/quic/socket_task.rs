//! The task of a socket: receives packets, admits connections, and distributes events to them.

use std::io;
use std::rc::Rc;

use bytes::BytesMut;
use quinn_proto::{DatagramEvent, Incoming};
use quinn_udp::RecvMeta;

use super::connection;
use super::endpoint::{HANDSHAKES_ENDING_MAX, OpenEndpoint, PendingHandshake, QuicEndpoint, QuicSocket};
use super::inbox::ConnectionInbox;
use super::succession::{self, MESSAGE_BYTES_MAX, PacketMeta, SuccessorMessage};
use crate::address::Peer;
use crate::core::Core;
use crate::datagram_socket::ReceiveBuffers;
use crate::h3::{RECEIVE_BUFFERS, TURN_BYTES_MAX, for_each_packet};
use crate::memory::Pressure;
use crate::permit::{ConnectionPermit, TurnedAway};
use crate::service::{Engine, Service};
use crate::source::{GONE, READ};

/// Cost of examining a packet that belongs to no connection against [`TURN_BYTES_MAX`], so that floods leave turns to
/// others.
const UNSOLICITED_WEIGHT_BYTES: usize = 8 * 1024;
/// Handshakes in progress from which clients must prove their addresses first (RFC 9000 section 8.1.2).
const HANDSHAKES_UNPROVEN_MAX: usize = 64;

impl QuicEndpoint {
    /// Receives packets until the socket is empty. Returns false if it may hold more.
    fn receive<S: Service>(
        self: &Rc<QuicEndpoint>,
        engine: &Rc<Engine<S>>,
        buffers: &mut ReceiveBuffers<RECEIVE_BUFFERS>,
    ) -> bool {
        if self.source.ready() & READ == 0 {
            return true;
        }
        let mut received = 0;
        while received < TURN_BYTES_MAX {
            let mut metas = [RecvMeta::default(); RECEIVE_BUFFERS];
            let count = match self.socket.receive(buffers, &mut metas) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.source.clear(READ);
                    return true;
                }
                // An error of an earlier packet, reported by the network.
                Err(_) => continue,
            };
            for (at, meta) in metas[..count].iter().enumerate() {
                received += meta.len;
                let sender = PacketMeta::from(meta);
                for_each_packet(buffers.bytes(at, meta.len), meta.stride, |packet| {
                    if self.is_own(&sender, &packet) {
                        self.handle_packet(engine, &sender, packet);
                    }
                });
            }
            let unsolicited = self.unsolicited.take_counts();
            engine.context.counters.quic_dropped.add(unsolicited.dropped);
            received += unsolicited.examined as usize * UNSOLICITED_WEIGHT_BYTES;
            // The kernel found no more, and reports each packet that arrives later.
            if count < RECEIVE_BUFFERS {
                self.source.clear(READ);
                return true;
            }
        }
        false
    }

    /// Receives what the successor has sent: packets of connections of this process.
    fn receive_from_successor<S: Service>(self: &Rc<QuicEndpoint>, engine: &Rc<Engine<S>>) {
        if self.channel.ready() & READ == 0 {
            return;
        }
        self.channel.clear(READ);
        let mut buffer = vec![0; MESSAGE_BYTES_MAX];
        while let Some((message, len)) = succession::receive(self.socket.successor(), &mut buffer) {
            match message {
                SuccessorMessage::Receiving => self.open.0.receives.set(false),
                SuccessorMessage::Packet(meta, at) => {
                    let packet = BytesMut::from(&buffer[at..len]);
                    if self.is_own(&meta, &packet) {
                        self.handle_packet(engine, &meta, packet);
                    }
                }
            }
        }
    }

    /// Whether the process before this one may still serve connections: only this process can pass their packets on.
    fn passes_on(&self) -> bool {
        self.predecessor.as_ref().is_some_and(|end| end.ready() & GONE == 0)
    }

    /// Whether a packet is for this process. Passes those of connections of the predecessor on; those of a
    /// successor are sent again by their client when that receives.
    fn is_own(&self, meta: &PacketMeta, packet: &[u8]) -> bool {
        let Some(generation) = self.identifiers.generation_of(packet) else { return true };
        let distance = generation.wrapping_sub(self.generation).cast_signed();
        if distance < 0
            && self.passes_on()
            && let Some(channel) = self.socket.predecessor()
        {
            return !succession::pass_on(channel, meta, packet);
        }
        distance <= 0
    }

    fn handle_packet<S: Service>(
        self: &Rc<QuicEndpoint>,
        engine: &Rc<Engine<S>>,
        meta: &PacketMeta,
        packet: BytesMut,
    ) {
        if !self.unsolicited.admits(meta.client, &packet, self.core.now()) {
            return;
        }
        let ecn = meta.ecn.and_then(|ecn| quinn_proto::EcnCodepoint::from_bits(ecn as u8));
        let mut out = self.take_buffer();
        out.clear();
        let len = packet.len();
        let event = self.quic.borrow_mut().handle(self.now(), meta.client, meta.local, ecn, packet, &mut out);
        match event {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                let link = self.links.borrow().get(handle.0).cloned().flatten();
                if let Some(link) = link {
                    link.addresses.count_received(meta.client.ip(), len, self.core.now());
                    link.events.borrow_mut().push_back(event);
                    self.wake(&link);
                }
            }
            Some(DatagramEvent::Response(transmit)) => self.respond(&transmit, &out),
            Some(DatagramEvent::NewConnection(incoming)) => self.admit(engine, incoming, &mut out),
            None => {}
        }
        self.return_buffer(out);
    }

    /// Begins the handshake of a new connection, or asks the client to prove its address, or refuses it.
    fn admit<S: Service>(
        self: &Rc<QuicEndpoint>,
        engine: &Rc<Engine<S>>,
        incoming: Incoming,
        out: &mut Vec<u8>,
    ) {
        let context = &engine.context;
        let limit = &context.connection_limit;
        let mut quic = self.quic.borrow_mut();
        let is_short_of_memory = context.core.memory().pressure() >= Pressure::Critical;
        let handshakes = self.handshakes.borrow().len();
        out.clear();
        if self.is_closing(context) {
            context.counters.quic_refused.add(1);
            return self.respond(&quic.refuse(incoming, out), out);
        }
        if handshakes >= HANDSHAKES_ENDING_MAX || is_short_of_memory {
            context.counters.quic_refused.add(1);
            return quic.ignore(incoming);
        }
        let is_full = limit.taken.get() >= limit.max.get();
        if (handshakes >= HANDSHAKES_UNPROVEN_MAX || is_full)
            && !incoming.remote_address_validated()
            && incoming.may_retry()
        {
            context.counters.quic_retries.add(1);
            if let Ok(transmit) = quic.retry(incoming, out) {
                self.respond(&transmit, out);
            }
            return;
        }
        let peer = Peer::Tcp(incoming.remote_address());
        if is_full && context.core.close_idle(1) == 0 {
            context.counters.quic_refused.add(1);
            let turned_away = limit.turn_away(context.core.now());
            if turned_away == TurnedAway::First {
                self.links.borrow().iter().flatten().for_each(|link| self.wake(link));
            }
            if turned_away != TurnedAway::InVain {
                return quic.ignore(incoming);
            }
            return self.respond(&quic.refuse(incoming, out), out);
        }
        // Only a client whose address is proven counts as one; others do from the end of their handshake.
        let gate = context.gate.as_ref().filter(|_| incoming.remote_address_validated());
        let Ok(gate_permit) = gate.map_or(Ok(None), |gate| gate.0.acquire(peer)) else {
            context.counters.quic_refused.add(1);
            return self.respond(&quic.refuse(incoming, out), out);
        };
        drop(quic);
        context.counters.connections.add(1);
        let inbox = Rc::new(ConnectionInbox::new(&context.core, incoming.remote_address().ip()));
        let mut permit = ConnectionPermit::take(context, inbox.source.clone());
        permit.list(self.open.0.listener.get(), peer);
        permit.keep_gate_permit(gate_permit);
        let pending = PendingHandshake::begin(self.clone(), inbox);
        let engine = engine.clone();
        context.core.spawn(connection::accept(engine, pending, permit, incoming));
    }
}

/// Serves a socket until the server stops or the listener was closed, and its connections have ended.
pub(crate) async fn serve_socket<S: Service>(
    engine: Rc<Engine<S>>,
    quic_socket: QuicSocket,
    open: OpenEndpoint,
) {
    let context = engine.context.clone();
    let core = context.core.clone();
    let ended = EndpointEnd(open.clone());
    let Ok(Some(endpoint)) = QuicEndpoint::new(&context, &quic_socket, open.clone()) else { return };
    let mut buffers = ReceiveBuffers::new();
    loop {
        endpoint.receive_from_successor(&engine);
        let is_empty = !open.0.receives.get() || endpoint.receive(&engine, &mut buffers);
        endpoint.wake_connections();
        if endpoint.is_closing(&context) && endpoint.connections() == 0 && !endpoint.passes_on() {
            break;
        }
        if !is_empty {
            core.yield_now().await;
            continue;
        }
        wait(&core, &endpoint, open.0.receives.get()).await;
    }
    endpoint.outbox.flush();
    core.unwatch(quic_socket.socket.fd());
    core.unwatch(quic_socket.socket.successor());
    core.deregister(&endpoint.source);
    core.deregister(&endpoint.channel);
    if let Some((channel, source)) = quic_socket.socket.predecessor().zip(endpoint.predecessor.as_ref()) {
        core.unwatch(channel);
        core.deregister(source);
    }
    drop(ended);
}

/// Marks the endpoint of a socket as ended on drop.
struct EndpointEnd(OpenEndpoint);

impl Drop for EndpointEnd {
    fn drop(&mut self) {
        self.0.0.has_ended.set(true);
    }
}

/// Waits for packets, room in the socket, a timer, the successor, the end of the predecessor, or a command.
async fn wait(core: &Core, endpoint: &QuicEndpoint, receives: bool) {
    let (socket, channel, commands) = (&endpoint.source, &endpoint.channel, &endpoint.open.0.source);
    let mut has_waited = false;
    std::future::poll_fn(|_| {
        let received = if receives { socket.ready() & READ } else { 0 };
        let is_ready = (received | channel.ready() & READ | commands.ready() & READ) != 0;
        // A spurious wake-up is harmless: there is nothing to receive.
        if is_ready || std::mem::replace(&mut has_waited, true) {
            return std::task::Poll::Ready(());
        }
        for source in [socket, channel, commands].into_iter().chain(&endpoint.predecessor) {
            source.wait_read(core.current());
        }
        socket.wait_write(core.current());
        std::task::Poll::Pending
    })
    .await;
    commands.clear(READ);
}
