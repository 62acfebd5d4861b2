//! Bytes on their way in and out of a link: one implementation for clients, upstream servers and tunnels, in the clear and
//! through TLS.

use std::ops::{Deref, DerefMut};

use crate::fault::Fault;
use crate::link::Link;

/// Bytes of a buffer for heads to begin with: nearly every request. Many small ones lie close together in memory, so that
/// a thousand requests that wait for something outside stay in the processor's caches.
const HEAD_BYTES_FIRST: usize = 2 * 1024;
/// What it grows to where a head fills that: a whole head by default.
pub(crate) const HEAD_BYTES: usize = 16 * 1024;
/// A piece at least this large is written from where it stands instead of being copied first.
pub(crate) const COPIED_BYTES_MAX: usize = 16 * 1024;
/// Spare room in a buffer that is not worth releasing.
const SPARE_BYTES: usize = 1024;

/// Bytes received. `start..at` is the head being served, `at..end` is not consumed yet.
#[derive(Debug, Default)]
pub struct Inbox {
    bytes: Vec<u8>,
    /// First byte of the head being read or served.
    pub(crate) start: usize,
    /// First byte not consumed.
    pub(crate) at: usize,
    /// After the last byte received.
    pub(crate) end: usize,
}

impl Inbox {
    /// From the head's first byte to the last byte received: what head spans refer to.
    pub(crate) fn head(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// What is not consumed yet.
    #[must_use]
    pub fn rest(&self) -> &[u8] {
        &self.bytes[self.at..self.end]
    }

    /// Bytes at a position that [`crate::conn::Conn::body_piece`] returned.
    pub(crate) fn slice(&self, start: usize, end: usize) -> &[u8] {
        &self.bytes[start..end]
    }

    /// Whether everything is consumed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.at == self.end
    }

    /// The first `len` bytes of the rest are consumed.
    pub fn consume(&mut self, len: usize) {
        debug_assert!(len <= self.end - self.at, "more is consumed than there is");
        self.at += len;
    }

    /// The head that was being served is done with: what follows begins the next one.
    pub(crate) fn next_head(&mut self) {
        self.start = self.at;
        if self.at == self.end {
            self.clear();
        }
    }

    /// Room to read a head into, at least one byte unless the head fills `bytes_max`.
    pub(crate) fn head_room(&mut self, bytes_max: usize) -> &mut [u8] {
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

    /// Room to read more into, `least` bytes or more, behind the first `kept` bytes of the head, which stay where they are.
    /// A buffer that has to grow gets `size` bytes behind those.
    pub fn room(&mut self, kept: usize, size: usize, least: usize) -> &mut [u8] {
        let from = self.start + kept;
        if self.at == self.end || self.bytes.len() - self.end < least {
            self.compact(from);
        }
        if self.bytes.len() - self.end < least {
            self.bytes.resize((from + size).max(self.end + least.max(size / 4)), 0);
        }
        &mut self.bytes[self.end..]
    }

    /// So many bytes were read into the room.
    pub fn filled(&mut self, len: usize) {
        self.end += len;
    }

    /// Puts bytes in that were taken out before.
    pub(crate) fn restore(&mut self, bytes: &[u8]) {
        self.bytes.resize(HEAD_BYTES_FIRST.max(bytes.len()), 0);
        self.bytes[..bytes.len()].copy_from_slice(bytes);
        (self.start, self.at, self.end) = (0, 0, bytes.len());
    }

    /// Forgets what was received; keeps the memory.
    pub(crate) fn clear(&mut self) {
        (self.start, self.at, self.end) = (0, 0, 0);
    }

    /// Releases the memory behind the last byte received.
    pub(crate) fn shrink(&mut self) {
        self.bytes.truncate(self.end);
        self.bytes.shrink_to_fit();
    }

    /// Releases memory that holds nothing; the first `kept` bytes of the head stay.
    pub(crate) fn trim(&mut self, kept: usize) {
        self.compact(self.start + kept);
        if self.bytes.capacity() > self.end + SPARE_BYTES {
            self.shrink();
        }
    }

    /// Moves what is not consumed to this place, if it is behind it.
    fn compact(&mut self, from: usize) {
        if self.at > from {
            self.bytes.copy_within(self.at..self.end, from);
            (self.at, self.end) = (from, from + self.end - self.at);
        }
    }

    /// What it holds of memory, in bytes.
    #[must_use]
    pub fn weight_bytes(&self) -> usize {
        self.bytes.capacity()
    }
}

/// Bytes collected to be sent. As a `Vec` it is appended to; what is sent moves on in it without a copy.
#[derive(Debug, Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    /// So many of them have been sent.
    at: usize,
}

impl Deref for Outbox {
    type Target = Vec<u8>;

    fn deref(&self) -> &Vec<u8> {
        &self.bytes
    }
}

impl DerefMut for Outbox {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }
}

impl Outbox {
    /// Bytes collected and not sent yet.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Whether nothing waits to be sent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.backlog() == 0
    }

    /// What is not sent yet.
    #[must_use]
    pub fn rest(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    /// Sends what the peer takes now of what was collected, and then of `bytes`: how many of both, and how many of `bytes`.
    /// With `more`, the kernel holds a last partial packet back.
    ///
    /// # Errors
    /// The peer is gone.
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

    /// Adds bytes, without waiting: a large piece is sent from where it stands, as far as the peer takes it now; the rest is
    /// kept, however much that is.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn offer(&mut self, link: &mut Link, bytes: &[u8]) -> Result<(), Fault> {
        let mut sent = 0;
        if self.backlog() + bytes.len() > COPIED_BYTES_MAX {
            (_, sent) = self.try_send(link, bytes, false)?;
        }
        self.keep(&bytes[sent..]);
        Ok(())
    }

    /// Adds bytes for later.
    pub(crate) fn keep(&mut self, bytes: &[u8]) {
        // What is left moves to the front, once as much has been sent: so no more bytes are moved than are sent.
        if self.at >= COPIED_BYTES_MAX.max(self.backlog()) {
            self.bytes.drain(..self.at);
            self.at = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Sends what the peer takes now; true where nothing is left, in TLS neither.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn try_flush(&mut self, link: &mut Link) -> Result<bool, Fault> {
        while !self.is_empty() {
            if self.try_send(link, b"", false)?.0 == 0 {
                return Ok(false);
            }
        }
        link.try_flush()
    }

    /// Forgets what was to be sent; keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.at = 0;
    }

    /// Takes out all bytes, with the number of those that have been sent.
    pub(crate) fn take(&mut self) -> (Vec<u8>, usize) {
        (std::mem::take(&mut self.bytes), std::mem::take(&mut self.at))
    }

    /// Puts them back, of which so many are not to be sent any more.
    pub(crate) fn restore(&mut self, bytes: Vec<u8>, at: usize) {
        (self.bytes, self.at) = (bytes, at);
        if self.is_empty() {
            self.clear();
        }
    }

    /// Releases memory that holds nothing.
    pub(crate) fn trim(&mut self) {
        if self.bytes.capacity() > self.backlog() + SPARE_BYTES {
            self.bytes.drain(..self.at);
            self.at = 0;
            self.bytes.shrink_to_fit();
        }
    }

    /// What it holds of memory, in bytes.
    #[must_use]
    pub fn weight_bytes(&self) -> usize {
        self.bytes.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that a buffer grows to while a body streams through it.
    const STREAMING: usize = 64 * 1024;

    /// Puts bytes where a socket would.
    fn receive(room: &mut [u8], bytes: &[u8]) -> usize {
        let len = room.len().min(bytes.len());
        room[..len].copy_from_slice(&bytes[..len]);
        len
    }

    #[test]
    fn a_body_without_end_streams_through_a_bounded_buffer_and_leaves_the_head_alone() {
        let mut input = Inbox::default();
        let len = receive(input.head_room(16 * 1024), b"an earlier request, a head");
        input.filled(len);
        input.consume("an earlier request, ".len());
        input.next_head();
        input.consume("a head".len());
        // Now and then a part stays behind: a piece of framing that is not whole.
        let mut behind = 0;
        for round in 0..1_000 {
            let room = input.room("a head".len(), STREAMING, STREAMING / 4);
            assert!(room.len() >= STREAMING / 4);
            room.fill(b'x');
            let len = room.len();
            input.filled(len);
            assert_eq!(input.rest().len(), behind + len);
            assert!(input.rest().iter().all(|&byte| byte == b'x'));
            behind = round % 7;
            input.consume(input.rest().len() - behind);
            assert_eq!(&input.head()[..6], b"a head");
        }
        assert!(input.bytes.len() <= 2 * STREAMING, "{}", input.bytes.len());
    }

    #[test]
    fn what_follows_a_head_moves_to_the_front_when_the_end_is_reached() {
        let mut input = Inbox::default();
        let wire: Vec<u8> = (0..200_000_u32).map(|at| (at % 251) as u8).collect();
        let (mut received, mut consumed) = (0, 0);
        while consumed < wire.len() {
            let len = receive(input.head_room(HEAD_BYTES), &wire[received..]);
            input.filled(len);
            received += len;
            assert_eq!(input.rest(), &wire[consumed..received]);
            // A little less than there is: something always stays behind, until the wire is empty.
            let used = input.rest().len().saturating_sub(7).max(1);
            input.consume(used);
            consumed += used;
            input.next_head();
        }
        assert!(input.is_empty());
        assert!(input.bytes.len() <= HEAD_BYTES);
    }
}
