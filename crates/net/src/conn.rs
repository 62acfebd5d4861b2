//! An active HTTP/1 connection: its state, its memory and its scheduling.

use std::any::Any;
use std::net::SocketAddr;
use std::rc::Rc;

use http::framing::Framing;
use http::machine::ServerMachine;
use http::{HeadRef, Status};
use times::{Millis, Moment};

use crate::address::{Client, Peer};
use crate::bandwidth::{BandwidthLimit, ResponseBucket};
use crate::buffer_pool::HeldBuffers;
use crate::fault::Fault;
use crate::io_buffers::OutputBuffer;
use crate::link::Link;
use crate::memory::Pressure;
use crate::permit::{ConnectionPermit, ServingContext};
use crate::progress::{self, SendProgress};
use crate::proxy_protocol::ProxyHeader;
use crate::spill::SpilledOutput;

/// Size at which collected output is written without waiting for the end of the tick.
pub(crate) const OUT_BYTES_MAX: usize = 64 * 1024;
/// Bytes that a connection may move before it yields to others.
const TURN_BYTES_MAX: usize = 256 * 1024;
/// Cost of a request against [`TURN_BYTES_MAX`], in addition to its bytes.
pub(crate) const REQUEST_WEIGHT_BYTES: usize = 4 * 1024;
/// Memory of an active connection without its buffers; mostly its future.
const ACTIVE_BYTES: usize = 4 * 1024;
/// [`OUT_BYTES_MAX`] under memory pressure.
const OUT_BYTES_MAX_LOW_MEMORY: usize = 4 * 1024;

/// Larger output buffers are released while the connection waits.
const KEPT_OUT_BYTES_MAX: usize = 1024;

/// An active connection.
pub(crate) struct Conn {
    // Dropped before the permit: the socket is closed before the permit is released.
    pub(crate) link: Link,
    pub(crate) permit: ConnectionPermit,
    pub(crate) peer: Peer,
    /// Whether the connection may begin with the HTTP/2 preface.
    pub(crate) may_be_h2: bool,
    /// The PROXY protocol header received ahead of the first request.
    pub(crate) proxy_header: Option<Box<ProxyHeader>>,
    pub(crate) served: u32,
    pub(crate) buffers: HeldBuffers<ServerMachine>,
    /// Output spilled to a file because the client reads slowly; precedes the output in `work`.
    pub(crate) overflow: SpilledOutput,
    /// Status of the next response and a reason phrase that is not the standard one.
    pub(crate) status_and_reason: Option<Box<(Status, Vec<u8>)>>,
    /// Body framing of the current response.
    pub(crate) framing: Framing,
    pub(crate) keep_alive: bool,
    /// Time at which the first byte of the incomplete head arrived; [`Moment::NEVER`] before that.
    pub(crate) head_since: Moment,
    /// Whether `100 Continue` must be sent before the body is read.
    pub(crate) must_send_continue: bool,
    /// Maximum body size; moved into the state machine when the body is first read.
    pub(crate) body_limit: Option<u64>,
    /// Progress timeouts of this request.
    pub(crate) body_timeout: Millis,
    pub(crate) write_timeout: Millis,
    /// Progress of sending, as acknowledged by the client's kernel.
    pub(crate) progress: SendProgress,
    /// Bytes moved in the current turn.
    pub(crate) moved_bytes: usize,
    /// Memory of the current request without the buffers: its handler and filters.
    pub(crate) request_bytes: usize,
    /// Value that the last request keeps alive until its response is sent.
    pub(crate) kept_until_sent: Option<Rc<dyn Any>>,
}

impl Conn {
    pub(crate) fn context(&self) -> &Rc<ServingContext> {
        self.permit.context()
    }

    pub(crate) fn now(&self) -> Moment {
        self.link.core().now()
    }

    // ---- memory ----

    pub(crate) fn pressure(&self) -> Pressure {
        self.link.core().memory().pressure()
    }

    /// Reports the connection's memory to its permit.
    pub(crate) fn update_memory(&self) {
        let buffers_bytes = self.buffers.weight_bytes() + self.link.weight_bytes();
        self.permit.hold(ACTIVE_BYTES + buffers_bytes + self.request_bytes);
    }

    /// Releases buffers under memory pressure and reports the rest. Called before a wait that may be long.
    pub(crate) fn trim_buffers(&mut self) {
        if self.pressure() >= Pressure::High {
            self.buffers.trim();
        }
        self.update_memory();
    }

    /// Size at which collected output is written without waiting for the end of the tick.
    pub(crate) fn out_bytes_max(&self) -> usize {
        if self.pressure() >= Pressure::High { OUT_BYTES_MAX_LOW_MEMORY } else { OUT_BYTES_MAX }
    }

    /// Milliseconds for which the client may accept nothing, including pauses of the bandwidth limit.
    pub(crate) fn stall_timeout(&self) -> Millis {
        let write_timeout = progress::stall_timeout(self.write_timeout, self.pressure());
        write_timeout + self.link.stream().bucket().map_or(Millis::ZERO, ResponseBucket::pause_max)
    }

    /// Limits the rate at which the response is sent.
    pub(crate) fn limit_bandwidth(&mut self, bandwidth: &BandwidthLimit) {
        let bucket = ResponseBucket::new(bandwidth, self.now());
        self.link.set_bucket(Some(Box::new(bucket)));
    }

    /// Prepares the response to a complete request head.
    pub(crate) fn begin_request(&mut self) {
        let head = &self.buffers.machine.head;
        let limits = self.context().limits.get();
        let timeouts = self.context().timeouts.get();
        let max = limits.requests_per_connection_max;
        self.keep_alive = head.keep_alive && (max == 0 || self.served + 1 < max);
        // A client that has already sent body bytes does not wait for 100 (Continue).
        self.must_send_continue = head.expects_continue && self.buffers.input.is_empty();
        self.body_limit = Some(limits.body_bytes_max);
        (self.body_timeout, self.write_timeout) = (timeouts.body, timeouts.write);
        self.head_since = Moment::NEVER;
    }

    /// Returns the head of the current request and the bytes that its spans refer to.
    pub(crate) fn head(&self) -> HeadRef<'_> {
        HeadRef::new(&self.buffers.machine.head, self.buffers.input.head())
    }

    /// Returns the address that the client connected to: this server's, or the one that the PROXY protocol
    /// reports.
    pub(crate) fn local_address(&self) -> Option<SocketAddr> {
        let reported = self.proxy_header.as_ref().and_then(|reported| reported.endpoints);
        reported.map_or_else(|| self.link.stream().local_address(), |ends| Some(ends.destination))
    }

    /// Returns the port of the local address.
    pub(crate) fn local_port(&self) -> Option<u16> {
        let reported = self.proxy_header.as_ref().and_then(|reported| reported.endpoints);
        reported.map_or_else(|| self.link.stream().local_port(), |ends| Some(ends.destination.port()))
    }

    /// Reads bytes that follow HTTP: `None` if none are available, 0 at the end.
    pub(crate) fn try_read_raw(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Fault> {
        let input = &mut self.buffers.input;
        if input.is_empty() {
            return self.link.try_read(buffer);
        }
        let len = input.unconsumed().len().min(buffer.len());
        buffer[..len].copy_from_slice(&input.unconsumed()[..len]);
        input.at += len;
        Ok(Some(len))
    }

    /// Releases memory before a wait that may be long.
    pub(crate) fn release_buffers(&mut self) {
        if self.backlog() == 0 && self.buffers.out.capacity() > KEPT_OUT_BYTES_MAX {
            self.buffers.out = OutputBuffer::default();
            self.update_memory();
        }
    }

    /// The client of the connection; a trusted proxy may name another one in a request.
    pub(crate) fn direct_client(&self) -> Client {
        let secure = self.link.session().is_some()
            || self.proxy_header.as_ref().is_some_and(|reported| reported.is_secure);
        Client::direct(self.peer, secure)
    }

    /// Returns the deadline that is `length` from now.
    pub(crate) fn after(&self, length: Millis) -> Moment {
        self.now() + length
    }

    /// Counts moved bytes and yields to other connections when the turn is used up, however fast this client
    /// is.
    pub(crate) async fn consume_budget(&mut self, bytes: usize) {
        self.moved_bytes += bytes;
        if self.moved_bytes >= TURN_BYTES_MAX {
            self.moved_bytes = 0;
            self.link.core().yield_now().await;
        }
    }
}
