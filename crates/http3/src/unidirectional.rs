//! Unidirectional streams of the peer (RFC 9114 section 6.2, RFC 9204 section 4.2): their types, and the frames
//! of the control stream.

use crate::error::{Http3Code, Http3Error};
use crate::frame::{Http3FrameHeader, kind};
use crate::varint;

/// Stream types.
pub(crate) mod stream_kind {
    pub(crate) const CONTROL: u64 = 0x0;
    pub(crate) const PUSH: u64 = 0x1;
    pub(crate) const QPACK_ENCODER: u64 = 0x2;
    pub(crate) const QPACK_DECODER: u64 = 0x3;
}

/// Maximum payload of a frame on the control stream that is processed.
const PAYLOAD_BYTES_MAX: u64 = 4 * 1024;

/// The receiving side of a unidirectional stream.
#[derive(Debug, Default)]
pub struct UnidirectionalStream {
    pub(crate) role: StreamRole,
    /// Bytes of an incomplete stream type, frame header or payload.
    pending: Vec<u8>,
    /// Remaining payload bytes to discard.
    skip: u64,
}

/// The type of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StreamRole {
    /// Not received yet.
    #[default]
    Unknown,
    Control,
    QpackEncoder,
    QpackDecoder,
    /// An unknown type, whose content is dropped.
    Ignored,
}

/// A frame of the control stream.
pub(crate) struct ControlFrame {
    pub(crate) kind: u64,
    pub(crate) payload: Vec<u8>,
}

impl UnidirectionalStream {
    /// Reads the stream's type. Returns the type and the number of bytes consumed of `bytes`; `None` if it is
    /// cut off, in which case all of `bytes` is kept.
    pub(crate) fn read_kind(&mut self, bytes: &[u8]) -> Option<(u64, usize)> {
        let before = self.pending.len();
        self.pending.extend_from_slice(&bytes[..bytes.len().min(8 - before)]);
        let (kind, len) = varint::read(&self.pending)?;
        self.pending = Vec::new();
        Some((kind, len - before))
    }

    /// Reads the next frame of the control stream. Returns the number of bytes consumed, and the frame if it
    /// is whole. `is_first` means that no frame was received before.
    pub(crate) fn read_frame(
        &mut self,
        bytes: &[u8],
        is_first: bool,
    ) -> Result<(usize, Option<ControlFrame>), Http3Error> {
        let mut at = 0;
        if self.skip > 0 {
            at = usize::try_from(self.skip).unwrap_or(usize::MAX).min(bytes.len());
            self.skip -= at as u64;
            if self.skip > 0 {
                return Ok((at, None));
            }
        }
        let mut input = std::mem::take(&mut self.pending);
        let before = input.len();
        input.extend_from_slice(&bytes[at..]);
        let Some((header, header_bytes)) = Http3FrameHeader::read(&input) else {
            self.pending = input;
            return Ok((bytes.len(), None));
        };
        check_kind(header, is_first)?;
        if !is_known(header.kind) {
            self.skip = header.len;
            let frame = ControlFrame { kind: header.kind, payload: Vec::new() };
            return Ok((at + header_bytes - before.min(header_bytes), Some(frame)));
        }
        if header.len > PAYLOAD_BYTES_MAX {
            return Err(Http3Error::connection(Http3Code::EXCESSIVE_LOAD, "control frame too large"));
        }
        let end = header_bytes + header.len as usize;
        if input.len() < end {
            self.pending = input;
            return Ok((bytes.len(), None));
        }
        let payload = input[header_bytes..end].to_vec();
        Ok((at + end - before, Some(ControlFrame { kind: header.kind, payload })))
    }

    /// Memory held, in bytes.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        size_of::<UnidirectionalStream>() + self.pending.capacity()
    }
}

/// Whether the frame is processed; others are skipped.
fn is_known(kind: u64) -> bool {
    matches!(
        kind,
        kind::CANCEL_PUSH
            | kind::SETTINGS
            | kind::GOAWAY
            | kind::MAX_PUSH_ID
            | kind::PRIORITY_UPDATE
            | kind::PRIORITY_UPDATE_PUSH
    )
}

/// Validates a frame of the control stream by its header (RFC 9114 sections 6.2.1 and 7.2).
fn check_kind(header: Http3FrameHeader, is_first: bool) -> Result<(), Http3Error> {
    let unexpected = |reason| Err(Http3Error::connection(Http3Code::FRAME_UNEXPECTED, reason));
    match header.kind {
        kind::SETTINGS if is_first => Ok(()),
        _ if is_first => {
            Err(Http3Error::connection(Http3Code::MISSING_SETTINGS, "first frame is not SETTINGS"))
        }
        kind::SETTINGS => unexpected("second SETTINGS"),
        kind::DATA | kind::HEADERS | kind::PUSH_PROMISE => unexpected("message on the control stream"),
        kind if kind::is_http2(kind) => unexpected("frame of HTTP/2"),
        _ => Ok(()),
    }
}
