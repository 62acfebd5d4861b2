//! A connection's bytes out: collected, written as far as the client takes them, and sent from files.

use std::os::fd::BorrowedFd;

use crate::conn::Conn;
use crate::fault::Fault;

/// A piece of a body at least this large is written from where it stands instead of being copied first.
const COPIED_BYTES_MAX: usize = 16 * 1024;
/// One sendfile call.
const SENDFILE_BYTES_MAX: u64 = 1024 * 1024;
/// How often a connection that waits for its client to read looks whether memory is short by now.
const LOOK_MS: u64 = 2_000;

impl Conn {
    /// Adds to what will be written; writes when that has grown large.
    pub(crate) async fn push(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        if self.work.out.len() + bytes.len() <= self.out_bytes_max() {
            self.work.out.extend_from_slice(bytes);
            self.weigh();
            return Ok(());
        }
        self.write_out(bytes, false).await
    }

    /// Writes everything collected so far.
    pub(crate) async fn flush(&mut self) -> Result<(), Fault> {
        if !self.work.out.is_empty() || self.overflows() {
            self.write_out(b"", false).await?;
        }
        while !self.link.try_flush()? {
            self.wait_writable().await?;
        }
        Ok(())
    }

    /// Writes what was collected, then `bytes`. With `more`, the kernel holds a last partial packet back.
    /// Dropped half-way, it has forgotten how much of `bytes` went out, but not of what was collected.
    async fn write_out(&mut self, bytes: &[u8], more: bool) -> Result<(), Fault> {
        if self.overflows() {
            // Boxed, as it is seldom.
            Box::pin(self.drain()).await?;
        }
        let mut bytes_at = 0;
        loop {
            let (out, rest) = (&self.work.out[self.work.out_at..], &bytes[bytes_at..]);
            let sent = match (out.is_empty(), rest.is_empty()) {
                (true, true) => break,
                (false, true) => self.link.try_write(&[out], more)?,
                (true, false) => self.link.try_write(&[rest], more)?,
                (false, false) => self.link.try_write(&[out, rest], more)?,
            };
            let of_out = sent.min(out.len());
            self.work.out_at += of_out;
            bytes_at += sent - of_out;
            match sent {
                0 => self.wait_writable().await?,
                sent => self.moved(sent).await,
            }
        }
        self.work.out.clear();
        self.work.out_at = 0;
        Ok(())
    }

    /// Writes what the client takes now; true where nothing is left.
    pub(crate) fn try_flush(&mut self) -> Result<bool, Fault> {
        if self.overflows() && !self.try_drain()? {
            return Ok(false);
        }
        while self.backlog() > 0 {
            let sent = self.link.try_write(&[&self.work.out[self.work.out_at..]], false)?;
            if sent == 0 {
                return Ok(false);
            }
            self.work.out_at += sent;
        }
        self.work.out.clear();
        self.work.out_at = 0;
        self.link.try_flush()
    }

    /// Bytes collected and not written yet.
    pub(crate) fn backlog(&self) -> usize {
        self.work.out.len() - self.work.out_at
    }

    /// Adds to what will be written, without waiting: a large piece goes out from where it stands, as far as the
    /// client takes it now; the rest is kept, however much that is.
    pub(crate) fn offer(&mut self, mut bytes: &[u8]) -> Result<(), Fault> {
        if self.backlog() + bytes.len() > COPIED_BYTES_MAX && !self.overflows() {
            let out = &self.work.out[self.work.out_at..];
            let sent = match out.is_empty() {
                true => self.link.try_write(&[bytes], false)?,
                false => self.link.try_write(&[out, bytes], false)?,
            };
            let of_out = sent.min(out.len());
            self.work.out_at += of_out;
            bytes = &bytes[sent - of_out..];
        }
        // What is left moves to the front, once as much has gone out: so no more bytes are moved than are sent.
        if self.work.out_at >= COPIED_BYTES_MAX.max(self.backlog()) || self.backlog() == 0 {
            self.work.out.drain(..self.work.out_at);
            self.work.out_at = 0;
        }
        self.work.out.extend_from_slice(bytes);
        self.weigh();
        Ok(())
    }

    pub(crate) async fn wait_writable(&mut self) -> Result<(), Fault> {
        let since_ms = self.now_ms();
        loop {
            self.settle();
            let until_ms = since_ms.saturating_add(self.patience_ms());
            match self.link.stream().writable(until_ms.min(self.after_ms(LOOK_MS))).await {
                Err(Fault::Timeout) if self.now_ms() < since_ms.saturating_add(self.patience_ms()) => {}
                done => return done,
            }
        }
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
