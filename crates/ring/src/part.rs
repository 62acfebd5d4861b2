//! The pieces a response is made of, and the order they come in.

use crate::error::Breach;
use crate::pipe::FrameKind;

/// A piece of a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// A head that another head follows; its bytes were appended.
    Interim,
    /// The head; its bytes were appended. Exactly one, before any body.
    Head,
    /// A piece of the body, appended, as far as the caller's limit allowed.
    Data,
    /// A file to send as the next piece of the body; in place of the head, a socket that the client's connection is to be
    /// handed to. The worker waits until [`ServerSide::file_taken`](crate::ServerSide::file_taken).
    File(FilePart),
    /// Fields after the body, appended.
    Trailers,
    /// A line for the log, appended; the number is the worker's level.
    Log(u8),
    /// Nothing more.
    End,
    /// The worker gave up, for its own reason; the response is over, cut short if its head was received.
    Aborted(u32),
}

/// Part of an open file of the worker's process, to be had by `pidfd_getfd`. Numbers as the worker wrote them: to be
/// checked against what the descriptor turns out to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FilePart {
    /// The descriptor's number in the worker's process.
    pub fd: i32,
    /// The first byte.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
}

/// What [`ServerSide::receive`](crate::ServerSide::receive) took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// The piece.
    pub part: Part,
    /// Whether the response ends with it, which voids the ticket.
    pub last: bool,
}

impl FilePart {
    /// As a frame's payload: descriptor, offset, length, little-endian.
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

/// The stage after `kind`, where it may follow `stage`: interim heads, the head, the body, trailers; log lines anywhere.
/// A stage is the last kind that moved it, and starts with `Interim`.
pub(crate) fn follow(stage: FrameKind, kind: FrameKind) -> Result<FrameKind, Breach> {
    match (stage, kind) {
        (_, FrameKind::Log) | (FrameKind::Head, FrameKind::Data | FrameKind::File) => Ok(stage),
        (FrameKind::Interim, FrameKind::Interim | FrameKind::Head)
        | (FrameKind::Head, FrameKind::Trailers) => Ok(kind),
        // In place of a head: a socket to hand the connection to, and nothing after it.
        (FrameKind::Interim, FrameKind::File) => Ok(FrameKind::Trailers),
        _ => Err(Breach::Order),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_part_comes_back() {
        let part = FilePart { fd: -7, offset: 1 << 40 | 5, len: u64::MAX };
        assert_eq!(FilePart::decode(part.encode()), part);
    }

    #[test]
    fn parts_follow_in_order_only() {
        let run = |kinds: &[FrameKind]| {
            kinds.iter().try_fold(FrameKind::Interim, |stage, &kind| follow(stage, kind))
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
            assert_eq!(run(wrong), Err(Breach::Order), "{wrong:?}");
        }
        assert_eq!(run(&[Head, Trailers, Data]), Err(Breach::Order));
        assert_eq!(run(&[Head, Trailers, Trailers]), Err(Breach::Order));
    }
}
