//! A connection to another server.

use crate::fault::Fault;
use crate::stream::{Interest, Stream};
use crate::tls::TlsStream;

/// A connection that carries bytes in the clear or through TLS; whoever uses it need not know which.
pub enum Link {
    /// In the clear.
    Plain(Stream),
    /// Through TLS.
    Tls(TlsStream),
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

    /// What to wait for in order to read or to write.
    #[must_use]
    pub fn interest(&self, read: bool, write: bool) -> Interest {
        match self {
            Link::Plain(_) => Interest::of(read, write),
            Link::Tls(tls) => tls.interest(read, write),
        }
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

    /// Writes what fits of two pieces, the first of which is not empty: 0 where nothing does now.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn try_write(&mut self, first: &[u8], second: &[u8]) -> Result<usize, Fault> {
        match self {
            Link::Plain(stream) if second.is_empty() => stream.try_write(&[first], false),
            Link::Plain(stream) => stream.try_write(&[first, second], false),
            Link::Tls(tls) => tls.try_write(first, second),
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

    /// Closes the sending side: the peer reads what was sent, then the end.
    pub fn shutdown_write(&mut self) {
        match self {
            Link::Plain(stream) => stream.shutdown_write(),
            Link::Tls(tls) => tls.shutdown_write(),
        }
    }
}
