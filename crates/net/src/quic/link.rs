//! A connection's side of its endpoint: receiving and sending packets.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use http3::Http3Code;
use quinn_proto::{Connection, ConnectionError, ConnectionHandle, Incoming, ServerConfig};

use super::endpoint::QuicEndpoint;
use super::inbox::ConnectionInbox;
use crate::h3::{Acknowledgements, TURN_BYTES_MAX, var_int};
use crate::source::{READ, Source};

/// Identifiers that wait to be sent in place of retired ones, from which the connection ends: QUIC keeps any number of them
/// for a client that acknowledges nothing.
const WAITING_IDENTIFIERS_MAX: u64 = 256;
/// Reason for closing such a connection.
const TOO_MANY_RETIRED: &[u8] = b"too many connection identifiers were retired";

/// A connection's side of its endpoint. Dropping it forgets the connection there.
pub(super) struct QuicLink {
    endpoint: Rc<QuicEndpoint>,
    pub(super) handle: ConnectionHandle,
    inbox: Rc<ConnectionInbox>,
    acknowledgements: Arc<Acknowledgements>,
    is_forgotten: Cell<bool>,
    /// Number of identifiers that were issued after the first ones.
    issued_identifiers: Cell<u64>,
}

impl QuicLink {
    /// Begins a connection.
    ///
    /// # Errors
    /// The first packet is not valid; the client was told.
    pub(super) fn accept(
        endpoint: &Rc<QuicEndpoint>,
        inbox: Rc<ConnectionInbox>,
        incoming: Incoming,
        config: Arc<ServerConfig>,
        acknowledgements: Arc<Acknowledgements>,
    ) -> Result<(QuicLink, Box<Connection>), ConnectionError> {
        let (handle, quic) = endpoint.accept(&inbox, incoming, config)?;
        let link = QuicLink {
            endpoint: endpoint.clone(),
            handle,
            inbox,
            acknowledgements,
            is_forgotten: Cell::new(false),
            issued_identifiers: Cell::new(0),
        };
        Ok((link, Box::new(quic)))
    }

    pub(super) fn source(&self) -> &Source {
        &self.inbox.source
    }

    pub(super) fn endpoint(&self) -> &QuicEndpoint {
        &self.endpoint
    }

    /// Passes the waiting events and due timers to the connection.
    pub(super) fn receive(&self, quic: &mut Connection) {
        self.inbox.source.clear(READ);
        loop {
            let Some(event) = self.inbox.events.borrow_mut().pop_front() else { break };
            quic.handle_event(event);
        }
        let now = self.endpoint.now();
        if quic.poll_timeout().is_some_and(|at| at <= now) {
            quic.handle_timeout(now);
        }
    }

    /// Releases memory that an idle connection does not need.
    pub(super) fn shrink(&self) {
        self.inbox.events.borrow_mut().shrink_to_fit();
    }

    /// Whether datagrams wait for room in the socket.
    pub(super) fn is_blocked(&self) -> bool {
        self.endpoint.outbox().is_blocked()
    }

    /// Sends what the connection permits; then updates the endpoint and the timer. Returns the number of
    /// bytes sent.
    pub(super) fn send(&self, quic: &mut Connection) -> usize {
        while let Some(event) = quic.poll_endpoint_events() {
            let is_drained = event.is_drained();
            if let Some(answer) = self.endpoint.handle_event(self.handle, event) {
                quic.handle_event(answer);
                self.count_identifier(quic);
            }
            if is_drained {
                self.is_forgotten.set(true);
                self.endpoint.remove(self.handle, &self.inbox);
            }
        }
        let sent = self.send_packets(quic);
        if let Some(at) = quic.poll_timeout() {
            let at = self.endpoint.clock().moment(at);
            self.endpoint.timers().schedule(self.handle.0, &self.inbox.timer, at);
        }
        sent
    }

    /// Counts an identifier issued in place of a retired one, and ends the connection if too many wait to be sent.
    fn count_identifier(&self, quic: &mut Connection) {
        let issued = self.issued_identifiers.get() + 1;
        self.issued_identifiers.set(issued);
        let sent = quic.stats().frame_tx.new_connection_id;
        if issued.saturating_sub(sent) > WAITING_IDENTIFIERS_MAX && !quic.is_closed() {
            quic.close(
                self.endpoint.now(),
                var_int(Http3Code::EXCESSIVE_LOAD),
                Bytes::from_static(TOO_MANY_RETIRED),
            );
            // The connection's task ends.
            self.inbox.source.abort();
        }
    }

    fn send_packets(&self, quic: &mut Connection) -> usize {
        let endpoint = &self.endpoint;
        if quic.is_closed() {
            self.acknowledgements.lift_window();
        }
        let now = endpoint.now();
        let segments_max = endpoint.segments_max();
        let mut sent = 0;
        let mut buffer = endpoint.take_buffer();
        buffer.clear();
        loop {
            if endpoint.outbox().is_blocked() {
                endpoint.wait_for_room(&self.inbox);
                break;
            }
            let Some(transmit) = quic.poll_transmit(now, segments_max, &mut buffer) else { break };
            sent += transmit.size;
            if self.inbox.addresses.permits(&transmit, quic, endpoint.core().now()) {
                endpoint.outbox().send(transmit, &mut buffer);
            } else {
                buffer.clear();
            }
            if sent >= TURN_BYTES_MAX {
                // The rest is sent in the next turn.
                endpoint.wake(&self.inbox);
                break;
            }
        }
        endpoint.return_buffer(buffer);
        sent
    }

    /// Whether the connection has ended and its endpoint has forgotten it.
    pub(super) fn is_forgotten(&self) -> bool {
        self.is_forgotten.get()
    }
}

impl Drop for QuicLink {
    fn drop(&mut self) {
        if !self.is_forgotten.get() {
            // The answer is for the connection, which ends.
            let _ = self.endpoint.handle_event(self.handle, quinn_proto::EndpointEvent::drained());
            self.endpoint.remove(self.handle, &self.inbox);
        }
    }
}
