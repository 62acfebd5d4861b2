//! Upgrades without a lost connection: the successor takes the sockets over, and passes on the packets of
//! connections that its predecessor still serves.
//!
//! Each socket has a channel beside it, whose far end is passed on with the socket:
//!
//! ```text
//! predecessor ──generation, secret──▶ successor      (in the channel when it is passed on)
//!             ◀──"I receive now"─────
//!             ◀──packets with identifiers of another generation──
//! ```
//!
//! A chain of several successors works too: each passes on what is not its own, and stays until its predecessor has
//! ended.

use std::io::IoSlice;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use quinn_udp::{EcnCodepoint, RecvMeta};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};

/// Message kinds.
const RECEIVING: u8 = 0;
const PACKETS: u8 = 1;
/// Size of a message's header: kind, flags, address and port of the client, local address.
const HEADER_BYTES: usize = 36;
/// Flag: the local address is known.
const HAS_LOCAL: u8 = 4;
/// Maximum size of an announcement: a secret has at most 1 KiB.
const ANNOUNCEMENT_BYTES_MAX: usize = 2048;
/// Maximum size of a message.
pub(super) const MESSAGE_BYTES_MAX: usize = HEADER_BYTES + 64 * 1024;

/// A message of the successor.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SuccessorMessage {
    /// The successor receives the packets of the socket from now on.
    Receiving,
    /// A packet of a connection of this process: the client, the local address, and the congestion mark; the packet is
    /// the rest of the message.
    Packet(PacketMeta, usize),
}

/// Addresses and congestion mark of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PacketMeta {
    pub(super) client: SocketAddr,
    pub(super) local: Option<IpAddr>,
    pub(super) ecn: Option<EcnCodepoint>,
}

impl From<&RecvMeta> for PacketMeta {
    fn from(meta: &RecvMeta) -> PacketMeta {
        PacketMeta { client: meta.addr, local: meta.dst_ip, ecn: meta.ecn }
    }
}

/// Leaves generation and secret of this process in the channel for a successor.
pub(super) fn announce(channel: &OwnedFd, generation: u8, secret: &[u8]) {
    let mut message = vec![generation];
    message.extend_from_slice(secret);
    // Without it, a successor answers packets of this process's connections as those of strangers.
    let _ = rustix::net::send(channel, &message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Returns generation and secret of the predecessor, which stay in the channel for another attempt.
pub(super) fn read_announcement(channel: &OwnedFd) -> Option<(u8, Vec<u8>)> {
    let mut buffer = [0u8; ANNOUNCEMENT_BYTES_MAX];
    let (len, _) = rustix::net::recv(channel, &mut buffer, RecvFlags::PEEK | RecvFlags::DONTWAIT).ok()?;
    let (generation, secret) = buffer[..len].split_first()?;
    Some((*generation, secret.to_vec()))
}

/// Tells the predecessor that this process receives now.
pub(super) fn take_over(channel: &OwnedFd) {
    // Fails if the predecessor has ended.
    let _ = rustix::net::send(channel, &[RECEIVING], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Passes a packet on. If the channel is full, the packet counts as lost. Returns false if the predecessor has
/// ended.
pub(super) fn pass_on(channel: &OwnedFd, meta: &PacketMeta, packet: &[u8]) -> bool {
    let header = encode(meta);
    let parts = [IoSlice::new(&header), IoSlice::new(packet)];
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = rustix::net::sendmsg(channel, &parts, &mut SendAncillaryBuffer::default(), flags);
    !matches!(sent, Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET))
}

/// Receives a message of the successor. The packet of [`SuccessorMessage::Packet`] begins at
/// that offset of the buffer and ends at the returned length.
pub(super) fn receive(channel: &OwnedFd, buffer: &mut [u8]) -> Option<(SuccessorMessage, usize)> {
    let (len, _) = rustix::net::recv(channel, &mut *buffer, RecvFlags::DONTWAIT).ok()?;
    let message = &buffer[..len];
    match *message.first()? {
        RECEIVING => Some((SuccessorMessage::Receiving, len)),
        _ => decode(message).map(|meta| (SuccessorMessage::Packet(meta, HEADER_BYTES), len)),
    }
}

fn encode(meta: &PacketMeta) -> [u8; HEADER_BYTES] {
    let v6 = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut header = [0; HEADER_BYTES];
    header[0] = PACKETS;
    let local = if meta.local.is_some() { HAS_LOCAL } else { 0 };
    header[1] = meta.ecn.map_or(0, |ecn| ecn as u8) | local | u8::from(meta.client.is_ipv4()) << 3;
    header[2..18].copy_from_slice(&v6(meta.client.ip()).octets());
    header[18..20].copy_from_slice(&meta.client.port().to_be_bytes());
    if let Some(ip) = meta.local {
        header[20..].copy_from_slice(&v6(ip).octets());
    }
    header
}

fn decode(message: &[u8]) -> Option<PacketMeta> {
    let header = message.first_chunk::<HEADER_BYTES>()?;
    let flags = header[1];
    let is_v4 = flags & 8 != 0;
    let ip = |at: usize| {
        let octets: [u8; 16] = header[at..at + 16].try_into().ok()?;
        let ip = Ipv6Addr::from(octets);
        Some(if is_v4 { ip.to_canonical() } else { IpAddr::V6(ip) })
    };
    let port = u16::from_be_bytes([header[18], header[19]]);
    Some(PacketMeta {
        client: SocketAddr::new(ip(2)?, port),
        local: if flags & HAS_LOCAL != 0 { Some(ip(20)?) } else { None },
        ecn: EcnCodepoint::from_bits(flags & 3),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quic::udp_socket::QuicUdpSocket;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn packets_arrive_with_their_addresses() {
        let (near, far) = pair();
        for (client, local, ecn) in [
            ("192.0.2.1:4433", Some("198.51.100.7"), Some(EcnCodepoint::Ect0)),
            ("[2001:db8::1]:1", Some("2001:db8::2"), None),
            ("127.0.0.1:65535", None, Some(EcnCodepoint::Ce)),
        ] {
            let meta = PacketMeta {
                client: client.parse().unwrap(),
                local: local.map(|ip| ip.parse().unwrap()),
                ecn,
            };
            assert!(pass_on(&far, &meta, b"packet"));
            let mut buffer = vec![0; MESSAGE_BYTES_MAX];
            let (message, len) = receive(&near, &mut buffer).unwrap();
            assert_eq!(message, SuccessorMessage::Packet(meta, HEADER_BYTES));
            assert_eq!(&buffer[HEADER_BYTES..len], b"packet");
        }
    }

    #[test]
    fn announcement_stays_for_another_successor_and_takeover_arrives() {
        let sockets = QuicUdpSocket::bind("127.0.0.1:0".parse().unwrap(), true, 1).unwrap();
        let far = sockets[0].successor_end().try_clone_to_owned().unwrap();
        assert_eq!(read_announcement(&far), None);
        announce(sockets[0].successor(), 255, b"secret");
        assert_eq!(read_announcement(&far), Some((255, b"secret".to_vec())));
        assert_eq!(read_announcement(&far), Some((255, b"secret".to_vec())));
        let near = sockets[0].successor().try_clone().unwrap();
        drop(sockets);
        take_over(&far);
        let mut buffer = vec![0; MESSAGE_BYTES_MAX];
        assert_eq!(receive(&near, &mut buffer).unwrap().0, SuccessorMessage::Receiving);
        assert!(receive(&near, &mut buffer).is_none());
        drop(near);
        take_over(&far);
    }

    #[test]
    fn server_started_in_place_of_another_inherits_no_messages() {
        let sockets = QuicUdpSocket::bind("127.0.0.1:0".parse().unwrap(), true, 1).unwrap();
        announce(sockets[0].successor(), 254, b"of a server that was killed");
        take_over(&sockets[0].successor_end().try_clone_to_owned().unwrap());
        let renewed = sockets[0].renewed().unwrap();
        assert_eq!(renewed.address(), sockets[0].address());
        assert!(receive(renewed.successor(), &mut vec![0; MESSAGE_BYTES_MAX]).is_none());
        let far = renewed.successor_end().try_clone_to_owned().unwrap();
        assert_eq!(read_announcement(&far), None);
    }

    #[test]
    fn announcements_of_any_length_are_bounded() {
        let (near, far) = pair();
        assert_eq!(read_announcement(&far), None);
        for len in [1, 2, ANNOUNCEMENT_BYTES_MAX, 2 * ANNOUNCEMENT_BYTES_MAX] {
            rustix::net::send(&near, &vec![255; len], SendFlags::DONTWAIT).unwrap();
            let (generation, secret) = read_announcement(&far).unwrap();
            assert_eq!((generation, secret.len()), (255, len.min(ANNOUNCEMENT_BYTES_MAX) - 1));
            let mut read = [0u8; 1];
            rustix::net::recv(&far, &mut read, RecvFlags::DONTWAIT).unwrap();
        }
    }

    #[test]
    fn cut_messages_are_ignored() {
        let (near, far) = pair();
        let mut buffer = vec![0; MESSAGE_BYTES_MAX];
        for len in 1..HEADER_BYTES {
            rustix::net::send(&far, &vec![PACKETS; len], SendFlags::DONTWAIT).unwrap();
            assert!(receive(&near, &mut buffer).is_none(), "{len}");
        }
    }
}
