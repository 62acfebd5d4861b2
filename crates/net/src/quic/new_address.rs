//! What a connection may send to an address from which its client continues, until that has answered.
//!
//! Whoever has a connection can send a packet with a forged address. QUIC limits what goes there to three times what
//! came from it (RFC 9000 section 9.3.1), but quinn-proto sends whole packets, and probes of larger ones, as long as a byte is
//! left: 76 bytes for each one received. A change of the port alone is not limited: its packets reach nobody else.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;

use quinn_proto::{Connection, Transmit};
use times::{Millis, Moment};

/// Size of a packet with the answer to a challenge, at least, in bytes (RFC 9000 section 8.2.2).
const ANSWER_BYTES: u64 = 1200;
/// Bytes that may be sent for each byte received (RFC 9000 section 8.1).
const SENT_PER_RECEIVED: u64 = 3;
/// Packets that a connection may send beyond that, and the time after which it may send another one. They let clients
/// answer that do not know that their address has changed: QUIC's challenges are as large as the answers. A handshake
/// costs a client about as much.
const EXCESS_PACKETS: u32 = 4;
const EXCESS_INTERVAL: Millis = Millis(5_000);
/// Time for which no probes of larger packets are sent after a change.
const PROBES_AFTER: Millis = Millis(5_000);

/// The addresses of a connection's client.
pub(super) struct AddressLimits {
    proven: Cell<IpAddr>,
    new: RefCell<Option<NewAddress>>,
    /// Packets beyond the limit that may be sent now, and the time from which there is another one.
    excess_packets: Cell<u32>,
    excess_at: Cell<Moment>,
    /// Time from which probes are sent.
    probes_at: Cell<Moment>,
}

/// An address that has not answered.
struct NewAddress {
    address: IpAddr,
    received_bytes: u64,
    sent_bytes: u64,
    /// Answers to challenges when the first packet was to be sent there.
    answers: Option<u64>,
}

impl NewAddress {
    fn of(address: IpAddr) -> NewAddress {
        NewAddress { address, received_bytes: 0, sent_bytes: 0, answers: None }
    }
}

impl AddressLimits {
    /// A connection that begins at `address`. QUIC itself limits what is sent during the handshake.
    pub(super) fn new(address: IpAddr) -> AddressLimits {
        AddressLimits {
            proven: Cell::new(address),
            new: RefCell::default(),
            excess_packets: Cell::new(EXCESS_PACKETS),
            excess_at: Cell::new(Moment(0)),
            probes_at: Cell::new(Moment(0)),
        }
    }

    /// Counts a packet of the connection.
    pub(super) fn count_received(&self, address: IpAddr, len: usize, now: Moment) {
        if address == self.proven.get() {
            return;
        }
        let mut new = self.new.borrow_mut();
        if new.as_ref().is_none_or(|new| new.address != address) {
            *new = Some(NewAddress::of(address));
            self.probes_at.set(now + PROBES_AFTER);
        }
        new.as_mut().expect("set above").received_bytes += len as u64;
    }

    /// Whether packets may be sent. Those that may not count as lost.
    pub(super) fn permits(&self, transmit: &Transmit, quic: &Connection, now: Moment) -> bool {
        let is_proven = transmit.destination.ip() == self.proven.get();
        let may_probe = now >= self.probes_at.get();
        if is_proven && may_probe {
            return true;
        }
        let stats = quic.stats();
        let is_probe = transmit.segment_size.is_none() && transmit.size > stats.path.current_mtu as usize;
        (may_probe || !is_probe)
            && (is_proven || self.permits_new(transmit, stats.frame_rx.path_response, now))
    }

    /// Whether packets may be sent to an address that has not answered. `answers` is the number of answers to challenges, from
    /// any address.
    fn permits_new(&self, transmit: &Transmit, answers: u64, now: Moment) -> bool {
        let address = transmit.destination.ip();
        let mut new = self.new.borrow_mut();
        let new = match &mut *new {
            Some(new) if new.address == address => new,
            other => other.insert(NewAddress::of(address)),
        };
        if answers > *new.answers.get_or_insert(answers) && new.received_bytes >= ANSWER_BYTES {
            self.proven.set(address);
            return true;
        }
        let sent_bytes = new.sent_bytes + transmit.size as u64;
        let is_within = sent_bytes <= SENT_PER_RECEIVED * new.received_bytes;
        if !is_within && (transmit.segment_size.is_some() || !self.take_excess(now)) {
            return false;
        }
        new.sent_bytes = sent_bytes;
        true
    }

    /// Takes one of the packets beyond the limit; returns whether there was one.
    fn take_excess(&self, now: Moment) -> bool {
        let left = self.excess_packets.get();
        if left > 0 {
            self.excess_packets.set(left - 1);
        } else if now < self.excess_at.get() {
            return false;
        }
        self.excess_at.set(now + EXCESS_INTERVAL);
        true
    }
}
