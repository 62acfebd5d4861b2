//! Packets of the connections of one socket that leave together.
//!
//! What a connection sends in a turn is mostly one packet or many. Many leave in a call of their own, segmented by the
//! kernel; single ones wait for those of other connections until the turn ends, and leave with them in one call.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use quinn_proto::Transmit;

use super::udp_socket::QuicUdpSocket;
use crate::core::Core;
use crate::source::{Source, WRITE};
use crate::turn_hook::TurnHook;

/// Packets from which those of a turn leave without waiting for its end.
const PACKETS_MAX: usize = 64;
/// Size of the buffers that are kept for later packets, in bytes: a packet, as large as they are on any path.
const SPARE_BYTES_MAX: usize = 2 * 1024;

/// Packets that wait to be sent, at most [`PACKETS_MAX`] and what one connection has sent last.
pub(super) struct Outbox {
    core: Core,
    socket: Arc<QuicUdpSocket>,
    /// The source of the socket, made writable when that has room again.
    source: Rc<Source>,
    waiting: RefCell<Vec<(Transmit, Vec<u8>)>>,
    spare: RefCell<Vec<Vec<u8>>>,
    is_blocked: Cell<bool>,
}

impl Outbox {
    pub(super) fn new(core: &Core, socket: Arc<QuicUdpSocket>, source: Rc<Source>) -> Outbox {
        Outbox {
            core: core.clone(),
            socket,
            source,
            waiting: RefCell::default(),
            spare: RefCell::default(),
            is_blocked: Cell::new(false),
        }
    }

    /// Whether the socket had no room for the packets that wait. Connections send nothing meanwhile.
    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked.get()
    }

    /// Sends the bytes of `buffer`, now or at the end of the turn, and empties it.
    pub(super) fn send(&self, transmit: Transmit, buffer: &mut Vec<u8>) {
        let is_single = transmit.segment_size.is_none() && transmit.size <= SPARE_BYTES_MAX;
        if !is_single {
            // A connection's packets keep their order.
            self.flush();
            if !self.is_blocked.get() && self.socket.send(&transmit, &buffer[..transmit.size]) {
                return buffer.clear();
            }
            self.block();
        }
        let mut packet =
            if is_single { self.spare.borrow_mut().pop().unwrap_or_default() } else { Vec::new() };
        packet.extend_from_slice(&buffer[..transmit.size]);
        buffer.clear();
        let mut waiting = self.waiting.borrow_mut();
        waiting.push((transmit, packet));
        if waiting.len() >= PACKETS_MAX && !self.is_blocked.get() {
            drop(waiting);
            self.flush();
        }
    }

    /// Sends the packets that wait, as far as the socket has room.
    pub(super) fn flush(&self) {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.is_empty() || self.is_blocked.get() && self.source.ready() & WRITE == 0 {
            return;
        }
        if self.is_blocked.replace(false) {
            self.core.watch_room(self.socket.fd(), &self.source, false);
        }
        let mut sent = 0;
        while sent < waiting.len() {
            match self.socket.send_many(&waiting[sent..]) {
                0 => {
                    self.block();
                    break;
                }
                count => sent += count,
            }
        }
        let mut spare = self.spare.borrow_mut();
        for (_, mut packet) in waiting.drain(..sent) {
            packet.clear();
            if spare.len() < PACKETS_MAX && packet.capacity() <= SPARE_BYTES_MAX {
                spare.push(packet);
            }
        }
    }

    fn block(&self) {
        self.source.clear(WRITE);
        self.is_blocked.set(true);
        self.core.watch_room(self.socket.fd(), &self.source, true);
    }
}

impl TurnHook for Outbox {
    fn drain(&self) {}

    fn flush(&self) {
        Outbox::flush(self);
    }

    fn prepare_wait(&self) -> bool {
        Outbox::flush(self);
        true
    }

    fn finish_wait(&self) {}
}
