//! WebSocket messages from the client: reassembled from frames, unmasked, inflated, validated and limited in
//! size.

use crate::deflate::{Codecs, InflateError, Inflater, grow};
use crate::frame::{self, CONTROL_BYTES_MAX, FrameHead, HeadReader};
use crate::websocket_record;

/// Close codes for protocol violations.
const PROTOCOL_ERROR: u16 = 1002;
const INVALID_PAYLOAD: u16 = 1007;
const MESSAGE_TOO_BIG: u16 = 1009;

/// Compressed bytes that are unmasked and inflated in one step: at most half a megabyte of zeros.
const INFLATE_STEP_BYTES: usize = 512;
/// Memory of an inflater in addition to the message: its window and its tables.
const INFLATER_BYTES: usize = 48 * 1024;
/// Capacity allocated for a message before any of it was received.
const FIRST_CAPACITY_MAX: u64 = 16 * 1024;

/// Result of reading from a client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReceivedFrame {
    /// An incomplete frame or message.
    Incomplete,
    /// A frame without content: an empty fragment, or a pong.
    Empty,
    /// A ping; its payload is [`Inbound::control`].
    Ping,
    /// A message, encoded as a record.
    Message(Vec<u8>),
    /// A close, with code and reason if present.
    Close(Option<(u16, String)>),
}

/// A protocol violation of the client, as code and reason of the close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) code: u16,
    pub(crate) reason: &'static str,
}

const fn violation(code: u16, reason: &'static str) -> Violation {
    Violation { code, reason }
}

/// A message in progress.
#[derive(Debug)]
struct IncompleteMessage {
    kind: u8,
    inflater: Option<Inflater>,
    /// Bytes of the message's frames so far, before inflation.
    raw_bytes: u64,
    /// The record: space for its head, then the payload so far.
    record: Vec<u8>,
}

/// Incremental reader of a client's frames.
#[derive(Debug)]
pub(crate) struct Inbound {
    message_bytes_max: usize,
    /// Whether RFC 7692 was negotiated.
    may_compress: bool,
    heads: HeadReader,
    frame: Option<FrameHead>,
    message: Option<IncompleteMessage>,
    control: [u8; CONTROL_BYTES_MAX],
    control_len: usize,
    /// Whether messages are discarded; only a close is of interest.
    is_discarding: bool,
}

impl Inbound {
    pub(crate) fn new(message_bytes_max: usize, may_compress: bool) -> Inbound {
        Inbound {
            message_bytes_max,
            may_compress,
            heads: HeadReader::default(),
            frame: None,
            message: None,
            control: [0; CONTROL_BYTES_MAX],
            control_len: 0,
            is_discarding: false,
        }
    }

    /// Payload of the last control frame.
    pub(crate) fn control(&self) -> &[u8] {
        &self.control[..self.control_len]
    }

    /// Bytes of the current frame that have not arrived yet.
    pub(crate) fn frame_bytes_left(&self) -> u64 {
        self.frame.map_or(0, |frame| frame.remaining_bytes)
    }

    /// Bytes of the message in progress.
    pub(crate) fn message_bytes(&self) -> usize {
        self.message.as_ref().map_or(0, |message| message.record.len())
    }

    /// Memory of the message in progress.
    pub(crate) fn held_bytes(&self) -> usize {
        self.message.as_ref().map_or(0, |message| {
            message.record.capacity() + message.inflater.as_ref().map_or(0, |_| INFLATER_BYTES)
        })
    }

    /// Discards all further messages and the one in progress.
    pub(crate) fn discard(&mut self) {
        self.is_discarding = true;
        self.message = None;
    }

    /// Consumes bytes from the front of `bytes`, at least one.
    ///
    /// # Errors
    /// The client's protocol violation; the input cannot be parsed any further.
    pub(crate) fn next(&mut self, bytes: &mut &[u8], codecs: &Codecs) -> Result<ReceivedFrame, Violation> {
        let mut frame = match self.frame.take() {
            Some(frame) => frame,
            None => match self.heads.read(bytes).map_err(|reason| violation(PROTOCOL_ERROR, reason))? {
                Some(head) => self.begin(head, codecs)?,
                None => return Ok(ReceivedFrame::Incomplete),
            },
        };
        let was_empty = frame.remaining_bytes == 0;
        let here = usize::try_from(frame.remaining_bytes).unwrap_or(usize::MAX).min(bytes.len());
        let used = self.take_payload(&mut frame, &bytes[..here])?;
        *bytes = &bytes[used..];
        if frame.remaining_bytes > 0 {
            self.frame = Some(frame);
            return Ok(ReceivedFrame::Incomplete);
        }
        match frame.opcode {
            frame::CLOSE => read_close(self.control()).map(ReceivedFrame::Close),
            frame::PING => Ok(ReceivedFrame::Ping),
            frame::PONG => Ok(ReceivedFrame::Empty),
            _ if frame.last && !self.is_discarding => self.finish(codecs),
            _ if was_empty => Ok(ReceivedFrame::Empty),
            _ => Ok(ReceivedFrame::Incomplete),
        }
    }

    /// Begins a frame.
    fn begin(&mut self, head: FrameHead, codecs: &Codecs) -> Result<FrameHead, Violation> {
        if head.is_control() {
            self.control_len = 0;
            return Ok(head);
        }
        if self.is_discarding {
            return Ok(head);
        }
        if head.compressed && !self.may_compress {
            return Err(violation(PROTOCOL_ERROR, "a reserved bit is set"));
        }
        let message = match (head.opcode, self.message.take()) {
            (frame::CONTINUATION, Some(message)) => message,
            (frame::CONTINUATION, None) => {
                return Err(violation(PROTOCOL_ERROR, "a fragment continues no message"));
            }
            (_, Some(_)) => return Err(violation(PROTOCOL_ERROR, "a message begins within another")),
            (opcode, None) => IncompleteMessage {
                kind: if opcode == frame::TEXT { websocket_record::TEXT } else { websocket_record::BINARY },
                inflater: head.compressed.then(|| codecs.inflater()),
                raw_bytes: 0,
                record: new_record(head.remaining_bytes),
            },
        };
        let message = self.message.insert(message);
        message.raw_bytes = message.raw_bytes.saturating_add(head.remaining_bytes);
        // Incompressible data grows slightly, and each flush adds bytes.
        let slack = if message.inflater.is_some() { self.message_bytes_max as u64 / 8 + 1024 } else { 0 };
        if message.raw_bytes > self.message_bytes_max as u64 + slack {
            return Err(violation(MESSAGE_TOO_BIG, "the message is too long"));
        }
        Ok(head)
    }

    /// Consumes payload of the frame; returns the number of bytes.
    fn take_payload(&mut self, frame: &mut FrameHead, bytes: &[u8]) -> Result<usize, Violation> {
        if frame.is_control() {
            let place = &mut self.control[self.control_len..self.control_len + bytes.len()];
            place.copy_from_slice(bytes);
            frame.unmask(place);
            self.control_len += bytes.len();
            return Ok(bytes.len());
        }
        let len_max = websocket_record::HEAD_BYTES + self.message_bytes_max;
        match &mut self.message {
            None => {
                frame.remaining_bytes -= bytes.len() as u64;
                Ok(bytes.len())
            }
            Some(IncompleteMessage { inflater: None, record, .. }) => {
                let at = record.len();
                while record.capacity() < at + bytes.len() {
                    grow(record, len_max);
                }
                record.extend_from_slice(bytes);
                frame.unmask(&mut record[at..]);
                Ok(bytes.len())
            }
            Some(IncompleteMessage { inflater: Some(inflater), record, .. }) => {
                let mut piece = [0; INFLATE_STEP_BYTES];
                let piece = &mut piece[..bytes.len().min(INFLATE_STEP_BYTES)];
                piece.copy_from_slice(&bytes[..piece.len()]);
                frame.unmask(piece);
                inflater.inflate(piece, record, len_max).map_err(inflate_violation)?;
                Ok(piece.len())
            }
        }
    }

    /// Completes the message.
    fn finish(&mut self, codecs: &Codecs) -> Result<ReceivedFrame, Violation> {
        let Some(IncompleteMessage { kind, inflater, mut record, .. }) = self.message.take() else {
            return Ok(ReceivedFrame::Incomplete);
        };
        if let Some(mut inflater) = inflater {
            let len_max = websocket_record::HEAD_BYTES + self.message_bytes_max;
            inflater.finish(&mut record, len_max).map_err(inflate_violation)?;
            codecs.give_back_inflater(inflater);
        }
        if kind == websocket_record::TEXT
            && std::str::from_utf8(&record[websocket_record::HEAD_BYTES..]).is_err()
        {
            return Err(violation(INVALID_PAYLOAD, "the text is not UTF-8"));
        }
        websocket_record::put_head(&mut record, kind);
        Ok(ReceivedFrame::Message(record))
    }
}

/// Returns a record with space for its head and capacity for a first frame of this length.
fn new_record(frame_bytes: u64) -> Vec<u8> {
    let mut record =
        Vec::with_capacity(websocket_record::HEAD_BYTES + frame_bytes.min(FIRST_CAPACITY_MAX) as usize);
    record.resize(websocket_record::HEAD_BYTES, 0);
    record
}

fn inflate_violation(why: InflateError) -> Violation {
    match why {
        InflateError::TooLong => violation(MESSAGE_TOO_BIG, "the message is too long"),
        InflateError::Broken => violation(INVALID_PAYLOAD, "the compressed data is invalid"),
    }
}

/// Parses the payload of a close frame (RFC 6455 section 5.5.1).
fn read_close(payload: &[u8]) -> Result<Option<(u16, String)>, Violation> {
    let (code, reason) = match payload {
        [] => return Ok(None),
        [_] => return Err(violation(PROTOCOL_ERROR, "a close has half a code")),
        [high, low, reason @ ..] => (u16::from_be_bytes([*high, *low]), reason),
    };
    if !frame::is_close_code(code) {
        return Err(violation(PROTOCOL_ERROR, "a close has a code that may not be sent"));
    }
    let reason =
        std::str::from_utf8(reason).map_err(|_| violation(INVALID_PAYLOAD, "the reason is not UTF-8"))?;
    Ok(Some((code, reason.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{BINARY, COMPRESSED, CONTINUATION, FIN, TEXT};

    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![first, 0x80 | 126];
        bytes.extend((payload.len() as u16).to_be_bytes());
        let mask = [9, 8, 7, 6];
        bytes.extend(mask);
        bytes.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        bytes
    }

    fn hear(inbound: &mut Inbound, mut bytes: &[u8]) -> Result<Vec<ReceivedFrame>, Violation> {
        let codecs = Codecs::default();
        let mut received = Vec::new();
        while !bytes.is_empty() {
            match inbound.next(&mut bytes, &codecs)? {
                ReceivedFrame::Incomplete => {}
                other => received.push(other),
            }
        }
        Ok(received)
    }

    fn record(kind: u8, payload: &[u8]) -> ReceivedFrame {
        let mut bytes = Vec::new();
        websocket_record::put(&mut bytes, kind, [payload, b""]);
        ReceivedFrame::Message(bytes)
    }

    #[test]
    fn messages_are_received_wherever_frames_are_split() {
        let bytes = [
            frame(TEXT, "grü".as_bytes()),
            frame(CONTINUATION, b""),
            frame(FIN, "ß".as_bytes()),
            frame(FIN | BINARY, &[]),
            frame(FIN | BINARY | COMPRESSED, &[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00]),
            frame(TEXT | COMPRESSED, &[0xf2, 0x48, 0xcd]),
            frame(FIN, &[0xc9, 0xc9, 0x07, 0x00]),
        ]
        .concat();
        let expected = [
            ReceivedFrame::Empty,
            record(websocket_record::TEXT, "grüß".as_bytes()),
            record(websocket_record::BINARY, b""),
            record(websocket_record::BINARY, b"Hello"),
            record(websocket_record::TEXT, b"Hello"),
        ];
        for step in 1..bytes.len() {
            let mut inbound = Inbound::new(1000, true);
            let received: Vec<_> =
                bytes.chunks(step).flat_map(|piece| hear(&mut inbound, piece).unwrap()).collect();
            assert_eq!(received, expected, "{step}");
        }
    }

    #[test]
    fn message_size_is_limited() {
        let mut inbound = Inbound::new(100_000, true);
        let bytes = frame(CONTINUATION, &[0; 30_000]);
        assert_eq!(hear(&mut inbound, &frame(BINARY, b"")), Ok(vec![ReceivedFrame::Empty]));
        for _ in 0..3 {
            assert_eq!(hear(&mut inbound, &bytes), Ok(vec![]));
        }
        let held = inbound.message.as_ref().unwrap().record.capacity();
        assert!(held <= 100_005, "{held}");
        assert_eq!(hear(&mut inbound, &bytes).unwrap_err().code, 1009);
        // Compressed blocks without content, repeated endlessly.
        let mut inbound = Inbound::new(100_000, true);
        hear(&mut inbound, &frame(BINARY | COMPRESSED, b"")).unwrap();
        let nothing = frame(CONTINUATION, &[0, 0, 0, 0xff, 0xff].repeat(1000));
        let refused = (0..1000).find_map(|_| hear(&mut inbound, &nothing).err());
        assert_eq!(refused.unwrap().code, 1009);
    }

    #[test]
    fn invalid_frames_have_matching_close_codes() {
        for (bytes, code) in [
            (frame(FIN | TEXT, &[0xc3, 0x28]), 1007),
            (frame(FIN, b"x"), 1002),
            ([frame(TEXT, b"x"), frame(FIN | TEXT, b"y")].concat(), 1002),
            (frame(FIN | TEXT | COMPRESSED, &[0xff; 20]), 1007),
            (frame(FIN | BINARY, &[0; 1001]), 1009),
        ] {
            assert_eq!(hear(&mut Inbound::new(1000, true), &bytes).unwrap_err().code, code);
        }
        let compressed = frame(FIN | TEXT | COMPRESSED, &[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00]);
        assert_eq!(hear(&mut Inbound::new(1000, false), &compressed).unwrap_err().code, 1002);
        for payload in [&[3][..], &999u16.to_be_bytes(), &1005u16.to_be_bytes(), &[3, 232, 0xff]] {
            assert!(read_close(payload).is_err(), "{payload:?}");
        }
        assert_eq!(read_close(&[3, 232, b'b', b'y', b'e']), Ok(Some((1000, "bye".into()))));
    }

    #[test]
    fn discarded_input_yields_only_the_close_frame() {
        let mut inbound = Inbound::new(1000, true);
        hear(&mut inbound, &frame(TEXT, b"x")).unwrap();
        inbound.discard();
        let bytes =
            [frame(FIN, b"y"), frame(FIN | BINARY, &[0; 5000]), vec![0x88, 0x80, 1, 2, 3, 4]].concat();
        assert_eq!(hear(&mut inbound, &bytes), Ok(vec![ReceivedFrame::Close(None)]));
    }
}
