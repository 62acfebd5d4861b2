//! UDP sockets: one for each core at the same address, between which the kernel distributes packets.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use quinn_udp::{RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::sys;

/// Size of the socket buffers to ask for, in bytes. The kernel's default holds about 150 packets.
const SOCKET_BUFFER_BYTES: usize = 4 * 1024 * 1024;
/// Size from which the kernel's answer is not worth a warning, in bytes.
const SOCKET_BUFFER_BYTES_MIN: usize = 1024 * 1024;

/// A UDP socket and what the kernel can do for it: segmentation of what is sent (GSO), joining of what is
/// received (GRO), congestion marks (ECN). Packets are never fragmented.
#[derive(Debug)]
pub struct DatagramSocket {
    socket: OwnedFd,
    state: UdpSocketState,
    address: SocketAddr,
    /// Size of the receive buffer that the kernel has granted, in bytes.
    receive_buffer_bytes: usize,
    /// Channel to a successor: this process's end, and the one that is passed on with the socket.
    successor: (OwnedFd, OwnedFd),
    /// Channel to the process that has passed the socket on.
    predecessor: Option<OwnedFd>,
}

impl DatagramSocket {
    /// Binds an address once for each of `cores` threads. `v6_only` keeps an IPv6 socket from IPv4 clients.
    ///
    /// # Errors
    /// System errors, for example if another process uses the port.
    pub(crate) fn bind(
        address: SocketAddr,
        v6_only: bool,
        cores: usize,
    ) -> io::Result<Vec<Arc<DatagramSocket>>> {
        // Without SO_REUSEPORT: a second server of the same user would share the port silently.
        bind_socket(address, v6_only, false)?;
        let mut sockets = Vec::with_capacity(cores);
        for _ in 0..cores {
            let socket = DatagramSocket::new(bind_socket(address, v6_only, true)?, None)?;
            sockets.push(Arc::new(socket));
        }
        if let Some(first) = sockets.first() {
            // Without it, packets of clients whose address changes may reach another core and are lost.
            let _ = sys::steer_by_connection_id(&first.socket);
        }
        Ok(sockets)
    }

    /// Takes a bound socket, and the channel to the process that has passed it on.
    ///
    /// # Errors
    /// System errors.
    pub(crate) fn new(socket: OwnedFd, predecessor: Option<OwnedFd>) -> io::Result<DatagramSocket> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        DatagramSocket::of(socket, pair, predecessor)
    }

    /// Like [`DatagramSocket::new`], with the channel to a successor.
    ///
    /// # Errors
    /// System errors.
    pub(crate) fn of(
        socket: OwnedFd,
        successor: (OwnedFd, OwnedFd),
        predecessor: Option<OwnedFd>,
    ) -> io::Result<DatagramSocket> {
        let address = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        // Larger buffers need a system setting; see `DatagramSocket::has_small_buffers`.
        let _ = state.set_recv_buffer_size(UdpSockRef::from(&socket), SOCKET_BUFFER_BYTES);
        let _ = state.set_send_buffer_size(UdpSockRef::from(&socket), SOCKET_BUFFER_BYTES);
        let receive_buffer_bytes = state.recv_buffer_size(UdpSockRef::from(&socket))?;
        Ok(DatagramSocket { socket, state, address, receive_buffer_bytes, successor, predecessor })
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.socket
    }

    /// This process's end of the channel to a successor.
    pub(crate) fn successor(&self) -> &OwnedFd {
        &self.successor.0
    }

    /// The channel to the process that has passed the socket on.
    pub(crate) fn predecessor(&self) -> Option<&OwnedFd> {
        self.predecessor.as_ref()
    }

    /// The end of the channel that a successor gets.
    pub(crate) fn successor_end(&self) -> BorrowedFd<'_> {
        self.successor.1.as_fd()
    }

    /// Returns the bound address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether the kernel has granted less than 1 MiB for received packets, so that bursts are lost.
    #[must_use]
    pub fn has_small_buffers(&self) -> bool {
        self.receive_buffer_bytes < SOCKET_BUFFER_BYTES_MIN
    }

    /// Whether the kernel may fragment packets, so that the size of packets must not grow.
    pub(crate) fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }

    /// Maximum number of packets in one call of [`DatagramSocket::send`].
    pub(crate) fn segments_max(&self) -> usize {
        self.state.max_gso_segments()
    }

    /// Receives packets into the buffers; the kernel may join several packets of one sender in a buffer.
    pub(crate) fn receive(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> io::Result<usize> {
        self.state.recv(UdpSockRef::from(&self.socket), buffers, metas)
    }

    /// Sends packets of one connection. Returns false if the socket has no room. Other errors are those of
    /// one destination, whose packets count as lost.
    pub(crate) fn send(&self, transmit: &quinn_proto::Transmit, bytes: &[u8]) -> bool {
        let sent = send_packets(&self.state, &self.socket, transmit, bytes);
        !matches!(sent, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}

/// Sends packets of one connection.
///
/// # Errors
/// The socket has no room, or the network has reported an error of earlier packets.
pub(crate) fn send_packets(
    state: &UdpSocketState,
    socket: &OwnedFd,
    transmit: &quinn_proto::Transmit,
    bytes: &[u8],
) -> io::Result<()> {
    let ecn = transmit.ecn.and_then(|ecn| quinn_udp::EcnCodepoint::from_bits(ecn as u8));
    state.try_send(
        UdpSockRef::from(socket),
        &Transmit {
            destination: transmit.destination,
            ecn,
            contents: bytes,
            segment_size: transmit.segment_size,
            src_ip: transmit.src_ip,
        },
    )
}

/// Binds a UDP socket. `v6_only` keeps an IPv6 socket from IPv4 clients.
pub(crate) fn bind_socket(address: SocketAddr, v6_only: bool, reuse_port: bool) -> io::Result<OwnedFd> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
    if reuse_port {
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
