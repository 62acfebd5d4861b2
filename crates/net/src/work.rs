//! What a connection needs only while bytes flow, kept in a pool.

use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use http::ResponseHead;
use http::machine::{ClientMachine, ServerMachine};

use crate::memory::Memory;
use crate::pump::{Inbox, Outbox};

/// What an input buffer grows to while the body of a request streams through it.
const STREAMING_BYTES: usize = 64 * 1024;
/// The same while memory is short.
const STREAMING_BYTES_SHORT: usize = 8 * 1024;
/// Bytes that an entry of the pool takes in addition to its buffers: its parser.
const ENTRY_BYTES: usize = 1024;
/// What the pool keeps although it has not been used for a while.
const KEPT_MIN: usize = 16;
/// Those that weigh more than this release their buffers, however.
const KEPT_BYTES_UNUSED: usize = 32 * 1024;
/// Entries that weigh more are returned to the allocator instead of the pool.
const KEPT_BYTES_MAX: usize = 224 * 1024;
/// Bytes that the pool of a core's clients keeps.
pub(crate) const POOL_BYTES_MAX: usize = 8 * 1024 * 1024;

/// A parser that serves one message after the other, of any connection.
pub trait Parser: Default {
    /// Forgets everything, to serve another connection; keeps the memory.
    fn forget(&mut self);
    /// Bytes at the beginning of the message that it still refers to when they are consumed.
    fn kept_bytes(&self) -> usize;
}

impl Parser for ServerMachine {
    fn forget(&mut self) {
        self.restart();
    }

    fn kept_bytes(&self) -> usize {
        self.head.len
    }
}

impl Parser for ClientMachine {
    fn forget(&mut self) {
        self.next();
    }

    fn kept_bytes(&self) -> usize {
        0
    }
}

/// The parser and the buffers of a connection that is busy.
#[derive(Debug, Default)]
pub struct Buffers<P> {
    /// Reads what is received.
    pub machine: P,
    /// Bytes received.
    pub input: Inbox,
    /// Bytes to send.
    pub out: Outbox,
}

/// Those of a client's connection.
pub(crate) type ConnectionBuffers = Buffers<ServerMachine>;

impl<P> Buffers<P> {
    /// What it holds of memory, in bytes.
    #[must_use]
    pub fn weight_bytes(&self) -> usize {
        ENTRY_BYTES + self.input.weight_bytes() + self.out.weight_bytes()
    }
}

impl<P: Parser> Buffers<P> {
    /// Room to read more into, `least` bytes or more; a buffer that has to grow gets `size` bytes.
    pub fn room(&mut self, size: usize, least: usize) -> &mut [u8] {
        self.input.room(self.machine.kept_bytes(), size, least)
    }

    /// Releases the unused capacity of the buffers.
    pub fn trim(&mut self) {
        self.input.trim(self.machine.kept_bytes());
        self.out.trim();
    }
}

/// Buffers that a connection holds, except while it waits with nothing in them. In the end they return to their pool.
pub struct HeldBuffers<P: Parser> {
    pool: Rc<BufferPool<P>>,
    held: Option<Box<Buffers<P>>>,
}

impl<P: Parser> HeldBuffers<P> {
    /// Empty buffers.
    #[must_use]
    pub fn take(pool: &Rc<BufferPool<P>>) -> HeldBuffers<P> {
        HeldBuffers { pool: pool.clone(), held: Some(pool.take()) }
    }

    /// Returns them to their pool: until [`HeldBuffers::hold`] they must not be used.
    pub fn release(&mut self) {
        if let Some(buffers) = self.held.take() {
            self.pool.give_back(buffers);
        }
    }

    /// Takes buffers again.
    pub fn hold(&mut self) {
        self.held.get_or_insert_with(|| self.pool.take());
    }

    /// Them, unless they are released.
    pub fn held(&mut self) -> Option<&mut Buffers<P>> {
        self.held.as_deref_mut()
    }

    /// Whether bytes of them wait to be sent.
    #[must_use]
    pub fn waits(&self) -> bool {
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
    /// The response head just parsed, with the bytes that its spans refer to.
    #[must_use]
    pub fn head(&self) -> (&ResponseHead, &[u8]) {
        (&self.machine.head, self.input.rest())
    }
}

impl ConnectionBuffers {
    /// Room to read body bytes into, behind the head, which stays where it is.
    pub(crate) fn body_room(&mut self, is_short: bool) -> &mut [u8] {
        let size = if is_short { STREAMING_BYTES_SHORT } else { STREAMING_BYTES };
        self.room(size, size / 4)
    }
}

/// The buffers of one core that no connection uses now.
#[derive(Debug)]
pub struct BufferPool<P> {
    memory: Rc<Memory>,
    bytes_max: usize,
    // Boxed on purpose: a busy connection holds a pointer, and giving back moves eight bytes.
    #[allow(clippy::vec_box)]
    free: RefCell<Vec<Box<Buffers<P>>>>,
    /// What those weigh.
    bytes: Cell<usize>,
    /// The fewest entries kept since the last [`BufferPool::trim`]: as many were not needed since then.
    unused: Cell<usize>,
}

impl<P> Default for BufferPool<P> {
    fn default() -> BufferPool<P> {
        BufferPool::new(&Rc::default(), POOL_BYTES_MAX)
    }
}

impl<P> BufferPool<P> {
    /// A pool that keeps up to `bytes_max`, and nothing while memory is short.
    #[must_use]
    pub fn new(memory: &Rc<Memory>, bytes_max: usize) -> BufferPool<P> {
        BufferPool {
            memory: memory.clone(),
            bytes_max,
            free: RefCell::default(),
            bytes: Cell::new(0),
            unused: Cell::new(0),
        }
    }

    /// How many it keeps now.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
        self.free.borrow().len()
    }

    /// What those weigh.
    #[cfg(test)]
    pub(crate) fn kept_bytes(&self) -> usize {
        self.bytes.get()
    }
}

impl<P: Parser> BufferPool<P> {
    /// Releases the entries that were not needed since the last call, except a few small ones.
    pub fn trim(&self) {
        let mut free = self.free.borrow_mut();
        let unused = self.unused.get().min(free.len());
        // What was used last stands last.
        free.drain(..unused.saturating_sub(KEPT_MIN));
        for buffers in free.iter_mut().take(unused.min(KEPT_MIN)) {
            if buffers.weight_bytes() > KEPT_BYTES_UNUSED {
                buffers.trim();
            }
        }
        if unused > 0 {
            free.shrink_to_fit();
            self.bytes.set(free.iter().map(|buffers| buffers.weight_bytes()).sum());
        }
        self.unused.set(free.len());
    }

    /// Empty buffers.
    pub fn take(&self) -> Box<Buffers<P>> {
        let Some(buffers) = self.free.borrow_mut().pop() else { return Box::default() };
        self.bytes.set(self.bytes.get() - buffers.weight_bytes());
        self.unused.set(self.unused.get().min(self.free.borrow().len()));
        buffers
    }

    /// Keeps them for the next connection, unless the pool is full.
    pub fn give_back(&self, mut buffers: Box<Buffers<P>>) {
        let weight = buffers.weight_bytes();
        let bytes = self.bytes.get() + weight;
        if weight <= KEPT_BYTES_MAX && bytes <= self.memory.kept_bytes_max(self.bytes_max) {
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
    fn what_the_pool_keeps_weighs_what_it_holds_of_memory() {
        let works = BufferPool::<ServerMachine>::default();
        let mut work = works.take();
        work.body_room(false);
        work.input.restore(b"GET / HT");
        works.give_back(work);
        assert!(works.kept_bytes() >= STREAMING_BYTES, "{}", works.kept_bytes());
        works.take();
        assert_eq!(works.kept_bytes(), 0);
    }

    #[test]
    fn what_nobody_has_needed_for_a_while_goes_back() {
        let works = BufferPool::<ServerMachine>::default();
        let taken: Vec<_> = (0..100).map(|_| works.take()).collect();
        taken.into_iter().for_each(|work| works.give_back(work));
        works.trim();
        assert_eq!(works.kept(), 100, "all of them were in use since the last time");
        let some: Vec<_> = (0..50).map(|_| works.take()).collect();
        some.into_iter().for_each(|work| works.give_back(work));
        works.trim();
        assert_eq!(works.kept(), 50 + KEPT_MIN);
        works.trim();
        assert_eq!(works.kept(), KEPT_MIN);
        (0..KEPT_MIN).for_each(|_| _ = works.take());
        assert_eq!(works.kept_bytes(), 0);
    }

    #[test]
    fn buffers_of_bodies_go_back_when_no_body_has_needed_them_for_a_while() {
        let works = BufferPool::<ServerMachine>::default();
        let mut work = works.take();
        work.body_room(false);
        works.give_back(work);
        works.trim();
        assert!(works.kept_bytes() >= STREAMING_BYTES, "it was in use since the last time");
        works.trim();
        assert!((1..=KEPT_BYTES_UNUSED).contains(&works.kept_bytes()), "{}", works.kept_bytes());
    }

    #[test]
    fn trimmed_buffers_hold_their_bytes_and_little_more() {
        let mut work = ConnectionBuffers::default();
        work.body_room(false);
        work.input.restore(b"GET / HT");
        work.out.restore(vec![b'x'; 100_000], 99_000);
        work.trim();
        assert_eq!((work.input.rest(), work.out.rest()), (&b"GET / HT"[..], &[b'x'; 1_000][..]));
        assert!(work.weight_bytes() < ENTRY_BYTES + 2_048, "{}", work.weight_bytes());
        let room = work.body_room(true).len();
        assert!((2_000..=STREAMING_BYTES_SHORT).contains(&room), "{room}");
    }
}
