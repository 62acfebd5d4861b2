//! A request's body on its way to a worker.

use std::sync::Arc;

use net::{BodyPiece, Exchange, Fault, Pressure, SpillError, SpillFile, SpillQuota};
use ring::Error;

use crate::dispatcher::PendingRequest;
use crate::options::Options;

/// Bytes that are written to a file, or read from it, together.
const BLOCK_BYTES: usize = 128 * 1024;
/// What is kept in memory of a body while that is short.
const AHEAD_BYTES_SHORT: usize = 32 * 1024;

/// A body: what of it has been read from the client and not yet been handed over. That is what `ahead` has beyond `given`,
/// then what the file has, then `rest`.
pub(crate) struct Upload {
    ahead: Vec<u8>,
    /// How much of `ahead` the worker has.
    given: usize,
    /// The body, from its beginning, where it is longer than what is kept in memory; `ahead` was read from there.
    file: Option<Box<SpillFile>>,
    /// What the file had no room for.
    rest: Vec<u8>,
    /// Bytes of the body, where the client has sent all of it.
    length: Option<u64>,
    /// Whether the worker's side knows its end.
    ended: bool,
    /// Whether it can be handed over again from its beginning.
    whole: bool,
}

/// How much of a body is read before a worker is asked.
pub(crate) struct Ahead {
    bytes_max: usize,
    /// Whether a worker is asked only then; otherwise it gets the body as it arrives.
    waits: bool,
    quota: Option<Arc<SpillQuota>>,
}

impl Ahead {
    /// As little as there can be.
    pub(crate) fn none() -> Ahead {
        Ahead { bytes_max: 0, waits: true, quota: None }
    }

    pub(crate) fn of(options: &Options) -> Ahead {
        let quota = options.spill.clone().filter(|_| options.request_buffering);
        Ahead { bytes_max: options.body_ahead_bytes, waits: options.request_buffering, quota }
    }
}

impl Upload {
    /// That of a request without one.
    pub(crate) fn empty() -> Upload {
        Upload {
            ahead: Vec::new(),
            given: 0,
            file: None,
            rest: Vec::new(),
            length: Some(0),
            ended: false,
            whole: true,
        }
    }

    /// Reads the beginning of the body, or all of it if there is room in a temporary file, before a worker gets the request.
    /// If there was not enough room, the returned error says why.
    ///
    /// # Errors
    /// The client's.
    pub(crate) async fn begin(
        x: &mut Exchange<'_>,
        ahead: &Ahead,
    ) -> Result<(Upload, Option<SpillError>), Fault> {
        let mut upload = Upload::empty();
        loop {
            let piece = match ahead.waits || upload.ahead.is_empty() {
                true => x.read().await?,
                false => match x.try_read()? {
                    BodyPiece::Data(piece) => Some(piece),
                    BodyPiece::End => None,
                    BodyPiece::Pending => {
                        upload.length = None;
                        return Ok((upload, None));
                    }
                },
            };
            match piece {
                None => {
                    upload.length = Some(upload.ahead.len() as u64);
                    return Ok((upload, None));
                }
                Some(piece) => upload.ahead.extend_from_slice(piece),
            }
            let is_short = x.core().memory().pressure() >= Pressure::High;
            let bytes_max = if is_short { ahead.bytes_max.min(AHEAD_BYTES_SHORT) } else { ahead.bytes_max };
            if upload.ahead.len() >= bytes_max {
                upload.length = None;
                return match &ahead.quota {
                    None => Ok((upload, None)),
                    // Boxed, as it is seldom.
                    Some(quota) => Box::pin(upload.spill(x, quota)).await,
                };
            }
        }
    }

    /// Reads all of the body into a file, as far as there is room.
    async fn spill(
        mut self,
        x: &mut Exchange<'_>,
        quota: &Arc<SpillQuota>,
    ) -> Result<(Upload, Option<SpillError>), Fault> {
        let core = x.core().clone();
        let announced = match x.request().body() {
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
                match x.read().await? {
                    None => read = true,
                    Some(piece) => self.ahead.extend_from_slice(piece),
                }
            }
            let (mut bytes, written, result) = file.append(&core, std::mem::take(&mut self.ahead), 0).await;
            bytes.drain(..written);
            self.ahead = bytes;
            why = result.err();
        }
        self.rest = std::mem::take(&mut self.ahead);
        self.length = read.then(|| file.len() + self.rest.len() as u64);
        self.file = Some(file);
        Ok((self, why))
    }

    /// Whether it is in a file.
    pub(crate) fn is_buffered(&self) -> bool {
        self.file.is_some()
    }

    /// The worker gets the body from its beginning; once more where another one did not take it.
    ///
    /// # Errors
    /// The file system's.
    pub(crate) async fn rewind(&mut self, x: &Exchange<'_>) -> Result<(), Fault> {
        (self.given, self.ended) = (0, false);
        if let Some(file) = &mut self.file {
            file.rewind();
            self.ahead = file.read(x.core(), std::mem::take(&mut self.ahead), BLOCK_BYTES).await?;
        }
        Ok(())
    }

    /// The first bytes to hand over.
    pub(crate) fn ahead(&self) -> &[u8] {
        &self.ahead
    }

    /// What it holds of memory.
    pub(crate) fn held_bytes(&self) -> usize {
        self.ahead.capacity()
    }

    /// Whether those, or the last piece of them, are all there is.
    pub(crate) fn is_last(&self) -> bool {
        self.length.is_some() && !self.has_more()
    }

    /// Bytes of the body, where all of it is here.
    pub(crate) fn length(&self) -> Option<u64> {
        self.length
    }

    /// Whether the request can be handed to another worker from the beginning.
    pub(crate) fn is_whole(&self) -> bool {
        self.whole
    }

    /// How much was taken with the request; with the last byte the end was, too.
    pub(crate) fn begun(&mut self, taken: usize) {
        self.given = taken;
        self.ended = self.is_last() && taken == self.ahead.len();
    }

    /// Whether the worker has all of it.
    pub(crate) fn is_given(&self) -> bool {
        self.ended
    }

    /// Whether the client is the one to wait for.
    pub(crate) fn waits_for_client(&self) -> bool {
        self.length.is_none() && !self.has_more() && self.given == self.ahead.len()
    }

    /// Whether more is here than `ahead`.
    fn has_more(&self) -> bool {
        !self.rest.is_empty() || self.file.as_ref().is_some_and(|file| file.unread() > 0)
    }

    /// Moves as much as can be moved now, from the client to the worker.
    ///
    /// # Errors
    /// The client's, or the file system's.
    pub(crate) async fn proceed(
        &mut self,
        x: &mut Exchange<'_>,
        pending: &PendingRequest,
    ) -> Result<(), Fault> {
        while !self.ended {
            if self.given < self.ahead.len() || self.is_last() {
                let rest = &self.ahead[self.given..];
                match pending.push(rest, self.is_last()) {
                    Ok(taken) if taken < rest.len() => {
                        self.given += taken;
                        return Ok(());
                    }
                    Ok(taken) => {
                        self.given += taken;
                        self.ended = self.is_last();
                    }
                    // The end of the answer gives the reason.
                    Err(Error::Void | Error::WorkerFault(_)) => self.ended = true,
                }
                continue;
            }
            if self.has_more() {
                self.take_more(x).await?;
                continue;
            }
            match x.try_read()? {
                BodyPiece::Pending => return x.flush().await,
                BodyPiece::End => self.length = Some(0),
                BodyPiece::Data(piece) => {
                    self.whole = false;
                    self.given = 0;
                    self.ahead.clear();
                    self.ahead.extend_from_slice(piece);
                }
            }
        }
        if !x.request().method().is_idempotent() {
            // Nobody will ask for it again.
            self.file = None;
        }
        Ok(())
    }

    /// The next piece of what is here.
    async fn take_more(&mut self, x: &Exchange<'_>) -> Result<(), Fault> {
        self.given = 0;
        match &mut self.file {
            Some(file) if file.unread() > 0 => {
                let into = std::mem::take(&mut self.ahead);
                // Boxed, as it is seldom.
                self.ahead = Box::pin(file.read(x.core(), into, BLOCK_BYTES)).await?;
            }
            _ => {
                self.whole = false;
                self.ahead = std::mem::take(&mut self.rest);
            }
        }
        Ok(())
    }
}
