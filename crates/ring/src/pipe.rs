//! Frames in one direction of a slot: a byte ring whose consumer trusts nothing.
//!
//! A frame is one word (kind in the low byte, payload length above) followed by the payload, padded to a
//! word. Frames are written and published whole, so positions are multiples of four and a frame's word never
//! wraps. Each side keeps its own position in private memory; the shared words only report it to the other
//! side.

use crate::error::ProtocolViolation;
use crate::shared::Pipe;
use crate::sync::{Acquire, Relaxed, Release};

/// Length of a frame's word in bytes.
pub(crate) const FRAME_BYTES: u32 = 4;
/// Flag in a head word: the producer has finished.
const ENDED: u32 = 1;

/// The content of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FrameKind {
    /// A message head, opaque to this module.
    Head = 1,
    /// A piece of the body.
    Data = 2,
    /// An interim head (1xx), which another head follows.
    Interim = 3,
    /// Trailer fields.
    Trailers = 4,
    /// A file to send as the next piece of the body: descriptor, offset, length.
    File = 5,
    /// A line for the server's log: level byte, text.
    Log = 6,
}

impl FrameKind {
    fn of(byte: u32) -> Option<FrameKind> {
        Some(match byte {
            1 => FrameKind::Head,
            2 => FrameKind::Data,
            3 => FrameKind::Interim,
            4 => FrameKind::Trailers,
            5 => FrameKind::File,
            6 => FrameKind::Log,
            _ => return None,
        })
    }
}

fn padded(len: u32) -> u32 {
    len.next_multiple_of(4)
}

impl Pipe<'_> {
    fn at(&self, position: u32) -> usize {
        self.base + (position & (self.bytes - 1)) as usize
    }

    /// Number of bytes from `position` to the end of the area.
    fn before_wrap(&self, position: u32) -> usize {
        (self.bytes - (position & (self.bytes - 1))) as usize
    }

    /// The largest payload that always fits into the empty area.
    pub(crate) fn payload_max(&self) -> u32 {
        self.bytes - FRAME_BYTES
    }
}

/// The producer's private state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writer {
    at: u32,
    /// The consumer's position when last read.
    tail: u32,
}

impl Writer {
    pub(crate) const fn new() -> Writer {
        Writer { at: 0, tail: 0 }
    }

    /// Returns the largest payload of a frame that fits now, `None` if no frame fits. Reads the consumer's
    /// position again only if `want` does not fit.
    pub(crate) fn payload_room(
        &mut self,
        pipe: Pipe<'_>,
        want: u32,
    ) -> Result<Option<u32>, ProtocolViolation> {
        let room =
            |writer: &Writer| (pipe.bytes - writer.at.wrapping_sub(writer.tail)).checked_sub(FRAME_BYTES);
        if room(self).is_none_or(|room| room < want) {
            let tail = pipe.tail.load(Acquire);
            let unread = self.at.wrapping_sub(tail);
            if unread > self.at.wrapping_sub(self.tail) || !tail.is_multiple_of(4) {
                return Err(ProtocolViolation::Position);
            }
            self.tail = tail;
        }
        Ok(room(self))
    }

    /// Writes one frame without publishing it; the caller has checked [`Writer::room`] for `payload`.
    pub(crate) fn write_frame(&mut self, pipe: Pipe<'_>, kind: FrameKind, payload: &[u8]) {
        let len = payload.len() as u32;
        debug_assert!(FRAME_BYTES + padded(len) <= pipe.bytes - self.at.wrapping_sub(self.tail));
        pipe.region.words()[pipe.at(self.at) / 4].store(kind as u32 | len << 8, Relaxed);
        self.at = self.at.wrapping_add(FRAME_BYTES);
        let (front, back) = payload.split_at(payload.len().min(pipe.before_wrap(self.at)));
        pipe.region.put(pipe.at(self.at), front);
        if !back.is_empty() {
            pipe.region.put(pipe.base, back);
        }
        self.at = self.at.wrapping_add(padded(len));
    }

    /// Writes as much of `body` as one frame may carry; returns 0 if waiting for more room is better.
    pub(crate) fn write_body(&mut self, pipe: Pipe<'_>, body: &[u8]) -> Result<usize, ProtocolViolation> {
        let want = u32::try_from(body.len()).unwrap_or(u32::MAX).min(pipe.payload_max());
        let Some(room) = self.payload_room(pipe, want)? else { return Ok(0) };
        let take = room.min(want);
        // One wait is cheaper than many small frames. (A consumer reports when it has freed half of the area,
        // or all of it.)
        if take < want && take < pipe.bytes / 4 {
            return Ok(0);
        }
        if take > 0 {
            self.write_frame(pipe, FrameKind::Data, &body[..take as usize]);
        }
        Ok(take as usize)
    }

    /// Publishes the written frames to the consumer.
    pub(crate) fn publish(&self, pipe: Pipe<'_>, ended: bool) {
        pipe.head.store(self.at | if ended { ENDED } else { 0 }, Release);
    }

    /// Whether the consumer has reported that it has read everything.
    pub(crate) fn is_drained(&self, pipe: Pipe<'_>) -> bool {
        pipe.tail.load(Acquire) == self.at
    }

    /// Whether the consumer has reported progress since [`Writer::room`] last looked.
    pub(crate) fn has_progress(&self, pipe: Pipe<'_>) -> bool {
        pipe.tail.load(Acquire) != self.tail
    }
}

/// The frame that a reader is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Frame {
    pub(crate) kind: FrameKind,
    /// Payload bytes that have not been read.
    pub(crate) unread: u32,
}

/// The consumer's private state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader {
    at: u32,
    /// The producer's position when last read: the end of a frame.
    head: u32,
    ended: bool,
    open_frame: Option<Frame>,
    reported: u32,
}

impl Reader {
    pub(crate) const fn new() -> Reader {
        Reader { at: 0, head: 0, ended: false, open_frame: None, reported: 0 }
    }

    /// Returns the open frame or the next one; `None` if there is none yet.
    pub(crate) fn next(&mut self, pipe: Pipe<'_>) -> Result<Option<Frame>, ProtocolViolation> {
        if self.open_frame.is_none() {
            if self.is_empty(pipe)? {
                return Ok(None);
            }
            let word = pipe.region.words()[pipe.at(self.at) / 4].load(Relaxed);
            let kind = FrameKind::of(word & 0xff).ok_or(ProtocolViolation::Frame)?;
            let rest = word >> 8;
            if padded(rest) > self.head.wrapping_sub(self.at) - FRAME_BYTES {
                return Err(ProtocolViolation::Frame);
            }
            self.at = self.at.wrapping_add(FRAME_BYTES);
            self.open_frame = Some(Frame { kind, unread: rest });
        }
        Ok(self.open_frame)
    }

    /// Whether nothing is left to read; reads the producer's position again if so.
    pub(crate) fn is_empty(&mut self, pipe: Pipe<'_>) -> Result<bool, ProtocolViolation> {
        if self.open_frame.is_none() && self.at == self.head && !self.ended {
            let head = pipe.head.load(Acquire);
            let position = head & !ENDED;
            let unread = (head & !ENDED).wrapping_sub(self.at);
            if !position.is_multiple_of(4) || unread > pipe.bytes {
                return Err(ProtocolViolation::Position);
            }
            self.head = position;
            self.ended = head & ENDED != 0;
        }
        Ok(self.open_frame.is_none() && self.at == self.head)
    }

    /// Whether the producer has reported its end.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether there may be something to read. Changes no state.
    pub(crate) fn has_data(&self, pipe: Pipe<'_>) -> bool {
        self.open_frame.is_some()
            || self.at != self.head
            || self.ended
            || pipe.head.load(Acquire) != self.head
    }

    /// Appends up to `most` bytes of the open frame to `into`; the frame closes after its last byte.
    pub(crate) fn append(&mut self, pipe: Pipe<'_>, most: usize, into: &mut Vec<u8>) -> usize {
        self.read_payload(pipe, most, |at, len| pipe.region.append(at, len, into))
    }

    /// Copies bytes of the open frame to `into`; the frame closes after its last byte.
    pub(crate) fn copy(&mut self, pipe: Pipe<'_>, mut into: &mut [u8]) -> usize {
        self.read_payload(pipe, into.len(), |at, len| {
            let (now, later) = std::mem::take(&mut into).split_at_mut(len);
            pipe.region.take(at, now);
            into = later;
        })
    }

    fn read_payload(&mut self, pipe: Pipe<'_>, most: usize, mut piece: impl FnMut(usize, usize)) -> usize {
        let Some(frame) = &mut self.open_frame else { return 0 };
        let count = most.min(frame.unread as usize);
        let front = count.min(pipe.before_wrap(self.at));
        piece(pipe.at(self.at), front);
        if count > front {
            piece(pipe.base, count - front);
        }
        frame.unread -= count as u32;
        let closed = frame.unread == 0;
        self.at = self.at.wrapping_add(count as u32);
        if closed {
            self.at = self.at.wrapping_add(3) & !3;
            self.open_frame = None;
        }
        count
    }

    /// Whether progress should be reported to the producer: half of the area was freed, or all of it.
    pub(crate) fn should_report(&self, pipe: Pipe<'_>) -> bool {
        let freed = (self.at & !3).wrapping_sub(self.reported);
        freed >= pipe.bytes / 2 || (freed > 0 && self.open_frame.is_none() && self.at == self.head)
    }

    /// Reports the consumed bytes to the producer.
    pub(crate) fn report(&mut self, pipe: Pipe<'_>) {
        self.reported = self.at & !3;
        pipe.tail.store(self.reported, Release);
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests;
