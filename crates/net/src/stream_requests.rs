//! The requests of a multiplexed connection: their admission, the tasks that serve them, and the announced end
//! of the connection.

use std::any::Any;
use std::pin::pin;
use std::rc::Rc;

use http::{BodySize, Fields, Reject, Version};
use times::{Millis, Moment};

use crate::conn::REQUEST_WEIGHT_BYTES;
use crate::exchange::Exchange;
use crate::fault::Fault;
use crate::lane::Lane;
use crate::memory::Pressure;
use crate::mux::{MuxConn, MuxEvent, ResetReason, StreamLane, StreamRequest};
use crate::request::Request;
use crate::request_state::{ReplyState, RequestState};
use crate::service::{Engine, Service, run_handler};

/// Limit of tasks of reset streams that still run, in addition to the limit of streams: a fraction of that
/// limit, plus a constant. Reset streams no longer count against the client's limit, so this bounds a client
/// that opens and resets streams rapidly.
const RESET_SHARE: usize = 4;
const RESET_EXTRA: usize = 8;
/// Time for which requests are still accepted after GOAWAY was sent, for those already on their way.
pub(crate) const GOAWAY_GRACE_TIME: Millis = Millis(500);

/// The requests of one connection, in the connection's task.
pub(crate) struct StreamRequests<S> {
    engine: Rc<Engine<S>>,
    conn: Rc<MuxConn>,
    served: u32,
    /// A request that must wait for another task to end; nothing is read until then.
    held: Option<(u32, Box<StreamRequest>)>,
    /// Time at which GOAWAY announced the end.
    leaves_since: Option<Moment>,
    /// Whether new streams are refused.
    goes_away: bool,
    idle_since: Moment,
}

/// Remaining traffic of a connection, apart from that of its streams.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WireState {
    /// Whether the connection must still send.
    pub(crate) has_output: bool,
    /// Whether nothing more is received.
    pub(crate) has_ended: bool,
}

/// Result of [`StreamRequests::check_end`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionEnd {
    /// The connection continues.
    No,
    /// GOAWAY was framed: send it.
    Announced,
    /// The connection has no stream and ends.
    Now {
        /// Whether the server stops and there was no stream for [`GOAWAY_GRACE_TIME`].
        is_unused: bool,
    },
}

impl<S: Service> StreamRequests<S> {
    pub(crate) fn new(engine: Rc<Engine<S>>, conn: Rc<MuxConn>) -> StreamRequests<S> {
        let idle_since = conn.core.now();
        StreamRequests {
            engine,
            conn,
            served: 0,
            held: None,
            leaves_since: None,
            goes_away: false,
            idle_since,
        }
    }

    /// Whether a request waits for another task to end.
    pub(crate) fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Whether the end of the connection was announced.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaves_since.is_some()
    }

    /// Forgets the request that waits.
    pub(crate) fn drop_held(&mut self) {
        self.held = None;
    }

    /// Starts the request that waited, if it may begin.
    pub(crate) fn resume_held(&mut self) {
        let conn = &self.conn;
        let begins = self.held.take_if(|_| check_admission(conn) != RequestAdmission::Hold);
        if let Some((id, request)) = begins {
            start_stream(&self.engine, conn, id, *request);
        }
    }

    /// Passes an event to its stream, or starts the stream. Returns the cost of the event in bytes, in
    /// addition to those received. The protocol must not be borrowed.
    pub(crate) fn handle(&mut self, event: MuxEvent<'_>) -> usize {
        let conn = &self.conn;
        match event {
            MuxEvent::Request(id, _)
                if self.goes_away || check_admission(conn) == RequestAdmission::Refuse =>
            {
                conn.machine.borrow_mut().reset(id, ResetReason::Refused);
            }
            // An error page would need memory. The first stream of a connection gets one: see `serve_stream`.
            MuxEvent::Request(id, _)
                if conn.live_streams() > 0 && conn.core.memory().pressure() >= Pressure::Critical =>
            {
                conn.core.memory().count_refused();
                conn.machine.borrow_mut().reset(id, ResetReason::Refused);
            }
            MuxEvent::Request(id, request) => {
                self.served = self.served.saturating_add(1);
                // The stream may have ended when this returns.
                self.idle_since = conn.core.now();
                match check_admission(conn) {
                    RequestAdmission::Hold => self.held = Some((id, request)),
                    _ => start_stream(&self.engine, conn, id, *request),
                }
                return REQUEST_WEIGHT_BYTES;
            }
            MuxEvent::Data(id, bytes, ended) => {
                conn.receive(id, bytes);
                if ended {
                    conn.end_input(id, Fields::new());
                }
            }
            MuxEvent::End(id, trailers) => conn.end_input(id, trailers),
            MuxEvent::Priority(id, priority) => conn.prioritize(id, priority),
            MuxEvent::Reset(id, why) => conn.abort_stream(id, why),
            MuxEvent::Writable(id) => conn.unblock(id),
        }
        0
    }

    /// Announces the end of a connection that has served its requests or whose server stops, and decides
    /// whether it ends now.
    pub(crate) fn check_end(&mut self, wire: WireState) -> ConnectionEnd {
        let conn = &self.conn;
        let context = conn.context();
        let now = conn.core.now();
        let max = context.limits.get().requests_per_connection_max;
        let is_worn = max > 0 && self.served >= max;
        if self.leaves_since.is_none() && (is_worn || context.is_draining.get()) {
            self.leaves_since = Some(now);
            conn.machine.borrow_mut().go_away(false);
            return ConnectionEnd::Announced;
        }
        if self.leaves_since.is_some() {
            conn.permit.update_entry(|entry| {
                entry.requests = u32::try_from(conn.live_streams()).unwrap_or(u32::MAX)
            });
        }
        let has_left = self.leaves_since.is_some_and(|since| now >= since + GOAWAY_GRACE_TIME);
        if has_left && !std::mem::replace(&mut self.goes_away, true) {
            conn.machine.borrow_mut().go_away(true);
            return ConnectionEnd::Announced;
        }
        if conn.live_streams() > 0 {
            self.idle_since = now;
            return ConnectionEnd::No;
        }
        let timeouts = context.timeouts.get();
        let is_over = self.goes_away || wire.has_ended || conn.machine.borrow().is_peer_leaving();
        let idle_timeout = if self.served == 0 { timeouts.head } else { timeouts.idle };
        let is_idle = now >= self.idle_since + idle_timeout;
        if wire.has_output
            || !(is_over || is_idle || context.connection_limit.has_waiting(context.core.now()))
        {
            return ConnectionEnd::No;
        }
        let mut machine = conn.machine.borrow_mut();
        if !wire.has_ended && !machine.is_peer_leaving() {
            machine.go_away(true);
        }
        ConnectionEnd::Now {
            is_unused: context.is_draining.get() && now >= self.idle_since + GOAWAY_GRACE_TIME,
        }
    }
}

/// Result of the admission check of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestAdmission {
    Begin,
    /// Begins when the task of a closed stream has ended.
    Hold,
    /// The client has too many open streams, or has reset too many.
    Refuse,
}

/// Counts streams as the client does (RFC 9113 section 5.1.2): a stream is closed once both sides have ended
/// it, or one has reset it, although its task may still run.
fn check_admission(conn: &MuxConn) -> RequestAdmission {
    let live = conn.live_streams();
    let max = conn.context().limits.get().streams_max;
    if live < max {
        return RequestAdmission::Begin;
    }
    let (whole, reset) = conn.ended_counts();
    if live - whole - reset >= max || reset >= max / RESET_SHARE + RESET_EXTRA {
        RequestAdmission::Refuse
    } else if whole > 0 {
        RequestAdmission::Hold
    } else {
        RequestAdmission::Begin
    }
}

/// Starts the task of a stream and runs it up to its first wait.
fn start_stream<S: Service>(engine: &Rc<Engine<S>>, conn: &Rc<MuxConn>, id: u32, request: StreamRequest) {
    let engine = engine.clone();
    conn.core.start_in_place(|| {
        let refused = request.rejection;
        stream_task(engine, StreamLane::open(conn, id, request), refused)
    });
}

/// Serves one request in the task of its stream. Not an `async fn`, whose future would hold the lane twice.
#[allow(clippy::manual_async_fn)]
fn stream_task<S: Service>(
    engine: Rc<Engine<S>>,
    mut lane: StreamLane,
    refused: Option<Reject>,
) -> impl Future<Output = ()> {
    async move {
        let (kept, is_whole) = serve_stream(&engine, &mut lane, refused).await;
        // The connection's task sends the rest; a client that does not read it loses the stream.
        let is_sent = is_whole && lane.flush().await.is_ok();
        drop(kept);
        if is_sent {
            lane.discard_input().await;
        }
    }
}

/// Serves the request; returns the value to keep until the client has the response, and if that is whole.
async fn serve_stream<S: Service>(
    engine: &Rc<Engine<S>>,
    lane: &mut StreamLane,
    refused: Option<Reject>,
) -> (Option<Rc<dyn Any>>, bool) {
    lane.register_for_reset();
    let conn = lane.conn().clone();
    let core = conn.core.clone();
    let source = lane.source_rc();
    let mut state = RequestState::new(conn.endpoints.peer, conn.endpoints.client, core.now_us());
    state.listener_key = conn.permit.listener_key();
    state.tls.clone_from(&conn.endpoints.tls);
    let served = {
        let mut exchange = Exchange::new(&mut state, Lane::Stream(lane));
        match refused {
            Some(reject) => Err(Fault::Reject(reject)),
            None if core.memory().pressure() >= Pressure::Critical => {
                Box::pin(exchange.refuse_for_memory()).await
            }
            None => run_handler(&source, &core, pin!(engine.service.serve(&mut exchange))).await,
        }
    };
    let mut exchange = Exchange::new(&mut state, Lane::Stream(lane));
    let mut fault = served.and_then(|()| exchange.end(&Fields::new())).err();
    let mut is_whole = match &fault {
        None => true,
        Some(fault) if exchange.state.reply == ReplyState::Unsent => exchange.answer_fault(fault).await,
        Some(_) => matches!(exchange.state.reply, ReplyState::Done | ReplyState::Body(BodySize::None)),
    };
    if is_whole && fault.is_some() {
        // The response was complete before its handler failed, or is the error page.
        let _ = exchange.end(&Fields::new());
    }
    lane.hold(0);
    if is_whole && (state.is_large() || lane.overflow.is_some()) {
        state.release_handler();
        if let Err(failed) = lane.flush().await {
            is_whole = false;
            fault = fault.or(Some(failed));
        }
    }
    if !is_whole {
        state.subtract_undelivered(lane.undelivered_bytes());
    }
    let counters = &conn.context().counters;
    counters.requests.add(1);
    match lane.head().version {
        Version::Http3 => counters.http3_requests.add(1),
        _ => counters.http2_requests.add(1),
    }
    let fault = fault.map(|fault| lane.explain(fault));
    let request = Request::of(&state, lane.head());
    engine.service.log(&state.record(Some(request), fault.as_ref(), &core));
    (state.kept_until_sent.take(), is_whole)
}
