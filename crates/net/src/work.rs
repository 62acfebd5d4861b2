//! What a connection needs only while bytes flow, kept in a pool.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use http::machine;

use crate::memory::Memory;

/// Bytes of an input buffer to begin with: nearly every head. Many small ones lie close together in memory, so that a
/// thousand requests that wait for something outside stay in the processor's caches.
const INPUT_BYTES_FIRST: usize = 2 * 1024;
/// What it grows to where a head fills that: a whole head by default.
pub(crate) const INPUT_BYTES: usize = 16 * 1024;
/// What an input buffer grows to while a body streams through it.
pub(crate) const INPUT_BYTES_STREAMING: usize = 64 * 1024;
/// Buffers larger than this are returned to the allocator instead of the pool.
const KEPT_BYTES_MAX: usize = 128 * 1024;
/// Bytes that the pool keeps on one core.
pub(crate) const POOL_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The same while memory is short.
const INPUT_BYTES_STREAMING_SHORT: usize = 8 * 1024;
/// Spare room in a buffer that is not worth releasing.
const SPARE_BYTES: usize = 1024;
/// What the pool keeps although it has not been used for a while.
const KEPT_MIN: usize = 16;
/// Bytes that an entry of the pool takes in addition to its buffers.
const WORK_BYTES: usize = 1024;

/// The parser and the buffers of a connection that is busy.
#[derive(Debug, Default)]
pub(crate) struct ConnectionBuffers {
    pub(crate) machine: machine::ServerMachine,
    pub(crate) input: Input,
    /// Bytes to send, of which `out_at` have been.
    pub(crate) out: Vec<u8>,
    pub(crate) out_at: usize,
}

/// Bytes received: `start..at` is the head being served, `at..end` is not consumed yet.
#[derive(Debug, Default)]
pub(crate) struct Input {
    bytes: Vec<u8>,
    /// First byte of the head being read or served.
    pub(crate) start: usize,
    /// First byte not consumed.
    pub(crate) at: usize,
    /// After the last byte received.
    pub(crate) end: usize,
}

impl Input {
    /// From the head's first byte to the last byte received: what head spans refer to.
    pub(crate) fn head(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// What is not consumed yet.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.bytes[self.at..self.end]
    }

    /// Bytes at a position that [`crate::conn::Conn::body_piece`] returned.
    pub(crate) fn slice(&self, start: usize, end: usize) -> &[u8] {
        &self.bytes[start..end]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.at == self.end
    }

    /// The head that was being served is done with: what follows begins the next one.
    pub(crate) fn next_head(&mut self) {
        self.start = self.at;
        if self.at == self.end {
            (self.start, self.at, self.end) = (0, 0, 0);
        }
    }

    /// Room to read a head into, at least one byte unless the head fills `bytes_max`.
    pub(crate) fn head_room(&mut self, bytes_max: usize) -> &mut [u8] {
        if self.end == self.bytes.len() {
            if self.start > 0 {
                self.bytes.copy_within(self.start..self.end, 0);
                self.at -= self.start;
                self.end -= self.start;
                self.start = 0;
            } else if self.bytes.len() < INPUT_BYTES.max(bytes_max) {
                let len = (self.bytes.len() * 8).clamp(INPUT_BYTES_FIRST, INPUT_BYTES.max(bytes_max));
                self.bytes.resize(len, 0);
            }
        }
        &mut self.bytes[self.end..]
    }

    /// Room to read body bytes into, behind the head, which stays where it is.
    pub(crate) fn body_room(&mut self, head_len: usize, is_short: bool) -> &mut [u8] {
        let streaming = if is_short { INPUT_BYTES_STREAMING_SHORT } else { INPUT_BYTES_STREAMING };
        let body = self.start + head_len;
        if self.at == self.end {
            (self.at, self.end) = (body, body);
        }
        if self.bytes.len() - self.end < streaming / 4 {
            self.bytes.resize((body + streaming).max(self.end + streaming / 4), 0);
        }
        &mut self.bytes[self.end..]
    }

    /// Releases the memory behind the last byte received.
    pub(crate) fn shrink(&mut self) {
        self.bytes.truncate(self.end);
        self.bytes.shrink_to_fit();
    }

    /// So many bytes were read into the room.
    pub(crate) fn filled(&mut self, len: usize) {
        self.end += len;
    }

    /// Puts bytes in that were taken out before.
    pub(crate) fn restore(&mut self, bytes: &[u8]) {
        self.bytes.resize(INPUT_BYTES_FIRST.max(bytes.len()), 0);
        self.bytes[..bytes.len()].copy_from_slice(bytes);
        (self.start, self.at, self.end) = (0, 0, bytes.len());
    }

    fn clear(&mut self) {
        (self.start, self.at, self.end) = (0, 0, 0);
    }
}

/// The pool of one core.
#[derive(Debug, Default)]
pub(crate) struct BufferPool {
    memory: Rc<Memory>,
    // Boxed on purpose: a busy connection holds a pointer, and giving back moves eight bytes.
    #[allow(clippy::vec_box)]
    free: RefCell<Vec<Box<ConnectionBuffers>>>,
    /// What those weigh.
    bytes: Cell<usize>,
    /// The fewest entries kept since the last [`BufferPool::trim`]: as many were not needed since then.
    unused: Cell<usize>,
}

impl ConnectionBuffers {
    /// What it holds of memory.
    pub(crate) fn weight_bytes(&self) -> usize {
        WORK_BYTES + self.input.bytes.capacity() + self.out.capacity()
    }

    /// Releases the unused capacity of the buffers.
    pub(crate) fn trim(&mut self) {
        if self.input.bytes.capacity() > self.input.end + SPARE_BYTES {
            self.input.shrink();
        }
        if self.out.capacity() > self.out.len() - self.out_at + SPARE_BYTES {
            self.out.drain(..self.out_at);
            self.out_at = 0;
            self.out.shrink_to_fit();
        }
    }
}

impl BufferPool {
    pub(crate) fn new(memory: &Rc<Memory>) -> BufferPool {
        BufferPool { memory: memory.clone(), ..BufferPool::default() }
    }

    pub(crate) fn take(&self) -> Box<ConnectionBuffers> {
        let Some(work) = self.free.borrow_mut().pop() else { return Box::default() };
        self.bytes.set(self.bytes.get() - work.weight_bytes());
        self.unused.set(self.unused.get().min(self.free.borrow().len()));
        work
    }

    /// Releases the entries that were not needed since the last call.
    pub(crate) fn trim(&self) {
        let mut free = self.free.borrow_mut();
        let count = self.unused.get().min(free.len()).saturating_sub(KEPT_MIN);
        // What was used last stands last.
        for work in free.drain(..count) {
            self.bytes.set(self.bytes.get() - work.weight_bytes());
        }
        if count > 0 {
            free.shrink_to_fit();
        }
        self.unused.set(free.len());
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

    pub(crate) fn give_back(&self, mut work: Box<ConnectionBuffers>) {
        let weight = work.weight_bytes();
        let bytes = self.bytes.get() + weight;
        if weight <= KEPT_BYTES_MAX && bytes <= self.memory.kept_bytes_max(POOL_BYTES_MAX) {
            work.machine.restart();
            work.input.clear();
            work.out.clear();
            work.out_at = 0;
            self.bytes.set(bytes);
            self.free.borrow_mut().push(work);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Puts bytes where a socket would.
    fn receive(room: &mut [u8], bytes: &[u8]) -> usize {
        let len = room.len().min(bytes.len());
        room[..len].copy_from_slice(&bytes[..len]);
        len
    }

    #[test]
    fn a_body_without_end_streams_through_a_bounded_buffer_and_leaves_the_head_alone() {
        let mut input = Input::default();
        let len = receive(input.head_room(16 * 1024), b"an earlier request, a head");
        input.filled(len);
        input.at += "an earlier request, ".len();
        input.next_head();
        input.at += "a head".len();
        for _ in 0..1_000 {
            let room = input.body_room("a head".len(), false);
            room.fill(b'x');
            let len = room.len();
            input.filled(len);
            assert!(input.rest().iter().all(|&byte| byte == b'x') && !input.is_empty());
            input.at += len;
            assert_eq!(&input.head()[..6], b"a head");
        }
        assert!(input.bytes.len() <= 2 * INPUT_BYTES_STREAMING, "{}", input.bytes.len());
    }

    #[test]
    fn what_the_pool_keeps_weighs_what_it_holds_of_memory() {
        let works = BufferPool::default();
        let mut work = works.take();
        work.input.body_room(0, false);
        work.input.restore(b"GET / HT");
        works.give_back(work);
        assert!(works.kept_bytes() >= INPUT_BYTES_STREAMING, "{}", works.kept_bytes());
        works.take();
        assert_eq!(works.kept_bytes(), 0);
    }

    #[test]
    fn what_nobody_has_needed_for_a_while_goes_back() {
        let works = BufferPool::default();
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
    fn a_trimmed_work_holds_its_bytes_and_little_more() {
        let mut work = ConnectionBuffers::default();
        work.input.body_room(0, false);
        work.input.restore(b"GET / HT");
        work.out = vec![b'x'; 100_000];
        work.out_at = 99_000;
        work.trim();
        assert_eq!((work.input.rest(), &work.out[work.out_at..]), (&b"GET / HT"[..], &[b'x'; 1_000][..]));
        assert!(work.weight_bytes() < WORK_BYTES + 2_048, "{}", work.weight_bytes());
        let room = work.input.body_room(0, true).len();
        assert!((2_000..=INPUT_BYTES_STREAMING_SHORT).contains(&room), "{room}");
    }

    #[test]
    fn what_follows_a_head_moves_to_the_front_when_the_end_is_reached() {
        let mut input = Input::default();
        let wire: Vec<u8> = (0..200_000_u32).map(|at| (at % 251) as u8).collect();
        let (mut received, mut consumed) = (0, 0);
        while consumed < wire.len() {
            let len = receive(input.head_room(INPUT_BYTES), &wire[received..]);
            input.filled(len);
            received += len;
            assert_eq!(input.rest(), &wire[consumed..received]);
            // A little less than there is: something always stays behind, until the wire is empty.
            let used = input.rest().len().saturating_sub(7).max(1);
            input.at += used;
            consumed += used;
            input.next_head();
        }
        assert!(input.is_empty());
        assert!(input.bytes.len() <= INPUT_BYTES);
    }
}
