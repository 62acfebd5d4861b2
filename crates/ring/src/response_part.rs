//! The parts of a response, and their order.

use crate::error::ProtocolViolation;
use crate::pipe::FrameKind;

/// A part of a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResponsePart {
    /// An interim head, which another head follows; its bytes were appended.
    Interim,
    /// The final head; its bytes were appended. There is exactly one, before any body.
    Head,
    /// A piece of the body, appended, up to the caller's limit.
    Data,
    /// A file to send as the next piece of the body; in place of the head, a socket that takes over the
    /// client's connection. The worker waits until [`ServerSide::release_taken_file`](crate::ServerSide::release_taken_file).
    File(FilePart),
    /// Trailer fields, appended.
    Trailers,
    /// A line for the log, appended, with the worker's log level.
    Log(u8),
    /// The end of the response.
    End,
    /// The worker aborted the response for a reason of its own; the response is truncated if its head was
    /// received.
    Aborted(u32),
}

/// A part of an open file of the worker's process, obtained with `pidfd_getfd`. The numbers come from the
/// worker and must be validated against the descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FilePart {
    /// The descriptor's number in the worker's process.
    pub fd: i32,
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

/// The result of [`ServerSide::receive`](crate::ServerSide::receive).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceivedPart {
    /// The part.
    pub part: ResponsePart,
    /// Whether the response ends with this part, which voids the ticket.
    pub is_last: bool,
}

impl FilePart {
    /// Length of a frame's payload: descriptor, offset, length, little-endian.
    pub(crate) const BYTES: usize = 20;

    pub(crate) fn encode(self) -> [u8; FilePart::BYTES] {
        let mut bytes = [0; FilePart::BYTES];
        bytes[..4].copy_from_slice(&self.fd.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.offset.to_le_bytes());
        bytes[12..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: [u8; FilePart::BYTES]) -> FilePart {
        let wide = |at: usize| {
            u64::from_le_bytes(
                *bytes[at..].first_chunk().expect("two times eight bytes after the first four"),
            )
        };
        let fd = i32::from_le_bytes(*bytes.first_chunk().expect("four bytes at the start"));
        FilePart { fd, offset: wide(4), len: wide(12) }
    }
}

/// Returns the stage after a frame of `kind`, if it may follow `stage`: interim heads, the head, the body,
/// trailers; log lines anywhere. A stage is the last kind that advanced it, and begins with `Interim`.
pub(crate) fn next_stage(stage: FrameKind, kind: FrameKind) -> Result<FrameKind, ProtocolViolation> {
    match (stage, kind) {
        (_, FrameKind::Log) | (FrameKind::Head, FrameKind::Data | FrameKind::File) => Ok(stage),
        (FrameKind::Interim, FrameKind::Interim | FrameKind::Head)
        | (FrameKind::Head, FrameKind::Trailers) => Ok(kind),
        // In place of a head: a socket that takes over the connection, and nothing after it.
        (FrameKind::Interim, FrameKind::File) => Ok(FrameKind::Trailers),
        _ => Err(ProtocolViolation::Order),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_part_round_trips() {
        let part = FilePart { fd: -7, offset: 1 << 40 | 5, len: u64::MAX };
        assert_eq!(FilePart::decode(part.encode()), part);
    }

    #[test]
    fn parts_out_of_order_are_rejected() {
        let run = |kinds: &[FrameKind]| {
            kinds.iter().try_fold(FrameKind::Interim, |stage, &kind| next_stage(stage, kind))
        };
        use FrameKind::{Data, File, Head, Interim, Log, Trailers};
        assert!(run(&[Log, Interim, Interim, Log, Head, Data, Log, File, Data, Trailers, Log]).is_ok());
        assert!(run(&[Log, Interim, File, Log]).is_ok());
        for wrong in [
            &[Data][..],
            &[Trailers],
            &[File, Head],
            &[File, Data],
            &[File, File],
            &[Head, Head],
            &[Head, Interim],
            &[Interim, Data],
        ] {
            assert_eq!(run(wrong), Err(ProtocolViolation::Order), "{wrong:?}");
        }
        assert_eq!(run(&[Head, Trailers, Data]), Err(ProtocolViolation::Order));
        assert_eq!(run(&[Head, Trailers, Trailers]), Err(ProtocolViolation::Order));
    }
}
