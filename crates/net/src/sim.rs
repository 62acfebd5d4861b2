//! A simulated transport with short writes, EAGAIN, half-closes and resets, driven by a seed. A failing seed
//! is a reproducible test.
//!
//! It provides only the kernel's guarantees: a short read has emptied the socket, an edge reports only
//! changes, closing with unread bytes resets the connection, and a reset discards what the client has not
//! read.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use rustix::io::Errno;

use crate::core::Core;
use crate::source::{GONE, HALF_CLOSED, READ, WRITE};

/// A seeded random number generator.
pub(crate) struct Dice(RefCell<fastrand::Rng>);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(RefCell::new(fastrand::Rng::with_seed(seed)))
    }

    /// Returns a number below `bound`, which must not be zero.
    pub(crate) fn below(&self, bound: u64) -> u64 {
        self.0.borrow_mut().u64(..bound)
    }

    /// Returns true with a probability of 1 in `times`.
    pub(crate) fn once_in(&self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// The end of a connection as its client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// An orderly end, after everything that was sent.
    Fin,
    /// A reset.
    Reset,
}

/// The server's handle of a simulated connection; dropping it closes the connection.
pub(crate) struct ServerEnd(pub(crate) Rc<SimulatedWire>);

impl Deref for ServerEnd {
    type Target = SimulatedWire;

    fn deref(&self) -> &SimulatedWire {
        &self.0
    }
}

impl Drop for ServerEnd {
    fn drop(&mut self) {
        self.0.server_closes();
    }
}

/// A simulated connection. The test shares it and plays the client.
pub(crate) struct SimulatedWire {
    token: Cell<u64>,
    dice: Dice,
    to_server: RefCell<VecDeque<u8>>,
    /// Bytes that the client has not read.
    to_client: RefCell<Vec<u8>>,
    /// Room in the client's socket, in bytes.
    room: Cell<usize>,
    /// Set if the last write found no room, so that new room must be reported.
    was_full: Cell<bool>,
    has_changes: Cell<bool>,
    client_closed: Cell<bool>,
    /// Whether the client has closed both directions, so that a write causes a reset.
    client_gone: Cell<bool>,
    /// Whether the client closed before the server ended the connection.
    client_left_early: Cell<bool>,
    reset: Cell<bool>,
    resets_on_close: Cell<bool>,
    server_shut_down: Cell<bool>,
    server_end: Cell<Option<End>>,
    /// Sizes of the sends.
    pub(crate) sends: RefCell<Vec<usize>>,
    /// Whether each send takes everything that fits instead of a random part.
    pub(crate) whole_sends: Cell<bool>,
}

impl SimulatedWire {
    pub(crate) fn new(seed: u64) -> SimulatedWire {
        SimulatedWire {
            token: Cell::new(u64::MAX),
            dice: Dice::new(seed),
            to_server: RefCell::default(),
            to_client: RefCell::default(),
            room: Cell::new(usize::MAX),
            was_full: Cell::new(false),
            // A new registration reports the current state.
            has_changes: Cell::new(true),
            client_closed: Cell::new(false),
            client_gone: Cell::new(false),
            client_left_early: Cell::new(false),
            reset: Cell::new(false),
            resets_on_close: Cell::new(false),
            server_shut_down: Cell::new(false),
            server_end: Cell::new(None),
            sends: RefCell::default(),
            whole_sends: Cell::new(false),
        }
    }

    pub(crate) fn attach(&self, token: u64) {
        self.token.set(token);
    }

    /// Reports a change to the core as epoll does, with every flag that is set. False without changes.
    pub(crate) fn deliver(&self, core: &Core) -> bool {
        if self.server_closed() || !self.has_changes.take() {
            return false;
        }
        let reset = self.reset.get();
        let closed = self.client_closed.get();
        let mut ready = 0;
        if reset || closed || !self.to_server.borrow().is_empty() {
            ready |= READ;
        }
        if reset || self.room.get() > 0 {
            ready |= WRITE;
        }
        if closed {
            ready |= HALF_CLOSED;
        }
        if reset || closed && self.server_shut_down.get() {
            ready |= GONE;
        }
        core.deliver(self.token.get(), ready);
        true
    }

    // ---- the client's side ----

    pub(crate) fn client_sends(&self, bytes: &[u8]) {
        if self.server_closed() {
            // The client gets a reset before it has read the remaining data.
            self.server_end.set(Some(End::Reset));
            self.to_client.borrow_mut().clear();
            return;
        }
        self.to_server.borrow_mut().extend(bytes);
        self.has_changes.set(true);
    }

    /// Closes the client's sending side; it still reads.
    pub(crate) fn client_half_closes(&self) {
        self.client_closed.set(true);
        self.has_changes.set(true);
    }

    pub(crate) fn client_closes(&self) {
        self.client_left_early.set(self.end() != Some(End::Fin));
        self.client_gone.set(true);
        self.client_half_closes();
    }

    pub(crate) fn client_resets(&self) {
        self.client_left_early.set(self.end() != Some(End::Fin));
        self.reset.set(true);
        self.has_changes.set(true);
    }

    /// Sets the room in the client's socket.
    pub(crate) fn set_room(&self, bytes: usize) {
        self.room.set(bytes);
        if bytes > 0 && self.was_full.take() {
            self.has_changes.set(true);
        }
    }

    /// Returns the bytes received since the last call.
    pub(crate) fn client_reads(&self) -> Vec<u8> {
        self.to_client.take()
    }

    /// Returns the number of bytes that the server has not read.
    pub(crate) fn unread(&self) -> usize {
        self.to_server.borrow().len()
    }

    /// Returns the end of the connection as the client sees it after all earlier data. A client that left
    /// without waiting for the end sees a reset, which completes no response.
    pub(crate) fn end(&self) -> Option<End> {
        if self.client_left_early.get() {
            return Some(End::Reset);
        }
        self.server_end.get().or_else(|| self.server_shut_down.get().then_some(End::Fin))
    }

    /// Whether the server has closed its socket.
    pub(crate) fn server_closed(&self) -> bool {
        self.server_end.get().is_some()
    }

    // ---- the server's side ----

    pub(crate) fn recv(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        if self.reset.get() {
            return Err(Errno::CONNRESET);
        }
        let mut from = self.to_server.borrow_mut();
        if from.is_empty() {
            return if self.client_closed.get() { Ok(0) } else { Err(Errno::AGAIN) };
        }
        let len = from.len().min(buffer.len());
        for (slot, byte) in buffer.iter_mut().zip(from.drain(..len)) {
            *slot = byte;
        }
        Ok(len)
    }

    pub(crate) fn send(&self, parts: &[&[u8]]) -> Result<usize, Errno> {
        if self.reset.get() || self.server_shut_down.get() {
            return Err(Errno::PIPE);
        }
        let bytes = parts.concat();
        let most = bytes.len().min(self.room.get());
        if most == 0 {
            self.was_full.set(true);
            return Err(Errno::AGAIN);
        }
        let len = if self.whole_sends.get() { most } else { 1 + self.dice.below(most as u64) as usize };
        if self.room.get() != usize::MAX {
            self.room.set(self.room.get() - len);
        }
        self.sends.borrow_mut().push(len);
        if self.client_gone.get() {
            self.client_resets();
        } else {
            self.to_client.borrow_mut().extend_from_slice(&bytes[..len]);
        }
        Ok(len)
    }

    pub(crate) fn sendfile(&self, file: BorrowedFd<'_>, at: &mut u64, len: usize) -> Result<usize, Errno> {
        let mut bytes = vec![0; len];
        let read = rustix::io::pread(file, &mut bytes, *at)?;
        if read == 0 {
            return Ok(0);
        }
        let sent = self.send(&[&bytes[..read]])?;
        *at += sent as u64;
        Ok(sent)
    }

    pub(crate) fn shutdown_write(&self) {
        self.server_shut_down.set(true);
    }

    pub(crate) fn reset_on_close(&self, reset: bool) {
        self.resets_on_close.set(reset);
    }

    fn server_closes(&self) {
        let unread = !self.to_server.borrow().is_empty();
        let end = if self.resets_on_close.get() || unread { End::Reset } else { End::Fin };
        self.server_end.set(Some(end));
        if end == End::Reset {
            self.to_client.borrow_mut().clear();
        }
    }
}
