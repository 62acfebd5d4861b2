//! State of a shared client connection, shared by its task and the tasks of its requests.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use http::{FieldList, Fields, Method, ResponseHead, Status};
use times::{Millis, Moment};

use super::options::{MuxLinkOptions, StreamFailure};
use crate::core::Core;
use crate::fault::Fault;
use crate::mux::send_queue::SendQueue;
use crate::mux::shared::StreamShared;
use crate::mux::{AbortReason, ClientProtocol, StreamPriority};
use crate::source::{GONE, HALF_CLOSED, READ, Source, WRITE};

/// Memory of a stream without its buffers and heads.
const STREAM_BYTES: usize = 1024;
/// Memory of a connection that is not counted otherwise; mostly its task.
const CONNECTION_BYTES: usize = 2 * 1024;
/// Maximum number of unread heads of a response: interim ones and the final one.
const HEADS_MAX: usize = 8;
/// Unsent bytes at which no further request begins, so that a server that does not read gets no more heads.
const OUT_BYTES_FULL: usize = 256 * 1024;
/// Cancelled requests from which on a connection is worn. Servers close connections on which several hundred streams were
/// reset (1,000 with Node and nghttp2, 500 with Komainu and Envoy), and all responses on them break off.
pub(super) const CANCELLED_MAX: u32 = 64;
/// Time in milliseconds after which an unanswered ping prevents further requests.
const UNANSWERED_PING: Millis = Millis(1_000);

/// Interval of checks whether a connection is too old or idle, or its server too slow.
pub(super) const CHECK_INTERVAL: Millis = Millis(1_000);
/// Time for which a server may accept no bytes.
pub(super) const WRITE_TIMEOUT: Millis = Millis(60_000);
/// Time limit for the server's SETTINGS, from the start of the connection.
const SETTINGS_TIMEOUT: Millis = Millis(10_000);
/// Time limit for the answer to a ping while nothing else is received.
const PONG_TIMEOUT: Millis = Millis(10_000);

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
    pub(crate) options: MuxLinkOptions,
    pub(crate) protocol: Rc<RefCell<dyn ClientProtocol>>,
    streams: RefCell<HashMap<u32, Rc<ClientStream>>>,
    send_queue: RefCell<SendQueue>,
    /// Readable when a stream has output or has ended.
    pub(crate) wake_source: Rc<Source>,
    pub(crate) state: Cell<ClientState>,
    /// Number of requests that have begun.
    requests_begun: Cell<u32>,
    /// Number of requests that either side has cancelled.
    cancelled: Cell<u32>,
    opened_at: Moment,
    /// Time at which a request was last in progress.
    active_at: Cell<Moment>,
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

/// Ends all streams when the task ends, is dropped or panics.
pub(super) struct EndGuard(pub(super) Rc<ClientConn>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.end(StreamFailure::Closed);
    }
}

impl ClientConn {
    pub(crate) fn new(
        core: &Core,
        options: MuxLinkOptions,
        protocol: Rc<RefCell<dyn ClientProtocol>>,
        on_change: Box<dyn Fn()>,
    ) -> ClientConn {
        let news = core.add_source();
        news.clear(WRITE);
        let conn = ClientConn {
            core: core.clone(),
            options,
            protocol,
            streams: RefCell::default(),
            send_queue: RefCell::default(),
            wake_source: news,
            state: Cell::new(ClientState::Opening),
            requests_begun: Cell::new(0),
            cancelled: Cell::new(0),
            opened_at: core.now(),
            active_at: Cell::new(core.now()),
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

    /// Returns the position of the stream's last bytes in the connection's output.
    pub(crate) fn position(&self, stream: &StreamShared) -> u64 {
        self.protocol.borrow().position(stream.id).unwrap_or(stream.framed_position.get())
    }

    /// Returns the number of requests whose tasks have not ended.
    pub(crate) fn live_streams(&self) -> usize {
        self.streams.borrow().len()
    }

    pub(crate) fn requests_begun(&self) -> u32 {
        self.requests_begun.get()
    }

    /// Whether so many requests were cancelled that no further ones should begin.
    pub(crate) fn is_worn(&self) -> bool {
        self.cancelled.get() >= CANCELLED_MAX
    }

    /// Whether a request can begin now. Before the server's SETTINGS have arrived, its limit is unknown, so
    /// only one can.
    pub(crate) fn can_begin(&self) -> bool {
        let now = self.core.now();
        let mut protocol = self.protocol.borrow_mut();
        let is_in_doubt = self.pinged_at.get().is_some_and(|at_ms| now >= at_ms + UNANSWERED_PING);
        match self.state.get() {
            ClientState::Opening => self.requests_begun.get() == 0,
            ClientState::Open => {
                !is_in_doubt
                    && self.live_streams() < self.options.streams_max as usize
                    && protocol.unsent_bytes() < OUT_BYTES_FULL
                    && protocol.can_request()
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
        let mut protocol = self.protocol.borrow_mut();
        if protocol.release(stream.shared.id) {
            self.cancelled.set(self.cancelled.get().saturating_add(1));
        }
        // If the server never responded to the request, ask it whether it is alive.
        if is_in_doubt && self.pinged_at.get().is_none() && self.state.get() == ClientState::Open {
            protocol.ping();
            self.pinged_at.set(Some(self.core.now()));
        }
        drop(protocol);
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

    /// Notes that the server's SETTINGS have arrived.
    pub(crate) fn open(&self) {
        if self.state.get() == ClientState::Opening {
            self.state.set(ClientState::Open);
        }
        self.notify_change();
    }

    /// Checks for a timeout (no SETTINGS, no answer to a ping); prevents further requests if the connection is idle or
    /// too old.
    ///
    /// # Errors
    /// The timeout; without SETTINGS with `no_settings`.
    pub(crate) fn check_timeouts(&self, no_settings: &'static str) -> Result<(), Fault> {
        let now = self.core.now();
        if self.state.get() == ClientState::Opening && now >= self.opened_at + SETTINGS_TIMEOUT {
            return Err(Fault::Failed(no_settings));
        }
        if self.pinged_at.get().is_some_and(|at| now >= at.max(self.received_at.get()) + PONG_TIMEOUT) {
            return Err(Fault::Timeout);
        }
        if self.live_streams() > 0 {
            self.active_at.set(now);
        }
        let is_idle = self.live_streams() == 0 && now >= self.active_at.get() + self.options.idle_timeout;
        if is_idle || now >= self.opened_at + self.options.age_max {
            self.begin_draining();
        }
        Ok(())
    }

    /// Whether the connection has no further purpose.
    pub(crate) fn is_drained(&self) -> bool {
        self.state.get() == ClientState::Draining && self.live_streams() == 0
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
        self.own_bytes.set(bytes + self.protocol.borrow().held_bytes());
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

    /// Receives a head, final or interim. If `ended`, nothing follows it.
    pub(crate) fn receive_head(
        &self,
        id: u32,
        status: Status,
        fields: FieldList,
        bytes: Vec<u8>,
        ended: bool,
    ) {
        let Some(stream) = self.stream(id) else { return };
        let head = ResponseHead::of_stream(status, fields, &bytes, stream.method, ended);
        let mut heads = stream.heads.borrow_mut();
        if heads.len() >= HEADS_MAX {
            self.protocol.borrow_mut().cancel_flood(id);
            drop(heads);
            return self
                .fail(&stream, StreamFailure::Invalid("the upstream sends too many interim responses"));
        }
        heads.push_back((head, bytes));
        drop(heads);
        self.note_received(&stream);
        if ended {
            self.end_response(id, Fields::new());
        }
    }

    /// Receives body bytes.
    pub(crate) fn receive(&self, id: u32, bytes: &[u8]) {
        let Some(stream) = self.stream(id) else {
            // The stream is gone; discard its data.
            return self.protocol.borrow_mut().grant(id, bytes.len());
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

    /// Fails the request of this stream, if it is in progress.
    pub(crate) fn fail_stream(&self, id: u32, failure: StreamFailure) {
        if let Some(stream) = self.stream(id) {
            self.fail(&stream, failure);
        }
    }

    /// Fails the requests from this stream on, which the server has not processed.
    pub(crate) fn fail_from(&self, first: u64) {
        let left: Vec<_> = self
            .streams
            .borrow()
            .iter()
            .filter(|(id, _)| u64::from(**id) >= first)
            .map(|(_, it)| it.clone())
            .collect();
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

    /// Whether streams have output that can be framed.
    pub(crate) fn has_queued_streams(&self) -> bool {
        !self.send_queue.borrow().is_empty()
    }

    /// Frames the output of streams in turn, until `bytes_max` bytes are unsent.
    pub(crate) fn fill_out(&self, bytes_max: usize) {
        let mut protocol = self.protocol.borrow_mut();
        while protocol.unsent_bytes() < bytes_max {
            let Some(stream) = self.send_queue.borrow_mut().pop() else { return };
            let mut output = stream.output.borrow_mut();
            // A stream blocked by flow control is scheduled again by a window update.
            let is_framed = !stream.is_reset()
                && output.is_waiting()
                && output.frame(stream.id, usize::MAX, &mut *protocol);
            if !is_framed {
                continue;
            }
            let waits = output.is_waiting();
            drop(output);
            stream.framed_position.set(self.drained_bytes.get() + protocol.unsent_bytes() as u64);
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
