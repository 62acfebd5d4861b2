//! A connection to a client or to another server.

use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use rustix::io::Errno;

use crate::bandwidth::ResponseBucket;
use crate::core::Core;
use crate::fault::Fault;
use crate::stream::Stream;
use crate::tls::{ServerConnection, TlsSession, TlsStream};
use crate::wait::Interest;

/// Bytes of a file that one call sends through TLS: four records, which leave in one call of the kernel's.
const TLS_FILE_BYTES: usize = 64 * 1024;

/// A connection that carries bytes in the clear or through TLS; whoever uses it need not know which.
///
/// Whether it can be read is asked of the link ([`Link::has_input`]) and never of its socket: TLS may hold decrypted bytes
/// while the socket has nothing new.
pub enum Link {
    /// In the clear.
    Plain(Stream),
    /// Through TLS. Boxed, because an idle connection in the clear must not pay for it.
    Tls(Box<TlsStream>),
}

impl Link {
    /// The socket under it: what to wait on.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        match self {
            Link::Plain(stream) => stream,
            Link::Tls(tls) => tls.stream(),
        }
    }

    /// Limits how fast it is written from now on, or no longer.
    pub(crate) fn set_bucket(&mut self, bucket: Option<Box<ResponseBucket>>) {
        match self {
            Link::Plain(stream) => stream.set_bucket(bucket),
            Link::Tls(tls) => tls.set_bucket(bucket),
        }
    }

    /// The same connection, whose bytes go through TLS from now on.
    pub(crate) fn secured(self, tls: Box<ServerConnection>, session: Rc<TlsSession>) -> Link {
        match self {
            Link::Plain(stream) => Link::Tls(Box::new(TlsStream::accepted(stream, tls, session))),
            secured => secured,
        }
    }

    /// What is known of a client's connection through TLS.
    #[must_use]
    pub fn session(&self) -> Option<&Rc<TlsSession>> {
        match self {
            Link::Plain(_) => None,
            Link::Tls(tls) => tls.session(),
        }
    }

    /// Whether the peer has agreed to HTTP/2 (ALPN).
    #[must_use]
    pub fn has_agreed_to_http2(&self) -> bool {
        matches!(self, Link::Tls(tls) if tls.has_agreed_to_http2())
    }

    /// What TLS holds of memory for it, in bytes.
    pub(crate) fn weight_bytes(&self) -> usize {
        match self {
            Link::Plain(_) => 0,
            Link::Tls(tls) => tls.weight_bytes(),
        }
    }

    /// The core that it lives on.
    #[must_use]
    pub fn core(&self) -> &Core {
        self.stream().core()
    }

    /// What to wait for in order to read or to write.
    #[must_use]
    pub fn interest(&self, read: bool, write: bool) -> Interest {
        match self {
            Link::Plain(_) => Interest::of(read, write),
            Link::Tls(tls) => tls.interest(read, write),
        }
    }

    /// Whether a read would return something now, as far as is known without a system call: bytes, the end, or a fault.
    #[must_use]
    pub fn has_input(&self) -> bool {
        match self {
            Link::Plain(stream) => stream.is_readable(),
            Link::Tls(tls) => tls.has_input() || tls.stream().is_readable(),
        }
    }

    /// Whether this is wanted and TLS holds it: decrypted bytes, of which the socket knows nothing.
    pub(crate) fn holds(&self, interest: Interest) -> bool {
        matches!(self, Link::Tls(tls) if interest.is_to_read() && tls.has_input())
    }

    /// Waits until there is something to read, or the end; at most until `deadline_ms` of the core's clock.
    ///
    /// # Errors
    /// [`Fault::Timeout`] at the deadline.
    pub async fn readable(&self, deadline_ms: u64) -> Result<(), Fault> {
        if self.has_input() {
            return Ok(());
        }
        self.stream().ready_for(self.interest(true, false), deadline_ms).await
    }

    /// Reads what is there: `None` where nothing is, 0 at the end.
    ///
    /// # Errors
    /// The peer is gone, or has broken TLS.
    pub fn try_read(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Fault> {
        match self {
            Link::Plain(stream) => stream.try_read(buffer),
            Link::Tls(tls) => tls.try_read(buffer),
        }
    }

    /// Writes what fits of one or two pieces, none of which is empty: 0 where nothing does now. `more` announces that
    /// further bytes follow at once, so that a last packet that is not full need not be sent yet.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn try_write(&mut self, parts: &[&[u8]], more: bool) -> Result<usize, Fault> {
        match self {
            Link::Plain(stream) => stream.try_write(parts, more),
            Link::Tls(tls) => {
                tls.try_write(parts.first().unwrap_or(&&b""[..]), parts.get(1).unwrap_or(&&b""[..]), more)
            }
        }
    }

    /// Sends a part of a file: 0 at the file's end, `None` where nothing fits now. In the clear the kernel sends it from the
    /// page cache; for TLS it is read and encrypted.
    ///
    /// # Errors
    /// The peer is gone, or the file cannot be read.
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

    /// Whether bytes that were written have not been handed to the kernel yet: flush it when it can be written.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        match self {
            Link::Plain(_) => false,
            Link::Tls(tls) => tls.is_behind(),
        }
    }

    /// Whether all that was written has been handed to the kernel, as far as that takes it now.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn try_flush(&mut self) -> Result<bool, Fault> {
        match self {
            Link::Plain(_) => Ok(true),
            Link::Tls(tls) => tls.flush(),
        }
    }

    /// Whether the connection may stay in a pool: the peer has sent no unrequested bytes and has not closed it. Costs a
    /// system call only if the socket has reported something.
    pub fn is_fresh(&mut self) -> bool {
        // The socket does not report bytes that TLS has decrypted and nobody has read.
        if matches!(self, Link::Plain(stream) if !stream.has_news()) {
            return true;
        }
        // There may be nothing to read all the same: the last read filled its buffer exactly, or the peer has sent a TLS ticket.
        matches!(self.try_read(&mut [0]), Ok(None))
    }

    /// Announces that nothing more will be sent, before the connection is closed: TLS distinguishes this from a connection that was cut.
    pub(crate) fn announce_end(&mut self) {
        if let Link::Tls(tls) = self {
            tls.announce_end();
        }
    }

    /// Closes the sending side: the peer reads what was sent, then the end.
    pub fn shutdown_write(&mut self) {
        self.announce_end();
        self.stream().shutdown_write();
    }
}

/// Encrypts a part of a file. Its buffer is on the stack for one call, not in a connection's future.
#[inline(never)]
fn encrypt_file(
    tls: &mut TlsStream,
    file: BorrowedFd<'_>,
    at: &mut u64,
    len: usize,
) -> Result<Option<usize>, Fault> {
    // Nothing is read that could not be sent.
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
