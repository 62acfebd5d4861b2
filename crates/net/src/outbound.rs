//! Output of an HTTP/1 connection: buffered data and files.

use std::os::fd::BorrowedFd;

use http::append::append;

use crate::conn::Conn;
use crate::fault::Fault;
use crate::io_buffers::COPIED_BYTES_MAX;

/// Maximum length of one sendfile call.
const SENDFILE_BYTES_MAX: u64 = 1024 * 1024;

impl Conn {
    /// Appends to the output buffer; writes when it is full.
    pub(crate) async fn push(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        if self.buffers.out.backlog() + bytes.len() <= self.out_bytes_max() {
            append(&mut self.buffers.out, bytes);
            self.update_memory();
            return Ok(());
        }
        self.write_out(bytes, false).await
    }

    /// Like [`Conn::push`], for bytes that can be written in place: large pieces are not copied.
    pub(crate) async fn push_in_place(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        if bytes.len() >= COPIED_BYTES_MAX {
            self.write_out(bytes, false).await
        } else {
            self.push(bytes).await
        }
    }

    /// Writes all buffered output.
    pub(crate) async fn flush(&mut self) -> Result<(), Fault> {
        if !self.buffers.out.is_empty() || self.overflow.is_some() {
            self.write_out(b"", false).await?;
        }
        while !self.link.try_flush()? {
            self.wait_writable().await?;
        }
        Ok(())
    }

    /// Writes as much as the client accepts; returns true if nothing is left. Sent bytes are charged to the
    /// turn by the next [`Conn::consume_budget`].
    pub(crate) fn flush_now(&mut self) -> Result<bool, Fault> {
        let backlog = self.backlog();
        let flushed = self.try_flush()?;
        self.moved_bytes += backlog.saturating_sub(self.backlog());
        Ok(flushed)
    }

    /// Writes the buffered output, then `bytes`. With `more`, the kernel holds back an incomplete last
    /// packet. Not cancel-safe for `bytes`: how much of these was sent is lost, but not how much of the
    /// buffer.
    async fn write_out(&mut self, bytes: &[u8], more: bool) -> Result<(), Fault> {
        if self.overflow.is_some() {
            // Boxed, because it is rare.
            Box::pin(self.drain()).await?;
        }
        let mut bytes_at = 0;
        loop {
            let rest = &bytes[bytes_at..];
            if self.buffers.out.is_empty() && rest.is_empty() {
                return Ok(());
            }
            let (sent, of_bytes) = self.buffers.out.try_send(&mut self.link, rest, more)?;
            bytes_at += of_bytes;
            match sent {
                0 => self.wait_writable().await?,
                sent => self.consume_budget(sent).await,
            }
        }
    }

    /// Writes as much as the client accepts; returns true if nothing is left.
    pub(crate) fn try_flush(&mut self) -> Result<bool, Fault> {
        if self.overflow.is_some() && !self.try_drain()? {
            return Ok(false);
        }
        self.buffers.out.try_flush(&mut self.link)
    }

    /// Returns the number of buffered bytes.
    pub(crate) fn backlog(&self) -> usize {
        self.buffers.out.backlog()
    }

    /// Appends to the output without waiting: as much as possible of a large piece is sent in place, and the
    /// rest is buffered without limit.
    pub(crate) fn offer(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        match self.overflow.is_some() {
            // The temporary file is sent first.
            true => self.buffers.out.push_bytes(bytes),
            false => self.buffers.out.offer(&mut self.link, bytes)?,
        }
        self.update_memory();
        Ok(())
    }

    /// Waits after a write that found no room until a retry is worthwhile. Fails if the client has accepted
    /// nothing for too long.
    pub(crate) async fn wait_writable(&mut self) -> Result<(), Fault> {
        self.trim_buffers();
        let patience = self.stall_timeout();
        self.progress.wait_for_room(self.link.stream(), patience).await
    }

    /// Sends `len` bytes of a file after the buffered output, and adds the bytes sent to `total`.
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
                Some(0) => return Err(Fault::Failed("file shrank while it was sent")),
                Some(sent) => {
                    // Counted in steps, because the client may disconnect in the middle.
                    *total += sent as u64;
                    self.consume_budget(sent).await;
                }
                None => self.wait_writable().await?,
            }
        }
        Ok(())
    }
}
