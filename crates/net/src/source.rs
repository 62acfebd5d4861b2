//! Event sources: their readiness, the tasks that wait for them, and deadlines.

use std::cell::Cell;

use rustix::event::epoll;
use times::Moment;

/// The source is readable, or at its end.
pub(crate) const READ: u8 = 1;
/// The source is writable.
pub(crate) const WRITE: u8 = 2;
/// The peer has closed its sending side.
pub(crate) const HALF_CLOSED: u8 = 4;
/// The connection is closed in both directions, or has failed.
pub(crate) const GONE: u8 = 8;
/// The server has aborted the connection; reads and writes fail.
pub(crate) const ABORTED: u8 = 16;

/// Represents the absence of a task.
pub(crate) const NO_TASK: u32 = u32::MAX;
/// In place of a task's number: the waker of a combinator waits, which the core stores.
pub(crate) const EXTERNAL_WAKER: u32 = u32::MAX - 1;

/// An event source: the readiness of one descriptor, set by the reactor, or of one stream of a multiplexed
/// connection, set by the connection's task. Shared by its owner and the reactor's table.
#[derive(Debug)]
pub struct Source {
    pub(crate) token: u64,
    pub(crate) ready: Cell<u8>,
    pub(crate) reader: Cell<u32>,
    pub(crate) writer: Cell<u32>,
    pub(crate) deadline: Cell<Moment>,
    pub(crate) expired: Cell<bool>,
    /// Whether this side has closed its sending direction. The peer's end then sets [`GONE`], although unread
    /// data may remain.
    pub(crate) has_sent_end: Cell<bool>,
    /// Whether the source stays registered when its stream is dropped, because the connection becomes idle
    /// and is found by the token.
    pub(crate) stays_registered: Cell<bool>,
}

/// Tasks that wait for a source: [`NO_TASK`] if there is none.
#[derive(Clone, Copy)]
pub(crate) struct SourceWaiters {
    pub(crate) token: u64,
    pub(crate) reader: u32,
    pub(crate) writer: u32,
}

impl Source {
    /// Creates a source without waiting tasks. A new socket counts as writable.
    pub(crate) fn new(token: u64) -> Source {
        Source {
            token,
            ready: Cell::new(WRITE),
            reader: Cell::new(NO_TASK),
            writer: Cell::new(NO_TASK),
            deadline: Cell::new(Moment::NEVER),
            expired: Cell::new(false),
            has_sent_end: Cell::new(false),
            stays_registered: Cell::new(false),
        }
    }

    pub(crate) fn waiters(&self) -> SourceWaiters {
        SourceWaiters { token: self.token, reader: self.reader.get(), writer: self.writer.get() }
    }

    /// Returns the readiness bits.
    pub(crate) fn ready(&self) -> u8 {
        self.ready.get()
    }

    /// Whether the connection is closed in both directions, or has failed.
    pub(crate) fn is_gone(&self) -> bool {
        self.ready() & GONE != 0
    }

    /// Aborts the connection from this side: waiting, reading and writing tasks get an error.
    pub(crate) fn abort(&self) {
        self.ready.set(self.ready.get() | READ | WRITE | GONE | ABORTED);
    }

    /// Whether the server has aborted the connection.
    pub(crate) fn is_aborted(&self) -> bool {
        self.ready() & ABORTED != 0
    }

    /// Clears readiness after a call that would have blocked, to wait for the next edge.
    pub(crate) fn clear(&self, bits: u8) {
        self.ready.set(self.ready.get() & !bits);
    }

    /// Marks the source as readable, without an event: its owner tries to read.
    pub(crate) fn expect_input(&self) {
        self.ready.set(self.ready.get() | READ);
    }

    /// Sets when the waiting task is woken and [`Source::take_expired`] returns true.
    pub(crate) fn set_deadline(&self, at: Moment) {
        self.deadline.set(at);
    }

    /// Whether the deadline has passed since the last call.
    pub(crate) fn take_expired(&self) -> bool {
        self.expired.take()
    }

    /// Removes the waiting tasks and the deadline.
    pub(crate) fn forget_waiters(&self) {
        self.reader.set(NO_TASK);
        self.writer.set(NO_TASK);
        self.deadline.set(Moment::NEVER);
        self.expired.set(false);
    }

    /// Registers the task that waits to read.
    pub(crate) fn wait_read(&self, task: u32) {
        self.reader.set(task);
    }

    /// Registers the task that waits to write.
    pub(crate) fn wait_write(&self, task: u32) {
        self.writer.set(task);
    }
}

/// Converts epoll flags to readiness bits.
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
