//! Bodies that an application has chunked itself, as `Transfer-Encoding: chunked` in its head states.

use http::Limits;
use http::body::Body;
use net::Fault;

const INVALID_CHUNKING: Fault = Fault::Failed("the application's body is not chunked correctly");

/// Decoder that removes the application's framing, because the server frames the response itself.
pub(crate) struct Chunks(Body);

/// Whether a body is chunked as its head states. Checks all of a `whole` body, otherwise its beginning.
pub(crate) fn is_chunked(bytes: &[u8], is_complete: bool) -> bool {
    if is_complete { Chunks::new().content(bytes, true).is_ok() } else { may_be_chunked(bytes) }
}

/// Whether a body that begins with these bytes may be chunked: a size, an optional extension, and a line end. True if
/// there are too few bytes to decide.
fn may_be_chunked(bytes: &[u8]) -> bool {
    let digits = bytes.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    match bytes.get(digits) {
        None => true,
        Some(b'\r') => digits > 0 && matches!(bytes.get(digits + 1), None | Some(b'\n')),
        Some(byte) => digits > 0 && matches!(byte, b';' | b' ' | b'\t'),
    }
}

impl Chunks {
    pub(crate) fn new() -> Chunks {
        Chunks(Body::chunked())
    }

    /// Returns the content of the next bytes; `last` if no more follow.
    ///
    /// # Errors
    /// [`Fault::Failed`] if the body is not chunked.
    pub(crate) fn content(&mut self, mut bytes: &[u8], last: bool) -> Result<Vec<u8>, Fault> {
        let mut content = Vec::with_capacity(bytes.len());
        while !bytes.is_empty() && !self.0.is_end() {
            let piece = self.0.feed(bytes, &Limits::default()).map_err(|_| INVALID_CHUNKING)?;
            content.extend_from_slice(&bytes[piece.data_start..piece.data_end]);
            bytes = &bytes[piece.consumed..];
        }
        if bytes.is_empty() && (self.0.is_end() || !last) { Ok(content) } else { Err(INVALID_CHUNKING) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunked_body_is_decoded_wherever_it_is_split() {
        let bytes = b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n";
        for cut in 0..bytes.len() {
            let (first, second) = bytes.split_at(cut);
            let mut chunks = Chunks::new();
            let mut content = chunks.content(first, false).unwrap();
            content.extend(chunks.content(second, true).unwrap());
            assert_eq!(content, b"abcde");
        }
    }

    #[test]
    fn beginning_of_a_chunked_body_is_recognized() {
        for (bytes, expected) in [
            ("", true),
            ("1f", true),
            ("3\r\nabc", true),
            ("3;x=y\r\n", true),
            ("no chunks", false),
            ("\r\n", false),
        ] {
            assert_eq!(may_be_chunked(bytes.as_bytes()), expected, "{bytes}");
        }
    }

    #[test]
    fn malformed_chunks_are_rejected() {
        for (bytes, last) in [("plain", false), ("3\r\nabc", true), ("", true), ("0\r\n\r\nmore", true)] {
            assert!(Chunks::new().content(bytes.as_bytes(), last).is_err(), "{bytes}");
        }
    }
}
