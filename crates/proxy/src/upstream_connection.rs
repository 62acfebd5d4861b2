//! An upstream connection: at rest in a pool, or with buffers while a request is on it.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use http::machine::{self, Fed};
use http::{Limits, Method, Name, Reject, ResponseHead, scan};
use net::{Fault, Link, Memory};

use crate::options::KeepAlive;

/// Bytes of an input buffer to begin with: nearly every response that is not a download.
const INPUT_BYTES: usize = 16 * 1024;
/// What it grows to while a long body streams through.
const INPUT_BYTES_STREAMING: usize = 64 * 1024;
/// The size of input buffers while memory is short.
const INPUT_BYTES_SHORT: usize = 4 * 1024;
/// What buffers hold beside their bytes: the parser.
const BUFFERS_BYTES: usize = 1024;
/// Buffers that are kept though nobody has needed them for a while.
const SPARE_MIN: usize = 8;
/// A piece of a request body at least this large is sent from where it stands instead of being copied first.
const COPIED_BYTES_MAX: usize = 16 * 1024;
/// Bytes of buffers that a core keeps.
const SPARE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Buffers grown beyond this are not kept.
const KEPT_BYTES_MAX: usize = 160 * 1024;

/// What there is to know of a connection at rest. It holds no buffer.
pub(crate) struct IdleConnection {
    /// The address that it goes to; `None` for a Unix socket.
    pub(crate) address: Option<SocketAddr>,
    /// Requests that it has carried.
    served: u32,
    /// When it is of no more use.
    pub(crate) until_ms: u64,
}

/// A connection that carries a request.
pub(crate) struct UpstreamConnection {
    pub(crate) link: Link,
    pub(crate) address: Option<SocketAddr>,
    pub(crate) buffers: PooledBuffers,
    served: u32,
    /// It came from the pool.
    pub(crate) reused: bool,
    /// Nothing has come from the upstream since the request began.
    pub(crate) silent: bool,
    /// How long it may lie idle after this response; set by its head.
    pub(crate) idle_ms: u64,
}

/// Buffers that return to their pool: while nothing is in them ([`UpstreamConnection::release`]), and in the end.
pub(crate) struct PooledBuffers {
    spare: SpareBuffers,
    held: Option<Box<Buffers>>,
}

/// The parser and the bytes on their way, either direction.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    pub(crate) machine: machine::ClientMachine,
    input: Vec<u8>,
    at: usize,
    end: usize,
    /// Bytes for the upstream, of which `out_at` have gone.
    pub(crate) out: Vec<u8>,
    out_at: usize,
}

/// What reading brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    Bytes,
    Nothing,
    End,
}

impl Buffers {
    /// Bytes received and not consumed.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.input[self.at..self.end]
    }

    /// Feeds the parser with what is there; consuming it is left to the caller.
    pub(crate) fn feed(&mut self, method: Method, limits: &Limits) -> Result<Fed, Reject> {
        self.machine.feed(&self.input[self.at..self.end], method, limits)
    }

    pub(crate) fn consume(&mut self, len: usize) {
        self.at += len;
    }

    /// The head just parsed, with the bytes that its spans refer to.
    pub(crate) fn head(&self) -> (&ResponseHead, &[u8]) {
        (&self.machine.head, self.rest())
    }

    /// Forgets what was to be sent.
    pub(crate) fn drop_out(&mut self) {
        self.out.clear();
        self.out_at = 0;
    }

    fn room(&mut self, streaming: bool, is_short: bool) -> &mut [u8] {
        if self.at == self.end {
            (self.at, self.end) = (0, 0);
        }
        let want = match (is_short, streaming) {
            (true, _) => INPUT_BYTES_SHORT,
            (false, true) => INPUT_BYTES_STREAMING,
            (false, false) => INPUT_BYTES,
        };
        if self.input.len() < want {
            self.input.resize(want, 0);
        }
        if self.end == self.input.len() {
            if self.at > 0 {
                self.input.copy_within(self.at..self.end, 0);
                (self.at, self.end) = (0, self.end - self.at);
            } else {
                self.input.resize(self.input.len() * 2, 0);
            }
        }
        &mut self.input[self.end..]
    }

    /// What they hold of memory.
    fn weight_bytes(&self) -> usize {
        BUFFERS_BYTES + self.input.capacity() + self.out.capacity()
    }

    /// Gives back what they hold beyond the bytes in them.
    fn trim(&mut self) {
        self.input.drain(..self.at);
        (self.at, self.end) = (0, self.end - self.at);
        self.input.truncate(self.end);
        self.input.shrink_to_fit();
        self.out.drain(..self.out_at);
        self.out_at = 0;
        self.out.shrink_to_fit();
    }

    fn clear(&mut self) {
        self.machine.next();
        (self.at, self.end) = (0, 0);
        self.drop_out();
    }
}

impl IdleConnection {
    /// Takes it up for a request.
    pub(crate) fn take_up(self, link: Link, buffers: PooledBuffers) -> UpstreamConnection {
        let IdleConnection { address, served, .. } = self;
        UpstreamConnection { link, address, buffers, served, reused: true, silent: true, idle_ms: 0 }
    }
}

impl UpstreamConnection {
    /// A connection just made.
    pub(crate) fn new(link: Link, address: Option<SocketAddr>, buffers: PooledBuffers) -> UpstreamConnection {
        UpstreamConnection { link, address, buffers, served: 0, reused: false, silent: true, idle_ms: 0 }
    }

    /// Whether anything waits to be sent, what TLS has taken and the kernel has not among it.
    pub(crate) fn is_behind(&self) -> bool {
        self.backlog() > 0 || self.link.is_behind()
    }

    /// Bytes that wait to be sent.
    pub(crate) fn backlog(&self) -> usize {
        self.buffers.out.len() - self.buffers.out_at
    }

    /// Sends what goes now; true where nothing is left.
    pub(crate) fn try_flush(&mut self) -> Result<bool, Fault> {
        while self.backlog() > 0 {
            let sent = self.link.try_write(&[&self.buffers.out[self.buffers.out_at..]], false)?;
            if sent == 0 {
                return Ok(false);
            }
            self.buffers.out_at += sent;
        }
        self.buffers.out.clear();
        self.buffers.out_at = 0;
        self.link.try_flush()
    }

    /// Adds bytes of a body, without waiting: a large piece goes out from where it stands, as far as it goes now.
    pub(crate) fn offer(&mut self, mut bytes: &[u8]) -> Result<(), Fault> {
        if self.backlog() + bytes.len() > COPIED_BYTES_MAX {
            let out = &self.buffers.out[self.buffers.out_at..];
            let sent = match out.is_empty() {
                true => self.link.try_write(&[bytes], false)?,
                false => self.link.try_write(&[out, bytes], false)?,
            };
            let of_out = sent.min(out.len());
            self.buffers.out_at += of_out;
            bytes = &bytes[sent - of_out..];
        }
        if self.backlog() == 0 {
            self.buffers.out.clear();
            self.buffers.out_at = 0;
        }
        self.buffers.out.extend_from_slice(bytes);
        Ok(())
    }

    /// What its buffers hold of memory; where that is short they hold less from now on.
    pub(crate) fn weigh(&mut self, is_short: bool) -> usize {
        let Some(buffers) = self.buffers.held.as_mut() else { return 0 };
        if is_short {
            buffers.trim();
        }
        buffers.weight_bytes()
    }

    /// Reads what is there.
    pub(crate) fn fill(&mut self, is_short: bool) -> Result<Read, Fault> {
        let streaming = self
            .buffers
            .machine
            .body()
            .is_some_and(|body| body.remaining().is_none_or(|remaining| remaining > INPUT_BYTES as u64));
        Ok(match self.link.try_read(self.buffers.room(streaming, is_short))? {
            None => Read::Nothing,
            Some(0) => Read::End,
            Some(len) => {
                self.buffers.end += len;
                self.silent = false;
                Read::Bytes
            }
        })
    }

    /// Puts it to rest, where it can serve again: the response has ended and nothing came after it.
    pub(crate) fn rest(mut self, options: &KeepAlive, now_ms: u64) -> Option<(Link, IdleConnection)> {
        let buffers = &self.buffers;
        let clean = buffers.machine.is_reusable() && buffers.rest().is_empty() && !self.is_behind();
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
            self.buffers.give_back();
        }
    }

    /// Takes buffers again.
    pub(crate) fn hold(&mut self) {
        let PooledBuffers { spare, held } = &mut self.buffers;
        held.get_or_insert_with(|| spare.take());
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

impl PooledBuffers {
    fn give_back(&mut self) {
        if let Some(buffers) = self.held.take() {
            self.spare.give_back(buffers);
        }
    }
}

impl Drop for PooledBuffers {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl Deref for PooledBuffers {
    type Target = Buffers;

    fn deref(&self) -> &Buffers {
        self.held.as_ref().expect("released only during a wait")
    }
}

impl DerefMut for PooledBuffers {
    fn deref_mut(&mut self) -> &mut Buffers {
        self.held.as_mut().expect("released only during a wait")
    }
}

/// Buffers of one core that nobody uses now.
#[derive(Clone, Default)]
pub(crate) struct SpareBuffers {
    memory: Rc<Memory>,
    // Boxed on purpose: giving back moves eight bytes.
    #[allow(clippy::vec_box)]
    free: Rc<RefCell<Vec<Box<Buffers>>>>,
    /// What those weigh.
    bytes: Rc<Cell<usize>>,
    /// The fewest that were free since the last [`SpareBuffers::trim`]: those that nobody has needed.
    unused: Rc<Cell<usize>>,
}

impl SpareBuffers {
    pub(crate) fn new(memory: &Rc<Memory>) -> SpareBuffers {
        SpareBuffers { memory: memory.clone(), ..SpareBuffers::default() }
    }

    /// Buffers, empty, until they are dropped.
    pub(crate) fn lend(&self) -> PooledBuffers {
        PooledBuffers { spare: self.clone(), held: Some(self.take()) }
    }

    fn take(&self) -> Box<Buffers> {
        let Some(buffers) = self.free.borrow_mut().pop() else { return Box::default() };
        self.bytes.set(self.bytes.get() - buffers.weight_bytes());
        self.unused.set(self.unused.get().min(self.free.borrow().len()));
        buffers
    }

    /// Gives back what nobody has needed since it was asked last.
    pub(crate) fn trim(&self) {
        let mut free = self.free.borrow_mut();
        let count = self.unused.get().min(free.len()).saturating_sub(SPARE_MIN);
        for buffers in free.drain(..count) {
            self.bytes.set(self.bytes.get() - buffers.weight_bytes());
        }
        self.unused.set(free.len());
    }

    fn give_back(&self, mut buffers: Box<Buffers>) {
        let weight = buffers.weight_bytes();
        let bytes = self.bytes.get() + weight;
        if weight <= KEPT_BYTES_MAX && bytes <= self.memory.kept_bytes_max(SPARE_BYTES_MAX) {
            buffers.clear();
            self.bytes.set(bytes);
            self.free.borrow_mut().push(buffers);
        }
    }
}
