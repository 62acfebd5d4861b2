//! What tasks wait for: whether it is ready, which task waits for it, and until when.

use std::cell::Cell;

use rustix::event::epoll;

/// A source can be read, or its end seen.
pub(crate) const READ: u8 = 1;
/// A source can be written.
pub(crate) const WRITE: u8 = 2;
/// The peer closed its sending side.
pub(crate) const HALF_CLOSED: u8 = 4;
/// The connection is closed in both directions, or has failed.
pub(crate) const GONE: u8 = 8;
/// The server has ended it: nothing more is read or written.
pub(crate) const ABORTED: u8 = 16;

/// The number of no task.
pub(crate) const NO_TASK: u32 = u32::MAX;
/// In place of a task's number: a waker of somebody else waits, which the core keeps.
pub(crate) const FOREIGN: u32 = u32::MAX - 1;

/// What tasks wait for: the readiness of one descriptor as the reactor knows it, or that of one stream of a multiplexed
/// connection, which the connection's task sets. Shared by its owner and the reactor's table.
#[derive(Debug)]
pub struct Source {
    pub(crate) token: u64,
    pub(crate) ready: Cell<u8>,
    pub(crate) reader: Cell<u32>,
    pub(crate) writer: Cell<u32>,
    pub(crate) deadline_ms: Cell<u64>,
    pub(crate) expired: Cell<bool>,
    /// This side has closed its sending: with the peer's end the connection is gone both ways, and yet there may be
    /// bytes that were sent before and are not read.
    pub(crate) sent_end: Cell<bool>,
    /// It stays registered though its stream ends: the connection becomes idle, and is found by the token.
    pub(crate) stays: Cell<bool>,
}

impl Source {
    /// A source that no task waits for. A new socket counts as writable.
    pub(crate) fn new(token: u64) -> Source {
        Source {
            token,
            ready: Cell::new(WRITE),
            reader: Cell::new(NO_TASK),
            writer: Cell::new(NO_TASK),
            deadline_ms: Cell::new(u64::MAX),
            expired: Cell::new(false),
            sent_end: Cell::new(false),
            stays: Cell::new(false),
        }
    }

    /// Readiness bits that are set.
    pub(crate) fn ready(&self) -> u8 {
        self.ready.get()
    }

    /// Whether the connection is closed in both directions, or has failed.
    pub(crate) fn is_gone(&self) -> bool {
        self.ready() & GONE != 0
    }

    /// Ends it from this side: whoever waits for it, reads or writes finds an error next.
    pub(crate) fn abort(&self) {
        self.ready.set(self.ready.get() | READ | WRITE | GONE | ABORTED);
    }

    /// Whether the server has ended it.
    pub(crate) fn is_aborted(&self) -> bool {
        self.ready() & ABORTED != 0
    }

    /// The last call would have blocked: wait for the next edge.
    pub(crate) fn clear(&self, bits: u8) {
        self.ready.set(self.ready.get() & !bits);
    }

    /// When the waiting task is woken and [`Source::take_expired`] returns true; `u64::MAX` for never.
    pub(crate) fn set_deadline(&self, at_ms: u64) {
        self.deadline_ms.set(at_ms);
    }

    /// Whether the deadline passed since the last look.
    pub(crate) fn take_expired(&self) -> bool {
        self.expired.take()
    }

    /// No task waits for it any more.
    pub(crate) fn forget_waiters(&self) {
        self.reader.set(NO_TASK);
        self.writer.set(NO_TASK);
        self.deadline_ms.set(u64::MAX);
        self.expired.set(false);
    }

    /// This task waits to read.
    pub(crate) fn wait_read(&self, task: u32) {
        self.reader.set(task);
    }

    /// This task waits to write.
    pub(crate) fn wait_write(&self, task: u32) {
        self.writer.set(task);
    }
}

/// What an event says.
pub(crate) fn readiness(flags: epoll::EventFlags) -> u8 {
    use epoll::EventFlags;
    let mut ready = 0;
    if flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR) {
        ready |= READ;
    }
    if flags.intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR) {
        ready |= WRITE;
    }
    if flags.contains(EventFlags::RDHUP) {
        ready |= HALF_CLOSED;
    }
    if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
        ready |= GONE;
    }
    ready
}
