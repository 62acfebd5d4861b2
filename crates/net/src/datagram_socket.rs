//! UDP sockets: one for each core at the same address, between which the kernel distributes packets.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::ReceiveTimestampns;
use quinn_udp::{RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::sys;
use crate::udp_sender::UdpSender;

/// Size of the socket buffers to ask for, in bytes. The kernel's default holds about 150 packets.
const SOCKET_BUFFER_BYTES: usize = 4 * 1024 * 1024;
/// Size from which the kernel's answer is not worth a warning, in bytes.
const SOCKET_BUFFER_BYTES_MIN: usize = 1024 * 1024;
/// Size of a receive buffer: the most that the kernel joins.
const RECEIVE_BUFFER_BYTES: usize = 64 * 1024;
/// Maximum size of datagrams that are sent together, in bytes: the kernel segments none into fragments, so they must
/// fit into a packet of the usual size.
const JOINED_BYTES_MAX: usize = 1_452;
/// Attempts to find a free port if the kernel is to choose one.
pub(crate) const PORT_ATTEMPTS: u32 = 16;

/// A UDP socket and what the kernel can do for it: segmentation of what is sent (GSO), joining of what is
/// received (GRO), congestion marks (ECN). Packets are not fragmented unless [`DatagramSocket::with_fragments`]
/// allows it.
#[derive(Debug)]
pub(crate) struct DatagramSocket {
    socket: OwnedFd,
    features: UdpFeatures,
    address: SocketAddr,
    /// Size of the receive buffer that the kernel has granted, in bytes.
    receive_buffer_bytes: usize,
}

impl DatagramSocket {
    /// Takes a bound socket.
    ///
    /// # Errors
    /// System errors.
    pub(crate) fn new(socket: OwnedFd) -> io::Result<DatagramSocket> {
        let address = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
        let features = UdpFeatures::enable(&socket)?;
        let state = &features.state;
        // Larger buffers need a system setting; see `DatagramSocket::has_small_buffers`.
        let _ = state.set_recv_buffer_size(UdpSockRef::from(&socket), SOCKET_BUFFER_BYTES);
        let _ = state.set_send_buffer_size(UdpSockRef::from(&socket), SOCKET_BUFFER_BYTES);
        let receive_buffer_bytes = state.recv_buffer_size(UdpSockRef::from(&socket))?;
        Ok(DatagramSocket { socket, features, address, receive_buffer_bytes })
    }

    /// Like [`DatagramSocket::new`], for datagrams that may be larger than a packet.
    ///
    /// # Errors
    /// System errors.
    pub(crate) fn with_fragments(socket: OwnedFd) -> io::Result<DatagramSocket> {
        let socket = DatagramSocket::new(socket)?;
        sys::allow_fragments(&socket.socket, socket.address.is_ipv6())?;
        Ok(socket)
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.socket
    }

    /// Returns the bound address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether the kernel has granted less than 1 MiB for received packets, so that bursts are lost.
    pub(crate) fn has_small_buffers(&self) -> bool {
        self.receive_buffer_bytes < SOCKET_BUFFER_BYTES_MIN
    }

    /// Whether the kernel may fragment packets, so that the size of packets must not grow.
    pub(crate) fn may_fragment(&self) -> bool {
        self.features.may_fragment()
    }

    /// Maximum number of packets in one call of [`DatagramSocket::send`].
    pub(crate) fn segments_max(&self) -> usize {
        self.features.segments_max()
    }

    /// Receives packets into the buffers; the kernel may join several packets of one sender in a buffer.
    pub(crate) fn receive<const BUFFERS: usize>(
        &self,
        buffers: &mut ReceiveBuffers<BUFFERS>,
        metas: &mut [RecvMeta; BUFFERS],
    ) -> io::Result<usize> {
        buffers.receive(&self.socket, &self.features, metas)
    }

    /// Sends packets of one connection. Returns false if the socket has no room. Other errors are those of
    /// one destination, whose packets count as lost.
    pub(crate) fn send(&self, transmit: &quinn_proto::Transmit, bytes: &[u8]) -> bool {
        let sent = self.features.send_packets(&self.socket, transmit, bytes);
        !matches!(sent, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Sends single packets, to any destinations, as many of the first ones as one system call takes. Returns their number:
    /// 0 if the socket has no room.
    pub(crate) fn send_many(&self, packets: &[(quinn_proto::Transmit, Vec<u8>)]) -> usize {
        let Some((first, bytes)) = packets.first() else { return 0 };
        let mut many = packets.iter().map(|(transmit, bytes)| udp_transmit(transmit, bytes));
        if let Some(sent) = self.features.sender.send_many(&self.socket, &mut many) {
            return sent;
        }
        usize::from(self.send(first, bytes))
    }

    /// Sends datagrams to one destination. See [`UdpFeatures::send`].
    ///
    /// # Errors
    /// System errors: those of an earlier packet too.
    pub(crate) fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<usize> {
        self.features.send(&self.socket, transmit)
    }
}

/// What the kernel can do for a UDP socket. quinn-udp finds it out and receives; it sends nothing.
#[derive(Debug)]
pub(crate) struct UdpFeatures {
    state: UdpSocketState,
    sender: UdpSender,
}

impl UdpFeatures {
    /// Returns what the kernel can do for a socket, and switches it on.
    ///
    /// # Errors
    /// System errors.
    pub(crate) fn enable(socket: &OwnedFd) -> io::Result<UdpFeatures> {
        let state = UdpSocketState::new(UdpSockRef::from(socket))?;
        // Nobody reads the time of arrival, and it leaves no room for the congestion marks of packets that are joined.
        let _ = setsockopt(socket, ReceiveTimestampns, &false);
        let sender = UdpSender::new(state.max_gso_segments());
        Ok(UdpFeatures { state, sender })
    }

    /// Whether the kernel may fragment packets, so that the size of packets must not grow.
    pub(crate) fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }

    /// Maximum number of packets in one call of [`UdpFeatures::send`]: 1 if the kernel does not segment.
    pub(crate) fn segments_max(&self) -> usize {
        self.sender.segments_max()
    }

    /// Sends datagrams to one destination. Returns the number of bytes sent: fewer than all if a later datagram has
    /// failed, whose error is that of another attempt.
    ///
    /// # Errors
    /// System errors: those of an earlier datagram too.
    pub(crate) fn send(&self, socket: &OwnedFd, transmit: &Transmit<'_>) -> io::Result<usize> {
        self.sender.send(socket, transmit)
    }

    /// Sends packets of one connection. Those of which only the first have left count as lost.
    ///
    /// # Errors
    /// The socket has no room, or the network has reported an error of earlier packets.
    pub(crate) fn send_packets(
        &self,
        socket: &OwnedFd,
        transmit: &quinn_proto::Transmit,
        bytes: &[u8],
    ) -> io::Result<()> {
        self.send(socket, &udp_transmit(transmit, bytes)).map(|_| ())
    }
}

/// Buffers for the packets of one system call. Their memory is used only as far as packets fill it.
#[derive(Debug)]
pub(crate) struct ReceiveBuffers<const BUFFERS: usize>(Vec<u8>);

impl<const BUFFERS: usize> ReceiveBuffers<BUFFERS> {
    pub(crate) fn new() -> ReceiveBuffers<BUFFERS> {
        ReceiveBuffers(vec![0; BUFFERS * RECEIVE_BUFFER_BYTES])
    }

    /// Receives packets of a socket; returns the number of buffers that were filled.
    pub(crate) fn receive(
        &mut self,
        socket: &OwnedFd,
        features: &UdpFeatures,
        metas: &mut [RecvMeta; BUFFERS],
    ) -> io::Result<usize> {
        let mut chunks = self.0.chunks_mut(RECEIVE_BUFFER_BYTES);
        let mut slices: [IoSliceMut<'_>; BUFFERS] =
            std::array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()));
        features.state.recv(UdpSockRef::from(socket), &mut slices, metas)
    }

    /// Returns the first `len` bytes of a buffer.
    pub(crate) fn bytes(&self, at: usize, len: usize) -> &[u8] {
        &self.0[at * RECEIVE_BUFFER_BYTES..][..len]
    }

    /// Calls `each` with the datagrams of one system call, and their size: those of one sender together, where they
    /// follow each other and have the same size. The last of them may be shorter. `joined` is a buffer for them.
    pub(crate) fn for_each_run(
        &self,
        metas: &[RecvMeta],
        joined: &mut Vec<u8>,
        mut each: impl FnMut(&RecvMeta, &[u8], usize),
    ) {
        let mut at = 0;
        while let Some(first) = metas.get(at) {
            let count = run_length(&metas[at..]);
            if count == 1 {
                each(first, self.bytes(at, first.len), first.stride);
            } else {
                joined.clear();
                for (at, meta) in metas.iter().enumerate().skip(at).take(count) {
                    joined.extend_from_slice(self.bytes(at, meta.len));
                }
                each(first, joined, first.len);
            }
            at += count;
        }
    }

    /// Returns the first buffer.
    pub(crate) fn first_mut(&mut self) -> &mut [u8] {
        &mut self.0[..RECEIVE_BUFFER_BYTES]
    }
}

/// Returns the number of buffers at the beginning whose datagrams can be sent together.
fn run_length(metas: &[RecvMeta]) -> usize {
    let Some(first) = metas.first() else { return 0 };
    let is_single = |meta: &RecvMeta| meta.stride == meta.len && (1..=JOINED_BYTES_MAX).contains(&meta.len);
    if !is_single(first) {
        return 1;
    }
    let mut count = 1;
    while let Some(next) = metas.get(count)
        && metas[count - 1].len == first.len
        && (next.addr, next.dst_ip) == (first.addr, first.dst_ip)
        && is_single(next)
        && next.len <= first.len
    {
        count += 1;
    }
    count
}

/// Options for binding the sockets of one address.
#[derive(Clone, Copy)]
pub(crate) struct BindOptions {
    /// Whether IPv4 clients cannot connect to an IPv6 socket.
    pub(crate) v6_only: bool,
    /// Number of sockets, all at the same port: one for each thread.
    pub(crate) cores: usize,
    /// Whether this process already uses the port.
    pub(crate) is_ours: bool,
}

/// Calls `bind` again while another process takes the port between the kernel's choice and a later bind.
pub(crate) fn bind_at_free_port<T>(
    address: SocketAddr,
    mut bind: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    let mut attempts = if address.port() == 0 { PORT_ATTEMPTS } else { 1 };
    loop {
        attempts -= 1;
        match bind() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && attempts > 0 => {}
            bound => return bound,
        }
    }
}

/// Binds UDP sockets.
///
/// # Errors
/// System errors, for example if another process uses the port.
pub(crate) fn bind_sockets(address: SocketAddr, options: BindOptions) -> io::Result<Vec<OwnedFd>> {
    bind_at_free_port(address, || bind_once(address, options))
}

fn bind_once(address: SocketAddr, options: BindOptions) -> io::Result<Vec<OwnedFd>> {
    let BindOptions { v6_only, cores, is_ours } = options;
    let mut bound = address;
    let mut sockets = Vec::with_capacity(cores);
    for index in 0..cores {
        // The first one is bound without SO_REUSEPORT: otherwise a second server of the same user would share the port
        // silently.
        let is_exclusive = index == 0 && !is_ours;
        let port_use = if is_exclusive { PortUse::Exclusive } else { PortUse::Shared };
        let socket = bind_socket(bound, v6_only, port_use)?;
        if is_exclusive {
            bound = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
            sockopt::set_socket_reuseport(&socket, true)?;
        }
        sockets.push(socket);
    }
    Ok(sockets)
}

fn udp_transmit<'a>(transmit: &quinn_proto::Transmit, bytes: &'a [u8]) -> Transmit<'a> {
    Transmit {
        destination: transmit.destination,
        ecn: transmit.ecn.and_then(|ecn| quinn_udp::EcnCodepoint::from_bits(ecn as u8)),
        contents: bytes,
        segment_size: transmit.segment_size,
        src_ip: transmit.src_ip,
    }
}

/// Whether a port may have more than one socket.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PortUse {
    /// Binding fails if the port has a socket.
    Exclusive,
    /// SO_REUSEPORT: other sockets of the same user may have the port too.
    Shared,
}

/// Binds a UDP socket. `v6_only` keeps an IPv6 socket from IPv4 clients.
pub(crate) fn bind_socket(address: SocketAddr, v6_only: bool, port_use: PortUse) -> io::Result<OwnedFd> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
    if port_use == PortUse::Shared {
        sockopt::set_socket_reuseport(&socket, true)?;
    }
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, v6_only)?;
    }
    rustix::net::bind(&socket, &address)?;
    Ok(socket)
}

impl AsFd for DatagramSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use nix::libc;

    use super::*;

    #[test]
    fn datagrams_of_one_sender_and_size_are_joined_in_order() {
        let mut buffers = ReceiveBuffers::<8>::new();
        // Port, size, and size of the datagrams that the kernel has joined.
        let received =
            [(1, 3, 3), (1, 3, 3), (1, 2, 2), (1, 3, 3), (2, 3, 3), (2, 0, 0), (2, 4, 2), (2, 2, 2)];
        let metas = received.map(|(port, len, stride)| {
            let mut meta = RecvMeta::default();
            (meta.addr, meta.len, meta.stride) = (SocketAddr::from(([127, 0, 0, 1], port)), len, stride);
            meta
        });
        for (at, meta) in metas.iter().enumerate() {
            buffers.0[at * RECEIVE_BUFFER_BYTES..][..meta.len].fill(at as u8);
        }
        let mut runs = Vec::new();
        buffers.for_each_run(&metas, &mut Vec::new(), |meta, bytes, size| {
            runs.push((meta.addr.port(), bytes.to_vec(), size));
        });
        let wanted = [
            (1, vec![0, 0, 0, 1, 1, 1, 2, 2], 3),
            (1, vec![3, 3, 3], 3),
            (2, vec![4, 4, 4], 3),
            (2, vec![], 0),
            (2, vec![6, 6, 6, 6], 2),
            (2, vec![7, 7], 2),
        ];
        assert_eq!(runs, wanted);
    }

    fn bound(address: &str) -> DatagramSocket {
        let address: SocketAddr = address.parse().unwrap();
        DatagramSocket::new(bind_socket(address, false, PortUse::Exclusive).unwrap()).unwrap()
    }

    /// Receives one packet: its sender's address, its mark for congestion, and its bytes.
    fn received(socket: &DatagramSocket) -> (IpAddr, Option<u8>, Vec<u8>) {
        let mut buffers = ReceiveBuffers::<1>::new();
        let mut metas = [RecvMeta::default()];
        assert_eq!(socket.receive(&mut buffers, &mut metas).unwrap(), 1);
        let ecn = metas[0].ecn.map(|ecn| ecn as u8);
        (metas[0].addr.ip(), ecn, buffers.bytes(0, metas[0].len).to_vec())
    }

    #[test]
    fn packets_leave_together_with_their_marks_and_source_and_pass_a_bad_one_over() {
        for (any, own, other) in [("0.0.0.0:0", "127.0.0.1", "127.0.0.7"), ("[::]:0", "::1", "::1")] {
            let socket = bound(any);
            let receivers: Vec<_> =
                (0..5).map(|_| bound(&SocketAddr::new(own.parse().unwrap(), 0).to_string())).collect();
            let source: IpAddr = other.parse().unwrap();
            let packet = |at: usize, ecn, src_ip| {
                let contents = vec![at as u8; at + 1];
                let destination = receivers[at].address();
                let size = contents.len();
                (quinn_proto::Transmit { destination, ecn, size, segment_size: None, src_ip }, contents)
            };
            let marked = Some(quinn_proto::EcnCodepoint::Ect0);
            let mut packets = [
                packet(0, marked, Some(source)),
                packet(1, marked, Some(source)),
                packet(2, marked, Some(source)),
                packet(3, None, None),
                packet(4, None, None),
            ];
            // Nothing may be sent to port 0.
            packets[1].0.destination.set_port(0);
            let mut counts = Vec::new();
            let mut sent = 0;
            while sent < packets.len() {
                counts.push(socket.send_many(&packets[sent..]));
                sent += counts.last().unwrap();
            }
            assert_eq!(counts, [1, 1, 1, 2], "{any}");
            for at in [0, 2, 3, 4] {
                let (ecn, from) = if at < 3 { (Some(2), source) } else { (None, own.parse().unwrap()) };
                assert_eq!(received(&receivers[at]), (from, ecn, packets[at].1.clone()), "{any} {at}");
            }
            let nothing = receivers[1].receive(&mut ReceiveBuffers::<1>::new(), &mut [RecvMeta::default()]);
            assert_eq!(nothing.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        }
    }

    #[test]
    fn packets_to_mapped_addresses_leave_alone() {
        let socket = bound("[::]:0");
        let receivers = [bound("127.0.0.1:0"), bound("127.0.0.1:0")];
        let packets = [0, 1].map(|at: usize| {
            let destination =
                format!("[::ffff:127.0.0.1]:{}", receivers[at].address().port()).parse().unwrap();
            (
                quinn_proto::Transmit { destination, ecn: None, size: 1, segment_size: None, src_ip: None },
                vec![1],
            )
        });
        assert_eq!([socket.send_many(&packets), socket.send_many(&packets[1..])], [1, 1]);
        assert_eq!(receivers.map(|receiver| received(&receiver).2), [[1], [1]]);
    }

    #[test]
    fn errors_of_a_destination_leave_segmentation_and_marks_to_others() {
        for (any, own, foreign) in [("0.0.0.0:0", "127.0.0.1", "192.0.2.1"), ("[::]:0", "::1", "2001:db8::1")]
        {
            let socket = bound(any);
            let receiver = bound(&SocketAddr::new(own.parse().unwrap(), 0).to_string());
            let before = socket.segments_max();
            let transmit = |destination, src_ip| quinn_proto::Transmit {
                destination,
                ecn: Some(quinn_proto::EcnCodepoint::Ect0),
                size: 8,
                segment_size: Some(4),
                src_ip,
            };
            // A client may send from port 0, and an address of this machine may have gone.
            let nobody = SocketAddr::new(own.parse().unwrap(), 0);
            for (destination, source) in
                [(nobody, None), (receiver.address(), Some(foreign.parse().unwrap()))]
            {
                assert!(socket.try_send(&udp_transmit(&transmit(destination, source), b"oneestwo")).is_err());
            }
            assert_eq!(socket.segments_max(), before);
            assert!(socket.send(&transmit(receiver.address(), None), b"one.two."));
            assert_eq!(received(&receiver), (own.parse().unwrap(), Some(2), b"one.two.".to_vec()));
        }
    }

    #[test]
    fn datagrams_that_the_kernel_does_not_segment_leave_alone() {
        let own: SocketAddr = "[::1]:0".parse().unwrap();
        let bound = bind_socket(own, true, PortUse::Exclusive).unwrap();
        let socket = DatagramSocket::with_fragments(bound).unwrap();
        let receiver = self::bound("[::1]:0");
        let before = socket.segments_max();
        // As on a route whose packets are smaller: segments must fit into them, datagrams may be fragmented.
        sys::set_option(socket.fd(), libc::IPPROTO_IPV6, libc::IPV6_MTU, 1280).unwrap();
        let contents: Vec<u8> = (0..3_000u16).map(|at| (at / 1_400) as u8).collect();
        let transmit = Transmit {
            destination: receiver.address(),
            ecn: Some(quinn_udp::EcnCodepoint::Ect0),
            contents: &contents,
            segment_size: Some(1_400),
            src_ip: None,
        };
        assert_eq!(socket.try_send(&transmit).unwrap(), contents.len());
        for datagram in contents.chunks(1_400) {
            assert_eq!(received(&receiver), (own.ip(), Some(2), datagram.to_vec()));
        }
        assert_eq!(socket.segments_max(), before);
    }
}
