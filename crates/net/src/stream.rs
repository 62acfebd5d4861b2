//! Non-blocking connected sockets.

use std::cell::{Cell, OnceCell};
use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
    SocketType,
};
use times::Moment;

use crate::address::ConnectAddress;
use crate::bandwidth::ResponseBucket;
use crate::core::Core;
use crate::fault::Fault;
use crate::source::{GONE, HALF_CLOSED, READ, Source, WRITE};
use crate::sys;
use crate::wait::{self, Interest};

/// A stream socket, TCP or Unix, registered with its core. Closed on drop.
///
/// The `try_` methods never wait, and make no system call before the core has reported an event, so they are
/// cheap. Deadlines are times of the core's clock ([`Core::now`]), [`Moment::NEVER`] for none. A
/// stream has one deadline at a time, that of its latest wait.
pub struct Stream {
    source: Registered,
    transport: Transport,
    /// Whether closing resets the connection.
    resets_on_close: Cell<bool>,
    /// Bytes passed to the kernel, modulo 2³²; only differences are used.
    sent: Cell<u32>,
    /// The local address, after it was queried. Boxed, because most idle connections are never asked for it.
    local_address: OnceCell<Option<Box<SocketAddr>>>,
    /// Bandwidth limit of the current response.
    bucket: Option<Box<ResponseBucket>>,
}

enum Transport {
    Socket(OwnedFd),
    #[cfg(test)]
    Sim(crate::sim::ServerEnd),
}

/// A source that is deregistered on drop.
struct Registered {
    core: Core,
    source: Rc<Source>,
}

impl Registered {
    fn new(core: &Core, source: Rc<Source>) -> Registered {
        Registered { core: core.clone(), source }
    }
}

impl Deref for Registered {
    type Target = Source;

    fn deref(&self) -> &Source {
        &self.source
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if !self.source.stays_registered.get() {
            self.core.deregister(&self.source);
        }
    }
}

impl Stream {
    /// Takes ownership of a connected, non-blocking socket.
    ///
    /// # Errors
    /// Fails if the kernel has no memory for the registration.
    pub(crate) fn new(core: &Core, socket: OwnedFd) -> std::io::Result<Stream> {
        let source = core.register(&socket)?;
        Ok(Stream::of(Registered::new(core, source), Transport::Socket(socket)))
    }

    fn of(source: Registered, transport: Transport) -> Stream {
        let resets = Cell::new(false);
        let sent = Cell::new(0);
        let local = OnceCell::new();
        Stream { source, transport, resets_on_close: resets, sent, local_address: local, bucket: None }
    }

    /// Makes the connection idle: returns the socket and the token under which its source stays registered.
    /// `None` for a simulated one.
    pub(crate) fn into_idle(self) -> Option<(OwnedFd, u64)> {
        let Stream { source, transport, .. } = self;
        match transport {
            Transport::Socket(socket) => {
                source.forget_waiters();
                source.stays_registered.set(true);
                Some((socket, source.token))
            }
            #[cfg(test)]
            Transport::Sim(_) => None,
        }
    }

    /// Resumes an idle socket whose source is still registered with this core.
    pub(crate) fn resume(core: &Core, socket: OwnedFd, token: u64) -> Option<Stream> {
        let source = Registered::new(core, core.source(token)?);
        source.stays_registered.set(false);
        let transport = Transport::Socket(socket);
        Some(Stream::of(source, transport))
    }

    /// Takes ownership of a connected socket that another process made. That process may still change its
    /// blocking mode, so reads and writes do not rely on it.
    ///
    /// # Errors
    /// Fails if the kernel has no memory for the registration.
    pub fn adopt(core: &Core, socket: OwnedFd) -> std::io::Result<Stream> {
        Stream::new(core, socket)
    }

    #[cfg(test)]
    pub(crate) fn simulated(core: &Core, wire: Rc<crate::sim::SimulatedWire>) -> Stream {
        let source = core.add_source();
        wire.attach(source.token);
        let source = Registered::new(core, source);
        let transport = Transport::Sim(crate::sim::ServerEnd(wire));
        Stream::of(source, transport)
    }

    /// Returns the core that owns the stream.
    pub fn core(&self) -> &Core {
        &self.source.core
    }

    /// Returns the source that tasks wait for.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Returns a shared reference to the source, to watch it while the stream is borrowed.
    pub(crate) fn source_rc(&self) -> Rc<Source> {
        self.source.source.clone()
    }

    /// Connects to an address; waits until that has succeeded or failed, at most until the deadline.
    ///
    /// # Errors
    /// [`Fault::Timeout`], or [`Fault::Io`] with the system error (refused, unreachable, no such socket).
    pub async fn connect(core: &Core, to: &ConnectAddress, deadline: Moment) -> Result<Stream, Fault> {
        let (socket, connected) = match to {
            ConnectAddress::Tcp(address) => {
                let socket = tcp_socket(address.ip())?;
                let connected = rustix::net::connect(&socket, address);
                (socket, connected)
            }
            ConnectAddress::Unix(path) => {
                let socket = stream_socket(AddressFamily::UNIX)?;
                let address = match path.as_os_str().as_encoded_bytes() {
                    [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name),
                    _ => SocketAddrUnix::new(path.as_path()),
                };
                let address = address.map_err(std::io::Error::from)?;
                let connected = rustix::net::connect(&socket, &address);
                (socket, connected)
            }
        };
        match connected {
            Ok(()) => return Ok(Stream::new(core, socket)?),
            Err(Errno::INPROGRESS) => {}
            Err(errno) => return Err(Fault::Io(errno.into())),
        }
        let stream = Stream::new(core, socket)?;
        stream.source.clear(WRITE);
        stream.writable(deadline).await?;
        match &stream.transport {
            Transport::Socket(socket) => {
                sockopt::socket_error(socket)?.map_err(|errno| Fault::Io(errno.into()))?;
            }
            #[cfg(test)]
            Transport::Sim(_) => {}
        }
        Ok(stream)
    }

    /// Reads some bytes, waiting for the first; returns 0 at the end.
    ///
    /// # Errors
    /// [`Fault::Timeout`], [`Fault::Disconnected`], or a system error.
    pub async fn read(&self, buffer: &mut [u8], deadline: Moment) -> Result<usize, Fault> {
        loop {
            match self.try_read(buffer)? {
                Some(len) => return Ok(len),
                None => self.readable(deadline).await?,
            }
        }
    }

    /// Whether a read would return something at once, as far as is known without a system call.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        self.source.ready() & READ != 0
    }

    /// Whether unread input, the end or an error was reported; a pooled connection is then unusable. Costs no
    /// system call.
    pub fn has_pending_event(&self) -> bool {
        self.source.ready() & (READ | GONE) != 0
    }

    /// Asks the kernel whether there is neither input nor an end. [`Stream::has_pending_event`] is only updated in the
    /// core's next turn.
    #[must_use]
    pub fn has_no_input(&self) -> bool {
        match &self.transport {
            Transport::Socket(socket) => {
                let peeked = rustix::net::recv(socket, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
                matches!(peeked, Err(Errno::AGAIN))
            }
            #[cfg(test)]
            Transport::Sim(_) => !self.has_pending_event(),
        }
    }

    /// Returns the local address; `None` for a Unix socket. Queried only once.
    #[must_use]
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.local_address.get_or_init(|| self.bound_address().map(Box::new)).as_deref().copied()
    }

    fn bound_address(&self) -> Option<SocketAddr> {
        match &self.transport {
            Transport::Socket(socket) => SocketAddr::try_from(rustix::net::getsockname(socket).ok()?).ok(),
            #[cfg(test)]
            Transport::Sim(_) => None,
        }
    }

    /// Returns the Unix socket, to query its peer; `None` for TCP.
    #[must_use]
    pub fn unix_socket(&self) -> Option<BorrowedFd<'_>> {
        match &self.transport {
            Transport::Socket(socket) => {
                let name = rustix::net::getsockname(socket).ok()?;
                (name.address_family() == rustix::net::AddressFamily::UNIX).then(|| socket.as_fd())
            }
            #[cfg(test)]
            Transport::Sim(_) => None,
        }
    }

    /// Returns the local port; `None` for a Unix socket. Queried only once.
    #[must_use]
    pub fn local_port(&self) -> Option<u16> {
        self.local_address().map(|address| address.port())
    }

    /// Waits until the stream is readable or writable.
    ///
    /// # Errors
    /// [`Fault::Timeout`] at the deadline.
    pub async fn readable_or_writable(&self, deadline: Moment) -> Result<(), Fault> {
        wait::ready(self.core(), &self.source, Interest(READ | WRITE), deadline).await
    }

    /// Returns the number of bytes passed to the kernel, modulo 2³².
    pub(crate) fn sent(&self) -> u32 {
        self.sent.get()
    }

    /// Returns the number of bytes that the peer has not acknowledged. Costs a system call.
    pub(crate) fn queued(&self) -> u32 {
        match &self.transport {
            Transport::Socket(socket) => sys::send_queue_bytes(socket),
            #[cfg(test)]
            Transport::Sim(_) => 0,
        }
    }

    fn count_sent(&self, bytes: usize) {
        self.sent.set(self.sent.get().wrapping_add(bytes as u32));
    }

    /// Reads available bytes: `None` if there are none, 0 at the end.
    pub fn try_read(&self, buffer: &mut [u8]) -> Result<Option<usize>, Fault> {
        if self.source.ready() & READ == 0 {
            return Ok(None);
        }
        match self.recv(buffer) {
            Ok(len) => {
                // A short read has emptied the socket, and the next byte causes a new edge; but an end that
                // was already reported does not.
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

    /// Writes as many bytes as the socket accepts, which may be 0. `more` tells the kernel that the rest of a
    /// packet follows (`MSG_MORE`).
    pub fn try_write(&self, parts: &[&[u8]], more: bool) -> Result<usize, Fault> {
        if self.source.ready() & WRITE == 0 {
            return Ok(0);
        }
        match &self.bucket {
            None => self.finish_write(self.send(parts, more)),
            Some(bucket) => self.write_limited(bucket, parts, more),
        }
    }

    /// Like [`Stream::try_write`], within the bandwidth limit.
    fn write_limited(&self, bucket: &ResponseBucket, parts: &[&[u8]], more: bool) -> Result<usize, Fault> {
        let Some(mut room) = self.permitted_bytes(bucket) else { return Ok(0) };
        let mut cut = Vec::with_capacity(parts.len());
        for part in parts {
            cut.push(&part[..part.len().min(room)]);
            room -= cut[cut.len() - 1].len();
        }
        cut.retain(|part| !part.is_empty());
        // Bytes held back by the bucket do not follow at once.
        let sent = self.finish_write(self.send(&cut, more && room > 0))?;
        bucket.spend(sent);
        Ok(sent)
    }

    /// Returns the number of bytes that the bandwidth limit permits. If `None`, the stream becomes writable
    /// when the bucket has refilled.
    fn permitted_bytes(&self, bucket: &ResponseBucket) -> Option<usize> {
        match bucket.available_bytes(self.core().now()) {
            // Permit a write, which reports that the connection is gone.
            0 if self.source.is_gone() => Some(1),
            0 => {
                self.source.clear(WRITE);
                bucket.pause(self.core(), &self.source, WRITE);
                None
            }
            room => Some(room),
        }
    }

    /// Sets or removes the bandwidth limit.
    pub(crate) fn set_bucket(&mut self, bucket: Option<Box<ResponseBucket>>) {
        let was_paused = self.bucket.take().is_some_and(|bucket| bucket.is_paused());
        self.bucket = bucket;
        if was_paused {
            // The timer of the old bucket is gone; the kernel tells whether there is room.
            self.source.ready.set(self.source.ready() | WRITE);
        }
    }

    /// Returns the bandwidth limit.
    pub(crate) fn bucket(&self) -> Option<&ResponseBucket> {
        self.bucket.as_deref()
    }

    /// Sends a part of a file from the page cache: 0 at its end, `None` if the send buffer is full.
    pub fn try_sendfile(
        &self,
        file: BorrowedFd<'_>,
        at: &mut u64,
        len: usize,
    ) -> Result<Option<usize>, Fault> {
        if self.source.ready() & WRITE == 0 {
            return Ok(None);
        }
        let len = match &self.bucket {
            None => len,
            Some(bucket) => match self.permitted_bytes(bucket) {
                None => return Ok(None),
                Some(room) => len.min(room),
            },
        };
        self.check_aborted()?;
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
            sent => {
                let sent = sent?;
                self.count_sent(sent);
                if let Some(bucket) = &self.bucket {
                    bucket.spend(sent);
                }
                Ok(Some(sent))
            }
        }
    }

    fn finish_write(&self, sent: Result<usize, Errno>) -> Result<usize, Fault> {
        match sent {
            Err(Errno::AGAIN) => {
                self.source.clear(WRITE);
                Ok(0)
            }
            Err(Errno::INTR) => Ok(0),
            sent => {
                let sent = sent?;
                self.count_sent(sent);
                Ok(sent)
            }
        }
    }

    fn recv(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        self.check_aborted()?;
        match &self.transport {
            Transport::Socket(socket) => {
                rustix::net::recv(socket, buffer, RecvFlags::DONTWAIT).map(|(len, _)| len)
            }
            #[cfg(test)]
            Transport::Sim(wire) => wire.recv(buffer),
        }
    }

    /// Fails if the server has aborted the connection.
    fn check_aborted(&self) -> Result<(), Errno> {
        if self.source.is_aborted() { Err(Errno::CONNABORTED) } else { Ok(()) }
    }

    fn send(&self, parts: &[&[u8]], more: bool) -> Result<usize, Errno> {
        self.check_aborted()?;
        let quiet = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let flags = if more { quiet | SendFlags::MORE } else { quiet };
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

    /// Waits for input or the end, at most until `deadline` of the core's clock.
    ///
    /// # Errors
    /// [`Fault::Timeout`] at the deadline.
    pub async fn readable(&self, deadline: Moment) -> Result<(), Fault> {
        wait::ready(self.core(), &self.source, Interest(READ), deadline).await
    }

    /// Waits until the stream is writable.
    ///
    /// # Errors
    /// [`Fault::Timeout`] at the deadline.
    pub async fn writable(&self, deadline: Moment) -> Result<(), Fault> {
        wait::ready(self.core(), &self.source, Interest(WRITE), deadline).await
    }

    /// Waits until the stream meets the interest.
    ///
    /// # Errors
    /// [`Fault::Timeout`] at the deadline.
    pub async fn ready_for(&self, interest: Interest, deadline: Moment) -> Result<(), Fault> {
        wait::ready(self.core(), &self.source, interest, deadline).await
    }

    /// Sets whether closing resets the connection, so that a message cannot seem complete.
    pub(crate) fn reset_on_close(&self, reset: bool) {
        if self.resets_on_close.replace(reset) == reset {
            return;
        }
        match &self.transport {
            Transport::Socket(socket) => {
                // Never fails for an open socket; Unix sockets ignore it, because they have no reset.
                let linger = reset.then_some(std::time::Duration::ZERO);
                let _ = sockopt::set_socket_linger(socket, linger);
            }
            #[cfg(test)]
            Transport::Sim(wire) => wire.reset_on_close(reset),
        }
    }

    /// Closes the sending side: the peer reads everything sent, then the end.
    pub fn shutdown_write(&self) {
        self.source.has_sent_end.set(true);
        match &self.transport {
            // Fails if the peer is already gone.
            Transport::Socket(socket) => _ = rustix::net::shutdown(socket, Shutdown::Write),
            #[cfg(test)]
            Transport::Sim(wire) => wire.shutdown_write(),
        }
    }
}

/// Creates a TCP socket for connections to or from this address, with TCP_NODELAY. On loopback, a congestion
/// control with pacing (BBR, the default of many servers) only adds delay: a file of 1 MiB takes three times
/// as long as with Reno, which every kernel has.
pub(crate) fn tcp_socket(at: IpAddr) -> std::io::Result<OwnedFd> {
    let family = if at.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = stream_socket(family)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    if at.to_canonical().is_loopback() {
        // On failure, the system's default stays in use.
        let _ = sockopt::set_tcp_congestion(&socket, "reno");
    }
    Ok(socket)
}

fn stream_socket(family: AddressFamily) -> std::io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(family, SocketType::STREAM, flags, None)?)
}
