//! Output spilled from memory to a temporary file, because the client reads slowly.
//!
//! The file's content precedes [`crate::buffer_pool::ConnectionBuffers::out`]: buffered output is moved to the file
//! as a whole, and is not sent while the file contains unsent data.

use std::sync::Arc;

use crate::conn::Conn;
use crate::fault::Fault;
use crate::memory::Pressure;
use crate::spill::{Overflow, SpillError, SpillFile, SpillQuota};

/// Size of the output buffer at which it is written to a file in use.
pub const SPILL_BLOCK_BYTES: usize = 256 * 1024;
/// Less than this stays in memory at the end of a response.
const SPILL_BYTES_MIN: usize = 16 * 1024;
/// Bytes sent from a file before the task yields to others of the core.
const TURN_BYTES: u64 = 1024 * 1024;

impl Conn {
    /// Moves the buffered output to the connection's file; `announced` bytes are still to be written. On
    /// failure, the remaining data stays in memory.
    pub(crate) async fn spill(&mut self, quota: &Arc<SpillQuota>, announced: u64) -> Result<(), SpillError> {
        if self.backlog() == 0 {
            return Ok(());
        }
        let core = self.link.core().clone();
        let bytes = announced.saturating_add(self.backlog() as u64);
        let overflow = match &mut *self.overflow {
            Some(overflow) => overflow,
            none => {
                let file = SpillFile::create(&core, quota, bytes).await?;
                none.insert(Box::new(Overflow { file, is_writing: false }))
            }
        };
        let (bytes, from) = self.buffers.out.take();
        overflow.is_writing = true;
        let (bytes, written, result) = overflow.file.append(&core, bytes, from).await;
        overflow.is_writing = false;
        self.buffers.out.restore(bytes, written);
        if self.pressure() >= Pressure::High {
            self.buffers.out.trim();
        }
        self.update_memory();
        if self.overflow.as_ref().is_some_and(|overflow| overflow.file.is_empty()) {
            *self.overflow = None;
        }
        result
    }

    /// Moves the rest of a complete response from memory to the file.
    pub(crate) async fn spill_remaining(&mut self) {
        let Some(overflow) = &*self.overflow else { return };
        let quota = overflow.file.quota().clone();
        if self.backlog() > SPILL_BYTES_MIN {
            // On failure, data stays in memory.
            let _ = self.spill(&quota, 0).await;
        }
        // The client may take hours, so release unused memory.
        self.buffers.out.trim();
        self.update_memory();
    }

    /// Sends as much of the file as the client accepts; returns true if nothing is left.
    pub(crate) fn try_drain(&mut self) -> Result<bool, Fault> {
        let mut turn_bytes = 0;
        loop {
            let Some(overflow) = &mut *self.overflow else { return Ok(true) };
            if overflow.is_writing {
                return Err(Fault::Disconnected);
            }
            if overflow.file.unread() == 0 {
                *self.overflow = None;
                return Ok(true);
            }
            if turn_bytes >= TURN_BYTES {
                return Ok(false);
            }
            let core = self.link.core().clone();
            let Some((file, mut at, len)) = overflow.file.window(&core) else { return Ok(false) };
            match self.link.try_sendfile(file, &mut at, len)? {
                None => return Ok(false),
                Some(0) => return Err(Fault::Failed("a temporary file shrank")),
                Some(sent) => {
                    turn_bytes += sent as u64;
                    overflow.file.sent(sent as u64);
                    self.moved_bytes += sent;
                }
            }
        }
    }

    /// Sends the whole file.
    pub(crate) async fn drain(&mut self) -> Result<(), Fault> {
        loop {
            let before = self.overflow.unread_bytes();
            if self.try_drain()? {
                return Ok(());
            }
            match before - self.overflow.unread_bytes() {
                0 if self.overflow.is_loading() => self.overflow.wait_loaded().await,
                0 => self.wait_writable().await?,
                _ => self.consume_budget(0).await,
            }
        }
    }
}
