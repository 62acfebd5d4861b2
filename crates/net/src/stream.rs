//! A connected socket that never blocks.

use std::future::poll_fn;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::task::Poll;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown};

use crate::core::{Core, GONE, HALF_CLOSED, READ, Source, WRITE};
use crate::fault::Fault;

/// A stream socket, TCP or Unix, registered with its core. Closed when dropped.
pub struct Stream {
    core: Core,
    source: Rc<Source>,
    transport: Transport,
}

enum Transport {
    Socket(OwnedFd),
    #[cfg(test)]
    Sim(Rc<crate::sim::Wire>),
}

impl Stream {
    /// Takes over a connected, non-blocking socket.
    ///
    /// # Errors
    /// Where the kernel has no room for the registration.
    pub(crate) fn new(core: &Core, socket: OwnedFd) -> std::io::Result<Stream> {
        let source = core.register(&socket)?;
        Ok(Stream { core: core.clone(), source, transport: Transport::Socket(socket) })
    }

    #[cfg(test)]
    pub(crate) fn simulated(core: &Core, wire: Rc<crate::sim::Wire>) -> Stream {
        let source = core.add_source();
        wire.attach(source.token());
        Stream { core: core.clone(), source, transport: Transport::Sim(wire) }
    }

    /// The core it lives on.
    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    /// To watch it while the stream itself is in use.
    pub(crate) fn source_rc(&self) -> Rc<Source> {
        self.source.clone()
    }

    /// Whether the connection is gone both ways: nobody reads what is sent from now on.
    pub(crate) fn is_gone(&self) -> bool {
        self.source.ready() & GONE != 0
    }

    /// Reads what is there: `None` where nothing is, 0 at the end.
    pub(crate) fn try_read(&self, buffer: &mut [u8]) -> Result<Option<usize>, Fault> {
        if self.source.ready() & READ == 0 {
            return Ok(None);
        }
        match self.recv(buffer) {
            Ok(len) => {
                // A short read emptied the socket, and the next byte makes a new edge; but an end already
                // announced makes none.
                if len < buffer.len() && self.source.ready() & (HALF_CLOSED | GONE) == 0 {
                    self.source.clear(READ);
                }
                Ok(Some(len))
            }
            Err(Errno::AGAIN) => {
                self.source.clear(READ);
                Ok(None)
            }
            Err(Errno::INTR) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Writes what fits: 0 where nothing does now. `more` tells the kernel that the rest of a packet follows.
    pub(crate) fn try_write(&self, parts: &[&[u8]], more: bool) -> Result<usize, Fault> {
        if self.source.ready() & WRITE == 0 {
            return Ok(0);
        }
        self.written(self.send(parts, more))
    }

    /// Sends a part of a file from the page cache: 0 at the file's end, `None` where nothing fits now.
    pub(crate) fn try_sendfile(
        &self,
        file: BorrowedFd<'_>,
        at: &mut u64,
        len: usize,
    ) -> Result<Option<usize>, Fault> {
        if self.source.ready() & WRITE == 0 {
            return Ok(None);
        }
        let sent = match &self.transport {
            Transport::Socket(socket) => rustix::fs::sendfile(socket, file, Some(at), len),
            #[cfg(test)]
            Transport::Sim(wire) => wire.sendfile(file, at, len),
        };
        match sent {
            Err(Errno::AGAIN) => {
                self.source.clear(WRITE);
                Ok(None)
            }
            Err(Errno::INTR) => Ok(None),
            sent => Ok(Some(sent?)),
        }
    }

    fn written(&self, sent: Result<usize, Errno>) -> Result<usize, Fault> {
        match sent {
            Err(Errno::AGAIN) => {
                self.source.clear(WRITE);
                Ok(0)
            }
            Err(Errno::INTR) => Ok(0),
            sent => Ok(sent?),
        }
    }

    fn recv(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        match &self.transport {
            Transport::Socket(socket) => {
                rustix::net::recv(socket, buffer, RecvFlags::empty()).map(|(len, _)| len)
            }
            #[cfg(test)]
            Transport::Sim(wire) => wire.recv(buffer),
        }
    }

    fn send(&self, parts: &[&[u8]], more: bool) -> Result<usize, Errno> {
        let flags = if more { SendFlags::NOSIGNAL | SendFlags::MORE } else { SendFlags::NOSIGNAL };
        match (&self.transport, parts) {
            (Transport::Socket(socket), [bytes]) => rustix::net::send(socket, bytes, flags),
            (Transport::Socket(socket), [a, b]) => {
                let slices = [IoSlice::new(a), IoSlice::new(b)];
                rustix::net::sendmsg(socket, &slices, &mut SendAncillaryBuffer::default(), flags)
            }
            (Transport::Socket(socket), parts) => {
                let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
                rustix::net::sendmsg(socket, &slices, &mut SendAncillaryBuffer::default(), flags)
            }
            #[cfg(test)]
            (Transport::Sim(wire), parts) => wire.send(parts),
        }
    }

    /// Waits until there is something to read, or the end; at most until `deadline_ms` of the core's clock.
    ///
    /// # Errors
    /// [`Fault::Timeout`] at the deadline.
    pub(crate) async fn readable(&self, deadline_ms: u64) -> Result<(), Fault> {
        self.ready(READ, deadline_ms).await
    }

    /// Waits until something can be written.
    ///
    /// # Errors
    /// [`Fault::Timeout`] at the deadline.
    pub(crate) async fn writable(&self, deadline_ms: u64) -> Result<(), Fault> {
        self.ready(WRITE, deadline_ms).await
    }

    async fn ready(&self, bit: u8, deadline_ms: u64) -> Result<(), Fault> {
        if self.source.ready() & bit != 0 {
            return Ok(());
        }
        self.source.set_deadline(deadline_ms);
        let result = poll_fn(|_| {
            if self.source.ready() & bit != 0 {
                return Poll::Ready(Ok(()));
            }
            if self.source.take_expired() {
                return Poll::Ready(Err(Fault::Timeout));
            }
            if bit == READ {
                self.source.wait_read(&self.core);
            } else {
                self.source.wait_write(&self.core);
            }
            Poll::Pending
        })
        .await;
        self.source.set_deadline(u64::MAX);
        result
    }

    /// Closes the sending side: the peer reads what was sent, then the end.
    pub(crate) fn shutdown_write(&self) {
        match &self.transport {
            // Fails where the peer is gone already.
            Transport::Socket(socket) => _ = rustix::net::shutdown(socket, Shutdown::Write),
            #[cfg(test)]
            Transport::Sim(wire) => wire.shutdown_write(),
        }
    }

    /// The socket, where there is one.
    pub(crate) fn socket(&self) -> Option<BorrowedFd<'_>> {
        match &self.transport {
            Transport::Socket(socket) => Some(socket.as_fd()),
            #[cfg(test)]
            Transport::Sim(_) => None,
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.core.deregister(&self.source);
    }
}
