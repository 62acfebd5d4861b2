//! A WebSocket's messages to the client: in frames, compressed where that was agreed on and may be worth it.

use crate::deflate::{Agreement, Codecs, Deflater};
use crate::frame::{self, COMPRESSED, FIN};

/// A message shorter than this is sent as it is: by itself it hardly gets smaller.
const COMPRESSED_BYTES_MIN: usize = 256;

/// Makes frames of messages.
#[derive(Debug)]
pub(crate) struct Outbound {
    agreement: Option<Agreement>,
    /// Of the message under way, where that is compressed.
    deflater: Option<Deflater>,
    /// Its first frame is still to be sent: of this kind.
    begins: Option<u8>,
}

/// A message, or the next part of one.
pub(crate) struct MessagePiece<'p> {
    pub(crate) text: bool,
    pub(crate) first: bool,
    pub(crate) last: bool,
    pub(crate) payload: &'p [u8],
}

impl Outbound {
    pub(crate) fn new(agreement: Option<Agreement>) -> Outbound {
        Outbound { agreement, deflater: None, begins: None }
    }

    /// The next frame: its first byte, and what it carries if that is not the payload itself, in `buffer`. `None` where the
    /// piece is too small for a frame of its own.
    pub(crate) fn frame(
        &mut self,
        piece: &MessagePiece<'_>,
        codecs: &Codecs,
        buffer: &mut Vec<u8>,
    ) -> Option<(u8, bool)> {
        if piece.first {
            self.begins = Some(if piece.text { frame::TEXT } else { frame::BINARY });
            let is_worth_it = piece.payload.len() >= COMPRESSED_BYTES_MIN;
            self.deflater =
                self.agreement.filter(|_| is_worth_it).map(|agreement| codecs.deflater(agreement));
        }
        let last = if piece.last { FIN } else { 0 };
        let Some(deflater) = &mut self.deflater else {
            return Some((last | self.begins.take().unwrap_or(frame::CONTINUATION), false));
        };
        buffer.clear();
        deflater.deflate(piece.payload, buffer, piece.last);
        if piece.last
            && let Some(deflater) = self.deflater.take()
        {
            codecs.give_back_deflater(deflater);
        }
        if buffer.is_empty() && !piece.last {
            return None;
        }
        let opcode = self.begins.take().map_or(frame::CONTINUATION, |kind| kind | COMPRESSED);
        Some((last | opcode, true))
    }
}
