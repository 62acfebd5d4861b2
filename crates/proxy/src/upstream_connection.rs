//! An upstream connection: at rest in a pool, or with buffers while a request is on it.

use std::net::SocketAddr;
use std::rc::Rc;

use http::machine::{ClientMachine, Fed, Step};
use http::{Limits, Method, Name, ResponseHead, Status, scan};
use net::{BufferPool, Buffers, Fault, HeldBuffers, Link, Memory, Pressure, SendProgress};

use crate::failure::AttemptFailure;
use crate::options::KeepAlive;

/// Bytes of an input buffer to begin with: nearly every response that is not a download.
const INPUT_BYTES: usize = 16 * 1024;
/// What an input buffer grows to while a large response streams through it. On loopback a packet carries up to 64 KiB: a buffer that
/// takes it whole halves the CPU time of a proxied MiB (labs/bodies.toml); twice as much saves a tenth more.
const INPUT_BYTES_STREAMING: usize = 128 * 1024;
/// The size of input buffers while memory is short.
const INPUT_BYTES_SHORT: usize = 4 * 1024;
/// Bytes of buffers that a core keeps.
const POOL_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The buffers of a core's upstream connections that are not in use.
pub(crate) type UpstreamBuffers = BufferPool<ClientMachine>;

/// What there is to know of a connection at rest. It holds no buffer.
pub(crate) struct IdleConnection {
    /// The address that it goes to; `None` for a Unix socket.
    pub(crate) address: Option<SocketAddr>,
    /// Requests that it has carried.
    served: u32,
    /// When it is of no more use.
    pub(crate) until_ms: u64,
}

/// What reading from a connection brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputOutcome {
    /// Bytes, in its input.
    Some,
    /// Nothing yet.
    Nothing,
    /// The end of the upstream's stream.
    End,
}

/// A connection that carries a request.
pub(crate) struct UpstreamConnection {
    pub(crate) link: Link,
    pub(crate) address: Option<SocketAddr>,
    pub(crate) buffers: HeldBuffers<ClientMachine>,
    served: u32,
    /// It came from the pool.
    pub(crate) reused: bool,
    /// Nothing has come from the upstream since the request began.
    silent: bool,
    /// When bytes were last received, by the core's clock; 0 while it is silent.
    pub(crate) received_ms: u64,
    /// How long it may lie idle after this response; set by its head.
    pub(crate) idle_ms: u64,
    /// What the upstream was seen to take.
    progress: SendProgress,
}

impl IdleConnection {
    /// Takes it up for a request.
    #[inline]
    pub(crate) fn take_up(self, link: Link, buffers: HeldBuffers<ClientMachine>) -> UpstreamConnection {
        let IdleConnection { address, served, .. } = self;
        UpstreamConnection { served, reused: true, ..UpstreamConnection::new(link, address, buffers) }
    }
}

impl UpstreamConnection {
    /// A connection just made.
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
            served: 0,
            reused: false,
            silent: true,
            received_ms: 0,
            idle_ms: 0,
            progress: SendProgress::default(),
        }
    }

    /// Whether anything waits to be sent, what TLS has taken and the kernel has not among it.
    pub(crate) fn is_behind(&self) -> bool {
        self.backlog() > 0 || self.link.is_behind()
    }

    /// Bytes that wait to be sent.
    pub(crate) fn backlog(&self) -> usize {
        self.buffers.out.backlog()
    }

    /// Whether bytes of its buffers wait to be sent, where it holds buffers.
    pub(crate) fn waits(&self) -> bool {
        self.buffers.waits()
    }

    /// Sends what the upstream takes now; true where nothing is left.
    pub(crate) fn try_flush(&mut self) -> Result<bool, Fault> {
        self.buffers.out.try_flush(&mut self.link)
    }

    /// Whether the upstream has taken anything since the last call. Costs a system call.
    pub(crate) fn has_taken(&mut self) -> bool {
        self.progress.look(self.link.stream())
    }

    /// Adds bytes of a body, without waiting: a large piece is sent from where it stands, as far as the upstream takes it now.
    pub(crate) fn offer(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.buffers.out.offer(&mut self.link, bytes)
    }

    /// The next step of the response to a request of that method; [`Step::NeedMore`] where no more has been received. The
    /// caller consumes the bytes of every other step.
    ///
    /// # Errors
    /// The response is invalid, or the connection broke before its end.
    pub(crate) fn receive(&mut self, method: Method, limits: &Limits) -> Result<Fed, AttemptFailure> {
        loop {
            let Buffers { machine, input, .. } = &mut *self.buffers;
            let fed = match input.is_empty() && machine.body().is_none() {
                true => Ok(Fed { consumed: 0, step: Step::NeedMore }),
                false => machine.feed(input.rest(), method, limits),
            };
            let fed = fed.map_err(|reject| match self.has_begun() {
                true => AttemptFailure::of_body(reject.reason),
                false => self.refused_head(reject.reason, self.buffers.input.rest()),
            })?;
            if fed.step != Step::NeedMore {
                return Ok(fed);
            }
            self.buffers.input.consume(fed.consumed);
            match self.fill() {
                Ok(Some(0)) => return self.at_end(),
                Ok(Some(_)) => {}
                Ok(None) => return Ok(Fed { consumed: 0, step: Step::NeedMore }),
                Err(Fault::Broken(reason)) if !self.has_begun() => {
                    return Err(AttemptFailure::Invalid(reason));
                }
                Err(_) => return Err(self.cut("the upstream broke the connection")),
            }
        }
    }

    /// The failure for a head, whose bytes these are, that the machine has refused.
    pub(crate) fn refused_head(&self, reason: &'static str, bytes: &[u8]) -> AttemptFailure {
        AttemptFailure::of_head(reason, self.buffers.machine.head.refused_field(bytes))
    }

    /// Reads what is there, for a protocol that is not HTTP/1.
    ///
    /// # Errors
    /// The connection broke.
    pub(crate) fn read_some(&mut self) -> Result<InputOutcome, AttemptFailure> {
        match self.fill() {
            Ok(Some(0)) => Ok(InputOutcome::End),
            Ok(Some(_)) => Ok(InputOutcome::Some),
            Ok(None) => Ok(InputOutcome::Nothing),
            Err(Fault::Broken(reason)) if !self.has_begun() => Err(AttemptFailure::Invalid(reason)),
            Err(_) => Err(self.cut("the upstream broke the connection")),
        }
    }

    /// Whether there may be something to receive now; false is certain.
    pub(crate) fn has_news(&self) -> bool {
        !self.buffers.input.is_empty() || self.link.has_input() || self.has_begun()
    }

    /// Whether the head of the final response has been received.
    pub(crate) fn has_begun(&self) -> bool {
        self.buffers.machine.body().is_some()
    }

    /// Whether the response is a 408 that a server sends on an idle connection just before it closes it, and that has crossed
    /// with the request.
    pub(crate) fn is_idle_timeout(&self) -> bool {
        let head = &self.buffers.machine.head;
        head.status == Status::REQUEST_TIMEOUT && self.reused && !head.keep_alive
    }

    /// Handles the end of the upstream's stream.
    fn at_end(&mut self) -> Result<Fed, AttemptFailure> {
        match self.buffers.machine.eof() {
            Ok(()) => Ok(Fed { consumed: 0, step: Step::End }),
            Err(_) => Err(self.cut("the upstream closed in the middle of a response")),
        }
    }

    /// The failure for a connection that ended before the response was complete.
    pub(crate) fn cut(&self, reason: &'static str) -> AttemptFailure {
        match (self.has_begun(), self.silent && self.reused) {
            (true, _) => AttemptFailure::Body(reason),
            (false, true) => AttemptFailure::Stale,
            (false, false) => AttemptFailure::Cut,
        }
    }

    /// What its buffers hold of memory; where that is short they hold less from now on.
    pub(crate) fn weigh(&mut self, is_short: bool) -> usize {
        let Some(buffers) = self.buffers.held() else { return 0 };
        if is_short {
            buffers.trim();
        }
        buffers.weight_bytes()
    }

    /// Reads what is there: how many bytes, 0 at the end, `None` where nothing is.
    fn fill(&mut self) -> Result<Option<usize>, Fault> {
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
        // A buffer with nothing in it gets its whole size; one with the beginning of a head grows when it is full.
        let least = if buffers.input.is_empty() { size } else { 1 };
        let read = self.link.try_read(buffers.room(size, least))?;
        if let Some(len @ 1..) = read {
            buffers.input.filled(len);
            self.silent = false;
            self.received_ms = self.link.core().now_ms();
        }
        Ok(read)
    }

    /// Puts it to rest, where it can serve again: the response has ended and nothing came after it.
    pub(crate) fn rest(self, options: &KeepAlive, now_ms: u64) -> Option<(Link, IdleConnection)> {
        let is_done = self.buffers.machine.is_reusable();
        self.rest_where(is_done, options, now_ms)
    }

    /// The same; `is_done` says that the response has ended, and leaves the connection as it was.
    pub(crate) fn rest_where(
        mut self,
        is_done: bool,
        options: &KeepAlive,
        now_ms: u64,
    ) -> Option<(Link, IdleConnection)> {
        let clean = is_done && self.buffers.input.is_empty() && !self.is_behind();
        let served = self.served.saturating_add(1);
        let worn = options.idle_max == 0 || (options.requests_max > 0 && served >= options.requests_max);
        if !clean || worn || !self.link.is_fresh() {
            return None;
        }
        let until_ms = now_ms.saturating_add(self.idle_ms.min(options.idle_ms_max));
        Some((self.link, IdleConnection { address: self.address, served, until_ms }))
    }

    /// Gives its buffers back for as long as nothing is in them: while a request waits for its answer, others use
    /// them, and they stay in the processor's caches.
    pub(crate) fn release(&mut self) {
        if self.silent && self.backlog() == 0 {
            self.buffers.release();
        }
    }

    /// Takes buffers again.
    pub(crate) fn hold(&mut self) {
        self.buffers.hold();
    }
}

/// How long the upstream keeps an idle connection, in milliseconds, by its `Keep-Alive` field: a little less than it
/// says, because both clocks run while the next request travels. `None` where it says nothing.
pub(crate) fn announced_idle_ms(head: &ResponseHead, bytes: &[u8]) -> Option<u64> {
    let value = head.field(bytes, Name::KeepAlive)?;
    let seconds = scan::list(value).find_map(|part| {
        let digits = part.strip_prefix(b"timeout=").or_else(|| part.strip_prefix(b"Timeout="))?;
        scan::decimal(digits)
    })?;
    let announced_ms = seconds.saturating_mul(1000);
    Some(announced_ms.saturating_sub((announced_ms / 10).clamp(500, 2_000)))
}

/// A pool for the upstream connections of a core.
pub(crate) fn pool(memory: &Rc<Memory>) -> Rc<UpstreamBuffers> {
    Rc::new(BufferPool::new(memory, POOL_BYTES_MAX))
}
