//! The UDP socket of an endpoint, with channels to the processes before and after this one.

use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::succession;
use crate::datagram_socket::{BindOptions, DatagramSocket, bind_sockets};
use crate::sys;

/// The UDP socket of an endpoint, with channels to the processes before and after this one.
#[derive(Debug)]
pub(crate) struct QuicUdpSocket {
    datagrams: DatagramSocket,
    /// Channel to a successor: this process's end, and the one that is passed on with the socket.
    successor: (OwnedFd, OwnedFd),
    /// Channel to the process that has passed the socket on.
    predecessor: Option<OwnedFd>,
    has_taken_over: AtomicBool,
}

impl QuicUdpSocket {
    /// Binds an address once for each of `cores` threads. `v6_only` keeps an IPv6 socket from IPv4 clients.
    ///
    /// # Errors
    /// System errors, for example if another process uses the port.
    pub(crate) fn bind(
        address: SocketAddr,
        v6_only: bool,
        cores: usize,
    ) -> io::Result<Vec<Arc<QuicUdpSocket>>> {
        let bound = bind_sockets(address, BindOptions { v6_only, cores, is_ours: false })?.into_iter();
        let sockets = bound
            .map(|socket| QuicUdpSocket::new(socket, None).map(Arc::new))
            .collect::<io::Result<Vec<_>>>()?;
        QuicUdpSocket::steer(&sockets);
        Ok(sockets)
    }

    /// Lets each of the sockets of an address, in the order in which they were bound, receive the packets of its
    /// connections. Without it, those of clients whose address changes may reach another core and are lost.
    pub(crate) fn steer(sockets: &[Arc<QuicUdpSocket>]) {
        if let Some(first) = sockets.first() {
            let _ = sys::steer_by_connection_id(first.fd());
        }
    }

    /// Takes a bound socket, and the channel to the process that has passed it on.
    ///
    /// # Errors
    /// System errors.
    pub(crate) fn new(socket: OwnedFd, predecessor: Option<OwnedFd>) -> io::Result<QuicUdpSocket> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        QuicUdpSocket::of(socket, pair, predecessor)
    }

    /// Like [`QuicUdpSocket::new`], with the channel to a successor.
    ///
    /// # Errors
    /// System errors.
    pub(crate) fn of(
        socket: OwnedFd,
        successor: (OwnedFd, OwnedFd),
        predecessor: Option<OwnedFd>,
    ) -> io::Result<QuicUdpSocket> {
        let has_taken_over = AtomicBool::new(predecessor.is_none());
        Ok(QuicUdpSocket { datagrams: DatagramSocket::new(socket)?, successor, predecessor, has_taken_over })
    }

    /// Returns the same socket with another channel to a successor, for a process that is started in place of one
    /// that has ended. Whatever that has left in its channel is lost.
    ///
    /// # Errors
    /// System errors.
    pub(crate) fn renewed(&self) -> io::Result<QuicUdpSocket> {
        let predecessor = self.predecessor.as_ref().map(OwnedFd::try_clone).transpose()?;
        QuicUdpSocket::new(self.datagrams.fd().try_clone()?, predecessor)
    }

    /// Takes over from the process that has passed the socket on: that stops receiving, and gets the packets of its
    /// connections from here.
    pub(crate) fn take_over(&self) {
        if let Some(channel) = &self.predecessor {
            succession::take_over(channel);
        }
        self.has_taken_over.store(true, Ordering::Relaxed);
    }

    /// Whether this process may receive: there is no predecessor, or it was told to stop.
    pub(crate) fn has_taken_over(&self) -> bool {
        self.has_taken_over.load(Ordering::Relaxed)
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
}

impl Deref for QuicUdpSocket {
    type Target = DatagramSocket;

    fn deref(&self) -> &DatagramSocket {
        &self.datagrams
    }
}
