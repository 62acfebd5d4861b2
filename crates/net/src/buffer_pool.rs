//! Pooled parsers and buffers, which a connection holds only while data is transferred.

use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use http::ResponseHead;
use http::machine::{ClientMachine, ServerMachine};

use crate::io_buffers::{InputBuffer, OutputBuffer};
use crate::memory::Memory;

/// Size to which an input buffer grows while a request body streams through it.
const STREAMING_BYTES: usize = 64 * 1024;
/// [`STREAMING_BYTES`] under memory pressure.
const STREAMING_BYTES_LOW_MEMORY: usize = 8 * 1024;
/// Memory of a pool entry without its buffers: the parser.
const ENTRY_BYTES: usize = 1024;
/// Number of entries that the pool keeps although they were not used for some time.
const POOL_ENTRIES_MIN: usize = 16;
/// Size above which an unused entry that is kept releases its buffers.
const UNUSED_ENTRY_BYTES_MAX: usize = 32 * 1024;
/// Size above which an entry is freed instead of returned to the pool.
const POOLED_ENTRY_BYTES_MAX: usize = 224 * 1024;
/// Maximum size of the pool for a core's client connections.
pub(crate) const POOL_BYTES_MAX: usize = 8 * 1024 * 1024;

/// A parser that processes one message after another, of any connection.
pub trait Parser: Default {
    /// Resets the parser for another connection and keeps its memory.
    fn forget(&mut self);
    /// Returns the number of bytes at the beginning of the message that the parser still refers to after they
    /// were consumed.
    fn referenced_bytes(&self) -> usize;
}

impl Parser for ServerMachine {
    fn forget(&mut self) {
        self.restart();
    }

    fn referenced_bytes(&self) -> usize {
        self.head.len
    }
}

impl Parser for ClientMachine {
    fn forget(&mut self) {
        self.next();
    }

    fn referenced_bytes(&self) -> usize {
        0
    }
}

/// Parser and buffers of an active connection.
#[derive(Debug, Default)]
pub struct Buffers<P> {
    /// Parser of the received bytes.
    pub machine: P,
    /// Bytes received.
    pub input: InputBuffer,
    /// Bytes to send.
    pub out: OutputBuffer,
}

/// Parser and buffers of a client connection.
pub(crate) type ConnectionBuffers = Buffers<ServerMachine>;

impl<P> Buffers<P> {
    /// Returns the memory held, in bytes.
    #[must_use]
    pub fn weight_bytes(&self) -> usize {
        ENTRY_BYTES + self.input.weight_bytes() + self.out.weight_bytes()
    }
}

impl<P: Parser> Buffers<P> {
    /// Returns at least `bytes_min` bytes of room to read into. If the buffer must grow, it gets `size` bytes.
    pub fn room(&mut self, size: usize, bytes_min: usize) -> &mut [u8] {
        self.input.room(self.machine.referenced_bytes(), size, bytes_min)
    }

    /// Releases the unused capacity of the buffers.
    pub fn trim(&mut self) {
        self.input.trim(self.machine.referenced_bytes());
        self.out.trim();
    }
}

/// Buffers borrowed from a pool. May be released during a wait if they are empty; returned on drop.
pub struct HeldBuffers<P: Parser> {
    pool: Rc<BufferPool<P>>,
    held: Option<Box<Buffers<P>>>,
}

impl<P: Parser> HeldBuffers<P> {
    /// Takes empty buffers from the pool.
    #[must_use]
    pub fn take(pool: &Rc<BufferPool<P>>) -> HeldBuffers<P> {
        HeldBuffers { pool: pool.clone(), held: Some(pool.take()) }
    }

    /// Returns the buffers to the pool. They must not be used until [`HeldBuffers::hold`].
    pub fn release(&mut self) {
        if let Some(buffers) = self.held.take() {
            self.pool.put_back(buffers);
        }
    }

    /// Takes buffers again if they were released.
    pub fn hold(&mut self) {
        self.held.get_or_insert_with(|| self.pool.take());
    }

    /// Returns the buffers, unless they are released.
    pub fn held(&mut self) -> Option<&mut Buffers<P>> {
        self.held.as_deref_mut()
    }

    /// Whether there is unsent output.
    #[must_use]
    pub fn has_pending_output(&self) -> bool {
        self.held.as_ref().is_some_and(|buffers| buffers.out.backlog() > 0)
    }
}

impl<P: Parser> Drop for HeldBuffers<P> {
    fn drop(&mut self) {
        self.release();
    }
}

impl<P: Parser> Deref for HeldBuffers<P> {
    type Target = Buffers<P>;

    fn deref(&self) -> &Buffers<P> {
        self.held.as_ref().expect("buffers are released only during a wait")
    }
}

impl<P: Parser> DerefMut for HeldBuffers<P> {
    fn deref_mut(&mut self) -> &mut Buffers<P> {
        self.held.as_mut().expect("buffers are released only during a wait")
    }
}

impl Buffers<ClientMachine> {
    /// Returns the response head just parsed and the bytes that its spans refer to.
    #[must_use]
    pub fn head(&self) -> (&ResponseHead, &[u8]) {
        (&self.machine.head, self.input.unconsumed())
    }
}

impl ConnectionBuffers {
    /// Returns room for body bytes behind the head, which is not moved.
    pub(crate) fn room_for_body(&mut self, is_short: bool) -> &mut [u8] {
        let size = if is_short { STREAMING_BYTES_LOW_MEMORY } else { STREAMING_BYTES };
        self.room(size, size / 4)
    }
}

/// Unused buffers of one core.
#[derive(Debug)]
pub struct BufferPool<P> {
    memory: Rc<Memory>,
    bytes_max: usize,
    // Boxed so that an active connection holds a pointer, and returning an entry moves eight bytes.
    #[allow(clippy::vec_box)]
    free: RefCell<Vec<Box<Buffers<P>>>>,
    /// Total size of the free entries.
    bytes: Cell<usize>,
    /// Minimum number of free entries since the last [`BufferPool::trim`], none of which were needed.
    unused_min: Cell<usize>,
}

impl<P> Default for BufferPool<P> {
    fn default() -> BufferPool<P> {
        BufferPool::new(&Rc::default(), POOL_BYTES_MAX)
    }
}

impl<P> BufferPool<P> {
    /// Creates a pool that keeps up to `bytes_max`, and nothing under memory pressure.
    #[must_use]
    pub fn new(memory: &Rc<Memory>, bytes_max: usize) -> BufferPool<P> {
        BufferPool {
            memory: memory.clone(),
            bytes_max,
            free: RefCell::default(),
            bytes: Cell::new(0),
            unused_min: Cell::new(0),
        }
    }

    /// Returns the number of free entries.
    #[cfg(test)]
    pub(crate) fn free_entries(&self) -> usize {
        self.free.borrow().len()
    }

    /// Returns the total size of the free entries.
    #[cfg(test)]
    pub(crate) fn free_bytes(&self) -> usize {
        self.bytes.get()
    }
}

impl<P: Parser> BufferPool<P> {
    /// Frees the entries that were not needed since the last call, except a few small ones.
    pub fn trim(&self) {
        let mut free = self.free.borrow_mut();
        let unused = self.unused_min.get().min(free.len());
        // The most recently used entries are last.
        free.drain(..unused.saturating_sub(POOL_ENTRIES_MIN));
        for buffers in free.iter_mut().take(unused.min(POOL_ENTRIES_MIN)) {
            if buffers.weight_bytes() > UNUSED_ENTRY_BYTES_MAX {
                buffers.trim();
            }
        }
        if unused > 0 {
            free.shrink_to_fit();
            self.bytes.set(free.iter().map(|buffers| buffers.weight_bytes()).sum());
        }
        self.unused_min.set(free.len());
    }

    /// Takes empty buffers.
    pub fn take(&self) -> Box<Buffers<P>> {
        let Some(buffers) = self.free.borrow_mut().pop() else { return Box::default() };
        self.bytes.set(self.bytes.get() - buffers.weight_bytes());
        self.unused_min.set(self.unused_min.get().min(self.free.borrow().len()));
        buffers
    }

    /// Returns buffers to the pool; frees them if it is full.
    pub fn put_back(&self, mut buffers: Box<Buffers<P>>) {
        let weight = buffers.weight_bytes();
        let bytes = self.bytes.get() + weight;
        if weight <= POOLED_ENTRY_BYTES_MAX && bytes <= self.memory.pool_bytes_max(self.bytes_max) {
            buffers.machine.forget();
            buffers.input.clear();
            buffers.out.clear();
            self.bytes.set(bytes);
            self.free.borrow_mut().push(buffers);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_counts_the_bytes_of_kept_buffers() {
        let works = BufferPool::<ServerMachine>::default();
        let mut work = works.take();
        work.room_for_body(false);
        work.input.restore(b"GET / HT");
        works.put_back(work);
        assert!(works.free_bytes() >= STREAMING_BYTES, "{}", works.free_bytes());
        works.take();
        assert_eq!(works.free_bytes(), 0);
    }

    #[test]
    fn trim_frees_buffers_unused_since_the_last_trim() {
        let works = BufferPool::<ServerMachine>::default();
        let taken: Vec<_> = (0..100).map(|_| works.take()).collect();
        taken.into_iter().for_each(|work| works.put_back(work));
        works.trim();
        assert_eq!(works.free_entries(), 100, "all of them were in use since the last time");
        let some: Vec<_> = (0..50).map(|_| works.take()).collect();
        some.into_iter().for_each(|work| works.put_back(work));
        works.trim();
        assert_eq!(works.free_entries(), 50 + POOL_ENTRIES_MIN);
        works.trim();
        assert_eq!(works.free_entries(), POOL_ENTRIES_MIN);
        (0..POOL_ENTRIES_MIN).for_each(|_| _ = works.take());
        assert_eq!(works.free_bytes(), 0);
    }

    #[test]
    fn trim_frees_unused_body_buffers() {
        let works = BufferPool::<ServerMachine>::default();
        let mut work = works.take();
        work.room_for_body(false);
        works.put_back(work);
        works.trim();
        assert!(works.free_bytes() >= STREAMING_BYTES, "it was in use since the last time");
        works.trim();
        assert!((1..=UNUSED_ENTRY_BYTES_MAX).contains(&works.free_bytes()), "{}", works.free_bytes());
    }

    #[test]
    fn trimmed_buffers_hold_their_bytes_and_little_more() {
        let mut work = ConnectionBuffers::default();
        work.room_for_body(false);
        work.input.restore(b"GET / HT");
        work.out.restore(vec![b'x'; 100_000], 99_000);
        work.trim();
        assert_eq!((work.input.unconsumed(), work.out.unsent()), (&b"GET / HT"[..], &[b'x'; 1_000][..]));
        assert!(work.weight_bytes() < ENTRY_BYTES + 2_048, "{}", work.weight_bytes());
        let room = work.room_for_body(true).len();
        assert!((2_000..=STREAMING_BYTES_LOW_MEMORY).contains(&room), "{room}");
    }
}
