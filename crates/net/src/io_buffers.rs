//! Buffers for input and output of a link: of clients, upstream servers and tunnels, with or without TLS.

use std::ops::{Deref, DerefMut};

use http::append::append;

use crate::fault::Fault;
use crate::link::Link;

/// Initial size of a buffer for heads, sufficient for nearly every request. Small buffers lie close together
/// in memory, so that a thousand waiting requests fit into the processor's caches.
const HEAD_BYTES_FIRST: usize = 2 * 1024;
/// Size to which the buffer of a larger head grows; the default limit of a head.
pub(crate) const HEAD_BYTES: usize = 16 * 1024;
/// Size from which a piece is written in place instead of being copied.
pub(crate) const COPIED_BYTES_MAX: usize = 16 * 1024;
/// Spare capacity that is not worth releasing.
const SPARE_BYTES: usize = 1024;

/// Received bytes. `start..at` is the head being served, `at..end` is not consumed.
#[derive(Debug, Default)]
pub struct InputBuffer {
    bytes: Vec<u8>,
    /// Offset of the head being read or served.
    pub(crate) start: usize,
    /// Offset of the first unconsumed byte.
    pub(crate) at: usize,
    /// End of the received bytes.
    pub(crate) end: usize,
}

impl InputBuffer {
    /// Returns the bytes from the head's first to the last received; head spans refer to these.
    pub(crate) fn head(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Returns the unconsumed bytes.
    #[must_use]
    pub fn unconsumed(&self) -> &[u8] {
        &self.bytes[self.at..self.end]
    }

    /// Returns the bytes at a position that [`crate::conn::Conn::body_piece`] returned.
    pub(crate) fn slice(&self, start: usize, end: usize) -> &[u8] {
        &self.bytes[start..end]
    }

    /// Whether everything was consumed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.at == self.end
    }

    /// Consumes the first `len` unconsumed bytes.
    pub fn consume(&mut self, len: usize) {
        debug_assert!(len <= self.end - self.at, "more is consumed than there is");
        self.at += len;
    }

    /// Discards the head being served; the next one follows.
    pub(crate) fn next_head(&mut self) {
        self.start = self.at;
        if self.at == self.end {
            self.clear();
        }
    }

    /// Returns room for reading a head, at least one byte unless the head has reached `bytes_max`.
    pub(crate) fn room_for_head(&mut self, bytes_max: usize) -> &mut [u8] {
        if self.end == self.bytes.len() {
            if self.start > 0 {
                self.bytes.copy_within(self.start..self.end, 0);
                self.at -= self.start;
                self.end -= self.start;
                self.start = 0;
            } else if self.bytes.len() < HEAD_BYTES.max(bytes_max) {
                let len = (self.bytes.len() * 8).clamp(HEAD_BYTES_FIRST, HEAD_BYTES.max(bytes_max));
                self.bytes.resize(len, 0);
            }
        }
        &mut self.bytes[self.end..]
    }

    /// Returns at least `bytes_min` bytes of room behind the first `kept` bytes of the head, which are not moved.
    /// If the buffer must grow, it gets `size` bytes behind those.
    pub fn room(&mut self, kept: usize, size: usize, bytes_min: usize) -> &mut [u8] {
        let from = self.start + kept;
        if self.at == self.end || self.bytes.len() - self.end < bytes_min {
            self.compact(from);
        }
        if self.bytes.len() - self.end < bytes_min {
            self.bytes.resize((from + size).max(self.end + bytes_min.max(size / 4)), 0);
        }
        &mut self.bytes[self.end..]
    }

    /// Adds `len` bytes that were read into the room.
    pub fn filled(&mut self, len: usize) {
        self.end += len;
    }

    /// Puts back bytes that were taken out before.
    pub(crate) fn restore(&mut self, bytes: &[u8]) {
        self.bytes.resize(HEAD_BYTES_FIRST.max(bytes.len()), 0);
        self.bytes[..bytes.len()].copy_from_slice(bytes);
        (self.start, self.at, self.end) = (0, 0, bytes.len());
    }

    /// Discards all bytes and keeps the memory.
    pub(crate) fn clear(&mut self) {
        (self.start, self.at, self.end) = (0, 0, 0);
    }

    /// Releases the memory behind the last received byte.
    pub(crate) fn shrink(&mut self) {
        self.bytes.truncate(self.end);
        self.bytes.shrink_to_fit();
    }

    /// Releases unused memory; the first `kept` bytes of the head are not moved.
    pub(crate) fn trim(&mut self, kept: usize) {
        self.compact(self.start + kept);
        if self.bytes.capacity() > self.end + SPARE_BYTES {
            self.shrink();
        }
    }

    /// Moves unconsumed bytes to the offset `from` if they are behind it.
    fn compact(&mut self, from: usize) {
        if self.at > from {
            self.bytes.copy_within(self.at..self.end, from);
            (self.at, self.end) = (from, from + self.end - self.at);
        }
    }

    /// Returns the memory held, in bytes.
    #[must_use]
    pub fn weight_bytes(&self) -> usize {
        self.bytes.capacity()
    }
}

/// An output buffer. New bytes are appended as to a `Vec`; sending advances an offset without copying.
#[derive(Debug, Default)]
pub struct OutputBuffer {
    bytes: Vec<u8>,
    /// Number of bytes that were sent.
    at: usize,
}

impl Deref for OutputBuffer {
    type Target = Vec<u8>;

    fn deref(&self) -> &Vec<u8> {
        &self.bytes
    }
}

impl DerefMut for OutputBuffer {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }
}

impl OutputBuffer {
    /// Returns the number of unsent bytes.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Whether nothing is unsent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.backlog() == 0
    }

    /// Returns the unsent bytes.
    #[must_use]
    pub fn unsent(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    /// Sends as much as the peer accepts of the buffer and then of `bytes`; returns the number of bytes sent
    /// in total and of `bytes`. With `more`, the kernel holds back an incomplete last packet.
    ///
    /// # Errors
    /// Fails if the peer is gone.
    pub fn try_send(&mut self, link: &mut Link, bytes: &[u8], more: bool) -> Result<(usize, usize), Fault> {
        let out = &self.bytes[self.at..];
        let sent = match (out.is_empty(), bytes.is_empty()) {
            (true, true) => 0,
            (false, true) => link.try_write(&[out], more)?,
            (true, false) => link.try_write(&[bytes], more)?,
            (false, false) => link.try_write(&[out, bytes], more)?,
        };
        let of_out = sent.min(out.len());
        self.at += of_out;
        if self.at == self.bytes.len() {
            self.clear();
        }
        Ok((sent, sent - of_out))
    }

    /// Appends bytes without waiting: as much as possible of a large piece is sent in place, and the rest is
    /// buffered without limit.
    ///
    /// # Errors
    /// Fails if the peer is gone.
    pub fn offer(&mut self, link: &mut Link, bytes: &[u8]) -> Result<(), Fault> {
        let mut sent = 0;
        if self.backlog() + bytes.len() > COPIED_BYTES_MAX {
            (_, sent) = self.try_send(link, bytes, false)?;
        }
        self.push_bytes(&bytes[sent..]);
        Ok(())
    }

    /// Appends bytes without sending.
    pub(crate) fn push_bytes(&mut self, bytes: &[u8]) {
        // Compacts only after at least as much was sent as remains, so that no more bytes are moved than
        // sent.
        if self.at >= COPIED_BYTES_MAX.max(self.backlog()) {
            self.bytes.drain(..self.at);
            self.at = 0;
        }
        append(&mut self.bytes, bytes);
    }

    /// Sends as much as the peer accepts; returns true if nothing is left, including in TLS.
    ///
    /// # Errors
    /// Fails if the peer is gone.
    pub fn try_flush(&mut self, link: &mut Link) -> Result<bool, Fault> {
        while !self.is_empty() {
            if self.try_send(link, b"", false)?.0 == 0 {
                return Ok(false);
            }
        }
        link.try_flush()
    }

    /// Discards the unsent bytes and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.at = 0;
    }

    /// Takes all bytes out, with the number of those already sent.
    pub(crate) fn take(&mut self) -> (Vec<u8>, usize) {
        (std::mem::take(&mut self.bytes), std::mem::take(&mut self.at))
    }

    /// Puts bytes back, the first `at` of which were already sent.
    pub(crate) fn restore(&mut self, bytes: Vec<u8>, at: usize) {
        (self.bytes, self.at) = (bytes, at);
        if self.is_empty() {
            self.clear();
        }
    }

    /// Releases unused memory.
    pub(crate) fn trim(&mut self) {
        if self.bytes.capacity() > self.backlog() + SPARE_BYTES {
            self.bytes.drain(..self.at);
            self.at = 0;
            self.bytes.shrink_to_fit();
        }
    }

    /// Returns the memory held, in bytes.
    #[must_use]
    pub fn weight_bytes(&self) -> usize {
        self.bytes.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Size to which a buffer grows while a body streams through it.
    const STREAMING: usize = 64 * 1024;

    /// Fills a buffer as a socket would.
    fn receive(room: &mut [u8], bytes: &[u8]) -> usize {
        let len = room.len().min(bytes.len());
        room[..len].copy_from_slice(&bytes[..len]);
        len
    }

    #[test]
    fn streamed_body_keeps_the_buffer_bounded_and_the_head_intact() {
        let mut input = InputBuffer::default();
        let len = receive(input.room_for_head(16 * 1024), b"an earlier request, a head");
        input.filled(len);
        input.consume("an earlier request, ".len());
        input.next_head();
        input.consume("a head".len());
        // Part of the data is left unconsumed at times, like incomplete framing.
        let mut behind = 0;
        for round in 0..1_000 {
            let room = input.room("a head".len(), STREAMING, STREAMING / 4);
            assert!(room.len() >= STREAMING / 4);
            room.fill(b'x');
            let len = room.len();
            input.filled(len);
            assert_eq!(input.unconsumed().len(), behind + len);
            assert!(input.unconsumed().iter().all(|&byte| byte == b'x'));
            behind = round % 7;
            input.consume(input.unconsumed().len() - behind);
            assert_eq!(&input.head()[..6], b"a head");
        }
        assert!(input.bytes.len() <= 2 * STREAMING, "{}", input.bytes.len());
    }

    #[test]
    fn unread_bytes_move_to_the_front_when_the_buffer_is_full() {
        let mut input = InputBuffer::default();
        let wire: Vec<u8> = (0..200_000_u32).map(|at| (at % 251) as u8).collect();
        let mut received = 0;
        let mut consumed = 0;
        while consumed < wire.len() {
            let len = receive(input.room_for_head(HEAD_BYTES), &wire[received..]);
            input.filled(len);
            received += len;
            assert_eq!(input.unconsumed(), &wire[consumed..received]);
            // Consume less than there is, so that something remains until the wire is empty.
            let used = input.unconsumed().len().saturating_sub(7).max(1);
            input.consume(used);
            consumed += used;
            input.next_head();
        }
        assert!(input.is_empty());
        assert!(input.bytes.len() <= HEAD_BYTES);
    }
}
