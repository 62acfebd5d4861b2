//! Output that a slow client has not taken, moved from memory to a temporary file.
//!
//! Bytes of the file come before those in [`crate::work::ConnectionBuffers::out`]: what is collected there goes to the file as a whole,
//! and as long as the file holds anything, nothing passes it.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use http::framing::Framing;

use crate::conn::{Conn, ResponseState};
use crate::exchange::Exchange;
use crate::fault::Fault;
use crate::memory::Pressure;
use crate::spill::{Overflow, SpillError, SpillFile, SpillQuota};
use crate::stream::{self, Interest, Stream};

/// Once a file is in use, bytes are collected up to here before they are written to it.
pub const SPILL_BLOCK_BYTES: usize = 256 * 1024;
/// At the end of a response, less than this stays in memory.
const REST_BYTES: usize = 16 * 1024;
/// Bytes sent from a file before others on the core have their turn.
const TURN_BYTES: u64 = 1024 * 1024;
/// A client that is behind gets so long to make room before a file is begun: one that reads as fast as it can costs no
/// disk.
const GRACE_MS: u64 = 5;

impl Conn {
    /// Whether a file holds output.
    pub(crate) fn overflows(&self) -> bool {
        self.overflow.is_some()
    }

    /// Moves what was collected to the connection's file. What could not be moved stays where it is.
    pub(crate) async fn spill(&mut self, quota: &Arc<SpillQuota>) -> Result<(), SpillError> {
        if self.backlog() == 0 {
            return Ok(());
        }
        let core = self.stream.core().clone();
        let announced = match self.reply {
            ResponseState::Body(Framing::Length(left)) => left,
            _ => 0,
        };
        let bytes = announced.saturating_add(self.backlog() as u64);
        let overflow = match &mut self.overflow {
            Some(overflow) => overflow,
            none => {
                let file = SpillFile::create(&core, quota, bytes).await?;
                none.insert(Box::new(Overflow { file, writing: false }))
            }
        };
        let (bytes, from) = (std::mem::take(&mut self.work.out), std::mem::take(&mut self.work.out_at));
        overflow.writing = true;
        let (bytes, written, result) = overflow.file.append(&core, bytes, from).await;
        overflow.writing = false;
        self.work.out = bytes;
        self.work.out_at = written;
        if self.backlog() == 0 {
            self.work.out.clear();
            self.work.out_at = 0;
            if self.pressure() >= Pressure::High {
                self.work.out = Vec::new();
            }
        }
        self.weigh();
        if self.overflow.as_ref().is_some_and(|overflow| overflow.file.is_empty()) {
            self.overflow = None;
        }
        result
    }

    /// The response is complete: what is left of it in memory goes to the file, too.
    pub(crate) async fn spill_rest(&mut self) {
        let Some(overflow) = &self.overflow else { return };
        let quota = overflow.file.quota().clone();
        if self.backlog() > REST_BYTES {
            // What it does not take stays in memory.
            let _ = self.spill(&quota).await;
        }
        // The client may take hours: no memory stays behind but what is in use.
        self.work.out.drain(..self.work.out_at);
        self.work.out_at = 0;
        self.work.out.shrink_to_fit();
        self.weigh();
    }

    /// Sends what the client takes now of the file; true where nothing is left of it.
    pub(crate) fn try_drain(&mut self) -> Result<bool, Fault> {
        let mut turn_bytes = 0;
        loop {
            let Some(overflow) = &mut self.overflow else { return Ok(true) };
            if overflow.writing {
                return Err(Fault::Gone);
            }
            if overflow.file.unread() == 0 {
                self.overflow = None;
                return Ok(true);
            }
            if turn_bytes >= TURN_BYTES {
                return Ok(false);
            }
            let core = self.stream.core().clone();
            let Some((file, mut at, len)) = overflow.file.window(&core) else { return Ok(false) };
            match self.stream.try_sendfile(file, &mut at, len)? {
                None => return Ok(false),
                Some(0) => return Err(Fault::Broken("a temporary file shrank")),
                Some(sent) => {
                    turn_bytes += sent as u64;
                    overflow.file.sent(sent as u64);
                    self.moved_bytes += sent;
                }
            }
        }
    }

    /// Sends all of the file.
    pub(crate) async fn drain(&mut self) -> Result<(), Fault> {
        loop {
            let before = self.overflow_bytes();
            if self.try_drain()? {
                return Ok(());
            }
            match before - self.overflow_bytes() {
                0 if self.is_loading() => poll_fn(|_| self.poll_loaded()).await,
                0 => self.wait_writable().await?,
                _ => self.moved(0).await,
            }
        }
    }

    /// Bytes in the file that were not sent.
    pub(crate) fn overflow_bytes(&self) -> u64 {
        self.overflow.as_ref().map_or(0, |overflow| overflow.file.unread())
    }

    /// Whether the next bytes to send are being loaded from a disk.
    fn is_loading(&self) -> bool {
        self.overflow.as_ref().is_some_and(|overflow| overflow.file.loading().is_some())
    }

    fn has_loaded(&self) -> bool {
        self.overflow.as_ref().is_some_and(|overflow| overflow.file.loading() == Some(true))
    }

    fn poll_loaded(&self) -> Poll<()> {
        if self.has_loaded() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// What of `client` the socket can be waited for: while bytes to send come from a disk, that it could take more is no
    /// news.
    fn waitable(&self, client: Interest) -> Interest {
        if self.is_loading() { client.without_write() } else { client }
    }
}

impl Exchange<'_> {
    /// Moves what waits to be sent to a temporary file, which the client is then sent from. A client that was not far
    /// behind until now first gets a moment to make room. Call it where [`Exchange::backlog`] is more than is to be kept in
    /// memory.
    ///
    /// # Errors
    /// Within, why it stays in memory; without, those of [`Exchange::try_flush`].
    pub async fn spill(&mut self, quota: &Arc<SpillQuota>) -> Result<Result<(), SpillError>, Fault> {
        if !self.conn.overflows() {
            let before = self.backlog();
            if self.try_flush()? || self.backlog() < before || self.is_writable_soon().await {
                self.try_flush()?;
                return Ok(Ok(()));
            }
        }
        Ok(self.conn.spill(quota).await)
    }

    /// Lets others on the core have their turn, where much was sent from a temporary file since they had it.
    pub async fn take_turns(&mut self) {
        self.conn.moved(0).await;
    }

    /// Whether a temporary file holds a part of what waits to be sent.
    #[must_use]
    pub fn is_spilling(&self) -> bool {
        self.conn.overflows()
    }

    /// Bytes that wait to be sent, in memory and in a temporary file.
    #[must_use]
    pub fn unsent(&self) -> u64 {
        self.backlog() as u64 + self.conn.overflow_bytes()
    }

    async fn is_writable_soon(&self) -> bool {
        let core = self.core().clone();
        let until_ms = core.now_ms() + GRACE_MS;
        let mut nap = std::pin::pin!(core.sleep(GRACE_MS));
        poll_fn(|context| {
            if self.poll_client(Interest::of(false, true)) {
                return Poll::Ready(true);
            }
            nap.as_mut().poll(context).map(|()| core.now_ms() < until_ms)
        })
        .await
    }

    /// Waits until the client's connection or another stream can do what is wanted of it.
    ///
    /// # Errors
    /// [`Fault::Timeout`] at the deadline.
    pub async fn either(
        &self,
        client: Interest,
        other: (&Stream, Interest),
        deadline_ms: u64,
    ) -> Result<(), Fault> {
        let client = (&self.conn.stream, self.conn.waitable(client));
        stream::either(client, other, deadline_ms, || self.conn.has_loaded()).await
    }

    /// Whether the client's connection can do what is wanted of it now. If not, the current task runs again when it
    /// can: for futures that wait for more than streams.
    #[must_use]
    pub fn poll_client(&self, client: Interest) -> bool {
        self.conn.has_loaded() || stream::is_met_or_waits(&self.conn.stream, self.conn.waitable(client))
    }
}
