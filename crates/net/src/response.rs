//! The response under way on a connection: its body compressed and framed as its head says, and its end.

use std::os::fd::BorrowedFd;

use http::encode::Outgoing;
use http::framing::Framing;
use http::{Fields, Status, Version};

use crate::compress::{COMPRESSED_BYTES, COMPRESSED_WEIGHT};
use crate::conn::{Conn, OUT_BYTES_MAX, ResponseState};
use crate::fault::Fault;

impl Conn {
    /// Body bytes of the response.
    pub(crate) async fn send_body(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        if self.compressing.is_none() {
            return self.send_framed(bytes).await;
        }
        for piece in bytes.chunks(COMPRESSED_BYTES) {
            let compressed = self.compress(piece)?;
            self.send_framed(&compressed).await?;
            self.moved(0).await;
        }
        Ok(())
    }

    /// A piece of the body as the encoder of the response makes it.
    fn compress(&mut self, piece: &[u8]) -> Result<Vec<u8>, Fault> {
        self.moved_bytes += piece.len() * COMPRESSED_WEIGHT;
        match &mut self.compressing {
            Some(compressing) => compressing.write(piece),
            None => Ok(piece.to_vec()),
        }
    }

    /// Hands on what the encoder holds back, where the client must get it before the handler waits.
    pub(crate) fn flush_encoder(&mut self) -> Result<(), Fault> {
        match &mut self.compressing {
            None => Ok(()),
            Some(compressing) => {
                let compressed = compressing.flush()?;
                self.offer_framed(&compressed)
            }
        }
    }

    /// Body bytes of the response, framed.
    async fn send_framed(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let ResponseState::Body(framing) = self.reply else {
            return Err(Fault::Broken("body written outside a response"));
        };
        if bytes.is_empty() || framing == Framing::None {
            return Ok(());
        }
        self.body_sent += bytes.len() as u64;
        match framing {
            Framing::None => Ok(()),
            Framing::Length(left) => {
                let left = less(left, bytes.len() as u64)?;
                self.push(bytes).await?;
                self.reply = ResponseState::Body(left);
                Ok(())
            }
            Framing::UntilClose => self.push(bytes).await,
            Framing::Chunked => {
                http::encode::chunk_start(&mut self.work.out, bytes.len());
                self.push(bytes).await?;
                self.work.out.extend_from_slice(http::encode::CHUNK_END);
                Ok(())
            }
        }
    }

    /// Body bytes of the response, without waiting.
    pub(crate) fn offer_body(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        if self.compressing.is_none() {
            return self.offer_framed(bytes);
        }
        for piece in bytes.chunks(COMPRESSED_BYTES) {
            let compressed = self.compress(piece)?;
            self.offer_framed(&compressed)?;
        }
        Ok(())
    }

    /// Body bytes of the response, framed, without waiting.
    fn offer_framed(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let ResponseState::Body(framing) = self.reply else {
            return Err(Fault::Broken("body written outside a response"));
        };
        if bytes.is_empty() || framing == Framing::None {
            return Ok(());
        }
        self.body_sent += bytes.len() as u64;
        match framing {
            Framing::None | Framing::UntilClose => self.offer(bytes),
            Framing::Length(left) => {
                let left = less(left, bytes.len() as u64)?;
                self.offer(bytes)?;
                self.reply = ResponseState::Body(left);
                Ok(())
            }
            Framing::Chunked => {
                http::encode::chunk_start(&mut self.work.out, bytes.len());
                self.offer(bytes)?;
                self.work.out.extend_from_slice(http::encode::CHUNK_END);
                Ok(())
            }
        }
    }

    /// A range of a file as body bytes of the response.
    pub(crate) async fn send_file_body(
        &mut self,
        file: BorrowedFd<'_>,
        at: u64,
        len: u64,
    ) -> Result<(), Fault> {
        match self.reply {
            ResponseState::Body(Framing::None) => Ok(()),
            _ if self.compressing.is_some() => self.compress_file(file, at, len).await,
            ResponseState::Body(Framing::Length(left)) => {
                let left = less(left, len)?;
                self.send_file(file, at, len).await?;
                self.reply = ResponseState::Body(left);
                Ok(())
            }
            _ => Err(Fault::Broken("a file needs an announced length")),
        }
    }

    /// A range of a file, compressed. Reading it may wait for the disk, so that is done off the event loop.
    async fn compress_file(&mut self, file: BorrowedFd<'_>, mut at: u64, len: u64) -> Result<(), Fault> {
        let end = at + len;
        while at < end {
            let owned = file.try_clone_to_owned()?;
            let wanted = (end - at).min(OUT_BYTES_MAX as u64) as usize;
            let core = self.stream.core().clone();
            let read = core.offload(move || {
                let mut bytes = vec![0; wanted];
                let len = rustix::io::retry_on_intr(|| rustix::io::pread(&owned, &mut bytes[..], at))?;
                bytes.truncate(len);
                Ok::<_, rustix::io::Errno>(bytes)
            });
            let bytes = read.await.map_err(|errno| Fault::Io(errno.into()))?;
            if bytes.is_empty() {
                return Err(Fault::Broken("file shrank while it was sent"));
            }
            at += bytes.len() as u64;
            self.send_body(&bytes).await?;
        }
        Ok(())
    }

    /// Whether the connection may serve another request after this one.
    pub(crate) fn may_keep_alive(&self) -> bool {
        let context = self.context();
        // A client that still waits for its 100 will not get it now, and whether it sends the body is anybody's guess.
        self.keep_alive
            && !self.continue_due
            && !context.draining.get()
            && !context.connection_limit.crowded()
    }

    /// The response's head is on its way.
    pub(crate) fn begun(&mut self, status: Status, outgoing: Outgoing) {
        self.keep_alive = outgoing.keep_alive;
        self.status = status;
        self.reply = ResponseState::Body(outgoing.framing);
        if outgoing.framing == Framing::UntilClose {
            // Its end is the connection's. Whatever ends the connection before the response is whole (a panic,
            // the end of the process) must not look like that.
            self.stream.reset_on_close(true);
        }
    }

    /// Ends the response: its body is complete.
    pub(crate) fn end_response(&mut self, trailers: &Fields) -> Result<(), Fault> {
        if let Some(compressing) = self.compressing.take() {
            self.offer_framed(&compressing.finish()?)?;
        }
        match self.reply {
            ResponseState::Unsent => return Err(Fault::Broken("no response")),
            ResponseState::Body(Framing::Length(_)) => {
                return Err(Fault::Broken("less body written than announced"));
            }
            ResponseState::Body(Framing::Chunked) => http::encode::last_chunk(&mut self.work.out, trailers),
            ResponseState::Body(Framing::None | Framing::UntilClose) | ResponseState::Done => {}
        }
        self.reply = ResponseState::Done;
        Ok(())
    }

    /// The version to answer in kind: a head that was refused may not have one.
    pub(crate) fn version(&self) -> Version {
        self.work.machine.head.version
    }
}

/// What an announced length is after `len` bytes of it.
fn less(left: u64, len: u64) -> Result<Framing, Fault> {
    match left.checked_sub(len) {
        None => Err(Fault::Broken("more body written than announced")),
        Some(0) => Ok(Framing::None),
        Some(left) => Ok(Framing::Length(left)),
    }
}
