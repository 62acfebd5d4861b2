//! The task of a QUIC connection: its handshake, then its requests, until both sides have ended it.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http3::{Http3Code, Http3Error};
use quinn_proto::{Connection, Event, Incoming, VarInt};
use times::{Millis, Moment};

use super::endpoint::{PendingHandshake, QuicEndpoint, RECEIVE_WINDOW_BYTES};
use super::handshake::HandshakeOutcome;
use super::link::QuicLink;
use crate::address::{Client, Peer};
use crate::connections::ConnectionProtocol;
use crate::fault::Fault;
use crate::h3::{Acknowledgements, H3Connection, Received, TURN_BYTES_MAX, var_int};
use crate::mux::{AbortReason, MuxConn, MuxEndpoints, MuxEvent};
use crate::permit::ConnectionPermit;
use crate::service::{Engine, Service};
use crate::source::READ;
use crate::stream_requests::{ConnectionEnd, GOAWAY_GRACE_TIME, StreamRequests, WireState};
use crate::tls::{HandshakeFailure, TlsSession};
use crate::wait::{self, Interest};

/// Bytes framed before packets are made of them.
const FRAMED_BYTES_MAX: usize = 64 * 1024;
/// Cost of an event against [`TURN_BYTES_MAX`].
const EVENT_WEIGHT_BYTES: usize = 64;
/// Memory of a handshake, as measured: QUIC, TLS with its key exchange, and both sides' first messages.
const HANDSHAKE_BYTES: usize = 52 * 1024;
/// Interval of checks whether the server is stopping or the client is too slow.
const CHECK_INTERVAL: Millis = Millis(1_000);
/// Time for which a closed connection answers late packets, if its client's packets take that long.
const LINGER_MAX: Millis = Millis(3_000);
/// The same when the server stops.
const LINGER_WHEN_STOPPING: Millis = Millis(500);
/// Time that a handshake has when the server stops.
const HANDSHAKE_WHEN_STOPPING: Millis = Millis(3_000);
/// Reason for closing a connection of a client that has too many.
const TOO_MANY: &[u8] = b"too many connections";
/// Frames of this side's own streams that a client may leave unread, in bytes.
const OWN_BYTES_MAX: usize = 64 * 1024;

/// Performs the handshake of a new connection and serves its requests.
pub(super) async fn accept<S: Service>(
    engine: Rc<Engine<S>>,
    pending: PendingHandshake,
    mut permit: ConnectionPermit,
    incoming: Incoming,
) {
    let endpoint = pending.endpoint.clone();
    let client = incoming.remote_address();
    let local = incoming.local_ip();
    let is_proven = incoming.remote_address_validated();
    permit.hold(HANDSHAKE_BYTES);
    // Signatures and key exchanges take a millisecond or more, so let other ready tasks run first.
    endpoint.core().wait_for_long_turn().await;
    let outcome = Arc::<HandshakeOutcome>::default();
    let acknowledgements = Arc::<Acknowledgements>::default();
    let config = endpoint.connection_config(permit.context(), &incoming, &outcome, &acknowledgements);
    let failed = |failure: HandshakeFailure| {
        engine.context.counters.tls_failed.add(1);
        if !failure.is_gone {
            engine.service.handshake_failed(Peer::Tcp(client), &failure);
        }
    };
    let accepted =
        QuicLink::accept(&endpoint, pending.inbox.clone(), incoming, config, acknowledgements.clone());
    let Ok((link, mut quic)) = accepted else {
        if let Some(Err(failure)) = outcome.take() {
            failed(failure);
        }
        return;
    };
    match shake_hands(&engine, &link, &mut quic, &outcome).await {
        Ok(session) => {
            drop(pending);
            let counters = &engine.context.counters;
            if session.is_resumed {
                counters.tls_resumed.add(1)
            } else {
                counters.tls_full.add(1)
            }
            // A client that had proven its address before is counted already.
            if let Some(gate) = engine.context.gate.as_ref().filter(|_| !is_proven) {
                let Ok(gate_permit) = gate.0.acquire(Peer::Tcp(client)) else {
                    let reason = Bytes::from_static(TOO_MANY);
                    quic.close(endpoint.now(), var_int(Http3Code::EXCESSIVE_LOAD), reason);
                    let quic = RefCell::new(quic);
                    return linger(&link, |turn| turn(&mut quic.borrow_mut())).await;
                };
                permit.keep_gate_permit(gate_permit);
            }
            let limits = engine.context.limits.get();
            let ends = endpoints(&endpoint, client, local, session);
            let options =
                http3::Options { head: limits.head, connect_protocol: true, ..http3::Options::default() };
            let http = http3::Connection::server(options);
            let now = endpoint.now();
            let mut server = H3Connection::new(quic, http, acknowledgements, RECEIVE_WINDOW_BYTES, now);
            server.set_requests_max(QuicEndpoint::requests_max(permit.context()));
            permit.update_entry(|entry| entry.protocol = ConnectionProtocol::Http3);
            // Not in the future that serves the connection, which would hold them twice.
            let server = Rc::new(RefCell::new(server));
            let conn = Rc::new(MuxConn::new(permit, ends, server.clone()));
            // The memory of the handshake's future is free then.
            endpoint.core().spawn_in_place(move || serve(engine, link, server, conn));
        }
        Err(failure) => {
            failed(failure);
            drop(pending);
            // One of too many; its client was told once.
            if link.source().is_aborted() {
                return;
            }
            let quic = RefCell::new(quic);
            linger(&link, |turn| turn(&mut quic.borrow_mut())).await;
        }
    }
}

fn endpoints(
    endpoint: &QuicEndpoint,
    client: SocketAddr,
    local: Option<IpAddr>,
    session: TlsSession,
) -> MuxEndpoints {
    let peer = Peer::Tcp(client);
    MuxEndpoints {
        peer,
        client: Client::direct(peer, true),
        local_address: Some(endpoint.local_address(local)),
        tls: Some(Rc::new(session)),
    }
}

/// Drives the connection until its handshake is complete, at most for the timeout of a request head, and for
/// [`HANDSHAKE_WHEN_STOPPING`] when the server stops.
async fn shake_hands<S: Service>(
    engine: &Rc<Engine<S>>,
    link: &QuicLink,
    quic: &mut Connection,
    outcome: &HandshakeOutcome,
) -> Result<TlsSession, HandshakeFailure> {
    let core = link.endpoint().core();
    let mut until = core.now() + engine.context.timeouts.get().head;
    loop {
        if core.is_draining() {
            until = until.min(core.now() + HANDSHAKE_WHEN_STOPPING);
        }
        link.receive(quic);
        let mut is_connected = false;
        while let Some(event) = quic.poll() {
            match event {
                Event::Connected => {
                    is_connected = true;
                    break;
                }
                Event::ConnectionLost { .. } => {
                    let gone =
                        HandshakeFailure { is_gone: true, ..HandshakeFailure::of("the client disconnected") };
                    return Err(outcome.take().and_then(Result::err).unwrap_or(gone));
                }
                _ => {}
            }
        }
        link.send(quic);
        if is_connected {
            let gone = HandshakeFailure::of("the TLS handshake failed");
            return outcome.take().unwrap_or(Err(gone));
        }
        if core.now() >= until || link.source().is_aborted() {
            quic.close(link.endpoint().now(), VarInt::from_u32(0), Bytes::new());
            link.send(quic);
            let is_gone = link.source().is_aborted();
            return Err(HandshakeFailure {
                is_gone,
                ..HandshakeFailure::of("the TLS handshake took too long")
            });
        }
        // At the deadline, the loop ends the handshake.
        let _ = wait::ready(core, link.source(), Interest::READ, until).await;
    }
}

/// Serves the requests of a connection.
async fn serve<S: Service>(
    engine: Rc<Engine<S>>,
    link: QuicLink,
    server: Rc<RefCell<H3Connection>>,
    conn: Rc<MuxConn>,
) {
    let mut requests = StreamRequests::new(engine, conn.clone());
    let ended = run(&mut requests, &conn, &server, &link).await;
    conn.notify_streams(Some(ended.as_ref().err().map_or(AbortReason::Peer, AbortReason::of)));
    requests.drop_held();
    close(&mut server.borrow_mut().quic, link.endpoint().now(), &ended);
    conn.permit.update_entry(|entry| entry.requests = 0);
    conn.set_own_bytes(0);
    // Tasks of streams that end meanwhile use the connection too.
    linger(&link, |turn| turn(&mut server.borrow_mut().quic)).await;
}

/// Closes the connection, unless the client or an error already has.
fn close(quic: &mut Connection, now: Instant, ended: &Result<(), Fault>) {
    if quic.is_closed() {
        return;
    }
    let (code, reason) = match ended {
        Ok(()) => (Http3Code::NO_ERROR, ""),
        Err(Fault::Timeout) => (Http3Code::NO_ERROR, "the client accepted nothing for too long"),
        Err(_) => (Http3Code::INTERNAL_ERROR, ""),
    };
    quic.close(now, var_int(code), Bytes::from_static(reason.as_bytes()));
}

/// State of a connection's task besides its requests.
struct Progress {
    moved_bytes: usize,
    /// Time since which the client has acknowledged nothing, while it should.
    stalled_since: Moment,
    /// Acknowledged bytes of packets at the last check.
    acknowledged_bytes: u64,
}

async fn run<S: Service>(
    requests: &mut StreamRequests<S>,
    conn: &Rc<MuxConn>,
    server: &RefCell<H3Connection>,
    link: &QuicLink,
) -> Result<(), Fault> {
    let core = &conn.core;
    let mut progress = Progress { moved_bytes: 0, stalled_since: core.now(), acknowledged_bytes: 0 };
    loop {
        {
            let mut server = server.borrow_mut();
            server.limit_growth(core.memory().window_growth_max());
            server.now = link.endpoint().now();
            server.http.set_head_limits(conn.context().limits.get().head);
            link.receive(&mut server.quic);
            server.note_acknowledgements();
            server.close_overdue(conn.context().timeouts.get().head);
        }
        let streams = conn.live_streams();
        receive(requests, server, &mut progress)?;
        if conn.live_streams() > streams {
            // Responses leave with the acknowledgement of their requests.
            core.let_others_run().await;
        }
        send(conn, server, link, &mut progress)?;
        let waits = server.borrow().is_awaiting_acknowledgements();
        let is_needed = server.borrow().is_needed();
        match requests.check_end(WireState { has_output: is_needed, has_ended: false }) {
            ConnectionEnd::No => {}
            ConnectionEnd::Announced => continue,
            ConnectionEnd::Now { .. } => {
                send(conn, server, link, &mut progress)?;
                return Ok(());
            }
        }
        let acknowledged = server.borrow().acknowledged_packet_bytes();
        if progress.is_stalled(conn, acknowledged, waits) || link.source().is_aborted() {
            return Err(Fault::Timeout);
        }
        if std::mem::take(&mut progress.moved_bytes) >= TURN_BYTES_MAX {
            core.yield_now().await;
            continue;
        }
        conn.set_own_bytes(0);
        let sources = [(link.source(), Interest::READ), (&*conn.wake_source, Interest::READ)];
        let look = core.now() + if requests.is_leaving() { GOAWAY_GRACE_TIME } else { CHECK_INTERVAL };
        let waited = wait::any_ready(core, sources, look, || false).await;
        conn.wake_source.clear(READ);
        if waited.is_err() && conn.live_streams() == 0 && !waits {
            conn.shrink();
            link.shrink();
        }
    }
}

impl Progress {
    /// Whether the client has acknowledged nothing for too long, although something was sent.
    fn is_stalled(&mut self, conn: &MuxConn, acknowledged: u64, waits: bool) -> bool {
        let now = conn.core.now();
        if !waits || std::mem::replace(&mut self.acknowledged_bytes, acknowledged) != acknowledged {
            self.stalled_since = now;
        }
        now >= self.stalled_since + conn.stall_timeout()
    }
}

/// Distributes what was received to the streams.
fn receive<S: Service>(
    requests: &mut StreamRequests<S>,
    server: &RefCell<H3Connection>,
    progress: &mut Progress,
) -> Result<(), Fault> {
    requests.resume_held();
    while progress.moved_bytes < TURN_BYTES_MAX && !requests.is_held() {
        let received = server.borrow_mut().next_event()?;
        if server.borrow().has_given_up_too_many() {
            let reason = "too many requests were given up";
            let error = Http3Error::connection(Http3Code::EXCESSIVE_LOAD, reason);
            return Err(server.borrow_mut().close_with(error));
        }
        progress.moved_bytes += EVENT_WEIGHT_BYTES;
        match received {
            None => return Ok(()),
            Some(Received::Data(id, bytes, ended)) => {
                progress.moved_bytes += bytes.len();
                requests.handle(MuxEvent::Data(id, &bytes, ended));
            }
            Some(received) => {
                let event = server.borrow_mut().event(received);
                progress.moved_bytes += event.map_or(0, |event| requests.handle(event));
            }
        }
    }
    Ok(())
}

/// Frames the output of streams and sends packets.
fn send(
    conn: &MuxConn,
    server: &RefCell<H3Connection>,
    link: &QuicLink,
    progress: &mut Progress,
) -> Result<(), Fault> {
    loop {
        server.borrow_mut().update_send_window();
        if !link.is_blocked() {
            conn.fill_out(FRAMED_BYTES_MAX);
        }
        let mut server = server.borrow_mut();
        let framed = server.flush();
        let sent = link.send(&mut server.quic);
        server.note_sent();
        let (accepted, acknowledged) = server.progress();
        conn.drained_bytes.set(accepted);
        conn.acknowledged_bytes.set(acknowledged);
        progress.moved_bytes += sent.max(framed);
        if server.own_unsent_bytes() > OWN_BYTES_MAX {
            let reason = "the client does not read control streams";
            server.close(Http3Error::connection(Http3Code::EXCESSIVE_LOAD, reason));
            return Err(Fault::MuxError { code: Http3Code::EXCESSIVE_LOAD.text(), reason });
        }
        let is_done = framed == 0 || !conn.has_queued_streams();
        if is_done || progress.moved_bytes >= TURN_BYTES_MAX || link.is_blocked() {
            return Ok(());
        }
    }
}

/// Sends the last packets and answers the client's, until both sides have forgotten the connection (RFC 9000
/// section 10.2), or for [`LINGER_MAX`]: a client chooses its round-trip time, and so how long the former takes.
async fn linger(link: &QuicLink, with: impl Fn(&mut dyn FnMut(&mut Connection))) {
    let core = link.endpoint().core();
    let mut end = core.now() + LINGER_MAX;
    loop {
        if core.is_draining() {
            end = end.min(core.now() + LINGER_WHEN_STOPPING);
        }
        let mut is_over = false;
        with(&mut |quic| {
            link.receive(quic);
            // Events are of no more use.
            while quic.poll().is_some() {}
            link.send(quic);
            is_over = link.is_forgotten() || quic.is_drained();
        });
        if is_over || core.now() >= end {
            return;
        }
        // The next turn looks again.
        let _ = wait::ready(core, link.source(), Interest::READ, end.min(core.now() + CHECK_INTERVAL)).await;
    }
}
