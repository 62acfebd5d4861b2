//! Request bodies on their way to a worker.

use std::sync::Arc;

use net::{BodyPiece, Exchange, Fault, Pressure, SpillError, SpillFile, SpillQuota};
use ring::TicketError;

use crate::dispatcher::PendingRequest;
use crate::options::Options;

/// Bytes per write to, or read from, the temporary file.
const BLOCK_BYTES: usize = 128 * 1024;
/// Bytes of a short body that are kept in memory.
const AHEAD_BYTES_SHORT: usize = 32 * 1024;

/// A body: the part that was read from the client and not yet passed on. That is `ahead` from `given` on,
/// followed by the contents of the file, followed by `rest`.
pub(crate) struct Upload {
    ahead: Vec<u8>,
    /// Number of bytes of `ahead` that the worker has.
    sent: usize,
    /// The body from its beginning, if it is longer than what is kept in memory; `ahead` was read from it.
    file: Option<Box<SpillFile>>,
    /// Bytes for which the file had no room.
    overflow: Vec<u8>,
    /// Length of the body in bytes, if the client has sent all of it.
    length: Option<u64>,
    /// Whether the end of the body was passed on to the worker.
    ended: bool,
    /// Whether the body can be sent to another worker from its beginning.
    can_rewind: bool,
}

/// Extent to which a body is read before a worker gets the request.
pub(crate) struct ReadAhead {
    bytes_max: usize,
    /// Whether the request waits until the body was read; otherwise the worker gets the body as it arrives.
    waits_for_body: bool,
    quota: Option<Arc<SpillQuota>>,
}

impl ReadAhead {
    /// Reads as little as possible ahead.
    pub(crate) fn none() -> ReadAhead {
        ReadAhead { bytes_max: 0, waits_for_body: true, quota: None }
    }

    pub(crate) fn of(options: &Options) -> ReadAhead {
        let quota = options.spill.clone().filter(|_| options.settings.buffers_requests());
        ReadAhead {
            bytes_max: options.settings.body_ahead_bytes as usize,
            waits_for_body: options.settings.buffers_requests(),
            quota,
        }
    }
}

impl Upload {
    /// Creates the upload of a request without a body.
    pub(crate) fn empty() -> Upload {
        Upload {
            ahead: Vec::new(),
            sent: 0,
            file: None,
            overflow: Vec::new(),
            length: Some(0),
            ended: false,
            can_rewind: true,
        }
    }

    /// Reads the beginning of the body, or all of it if there is room in a temporary file, before a worker
    /// gets the request. If there was not enough room, the returned text says why.
    ///
    /// # Errors
    /// Errors of the client's connection.
    pub(crate) async fn begin(
        exchange: &mut Exchange<'_>,
        ahead: &ReadAhead,
    ) -> Result<(Upload, Option<SpillError>), Fault> {
        let mut upload = Upload::empty();
        loop {
            let piece = if ahead.waits_for_body || upload.ahead.is_empty() {
                exchange.read().await?
            } else {
                match exchange.try_read()? {
                    BodyPiece::Data(piece) => Some(piece),
                    BodyPiece::End => None,
                    BodyPiece::Pending => {
                        upload.length = None;
                        return Ok((upload, None));
                    }
                }
            };
            match piece {
                None => {
                    upload.length = Some(upload.ahead.len() as u64);
                    return Ok((upload, None));
                }
                Some(piece) => upload.ahead.extend_from_slice(piece),
            }
            let is_short = exchange.core().memory().pressure() >= Pressure::High;
            let bytes_max = if is_short { ahead.bytes_max.min(AHEAD_BYTES_SHORT) } else { ahead.bytes_max };
            if upload.ahead.len() >= bytes_max {
                upload.length = None;
                return match &ahead.quota {
                    None => Ok((upload, None)),
                    // Boxed, because this is rare.
                    Some(quota) => Box::pin(upload.spill(exchange, quota)).await,
                };
            }
        }
    }

    /// Reads the body into a file, as far as there is room.
    async fn spill(
        mut self,
        exchange: &mut Exchange<'_>,
        quota: &Arc<SpillQuota>,
    ) -> Result<(Upload, Option<SpillError>), Fault> {
        let core = exchange.core().clone();
        let announced = match exchange.request().body() {
            http::BodySize::Known(length) => length,
            _ => self.ahead.len() as u64,
        };
        let mut file = match SpillFile::create(&core, quota, announced).await {
            Ok(file) => Box::new(file),
            Err(why) => return Ok((self, Some(why))),
        };
        let mut read = false;
        let mut why = None;
        while !read && why.is_none() {
            while self.ahead.len() < BLOCK_BYTES && !read {
                match exchange.read().await? {
                    None => read = true,
                    Some(piece) => self.ahead.extend_from_slice(piece),
                }
            }
            let (mut bytes, written, result) = file.append(&core, std::mem::take(&mut self.ahead), 0).await;
            bytes.drain(..written);
            self.ahead = bytes;
            why = result.err();
        }
        self.overflow = std::mem::take(&mut self.ahead);
        self.length = read.then(|| file.len() + self.overflow.len() as u64);
        self.file = Some(file);
        Ok((self, why))
    }

    /// Whether the body is in a file.
    pub(crate) fn is_buffered(&self) -> bool {
        self.file.is_some()
    }

    /// Rewinds the body to its beginning, because another worker did not accept it.
    ///
    /// # Errors
    /// Errors of the file system.
    pub(crate) async fn rewind(&mut self, exchange: &Exchange<'_>) -> Result<(), Fault> {
        (self.sent, self.ended) = (0, false);
        if let Some(file) = &mut self.file {
            file.rewind();
            self.ahead = file.read(exchange.core(), std::mem::take(&mut self.ahead), BLOCK_BYTES).await?;
        }
        Ok(())
    }

    /// Returns the first bytes to pass on.
    pub(crate) fn ahead(&self) -> &[u8] {
        &self.ahead
    }

    /// Memory in use, in bytes.
    pub(crate) fn held_bytes(&self) -> usize {
        self.ahead.capacity()
    }

    /// Whether `ahead` holds the last bytes of the body.
    pub(crate) fn is_last(&self) -> bool {
        self.length.is_some() && !self.has_more()
    }

    /// Length of the body in bytes, if all of it was received.
    pub(crate) fn length(&self) -> Option<u64> {
        self.length
    }

    /// Whether the request can be passed to another worker from the beginning.
    pub(crate) fn can_rewind(&self) -> bool {
        self.can_rewind
    }

    /// Records that `taken` bytes were passed on with the request; if that is the entire body, so was its
    /// end.
    pub(crate) fn record_sent(&mut self, taken: usize) {
        self.sent = taken;
        self.ended = self.is_last() && taken == self.ahead.len();
    }

    /// Whether the worker has the entire body.
    pub(crate) fn is_sent(&self) -> bool {
        self.ended
    }

    /// Whether more input from the client is needed.
    pub(crate) fn waits_for_client(&self) -> bool {
        self.length.is_none() && !self.has_more() && self.sent == self.ahead.len()
    }

    /// Whether there is buffered data beyond `ahead`.
    fn has_more(&self) -> bool {
        !self.overflow.is_empty() || self.file.as_ref().is_some_and(|file| file.unread() > 0)
    }

    /// Transfers as much as currently possible from the client to the worker.
    ///
    /// # Errors
    /// Errors of the client's connection, or of the file system.
    pub(crate) async fn transfer(
        &mut self,
        exchange: &mut Exchange<'_>,
        pending: &PendingRequest,
    ) -> Result<(), Fault> {
        while !self.ended {
            if self.sent < self.ahead.len() || self.is_last() {
                let rest = &self.ahead[self.sent..];
                match pending.push(rest, self.is_last()) {
                    Ok(taken) if taken < rest.len() => {
                        self.sent += taken;
                        return Ok(());
                    }
                    Ok(taken) => {
                        self.sent += taken;
                        self.ended = self.is_last();
                    }
                    // The end of the response gives the reason.
                    Err(TicketError::Void | TicketError::WorkerFault(_)) => self.ended = true,
                }
                continue;
            }
            if self.has_more() {
                self.load_next(exchange).await?;
                continue;
            }
            match exchange.try_read()? {
                BodyPiece::Pending => return exchange.flush().await,
                BodyPiece::End => self.length = Some(0),
                BodyPiece::Data(piece) => {
                    self.can_rewind = false;
                    self.sent = 0;
                    self.ahead.clear();
                    self.ahead.extend_from_slice(piece);
                }
            }
        }
        if !exchange.request().method().is_idempotent() {
            // The request cannot be retried.
            self.file = None;
        }
        Ok(())
    }

    /// Loads the next piece of the buffered data into `ahead`.
    async fn load_next(&mut self, exchange: &Exchange<'_>) -> Result<(), Fault> {
        self.sent = 0;
        match &mut self.file {
            Some(file) if file.unread() > 0 => {
                let into = std::mem::take(&mut self.ahead);
                // Boxed, because this is rare.
                self.ahead = Box::pin(file.read(exchange.core(), into, BLOCK_BYTES)).await?;
            }
            _ => {
                self.can_rewind = false;
                self.ahead = std::mem::take(&mut self.overflow);
            }
        }
        Ok(())
    }
}
