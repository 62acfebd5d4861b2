//! Sending of datagrams: of servers from one socket to many destinations, and of clients from one socket to one.
//!
//! An error of one destination concerns that one alone: a client chooses the address that is answered, a local address
//! may disappear, and a route may have smaller packets than before. quinn-udp takes such an error for one of the socket,
//! and sends without segmentation and marks from then on.

use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{ControlMessage, MsgFlags, MultiHeaders, SockaddrStorage, sendmmsg, sendmsg};
use quinn_udp::Transmit;

/// Packets that leave in one system call.
const TOGETHER_MAX: usize = 64;

/// Sends datagrams, and knows what the socket's device can do.
#[derive(Debug)]
pub(crate) struct UdpSender {
    /// Maximum number of packets that the kernel segments.
    segments_max: AtomicUsize,
}

impl UdpSender {
    pub(crate) fn new(segments_max: usize) -> UdpSender {
        UdpSender { segments_max: AtomicUsize::new(segments_max) }
    }

    /// Maximum number of packets of one [`UdpSender::send`]: 1 if the kernel does not segment.
    pub(crate) fn segments_max(&self) -> usize {
        self.segments_max.load(Ordering::Relaxed)
    }

    /// Sends packets to one destination. Returns the number of bytes sent: fewer than all if a later packet has failed,
    /// whose error is that of another attempt.
    ///
    /// # Errors
    /// System errors: those of an earlier packet too.
    pub(crate) fn send(&self, socket: &OwnedFd, transmit: &Transmit<'_>) -> io::Result<usize> {
        let contents = transmit.contents;
        let segment_size = transmit.segment_size.filter(|&size| size > 0 && size < contents.len());
        match send_message(socket, transmit, contents, segment_size) {
            // The device of this route has no checksums for segments. Others that the machine has mostly have none either.
            Err(Errno::EIO) if segment_size.is_some() => self.segments_max.store(1, Ordering::Relaxed),
            // The segments do not fit into the packets of this route (EINVAL of older kernels). Alone, they may be fragmented.
            Err(Errno::EMSGSIZE | Errno::EINVAL) if segment_size.is_some() => {}
            sent => return Ok(sent.map(|()| contents.len())?),
        }
        let mut sent = 0;
        for packet in contents.chunks(segment_size.unwrap_or(contents.len())) {
            match send_message(socket, transmit, packet, None) {
                Ok(()) => sent += packet.len(),
                Err(error) if sent == 0 => return Err(error.into()),
                Err(_) => break,
            }
        }
        Ok(sent)
    }

    /// Sends as many of the first packets as can leave in one system call. Returns their number; `None` if the first one
    /// leaves alone.
    pub(crate) fn send_many<'a>(
        &self,
        socket: &OwnedFd,
        packets: &mut dyn Iterator<Item = Transmit<'a>>,
    ) -> Option<usize> {
        let first = packets.next()?;
        let kind = ControlKind::of(&first);
        if first.segment_size.is_some() || kind.family == MessageFamily::Mapped {
            return None;
        }
        let fits = |other: &Transmit<'_>| other.segment_size.is_none() && ControlKind::of(other) == kind;
        let others = packets.take_while(fits).take(TOGETHER_MAX - 1);
        let packets: Vec<_> = std::iter::once(first).chain(others).collect();
        if packets.len() == 1 {
            return None;
        }
        let control = Control::new(kind);
        let messages = control.messages();
        let space = vec![0; messages.iter().map(space_bytes).sum()];
        let mut headers = MultiHeaders::<SockaddrStorage>::preallocate(packets.len(), Some(space));
        let slices: Vec<_> = packets.iter().map(|packet| [IoSlice::new(packet.contents)]).collect();
        let addresses: Vec<_> =
            packets.iter().map(|packet| Some(SockaddrStorage::from(packet.destination))).collect();
        let flags = MsgFlags::empty();
        // An error is the first packet's, which finds out alone.
        sendmmsg(socket.as_raw_fd(), &mut headers, &slices, addresses, messages, flags)
            .ok()
            .map(Iterator::count)
    }
}

/// Sends `contents` to the destination of `transmit`, in packets of `segment_size` that the kernel makes.
fn send_message(
    socket: &OwnedFd,
    transmit: &Transmit<'_>,
    contents: &[u8],
    segment_size: Option<usize>,
) -> nix::Result<()> {
    let address = SockaddrStorage::from(transmit.destination);
    let segment_size = segment_size.map(|size| size as u16);
    let control = Control::new(ControlKind::of(transmit));
    let mut messages = control.messages();
    messages.extend(segment_size.as_ref().map(ControlMessage::UdpGsoSegments));
    let contents = [IoSlice::new(contents)];
    loop {
        match sendmsg(socket.as_raw_fd(), &contents, &messages, MsgFlags::empty(), Some(&address)) {
            Err(Errno::EINTR) => {}
            sent => return sent.map(|_| ()),
        }
    }
}

/// Whose control messages a packet needs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MessageFamily {
    V4,
    V6,
    /// An address of IPv4 of an IPv6 socket: the kernel wants the control messages of IPv4.
    Mapped,
}

/// What determines the control messages of a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
struct ControlKind {
    family: MessageFamily,
    mark: u8,
    source: Option<IpAddr>,
}

impl ControlKind {
    fn of(transmit: &Transmit<'_>) -> ControlKind {
        let family = match transmit.destination {
            SocketAddr::V4(_) => MessageFamily::V4,
            SocketAddr::V6(address) if address.ip().to_ipv4_mapped().is_some() => MessageFamily::Mapped,
            SocketAddr::V6(_) => MessageFamily::V6,
        };
        ControlKind { family, mark: transmit.ecn.map_or(0, |ecn| ecn as u8), source: transmit.src_ip }
    }
}

/// The contents of control messages.
struct Control {
    kind: ControlKind,
    mark_v6: i32,
    source_v4: Option<libc::in_pktinfo>,
    source_v6: Option<libc::in6_pktinfo>,
}

impl Control {
    fn new(kind: ControlKind) -> Control {
        let of_v4 = |address: Ipv4Addr| libc::in_addr { s_addr: u32::from_ne_bytes(address.octets()) };
        let none = of_v4(Ipv4Addr::UNSPECIFIED);
        let (source_v4, source_v6) = match kind.source {
            Some(IpAddr::V4(address)) => (
                Some(libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: of_v4(address), ipi_addr: none }),
                None,
            ),
            Some(IpAddr::V6(address)) => {
                let address = libc::in6_addr { s6_addr: address.octets() };
                (None, Some(libc::in6_pktinfo { ipi6_ifindex: 0, ipi6_addr: address }))
            }
            None => (None, None),
        };
        Control { kind, mark_v6: kind.mark.into(), source_v4, source_v6 }
    }

    fn messages(&self) -> Vec<ControlMessage<'_>> {
        let mark = match self.kind.family {
            MessageFamily::V4 | MessageFamily::Mapped => ControlMessage::Ipv4Tos(&self.kind.mark),
            MessageFamily::V6 => ControlMessage::Ipv6TClass(&self.mark_v6),
        };
        let source_v4 = self.source_v4.as_ref().map(ControlMessage::Ipv4PacketInfo);
        let source_v6 = self.source_v6.as_ref().map(ControlMessage::Ipv6PacketInfo);
        [Some(mark), source_v4, source_v6].into_iter().flatten().collect()
    }
}

/// Returns the space that a control message takes, in bytes.
fn space_bytes(message: &ControlMessage<'_>) -> usize {
    match message {
        ControlMessage::Ipv4Tos(_) => cmsg_space!(u8).capacity(),
        ControlMessage::Ipv6TClass(_) => cmsg_space!(i32).capacity(),
        ControlMessage::Ipv4PacketInfo(_) => cmsg_space!(libc::in_pktinfo).capacity(),
        _ => cmsg_space!(libc::in6_pktinfo).capacity(),
    }
}
