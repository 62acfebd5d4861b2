//! Connections to clients and to other servers.

use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use rustix::io::Errno;
use times::Moment;

use crate::bandwidth::ResponseBucket;
use crate::core::Core;
use crate::fault::Fault;
use crate::stream::Stream;
use crate::tls::{ServerConnection, TlsSession, TlsStream};
use crate::wait::Interest;

/// Bytes of a file that one call sends over TLS: four records, sent in one system call.
const TLS_FILE_BYTES: usize = 64 * 1024;

/// A cleartext or TLS connection with a common interface.
///
/// Use [`Link::has_input`] and not the socket to check for input: TLS may hold decrypted bytes although the
/// socket has nothing to read.
pub enum Link {
    /// A cleartext connection.
    Plain(Stream),
    /// A TLS connection. Boxed to keep idle cleartext connections small.
    Tls(Box<TlsStream>),
}

impl Link {
    /// Returns the underlying socket, to wait on.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        match self {
            Link::Plain(stream) => stream,
            Link::Tls(tls) => tls.stream(),
        }
    }

    /// Sets or removes the bandwidth limit of writes.
    pub(crate) fn set_bucket(&mut self, bucket: Option<Box<ResponseBucket>>) {
        match self {
            Link::Plain(stream) => stream.set_bucket(bucket),
            Link::Tls(tls) => tls.set_bucket(bucket),
        }
    }

    /// Returns the same connection with TLS on it.
    pub(crate) fn with_tls(self, tls: Box<ServerConnection>, session: Rc<TlsSession>) -> Link {
        match self {
            Link::Plain(stream) => Link::Tls(Box::new(TlsStream::accepted(stream, tls, session))),
            secured => secured,
        }
    }

    /// Returns the TLS session of a client's connection.
    #[must_use]
    pub fn session(&self) -> Option<&Rc<TlsSession>> {
        match self {
            Link::Plain(_) => None,
            Link::Tls(tls) => tls.session(),
        }
    }

    /// Whether the peer has agreed to HTTP/2 (ALPN).
    #[must_use]
    pub fn has_negotiated_http2(&self) -> bool {
        matches!(self, Link::Tls(tls) if tls.has_negotiated_http2())
    }

    /// Returns the memory held by TLS, in bytes.
    pub(crate) fn weight_bytes(&self) -> usize {
        match self {
            Link::Plain(_) => 0,
            Link::Tls(tls) => tls.weight_bytes(),
        }
    }

    /// Returns the core that owns the connection.
    #[must_use]
    pub fn core(&self) -> &Core {
        self.stream().core()
    }

    /// Returns the events to wait for in order to read or write, as `wanted`.
    #[must_use]
    pub fn interest(&self, wanted: Interest) -> Interest {
        match self {
            Link::Plain(_) => wanted,
            Link::Tls(tls) => tls.interest(wanted),
        }
    }

    /// Whether a read would return bytes, the end or an error, as far as known without a system call.
    #[must_use]
    pub fn has_input(&self) -> bool {
        match self {
            Link::Plain(stream) => stream.is_readable(),
            Link::Tls(tls) => tls.has_input() || tls.stream().is_readable(),
        }
    }

    /// Whether the interest is met by decrypted bytes that the socket does not report.
    pub(crate) fn is_met_by_buffers(&self, interest: Interest) -> bool {
        matches!(self, Link::Tls(tls) if interest.includes_read() && tls.has_input())
    }

    /// Waits for input or the end, at most until `deadline` of the core's clock.
    ///
    /// # Errors
    /// [`Fault::Timeout`] at the deadline.
    pub async fn readable(&self, deadline: Moment) -> Result<(), Fault> {
        if self.has_input() {
            return Ok(());
        }
        self.stream().ready_for(self.interest(Interest::READ), deadline).await
    }

    /// Reads available bytes: `None` if there are none, 0 at the end.
    ///
    /// # Errors
    /// Fails if the peer is gone or has violated the TLS protocol.
    pub fn try_read(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Fault> {
        match self {
            Link::Plain(stream) => stream.try_read(buffer),
            Link::Tls(tls) => tls.try_read(buffer),
        }
    }

    /// Writes as much as possible of one or two non-empty pieces; returns 0 if the send buffer is full.
    /// `more` announces that further bytes follow at once, so that an incomplete packet need not be sent yet.
    ///
    /// # Errors
    /// Fails if the peer is gone.
    pub fn try_write(&mut self, parts: &[&[u8]], more: bool) -> Result<usize, Fault> {
        match self {
            Link::Plain(stream) => stream.try_write(parts, more),
            Link::Tls(tls) => {
                tls.try_write(parts.first().unwrap_or(&&b""[..]), parts.get(1).unwrap_or(&&b""[..]), more)
            }
        }
    }

    /// Sends a part of a file: 0 at the end of the file, `None` if the send buffer is full. On a cleartext
    /// connection, the kernel sends it from the page cache; for TLS it is read and encrypted.
    ///
    /// # Errors
    /// Fails if the peer is gone or the file cannot be read.
    pub fn try_sendfile(
        &mut self,
        file: BorrowedFd<'_>,
        at: &mut u64,
        len: usize,
    ) -> Result<Option<usize>, Fault> {
        match self {
            Link::Plain(stream) => stream.try_sendfile(file, at, len),
            Link::Tls(tls) => encrypt_file(tls, file, at, len),
        }
    }

    /// Whether written bytes have not been passed to the kernel; flush when the socket is writable.
    #[must_use]
    pub fn has_pending_output(&self) -> bool {
        match self {
            Link::Plain(_) => false,
            Link::Tls(tls) => tls.has_pending_output(),
        }
    }

    /// Passes written bytes to the kernel; returns true if nothing is left.
    ///
    /// # Errors
    /// Fails if the peer is gone.
    pub fn try_flush(&mut self) -> Result<bool, Fault> {
        match self {
            Link::Plain(_) => Ok(true),
            Link::Tls(tls) => tls.flush(),
        }
    }

    /// Whether the connection may stay in a pool: the peer has not closed it and has sent no unrequested
    /// bytes. Costs a system call only if the socket has reported an event.
    pub fn is_reusable(&mut self) -> bool {
        // The socket does not report unread bytes that TLS has already decrypted.
        if matches!(self, Link::Plain(stream) if !stream.has_pending_event()) {
            return true;
        }
        // An event does not imply input: the last read may have filled its buffer exactly, or the peer has
        // sent a session ticket.
        matches!(self.try_read(&mut [0]), Ok(None))
    }

    /// Sends close_notify over TLS, which distinguishes an orderly end from truncation.
    pub(crate) fn send_close_notify(&mut self) {
        if let Link::Tls(tls) = self {
            tls.send_close_notify();
        }
    }

    /// Closes the sending side: the peer reads everything sent, then the end.
    pub fn shutdown_write(&mut self) {
        self.send_close_notify();
        self.stream().shutdown_write();
    }
}

/// Encrypts a part of a file. Not inlined, so that the buffer is on the stack and not part of the
/// connection's future.
#[inline(never)]
fn encrypt_file(
    tls: &mut TlsStream,
    file: BorrowedFd<'_>,
    at: &mut u64,
    len: usize,
) -> Result<Option<usize>, Fault> {
    // Reading is useless while TLS has no room.
    if !tls.has_room()? {
        return Ok(None);
    }
    let mut room = [MaybeUninit::<u8>::uninit(); TLS_FILE_BYTES];
    match rustix::io::pread(file, &mut room[..len.min(TLS_FILE_BYTES)], *at) {
        Ok(([], _)) => tls.flush().map(|_| Some(0)),
        Ok((bytes, _)) => {
            let taken = tls.try_write(bytes, b"", false)?;
            *at += taken as u64;
            Ok((taken > 0).then_some(taken))
        }
        Err(Errno::INTR) => Ok(None),
        Err(errno) => Err(Fault::Io(errno.into())),
    }
}
