//! WebSocket frames (RFC 6455 section 5.2): heads and client masks.

/// The flag of the last frame of a message.
pub(crate) const FIN: u8 = 0x80;
/// RSV1: the message is compressed (RFC 7692 section 6).
pub(crate) const COMPRESSED: u8 = 0x40;
const RESERVED: u8 = 0x30;
const MASKED: u8 = 0x80;

pub(crate) const CONTINUATION: u8 = 0;
pub(crate) const TEXT: u8 = 1;
pub(crate) const BINARY: u8 = 2;
pub(crate) const CLOSE: u8 = 8;
pub(crate) const PING: u8 = 9;
pub(crate) const PONG: u8 = 10;

/// Maximum payload of a control frame.
pub(crate) const CONTROL_BYTES_MAX: usize = 125;
/// Maximum size of a frame head to a client.
pub(crate) const HEAD_BYTES_MAX: usize = 10;
/// Maximum size of a frame head from a client, including its mask.
const MASKED_HEAD_BYTES_MAX: usize = 14;

/// The head of a frame from a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHead {
    /// Opcode: `CONTINUATION`, `TEXT`, …
    pub(crate) opcode: u8,
    /// Whether the frame ends its message.
    pub(crate) last: bool,
    pub(crate) compressed: bool,
    /// Payload bytes that have not arrived yet.
    pub(crate) remaining_bytes: u64,
    mask: [u8; 4],
}

impl FrameHead {
    /// Whether this is a close, a ping or a pong.
    pub(crate) fn is_control(&self) -> bool {
        self.opcode >= CLOSE
    }

    /// Unmasks the next bytes of the payload.
    pub(crate) fn unmask(&mut self, bytes: &mut [u8]) {
        let wide = u64::from_ne_bytes([self.mask, self.mask].concat().try_into().unwrap_or_default());
        let (eights, rest) = bytes.as_chunks_mut::<8>();
        for eight in eights {
            *eight = (u64::from_ne_bytes(*eight) ^ wide).to_ne_bytes();
        }
        for (byte, mask) in rest.iter_mut().zip(self.mask.iter().cycle()) {
            *byte ^= mask;
        }
        self.mask.rotate_left(bytes.len() % 4);
        self.remaining_bytes -= bytes.len() as u64;
    }
}

/// Incremental reader of frame heads.
#[derive(Debug, Default)]
pub(crate) struct HeadReader {
    bytes: [u8; MASKED_HEAD_BYTES_MAX],
    len: usize,
}

impl HeadReader {
    /// Reads bytes from the front of `bytes`; returns the head when it is complete.
    ///
    /// # Errors
    /// The client's protocol violation.
    pub(crate) fn read(&mut self, bytes: &mut &[u8]) -> Result<Option<FrameHead>, &'static str> {
        self.fill(bytes, 2);
        if self.len < 2 {
            return Ok(None);
        }
        check(self.bytes[0], self.bytes[1])?;
        let len_bytes = match self.bytes[1] & !MASKED {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let whole = 2 + len_bytes + 4;
        self.fill(bytes, whole);
        if self.len < whole {
            return Ok(None);
        }
        self.len = 0;
        let number =
            self.bytes[2..2 + len_bytes].iter().fold(0, |sum: u64, byte| sum << 8 | u64::from(*byte));
        let left = if len_bytes == 0 { u64::from(self.bytes[1] & !MASKED) } else { number };
        if left > u64::MAX >> 1 {
            return Err("the length of the frame is not valid");
        }
        let mut mask = [0; 4];
        mask.copy_from_slice(&self.bytes[whole - 4..whole]);
        let first = self.bytes[0];
        let last = first & FIN != 0;
        let compressed = first & COMPRESSED != 0;
        Ok(Some(FrameHead { opcode: first & 0x0f, last, compressed, remaining_bytes: left, mask }))
    }

    fn fill(&mut self, bytes: &mut &[u8], whole: usize) {
        let taken = whole.saturating_sub(self.len).min(bytes.len());
        let (now, rest) = bytes.split_at(taken);
        self.bytes[self.len..self.len + taken].copy_from_slice(now);
        self.len += taken;
        *bytes = rest;
    }
}

/// Validates the first two bytes before the rest of the head has arrived.
fn check(first: u8, second: u8) -> Result<(), &'static str> {
    let opcode = first & 0x0f;
    if first & RESERVED != 0 {
        return Err("a reserved bit is set");
    }
    if !matches!(opcode, CONTINUATION | TEXT | BINARY | CLOSE | PING | PONG) {
        return Err("the opcode is reserved");
    }
    if second & MASKED == 0 {
        return Err("the frame is not masked");
    }
    if first & COMPRESSED != 0 && !matches!(opcode, TEXT | BINARY) {
        return Err("RSV1 is set on a frame that begins no message");
    }
    if opcode >= CLOSE && (first & FIN == 0 || usize::from(second & !MASKED) > CONTROL_BYTES_MAX) {
        return Err("a control frame is fragmented or too long");
    }
    Ok(())
}

/// Encodes the head of a frame to a client; returns its bytes and their number.
pub(crate) fn encode_head(first: u8, payload_bytes: usize) -> ([u8; HEAD_BYTES_MAX], usize) {
    let mut head = [0; HEAD_BYTES_MAX];
    head[0] = first;
    match (u8::try_from(payload_bytes), u16::try_from(payload_bytes)) {
        (Ok(len @ 0..=125), _) => {
            head[1] = len;
            (head, 2)
        }
        (_, Ok(len)) => {
            head[1] = 126;
            head[2..4].copy_from_slice(&len.to_be_bytes());
            (head, 4)
        }
        _ => {
            head[1] = 127;
            head[2..].copy_from_slice(&(payload_bytes as u64).to_be_bytes());
            (head, 10)
        }
    }
}

/// Whether a close frame may carry this code (RFC 6455 section 7.4, and the IANA registry).
pub(crate) fn is_close_code(code: u16) -> bool {
    matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_heads_are_parsed_wherever_they_are_split() {
        let mask = [1, 2, 3, 4];
        for (len, bytes) in [
            (5, [&[0x81, 0x85][..], &mask].concat()),
            (300, [&[0x81, 0xfe, 1, 44][..], &mask].concat()),
            (70_000, [&[0x81, 0xff, 0, 0, 0, 0, 0, 1, 0x11, 0x70][..], &mask].concat()),
        ] {
            for step in 1..=bytes.len() {
                let mut reader = HeadReader::default();
                let mut found = None;
                for mut piece in bytes.chunks(step) {
                    found = reader.read(&mut piece).unwrap();
                }
                let expected =
                    FrameHead { opcode: TEXT, last: true, compressed: false, remaining_bytes: len, mask };
                assert_eq!(found, Some(expected));
            }
        }
    }

    #[test]
    fn payload_is_unmasked_wherever_it_is_split() {
        let plain: Vec<u8> = (0..=255).collect();
        let mask = [7, 77, 177, 27];
        let masked: Vec<u8> = plain.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect();
        for step in 1..40 {
            let mut head =
                FrameHead { opcode: BINARY, last: true, compressed: false, remaining_bytes: 256, mask };
            let mut bytes = masked.clone();
            bytes.chunks_mut(step).for_each(|piece| head.unmask(piece));
            assert_eq!((bytes, head.remaining_bytes), (plain.clone(), 0));
        }
    }

    #[test]
    fn invalid_client_frame_heads_are_rejected() {
        for bytes in
            [[0x81, 0x05], [0xa1, 0x85], [0x83, 0x85], [0x09, 0x80], [0x89, 0xfe], [0xc0, 0x80], [0xc9, 0x80]]
        {
            assert!(HeadReader::default().read(&mut &bytes[..]).is_err(), "{bytes:x?}");
        }
    }

    #[test]
    fn frame_heads_to_clients_are_encoded() {
        for (len, expected) in [
            (125, &[0x82, 125][..]),
            (126, &[0x82, 126, 0, 126]),
            (65_536, &[0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0]),
        ] {
            let (bytes, used) = encode_head(FIN | BINARY, len);
            assert_eq!(&bytes[..used], expected);
        }
    }
}
