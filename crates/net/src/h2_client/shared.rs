//! State of an HTTP/2 client connection, shared by its task and the tasks of its requests.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use http::{Fields, Method, ResponseHead};
use http2::{Machine, PeerLimits};
use times::{Millis, Moment};

use super::options::{H2Options, StreamFailure};
use crate::core::Core;
use crate::h2::Frames;
use crate::mux::send_queue::SendQueue;
use crate::mux::shared::StreamShared;
use crate::mux::{AbortReason, StreamPriority};
use crate::source::{GONE, HALF_CLOSED, READ, Source, WRITE};

/// Receive window of each stream, in bytes.
const STREAM_WINDOW: u32 = 64 * 1024;
/// Memory of a stream without its buffers and heads.
const STREAM_BYTES: usize = 1024;
/// Memory of a connection that is not counted otherwise; mostly its task.
const CONNECTION_BYTES: usize = 2 * 1024;
/// Maximum number of unread heads of a response: interim ones and the final one.
const HEADS_MAX: usize = 8;
/// Unsent bytes at which no further request begins, so that a server that does not read gets no more heads.
const OUT_BYTES_FULL: usize = 256 * 1024;
/// Time in milliseconds after which an unanswered ping prevents further requests.
const UNANSWERED_PING: Millis = Millis(1_000);

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientState {
    /// The server's SETTINGS have not arrived.
    Opening,
    /// Requests can begin.
    Open,
    /// No further requests can begin; those in progress continue.
    Draining,
    /// The connection has ended.
    Ended,
}

/// A received head, with the bytes that its spans refer to.
pub(crate) type ReceivedHead = (ResponseHead, Vec<u8>);

/// State of a request, shared by its task and the connection's task.
pub(crate) struct ClientStream {
    pub(crate) shared: Rc<StreamShared>,
    pub(crate) method: Method,
    pub(crate) heads: RefCell<VecDeque<ReceivedHead>>,
    /// Reason why the response is incomplete, if it has failed.
    pub(crate) failure: Cell<Option<StreamFailure>>,
    /// Time at which something was last received, on the core's clock; 0 if nothing was.
    pub(crate) received_at: Cell<Moment>,
}

/// State shared by the tasks of a connection.
pub(crate) struct ClientConn {
    pub(crate) core: Core,
    pub(crate) options: H2Options,
    pub(crate) frames: RefCell<Frames>,
    streams: RefCell<HashMap<u32, Rc<ClientStream>>>,
    send_queue: RefCell<SendQueue>,
    /// Readable when a stream has output or has ended.
    pub(crate) wake_source: Rc<Source>,
    pub(crate) state: Cell<ClientState>,
    /// Number of requests that have begun.
    requests_begun: Cell<u32>,
    pub(crate) opened_at: Moment,
    /// Time at which bytes were last received.
    pub(crate) received_at: Cell<Moment>,
    /// Time at which the unanswered ping was sent.
    pub(crate) pinged_at: Cell<Option<Moment>>,
    /// Total of frame bytes passed to the link, and of bytes that the server is known to have received.
    pub(crate) drained_bytes: Cell<u64>,
    pub(crate) acknowledged_bytes: Cell<u64>,
    on_change: Box<dyn Fn()>,
    streams_bytes: Cell<usize>,
    own_bytes: Cell<usize>,
    /// Bytes charged to the core's memory.
    held_bytes: Cell<usize>,
}

impl ClientConn {
    pub(crate) fn new(core: &Core, options: &H2Options, on_change: Box<dyn Fn()>) -> ClientConn {
        let streams_max = options.streams_max.clamp(1, 1_000);
        let connection_window = STREAM_WINDOW * streams_max;
        // The maximum of windows and heads; the state machine also limits frames without content.
        let held_bytes_max =
            2 * (connection_window as usize + streams_max as usize * options.head.head_bytes_max);
        let machine = Machine::client(http2::Options {
            head: options.head,
            stream_window: STREAM_WINDOW,
            connection_window,
            stream_bytes: 0,
            peer_limits: PeerLimits { held_bytes_max, ..PeerLimits::default() },
            ..http2::Options::default()
        });
        let news = core.add_source();
        news.clear(WRITE);
        let conn = ClientConn {
            core: core.clone(),
            options: H2Options { streams_max, ..*options },
            frames: RefCell::new(Frames { machine, out: Vec::new() }),
            streams: RefCell::default(),
            send_queue: RefCell::default(),
            wake_source: news,
            state: Cell::new(ClientState::Opening),
            requests_begun: Cell::new(0),
            opened_at: core.now(),
            received_at: Cell::new(core.now()),
            pinged_at: Cell::new(None),
            drained_bytes: Cell::new(0),
            acknowledged_bytes: Cell::new(0),
            on_change,
            streams_bytes: Cell::new(0),
            own_bytes: Cell::new(0),
            held_bytes: Cell::new(0),
        };
        conn.set_own_bytes(0);
        conn
    }

    /// Returns the number of bytes that the server may send before any window update.
    pub(crate) fn window_bytes(&self) -> usize {
        STREAM_WINDOW as usize * self.options.streams_max as usize
    }

    /// Returns the number of requests whose tasks have not ended.
    pub(crate) fn live_streams(&self) -> usize {
        self.streams.borrow().len()
    }

    pub(crate) fn requests_begun(&self) -> u32 {
        self.requests_begun.get()
    }

    /// Whether a request can begin now. Before the server's SETTINGS have arrived, its limit is unknown, so
    /// only one can.
    pub(crate) fn can_begin(&self) -> bool {
        let now = self.core.now();
        let frames = self.frames.borrow();
        let is_in_doubt = self.pinged_at.get().is_some_and(|at_ms| now >= at_ms + UNANSWERED_PING);
        match self.state.get() {
            ClientState::Opening => self.requests_begun.get() == 0,
            ClientState::Open => {
                !is_in_doubt
                    && self.live_streams() < self.options.streams_max as usize
                    && frames.out.len() < OUT_BYTES_FULL
                    && frames.machine.can_request().is_ok()
            }
            ClientState::Draining | ClientState::Ended => false,
        }
    }

    /// Adds the request that has begun on stream `id`.
    pub(crate) fn add(&self, id: u32, method: Method) -> Rc<ClientStream> {
        let priority = StreamPriority { urgency: 3, is_incremental: true };
        let shared = Rc::new(StreamShared::new(id, self.core.add_source(), priority));
        let stream = Rc::new(ClientStream {
            shared,
            method,
            heads: RefCell::default(),
            failure: Cell::new(None),
            received_at: Cell::new(Moment::ZERO),
        });
        self.streams.borrow_mut().insert(id, stream.clone());
        let served = self.requests_begun.get().saturating_add(1);
        self.requests_begun.set(served);
        if self.options.requests_max > 0 && served >= self.options.requests_max {
            self.begin_draining();
        }
        self.notify();
        stream
    }

    /// Removes a request whose task has ended, complete or not.
    pub(crate) fn remove(&self, stream: &ClientStream) {
        self.streams.borrow_mut().remove(&stream.shared.id);
        self.set_stream_bytes(stream, 0);
        self.core.deregister(&stream.shared.source);
        let is_in_doubt = stream.received_at.get() == Moment::ZERO && stream.failure.get().is_none();
        let mut frames = self.frames.borrow_mut();
        frames.machine.release(stream.shared.id);
        // If the server never responded to the request, ask it whether it is alive.
        if is_in_doubt && self.pinged_at.get().is_none() && self.state.get() == ClientState::Open {
            frames.machine.ping(*b"alive? \0");
            self.pinged_at.set(Some(self.core.now()));
        }
        drop(frames);
        self.notify();
        self.notify_change();
    }

    /// Prevents further requests.
    pub(crate) fn begin_draining(&self) {
        if matches!(self.state.get(), ClientState::Opening | ClientState::Open) {
            self.state.set(ClientState::Draining);
            self.notify();
            self.notify_change();
        }
    }

    /// Ends the connection: every request that is not complete fails.
    pub(crate) fn end(&self, failure: StreamFailure) {
        self.state.set(ClientState::Ended);
        let streams: Vec<_> = self.streams.borrow().values().cloned().collect();
        streams.iter().for_each(|stream| self.fail(stream, failure));
        self.set_own_bytes(0);
        self.notify_change();
    }

    pub(crate) fn notify_change(&self) {
        (self.on_change)();
    }

    /// Schedules the connection's task.
    pub(crate) fn notify(&self) {
        self.core.set_ready(&self.wake_source, READ);
    }

    /// Schedules a stream that has output.
    pub(crate) fn enqueue(&self, stream: &ClientStream) {
        self.send_queue.borrow_mut().push(&stream.shared);
        self.notify();
    }

    // ---- memory ----

    /// Sets the memory of a stream, in bytes.
    pub(crate) fn set_stream_bytes(&self, stream: &ClientStream, bytes: usize) {
        let before = stream.shared.held_bytes.replace(bytes);
        self.streams_bytes.set(self.streams_bytes.get() + bytes - before);
        self.update_memory();
    }

    /// Sets the memory of the connection's task, in bytes.
    pub(crate) fn set_own_bytes(&self, bytes: usize) {
        let frames = self.frames.borrow();
        self.own_bytes.set(bytes + frames.out.capacity() + frames.machine.own_bytes());
        drop(frames);
        self.update_memory();
    }

    fn update_memory(&self) {
        let after = CONNECTION_BYTES + self.own_bytes.get() + self.streams_bytes.get();
        let before = self.held_bytes.replace(after);
        if before != after {
            self.core.memory().change(before, after);
        }
    }

    // ---- operations of the connection's task on streams ----

    pub(crate) fn stream(&self, id: u32) -> Option<Rc<ClientStream>> {
        self.streams.borrow().get(&id).cloned()
    }

    /// Receives a head, final or interim. Returns false if too many are unread.
    pub(crate) fn receive_head(&self, stream: &ClientStream, head: ReceivedHead) -> bool {
        let mut heads = stream.heads.borrow_mut();
        if heads.len() >= HEADS_MAX {
            return false;
        }
        heads.push_back(head);
        drop(heads);
        self.note_received(stream);
        true
    }

    /// Receives body bytes.
    pub(crate) fn receive(&self, id: u32, bytes: &[u8]) {
        let Some(stream) = self.stream(id) else {
            // The stream is gone; discard its data.
            return self.frames.borrow_mut().machine.grant(id, bytes.len());
        };
        if !bytes.is_empty() {
            stream.shared.input.borrow_mut().bytes.extend_from_slice(bytes);
            self.note_received(&stream);
        }
    }

    /// Marks the response as complete.
    pub(crate) fn end_response(&self, id: u32, trailers: Fields) {
        if let Some(stream) = self.stream(id) {
            let mut input = stream.shared.input.borrow_mut();
            (input.ended, input.trailers) = (true, trailers);
            drop(input);
            self.note_received(&stream);
        }
    }

    fn note_received(&self, stream: &ClientStream) {
        stream.received_at.set(self.core.now().max(Moment(1)));
        self.set_stream_bytes(stream, stream.weight_bytes());
        self.core.set_ready(&stream.shared.source, READ);
    }

    /// Fails the request, unless its response is complete. Nothing more is sent.
    pub(crate) fn fail(&self, stream: &ClientStream, failure: StreamFailure) {
        // A request whose response has begun must not be repeated.
        let failure = match failure {
            StreamFailure::NotProcessed if stream.received_at.get() > Moment::ZERO => StreamFailure::Reset,
            failure => failure,
        };
        if !stream.shared.input.borrow().ended && stream.failure.get().is_none() {
            stream.failure.set(Some(failure));
        }
        stream.shared.abort(AbortReason::Peer);
        self.core.set_ready(&stream.shared.source, READ | WRITE | HALF_CLOSED | GONE);
    }

    /// Fails the requests above this stream, which the server has not processed.
    pub(crate) fn fail_above(&self, last: u32) {
        let left: Vec<_> =
            self.streams.borrow().iter().filter(|(id, _)| **id > last).map(|(_, it)| it.clone()).collect();
        left.iter().for_each(|stream| self.fail(stream, StreamFailure::NotProcessed));
    }

    /// Schedules one stream or all streams, because the window has grown.
    pub(crate) fn unblock(&self, id: Option<u32>) {
        let streams = self.streams.borrow();
        let mut waiting: Vec<_> = match id {
            Some(id) => streams.get(&id).into_iter().collect(),
            None => streams.values().collect(),
        };
        waiting.retain(|stream| stream.shared.output.borrow().is_waiting());
        waiting.sort_unstable_by_key(|stream| stream.shared.id);
        let mut turns = self.send_queue.borrow_mut();
        waiting.into_iter().for_each(|stream| turns.push(&stream.shared));
    }

    /// Frames the output of streams in turn, until `bytes_max` bytes are unsent.
    pub(crate) fn fill_out(&self, bytes_max: usize) {
        let mut frames = self.frames.borrow_mut();
        while frames.out.len() < bytes_max {
            let Some(stream) = self.send_queue.borrow_mut().pop() else { return };
            let mut output = stream.output.borrow_mut();
            // A stream blocked by flow control is scheduled again by a window update.
            if stream.is_reset() || !output.is_waiting() || !output.frame(stream.id, usize::MAX, &mut *frames)
            {
                continue;
            }
            let waits = output.is_waiting();
            drop(output);
            stream.framed_position.set(self.drained_bytes.get() + frames.out.len() as u64);
            self.core.set_ready(&stream.source, WRITE);
            if waits {
                self.send_queue.borrow_mut().requeue(stream);
            }
        }
    }
}

impl ClientStream {
    /// Returns the memory held by the buffers, in bytes.
    pub(crate) fn weight_bytes(&self) -> usize {
        let heads = self.heads.borrow();
        let heads: usize = heads.iter().map(head_bytes).sum();
        let buffers =
            self.shared.input.borrow().bytes.capacity() + self.shared.output.borrow().bytes.capacity();
        STREAM_BYTES + heads + buffers
    }
}

/// Returns the memory held by a head, in bytes.
pub(crate) fn head_bytes((head, bytes): &ReceivedHead) -> usize {
    bytes.capacity() + head.fields.weight_bytes()
}

impl Drop for ClientConn {
    fn drop(&mut self) {
        self.core.memory().change(self.held_bytes.get(), 0);
        self.core.deregister(&self.wake_source);
    }
}
