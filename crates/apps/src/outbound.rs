//! WebSocket messages to the client: framing, and compression if negotiated and worthwhile.

use crate::deflate::{Codecs, DeflateParameters, Deflater};
use crate::frame::{self, COMPRESSED, FIN};

/// Minimum size of compressed messages; without context takeover, shorter ones hardly shrink.
const COMPRESSED_BYTES_MIN: usize = 256;

/// Encoder of messages as frames.
#[derive(Debug)]
pub(crate) struct Outbound {
    agreement: Option<DeflateParameters>,
    /// Codec of the message in progress, if it is compressed.
    deflater: Option<Deflater>,
    /// Opcode of the message whose first frame has not been sent.
    first_opcode: Option<u8>,
}

/// A message, or a fragment of one.
pub(crate) struct MessagePiece<'p> {
    pub(crate) text: bool,
    pub(crate) first: bool,
    pub(crate) last: bool,
    pub(crate) payload: &'p [u8],
}

impl Outbound {
    pub(crate) fn new(agreement: Option<DeflateParameters>) -> Outbound {
        Outbound { agreement, deflater: None, first_opcode: None }
    }

    /// Encodes the next frame. Returns its first byte, and whether its payload is in `buffer` instead of the
    /// piece; `None` if the piece is too small for a frame of its own.
    pub(crate) fn encode_frame(
        &mut self,
        piece: &MessagePiece<'_>,
        codecs: &Codecs,
        buffer: &mut Vec<u8>,
    ) -> Option<(u8, bool)> {
        if piece.first {
            self.first_opcode = Some(if piece.text { frame::TEXT } else { frame::BINARY });
            let is_worth_it = piece.payload.len() >= COMPRESSED_BYTES_MIN;
            self.deflater =
                self.agreement.filter(|_| is_worth_it).map(|agreement| codecs.deflater(agreement));
        }
        let last = if piece.last { FIN } else { 0 };
        let Some(deflater) = &mut self.deflater else {
            return Some((last | self.first_opcode.take().unwrap_or(frame::CONTINUATION), false));
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
        let opcode = self.first_opcode.take().map_or(frame::CONTINUATION, |kind| kind | COMPRESSED);
        Some((last | opcode, true))
    }
}
