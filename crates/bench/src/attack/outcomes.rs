//! Records how a server ends attack connections, from the bytes that it sends.

use std::collections::BTreeMap;

use http2::ErrorCode;

use super::wire::kind;

/// Size of an HTTP/2 frame header.
const HEADER_BYTES: usize = 9;

/// Numbers of connections by the way they ended; `reset` counts streams.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionOutcomes {
    /// Connections ended by GOAWAY, by error code.
    pub goaway: BTreeMap<String, u64>,
    /// Streams reset, by error code.
    pub reset: BTreeMap<String, u64>,
    /// QUIC connections ended by CONNECTION_CLOSE, by error code, or by a stateless reset.
    pub quic_close: BTreeMap<String, u64>,
    /// Streams of QUIC ended by the server, by frame and error code.
    pub stream_ends: BTreeMap<String, u64>,
    /// Replies to datagrams without a connection, by packet type.
    pub replies: BTreeMap<&'static str, u64>,
    /// HTTP/1 connections that received a response, by the first status.
    pub status: BTreeMap<u16, u64>,
    /// Connections closed by the server without GOAWAY or response.
    pub closed: u64,
    /// Connections without packets from the server for the idle timeout.
    pub timed_out: u64,
    /// Connections closed by the attack.
    pub left: u64,
    /// Connections still open at the end.
    pub open: u64,
    /// Connections that could not be made.
    pub refused: u64,
}

impl ConnectionOutcomes {
    /// Formats the counts in one line, the most frequent first.
    #[must_use]
    pub fn text(&self) -> String {
        let mut parts: Vec<(u64, String)> = Vec::new();
        parts.extend(self.goaway.iter().map(|(code, &count)| (count, format!("GOAWAY {code}"))));
        parts.extend(self.quic_close.iter().map(|(code, &count)| (count, code.clone())));
        parts.extend(self.replies.iter().map(|(kind, &count)| (count, kind.to_string())));
        parts.extend(self.status.iter().map(|(code, &count)| (count, format!("status {code}"))));
        parts.extend([
            (self.closed, "closed".to_string()),
            (self.timed_out, "timed out".to_string()),
            (self.left, "closed by the attack".to_string()),
            (self.open, "left open".to_string()),
            (self.refused, "not accepted".to_string()),
        ]);
        parts.retain(|(count, _)| *count > 0);
        parts.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
        let resets = self.reset.iter().max_by_key(|(_, count)| **count);
        let resets = resets.map(|(code, count)| format!("{count} RST_STREAM {code}"));
        let stream_ends = self.stream_ends.iter().max_by_key(|(_, count)| **count);
        let resets = resets.or(stream_ends.map(|(end, count)| format!("{count} {end}")));
        let ends = parts.iter().map(|(count, what)| format!("{count} {what}"));
        ends.chain(resets).collect::<Vec<_>>().join(", ")
    }

    /// Counts a QUIC connection that the server has closed.
    pub(crate) fn count_quic_close(&mut self, code: String) {
        *self.quic_close.entry(code).or_default() += 1;
    }

    /// Counts a QUIC stream that the server has ended early.
    pub(crate) fn count_stream_end(&mut self, end: String) {
        *self.stream_ends.entry(end).or_default() += 1;
    }

    fn count(map: &mut BTreeMap<String, u64>, code: u32) {
        let name = match ErrorCode(code).text() {
            "" => format!("code {code}"),
            name => name.to_string(),
        };
        *map.entry(name).or_default() += 1;
    }
}

/// Incremental parser of the server's bytes on one connection, which stores no content.
#[derive(Debug, Default)]
pub(crate) struct ResponseScanner {
    is_http2: bool,
    /// Header of a frame and the first bytes of its payload, or the first bytes of an HTTP/1 response.
    partial_bytes: Vec<u8>,
    /// Payload bytes still to be skipped.
    skip_bytes: usize,
    goaway: Option<u32>,
    status: Option<u16>,
}

impl ResponseScanner {
    pub(crate) fn new(is_http2: bool) -> ResponseScanner {
        ResponseScanner { is_http2, ..ResponseScanner::default() }
    }

    /// Parses received bytes; stream resets are counted immediately.
    pub(crate) fn feed(&mut self, mut bytes: &[u8], outcomes: &mut ConnectionOutcomes) {
        if !self.is_http2 {
            return self.take_status(bytes);
        }
        while !bytes.is_empty() {
            let skipped = self.skip_bytes.min(bytes.len());
            self.skip_bytes -= skipped;
            bytes = &bytes[skipped..];
            let want = self.parsed_bytes();
            let taken = want.saturating_sub(self.partial_bytes.len()).min(bytes.len());
            self.partial_bytes.extend_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
            if self.partial_bytes.len() >= HEADER_BYTES && self.partial_bytes.len() >= self.parsed_bytes() {
                self.parse_frame(outcomes);
            }
        }
    }

    /// Returns the number of bytes of a frame that must be parsed, including its header.
    fn parsed_bytes(&self) -> usize {
        let looked_at = match self.partial_bytes.get(3) {
            Some(&kind::GOAWAY) => 8,
            Some(&kind::RST_STREAM) => 4,
            _ => 0,
        };
        HEADER_BYTES + looked_at.min(self.payload_bytes())
    }

    fn payload_bytes(&self) -> usize {
        self.partial_bytes.first_chunk().map_or(0, |[a, b, c]| u32::from_be_bytes([0, *a, *b, *c]) as usize)
    }

    fn parse_frame(&mut self, outcomes: &mut ConnectionOutcomes) {
        let kind = self.partial_bytes[3];
        let payload = &self.partial_bytes[HEADER_BYTES..];
        match kind {
            kind::GOAWAY => self.goaway = payload.get(4..8).map(read_number),
            kind::RST_STREAM => {
                if let Some(code) = payload.get(..4) {
                    ConnectionOutcomes::count(&mut outcomes.reset, read_number(code));
                }
            }
            _ => {}
        }
        self.skip_bytes = self.payload_bytes() - (self.partial_bytes.len() - HEADER_BYTES);
        self.partial_bytes.clear();
    }

    fn take_status(&mut self, bytes: &[u8]) {
        let room = "HTTP/1.1 200".len() - self.partial_bytes.len();
        self.partial_bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
        let code = self.partial_bytes.get(9..12).and_then(|code| std::str::from_utf8(code).ok());
        self.status = code.and_then(|code| code.parse().ok());
    }

    /// Counts how the connection ended; `is_open` if the server has not ended it.
    pub(crate) fn end(self, is_open: bool, outcomes: &mut ConnectionOutcomes) {
        match (self.goaway, self.status) {
            (Some(code), _) => ConnectionOutcomes::count(&mut outcomes.goaway, code),
            _ if is_open => outcomes.open += 1,
            (_, Some(status)) => *outcomes.status.entry(status).or_default() += 1,
            _ => outcomes.closed += 1,
        }
    }
}

fn read_number(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |number, &byte| number << 8 | u32::from(byte))
}

#[cfg(test)]
mod tests {
    use super::super::wire::{frame, rst_stream, settings};
    use super::*;

    #[test]
    fn connection_ends_are_parsed_wherever_bytes_are_split() {
        let goaway = frame(kind::GOAWAY, 0, 0, &[&[0, 0, 0, 7, 0, 0, 0, 11][..], b"calm down"].concat());
        let bytes =
            [settings(&[(1, 2)]), rst_stream(1, 7), frame(0, 0, 1, &[9; 300]), rst_stream(3, 7), goaway]
                .concat();
        for size in [1, 2, 10, 100, 1_000] {
            let mut scan = ResponseScanner::new(true);
            let mut ends = ConnectionOutcomes::default();
            bytes.chunks(size).for_each(|piece| scan.feed(piece, &mut ends));
            scan.end(false, &mut ends);
            assert_eq!(ends.text(), "1 GOAWAY ENHANCE_YOUR_CALM, 2 RST_STREAM REFUSED_STREAM", "{size}");
            assert_eq!(ends.reset["REFUSED_STREAM"], 2);
            let mut scan = ResponseScanner::new(false);
            b"HTTP/1.1 408 Request Timeout\r\n\r\n"
                .chunks(size)
                .for_each(|piece| scan.feed(piece, &mut ends));
            scan.end(false, &mut ends);
            assert_eq!(ends.status[&408], 1);
        }
    }
}
