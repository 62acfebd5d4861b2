//! Multiplexed connections. A connection's task moves bytes between the link and the state machine; each
//! stream has a task of its own.
//!
//! ```text
//! link ──▶ machine ──events──▶ streams (one task each, woken through their sources)
//!   ◀── machine.out ◀──turns── output of the streams
//! ```

use std::any::Any;
use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;

use http::machine::ServerMachine;
use http::{BodySize, Fields, Reject};
use times::{Millis, Moment};

use crate::buffer_pool::HeldBuffers;
use crate::conn::{Conn, OUT_BYTES_MAX, REQUEST_WEIGHT_BYTES};
use crate::ending;
use crate::exchange::Exchange;
use crate::fault::Fault;
use crate::lane::Lane;
use crate::link::Link;
use crate::memory::Pressure;
use crate::mux::{
    AbortReason, ByteProtocol, MuxConn, MuxEndpoints, MuxEvent, ResetReason, StreamLane, StreamRequest,
};
use crate::progress::SendProgress;
use crate::request::Request;
use crate::request_state::{ReplyState, RequestState};
use crate::service::{Engine, Service, run_handler};
use crate::source::READ;
use crate::wait;

/// Size of the input buffer.
const INPUT_BYTES: usize = 32 * 1024;
/// Bytes moved before the task yields to other connections.
const TURN_BYTES_MAX: usize = 256 * 1024;
/// Cost of a refused stream or a frame without data against [`TURN_BYTES_MAX`].
const EVENT_WEIGHT_BYTES: usize = 64;
/// Limit of tasks of reset streams that still run, in addition to the limit of streams: a fraction of that
/// limit, plus a constant. Reset streams no longer count against the client's limit, so this bounds a client
/// that opens and resets streams rapidly.
const RESET_SHARE: usize = 4;
const RESET_EXTRA: usize = 8;
/// Time for which requests are still accepted after GOAWAY was sent, for those already on their way.
const GOAWAY_GRACE_TIME: Millis = Millis(500);
/// Interval of checks whether the server is stopping or the client is too slow.
const CHECK_INTERVAL: Millis = Millis(1_000);

/// The transport of a connection and its buffers.
struct Wire {
    link: Link,
    machine: Rc<RefCell<dyn ByteProtocol>>,
    /// Pooled buffers, held while bytes are received; contain input that the machine has not consumed.
    buffers: HeldBuffers<ServerMachine>,
    /// Unconsumed input between reads, usually the beginning of a frame.
    unconsumed: Vec<u8>,
    /// Whether the peer has closed its sending side.
    ended: bool,
    /// Bytes of the machine's output that were sent.
    sent: usize,
    /// Whether the link accepted less than there was.
    is_blocked: bool,
    /// A request that must wait for another task to end; nothing is read until then.
    held_request: Option<(u32, Box<StreamRequest>)>,
    /// Progress of the client's reading, and the time of the last check.
    progress: SendProgress,
    checked_at: Moment,
    moved_bytes: usize,
}

/// Serves a connection of the machine's protocol until its end.
pub(crate) async fn serve<S: Service>(
    engine: Rc<Engine<S>>,
    conn: Conn,
    machine: Rc<RefCell<dyn ByteProtocol>>,
) {
    let ends = MuxEndpoints {
        peer: conn.peer,
        client: conn.direct_client(),
        local_address: conn.local_address(),
        tls: conn.link.session().cloned(),
    };
    let Conn { link, permit, buffers: work, .. } = conn;
    permit.update_entry(|entry| entry.is_http2 = true);
    let conn = Rc::new(MuxConn::new(permit, ends, machine.clone()));
    let mut wire = Wire {
        link,
        machine,
        buffers: work,
        unconsumed: Vec::new(),
        ended: false,
        sent: 0,
        is_blocked: false,
        held_request: None,
        progress: SendProgress::default(),
        checked_at: conn.core.now(),
        moved_bytes: 0,
    };
    // No response is sent to a client that closes or breaks the connection, or is too slow.
    let ended = run(&engine, &conn, &mut wire).await;
    conn.notify_streams(Some(ended.as_ref().err().map_or(AbortReason::Peer, AbortReason::of)));
    // Only a client that is still reading gets the machine's last frames.
    if matches!(ended, Ok(_) | Err(Fault::MuxError { .. })) {
        let _ = write(&conn, &mut wire);
        wire.buffers.release();
        (wire.unconsumed, wire.held_request) = (Vec::new(), None);
        conn.set_own_bytes(wire.link.weight_bytes());
        conn.permit.update_entry(|entry| entry.requests = 0);
        match ended {
            Ok(EndedState::Unused) => _ = ending::finish_sending(&mut wire.link, conn.stall_timeout()).await,
            _ => ending::linger(&mut wire.link, conn.stall_timeout(), usize::MAX).await,
        }
    }
}

/// State of a connection that has ended without a fault.
enum EndedState {
    /// The client may still be reading the last response.
    Used,
    /// The server stops, little was sent, and there was no stream for [`GOAWAY_GRACE_TIME`], so the client has nothing
    /// left to read.
    Unused,
}

async fn run<S: Service>(
    engine: &Rc<Engine<S>>,
    conn: &Rc<MuxConn>,
    wire: &mut Wire,
) -> Result<EndedState, Fault> {
    // Time at which GOAWAY announced the end, and whether new streams are now refused.
    let mut served = 0u32;
    let mut leaves_since = None;
    let mut goes_away = false;
    let mut idle_since = conn.core.now();
    let mut owes_since = None;
    loop {
        // A configuration reload may have changed them.
        let limits = conn.context().limits.get();
        let timeouts = conn.context().timeouts.get();
        conn.machine.borrow_mut().limit_growth(conn.core.memory().window_growth_max());
        // Feed first: bytes may have been received together with the preface.
        let fed = feed(engine, conn, wire, &mut served, goes_away);
        let written = write(conn, wire);
        fed?;
        written?;
        let max = limits.requests_per_connection_max;
        let is_worn = max > 0 && served >= max;
        if leaves_since.is_none() && (is_worn || conn.context().is_draining.get()) {
            leaves_since = Some(conn.core.now());
            conn.machine.borrow_mut().go_away(false);
            continue;
        }
        if leaves_since.is_some() {
            conn.permit.update_entry(|entry| {
                entry.requests = u32::try_from(conn.live_streams()).unwrap_or(u32::MAX)
            });
        }
        let has_left = leaves_since.is_some_and(|since| conn.core.now() >= since + GOAWAY_GRACE_TIME);
        if has_left && !std::mem::replace(&mut goes_away, true) {
            conn.machine.borrow_mut().go_away(true);
            continue;
        }
        if conn.live_streams() > 0 {
            idle_since = conn.core.now();
        }
        let waits = wire.machine.borrow_mut().out().len() > wire.sent || wire.link.has_pending_output();
        let is_over = goes_away || wire.ended || conn.machine.borrow().is_peer_leaving();
        let idle_timeout = if served == 0 { timeouts.head } else { timeouts.idle };
        let now = conn.core.now();
        let is_idle = now >= idle_since + idle_timeout;
        if conn.live_streams() == 0
            && !waits
            && (is_over || is_idle || conn.context().connection_limit.has_waiting())
        {
            let mut machine = conn.machine.borrow_mut();
            if !wire.ended && !machine.is_peer_leaving() {
                machine.go_away(true);
            }
            let is_unused = conn.context().is_draining.get()
                && now >= idle_since + GOAWAY_GRACE_TIME
                && ending::has_sent_little(wire.link.stream());
            return Ok(if is_unused { EndedState::Unused } else { EndedState::Used });
        }
        if wire.is_stalled(conn, waits) {
            return Err(Fault::Timeout);
        }
        let owes = wire.machine.borrow().awaits_peer().then(|| *owes_since.get_or_insert(now));
        owes_since = owes;
        if owes.is_some_and(|since| now >= since + timeouts.head) {
            return Err(wire.machine.borrow_mut().close_overdue());
        }
        if std::mem::take(&mut wire.moved_bytes) >= TURN_BYTES_MAX {
            conn.core.yield_now().await;
            continue;
        }
        wait(conn, wire, waits, leaves_since.is_some()).await?;
    }
}

/// Waits for the client, for a stream that has output or has ended, or for a short time.
async fn wait(conn: &MuxConn, wire: &mut Wire, waits: bool, leaves: bool) -> Result<(), Fault> {
    let reads = wire.should_read(conn);
    wire.release_buffers();
    conn.set_own_bytes(wire.unconsumed.capacity() + wire.link.weight_bytes());
    let interest = wire.link.interest(reads, waits);
    let both =
        [(wire.link.stream().source(), interest), (&*conn.wake_source, wait::Interest::of(true, false))];
    let look = conn.core.now() + if leaves { GOAWAY_GRACE_TIME } else { CHECK_INTERVAL };
    let waited = wait::any_ready(&conn.core, both, look, || wire.link.is_met_by_buffers(interest)).await;
    conn.wake_source.clear(READ);
    match waited {
        Err(Fault::Timeout) => {
            if conn.live_streams() == 0 && !waits {
                conn.shrink();
            }
            Ok(())
        }
        waited => waited,
    }
}

impl Wire {
    /// Whether to read from the client: not while it does not read what is sent to it.
    fn should_read(&self, conn: &MuxConn) -> bool {
        if self.ended || self.held_request.is_some() {
            return false;
        }
        let mut machine = self.machine.borrow_mut();
        let is_full = machine.out().len() - self.sent >= OUT_BYTES_MAX;
        let is_stuck = (self.is_blocked || self.link.has_pending_output()) && conn.has_queued_streams();
        !(is_full || is_stuck) || machine.is_measuring()
    }

    /// Whether the client has read nothing for too long, of sent or pending data.
    fn is_stalled(&mut self, conn: &MuxConn, waits: bool) -> bool {
        let now = conn.core.now();
        let handed_bytes = conn.drained_bytes.get() + self.sent as u64;
        if !waits && conn.acknowledged_bytes.get() >= handed_bytes {
            self.progress.stop();
            return false;
        }
        if now >= self.checked_at + CHECK_INTERVAL {
            self.checked_at = now;
            self.progress.check(self.link.stream());
            // The queue includes TLS overhead, so this is a lower bound.
            let taken_bytes = handed_bytes.saturating_sub(u64::from(self.progress.queued()));
            conn.acknowledged_bytes.set(taken_bytes.max(conn.acknowledged_bytes.get()));
        }
        let since = self.progress.since(self.link.stream());
        now >= since + CHECK_INTERVAL && now >= since + conn.stall_timeout()
    }

    /// Takes buffers from the pool if none are held.
    fn acquire_buffers(&mut self) {
        self.buffers.hold();
        if !self.unconsumed.is_empty() {
            let room = self.buffers.input.room(0, INPUT_BYTES, self.unconsumed.len());
            room[..self.unconsumed.len()].copy_from_slice(&self.unconsumed);
            self.buffers.input.filled(self.unconsumed.len());
            self.unconsumed = Vec::new();
        }
    }

    /// Returns the buffers to the pool before a wait.
    fn release_buffers(&mut self) {
        if let Some(work) = self.buffers.held() {
            self.unconsumed.extend_from_slice(work.input.unconsumed());
            self.buffers.release();
        }
    }
}

/// Reads available bytes and distributes them to the streams.
fn feed<S: Service>(
    engine: &Rc<Engine<S>>,
    conn: &Rc<MuxConn>,
    wire: &mut Wire,
    served: &mut u32,
    goes_away: bool,
) -> Result<(), Fault> {
    let limits = conn.context().limits.get();
    if let Some((id, request)) =
        wire.held_request.take_if(|_| check_admission(conn) != RequestAdmission::Hold)
    {
        start_stream(engine, conn, id, *request);
    }
    while wire.moved_bytes < TURN_BYTES_MAX && wire.should_read(conn) {
        wire.acquire_buffers();
        let mut at = 0;
        while at < wire.buffers.input.unconsumed().len()
            && wire.moved_bytes < TURN_BYTES_MAX
            && wire.should_read(conn)
        {
            let bytes = &wire.buffers.input.unconsumed()[at..];
            let now = conn.core.now();
            let fed = wire.machine.borrow_mut().feed(bytes, &limits.head, now);
            let (consumed, event) = match fed {
                Ok((0, None)) => break,
                Ok(fed) => fed,
                Err(fault) => return Err(fault),
            };
            at += consumed;
            wire.moved_bytes += consumed.max(EVENT_WEIGHT_BYTES);
            match event {
                None => {}
                Some(MuxEvent::Request(id, _))
                    if goes_away || check_admission(conn) == RequestAdmission::Refuse =>
                {
                    conn.machine.borrow_mut().reset(id, ResetReason::Refused);
                }
                // An error page would need memory. The first stream of a connection gets one: see `answer`.
                Some(MuxEvent::Request(id, _))
                    if conn.live_streams() > 0 && conn.core.memory().pressure() >= Pressure::Critical =>
                {
                    conn.core.memory().count_refused();
                    conn.machine.borrow_mut().reset(id, ResetReason::Refused);
                }
                Some(MuxEvent::Request(id, request)) => {
                    wire.moved_bytes += REQUEST_WEIGHT_BYTES;
                    *served = served.saturating_add(1);
                    match check_admission(conn) {
                        RequestAdmission::Hold => wire.held_request = Some((id, request)),
                        _ => start_stream(engine, conn, id, *request),
                    }
                }
                Some(MuxEvent::Data(id, bytes, ended)) => {
                    conn.receive(id, bytes);
                    if ended {
                        conn.end_input(id, Fields::new());
                    }
                }
                Some(MuxEvent::End(id, trailers)) => conn.end_input(id, trailers),
                Some(MuxEvent::Priority(id, priority)) => conn.prioritize(id, priority),
                Some(MuxEvent::Reset(id, why)) => conn.abort_stream(id, why),
                Some(MuxEvent::Writable(id)) => conn.unblock(id),
            }
        }
        wire.buffers.input.consume(at);
        wire.buffers.input.next_head();
        if !wire.should_read(conn) || !wire.read(conn)? {
            return Ok(());
        }
    }
    Ok(())
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
    match live - whole - reset >= max || reset >= max / RESET_SHARE + RESET_EXTRA {
        true => RequestAdmission::Refuse,
        false if whole > 0 => RequestAdmission::Hold,
        false => RequestAdmission::Begin,
    }
}

/// Starts the task of a stream.
fn start_stream<S: Service>(engine: &Rc<Engine<S>>, conn: &Rc<MuxConn>, id: u32, request: StreamRequest) {
    let refused = request.rejection;
    let lane = StreamLane::open(conn, id, request);
    let engine = engine.clone();
    conn.core.spawn_in_place(move || stream_task(engine, lane, refused));
}

impl Wire {
    /// Reads more bytes; returns false if none are available or the peer has ended.
    fn read(&mut self, conn: &MuxConn) -> Result<bool, Fault> {
        // Leaves room for a frame or the rest of one, which the machine may need as a whole.
        let room = self.buffers.input.room(0, INPUT_BYTES, INPUT_BYTES / 2);
        match self.link.try_read(room)? {
            Some(0) => {
                self.ended = true;
                conn.notify_streams(None);
                Ok(false)
            }
            Some(len) => {
                self.buffers.input.filled(len);
                self.moved_bytes += len;
                Ok(true)
            }
            None => Ok(false),
        }
    }
}

/// Frames the output of streams and writes as much as the client accepts. New frames are made only after all
/// earlier ones were sent, so that files are not read early and urgent streams overtake others.
fn write(conn: &MuxConn, wire: &mut Wire) -> Result<(), Fault> {
    loop {
        if wire.link.has_pending_output() && !wire.link.try_flush()? {
            return Ok(());
        }
        if !wire.is_blocked {
            conn.fill_out(wire.sent + OUT_BYTES_MAX);
        }
        let mut machine = wire.machine.borrow_mut();
        let out = machine.out();
        let waiting = out.len() - wire.sent;
        if waiting == 0 {
            conn.count_drained(wire.sent);
            conn.return_buffer(out);
            (wire.sent, wire.is_blocked) = (0, false);
            return Ok(());
        }
        let sent = wire.link.try_write(&[&out[wire.sent..]], false)?;
        wire.sent += sent;
        wire.moved_bytes += sent;
        wire.is_blocked = sent < waiting;
        if !wire.is_blocked {
            out.clear();
            conn.count_drained(std::mem::take(&mut wire.sent));
        }
        if sent == 0 {
            return Ok(());
        }
        // Sent bytes are removed when there are many.
        if wire.sent >= OUT_BYTES_MAX {
            out.drain(..wire.sent);
            conn.count_drained(std::mem::take(&mut wire.sent));
        }
        if wire.moved_bytes >= TURN_BYTES_MAX {
            return Ok(());
        }
    }
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
        lane.hold(0);
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
    let fault = served.and_then(|()| exchange.end(&Fields::new())).err();
    let is_whole = match &fault {
        None => true,
        Some(fault) if exchange.state.reply == ReplyState::Unsent => exchange.answer_fault(fault).await,
        Some(_) => matches!(exchange.state.reply, ReplyState::Done | ReplyState::Body(BodySize::None)),
    };
    if is_whole && fault.is_some() {
        // The response was complete before its handler failed, or is the error page.
        let _ = exchange.end(&Fields::new());
    }
    conn.context().counters.requests.add(1);
    let fault = fault.map(|fault| lane.explain(fault));
    let request = Request::of(&state, lane.head());
    engine.service.log(&state.record(Some(request), fault.as_ref(), &core));
    (state.kept_until_sent.take(), is_whole)
}
