//! A request's body on its way to a worker.

use net::{BodyPiece, Exchange, Fault};
use ring::Error;

use crate::desk::Errand;

/// A body: what of it has been read from the client and not yet been handed over.
pub(crate) struct Upload {
    /// Kept whole until it has been streamed on, so that a request can be tried again.
    ahead: Vec<u8>,
    /// How much of `ahead` the worker has.
    given: usize,
    /// Whether the client has sent all of it.
    read: bool,
    /// Whether the worker's side knows its end.
    ended: bool,
    /// Whether all of it still stands in `ahead`.
    whole: bool,
}

impl Upload {
    /// Reads the beginning of the body, up to about `bytes_max`: until then no worker is bothered.
    ///
    /// # Errors
    /// The client's.
    pub(crate) async fn begin(x: &mut Exchange<'_>, bytes_max: usize) -> Result<Upload, Fault> {
        let mut upload = Upload { ahead: Vec::new(), given: 0, read: true, ended: false, whole: true };
        if x.request().framing() == http::Framing::None {
            return Ok(upload);
        }
        loop {
            match x.read().await? {
                None => return Ok(upload),
                Some(piece) => upload.ahead.extend_from_slice(piece),
            }
            if upload.ahead.len() >= bytes_max {
                upload.read = false;
                return Ok(upload);
            }
        }
    }

    /// What has been read so far.
    pub(crate) fn ahead(&self) -> &[u8] {
        &self.ahead
    }

    /// What it holds of memory.
    pub(crate) fn held_bytes(&self) -> usize {
        self.ahead.capacity()
    }

    /// Whether that is all of it.
    pub(crate) fn is_read(&self) -> bool {
        self.read
    }

    /// Whether the request can be handed to another worker from the beginning.
    pub(crate) fn is_whole(&self) -> bool {
        self.whole
    }

    /// How much was taken with the request; with the last byte the end was, too.
    pub(crate) fn begun(&mut self, taken: usize) {
        self.given = taken;
        self.ended = self.read && taken == self.ahead.len();
    }

    /// Whether the worker has all of it.
    pub(crate) fn is_given(&self) -> bool {
        self.ended
    }

    /// Whether the client is the one to wait for.
    pub(crate) fn waits_for_client(&self) -> bool {
        !self.read && self.given == self.ahead.len()
    }

    /// Moves as much as can be moved now, from the client to the worker.
    ///
    /// # Errors
    /// The client's.
    pub(crate) async fn go_on(&mut self, x: &mut Exchange<'_>, errand: &Errand) -> Result<(), Fault> {
        while !self.ended {
            if self.given < self.ahead.len() || self.read {
                let rest = &self.ahead[self.given..];
                match errand.push(rest, self.read) {
                    Ok(taken) if taken < rest.len() => {
                        self.given += taken;
                        return Ok(());
                    }
                    Ok(taken) => self.given += taken,
                    // The answer's end tells why.
                    Err(Error::Void | Error::Fault(_)) => self.read = true,
                }
                self.ended = self.read;
                continue;
            }
            match x.try_read()? {
                BodyPiece::Pending => return x.flush().await,
                BodyPiece::End => self.read = true,
                BodyPiece::Data(piece) => {
                    self.whole = false;
                    self.given = 0;
                    self.ahead.clear();
                    self.ahead.extend_from_slice(piece);
                }
            }
        }
        Ok(())
    }
}
