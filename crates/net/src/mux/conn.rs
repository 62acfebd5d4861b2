//! State of a multiplexed connection, shared by its task and the tasks of its streams.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;

use http::Fields;
use times::Millis;

use super::protocol::{AbortReason, MuxProtocol, ResetReason, StreamPriority};
use super::send_queue::SendQueue;
use super::shared::StreamShared;
use super::stream_map::StreamMap;
use crate::address::{Client, Peer};
use crate::conn::OUT_BYTES_MAX;
use crate::core::Core;
use crate::permit::{ConnectionPermit, ServingContext};
use crate::progress;
use crate::source::{GONE, HALF_CLOSED, READ, Source, WRITE};
use crate::tls::TlsSession;

/// Size of the buffer for framing, which the connections of a core share.
const FRAMES_BYTES: usize = OUT_BYTES_MAX + 16 * 1024;
/// Capacity that a connection keeps for heads and control frames without that buffer.
const SMALL_BYTES_MAX: usize = 4 * 1024;
/// Size of the frame headers made at a time: four of nine bytes.
const FRAME_HEADERS_BYTES: usize = 36;
/// Room below which no frame is made.
const FRAMED_BYTES_MIN: usize = 512;
/// Size of a response that may be framed without a turn in the queue. Larger ones could keep more urgent ones waiting.
pub(super) const DIRECT_BYTES_MAX: usize = 4 * 1024;
/// Memory of a connection that is not counted otherwise; mostly its task.
const CONNECTION_BYTES: usize = 2 * 1024;

/// The ends of a connection.
pub(crate) struct MuxEndpoints {
    pub(crate) peer: Peer,
    /// The client of the connection; a trusted proxy may name another one in a request.
    pub(crate) client: Client,
    pub(crate) local_address: Option<SocketAddr>,
    /// The TLS session; `None` for a cleartext connection.
    pub(crate) tls: Option<Rc<TlsSession>>,
}

/// State shared by the tasks of a connection.
pub(crate) struct MuxConn {
    pub(crate) core: Core,
    pub(crate) permit: ConnectionPermit,
    pub(crate) endpoints: MuxEndpoints,
    pub(crate) machine: Rc<RefCell<dyn MuxProtocol>>,
    streams: RefCell<StreamMap<Rc<StreamShared>>>,
    send_queue: RefCell<SendQueue>,
    /// Streams with output that wait for their bandwidth limit.
    paused: RefCell<Vec<Rc<StreamShared>>>,
    /// The machine's own buffer, stored here while it uses the core's.
    own_buffer: Cell<Vec<u8>>,
    /// Readable when a stream has output or has ended.
    pub(crate) wake_source: Rc<Source>,
    /// Whether the connection's task is distributing what it has received, and will send next.
    is_feeding: Cell<bool>,
    /// Whether streams may frame their output meanwhile, because everything framed before was sent.
    frames_directly: Cell<bool>,
    /// Whether the peer has closed its sending side, so that no window update can arrive.
    peer_ended: Cell<bool>,
    /// Total of frame bytes that left the machine's buffer, and of those known to be received.
    pub(crate) drained_bytes: Cell<u64>,
    pub(crate) acknowledged_bytes: Cell<u64>,
    /// Position of the last frame of streams that have ended and may not be acknowledged, and the longest
    /// write timeout of these.
    ended_streams: Cell<(u64, Millis)>,
    /// Memory of the streams, in bytes.
    streams_bytes: Cell<usize>,
    /// Memory of the connection's task, in bytes.
    own_bytes: Cell<usize>,
}

impl MuxConn {
    pub(crate) fn new(
        permit: ConnectionPermit,
        ends: MuxEndpoints,
        machine: Rc<RefCell<dyn MuxProtocol>>,
    ) -> MuxConn {
        let core = permit.context().core.clone();
        let news = core.add_source();
        news.clear(WRITE);
        MuxConn {
            core,
            permit,
            endpoints: ends,
            machine,
            streams: RefCell::default(),
            send_queue: RefCell::default(),
            paused: RefCell::default(),
            own_buffer: Cell::default(),
            wake_source: news,
            is_feeding: Cell::new(false),
            frames_directly: Cell::new(false),
            peer_ended: Cell::new(false),
            drained_bytes: Cell::new(0),
            acknowledged_bytes: Cell::new(0),
            ended_streams: Cell::new((0, Millis::ZERO)),
            streams_bytes: Cell::new(0),
            own_bytes: Cell::new(0),
        }
    }

    pub(crate) fn context(&self) -> &Rc<ServingContext> {
        self.permit.context()
    }

    /// Returns the number of streams whose tasks have not ended.
    pub(crate) fn live_streams(&self) -> usize {
        self.streams.borrow().len()
    }

    /// Returns how many of these streams both sides have ended, and how many were reset.
    pub(crate) fn ended_counts(&self) -> (usize, usize) {
        let streams = self.streams.borrow();
        let reset = streams.values().filter(|stream| stream.is_reset()).count();
        (streams.values().filter(|stream| !stream.is_reset() && stream.is_closed()).count(), reset)
    }

    /// Adds a stream. It is writable, and nothing was received.
    pub(crate) fn add(&self, stream: &Rc<StreamShared>) {
        self.streams.borrow_mut().insert(stream.id, stream.clone());
    }

    /// Removes a stream whose task has ended.
    pub(crate) fn remove(&self, stream: &StreamShared) {
        self.streams.borrow_mut().remove(&stream.id);
        self.set_stream_bytes(stream, 0);
        let framed = self.position(stream);
        if framed > self.acknowledged_bytes.get() {
            let (position, timeout) = self.ended_streams.get();
            self.ended_streams.set((position.max(framed), timeout.max(stream.write_timeout.get())));
        }
        self.core.deregister(&stream.source);
        self.paused.borrow_mut().retain(|paused| paused.id != stream.id);
        let mut machine = self.machine.borrow_mut();
        machine.set_write_timeout(stream.id, stream.write_timeout.get());
        if stream.is_reset() || stream.is_closed() {
            machine.close(stream.id)
        } else if !stream.is_broken.get() && stream.output.borrow().ended {
            machine.reset(stream.id, ResetReason::Answered)
        } else if stream.is_broken.get() || stream.is_tunnel.get() {
            machine.reset(stream.id, ResetReason::Tunnel)
        } else {
            machine.reset(stream.id, ResetReason::Failed)
        }
        drop(machine);
        self.notify();
    }

    /// Returns the position of the stream's last bytes in the connection's output.
    pub(crate) fn position(&self, stream: &StreamShared) -> u64 {
        self.machine.borrow().position(stream.id).unwrap_or(stream.framed_position.get())
    }

    /// Schedules the connection's task, unless it is about to look.
    pub(crate) fn notify(&self) {
        if !self.is_feeding.get() {
            self.core.set_ready(&self.wake_source, READ);
        }
    }

    /// Runs the part of the connection's task that distributes what was received. `is_unblocked`: everything framed
    /// so far was sent.
    pub(crate) fn while_feeding<R>(&self, is_unblocked: bool, feed: impl FnOnce() -> R) -> R {
        self.is_feeding.set(true);
        self.frames_directly.set(is_unblocked);
        let fed = feed();
        self.is_feeding.set(false);
        self.frames_directly.set(false);
        fed
    }

    /// Schedules a stream that has output.
    pub(crate) fn enqueue(&self, stream: &Rc<StreamShared>) {
        self.send_queue.borrow_mut().push(stream);
        self.notify();
    }

    // ---- memory ----

    /// Sets the memory of a stream, in bytes.
    pub(crate) fn set_stream_bytes(&self, stream: &StreamShared, bytes: usize) {
        let before = stream.held_bytes.replace(bytes);
        self.streams_bytes.set(self.streams_bytes.get() + bytes - before);
        self.update_memory();
    }

    /// Returns the memory of all streams, in bytes.
    pub(crate) fn streams_bytes(&self) -> usize {
        self.streams_bytes.get()
    }

    /// Sets the memory of the connection's task, in bytes.
    pub(crate) fn set_own_bytes(&self, bytes: usize) {
        self.own_bytes.set(bytes + self.machine.borrow().held_bytes());
        self.update_memory();
    }

    fn update_memory(&self) {
        self.permit.hold(CONNECTION_BYTES + self.own_bytes.get() + self.streams_bytes.get());
    }

    /// Releases memory that an idle connection does not need.
    pub(crate) fn shrink(&self) {
        self.machine.borrow_mut().shrink();
        self.send_queue.borrow_mut().shrink();
        self.own_buffer.take();
        self.paused.borrow_mut().shrink_to_fit();
        self.streams.borrow_mut().shrink_to_fit();
    }

    // ---- operations of the connection's task on streams ----

    /// Receives body bytes of a request.
    pub(crate) fn receive(&self, id: u32, bytes: &[u8]) {
        let Some(stream) = self.stream(id) else {
            // The stream is gone; discard its data.
            return self.machine.borrow_mut().grant(id, bytes.len());
        };
        if bytes.is_empty() {
            return;
        }
        stream.input.borrow_mut().bytes.extend_from_slice(bytes);
        self.set_stream_bytes(&stream, stream.held_bytes.get() + bytes.len());
        self.core.set_ready(&stream.source, READ);
    }

    /// Marks the request as complete.
    pub(crate) fn end_input(&self, id: u32, trailers: Fields) {
        if let Some(stream) = self.stream(id) {
            let mut input = stream.input.borrow_mut();
            (input.ended, input.trailers) = (true, trailers);
            drop(input);
            self.core.set_ready(&stream.source, READ);
        }
    }

    /// Changes the priority of a response. A scheduled stream keeps its place.
    pub(crate) fn prioritize(&self, id: u32, priority: StreamPriority) {
        if let Some(stream) = self.stream(id) {
            stream.priority.set(priority);
        }
    }

    /// Marks a stream as reset by the peer, or because of the peer's error.
    pub(crate) fn abort_stream(&self, id: u32, why: AbortReason) {
        if let Some(stream) = self.stream(id) {
            stream.abort(why);
            self.core.set_ready(&stream.source, READ | WRITE | HALF_CLOSED | GONE);
        }
    }

    /// Notifies all streams that the connection has ended, or (`None`) that the peer sends no more.
    pub(crate) fn notify_streams(&self, gone: Option<AbortReason>) {
        for stream in self.streams.borrow().values() {
            if let Some(why) = gone {
                stream.abort(why);
            }
            let bits = if gone.is_some() { READ | WRITE | HALF_CLOSED | GONE } else { READ | HALF_CLOSED };
            stream.input.borrow_mut().is_truncated = true;
            self.core.set_ready(&stream.source, bits);
        }
        // Schedules streams blocked by flow control, so that they are reset.
        self.peer_ended.set(true);
        self.unblock(None);
    }

    /// Schedules one stream or all streams, because the window has grown.
    pub(crate) fn unblock(&self, id: Option<u32>) {
        let mut turns = self.send_queue.borrow_mut();
        match id {
            Some(id) => {
                if let Some(stream) = self.stream(id).filter(|stream| stream.output.borrow().is_waiting()) {
                    turns.push(&stream);
                }
            }
            None => {
                let streams = self.streams.borrow();
                let mut waiting: Vec<_> =
                    streams.values().filter(|stream| stream.output.borrow().is_waiting()).collect();
                waiting.sort_unstable_by_key(|stream| stream.id);
                waiting.into_iter().for_each(|stream| turns.push(stream));
            }
        }
    }

    /// Frames the output of streams in turn, until `bytes_max` bytes are unsent.
    pub(crate) fn fill_out(&self, bytes_max: usize) {
        self.resume_paused();
        let mut machine = self.machine.borrow_mut();
        let now = self.core.now();
        loop {
            let room = bytes_max.saturating_sub(machine.unsent_bytes());
            if room < FRAMED_BYTES_MIN {
                return;
            }
            let Some(stream) = self.send_queue.borrow_mut().pop() else { return };
            if stream.is_reset() || !stream.output.borrow().is_waiting() {
                continue;
            }
            if let Some(bucket) = stream.exhausted_bucket(now) {
                bucket.pause(&self.core, &self.wake_source, READ);
                if !bucket.is_listed.replace(true) {
                    self.paused.borrow_mut().push(stream.clone());
                }
                continue;
            }
            if let Some(out) = machine.shared_out() {
                self.lend_buffer(out);
            }
            if !stream.frame(room - FRAME_HEADERS_BYTES, now, &mut *machine) {
                // Blocked by flow control until a window update. Reset if none can arrive.
                if self.peer_ended.get() {
                    stream.abort(AbortReason::Peer);
                    self.core.set_ready(&stream.source, READ | WRITE | HALF_CLOSED | GONE);
                }
                continue;
            }
            stream.framed_position.set(self.drained_bytes.get() + machine.unsent_bytes() as u64);
            let output = stream.output.borrow();
            let waits = output.is_waiting();
            let reads = output.file.is_some();
            drop(output);
            // While a file is being sent, the stream's task has nothing to do.
            if !(waits && reads) {
                self.core.set_ready(&stream.source, WRITE);
            }
            if waits {
                self.send_queue.borrow_mut().requeue(stream);
            }
        }
    }

    /// Frames content of a small response at once, without a turn in the queue, if no stream waits for its turn. Returns
    /// false if it has to be queued.
    pub(crate) fn frame_directly(&self, stream: &StreamShared, bytes: &[u8]) -> bool {
        if !self.may_frame_directly(stream) || bytes.len() > DIRECT_BYTES_MAX {
            return false;
        }
        let mut machine = self.machine.borrow_mut();
        let room = OUT_BYTES_MAX.saturating_sub(machine.unsent_bytes());
        if bytes.len() + FRAMED_BYTES_MIN > room || machine.capacity(stream.id) < bytes.len() {
            return false;
        }
        if let Some(out) = machine.shared_out() {
            self.lend_buffer(out);
        }
        machine.data(stream.id, bytes, false);
        stream.framed_position.set(self.drained_bytes.get() + machine.unsent_bytes() as u64);
        true
    }

    /// Ends a response without trailers at once, if everything before was framed. Returns false if the end has to be
    /// queued.
    pub(crate) fn end_directly(&self, stream: &StreamShared) -> bool {
        if !self.may_frame_directly(stream) {
            return false;
        }
        let mut machine = self.machine.borrow_mut();
        machine.end(stream.id);
        stream.framed_position.set(self.drained_bytes.get() + machine.unsent_bytes() as u64);
        true
    }

    fn may_frame_directly(&self, stream: &StreamShared) -> bool {
        self.frames_directly.get()
            && !stream.is_reset()
            && stream.bucket().is_none()
            && stream.output.borrow().is_framed()
            && self.send_queue.borrow().is_empty()
    }

    /// Schedules the paused streams whose bandwidth limit permits sending again.
    fn resume_paused(&self) {
        let mut paused = self.paused.borrow_mut();
        let now = self.core.now();
        paused.retain(|stream| {
            let stays = !stream.is_reset() && stream.exhausted_bucket(now).is_some();
            if let (false, Some(bucket)) = (stays, stream.bucket()) {
                bucket.is_listed.set(false);
                self.send_queue.borrow_mut().push(stream);
            }
            stays
        });
    }

    /// Counts bytes that have left the machine's buffer.
    pub(crate) fn count_drained(&self, bytes: usize) {
        self.drained_bytes.set(self.drained_bytes.get() + bytes as u64);
    }

    /// Returns the time for which the client may accept nothing: the longest one of the routes whose responses
    /// it has not received. Streams whose output was framed, and those that have ended, are among them.
    pub(crate) fn stall_timeout(&self) -> Millis {
        let (position, timeout) = self.ended_streams.get();
        let is_unacknowledged = position > self.acknowledged_bytes.get();
        if !is_unacknowledged {
            self.ended_streams.set((0, Millis::ZERO));
        }
        let streams = self.streams.borrow();
        let live = streams.values().map(|stream| stream.write_timeout.get());
        let write_timeout = live.chain(is_unacknowledged.then_some(timeout)).max();
        let write_timeout = write_timeout.unwrap_or_else(|| self.context().timeouts.get().write);
        progress::stall_timeout(write_timeout, self.core.memory().pressure())
    }

    /// Whether a stream is scheduled for sending.
    pub(crate) fn has_queued_streams(&self) -> bool {
        !self.send_queue.borrow().is_empty()
    }

    /// Gives the core's framing buffer to the connection if it has a smaller one.
    fn lend_buffer(&self, out: &mut Vec<u8>) {
        if out.capacity() < FRAMES_BYTES {
            let mut lent = self.context().shared_frames.take();
            lent.reserve_exact(FRAMES_BYTES);
            lent.extend_from_slice(out);
            out.clear();
            self.own_buffer.set(std::mem::replace(out, lent));
        }
    }

    /// Returns the buffer to the core when everything was sent, so that the next connection uses memory that
    /// is in the processor's cache.
    pub(crate) fn return_buffer(&self, out: &mut Vec<u8>) {
        out.clear();
        if out.capacity() >= FRAMES_BYTES {
            let mut lent = std::mem::replace(out, self.own_buffer.take());
            lent.shrink_to(FRAMES_BYTES);
            self.context().shared_frames.set(lent);
        }
        out.shrink_to(SMALL_BYTES_MAX);
    }

    fn stream(&self, id: u32) -> Option<Rc<StreamShared>> {
        self.streams.borrow().get(&id).cloned()
    }
}

impl Drop for MuxConn {
    fn drop(&mut self) {
        self.core.deregister(&self.wake_source);
    }
}
