//! A connection's bytes out: collected, written as far as the client takes them, and sent from files.

use std::os::fd::BorrowedFd;

use crate::conn::Conn;
use crate::fault::Fault;
use crate::pump::COPIED_BYTES_MAX;

/// One sendfile call.
const SENDFILE_BYTES_MAX: u64 = 1024 * 1024;

impl Conn {
    /// Adds to what will be written; writes when that has grown large.
    pub(crate) async fn push(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        if self.work.out.backlog() + bytes.len() <= self.out_bytes_max() {
            self.work.out.extend_from_slice(bytes);
            self.weigh();
            return Ok(());
        }
        self.write_out(bytes, false).await
    }

    /// The same for bytes that stay where they are: a large piece is written from there, without being copied first.
    pub(crate) async fn push_from(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        match bytes.len() >= COPIED_BYTES_MAX {
            true => self.write_out(bytes, false).await,
            false => self.push(bytes).await,
        }
    }

    /// Writes everything collected so far.
    pub(crate) async fn flush(&mut self) -> Result<(), Fault> {
        if !self.work.out.is_empty() || self.overflow.is_some() {
            self.write_out(b"", false).await?;
        }
        while !self.link.try_flush()? {
            self.wait_writable().await?;
        }
        Ok(())
    }

    /// Writes what the client takes now; true where nothing is left. What is sent counts as moved by the next
    /// [`Conn::moved`].
    pub(crate) fn flush_now(&mut self) -> Result<bool, Fault> {
        let backlog = self.backlog();
        let flushed = self.try_flush()?;
        self.moved_bytes += backlog.saturating_sub(self.backlog());
        Ok(flushed)
    }

    /// Writes what was collected, then `bytes`. With `more`, the kernel holds a last partial packet back.
    /// Dropped half-way, it has forgotten how much of `bytes` went out, but not of what was collected.
    async fn write_out(&mut self, bytes: &[u8], more: bool) -> Result<(), Fault> {
        if self.overflow.is_some() {
            // Boxed, as it is seldom.
            Box::pin(self.drain()).await?;
        }
        let mut bytes_at = 0;
        loop {
            let rest = &bytes[bytes_at..];
            if self.work.out.is_empty() && rest.is_empty() {
                return Ok(());
            }
            let (sent, of_bytes) = self.work.out.try_send(&mut self.link, rest, more)?;
            bytes_at += of_bytes;
            match sent {
                0 => self.wait_writable().await?,
                sent => self.moved(sent).await,
            }
        }
    }

    /// Writes what the client takes now; true where nothing is left.
    pub(crate) fn try_flush(&mut self) -> Result<bool, Fault> {
        if self.overflow.is_some() && !self.try_drain()? {
            return Ok(false);
        }
        self.work.out.try_flush(&mut self.link)
    }

    /// Bytes collected and not written yet.
    pub(crate) fn backlog(&self) -> usize {
        self.work.out.backlog()
    }

    /// Adds to what will be written, without waiting: a large piece goes out from where it stands, as far as the
    /// client takes it now; the rest is kept, however much that is.
    pub(crate) fn offer(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        match self.overflow.is_some() {
            // The file is sent first.
            true => self.work.out.keep(bytes),
            false => self.work.out.offer(&mut self.link, bytes)?,
        }
        self.weigh();
        Ok(())
    }

    /// Waits after a write for which there was no room, until it is worth trying again. Fails where the client has taken
    /// nothing for too long.
    pub(crate) async fn wait_writable(&mut self) -> Result<(), Fault> {
        self.settle();
        let patience_ms = self.patience_ms();
        self.progress.room(self.link.stream(), patience_ms).await
    }

    /// Sends `len` bytes of a file, after what was collected, and adds those sent to `total`.
    pub(crate) async fn send_file(
        &mut self,
        file: BorrowedFd<'_>,
        mut at: u64,
        len: u64,
        total: &mut u64,
    ) -> Result<(), Fault> {
        let end = at + len;
        self.write_out(b"", len > 0).await?;
        while at < end {
            let part = (end - at).min(SENDFILE_BYTES_MAX) as usize;
            match self.link.try_sendfile(file, &mut at, part)? {
                Some(0) => return Err(Fault::Broken("file shrank while it was sent")),
                Some(sent) => {
                    // Not all of it at once: the client may go away in the middle.
                    *total += sent as u64;
                    self.moved(sent).await;
                }
                None => self.wait_writable().await?,
            }
        }
        Ok(())
    }
}
