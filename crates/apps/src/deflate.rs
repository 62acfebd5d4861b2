//! permessage-deflate (RFC 7692): negotiation, and compression of single messages.
//!
//! Messages are compressed independently in both directions (`server_no_context_takeover`,
//! `client_no_context_takeover`), so that a socket holds no window between two messages and the few codecs of
//! a core serve all its sockets.

use std::cell::RefCell;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
use http::scan;

const NAME: &[u8] = b"permessage-deflate";
/// The server's window in bits: 4 KiB compress messages nearly as well as 32, with half the memory.
const WINDOW_BITS: u8 = 12;
/// Smallest window that zlib supports.
const WINDOW_BITS_MIN: u8 = 9;
/// End of each message's last block, which is not transmitted (section 7.2.1).
const TAIL: [u8; 4] = [0, 0, 0xff, 0xff];
/// Codecs of each kind that a core keeps for reuse.
const CODECS_KEPT_MAX: usize = 4;
/// Smallest and largest step by which an output buffer grows.
const GROWTH_BYTES_MIN: usize = 512;
const GROWTH_BYTES_MAX: usize = 1024 * 1024;

/// Negotiated compression parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeflateParameters {
    /// Window of messages to the client.
    window_bits: u8,
    /// Whether the client asked for a limit, so that the response must name the chosen one.
    names_window: bool,
}

impl DeflateParameters {
    /// Returns the value of `Sec-WebSocket-Extensions` in the response.
    pub(crate) fn field_value(&self) -> String {
        let limit = if self.names_window {
            format!("; server_max_window_bits={}", self.window_bits)
        } else {
            String::new()
        };
        format!("permessage-deflate; server_no_context_takeover; client_no_context_takeover{limit}")
    }
}

/// Returns the first acceptable offer in the values of `Sec-WebSocket-Extensions`.
pub(crate) fn negotiate<'v>(values: impl Iterator<Item = &'v [u8]>) -> Option<DeflateParameters> {
    values.flat_map(|value| value.split(|&byte| byte == b',')).find_map(accept)
}

fn accept(offer: &[u8]) -> Option<DeflateParameters> {
    let mut parts = offer.split(|&byte| byte == b';').map(scan::trim);
    if !parts.next()?.eq_ignore_ascii_case(NAME) {
        return None;
    }
    let mut agreement = DeflateParameters { window_bits: WINDOW_BITS, names_window: false };
    let mut seen = Vec::new();
    for part in parts {
        let (name, value) = match part.iter().position(|&byte| byte == b'=') {
            Some(at) => (scan::trim(&part[..at]), Some(unquoted(scan::trim(&part[at + 1..])))),
            None => (part, None),
        };
        if seen.contains(&name) {
            return None;
        }
        match (name, value) {
            (
                b"server_no_context_takeover" | b"client_no_context_takeover" | b"client_max_window_bits",
                None,
            ) => {}
            (b"client_max_window_bits", Some(value)) if parse_window_bits(value).is_some() => {}
            (b"server_max_window_bits", Some(value)) => {
                let most = parse_window_bits(value).filter(|bits| *bits >= WINDOW_BITS_MIN)?;
                agreement = DeflateParameters { window_bits: most.min(WINDOW_BITS), names_window: true };
            }
            _ => return None,
        }
        seen.push(name);
    }
    Some(agreement)
}

fn unquoted(value: &[u8]) -> &[u8] {
    value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value)
}

/// Parses 8 to 15, without a leading zero.
fn parse_window_bits(value: &[u8]) -> Option<u8> {
    match value {
        [digit @ b'8'..=b'9'] => Some(digit - b'0'),
        [b'1', digit @ b'0'..=b'5'] => Some(10 + digit - b'0'),
        _ => None,
    }
}

/// Idle codecs of one core.
#[derive(Debug, Default)]
pub(crate) struct Codecs {
    inflaters: RefCell<Vec<Decompress>>,
    deflaters: RefCell<Vec<Deflater>>,
}

impl Codecs {
    /// Returns a codec for a message from a client; give it back after the message.
    pub(crate) fn inflater(&self) -> Inflater {
        Inflater(self.inflaters.borrow_mut().pop().unwrap_or_else(|| Decompress::new(false)))
    }

    pub(crate) fn give_back_inflater(&self, Inflater(mut inflater): Inflater) {
        let mut kept = self.inflaters.borrow_mut();
        if kept.len() < CODECS_KEPT_MAX {
            inflater.reset(false);
            kept.push(inflater);
        }
    }

    /// Returns a codec for a message to a client; give it back after the message.
    pub(crate) fn deflater(&self, agreement: DeflateParameters) -> Deflater {
        let mut kept = self.deflaters.borrow_mut();
        let at = kept.iter().position(|deflater| deflater.window_bits == agreement.window_bits);
        at.map_or_else(|| Deflater::new(agreement.window_bits), |at| kept.swap_remove(at))
    }

    pub(crate) fn give_back_deflater(&self, mut deflater: Deflater) {
        let mut kept = self.deflaters.borrow_mut();
        if kept.len() < CODECS_KEPT_MAX {
            deflater.codec.reset();
            kept.push(deflater);
        }
    }
}

/// Reason why a message cannot be inflated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InflateError {
    TooLong,
    Broken,
}

/// Inflates one message from a client.
#[derive(Debug)]
pub(crate) struct Inflater(Decompress);

impl Inflater {
    /// Appends the inflated `bytes`; all of them are consumed. `into` never grows beyond `len_max` + 1 bytes.
    ///
    /// # Errors
    /// The data is invalid, or `into` would grow longer than `len_max`.
    pub(crate) fn inflate(
        &mut self,
        mut bytes: &[u8],
        into: &mut Vec<u8>,
        len_max: usize,
    ) -> Result<(), InflateError> {
        loop {
            if into.len() == into.capacity() {
                grow(into, len_max + 1);
            }
            let before_in = self.0.total_in();
            let before_len = into.len();
            let status = self.0.decompress_vec(bytes, into, FlushDecompress::Sync);
            let status = status.map_err(|_| InflateError::Broken)?;
            let used = (self.0.total_in() - before_in) as usize;
            bytes = &bytes[used..];
            if into.len() > len_max {
                return Err(InflateError::TooLong);
            }
            let has_room = into.len() < into.capacity();
            match status {
                // A block with BFINAL set may be followed by more blocks (section 7.2.3.4).
                Status::StreamEnd => {
                    self.0.reset(false);
                    if bytes.is_empty() {
                        return Ok(());
                    }
                }
                _ if bytes.is_empty() && has_room => return Ok(()),
                _ if used == 0 && into.len() == before_len && has_room => return Err(InflateError::Broken),
                _ => {}
            }
        }
    }

    /// Finishes the message.
    ///
    /// # Errors
    /// See [`Inflater::inflate`].
    pub(crate) fn finish(&mut self, into: &mut Vec<u8>, len_max: usize) -> Result<(), InflateError> {
        self.inflate(&TAIL, into, len_max)
    }
}

/// Doubles the capacity, by at most [`GROWTH_BYTES_MAX`], up to `len_max`.
pub(crate) fn grow(into: &mut Vec<u8>, len_max: usize) {
    let more = into.capacity().min(GROWTH_BYTES_MAX);
    let wanted = (into.capacity() + more).clamp(GROWTH_BYTES_MIN, len_max.max(GROWTH_BYTES_MIN));
    into.reserve_exact(wanted.saturating_sub(into.len()));
}

/// Deflates one message to a client.
#[derive(Debug)]
pub(crate) struct Deflater {
    codec: Compress,
    window_bits: u8,
}

impl Deflater {
    fn new(window_bits: u8) -> Deflater {
        Deflater {
            codec: Compress::new_with_window_bits(Compression::fast(), false, window_bits),
            window_bits,
        }
    }

    /// Appends the compressed output available so far; with `last`, all of it.
    pub(crate) fn deflate(&mut self, mut bytes: &[u8], into: &mut Vec<u8>, last: bool) {
        let flush = if last { FlushCompress::Sync } else { FlushCompress::None };
        loop {
            into.reserve(bytes.len() / 2 + GROWTH_BYTES_MIN);
            let before = self.codec.total_in();
            // Cannot fail: the stream is never finished, so there is no data after its end.
            let status = self.codec.compress_vec(bytes, into, flush);
            debug_assert!(status.is_ok());
            bytes = &bytes[(self.codec.total_in() - before) as usize..];
            if status.is_err() || (bytes.is_empty() && into.len() < into.capacity()) {
                break;
            }
        }
        if last && into.ends_with(&TAIL) {
            into.truncate(into.len() - TAIL.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agreed(value: &str) -> Option<String> {
        negotiate([value.as_bytes()].into_iter()).map(|agreement| agreement.field_value())
    }

    #[test]
    fn permessage_deflate_offers_are_negotiated() {
        let plain = "permessage-deflate; server_no_context_takeover; client_no_context_takeover";
        for (offer, expected) in [
            ("permessage-deflate", Some(plain.to_owned())),
            ("permessage-deflate; client_max_window_bits", Some(plain.to_owned())),
            (
                "x-webkit-deflate-frame, Permessage-Deflate;client_max_window_bits=\"15\"",
                Some(plain.to_owned()),
            ),
            (
                "permessage-deflate; server_max_window_bits=15",
                Some(format!("{plain}; server_max_window_bits=12")),
            ),
            (
                "permessage-deflate; server_max_window_bits=10",
                Some(format!("{plain}; server_max_window_bits=10")),
            ),
            ("permessage-deflate; server_max_window_bits=8", None),
            ("permessage-deflate; server_max_window_bits=8, permessage-deflate", Some(plain.to_owned())),
            ("permessage-deflate; server_max_window_bits", None),
            ("permessage-deflate; server_max_window_bits=016", None),
            ("permessage-deflate; client_max_window_bits=16", None),
            ("permessage-deflate; server_no_context_takeover=1", None),
            ("permessage-deflate; client_max_window_bits; client_max_window_bits", None),
            ("permessage-deflate; something", None),
            ("permessage-bzip2", None),
            ("", None),
        ] {
            assert_eq!(agreed(offer), expected, "{offer}");
        }
    }

    fn codec_pair() -> (Inflater, Deflater) {
        let codecs = Codecs::default();
        (codecs.inflater(), codecs.deflater(DeflateParameters { window_bits: 9, names_window: true }))
    }

    #[test]
    fn compressed_messages_round_trip_for_any_piece_size() {
        let text: Vec<u8> = (0..2000).flat_map(|at| format!("line {at} of a text\n").into_bytes()).collect();
        for step in [1, 7, 1000, text.len()] {
            let (mut inflater, mut deflater) = codec_pair();
            let mut small = Vec::new();
            let mut back = Vec::new();
            let mut pieces = text.chunks(step).peekable();
            while let Some(piece) = pieces.next() {
                deflater.deflate(piece, &mut small, pieces.peek().is_none());
            }
            assert!(small.len() < text.len() / 2, "{}", small.len());
            small.chunks(step).for_each(|piece| inflater.inflate(piece, &mut back, text.len()).unwrap());
            inflater.finish(&mut back, text.len()).unwrap();
            assert!(back == text);
        }
    }

    #[test]
    fn inflating_stops_at_the_size_limit() {
        let (mut inflater, mut deflater) = codec_pair();
        let mut small = Vec::new();
        let mut back = Vec::new();
        deflater.deflate(&vec![0; 5_000_000], &mut small, true);
        assert_eq!(inflater.inflate(&small, &mut back, 100_000), Err(InflateError::TooLong));
        assert!(back.capacity() <= 100_001, "{}", back.capacity());
    }

    /// The examples of RFC 7692, sections 7.2.3.1, 7.2.3.3 and 7.2.3.4.
    #[test]
    fn every_deflate_block_type_is_inflated() {
        for bytes in [
            &[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00][..],
            &[0x00, 0x05, 0x00, 0xfa, 0xff, 0x48, 0x65, 0x6c, 0x6c, 0x6f, 0x00],
            &[0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0x00],
        ] {
            let (mut inflater, _) = codec_pair();
            let mut back = Vec::new();
            inflater.inflate(bytes, &mut back, 100).unwrap();
            inflater.finish(&mut back, 100).unwrap();
            assert_eq!(back, b"Hello");
        }
        let (mut inflater, _) = codec_pair();
        assert_eq!(inflater.inflate(&[0xff; 20], &mut Vec::new(), 100), Err(InflateError::Broken));
    }
}
