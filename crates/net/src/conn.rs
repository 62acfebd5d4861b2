//! One HTTP/1 connection while it is busy: what it is about, what it holds, and when others have their turn.

use std::rc::Rc;

use http::framing::Framing;
use http::{EmptySegments, Status};

use crate::address::{Client, Peer};
use crate::compress::{Compressing, Compression};
use crate::memory::Pressure;
use crate::page::{ErrorPages, FieldEdits};
use crate::permit::{ConnectionPermit, Context};
use crate::preface::ProxyHeader;
use crate::spill::Overflow;
use crate::stream::Stream;
use crate::work::ConnectionBuffers;

/// Bytes collected before they are written without waiting for the end of the tick's work.
pub(crate) const OUT_BYTES_MAX: usize = 64 * 1024;
/// Bytes that a connection moves before others get their turn.
const TURN_BYTES_MAX: usize = 256 * 1024;
/// What a request weighs against [`TURN_BYTES_MAX`], beside its bytes.
pub(crate) const REQUEST_WEIGHT_BYTES: usize = 4 * 1024;
/// What a connection holds while it is busy, beside its buffers: its future above all.
const BUSY_BYTES: usize = 4 * 1024;
/// [`OUT_BYTES_MAX`] while memory is short.
const OUT_BYTES_MAX_SHORT: usize = 4 * 1024;
/// The most that a client may go without taking a byte of a response while memory is critically short.
const WRITE_MS_SHORT: u64 = 5_000;

/// How far the response of the current request is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ResponseState {
    /// No head yet.
    #[default]
    Unsent,
    /// The head is out; the body ends as the framing says, a length counting down.
    Body(Framing),
    /// All of it is out.
    Done,
}

/// A busy connection.
pub(crate) struct Conn {
    // Dropped before the permit: the socket closes, then the permit is released.
    pub(crate) stream: Stream,
    pub(crate) permit: ConnectionPermit,
    pub(crate) peer: Peer,
    /// The PROXY protocol header received ahead of the first request.
    pub(crate) reported: Option<Box<ProxyHeader>>,
    /// Who sends the current request.
    pub(crate) client: Client,
    pub(crate) served: u32,
    pub(crate) work: Box<ConnectionBuffers>,
    /// What a slow client has not taken, in a file: it comes before what `work` holds to send.
    pub(crate) overflow: Option<Box<Overflow>>,
    pub(crate) reply: ResponseState,
    pub(crate) status: Status,
    pub(crate) body_sent: u64,
    pub(crate) keep_alive: bool,
    pub(crate) started_ms: u64,
    /// `100 Continue` is due before the body is read.
    pub(crate) continue_due: bool,
    /// The most content that the body may have, until it begins to be read: then the machine knows it.
    pub(crate) body_limit: Option<u64>,
    /// What the handler has said of the response's fields, and of the pages for errors. They stay when it fails: the answer to
    /// that is the site's too.
    pub(crate) edits: Option<Rc<FieldEdits>>,
    pub(crate) pages: Option<Rc<ErrorPages>>,
    /// What becomes of empty segments in the path of this request.
    pub(crate) empty_segments: EmptySegments,
    /// Which responses are compressed; and that of the response under way, where it is.
    pub(crate) compression: Option<Rc<Compression>>,
    pub(crate) compressing: Option<Box<Compressing>>,
    /// Progress timeouts of this request.
    pub(crate) body_ms: u64,
    pub(crate) write_ms: u64,
    /// What it has moved since others had their turn.
    pub(crate) moved_bytes: usize,
    /// What the handler holds for the current request.
    pub(crate) handler_bytes: usize,
}

impl Conn {
    pub(crate) fn context(&self) -> &Context {
        self.permit.context()
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.stream.core().now_ms()
    }

    // ---- memory ----

    pub(crate) fn pressure(&self) -> Pressure {
        self.stream.core().memory().pressure()
    }

    /// Counts what the connection holds now.
    pub(crate) fn weigh(&self) {
        let encoder_bytes = self.compressing.as_ref().map_or(0, |compressing| compressing.weight_bytes);
        self.permit.hold(BUSY_BYTES + self.work.weight_bytes() + encoder_bytes + self.handler_bytes);
    }

    /// Called before a wait that may be long: releases buffers if memory is short, and counts the rest.
    pub(crate) fn settle(&mut self) {
        if self.pressure() >= Pressure::High {
            self.work.trim();
        }
        self.weigh();
    }

    /// Bytes collected before they are written without waiting for the end of the tick's work.
    pub(crate) fn out_bytes_max(&self) -> usize {
        if self.pressure() >= Pressure::High { OUT_BYTES_MAX_SHORT } else { OUT_BYTES_MAX }
    }

    /// Milliseconds that the client may take no byte of the response.
    pub(crate) fn patience_ms(&self) -> u64 {
        if self.pressure() >= Pressure::Critical { self.write_ms.min(WRITE_MS_SHORT) } else { self.write_ms }
    }

    /// A request head is whole: prepares for its response.
    pub(crate) fn begin_request(&mut self) {
        let head = &self.work.machine.head;
        let (limits, timeouts) = (self.context().limits, self.context().timeouts);
        let max = limits.requests_per_connection_max;
        self.keep_alive = head.keep_alive && (max == 0 || self.served + 1 < max);
        // A client that has sent body bytes already does not wait for 100 (Continue).
        self.continue_due = head.expects_continue && self.work.input.is_empty();
        self.forget_response();
        self.empty_segments = EmptySegments::Merge;
        self.body_limit = Some(limits.body_bytes_max);
        (self.body_ms, self.write_ms) = (timeouts.body_ms, timeouts.write_ms);
        self.client = self.direct();
        self.started_ms = self.now_ms();
    }

    /// Nothing of the response before it holds for the next one.
    pub(crate) fn forget_response(&mut self) {
        (self.edits, self.pages, self.compression, self.compressing) = (None, None, None, None);
        (self.reply, self.body_sent) = (ResponseState::Unsent, 0);
    }

    /// Who sends requests, as long as nobody says more.
    pub(crate) fn direct(&self) -> Client {
        let secure = self.reported.as_ref().is_some_and(|reported| reported.secure);
        Client::direct(self.peer, secure)
    }

    /// A deadline that far from now.
    pub(crate) fn after_ms(&self, ms: u64) -> u64 {
        self.now_ms().saturating_add(ms)
    }

    /// Counts bytes moved; after many of them others get their turn, however fast this client is.
    pub(crate) async fn moved(&mut self, bytes: usize) {
        self.moved_bytes += bytes;
        if self.moved_bytes >= TURN_BYTES_MAX {
            self.moved_bytes = 0;
            self.stream.core().yield_now().await;
        }
    }
}
