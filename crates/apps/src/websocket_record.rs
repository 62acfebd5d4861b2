//! Encoding of WebSocket messages in the bodies between server and worker: see `KOMAINU_WEBSOCKET` in
//! `komainu.h`.

/// Kind of a text message.
pub(crate) const TEXT: u8 = 1;
/// Kind of a binary message.
pub(crate) const BINARY: u8 = 2;
/// Kind of the last record: a close code and a reason.
pub(crate) const CLOSE: u8 = 8;

/// Size of a record's head: kind and length.
pub(crate) const HEAD_BYTES: usize = 5;
/// Size of the fragments in which a longer message is passed on.
const FRAGMENT_BYTES: usize = 64 * 1024;
/// Maximum size of close code and reason in a frame (RFC 6455 section 5.5).
const CLOSE_BYTES_MAX: usize = 125;

/// Appends a record.
pub(crate) fn put(into: &mut Vec<u8>, kind: u8, parts: [&[u8]; 2]) {
    let len = parts[0].len() + parts[1].len();
    into.push(kind);
    into.extend_from_slice(&u32::try_from(len).expect("a message is limited to less").to_le_bytes());
    parts.iter().for_each(|part| into.extend_from_slice(part));
}

/// Writes the head of a record into the space reserved before the payload.
pub(crate) fn put_head(record: &mut [u8], kind: u8) {
    let len = u32::try_from(record.len() - HEAD_BYTES).expect("a message is limited to less");
    record[0] = kind;
    record[1..HEAD_BYTES].copy_from_slice(&len.to_le_bytes());
}

/// A record from a worker.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WorkerRecord {
    /// A message, or a fragment of one.
    Data {
        /// Whether the message is text.
        text: bool,
        /// Whether it is the message's first fragment.
        first: bool,
        /// Whether it is the message's last fragment.
        last: bool,
        payload: Vec<u8>,
    },
    /// The end of the WebSocket.
    Close { code: u16, reason: String },
}

/// Incremental reader of a worker's records.
#[derive(Debug, Default)]
pub(crate) struct RecordReader {
    head: Vec<u8>,
    payload: Vec<u8>,
    /// Payload bytes of the current record that have not arrived yet.
    remaining_bytes: usize,
    /// Whether a fragment of this message was returned already.
    is_fragmented: bool,
}

impl RecordReader {
    /// Consumes bytes from the front of `bytes`; returns the message, fragment or close that they complete.
    ///
    /// # Errors
    /// The bytes are not a valid record.
    pub(crate) fn take(&mut self, bytes: &mut &[u8]) -> Result<Option<WorkerRecord>, &'static str> {
        while self.head.len() < HEAD_BYTES {
            let Some((byte, rest)) = bytes.split_first() else { return Ok(None) };
            self.head.push(*byte);
            *bytes = rest;
            if self.head.len() == HEAD_BYTES {
                self.parse_head()?;
            }
        }
        let taken = self.remaining_bytes.min(bytes.len()).min(FRAGMENT_BYTES - self.payload.len());
        let (now, rest) = bytes.split_at(taken);
        self.payload.extend_from_slice(now);
        self.remaining_bytes -= taken;
        *bytes = rest;
        if self.remaining_bytes > 0 && self.payload.len() < FRAGMENT_BYTES {
            return Ok(None);
        }
        self.complete_record().map(Some)
    }

    fn parse_head(&mut self) -> Result<(), &'static str> {
        self.remaining_bytes =
            u32::from_le_bytes([self.head[1], self.head[2], self.head[3], self.head[4]]) as usize;
        self.is_fragmented = false;
        match self.head[0] {
            TEXT | BINARY => Ok(()),
            CLOSE if (2..=CLOSE_BYTES_MAX).contains(&self.remaining_bytes) => Ok(()),
            CLOSE => Err("the close of a WebSocket has a code, and a reason of up to 123 bytes"),
            _ => Err("a WebSocket's record of no kind"),
        }
    }

    fn complete_record(&mut self) -> Result<WorkerRecord, &'static str> {
        let payload = std::mem::take(&mut self.payload);
        let first = !self.is_fragmented;
        let last = self.remaining_bytes == 0;
        let kind = self.head[0];
        self.is_fragmented = true;
        if last {
            self.head.clear();
        }
        if kind != CLOSE {
            return Ok(WorkerRecord::Data { text: kind == TEXT, first, last, payload });
        }
        let (code, reason) = payload.split_at(2);
        let reason = String::from_utf8(reason.to_vec()).map_err(|_| "the reason of a close is not UTF-8")?;
        Ok(WorkerRecord::Close { code: u16::from_le_bytes([code[0], code[1]]), reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8], step: usize) -> Result<Vec<WorkerRecord>, &'static str> {
        let mut records = RecordReader::default();
        let mut said = Vec::new();
        for mut piece in bytes.chunks(step) {
            loop {
                let before = piece.len();
                match records.take(&mut piece)? {
                    Some(found) => said.push(found),
                    None if piece.len() == before || piece.is_empty() => break,
                    None => {}
                }
            }
        }
        Ok(said)
    }

    #[test]
    fn records_are_parsed_wherever_they_are_split() {
        let mut bytes = Vec::new();
        put(&mut bytes, TEXT, [b"he", b"llo"]);
        put(&mut bytes, BINARY, [b"", b""]);
        put(&mut bytes, CLOSE, [&4001u16.to_le_bytes(), b"enough"]);
        let whole = read(&bytes, bytes.len()).unwrap();
        let data = |text, payload: &[u8]| WorkerRecord::Data {
            text,
            first: true,
            last: true,
            payload: payload.to_vec(),
        };
        let close = WorkerRecord::Close { code: 4001, reason: "enough".into() };
        assert_eq!(whole, [data(true, b"hello"), data(false, b""), close]);
        for step in 1..bytes.len() {
            assert_eq!(read(&bytes, step).unwrap(), whole);
        }
    }

    #[test]
    fn a_long_message_continues_in_fragments() {
        let mut bytes = Vec::new();
        put(&mut bytes, BINARY, [&vec![7; 2 * FRAGMENT_BYTES + 1], b""]);
        let shape: Vec<_> = read(&bytes, 1000)
            .unwrap()
            .into_iter()
            .map(|said| match said {
                WorkerRecord::Data { first, last, payload, .. } => (first, last, payload.len()),
                WorkerRecord::Close { .. } => panic!("no close"),
            })
            .collect();
        assert_eq!(shape, [(true, false, FRAGMENT_BYTES), (false, false, FRAGMENT_BYTES), (false, true, 1)]);
    }

    #[test]
    fn malformed_records_are_rejected() {
        let mut short = Vec::new();
        put(&mut short, CLOSE, [b"1", b""]);
        let mut long = Vec::new();
        put(&mut long, CLOSE, [&[0; 126], b""]);
        let mut bad = Vec::new();
        put(&mut bad, CLOSE, [&1000u16.to_le_bytes(), &[0xff]]);
        for bytes in [&short, &long, &bad, &vec![3, 0, 0, 0, 0]] {
            assert!(read(bytes, bytes.len()).is_err(), "{bytes:?}");
        }
    }
}
