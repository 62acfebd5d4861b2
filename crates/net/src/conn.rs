//! One HTTP/1 connection while it is busy: what it is about, what it holds, and when others have their turn.

use std::any::Any;
use std::net::SocketAddr;
use std::rc::Rc;

use http::framing::Framing;
use http::machine::ServerMachine;
use http::{Head, Status};

use crate::address::{Client, Peer};
use crate::bandwidth::{Bandwidth, ResponseBucket};
use crate::fault::Fault;
use crate::link::Link;
use crate::memory::Pressure;
use crate::permit::{ConnectionPermit, Context};
use crate::preface::ProxyHeader;
use crate::progress::{self, SendProgress};
use crate::pump::Outbox;
use crate::spill::SpilledOutput;
use crate::work::HeldBuffers;

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

/// An output buffer larger than this is not kept while nothing moves.
const SHED_BYTES: usize = 1024;

/// A busy connection.
pub(crate) struct Conn {
    // Dropped before the permit: the socket closes, then the permit is released.
    pub(crate) link: Link,
    pub(crate) permit: ConnectionPermit,
    pub(crate) peer: Peer,
    /// It may begin with HTTP/2.
    pub(crate) may_be_h2: bool,
    /// The PROXY protocol header received ahead of the first request.
    pub(crate) reported: Option<Box<ProxyHeader>>,
    pub(crate) served: u32,
    pub(crate) work: HeldBuffers<ServerMachine>,
    /// What a slow client has not taken, in a file: it comes before what `work` holds to send.
    pub(crate) overflow: SpilledOutput,
    /// The reason phrase of the next response, where that has this status and the phrase is not the usual one.
    pub(crate) reason: Option<Box<(Status, Vec<u8>)>>,
    /// How the end of the response under way is marked.
    pub(crate) framing: Framing,
    pub(crate) keep_alive: bool,
    /// Since when a head is awaited; `u64::MAX` before its first byte.
    pub(crate) head_since_ms: u64,
    /// `100 Continue` is due before the body is read.
    pub(crate) continue_due: bool,
    /// The most content that the body may have, until it begins to be read: then the machine knows it.
    pub(crate) body_limit: Option<u64>,
    /// Progress timeouts of this request.
    pub(crate) body_ms: u64,
    pub(crate) write_ms: u64,
    /// What the client was seen to take of the response.
    pub(crate) progress: SendProgress,
    /// What it has moved since others had their turn.
    pub(crate) moved_bytes: usize,
    /// What the current request holds beside the buffers: its handler, its filters.
    pub(crate) request_bytes: usize,
    /// What the last request keeps until its response is sent.
    pub(crate) kept: Option<Rc<dyn Any>>,
}

impl Conn {
    pub(crate) fn context(&self) -> &Rc<Context> {
        self.permit.context()
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.link.core().now_ms()
    }

    // ---- memory ----

    pub(crate) fn pressure(&self) -> Pressure {
        self.link.core().memory().pressure()
    }

    /// Counts what the connection holds now.
    pub(crate) fn weigh(&self) {
        let buffers_bytes = self.work.weight_bytes() + self.link.weight_bytes();
        self.permit.hold(BUSY_BYTES + buffers_bytes + self.request_bytes);
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

    /// Milliseconds that the client may take no byte of the response, beside those in which the limit of its bandwidth gives it none.
    pub(crate) fn patience_ms(&self) -> u64 {
        let write_ms = progress::patience_ms(self.write_ms, self.pressure());
        write_ms.saturating_add(self.link.stream().bucket().map_or(0, ResponseBucket::pause_ms))
    }

    /// Limits how fast the response is sent.
    pub(crate) fn limit_bandwidth(&mut self, bandwidth: Bandwidth) {
        let bucket = ResponseBucket::new(bandwidth, self.now_ms());
        self.link.set_bucket(Some(Box::new(bucket)));
    }

    /// A request head is whole: prepares for its response.
    pub(crate) fn begin_request(&mut self) {
        let head = &self.work.machine.head;
        let (limits, timeouts) = (self.context().limits.get(), self.context().timeouts.get());
        let max = limits.requests_per_connection_max;
        self.keep_alive = head.keep_alive && (max == 0 || self.served + 1 < max);
        // A client that has sent body bytes already does not wait for 100 (Continue).
        self.continue_due = head.expects_continue && self.work.input.is_empty();
        self.body_limit = Some(limits.body_bytes_max);
        (self.body_ms, self.write_ms) = (timeouts.body_ms, timeouts.write_ms);
        self.head_since_ms = u64::MAX;
    }

    /// The head of the current request, and the bytes that its spans refer to.
    pub(crate) fn head(&self) -> (&Head, &[u8]) {
        (&self.work.machine.head, self.work.input.head())
    }

    /// The address that the client connected to: this server's, or the one that the PROXY protocol reports.
    pub(crate) fn local_address(&self) -> Option<SocketAddr> {
        let reported = self.reported.as_ref().and_then(|reported| reported.ends);
        reported.map_or_else(|| self.link.stream().local_address(), |ends| Some(ends.destination))
    }

    /// Its port.
    pub(crate) fn local_port(&self) -> Option<u16> {
        let reported = self.reported.as_ref().and_then(|reported| reported.ends);
        reported.map_or_else(|| self.link.stream().local_port(), |ends| Some(ends.destination.port()))
    }

    /// Bytes received after HTTP: `None` where there are none now, 0 at the end.
    pub(crate) fn try_raw(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Fault> {
        let input = &mut self.work.input;
        if input.is_empty() {
            return self.link.try_read(buffer);
        }
        let len = input.rest().len().min(buffer.len());
        buffer[..len].copy_from_slice(&input.rest()[..len]);
        input.at += len;
        Ok(Some(len))
    }

    /// Gives memory back before a wait that may be long.
    pub(crate) fn shed(&mut self) {
        if self.backlog() == 0 && self.work.out.capacity() > SHED_BYTES {
            self.work.out = Outbox::default();
            self.weigh();
        }
    }

    /// Who sends requests, unless a request says more.
    pub(crate) fn direct(&self) -> Client {
        let secure =
            self.link.session().is_some() || self.reported.as_ref().is_some_and(|reported| reported.secure);
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
            self.link.core().yield_now().await;
        }
    }
}
