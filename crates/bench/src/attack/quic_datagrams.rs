//! Attacks by datagrams without connections, from many ports.

use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};

use failure::Failure;

use super::attacker::AttackProgress;
use super::outcomes::ConnectionOutcomes;
use super::quic_attacks::{QuicAction, QuicAttack, QuicTarget};
use super::quic_connection::connect_socket;
use super::quic_wire::{INITIAL_BYTES, InitialSealer};

/// Number of ports from which the datagrams come.
const PORTS: usize = 64;
/// Bytes of a reply that are needed to recognise it.
const REPLY_BYTES: usize = 64;

/// Sender of datagrams without connections.
pub(super) struct DatagramAttacker<'a> {
    attack: QuicAttack,
    target: &'a QuicTarget,
    sealer: &'a InitialSealer,
    progress: &'a AttackProgress,
    sockets: Vec<UdpSocket>,
    /// Index of the next socket to send from.
    port: usize,
    queue: VecDeque<QuicAction>,
    turn: usize,
}

impl<'a> DatagramAttacker<'a> {
    /// Opens the sockets.
    ///
    /// # Errors
    /// Fails if there are too few sockets.
    pub(super) fn new(
        attack: &QuicAttack,
        target: &'a QuicTarget,
        server: SocketAddr,
        sealer: &'a InitialSealer,
        progress: &'a AttackProgress,
    ) -> Result<DatagramAttacker<'a>, Failure> {
        Ok(DatagramAttacker {
            attack: *attack,
            target,
            sealer,
            progress,
            sockets: (0..PORTS).map(|_| connect_socket(server)).collect::<Result<_, _>>()?,
            port: 0,
            queue: VecDeque::new(),
            turn: 0,
        })
    }

    /// Sends the datagrams of one turn. Returns whether any were sent.
    ///
    /// # Errors
    /// Fails if a packet cannot be encrypted.
    pub(super) fn step(&mut self) -> Result<bool, Failure> {
        if self.queue.is_empty() {
            self.queue.extend((self.attack.turn)(self.target, self.turn));
            self.turn += 1;
        }
        let mut has_sent = false;
        while let Some(action) = self.queue.pop_front() {
            let mut datagram = Vec::with_capacity(INITIAL_BYTES);
            match action {
                QuicAction::Initials(packets) => {
                    for packet in &packets {
                        self.sealer.seal(packet, &mut datagram)?;
                    }
                    let begun = packets.iter().filter(|packet| packet.number == 0).count() as u64;
                    self.progress.connections.set(self.progress.connections.get() + begun);
                }
                QuicAction::Datagram(bytes) => datagram = bytes,
                // All others need a connection.
                _ => continue,
            }
            let socket = &self.sockets[self.port];
            self.port = (self.port + 1) % PORTS;
            // A datagram that the socket does not take is lost, like many others of a flood.
            let sent = socket.send(&datagram).unwrap_or(0);
            self.progress.sent_bytes.set(self.progress.sent_bytes.get() + sent as u64);
            has_sent |= sent > 0;
            let mut reply = [0; REPLY_BYTES];
            while let Ok(len) = socket.recv(&mut reply) {
                count_reply(&reply[..len], &mut self.progress.outcomes.borrow_mut());
            }
        }
        Ok(has_sent)
    }
}

/// Counts a datagram of the server by the type of its first packet (RFC 9000 section 17).
fn count_reply(datagram: &[u8], outcomes: &mut ConnectionOutcomes) {
    let kind = match datagram {
        [0x80..=0xff, 0, 0, 0, 0, ..] => "Version Negotiation",
        [first @ 0x80..=0xff, 0, 0, 0, 1, ..] => match first >> 4 & 3 {
            0 => "Initial",
            2 => "Handshake",
            3 => "Retry",
            _ => "other",
        },
        [0x40..0x80, ..] => "stateless reset",
        _ => "other",
    };
    *outcomes.replies.entry(kind).or_default() += 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_counted_by_packet_type() {
        let mut outcomes = ConnectionOutcomes::default();
        for (first, version) in [(0xc0, 1), (0xc1, 1), (0xe0, 1), (0xf0, 1), (0x80, 0), (0xff, 0), (0x41, 9)]
        {
            count_reply(&[first, 0, 0, 0, version, 8, 1], &mut outcomes);
        }
        count_reply(&[], &mut outcomes);
        let counts: Vec<(&str, u64)> = outcomes.replies.into_iter().collect();
        let expected = [
            ("Handshake", 1),
            ("Initial", 2),
            ("Retry", 1),
            ("Version Negotiation", 2),
            ("other", 1),
            ("stateless reset", 1),
        ];
        assert_eq!(counts, expected);
    }
}
