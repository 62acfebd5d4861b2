//! A simulated transport: short reads and writes, would-block, resets, from a seed. A seed that fails is a test.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;

/// Random numbers that a seed decides (splitmix64).
pub(crate) struct Dice(Cell<u64>);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(Cell::new(seed))
    }

    /// A number below `bound`, which is not zero.
    pub(crate) fn roll(&self, bound: u64) -> u64 {
        self.0.set(self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let mut z = self.0.get();
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// The server's end of a simulated connection; the test holds it too and plays the client.
pub(crate) struct Wire {
    token: Cell<u64>,
    dice: Dice,
    to_server: RefCell<VecDeque<u8>>,
    to_client: RefCell<Vec<u8>>,
    /// Bytes that the client's socket still takes.
    room: Cell<usize>,
    client_closed: Cell<bool>,
    reset: Cell<bool>,
    pub(crate) server_shut: Cell<bool>,
}

impl Wire {
    pub(crate) fn new(seed: u64) -> Wire {
        Wire {
            token: Cell::new(0),
            dice: Dice::new(seed),
            to_server: RefCell::default(),
            to_client: RefCell::default(),
            room: Cell::new(usize::MAX),
            client_closed: Cell::new(false),
            reset: Cell::new(false),
            server_shut: Cell::new(false),
        }
    }

    pub(crate) fn attach(&self, token: u64) {
        self.token.set(token);
    }

    pub(crate) fn token(&self) -> u64 {
        self.token.get()
    }

    // ---- the client's side ----

    pub(crate) fn client_sends(&self, bytes: &[u8]) {
        self.to_server.borrow_mut().extend(bytes);
    }

    pub(crate) fn client_closes(&self) {
        self.client_closed.set(true);
    }

    pub(crate) fn client_resets(&self) {
        self.reset.set(true);
    }

    /// How much more the client's socket takes.
    pub(crate) fn set_room(&self, bytes: usize) {
        self.room.set(bytes);
    }

    pub(crate) fn client_received(&self) -> Vec<u8> {
        self.to_client.borrow().clone()
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
        if self.reset.get() {
            return Err(Errno::PIPE);
        }
        let bytes = parts.concat();
        let most = bytes.len().min(self.room.get());
        if most == 0 {
            return Err(Errno::AGAIN);
        }
        let len = 1 + self.dice.roll(most as u64) as usize;
        if self.room.get() != usize::MAX {
            self.room.set(self.room.get() - len);
        }
        self.to_client.borrow_mut().extend_from_slice(&bytes[..len]);
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
}
