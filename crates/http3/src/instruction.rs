//! Instructions of QPACK's two streams, which may be cut anywhere (RFC 9204 section 4).

use crate::long_integer;
use sections::huffman;

/// A reader of the instructions in a buffer. Every method returns `None` if the instruction is cut off.
pub(crate) struct InstructionReader<'b> {
    bytes: &'b [u8],
    at: usize,
}

/// Part of an instruction: `None` if it is cut off.
pub(crate) type InstructionPart<T> = Result<Option<T>, &'static str>;

impl<'b> InstructionReader<'b> {
    pub(crate) fn new(bytes: &'b [u8]) -> InstructionReader<'b> {
        InstructionReader { bytes, at: 0 }
    }

    /// The first byte of what follows.
    pub(crate) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// Number of bytes read.
    pub(crate) fn consumed(&self) -> usize {
        self.at
    }

    /// Reads an integer.
    pub(crate) fn integer(&mut self, prefix: u32) -> InstructionPart<u64> {
        let read = long_integer::read(&self.bytes[self.at..], prefix)?;
        Ok(read.map(|(value, len)| {
            self.at += len;
            value
        }))
    }

    /// Reads a string literal with a length prefix of `prefix` bits into `out`. `bytes_max` is the limit of
    /// its size; a coded one may have up to four times as many bytes.
    pub(crate) fn string(&mut self, prefix: u32, bytes_max: usize, out: &mut Vec<u8>) -> InstructionPart<()> {
        const TOO_LONG: &str = "string larger than the table";
        let is_huffman = self.peek().is_some_and(|first| first >> prefix & 1 != 0);
        let Some(len) = self.integer(prefix)? else { return Ok(None) };
        let len = usize::try_from(len).map_err(|_| TOO_LONG)?;
        if len > if is_huffman { bytes_max.saturating_mul(4) } else { bytes_max } {
            return Err(TOO_LONG);
        }
        let Some(text) = self.bytes.get(self.at..self.at + len) else { return Ok(None) };
        self.at += len;
        if is_huffman {
            huffman::decode(text, out)?;
        } else {
            out.extend_from_slice(text);
        }
        Ok(Some(()))
    }
}
