//! The task of an HTTP/2 client connection, which moves bytes between the socket and the state machine.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use http::Fields;
use http2::{ErrorCode, Event, Machine, PeerLimits};
use times::Moment;

use super::options::{MuxLinkOptions, StreamFailure};
use super::shared::{CHECK_INTERVAL, ClientConn, ClientState, EndGuard, WRITE_TIMEOUT};
use crate::conn::OUT_BYTES_MAX;
use crate::ending;
use crate::fault::Fault;
use crate::h2::Frames;
use crate::link::Link;
use crate::progress::SendProgress;
use crate::source::READ;
use crate::wait::{self, Interest};

/// Size of a read.
const INPUT_BYTES: usize = 32 * 1024;
/// Bytes moved before the task yields to other connections.
const TURN_BYTES_MAX: usize = 256 * 1024;
/// Cost of an event without data against [`TURN_BYTES_MAX`].
const EVENT_WEIGHT_BYTES: usize = 64;
/// Receive window of each stream, in bytes.
const STREAM_WINDOW: u32 = 64 * 1024;
/// Credit of a server. Clients can make it reset streams or violate the protocol on them: enough for all streams of a
/// connection that [`CANCELLED_MAX`](super::shared::CANCELLED_MAX) ends, none of which may cost the others theirs.
const SERVER_CREDIT_MAX: u32 = 8_000;
/// Maximum number of connections of a thread that are shut down in an orderly way at a time. Further ones are
/// closed at once, so that servers which do not close theirs cannot exhaust the descriptors.
const SHUTDOWNS_MAX: usize = 256;

thread_local! {
    static SHUTDOWNS: Cell<usize> = const { Cell::new(0) };
}

/// The transport of a connection and its buffers.
struct ClientWire {
    link: Link,
    frames: Rc<RefCell<Frames>>,
    /// Received bytes that the state machine has not consumed.
    input: Vec<u8>,
    /// Whether the server has closed its sending side.
    ended: bool,
    /// Progress of the server's reading, and the time of the last check.
    progress: SendProgress,
    checked_at: Moment,
    moved_bytes: usize,
}

/// Creates the state of a connection.
pub(super) fn frames(options: &MuxLinkOptions) -> Rc<RefCell<Frames>> {
    let connection_window = STREAM_WINDOW * options.streams_max;
    // The maximum of windows and heads; the state machine also limits frames without content.
    let held_bytes_max =
        2 * (connection_window as usize + options.streams_max as usize * options.head.head_bytes_max);
    let machine = Machine::client(http2::Options {
        head: options.head,
        stream_window: STREAM_WINDOW,
        connection_window,
        streams_bound_unread: true,
        stream_bytes: 0,
        peer_limits: PeerLimits { held_bytes_max, credit_max: SERVER_CREDIT_MAX },
        ..http2::Options::default()
    });
    Rc::new(RefCell::new(Frames::new(machine)))
}

/// Runs a connection until its end.
pub(super) async fn drive(conn: Rc<ClientConn>, frames: Rc<RefCell<Frames>>, link: Link) {
    let guard = EndGuard(conn.clone());
    let now = conn.core.now();
    let mut wire = ClientWire {
        link,
        frames,
        input: Vec::new(),
        ended: false,
        progress: SendProgress::default(),
        checked_at: now,
        moved_bytes: 0,
    };
    let ended = run(&conn, &mut wire).await;
    conn.end(match ended {
        Err(Fault::Failed(reason)) => StreamFailure::Invalid(reason),
        _ => StreamFailure::Closed,
    });
    // A server that is gone or reads nothing gets no GOAWAY.
    if matches!(ended, Ok(()) | Err(Fault::Failed(_))) {
        let _ = write(&conn, &mut wire);
        wire.input = Vec::new();
        conn.set_own_bytes(wire.link.weight_bytes());
        if let Some(_ending) = ShutdownPermit::begin() {
            // The server may send at most what its window permits.
            let window_bytes = STREAM_WINDOW as usize * conn.options.streams_max as usize;
            ending::linger(&mut wire.link, WRITE_TIMEOUT, window_bytes).await;
        }
    }
    drop(guard);
}

/// One of the [`SHUTDOWNS_MAX`] connections being shut down.
struct ShutdownPermit;

impl ShutdownPermit {
    fn begin() -> Option<ShutdownPermit> {
        SHUTDOWNS.with(|ending| {
            let is_free = ending.get() < SHUTDOWNS_MAX;
            is_free.then(|| ending.set(ending.get() + 1)).map(|()| ShutdownPermit)
        })
    }
}

impl Drop for ShutdownPermit {
    fn drop(&mut self) {
        SHUTDOWNS.with(|ending| ending.set(ending.get() - 1));
    }
}

async fn run(conn: &ClientConn, wire: &mut ClientWire) -> Result<(), Fault> {
    loop {
        let growth = u32::try_from(conn.core.memory().window_growth_max()).unwrap_or(u32::MAX);
        wire.frames.borrow_mut().machine.limit_growth(growth);
        receive_events(conn, wire)?;
        conn.fill_out(OUT_BYTES_MAX);
        write(conn, wire)?;
        if wire.ended {
            return Ok(());
        }
        check_timeouts(conn, wire)?;
        if conn.is_drained() {
            let mut frames = wire.frames.borrow_mut();
            frames.machine.shutdown();
            let frames = &mut *frames;
            frames.machine.flush(&mut frames.out);
            return Ok(());
        }
        if std::mem::take(&mut wire.moved_bytes) >= TURN_BYTES_MAX {
            conn.core.yield_now().await;
            continue;
        }
        wait(conn, wire).await?;
    }
}

/// Ends the connection on a timeout; stops using it if it is idle, too old, or accepts no requests.
fn check_timeouts(conn: &ClientConn, wire: &mut ClientWire) -> Result<(), Fault> {
    let waits = !wire.frames.borrow().out.is_empty() || wire.link.has_pending_output();
    if wire.is_stalled(conn, waits) {
        return Err(Fault::Timeout);
    }
    let is_useless = wire.frames.borrow().machine.peer_settings().streams_max == 0;
    if conn.state.get() == ClientState::Open && is_useless {
        conn.begin_draining();
    }
    conn.check_timeouts("the upstream sends no HTTP/2 settings")
}

/// Waits for the server, for a stream that has output or has ended, or for a short time.
async fn wait(conn: &ClientConn, wire: &mut ClientWire) -> Result<(), Fault> {
    if wire.input.is_empty() {
        wire.input = Vec::new();
    }
    conn.set_own_bytes(wire.input.capacity() + wire.link.weight_bytes());
    let waits = !wire.frames.borrow().out.is_empty();
    let interest = wire.link.interest(Interest::of(true, waits));
    let both = [(wire.link.stream().source(), interest), (&*conn.wake_source, Interest::READ)];
    let waited = wait::any_ready(&conn.core, both, conn.core.now() + CHECK_INTERVAL, || {
        wire.link.is_met_by_buffers(interest)
    })
    .await;
    conn.wake_source.clear(READ);
    match waited {
        Err(Fault::Timeout) => Ok(()),
        waited => waited,
    }
}

/// Reads available bytes and distributes them to the streams.
fn receive_events(conn: &ClientConn, wire: &mut ClientWire) -> Result<(), Fault> {
    while wire.moved_bytes < TURN_BYTES_MAX && !wire.ended {
        let mut at = 0;
        while at < wire.input.len() {
            let fed = wire.frames.borrow_mut().machine.feed(&wire.input[at..], conn.core.now().0);
            let (consumed, event) = match fed {
                Ok((0, Event::NeedMore)) => break,
                Ok(fed) => fed,
                Err(error) => {
                    let frames = &mut *wire.frames.borrow_mut();
                    frames.machine.flush(&mut frames.out);
                    return Err(Fault::Failed(describe_protocol_error(conn, &wire.input, error.reason)));
                }
            };
            on_event(conn, &wire.frames, event, &wire.input[at..]);
            at += consumed;
            wire.moved_bytes += consumed.max(EVENT_WEIGHT_BYTES);
        }
        wire.input.drain(..at);
        if !wire.read(conn)? {
            return Ok(());
        }
    }
    Ok(())
}

/// Gives a clear message for a server that does not speak HTTP/2.
fn describe_protocol_error(conn: &ClientConn, input: &[u8], reason: &'static str) -> &'static str {
    match conn.state.get() {
        ClientState::Opening if input.starts_with(b"HTTP/1") => "the upstream speaks HTTP/1 and not HTTP/2",
        _ => reason,
    }
}

fn on_event(conn: &ClientConn, frames: &RefCell<Frames>, event: Event, bytes: &[u8]) {
    match event {
        Event::Head { stream, ended } => on_head(conn, frames, stream, ended),
        Event::Data { stream, data, ended } => {
            conn.receive(stream, data.of(bytes));
            if ended {
                conn.end_response(stream, Fields::new());
            }
        }
        Event::Trailers { stream } => {
            let trailers = std::mem::take(&mut frames.borrow_mut().machine.trailers);
            conn.end_response(stream, trailers);
        }
        Event::Reset { stream, code: ErrorCode::REFUSED_STREAM } => {
            conn.fail_stream(stream, StreamFailure::NotProcessed);
        }
        Event::Reset { stream, .. } => conn.fail_stream(stream, StreamFailure::Reset),
        Event::Aborted { stream, reason, .. } => conn.fail_stream(stream, StreamFailure::Invalid(reason)),
        Event::Writable { stream: 0 } => conn.unblock(None),
        Event::Writable { stream } => conn.unblock(Some(stream)),
        Event::Settings => {
            conn.unblock(None);
            conn.open();
        }
        Event::GoAway { last_stream, .. } => {
            conn.begin_draining();
            conn.fail_from(u64::from(last_stream) + 1);
        }
        Event::Pong { .. } => {
            conn.pinged_at.set(None);
            conn.notify_change();
        }
        Event::Refused { .. } | Event::Reprioritized { .. } | Event::NeedMore => {}
    }
}

fn on_head(conn: &ClientConn, frames: &RefCell<Frames>, id: u32, ended: bool) {
    let mut head = http::Head::default();
    let mut bytes = Vec::new();
    let mut frames = frames.borrow_mut();
    let status = frames.machine.status;
    frames.machine.swap_head(&mut head, &mut bytes);
    drop(frames);
    conn.receive_head(id, status, head.fields, bytes, ended);
}

impl ClientWire {
    /// Whether the server has accepted nothing for too long, of sent or pending data.
    fn is_stalled(&mut self, conn: &ClientConn, waits: bool) -> bool {
        let now = conn.core.now();
        let drained_bytes = conn.drained_bytes.get();
        if !waits && conn.acknowledged_bytes.get() >= drained_bytes {
            self.progress.stop();
            return false;
        }
        if now >= self.checked_at + CHECK_INTERVAL {
            self.checked_at = now;
            self.progress.check(self.link.stream());
            // The queue includes TLS overhead, so this is a lower bound.
            let taken_bytes = drained_bytes.saturating_sub(u64::from(self.progress.queued()));
            conn.acknowledged_bytes.set(taken_bytes.max(conn.acknowledged_bytes.get()));
        }
        now >= self.progress.since(self.link.stream()) + WRITE_TIMEOUT
    }

    /// Reads more bytes; returns false if none are available or the server has ended.
    fn read(&mut self, conn: &ClientConn) -> Result<bool, Fault> {
        let filled = self.input.len();
        self.input.resize(filled + INPUT_BYTES, 0);
        let read = self.link.try_read(&mut self.input[filled..]);
        self.input.truncate(filled + read.as_ref().map_or(0, |read| read.unwrap_or(0)));
        match read? {
            Some(0) => self.ended = true,
            Some(len) => {
                self.moved_bytes += len;
                conn.received_at.set(conn.core.now());
                return Ok(true);
            }
            None => {}
        }
        Ok(false)
    }
}

/// Writes as much as the server accepts, and frames more output as it is sent.
fn write(conn: &ClientConn, wire: &mut ClientWire) -> Result<(), Fault> {
    let shared = wire.frames.clone();
    loop {
        let mut frames = shared.borrow_mut();
        let Frames { machine, out, .. } = &mut *frames;
        machine.flush(out);
        if out.is_empty() {
            out.shrink_to(OUT_BYTES_MAX);
            if wire.link.has_pending_output() {
                wire.link.try_flush()?;
            }
            return Ok(());
        }
        let sent = wire.link.try_write(&[&out[..]], false)?;
        out.drain(..sent);
        conn.drained_bytes.set(conn.drained_bytes.get() + sent as u64);
        let is_empty = out.is_empty();
        drop(frames);
        if sent == 0 {
            return Ok(());
        }
        wire.moved_bytes += sent;
        if is_empty && wire.moved_bytes < TURN_BYTES_MAX {
            conn.fill_out(OUT_BYTES_MAX);
        }
    }
}
