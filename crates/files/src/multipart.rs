//! `multipart/byteranges` (RFC 9110 section 14.6): several ranges in one body.

use std::ops::Range;

use http::range;

/// Layout of a body: the head and the range of each part, and the end.
#[derive(Debug)]
pub struct Multipart {
    /// Value of `Content-Type`.
    pub content_type: String,
    /// Head of each part, and the range of its content.
    pub parts: Vec<(Vec<u8>, Range<u64>)>,
    /// Bytes after the last range.
    pub end: Vec<u8>,
    /// Length of the entire body in bytes.
    pub length: u64,
}

impl Multipart {
    /// Lays out `ranges` of a representation of `length` bytes. `seed` provides 128 random bits for the
    /// boundary, which therefore does not occur in the content.
    #[must_use]
    pub fn new(ranges: Vec<Range<u64>>, content_type: &str, length: u64, seed: [u64; 2]) -> Multipart {
        let boundary = format!("{:016x}{:016x}", seed[0], seed[1]);
        let parts: Vec<_> = ranges
            .into_iter()
            .map(|range| {
                let content_range = range::content_range(&range, length);
                let head = format!(
                    "\r\n--{boundary}\r\nContent-Type: {content_type}\r\nContent-Range: {content_range}\r\n\r\n"
                );
                (head.into_bytes(), range)
            })
            .collect();
        let end = format!("\r\n--{boundary}--\r\n").into_bytes();
        let bytes = |(head, range): &(Vec<u8>, Range<u64>)| head.len() as u64 + (range.end - range.start);
        let length = parts.iter().map(bytes).sum::<u64>() + end.len() as u64;
        Multipart { content_type: format!("multipart/byteranges; boundary={boundary}"), parts, end, length }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multipart_length_matches_its_body() {
        let content = b"0123456789";
        let multipart = Multipart::new(vec![0..2, 9..10], "text/plain", 10, [1, 0xabc]);
        let mut body = Vec::new();
        for (head, range) in &multipart.parts {
            body.extend_from_slice(head);
            body.extend_from_slice(&content[range.start as usize..range.end as usize]);
        }
        body.extend_from_slice(&multipart.end);
        let boundary = "00000000000000010000000000000abc";
        let want = format!(
            "\r\n--{boundary}\r\nContent-Type: text/plain\r\nContent-Range: bytes 0-1/10\r\n\r\n01\
             \r\n--{boundary}\r\nContent-Type: text/plain\r\nContent-Range: bytes 9-9/10\r\n\r\n9\
             \r\n--{boundary}--\r\n"
        );
        assert_eq!(String::from_utf8(body).unwrap(), want);
        assert_eq!(multipart.length, want.len() as u64);
        assert_eq!(multipart.content_type, format!("multipart/byteranges; boundary={boundary}"));
    }
}
