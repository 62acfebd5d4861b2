//! The states of an HTTP/1 connection.
//!
//! ```text
//!            bytes arrive          all requests served          no further request
//!   parked ───────────────▶ busy ─────────────────────▶ idle ─────────────────────▶ parked
//!   (descriptor, about     (parser and buffers         (future for a second,
//!   200 bytes, no buffer)   from the pool)              no buffer)
//! ```

use std::pin::pin;
use std::rc::Rc;

use http::framing::Framing;
use http::machine::Step;
use http::{BodySize, Fields, Reject, Status};

use crate::address::Peer;
use crate::buffer_pool::{ConnectionBuffers, HeldBuffers};
use crate::conn::{Conn, REQUEST_WEIGHT_BYTES};
use crate::core::{IdleTask, TaskFuture};
use crate::ending;
use crate::exchange::Exchange;
use crate::fault::Fault;
use crate::gate::GatePermit;
use crate::in_place::pin_in_place;
use crate::lane::Lane;
use crate::link::Link;
use crate::memory::Pressure;
use crate::multiplexed::{self, DetectedProtocol};
use crate::mux::MuxProtocol;
use crate::permit::ConnectionPermit;
use crate::progress::SendProgress;
use crate::proxy_protocol::ProxyHeader;
use crate::request::Request;
use crate::request_state::{ReplyState, RequestState};
use crate::service::{Engine, Service, run_handler};
use crate::spill::SpilledOutput;
use crate::stream_client::StreamClient;
use crate::tls::{ALPN_HTTP2, ServerConnection, TlsSession};

/// Time for which an idle connection keeps its future, because the next request usually arrives soon. A
/// connection with an incomplete head keeps its buffers as long.
const LINGER_MS: u64 = 1_000;
/// Number of futures above which idle connections park at once: saves 3 KB each, without measurable cost.
const LINGERING_MAX: usize = 256;
/// Time after which a silent connection may be closed to make room; clients send requests at once.
const SILENT_MS: u64 = 1_000;
/// Maximum input to discard at the end of a connection that has switched protocols.
const SWITCHED_BYTES_MAX: usize = 4 * 1024 * 1024;

/// A connection between two requests.
pub(crate) struct IdleClient<S> {
    link: Link,
    permit: ConnectionPermit,
    engine: Rc<Engine<S>>,
    peer: Peer,
    /// Whether the connection may begin with the HTTP/2 preface.
    may_be_h2: bool,
    proxy_header: Option<Box<ProxyHeader>>,
    served: u32,
    since_ms: u64,
    /// Bytes of an incomplete request head.
    partial_head: Box<[u8]>,
}

impl<S: Service> IdleClient<S> {
    /// Creates the state of an accepted connection.
    pub(crate) fn new(engine: &Rc<Engine<S>>, link: Link, peer: Peer, may_be_h2: bool) -> Box<IdleClient<S>> {
        let permit = ConnectionPermit::take(&engine.context, link.stream().source_rc());
        let since_ms = link.core().now_ms();
        Box::new(IdleClient {
            link,
            permit,
            engine: engine.clone(),
            peer,
            may_be_h2,
            proxy_header: None,
            served: 0,
            since_ms,
            partial_head: Box::default(),
        })
    }

    /// Parks the connection until its first byte arrives. Allocates nothing but the task itself.
    pub(crate) fn park(self: Box<Self>) {
        let core = self.link.core().clone();
        self.link.stream().source().set_deadline(self.deadline_ms());
        let source = self.link.stream().source_rc();
        core.park(&source, self);
    }

    /// Returns the link, for protocols that precede HTTP.
    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    pub(crate) fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }

    /// Returns the engine that serves the connection.
    pub(crate) fn engine(&self) -> &Rc<Engine<S>> {
        &self.engine
    }

    /// Sets the memory held for protocols that precede HTTP, in bytes.
    pub(crate) fn hold(&self, bytes: usize) {
        self.permit.hold(bytes);
    }

    /// Takes the bytes that were read after the PROXY protocol header.
    pub(crate) fn take_partial_head(&mut self) -> Box<[u8]> {
        std::mem::take(&mut self.partial_head)
    }

    /// Sets the bytes that were already read.
    pub(crate) fn set_partial_head(&mut self, begun: &[u8]) {
        self.partial_head = begun.into();
    }

    /// Converts the connection into one to be relayed; `early` are the bytes that were already read.
    pub(crate) fn into_stream(self, early: Vec<u8>) -> StreamClient {
        StreamClient::new(self.link, self.permit, self.peer, self.proxy_header, early)
    }

    /// Returns the connection with TLS established on it.
    pub(crate) fn with_tls(self, tls: Box<ServerConnection>, session: Rc<TlsSession>) -> Box<Self> {
        let IdleClient {
            link,
            permit,
            engine,
            peer,
            proxy_header: reported,
            served,
            since_ms,
            partial_head: begun,
            ..
        } = self;
        // Over TLS, HTTP/2 is negotiated by ALPN only.
        let may_be_h2 = tls.alpn_protocol() == Some(ALPN_HTTP2);
        let link = link.with_tls(tls, session);
        permit.hold(link.weight_bytes());
        Box::new(IdleClient {
            link,
            permit,
            engine,
            peer,
            proxy_header: reported,
            served,
            since_ms,
            partial_head: begun,
            may_be_h2,
        })
    }

    /// Keeps the permit of the [`ConnectionGate`](crate::ConnectionGate) with the connection.
    pub(crate) fn keep_gate_permit(&mut self, place: Option<GatePermit>) {
        self.permit.keep_gate_permit(place);
    }

    /// Adds the connection to the list of connections, with the listener that accepted it.
    pub(crate) fn list(&mut self, listener: u64, key: u64) {
        self.permit.list((listener, key), self.peer);
    }

    /// Returns the key of the listener.
    pub(crate) fn listener_key(&self) -> u64 {
        self.permit.listener_key()
    }

    /// Returns the address of the client.
    pub(crate) fn peer(&self) -> Peer {
        self.peer
    }

    /// Sets the client from a PROXY protocol header. `begun` are the bytes received after the header.
    pub(crate) fn set_proxy_header(&mut self, reported: ProxyHeader, begun: &[u8]) {
        self.partial_head = begun.into();
        if let Some(ends) = reported.endpoints {
            self.peer = Peer::Tcp(ends.source);
            self.permit.update_entry(|entry| entry.client = self.peer);
        }
        self.proxy_header = Some(Box::new(reported));
    }

    /// Returns the time at which the connection times out.
    pub(crate) fn deadline_ms(&self) -> u64 {
        let timeouts = self.engine.context.timeouts.get();
        let between_requests = self.served > 0 && self.partial_head.is_empty();
        self.since_ms.saturating_add(if between_requests { timeouts.idle_ms } else { timeouts.head_ms })
    }

    /// Decides how the connection continues. Without input it is parked.
    fn decide_next_step(&self) -> NextStep {
        let source = self.link.stream().source();
        let core = self.link.core();
        if self.link.has_input() {
            return NextStep::Serve;
        }
        let deadline_ms = self.deadline_ms();
        let context = &self.engine.context;
        let is_in_the_way = context.connection_limit.has_waiting() && self.idle_since_ms().is_some();
        if core.now_ms() >= deadline_ms || is_in_the_way {
            return NextStep::Close;
        }
        source.set_deadline(deadline_ms);
        source.wait_read(core.current());
        NextStep::Park
    }
}

enum NextStep {
    Serve,
    Park,
    Close,
}

impl<S: Service> IdleTask for IdleClient<S> {
    fn resume(self: Box<Self>) -> TaskFuture {
        // An expired deadline is checked again by the clock.
        self.link.stream().source().take_expired();
        self.link.stream().source().set_deadline(u64::MAX);
        pin_in_place(|| drive(self, false))
    }

    fn idle_since_ms(&self) -> Option<u64> {
        let is_silent = self.served > 0 || self.link.core().now_ms() >= self.since_ms + SILENT_MS;
        (is_silent && self.partial_head.is_empty()).then_some(self.since_ms)
    }

    fn close(mut self: Box<Self>) {
        self.link.send_close_notify();
    }
}

/// Serves a connection until it can be parked or ends. `has_begun` tells that bytes were already read.
async fn drive<S: Service>(mut idle: Box<IdleClient<S>>, mut has_begun: bool) -> Option<Box<dyn IdleTask>> {
    loop {
        match if std::mem::take(&mut has_begun) { NextStep::Serve } else { idle.decide_next_step() } {
            NextStep::Serve => {}
            NextStep::Park => return Some(idle),
            NextStep::Close if idle.partial_head.is_empty() => {
                idle.close();
                return None;
            }
            // Boxed, because it is rare.
            NextStep::Close => return Box::pin(refuse_slow_head(idle)).await,
        }
        let (engine, mut conn) = activate(*idle);
        match serve_available(&engine, &mut conn).await {
            ServeEnd::Idle(since_ms) => idle = self::deactivate(engine, conn, since_ms),
            ServeEnd::Closed => return None,
            ServeEnd::Multiplexed(machine) => {
                // A separate task: this one's future, kilobytes of HTTP/1 state, would live as long.
                let core = conn.link.core().clone();
                core.spawn_in_place(move || multiplexed::serve(engine, conn, machine));
                return None;
            }
        }
    }
}

/// Answers a client whose request head timed out.
async fn refuse_slow_head<S: Service>(idle: Box<IdleClient<S>>) -> Option<Box<dyn IdleTask>> {
    let (engine, mut conn) = activate(*idle);
    refuse(&engine, &mut conn, HEAD_TOO_SLOW).await;
    close(&mut conn).await;
    None
}

const HEAD_TOO_SLOW: Reject = Reject::new(Status::REQUEST_TIMEOUT, "the request head took too long");

/// Serves a connection of which the bytes after the PROXY protocol header were already read.
pub(crate) fn serve_after_proxy_header<S: Service>(
    idle: Box<IdleClient<S>>,
) -> impl Future<Output = Option<Box<dyn IdleTask>>> {
    drive(idle, true)
}

/// Answers a connection whose first bytes were invalid, and closes it.
pub(crate) async fn refuse_and_close<S: Service>(idle: Box<IdleClient<S>>, reject: Reject) {
    let (engine, mut conn) = activate(*idle);
    refuse(&engine, &mut conn, reject).await;
    close_lingering(&mut conn).await;
}

/// Allocates what an idle connection needs to be served.
fn activate<S: Service>(idle: IdleClient<S>) -> (Rc<Engine<S>>, Conn) {
    let mut work = HeldBuffers::take(&idle.engine.context.buffers);
    if !idle.partial_head.is_empty() {
        work.input.restore(&idle.partial_head);
    }
    let timeouts = idle.engine.context.timeouts.get();
    // The first head's timeout starts when the connection is accepted, a later one's at its first byte.
    let awaited = idle.served == 0 || !idle.partial_head.is_empty();
    let conn = Conn {
        link: idle.link,
        permit: idle.permit,
        peer: idle.peer,
        may_be_h2: idle.may_be_h2,
        proxy_header: idle.proxy_header,
        served: idle.served,
        buffers: work,
        overflow: SpilledOutput::default(),
        framing: Framing::None,
        keep_alive: true,
        head_since_ms: if awaited { idle.since_ms } else { u64::MAX },
        must_send_continue: false,
        body_limit: None,
        body_ms: timeouts.body_ms,
        write_ms: timeouts.write_ms,
        progress: SendProgress::default(),
        moved_bytes: 0,
        request_bytes: 0,
        status_and_reason: None,
        kept_until_sent: None,
    };
    conn.update_memory();
    (idle.engine, conn)
}

/// Reverts [`busy`]; bytes of an incomplete head are kept in an allocation of exactly their size.
fn deactivate<S: Service>(engine: Rc<Engine<S>>, conn: Conn, idle_since_ms: u64) -> Box<IdleClient<S>> {
    let since_ms = if conn.head_since_ms == u64::MAX { idle_since_ms } else { conn.head_since_ms };
    let Conn { link, permit, peer, may_be_h2, proxy_header: reported, served, buffers: mut work, .. } = conn;
    let begun: Box<[u8]> = Box::from(work.input.unconsumed());
    permit.hold(begun.len() + link.weight_bytes());
    work.release();
    Box::new(IdleClient {
        link,
        permit,
        engine,
        peer,
        may_be_h2,
        proxy_header: reported,
        served,
        since_ms,
        partial_head: begun,
    })
}

/// Reason why a connection has nothing to serve at the moment.
enum ServeEnd {
    /// Idle since this time of the core's clock.
    Idle(u64),
    /// The connection has ended.
    Closed,
    /// The connection speaks HTTP/2.
    Multiplexed(Box<dyn MuxProtocol>),
}

/// Serves pipelined and following requests until there is no input.
async fn serve_available<S: Service>(engine: &Rc<Engine<S>>, conn: &mut Conn) -> ServeEnd {
    loop {
        let mut served = false;
        let fed = if conn.buffers.input.is_empty() {
            Ok(false)
        } else {
            match multiplexed::detect_protocol(conn) {
                DetectedProtocol::Http1 => feed_head(conn),
                DetectedProtocol::NeedMore => Ok(start_head_timeout(conn)),
                DetectedProtocol::Multiplexed(machine) => return ServeEnd::Multiplexed(machine),
            }
        };
        match fed {
            Ok(true) => {
                let Some(()) = serve(engine, conn).await else { break };
                served = true;
                conn.consume_budget(REQUEST_WEIGHT_BYTES).await;
                let is_limited = conn.link.stream().bucket().is_some();
                // Many small responses may pile up for a client that does not read.
                let is_behind =
                    conn.backlog() > conn.out_bytes_max() || conn.overflow.is_some() || is_limited;
                if is_behind && flush_output(conn).await.is_none() {
                    break;
                }
                if is_limited {
                    // The limit does not apply to the next response.
                    conn.link.set_bucket(None);
                }
                // The client has the response, apart from the connection's buffer: the request is over.
                conn.kept_until_sent = None;
            }
            Ok(false) => match read_head(conn).await {
                Ok(ReadOutcome::Bytes) => {}
                Ok(ReadOutcome::Nothing) => {
                    let since_ms = conn.now_ms();
                    if !await_next_request(conn).await {
                        return ServeEnd::Idle(since_ms);
                    }
                }
                Ok(ReadOutcome::End) => break close(conn).await,
                Err(Fault::Timeout) => {
                    refuse(engine, conn, HEAD_TOO_SLOW).await;
                    break close(conn).await;
                }
                Err(_) => break,
            },
            Err(reject) => {
                refuse(engine, conn, reject).await;
                break close_lingering(conn).await;
            }
        }
        if served && !conn.keep_alive {
            let work = &conn.buffers;
            // A client that expected a persistent connection may already have sent the next request.
            let sends_more =
                work.machine.head.keep_alive || !work.machine.body_ended() || !work.input.is_empty();
            if sends_more || conn.link.has_input() {
                close_lingering(conn).await
            } else {
                close(conn).await
            }
            break;
        }
    }
    ServeEnd::Closed
}

/// Keeps the future, but no buffers, for a moment to wait for the next request. Returns false if none arrived
/// or if the connection should be parked at once.
async fn await_next_request(conn: &mut Conn) -> bool {
    let context = conn.permit.context();
    let is_between = conn.head_since_ms == u64::MAX && conn.served > 0;
    let may_stay = !context.is_draining.get() && !context.connection_limit.has_waiting();
    if !is_between || !may_stay || context.core.running() > LINGERING_MAX {
        return false;
    }
    let until_ms = conn.after_ms(LINGER_MS.min(context.timeouts.get().idle_ms));
    conn.buffers.release();
    conn.permit.hold(0);
    let has_come = conn.link.readable(until_ms).await.is_ok();
    conn.buffers.hold();
    conn.update_memory();
    conn.moved_bytes = 0;
    has_come
}

/// Sends what the client has not accepted yet, before its next request is parsed; `None` on failure.
async fn flush_output(conn: &mut Conn) -> Option<()> {
    if conn.overflow.is_some() {
        Box::pin(conn.spill_remaining()).await;
    }
    conn.flush().await.ok()
}

/// Parses a request head; returns true if it is complete.
fn feed_head(conn: &mut Conn) -> Result<bool, Reject> {
    let limits = conn.context().limits.get().head;
    let ConnectionBuffers { machine, input, .. } = &mut *conn.buffers;
    let fed = machine.feed(input.head(), &limits)?;
    input.at = input.start + fed.consumed;
    if fed.step != Step::Head {
        return Ok(start_head_timeout(conn));
    }
    Ok(true)
}

/// Starts the head timeout.
fn start_head_timeout(conn: &mut Conn) -> bool {
    if conn.head_since_ms == u64::MAX {
        conn.head_since_ms = conn.now_ms();
    }
    false
}

enum ReadOutcome {
    Bytes,
    /// No input is available, and the connection should not hold buffers.
    Nothing,
    End,
}

/// Reads more of a head, after sending all pending responses.
async fn read_head(conn: &mut Conn) -> Result<ReadOutcome, Fault> {
    // The error carries no response: a client that accepts no responses would not read that one either.
    if !conn.flush_now().map_err(|_| Fault::Disconnected)? {
        conn.flush().await.map_err(|_| Fault::Disconnected)?;
    }
    loop {
        match conn.fill_head()? {
            Some(true) => return Ok(ReadOutcome::Bytes),
            None => return Ok(ReadOutcome::End),
            Some(false) if conn.buffers.input.is_empty() => return Ok(ReadOutcome::Nothing),
            Some(false) => {
                let now_ms = conn.now_ms();
                let deadline_ms = conn.head_since_ms.saturating_add(conn.context().timeouts.get().head_ms);
                // A client that sends byte by byte holds buffers once for each head, not for each byte.
                let linger_ms = deadline_ms.min(conn.head_since_ms + LINGER_MS);
                if now_ms >= deadline_ms {
                    return Err(Fault::Timeout);
                }
                if now_ms >= linger_ms || conn.link.core().running() > LINGERING_MAX {
                    return Ok(ReadOutcome::Nothing);
                }
                match conn.link.readable(linger_ms).await {
                    Ok(()) | Err(Fault::Timeout) => {}
                    Err(fault) => return Err(fault),
                }
            }
        }
    }
}

/// Serves one request. Returns `None` if the connection must be closed.
async fn serve<S: Service>(engine: &Rc<Engine<S>>, conn: &mut Conn) -> Option<()> {
    conn.begin_request();
    let answered;
    // The block drops the state in place; `drop` would move it.
    {
        let mut state = RequestState::new(conn.peer, conn.direct_client(), conn.link.core().now_us());
        state.listener_key = conn.permit.listener_key();
        state.tls = conn.link.session().cloned();
        let served = {
            let source = conn.link.stream().source_rc();
            let is_short = conn.pressure() >= Pressure::Critical;
            let mut exchange = Exchange::new(&mut state, Lane::H1(conn));
            if is_short {
                Box::pin(exchange.refuse_for_memory()).await
            } else {
                // Pinned and passed by reference: by value, it would be in the future twice.
                let serving = pin!(engine.service.serve(&mut exchange));
                run_handler(&source, &engine.context.core, serving).await
            }
        };
        conn.request_bytes = state.filters.weight_bytes();
        let ended = served.and_then(|()| Exchange::new(&mut state, Lane::H1(conn)).end(&Fields::new()));
        let fault = ended.err();
        answered = match &fault {
            None => true,
            Some(fault) => complete_failed_exchange(conn, &mut state, fault).await,
        };
        conn.request_bytes = 0;
        conn.kept_until_sent = state.kept_until_sent.take();
        engine.context.counters.requests.add(1);
        let request = Request::of(&state, conn.head());
        engine.service.log(&state.record(Some(request), fault.as_ref(), &engine.context.core));
    }
    if !answered {
        return None;
    }
    conn.served = conn.served.saturating_add(1);
    let is_read = conn.buffers.machine.body_ended();
    if conn.keep_alive && !is_read && !conn.discard_body().await.unwrap_or(false) {
        conn.keep_alive = false;
    }
    if conn.keep_alive {
        conn.buffers.machine.next();
        conn.buffers.input.next_head();
    }
    Some(())
}

/// Completes the exchange of a failed handler: sends an error page if no response has begun. Returns false if
/// the connection must be closed.
async fn complete_failed_exchange(conn: &mut Conn, state: &mut RequestState, fault: &Fault) -> bool {
    conn.keep_alive = false;
    let framing = conn.framing;
    match state.reply {
        ReplyState::Unsent => Exchange::new(state, Lane::H1(conn)).answer_fault(fault).await,
        // The response ends with the connection, or the client accepts nothing more: reset the connection.
        ReplyState::Body(BodySize::Unknown) if framing == Framing::UntilClose => reset_connection(conn),
        ReplyState::Body(BodySize::Known(_) | BodySize::Unknown) if matches!(fault, Fault::Timeout) => {
            reset_connection(conn)
        }
        // The response was complete before its handler failed, or its framing shows that it is truncated.
        // Earlier responses must still arrive.
        ReplyState::Done | ReplyState::Suppressed | ReplyState::Body(_) => {
            !matches!(fault, Fault::Disconnected)
        }
    }
}

/// Resets the connection on close, so that the response does not seem to be complete.
fn reset_connection(conn: &Conn) -> bool {
    conn.link.stream().reset_on_close(true);
    false
}

/// Answers a malformed request.
async fn refuse<S: Service>(engine: &Rc<Engine<S>>, conn: &mut Conn, reject: Reject) {
    let mut state = RequestState::new(conn.peer, conn.direct_client(), conn.link.core().now_us());
    state.listener_key = conn.permit.listener_key();
    state.tls = conn.link.session().cloned();
    let mut exchange = Exchange::new(&mut state, Lane::H1(conn));
    if exchange.refuse_and_close(reject).await.and_then(|()| exchange.end(&Fields::new())).is_ok() {
        // The connection is closed next, whether or not the client accepts the response.
        let _ = conn.flush().await;
    }
    engine.context.counters.rejected.add(1);
    let fault = Fault::Reject(reject);
    engine.service.log(&state.record(None, Some(&fault), &engine.context.core));
}

/// Sends the last response to a client that sends nothing more. The caller must then drop the connection.
async fn close(conn: &mut Conn) {
    if send_last(conn).await {
        let patience_ms = conn.stall_timeout_ms();
        conn.buffers.release();
        ending::finish_sending(&mut conn.link, patience_ms).await;
    }
}

/// Sends the last response to a client that may still be sending.
async fn close_lingering(conn: &mut Conn) {
    if send_last(conn).await {
        let patience_ms = conn.stall_timeout_ms();
        // A tunnel ends by its own protocol's rules, so limit what its client may still send.
        let bytes_max = if conn.framing == Framing::UntilClose { SWITCHED_BYTES_MAX } else { usize::MAX };
        conn.buffers.release();
        conn.permit.hold(0);
        conn.permit.update_entry(|entry| entry.requests = 0);
        ending::linger(&mut conn.link, patience_ms, bytes_max).await;
    }
}

/// Sends the last response of the connection. Returns false if the client has disconnected.
async fn send_last(conn: &mut Conn) -> bool {
    let sent = conn.flush().await.is_ok();
    if sent {
        conn.link.stream().reset_on_close(false);
    }
    sent
}

#[cfg(test)]
mod tests;
