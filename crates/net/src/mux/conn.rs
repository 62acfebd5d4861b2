//! A multiplexed connection as its task and the tasks of its streams share it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;

use http::Fields;

use super::protocol::{CutReason, MuxProtocol, ResetReason, StreamPriority};
use super::shared::StreamShared;
use super::turns::Turns;
use crate::address::{Client, Peer};
use crate::conn::OUT_BYTES_MAX;
use crate::core::Core;
use crate::permit::{ConnectionPermit, Context};
use crate::progress;
use crate::source::{GONE, HALF_CLOSED, READ, Source, WRITE};
use crate::tls::TlsSession;

/// Frames are made in a buffer of so many bytes, which the connections of a core share.
const FRAMES_BYTES: usize = OUT_BYTES_MAX + 16 * 1024;
/// What a connection without that buffer keeps for heads and control frames.
const SMALL_BYTES_MAX: usize = 4 * 1024;
/// The headers of frames made at a time: four of nine bytes.
const FRAME_HEADERS_BYTES: usize = 36;
/// Less room is not worth a frame.
const FRAMED_BYTES_MIN: usize = 512;
/// What a connection holds beside what is counted: its task above all.
const CONNECTION_BYTES: usize = 2 * 1024;

/// Who is at either end of a connection.
pub(crate) struct MuxEnds {
    pub(crate) peer: Peer,
    /// Who sends requests, unless a request says more.
    pub(crate) client: Client,
    pub(crate) local: Option<SocketAddr>,
    /// The TLS session; `None` in the clear.
    pub(crate) tls: Option<Rc<TlsSession>>,
}

/// What the tasks of one connection share.
pub(crate) struct MuxConn {
    pub(crate) core: Core,
    pub(crate) permit: ConnectionPermit,
    pub(crate) ends: MuxEnds,
    pub(crate) machine: RefCell<Box<dyn MuxProtocol>>,
    streams: RefCell<HashMap<u32, Rc<StreamShared>>>,
    turns: RefCell<Turns>,
    /// Streams that could be sent, but for the limit of their bandwidth.
    paused: RefCell<Vec<Rc<StreamShared>>>,
    /// The machine's own buffer for frames, while it has the core's.
    small: Cell<Vec<u8>>,
    /// Ready to read where a stream has something to send, or has ended.
    pub(crate) news: Rc<Source>,
    /// The peer has closed its sending side: no window opens any more.
    peer_ended: Cell<bool>,
    /// Bytes of frames that have left the machine's buffer, and of all bytes those that the client was seen to take.
    pub(crate) drained_bytes: Cell<u64>,
    pub(crate) taken_bytes: Cell<u64>,
    /// What its streams hold.
    streams_bytes: Cell<usize>,
    /// What the connection's task holds.
    own_bytes: Cell<usize>,
}

impl MuxConn {
    pub(crate) fn new(permit: ConnectionPermit, ends: MuxEnds, machine: Box<dyn MuxProtocol>) -> MuxConn {
        let core = permit.context().core.clone();
        let news = core.add_source();
        news.clear(WRITE);
        MuxConn {
            core,
            permit,
            ends,
            machine: RefCell::new(machine),
            streams: RefCell::default(),
            turns: RefCell::default(),
            paused: RefCell::default(),
            small: Cell::default(),
            news,
            peer_ended: Cell::new(false),
            drained_bytes: Cell::new(0),
            taken_bytes: Cell::new(0),
            streams_bytes: Cell::new(0),
            own_bytes: Cell::new(0),
        }
    }

    pub(crate) fn context(&self) -> &Rc<Context> {
        self.permit.context()
    }

    /// Streams whose tasks have not ended.
    pub(crate) fn live(&self) -> usize {
        self.streams.borrow().len()
    }

    /// Of those how many count no more for the peer: both ends were sent; and how many were reset.
    pub(crate) fn ending(&self) -> (usize, usize) {
        let streams = self.streams.borrow();
        let reset = streams.values().filter(|stream| stream.is_reset()).count();
        (streams.values().filter(|stream| !stream.is_reset() && stream.is_whole()).count(), reset)
    }

    /// Adds a stream. Its readiness: it can be written, and nothing has come.
    pub(crate) fn add(&self, stream: &Rc<StreamShared>) {
        self.streams.borrow_mut().insert(stream.id, stream.clone());
    }

    /// The stream's task has ended.
    pub(crate) fn remove(&self, stream: &StreamShared) {
        self.streams.borrow_mut().remove(&stream.id);
        self.weigh_stream(stream, 0);
        self.core.deregister(&stream.source);
        self.paused.borrow_mut().retain(|paused| paused.id != stream.id);
        let mut machine = self.machine.borrow_mut();
        match stream.is_reset() {
            true => machine.close(stream.id),
            false if stream.is_whole() => machine.close(stream.id),
            false if stream.is_broken.get() => machine.reset(stream.id, ResetReason::Tunnel),
            false if stream.output.borrow().ended => machine.reset(stream.id, ResetReason::Answered),
            false if stream.is_tunnel.get() => machine.reset(stream.id, ResetReason::Tunnel),
            false => machine.reset(stream.id, ResetReason::Failed),
        }
        drop(machine);
        self.notify();
    }

    /// Lets the connection's task run soon.
    pub(crate) fn notify(&self) {
        self.core.raise(&self.news, READ);
    }

    /// A stream has something to send.
    pub(crate) fn enqueue(&self, stream: &Rc<StreamShared>) {
        self.turns.borrow_mut().push(stream);
        self.notify();
    }

    // ---- memory ----

    /// A stream holds so many bytes now.
    pub(crate) fn weigh_stream(&self, stream: &StreamShared, bytes: usize) {
        let before = stream.held_bytes.replace(bytes);
        self.streams_bytes.set(self.streams_bytes.get() + bytes - before);
        self.weigh();
    }

    /// Bytes that its streams hold together.
    pub(crate) fn streams_bytes(&self) -> usize {
        self.streams_bytes.get()
    }

    /// The connection's task holds so many.
    pub(crate) fn weigh_own(&self, bytes: usize) {
        self.own_bytes.set(bytes + self.machine.borrow().held_bytes());
        self.weigh();
    }

    fn weigh(&self) {
        self.permit.hold(CONNECTION_BYTES + self.own_bytes.get() + self.streams_bytes.get());
    }

    /// Releases memory that an idle connection does not need.
    pub(crate) fn shrink(&self) {
        self.machine.borrow_mut().shrink();
        self.turns.borrow_mut().shrink();
        self.small.take();
        self.paused.borrow_mut().shrink_to_fit();
        self.streams.borrow_mut().shrink_to_fit();
    }

    // ---- what the connection's task does to its streams ----

    /// Body bytes of a request.
    pub(crate) fn receive(&self, id: u32, bytes: &[u8]) {
        let Some(stream) = self.stream(id) else {
            // Nobody reads them.
            return self.machine.borrow_mut().grant(id, bytes.len());
        };
        if bytes.is_empty() {
            return;
        }
        stream.input.borrow_mut().bytes.extend_from_slice(bytes);
        self.weigh_stream(&stream, stream.held_bytes.get() + bytes.len());
        self.core.raise(&stream.source, READ);
    }

    /// The request is complete.
    pub(crate) fn end_input(&self, id: u32, trailers: Fields) {
        if let Some(stream) = self.stream(id) {
            let mut input = stream.input.borrow_mut();
            (input.ended, input.trailers) = (true, trailers);
            drop(input);
            self.core.raise(&stream.source, READ);
        }
    }

    /// The client wants a response sooner or later than before. A stream that stands in line keeps its place until its next turn.
    pub(crate) fn prioritize(&self, id: u32, priority: StreamPriority) {
        if let Some(stream) = self.stream(id) {
            stream.priority.set(priority);
        }
    }

    /// The peer has reset a stream, or made the machine do so.
    pub(crate) fn cut(&self, id: u32, why: CutReason) {
        if let Some(stream) = self.stream(id) {
            stream.cut(why);
            self.core.raise(&stream.source, READ | WRITE | HALF_CLOSED | GONE);
        }
    }

    /// The connection is over, or the peer has closed its sending side: all streams learn of it.
    pub(crate) fn tell_all(&self, gone: Option<CutReason>) {
        for stream in self.streams.borrow().values() {
            if let Some(why) = gone {
                stream.cut(why);
            }
            let bits = if gone.is_some() { READ | WRITE | HALF_CLOSED | GONE } else { READ | HALF_CLOSED };
            stream.input.borrow_mut().cut = true;
            self.core.raise(&stream.source, bits);
        }
        // Streams that wait for a window get their turn, and are cut at it.
        self.peer_ended.set(true);
        self.unblock(None);
    }

    /// More may be sent on a stream, or on all of them.
    pub(crate) fn unblock(&self, id: Option<u32>) {
        let mut turns = self.turns.borrow_mut();
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

    /// Frames what may be sent, stream by stream in their turns, until so many bytes wait to be sent.
    pub(crate) fn fill_out(&self, bytes_max: usize) {
        self.resume_paused();
        let (mut machine, now_ms) = (self.machine.borrow_mut(), self.core.now_ms());
        loop {
            let room = bytes_max.saturating_sub(machine.out().len());
            if room < FRAMED_BYTES_MIN {
                return;
            }
            let Some(stream) = self.turns.borrow_mut().pop() else { return };
            if stream.is_reset() || !stream.output.borrow().is_waiting() {
                continue;
            }
            if let Some(bucket) = stream.exhausted_bucket(now_ms) {
                bucket.pause(&self.core, &self.news, READ);
                if !bucket.is_listed.replace(true) {
                    self.paused.borrow_mut().push(stream.clone());
                }
                continue;
            }
            self.lend_buffer(machine.out());
            if !stream.frame(room - FRAME_HEADERS_BYTES, now_ms, &mut **machine) {
                // Blocked: it comes back when a window opens, unless none will.
                if self.peer_ended.get() {
                    stream.cut(CutReason::Peer);
                    self.core.raise(&stream.source, READ | WRITE | HALF_CLOSED | GONE);
                }
                continue;
            }
            stream.framed_at.set(self.drained_bytes.get() + machine.out().len() as u64);
            let output = stream.output.borrow();
            let (waits, reads) = (output.is_waiting(), output.file.is_some());
            drop(output);
            // While its file is sent there is nothing to do for its task.
            if !(waits && reads) {
                self.core.raise(&stream.source, WRITE);
            }
            if waits {
                self.turns.borrow_mut().push_again(stream);
            }
        }
    }

    /// Puts streams in line again that the limit of their bandwidth allows to be sent by now.
    fn resume_paused(&self) {
        let (mut paused, now_ms) = (self.paused.borrow_mut(), self.core.now_ms());
        paused.retain(|stream| {
            let stays = !stream.is_reset() && stream.exhausted_bucket(now_ms).is_some();
            if let (false, Some(bucket)) = (stays, stream.bucket()) {
                bucket.is_listed.set(false);
                self.turns.borrow_mut().push(stream);
            }
            stays
        });
    }

    /// So many bytes more have left the machine's buffer.
    pub(crate) fn count_drained(&self, bytes: usize) {
        self.drained_bytes.set(self.drained_bytes.get() + bytes as u64);
    }

    /// Milliseconds that the client may take nothing: the longest that a route allows whose response waits.
    pub(crate) fn patience_ms(&self) -> u64 {
        let streams = self.streams.borrow();
        let waiting = streams.values().filter(|stream| stream.output.borrow().is_waiting());
        let write_ms = waiting.map(|stream| stream.write_ms.get()).max();
        let write_ms = write_ms.unwrap_or_else(|| self.context().timeouts.get().write_ms);
        progress::patience_ms(write_ms, self.core.memory().pressure())
    }

    /// Whether a stream stands in line.
    pub(crate) fn has_turns(&self) -> bool {
        !self.turns.borrow().is_empty()
    }

    /// Gives the core's buffer for frames to a connection that has not got one.
    fn lend_buffer(&self, out: &mut Vec<u8>) {
        if out.capacity() < FRAMES_BYTES {
            let mut lent = self.context().frames.take();
            lent.reserve_exact(FRAMES_BYTES);
            lent.extend_from_slice(out);
            out.clear();
            self.small.set(std::mem::replace(out, lent));
        }
    }

    /// Takes it back when everything is sent: the next connection writes to memory that is in the processor's cache.
    pub(crate) fn take_buffer(&self, out: &mut Vec<u8>) {
        out.clear();
        if out.capacity() >= FRAMES_BYTES {
            let mut lent = std::mem::replace(out, self.small.take());
            lent.shrink_to(FRAMES_BYTES);
            self.context().frames.set(lent);
        }
        out.shrink_to(SMALL_BYTES_MAX);
    }

    fn stream(&self, id: u32) -> Option<Rc<StreamShared>> {
        self.streams.borrow().get(&id).cloned()
    }
}

impl Drop for MuxConn {
    fn drop(&mut self) {
        self.core.deregister(&self.news);
    }
}
