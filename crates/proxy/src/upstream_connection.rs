//! An upstream connection: idle in a pool, or with buffers while it carries a request.

use std::net::SocketAddr;
use std::rc::Rc;

use http::machine::{ClientMachine, FeedResult, Step};
use http::{Limits, Method, Name, ResponseHead, Status, scan};
use net::{BufferPool, Buffers, Fault, HeldBuffers, Link, Memory, Pressure, SendProgress};
use times::{Millis, Moment};

use crate::failure::AttemptFailure;
use crate::options::KeepAlive;

/// Initial size of an input buffer, sufficient for nearly every response that is not a download.
const INPUT_BYTES: usize = 16 * 1024;
/// Size of an input buffer while a large response streams through it. On loopback a packet carries up to 64
/// KiB: a buffer that holds it whole halves the CPU time of a proxied MiB (labs/bodies.toml); twice as much
/// saves a further tenth.
const INPUT_BYTES_STREAMING: usize = 128 * 1024;
/// Size of input buffers while memory is short.
const INPUT_BYTES_SHORT: usize = 4 * 1024;
/// Maximum bytes of unused buffers that a core keeps.
const POOL_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Unused buffers of a core's upstream connections.
pub(crate) type UpstreamBuffers = BufferPool<ClientMachine>;

/// State of an idle connection, which holds no buffer.
pub(crate) struct IdleConnection {
    /// Address of the server; `None` for a Unix socket.
    pub(crate) address: Option<SocketAddr>,
    /// Number of requests carried so far.
    request_count: u32,
    /// Time at which the connection expires.
    pub(crate) until: Moment,
}

/// Result of reading from a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputOutcome {
    /// Bytes were added to the input.
    Received,
    /// Nothing has been received.
    Nothing,
    /// The upstream has closed its sending side.
    End,
}

/// A connection that carries a request.
pub(crate) struct UpstreamConnection {
    pub(crate) link: Link,
    pub(crate) address: Option<SocketAddr>,
    pub(crate) buffers: HeldBuffers<ClientMachine>,
    request_count: u32,
    /// Whether the connection came from the pool.
    pub(crate) reused: bool,
    /// Whether nothing has been received since the request began.
    has_received_nothing: bool,
    /// Time at which bytes were last received, by the core's clock; 0 before the first.
    pub(crate) received_at: Moment,
    /// Maximum idle time after this response, from its head.
    pub(crate) idle_timeout: Millis,
    /// Bytes that the upstream has accepted.
    progress: SendProgress,
}

impl IdleConnection {
    /// Prepares the connection for a request.
    #[inline]
    pub(crate) fn activate(self, link: Link, buffers: HeldBuffers<ClientMachine>) -> UpstreamConnection {
        let IdleConnection { address, request_count: served, .. } = self;
        UpstreamConnection {
            request_count: served,
            reused: true,
            ..UpstreamConnection::new(link, address, buffers)
        }
    }
}

impl UpstreamConnection {
    /// Wraps a new connection.
    #[inline]
    pub(crate) fn new(
        link: Link,
        address: Option<SocketAddr>,
        buffers: HeldBuffers<ClientMachine>,
    ) -> UpstreamConnection {
        UpstreamConnection {
            link,
            address,
            buffers,
            request_count: 0,
            reused: false,
            has_received_nothing: true,
            received_at: Moment::ZERO,
            idle_timeout: Millis(0),
            progress: SendProgress::default(),
        }
    }

    /// Whether bytes wait to be sent, including those that TLS has accepted but the kernel has not.
    pub(crate) fn has_pending_output(&self) -> bool {
        self.backlog() > 0 || self.link.has_pending_output()
    }

    /// Returns the number of bytes that wait to be sent.
    pub(crate) fn backlog(&self) -> usize {
        self.buffers.out.backlog()
    }

    /// Whether bytes in the buffers wait to be sent; false without buffers.
    pub(crate) fn has_buffered_output(&self) -> bool {
        self.buffers.has_pending_output()
    }

    /// Sends as much as the upstream accepts; true if nothing is left.
    pub(crate) fn try_flush(&mut self) -> Result<bool, Fault> {
        self.buffers.out.try_flush(&mut self.link)
    }

    /// Whether the upstream has accepted anything since the last call. Costs a system call.
    pub(crate) fn has_progressed(&mut self) -> bool {
        self.progress.check(self.link.stream())
    }

    /// Adds bytes of a body without waiting. A large piece is sent without copying, as far as the upstream
    /// accepts it immediately.
    pub(crate) fn offer(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.buffers.out.offer(&mut self.link, bytes)
    }

    /// Returns the next step of the response to a request with this method; [`Step::NeedMore`] if nothing
    /// more has been received. The caller consumes the bytes of every other step.
    ///
    /// # Errors
    /// The response is invalid, or the connection was closed before its end.
    pub(crate) fn receive(&mut self, method: Method, limits: &Limits) -> Result<FeedResult, AttemptFailure> {
        loop {
            let Buffers { machine, input, .. } = &mut *self.buffers;
            let fed = if input.is_empty() && machine.body().is_none() {
                Ok(FeedResult { consumed: 0, step: Step::NeedMore })
            } else {
                machine.feed(input.unconsumed(), method, limits)
            };
            let fed = fed.map_err(|reject| {
                if self.has_response_begun() {
                    AttemptFailure::of_body(reject.reason)
                } else {
                    self.refused_head(reject.reason, self.buffers.input.unconsumed())
                }
            })?;
            if fed.step != Step::NeedMore {
                return Ok(fed);
            }
            self.buffers.input.consume(fed.consumed);
            match self.read_available() {
                Ok(Some(0)) => return self.at_end(),
                Ok(Some(_)) => {}
                Ok(None) => return Ok(FeedResult { consumed: 0, step: Step::NeedMore }),
                Err(Fault::Failed(reason)) if !self.has_response_begun() => {
                    return Err(AttemptFailure::Invalid(reason));
                }
                Err(_) => return Err(self.connection_lost("the upstream broke the connection")),
            }
        }
    }

    /// Returns the failure for a head with these bytes that the parser has refused.
    pub(crate) fn refused_head(&self, reason: &'static str, bytes: &[u8]) -> AttemptFailure {
        AttemptFailure::of_head(reason, self.buffers.machine.head.refused_field(bytes))
    }

    /// Reads available bytes, for a protocol other than HTTP/1.
    ///
    /// # Errors
    /// The connection was closed abnormally.
    pub(crate) fn read_some(&mut self) -> Result<InputOutcome, AttemptFailure> {
        match self.read_available() {
            Ok(Some(0)) => Ok(InputOutcome::End),
            Ok(Some(_)) => Ok(InputOutcome::Received),
            Ok(None) => Ok(InputOutcome::Nothing),
            Err(Fault::Failed(reason)) if !self.has_response_begun() => Err(AttemptFailure::Invalid(reason)),
            Err(_) => Err(self.connection_lost("the upstream broke the connection")),
        }
    }

    /// Whether there may be bytes to receive; false is certain.
    pub(crate) fn may_have_input(&self) -> bool {
        !self.buffers.input.is_empty() || self.link.has_input() || self.has_response_begun()
    }

    /// Whether the head of the final response has been received.
    pub(crate) fn has_response_begun(&self) -> bool {
        self.buffers.machine.body().is_some()
    }

    /// Whether the response is a 408 that the server sent before closing an idle connection, and that crossed
    /// with the request.
    pub(crate) fn is_idle_timeout(&self) -> bool {
        let head = &self.buffers.machine.head;
        head.status == Status::REQUEST_TIMEOUT && self.reused && !head.keep_alive
    }

    /// Handles the end of the upstream's stream.
    fn at_end(&mut self) -> Result<FeedResult, AttemptFailure> {
        match self.buffers.machine.eof() {
            Ok(()) => Ok(FeedResult { consumed: 0, step: Step::End }),
            Err(_) => Err(self.connection_lost("the upstream closed in the middle of a response")),
        }
    }

    /// Returns the failure for a connection that ended before the response was complete.
    pub(crate) fn connection_lost(&self, reason: &'static str) -> AttemptFailure {
        match (self.has_response_begun(), self.has_received_nothing && self.reused) {
            (true, _) => AttemptFailure::Body(reason),
            (false, true) => AttemptFailure::Stale,
            (false, false) => AttemptFailure::ConnectionLost,
        }
    }

    /// Returns the memory held by the buffers, in bytes. Trims them first if memory is short.
    pub(crate) fn update_memory(&mut self, is_short: bool) -> usize {
        let Some(buffers) = self.buffers.held() else { return 0 };
        if is_short {
            buffers.trim();
        }
        buffers.weight_bytes()
    }

    /// Reads available bytes and returns their number: 0 at the end, `None` if there are none.
    fn read_available(&mut self) -> Result<Option<usize>, Fault> {
        let is_short = self.link.core().memory().pressure() >= Pressure::High;
        let buffers = &mut *self.buffers;
        let body = buffers.machine.body();
        let streaming =
            body.is_some_and(|body| body.remaining().is_none_or(|remaining| remaining > INPUT_BYTES as u64));
        let size = match (is_short, streaming) {
            (true, _) => INPUT_BYTES_SHORT,
            (false, true) => INPUT_BYTES_STREAMING,
            (false, false) => INPUT_BYTES,
        };
        // An empty buffer gets its full size at once; one with the beginning of a head grows only when it is
        // full.
        let least = if buffers.input.is_empty() { size } else { 1 };
        let read = self.link.try_read(buffers.room(size, least))?;
        if let Some(len @ 1..) = read {
            buffers.input.filled(len);
            self.has_received_nothing = false;
            self.received_at = self.link.core().now();
        }
        Ok(read)
    }

    /// Makes the connection idle if it can be reused: the response has ended and nothing follows it.
    pub(crate) fn into_idle(self, options: &KeepAlive, now: Moment) -> Option<(Link, IdleConnection)> {
        let is_done = self.buffers.machine.is_reusable();
        self.into_idle_if(is_done, options, now)
    }

    /// Like [`UpstreamConnection::into_idle`], with `is_done`: the response has ended and the connection is
    /// reusable.
    pub(crate) fn into_idle_if(
        mut self,
        is_done: bool,
        options: &KeepAlive,
        now: Moment,
    ) -> Option<(Link, IdleConnection)> {
        let clean = is_done && self.buffers.input.is_empty() && !self.has_pending_output();
        let served = self.request_count.saturating_add(1);
        let worn = options.idle_max == 0 || options.requests_max.is_some_and(|most| served >= most);
        if !clean || worn || !self.link.is_reusable() {
            return None;
        }
        let until = now + self.idle_timeout.min(options.idle_timeout);
        Some((self.link, IdleConnection { address: self.address, request_count: served, until }))
    }

    /// Returns the buffers while they are empty, so that others can use them while the request waits, and
    /// they stay in the processor's caches.
    pub(crate) fn release_buffers(&mut self) {
        if self.has_received_nothing && self.backlog() == 0 {
            self.buffers.release();
        }
    }

    /// Takes buffers again after [`UpstreamConnection::release_buffers`].
    pub(crate) fn acquire_buffers(&mut self) {
        self.buffers.hold();
    }
}

/// Returns how long the upstream keeps an idle connection, in milliseconds, from its `Keep-Alive` field:
/// slightly less than announced, because time passes while the next request travels. `None` if nothing is
/// announced.
pub(crate) fn announced_idle(head: &ResponseHead, bytes: &[u8]) -> Option<Millis> {
    let value = head.field(bytes, Name::KeepAlive)?;
    let seconds = scan::list(value).find_map(|part| {
        let digits = part.strip_prefix(b"timeout=").or_else(|| part.strip_prefix(b"Timeout="))?;
        scan::parse_decimal(digits)
    })?;
    let announced = Millis(seconds.saturating_mul(1000));
    Some(announced - (announced / 10).clamp(Millis(500), Millis(2_000)))
}

/// Creates the buffer pool for the upstream connections of a core.
pub(crate) fn buffer_pool(memory: &Rc<Memory>) -> Rc<UpstreamBuffers> {
    Rc::new(BufferPool::new(memory, POOL_BYTES_MAX))
}
