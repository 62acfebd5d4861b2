//! The socket of a session, connected to its upstream server.

use std::cell::OnceCell;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use quinn_udp::{RecvMeta, Transmit};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::drops::DropReason;
use crate::core::Core;
use crate::datagram_socket::{ReceiveBuffers, UdpFeatures};
use crate::source::Source;
use crate::sys;

/// Number of receive buffers for one system call.
pub(crate) const RECEIVE_BUFFERS: usize = 16;
/// Maximum size of a datagram over IPv4, in bytes.
pub(super) const DATAGRAM_BYTES_MAX: usize = 65_507;

/// A UDP socket that is connected to an upstream server, from which alone it receives.
pub struct DatagramLink {
    core: Core,
    socket: OwnedFd,
    source: Rc<Source>,
    server: SocketAddr,
    /// Receives and sends several datagrams in one call. Preparing it takes ten system calls, more than most
    /// sessions make.
    batches: OnceCell<Option<UdpFeatures>>,
}

impl DatagramLink {
    /// Opens a socket for a server. The server gets nothing by that.
    ///
    /// # Errors
    /// System errors, for example if there is no descriptor or route.
    pub fn connect(core: &Core, server: SocketAddr) -> io::Result<DatagramLink> {
        let family = if server.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
        rustix::net::connect(&socket, &server)?;
        let source = core.register_receiver(&socket)?;
        Ok(DatagramLink { core: core.clone(), socket, source, server, batches: OnceCell::new() })
    }

    pub(super) fn source(&self) -> &Source {
        &self.source
    }

    /// Prepares the socket for many datagrams.
    pub(super) fn expect_many(&self) -> Option<&UdpFeatures> {
        let prepare = || {
            let features = UdpFeatures::enable(&self.socket).ok()?;
            sys::allow_fragments(&self.socket, self.server.is_ipv6()).ok()?;
            Some(features)
        };
        self.batches.get_or_init(prepare).as_ref()
    }

    /// Sends datagrams of `stride` bytes, of which the last may be shorter. `sent` is called with the number and
    /// size of those that were sent, `dropped` with the number of others and the reason. Returns false if the
    /// server has refused a datagram.
    pub(super) fn send(
        &self,
        bytes: &[u8],
        stride: usize,
        mut sent: impl FnMut(u64, usize),
        mut dropped: impl FnMut(DropReason, u64),
    ) -> bool {
        let stride = stride.max(1);
        let mut rest = bytes;
        if bytes.len() > stride
            && let Some(features) = self.expect_many()
        {
            while rest.len() > stride && features.segments_max() > 1 {
                let count = features.segments_max().min(DATAGRAM_BYTES_MAX / stride).max(1);
                let run = &rest[..(count * stride).min(rest.len())];
                let transmit = Transmit {
                    destination: self.server,
                    ecn: None,
                    contents: run,
                    segment_size: (run.len() > stride).then_some(stride),
                    src_ip: None,
                };
                let done = match features.send(&self.socket, &transmit) {
                    Ok(len) => {
                        sent(len.div_ceil(stride) as u64, len);
                        len
                    }
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return false,
                    Err(error) => {
                        dropped(DropReason::of_error(&error), run.len().div_ceil(stride) as u64);
                        run.len()
                    }
                };
                rest = &rest[done..];
            }
        }
        let mut one = |datagram: &[u8]| match rustix::net::send(&self.socket, datagram, SendFlags::NOSIGNAL) {
            Ok(_) => {
                sent(1, datagram.len());
                true
            }
            Err(Errno::CONNREFUSED) => false,
            Err(errno) => {
                dropped(DropReason::of(errno), 1);
                true
            }
        };
        // An empty datagram is one too.
        if bytes.is_empty() { one(rest) } else { rest.chunks(stride).all(one) }
    }

    /// Receives datagrams; `each` is called with joined datagrams of a size, of which the last may be shorter.
    /// Returns whether there may be more, and the number of bytes.
    ///
    /// # Errors
    /// The server refuses datagrams, or cannot be reached.
    pub(super) fn receive(
        &self,
        buffers: &mut ReceiveBuffers<RECEIVE_BUFFERS>,
        joined: &mut Vec<u8>,
        mut each: impl FnMut(&[u8], usize),
    ) -> io::Result<(bool, usize)> {
        let Some(features) = self.batches.get().and_then(Option::as_ref) else {
            return match rustix::net::recv(&self.socket, buffers.first_mut(), RecvFlags::empty()) {
                Ok((len, _)) => {
                    each(buffers.bytes(0, len), len);
                    Ok((true, len.max(1)))
                }
                Err(Errno::AGAIN | Errno::INTR) => Ok((false, 0)),
                Err(error) => Err(error.into()),
            };
        };
        let mut metas = [RecvMeta::default(); RECEIVE_BUFFERS];
        match buffers.receive(&self.socket, features, &mut metas) {
            Ok(count) => {
                let mut received = 0;
                buffers.for_each_run(&metas[..count], joined, |_, bytes, stride| {
                    received += bytes.len().max(1);
                    each(bytes, stride);
                });
                Ok((count == RECEIVE_BUFFERS, received))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok((false, 0)),
            Err(error) => Err(error),
        }
    }
}

impl Drop for DatagramLink {
    fn drop(&mut self) {
        self.core.deregister(&self.source);
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use nix::libc;

    use super::*;

    #[test]
    fn datagrams_larger_than_the_packets_of_a_route_leave_segmentation_to_others() {
        let core = Core::for_client(1).unwrap();
        let server = UdpSocket::bind("[::1]:0").unwrap();
        let link = DatagramLink::connect(&core, server.local_addr().unwrap()).unwrap();
        let before = link.expect_many().unwrap().segments_max();
        sys::set_option(&link.socket, libc::IPPROTO_IPV6, libc::IPV6_MTU, 1280).unwrap();
        let mut counts = Vec::new();
        for size in [1_400, 100] {
            let bytes = vec![7; 3 * size];
            let sent = |count, len| counts.push((count, len));
            assert!(link.send(&bytes, size, sent, |reason, _| panic!("{reason:?}")));
            for _ in 0..3 {
                let mut buffer = [0; 2_000];
                assert_eq!(server.recv(&mut buffer).unwrap(), size);
            }
        }
        assert_eq!(counts, [(3, 4_200), (3, 300)]);
        assert_eq!(link.expect_many().unwrap().segments_max(), before);
    }
}
