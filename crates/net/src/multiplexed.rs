//! Multiplexed connections over a stream of bytes. A connection's task moves bytes between the link and the state
//! machine; each stream has a task of its own.
//!
//! ```text
//! link ──▶ machine ──events──▶ streams (one task each, woken through their sources)
//!   ◀── machine.out ◀──turns── output of the streams
//! ```

use std::cell::RefCell;
use std::rc::Rc;

use http::machine::ServerMachine;
use times::{Millis, Moment};

use crate::buffer_pool::HeldBuffers;
use crate::conn::{Conn, OUT_BYTES_MAX};
use crate::connections::ConnectionProtocol;
use crate::ending;
use crate::fault::Fault;
use crate::link::Link;
use crate::mux::{AbortReason, ByteProtocol, MuxConn, MuxEndpoints};
use crate::progress::SendProgress;
use crate::service::{Engine, Service};
use crate::source::READ;
use crate::stream_requests::{ConnectionEnd, GOAWAY_GRACE_TIME, StreamRequests, WireState};
use crate::wait::{self, Interest};

/// Size of the input buffer.
const INPUT_BYTES: usize = 32 * 1024;
/// Bytes moved before the task yields to other connections.
const TURN_BYTES_MAX: usize = 256 * 1024;
/// Cost of a refused stream or a frame without data against [`TURN_BYTES_MAX`].
const EVENT_WEIGHT_BYTES: usize = 64;
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
    permit.update_entry(|entry| entry.protocol = ConnectionProtocol::Http2);
    let conn = Rc::new(MuxConn::new(permit, ends, machine.clone()));
    let mut wire = Wire {
        link,
        machine,
        buffers: work,
        unconsumed: Vec::new(),
        ended: false,
        sent: 0,
        is_blocked: false,
        progress: SendProgress::default(),
        checked_at: conn.core.now(),
        moved_bytes: 0,
    };
    // No response is sent to a client that closes or breaks the connection, or is too slow.
    let mut requests = StreamRequests::new(engine, conn.clone());
    let ended = run(&mut requests, &conn, &mut wire).await;
    conn.notify_streams(Some(ended.as_ref().err().map_or(AbortReason::Peer, AbortReason::of)));
    // Only a client that is still reading gets the machine's last frames.
    if matches!(ended, Ok(_) | Err(Fault::MuxError { .. })) {
        let _ = write(&conn, &mut wire);
        wire.buffers.release();
        wire.unconsumed = Vec::new();
        requests.drop_held();
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
    requests: &mut StreamRequests<S>,
    conn: &Rc<MuxConn>,
    wire: &mut Wire,
) -> Result<EndedState, Fault> {
    let mut owes_since = None;
    loop {
        let head_timeout = conn.context().timeouts.get().head;
        conn.machine.borrow_mut().limit_growth(conn.core.memory().window_growth_max());
        // Feed first: bytes may have been received together with the preface.
        let is_unblocked = wire.sent == 0 && !wire.is_blocked && !wire.link.has_pending_output();
        let fed = conn.while_feeding(is_unblocked, || feed(requests, conn, wire));
        conn.wake_source.clear(READ);
        let written = write(conn, wire);
        fed?;
        written?;
        let waits = wire.machine.borrow_mut().out().len() > wire.sent || wire.link.has_pending_output();
        match requests.check_end(WireState { has_output: waits, has_ended: wire.ended }) {
            ConnectionEnd::No => {}
            ConnectionEnd::Announced => continue,
            ConnectionEnd::Now { is_unused } => {
                let is_unused = is_unused && ending::has_sent_little(wire.link.stream());
                return Ok(if is_unused { EndedState::Unused } else { EndedState::Used });
            }
        }
        let now = conn.core.now();
        if wire.is_stalled(conn, waits) {
            return Err(Fault::Timeout);
        }
        let owes = wire.machine.borrow().awaits_peer().then(|| *owes_since.get_or_insert(now));
        owes_since = owes;
        if owes.is_some_and(|since| now >= since + head_timeout) {
            return Err(wire.machine.borrow_mut().close_overdue());
        }
        if std::mem::take(&mut wire.moved_bytes) >= TURN_BYTES_MAX {
            conn.core.yield_now().await;
            continue;
        }
        wait(requests, conn, wire, waits).await?;
    }
}

/// Waits for the client, for a stream that has output or has ended, or for a short time.
async fn wait<S: Service>(
    requests: &StreamRequests<S>,
    conn: &MuxConn,
    wire: &mut Wire,
    waits: bool,
) -> Result<(), Fault> {
    let reads = !requests.is_held() && wire.should_read(conn);
    wire.release_buffers();
    conn.set_own_bytes(wire.unconsumed.capacity() + wire.link.weight_bytes());
    let interest = wire.link.interest(Interest::of(reads, waits));
    let both = [(wire.link.stream().source(), interest), (&*conn.wake_source, Interest::READ)];
    let look = conn.core.now() + if requests.is_leaving() { GOAWAY_GRACE_TIME } else { CHECK_INTERVAL };
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
        if self.ended {
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
fn feed<S: Service>(requests: &mut StreamRequests<S>, conn: &MuxConn, wire: &mut Wire) -> Result<(), Fault> {
    let limits = conn.context().limits.get();
    requests.resume_held();
    while may_read(requests, conn, wire) {
        wire.acquire_buffers();
        let mut at = 0;
        while at < wire.buffers.input.unconsumed().len() && may_read(requests, conn, wire) {
            let bytes = &wire.buffers.input.unconsumed()[at..];
            let fed = wire.machine.borrow_mut().feed(bytes, &limits.head, conn.core.now());
            let (consumed, event) = match fed {
                Ok((0, None)) => break,
                Ok(fed) => fed,
                Err(fault) => return Err(fault),
            };
            at += consumed;
            wire.moved_bytes += consumed.max(EVENT_WEIGHT_BYTES);
            if let Some(event) = event {
                wire.moved_bytes += requests.handle(event);
            }
        }
        wire.buffers.input.consume(at);
        wire.buffers.input.next_head();
        if requests.is_held() || !wire.should_read(conn) || !wire.read(conn)? {
            return Ok(());
        }
    }
    Ok(())
}

/// Whether the connection's turn is not used up, and the client and the requests permit reading.
fn may_read<S: Service>(requests: &StreamRequests<S>, conn: &MuxConn, wire: &Wire) -> bool {
    wire.moved_bytes < TURN_BYTES_MAX && !requests.is_held() && wire.should_read(conn)
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
            machine.mark_sent();
            conn.count_drained(std::mem::take(&mut wire.sent));
        } else if wire.sent >= OUT_BYTES_MAX {
            // Sent bytes are removed when there are many.
            out.drain(..wire.sent);
            conn.count_drained(std::mem::take(&mut wire.sent));
        }
        if sent == 0 {
            return Ok(());
        }
        if wire.moved_bytes >= TURN_BYTES_MAX {
            return Ok(());
        }
    }
}
