//! A simulated transport: short writes, would-block, half-closes, resets, from a seed. A seed that fails is a test.
//!
//! It keeps the kernel's contract, no more: a short read has emptied the socket, an edge reports only changes, closing
//! with bytes unread resets the connection, and what a reset client had not read yet is lost.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use rustix::io::Errno;

use crate::core::Core;
use crate::source::{GONE, HALF_CLOSED, READ, WRITE};

/// Random numbers that a seed decides.
pub(crate) struct Dice(RefCell<fastrand::Rng>);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(RefCell::new(fastrand::Rng::with_seed(seed)))
    }

    /// A number below `bound`, which is not zero.
    pub(crate) fn roll(&self, bound: u64) -> u64 {
        self.0.borrow_mut().u64(..bound)
    }

    /// True once in `times`.
    pub(crate) fn once_in(&self, times: u64) -> bool {
        self.roll(times) == 0
    }
}

/// How the server ended a connection, as its client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// An orderly end, after everything that was sent.
    Fin,
    /// A reset.
    Reset,
}

/// The server's hold on a simulated connection: dropping it closes that.
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

/// The server's end of a simulated connection; the test holds it too and plays the client.
pub(crate) struct SimulatedWire {
    token: Cell<u64>,
    dice: Dice,
    to_server: RefCell<VecDeque<u8>>,
    /// What the client has not read yet.
    to_client: RefCell<Vec<u8>>,
    /// Bytes that the client's socket still takes.
    room: Cell<usize>,
    /// The last write found no room: the next room is news.
    no_room: Cell<bool>,
    news: Cell<bool>,
    client_closed: Cell<bool>,
    /// It closed both ways: a write is answered with a reset.
    client_gone: Cell<bool>,
    /// And did so before the server's end came.
    left_early: Cell<bool>,
    reset: Cell<bool>,
    resets_on_close: Cell<bool>,
    server_shut: Cell<bool>,
    server_end: Cell<Option<End>>,
    /// How much each send took.
    pub(crate) sends: RefCell<Vec<usize>>,
    /// Each send takes all that there is room for, instead of some of it.
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
            no_room: Cell::new(false),
            // A new registration reports what is there already.
            news: Cell::new(true),
            client_closed: Cell::new(false),
            client_gone: Cell::new(false),
            left_early: Cell::new(false),
            reset: Cell::new(false),
            resets_on_close: Cell::new(false),
            server_shut: Cell::new(false),
            server_end: Cell::new(None),
            sends: RefCell::default(),
            whole_sends: Cell::new(false),
        }
    }

    pub(crate) fn attach(&self, token: u64) {
        self.token.set(token);
    }

    /// Reports a change to the core as epoll does, with every flag that is set now. False if nothing has changed.
    pub(crate) fn deliver(&self, core: &Core) -> bool {
        if self.server_closed() || !self.news.take() {
            return false;
        }
        let (reset, closed) = (self.reset.get(), self.client_closed.get());
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
        if reset || closed && self.server_shut.get() {
            ready |= GONE;
        }
        core.deliver(self.token.get(), ready);
        true
    }

    // ---- the client's side ----

    pub(crate) fn client_sends(&self, bytes: &[u8]) {
        if self.server_closed() {
            // Nobody is there: the client learns of that by a reset, before it has read what came.
            self.server_end.set(Some(End::Reset));
            self.to_client.borrow_mut().clear();
            return;
        }
        self.to_server.borrow_mut().extend(bytes);
        self.news.set(true);
    }

    /// It will send no more, but still read.
    pub(crate) fn client_half_closes(&self) {
        self.client_closed.set(true);
        self.news.set(true);
    }

    pub(crate) fn client_closes(&self) {
        self.left_early.set(self.end() != Some(End::Fin));
        self.client_gone.set(true);
        self.client_half_closes();
    }

    pub(crate) fn client_resets(&self) {
        self.left_early.set(self.end() != Some(End::Fin));
        self.reset.set(true);
        self.news.set(true);
    }

    /// How much more the client's socket takes.
    pub(crate) fn set_room(&self, bytes: usize) {
        self.room.set(bytes);
        if bytes > 0 && self.no_room.take() {
            self.news.set(true);
        }
    }

    /// What has come since the last call.
    pub(crate) fn client_reads(&self) -> Vec<u8> {
        self.to_client.take()
    }

    /// Bytes that the server has not read yet.
    pub(crate) fn unread(&self) -> usize {
        self.to_server.borrow().len()
    }

    /// How the server ended it, as the client learns after everything that came before. To one that left without
    /// waiting for the end it was none that completes anything.
    pub(crate) fn end(&self) -> Option<End> {
        if self.left_early.get() {
            return Some(End::Reset);
        }
        self.server_end.get().or_else(|| self.server_shut.get().then_some(End::Fin))
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
        if self.reset.get() || self.server_shut.get() {
            return Err(Errno::PIPE);
        }
        let bytes = parts.concat();
        let most = bytes.len().min(self.room.get());
        if most == 0 {
            self.no_room.set(true);
            return Err(Errno::AGAIN);
        }
        let len = if self.whole_sends.get() { most } else { 1 + self.dice.roll(most as u64) as usize };
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
        self.server_shut.set(true);
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
