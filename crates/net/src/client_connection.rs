//! The states of a client's connection, whatever its protocol. The first bytes choose it (`protocol`).
//!
//! ```text
//!            bytes arrive          all requests served          no further request
//!   parked ───────────────▶ active ─────────────────────▶ idle ─────────────────────▶ parked
//!   (descriptor, about     (parser and buffers         (future for a second,
//!   200 bytes, no buffer)   from the pool)              no buffer)
//! ```

use std::rc::Rc;

use http::Reject;
use http::framing::Framing;
use times::{Millis, Moment};

use crate::address::Peer;
use crate::buffer_pool::HeldBuffers;
use crate::conn::Conn;
use crate::core::{IdleTask, TaskFuture};
use crate::gate::GatePermit;
use crate::h1;
use crate::in_place::pin_in_place;
use crate::link::Link;
use crate::multiplexed;
use crate::permit::ConnectionPermit;
use crate::progress::SendProgress;
use crate::proxy_protocol::ProxyHeader;
use crate::service::{Engine, Service};
use crate::spill::SpilledOutput;
use crate::stream_client::StreamClient;
use crate::tls::{ALPN_HTTP2, ServerConnection, TlsSession};

/// Time after which a silent connection may be closed to make room; clients send requests at once.
const SILENT_TIME: Millis = Millis(1_000);

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
    since: Moment,
    /// Bytes of an incomplete request head.
    partial_head: Box<[u8]>,
}

impl<S: Service> IdleClient<S> {
    /// Creates the state of an accepted connection.
    pub(crate) fn new(engine: &Rc<Engine<S>>, link: Link, peer: Peer, may_be_h2: bool) -> Box<IdleClient<S>> {
        let permit = ConnectionPermit::take(&engine.context, link.stream().source_rc());
        let since = link.core().now();
        Box::new(IdleClient {
            link,
            permit,
            engine: engine.clone(),
            peer,
            may_be_h2,
            proxy_header: None,
            served: 0,
            since,
            partial_head: Box::default(),
        })
    }

    /// Parks the connection until its first byte arrives. Allocates nothing but the task itself.
    pub(crate) fn park(self: Box<Self>) {
        let core = self.link.core().clone();
        self.link.stream().source().set_deadline(self.deadline());
        let source = self.link.stream().source_rc();
        core.park(&source, self);
    }

    /// Serves the connection at once. Its first bytes have arrived, if the kernel waits for them.
    pub(crate) fn start(self: Box<Self>) {
        let core = self.link.core().clone();
        self.link.stream().source().expect_input();
        core.start(pin_in_place(|| drive(self, true)));
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
    pub(crate) fn set_partial_head(&mut self, partial_head: &[u8]) {
        self.partial_head = partial_head.into();
    }

    /// Converts the connection into one to be relayed; `early` are the bytes that were already read.
    pub(crate) fn into_stream(self, early: Vec<u8>) -> StreamClient {
        StreamClient::new(self.link, self.permit, self.peer, self.proxy_header, early)
    }

    /// Returns the connection with TLS established on it.
    pub(crate) fn with_tls(self, tls: Box<ServerConnection>, session: Rc<TlsSession>) -> Box<Self> {
        let IdleClient { link, permit, engine, peer, proxy_header, served, since, partial_head, .. } = self;
        // Over TLS, HTTP/2 is negotiated by ALPN only.
        let may_be_h2 = tls.alpn_protocol() == Some(ALPN_HTTP2);
        let link = link.with_tls(tls, session);
        permit.hold(link.weight_bytes());
        Box::new(IdleClient {
            link,
            permit,
            engine,
            peer,
            proxy_header,
            served,
            since,
            partial_head,
            may_be_h2,
        })
    }

    /// Keeps the permit of the [`ConnectionGate`](crate::ConnectionGate) with the connection.
    pub(crate) fn keep_gate_permit(&mut self, gate_permit: Option<GatePermit>) {
        self.permit.keep_gate_permit(gate_permit);
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

    /// Sets the client from a PROXY protocol header. `partial_head` are the bytes received after the header.
    pub(crate) fn set_proxy_header(&mut self, proxy_header: ProxyHeader, partial_head: &[u8]) {
        self.partial_head = partial_head.into();
        if let Some(ends) = proxy_header.endpoints {
            self.peer = Peer::Tcp(ends.source);
            self.permit.update_entry(|entry| entry.client = self.peer);
        }
        self.proxy_header = Some(Box::new(proxy_header));
    }

    /// Returns the time at which the connection times out.
    pub(crate) fn deadline(&self) -> Moment {
        let timeouts = self.engine.context.timeouts.get();
        let between_requests = self.served > 0 && self.partial_head.is_empty();
        self.since + if between_requests { timeouts.idle } else { timeouts.head }
    }

    /// Decides how the connection continues. Without input it is parked.
    fn decide_next_step(&self) -> NextStep {
        let source = self.link.stream().source();
        let core = self.link.core();
        if self.link.has_input() {
            return NextStep::Serve;
        }
        let deadline = self.deadline();
        let context = &self.engine.context;
        let is_in_the_way =
            context.connection_limit.has_waiting(context.core.now()) && self.idle_since().is_some();
        if core.now() >= deadline || is_in_the_way {
            return NextStep::Close;
        }
        source.set_deadline(deadline);
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
        self.link.stream().source().set_deadline(Moment::NEVER);
        pin_in_place(|| drive(self, false))
    }

    fn idle_since(&self) -> Option<Moment> {
        let is_silent = self.served > 0 || self.link.core().now() >= self.since + SILENT_TIME;
        (is_silent && self.partial_head.is_empty()).then_some(self.since)
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
        match h1::serve_available(&engine, &mut conn).await {
            h1::ServeEnd::Idle(since) => idle = self::deactivate(engine, conn, since),
            h1::ServeEnd::Closed => return None,
            h1::ServeEnd::Multiplexed(machine) => {
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
    h1::refuse(&engine, &mut conn, h1::HEAD_TOO_SLOW).await;
    h1::close(&mut conn).await;
    None
}

/// Serves a connection of which bytes were already read: a PROXY protocol header, a TLS handshake, or the beginning
/// of a stream that turned out to be HTTP.
pub(crate) fn serve_begun<S: Service>(
    idle: Box<IdleClient<S>>,
) -> impl Future<Output = Option<Box<dyn IdleTask>>> {
    drive(idle, true)
}

/// Answers a connection whose first bytes were invalid, and closes it.
pub(crate) async fn refuse_and_close<S: Service>(idle: Box<IdleClient<S>>, reject: Reject) {
    let (engine, mut conn) = activate(*idle);
    h1::refuse(&engine, &mut conn, reject).await;
    h1::close_lingering(&mut conn).await;
}

/// Allocates what an idle connection needs to be served.
fn activate<S: Service>(idle: IdleClient<S>) -> (Rc<Engine<S>>, Conn) {
    let mut buffers = HeldBuffers::take(&idle.engine.context.buffers);
    if !idle.partial_head.is_empty() {
        buffers.input.restore(&idle.partial_head);
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
        buffers,
        overflow: SpilledOutput::default(),
        framing: Framing::None,
        keep_alive: true,
        head_since: if awaited { idle.since } else { Moment::NEVER },
        must_send_continue: false,
        body_limit: None,
        body_timeout: timeouts.body,
        write_timeout: timeouts.write,
        progress: SendProgress::default(),
        moved_bytes: 0,
        request_bytes: 0,
        status_and_reason: None,
        kept_until_sent: None,
    };
    conn.update_memory();
    (idle.engine, conn)
}

/// Reverts [`activate`]; bytes of an incomplete head are kept in an allocation of exactly their size.
fn deactivate<S: Service>(engine: Rc<Engine<S>>, conn: Conn, idle_since: Moment) -> Box<IdleClient<S>> {
    let since = if conn.head_since == Moment::NEVER { idle_since } else { conn.head_since };
    let Conn { link, permit, peer, may_be_h2, proxy_header, served, mut buffers, .. } = conn;
    let partial_head: Box<[u8]> = Box::from(buffers.input.unconsumed());
    permit.hold(partial_head.len() + link.weight_bytes());
    buffers.release();
    Box::new(IdleClient { link, permit, engine, peer, may_be_h2, proxy_header, served, since, partial_head })
}
